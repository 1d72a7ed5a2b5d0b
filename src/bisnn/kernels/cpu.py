"""The scan, its adjoint and the products of a layer on the CPU, compiled by numba: float32, all of
torch's threads. The loops over time are in `cpu_scan`.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn.alphabet import Levels
from bisnn.bits import counting, spreading, threads
from bisnn.bits.compilation import kernel
from bisnn.kernels import fourier, reference
from bisnn.kernels.cpu_gradients import BY_FOURS, BY_RUNS, ONE_BY_ONE
from bisnn.kernels.cpu_gradients import by_rows as _by_rows
from bisnn.kernels.cpu_scan import BLOCK
from bisnn.kernels.cpu_scan import adjoint as _adjoint
from bisnn.kernels.cpu_scan import scan as _scan
from bisnn.kernels.fourier import Axis
from bisnn.kernels.reference import Errors, LayerConstants
from bisnn.neuron import SRM, FixedSRM, Neuron

_f = np.float32


def run(kernel: Callable[..., Any], work: int, size: int, *arguments: object) -> list[Any]:
    """Run `kernel(lo, hi, *arguments)` over 0..size on torch's thread count; all results."""
    return threads.run(kernel, work, size, *arguments, count=torch.get_num_threads())


# Memory of large outputs is used again once the last tensor that lies there is gone. Fresh pages
# from the system, every iteration anew, would cost a good part of the time of a training iteration;
# PyTorch keeps such memory on GPUs, but not on the CPU.
KEPT = 1 << 29  # bytes kept at most
LINE = 64  # bytes of a cache line, where each block begins
_free: dict[int, list[np.ndarray]] = {}  # blocks that nobody uses, by size


def _empty(shape: Sequence[int]) -> Tensor:
    """An uninitialised float32 tensor."""
    size = 4 * math.prod(shape)
    if size < 1 << 20:
        return torch.empty(shape)
    try:
        block = _free[size].pop()
    except (KeyError, IndexError):
        block = np.empty(size + LINE, np.uint8)
        block = block[-block.ctypes.data % LINE :][:size]
    view = block.view(np.float32).reshape(shape)
    weakref.finalize(view, _give_back, block).atexit = False
    return torch.from_numpy(view)  # holds `view` as long as any tensor uses it


def _give_back(block: np.ndarray) -> None:
    # A list: other threads may add sizes meanwhile
    kept = sum(size * len(blocks) for size, blocks in list(_free.items()))
    if kept + block.size <= KEPT:
        _free.setdefault(block.size, []).append(block)


def release() -> None:
    """Give the memory that is kept for later outputs back to the system."""
    _free.clear()


