"""The charts of a report: inline SVG by matplotlib, from what the files of a run say.

They are drawn in stand-in colours that become CSS variables of the page, so that they follow its light or dark theme. No text from
a file goes into a drawing: titles, captions and alternative texts are the page's to escape.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from bisnn import metrics
from bisnn.config import Config, Events

POINTS = 500  # test points drawn in a scatter plot
NEURONS = 64  # of a layer, drawn in a raster
STEPS = 400  # columns of a raster
WIDTH = 360  # of a chart, in points

TITLES = {"accuracy": "Accuracy", "nll": "NLL", "brier": "Brier", "ece": "ECE", "rmse": "RMSE", "mae": "MAE"}
RULES = {"bayes": "Bayes-BiSNN", "st": "ST-BiSNN", "bop": "Bop", "full": "full precision"}

# Stand-in colours and the CSS variables they become.
SOFT, LINE, BACK = "#010101", "#010102", "#010103"
SERIES = ["#020201", "#020202", "#020203", "#020204", "#020205", "#020206"]
VARIABLES = {SOFT: "--soft", LINE: "--line", BACK: "--card"} | {colour: f"--s{i}" for i, colour in enumerate(SERIES, 1)}
# An image cannot follow the theme: colours of contrast 4 on both backgrounds, which the colour-blind can tell apart.
BLUE, ORANGE = (47, 127, 193), (205, 95, 10)
FAINT = 0.3  # opacity of the least that is drawn in a picture
LOOK: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), SOFT),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), LINE),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("font.size", "axes.titlesize"), 11.5),
    **dict.fromkeys((f"{axis}tick.{kind}.size" for axis in "xy" for kind in ("major", "minor")), 0),
    **dict.fromkeys((f"axes.spines.{side}" for side in ("top", "right", "left")), False),
    "svg.fonttype": "none",
    "svg.hashsalt": "bisnn",
    "text.parse_math": False,
    "axes.titlepad": 7,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.formatter.useoffset": False,
    "xtick.major.pad": 6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "lines.markeredgewidth": 0,
}
_STYLED = threading.Lock()  # matplotlib reads its settings from one place for all threads


@contextmanager
def styled() -> Iterator[None]:
    """The look of the charts, whatever the user's is; charts are drawn inside."""
    with _STYLED, style.context(["default", LOOK]):
        yield


@dataclass(frozen=True)
class Run:
    """What the files of a run say."""

    label: str
    config: Config
    rows: list[dict[str, Any]]  # of metrics.jsonl
    judged: dict[str, Any]  # as `load_evaluation` gives it


@dataclass(frozen=True)
class Chart:
    title: str
    caption: str  # one sentence: what to see
    drawing: str  # SVG with "@" before its ids
    legend: tuple[str, ...] = ()  # names of the series, in the order of their colours
    alt: str = ""  # what there is to see, in words; without it the title has to do

    def svg(self, number: int) -> Markup:
        """Inline SVG with ids that no other chart of the page has."""
        return Markup(self.drawing.replace("@", f"c{number}-"))


# Charts. Each function gives charts, and sentences where there is nothing to draw.


