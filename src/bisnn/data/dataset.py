"""From a config to points and spikes: training, validation and test points, and their encoding."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data import cache, recordings, simulation, table, tonic_sets
from bisnn.data.events import BadEvents
from bisnn.data.recordings import Clips, Window
from bisnn.data.tonic_sets import FromTonic
from bisnn.data.toy import one_d, two_moons
from bisnn.kernels.graphs import to_device
from bisnn.packed import encoding
from bisnn.packed.columns import Schema, is_blank
from bisnn.runs.config import MNISTDVS, NMNIST, Config, Digits, Events, OneD, Table, Tonic, TwoMoons


class Split(NamedTuple):
    """x: points (N, d) float32, or recordings; y (N,) int64 labels or (N, 1) targets: float32, a
    table's float64.
    """

    x: Tensor | Clips
    y: Tensor


@dataclass(frozen=True)
class Dataset:
    """Points in the units of the encoding, [0, 1], or recordings, and where they come from."""

    train: Split
    validation: Split | None
    test: Split
    classes: tuple[str, ...]  # names; empty for regression
    low: Tensor  # (d,) float64: what `rescaled` maps to 0; empty for recordings
    high: Tensor  # (d,) to 1
    schema: Schema | None = None  # of a table
    target_mean: float = 0.0  # of a table's training targets: the network learns (y - mean) / scale
    target_scale: float = 1.0

    def digest(self) -> str:
        """A fingerprint of all points: a file that was edited is another dataset."""
        digest = hashlib.blake2b(repr(self.classes).encode(), digest_size=16)
        for part in (*self.train, *(self.validation or ()), *self.test):
            digest.update(part.digest() if isinstance(part, Clips) else _bytes(part))
        return digest.hexdigest()

    def check(self, source: object, digest: str, run: object) -> None:
        """See that these are the points or recordings of this digest, with which a run began."""
        if isinstance(source, Table) and digest != self.digest():
            raise ValueError(
                f"{source.train}: is not what {run} began with (or its test file is not): restore it"
            )
        if (
            isinstance(source, (NMNIST, MNISTDVS, Tonic)) and digest != self.digest()
        ):  # simulated ones may differ between devices
            root = source.root or os.environ.get("BISNN_DATA")
            raise ValueError(
                f"{root}: its recordings are not those that {run} began with: restore them"
            )

    def standardised(self, y: Tensor) -> Tensor:
        """What the network is to say for labels or targets y."""
        return y if self.classes else ((y - self.target_mean) / self.target_scale).float()

    @property
    def outputs(self) -> int:
        return len(self.classes) or self.train.y.shape[1]


def _bytes(x: Tensor) -> bytes:
    return f"{x.dtype} {tuple(x.shape)}".encode() + x.numpy().tobytes()


def rescaled(x: np.ndarray, low: Tensor, high: Tensor) -> Tensor:
    """Raw features (N, d) to float32 in [0, 1], by the training rows' range."""
    return torch.from_numpy(encoding.scaled(x, low.numpy(), high.numpy()))


def load_dataset(config: Config, show: bool = True) -> Dataset:
    """The points of a config, the same for the same seed; with `show`, a progress bar while a cache
    of recordings is built.
    """
    data = config.data
    classes: tuple[str, ...] = ()
    low = high = torch.zeros(0, dtype=torch.float64)
    train: Split
    if isinstance(data, Table):
        return _from_table(data, config.seed)
    if isinstance(data, Events):
        train, test, classes = _from_recordings(
            data, config.train.device if torch.cuda.is_available() else "cpu", show
        )
    elif isinstance(data, TwoMoons):
        train, test = (
            Split(*part)
            for part in two_moons(data.train, data.test, noise=data.noise, seed=config.seed)
        )
        classes = ("0", "1")
    else:
        assert isinstance(data, OneD)
        train, test = (
            Split(*part)
            for part in one_d(data.per_unit, data.test, noise=data.noise, seed=config.seed)
        )
    if isinstance(train.x, Tensor):
        low, high = torch.zeros(train.x.shape[1]).double(), torch.ones(train.x.shape[1]).double()
    validation = None
    if data.validation:
        parts = _validation_rows(len(train.x), data.validation, config.seed)
        train, validation = (Split(train.x[part], train.y[part]) for part in parts)
    return Dataset(train, validation, test, classes, low, high)


