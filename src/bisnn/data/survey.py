"""A look at all recordings of a folder: what there is, what is damaged, and how to look at it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from bisnn.data import events, folders
from bisnn.data.folders import Entry, Listing
from bisnn.data.windows import SPLIT_FILE, Window, files_of, of_size
from bisnn.display import bars

STEPS = (10, 30)  # fewest and most time steps that are suggested
EVENTS_A_STEP = 20  # that a recording should have, or its time steps say little
MOST_PIXELS = 48  # a side, after downsampling
BUSY = 0.25  # share of the squares of pixels with a spike, above which one needs more events
TRIED = 4  # recordings of each class that this is measured on
BLOCKS = 50  # of rows or columns, in which events are counted to find where most of them are


@dataclass(frozen=True)
class Look:
    """What is to know of one recording."""

    entry: Entry
    size: tuple[int, int]
    size_stated: bool
    format: str
    events: int
    duration_us: int


@dataclass(frozen=True)
class Survey:
    """What was found in a folder."""

    listing: Listing
    looks: tuple[Look, ...]  # of the recordings that can be used
    damaged: tuple[str, ...]  # what is wrong with each of the others, its file first
    size: tuple[int, int]  # of the sensor
    size_stated: bool  # by a file; else the least that holds all events

    def of_class(self, label: str) -> list[Look]:
        return [look for look in self.looks if look.entry.label == label]


@dataclass(frozen=True)
class Suggestion:
    """How to look at recordings, to begin with."""

    steps: int
    bin_us: int
    crop: tuple[int, int, int, int] | None  # x0, y0, width, height; None: all
    downsample: int
    min_events: int


def survey(root: str | Path, show: bool = True) -> Survey:
    """Read every recording of a folder; those of no class, if there is no other, count as one."""
    listing = _listed(Path(root))
    looks, damaged = [], []
    with bars(show=show) as progress:
        bar = progress.add_task("recordings", total=len(listing.entries))
        for entry in listing.entries:
            try:
                seen = events.read_events(entry.file)
            except events.BadEvents as error:
                damaged.append(str(error))
            else:
                count, duration_us = len(seen.events), seen.duration_us
                looks.append(
                    Look(entry, seen.size, seen.size_stated, seen.format, count, duration_us)
                )
            progress.advance(bar, 1)
    if not looks:
        raise ValueError(f"{root}: has no recording that can be read; the first: {damaged[0]}")
    size, stated = _sensor(looks)
    fitting = [look for look in looks if _fits(look, size)]
    damaged += [
        f"{look.entry.file}: has {look.size[0]} x {look.size[1]} pixels, where others have "
        f"{size[0]} x {size[1]}; leave it out"
        for look in looks
        if not _fits(look, size)
    ]
    return Survey(listing, tuple(fitting), tuple(sorted(damaged)), size, stated)


def _listed(root: Path) -> Listing:
    try:
        return folders.listed(root)
    except ValueError:
        if not root.is_dir() or (root / SPLIT_FILE).exists():
            raise
        entries = (Entry(file, root.resolve().name) for file in files_of([root]))
        return Listing(root, tuple(entries))


def _sensor(looks: Sequence[Look]) -> tuple[tuple[int, int], bool]:
    """The size that most files say; where none does, the least that holds all events."""
    stated = Counter(look.size for look in looks if look.size_stated)
    if stated:
        return stated.most_common(1)[0][0], True
    return (max(look.size[0] for look in looks), max(look.size[1] for look in looks)), False


def _fits(look: Look, size: tuple[int, int]) -> bool:
    if look.size_stated:
        return look.size == size
    return look.size[0] <= size[0] and look.size[1] <= size[1]


def suggested(found: Survey) -> Suggestion:
    """Time steps that show nine of ten recordings whole, and no more pixels than train quickly."""
    span_us = float(np.quantile([look.duration_us for look in found.looks], 0.9)) + 1
    usual = float(np.median([look.events for look in found.looks]))
    wanted = min(max(usual / EVENTS_A_STEP, STEPS[0]), STEPS[1])
    bin_us = max(1, _two_digits(span_us / wanted))
    steps, by_class = math.ceil(span_us / bin_us), _some(found)
    ranges = [_busy_anywhere(by_class, axis, found.size[axis == "y"]) for axis in "xy"]
    lengths, downsample = [end - start for start, end in ranges], 1
    while max(lengths) > MOST_PIXELS * downsample and min(found.size) > 1:
        downsample *= 2
    crop = _crop(ranges, found.size, downsample)
    window = Window(found.size, steps, bin_us, None, crop, downsample)
    return Suggestion(steps, bin_us, crop, downsample, _enough(list(chain(*by_class)), window))


def _two_digits(number: float) -> int:
    """Rounded, as a person would."""
    unit = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return round(number / unit) * unit


def _some(found: Survey) -> list[list[events.Recording]]:
    """Recordings of each class, evenly from its first to its last, that settings are tried on."""
    tried = []
    for label in found.listing.classes:
        looks = found.of_class(label)
        places = np.linspace(0, len(looks) - 1, min(TRIED, len(looks))).astype(int)
        files = [looks[place].entry.file for place in places]
        tried.append(
            [of_size(events.read_events(file), found.size, file, "", "") for file in files]
        )
    return tried


def _busy_anywhere(
    by_class: Sequence[Sequence[events.Recording]], axis: str, side: int
) -> tuple[int, int]:
    """The columns or rows in which any class has more than noise; all, where that is more than two
    thirds. What is quiet in one class may be what tells it from the others."""
    ranges = []
    for seen in by_class:
        counts = sum(np.bincount(one.events[axis], minlength=side) for one in seen)
        if np.sum(counts):
            ranges.append(busy_range(np.asarray(counts)))
    start, end = min(start for start, _ in ranges), max(end for _, end in ranges)
    return (start, end) if 3 * (end - start) < 2 * side else (0, side)


def busy_range(counts: np.ndarray) -> tuple[int, int]:
    """Where along an axis there is more than noise, with some room on both sides.

    The quietest quarter is taken for noise, and what nine tenths do not reach for the most: a few
    hot pixels are neither.

    >>> busy_range(np.r_[np.full(50, 3), np.full(20, 90), np.full(30, 3)])
    (46, 74)
    """
    edges = np.unique(np.linspace(0, len(counts), BLOCKS + 1).astype(int))
    means = np.add.reduceat(counts, edges[:-1]) / np.diff(edges)
    noise, most = np.quantile(means, (0.25, 0.9))
    busy = np.flatnonzero(means > noise + 0.1 * (most - noise))
    if most < 2 * noise or not len(busy):
        return 0, len(counts)
    start, end = int(edges[busy[0]]), int(edges[busy[-1] + 1])
    room = (end - start) // 5
    return max(0, start - room), min(len(counts), end + room)


def _crop(
    ranges: Sequence[tuple[int, int]], size: tuple[int, int], downsample: int
) -> tuple[int, int, int, int] | None:
    """The part of the sensor with these columns and rows, a multiple of the squares wide and high;
    None for all of it."""
    if [(0, side) for side in size] == list(ranges):
        return None
    starts, lengths = [], []
    for (start, end), side in zip(ranges, size, strict=True):
        length = min(-(-(end - start) // downsample), side // downsample) * downsample
        lengths.append(length)
        starts.append(min(start, side - length))
    return starts[0], starts[1], lengths[0], lengths[1]


def _enough(seen: Sequence[events.Recording], window: Window) -> int:
    """The events of a square and time step that are no more than usual noise."""
    least = 1
    while least < 64 and np.median([_share(window, one, least) for one in seen]) > BUSY:
        least *= 2
    return least


def _share(window: Window, seen: events.Recording, least: int) -> float:
    return float(replace(window, least=least).frames(seen).mean())
