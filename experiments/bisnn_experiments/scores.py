"""Scores of uncertainty on sets of recordings, and how well they tell the sets apart."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from bisnn.data.loading import Clips
from bisnn.prediction import Classification
from bisnn.runs.model import Model
from bisnn_experiments.measurement import table

OWN, MISTAKES = "test", "own mistakes"


def score(
    model: Model,
    sets: Iterable[Clips],
    members: int | None,
    advance: Callable[[int], Any] = lambda n: None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Each score (N,) of the recordings of some sets, and the classes (N,) predicted for them.

    Args:
        model: with its network on the device to work on.
        sets: predicted one after the other.
        members: of the ensemble; None for the one set of weights, which has no mutual information.
        advance: called with the number of recordings done, now and then.
    """
    parts: list[dict[str, Tensor]] = []
    for clips in sets:
        result = model.predict_points(clips, members, advance=advance)
        assert isinstance(result, Classification)
        largest, label = result.mean.max(-1)
        own = {"entropy": result.entropy, "1 - max": 1 - largest, "class": label}
        if members is not None and members > 1:
            own["mutual information"] = result.mutual_information
        parts.append(own)
    joined = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    taken_for = joined.pop("class")
    return {name: values.astype(np.float64) for name, values in joined.items()}, taken_for


def auroc(low: np.ndarray, high: np.ndarray) -> float | None:
    """The probability that one of `high` (N,) is above one of `low` (M,), where a tie counts half;
    None where either is empty.
    """
    if not len(low) or not len(high):
        return None
    return float(
        roc_auc_score(np.repeat([0, 1], [len(low), len(high)]), np.concatenate([low, high]))
    )


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every number's mean and deviation over the seeds, an entry for each method and predictor."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["predictor"]), []).append(row)
    numbers = ("accuracy", "entropy", "auroc", MISTAKES)
    return [
        {
            "method": method,
            "predictor": predictor,
            **{name: over_seeds([row[name] for row in group]) for name in numbers},
        }
        for (method, predictor), group in groups.items()
    ]


def over_seeds(values: Sequence[Any]) -> Any:
    """Mean and deviation of numbers, or of each entry of dicts. None is left out; the deviation of
    a single number is None.
    """
    if isinstance(values[0], dict):
        return {key: over_seeds([value[key] for value in values]) for key in values[0]}
    known = [value for value in values if value is not None]
    spread = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.fmean(known) if known else None, "std": spread, "seeds": len(known)}


def tables(entries: Sequence[dict[str, Any]]) -> str:
    """The summary as text: AUROC of each score, then accuracy and mean entropies."""
    sets = list(entries[0]["auroc"])
    chances, means = [], []
    for entry in entries:
        name = f"{entry['method']}, {entry['predictor']}"
        for kind, mistakes in entry[MISTAKES].items():
            cells = [*(entry["auroc"][other][kind] for other in sets), mistakes]
            chances.append((f"{name}: {kind}", [_cell(cell) for cell in cells]))
        cells = [entry["accuracy"], *(entry["entropy"][one] for one in (OWN, *sets))]
        means.append((name, [_cell(cell) for cell in cells]))
    aurocs = table("AUROC", [*sets, MISTAKES], chances)
    return f"{aurocs}\n\n{table('mean entropy / nat', ['accuracy', OWN, *sets], means)}"


def _cell(of_seeds: dict[str, Any]) -> str | None:
    if of_seeds["mean"] is None:
        return None
    spread = "" if of_seeds["std"] is None else f" ± {of_seeds['std']:.3f}"
    return f"{of_seeds['mean']:.3f}{spread}"
