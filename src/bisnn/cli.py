"""The command line: thin commands around the public functions. Nothing heavy is imported before a
command runs.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bisnn.errors import Interrupted, Lost, Stopped, sentence

if TYPE_CHECKING:
    from bisnn.runs.model import Model
    from bisnn.runs.training import TrainedRun


def _epilog(*examples: str) -> str:
    return "Examples:\n\n" + "\n\n".join(f"[cyan]{example}[/cyan]" for example in examples)


app = typer.Typer(
    name="bisnn",
    help="Spiking neural networks with binary weights that know how sure they are.",
    epilog=_epilog(
        "bisnn train two_moons_bayes",
        "bisnn resume runs/two_moons_bayes_seed0",
        "bisnn evaluate runs/two_moons_bayes_seed0 --energy",
        "bisnn predict runs/two_moons_bayes_seed0 points.csv",
        "bisnn reproduce fig2",
        "bisnn report runs/two_moons_bayes_seed0",
        "bisnn export runs/two_moons_bayes_seed0 --to packed",
        "bisnn inspect recording.aedat",
        "bisnn simulate simulated",
        "bisnn info",
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, as `bisnn train` wrote it.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]


class Figure(StrEnum):
    fig1 = "fig1"
    fig2 = "fig2"
    table1 = "table1"
    all = "all"


class Target(StrEnum):
    packed = "packed"
    c = "c"
    nir = "nir"


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


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


class Recipe(StrEnum):
    tuned = "tuned"
    paper = "paper"


@app.command(
    epilog=_epilog(
        "bisnn train two_moons_bayes",
        "bisnn train my.toml --out runs/mine --set rule.temperature=1e-3 --set train.epochs=100",
        "torchrun --standalone --nproc-per-node 2 --max-restarts 3 -m bisnn train my.toml",
    )
)
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
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Train only: no evaluation, no report.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a network, judge it on its test points, write a report."""
    from bisnn.runs import config as configs
    from bisnn.runs import training

    settings = configs.load(config, set_ or ())
    out = out or Path("runs") / f"{Path(config).stem}_seed{settings.seed}"
    _finish(training.train_run(settings, out, show=not quiet), no_report, quiet)


@app.command(
    epilog=_epilog(
        "bisnn resume runs/two_moons_bayes_seed0",
        "bisnn resume runs/two_moons_bayes_seed0 --set train.epochs=200",
    )
)
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
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Train only: no evaluation, no report.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was stopped or killed: it ends with the same bits as if it had not
    been. Or train it for longer.
    """
    from bisnn.runs import training

    _finish(training.resume_run(run, set_ or (), show=not quiet), no_report, quiet)


def _finish(run: TrainedRun, no_report: bool, quiet: bool) -> None:
    from bisnn import printing
    from bisnn.runs import evaluation

    folder = run.folder
    if os.environ.get("RANK", "0") != "0":
        return
    if no_report:
        _console().print(f"model: {folder / 'model.safetensors'}")
        return
    verdict = evaluation.evaluate_model(folder, run.model, run.data, show=not quiet)
    _say_if_unfinished(folder, run.model)
    printing.print_verdict(folder, verdict)
    _write_report([folder], None, quiet)


@app.command(
    epilog=_epilog(
        "bisnn evaluate runs/two_moons_bayes_seed0",
        "bisnn evaluate runs/two_moons_bayes_seed0 --energy",
        "bisnn evaluate runs/two_moons_bayes_seed0 --cost int_add=0.03 --cost sram_32k=15",
    )
)
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
    quiet: Quiet = False,
) -> None:
    """Judge a run's model on its test points: every metric with a 95 % interval."""
    from bisnn import printing
    from bisnn.runs import evaluation
    from bisnn.shipping.energy import Costs

    costs = Costs.parse(cost or ())
    model, data = evaluation.load_run(run, show=not quiet)
    verdict = evaluation.evaluate_model(run, model, data, show=not quiet, costs=costs)
    _say_if_unfinished(run, model)
    printing.print_verdict(run, verdict)
    if energy or cost:
        printing.print_ledger(verdict.energy)


