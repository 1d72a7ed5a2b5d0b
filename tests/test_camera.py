"""The simulated event camera against closed forms, and its promises: keyed draws, windows, bins."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from bisnn.data.camera import (
    MNIST_DVS,
    MNIST_DVS_MOTION,
    N_MNIST_MOTION,
    Camera,
    Motion,
    binned,
    record,
    watch,
)
from bisnn.data.events import EVENTS

IDEAL = Camera(1, 1, mismatch=0, dark=1e-9)
NOISY = Camera(
    37,
    29,
    mismatch=0.1,
    dark=0.02,
    cutoff_hz=40,
    slowing=0.2,
    refractory_us=900,
    leak_hz=1,
    shot_hz=2,
    frame_us=1500,
    blur_px=0.4,
)
ROUND = Motion(
    ((15, 12), (22, 16), (12, 19)),
    (20_000, 25_000, 30_000),
    100_000,
    jitter_us=9000,
    refresh_us=6000,
    response_us=2500,
    scale=(1.2, 1.1),
)


def digits(B: int) -> Tensor:
    """Smooth blobs in the manner of digits."""
    x = torch.rand(B, 14, 14, generator=torch.Generator().manual_seed(3))
    return (torch.nn.functional.avg_pool2d(x[:, None], 5)[:, 0] * 4 - 1.5).clamp(0, 1)


def of_logs(*logs: float) -> Tensor:
    """A video of one pixel with these log intensities."""
    return torch.tensor(logs, dtype=torch.float64).exp()[:, None, None, None]


def intervals(events: np.ndarray) -> np.ndarray:
    """Times between the events of a pixel."""
    order = np.lexsort((events["t"], events["x"], events["y"]))
    e = events[order]
    same = (np.diff(e["x"]) == 0) & (np.diff(e["y"]) == 0)
    return np.diff(e["t"])[same]


@pytest.mark.parametrize("threshold", [0.07, 0.3, 1.0, 2.5])
def test_a_brightening_pixel_fires_at_each_threshold(threshold):
    camera = dataclasses.replace(IDEAL, threshold_on=threshold, frame_us=100_000)
    events = watch(of_logs(-2.2, 0.0), camera, seed=0)[0]
    assert events.dtype == EVENTS
    expected = [100_000 * k * threshold / 2.2 for k in range(1, math.floor(2.2 / threshold) + 1)]
    assert len(events) == len(expected)
    assert np.abs(events["t"] - expected).max(initial=0) <= 2
    assert events["p"].all()


def test_contrast_adds_up_over_frames():
    events = watch(
        of_logs(-3, -2.9, -2.75, -3.0, -3.5),
        dataclasses.replace(IDEAL, threshold_on=0.2, threshold_off=0.3),
        seed=0,
    )[0]
    # ON at -2.8, two thirds into frame 1. OFF at -3.1 and -3.4, at 1/5 and 4/5 of frame 3
    assert events["p"].tolist() == [True, False, False]
    assert np.abs(events["t"] - [1666, 3200, 3800]).max() <= 1


def test_nothing_changes_nothing_fires():
    camera = Camera(8, 8, mismatch=0.3, refractory_us=100, cutoff_hz=50)
    recordings = watch(torch.rand(1, 2, 8, 8).expand(50, -1, -1, -1), camera, seed=0)
    assert [len(events) for events in recordings] == [0, 0]
    resting = Motion(((4, 4),), (1000,), 20_000)
    assert len(record(torch.rand(1, 5, 5), camera, resting, seed=0)[0]) == 0


def test_reversed_contrast_swaps_on_and_off():
    video = (
        torch.rand(20, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        * 0.9
        + 0.1
    )
    camera = Camera(6, 6, mismatch=0, dark=1e-9, refractory_us=150)
    there, back = watch(video, camera, seed=0)[0], watch(0.1 / video, camera, seed=0)[0]
    assert len(there) > 500
    order = [np.lexsort((e["x"], e["y"], e["t"])) for e in (there, back)]
    assert len(there) == len(back)
    assert np.abs(there["t"] - back["t"]).max() <= 1
    assert (np.bincount(there["p"]) == np.bincount(back["p"])[::-1]).all()
    assert (
        there["p"][order[0]] != back["p"][order[1]]
    ).mean() > 0.98  # but for times that rounding exchanged


def test_reversed_time_swaps_on_and_off():
    rising = of_logs(-3, -2.7, -1.2, -0.5)
    camera = dataclasses.replace(IDEAL, threshold_on=0.23, threshold_off=0.23)
    up, down = watch(rising, camera, seed=0)[0], watch(rising.flip(0), camera, seed=0)[0]
    assert len(up) == len(down) == 10
    assert up["p"].all()
    assert not down["p"].any()


def test_refractory_time_holds_a_pixel():
    camera = dataclasses.replace(IDEAL, threshold_on=0.1, refractory_us=170, frame_us=1000)
    events = watch(of_logs(-4, -3, -2, -1, 0), camera, seed=0)[0]
    assert (
        np.abs(events["t"] - (100 + 270 * np.arange(len(events)))).max() <= 1
    )  # 100 us for a threshold, then 170 us of rest
    assert len(events) == 15


def test_no_pixel_fires_within_its_refractory_time():
    camera = Camera(16, 16, mismatch=0.2, refractory_us=700, shot_hz=200, leak_hz=50)
    gaps = np.concatenate([intervals(e) for e in watch(torch.rand(40, 2, 16, 16), camera, seed=1)])
    assert len(gaps) > 2000
    assert gaps.min() >= 700


@pytest.mark.parametrize("slowing", [0.0, 0.4])
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0)])
def test_low_pass_follows_its_equation(slowing, start, end):
    dark, threshold, frames = 0.1, 0.3, 600
    camera = Camera(
        1, 1, threshold, threshold, 0, dark, cutoff_hz=20, slowing=slowing, frame_us=100
    )
    video = torch.tensor([start] + [end] * frames)[:, None, None, None]
    events = watch(video, camera, seed=0)[0]

    def slope(t_us: float, L: np.ndarray) -> np.ndarray:
        return 2e-6 * np.pi * 20 * (np.exp(L) / (1 + dark)) ** slowing * (math.log(end + dark) - L)

    times = np.arange(0, frames * 100, 10)
    L = solve_ivp(slope, (0, frames * 100), [math.log(start + dark)], t_eval=times, rtol=1e-8).y[0]
    levels = np.arange(1, int(abs(L[-1] - L[0]) / threshold) + 1) * threshold
    assert len(events) == len(levels) >= 5
    assert (
        np.abs(events["t"] - np.interp(levels, np.abs(L - L[0]), times)).max()
        <= 0.01 * frames * 100
    )
    assert (events["p"] == (end > start)).all()


def test_mismatch_has_the_stated_deviation():
    camera = Camera(128, 128, threshold_on=0.2, threshold_off=0.4, mismatch=0.15)
    on, off = camera.thresholds()
    for values, nominal in ((on, 0.2), (off, 0.4)):
        assert values.mean() == pytest.approx(nominal, rel=0.005)
        assert values.std() == pytest.approx(0.15 * nominal, rel=0.02)
    assert abs(np.corrcoef(on.ravel(), off.ravel())[0, 1]) < 0.03
    assert (dataclasses.replace(camera, sensor=1).thresholds() != camera.thresholds()).mean() > 0.99


def test_leak_has_the_stated_rate():
    camera = Camera(32, 32, mismatch=0.1, leak_hz=3.3, frame_us=5000)
    events = watch(torch.full((1, 1, 32, 32), 0.4).expand(401, -1, -1, -1), camera, seed=0)[0]
    assert events["p"].all()
    assert len(events) == pytest.approx(3.3 * 2 * 1024, rel=0.02)
    assert intervals(events).mean() == pytest.approx(1e6 / 3.3, rel=0.001)


def test_shot_noise_has_the_stated_rate_and_is_rarer_in_the_light():
    camera = Camera(64, 64, shot_hz=2, frame_us=5000)
    dark, white = torch.zeros(1, 64, 64), torch.ones(1, 64, 64)
    recordings = watch(
        torch.stack([dark, white], 1).expand(401, -1, -1, -1, -1)[:, 0], camera, seed=0
    )
    for events, rate_hz in zip(recordings, (2, 0.5), strict=True):
        n = rate_hz * 2 * 64 * 64
        assert (
            abs(len(events) - n) < 4 * math.sqrt(n) + 0.005 * n
        )  # at most one event a pixel and frame
        assert abs(events["p"].mean() - 0.5) < 2 / math.sqrt(n)
        assert (np.diff(events["t"]) >= 0).all()


def test_path_is_a_closed_polygon():
    motion = Motion(((0, 0), (4, 0), (4, 2)), (1000, 500, 500), 10_000, start_us=250)
    at = motion.at(np.array([0, 750, 1000, 1500, 1750, 2000]))
    assert np.allclose(at, [(1, 0), (4, 0), (4, 1), (2, 1), (0, 0), (1, 0)])


def test_events_follow_the_edge_of_a_moving_image():
    camera = Camera(60, 9, threshold_on=1, threshold_off=1, mismatch=0, dark=0.1, frame_us=100)
    motion = Motion(((12, 4), (48, 4)), (90_000, 10**6), 90_000)
    events = record(torch.ones(1, 9, 9), camera, motion, seed=0)[
        0
    ]  # 36 pixels in 90 ms: 2500 us a pixel
    row = events[(events["y"] == 4) & (events["x"] > 20) & (events["x"] < 48)]
    for p, edge in ((True, 4.5), (False, -4.5)):
        x, t = (row[row["p"] == p][name].astype(float) for name in "xt")
        assert len(np.unique(x)) > 18
        slope, _ = np.polyfit(x, t, 1)
        assert slope == pytest.approx(2500, rel=0.03)
        assert (t / 2500 + 12 + edge - x).mean() == pytest.approx(0, abs=0.5)


def test_a_display_holds_its_image():
    camera = Camera(30, 9, mismatch=0, frame_us=1000)
    motion = Motion(((10, 4), (20, 4)), (50_000, 50_000), 100_000, refresh_us=10_000)
    t = record(torch.ones(1, 5, 5), camera, motion, seed=0)[0]["t"]
    phase = t % 10_000
    assert (
        (phase >= 9000) | (phase == 0)
    ).all()  # within the frame that ends at the refresh; its very end counts
    assert set((t - 1) // 10_000) == set(range(10))


def test_a_display_brightens_with_its_time_constant():
    camera = Camera(21, 9, threshold_on=0.4, mismatch=0, dark=0.1, frame_us=20)
    motion = Motion(((4, 4), (16, 4)), (5000, 5000), 10_000, refresh_us=5000, response_us=900)
    events = record(torch.ones(1, 5, 5), camera, motion, seed=0)[0]
    t = events["t"][(events["x"] == 16) & (events["y"] == 4)]
    expected = [
        4980 - 900 * math.log(1 - 0.1 * (math.exp(0.4 * k) - 1)) for k in range(1, 6)
    ]  # log((I + dark) / dark) = 0.4 k
    assert len(t) == 5
    assert np.abs(t - expected).max() <= 25


def test_a_recording_does_not_depend_on_its_batch():
    images = digits(7)
    together = record(images, NOISY, ROUND, seed=5, samples=range(10, 17))
    assert min(len(events) for events in together) > 500
    for i in (0, 3, 6):
        assert (
            record(images[i : i + 1], NOISY, ROUND, seed=5, samples=[10 + i])[0] == together[i]
        ).all()
    backwards = record(images.flip(0), NOISY, ROUND, seed=5, samples=range(16, 9, -1))
    assert all((a == b).all() for a, b in zip(together, backwards[::-1], strict=True))
    other = record(images[:1], NOISY, ROUND, seed=6, samples=[10])[0]
    assert len(other) != len(together[0]) or (other != together[0]).any()


def test_chunks_do_not_show(monkeypatch):
    images = digits(5)
    whole = record(images, NOISY, ROUND, seed=0), binned(images, NOISY, ROUND, bin_us=5000, seed=0)
    monkeypatch.setattr("bisnn.data.camera._CHUNK_PIXELS", 37 * 29 * 2)
    parts = record(images, NOISY, ROUND, seed=0), binned(images, NOISY, ROUND, bin_us=5000, seed=0)
    assert all((a == b).all() for a, b in zip(whole[0], parts[0], strict=True))
    assert torch.equal(whole[1], parts[1])


def test_a_window_sees_what_the_sensor_sees_there():
    left, top, width, height = window = (9, 5, 17, 13)
    for whole, part in zip(
        record(digits(3), NOISY, ROUND, seed=2),
        record(digits(3), NOISY, ROUND, seed=2, window=window),
        strict=True,
    ):
        x, y = whole["x"] - left, whole["y"] - top
        inside = whole[(x >= 0) & (x < width) & (y >= 0) & (y < height)]
        inside["x"] -= left
        inside["y"] -= top
        assert len(part) > 300
        assert (
            np.sort(inside, order=("t", "y", "x")) == np.sort(part, order=("t", "y", "x"))
        ).all()


def binning(
    recordings: list[np.ndarray], T: int, bin_us: int, height: int, width: int
) -> np.ndarray:
    frames = np.zeros((T, len(recordings), 2, height, width), dtype=np.uint8)
    for i, e in enumerate(recordings):
        frames[e["t"] // bin_us, i, e["p"].astype(int), e["y"], e["x"]] = 1
    return frames


@pytest.mark.parametrize(
    ("bin_us", "on"), [(1000, True), (7777, False), (100_000, True), (200_000, False)]
)
def test_bins_are_those_of_the_events(bin_us, on):
    camera = dataclasses.replace(NOISY, on=on, refractory_us=0)
    frames = binned(digits(4), camera, ROUND, bin_us=bin_us, seed=1)
    recordings = record(digits(4), camera, ROUND, seed=1)
    assert frames.dtype == torch.uint8
    assert frames.sum() > 1000
    assert (frames.numpy() == binning(recordings, -(-100_000 // bin_us), bin_us, 29, 37)).all()
    assert all((np.diff(e["t"]) >= 0).all() and e["t"][-1] < 100_000 for e in recordings)


def test_presets_write_on_as_jaer_does():
    ring = torch.zeros(1, 28, 28)
    ring[0, 6:22, 8:20], ring[0, 9:19, 11:17] = 1, 0
    events = record(
        ring, MNIST_DVS, dataclasses.replace(MNIST_DVS_MOTION, duration_us=300_000), seed=0
    )[0]
    assert 0.4 < events["p"].mean() < 0.6
    assert not watch(
        of_logs(-2, 0), dataclasses.replace(MNIST_DVS, width=1, height=1, sensor=3), seed=0
    )[0]["p"].any()
    assert np.allclose(N_MNIST_MOTION.at(np.array([0])), N_MNIST_MOTION.corners[0])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_events_of_the_cpu():
    images = digits(6)
    here, there = record(images, NOISY, ROUND, seed=1), record(images.cuda(), NOISY, ROUND, seed=1)
    for a, b in zip(here, there, strict=True):
        assert abs(len(a) - len(b)) <= 0.01 * len(
            a
        )  # a rounding may move an event over a threshold
        common = min(len(a), len(b))
        assert np.median(np.abs(a["t"][:common] - b["t"][:common])) <= 20
    frames = binned(images.cuda(), NOISY, ROUND, bin_us=7777, seed=1)
    assert frames.is_cuda
    assert (frames.cpu().numpy() == binning(there, 13, 7777, 29, 37)).all()


BAD = [
    (lambda: Camera(threshold_on=0), "threshold_on: must be a finite number > 0; got 0"),
    (lambda: Camera(width=0), "width: must be a positive whole number; got 0"),
    (lambda: Camera(frame_us=1.5), "frame_us: must be a positive whole number; got 1.5"),  # type: ignore[arg-type]
    (lambda: Camera(mismatch=0.9), "mismatch: must be at most 0.5"),
    (lambda: Camera(leak_hz=-1), "leak_hz: must be a finite number >= 0; got -1"),
    (lambda: Camera(on=1), "on: must be True or False; got 1"),  # type: ignore[arg-type]
    (lambda: Motion((), (), 1), "corners: must be pairs"),
    (
        lambda: Motion(((0, 0), (1, 1)), (5,), 1),
        "legs_us: must be one for each of 2 corners; got 1",
    ),
    (lambda: Motion(((0, 0),), (5,), 0), "duration_us: must be a positive whole number; got 0"),
    (lambda: Motion(((0, 0),), (5,), 5, scale=(1, 0)), "scale: must be two numbers > 0"),
    (
        lambda: record(torch.rand(5, 5), IDEAL, ROUND, seed=0),
        r"images: must be a non-empty batch \(B, h, w\); got \(5, 5\)",
    ),
    (
        lambda: record(torch.rand(2, 5, 5) * 255, IDEAL, ROUND, seed=0),
        r"images: must be light in \[0, 1\].*divide grey levels by 255",
    ),
    (
        lambda: record(torch.full((1, 5, 5), math.nan), IDEAL, ROUND, seed=0),
        "images: .*got torch.float32, NaN",
    ),
    (
        lambda: record(torch.rand(2, 5, 5), IDEAL, ROUND, seed=0, samples=[1]),
        "samples: must be one number >= 0 for each of 2 images",
    ),
    (
        lambda: record(torch.rand(1, 5, 5), IDEAL, ROUND, seed=-1),
        "seed: must be a whole number >= 0; got -1",
    ),
    (
        lambda: record(torch.rand(1, 5, 5), IDEAL, ROUND, seed=0, window=(0, 0, 2, 1)),
        "window: must be left, top, width, height inside 1x1",
    ),
    (
        lambda: binned(torch.rand(1, 5, 5), IDEAL, ROUND, bin_us=0, seed=0),
        "bin_us: must be a positive whole number; got 0",
    ),
    (
        lambda: watch(torch.rand(3, 1, 2, 2), IDEAL, seed=0),
        r"video: must be two or more frames \(F, B, 1, 1\); got \(3, 1, 2, 2\)",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
