"""The random numbers of `bits.philox` on a GPU, in Triton, whose own Philox is the same one, and
members of an ensemble from them.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from bisnn.bits.philox import Purpose
from bisnn.kernels.draws import EXPONENTIAL, LEAST, MOST

_BLOCK = 1024
_LEAST, _MOST, _TERMS = tl.constexpr(LEAST), tl.constexpr(MOST), tl.constexpr(len(EXPONENTIAL))


@triton.jit
def word_at(place, stream, draw, key):
    """The word at each place of a stream, or each of its own."""
    # Counters of 32 bits: those of 64 would make it another Philox
    zero = tl.zeros_like(place).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(
        key,
        (place // 4).to(tl.uint32),
        (zero + stream).to(tl.uint32),
        (zero + draw).to(tl.uint32),
        zero,
    )
    j = place % 4
    return tl.where(j < 2, tl.where(j == 0, w0, w1), tl.where(j == 2, w2, w3))


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
    word = word_at(place, stream, tl.load(number), key)
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


# Members of an ensemble


@triton.jit
def _probability(w_r, table):
    """As `draws.probability`, bit for bit; the table has its constants."""
    t = tl.minimum(tl.maximum(-2 * w_r.to(tl.float64), _LEAST), _MOST)
    whole = tl.load(table + 1)
    k = (t * tl.load(table) + whole) - whole
    r = (t - k * tl.load(table + 2)) - k * tl.load(table + 3)
    e = tl.zeros_like(r) + tl.load(table + 4)
    for j in tl.static_range(5, _TERMS):
        e = e * r + tl.load(table + j)
    power = ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    one = tl.zeros_like(r) + tl.load(table + _TERMS - 1)
    return one / (one + e * power)


@triton.jit
def _signs(w_r, table, out, n, count, key, stream, first, BLOCK: tl.constexpr):
    """Weights out (count, n): those of member k are +1 where its number is below p."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    p = _probability(tl.load(w_r + i, inside, 0.0), table) * 16777216.0  # 2^24
    for k in range(count):
        word = word_at(i, stream, first + k, key)
        plus = (word >> 8).to(tl.float64) < p
        tl.store(out + i, tl.where(plus, 1, -1).to(tl.int8), inside)
        out += n


@cache
def _table(device: torch.device) -> Tensor:
    return torch.tensor(EXPONENTIAL, dtype=torch.float64, device=device)


def signs(w_r: Tensor, count: int, seed: int, purpose: Purpose, stream: int, first: int) -> Tensor:
    """Weights from the posterior of these latents, int8 (count, *shape), of the draws from `first`
    on: +1 where the stream's number is below p = sigma(2 w^r).
    """
    out = torch.empty((count, *w_r.shape), dtype=torch.int8, device=w_r.device)
    n, key = w_r.numel(), int(purpose) << 32 | seed
    if out.numel():
        with torch.cuda.device(w_r.device):
            _signs[(triton.cdiv(n, _BLOCK),)](
                w_r.contiguous(), _table(w_r.device), out, n, count, key, stream, first,
                BLOCK=_BLOCK, enable_fp_fusion=False,
            )  # fmt: skip
    return out
