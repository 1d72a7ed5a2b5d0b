"""bisnn.sklearn: scikit-learn's own checks and tools, frames of all kinds, what training does."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from mapie.classification import SplitConformalClassifier
from mapie.regression import CrossConformalRegressor
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_diabetes, load_iris, make_classification, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, recall_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import bisnn
from bisnn.realisation import map_weights
from bisnn.sklearn import BiSNNClassifier, BiSNNRegressor
from bisnn.sklearn.population import PopulationCode

SMALL = {"hidden_layer_sizes": (32,), "n_networks": 1, "n_samples": 2, "max_iter": 20, "alpha": 1.0}
IRIS = load_iris(return_X_y=True, as_frame=True)
MOONS = make_moons(200, noise=0.2, random_state=0)
DIABETES = load_diabetes(return_X_y=True)


def classifier(**settings) -> BiSNNClassifier:
    return BiSNNClassifier(**{**SMALL, "random_state": 0, **settings})


def regressor(**settings) -> BiSNNRegressor:
    return BiSNNRegressor(**{**SMALL, "random_state": 0, **settings})


def mixed_frame() -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers, some missing, words, and categories that are numbers; only the last two matter."""
    rng = np.random.default_rng(0)
    colour, code = rng.choice(["red", "blue"], 200), rng.integers(0, 3, 200)
    size = np.where(rng.random(200) < 0.2, np.nan, rng.normal(size=200))
    y = np.where((colour == "red") == (code == 1), "yes", "no")
    return pd.DataFrame({"size": size, "colour": colour, "code": pd.Categorical(code)}), y


# scikit-learn's own checks


def excepted(estimator):
    """Checks that do not hold, with their reasons: docs/SKLEARN.md has the same list."""
    reason = "a row of weight 2 and two equal rows are shuffled and held out differently"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@parametrize_with_checks(
    [BiSNNClassifier(**SMALL), BiSNNRegressor(**SMALL)],
    expected_failed_checks=excepted,
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [BiSNNClassifier(n_networks=2), BiSNNRegressor(n_networks=2), BiSNNClassifier(rule="bayes")],
    expected_failed_checks=excepted,
)
def test_scikit_learns_checks_of_the_defaults(estimator, check):
    check(estimator)


# Its tools


def test_in_a_pipeline_and_a_grid_search():
    search = GridSearchCV(
        make_pipeline(StandardScaler(), classifier()),
        {"bisnnclassifier__hidden_layer_sizes": [(1,), (32,)]},
        cv=3,
    )
    search.fit(*MOONS)
    assert search.best_params_ == {"bisnnclassifier__hidden_layer_sizes": (32,)}
    assert search.best_score_ > LogisticRegression().fit(*MOONS).score(*MOONS)


def test_calibrated_by_scikit_learn():
    x, test_x, y, test_y = train_test_split(*MOONS, random_state=0)
    model = CalibratedClassifierCV(classifier(), cv=3).fit(x, y)
    assert log_loss(test_y, model.predict_proba(test_x)) < 0.4


def test_prediction_sets_of_mapie_and_ours_agree():
    """Both are split conformal prediction by 1 - p of the true class, which -log p orders alike."""
    x, y = make_classification(900, n_classes=3, n_informative=4, flip_y=0.2, random_state=0)
    model = classifier().fit(x[:300], y[:300])
    ours = model.calibrate(x[300:600], y[300:600], coverage=0.8).predict_set(x[600:])
    theirs = SplitConformalClassifier(
        model, confidence_level=0.8, conformity_score="lac", prefit=True
    )
    sets = theirs.conformalize(x[300:600], y[300:600]).predict_set(x[600:])[1][..., 0]
    empty = ~sets.any(1)
    assert np.array_equal(ours[~empty], sets[~empty])
    assert (ours[empty].sum(1) == 1).all()
    assert ours[np.arange(300), y[600:]].mean() > 0.75


