"""A look at one recording: its numbers, and a picture."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bisnn.data.events import Recording
from bisnn.files import write_atomic

BLUE, ORANGE = "#2b6cb0", "#dd6b20"
SLICES, RATE_BINS, HOTTEST = 6, 100, 3


def facts(recording: Recording) -> dict[str, str]:
    """What to know of a recording, in words."""
    events, (width, height) = recording.events, recording.size
    rows = {
        "format": recording.format,
        "sensor": f"{width} x {height} pixels",
        "events": f"{len(events):,}",
    }
    if len(events):
        seconds = recording.duration_us / 1e6
        rows["time"] = f"{seconds:.6f} s, from {recording.start_us / 1e6:.6f} s"
        if seconds:
            rows["rate"] = f"{len(events) / seconds:,.0f} events/s"
        x, y = events["x"], events["y"]
        rows["extent"] = f"x {x.min()} to {x.max()}, y {y.min()} to {y.max()}"
        on = events["p"].mean()
        rows["polarity"] = f"{on:.1%} p = 1, {1 - on:.1%} p = 0"
        counts = np.bincount(y.astype(np.intp) * width + x, minlength=width * height)
        rows["active pixels"] = f"{np.count_nonzero(counts):,} of {width * height:,}"
        hottest = np.argsort(-counts, kind="stable")[: min(HOTTEST, np.count_nonzero(counts))]
        rows["hottest pixels"] = ", ".join(
            f"({i % width}, {i // width}): {counts[i]:,}" for i in hottest
        )
    rows["skipped"] = _counts(recording.skipped) or "nothing"
    rows["clock"] = _counts(recording.clock) or "in order"
    if recording.header:
        rows["header"] = "\n".join(recording.header)
    return rows


def draw(recording: Recording, path: Path) -> None:
    """Draw the events of each sixth of the time, p = 1 orange and p = 0 blue, and their rate."""
    events, (width, height) = recording.events, recording.size
    since_us = events["t"] - recording.start_us
    end_us = recording.duration_us + 1
    figure = Figure(figsize=(2.2 * SLICES, 4.8), layout="constrained")
    grid = figure.add_gridspec(2, SLICES, height_ratios=(1.4, 1))
    edges_us = np.linspace(0, end_us, SLICES + 1)
    images = [
        _image(events[(since_us >= low) & (since_us < high)], width, height)
        for low, high in pairwise(edges_us)
    ]
    most = max(map(_most, images))
    for k, image in enumerate(images):
        axis = figure.add_subplot(grid[0, k])
        axis.imshow(_colours(image / most), origin="upper", interpolation="nearest")
        axis.set_title(f"{edges_us[k] / 1e3:.0f} to {edges_us[k + 1] / 1e3:.0f} ms", fontsize=9)
        axis.set(xticks=(0, width - 1), yticks=(0, height - 1))
    axis = figure.add_subplot(grid[1, :])
    bins_us = np.linspace(0, end_us, RATE_BINS + 1)
    for p, colour in ((True, ORANGE), (False, BLUE)):
        counts, _ = np.histogram(since_us[events["p"] == p], bins_us)
        axis.stairs(counts / (bins_us[1] / 1e6), bins_us / 1e3, color=colour, label=f"p = {int(p)}")
    axis.set(xlabel="time since the first event, ms", ylabel="events/s", xlim=(0, end_us / 1e3))
    axis.legend(fontsize=8)
    figure.suptitle(
        f"{recording.format}: {len(events):,} events in {recording.duration_us / 1e6:.3f} s",
        fontsize=9,
    )
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=150)
    write_atomic(path, png.getvalue())


def picture(events: np.ndarray, width: int, height: int) -> np.ndarray:
    """All events of a recording as an image, (height, width, 3): p = 1 orange, p = 0 blue."""
    image = _image(events, width, height)
    return _colours(image / _most(image))


def _most(image: np.ndarray) -> float:
    """The count that is drawn in full colour: a hot pixel must not darken the others."""
    return max(1.0, float(np.quantile(image.max(-1), 0.995)))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())


def _image(events: np.ndarray, width: int, height: int) -> np.ndarray:
    """Events of each pixel, (height, width, 2): p = 0, p = 1."""
    index = (events["y"].astype(np.intp) * width + events["x"]) * 2 + events["p"]
    return np.bincount(index, minlength=2 * width * height).reshape(height, width, 2)


def _colours(image: np.ndarray) -> np.ndarray:
    """White where nothing happened; p = 0 takes away all but blue, p = 1 all but orange."""
    off, on = np.clip(image, 0, 1)[..., 0, None], np.clip(image, 0, 1)[..., 1, None]
    blue, orange = (
        np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for colour in (BLUE, ORANGE)
    )
    return (1 - off * (1 - blue)) * (1 - on * (1 - orange))
