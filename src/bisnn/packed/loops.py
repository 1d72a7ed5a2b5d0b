"""The loops over time of the packed engine, compiled by numba for each class of neurons.

One time step of a few recordings at a time: gather the bits under the kernel, count, move the
neurons on, pack what fires. Currents and traces stay in the cache. Words have 32 bits, not 64:
counts then come out in the width of a float32, and the loops vectorise.

Axes: K members, T time, B recordings, H W image; words last.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.extending import intrinsic

from bisnn.bits import counting
from bisnn.bits.compilation import copy, kernel
from bisnn.bits.neurons import (
    EACH,
    SHARED,
    TRACE,
    TRACES,
    advance,
    column,
    loop,
    potential,
    store,
    store_bits,
)
from bisnn.spec import windows_along

_U0 = np.uint32(0)
_windows_along = njit(inline="always")(windows_along)
ROWS = 16  # of the input that are counted together, at least, by taking several time steps at once
_X, _W = "uint32[:, :, :, :, :, ::1]", "uint32[:, :, :, ::1]"  # spikes, weights
_N = "trace[:, ::1]"  # of neurons: traces, shared constants (in one column), those of each


@intrinsic
def _negative(typingctx, x, first):
    """The sign bits of x[first] to x[first + 31], float32, as one word in few instructions."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        lanes = ir.VectorType(ir.IntType(32), 32)
        at = builder.bitcast(builder.gep(array.data, [arguments[1]]), lanes.as_pointer())
        signs = builder.icmp_signed("<", builder.load(at, align=4), ir.Constant(lanes, [0] * 32))
        return builder.bitcast(signs, ir.IntType(32))

    return types.uint32(x, types.int64), generate


@loop(f"void(float32[::1], int64, {_N}, {_N}, {_N})")
def _advance(u, first, traces, shared, each):
    """One step of the neurons from the first on, all with the same constants: u holds currents,
    then the bits of theta - u (the sign: a spike).
    """
    k, e = column(shared, 0, SHARED), column(each, 0, EACH)
    for i in range(u.shape[0]):
        I, state = u[i], column(traces, first + i, TRACES)
        v, theta = potential(state, e, k)
        store(traces, first + i, TRACES, advance(I, v > theta, state, e, k))
        store_bits(u, i, TRACE(theta - v))


@kernel("void(float32[::1], int64, int64, int64, int64, uint32[:, :, :, ::1])")
def _fired(u, height, width, n_out, pool, out):
    """Bits that leave a layer, out (n, H', W', words), from theta - u: the OR over a window."""
    if pool == 1 and n_out % 32 == 0:  # as it often is: words lie as potentials do
        words = out.reshape(-1)
        for k in range(words.shape[0]):
            words[k] = _negative(u, 32 * k)
        return
    signs, fires = u.view(np.uint32), np.empty(32, np.uint32)
    for b in range(out.shape[0]):
        for y in range(out.shape[1]):
            for z in range(out.shape[2]):
                target = out[b, y, z]
                for k in range(target.shape[0]):
                    m = min(32, n_out - 32 * k)
                    fires[:] = _U0
                    for dy in range(pool):
                        for dx in range(pool):
                            at = (
                                (b * height + y * pool + dy) * width + z * pool + dx
                            ) * n_out + 32 * k
                            signs_k = signs[at : at + m]
                            for i in range(m):
                                fires[i] |= signs_k[i] >> np.uint32(31)
                    word = _U0
                    for i in range(32):
                        word |= fires[i] << np.uint32(i)
                    target[k] = word


