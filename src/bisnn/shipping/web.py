"""A packed network as a web page: one HTML file that runs it, offline, in a browser.

The page holds packed files and an engine of our own in JavaScript (the sources are in `page/`), and
loads nothing: its Content-Security-Policy forbids all but its own script and style, which it names
by their digests. When it is opened, it runs the examples that it brings and compares every time
step of every layer with fingerprints of what `bisnn.packed` gave.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

import bisnn
from bisnn.bits.philox import Purpose
from bisnn.files import read_bytes, write_atomic
from bisnn.neuron import SRM, FixedSRM
from bisnn.packed import encoding
from bisnn.packed.file import file_content
from bisnn.packed.network import PackedLayer, PackedNetwork
from bisnn.packed.network import words as words_of

__all__ = ["Content", "Example", "Sketchpad", "describe", "digits", "write"]

SCRIPTS = (  # in this order, as one script
    *("engine.js", "run.js", "camera.js", "charts.js"),
    *("state.js", "show.js", "input.js", "page.js"),
)
MOST_BYTES = 1 << 26  # of packed files in a page: browsers hold them as text, and as words
GENERATOR = f"bisnn {bisnn.__version__}: a page that runs a network"
_MARK = b'<meta name="generator" content="bisnn '


@dataclass(frozen=True)
class Example:
    """An input that a page brings: a recording, or the features of a point."""

    label: str  #: the true class or target
    x: np.ndarray | None = None  #: `(T, *input_shape)`, 0 and 1, of any length T
    features: tuple[float, ...] = ()  #: raw


@dataclass(frozen=True)
class Sketchpad:
    """How the page's simplified camera looks at a drawing: see `page/camera.js`."""

    path: tuple[tuple[float, float], ...]  #: of the drawing's centre, in pixels of the input
    frames: int  #: of the path in a time step
    scale: tuple[float, float]  #: pixels of the input for one of the image, along x and y
    threshold_on: float  #: rise of the log light that makes an ON event
    threshold_off: float  #: fall that makes an OFF event
    on: int  #: the channel of ON events
    follow: float = 1.0  #: share of the way to what is shown that the light goes in a frame
    dark: float = 0.03  #: light of a black pixel
    contrast: float = 3.0  #: light = clip(1/2 + contrast (grey - level), 0, 1)
    level: float = 0.5  #: the grey that is shown as half of the light
    grid: int = 20  #: a drawing is reduced to so many grey squares along its edge ...
    box: int = 20  #: ... and grown to so many pixels


