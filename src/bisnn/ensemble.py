"""Ensembles on a GPU: a layer runs once for many members, which lie side by side in the batch.

Axes: spikes and currents are (T, K B, ...), those of member k from k B to (k + 1) B; weights (K,
...). All members share the network's input, (T, B, ...). Nothing but spikes leaves a layer, and the
last readout alone is made. Currents are exact integers and the scan is elementwise in the batch, so
the logits are those of one member after the other, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bisnn.alphabet import BINARY
from bisnn.kernels import reference
from bisnn.layer import Layer, Readout
from bisnn.network import Network
from bisnn.spec import LayerSpec

GROUP_BYTES = 1 << 31  # of currents and spikes that a group of members may have at a time
MOST_MEMBERS = 65_535  # of a group: they are an axis of a launch


def is_chain(net: Network) -> bool:
    """Whether each layer reads the one before it alone, has no cycles and a neuron with kernels."""
    return all(
        spec.inputs == (i - 1,) and spec.kind != "recurrent" and spec.neuron.fused
        for i, spec in enumerate(net.spec)
    )


def logits(net: Network, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The last readout of each member, (K, T, B, outputs), from spikes x on a GPU.

    Args:
        net: a chain, see `is_chain`, in float32.
        x: spikes, (T, B, ...).
        weights: of each layer those of all members, int8 (K, ...).

    Members run in groups, as many at a time as have at most GROUP_BYTES of currents and spikes in a
    layer, and at least one.
    """
    K, (T, B) = len(weights[0]), x.shape[:2]
    most = max(1, min(K, MOST_MEMBERS, GROUP_BYTES // (T * B * max(map(_bytes, net.spec)))))
    size = math.ceil(K / math.ceil(K / most))  # groups of about the same size
    groups = zip(*(w.split(size) for w in weights), strict=True)
    with torch.autocast(x.device.type, enabled=False):  # readouts must stay exact
        parts = [_group_logits(net, x, group).unflatten(1, (-1, B)) for group in groups]
    return torch.cat(parts, 1).movedim(1, 0)


def _bytes(spec: LayerSpec) -> int:
    """Of a layer's spikes before it, as bytes and once more with their padding, its currents, and
    the spikes after it, for one member, recording and time step.
    """
    current = 2 if spec.most_current < 1 << 15 else 4
    inputs, outputs = math.prod(spec.input_shape), math.prod(spec.output_shape)
    return 2 * inputs + current * math.prod(spec.current_shape) + 4 * outputs


def _group_logits(net: Network, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """(T, K B, outputs)."""
    s, last, readout = x, net.layers[-1], net.readouts[-1]
    assert isinstance(readout, Readout)
    for layer, w in zip(net.layers, weights, strict=True):
        dtype = torch.float32 if layer is last else torch.int8
        s = _spikes(layer, s, w, s is x, dtype)
    if last.kind != "conv":
        return readout(s)
    V = readout.channels_last(last.output_shape)
    return reference.readout(s.movedim(2, -1), V, readout.scale)


def _spikes(layer: Layer, x: Tensor, weights: Tensor, shared: bool, dtype: torch.dtype) -> Tensor:
    """What leaves a layer, (T, K B, ...)."""
    from bisnn.kernels import cuda, cuda_scan  # Triton takes a while to load

    spec, conv = layer.spec, layer.kind == "conv"
    x = x.movedim(2, -1) if conv else x.flatten(2)
    places = ([*spec.stride], [*spec.padding]) if conv else ([], [])
    levels = (spec.alphabet or BINARY).levels
    I = cuda.member_currents(x, weights, *places, levels, shared)
    s = cuda_scan.spikes(I, layer.kappa, layer.constants, layer.integers, spec.pool, dtype)
    return s.movedim(-1, 2) if conv else s
