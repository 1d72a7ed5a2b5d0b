"""The gradients of a layer's weights and inputs, compiled by numba: adjoint and products in one go.

The currents' gradient g is there for a few recordings at a time, as many as stay in the cache.
`by_rows` adds up the rows of g where an input was active; `cpu_frequencies` multiplies Fourier
transforms.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bisnn.bits import counting, spreading
from bisnn.bits.compilation import copy, kernel
from bisnn.kernels.cpu_products import aligned, multiply
from bisnn.kernels.cpu_scan import adjoint
from bisnn.spec import windows_along

_V, _M = "float32[::1]", "float32[:, ::1]"
_ADJOINT = f"{_M}, {_M}, {_M}, {_M}, {_V}, {_V}, {_V}, {_M}, {_V}, {_V}, boolean, float32, boolean"
_UNITS, _INPUTS = "int64, int64, int64, int64, int64", "uint32[:, :, :, ::1], int64, int64, int64"
ARGUMENTS = f"int64, int64, {_ADJOINT}, {_UNITS}, {_INPUTS}"  # the first ones of both kernels
# How weights collect their gradient: from what each active input of a convolution is seen by, or
# row by row of what each output sees, where spikes are rare or not
BY_RUNS, ONE_BY_ONE, BY_FOURS = 0, 1, 2
_windows_along = njit(inline="always")(windows_along)


@kernel(f"{_M}({ARGUMENTS}, int64, int64, int64, int64, int64, int64, int64, {_M}, {_V})")
def by_rows(
    lo, hi, g_s, g_y, V, g_u, G_P, G_Q, G_R, u, kappa, c, sigmoid, slope, refractory,
    pool, H, row, size, C, x, W, channels, n_out, k0, k1, s0, s1, p0, p1, way, w, g_x,
):  # fmt: skip
    """The weight gradient of images lo..hi, each of one or more recordings: of a convolution with
    few channels as runs (`spreading.as_runs`), else (n_in, n_out).

    x is (T, B, H_in, words), rows of W pixels. Where g_x is not empty, the gradient of a dense
    layer's inputs, of weights w (n_out, n_in), is written there. `way` is one of those above.
    """
    T, B = x.shape[:2]
    units, per_recording = -(-H // pool), G_P.shape[0] // B  # neurons
    group = size // per_recording  # recordings of an image
    pixels = per_recording // n_out
    y = _windows_along(x.shape[2], k0, s0, p0)
    g_w = aligned(k0 * -(-k1 // s1) * s1 * channels * n_out).reshape((-1, n_out))
    g_w[:] = 0
    g_I = aligned(T * size)
    inputs = np.empty((T * group, x.shape[2], x.shape[3]), np.uint32)
    rows = np.empty((T * group, y, pixels // y, -(-k0 * k1 * channels // 32)), np.uint32)
    for image in range(lo, hi):
        b = image * group
        n = min(group, B - b)
        g = g_I[: T * n * per_recording].reshape((T, n * per_recording))
        adjoint(
            image * units, (image + 1) * units, g_s, g_y, V, g_u, G_P, G_Q, G_R, u, kappa, c,
            sigmoid, slope, refractory, g, image * size, pool, H, row, size, C,
        )  # fmt: skip
        for t in range(T):
            copy(x[t, b : b + n].reshape(-1), inputs[t * n : (t + 1) * n].reshape(-1))
        if way == BY_RUNS:
            spreading.add_runs(
                0, T * n, inputs, W, channels, k0, k1, s0, s1, p0, p1, n_out,
                g_w.reshape((k0, -1)), g.reshape((T * n, y, -1)), True,
            )  # fmt: skip
            continue
        if k0 * k1 * x.shape[2] * W * pixels == 1:  # a dense layer: nothing to gather
            copy(inputs[: T * n].reshape(-1), rows[: T * n].reshape(-1))
        else:
            counting.windows(
                0, T * n, inputs[: T * n], W, channels, k0, k1, s0, s1, p0, p1, rows[: T * n]
            )
        bits = rows[: T * n].reshape((T * n * pixels, rows.shape[3]))
        errors = g.reshape((T * n * pixels, n_out))
        if way == ONE_BY_ONE:
            counting.add_rows_transposed(0, bits.shape[1], bits, errors, g_w)
        else:
            counting.add_rows_by_fours(0, bits.shape[1], bits, errors, g_w)
        if g_x.shape[0] > 0:
            for r in range(n):  # a matrix of time steps
                multiply(
                    g_I, r * n_out, n * n_out, 1, w.reshape(-1), 0, channels,
                    g_x, (b + r) * channels, B * channels, T, n_out, channels, False,
                )  # fmt: skip
    return g_w
