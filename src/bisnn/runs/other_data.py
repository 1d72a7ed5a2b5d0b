"""Data that a run has not learned from: how well its uncertainty tells them from its test
recordings, and what part of that is only the camera.

A folder holds recordings, or pictures, which go in front of a simulated camera like that of the
run's recordings. What the model would know if only the camera were another one is the *control*:
recordings in folders named after the run's own classes; or scikit-learn's digits of its classes in
front of the camera that pictures go in front of, where the run's own recordings are real.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bisnn import metrics
from bisnn.data import simulation, windows
from bisnn.data.archives import MNISTDVS, NMNIST, Recordings
from bisnn.data.camera import MNIST_DVS, N_MNIST_MOTION
from bisnn.data.events import SUFFIXES
from bisnn.data.loading import Clips
from bisnn.prediction import Classification
from bisnn.runs.data_sections import MNISTDVSData, NMNISTData, SimulatedData
from bisnn.runs.model import Model
from bisnn.runs.results import OtherData, OtherSet, Predictions, Separation

Filmed = NMNISTData | MNISTDVSData | SimulatedData  # data whose camera can be simulated
IDX, NPZ = "-images-idx3-ubyte", ".npz"
# What reading a damaged npz file may raise
BROKEN = (
    *(ValueError, OSError, EOFError, KeyError, TypeError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)
SIDE = 28  # pixels, of every picture
SEED = 0  # of the camera's noise, as of `simulation.Digits`
MOST = 1000  # pictures of a file
CONTROL = "own digits, simulated"


class Pictures(NamedTuple):
    """Pictures for the camera."""

    images: Tensor  # (N, 28, 28) float32 in [0, 1]
    numbers: list[int]  # (N,) their places in their file, which key the camera's noise


class Others(NamedTuple):
    """A set of recordings beside the test recordings."""

    name: str
    x: Clips
    control: bool


def others_of(folder: Path, model: Model, show: bool = True) -> list[Others]:
    """The sets of recordings that a folder holds, or makes; an error where it has none."""
    if not model.config.recorded or not model.classes:
        raise ValueError(
            f"ood: is for runs on recordings with classes; got {folder} for a run on "
            f"{model.config.data.name}; leave out --ood"
        )
    if not folder.is_dir():
        raise ValueError(f"ood: must be a folder of recordings or pictures; got {folder}; make it")
    # An npz file that lies in the folder itself holds pictures
    own = [file for file in sorted(folder.rglob("*")) if windows.is_recording(file)]
    files = [file for file in own if file.parent != folder or file.suffix.lower() != NPZ]
    return _recorded(files, model) if files else _filmed(folder, model, show)


def _recorded(files: Sequence[Path], model: Model) -> list[Others]:
    """Recordings of other classes than the run's own, and of these, the control."""
    own = [file for file in files if file.parent.name in model.classes]
    other = [file for file in files if file.parent.name not in model.classes]
    if not other:
        raise ValueError(
            f"ood: must hold recordings of other things than the classes {', '.join(model.classes)}"
            f"; got folders of these alone in {files[0].parent.parent}; give others"
        )
    sets = {"other recordings": (other, False), "own classes, recorded there": (own, True)}
    found = []
    for name, (some, control) in sets.items():
        if some:
            clips = model.inputs(windows.files_of(some))
            assert isinstance(clips, Clips)
            found.append(Others(name, clips, control))
    return found


def _filmed(folder: Path, model: Model, show: bool) -> list[Others]:
    """Pictures in front of a simulated camera, and the run's own digits there."""
    data = model.config.data
    if not isinstance(data, Filmed) or (isinstance(data, MNISTDVSData) and data.scale != 4):
        raise ValueError(
            "ood: pictures go in front of a simulated camera, which there is for nmnist, digits "
            f"and mnist_dvs at scale 4; got {folder} for {data.name}; give a folder of recordings"
        )
    files = [*folder.glob(f"*{IDX}"), *folder.glob(f"*{IDX}.gz"), *folder.glob(f"*{NPZ}")]
    if not files:
        raise ValueError(
            f"ood: must hold recordings ({', '.join(SUFFIXES)}) or pictures (*{IDX}[.gz], *{NPZ}); "
            f"got neither in {folder}; give another folder"
        )
    found = []
    for file in sorted(files):
        some = read_pictures(file)[:MOST].astype(np.float32) / 255
        pictures = Pictures(torch.from_numpy(some), list(range(len(some))))
        name = file.name.split(IDX)[0].removesuffix(NPZ)
        found.append(Others(name, film(name, pictures, data, "cpu", show), False))
    if isinstance(data, SimulatedData):
        return found  # its own recordings were made by this camera
    images, labels = simulation.sklearn_digits()
    numbers = np.flatnonzero(np.isin(labels, data.classes))[:MOST].tolist()
    own = film(CONTROL, Pictures(images[numbers], numbers), data, "cpu", show)
    return [*found, Others(CONTROL, own, True)]


