"""Formats that others' libraries read: AEDAT4, Prophesee's RAW and DAT and `.es` by faery, HDF5 by
h5py; both come with the extra `cameras`.

A damaged file can end such a reader and the process with it (faery 0.7.1 and aedat 2.3.0 abort
where an AEDAT4 file asks for more memory than there is). So they run in a process of their own
(`foreign_process`), with a limit on its memory; where it dies, the file is a `BadEvents`, and the
next one has a new process.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bisnn.data.event_columns import from_columns
from bisnn.data.events import BadEvents, Recording
from bisnn.files import most_bytes

# The formats by suffix; AEDAT4 is also told by its first line
FORMATS = {
    ".aedat4": "AEDAT4",
    ".raw": "Prophesee RAW",
    ".dat": "Prophesee DAT",
    ".es": "Event Stream",
    ".h5": "HDF5",
    ".hdf5": "HDF5",
}
_STARTS = {
    "AEDAT4": b"#!AER-DAT4",
    "Prophesee RAW": b"%",
    "Prophesee DAT": b"%",
    "Event Stream": b"Event Stream",
    "HDF5": b"\x89HDF\r\n\x1a\n",
}
_HEADER_LINES, _HEADER_BYTES = 20, 4096  # shown, and looked at


class MissingReader(ValueError):
    """A format whose reader is not installed."""


def read(path: Path, content: bytes, format: str) -> Recording:
    """A recording in a format that is not read here; `content` is the file's."""
    if not content.startswith(_STARTS[format]):
        raise BadEvents(
            f"{path}: must begin as {format} does, with {_STARTS[format]!r}; "
            f"got {content[:8]!r}; check its origin"
        )
    library = "h5py" if format == "HDF5" else "faery"
    if importlib.util.find_spec(library) is None:
        raise MissingReader(
            f"{path}: {format} is read by {library}, which is not installed; "
            "pip install 'bisnn[cameras]'"
        )
    lines = _header(content) if content.startswith(b"%") else ()
    if format == "Prophesee RAW" and not re.search(r"% (evt|format)\b", "\n".join(lines)):
        raise BadEvents(
            f"{path}: its header must name its encoding, as '% evt 3.0' or '% format EVT3'; "
            "got neither; check its origin"
        )
    found, columns = _asked(path, format)
    if "missing" in found:
        raise MissingReader(f"{path}: {found['missing']}")
    if "error" in found:
        raise BadEvents(f"{path}: cannot be read as {format} ({found['error']}); it is damaged")
    size = tuple(found["size"]) if found["size"] else None
    return replace(from_columns(path, columns, size, format), header=lines)


def _header(content: bytes) -> tuple[str, ...]:
    """The first lines of a file that begin with %, printable characters only."""
    lines = content[:_HEADER_BYTES].split(b"\n")[:_HEADER_LINES]
    texts = (line.decode("latin-1").rstrip("\r") for line in lines if line.startswith(b"%"))
    return tuple("".join(c if " " <= c <= "~" else "?" for c in text) for text in texts)


class _Process:
    """A process that reads files, one after another, until one of them ends it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}
        self.child = subprocess.Popen(
            [sys.executable, "-m", "bisnn.data.foreign_process", str(most_bytes())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where a reader prints what it thinks of a file
            env=environment,
        )

    def ask(self, path: Path, format: str) -> tuple[dict[str, Any], bytes] | None:
        """What it finds, and its array as an NPY file; None where the file was its end."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            asked = json.dumps([os.fspath(path.absolute()), format]) + "\n"
            self.child.stdin.write(asked.encode())
            self.child.stdin.flush()
            sizes = self.child.stdout.readline()
            if not sizes:
                return None
            about, array = (self.child.stdout.read(int(size)) for size in sizes.split())
            return json.loads(about), array
        except (BrokenPipeError, ValueError):
            return None

    def usable(self) -> bool:
        return self.owner == os.getpid() and self.child.poll() is None

    def close(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()
        self.child.wait()


_lock = threading.Lock()
_process: _Process | None = None


def _asked(path: Path, format: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the other process finds in a file, and its columns."""
    global _process
    with _lock:
        if _process is None or not _process.usable():
            _process = _Process()
        answer = _process.ask(path, format)
        if answer is None:
            _process.close()
            _process = None
            return {"error": "its reader crashed"}, {}
    found, content = answer
    if not content:
        return found, {}
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    return found, {name: array[name] for name in array.dtype.names or ()}
