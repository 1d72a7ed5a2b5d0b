"""Events as columns that have names: CSV files, NumPy's structured arrays, and what others' readers
find.

Columns are found by their names, in any order and in upper or lower case. Times are microseconds
unless the column's name ends in another unit (`t_ns`, `time_ms`, `t_s`, `t [s]`): a unit is never
guessed from the values.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bisnn.data import arrays
from bisnn.data.events import EVENTS, BadEvents, Recording, nonzero, not_too_long, refuse_noise

NAMES = {
    "t": r"t|ts|times?|timestamps?",
    "x": r"x|xs|col|column",
    "y": r"y|ys|row",
    "p": r"p|ps|pol|polarity|polarities|on",
}
_UNIT = re.compile(r"(?P<name>\w+?)(?:(?:_| ?[\[(]| )(?P<unit>ns|us|µs|ms|s)[\])]?)?", re.ASCII)
_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}  # microseconds of a unit
_POLARITIES = {"on": 1.0, "off": -1.0, "true": 1.0, "false": -1.0}
_LONGEST_WORD = 12  # characters of a polarity
_WIDEST = np.iinfo(np.int16).max  # pixels of a sensor


def read_csv(path: Path, content: bytes) -> Recording:
    """Events from text: a line that names the columns, then a line for each event.

    Between columns stand commas, semicolons, tabs or spaces; lines that begin with # are comments.
    """
    try:
        text = content.decode("utf-8-sig").lstrip()
    except UnicodeDecodeError:
        raise BadEvents(f"{path}: is no CSV text in UTF-8; save it as one") from None
    while text.startswith("#"):
        text = text.partition("\n")[2].lstrip()
    first, _, rest = text.partition("\n")
    delimiter = next((mark for mark in ",;\t" if mark in first), None)
    names = [name.strip().strip("\"'") for name in first.split(delimiter)]
    found = _places(path, names)
    if not rest.strip():
        raise BadEvents(f"{path}: has no event; leave it out")
    kinds = {name: f"U{_LONGEST_WORD}" if name == "p" else "f8" for name in found}
    try:
        with warnings.catch_warnings(action="ignore"):  # of comments alone; said below
            table = np.loadtxt(
                io.StringIO(rest),
                dtype=list(kinds.items()),
                delimiter=delimiter,
                usecols=[place for place, _ in found.values()],
                ndmin=1,
            )
    except (ValueError, IndexError) as error:
        why = re.sub(r"\s+", " ", str(error))[:150]
        raise BadEvents(f"{path}: has a line that is no event ({why}); mend it") from None
    columns = {name: table[name] for name in found} | {"p": _numbers_of(path, table["p"])}
    return _recording(path, columns, {name: unit for name, (_, unit) in found.items()}, None, "CSV")


def read_arrays(path: Path) -> Recording:
    """Events from an NPY or NPZ file: a structured array, or in an NPZ an array for each column.

    An array `size` of an NPZ, (width, height), is the sensor's.
    """
    try:
        names = arrays.names_in(path)
        columns, size = _stored(path, names)
    except BadEvents:
        raise
    except ValueError as error:
        raise BadEvents(str(error)) from None
    return from_columns(path, columns, size, "NumPy array")


def _stored(path: Path, names: list[str]) -> tuple[dict[str, np.ndarray], tuple[int, int] | None]:
    """The columns of NumPy's files, and the sensor's size where there is one."""
    wanted = [name for name in names if name != "size"]
    if "events" in wanted:
        wanted = ["events"]
    elif len(wanted) != 1:
        wanted = [wanted[place] for place, _ in _places(path, wanted).values()]
    found = arrays.read_arrays(path, [*wanted, *(["size"] if "size" in names else [])])
    size = _size(path, found.pop("size")) if "size" in found else None
    if len(found) > 1:
        return found, size
    (events,) = found.values()
    if not events.dtype.names or events.ndim != 1:
        raise BadEvents(
            f"{path}: must be an array (N,) with the fields t, x, y, p; got {events.dtype} of "
            f"shape {events.shape}; see bisnn.data.EVENTS"
        )
    return {name: events[name] for name in events.dtype.names}, size


def _size(path: Path, size: np.ndarray) -> tuple[int, int]:
    if size.shape != (2,) or size.dtype.kind not in "iu" or not (0 < size.min() <= size.max()):
        raise BadEvents(f"{path}: its array size must be (width, height); got {size!r:.50}")
    return int(size[0]), int(size[1])


def from_columns(
    path: Path, columns: Mapping[str, np.ndarray], size: tuple[int, int] | None, format: str
) -> Recording:
    """A recording of columns of numbers, by their names; without a size, the least that holds all
    events."""
    found = _places(path, list(columns))
    values = list(columns.values())
    picked = {name: values[place] for name, (place, _) in found.items()}
    lengths = {column.shape for column in picked.values()}
    if len(lengths) != 1 or any(column.ndim != 1 for column in picked.values()):
        raise BadEvents(f"{path}: its columns must be equally long; got {sorted(lengths)}; mend it")
    units = {name: unit for name, (_, unit) in found.items()}
    return _recording(path, picked, units, size, format)


def _places(path: Path, names: list[str]) -> dict[str, tuple[int, str]]:
    """Where t, x, y and p are among the names of columns, and in what unit."""
    found: dict[str, tuple[int, str]] = {}
    for wanted, pattern in NAMES.items():
        for place, name in enumerate(names):
            match = _UNIT.fullmatch(name.strip().lower())
            if match is None or not re.fullmatch(pattern, _bare(match, wanted)):
                continue
            if wanted in found:
                raise BadEvents(
                    f"{path}: has two columns for {wanted}, {names[found[wanted][0]]!r} and "
                    f"{name!r}; leave one out"
                )
            found[wanted] = place, (match["unit"] or "us") if wanted == "t" else ""
    missing = [wanted for wanted in NAMES if wanted not in found]
    if missing:
        shown = ", ".join(names)[:100]
        raise BadEvents(
            f"{path}: must name its columns t, x, y and p; got {shown!r}; "
            f"give a name to {', '.join(missing)}"
        )
    return found


def _bare(match: re.Match[str], wanted: str) -> str:
    """A name without its unit, which times alone have."""
    return match["name"] if wanted == "t" else match[0]


def _recording(
    path: Path,
    columns: Mapping[str, np.ndarray],
    units: Mapping[str, str],
    size: tuple[int, int] | None,
    format: str,
) -> Recording:
    x, y = (_whole_numbers(path, name, columns[name]) for name in "xy")
    t = _microseconds(path, columns["t"], units["t"])
    on = _polarities(path, columns["p"])
    if not len(t):
        raise BadEvents(f"{path}: has no event; leave it out")
    width, height = size or (_WIDEST, _WIDEST)
    kept = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    outside = len(kept) - int(kept.sum())
    refuse_noise(path, outside, len(kept), f"{format} ({width} x {height})")
    events = np.empty(len(kept) - outside, EVENTS)
    for name, column in (("x", x), ("y", y), ("t", t), ("p", on)):
        events[name] = column[kept]
    late = int((events["t"][1:] < events["t"][:-1]).sum())
    if late:
        events = events[np.argsort(events["t"], kind="stable")]
    least = int(events["x"].max()) + 1, int(events["y"].max()) + 1
    found = Recording(
        events,
        size or least,
        format,
        nonzero({"outside the sensor": outside}),
        nonzero({"out of order": late}),
        size_stated=size is not None,
    )
    return not_too_long(path, found)


def _whole_numbers(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    """int64; what lies beyond it is no number that an event has."""
    if column.dtype.kind in "iub" and column.dtype != np.uint64:
        return column.astype(np.int64)
    if column.dtype.kind not in "fu":
        raise BadEvents(f"{path}: {name} must be whole numbers; got {column.dtype}; convert them")
    with np.errstate(invalid="ignore"):
        whole = np.isfinite(column) & (np.abs(column) < 2.0**62) & (column == np.floor(column))
    bad = column[~whole]
    if len(bad):
        way = "; or name its column by the unit, t_s or t_ms" if name == "t" else ""
        raise BadEvents(f"{path}: {name} must be whole numbers; got {bad[0]}; round them{way}")
    return column.astype(np.int64)


def _microseconds(path: Path, column: np.ndarray, unit: str) -> np.ndarray:
    if unit in ("us", "µs"):
        return _whole_numbers(path, "t", column)
    if column.dtype.kind not in "iuf" or not np.isfinite(column).all():
        raise BadEvents(f"{path}: t must be finite numbers; got {column.dtype}; mend it")
    return _whole_numbers(path, "t", np.floor(column * _US[unit] + 0.5))


def _polarities(path: Path, column: np.ndarray) -> np.ndarray:
    """Whether events are ON: 0 and 1, or -1 and 1."""
    known = column.dtype.kind in "biuf" and ((column == 0) | (abs(column) == 1)).all()
    if not known:
        raise BadEvents(f"{path}: p must be 0 or 1, or -1 or 1; got others; convert it")
    return column > 0


def _numbers_of(path: Path, words: np.ndarray) -> np.ndarray:
    """Polarities of a text as numbers."""
    found, places = np.unique(words, return_inverse=True)
    try:
        numbers = [_POLARITIES.get(word.strip().lower()) or float(word) for word in found]
    except ValueError:
        raise BadEvents(
            f"{path}: p must be 0 or 1, -1 or 1, or on or off; got {str(found[0])!r}; convert it"
        ) from None
    return np.array(numbers)[places]
