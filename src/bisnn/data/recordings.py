"""Event-camera datasets in the layout of their official archives: MNIST-DVS and N-MNIST, binned, one bit each, cached on disk.

A dataset is a sequence of (spikes, label): spikes uint8 (T, 2, H, W), 0 or 1; channel 0 is OFF, 1 is ON. It works with torch's
DataLoader as it is; its files are read once, when the cache is built (see `cache`).
"""

from __future__ import annotations

import math
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

    def batch(self, index: Tensor | Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, uint8 (T, B, 2, H, W). To a GPU go bits, which are unpacked there."""
        if torch.device(device).type == "cpu":
            return torch.from_numpy(self.bits.read(np.asarray(index))).movedim(0, 1)
        packed = torch.from_numpy(self.bits.packed(np.asarray(index))).to(device)
        bits = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=device) & 1
        return bits.flatten(1)[:, : math.prod(self.shape)].reshape(-1, *self.shape).movedim(0, 1)


class Clips:
    """Some recordings of a dataset, in some order: what a split of points is to a table."""

    def __init__(self, recordings: Recordings, index: Tensor):
        self.recordings, self.index = recordings, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, chosen: Tensor | slice) -> Clips:
        return Clips(self.recordings, self.index[chosen])

    def spikes(self, device: torch.device | str = "cpu") -> Tensor:
        """uint8 (T, B, 2, H, W)."""
        return self.recordings.batch(self.index, device)

    def digest(self) -> bytes:
        return self.recordings.bits.path.name.encode() + self.index.numpy().tobytes()


def augmented(x: Tensor, how: Augment, seed: int, epoch: int, samples: Tensor) -> Tensor:
    """Recordings x, uint8 (T, B, C, H, W), each shifted, begun earlier or later, and thinned, by draws of (seed, epoch, sample).

    Works on the spikes alone, which are few, on their device.
    """
    if how == Augment():
        return x
    samples = samples.to(x.device)
    key = (seed, encode.AUGMENT, epoch)
    most = torch.tensor([how.jitter, how.shift, how.shift], device=x.device)
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
