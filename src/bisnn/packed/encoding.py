"""From features to spikes without PyTorch: scale, population or rate code, spikes keyed by the
point's own values.

Additions, multiplications and divisions in float64, in a fixed order, and integers: the same bits
    on every machine, and in C.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bisnn.bits import philox
from bisnn.bits.philox import Purpose

FARTHEST = 1e6  # scaled features are kept within +-FARTHEST, where float32 holds them

# cos(pi r / 2) = (1 - r^2) q(r^2): q is entire, and this form is exactly 0 at r = +-1. Its
# coefficients are tails of the cosine's series, whose own sum to 0; twelve of them leave an error
# below 1e-16.
_SERIES = [(-1) ** j * (math.pi / 2) ** (2 * j) / math.factorial(2 * j) for j in range(30)]
COSINE = tuple(-math.fsum(_SERIES[k + 1 :]) for k in range(12))


def scaled(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Raw features (N, d) to float32, [low, high] to [0, 1]."""
    return ((x - low) / (high - low)).clip(-FARTHEST, FARTHEST).astype(np.float32)


def raised_cosine(r: Any) -> Any:
    """1/2 + 1/2 cos(pi r) = cos^2(pi r / 2) for r in [-1, 1]; NumPy arrays or PyTorch tensors."""
    z = r * r
    q = z * COSINE[-1] + COSINE[-2]
    for c in COSINE[-3::-1]:
        q = q * z + c
    half = (1 - z) * q
    return half * half


def population_rates(x: np.ndarray, neurons: int, width: float) -> np.ndarray:
    """Rates of each feature's tuning curves, (N, d) float32 -> (N, d * neurons) float64."""
    centres = np.arange(neurons) / (neurons - 1)
    r = (x.astype(np.float64)[..., None] - centres) / (width / (neurons - 1))
    return raised_cosine(r.clip(-1, 1)).reshape(len(x), -1)


def encode(
    x: np.ndarray, code: dict[str, Any], seed: int, purpose: Purpose, draw: int = 0
) -> np.ndarray:
    """Scaled features (N, d) as spikes, uint8 (T, N, inputs); `code` as in a packed file."""
    population = code["code"] == "population"
    rates = population_rates(x, code["neurons"], code["width"]) if population else x.clip(0, 1)
    return philox.point_spikes(x, rates, code["steps"], seed, purpose, draw)


def spikes(code: dict[str, Any], x: np.ndarray, draw: int = 0) -> np.ndarray:
    """Raw features (N, d) as the spikes of `bisnn predict`, uint8 (T, N, inputs)."""
    if not code:
        raise ValueError(
            "x: this file takes spikes and says nothing of features; use predict with spikes "
            "(T, B, ...)"
        )
    low, high = np.array(code["low"]), np.array(code["high"])
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != len(low) or len(x) == 0 or not np.isfinite(x).all():
        raise ValueError(
            f"x: must be finite, (N, {len(low)}) with N >= 1; got shape {x.shape}; give one row "
            "per point"
        )
    return encode(scaled(x, low, high), code, code["seed"], Purpose.ENCODING, draw)
