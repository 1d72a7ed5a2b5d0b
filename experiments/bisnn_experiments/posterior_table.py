"""The table of the study `posterior`: methods over seeds, their differences, and four bars.

What networks say becomes, for each method, a distribution for every recording, at the temperature
that suits held-out recordings best. Intervals take seeds and recordings as samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from bisnn import intervals
from bisnn.data.corruption import CORRUPTIONS, STRENGTHS
from bisnn.intervals import Interval
from bisnn.prediction import fit_temperature
from bisnn.runs.results import Finding, Metric
from bisnn_experiments import results
from bisnn_experiments.measurement import table
from bisnn_experiments.posterior_methods import (
    BASELINES,
    CHOSEN,
    DRAWN,
    ENSEMBLES,
    MAP,
    POSTERIORS,
    ST,
    WIDTHS,
    Method,
)
from bisnn_experiments.posterior_runs import (
    CLEAN,
    HELD,
    OTHER,
    SHARE,
    Said,
    corrupted_rows,
    corruption,
)
from bisnn_experiments.results import Mean

MOST_NLL, LEAST_GAIN, MOST_OPERATIONS = 0.005, 0.15, 4.0
SLACK = 1.05  # by which a posterior may cost more than the ensemble it is compared with
# Beside the baselines: one posterior, by its mode and by its members, and what was chosen
JUDGED = (*BASELINES, *(m for m in POSTERIORS if m.name in (MAP, DRAWN, CHOSEN)))


class Answers(NamedTuple):
    """What the members of a method say of every set of recordings, and what that costs."""

    said: dict[str, Said]  # (K, N, C)
    operations: float  # synaptic, of a prediction

    @classmethod
    def of(cls, networks: Sequence[Mapping[str, Said]], operations: float) -> Answers:
        """The members of several networks as one ensemble."""
        names = networks[0]
        return cls({n: np.concatenate([one[n] for one in networks]) for n in names}, operations)


Ask = Callable[[Method, int, int], Answers | None]  # of a method, a size and a seed


class Row(Finding):
    """A method with so many recordings of each class: means over the seeds."""

    size: int
    method: str
    members: int  # inferences of a prediction
    temperature: Mean
    accuracy: Mean
    nll: Mean
    worse_accuracy: Mean  # over all corruptions
    worse_nll: Mean
    auroc: Mean  # of the entropy, for other digits
    operations: Mean  # synaptic, of a prediction, beside ST-BiSNN's
    kinds: dict[str, float]  # NLL by kind of corruption


class Bars(Finding):
    """Bayes-BiSNN beside others, with 95 % intervals, and which bars it meets."""

    size: int
    nll: Metric  # clean, less that of ST-BiSNN
    rival: str  # the ensemble of ST-BiSNNs of the same cost, or the next that costs more
    worse_nll: Metric  # over corruptions, less 85 % of the rival's
    worse_ratio: float  # to the rival's
    auroc: Metric  # less that of ST-BiSNN
    operations: float  # beside one ST-BiSNN
    met: dict[str, bool]


class Posterior(Finding):
    """The file of this study."""

    command: str
    network: list[int]  # channels
    chosen: str
    seeds: dict[int, list[int]]  # by size
    recordings: dict[str, int]
    rows: list[Row]
    bars: list[Bars]


def text_of(found: Posterior) -> str:
    """The table and the bars as text."""
    columns = ("accuracy", "nll", "worse_accuracy", "worse_nll", "auroc", "operations")
    lines = [
        (f"{row.size} a class, {row.method}", [f"{getattr(row, c).mean:.4f}" for c in columns])
        for row in found.rows
    ]
    bars = []
    for bar in found.bars:
        numbers = (bar.nll, bar.worse_nll, bar.auroc)
        cells = [f"{v.value:+.4f} [{v.low:+.4f}, {v.high:+.4f}]" for v in numbers]
        met = " ".join(f"{name}: {'met' if good else 'missed'}" for name, good in bar.met.items())
        bars.append((f"{bar.size} a class", [*cells, f"{bar.operations:.2f}", met]))
    names = ("NLL", "worse NLL, less 85 %", "AUROC", "operations", "bars")
    return f"{table('method', columns, lines)}\n\n{table('less ST-BiSNN', names, bars)}"


# Distributions and scores


def _normalised(log_p: np.ndarray) -> np.ndarray:
    return log_p - np.logaddexp.reduce(log_p, -1, keepdims=True)


def pooled(said: Said, temperature: float) -> np.ndarray:
    """Log-probabilities (N, C) of the mean of all members, each at the temperature."""
    tempered = _normalised(said.astype(np.float64) / temperature)
    return np.logaddexp.reduce(tempered, 0) - np.log(len(said))


def entropy(log_p: np.ndarray) -> np.ndarray:
    return -(np.exp(log_p) * log_p).sum(-1)


def scores_of(answers: Answers, labels: dict[str, np.ndarray], of: str) -> dict[str, np.ndarray]:
    """Scores of every recording of a set, CLEAN or HELD, clean and over its corruptions."""
    held = torch.from_numpy(np.exp(answers.said[HELD].astype(np.float64)))
    temperature = fit_temperature(held, torch.from_numpy(labels[HELD]))
    n = len(labels[of])
    clean = pooled(answers.said[of], temperature)
    worse_nll, worse_right = np.zeros(n), np.zeros(n)
    kinds = np.zeros(len(CORRUPTIONS))
    for k, kind in enumerate(CORRUPTIONS):
        for strength in range(1, STRENGTHS + 1):
            name = corruption(of, kind, strength)
            nll, right = _judged(pooled(answers.said[name], temperature), labels[name])
            rows = corrupted_rows(k, strength, n)
            worse_nll[rows] += nll * SHARE / (STRENGTHS * len(CORRUPTIONS))
            worse_right[rows] += right * SHARE / (STRENGTHS * len(CORRUPTIONS))
            kinds[k] += nll.mean() / STRENGTHS
    nll, right = _judged(clean, labels[of])
    return {
        "nll": nll,
        "right": right,
        "worse_nll": worse_nll,
        "worse_right": worse_right,
        "entropy": entropy(clean),
        "others": entropy(pooled(answers.said[OTHER], temperature)),
        "kinds": kinds,
        "operations": np.array(answers.operations),
        "temperature": np.array(temperature),
    }


def _judged(log_p: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """NLL of each recording, and whether its most probable class is the right one."""
    return -log_p[np.arange(len(y)), y], (log_p.argmax(-1) == y).astype(np.float64)


# The table


def placements(own: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each own recording how often others score higher, and for each other one how often it
    scores higher: their means are the AUROC (ties count half).
    """
    below = [np.searchsorted(np.sort(own), other, side=side) for side in ("left", "right")]
    above = [np.searchsorted(np.sort(other), own, side=side) for side in ("left", "right")]
    return 1 - np.mean(above, 0) / len(other), np.mean(below, 0) / len(own)


