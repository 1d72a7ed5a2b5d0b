"""The scan, its adjoint and the products of a layer on the CPU, compiled by numba: float32, all of torch's threads.

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

from bisnn.kernels import bits, reference
from bisnn.kernels.bits import kernel
from bisnn.kernels.reference import FLUSH

BLOCK = 1024  # neurons whose traces (4 bytes each, four arrays) stay in L1 while time runs
SERIAL = 1 << 17  # elementary operations below which a second thread costs more than it saves
_f = np.float32
_FLUSH = _f(FLUSH)
_FLUSH_GRADIENT = _f(2.0**-100)  # adjoint traces: small gradients are legitimate, denormal ones only slow
_ZERO, _ONE, _HALF = _f(0), _f(1), _f(0.5)


_V, _M = "float32[::1]", "float32[:, ::1]"  # vector, matrix

# Neurons are worked on in units that lie together in memory and keep their traces in a cache while time runs: BLOCK neurons, or
# with pooling the pixels of one row of windows. `H`, `row` and `size` say where units lie: H rows of `row` neurons make a unit's
# image of `size` neurons (without pooling, all neurons are one image, of rows of BLOCK).


@kernel(f"void(int64, int64, {_M}, {_V}, {_V}, {_V}, {_V}, {_V}, {_M}, int64, int64, int64, int64, int64)")
def _scan(lo, hi, I, P, Q, R, kappa, c, s, pool, H, row, size, C):
    """Potentials take the place of the currents: half the memory, and one stream less."""
    a_m, a_s, a_r, theta = c[0], c[1], c[2], c[3]
    units = -(-H // pool)  # of an image
    for unit in range(lo, hi):
        image = unit // units * size
        first = image + unit % units * pool * row
        last = min(first + pool * row, image + size)
        p, q, r, k = P[first:last], Q[first:last], R[first:last], kappa[first:last]
        for t in range(I.shape[0]):
            u_t = I[t, first:last]  # I_t before, u_t after
            if pool == 1:
                s_t = s[t, first:last]
                for i in range(last - first):
                    v = k[i] * (p[i] - q[i]) - r[i]
                    x = _ONE if v > theta else _ZERO
                    s_t[i] = x
                    p_i, q_i, r_i = a_m * (p[i] + u_t[i]), a_s * (q[i] + u_t[i]), a_r * (r[i] + x)
                    u_t[i] = v
                    p[i] = _ZERO if abs(p_i) <= _FLUSH else p_i
                    q[i] = _ZERO if abs(q_i) <= _FLUSH else q_i
                    r[i] = _ZERO if abs(r_i) <= _FLUSH else r_i
                continue
            for i in range(last - first):
                v = k[i] * (p[i] - q[i]) - r[i]
                p_i, q_i, r_i = a_m * (p[i] + u_t[i]), a_s * (q[i] + u_t[i]), a_r * (r[i] + (_ONE if v > theta else _ZERO))
                u_t[i] = v
                p[i] = _ZERO if abs(p_i) <= _FLUSH else p_i
                q[i] = _ZERO if abs(q_i) <= _FLUSH else q_i
                r[i] = _ZERO if abs(r_i) <= _FLUSH else r_i
            if last - first == pool * row:  # a row of windows; what is left over at an edge belongs to none
                W = row // C // pool
                out = (unit // units * (H // pool) + unit % units) * W * C
                s_t = s[t, out : out + W * C]
                for w in range(W):
                    s_w = s_t[w * C : (w + 1) * C]
                    for i in range(C):
                        s_w[i] = _ZERO
                    for dy in range(pool):
                        for dx in range(pool):
                            at = dy * row + (w * pool + dx) * C
                            u_w = u_t[at : at + C]
                            for i in range(C):
                                s_w[i] = _ONE if u_w[i] > theta else s_w[i]


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


@njit(inline="always")
def _to_first_maximum(e, u, pool, row, C, g):
    """g = e (of windows) at the first maximum of u in each window, in row order."""
    highest = np.empty(C, np.float32)
    for w in range(e.shape[0] // C):
        e_w = e[w * C : (w + 1) * C]
        highest[:] = u[w * pool * C : w * pool * C + C]
        for dy in range(pool):
            for dx in range(pool):
                at = dy * row + (w * pool + dx) * C
                u_w = u[at : at + C]
                for i in range(C):
                    highest[i] = max(highest[i], u_w[i])
        for dy in range(pool):  # of several equal ones only the first counts
            for dx in range(pool):
                at = dy * row + (w * pool + dx) * C
                u_w, g_w = u[at : at + C], g[at : at + C]
                for i in range(C):
                    taken = u_w[i] == highest[i]
                    g_w[i] = e_w[i] if taken else _ZERO
                    highest[i] = np.float32(np.inf) if taken else highest[i]


@kernel(
    f"void(int64, int64, {_M}, {_M}, {_V}, {_V}, {_V}, {_M}, {_V}, {_V}, boolean, float32, boolean, {_M}, "
    "int64, int64, int64, int64, int64)"
)
def _adjoint(lo, hi, g_s, g_u, G_P, G_Q, G_R, u, kappa, c, sigmoid, slope, refractory, g_I, pool, H, row, size, C):
    a_m, a_s, a_r, theta = c[0], c[1], c[2], c[3]
    has_s, has_u = g_s.shape[0] > 0, g_u.shape[0] > 0
    g = np.empty(pool * row, np.float32)
    units = -(-H // pool)
    for unit in range(lo, hi):
        image = unit // units * size
        first = image + unit % units * pool * row
        last = min(first + pool * row, image + size)
        p, q, r, k = G_P[first:last], G_Q[first:last], G_R[first:last], kappa[first:last]
        n = last - first
        for t in range(u.shape[0] - 1, -1, -1):
            u_t, g_I_t = u[t, first:last], g_I[t, first:last]
            e = g[:n]  # error on the spikes
            if has_s and pool == 1:
                e = g_s[t, first:last]
            else:
                e[:] = _ZERO
            if has_s and pool > 1 and n == pool * row:
                W = row // C // pool
                out = (unit // units * (H // pool) + unit % units) * W * C
                _to_first_maximum(g_s[t, out : out + W * C], u_t, pool, row, C, g)
            if sigmoid and not (refractory or has_u):  # local learning, as it mostly is: one loop
                for i in range(n):
                    d = k[i] * (e[i] * (slope * _sigmoid_derivative(slope * (u_t[i] - theta))))
                    p_i, q_i = a_m * p[i], a_s * q[i]
                    g_I_t[i] = p_i + q_i
                    p_i, q_i = p_i + d, q_i - d
                    p[i] = _ZERO if abs(p_i) <= _FLUSH_GRADIENT else p_i
                    q[i] = _ZERO if abs(q_i) <= _FLUSH_GRADIENT else q_i
                continue
            for i in range(n):
                r[i] = a_r * r[i]
                g[i] = e[i] + r[i]
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


def _units(like: Tensor, pool: int) -> tuple[int, tuple[int, int, int, int, int]]:
    """How many units the neurons `like` (B, ...) make, and (pool, H, row, size, C) for the kernels."""
    if pool == 1:
        H = -(-like.numel() // BLOCK)
        return H, (1, H, BLOCK, like.numel(), 1)
    B, H, W, C = like.shape
    return B * -(-H // pool), (pool, H, W * C, H * W * C, C)


def scan(
    I: Tensor, P: Tensor, Q: Tensor, R: Tensor, kappa: Tensor, constants: Tensor, pool: int = 1, reuse: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.scan`, bit for bit; with `reuse`, u lies where I was."""
    T = I.shape[0]
    u = I.contiguous() if reuse else I.clone(memory_format=torch.contiguous_format)
    P, Q, R = (x.expand(I.shape[1:]).clone(memory_format=torch.contiguous_format) for x in (P, Q, R))
    k = kappa.expand(I.shape[1:]).contiguous()
    s = torch.empty_like(u) if pool == 1 else I.new_empty(*I.shape[:2], I.shape[2] // pool, I.shape[3] // pool, I.shape[4])
    state = (_flat(P), _flat(Q), _flat(R))
    size, units = _units(P, pool)
    _run(_scan, I.numel(), size, 1, _flat(u, T), *state, _flat(k), _flat(constants), _flat(s, T), *units)
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
    pool: int = 1,
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
    arrays = (e_s, e_u, _flat(G_P), _flat(G_Q), _flat(G_R), _flat(u, T), _flat(k), _flat(constants))
    size, units = _units(k, pool)
    _run(_adjoint, u.numel(), size, 1, *arrays, surrogate == "sigmoid", _f(slope), refractory, _flat(g_I, T), *units)
    return g_I, G_P, G_Q, G_R


# Products with spikes. Hard weights: popcounts. Real ones: where few spikes are active, adding the rows of the active ones beats a
# dense product, forward and in the weight gradient.

SPARSE = 0.15  # density of spikes up to which it does (benchmarks/kernels.py)


def keep(x: Tensor, padding: list[int]) -> Tensor:
    """Spikes as bits, packed along the last axis into int32."""
    x = x.contiguous()
    rows = x.detach().numpy().reshape(-1, x.shape[-1]).view(np.uint32)
    shape, dtype = kept_shape(x.shape, padding)
    kept = torch.empty(shape, dtype=dtype)
    _run(bits.pack, x.numel(), len(rows), 1, rows, _words(kept))
    return kept


def kept_shape(shape: torch.Size, padding: list[int]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of what `keep` returns."""
    return (*shape[:-1], -(-shape[-1] // 32)), torch.int32


def _words(kept: Tensor) -> np.ndarray:
    """Packed spikes (..., words) as a matrix of uint32."""
    return kept.numpy().view(np.uint32).reshape(-1, kept.shape[-1])


def _rows(kept: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> np.ndarray:
    """The inputs of each output neuron or pixel, as rows of bits: (R, words)."""
    if weight.ndim == 2:
        return _words(kept)
    _, channels, k0, k1 = weight.shape
    images = kept.numpy().view(np.uint32).reshape(-1, *kept.shape[2:])
    H, W = ((n + 2 * p - k) // d + 1 for n, k, d, p in zip(kept.shape[2:4], (k0, k1), stride, padding, strict=True))
    rows = np.empty((len(images), H, W, -(-k0 * k1 * channels // 32)), np.uint32)
    _run(bits.windows, rows.size, len(images), 1, images, channels, k0, k1, *stride, *padding, rows)
    return rows.reshape(-1, rows.shape[-1])


def _sparse(kept: Tensor, channels: int) -> bool:
    words = kept.numpy().view(np.uint32)
    return int(np.bitwise_count(words).sum()) <= SPARSE * channels * (words.size // words.shape[-1])


def _matrix(weight: Tensor) -> Tensor:
    """Weights as (n_out, inputs), the inputs of a convolution in the order of `bits.windows`."""
    return weight.detach() if weight.ndim == 2 else weight.detach().movedim(1, -1).flatten(1)


def product(x: Tensor, kept: Tensor | None, weight: Tensor, stride: list[int], padding: list[int], hard: bool) -> Tensor:
    """As `reference.product`; the same bits for hard weights and spikes."""
    if kept is None or not (hard or _sparse(kept, x.shape[-1])):
        return reference.product(x, kept, weight, stride, padding, hard)
    rows, w = _rows(kept, weight, stride, padding), _matrix(weight)
    if weight.ndim == 2:
        I = x.new_empty(*x.shape[:2], len(w))
    else:
        sizes = zip(x.shape[2:4], weight.shape[2:], stride, padding, strict=True)
        I = x.new_empty(*x.shape[:2], *((n + 2 * p - k) // d + 1 for n, k, d, p in sizes), len(w))
    out = I.numpy().reshape(-1, len(w))
    if hard:
        w_bits = np.ascontiguousarray(_words(keep((w > 0).to(x.dtype), [])).T)
        _run(bits.counts, rows.size * len(w), len(rows), 1, rows, w_bits, out)
    else:
        _run(bits.add_rows, rows.size * len(w), len(rows), 1, rows, w.t().contiguous().numpy(), out)
    return I


def _weight_gradient(g: Tensor, x: Tensor, spikes: bool, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """As `reference.weight_gradient`, to float32 accuracy, of inputs as they were or as `keep` gave them."""
    channels = weight.shape[1]
    if spikes and not _sparse(x, channels):
        dense = torch.empty(*x.shape[:-1], channels)
        _run(bits.unpack, dense.numel(), dense.numel() // channels, 1, _words(x), dense.numpy().reshape(-1, channels))
        x, spikes = dense, False
    if not spikes:
        return reference.weight_gradient(g, x, weight, stride, padding)
    rows = _rows(x, weight, stride, padding)
    g_w = torch.zeros(weight[0].numel(), len(weight))
    g_rows = g.contiguous().numpy().reshape(-1, len(weight))
    _run(bits.add_rows_transposed, rows.size * len(weight), rows.shape[1], 1, rows, g_rows, g_w.numpy())
    if weight.ndim == 2:
        return g_w.t().contiguous()
    return g_w.t().reshape(len(weight), *weight.shape[2:], channels).movedim(-1, 1).contiguous()


def gradients(
    g_s: Tensor | None,
    g_u: Tensor | None,
    g_state: tuple[Tensor | None, Tensor | None, Tensor | None],
    u: Tensor,
    x: Tensor,
    x_shape: list[int],
    spikes: bool,
    weight: Tensor,
    kappa: Tensor,
    constants: Tensor,
    stride: list[int],
    padding: list[int],
    pool: int,
    surrogate: str,
    slope: float,
    refractory: bool,
    needs_x: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.gradients`, to float32 accuracy."""
    g_I, *g_before = adjoint(g_s, g_u, g_state, u, kappa, constants, surrogate, slope, refractory, pool)
    g_x = reference.input_gradient(g_I, x_shape, weight, stride, padding) if needs_x else u.new_empty(0)
    g_w = _weight_gradient(g_I, x, spikes, weight, stride, padding) if needs_weight else u.new_empty(0)
    return (g_x, g_w, *g_before)
