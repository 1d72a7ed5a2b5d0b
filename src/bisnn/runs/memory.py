"""How the C library handles the memory of a training run."""

from __future__ import annotations

import ctypes
import sys

KEPT = 1 << 29  # bytes of freed memory that stay with the process, at most
BLOCK = 1 << 25  # bytes of the largest block that does: glibc takes no more
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_freed() -> None:
    """Let glibc, from now on, use freed memory again instead of giving it back to the system.

    A step of training allocates and frees the same megabytes over and over. By default each of them
    comes from the system, which writes zeros to it first: up to a quarter of the step's time. Other
    C libraries are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, KEPT)
        set_option(_M_MMAP_THRESHOLD, BLOCK)
