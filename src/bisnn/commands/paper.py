"""The command that reproduces the paper's figures and table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bisnn.commands.shared import Device, Quiet, console


class Figure(StrEnum):
    fig1 = "fig1"
    fig2 = "fig2"
    table1 = "table1"
    all = "all"


class Recipe(StrEnum):
    tuned = "tuned"
    paper = "paper"


Data = Annotated[
    Path | None,
    typer.Option(
        help="table1: folder of N-MNIST, MNIST-DVS or MNIST's idx files. "
        "Default: scikit-learn's digits."
    ),
]
Pages = Annotated[
    bool,
    typer.Option(
        "--pages",
        help="Also a report of all runs, and a page that runs the first ensemble, in OUT.",
    ),
]
NoTraining = Annotated[
    bool,
    typer.Option("--no-training", help="Measure and draw what is there, also unfinished runs."),
]


def reproduce(
    figure: Annotated[
        Figure,
        typer.Argument(
            help=(
                "The paper's figure 1 (1-D regression), 2 (two moons), all of these, or table1 "
                "(recordings)."
            )
        ),
    ],
    recipe: Annotated[
        Recipe, typer.Option(help="tuned: best and short. paper: as the paper says, hours.")
    ] = Recipe.tuned,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for runs, results.json, figures. Default: out/ and the recipe."),
    ] = None,
    data: Data = None,
    device: Annotated[
        Device | None, typer.Option(help="table1: where to train. Default: a GPU if there is one.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one per core; one on a GPU.")
    ] = None,
    no_training: NoTraining = False,
    pages: Pages = False,
    quiet: Quiet = False,
) -> None:
    """Train, measure and draw the paper's figures or table. Called again, it goes on from there."""
    from bisnn_experiments import workers

    # At the same time as this process, and once for all runs: what they import by their first step
    modules = ("bisnn_experiments.reproduction", "torch._dynamo", "sklearn.datasets")
    workers.start_server(*modules, *(["bisnn_experiments.pages"] if pages else []))
    from bisnn_experiments import recognition, reproduction, terminal

    out = out or Path("out") / recipe.value
    figures = ["fig1", "fig2"] if figure is Figure.all else [figure.value]
    chosen = range(first_seed, first_seed + seeds)
    results = reproduction.reproduce(
        figures,
        recipe.value,
        seeds=chosen,
        out=out,
        jobs=jobs,
        train=not no_training,
        show=not quiet,
        data=data,
        device=device and device.value,
    )
    names = [
        f"table1_{recognition.recognised(data)[0]}" if name == "table1" else name
        for name in figures
    ]
    for name in names:
        console().print(terminal.table(results.figures[name]))
    drawn = ", ".join(str(out / f"{name}.png") for name in names)
    console().print(f"results: {out / 'results.json'}, figures: {drawn}")
    if pages:
        from bisnn import printing
        from bisnn_experiments.pages import write

        runs = reproduction.run_folders(figures, recipe.value, chosen, out, data)
        written = write(runs, out, jobs, not quiet)
        if written.network is not None:
            printing.print_exported("web", written.network)
        printing.print_report(written.report)
