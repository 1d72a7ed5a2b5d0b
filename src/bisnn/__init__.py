"""Spiking neural networks with binary weights that know how sure they are.

The names below are the public API. They load when first used, so that `import bisnn` is quick and
parts that need no PyTorch do not load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bisnn import lazy

__version__ = "0.2.0"

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

# As themselves: so type checkers take them for public
if TYPE_CHECKING:
    from bisnn import (
        conformal as conformal,
        data as data,
        encode as encode,
        kernels as kernels,
        metrics as metrics,
        packed as packed,
        packing as packing,
        shipping as shipping,
        sklearn as sklearn,
        weights as weights,
    )
    from bisnn.alphabet import Binary as Binary, Levels as Levels, Ternary as Ternary
    from bisnn.layers import Conv2d as Conv2d, Linear as Linear, Recurrent as Recurrent
    from bisnn.losses import (
        activity_loss as activity_loss,
        chunked_backward as chunked_backward,
        global_loss as global_loss,
        local_loss as local_loss,
        spike_loss as spike_loss,
    )
    from bisnn.modules import binarise as binarise
    from bisnn.network import Network as Network, Output as Output, pad as pad
    from bisnn.neuron import SRM as SRM, FixedSRM as FixedSRM
    from bisnn.prediction import (
        Classification as Classification,
        Dropout as Dropout,
        Regression as Regression,
        predict as predict,
    )
    from bisnn.realisation import map_weights as map_weights, sample_weights as sample_weights
    from bisnn.reporting.page import report as report
    from bisnn.rules import BayesBiSNN as BayesBiSNN, Bop as Bop, STBiSNN as STBiSNN
    from bisnn.runs import config as config
    from bisnn.runs.calibration import calibrate as calibrate
    from bisnn.runs.ensemble import Ensemble as Ensemble
    from bisnn.runs.evaluation import evaluate as evaluate
    from bisnn.runs.exporting import export as export
    from bisnn.runs.model import Model as Model, load as load
    from bisnn.runs.training import resume as resume, train as train
    from bisnn.states import load_states as load_states, save_states as save_states
    from bisnn.steps import compiled as compiled
    from bisnn.system import info as info
    from bisnn.tuning.search import tune as tune
    from bisnn.weights import free_energy as free_energy, kl_divergence as kl_divergence