@loop(
    f"void(int64, int64, {_X}, {_W}, int64, int64, int8[:, :, ::1], int64, int64, int64, int64, "
    f"int64, int64, int64, int64, int64, {_N}, {_N}, {_N}, {_X})"
)
def spikes(
    lo, hi, x, weights, low, gap, table, channels, k0, k1, s0, s1, p0, p1, pool, group, shared,
    each, state, out,
):  # fmt: skip
    """Run items lo..hi through a layer: an item is a group of recordings of a member.

    x has K = 1 where members share their input. The state (traces, K B neurons) moves on; where it
    is empty, all begins at rest.
    """
    T, B, n_words, n_out = x.shape[1], x.shape[2], weights.shape[2], weights.shape[3]
    H, W = x.shape[3:5]
    height, width = _windows_along(H, k0, s0, p0), _windows_along(W, k1, s1, p1)
    pixels, groups = height * width, -(-B // group)
    # Time steps whose currents are counted together
    steps = max(1, ROWS // (min(group, B) * pixels))
    kept = state.shape[1] > 0
    own = np.empty((TRACES, 0 if kept else group * pixels * n_out), TRACE)
    traces = state if kept else own
    lines = np.empty((group, H, -(-W * channels // 32)), np.uint32)  # of the images
    rows = np.empty((steps, group, height, width, n_words), np.uint32)
    u = np.empty((steps * group * pixels, n_out), np.float32)
    for item in range(lo, hi):
        member, first = item // groups, item % groups * group
        n = min(group, B - first)
        images = x[min(member, x.shape[0] - 1)]
        last = first + n
        own[:] = 0
        neuron = (member * B + first) * pixels * n_out if kept else 0
        used = rows.reshape(-1)[: steps * n * pixels * n_words]
        inputs = used.reshape((steps, n, height, width, n_words))
        flat = used.reshape((-1, n_words))
        for start in range(0, T, steps):
            m = min(steps, T - start)
            for t in range(m):
                seen = images[start + t, first:last]
                if k0 * k1 * s0 * s1 == 1 and p0 + p1 == 0:
                    copy(seen.reshape(-1), inputs[t].reshape(-1))
                else:
                    counting.join_pixels(0, n, seen, channels, lines)
                    counting.windows(0, n, lines, W, channels, k0, k1, s0, s1, p0, p1, inputs[t])
            size = m * n * pixels
            if table.shape[1]:
                counting.events(0, size, flat, weights[member], low, gap, table[member], u)
            else:
                counting.plane_counts(0, size, flat, weights[member], low, gap, u)
            for t in range(m):
                potentials = u[t * n * pixels : (t + 1) * n * pixels].reshape(-1)
                _advance(potentials, neuron, traces, shared, each)
                target = out[member, start + t, first:last]
                _fired(potentials, height, width, n_out, pool, target)


@loop(f"void(uint32[::1], int64, {_N}, {_N}, {_N})")
def _fire(fired, first, traces, shared, each):
    """fired = whether each neuron, with constants of its own, is above its threshold."""
    k = column(shared, 0, SHARED)
    for i in range(fired.shape[0]):
        v, theta = potential(column(traces, first + i, TRACES), column(each, i, EACH), k)
        fired[i] = np.uint32(v > theta)


@loop(f"void(float32[::1], uint32[::1], int64, {_N}, {_N}, {_N})")
def _integrate(I, fired, first, traces, shared, each):
    """The traces of the next time step, from currents and spikes."""
    k = column(shared, 0, SHARED)
    for i in range(fired.shape[0]):
        e, state = column(each, i, EACH), column(traces, first + i, TRACES)
        store(traces, first + i, TRACES, advance(I[i], fired[i] != _U0, state, e, k))


@loop(
    f"void(int64, int64, {_X}, {_W}, int64, int64, uint32[:, ::1], int64[::1], {_N}, {_N}, {_N}, "
    f"{_X})"
)
def recurrent(lo, hi, x, weights, low, gap, mask, outputs, shared, each, state, out):
    """As `spikes`, for neurons that read each other: an item is one recording of a member."""
    T, B, n_words, n = x.shape[1], x.shape[2], weights.shape[2], weights.shape[3]
    inputs = x.shape[5]
    row = np.empty((1, n_words), np.uint32)
    kept = state.shape[1] > 0
    fired, own = np.empty(n, np.uint32), np.empty((TRACES, 0 if kept else n), TRACE)
    traces = state if kept else own
    I = np.empty((1, n), np.float32)
    current = I[0]
    for item in range(lo, hi):
        member, b = item // B, item % B
        own[:] = 0
        w, first = weights[member], item * n if kept else 0
        for t in range(T):
            row[:] = _U0
            copy(x[min(member, x.shape[0] - 1), t, b, 0, 0], row[0, :inputs])
            _fire(fired, first, traces, shared, each)
            for k in range(-(-n // 32)):
                word = _U0
                for i in range(min(32, n - 32 * k)):
                    word |= fired[32 * k + i] << np.uint32(i)
                row[0, inputs + k] = word
            if mask.shape[0]:
                for i in range(n):
                    up = active = _U0
                    for k in range(n_words):
                        active += counting.popcount(row[0, k] & mask[k, i])
                        for plane in range(w.shape[0]):  # of zeros where there is no synapse
                            common = counting.popcount(row[0, k] & w[plane, k, i])
                            up += common << np.uint32(plane)
                    I[0, i] = np.float32(low * np.int64(active) + gap * np.int64(up))
            else:
                counting.plane_counts(0, 1, row, w, low, gap, I)
            _integrate(current, fired, first, traces, shared, each)
            target = out[member, t, b, 0, 0]
            target[:] = _U0
            for i in range(outputs.shape[0]):
                target[i >> 5] |= fired[outputs[i]] << np.uint32(i & 31)


@kernel("void(int64, int64, uint32[:, ::1], uint32[:, ::1], float32, float32[:, ::1])")
def readout(lo, hi, x, V, scale, out):
    """out[r, i] = scale sum_j V_ij s_j for rows of bits x (R, words) and few V (outputs, words)."""
    for r in range(lo, hi):
        active = _U0
        for k in range(x.shape[1]):
            active += counting.popcount(x[r, k])
        for i in range(V.shape[0]):
            total = _U0
            for k in range(x.shape[1]):
                total += counting.popcount(x[r, k] & V[i, k])
            out[r, i] = scale * np.float32(np.int32(2) * np.int32(total) - np.int32(active))