def _say_if_unfinished(run: Path, model: Model) -> None:
    """A line on a run's model whose training stopped early, and not because the config says so."""
    from bisnn.display import note

    train = model.config.train
    if train.keep == "last" and not train.patience and model.epoch < train.epochs:
        note(
            f"{run}: its model is of epoch {model.epoch} of {train.epochs}; "
            "`bisnn resume` trains it to the end"
        )


@app.command(
    epilog=_epilog(
        "bisnn predict runs/two_moons_bayes_seed0 points.csv",
        "bisnn predict runs/mine points.npy --out predictions.csv",
        "bisnn predict runs/nmnist_st_seed0 N-MNIST/Test/7 recording.bin",
    )
)
def predict(
    run: Run,
    data: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help=(
                "CSV, TSV, NPY or NPZ: one row per point; "
                "columns by name. Or recordings, .aedat or .bin, and folders of them."
            ),
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the predictions here, as CSV.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Members of the ensemble. Default: the config's.")
    ] = None,
    map_: Annotated[
        bool, typer.Option("--map", help="The most probable weights alone, no ensemble.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Predict from a file of points, or from recordings of an event camera, with how sure the model
    is.
    """
    from bisnn import printing
    from bisnn.data import events, table, windows
    from bisnn.display import bars, note
    from bisnn.files import write_atomic
    from bisnn.runs import model as models
    from bisnn.runs.recommendation import warn_of_map

    if out is not None and (
        out.suffix.lower() != ".csv" or out.resolve() in [path.resolve() for path in data]
    ):
        raise ValueError(
            f"{out}: must be a .csv file other than the input; give e.g. --out predictions.csv"
        )
    if map_ and samples is not None:
        raise typer.BadParameter("--map and --samples exclude each other")
    model = models.load(run)
    _say_if_unfinished(run, model)
    usual: Any = None if map_ else "usual"
    if map_ and model.members is not None:
        warn_of_map(run, models.file_of(run), "leave out --map")
    files = windows.files_of(data) if model.config.recorded else []
    if not files and data[0].suffix.lower() in events.SUFFIXES:
        raise ValueError(
            f"{data[0]}: is a recording, and {run} was trained on points; "
            "give a CSV, NPY or NPZ file of them"
        )
    if not files and len(data) > 1:
        raise ValueError(
            f"{data[1]}: {run} was trained on points, which come in one file; got {len(data)}; "
            "give one at a time"
        )
    x: Any = files
    labels = None
    if not files:
        x, labels = table.read_points(data[0], model.schema, model.features)
    count = len(next(iter(x.values()))) if isinstance(x, dict) else len(x)
    with bars(show=not quiet and count > model.batch) as progress:
        bar = progress.add_task("recordings" if files else "points", total=count)
        answer = model.predict_recordings if files else model.predict
        result = answer(x, samples or usual, advance=lambda some: progress.advance(bar, some))
    if labels is not None:
        note(f"{data[0]}: {model.score(result, labels)}")
    header, rows = printing.prediction_rows(model, result)
    if files:
        header = ["file", *header]
        rows = [[str(file), *row] for file, row in zip(files, rows, strict=True)]
    if out is None and sys.stdout.isatty():
        # ten classes do not fit
        shown = [i for i, name in enumerate(header) if not (files and name.startswith("p("))]
        printing.print_rows([header[i] for i in shown], [[row[i] for i in shown] for row in rows])
    elif out is None:
        sys.stdout.write(printing.csv_text(header, rows))
    else:
        write_atomic(out, printing.csv_text(header, rows).encode())
        _console().print(f"{len(rows)} predictions: {out}")


@app.command(
    epilog=_epilog(
        "bisnn reproduce fig2",
        "bisnn reproduce all --seeds 5",
        "bisnn reproduce table1 --data N-MNIST --seeds 3",
    )
)
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
    data: Annotated[
        Path | None,
        typer.Option(
            help=(
                "table1: folder of N-MNIST, MNIST-DVS or MNIST's idx files. Default: "
                "scikit-learn's digits."
            )
        ),
    ] = None,
    device: Annotated[
        Device | None, typer.Option(help="table1: where to train. Default: a GPU if there is one.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one a core; one on a GPU.")
    ] = None,
    no_training: Annotated[
        bool,
        typer.Option("--no-training", help="Measure and draw what is there, also unfinished runs."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train the runs of the paper's figures or table, measure and draw them. The same command again
    goes on where it stopped.
    """
    from bisnn_experiments import recognition, reproduction

    out = out or Path("out") / recipe.value
    figures = ["fig1", "fig2"] if figure is Figure.all else [figure.value]
    results = reproduction.reproduce(
        figures,
        recipe.value,
        seeds=range(first_seed, first_seed + seeds),
        out=out,
        jobs=jobs,
        train=not no_training,
        show=not quiet,
        data=data,
        device=device and device.value,
    )
    console = _console()
    made = [
        f"table1_{recognition.recognised(data)[0]}" if name == "table1" else name
        for name in figures
    ]
    for name in made:
        console.print(reproduction.table(results["figures"][name]))
    console.print(
        f"results: {out / 'results.json'}, figures: "
        f"{', '.join(str(out / f'{name}.png') for name in made)}"
    )


@app.command(
    epilog=_epilog(
        "bisnn export runs/two_moons_bayes_seed0 --to packed",
        "bisnn export runs/two_moons_bayes_seed0 --to packed --as posterior",
        "bisnn export runs/two_moons_bayes_seed0 --to c --as map --out firmware/",
        "bisnn export runs/two_moons_bayes_seed0 --to nir",
    )
)
def export(
    run: Run,
    to: Annotated[
        Target,
        typer.Option(help="packed: one file for bisnn.packed. c: C99 sources. nir: a graph."),
    ] = Target.packed,
    out: Annotated[
        Path | None, typer.Option(help="File (c: folder) to write. Default: in the run folder.")
    ] = None,
    as_: Annotated[
        Predictor | None,
        typer.Option(
            "--as",
            help=(
                "map: most probable weights. members: an ensemble. posterior: "
                "8 bits a weight. Default: the better one."
            ),
        ),
    ] = None,
    members: Annotated[
        int | None, typer.Option(min=1, help="Members of the ensemble. Default: the config's.")
    ] = None,
    profile: Annotated[
        Profile,
        typer.Option(help="Of nir. cubalif: for importers that know nothing else; not exact."),
    ] = Profile.exact,
    prefix: Annotated[
        str | None,
        typer.Option(
            help=(
                "Of c: of all names and files, so that a program can hold several models. Default: "
                "model."
            )
        ),
    ] = None,
    neuron: Annotated[
        NeuronKind | None,
        typer.Option(
            help="fixed: the neurons in integers; says what that changes. Default: as trained."
        ),
    ] = None,
) -> None:
    """Ship a run's model as what it is: bits. What leaves runs without PyTorch and gives the same
    spikes.
    """
    from bisnn import printing
    from bisnn.runs import exporting
    from bisnn.runs import model as models

    predictor, source = as_ and as_.value, models.file_of(run)
    model = models.load(source)
    done = exporting.export_model(
        model,
        source,
        run,
        to.value,
        out,
        predictor=predictor,
        members=members,
        profile=profile.value,
        prefix=prefix,
        neuron=neuron and neuron.value,
    )
    _say_if_unfinished(run, model)
    printing.print_exported(to.value, done)


@app.command(
    epilog=_epilog(
        "bisnn report runs/two_moons_bayes_seed0", "bisnn report runs/* --out comparison.html"
    )
)
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
    from bisnn.reporting import page as reporting

    _console().print(f"report: {reporting.report(runs, out, show=not quiet)}")


@app.command(
    epilog=_epilog(
        "bisnn inspect recording.aedat", "bisnn inspect Train/0/00002.bin --out look.png"
    )
)
def inspect(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A recording: .aedat (AER-DAT2.0) or .bin (N-MNIST)."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also draw it: a .png, or a folder for FILE.png. Without it nothing is written."
        ),
    ] = None,
) -> None:
    """Look at a recording of an event camera: its numbers, what was skipped, and with --out a
    picture.
    """
    if out is not None and out.is_dir():
        out /= f"{file.name}.png"
    if out is not None and out.suffix.lower() != ".png":
        raise ValueError(
            f"{out}: must be a .png file; got {out.suffix or 'no suffix'!r}; "
            "give e.g. --out look.png"
        )
    from bisnn.data import events, inspection
    from bisnn.printing import print_facts

    recording = events.read_events(file)
    print_facts(inspection.facts(recording), title=str(file))
    if out is None:
        _console().print("see it: --out look.png")
    else:
        inspection.draw(recording, out)
        _console().print(f"picture: {out}")


