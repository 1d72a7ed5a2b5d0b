"""The one file that holds a packed network.

It is safetensors with a JSON header. Weights are one bit each (1 is +1), or as many as their
alphabet has planes, lowest bit of a byte first, in the order of the network's parameters: member,
plane, neuron, input. Reading a file runs no code,
and nothing in a file from outside is taken on trust: all that it asks for in total is checked
against one budget before any memory is taken. Only numpy and safetensors are needed here.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bisnn.alphabet import BINARY, Levels
from bisnn.bits import philox
from bisnn.files import afford, read_bytes, write_atomic
from bisnn.neuron import SRM, FixedSRM, Neuron
from bisnn.packed.columns import Schema
from bisnn.packed.network import (
    PackedLayer,
    PackedNetwork,
    PackedReadout,
    cost,
    draw,
    most_probable,
    spread,
)
from bisnn.spec import INPUT, KINDS, LayerSpec, Shape

VERSION = 4
MOST_NEURONS = 1 << 26  # of a layer, and the most of anything else that a header counts
MOST_MEMBERS = 1 << 14  # that a file has or suggests: drawing each takes time
_PLACES = ("kernel", "stride", "padding", "pool")  # of a convolution
_PLAIN = (  # of a network: what JSON holds as it is
    *("input_shape", "task", "classes", "burn_in", "encoding", "target_mean", "target_scale"),
    *("source", "members", "seed"),
)
GENERATOR = "philox4x32-10"  # named in the file: how members are drawn from a posterior


class BadFile(ValueError):
    """A file that holds no packed network that this version can read."""


class Unfit(ValueError):
    """A good file, but not what was asked of it."""


def write(network: PackedNetwork, path: str | Path) -> int:
    """Write one file, whole or not at all; its bytes. A posterior takes the members' place."""
    tensors: dict[str, np.ndarray] = {}
    for i, layer in enumerate(network.layers):
        there = np.ones((layer.neurons, layer.fan_in), bool) if layer.mask is None else layer.mask
        if layer.posterior is not None:
            tensors[f"{i}.posterior"] = layer.posterior[:, there].reshape(-1)
        else:
            tensors[f"{i}.weights"] = _bits(layer.bits()[..., there])
        tensors[f"{i}.scale"], tensors[f"{i}.constants"] = layer.scale, layer.constants
        if layer.mask is not None:
            tensors[f"{i}.mask"] = _bits(layer.mask)
    if network.readout is not None:
        tensors["readout"] = _bits(network.readout.V)
        tensors["readout.scale"] = np.array([network.readout.scale], np.float32)
    about = {name: getattr(network, name) for name in _PLAIN}
    about |= {
        "layers": [_about(layer) for layer in network.layers],
        "outputs": network.outputs,
        "schema": None if network.schema is None else network.schema.to_json(),
        "count": 0 if network.layers[0].posterior is not None else network.count,
        "generator": GENERATOR,
    }
    body = json.dumps(about, separators=(",", ":"))
    digest = _digest(body, tensors)
    header = {"kind": "packed", "version": VERSION, "network": body, "digest": digest}
    content = save(tensors, {"bisnn": json.dumps(header, separators=(",", ":"))})
    write_atomic(Path(path), content)
    return len(content)


def _about(layer: PackedLayer) -> dict[str, Any]:
    """A layer's description for the header: what is not the default."""
    names = ("kind", "inputs", "neurons", *(_PLACES if layer.kind == "conv" else ()))
    about: dict[str, Any] = {name: getattr(layer, name) for name in names}
    if layer.alphabet != BINARY:
        about["levels"] = layer.alphabet.levels
    about["neuron"] = layer.neuron.to_json()
    if layer.mask is not None:
        about["mask"] = True
    return about if layer.outputs is None else {**about, "outputs": layer.outputs}


