"""The paper's figures, drawn from results.json alone."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bisnn.files import write_atomic
from bisnn_experiments.results import FigureResults, Panel, Points

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"


def fig1(results: FigureResults, path: Path) -> None:
    """1-D regression, one panel per predictor: the prediction, its deviation over the members, the
    training points and the true function.
    """
    panels, points = results.panels, results.training_points
    assert points is not None
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        x, mean, std = points.test_x, panel.mean, panel.std
        low, high = ([m + side * s for m, s in zip(mean, std, strict=True)] for side in (-1, 1))
        axis.fill_between(
            x, low, high, color=BLUE, alpha=0.25, linewidth=0, label="one standard deviation"
        )
        axis.plot(x, mean, color=BLUE, label="prediction")
        axis.plot(x, points.test_y, "--", color=GREY, linewidth=1, label="noiseless function")
        axis.plot(points.x, points.y, "o", color=ORANGE, markersize=3, label="training points")
        numbers = _numbers(
            results, panel, ("rmse_inside", "rmse_gaps", "deviation_inside", "deviation_gaps")
        )
        inside = f"RMSE {numbers[0]} in the clusters, {numbers[1]} in the gaps"
        deviation = f"deviation {numbers[2]}, {numbers[3]}"
        axis.set_title(f"{panel.method}, {panel.predictor}\n{inside}\n{deviation}", fontsize=9)
        axis.set_xlabel("x, rescaled")
    axes[0].set_ylabel("y, rescaled")
    figure.suptitle(_caption(results), fontsize=9)
    axes[0].legend(fontsize=7, loc="upper left")
    _save(figure, path)


def fig2(results: FigureResults, path: Path) -> None:
    """Two moons, one panel per predictor: colour is the class, its intensity the confidence;
    triangles class 0, circles class 1.
    """
    panels, points = results.panels, results.training_points
    assert points is not None
    methods = list(dict.fromkeys(panel.method for panel in panels))
    columns = {method: [panel for panel in panels if panel.method == method] for method in methods}
    height = max(len(column) for column in columns.values())
    figure = Figure(figsize=(3.4 * len(methods), 3.7 * height), layout="constrained")
    axes = figure.subplots(height, len(methods), squeeze=False)
    for j, column in enumerate(columns.values()):
        for i in range(height):
            axis = axes[i, j]
            if i >= len(column):
                axis.set_axis_off()
                continue
            panel = column[i]
            shown = _draw_confidence(axis, panel.p1, points)
            accuracy, nll, ece, far = _numbers(
                results, panel, ("accuracy", "nll", "ece", "far_confidence")
            )
            first = f"{panel.method}\n{panel.predictor}: accuracy {accuracy}"
            axis.set_title(f"{first}\nNLL {nll}, ECE {ece}, far confidence {far}", fontsize=9)
            axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 1), yticks=(0, 1))
    figure.suptitle(_caption(results), fontsize=9)
    figure.colorbar(shown, ax=axes, label="probability of class 1", shrink=0.6)
    _save(figure, path)


def _draw_confidence(axis: Any, p1: list[float], points: Points) -> Any:
    """The probability of class 1 over the unit square, and the training points."""
    side = math.isqrt(len(p1))
    image = [p1[row * side : (row + 1) * side] for row in range(side)]
    shown = axis.imshow(
        image,
        interpolation="bilinear",
        origin="lower",
        extent=(0, 1, 0, 1),
        cmap="RdBu_r",
        vmin=0,
        vmax=1,
    )
    for label, marker, colour in ((0, "^", "#90cdf4"), (1, "o", "#fbb6a0")):
        chosen = [x for x, y in zip(points.x, points.y, strict=True) if y == label]
        style = {"color": colour, "markeredgecolor": "black"}
        axis.plot(*zip(*chosen, strict=True), marker, markersize=3, markeredgewidth=0.3, **style)
    return shown


def table1(results: FigureResults, path: Path) -> None:
    """Recordings: accuracy, NLL and ECE of each predictor, one dot per seed and a bar for their
    mean.
    """
    names = [(row.method, row.predictor) for row in results.summary]
    figure = Figure(figsize=(10, 0.5 * len(names) + 1.6), layout="constrained")
    for axis, metric in zip(
        figure.subplots(1, 3, sharey=True), ("accuracy", "nll", "ece"), strict=True
    ):
        for y, (name, row) in enumerate(zip(names, results.summary, strict=True)):
            values = [getattr(r, metric) for r in results.rows if (r.method, r.predictor) == name]
            axis.plot(values, [y] * len(values), "o", color=BLUE, markersize=4, alpha=0.6)
            mean = getattr(row, metric).mean
            axis.plot([mean], [y], "|", color=ORANGE, markersize=18, markeredgewidth=2)
            place = {"xytext": (0, 10), "textcoords": "offset points", "ha": "center"}
            axis.annotate(f"{mean:.3f}", (mean, y), **place, fontsize=8)
        axis.set_title({"nll": "NLL, in nats", "ece": "ECE"}.get(metric, metric), fontsize=10)
        axis.grid(axis="x", alpha=0.3)
        axis.margins(0.15, 0.2)
    axis.set_yticks(
        range(len(names)), [f"{method}, {predictor}" for method, predictor in names], fontsize=9
    )
    axis.invert_yaxis()
    seeds = ", ".join(map(str, results.seeds))
    drawn = f"dots: seeds {seeds}; bars: their mean" if len(results.seeds) > 1 else f"seed {seeds}"
    figure.suptitle(f"recipe {results.recipe}; {drawn}", fontsize=9)
    _save(figure, path)


def _caption(results: FigureResults) -> str:
    seeds = results.seeds
    mean = f"mean over {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return f"recipe {results.recipe}; drawn: seed {seeds[0]}; numbers: {mean}"


def _save(figure: Figure, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    write_atomic(path, image.getvalue())


def _numbers(results: FigureResults, panel: Panel, names: tuple[str, ...]) -> list[str]:
    """Means over the seeds for the panel's method and predictor."""
    row = next(
        r for r in results.summary if (r.method, r.predictor) == (panel.method, panel.predictor)
    )
    return [f"{getattr(row, name).mean:.3f}" for name in names]


FIGURES = {"fig1": fig1, "fig2": fig2, "table1": table1}