def test_intervals_of_mapie_and_ours_hold_the_target():
    x, test_x, y, test_y = train_test_split(*DIABETES, random_state=0)
    model = regressor().fit(x[:200], y[:200]).calibrate(x[200:], y[200:], coverage=0.8)
    theirs = CrossConformalRegressor(regressor(), confidence_level=0.8, cv=3)
    pairs = theirs.fit_conformalize(x, y).predict_interval(test_x)[1][..., 0]
    for low, high in (model.predict_interval(test_x).T, pairs.T):
        assert 0.7 < ((low <= test_y) & (test_y <= high)).mean() < 0.95


def test_sets_and_intervals_ask_to_be_calibrated():
    x, y = MOONS
    with pytest.raises(NotFittedError, match="not calibrated yet"):
        classifier().fit(x, y).predict_set(x)
    with pytest.raises(NotFittedError, match="not calibrated yet"):
        regressor().fit(x, y).predict_interval(x)
    with pytest.raises(ValueError, match=r"y: must be classes .* got 7; leave out such rows"):
        classifier().fit(x, y).calibrate(x, np.where(y, 7, 0))


# Frames


def test_frames_and_arrays_are_the_same_table():
    x, y = IRIS
    of_pandas = classifier().fit(x, y)
    of_array = classifier().fit(x.to_numpy(), y.to_numpy())
    of_polars = classifier().fit(pl.DataFrame(x.to_dict("list")), pl.Series(y.tolist()))
    assert list(of_pandas.feature_names_in_) == list(of_polars.feature_names_in_) == list(x)
    probabilities = of_array.predict_proba(x.to_numpy())
    assert np.array_equal(of_pandas.predict_proba(x), probabilities)
    assert np.array_equal(of_polars.predict_proba(pl.DataFrame(x.to_dict("list"))), probabilities)


def test_words_categories_and_missing_values_are_taken_as_they_are():
    frame, y = mixed_frame()
    model = classifier(hidden_layer_sizes=(128,), max_iter=60).fit(frame[:150], y[:150])
    features = "size, size is blank, colour = blue, colour = red, code = 0, code = 1, code = 2"
    assert model.schema_.features == features.split(", ")
    assert model.score(frame[150:], y[150:]) > 0.85  # of colour or code alone: one half
    columns = {
        "size": [None if v != v else v for v in frame["size"]],
        "colour": frame["colour"].tolist(),
        "code": [str(v) for v in frame["code"]],
    }
    other = pl.DataFrame(columns).with_columns(pl.col("colour", "code").cast(pl.Categorical))
    same = clone(model).fit(other[:150], y[:150])
    assert np.array_equal(same.predict_proba(other), model.predict_proba(frame))


def test_numbers_can_be_named_as_categories():
    frame, y = mixed_frame()
    plain = frame.assign(code=frame["code"].astype(int))
    by_name = classifier(categorical_features=["code"]).fit(plain, y)
    by_number = classifier(categorical_features=[2]).fit(plain.to_numpy(), y)
    assert by_name.schema_.columns[2].categories == ("0", "1", "2")
    assert np.array_equal(by_name.predict_proba(plain), by_number.predict_proba(plain.to_numpy()))
    with pytest.raises(ValueError, match=r"categorical_features: .* size, colour, code; got 'cod'"):
        classifier(categorical_features=["cod"]).fit(plain, y)


def test_a_column_of_names_is_refused():
    x = pd.DataFrame({"name": [f"person {i}" for i in range(50)], "age": range(50)})
    with pytest.raises(ValueError, match="column 'name' has 50 different words in 50 rows"):
        classifier().fit(x, np.arange(50) % 2)


def test_missing_words_of_pandas_are_blanks():
    frame, y = mixed_frame()
    gone = frame.astype({"colour": object})
    gone.loc[:5, "colour"] = pd.NA
    model = classifier().fit(gone, y)
    assert model.schema_.columns[1].categories == ("", "blue", "red")
    days = np.array([[pd.Timestamp(0), 1.0]] * 4, object)
    with pytest.raises(TypeError, match="row 0, column 0: argument must be a string or a number"):
        classifier().fit(days, [0, 1, 0, 1])


