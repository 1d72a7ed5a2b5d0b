"""From arrays and data frames to features: which columns are numbers, which are categories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any

import numpy as np

from bisnn.packed.columns import Column, Schema, as_number, category, is_blank, numbers

CATEGORIES = ("categor", "enum")  # how pandas and polars begin the names of such types


def categorical_columns(
    x: Any, names: Sequence[str], named: Iterable[str | int] | None
) -> set[int]:
    """Numbers of the columns that are categories by their type in a frame, or because `named`,
    by name or by number, says so.
    """
    types = [str(kind).lower() for kind in getattr(x, "dtypes", ())]
    found = {j for j, kind in enumerate(types) if kind.startswith(CATEGORIES)}
    for column in named or ():
        if isinstance(column, str) and column in names:
            found.add(names.index(column))
        elif isinstance(column, int | np.integer) and 0 <= column < len(names):
            found.add(int(column))
        else:
            raise ValueError(
                f"categorical_features: must be names or numbers of columns, which are "
                f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''}; got {column!r}"
            )
    return found


def checked_cells(table: np.ndarray) -> np.ndarray:
    """A table with None for what pandas calls NA and NaT; a TypeError, as scikit-learn's own, for a
    cell that is neither text nor a number.
    """
    if table.dtype.kind != "O":
        return table
    found = table.copy()
    for place, value in np.ndenumerate(table):
        if type(value).__name__ in ("NAType", "NaTType"):
            found[place] = None
        elif not isinstance(value, str | bytes | Number | np.generic | None):
            raise TypeError(
                f"X: row {place[0]}, column {place[1]}: argument must be a string or a number; got "
                f"a {type(value).__name__}; leave the column out, or make numbers of it"
            )
    return found


def learned_schema(table: np.ndarray, names: Sequence[str], categorical: set[int]) -> Schema:
    """What becomes of each column of a table (N, d) of numbers or of any cells."""
    columns = [_learned_column(name, table[:, j], j in categorical) for j, name in enumerate(names)]
    return Schema(tuple(columns), tuple(names))


def _learned_column(name: str, values: np.ndarray, categorical: bool) -> Column:
    words = values.dtype.kind not in "fiub"
    given = [value for value in values if not is_blank(value)] if words else []
    if categorical or (given and all(as_number(value) is None for value in given)):
        categories = sorted({category(value) for value in values.tolist()})
        if not categorical and len(categories) > max(2, len(values) // 2):
            raise ValueError(
                f"X: column {name!r} has {len(categories)} different words in {len(values)} rows, "
                "as names and dates do; leave the column out, or give its number in "
                "categorical_features if they are categories"
            )
        return Column(name, categories=tuple(categories))
    words_among = [row for row, value in enumerate(values) if words and not _is_number(value)]
    if words_among:
        raise ValueError(
            f"X: row {words_among[0]}, column {name!r}: must be a number, as others of its column "
            f"are; got {str(values[words_among[0]])!r}; correct it, or name the column in "
            "categorical_features"
        )
    x = numbers(name, values, lambda name, row: f"X: row {row}, column {name!r}")
    blank = np.isnan(x)
    return Column(name, 0.0 if blank.all() else float(np.median(x[~blank])), bool(blank.any()))


def _is_number(value: Any) -> bool:
    return is_blank(value) or as_number(value) is not None