def _flat(x: Tensor, steps: int | None = None) -> np.ndarray:
    """A contiguous tensor as a numpy view: (T, M) if it has a time axis, else (M,)."""
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
    u: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.scan`, bit for bit; if `u` is given, that is I, whose place it takes."""
    return _over_time(SRM, I, (P, Q, R), constants, kappa[None], None, pool, u)


def fixed_scan(
    I: Tensor,
    P: Tensor,
    Q: Tensor,
    R: Tensor,
    kappa: Tensor,
    integers: Tensor,
    pool: int = 1,
    u: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `reference.fixed_scan`, bit for bit; if `u` is given, that is I, whose place it takes."""
    unit = torch.ldexp(kappa, -integers[3])  # by a power of two, so that no product is rounded
    shared, each = integers[:4].reshape(4, -1)[:, 0].contiguous(), integers[4:]
    return _over_time(FixedSRM, I, (P, Q, R), shared, each, unit, pool, u)


def _over_time(
    neuron: type[Neuron],
    I: Tensor,
    state: Sequence[Tensor],
    shared: Tensor,
    each: Tensor,
    unit: Tensor | None,
    pool: int,
    u: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run the scan of a neuron; rows of `each`, and `unit`, are () or (N,)."""
    T, B, own = *I.shape[:2], each.ndim > 1
    u = I.clone(memory_format=torch.contiguous_format) if u is None else I.contiguous()
    traces = np.empty((len(state), *I.shape[1:]), neuron.dtype)
    P, Q, R = (torch.from_numpy(row).copy_(x) for row, x in zip(traces, state, strict=True))
    unit = I.new_empty(0) if unit is None else _spread([unit], I)
    s = _empty(reference.pooled_shape(I, pool))
    images, units = _units(P, pool, B)
    blocks = images * -(-units[1] // pool)
    each = _spread(each, I) if own else each
    constants = (x.numpy().reshape(len(x), -1) for x in (shared, each))
    neurons = (traces.reshape(len(traces), -1), *constants, _flat(unit))
    run(_scan(neuron, own), I.numel(), blocks, _flat(u, T), *neurons, _flat(s, T), *units)
    return s, u, P, Q, R


def _spread(rows: Sequence[Tensor] | Tensor, I: Tensor) -> Tensor:
    """Values of each neuron, or of all, for neurons of currents I: (rows, B, ...)."""
    return torch.stack([row.expand(I.shape[1:]) for row in rows])


def readout(s: Tensor, V: Tensor, scale: Tensor) -> Tensor:
    """As `reference.readout`, same bits: spikes and weights, -1 and +1, are counted as bits."""
    y = s.new_empty(*s.shape[:2], len(V))
    rows, weights = _words(keep(s.flatten(2), [])), _words(keep((V > 0).to(s), []))
    sums = y.numpy().reshape(-1, len(V))
    run(counting.counts, rows.size * len(V), len(rows), rows, np.ascontiguousarray(weights.T), sums)
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
    return (_whole_adjoint(arguments, u, pool), *before)


def _whole_adjoint(arguments: tuple[Any, ...], u: Tensor, pool: int) -> Tensor:
    """The gradient of all currents."""
    g_I = _empty(u.shape)
    images, units = _units(u[0], pool, u.shape[1])
    rows = images * -(-units[1] // pool)
    run(_adjoint, u.numel(), rows, *arguments, _flat(g_I, len(u)), 0, *units)
    return g_I


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
    """Gradients of the first state, to be written, and kernel arguments up to `refractory`."""
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
    kappas = kappa.expand(u.shape[1:]).contiguous()
    state = (_flat(G_P), _flat(G_Q), _flat(G_R))
    flat = (*state, _flat(u, T), _flat(kappas), _flat(constants))
    v = empty if V is None else V.contiguous().numpy()
    return (G_P, G_Q, G_R), (e_s, e_y, v, e_u, *flat, surrogate == "sigmoid", _f(slope), refractory)


# Products with spikes. Hard weights: popcounts, over the bit planes of their alphabet. Real ones:
# adding the rows of the active inputs, up to a density of spikes DENSE beyond which a dense product
# is faster. The weight gradient: adding rows at all densities, by fours of inputs beyond RARE; of
# convolutions, a product of transforms where kernels are large or inputs learn too. Convolutions
# that read few channels gather no rows: each active input adds to the outputs that see it.

RARE, DENSE = 0.15, 0.25  # as measured (benchmarks/kernels.py)
FEW_CHANNELS = 16
# Times of an addition of rows and of a multiplication tap by tap, to one between transforms
ADDITION, MULTIPLICATION = 3.0, 2.0
CACHED = 1 << 17  # numbers of a gradient that are worked on at a time


@kernel("void(int64, int64, float32[:, :, ::1], float32[:, :, ::1])")
def _transpose(lo, hi, x, y):
    """y[r] = the transpose of x[r]."""
    for r in range(lo, hi):
        x_r, y_r = x[r], y[r]
        for i in range(x_r.shape[1]):
            y_i = y_r[i]
            for j in range(x_r.shape[0]):
                y_i[j] = x_r[j, i]


def flat(x: Tensor) -> Tensor:
    """As `reference.flat`, in half the time for images (T, B, C, H, W) whose channels lie last."""
    if x.ndim != 5 or not x.movedim(2, -1).is_contiguous():
        return reference.flat(x)
    T, B, C, H, W = x.shape
    y = _empty((T, B, C * H * W))
    images = x.movedim(2, -1).numpy().reshape(T * B, H * W, C)
    run(_transpose, x.numel(), T * B, images, y.numpy().reshape(T * B, C, H * W))
    return y


def keep(x: Tensor, padding: list[int]) -> Tensor:
    """Spikes as bits, packed into int32 along the last axis, or of images along their rows."""
    if x.ndim == 5 and not x.is_contiguous() and x.movedim(-1, 2).is_contiguous():
        return _keep_channels_first(x.movedim(-1, 2))
    x = x.contiguous()
    shape, dtype = kept_shape(x.shape, padding)
    kept = torch.empty(shape, dtype=dtype)
    words = _words(kept)
    rows = x.detach().numpy().reshape(len(words), -1).view(np.uint32)
    run(counting.pack, x.numel(), len(rows), rows, words)
    return kept


def _keep_channels_first(images: Tensor) -> Tensor:
    """`keep` for images (T, B, C, H, W) as they come in: their bits, and not they, are moved."""
    T, B, C, H, W = images.shape
    planes, kept = (
        keep(images.flatten(3), []),
        torch.empty(T, B, H, -(-W * C // 32), dtype=torch.int32),
    )
    run(
        counting.interleave,
        images.numel(),
        T * B,
        _images(planes).reshape(T * B, C, -1),
        W,
        _images(kept).reshape(T * B, H, -1),
    )
    return kept


def kept_shape(shape: torch.Size, padding: list[int]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of what `keep` returns."""
    n = shape[-1] if len(shape) < 5 else shape[-2] * shape[-1]
    return (*shape[: min(len(shape) - 1, 3)], -(-n // 32)), torch.int32


def _words(kept: Tensor) -> np.ndarray:
    """Packed spikes (..., words) as a matrix of uint32."""
    return kept.numpy().view(np.uint32).reshape(-1, kept.shape[-1])


def _density(kept: Tensor, shape: Sequence[int]) -> float:
    """Share of the inputs of this shape that are active."""
    return int(np.bitwise_count(_words(kept)).sum()) / math.prod(shape)


def _images(kept: Tensor) -> np.ndarray:
    """Packed spikes as (T, B, H, words); those of a dense layer are images of one pixel."""
    return kept.numpy().view(np.uint32).reshape(*kept.shape[:2], -1, kept.shape[-1])


def _width(shape: Sequence[int]) -> int:
    """Of images; inputs of a dense layer are one pixel."""
    return shape[3] if len(shape) == 5 else 1


def _convolution(weight: Tensor, stride: list[int], padding: list[int]) -> tuple[int, ...]:
    """(k0, k1, stride, padding); a dense layer is a convolution of one pixel."""
    return (1, 1, 1, 1, 0, 0) if weight.ndim == 2 else (*weight.shape[2:], *stride, *padding)


def _rows(
    kept: Tensor, shape: Sequence[int], weight: Tensor, stride: list[int], padding: list[int]
) -> np.ndarray:
    """The inputs of each output neuron or pixel, as rows of bits: (R, words)."""
    if weight.ndim == 2:
        return _words(kept)
    images = _images(kept).reshape(-1, *kept.shape[2:])
    _, _, *size, _ = reference.current_shape(shape, weight, stride, padding)
    windows = np.empty((len(images), *size, -(-weight[0].numel() // 32)), np.uint32)
    inputs = (images, _width(shape), weight.shape[1], *_convolution(weight, stride, padding))
    run(counting.windows, windows.size, len(images), *inputs, windows)
    return windows.reshape(-1, windows.shape[-1])


def _rounds() -> bool:
    """Whether PyTorch lets relaxed weights round to bfloat16 and this CPU multiplies it faster."""
    allowed = torch.get_float32_matmul_precision() == "medium"
    return allowed and torch.cpu._is_avx512_bf16_supported()


_alphabet = functools.cache(Levels)  # checked once


def _planes(w: Tensor, alphabet: Levels) -> list[Tensor]:
    """The bit planes of weights in their dtype: 0, and for a one whatever is not 0."""
    if alphabet.planes == 1:
        return [w - alphabet.low]
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
    if kept is None or not (levels or _density(kept, x.shape) <= DENSE):
        if kept is None or not _rounds():
            return reference.product(x, kept, weight, stride, padding, levels)
        x, weight = x.bfloat16(), weight.detach().bfloat16()
        return reference.product(x, kept, weight, stride, padding, levels).float()
    if not levels and _has_few_channels(weight):
        return _product_by_runs(kept, x.shape, weight, stride, padding)
    # Inputs in the order of `counting.windows`
    w = weight.detach() if weight.ndim == 2 else weight.detach().movedim(1, -1).flatten(1)
    I = _empty(reference.current_shape(x.shape, weight, stride, padding))
    rows = _rows(kept, x.shape, weight, stride, padding)
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


def _has_few_channels(weight: Tensor) -> bool:
    """Whether this is a convolution that reads so few channels that none are gathered."""
    return weight.ndim == 4 and weight.shape[1] <= FEW_CHANNELS


def _product_by_runs(
    kept: Tensor, shape: Sequence[int], weight: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    """The product of real weights of a convolution with few channels."""
    I = _empty(reference.current_shape(shape, weight, stride, padding)).zero_()
    images = _images(kept).reshape(-1, *kept.shape[2:])
    places = (_width(shape), weight.shape[1], *_convolution(weight, stride, padding), len(weight))
    runs = spreading.as_runs(weight.detach().numpy(), stride[1])
    out = I.numpy().reshape(len(images), I.shape[2], -1)
    run(spreading.add_runs, I.numel(), len(images), images, *places, runs, out, False)
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
    """As `reference.gradients`, to float32 accuracy; from spikes, g_I is there as a whole only
    where both gradients are taken tap by tap, or the weights do not learn.
    """
    if not spikes:
        return reference.gradients(
            errors, u, x, x_shape, spikes, layer, needs_x, needs_weight, adjoint=adjoint
        )
    weight, places = layer.weight.detach(), (layer.stride, layer.padding)
    g_x, g_w = u.new_empty(0), u.new_empty(0)
    before, arguments = _adjoint_arguments(errors, layer.V, u, *layer.neuron)
    n_out, channels = weight.shape[:2]
    density, is_image = _density(x, x_shape), weight.ndim == 4
    rare = density <= RARE
    transformed = is_image and _is_cheaper_in_frequencies(u, x_shape, density, layer, needs_x)
    if not needs_weight or (needs_x and is_image and not transformed):
        g_I = _whole_adjoint(arguments, u, layer.pool)
        if needs_x:
            g_x = reference.input_gradient(g_I, x_shape, weight, *places)
        if needs_weight:
            g_w = _weight_gradient(g_I, x, x_shape, weight, *places, rare)
        return (g_x, g_w, *before)
    g_x = _empty(x_shape) if needs_x else g_x
    settings: tuple[Any, ...]
    if transformed:
        kernel, settings = _in_frequencies, _transforms(u, x_shape, layer, needs_x)
    else:
        w = weight.contiguous() if needs_x else u.new_empty(0, 1)
        way = BY_RUNS if _has_few_channels(weight) else ONE_BY_ONE if rare else BY_FOURS
        kernel, settings = _by_rows, (*_convolution(weight, *places), way, w.numpy())
    images, units = _units(u[0], layer.pool, _group(u))
    inputs = (*arguments, *units, _images(x), _width(x_shape), channels, n_out)
    sums = sum(run(kernel, u.numel(), images, *inputs, *settings, _flat(g_x)))
    if not transformed and _has_few_channels(weight):
        g_w = torch.from_numpy(spreading.from_runs(sums, weight.shape, layer.stride[1]))
    else:
        g_w = _in_shape_of(weight, sums[: weight[0].numel()])
    return (g_x, g_w, *before)


def _weight_gradient(
    g_I: Tensor,
    x: Tensor,
    x_shape: list[int],
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    rare: bool,
) -> Tensor:
    """From the gradient of all currents and packed spikes x."""
    rows, n_out = _rows(x, x_shape, weight, stride, padding), len(weight)
    sums = np.zeros((weight[0].numel(), n_out), np.float32)
    add = counting.add_rows_transposed if rare else counting.add_rows_by_fours
    run(add, g_I.numel(), rows.shape[1], rows, g_I.numpy().reshape(-1, n_out), sums)
    return _in_shape_of(weight, sums)


def _in_shape_of(weight: Tensor, sums: np.ndarray) -> Tensor:
    """Sums (taps and channels, n_out) as a gradient of the weights."""
    n_out, channels, *kernel = weight.shape
    g_w = torch.from_numpy(sums).t().reshape(n_out, *kernel, channels)
    return g_w.movedim(-1, 1).contiguous()


def _group(u: Tensor) -> int:
    """Recordings whose gradient is worked on at a time."""
    return min(max(1, CACHED // (len(u) * u[0, 0].numel())), u.shape[1])


def _in_frequencies(*arguments: object) -> np.ndarray:
    from bisnn.kernels.cpu_frequencies import in_frequencies  # compiled when first used

    return in_frequencies(*arguments)


def _axes(u: Tensor, x_shape: list[int], layer: LayerConstants) -> tuple[Axis, Axis]:
    """Of the images that a convolution reads."""
    kernel = layer.weight.shape[2:]
    sizes = (x_shape[2:4], kernel, layer.stride, layer.padding, u.shape[2:4])
    y, x = (Axis(*axis) for axis in zip(*sizes, strict=True))
    return y, x


def _is_cheaper_in_frequencies(
    u: Tensor, x_shape: list[int], density: float, layer: LayerConstants, needs_x: bool
) -> bool:
    """Whether a convolution's gradients cost less as products of transforms than tap by tap: adding
    the rows of active inputs, for the weights, and multiplying all, for the inputs.
    """
    n_out, channels = layer.weight.shape[:2]
    each = ADDITION * density + MULTIPLICATION * needs_x
    tap_by_tap = each * u[0, 0].numel() * layer.weight[0].numel()
    axes = _axes(u, x_shape, layer)
    return fourier.operations(*axes, channels, n_out, needs_x) < tap_by_tap


def _transforms(
    u: Tensor, x_shape: list[int], layer: LayerConstants, needs_x: bool
) -> tuple[np.ndarray, ...]:
    """Matrices for `_in_frequencies`, and the transformed weights if the inputs learn too."""
    of_inputs, of_currents, taps = fourier.transforms(*_axes(u, x_shape, layer))
    w = np.empty(0, np.float32)
    if needs_x:
        by_taps = layer.weight.detach().permute(2, 3, 0, 1).reshape(len(taps), -1)
        w = _flat(torch.from_numpy(taps).t() @ by_taps)
    return (*of_inputs, *of_currents, taps, w)
