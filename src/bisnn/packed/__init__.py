"""Packed networks: load and run what `bisnn export RUN --to packed` wrote, with numpy, numba and
safetensors alone.

>>> import numpy as np
>>> import bisnn, bisnn.packed
>>> net = bisnn.Network(bisnn.Linear(20, 64), bisnn.Linear(64, 64), readout=2)
>>> engine = bisnn.packed.Engine(bisnn.packing.describe(net))
>>> engine.run(np.zeros((10, 3, 20), np.uint8)).logits.shape  # (K, T, B, outputs)
(1, 10, 3, 2)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bisnn import lazy

_HOME = {
    "engine": ("Engine", "Prediction", "Result", "State", "load"),
    "file": ("read", "write"),
    "header": ("BadFile", "Unfit"),
    "sets": ("EarlySets",),
    "network": ("PackedLayer", "PackedNetwork", "PackedReadout"),
}
__all__, __getattr__, __dir__ = lazy.names(__name__, _HOME, {})

# As themselves: so type checkers take them for public
if TYPE_CHECKING:
    from bisnn.packed.engine import (
        Engine as Engine,
        Prediction as Prediction,
        Result as Result,
        State as State,
        load as load,
    )
    from bisnn.packed.file import read as read, write as write
    from bisnn.packed.header import BadFile as BadFile, Unfit as Unfit
    from bisnn.packed.network import (
        PackedLayer as PackedLayer,
        PackedNetwork as PackedNetwork,
        PackedReadout as PackedReadout,
    )
    from bisnn.packed.sets import EarlySets as EarlySets
