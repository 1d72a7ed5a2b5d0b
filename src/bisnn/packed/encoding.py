"""From features to spikes without PyTorch: the population and rate codes of `bisnn.encode`, with the same keyed draws.

The rates are those of `bisnn.encode` to the rounding of a float32 cosine, so one draw in ten million or so may fall otherwise: the
promise of equal bits begins at the spikes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SPLIT, SHUFFLE, TRAIN, VALIDATION, TEST, GRID, PREDICT, AUGMENT, DROPOUT = range(9)  # purposes of draws


def keyed_rng(seed: int, purpose: int, epoch: int = 0, sample: int = 0) -> np.random.Generator:
    """A generator of its own for this key: Philox is a function of key and counter, so keys need no common sequence."""
    return np.random.Generator(np.random.Philox(key=[seed, purpose], counter=[0, 0, epoch, sample]))


def spikes(code: dict[str, Any], x: np.ndarray, first: int = 0) -> np.ndarray:
    """Raw features (N, d) as spikes, uint8 (T, N, inputs), by a packed file's encoding; the draws are those of `bisnn predict`.

    `first` is the place of the first point in the whole of them: draws are keyed by it.
    """
    if not code:
        raise ValueError("x: this file takes spikes and says nothing of features; use predict with spikes (T, B, ...)")
    low, high = np.array(code["low"]), np.array(code["high"])
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != len(low) or len(x) == 0 or not np.isfinite(x).all():
        raise ValueError(f"x: must be finite, (N, {len(low)}) with N >= 1; got shape {x.shape}; one row a point")
    scaled = ((x - low) / (high - low)).clip(-10, 10).astype(np.float32)  # all is silence far outside
    rates = _population(scaled, code["neurons"], code["width"]) if code["code"] == "population" else scaled.clip(0, 1)
    T = code["steps"]
    draws = [keyed_rng(code["seed"], PREDICT, 0, first + i).random((T, rates.shape[1]), dtype=np.float32) for i in range(len(x))]
    return (np.stack(draws, axis=1) < rates).astype(np.uint8)


def _population(x: np.ndarray, neurons: int, width: float) -> np.ndarray:
    """As `bisnn.encode.population_rates`."""
    centres = np.linspace(0, 1, neurons, dtype=np.float32)
    phase = np.float32(np.pi) * (x[..., None] - centres) / np.float32(width / (neurons - 1))
    rates = np.float32(0.5) + np.float32(0.5) * np.cos(phase.clip(-np.float32(np.pi), np.float32(np.pi)))
    return rates.reshape(len(x), -1)
