"""The kernels on packed bits against numpy, in any number of parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bisnn.alphabet import Levels
from bisnn.bits import counting, spreading

SEEDS, DENSITIES, CUTS = (
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.floats(0, 1),
)
ROWS, INPUTS, NEURONS = st.integers(1, 50), st.integers(1, 100), st.integers(1, 40)
SMALL = st.tuples(ROWS, INPUTS, NEURONS)
LARGE = (
    2 * counting.ROWS + 9,
    32 * counting.BLOCK + 70,
    counting.COLUMNS + 5,
)  # beyond the kernels' blocks: rows, inputs, neurons


def random_bits(*shape: int, seed: int, density: float) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < density


def packed(x: np.ndarray) -> np.ndarray:
    """Booleans (..., n) as words (..., ceil(n / 32)), the lowest bit first."""
    n = x.shape[-1]
    padded = np.zeros((*x.shape[:-1], -(-n // 32) * 32), bool)
    padded[..., :n] = x
    return np.packbits(padded, axis=-1, bitorder="little").view("<u4").astype(np.uint32)


def written(kernel, size: int, cut: float, out: np.ndarray, *arguments) -> np.ndarray:
    """What the kernel makes of `out` over 0..size; in two parts, as two threads would work, the
    same bits.
    """
    whole, parts, middle = out.copy(), out.copy(), round(cut * size)
    kernel(0, size, *arguments, whole)
    kernel(middle, size, *arguments, parts)
    others = (
        32 * middle
        if kernel in (counting.add_rows_transposed, counting.add_rows_by_fours)
        else middle
    )
    assert np.array_equal(parts[:others], out[:others])
    kernel(0, middle, *arguments, parts)
    assert np.array_equal(whole, parts)
    return whole


@given(ROWS, INPUTS, DENSITIES, SEEDS, CUTS)
def test_unpack(rows, n, density, seed, cut):
    x = random_bits(rows, n, seed=seed, density=density)
    out = np.full((rows, n), 0.5, np.float32)
    assert np.array_equal(written(counting.unpack, rows, cut, out, packed(x)), x)


@given(ROWS, INPUTS, DENSITIES, SEEDS, CUTS)
def test_pack(rows, n, density, seed, cut):
    x = random_bits(rows, n, seed=seed, density=density)
    for zero in (0.0, -0.0):
        floats = np.where(x, 1, zero).astype(np.float32)
        words = written(
            counting.pack,
            rows,
            cut,
            np.full((rows, -(-n // 32)), 0xFFFFFFFF, np.uint32),
            floats.view(np.uint32),
        )
        assert np.array_equal(words, packed(x))


@given(ROWS, INPUTS, SEEDS, st.sampled_from([0.5, -1.0, 2.0, 1e-40, 0.99999994, np.inf, np.nan]))
@example(3, 32, 0, 0.5)  # nothing but whole words
@example(3, 31, 0, 0.5)  # nothing but a last one
def test_pack_reports_what_is_neither_0_nor_1(rows, n, seed, value):
    x = random_bits(rows, n, seed=seed, density=0.5).astype(np.float32)
    words = np.empty((rows, -(-n // 32)), np.uint32)
    assert counting.pack(0, rows, x.view(np.uint32), words)
    rng = np.random.default_rng(seed)
    r, j = rng.integers(rows), rng.integers(n)
    x[r, j] = value
    assert not counting.pack(0, rows, x.view(np.uint32), words)
    assert counting.pack(0, r, x.view(np.uint32), words), "of its own rows only"


CONVOLUTIONS = (
    st.integers(1, 3),
    st.sampled_from([1, 2, 11, 13, 20, 31, 32, 33, 64, 70]),
    st.tuples(st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.integers(0, 3), st.integers(0, 4)),
    DENSITIES,
    SEEDS,
    CUTS,
)


@given(*CONVOLUTIONS)
def test_windows_are_the_inputs_under_the_kernel(
    n, channels, kernel, stride, padding, extra, density, seed, cut
):
    images = images_of(n, channels, kernel, padding, extra, density, seed)
    H, W = images.shape[1:3]
    views = views_of(images, kernel, stride, padding)
    expected = packed(
        np.moveaxis(views, 3, -1).reshape(*views.shape[:3], -1)
    )  # taps in row order, channels within
    out = np.full_like(expected, 0xFFFFFFFF)
    lines = packed(images.reshape(n, H, -1))
    joined = np.full_like(lines, 0xFFFFFFFF)
    assert np.array_equal(
        written(counting.join_pixels, n, cut, joined, packed(images), channels), lines
    )
    ours = written(counting.windows, n, cut, out, lines, W, channels, *kernel, *stride, *padding)
    assert np.array_equal(ours, expected)
    planes = packed(np.moveaxis(images, 3, 1).reshape(n, channels, -1))
    assert np.array_equal(written(counting.interleave, n, cut, joined, planes, W), lines)


def images_of(n, channels, kernel, padding, extra, density, seed) -> np.ndarray:
    """Images (n, H, W, channels) that hold a window of the kernel and `extra` pixels more."""
    H, W = (max(1, k - 2 * p) + e for k, p, e in zip(kernel, padding, extra, strict=True))
    return random_bits(n, H, W, channels, seed=seed, density=density)


def views_of(images, kernel, stride, padding) -> np.ndarray:
    """What the kernel sees at each output pixel, (n, y, x, C, k0, k1)."""
    framed = np.pad(images, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(framed, kernel, (1, 2))
    return views[:, :: stride[0], :: stride[1]]


@given(*CONVOLUTIONS, NEURONS)
def test_runs_of_active_inputs_are_a_convolution(
    n, channels, kernel, stride, padding, extra, density, seed, cut, n_out
):
    """Added to outputs, and collected from them as the weights' gradient: whole numbers exactly."""
    images = images_of(n, channels, kernel, padding, extra, density, seed)
    views = views_of(images, kernel, stride, padding).astype(float)
    rng, shape = np.random.default_rng(seed), (n_out, channels, *kernel)
    w, g = (rng.integers(-9, 10, s).astype(np.float32) for s in (shape, (*views.shape[:3], n_out)))
    runs = spreading.as_runs(w, stride[1])
    assert np.array_equal(spreading.from_runs(runs, shape, stride[1]), w)
    H, W = images.shape[1:3]
    places = (packed(images.reshape(n, H, -1)), W, channels, *kernel, *stride, *padding, n_out)

    def spread(lo, hi, out):
        spreading.add_runs(lo, hi, *places, runs, out, False)

    ours = written(
        spread, n, cut, np.zeros((n, views.shape[1], views.shape[2] * n_out), np.float32)
    )
    expected = np.einsum("nyxckl,ockl->nyxo", views, w)
    assert np.array_equal(ours, expected.reshape(ours.shape))
    collected = np.ones_like(runs)
    for lo, hi in ((0, round(cut * n)), (round(cut * n), n)):
        spreading.add_runs(lo, hi, *places, collected, g.reshape(ours.shape), True)
    gradient = spreading.from_runs(collected, shape, stride[1])
    assert np.array_equal(gradient, 1 + np.einsum("nyxckl,nyxo->ockl", views, g))


