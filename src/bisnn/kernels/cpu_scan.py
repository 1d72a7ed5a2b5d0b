"""The loops over time of `cpu`, compiled by numba: the scan of each neuron, the adjoint of the SRM.

A block of neurons keeps its traces in the L1 cache while time runs; the inner loop over neurons is
what the compiler vectorises. No fastmath and no fused multiply-add: the forward bits are those of
`reference`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.core.extending import overload

from bisnn.bits.compilation import copy, kernel
from bisnn.bits.neurons import EACH, OWN, SHARED, TRACES, advance, column, loop, potential, store

BLOCK = 1024  # neurons whose traces (4 bytes each, four arrays) stay in L1 while time runs
_f = np.float32
# Of adjoint traces, and every so many steps: denormal gradients are slow
_FLUSH_GRADIENT, FLUSHED = _f(2.0**-100), 8
_ZERO, _ONE, _HALF = _f(0), _f(1), _f(0.5)
_V, _M = "float32[::1]", "float32[:, ::1]"  # vector, matrix
_N = "trace[:, ::1]"  # of neurons: traces, shared constants (in one column), those of each

# Neurons are worked on in units that lie together in memory and keep their traces in a cache while
# time runs: BLOCK neurons, or with pooling the pixels of one row of windows. `H`, `row` and `size`
# say where units lie: H rows of `row` neurons make a unit's image of `size` neurons (without
# pooling, all neurons are one image, of rows of BLOCK).


@njit(inline="always")
def _place(unit, pool, H, row, size, neurons):
    """The first and the last neuron of a unit, and where the row of windows lies that it makes, in
    units of such rows: -1 where it is none, as what is left over at an edge.
    """
    units = -(-H // pool)  # of an image
    image = unit // units
    first = image * size + unit % units * pool * row
    last = min(first + pool * row, (image + 1) * size, neurons)
    whole = pool > 1 and last - first == pool * row
    return first, last, image * (H // pool) + unit % units if whole else -1


@njit(inline="always")
def _any_of_windows(x, pool, row, C, s):
    """s = whether any of each window of a row of windows has a spike."""
    for w in range(s.shape[0] // C):
        s_w = s[w * C : (w + 1) * C]
        for i in range(C):
            s_w[i] = _ZERO
        for dy in range(pool):
            for dx in range(pool):
                at = dy * row + (w * pool + dx) * C
                x_w = x[at : at + C]
                for i in range(C):
                    s_w[i] = _ONE if x_w[i] > _ZERO else s_w[i]


def _dequantised(v, unit, i):
    """The potential v as float32: that of integers is in units of unit[i]."""


@overload(_dequantised, inline="always")
def _(v, unit, i):
    if isinstance(v, types.Float):
        return lambda v, unit, i: v
    return lambda v, unit, i: unit[i] * _f(v)


@loop(f"void(int64, int64, {_M}, {_N}, {_N}, {_N}, {_V}, {_M}, int64, int64, int64, int64, int64)")
def scan(lo, hi, I, traces, shared, each, unit, s, pool, H, row, size, C):
    """Potentials take the place of the currents: half the memory, and one stream less. `unit` is
    theirs where the neuron computes in integers.
    """
    k, e = column(shared, 0, SHARED), column(each, 0, EACH)
    spikes, width = np.empty(pool * row, np.float32), row // C // pool * C
    for block in range(lo, hi):
        first, last, out = _place(block, pool, H, row, size, traces.shape[1])
        scale = unit[first:last]
        for t in range(I.shape[0]):
            u_t = I[t, first:last]  # I_t before, u_t after
            s_t = s[t, first:last] if pool == 1 else spikes[: last - first]
            for i in range(last - first):
                if OWN:
                    e = column(each, first + i, EACH)
                state = column(traces, first + i, TRACES)
                v, theta = potential(state, e, k)
                fires = v > theta
                s_t[i] = _ONE if fires else _ZERO
                store(traces, first + i, TRACES, advance(u_t[i], fires, state, e, k))
                u_t[i] = _dequantised(v, scale, i)
            if out >= 0:
                _any_of_windows(spikes, pool, row, C, s[t, out * width : (out + 1) * width])


@njit(inline="always")
def exponential(x):
    """exp(x) for x up to 88, and exp(-87) for what is below.

    By range reduction and a polynomial, because a call to libm would keep a loop from being
    vectorised: 2^n exp(y) with |y| <= ln(2)/2. Relative error below 2e-7; for gradients and relaxed
    samples, never for the forward bits of hard weights.
    """
    x = max(x, _f(-87))
    n = np.int32(x * _f(1.4426950408889634) + _f(127.5))  # of which 127 are the exponent's bias
    k = _f(n - np.int32(127))
    y = (x - k * _f(0.693359375)) - k * _f(-2.12194440e-4)
    e = _f(1 / 720)
    e = e * y + _f(1 / 120)
    e = e * y + _f(1 / 24)
    e = e * y + _f(1 / 6)
    e = e * y + _HALF
    e = e * y + _ONE
    return (e * y + _ONE) * np.int32(n << np.int32(23)).view(np.float32)


@njit(inline="always")
def _sigmoid_derivative(x):
    """sigma(x) (1 - sigma(x)) = e / (1 + e)^2 with e = exp(-|x|)."""
    e = exponential(-abs(x))
    d = _ONE + e
    return e / (d * d)


@njit(inline="always")
def _flush(p, q):
    """Gradients too small to matter to 0: long after the last error, denormals would be slow."""
    for i in range(p.shape[0]):
        p[i] = _ZERO if abs(p[i]) <= _FLUSH_GRADIENT else p[i]
        q[i] = _ZERO if abs(q[i]) <= _FLUSH_GRADIENT else q[i]


@njit(inline="always")
def _to_first_maximum(e, u, pool, row, C, g):
    """g = e (of windows) at the first maximum of u in each window, in row order."""
    highest = np.empty(C, np.float32)
    for w in range(e.shape[0] // C):
        e_w = e[w * C : (w + 1) * C]
        copy(u[w * pool * C : w * pool * C + C], highest)
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
    """e += the readouts' error on spikes first..last of all recordings; g_y (B outputs,)."""
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


