"""The scan of each neuron and its adjoint on a GPU, in Triton.

One pass over memory each: a scan keeps its traces in registers while time runs, reads a current and
writes a potential and a spike per step, the pooling included; or the spikes alone, from rest.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bisnn.kernels.reference import pooled_shape, spike_error
from bisnn.neuron import DECAY_BITS, FLUSH

MANY = 16  # outputs of a readout whose errors are a product of their own
_FLUSH, _BITS = tl.constexpr(FLUSH), tl.constexpr(DECAY_BITS)


# The scan. A program has BLOCK windows of neurons, in memory order of what leaves the layer, and
# WINDOW >= pool^2 lanes for the neurons of each window; without pooling a window is one neuron. The
# windows are in groups of n, all of them or those of one recording, and a program is in one group.


@triton.jit
def _group(n, BLOCK: tl.constexpr):
    return tl.program_id(0) // tl.cdiv(n, BLOCK)


@triton.jit
def _places(
    n, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    POOL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Neurons (BLOCK, WINDOW) of a program's windows and mask, its outputs (BLOCK,) and mask."""
    o = tl.program_id(0) % tl.cdiv(n, BLOCK) * BLOCK + tl.arange(0, BLOCK)
    exists = o < n
    o += _group(n, BLOCK) * n
    if POOL == 1:
        return o[:, None], exists[:, None], o, exists
    rows: tl.constexpr = (H + POOL - 1) // POOL  # with those at an edge that are no whole window
    columns: tl.constexpr = (W + POOL - 1) // POOL
    c, rest = o % C, o // C
    x, rest = rest % columns, rest // columns
    y, b = rest % rows, rest // rows
    j = tl.arange(0, WINDOW)
    h, w = y[:, None] * POOL + (j // POOL)[None, :], x[:, None] * POOL + (j % POOL)[None, :]
    inside = exists[:, None] & (j < POOL * POOL)[None, :] & (h < H) & (w < W)
    out = ((b * (H // POOL) + y) * (W // POOL) + x) * C + c
    at = ((b[:, None] * H + h) * W + w) * C + c[:, None]
    if C % (BLOCK // 32) == 0:  # no more numbers to a thread than that, or windows are split
        at = tl.max_contiguous(at, [BLOCK // 32, 1])
    return at, inside, out, exists & (y < H // POOL) & (x < W // POOL)


# One step of each neuron, as `neuron` defines it: the same operations in the same order.


@triton.jit
def _flush(x):
    return tl.where(tl.abs(x) <= _FLUSH, 0.0, x)


@triton.jit
def _srm_potential(p, q, r, k):
    return k * (p - q) - r


@triton.jit
def _srm_advance(p, q, r, c, x, a_m, a_s, a_r):
    return _flush(a_m * (p + c)), _flush(a_s * (q + c)), _flush(a_r * (r + x))


@triton.jit
def _decayed(x, a):
    """a x / 2^16, rounded towards zero: of the magnitude, which a shift rounds down."""
    y = ((tl.abs(x).to(tl.int64) * a) >> _BITS).to(tl.int32)
    return tl.where(x < 0, -y, y)


@triton.jit
def _fixed_advance(p, q, r, c, x, a_m, a_s, a_r, fraction):
    c = c << fraction
    return _decayed(p + c, a_m), _decayed(q + c, a_s), _decayed(r + x, a_r)


@triton.jit
def _store_potentials(u, v, inside, WINDOW: tl.constexpr):
    """Write potentials v (BLOCK, WINDOW). In half precision two may be alike that were not: there
    the last bit says which is the first of the largest of its window. Infinity with that bit would
    be NaN, so what half precision cannot hold becomes the largest number that it can.
    """
    kind: tl.constexpr = u.dtype.element_ty
    if kind == tl.float16 and WINDOW > 1:
        first = _is_first(tl.where(inside, v, float("-inf")), WINDOW)
        held = tl.minimum(tl.maximum(v, -65504.0), 65504.0).to(kind)
        bits = (held.to(tl.int16, bitcast=True) & -2) | first.to(tl.int16)
        tl.store(u, bits.to(kind, bitcast=True), inside)
    else:
        tl.store(u, v.to(kind), inside)


@triton.jit
def _is_first(u, WINDOW: tl.constexpr):
    """Whether a neuron's is the first of the largest potentials u of its window."""
    j = tl.arange(0, WINDOW)[None, :]
    return j == tl.min(tl.where(u == tl.max(u, 1)[:, None], j, WINDOW), 1)[:, None]


@triton.jit
def _scan(
    I, u, s, P, Q, R, P_after, Q_after, R_after, kappa, constants, T, n, M, M_out,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, ALONE: tl.constexpr,
    SCALAR: tl.constexpr, POOL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u may be I itself. With ALONE spikes alone are written, of neurons that start at rest."""
    at, inside, out, whole = _places(n, H, W, C, POOL, WINDOW, BLOCK)
    a_m, a_s = tl.load(constants), tl.load(constants + 1)
    a_r, theta = tl.load(constants + 2), tl.load(constants + 3)
    k = tl.load(kappa) if SCALAR else tl.load(kappa + at, inside, 0.0)
    if ALONE:
        p = tl.zeros((BLOCK, WINDOW), tl.float32)
        q, r = p, p
    else:
        p, q = tl.load(P + at, inside, 0.0), tl.load(Q + at, inside, 0.0)
        r = tl.load(R + at, inside, 0.0)
    I_t = tl.load(I + at, inside, 0)
    I += M
    I_1 = tl.load(I + at, inside & (T > 1), 0)
    for t in range(T):
        I += M
        I_2 = tl.load(I + at, inside & (t + 2 < T), 0)  # two steps ahead: memory answers slowly
        v = _srm_potential(p, q, r, k)
        fires = v > theta
        x = tl.where(fires, 1.0, 0.0)
        c = I_t.to(tl.float32)
        p, q, r = _srm_advance(p, q, r, c, x, a_m, a_s, a_r)
        if not ALONE:
            _store_potentials(u + at, v, inside, WINDOW)
        tl.store(s + out, tl.max(tl.where(inside, x, 0.0), 1).to(s.dtype.element_ty), whole)
        I_t, I_1 = I_1, I_2
        u += M
        s += M_out
    if not ALONE:
        tl.store(P_after + at, p, inside)
        tl.store(Q_after + at, q, inside)
        tl.store(R_after + at, r, inside)


@triton.jit
def _fixed_scan(
    I, u, s, P, Q, R, P_after, Q_after, R_after, scale, shared, feedback, threshold, T, n, M, M_out,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, ALONE: tl.constexpr,
    SCALAR: tl.constexpr, POOL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """FixedSRM: scale is kappa 2^-f, shared (a_m, a_s, a_r, f), feedback K, threshold theta_f."""
    at, inside, out, whole = _places(n, H, W, C, POOL, WINDOW, BLOCK)
    a_m, a_s = tl.load(shared), tl.load(shared + 1)
    a_r, fraction = tl.load(shared + 2), tl.load(shared + 3)
    if SCALAR:
        k, one, theta = tl.load(scale), tl.load(feedback), tl.load(threshold)
    else:
        k = tl.load(scale + at, inside, 0.0)
        one, theta = tl.load(feedback + at, inside, 0), tl.load(threshold + at, inside, 0)
    if ALONE:
        p = tl.zeros((BLOCK, WINDOW), tl.int32)
        q, r = p, p
    else:
        p, q, r = tl.load(P + at, inside, 0), tl.load(Q + at, inside, 0), tl.load(R + at, inside, 0)
    for _ in range(T):
        c = tl.load(I + at, inside, 0).to(tl.int32)
        v = p - q - r
        fires = v > theta
        p, q, r = _fixed_advance(p, q, r, c, tl.where(fires, one, 0), a_m, a_s, a_r, fraction)
        if not ALONE:
            _store_potentials(u + at, k * v.to(tl.float32), inside, WINDOW)
        fired = tl.max(tl.where(fires & inside, 1.0, 0.0), 1)
        tl.store(s + out, fired.to(s.dtype.element_ty), whole)
        I += M
        u += M
        s += M_out
    if not ALONE:
        tl.store(P_after + at, p, inside)
        tl.store(Q_after + at, q, inside)
        tl.store(R_after + at, r, inside)


@triton.jit
def _scale(
    peaks, k, a_m, a_s, a_r, steepest, BESIDE: tl.constexpr, REFRACTORY: tl.constexpr
):  # fmt: skip
    """The power of two that brings a bound on |g_I| to 2^15, from the largest errors: `peaks` are
    max|g_s|, and where there are others, those of g_u, of g_P and g_Q together, and of g_R.

    With d <= D = `steepest` <= 2 the error's way through the reset, r' = a_r ((1 - d) r - d e),
    is a geometric sum; so is the filter, |g_I| <= |g_P| + |g_Q| + kappa max|g| sum_t a^t.
    """
    e, g_u, state, r = tl.load(peaks), 0.0, 0.0, 0.0
    if BESIDE:
        g_u, state, r = tl.load(peaks + 1), tl.load(peaks + 2), tl.load(peaks + 3)
    if REFRACTORY:
        e += r + (steepest * e + g_u) * (a_r / (1 - a_r))
    a = tl.maximum(a_m, a_s)
    bound = state + k * (steepest * e + g_u) * (a / (1 - a))
    return tl.exp2(tl.floor(tl.log2(32768 / tl.maximum(bound, 1e-30))))


@triton.jit
def _each(x, stride, mask, COUNT: tl.constexpr):
    """The COUNT numbers, or blocks of them, that lie at x, x + stride, ..., 0 where masked."""
    values = ()
    for c in tl.static_range(COUNT):
        values += (tl.load(x + c * stride, mask, 0.0),)  # type: ignore[assignment]
    return values


@triton.jit
def _to_first(e, u, WINDOW: tl.constexpr):
    """The errors e of windows, for their neurons: at the first of the largest potentials u."""
    if u.dtype == tl.float16:
        return tl.where((u.to(tl.int16, bitcast=True) & 1) == 1, e[:, None], 0.0)
    return tl.where(_is_first(u, WINDOW), e[:, None], 0.0)


@triton.jit
def _times_derivative(e, v, slope, SIGMOID: tl.constexpr):
    """e times the pseudo-derivative at v = u - theta."""
    v = slope * v
    if SIGMOID:
        z = tl.exp(-tl.abs(v))
        return e * (slope * z / ((1 + z) * (1 + z)))
    return tl.where(tl.abs(v) < 0.5, e * slope, 0.0)


# More than 60 lines, because the state of its one loop lives in registers.
@triton.jit
def _adjoint(
    g_s, g_u, g_P, g_Q, g_R, g_y, V, u, kappa, constants, peaks, scale, g_I, G_P, G_Q, G_R, slope,
    T, n, M, M_out, n_out, M_y, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
    HAS_S: tl.constexpr, HAS_U: tl.constexpr, HAS_STATE: tl.constexpr, OUTPUTS: tl.constexpr,
    SIGMOID: tl.constexpr, REFRACTORY: tl.constexpr, HALF: tl.constexpr, SCALAR: tl.constexpr,
    POOL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """G_P, G_Q, G_R are the gradients of the first state. The errors of OUTPUTS readouts come as
    g_y (T, B, OUTPUTS) and V (OUTPUTS, n_out); a group of windows is then a recording's.

    With HALF, g_I comes out times `scale`, which is written too; all neurons have the same kappa.
    """
    at, inside, out, whole = _places(n, H, W, C, POOL, WINDOW, BLOCK)
    a_m, a_s = tl.load(constants), tl.load(constants + 1)
    a_r, theta = tl.load(constants + 2), tl.load(constants + 3)
    k = tl.load(kappa) if SCALAR else tl.load(kappa + at, inside, 0.0)
    factor = 1.0
    if HALF:
        steepest = slope * 0.25 if SIGMOID else slope
        factor = _scale(peaks, k, a_m, a_s, a_r, steepest, HAS_U or HAS_STATE, REFRACTORY)
        tl.store(scale, factor, tl.program_id(0) == 0)
    if HAS_STATE:
        p, q = tl.load(g_P + at, inside, 0.0), tl.load(g_Q + at, inside, 0.0)
        r = tl.load(g_R + at, inside, 0.0)
    else:
        p = tl.zeros((BLOCK, WINDOW), tl.float32)
        q, r = p, p
    lowest = float("-inf")
    last = tl.full((), 0, tl.int64) + T - 1
    u += last * M
    g_u += last * M
    g_I += last * M
    g_s += last * M_out
    u_t = tl.load(u + at, inside, lowest)
    e_t = tl.load(g_s + out, whole, 0.0) if HAS_S else tl.zeros((BLOCK,), tl.float32)
    u -= M
    g_s -= M_out
    u_1 = tl.load(u + at, inside & (T > 1), lowest)
    e_1 = tl.load(g_s + out, whole & (T > 1), 0.0) if HAS_S else e_t
    group = _group(n, BLOCK)
    g_y += last * M_y + group * OUTPUTS
    v = _each(V + (out - group * n_out), n_out, whole, OUTPUTS)
    y_t = _each(g_y, 1, T > 0, OUTPUTS)
    for step in range(T):
        u -= M
        g_s -= M_out
        g_y -= M_y
        u_2 = tl.load(u + at, inside & (step + 2 < T), lowest)  # two steps ahead
        e_2 = tl.load(g_s + out, whole & (step + 2 < T), 0.0) if HAS_S else e_t
        y_1 = _each(g_y, 1, step + 1 < T, OUTPUTS)
        p, q, r = a_m * p, a_s * q, a_r * r
        tl.store(g_I + at, ((p + q) * factor).to(g_I.dtype.element_ty), inside)
        e_s = e_t.to(tl.float32)
        for c in tl.static_range(OUTPUTS):
            e_s += y_t[c] * v[c]
        e = e_s[:, None] if POOL == 1 else _to_first(e_s, u_t, WINDOW)
        if REFRACTORY:
            e += r
        u_s = tl.where(inside, u_t, 0.0).to(tl.float32)
        g = _times_derivative(e, u_s - theta, slope, SIGMOID)
        if HAS_U:
            g += tl.load(g_u + at, inside, 0.0)
        p, q = p + k * g, q - k * g
        if REFRACTORY:
            r -= g
        u_t, u_1, e_t, e_1, y_t = u_1, u_2, e_1, e_2, y_1
        g_u -= M
        g_I -= M
    tl.store(G_P + at, p, inside)
    tl.store(G_Q + at, q, inside)
    tl.store(G_R + at, r, inside)


def _launch(
    like: Tensor, pool: int, by_recording: bool = False
) -> tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Grid, sizes (n, M, M_out), image (H, W, C) and options for neurons `like` (B, ...)."""
    M, image = like.numel(), (1, 1, 1)
    n = M_out = M
    if pool > 1:
        B, H, W, C = like.shape
        image = (H, W, C)
        n, M_out = B * -(-H // pool) * -(-W // pool) * C, B * (H // pool) * (W // pool) * C
    # A window's neurons must share a thread, or pooling makes warps exchange values at each
    # step: then one warp.
    block, warps = (512 if n >= 1 << 18 else 128, 4) if pool == 1 else (128, 1)
    if by_recording and pool > 1:
        block = 64  # whose readout weights are in registers, too
    window = triton.next_power_of_2(pool * pool)
    options = {"POOL": pool, "WINDOW": window, "BLOCK": block, "num_warps": warps}
    groups = len(like) if by_recording else 1
    return (groups * triton.cdiv(n // groups, block),), (n // groups, M, M_out), image, options


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
    """As `reference.scan`, bit for bit; the currents may be integers, and `u` in half precision."""
    return _scanned(I, (P, Q, R), pool, u, *_of_srm(kappa, constants, I))


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
    """As `reference.fixed_scan`, bit for bit; the currents may be of any type."""
    return _scanned(I, (P, Q, R), pool, u, *_of_fixed(kappa, integers, I))


def spikes(
    I: Tensor,
    kappa: Tensor,
    constants: Tensor,
    integers: Tensor | None,
    pool: int,
    dtype: torch.dtype,
) -> Tensor:
    """What leaves a layer that starts at rest, as `dtype`: the spikes of `scan`, or with `integers`
    of `fixed_scan`, and nothing else is written.
    """
    if integers is None:
        kernel, neuron, scalar = _of_srm(kappa, constants, I)
    else:
        kernel, neuron, scalar = _of_fixed(kappa, integers, I)
    s = torch.empty(pooled_shape(I, pool), dtype=dtype, device=I.device)
    unused = (I,) * 6
    _start(kernel, (I.contiguous(), I, s, *unused), neuron, pool, SCALAR=scalar, ALONE=True)
    return s


Neurons = tuple[Any, tuple[Tensor, ...], bool]  # kernel, constants, whether all share the latter


def _of_srm(kappa: Tensor, constants: Tensor, I: Tensor) -> Neurons:
    scalar, k = _kappa(kappa, I[0])
    return _scan, (k, constants), scalar


def _of_fixed(kappa: Tensor, integers: Tensor, I: Tensor) -> Neurons:
    shared = integers[:4].reshape(4, -1)[:, 0].contiguous()
    each = [_kappa(x, I[0]) for x in (torch.ldexp(kappa, -integers[3]), integers[4], integers[5])]
    (scalar, k), (_, one), (_, theta) = each
    return _fixed_scan, (k, shared, one, theta), scalar


def _scanned(
    I: Tensor,
    before: tuple[Tensor, ...],
    pool: int,
    u: Tensor | None,
    kernel: Any,
    neuron: tuple[Tensor, ...],
    scalar: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Spikes, potentials and the state after the last step."""
    I = I.contiguous()
    before = tuple(x.expand(I.shape[1:]).contiguous() for x in before)
    P, Q, R = (torch.empty_like(x) for x in before)
    u = torch.empty_like(I, dtype=torch.float32) if u is None else u
    s = torch.empty(pooled_shape(I, pool), device=I.device)
    _start(kernel, (I, u, s, *before, P, Q, R), neuron, pool, SCALAR=scalar, ALONE=False)
    return s, u, P, Q, R


def _start(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    neuron: tuple[Tensor, ...],
    pool: int,
    **flags: bool,
) -> None:
    """Launch the scan of a neuron; the tensors are currents, potentials, spikes, state."""
    I = tensors[0]
    grid, sizes, image, options = _launch(I[0], pool)
    options |= {**flags, "enable_fp_fusion": False}
    with torch.cuda.device(I.device):
        kernel[grid](*tensors, *neuron, len(I), *sizes, *image, **options)


def _kappa(kappa: Tensor, like: Tensor) -> tuple[bool, Tensor]:
    return (True, kappa) if kappa.numel() == 1 else (False, kappa.expand(like.shape).contiguous())


def bounded(kappa: Tensor, surrogate: str, slope: float, refractory: bool) -> bool:
    """Whether `adjoint` knows a bound on what it returns from the errors' size alone."""
    steepest = slope / 4 if surrogate == "sigmoid" else slope
    return kappa.numel() == 1 and (steepest <= 2 or not refractory)


def _peaks(
    g_s: Tensor | None,
    g_u: Tensor | None,
    g_state: tuple[Tensor | None, Tensor | None, Tensor | None],
    g_y: Tensor | None,
    V: Tensor | None,
    like: Tensor,
) -> Tensor:
    """The largest errors, as `_scale` takes them."""

    def largest(*errors: Tensor | None) -> list[Tensor]:
        return [torch.linalg.vector_norm(g, torch.inf) for g in errors if g is not None]

    def total(peaks: list[Tensor]) -> Tensor:
        return reduce(torch.add, peaks) if peaks else like.new_zeros(())

    of_spikes = largest(g_s)
    if g_y is not None:
        of_spikes.append(torch.linalg.vector_norm(g_y, 1, -1).amax() * total(largest(V)))
    if all(g is None for g in (g_u, *g_state)):
        return total(of_spikes)
    others = (largest(g_u), largest(*g_state[:2]), largest(g_state[2]))
    return torch.stack([total(peaks) for peaks in (of_spikes, *others)])


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
    g_y: Tensor | None = None,
    V: Tensor | None = None,
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `reference.adjoint`, to float32 accuracy, of the errors g_s + g_y V.

    With `scale` (1,), which is written, the currents' gradient comes in half precision and times
    that: where it is `bounded`.
    """
    if g_y is None or V is None or len(V) > MANY:
        g_s, g_y, V = spike_error(g_s, g_y, V, u, pool), None, None
    u = u.contiguous()
    before = [torch.empty_like(u[0], dtype=torch.float32) for _ in range(3)]
    g_I = torch.empty_like(u, dtype=torch.float32 if scale is None else torch.float16)
    peaks = constants if scale is None else _peaks(g_s, g_u, g_state, g_y, V, before[0])
    state = any(g is not None for g in g_state)
    if state:
        zeros = torch.zeros_like(before[0])
        g_state = tuple(zeros if g is None else g.contiguous() for g in g_state)  # type: ignore[assignment]
        g_state = g_state if refractory else (*g_state[:2], zeros)
    e = [u if g is None else g.contiguous() for g in (g_s, g_u, *g_state, g_y, V)]
    grid, sizes, image, options = _launch(u[0], pool, by_recording=V is not None)
    readout = (0, 0) if g_y is None or V is None else (V.shape[1], g_y[0].numel())
    scalar, k = _kappa(kappa, before[0])
    options |= {
        "HAS_S": g_s is not None,
        "HAS_U": g_u is not None,
        "HAS_STATE": state,
        "OUTPUTS": 0 if V is None else len(V),
        "SIGMOID": surrogate == "sigmoid",
        "REFRACTORY": refractory,
        "HALF": scale is not None,
        "SCALAR": scalar,
    }
    written = (constants if scale is None else scale, g_I, *before)
    with torch.cuda.device(u.device):
        _adjoint[grid](
            *e, u, k, constants, peaks, *written, slope, len(u), *sizes, *readout, *image, **options
        )
    return g_I, before[0], before[1], before[2]
