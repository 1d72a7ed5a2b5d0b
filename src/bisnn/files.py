"""Files: written whole or not at all, told apart by content, read within a budget of memory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

# Of memory that one file may ask for, unless the environment's BISNN_MOST_BYTES says otherwise
MOST_BYTES = 1 << 30


def most_bytes() -> int:
    """The budget of a file from outside, in bytes of memory, for what it holds and computes."""
    text = os.environ.get("BISNN_MOST_BYTES", str(MOST_BYTES))
    if not text.isdecimal():
        raise ValueError(
            f"BISNN_MOST_BYTES: must be a whole number of bytes; got {text!r}; give e.g. "
            f"{4 * MOST_BYTES}"
        )
    return int(text)


def afford(name: object, needed: int, what: str, error: type[ValueError] = ValueError) -> None:
    """Raise where a file asks for more memory than the budget, before any of it is taken."""
    most = most_bytes()
    if needed > most:
        raise error(
            f"{name}: {what} would take {needed:,} bytes of memory; at most {most:,}; set "
            "BISNN_MOST_BYTES for more"
        )


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading; pipes, devices and folders are refused."""
    # A pipe must not wait for its writer
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if "\0" in str(path):
        raise ValueError(
            f"{str(path)!r}: cannot be opened: no file has a zero byte in its name; check the path"
        )
    descriptor = os.open(path, flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
    raise ValueError(f"{path}: is {kind}; give a file")


def read_bytes(path: str | Path) -> bytes:
    """All of a regular file that is within the budget."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        afford(path, size, "its content")
        return file.read(size)


def read_text(path: str | Path) -> str:
    """As `read_bytes`, as text in UTF-8."""
    return read_bytes(path).decode()


def write_atomic(path: Path, content: bytes) -> None:
    """Write the whole file or nothing (temporary file, fsync, rename); errors name the file."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise ValueError(
            f"{path}: is no regular file, and would be replaced by one; give the name of a file"
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)  # the rename itself is on disk only after this
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def file_digest(path: Path) -> str:
    """Of a file's content."""
    return hashlib.blake2b(read_bytes(path), digest_size=16).hexdigest()
