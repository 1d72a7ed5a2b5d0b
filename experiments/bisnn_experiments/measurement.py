"""What every measurement says: progress, tables, the machine it ran on.

It needs nothing but PyTorch: the benchmarks use it in environments without `bisnn` too.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

FEATURES = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_vpopcntdq",
    "avx512_bf16",
    "amx_bf16",
    "asimd",
    "sve",
)


def note(text: str) -> None:
    """Write a line about the progress, with the time of day, to stderr."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def fact(path: str, key: str) -> str | None:
    """The first value of a key in a file under /proc; None where there is none, as on systems other
    than Linux.
    """
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith(key)), None)


def mib(path: str, key: str) -> float | None:
    """The same for a key whose value is a size in kB."""
    size = fact(path, key)
    return None if size is None else int(size.split()[0]) / 1024


def processor() -> str:
    """The name of the CPU."""
    return fact("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def commit(folder: Path) -> str | None:
    """Of the checkout that a folder belongs to, and whether files differ from it; None where there
    is no checkout, or no git.
    """
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def machine() -> dict[str, Any]:
    """What the JSON says about this machine, and about the code that is measured on it."""
    flags = (fact("/proc/cpuinfo", "flags") or fact("/proc/cpuinfo", "Features") or "").split()
    memory = mib("/proc/meminfo", "MemTotal")
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "features": [name for name in FEATURES if name in flags],
        "memory_gib": None if memory is None else round(memory / 1024, 1),
        # Processes that wanted to run, over the last minute
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit(Path(__file__).parent),
    }


def table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[Any]]]) -> str:
    """Rows of a name and its values, as aligned text."""
    cells = [(name, [show(value) for value in values]) for name, values in rows]
    first = max([len(title), *(len(name) for name, _ in cells)])
    widths = [
        max([len(c), *(len(values[i]) for _, values in cells)]) for i, c in enumerate(columns)
    ]
    lines = [
        title.ljust(first) + "".join(f"  {c:>{w}}" for c, w in zip(columns, widths, strict=True))
    ]
    lines += [
        name.ljust(first) + "".join(f"  {v:>{w}}" for v, w in zip(values, widths, strict=True))
        for name, values in cells
    ]
    return "\n".join(lines)


def show(value: Any) -> str:
    """A cell of a table: numbers with two digits or more."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):  # a value and its interval
        middle, low, high = map(show, value)
        return f"{middle} [{low}, {high}]"
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    if 0 < size < 0.05:
        return f"{value:.2g}"
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:,.0f}"
