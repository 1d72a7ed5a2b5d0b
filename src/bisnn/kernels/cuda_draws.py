"""The random numbers of `packed.philox` on a GPU, in Triton, whose own Philox is the same one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bisnn.bits.philox import Purpose

_BLOCK = 1024


@triton.jit
def _draw(places, streams, n, length, key, number, out, DENSE: tl.constexpr, BLOCK: tl.constexpr):
    """Number `places[i]` of stream `streams[i]`; if DENSE, i % length of `streams[i // length]`."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    if DENSE:
        place = i % length
        stream = tl.load(streams + i // length, inside, 0)
    else:
        place = tl.load(places + i, inside, 0)
        stream = tl.load(streams + i, inside, 0)
    # Counters of 32 bits: those of 64 would make it another Philox
    zero = tl.zeros([BLOCK], tl.uint32)
    w0, w1, w2, w3 = tl.philox(
        key,
        (place // 4).to(tl.uint32),
        stream.to(tl.uint32),
        zero + tl.load(number).to(tl.uint32),
        zero,
    )
    j = place % 4
    word = tl.where(j < 2, tl.where(j == 0, w0, w1), tl.where(j == 2, w2, w3))
    tl.store(out + i, (word >> 8).to(tl.float32) * 5.9604644775390625e-08, inside)  # 2^-24


def uniform(streams: Tensor, n: int, seed: int, purpose: Purpose, draw: int | Tensor) -> Tensor:
    """(S,) -> (S, n)."""
    out = torch.empty(len(streams), n, device=streams.device)
    return _launch(streams, streams, n, seed, purpose, draw, out, dense=True)


def uniform_at(
    places: Tensor, streams: Tensor, seed: int, purpose: Purpose, draw: int | Tensor
) -> Tensor:
    """(n,), (n,) -> (n,)."""
    out = torch.empty(len(places), device=places.device)
    return _launch(places, streams, 1, seed, purpose, draw, out, dense=False)


def _launch(
    places: Tensor,
    streams: Tensor,
    length: int,
    seed: int,
    purpose: Purpose,
    draw: int | Tensor,
    out: Tensor,
    dense: bool,
) -> Tensor:
    key = int(purpose) << 32 | seed  # Triton's seed is both words of the key
    programs = (triton.cdiv(out.numel(), _BLOCK),)
    places, streams = places.long().contiguous(), streams.long().contiguous()
    number = draw.long() if isinstance(draw, Tensor) else torch.full_like(streams[:1], draw)
    if out.numel():
        _draw[programs](
            places, streams, out.numel(), length, key, number, out, DENSE=dense, BLOCK=_BLOCK
        )
    return out
