"""The scan, its adjoint and the products of a layer on the CPU, compiled by numba: float32, all of
torch's threads.

A block of neurons keeps its traces in the L1 cache while time runs; the inner loop over neurons is
what the compiler vectorises. No fastmath and no fused multiply-add: the forward bits are those of
`reference`.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from bisnn.alphabet import Levels
from bisnn.bits import counting, threads
from bisnn.bits.counting import kernel
from bisnn.kernels import reference
from bisnn.kernels.reference import FLUSH, Errors, LayerConstants

FEW = 4  # outputs of a readout
BLOCK = 1024  # neurons whose traces (4 bytes each, four arrays) stay in L1 while time runs
_f = np.float32
_FLUSH = _f(FLUSH)
_FLUSH_GRADIENT, FLUSHED = (
    _f(2.0**-100),
    8,
)  # of adjoint traces, and every so many steps: denormal gradients are slow
_ZERO, _ONE, _HALF = _f(0), _f(1), _f(0.5)


_V, _M = "float32[::1]", "float32[:, ::1]"  # vector, matrix

# Neurons are worked on in units that lie together in memory and keep their traces in a cache while
# time runs: BLOCK neurons, or with pooling the pixels of one row of windows. `H`, `row` and `size`
# say where units lie: H rows of `row` neurons make a unit's image of `size` neurons (without
# pooling, all neurons are one image, of rows of BLOCK).


@kernel(
    f"void(int64, int64, {_M}, {_V}, {_V}, {_V}, {_V}, {_V}, {_M}, int64, int64, int64, int64, int64)"
)
def _scan(lo, hi, I, P, Q, R, kappa, c, s, pool, H, row, size, C):
    """Potentials take the place of the currents: half the memory, and one stream less."""
    a_m, a_s, a_r, theta = c[0], c[1], c[2], c[3]
    units = -(-H // pool)  # of an image
    for unit in range(lo, hi):
        image = unit // units * size
        first = image + unit % units * pool * row
        last = min(first + pool * row, image + size, P.shape[0])
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
                p_i, q_i, r_i = (
                    a_m * (p[i] + u_t[i]),
                    a_s * (q[i] + u_t[i]),
                    a_r * (r[i] + (_ONE if v > theta else _ZERO)),
                )
                u_t[i] = v
                p[i] = _ZERO if abs(p_i) <= _FLUSH else p_i
                q[i] = _ZERO if abs(q_i) <= _FLUSH else q_i
                r[i] = _ZERO if abs(r_i) <= _FLUSH else r_i
            if (
                last - first == pool * row
            ):  # a row of windows; what is left over at an edge belongs to none
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

    exp by range reduction and a polynomial, because a call to libm would keep the loop from being
        vectorised: 2^-n exp(-r)
    with |r| <= ln(2)/2. Relative error below 4e-7; part of the gradient only, never of the forward
    bits.
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
def _flush(p, q):
    """Gradients too small to matter to 0: as denormals, long after the last error, they would be
    slow.
    """
    for i in range(p.shape[0]):
        p[i] = _ZERO if abs(p[i]) <= _FLUSH_GRADIENT else p[i]
        q[i] = _ZERO if abs(q[i]) <= _FLUSH_GRADIENT else q[i]


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


@njit(inline="always")
def _add_readout_error(g_y, V, first, last, e):
    """e += the error on spikes first..last, counted over all recordings, from readouts: g_y (B
    outputs,), V (outputs, N).
    """
    outputs, N = V.shape
    start = first
    while start < last:
        recording = start // N
        stop = min(last, (recording + 1) * N)
        e_b = e[start - first : stop - first]
        for c in range(outputs):
            g_c, V_c = (
                g_y[recording * outputs + c],
                V[c, start - recording * N : stop - recording * N],
            )
            for i in range(stop - start):
                e_b[i] += g_c * V_c[i]
        start = stop


@kernel(
    f"void(int64, int64, {_M}, {_M}, {_M}, {_M}, {_V}, {_V}, {_V}, {_M}, {_V}, {_V}, boolean, float32, boolean, {_M}, int64, "
    "int64, int64, int64, int64, int64)",
    contract=True,
)
def _adjoint(
    lo,
    hi,
    g_s,
    g_y,
    V,
    g_u,
    G_P,
    G_Q,
    G_R,
    u,
    kappa,
    c,
    sigmoid,
    slope,
    refractory,
    g_I,
    origin,
    pool,
    H,
    row,
    size,
    C,
):
    """g_I has the neurons from `origin` on. Errors on the spikes come from g_s, and from readouts
    as g_y and V, where not empty.
    """
    a_m, a_s, a_r, theta = c[0], c[1], c[2], c[3]
    has_s, has_y, has_u = g_s.shape[0] > 0, g_y.shape[0] > 0, g_u.shape[0] > 0
    g, e_windows = np.empty(pool * row, np.float32), np.empty(row, np.float32)
    units = -(-H // pool)
    for unit in range(lo, hi):
        image = unit // units * size
        first = image + unit % units * pool * row
        last = min(first + pool * row, image + size, G_P.shape[0])
        n = last - first
        if n <= 0:
            break
        p, q, r, k = G_P[first:last], G_Q[first:last], G_R[first:last], kappa[first:last]
        for t in range(u.shape[0] - 1, -1, -1):
            u_t, g_I_t = u[t, first:last], g_I[t, first - origin : last - origin]
            e = g[:n]  # error on the spikes
            e[:] = _ZERO
            if pool == 1:
                if has_s:
                    e[:] = g_s[t, first:last]
                if has_y:
                    _add_readout_error(g_y[t], V, first, last, e)
            elif n == pool * row:
                W = row // C // pool
                out = (unit // units * (H // pool) + unit % units) * W * C
                e_w = e_windows[: W * C]
                e_w[:] = _ZERO
                if has_s:
                    e_w[:] = g_s[t, out : out + W * C]
                if has_y:
                    _add_readout_error(g_y[t], V, out, out + W * C, e_w)
                _to_first_maximum(e_w, u_t, pool, row, C, g)
            if sigmoid and not (refractory or has_u):  # local learning, as it mostly is: one loop
                for i in range(n):
                    d = k[i] * (e[i] * (slope * _sigmoid_derivative(slope * (u_t[i] - theta))))
                    p_i, q_i = a_m * p[i], a_s * q[i]
                    g_I_t[i] = p_i + q_i
                    p[i], q[i] = p_i + d, q_i - d
                if t % FLUSHED == 0:
                    _flush(p, q)
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
                p[i], q[i] = p_i + k[i] * g[i], q_i - k[i] * g[i]
            if t % FLUSHED == 0:
                _flush(p, q)
            if refractory:
                for i in range(n):
                    r[i] = r[i] - g[i]


@kernel(
    f"{_M}(int64, int64, {_M}, {_M}, {_M}, {_M}, {_V}, {_V}, {_V}, {_M}, {_V}, {_V}, boolean, float32, boolean, "
    "int64, int64, int64, int64, int64, uint32[:, :, :, :, ::1], int64, int64, int64, int64, int64, int64, int64, int64, boolean)"
)
def _weight_gradient(
    lo, hi, g_s, g_y, V, g_u, G_P, G_Q, G_R, u, kappa, c, sigmoid, slope, refractory, pool, H, row, size, C,
    x, channels, n_out, k0, k1, s0, s1, p0, p1, rare,
):  # fmt: skip
    """The weight gradient (n_in, n_out) of images lo..hi, which may be several recordings each:
    adjoint and product in one go.

    The currents' gradient of an image stays in the cache, and that of the whole is never there. x
    is (T, B, H_in, W_in, words).
    """
    T, B = x.shape[:2]
    units, per_recording = -(-H // pool), G_P.shape[0] // B  # neurons
    group = size // per_recording  # recordings of an image
    pixels = per_recording // n_out
    y = (x.shape[2] + 2 * p0 - k0) // s0 + 1
    g_w = np.zeros((k0 * k1 * channels, n_out), np.float32)
    g_I, inputs = (
        np.empty(T * size, np.float32),
        np.empty((T * group, x.shape[2], x.shape[3], x.shape[4]), np.uint32),
    )
    rows = np.empty((T * group, y, pixels // y, -(-k0 * k1 * channels // 32)), np.uint32)
    for image in range(lo, hi):
        b = image * group
        n = min(group, B - b)
        g = g_I[: T * n * per_recording].reshape((T, n * per_recording))
        _adjoint(
            image * units, (image + 1) * units, g_s, g_y, V, g_u, G_P, G_Q, G_R, u, kappa, c, sigmoid, slope, refractory,
            g, image * size, pool, H, row, size, C,
        )  # fmt: skip
        for t in range(T):
            inputs[t * n : (t + 1) * n] = x[t, b : b + n]
        counting.windows(0, T * n, inputs[: T * n], channels, k0, k1, s0, s1, p0, p1, rows[: T * n])
        bits_of = rows[: T * n].reshape((T * n * pixels, rows.shape[3]))
        if rare:
            counting.add_rows_transposed(
                0, bits_of.shape[1], bits_of, g.reshape((T * n * pixels, n_out)), g_w
            )
        else:
            counting.add_rows_by_fours(
                0, bits_of.shape[1], bits_of, g.reshape((T * n * pixels, n_out)), g_w
            )
    return g_w


def run(kernel: Callable[..., Any], work: int, size: int, *arguments: object) -> list[Any]:
    """`kernel(lo, hi, *arguments)` over 0..size on torch's thread count; what each part returned."""
    return threads.run(kernel, work, size, *arguments, count=torch.get_num_threads())


