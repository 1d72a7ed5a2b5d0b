"""Datasets and recordings. The names load when first used: reading events needs no PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bisnn import lazy

_HOME = {
    "toy": ("Points", "f_1d", "one_d", "two_moons"),
    "dataset": ("Dataset",),
    "series": ("Series",),
    "windows": ("Window",),
    "archives": ("MNISTDVS", "NMNIST"),
    "corruption": ("CORRUPTIONS", "corrupt"),
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
_MODULES = {name: name for name in ("camera", "simulation")}
__all__, __getattr__, __dir__ = lazy.names(__name__, _HOME, _MODULES)

if TYPE_CHECKING:
    from bisnn.data import camera, simulation
    from bisnn.data.archives import MNISTDVS, NMNIST
    from bisnn.data.corruption import CORRUPTIONS, corrupt
    from bisnn.data.dataset import Dataset
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
    from bisnn.data.series import Series
    from bisnn.data.toy import Points, f_1d, one_d, two_moons
    from bisnn.data.windows import Window
