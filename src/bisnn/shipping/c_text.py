"""From arrays and numbers to C99: literals, tables, the order of bits, the types of a network."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from importlib import resources
from string import Template

import numpy as np

from bisnn.neuron import Neuron
from bisnn.packed.network import PackedLayer, PackedNetwork
from bisnn.packed.network import words as words_of


def is_whole(network: PackedNetwork) -> bool:
    """Whether all of it computes in integers, so that its outputs are counts."""
    return all(layer.neuron.dtype == np.int32 for layer in network.layers)


def result_name(network: PackedNetwork) -> str:
    """What a time step gives: logits, or the counts that they are multiples of."""
    return "counts" if is_whole(network) else "logits"


def output_type(network: PackedNetwork) -> str:
    return "int32_t" if is_whole(network) else "float"


def bit_order(shape: tuple[int, ...]) -> np.ndarray:
    """Indices of a flattened (N,) or (C, H, W) in the order of the bits: channels last."""
    index = np.arange(math.prod(shape)).reshape(shape)
    return index if len(shape) == 1 else index.transpose(1, 2, 0).ravel()


def weight_blocks(w: np.ndarray) -> np.ndarray:
    """Words of bits w (..., n, inputs) in the order [...][block][word][neuron of the block]."""
    words = words_of(w.reshape(-1, *w.shape[-2:]))
    blocks = (block for one in words for block in np.split(one, range(32, len(one), 32)))
    return np.concatenate([block.swapaxes(-1, -2).ravel() for block in blocks])


MOST_LANES = 8  # words of a row that the code takes at once


def weight_rows(w: np.ndarray) -> np.ndarray:
    """Words of bits w (..., n, inputs) in the order [...][input][block of 32 neurons]; and as many
    more as compilers read at once beyond the last row.
    """
    rows = words_of(w.swapaxes(-1, -2))
    return np.concatenate([rows.ravel(), np.zeros(-rows.shape[-1] % MOST_LANES, np.uint32)])


def double_literal(value: float | np.floating) -> str:
    """A float64 as an exact literal."""
    return re.sub(r"\.?0*p", "p", float(value).hex())


def float_literal(value: float | np.floating) -> str:
    """A float32 as an exact literal."""
    return double_literal(np.float32(value)) + "f"


# Of an array's values: their type, and how one is written
TYPES: dict[str, tuple[str, Callable[..., str]]] = {
    "uint32": ("uint32_t", hex),
    "int32": ("int32_t", str),
    "float32": ("float", float_literal),
    "float64": ("double", double_literal),
}


def table_text(name: str, values: np.ndarray) -> str:
    """A constant array, with as many items per line as fit."""
    kind, text = TYPES[values.dtype.name]
    texts = [text(v) for v in values.ravel().tolist()]
    per_line = 128 // (max(map(len, texts)) + 1)
    lines = ",\n".join(",".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line))
    return f"static const {kind} {name}[{values.size}] = {{\n{lines}}};\n"


def string_literal(text: str) -> str:
    """A literal of its UTF-8; octal numbers for quotes, backslashes and trigraphs."""
    plain = re.compile(rb"[\w ]")
    inside = (chr(b) if plain.match(bytes([b])) else f"\\{b:03o}" for b in utf8(text))
    return '"' + "".join(inside) + '"'


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def indented(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


def function_text(head: str, lines: list[str]) -> str:
    return "\n".join([head, "{", *indented(lines), "}", ""])


def filled(template: str, **values: str | int) -> str:
    return Template(
        resources.files("bisnn.shipping").joinpath("templates", template).read_text("ascii")
    ).substitute(values)


def neuron_text(neuron: Neuron) -> str:
    """The functions `fire` and `integrate` of a class of neurons."""
    assert neuron.c is not None
    kind, _ = TYPES[np.dtype(neuron.dtype).name]
    zero = ["uint32_t zero"] if neuron.dtype == np.float32 else []
    each = [f"const {kind} *RESTRICT each_{name}" for name in neuron.each]
    shared = [f"{kind} {name}" for name in neuron.shared]
    unused = (*neuron.traces, *neuron.each, *neuron.shared, *(["zero"] if zero else []))
    return neuron.c.helpers + filled(
        "neuron.c.in",
        name=function_prefix(neuron),
        traces=", ".join(f"{kind} *RESTRICT {trace}" for trace in neuron.traces),
        constants=", ".join([*each, "size_t per_neuron", *shared, *zero]),
        each=" ".join(f"const {kind} {n} = each_{n}[per_neuron * j];" for n in neuron.each),
        fire=neuron.c.fire,
        integrate=neuron.c.integrate,
        unused=", ".join(f"(void){name}" for name in unused) + ";",
    )


def function_prefix(neuron: Neuron) -> str:
    return re.sub(r"\W", "_", neuron.kind, flags=re.ASCII)


def word_count(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // 32)


def name_width(names: tuple[str, ...]) -> int:
    """Bytes of the longest name and its end."""
    return max(len(utf8(name)) for name in names) + 1


def feature_order(network: PackedNetwork) -> str:
    """What the header says of the order of features."""
    if network.schema is None:
        return "in the order of its columns."
    lines = list[str]()
    for column in network.schema.columns:
        lines += column.features
        if column.blanks:
            lines[-1] += f": 1 where it is, with {column.fill!r} in the feature before; else 0"
    plain = (re.sub(r"[^\w .,:;=()%-]", "_", line, flags=re.ASCII) for line in lines)
    return "in this order:" + "".join(f"\n *   {i}: {line}" for i, line in enumerate(plain))


def layer_text(layer: PackedLayer) -> str:
    """What the header says of a layer."""
    into, out = (" x ".join(map(str, shape)) for shape in (layer.input_shape, layer.output_shape))
    text = f"{layer.kind}, {into} -> {out}"
    if layer.kind == "conv":
        text += f", kernel {layer.kernel}, stride {layer.stride}, padding {layer.padding}"
        text += f", pool {layer.pool}"
    return text + f", {layer.synapses} synapses"
