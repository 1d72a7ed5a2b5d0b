"""Files: written whole or not at all, and told apart by their content."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Write the whole file or nothing: temporary file, fsync, rename. Errors leave the old file as it was, and name it."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: is no regular file, and would be replaced by one; give the name of a file")
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
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
