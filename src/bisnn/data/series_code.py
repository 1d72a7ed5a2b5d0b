"""How series of values become spikes, time step by time step, without PyTorch.

With z a channel's value scaled to [0, 1] by its range in the training recordings:

| code | inputs per channel | spikes |
|---|---|---|
| spikes | 1 | the values themselves, 0 or 1 |
| delta | 2 | up, or down: where z has moved by `threshold` from what the spikes so far add up to |
| rate | 1 | with probability z in each of a value's time steps, keyed by seed, values and place |
| population | `neurons` | the neuron whose centre is nearest, of centres evenly on [0, 1] |
| latency | 1 | one among a value's time steps, the earlier the larger z |

A value lasts for `substeps` time steps of the network. Every input enters once for each of the
`delays`, so many time steps late: a neuron then sees what was and what is side by side, and can
tell the order of events whatever its own time constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bisnn.bits import philox
from bisnn.bits.philox import Purpose

CODES = ("spikes", "delta", "rate", "population", "latency")
TAILS = 0.005  # of a channel's training values on either side that its range leaves out


@dataclass(frozen=True)
class SeriesCode:
    """A code, with the range of every channel; `fitted` finds it."""

    name: str
    neurons: int = 8  # "population": per channel
    threshold: float = 0.1  # "delta": as a share of the channel's range
    substeps: int = 1
    delays: tuple[int, ...] = (0,)
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def fitted(self, values: np.ndarray) -> SeriesCode:
        """This code with the ranges of values (n, D), one row per time step of any recording."""
        low, high = np.quantile(values.astype(np.float64), [TAILS, 1 - TAILS], axis=0)
        high = np.where(high > low, high, low + 1)
        settings = {**vars(self), "low": tuple(low.tolist()), "high": tuple(high.tolist())}
        return SeriesCode(**settings)

    @property
    def inputs(self) -> int:
        """Of the network."""
        per_channel = {"delta": 2, "population": self.neurons}.get(self.name, 1)
        return len(self.low) * per_channel * len(self.delays)

    def encode(self, values: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
        """Values (N, T, D) as spikes, uint8 (N, T substeps, inputs before the delays).

        Where `counts` (N, T) is False, beyond the end of a recording, there are none.
        """
        if self.name == "spikes":
            spikes = self._repeated(values != 0)
        elif self.name == "delta":
            spikes = self._repeated(self._moves(self._scaled(values)), once=True)
        elif self.name == "rate":
            spikes = self._drawn(values, seed)
        elif self.name == "population":
            spikes = self._repeated(self._places(self._scaled(values)))
        else:
            spikes = self._timed(self._scaled(values))
        return (spikes & counts.repeat(self.substeps, 1)[..., None]).astype(np.uint8)

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        """Values in units of their channels' ranges, float64 within [0, 1]."""
        low, high = np.array(self.low), np.array(self.high)
        return ((values - low) / (high - low)).clip(0, 1)

    def _repeated(self, spikes: np.ndarray, once: bool = False) -> np.ndarray:
        """Spikes (N, T, M) in all of a value's time steps, or `once`, in the first of them."""
        repeated = spikes.repeat(self.substeps, 1)
        if once:
            repeated &= (np.arange(repeated.shape[1]) % self.substeps == 0)[:, None]
        return repeated

    def _moves(self, z: np.ndarray) -> np.ndarray:
        """Send-on-delta: bool (N, T, 2 D), first all ups, then all downs.

        At most one spike per time step and channel; a larger move takes several of them.
        """
        said, moves = z[:, 0].copy(), []
        for now in z.swapaxes(0, 1):
            up, down = now - said >= self.threshold, said - now >= self.threshold
            said += self.threshold * (up.astype(np.float64) - down)
            moves.append(np.concatenate([up, down], 1))
        return np.stack(moves, 1)

    def _drawn(self, values: np.ndarray, seed: int) -> np.ndarray:
        """Bernoulli spikes: bool (N, T substeps, D)."""
        N, T, D = values.shape
        place = np.broadcast_to(np.arange(T)[:, None], (N, T, 1))
        keys = np.concatenate([values, place], 2).reshape(N * T, D + 1)
        rates = self._scaled(values).reshape(N * T, D)
        drawn = philox.point_spikes(keys, rates, self.substeps, seed, Purpose.ENCODING)
        return drawn.reshape(self.substeps, N, T, D).transpose(1, 2, 0, 3).reshape(N, -1, D) > 0

    def _places(self, z: np.ndarray) -> np.ndarray:
        """The nearest centre of every value: bool (N, T, D neurons)."""
        nearest = np.floor(z * (self.neurons - 1) + 0.5).astype(np.int64)
        return (nearest[..., None] == np.arange(self.neurons)).reshape(*z.shape[:2], -1)

    def _timed(self, z: np.ndarray) -> np.ndarray:
        """One spike per value, the earlier the larger it is: bool (N, T substeps, D)."""
        at = np.minimum(((1 - z) * self.substeps).astype(np.int64), self.substeps - 1)
        spikes = at[:, :, None, :] == np.arange(self.substeps)[:, None]
        return spikes.reshape(len(z), -1, z.shape[2])
