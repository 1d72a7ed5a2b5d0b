"""A simulated event camera: an image moves in front of an array of pixels, each of which reports
changes of its log intensity.

A pixel's light I is in units of white. The photoreceptor follows its logarithm as a low-pass that
is slower where it is dark; the comparator holds v, the change of L since the pixel's last event,
and leaks:

    dL/dt = 2 pi f (log(I + dark) - L)        f = cutoff_hz (exp(L) / (1 + dark))^slowing
    dv/dt = dL/dt + leak_hz theta_on          ON event when v >= theta_on, OFF when v <= -theta_off;
    then v = 0 for refractory_us

L is known at the frames and taken as linear in between, so the times of events are solved for, not
sampled; a pixel may fire more than once between two frames. theta_on and theta_off are Gaussian
over the pixels, fixed by the sensor's number. Shot noise fires pixels at random, more in the dark.
With a leak, pixels start anywhere in its cycle: the camera ran before the recording.

Draws are keyed by (seed, sample): a recording is the same whatever batch it is made in, and a
window of the sensor sees what the whole sensor would see there. Loops run over frames, never over
events.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bisnn.bits.philox import Purpose, keyed_generator
from bisnn.checks import flag, number, positive_int, tensor
from bisnn.data.events import EVENTS
from bisnn.data.motion import Area, Motion, moving

__all__ = [
    "MNIST_DVS",
    "MNIST_DVS_MOTION",
    "N_MNIST_MOTION",
    "Camera",
    "Motion",
    "binned",
    "record",
    "watch",
]

# Pixel, as an index into (B, height, width); time in us; whether ON
Events = tuple[Tensor, Tensor, Tensor]
# Pixels simulated at a time: to stay in the cache, or to keep a GPU busy
_CHUNK_PIXELS = 2**17
_GPU_CHUNK_PIXELS = 2**23
# Relative to the nominal one: the tail of the mismatch must not make a pixel fire without end
_LEAST_THRESHOLD = 0.1
_BRIGHT_SHOT = 0.25  # rate of shot noise at white, relative to that in the dark


@dataclass(frozen=True)
class Camera:
    """Pixels and their faults; thresholds in units of log intensity, light relative to white."""

    width: int = 128  #: pixels of a row
    height: int = 128  #: rows
    threshold_on: float = 0.2  #: rise of the log intensity that makes an ON event
    threshold_off: float = 0.2  #: fall that makes an OFF event
    #: standard deviation of the thresholds over the pixels, relative to them
    mismatch: float = 0.03
    dark: float = 0.01  #: light of a black pixel: the display's black, and the dark current
    cutoff_hz: float = 0.0  #: of the photoreceptor's low-pass, at white; 0: none
    #: where a pixel sees less light, its cutoff is ``cutoff_hz * light ** slowing``
    slowing: float = 0.0
    refractory_us: int = 0  #: after an event, for so long, a pixel has no other
    leak_hz: float = 0.0  #: ON events of a pixel that sees nothing
    shot_hz: float = 0.0  #: noise events of a pixel in the dark, ON and OFF together
    frame_us: int = 1000  #: from one computed frame to the next
    blur_px: float = 0.0  #: standard deviation of the lens's blur, in pixels of the sensor
    on: bool = True  #: the polarity p of an ON event; jAER's files write ON as 0
    sensor: int = 0  #: the number of the sensor: another one has other thresholds

    def __post_init__(self) -> None:
        for name in ("width", "height", "frame_us"):
            positive_int(name, getattr(self, name))
        for name in ("threshold_on", "threshold_off", "dark"):
            number(name, getattr(self, name), above=0)
        rates = ("cutoff_hz", "leak_hz", "shot_hz")
        for name in ("mismatch", "slowing", "refractory_us", "blur_px", "sensor", *rates):
            number(name, getattr(self, name), least=0)
        if self.mismatch > 0.5:
            raise ValueError(
                f"mismatch: must be at most 0.5 of the threshold; got {self.mismatch:g}; "
                "sensors have 0.01 to 0.2"
            )
        flag("on", self.on)

    def thresholds(self) -> np.ndarray:
        """theta_on and theta_off of each pixel, (2, height, width) float32."""
        rng = keyed_generator(self.sensor, Purpose.CAMERA_SENSOR)
        draws = rng.standard_normal((2, self.height, self.width))
        scale = np.maximum(1 + self.mismatch * draws, _LEAST_THRESHOLD)
        nominal = np.array([self.threshold_on, self.threshold_off])[:, None, None]
        return (scale * nominal).astype(np.float32)


def record(
    images: Tensor,
    camera: Camera,
    motion: Motion,
    *,
    seed: int,
    samples: Sequence[int] | None = None,
    window: Area | None = None,
) -> list[np.ndarray]:
    """Recordings of moving images: for each an array of `EVENTS`, sorted in time, t from 0 in us.

    Args:
        images: (B, h, w) with light in [0, 1].
        camera: that looks at them.
        motion: how they move in front of it.
        seed: of the camera's noise.
        samples: the images' numbers, whose draws they get; 0 to B - 1 by default.
        window: left, top, width, height: only these pixels, with coordinates from the window's
            corner. Default: the whole sensor.

    Images are simulated on their device, some at a time.
    """
    window = _checked_window(window, camera)
    samples = _checked_images(images, seed, samples)
    recordings: list[np.ndarray] = []
    for part, found in _parts(images, camera, motion, seed, samples, window):
        recordings += _event_arrays(found, part.stop - part.start, camera, window)
    return recordings


def binned(
    images: Tensor,
    camera: Camera,
    motion: Motion,
    *,
    bin_us: int,
    seed: int,
    samples: Sequence[int] | None = None,
    window: Area | None = None,
) -> Tensor:
    """The events of `record` as binary frames, uint8 (T, B, 2, height, width), made on the images'
    device without lists of events.

    T = ceil(duration_us / bin_us). Channel p is polarity p; a pixel is 1 in a bin with one event or
    more.

    Args:
        bin_us: length of a bin.
        images, camera, motion, seed, samples, window: as for `record`.
    """
    window = _checked_window(window, camera)
    T, (width, height) = -(-motion.duration_us // positive_int("bin_us", bin_us)), window[2:]
    samples = _checked_images(images, seed, samples)
    frames = torch.zeros(T, len(images), 2, height, width, dtype=torch.uint8, device=images.device)
    for part, found in _parts(images, camera, motion, seed, samples, window):
        for pixel, t_us, on in found:
            step = t_us // bin_us
            sample = pixel // (width * height) + part.start
            channel = (on == camera.on).long()
            frames.view(-1)[
                ((step * len(images) + sample) * 2 + channel) * (width * height)
                + pixel % (width * height)
            ] = 1
    return frames


def watch(
    video: Tensor, camera: Camera, *, seed: int, samples: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Recordings of videos, as `record` makes them.

    Args:
        video: light in [0, 1], (F, B, height, width); frame i is at `i * frame_us`.
        camera, seed, samples: as for `record`.

    >>> brightening = torch.tensor([0.1, 0.5])[:, None, None, None]
    >>> camera = Camera(1, 1, threshold_on=0.5, mismatch=0, dark=1e-9)
    >>> watch(brightening, camera, seed=0)[0]["t"].tolist()
    [310, 621, 932]
    """
    tensor("video", video)
    if video.ndim != 4 or tuple(video.shape[2:]) != (camera.height, camera.width) or len(video) < 2:
        raise ValueError(
            f"video: must be two or more frames (F, B, {camera.height}, {camera.width}); "
            f"got {tuple(video.shape)}; set the "
            f"camera's width and height to the video's"
        )
    samples = _checked_samples("video", video, video.shape[1], seed, samples)
    window = _checked_window(None, camera)
    draws = _Draws(camera, seed, samples, window, (len(video) - 1) * camera.frame_us)
    return _event_arrays(
        _simulate(iter(video), camera, draws, window), len(samples), camera, window
    )


