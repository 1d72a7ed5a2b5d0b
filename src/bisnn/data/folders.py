"""Recordings of one's own in a folder: which there are, of which class, and which of them train.

    root/<class>/<file>                    split at random, by a share and a seed
    root/train/<class>/<file>, root/test/  split by folders
    root/split.csv                         lists the recordings: file, and perhaps split (train,
                                           validation or test), class and group

Recordings of one group, one person's for example, are never on both sides of a split.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data import archives, events
from bisnn.data.archives import Recordings, Source
from bisnn.data.loading import Clips, LoadedData, Split
from bisnn.data.windows import SPLIT_FILE, Window, is_recording, of_size
from bisnn.files import read_text

PARTS = ("train", "validation", "test")
# Names of folders, and in the column split, that mean a part
_PART_NAMES = {
    **{"train": "train", "training": "train", "test": "test", "testing": "test"},
    **{"validation": "validation", "valid": "validation", "val": "validation"},
}
_COLUMNS = {"file": ("file", "path", "name"), "split": ("split", "part")}
_COLUMNS |= {"class": ("class", "label"), "group": ("group",)}


@dataclass(frozen=True)
class Entry:
    """A recording of a folder."""

    file: Path
    label: str  # its class
    part: str = ""  # one of PARTS; "" where that is to be drawn
    group: str = ""  # "" where it is in none


@dataclass(frozen=True)
class Listing:
    """The recordings of a folder, ordered by name."""

    root: Path
    entries: tuple[Entry, ...]
    unlisted: tuple[Path, ...] = ()  # recordings of no class, or that split.csv leaves out

    @property
    def classes(self) -> tuple[str, ...]:
        """Names, ordered by value or by the alphabet."""
        names = {entry.label for entry in self.entries}
        whole = all(re.fullmatch(r"[0-9]+", name) for name in names)
        return tuple(sorted(names, key=lambda name: (int(name), name) if whole else (0, name)))

    def of_classes(self, classes: Sequence[str]) -> Listing:
        """The recordings of these classes alone."""
        unknown = [name for name in classes if name not in self.classes]
        if unknown:
            raise ValueError(
                f"data.classes: {self.root} has no recording of {', '.join(unknown)}; "
                f"it has {', '.join(self.classes)}; give some of these"
            )
        return replace(
            self, entries=tuple(entry for entry in self.entries if entry.label in classes)
        )


def listed(root: str | Path) -> Listing:
    """The recordings of a folder, in any of the layouts."""
    root = Path(root)
    if not root.is_dir():
        raise ValueError(
            f"data.root: there is no folder {root}; give the one that holds a folder for each class"
        )
    there = sorted(
        file for file in root.rglob("*") if is_recording(file) and not _hidden(file, root)
    )
    split = next((file for file in root.iterdir() if file.name.lower() == SPLIT_FILE), None)
    if split is not None:
        return _by_split_file(root, split, there)
    parts = {
        folder.name: _PART_NAMES[folder.name.lower()]
        for folder in root.iterdir()
        if folder.is_dir() and folder.name.lower() in _PART_NAMES
    }
    by_folders = {"train", "test"} <= set(parts.values())
    entries, unlisted = [], []
    for file in there:
        places = file.relative_to(root).parts[:-1]
        part = parts.get(places[0], "") if places and by_folders else ""
        places = places[1:] if part else places
        if places and bool(part) == by_folders:
            entries.append(Entry(file, places[0], part))
        else:
            unlisted.append(file)
    if not entries:
        raise ValueError(
            f"data.root: {root} must hold a folder for each class, with recordings in it "
            f"({', '.join(events.SUFFIXES)}); got {len(there)} recordings in none; "
            "move each into a folder named after its class"
        )
    return Listing(root, tuple(entries), tuple(unlisted))


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _by_split_file(root: Path, split: Path, there: Iterable[Path]) -> Listing:
    """The recordings that `split.csv` lists."""
    try:
        text = read_text(split).removeprefix("\ufeff")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{split}: is no CSV text in UTF-8 ({error}); save it as one") from None
    header = [name.strip().lower() for name in rows[0]] if rows else []
    places = {
        column: next((i for i, name in enumerate(header) if name in names), None)
        for column, names in _COLUMNS.items()
    }
    if places["file"] is None:
        raise ValueError(
            f"{split}: must name its columns in the first line, file among them, and perhaps "
            f"split, class and group; got {', '.join(header)[:80]!r}; add it"
        )
    entries: dict[Path, Entry] = {}
    for line, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        cells = {
            column: row[place].strip() if place is not None and place < len(row) else ""
            for column, place in places.items()
        }
        entry = _entry(root, f"{split}: line {line}", cells, places["split"] is not None)
        if entry.file in entries:
            raise ValueError(f"{split}: line {line}: {cells['file']} is listed twice; delete one")
        entries[entry.file] = entry
    if not entries:
        raise ValueError(f"{split}: lists no recording; add a line for each")
    ordered = tuple(entries[file] for file in sorted(entries))
    return Listing(root, ordered, tuple(file for file in there if file not in entries))


def _entry(root: Path, where: str, cells: dict[str, str], with_parts: bool) -> Entry:
    file = root / cells["file"]
    if not cells["file"] or not file.is_file() or ".." in Path(cells["file"]).parts:
        raise ValueError(
            f"{where}: file must be a recording in the folder; got {cells['file']!r}; "
            "give its path from the folder on"
        )
    part = _PART_NAMES.get(cells["split"].lower(), "")
    if with_parts and not part:
        raise ValueError(
            f"{where}: split must be train, validation or test; got {cells['split']!r}; mend it"
        )
    label = cells["class"] or (file.parent.name if file.parent != root else "")
    if not label:
        raise ValueError(
            f"{where}: has no class, and the file lies in no folder of one; add a column class"
        )
    return Entry(file, label, part, cells["group"])


def split_of(
    listing: Listing, test_share: float, validation: float, seed: int
) -> dict[str, np.ndarray]:
    """Which recordings train, validate and test: places in the listing, by part.

    Where the folder does not say, a share of each class is drawn; where no recording is meant to
    validate, a share of the training recordings is.
    """
    entries = listing.entries
    parts = np.array([entry.part or "train" for entry in entries], dtype=object)
    if not any(entry.part for entry in entries):
        every = np.arange(len(entries))
        parts[_drawn(entries, every, test_share, seed, Purpose.TEST_SPLIT)] = "test"
    if validation and "validation" not in parts:
        training = np.flatnonzero(parts == "train")
        parts[_drawn(entries, training, validation, seed, Purpose.VALIDATION_SPLIT)] = "validation"
    _check_split(listing, parts)
    return {part: np.flatnonzero(parts == part) for part in PARTS}


def _drawn(
    entries: Sequence[Entry], among: np.ndarray, share: float, seed: int, purpose: Purpose
) -> np.ndarray:
    """Whole groups, in a random order, as long as each brings the classes closer to the share."""
    groups: dict[object, list[int]] = {}
    for i in among.tolist():
        groups.setdefault(entries[i].group or i, []).append(i)
    wanted = {
        label: share * count for label, count in Counter(entries[i].label for i in among).items()
    }
    members = list(groups.values())
    chosen: list[int] = []
    for place in philox.permutation(len(members), seed, purpose).tolist():
        counts = Counter(entries[i].label for i in members[place])
        closer = sum(
            abs(wanted[label] - count) - abs(wanted[label]) for label, count in counts.items()
        )
        if closer < 0:
            chosen += members[place]
            for label, count in counts.items():
                wanted[label] -= count
    return np.array(sorted(chosen), dtype=np.int64)


def _check_split(listing: Listing, parts: np.ndarray) -> None:
    """See that every class trains, that something tests, and that no group is on two sides."""
    by_part = {
        part: {listing.entries[i].label for i in np.flatnonzero(parts == part)} for part in PARTS
    }
    missing = [name for name in listing.classes if name not in by_part["train"]]
    if missing:
        raise ValueError(
            f"data.root: {listing.root} has no training recording of {', '.join(missing)}, as the "
            "recordings are split; add some, lower data.test_share, or name the others in "
            "data.classes"
        )
    if not by_part["test"]:
        raise ValueError(
            f"data.root: {listing.root} has no test recording, as its {len(parts)} are split; "
            "add some, or raise data.test_share"
        )
    sides: dict[str, str] = {}
    for entry, part in zip(listing.entries, parts.tolist(), strict=True):
        if entry.group and sides.setdefault(entry.group, part) != part:
            raise ValueError(
                f"{listing.root / SPLIT_FILE}: the group {entry.group!r} must be on one side of "
                f"the split; got recordings in {sides[entry.group]} and {part}; move some"
            )


def sensor_of(listing: Listing) -> tuple[int, int]:
    """Width and height of the sensor, as the first recording says it."""
    first = listing.entries[0].file
    seen = events.read_events(first)
    if not seen.size_stated:
        raise ValueError(
            f"data.size: must be given, as {first} does not say its sensor's width and height; "
            f"`bisnn inspect {listing.root}` finds the least that holds all events; "
            f"give e.g. size = [{seen.size[0]}, {seen.size[1]}]"
        )
    return seen.size


class FolderRecordings(Recordings):
    """The recordings of a folder, cached; labels are places in `classes`."""

    def __init__(self, listing: Listing, classes: Sequence[str], window: Window, show: bool):
        self.files = [entry.file for entry in listing.entries]
        source = Source(window, partial(_read, window.size, self.files))
        path = archives.path_of("folder", {"window": repr(window)}, self.files, listing.root)
        bits = archives.binned(path, "folder", len(self.files), source, show)
        labels = [list(classes).index(entry.label) for entry in listing.entries]
        super().__init__(bits, labels, classes, source)


def _read(size: tuple[int, int], files: Sequence[Path], i: int) -> events.Recording:
    seen = events.read_events(files[i])
    return of_size(
        seen, size, files[i], "of data.size, or of the first recording; ", "leave it out"
    )


def load(
    listing: Listing, parts: Mapping[str, np.ndarray], window: Window, show: bool
) -> LoadedData:
    """A folder's recordings as a run uses them, by the places that `split_of` gave each part."""
    recordings = FolderRecordings(listing, listing.classes, window, show)
    train, validation, test = (
        Split(Clips(recordings, torch.from_numpy(parts[part])), recordings.labels[parts[part]])
        for part in PARTS
    )
    none = torch.zeros(0, dtype=torch.float64)
    return LoadedData(
        train, validation if len(validation.y) else None, test, recordings.names, none, none
    )