def _learning(run: Run) -> list[Chart | str]:
    rows, config = run.rows, run.config
    if not rows:
        return ["No learning curves: metrics.jsonl has no rows."]
    score, unit, loss = ("accuracy", "share right", "NLL in nats")
    if config.task == "regression":
        score, unit, loss = ("rmse", "in units of the target", "squared error")
    of = lambda name: [(row["epoch"], row[name]) for row in rows]  # noqa: E731
    held_out = lambda name: [(row["epoch"], row["validation"][name]) for row in rows if "validation" in row]  # noqa: E731
    drawn, ensemble = (", one draw of the weights at a time", ", ensemble") if config.rule.name == "bayes" else ("", "")
    scores = {f"training{drawn}": of(score)}
    caption = f"While it learns, on the points it learns from{drawn}."
    validation: Chart | str = "No validation curves: no points were held out (data.validation = 0)."
    if held_out("loss"):
        scores[f"validation{ensemble}"] = held_out(score)
        caption = "Training that still gets better while validation gets worse would be overfitting."
        best = "Lowest where the model serves new points best; a rise after that is overfitting."
        validation = _curves(run, "Validation loss", best, loss, {"": held_out("loss")}, _log_if_wide)
    elif config.data.validation:
        validation = "No validation curves: no epoch has been validated yet (train.validate_every)."
    fall = f"It should fall and level off{drawn and '; part of its noise is the draw of the weights'}."
    settle = "The share of weights whose sign changed within the epoch; it should die out as the weights settle."
    flip_scale = functools.partial(_flip_scale, weights=run.judged["memory"]["weights"])
    return [
        _curves(
            run, "Training loss", fall, f"{config.loss} loss, {config.train.over_time} over time", {"": of("loss")}, _log_if_wide
        ),
        _curves(run, TITLES[score], caption, unit, scores, _log_if_wide if score == "rmse" else _plain),
        validation,
        _curves(run, "Flip rate", settle, "% of the weights", {"": of("flips")}, flip_scale),
    ]


def _curves(
    run: Run, title: str, caption: str, unit: str, lines: dict[str, list[tuple[int, float]]], scale: Callable[[Axes], None]
) -> Chart:
    """Lines over epochs; `lines` has (epoch, value) by name."""
    figure, (ax,) = _figure()
    for line, colour in zip(lines.values(), itertools.cycle(SERIES), strict=False):
        x, y = zip(*line, strict=True)
        ax.plot(x, y, color=colour, marker="o" if len(x) <= 25 else "")
    scale(ax)
    if run.judged["epoch"] != run.rows[-1]["epoch"]:
        ax.axvline(run.judged["epoch"], color=SOFT, lw=1, ls=(0, (3, 3)))
        caption = caption.removesuffix(".") + "; the dashed line is the epoch that the model is from."
    ax.set(title=unit, xlabel="epoch")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return _chart(title, caption, figure, tuple(lines) if len(lines) > 1 else ())


def _predictions(run: Run) -> list[Chart | str]:
    parts: list[Chart | str] = []
    for name, result in run.judged["predictors"].items():
        parts += _calibration(run, name, result) if run.judged["task"] == "classification" else _regression(run, name, result)
    if run.judged["task"] == "regression" and run.judged["x"].shape[1] > 1:
        parts.append(f"No curve over x: the points have {run.judged['x'].shape[1]} features.")
    return parts


def _calibration(run: Run, name: str, result: dict[str, Tensor]) -> list[Chart]:
    from scipy.stats import binomtest  # takes a second to import

    probs, y = result["mean"], run.judged["y"]
    bins = metrics.reliability(probs, y)
    size, edges = bins.size.numpy(), bins.edges.numpy()
    used = size > 0
    start = edges[max(0, int(np.searchsorted(edges, 1 / probs.shape[1], "right")) - 1)]  # the top class has at least 1 / C
    figure, (ax, counts) = _figure(265, [3, 1])
    centre, share = bins.confidence.numpy()[used], bins.accuracy.numpy()[used]
    spans = [binomtest(round(float(a * n)), int(n)).proportion_ci(method="wilson") for a, n in zip(share, size[used], strict=True)]
    ax.plot([start, 1], [start, 1], color=SOFT, lw=1, ls=(0, (3, 3)))
    ax.vlines(centre, [s.low for s in spans], [s.high for s in spans], color=SERIES[0], lw=1.4, alpha=0.55)
    ax.plot(centre, share, "o", color=SERIES[0], ms=5.5)
    ax.set(title="share right", ylim=(-0.02, 1.03))
    counts.bar(edges[:-1][used], size[used], np.diff(edges)[used], align="edge", color=SERIES[0], alpha=0.45, ec=BACK, lw=1)
    counts.set(yscale="symlog", ylim=(0, 6 * size.max()), yticks=[], xlabel="confidence", xlim=(start, 1))
    counts.set_title("points in the bin", pad=3)
    for left, right, n in zip(edges[:-1][used], edges[1:][used], size[used], strict=True):
        counts.text((left + right) / 2, n * 1.15, _short(int(n)), ha="center", va="bottom", fontsize=9.5)
    caption = "Dots on the dashed line: the model is right as often as it says; below it is too sure, above not sure enough."
    return [_chart(f"Reliability, {name}", caption + " Bars are 95 % intervals.", figure), _confidence(name, probs, y, start)]


