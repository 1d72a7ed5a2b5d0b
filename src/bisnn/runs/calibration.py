"""Calibrate a run: from recordings that it was not trained on to `calibration.json`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bisnn.data import series, series_files, table, windows
from bisnn.data.dataset import Dataset
from bisnn.data.loading import Clips, LoadedData, fingerprints
from bisnn.display import bars, note
from bisnn.packed.columns import Schema, category
from bisnn.runs import guarantee
from bisnn.runs.evaluation import load_run
from bisnn.runs.folder import RunFolder
from bisnn.runs.guarantee import Guarantee
from bisnn.runs.inputs import series_of
from bisnn.runs.model import Model
from bisnn.runs.series_section import SeriesData

Labelled = tuple[Tensor | Clips, np.ndarray]


def calibrate(
    folder: str | Path,
    on: str | Path | None = None,
    coverage: float = 0.9,
    *,
    samples: int | Literal["usual"] | None = "usual",
    data: Dataset | series.Series | None = None,
    show: bool = True,
    **options: Any,
) -> Guarantee:
    """Calibrate a run's prediction sets, or intervals, and write `calibration.json` beside its
    model.

    Args:
        folder: the run.
        on: a file of points with their classes or targets, or a folder of recordings, in folders
            named after their classes. By default the run's validation share, which is never trained
            on. Training data are refused.
        coverage: how often the truth is to be inside, on data like these.
        samples: as in `Model.predict`.
        data: of a run whose data were given from Python, the same again.
        show: a progress bar.
        options: of `bisnn.runs.guarantee.calibrated`: correction, looks, one_by_one, most,
            by_class, score; scaled for intervals.
    """
    model, loaded = load_run(folder, data, show)
    if on is None:
        (x, y), tested = _validation(folder, model, loaded), 0
    else:
        (x, y), tested = _others(model, loaded, Path(on))
    run = RunFolder(folder)
    with run.locked(), bars(show=show) as progress:
        bar = progress.add_task("calibration", total=len(x))
        found = guarantee.calibrated(
            model,
            x,
            y,
            coverage,
            samples=model.count(samples),
            advance=lambda some: progress.advance(bar, some),
            **options,
        )
        found = replace(found, tested=tested)
        guarantee.write(found, run.model_file)
    return found


def _validation(folder: str | Path, model: Model, data: LoadedData) -> Labelled:
    """The points that were held out of training."""
    if data.validation is None:
        raise ValueError(
            f"{folder}: has no validation share to calibrate on, and its training points would "
            "promise too much; train with data.validation = 0.2, or give others with --data"
        )
    if model.config.train.keep == "best" or model.config.train.patience:
        note(
            f"{folder}: its validation share also chose the epoch that was kept, so coverage may "
            "fall a little short; calibrate on other data with --data to rule that out"
        )
    return data.validation.x, data.validation.y.numpy()


def _others(model: Model, data: LoadedData, on: Path) -> tuple[Labelled, int]:
    """Points of a file or recordings of a folder, none of them trained on; and how many the run is
    tested on.
    """
    if isinstance(model.config.data, SeriesData):
        x, y = _series(model, on)
    else:
        x, y = _recordings(model, on) if model.config.recorded else _points(model, on)
    y = guarantee.checked_truth(model, x, y)
    # Also where the model's file does not say what it was trained on
    model = replace(model, trained_on=data.trained_on)
    ours = guarantee.check_unseen(model, x, y, str(on))
    tests = fingerprints(*data.test, bool(model.classes))
    tested = int(torch.isin(ours, tests).sum())
    if tested <= guarantee.by_chance(model, len(x)):
        tested = 0
    if tested:
        note(
            f"{on}: {tested} of {len(x)} are test points of the run, so what `bisnn evaluate` "
            "finds of sets or intervals is no test of them"
        )
    return (x, y), tested


def _series(model: Model, on: Path) -> Labelled:
    section: Any = model.config.data
    given = series_files.read(str(on), section.each_step(), section.target, section.drop)
    return series_of(model.config, given.values), series.labelled(given, model.classes)


def _points(model: Model, on: Path) -> Labelled:
    schema = model.schema
    if schema is None:  # the last column is the class or target
        names = tuple(str(i + 1) for i in range(model.features + 1))
        schema = replace(Schema.numbered(model.features), layout=names, target=names[-1])
    x, labels = table.matched(table.read(on), schema)
    if labels is None:
        raise ValueError(f"{on}: has no column of classes or targets; add it")
    if not model.classes:
        y = table.targets(on, labels)
    else:
        known = [category(name) for name in model.classes]
        y, _ = table.labels(on, [category(label) for label in labels], tuple(known))
    if model.schema is None:
        return model.inputs(np.stack(list(x.values()), 1)), y
    return model.inputs(x), y


def _recordings(model: Model, on: Path) -> Labelled:
    files = windows.files_of([on])
    for file in files:
        if file.parent.name not in model.classes:
            raise ValueError(
                f"{file}: must lie in a folder named after its class, one of "
                f"{', '.join(model.classes)}; got {file.parent.name!r}; move it, or leave it out"
            )
    return model.inputs(files), np.array([model.classes.index(file.parent.name) for file in files])
