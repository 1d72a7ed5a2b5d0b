"""Relaxed and hard samples of binary weights on a GPU, in Triton: one pass over the latents each.

The noise is drawn where it is used, from its counters, and drawn again on the way back: neither it
nor the factor of the gradient is ever in memory. What is computed is defined in `bisnn.weights`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bisnn.kernels.cuda_draws import word_at
from bisnn.kernels.draws import Noise

_BLOCK = 1024
# As in `weights`, which imports this
_EPS_MIN, _MAX_EXPONENT = tl.constexpr(2.0**-24), tl.constexpr(20.0)


@triton.jit
def _noise(i, key, stream, number):
    """delta = 1/2 log(eps / (1 - eps)) of elements i, with the uniform numbers of `cuda_draws`."""
    word = word_at(i, stream, tl.load(number), key)
    eps = (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24
    eps = tl.minimum(tl.maximum(eps, _EPS_MIN), 1 - _EPS_MIN)
    return 0.5 * tl.log(eps / (1 - eps))


@triton.jit
def _logcosh(x):
    size = tl.abs(x)
    return size + tl.log(1 + tl.exp(-2 * size)) - 0.6931471805599453


@triton.jit
def _sample(w_r, out, n, key, stream, number, tau, HARD: tl.constexpr, BLOCK: tl.constexpr):
    """w = tanh((w^r + delta) / tau), or its sign."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(w_r + i, i < n, 0.0) + _noise(i, key, stream, number)
    if HARD:
        w = tl.where(x >= 0, 1.0, -1.0)
    else:
        z = x / tl.load(tau).to(tl.float32)
        e = tl.exp(-2 * tl.abs(z))
        w = (1 - e) / (1 + e)
        w = tl.where(z < 0, -w, w)
    tl.store(out + i, w, i < n)


@triton.jit
def _pull_back(g, w_r, out, n, key, stream, number, tau, BLOCK: tl.constexpr):
    """g dw/dmu = g exp(2 (logcosh w^r - logcosh z)) / tau with z = (w^r + delta) / tau."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, t = tl.load(w_r + i, i < n, 0.0), tl.load(tau).to(tl.float32)
    z = (x + _noise(i, key, stream, number)) / t
    exponent = tl.minimum(2 * (_logcosh(x) - _logcosh(z)), _MAX_EXPONENT)
    tl.store(out + i, tl.load(g + i, i < n, 0.0) * (tl.exp(exponent) / t), i < n)


def sample(w_r: Tensor, noise: Noise, tau: float | Tensor, hard: bool) -> Tensor:
    """As `weights.relax`, or its sign, to float32 accuracy."""
    w_r, out = w_r.contiguous(), torch.empty_like(w_r, memory_format=torch.contiguous_format)
    _launch(_sample, (w_r, out), noise, tau, HARD=hard)
    return out


def pulled_back(g: Tensor, w_r: Tensor, noise: Noise, tau: float | Tensor) -> Tensor:
    """The gradient g at a sample, times `weights.mean_gradient_factor`; in place of g."""
    g = g.contiguous()
    _launch(_pull_back, (g, w_r.contiguous(), g), noise, tau)
    return g


def _launch(kernel, tensors: tuple[Tensor, ...], noise: Noise, tau: float | Tensor, **options):
    n, like = tensors[0].numel(), tensors[0]
    number, width = (
        x if isinstance(x, Tensor) else torch.full((1,), x, dtype=torch.float64, device=like.device)
        for x in (noise.draw, tau)
    )
    if n:
        key = int(noise.purpose) << 32 | noise.seed  # Triton's seed is both words of the key
        with torch.cuda.device(like.device):
            kernel[(triton.cdiv(n, _BLOCK),)](
                *tensors, n, key, noise.stream, number, width, BLOCK=_BLOCK, **options
            )
