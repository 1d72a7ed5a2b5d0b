"""The paper's two synthetic tasks: 1-D regression and two moons. Seeded; rescaled to [0, 1].

The function and the clusters of the 1-D task are those of the authors' code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bisnn.checks import number, positive_int

X_RANGE = (-1.0, 5.0)  # of the 1-D task
CLUSTERS = ((-1.0, 0.0), (1.5, 2.5), (4.0, 5.0))  # where its training points lie


class Points(NamedTuple):
    """Points, and what is to be said of them."""

    x: Tensor  #: (N, d) float32
    y: Tensor  #: (N,) int64 labels or (N, 1) float32 targets


def two_moons(
    train: int = 200, test: int = 1000, *, noise: float = 0.1, seed: int = 0
) -> tuple[Points, Points]:
    """Two interleaved half circles: `train` and `test` points per class, Gaussian noise.

    Each axis is rescaled to [0, 1] by the training set's range; the test set, drawn independently,
    by the same map, so it may lie a little outside.

    Args:
        train: training points per class.
        test: test points per class.
        noise: standard deviation of the noise, before rescaling.
        seed: of the noise.
    """
    from sklearn.datasets import make_moons

    number("noise", noise, least=0)
    rng = np.random.RandomState(seed)  # what scikit-learn takes
    raw = [
        make_moons(2 * positive_int("train, test", n), noise=noise, random_state=rng)
        for n in (train, test)
    ]
    low, high = raw[0][0].min(0), raw[0][0].max(0)
    first, second = (
        Points(
            torch.tensor((x - low) / (high - low), dtype=torch.float32),
            torch.tensor(y, dtype=torch.int64),
        )
        for x, y in raw
    )
    return first, second


def f_1d(x: Tensor) -> Tensor:
    """f(x) = x - 0.1 x^2 + cos(pi x / 2), of `x` in the task's own units."""
    return x - 0.1 * x.square() + torch.cos(torch.pi * x / 2)


def one_d(
    per_unit: int = 20, test: int = 200, *, noise: float = 0.1, seed: int = 0
) -> tuple[Points, Points]:
    """1-D regression: training points evenly in three clusters, noisy; test points evenly on [-1,
    5], noiseless.

    x is rescaled to [0, 1] from [-1, 5], y by the range of f on it (noisy targets may lie a little
    outside).

    Args:
        per_unit: training points on each unit of x that has some.
        test: test points.
        noise: standard deviation of the training targets' noise, before rescaling.
        seed: of the noise.
    """
    number("noise", noise, least=0)
    rng = np.random.default_rng(seed)
    grid = torch.linspace(*X_RANGE, positive_int("test", test), dtype=torch.float64)
    n = positive_int("per_unit", per_unit)
    x = torch.cat(
        [torch.linspace(a, b, round(n * (b - a)), dtype=torch.float64) for a, b in CLUSTERS]
    )
    y = f_1d(x) + noise * torch.from_numpy(rng.standard_normal(len(x)))
    fine = f_1d(torch.linspace(*X_RANGE, 6001, dtype=torch.float64))

    def rescaled(x: Tensor, y: Tensor) -> Points:
        x = (x - X_RANGE[0]) / (X_RANGE[1] - X_RANGE[0])
        y = (y - fine.min()) / (fine.max() - fine.min())
        return Points(x[:, None].float(), y[:, None].float())

    return rescaled(x, y), rescaled(grid, f_1d(grid))
