"""A first config for one's own data: look at a file or a folder, and write a TOML that trains.

`first_config` finds out what lies at a path and asks the function of that kind of data, which
returns a `Draft`: the text of the config, with comments, and what was seen in the data.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisnn.files import write_atomic

FEW = 20  # different whole numbers up to which they are classes, and not a quantity


@dataclass(frozen=True)
class Draft:
    """A config to start from."""

    text: str  # TOML, with comments
    found: dict[str, str]  # what was seen in the data, in words


def first_config(data: Path, folder: Path) -> Draft:
    """A config, to lie in `folder`, that trains on a file or folder of one's own."""
    if data.is_dir():
        raise ValueError(f"{data}: is a folder; give a CSV, TSV, NPY or NPZ file")
    return for_table(data, folder)


def write(data: Path, out: Path) -> Draft:
    """Write the first config of some data; a file that is there already stays as it is."""
    if out.suffix != ".toml":
        raise ValueError(f"{out}: must be a .toml file; give e.g. --out my.toml")
    if out.exists():
        raise ValueError(f"{out}: is there already; delete it, or give another name with --out")
    if not data.exists():
        raise ValueError(f"{data}: there is no such file or folder; check the path")
    draft = first_config(data, out.parent)
    write_atomic(out, draft.text.encode())
    return draft


def toml(value: Any) -> str:
    """A text, number, truth value or list as TOML has it, which is as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def relative(data: Path, folder: Path) -> str:
    """Where the data lie, as a config in this folder names them."""
    return toml(Path(os.path.relpath(data.resolve(), folder.resolve())).as_posix())


def for_table(data: Path, folder: Path) -> Draft:
    """Points of a table: the last column is what to predict."""
    from bisnn.data import table
    from bisnn.packed.columns import as_number, is_blank

    rows = table.read(data)
    target = rows.names[-1]
    labels = [text for text in rows.texts(target) if not is_blank(text)]
    numbers = [as_number(text) for text in labels]
    distinct = sorted(set(labels))
    quantity = None not in numbers and (
        len(distinct) > FEW or any(not float(number or 0).is_integer() for number in numbers)
    )
    task = "regression" if quantity else "classification"
    drop = [name for name in rows.names[:-1] if _says_nothing(rows.column(name))]
    about = (
        f"a quantity, {min(map(float, labels)):g} to {max(map(float, labels)):g}"
        if quantity
        else f"{len(distinct)} classes: {', '.join(distinct[:FEW])}"
    )
    text = f"""\
# A first config for {data.name}, written by `bisnn new`. Train it with: bisnn train THIS_FILE
version = 1
seed = 0

[data]
name = "table"
train = {relative(data, folder)}  # {len(rows):,} rows; relative to this file
task = "{task}"  # or "{"classification" if quantity else "regression"}"
target = {toml(target)}  # the column to predict: {about}
drop = {toml(drop)}  # columns to leave out: names, numbers of rows, what nobody knows beforehand
test_share = 0.2  # rows that the model is judged on, once, at the end
validation = 0.2  # of the others, held out of training, to choose the best epoch by

[rule]
name = "bayes"  # weights are drawn from a posterior, so that it knows how sure it is; or "st"

[train]
keep = "best"  # the weights of the epoch that does best on the validation rows
"""
    return Draft(text, {"rows": f"{len(rows):,}", "predicted": f"{target}: {about}"} | _of(drop))


def _of(drop: list[str]) -> dict[str, str]:
    return {"left out": ", ".join(drop)} if drop else {}


def _says_nothing(values: Any) -> bool:
    """Whether a column is blank, or has another word in almost every row."""
    from bisnn.packed.columns import as_number, is_blank

    given = [value for value in values if not is_blank(value)]
    words = bool(given) and all(as_number(value) is None for value in given)
    return not given or (words and len(set(given)) > max(2, len(values) // 2))
