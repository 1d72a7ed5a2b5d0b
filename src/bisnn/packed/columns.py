"""The columns of a table as features: blanks filled in, categories as zeros and ones, as learned
from the training rows.

scikit-learn has SimpleImputer and OneHotEncoder, but a model is to load without running code, and
what ships has no scikit-learn: so the transform is written here, for numpy alone, and is the same
for `Model.predict`, `bisnn predict` and the packed engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

BLANKS = ("", "na", "n/a", "nan", "null", "?")  # cells without a value, in upper or lower case
Where = Callable[[str, int], str]  # how a message names a cell, by its column and row


class BadSchema(ValueError):
    """A description, read from a file, of no table."""


@dataclass(frozen=True)
class Column:
    """A column of numbers, a feature or with blanks two; or of categories, a feature for each."""

    name: str
    fill: float = 0.0  # numbers: the median of the training rows, in place of a blank
    # Numbers: whether training rows had blanks; a second feature is then 1 where a cell is blank
    blanks: bool = False
    # Categories of the training rows; "", a blank, is one like the others
    categories: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        if self.categories:
            return [f"{self.name} = {category or 'blank'}" for category in self.categories]
        return [self.name, f"{self.name} is blank"] if self.blanks else [self.name]

    def encode(self, values: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, list[str]]:
        """The column's features, (N, n) float64, and notes on cells unlike any training row."""
        if self.categories:
            return self._encode_categories(values)
        x = numbers(self.name, values, lambda name, row: f"x: row {row + 1}, column {name!r}")
        blank = np.isnan(x)
        filled = np.where(blank, self.fill, x)
        if self.blanks:
            return np.stack([filled, blank.astype(np.float64)], 1), []
        if not blank.any():
            return filled[:, None], []
        blanks = f"{blank.sum()} blanks, where no training row had any, are taken as {self.fill:g}"
        return filled[:, None], [f"column {self.name!r}: {blanks}"]

    def _encode_categories(
        self, values: Sequence[Any] | np.ndarray
    ) -> tuple[np.ndarray, list[str]]:
        places = {category: i for i, category in enumerate(self.categories)}
        x, unseen = np.zeros((len(values), len(places))), []
        for row, value in enumerate(values):
            name = category(value)
            if name in places:
                x[row, places[name]] = 1
            else:
                unseen.append(name or "blank")
        if not unseen:
            return x, []
        cells = f"{len(unseen)} cells are of no category of the training rows, e.g. {unseen[0]!r}"
        return x, [f"column {self.name!r}: {cells}, and count as none"]


