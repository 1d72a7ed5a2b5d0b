"""The commands that predict, from a file of points or from recordings, and that calibrate what is
predicted.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bisnn.commands.shared import Moved, Quiet, Run, Samples, Tempered, console, note_if_unfinished

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
                "CSV, TSV, NPY or NPZ: one row per point; columns by name. Or recordings or "
                "series, and folders of them. Default: the run's own test points."
            ),
        ),
    ] = None,
    moved: Moved = None,
    out: Annotated[Path | None, typer.Option(help="Write the predictions here, as CSV.")] = None,
    samples: Samples = None,
    map_: MapAlone = False,
    tempered: Tempered = False,
    abstain: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help='Of a calibrated run: "don\'t know" unless sure enough that at most this share '
            "of the answers is wrong, with 90 % confidence. E.g. 0.005.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Predict from a file of points, recordings of an event camera, or series; say how sure."""
    from bisnn.data.windows import Loose
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
    if tempered and not calibrated:
        raise ValueError(
            "tempered: the temperature is that of the predictor that was calibrated; got another, "
            f"of {'one set of weights' if members is None else f'{members} members'}; predict with "
            "the same one, or calibrate this one"
        )
    if tempered and abstain is not None:
        raise ValueError(
            "abstain: is of probabilities as they are, not at a temperature; got --tempered too; "
            "leave out one of the two"
        )
    least = None if abstain is None else _least_confidence(run, model, calibrated, abstain)
    with bars(show=not quiet and len(points) > model.batch) as progress:
        bar = progress.add_task("recordings" if files else "points", total=len(points))
        advance = lambda some: progress.advance(bar, some)  # noqa: E731
        result, sets = (
            guarantee.predictions_and_answers(model, points, advance)
            if calibrated
            else (model.predict_labelled(points, members, advance), None)
        )
        if files and inputs and isinstance(points.recordings, Loose):
            points.recordings.say()
    if labels is not None:
        note(f"{inputs[0] if inputs else run}: {model.score(result, labels)}")
    _write(model, result, sets, least, files, out)


def _inputs(
    run: Path, model: Model, inputs: list[Path]
) -> tuple[Any, list[Path], list[str] | None]:
    """Points or recordings of the user's: as a model takes them, their files, their labels."""
    from bisnn.data import table
    from bisnn.runs.series_section import SeriesData

    if isinstance(model.config.data, SeriesData):
        return _series(model, inputs)
    files = _recordings(run, model, inputs)
    if files:
        return model.inputs(files), files, None
    x, labels = table.read_points(inputs[0], model.schema, model.features)
    return model.inputs(x), [], labels


def _series(model: Model, inputs: list[Path]) -> tuple[Any, list[Path], None]:
    """Series of NPZ and CSV files and of folders of these: as `_inputs`; time steps that are
    predicted each by itself have their numbers behind the file."""
    from bisnn.data.series_files import read_values
    from bisnn.runs.labels import steps_that_count

    section: Any = model.config.data
    found = [read_values(str(path), section.target, section.drop) for path in inputs]
    names = [name for some, _ in found for name in some]
    points: Any = model.inputs([item for _, values in found for item in values])
    if section.each_step():
        rows = steps_that_count(model.config, points).nonzero().tolist()
        names = [f"{names[i]}:{t + model.config.burn_in}" for i, t in rows]
    return points, [Path(name) for name in names], None


def _test_points(
    run: Path, moved: Path | None, quiet: bool
) -> tuple[Any, list[Path], list[str] | None]:
    """The run's own test points: as `_inputs`."""
    from bisnn.data.folders import FolderRecordings
    from bisnn.runs import evaluation
    from bisnn.runs.labels import labels_that_count

    model, loaded = evaluation.load_run(run, moved, show=not quiet)
    x, y = loaded.test.x, labels_that_count(model.config, *loaded.test)
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


def _least_confidence(run: Path, model: Model, calibrated: bool, error: float) -> float:
    """From which on at most a share `error` of the answers is wrong; a line says what that is."""
    from bisnn.display import note

    if not calibrated or model.guarantee is None:
        raise ValueError(
            f"abstain: needs a run that is calibrated, for this predictor; got {error}; "
            f"do it with: bisnn calibrate {run}"
        )
    found = model.guarantee.abstention(error)
    assert found.threshold is not None
    note(
        f"{run}: answers from a confidence of {found.threshold:.6g} on: "
        f"{found.answered:,} of {len(model.guarantee.correct):,} calibration recordings, of which "
        f"{found.errors} wrong; with 90 % confidence at most {error:g} of all such answers are "
        "wrong"
    )
    return found.threshold


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
    one_by_one: Annotated[
        bool,
        typer.Option(
            "--one-by-one",
            help="Look with one member, and ask the others at the end, where it is not sure.",
        ),
    ] = False,
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
        one_by_one=one_by_one,
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


def _write(
    model: Model,
    result: Any,
    sets: Any,
    least: float | None,
    files: list[Path],
    out: Path | None,
) -> None:
    """The predictions as CSV to a file or a pipe, as a table to a terminal; with answers, where
    they need a least confidence.
    """
    from bisnn import printing
    from bisnn.files import write_atomic

    header, rows = printing.prediction_rows(model, result)
    if least is not None:
        header = ["answer", *header]
        rows = [[row[0] if row[1] >= least else "don't know", *row] for row in rows]
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
