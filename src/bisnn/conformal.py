"""Prediction sets and intervals with a guarantee, whatever the model: conformal prediction.

A set of classes is formed several times while a recording is seen, at *looks* (t, k): after t time
steps, by the first k members. The first set that is small enough is the answer. Thresholds from
recordings that were never trained on make sure that the true class is in the sets of *all* looks at
once with the probability asked for, on recordings that are exchangeable with those, so that
stopping early, however it is decided, costs no coverage (SpikeCP: Chen, Park and Simeone, 2023).

Scores are integers, larger where a class conforms less, so that a set is a comparison of integers:
the same bits in PyTorch, in the packed engine, and in C. NumPy alone.

Axes: P looks, K members, T time, N recordings, C classes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bisnn.checks import choice, flag, positive_int

__all__ = ["ConformalSets", "PredictionSets", "calibrate_sets", "margins"]
__all__ += ["even_path", "one_by_one_path"]
__all__ += ["ConformalIntervals", "PredictionIntervals", "calibrate_intervals"]
__all__ += ["bonferroni_thresholds", "joint_thresholds", "p_values", "surprisals"]

LOOKS = 10  # unless the user says how many, or where: more stop little earlier, at more calls
CORRECTIONS = ("joint", "bonferroni")
SCORES = ("margin", "surprisal")
RESOLUTION = 1 << 20  # of surprisals: units in a nat

Looks = tuple[tuple[int, int], ...]  # looks (t, k), each sees at least as much as the one before


def even_path(steps: int, members: int = 1, looks: int = LOOKS) -> Looks:
    """`looks` looks, at most one per time step, evenly over `steps` time steps, by all `members`.

    >>> even_path(10, members=5, looks=3)
    ((4, 5), (7, 5), (10, 5))
    """
    count = min(positive_int("looks", looks), positive_int("steps", steps))
    return tuple((-(-steps * (i + 1) // count), members) for i in range(count))


def one_by_one_path(steps: int, members: int, looks: int = LOOKS) -> Looks:
    """`looks` looks by one member alone, evenly over `steps` time steps; then, at the end, by 2, 5
    and all `members`, for what is still undecided.

    >>> one_by_one_path(10, members=10, looks=2)
    ((5, 1), (10, 1), (10, 2), (10, 5), (10, 10))
    """
    more = sorted({k for k in (2, 5, positive_int("members", members)) if 1 < k <= members})
    return even_path(steps, 1, looks) + tuple((steps, k) for k in more)


def checked_path(path: Any, steps: int | None = None, members: int | None = None) -> Looks:
    """The looks of a path as whole numbers, within so many time steps and members."""
    try:
        looks = [(t, k) for t, k in path]
    except (TypeError, ValueError):
        looks = []
    whole = all(isinstance(n, int | np.integer) and n >= 1 for look in looks for n in look)
    found = tuple((int(t), int(k)) for t, k in looks) if whole else ()
    forward = all(a != b and a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(found))
    if not found or not forward:
        raise ValueError(
            "path: must be looks (time steps, members), 1 or more each, of which every one sees "
            f"more than the one before; got {path!r:.200}; give e.g. [(5, 1), (10, 1)]"
        )
    last = found[-1]
    if (steps is not None and last[0] > steps) or (members is not None and last[1] > members):
        raise ValueError(
            f"path: must end within {steps} time steps and {members} members; got {last}; "
            "leave out later looks"
        )
    return found


# Scores


def margins(counts: np.ndarray, path: Looks) -> np.ndarray:
    """How far each class lies behind the best one, int64 (P, N, C): 0 for the best.

    `counts` are the integers V s of the last readout, (K, T, N, C); those of the time steps and
    members that each look of the `path` has seen are added up.

    >>> margins(np.array([[[[3, 1]], [[0, 1]]]]), ((1, 1), (2, 1))).tolist()
    [[[0, 2]], [[0, 1]]]
    """
    sums = np.stack(_seen(np.asarray(counts, np.int64), path))
    return margins_of(sums)


def margins_of(sums: np.ndarray) -> np.ndarray:
    """As `margins`, of counts that are added up already, (..., C)."""
    return sums.max(-1, keepdims=True) - sums


def surprisals(logits: np.ndarray, path: Looks) -> np.ndarray:
    """-log p of the mean probability so far, in nats times `RESOLUTION`, int64 (P, N, C).

    For comparison with `margins`: a look of the `path` is a mean over time steps and members of the
    softmax of the `logits` (K, T, N, C).
    """
    y = np.asarray(logits, np.float64)
    if not np.isfinite(y).all():
        raise ValueError(
            "logits: must be finite; got NaN or infinite values; check the model and its input"
        )
    y = np.exp(y - y.max(-1, keepdims=True))
    y /= y.sum(-1, keepdims=True)
    means = [part / (t * k) for part, (t, k) in zip(_seen(y, path), path, strict=True)]
    return np.rint(-RESOLUTION * np.log(np.stack(means).clip(1e-300, 1))).astype(np.int64)


def _seen(values: np.ndarray, path: Looks) -> list[np.ndarray]:
    """The sums (N, C) over what each look has seen of (K, T, N, C)."""
    over_time = values.cumsum(1)
    return [over_time[:k, t - 1].sum(0) for t, k in path]


def p_values(calibration: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(1 + #{i : s_i >= s}) / (n + 1) for each s of the `scores`, from n scores s_i of
    `calibration`.

    >>> p_values(np.array([1, 2, 3]), np.array([0, 2, 4])).tolist()
    [1.0, 0.75, 0.25]
    """
    for name, values in (("calibration", calibration), ("scores", scores)):
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name}: must be finite; got NaN or infinite values; check the model and its input"
            )
    if len(calibration) == 0:
        raise ValueError("calibration: must have a score or more; got none; give some")
    below = np.searchsorted(np.sort(calibration), scores, side="left")
    return (1 + len(calibration) - below) / (len(calibration) + 1)