def read_pictures(file: Path) -> np.ndarray:
    """Bytes (N, 28, 28) of an idx or npz file."""
    if file.suffix != NPZ:
        images = simulation.read_idx(file, 3)
    else:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                images = arrays["arr_0"]
        except BROKEN as error:
            raise ValueError(
                f"{file}: is damaged or has no array arr_0 ({error}); take the original"
            ) from None
    if (
        images.dtype != np.uint8
        or images.ndim != 3
        or images.shape[1:] != (SIDE, SIDE)
        or not len(images)
    ):
        rule = f"must hold bytes (N, {SIDE}, {SIDE}), N >= 1"
        raise ValueError(f"{file}: {rule}; got {images.dtype} {images.shape}; take the original")
    return images


def scene_of(data: Filmed) -> simulation.Scene:
    """A simulated camera like that of the runs' recordings, and the pixels that they keep."""
    duration_us = data.steps * data.bin_us
    if isinstance(data, NMNISTData):
        width, height = NMNIST.SIZE
        camera = replace(MNIST_DVS, width=width, height=height, on=True)  # N-MNIST writes ON as 1
        return simulation.Scene(
            camera, replace(N_MNIST_MOTION, duration_us=duration_us), (0, 0, width, height)
        )
    low = MNISTDVS.corner(data.crop)
    own = isinstance(data, SimulatedData) and not data.root  # scikit-learn's digits
    return simulation.Scene(
        MNIST_DVS, simulation.motion_of(own, duration_us), (low, low, data.crop, data.crop)
    )


def film(name: str, what: Pictures, data: Filmed, device: str, show: bool = True) -> Clips:
    """Recordings of pictures, binned as those of the runs; made once, then read from the cache."""
    how: dict[str, Any] = {"bin_us": data.bin_us, "seed": SEED, "device": device, "show": show}
    how["source"] = hashlib.blake2b(what.images.numpy().tobytes()).hexdigest()
    bits = simulation.looked_at(name, lambda: what.images, what.numbers, scene_of(data), **how)
    return Clips(Recordings(bits, [0] * len(bits), []), torch.arange(len(bits)))


def told_apart(
    model: Model,
    folder: Path,
    others: Sequence[Others],
    own: dict[str, Predictions],
    members: dict[str, int | None],
    advance: Callable[[float], Any],
) -> tuple[OtherData, dict[str, dict[str, Tensor]]]:
    """How well each predictor's scores tell each set from the test recordings, and the entropies
    (N,) of the sets, by set and predictor.

    Args:
        own: what each predictor says of the test recordings.
        members: of each predictor.
    """
    sets, entropies = [], {}
    for name, x, control in others:
        found, entropy = {}, {}
        for predictor, count in members.items():
            size = model.size(count)
            more = lambda n, size=size: advance(n * size)  # noqa: E731
            result = model.predict_points(x, count, advance=more)
            assert isinstance(result, Classification)
            mine = own[predictor]
            pairs = {
                "entropy": (mine.entropy, result.entropy),
                "1 - confidence": (1 - mine.mean.max(-1).values, 1 - result.mean.max(-1).values),
            }
            if size > 1:
                pairs["mutual information"] = (mine.mutual_information, result.mutual_information)
            found[predictor] = {score: _separation(*pair) for score, pair in pairs.items()}
            entropy[predictor] = result.entropy.float().cpu()
        sets.append(OtherSet(name=name, control=control, recordings=len(x), scores=found))
        entropies[name] = entropy
    return OtherData(folder=str(folder), sets=sets), entropies


def _separation(own: Tensor, other: Tensor) -> Separation:
    pair = own.float().cpu(), other.float().cpu()
    return Separation(
        auroc=metrics.auroc(*pair), aupr=metrics.aupr(*pair), fpr95=metrics.fpr95(*pair)
    )
