"""Event-camera datasets, binned, one bit each, cached on disk: MNIST-DVS and N-MNIST as their
archives unpack.

A dataset is a sequence of (spikes, label): spikes uint8 (T, C, H, W), 0 or 1; channel p is polarity
p. It works with torch's DataLoader as it is; its files are read once, when the cache is built (see
`cache`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bisnn.checks import choice, positive_int
from bisnn.data import cache, events
from bisnn.data.windows import Found, Window, count_of_recordings
from bisnn.display import bars
from bisnn.kernels.graphs import to_device

FORMAT = 1  # of the bits: another number, and caches are built anew


class Source(NamedTuple):
    """Where a dataset's bits come from: the events of each recording, through a window.

    A loader's processes get a copy of it: no lambda.
    """

    window: Window
    read: Callable[[int], events.Recording]


class Recordings:
    """A sequence of (spikes (T, C, H, W) uint8, label)."""

    def __init__(
        self,
        bits: cache.Bits,
        labels: Sequence[int],
        names: Sequence[str],
        source: Source | None = None,
    ):
        self.bits, self.names, self.source = bits, tuple(names), source
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

    def digest(self, index: Tensor) -> bytes:
        """A fingerprint of some of the recordings, those of `index`."""
        return self.bits.digest(index.numpy())

    def batch(self, index: Tensor | Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, those of `index`, uint8 (T, B, C, H, W) on a `device`; a
        GPU gets bits and unpacks them.
        """
        if torch.device(device).type == "cpu":
            return torch.from_numpy(self.bits.read(np.asarray(index))).movedim(0, 1)
        packed = to_device(torch.from_numpy(self.bits.packed(np.asarray(index))), device)
        bits = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=device) & 1
        return bits.flatten(1)[:, : math.prod(self.shape)].reshape(-1, *self.shape).movedim(0, 1)


class ChangedRecordings:
    """A dataset's recordings with their events changed before they become spikes.

    They are read again for every batch, and nothing is cached: each change would take as much disk
    as the dataset.
    """

    def __init__(self, source: Source, change: Callable[[events.Recording], events.Recording]):
        self.source, self.change = source, change

    def batch(self, index: Tensor | Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, uint8 (T, B, C, H, W)."""
        window, read = self.source
        frames = [window.frames(self.change(read(int(i)))) for i in index]
        return to_device(torch.from_numpy(np.stack(frames, 1)), device)


def _read(
    reader: Callable[[Path], events.Recording], files: Sequence[Path], i: int
) -> events.Recording:
    return reader(files[i])


def _files(root: Path, pattern: str, layout: str) -> list[Path]:
    if not root.is_dir():
        raise ValueError(
            f"root: there is no folder {root}; unpack the archive and give the folder that holds "
            f"{layout}"
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


def binned(path: Path, name: str, count: int, source: Source, show: bool) -> cache.Bits:
    """The bits of recordings, from the cache or made now, and a line on what was left out."""
    if path.exists():
        return cache.Bits(path)
    found, (window, read) = Found(), source
    with bars(show=show) as progress:
        bar = progress.add_task(f"{name}: {count_of_recordings(count)}", total=count)
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
                f"classes: {root / part} has no recording of {list(classes)}; "
                "give digits that it has"
            )
        path = path_of("nmnist", {"steps": steps, "bin_us": bin_us}, files, root)
        source = Source(window, partial(_read, events.read_nmnist, files))
        bits = binned(path, "nmnist", len(files), source, show)
        super().__init__(
            bits,
            [list(classes).index(int(path.parent.name)) for path in files],
            [str(c) for c in classes],
            source,
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
        classes: the digits to take; labels are their places in this list.
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
                f"root: {root} has {len(folders)} folders of such recordings, {some}; "
                "give the one that is meant"
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
                f"root: {root} has no recording of {list(classes)} with an id of {ids}; "
                "give the whole archive"
            )
        path = path_of("mnist_dvs", {"steps": steps, "bin_us": bin_us, "crop": crop}, files, root)
        source = Source(window, partial(_read, events.read_aedat, files))
        bits = binned(path, "mnist_dvs", len(files), source, show)
        super().__init__(
            bits,
            [list(classes).index(digits[path]) for path in files],
            [str(c) for c in classes],
            source,
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
            f"classes: must be distinct digits from 0 to 9; got {list(classes)}; "
            "give e.g. [6, 7, 8, 9]"
        )
