"""What of a recording the network sees, and recordings of no dataset, each read when needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn.data import events
from bisnn.display import note

SPLIT_FILE = "split.csv"  # in a folder of recordings: which of them train, and which test


@dataclass(frozen=True)
class Window:
    """What of a recording becomes spikes: which pixels, and from when on."""

    size: tuple[int, int]  #: width, height of the sensor
    steps: int  #: T
    bin_us: int | None  #: length of a time step; None: `per_step` says where one ends
    start_us: int | None = 0  #: where the first one begins; None: with the first event
    #: x0, y0, width, height of the part that is kept; None: all
    crop: tuple[int, int, int, int] | None = None
    #: edge of the squares of pixels that become one; those at the edge of the sensor may be smaller
    pool: int = 1
    channels: int = 2  #: polarities; 1: whatever the polarity
    least: int = 1  #: events of a square of pixels in a time step that make a spike
    per_step: int | None = None  #: events of a time step, where it has no length in time

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(T, C, H, W) of a recording's spikes."""
        width, height = self.crop[2:] if self.crop else self.size
        return (self.steps, self.channels, -(-height // self.pool), -(-width // self.pool))

    def frames(self, seen: events.Recording) -> np.ndarray:
        """The spikes of a recording, `seen` through this window, uint8 (T, C, H, W)."""
        given, step, start_us = seen.events, self.bin_us, self.start_us
        if start_us is None:
            start_us = seen.start_us
        if self.per_step is not None:  # the clock counts events
            given = self._inside(seen.events)
            given["t"] = np.arange(len(given))
            step, start_us = self.per_step, 0
        assert step is not None
        width, height = (-(-side // self.pool) * self.pool for side in self.size)
        looks: dict[str, Any] = {
            "size": (width, height),
            "start_us": start_us,
            "crop": self.crop,
            "shrink": self.pool,
            "least": self.least,
        }
        frames = events.bin_events(given, self.steps, step, **looks)
        return frames if self.channels == 2 else frames.max(1, keepdims=True)

    def _inside(self, found: np.ndarray) -> np.ndarray:
        """A copy of the events on the pixels that are kept."""
        x0, y0, width, height = self.crop or (0, 0, *self.size)
        x, y = found["x"] - x0, found["y"] - y0
        return found[(x >= 0) & (x < width) & (y >= 0) & (y < height)]

    def length(self) -> str:
        """How long the network looks, in words."""
        if self.per_step is not None:
            return f"{self.steps} time steps of {self.per_step:,} events"
        return f"{self.steps} time steps of {self.bin_us:,} us"


class Found:
    """What was left out of recordings, and put right in their times, over many of them."""

    def __init__(self) -> None:
        self.skipped, self.clock = Counter[str](), Counter[str]()  # by reason
        self.with_skipped = self.with_clock = 0  # recordings

    def add(self, seen: events.Recording) -> events.Recording:
        self.skipped.update(seen.skipped)
        self.clock.update(seen.clock)
        self.with_skipped += bool(seen.skipped)
        self.with_clock += bool(seen.clock)
        return seen

    def say(self, name: str) -> None:
        """One line to the user, if there is anything to say."""
        parts = (
            ("events left out of", self.with_skipped, self.skipped),
            ("times put right in", self.with_clock, self.clock),
        )
        lines = [
            f"{what} {count_of_recordings(n)} "
            f"({', '.join(f'{why}: {k:,}' for why, k in by.items())})"
            for what, n, by in parts
            if n
        ]
        if lines:
            note(f"{name}: {', '.join(lines)}")


def count_of_recordings(count: int) -> str:
    return f"{count:,} recording{'s' if count != 1 else ''}"


class Loose:
    """Recordings of no dataset: files and arrays of events, read when needed, by one window."""

    def __init__(
        self, sources: Sequence[str | Path | np.ndarray | events.Recording], window: Window
    ):
        self.sources, self.window = list(sources), window
        self.found, self.silent = Found(), 0  # so far; `silent` have no event in the window

    def batch(self, index: Tensor | Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, uint8 (T, B, C, H, W)."""
        frames = [self.window.frames(self.found.add(self.read(int(i)))) for i in index]
        self.silent += sum(not frame.any() for frame in frames)
        return torch.from_numpy(np.stack(frames, 1)).to(device)

    def read(self, i: int) -> events.Recording:
        """A recording of the window's sensor, or a BadEvents."""
        source, size = self.sources[i], self.window.size
        if not isinstance(source, (np.ndarray, events.Recording, str, Path)):
            raise ValueError(
                f"recordings[{i}]: must be a file, or an array of events; "
                f"got {type(source).__name__}; give e.g. its path"
            )
        if isinstance(source, np.ndarray):
            return events.from_array(source, size, f"recordings[{i}]")
        seen = source if isinstance(source, events.Recording) else events.read_events(source)
        name = f"recordings[{i}]" if source is seen else source
        return of_size(seen, size, name, "that the model was trained on; ", "give another file")

    def say(self) -> None:
        """What the user should know of those that were read."""
        self.found.say("recordings")
        if self.silent:
            note(
                f"recordings: {count_of_recordings(self.silent)} without an event in what the "
                f"model looks at, the first {self.window.length()}"
            )


def of_size(
    seen: events.Recording, size: tuple[int, int], name: object, why: str, way: str
) -> events.Recording:
    """A recording of a sensor of this size; one that does not say its size may be of a larger
    one."""
    if seen.size == size:
        return seen
    if not seen.size_stated and seen.size[0] <= size[0] and seen.size[1] <= size[1]:
        return replace(seen, size=size)
    got, wanted = (f"{width} x {height} pixels" for width, height in (seen.size, size))
    at_least = "" if seen.size_stated else "at least "
    raise events.BadEvents(f"{name}: must have the {wanted} {why}got {at_least}{got}; {way}")


def is_recording(file: Path) -> bool:
    """Whether a file in a folder of recordings is one, by its name; `split.csv` lists them."""
    return (
        file.suffix.lower() in events.SUFFIXES
        and not file.name.startswith(".")
        and file.name.lower() != SPLIT_FILE
    )


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """Files as they are named, and of folders all recordings in them, ordered by name."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(file for file in path.rglob("*") if is_recording(file))
        if not inside:
            raise ValueError(
                f"{path}: is a folder without recordings; "
                f"it must hold {', '.join(events.SUFFIXES)} files"
            )
        files += inside
    return files
