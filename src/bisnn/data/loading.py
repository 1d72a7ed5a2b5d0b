"""Datasets as a run uses them: splits of points or recordings, in the network's units."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data.archives import Recordings
from bisnn.kernels.graphs import to_device
from bisnn.packed import encoding
from bisnn.packed.columns import Schema

TOGETHER = 1000  # points or recordings that are looked at together, at most
VALUES = 1 << 25  # of these


class Batches(Protocol):
    """Recordings of equal length, from which batches are taken."""

    def batch(self, index: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, 0 and 1, (T, B, ...)."""


@runtime_checkable
class Ragged(Protocol):
    """Recordings of which not every time step counts."""

    def mask(self, index: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """True where a time step counts, (T, B)."""


class Clips:
    """Some recordings of a dataset, or loose ones, in some order: a split of recordings."""

    def __init__(self, recordings: Batches, index: Tensor):
        self.recordings, self.index = recordings, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: Tensor | slice) -> Clips:
        return Clips(self.recordings, self.index[chosen])

    def spikes(self, device: torch.device | str = "cpu") -> Tensor:
        """uint8 (T, B, C, H, W)."""
        return self.recordings.batch(self.index, device)

    def mask(self, device: torch.device | str = "cpu") -> Tensor | None:
        """True where a time step counts, (T, B); None where all do."""
        if not isinstance(self.recordings, Ragged):
            return None
        return self.recordings.mask(self.index, device)

    def digest(self) -> bytes:
        """A fingerprint of these recordings; loose ones, which are in no dataset, have none."""
        return self.recordings.digest(self.index)  # type: ignore[attr-defined]


class Split(NamedTuple):
    """Points x (N, d) float32, or recordings, and y: labels (N,) int64 or targets (N, 1); where
    every time step has its own, (N, T) or (N, T, 1)."""

    x: Tensor | Clips
    y: Tensor


@dataclass(frozen=True)
class LoadedData:
    """Points in the units of the encoding, [0, 1], or recordings, and where they come from."""

    train: Split
    validation: Split | None
    test: Split
    classes: tuple[str, ...]  # names; empty for regression
    low: Tensor  # (d,) float64: what `rescaled` maps to 0; empty for recordings
    high: Tensor  # (d,) to 1
    schema: Schema | None = None  # of a table
    # Of the training targets: the network learns (y - mean) / scale
    target_mean: float = 0.0
    target_scale: float = 1.0

    @cached_property
    def trained_on(self) -> Tensor:
        """The fingerprints of the training points."""
        return fingerprints(*self.train, bool(self.classes))

    def digest(self) -> str:
        """A fingerprint of all points: a file that was edited is another dataset."""
        digest = hashlib.blake2b(repr(self.classes).encode(), digest_size=16)
        for part in (*self.train, *(self.validation or ()), *self.test):
            digest.update(part.digest() if isinstance(part, Clips) else _bytes(part))
        return digest.hexdigest()

    def standardised(self, y: Tensor) -> Tensor:
        """What the network is to say for labels or targets y."""
        return y if self.classes else ((y - self.target_mean) / self.target_scale).float()

    @property
    def outputs(self) -> int:
        return len(self.classes) or self.train.y.shape[-1]


def fingerprints(x: Tensor | Clips, y: Tensor | np.ndarray, classes: bool) -> Tensor:
    """Of each point or recording as the network sees it, int64 (N,): the same for the same point.
    Without `classes` its target counts too, as other points may well lie at the same place.
    """
    beside = np.asarray(np.empty((len(x), 0)) if classes else y, np.float32)
    found: list[bytes] = []
    together = 1
    while len(found) < len(x):
        some = x[len(found) : len(found) + together]
        rows = (
            np.packbits(some.spikes().movedim(1, 0).flatten(1).numpy(), axis=1)
            if isinstance(some, Clips)
            else some.numpy()
        )
        for row in rows:
            whole = row.tobytes() + beside[len(found)].tobytes()
            found.append(hashlib.blake2b(whole, digest_size=8).digest())
        together = max(1, min(TOGETHER, VALUES // (8 * rows[0].nbytes)))
    return torch.from_numpy(np.frombuffer(bytearray(b"".join(found)), np.int64))


def _bytes(x: Tensor) -> bytes:
    return f"{x.dtype} {tuple(x.shape)}".encode() + x.numpy().tobytes()


def rescaled(x: np.ndarray, low: Tensor, high: Tensor) -> Tensor:
    """Raw features (N, d) to float32 in [0, 1], by the training rows' range."""
    return torch.from_numpy(encoding.scaled(x, low.numpy(), high.numpy()))


def ranges(x: np.ndarray) -> tuple[Tensor, Tensor]:
    """The lowest and the highest value of each feature (N, d); a constant one stays at 0."""
    low, high = x.min(0), x.max(0)
    return torch.from_numpy(low), torch.from_numpy(np.where(high > low, high, low + 1))


def units(y: np.ndarray, what: str) -> tuple[float, float]:
    """Mean and deviation of training targets; `what` names them in a complaint."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = float(y.mean()), float(y.std()) or 1.0
    if not np.isfinite([mean, scale]).all():
        raise ValueError(
            f"{what}: its targets are too large to have a mean and a deviation; rescale them"
        )
    return mean, scale


def from_splits(
    train: Split, test: Split, classes: Sequence[str], validation: float, seed: int
) -> LoadedData:
    """Points that are in [0, 1] already, or recordings, with a share of the training ones held
    out."""
    features = train.x.shape[1] if isinstance(train.x, Tensor) else 0
    low, high = torch.zeros(features).double(), torch.ones(features).double()
    return LoadedData(*hold_out(train, validation, seed), test, tuple(classes), low, high)


def hold_out(train: Split, share: float, seed: int) -> tuple[Split, Split | None]:
    """The training points that stay, and those that are held out for validation, if any."""
    if not share:
        return train, None
    kept, held_out = (
        Split(train.x[rows], train.y[rows]) for rows in validation_rows(len(train.x), share, seed)
    )
    return kept, held_out


def validation_rows(points: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Which training points stay, and which are held out, at random."""
    held_out = max(1, round(share * points))
    if held_out >= points:
        raise ValueError(
            f"data.validation: leaves no training point of {points}; got {share:g}; lower it"
        )
    order = torch.from_numpy(philox.permutation(points, seed, Purpose.VALIDATION_SPLIT))
    return order[held_out:], order[:held_out]


def from_recordings(
    train: Recordings, test: Recordings, validation: float, seed: int
) -> LoadedData:
    """Datasets of recordings, all of each."""
    first, second = (
        Split(Clips(part, torch.arange(len(part))), part.labels) for part in (train, test)
    )
    return from_splits(first, second, train.names, validation, seed)


def encoded(
    x: Tensor,
    code: Mapping[str, Any],
    seed: int,
    purpose: Purpose,
    draw: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Points x (B, d) as spikes (T, B, N), bool.

    They are keyed by seed, value, purpose and draw, so that any order, batch or subset of the
    points has the same spikes.
    """
    coded = encoding.encode(x.numpy(), dict(code), seed, purpose, draw)
    return to_device(torch.from_numpy(coded.view(bool)), device)
