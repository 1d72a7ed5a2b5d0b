"""Passes over the weights on the CPU, compiled by numba: a sample of binary weights, a step of
Adam. Each is one pass over memory, where PyTorch's operations would make twenty.

What is computed is defined in `bisnn.weights` and `bisnn.optimizer`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from bisnn.bits import threads
from bisnn.bits.compilation import kernel
from bisnn.kernels.cpu_scan import exponential
from bisnn.kernels.draws import Noise

_V = "float32[::1]"
_f = np.float32
_ONE, _TWO, _HALF = _f(1), _f(2), _f(0.5)
_EPS_MIN, _MAX_FACTOR = _f(2.0**-24), _f(math.exp(20))  # as in `weights`, which imports this
_TINY = _f(1e-8)  # as in `optimizer.adam`


@njit(inline="always")
def _logarithm(x):
    """log x of a positive, normal number: its exponent, and a polynomial of Cephes' on
    [sqrt(1/2), sqrt(2)]. Relative error below 2e-7.
    """
    bits = np.int32(_f(x).view(np.int32) - np.int32(0x3F3504F3))  # from sqrt(1/2) on
    n = np.int32(bits >> np.int32(23))
    m = np.int32((bits & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3)).view(np.float32)
    t = m - _ONE
    p = _f(7.0376836292e-2)
    p = p * t + _f(-1.1514610310e-1)
    p = p * t + _f(1.1676998740e-1)
    p = p * t + _f(-1.2420140846e-1)
    p = p * t + _f(1.4249322787e-1)
    p = p * t + _f(-1.6668057665e-1)
    p = p * t + _f(2.0000714765e-1)
    p = p * t + _f(-2.4999993993e-1)
    p = p * t + _f(3.3333331174e-1)
    low = p * t * t * t + _f(n) * _f(-2.12194440e-4) - _HALF * t * t
    return (t + low) + _f(n) * _f(0.693359375)


@kernel(f"void(int64, int64, {_V}, {_V}, {_V}, float32, boolean)", contract=True)
def _sample(lo, hi, w_r, eps, w, tau, hard):
    """w = tanh(z) with z = (w^r + delta) / tau, or its sign; and exp(2 (logcosh w^r - logcosh z)) /
    tau, for the gradient, in the place of the random numbers.

    With a = exp(-2 |z|) the first is (1 - a) / (1 + a) with the sign of z; and exp(2 logcosh x) is
    exp(2 |x|) (1 + exp(-2 |x|))^2 / 4.
    """
    w_r, eps, w = w_r[lo:hi], eps[lo:hi], w[lo:hi]
    for i in range(hi - lo):
        e = max(eps[i], _EPS_MIN)
        x = w_r[i] + _HALF * _logarithm(e / (_ONE - e))
        z = abs(x / tau)
        a, b = exponential(-_TWO * z), exponential(-_TWO * abs(w_r[i]))
        size = _ONE if hard else (_ONE - a) / (_ONE + a)
        w[i] = size if x >= 0 else -size
        ratio = (_ONE + b) / (_ONE + a)
        rise = exponential(min(_TWO * (abs(w_r[i]) - z), _f(22)))
        eps[i] = min(rise * ratio * ratio, _MAX_FACTOR) / tau


@kernel(f"void(int64, int64, {_V}, {_V}, {_V}, {_V}, {', '.join(['float32'] * 6)})")
def _adam(lo, hi, g, m, v, out, beta1, rest1, beta2, rest2, total1, total2):
    g, m, v, out = g[lo:hi], m[lo:hi], v[lo:hi], out[lo:hi]
    for i in range(hi - lo):
        m[i] = beta1 * m[i] + rest1 * g[i]
        v[i] = beta2 * v[i] + rest2 * (g[i] * g[i])
        out[i] = m[i] / total1 / (np.sqrt(v[i] / total2) + _TINY)


def _run(kernel, n: int, *arguments: object) -> None:
    threads.run(kernel, n, n, *arguments, count=torch.get_num_threads())


def _flat(x: Tensor) -> np.ndarray:
    return x.detach().reshape(-1).numpy()


def sample(w_r: Tensor, noise: Noise, tau: float, hard: bool) -> tuple[Tensor, Tensor]:
    """As `weights.relax`, or its sign, and `weights.mean_gradient_factor`, to float32 accuracy."""
    factor = noise.like(w_r)
    w = torch.empty_like(factor)
    _run(_sample, w.numel(), _flat(w_r), _flat(factor), _flat(w), tau, hard)
    return w, factor


def adam(g: Tensor, m: Tensor, v: Tensor, step: int, beta1: float, beta2: float) -> Tensor:
    """As `optimizer.adam`, to float32 accuracy; m and v, contiguous, are written in place."""
    out, in_place = torch.empty_like(m), (x.view(-1).numpy() for x in (m, v))
    sizes = (beta1, 1 - beta1, beta2, 1 - beta2, 1 - beta1**step, 1 - beta2**step)
    _run(_adam, out.numel(), _flat(g), *in_place, _flat(out), *sizes)
    return out
