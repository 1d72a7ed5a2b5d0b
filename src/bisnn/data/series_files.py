"""Recordings of values over time as they come: arrays, an NPZ file, or a folder of CSV files.

They come from outside: every complaint names the file and the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bisnn.data import table
from bisnn.data.arrays import read_arrays
from bisnn.packed.columns import is_blank, numbers


class Recorded(NamedTuple):
    """Recordings as they came: values (T, D) float32, and of each its label () or labels (T,).

    A label is a text, blank where there is none, or a number, NaN where there is none.
    """

    source: str  # for complaints
    values: list[np.ndarray]
    labels: list[np.ndarray]

    def at(self, chosen: np.ndarray) -> Recorded:
        values, labels = ([part[i] for i in chosen] for part in self[1:])
        return Recorded(self.source, values, labels)


def recorded(name: str, x: Any, y: Any) -> Recorded:
    """Arrays given from Python, checked."""
    values = values_of(name, x)
    labels = [np.asarray(label) for label in y]
    if len(labels) != len(values):
        raise ValueError(
            f"{name}: must have a label, or labels, for each of its {len(values)} recordings; got "
            f"{len(labels)}; give y of shape (N,) or (N, T)"
        )
    return Recorded(name, values, [_label(name, label) for label in labels])


def values_of(name: str, x: Any) -> list[np.ndarray]:
    """Recordings (T, D) of finite numbers, float32, of one D."""
    try:
        values = [np.asarray(item) for item in x]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: must be recordings (T, D); got {error}") from None
    if not values:
        raise ValueError(f"{name}: must have recordings; got none; give at least one")
    for i, item in enumerate(values):
        if item.dtype.kind not in "biuf" or item.ndim != 2 or item.size == 0:
            raise ValueError(
                f"{name}: a recording must be numbers (T, D), time first; got {item.dtype} of shape"
                f" {item.shape} in place {i}; give (N, T, D), or a list of (T, D)"
            )
        if item.shape[1] != values[0].shape[1]:
            raise ValueError(
                f"{name}: recordings must have the same channels, {values[0].shape[1]}; got "
                f"{item.shape[1]} in place {i}; leave out the others"
            )
        if not np.isfinite(item).all():
            step, channel = np.argwhere(~np.isfinite(item))[0]
            raise ValueError(
                f"{name}: values must be finite; got {item[step, channel]} in recording {i}, time "
                f"step {step}, channel {channel}; fill it in, or cut the recording there"
            )
    return [item.astype(np.float32) for item in values]


def _label(name: str, label: np.ndarray) -> np.ndarray:
    """As texts, or as numbers with NaN for none."""
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label.ndim > 1:
        raise ValueError(
            f"{name}: a recording has one label or one per time step; got shape {label.shape}; give"
            " y of shape (N,) or (N, T)"
        )
    if label.dtype.kind in "US":
        return label.astype(str)
    if label.dtype.kind in "iub":
        return np.where(label < 0, "", label.astype(np.int64).astype(str))
    if label.dtype.kind == "f":
        return label.astype(np.float64)
    raise ValueError(
        f"{name}: labels must be classes (whole numbers or names) or targets; got {label.dtype}"
    )


def read(path: str, each_step: bool, target: str | None, drop: Sequence[str]) -> Recorded:
    """An NPZ file (`x`, `y` and perhaps `lengths`), or a folder of CSV files with their labels."""
    if Path(path).is_dir():
        return _read_folder(Path(path), each_step, target, drop)
    values, arrays = _read_arrays(path)
    if "y" not in arrays:
        raise ValueError(f"{path}: has no array y, the labels; got {', '.join(arrays)}; add it")
    y = arrays["y"]
    if len(y) != len(values):
        raise ValueError(
            f"{path}: y must have an entry for each of the {len(values)} recordings of x; got shape"
            f" {y.shape}"
        )
    labels = [
        label[: len(item)] if y.ndim > 1 else label for label, item in zip(y, values, strict=True)
    ]
    return Recorded(path, values, [_label(path, np.asarray(label)) for label in labels])


def read_values(
    path: str, target: str | None, drop: Sequence[str]
) -> tuple[list[str], list[np.ndarray]]:
    """Names and values of recordings to predict: an NPZ file, a CSV file or a folder of these."""
    given = Path(path)
    if not given.is_dir() and given.suffix.lower() not in (".csv", ".tsv"):
        values, _ = _read_arrays(path)
        return [f"{path}[{i}]" for i in range(len(values))], values
    files = csv_files(given) if given.is_dir() else [given]
    left_out = {*drop, *([target] if target else [])}
    return [str(file) for file in files], [_channels(table.read(file), left_out) for file in files]


def _read_arrays(path: str) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The recordings of an NPZ file, cut to their lengths, and all of its arrays."""
    arrays = read_arrays(Path(path), ["x", "y", "lengths"])
    x = arrays["x"]
    if x.ndim != 3 or x.size == 0:
        raise ValueError(
            f"{path}: x must be series, (N, T, D); got shape {x.shape}; for points (N, features) "
            'set data.name = "table"'
        )
    lengths = arrays.get("lengths", np.full(len(x), x.shape[1]))
    fine = lengths.shape == (len(x),) and lengths.dtype.kind in "iu"
    if not fine or lengths.min() < 1 or lengths.max() > x.shape[1]:
        raise ValueError(
            f"{path}: lengths must be whole numbers from 1 to T = {x.shape[1]}, one for each of the"
            f" {len(x)} recordings; got {lengths.dtype} {lengths.shape}"
        )
    return values_of(path, [item[:n] for item, n in zip(x, lengths, strict=True)]), arrays


