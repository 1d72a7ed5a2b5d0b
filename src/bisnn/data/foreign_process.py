"""The process that reads others' formats: `python -m bisnn.data.foreign_process BUDGET`.

Each line on stdin is JSON, [path, format]. The answer on stdout is a line with two sizes, then so
many bytes of JSON, {"size"}, {"error"} or {"missing"}, and of an NPY file with a field for each
column. See `foreign`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

FILE_TYPES = {  # faery's names
    "AEDAT4": "aedat",
    "Prophesee RAW": "evt",
    "Event Stream": "es",
}
UNKNOWN = (32767, 32767)  # what faery is told to take a size for that no header says
ROOM = 512 << 20  # bytes of memory beside the budget, for the libraries themselves
HDF5_PLACES = ("CD/events", "events", "/")  # Prophesee's, DSEC's and others'

ECF = 0x8ECF  # Prophesee's compression, which no package of Python's brings


class MissingFilter(Exception):
    """A way to decompress that is not installed."""


Found = tuple[tuple[int, int] | None, np.ndarray]  # size, columns


def by_faery(path: str, format: str, budget: int) -> Found:
    import faery  # the extra `cameras`

    plain = [("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")]
    if format == "Prophesee DAT":
        with faery.dat.Decoder(path, UNKNOWN, "dat2") as decoder:
            # The type "2d" of older files is the same record, which faery's stream refuses
            if decoder.event_type not in ("cd", "2d"):
                raise ValueError(f"it has events of the type {decoder.event_type}")
            size, parts = decoder.dimensions, _within(decoder, budget)
    else:
        stream = faery.events_stream_from_file(
            path, dimensions_fallback=UNKNOWN, file_type=FILE_TYPES[format]
        )
        size, parts = stream.dimensions(), _within(stream, budget)
    events = np.concatenate([np.empty(0, plain), *(part.view(plain) for part in parts)])
    return None if tuple(size) == UNKNOWN else tuple(size), events


def _within(packets: Iterable[np.ndarray], budget: int) -> list[np.ndarray]:
    """Copies of all packets, if there is memory for them to be joined, sorted and copied."""
    parts, taken = [], 0
    for part in packets:
        parts.append(part.copy())
        taken += part.nbytes
        if taken > budget // 4:
            raise ValueError(f"its events would take more than {budget // 4:,} bytes of memory")
    return parts


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
        _check_filters(columns)
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


def _check_filters(columns: dict[str, Any]) -> None:
    import h5py

    for column in columns.values():
        created = column.id.get_create_plist()
        for place in range(created.get_nfilters()):
            code = created.get_filter(place)[0]
            if not h5py.h5z.filter_avail(code):
                way = (
                    "install Prophesee's plugin hdf5_ecf, or convert the file to RAW"
                    if code == ECF
                    else "pip install hdf5plugin"
                )
                raise MissingFilter(f"is compressed by filter {code}, which is not there; {way}")


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
    except MissingFilter as error:
        return {"missing": str(error)}, b""
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
    most = budget + ROOM
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
