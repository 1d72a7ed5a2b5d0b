"""The program that tries exported code: golden vectors, and states next to a threshold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.packed import encoding
from bisnn.packed.network import PackedLayer, PackedNetwork
from bisnn.packed.network import words as words_of
from bisnn.shipping import c_sets
from bisnn.shipping.c_text import (
    bit_order,
    filled,
    indented,
    is_whole,
    output_type,
    result_name,
    table_text,
)

GOLDEN_BITS = 600  # of each point that the encoder is tried on, or more


def golden(
    network: PackedNetwork, x: np.ndarray
) -> tuple[tuple[np.ndarray, ...], np.ndarray | None]:
    """One recording's spikes, uint8 (K, T, *output_shape), and logits, float32 (K, T, outputs)."""
    from bisnn.packed.engine import Engine

    result = Engine(network).run(x[:, None].astype(np.uint8), spikes=True)
    return tuple(
        s[:, :, 0] for s in result.spikes
    ), None if result.logits is None else result.logits[:, :, 0]


def _edges(layer: PackedLayer, most: int = 8) -> np.ndarray:
    """States of the first neuron that leaves the layer, see `Neuron.edges`."""
    kappa = layer.scale[_first(layer) if len(layer.scale) > 1 else 0]
    return layer.neuron.edges(kappa, layer.constants)[:most]


def _first(layer: PackedLayer) -> int:
    """The neuron whose spikes leave the layer as bit 0."""
    return layer.outputs[0] if layer.outputs else 0


def golden_header(network: PackedNetwork, name: str, x: np.ndarray) -> str:
    """Inputs [T][words], spikes [T][member][words], logits [T][member][outputs], edges."""
    spikes, logits = golden(network, x)
    tables = [table_text("golden_x", words_of(x.reshape(len(x), -1)[:, bit_order(x.shape[1:])]))]
    for i, s in enumerate(spikes):  # (K, T, ...)
        bits = s.reshape(*s.shape[:2], -1)[..., bit_order(s.shape[2:])]
        tables.append(table_text(f"golden_s{i}", words_of(bits).swapaxes(0, 1)))
    if logits is not None:
        y = logits.swapaxes(0, 1)
        if is_whole(network) and network.readout is not None:
            y = np.rint(y / network.readout.scale).astype(np.int32)
        tables.append(table_text(f"golden_{result_name(network)}", y))
    edges = enumerate(map(_edges, network.layers))
    tables += [table_text(f"golden_edges{i}", values) for i, values in edges if len(values)]
    if network.encoding:
        points, steps, bits = _encoded(network.encoding)
        tables += [
            table_text("golden_points", points),
            table_text("golden_steps", steps),
            table_text("golden_encoded", words_of(bits)),
        ]
    if network.sets is not None:
        tables.append(table_text("golden_set", _golden_set(network, x)))
    about = f"/* What {name} is to give. Made by bisnn; do not edit. */\n#include <stdint.h>\n"
    return about + "\n".join(tables)


def _golden_set(network: PackedNetwork, x: np.ndarray) -> np.ndarray:
    """The engine's prediction set of the recording, as each encoding of a point, as words; then the
    time steps and the members that it took.
    """
    from bisnn.packed.engine import Engine
    from bisnn.packed.sets import member_blocks, predict_sets

    assert network.sets is not None
    blocks = [Engine(block) for block in member_blocks(network, network.sets)]
    recordings = [x[:, None].astype(np.uint8)] * c_sets.encodings(network)
    found = predict_sets(blocks, network.sets, recordings)
    took = np.array([found.steps[0], found.members[0]], np.uint32)
    return np.concatenate([words_of(found.sets[0]), took])


def _encoded(code: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (N, d), time steps (t,), their spikes, uint8 (N, t, inputs), by draw i of point i."""
    low, high = np.array(code["low"], float), np.array(code["high"], float)
    span, d = high - low, len(low)
    drawn = philox.uniform([1], 12 * d, code["seed"], Purpose.EXPORT).reshape(12, d)
    places = drawn.astype(np.float64) * 1.5 - 0.25
    # And what rounds to -0, and what is far out
    corners = [low, high, np.where(low == 0, -0.0, low), low - 1e9 * span]
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


def check_program(network: PackedNetwork, name: str) -> str:
    """The function that runs the golden vectors."""
    upper = name.upper()
    compared = [
        (f"state.s{i}", f"golden_s{i}", f"WORDS_{i}", f"spikes of layer {i}")
        for i in range(len(network.layers))
    ]
    if network.outputs:
        result = result_name(network)
        compared.append(("result", f"golden_{result}", "OUTPUTS", result))
    checks = []
    for got, wanted, per_member, what in compared:
        size = f"{upper}_MEMBERS * {upper}_{per_member}"
        checks.append(
            f"            bad = bad || differ(first, {got}, {wanted} + t * {size}, {size}, t, run, "
            f'"{what}");'
        )
    unused = f"~UINT32_C(0) << {upper}_INPUTS % 32" if math.prod(network.input_shape) % 32 else "0"
    edges = [
        _edge_check(i, layer, name) for i, layer in enumerate(network.layers) if len(_edges(layer))
    ]
    parts = {
        "checks": "\n".join(checks),
        "edges": "\n".join(edges),
        "unused": unused,
        "encoder": "",
        "sets": "",
    }
    if network.encoding:
        points, times, _ = _encoded(network.encoding)
        parts["encoder"] = filled(
            "encoder_check.c.in", name=name, NAME=upper, points=len(points), times=len(times)
        )
    if network.sets is not None:
        encodings = c_sets.encodings(network)
        parts["sets"] = filled("sets_check.c.in", name=name, NAME=upper, encodings=encodings)
    types = {"output": output_type(network), "result": result_name(network)}
    return filled("check.c.in", name=name, NAME=upper, **types, **parts)


def check_header(name: str, steps: int) -> str:
    return filled("check.h.in", name=name, NAME=name.upper(), steps=steps)


def _edge_check(i: int, layer: PackedLayer, name: str) -> str:
    traces, at = layer.neuron.traces, f"{i}[0][{_first(layer)}]"
    what = f"layer {i} at its threshold, where a product was not rounded"
    lines = [
        f"for (t = 0; t < {len(_edges(layer))} && !bad; t++) {{",
        f"    const float *edge = golden_edges{i} + {len(traces) + 1} * t;",
        f"    const uint32_t fires = (uint32_t)edge[{len(traces)}];",
        "    uint32_t fired;",
        f"    {name}_reset(&state);",
        *(f"    state.{trace}{at} = edge[{n}];" for n, trace in enumerate(traces)),
        f"    {name}_step(&state, golden_x, NULL);",
        f"    fired = state.s{i}[0][0] & 1;",
        f'    bad = differ(first, &fired, &fires, 1, t, 0, "{what}");',
        "}",
    ]
    return "\n".join(indented(lines))
