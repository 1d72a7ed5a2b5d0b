"""One's own points from CSV, TSV, NPY and NPZ files. The files come from outside: every cell is
checked, nothing in them is run.

The csv module and numpy do the parsing; pandas would be a heavy dependency for it and would guess
types.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bisnn.data.arrays import read_arrays
from bisnn.display import note
from bisnn.packed.columns import Column, Schema, as_number, category, is_blank, numbers

KINDS = (".csv", ".tsv", ".npy", ".npz")


@dataclass(frozen=True)
class Rows:
    """The content of a file, column by column: text from a CSV, numbers from NumPy's files."""

    path: Path
    names: tuple[str, ...]  # of the columns; "1", "2", ... where the file gives none
    header: bool  # whether it gives them
    values: tuple[list[str] | np.ndarray, ...]  # (N,) each
    lines: list[int] | None = None  # of a CSV's rows

    def __len__(self) -> int:
        return len(self.values[0])

    def where(self, name: str, row: int) -> str:
        place = f"line {self.lines[row]}" if self.lines else f"row {row + 1}"
        if self.header:
            return f"{self.path}: {place}, column {name!r}"
        return f"{self.path}: {place}, column {name}"

    def column(self, name: str) -> list[str] | np.ndarray:
        return self.values[self.names.index(name)]

    def texts(self, name: str) -> list[str]:
        """A column of classes or targets, as text."""
        values = self.column(name)
        if isinstance(values, np.ndarray):
            return [text_of(value) for value in values.tolist()]
        return values

    def at(self, chosen: np.ndarray) -> Rows:
        """Some of the rows."""
        some = [
            values[chosen] if isinstance(values, np.ndarray) else [values[i] for i in chosen]
            for values in self.values
        ]
        return replace(
            self,
            values=tuple(some),
            lines=None if self.lines is None else [self.lines[i] for i in chosen],
        )


def read(path: str | Path) -> Rows:
    """All rows of a CSV, TSV or NPY file, or the arrays `x`, `y` and `names` of an NPZ file."""
    path = _existing(path)
    if path.suffix.lower() in (".csv", ".tsv"):
        return _csv_rows(path)
    arrays = read_arrays(path, ["x", "y", "names"])
    x, y = _floats(path, arrays["x"]), arrays.get("y")
    values: list[list[str] | np.ndarray] = list(x.T)
    if y is not None:
        values.append(_labels_of(path, y, len(x)))
    names = tuple(str(i + 1) for i in range(len(values)))
    if "names" in arrays:
        names = (*_names_of(path, arrays["names"], x.shape[1]), *(["y"] if y is not None else []))
        _check_distinct(path, names)
    return Rows(path, names, "names" in arrays, tuple(values))


def matched(rows: Rows, schema: Schema) -> tuple[dict[str, Any], list[str] | None]:
    """The columns that a model takes, and its target as text where the file has it.

    By name, in any order, if file and model have names. Else by position: the file has the features
        alone, in the order of the
    training file, or all columns of the training file.
    """
    names: Sequence[str] = rows.names
    if rows.header and schema.named:
        schema.check_names(names, rows.path)
    elif len(names) == len(schema.layout):
        names = schema.layout
    elif len(names) == len(schema.columns):
        names = [column.name for column in schema.columns]
    else:
        whole = ""
        if len(schema.layout) > len(schema.columns):
            whole = f", or {len(schema.layout)}, as the training file has"
        raise ValueError(
            f"{rows.path}: must have {len(schema.columns)} columns, the model's features in their "
            f"order{whole}; got {len(names)}"
        )
    by_name = dict(zip(names, rows.names, strict=True))
    labels = rows.texts(by_name[schema.target]) if schema.target in by_name else None
    values = {column.name: rows.column(by_name[column.name]) for column in schema.columns}
    numeric = {
        c.name: numbers(by_name[c.name], values[c.name], rows.where)
        for c in schema.columns
        if not c.categories
    }
    return values | numeric, labels


