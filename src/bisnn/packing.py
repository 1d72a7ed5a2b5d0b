"""From a network in PyTorch to its bits: what `packed` runs and every export starts from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bisnn import realisation, weights
from bisnn.layer import Layer, Readout
from bisnn.network import Network, check_network
from bisnn.packed.network import PackedLayer, PackedNetwork, PackedReadout, spread

__all__ = ["describe"]


def describe(
    net: Network, members: Sequence[Sequence[Tensor]] | None = None, *, posterior: bool = False
) -> PackedNetwork:
    """A network whose weights are from an alphabet as its bits.

    Args:
        net: float32, weights from an alphabet. The readout of its last layer goes along, if there
            is one; others serve learning and stay out.
        members: for each member one tensor per layer, its weights, as `weights.draw_members` gives
            them; None for the MAP weights.
        posterior: put the posterior itself in, at 8 bits per weight and level but one; its MAP
            weights are those of the network.
    """
    _check(net)
    if members is None:
        members = [[realisation.map_weight(layer.weight) for layer in net.layers]]
    layers = [
        _layer(layer, [member[i] for member in members], posterior)
        for i, layer in enumerate(net.layers)
    ]
    readout = None
    last = net.readouts[-1]
    if isinstance(last, Readout):
        readout = PackedReadout((last.V > 0).cpu().numpy(), np.float32(last.scale.item()))
    return PackedNetwork(tuple(layers), net.input_shape, readout)


def _check(net: Network) -> None:
    """A ValueError or RuntimeError that says why this network has no bits to pack."""
    check_network(net)
    if net.alphabet is None:
        raise ValueError(
            "net: must have weights from an alphabet, or it has no bits to pack; "
            "got a full-precision network; train another rule"
        )
    if net.dtype != torch.float32:
        way = "use net.float(), or train with train.dtype = 'float32'"
        raise ValueError(
            f"net: must be float32, as all kernels that ship are; got {net.dtype}; {way}"
        )
    for i, layer in enumerate(net.layers):
        if type(layer.neuron).compiled is None:
            raise ValueError(
                "net: every neuron must have its step for numba, `compiled`; got "
                f"{type(layer.neuron).__name__} in layer {i}, which has its PyTorch step alone; "
                "add it as bisnn.neuron.Neuron says, or use SRM or FixedSRM"
            )
    if any(realisation.is_realised(p) for p in net.parameters()):
        raise RuntimeError(
            "describe(): the parameters hold a realisation w and not the latents w^r; call it "
            "outside the block"
        )


def _layer(layer: Layer, members: list[Tensor], posterior: bool) -> PackedLayer:
    spec = layer.spec
    drawn = np.stack([w.cpu().numpy().astype(np.int8).reshape(-1) for w in members])
    shares = quantised(layer.weight) if posterior else None
    return PackedLayer(
        **spec.values(),
        weights=spread(drawn, spec),
        scale=layer.kappa.cpu().numpy().reshape(-1),
        constants=layer.constants.cpu().numpy(),
        posterior=None if shares is None else spread(shares.reshape(len(shares), -1), spec),
    )


@torch.no_grad()
def quantised(parameter: Tensor) -> np.ndarray:
    """The posterior of a layer's weights, uint8 (levels - 1, *shape): of 255 shares those of the
    highest level, of the two highest, and so on.

    Each level has its probability's share, rounded so that they add up (the largest remainders go
    up), and the most probable level, which is the network's, keeps the most shares.
    """
    latents = weights.latents_of(parameter)
    w_r = parameter.detach().cpu().double()
    below = latents.limits(w_r).numpy()  # cumulated from the highest level down
    exact = 255 * np.diff(below, axis=0, prepend=0, append=1)
    shares = np.floor(exact)
    order = np.argsort(np.argsort(shares - exact, axis=0, kind="stable"), axis=0)
    shares += order < 255 - shares.sum(0)
    levels = np.array(latents.alphabet.levels[::-1]).reshape(-1, *(1,) * (below.ndim - 1))
    chosen = latents.modes(w_r).numpy() == levels
    for _ in range(len(levels)):
        top = np.expand_dims(shares.argmax(0), 0) == np.arange(len(levels)).reshape(levels.shape)
        moved = top & ~chosen
        shares += (chosen & moved.any(0)).astype(int) - moved
    return np.cumsum(shares, axis=0)[:-1].astype(np.uint8)
