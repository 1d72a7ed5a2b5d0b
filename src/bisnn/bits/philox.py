"""Random numbers as a function of what they are for: Philox 4x32-10 (Salmon et al., 2011), keyed by
(seed, purpose).

A number has a place and no predecessor. It is word `index % 4` of the block with the counter (index
// 4, stream, draw, 0), where stream and draw say whose it is: a layer and a member, a parameter and
a training step, a sample and an epoch. So it does not depend on who drew before, on the device, or
on how many numbers are asked for at once. Blocks of 128 bits are 32-bit words; a uniform number is
the upper 24 bits of a word times 2^-24, exact in float32.

A point's spikes are numbered by the point itself: the counter holds 96 bits of a digest of its
float32 values.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

SEEDS = 1 << 32  # a seed is one word of the key
FEW = 1 << 17  # words that NumPy makes before a compiler would have been loaded


class Purpose(IntEnum):
    """What random numbers are for: one word of the key, so that no two purposes share a stream."""

    WEIGHTS = 1  # initial weights; stream: layer
    READOUTS = 2  # fixed random readouts; stream: layer
    TRAINING_NOISE = 3  # of the rule; stream: parameter, draw: realisation
    MEMBERS = 4  # of an ensemble; stream: layer, draw: member
    POINTS = 5  # digests of points
    ENCODING = 6  # spikes of points that are predicted; by their digest
    TRAINING_ENCODING = 7  # spikes of points that are trained on; by their digest
    SHUFFLING = 8  # order of the training points; stream: epoch
    TEST_SPLIT = 9  # rows held out to test
    VALIDATION_SPLIT = 10  # points held out to validate
    DROPOUT = 11  # stream: sample, draw: epoch
    AUGMENTATION = 12  # stream: sample, draw: epoch
    LOST_SPIKES = 13  # of augmentation; stream: sample, draw: epoch
    EXPORT = 14  # inputs that exports are tried on
    BOOTSTRAP = 15  # NumPy's generator
    CALIBRATION_SPLIT = 16  # recordings that give ranks, and those that give the bound
    DROPOUT_MEMBERS = 17  # neurons that a member's readout does not see; stream: member
    TRAINED_MEMBERS = 18  # seeds of networks that are trained to predict as one; stream: member
    DECISION_SPLIT = 19  # test points that give thresholds, and those judged; stream: split
    CAMERA_RECORDING = 100  # noise of the simulated camera; NumPy's generator
    CAMERA_SENSOR = 101  # thresholds of its pixels; NumPy's generator
    CORRUPTION = 102  # of recordings; stream and draw: by a digest of the events
    TRAINING_CORRUPTION = 103  # stream and draw: by a digest of epoch and sample


def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """The block with this counter and key: 64-bit integers that hold 32-bit words, or NumPy arrays
    or PyTorch tensors of them.

    Products wrap at 64 bits, of which sign and upper half are masked: signed integers serve as well
    as unsigned ones.
    """
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (b >> 32) & 0xFFFFFFFF ^ c1 ^ k0,
            b & 0xFFFFFFFF,
            (a >> 32) & 0xFFFFFFFF ^ c3 ^ k1,
            a & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _kernels() -> Any:
    """The compiled loops, when first used: numba takes a while to load."""
    from bisnn.bits import philox_kernels

    return philox_kernels


def words(n: int, seed: int, purpose: Purpose, stream: int = 0, draw: int = 0) -> np.ndarray:
    """The first n 32-bit words of a stream, uint32.

    >>> [hex(word) for word in words(2, seed=0, purpose=Purpose.MEMBERS, stream=1, draw=7)]
    ['0x7c10f099', '0x748ade0f']
    """
    if n > FEW:
        return _kernels().words(n, stream, draw, seed, int(purpose))
    zero = np.zeros(-(-n // 4), np.int64)
    block = philox(np.arange(len(zero)), zero + stream, zero + draw, zero, seed, int(purpose))
    return np.stack(block, 1).reshape(-1)[:n].astype(np.uint32)


def uniform(
    streams: np.ndarray | Sequence[int], n: int, seed: int, purpose: Purpose, draw: int = 0
) -> np.ndarray:
    """The first n numbers in [0, 1) of each stream, float32 (S, n)."""
    out = np.empty((len(streams), n), np.float32)
    _kernels().uniform(np.asarray(streams, np.int64), draw, seed, int(purpose), out)
    return out


def uniform_at(
    places: np.ndarray, streams: np.ndarray, seed: int, purpose: Purpose, draw: int = 0
) -> np.ndarray:
    """The numbers of `uniform` at these places of these streams, both (n,)."""
    out = np.empty(len(places), np.float32)
    at = (np.ascontiguousarray(x, np.int64) for x in (places, streams))
    _kernels().uniform_at(*at, draw, seed, int(purpose), out)
    return out


def permutation(n: int, seed: int, purpose: Purpose, stream: int = 0) -> np.ndarray:
    """0 to n - 1 in a random order, int64."""
    drawn = words(2 * n, seed, purpose, stream).astype(np.uint64)
    return np.argsort(drawn[:n] << np.uint64(32) | drawn[n:], kind="stable")


def point_spikes(
    x: np.ndarray, rates: np.ndarray, T: int, seed: int, purpose: Purpose, draw: int = 0
) -> np.ndarray:
    """Independent spikes, uint8 (T, N, M), of the points x (N, d) at these rates in [0, 1], (N, M).

    Keyed by each point's own float32 values (-0 as 0): they do not depend on its row, its batch or
    its neighbours.
    """
    points = (np.ascontiguousarray(x, np.float32) + np.float32(0)).view(np.uint32).astype(np.int64)
    limits = np.ceil(rates.astype(np.float64) * 2**24).astype(np.int64)
    out = np.empty((T, *rates.shape), np.uint8)
    _kernels().point_spikes(points, limits, draw, seed, int(purpose), int(Purpose.POINTS), out)
    return out


def keyed_generator(seed: int, purpose: Purpose, sample: int = 0) -> np.random.Generator:
    """NumPy's generator for a purpose: for other distributions, whose bits need not agree."""
    return np.random.Generator(
        np.random.Philox(key=[seed, int(purpose)], counter=[0, 0, 0, sample])
    )