def _validation_rows(points: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Which training points stay, and which are held out, at random."""
    held_out = max(1, round(share * points))
    if held_out >= points:
        raise ValueError(
            f"data.validation: leaves no training point of {points}; got {share:g}; lower it"
        )
    order = torch.from_numpy(philox.permutation(points, seed, Purpose.VALIDATION_SPLIT))
    return order[held_out:], order[:held_out]


def _from_recordings(data: Events, device: str, show: bool) -> tuple[Split, Split, tuple[str, ...]]:
    if isinstance(data, Digits):
        looks: dict[str, Any] = {
            "steps": data.steps,
            "bin_us": data.bin_us,
            "crop": data.crop,
            "device": device,
            "show": show,
        }
        return _splits(
            [simulation.Digits(train, data.root or "digits", **looks) for train in (True, False)]
        )
    root = data.root or os.environ.get("BISNN_DATA")
    if not root:
        name = f"tonic's {data.dataset}" if isinstance(data, Tonic) else data.name
        raise ValueError(
            f"data.root: must name the folder of {name}; got none; give it, or set the environment's BISNN_DATA"
        )
    settings: dict[str, Any] = {"steps": data.steps, "bin_us": data.bin_us, "show": show}
    try:
        parts = [_part(data, root, train, settings) for train in (True, False)]
        missing = sorted(set(range(len(parts[0].names))) - set(parts[0].labels.tolist()))
        if missing and not isinstance(data, Tonic):
            names = ", ".join(parts[0].names[i] for i in missing)
            raise ValueError(
                f"classes: {root} has no training recording of {names}; give a folder that has, or fewer classes"
            )
        return _splits(parts)
    except (BadEvents, cache.BadCache):
        raise  # names its file
    except ValueError as error:
        raise ValueError(f"data.{error}") from None


def _part(data: Events, root: str, train: bool, settings: dict[str, Any]) -> recordings.Recordings:
    if isinstance(data, Tonic):
        start_us = tonic_sets.TONIC[data.dataset][1]
        return FromTonic(
            tonic_sets.tonic_dataset(data.dataset, root, train),
            **settings,
            pool=data.pool,
            start_us=start_us,
        )
    if isinstance(data, MNISTDVS):
        return recordings.MNISTDVS(
            root, train, **settings, classes=data.classes, scale=data.scale, crop=data.crop
        )
    assert isinstance(data, NMNIST)
    return recordings.NMNIST(root, train, **settings, classes=data.classes)


def window(data: Events) -> Window:
    """What of a recording the config's network sees."""
    if isinstance(data, Tonic):
        sensor_size, start_us = tonic_sets.TONIC[data.dataset]
        return FromTonic.window(sensor_size, data.steps, data.bin_us, data.pool, start_us)
    if isinstance(data, (MNISTDVS, Digits)):
        middle = recordings.MNISTDVS.window(data.crop, data.steps, data.bin_us)
        return (
            middle if isinstance(data, MNISTDVS) else replace(middle, start_us=0)
        )  # the simulated camera's clock begins at 0
    return recordings.NMNIST.window(data.steps, data.bin_us)


def _splits(parts: Sequence[recordings.Recordings]) -> tuple[Split, Split, tuple[str, ...]]:
    train, test = (Split(Clips(part, torch.arange(len(part))), part.labels) for part in parts)
    return train, test, parts[0].names


def _from_table(data: Table, seed: int) -> Dataset:
    """Everything that is learned (fills, categories, ranges, the targets' scale) comes from the
    training rows alone.
    """
    rows = table.read(data.train)
    kept, held_out = _kept_and_tested(rows, data, seed)
    learning, validation = (kept, None)
    if data.validation:
        learning, validation = (
            kept[part.numpy()] for part in _validation_rows(len(kept), data.validation, seed)
        )
    schema = table.learned_schema(rows, data, learning)
    assert schema.target is not None
    tested = rows.at(held_out) if data.test is None else table.read(data.test)
    parts = [rows.at(learning), tested, *([] if validation is None else [rows.at(validation)])]
    classes, y = _labels(rows.at(kept), parts, schema, data.task)
    x = [schema.encode(table.matched(part, schema)[0])[0] for part in parts]
    low, high = np.zeros(x[0].shape[1]), np.ones(x[0].shape[1])
    if data.rescale:
        low, high = x[0].min(0), x[0].max(0)
        high = np.where(high > low, high, low + 1)  # a constant feature stays at 0
    bounds = torch.from_numpy(low), torch.from_numpy(high)
    train, test, *held = (
        Split(rescaled(some, *bounds), torch.from_numpy(of)) for some, of in zip(x, y, strict=True)
    )
    mean, scale = _units(data, schema.target, y[0])
    return Dataset(train, held[0] if held else None, test, classes, *bounds, schema, mean, scale)


def _units(data: Table, target: str, y: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of the training targets; 0 and 1 for classes."""
    if data.task == "classification":
        return 0.0, 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = float(y.mean()), float(y.std()) or 1.0
    if not np.isfinite([mean, scale]).all():
        raise ValueError(
            f"{data.train}: column {target!r}: its targets are too large to have a mean and a deviation; rescale them"
        )
    return mean, scale


def _kept_and_tested(rows: table.Rows, data: Table, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training file to train on, and to test on where there is no test file."""
    if data.test is not None:
        return np.arange(len(rows)), np.arange(0)
    target = rows.names[-1] if data.target is None else data.target
    known = (
        data.task == "classification" and target in rows.names
    )  # else `learned_schema` says what is wrong
    held_out = _held_out(rows.texts(target) if known else [""] * len(rows), data.test_share, seed)
    if held_out.all() or not held_out.any():
        raise ValueError(
            f"{data.train}: has {len(rows)} rows, too few to hold out data.test_share = {data.test_share:g} of them"
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _labels(
    training: table.Rows, parts: list[table.Rows], schema: Schema, task: str
) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """Names of the classes of the training rows, held-out ones included, and the labels or targets
    of each part.
    """
    columns = [table.matched(part, schema)[1] for part in parts]
    for part, column in zip(parts, columns, strict=True):
        if column is None:
            raise ValueError(
                f"{part.path}: has no column {schema.target!r} with the classes or targets; add it"
            )
        blank = next((i for i, text in enumerate(column) if is_blank(text)), None)
        if blank is not None:
            name = schema.target if schema.target in part.names else part.names[-1]
            raise ValueError(
                f"{part.where(name or '', blank)}: has no class or target; fill it in or drop the row"
            )
    texts = [
        (part.path, column)
        for part, column in zip(parts, columns, strict=True)
        if column is not None
    ]
    if task == "regression":
        return (), [table.targets(path, column) for path, column in texts]
    _, classes = table.labels(training.path, training.texts(schema.target or ""))
    return classes, [table.labels(path, column, classes)[0] for path, column in texts]


def _held_out(classes: list[str], share: float, seed: int) -> np.ndarray:
    """Which rows are test rows: the share of each class, at random, so that every class stays in
    the training rows.
    """
    order = philox.permutation(len(classes), seed, Purpose.TEST_SPLIT)
    chosen = np.zeros(len(classes), dtype=bool)
    for name in sorted(set(classes)):
        members = [i for i in order if classes[i] == name]
        chosen[members[: round(share * len(members))]] = True
    return chosen


def spikes(
    config: Config, x: Tensor | Clips, device: torch.device | str = "cpu", encoding_number: int = 0
) -> Tensor:
    """Points x (B, d) encoded as spikes (T, B, N), or recordings (T, B, C, H, W), as they are
    predicted; bool.

    Points are keyed by seed, value and `encoding_number`: any order, batch or subset of them has
    the same spikes.
    """
    if isinstance(x, Clips):
        return x.spikes(device).bool()
    return _encoded(config, x, device, Purpose.ENCODING, encoding_number)


def training_spikes(
    config: Config,
    x: Tensor | Clips,
    epoch: int,
    samples: Tensor,
    device: torch.device | str = "cpu",
) -> Tensor:
    """As `spikes`, anew each epoch, recordings augmented by draws of (seed, epoch, sample)."""
    if isinstance(x, Clips):
        return recordings.augmented(
            x.spikes(device), config.augment, config.seed, epoch, samples
        ).bool()
    return _encoded(config, x, device, Purpose.TRAINING_ENCODING, epoch)


def _encoded(
    config: Config, x: Tensor, device: torch.device | str, purpose: Purpose, draw: int
) -> Tensor:
    coded = encoding.encode(x.numpy(), config.encode.model_dump(), config.seed, purpose, draw)
    return to_device(torch.from_numpy(coded.view(bool)), device)


def input_shape(config: Config, features: int) -> tuple[int, ...]:
    """Of the network's input, after (T, B), for points of so many features, or for the config's
    recordings.
    """
    if isinstance(config.data, Events):
        return window(config.data).shape[1:]
    return (features * config.encode.neurons if config.encode.code == "population" else features,)
