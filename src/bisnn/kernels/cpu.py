"""The scan, its adjoint and products with sparse spikes on the CPU, compiled by numba: float32, all of torch's threads.

A block of neurons keeps its traces in the L1 cache while time runs; the inner loop over neurons is what the compiler
vectorises. No fastmath and no fused multiply-add: the forward bits are those of `reference`.

The work is split over a thread pool of our own around kernels that release the GIL, because numba's OpenMP pool does not
survive a fork and its workqueue pool does not survive two calling threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from bisnn.kernels import reference
from bisnn.kernels.reference import FLUSH

BLOCK = 2048  # neurons whose traces (4 bytes each, four arrays) stay in L1 while time runs
SERIAL = 1 << 17  # elementary operations below which a second thread costs more than it saves
_f = np.float32
_FLUSH = _f(FLUSH)
_FLUSH_GRADIENT = _f(2.0**-100)  # adjoint traces: small gradients are legitimate, denormal ones only slow
_ZERO, _ONE, _HALF = _f(0), _f(1), _f(0.5)


# Each kernel has one signature and is compiled when this module is imported (from numba's cache on disk, after the first time).
_V, _M = "float32[::1]", "float32[:, ::1]"  # vector, matrix


def _kernel(signature: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return njit(signature, nogil=True, cache=True, error_model="numpy")


@_kernel(f"void(int64, int64, {_M}, {_V}, {_V}, {_V}, {_V}, {_V}, {_M}, {_M})")
def _scan(lo, hi, I, P, Q, R, kappa, c, s, u):
    a_m, a_s, a_r, theta = c[0], c[1], c[2], c[3]
    for first in range(lo, hi, BLOCK):
        last = min(first + BLOCK, hi)
        p, q, r, k = P[first:last], Q[first:last], R[first:last], kappa[first:last]
        for t in range(I.shape[0]):
            I_t, s_t, u_t = I[t, first:last], s[t, first:last], u[t, first:last]
            for i in range(last - first):
                v = k[i] * (p[i] - q[i]) - r[i]
                x = _ONE if v > theta else _ZERO
                u_t[i] = v
                s_t[i] = x
                p_i, q_i, r_i = a_m * (p[i] + I_t[i]), a_s * (q[i] + I_t[i]), a_r * (r[i] + x)
                p[i] = _ZERO if abs(p_i) <= _FLUSH else p_i
                q[i] = _ZERO if abs(q_i) <= _FLUSH else q_i
                r[i] = _ZERO if abs(r_i) <= _FLUSH else r_i


@njit(inline="always")
def _sigmoid_derivative(x):
    """sigma(x) (1 - sigma(x)) = e / (1 + e)^2 with e = exp(-|x|).

    exp by range reduction and a polynomial, because a call to libm would keep the loop from being vectorised: 2^-n exp(-r)
    with |r| <= ln(2)/2. Relative error below 4e-7; part of the gradient only, never of the forward bits.
    """
    a = min(abs(x), _f(87))
    n = np.int32(a * _f(1.4426950408889634) + _HALF)
    y = -((a - _f(n) * _f(0.693359375)) - _f(n) * _f(-2.12194440e-4))
    e = _f(1 / 720)
    e = e * y + _f(1 / 120)
    e = e * y + _f(1 / 24)
    e = e * y + _f(1 / 6)
    e = e * y + _HALF
    e = e * y + _ONE
    e = (e * y + _ONE) * np.int32((np.int32(127) - n) << np.int32(23)).view(np.float32)
    d = _ONE + e
    return e / (d * d)


@_kernel(f"void(int64, int64, {_M}, {_M}, {_V}, {_V}, {_V}, {_M}, {_V}, {_V}, boolean, float32, boolean, {_M})")
def _adjoint(lo, hi, g_s, g_u, G_P, G_Q, G_R, u, kappa, c, sigmoid, slope, refractory, g_I):
    a_m, a_s, a_r, theta = c[0], c[1], c[2], c[3]
    has_s, has_u = g_s.shape[0] > 0, g_u.shape[0] > 0
    g = np.empty(BLOCK, np.float32)
    for first in range(lo, hi, BLOCK):
        last = min(first + BLOCK, hi)
        p, q, r, k = G_P[first:last], G_Q[first:last], G_R[first:last], kappa[first:last]
        n = last - first
        for t in range(u.shape[0] - 1, -1, -1):
            u_t, g_I_t = u[t, first:last], g_I[t, first:last]
            for i in range(n):
                r[i] = a_r * r[i]
            if has_s:
                g_s_t = g_s[t, first:last]
                for i in range(n):
                    g[i] = r[i] + g_s_t[i]
            else:
                g[:n] = r
            if sigmoid:
                for i in range(n):
                    g[i] = g[i] * (slope * _sigmoid_derivative(slope * (u_t[i] - theta)))
            else:
                for i in range(n):
                    g[i] = g[i] * slope if abs(slope * (u_t[i] - theta)) < _HALF else _ZERO
            if has_u:
                g_u_t = g_u[t, first:last]
                for i in range(n):
                    g[i] = g[i] + g_u_t[i]
            for i in range(n):
                p_i, q_i = a_m * p[i], a_s * q[i]
                g_I_t[i] = p_i + q_i
                p_i, q_i = p_i + k[i] * g[i], q_i - k[i] * g[i]
                p[i] = _ZERO if abs(p_i) <= _FLUSH_GRADIENT else p_i
                q[i] = _ZERO if abs(q_i) <= _FLUSH_GRADIENT else q_i
            if refractory:
                for i in range(n):
                    r[i] = r[i] - g[i]


@lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Worker threads of this process: threads do not survive a fork, so a child gets its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="bisnn")


def _run(kernel: Callable[..., None], work: int, size: int, grain: int, *arguments: object) -> None:
    """`kernel(lo, hi, *arguments)` over 0..size, split among torch's thread count in multiples of `grain`."""
    blocks = -(-size // grain)
    threads = 1 if work < SERIAL else min(torch.get_num_threads(), blocks)
    bounds = [min(size, grain * (blocks * i // threads)) for i in range(threads + 1)]
    others = [_pool(os.getpid(), torch.get_num_threads()).submit(kernel, lo, hi, *arguments) for lo, hi in pairwise(bounds[1:])]
    kernel(bounds[0], bounds[1], *arguments)
    wait(others)
    for other in others:
        other.result()  # an exception in a worker is ours


def _flat(x: Tensor, steps: int | None = None) -> np.ndarray:
    """A contiguous float32 tensor as a numpy view: (T, M) if it has a time axis, else (M,)."""
    return x.detach().numpy().reshape(-1 if steps is None else (steps, -1))


def scan(
    I: Tensor, P: Tensor, Q: Tensor, R: Tensor, kappa: Tensor, constants: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.scan`, bit for bit."""
    T = I.shape[0]
    I = I.contiguous()
    P, Q, R = (x.expand(I.shape[1:]).clone(memory_format=torch.contiguous_format) for x in (P, Q, R))
    k = kappa.expand(I.shape[1:]).contiguous()
    s, u = torch.empty_like(I), torch.empty_like(I)
    state = (_flat(P), _flat(Q), _flat(R))
    _run(_scan, I.numel(), P.numel(), BLOCK, _flat(I, T), *state, _flat(k), _flat(constants), _flat(s, T), _flat(u, T))
    return s, u, P, Q, R


def adjoint(
    g_s: Tensor | None,
    g_u: Tensor | None,
    g_state: tuple[Tensor | None, Tensor | None, Tensor | None],
    u: Tensor,
    kappa: Tensor,
    constants: Tensor,
    surrogate: str,
    slope: float,
    refractory: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.adjoint`, to float32 accuracy."""
    T, u = u.shape[0], u.contiguous()
    empty = np.empty((0, 0), np.float32)
    e_s, e_u = (empty if g is None else _flat(g.contiguous(), T) for g in (g_s, g_u))
    G_P, G_Q, G_R = (torch.zeros(u.shape[1:]) if g is None else g.clone(memory_format=torch.contiguous_format) for g in g_state)
    if not refractory:
        G_R.zero_()
    k = kappa.expand(u.shape[1:]).contiguous()
    g_I = torch.empty_like(u)
    state = (_flat(G_P), _flat(G_Q), _flat(G_R))
    settings = (surrogate == "sigmoid", _f(slope), refractory)
    _run(_adjoint, u.numel(), k.numel(), BLOCK, e_s, e_u, *state, _flat(u, T), _flat(k), _flat(constants), *settings, _flat(g_I, T))
    return g_I, G_P, G_Q, G_R


# Products with spikes: where few are active, adding the rows of the active ones beats a dense matrix product.

SPARSE = 0.1  # density of spikes up to which it does; it breaks even at 0.07 to 0.2, by CPU (benchmarks/kernels.py)
COLUMNS = 16  # neurons a thread gets at least: a cache line of float32


_BITS_OF_ONE = np.uint32(0x3F800000)


@_kernel("boolean(uint32[:, ::1], uint32[::1], int64[::1])")
def _events(x, index, start):
    """Columns of the nonzeros of each row of x, given as bits; returns whether all of them are 1.0.

    Eight at a time: most eights are empty, and one OR tells. Within an eight there is no branch: spikes are unpredictable.
    """
    k = 0
    ones = True
    eights = x.shape[1] // 8 * 8
    for r in range(x.shape[0]):
        row = x[r]
        start[r] = k
        for j in range(0, eights, 8):
            if row[j] | row[j + 1] | row[j + 2] | row[j + 3] | row[j + 4] | row[j + 5] | row[j + 6] | row[j + 7]:
                for i in range(j, j + 8):
                    index[k] = i
                    k += row[i] != 0
                    ones &= (row[i] == 0) | (row[i] == _BITS_OF_ONE)
        for i in range(eights, x.shape[1]):
            index[k] = i
            k += row[i] != 0
            ones &= (row[i] == 0) | (row[i] == _BITS_OF_ONE)
    start[x.shape[0]] = k
    return ones


@_kernel(f"void(int64, int64, uint32[::1], int64[::1], {_M}, {_M})")
def _add_rows(lo, hi, index, start, w, out):
    """out[r] = sum of w[j] over the active j of row r; w is (n_in, n_out)."""
    for r in range(out.shape[0]):
        o = out[r, lo:hi]
        for i in range(hi - lo):
            o[i] = _ZERO
        for k in range(start[r], start[r + 1]):
            row = w[index[k], lo:hi]
            for i in range(hi - lo):
                o[i] += row[i]


@_kernel(f"void(int64, int64, uint32[::1], int64[::1], {_M}, {_M})")
def _scatter_rows(lo, hi, index, start, g, g_w):
    """g_w[j] += g[r] for every active j of row r; g_w is (n_in, n_out)."""
    for r in range(g.shape[0]):
        e = g[r, lo:hi]
        for k in range(start[r], start[r + 1]):
            row = g_w[index[k], lo:hi]
            for i in range(hi - lo):
                row[i] += e[i]


def _sparse_rows(x: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
    """(index, start) of the active inputs of each row of x (R, n_in), or None if x is no sparse matrix of spikes."""
    sampled = x[:: max(1, len(x) // 256)]  # the density of some rows decides
    if int(sampled.count_nonzero()) > SPARSE * sampled.numel():
        return None
    index = np.empty(x.numel() + 1, np.uint32)
    start = np.empty(len(x) + 1, np.int64)
    return (index, start) if _events(x.detach().numpy().view(np.uint32), index, start) else None


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (R, n_in) times weight (n_out, n_in): as `reference.linear`; the same bits for hard weights and spikes."""
    x = x.contiguous()
    rows = _sparse_rows(x)
    if rows is None:
        return reference.linear(x, weight)
    w = weight.detach().t().contiguous()
    out = torch.empty(len(x), len(weight))
    _run(_add_rows, int(rows[1][-1]) * len(weight), len(weight), COLUMNS, *rows, w.numpy(), out.numpy())
    return out


def linear_weight_gradient(g: Tensor, x: Tensor) -> Tensor:
    """g^T x, (n_out, n_in), for the gradient g (R, n_out) of the product and its input x (R, n_in)."""
    x = x.contiguous()
    rows = _sparse_rows(x)
    if rows is None:
        return reference.linear_weight_gradient(g, x)
    g = g.contiguous()
    g_w = torch.zeros(x.shape[1], g.shape[1])
    _run(_scatter_rows, int(rows[1][-1]) * g.shape[1], g.shape[1], COLUMNS, *rows, g.detach().numpy(), g_w.numpy())
    return g_w.t().contiguous()
