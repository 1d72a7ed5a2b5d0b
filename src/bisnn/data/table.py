"""One's own points from CSV, NPY and NPZ files. The files come from outside: every cell is checked, nothing in them is run.

The csv module and numpy do the parsing; pandas would be a heavy dependency for it and would guess types.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from bisnn.data.arrays import read_arrays

KINDS = (".csv", ".npy", ".npz")
MISSING = ("", "na", "n/a", "null", "none", "-", "?")  # in a first row, these are missing numbers and no header


def read_features(path: str | Path, features: int) -> np.ndarray:
    """Points to predict, (N, features) float64: the columns of a CSV, the array of an NPY, the array `x` of an NPZ."""
    path = _existing(path)
    x = _numbers(path, *_csv_rows(path)) if path.suffix.lower() == ".csv" else _floats(path, read_arrays(path, ["x"])["x"])
    if x.shape[1] != features:
        hint = "; leave out the column of the class or target" if x.shape[1] == features + 1 else ""
        raise ValueError(f"{path}: the model takes {features} features a row; got {x.shape[1]}{hint}")
    return x


def read_labelled(path: str | Path) -> tuple[np.ndarray, list[str]]:
    """Features (N, d) float64 and the class or target of each row, as text: the last column, or the array `y` of an NPZ."""
    path = _existing(path)
    if path.suffix.lower() == ".csv":
        rows, lines = _csv_rows(path)
        if len(rows[0]) < 2:
            raise ValueError(f"{path}: needs at least one feature and, last, the class or target; got {len(rows[0])} column")
        return _numbers(path, [row[:-1] for row in rows], lines), [row[-1].strip() for row in rows]
    arrays = read_arrays(path, ["x", "y"])
    x, y = _floats(path, arrays["x"]), arrays.get("y")
    if y is None:
        if path.suffix.lower() == ".npz":
            raise ValueError(f"{path}: has no array y with the classes or targets; got x alone; save it with numpy.savez(x=, y=)")
        if x.shape[1] < 2:
            raise ValueError(f"{path}: needs at least one feature and, last, the class or target; got {x.shape[1]} column")
        x, y = x[:, :-1], x[:, -1]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or len(y) != len(x):
        raise ValueError(f"{path}: y must have one entry for each of the {len(x)} rows of x; got shape {y.shape}")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError(f"{path}: row {int(np.argmin(np.isfinite(y))) + 1} of y is not finite; drop it or fill it in")
    return x, [_text(value) for value in y.tolist()]


def labels(path: str | Path, texts: list[str], classes: tuple[str, ...] | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers (N,) int64 and the classes' names; in order of value if they are numbers, else of the alphabet."""
    if any(not text for text in texts):
        raise ValueError(f"{path}: row {texts.index('') + 1} has no class; fill it in or drop the row")
    if classes is None:
        names = set(texts)
        whole = all(re.fullmatch(r"[+-]?[0-9]+", name) for name in names)
        classes = tuple(sorted(names, key=int) if whole else sorted(names))
        if len(classes) < 2 or len(classes) > max(2, len(texts) // 2):
            raise ValueError(
                f"{path}: needs two classes or more, each more than once; got {len(classes)} in {len(texts)} rows; for real-valued "
                'targets set data.task = "regression"'
            )
    unknown = [text for text in texts if text not in classes]
    if unknown:
        raise ValueError(f"{path}: class {unknown[0]!r} does not occur in the training rows; they have {', '.join(classes)}")
    return np.array([classes.index(text) for text in texts], dtype=np.int64), classes


def targets(path: str | Path, texts: list[str]) -> np.ndarray:
    """Real targets, (N, 1) float64."""
    return _numbers(_existing(path), [[text] for text in texts], None)


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"{path}: must be one of {', '.join(KINDS)}; got {path.suffix or 'no suffix'!r}")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; give a file")
    if not path.exists():
        raise ValueError(f"{path}: there is no such file; check the path")
    if not path.is_file():
        raise ValueError(f"{path}: is no regular file; give a file")  # a pipe might wait for ever
    return path


def _csv_rows(path: Path) -> tuple[list[list[str]], list[int]]:
    """The rows as text and their line numbers; a first row of words is taken as the header. Empty lines are passed over."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(file, delimiter=delimiter)
            numbered = [(row, reader.line_num) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: is no CSV text in UTF-8 ({error}); save it as one") from None
    if numbered and not any(_is_number(cell) or cell.strip().lower() in MISSING for cell in numbered[0][0]):
        del numbered[0]
    if not numbered:
        raise ValueError(f"{path}: is empty: it has no rows of numbers; give at least one")
    rows, lines = [row for row, _ in numbered], [line for _, line in numbered]
    for row, line in numbered:
        if len(row) != len(rows[0]):
            raise ValueError(f"{path}: line {line} has {len(row)} columns, the first {len(rows[0])}; make them equal")
    return rows, lines


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(path: Path, rows: list[list[str]], lines: list[int] | None) -> np.ndarray:
    """Cells to float64. `lines` are the rows' line numbers; None if the rows are targets, one a row."""
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            if not _is_number(cell) or not np.isfinite(float(cell)):
                where = f"line {lines[i]}, column {j + 1}" if lines else f"target of row {i + 1}"
                raise ValueError(f"{path}: {where}: must be a finite number; got {cell!r}; replace it or drop the row")
    return np.array(rows, dtype=np.float64)


def _floats(path: Path, x: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "fiub":
        raise ValueError(f"{path}: must hold real numbers; got {x.dtype}; convert it with .astype(float)")
    if x.ndim != 2 or x.size == 0:
        raise ValueError(f"{path}: must have rows and columns, (N, features), and not be empty; got shape {x.shape}; reshape it")
    x = x.astype(np.float64)
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        raise ValueError(f"{path}: row {bad[0][0] + 1}, column {bad[0][1] + 1} is {x[tuple(bad[0])]}; all numbers must be finite")
    return x


def _text(value: object) -> str:
    """A label as text; 1.0 and 1 are the same class."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
