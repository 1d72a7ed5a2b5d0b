"""The moving picture of the README: a recording comes in, spikes follow, and the set of classes
shrinks until one is left and the network stops.

    python -m bisnn_experiments.moving_picture [--recording 151] [--out docs/decision.gif]

It shows the network of `bisnn try` on a test recording, time step by time step as the packed engine
runs it; between two steps, spikes fade and bars move to their next length. The recording is one of
the half that calibrated nothing, and was chosen because its set shrinks slowly enough to be seen:
most are decided sooner.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from bisnn.conformal import margins_of
from bisnn.data.camera import MNIST_DVS
from bisnn.data.loading import Clips
from bisnn.files import write_atomic
from bisnn.packed import Engine, PackedNetwork, file
from bisnn.reporting.charts.canvas import BLUE, CLASSES, ORANGE
from bisnn.runs import config
from bisnn.runs.inputs import load_dataset
from bisnn.shipping import web
from bisnn_experiments.shipped_page import halves

PREDICTOR = "ensemble of 10"
RECORDING = 151
WIDTH, HEIGHT = 700, 316  # in the units of all places below
SCALE = 2  # pixels in a unit, for screens that have them
BETWEEN = 3  # frames for each time step
COLOURS = 250  # of the 256 of a GIF
FRAME_MS, START_MS, END_MS = 100, 400, 1900
# The page's colours (shipping/page/page.css), light
INK, SOFT, LINE, BACK, OUT = "#18212c", "#5a6675", "#e2e7ec", "#f4f6f8", "#b4bcc6"
GREEN = CLASSES[2]
LEFT, ROW = 452, 20.0  # of the classes: where their cells begin, and the height of each
CELL, BAR = 7.0, 78.0  # the width of a time step's cell, and of a probability of 1


@dataclass(frozen=True)
class Moment:
    """What there is to see of one time step."""

    step: int  # from 1 on
    events: np.ndarray  # uint8 (2, H, W): of polarity p = 0, and of p = 1
    spikes: tuple[np.ndarray, ...]  # of each layer's neurons, the share of the members that fire
    probabilities: np.ndarray  # (C,) over the steps after the burn-in; until then, of this one
    inside: np.ndarray  # bool (C,): the set; every class before the first look
    looked: bool  # whether this step has a set of its own
    decided: bool


def recording(number: int) -> np.ndarray:
    """A test recording that calibrated nothing, uint8 (T, *input_shape)."""
    shown = halves(load_dataset(config.load("digits_bayes")).test)[1].x
    assert isinstance(shown, Clips)
    return shown[number : number + 1].spikes().numpy()[:, 0]


def shipped() -> PackedNetwork:
    """The network of `bisnn try`."""
    return file.parse(web.digits().files[PREDICTOR], PREDICTOR)


def moments(network: PackedNetwork, x: np.ndarray) -> Iterator[Moment]:
    """Run a recording (T, *input_shape) step by step, until its set is small enough."""
    rule, readout, engine = network.sets, network.readout, Engine(network)
    assert rule is not None
    assert readout is not None
    state = engine.start(1)
    sums = np.zeros((network.count, network.outputs), np.int64)
    inside = np.ones(network.outputs, bool)
    each: list[np.ndarray] = []
    for step, events in enumerate(x, 1):
        result = engine.run(events[None, None], state, spikes=True)
        assert result.logits is not None
        assert result.state is not None
        state, logits = result.state, result.logits[:, 0, 0]
        sums += np.rint(logits / readout.scale).astype(np.int64)  # exact integers
        p = np.exp(logits - logits.max(-1, keepdims=True))
        each.append((p / p.sum(-1, keepdims=True)).mean(0))
        looks = [(look, k) for look, (t, k) in enumerate(rule.path) if t == step]
        for look, k in looks:
            inside = rule.at(look, margins_of(sums[:k].sum(0))[None])[0]
        decided = bool(looks) and int(inside.sum()) <= rule.most
        spikes = tuple(s[:, 0, 0].mean(0) for s in result.spikes)
        seen = each[min(step - 1, network.burn_in) :]
        yield Moment(step, events, spikes, np.mean(seen, 0), inside, bool(looks), decided)
        if decided:
            return


# Drawing


def frames(story: list[Moment], steps: int) -> Iterator[Image.Image]:
    """The pictures, `BETWEEN` for each moment, and one before the first."""
    blank = np.zeros(len(story[0].inside))
    yield draw([], blank, steps, 0.0)
    before = blank
    for n, moment in enumerate(story, 1):
        for part in range(1, BETWEEN + 1):
            share = part / BETWEEN
            shown = before + share * (moment.probabilities - before)
            yield draw(story[:n], shown, steps, share)
        before = moment.probabilities


def draw(seen: list[Moment], probabilities: np.ndarray, steps: int, share: float) -> Image.Image:
    """What was seen so far, with the last moment as far along as `share` says."""
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "font.size": 8.5}):
        figure = Figure((WIDTH / 100, HEIGHT / 100), dpi=100 * SCALE, facecolor="white")
        page = figure.add_axes((0, 0, 1, 1))
        page.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
        page.set_axis_off()
        _draw_events(figure, page, seen, share)
        _draw_spikes(figure, page, seen, share)
        _draw_classes(page, seen, probabilities, steps)
        _draw_time(page, seen, steps, share)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def _heading(page: Axes, x: float, text: str) -> None:
    page.text(x, 22, text, color=INK, weight="bold", va="baseline")


def _picture(figure: Figure, place: tuple[float, float, float, float], image: np.ndarray) -> None:
    """An RGB image at left, top, width, height."""
    left, top, width, height = place
    bottom = HEIGHT - top - height
    ax = figure.add_axes((left / WIDTH, bottom / HEIGHT, width / WIDTH, height / HEIGHT))
    ax.imshow(image, aspect="auto", interpolation="nearest")
    ax.set_axis_off()


def _mixed(ground: np.ndarray, colour: tuple[int, ...], opacity: np.ndarray) -> np.ndarray:
    """An image (..., 3) of bytes under a colour of this opacity (...)."""
    mixed = ground + opacity[..., None] * (np.array(colour) - ground)
    return np.rint(mixed).astype(np.uint8)


def _ground(colour: str, *shape: int) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.uint8)
    return np.broadcast_to(rgb, (*shape, 3))


def _draw_events(figure: Figure, page: Axes, seen: list[Moment], share: float) -> None:
    """The last moment's events, and those before it as they fade."""
    _heading(page, 16, "event camera")
    shape = seen[0].events.shape[1:] if seen else (1, 1)
    image = _ground(BACK, *shape)
    for age, moment in reversed(list(enumerate(reversed(seen[-4:])))):
        light = 0.45 ** (age + (share if age else 0))
        for on, colour in ((False, ORANGE), (True, BLUE)):
            image = _mixed(image, colour, light * moment.events[int(on == MNIST_DVS.on)])
    _picture(figure, (16, 34, 196, 196), image)
    for left, colour, text in ((16, BLUE, "brighter"), (92, ORANGE, "darker")):
        _box(page, left, 240, 8, 8, _hex(colour))
        page.text(left + 13, 248, text, color=SOFT)


