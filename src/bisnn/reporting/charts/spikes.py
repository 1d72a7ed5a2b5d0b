"""Spikes of single test points: events of recordings, maps of channels, rasters of neurons."""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from bisnn.reporting.charts.canvas import (
    BLUE,
    ORANGE,
    SOFT,
    Chart,
    Part,
    Run,
    chart,
    decimals,
    gallery,
    plot,
    shaded,
)
from bisnn.runs.results import FeatureMaps, Slices

NEURONS = 64  # of a layer, drawn in a raster
STEPS = 400  # columns of a raster
ROW = 2.5  # height of a neuron's row, in points, the same in every layer
# Pixels per row, and per column where there are STEPS: smoothing by the browser then blurs edges
# alone
SHARP = 4


def parts_of(run: Run) -> list[Part]:
    """Maps of channels and rasters of neurons, of two of the worst points and a good one."""
    kept = run.judged.raster
    layers = {"input": kept.input} | {f"layer {i}": layer for i, layer in enumerate(kept.layers, 1)}
    rows = {name: s for name, s in layers.items() if isinstance(s, Tensor)}  # (T, n, N) each
    maps = {name: s for name, s in layers.items() if isinstance(s, FeatureMaps)}
    points = sorted({0, 1, len(kept.points) - 1} & set(range(len(kept.points))))
    parts: list[Part] = [_maps(run, maps, i) for i in points if maps]
    return parts + [_raster(run, rows, i) for i in points if rows]


def _raster(run: Run, rows: dict[str, Tensor], i: int) -> Chart:
    """Spikes, (T, n, N) by name, of the i-th of the test points that they are kept of."""
    T, burn_in = len(next(iter(rows.values()))), run.config.burn_in
    drawn = {name: _ticks(s[:, i].numpy()) for name, s in rows.items()}
    figure, axes = plot(*(ROW * len(ticks) for ticks in drawn.values()))
    for ax, (name, ticks), s in zip(axes, drawn.items(), rows.values(), strict=True):
        join, N = -(-T // STEPS), s.shape[2]
        sharp = ticks.repeat(SHARP, 0).repeat(max(1, SHARP * STEPS // ticks.shape[1]), 1)
        image = np.array([(*BLUE, 0), (*BLUE, 255)], np.uint8)[sharp]
        ax.imshow(
            image,
            aspect="auto",
            interpolation="none",
            origin="lower",
            extent=(0, ticks.shape[1] * join, 0, len(ticks)),
        )
        some = f"{len(ticks)} of " if len(ticks) < N else ""
        ax.set(title=f"{name}: {some}{N:,} neurons", xlim=(0, ticks.shape[1] * join), yticks=[])
        ax.grid(False)
        if burn_in:
            ax.axvline(burn_in, color=SOFT, lw=1, ls=(0, (3, 3)))
    axes[-1].set_xlabel("time step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ignored = "; up to the dashed line, the end of the burn-in, nothing counts" * bool(burn_in)
    title = _point(run, i, "raster")
    return chart(title, f"Each tick is a spike, each row a neuron{ignored}.", figure, smooth=True)


def _ticks(s: np.ndarray) -> np.ndarray:
    """Spikes (T, N) as rows of a raster, (n, columns): some neurons, time steps joined."""
    T, N = s.shape
    every, join = -(-N // NEURONS), -(-T // STEPS)
    padded = np.zeros((T + -T % join, N), np.uint8)
    padded[:T] = s
    return padded.reshape(-1, join, N).max(1)[:, ::every].T


def _maps(run: Run, maps: dict[str, FeatureMaps], i: int) -> Chart:
    """What left the most active channels of each convolutional layer, by name, summed over time."""
    groups: dict[str, list[tuple[str, np.ndarray]]] = {}
    alt = []
    for name, layer in maps.items():
        # (k, H, W), (k,)
        counts = layer.counts[i].int().numpy()
        channels = layer.channels.tolist()
        few = f"{len(channels)} of " if len(channels) < layer.of else ""
        height, width = counts.shape[1:]
        heading = (
            f"{name}: {few}{layer.of:,} channels, {height} x {width}, up to {counts.max():,} spikes"
        )
        named = [
            (f"channel {channel + 1}", count)
            for channel, count in zip(channels, counts, strict=True)
        ]
        groups[heading] = [(channel, shaded(count, counts.max(), BLUE)) for channel, count in named]
        spikes = ", ".join(f"{channel} {count.sum():,}" for channel, count in named)
        alt.append(f"{heading}; spikes of each: {spikes}.")
    caption = (
        "What leaves each channel, summed over time: "
        "the stronger, the more spikes. Maps of one layer share their scale; its "
        "channels are those that fire most over the test points."
    )
    return chart(_point(run, i, "maps"), caption, gallery(groups, 4), alt=" ".join(alt))


def events(run: Run, i: int) -> Chart:
    """The i-th of the recordings that are kept: its events in slices of time."""
    kept = run.judged.raster.input
    assert isinstance(kept, Slices)
    counts = kept.counts[i].int().numpy()  # (slices, 2, H, W)
    # A hot pixel must not fade the others
    most = max(1.0, float(np.quantile(counts.sum(1), 0.995)))
    pictures, alt = [], []
    for (start_us, end_us), (off, on) in zip(
        itertools.pairwise(kept.edges_us), counts, strict=True
    ):
        when = f"{start_us / 1e3:g} to {end_us / 1e3:g} ms"
        share = on / np.maximum(off + on, 1)  # (H, W)
        colour = np.multiply.outer(1 - share, BLUE) + np.multiply.outer(share, ORANGE)
        pictures.append((when, shaded(off + on, most, colour)))
        alt.append(f"{when}: {off.sum():,} of p = 0, {on.sum():,} of p = 1")
    caption = (
        "Each picture is a slice of time. The stronger a pixel, the more of its time steps had an "
        "event; where both kinds met it "
        "is grey."
    )
    legend, alt_text = (
        ("polarity p = 0", "p = 1"),
        f"Events in each slice of time. {'; '.join(alt)}.",
    )
    return chart(_point(run, i), caption, gallery({"": pictures}, 3), legend, alt_text)


def _point(run: Run, i: int, of_recording: str = "") -> str:
    """A title for the i-th test point with spikes; for a recording, with the part drawn."""
    judged = run.judged
    point = int(judged.raster.points[i])
    mean, y = list(judged.predictors.values())[-1].mean[point], judged.y[point]
    if run.config.recorded and judged.classes:
        what = of_recording and f": {of_recording}"
        return f"Test recording {point + 1}, class {judged.classes[int(y)]}{what}"
    if not judged.classes:
        return (
            f"Test point {point + 1}, target {decimals(float(y[0]))}, predicted "
            f"{decimals(float(mean[0]))}"
        )
    top = int(mean.argmax())
    taken = f", taken for {judged.classes[top]}" if top != y else ""
    return f"Test point {point + 1}, class {judged.classes[int(y)]}{taken}"