# Thresholds: the largest score that is inside


def order(n: int, coverage: float, looks: int = 1) -> int:
    """Which of n calibration scores, by size, is the largest inside: the ceil((n + 1)(1 - alpha))th
    with alpha = (1 - coverage) / looks; an error where n is too small to have it.

    Coverage counts as the decimal number that it prints as: 0.9 with 9 recordings is the 9th.

    >>> order(9, 0.9), order(150, 0.9), order(150, 0.9, looks=10)
    (9, 136, 150)
    """
    alpha = (1 - Fraction(str(checked_coverage(coverage)))) / looks
    found = math.ceil((n + 1) * (1 - alpha))
    if found > n:
        over = f" at {looks} looks, each corrected for the others," if looks > 1 else ""
        raise ValueError(
            f"coverage: {coverage}{over} needs {math.ceil(1 / alpha) - 1} calibration "
            f"recordings or more; got {n}; give more of them, or lower the coverage"
            + (", the number of looks, or use the joint correction" if looks > 1 else "")
        )
    return found


def falls_short(held: int, judged: int, bound: int, coverage: float) -> bool:
    """Whether so few of the `judged` sets, or intervals, hold the truth as chance leaves in at most
    1 of 40 calibrations on exchangeable data.

    Where the k-th smallest of `bound` scores is the threshold, the coverage has, over calibrations,
    the beta distribution of k and bound + 1 - k, or is larger where scores tie; so the number that
    is held of those judged has a beta-binomial one.

    >>> falls_short(880, 1000, 100, 0.9), falls_short(880, 1000, 100_000, 0.9)
    (False, True)
    """
    from scipy.stats import betabinom  # takes a while to load

    k = order(bound, coverage)
    return bool(betabinom.cdf(held, judged, k, bound + 1 - k) < 1 / 40)


def check_enough(n: int, coverage: float, correction: str, looks: int) -> None:
    """See that n calibration recordings allow this coverage, by either correction; the joint one
    takes its bound from half of them, the larger one.
    """
    if correction == "bonferroni":
        order(n, coverage, looks)
        return
    least = math.ceil(1 / (1 - Fraction(str(checked_coverage(coverage))))) - 1
    if n - n // 2 < least:
        raise ValueError(
            f"coverage: {coverage} needs {2 * least - 1} calibration recordings or more, half of "
            f"which give ranks; got {n}; give more of them, or lower the coverage"
        )


def bonferroni_thresholds(scores: np.ndarray, coverage: float) -> np.ndarray:
    """Of each look, (P,), from the true classes' `scores` (P, n): {s : p(s) > alpha / P}, with
    alpha = 1 - `coverage`.

    The chances of an error at one of the looks add up to at most alpha.
    """
    which = order(scores.shape[1], coverage, len(scores))
    return np.sort(scores, 1)[:, which - 1]


