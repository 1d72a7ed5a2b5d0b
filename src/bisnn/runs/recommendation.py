"""Which predictor of a run to use, by its evaluation: the MAP weights, or the ensemble.

The most probable weights were never seen in training, which draws them anew at every step: they can
be far worse than the ensemble.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bisnn.display import note
from bisnn.files import file_digest, read_text
from bisnn.intervals import Interval
from bisnn.runs.results import Verdict

# The first decides; lower is better
SHOWN = {
    "classification": ("nll", "accuracy"),
    "regression": ("rmse",),
}
NAMES = {"nll": "NLL", "rmse": "RMSE"}


class Comparison(NamedTuple):
    """MAP and the ensemble on the test points: for each metric shown, both values."""

    ensemble: str
    values: dict[str, tuple[Interval, Interval]]

    @property
    def recommended(self) -> str:
        """MAP where it is clearly better; else the ensemble, which also knows how sure it is."""
        ours, theirs = next(iter(self.values.values()))
        return "map" if ours.high < theirs.low else "members"

    @property
    def map_clearly_worse(self) -> bool:
        """Whether the intervals do not even touch."""
        ours, theirs = next(iter(self.values.values()))
        return ours.low > theirs.high

    def __str__(self) -> str:
        pairs = {
            name: [f"{v.value:.3g} ({v.low:.3g} to {v.high:.3g})" for v in pair]
            for name, pair in self.values.items()
        }
        return ", ".join(
            f"{NAMES.get(name, name)} {' against '.join(pair)}" for name, pair in pairs.items()
        )


def compare(file: Path) -> Comparison | None:
    """What the run's evaluation found of this model; None if it has no such evaluation."""
    try:
        found = Verdict.model_validate_json(read_text(file.parent / "evaluation.json"))
        if found.model != file_digest(file):
            return None
        (_, ours), (ensemble, theirs) = found.metrics.items()
        pairs = {name: (ours[name], theirs[name]) for name in SHOWN[found.task]}
    except (OSError, ValueError, KeyError):
        return None
    return Comparison(ensemble, pairs)


def warn_of_map(run: str | Path, file: Path, way: str) -> None:
    """Print a line if MAP was clearly worse than the ensemble; `way` leads to the latter."""
    found = compare(file)
    if found is not None and found.map_clearly_worse:
        note(
            f"{run}: MAP is clearly worse than its {found.ensemble} on the test points: {found}; "
            f"{way}"
        )


def recommended(run: str | Path, file: Path, members: int) -> str:
    """ "map" or "members": what the evaluation recommends, or the usual; a line says why."""
    found = compare(file)
    if found is None:
        way = f"bisnn evaluate {run} compares it with MAP"
        note(
            f"{run}: has no evaluation of this model, so its usual ensemble of {members} is taken; "
            f"{way}"
        )
        return "members"
    name, than = "MAP", "clearly better"
    if found.recommended == "members":
        name, than = f"the {found.ensemble}", "not clearly better"
    note(f"{run}: its evaluation recommends {name}; MAP is {than}: it has {found} of the ensemble")
    return found.recommended
