"""`BiSNNClassifier` and `BiSNNRegressor`: scikit-learn's conventions around networks of bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.optimize import minimize_scalar
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import check_random_state, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from bisnn import conformal
from bisnn.checks import choice, flag, number, positive_int
from bisnn.sklearn import networks
from bisnn.sklearn.frames import categorical_columns, checked_cells, learned_schema
from bisnn.sklearn.networks import EncodedRows, TableNetwork, TrainingPlan, trained
from bisnn.sklearn.population import PopulationCode

RULES = {"st": (0.01, 0.3), "bayes": (0.05, 0.0)}  # their usual rate and dropout
ROWS = 8192  # predicted at a time
LOOK = ((1, 1),)  # prediction sets are formed once, at the end
NOT_CALIBRATED = (
    "This %(name)s is not calibrated yet. Call 'calibrate' first, on rows it was not trained on."
)


class _Estimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What both estimators share: from a table `X`, an array or data frame (N, d), to trained
    networks and what they say.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (256,),
        *,
        rule: str = "st",
        n_networks: int = 3,
        n_samples: int = 4,
        time_steps: int = 8,
        units: int = 8,
        max_iter: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        alpha: float = 5.0,
        dropout: float | str = "auto",
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 25,
        categorical_features: Iterable[str | int] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.rule = rule
        self.n_networks = n_networks
        self.n_samples = n_samples
        self.time_steps = time_steps
        self.units = units
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.alpha = alpha
        self.dropout = dropout
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        # not `string`: scikit-learn would then expect that cells of any type are taken
        return tags

    # From a table to spikes

    def _learn_table(self, X: Any, table: np.ndarray) -> torch.Tensor:
        """Learn what becomes of the columns, and return the training rows' spikes."""
        table = checked_cells(table)
        unnamed = [f"x{j}" for j in range(table.shape[1])]
        names = [str(name) for name in getattr(self, "feature_names_in_", unnamed)]
        categorical = categorical_columns(X, names, self.categorical_features)
        self.schema_ = learned_schema(table, names, categorical)
        features = self.schema_.encode(table)[0]
        self.code_ = PopulationCode.learned(features, self.units, self.time_steps)
        return self.code_.spikes(features)

    def _features(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        table = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=False)
        return self.schema_.encode(checked_cells(table))[0]

    def _of_all_networks(self, X: Any, function: Callable[..., torch.Tensor]) -> list[np.ndarray]:
        """`function(network, spikes)` of each network, (K, N, ...), by batches of rows."""
        features = self._features(X)
        batches = [features[i : i + ROWS] for i in range(0, len(features), ROWS)]
        parts = [
            [function(network, spikes).numpy() for network in self.networks_]
            for spikes in map(self.code_.spikes, batches)
        ]
        return [np.concatenate(of_one, 1) for of_one in zip(*parts, strict=True)]

    # Training

    def _plan(self, rows: int) -> TrainingPlan:
        """The checked settings, for so many rows."""
        widths = np.atleast_1d(self.hidden_layer_sizes).tolist()
        batch, epochs = self.batch_size, self.max_iter
        if batch == "auto":
            batch = min(128, max(16, rows // 20))
        batch = positive_int("batch_size", batch)
        if epochs == "auto":
            epochs = int(np.clip(networks.UPDATES * batch // rows, *networks.EPOCHS))
        if positive_int("time_steps", self.time_steps) <= len(widths):
            raise ValueError(
                f"time_steps: must be more than the layers, of which each takes one; got "
                f"{self.time_steps} for {len(widths)} layers; give e.g. {2 * len(widths) + 6}"
            )
        positive_int("units", self.units)
        choice("rule", self.rule, tuple(RULES))
        usual_rate, usual_dropout = RULES[self.rule]
        rate = usual_rate if self.learning_rate == "auto" else self.learning_rate
        dropout = usual_dropout if self.dropout == "auto" else self.dropout
        flag("early_stopping", self.early_stopping)
        shares = {"dropout": dropout, "validation_fraction": self.validation_fraction}
        for name, share in shares.items():
            if number(name, share, least=0) >= 1:
                raise ValueError(f"{name}: must lie below 1; got {share!r}; give e.g. 0.1")
        return TrainingPlan(
            widths=tuple(positive_int("hidden_layer_sizes", width) for width in widths),
            rule=self.rule,
            samples=positive_int("n_samples", self.n_samples),
            epochs=positive_int("max_iter", epochs),
            batch=batch,
            lr=number("learning_rate", rate, above=0),
            dropout=float(dropout),
            alpha=number("alpha", self.alpha, least=0),
            patience=positive_int("n_iter_no_change", self.n_iter_no_change),
        )

    def _fit(
        self, X: Any, table: np.ndarray, y: np.ndarray, weights: np.ndarray, outputs: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Train the networks, each with rows of its own held out. Returns for each what it says of
        those rows, (K, n, C), and their number among the rows that count.
        """
        plan = self._plan(len(y))
        rows = EncodedRows(
            self._learn_table(X, table),
            torch.from_numpy(y),
            torch.from_numpy((weights / weights.mean()).astype(np.float32)),
        )
        seeds = check_random_state(self.random_state).randint(
            np.iinfo(np.int32).max, size=positive_int("n_networks", self.n_networks)
        )
        share = self.validation_fraction if self.early_stopping else 0.0
        splits = [_split(y, share, seed) for seed in seeds]
        found = Parallel(n_jobs=self.n_jobs)(
            delayed(_train)(rows, held_out, outputs, plan, int(seed), self.verbose)
            for held_out, seed in zip(splits, seeds, strict=True)
        )
        self.networks_ = [network for network, _ in found]
        self.n_iter_ = max(network.epochs for network in self.networks_)
        self._n_features_out = sum(network.weight.shape[1] for network in self.networks_)
        return [(said, held_out) for (_, said), held_out in zip(found, splits, strict=True)]

    def _outputs(self, X: Any) -> np.ndarray:
        """Logits or targets of all networks' samples, (K, N, C)."""
        return np.concatenate(self._of_all_networks(X, TableNetwork.predict))

    def transform(self, X: Any) -> np.ndarray:
        """Firing rates of the last layers' neurons, (N, neurons), the mean over the samples."""
        rates = self._of_all_networks(X, TableNetwork.predict_rates)
        return np.concatenate([of_one.mean(0) for of_one in rates], 1)


def _split(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Numbers of the rows that a network does not train on: of each class the same share, where
    there are enough of every class.
    """
    rows, count = len(y), round(share * len(y))
    if count == 0 or rows - count < 2:
        return np.arange(0)
    sizes = np.unique(y, return_counts=True)[1]
    by_class = y.dtype.kind == "i" and sizes.min() > 1 and min(count, rows - count) >= len(sizes)
    kind = StratifiedShuffleSplit if by_class else ShuffleSplit
    return next(kind(1, test_size=count, random_state=seed).split(np.zeros(rows), y))[1]


def _train(
    rows: EncodedRows,
    held_out: np.ndarray,
    outputs: int,
    plan: TrainingPlan,
    seed: int,
    verbose: int,
) -> tuple[TableNetwork, np.ndarray]:
    """A network, and what it says of the rows that it was not trained on."""
    others = np.setdiff1d(np.arange(len(rows.y)), held_out)
    train, judged = (rows.at(torch.from_numpy(some)) for some in (others, held_out))
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # networks are small, and the same for any n_jobs
    try:
        if not len(held_out):
            return trained(train, None, outputs, plan, seed, verbose), np.zeros((1, 0, outputs))
        network = trained(train, judged, outputs, plan, seed, verbose)
        return network, network.predict(judged.spikes).numpy()
    finally:
        torch.set_num_threads(before)


class BiSNNClassifier(ClassifierMixin, _Estimator):
    """A classifier of tables: spiking networks of binary weights, whose probabilities are averaged.

    Arrays and data frames go in as they are: columns of numbers become populations of units, words
    and categories zeros and ones, missing values the column's median and a unit that says so.

    Args:
        hidden_layer_sizes: neurons of each layer.
        rule: "st", straight-through, or "bayes", networks from a posterior over the weights.
        n_networks: that are trained, each with rows of its own held out.
        n_samples: of each network's posterior in a prediction, by the rule "bayes".
        time_steps: for which the networks run.
        units: for each column of numbers; fewer where there are very many columns.
        max_iter: epochs; "auto" for about 1,000 updates of the weights, in 10 to 300 epochs.
        batch_size: rows of an update; "auto" for a twentieth of them, 16 to 128.
        learning_rate: of the latents of the weights; "auto" for 0.01 by the rule "st" and 0.05 by
            "bayes".
        alpha: penalty on the squares of the readout's weights, beside the sum of the losses of all
            rows.
        dropout: share of the neurons that the readout does not see in training; "auto" for 0.3 by
            the rule "st" and none by "bayes".
        early_stopping: hold out rows, and keep each network as it was best on them. They also set
            the temperature of the probabilities.
        validation_fraction: the share that is held out, of each class where there are enough rows.
        n_iter_no_change: epochs without a better held-out loss before training stops.
        categorical_features: names or numbers of columns of numbers that are categories, beside
            those of text and of categorical types.
        class_weight: None, "balanced", or a mapping from classes to weights.
        random_state: seed, for the same model again.
        n_jobs: networks that are trained at a time, in processes of their own; the model is the
            same for any.
        verbose: 1 for a line per network, 2 for one per epoch.

    Fitted attributes: `classes_`, `n_features_in_`, `feature_names_in_` of a frame, `n_iter_`
    (epochs, of the network that took most), `networks_` (each has a `bisnn.Network` as `net`),
    `temperature_`.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True, as_frame=True)
    >>> model = BiSNNClassifier(n_networks=1, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (256,),
        *,
        rule: str = "st",
        n_networks: int = 3,
        n_samples: int = 4,
        time_steps: int = 8,
        units: int = 8,
        max_iter: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate: float | str = "auto",
        alpha: float = 5.0,
        dropout: float | str = "auto",
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 25,
        categorical_features: Iterable[str | int] | None = None,
        class_weight: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ):
        super().__init__(
            hidden_layer_sizes,
            rule=rule,
            n_networks=n_networks,
            n_samples=n_samples,
            time_steps=time_steps,
            units=units,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            alpha=alpha,
            dropout=dropout,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            categorical_features=categorical_features,
            random_state=random_state,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BiSNNClassifier:
        """Train the networks on a table, which may have text, categories and missing values.

        Args:
            X: an array or data frame (N, d).
            y: a class per row, of any type.
            sample_weight: how much each row counts, (N,); those of weight 0 are left out.
        """
        table, y = validate_data(self, X, y, dtype=None, ensure_all_finite="allow-nan")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        weights = _check_sample_weight(sample_weight, table, ensure_non_negative=True)
        weights = weights * compute_sample_weight(self.class_weight, y)
        table, y, weights = _counting(table, y, weights)
        self.classes_, labels = np.unique(y, return_inverse=True)
        self.n_rows_ = len(y)
        held_out = self._fit(X, table, labels.astype(np.int64), weights, len(self.classes_))
        self.temperature_ = _temperature([(said, labels[rows]) for said, rows in held_out])
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (N, C): the mean over networks and samples, as if one row
        more had been seen that is of all classes alike, so that few rows make no class impossible.
        """
        said = _mean_softmax(self._outputs(X) / self.temperature_)
        prior = networks.PRIOR / self.n_rows_
        return (said + prior / said.shape[1]) / (1 + prior)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, (N,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def calibrate(self, X: Any, y: Any, coverage: float = 0.9) -> BiSNNClassifier:
        """Find the threshold of `predict_set` from rows that were never trained on.

        Args:
            X: an array or data frame (N, d).
            y: the true class of each row.
            coverage: how often a set is to hold it, in (0, 1).
        """
        scores = conformal.surprisals(self._log_proba(X), LOOK)
        y = column_or_1d(y)
        unknown = np.setdiff1d(y, self.classes_).tolist()
        if unknown:
            raise ValueError(
                f"y: must be classes that the model was trained on; got {unknown[0]!r}; leave out "
                "such rows"
            )
        labels = np.searchsorted(self.classes_, y)
        self.sets_ = conformal.calibrate_sets(
            scores, labels, LOOK, coverage, correction="bonferroni", score="surprisal"
        )
        return self

    def predict_set(self, X: Any) -> np.ndarray:
        """Sets of classes, bool (N, C), that hold the true one as often as `calibrate` was asked
        for, on rows that are exchangeable with those it was given.
        """
        check_is_fitted(self, "sets_", msg=NOT_CALIBRATED)
        return self.sets_.at(0, conformal.surprisals(self._log_proba(X), LOOK)[0])

    def _log_proba(self, X: Any) -> np.ndarray:
        """As `conformal.surprisals` takes it, (1, 1, N, C)."""
        return np.log(self.predict_proba(X).clip(1e-300))[None, None]


class BiSNNRegressor(RegressorMixin, _Estimator):
    """A regressor of tables: spiking networks of binary weights, whose outputs are averaged.

    Args:
        hidden_layer_sizes, rule, n_networks, n_samples, time_steps, units: as for
            `BiSNNClassifier`.
        max_iter, batch_size, learning_rate, alpha, dropout: as for `BiSNNClassifier`.
        early_stopping, validation_fraction, n_iter_no_change: as for `BiSNNClassifier`.
        categorical_features, random_state, n_jobs, verbose: as for `BiSNNClassifier`.

    Fitted attributes: `n_features_in_`, `feature_names_in_` of a frame, `n_iter_` (epochs, of the
    network that took most), `networks_` (each has a `bisnn.Network` as `net`),
    `target_mean_`, `target_scale_`.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BiSNNRegressor:
        """Train the networks on a table, which may have text, categories and missing values.

        Args:
            X: an array or data frame (N, d).
            y: a number per row.
            sample_weight: how much each row counts, (N,); those of weight 0 are left out.
        """
        table, y = validate_data(
            self, X, y, dtype=None, ensure_all_finite="allow-nan", y_numeric=True
        )
        y = column_or_1d(y, warn=True).astype(np.float64)
        weights = _check_sample_weight(sample_weight, table, ensure_non_negative=True)
        table, y, weights = _counting(table, y, weights)
        self.target_mean_, self.target_scale_ = y.mean(), y.std() or 1.0
        units = ((y - self.target_mean_) / self.target_scale_).astype(np.float32)
        self._fit(X, table, units, weights, 1)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The target of each row, (N,): the mean over networks and samples."""
        return self._outputs(X).mean(0)[:, 0] * self.target_scale_ + self.target_mean_

    def calibrate(self, X: Any, y: Any, coverage: float = 0.9) -> BiSNNRegressor:
        """Find the width of `predict_interval` from rows that were never trained on.

        Args:
            X: an array or data frame (N, d).
            y: the true target of each row.
            coverage: how often an interval is to hold it, in (0, 1).
        """
        mean = self.predict(X)
        self.intervals_ = conformal.calibrate_intervals(
            mean, np.zeros_like(mean), column_or_1d(y), coverage
        )
        return self

    def predict_interval(self, X: Any) -> np.ndarray:
        """Intervals (N, 2) that hold the target as often as `calibrate` was asked for, on rows that
        are exchangeable with those it was given.
        """
        check_is_fitted(self, "intervals_", msg=NOT_CALIBRATED)
        mean = self.predict(X)
        return np.stack(self.intervals_.around(mean, np.zeros_like(mean)), 1)


def _counting(table: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """The rows whose weight is above zero."""
    kept = weights > 0
    return table[kept], y[kept], weights[kept]


def _mean_softmax(logits: np.ndarray) -> np.ndarray:
    """Mean over the first axis of the softmax over the last."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    mean = (powers / powers.sum(-1, keepdims=True)).mean(0)
    return mean / mean.sum(-1, keepdims=True)


def _temperature(held_out: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """What to divide the logits by, so that rows are the most probable that their network did not
    train on; 1 where there are none.
    """
    if not sum(len(labels) for _, labels in held_out):
        return 1.0

    def loss(log_temperature: float) -> float:
        total = 0.0
        for said, labels in held_out:
            p = _mean_softmax(said / np.exp(log_temperature))
            total -= np.log(p[np.arange(len(labels)), labels].clip(1e-12)).sum()
        return total

    return float(np.exp(minimize_scalar(loss, bounds=(-2, 2), method="bounded").x))