# Memory of large outputs is used again once the last tensor that lies there is gone. Fresh pages
# from the system, every iteration anew, would cost a good part of the time of a training iteration;
# PyTorch keeps such memory on GPUs, but not on the CPU.
KEPT = 1 << 29  # bytes kept at most
_free: dict[int, list[np.ndarray]] = {}  # blocks that nobody uses, by size


def _empty(shape: Sequence[int]) -> Tensor:
    """An uninitialised float32 tensor."""
    size = 4 * math.prod(shape)
    if size < 1 << 20:
        return torch.empty(shape)
    try:
        block = _free[size].pop()
    except (KeyError, IndexError):
        block = np.empty(size, np.uint8)
    view = block.view(np.float32).reshape(shape)
    weakref.finalize(view, _give_back, block).atexit = False
    return torch.from_numpy(view)  # holds `view` as long as any tensor uses it


def _give_back(block: np.ndarray) -> None:
    kept = sum(
        size * len(blocks) for size, blocks in list(_free.items())
    )  # a list: other threads may add sizes meanwhile
    if kept + block.size <= KEPT:
        _free.setdefault(block.size, []).append(block)


def release() -> None:
    """Give the memory that is kept for later outputs back to the system."""
    _free.clear()


def _flat(x: Tensor, steps: int | None = None) -> np.ndarray:
    """A contiguous float32 tensor as a numpy view: (T, M) if it has a time axis, else (M,)."""
    return x.detach().numpy().reshape(-1 if steps is None else (steps, -1))


