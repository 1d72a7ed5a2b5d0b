"""Series: recordings of spikes or values over time, ragged, with a label each or one per time step.

They come as arrays, from an NPZ file, or from a folder of CSV files. Whatever is learned from them
(the classes, the channels' ranges, the targets' scale) comes from the training recordings alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn.data import table
from bisnn.data.dataset import pair
from bisnn.data.loading import Clips, LoadedData, Split, units, validation_rows
from bisnn.data.series_code import SeriesCode
from bisnn.data.series_files import Recorded, recorded
from bisnn.data.tabular import kept_and_tested
from bisnn.display import note
from bisnn.kernels.graphs import to_device


class SeriesTrains:
    """Encoded series in memory: spikes uint8 (N, T, M), and which time steps count, (N, T)."""

    def __init__(self, spikes: np.ndarray, counts: np.ndarray, code: SeriesCode):
        self.spikes, self.counts = torch.from_numpy(spikes), torch.from_numpy(counts)
        self.code = code

    def batch(self, index: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, once for every delay, uint8 (T, B, inputs)."""
        s = to_device(self.spikes[index].movedim(0, 1).contiguous(), device)
        late = (torch.cat([torch.zeros_like(s[:d]), s[: len(s) - d]]) for d in self.code.delays)
        return torch.cat(list(late), 2)

    def mask(self, index: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """True where a time step counts, (T, B)."""
        return to_device(self.counts[index].T.contiguous(), device)

    def digest(self, index: Tensor) -> bytes:
        """A fingerprint of some of the recordings."""
        parts = [part[index].contiguous() for part in (self.spikes, self.counts)]
        text = repr((parts[0].shape, self.code)).encode()
        return hashlib.blake2b(text + b"".join(p.numpy().tobytes() for p in parts)).digest()


class Series:
    """Series for `bisnn.train`, `bisnn.resume` and `bisnn.evaluate`, with a config whose data.name
    is "series": its section says how they become spikes.

    Args:
        train: a pair (x, y), or any sequence of pairs (recording, label), such as a
            `torch.utils.data.Dataset`. x is an array (N, T, D) or a list of recordings (T, D) of
            any lengths, spikes or values. y has a label for each, or one for each of its time
            steps: classes (whole numbers or names; below 0 or blank: not labelled) or targets (NaN:
            none).
        test: the same, to judge the model on.

    >>> x, y = np.random.default_rng(0).random((8, 20, 3)), np.arange(8) % 2
    >>> Series((x, y), (x, y))
    Series(3 channels, 8 to train, 8 to test)
    """

    def __init__(self, train: Any, test: Any):
        self.train, self.test = (
            recorded(name, *pair(name, given)) for name, given in (("train", train), ("test", test))
        )

    def __repr__(self) -> str:
        train, test = (len(part.values) for part in (self.train, self.test))
        channels = self.train.values[0].shape[1]
        return f"Series({channels} channels, {train} to train, {test} to test)"


@dataclass(frozen=True)
class How:
    """What becomes of series: the fields of the section `data` of a config."""

    code: SeriesCode
    steps: int  # values of a recording, at most
    task: str
    each_step: bool
    test_share: float
    validation: float


def load(train: Recorded, test: Recorded | None, how: How, seed: int) -> LoadedData:
    """Splits as a run uses them."""
    train, test = split(train, test, how, seed)
    _check_alike(train, test)
    for part in (train, test):
        _check_labels(part, how)
    rows = [np.arange(len(train.values))]
    if how.validation:
        rows = [part.numpy() for part in validation_rows(len(rows[0]), how.validation, seed)]
    classes, y = _labels(train, test, how)
    source = f"{train.source}, {test.source}"
    values, counts = padded([*train.values, *test.values], how.steps, how.code, source)
    code = how.code.fitted(values[rows[0]][counts[rows[0]]])
    spikes = code.encode(values, counts, seed)
    counts = counts.repeat(code.substeps, 1)
    if how.each_step:
        y = y.repeat(code.substeps, 1)
        labelled = y >= 0 if how.task == "classification" else ~np.isnan(y)
        counts = counts & labelled
        y = np.where(labelled, y, 0)
    clips = Clips(SeriesTrains(spikes, counts, code), torch.arange(len(spikes)))
    targets = torch.from_numpy(y if classes else y[..., None])
    tested = np.arange(len(train.values), len(spikes))
    learning, *validated, judged = (
        Split(clips[torch.from_numpy(part)], targets[torch.from_numpy(part)])
        for part in (*rows, tested)
    )
    scale = (0.0, 1.0)
    if not classes:
        known = y[rows[0]][counts[rows[0]]] if how.each_step else y[rows[0]]
        scale = units(known, train.source)
    none = torch.zeros(0, dtype=torch.float64)
    held_out = validated[0] if validated else None
    return LoadedData(learning, held_out, judged, classes, none, none, None, *scale)


def loose(values: Sequence[np.ndarray], code: SeriesCode, steps: int, seed: int) -> Clips:
    """Recordings to predict, encoded by the code of a trained model."""
    array, counts = padded(values, steps, code, "x")
    if array.shape[2] != len(code.low):
        raise ValueError(
            f"x: must have the {len(code.low)} channels that the model was trained on; got "
            f"{array.shape[2]}; give recordings (T, {len(code.low)})"
        )
    trains = SeriesTrains(code.encode(array, counts, seed), counts.repeat(code.substeps, 1), code)
    return Clips(trains, torch.arange(len(array)))


def check_burn_in(data: LoadedData, burn_in: int) -> None:
    """Refuse recordings that end, or have no label, after the burn-in."""
    for split in filter(None, (data.train, data.validation, data.test)):
        assert isinstance(split.x, Clips)
        mask = split.x.mask()
        assert mask is not None
        if not bool(mask[burn_in:].any(0).all()):
            worst = int(mask[burn_in:].any(0).logical_not().nonzero()[0])
            raise ValueError(
                f"train.burn_in: must leave every recording a time step that counts; got {burn_in},"
                f" and a recording of {int(mask[:, worst].sum())} such time steps; lower it, or "
                "leave out short recordings"
            )


# Labels and padding


def split(train: Recorded, test: Recorded | None, how: How, seed: int) -> tuple[Recorded, Recorded]:
    """Recordings to train and to test on: of each class its share, where there is no test file."""
    if test is not None:
        return train, test
    by_class = how.task == "classification" and not how.each_step
    names = [str(label) for label in train.labels] if by_class else [""] * len(train.values)
    kept, tested = kept_and_tested(train.source, names, how.test_share, seed)
    return train.at(kept), train.at(tested)


def _check_alike(train: Recorded, test: Recorded) -> None:
    channels = [part.values[0].shape[1] for part in (train, test)]
    if channels[0] != channels[1]:
        raise ValueError(
            f"{test.source}: must have the {channels[0]} channels of the training recordings; got "
            f"{channels[1]}"
        )


def _check_labels(part: Recorded, how: How) -> None:
    """See that each recording has a label, or that each of its time steps has a place for one."""
    for i, (values, label) in enumerate(zip(part.values, part.labels, strict=True)):
        if how.each_step and label.shape != (len(values),):
            raise ValueError(
                f'{part.source}: data.labels = "step" needs a label for each of the {len(values)} '
                f"time steps of recording {i}; got shape {label.shape}; give y (N, T), or set "
                'data.labels = "recording"'
            )
        if not how.each_step and label.ndim:
            raise ValueError(
                f"{part.source}: each recording must have one label; got {len(label)} for recording"
                f' {i}; for a label per time step set data.labels = "step"'
            )
        none = np.isnan(label) if label.dtype.kind == "f" else np.char.str_len(label) == 0
        if none.all():
            raise ValueError(f"{part.source}: recording {i} has no label; leave it out")


def _labels(train: Recorded, test: Recorded, how: How) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes, and for the training and then the test recordings the numbers of their
    classes, -1 for none, or targets, NaN for none: (N,), or (N, T) of time steps."""
    if how.task == "regression":
        targets = [_targets(part.source, label) for part in (train, test) for label in part.labels]
        return (), _filled(targets, how, np.nan)
    texts = [[_texts(label) for label in part.labels] for part in (train, test)]
    classes: tuple[str, ...] | None = None
    for part, of in zip((train, test), texts, strict=True):
        known = [text for label in of for text in label if text]
        _, classes = table.labels(part.source, known, classes)
    number = {"": -1, **{name: i for i, name in enumerate(classes or ())}}
    numbers = [np.array([number[t] for t in label]) for of in texts for label in of]
    return classes or (), _filled(numbers, how, -1)


def labelled(given: Recorded, classes: Sequence[str]) -> np.ndarray:
    """Numbers of known classes, or without classes targets, of recordings with a label each."""
    if not classes:
        return np.concatenate([_targets(given.source, label) for label in given.labels])
    names = [_texts(label)[0] for label in given.labels]
    return table.labels(given.source, names, tuple(classes))[0]


def _texts(label: np.ndarray) -> list[str]:
    """Names of classes, blank for none."""
    return ["" if value != value else table.text_of(value) for value in _each(label)]


def _targets(source: str, label: np.ndarray) -> np.ndarray:
    """Targets, NaN for none."""
    texts = ["nan" if value == "" else str(value) for value in _each(label)]
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        raise ValueError(
            f"{source}: targets must be numbers; got names; for classes set data.task = "
            '"classification"'
        ) from None


def _each(label: np.ndarray) -> list[Any]:
    return np.atleast_1d(label).tolist()


def _filled(labels: list[np.ndarray], how: How, none: float) -> np.ndarray:
    """One label per recording, (N,), or those of its time steps, (N, steps), `none` beyond them."""
    if not how.each_step:
        return np.concatenate(labels)
    filled = np.full((len(labels), how.steps), none, labels[0].dtype)
    for row, label in zip(filled, labels, strict=True):
        row[: len(label)] = label[: how.steps]
    return filled


def padded(
    values: Sequence[np.ndarray], steps: int, code: SeriesCode, source: str
) -> tuple[np.ndarray, np.ndarray]:
    """Recordings cut to `steps` or filled up with zeros, (N, steps, D), and where they are real."""
    cut = sum(len(item) > steps for item in values)
    if cut:
        note(f"{source}: {cut} recordings are longer than data.steps = {steps} and cut there")
    if code.name == "spikes" and not all(np.isin(item, (0, 1)).all() for item in values):
        raise ValueError(
            f'{source}: data.code = "spikes" takes values 0 and 1; got others; take another code, '
            'e.g. "population"'
        )
    array = np.zeros((len(values), steps, values[0].shape[1]), np.float32)
    counts = np.zeros(array.shape[:2], bool)
    for i, item in enumerate(values):
        array[i, : len(item)] = item[:steps]
        counts[i, : len(item)] = True
    return array, counts
