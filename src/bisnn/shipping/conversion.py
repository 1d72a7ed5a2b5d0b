"""A network with other neurons on the same weights, SRM or integers, and what that changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from bisnn.checks import choice
from bisnn.neuron import SRM, FixedSRM, Neuron
from bisnn.packed.engine import Engine
from bisnn.packed.network import PackedNetwork

NEURONS = ("srm", "fixed")


@dataclass(frozen=True)
class Changes:
    """What other neurons change on some recordings."""

    recordings: int
    spikes: int  # of the first network, over all layers, members and time steps
    changed_spikes: int  # neurons and time steps at which one network fires and the other does not
    changed_decisions: int | None  # recordings whose predicted class differs; None for regression


def converted(network: PackedNetwork, kind: str, fraction: int = 12) -> PackedNetwork:
    """The network with neurons of a kind, "srm" or "fixed", of the same time constants.

    A ValueError says in which layer traces could leave 32 bits, and the fraction that fits.
    """
    choice("neuron", kind, NEURONS)
    layers = []
    for i, layer in enumerate(network.layers):
        try:
            other = replace(layer, neuron=_as(layer.neuron, kind, fraction))
            other.step_constants()  # raises where they do not fit
        except ValueError as error:
            raise ValueError(f"layer {i}: {error}") from None
        layers.append(other)
    return replace(network, layers=tuple(layers))


def _as(neuron: Neuron, kind: str, fraction: int) -> Neuron:
    if not isinstance(neuron, SRM):
        raise ValueError(
            f"neuron: must be SRM or FixedSRM to become one of them; got {type(neuron).__name__}; "
            "ship it as trained"
        )
    shared = {field.name: getattr(neuron, field.name) for field in fields(SRM)}
    return SRM(**shared) if kind == "srm" else FixedSRM(**shared, fraction=fraction)


def changes(before: PackedNetwork, after: PackedNetwork, batches: Iterable[np.ndarray]) -> Changes:
    """What differs in `after`, a network of the same layers, on batches (T, B, *input_shape)."""
    engines = (Engine(before, sparse=False), Engine(after, sparse=False))
    decides = before.task == "classification" and before.readout is not None
    recordings = spikes = changed = decided = 0
    for x in batches:
        first, second = (engine.run(x, spikes=True).spikes for engine in engines)
        recordings += x.shape[1]
        spikes += sum(int(s.sum()) for s in first)
        changed += sum(int((s != t).sum()) for s, t in zip(first, second, strict=True))
        if decides:
            a, b = (engine.predict(x).mean.argmax(-1) for engine in engines)
            decided += int((a != b).sum())
    return Changes(recordings, spikes, changed, decided if decides else None)
