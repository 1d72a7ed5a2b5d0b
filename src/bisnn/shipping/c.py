"""A packed network as C99: one header, one source, no library, no allocation; the spikes and logits
are those of the engine.

All bits lie in one order, whatever the layer: bit n of a vector is bit n % 32 of word n / 32, and
    an image has its channels last,
n = (y W + x) C + c. What a kernel sees of a row is then one run of bits. Tables of weights are
[member][block of 32 neurons] [word][neuron], so that compilers vectorise over the neurons of a
block and read it from front to back.

Only numpy is needed, and the engine for the golden vectors. What is the same in every network is in
the templates `*.in`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.files import write_atomic
from bisnn.neuron import FLUSH
from bisnn.packed import encoding
from bisnn.packed.network import PackedLayer, PackedNetwork
from bisnn.packed.network import words as words_of
from bisnn.spec import INPUT

# Names of the standard's headers: another of that name would hide the compiler's.
TAKEN = (
    *(
        "assert",
        "complex",
        "ctype",
        "errno",
        "fenv",
        "float",
        "inttypes",
        "iso646",
        "limits",
        "locale",
        "math",
        "setjmp",
    ),
    *(
        "signal",
        "stdarg",
        "stdbool",
        "stddef",
        "stdint",
        "stdio",
        "stdlib",
        "string",
        "tgmath",
        "time",
        "wchar",
        "wctype",
    ),
)
GOLDEN_BITS = 600  # of each point that the encoder is tried on, or more


def write(
    network: PackedNetwork, folder: str | Path, x: np.ndarray, *, prefix: str = "model"
) -> dict[str, int]:
    """Write PREFIX.h and PREFIX.c, and PREFIX_golden.h and PREFIX_test.c: a program that compares
    every bit with the engine's.

    Args:
        network: the readout of its last layer gives the logits.
        folder: made if it is not there.
        x: a recording for the test, 0 and 1, (T, *input_shape).
        prefix: of the files' names and of all that the header declares, so that one program can
            hold several networks.

    Returns:
        "flash", bytes of constant tables, and "ram", bytes of the state; code and stack, which the
        compiler decides, come on top.
    """
    check_prefix(prefix)
    x = np.asarray(x)
    if x.shape[1:] != network.input_shape or len(x) == 0 or not np.isin(x, (0, 1)).all():
        raise ValueError(
            f"x: must be a recording of 0 and 1, (T, {', '.join(map(str, network.input_shape))}); got {x.dtype} of {x.shape}; "
            "encode it first"
        )
    x = x.astype(np.uint8)
    source = _Source(network, prefix)
    texts = {
        f"{prefix}.c": source.code(),
        f"{prefix}.h": source.header(),
        f"{prefix}_golden.h": _golden(network, prefix, x),
        f"{prefix}_test.c": _test(network, prefix, len(x)),
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, text in texts.items():
        write_atomic(folder / file_name, text.encode("ascii"))
    return source.sizes


def check_prefix(prefix: str) -> None:
    """See that all names made of it are C identifiers, and no file hides a header of C."""
    if not re.fullmatch(r"[A-Za-z]\w*", prefix, re.ASCII) or prefix.lower() in TAKEN:
        raise ValueError(
            f"prefix: must be a C identifier that starts with a letter and names no header of C; got {prefix!r}; use e.g. 'model'"
        )


def golden(
    network: PackedNetwork, x: np.ndarray
) -> tuple[tuple[np.ndarray, ...], np.ndarray | None]:
    """Spikes of every layer, uint8 (K, T, *output_shape), and logits, float32 (K, T, outputs), for
    one recording.
    """
    from bisnn.packed.engine import Engine

    result = Engine(network).run(x[:, None].astype(np.uint8), spikes=True)
    return tuple(
        s[:, :, 0] for s in result.spikes
    ), None if result.logits is None else result.logits[:, :, 0]


# From arrays to text


def _order(shape: tuple[int, ...]) -> np.ndarray:
    """Indices of a flattened (N,) or (C, H, W) in the order of the bits: channels last."""
    index = np.arange(math.prod(shape)).reshape(shape)
    return index if len(shape) == 1 else index.transpose(1, 2, 0).ravel()


def _blocks(w: np.ndarray) -> np.ndarray:
    """Words of bits w (..., n, inputs) in the order [...][block][word][neuron of the block]."""
    words = words_of(w.reshape(-1, *w.shape[-2:]))
    return np.concatenate(
        [
            some.swapaxes(-1, -2).ravel()
            for one in words
            for some in np.split(one, range(32, len(one), 32))
        ]
    )


def _double(value: float | np.floating) -> str:
    """A float64 as an exact literal."""
    return re.sub(r"\.?0*p", "p", float(value).hex())


def _float(value: float | np.floating) -> str:
    """A float32 as an exact literal."""
    return _double(np.float32(value)) + "f"


_KINDS: dict[str, tuple[str, Callable[..., str]]] = {
    "uint32": ("uint32_t", hex),
    "int32": ("int32_t", str),
    "float32": ("float", _float),
    "float64": ("double", _double),
}


def _table(name: str, values: np.ndarray) -> str:
    """A constant array, with as many items per line as fit."""
    kind, text = _KINDS[values.dtype.name]
    texts = [text(v) for v in values.ravel().tolist()]
    per_line = 128 // (max(map(len, texts)) + 1)
    lines = ",\n".join(",".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line))
    return f"static const {kind} {name}[{values.size}] = {{\n{lines}}};\n"


def _string(text: str) -> str:
    """A literal of its UTF-8, with octal numbers for what C might read otherwise: quotes,
    backslashes, trigraphs.
    """
    return (
        '"'
        + "".join(chr(b) if re.match(rb"[\w ]", bytes([b])) else f"\\{b:03o}" for b in _utf8(text))
        + '"'
    )


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _function(head: str, lines: list[str]) -> str:
    return "\n".join([head, "{", *_indented(lines), "}", ""])


def _filled(template: str, **values: str | int) -> str:
    return Template(
        resources.files("bisnn.shipping").joinpath("templates", template).read_text("ascii")
    ).substitute(values)


def _n_words(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // 32)


def _state_shape(layer: PackedLayer) -> tuple[int, ...]:
    """Of the neurons that there are: those that no window of the pooling sees are left out."""
    if layer.kind != "conv":
        return layer.current_shape
    channels, height, width = layer.output_shape
    return (channels, height * layer.pool, width * layer.pool)


@dataclass
class _Source:
    """The text of the source: tables and functions, layer by layer."""

    network: PackedNetwork
    name: str
    tables: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=lambda: {"flash": 0, "ram": 0})

    def __post_init__(self) -> None:
        emitters = {"dense": self._dense, "conv": self._conv, "recurrent": self._recurrent}
        for i, layer in enumerate(self.network.layers):
            x = ", const uint32_t *x" if INPUT in layer.inputs else ""
            head = f"static void layer_{i}({self.name}_state *state{x})"
            own = _own_constants(i, layer)
            self.functions.append(_function(head, [*own, *emitters[layer.kind](i, layer)]))
            self.sizes["ram"] += (
                4
                * self.network.count
                * (3 * math.prod(_state_shape(layer)) + _n_words(layer.output_shape))
            )
        self.functions += [*self._interface(), *self._encoder()]
        self.tables += self._classes()

    def code(self) -> str:
        kinds = sorted({str(layer.neuron.kind) for layer in self.network.layers})
        texts = {"srm": {"flush": _float(FLUSH)}, "fixed": {}}
        floats = "srm" in kinds or self.network.encoding
        scale = _float(self.network.readout.scale) if self.network.readout else "0.0f"
        whole = _is_whole(self.network)
        return _filled(
            "model.c.in",
            name=self.name,
            float="#include <float.h>\n" if floats else "",
            neurons="".join(_filled(f"{kind}.c.in", **texts[kind]) for kind in kinds),
            tables="\n".join(self.tables),
            functions="\n".join(self.functions),
            factor="" if whole else f"{scale} * (float)",
            outputs="y = V s." if whole else "y = scale V s.",
            output=_output(self.network),
        )

    def header(self) -> str:
        name, network = self.name.upper(), self.network
        constants = self._constants()
        state = []
        for i, layer in enumerate(network.layers):
            constants |= {
                f"SPIKES_{i}": math.prod(layer.output_shape),
                f"WORDS_{i}": _n_words(layer.output_shape),
            }
            size = f"[{name}_MEMBERS][{math.prod(_state_shape(layer))}]"
            state.append(
                f"    {_TRACES[str(layer.neuron.kind)]} P{i}{size}, Q{i}{size}, R{i}{size};\n"
                f"    uint32_t s{i}[{name}_MEMBERS][{name}_WORDS_{i}];"
            )
        names = (
            f"\nextern const char {self.name}_classes[{name}_CLASSES][{_width(network.classes)}];\n"
            if network.classes
            else ""
        )
        order = {"order": _feature_order(network)}
        whole = _is_whole(network)
        exact = "No operation from x to the counts is one on floating-point numbers."
        if not whole:
            exact = (
                "The spikes are exact under all options but those that change float arithmetic, "
                "such as -ffast-math, which are refused."
            )
        return _filled(
            "model.h.in",
            name=self.name,
            NAME=name,
            about="\n".join(
                f" *   layer {i}: {_described(layer)}" for i, layer in enumerate(network.layers)
            ),
            constants="\n".join(
                f"#define {name}_{key} {value}" for key, value in constants.items()
            ),
            classes=names,
            state="\n".join(state),
            exact=exact,
            output=_output(network),
            result="counts" if whole else "logits",
            outputs=f"{name}_LOGIT_SCALE times which are the logits;"
            if whole
            else "of the readout;",
            encoder=_filled("encoder.h.in", name=self.name, NAME=name, **order)
            if network.encoding
            else "",
            **self.sizes,
        )

    def _constants(self) -> dict[str, int | str]:
        network, code = self.network, self.network.encoding
        constants: dict[str, int | str] = {
            "MEMBERS": network.count,
            "LAYERS": len(network.layers),
            "INPUTS": math.prod(network.input_shape),
            "INPUT_WORDS": _n_words(network.input_shape),
            "OUTPUTS": network.outputs,
            "BURN_IN": f"{network.burn_in} /* first time steps that a prediction leaves out */",
        }
        if code:
            constants |= {
                "STEPS": f"{code['steps']} /* time steps of a point */",
                "FEATURES": len(code["low"]),
                "ENCODINGS": f"{code.get('encodings', 1)} /* of a point, over which a prediction is the mean */",
            }
        if network.classes:
            constants["CLASSES"] = len(network.classes)
        if _is_whole(network) and network.readout is not None:
            constants["LOGIT_SCALE"] = f"{_float(network.readout.scale)} /* logits per count */"
        if network.task == "regression":
            constants["TARGET_MEAN"] = (
                f"({float(network.target_mean)!r}) /* a prediction is the mean logit ... */"
            )
            constants["TARGET_SCALE"] = (
                f"{float(network.target_scale)!r} /* ... times the scale, plus the mean */"
            )
        return constants | {"FLASH_BYTES": self.sizes["flash"], "RAM_BYTES": self.sizes["ram"]}

    def _classes(self) -> list[str]:
        """The classes' names, as one array: pointers would be more, and data to be relocated."""
        names = self.network.classes
        if not names:
            return []
        self.sizes["flash"] += len(names) * _width(names)
        lines = ",\n".join(map(_string, names))
        return [
            f"const char {self.name}_classes[{self.name.upper()}_CLASSES][{_width(names)}] = {{\n{lines}}};\n"
        ]

    def _encoder(self) -> list[str]:
        """From features to the spikes of `packed.encoding.spikes`."""
        code = self.network.encoding
        if not code:
            return []
        low, high = np.array(code["low"]), np.array(code["high"])
        self._add("low", low.astype(np.float64))
        self._add("span", (high - low).astype(np.float64))
        parts: dict[str, str | int] = {
            "seed": f"UINT32_C({code['seed']})",
            "points": int(Purpose.POINTS),
            "encoding": int(Purpose.ENCODING),
        }
        parts |= {"curve": "", "rate": "between(0, x, 1)", "farthest": _double(encoding.FARTHEST)}
        if code["code"] == "population":
            self._add("cosine", np.array(encoding.COSINE))
            parts["curve"] = _filled("tuning.c.in", terms=len(encoding.COSINE))
            gaps = code["neurons"] - 1
            distance = f"((double)x - (double)j / {gaps}) / {_double(code['width'] / gaps)}"
            parts["rate"] = f"raised_cosine(between(-1, {distance}, 1))"
        return [_filled("encoder.c.in", name=self.name, NAME=self.name.upper(), **parts)]

    def _add(self, name: str, values: np.ndarray) -> str:
        """A table of the source; its name."""
        self.tables.append(_table(name, values))
        self.sizes["flash"] += values.nbytes
        return name

    def _members(self, lines: list[str]) -> list[str]:
        return [f"for (k = 0; k < {self.name.upper()}_MEMBERS; k++) {{", *_indented(lines), "}"]

    def _neurons(
        self,
        i: int,
        layer: PackedLayer,
        w: np.ndarray,
        x: str,
        spikes: str,
        at: str = "",
        mask: str = "NULL",
    ) -> tuple[str, str]:
        """Calls of fire and integrate for the neurons of a pixel; the bit planes w (K, planes, n,
        inputs) have their inputs in the order of the bits of x.
        """
        planes, n, inputs = w.shape[1:]
        table = self._add(f"weights_{i}", _blocks(w))
        P, Q, R = (f"state->{trace}{i}[k]{at}" for trace in "PQR")
        levels = f"{planes}, {layer.alphabet.low}, {layer.alphabet.gap}"
        per_member = planes * n * -(-inputs // 32)
        inward = f"{n}, {x}, {inputs}, {table} + k * {per_member}, {levels}, {mask}"
        if layer.neuron.kind == "fixed":
            a_m, a_s, a_r, fraction, feedback, theta = _whole_constants(layer)
            names = f"&feedback_{i}, &theta_{i}, 0"
            if len(layer.scale) > 1:
                names = (
                    f"{self._add(f'feedback_{i}', feedback)}, {self._add(f'theta_{i}', theta)}, 1"
                )
            return (
                f"fixed_fire({P}, {Q}, {R}, {n}, {names}, {a_r[0]}, {spikes});",
                f"fixed_integrate({P}, {Q}, {inward}, {a_m[0]}, {a_s[0]}, {1 << fraction[0]});",
            )
        kappa = (
            f"&kappa_{i}, 0"
            if len(layer.scale) == 1
            else self._add(f"kappa_{i}", layer.scale) + ", 1"
        )
        c_m, c_s, c_r, threshold = map(_float, layer.constants)
        return (
            f"srm_fire({P}, {Q}, {R}, {n}, {kappa}, {c_r}, {threshold}, {spikes});",
            f"srm_integrate({P}, {Q}, {inward}, {c_m}, {c_s});",
        )

    def _dense(self, i: int, layer: PackedLayer) -> list[str]:
        if len(layer.inputs) == 1:
            w = layer.bits()[..., _order(layer.input_shape)]
            calls = self._neurons(i, layer, w, _source(layer.inputs[0]), f"state->s{i}[k]")
            return ["size_t k;", *self._members([*calls])]
        words, fill = _side_by_side(layer)
        w = np.concatenate(_columns(layer, layer.bits()), -1)
        calls = self._neurons(i, layer, w, "window", f"state->s{i}[k]")
        return [f"uint32_t window[{words}];", "size_t k;", *self._members([*fill, *calls])]

    def _recurrent(self, i: int, layer: PackedLayer) -> list[str]:
        own = -(-layer.neurons // 32)
        words, fill = _side_by_side(layer)

        def columns(w: np.ndarray) -> np.ndarray:  # the layer's own spikes start with a word
            return np.concatenate([*_columns(layer, w), w[..., layer.fan_in - layer.neurons :]], -1)

        mask = (
            "NULL" if layer.mask is None else self._add(f"mask_{i}", _blocks(columns(layer.mask)))
        )
        fire, integrate = self._neurons(
            i, layer, columns(layer.bits()), "window", "fired", mask=mask
        )
        lines = [fire, *fill, f"memcpy(window + {words}, fired, {4 * own});", integrate]
        start = [f"uint32_t fired[{own}], window[{words + own}];"]
        if layer.outputs is None:
            return [
                *start,
                "size_t k;",
                *self._members([*lines, f"memcpy(state->s{i}[k], fired, {4 * own});"]),
            ]
        chosen = self._add(f"outputs_{i}", np.array(layer.outputs, np.uint32))
        lines += [
            f"memset(state->s{i}[k], 0, sizeof state->s{i}[k]);",
            f"for (i = 0; i < {len(layer.outputs)}; i++)",
            f"    state->s{i}[k][i / 32] |= (fired[{chosen}[i] / 32] >> {chosen}[i] % 32 & 1) << i % 32;",
        ]
        return [*start, "size_t k, i;", *self._members(lines)]

    def _conv(self, i: int, layer: PackedLayer) -> list[str]:
        n, rows, columns = _state_shape(layer)
        w, gathers, words = _kernels(layer)
        lines = [
            *self._neurons(i, layer, w, "window", "fired", " + at"),
            f"add_bits(state->s{i}[k], to, fired, 0, {n});",
        ]
        shared = layer.inputs == (INPUT,)  # by all members
        members = [*gathers, *self._members(lines)] if shared else self._members([*gathers, *lines])
        pixel = [
            f"const size_t at = (y * {columns} + z) * {n};",
            f"const size_t to = (y / {layer.pool} * {layer.output_shape[2]} + z / {layer.pool}) * {n};",
            *members,
        ]
        return [
            f"uint32_t window[{words}], fired[{-(-n // 32)}];",
            "size_t y, z, k;",
            f"memset(state->s{i}, 0, sizeof state->s{i});",
            f"for (y = 0; y < {rows}; y++)",
            f"    for (z = 0; z < {columns}; z++) {{",
            *_indented(_indented(pixel)),
            "    }",
        ]

    def _interface(self) -> list[str]:
        name, network, outputs = self.name, self.network, self.network.outputs
        result = "counts" if _is_whole(network) else "logits"
        head = f"void {name}_step({name}_state *state, const uint32_t *x, {_output(network)} *{result})"
        steps = [
            f"layer_{i}(state{', x' if INPUT in layer.inputs else ''});"
            for i, layer in enumerate(network.layers)
        ]
        if network.readout is None:
            steps.append(f"(void){result};")
        else:
            shape, last = network.layers[-1].output_shape, len(network.layers) - 1
            V = self._add("V", _blocks(network.readout.V[:, _order(shape)]))
            of = f"state->s{last}[k], {math.prod(shape)}, {V}"
            call = f"readout({result} + k * {outputs}, {outputs}, {of});"
            steps = [
                "size_t k;",
                *steps,
                f"if ({result} == NULL)",
                "    return;",
                *self._members([call]),
            ]
        return [
            _function(
                f"void {name}_reset({name}_state *state)", ["memset(state, 0, sizeof *state);"]
            ),
            _function(head, steps),
        ]


_TRACES = {"srm": "float", "fixed": "int32_t"}  # types of the traces of a kind of neuron


def _is_whole(network: PackedNetwork) -> bool:
    """Whether all of it computes in integers, so that its outputs are counts."""
    return all(layer.neuron.kind == "fixed" for layer in network.layers)


def _output(network: PackedNetwork) -> str:
    return "int32_t" if _is_whole(network) else "float"


def _whole_constants(layer: PackedLayer) -> np.ndarray:
    found = layer.integers
    assert found is not None
    return found


def _own_constants(i: int, layer: PackedLayer) -> list[str]:
    """Where all neurons of a layer share their scale: the variables that stand for it."""
    if len(layer.scale) > 1:
        return []
    if layer.neuron.kind == "srm":
        return [f"const float kappa_{i} = {_float(layer.scale[0])};"]
    *_, feedback, theta = _whole_constants(layer)[:, 0]
    return [f"const int32_t feedback_{i} = {feedback}, theta_{i} = {theta};"]


def _source(number: int) -> str:
    """Where the bits lie that a layer reads: the caller's, or those that left an earlier layer."""
    return "x" if number == INPUT else f"state->s{number}[k]"


def _columns(layer: PackedLayer, w: np.ndarray) -> list[np.ndarray]:
    """The columns (..., inputs) of each of a layer's inputs in the order of the bits, each filled
    to whole words.
    """
    found = []
    for part, shape in zip(layer.columns(), layer.parts, strict=True):
        gap = np.zeros((*w.shape[:-1], -math.prod(shape) % 32), bool)
        found.append(np.concatenate([w[..., part][..., _order(shape)], gap], -1))
    return found


def _side_by_side(layer: PackedLayer) -> tuple[int, list[str]]:
    """Words of a window that holds a layer's inputs, each from a word on, and what copies them."""
    at, lines = 0, []
    for number, shape in zip(layer.inputs, layer.parts, strict=True):
        n, words = math.prod(shape), _n_words(shape)
        lines.append(f"memcpy(window{f' + {at}' if at else ''}, {_source(number)}, {4 * words});")
        at += words
        if number == INPUT and n % 32:
            lines.append(
                f"window[{at - 1}] &= 0x{(1 << n % 32) - 1:x}; /* the others of the caller's bits are no inputs */"
            )
    return at, lines


def _kernels(layer: PackedLayer) -> tuple[np.ndarray, list[str], int]:
    """The bit planes (K, planes, n, bits) of a convolution, input after input, each from a word on;
    what gathers the bits under the kernel, and their words.
    """
    bits = layer.bits()
    w = bits.reshape(-1, layer.neurons, layer.input_shape[0], *layer.kernel)
    at, rows, lines = 0, [], []
    for number, part, (channels, height, width) in zip(
        layer.inputs, layer.columns(), layer.parts, strict=True
    ):
        taps = channels * math.prod(layer.kernel)
        some = w[:, :, part].transpose(0, 1, 3, 4, 2).reshape(*w.shape[:2], taps)
        gap = -taps % 32 if len(layer.inputs) > 1 else 0
        rows.append(np.pad(some, ((0, 0), (0, 0), (0, gap))))
        sizes = ", ".join(map(str, (height, width, channels, *layer.kernel, *layer.padding)))
        corner = f"y * {layer.stride[0]}, z * {layer.stride[1]}"
        to = f"window + {at}" if at else "window"
        lines.append(f"gather({to}, {_source(number)}, {sizes}, {corner});")
        at += -(-taps // 32)
    return np.concatenate(rows, -1).reshape(*bits.shape[:3], -1), lines, at


def _width(names: tuple[str, ...]) -> int:
    """Bytes of the longest name and its end."""
    return max(len(_utf8(name)) for name in names) + 1


def _feature_order(network: PackedNetwork) -> str:
    """What a comment says of it."""
    if network.schema is None:
        return "in the order of its columns."
    names = [
        re.sub(r"[^\w .,=()%-]", "_", name, flags=re.ASCII) for name in network.schema.features
    ]
    return "in this order:" + "".join(f"\n *   {name}" for name in names)


def _described(layer: PackedLayer) -> str:
    text = f"{layer.kind}, {' x '.join(map(str, layer.input_shape))} -> {' x '.join(map(str, layer.output_shape))}"
    if layer.kind == "conv":
        text += f", kernel {layer.kernel}, stride {layer.stride}, padding {layer.padding}, pool {layer.pool}"
    return text + f", {layer.synapses} synapses"


# The test


def _edges(layer: PackedLayer, most: int = 8) -> np.ndarray:
    """States of the first neuron that leaves the layer at which a fused product would decide
    otherwise: rows of P, R, spike.

    With Q = 0 the potential is kappa P - R: R puts the rounded product at the threshold, and what
    rounding took off decides. There are none where kappa is a power of two: no product is rounded
    then.
    """
    if layer.neuron.kind != "srm":
        return np.empty((0, 3), np.float32)  # integers are not rounded
    kappa = layer.scale[_first(layer) if len(layer.scale) > 1 else 0]
    theta = layer.constants[3]
    P = (theta / kappa * np.linspace(16, 64, 1000)).astype(np.float32)
    R = kappa * P - theta
    fires = kappa * P - R > theta
    fused = (kappa.astype(np.float64) * P.astype(np.float64) - R).astype(
        np.float32
    ) > theta  # the product is exact
    return np.stack([P, R, fires], 1)[fires != fused][:most].astype(np.float32)


def _first(layer: PackedLayer) -> int:
    """The neuron whose spikes leave the layer as bit 0."""
    return layer.outputs[0] if layer.outputs else 0


def _golden(network: PackedNetwork, name: str, x: np.ndarray) -> str:
    """Inputs [T][words], spikes of each layer [T][member][words], logits [T][member][outputs],
    edges [n][P, R, spike].
    """
    spikes, logits = golden(network, x)
    tables = [_table("golden_x", words_of(x.reshape(len(x), -1)[:, _order(x.shape[1:])]))]
    for i, s in enumerate(spikes):  # (K, T, ...)
        bits = s.reshape(*s.shape[:2], -1)[..., _order(s.shape[2:])]
        tables.append(_table(f"golden_s{i}", words_of(bits).swapaxes(0, 1)))
    if logits is not None:
        y = logits.swapaxes(0, 1)
        if _is_whole(network) and network.readout is not None:
            y = np.rint(y / network.readout.scale).astype(np.int32)
        tables.append(_table("golden_result", y))
    edges = enumerate(map(_edges, network.layers))
    tables += [_table(f"golden_edges{i}", values) for i, values in edges if len(values)]
    if network.encoding:
        points, steps, bits = _encoded(network.encoding)
        tables += [
            _table("golden_points", points),
            _table("golden_steps", steps),
            _table("golden_encoded", words_of(bits)),
        ]
    return f"/* What {name} is to give. */\n#include <stdint.h>\n" + "\n".join(tables)


def _encoded(code: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (N, d), time steps (t,) and the spikes in these, uint8 (N, t, inputs), of draw i for
    point i.
    """
    low, high = np.array(code["low"], float), np.array(code["high"], float)
    span, d = high - low, len(low)
    places = (
        philox.uniform([1], 12 * d, code["seed"], Purpose.EXPORT).reshape(12, d).astype(np.float64)
        * 1.5
        - 0.25
    )
    corners = [
        low,
        high,
        np.where(low == 0, -0.0, low),
        low - 1e9 * span,
    ]  # and what rounds to -0, and what is far out
    points = np.concatenate([corners, low + span * places]).clip(
        -np.finfo(float).max, np.finfo(float).max
    )
    bits = np.stack(
        [encoding.spikes(code, point[None], draw)[:, 0] for draw, point in enumerate(points)]
    )
    steps = np.unique(
        np.linspace(0, len(bits[0]) - 1, -(-GOLDEN_BITS // bits.shape[-1]) + 1).astype(np.uint32)
    )
    return points, steps, bits[:, steps]


def _test(network: PackedNetwork, name: str, steps: int) -> str:
    upper = name.upper()
    compared = [
        (f"state.s{i}", f"golden_s{i}", f"WORDS_{i}", f"spikes of layer {i}")
        for i in range(len(network.layers))
    ]
    if network.outputs:
        compared.append(("result", "golden_result", "OUTPUTS", "outputs"))
    checks = []
    for got, wanted, per_member, what in compared:
        size = f"{upper}_MEMBERS * {upper}_{per_member}"
        checks.append(
            f'            bad = bad || differ({got}, {wanted} + t * {size}, {size}, t, run, "{what}");'
        )
    unused = f"~UINT32_C(0) << {upper}_INPUTS % 32" if math.prod(network.input_shape) % 32 else "0"
    edges = [
        _edge_test(i, layer, name) for i, layer in enumerate(network.layers) if len(_edges(layer))
    ]
    parts = {
        "checks": "\n".join(checks),
        "edges": "\n".join(edges),
        "unused": unused,
        "encoder": "",
    }
    if network.encoding:
        points, times, _ = _encoded(network.encoding)
        parts["encoder"] = _filled(
            "encoder_test.c.in", name=name, NAME=upper, points=len(points), times=len(times)
        )
    output = _output(network)
    return _filled("model_test.c.in", name=name, NAME=upper, steps=steps, output=output, **parts)


def _edge_test(i: int, layer: PackedLayer, name: str) -> str:
    edges, at = f"golden_edges{i}", f"[0][{_first(layer)}]"
    lines = [
        f"for (t = 0; t < {len(_edges(layer))} && !bad; t++) {{",
        f"    {name}_reset(&state);",
        f"    state.P{i}{at} = {edges}[3 * t];",
        f"    state.R{i}{at} = {edges}[3 * t + 1];",
        f"    {name}_step(&state, golden_x, NULL);",
        f"    if ((state.s{i}[0][0] & 1) != (uint32_t){edges}[3 * t + 2]) {{",
        f'        printf("different: layer {i} at its threshold, state %lu: a product was not rounded\\n", (unsigned long)t);',
        "        bad = 1;",
        "    }",
        "}",
    ]
    return "\n".join(_indented(lines))
