"""Gradients of a convolution by its Fourier transform, in which a sum over taps is one product.

With inputs s, gradients g of the currents and weights w, all of them channels by channels,

    g_w[d] = sum_y g[y] s[r y - p + d]        g_s[i] = sum_{y, d: r y - p + d = i} g[y] w[d]

for taps d, stride r and padding p. Let S and G be transforms over N points, N >= H + p so that
nothing wraps around. At each frequency f they only multiply:

    g_w[d] = 1/N sum_f S(f) conj(G(f)) exp(2 pi i f d)

and g_s is the transpose of the same. A product of complex numbers takes three real ones, S and G
are real before the transform, so half the frequencies do; along the first axis these lie between
the usual ones, k + 1/2, and none is its own conjugate. So all is real: `taps`, `of_inputs` and
`of_currents` are matrices E, A, B with g_w = E (A s * B g) and g_s = A' (B g * E' w), elementwise
over 3/2 N0 N1 products for each pair of channels, instead of one for each tap and output pixel: for
a kernel of 7 x 7 pixels a sixteenth. Transforms are dense matrix products along each axis: at these
sizes that is faster than a fast transform.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from bisnn.kernels.cpu_products import LANES


class Axis(NamedTuple):
    """A convolution along one axis of the image."""

    size: int
    kernel: int
    stride: int
    padding: int
    outputs: int

    @property
    def points(self) -> int:
        """Of the transform, an even number."""
        return (self.size + self.padding + 1) // 2 * 2


class Transforms(NamedTuple):
    """Matrices A and B, along each axis in turn, and E; see above."""

    of_inputs: tuple[np.ndarray, np.ndarray]  # (N0, H), (3 N1, 2 W)
    of_currents: tuple[np.ndarray, np.ndarray]
    taps: np.ndarray  # (k0 k1, products)


def operations(y: Axis, x: Axis, channels: int, outputs: int, both: bool) -> int:
    """Multiplications that the weights' gradient of one image takes, or `both` gradients, with
    channels in whole vectors.
    """
    channels, outputs = (-(-n // LANES) * LANES for n in (channels, outputs))
    pairs = 3 * y.points * x.points // 2 * channels * outputs
    of_inputs = y.points * x.size * (y.size + 3 * x.points) * channels
    of_currents = y.points * x.outputs * (y.outputs + 3 * x.points) * outputs
    return (1 + both) * (pairs + of_inputs) + of_currents


@functools.cache
def transforms(y: Axis, x: Axis) -> Transforms:
    """The matrices, computed in float64 and rounded once."""
    f_y, f_x = (np.arange(y.points // 2) + 0.5) / y.points, np.arange(x.points) / x.points
    at_y, at_x = (np.arange(axis.outputs) * axis.stride - axis.padding for axis in (y, x))
    of_inputs = _along_y(f_y, np.arange(y.size)), _along_x(f_x, np.arange(x.size), 1)
    of_currents = _along_y(f_y, at_y), _along_x(f_x, at_x, -1)
    along_y, along_x = np.outer(np.arange(y.kernel), f_y), np.outer(np.arange(x.kernel), f_x)
    angle = 2 * np.pi * (along_y[:, None, :, None] + along_x[:, None, :])
    cos, sin = np.cos(angle), np.sin(angle)
    taps = 2 / (y.points * x.points) * np.stack([cos + sin, cos - sin, -sin], -1)
    return Transforms(of_inputs, of_currents, _float32(taps.reshape(y.kernel * x.kernel, -1)))


def _along_y(f: np.ndarray, at: np.ndarray) -> np.ndarray:
    """From real numbers to real and imaginary parts, (2 frequencies, places)."""
    angle = 2 * np.pi * np.outer(f, at)
    return _float32(np.stack([np.cos(angle), -np.sin(angle)], 1).reshape(-1, len(at)))


def _along_x(f: np.ndarray, at: np.ndarray, sign: int) -> np.ndarray:
    """From real and imaginary parts to such, and their sum or, with sign -1, their difference:
    (3 frequencies, 2 places).
    """
    angle = 2 * np.pi * np.outer(f, at)
    cos, sin = np.cos(angle), np.sin(angle)
    real, imaginary = np.hstack([cos, sin]), np.hstack([-sin, cos])
    parts = np.stack([real, imaginary, real + sign * imaginary], 1)
    return _float32(parts.reshape(-1, 2 * len(at)))


def _float32(matrix: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(matrix, np.float32)
