"""The random numbers of `bits.philox` as tensors, the same on every device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bisnn import kernels
from bisnn.bits import philox
from bisnn.bits.philox import Purpose


def uniform(streams: Tensor, n: int, seed: int, purpose: Purpose, draw: int | Tensor = 0) -> Tensor:
    """The first n numbers in [0, 1) of each stream (S,), float32 (S, n), on their device."""
    match kernels.name_for(streams.device, torch.float32):
        case "cpu":
            return torch.from_numpy(philox.uniform(streams.numpy(), n, seed, purpose, int(draw)))
        case "cuda":
            from bisnn.kernels import cuda_draws

            return cuda_draws.uniform(streams, n, seed, purpose, draw)
    places = torch.arange(n, device=streams.device)
    return _reference(places, streams[:, None], seed, purpose, draw)


def uniform_at(
    places: Tensor, streams: Tensor, seed: int, purpose: Purpose, draw: int = 0
) -> Tensor:
    """The numbers of `uniform` at these places of these streams, both (n,)."""
    match kernels.name_for(streams.device, torch.float32):
        case "cpu":
            return torch.from_numpy(
                philox.uniform_at(places.numpy(), streams.numpy(), seed, purpose, draw)
            )
        case "cuda":
            from bisnn.kernels import cuda_draws

            return cuda_draws.uniform_at(places, streams, seed, purpose, draw)
    return _reference(places, streams, seed, purpose, draw)


class Noise(NamedTuple):
    """Which random numbers: a stream of a seed and purpose, and which of its draws; on a GPU that
    may be a tensor of one number there, which a recorded step reads anew.
    """

    stream: int
    seed: int
    purpose: Purpose
    draw: int | Tensor

    def like(self, w: Tensor) -> Tensor:
        """A number in [0, 1) for every element of w; see `uniform_like`."""
        return uniform_like(w, *self)


def uniform_like(
    w: Tensor, stream: int, seed: int, purpose: Purpose, draw: int | Tensor = 0
) -> Tensor:
    """A number in [0, 1) for every element of w, on its device; float64 if w is, else float32."""
    streams = torch.full((1,), stream, device=w.device)
    drawn = uniform(streams, w.numel(), seed, purpose, draw).reshape(w.shape)
    # Half precision would round some to 1
    return drawn.double() if w.dtype == torch.float64 else drawn


def _reference(
    places: Tensor, streams: Tensor, seed: int, purpose: Purpose, draw: int | Tensor
) -> Tensor:
    """The definition in plain PyTorch, for places and streams whose shapes broadcast."""
    places, streams = torch.broadcast_tensors(places.long(), streams.long())
    zero = torch.zeros_like(places)
    block = philox.philox(
        places >> 2,
        streams,
        zero + (draw.long() if isinstance(draw, Tensor) else draw),
        zero,
        seed,
        int(purpose),
    )
    word = torch.stack(block).gather(0, (places & 3)[None])[0]
    return (word >> 8).float() * 2.0**-24
