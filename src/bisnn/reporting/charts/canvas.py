"""What all charts of a report share: their look, their margins, and the way from a figure to inline
SVG.

They are drawn in stand-in colours that become CSS variables of the page, so that they follow its
light or dark theme. No text from a file goes into a drawing: titles, captions and alternative texts
are the page's to escape.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, NullLocator, ScalarFormatter

from bisnn.runs.config import Config
from bisnn.runs.microcontrollers import Microcontrollers
from bisnn.runs.results import Evaluation
from bisnn.runs.robustness import Robustness

WIDTH = 340  # of a chart, in points
# Margins around the axes, and between those above each other
LEFT = 52
RIGHT = 12
TOP = 24
BOTTOM = 46
GAP = 27
SIDE = WIDTH - LEFT - RIGHT  # of the axes, and of a square plot

TITLES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "nll": "NLL",
    "brier": "Brier",
    "calibration_error": "Calibration error",
    "rmse": "RMSE",
    "mae": "MAE",
}

# Stand-in colours and the CSS variables they become.
SOFT, LINE, BACK = "#010101", "#010102", "#010103"
SERIES = ["#020201", "#020202", "#020203", "#020204", "#020205", "#020206"]
VARIABLES = {SOFT: "--soft", LINE: "--line", BACK: "--card"} | {
    colour: f"--s{i}" for i, colour in enumerate(SERIES, 1)
}
# An image cannot follow the theme: colours of contrast 4 on both backgrounds, which the
# colour-blind can tell apart.
BLUE, ORANGE = (47, 127, 193), (205, 95, 10)
# Near the series' colours
CLASSES = [
    BLUE,
    ORANGE,
    (0, 145, 106),
    (176, 80, 138),
    (168, 120, 0),
    (107, 114, 128),
]
FAINT = 0.3  # opacity of the least that is drawn in a picture
LOOK: dict[str, Any] = {
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), SOFT
    ),
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
    judged: Evaluation  # as `load_evaluation` gives it
    chips: Microcontrollers | None = None  # what its C code takes on them, if that was measured
    corruptions: Robustness | None = None  # of this model, where it was judged under them

    @property
    def things(self) -> str:
        """What was judged."""
        return "recordings" if self.config.recorded else "points"


@dataclass(frozen=True)
class Chart:
    title: str
    caption: str  # one sentence: what to see
    drawing: str  # SVG with "@" before its ids
    legend: tuple[str, ...] = ()  # names of the series, in the order of their colours
    alt: str = ""  # what there is to see, in words; without it the title has to do
    smooth: bool = False  # images are scaled with care for even rows, not for sharp pixels

    def svg(self, number: int) -> Markup:
        """Inline SVG with ids that no other chart of the page has."""
        return Markup(self.drawing.replace("@", f"c{number}-"))


@dataclass(frozen=True)
class Table:
    """Rows of text below a head; of a matrix, with each cell's shade, below 0 where wrong."""

    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # the first cell names the row
    shades: tuple[tuple[float, ...], ...] = ()  # of all cells but the first


Part = Chart | Table | str  # a sentence stands where there is nothing to draw


# Drawing


def plot(*heights: float) -> tuple[Figure, list[Axes]]:
    """Axes of these heights, in points, above each other on a common x, with equal margins."""
    heights = heights or (145,)
    whole = TOP + sum(heights) + GAP * (len(heights) - 1) + BOTTOM
    figure = Figure(figsize=(WIDTH / 72, whole / 72), dpi=72)
    figure.subplots_adjust(LEFT / WIDTH, BOTTOM / whole, 1 - RIGHT / WIDTH, 1 - TOP / whole)
    figure.subplots_adjust(hspace=GAP * len(heights) / sum(heights))  # in mean heights of the axes
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    return figure, list(axes[:, 0])


