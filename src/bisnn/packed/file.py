"""A trained network as what it is: bits. Its description in memory, and the one file that holds it.

The file is safetensors with a JSON header. Weights are one bit each (1 is +1), lowest bit of a byte
first, in the order of the network's parameters: member, neuron, input. Reading a file runs no code,
and nothing in a file from outside is taken on trust: all that it asks for in total is checked
against one budget before any memory is taken. Only numpy and safetensors are needed here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.files import afford, read_bytes, write_atomic
from bisnn.packed.columns import Schema

VERSION = 3
KINDS = ("dense", "conv", "recurrent")
MOST_NEURONS = 1 << 26  # of a layer, and the most of anything else that a header counts
MOST_MEMBERS = 1 << 14  # that a file has or suggests: drawing each takes time
GENERATOR = "philox4x32-10"  # named in the file: how members are drawn from a posterior


class BadFile(ValueError):
    """A file that holds no packed network that this version can read."""


class Unfit(ValueError):
    """A good file, but not what was asked of it."""


@dataclass(frozen=True)
class Readout:
    """logits = scale V s."""

    V: np.ndarray  # bool (outputs, n), True is +1; n in the order of the layer's output, flattened
    scale: np.float32


@dataclass(frozen=True)
class Layer:
    """A layer of K networks that differ in their weights alone."""

    kind: str  # "dense", "conv", "recurrent"
    input_shape: tuple[int, ...]  # (N,) or (C, H, W); dense and recurrent layers flatten it
    neurons: int  # or output channels
    # Bool (K, neurons, inputs), True is +1; inputs: N, or C k0 k1, or N and then the layer's own
    # neurons
    weights: np.ndarray
    kappa: np.ndarray  # float32 (1,), or (neurons,) where neurons differ in their number of parents
    constants: np.ndarray  # float32 (4,): a_m, a_s, a_r, theta
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    pool: int = 1
    mask: np.ndarray | None = (
        None  # bool (neurons, inputs) of a recurrent layer: the synapses that exist
    )
    outputs: tuple[int, ...] | None = (
        None  # of a recurrent layer: the neurons whose spikes leave it
    )
    readout: Readout | None = None
    posterior: np.ndarray | None = None  # uint8, as the weights without K: p = value / 255

    @property
    def inputs(self) -> int:
        """Parents of a neuron, existing or not."""
        n = math.prod(self.input_shape)
        if self.kind == "conv":
            return self.input_shape[0] * math.prod(self.kernel)
        return n + self.neurons if self.kind == "recurrent" else n

    @property
    def current_shape(self) -> tuple[int, ...]:
        """Of the neurons: (N,) or (C, H, W)."""
        if self.kind != "conv":
            return (self.neurons,)
        sizes = zip(self.input_shape[1:], self.kernel, self.stride, self.padding, strict=True)
        return (self.neurons, *((n + 2 * p - k) // s + 1 for n, k, s, p in sizes))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of what leaves the layer."""
        if self.kind == "conv":
            channels, height, width = self.current_shape
            return (channels, height // self.pool, width // self.pool)
        return (self.neurons,) if self.outputs is None else (len(self.outputs),)

    @property
    def synapses(self) -> int:
        """Weights of one member."""
        return self.neurons * self.inputs if self.mask is None else int(self.mask.sum())


@dataclass(frozen=True)
class Network:
    """K members of a network, and what it takes to use them."""

    layers: tuple[Layer, ...]
    task: str = "classification"  # or "regression"
    classes: tuple[str, ...] = ()  # names
    burn_in: int = 0  # first time steps that a prediction leaves out
    readouts: int = (
        1  # how many of the last layers speak: a prediction comes from the mean of their readouts
    )
    encoding: dict[str, Any] = field(
        default_factory=dict
    )  # from features to spikes; empty where spikes come in
    schema: Schema | None = None  # of a table: from its columns to features
    target_mean: float = (
        0.0  # regression: a prediction is the mean of the logits, times the scale, plus the mean
    )
    target_scale: float = 1.0
    source: str = ""  # digest of the model file it was made from
    members: int = 0  # that the file suggests to draw from its posterior
    seed: int = 0  # for drawing them

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.layers[0].input_shape

    @property
    def count(self) -> int:
        """K."""
        return len(self.layers[0].weights)

    @property
    def outputs(self) -> int:
        """Of its readouts; 0 where there are none, and the last spikes are the output."""
        last = self.layers[-1].readout
        return 0 if last is None else len(last.V)

    @property
    def speaking(self) -> list[tuple[int, Layer, Readout]]:
        """The layers that speak, from the lowest on, with their numbers and readouts."""
        last = list(enumerate(self.layers))[-self.readouts :]
        return [(i, layer, layer.readout) for i, layer in last if layer.readout is not None]


def write(network: Network, path: str | Path) -> int:
    """One file, whole or not at all; returns its bytes. Where layers have a posterior, it goes in,
    and not the members.
    """
    tensors: dict[str, np.ndarray] = {}
    layers = []
    for i, layer in enumerate(network.layers):
        about = {
            name: getattr(layer, name) for name in ("kind", "input_shape", "neurons", "outputs")
        }
        if layer.kind == "conv":
            about |= {
                name: getattr(layer, name) for name in ("kernel", "stride", "padding", "pool")
            }
        there = np.ones((layer.neurons, layer.inputs), bool) if layer.mask is None else layer.mask
        if layer.posterior is not None:
            tensors[f"{i}.posterior"] = np.ascontiguousarray(layer.posterior[there])
        else:
            tensors[f"{i}.weights"] = _bits(layer.weights[:, there])
        tensors[f"{i}.kappa"], tensors[f"{i}.constants"] = layer.kappa, layer.constants
        if layer.mask is not None:
            about["mask"] = True
            tensors[f"{i}.mask"] = _bits(layer.mask)
        if layer.readout is not None:
            about["readout"] = len(layer.readout.V)
            tensors[f"{i}.readout"] = _bits(layer.readout.V)
            tensors[f"{i}.scale"] = np.array([layer.readout.scale], np.float32)
        layers.append({name: value for name, value in about.items() if value is not None})
    names = (
        "task",
        "classes",
        "burn_in",
        "readouts",
        "encoding",
        "target_mean",
        "target_scale",
        "source",
        "members",
        "seed",
    )
    about = {name: getattr(network, name) for name in names}
    about["schema"] = None if network.schema is None else network.schema.to_json()
    about |= {
        "layers": layers,
        "count": 0 if network.layers[0].posterior is not None else network.count,
        "generator": GENERATOR,
    }
    body = json.dumps(about, separators=(",", ":"))
    header = {
        "kind": "packed",
        "version": VERSION,
        "network": body,
        "digest": _digest(body, tensors),
    }
    content = save(tensors, {"bisnn": json.dumps(header, separators=(",", ":"))})
    write_atomic(Path(path), content)
    return len(content)


def read(
    path: str | Path, members: int | Literal["map"] | None = None, seed: int | None = None
) -> Network:
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
            f"{path}: cannot be read: {error.strerror}; `bisnn export RUN --to packed` makes such a file"
        ) from None
    except ValueError as error:  # no regular file, or too large
        raise BadFile(str(error)) from None
    return parse(content, str(path), members, seed)