@app.command(
    epilog=_epilog(
        "bisnn simulate simulated",
        "bisnn simulate simulated --images mnist --per-class 1000",
        "bisnn train my.toml --set data.root=simulated",
    )
)
def simulate(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder to make, in the layout of MNIST-DVS.")
    ],
    images: Annotated[
        str, typer.Option(help='Folder of MNIST\'s idx files, or "digits": those of scikit-learn.')
    ] = "digits",
    per_class: Annotated[
        int, typer.Option(min=1, max=9999, help="Recordings of each digit, at most.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the camera's noise.")] = 0,
    device: Annotated[Device, typer.Option(help="Where to simulate.")] = Device.cpu,
    quiet: Quiet = False,
) -> None:
    """Record images with a simulated event camera. The same command again goes on where it stopped."""
    from bisnn.data import simulation

    count = simulation.simulate(
        out, images, per_class=per_class, seed=seed, device=device.value, show=not quiet
    )
    _console().print(
        f"{count:,} recordings in {out / 'scale04'}; look at one with: bisnn inspect FILE"
    )


@app.command(epilog=_epilog("bisnn info"))
def info() -> None:
    """Versions, devices, and the kernels in use."""
    from bisnn import system
    from bisnn.printing import print_facts

    print_facts(system.info())


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        import bisnn

        typer.echo(bisnn.__version__)
        raise typer.Exit()


