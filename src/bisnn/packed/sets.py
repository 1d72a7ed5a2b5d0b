"""Prediction sets on packed bits: looks while time goes on, and no more work on what is decided.

The same sets as the calibrated model's, since scores are sums of integers: see `bisnn.conformal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from bisnn.conformal import ConformalSets, PredictionSets, margins_of
from bisnn.packed.network import PackedNetwork

if TYPE_CHECKING:
    from bisnn.packed.engine import Engine, State


@dataclass(frozen=True)
class EarlySets(PredictionSets):
    """Prediction sets, and what they took: a pass is one time step of a recording in a member."""

    passes: int  #: that were run
    all_passes: int  #: of whole recordings in all members

    @classmethod
    def joined(cls, parts: Sequence[EarlySets]) -> EarlySets:
        """All of `parts`, of recordings that were worked on one after the other."""

        def column(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(
            column("sets"),
            column("sizes"),
            column("steps"),
            column("members"),
            column("decided"),
            sum(part.passes for part in parts),
            sum(part.all_passes for part in parts),
        )


def member_blocks(network: PackedNetwork, rule: ConformalSets) -> list[PackedNetwork]:
    """The members that each look adds, as networks of their own; all of them together are the
    members that the last look asks.
    """
    counts = [0, *sorted({k for _, k in rule.path})]
    return [
        replace(
            network,
            layers=tuple(
                replace(layer, weights=layer.weights[first:last]) for layer in network.layers
            ),
        )
        for first, last in pairwise(counts)
    ]


class _Stream:
    """One block of members on its way through recordings (T, B, ...)."""

    def __init__(self, engine: Engine, x: np.ndarray, first_member: int):
        self.engine, self.x, self.first_member = engine, x, first_member
        self.time = 0
        self.state: State = engine.start(x.shape[1])
        assert engine.network.readout is not None
        self.scale = engine.network.readout.scale

    def counts_until(self, t: int, left: np.ndarray) -> np.ndarray:
        """V s, summed over members and the time steps up to t, of the recordings that are left."""
        some = self.x[self.time : t]
        if len(left) < some.shape[1]:
            some = some[:, left]
        result = self.engine.run(some, self.state)
        assert result.logits is not None
        assert result.state is not None
        self.time, self.state = t, result.state
        return np.rint(result.logits / self.scale).sum((0, 1), dtype=np.int64)  # exact integers

    def keep(self, some: np.ndarray) -> None:
        """Go on with some of the recordings that are left."""
        self.state = tuple(traces[:, :, some] for traces in self.state)


def predict_sets(
    blocks: Sequence[Engine], rule: ConformalSets, recordings: Sequence[np.ndarray]
) -> EarlySets:
    """The sets of recordings (T, B, ...), several of them where points are encoded several times.

    Args:
        blocks: an engine for each of `member_blocks`.
        rule: thresholds.
        recordings: at least as long as the last look asks for.
    """
    B = recordings[0].shape[1]
    sizes = [block.network.count for block in blocks]
    firsts = np.cumsum([0, *sizes])
    streams = [
        _Stream(block, x, first)
        for block, first in zip(blocks, firsts, strict=False)
        for x in recordings
    ]
    sums = np.zeros((B, blocks[0].network.outputs), np.int64)
    sets, looks = np.zeros(sums.shape, bool), np.zeros(B, np.int64)
    left, passes = np.arange(B), 0
    for look, (t, k) in enumerate(rule.path):
        for stream in streams:
            if stream.first_member < k and stream.time < t:
                passes += stream.engine.network.count * (t - stream.time) * len(left)
                sums[left] += stream.counts_until(t, left)
        found = rule.at(look, margins_of(sums[left]))
        done = (found.sum(-1) <= rule.most) | (look == len(rule.path) - 1)
        sets[left[done]], looks[left[done]] = found[done], look
        left = left[~done]
        if len(left) == 0:
            break
        if done.any():
            for stream in streams:
                stream.keep(~done)
    answer = rule.stopped(sets, looks)
    everything = B * len(recordings) * sum(sizes) * rule.path[-1][0]
    return EarlySets(**vars(answer), passes=passes, all_passes=everything)
