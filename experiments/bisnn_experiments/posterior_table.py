"""The table of the study `posterior`: methods over seeds, their differences, and four bars.

What networks say becomes, for each method, a distribution for every test recording, at the
temperature that suits held-out training recordings best; scores of recordings are kept for each
size and seed, and the table is made of these. Intervals take seeds and recordings as samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bisnn import intervals
from bisnn.data.corruption import CORRUPTIONS
from bisnn.intervals import Interval
from bisnn.prediction import fit_temperature
from bisnn.runs.results import Finding, Metric
from bisnn_experiments import results
from bisnn_experiments.measurement import table
from bisnn_experiments.posterior_methods import BAYES, ENSEMBLE, METHODS, SIZES, ST, Method
from bisnn_experiments.posterior_runs import (
    CLEAN,
    HELD,
    OTHER,
    SHARE,
    Said,
    read_arrays,
    write_arrays,
)
from bisnn_experiments.results import Mean

SCORES = (
    *("nll", "right", "worse_nll", "worse_right", "entropy", "others", "kinds", "operations"),
    "temperature",
)
MOST_NLL, LEAST_GAIN, MOST_OPERATIONS = 0.005, 0.15, 4.0


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
    worse_nll: Metric  # over corruptions, less 85 % of that of the ensemble of the same cost
    worse_ratio: float
    auroc: Metric  # less that of ST-BiSNN
    operations: float  # beside one ST-BiSNN
    met: dict[str, bool]


class Posterior(Finding):
    """The file of this study."""

    command: str
    device: str
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


def pooled(members: Sequence[Said], temperature: float) -> np.ndarray:
    """Log-probabilities (N, C) of the mean of all members, each at the temperature."""
    log_p = np.concatenate([said.log_p for said in members]).astype(np.float64)
    return np.logaddexp.reduce(_normalised(log_p / temperature), 0) - np.log(len(log_p))


def entropy(log_p: np.ndarray) -> np.ndarray:
    return -(np.exp(log_p) * log_p).sum(-1)


def temperature_of(members: Sequence[Said], labels: np.ndarray) -> float:
    """The temperature of the lowest NLL, on held-out recordings."""
    log_p = np.concatenate([said.log_p for said in members])
    return fit_temperature(torch.from_numpy(np.exp(log_p)), torch.from_numpy(labels))


def scores_of(
    said: Mapping[str, Sequence[Said]], labels: dict[str, np.ndarray], operations: float
) -> dict[str, np.ndarray]:
    """Scores of every test recording by one method, from what its members say of every set."""
    temperature = temperature_of(said[HELD], labels[HELD])
    log_p = {name: pooled(said[name], temperature) for name in labels if name != HELD}
    worse = [name for name in log_p if name not in (CLEAN, OTHER)]
    nll, right = {}, {}
    for name in (CLEAN, *worse):
        y = labels[name]
        nll[name] = -log_p[name][np.arange(len(y)), y]
        right[name] = (log_p[name].argmax(-1) == y).astype(np.float64)
    kinds = [
        np.mean([nll[name] for name in worse if name.rpartition(" ")[0] == kind])
        for kind in CORRUPTIONS
    ]
    return {
        "nll": nll[CLEAN],
        "right": right[CLEAN],
        "worse_nll": _by_recording(nll, len(nll[CLEAN])),
        "worse_right": _by_recording(right, len(nll[CLEAN])),
        "entropy": entropy(log_p[CLEAN]),
        "others": entropy(log_p[OTHER]),
        "kinds": np.array(kinds),
        "operations": np.array(operations),
        "temperature": np.array(temperature),
    }


def _by_recording(scores: dict[str, np.ndarray], recordings: int) -> np.ndarray:
    """The mean score of each recording over its corruptions; see `recordings_to_judge`."""
    sums = np.zeros(recordings)
    for k, kind in enumerate(CORRUPTIONS):
        for strength in range(1, 6):
            sums[(k + strength) % SHARE :: SHARE] += scores[f"{kind} {strength}"]
    return sums / (5 * len(CORRUPTIONS) / SHARE)


def write_scores(path: Path, scores: dict[str, dict[str, np.ndarray]]) -> None:
    """Write the scores of all methods of one size and seed."""
    arrays = {f"{method}/{name}": v for method, of in scores.items() for name, v in of.items()}
    write_arrays(path, {key: value.astype(np.float32) for key, value in arrays.items()})


def read_scores(path: Path) -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, values in read_arrays(path).items():
        method, _, name = key.rpartition("/")
        found.setdefault(method, {})[name] = values.astype(np.float64)
    return found


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


def stacked(units: Sequence[dict[str, dict[str, np.ndarray]]]) -> Scores:
    """Scores of all seeds of one size."""
    return {
        method: {name: np.stack([unit[method][name] for unit in units]) for name in SCORES}
        for method in units[0]
    }


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


def bars_of(size: int, scores: Scores) -> Bars:
    """The four bars: (a) clean NLL, (b) NLL under corruptions, (c) other digits, (d) operations."""
    bayes, st, rival = (scores[name] for name in (BAYES, ST, ENSEMBLE))
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
        worse_nll=worse,
        worse_ratio=ratio,
        auroc=auroc,
        operations=operations,
        met=met,
    )


def table_of(folder: Path, device: str) -> Posterior:
    """The table, from the scores of all sizes and seeds that lie in a folder."""
    rows, bars, seeds, tested = [], [], {}, {}
    for size in SIZES:
        files = sorted(folder.glob(f"scores-{size}-*.npz"))
        if not files:
            continue
        seeds[size] = [int(file.stem.rpartition("-")[2]) for file in files]
        scores = stacked([read_scores(file) for file in files])
        rows += [row_of(size, method, scores) for method in METHODS]
        bars.append(bars_of(size, scores))
        tested = {name: scores[ST][name].shape[1] for name in ("nll", "others")}
    if not rows:
        raise ValueError(f"--out: {folder} holds no scores-SIZE-SEED.npz; make them with `judge`")
    return Posterior(
        command=results.command(),
        device=device,
        seeds=seeds,
        recordings={"test": tested["nll"], "other digits": tested["others"]},
        rows=rows,
        bars=bars,
    )
