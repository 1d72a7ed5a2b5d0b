"""Augmentation of recordings: keyed by the sample, within its bounds, the same on every device."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data import archives, cache
from bisnn.data.augmentation import Augmentation, augmented


def test_augmentation_is_keyed_by_the_sample():
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (12, 5, 2, 9, 9), dtype=np.uint8))
    how = Augmentation(rotate=30, zoom=0.2, shift=2, drop=0.3, jitter=1)
    whole = augmented(x, how, 3, 7, torch.arange(5))
    part = augmented(x[:, [4, 1]], how, 3, 7, torch.tensor([4, 1]))
    assert torch.equal(part, whole[:, [4, 1]])
    assert not torch.equal(whole, augmented(x, how, 3, 8, torch.arange(5)))
    assert augmented(x, Augmentation(), 3, 7, torch.arange(5)) is x


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_augmentation_and_unpacking_on_a_gpu_give_the_same_bits(tmp_path):
    x = np.random.default_rng(0).integers(0, 2, (7, 5, 2, 9, 9), dtype=np.uint8)
    bits = cache.build(tmp_path / "x.bits", (5, 2, 9, 9), 7, lambda i: x[i])
    seen_by, index = archives.Recordings(bits, [0] * 7, ["0"]), torch.tensor([6, 0, 3])
    seen = seen_by.batch(index, "cuda")
    assert torch.equal(seen.cpu(), seen_by.batch(index))
    how = Augmentation(rotate=30, zoom=0.2, shift=2, drop=0.3, jitter=1)
    assert torch.equal(
        augmented(seen, how, 3, 7, index).cpu(), augmented(seen_by.batch(index), how, 3, 7, index)
    )


def test_augmentation_moves_and_thins():
    """A dot moves at most the stated steps and pixels, both ways; spikes are lost at the rate."""
    x = torch.zeros(11, 400, 2, 9, 9, dtype=torch.uint8)
    x[5, :, 1, 4, 4] = 1
    moved = augmented(x, Augmentation(shift=2, jitter=3), 0, 0, torch.arange(400)).nonzero()
    assert len(moved) == 400
    t, _, channel, row, column = (moved - torch.tensor([5, 0, 1, 4, 4])).T
    assert set(t.tolist()) == set(range(-3, 4))
    assert set(row.tolist()) == set(column.tolist()) == set(range(-2, 3))
    assert set(channel.tolist()) == {0}
    kept = (
        augmented(torch.ones_like(x), Augmentation(drop=0.3), 0, 0, torch.arange(400))
        .float()
        .mean()
    )
    assert abs(float(kept) - 0.7) < 0.005


def test_augmentation_turns_and_grows_about_the_middle():
    """Against a loop over pixels: each shows what lay at its place turned and shrunk back."""
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (2, 40, 1, 9, 7), dtype=np.uint8))
    samples = torch.arange(40) + 10
    turned = augmented(x, Augmentation(rotate=50, zoom=0.4), 3, 7, samples)
    draws = philox.uniform(samples.numpy(), 5, 3, Purpose.AUGMENTATION, 7)[:, 3:].astype(np.float64)
    for b, (u, v) in enumerate(draws):
        back = np.exp(-1j * math.radians(50 * (2 * u - 1))) / (1 + 0.4 * (2 * v - 1))
        for row, column in np.ndindex(9, 7):
            place = complex(row - 4, column - 3) * back + complex(4, 3)
            h, w = round(place.real), round(place.imag)
            seen = (
                x[:, b, 0, h, w] if 0 <= h < 9 and 0 <= w < 7 else torch.zeros(2, dtype=torch.uint8)
            )
            assert torch.equal(turned[:, b, 0, row, column], seen)
    assert len({float(u) for u in draws[:, 0]}) == 40  # each its own angle


def test_one_row_of_sensors_is_not_moved_off_itself():
    x = torch.zeros(5, 50, 1, 1, 30, dtype=torch.uint8)
    x[2, :, 0, 0, 15] = 1
    moved = augmented(x, Augmentation(rotate=90, shift=3), 0, 0, torch.arange(50)).nonzero()
    assert len(moved) == 50
    assert set((moved[:, 4] - 15).tolist()) == set(range(-3, 4))