def _confidence(name: str, probs: Tensor, y: Tensor, start: float) -> Chart:
    top, predicted = probs.max(-1)
    right = (predicted == y).numpy()
    figure, axes = _figure(265, [1, 1])
    edges = np.linspace(start, 1, 31).tolist()
    for ax, of, colour, title in zip(axes, (right, ~right), SERIES, ("right", "wrong"), strict=False):
        ax.hist(top.numpy()[of].clip(start, 1), edges, color=colour, ec=BACK, lw=0.6)
        ax.set(title=f"{title}: {of.sum():,} points", xlim=(start, 1))
        ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes[-1].set_xlabel("confidence")
    caption = "Mistakes should lie at low confidence, on the left; those on the right were made with confidence."
    if right.all():
        caption = "Every test point is right, so there is no mistake to be too sure of."
    return _chart(f"Confidence, {name}", caption, figure)


def _regression(run: Run, name: str, result: dict[str, Tensor]) -> list[Chart | str]:
    x, y, mean, std = (t.double().numpy() for t in (run.judged["x"], run.judged["y"], result["mean"], result["std"]))
    some = np.linspace(0, len(y) - 1, min(POINTS, len(y))).round().astype(int)
    few = f" {len(some)} of {len(y):,} points are drawn." if len(some) < len(y) else ""
    dots: dict[str, Any] = {"color": SERIES[0], "alpha": 0.5, "ms": 3.5}
    charts: list[Chart | str] = []
    if x.shape[1] == y.shape[1] == 1:
        figure, (ax,) = _figure()
        order = some[x[some, 0].argsort(kind="stable")]
        at, centre, spread = x[order, 0], mean[order, 0], std[order, 0]
        ax.fill_between(at, centre - spread, centre + spread, color=SERIES[0], alpha=0.22, lw=0)
        ax.plot(at, centre, color=SERIES[0])
        ax.plot(at, y[order, 0], "o", color=SERIES[1], ms=2.2)
        ax.set(title="y", xlabel="x, in units of the encoding")
        caption = (
            "The band, one deviation to each side of the mean, should hold most of the targets and widen where the mean is off."
        )
        if not std.any():
            caption = "The line should run through the targets; a single network has no deviation, so there is no band."
        charts.append(_chart(f"Prediction over x, {name}", caption + few, figure, ("prediction", "target")))
    figure, (ax,) = _figure()
    low, high = min(y.min(), mean.min()), max(y.max(), mean.max())
    ax.plot([low, high], [low, high], color=SOFT, lw=1, ls=(0, (3, 3)))
    ax.plot(y[some].ravel(), mean[some].ravel(), "o", **dots)
    ax.set(title="prediction", xlabel="target")
    charts.append(_chart(f"Prediction against target, {name}", f"Perfect predictions lie on the dashed line.{few}", figure))
    if not std.any():
        return [*charts, f"No error against deviation for {name}: a single network has no deviation."]
    figure, (ax,) = _figure()
    error = np.abs(mean - y)
    ax.plot([0, std.max()], [0, std.max()], color=SOFT, lw=1, ls=(0, (3, 3)))
    ax.plot(std[some].ravel(), error[some].ravel(), "o", **dots)
    ax.set(title="|error|", xlabel="deviation", xlim=(0, None), ylim=(0, None))
    share = 100 * (error <= std).mean()
    within = f"{share:.0f} % of the errors are within one deviation, below the dashed line; of a Gaussian 68 %."
    return [*charts, _chart(f"Error against deviation, {name}", within + few, figure)]