def _draw_spikes(figure: Figure, page: Axes, seen: list[Moment], share: float) -> None:
    """Neurons of both layers: the more members fire, the greener."""
    _heading(page, 234, "spikes")
    maps, dense = seen[-1].spikes if seen else (np.zeros((24, 9, 9)), np.zeros(256))
    light = 1 - 0.6 * (share - 1 / BETWEEN) if seen else 0
    tiles = np.full((4, 10, 6, 10), np.nan)  # maps of 9 x 9 with a line between them
    tiles[:, :9, :, :9] = maps.reshape(4, 6, 9, 9).transpose(0, 2, 1, 3)
    for place, neurons in (
        ((234, 34, 180, 120), tiles.reshape(40, 60)),
        ((234, 186, 177, 44.25), dense.reshape(8, 32)),
    ):
        gap = np.isnan(neurons)
        level = np.where(neurons > 0, 0.2 + 0.8 * neurons, 0) * light
        image = np.where(gap[..., None], 255, _ground(LINE, *neurons.shape)).astype(np.uint8)
        _picture(figure, place, _mixed(image, GREEN, np.where(gap, 0, level)))
    page.text(234, 168, f"layer 1: {len(maps)} maps of neurons", color=SOFT)
    page.text(234, 248, f"layer 2: {len(dense)} neurons", color=SOFT)


