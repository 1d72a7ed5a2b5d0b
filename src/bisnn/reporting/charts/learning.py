"""Learning curves: of one run, and of several in one chart."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from bisnn.reporting.charts.canvas import (
    SERIES,
    SOFT,
    TITLES,
    Chart,
    Part,
    Run,
    chart,
    log_if_wide,
    plot,
)

Line = list[tuple[int, float]]  # (epoch, value)
STYLES = ("-", (0, (4, 2)), (0, (1, 1.5)))  # the next one when all colours are used


def parts_of(run: Run) -> list[Part]:
    """What a run logged epoch by epoch."""
    rows, config = run.rows, run.config
    if not rows:
        return ["No learning curves: metrics.jsonl has no rows."]
    score, unit, loss = _units(run)
    drawn, ensemble = (
        (", one draw of the weights at a time", ", ensemble")
        if config.rule.posterior()
        else ("", "")
    )
    scores = {f"training{drawn}": _logged(rows, score)}
    caption = f"While it learns, on the points it learns from{drawn}."
    validation: Chart | str = "No validation curves: no points were held out (data.validation = 0)."
    if held_out := _validated(rows, "loss"):
        scores[f"validation{ensemble}"] = _validated(rows, score)
        caption = (
            "Training that still gets better while validation gets worse would be overfitting."
        )
        best = "Lowest where the model serves new points best; a rise after that is overfitting."
        validation = _curves("Validation loss", best, loss, {"": held_out}, log_if_wide, run)
    elif config.data.validation:
        validation = "No validation curves: no epoch has been validated yet (train.validate_every)."
    fall = (
        f"It should fall and level off{drawn and '; part of its noise is the draw of the weights'}."
    )
    settle = (
        "The share of weights whose sign changed within the epoch; "
        "it should die out as the weights settle."
    )
    of_loss = f"{config.loss} loss, {config.train.over_time} over time"
    return [
        _curves("Training loss", fall, of_loss, {"": _logged(rows, "loss")}, log_if_wide, run),
        _curves(
            TITLES[score], caption, unit, scores, log_if_wide if score == "rmse" else None, run
        ),
        validation,
        _curves(
            "Flip rate",
            settle,
            "% of the weights",
            {"": _logged(rows, "flips")},
            _flip_scale(run),
            run,
        ),
    ]


def overlay(runs: Sequence[Run]) -> list[Part]:
    """The learning curves of several runs on the same task, a line per run."""
    logged = [run for run in runs if run.rows]
    if len(logged) < 2:
        return [
            "No learning curves side by side: fewer than two of the runs have rows in "
            "metrics.jsonl."
        ]
    score, unit, loss = _units(logged[0])
    parts: list[Part] = []
    losses = {f"{run.config.loss} loss, {run.config.train.over_time} over time" for run in logged}
    if len(losses) == 1:
        lines = {run.label: _logged(run.rows, "loss") for run in logged}
        parts.append(
            _curves("Training loss", "What training minimises.", losses.pop(), lines, log_if_wide)
        )
    else:
        parts.append(
            "No common training loss: the runs differ in train.loss or train.over_time, which sets "
            "its scale."
        )
    lines = {run.label: _logged(run.rows, score) for run in logged}
    with_posterior = dict.fromkeys(
        r.config.rule.title() for r in logged if r.config.rule.posterior()
    )
    drawn = "".join(
        f"; of {name} with one draw of the weights at a time" for name in with_posterior
    )
    scale = log_if_wide if score == "rmse" else None
    parts.append(
        _curves(
            f"{TITLES[score]} in training",
            f"On the points it learns from{drawn}.",
            unit,
            lines,
            scale,
        )
    )
    validated = {
        run.label: held_out for run in logged if (held_out := _validated(run.rows, "loss"))
    }
    if validated:
        lower = "On points held out from training: lower is better."
        parts.append(_curves("Validation loss", lower, loss, validated, log_if_wide))
    lines = {run.label: _logged(run.rows, "flips") for run in logged}
    flips = "The share of weights whose sign changed within the epoch."
    most = max(logged, key=lambda run: run.judged.memory.weights)
    return [*parts, _curves("Flip rate", flips, "% of the weights", lines, _flip_scale(most))]


def rates_over_epochs(run: Run) -> Part:
    """The mean firing rate of each layer, epoch by epoch."""
    if not run.rows:
        return "No firing rates over epochs: metrics.jsonl has no rows."
    layers = range(len(run.judged.rates))
    lines = {
        f"layer {i + 1}": [(row["epoch"], row["rates"][i]) for row in run.rows] for i in layers
    }
    steady = (
        "Steady lines well above 0 and below 1 are healthy: "
        "silent or saturated layers pass nothing on."
    )
    unit = "spikes per neuron and time step"
    return _curves(
        "Firing rates over epochs", steady, unit, lines, lambda ax: ax.set_ylim(bottom=0), run
    )


def _units(run: Run) -> tuple[str, str, str]:
    """The name of the task's score, its unit, and the unit of the validation loss."""
    if run.config.task == "regression":
        return "rmse", "in units of the target", "squared error"
    return "accuracy", "share right", "NLL in nats"


def _logged(rows: list[dict[str, Any]], name: str) -> Line:
    return [(row["epoch"], row[name]) for row in rows]


def _validated(rows: list[dict[str, Any]], name: str) -> Line:
    return [(row["epoch"], row["validation"][name]) for row in rows if "validation" in row]


def _curves(
    title: str,
    caption: str,
    unit: str,
    lines: dict[str, Line],
    scale: Callable[[Axes], Any] | None,
    run: Run | None = None,
) -> Chart:
    """Lines over epochs, by name, with a mark where the model is not of the last epoch."""
    figure, (ax,) = plot()
    styles = itertools.cycle((colour, style) for style in STYLES for colour in SERIES)
    for line, (colour, style) in zip(lines.values(), styles, strict=False):
        x, y = zip(*line, strict=True)
        ax.plot(x, y, color=colour, ls=style, marker="o" if len(x) <= 25 else "")
    ax.set(title=unit, xlabel="epoch")
    if scale:
        scale(ax)
    if run is not None and run.judged.epoch != run.rows[-1]["epoch"]:
        ax.axvline(run.judged.epoch, color=SOFT, lw=1, ls=(0, (3, 3)))
        caption = (
            caption.removesuffix(".") + "; the dashed line is the epoch that the model is from."
        )
    epochs = {epoch for line in lines.values() for epoch, _ in line}
    if len(epochs) == 1:
        ax.set_xlim(min(epochs) - 1, max(epochs) + 1)  # else fractions of an epoch would be marked
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return chart(title, caption, figure, tuple(lines) if len(lines) > 1 else ())


def _flip_scale(run: Run) -> Callable[[Axes], None]:
    return functools.partial(_down_to_one, weights=run.judged.memory.weights)


def _down_to_one(ax: Axes, weights: int) -> None:
    """A log axis down to the decade of one weight; below it lies only 0."""
    ax.set_yscale("symlog", linthresh=10.0 ** -math.ceil(math.log10(weights)))
    ax.set_title(f"{ax.get_title('left')}, log scale")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}"))
    ax.yaxis.set_minor_locator(NullLocator())