def test_a_word_among_numbers_is_refused():
    x = np.array([[1.0, 2.0], ["two", 3.0], [3.0, 4.0]], object)
    with pytest.raises(ValueError, match=r"row 1, column 'x0': must be a number.* got 'two'"):
        classifier().fit(x, [0, 1, 0])


def test_infinite_and_misnamed_columns_are_refused():
    x, y = IRIS
    with pytest.raises(ValueError, match="infinity"):
        classifier().fit(x.replace(0.2, np.inf), y)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier().fit(x, y).predict(x.rename(columns=str.upper))


def test_transform_gives_firing_rates_as_a_frame():
    x, y = IRIS
    model = classifier(n_networks=2, rule="st").fit(x, y).set_output(transform="pandas")
    rates = model.transform(x)
    assert list(rates)[:2] == ["bisnnclassifier0", "bisnnclassifier1"]
    assert rates.shape == (150, 64)
    spikes = model.code_.spikes(model._features(x))
    net = model.networks_[1].net
    with map_weights(net), torch.no_grad():
        counts = net(spikes).spikes[-1][1:].sum(0)
    np.testing.assert_allclose(rates.to_numpy()[:, 32:], counts / 7, atol=1e-6)
    assert isinstance(clone(model).set_output(transform="polars").fit_transform(x, y), pl.DataFrame)


# What training does


@pytest.mark.slow
def test_the_same_model_for_any_number_of_jobs():
    x, y = MOONS
    one, two = (classifier(n_networks=2, n_jobs=jobs).fit(x, y) for jobs in (1, 2))
    assert np.array_equal(one.predict_proba(x), two.predict_proba(x))


def test_a_seed_gives_the_same_model_and_so_does_a_pickle():
    x, y = MOONS
    one, two = (classifier(n_networks=2).fit(x, y) for _ in range(2))
    assert np.array_equal(one.predict_proba(x), two.predict_proba(x))
    again = pickle.loads(pickle.dumps(one))
    assert np.array_equal(again.predict_proba(x), one.predict_proba(x))
    other = classifier(n_networks=2, random_state=1).fit(x, y)
    assert not np.array_equal(one.predict_proba(x), other.predict_proba(x))


def test_a_rows_prediction_does_not_depend_on_its_neighbours():
    x, y = MOONS
    model = classifier().fit(x, y)
    alone = np.concatenate([model.predict_proba(row[None]) for row in x[:10]])
    np.testing.assert_allclose(alone, model.predict_proba(x)[:10], atol=1e-12)


def test_all_weights_of_the_layers_are_bits():
    model = classifier(n_networks=2).fit(*MOONS)
    for network in model.networks_:
        packed = bisnn.packing.describe(network.net)
        assert packed.layers[0].alphabet.levels == (-1, 1)


def test_class_weights_find_the_rare_class():
    rng = np.random.default_rng(0)
    y = (rng.random(1000) < 0.08).astype(int)
    x = rng.normal(size=(1000, 2)) + 1.2 * y[:, None]
    plain, balanced = (
        classifier(class_weight=kind).fit(x[:700], y[:700]) for kind in (None, "balanced")
    )
    recall = [recall_score(y[700:], model.predict(x[700:])) for model in (plain, balanced)]
    assert recall[1] > recall[0] + 0.3
    same = classifier().fit(x, y, sample_weight=np.where(y, len(y) / y.sum() / 2, 1))
    assert same.predict(x).mean() > 2 * plain.predict(x).mean()


def test_rows_of_weight_zero_are_as_if_left_out():
    x, y = MOONS
    kept = np.arange(len(y)) % 3 > 0
    weighted = classifier().fit(x, np.where(kept, y, 1 - y), sample_weight=kept * 2.5)
    left_out = classifier().fit(x[kept], y[kept])
    assert np.array_equal(weighted.predict_proba(x), left_out.predict_proba(x))


