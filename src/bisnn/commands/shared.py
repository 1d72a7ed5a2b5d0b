"""What several commands share: options, and lines that they print."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bisnn.runs.model import Model

Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, as `bisnn train` wrote it.")
]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Members of the ensemble. Default: the config's.")
]
Moved = Annotated[
    Path | None,
    typer.Option("--data", help="Where the run's data lie now, if they have moved."),
]
Tempered = Annotated[
    bool,
    typer.Option("--tempered", help="Probabilities at the temperature that calibration found."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


def console() -> Any:
    """The terminal; loaded late, as it is not needed for --help."""
    from bisnn import display

    return display.console()


def note_if_unfinished(run: Path, model: Model) -> None:
    """A line on a run's model whose training stopped early, and not because the config says so."""
    from bisnn.display import note

    train = model.config.train
    if train.keep == "last" and not train.patience and model.epoch < train.epochs:
        note(
            f"{run}: its model is of epoch {model.epoch} of {train.epochs}; "
            "`bisnn resume` trains it to the end"
        )