def _interval(scores: np.ndarray) -> Interval:
    low, high = intervals.of_crossed_mean(scores)
    return Interval(float(scores.mean()), float(low), float(high))


def auroc_difference(a: Sequence[Any], b: Sequence[Any]) -> Interval:
    """AUROC of a less that of b; each is, for every seed, scores of own and of other recordings.

    The two samples of recordings each give an interval, in both of which the seeds count, and their
    widths add up as those of independent parts: a little wide.
    """
    both = [
        np.stack([x - y for x, y in zip(*pair, strict=True)])
        for pair in zip(
            *(list(zip(*(placements(*one) for one in of), strict=True)) for of in (a, b)),
            strict=True,
        )
    ]
    own, other = (_interval(part) for part in both)
    below = np.hypot(own.value - own.low, other.value - other.low)
    above = np.hypot(own.high - own.value, other.high - other.value)
    return Interval(own.value, own.value - float(below), own.value + float(above))


Scores = dict[str, dict[str, np.ndarray]]  # by method and name, (S, ...)


def scores_by_method(
    ask: Ask,
    methods: Sequence[Method],
    labels: dict[str, np.ndarray],
    size: int,
    seeds: Sequence[int],
    of: str,
) -> tuple[Scores, list[int]]:
    """Scores over the seeds whose networks are all there, and these seeds."""
    found: dict[str, list[dict[str, np.ndarray]]] = {method.name: [] for method in methods}
    there = []
    for seed in seeds:
        asked = {method.name: ask(method, size, seed) for method in methods}
        if any(answers is None for answers in asked.values()):
            continue
        there.append(seed)
        for name, answers in asked.items():
            assert answers is not None
            found[name].append(scores_of(answers, labels, of))
    if not there:
        return {}, []
    return {
        name: {score: np.stack([unit[score] for unit in units]) for score in units[0]}
        for name, units in found.items()
    }, there


