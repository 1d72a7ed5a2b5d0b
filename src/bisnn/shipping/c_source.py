"""The source and the header of a packed network in C99: one of each, no library, no allocation.

All bits lie in one order, whatever the layer: bit n of a vector is bit n % 32 of word n / 32, and
an image has its channels last, n = (y W + x) C + c. What a kernel sees of a row is then one run of
bits. A table of weights has a row of bits for each neuron or for each input, whichever is smaller.
[member][plane][block of 32 neurons][word][neuron] is counted, so that compilers vectorise over the
neurons of a block; of [member][plane][input][block of 32 neurons] the rows of active inputs are
added up, which on chips without an instruction that counts bits takes a quarter of the time.

What is the same in every network is in the templates `*.in`; a neuron brings its own step,
`Neuron.c`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bisnn.neuron import FLUSH
from bisnn.packed.network import PackedLayer, PackedNetwork
from bisnn.shipping import c_sets
from bisnn.shipping.c_encoder import encoder_declarations
from bisnn.shipping.c_text import (
    TYPES,
    bit_order,
    filled,
    float_literal,
    function_prefix,
    function_text,
    indented,
    is_whole,
    layer_text,
    name_width,
    neuron_text,
    output_type,
    result_name,
    string_literal,
    table_text,
    weight_blocks,
    weight_rows,
    word_count,
)
from bisnn.spec import INPUT


def _state_shape(layer: PackedLayer) -> tuple[int, ...]:
    """Of the neurons that there are: those that no window of the pooling sees are left out."""
    if layer.kind != "conv":
        return layer.current_shape
    channels, height, width = layer.output_shape
    return (channels, height * layer.pool, width * layer.pool)


def state_bytes(network: PackedNetwork) -> int:
    """Of the state of one stream: traces, and the bits that left each layer."""
    words = (
        len(layer.neuron.traces) * math.prod(_state_shape(layer)) + word_count(layer.output_shape)
        for layer in network.layers
    )
    return 4 * network.count * sum(words)


@dataclass
class CSource:
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
            self.functions.append(function_text(head, [*own, *emitters[layer.kind](i, layer)]))
        self.sizes["ram"] = state_bytes(self.network)
        self.functions += self._interface()
        self.tables += self._classes()

    def code(self) -> str:
        neurons = {layer.neuron.kind: layer.neuron for layer in self.network.layers}
        texts = [neuron_text(neurons[kind]) for kind in sorted(neurons)]
        if any(neuron.dtype == np.float32 for neuron in neurons.values()):
            texts.insert(0, filled("float.c.in", flush=float_literal(FLUSH)))
        floats = not is_whole(self.network)
        widest = max(
            (layer.fan_in + 32 * len(layer.inputs)) * -(-layer.neurons // 32)
            for layer in self.network.layers
        )
        return filled(
            "model.c.in",
            name=self.name,
            NAME=self.name.upper(),
            row="uint16_t" if widest <= 1 << 16 else "uint32_t",
            float="#include <float.h>\n" if floats else "",
            neurons="".join(texts),
            tables="\n".join(self.tables),
            functions="\n".join(self.functions),
        )

    def header(self) -> str:
        name, network = self.name.upper(), self.network
        constants = self._constants()
        state = []
        for i, layer in enumerate(network.layers):
            constants |= {
                f"SPIKES_{i}": math.prod(layer.output_shape),
                f"WORDS_{i}": word_count(layer.output_shape),
            }
            size = f"[{name}_MEMBERS][{math.prod(_state_shape(layer))}]"
            traces = ", ".join(f"{trace}{i}{size}" for trace in layer.neuron.traces)
            state.append(
                f"    {_type_of(layer)[0]} {traces};\n"
                f"    uint32_t s{i}[{name}_MEMBERS][{name}_WORDS_{i}];"
            )
        names = ""
        if network.classes:
            width = name_width(network.classes)
            names = "\n/* The classes' names, in UTF-8. */"
            names += f"\nextern const char {self.name}_classes[{name}_CLASSES][{width}];\n"
        whole = is_whole(network)
        exact = "No operation from x to the counts is one on floating-point numbers."
        if not whole:
            exact = (
                "The spikes are exact under all options but those that change float arithmetic, "
                "such as -ffast-math, which are refused."
            )
        return filled(
            "model.h.in",
            name=self.name,
            NAME=name,
            about="\n".join(
                f" *   layer {i}: {layer_text(layer)}" for i, layer in enumerate(network.layers)
            ),
            constants="\n".join(
                f"#define {name}_{key} {value}" for key, value in constants.items()
            ),
            classes=names,
            state="\n".join(state),
            exact=exact,
            output=output_type(network),
            result=result_name(network),
            outputs=f"which {name}_LOGIT_SCALE makes logits;" if whole else "of the readout;",
            encoder=encoder_declarations(network, self.name) if network.encoding else "",
            sets=c_sets.declarations(network, self.name, network.sets) if network.sets else "",
            **self.sizes,
        )

    def _constants(self) -> dict[str, int | str]:
        network, code = self.network, self.network.encoding
        constants: dict[str, int | str] = {
            "MEMBERS": network.count,
            "LAYERS": len(network.layers),
            "INPUTS": math.prod(network.input_shape),
            "INPUT_WORDS": word_count(network.input_shape),
            "OUTPUTS": network.outputs,
            "BURN_IN": f"{network.burn_in} /* first time steps that a prediction leaves out */",
        }
        if code:
            means = "of a point, over which a prediction is the mean"
            constants |= {
                "STEPS": f"{code['steps']} /* time steps of a point */",
                "FEATURES": len(code["low"]),
                "ENCODINGS": f"{code.get('encodings', 1)} /* {means} */",
            }
        if network.classes:
            constants["CLASSES"] = len(network.classes)
        if is_whole(network) and network.readout is not None:
            constants["LOGIT_SCALE"] = f"{float(network.readout.scale)!r}f /* logits per count */"
        if network.task == "regression":
            constants["TARGET_MEAN"] = (
                f"({float(network.target_mean)!r}) /* a prediction is the mean logit ... */"
            )
            constants["TARGET_SCALE"] = (
                f"{float(network.target_scale)!r} /* ... times the scale, plus the mean */"
            )
        if network.sets is not None:
            constants |= c_sets.constants(network, network.sets)
        return constants | {"FLASH_BYTES": self.sizes["flash"], "RAM_BYTES": self.sizes["ram"]}

    def _classes(self) -> list[str]:
        """The classes' names, as one array: pointers would be more, and data to be relocated."""
        names = self.network.classes
        if not names:
            return []
        self.sizes["flash"] += len(names) * name_width(names)
        lines = ",\n".join(map(string_literal, names))
        return [
            f"const char {self.name}_classes[{self.name.upper()}_CLASSES][{name_width(names)}] = "
            f"{{\n{lines}}};\n"
        ]

    def _add(self, name: str, values: np.ndarray) -> str:
        """A table of the source; its name."""
        self.tables.append(table_text(name, values))
        self.sizes["flash"] += values.nbytes
        return name

    def _members(self, lines: list[str]) -> list[str]:
        return [f"for (k = 0; k < {self.name.upper()}_MEMBERS; k++) {{", *indented(lines), "}"]

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
        by_input = _by_input(n, inputs)
        values = (weight_rows if by_input else weight_blocks)(w)
        table = self._add(f"weights_{i}", values)
        each_member = planes * (inputs * -(-n // 32) if by_input else n * -(-inputs // 32))
        name, (shared, each) = function_prefix(layer.neuron), layer.step_constants()
        traces = ", ".join(f"state->{trace}{i}[k]{at}" for trace in layer.neuron.traces)
        own = [f"{constant}_{i}" for constant in layer.neuron.each]
        if each.shape[1] > 1:
            own = [*map(self._add, own, each), "1"]
        else:
            own = [*(f"&{constant}" for constant in own), "0"]
        zero = ["zero"] if layer.neuron.dtype == np.float32 else []
        constants = ", ".join([*own, *map(_type_of(layer)[1], shared), *zero])
        levels = f"{int(by_input)}, {planes}, {layer.alphabet.low}, {layer.alphabet.gap}"
        inward = f"{x}, {inputs}, {table} + k * {each_member}, {levels}, {mask}"
        return (
            f"{name}_fire({traces}, {n}, {constants}, {spikes});",
            f"{name}_integrate({traces}, {n}, {constants}, {spikes}, {inward});",
        )

    def _dense(self, i: int, layer: PackedLayer) -> list[str]:
        if len(layer.inputs) == 1:
            w = layer.bits()[..., bit_order(layer.input_shape)]
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

        mask = "NULL"
        if layer.mask is not None:
            parents = columns(layer.mask)
            table = weight_rows if _by_input(*parents.shape) else weight_blocks
            mask = self._add(f"mask_{i}", table(parents))
        w = columns(layer.bits())
        fire, integrate = self._neurons(i, layer, w, "window", "fired", mask=mask)
        lines = [fire, *fill, f"memcpy(window + {words}, fired, {4 * own});", integrate]
        start = [f"uint32_t fired[{own}], window[{words + own}];"]
        if layer.outputs is None:
            lines.append(f"memcpy(state->s{i}[k], fired, {4 * own});")
            return [*start, "size_t k;", *self._members(lines)]
        chosen = self._add(f"outputs_{i}", np.array(layer.outputs, np.uint32))
        lines += [
            f"memset(state->s{i}[k], 0, sizeof state->s{i}[k]);",
            f"for (i = 0; i < {len(layer.outputs)}; i++)",
            f"    state->s{i}[k][i / 32] |= "
            f"(fired[{chosen}[i] / 32] >> {chosen}[i] % 32 & 1) << i % 32;",
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
            "const size_t to = "
            f"(y / {layer.pool} * {layer.output_shape[2]} + z / {layer.pool}) * {n};",
            *members,
        ]
        return [
            f"uint32_t window[{words}], fired[{-(-n // 32)}];",
            "size_t y, z, k;",
            f"memset(state->s{i}, 0, sizeof state->s{i});",
            f"for (y = 0; y < {rows}; y++)",
            f"    for (z = 0; z < {columns}; z++) {{",
            *indented(indented(pixel)),
            "    }",
        ]

    def _interface(self) -> list[str]:
        name, network, outputs = self.name, self.network, self.network.outputs
        result = result_name(network)
        output = f"{output_type(network)} *{result}"
        head = f"void {name}_step({name}_state *state, const uint32_t *x, {output})"
        steps = [
            f"layer_{i}(state{', x' if INPUT in layer.inputs else ''});"
            for i, layer in enumerate(network.layers)
        ]
        more = []
        if network.readout is None:
            steps.append(f"(void){result};")
        else:
            shape, last = network.layers[-1].output_shape, len(network.layers) - 1
            V = self._add("V", weight_blocks(network.readout.V[:, bit_order(shape)]))
            of = f"s{last}[k], {math.prod(shape)}, {V}"
            call = [f"readout({result} + k * {outputs}, {outputs}, state->{of});"]
            declared = "size_t k;"
            if not is_whole(network):
                declared = f"int32_t counts[{outputs}];\n    size_t k, c;"
                scale = float_literal(network.readout.scale)
                call = [
                    f"readout(counts, {outputs}, state->{of});",
                    f"for (c = 0; c < {outputs}; c++)",
                    f"    logits[k * {outputs} + c] = {scale} * (float)counts[c];",
                ]
            unless = [f"if ({result} == NULL)", "    return;"]
            steps = [declared, *steps, *unless, *self._members(call)]
            if network.sets is not None:
                more = c_sets.functions(network, name, of, self._add)
        reset = f"void {name}_reset({name}_state *state)"
        cleared = function_text(reset, ["memset(state, 0, sizeof *state);"])
        return [cleared, function_text(head, steps), *more]


def _by_input(n: int, inputs: int) -> bool:
    """Whether weights have a row for each input, and not one for each neuron: what takes less."""
    return inputs * -(-n // 32) <= n * -(-inputs // 32)


def _type_of(layer: PackedLayer) -> tuple[str, Callable[..., str]]:
    """The C type of a layer's traces and constants, and how one is written."""
    return TYPES[np.dtype(layer.neuron.dtype).name]


def _own_constants(i: int, layer: PackedLayer) -> list[str]:
    """The variables that stand for constants that all neurons of a layer share, though they might
    differ, and for the zero of `rounded`.
    """
    (kind, text), (_, each) = _type_of(layer), layer.step_constants()
    lines = ["const uint32_t zero = hidden_zero();"] if layer.neuron.dtype == np.float32 else []
    if each.shape[1] > 1:
        return lines
    names = zip(layer.neuron.each, each[:, 0], strict=True)
    return lines + [f"const {kind} {name}_{i} = {text(value)};" for name, value in names]


def _source(number: int) -> str:
    """Where the bits lie that a layer reads: the caller's, or those that left an earlier layer."""
    return "x" if number == INPUT else f"state->s{number}[k]"


def _columns(layer: PackedLayer, w: np.ndarray) -> list[np.ndarray]:
    """The columns (..., inputs) of each input in the order of the bits, filled to whole words."""
    found = []
    for part, shape in zip(layer.columns(), layer.parts, strict=True):
        gap = np.zeros((*w.shape[:-1], -math.prod(shape) % 32), bool)
        found.append(np.concatenate([w[..., part][..., bit_order(shape)], gap], -1))
    return found


def _side_by_side(layer: PackedLayer) -> tuple[int, list[str]]:
    """Words of a window that holds a layer's inputs, each from a word on, and what copies them."""
    at, lines = 0, []
    for number, shape in zip(layer.inputs, layer.parts, strict=True):
        n, words = math.prod(shape), word_count(shape)
        lines.append(f"memcpy(window{f' + {at}' if at else ''}, {_source(number)}, {4 * words});")
        at += words
        if number == INPUT and n % 32:
            lines.append(
                f"window[{at - 1}] &= 0x{(1 << n % 32) - 1:x}; /* the others of the caller's bits "
                "are no inputs */"
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
