"""Event-camera datasets, binned, one bit each, cached on disk: MNIST-DVS and N-MNIST as their
archives unpack.

A dataset is a sequence of (spikes, label): spikes uint8 (T, C, H, W), 0 or 1; channel p is polarity
p. It works with torch's DataLoader as it is; its files are read once, when the cache is built (see
`cache`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn.bits.philox import Purpose
from bisnn.checks import choice, positive_int
from bisnn.data import cache, events
from bisnn.display import bars, note
from bisnn.kernels import draws
from bisnn.kernels.graphs import to_device
from bisnn.runs.config import Augment

FORMAT = 1  # of the bits: another number, and caches are built anew


@dataclass(frozen=True)
class Window:
    """What of a recording becomes spikes: which pixels, and from when on."""

    size: tuple[int, int]  # width, height of the sensor
    steps: int  # T
    bin_us: int  # length of a time step
    start_us: int | None = 0  # where the first one begins; None: with the first event
    crop: tuple[int, int, int, int] | None = (
        None  # x0, y0, width, height of the part that is kept; None: all
    )
    # Edge of the squares of pixels that become one; those at the edge of the sensor may be smaller
    pool: int = 1
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
        looks: dict[str, Any] = {
            "size": (width, height),
            "start_us": start_us,
            "crop": self.crop,
            "shrink": self.pool,
        }
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
        parts = (
            ("events left out of", self.with_skipped, self.skipped),
            ("times put right in", self.with_clock, self.clock),
        )
        said = [
            f"{what} {_recordings(n)} ({', '.join(f'{why}: {k:,}' for why, k in by.items())})"
            for what, n, by in parts
            if n
        ]
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
        """Spikes of several recordings, uint8 (T, B, C, H, W). To a GPU go bits, which are unpacked
        there.
        """
        if torch.device(device).type == "cpu":
            return torch.from_numpy(self.bits.read(np.asarray(index))).movedim(0, 1)
        packed = to_device(torch.from_numpy(self.bits.packed(np.asarray(index))), device)
        bits = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=device) & 1
        return bits.flatten(1)[:, : math.prod(self.shape)].reshape(-1, *self.shape).movedim(0, 1)


class Loose:
    """Recordings of no dataset: files and arrays of events, each read when it is looked at, all by
    one window.
    """

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
                f"recordings[{i}]: must be a file, or an array of events; got {type(source).__name__}; give e.g. its path"
            )
        if isinstance(source, np.ndarray):
            return events.from_array(source, size, f"recordings[{i}]")
        seen = source if isinstance(source, events.Recording) else events.read_events(source)
        if seen.size != size:
            name = f"recordings[{i}]" if source is seen else source
            got, wanted = (f"{width} x {height} pixels" for width, height in (seen.size, size))
            raise events.BadEvents(
                f"{name}: must have the {wanted} that the model was trained on; got {got}; give another file"
            )
        return seen

    def say(self) -> None:
        """What the user should know of those that were read."""
        self.found.say("recordings")
        if self.silent:
            until = f"{self.window.steps} time steps of {self.window.bin_us:,} us"
            note(
                f"recordings: {_recordings(self.silent)} without an event in what the model looks at, the first {until}"
            )


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    """Files as they are named, and of folders all recordings in them, in the order of their names."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in events.SUFFIXES and file.name[0] != "."
        )
        if not inside:
            raise ValueError(
                f"{path}: is a folder without recordings; it must hold {' or '.join(events.SUFFIXES)} files"
            )
        files += inside
    return files


class Clips:
    """Some recordings of a dataset, in some order: what a split of points is to a table. Or some
    loose ones.
    """

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
        return self.recordings.bits.digest(self.index.numpy())