class Short(Formatter):
    """Tick labels with the decimals that tell them apart, and a prefix from 10,000 on: 250k."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        most = max(map(abs, values), default=0.0)
        if most and not 1e-4 <= most < 1e15:
            return [f"{value:g}" for value in values]
        power = min(int(math.log10(most) / 3), 4) if most >= 1e4 else 0
        scaled = [value / 1000.0**power for value in values]
        step = (
            min((abs(b - a) for a, b in itertools.pairwise(scaled)), default=0.0)
            or most / 1000.0**power
        )
        exact = lambda decimals: all(abs(round(v, decimals) - v) <= 1e-3 * step for v in scaled)  # noqa: E731
        decimals = next(filter(exact, range(8)), 8)
        prefix = ("", "k", "M", "G", "T")[power]
        return [
            f"{value:.{decimals}f}{prefix if value else ''}".replace("-", "\N{MINUS SIGN}")
            for value in scaled
        ]


def fit(figure: Figure) -> None:
    """Widen the margins of a plot whose tick labels would be cut off."""
    axes = figure.axes
    for axis in (axis for ax in axes for axis in (ax.xaxis, ax.yaxis)):
        if type(axis.get_major_formatter()) is ScalarFormatter:
            axis.set_major_formatter(Short())
    renderer = FigureCanvasAgg(figure).get_renderer()
    for ax in axes:
        ax.apply_aspect()
    boxes = [
        box
        for ax in axes
        for axis in (ax.xaxis, ax.yaxis)
        if (box := axis.get_tightbbox(renderer)) is not None
    ]
    over_left = max([0.0, *(1 - box.x0 for box in boxes)])
    over_right = max([0.0, *(box.x1 - (WIDTH - 1) for box in boxes)])
    if over_left or over_right:
        figure.subplots_adjust(
            left=(LEFT + over_left) / WIDTH, right=1 - (RIGHT + over_right) / WIDTH
        )


def gallery(groups: dict[str, list[tuple[str, np.ndarray]]], columns: int) -> Figure:
    """RGBA images under their names, in rows of `columns`, grouped by headings (may be empty)."""
    gap, line = 10.0, 20.0  # between columns; for a line of text
    edge = (WIDTH - 2 - gap * (columns - 1)) / columns  # a point at each side for the frame
    places, headings, top = [], [], 0.0  # in points, from the top
    for heading, images in groups.items():
        if heading:
            headings.append((heading, top + line / 2))
            top += line
        for k, (name, image) in enumerate(images):
            # A single row of pixels shows, too
            height = edge * min(max(image.shape[0] / image.shape[1], 0.15), 2)
            places.append((name, image, 1 + k % columns * (edge + gap), top + line, height))
            if k % columns == columns - 1 or k == len(images) - 1:
                top += line + height + 4
        top += gap
    whole = top - gap
    figure = Figure(figsize=(WIDTH / 72, whole / 72), dpi=72)
    for heading, at in headings:
        figure.text(0, 1 - at / whole, heading, va="center")
    for name, image, left, at, height in places:
        ax = figure.add_axes(
            (left / WIDTH, 1 - (at + height) / whole, edge / WIDTH, height / whole)
        )
        ax.imshow(image, aspect="auto", interpolation="none")
        ax.set_title(name, pad=4)
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(True)
    return figure


def shaded(counts: np.ndarray, most: float, colour: np.ndarray | tuple[int, ...]) -> np.ndarray:
    """An RGBA image: counts (H, W) as opacity, full from `most` on, of one colour or many."""
    image = np.empty((*counts.shape, 4), np.uint8)
    image[..., :3] = np.round(colour)
    image[..., 3] = np.round(
        255 * np.where(counts > 0, FAINT + (1 - FAINT) * np.minimum(counts / max(most, 1), 1), 0)
    )
    return image


def log_if_wide(ax: Axes) -> None:
    """A log axis where the values span more than a factor of 20; the title then says so."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() / values.min() > 20:
        ax.set_yscale("log")
        ax.set_title(f"{ax.get_title('left')}, log scale")
        plain_numbers(ax)


def plain_numbers(ax: Axes) -> None:
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def dashed(ax: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """A thin line to compare with."""
    ax.plot(x, y, color=SOFT, lw=1, ls=(0, (3, 3)))


def decimals(value: float) -> str:
    """Three digits of a number in a sentence.

    >>> decimals(0.04567), decimals(123456.0)
    ('0.0457', '123,000')
    """
    return f"{float(f'{value:.3g}'):,.6g}" if abs(value) < 1e6 else f"{value:.3g}"


def chart(
    title: str,
    caption: str,
    figure: Figure,
    legend: Sequence[str] = (),
    alt: str = "",
    smooth: bool = False,
) -> Chart:
    """A chart from a figure of `plot`, whose labels it makes room for."""
    fit(figure)
    return Chart(title, caption, svg(figure), tuple(legend), alt, smooth)


def svg(figure: Figure) -> str:
    """The figure as inline SVG: colours as CSS variables, no fonts, few ids, two decimals."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>| xmlns:\w+=\"[^\"]*\"",
        "",
        text,
        flags=re.S,
    )
    text = re.sub(
        r"<svg[^>]*viewBox=(\"[^\"]*\")[^>]*>", r"<svg viewBox=\1 aria-hidden=\"true\">", text
    ).replace("xlink:href", "href")
    text = re.sub(
        r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: var({VARIABLES[m[2]]})", text
    )
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    text = re.sub(
        r" d=\"[^\"]*\"", lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0].replace("\n", "")), text
    )
    used = dict.fromkeys(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text))
    names = {name: f"@{i}" for i, name in enumerate(used)}
    text = re.sub(
        r" id=\"([^\"]*)\"", lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", text
    )
    text = re.sub(r"(url\(|href=\")#([^)\"]+)", lambda m: f"{m[1]}#{names[m[2]]}", text)
    return re.sub(r"\s*\n\s*", "\n", text)
