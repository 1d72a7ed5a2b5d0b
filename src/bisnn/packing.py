"""From a network in PyTorch to its bits: the description that `packed` runs, and that every export
starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from bisnn import realisation, weights
from bisnn.layers import Conv2d, Readout, Recurrent
from bisnn.layers import Layer as TorchLayer
from bisnn.network import Network as TorchNetwork
from bisnn.network import check_network
from bisnn.packed import file


def describe(
    net: TorchNetwork,
    members: Sequence[Sequence[Tensor]] | None = None,
    *,
    readouts: int = 1,
    posterior: bool = False,
) -> file.Network:
    """A network of binary weights as its bits.

    Args:
        net: float32, binary weights.
        members: for each member one tensor per layer, its weights, as `weights.draw_members` gives
            them; None for the MAP weights.
        readouts: how many of the last layers speak, as in `bisnn.predict`; other readouts serve
            learning and stay out.
        posterior: put the posterior itself in, at 8 bits a weight; its MAP weights are those of the
            network.
    """
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
    if any(realisation.is_realised(p) for p in net.parameters()):
        raise RuntimeError(
            "describe(): the parameters hold a realisation w and not the latents w^r; call it outside the block"
        )
    net.check_readouts(readouts)
    if members is None:
        members = [[realisation.map_weight(layer.weight) for layer in net.layers]]
    layers = []
    for i, (layer, readout) in enumerate(zip(net.layers, net.readouts, strict=True)):
        reads = isinstance(readout, Readout) and i >= len(net.layers) - readouts
        kept = cast("Readout", readout) if reads else None
        layers.append(_layer(layer, [member[i] for member in members], kept, posterior))
    return file.Network(tuple(layers), readouts=readouts)


def _layer(
    layer: TorchLayer, up: list[Tensor], readout: Readout | None, posterior: bool
) -> file.Layer:
    kind, neurons, places, mask, outputs = "dense", layer.current_shape[0], {}, None, None
    if isinstance(layer, Conv2d):
        kind, places = (
            "conv",
            {name: getattr(layer, name) for name in ("stride", "padding", "pool")},
        )
        places["kernel"] = layer.kernel_size
    elif isinstance(layer, Recurrent):
        kind, outputs = "recurrent", None if layer.outputs is None else tuple(layer.outputs)
        mask = None if layer.mask is None else layer.mask.cpu().numpy()

    def full(values: np.ndarray) -> np.ndarray:
        if mask is None:
            return values.reshape(neurons, -1)
        spread = np.zeros(mask.shape, values.dtype)
        spread[mask] = values
        return spread

    return file.Layer(
        kind=kind,
        input_shape=layer.input_shape,
        neurons=neurons,
        weights=np.stack([full(w.cpu().numpy() > 0) for w in up]),
        kappa=layer.kappa.cpu().numpy().reshape(-1),
        constants=layer.constants.cpu().numpy(),
        **places,
        mask=mask,
        outputs=outputs,
        readout=None
        if readout is None
        else file.Readout((readout.V > 0).cpu().numpy(), np.float32(readout.scale.item())),
        posterior=full(quantised(layer.weight.detach().cpu())) if posterior else None,
    )


def quantised(w_r: Tensor) -> np.ndarray:
    """p = sigma(2 w^r) as round(255 p), uint8, with the sign of w^r kept: 128 and above where w^r
    >= 0.
    """
    q = torch.floor(255 * weights.probability(w_r.double()) + 0.5)
    return torch.where(w_r >= 0, q.clamp(128, 255), q.clamp(0, 127)).to(torch.uint8).numpy()
