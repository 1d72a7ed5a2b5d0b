"""Event-camera datasets in the layout of their official archives: MNIST-DVS and N-MNIST, binned, one bit each, cached on disk.

A dataset is a sequence of (spikes, label): spikes uint8 (T, 2, H, W), 0 or 1; channel 0 is OFF, 1 is ON. It works with torch's
DataLoader as it is; its files are read once, when the cache is built (see `cache`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn import encode
from bisnn.checks import choice, positive_int
from bisnn.config import Augment
from bisnn.data import cache, events
from bisnn.display import bars

FORMAT = 1  # of the bits: another number, and caches are built anew


class Recordings:
    """A sequence of (spikes (T, 2, H, W) uint8, label)."""

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
        """(T, 2, H, W) of a recording."""
        return self.bits.shape

    def batch(self, index: Tensor | Sequence[int]) -> Tensor:
        """Spikes of several recordings, uint8 (T, B, 2, H, W)."""
        return torch.from_numpy(self.bits.read(np.asarray(index))).movedim(0, 1)


class Clips:
    """Some recordings of a dataset, in some order: what a split of points is to a table."""

    def __init__(self, recordings: Recordings, index: Tensor):
        self.recordings, self.index = recordings, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: Tensor | slice) -> Clips:
        return Clips(self.recordings, self.index[chosen])

    def spikes(self) -> Tensor:
        """uint8 (T, B, 2, H, W)."""
        return self.recordings.batch(self.index)

    def digest(self) -> bytes:
        return self.recordings.bits.path.name.encode() + self.index.numpy().tobytes()


def augmented(x: Tensor, how: Augment, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Recordings x, uint8 (T, B, C, H, W), each shifted, begun earlier or later, and thinned, by draws of (seed, epoch, sample)."""
    if how == Augment():
        return x
    out = torch.zeros_like(x)
    for b, sample in enumerate(samples.tolist()):
        rng = encode.keyed_rng(seed, encode.AUGMENT, epoch, sample)
        moves = [int(rng.integers(-most, most + 1)) for most in (how.jitter, how.shift, how.shift)]
        ours, theirs = zip(*(_overlap(n, by) for n, by in zip((x.shape[0], *x.shape[3:]), moves, strict=True)), strict=True)
        out[ours[0], b, :, ours[1], ours[2]] = x[theirs[0], b, :, theirs[1], theirs[2]]
        if how.drop:
            one = out[:, b]
            active = one.nonzero(as_tuple=True)
            lost = torch.from_numpy(rng.random(len(active[0])) < how.drop)
            one[tuple(axis[lost] for axis in active)] = 0
    return out


def _overlap(n: int, by: int) -> tuple[slice, slice]:
    """Where an axis of n is written, and where it is read, if it moves `by`."""
    return slice(max(by, 0), n + min(by, 0)), slice(max(-by, 0), n - max(by, 0))


def _files(root: Path, pattern: str, layout: str) -> list[Path]:
    if not root.is_dir():
        raise ValueError(f"root: there is no folder {root}; unpack the archive and give the folder that holds {layout}")
    found = sorted(path for path in root.glob(pattern) if path.is_file())
    if not found:
        raise ValueError(f"root: {root} holds no files {pattern}; give the folder that holds {layout}")
    return found


def _binned(
    name: str,
    root: Path,
    files: list[Path],
    settings: dict[str, Any],
    shape: tuple[int, ...],
    record: Callable[[Path], np.ndarray],
    show: bool,
) -> cache.Bits:
    """The bits of these files, from the cache or made now, with a progress bar."""
    about = {"format": FORMAT, "name": name, **settings}
    path = cache.folder() / f"{name}-{cache.key(about, files, root)}.bits"
    if path.exists():
        return cache.Bits(path)
    with bars(show=show) as progress:
        bar = progress.add_task(f"{name}: {len(files)} recordings", total=len(files))
        return cache.build(path, shape, len(files), lambda i: record(files[i]), lambda n: progress.advance(bar, n))


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
        root, width, height = Path(root), *self.SIZE
        positive_int("steps", steps)
        positive_int("bin_us", bin_us)
        _check_classes(classes)
        part = "Train" if train else "Test"
        every = _files(root, f"{part}/[0-9]/*.bin", "Train/<digit>/<id>.bin")
        files = [path for path in every if int(path.parent.name) in classes]
        if not files:
            raise ValueError(f"classes: {root / part} has no recording of {list(classes)}; give digits that it has")
        shape = (steps, 2, height, width)
        settings = {"steps": steps, "bin_us": bin_us}

        def record(path: Path) -> np.ndarray:
            seen = events.read_nmnist(path)  # its clock begins with the recording
            return events.bin_events(seen.events, steps, bin_us, size=self.SIZE)

        bits = _binned("nmnist", root, files, settings, shape, record, show)
        super().__init__(bits, [list(classes).index(int(path.parent.name)) for path in files], [str(c) for c in classes])


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
        root, low = Path(root), self.corner(positive_int("crop", crop))
        choice("scale", f"{scale}", ("4", "8", "16"))
        for name, value in (("steps", steps), ("bin_us", bin_us)):
            positive_int(name, value)
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
        settings = {"steps": steps, "bin_us": bin_us, "crop": crop}

        def record(path: Path) -> np.ndarray:
            seen = events.read_aedat(path)
            square = (low, low, crop, crop)
            return events.bin_events(seen.events, steps, bin_us, start_us=seen.start_us, crop=square, size=self.SIZE)

        bits = _binned("mnist_dvs", root, files, settings, (steps, 2, crop, crop), record, show)
        super().__init__(bits, [list(classes).index(digits[path]) for path in files], [str(c) for c in classes])

    @classmethod
    def corner(cls, crop: int) -> int:
        """The first row and column of the sensor that a crop keeps."""
        if crop > cls.SIZE[0]:
            raise ValueError(f"crop: must fit the sensor's {cls.SIZE[0]} pixels; got {crop}; give e.g. 26")
        return min(max(cls.CENTRE - crop // 2, 0), cls.SIZE[0] - crop)


def _check_classes(classes: Sequence[int]) -> None:
    good = len(classes) > 0 and all(isinstance(c, int) and 0 <= c <= 9 for c in classes) and len(set(classes)) == len(classes)
    if not good:
        raise ValueError(f"classes: must be distinct digits from 0 to 9; got {list(classes)}; give e.g. [6, 7, 8, 9]")