def parse(
    content: bytes, name: str, members: int | Literal["map"] | None = None, seed: int | None = None
) -> Network:
    """As `read`, from the bytes of a file of this name."""
    if (
        members is not None
        and members != "map"
        and (isinstance(members, bool) or not isinstance(members, int) or members < 1)
    ):
        raise ValueError(
            f'members: must be a positive whole number or "map"; got {members!r}; leave it out for the usual'
        )
    if seed is not None and (
        isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < philox.SEEDS
    ):
        raise ValueError(
            f"seed: must be a whole number from 0 to 2^32 - 1; got {seed!r}; leave it out for the file's own"
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
            f"{name}: was written in format {header.get('version')!r}, and this version reads {VERSION}; export it again"
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
    """Our entry of the safetensors header, which `safetensors.numpy.load` checks but does not
    return.
    """
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
) -> Network:
    _require(
        isinstance(about, dict) and isinstance(about.get("layers"), list),
        "its header describes no layers",
    )
    _require(1 <= len(about["layers"]) <= 1000, f"it has {len(about['layers'])} layers")
    _require(
        about.get("generator") == GENERATOR,
        f"its members come from {about.get('generator')!r:.50}, which is unknown",
    )
    count = _whole(about.get("count"), 0, "the number of members", MOST_MEMBERS)
    suggested = _whole(about.get("members"), 0, "the suggested number of members", MOST_MEMBERS)
    seed = _seed(about.get("seed")) if seed is None else seed
    if count and members == "map":
        raise Unfit(
            'members: "map" needs a file with a posterior, and this one has fixed weights; leave it out'
        )
    if count and isinstance(members, int) and members > count:
        raise Unfit(f"members: the file has {count}; got {members}; export more")
    K = count or (
        members if isinstance(members, int) else 1 if members == "map" else suggested or 1
    )
    plans, encoding = _plans(about, K, BadFile if members is None else Unfit)
    left, layers = _Tensors(tensors), []
    for i, (of, layer) in enumerate(zip(about["layers"], plans, strict=True)):
        if of.get("mask"):
            layer = replace(layer, mask=left.bits(f"{i}.mask", layer.neurons, layer.inputs))
            _require(bool(layer.mask.any(1).all()), f"layer {i} has a neuron without parents")  # type: ignore[union-attr]
        posterior = None
        if count:
            weights = left.bits(f"{i}.weights", count, layer.synapses)[
                : members if isinstance(members, int) else count
            ]
        else:
            posterior = left.take(f"{i}.posterior", np.uint8, layer.synapses)
            draws = members if members is not None else (suggested or "map")
            weights = (
                posterior[None] >= 128 if draws == "map" else draw(posterior, int(draws), seed, i)
            )
            posterior = _spread(posterior[None], layer)[0]
        kappa = left.take(f"{i}.kappa", np.float32, layer.neurons if of.get("mask") else 1)
        constants = left.take(f"{i}.constants", np.float32, 4)
        _require(
            bool((kappa > 0).all() and (kappa <= 1).all()), f"kappa of layer {i} is not in (0, 1]"
        )
        sound = (
            np.isfinite(constants).all()
            and (constants[:3] >= 0).all()
            and (constants[:3] < 1).all()
            and constants[3] > 0
        )
        _require(bool(sound), f"the neurons of layer {i} are no SRM neurons: {constants.tolist()}")
        readout = None
        if of.get("readout") is not None:
            V = left.bits(
                f"{i}.readout",
                _whole(of["readout"], 1, f"the readout of layer {i}"),
                math.prod(layer.output_shape),
            )
            readout = Readout(V, left.take(f"{i}.scale", np.float32, 1)[0])
            _require(
                bool(np.isfinite(readout.scale)),
                f"the readout of layer {i} has the scale {readout.scale}",
            )
        bits = _spread(weights, layer)
        layers.append(
            replace(
                layer,
                weights=bits,
                posterior=posterior,
                kappa=kappa,
                constants=constants,
                readout=readout,
            )
        )
    _require(not left.left, f"it has a tensor {next(iter(left.left), '')!r:.50} that no layer uses")
    classes = about.get("classes")
    _require(
        about.get("task") in ("classification", "regression"),
        f"its task is {about.get('task')!r:.50}",
    )
    _require(isinstance(classes, list), "its classes are no list")
    network = Network(
        layers=tuple(layers),
        task=about["task"],
        classes=tuple(_text(name, "the name of a class") for name in classes),
        burn_in=_whole(about.get("burn_in"), 0, "the burn-in"),
        readouts=_whole(about.get("readouts"), 1, "the number of layers that speak"),
        **_units(about, encoding),
        source=_text(about.get("source"), "the source"),
        members=suggested,
        seed=seed,
    )
    _require(not classes or network.outputs == len(classes), f"it names {len(classes)} classes")
    sizes = [len(readout.V) for _, _, readout in network.speaking]
    fit = network.readouts == 1 or (
        len(sizes) == network.readouts and set(sizes) == {network.outputs}
    )
    _require(
        fit,
        f"{network.readouts} layers are to speak, and the outputs of the last readouts are {sizes}",
    )
    return network