def read(
    path: str | Path, members: int | Literal["map"] | None = None, seed: int | None = None
) -> PackedNetwork:
    """The network of a file.

    Args:
        path: as `write` wrote it; anything else raises `BadFile`.
        members: None for all that the file has (a posterior: as many draws as it suggests). A
            number takes the first so many, or draws so many from a posterior; "map" takes a
            posterior's most probable weights.
        seed: of those draws; by default the file's.
    """
    try:
        content = read_bytes(path)
    except OSError as error:
        raise BadFile(
            f"{path}: cannot be read: {error.strerror}; `bisnn export RUN --to packed` makes such "
            "a file"
        ) from None
    except ValueError as error:  # no regular file, or too large
        raise BadFile(str(error)) from None
    return parse(content, str(path), members, seed)


def parse(
    content: bytes, name: str, members: int | Literal["map"] | None = None, seed: int | None = None
) -> PackedNetwork:
    """As `read`, from the bytes of a file of this name."""
    if (
        members is not None
        and members != "map"
        and (isinstance(members, bool) or not isinstance(members, int) or members < 1)
    ):
        raise ValueError(
            f'members: must be a positive whole number or "map"; got {members!r}; leave it out for '
            "the usual"
        )
    if seed is not None and (
        isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < philox.SEEDS
    ):
        raise ValueError(
            f"seed: must be a whole number from 0 to 2^32 - 1; got {seed!r}; leave it out for the "
            "file's own"
        )
    try:
        header = json.loads(_metadata(content))
        tensors = load(content)
    except (
        SafetensorError,
        ValueError,
        RecursionError,
        KeyError,
        TypeError,
        MemoryError,
        AttributeError,
    ) as error:
        raise BadFile(f"{name}: is damaged or no safetensors file ({_short(error)})") from None
    if not isinstance(header, dict) or header.get("kind") != "packed":
        raise BadFile(
            f"{name}: holds no packed network; `bisnn export RUN --to packed` makes such a file"
        )
    if header.get("version") != VERSION:
        raise BadFile(
            f"{name}: was written in format {header.get('version')!r}, and this version reads "
            f"{VERSION}; export it again"
        )
    try:
        body = _text(header.get("network"), "its description", most=len(content))
        if header.get("digest") != _digest(body, tensors):
            raise BadFile("is damaged: its content does not match its digest; export it again")
        return _network(json.loads(body), tensors, members, seed)
    except (BadFile, Unfit) as error:
        raise type(error)(f"{name}: {error}") from None
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        OverflowError,
        AttributeError,
        IndexError,
    ) as error:
        raise BadFile(
            f"{name}: its header does not describe a network ({_short(error)}); export it again"
        ) from None


def _metadata(content: bytes) -> str:
    """Our entry of the safetensors header, which `safetensors.numpy.load` does not return."""
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= len(content) - 8:
        raise ValueError("its header is cut short")
    return json.loads(content[8 : 8 + length])["__metadata__"]["bisnn"]


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _require(good: bool, what: str) -> None:
    if not good:
        raise BadFile(what + "; export it again")


def _whole(value: Any, least: int, what: str, most: int = MOST_NEURONS) -> int:
    _require(
        isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
        f"{what} is {value!r:.50}",
    )
    return value


def _wholes(value: Any, count: int, least: int, what: str) -> tuple[int, ...]:
    _require(isinstance(value, list) and len(value) == count, f"{what} is {value!r:.50}")
    return tuple(_whole(n, least, what) for n in value)


def _text(value: Any, what: str, most: int = 1000) -> str:
    _require(isinstance(value, str) and len(value) <= most, f"{what} is {value!r:.50}")
    _require(
        not any("\ud800" <= character <= "\udfff" for character in value),
        f"{what} is no text: {value!r:.50}",
    )
    return value


