"""A dataset of one's own, trained from the command line, in the folder of this file:

    bisnn train own_dataset.toml
    bisnn train own_dataset.toml --set data.name=own_dataset:chirps --set train.epochs=20

A function returns a `bisnn.data.Dataset`; its arguments are settings (`--set data.points=500`), and
one called `seed` gets the run's. The same from Python, without a name:

    bisnn.train(bisnn.config.load("own_dataset.toml"), data=rings())
"""

from __future__ import annotations

import numpy as np

from bisnn.data import Dataset


def rings(points: int = 300, noise: float = 0.1, seed: int = 0) -> Dataset:
    """Features (N, 2): points on an inner and an outer ring, in any units."""
    rng = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        label = rng.integers(0, 2, count)
        radius = 1.0 + label + noise * rng.standard_normal(count)
        angle = rng.uniform(0, 2 * np.pi, count)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1), label

    return Dataset(draw(points), draw(points), classes=["inner", "outer"])


def chirps(recordings: int = 120, steps: int = 40, seed: int = 0) -> Dataset:
    """Spikes (N, T, 12): a ridge of activity that moves up or down the channels."""
    rng = np.random.default_rng(seed)
    channel, time = np.arange(12), np.arange(steps)[:, None]  # (12,), (T, 1)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        label = rng.integers(0, 2, count)
        rising = 12 * time / steps  # where the ridge is, (T, 1)
        places = np.where(label[:, None, None] == 0, rising, 12 - rising)  # (N, T, 1)
        ridge = np.exp(-0.5 * (channel - places) ** 2)
        return rng.random((count, steps, 12)) < 0.6 * ridge, label

    return Dataset(draw(recordings), draw(recordings), classes=["up", "down"])
