"""Two sets of series that are made with a seed: rhythms in noise, and gestures as motion sensors
see them.

Recordings are ragged. In `rhythms` the classes have the same expected number of spikes in every
channel and every bin of time, and differ only in the order of their beats. In `gestures` a class is
a movement of the hand, done by anyone: its speed, its size, its start and the way the sensor is
held are those of the recording.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

GROUPS = 4  # of channels: the drums of a rhythm
CHANNELS = 4  # of a group
ORDERS = tuple((0, *rest) for rest in permutations(range(1, GROUPS)))  # cyclic: one begins each
GESTURES = ("swipe left", "swipe right", "circle", "circle back", "shake", "knock")


def rhythms(count: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """So many recordings, spikes uint8 (T, 16) with T from 80 to 120, and their classes (N,).

    Four drums of four channels beat in one of six cyclic orders, every 6 to 10 time steps, from a
    random phase on; a channel joins a beat with probability 0.8, a time step early or late, and
    each channel has spikes of its own at a rate of 0.02.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % len(ORDERS))
    return [_rhythm(rng, ORDERS[label]) for label in labels], labels


def _rhythm(rng: np.random.Generator, order: tuple[int, ...]) -> np.ndarray:
    steps, gap = int(rng.integers(80, 121)), rng.uniform(6, 10)
    spikes = rng.random((steps, GROUPS * CHANNELS)) < 0.02
    beats = np.arange(rng.uniform(0, gap), steps, gap)
    first = rng.integers(GROUPS)
    for number, beat in enumerate(beats):
        drum = order[(first + number) % GROUPS]
        at = np.round(beat).astype(int) + rng.integers(-1, 2, CHANNELS)
        joins = (rng.random(CHANNELS) < 0.8) & (at >= 0) & (at < steps)
        spikes[at[joins], drum * CHANNELS + np.flatnonzero(joins)] = True
    return spikes.astype(np.uint8)


def gestures(count: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """So many recordings, values float32 (T, 6) with T from 60 to 100, and their classes (N,).

    Three axes of acceleration, gravity among them, and three of rotation, with noise.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % len(GESTURES))
    return [_gesture(rng, GESTURES[label]) for label in labels], labels


def _gesture(rng: np.random.Generator, name: str) -> np.ndarray:
    steps = int(rng.integers(60, 101))
    length = rng.uniform(25, 45)  # of the movement, in time steps
    start = rng.uniform(2, 12)
    phase = (np.arange(steps) - start) / length  # 0 to 1 while it moves
    size = rng.uniform(0.6, 1.4)
    values = size * np.where(((phase >= 0) & (phase <= 1))[:, None], _movement(name, phase, rng), 0)
    turn = _rotation(rng.normal(0, 0.25, 3))  # how the sensor is held
    values = np.concatenate([(values[:, :3] + [0, 0, 1]) @ turn.T, values[:, 3:] @ turn.T], 1)
    drift = rng.normal(0, 0.1, 6)
    return (values + drift + rng.normal(0, 0.25, values.shape)).astype(np.float32)


def _movement(name: str, phase: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Acceleration and rotation (T, 6) along a gesture."""
    angle, still = 2 * np.pi * phase, np.zeros_like(phase)
    window = np.sin(np.pi * phase.clip(0, 1))
    if name.startswith("swipe"):
        sign = 1 if name.endswith("right") else -1
        return np.stack([sign * np.sin(angle), still, still, still, still, 0.5 * window], 1)
    if name.startswith("circle"):
        sign, begin = (-1 if name.endswith("back") else 1), rng.normal(0, 0.5)
        turned = sign * angle + begin
        return np.stack([np.cos(turned), np.sin(turned), still, still, still, still], 1)
    if name == "shake":
        fast = np.sin(rng.uniform(3, 5) * angle) * window
        return np.stack([fast, still, still, still, 0.5 * fast, still], 1)
    knocks = np.exp(-(((phase[:, None] - [0.25, 0.75]) / 0.05) ** 2)).sum(1)
    return np.stack([still, still, 1.5 * knocks, still, still, still], 1)


def _rotation(angles: np.ndarray) -> np.ndarray:
    """The matrix that turns about x, then y, then z."""
    (cx, cy, cz), (sx, sy, sz) = np.cos(angles), np.sin(angles)
    about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    return about_z @ about_y @ about_x
