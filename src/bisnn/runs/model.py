"""Trained networks with all it takes to predict, and their file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bisnn import metrics
from bisnn.alphabet import BINARY, alphabet_of
from bisnn.checks import number, positive_int
from bisnn.conformal import PredictionIntervals, PredictionSets
from bisnn.data import table
from bisnn.data.events import Recording
from bisnn.data.loading import Clips, LoadedData
from bisnn.files import afford
from bisnn.network import Network
from bisnn.packed.columns import BadSchema, Schema, category, is_blank
from bisnn.prediction import (
    Classification,
    Dropout,
    Members,
    Regression,
    logits,
    of_logits,
    tempered,
)
from bisnn.runs import config as config_module
from bisnn.runs.building import build_network, planned_layers
from bisnn.runs.config import Config
from bisnn.runs.folder import Damaged, RunFolder, load_tree, save_tree
from bisnn.runs.guarantee import (
    Guarantee,
    answers,
    calibrated,
    check_unseen,
    checked_truth,
    usable,
)
from bisnn.runs.guarantee import write as write_guarantee
from bisnn.runs.inputs import (
    input_shape,
    points_of,
    recordings_of,
    series_of,
    spike_trains_of,
    spikes,
)
from bisnn.runs.labels import steps_that_count
from bisnn.runs.series_section import SeriesData
from bisnn.weights import draw_members, latents_for, latents_of, mark_latents

BATCH = 250  # points predicted at a time, at most
# Of input and neurons, over all time steps, in a batch of predictions
VALUES, VALUES_ON_GPU = 1 << 25, 1 << 29


@dataclass(frozen=True)
class Model:
    """A trained network with all it takes to predict: encoding, scales, names of columns."""

    net: Network  #: with the latents, or real weights, that training found
    config: Config  #: that it was trained by
    classes: tuple[str, ...]  #: empty for regression
    low: Tensor  #: (d,) the training rows' range; empty for recordings
    high: Tensor  #: the range's other end, (d,)
    epoch: int  #: that the weights are from
    data: str  #: fingerprint of the points it was trained on
    schema: Schema | None = None  #: of a table: from its columns to features
    target_mean: float = 0.0  #: of a table's target, which is the network's output ...
    target_scale: float = 1.0  #: ... times this scale, plus the mean
    guarantee: Guarantee | None = None  #: of its sets or intervals, if it is calibrated
    #: parameters of further networks that predict as one with `net`, whose readouts they share:
    #: trained beside it, or snapshots of its training
    others: tuple[tuple[Tensor, ...], ...] = ()
    temperature: float = 1.0  #: of the probabilities; see `tempered`
    #: fingerprints of the training points, (N,): no guarantee comes from these
    trained_on: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    @classmethod
    def of(cls, net: Network, config: Config, data: LoadedData, epoch: int) -> Model:
        """Of `net`, trained by `config` on `data`, whose classes and scales it has, to `epoch`."""
        target = (data.target_mean, data.target_scale)
        return cls(
            net,
            config,
            data.classes,
            data.low,
            data.high,
            epoch,
            data.digest(),
            data.schema,
            *target,
            trained_on=data.trained_on,
        )

    @property
    def features(self) -> int:
        """The number d of features of a point; 0 for recordings."""
        return len(self.low)

    @property
    def members(self) -> int | None:
        """Members that the config draws from each network, or None where it draws none."""
        drawn = self.config.rule.posterior() or self.config.predict.dropout
        return self.config.predict.samples if drawn else None

    def size(self, samples: int | None) -> int:
        """Members of an ensemble of `samples` draws from each network; None: one set of weights."""
        return (1 + len(self.others)) * (samples or 1)

    @property
    def batch(self) -> int:
        """Points or recordings that are worked on together."""
        values = math.prod(self.net.input_shape) + sum(
            math.prod(layer.current_shape) for layer in self.net.layers
        )
        most = VALUES if next(self.net.parameters()).device.type == "cpu" else VALUES_ON_GPU
        return max(1, min(BATCH, most // (self.config.steps * values)))

    def predict(
        self,
        x: Any,
        samples: int | Literal["usual"] | None = "usual",
        over_time: str = "mean",
        advance: Callable[[int], Any] = lambda points: None,
    ) -> Classification | Regression:
        """Predict from raw features, in the units of the training file; predictions are in those of
        its targets.

        Args:
            x: an array (N, d), one row per point. For a model of a table, as
                `bisnn.packed.columns.Schema.encode` takes it: all columns but the target, numbers
                or text, NaN where a cell is blank; or a mapping from their names to a value, or to
                one per point. A line on stderr says what no training row was like.
            samples: "usual" for the config's ensemble (or the one set of weights, where there is no
                posterior), None for the MAP weights, K for an ensemble of K.
            over_time: as in `bisnn.predict`.
            advance: called with the number of points done, now and then.
        """
        points = points_of(self.config, x, self.schema, self.low, self.high)
        return self.predict_points(points, self.count(samples), over_time, advance)

    def predict_recordings(
        self,
        recordings: Sequence[str | Path | np.ndarray | Recording],
        samples: int | Literal["usual"] | None = "usual",
        over_time: str = "mean",
        advance: Callable[[int], Any] = lambda recordings: None,
    ) -> Classification | Regression:
        """Predict recordings of an event camera, seen as those that the model was trained on: same
        pixels, same time steps.

        Args:
            recordings: files (`.aedat`, `.bin`), arrays of events with the fields x, y, t, p, or
                what `read_events` gives. Each is read when its turn comes; one that is no recording
                is a BadEvents, and then there are no predictions at all. A line on stderr says what
                was left out of them.
            samples, over_time: as in `predict`.
            advance: called with the number of recordings done, now and then.
        """
        clips, loose = recordings_of(self.config, recordings)
        result = self.predict_points(clips, self.count(samples), over_time, advance)
        loose.say()
        return result

    def predict_spikes(
        self,
        x: Any,
        samples: int | Literal["usual"] | None = "usual",
        over_time: str = "mean",
        advance: Callable[[int], Any] = lambda recordings: None,
    ) -> Classification | Regression:
        """Predict recordings that are spikes already.

        Args:
            x: an array or tensor (N, T, ...), 0 or 1, as the model was trained on.
            samples, over_time, advance: as in `predict`.
        """
        clips = spike_trains_of(self.config, x, self.net.input_shape)
        return self.predict_points(clips, self.count(samples), over_time, advance)

    def predict_series(
        self,
        x: Any,
        samples: int | Literal["usual"] | None = "usual",
        over_time: str | None = None,
        advance: Callable[[int], Any] = lambda recordings: None,
    ) -> Classification | Regression:
        """Predict series of values, or of spikes, in the units of the training recordings.

        Args:
            x: an array (N, T, D), or a list of recordings (T, D) of any lengths.
            samples, advance: as in `predict`.
            over_time: as in `bisnn.predict`; by default "mean", and "step" for a model that was
                trained on labels of time steps: its predictions, (T - burn_in, N, C), mean nothing
                beyond a recording's end.
        """
        usual = "step" if self.config.data.each_step() else "mean"
        clips = series_of(self.config, x)
        return self.predict_points(clips, self.count(samples), over_time or usual, advance)

    def inputs(self, x: Any) -> Tensor | Clips:
        """What a user has, `x`, as `predict_points` takes it: features for a model of points; for
        one of recordings a list of them, or spikes (N, T, ...); series for one of series.
        """
        if isinstance(self.config.data, SeriesData):
            return series_of(self.config, x)
        if not self.config.recorded:
            return points_of(self.config, x, self.schema, self.low, self.high)
        if isinstance(x, (list, tuple)):
            return recordings_of(self.config, x)[0]
        return spike_trains_of(self.config, x, self.net.input_shape)

    def calibrate(
        self,
        x: Any,
        y: Any,
        coverage: float = 0.9,
        *,
        samples: int | Literal["usual"] | None = "usual",
        **options: Any,
    ) -> Model:
        """This model with prediction sets, or intervals, that hold the truth as often as asked for.

        The guarantee is for data like (x, y), which must not have been trained on: points of the
        training are recognised, and refused.

        Args:
            x: features (N, d), a list of recordings, or spikes (N, T, ...).
            y: numbers of the classes, (N,), or targets.
            coverage: in (0, 1).
            samples: as in `predict`.
            options: of `bisnn.runs.guarantee.calibrated`: correction, looks, one_by_one, most,
                by_class, score; scaled for intervals.
        """
        points, members = self.inputs(x), self.count(samples)
        y = checked_truth(self, points, y)
        check_unseen(self, points, y)
        found = calibrated(self, points, y, coverage, samples=members, **options)
        return replace(self, guarantee=found)

    def predict_set(self, x: Any) -> PredictionSets | PredictionIntervals:
        """Sets of classes, and the time step at which each was small enough; of a regression,
        intervals. `x` is as in `calibrate`, which it needs, or a run folder with a calibration.
        """
        return answers(self, self.inputs(x))

    def tempered(self, temperature: float | None = None) -> Model:
        """This model with probabilities at a `temperature`, by default the one that calibration
        found: above 1 softer, below it sharper, each member's p^(1/temperature), normalised.
        """
        if not self.classes:
            raise ValueError(
                "temperature: is of probabilities, and this model predicts targets; "
                f"got {temperature}; leave it out"
            )
        if temperature is None and self.guarantee is not None:
            temperature = self.guarantee.temperature
        if temperature is None:
            raise ValueError(
                "temperature: this model has none from its calibration; got None; calibrate it "
                "with `bisnn calibrate` or `calibrate`, by the joint correction"
            )
        return replace(self, temperature=number("temperature", temperature, above=0))

    def count(self, samples: int | Literal["usual"] | None) -> int | None:
        """The members drawn from each network, where a user says `samples`; None: MAP weights."""
        if samples not in (None, "usual") and self.members is None:
            raise ValueError(
                f"samples: the rule {self.config.rule.name!r} has no posterior to draw from; "
                f"got {samples!r}; leave it out"
            )
        count = self.members if samples == "usual" else samples
        if isinstance(count, int):
            total = self.size(count)
            afford("samples", total * weight_count(self.net), f"an ensemble of {total:,} members")
        return count

    def draw(self, samples: int | None) -> Members | Dropout | None:
        """`samples` members of each network, always the same first ones; None for the one set of
        weights, or of several networks that of each.
        """
        if samples is not None and self.config.predict.dropout:
            return Dropout(samples, self.config.network.dropout)
        if samples is None and not self.others:
            return None
        first = [layer.weight for layer in self.net.layers]
        kind = latents_of(first[0])
        of_each = [[w.detach().to(first[0].device) for w in some] for some in (first, *self.others)]
        for latents in of_each:
            for w in latents:
                mark_latents(w, kind)
        if samples is not None:
            count = positive_int("samples", samples)
            return [
                member
                for k, latents in enumerate(of_each)
                for member in draw_members(latents, count, self.config.seed, k * count)
            ]
        if self.net.alphabet is None:
            return of_each
        return [[kind.modes(w).to(torch.int8) for w in latents] for latents in of_each]

    def predict_points(
        self,
        x: Tensor | Clips,
        samples: int | None,
        over_time: str = "mean",
        advance: Callable[[int], Any] = lambda points: None,
        look: Callable[[list[Tensor]], Any] = lambda readouts: None,
    ) -> Classification | Regression:
        """Predict points, encoded alike, or recordings: all by the same members.

        Args:
            x: points (N, d), or recordings.
            samples: members of each network; None for the one set of weights.
            over_time, advance: as in `predict`.
            look: called with the readouts of some points after others, for what else is made of
                them.
        """
        members_of: list[Tensor] = []  # each (K, ..., C), of some of the points
        options: dict[str, Any] = {"task": self.config.task, "over_time": over_time}
        options |= {"burn_in": self.config.burn_in}
        for index, readouts in self.readouts(x, samples, advance):
            mask = x[index].mask(readouts[0].device) if isinstance(x, Clips) else None
            results = [of_logits(y, **options, mask=mask) for y in readouts]
            members_of.append(torch.stack([result.members for result in results]).mean(0))
            look(readouts)
        members = torch.cat(members_of, 1 if over_time == "mean" else 2)
        if isinstance(results[0], Regression):
            return self._in_units(Regression.of(members))
        return Classification.of(tempered(members, self.temperature))

    def readouts(
        self,
        x: Tensor | Clips,
        samples: int | None,
        advance: Callable[[int], Any] = lambda points: None,
    ) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Some points after others: their places (B,), and for each encoding of them the last
        readout of every member at every time step, (K, T, B, C); `x`, `samples` and `advance` as
        in `predict_points`.
        """
        device, drawn = next(self.net.parameters()).device, self.draw(samples)
        for index in torch.arange(len(x)).split(self.batch):
            coded = (
                spikes(self.config, x[index], device, e)
                for e in range(self.config.predict.encodings)
            )
            readouts = [logits(self.net, s, drawn, seed=self.config.seed) for s in coded]
            yield index, readouts
            advance(len(index))

    def predict_labelled(
        self,
        x: Tensor | Clips,
        samples: int | None,
        advance: Callable[[int], Any] = lambda points: None,
        look: Callable[[list[Tensor]], Any] = lambda readouts: None,
    ) -> Classification | Regression:
        """Predictions as they are judged, a row for each of `labels_that_count`; `x`, `samples`,
        `advance` and `look` as in `predict_points`.
        """
        if not self.config.data.each_step():
            return self.predict_points(x, samples, advance=advance, look=look)
        assert isinstance(x, Clips)
        result = self.predict_points(x, samples, "step", advance)
        counts = steps_that_count(self.config, x).to(result.members.device)
        return type(result).of(result.members.transpose(1, 2)[:, counts])  # (K, rows, C)

    def _in_units(self, result: Regression) -> Regression:
        """Of the targets; in float64, as an offset may be large beside the deviations."""
        if self.target_scale == 1 and self.target_mean == 0:
            return result
        mean, members = (
            self.target_mean + self.target_scale * part.double()
            for part in (result.mean, result.members)
        )
        return Regression(mean, members, self.target_scale * result.std.double())

    def score(self, result: Classification | Regression, labels: Sequence[str]) -> str:
        """Accuracy, or RMSE, of `result` on rows with a class or target in `labels`, as text."""
        rows = [i for i, label in enumerate(labels) if not is_blank(label)]
        if not rows:
            return "the column of the class or target is blank: no score"
        given, mean = [labels[i] for i in rows], result.mean.cpu()[rows]
        where = f"on {len(rows)} rows that have their class or target"
        if isinstance(result, Regression):
            y = torch.from_numpy(table.targets("labels", given))
            return f"RMSE {metrics.rmse(mean, y):.4g} {where}"
        names = [category(name) for name in self.classes]
        right = [
            names[best] == category(label)
            for best, label in zip(mean.argmax(-1).tolist(), given, strict=True)
        ]
        unknown = sum(category(label) not in names for label in given)
        more = (
            f"; {unknown} of a class that the model does not know count as wrong" if unknown else ""
        )
        return f"accuracy {sum(right) / len(rows):.4f} {where}{more}"

    def save(self, path: str | Path) -> None:
        """Write latents, constants and readouts to `path`, a safetensors file; settings too, and
        what calibration found to calibration.json beside it.
        """
        about: dict[str, Any] = {
            "config": self.config.model_dump(exclude_none=True),
            "classes": list(self.classes),
        }
        about |= {
            "epoch": self.epoch,
            "data": self.data,
            "schema": self.schema and self.schema.to_json(),
        }
        about["target"] = {"mean": self.target_mean, "scale": self.target_scale}
        about["scale"] = {"low": self.low, "high": self.high}
        about["trained_on"] = self.trained_on
        if self.others:
            about["others"] = [list(weights) for weights in self.others]
        save_tree(Path(path), {**about, "net": self.net.state_dict()}, "model")
        if self.guarantee is not None:
            write_guarantee(self.guarantee, Path(path))


