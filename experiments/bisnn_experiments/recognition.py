"""The paper's table: full precision, ST-BiSNN and Bayes-BiSNN on recordings of an event camera.

The data decide which configs run: N-MNIST; MNIST-DVS, real or made by `bisnn simulate`; in its
place, MNIST's images seen by the simulated camera; or, with no data at all, scikit-learn's digits
seen by that camera.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bisnn import metrics
from bisnn.data import simulation
from bisnn.display import bars
from bisnn.runs import config as configs
from bisnn.runs import evaluation
from bisnn.runs.config import Config
from bisnn.runs.results import Evaluation
from bisnn_experiments.results import Difference, Row

# Label, and the end of the config's name
METHODS = {"full precision": "full", "ST-BiSNN": "st", "Bayes-BiSNN": "bayes"}
# Predictors a and b, of which a minus b is given
PAIRS = (
    ("sign", "real weights"),
    ("ensemble", "real weights"),
    ("ensemble", "sign"),
    ("ensemble", "MAP"),
)
COMPARED = ("accuracy", "nll", metrics.CALIBRATION)


def experiment(data: str | Path | None, recipe: str) -> tuple[str, dict[str, Config]]:
    """Name of the data, and the config of each method, by its label.

    Args:
        data: folder of N-MNIST, of MNIST-DVS, or of MNIST's idx files; None for scikit-learn's
            digits.
        recipe: "tuned", or "paper" for the paper's rules and epochs on the bins of its authors'
            code (MNIST-DVS alone).
    """
    kind, changes = recognised(data)
    if recipe == "paper" and kind not in ("mnist_dvs", "mnist"):
        raise ValueError(
            "recipe: the paper's is for MNIST-DVS, or MNIST's idx files through the camera; "
            f"got {kind}; use 'tuned'"
        )
    family = "mnist_dvs" if kind == "mnist" else kind
    chosen = {
        label: configs.load(f"{family}_{end}" + ("_paper" if recipe == "paper" else ""))
        for label, end in METHODS.items()
    }
    if kind == "mnist":  # the configs of MNIST-DVS, with images in the place of its recordings
        chosen = {
            label: config.updated(data=_looking_at(config, changes["data.root"]))
            for label, config in chosen.items()
        }
    else:
        chosen = {label: config.updated(**changes) for label, config in chosen.items()}
    return kind, chosen


def _looking_at(config: Config, images: str) -> dict[str, Any]:
    """The data section that puts images in front of the simulated camera."""
    return {
        "name": "digits",
        "root": images,
        **config.data.model_dump(include={"steps", "bin_us", "crop", "validation"}),
    }


def recognised(data: str | Path | None) -> tuple[str, dict[str, Any]]:
    """What a folder holds, and what a config must say about it."""
    if data is None:
        return "digits", {}
    root = Path(data).resolve()
    if not root.is_dir():
        raise ValueError(
            f"data: there is no folder {data}; give the one into which the archive was unpacked"
        )
    digits = sorted(
        int(path.name) for path in root.glob("Train/[0-9]") if re.fullmatch(r"\d", path.name)
    )
    if digits:
        return "nmnist", {"data.root": str(root), "data.classes": digits}
    if any((root / f"{simulation.NAMES[0]}{end}").is_file() for end in ("", ".gz")):
        return "mnist", {"data.root": str(root)}
    if next(root.glob("**/scale04/*.aedat"), None):
        return "mnist_dvs", {"data.root": str(root)}
    raise ValueError(
        f"data: {data} holds neither N-MNIST (Train/<digit>/<id>.bin), nor MNIST-DVS "
        "(scale04/*.aedat), nor MNIST's idx files; give the folder that holds them"
    )


def rows(method: str, seed: int, judged: Evaluation) -> list[Row]:
    """A row for each predictor of an evaluated run: its quality, the memory of its weights and the
    synaptic operations of one inference.
    """
    result = []
    for name in judged.metrics:
        ledger = judged.energy.rows[name]
        layers = [layer for layer in ledger.layers if layer.neuron_updates]  # no readouts
        numbers = judged.numbers(name) | {
            "memory_bytes": sum(layer.weight_bits for layer in layers) // 8,
            "synaptic_operations": ledger.synaptic_operations,
        }
        result.append(Row.of(judged, name, method, seed, **numbers))
    return result


def differences(folders: Iterable[Path], show: bool = False) -> list[Difference]:
    """Paired comparisons of the predictors of evaluated runs, over the recordings and the seeds
    they have in common.
    """
    probs: dict[str, list[Any]] = {}
    labels, seen = None, None
    for folder in folders:
        judged = evaluation.load_evaluation(folder)
        if labels is not None and not (labels.equal(judged.y) and seen == judged.recordings):
            raise ValueError(
                f"{folder}: was judged on other recordings than the runs beside it; "
                f"judge it anew: bisnn evaluate {folder}"
            )
        labels, seen = judged.y, judged.recordings
        for name, result in judged.predictors.items():
            probs.setdefault(name.partition(" of ")[0], []).append(result.mean)
    assert labels is not None
    pairs = [(a, b) for a, b in PAIRS if a in probs and b in probs]
    with bars(show=show) as progress:
        shown = progress.track(pairs, description="paired differences")
        return [_difference(a, b, probs[a], probs[b], labels) for a, b in shown]


def _difference(
    a: str, b: str, probs_a: Sequence[Any], probs_b: Sequence[Any], labels: Any
) -> Difference:
    values = {name: metrics.paired(name, probs_a, probs_b, labels) for name in COMPARED}
    return Difference(a=a, b=b, seeds=len(probs_a), **values)
