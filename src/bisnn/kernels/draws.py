"""The random numbers of `bits.philox` as tensors, and the probability of a weight that they are
compared with: the same on every device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bisnn import kernels
from bisnn.bits import philox
from bisnn.bits.philox import Purpose

# exp(t) = 2^k exp(r), with k the whole number nearest to t / log 2: adding 1.5 2^52 rounds to it.
# log 2 comes in two parts, of which the upper times k is exact; then 14 terms of the series, which
# leave an error below 1e-17.
EXPONENTIAL = (
    1 / math.log(2),
    1.5 * 2.0**52,
    float.fromhex("0x1.62e42feep-1"),
    float.fromhex("0x1.a39ef35793c76p-33"),
    *(1 / math.factorial(j) for j in range(13, -1, -1)),
)
LEAST, MOST = -40.0, 710.0  # beyond these, 1 / (1 + exp(t)) is 1, and 0


def probability(w_r: Tensor) -> Tensor:
    """p = sigma(2 w^r) in float64, to 4e-16 of itself.

    Libraries differ in the last bits of exp. This is made of additions, multiplications, a division
    and shifts in a fixed order, each of which has one result, so p is the same on every device, and
    in `cuda_draws`.
    """
    per_log_2, whole, upper, lower, *series = EXPONENTIAL
    t = (-2 * w_r.detach().double()).clamp(LEAST, MOST)
    k = (t * per_log_2 + whole) - whole
    r = (t - k * upper) - k * lower
    e = torch.full_like(r, series[0])
    for c in series[1:]:
        e.mul_(r).add_(c)
    power = ((k.long() + 1023) << 52).view(torch.float64)  # 2^k; infinite for k = 1024
    return 1 / (1 + e * power)


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