def _over_time(run: Run) -> list[Chart | str]:
    return [_chart_over_time(run, name, curves) for name, curves in run.judged["over_time"].items()]


def _chart_over_time(run: Run, name: str, curves: dict[str, Tensor]) -> Chart:
    c = {key: curve.numpy() for key, curve in curves.items()}
    t = run.config.burn_in + np.arange(len(next(iter(c.values()))))
    if run.judged["task"] == "regression":
        figure, (ax,) = _figure()
        ax.plot(t, c["rmse"], color=SERIES[0])
        ax.plot(t, c["std"], color=SERIES[1])
        ax.set(title="in units of the target", ylim=(0, None))
        legend: tuple[str, ...] = ("RMSE", "mean deviation")
        what = "Error and deviation"
        caption = "The error should shrink as spikes come in; a deviation near it is honest, far below it too sure."
        if not c["std"].any():
            caption = "The error should shrink as spikes come in; a single network has no deviation."
    else:
        figure, (ax, lower) = _figure(265, [2, 1])
        aleatoric, total = c["expected_entropy"], c["expected_entropy"] + c["mutual_information"]
        ax.fill_between(t, 0, aleatoric, color=SERIES[0], alpha=0.75, lw=0)
        ax.fill_between(t, aleatoric, total, color=SERIES[1], alpha=0.85, lw=0)
        ax.plot(t, total, color=SOFT, lw=1)
        ax.set(title="entropy in nats", ylim=(0, None))
        lower.plot(t, c["accuracy"], color=SERIES[2])
        lower.set(title="share right", xlim=(t[0], max(t[-1], t[0] + 1)))
        lower.yaxis.set_major_locator(MaxNLocator(3))
        ax, what, legend = (
            lower,
            "Entropy and accuracy",
            ("expected entropy: members are unsure", "mutual information: members disagree", "accuracy"),
        )
        caption = "With more spikes the model should get surer and more often right; where both are flat it could have stopped."
        if not c["mutual_information"].any():
            caption += " A single network has no members that could disagree."
    ax.set(xlabel="time step, from the end of the burn-in", xlim=(t[0], max(t[-1], t[0] + 1)))
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return _chart(f"{what}, {name}", caption, figure, legend)


def _spikes(run: Run) -> list[Chart | str]:
    """Of a few test points: maps of what leaves convolutional layers, rasters of what is neurons in a row."""
    kept = run.judged["raster"]
    layers = {"input": kept["input"]} | {f"layer {i}": layer for i, layer in enumerate(kept["layers"], 1)}
    rows = {name: s for name, s in layers.items() if isinstance(s, Tensor)}  # (T, n, N) each
    maps = {name: s for name, s in layers.items() if name not in rows and name != "input"}  # `events` draws that one
    points = range(len(kept["points"]))
    parts: list[Chart | str] = [_maps(run, maps, i) for i in points if maps]
    parts += [_raster(run, rows, i) for i in points if rows]
    if isinstance(run.config.data, Events) and "shape" not in kept:  # an older evaluation
        parts.append("No pictures of the recordings: this run was evaluated without them; do it again with: bisnn evaluate.")
    return parts