def row_of(size: int, method: Method, scores: Scores) -> Row:
    own, st = scores[method.name], scores[ST]["operations"]
    aurocs = [
        placements(*pair)[0].mean() for pair in zip(own["entropy"], own["others"], strict=True)
    ]
    kinds = zip(CORRUPTIONS, own["kinds"].mean(0).tolist(), strict=True)
    mean = lambda values: results.over_seeds([float(v) for v in values])  # noqa: E731
    return Row(
        size=size,
        method=method.name,
        members=method.inferences,
        temperature=mean(own["temperature"]),
        accuracy=mean(own["right"].mean(1)),
        nll=mean(own["nll"].mean(1)),
        worse_accuracy=mean(own["worse_right"].mean(1)),
        worse_nll=mean(own["worse_nll"].mean(1)),
        auroc=mean(aurocs),
        operations=mean(own["operations"] / st),
        kinds=dict(kinds),
    )


def rival_of(name: str, scores: Scores) -> str:
    """The ensemble of as few ST-BiSNNs as cost as much as a method, or the largest."""
    operations = {m.name: scores[m.name]["operations"].mean() for m in ENSEMBLES}
    enough = (
        rival
        for rival, spent in operations.items()
        if scores[name]["operations"].mean() <= SLACK * spent
    )
    return next(enough, ENSEMBLES[-1].name)


def bars_of(size: int, scores: Scores) -> Bars:
    """The four bars: (a) clean NLL, (b) NLL under corruptions, (c) other digits, (d) operations."""
    name = rival_of(CHOSEN, scores)
    bayes, st, rival = (scores[name] for name in (CHOSEN, ST, name))
    clean = _interval(bayes["nll"] - st["nll"])
    worse = _interval(bayes["worse_nll"] - (1 - LEAST_GAIN) * rival["worse_nll"])
    pairs = (list(zip(of["entropy"], of["others"], strict=True)) for of in (bayes, st))
    auroc = auroc_difference(*pairs)
    operations = float((bayes["operations"] / st["operations"]).mean())
    met = {
        "a": clean.high < MOST_NLL and (size > 100 or clean.value < 0),
        "b": worse.value <= 0,
        "c": auroc.low > 0,
        "d": operations <= MOST_OPERATIONS,
    }
    ratio = float(bayes["worse_nll"].mean() / rival["worse_nll"].mean())
    return Bars(
        size=size,
        nll=clean,
        rival=name,
        worse_nll=worse,
        worse_ratio=ratio,
        auroc=auroc,
        operations=operations,
        met=met,
    )


def table_of(
    ask: Ask, labels: dict[str, np.ndarray], sizes: Sequence[int], seeds: Sequence[int]
) -> Posterior:
    """The table of all sizes and seeds whose networks are all there."""
    rows, bars, found = [], [], {}
    for size in sizes:
        scores, there = scores_by_method(ask, JUDGED, labels, size, seeds, CLEAN)
        if len(there) < 2:
            continue
        found[size] = there
        rows += [row_of(size, method, scores) for method in JUDGED]
        bars.append(bars_of(size, scores))
    if not rows:
        raise ValueError("--out: holds the networks of no two seeds; train them first with `train`")
    return Posterior(
        command=results.command(),
        network=list(WIDTHS),
        chosen=CHOSEN,
        seeds=found,
        recordings={"test": len(labels[CLEAN]), "other digits": len(labels[OTHER])},
        rows=rows,
        bars=bars,
    )
