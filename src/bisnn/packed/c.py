"""A packed network as C99: one header, one source, no library, no allocation; the spikes and logits are those of the engine.

All bits lie in one order, whatever the layer: bit n of a vector is bit n % 32 of word n / 32, and an image has its channels last,
n = (y W + x) C + c. What a kernel sees of a row is then one run of bits. Tables of weights are [member][block of 32 neurons]
[word][neuron], so that compilers vectorise over the neurons of a block and read it from front to back.

Only numpy is needed, and the engine for the golden vectors. What is the same in every network is in the templates `model*.in`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from bisnn.files import write_atomic
from bisnn.packed import FLUSH, file

TAKEN = ("float", "stddef", "stdint", "stdio", "string")  # a header of such a name would hide the compiler's


def write(network: file.Network, folder: str | Path, x: np.ndarray, *, name: str = "model") -> dict[str, int]:
    """Write NAME.h and NAME.c, and NAME_golden.h and NAME_test.c: a program that runs the recording and compares every bit.

    Args:
        network: the readouts that speak give the logits; others are left out.
        folder: made if it is not there.
        x: a recording for the test, 0 and 1, (T, *input_shape).
        name: of the files, and in front of all that the header declares.

    Returns:
        "flash", bytes of constant tables, and "ram", bytes of the state; code and stack, which the compiler decides, come on top.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name in TAKEN:
        raise ValueError(
            f"name: must be a C identifier that starts with a letter, and no header of C; got {name!r}; use e.g. 'model'"
        )
    x = np.asarray(x)
    if x.shape[1:] != network.input_shape or len(x) == 0 or not np.isin(x, (0, 1)).all():
        raise ValueError(
            f"x: must be a recording of 0 and 1, (T, {', '.join(map(str, network.input_shape))}); got {x.dtype} of {x.shape}; "
            "encode it first"
        )
    x = x.astype(np.uint8)
    source = _Source(network, name)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        f"{name}.c": source.code(),
        f"{name}.h": source.header(),
        f"{name}_golden.h": _golden(network, name, x),
        f"{name}_test.c": _test(network, name, len(x)),
    }
    for file_name, text in texts.items():
        write_atomic(folder / file_name, text.encode("ascii"))
    return source.sizes


def golden(network: file.Network, x: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray | None]:
    """Spikes of every layer, uint8 (K, T, *output_shape), and logits, float32 (K, T, outputs), for one recording."""
    from bisnn.packed.engine import Engine

    result = Engine(network).run(x[:, None].astype(np.uint8), spikes=True)
    return tuple(s[:, :, 0] for s in result.spikes), None if result.logits is None else result.logits[:, :, 0]


# From arrays to text


def _order(shape: tuple[int, ...]) -> np.ndarray:
    """Indices of a flattened (N,) or (C, H, W) in the order of the bits: channels last."""
    index = np.arange(math.prod(shape)).reshape(shape)
    return index if len(shape) == 1 else index.transpose(1, 2, 0).ravel()


def _blocks(w: np.ndarray) -> np.ndarray:
    """Words of bits w (..., n, inputs) in the order [...][block][word][neuron of the block]."""
    words = file.words(w.reshape(-1, *w.shape[-2:]))
    return np.concatenate([some.swapaxes(-1, -2).ravel() for one in words for some in np.split(one, range(32, len(one), 32))])


def _float(value: float | np.floating) -> str:
    """A float32 as an exact literal."""
    return re.sub(r"\.?0*p", "p", float(np.float32(value)).hex()) + "f"


def _numbers(values: np.ndarray) -> str:
    """The items of a table, as many a line as fit."""
    texts = [_float(v) for v in values.ravel()] if values.dtype == np.float32 else [f"0x{v:x}" for v in values.ravel().tolist()]
    per_line = 128 // (max(map(len, texts)) + 1)
    return ",\n".join(",".join(texts[i : i + per_line]) for i in range(0, len(texts), per_line))


def _table(name: str, values: np.ndarray) -> str:
    kind = "float" if values.dtype == np.float32 else "uint32_t"
    return f"static const {kind} {name}[{values.size}] = {{\n{_numbers(values)}}};\n"


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _function(head: str, lines: list[str]) -> str:
    return "\n".join([head, "{", *_indented(lines), "}", ""])