def _raster(run: Run, rows: dict[str, Tensor], i: int) -> Chart:
    """Spikes, (T, n, N) by name, of the i-th of the test points that they are kept of."""
    T, burn_in = len(next(iter(rows.values()))), run.config.burn_in
    heights = [2 * min(max(s.shape[2], 12), NEURONS) for s in rows.values()]
    figure, axes = _figure(70 + sum(heights) + 27 * (len(heights) - 1), heights)
    for ax, (name, s) in zip(axes, rows.items(), strict=True):
        N = s.shape[2]
        every, join = -(-N // NEURONS), -(-T // STEPS)
        ticks = np.zeros((T + -T % join, N), np.uint8)
        ticks[:T] = s[:, i].numpy()
        ticks = ticks.reshape(-1, join, N).max(1)[:, ::every].T  # (n, columns)
        image = np.array([(0, 0, 0, 0), (*BLUE, 255)], np.uint8)[ticks]
        ax.imshow(image, aspect="auto", interpolation="none", origin="lower", extent=(0, ticks.shape[1] * join, 0, N))
        some = f"{len(ticks)} of " if every > 1 else ""
        ax.set(title=f"{name}: {some}{N:,} neurons", xlim=(0, T), yticks=[])
        ax.grid(False)
        if burn_in:
            ax.axvline(burn_in, color=SOFT, lw=1, ls=(0, (3, 3)))
    axes[-1].set_xlabel("time step")
    caption = "Each tick is a spike, each row a neuron" + "; up to the dashed line, the end of the burn-in, nothing counts" * bool(
        burn_in
    )
    return _chart(_point(run, i, "raster"), caption + ".", figure)


def _maps(run: Run, maps: dict[str, dict[str, Any]], i: int) -> Chart:
    """What left the most active channels of each convolutional layer, by name, summed over time."""
    groups: dict[str, list[tuple[str, np.ndarray]]] = {}
    alt = []
    for name, layer in maps.items():
        counts, channels = layer["counts"][i].int().numpy(), layer["channels"].tolist()  # (k, H, W), (k,)
        few = f"{len(channels)} of " if len(channels) < layer["of"] else ""
        height, width = counts.shape[1:]
        heading = f"{name}: {few}{layer['of']:,} channels, {height} x {width}, up to {counts.max():,} spikes"
        named = [(f"channel {channel + 1}", count) for channel, count in zip(channels, counts, strict=True)]
        groups[heading] = [(channel, _shaded(count, counts.max(), BLUE)) for channel, count in named]
        spikes = ", ".join(f"{channel} {count.sum():,}" for channel, count in named)
        alt.append(f"{heading}; spikes of each: {spikes}.")
    caption = (
        "What leaves each channel, summed over time: the stronger, the more spikes. Maps of one layer share their scale; its "
        "channels are those that fire most over the test points."
    )
    return _chart(_point(run, i, "maps"), caption, _gallery(groups, 4), alt=" ".join(alt))


def recorded(run: Run) -> bool:
    """Whether the run has recordings to draw: of pixels, with a polarity."""
    return isinstance(run.judged["raster"]["input"], dict)


def events(run: Run, i: int) -> Chart:
    """The i-th of the recordings that are kept: its events in slices of time."""
    kept = run.judged["raster"]["input"]
    counts = kept["counts"][i].int().numpy()  # (slices, 2, H, W)
    most = max(1.0, float(np.quantile(counts.sum(1), 0.995)))  # a hot pixel must not fade the others
    pictures, alt = [], []
    for (start_us, end_us), (off, on) in zip(itertools.pairwise(kept["edges_us"]), counts, strict=True):
        when = f"{start_us / 1e3:g} to {end_us / 1e3:g} ms"
        share = on / np.maximum(off + on, 1)  # (H, W)
        colour = np.multiply.outer(1 - share, BLUE) + np.multiply.outer(share, ORANGE)
        pictures.append((when, _shaded(off + on, most, colour)))
        alt.append(f"{when}: {off.sum():,} of p = 0, {on.sum():,} of p = 1")
    caption = (
        "Each picture is a slice of time. The stronger a pixel, the more of its time steps had an event; where both kinds met it "
        "is grey."
    )
    legend, spoken = ("polarity p = 0", "p = 1"), f"Events in each slice of time. {'; '.join(alt)}."
    return _chart(_point(run, i), caption, _gallery({"": pictures}, 3), legend, spoken)


def _point(run: Run, i: int, of_recording: str = "") -> str:
    """A title for the i-th of the test points whose spikes are kept; that of a recording says what of it is drawn."""
    judged, recording = run.judged, isinstance(run.config.data, Events)
    point = int(judged["raster"]["points"][i])
    truth = (
        f"class {judged['classes'][int(judged['y'][point])]}"
        if judged["classes"]
        else f"target {judged['y'][point].tolist()[0]:.3g}"
    )
    kind, what = ("recording", of_recording and f": {of_recording}") if recording else ("point", "")
    return f"Test {kind} {point + 1}, {truth}{what}"


def _rates(run: Run) -> list[Chart | str]:
    rates = [layer.double().numpy() for layer in run.judged["rates"]]
    figure, axes = _figure(70 + 90 * len(rates), [1.0] * len(rates))
    edges = np.linspace(0, max(1e-3, *(layer.max() for layer in rates)), 41).tolist()
    for i, (ax, layer) in enumerate(zip(axes, rates, strict=True)):
        ax.hist(layer, edges, color=SERIES[i % len(SERIES)], ec=BACK, lw=0.6)
        ax.set(title=f"layer {i + 1}: mean {layer.mean():.3f}", xlim=(0, edges[-1]))
        ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes[-1].set_xlabel("spikes per time step")
    silent, neurons = sum(int((layer == 0).sum()) for layer in rates), sum(map(len, rates))
    caption = f"Neurons by how often they fire; {silent:,} of {neurons:,} never do, and carry nothing."
    parts: list[Chart | str] = [_chart("Firing rates of the neurons", caption, figure)]
    if not run.rows:
        return [*parts, "No firing rates over epochs: metrics.jsonl has no rows."]
    lines = {f"layer {i + 1}": [(row["epoch"], row["rates"][i]) for row in run.rows] for i in range(len(rates))}
    steady = "Steady lines well above 0 and below 1 are healthy: silent or saturated layers pass nothing on."
    return [*parts, _curves(run, "Firing rates over epochs", steady, "spikes per neuron and time step", lines, _from_zero)]


def _posterior(run: Run) -> list[Chart | str]:
    posterior = run.judged["posterior"]
    if posterior is None:
        return [
            f"The rule of this run ({RULES[run.config.rule.name]}) learns one value for each weight: it has no posterior to draw."
        ]
    counts, edges = posterior["counts"].double().numpy(), posterior["edges"].double().numpy()
    figure, axes = _figure(70 + 90 * len(counts), [1.0] * len(counts))
    shares = counts / counts.sum(1, keepdims=True)
    for i, (ax, share) in enumerate(zip(axes, shares, strict=True)):
        ax.bar(edges[:-1], share, np.diff(edges), align="edge", color=SERIES[i % len(SERIES)], ec=BACK, lw=0.6)
        ax.set(title=f"layer {i + 1}: {counts[i].sum():,.0f} weights, share in each bin", xlim=(0, 1), yscale="log")
        ax.set_ylim(shares[shares > 0].min() / 2, min(1.0, 1.5 * shares.max()))
        ax.yaxis.set_major_locator(LogLocator(100))
        _plain_numbers(ax)
    axes[-1].set_xlabel("p, probability that the weight is +1")
    decided = counts[:, (edges[:-1] < 0.1 - 1e-6) | (edges[1:] > 0.9 + 1e-6)].sum() / counts.sum()
    caption = f"At 0 or 1 a weight is settled, at 0.5 it is a coin toss; {100 * decided:.0f} % are below 0.1 or above 0.9."
    return [_chart("Probability of each weight", caption, figure)]


PARTS: dict[str, Callable[[Run], list[Chart | str]]] = {
    "Learning": _learning,
    "Predictions": _predictions,
    "Uncertainty over time": _over_time,
    "Spikes": _spikes,
    "Firing rates": _rates,
    "Weights": _posterior,
}


# Drawing


def _figure(height: float = 215, ratios: Sequence[float] = (1,)) -> tuple[Figure, list[Axes]]:
    """Axes above each other on a common x; the same margins, in points, on every chart."""
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    inner = height - 70
    gap = 27 * len(ratios) / (inner - 27 * (len(ratios) - 1))  # in mean heights of the axes
    grid = {"left": 52 / WIDTH, "right": 1 - 12 / WIDTH, "bottom": 46 / height, "top": 1 - 24 / height, "hspace": gap}
    axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=list(ratios), gridspec_kw=grid)
    return figure, list(axes[:, 0])


