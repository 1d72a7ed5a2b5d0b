"""The scan over time, in several implementations that give the same bits.

`reference` (plain PyTorch, any device and float type) is the definition; `cpu` (numba) is what runs by default on a
CPU in float32. Which one runs is decided by device and dtype alone, or by `forced`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from bisnn.checks import choice

NAMES = ("reference", "cpu")
_forced: str | None = None


def choose(I: Tensor) -> ModuleType:
    """The kernel module that handles a current of this device and dtype."""
    name = name_for(I.device, I.dtype)
    if name == "cpu":
        from bisnn.kernels import cpu  # imported when first used: numba takes a while to load

        return cpu
    from bisnn.kernels import reference

    return reference


def name_for(device: torch.device, dtype: torch.dtype) -> str:
    """Name of the kernel in use for `device` and `dtype`."""
    if _forced is not None:
        return _forced
    return "cpu" if device.type == "cpu" and dtype == torch.float32 else "reference"


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Run every scan inside the block on the named kernel (process-wide: for tests and benchmarks)."""
    global _forced
    choice("name", name, NAMES)
    previous, _forced = _forced, name
    try:
        yield
    finally:
        _forced = previous
