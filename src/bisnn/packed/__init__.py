"""Packed networks: load and run what `bisnn export RUN --to packed` wrote, with numpy, numba and safetensors alone.

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

# A trace of a neuron at or below this is 0. Without it the recursion ends in denormal numbers, which never decay (0.85 of the
# smallest rounds back up to it) and which some CPUs process many times slower. See "Deviations" in docs/EQUATIONS.md.
FLUSH = 2.0**-64

_HOME = {
    "engine": ("Engine", "Prediction", "Result", "State", "load"),
    "file": ("BadFile", "Network", "Unfit", "read", "write"),
}
_MODULES = ("c", "nir_graph")
__all__, __getattr__, __dir__ = lazy.names(__name__, _HOME, _MODULES, own=["FLUSH"])

if TYPE_CHECKING:
    from bisnn.packed import c, nir_graph
    from bisnn.packed.engine import Engine, Prediction, Result, State, load
    from bisnn.packed.file import BadFile, Network, Unfit, read, write
