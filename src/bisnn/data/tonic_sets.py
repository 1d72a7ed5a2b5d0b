"""Datasets of tonic's kind as our recordings: binned, in bits, cached. Needs the extra `tonic`."""

from __future__ import annotations

import hashlib
import operator
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bisnn.checks import choice, positive_int
from bisnn.data import archives, cache, events
from bisnn.data.archives import Recordings, Source
from bisnn.data.windows import Window

MOST_CLASSES = 2**16
# Sensor (W, H, P), and `Window.start_us`, by name of tonic's class
TONIC: dict[str, tuple[tuple[int, int, int], int | None]] = {
    "NMNIST": ((34, 34, 2), 0),
    "DVSGesture": ((128, 128, 2), None),
    "SHD": ((700, 1, 1), 0),
}


class FromTonic(Recordings):
    """A dataset of tonic's, or one like it: `len`, `[i]` -> (events, label), `sensor_size` (W, H,
    P).

    Spikes are (T, P, H, W); events without `y`, as SHD's, have H = 1. Classes have the names that
    the dataset has for them. Its transforms are applied once, when the cache is built.

    The cache is named by a digest of all that is known of the dataset: its class and the version of
        its package, its settings
    (`train`, `first_saccade_only`, ..., a transform by its `repr`), its length, its labels where it
    lists them (`targets`), and its files (`data`), by name, size and time of change. Where it lists
    no files, its first and last recording stand for them. A change that shows in none of these, say
    in the code of a transform, cannot be known: give another `name` then, or delete the file.

    Args:
        dataset: to read from; it may be anything with the attributes above.
        steps, bin_us: T, and the length of a time step.
        pool: edge of the squares of pixels that become one: pixel // pool.
        start_us: where the first time step begins; None, as with tonic's frames, with each
            recording's first event.
        name: of the cache file; by default the dataset's class.
        show: a progress bar while the cache is built.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        steps: int,
        bin_us: int,
        pool: int = 1,
        start_us: int | None = None,
        name: str = "",
        show: bool = True,
    ):
        name, count = name or type(dataset).__name__, len(dataset)
        if not re.fullmatch(r"[\w.-]{1,100}", name):
            raise ValueError(
                "name: must be letters, digits, '_', '.' and '-', as it begins a file's name; "
                f"got {name!r}; change it"
            )
        if not count:
            raise ValueError(
                f"dataset: must have recordings; got a {name} of none; check its folder"
            )
        window = self.window(getattr(dataset, "sensor_size", None), steps, bin_us, pool, start_us)
        files = _files_behind(dataset)
        places = files if len(files) == count else [f"{name}[{i}]" for i in range(count)]
        read = _Reader(dataset, places, window.size)
        settings = {"window": repr(window), "dataset": _about(dataset, files)}
        root = Path(os.path.commonpath([file.parent for file in files])) if files else Path()
        path = archives.path_of(name, settings, files, root)
        source = Source(window, read)
        bits = archives.binned(path, name, count, source, show)
        labels = (
            cache.build(path.with_suffix(".labels"), (32,), count, read.label_bits)
            .packed(range(count))
            .view("<u4")[:, 0]
        )
        super().__init__(bits, labels.tolist(), _class_names(dataset, int(labels.max())), source)

    @staticmethod
    def window(
        sensor_size: Sequence[int] | None,
        steps: int,
        bin_us: int,
        pool: int = 1,
        start_us: int | None = None,
    ) -> Window:
        """All of a sensor of tonic's size (W, H, P)."""
        sizes = tuple(sensor_size) if isinstance(sensor_size, Sequence) else ()
        if len(sizes) != 3 or not all(isinstance(n, int) and n > 0 for n in sizes) or sizes[2] > 2:
            raise ValueError(
                f"dataset: its sensor_size must be (W, H, P) with P = 1 or 2; got {sensor_size}; "
                "set it to the size"
            )
        width, height, channels = sizes
        length = positive_int("steps", steps), positive_int("bin_us", bin_us)
        return Window(
            (width, height), *length, start_us, None, positive_int("pool", pool), channels
        )


class _Reader:
    """Recordings of a dataset of tonic's, and the labels of those that were read."""

    def __init__(self, dataset: Any, places: Sequence[object], size: tuple[int, int]):
        self.dataset, self.places, self.size = dataset, places, size
        self.known: dict[int, int] = {}

    def __call__(self, i: int) -> events.Recording:
        place = self.places[i]
        try:
            found, label = self.dataset[i]
        except Exception as error:  # whatever a damaged file makes its reader say
            raise events.BadEvents(
                f"{place}: cannot be read ({error}); copy or download it again"
            ) from error
        self.known[i] = _class_number(place, label)
        return events.from_array(found, self.size, str(place))

    def label_bits(self, i: int) -> np.ndarray:
        if i not in self.known:
            self(i)
        return np.unpackbits(np.array([self.known[i]], "<u4").view(np.uint8), bitorder="little")


