"""Prediction sets and intervals of a model: what calibration found, its file, and answers by it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bisnn import conformal
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.checks import flag, number
from bisnn.conformal import (
    CORRECTIONS,
    LOOKS,
    SCORES,
    ConformalIntervals,
    ConformalSets,
    Looks,
    PredictionIntervals,
    PredictionSets,
)
from bisnn.data.loading import Clips, fingerprints
from bisnn.display import note
from bisnn.files import file_digest, read_text, write_atomic
from bisnn.layer import Readout
from bisnn.prediction import Classification, Regression, fit_temperature
from bisnn.runs.folder import Damaged
from bisnn.selection import Abstention, abstention_threshold

if TYPE_CHECKING:
    from bisnn.runs.model import Model

FILE = "calibration.json"
VERSION = 3  # of the file
SAME = 0.1  # share of the rows of a table that may be equal to others by chance


class OtherModel(ValueError):
    """A calibration of another model than the one beside it."""


@dataclass(frozen=True)
class Guarantee:
    """What calibration found for a model, by which predictor, on which data."""

    rule: ConformalSets | ConformalIntervals  #: thresholds of the sets, or width of the intervals
    samples: int | None  #: members of the predictor; None: the one set of weights
    data: str  #: digest of the calibration recordings, with their labels
    #: of classes, that scales the probabilities best on the recordings that give no bound; None
    #: where all of them give one
    temperature: float | None = None
    confidence: tuple[float, ...] = ()  #: of classes: in each calibration recording
    correct: tuple[bool, ...] = ()  #: and whether it was right
    tested: int = 0  #: calibration recordings that the run is tested on too

    def abstention(self, error: float, confidence_level: float = 0.9) -> Abstention:
        """From which confidence on at most a share `error` of all answers is wrong, with the
        confidence `confidence_level` in that; an error where the calibration recordings cannot show
        it.
        """
        if not self.confidence:
            raise ValueError(
                f"abstain: is for classes, and this model predicts targets; got {error}; "
                "leave it out"
            )
        if not number("abstain", error, above=0) < 1:
            raise ValueError(f"abstain: must lie in (0, 1); got {error:g}; give e.g. 0.005")
        sure, right = torch.tensor(self.confidence), torch.tensor(self.correct)
        found = abstention_threshold(sure, right, error, confidence_level)
        if found.threshold is None:
            raise ValueError(
                f"abstain: {len(right):,} calibration recordings do not show, with "
                f"{100 * confidence_level:g} % confidence, that at most {error:g} of the answers "
                f"are wrong, however sure they are; got {found.errors} wrong of the "
                f"{found.answered:,} surest; it takes {found.needed:,} as sure and all right: "
                "calibrate on more, or allow more"
            )
        return found


def calibrated(
    model: Model,
    x: Tensor | Clips,
    y: Any,
    coverage: float = 0.9,
    *,
    samples: int | None,
    correction: str = CORRECTIONS[0],
    looks: int | Sequence[tuple[int, int]] = LOOKS,
    one_by_one: bool = False,
    most: int = 1,
    by_class: bool = False,
    score: str = SCORES[0],
    scaled: bool = False,
    advance: Callable[[int], Any] = lambda points: None,
) -> Guarantee:
    """Calibrate a model on points x, encoded alike, or recordings, that it was not trained on.

    Args:
        y: numbers of the classes (N,), or targets (N,) or (N, 1): see `checked_truth`.
        coverage: how often the truth is to be inside.
        samples: members of the predictor; None for the one set of weights.
        correction: for several looks, "joint" or "bonferroni"; see `bisnn.conformal`.
        looks: how many, evenly over time, or which: pairs (time steps, members).
        one_by_one: of an ensemble, look with one member, and ask others at the end where that left
            a recording undecided; see `conformal.one_by_one_path`.
        most: classes of a set that is small enough to stop.
        by_class: the coverage holds within every class.
        score: "margin", integers that ship, or "surprisal", -log p.
        scaled: for intervals: in proportion to the ensemble's deviation.
        advance: called with the number of recordings done, now and then.
    """
    y = checked_truth(model, x, y)
    if model.classes:
        if scaled:
            raise ValueError(
                "scaled: is of intervals, and this model predicts classes; got True; leave it out"
            )
        options = {"correction": correction, "most": most, "by_class": by_class, "score": score}
        path = _path(model, samples, looks, one_by_one)
        return _sets(model, x, y, coverage, samples, path, options, advance)
    for name, value, usual in (
        ("correction", correction, CORRECTIONS[0]),
        ("looks", looks, LOOKS),
        ("one_by_one", one_by_one, False),
        ("most", most, 1),
        ("by_class", by_class, False),
        ("score", score, SCORES[0]),
    ):
        if value != usual:
            raise ValueError(
                f"{name}: is of sets of classes, and this model predicts targets; got {value!r}; "
                "leave it out"
            )
    conformal.order(len(x), coverage)
    mean, std = outputs(model.predict_points(x, samples, advance=advance))
    rule = conformal.calibrate_intervals(mean, std, y, coverage, scaled=scaled)
    return Guarantee(rule, samples, _digest_of(x, y))


def checked_truth(model: Model, x: Tensor | Clips, y: Any) -> np.ndarray:
    """The classes or targets y of points x as an array (N,), for a guarantee."""
    if model.config.data.each_step():
        raise ValueError(
            "calibrate: the guarantee is of whole recordings, whose time steps are no independent "
            'examples; got a model with data.labels = "step"; train one with "recording"'
        )
    try:
        y = np.asarray(y, None if model.classes else np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"y: must be an array of numbers; got {y!r:.100}; convert it") from None
    if model.classes:
        conformal.check_labels(y, len(x), len(model.classes))
        return y
    if y.shape not in ((len(x),), (len(x), 1)) or not np.isfinite(y).all():
        raise ValueError(
            f"y: must be a finite target for each of {len(x)} points; got {y.shape}; give as many"
        )
    return y.reshape(-1)


def _path(
    model: Model, samples: int | None, looks: int | Sequence[tuple[int, int]], one_by_one: bool
) -> Looks:
    """The looks of a calibration by `samples` members of each network."""
    steps, members = model.config.steps, model.size(samples)
    flag("one_by_one", one_by_one)
    if not isinstance(looks, int | np.integer):
        if one_by_one:
            raise ValueError(
                f"one_by_one: says which looks there are; got {looks!r:.100} too; leave one out"
            )
        return conformal.checked_path(looks, steps, members)
    if one_by_one and members == 1:
        raise ValueError(
            "one_by_one: is of several members, and one set of weights is calibrated; got True; "
            "leave it out"
        )
    path = conformal.one_by_one_path if one_by_one else conformal.even_path
    return path(steps, members, int(looks))


def _sets(
    model: Model,
    x: Tensor | Clips,
    y: np.ndarray,
    coverage: float,
    samples: int | None,
    path: Looks,
    options: dict[str, Any],
    advance: Callable[[int], Any],
) -> Guarantee:
    # Too few recordings are refused before the network runs
    conformal.check_enough(len(y), coverage, options["correction"], len(path))
    # Those that give ranks and the temperature; the others give the bound of joint thresholds
    order = philox.permutation(len(y), model.config.seed, Purpose.CALIBRATION_SPLIT)
    first = conformal.first_half(order, y if options["by_class"] else None)
    score = options["score"]
    result, scores = _scored(model.tempered(1.0), x, samples, path, score, advance)
    rule = conformal.calibrate_sets(scores, y, path, coverage, first=first, **options)
    truth, some = torch.from_numpy(y), torch.from_numpy(first)
    temperature = None
    if options["correction"] == "joint":
        temperature = fit_temperature(result.members.cpu()[:, some], truth[some])
    confidence, best = (part.cpu() for part in result.mean.max(-1))
    data, correct = _digest_of(x, y), tuple((best == truth).tolist())
    return Guarantee(rule, samples, data, temperature, tuple(confidence.tolist()), correct)


def outputs(result: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of a regression, (N,) each."""
    assert isinstance(result, Regression)
    mean, std = (part[:, 0].double().cpu().numpy() for part in (result.mean, result.std))
    return mean, std


