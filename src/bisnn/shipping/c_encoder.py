"""The encoder of points in C: from features to the spikes of `packed.encoding.spikes`.

It computes in doubles and is a source of its own, so that the network's has no float where its
neurons have none.
"""

from __future__ import annotations

import numpy as np

from bisnn.bits.philox import Purpose
from bisnn.packed import encoding
from bisnn.packed.network import PackedNetwork
from bisnn.shipping.c_text import double_literal, feature_order, filled, table_text


def encoder_source(network: PackedNetwork, name: str) -> str:
    code = network.encoding
    parts: dict[str, str | int] = {
        "seed": f"UINT32_C({code['seed']})",
        "points": int(Purpose.POINTS),
        "encoding": int(Purpose.ENCODING),
        "curve": "",
        "rate": "between(0, x, 1)",
        "farthest": double_literal(encoding.FARTHEST),
    }
    if code["code"] == "population":
        parts["curve"] = filled("tuning.c.in", terms=len(encoding.COSINE))
        gaps = code["neurons"] - 1
        distance = f"((double)x - (double)j / {gaps}) / {double_literal(code['width'] / gaps)}"
        parts["rate"] = f"raised_cosine(between(-1, {distance}, 1))"
    tables = "\n".join(table_text(table, values) for table, values in _tables(network).items())
    return filled("encoder.c.in", name=name, NAME=name.upper(), tables=tables, **parts)


def encoder_declarations(network: PackedNetwork, name: str) -> str:
    """What the header says of it."""
    order = feature_order(network)
    flash = sum(values.nbytes for values in _tables(network).values())
    return filled("encoder.h.in", name=name, NAME=name.upper(), order=order, flash=flash)


def _tables(network: PackedNetwork) -> dict[str, np.ndarray]:
    code = network.encoding
    low, high = (np.array(code[end], np.float64) for end in ("low", "high"))
    cosine = {"cosine": np.array(encoding.COSINE)} if code["code"] == "population" else {}
    return {"low": low, "span": high - low, **cosine}