@dataclass(frozen=True)
class Schema:
    """The table that a model was trained on: the names of its columns and what becomes of them."""

    columns: tuple[Column, ...]  #: those that are features, in the order of the training file
    #: all columns of the training file; "1", "2", ... where it has no header
    layout: tuple[str, ...]
    target: str | None = None  #: the class, or the number to predict

    @classmethod
    def numbered(cls, count: int) -> Schema:
        """`count` columns of numbers that have no names."""
        names = tuple(str(i + 1) for i in range(count))
        return cls(tuple(Column(name) for name in names), names)

    @property
    def named(self) -> bool:
        """Whether the training file has a header."""
        return self.layout != tuple(str(i + 1) for i in range(len(self.layout)))

    @property
    def features(self) -> list[str]:
        """Names of the features that the columns become."""
        return [name for column in self.columns for name in column.features]

    def encode(self, x: Any) -> tuple[np.ndarray, list[str]]:
        """Features (N, d) float64 from points in the units of the training file, and notes on cells
        that no training row was like.

        Args:
            x: an array (N, columns), in the order of the training file, without its target; NaN or
                an empty text where a cell is blank. Or a mapping from the columns' names to a value
                each (a row of csv.DictReader), or to one per point (a data frame).

        >>> age, job = Column("age", 30.0, True), Column("job", categories=("cook", "smith"))
        >>> schema = Schema((age, job), ("age", "job"))
        >>> schema.encode({"age": "", "job": "cook"})[0]
        array([[30.,  1.,  1.,  0.]])
        """
        values = self._by_name(x) if hasattr(x, "keys") else self._by_position(np.asarray(x))
        parts, notes = [], []
        for column in self.columns:
            part, more = column.encode(values[column.name])
            parts.append(part)
            notes += more
        return np.concatenate(parts, 1), notes

    def _by_name(self, x: Any) -> dict[str, Any]:
        self.check_names(x.keys(), "x")
        single = (str, bytes, int, float, np.generic)
        given = {column.name: x[column.name] for column in self.columns}
        values = {
            name: [cell] if cell is None or isinstance(cell, single) else list(cell)
            for name, cell in given.items()
        }
        sizes = sorted({len(cells) for cells in values.values()})
        if len(sizes) != 1 or sizes == [0]:
            raise ValueError(
                f"x: every column must have as many values, one or more; got {sizes}; give one per "
                "point"
            )
        return values

    def _by_position(self, x: np.ndarray) -> dict[str, Any]:
        if x.ndim != 2 or x.shape[1] != len(self.columns) or len(x) == 0:
            names = ", ".join(column.name for column in self.columns[:10])
            names += ", ..." if len(self.columns) > 10 else ""
            raise ValueError(
                f"x: must be (N, {len(self.columns)}) with N >= 1, the columns {names}; got shape "
                f"{x.shape}; one row per point"
            )
        return {column.name: x[:, j] for j, column in enumerate(self.columns)}

    def check_names(self, names: Iterable[str], source: object) -> None:
        """See that all features are there, and nothing that the training file had not: `names` are
        those of `source`, for messages.
        """
        given = list(names)
        missing = [column.name for column in self.columns if column.name not in given]
        if missing:
            has = ", ".join(map(str, given))
            raise ValueError(
                f"{source}: has no column {', '.join(map(repr, missing))}, which the model takes; "
                f"it has {has}"
            )
        unknown = [repr(name) for name in given if name not in self.layout]
        if unknown:
            raise ValueError(
                f"{source}: column {', '.join(unknown)} was not in the training file; leave it out"
            )

    def to_json(self) -> dict[str, Any]:
        """Its fields, for a header."""
        return asdict(self)

    @classmethod
    def from_json(cls, about: Any, features: int) -> Schema:
        """From `about`, what `to_json` gave, of so many `features`; BadSchema for anything else."""
        whole = isinstance(about, dict) and set(about) == {"columns", "layout", "target"}
        if not whole or not isinstance(about["columns"], list):
            raise BadSchema("its table is described by no columns")
        columns = tuple(_column(column) for column in about["columns"])
        layout, target = _texts(about["layout"]), about["target"]
        names = [column.name for column in columns]
        distinct = len(set(layout)) == len(layout) and len(set(names)) == len(names)
        if not names or not distinct or not set(names) <= set(layout):
            raise BadSchema("the names of its columns are not distinct, or not those of its table")
        if target is not None and (target not in layout or target in names):
            raise BadSchema(f"its target is {target!r:.50}")
        schema = cls(columns, layout, target)
        if len(schema.features) != features:
            raise BadSchema(
                f"its columns make {len(schema.features)} features, and it takes {features}"
            )
        return schema


def _column(about: Any) -> Column:
    if not isinstance(about, dict) or set(about) != {"name", "fill", "blanks", "categories"}:
        raise BadSchema(f"a column is {about!r:.50}")
    (name,), categories = _texts([about["name"]]), _texts(about["categories"])
    fill, blanks = about["fill"], about["blanks"]
    number = isinstance(fill, (int, float)) and not isinstance(fill, bool) and math.isfinite(fill)
    if not number or not isinstance(blanks, bool) or len(set(categories)) != len(categories):
        raise BadSchema(f"column {name!r:.50} is described wrongly")
    return Column(name, float(fill), blanks, categories)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise BadSchema(f"names of columns or categories are {value!r:.50}")
    return tuple(value)


def is_blank(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in BLANKS
    return value is None or value != value


def category(value: Any) -> str:
    """A cell's category as text: "" for a blank; 1, 1.0 and "1.0" are the same one."""
    if is_blank(value):
        return ""
    number = as_number(value)
    if number is None or not math.isfinite(number):
        return str(value).strip()
    return str(int(number)) if number.is_integer() else str(number)


def as_number(value: Any) -> float | None:
    """The number that a cell holds; None where it holds none."""
    try:
        # Python reads 1_000 as a number
        return None if isinstance(value, str) and "_" in value else float(value)
    except (TypeError, ValueError):
        return None


def numbers(name: str, values: Sequence[Any] | np.ndarray, where: Where) -> np.ndarray:
    """The numbers of a column, (N,) float64, NaN where a cell is blank."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        x = values.astype(np.float64)
    else:
        found = [math.nan if is_blank(value) else as_number(value) for value in values]
        for row, number in enumerate(found):
            if number is None:
                raise ValueError(
                    f"{where(name, row)}: must be a number, as others of its column are; got "
                    f"{str(values[row])!r}; correct it, leave it blank, or train with the column "
                    "named in data.categorical"
                )
        x = np.array(found, dtype=np.float64)
    bad = np.flatnonzero(np.isinf(x))
    if len(bad):
        raise ValueError(
            f"{where(name, int(bad[0]))}: must be a finite number; got {x[bad[0]]}; correct it or "
            "leave it blank"
        )
    return x
