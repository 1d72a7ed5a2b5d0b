"""A run's model under a worse camera: its test recordings, each corrupted in every way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pydantic import ValidationError

from bisnn import kernels, metrics
from bisnn.data.archives import Recordings, Source
from bisnn.data.corrupted import amounts_of, corrupted
from bisnn.data.corruption import STRENGTHS
from bisnn.data.loading import Clips, LoadedData, Split
from bisnn.display import bars
from bisnn.files import file_digest, read_bytes, write_atomic
from bisnn.prediction import Classification
from bisnn.runs.evaluation import predictors
from bisnn.runs.folder import Damaged, RunFolder
from bisnn.runs.model import Model
from bisnn.runs.results import Finding

SEED = 0  # of the corruptions: not the run's, as all runs are to be judged on the same recordings


class Quality(Finding):
    """How good the predictions on a set of recordings are."""

    accuracy: float
    nll: float
    ece: float  # the plain one


class CorruptedTest(Finding):
    """The test recordings under one corruption."""

    kind: str
    strength: int
    amount: float
    unit: str
    predictors: dict[str, Quality]


class Robustness(Finding):
    """What `corruptions.json` holds."""

    model: str  # digest of the model's file
    recordings: str  # digest of the test recordings
    points: int  # tested, under each corruption
    seed: int  # of the corruptions
    temperature: float = 1.0  # of the probabilities
    clean: dict[str, Quality]  # by predictor
    corrupted: list[CorruptedTest]
    mean: dict[str, Quality]  # over all kinds and strengths, by predictor


def source_of(folder: str | Path, data: LoadedData) -> Source:
    """Where the events of a run's test recordings come from; an error where there are none."""
    x = data.test.x
    recordings = x.recordings if isinstance(x, Clips) else None
    if not isinstance(recordings, Recordings) or recordings.source is None:
        had = "spikes without their events" if recordings else "points"
        raise ValueError(
            f"{folder}: corruptions change recordings of events, read from files or simulated; got "
            f"a run on {had}; leave out --corruptions"
        )
    return recordings.source


def evaluate_corruptions(
    folder: str | Path, model: Model, data: LoadedData, *, show: bool = True
) -> Robustness:
    """Judge a run's model on its test recordings, clean and under every kind and strength of
    corruption; writes `corruptions.json` into the run folder.
    """
    run, source = RunFolder(folder), source_of(folder, data)
    clips, y = data.test
    assert isinstance(clips, Clips)
    if model.config.train.device == "cuda" and torch.cuda.is_available():
        model.net.to("cuda")
    work = sum(map(model.size, predictors(model).values()))
    kinds = amounts_of(source)
    total = (1 + STRENGTHS * len(kinds)) * len(y) * work
    with run.locked(), bars(show=show) as progress, kernels.precision("full"):
        bar = progress.add_task("corrupted recordings", total=total)
        judge = partial(_judged, model, advance=partial(progress.advance, bar))
        clean = judge(data.test)
        rows = []
        for kind, (amounts, unit) in kinds.items():
            for strength, amount in enumerate(amounts, 1):
                worse = Split(Clips(corrupted(source, kind, strength, SEED), clips.index), y)
                rows.append(
                    CorruptedTest(
                        kind=kind,
                        strength=strength,
                        amount=amount,
                        unit=unit,
                        predictors=judge(worse),
                    )
                )
        found = Robustness(
            model=file_digest(run.model_file),
            recordings=clips.digest().hex(),
            points=len(y),
            seed=SEED,
            temperature=model.temperature,
            clean=clean,
            corrupted=rows,
            mean={name: mean_quality([row.predictors[name] for row in rows]) for name in clean},
        )
        write_atomic(run.corruptions_file, (found.model_dump_json(indent=1) + "\n").encode())
    return found


def load_robustness(run: RunFolder, model: str, temperature: float = 1.0) -> Robustness | None:
    """What `evaluate_corruptions` wrote of the model of this digest at this temperature; None where
    there is nothing of it.
    """
    if not run.corruptions_file.exists():
        return None
    try:
        found = Robustness.model_validate_json(read_bytes(run.corruptions_file))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "its first line"
        raise Damaged(
            f"{run.corruptions_file}: is damaged (see {where}); do it again with: "
            f"bisnn evaluate {run.path} --corruptions"
        ) from None
    return found if (found.model, found.temperature) == (model, temperature) else None


def mean_quality(some: list[Quality]) -> Quality:
    """Each number's mean."""
    return Quality(
        **{name: fmean(getattr(one, name) for one in some) for name in Quality.model_fields}
    )


def _judged(model: Model, test: Split, advance: Callable[[float], Any]) -> dict[str, Quality]:
    """Every predictor of the model on some recordings."""
    found = {}
    for name, members in predictors(model).items():
        count = lambda done, members=members: advance(done * model.size(members))  # noqa: E731
        result = model.predict_points(test.x, members, advance=count)
        assert isinstance(result, Classification)
        probs = result.mean.cpu()
        values = {name: getattr(metrics, name)(probs, test.y) for name in Quality.model_fields}
        found[name] = Quality(**values)
    return found