def _console() -> Any:
    from bisnn import display

    return display.console()


def main() -> None:
    """Run a command. What its user can put right is one line on stderr; BISNN_DEBUG=1 shows where
    it came from.
    """
    # Before torch loads: its idle threads would spin on the cores that our kernels' threads, or
    # other programs, want.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        _run()
    except SystemExit as done:
        if "WORLD_SIZE" not in os.environ:
            raise
        # Under torchrun gloo's threads outlive destroy_process_group, and one that drops a tensor
        # while the interpreter shuts down aborts the process (pytorch/pytorch#179291): all is
        # written by now, so leave without that.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(done.code if isinstance(done.code, int) else int(done.code is not None))


def _run() -> None:
    try:
        app()
    except SystemExit as done:  # Typer makes it of a Ctrl-C, without a word
        if done.code == 130 and os.environ.get("RANK", "0") == "0":
            print("bisnn: stopped", file=sys.stderr)
        raise
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (
        ValueError,
        OSError,
        Stopped,
        Interrupted,
        KeyboardInterrupt,
        MemoryError,
        RuntimeError,
    ) as error:
        text = _message(error)
        if text is None or os.environ.get("BISNN_DEBUG"):
            raise
        if text:
            from bisnn.display import visible

            print(visible(f"bisnn: {text}"), file=sys.stderr)
        sys.exit(
            128 + error.signal
            if isinstance(error, Interrupted)
            else 130
            if isinstance(error, KeyboardInterrupt)
            else 1
        )


def _message(error: BaseException) -> str | None:
    """What to print; nothing on a process whose first one prints it; None for an error that is no
    user's.
    """
    rank = os.environ.get("RANK", "0")
    of_all = isinstance(error, (Stopped, Interrupted, KeyboardInterrupt)) and not isinstance(
        error, Lost
    )
    if rank != "0" and (of_all or getattr(error, "from_first", False)):
        return ""
    where = "" if rank == "0" else f"process {rank}: "
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    if isinstance(error, OSError):
        return where + sentence(error)
    if isinstance(error, (ValueError, Stopped, Interrupted)):
        return where + str(error)
    # torch says it with a RuntimeError
    if isinstance(error, MemoryError) or "allocate" in str(error):
        return (
            f"{where}not enough memory: lower train.batch_size, network.layers or the number of "
            "time steps"
        )
    return None


if __name__ == "__main__":
    main()