def test_early_stopping_keeps_the_best_epoch_on_rows_it_held_out(capsys):
    x, y = make_classification(120, 10, flip_y=0.4, random_state=0)
    settings = {"max_iter": 80, "n_iter_no_change": 5, "verbose": 2}
    model = classifier(**settings).fit(x, y)
    shown = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"epoch \d+: held-out loss ([\d.]+)", shown)]
    assert len(losses) == model.n_iter_ < 80
    assert losses.index(min(losses)) == len(losses) - 6
    assert f"{len(losses)} epochs, best held-out loss {min(losses):.4f}" in shown
    whole = classifier(**settings, early_stopping=False).fit(x, y)
    assert whole.n_iter_ == 80
    assert whole.temperature_ == 1
    assert whole.score(x, y) > model.score(x, y)  # learned by heart


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "baies"}, "rule: must be one of st, bayes; got 'baies'; did you mean 'bayes'"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes: must be a positive whole number"),
        ({"validation_fraction": 1.5}, "validation_fraction: must lie below 1; got 1.5"),
        ({"dropout": -0.1}, "dropout: must be a finite number >= 0; got -0.1"),
        ({"learning_rate": 0}, "learning_rate: must be a finite number > 0; got 0"),
        ({"max_iter": "long"}, "max_iter: must be a positive whole number; got 'long'"),
        ({"early_stopping": "yes"}, "early_stopping: must be True or False; got 'yes'"),
        ({"time_steps": 1}, "time_steps: must be more than the layers, of which each takes one"),
        ({"units": 0}, "units: must be a positive whole number; got 0"),
        ({"n_networks": 0}, "n_networks: must be a positive whole number; got 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        classifier(**settings).fit(*MOONS)


def test_tables_given_to_train_are_told_where_to_go(tmp_path):
    x, y = MOONS
    fix = r"for a table X and y call bisnn\.sklearn\.BiSNNClassifier\(\)\.fit\(X, y\)"
    with pytest.raises(ValueError, match=f"config: must be a Config.* got a ndarray; {fix}"):
        bisnn.train(x, y)
    points = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    with pytest.raises(ValueError, match=r"bisnn.data.Dataset, .* got a TensorDatas"):
        bisnn.train(bisnn.config.load("two_moons_st"), tmp_path / "run", data=points)


# The population code


def test_units_ramp_between_knots_and_their_spikes_are_regular():
    x = np.linspace(0, 1, 201)[:, None]
    code = PopulationCode.learned(x, units=4, steps=100)
    rates, spikes = code.rates(x), code.spikes(x).double().numpy()
    assert code.inputs == rates.shape[1] == 9
    assert np.allclose(rates[:, :4] + rates[:, 4:8], 1)
    inner = (x[:, 0] > 0.01) & (x[:, 0] < 0.99)
    slope = np.diff(rates[inner, :4].sum(1)) / 0.005
    np.testing.assert_allclose(slope, 4 / 0.99, rtol=1e-6)  # evenly spread values: a straight line
    assert np.abs(spikes.mean(0) - rates).max() < 0.011  # a spike more or less in 100 steps
    assert np.abs(spikes[:50].mean(0) - rates).max() < 0.021


def test_columns_that_never_change_have_no_units():
    x = np.array([[1.0, 5.0, 0.0], [2.0, 5.0, 1.0], [3.0, 5.0, 1.0]])
    assert [len(k) for k in PopulationCode.learned(x, units=4, steps=8).knots] == [5, 1, 2]
    many = PopulationCode.learned(np.random.default_rng(0).random((20, 3000)), units=8, steps=2)
    assert many.inputs == 6001  # one unit and its opposite each


def test_values_beyond_the_training_rows_are_clipped():
    code = PopulationCode.learned(np.linspace(0, 1, 50)[:, None], units=4, steps=8)
    far = code.rates(np.array([[-100.0], [100.0]]))
    assert set(far.ravel().tolist()) == {0.0, 1.0}