def read_points(
    path: str | Path, schema: Schema | None, features: int
) -> tuple[Any, list[str] | None]:
    """Points to predict, as `Model.predict` takes them, and the column of the class or target where
    the file has it.

    Without a schema, so many columns of numbers, none of them blank.
    """
    rows = read(path)
    if schema is not None:
        if rows.header and not schema.named:
            note(
                f"{path}: its columns are taken by position, as the training file gave them no "
                "names"
            )
        return matched(rows, schema)
    x = np.stack(list(matched(rows, Schema.numbered(features))[0].values()), 1)
    for row, column in np.argwhere(np.isnan(x)):
        raise ValueError(
            f"{rows.where(rows.names[column], row)}: must be a finite number; it is blank; "
            "fill it in or drop the row"
        )
    return x, None


def learned_schema(
    rows: Rows,
    target: str,
    drop: Sequence[str],
    categorical: Sequence[str],
    training: np.ndarray,
) -> Schema:
    """What becomes of each column, learned from these of the rows alone."""
    for key, names in (("target", [target]), ("drop", drop), ("categorical", categorical)):
        for name in names:
            if name not in rows.names:
                raise ValueError(
                    f"data.{key}: {rows.path} has no column {name!r}; "
                    f"it has {', '.join(rows.names)}"
                )
            if key != "target" and (name == target or (key == "categorical" and name in drop)):
                raise ValueError(
                    f"data.{key}: column {name!r} is the target or dropped already; leave it out"
                )
    some = rows.at(training)
    columns = [
        _learned_column(some, name, name in categorical)
        for name in rows.names
        if name != target and name not in drop
    ]
    if not columns:
        raise ValueError(
            f"{rows.path}: needs at least one feature beside the class or target; "
            f"got {len(rows.names)} column"
        )
    return Schema(tuple(columns), rows.names, target)


