"""The labels that count, of recordings or of every time step, and the score of a realisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bisnn.data.loading import Clips, Ragged
from bisnn.runs.config import Config


def labels_that_count(config: Config, x: Tensor | Clips, y: Tensor) -> Tensor:
    """The labels or targets y of x, one row each: of all of them, or where every time step has its
    own of those that count, recording by recording.
    """
    if not config.data.each_step():
        return y
    assert isinstance(x, Clips)
    return y[:, config.burn_in :][steps_that_count(config, x)]


def steps_that_count(config: Config, x: Clips) -> Tensor:
    """Whether a time step after the burn-in has a label, (B, T - burn_in)."""
    mask = x.mask()
    assert mask is not None
    return mask[config.burn_in :].T


def recordings_of_labels(config: Config, x: Tensor | Clips) -> Tensor | None:
    """The recording of each of `labels_that_count`; None where each recording has one."""
    if not config.data.each_step():
        return None
    assert isinstance(x, Clips)
    return steps_that_count(config, x).nonzero()[:, 0]


def by_time(config: Config, y: Tensor) -> Tensor:
    """Labels or targets as the loss takes them: those of time steps as (T, B, ...)."""
    return y.transpose(0, 1).contiguous() if config.data.each_step() else y


def is_ragged(x: Tensor | Clips) -> bool:
    """Whether not every time step of these counts."""
    return isinstance(x, Clips) and isinstance(x.recordings, Ragged)


def mask_of(x: Tensor | Clips, device: torch.device) -> Sequence[Tensor]:
    """Which time steps of ragged recordings count, (T, B), if that is what they are."""
    mask = x.mask(device) if isinstance(x, Clips) else None
    return () if mask is None else (mask,)


def score(config: Config, y: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """Share of right classes, or squared error, of readouts y (T, B, C) in training."""
    burn_in, classify = config.train.burn_in, config.task == "classification"
    y = y[burn_in:]
    if mask is None:
        if classify:
            return (y.softmax(-1).mean(0).argmax(-1) == target).to(y.dtype).mean()
        return (y.mean(0) - target.to(y.dtype)).square().mean()
    counts = mask[burn_in:, :, None].to(y.dtype)
    if config.data.each_step():
        target = target[burn_in:]
        right = y.argmax(-1) == target if classify else (y - target).square()[..., 0]
        return (right * counts[..., 0]).sum() / counts.sum().clamp(min=1)
    said = ((y.softmax(-1) if classify else y) * counts).sum(0) / counts.sum(0)
    right = said.argmax(-1) == target if classify else (said - target).square()
    return right.to(y.dtype).mean()