def augmented(x: Tensor, how: Augment, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Recordings x, uint8 (T, B, C, H, W), each turned, resized, shifted, begun earlier or later,
    and thinned.

    By draws of (seed, epoch, sample). What to look at is worked out on the CPU, so that every
    device sees the same bits.
    """
    if how == Augment():
        return x
    drawn = draws.uniform(
        samples.cpu(), 5, seed, Purpose.AUGMENTATION, epoch
    )  # (B, 5): for t, rows, columns, angle, size
    if how.rotate or how.zoom or how.shift:
        x = _moved(x, how, drawn)
    if how.jitter:
        t = torch.arange(len(x))[:, None] - _steps(drawn[:, 0], how.jitter)  # (T, B)
        t = to_device(t, x.device)[..., None, None, None]
        x = x.gather(0, t.clamp(0, len(x) - 1).expand(x.shape)) * ((t >= 0) & (t < len(x)))
    return _thinned(x, how.drop, seed, epoch, to_device(samples, x.device)) if how.drop else x


def _steps(u: Tensor, most: int) -> Tensor:
    """Whole numbers from -most to most, from draws in [0, 1)."""
    return (u * (2 * most + 1)).long() - most


def _moved(x: Tensor, how: Augment, drawn: Tensor) -> Tensor:
    """Turned and resized about the middle of the pixels, then shifted: every pixel sees what the
    nearest to its source saw.

    One row of sensors, as SHD's, is not turned, and does not move off itself.
    """
    height, width = x.shape[3:]
    of_a_plane = min(height, width) > 1
    turn = torch.deg2rad(of_a_plane * how.rotate * (2 * drawn[:, 3].double() - 1))
    size = 1 + of_a_plane * how.zoom * (2 * drawn[:, 4].double() - 1)
    cos, sin = ((part / size)[:, None, None] for part in (turn.cos(), turn.sin()))  # (B, 1, 1)
    middle = torch.tensor([height - 1, width - 1]) / 2
    h, w = (
        torch.arange(side) - centre - _steps(u, how.shift if side > 1 else 0)[:, None]  # (B, side)
        for side, centre, u in zip((height, width), middle.double(), drawn[:, 1:3].T, strict=True)
    )
    rows = (cos * h[:, :, None] + sin * w[:, None] + middle[0]).round().long()  # (B, H, W)
    columns = (cos * w[:, None] - sin * h[:, :, None] + middle[1]).round().long()
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    source = torch.where(inside, rows * width + columns, height * width).flatten(
        1
    )  # (B, H W); the last sees nothing
    seen = torch.nn.functional.pad(x.flatten(3), (0, 1))
    return seen.gather(
        3, to_device(source, x.device)[None, :, None].expand(*x.shape[:3], -1)
    ).reshape(x.shape)


def _thinned(x: Tensor, share: float, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Without this share of the spikes. Draws are made for the spikes alone, which are few."""
    t, b, c, h, w = spikes = x.nonzero(as_tuple=True)
    place = ((t * x.shape[2] + c) * x.shape[3] + h) * x.shape[4] + w
    out = torch.zeros_like(x)
    out[spikes] = (
        draws.uniform_at(place, samples[b], seed, Purpose.LOST_SPIKES, epoch) >= share
    ).to(x.dtype)
    return out


def _files(root: Path, pattern: str, layout: str) -> list[Path]:
    if not root.is_dir():
        raise ValueError(
            f"root: there is no folder {root}; unpack the archive and give the folder that holds {layout}"
        )
    found = sorted(path for path in root.glob(pattern) if path.is_file())
    if not found:
        raise ValueError(
            f"root: {root} holds no files {pattern}; give the folder that holds {layout}"
        )
    return found


def path_of(name: str, settings: dict[str, Any], files: Sequence[Path], root: Path) -> Path:
    """The cache file of what these files give with these settings."""
    return (
        cache.folder()
        / f"{name}-{cache.key({'format': FORMAT, 'name': name, **settings}, files, root)}.bits"
    )


def binned(
    path: Path,
    name: str,
    count: int,
    window: Window,
    read: Callable[[int], events.Recording],
    show: bool,
) -> cache.Bits:
    """The bits of recordings, from the cache or made now, with a progress bar and a line on what
    was left out of them.
    """
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
            raise ValueError(
                f"classes: {root / part} has no recording of {list(classes)}; give digits that it has"
            )
        path = path_of("nmnist", {"steps": steps, "bin_us": bin_us}, files, root)
        bits = binned(
            path, "nmnist", len(files), window, lambda i: events.read_nmnist(files[i]), show
        )
        super().__init__(
            bits,
            [list(classes).index(int(path.parent.name)) for path in files],
            [str(c) for c in classes],
        )

    @classmethod
    def window(cls, steps: int, bin_us: int) -> Window:
        """All pixels; the clock of a file begins with its recording."""
        return Window(cls.SIZE, positive_int("steps", steps), positive_int("bin_us", bin_us))


class MNISTDVS(Recordings):
    """MNIST-DVS as the BiSNN authors' code has it: `scale04/mnist_<digit>_scale04_<id>.aedat`, ids
    1 to 900 of each digit to train and 901 to 1000 to test, a crop of the middle, 5 ms bins over 2
    s.

    Args:
        root: the folder that holds scale04 (or scale08, scale16); folders between the two are
            looked into.
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
        folders = sorted({path.parent for path in found})
        if len(folders) > 1:
            some = f"{folders[0]} and {folders[1]}" + (", for instance" if len(folders) > 2 else "")
            raise ValueError(
                f"root: {root} has {len(folders)} folders of such recordings, {some}; give the one that is meant"
            )
        digits = {
            path: int(match[1])
            for path, match in found.items()
            if (int(match[2]) <= self.TRAINING_IDS) == train
        }
        files = sorted(path for path, digit in digits.items() if digit in classes)
        if not files:
            ids = "1 to 900" if train else "901 to 1000"
            raise ValueError(
                f"root: {root} has no recording of {list(classes)} with an id of {ids}; give the whole archive"
            )
        path = path_of("mnist_dvs", {"steps": steps, "bin_us": bin_us, "crop": crop}, files, root)
        bits = binned(
            path, "mnist_dvs", len(files), window, lambda i: events.read_aedat(files[i]), show
        )
        super().__init__(
            bits, [list(classes).index(digits[path]) for path in files], [str(c) for c in classes]
        )

    @classmethod
    def window(cls, crop: int, steps: int, bin_us: int) -> Window:
        """A square in the middle; time begins with the first event."""
        low = cls.corner(positive_int("crop", crop))
        square = (low, low, crop, crop)
        return Window(
            cls.SIZE, positive_int("steps", steps), positive_int("bin_us", bin_us), None, square
        )

    @classmethod
    def corner(cls, crop: int) -> int:
        """The first row and column of the sensor that a crop keeps."""
        if crop > cls.SIZE[0]:
            raise ValueError(
                f"crop: must fit the sensor's {cls.SIZE[0]} pixels; got {crop}; give e.g. 26"
            )
        return min(max(cls.CENTRE - crop // 2, 0), cls.SIZE[0] - crop)


def _check_classes(classes: Sequence[int]) -> None:
    good = (
        len(classes) > 0
        and all(isinstance(c, int) and 0 <= c <= 9 for c in classes)
        and len(set(classes)) == len(classes)
    )
    if not good:
        raise ValueError(
            f"classes: must be distinct digits from 0 to 9; got {list(classes)}; give e.g. [6, 7, 8, 9]"
        )