class _Tensors:
    """The file's tensors; each is to be used by a layer."""

    def __init__(self, tensors: dict[str, np.ndarray]):
        self.left = dict(tensors)

    def take(self, name: str, dtype: Any, size: int) -> np.ndarray:
        found = self.left.pop(name, None)
        if found is None:
            raise BadFile(f"its tensor {name} is missing; export it again")
        _require(
            found.dtype == dtype and found.shape == (size,),
            f"its tensor {name} is {found.dtype} {found.shape}",
        )
        return found

    def bits(self, name: str, *shape: int) -> np.ndarray:
        return _unbits(self.take(name, np.uint8, -(-math.prod(shape) // 8)), shape)


def _network(
    about: Any, tensors: dict[str, np.ndarray], members: int | str | None, seed: int | None
) -> PackedNetwork:
    _require(
        isinstance(about, dict) and isinstance(about.get("layers"), list),
        "its header describes no layers",
    )
    _require(1 <= len(about["layers"]) <= 1000, f"it has {len(about['layers'])} layers")
    _require(
        about.get("generator") == GENERATOR,
        f"its members come from {about.get('generator')!r:.50}, which is unknown",
    )
    asked = _Members.of(about, members, _seed(about.get("seed")) if seed is None else seed)
    shape, outputs = _shape(about.get("input_shape"), "its input shape"), about.get("outputs")
    _whole(outputs, 0, "the number of outputs")
    plans, encoding = _plans(about, shape, asked.K, BadFile if members is None else Unfit)
    left = _Tensors(tensors)
    layers = tuple(
        _layer(i, spec, bool(of.get("mask")), left, asked)
        for i, (of, spec) in enumerate(zip(about["layers"], plans, strict=True))
    )
    readout = None
    if outputs:
        V = left.bits("readout", outputs, math.prod(layers[-1].output_shape))
        readout = PackedReadout(V, left.take("readout.scale", np.float32, 1)[0])
        _require(bool(np.isfinite(readout.scale)), f"its readout has the scale {readout.scale}")
    _require(not left.left, f"it has a tensor {next(iter(left.left), '')!r:.50} that nothing uses")
    classes = about.get("classes")
    _require(
        about.get("task") in ("classification", "regression"),
        f"its task is {about.get('task')!r:.50}",
    )
    _require(isinstance(classes, list), "its classes are no list")
    _require(not classes or outputs == len(classes), f"it names {len(classes)} classes")
    return PackedNetwork(
        layers,
        shape,
        readout,
        task=about["task"],
        classes=tuple(_text(name, "the name of a class") for name in classes),
        burn_in=_whole(about.get("burn_in"), 0, "the burn-in"),
        **_units(about, encoding),
        source=_text(about.get("source"), "the source"),
        members=asked.suggested,
        seed=asked.seed,
    )


class _Members(NamedTuple):
    """Which members a reader gets."""

    stored: int  # in the file; 0 for a posterior
    suggested: int  # that it suggests to draw
    wanted: int | str | None
    seed: int

    @classmethod
    def of(cls, about: Any, wanted: int | str | None, seed: int) -> _Members:
        count = _whole(about.get("count"), 0, "the number of members", MOST_MEMBERS)
        suggested = about.get("members")
        _whole(suggested, 0, "the suggested number of members", MOST_MEMBERS)
        if count and wanted == "map":
            raise Unfit(
                'members: "map" needs a file with a posterior, and this one has fixed weights; '
                "leave it out"
            )
        if count and isinstance(wanted, int) and wanted > count:
            raise Unfit(f"members: the file has {count}; got {wanted}; export more")
        return cls(count, suggested, wanted, seed)

    @property
    def K(self) -> int:
        """The most that memory must hold."""
        if self.stored or isinstance(self.wanted, int):
            return self.stored or int(self.wanted or 1)
        return 1 if self.wanted == "map" else self.suggested or 1

    def weights(self, i: int, layer: LayerSpec, left: _Tensors) -> tuple[np.ndarray, Any]:
        """Weights of layer i (K, synapses), and its posterior (levels - 1, synapses) or None."""
        alphabet = layer.alphabet or BINARY
        above = len(alphabet.levels) - 1
        if self.stored:
            some = self.wanted if isinstance(self.wanted, int) else self.stored
            bits = left.bits(f"{i}.weights", self.stored, alphabet.planes, layer.synapses)
            weights = alphabet.weights(np.moveaxis(bits[:some], 1, 0))
            _require(
                bool(np.isin(weights, alphabet.levels).all()),
                f"layer {i} has a weight that is none of its levels",
            )
            return weights, None
        posterior = left.take(f"{i}.posterior", np.uint8, above * layer.synapses)
        posterior = posterior.reshape(above, layer.synapses)
        _require(
            bool((posterior[1:] >= posterior[:-1]).all()), f"the posterior of layer {i} is no sum"
        )
        draws = self.wanted if self.wanted is not None else (self.suggested or "map")
        if draws == "map":
            return most_probable(posterior, alphabet)[None], posterior
        return draw(posterior, alphabet, int(draws), self.seed, i), posterior


def _layer(i: int, spec: LayerSpec, masked: bool, left: _Tensors, asked: _Members) -> PackedLayer:
    """Layer i with its tensors, each checked."""
    if masked:
        mask = left.bits(f"{i}.mask", spec.neurons, spec.fan_in)
        _require(bool(mask.any(1).all()), f"layer {i} has a neuron without parents")
        spec = replace(spec, mask=mask)
    weights, posterior = asked.weights(i, spec, left)
    scale = left.take(f"{i}.scale", np.float32, spec.neurons if masked else 1)
    constants = left.take(f"{i}.constants", np.float32, 4)
    _require(
        np.allclose(scale, spec.kappa, rtol=1e-6, atol=0),
        f"kappa of layer {i} is not that of its neurons: {scale[0]}",
    )
    _require(
        np.allclose(constants, spec.neuron.constants(), rtol=1e-6, atol=0),
        f"the constants of layer {i} are not its neuron's: {constants.tolist()}",
    )
    layer = PackedLayer(
        **spec.values(),
        weights=spread(weights, spec),
        scale=scale,
        constants=constants,
        posterior=None if posterior is None else spread(posterior, spec),
    )
    _ = layer.integers  # raises where traces could overflow
    return layer


def _plans(
    about: Any, shape: Shape, K: int, error: type[ValueError]
) -> tuple[list[LayerSpec], dict[str, Any]]:
    """The layers of K members without tensors, and the encoding; all within the budget."""
    plans: list[LayerSpec] = []
    for i, of in enumerate(about["layers"]):
        plans.append(_plan(i, of, [*(plan.output_shape for plan in plans), shape]))
    encoding = _encoding(about.get("encoding"), shape)
    steps = encoding.get("steps", 1)
    needed = sum(cost(plans, math.prod(shape), about["outputs"], K, steps))
    afford("its header", needed, f"a network of {K} members", error)
    return plans, encoding


def _shape(value: Any, what: str) -> Shape:
    _require(isinstance(value, list) and len(value) in (1, 3), f"{what} is {value!r:.50}")
    shape = _wholes(value, len(value), 1, what)
    _require(math.prod(shape) <= MOST_NEURONS, f"{what} is {value!r:.50}")
    return shape


def _plan(i: int, of: Any, shapes: list[Shape]) -> LayerSpec:
    """A layer's description, checked; `shapes` are those of earlier outputs and of the input."""
    _require(isinstance(of, dict) and of.get("kind") in KINDS, f"layer {i} is of no known kind")
    inputs = of.get("inputs")
    _require(
        isinstance(inputs, list) and 1 <= len(inputs) <= i + 1, f"layer {i} reads {inputs!r:.50}"
    )
    for n in inputs:
        _whole(n, INPUT, f"an input of layer {i}", i - 1)
    plan: dict[str, Any] = {"kind": of["kind"], "inputs": tuple(inputs)}
    plan["parts"] = tuple(shapes[n] for n in inputs)
    plan["neurons"] = _whole(of.get("neurons"), 1, f"the size of layer {i}")
    plan["neuron"] = _neuron(i, of.get("neuron"))
    levels = of.get("levels", list(BINARY.levels))
    _require(isinstance(levels, list), f"the levels of layer {i} are no list")
    plan["alphabet"] = Levels(*levels)
    if of["kind"] == "conv":
        _require(all(len(part) == 3 for part in plan["parts"]), f"layer {i} convolves no images")
        for name, least in (("kernel", 1), ("stride", 1), ("padding", 0)):
            plan[name] = _wholes(of.get(name), 2, least, f"the {name} of layer {i}")
        plan["pool"] = _whole(of.get("pool"), 1, f"the pooling of layer {i}")
    chosen = of.get("outputs")
    if chosen is not None:
        listed = isinstance(chosen, list) and len(chosen) > 0
        _require(of["kind"] == "recurrent" and listed, f"the outputs of layer {i} are no list")
        plan["outputs"] = _wholes(chosen, len(chosen), 0, f"an output of layer {i}")
        distinct = max(chosen) < plan["neurons"] and len(set(chosen)) == len(chosen)
        _require(distinct, f"the outputs of layer {i} are not distinct neurons")
    _require(
        of["kind"] == "recurrent" or not of.get("mask"),
        f"layer {i} has a mask and is not recurrent",
    )
    spec = LayerSpec(**plan)
    spec.check()
    sizes = (
        math.prod(shape) for shape in (spec.input_shape, spec.current_shape, spec.output_shape)
    )
    _require(all(0 < n <= MOST_NEURONS for n in sizes), f"layer {i} is too large or has no neurons")
    return spec


def _neuron(i: int, about: Any) -> Neuron:
    kinds = {neuron.kind: neuron for neuron in (SRM, FixedSRM)}
    _require(
        isinstance(about, dict) and about.get("kind") in kinds,
        f"the neurons of layer {i} are of no known kind",
    )
    return kinds[about["kind"]](**{k: value for k, value in about.items() if k != "kind"})


def _seed(value: Any) -> int:
    _require(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < philox.SEEDS,
        f"the seed is {value!r:.50}",
    )
    return value


def _encoding(about: Any, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """{}, or the encoding of features that `packed.encoding` reads, checked."""
    _require(isinstance(about, dict), "its encoding is no table")
    if not about:
        return {}
    known = {"code", "steps", "neurons", "width", "low", "high", "seed", "encodings"}
    _require(
        set(about) == known and about["code"] in ("population", "rate"),
        f"its encoding is {about!r:.100}",
    )
    _whole(about["steps"], 1, "the number of time steps")
    _whole(about["neurons"], 2, "the number of neurons a feature")
    _whole(about["encodings"], 1, "the number of encodings", MOST_MEMBERS)
    _seed(about["seed"])
    for name in ("low", "high"):
        _require(
            isinstance(about[name], list) and 1 <= len(about[name]) <= MOST_NEURONS,
            f"the encoding's {name} is no list",
        )
    numbers = [about["width"], *about["low"], *about["high"]]
    _require(
        all(
            isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)
            for v in numbers
        ),
        "its encoding holds what is no number",
    )
    fits = len(about["low"]) == len(about["high"]) and all(
        a < b for a, b in zip(about["low"], about["high"], strict=True)
    )
    size = len(about["low"]) * (about["neurons"] if about["code"] == "population" else 1)
    _require(
        fits and about["width"] > 0 and (size,) == input_shape,
        "its encoding does not fit its input",
    )
    return about


def _units(about: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    """From what a user has to spikes, and from logits to what a user wants."""
    schema = about.get("schema")
    _require(schema is None or bool(encoding), "it describes a table, and no encoding of features")
    if schema is not None:
        schema = Schema.from_json(schema, len(encoding["low"]))
    target: dict[str, Any] = {
        "target_mean": about.get("target_mean"),
        "target_scale": about.get("target_scale"),
    }
    for name, value in target.items():
        finite = (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
        _require(finite and (name == "target_mean" or value > 0), f"its {name} is {value!r:.50}")
    return {"encoding": encoding, "schema": schema, **target}


def _bits(x: np.ndarray) -> np.ndarray:
    return np.packbits(x.reshape(-1), bitorder="little")


def _unbits(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.unpackbits(x, count=math.prod(shape), bitorder="little").view(bool).reshape(shape)


def _digest(body: str, tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(body.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(
            f"{name} {tensors[name].dtype} {tensors[name].shape}".encode() + tensors[name].tobytes()
        )
    return digest.hexdigest()