def _filled(template: str, **values: str | int) -> str:
    return Template(resources.files("bisnn.packed").joinpath(template).read_text("ascii")).substitute(values)


def _n_words(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // 32)


def _state_shape(layer: file.Layer) -> tuple[int, ...]:
    """Of the neurons that there are: those that no window of the pooling sees are left out."""
    if layer.kind != "conv":
        return layer.current_shape
    channels, height, width = layer.output_shape
    return (channels, height * layer.pool, width * layer.pool)


@dataclass
class _Source:
    """The text of the source: tables and functions, layer by layer."""

    network: file.Network
    name: str
    tables: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=lambda: {"flash": 0, "ram": 0})

    def __post_init__(self) -> None:
        emitters = {"dense": self._dense, "conv": self._conv, "recurrent": self._recurrent}
        for i, layer in enumerate(self.network.layers):
            head = f"static void layer_{i}({self.name}_state *state{', const uint32_t *x' if i == 0 else ''})"
            kappa = [] if len(layer.kappa) > 1 else [f"const float kappa_{i} = {_float(layer.kappa[0])};"]
            self.functions.append(_function(head, [*kappa, *emitters[layer.kind](i, layer)]))
            self.sizes["ram"] += 4 * self.network.count * (3 * math.prod(_state_shape(layer)) + _n_words(layer.output_shape))
        self.functions += self._interface()

    def code(self) -> str:
        tables, functions = "\n".join(self.tables), "\n".join(self.functions)
        return _filled("model.c.in", name=self.name, flush=_float(FLUSH), tables=tables, functions=functions)

    def header(self) -> str:
        name, network = self.name.upper(), self.network
        constants = {
            "MEMBERS": network.count,
            "LAYERS": len(network.layers),
            "INPUTS": math.prod(network.input_shape),
            "INPUT_WORDS": _n_words(network.input_shape),
            "OUTPUTS": network.outputs,
            "FLASH_BYTES": self.sizes["flash"],
            "RAM_BYTES": self.sizes["ram"],
        }
        state = []
        for i, layer in enumerate(network.layers):
            constants |= {f"SPIKES_{i}": math.prod(layer.output_shape), f"WORDS_{i}": _n_words(layer.output_shape)}
            size = f"[{name}_MEMBERS][{math.prod(_state_shape(layer))}]"
            state.append(f"    float P{i}{size}, Q{i}{size}, R{i}{size};\n    uint32_t s{i}[{name}_MEMBERS][{name}_WORDS_{i}];")
        return _filled(
            "model.h.in",
            name=self.name,
            NAME=name,
            about="\n".join(f" *   layer {i}: {_described(layer)}" for i, layer in enumerate(network.layers)),
            constants="\n".join(f"#define {name}_{key} {value}" for key, value in constants.items()),
            state="\n".join(state),
            speaking="the readouts of " + (", ".join(f"layer {i}" for i, *_ in network.speaking) or "none"),
            **self.sizes,
        )

    def _add(self, name: str, values: np.ndarray) -> str:
        """A table of the source; its name."""
        self.tables.append(_table(name, values))
        self.sizes["flash"] += values.nbytes
        return name

    def _members(self, lines: list[str]) -> list[str]:
        return [f"for (k = 0; k < {self.name.upper()}_MEMBERS; k++) {{", *_indented(lines), "}"]

    def _neurons(
        self, i: int, layer: file.Layer, w: np.ndarray, x: str, spikes: str, at: str = "", mask: str = "NULL"
    ) -> tuple[str, str]:
        """Calls of fire and integrate for the neurons of a pixel; w (K, n, inputs) has its inputs in the order of the bits of x."""
        n, inputs = w.shape[1:]
        table = self._add(f"weights_{i}", _blocks(w))
        kappa = f"&kappa_{i}, 0" if len(layer.kappa) == 1 else self._add(f"kappa_{i}", layer.kappa) + ", 1"
        a_m, a_s, a_r, theta = map(_float, layer.constants)
        P, Q, R = (f"state->{trace}{i}[k]{at}" for trace in "PQR")
        return (
            f"fire({P}, {Q}, {R}, {n}, {kappa}, {a_r}, {theta}, {spikes});",
            f"integrate({P}, {Q}, {n}, {x}, {inputs}, {table} + k * {n * -(-inputs // 32)}, {mask}, {a_m}, {a_s});",
        )

    def _dense(self, i: int, layer: file.Layer) -> list[str]:
        w = layer.weights[..., _order(layer.input_shape)]
        return ["size_t k;", *self._members([*self._neurons(i, layer, w, _input(i), f"state->s{i}[k]")])]

    def _recurrent(self, i: int, layer: file.Layer) -> list[str]:
        n_in, words, own = math.prod(layer.input_shape), _n_words(layer.input_shape), -(-layer.neurons // 32)

        def columns(w: np.ndarray) -> np.ndarray:  # the layer's own spikes start with a word
            gap = np.zeros((*w.shape[:-1], 32 * words - n_in), bool)
            return np.concatenate([w[..., _order(layer.input_shape)], gap, w[..., n_in:]], -1)

        mask = "NULL" if layer.mask is None else self._add(f"mask_{i}", _blocks(columns(layer.mask)))
        fire, integrate = self._neurons(i, layer, columns(layer.weights), "window", "fired", mask=mask)
        lines = [fire, f"memcpy(window, {_input(i)}, {4 * words});"]
        if i == 0 and n_in % 32:
            lines.append(f"window[{words - 1}] &= 0x{(1 << n_in % 32) - 1:x}; /* the others of the caller's bits are no inputs */")
        lines += [f"memcpy(window + {words}, fired, {4 * own});", integrate]
        start = [f"uint32_t fired[{own}], window[{words + own}];"]
        if layer.outputs is None:
            return [*start, "size_t k;", *self._members([*lines, f"memcpy(state->s{i}[k], fired, {4 * own});"])]
        chosen = self._add(f"outputs_{i}", np.array(layer.outputs, np.uint32))
        lines += [
            f"memset(state->s{i}[k], 0, sizeof state->s{i}[k]);",
            f"for (i = 0; i < {len(layer.outputs)}; i++)",
            f"    state->s{i}[k][i / 32] |= (fired[{chosen}[i] / 32] >> {chosen}[i] % 32 & 1) << i % 32;",
        ]
        return [*start, "size_t k, i;", *self._members(lines)]

    def _conv(self, i: int, layer: file.Layer) -> list[str]:
        channels, height, width = layer.input_shape
        n, rows, columns = _state_shape(layer)
        w = layer.weights.reshape(-1, n, channels, *layer.kernel).transpose(0, 1, 3, 4, 2).reshape(layer.weights.shape)
        sizes = ", ".join(map(str, (height, width, channels, *layer.kernel, *layer.padding)))
        gather = f"gather(window, {_input(i)}, {sizes}, y * {layer.stride[0]}, z * {layer.stride[1]});"
        lines = [*self._neurons(i, layer, w, "window", "fired", " + at"), f"add_bits(state->s{i}[k], to, fired, 0, {n});"]
        members = [gather, *self._members(lines)] if i == 0 else self._members([gather, *lines])  # members share the input
        pixel = [
            f"const size_t at = (y * {columns} + z) * {n};",
            f"const size_t to = (y / {layer.pool} * {layer.output_shape[2]} + z / {layer.pool}) * {n};",
            *members,
        ]
        return [
            f"uint32_t window[{-(-layer.inputs // 32)}], fired[{-(-n // 32)}];",
            "size_t y, z, k;",
            f"memset(state->s{i}, 0, sizeof state->s{i});",
            f"for (y = 0; y < {rows}; y++)",
            f"    for (z = 0; z < {columns}; z++) {{",
            *_indented(_indented(pixel)),
            "    }",
        ]

    def _interface(self) -> list[str]:
        name, outputs, speaking = self.name, self.network.outputs, self.network.speaking
        steps = [f"layer_{i}(state{', x' if i == 0 else ''});" for i in range(len(self.network.layers))]
        if not speaking:
            steps.append("(void)logits;")
        else:
            calls: list[str] = []
            for i, layer, readout in speaking:
                V = self._add(f"V_{i}", _blocks(readout.V[:, _order(layer.output_shape)]))
                of = f"state->s{i}[k], {math.prod(layer.output_shape)}, {V}, {_float(readout.scale)}"
                calls.append(f"readout(logits + k * {outputs}, {outputs}, {of}, {1 if calls else 0});")
            if len(speaking) > 1:
                calls.append(f"multiply(logits + k * {outputs}, {outputs}, {_float(np.float32(1 / len(speaking)))});")
            steps = ["size_t k;", *steps, "if (logits == NULL)", "    return;", *self._members(calls)]
        return [
            _function(f"void {name}_reset({name}_state *state)", ["memset(state, 0, sizeof *state);"]),
            _function(f"void {name}_step({name}_state *state, const uint32_t *x, float *logits)", steps),
        ]


def _input(i: int) -> str:
    return "x" if i == 0 else f"state->s{i - 1}[k]"


def _described(layer: file.Layer) -> str:
    text = f"{layer.kind}, {' x '.join(map(str, layer.input_shape))} -> {' x '.join(map(str, layer.output_shape))}"
    if layer.kind == "conv":
        text += f", kernel {layer.kernel}, stride {layer.stride}, padding {layer.padding}, pool {layer.pool}"
    return text + f", {layer.synapses} synapses"


# The test


def _edges(layer: file.Layer, most: int = 8) -> np.ndarray:
    """States of the first neuron that leaves the layer at which a fused product would decide otherwise: rows of P, R, spike.

    With Q = 0 the potential is kappa P - R: R puts the rounded product at the threshold, and what rounding took off decides.
    There are none where kappa is a power of two: no product is rounded then.
    """
    kappa = layer.kappa[_first(layer) if len(layer.kappa) > 1 else 0]
    theta = layer.constants[3]
    P = (theta / kappa * np.linspace(16, 64, 1000)).astype(np.float32)
    R = kappa * P - theta
    fires = kappa * P - R > theta
    fused = (kappa.astype(np.float64) * P.astype(np.float64) - R).astype(np.float32) > theta  # the product is exact
    return np.stack([P, R, fires], 1)[fires != fused][:most].astype(np.float32)


def _first(layer: file.Layer) -> int:
    """The neuron whose spikes leave the layer as bit 0."""
    return layer.outputs[0] if layer.outputs else 0


def _golden(network: file.Network, name: str, x: np.ndarray) -> str:
    """Inputs [T][words], spikes of each layer [T][member][words], logits [T][member][outputs], edges [n][P, R, spike]."""
    spikes, logits = golden(network, x)
    tables = [_table("golden_x", file.words(x.reshape(len(x), -1)[:, _order(x.shape[1:])]))]
    for i, s in enumerate(spikes):  # (K, T, ...)
        bits = s.reshape(*s.shape[:2], -1)[..., _order(s.shape[2:])]
        tables.append(_table(f"golden_s{i}", file.words(bits).swapaxes(0, 1)))
    if logits is not None:
        tables.append(_table("golden_logits", logits.swapaxes(0, 1)))
    edges = enumerate(map(_edges, network.layers))
    tables += [_table(f"golden_edges{i}", values) for i, values in edges if len(values)]
    return f"/* What {name} is to give. */\n#include <stdint.h>\n" + "\n".join(tables)


def _test(network: file.Network, name: str, steps: int) -> str:
    upper = name.upper()
    compared = [(f"state.s{i}", f"golden_s{i}", f"WORDS_{i}", f"spikes of layer {i}") for i in range(len(network.layers))]
    if network.outputs:
        compared.append(("logits", "golden_logits", "OUTPUTS", "logits"))
    checks = []
    for got, wanted, per_member, what in compared:
        size = f"{upper}_MEMBERS * {upper}_{per_member}"
        checks.append(f'            bad = bad || differ({got}, {wanted} + t * {size}, {size}, t, run, "{what}");')
    unused = f"~UINT32_C(0) << {upper}_INPUTS % 32" if math.prod(network.input_shape) % 32 else "0"
    edges = [_edge_test(i, layer, name) for i, layer in enumerate(network.layers) if len(_edges(layer))]
    parts = {"checks": "\n".join(checks), "edges": "\n".join(edges), "unused": unused}
    return _filled("model_test.c.in", name=name, NAME=upper, steps=steps, **parts)


def _edge_test(i: int, layer: file.Layer, name: str) -> str:
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
