"""Recordings as a worse camera would have seen them: whole test sets by kind and strength, and
training recordings, changed anew each epoch.

Changes of events are those of `corruption`. A simulated recording can also be made again by another
camera: `CAMERAS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bisnn.bits.philox import Purpose
from bisnn.data.archives import ChangedRecordings, Source
from bisnn.data.camera import MNIST_DVS, Camera, binned
from bisnn.data.corruption import CORRUPTIONS, changed, corrupt, keyed_draws
from bisnn.data.loading import Batches, Clips
from bisnn.data.simulation import SimulatedEvents


class CameraKind(NamedTuple):
    """A kind of worse camera: as it is instead, and how much each strength changes."""

    change: Callable[[Camera, float], Camera]
    amounts: tuple[float, float, float, float, float]
    unit: str  # of the amounts


def _higher_threshold(camera: Camera, factor: float) -> Camera:
    on, off = factor * camera.threshold_on, factor * camera.threshold_off
    return replace(camera, threshold_on=on, threshold_off=off)


def _lower_light(camera: Camera, share: float) -> Camera:
    """A share f of the light, in front of the same dark current.

    log(f I + dark) = log f + log(I + dark / f), of which the first part never changes: the camera
    has a dark current of dark / f, and is slower, as its pixels are where they see less light. That
    its pixels have more shot noise then is left out: they have little.
    """
    slower = ((share + camera.dark) / (1 + camera.dark)) ** camera.slowing
    return replace(camera, dark=camera.dark / share, cutoff_hz=camera.cutoff_hz * slower)


CAMERAS: dict[str, CameraKind] = {
    "higher_threshold": CameraKind(_higher_threshold, (1.2, 1.4, 1.7, 2, 2.5), "times the usual"),
    "lower_light": CameraKind(_lower_light, (0.7, 0.5, 0.3, 0.2, 0.1), "of the light"),
}


def amounts_of(source: Source) -> Mapping[str, tuple[tuple[float, ...], str]]:
    """Amounts, from strength 1 on, and their unit, of each kind of corruption that recordings from
    this source can have.
    """
    events = {name: (kind.amounts, kind.unit) for name, kind in CORRUPTIONS.items()}
    cameras = {name: (kind.amounts, kind.unit) for name, kind in CAMERAS.items()}
    return events | (cameras if isinstance(source.read, SimulatedEvents) else {})


class OtherCamera:
    """The pictures of simulated recordings in front of another camera; nothing is kept."""

    def __init__(self, source: Source, camera: Camera):
        assert isinstance(source.read, SimulatedEvents)
        self.window, self.simulated, self.camera = source.window, source.read, camera
        self.pictures = cache(self.simulated.pictures)

    def batch(self, index: Tensor | Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, uint8 (T, B, C, H, W)."""
        assert self.window.bin_us is not None
        chosen = [int(i) for i in index]
        return binned(
            self.pictures()[chosen].to(device),
            self.camera,
            self.simulated.motion,
            bin_us=self.window.bin_us,
            seed=self.simulated.seed,
            samples=[self.simulated.samples[i] for i in chosen],
            window=self.window.crop,
        )


def corrupted(source: Source, kind: str, strength: int, seed: int) -> Batches:
    """All recordings of a source under one corruption; the seed is that of changes of events."""
    if kind in CAMERAS:
        change, amounts, _ = CAMERAS[kind]
        return OtherCamera(source, change(MNIST_DVS, amounts[strength - 1]))
    return ChangedRecordings(source, partial(corrupt, kind=kind, strength=strength, seed=seed))


def corrupted_anew(
    clips: Clips,
    kinds: Sequence[str],
    strengths: Sequence[int],
    seed: int,
    epoch: int,
    samples: Tensor,
) -> Tensor:
    """Training recordings, each under one of these kinds of corruption, uint8 (T, B, C, H, W).

    Kind and strength, from the lowest to the highest, are drawn evenly, and all draws are keyed by
    seed, epoch and sample.
    """
    source = getattr(clips.recordings, "source", None)
    if source is None:
        raise ValueError(
            "augment.corruptions: change recordings of events, read from files or simulated; got "
            f"{list(kinds)} for spikes without their events; leave it out"
        )
    low, high = strengths
    frames = []
    for i, sample in zip(clips.index.tolist(), samples.tolist(), strict=True):
        about = f"{epoch} {sample}".encode()
        u, v = keyed_draws("any", about, seed, Purpose.TRAINING_CORRUPTION)("choice", 1, 2)[0]
        kind, strength = kinds[int(u * len(kinds))], low + int(v * (high + 1 - low))
        draws = keyed_draws(kind, about, seed, Purpose.TRAINING_CORRUPTION)
        frames.append(source.window.frames(changed(source.read(i), kind, strength, draws)))
    return torch.from_numpy(np.stack(frames, 1))