def _gallery(groups: dict[str, list[tuple[str, np.ndarray]]], columns: int) -> Figure:
    """RGBA images, each under its name, in rows of `columns`, in groups by heading; an empty heading takes no room."""
    gap, line = 10.0, 20.0  # between columns; for a line of text
    edge = (WIDTH - 2 - gap * (columns - 1)) / columns  # a point at each side for the frame
    places, headings, top = [], [], 0.0  # in points, from the top
    for heading, images in groups.items():
        if heading:
            headings.append((heading, top + line / 2))
            top += line
        for k, (name, image) in enumerate(images):
            height = edge * min(max(image.shape[0] / image.shape[1], 0.15), 2)  # a single row of pixels shows, too
            places.append((name, image, 1 + k % columns * (edge + gap), top + line, height))
            if k % columns == columns - 1 or k == len(images) - 1:
                top += line + height + 4
        top += gap
    whole = top - gap
    figure = Figure(figsize=(WIDTH / 72, whole / 72), dpi=72)
    for heading, at in headings:
        figure.text(0, 1 - at / whole, heading, va="center")
    for name, image, left, at, height in places:
        ax = figure.add_axes((left / WIDTH, 1 - (at + height) / whole, edge / WIDTH, height / whole))
        ax.imshow(image, aspect="auto", interpolation="none")
        ax.set_title(name, pad=4)
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(True)
    return figure


