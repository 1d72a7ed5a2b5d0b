"""Event-camera datasets, binned, one bit each, cached on disk: MNIST-DVS and N-MNIST as their archives unpack, and tonic's.

A dataset is a sequence of (spikes, label): spikes uint8 (T, C, H, W), 0 or 1; channel p is polarity p. It works with torch's
DataLoader as it is; its files are read once, when the cache is built (see `cache`).
"""

from __future__ import annotations

import hashlib
import math
import operator
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn import encode
from bisnn.checks import choice, positive_int
from bisnn.config import Augment
from bisnn.data import cache, events
from bisnn.display import bars, note

FORMAT = 1  # of the bits: another number, and caches are built anew
MOST_CLASSES = 2**16
TONIC: dict[str, tuple[tuple[int, int, int], int | None]] = {  # sensor (W, H, P), and `Window.start_us`, by name of tonic's class
    "NMNIST": ((34, 34, 2), 0),
    "DVSGesture": ((128, 128, 2), None),
    "SHD": ((700, 1, 1), 0),
}


@dataclass(frozen=True)
class Window:
    """What of a recording becomes spikes: which pixels, and from when on."""

    size: tuple[int, int]  # width, height of the sensor
    steps: int  # T
    bin_us: int  # length of a time step
    start_us: int | None = 0  # where the first one begins; None: with the first event
    crop: tuple[int, int, int, int] | None = None  # x0, y0, width, height of the part that is kept; None: all
    pool: int = 1  # edge of the squares of pixels that become one; those at the edge of the sensor may be smaller
    channels: int = 2  # polarities; 1: whatever the polarity

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(T, C, H, W) of a recording's spikes."""
        width, height = self.crop[2:] if self.crop else self.size
        return (self.steps, self.channels, -(-height // self.pool), -(-width // self.pool))

    def frames(self, seen: events.Recording) -> np.ndarray:
        """A recording's spikes, uint8 (T, C, H, W)."""
        start_us = seen.start_us if self.start_us is None else self.start_us
        width, height = (-(-side // self.pool) * self.pool for side in self.size)
        looks: dict[str, Any] = {"size": (width, height), "start_us": start_us, "crop": self.crop, "shrink": self.pool}
        frames = events.bin_events(seen.events, self.steps, self.bin_us, **looks)
        return frames if self.channels == 2 else frames.max(1, keepdims=True)


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
        parts = (("events left out of", self.with_skipped, self.skipped), ("times put right in", self.with_clock, self.clock))
        said = [f"{what} {_recordings(n)} ({', '.join(f'{why}: {k:,}' for why, k in by.items())})" for what, n, by in parts if n]
        if said:
            note(f"{name}: {', '.join(said)}")


def _recordings(count: int) -> str:
    return f"{count:,} recording{'s' if count != 1 else ''}"


class Recordings:
    """A sequence of (spikes (T, C, H, W) uint8, label)."""

    def __init__(self, bits: cache.Bits, labels: Sequence[int], names: Sequence[str]):
        self.bits, self.names = bits, tuple(names)
        self.labels = torch.tensor(labels, dtype=torch.int64)  # (N,)

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"i: must be below {len(self)}; got {i}")
        return torch.from_numpy(self.bits.read([i % len(self)])[0]), int(self.labels[i])

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, C, H, W) of a recording."""
        return self.bits.shape

    def batch(self, index: Tensor | Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, uint8 (T, B, C, H, W). To a GPU go bits, which are unpacked there."""
        if torch.device(device).type == "cpu":
            return torch.from_numpy(self.bits.read(np.asarray(index))).movedim(0, 1)
        packed = torch.from_numpy(self.bits.packed(np.asarray(index))).to(device)
        bits = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=device) & 1
        return bits.flatten(1)[:, : math.prod(self.shape)].reshape(-1, *self.shape).movedim(0, 1)


class Loose:
    """Recordings of no dataset: files and arrays of events, each read when it is looked at, all by one window."""

    def __init__(self, sources: Sequence[str | Path | np.ndarray | events.Recording], window: Window):
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
        if isinstance(source, np.ndarray):
            return events.from_array(source, size, f"recordings[{i}]")
        seen = source if isinstance(source, events.Recording) else events.read_events(source)
        if seen.size != size:
            name = f"recordings[{i}]" if source is seen else source
            got, wanted = (f"{width} x {height} pixels" for width, height in (seen.size, size))
            raise events.BadEvents(f"{name}: must have the {wanted} that the model was trained on; got {got}; give another file")
        return seen

    def say(self) -> None:
        """What the user should know of those that were read."""
        self.found.say("recordings")
        if self.silent:
            until = f"{self.window.steps} time steps of {self.window.bin_us:,} us"
            note(f"recordings: {_recordings(self.silent)} without an event in what the model looks at, the first {until}")


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """Files as they are named, and of folders all recordings in them, in the order of their names."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in events.SUFFIXES and file.name[0] != ".")
        if not inside:
            raise ValueError(f"{path}: is a folder without recordings; it must hold {' or '.join(events.SUFFIXES)} files")
        files += inside
    return files


class Clips:
    """Some recordings of a dataset, in some order: what a split of points is to a table. Or some loose ones."""

    def __init__(self, recordings: Recordings | Loose, index: Tensor):
        self.recordings, self.index = recordings, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: Tensor | slice) -> Clips:
        return Clips(self.recordings, self.index[chosen])

    def spikes(self, device: torch.device | str = "cpu") -> Tensor:
        """uint8 (T, B, C, H, W)."""
        return self.recordings.batch(self.index, device)

    def digest(self) -> bytes:
        assert isinstance(self.recordings, Recordings)  # loose ones are in no dataset
        return self.recordings.bits.path.name.encode() + self.index.numpy().tobytes()


def augmented(x: Tensor, how: Augment, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Recordings x, uint8 (T, B, C, H, W), each shifted, begun earlier or later, and thinned, by draws of (seed, epoch, sample).

    Works on the spikes alone, which are few, on their device.
    """
    if how == Augment():
        return x
    samples = samples.to(x.device)
    key = (seed, encode.AUGMENT, epoch)
    sides = [how.shift if side > 1 else 0 for side in x.shape[3:]]  # one row of sensors, as SHD's, cannot move off itself
    most = torch.tensor([how.jitter, *sides], device=x.device)
    moves = (encode.keyed_uniform([3], *key, samples) * (2 * most + 1)).long() - most  # (B, 3): along t, h, w
    t, b, c, h, w = x.nonzero(as_tuple=True)
    kept = torch.ones_like(t, dtype=torch.bool)
    if how.drop:
        place = 3 + ((t * x.shape[2] + c) * x.shape[3] + h) * x.shape[4] + w  # behind the three of the moves
        kept = encode.keyed_uniform_at(place, *key, samples[b]) >= how.drop
    t, h, w = (axis + by for axis, by in zip((t, h, w), moves[b].unbind(1), strict=True))
    for axis, n in ((t, x.shape[0]), (h, x.shape[3]), (w, x.shape[4])):
        kept &= (axis >= 0) & (axis < n)
    out = torch.zeros_like(x)
    out[tuple(axis[kept] for axis in (t, b, c, h, w))] = 1
    return out


def _files(root: Path, pattern: str, layout: str) -> list[Path]:
    if not root.is_dir():
        raise ValueError(f"root: there is no folder {root}; unpack the archive and give the folder that holds {layout}")
    found = sorted(path for path in root.glob(pattern) if path.is_file())
    if not found:
        raise ValueError(f"root: {root} holds no files {pattern}; give the folder that holds {layout}")
    return found


def _path(name: str, settings: dict[str, Any], files: Sequence[Path], root: Path) -> Path:
    """The cache file of what these files give with these settings."""
    return cache.folder() / f"{name}-{cache.key({'format': FORMAT, 'name': name, **settings}, files, root)}.bits"


def _binned(path: Path, name: str, count: int, window: Window, read: Callable[[int], events.Recording], show: bool) -> cache.Bits:
    """The bits of recordings, from the cache or made now, with a progress bar and a line on what was left out of them."""
    if path.exists():
        return cache.Bits(path)
    found = Found()
    with bars(show=show) as progress:
        bar = progress.add_task(f"{name}: {_recordings(count)}", total=count)
        try:
            one = lambda i: window.frames(found.add(read(i)))  # noqa: E731
            return cache.build(path, window.shape, count, one, lambda n: progress.advance(bar, n))
        finally:  # also when it is interrupted: what is done by then will not be read again
            found.say(name)


class NMNIST(Recordings):
    """N-MNIST: `Train/<digit>/<id>.bin` and `Test/<digit>/<id>.bin`, 34 x 34 pixels, about 300 ms.

    Args:
        root: the folder that holds Train and Test.
        train: which of the two.
        classes: the digits to take; labels are their places in this list.
        steps, bin_us: T, and the length of a time step.
        show: a progress bar while the cache is built.
    """

    SIZE = (34, 34)

    def __init__(
        self,
        root: str | Path,
        train: bool = True,
        *,
        classes: Sequence[int] = tuple(range(10)),
        steps: int = 60,
        bin_us: int = 5000,
        show: bool = True,
    ):
        root, window = Path(root), self.window(steps, bin_us)
        _check_classes(classes)
        part = "Train" if train else "Test"
        every = _files(root, f"{part}/[0-9]/*.bin", "Train/<digit>/<id>.bin")
        files = [path for path in every if int(path.parent.name) in classes]
        if not files:
            raise ValueError(f"classes: {root / part} has no recording of {list(classes)}; give digits that it has")
        path = _path("nmnist", {"steps": steps, "bin_us": bin_us}, files, root)
        bits = _binned(path, "nmnist", len(files), window, lambda i: events.read_nmnist(files[i]), show)
        super().__init__(bits, [list(classes).index(int(path.parent.name)) for path in files], [str(c) for c in classes])

    @classmethod
    def window(cls, steps: int, bin_us: int) -> Window:
        """All pixels; the clock of a file begins with its recording."""
        return Window(cls.SIZE, positive_int("steps", steps), positive_int("bin_us", bin_us))


class MNISTDVS(Recordings):
    """MNIST-DVS by the protocol of the BiSNN authors: `scale04/mnist_<digit>_scale04_<id>.aedat`, ids 1 to 900 of each digit to
    train and 901 to 1000 to test, a crop of the middle, 5 ms bins over 2 s.

    Args:
        root: the folder that holds scale04 (or scale08, scale16); folders between the two are looked into.
        train: ids up to 900, or those above.
        scale: 4, 8 or 16.
        crop: edge of the square in the middle of the 128 x 128 sensor that is kept.
        steps, bin_us: T, and the length of a time step.
        show: a progress bar while the cache is built.
    """

    SIZE = (128, 128)
    TRAINING_IDS = 900
    CENTRE = 61  # of the crop, on both axes: 26 pixels are [48, 73], those of the authors' code

    def __init__(
        self,
        root: str | Path,
        train: bool = True,
        *,
        scale: int = 4,
        crop: int = 26,
        steps: int = 400,
        bin_us: int = 5000,
        classes: Sequence[int] = tuple(range(10)),
        show: bool = True,
    ):
        root, window = Path(root), self.window(crop, steps, bin_us)
        choice("scale", f"{scale}", ("4", "8", "16"))
        _check_classes(classes)
        called = re.compile(rf"mnist_(\d)_scale{scale:02d}_(\d+)\.aedat")
        layout = f"scale{scale:02d}/mnist_<digit>_scale{scale:02d}_<id>.aedat"
        every = _files(root, f"**/scale{scale:02d}/*.aedat", layout)
        found = {path: match for path in every if (match := called.fullmatch(path.name))}
        digits = {path: int(match[1]) for path, match in found.items() if (int(match[2]) <= self.TRAINING_IDS) == train}
        files = sorted(path for path, digit in digits.items() if digit in classes)
        if not files:
            ids = "1 to 900" if train else "901 to 1000"
            raise ValueError(f"root: {root} has no recording of {list(classes)} with an id of {ids}; give the whole archive")
        path = _path("mnist_dvs", {"steps": steps, "bin_us": bin_us, "crop": crop}, files, root)
        bits = _binned(path, "mnist_dvs", len(files), window, lambda i: events.read_aedat(files[i]), show)
        super().__init__(bits, [list(classes).index(digits[path]) for path in files], [str(c) for c in classes])

    @classmethod
    def window(cls, crop: int, steps: int, bin_us: int) -> Window:
        """A square in the middle; time begins with the first event."""
        low = cls.corner(positive_int("crop", crop))
        square = (low, low, crop, crop)
        return Window(cls.SIZE, positive_int("steps", steps), positive_int("bin_us", bin_us), None, square)

    @classmethod
    def corner(cls, crop: int) -> int:
        """The first row and column of the sensor that a crop keeps."""
        if crop > cls.SIZE[0]:
            raise ValueError(f"crop: must fit the sensor's {cls.SIZE[0]} pixels; got {crop}; give e.g. 26")
        return min(max(cls.CENTRE - crop // 2, 0), cls.SIZE[0] - crop)


class FromTonic(Recordings):
    """A dataset of tonic's, or one like it: `len`, `[i]` -> (events, label), `sensor_size` (W, H, P).

    Spikes are (T, P, H, W); events without `y`, as SHD's, have H = 1. Classes have the names that the dataset has for them. Its
    transforms are applied once, when the cache is built.

    The cache is named by a digest of all that is known of the dataset: its class and the version of its package, its settings
    (`train`, `first_saccade_only`, ..., a transform by its `repr`), its length, its labels where it lists them (`targets`), and its
    files (`data`), by name, size and time of change. Where it lists no files, its first and last recording stand for them. A change
    that shows in none of these, say in the code of a transform, cannot be known: give another `name` then, or delete the file.

    Args:
        dataset: to read from; it may be anything with the attributes above.
        steps, bin_us: T, and the length of a time step.
        pool: edge of the squares of pixels that become one: pixel // pool.
        start_us: where the first time step begins; None, as with tonic's frames, with each recording's first event.
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
                f"name: must be letters, digits, '_', '.' and '-', as it begins a file's name; got {name!r}; change it"
            )
        if not count:
            raise ValueError(f"dataset: must have recordings; got a {name} of none; check its folder")
        window = self.window(getattr(dataset, "sensor_size", None), steps, bin_us, pool, start_us)
        files, known = _files_behind(dataset), dict[int, int]()  # labels of those that were read

        def read(i: int) -> events.Recording:
            place = files[i] if len(files) == count else f"{name}[{i}]"
            try:
                found, label = dataset[i]
            except Exception as error:  # whatever a damaged file makes its reader say
                raise events.BadEvents(f"{place}: cannot be read ({error}); copy or download it again") from error
            known[i] = _class_number(place, label)
            return events.from_array(found, window.size, str(place))

        def label_bits(i: int) -> np.ndarray:
            if i not in known:
                read(i)
            return np.unpackbits(np.array([known[i]], "<u4").view(np.uint8), bitorder="little")

        settings = {"window": repr(window), "dataset": _about(dataset, files)}
        path = _path(name, settings, files, Path(os.path.commonpath([file.parent for file in files])) if files else Path())
        bits = _binned(path, name, count, window, read, show)
        labels = cache.build(path.with_suffix(".labels"), (32,), count, label_bits).packed(range(count)).view("<u4")[:, 0]
        super().__init__(bits, labels.tolist(), _class_names(dataset, int(labels.max())))

    @staticmethod
    def window(sensor_size: Sequence[int] | None, steps: int, bin_us: int, pool: int = 1, start_us: int | None = None) -> Window:
        """All of a sensor of tonic's size (W, H, P)."""
        sizes = tuple(sensor_size) if isinstance(sensor_size, Sequence) else ()
        if len(sizes) != 3 or not all(isinstance(n, int) and n > 0 for n in sizes) or sizes[2] > 2:
            raise ValueError(f"dataset: its sensor_size must be (W, H, P) with P = 1 or 2; got {sensor_size}; set it to the size")
        width, height, channels = sizes
        length = positive_int("steps", steps), positive_int("bin_us", bin_us)
        return Window((width, height), *length, start_us, None, positive_int("pool", pool), channels)


def tonic_dataset(name: str, root: str | Path, train: bool) -> Any:
    """One of tonic's datasets, from the folder `root`; never downloaded, but where it is not there, an error says how to get it.

    tonic counts files and looks for the archive that it unpacked. Without that archive, what is there is taken as it is.
    """
    choice("dataset", name, tuple(TONIC))
    try:
        from tonic import datasets
    except ImportError:
        raise ValueError(f"dataset: tonic must be installed to read {name}; got none; run `pip install 'bisnn[tonic]'`") from None
    missing = []

    def download(self: Any) -> None:  # instead of tonic's own, which it calls where it does not find all
        place = Path(self.location_on_system, getattr(self, "data_filename", self.folder_name))
        there = place.is_file() or (place.is_dir() and any(file.is_file() for file in place.rglob("*")))
        if self._is_file_present() or not there:
            missing.append(place)
            raise FileNotFoundError(place)

    kind = getattr(datasets, name)
    try:
        dataset = type(name, (kind,), {"download": download, "__module__": kind.__module__})(str(root), train=train)
    except Exception as error:  # whatever a damaged file makes tonic say
        if missing:
            get = f"from tonic.datasets import {name} as D; [D({str(root)!r}, train=t) for t in (True, False)]"
            raise ValueError(
                f"root: tonic looks for {name} in {missing[0]}, where it is not, or not whole; bisnn downloads nothing: get it "
                f'with: python -c "{get}"'
            ) from None
        raise ValueError(f"root: tonic cannot read {name} in {root} ({error}); download it again") from error
    order = sorted(range(len(dataset.data)), key=dataset.data.__getitem__)  # by name: tonic may have them in the disk's own order
    dataset.data, dataset.targets = ([some[i] for i in order] for some in (dataset.data, dataset.targets))
    return dataset


def _files_behind(dataset: Any) -> list[Path]:
    """The files that a dataset of tonic's reads: one a recording in `data`, or one for all of them; none where it does not say."""
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
    about["version"] = getattr(sys.modules.get(kind.__module__.partition(".")[0]), "__version__", "")
    about["labels"] = hashlib.blake2b(repr(list(getattr(dataset, "targets", ()))).encode(), digest_size=16).hexdigest()
    for name, value in vars(dataset).items():
        if isinstance(value, (bool, int, float, str)) and name != "location_on_system":  # a folder may move
            about[f".{name}"] = value
        elif isinstance(value, (list, tuple, range, np.ndarray)) and name not in ("data", "targets"):  # e.g. a subset's indices
            about[f".{name}"] = hashlib.blake2b(repr(np.asarray(value).tolist()).encode(), digest_size=16).hexdigest()
        elif name == "dataset" and hasattr(value, "__len__"):  # that a subset is of
            behind = _files_behind(value)
            stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in behind]
            about[".dataset"] = [_about(value, behind), hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest()]
        elif "transform" in name and value is not None:
            about[f".{name}"] = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    if not files:
        digest = hashlib.blake2b(digest_size=16)
        for found, label in (dataset[0], dataset[len(dataset) - 1]):
            digest.update(f"{label} {getattr(found, 'dtype', '')}".encode() + np.asarray(found).tobytes())
        about["recordings"] = digest.hexdigest()
    return about


def _class_number(place: object, label: Any) -> int:
    try:
        number = operator.index(label)
    except TypeError:
        number = -1
    if not 0 <= number < MOST_CLASSES:
        raise ValueError(
            f"dataset: labels must be numbers of classes, from 0 on; got {label!r} in {place}; give it a target_transform"
        )
    return number


def _class_names(dataset: Any, last: int) -> list[str]:
    """Names of the classes 0 to `last`, or more: the dataset's own, where it has a list of them."""
    given = getattr(dataset, "classes", None)
    if not isinstance(given, (list, tuple, np.ndarray)) or not len(given):
        return [str(i) for i in range(last + 1)]
    if len(given) <= last:
        raise ValueError(f"dataset: must have a name in `classes` for each label; got {len(given)} and label {last}; correct it")
    return [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in given]


def _check_classes(classes: Sequence[int]) -> None:
    good = len(classes) > 0 and all(isinstance(c, int) and 0 <= c <= 9 for c in classes) and len(set(classes)) == len(classes)
    if not good:
        raise ValueError(f"classes: must be distinct digits from 0 to 9; got {list(classes)}; give e.g. [6, 7, 8, 9]")
