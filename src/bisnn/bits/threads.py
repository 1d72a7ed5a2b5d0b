"""Work split over threads, around kernels that release the GIL.

A pool of our own, because numba's OpenMP pool does not survive a fork and its workqueue pool does
not survive two calling threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from typing import Any

SERIAL = 1 << 17  # elementary operations below which a second thread costs more than it saves


@lru_cache(maxsize=1)
def _pool(process: int, count: int) -> ThreadPoolExecutor:
    """Worker threads of this process: threads do not survive a fork, so a child gets its own."""
    return ThreadPoolExecutor(count, thread_name_prefix="bisnn")


def run(
    kernel: Callable[..., Any], work: int, size: int, *arguments: object, count: int
) -> list[Any]:
    """Run `kernel(lo, hi, *arguments)` over 0..size on up to `count` threads; all results."""
    parts = 1 if work < SERIAL else min(count, size)
    if parts <= 1:  # what there is to wait for takes microseconds, twenty times in a training step
        return [kernel(0, size, *arguments)]
    bounds = [size * i // parts for i in range(parts + 1)]
    others = [
        _pool(os.getpid(), count).submit(kernel, lo, hi, *arguments)
        for lo, hi in pairwise(bounds[1:])
    ]
    first = kernel(bounds[0], bounds[1], *arguments)
    wait(others)
    return [first, *(other.result() for other in others)]  # an exception in a worker is ours


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