def _plans(about: Any, K: int, error: type[ValueError]) -> tuple[list[Layer], dict[str, Any]]:
    """The layers of K members without their tensors, and the encoding: all that the file asks for,
    within the budget.
    """
    plans = [_plan(i, of) for i, of in enumerate(about["layers"])]
    for i, (before, layer) in enumerate(pairwise(plans), 1):
        _require(
            layer.input_shape == before.output_shape, f"layer {i} does not fit the one before it"
        )
    encoding = _encoding(about.get("encoding"), plans[0].input_shape)
    outputs = [
        _whole(of.get("readout") or 0, 0, f"the readout of layer {i}")
        for i, of in enumerate(about["layers"])
    ]
    needed = sum(cost(plans, outputs, K, encoding.get("steps", 1)))
    afford("its header", needed, f"a network of {K} members", error)
    return plans, encoding


def cost(
    layers: Sequence[Layer], outputs: Sequence[int], members: int, steps: int
) -> tuple[int, int]:
    """Bytes of memory, estimated from above, that an engine takes to stand ready, and for each
    recording of so many time steps.

    Weights as booleans, twice, and as bytes; what a layer's kernel works on; for a recording its
    draws, spikes and logits.
    """
    ready, recording = 0, 10 * steps * math.prod(layers[0].input_shape)
    for layer, n in zip(layers, outputs, strict=True):
        neurons, leaving = math.prod(layer.current_shape), math.prod(layer.output_shape)
        pixels = neurons // layer.neurons
        work = (640 if pixels == 1 else 16) * neurons + 4 * pixels * -(-layer.inputs // 32)
        ready += (
            3 * members * layer.neurons * layer.inputs + min(members, 16) * work + 2 * n * leaving
        )
        recording += members * (12 * neurons + steps * (leaving // 8 + 4 + 8 * n))
    return ready, recording


_NONE = np.zeros((0, 0, 0), bool)


def _plan(i: int, of: Any) -> Layer:
    """A layer's shapes, checked, without its tensors."""
    _require(isinstance(of, dict) and of.get("kind") in KINDS, f"layer {i} is of no known kind")
    shape = of.get("input_shape")
    _require(
        isinstance(shape, list) and len(shape) in (1, 3),
        f"the input shape of layer {i} is {shape!r:.50}",
    )
    plan: dict[str, Any] = {
        "kind": of["kind"],
        "input_shape": _wholes(shape, len(shape), 1, f"the input shape of layer {i}"),
    }
    plan["neurons"] = _whole(of.get("neurons"), 1, f"the size of layer {i}")
    if of["kind"] == "conv":
        _require(len(shape) == 3, f"layer {i} is a convolution of no images")
        for name, least in (("kernel", 1), ("stride", 1), ("padding", 0)):
            plan[name] = _wholes(of.get(name), 2, least, f"the {name} of layer {i}")
        plan["pool"] = _whole(of.get("pool"), 1, f"the pooling of layer {i}")
        reach = zip(shape[1:], plan["kernel"], plan["padding"], strict=True)
        _require(
            all(k <= n + 2 * p for n, k, p in reach),
            f"the kernel of layer {i} is larger than its input",
        )
    chosen = of.get("outputs")
    if chosen is not None:
        _require(
            of["kind"] == "recurrent" and isinstance(chosen, list) and len(chosen) > 0,
            f"the outputs of layer {i} are no list",
        )
        plan["outputs"] = _wholes(chosen, len(chosen), 0, f"an output of layer {i}")
        _require(
            max(chosen) < plan["neurons"] and len(set(chosen)) == len(chosen),
            f"the outputs of layer {i} are not distinct neurons",
        )
    _require(
        of["kind"] == "recurrent" or not of.get("mask"),
        f"layer {i} has a mask and is not recurrent",
    )
    layer = Layer(**plan, weights=_NONE, kappa=_NONE, constants=_NONE)
    sizes = (
        math.prod(layer.input_shape),
        math.prod(layer.current_shape),
        math.prod(layer.output_shape),
    )
    _require(
        min(sizes) > 0 and max(sizes) <= MOST_NEURONS,
        f"layer {i} cannot have {sizes[1]} neurons on {sizes[0]} inputs",
    )
    return layer


def _seed(value: Any) -> int:
    _require(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < philox.SEEDS,
        f"the seed is {value!r:.50}",
    )
    return value


def _encoding(about: Any, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """{}, or {"code", "steps", "neurons", "width", "low", "high", "seed", "encodings"}: see
    `packed.encoding`.
    """
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


def draw(posterior: np.ndarray, count: int, seed: int, layer: int) -> np.ndarray:
    """`count` members (count, S) of weights that are +1 with probability posterior / 255: 0 and 255
    are certain.

    By the numbers that draw the members of the network itself: see `philox`. More members leave the
        first ones as they are.
    """
    limits = (np.ceil(posterior * (2**24 / 255)) * 2.0**-24).astype(np.float32)
    drawn = (
        philox.uniform([layer], posterior.size, seed, Purpose.MEMBERS, k)[0] < limits
        for k in range(count)
    )
    return np.stack(list(drawn))


def _spread(values: np.ndarray, layer: Layer) -> np.ndarray:
    """(K, synapses) -> (K, neurons, inputs), zero where there is no synapse."""
    shape = (len(values), layer.neurons, layer.inputs)
    if layer.mask is None:
        return values.reshape(shape)
    full = np.zeros(shape, values.dtype)
    full[:, layer.mask] = values
    return full


def words(x: np.ndarray) -> np.ndarray:
    """Booleans, or 0 and 1, packed along the last axis into 32-bit words, lowest bit first."""
    packed = np.packbits(x, axis=-1, bitorder="little")
    whole = np.zeros((*packed.shape[:-1], -(-packed.shape[-1] // 4) * 4), np.uint8)
    whole[..., : packed.shape[-1]] = packed
    return whole.view("<u4").astype(np.uint32, copy=False)


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