def csv_files(folder: Path) -> list[Path]:
    """The CSV files of a folder and of its folders."""
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in (".csv", ".tsv"))


def _read_folder(
    folder: Path, each_step: bool, target: str | None, drop: Sequence[str]
) -> Recorded:
    """One CSV per recording, a row per time step, a column per channel.

    Labels of time steps are in the column `target`, by default the last. That of a recording is in
    that column too, the same in all rows, or else it is the name of the folder that it lies in.
    """
    files = csv_files(folder)
    if not files:
        raise ValueError(f"{folder}: holds no CSV files; give a folder of one per recording")
    values, labels = [], []
    for file in files:
        rows = table.read(file)
        column = target or (rows.names[-1] if each_step else None)
        if column is not None and column not in rows.names:
            raise ValueError(
                f"data.target: {file} has no column {column!r}; it has {', '.join(rows.names)}"
            )
        values.append(_channels(rows, {*drop, *([column] if column else [])}))
        labels.append(_labels_in(file, folder, rows, column, each_step))
    return Recorded(str(folder), values_of(str(folder), values), labels)


def _channels(rows: table.Rows, left_out: set[str]) -> np.ndarray:
    """The values of all columns but these, (T, D)."""
    names = [name for name in rows.names if name not in left_out]
    if not names:
        raise ValueError(f"{rows.path}: has no column of values; got {', '.join(rows.names)}")
    return np.stack([numbers(n, rows.column(n), rows.where) for n in names], 1)


def _labels_in(
    file: Path, folder: Path, rows: table.Rows, column: str | None, each_step: bool
) -> np.ndarray:
    if column is None:
        if file.parent == folder:
            raise ValueError(
                f"{file}: must lie in a folder named after its class, or have it in a column that "
                "data.target names"
            )
        return np.array(file.parent.name)
    texts = np.array(["" if is_blank(text) else text for text in rows.texts(column)])
    if each_step:
        return texts
    if len(set(texts)) > 1:
        raise ValueError(
            f"{file}: column {column!r} must be the same in all rows, the recording's label; got "
            f'{texts[0]!r} and others; for labels of time steps set data.labels = "step"'
        )
    return texts[0]