def joint_thresholds(first: np.ndarray, second: np.ndarray, coverage: float) -> np.ndarray:
    """Of each look, (P,), all looks at once: no sum of chances, and no price for more looks.

    Args:
        first: the true classes' scores (P, n1) of some recordings, which give each look's scores
            their ranks: of s, how many lie below it, and in between in proportion.
        second: those of others, (P, n2). The highest rank that a recording has at any look is one
            number, and the ceil((n2 + 1) coverage)th smallest of these bounds the ranks of all
            looks.
        coverage: how often the true class is to be inside at all looks, in (0, 1).
    """
    which = order(second.shape[1], coverage)
    if first.shape[1] == 0:
        raise ValueError(
            "coverage: the joint correction needs a recording or more for the ranks; got none; "
            "give more calibration recordings"
        )
    maps = [_RankMap(row) for row in first]
    ranks = np.stack([of(row) for of, row in zip(maps, second, strict=True)])
    bound = np.sort(ranks.max(0))[which - 1]
    return np.array([of.largest(bound) for of in maps], np.int64)


class _RankMap:
    """From whole scores >= 0 to their ranks among some of them. Below the lowest of these the rank
    is 0; from there on it increases, so that different scores have different ranks."""

    def __init__(self, scores: np.ndarray):
        self.n = len(scores)
        self.values, self.below = np.unique(np.sort(scores), return_index=True)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        highest = self.values[-1]
        beyond = self.n * (scores / highest if highest > 0 else 1.0 + scores)
        within = np.interp(scores, self.values, self.below)
        return np.where(scores > highest, beyond, within)

    def largest(self, bound: float) -> int:
        """The largest score whose rank is at most `bound`."""
        highest = float(self.values[-1])
        if bound >= self.n:
            score = bound / self.n * highest if highest > 0 else bound / self.n - 1
        else:
            score = np.interp(bound, self.below, self.values)
        found = math.floor(score)  # perhaps beside it by what floating point rounds
        while self(np.array(found)) > bound:
            found -= 1
        while self(np.array(found + 1)) <= bound:
            found += 1
        return found


# Classification


@dataclass(frozen=True)
class PredictionSets:
    """Sets of classes, at the look at which each recording stopped."""

    sets: np.ndarray  #: bool (N, C)
    sizes: np.ndarray  #: (N,)
    steps: np.ndarray  #: (N,) time steps seen
    members: np.ndarray  #: (N,) asked
    decided: np.ndarray  #: bool (N,): whether the set is as small as was asked for

    def seen_by(self, members: int) -> np.ndarray:
        """For how many time steps each of so many members sees each recording, (K, N)."""
        asked = np.arange(members)[:, None] < self.members
        return np.where(asked, self.steps, 0)

    def hold(self, labels: np.ndarray) -> np.ndarray:
        """Whether each set holds its recording's true class, of `labels` (N,); bool (N,)."""
        return self.sets[np.arange(len(labels)), labels]


@dataclass(frozen=True)
class ConformalSets:
    """Thresholds that turn scores into sets: what calibration leaves behind."""

    path: Looks  #: the looks (t, k): time steps and members that have been seen
    thresholds: tuple[tuple[int, ...], ...]  #: (P, C): the largest score that is inside
    coverage: float  #: that was asked for
    correction: str = CORRECTIONS[0]  #: "joint" or "bonferroni"
    score: str = SCORES[0]  #: "margin" or "surprisal"
    most: int = 1  #: classes of a set that is small enough to stop
    by_class: bool = False  #: each class has the coverage, and thresholds of its own
    recordings: int = 0  #: that it was calibrated on

    @property
    def bound(self) -> int:
        """Recordings whose scores' order gives the coverage; 0 where no single order does."""
        if self.correction != "joint" or self.by_class:
            return 0
        return self.recordings - self.recordings // 2

    def at(self, look: int, scores: np.ndarray) -> np.ndarray:
        """The sets, bool (N, C), of `scores` at a `look`; the best class, where none is inside."""
        inside = scores <= np.array(self.thresholds[look])
        empty = ~inside.any(-1)
        inside[empty, scores[empty].argmin(-1)] = True
        return inside

    def stop(self, scores: np.ndarray) -> PredictionSets:
        """The first set of at most `most` classes, or the last, from `scores` (P, N, C)."""
        sets = np.stack([self.at(look, some) for look, some in enumerate(scores)])
        small = sets.sum(-1) <= self.most
        looks = np.where(small.any(0), small.argmax(0), len(sets) - 1)
        return self.stopped(sets[looks, np.arange(len(looks))], looks)

    def stopped(self, sets: np.ndarray, looks: np.ndarray) -> PredictionSets:
        """Those `sets` (N, C) that were answered at `looks` (N,)."""
        sizes, (steps, members) = sets.sum(-1), np.array(self.path)[looks].T
        return PredictionSets(sets, sizes, steps, members, sizes <= self.most)

    def to_json(self) -> dict[str, Any]:
        """Its fields, for a header."""
        return asdict(self)

    @classmethod
    def from_json(cls, about: Any, classes: int) -> ConformalSets:
        """From `about`, what `to_json` gave, checked, for so many `classes`; else a ValueError."""
        if not isinstance(about, dict) or set(about) != set(cls.__dataclass_fields__):
            raise ValueError("its thresholds of prediction sets are not described")
        path = checked_path(about["path"])
        choice("correction", about["correction"], CORRECTIONS)
        choice("score", about["score"], SCORES)
        rows = about["thresholds"]
        whole = isinstance(rows, list | tuple) and all(
            isinstance(row, list | tuple)
            and len(row) == classes
            and all(type(n) is int and abs(n) < 1 << 62 for n in row)
            for row in rows
        )
        if not whole or len(rows) != len(path) or type(about["by_class"]) is not bool:
            raise ValueError("its thresholds are not whole numbers for every look and class")
        counts = {name: about[name] for name in ("most", "recordings")}
        return cls(
            path,
            tuple(map(tuple, rows)),
            checked_coverage(about["coverage"]),
            about["correction"],
            about["score"],
            positive_int("most", counts["most"]),
            about["by_class"],
            positive_int("recordings", counts["recordings"]),
        )