def _parts(
    images: Tensor,
    camera: Camera,
    motion: Motion,
    seed: int,
    samples: Sequence[int],
    window: Area,
) -> Iterator[tuple[slice, Iterator[Events]]]:
    """Some images at a time, so that memory stays bounded, and their events."""
    size = max(
        1,
        (_CHUNK_PIXELS if images.device.type == "cpu" else _GPU_CHUNK_PIXELS)
        // (window[2] * window[3]),
    )
    for start in range(0, len(images), size):
        part = slice(start, min(start + size, len(images)))
        draws = _Draws(camera, seed, samples[part], window, motion.duration_us)
        yield (
            part,
            _simulate(
                moving(images[part], camera, motion, draws.start, window), camera, draws, window
            ),
        )


class _Draws:
    """All that is random in some recordings, keyed by (seed, sample), cut to the window."""

    def __init__(
        self, camera: Camera, seed: int, samples: Sequence[int], window: Area, duration_us: int
    ) -> None:
        self.duration_us, self.frame_us = duration_us, camera.frame_us
        left, top, width, height = window
        start, leaked, shots = [], [], []
        for i, sample in enumerate(samples):
            rng = keyed_generator(seed, Purpose.CAMERA_RECORDING, sample)
            start.append(rng.standard_normal())
            leaked.append(
                rng.random((camera.height, camera.width), dtype=np.float32)[
                    top : top + height, left : left + width
                ]
            )
            n = rng.poisson(camera.shot_hz * duration_us * 1e-6 * camera.height * camera.width)
            t_us, y, x, on, luck = (
                rng.integers(0, high, n)
                for high in (duration_us, camera.height, camera.width, 2, 2**24)
            )
            x, y = x - left, y - top
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            shots.append(np.stack([t_us, (i * height + y) * width + x, on, luck])[:, inside])
        self.start = np.array(start)  # (B,), in standard deviations
        # (B, height, width), how much of a threshold has leaked away
        self.leaked = torch.from_numpy(np.stack(leaked))
        self.shots = np.concatenate(shots, axis=1)  # (4, N)

    def shots_by_frame(self, device: torch.device) -> list[list[Tensor] | None]:
        """Shot noise by frame: pixel, time within the frame, whether ON, a draw from [0, 1)."""
        frame, pixel = self.shots[0] // self.frame_us, self.shots[1]
        # In order; one for a pixel and frame is enough
        once = np.unique(frame * 2**40 + pixel, return_index=True)[1]
        t_us, pixel, on, luck = self.shots[:, once]
        columns = (
            pixel,
            (t_us % self.frame_us).astype(np.float32),
            on == 1,
            (luck / 2**24).astype(np.float32),
        )
        tensors = [torch.from_numpy(column).to(device) for column in columns]
        bounds = np.searchsorted(frame[once], np.arange(-(-self.duration_us // self.frame_us) + 1))
        return [
            [column[a:b] for column in tensors] if b > a else None
            for a, b in itertools.pairwise(bounds)
        ]


def _simulate(
    video: Iterator[Tensor], camera: Camera, draws: _Draws, window: Area
) -> Iterator[Events]:
    """Solve the equations at the top for frames (B, height, width) of light, from time 0."""
    left, top, width, height = window
    light = next(video)
    thresholds = torch.from_numpy(
        camera.thresholds()[:, top : top + height, left : left + width]
    ).to(light.device)
    up, down = thresholds[0].contiguous(), -thresholds[1]  # (height, width)
    dt, leak = float(camera.frame_us), camera.leak_hz * 1e-6 * up
    target = torch.log(light.float() + camera.dark)
    # free: when the refractory time ends, in us from the frame's start
    L = target.clone()
    free = torch.zeros_like(target)
    v = draws.leaked.to(light.device) * up if camera.leak_hz else torch.zeros_like(target)
    for frame, shots in enumerate(draws.shots_by_frame(light.device)):
        light, before = next(video), light
        if light is not before:  # a display shows the same for some frames
            target = torch.log(light.float() + camera.dark)
        change = (target - L) * _follow(L, camera)
        L += change
        slope = torch.add(leak, change, alpha=1 / dt)
        events, v = _crossings(v, free, slope, up, down, dt, camera.refractory_us)
        if shots is not None:
            events.append(_fire_shots(shots, light, v, free, slope, dt, camera.refractory_us))
        free = (free - dt).clamp_(min=0)
        for pixel, after_us, on in events:
            t_us = after_us.long() + frame * camera.frame_us
            keep = t_us < draws.duration_us  # the last frame may end after the recording
            yield pixel[keep], t_us[keep], on[keep]


def _follow(L: Tensor, camera: Camera) -> Tensor | float:
    """What share of the way to the light's logarithm L goes within a frame."""
    if not camera.cutoff_hz:
        return 1.0
    steps = 2e-6 * math.pi * camera.cutoff_hz * camera.frame_us
    if not camera.slowing:
        return -math.expm1(-steps)
    return ((L - math.log1p(camera.dark)) * camera.slowing).exp_().mul_(-steps).expm1_().neg_()


def _crossings(
    v: Tensor,
    free: Tensor,
    slope: Tensor,
    up: Tensor,
    down: Tensor,
    dt: float,
    refractory_us: float,
) -> tuple[list[Events], Tensor]:
    """Events of one frame, each pixel's first, second, ..., and v at its end; changes free."""
    end = torch.addcmul(v, slope, (dt - free).clamp_(min=0))
    pixel = ((end >= up) | (end <= down)).view(-1).nonzero()[:, 0]
    place = pixel % up.numel()
    high, low = up.view(-1)[place], down.view(-1)[place]
    level, start, rate, reached = (x.view(-1)[pixel] for x in (v, free, slope, end))
    events = []
    while len(pixel):
        on = reached > 0
        after_us = start + (torch.where(on, high, low) - level) / rate
        events.append((pixel, after_us, on))
        level, start = torch.zeros_like(level), after_us + refractory_us
        reached = rate * (dt - start).clamp_(min=0)
        end.view(-1)[pixel], free.view(-1)[pixel] = reached, start
        again = (reached >= high) | (reached <= low)
        pixel, high, low, level, start, rate, reached = (
            x[again] for x in (pixel, high, low, level, start, rate, reached)
        )
    return events, end


def _fire_shots(
    shots: list[Tensor],
    light: Tensor,
    v: Tensor,
    free: Tensor,
    slope: Tensor,
    dt: float,
    refractory_us: float,
) -> Events:
    """Fire one frame's shot noise, at pixels past their refractory time; reset v and free."""
    pixel, after_us, on, luck = shots
    fires = (free.view(-1)[pixel] <= after_us) & (
        luck < 1 - (1 - _BRIGHT_SHOT) * light.reshape(-1)[pixel]
    )
    pixel, after_us, on = pixel[fires], after_us[fires], on[fires]
    start = after_us + refractory_us
    v.view(-1)[pixel] = slope.view(-1)[pixel] * (dt - start).clamp_(min=0)
    free.view(-1)[pixel] = start
    return pixel, after_us, on


def _event_arrays(
    found: Iterator[Events], B: int, camera: Camera, window: Area
) -> list[np.ndarray]:
    """Events of B recordings, by recording and in time."""
    parts = list(found)
    if not parts:
        return [np.empty(0, EVENTS) for _ in range(B)]
    pixel, t_us, on = (torch.cat([part[i] for part in parts]) for i in range(3))
    width, pixels = window[2], window[2] * window[3]
    order = ((pixel // pixels << 44) + t_us).sort(stable=True).indices
    place = pixel[order].cpu().numpy()
    events = np.empty(len(place), EVENTS)
    events["x"] = place % width
    events["y"] = place % pixels // width
    events["t"] = t_us[order].cpu().numpy()
    events["p"] = (on[order] == camera.on).cpu().numpy()
    return np.split(events, np.searchsorted(place // pixels, np.arange(1, B)))


def _checked_images(images: Tensor, seed: int, samples: Sequence[int] | None) -> list[int]:
    tensor("images", images)
    if images.ndim != 3 or images.numel() == 0:
        raise ValueError(
            f"images: must be a non-empty batch (B, h, w); got {tuple(images.shape)}; "
            "use images[None] for one"
        )
    return _checked_samples("images", images, len(images), seed, samples)


def _checked_samples(
    name: str, light: Tensor, B: int, seed: int, samples: Sequence[int] | None
) -> list[int]:
    """The samples' numbers, after checks of the light and of all that keys the draws."""
    if not light.is_floating_point() or not bool(((light >= 0) & (light <= 1)).all()):
        got = f"{float(light.min()):g}..{float(light.max()):g}"
        if bool(light.isnan().any()):
            got = "NaN"
        raise ValueError(
            f"{name}: must be light in [0, 1], floating-point; got {light.dtype}, {got}; "
            "divide grey levels by 255"
        )
    numbers = list(range(B)) if samples is None else [int(sample) for sample in samples]
    if len(numbers) != B or min(numbers) < 0:
        raise ValueError(
            f"samples: must be one number >= 0 for each of {B} {name}; got {len(numbers)}; "
            "leave it out for 0, 1, ..."
        )
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed: must be a whole number >= 0; got {seed!r}; give e.g. 0")
    return numbers


def _checked_window(window: Area | None, camera: Camera) -> Area:
    if window is None:
        return 0, 0, camera.width, camera.height
    left, top, width, height = window
    inside = left + width <= camera.width and top + height <= camera.height
    if min(left, top) < 0 or min(width, height) < 1 or not inside:
        raise ValueError(
            f"window: must be left, top, width, height inside {camera.width}x{camera.height}; "
            f"got {window!r}; try (48, 48, 26, 26)"
        )
    return left, top, width, height


# MNIST-DVS at scale 4: digits on a display in front of a DVS128. Path and refresh were measured in
# recordings of the digit 0, the rest was fitted to statistics of a quarter of them: effective
# values, not data of the device (bisnn_experiments/camera.py judges them). Contrast and level say
# that the displayed digits have sharper edges than MNIST's images. jAER's files write ON as 0.
MNIST_DVS = Camera(
    threshold_on=0.68, threshold_off=0.664, mismatch=0.27, dark=0.027, cutoff_hz=120, slowing=0.22,
    refractory_us=450, leak_hz=0.016, shot_hz=0.006, frame_us=2224, blur_px=0.055, on=False,
)  # fmt: skip
MNIST_DVS_MOTION = Motion(  # there and back along the two arms of a V
    corners=((70.8, 64.58), (64.98, 59.95), (59.36, 64.74), (64.98, 59.95)),
    legs_us=(311_900,) * 4, duration_us=2_260_000, start_us=957_000, jitter_us=17_000,
    refresh_us=13_344, response_us=8500, scale=(1.21, 1.025), contrast=12, level=0.17,
)  # fmt: skip
# A path like that of N-MNIST, for a sensor of 34 x 34 pixels: three saccades round a triangle. Not
# judged against recordings.
N_MNIST_MOTION = Motion(
    ((14.5, 14.5), (17.5, 20.0), (20.5, 14.5)),
    legs_us=(100_000,) * 3,
    duration_us=300_000,
    scale=(0.9, 0.9),
)