def _scored(
    model: Model,
    x: Tensor | Clips,
    samples: int | None,
    path: Looks,
    score: str,
    advance: Callable[[int], Any],
) -> tuple[Classification, np.ndarray]:
    """The prediction, and the scores of every class at every look, (P, N, C), by one pass."""
    found: list[np.ndarray] = []
    look = lambda readouts: found.append(score_readouts(model, readouts, path, score))  # noqa: E731
    result = model.predict_points(x, samples, advance=advance, look=look)
    assert isinstance(result, Classification)
    return result, np.concatenate(found, 1)


def scores_of(
    model: Model,
    x: Tensor | Clips,
    samples: int | None,
    path: Looks,
    score: str = SCORES[0],
    advance: Callable[[int], Any] = lambda points: None,
) -> np.ndarray:
    """Scores of every class at every look, (P, N, C)."""
    readouts = model.readouts(x, samples, advance)
    return np.concatenate([score_readouts(model, some, path, score) for _, some in readouts], 1)


def score_readouts(
    model: Model, readouts: list[Tensor], path: Looks, score: str = SCORES[0]
) -> np.ndarray:
    """Scores of some points, (P, B, C), from what `Model.readouts` gives of them."""
    # Other spikes of a point are as other members
    path = tuple((t, k * len(readouts)) for t, k in path)
    y = torch.stack(readouts, 1).flatten(0, 1)
    if score == "surprisal":
        return conformal.surprisals(y.cpu().numpy(), path)
    readout = model.net.readouts[-1]
    assert isinstance(readout, Readout)
    return conformal.margins((y / readout.scale).round().long().cpu().numpy(), path)