def file_of(path: str | Path) -> Path:
    """The model file of a run folder; a file is taken as it is."""
    if not Path(path).is_dir():
        return Path(path)
    run = RunFolder(path)
    run.check()
    if not run.model_file.exists():
        raise ValueError(
            f"{path}: has no model yet: its training has not ended; continue it with: "
            f"bisnn resume {path}"
        )
    return run.model_file


def load(path: str | Path) -> Model:
    """A trained model from `path`, its run folder or its file. Loading runs no code."""
    file = file_of(path)
    try:
        tree = load_tree(file, "model")
        config = config_module.parse(tree["config"], "config")
        classes = tuple(tree["classes"])
        low, high = tree["scale"]["low"], tree["scale"]["high"]
        _check(config, classes, low, high, tree)
        net = build_network(config, input_shape(config, len(low)), len(classes) or 1)
        net.load_state_dict(tree["net"])
        options = {**_units(tree, len(low)), "others": _others(tree, net)}
        options["trained_on"] = _trained_on(tree)
        model = Model(net, config, classes, low, high, tree["epoch"], tree["data"], **options)
    except FileNotFoundError:
        raise ValueError(
            f"{path}: there is no such run folder or model file; `bisnn train CONFIG` makes one"
        ) from None
    except Damaged:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{file}: is no model of this version of bisnn ({error})") from None
    tensors = (*net.state_dict().values(), *(w for other in model.others for w in other))
    if not all(torch.isfinite(w).all() for w in tensors):
        raise Damaged(f"{file}: holds weights that are not finite; train again")
    return replace(model, guarantee=usable(file, len(classes)))


