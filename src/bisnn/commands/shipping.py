"""The command that exports a model: as a packed file, as C, as a NIR graph or as a web page;
and the one that opens the page of a model that comes with the package."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bisnn.commands.shared import Run, Samples, console, note_if_unfinished


class Predictor(StrEnum):
    map = "map"
    members = "members"
    posterior = "posterior"


class NeuronKind(StrEnum):
    srm = "srm"
    fixed = "fixed"


class Profile(StrEnum):
    exact = "exact"
    cubalif = "cubalif"


As = Annotated[
    Predictor | None,
    typer.Option(
        "--as",
        help=(
            "map: most probable weights. members: an ensemble. posterior: "
            "8 bits per weight. Default: the better one."
        ),
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        help=(
            "Of c: of all names and files, so that a program can hold several models. Default: "
            "model."
        )
    ),
]


def export(
    run: Run,
    to: Annotated[
        str,
        typer.Option(
            help="packed: one file for bisnn.packed. c: C99 sources. nir: a graph. web: a page "
            "that runs it. module:name: a function of your own, of the packed network and a path."
        ),
    ] = "packed",
    out: Annotated[
        Path | None, typer.Option(help="File (c: folder) to write. Default: in the run folder.")
    ] = None,
    as_: As = None,
    members: Samples = None,
    profile: Annotated[
        Profile,
        typer.Option(help="Of nir. cubalif: for importers that know nothing else; not exact."),
    ] = Profile.exact,
    prefix: Prefix = None,
    neuron: Annotated[
        NeuronKind | None,
        typer.Option(
            help="fixed: the neurons in integers; says what that changes. Default: as trained."
        ),
    ] = None,
    sizes: Annotated[
        bool,
        typer.Option(
            "--sizes",
            help="Of c: flash, RAM and instructions per step on microcontrollers, under QEMU.",
        ),
    ] = False,
) -> None:
    """Ship a run's model as bits, which run without PyTorch and give the same spikes."""
    from bisnn import printing
    from bisnn.runs import exporting
    from bisnn.runs import model as models

    source = models.file_of(run)
    model = models.load(source)
    done = exporting.export_model(
        model,
        source,
        run,
        to,
        out,
        predictor=as_ and as_.value,
        members=members,
        profile=profile.value,
        prefix=prefix,
        neuron=neuron and neuron.value,
        sizes=sizes,
    )
    note_if_unfinished(run, model)
    printing.print_exported(to, done)


def try_(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("try.html"),
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
) -> None:
    """Draw digits for a network that comes trained: a page that runs it, without any training."""
    import webbrowser

    from bisnn.shipping import web

    web.check_target(out)
    web.write(web.digits(), out)
    opened = browse and webbrowser.open(out.resolve().as_uri())
    console().print(f"{'opened' if opened else 'open in a browser:'} {out}")
