"""Changes of training recordings, drawn anew each epoch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bisnn.bits.philox import Purpose
from bisnn.kernels import draws
from bisnn.kernels.graphs import to_device


@dataclass(frozen=True)
class Augmentation:
    """How far a recording may be changed; nothing by default."""

    rotate: float = 0.0  # degrees, at most, either way
    zoom: float = 0.0  # larger or smaller by at most this share
    shift: int = 0  # pixels, at most, along each axis
    drop: float = 0.0  # share of the spikes that is left out
    jitter: int = 0  # time steps, at most, that a recording begins earlier or later


def augmented(x: Tensor, how: Augmentation, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Recordings x, uint8 (T, B, C, H, W), each turned, resized, shifted, begun earlier or later,
    and thinned.

    By draws of (seed, epoch, sample). What to look at is worked out on the CPU, so that every
    device sees the same bits.
    """
    if how == Augmentation():
        return x
    # (B, 5): for t, rows, columns, angle, size
    drawn = draws.uniform(samples.cpu(), 5, seed, Purpose.AUGMENTATION, epoch)
    if how.rotate or how.zoom or how.shift:
        x = _moved(x, how, drawn)
    if how.jitter:
        t = torch.arange(len(x))[:, None] - _steps(drawn[:, 0], how.jitter)  # (T, B)
        t = to_device(t, x.device)[..., None, None, None]
        x = x.gather(0, t.clamp(0, len(x) - 1).expand(x.shape)) * ((t >= 0) & (t < len(x)))
    return _thinned(x, how.drop, seed, epoch, to_device(samples, x.device)) if how.drop else x


def _steps(u: Tensor, most: int) -> Tensor:
    """Whole numbers from -most to most, from draws in [0, 1)."""
    return (u * (2 * most + 1)).long() - most


def _moved(x: Tensor, how: Augmentation, drawn: Tensor) -> Tensor:
    """Turned and resized about the middle of the pixels, then shifted: every pixel sees what the
    nearest to its source saw.

    One row of sensors, as SHD's, is not turned, and does not move off itself.
    """
    height, width = x.shape[3:]
    of_a_plane = min(height, width) > 1
    turn = torch.deg2rad(of_a_plane * how.rotate * (2 * drawn[:, 3].double() - 1))
    size = 1 + of_a_plane * how.zoom * (2 * drawn[:, 4].double() - 1)
    cos, sin = ((part / size)[:, None, None] for part in (turn.cos(), turn.sin()))  # (B, 1, 1)
    middle = torch.tensor([height - 1, width - 1]) / 2
    h, w = (
        torch.arange(side) - centre - _steps(u, how.shift if side > 1 else 0)[:, None]  # (B, side)
        for side, centre, u in zip((height, width), middle.double(), drawn[:, 1:3].T, strict=True)
    )
    rows = (cos * h[:, :, None] + sin * w[:, None] + middle[0]).round().long()  # (B, H, W)
    columns = (cos * w[:, None] - sin * h[:, :, None] + middle[1]).round().long()
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    # (B, H W); the last sees nothing
    source = torch.where(inside, rows * width + columns, height * width).flatten(1)
    seen = torch.nn.functional.pad(x.flatten(3), (0, 1))
    return seen.gather(
        3, to_device(source, x.device)[None, :, None].expand(*x.shape[:3], -1)
    ).reshape(x.shape)


def _thinned(x: Tensor, share: float, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Without this share of the spikes. Draws are made for the spikes alone, which are few."""
    t, b, c, h, w = spikes = x.nonzero(as_tuple=True)
    place = ((t * x.shape[2] + c) * x.shape[3] + h) * x.shape[4] + w
    out = torch.zeros_like(x)
    out[spikes] = (
        draws.uniform_at(place, samples[b], seed, Purpose.LOST_SPIKES, epoch) >= share
    ).to(x.dtype)
    return out
