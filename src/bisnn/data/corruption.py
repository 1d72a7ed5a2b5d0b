"""A worse camera: changes of a recording's events, by kind and strength, for a model to be tested
under.

Each kind is a function of a recording, an amount and draws, and a row of `CORRUPTIONS`, which gives
it an amount for each strength from 1 to 5. Strength 0 changes nothing. Draws are keyed by the seed,
the kind and the events themselves, so that a recording is changed in the same way in any order,
subset or dataset; and strengths share them: what is lost at one is lost at those above it too.
NumPy alone: no PyTorch is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import NamedTuple, Protocol

import numpy as np

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.checks import choice, seed_number
from bisnn.data.events import EVENTS, Recording

STRENGTHS = 5
HOT_HZ = 100.0  # events per second of a hot pixel


class Draws(Protocol):
    """Uniform numbers in [0, 1), float64 (n, columns), of their own for each name; the first rows
    do not depend on n.
    """

    def __call__(self, name: str, n: int, columns: int = 1) -> np.ndarray: ...


class Kind(NamedTuple):
    """A kind of corruption: changed events, and how much each strength changes."""

    change: Callable[[Recording, float, Draws], np.ndarray]
    amounts: tuple[float, float, float, float, float]
    unit: str  # of the amounts


def corrupt(recording: Recording, kind: str, strength: int, *, seed: int = 0) -> Recording:
    """A recording as a worse camera would have seen it: in order of time, on the same sensor.

    Args:
        recording: as `read_events` gives it.
        kind: of `CORRUPTIONS`.
        strength: 1 to 5; 0 changes nothing.
        seed: of the draws.

    >>> events = np.zeros(1000, EVENTS)
    >>> len(corrupt(Recording(events, (34, 34), "array"), "lost_events", 4).events)
    197
    """
    choice("kind", kind, tuple(CORRUPTIONS))
    seed_number(seed)
    whole = isinstance(strength, Integral) and not isinstance(strength, bool)
    if not whole or not 0 <= strength <= STRENGTHS:
        raise ValueError(
            f"strength: must be a whole number from 0 to {STRENGTHS}; got {strength!r}; "
            f"give e.g. {STRENGTHS}"
        )
    return changed(recording, kind, strength, _draws(recording, kind, seed))


def changed(recording: Recording, kind: str, strength: int, draws: Draws) -> Recording:
    """As `corrupt`, by these draws."""
    if strength == 0 or not len(recording.events):
        return recording
    change, amounts, _ = CORRUPTIONS[kind]
    return replace(recording, events=change(recording, amounts[strength - 1], draws))


def _draws(recording: Recording, kind: str, seed: int) -> Draws:
    content = hashlib.blake2b(recording.events.tobytes(), digest_size=16).digest()
    return keyed_draws(kind, content, seed, Purpose.CORRUPTION)


def keyed_draws(kind: str, about: bytes, seed: int, purpose: Purpose) -> Draws:
    """Draws for a kind of corruption of what these bytes stand for."""

    def uniform(name: str, n: int, columns: int = 1) -> np.ndarray:
        key = hashlib.blake2b(f"{kind} {name} ".encode() + about, digest_size=8).digest()
        stream, draw = (int(word) for word in np.frombuffer(key, "<u4"))
        words = philox.words(n * columns, seed, purpose, stream, draw)
        return words.reshape(n, columns) * 2.0**-32

    return uniform


def _lost_events(seen: Recording, share: float, draws: Draws) -> np.ndarray:
    return seen.events[draws("lost", len(seen.events))[:, 0] >= share]


def _noise_events(seen: Recording, hz: float, draws: Draws) -> np.ndarray:
    """With events at any pixel and time, of any polarity, `hz` per pixel and second."""
    width, height = seen.size
    n = round(hz * width * height * seen.duration_us * 1e-6)
    x, y, t, p = draws("noise", n, 4).T
    return _with(seen, x * width, y * height, t, p)


def _hot_pixels(seen: Recording, share: float, draws: Draws) -> np.ndarray:
    """With pixels that fire all the time, each of one polarity."""
    hot = _some_pixels(seen, share, draws)
    each = round(HOT_HZ * seen.duration_us * 1e-6)
    t = draws("times", len(hot) * each)[:, 0]
    pixel, p = (np.repeat(v, each) for v in (hot, draws("polarity", len(hot))[:, 0]))
    return _with(seen, pixel % seen.size[0], pixel // seen.size[0], t, p)


def _dead_pixels(seen: Recording, share: float, draws: Draws) -> np.ndarray:
    width, height = seen.size
    alive = np.ones(width * height, bool)
    alive[_some_pixels(seen, share, draws)] = False
    return seen.events[alive[seen.events["y"].astype(np.int64) * width + seen.events["x"]]]


def _moved_sensor(seen: Recording, pixels: float, draws: Draws) -> np.ndarray:
    """Moved in some direction, to the nearest pixel; a row of sensors along itself."""
    turn = draws("direction", 1)[0, 0]
    angle = 2 * np.pi * turn if min(seen.size) > 1 else np.pi * (turn < 0.5)
    dx, dy = np.rint(pixels * np.cos(angle)), np.rint(pixels * np.sin(angle))
    if seen.size[0] == 1:
        dx, dy = dy, dx
    return _placed(seen, seen.events["x"] + dx, seen.events["y"] + dy)


def _turned_sensor(seen: Recording, degrees: float, draws: Draws) -> np.ndarray:
    """Turned about its middle, one way or the other; a row of sensors has nowhere to turn to."""
    if min(seen.size) == 1:
        return seen.events
    angle = np.deg2rad(degrees) * (1 if draws("direction", 1)[0, 0] < 0.5 else -1)
    (x, y), (cos, sin) = ((side - 1) / 2 for side in seen.size), (np.cos(angle), np.sin(angle))
    right, down = seen.events["x"] - x, seen.events["y"] - y
    return _placed(
        seen, np.rint(x + cos * right - sin * down), np.rint(y + sin * right + cos * down)
    )


def _other_speed(seen: Recording, factor: float, draws: Draws) -> np.ndarray:
    """The same events in `factor` times the time, from the first one on."""
    after_us = np.floor((seen.events["t"] - seen.start_us) * factor).astype(np.int64)
    return _timed(seen, seen.start_us + after_us)


def _jittered_times(seen: Recording, most_us: float, draws: Draws) -> np.ndarray:
    """Each event earlier or later by up to `most_us`, within the time of the recording."""
    late_us = np.rint((2 * draws("late", len(seen.events))[:, 0] - 1) * most_us).astype(np.int64)
    t = seen.events["t"] + late_us
    return _timed(seen, t.clip(seen.start_us, seen.start_us + seen.duration_us))


def _dropped_polarity(seen: Recording, share: float, draws: Draws) -> np.ndarray:
    """Without a share of the events of one of the two polarities."""
    dropped = seen.events["p"] == (draws("polarity", 1)[0, 0] < 0.5)
    return seen.events[~dropped | (draws("lost", len(seen.events))[:, 0] >= share)]


def _some_pixels(seen: Recording, share: float, draws: Draws) -> np.ndarray:
    """Row by row numbers of a share of the sensor's pixels, at random."""
    pixels = seen.size[0] * seen.size[1]
    order = np.argsort(draws("pixels", pixels)[:, 0], kind="stable")
    return order[: round(share * pixels)]


