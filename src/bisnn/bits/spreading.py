"""A convolution's sums by its active inputs, compiled by numba: each of them adds to the outputs
that see it, and all others cost nothing.

What an input adds to one row of outputs lies side by side in memory, if the weights do so too:
neighbouring outputs see it under taps that are a stride apart. So weights are arranged as runs
(`as_runs`), k1 / stride1 taps and all output channels long; an image's border cuts them short.
Where inputs have few channels, as an event camera's, this costs less than gathering what each
output sees (`counting.windows`). Axes: n images, H rows, words of bits; y, x outputs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bisnn.bits.compilation import kernel
from bisnn.bits.counting import lowest

_IMAGES, _RUNS, _OUT = "uint32[:, :, ::1]", "float32[:, ::1]", "float32[:, :, ::1]"
_U1 = np.uint32(1)


def as_runs(weight: np.ndarray, stride: int) -> np.ndarray:
    """Weights (n_out, channels, k0, k1) as runs, (k0, stride channels m n_out): m taps, from the
    last to the first of those a stride apart, for every first one of them and every channel.
    """
    n_out, channels, k0, k1 = weight.shape
    runs = np.zeros((k0, stride, channels, -(-k1 // stride), n_out), np.float32)
    for first in range(min(stride, k1)):
        taps = weight[:, :, :, first::stride][..., ::-1]
        runs[:, first, :, : taps.shape[3]] = taps.transpose(2, 1, 3, 0)
    return runs.reshape(k0, -1)


def from_runs(runs: np.ndarray, shape: tuple[int, ...], stride: int) -> np.ndarray:
    """What `as_runs` has arranged, as (n_out, channels, k0, k1) again."""
    n_out, channels, k0, k1 = shape
    runs = runs.reshape(k0, stride, channels, -(-k1 // stride), n_out)
    weight = np.empty(shape, np.float32)
    for first in range(min(stride, k1)):
        taps = weight[:, :, :, first::stride][..., ::-1]
        taps[:] = runs[:, first, :, : taps.shape[3]].transpose(3, 1, 0, 2)
    return weight


@njit(inline="always")
def _places(W, channels, k1, stride, pad, width, n_out):
    """For each input of a row: where the outputs that see it begin, how many numbers they are, and
    where its run begins, as what a row of outputs and of weights is counted in.
    """
    places = np.empty((3, W * channels), np.int64)
    for w in range(W):
        residue = (w + pad) % stride
        last_tap = residue + (k1 - 1 - residue) // stride * stride  # below 0 where there is none
        begin = (w + pad - last_tap) // stride
        first, end = max(begin, 0), min((w + pad) // stride + 1, width)
        for c in range(channels):
            i = w * channels + c
            places[0, i] = first * n_out
            places[1, i] = max(end - first, 0) * n_out if last_tap >= 0 else 0
            places[2, i] = ((residue * channels + c) * -(-k1 // stride) + first - begin) * n_out
    return places


@kernel(
    f"void(int64, int64, {_IMAGES}, int64, int64, int64, int64, int64, int64, int64, int64, int64, "
    f"{_RUNS}, {_OUT}, boolean)"
)
def add_runs(
    lo, hi, images, W, channels, k0, k1, stride0, stride1, pad0, pad1, n_out, runs, out, collect,
):  # fmt: skip
    """Add to out[n] (y, x n_out) the runs of the active inputs of images[n], rows of W pixels; or,
    to `collect`, add to the runs what is in out: their gradient.
    """
    height, width = out.shape[1], out.shape[2] // n_out
    places = _places(W, channels, k1, stride1, pad1, width, n_out)
    for n in range(lo, hi):
        for h in range(images.shape[1]):
            # The outputs whose windows have this row
            top = max(-((k0 - 1 - h - pad0) // stride0), 0)
            bottom = min((h + pad0) // stride0 + 1, height)
            if top >= bottom:
                continue
            for k in range(images.shape[2]):
                word = images[n, h, k]
                while word:
                    i = 32 * k + np.int64(lowest(word))
                    word &= word - _U1
                    first, size, at = places[0, i], places[1, i], places[2, i]
                    for y in range(top, bottom):
                        w = runs[h + pad0 - y * stride0, at : at + size]
                        o = out[n, y, first : first + size]
                        if collect:
                            for j in range(size):
                                w[j] += o[j]
                        else:
                            for j in range(size):
                                o[j] += w[j]
