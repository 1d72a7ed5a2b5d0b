"""Kernels: functions that numba compiles once, for one signature, and keeps on disk."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


def kernel(
    signature: str, contract: bool = False, reorder: bool = False, keep: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """One signature each, compiled at import, or from numba's cache on disk where it is to `keep`.

    No fastmath, or bits would differ from kernel to kernel; only gradients may `contract`, fuse
    products and sums, and only sums of small integers, which are exact in any order, may `reorder`.
    """
    allowed = {name for name, chosen in (("contract", contract), ("reassoc", reorder)) if chosen}
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": allowed or False}
    if not keep:
        return njit(signature, **options)
    return lambda function: _compiled(function, signature, options)


def _compiled(
    function: Callable[..., Any], signature: str, options: dict[str, Any]
) -> Callable[..., Any]:
    """Compile or load from numba's cache, anew if damaged; in memory where none can be kept."""
    for emptied in (False, True):
        try:
            if emptied:
                FunctionCache(function).flush()
            return njit(signature, cache=True, **options)(function)
        # Whatever reading a damaged cache raises; the function's own errors come again below
        except Exception:
            continue
    compiled = njit(signature, **options)(function)
    _say_not_kept()
    return compiled


@njit(inline="always")
def copy(source, target):
    """target = source, vectors of one length: `target[:] = source` takes numba a second to compile,
    for what it would say if the lengths differed.
    """
    for i in range(target.shape[0]):
        target[i] = source[i]


@functools.cache
def _say_not_kept() -> None:
    """Once a process, on stderr. (`display.note` needs rich, and nothing here does.)"""
    text = "no folder for compiled kernels is writable: they are compiled in memory, at every start"
    print(f"bisnn: {text}; set NUMBA_CACHE_DIR to a folder that is", file=sys.stderr)
