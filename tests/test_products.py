"""Dense products in registers, and gradients of convolutions as products of transforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.grad import conv2d_input, conv2d_weight

from bisnn.kernels import fourier
from bisnn.kernels.cpu_products import COLUMNS, LANES, ROWS, aligned, multiply
from bisnn.kernels.fourier import Axis


@given(
    st.integers(0, 2 * ROWS + 1),
    st.integers(0, 20),
    st.integers(0, 2 * COLUMNS + LANES + 3),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
@example(ROWS, 7, COLUMNS + LANES + 1, 0, False, True, 0)
def test_products_are_those_of_float64(rows, steps, columns, gap, transposed, add, seed):
    """Of matrices with gaps between rows, a transposed or not; what lies around c stays."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((steps, rows + gap) if transposed else (rows, steps + gap), np.float32)
    b, c = (rng.standard_normal((n + 2, columns + gap), np.float32) for n in (steps, rows))
    left = a[:, :rows].T if transposed else a[:, :steps]
    expected = c.astype(np.float64)
    product = left.astype(np.float64) @ b[1 : steps + 1, :columns]
    expected[1 : rows + 1, :columns] = product + (expected[1 : rows + 1, :columns] if add else 0)
    wide = columns + gap
    of_a = (1, rows + gap) if transposed else (steps + gap, 1)
    ours = c.copy()
    multiply(
        a.ravel(), 0, *of_a, b.ravel(), wide, wide, ours.ravel(), wide, wide,
        rows, steps, columns, add,
    )  # fmt: skip
    np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5)
    ours[1 : rows + 1, :columns] = c[1 : rows + 1, :columns]
    assert np.array_equal(ours, c)


@pytest.mark.parametrize("size", [1, 15, 16, 1000])
def test_aligned_arrays_begin_with_a_line_of_the_cache(size):
    array = aligned(size)
    assert array.shape == (size,)
    assert array.ctypes.data % 64 == 0


def transformed(images: np.ndarray, matrices: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Images (n, H, W, C) times A or B, as one einsum: (n, N0/2, 3 N1, C)."""
    along_y, along_x = (m.astype(np.float64) for m in matrices)
    W = images.shape[2]
    return np.einsum(
        "fph,mpw,nhwc->nfmc",
        along_y.reshape(-1, 2, along_y.shape[1]),
        along_x.reshape(-1, 2, W),
        images,
    )


@given(st.data(), st.integers(0, 1000))
def test_transforms_turn_convolutions_into_products(data, seed):
    """g_w = E (A s * B g) and g_s = A' (B g * E' w), for any size, kernel, stride and padding."""
    sizes = [
        (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)))
        for _ in "yx"
    ]
    padding = [data.draw(st.integers(max(0, -((n - k) // 2)), 4)) for n, k, _ in sizes]
    outputs = [(n + 2 * p - k) // r + 1 for (n, k, r), p in zip(sizes, padding, strict=True)]
    (H, k0, r0), (W, k1, r1) = sizes
    y, x = Axis(H, k0, r0, padding[0], outputs[0]), Axis(W, k1, r1, padding[1], outputs[1])
    a, b, e = fourier.transforms(y, x)
    rng = np.random.default_rng(seed)
    s, g, w = (
        rng.standard_normal(shape) for shape in ((2, H, W, 3), (2, *outputs, 4), (4, 3, k0, k1))
    )
    S, G = transformed(s, a), transformed(g, b)
    E = e.astype(np.float64).reshape(k0, k1, *S.shape[1:3])
    g_w = np.einsum("ijfm,nfmc,nfmo->ocij", E, S, G)
    spectrum = np.einsum("nfmo,ijfm,ocij->nfmc", G, E, w)
    g_s = np.einsum("fph,mpw,nfmc->nhwc", a[0].reshape(-1, 2, H), a[1].reshape(-1, 2, W), spectrum)
    images, errors, weight = (torch.from_numpy(z) for z in (s, g, w))
    images, errors = images.permute(0, 3, 1, 2), errors.permute(0, 3, 1, 2)
    places = ((r0, r1), tuple(padding))
    expected = conv2d_weight(images, weight.shape, errors, *places)
    np.testing.assert_allclose(g_w, expected, rtol=0, atol=1e-5 * max(1, expected.abs().max()))
    expected = conv2d_input(images.shape, weight, errors, *places).permute(0, 2, 3, 1)
    np.testing.assert_allclose(g_s, expected, rtol=0, atol=1e-5 * max(1, expected.abs().max()))


def test_operations_are_those_of_the_matrices():
    """The multiplications of transforms along both axes and of their products, counted; for the
    inputs' gradient, theirs and the products again.
    """
    y, x = Axis(12, 7, 1, 2, 10), Axis(9, 5, 2, 1, 4)
    (a_y, a_x), (b_y, b_x), e = fourier.transforms(y, x)
    frequencies = len(a_y) // 2
    of_inputs = (a_y.size * x.size + frequencies * a_x.size) * 64
    of_currents = (b_y.size * x.outputs + frequencies * b_x.size) * 128
    products = e.shape[1] * 64 * 128
    assert fourier.operations(y, x, 64, 128, False) == of_inputs + of_currents + products
    assert fourier.operations(y, x, 50, 127, True) == 2 * (of_inputs + products) + of_currents