def tonic_dataset(name: str, root: str | Path, train: bool) -> Any:
    """One of tonic's datasets, from the folder `root`; never downloaded, but where it is not there,
    an error says how to get it.

    tonic counts files and looks for the archive that it unpacked. Without that archive, what is
    there is taken as it is.
    """
    choice("dataset", name, tuple(TONIC))
    try:
        from tonic import datasets
    except ImportError:
        raise ValueError(
            f"dataset: tonic must be installed to read {name}; got none; "
            "run `pip install 'bisnn[tonic]'`"
        ) from None
    missing = []

    def download(self: Any) -> None:
        # Instead of tonic's own, which it calls where it does not find all
        place = Path(self.location_on_system, getattr(self, "data_filename", self.folder_name))
        there = place.is_file() or (
            place.is_dir() and any(file.is_file() for file in place.rglob("*"))
        )
        if self._is_file_present() or not there:
            missing.append(place)
            raise FileNotFoundError(place)

    kind = getattr(datasets, name)
    try:
        dataset = type(name, (kind,), {"download": download, "__module__": kind.__module__})(
            str(root), train=train
        )
    except Exception as error:  # whatever a damaged file makes tonic say
        if missing:
            get = (
                f"from tonic.datasets import {name} as D; "
                f"[D({str(root)!r}, train=t) for t in (True, False)]"
            )
            raise ValueError(
                f"root: tonic looks for {name} in {missing[0]}, where it is not, or not whole; "
                "bisnn downloads nothing: get it "
                f'with: python -c "{get}"'
            ) from None
        raise ValueError(
            f"root: tonic cannot read {name} in {root} ({error}); download it again"
        ) from error
    # By name: tonic may have them in the disk's own order
    order = sorted(range(len(dataset.data)), key=dataset.data.__getitem__)
    dataset.data, dataset.targets = (
        [some[i] for i in order] for some in (dataset.data, dataset.targets)
    )
    return dataset


def _files_behind(dataset: Any) -> list[Path]:
    """The files that a dataset of tonic's reads: one per recording, one for all, or unknown."""
    data = getattr(dataset, "data", None)
    data = list(data) if isinstance(data, (list, tuple)) else []
    if not data and hasattr(dataset, "data_filename"):  # SHD, SSC
        data = [Path(dataset.location_on_system, dataset.data_filename)]
    named = all(isinstance(item, (str, os.PathLike)) for item in data)
    files = [Path(item).absolute() for item in data] if named else []
    return files if all(file.is_file() for file in files) else []


def _about(dataset: Any, files: Sequence[Path]) -> dict[str, Any]:
    """All that is known of a dataset, but for its files."""
    kind = type(dataset)
    about: dict[str, Any] = {"class": kind.__qualname__, "length": len(dataset)}
    about["version"] = getattr(
        sys.modules.get(kind.__module__.partition(".")[0]), "__version__", ""
    )
    about["labels"] = hashlib.blake2b(
        repr(list(getattr(dataset, "targets", ()))).encode(), digest_size=16
    ).hexdigest()
    for name, value in vars(dataset).items():
        # A folder may move
        if isinstance(value, (bool, int, float, str)) and name != "location_on_system":
            about[f".{name}"] = value
        elif isinstance(value, (list, tuple, range, np.ndarray)) and name not in (
            "data",
            "targets",
        ):  # e.g. a subset's indices
            about[f".{name}"] = hashlib.blake2b(
                repr(np.asarray(value).tolist()).encode(), digest_size=16
            ).hexdigest()
        elif name == "dataset" and hasattr(value, "__len__"):  # that a subset is of
            behind = _files_behind(value)
            stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in behind]
            about[".dataset"] = [
                _about(value, behind),
                hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest(),
            ]
        elif "transform" in name and value is not None:
            about[f".{name}"] = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    if not files:
        digest = hashlib.blake2b(digest_size=16)
        for found, label in (dataset[0], dataset[len(dataset) - 1]):
            digest.update(
                f"{label} {getattr(found, 'dtype', '')}".encode() + np.asarray(found).tobytes()
            )
        about["recordings"] = digest.hexdigest()
    return about


def _class_number(place: object, label: Any) -> int:
    try:
        number = operator.index(label)
    except TypeError:
        number = -1
    if not 0 <= number < MOST_CLASSES:
        raise ValueError(
            f"dataset: labels must be numbers of classes, from 0 on; got {label!r} in {place}; "
            "give it a target_transform"
        )
    return number


def _class_names(dataset: Any, last: int) -> list[str]:
    """Names of the classes 0 to `last`, or more: the dataset's own, where it has a list of them."""
    given = getattr(dataset, "classes", None)
    if not isinstance(given, (list, tuple, np.ndarray)) or not len(given):
        return [str(i) for i in range(last + 1)]
    if len(given) <= last:
        raise ValueError(
            "dataset: must have a name in `classes` for each label; "
            f"got {len(given)} and label {last}; correct it"
        )
    return [
        name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in given
    ]
