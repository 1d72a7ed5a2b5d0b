"""From a network in PyTorch to its bits: the description that `packed` runs, and that every export
starts from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bisnn import weights
from bisnn.layers import Layer, Readout
from bisnn.network import Network, check_network
from bisnn.packed.network import PackedLayer, PackedNetwork, PackedReadout, spread


def describe(
    net: Network, members: Sequence[Sequence[Tensor]] | None = None, *, posterior: bool = False
) -> PackedNetwork:
    """A network of binary weights as its bits.

    Args:
        net: float32, binary weights. The readout of its last layer goes along, if there is one;
            others serve learning and stay out.
        members: for each member one bool tensor per layer, True where the weight is +1; None for
            the MAP weights sign(w^r).
        posterior: put the posterior itself in, at 8 bits per weight; its MAP weights are those of
            the network.
    """
    _check(net)
    if members is None:
        members = [[layer.weight.detach() >= 0 for layer in net.layers]]
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
    if net.weights != "binary":
        raise ValueError(
            "net: must have binary weights, or it has no bits to pack; got a full-precision network; train another rule"
        )
    if net.dtype != torch.float32:
        way = "use net.float(), or train with train.dtype = 'float32'"
        raise ValueError(
            f"net: must be float32, as all kernels that ship are; got {net.dtype}; {way}"
        )
    if any(weights.is_realised(p) for p in net.parameters()):
        raise RuntimeError(
            "describe(): the parameters hold a realisation w and not the latents w^r; call it outside the block"
        )


def _layer(layer: Layer, up: list[Tensor], posterior: bool) -> PackedLayer:
    spec = layer.spec
    latents = quantised(layer.weight.detach().cpu()) if posterior else None
    return PackedLayer(
        **vars(spec),
        weights=spread(np.stack([w.cpu().numpy().reshape(-1) for w in up]), spec),
        scale=layer.kappa.cpu().numpy().reshape(-1),
        constants=layer.constants.cpu().numpy(),
        posterior=None if latents is None else spread(latents.reshape(1, -1), spec)[0],
    )


def quantised(w_r: Tensor) -> np.ndarray:
    """p = sigma(2 w^r) as round(255 p), uint8, with the sign of w^r kept: 128 and above where w^r
    >= 0.
    """
    q = torch.floor(255 * weights.probability(w_r.double()) + 0.5)
    return torch.where(w_r >= 0, q.clamp(128, 255), q.clamp(0, 127)).to(torch.uint8).numpy()
