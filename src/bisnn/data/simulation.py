"""Datasets made by the simulated camera: MNIST, or the digits that come with scikit-learn, in front
of a DVS.

`simulate` writes recordings in the layout of MNIST-DVS, so that `MNISTDVS` reads them as it reads
the real ones. `Digits` is binned straight into the cache; scikit-learn's need no file at all: what
`make demo` learns from.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bisnn.checks import choice, positive_int
from bisnn.data import cache, events
from bisnn.data.archives import MNISTDVS, Recordings, Source
from bisnn.data.camera import MNIST_DVS, MNIST_DVS_MOTION, Camera, binned, record
from bisnn.data.motion import Area, Motion
from bisnn.display import bars, note
from bisnn.files import afford, open_regular, read_bytes, write_atomic

__all__ = ["Digits", "mnist", "read_idx", "simulate", "sklearn_digits"]

FORMAT = 1  # of what is made: another number, and caches are built anew
TOGETHER, TOGETHER_ON_GPU = 64, 1024  # images simulated at a time
MOST_IMAGES = 10**6
SOME = 0.2  # share of each class of scikit-learn's digits that tests: the last of them
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def sklearn_digits() -> tuple[Tensor, np.ndarray]:
    """The 1,797 digits of scikit-learn, grown to MNIST's format, float32 in [0, 1]; labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    small = torch.from_numpy(data.images / 16).float()[:, None]
    grown = torch.nn.functional.interpolate(small, (20, 20), mode="bilinear", align_corners=False)[
        :, 0
    ]
    return torch.nn.functional.pad(grown, (4, 4, 4, 4)), data.target


def mnist_labels(folder: Path) -> np.ndarray:
    """The labels of MNIST's training images."""
    labels = read_idx(_found(folder, NAMES[1]), 1)
    if labels.max(initial=0) > 9:
        raise ValueError(
            f"{folder}: must have labels 0 to 9; got {labels.max()}; take MNIST's files"
        )
    return labels.astype(np.int64)


def mnist(folder: Path) -> tuple[Tensor, np.ndarray]:
    """MNIST's training images, float32 in [0, 1], and labels, from the idx files in `folder`,
    gzipped or not.
    """
    images, labels = read_idx(_found(folder, NAMES[0]), 3), mnist_labels(folder)
    if len(images) != len(labels):
        counts = f"{len(labels)} and {len(images)}"
        raise ValueError(
            f"{folder}: must have as many labels as images; got {counts}; take MNIST's files"
        )
    return torch.from_numpy(images.astype(np.float32) / 255), labels


