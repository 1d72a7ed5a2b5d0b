"""Data given from Python: arrays, tensors, or any dataset of (input, label)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn.data import events
from bisnn.data.loading import Clips, LoadedData, Split, hold_out, ranges, rescaled, units
from bisnn.data.windows import Window
from bisnn.kernels.graphs import to_device


class SpikeTrains:
    """Recordings in memory: spikes uint8 (N, T, ...), and the window that events came through."""

    def __init__(self, spikes: Tensor, window: Window | None = None):
        self.spikes, self.window = spikes, window

    def batch(self, index: Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Spikes of several recordings, uint8 (T, B, ...)."""
        return to_device(self.spikes[index].movedim(0, 1).contiguous(), device)

    def digest(self, index: Tensor) -> bytes:
        """A fingerprint of some of the recordings."""
        some = self.spikes[index].contiguous()
        return hashlib.blake2b(repr(some.shape).encode() + some.numpy().tobytes()).digest()


class Dataset:
    """Training and test data for `bisnn.train`, `bisnn.resume` and `bisnn.evaluate`.

    Args:
        train: a pair (x, y) of arrays, tensors or lists, or any sequence of pairs (input, label),
            such as a `torch.utils.data.Dataset`. Inputs are features, (N, d), in any units; or
            spikes, 0 or 1, (N, T, ...); or, with a `window`, events: arrays with the fields x, y,
            t, p. Labels are classes, whole numbers from 0 on, or real targets.
        test: the same, to judge the model on.
        classes: names of the classes; by default their numbers.
        window: how events become spikes.

    >>> x, y = np.random.default_rng(0).random((8, 3)), np.arange(8) % 2
    >>> Dataset((x, y), (x, y), classes=["no", "yes"])
    Dataset(features (3,), 8 to train, 8 to test, classes no, yes)
    """

    def __init__(
        self,
        train: Any,
        test: Any,
        *,
        classes: Sequence[str] | None = None,
        window: Window | None = None,
    ):
        if window is not None and not isinstance(window, Window):
            raise ValueError(
                f"window: must be a bisnn.data.Window; got {type(window).__name__}; give e.g. "
                "Window((34, 34), steps=60, bin_us=5000)"
            )
        (x, y), (test_x, test_y) = (
            pair(name, given) for name, given in (("train", train), ("test", test))
        )
        self.x = _inputs("train", x, window), _inputs("test", test_x, window)
        y, test_y = _labels("train", y, len(self.x[0])), _labels("test", test_y, len(self.x[1]))
        self.window = window
        _check_alike(self.x, (y, test_y))
        self.classes = () if y.dtype.kind == "f" else _class_names(classes, y, test_y)
        if y.dtype.kind == "f" and classes is not None:
            raise ValueError(
                "classes: are of whole numbers, and the labels are real targets; got "
                f"{list(classes)}; leave it out, or give whole numbers"
            )
        self.y = y, test_y

    def __repr__(self) -> str:
        what = "features" if self.x[0].ndim == 2 else "spikes"
        about = f"classes {', '.join(self.classes)}" if self.classes else "real targets"
        shape, (train, test) = self.x[0].shape[1:], map(len, self.x)
        return f"Dataset({what} {shape}, {train} to train, {test} to test, {about})"

    def load(self, validation: float, seed: int) -> LoadedData:
        """Splits as a run uses them, the share `validation` of the training points, drawn by
        `seed`, held out of all learning.
        """
        x: list[Any] = [torch.from_numpy(part) for part in self.x]
        y = [torch.from_numpy(part) for part in self.y]
        low = high = torch.zeros(0, dtype=torch.float64)
        if x[0].ndim > 2:
            x = [Clips(SpikeTrains(part, self.window), torch.arange(len(part))) for part in x]
        train, held_out = hold_out(Split(x[0], y[0]), validation, seed)
        splits = [train, Split(x[1], y[1]), *([held_out] if held_out else [])]
        if isinstance(train.x, Tensor):
            low, high = ranges(train.x.numpy())
            splits = [Split(rescaled(x.numpy(), low, high), y) for x, y in splits]  # type: ignore[union-attr]
        train, test, *validation_split = splits
        scale = (0.0, 1.0) if self.classes else units(train.y.numpy(), "train")
        return LoadedData(
            train,
            validation_split[0] if validation_split else None,
            test,
            self.classes,
            low,
            high,
            None,
            *scale,
        )


