"""Arrays from others' NPY and NPZ files: only those asked for, if their headers are affordable."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from bisnn.files import afford, open_regular

# 3.0 is for names of fields
_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of these names of an NPZ, those that it has; of an NPY its one array, by the first
    name.

    What else is in an NPZ is not read. Nothing is unpickled. Whatever a damaged file makes zipfile
    or numpy's parser of headers raise (a TokenError, a RecursionError ...) becomes a ValueError.
    """
    with open_regular(path) as file:
        packed = file.read(2) == b"PK"
        file.seek(0)
        try:
            if packed:
                return _entries(path, file, names)
            return {names[0]: _array(path, file, os.fstat(file.fileno()).st_size)}
        except _Refused as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:200]
            raise ValueError(
                f"{path}: is damaged or no NumPy file ({why}); "
                "save it with numpy.save or numpy.savez"
            ) from None


def names_in(path: Path) -> list[str]:
    """The names of the arrays in an NPZ; of an NPY's one array, "events"."""
    with open_regular(path) as file:
        if file.read(2) != b"PK":
            return ["events"]
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                return [info.filename.removesuffix(".npy") for info in archive.infolist()]
        except Exception as error:  # whatever zipfile makes of a damaged file
            raise ValueError(
                f"{path}: is damaged or no NumPy file ({error}); save it with numpy.savez"
            ) from None


class _Refused(ValueError):
    """A file that is whole, but no good here."""


def _entries(path: Path, file: IO[bytes], names: Sequence[str]) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        entries = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if names[0] not in entries:
            there = ", ".join(entries)[:200] or "none"
            raise _Refused(
                f"{path}: needs an array named {names[0]}, (N, features); got {there}; "
                "numpy.savez(x=...)"
            )
        arrays = {}
        for name in names:
            if name in entries:
                with archive.open(entries[name]) as entry:
                    arrays[name] = _array(path, entry, entries[name].file_size)
    return arrays


def _array(path: Path, file: IO[bytes], size: int) -> np.ndarray:
    """The array of an NPY file of so many bytes."""
    version = npy.read_magic(file)
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise _Refused(
            f"{path}: holds pickled Python objects, which could run code when read; "
            "save plain numbers"
        )
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize > size:
        raise ValueError(
            f"its header claims an array {shape} of {dtype}, which {size:,} bytes cannot hold"
        )
    # The array, as float64, and a mask
    afford(path, count * (dtype.itemsize + 9), f"an array {shape} of {dtype}", _Refused)
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)
