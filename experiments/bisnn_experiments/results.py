"""What the experiments find, typed, and its files: JSON is read and written here alone.

An experiment has a row for each method, predictor and seed, and a summary of them over the seeds.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from bisnn.files import read_bytes, write_atomic
from bisnn.runs.results import Finding, Metric, Verdict

F = TypeVar("F", bound=Finding)
N = TypeVar("N")


# Where results come from


class Versions(Finding):
    torch: str
    python: str
    commit: str | None = None  # of this repository; older files do not say


class Machine(Finding):
    """What `measurement.machine` says."""

    cpu: str
    cores: int | None
    features: list[str]
    memory_gib: float | None
    load_before: float | None
    system: str
    python: str
    torch: str
    commit: str | None = None


def command() -> str:
    """The command line that started this process."""
    return shlex.join(["python", *sys.orig_argv[1:]])


# Rows, and their summary over the seeds


class Mean(Finding):
    """The mean of a number over the seeds, and its standard deviation."""

    mean: float
    std: float | None  # None of a single seed
    seeds: int | None = None  # that have the number, where not all have it


class Case(Finding):
    """What a row or a summary is about."""

    method: str
    predictor: str


class Numbers(Case, Generic[N]):
    """The numbers of a row, or their means; None where one does not apply."""

    epochs: N | None = None
    training_seconds: N | None = None
    accuracy: N | None = None
    balanced_accuracy: N | None = None
    nll: N | None = None
    brier: N | None = None
    calibration_error: N | None = None
    ece: N | None = None
    confidence: N | None = None
    far_confidence: N | None = None
    rmse_inside: N | None = None
    deviation_inside: N | None = None
    rmse_gaps: N | None = None
    deviation_gaps: N | None = None
    deviation_ratio: N | None = None
    memory_bytes: N | None = None
    synaptic_operations: N | None = None


class Row(Numbers[int | float]):
    """A predictor of one run."""

    seed: int

    @classmethod
    def of(
        cls, judged: Verdict, predictor: str, method: str, seed: int, **numbers: float | None
    ) -> Row:
        """The row of an evaluated run; seconds are None where no checkpoint knows them."""
        seconds = None if judged.seconds is None else round(judged.seconds, 1)
        trained = {"epochs": judged.epoch, "training_seconds": seconds}
        return cls(method=method, predictor=predictor, seed=seed, **trained | numbers)


class Summary(Numbers[Mean]):
    """A predictor over all seeds."""

    seeds: int


def summarise(rows: Sequence[Case], kind: type[F]) -> list[F]:
    """A summary of this kind for each method and predictor: every number of its rows as a mean."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        numbers = row.model_dump(exclude={"method", "predictor", "seed", "run"}, exclude_unset=True)
        groups.setdefault((row.method, row.predictor), []).append(numbers)
    return [
        kind.model_validate(
            {"method": method, "predictor": predictor, "seeds": len(group), **over_seeds(group)}
        )
        for (method, predictor), group in groups.items()
    ]


def over_seeds(values: Sequence[Any]) -> Any:
    """The mean of numbers, of which None is left out, or of each entry of dicts; None of none."""
    if isinstance(values[0], dict):
        return {key: over_seeds([value[key] for value in values]) for key in values[0]}
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    some = {"seeds": len(known)} if len(known) < len(values) else {}
    return Mean(mean=statistics.fmean(known), std=std, **some)


class Study(Finding):
    """Methods compared."""

    command: str
    device: str | None = None
    summary: list[Summary]
    rows: list[Row]


# The paper's figures and table


class Difference(Finding):
    """Predictor a minus predictor b over the same recordings and seeds, with 95 % intervals; where
    the runs are gone that these would need, with the deviation over the seeds.
    """

    a: str
    b: str
    seeds: int
    accuracy: Metric | Mean
    nll: Metric | Mean
    calibration_error: Metric | None = None
    ece: Metric | Mean | None = None  # in its place in files from before there was one


class Panel(Finding):
    """What is drawn of a predictor; what its figure does not show is empty."""

    method: str
    predictor: str
    mean: list[float] = []
    std: list[float] = []
    p1: list[float] = []  # probability of class 1, over a grid


class Points(Finding):
    """Training points, and of a regression the test points."""

    x: list[float] | list[list[float]]
    y: list[int] | list[float]
    test_x: list[float] = []
    test_y: list[float] = []


class Origin(Finding):
    """Where the results of a figure come from."""

    recipe: str
    command: str
    machine: str
    versions: Versions
    wall_seconds: float | None  # of the whole command; None where it found runs
    seeds: list[int]


class FigureResults(Origin):
    summary: list[Summary]
    rows: list[Row]
    panels: list[Panel]
    training_points: Points | None
    differences: list[Difference] = []


class Figures(Finding):
    """A file of `bisnn reproduce`."""

    figures: dict[str, FigureResults]


# Files


def read(path: Path, kind: type[F]) -> F:
    """Read a file of this kind."""
    content = read_bytes(path)
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = "/".join(map(str, first["loc"])) or "the file"
        raise ValueError(
            f"{path}: is damaged or of another version ({place}: {first['msg']}); "
            "remove it or give another --out"
        ) from None


def write(path: Path, results: Finding | dict[str, Any]) -> None:
    """Write a file, whole or not at all."""
    if isinstance(results, BaseModel):
        results = results.model_dump(mode="json", exclude_unset=True)
    write_atomic(path, (json.dumps(results, indent=1) + "\n").encode())