@njit(inline="always")
def _window_error(g_s, g_y, V, t, out, u_t, pool, row, C, e_windows, e):
    """e = the error on the spikes of row `out` of windows: what comes from a window, by g_s and by
    readouts as g_y and V where not empty, goes to its first maximum.
    """
    width = row // C // pool * C
    e_w = e_windows[:width]
    e_w[:] = _ZERO
    if g_s.shape[0] > 0:
        copy(g_s[t, out * width : (out + 1) * width], e_w)
    if g_y.shape[0] > 0:
        _add_readout_error(g_y[t], V, out * width, (out + 1) * width, e_w)
    _to_first_maximum(e_w, u_t, pool, row, C, e)


@njit(inline="always")
def _step_back(e, u, g_u, g_I, p, q, r, k, c, sigmoid, slope, refractory):
    """One step of the adjoint: e is the error on the spikes and is used up, g_u that on the
    potentials or empty; g_I is written, p, q and r move on.
    """
    n, a_m, a_s, a_r, theta = e.shape[0], c[0], c[1], c[2], c[3]
    for i in range(n):
        r[i] = a_r * r[i]
        e[i] = e[i] + r[i]
    if sigmoid:
        for i in range(n):
            e[i] = e[i] * (slope * _sigmoid_derivative(slope * (u[i] - theta)))
    else:
        for i in range(n):
            e[i] = e[i] * slope if abs(slope * (u[i] - theta)) < _HALF else _ZERO
    for i in range(g_u.shape[0]):
        e[i] = e[i] + g_u[i]
    for i in range(n):
        p_i, q_i = a_m * p[i], a_s * q[i]
        g_I[i] = p_i + q_i
        p[i], q[i] = p_i + k[i] * e[i], q_i - k[i] * e[i]
    if refractory:
        for i in range(n):
            r[i] = r[i] - e[i]


@kernel(
    f"void(int64, int64, {_M}, {_M}, {_M}, {_M}, {_V}, {_V}, {_V}, {_M}, {_V}, {_V}, boolean, "
    f"float32, boolean, {_M}, int64, int64, int64, int64, int64, int64)",
    contract=True,
)
def adjoint(
    lo, hi, g_s, g_y, V, g_u, G_P, G_Q, G_R, u, kappa, c, sigmoid, slope, refractory, g_I,
    origin, pool, H, row, size, C,
):  # fmt: skip
    """g_I has the neurons from `origin` on. Errors on the spikes come from g_s, and from readouts
    as g_y and V, where not empty.
    """
    a_m, a_s, theta = c[0], c[1], c[3]
    has_s, has_y, has_u = g_s.shape[0] > 0, g_y.shape[0] > 0, g_u.shape[0] > 0
    g, e_windows = np.empty(pool * row, np.float32), np.empty(row, np.float32)
    for unit in range(lo, hi):
        first, last, out = _place(unit, pool, H, row, size, G_P.shape[0])
        n = last - first
        if n <= 0:
            break
        p, q, r, k = G_P[first:last], G_Q[first:last], G_R[first:last], kappa[first:last]
        e = g[:n]  # error on the spikes
        g_u_t = e[:0]  # and on the potentials, where there is one
        for t in range(u.shape[0] - 1, -1, -1):
            u_t, g_I_t = u[t, first:last], g_I[t, first - origin : last - origin]
            e[:] = _ZERO
            if pool == 1:
                if has_s:
                    copy(g_s[t, first:last], e)
                if has_y:
                    _add_readout_error(g_y[t], V, first, last, e)
            elif out >= 0:
                _window_error(g_s, g_y, V, t, out, u_t, pool, row, C, e_windows, e)
            if sigmoid and not (refractory or has_u):  # local learning, as it mostly is: one loop
                for i in range(n):
                    d = k[i] * (e[i] * (slope * _sigmoid_derivative(slope * (u_t[i] - theta))))
                    p_i, q_i = a_m * p[i], a_s * q[i]
                    g_I_t[i] = p_i + q_i
                    p[i], q[i] = p_i + d, q_i - d
                if t % FLUSHED == 0:
                    _flush(p, q)
                continue
            if has_u:
                g_u_t = g_u[t, first:last]
            _step_back(e, u_t, g_u_t, g_I_t, p, q, r, k, c, sigmoid, slope, refractory)
            if t % FLUSHED == 0:
                _flush(p, q)