def _units(like: Tensor, pool: int, group: int = 1) -> tuple[int, tuple[int, int, int, int, int]]:
    """How many images the neurons `like` (B, ...) make, and (pool, H, row, size, C) for the
    kernels.

    With pooling an image is a recording's; without, `group` recordings together.
    """
    B, size = len(like), like[0].numel()
    if pool > 1:
        _, H, W, C = like.shape
        return B, (pool, H, W * C, size, C)
    return -(-B // group), (1, -(-group * size // BLOCK), BLOCK, group * size, 1)


def scan(
    I: Tensor,
    P: Tensor,
    Q: Tensor,
    R: Tensor,
    kappa: Tensor,
    constants: Tensor,
    pool: int = 1,
    reuse: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.scan`, bit for bit; with `reuse`, u lies where I was."""
    T = I.shape[0]
    u = I.contiguous() if reuse else I.clone(memory_format=torch.contiguous_format)
    P, Q, R = (
        x.expand(I.shape[1:]).clone(memory_format=torch.contiguous_format) for x in (P, Q, R)
    )
    k = kappa.expand(I.shape[1:]).contiguous()
    s = _empty(
        I.shape if pool == 1 else (*I.shape[:2], I.shape[2] // pool, I.shape[3] // pool, I.shape[4])
    )
    state = (_flat(P), _flat(Q), _flat(R))
    images, units = _units(P, pool, len(P))
    run(
        _scan,
        I.numel(),
        images * -(-units[1] // pool),
        _flat(u, T),
        *state,
        _flat(k),
        _flat(constants),
        _flat(s, T),
        *units,
    )
    return s, u, P, Q, R


@kernel(f"void(int64, int64, {_M}, {_M}, {_M})", reorder=True)
def _readout(lo, hi, s, V, y):
    """y (R, outputs) = V s for rows of spikes s (R, N)."""
    for m in range(lo, hi):
        for c in range(V.shape[0]):
            total = _ZERO
            for i in range(V.shape[1]):
                total += s[m, i] * V[c, i]
            y[m, c] = total


def readout(s: Tensor, V: Tensor, scale: Tensor) -> Tensor:
    """As `reference.readout`, the same bits: for few outputs a row of spikes is read once, in half
    the time.
    """
    if len(V) > FEW:
        return reference.readout(s, V, scale)
    y = s.new_empty(*s.shape[:2], len(V))
    rows = s.numpy().reshape(-1, V.shape[1])
    run(
        _readout,
        rows.size * len(V),
        len(rows),
        rows,
        V.contiguous().numpy(),
        y.numpy().reshape(len(rows), len(V)),
    )
    return y.mul_(scale)


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
    errors = Errors(None, g_s, g_u, g_state)
    before, arguments = _adjoint_arguments(
        errors, None, u, kappa, constants, surrogate, slope, refractory
    )
    g_I = torch.empty_like(u, memory_format=torch.contiguous_format)
    images, units = _units(u[0], pool, u.shape[1])
    run(
        _adjoint,
        u.numel(),
        images * -(-units[1] // pool),
        *arguments,
        _flat(g_I, len(u)),
        0,
        *units,
    )
    return (g_I, *before)


def _adjoint_arguments(
    errors: Errors,
    V: Tensor | None,
    u: Tensor,
    kappa: Tensor,
    constants: Tensor,
    surrogate: str,
    slope: float,
    refractory: bool,
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Any, ...]]:
    """The gradients of the first state, to be written, and the arguments of the kernels up to
    `refractory`.
    """
    T, u = u.shape[0], u.contiguous()
    empty = np.empty((0, 1), np.float32)
    e_s, e_y, e_u = (
        empty if g is None else _flat(g.contiguous(), T) for g in (errors.s, errors.y, errors.u)
    )
    G_P, G_Q, G_R = (
        torch.zeros(u.shape[1:]) if g is None else g.clone(memory_format=torch.contiguous_format)
        for g in errors.state
    )
    if not refractory:
        G_R.zero_()
    flat = (
        _flat(G_P),
        _flat(G_Q),
        _flat(G_R),
        _flat(u, T),
        _flat(kappa.expand(u.shape[1:]).contiguous()),
        _flat(constants),
    )
    v = empty if V is None else V.contiguous().numpy()
    return (G_P, G_Q, G_R), (e_s, e_y, v, e_u, *flat, surrogate == "sigmoid", _f(slope), refractory)


# Products with spikes. Hard weights: popcounts, over the bit planes of their alphabet. Real ones:
# adding the rows of the active inputs, up to a density of spikes DENSE beyond which a dense product
# is faster. The weight gradient: adding rows at all densities, by fours of inputs beyond RARE.

RARE, DENSE = 0.15, 0.25  # as measured (benchmarks/kernels.py)
CACHED = 1 << 17  # numbers of a gradient that are worked on at a time


def keep(x: Tensor, padding: list[int]) -> Tensor:
    """Spikes as bits, packed along the last axis into int32."""
    x = x.contiguous()
    rows = x.detach().numpy().reshape(-1, x.shape[-1]).view(np.uint32)
    shape, dtype = kept_shape(x.shape, padding)
    kept = torch.empty(shape, dtype=dtype)
    run(counting.pack, x.numel(), len(rows), rows, _words(kept))
    return kept


def kept_shape(shape: torch.Size, padding: list[int]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of what `keep` returns."""
    return (*shape[:-1], -(-shape[-1] // 32)), torch.int32


def _words(kept: Tensor) -> np.ndarray:
    """Packed spikes (..., words) as a matrix of uint32."""
    return kept.numpy().view(np.uint32).reshape(-1, kept.shape[-1])


def _density(kept: Tensor, channels: int) -> float:
    words = _words(kept)
    return int(np.bitwise_count(words).sum()) / (len(words) * channels)


def _images(kept: Tensor) -> np.ndarray:
    """Packed spikes as (T, B, H, W, words); those of a dense layer are images of one pixel."""
    T, B, *image = kept.shape
    return (
        kept.numpy().view(np.uint32).reshape(T, B, *(image if len(image) == 3 else (1, 1, *image)))
    )


def _convolution(weight: Tensor, stride: list[int], padding: list[int]) -> tuple[int, ...]:
    """(k0, k1, stride, padding); a dense layer is a convolution of one pixel."""
    return (1, 1, 1, 1, 0, 0) if weight.ndim == 2 else (*weight.shape[2:], *stride, *padding)


def _rows(kept: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> np.ndarray:
    """The inputs of each output neuron or pixel, as rows of bits: (R, words)."""
    if weight.ndim == 2:
        return _words(kept)
    images, (k0, k1, *places) = (
        _images(kept).reshape(-1, *kept.shape[2:]),
        _convolution(weight, stride, padding),
    )
    size = [
        (n + 2 * p - k) // d + 1
        for n, k, d, p in zip(kept.shape[2:4], (k0, k1), stride, padding, strict=True)
    ]
    windows = np.empty((len(images), *size, -(-weight[0].numel() // 32)), np.uint32)
    run(
        counting.windows,
        windows.size,
        len(images),
        images,
        weight.shape[1],
        k0,
        k1,
        *places,
        windows,
    )
    return windows.reshape(-1, windows.shape[-1])


def _rounds() -> bool:
    """Whether relaxed weights may be rounded to bfloat16, by PyTorch's own switch, and this CPU
    multiplies it faster.
    """
    return (
        torch.get_float32_matmul_precision() == "medium" and torch.cpu._is_avx512_bf16_supported()
    )


_alphabet = functools.cache(Levels)  # checked once


def _planes(w: Tensor, alphabet: Levels) -> list[Tensor]:
    """The bit planes of weights as 0 and 1, in their dtype."""
    if alphabet.planes == 1:
        return [(w > alphabet.low).to(w.dtype)]
    codes = ((w - alphabet.low) / alphabet.gap).to(torch.uint8)
    return [(codes >> k & 1).to(w.dtype) for k in range(alphabet.planes)]


def product(
    x: Tensor,
    kept: Tensor | None,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    levels: list[int],
) -> Tensor:
    """As `reference.product`; the same bits for hard weights and spikes."""
    if kept is None or not (levels or _density(kept, x.shape[-1]) <= DENSE):
        if kept is None or not _rounds():
            return reference.product(x, kept, weight, stride, padding, levels)
        return reference.product(
            x.bfloat16(), kept, weight.detach().bfloat16(), stride, padding, levels
        ).float()
    w = (
        weight.detach() if weight.ndim == 2 else weight.detach().movedim(1, -1).flatten(1)
    )  # inputs in the order of `counting.windows`
    I, rows = (
        _empty(reference.current_shape(x, weight, stride, padding)),
        _rows(kept, weight, stride, padding),
    )
    out = I.numpy().reshape(-1, len(w))
    if levels:
        of = _alphabet(*levels)
        planes = [np.ascontiguousarray(_words(keep(b, [])).T) for b in _planes(w.to(x.dtype), of)]
        bits = planes[0][None] if len(planes) == 1 else np.stack(planes)
        work = rows.size * len(w) * len(planes)
        run(counting.plane_counts, work, len(rows), rows, bits, of.low, of.gap, out)
    else:
        run(counting.add_rows, rows.size * len(w), len(rows), rows, w.t().contiguous().numpy(), out)
    return I


def gradients(
    errors: Errors,
    u: Tensor,
    x: Tensor,
    x_shape: list[int],
    spikes: bool,
    layer: LayerConstants,
    needs_x: bool,
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.gradients`, to float32 accuracy; where all is spikes, the currents' gradient is
    never there as a whole.
    """
    if not spikes:
        return reference.gradients(
            errors, u, x, x_shape, spikes, layer, needs_x, needs_weight, adjoint=adjoint
        )
    weight, pool, places = layer.weight, layer.pool, (layer.stride, layer.padding)
    g_x, g_w = u.new_empty(0), u.new_empty(0)
    before: Sequence[Tensor]  # P, Q, R
    n_out, channels = weight.shape[:2]
    rare = needs_weight and _density(x, channels) <= RARE
    if needs_x or not needs_weight:
        g_s = reference.spike_error(errors.s, errors.y, layer.V, u, pool)
        g_I, *before = adjoint(g_s, errors.u, errors.state, u, *layer.neuron, pool)
        if needs_x:
            g_x = reference.input_gradient(g_I, x_shape, weight, *places)
        if needs_weight:
            rows, sums = _rows(x, weight, *places), np.zeros((weight[0].numel(), n_out), np.float32)
            add = counting.add_rows_transposed if rare else counting.add_rows_by_fours
            run(add, u.numel(), rows.shape[1], rows, g_I.numpy().reshape(-1, n_out), sums)
    else:
        before, arguments = _adjoint_arguments(errors, layer.V, u, *layer.neuron)
        group = max(1, CACHED // (len(u) * u[0, 0].numel()))
        images, units = _units(u[0], pool, min(group, u.shape[1]))
        inputs = (_images(x), channels, n_out, *_convolution(weight, *places), rare)
        sums = sum(run(_weight_gradient, u.numel(), images, *arguments, *units, *inputs))
    if needs_weight:
        g_w = (
            torch.from_numpy(sums)
            .t()
            .reshape(n_out, *weight.shape[2:], channels)
            .movedim(-1, 1)
            .contiguous()
        )
    return (g_x, g_w, *before)
