"""How sure the model is, and how right, as spikes come in."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import MaxNLocator

from bisnn.reporting.charts.canvas import SERIES, SOFT, Chart, Part, Run, chart, decimals, plot
from bisnn.reporting.charts.regression import no_spread
from bisnn.runs.results import Curves


def parts_of(run: Run) -> list[Part]:
    draw = _error if run.judged.task == "regression" else _entropy
    return [draw(run, name, curves) for name, curves in run.judged.over_time.items()]


def _error(run: Run, name: str, curves: Curves) -> Chart:
    error, deviation = curves.rmse.numpy(), curves.std.numpy()
    figure, (ax,) = plot()
    t = _steps(run, error)
    ax.plot(t, error, color=SERIES[0])
    legend = ["RMSE"]
    caption = (
        f"With more spikes the error {_trend(error)}{'; it should fall' * (_change(error) > 0)}."
    )
    if run.judged.members[name] is not None:
        ax.plot(t, deviation, color=SERIES[1])
        legend.append("mean deviation")
    if reason := no_spread(run, name, deviation):
        caption += f" {reason[0].upper()}{reason[1:]}."
    else:
        caption += " A deviation near the error is honest, far below it too sure."
    ax.set(title="in units of the target", ylim=(0, None))
    ax.set(xlabel="time step, from the end of the burn-in", xlim=_ends(t))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return chart(
        f"Error and deviation, {name}" if len(legend) > 1 else f"Error, {name}",
        caption,
        figure,
        legend[1:] and legend,
    )


def _entropy(run: Run, name: str, curves: Curves) -> Chart:
    expected, mutual, right = (
        curve.numpy()
        for curve in (curves.expected_entropy, curves.mutual_information, curves.accuracy)
    )
    figure, (ax, lower) = plot(112, 56)
    t, total = _steps(run, right), expected + mutual
    ensemble = run.judged.members[name] is not None
    colours = iter(SERIES)
    ax.fill_between(t, 0, expected, color=next(colours), alpha=0.75, lw=0)
    legend = [
        "expected entropy: members are unsure" if ensemble else "entropy: the network is unsure"
    ]
    if ensemble:
        ax.fill_between(t, expected, total, color=next(colours), alpha=0.85, lw=0)
        legend.append("mutual information: members disagree")
    ax.plot(t, total, color=SOFT, lw=1)
    ax.set(title="entropy in nats", ylim=(0, None))
    lower.plot(t, right, color=next(colours))
    lower.set(title="share right", xlim=_ends(t), xlabel="time step, from the end of the burn-in")
    lower.yaxis.set_major_locator(MaxNLocator(3))
    lower.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    caption = (
        f"With more spikes the entropy {_trend(total)} nats, and the share right {_trend(right)}. "
    )
    caption += (
        "Entropy should fall: this model gets less sure."
        if _change(total) > 0
        else "Where both are flat it could have stopped."
    )
    return chart(f"Entropy and accuracy, {name}", caption, figure, [*legend, "accuracy"])


def _steps(run: Run, curve: np.ndarray) -> np.ndarray:
    return run.config.burn_in + np.arange(len(curve))


def _ends(t: np.ndarray) -> tuple[float, float]:
    return t[0], max(t[-1], t[0] + 1)


def _change(curve: np.ndarray) -> int:
    """-1, 0 or 1: whether a curve falls, stays within 2 % or rises, from first tenth to last."""
    first, last = _tenths(curve)
    if abs(last - first) > 0.02 * max(abs(first), abs(last)):
        return int(np.sign(last - first))
    return 0


def _trend(curve: np.ndarray) -> str:
    first, last = _tenths(curve)
    how = {-1: "falls", 0: "stays near", 1: "rises"}[_change(curve)]
    if how == "stays near":
        return f"{how} {decimals(last)}"
    return f"{how} from {decimals(first)} to {decimals(last)}"


def _tenths(curve: np.ndarray) -> tuple[float, float]:
    tenth = max(1, len(curve) // 10)
    return float(curve[:tenth].mean()), float(curve[-tenth:].mean())
