"""The drawings of docs/explanations that are computed, and the numbers that their pages quote.

    python -m bisnn_experiments.diagrams [--docs docs]

`time.png`: a layer of eight neurons on two short recordings, as one product and one scan.
`guarantee.png`: what calibrations promise, simulated where the truth is known; the same in numbers
is results/guarantee.json.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image

import bisnn
from bisnn.conformal import ConformalSets, calibrate_sets
from bisnn.files import write_atomic
from bisnn.reporting.charts.canvas import BLUE, CLASSES, ORANGE
from bisnn_experiments import results

# The pages' colours (shipping/page/page.css), light
INK, SOFT, LINE, BACK = "#18212c", "#5a6675", "#e2e7ec", "#f4f6f8"
ON, OFF, GREEN = ("#" + bytes(colour).hex() for colour in (BLUE, ORANGE, CLASSES[2]))
LOOK: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), SOFT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    "axes.edgecolor": LINE,
    "font.size": 9,
}
SIGNED = LinearSegmentedColormap.from_list("signed", [OFF, "#ffffff", ON])
BITS = LinearSegmentedColormap.from_list("bits", [BACK, INK])
FIRED = LinearSegmentedColormap.from_list("fired", [BACK, GREEN])

# Of the layer that is drawn
STEPS, INPUTS, NEURONS = 14, 12, 8
CELL = 7.6  # points
APART = 1.0  # cells between two recordings
WIDTH, HEIGHT = 620.0, 298.0  # points
EXPLAINED = (
    (173, "1. One product", "Every time step of every recording is a column\nof one matrix."),
    (
        226,
        "2. One scan",
        "Along each row, from left to right: filter the current, subtract\n"
        "the neuron's own past, compare with the threshold.",
    ),
)

# Of the simulated calibrations
COVERAGE = 0.9
SIZES = (50, 200, 1000)  # calibration recordings
CALIBRATIONS = 4000  # of each size
SCALE = 1e6  # of scores, so fine that hardly any occurs twice
HARD, HARDER = 0.2, 3.0  # the share of hard recordings, and how much larger their scores are
SEED = 0


# Time as a batch axis


def layer() -> dict[str, np.ndarray]:
    """What a layer of binary weights makes of two recordings of noise: columns are time steps, of
    the first recording and then of the second.
    """
    net = bisnn.Network(
        bisnn.Linear(INPUTS, NEURONS), readout=2, neuron=bisnn.SRM(threshold=0.2), seed=1
    )
    generator = torch.Generator().manual_seed(3)
    x = (torch.rand(STEPS, 2, INPUTS, generator=generator) < 0.3).float()
    with bisnn.map_weights(net), torch.no_grad():
        out, weights = net(x), net.layers[0].weight.clone().numpy()
    parts = {"s": x, "u": out.potentials[0], "spikes": out.spikes[0]}
    columns = {
        name: part.numpy().swapaxes(0, 1).reshape(2 * STEPS, -1).T for name, part in parts.items()
    }
    return {"W": weights, "I": weights @ columns["s"], **columns}


def draw_time() -> Figure:
    """W S = I for all time steps of both recordings, and one scan from I to the spikes."""
    parts, side = layer(), 2 * STEPS + APART
    figure = Figure((WIDTH / 72, HEIGHT / 72), facecolor="white")
    page = figure.add_axes((0, 0, 1, 1))
    page.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    page.set_axis_off()
    columns = (14.0, 14 + (INPUTS + 3.4) * CELL, 14 + (INPUTS + 3.4 + side + 3.4) * CELL)
    currents, potentials, spikes = 81.0, 173.0, 255.0  # the middles of rows
    most = {name: float(np.abs(parts[name]).max()) for name in ("I", "u")}
    _matrix(page, columns[0], currents, parts["W"], SIGNED, 1.0, "W", "weights, +1 or -1")
    _matrix(page, columns[1], currents, parts["s"], BITS, 1.0, "s", "input spikes")
    _matrix(page, columns[2], currents, parts["I"], SIGNED, most["I"], "I = W s", "currents")
    _matrix(page, columns[2], potentials, parts["u"], SIGNED, most["u"], "u", "potentials")
    _matrix(page, columns[2], spikes, parts["spikes"], FIRED, 1.0, "s", "spikes")
    for x, sign in ((columns[1], "\N{MULTIPLICATION SIGN}"), (columns[2], "=")):
        page.text(x - 1.7 * CELL, currents, sign, size=17, color=INK, ha="center", va="center")
    for recording in (0, 1):
        start = recording * (STEPS + APART) * CELL
        x, y = columns[1] + start, currents + INPUTS / 2 * CELL + 12
        page.text(x, y, f"recording {recording + 1}, {STEPS} steps", color=SOFT, size=8)
        end = columns[2] + start + STEPS / 2 * CELL
        for bottom in (currents + 34, potentials + 34):
            arrow = {"arrowstyle": "-|>", "color": SOFT, "lw": 1.2}
            page.annotate("", (end, bottom + 15), (end, bottom), arrowprops=arrow)
    for y, head, text in EXPLAINED:
        page.text(14, y, head, color=INK, weight="bold", size=10, va="top")
        page.text(14, y + 15, text, color=SOFT, va="top", linespacing=1.35)
    return figure


def _matrix(
    page: Axes,
    left: float,
    middle: float,
    values: np.ndarray,
    colours: Colormap,
    most: float,
    name: str,
    what: str,
) -> None:
    """Cells with their name above: recordings, if there are two, apart and each with its arrow."""
    rows, count = values.shape
    top = middle - rows / 2 * CELL
    low = -most if colours is SIGNED else 0.0
    shades = colours((values - low) / (most - low))
    for (i, j), _ in np.ndenumerate(values):
        x = left + (j + APART * (count == 2 * STEPS and j >= STEPS)) * CELL
        y, size = top + i * CELL, CELL - 0.8
        page.fill([x, x + size, x + size, x], [y, y, y + size, y + size], color=shades[i, j], lw=0)
    page.text(left, top - 6, name, color=INK, weight="bold", size=11)
    page.text(left + 7.2 * len(name) + 8, top - 6, what, color=SOFT)


# The guarantee


def calibrated(rng: np.random.Generator, size: int, *, by_class: bool = False) -> ConformalSets:
    """Thresholds from so many simulated recordings of two classes, the second of which is hard.

    The score of a wrong class is without end: sets are judged by whether they hold the true one.
    """
    hard = rng.random(size) < HARD
    true = np.floor(SCALE * rng.exponential(np.where(hard, HARDER, 1.0)))
    scores = np.full((1, size, 2), 1 << 40)
    scores[0, np.arange(size), hard.astype(int)] = true
    return calibrate_sets(
        scores.astype(np.int64),
        hard.astype(np.int64),
        ((1, 1),),
        COVERAGE,
        correction="bonferroni",
        by_class=by_class,
    )


def coverages(sets: ConformalSets) -> tuple[float, float, float]:
    """How often sets with these thresholds hold the true class: of all recordings, of the easy and
    of the hard ones; known, not estimated.
    """
    easy, hard = sets.thresholds[0]
    each = [-np.expm1(-(t + 1) / (SCALE * scale)) for t, scale in ((easy, 1.0), (hard, HARDER))]
    return (1 - HARD) * each[0] + HARD * each[1], each[0], each[1]


def simulate() -> dict[str, Any]:
    """Many calibrations of each size: the coverage that each of them has."""
    rng = np.random.default_rng(SEED)
    found: dict[str, Any] = {"coverage": COVERAGE, "calibrations": CALIBRATIONS, "sizes": {}}
    drawn = {}
    for size in SIZES:
        drawn[size] = np.array([coverages(calibrated(rng, size))[0] for _ in range(CALIBRATIONS)])
        found["sizes"][str(size)] = {
            "mean": float(drawn[size].mean()),
            "low": float(np.quantile(drawn[size], 0.05)),
            "high": float(np.quantile(drawn[size], 0.95)),
            "deviation": float(drawn[size].std()),
        }
    for name, by_class in (("together", False), ("by_class", True)):
        some = [coverages(calibrated(rng, SIZES[-1], by_class=by_class)) for _ in range(500)]
        found[name] = dict(zip(("all", "easy", "hard"), np.mean(some, 0).tolist(), strict=True))
    return {"found": found, "drawn": drawn}


def draw_guarantee(found: dict[str, Any], drawn: dict[int, np.ndarray]) -> Figure:
    """The coverages of many calibrations, and those of the easy and the hard recordings."""
    figure = Figure((WIDTH / 72, 3.3), facecolor="white")
    halves: Any = figure.subfigures(1, 2, width_ratios=(1.5, 1))
    left, right = halves
    left.subplots_adjust(0.16, 0.16, 0.97, 0.88, hspace=0.12)
    edges = np.linspace(0.75, 1.0, 101)
    rows = left.subplots(len(drawn), 1, sharex=True)
    for ax, (size, values) in zip(rows, drawn.items(), strict=True):
        ax.hist(values, edges, color=ON)
        ax.axvline(COVERAGE, color=INK, lw=1.2, ls=(0, (3, 2)))
        ax.set(xlim=(0.75, 1.0), yticks=[])
        ax.set_ylabel(f"{size:,}", rotation=0, ha="right", va="center", color=INK)
        ax.tick_params(length=0)
    rows[0].set_title(
        "Calibrations on 50, 200 and 1,000 recordings", color=INK, loc="left", size=10
    )
    rows[-1].set_xlabel("share of all future sets that hold the true class")
    ax = right.subplots()
    right.subplots_adjust(0.04, 0.16, 0.97, 0.88)
    for offset, key, colour, name in (
        (-0.2, "together", OFF, "one threshold"),
        (0.2, "by_class", ON, "one for each class"),
    ):
        shares = list(found[key].values())
        bars = ax.bar(np.arange(3) + offset, shares, 0.36, color=colour, label=name)
        shown = [f"{100 * share:.0f} %" for share in shares]
        ax.bar_label(bars, shown, padding=2, size=8, color=SOFT)
    ax.axhline(COVERAGE, color=INK, lw=1.2, ls=(0, (3, 2)))
    ax.set(ylim=(0, 1.32), yticks=[], xticks=range(3), xticklabels=list(found["together"]))
    ax.tick_params(length=0)
    ax.legend(frameon=False, labelcolor=SOFT, loc="upper left", ncols=2, columnspacing=1.2)
    ax.set_title("Easy and hard classes", loc="left", color=INK, size=10)
    return figure


def save(figure: Figure, path: Path) -> None:
    """As a PNG of at most 256 colours."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=200)
    Image.open(drawn).convert("RGB").quantize(256).save(small, "PNG", optimize=True)
    write_atomic(path, small.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    docs = parser.parse_args().docs
    simulated = simulate()
    results.write(docs / "results" / "guarantee.json", simulated["found"])
    with style.context(["default", LOOK]):
        save(draw_time(), docs / "explanations" / "time.png")
        save(draw_guarantee(**simulated), docs / "explanations" / "guarantee.png")


if __name__ == "__main__":
    main()