def _shaded(counts: np.ndarray, most: float, colour: np.ndarray | tuple[int, ...]) -> np.ndarray:
    """An RGBA image: counts (H, W) as opacity, full from `most` on, of one colour or of each pixel's, (H, W, 3)."""
    image = np.empty((*counts.shape, 4), np.uint8)
    image[..., :3] = np.round(colour)
    image[..., 3] = np.round(255 * np.where(counts > 0, FAINT + (1 - FAINT) * np.minimum(counts / max(most, 1), 1), 0))
    return image


def _plain(ax: Axes) -> None:
    """Leave the axis as it is."""


def _from_zero(ax: Axes) -> None:
    ax.set_ylim(bottom=0)


def _log_if_wide(ax: Axes) -> None:
    """A log axis where the values span more than a factor of 20."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() / values.min() > 20:
        ax.set_yscale("log")
        _plain_numbers(ax)


def _flip_scale(ax: Axes, weights: int) -> None:
    """A log axis down to the decade of one weight; below it lies only 0."""
    ax.set_yscale("symlog", linthresh=10.0 ** -math.ceil(math.log10(weights)))
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _plain_numbers(ax: Axes) -> None:
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def _short(count: int) -> str:
    return str(count) if count < 1000 else f"{count / 1000:.1f}k" if count < 10_000 else f"{count / 1000:.0f}k"


def _chart(title: str, caption: str, figure: Figure, legend: tuple[str, ...] = (), alt: str = "") -> Chart:
    return Chart(title, caption, _svg(figure), legend, alt)


def _svg(figure: Figure) -> str:
    """The figure as inline SVG: stand-in colours as CSS variables, no fonts of its own, ids only where used, two decimals."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>| xmlns:\w+=\"[^\"]*\"", "", svg, flags=re.S)
    svg = re.sub(r"<svg[^>]*viewBox=(\"[^\"]*\")[^>]*>", r"<svg viewBox=\1 aria-hidden=\"true\">", svg).replace(
        "xlink:href", "href"
    )
    svg = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: var({VARIABLES[m[2]]})", svg)
    svg = re.sub(r" ?font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r" d=\"[^\"]*\"", lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0].replace("\n", "")), svg)
    used = dict.fromkeys(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg))
    names = {name: f"@{i}" for i, name in enumerate(used)}
    svg = re.sub(r" id=\"([^\"]*)\"", lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", svg)
    svg = re.sub(r"(url\(|href=\")#([^)\"]+)", lambda m: f"{m[1]}#{names[m[2]]}", svg)
    return re.sub(r"\s*\n\s*", "\n", svg)
