"""What all benchmarks print and write: progress, tables, the machine."""

from __future__ import annotations

import os
import platform
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
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def fact(path: str, key: str) -> str | None:
    """The first "key: value" of a file under /proc; None where there is none, as on other systems
    than Linux.
    """
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith(key)), None)


def mib(path: str, key: str) -> float | None:
    size = fact(path, key)
    return None if size is None else int(size.split()[0]) / 1024


def machine() -> dict[str, Any]:
    flags = (fact("/proc/cpuinfo", "flags") or fact("/proc/cpuinfo", "Features") or "").split()
    memory = mib("/proc/meminfo", "MemTotal")
    return {
        "cpu": fact("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "features": [name for name in FEATURES if name in flags],
        "memory_gib": None if memory is None else round(memory / 1024, 1),
        "load_before": os.getloadavg()[0]
        if hasattr(os, "getloadavg")
        else None,  # processes that wanted to run, last minute
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def table(title: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[Any]]]) -> str:
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
    if value is None:
        return "-"
    if isinstance(value, float):
        if 0 < abs(value) < 0.05:
            return f"{value:.2g}"
        return (
            f"{value:.2f}"
            if abs(value) < 10
            else f"{value:.1f}"
            if abs(value) < 100
            else f"{value:,.0f}"
        )
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