@dataclass(frozen=True)
class Content:
    """What a page shows: packed files by the name of their predictor, and all else as JSON."""

    about: dict[str, Any] = field(repr=False)  #: title, examples, and what there is to draw on
    files: dict[str, bytes] = field(repr=False)  #: the first one answers

    def page(self) -> str:
        """The HTML."""
        networks = [
            {"name": name, "members": members, "packed": base64.b64encode(file).decode()}
            for (name, file), members in zip(self.files.items(), self.about["members"], strict=True)
        ]
        content = {**self.about, "version": bisnn.__version__, "networks": networks}
        data = json.dumps(content, separators=(",", ":"))
        style, script = _source("page.css"), "\n".join(map(_source, SCRIPTS))
        policy = {
            "default-src": "'none'",
            "script-src": _digest(script),
            "style-src": _digest(style),
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        return Template(_source("page.html")).substitute(
            policy="; ".join(f"{name} {value}" for name, value in policy.items()),
            generator=GENERATOR,
            title=html.escape(self.about["title"]),
            style=style,
            script=script,
            data=data.replace("<", "\\u003c"),  # no text in it ends the block
        )

    def save(self, folder: Path) -> None:
        """Keep it as files in `folder`, from which `load` has it again."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_atomic(folder / f"{name.replace(' ', '_')}.safetensors", content)
        about = json.dumps({**self.about, "files": list(self.files)}, separators=(",", ":"))
        write_atomic(folder / "about.json", about.encode() + b"\n")

    @classmethod
    def load(cls, folder: Path) -> Content:
        """From the `folder` that `save` wrote."""
        about = json.loads(read_bytes(folder / "about.json"))
        names = about.pop("files")
        files = [read_bytes(folder / f"{name.replace(' ', '_')}.safetensors") for name in names]
        return cls(about, dict(zip(names, files, strict=True)))


def digits() -> Content:
    """The digits' network that comes with the package; `bisnn_experiments.shipped_page` made it."""
    return Content.load(Path(str(resources.files("bisnn.shipping") / "digits")))


def describe(
    predictors: Mapping[str, PackedNetwork],
    examples: Sequence[Example],
    *,
    title: str,
    sketchpad: Sketchpad | None = None,
    plane: dict[str, Any] | None = None,
) -> Content:
    """The content of a page.

    Args:
        predictors: networks of one architecture, by name; the first one answers.
        examples: one or more inputs that the page brings, and is checked on.
        title: of the page.
        sketchpad: of images, to draw on.
        plane: of points, what there is to see behind the one that is dragged: the plane of two
            features, or the curve over one; see `bisnn.runs.web`.
    """
    network = next(iter(predictors.values()))
    for name, one in predictors.items():
        _check(name, one)
    files = {name: file_content(one) for name, one in predictors.items()}
    size = sum(map(len, files.values()))
    if size > MOST_BYTES:
        raise ValueError(
            f"network: a page holds at most {MOST_BYTES:,} bytes of packed weights; got {size:,}; "
            "use fewer members"
        )
    about: dict[str, Any] = {
        name: getattr(network, name)
        for name in (
            *("task", "classes", "input_shape", "outputs", "burn_in"),
            *("target_mean", "target_scale", "source"),
        )
    }
    assert network.readout is not None
    about |= {
        "title": title,
        "members": [one.count for one in predictors.values()],
        "weights": sum(layer.synapses for layer in network.layers),
        "bytes": sum(-(-layer.synapses * layer.alphabet.planes // 8) for layer in network.layers),
        "readout_scale": float(network.readout.scale),
        "layers": [_layer(layer) for layer in network.layers],
        "prices": _prices(network),
        "sets": network.sets and network.sets.to_json(),
        "encoding": _encoding(network.encoding),
        "columns": [asdict(column) for column in network.schema.columns] if network.schema else [],
        "examples": _examples(predictors, examples),
        "sketchpad": sketchpad and asdict(sketchpad),
        "plane": plane,
    }
    return Content(about, files)


def write(content: Content, path: str | Path) -> int:
    """Write the page of a `content` to `path`, whole or not at all; its size in bytes."""
    page = content.page().encode()
    write_atomic(Path(path), page)
    return len(page)


def check_target(path: Path) -> None:
    """A page may replace a page of ours and no other file, such as a report."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"out: must end in .html; got {str(path)!r}; give e.g. try.html")
    if path.is_dir():
        raise ValueError(f"out: {path} is a folder; give the name of a file, e.g. {path}/try.html")
    if not path.parent.is_dir():
        raise ValueError(f"out: there is no folder {path.parent}; make it first")
    if path.exists() and _MARK not in read_bytes(path)[:4096]:
        raise ValueError(
            f"out: {path} is there and is no page of a network, and would be lost; "
            "give another name"
        )


def _source(name: str) -> str:
    return (resources.files("bisnn.shipping") / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _check(name: str, network: PackedNetwork) -> None:
    """See that the engine in the page can run it."""
    if network.readout is None:
        raise ValueError(
            f"network: a page shows what a readout says, and the {name} has none; "
            "build it with readout=..."
        )
    if network.layers[0].posterior is not None:
        raise ValueError(
            "predictor: a page holds members, and 'posterior' draws them when it loads; "
            "use 'members'"
        )
    for i, layer in enumerate(network.layers):
        if type(layer.neuron) not in (SRM, FixedSRM):
            raise ValueError(
                "network: the page's engine knows the neurons SRM and FixedSRM; got "
                f"{type(layer.neuron).__name__} in layer {i}; train with one of these, or ship it "
                "packed"
            )


def _layer(layer: PackedLayer) -> dict[str, Any]:
    """What the engine must know of a layer beside its bits."""
    names = ("kind", "inputs", "parts", "neurons", "kernel", "stride", "padding", "pool", "outputs")
    shared, each = layer.step_constants()
    return {name: getattr(layer, name) for name in names} | {
        "current_shape": layer.current_shape,
        "output_shape": layer.output_shape,
        "fan_in": layer.fan_in,
        "planes": layer.alphabet.planes,
        "low": layer.alphabet.low,
        "gap": layer.alphabet.gap,
        "neuron": layer.neuron.kind,
        "shared": shared.tolist(),  # a float32 is a double, and JSON keeps those
        "each": each.tolist(),
    }


def _encoding(code: dict[str, Any]) -> dict[str, Any] | None:
    if not code:
        return None
    purposes = {"points": int(Purpose.POINTS), "encoding": int(Purpose.ENCODING)}
    more = {"cosine": encoding.COSINE, "farthest": encoding.FARTHEST, "purposes": purposes}
    return {**code, **more}


def _prices(network: PackedNetwork) -> dict[str, Any]:
    """Joules by the ledger's rules: of a member's time step without a spike, the first member's,
    which reads the input for all, and another's; and of a synaptic operation in each layer and in
    the readout.
    """
    from bisnn.shipping import energy

    inputs, n = math.prod(network.input_shape), math.prod(network.layers[-1].output_shape)
    work = []
    for layer in network.layers:
        leaving = layer.neurons if layer.kind == "recurrent" else math.prod(layer.output_shape)
        reached = energy.reach(layer)
        sizes = (layer.synapses, layer.alphabet.planes, int(reached.sum()), 0.0)
        neurons, values = math.prod(layer.current_shape), len(reached) + leaving
        work.append(energy.Work("", *sizes, neurons, values, 1, layer.neuron))
    readout = network.outputs * n
    work.append(energy.Work("readout", readout, 1, readout, 0.0, 0, n, 1))
    found = energy.prices(work)
    shared = [work[0]._replace(values=work[0].values - inputs), *work[1:]]
    idle = [sum(price for price, _ in some) for some in (found, energy.prices(shared))]
    return {"idle": idle, "operation": [each for _, each in found], "source": energy.SOURCE}


def _examples(
    predictors: Mapping[str, PackedNetwork], examples: Sequence[Example]
) -> list[dict[str, Any]]:
    """Inputs as the page has them, each with the fingerprints that its run must have."""
    code, found = next(iter(predictors.values())).encoding, []
    for example in examples:
        about: dict[str, Any] = {"label": example.label}
        if code:
            about["features"], point = example.features, np.array([example.features])
            trains = [encoding.spikes(code, point, e) for e in range(code["encodings"])]
        else:
            x = np.asarray(example.x, np.uint8)
            trains = [x[:, None]]
            about["bits"] = _base64(words_of(x.reshape(len(x), -1)))
        golden = [[_fingerprints(one, x) for one in predictors.values()] for x in trains]
        about["golden"] = _base64(np.array(golden))  # (E, P, T, parts)
        found.append(about)
    return found


def _base64(words: np.ndarray) -> str:
    return base64.b64encode(words.astype("<u4").tobytes()).decode()


def _fingerprints(network: PackedNetwork, x: np.ndarray) -> np.ndarray:
    """Of a recording x (T, 1, ...): input, every layer's spikes and logits, uint32 (T, parts)."""
    from bisnn.packed.engine import Engine

    result = Engine(network).run(x, spikes=True)
    assert result.logits is not None
    spikes = [s.reshape(*s.shape[:3], -1) for s in (x[None], *result.spikes)]
    parts = [*map(words_of, spikes), result.logits.view(np.uint32)]  # (K, T, 1, words)
    return np.stack([fingerprint(np.concatenate([*part], -1)) for part in parts], -1)[:, 0]


def fingerprint(words: np.ndarray) -> np.ndarray:
    """FNV-1a over the last axis, uint32 (..., n) -> (...).

    >>> fingerprint(np.array([[1, 2], [2, 1]], np.uint32))
    array([3983810698, 1551600396], dtype=uint32)
    """
    hashes = np.full(words.shape[:-1], 0x811C9DC5, np.uint32)
    for n in range(words.shape[-1]):
        hashes = (hashes ^ words[..., n]) * np.uint32(0x01000193)
    return hashes
