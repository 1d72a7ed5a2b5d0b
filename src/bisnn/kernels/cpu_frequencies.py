"""The gradients of a convolution's weights and inputs as products of Fourier transforms, as
`fourier` says, compiled by numba.

A module of its own: few networks need it, and it takes long to compile.
"""

from __future__ import annotations

from numba import njit

from bisnn.bits import counting
from bisnn.bits.compilation import kernel
from bisnn.kernels.cpu_gradients import ARGUMENTS
from bisnn.kernels.cpu_products import aligned, multiply
from bisnn.kernels.cpu_scan import adjoint

_V, _M = "float32[::1]", "float32[:, ::1]"
IMAGES = 64  # transformed at a time


@njit(inline="always")
def _along_y(matrix, images, at, count, columns, out):
    """out[i] = matrix images[i] for `count` images (steps, columns), which begin `at`."""
    rows, steps = matrix.shape
    for i in range(count):
        multiply(
            matrix.reshape(-1), 0, steps, 1, images, at + i * steps * columns, columns,
            out, i * rows * columns, columns, rows, steps, columns, False,
        )  # fmt: skip


@njit(inline="always")
def _along_x(matrix, halfway, points, f, count, channels, out):
    """out[i] = matrix times what `_along_y` made of image i at its frequency f of points / 2."""
    rows, steps = matrix.shape
    for i in range(count):
        at = (i * points + 2 * f) * (steps // 2) * channels
        multiply(
            matrix.reshape(-1), 0, steps, 1, halfway, at, channels,
            out, i * rows * channels, channels, rows, steps, channels, False,
        )  # fmt: skip


@njit(inline="always")
def _add_products(S, G, f, n_products, count, channels, n_out, sums):
    """Add to the sums what the weights' gradient is at a frequency f of `_along_y`."""
    for m in range(n_products):
        multiply(
            S, m * channels, 1, n_products * channels, G, m * n_out, n_products * n_out,
            sums, (f * n_products + m) * channels * n_out, n_out, channels, count, n_out, True,
        )  # fmt: skip


@njit(inline="always")
def _multiply_weights(G, w, f, n_products, count, channels, n_out, along_x, points, S, halfway):
    """What the inputs' gradient is at a frequency f of `_along_y`, there where the inputs were."""
    for m in range(n_products):
        multiply(
            G, m * n_out, n_products * n_out, 1, w, (f * n_products + m) * n_out * channels,
            channels, S, m * channels, n_products * channels, count, n_out, channels, False,
        )  # fmt: skip
    columns = along_x.shape[1]
    for i in range(count):
        multiply(
            along_x.reshape(-1), 0, 1, columns, S, i * n_products * channels, channels, halfway,
            (i * points + 2 * f) * (columns // 2) * channels, channels, columns, n_products,
            channels, False,
        )  # fmt: skip


@kernel(f"{_M}({ARGUMENTS}, {_M}, {_M}, {_M}, {_M}, {_M}, {_V}, {_V})")
def in_frequencies(
    lo, hi, g_s, g_y, V, g_u, G_P, G_Q, G_R, u, kappa, c, sigmoid, slope, refractory,
    pool, H, row, size, C, x, W, channels, n_out, a_y, a_x, b_y, b_x, taps, w, g_x,
):  # fmt: skip
    """As `cpu_gradients.by_rows`, of a convolution with the matrices of `fourier.Transforms`.

    Where g_x is not empty, the gradient of the inputs is written there; w is then E' w, (products,
    n_out, channels).
    """
    T, B = x.shape[:2]
    units, per_recording = -(-H // pool), G_P.shape[0] // B
    group = size // per_recording
    points, n_products = a_y.shape[0], a_x.shape[0]  # along y; of one frequency along y
    in_row, out_row = W * channels, b_x.shape[1] // 2 * n_out
    in_size = x.shape[2] * in_row
    g_I, s = aligned(T * size), aligned(IMAGES * in_size)
    half_s, half_g = aligned(IMAGES * points * in_row), aligned(IMAGES * points * out_row)
    S, G = aligned(IMAGES * n_products * channels), aligned(IMAGES * n_products * n_out)
    sums = aligned(taps.shape[1] * channels * n_out)
    sums[:] = 0
    for image in range(lo, hi):
        b = image * group
        n = min(group, B - b)
        g = g_I[: T * n * per_recording].reshape((T, n * per_recording))
        adjoint(
            image * units, (image + 1) * units, g_s, g_y, V, g_u, G_P, G_Q, G_R, u, kappa, c,
            sigmoid, slope, refractory, g, image * size, pool, H, row, size, C,
        )  # fmt: skip
        for first in range(0, T * n, IMAGES):
            count = min(IMAGES, T * n - first)
            for i in range(count):
                words = x[(first + i) // n, b + (first + i) % n]
                counting.unpack(0, len(words), words, s.reshape((-1, in_row))[i * len(words) :])
            _along_y(a_y, s, 0, count, in_row, half_s)
            _along_y(b_y, g_I, first * per_recording, count, out_row, half_g)
            for f in range(points // 2):
                _along_x(a_x, half_s, points, f, count, channels, S)
                _along_x(b_x, half_g, points, f, count, n_out, G)
                _add_products(S, G, f, n_products, count, channels, n_out, sums)
                if g_x.shape[0] > 0:
                    _multiply_weights(
                        G, w, f, n_products, count, channels, n_out, a_x, points, S, half_s
                    )
            for i in range(count if g_x.shape[0] > 0 else 0):
                to = ((first + i) // n * B + b + (first + i) % n) * in_size
                multiply(
                    a_y.reshape(-1), 0, 1, x.shape[2], half_s, i * points * in_row, in_row,
                    g_x, to, in_row, x.shape[2], points, in_row, False,
                )  # fmt: skip
    g_w, pairs = aligned(len(taps) * channels * n_out).reshape((-1, n_out)), channels * n_out
    multiply(
        taps.reshape(-1), 0, taps.shape[1], 1, sums, 0, pairs,
        g_w.reshape(-1), 0, pairs, len(taps), taps.shape[1], pairs, False,
    )  # fmt: skip
    return g_w
