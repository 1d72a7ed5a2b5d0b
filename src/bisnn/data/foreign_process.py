"""The process that reads others' formats: `python -m bisnn.data.foreign_process BUDGET`.

Each line on stdin is JSON, [path, format]. The answer on stdout is a line with two sizes, then so
many bytes of JSON, {"size"} or {"error"}, and of an NPY file with a field for each column. See
`foreign`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from typing import Any

import numpy as np

FILE_TYPES = {  # faery's names
    "AEDAT4": "aedat",
    "Prophesee RAW": "evt",
    "Prophesee DAT": "dat",
    "Event Stream": "es",
}
UNKNOWN = (32767, 32767)  # what faery is told to take a size for that no header says
ROOM = 3 << 30  # bytes of memory that the libraries take by themselves, most of it never used
HDF5_PLACES = ("CD/events", "events", "/")  # Prophesee's, DSEC's and others'

Found = tuple[tuple[int, int] | None, np.ndarray]  # size, columns


def by_faery(path: str, format: str, budget: int) -> Found:
    import faery  # the extra `cameras`

    stream = faery.events_stream_from_file(
        path, dimensions_fallback=UNKNOWN, file_type=FILE_TYPES[format]
    )
    parts, taken = [], 0
    for part in stream:
        parts.append(part.copy())
        taken += part.nbytes
        if taken > budget // 4:  # joined, sorted and copied
            raise ValueError(f"its events would take more than {budget // 4:,} bytes of memory")
    empty = np.empty(0, faery.EVENTS_DTYPE)
    joined = np.concatenate([empty, *parts])
    plain = [("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("p", "?")]
    size = tuple(stream.dimensions())
    return None if size == UNKNOWN else size, joined.view(plain)


def by_h5py(path: str, budget: int) -> Found:
    import h5py  # the extra `cameras`

    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401  more ways to decompress, if it is there
    with h5py.File(path, "r") as file:
        for place in HDF5_PLACES:
            found = file.get(place)
            columns = _columns(found)
            if columns:
                break
        else:
            raise ValueError(
                f"it has no events at {', '.join(HDF5_PLACES)}; it holds {', '.join(file)[:100]}"
            )
        taken = sum(column.size * column.dtype.itemsize for column in columns.values())
        if taken > budget // 4:
            raise ValueError(f"its events would take more than {budget // 4:,} bytes of memory")
        read = {name: column[()] for name, column in columns.items()}
        size = _size({**file.attrs, **found.attrs})
    if isinstance(read.get(""), np.ndarray):  # one dataset with a field for each column
        return size, read[""]
    lengths = {column.shape for column in read.values()}
    if len(lengths) != 1:
        raise ValueError(f"its columns must be equally long; got {sorted(lengths)}")
    kinds = [(_with_unit(name, column), column.dtype) for name, column in read.items()]
    array = np.empty(len(next(iter(read.values()))), kinds)
    for (name, _), column in zip(kinds, read.values(), strict=True):
        array[name] = column
    return size, array


def _columns(found: Any) -> dict[str, Any]:
    """The columns of a group, by name, or of a dataset of records, as one without a name."""
    import h5py

    if isinstance(found, h5py.Dataset):
        return {"": found} if found.dtype.names and found.ndim == 1 else {}
    if not isinstance(found, h5py.Group):
        return {}
    named = {name: found[name] for name in found if re.fullmatch(r"[txyp]s?", name)}
    columns = {
        name: column
        for name, column in named.items()
        if isinstance(column, h5py.Dataset) and column.ndim == 1 and column.dtype.kind in "iufb"
    }
    return columns if len(columns) >= 4 else {}


def _with_unit(name: str, column: np.ndarray) -> str:
    """Times as real numbers are seconds: so the files of e2vid and ESIM have them."""
    return "t_s" if name in ("t", "ts") and column.dtype.kind == "f" else name


def _size(attributes: dict[str, Any]) -> tuple[int, int] | None:
    """The sensor's width and height, as files of several origins say it."""
    geometry = re.fullmatch(r"(\d+)x(\d+)", str(attributes.get("geometry", "")))
    if geometry:
        return int(geometry[1]), int(geometry[2])
    if "sensor_resolution" in attributes:  # rows come first
        height, width = (int(side) for side in attributes["sensor_resolution"])
        return width, height
    if {"width", "height"} <= attributes.keys():
        return int(attributes["width"]), int(attributes["height"])
    return None


def answer(path: str, format: str, budget: int) -> tuple[dict[str, Any], bytes]:
    """What to write for a file."""
    try:
        if format == "HDF5":
            size, array = by_h5py(path, budget)
        else:
            size, array = by_faery(path, format, budget)
        file = io.BytesIO()
        np.lib.format.write_array(file, array, allow_pickle=False)
        return {"size": size}, file.getvalue()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust's is no Exception
        why = re.sub(r"\s+", " ", str(error))[:200]
        return {"error": why or type(error).__name__}, b""


def limit_memory(budget: int) -> None:
    """Let a file that asks for too much memory end this process, without a trace, and no other."""
    try:
        import resource
    except ImportError:  # of Windows
        return
    most = 4 * budget + ROOM
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(
        resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
    )


def main() -> None:
    budget = int(sys.argv[1])
    limit_memory(budget)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints
    for line in sys.stdin.buffer:
        path, format = json.loads(line)
        about, array = answer(path, format, budget)
        text = json.dumps(about).encode()
        out.write(f"{len(text)} {len(array)}\n".encode() + text + array)
        out.flush()


if __name__ == "__main__":
    main()
