"""Datasets and recordings. The names load when first used: reading events needs no PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "toy": ("Split", "f_1d", "one_d", "two_moons"),
    "events": (
        "EVENTS",
        "BadEvents",
        "Recording",
        "read_events",
        "read_aedat",
        "read_nmnist",
        "write_aedat",
        "write_nmnist",
        "bin_events",
    ),
}
_MODULES = ("camera", "recordings", "simulation")
_NAMES = {name: module for module, names in _HOME.items() for name in names}

__all__ = [*_NAMES, *_MODULES]

if TYPE_CHECKING:
    from bisnn.data import camera, recordings, simulation
    from bisnn.data.events import (
        EVENTS,
        BadEvents,
        Recording,
        bin_events,
        read_aedat,
        read_events,
        read_nmnist,
        write_aedat,
        write_nmnist,
    )
    from bisnn.data.toy import Split, f_1d, one_d, two_moons


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"bisnn.data.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"bisnn.data.{name}")
    raise AttributeError(f"module 'bisnn.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
