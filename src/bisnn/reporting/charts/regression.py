"""What a regression predicts: over x, against the target, and its error against its deviation."""

from __future__ import annotations

from typing import Any

import numpy as np

from bisnn.reporting.charts.canvas import (
    SERIES,
    SIDE,
    Part,
    Run,
    Table,
    chart,
    dashed,
    decimals,
    plot,
)
from bisnn.runs.results import Predictions

POINTS = 500  # test points drawn in a scatter plot
LISTED = 8  # errors in a list
DOTS: dict[str, Any] = {"color": SERIES[0], "alpha": 0.5, "ms": 3.5}


def parts_of(run: Run) -> list[Part]:
    x, y = (part.double().numpy() for part in (run.judged.x, run.judged.y))
    parts: list[Part] = []
    some = np.linspace(0, len(y) - 1, min(POINTS, len(y))).round().astype(int)
    few = f" {len(some)} of {len(y):,} points are drawn." if len(some) < len(y) else ""
    for name, result in run.judged.predictors.items():
        if x.shape[1] == y.shape[1] == 1:
            parts.append(_over_x(run, name, result, some, few))
        parts.append(_against_target(run, name, result, some, few))
        parts.append(_against_deviation(run, name, result, some, few))
    parts.append(_errors(run))
    if x.shape[1] > 1:
        parts.append(f"No curve over x: the points have {x.shape[1]} features.")
    return parts


def no_spread(run: Run, name: str, std: np.ndarray) -> str:
    """Why a predictor has no deviation to show; empty where it has one."""
    if run.judged.members[name] is None:
        return "a single network has no deviation"
    return "" if std.any() else "all its members agree, so its deviation is 0"


def _over_x(run: Run, name: str, result: Predictions, some: np.ndarray, few: str) -> Part:
    x, y, mean, std = _arrays(run, result)
    figure, (ax,) = plot()
    order = some[x[some, 0].argsort(kind="stable")]
    at, centre, spread = x[order, 0], mean[order, 0], std[order, 0]
    ax.fill_between(at, centre - spread, centre + spread, color=SERIES[0], alpha=0.22, lw=0)
    ax.plot(at, centre, color=SERIES[0])
    ax.plot(at, y[order, 0], "o", color=SERIES[1], ms=2.2)
    ax.set(title="y", xlabel="x, in units of the encoding")
    caption = (
        "The band, one deviation to each side of the mean, should hold most of the targets and "
        "widen where the mean is off."
    )
    if reason := no_spread(run, name, std):
        caption = f"The line should run through the targets; {reason}, and there is no band."
    return chart(f"Prediction over x, {name}", caption + few, figure, ("prediction", "target"))


def _against_target(run: Run, name: str, result: Predictions, some: np.ndarray, few: str) -> Part:
    _, y, mean, _ = _arrays(run, result)
    figure, (ax,) = plot(SIDE)
    low, high = min(y.min(), mean.min()), max(y.max(), mean.max())
    pad = 0.03 * (high - low) or 1.0
    dashed(ax, [low, high], [low, high])
    ax.plot(y[some].ravel(), mean[some].ravel(), "o", **DOTS)
    ax.set(
        title="prediction",
        xlabel="target",
        xlim=(low - pad, high + pad),
        ylim=(low - pad, high + pad),
    )
    ax.set_aspect("equal")
    ax.locator_params(nbins=5)
    return chart(
        f"Prediction against target, {name}",
        f"Perfect predictions lie on the dashed line.{few}",
        figure,
    )


def _against_deviation(
    run: Run, name: str, result: Predictions, some: np.ndarray, few: str
) -> Part:
    _, y, mean, std = _arrays(run, result)
    if reason := no_spread(run, name, std):
        return f"No error against deviation for {name}: {reason}."
    figure, (ax,) = plot()
    error = np.abs(mean - y)
    dashed(ax, [0, std.max()], [0, std.max()])
    ax.plot(std[some].ravel(), error[some].ravel(), "o", **DOTS)
    ax.set(title="|error|", xlabel="deviation", xlim=(0, None), ylim=(0, None))
    ax.locator_params(axis="x", nbins=5)
    share = 100 * (error <= std).mean()
    within = (
        f"{share:.0f} % of the errors are within one deviation, below the dashed line; "
        "of a Gaussian 68 %."
    )
    return chart(f"Error against deviation, {name}", within + few, figure)


def _errors(run: Run) -> Table:
    """The largest errors of the usual predictor, the last one."""
    name, result = list(run.judged.predictors.items())[-1]
    _, y, mean, _ = _arrays(run, result)
    order = np.abs(mean - y).sum(1).argsort(kind="stable")[::-1][:LISTED].tolist()
    numbers = [(i, float(y[i, 0]), float(mean[i, 0])) for i in order]
    rows = tuple(
        (f"{i + 1:,}", decimals(target), decimals(value), decimals(value - target))
        for i, target, value in numbers
    )
    caption = f"The {len(rows)} predictions that are farthest off, of {len(y):,}."
    return Table(
        f"Largest errors, {name}", caption, ("point", "target", "prediction", "error"), rows
    )


def _arrays(run: Run, result: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, y, the mean and the deviation of the prediction; (N, d), (N, C) each."""
    tensors = (run.judged.x, run.judged.y, result.mean, result.std)
    x, y, mean, std = (t.double().numpy() for t in tensors)
    return x, y, mean, std
