"""Recordings as bits on disk: one file of records of one size, each with its checksum,
memory-mapped.

A file is made under another name and gets its own only when it is whole, so a half-written one is
never read; building it again goes on where it stopped. Its name is a digest of everything it was
made from, so it is never stale. Every record is checked whenever it is read. Only one process
builds.

    magic | header: JSON, zeros up to LENGTH | a checksum (uint32) for each record | records,
    (steps, channels, height, width) bits
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from bisnn.files import open_regular

MAGIC = b"bisnnbits1\n"
LENGTH = 4096  # bytes of magic and header: records begin at a page


class BadCache(ValueError):
    """A cache file that is not what was written."""


def folder() -> Path:
    """Where caches lie: the environment variable BISNN_CACHE, or the user's cache folder."""
    chosen = os.environ.get("BISNN_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bisnn"
    except RuntimeError:
        raise ValueError(
            "BISNN_CACHE: must name a folder for caches, as this user has no home; got none; set it"
        ) from None


def key(about: dict[str, Any], files: Iterable[Path], root: Path) -> str:
    """A digest of settings, and of every file's name, size and time of change."""
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    for file in files:
        status = file.stat()
        digest.update(f"\n{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


class Bits:
    """N records of bits, read from a file that `build` made.

    >>> import tempfile
    >>> x = np.random.default_rng(0).integers(0, 2, (3, 5, 2, 4, 4), dtype=np.uint8)
    >>> bits = build(Path(tempfile.mkdtemp()) / "x.bits", (5, 2, 4, 4), 3, lambda i: x[i])
    >>> np.array_equal(bits.read([2, 0]), x[[2, 0]])
    True
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with open_regular(path) as file:
                start = file.read(LENGTH)
            if not start.startswith(MAGIC):
                raise ValueError("another kind of file")
            header = json.loads(start[len(MAGIC) :].rstrip(b"\0"))
            self.shape = _sizes(header["shape"])
            (self.count,) = _sizes([header["count"]])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadCache(
                f"{path}: is no file of recordings ({error}); delete it, and it will be made again"
            ) from None
        self.size = -(-math.prod(self.shape) // 8)
        if path.stat().st_size != LENGTH + self.count * (4 + self.size):
            raise BadCache(
                f"{path}: has {path.stat().st_size} bytes, which its header does not say; "
                "delete it, and it will be made again"
            )
        # As plain arrays, whose rows are found in a third of the time
        self._sums, self._records = map(np.asarray, _mapped(path, self.count, self.size, "r"))

    def __len__(self) -> int:
        return self.count

    def read(self, index: Sequence[int] | np.ndarray) -> np.ndarray:
        """Records as uint8 0 and 1, (len(index), *shape)."""
        bits = np.unpackbits(
            self.packed(index), axis=1, count=math.prod(self.shape), bitorder="little"
        )
        return bits.reshape(len(index), *self.shape)

    def packed(self, index: Sequence[int] | np.ndarray) -> np.ndarray:
        """Records as they lie in the file, uint8 (len(index), size), the first bit lowest."""
        rows = np.empty((len(index), self.size), np.uint8)
        for row, i in zip(rows, index, strict=True):
            row[:] = self._records[i]
            if zlib.crc32(row.data) != self._sums[i]:
                raise BadCache(
                    f"{self.path}: recording {i} is damaged; "
                    "delete the file, and it will be made again"
                )
        return rows

    def digest(self, index: Sequence[int] | np.ndarray) -> bytes:
        """A fingerprint of some records by their check sums: the same bits on any machine."""
        return hashlib.blake2b(
            repr(self.shape).encode() + self._sums[index].tobytes(), digest_size=16
        ).digest()


def _sizes(values: Any) -> tuple[int, ...]:
    """Sizes from a header, which may say anything."""
    if not isinstance(values, list) or not all(
        type(value) is int and 0 < value < 1 << 40 for value in values
    ):
        raise ValueError(f"{values!r:.50} are no sizes")
    return tuple(values)


def _mapped(path: Path, count: int, size: int, mode: Any) -> tuple[np.ndarray, np.ndarray]:
    sums = np.memmap(path, "<u4", mode, LENGTH, (count,))
    return sums, np.memmap(path, np.uint8, mode, LENGTH + 4 * count, (count, size))


def build(
    path: Path,
    shape: tuple[int, ...],
    count: int,
    record: Callable[[int], np.ndarray],
    advance: Callable[[int], Any] = lambda records: None,
) -> Bits:
    """The file of `record(0)`, `record(1)`, ..., made if it is not there.

    Args:
        path: its name, different for everything that gives other bits: see `key`.
        shape: of a record.
        count: of records.
        record: gives one, 0 and 1, of this shape.
        advance: called with the number of records done, now and then.
    """
    if path.exists():
        return Bits(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, lock = (path.with_name(path.name + suffix) for suffix in (".partial", ".lock"))
    with FileLock(lock):
        if not path.exists():  # else another process was quicker
            try:
                _fill(partial, shape, count, record, advance)
            except ValueError:
                # A file is no recording: once it is mended, all this has another name
                partial.unlink(missing_ok=True)
                raise
            os.replace(partial, path)
    # Only now that the file is there. After a failure another process may hold this lock and build:
    # were it removed, a third would make a lock of its own and build the same file at the same
    # time.
    with contextlib.suppress(OSError):
        lock.unlink()
    return Bits(path)


def _fill(
    partial: Path,
    shape: tuple[int, ...],
    count: int,
    record: Callable[[int], np.ndarray],
    advance: Callable[[int], Any],
) -> None:
    """Write the records that are not in the file yet."""
    size = -(-math.prod(shape) // 8)
    header = MAGIC + json.dumps({"shape": shape, "count": count}).encode()
    _begin(partial, header, LENGTH + count * (4 + size))
    sums, records = _mapped(partial, count, size, "r+")
    for i in range(count):
        # Else done before an interruption
        if not (sums[i] and zlib.crc32(records[i].data) == sums[i]):
            bits = np.packbits(record(i).reshape(-1), bitorder="little")
            records[i] = bits
            sums[i] = zlib.crc32(bits.data)
        advance(1)
    for mapped in (sums, records):
        mapped.flush()  # type: ignore[attr-defined]


def _begin(partial: Path, header: bytes, size: int) -> None:
    """An empty file with room for all records, or the one that an interruption left."""
    with contextlib.suppress(FileNotFoundError), open(partial, "rb") as file:
        if file.read(LENGTH) == header.ljust(LENGTH, b"\0") and partial.stat().st_size == size:
            return
    with open(partial, "wb") as file:
        if hasattr(os, "posix_fallocate"):
            # A full disk is an error now, and no crash in a mapped page later
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        file.write(header)