def answers(
    model: Model, x: Tensor | Clips, advance: Callable[[int], Any] = lambda points: None
) -> PredictionSets | PredictionIntervals:
    """The sets or intervals of a calibrated model for points, encoded alike, or recordings."""
    return predictions_and_answers(model, x, advance)[1]


def predictions_and_answers(
    model: Model, x: Tensor | Clips, advance: Callable[[int], Any] = lambda points: None
) -> tuple[Classification | Regression, PredictionSets | PredictionIntervals]:
    """What the calibrated predictor says of points, encoded alike, or recordings, and the sets or
    intervals, by one pass through the network.
    """
    if model.guarantee is None:
        raise ValueError(
            "predict_set: this model is not calibrated; use model.calibrate(x, y), or "
            "`bisnn calibrate RUN` and load the run"
        )
    rule, samples = model.guarantee.rule, model.guarantee.samples
    if isinstance(rule, ConformalSets):
        result, scores = _scored(model, x, samples, rule.path, rule.score, advance)
        return result, rule.stop(scores)
    found = model.predict_points(x, samples, advance=advance)
    return found, rule.around(*outputs(found))


def check_unseen(model: Model, x: Tensor | Clips, y: np.ndarray, name: str = "x") -> Tensor:
    """Refuse points, encoded alike, or recordings that the model was trained on; their fingerprints
    otherwise. Of a regression they are the same only with the same targets.
    """
    ours = fingerprints(x, y, bool(model.classes))
    if not len(model.trained_on):
        note(
            f"{name}: this model was saved by bisnn 0.2.0, and does not know what it was trained "
            "on: see that none of it is among these"
        )
    same = int(torch.isin(ours, model.trained_on).sum())
    if same > by_chance(model, len(x)):
        raise ValueError(
            f"{name}: must not have been trained on; {same} of {len(x)} were; a model is surer of "
            "what it was trained on than of anything else: give data that it has not seen"
        )
    if same:
        note(
            f"{name}: {same} of {len(x)} are equal to training points; a few may be so by chance, "
            "but leave out what was trained on"
        )
    return ours


