"""Prediction sets in C: a calibrated network's thresholds, and the function that looks and stops.

Scores are sums of integers, so that the sets are those of `packed.Engine.predict_sets`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from bisnn.conformal import ConformalSets
from bisnn.packed.network import PackedNetwork
from bisnn.shipping.c_text import filled

MOST = 2**31 - 1


def check(network: PackedNetwork) -> None:
    """See that sums of counts, and their differences, fit 32 bits."""
    if network.sets is None:
        return
    steps, members = network.sets.path[-1]
    size = math.prod(network.layers[-1].output_shape)
    largest = 2 * steps * members * encodings(network) * size
    if largest > MOST:
        raise ValueError(
            "network: sums of counts must stay below 2^31 for prediction sets in C; got looks up "
            f"to {steps} time steps of {members} members, with which they reach {largest:,}; "
            "calibrate it with earlier looks"
        )


def encodings(network: PackedNetwork) -> int:
    """Spike trains of a point whose counts a look adds up."""
    return network.encoding.get("encodings", 1) if network.encoding else 1


def constants(network: PackedNetwork, rule: ConformalSets) -> dict[str, int | str]:
    """What the header defines."""
    return {
        "LOOKS": len(rule.path),
        "SET_WORDS": -(-network.outputs // 32),
        "SET_ENOUGH": f"{rule.most} /* classes of a set that is small enough to stop */",
    }


def declarations(network: PackedNetwork, name: str, rule: ConformalSets) -> str:
    """What the header declares."""
    several = encodings(network) > 1
    of_each = f"s: one for each of {name.upper()}_ENCODINGS draws of the point, after the same step"
    return filled(
        "sets.h.in",
        name=name,
        NAME=name.upper(),
        coverage=f"{rule.coverage:g}",
        groups=_groups(rule),
        several=of_each if several else "",
        states="states" if several else "state",
    )


def functions(
    network: PackedNetwork, name: str, of: str, add: Callable[[str, np.ndarray], str]
) -> list[str]:
    """What the source defines; `of` is the readout of member k of a state, and `add` adds a
    table."""
    rule, several = network.sets, encodings(network) > 1
    assert rule is not None
    add("look_steps", np.array([t for t, _ in rule.path], np.uint32))
    add("look_members", np.array([k for _, k in rule.path], np.uint32))
    # Scores lie in 0..MOST: thresholds outside let all in, or none
    add("look_thresholds", np.array(rule.thresholds).clip(-1, MOST).astype(np.int32))
    groups, members = _groups(rule), rule.path[-1][1]
    return [
        filled(
            "sets.c.in",
            name=name,
            NAME=name.upper(),
            groups=groups,
            members=members,
            group="0" if groups == 1 else "k",
            of=of,
            states="states" if several else "state",
            encoding="e, " if several else "",
            loop=f"    for (e = 0; e < {name.upper()}_ENCODINGS; e++)\n" if several else "",
            state="states[e]." if several else "state->",
        )
    ]


def _groups(rule: ConformalSets) -> int:
    """Sums that are kept apart: one for each member, unless all looks ask the same."""
    members = {k for _, k in rule.path}
    return 1 if len(members) == 1 else max(members)
