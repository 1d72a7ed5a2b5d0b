"""Scores of uncertainty on sets of recordings, and how well they tell the sets apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from bisnn import metrics
from bisnn.data.loading import Clips
from bisnn.prediction import Classification
from bisnn.runs.model import Model
from bisnn_experiments.measurement import table
from bisnn_experiments.results import Case, Mean

OWN = "test"
N = TypeVar("N")


class Scores(Case, Generic[N]):
    """How uncertain a predictor is, by set of recordings."""

    accuracy: N
    entropy: dict[str, N]  # its mean over a set
    auroc: dict[str, dict[str, N]]  # of each score, by the set that is set beside the test's
    mistakes: dict[str, N]  # the AUROC of each score, of test recordings predicted wrong


class ScoreRow(Scores[float | None]):
    """A predictor of one run; None where a set is empty."""

    run: str
    seed: int


class ScoreSummary(Scores[Mean | None]):
    """A predictor over all seeds."""

    seeds: int


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
    """`metrics.auroc` of scores `high` (N,) above `low` (M,); None where either is empty."""
    if not len(low) or not len(high):
        return None
    return metrics.auroc(torch.from_numpy(low), torch.from_numpy(high))


def tables(entries: Sequence[ScoreSummary]) -> str:
    """The summary as text: AUROC of each score, then accuracy and mean entropies."""
    sets = list(entries[0].auroc)
    chances, means = [], []
    for entry in entries:
        name = f"{entry.method}, {entry.predictor}"
        for kind, mistakes in entry.mistakes.items():
            cells = [*(entry.auroc[other][kind] for other in sets), mistakes]
            chances.append((f"{name}: {kind}", [_cell(cell) for cell in cells]))
        cells = [entry.accuracy, *(entry.entropy[one] for one in (OWN, *sets))]
        means.append((name, [_cell(cell) for cell in cells]))
    aurocs = table("AUROC", [*sets, "own mistakes"], chances)
    return f"{aurocs}\n\n{table('mean entropy / nat', ['accuracy', OWN, *sets], means)}"


def _cell(value: Mean | None) -> str | None:
    if value is None:
        return None
    return f"{value.mean:.3f}" + ("" if value.std is None else f" ± {value.std:.3f}")
