"""Ends of a run that its user can act on, and errors of the file system in words: what the command
line prints alone.

Bad arguments are ValueErrors everywhere.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class Stopped(RuntimeError):
    """Training cannot go on; the message says why and what to change."""


class Lost(Stopped):
    """Another process of the run is gone; each one that is left says so."""


class Interrupted(RuntimeError):
    """Ctrl-C or SIGTERM: everything is saved; the message says how to go on."""

    def __init__(self, message: str, signal: int):
        super().__init__(message, signal)
        self.message, self.signal = message, signal

    def __str__(self) -> str:
        return self.message


def sentence(error: OSError) -> str:
    """An error of the file system in words: path, fault, fix; a message of our own unchanged."""
    if error.filename is None or error.errno is None or error.strerror != os.strerror(error.errno):
        if error.filename is None:
            return str(error)
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    path = Path(os.fsdecode(error.filename))
    return f"{path}: {_reason(error.errno, path)}"


def _reason(number: int, path: Path) -> str:
    if number in (errno.EACCES, errno.EPERM):
        return (
            "permission denied; change the permissions of the file and its folder, or give another "
            "place"
        )
    if number == errno.EROFS:
        return "lies on a read-only file system; give another place"
    if number == errno.EISDIR:
        return "is a folder where a file is needed; give the name of a file"
    if number == errno.EEXIST or (number == errno.ENOTDIR and path.is_file()):
        return "is a file where a folder is needed; give another name"
    if number == errno.ENOTDIR:
        files = [str(parent) for parent in path.parents if parent.is_file()]
        return (
            f"{files[0] if files else 'a part of it'} is a file, not a folder; give another place"
        )
    if number == errno.ENOENT and path.parent.is_dir():
        return "there is no such file or folder; check the name"
    if number == errno.ENOENT:
        return f"there is no folder {path.parent}; make it first, or give another place"
    return os.strerror(number)