def _draw_classes(page: Axes, seen: list[Moment], probabilities: np.ndarray, steps: int) -> None:
    """Which classes are in the set at each time step, and how probable each is."""
    right = LEFT + steps * CELL + 12
    _heading(page, LEFT, "set of classes")
    _heading(page, right, "probability")
    last = seen[-1].inside if seen else np.ones(len(probabilities), bool)
    done = bool(seen) and seen[-1].decided
    for c, p in enumerate(probabilities):
        top = 34 + c * ROW
        colour = INK if last[c] else OUT
        strong = "bold" if done and last[c] else "normal"
        style: dict[str, Any] = {
            "color": colour,
            "weight": strong,
            "size": 10,
            "ha": "center",
            "va": "center",
        }
        page.text(LEFT - 13, top + ROW / 2, str(c), **style)
        for n in range(steps):
            fill = "#f7f8fa"
            if n < len(seen) and seen[n].inside[c]:
                fill = _hex(BLUE) if seen[n].looked else "#cfdde9"
                fill = _hex(GREEN) if seen[n].decided else fill
            _box(page, LEFT + n * CELL, top + 2, CELL - 1, ROW - 4, fill)
        fill = _hex(GREEN if done else BLUE) if last[c] else OUT
        _box(page, right, top + 5, BAR, ROW - 10, BACK)
        _box(page, right, top + 5, BAR * p, ROW - 10, fill)


def _draw_time(page: Axes, seen: list[Moment], steps: int, share: float) -> None:
    """How far the recording is, and what the network says."""
    done = bool(seen) and seen[-1].decided
    at = len(seen) - 1 + share if seen else 0.0
    _box(page, 16, 276, WIDTH - 32, 5, LINE)
    _box(page, 16, 276, (WIDTH - 32) * at / steps, 5, _hex(GREEN) if done else INK)
    page.text(16, 303, f"time step {len(seen)} of {steps}", color=SOFT)
    if not seen or not seen[-1].looked:
        return
    classes = ", ".join(str(c) for c in np.flatnonzero(seen[-1].inside))
    text = f"{classes}: decided, the rest is not needed" if done else f"could be {classes}"
    style: dict[str, Any] = {"color": _hex(GREEN), "weight": "bold"} if done else {"color": INK}
    page.text(WIDTH - 16, 303, text, ha="right", **style)


def _box(page: Axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    page.fill([x, x + width, x + width, x], [y, y, y + height, y + height], color=colour, lw=0)


def _hex(colour: tuple[int, ...]) -> str:
    return "#" + bytes(colour).hex()


def animation(pictures: list[Image.Image]) -> bytes:
    """A GIF that loops, with the most frequent colours of all its frames."""
    coded = [np.asarray(one) @ np.array([1 << 16, 1 << 8, 1]) for one in pictures]
    codes, counts = np.unique(np.stack(coded), return_counts=True)
    frequent = np.sort(codes[np.argsort(-counts, kind="stable")[:COLOURS]])
    colours = _parts(frequent)
    some = []
    for one in coded:
        here, places = np.unique(one, return_inverse=True)
        distances = np.square(_parts(here)[:, None] - colours).sum(-1)
        some.append(Image.fromarray(distances.argmin(1).astype(np.uint8)[places], "P"))
        some[-1].putpalette(colours.astype(np.uint8).tobytes())
    times = [START_MS, *[FRAME_MS] * (len(some) - 2), END_MS]
    buffer = io.BytesIO()
    some[0].save(
        buffer, "GIF", save_all=True, append_images=some[1:], duration=times, loop=0, optimize=True
    )
    return buffer.getvalue()


def _parts(codes: np.ndarray) -> np.ndarray:
    """Red, green and blue of colours, (n, 3)."""
    return np.stack([codes >> 16, codes >> 8, codes], 1) & 255


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recording", type=int, default=RECORDING)
    parser.add_argument("--out", type=Path, default=Path("docs/decision.gif"))
    options = parser.parse_args()
    x = recording(options.recording)
    story = list(moments(shipped(), x))
    picture = animation(list(frames(story, len(x))))
    write_atomic(options.out, picture)
    print(f"{options.out}: {len(story)} of {len(x)} time steps, {len(picture):,} bytes")


if __name__ == "__main__":
    main()