def _check(
    config: Config, classes: tuple[Any, ...], low: Any, high: Any, tree: dict[str, Any]
) -> None:
    """See that what a model file says fits together, before a network of its sizes is built."""
    named = all(isinstance(name, str) for name in classes) and len(set(classes)) == len(classes)
    if not named or bool(classes) != (config.task == "classification"):
        raise ValueError("its classes are no names, or do not fit its task")
    scaled = all(
        isinstance(x, Tensor) and x.dtype == torch.float64 and x.ndim == 1 and x.isfinite().all()
        for x in (low, high)
    )
    if (
        not scaled
        or len(low) != len(high)
        or not bool((low < high).all())
        or bool(len(low)) == config.recorded
    ):
        raise ValueError("its scale is none of features")
    if type(tree["epoch"]) is not int or tree["epoch"] < 0 or not isinstance(tree["data"], str):
        raise ValueError("its epoch or its fingerprint is none")
    layers = planned_layers(config, input_shape(config, len(low)))
    latents = latents_for(
        alphabet_of(config.network.weights) or BINARY, bool(config.rule.posterior())
    )
    shapes = {
        f"layers.{i}.weight": latents.shape(spec.weight_shape) for i, (_, spec) in enumerate(layers)
    }
    last = len(layers) - 1
    for i, (_, spec) in enumerate(layers):
        if i == last or config.network.readout_after == "every":
            shapes[f"readouts.{i}.V"] = (len(classes) or 1, math.prod(spec.output_shape))
    for name, shape in shapes.items():
        if tuple(tree["net"][name].shape) != shape or not tree["net"][name].is_floating_point():
            raise ValueError(
                f"its {name} is {tuple(tree['net'][name].shape)}, and its config says {shape}"
            )


