"""The commands that predict, from a file of points or from recordings, and that calibrate what is
predicted.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bisnn.commands.shared import (
    Moved,
    Quiet,
    Run,
    Samples,
    Tempered,
    console,
    note_if_unfinished,
)

if TYPE_CHECKING:
    from bisnn.runs.model import Model

MapAlone = Annotated[
    bool, typer.Option("--map", help="The most probable weights alone, no ensemble.")
]


def predict(
    run: Run,
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[INPUT...]",
            help=(
                "CSV, TSV, NPY or NPZ: one row per point; "
                "columns by name. Or recordings, and folders of them. Default: the run's own test "
                "points."
            ),
        ),
    ] = None,
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="Write the predictions here, as CSV.")] = None,
    samples: Samples = None,
    map_: MapAlone = False,
    tempered: Tempered = False,
    quiet: Quiet = False,
) -> None:
    """Predict from a file of points, or from recordings of an event camera, and say how sure."""
    from bisnn.display import bars, note
    from bisnn.runs import guarantee
    from bisnn.runs import model as models
    from bisnn.runs.recommendation import warn_of_map

    _check_out(out, inputs or [])
    if inputs and moved is not None:
        raise typer.BadParameter("--data is for the run's own test points: leave out INPUT, or it")
    if map_ and samples is not None:
        raise typer.BadParameter("--map and --samples exclude each other")
    model = models.load(run)
    if tempered:
        model = model.tempered()
    note_if_unfinished(run, model)
    if map_ and model.members is not None:
        warn_of_map(run, models.file_of(run), "leave out --map")
    if inputs:
        points, files, labels = _inputs(run, model, inputs)
    else:
        points, files, labels = _test_points(run, moved, quiet)
    members = model.count(None if map_ else samples or "usual")
    calibrated = _calibrated(run, model, members)
    with bars(show=not quiet and len(points) > model.batch) as progress:
        bar = progress.add_task("recordings" if files else "points", total=len(points))
        result = model.predict_points(
            points, members, advance=lambda some: progress.advance(bar, some)
        )
        if files and inputs:
            points.recordings.say()
        sets = guarantee.answers(model, points) if calibrated else None
    if labels is not None:
        note(f"{inputs[0] if inputs else run}: {model.score(result, labels)}")
    _write(model, result, sets, files, out)


def _inputs(
    run: Path, model: Model, inputs: list[Path]
) -> tuple[Any, list[Path], list[str] | None]:
    """Points or recordings of the user's: as a model takes them, their files, their labels."""
    from bisnn.data import table

    files = _recordings(run, model, inputs)
    if files:
        return model.inputs(files), files, None
    x, labels = table.read_points(inputs[0], model.schema, model.features)
    return model.inputs(x), [], labels


def _test_points(
    run: Path, moved: Path | None, quiet: bool
) -> tuple[Any, list[Path], list[str] | None]:
    """The run's own test points: as `_inputs`."""
    from bisnn.data.folders import FolderRecordings
    from bisnn.runs import evaluation

    _, loaded = evaluation.load_run(run, moved, show=not quiet)
    x, y = loaded.test
    recordings = getattr(x, "recordings", None)
    files = recordings.files if isinstance(recordings, FolderRecordings) else None
    names = loaded.classes
    labels = [names[i] for i in y.tolist()] if names else [str(v) for v in y[:, 0].tolist()]
    return x, [files[i] for i in x.index.tolist()] if files else [], labels  # type: ignore[union-attr]


def _calibrated(run: Path, model: Model, members: int | None) -> bool:
    """Whether the run's calibration is of this predictor."""
    from bisnn.display import note

    if model.guarantee is None or model.guarantee.samples == members:
        return model.guarantee is not None
    predictor = "the one set of weights" if members is None else f"{members} members"
    note(f"{run}: was not calibrated for {predictor}, so there are no sets")
    return False


class Correction(StrEnum):
    joint = "joint"
    bonferroni = "bonferroni"


def calibrate(
    run: Run,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A file of points with their classes or targets, or a folder of recordings, in "
            "folders named after their classes. Default: the run's validation share."
        ),
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="How often the truth is to be inside, in (0, 1).")
    ] = 0.9,
    correction: Annotated[
        Correction, typer.Option(help="For looking several times while a recording goes on.")
    ] = Correction.joint,
    looks: Annotated[
        int | None, typer.Option(min=1, help="Looks, evenly over the time steps. Default: 10.")
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="Classes of a set that is small enough to stop.")
    ] = 1,
    samples: Samples = None,
    map_: MapAlone = False,
    quiet: Quiet = False,
) -> None:
    """Make prediction sets, or intervals, that hold the truth as often as asked for."""
    from bisnn import conformal, printing
    from bisnn.runs import calibration, guarantee

    if map_ and samples is not None:
        raise typer.BadParameter("--map and --samples exclude each other")
    found = calibration.calibrate(
        run,
        data,
        coverage,
        samples=None if map_ else samples or "usual",
        correction=correction.value,
        looks=looks or conformal.LOOKS,
        most=most,
        show=not quiet,
    )
    printing.print_guarantee(found, run / guarantee.FILE)


def _check_out(out: Path | None, data: list[Path]) -> None:
    if out is None:
        return
    if out.suffix.lower() != ".csv" or out.resolve() in [path.resolve() for path in data]:
        raise ValueError(
            f"{out}: must be a .csv file other than the input; give e.g. --out predictions.csv"
        )


def _recordings(run: Path, model: Model, data: list[Path]) -> list[Path]:
    """The recordings among the inputs; none for a model of points, which takes one file of them."""
    from bisnn.data import events, windows

    if model.config.recorded:
        return windows.files_of(data)
    if data[0].suffix.lower() in events.CAMERA_SUFFIXES:
        raise ValueError(
            f"{data[0]}: is a recording, and {run} was trained on points; "
            "give a CSV, NPY or NPZ file of them"
        )
    if len(data) > 1:
        raise ValueError(
            f"{data[1]}: {run} was trained on points, which come in one file; "
            f"got {len(data)}; give one at a time"
        )
    return []


def _write(model: Model, result: Any, sets: Any, files: list[Path], out: Path | None) -> None:
    """The predictions as CSV to a file or a pipe, as a table to a terminal."""
    from bisnn import printing
    from bisnn.files import write_atomic

    header, rows = printing.prediction_rows(model, result)
    if sets is not None:
        more, cells = printing.set_columns(model, sets)
        header = [*header, *more]
        rows = [[*row, *of] for row, of in zip(rows, cells, strict=True)]
    if files:
        header = ["file", *header]
        rows = [[str(file), *row] for file, row in zip(files, rows, strict=True)]
    if out is not None:
        write_atomic(out, printing.csv_text(header, rows).encode())
        console().print(f"{len(rows)} predictions: {out}")
    elif sys.stdout.isatty():
        # The probabilities of ten classes do not fit
        shown = [i for i, name in enumerate(header) if not (files and name.startswith("p("))]
        printing.print_rows([header[i] for i in shown], [[row[i] for i in shown] for row in rows])
    else:
        sys.stdout.write(printing.csv_text(header, rows))