def by_chance(model: Model, count: int) -> float:
    """How many of `count` rows of a table may be equal to others by chance: a tenth, and as large a
    share as that of the training rows that are equal to another one. Of recordings none.
    """
    if model.config.recorded or not len(model.trained_on):
        return 0.0
    counts = model.trained_on.unique(return_counts=True)[1]
    return (SAME + float(counts[counts > 1].sum()) / len(model.trained_on)) * count


def _digest_of(x: Tensor | Clips, y: np.ndarray) -> str:
    """Of points or recordings in their order, with their labels or targets."""
    each = fingerprints(x, y, classes=False)
    return hashlib.blake2b(each.numpy().tobytes(), digest_size=16).hexdigest()


# The file


def write(found: Guarantee, model_file: Path) -> Path:
    """Write calibration.json beside a model, whole or not at all."""
    kind = "sets" if isinstance(found.rule, ConformalSets) else "intervals"
    body = {
        "version": VERSION,
        "kind": kind,
        "model": file_digest(model_file),
        "data": found.data,
        "tested": found.tested,
        "samples": found.samples,
        "temperature": found.temperature,
        kind: found.rule.to_json(),
        "answers": {"confidence": found.confidence, "correct": found.correct},
    }
    path = model_file.with_name(FILE)
    text = json.dumps({**body, "digest": _digest(body)}, indent=1)
    write_atomic(path, f"{text}\n".encode())
    return path


def read(model_file: Path, classes: int) -> Guarantee | None:
    """The calibration beside a model of so many classes; None where there is none.

    One of another model is an OtherModel, a changed file Damaged.
    """
    path = model_file.with_name(FILE)
    if not path.exists():
        return None
    again = f"calibrate again with: bisnn calibrate {model_file.parent}"
    try:
        body = json.loads(read_text(path))
        if not isinstance(body, dict):
            raise ValueError("it has no names")
        stated = body.pop("digest")
        if stated != _digest(body) or body["version"] != VERSION:
            raise ValueError("its content does not match its digest")
        if body["model"] != file_digest(model_file):
            raise OtherModel(
                f"{path}: is of another model than {model_file.name}: its guarantee does not hold "
                f"for this one; {again}, or remove the file"
            )
        rule: ConformalSets | ConformalIntervals = (
            ConformalSets.from_json(body["sets"], classes)
            if classes
            else ConformalIntervals.from_json(body["intervals"])
        )
        samples, data, tested = body["samples"], body["data"], body.get("tested", 0)
        if not (samples is None or (type(samples) is int and samples > 0)) or type(data) is not str:
            raise ValueError("its predictor or its data are not named")
        if type(tested) is not int or tested < 0:
            raise ValueError("it does not say how many of its recordings are tested on")
        temperature = body["temperature"]
        if temperature is not None:
            number("temperature", temperature, above=0)
        confidence, correct = body["answers"]["confidence"], body["answers"]["correct"]
        _check_given(confidence, correct, rule.recordings if classes else 0)
    except OtherModel:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path}: is damaged or no calibration ({error}); {again}") from None
    return Guarantee(rule, samples, data, temperature, tuple(confidence), tuple(correct), tested)


def _check_given(confidence: Any, correct: Any, count: int) -> None:
    """See that there are so many confidences, and that many answers, right or wrong."""
    shares = all(type(one) is float and 0 <= one <= 1 for one in confidence)
    known = all(type(one) is bool for one in correct)
    if not shares or not known or not len(confidence) == len(correct) == count:
        raise ValueError("its answers are not those of its recordings")


def usable(model_file: Path, classes: int) -> Guarantee | None:
    """As `read`; one that cannot be used is named on stderr, and is not."""
    try:
        return read(model_file, classes)
    except (OtherModel, Damaged) as error:
        note(f"{error}; it is not used")
        return None


def digest_beside(model_file: Path) -> str:
    """Of the calibration beside a model, whatever it is; empty where there is none."""
    path = model_file.with_name(FILE)
    return file_digest(path) if path.exists() else ""


def _digest(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
