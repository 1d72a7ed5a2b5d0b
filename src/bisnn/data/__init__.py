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

# As themselves: so type checkers take them for public
if TYPE_CHECKING:
    from bisnn.data import camera as camera, simulation as simulation
    from bisnn.data.archives import MNISTDVS as MNISTDVS, NMNIST as NMNIST
    from bisnn.data.corruption import CORRUPTIONS as CORRUPTIONS, corrupt as corrupt
    from bisnn.data.dataset import Dataset as Dataset
    from bisnn.data.events import (
        EVENTS as EVENTS,
        BadEvents as BadEvents,
        Recording as Recording,
        bin_events as bin_events,
        read_aedat as read_aedat,
        read_events as read_events,
        read_nmnist as read_nmnist,
        write_aedat as write_aedat,
        write_nmnist as write_nmnist,
    )
    from bisnn.data.series import Series as Series
    from bisnn.data.toy import (
        Points as Points,
        f_1d as f_1d,
        one_d as one_d,
        two_moons as two_moons,
    )
    from bisnn.data.windows import Window as Window
