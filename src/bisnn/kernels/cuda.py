"""The scan, its adjoint and the products of a layer on a GPU, in Triton.

One pass over memory each: the scan keeps its traces in registers while time runs, reads a current and writes a potential and a spike
a step, the pooling included. Products are implicit: no matrix of windows is ever written.

What is exact: hard weights and spikes are multiplied as 8-bit integers and summed as 32-bit ones, so currents are exact at any size.
What is rounded: where PyTorch is allowed TF32 (`torch.backends`), relaxed weights and the gradients of currents enter products in
half precision, which has TF32's 10 bits of mantissa; sums are float32. Gradients are scaled by a power of two from a bound on their
size, so that none overflows. Where it is not allowed, those products are PyTorch's own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bisnn.kernels import reference

_FLUSH = tl.constexpr(reference.FLUSH)


# The scan. A program has BLOCK windows of neurons, in memory order of what leaves the layer, and WINDOW >= pool^2 lanes for the
# neurons of each window; without pooling a window is one neuron.


@triton.jit
def _places(n, H, W, C, POOL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """For a program's windows: places of their neurons (BLOCK, WINDOW) and mask, of what leaves the layer (BLOCK,) and mask."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if POOL == 1:
        return o[:, None], (o < n)[:, None], o, o < n
    rows, columns = tl.cdiv(H, POOL), tl.cdiv(W, POOL)  # with those at an edge that are no whole window
    c, rest = o % C, o // C
    x, rest = rest % columns, rest // columns
    y, b = rest % rows, rest // rows
    j = tl.arange(0, WINDOW)
    h, w = y[:, None] * POOL + (j // POOL)[None, :], x[:, None] * POOL + (j % POOL)[None, :]
    inside = (o < n)[:, None] & (j < POOL * POOL)[None, :] & (h < H) & (w < W)
    out = ((b * (H // POOL) + y) * (W // POOL) + x) * C + c
    return ((b[:, None] * H + h) * W + w) * C + c[:, None], inside, out, (o < n) & (y < H // POOL) & (x < W // POOL)


@triton.jit
def _flush(x):
    return tl.where(tl.abs(x) <= _FLUSH, 0.0, x)


@triton.jit
def _scan(
    I, u, s, P, Q, R, kappa, constants, T, n, M, M_out, H, W, C,
    SCALAR: tl.constexpr, POOL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """P, Q, R are overwritten by the state after the last step. u may be I itself."""
    at, inside, out, whole = _places(n, H, W, C, POOL, WINDOW, BLOCK)
    a_m, a_s, a_r, theta = tl.load(constants), tl.load(constants + 1), tl.load(constants + 2), tl.load(constants + 3)
    k = tl.load(kappa) if SCALAR else tl.load(kappa + at, inside, 0.0)
    p, q, r = tl.load(P + at, inside, 0.0), tl.load(Q + at, inside, 0.0), tl.load(R + at, inside, 0.0)
    I, u, s = I + at, u + at, s + out
    I_t = tl.load(I, inside, 0)
    I_1 = tl.load(I + M, inside & (T > 1), 0)
    for t in range(T):
        I_2 = tl.load(I + M + M, inside & (t + 2 < T), 0)  # two steps ahead: memory answers slowly
        v = k * (p - q) - r
        fires = v > theta
        x = tl.where(fires, 1.0, 0.0)
        c = I_t.to(tl.float32)
        p, q, r = _flush(a_m * (p + c)), _flush(a_s * (q + c)), _flush(a_r * (r + x))
        tl.store(u, v, inside)
        tl.store(s, tl.max(tl.where(inside, x, 0.0), 1), whole)
        I_t, I_1 = I_1, I_2
        I, u, s = I + M, u + M, s + M_out
    tl.store(P + at, p, inside)
    tl.store(Q + at, q, inside)
    tl.store(R + at, r, inside)


@triton.jit
def _adjoint(
    g_s, g_u, G_P, G_Q, G_R, u, kappa, constants, scale, g_I, slope, T, n, M, M_out, H, W, C,
    HAS_S: tl.constexpr, HAS_U: tl.constexpr, SIGMOID: tl.constexpr, REFRACTORY: tl.constexpr, SCALED: tl.constexpr,
    SCALAR: tl.constexpr, POOL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """G_P, G_Q, G_R are overwritten by the gradients of the first state; g_I comes out times `scale`, if SCALED."""
    at, inside, out, whole = _places(n, H, W, C, POOL, WINDOW, BLOCK)
    a_m, a_s, a_r, theta = tl.load(constants), tl.load(constants + 1), tl.load(constants + 2), tl.load(constants + 3)
    k = tl.load(kappa) if SCALAR else tl.load(kappa + at, inside, 0.0)
    factor = tl.load(scale) if SCALED else 1.0
    p, q, r = tl.load(G_P + at, inside, 0.0), tl.load(G_Q + at, inside, 0.0), tl.load(G_R + at, inside, 0.0)
    lowest = float("-inf")
    last = tl.full((), 0, tl.int64) + T - 1
    u, g_u, g_I, g_s = u + last * M + at, g_u + last * M + at, g_I + last * M + at, g_s + last * M_out + out
    u_t = tl.load(u, inside, lowest)
    e_t = tl.load(g_s, whole, 0.0) if HAS_S else tl.zeros((BLOCK,), tl.float32)
    for step in range(T):
        u_1 = tl.load(u - M, inside & (step + 1 < T), lowest)  # a step ahead
        e_1 = tl.load(g_s - M_out, whole & (step + 1 < T), 0.0) if HAS_S else e_t
        p, q, r = a_m * p, a_s * q, a_r * r
        tl.store(g_I, ((p + q) * factor).to(g_I.dtype.element_ty), inside)
        if POOL == 1:
            e = e_t[:, None].to(tl.float32)
        else:
            j = tl.arange(0, WINDOW)[None, :]
            first = tl.min(tl.where(u_t == tl.max(u_t, 1)[:, None], j, WINDOW), 1)  # of several equal ones
            e = tl.where(j == first[:, None], e_t[:, None].to(tl.float32), 0.0)
        if REFRACTORY:
            e += r
        v = slope * (tl.where(inside, u_t, 0.0) - theta)
        if SIGMOID:
            z = tl.exp(-tl.abs(v))
            g = e * (slope * z / ((1 + z) * (1 + z)))
        else:
            g = tl.where(tl.abs(v) < 0.5, e * slope, 0.0)
        if HAS_U:
            g += tl.load(g_u, inside, 0.0)
        p, q = p + k * g, q - k * g
        if REFRACTORY:
            r -= g
        u_t, e_t = u_1, e_1
        u, g_u, g_I, g_s = u - M, g_u - M, g_I - M, g_s - M_out
    tl.store(G_P + at, p, inside)
    tl.store(G_Q + at, q, inside)
    tl.store(G_R + at, r, inside)


def _launch(like: Tensor, pool: int) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    """Grid, sizes (n, M, M_out, H, W, C) and constants for neurons `like` (B, ...)."""
    M = like.numel()
    if pool == 1:
        n, sizes = M, (M, M, 1, 1, 1)
    else:
        B, H, W, C = like.shape
        n, sizes = B * -(-H // pool) * -(-W // pool) * C, (M, B * (H // pool) * (W // pool) * C, H, W, C)
    window = triton.next_power_of_2(pool * pool)
    block = max(1, (512 if n >= 1 << 18 else 128) // window)
    return (triton.cdiv(n, block),), (n, *sizes), {"POOL": pool, "WINDOW": window, "BLOCK": block, "num_warps": 4}


def scan(
    I: Tensor, P: Tensor, Q: Tensor, R: Tensor, kappa: Tensor, constants: Tensor, pool: int = 1, reuse: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.scan`, bit for bit; the currents may be integers."""
    I = I.contiguous()
    P, Q, R = (x.expand(I.shape[1:]).clone(memory_format=torch.contiguous_format) for x in (P, Q, R))
    u = I if reuse and I.dtype == torch.float32 else torch.empty_like(I, dtype=torch.float32)
    s = torch.empty_like(u) if pool == 1 else u.new_empty(*I.shape[:2], I.shape[2] // pool, I.shape[3] // pool, I.shape[4])
    grid, sizes, options = _launch(P, pool)
    scalar, k = _kappa(kappa, P)
    with torch.cuda.device(I.device):
        _scan[grid](I, u, s, P, Q, R, k, constants, len(I), *sizes, SCALAR=scalar, **options, enable_fp_fusion=False)
    return s, u, P, Q, R


def _kappa(kappa: Tensor, like: Tensor) -> tuple[bool, Tensor]:
    return (True, kappa) if kappa.numel() == 1 else (False, kappa.expand(like.shape).contiguous())


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
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.adjoint`, to float32 accuracy; with a `scale`, the currents' gradient times that, in half precision."""
    u = u.contiguous()
    G_P, G_Q, G_R = (torch.zeros_like(u[0]) if g is None else g.clone(memory_format=torch.contiguous_format) for g in g_state)
    if not refractory:
        G_R.zero_()
    g_I = torch.empty_like(u, dtype=torch.float32 if scale is None else torch.float16)
    e_s, e_u = (u if g is None else g.contiguous() for g in (g_s, g_u))
    grid, sizes, options = _launch(u[0], pool)
    scalar, k = _kappa(kappa, u[0])
    flags = {"HAS_S": g_s is not None, "HAS_U": g_u is not None, "SIGMOID": surrogate == "sigmoid", "REFRACTORY": refractory}
    factor = constants if scale is None else scale
    with torch.cuda.device(u.device):
        _adjoint[grid](
            e_s, e_u, G_P, G_Q, G_R, u, k, constants, factor, g_I, slope, len(u), *sizes,
            SCALED=scale is not None, SCALAR=scalar, **flags, **options,
        )  # fmt: skip
    return g_I, G_P, G_Q, G_R


# Products. A dense layer is a convolution of one pixel. Images x are (N, H, W, C), weights (n_out, k0, k1, C); an output pixel is a
# row m, an input under the kernel (tap and channel) a column k. GATHER finds each k by itself, for any number of channels; without, a
# block of k lies within one tap.


@triton.jit
def _inputs(
    x, m, k, M, H, W, H_out, W_out, s0, s1, p0, p1, C: tl.constexpr, K: tl.constexpr, K1: tl.constexpr, GATHER: tl.constexpr
):  # fmt: skip
    """The inputs (rows m, columns k), 0 outside of the image."""
    ox, rest = m % W_out, m // W_out
    oy, image = rest % H_out, (rest // H_out).to(tl.int64)
    y, z = oy * s0 - p0, ox * s1 - p1
    if GATHER:
        tap, c = k // C, k % C
        h, w = y[:, None] + (tap // K1)[None, :], z[:, None] + (tap % K1)[None, :]
        inside = (m < M)[:, None] & (k < K)[None, :] & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        return tl.load(x + ((image[:, None] * H + h) * W + w) * C + c[None, :], inside, 0)
    first = tl.min(k, 0)
    tap = first // C
    h, w = y + tap // K1, z + tap % K1
    inside = (m < M) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    row = ((image * H + h) * W + w) * C + first % C
    return tl.load(x + row[:, None] + tl.arange(0, k.shape[0])[None, :], inside[:, None], 0)


@triton.jit
def _convolution(
    x, weight, out, M, H, W, H_out, W_out, n_out, s0, s1, p0, p1,
    C: tl.constexpr, K: tl.constexpr, K1: tl.constexpr, GATHER: tl.constexpr, SUM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out (M, n_out) = the inputs times the weights (n_out, K)."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    i = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        a = _inputs(x, m, k, M, H, W, H_out, W_out, s0, s1, p0, p1, C, K, K1, GATHER)
        w = tl.load(weight + i[:, None] * K + k[None, :], (i < n_out)[:, None] & (k < K)[None, :], 0)
        total = tl.dot(a, tl.trans(w), total, out_dtype=SUM)
    at = m[:, None].to(tl.int64) * n_out + i[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), (m < M)[:, None] & (i < n_out)[None, :])


@triton.jit
def _convolution_gradient(
    g, x, out, M, H, W, H_out, W_out, n_out, s0, s1, p0, p1, share,
    C: tl.constexpr, K: tl.constexpr, K1: tl.constexpr, GATHER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[part] (K, n_out) = the inputs transposed times g (M, n_out), over the part's `share` of the rows."""
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    i = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(2)
    total = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    for first in range(part * share, tl.minimum((part + 1) * share, M), BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        a = _inputs(x, m, k, M, H, W, H_out, W_out, s0, s1, p0, p1, C, K, K1, GATHER)
        e = tl.load(g + m[:, None].to(tl.int64) * n_out + i[None, :], (m < M)[:, None] & (i < n_out)[None, :], 0.0)
        total = tl.dot(tl.trans(a.to(tl.float16)), e, total)
    at = (part.to(tl.int64) * K + k[:, None]) * n_out + i[None, :]
    tl.store(out + at, total, (k < K)[:, None] & (i < n_out)[None, :])


def keep(x: Tensor) -> Tensor:
    """Spikes as one byte each."""
    return x.contiguous().to(torch.int8)


def kept_shape(shape: torch.Size) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of what `keep` returns."""
    return tuple(shape), torch.int8


def _rounds(weight: Tensor) -> bool:
    """Whether PyTorch may round the operands of such products to TF32, so that we may round them to half precision."""
    return torch.backends.cudnn.allow_tf32 if weight.ndim == 4 else torch.backends.cuda.matmul.allow_tf32


def _geometry(x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> tuple[list[int], tuple[int, ...]]:
    """The shape of the currents, and (M, H, W, H_out, W_out, n_out, stride, padding) for the kernels."""
    T, B, n_out = *x.shape[:2], weight.shape[0]
    if weight.ndim == 2:
        return [T, B, n_out], (T * B, 1, 1, 1, 1, n_out, 1, 1, 0, 0)
    H, W = x.shape[2:4]
    h, w = ((n + 2 * p - k) // d + 1 for n, k, d, p in zip((H, W), weight.shape[2:], stride, padding, strict=True))
    return [T, B, h, w, n_out], (T * B * h * w, H, W, h, w, n_out, *stride, *padding)


def _taps(weight: Tensor) -> Tensor:
    """Weights as (n_out, k0, k1, C), contiguous."""
    return (weight[:, :, None, None] if weight.ndim == 2 else weight).detach().movedim(1, -1).contiguous()


def _columns(channels: int, inputs: int, widest: int) -> tuple[bool, int]:
    """Whether columns must be gathered, and how many to take at a time."""
    block = math.gcd(channels, widest)
    return (True, min(widest, max(32, triton.next_power_of_2(inputs)))) if block < 32 else (False, block)


def product(x: Tensor, kept: Tensor | None, weight: Tensor, stride: list[int], padding: list[int], hard: bool) -> Tensor:
    """As `reference.product`: exact, as integers of 16 or 32 bits, for hard weights and spikes."""
    if kept is None or not (hard or _rounds(weight)):
        return reference.product(x, kept, weight, stride, padding, hard)
    shape, geometry = _geometry(x, weight, stride, padding)
    w, inputs = _taps(weight), weight[0].numel()
    if hard:
        a, w, SUM = kept, w.to(torch.int8), tl.int32
        I = torch.empty(shape, dtype=torch.int16 if inputs < 1 << 15 else torch.int32, device=x.device)
    else:
        a, w, SUM = kept.half(), w.half(), tl.float32
        I = torch.empty(shape, dtype=torch.float32, device=x.device)
    gather, block = _columns(x.shape[-1], inputs, 128 if hard else 64)
    n = min(128, max(16, triton.next_power_of_2(len(weight))))
    options = {"C": x.shape[-1], "K": inputs, "K1": w.shape[2], "GATHER": gather, "SUM": SUM}
    blocks = {"BLOCK_M": 128, "BLOCK_N": n, "BLOCK_K": block, "num_warps": 8 if n == 128 else 4, "num_stages": 3}
    grid = (triton.cdiv(geometry[0], 128), triton.cdiv(len(weight), n))
    with torch.cuda.device(x.device):
        _convolution[grid](a, w, I, *geometry, **options, **blocks)
    return I


def _weight_gradient(g: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """The weight gradient from g in half precision and spikes x as bytes; the sum is float32, in a fixed order."""
    _, geometry = _geometry(x, weight, stride, padding)
    M, inputs, channels = geometry[0], weight[0].numel(), x.shape[-1]
    gather, block = _columns(channels, inputs, 128)
    n = min(128, max(16, triton.next_power_of_2(len(weight))))
    tiles = triton.cdiv(inputs, block) * triton.cdiv(len(weight), n)
    parts = max(1, min(triton.cdiv(M, 2048), triton.cdiv(4 * torch.cuda.get_device_properties(g.device).multi_processor_count, tiles)))
    share = triton.cdiv(triton.cdiv(M, parts), 64) * 64
    out = torch.empty(parts, inputs, len(weight), device=g.device)
    k1 = 1 if weight.ndim == 2 else weight.shape[3]
    blocks = {"BLOCK_M": 64, "BLOCK_N": n, "BLOCK_K": block, "num_warps": 8 if block * n >= 1 << 14 else 4, "num_stages": 3}
    grid = (triton.cdiv(inputs, block), triton.cdiv(len(weight), n), parts)
    with torch.cuda.device(g.device):
        _convolution_gradient[grid](g, x.half(), out, *geometry, share, C=channels, K=inputs, K1=k1, GATHER=gather, **blocks)
    taps = out.sum(0).t().reshape(len(weight), *weight.shape[2:], channels)
    return taps if weight.ndim == 2 else taps.movedim(-1, 1).contiguous()


def _scale(
    g_s: Tensor | None, g_u: Tensor | None, g_state: tuple[Tensor | None, ...], kappa: Tensor, constants: Tensor, surrogate: str,
    slope: float,
) -> Tensor:  # fmt: skip
    """A power of two that brings the currents' gradient, local learning, close to the largest number in half precision.

    |g_I| <= G + a_m/(1 - a_m) kappa max|g| with g = g_s sigma' + g_u and G from the state: a sum over time of the filter.
    """
    size = lambda g: 0.0 if g is None else torch.linalg.vector_norm(g, torch.inf)  # noqa: E731
    steepest = slope / 4 if surrogate == "sigmoid" else slope
    filtered = constants[0] / (1 - constants[0]) * kappa.max() * (steepest * size(g_s) + size(g_u))
    bound = filtered + size(g_state[0]) + size(g_state[1])
    return torch.exp2(torch.floor(torch.log2(32768 / bound.clamp(min=1e-30))))


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
    """As `reference.gradients`."""
    neuron = (u, kappa, constants, surrogate, slope, refractory, pool)
    if spikes and needs_weight and not (needs_x or refractory) and _rounds(weight):
        scale = _scale(g_s, g_u, g_state, kappa, constants, surrogate, slope)
        g_I, *g_before = adjoint(g_s, g_u, g_state, *neuron, scale)
        return (u.new_empty(0), _weight_gradient(g_I, x, weight, stride, padding) / scale, *g_before)
    g_I, *g_before = adjoint(g_s, g_u, g_state, *neuron)
    g_x = reference.input_gradient(g_I, x_shape, weight, stride, padding) if needs_x else u.new_empty(0)
    g_w = reference.weight_gradient(g_I, x.to(u.dtype), weight, stride, padding) if needs_weight else u.new_empty(0)
    return (g_x, g_w, *g_before)