@given(SMALL, DENSITIES, SEEDS, CUTS)
@example(LARGE, 0.3, 0, 0.5)
def test_counts_are_the_product_with_signs(shape, density, seed, cut):
    rows, n_in, n_out = shape
    x, up = (
        random_bits(rows, n_in, seed=seed, density=density),
        random_bits(n_out, n_in, seed=seed + 1, density=0.5),
    )
    out = np.full((rows, n_out), 0.5, np.float32)
    ours = written(counting.counts, rows, cut, out, packed(x), np.ascontiguousarray(packed(up).T))
    assert np.array_equal(ours, x.astype(int) @ np.where(up, 1, -1).T)


@given(SMALL, DENSITIES, SEEDS, CUTS, st.sets(st.integers(-127, 127), min_size=2, max_size=9))
@example(LARGE, 0.3, 0, 0.5, {-3, -1, 1, 3})
@example(LARGE, 0.9, 0, 0.5, {-1, 0, 1})
@example(LARGE, 0.3, 0, 0.5, {-1, 1})
def test_plane_counts_are_the_product_with_levels(shape, density, seed, cut, levels):
    rows, n_in, n_out = shape
    of, rng = Levels(*levels), np.random.default_rng(seed)
    x = random_bits(rows, n_in, seed=seed, density=density)
    w = rng.choice(np.array(of.levels, np.int8), (n_out, n_in))
    bits = of.bits(w)
    assert len(bits) == of.planes
    assert np.array_equal(of.weights(bits), w)
    planes = np.ascontiguousarray(np.stack([packed(plane).T for plane in bits]))
    out = np.full((rows, n_out), 0.5, np.float32)
    ours = written(counting.plane_counts, rows, cut, out, packed(x), planes, of.low, of.gap)
    assert np.array_equal(ours, x.astype(int) @ w.astype(int).T)


@pytest.mark.parametrize("real", [False, True])
@given(shape=SMALL, density=DENSITIES, seed=SEEDS, cut=CUTS)
@example(shape=LARGE, density=0.1, seed=0, cut=0.5)
def test_sums_of_rows(real, shape, density, seed, cut):
    """Forward the rows of W^T at the ones of x, backward those of g at the ones of x^T, one by one
    or by fours; whole numbers exactly.
    """
    rows, n_in, n_out = shape
    x, rng = random_bits(rows, n_in, seed=seed, density=density), np.random.default_rng(seed)
    w, g, before = (
        (rng.standard_normal(s) if real else rng.integers(-9, 10, s)).astype(np.float32)
        for s in ((n_in, n_out), (rows, n_out), (n_in, n_out))
    )
    out = np.full((rows, n_out), 0.5, np.float32)
    sums = written(counting.add_rows, rows, cut, out, packed(x), w)
    one_by_one = written(counting.add_rows_transposed, -(-n_in // 32), cut, before, packed(x), g)
    by_fours = written(counting.add_rows_by_fours, -(-n_in // 32), cut, before, packed(x), g)
    forward, backward = (
        x.astype(float) @ w.astype(float),
        before + x.T.astype(float) @ g.astype(float),
    )
    for ours, slow in ((sums, forward), (one_by_one, backward), (by_fours, backward)):
        np.testing.assert_allclose(
            ours, slow, rtol=0, atol=2e-5 * max(1, np.abs(slow).max()) if real else 0
        )