def pair(name: str, given: Any) -> tuple[Any, Any]:
    """Inputs and labels, of a pair of arrays or of a sequence of pairs."""
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return given[0], given[1]
    if isinstance(given, (np.ndarray, Tensor)) or not hasattr(given, "__getitem__"):
        raise ValueError(
            f"{name}: must have labels: a pair (x, y), or a dataset of pairs (input, label); "
            "got one "
            f"{type(given).__name__}; give {name}=(x, y)"
        )
    items = [given[i] for i in range(len(given))]
    for i, item in enumerate(items):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise ValueError(
                f"{name}: must have labels: each item a pair (input, label); got a "
                f"{type(item).__name__} in place {i}; let the dataset return pairs"
            )
    return [x for x, _ in items], [y for _, y in items]


def _inputs(name: str, x: Any, window: Window | None) -> np.ndarray:
    """Features, float64 (N, d), or spikes, uint8 (N, T, ...)."""
    if window is not None:
        return _frames(name, x, window)
    try:
        array = np.stack([np.asarray(item) for item in x])
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{name}: its inputs must be arrays of one shape; got others ({error}); give "
            "recordings (T, D) of different lengths as a bisnn.data.Series, or events with a window"
        ) from None
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        events_given = array.dtype.kind == "V" or array.dtype.names
        way = (
            "give a window, which says how events become spikes" if events_given else "reshape them"
        )
        raise ValueError(
            f"{name}: its inputs must be features (N, d) or spikes (N, T, ...); got {array.dtype} "
            f"{array.shape}; {way}"
        )
    if array.size == 0:
        raise ValueError(f"{name}: must not be empty; got shape {array.shape}; give some points")
    if array.ndim == 2:
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            raise ValueError(
                f"{name}: features must be finite; got {array[row, column]} in row {row}, column "
                f"{column}; fill it in or drop the row"
            )
        return array
    if not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"{name}: spikes (N, T, ...) must be 0 or 1; got other values; series of values, "
            '(N, T, D), are a bisnn.data.Series, for a config with data.name = "series"'
        )
    return array.astype(np.uint8)


def _frames(name: str, x: Any, window: Window) -> np.ndarray:
    """Events as spikes, uint8 (N, T, C, H, W)."""
    if not isinstance(x, (list, tuple)) or not x:
        raise ValueError(
            f"{name}: events must come as a list of one array per recording; got "
            f"{type(x).__name__}; give e.g. [events, ...]"
        )
    seen = (events.from_array(item, window.size, f"{name}[{i}]") for i, item in enumerate(x))
    return np.stack([window.frames(recording) for recording in seen])


def _labels(name: str, y: Any, count: int) -> np.ndarray:
    """Classes, int64 (N,), or targets, float64 (N, 1)."""
    y = np.asarray([np.asarray(label) for label in y])
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (count,):
        raise ValueError(
            f"{name}: must have one label for each of its {count} inputs; got shape {y.shape}; "
            "give "
            "y of shape (N,)"
        )
    if y.dtype.kind not in "iuf":
        raise ValueError(
            f"{name}: labels must be whole numbers of classes, or real targets; got {y.dtype}; use "
            "numpy.unique(y, return_inverse=True)"
        )
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            raise ValueError(
                f"{name}: targets must be finite; got {y[~np.isfinite(y)][0]}; drop those rows"
            )
        return y.astype(np.float64)[:, None]
    if y.min() < 0:
        raise ValueError(f"{name}: labels must be numbers of classes, from 0 on; got {y.min()}")
    return y.astype(np.int64)


def _check_alike(x: tuple[np.ndarray, np.ndarray], y: tuple[np.ndarray, np.ndarray]) -> None:
    if x[0].shape[1:] != x[1].shape[1:]:
        raise ValueError(
            f"test: must have inputs of the shape of train's, {x[0].shape[1:]}; got "
            f"{x[1].shape[1:]}; give both alike"
        )
    if y[0].dtype != y[1].dtype:
        raise ValueError(
            f"test: must have labels of the kind of train's, {y[0].dtype}; got {y[1].dtype}; give "
            "whole numbers for classes in both, or real targets in both"
        )


def _class_names(names: Sequence[str] | None, *y: np.ndarray) -> tuple[str, ...]:
    count = 1 + max(int(part.max()) for part in y)
    found = [str(i) for i in range(max(count, 2))] if names is None else [str(n) for n in names]
    if len(found) < max(count, 2) or len(set(found)) < len(found):
        raise ValueError(
            f"classes: must be a name of its own for each class, 0 to {max(count, 2) - 1}; "
            f"got {found}; give them all"
        )
    return tuple(found)