def calibrate_sets(
    scores: np.ndarray,
    labels: np.ndarray,
    path: Looks,
    coverage: float = 0.9,
    *,
    correction: str = CORRECTIONS[0],
    first: np.ndarray | None = None,
    most: int = 1,
    by_class: bool = False,
    score: str = SCORES[0],
) -> ConformalSets:
    """Thresholds from recordings that were never trained on.

    Args:
        scores: of every class at every look, whole numbers >= 0, (P, N, C).
        labels: (N,) the true classes.
        path: the looks.
        coverage: how often the true class is to be in the sets of all looks, in (0, 1).
        correction: "joint", or "bonferroni", which takes each look by itself.
        first: of the joint correction, bool (N,): the recordings that give ranks, chosen without a
            look at their scores; the others give the bound. By default the first half, with
            `by_class` of each class, which is right where recordings come in no order.
        most: a set of so many classes is small enough to stop.
        by_class: calibrate each class by itself (Mondrian): the coverage then holds within every
            class, and each needs as many recordings as all do otherwise.
        score: what the scores are.
    """
    path, scores, labels = checked_path(path), np.asarray(scores), np.asarray(labels)
    choice("correction", correction, CORRECTIONS)
    choice("score", score, SCORES)
    _check_scores(scores, labels, path)
    classes = scores.shape[2]
    flag("by_class", by_class)
    if first is None:
        first = first_half(np.arange(len(labels)), labels if by_class else None)
    first = np.asarray(first, bool)
    if positive_int("most", most) >= classes:
        raise ValueError(
            f"most: must be less than the {classes} classes, or every first look would decide; got "
            f"{most}; give 1"
        )
    true = np.take_along_axis(scores, labels[None, :, None], 2)[:, :, 0]  # (P, N)

    def thresholds(chosen: np.ndarray) -> np.ndarray:
        if correction == "bonferroni":
            return bonferroni_thresholds(true[:, chosen], coverage)
        return joint_thresholds(true[:, chosen & first], true[:, chosen & ~first], coverage)

    if by_class:
        enough = partial(check_enough, coverage=coverage, correction=correction, looks=len(path))
        rows = np.stack([_of_class(c, labels == c, enough, thresholds) for c in range(classes)], 1)
    else:
        rows = np.repeat(thresholds(np.ones(len(labels), bool))[:, None], classes, 1)
    return ConformalSets(
        path,
        tuple(map(tuple, rows.tolist())),
        checked_coverage(coverage),
        correction,
        score,
        most,
        by_class,
        len(labels),
    )