def _others(tree: dict[str, Any], net: Network) -> tuple[tuple[Tensor, ...], ...]:
    """The parameters of further networks that a model file holds, checked."""
    others = tuple(tuple(weights) for weights in tree.get("others", ()))
    own = [(p.shape, p.dtype) for p in net.parameters()]
    if any([(w.shape, w.dtype) for w in weights] != own for weights in others):
        raise ValueError("its networks differ in more than their weights")
    return others


def _trained_on(tree: dict[str, Any]) -> Tensor:
    """The fingerprints of the training points that a model file holds, checked."""
    found = tree.get("trained_on", torch.empty(0, dtype=torch.int64))  # 0.2.0 did not write it
    if not isinstance(found, Tensor) or found.dtype != torch.int64 or found.ndim != 1:
        raise ValueError("its training points have no fingerprints")
    return found


def _units(tree: dict[str, Any], features: int) -> dict[str, Any]:
    """What a model file says of its table, checked."""
    schema = None if tree["schema"] is None else Schema.from_json(tree["schema"], features)
    mean, scale = tree["target"]["mean"], tree["target"]["scale"]
    if not (math.isfinite(mean) and math.isfinite(scale) and scale > 0):
        raise BadSchema(f"its targets have the mean {mean} and the scale {scale}")
    return {"schema": schema, "target_mean": mean, "target_scale": scale}


def weight_count(net: Network) -> int:
    """The number of weights, and of a binary network of the bits that it needs."""
    return sum(layer.spec.synapses for layer in net.layers)
