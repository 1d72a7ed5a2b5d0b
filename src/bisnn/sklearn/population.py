"""Features as regular spike trains: a population of units along the values of each column.

Unit k of a column ramps from silent to firing at every step between two knots, so that a column's
units together say where a value lies, and a sum over them is a line that may bend at the knots. A
second unit of each fires when the first does not. Knots lie between the quantiles of the training
rows and an even grid; values beyond the outermost are clipped. Spikes are not drawn: a rate r is
floor((t + 1) r + phase) - floor(t r + phase), the same for a row wherever it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TAIL = 0.005  # of the training rows lies beyond the outermost knots, on either side
MOST_INPUTS = 512  # of all columns together: many columns get fewer units each
ROWS = 256  # encoded at a time
GOLDEN = 0.6180339887498949  # phases that are multiples of it are spread evenly


@dataclass(frozen=True)
class PopulationCode:
    """Knots of every column, (units + 1,) float64 each; a column that never changes has none."""

    knots: tuple[np.ndarray, ...]
    steps: int

    @classmethod
    def learned(cls, x: np.ndarray, units: int, steps: int) -> PopulationCode:
        """The code of training rows (N, d), with at most so many units per column."""
        most = max(1, min(units, MOST_INPUTS // (2 * x.shape[1])))
        return cls(tuple(_knots(column, most) for column in x.T), steps)

    @property
    def inputs(self) -> int:
        return 1 + 2 * sum(max(0, len(knots) - 1) for knots in self.knots)

    def rates(self, x: np.ndarray) -> np.ndarray:
        """Of rows (N, d), (N, inputs) in [0, 1]; the last unit always fires."""
        parts = [np.ones((len(x), 1))]
        for column, knots in zip(x.T, self.knots, strict=True):
            if len(knots) > 1:
                ramp = ((column[:, None] - knots[:-1]) / np.diff(knots)).clip(0, 1)
                parts += [ramp, 1 - ramp]
        return np.concatenate(parts[1:] + parts[:1], 1)

    def spikes(self, x: np.ndarray) -> Tensor:
        """Of rows (N, d), bool (T, N, inputs)."""
        out = np.empty((self.steps, len(x), self.inputs), bool)
        phase = (np.arange(self.inputs) * GOLDEN) % 1 + 1e-9  # beyond what rounding takes away
        for start in range(0, len(x), ROWS):
            some = slice(start, start + ROWS)
            ramps = np.arange(self.steps + 1)[:, None, None] * self.rates(x[some]) + phase
            out[:, some] = np.diff(np.floor(ramps), axis=0) > 0
        return torch.from_numpy(out)


def _knots(column: np.ndarray, units: int) -> np.ndarray:
    values = np.unique(column)
    if len(values) <= 2:
        return values
    shares = np.linspace(TAIL, 1 - TAIL, units + 1)
    quantiles = np.quantile(column, shares)
    if quantiles[0] == quantiles[-1]:  # rare other values alone
        return values[[0, -1]]
    return np.unique((quantiles + np.linspace(quantiles[0], quantiles[-1], units + 1)) / 2)
