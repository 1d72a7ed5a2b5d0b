"""Commands that make a run and judge it: train, resume, evaluate, report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bisnn.commands.shared import Moved, Quiet, Run, Tempered, console, note_if_unfinished

if TYPE_CHECKING:
    from bisnn.runs.training import TrainedRun

NoReport = Annotated[
    bool, typer.Option("--no-report", help="Train only: no evaluation, no report.")
]


def train(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", help="A TOML file, or the name of a config that comes with bisnn."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder to make. Default: runs/, the config and the seed."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable."),
    ] = None,
    members: Annotated[
        int,
        typer.Option(min=1, help="Networks to train, one by one, that predict as one."),
    ] = 1,
    no_report: NoReport = False,
    quiet: Quiet = False,
) -> None:
    """Train a network, or several that predict as one, judge it on test points, write a report."""
    from bisnn.runs import config as configs
    from bisnn.runs import training

    several = [f"train.members={members}"] if members > 1 else []
    settings = configs.load(config, [*(set_ or ()), *several])
    out = out or Path("runs") / f"{Path(config).stem}_seed{settings.seed}"
    _finish(training.train_run(settings, out, show=not quiet), no_report, quiet)


def resume(
    run: Run,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change e.g. train.epochs or train.patience; repeatable.",
        ),
    ] = None,
    data: Moved = None,
    no_report: NoReport = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped, to the same bits as without; or train it longer."""
    from bisnn.runs import training

    resumed = training.resume_run(run, set_ or (), data=data, show=not quiet)
    _finish(resumed, no_report, quiet)


def _finish(run: TrainedRun, no_report: bool, quiet: bool) -> None:
    from bisnn import printing
    from bisnn.runs import evaluation

    folder = run.folder
    if os.environ.get("RANK", "0") != "0":
        return
    if no_report:
        console().print(f"model: {folder / 'model.safetensors'}")
        return
    verdict = evaluation.evaluate_model(folder, run.model, run.data, show=not quiet)
    note_if_unfinished(folder, run.model)
    printing.print_verdict(folder, verdict)
    _write_report([folder], None, quiet)


def evaluate(
    run: Run,
    energy: Annotated[
        bool,
        typer.Option("--energy", help="Also what one inference takes: operations, memory, energy."),
    ] = False,
    cost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PJ",
            help=(
                "Price of an operation in picojoules, in place of 45 nm; repeatable, sets --energy."
            ),
        ),
    ] = None,
    tempered: Tempered = False,
    corruptions: Annotated[
        bool,
        typer.Option(
            "--corruptions",
            help="Also under a worse camera: corrupted in 10 kinds or more, 5 strengths each.",
        ),
    ] = False,
    ood: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also how well other data are told from the test recordings: recordings, or "
            "pictures (idx, npz), which go in front of a simulated camera.",
        ),
    ] = None,
    data: Moved = None,
    quiet: Quiet = False,
) -> None:
    """Judge a run's model on its test points: every metric with a 95 % interval."""
    from bisnn import printing
    from bisnn.runs import evaluation, robustness
    from bisnn.shipping.energy import Costs

    costs = Costs.parse(cost or ())
    model, loaded = evaluation.load_run(run, data, show=not quiet)
    if tempered:
        model = model.tempered()
    if corruptions:
        robustness.source_of(run, loaded)  # an error before the work
    verdict = evaluation.evaluate_model(run, model, loaded, show=not quiet, costs=costs, ood=ood)
    note_if_unfinished(run, model)
    printing.print_verdict(run, verdict)
    printing.print_classes(evaluation.load_evaluation(run))
    if energy or cost:
        printing.print_ledger(verdict.energy)
    if corruptions:
        found = robustness.evaluate_corruptions(run, model, loaded, show=not quiet)
        printing.print_robustness(run, found)


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="One or several run folders.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page. Default: report.html in the run folder, or here for several."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Draw one self-contained HTML page from the files of one or several runs."""
    _write_report(runs, out, quiet)


def _write_report(runs: list[Path], out: Path | None, quiet: bool) -> None:
    from bisnn import printing
    from bisnn.reporting import page as reporting

    printing.print_report(reporting.write_report(runs, out, show=not quiet))
