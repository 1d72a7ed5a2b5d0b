"""Results as JSON: the command that measured them, and their file."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from bisnn.files import write_atomic


def command() -> str:
    """The command line that started this process."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def write(path: Path, results: dict[str, Any]) -> None:
    """Write a file, whole or not at all."""
    write_atomic(path, (json.dumps(results, indent=1) + "\n").encode())