def _learned_column(rows: Rows, name: str, categorical: bool) -> Column:
    values = rows.column(name)
    given = [value for value in values if not is_blank(value)]
    if not given:
        raise ValueError(
            f"{rows.path}: column {name!r} is blank in all training rows; name it in data.drop"
        )
    if categorical or all(as_number(value) is None for value in given):
        categories = sorted({category(value) for value in values})
        if not categorical and len(categories) > max(2, len(values) // 2):
            raise ValueError(
                f"{rows.path}: column {name!r} has {len(categories)} different words in "
                f"{len(values)} training rows; name it in "
                "data.drop, or in data.categorical if they are categories"
            )
        return Column(name, categories=tuple(categories))
    x = numbers(name, values, rows.where)
    return Column(name, float(np.nanmedian(x)), bool(np.isnan(x).any()))


def _labels_of(path: Path, y: np.ndarray, rows: int) -> list[str] | np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or len(y) != rows:
        raise ValueError(
            f"{path}: y must have one entry for each of the {rows} rows of x; got shape {y.shape}"
        )
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise ValueError(
            f"{path}: row {int(np.argmin(np.isfinite(y))) + 1} of y is not finite; "
            "drop it or fill it in"
        )
    return [text_of(value) for value in y.tolist()]


def _names_of(path: Path, names: np.ndarray, count: int) -> list[str]:
    if names.dtype.kind != "U" or names.shape != (count,):
        raise ValueError(
            f"{path}: names must be {count} texts, one for each column of x; "
            f"got {names.dtype} {names.shape}"
        )
    return names.tolist()


def _check_distinct(path: Path, names: Sequence[str]) -> None:
    for i, name in enumerate(names):
        if not name:
            raise ValueError(
                f"{path}: column {i + 1} has no name; give it one, or leave it out if it numbers "
                "the rows"
            )
        if name in names[:i]:
            raise ValueError(f"{path}: two columns are named {name!r}; rename one")


def labels(
    path: str | Path, texts: list[str], classes: tuple[str, ...] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers (N,) int64 and the classes' names, ordered by value or by the alphabet."""
    blank = [i for i, text in enumerate(texts) if is_blank(text)]
    if blank:
        raise ValueError(f"{path}: row {blank[0] + 1} has no class; fill it in or drop the row")
    if classes is None:
        names = set(texts)
        whole = all(re.fullmatch(r"[+-]?[0-9]+", name) for name in names)
        classes = tuple(sorted(names, key=int) if whole else sorted(names))
        if len(classes) < 2 or len(classes) > max(2, len(texts) // 2):
            raise ValueError(
                f"{path}: needs two classes or more, each more than once; "
                f"got {len(classes)} in {len(texts)} rows; for real-valued "
                'targets set data.task = "regression"'
            )
    unknown = [text for text in texts if text not in classes]
    if unknown:
        raise ValueError(
            f"{path}: class {unknown[0]!r} does not occur in the training rows; "
            f"they have {', '.join(classes)}"
        )
    return np.array([classes.index(text) for text in texts], dtype=np.int64), classes


def targets(path: str | Path, texts: list[str]) -> np.ndarray:
    """Real targets, (N, 1) float64."""
    found = [as_number(text) for text in texts]
    for i, number in enumerate(found):
        if number is None or not np.isfinite(number):
            raise ValueError(
                f"{path}: target of row {i + 1}: must be a finite number; got {texts[i]!r}; "
                "fill it in or drop the row"
            )
    return np.array(found, dtype=np.float64)[:, None]


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() not in KINDS:
        raise ValueError(
            f"{path}: must be one of {', '.join(KINDS)}; got {path.suffix or 'no suffix'!r}"
        )
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; give a file")
    if not path.exists():
        raise ValueError(f"{path}: there is no such file; check the path")
    if not path.is_file():
        raise ValueError(f"{path}: is no regular file; give a file")  # a pipe might wait for ever
    return path


def _csv_rows(path: Path) -> Rows:
    """A first row of words, none blank but perhaps the first, is the header; skip empty lines."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = re.sub(r'"[^"]*"', "", file.readline())  # a quoted cell may hold any character
            file.seek(0)
            # A comma beside these is a decimal one
            delimiter = next((mark for mark in "\t;" if mark in first), ",")
            reader = csv.reader(file, delimiter=delimiter)
            numbered = [([cell.strip() for cell in row], reader.line_num) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: is no CSV text in UTF-8 ({error}); save it as one") from None
    if delimiter != ",":
        numbered = _with_decimal_points(path, numbered)
    header = numbered.pop(0)[0] if numbered and _is_header(numbered[0][0]) else None
    if not numbered:
        raise ValueError(f"{path}: is empty: it has no rows of numbers; give at least one")
    rows, lines = [row for row, _ in numbered], [line for _, line in numbered]
    columns = len(header or rows[0])
    for row, line in numbered:
        if len(row) != columns:
            raise ValueError(
                f"{path}: line {line} has {len(row)} columns, the first {columns}; make them equal"
            )
    if header:
        _check_distinct(path, header)
    names = tuple(header or (str(i + 1) for i in range(columns)))
    return Rows(
        path,
        names,
        header is not None,
        tuple([list(cells) for cells in zip(*rows, strict=True)]),
        lines,
    )


def _is_header(cells: list[str]) -> bool:
    return (
        not any(as_number(cell) is not None or is_blank(cell) for cell in cells[1:] or cells)
        and as_number(cells[0]) is None
    )


_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")


def _with_decimal_points(
    path: Path, rows: list[tuple[list[str], int]]
) -> list[tuple[list[str], int]]:
    """Read 1,5 as 1.5, but not where both occur: one could mean thousands."""
    if not any(_DECIMAL_COMMA.fullmatch(cell) for row, _ in rows for cell in row):
        return rows
    for row, line in rows:
        for cell in row:
            if "." in cell and as_number(cell) is not None:
                raise ValueError(
                    f"{path}: line {line}: {cell!r} has a decimal point where other numbers have a "
                    "comma; write all of them alike"
                )
    point = lambda cell: cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell  # noqa: E731
    return [([point(cell) for cell in row], line) for row, line in rows]


def _floats(path: Path, x: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "fiub":
        raise ValueError(
            f"{path}: must hold real numbers; got {x.dtype}; convert it with .astype(float)"
        )
    if x.ndim != 2 or x.size == 0:
        series = x.ndim == 3 and x.size
        way = 'for series, (N, T, D), set data.name = "series"' if series else "reshape it"
        raise ValueError(
            f"{path}: must have rows and columns, (N, features), and not be empty; "
            f"got shape {x.shape}; {way}"
        )
    x = x.astype(np.float64)
    bad = np.argwhere(np.isinf(x))  # NaN is a blank
    if len(bad):
        raise ValueError(
            f"{path}: row {bad[0][0] + 1}, column {bad[0][1] + 1} is {x[tuple(bad[0])]}; "
            "all numbers must be finite"
        )
    return x


def text_of(value: object) -> str:
    """A label as text; 1.0 and 1 are the same class."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
