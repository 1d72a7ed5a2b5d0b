"""The one file that holds a packed network.

It is safetensors with a JSON header. Weights are one bit each (1 is +1), or as many as their
alphabet has planes, lowest bit of a byte first, in the order of the network's parameters: member,
plane, neuron, input. Reading a file runs no code, and nothing in a file from outside is taken on
trust: all that it asks for in total is checked against one budget before any memory is taken. Only
numpy and safetensors are needed here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bisnn.alphabet import BINARY
from bisnn.bits import philox
from bisnn.files import afford, read_bytes, write_atomic
from bisnn.neuron import Neuron
from bisnn.packed import header
from bisnn.packed.header import MOST_MEMBERS, BadFile, Unfit
from bisnn.packed.network import (
    PackedLayer,
    PackedNetwork,
    PackedReadout,
    cost,
    draw,
    most_probable,
    spread,
)
from bisnn.spec import LayerSpec, Shape

VERSION = 4
_PLACES = ("kernel", "stride", "padding", "pool")  # of a convolution
_PLAIN = (  # of a network: what JSON holds as it is
    *("input_shape", "task", "classes", "burn_in", "encoding", "target_mean", "target_scale"),
    *("source", "members", "seed"),
)
# What reading a header of other types raises
_WRONG = (ValueError, KeyError, TypeError, RecursionError, AttributeError)
GENERATOR = "philox4x32-10"  # named in the file: how members are drawn from a posterior


def write(network: PackedNetwork, path: str | Path) -> int:
    """Write a `network` to the file `path`, whole or not at all; its size in bytes."""
    content = file_content(network)
    write_atomic(Path(path), content)
    return len(content)


def file_content(network: PackedNetwork) -> bytes:
    """The bytes of the file of a network. A posterior takes the members' place."""
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
    if network.sets is not None:
        about["sets"] = network.sets.to_json()
    if network.intervals is not None:
        about["intervals"] = network.intervals.to_json()
    body = json.dumps(about, separators=(",", ":"))
    digest = _digest(body, tensors)
    entry = {"kind": "packed", "version": VERSION, "network": body, "digest": digest}
    return save(tensors, {"bisnn": json.dumps(entry, separators=(",", ":"))})


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
    path: str | Path,
    members: int | Literal["map"] | None = None,
    seed: int | None = None,
    *,
    neurons: Sequence[type[Neuron]] = (),
) -> PackedNetwork:
    """The network of a file.

    Args:
        path: as `write` wrote it; anything else raises `BadFile`.
        members: None for all that the file has (a posterior: as many draws as it suggests). A
            number takes the first so many, or draws so many from a posterior; "map" takes a
            posterior's most probable weights.
        seed: of those draws; by default the file's.
        neurons: classes of one's own that it may have; no file can name code to be run.
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
    return parse(content, str(path), members, seed, neurons)


def parse(
    content: bytes,
    name: str,
    members: int | Literal["map"] | None = None,
    seed: int | None = None,
    neurons: Sequence[type[Neuron]] = (),
) -> PackedNetwork:
    """As `read`, from the bytes of a file of this name."""
    counted = isinstance(members, int) and not isinstance(members, bool) and members >= 1
    if members is not None and members != "map" and not counted:
        raise ValueError(
            f'members: must be a positive whole number or "map"; got {members!r}; leave it out for '
            "the usual"
        )
    whole = isinstance(seed, int) and not isinstance(seed, bool)
    if seed is not None and not (whole and 0 <= seed < philox.SEEDS):
        raise ValueError(
            f"seed: must be a whole number from 0 to 2^32 - 1; got {seed!r}; leave it out for the "
            "file's own"
        )
    try:
        found = json.loads(_metadata(content))
        tensors = load(content)
    except (SafetensorError, MemoryError, *_WRONG) as error:
        raise BadFile(f"{name}: is damaged or no safetensors file ({_short(error)})") from None
    if not isinstance(found, dict) or found.get("kind") != "packed":
        raise BadFile(
            f"{name}: holds no packed network; `bisnn export RUN --to packed` makes such a file"
        )
    if found.get("version") != VERSION:
        raise BadFile(
            f"{name}: was written in format {found.get('version')!r}, and this version reads "
            f"{VERSION}; export it again"
        )
    try:
        body = header.text(found.get("network"), "its description", most=len(content))
        if found.get("digest") != _digest(body, tensors):
            raise BadFile("is damaged: its content does not match its digest; export it again")
        return _network(json.loads(body), tensors, members, seed, neurons)
    except (BadFile, Unfit) as error:
        raise type(error)(f"{name}: {error}") from None
    except (OverflowError, IndexError, *_WRONG) as error:
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


class _Tensors:
    """The file's tensors; each is to be used by a layer."""

    def __init__(self, tensors: dict[str, np.ndarray]):
        self.left = dict(tensors)

    def take(self, name: str, dtype: Any, size: int) -> np.ndarray:
        found = self.left.pop(name, None)
        if found is None:
            raise BadFile(f"its tensor {name} is missing; export it again")
        header.require(
            found.dtype == dtype and found.shape == (size,),
            f"its tensor {name} is {found.dtype} {found.shape}",
        )
        return found

    def bits(self, name: str, *shape: int) -> np.ndarray:
        return _unbits(self.take(name, np.uint8, -(-math.prod(shape) // 8)), shape)


def _network(
    about: Any,
    tensors: dict[str, np.ndarray],
    members: int | str | None,
    seed: int | None,
    neurons: Sequence[type[Neuron]],
) -> PackedNetwork:
    header.require(
        isinstance(about, dict) and isinstance(about.get("layers"), list),
        "its header describes no layers",
    )
    header.require(1 <= len(about["layers"]) <= 1000, f"it has {len(about['layers'])} layers")
    header.require(
        about.get("generator") == GENERATOR,
        f"its members come from {about.get('generator')!r:.50}, which is unknown",
    )
    asked = _Members.of(about, members, header.seed_of(about.get("seed")) if seed is None else seed)
    shape, outputs = (
        header.shape_of(about.get("input_shape"), "its input shape"),
        about.get("outputs"),
    )
    header.whole(outputs, 0, "the number of outputs")
    error = BadFile if members is None else Unfit
    plans, encoding = _plans(about, shape, asked.K, neurons, error)
    left = _Tensors(tensors)
    layers = tuple(
        _layer(i, spec, bool(of.get("mask")), left, asked)
        for i, (of, spec) in enumerate(zip(about["layers"], plans, strict=True))
    )
    readout = None
    if outputs:
        V = left.bits("readout", outputs, math.prod(layers[-1].output_shape))
        readout = PackedReadout(V, left.take("readout.scale", np.float32, 1)[0])
        header.require(
            bool(np.isfinite(readout.scale)), f"its readout has the scale {readout.scale}"
        )
    header.require(
        not left.left, f"it has a tensor {next(iter(left.left), '')!r:.50} that nothing uses"
    )
    classes = about.get("classes")
    header.require(
        about.get("task") in ("classification", "regression"),
        f"its task is {about.get('task')!r:.50}",
    )
    header.require(isinstance(classes, list), "its classes are no list")
    header.require(not classes or outputs == len(classes), f"it names {len(classes)} classes")
    sets = header.sets_of(about.get("sets"), outputs, asked.stored)
    intervals = header.intervals_of(about.get("intervals"), about["task"])
    all_members = len(layers[0].weights) == asked.stored
    return PackedNetwork(
        layers,
        shape,
        readout,
        task=about["task"],
        classes=tuple(header.text(name, "the name of a class") for name in classes),
        burn_in=header.whole(about.get("burn_in"), 0, "the burn-in"),
        **header.units_of(about, encoding),
        source=header.text(about.get("source"), "the source"),
        members=asked.suggested,
        seed=asked.seed,
        # Of all members or none
        sets=sets if all_members else None,
        intervals=intervals if all_members else None,
    )


class _Members(NamedTuple):
    """Which members a reader gets."""

    stored: int  # in the file; 0 for a posterior
    suggested: int  # that it suggests to draw
    wanted: int | str | None
    seed: int

    @classmethod
    def of(cls, about: Any, wanted: int | str | None, seed: int) -> _Members:
        count = header.whole(about.get("count"), 0, "the number of members", MOST_MEMBERS)
        suggested = about.get("members")
        header.whole(suggested, 0, "the suggested number of members", MOST_MEMBERS)
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
            header.require(
                bool(np.isin(weights, alphabet.levels).all()),
                f"layer {i} has a weight that is none of its levels",
            )
            return weights, None
        posterior = left.take(f"{i}.posterior", np.uint8, above * layer.synapses)
        posterior = posterior.reshape(above, layer.synapses)
        header.require(
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
        header.require(bool(mask.any(1).all()), f"layer {i} has a neuron without parents")
        spec = replace(spec, mask=mask)
    weights, posterior = asked.weights(i, spec, left)
    scale = left.take(f"{i}.scale", np.float32, spec.neurons if masked else 1)
    known = spec.neuron.constants(np.float32)
    constants = left.take(f"{i}.constants", np.float32, len(known))
    header.require(
        np.allclose(scale, spec.kappa, rtol=1e-6, atol=0),
        f"kappa of layer {i} is not that of its neurons: {scale[0]}",
    )
    header.require(
        np.allclose(constants, known, rtol=1e-6, atol=0),
        f"the constants of layer {i} are not its neuron's: {constants.tolist()}",
    )
    layer = PackedLayer(
        **spec.values(),
        weights=spread(weights, spec),
        scale=scale,
        constants=constants,
        posterior=None if posterior is None else spread(posterior, spec),
    )
    layer.step_constants()  # raises where traces could overflow
    return layer


def _plans(
    about: Any, shape: Shape, K: int, neurons: Sequence[type[Neuron]], error: type[ValueError]
) -> tuple[list[LayerSpec], dict[str, Any]]:
    """The layers of K members without tensors, and the encoding; all within the budget."""
    plans: list[LayerSpec] = []
    for i, of in enumerate(about["layers"]):
        shapes = [*(plan.output_shape for plan in plans), shape]
        plans.append(header.layer_of(i, of, shapes, neurons))
    encoding = header.encoding_of(about.get("encoding"), shape)
    steps = encoding.get("steps", 1)
    needed = sum(cost(plans, math.prod(shape), about["outputs"], K, steps))
    afford("its header", needed, f"a network of {K} members", error)
    return plans, encoding


def _bits(x: np.ndarray) -> np.ndarray:
    return np.packbits(x.reshape(-1), bitorder="little")


def _unbits(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.unpackbits(x, count=math.prod(shape), bitorder="little").view(bool).reshape(shape)


def _digest(body: str, tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(body.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    return digest.hexdigest()
