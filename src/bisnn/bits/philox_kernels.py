"""The random numbers of `philox`, compiled: loops over its blocks."""

from __future__ import annotations

import numpy as np
from numba import njit

from bisnn.bits.compilation import kernel
from bisnn.bits.philox import philox

_block = njit(inline="always")(philox)
_UNIT = np.float32(2.0**-24)


@kernel("uint32[::1](int64, int64, int64, int64, int64)")
def words(n, stream, draw, seed, purpose):
    """The first n words of a stream."""
    out = np.empty(n, np.uint32)
    for b in range((n + 3) // 4):
        block = _block(b, stream, draw, 0, seed, purpose)
        for j in range(min(4, n - 4 * b)):
            out[4 * b + j] = block[j]
    return out


@kernel("void(int64[::1], int64, int64, int64, float32[:, ::1])")
def uniform(streams, draw, seed, purpose, out):
    """All numbers (S, n) of some streams."""
    n = out.shape[1]
    for s in range(len(streams)):
        for b in range(n // 4):
            w0, w1, w2, w3 = _block(b, streams[s], draw, 0, seed, purpose)
            out[s, 4 * b] = np.float32(w0 >> 8) * _UNIT
            out[s, 4 * b + 1] = np.float32(w1 >> 8) * _UNIT
            out[s, 4 * b + 2] = np.float32(w2 >> 8) * _UNIT
            out[s, 4 * b + 3] = np.float32(w3 >> 8) * _UNIT
        last = _block(n // 4, streams[s], draw, 0, seed, purpose)
        for j in range(n % 4):
            out[s, n - n % 4 + j] = np.float32(last[j] >> 8) * _UNIT


@kernel("void(int64[::1], int64[::1], int64, int64, int64, float32[::1])")
def uniform_at(places, streams, draw, seed, purpose, out):
    """Numbers at some places of some streams."""
    for i in range(len(places)):
        block = _block(places[i] >> 2, streams[i], draw, 0, seed, purpose)
        out[i] = np.float32(block[places[i] & 3] >> 8) * _UNIT


@kernel("void(int64[:, ::1], int64[:, ::1], int64, int64, int64, int64, uint8[:, :, ::1])")
def point_spikes(points, limits, draw, seed, purpose, points_purpose, out):
    """Spikes (T, N, M) of points (N, d), float32 bits: 24-bit numbers below limits (N, M)."""
    T, N, M = out.shape
    d = points.shape[1]
    for i in range(N):
        # A block of its own: draw and values must not cancel
        h = _block(draw, d, 0, 0, seed, points_purpose)
        for first in range(0, d, 4):
            x0 = points[i, first]
            x1 = points[i, first + 1] if first + 1 < d else 0
            x2 = points[i, first + 2] if first + 2 < d else 0
            x3 = points[i, first + 3] if first + 3 < d else 0
            h = _block(h[0] ^ x0, h[1] ^ x1, h[2] ^ x2, h[3] ^ x3, seed, points_purpose)
        block = (0, 0, 0, 0)
        for t in range(T):
            for m in range(M):
                index = t * M + m
                if index & 3 == 0:
                    block = _block(index >> 2, h[0], h[1], h[2], seed, purpose)
                out[t, i, m] = block[index & 3] >> 8 < limits[i, m]
