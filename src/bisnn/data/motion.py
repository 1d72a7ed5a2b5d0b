"""An image that moves in front of the simulated camera: its path, the display and the lens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bisnn.checks import number, positive_int

if TYPE_CHECKING:
    from bisnn.data.camera import Camera

Area = tuple[int, int, int, int]  # left, top, width, height on the sensor, in pixels
_FINE = 4  # images are enlarged so many times before they are moved


@dataclass(frozen=True)
class Motion:
    """How an image moves over the sensor: round and round a closed polygon, at constant speed along
    each leg, for `duration_us`.

    The image's centre is at corner i when leg i starts, and legs are as long in time as `legs_us`
    says.
    """

    corners: tuple[tuple[float, float], ...]  #: (x, y) on the sensor, in pixels, y downwards
    legs_us: tuple[int, ...]  #: how long each leg takes
    duration_us: int  #: of the recording
    start_us: float = 0.0  #: where on its way the image is when the recording starts
    jitter_us: float = 0.0  #: standard deviation of the start over the recordings
    #: the display shows a new position so often; 0: the image itself moves, smoothly
    refresh_us: int = 0
    response_us: float = 0.0  #: time constant with which the display's light follows
    scale: tuple[float, float] = (1.0, 1.0)  #: sensor pixels for an image pixel, along x and y
    contrast: float = 1.0  #: of the display: light = clip(1/2 + contrast (grey - level), 0, 1)
    level: float = 0.5  #: the grey that the display shows as half of its light

    def __post_init__(self) -> None:
        if not self.corners or any(len(corner) != 2 for corner in self.corners):
            raise ValueError(
                f"corners: must be pairs (x, y), at least one; got {self.corners!r}; "
                "give e.g. ((60, 64), (68, 64))"
            )
        if len(self.legs_us) != len(self.corners):
            raise ValueError(
                f"legs_us: must be one for each of {len(self.corners)} corners; "
                f"got {len(self.legs_us)}; the last leg closes"
            )
        for i, corner in enumerate(self.corners):
            positive_int(f"legs_us[{i}]", self.legs_us[i])
            for value in corner:
                number(f"corners[{i}]", value)
        positive_int("duration_us", self.duration_us)
        for name in ("start_us", "jitter_us", "refresh_us", "response_us"):
            number(name, getattr(self, name), least=0)
        number("contrast", self.contrast, above=0)
        number("level", self.level)
        if len(self.scale) != 2 or min(number("scale", s) for s in self.scale) <= 0:
            raise ValueError(
                f"scale: must be two numbers > 0, along x and y; got {self.scale!r}; "
                "give e.g. (1.2, 1.2)"
            )

    def at(self, t_us: np.ndarray) -> np.ndarray:
        """The image's centre (x, y) at the times `t_us`, (..., 2)."""
        knots = np.concatenate([[0], np.cumsum(self.legs_us)])
        closed = np.array([*self.corners, self.corners[0]], dtype=np.float64)
        phase = (t_us + self.start_us) % knots[-1]
        return np.stack([np.interp(phase, knots, closed[:, axis]) for axis in (0, 1)], axis=-1)


def moving(
    images: Tensor, camera: Camera, motion: Motion, start: np.ndarray, window: Area
) -> Iterator[Tensor]:
    """Frames (B, height, width) of moving images (B, h, w), from time 0; black around them.

    `start` (B,) is where each starts on its way, in standard deviations of the jitter.
    """
    images = _displayed(images, camera, motion)
    # Sensor pixels for a pixel of the enlarged image
    fine = (motion.scale[0] / _FINE, motion.scale[1] / _FINE)
    t_us = np.arange(-(-motion.duration_us // camera.frame_us) + 1) * camera.frame_us
    if motion.refresh_us:
        t_us = t_us // motion.refresh_us * motion.refresh_us
    centres_xy = motion.at(t_us[:, None] + motion.jitter_us * start).astype(np.float32)
    centres = torch.from_numpy(centres_xy).to(images.device)
    left, top, width, height = window
    x, y = (torch.arange(n, device=images.device, dtype=torch.float32) for n in (width, height))
    share = -math.expm1(-camera.frame_us / motion.response_us) if motion.response_us else 1.0
    shown = light = images  # replaced at the first frame
    for frame in range(len(t_us)):
        if frame == 0 or t_us[frame] != t_us[frame - 1]:
            # grid_sample counts from -1 at the first pixel's centre to 1 at the last one's; along
            # x: u (B, width), along y: w (B, height)
            u = (x + left - centres[frame, :, 0, None]) * (2 / (fine[0] * (images.shape[2] - 1)))
            w = (y + top - centres[frame, :, 1, None]) * (2 / (fine[1] * (images.shape[1] - 1)))
            grid = torch.stack(
                [u[:, None].expand(-1, height, -1), w[:, :, None].expand(-1, -1, width)], dim=-1
            )
            shown = F.grid_sample(
                images[:, None], grid, mode="bilinear", padding_mode="zeros", align_corners=True
            )[:, 0]
        light = shown if frame == 0 or share == 1 else torch.lerp(light, shown, share)
        yield light


def _displayed(images: Tensor, camera: Camera, motion: Motion) -> Tensor:
    """Images as displayed and blurred by the lens: enlarged _FINE times, with a margin."""
    shown = F.interpolate(
        F.pad(images.float(), (1, 1, 1, 1))[:, None], scale_factor=_FINE, mode="bilinear"
    )[:, 0]
    shown = (0.5 + motion.contrast * (shown - motion.level)).clamp(0, 1)
    scale = motion.scale[0] / _FINE, motion.scale[1] / _FINE
    for axis, sigma in ((2, camera.blur_px / scale[0]), (1, camera.blur_px / scale[1])):
        reach = math.ceil(3 * sigma)
        margin = 2 * reach + _FINE
        padded = F.pad(shown, (margin, margin) if axis == 2 else (0, 0, margin, margin))
        weights = [
            math.exp(-0.5 * (k / sigma) ** 2) if sigma else 1.0 for k in range(-reach, reach + 1)
        ]
        shifted = [
            padded.narrow(axis, k, padded.shape[axis] - 2 * reach) for k in range(len(weights))
        ]
        # a sum of shifted images: the rounding of a convolution depends on the batch
        shown = torch.zeros_like(shifted[0])
        for weight, image in zip(weights, shifted, strict=True):
            shown += image * (weight / sum(weights))
    return shown