def _with(
    seen: Recording, x: np.ndarray, y: np.ndarray, t: np.ndarray, p: np.ndarray
) -> np.ndarray:
    """The events and more of them: pixels are rounded down, t and p lie in [0, 1)."""
    more = np.empty(len(t), EVENTS)
    more["x"], more["y"], more["p"] = x, y, p < 0.5
    more["t"] = seen.start_us + np.floor(t * (seen.duration_us + 1)).astype(np.int64)
    return _sorted(np.concatenate([seen.events, more]))


def _placed(seen: Recording, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The events at other pixels, without those that are no longer on the sensor."""
    kept = (x >= 0) & (x < seen.size[0]) & (y >= 0) & (y < seen.size[1])
    events = seen.events[kept]
    events["x"], events["y"] = x[kept], y[kept]
    return events


def _timed(seen: Recording, t: np.ndarray) -> np.ndarray:
    """The events at other times, in their order."""
    events = seen.events.copy()
    events["t"] = t
    return _sorted(events)


def _sorted(events: np.ndarray) -> np.ndarray:
    return events[np.argsort(events["t"], kind="stable")]


CORRUPTIONS: dict[str, Kind] = {
    "lost_events": Kind(_lost_events, (0.2, 0.4, 0.6, 0.8, 0.9), "of the events"),
    "noise_events": Kind(_noise_events, (1, 2.5, 5, 10, 20), "per pixel and second"),
    "hot_pixels": Kind(_hot_pixels, (0.002, 0.005, 0.01, 0.02, 0.05), "of the pixels"),
    "dead_pixels": Kind(_dead_pixels, (0.05, 0.1, 0.2, 0.3, 0.5), "of the pixels"),
    "moved_sensor": Kind(_moved_sensor, (1, 2, 3, 4, 6), "pixels"),
    "turned_sensor": Kind(_turned_sensor, (5, 10, 15, 20, 30), "degrees"),
    "faster_motion": Kind(_other_speed, (0.8, 0.65, 0.5, 0.35, 0.25), "times as long"),
    "slower_motion": Kind(_other_speed, (1.25, 1.5, 2, 3, 4), "times as long"),
    "jittered_times": Kind(_jittered_times, (2e3, 5e3, 1e4, 2e4, 5e4), "microseconds, at most"),
    "dropped_polarity": Kind(_dropped_polarity, (0.2, 0.4, 0.6, 0.8, 1), "of its events"),
}
