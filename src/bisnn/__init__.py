"""Spiking neural networks with binary weights that know how sure they are.

The names below are the public API. They load when first used, so that `import bisnn` is quick and
parts that need no PyTorch do not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bisnn import lazy

__version__ = "0.1.0"

_HOME = {
    "neuron": ("SRM", "FixedSRM"),
    "layers": ("Linear", "Conv2d", "Recurrent"),
    "network": ("Network", "Output", "pad"),
    "losses": ("local_loss", "global_loss", "spike_loss", "activity_loss", "chunked_backward"),
    "modules": ("binarise",),
    "states": ("save_states", "load_states"),
    "rules": ("STBiSNN", "BayesBiSNN", "Bop"),
    "steps": ("compiled",),
    "alphabet": ("Binary", "Ternary", "Levels"),
    "weights": ("kl_divergence", "free_energy"),
    "realisation": ("map_weights", "sample_weights"),
    "prediction": ("predict", "Classification", "Regression", "Dropout"),
    "runs.training": ("train", "resume"),
    "runs.model": ("Model", "load"),
    "runs.ensemble": ("Ensemble",),
    "runs.evaluation": ("evaluate",),
    "runs.calibration": ("calibrate",),
    "reporting.page": ("report",),
    "runs.exporting": ("export",),
    "tuning.search": ("tune",),
    "system": ("info",),
}
_PARTS = (
    "conformal",
    "data",
    "encode",
    "kernels",
    "metrics",
    "packed",
    "packing",
    "shipping",
    "sklearn",
    "weights",
)
_MODULES = {name: name for name in _PARTS} | {"config": "runs.config"}
__all__, __getattr__, __dir__ = lazy.names(__name__, _HOME, _MODULES, own=["__version__"])

if TYPE_CHECKING:
    from bisnn import (
        conformal,
        data,
        encode,
        kernels,
        metrics,
        packed,
        packing,
        shipping,
        sklearn,
        weights,
    )
    from bisnn.alphabet import Binary, Levels, Ternary
    from bisnn.layers import Conv2d, Linear, Recurrent
    from bisnn.losses import activity_loss, chunked_backward, global_loss, local_loss, spike_loss
    from bisnn.modules import binarise
    from bisnn.network import Network, Output, pad
    from bisnn.neuron import SRM, FixedSRM
    from bisnn.prediction import Classification, Dropout, Regression, predict
    from bisnn.realisation import map_weights, sample_weights
    from bisnn.reporting.page import report
    from bisnn.rules import BayesBiSNN, Bop, STBiSNN
    from bisnn.runs import config
    from bisnn.runs.calibration import calibrate
    from bisnn.runs.ensemble import Ensemble
    from bisnn.runs.evaluation import evaluate
    from bisnn.runs.exporting import export
    from bisnn.runs.model import Model, load
    from bisnn.runs.training import resume, train
    from bisnn.states import load_states, save_states
    from bisnn.steps import compiled
    from bisnn.system import info
    from bisnn.tuning.search import tune
    from bisnn.weights import free_energy, kl_divergence
