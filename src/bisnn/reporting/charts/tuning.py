"""The charts of a search: how it went, which settings matter, and what good ones look like."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bisnn.reporting.charts.canvas import (
    LINE,
    SERIES,
    Part,
    Table,
    chart,
    decimals,
    plain_numbers,
    plot,
)
from bisnn.runs.tune_section import Range

ROW = 24  # points of height, for a setting
BEST = 5  # trials that are drawn apart from the others, and listed


@dataclass(frozen=True)
class SearchedTrial:
    """A trial with a result."""

    number: int
    settings: dict[str, Any]
    loss: float  # on the validation points
    operations: float  # synaptic ones, of an inference
    seconds: float
    accuracy: float | None = None  # of classes


@dataclass(frozen=True)
class Searched:
    """What a page shows of a search."""

    unit: str  # of the loss
    space: Mapping[str, Range | list[Any]]
    trials: list[SearchedTrial]  # the lowest loss first
    pruned: list[str]  # why the others were stopped early
    importance: dict[str, float]  # by key, shares of 1


def parts_of(found: Searched) -> list[Part]:
    """What there is to see of a search."""
    return [
        _history(found),
        _importance(found),
        _parallel(found),
        _front(found),
        _best(found),
        *(_slice(found, key) for key in list(found.importance)[:4]),
    ]


def _history(found: Searched) -> Part:
    figure, (ax,) = plot()
    trials = sorted(found.trials, key=lambda trial: trial.number)
    numbers = [trial.number for trial in trials]
    losses = [trial.loss for trial in trials]
    ax.plot(numbers, losses, "o", color=SERIES[0])
    ax.step(numbers, np.minimum.accumulate(losses), where="post", color=SERIES[1])
    _log_if_wide(ax, losses)
    ax.set(title=found.unit, xlabel="trial")
    return chart(
        "Trial by trial",
        "A search that still gets better at its end wants more trials. Those that were stopped "
        f"early have no dot: {len(found.pruned)}.",
        figure,
        ("a trial", "the best so far"),
        alt=f"Losses of {len(trials)} trials; the lowest is {decimals(min(losses))}.",
    )


def _importance(found: Searched) -> Part:
    if not found.importance:
        return "No importance of settings: it takes a few trials with different results."
    keys = list(found.importance)
    figure, (ax,) = plot(ROW * len(keys))
    shares = [100 * found.importance[key] for key in keys]
    ax.barh(range(len(keys)), shares, color=SERIES[0], height=0.6)
    _rows(ax, keys)
    ax.set(title="% of what explains the best trials", xlabel="")
    return chart(
        "Which settings matter",
        "How much a setting tells good trials from others (PED-ANOVA): search the upper ones more "
        "finely, fix the lower ones.",
        figure,
        alt=", ".join(f"{key} {share:.0f} %" for key, share in zip(keys, shares, strict=True)),
    )


def _parallel(found: Searched) -> Part:
    """Parallel coordinates: an axis in each row, a line for each trial from top to bottom."""
    keys = [*found.importance, *(key for key in found.space if key not in found.importance)]
    labels = [f"{key}: {_ends(found.space[key])}" for key in keys]
    low, high = found.trials[0].loss, found.trials[-1].loss
    rows = range(len(keys) + 1)
    figure, (ax,) = plot(ROW * len(rows) * 1.2)
    worst_first = list(enumerate(found.trials))[::-1]
    for place, trial in worst_first:
        at = [_place(found.space[key], trial.settings[key]) for key in keys]
        at.append((trial.loss - low) / ((high - low) or 1))
        strong = place < BEST
        ax.plot(
            at,
            rows,
            color=SERIES[0] if strong else SERIES[1],
            lw=1.6 if strong else 0.6,
            alpha=1 if strong else 0.35,
        )
    _rows(ax, [*labels, f"loss: {decimals(low)} to {decimals(high)}"])
    ax.set(xlim=(-0.03, 1.03), xticks=[])
    ax.grid(True, axis="y", color=LINE)
    return chart(
        "Parallel coordinates",
        "A line is a trial, a row a setting from its lowest value to its highest. Where the best "
        "meet, a setting is decided; where they spread, it hardly matters.",
        figure,
        (f"the best of {len(found.trials)}", "the others"),
        alt=f"Settings of {len(found.trials)} trials; the table of the best has the numbers.",
    )


def _front(found: Searched) -> Part:
    figure, (ax,) = plot()
    trials = found.trials
    ax.plot([t.operations for t in trials], [t.loss for t in trials], "o", color=SERIES[0])
    front = sorted(_undominated(trials), key=lambda trial: trial.operations)
    ax.step(
        [t.operations for t in front],
        [t.loss for t in front],
        where="post",
        color=SERIES[1],
        marker="o",
    )
    _log_if_wide(ax, [t.loss for t in trials])
    ax.set(title=found.unit, xlabel="synaptic operations per inference")
    return chart(
        "Loss against operations",
        "Left of and below the line lies what no trial reached: on it, less of the one costs more "
        "of the other.",
        figure,
        ("a trial", "the front"),
        alt=f"{len(front)} of {len(trials)} trials are beaten in both by none.",
    )


def _best(found: Searched) -> Part:
    trials = found.trials[:BEST]
    keys = list(found.space)
    head = ("setting", *(f"trial {trial.number}" for trial in trials))
    lines = [
        (found.unit, *(decimals(t.loss) for t in trials)),
        ("operations", *(decimals(t.operations) for t in trials)),
    ]
    if any(trial.accuracy is not None for trial in trials):
        lines.insert(1, ("accuracy", *(decimals(t.accuracy or 0.0) for t in trials)))
    lines += [(key, *(_text(t.settings[key]) for t in trials)) for key in keys]
    return Table(
        "The best trials",
        "Differences this small may be chance: their validation points are few, and one of many "
        "trials is lucky.",
        head,
        tuple(lines),
    )


def _slice(found: Searched, key: str) -> Part:
    """The loss of every trial by one of its settings."""
    figure, (ax,) = plot()
    dimension, trials = found.space[key], found.trials
    if isinstance(dimension, Range):
        x = [trial.settings[key] for trial in trials]
        if dimension.log:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.xaxis.set_major_locator(FixedLocator(_round_numbers(dimension)))
    else:
        x = [dimension.index(trial.settings[key]) for trial in trials]
        ax.set_xticks(range(len(dimension)), [_text(choice) for choice in dimension])
        ax.set_xlim(-0.5, len(dimension) - 0.5)
    losses = [trial.loss for trial in trials]
    ax.plot(x, losses, "o", color=SERIES[0])
    _log_if_wide(ax, losses)
    ax.set(title=found.unit, xlabel=key)
    return chart(
        f"Loss by {key}",
        "Where the lowest dots lie at an end of the range, a wider one may be better.",
        figure,
        alt=f"The best trial has {_text(trials[0].settings[key])}.",
    )


def _undominated(trials: Sequence[SearchedTrial]) -> list[SearchedTrial]:
    """Those, of trials in the order of their loss, with fewer operations than all before them."""
    front: list[SearchedTrial] = []
    for trial in trials:
        if not front or (trial.operations) < (front[-1].operations or 0):
            front.append(trial)
    return front


def _place(dimension: Range | list[Any], value: Any) -> float:
    """Where in its dimension a value lies, from 0 to 1."""
    if not isinstance(dimension, Range):
        return dimension.index(value) / (len(dimension) - 1)
    low, high = float(dimension.low), float(dimension.high)
    if dimension.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def _round_numbers(dimension: Range) -> list[float]:
    """Ticks of a log axis: powers of ten, or, of a short one, also 2 and 5 times these."""
    low, high = math.log10(dimension.low), math.log10(dimension.high)
    factors = (1,) if high - low >= 2 else (1, 2, 5)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if dimension.low <= tick <= dimension.high]


def _ends(dimension: Range | list[Any]) -> str:
    if not isinstance(dimension, Range):
        return " | ".join(map(_text, dimension))
    return f"{dimension.low:g} to {dimension.high:g}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def _rows(ax: Any, names: Sequence[str]) -> None:
    """A row for each name, the first at the top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(False)
    ax.tick_params(labelsize=9)


def _log_if_wide(ax: Any, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) / min(values) > 5:
        ax.set_yscale("log")
        plain_numbers(ax)