def _found(folder: Path, name: str) -> Path:
    paths = [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]
    if not paths:
        raise ValueError(f"{folder}: has no {name} or {name}.gz; give the folder of MNIST's files")
    return paths[0]


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The idx file of bytes `path`, gzipped if its name ends so: 0 0 8 `axes`, the sizes as
    big-endian uint32, then the bytes.

    No more is unpacked than the sizes say, and nothing before they are affordable.
    """
    with open_regular(path) as raw:
        try:
            with gzip.open(raw) if path.suffix == ".gz" else raw as file:
                head = file.read(4 + 4 * axes)
                sizes = struct.unpack(f">{axes}I", head[4:])
                if (
                    head[:4] != bytes([0, 0, 8, axes])
                    or sizes[0] > MOST_IMAGES
                    or any(size > 256 for size in sizes[1:])
                ):
                    raise ValueError("another kind of file")
                count = math.prod(sizes)
                packs = 1032 if path.suffix == ".gz" else 1  # bytes that gzip makes one of, at most
                if count > packs * os.fstat(raw.fileno()).st_size:
                    raise ValueError(f"it claims {count:,} bytes, which it cannot hold")
                # As bytes, and as floats, twice
                afford(path, 9 * count, f"what is {sizes} bytes", _TooLarge)
                content = file.read(count + 1)
            if len(content) != count:
                raise ValueError("longer or shorter than it says")
        except _TooLarge as error:
            raise ValueError(str(error)) from None
        except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
            raise ValueError(
                f"{path}: is damaged or no idx file of {axes} axes ({error}); take the original"
            ) from None
    return np.frombuffer(content, np.uint8).reshape(sizes)


class _TooLarge(ValueError):
    """A file that may be whole, but asks for too much."""


def simulate(
    out: str | Path,
    images: str | Path = "digits",
    *,
    per_class: int = 1000,
    seed: int = 0,
    device: str = "cpu",
    show: bool = True,
) -> int:
    """Write recordings of images in front of the camera as
    `OUT/scale04/mnist_<digit>_scale04_<id>.aedat`; returns how many.

    Files that are there already are left as they are, so an interrupted simulation goes on. As with
    MNIST-DVS, ids from 901 on are to test with: of MNIST, images 901 to 1,000 of each digit; of
    scikit-learn's digits, the last fifth.

    Args:
        out: folder, made if it is not there.
        images: "digits", those of scikit-learn, or the folder of MNIST's idx files.
        per_class: recordings of each digit, at most.
        seed: of all noise.
        device: where to simulate, "cpu" or "cuda".
        show: a progress bar.
    """
    _check_request(per_class, device)
    own = str(images) == "digits"
    pictures, labels = sklearn_digits() if own else mnist(Path(images))
    folder, signed = Path(out) / "scale04", Path(out) / "simulation.json"
    source = {"images": "digits" if own else "mnist", "content": _digest(pictures, labels)}
    if not signed.exists() and folder.is_dir() and any(folder.iterdir()):
        raise ValueError(
            f"out: {folder} holds files that were not simulated there (no {signed.name} says so); "
            "give another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _sign(signed, {**source, "seed": seed})
    chosen = [
        (i, folder / f"mnist_{digit}_scale04_{number:04d}.aedat")
        for digit in range(10)
        for i, number in _numbered(np.flatnonzero(labels == digit), per_class, own)
    ]
    if not any(int(path.stem[-4:]) > MNISTDVS.TRAINING_IDS for _, path in chosen):
        least = 3 if own else MNISTDVS.TRAINING_IDS + 1
        note(
            f"per_class: {per_class} of each digit are all to train with, none to test; "
            f"ask for {least} or more to have both"
        )
    left = [(i, path) for i, path in chosen if not path.exists()]
    with bars(show=show) as progress:
        bar = progress.add_task("recordings", total=len(chosen), completed=len(chosen) - len(left))
        for first in range(0, len(left), TOGETHER):
            part = left[first : first + TOGETHER]
            index = [i for i, _ in part]
            light = pictures[index].to(device)
            recordings = record(light, MNIST_DVS, MNIST_DVS_MOTION, seed=seed, samples=index)
            for (_, path), recording in zip(part, recordings, strict=True):
                events.write_aedat(path, recording)
            progress.advance(bar, len(part))
    return len(chosen)


def _check_request(per_class: int, device: str) -> None:
    positive_int("per_class", per_class)
    if per_class > 9999:
        raise ValueError(
            "per_class: must be at most 9999, the ids that the files' names have room for; "
            f"got {per_class}; lower it"
        )
    choice("device", device, ("cpu", "cuda"))
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: PyTorch finds no GPU here; got 'cuda'; use 'cpu'")


def _digest(pictures: Tensor, labels: np.ndarray) -> str:
    content = hashlib.blake2b(pictures.numpy().data, digest_size=16)
    content.update(labels.data)
    return content.hexdigest()


def _numbered(which: np.ndarray, per_class: int, own: bool) -> list[tuple[int, int]]:
    """Images of a digit with their fixed ids; those up to 900 train, the others test."""
    if not own:
        return [(int(i), place + 1) for place, i in enumerate(which[:per_class])]
    training = round(len(which) * (1 - SOME))
    parts = (
        (which[:training], 1, round(per_class * (1 - SOME))),
        (which[training:], MNISTDVS.TRAINING_IDS + 1, round(per_class * SOME)),
    )
    return [
        (int(i), first + place)
        for part, first, most in parts
        for place, i in enumerate(part[:most])
    ]


def _sign(path: Path, settings: dict[str, Any]) -> None:
    """Note what a folder is made from, or see that it is made from the same."""
    settings = {
        "format": FORMAT,
        **settings,
        "camera": asdict(MNIST_DVS),
        "motion": asdict(MNIST_DVS_MOTION),
    }
    text = json.dumps(settings, indent=1) + "\n"
    if not path.exists():
        write_atomic(path, text.encode())
    elif read_bytes(path) != text.encode():
        raise ValueError(
            f"out: {path.parent} was made with other images, another seed or another camera "
            f"({path.name}); give another folder"
        )


class Scene(NamedTuple):
    """How pictures are shown to a camera, and which of its pixels count."""

    camera: Camera
    motion: Motion
    window: Area


def looked_at(
    name: str,
    pictures: Callable[[], Tensor],
    samples: Sequence[int],
    scene: Scene,
    *,
    bin_us: int,
    seed: int,
    device: str,
    source: str,
    show: bool,
) -> cache.Bits:
    """Recordings of pictures, binned, from the cache or made now, with a progress bar.

    Args:
        name: of the cache file and of the bar.
        pictures: gives them, (N, h, w) in [0, 1]; called only if the cache lacks their recordings.
        samples: N numbers, which key the camera's noise.
        source: a digest of where the pictures come from.
    """
    camera, motion, window = scene
    about = {
        "format": FORMAT,
        "camera": asdict(camera),
        "motion": asdict(motion),
        "window": window,
        "samples": list(samples),
    }
    about |= {"seed": seed, "device": device, "bin_us": bin_us, "source": source}
    path = cache.folder() / f"{name}-{cache.key(about, [], Path())}.bits"
    together = TOGETHER if device == "cpu" else TOGETHER_ON_GPU
    read = functools.cache(pictures)

    @functools.lru_cache(1)
    def some(first: int) -> np.ndarray:  # (T, B, 2, height, width)
        part = slice(first, first + together)
        seen = read()[part].to(device)
        return (
            binned(
                seen, camera, motion, bin_us=bin_us, seed=seed, samples=samples[part], window=window
            )
            .cpu()
            .numpy()
        )

    with bars(show=show and not path.exists()) as progress:
        bar = progress.add_task(f"{name}: looking at them", total=len(samples))
        one = lambda i: some(i - i % together)[:, i % together]  # noqa: E731
        shape = (-(-motion.duration_us // bin_us), 2, window[3], window[2])
        return cache.build(path, shape, len(samples), one, lambda n: progress.advance(bar, n))


class Digits(Recordings):
    """Digits in front of the simulated camera, cropped and binned, straight into the cache.

    Those of scikit-learn, the first 1,437 to train and the last 360 to test, once round a path of
    their own; or, as in MNIST-DVS, 1,000 of each digit of MNIST, 900 to train and 100 to test, as
    `simulate` shows them, without its files.

    Args:
        train: which of the two.
        images: "digits", those of scikit-learn, or the folder of MNIST's idx files.
        steps, bin_us: T, and the length of a time step; together they say how long the camera
            looks.
        crop: edge of the square that is kept, as in `MNISTDVS`.
        seed: of the camera's noise.
        device: where to simulate, "cpu" or "cuda"; few events differ.
        show: a progress bar while the cache is built.
    """

    TRAINING = 1437  # of scikit-learn's

    def __init__(
        self,
        train: bool = True,
        images: str | Path = "digits",
        *,
        steps: int = 25,
        bin_us: int = 20_000,
        crop: int = 26,
        seed: int = 0,
        device: str = "cpu",
        show: bool = True,
    ):
        for name, value in (("steps", steps), ("bin_us", bin_us), ("crop", crop)):
            positive_int(name, value)
        low = MNISTDVS.corner(crop)
        own, folder = str(images) == "digits", Path(images)
        motion = motion_of(own, steps * bin_us)
        labels = sklearn_digits()[1] if own else mnist_labels(folder)
        part = _part(labels, train, own)
        if not part:
            ids = (
                f"1 to {MNISTDVS.TRAINING_IDS}" if train else f"{MNISTDVS.TRAINING_IDS + 1} to 1000"
            )
            raise ValueError(
                f"images: {folder} has no digits number {ids} of their class; "
                "give MNIST's own files, all of them"
            )
        files = [] if own else [_found(folder, name) for name in NAMES]
        pictured = cache.key({"images": "digits" if own else "mnist"}, files, folder)
        pictures = functools.partial(_pictures, None if own else folder, part)
        scene = Scene(MNIST_DVS, motion, (low, low, crop, crop))
        bits = looked_at(
            "digits",
            pictures,
            part,
            scene,
            bin_us=bin_us,
            seed=seed,
            device=device,
            source=pictured,
            show=show,
        )
        window = replace(MNISTDVS.window(crop, steps, bin_us), start_us=0)
        source = Source(window, SimulatedEvents(pictures, part, motion, seed))
        names = [str(digit) for digit in range(10)]
        super().__init__(bits, [int(labels[i]) for i in part], names, source)


class SimulatedEvents:
    """All events of pictures as the camera of MNIST-DVS sees them, made when first asked for, and
    kept: they are looked at once for each change of them.
    """

    def __init__(
        self, pictures: Callable[[], Tensor], samples: Sequence[int], motion: Motion, seed: int
    ):
        self.pictures, self.samples, self.motion, self.seed = pictures, samples, motion, seed
        self.made: dict[int, np.ndarray] = {}

    def __call__(self, i: int) -> events.Recording:
        if i not in self.made:
            some = slice(i - i % TOGETHER, i - i % TOGETHER + TOGETHER)
            looks: dict[str, Any] = {"seed": self.seed, "samples": self.samples[some]}
            found = record(self.pictures()[some], MNIST_DVS, self.motion, **looks)
            self.made.update(enumerate(found, some.start))
        return events.Recording(self.made[i], MNISTDVS.SIZE, "simulated")


def _pictures(folder: Path | None, part: Sequence[int]) -> Tensor:
    """Some of MNIST's images in a folder, or of scikit-learn's."""
    return (mnist(folder) if folder else sklearn_digits())[0][part]


def motion_of(own: bool, duration_us: int) -> Motion:
    """How digits move: MNIST's as in MNIST-DVS; scikit-learn's (`own`) along a V and back."""
    if not own:
        return replace(MNIST_DVS_MOTION, duration_us=duration_us)
    x, y = 60.5, 60.5
    corners = ((x + 3, y + 2), (x, y - 2), (x - 3, y + 2), (x, y - 2))
    legs = (max(1, duration_us // 4),) * 4
    motion = replace(
        MNIST_DVS_MOTION, corners=corners, legs_us=legs, duration_us=duration_us, start_us=0
    )
    # 8 x 8 grey pixels: sharper edges would fill the gaps
    return replace(motion, scale=(0.95, 0.95), contrast=3, level=0.5)


def _part(labels: np.ndarray, train: bool, own: bool) -> list[int]:
    """The images of a split."""
    if own:
        return list(range(Digits.TRAINING)) if train else list(range(Digits.TRAINING, len(labels)))
    numbered = [
        pair
        for digit in range(10)
        for pair in _numbered(np.flatnonzero(labels == digit), 1000, own)
    ]
    return [i for i, number in numbered if (number <= MNISTDVS.TRAINING_IDS) == train]