def first_half(order: np.ndarray, labels: np.ndarray | None = None) -> np.ndarray:
    """Which of N recordings are in the first half of an `order` of them, bool (N,); with `labels`,
    in the first half of their class.

    >>> first_half(np.array([2, 0, 1, 3]), np.array([0, 1, 0, 1])).tolist()
    [False, True, True, False]
    """
    groups = [order] if labels is None else [order[labels[order] == c] for c in np.unique(labels)]
    found = np.zeros(len(order), bool)
    for group in groups:
        found[group[: len(group) // 2]] = True
    return found


def _of_class(c: int, chosen: np.ndarray, enough: Any, thresholds: Any) -> np.ndarray:
    """The thresholds of a class, from its own recordings, where these are enough."""
    if not chosen.any():
        raise ValueError(
            f"labels: sets by class need recordings of every class; got none of class {c}; "
            "give some, or leave out by_class"
        )
    try:
        enough(int(chosen.sum()))
        return thresholds(chosen)
    except ValueError as error:
        raise ValueError(f"class {c}: {error}") from None


def _check_scores(scores: np.ndarray, labels: np.ndarray, path: Looks) -> None:
    if scores.ndim != 3 or scores.dtype.kind not in "iu" or len(scores) != len(path):
        raise ValueError(
            f"scores: must be whole numbers, ({len(path)} looks, N, C); got {scores.dtype} "
            f"{scores.shape}; take them from margins or surprisals"
        )
    check_labels(labels, scores.shape[1], scores.shape[2])
    if scores.min() < 0:
        raise ValueError(
            f"scores: must be 0 or more; got {scores.min()}; take them from margins or surprisals"
        )


def check_labels(labels: np.ndarray, count: int, classes: int) -> None:
    """See that there is a class for each of so many recordings."""
    if labels.shape != (count,) or count == 0 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"labels: must be whole numbers, one for each of {count} recordings, of which there "
            f"must be some; got {labels.dtype} {labels.shape}; give the numbers of the classes"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"labels: must lie in 0..{classes - 1}; got {labels.min()}..{labels.max()}; "
            "leave out recordings of other classes"
        )


# Regression


class PredictionIntervals(NamedTuple):
    """Of targets, (N,) each."""

    low: np.ndarray  #: lower ends
    high: np.ndarray  #: upper ends


@dataclass(frozen=True)
class ConformalIntervals:
    """Split conformal intervals: mean +- width, or +- width times the ensemble's deviation."""

    width: float  #: half of the interval, or that many deviations
    coverage: float  #: that was asked for
    scaled: bool = False  #: whether the width is in deviations
    recordings: int = 0  #: that it was calibrated on

    @property
    def bound(self) -> int:
        """Recordings whose errors' order gives the coverage: all of them."""
        return self.recordings

    def around(self, mean: np.ndarray, std: np.ndarray) -> PredictionIntervals:
        """The intervals of predictions with this `mean` and deviation `std`, (N,) each."""
        half = self.width * (std if self.scaled else np.ones_like(mean))
        return PredictionIntervals(mean - half, mean + half)

    def to_json(self) -> dict[str, Any]:
        """Its fields, for a header."""
        return asdict(self)

    @classmethod
    def from_json(cls, about: Any) -> ConformalIntervals:
        """From `about`, what `to_json` gave, checked; else a ValueError."""
        if not isinstance(about, dict) or set(about) != set(cls.__dataclass_fields__):
            raise ValueError("its width of prediction intervals is not described")
        width = about["width"]
        number = isinstance(width, int | float) and math.isfinite(width) and width >= 0
        if not number or type(about["scaled"]) is not bool:
            raise ValueError("its width of prediction intervals is no number")
        recordings = positive_int("recordings", about["recordings"])
        coverage = checked_coverage(about["coverage"])
        return cls(float(width), coverage, about["scaled"], recordings)


def calibrate_intervals(
    mean: np.ndarray,
    std: np.ndarray,
    targets: np.ndarray,
    coverage: float = 0.9,
    *,
    scaled: bool = False,
) -> ConformalIntervals:
    """The width that holds the targets of recordings that were never trained on as often as asked
    for.

    Args:
        mean: the ensemble's predictions, (N,).
        std: their deviations over the members, (N,).
        targets: the true values, (N,).
        coverage: how often an interval is to hold the target, in (0, 1).
        scaled: divide errors by the deviations first: wide where the members disagree.
    """
    mean, std, targets = (np.asarray(part, np.float64) for part in (mean, std, targets))
    if not mean.shape == std.shape == targets.shape or mean.ndim != 1 or len(mean) == 0:
        raise ValueError(
            "mean, std, targets: must be (N,) each, with N >= 1; got "
            f"{mean.shape}, {std.shape}, {targets.shape}; reshape them"
        )
    if not all(np.isfinite(part).all() for part in (mean, std, targets)):
        raise ValueError(
            "mean, std, targets: must be finite; got NaN or infinite values; leave those out"
        )
    if scaled and not (std > 0).all():
        raise ValueError(
            "scaled: needs members that differ on every point; got a deviation of 0; "
            "leave scaled out"
        )
    errors = np.abs(targets - mean) / (std if scaled else 1)
    width = float(np.sort(errors)[order(len(errors), coverage) - 1])
    return ConformalIntervals(width, checked_coverage(coverage), scaled, len(errors))


def checked_coverage(value: Any) -> float:
    """A probability that is asked for."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value < 1:
        raise ValueError(f"coverage: must lie in (0, 1); got {value!r}; give e.g. 0.9")
    return float(str(value)) if isinstance(value, np.floating) else float(value)
