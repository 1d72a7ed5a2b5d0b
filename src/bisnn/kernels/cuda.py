"""The products of a layer on a GPU, in Triton; its scan and adjoint are in `cuda_scan`.

Products are implicit: no matrix of windows is ever written.

What is exact: hard weights, levels from -127 to 127, and spikes are multiplied as 8-bit integers
and summed as 32-bit ones: currents are exact at any size.
What is rounded: where PyTorch is allowed TF32 (`torch.backends`), relaxed weights and the gradients
of currents enter products in half precision, which has TF32's 10 bits of mantissa; sums are
float32. Gradients are scaled by a power of two from a bound on their size, or from the largest of
them, so that none overflows. Where it is not allowed those products are PyTorch's own, and so are
the gradients of the inputs of a convolution with a stride.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bisnn.kernels import reference
from bisnn.kernels.cuda_scan import adjoint, bounded, fixed_scan, scan  # noqa: F401 (part of a kernel)
from bisnn.kernels.reference import Errors, LayerConstants, flat  # noqa: F401 (likewise)
from bisnn.spec import windows_along

readout = reference.readout
_PLACES = ("H", "W", "C", "S0", "S1", "H_OUT", "W_OUT", "K", "RUN")  # of inputs, for the kernels


# Products. A dense layer is a convolution of one pixel. Images x are padded, (N, H, W, C), weights
# (n_out, k0, k1, C). An output pixel is a row m, an input under the kernel a column k, and since a
# row of the kernel covers a run of k1 C numbers in memory, the input (m, k) lies at rows(m) +
# columns(k). Without GATHER a block of columns lies within one run, and is read as a whole.


@triton.jit
def _rows(
    m, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, S0: tl.constexpr, S1: tl.constexpr,
    H_OUT: tl.constexpr, W_OUT: tl.constexpr, WIDE: tl.constexpr = True,
):  # fmt: skip
    image = m // (H_OUT * W_OUT)
    if WIDE:
        image = image.to(tl.int64)
    return (image * H + m // W_OUT % H_OUT * S0) * (W * C) + m % W_OUT * (S1 * C)


@triton.jit
def _beside(m, member, members, span):
    """Row m of a member where those of a time step, `span` of each member, lie side by side."""
    return m + (m // span * (members - 1) + member) * span


@triton.jit
def _convolution(
    x, weight, out, M, n_out, members, span,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, S0: tl.constexpr, S1: tl.constexpr,
    H_OUT: tl.constexpr, W_OUT: tl.constexpr,
    K: tl.constexpr, RUN: tl.constexpr, GATHER: tl.constexpr, SUM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    MEMBERS: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """out (M, n_out) = the inputs times the weights (n_out, K). With MEMBERS, so for each of them,
    with weights of its own, and inputs too unless they are SHARED.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    i = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    source, target = tl.minimum(m, M - 1), m
    if MEMBERS:
        member = tl.program_id(2)
        weight += member.to(tl.int64) * n_out * K
        target = _beside(m, member, members, span)
        if not SHARED:
            source = _beside(source, member, members, span)
    row = x + _rows(source, H, W, C, S0, S1, H_OUT, W_OUT)[:, None]
    w_row = weight + tl.minimum(i, n_out - 1)[:, None] * K
    total = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    block = tl.arange(0, BLOCK_K)[None, :]
    if GATHER:
        for first in range(0, K, BLOCK_K):
            k = first + block
            a = tl.load(row + (k // RUN * (W * C) + k % RUN), k < K, 0)
            total = tl.dot(a, tl.trans(tl.load(w_row + k, k < K, 0)), total, out_dtype=SUM)
    else:
        # Written with these, the compiler sees that reads are aligned
        BLOCKS: tl.constexpr = RUN // BLOCK_K
        for step in range(0, K // BLOCK_K):
            a = tl.load(row + (step // BLOCKS * (W * C) + step % BLOCKS * BLOCK_K + block))
            total = tl.dot(
                a, tl.trans(tl.load(w_row + (step * BLOCK_K + block))), total, out_dtype=SUM
            )
    at = target[:, None].to(tl.int64) * n_out + i[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), (m < M)[:, None] & (i < n_out)[None, :])


@triton.jit
def _convolution_gradient(
    g, x, scale, out, M, n_out, share,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, S0: tl.constexpr, S1: tl.constexpr,
    H_OUT: tl.constexpr, W_OUT: tl.constexpr,
    K: tl.constexpr, RUN: tl.constexpr, ALIGNED: tl.constexpr,
    WHOLE: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[part] (n_out, K) = g (M, n_out), which is times `scale`, transposed times the inputs,
    over `share` of the rows.

    Columns lie together by ALIGNED, WHOLE promises that the blocks of g have no rest, and without
    WIDE the inputs are fewer than 2^31.
    """
    # In groups, whose inputs stay in the cache
    tile, rest = tl.swizzle2d(
        tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1), 8
    )
    k = tile * BLOCK_K + tl.arange(0, BLOCK_K)
    i = rest * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(2)
    existing = k % K  # no mask: what is read beyond the last column is not stored
    column = existing // RUN * (W * C) + existing % RUN
    column = tl.max_contiguous(tl.multiple_of(column, ALIGNED), ALIGNED)
    rows = tl.arange(0, BLOCK_M)
    end = tl.minimum((part + 1) * share, M)
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for start in range(part * share, end, BLOCK_M):
        m = start + rows
        e_at = g + tl.cast(start, tl.int64) * n_out + (rows[:, None] * n_out + i[None, :])
        if WHOLE:
            e = tl.load(e_at)
        else:
            e = tl.load(e_at, (m < end)[:, None] & (i < n_out)[None, :], 0.0)
            m = tl.minimum(m, M - 1)
        row = _rows(m, H, W, C, S0, S1, H_OUT, W_OUT, WIDE)
        a = tl.load(x + row[:, None] + column[None, :])
        total = tl.dot(tl.trans(e), a, total)
    at = (part.to(tl.int64) * n_out + i[:, None]) * K + k[None, :]
    tl.store(out + at, total / tl.load(scale), (i < n_out)[:, None] & (k < K)[None, :])


@triton.jit
def _transposed_convolution(
    g, weight, scale, out, M,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, H_OUT: tl.constexpr, W_OUT: tl.constexpr,
    N_OUT: tl.constexpr, TAPS: tl.constexpr, K1: tl.constexpr,
    P0: tl.constexpr, P1: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out (M, C), of images (H, W) without padding, = g (N, H_OUT, W_OUT, N_OUT), which is times
    `scale`, times the weights (N_OUT, TAPS, C), at a stride of 1.

    Here a row m is an input pixel, and N_OUT currents under a tap of the kernel are the columns.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    pixel = tl.minimum(m, M - 1)
    image, y, x = (pixel // (H * W)).to(tl.int64), pixel // W % H + P0, pixel % W + P1
    row = g + (((image * H_OUT + y) * W_OUT + x) * N_OUT)[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    BLOCKS: tl.constexpr = (N_OUT + BLOCK_K - 1) // BLOCK_K
    for step in range(0, TAPS * BLOCKS):
        tap = step // BLOCKS
        up, left = tap // K1, tap % K1
        # Unsigned, so that what is above or left of the image is large
        there = ((y - up).to(tl.uint32) < H_OUT) & ((x - left).to(tl.uint32) < W_OUT)
        i = step % BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(
            row + (i[None, :] - (up * W_OUT + left) * N_OUT),
            there[:, None] & (i < N_OUT)[None, :],
            0.0,
        )
        w = tl.load(weight + (i[:, None] * TAPS + tap) * C + c, (i < N_OUT)[:, None] & (c < C), 0.0)
        total = tl.dot(a, w, total)
    at = m[:, None].to(tl.int64) * C + c
    tl.store(out + at, total / tl.load(scale), (m < M)[:, None] & (c < C))


@triton.jit
def _keep(
    x, out, n, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    P0: tl.constexpr, P1: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Images x (N, H, W, C) as bytes with P0 rows and P1 columns of zeros on either side."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, rest = o % C, o // C
    w, rest = rest % (W + 2 * P1) - P1, rest // (W + 2 * P1)
    h, image = rest % (H + 2 * P0) - P0, rest // (H + 2 * P0)
    inside = (o < n) & (w >= 0) & (w < W) & (h >= 0) & (h < H)
    tl.store(out + o, tl.load(x + ((image * H + h) * W + w) * C + c, inside, 0).to(tl.int8), o < n)


def keep(x: Tensor, padding: list[int]) -> Tensor:
    """Spikes as one byte each, images with their padding: (T, B, N) or (T, B, H, W, C)."""
    x = x.contiguous()
    shape, dtype = kept_shape(x.shape, padding)
    kept = torch.empty(shape, dtype=dtype, device=x.device)
    H, W = x.shape[2:4] if padding else (1, 1)
    with torch.cuda.device(x.device):
        _keep[(triton.cdiv(kept.numel(), 1024),)](
            x, kept, kept.numel(), H, W, x.shape[-1], *(padding or (0, 0)), BLOCK=1024
        )
    return kept


@triton.jit
def _convert(x, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o, o < n, 0).to(out.dtype.element_ty), o < n)


def _converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Contiguous numbers of another type; PyTorch's own conversion takes them one at a time."""
    out = torch.empty_like(x, dtype=dtype)
    with torch.cuda.device(x.device):
        _convert[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), BLOCK=4096)
    return out


def kept_shape(shape: torch.Size, padding: list[int]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of what `keep` returns."""
    size = (n + 2 * p for n, p in zip(shape[2:-1], padding, strict=True))
    return (*shape[:2], *size, shape[-1]), torch.int8


def _rounds(weight: Tensor) -> bool:
    """Whether PyTorch may round such products to TF32, so that we may round to half precision."""
    return (
        torch.backends.cudnn.allow_tf32
        if weight.ndim == 4
        else torch.backends.cuda.matmul.allow_tf32
    )


def _places_of(kept: Tensor, weight: Tensor, stride: list[int]) -> tuple[list[int], dict[str, int]]:
    """The shape of the currents, and what the kernels need to know of the places of inputs."""
    T, B, C = kept.shape[0], kept.shape[1], kept.shape[-1]
    if weight.ndim == 2:
        pixel = (1, 1, C, 1, 1, 1, 1, C, C)
        return [T, B, len(weight)], dict(zip(_PLACES, pixel, strict=True))
    (H, W), (k0, k1), (s0, s1) = kept.shape[2:4], weight.shape[2:], stride
    h, w = windows_along(H, k0, s0, 0), windows_along(W, k1, s1, 0)  # the padding is in `kept`
    image = (H, W, C, s0, s1, h, w, k0 * k1 * C, k1 * C)
    return [T, B, h, w, len(weight)], dict(zip(_PLACES, image, strict=True))


def _taps(weight: Tensor) -> Tensor:
    """Weights as (n_out, k0, k1, C), contiguous."""
    kernels = weight[:, :, None, None] if weight.ndim == 2 else weight
    return kernels.detach().movedim(1, -1).contiguous()


def _columns(places: dict[str, int]) -> dict[str, Any]:
    """Whether columns are gathered, and how many are taken at a time."""
    block = next((k for k in (128, 64, 32) if places["RUN"] % k == 0), None)
    if block is None:
        return {"GATHER": True, "BLOCK_K": min(64, max(32, triton.next_power_of_2(places["K"])))}
    return {"GATHER": False, "BLOCK_K": block}


def product(
    x: Tensor,
    kept: Tensor | None,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    levels: list[int],
) -> Tensor:
    """As `reference.product`: exact, as integers of 16 or 32 bits, for hard weights and spikes."""
    if kept is None or not (levels or _rounds(weight)):
        return reference.product(x, kept, weight, stride, padding, levels)
    if not levels:
        return _convolved(_converted(kept, torch.float16), weight, stride, torch.float32)
    return _convolved(kept, weight, stride, _current_type(weight, levels))


def _current_type(weight: Tensor, levels: Sequence[int]) -> torch.dtype:
    largest = max(map(abs, levels)) * weight[0].numel()  # that a current can be
    return torch.int16 if largest < 1 << 15 else torch.int32


def member_currents(
    x: Tensor,
    weights: Tensor,
    stride: list[int],
    padding: list[int],
    levels: Sequence[int],
    shared: bool,
) -> Tensor:
    """The currents of K members side by side in the batch, (T, K B, ...), by hard weights (K, ...)
    from spikes that lie so too, or are `shared` by all, (T, B, ...).
    """
    kept = x if x.dtype == torch.int8 and not any(padding) else keep(x, padding)
    result = _current_type(weights[0], levels)
    return _convolved(kept, weights.flatten(0, 1), stride, result, len(weights), shared)


def _convolved(
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    result: torch.dtype,
    members: int = 1,
    shared: bool = False,
) -> Tensor:
    """Padded images x, bytes or half precision, convolved with weights of the same precision.

    Weights of several members come one after the other; see `member_currents`.
    """
    n_out = len(weight) // members
    shape, places = _places_of(x, weight[:n_out], stride)
    shape[1] *= members if shared else 1
    out = torch.empty(shape, dtype=result, device=x.device)
    M, n = math.prod(shape[:-1]) // members, min(128, max(16, triton.next_power_of_2(n_out)))
    columns = _columns(places)
    m = 64 if columns["GATHER"] else 128
    blocks = {"BLOCK_M": m, "BLOCK_N": n, **columns, "num_warps": 4, "num_stages": 3}
    blocks["SUM"] = tl.int32 if x.dtype == torch.int8 else tl.float32
    blocks |= {"MEMBERS": members > 1, "SHARED": members > 1 and shared}
    sizes = (M, n_out, members, M // shape[0] if members > 1 else M)
    grid = (triton.cdiv(M, m), triton.cdiv(n_out, n), members)
    weights = _converted(_taps(weight), x.dtype)
    with torch.cuda.device(x.device):
        _convolution[grid](x, weights, out, *sizes, **places, **blocks)
    return out


def _weight_gradient(
    g: Tensor, scale: Tensor, kept: Tensor, weight: Tensor, stride: list[int]
) -> Tensor:
    """The weight gradient from g in half precision, times `scale`, and kept spikes; order fixed."""
    shape, places = _places_of(kept, weight, stride)
    M, K, n_out = math.prod(shape[:-1]), places["K"], len(weight)
    n = min(128, max(16, triton.next_power_of_2(n_out)))
    aligned = math.gcd(places["RUN"], places["W"] * places["C"], 64)
    k = min(256 if weight.ndim == 2 else 128, max(32, triton.next_power_of_2(K)))
    tiles = triton.cdiv(K, k), triton.cdiv(n_out, n)
    processors = torch.cuda.get_device_properties(g.device).multi_processor_count
    places_each = max(1, min(4, (1 << 15) // (n * k)))  # for programs, on a processor
    parts = _parts(M, tiles[0] * tiles[1], processors * places_each)
    share = triton.cdiv(triton.cdiv(M, parts), 64) * 64
    out = torch.empty(parts, n_out, K, device=g.device)
    promises = {
        "ALIGNED": aligned,
        "WHOLE": M % 64 == 0 and n_out % n == 0,
        "WIDE": kept.numel() >= 1 << 31,
    }
    blocks = {"BLOCK_M": 64, "BLOCK_N": n, "BLOCK_K": k, "num_stages": 3}
    blocks["num_warps"] = 8 if n * k > 1 << 14 else 4
    x = _converted(kept, torch.float16)
    with torch.cuda.device(g.device):
        _convolution_gradient[(*tiles, parts)](
            g, x, scale, out, M, n_out, share, **places, **promises, **blocks
        )
    taps = (out.sum(0) if parts > 1 else out[0]).reshape(n_out, *weight.shape[2:], -1)
    return taps if weight.ndim == 2 else taps.movedim(-1, 1).contiguous()


def _parts(M: int, tiles: int, places: int) -> int:
    """How many parts M rows are summed in, so that few of the places for programs stay empty."""

    def filled(parts: int) -> float:
        return tiles * parts / (triton.cdiv(tiles * parts, places) * places)

    return max(range(1, max(1, min(M // 512, 4 * places // tiles)) + 1), key=filled)


def _halved(g: Tensor) -> tuple[Tensor, Tensor]:
    """Half-precision g times a power of two, its largest at most 2^15; that power. Uses g up."""
    peak = torch.linalg.vector_norm(g, torch.inf).clamp(min=1e-30)
    scale = torch.exp2(torch.floor(15 - torch.log2(peak)))
    return g.mul_(scale).half(), scale


def _input_gradient(g: Tensor, scale: Tensor, shape: list[int], layer: LayerConstants) -> Tensor:
    """The gradient of inputs of this shape, from g in half precision, times `scale`."""
    weight, padding = layer.weight, layer.padding
    if any(d > 1 for d in layer.stride):
        return reference.input_gradient(g.float(), shape, weight, layer.stride, padding) / scale
    out = torch.empty(shape, device=g.device)
    C, n_out = shape[-1], len(weight)
    M, (H, W) = out.numel() // C, shape[2:4] if padding else (1, 1)
    H_out, W_out = g.shape[2:4] if padding else (1, 1)
    k0, k1 = weight.shape[2:] if padding else (1, 1)
    n = min(128, max(16, triton.next_power_of_2(C)))
    k = min(64, max(16, triton.next_power_of_2(n_out)))
    blocks = {"BLOCK_M": 128, "BLOCK_N": n, "BLOCK_K": k, "num_warps": 4, "num_stages": 3}
    sizes = (M, H, W, C, H_out, W_out, n_out, k0 * k1, k1, *(padding or (0, 0)))
    grid = (triton.cdiv(M, 128), triton.cdiv(C, n))
    with torch.cuda.device(g.device):
        weights = _converted(_taps(weight), torch.float16)
        _transposed_convolution[grid](g, weights, scale, out, *sizes, **blocks)
    return out


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
    """As `reference.gradients`."""
    weight, padding = layer.weight, layer.padding
    adjoint_of = partial(adjoint, g_y=errors.y, V=layer.V)
    if not (spikes and _rounds(weight)):
        if spikes and weight.ndim == 4:  # it came with its padding
            x = x[:, :, padding[0] : x.shape[2] - padding[0], padding[1] : x.shape[3] - padding[1]]
        return reference.gradients(
            errors._replace(y=None), u, x, x_shape, spikes, layer, needs_x, needs_weight, adjoint_of
        )
    scale = (
        torch.empty(1, device=u.device)
        if bounded(layer.kappa, layer.surrogate, layer.slope, layer.refractory)
        else None
    )
    g_I, *before = adjoint_of(
        errors.s, errors.u, errors.state, u, *layer.neuron, layer.pool, scale=scale
    )
    if scale is None:
        g_I, scale = _halved(g_I)
    nothing = g_I.new_empty(0, dtype=torch.float32)
    g_x = _input_gradient(g_I, scale, x_shape, layer) if needs_x else nothing
    g_w = _weight_gradient(g_I, scale, x, weight, layer.stride) if needs_weight else nothing
    return (g_x, g_w, *before)  # type: ignore[return-value]
