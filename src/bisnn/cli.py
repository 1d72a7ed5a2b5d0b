"""The command line: which commands there are, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from bisnn.commands import paper, prediction, recordings, shipping, starting, training, tuning
from bisnn.errors import Interrupted, Lost, Stopped, sentence


def _epilog(*examples: str) -> str:
    return "Examples:\n\n" + "\n\n".join(f"[cyan]{example}[/cyan]" for example in examples)


def info() -> None:
    """Versions, devices, and the kernels in use."""
    from bisnn import system
    from bisnn.printing import print_facts

    print_facts(system.info())


app = typer.Typer(
    name="bisnn",
    help="Spiking neural networks with binary weights that know how sure they are.",
    epilog=_epilog(
        "bisnn try",
        "bisnn train two_moons_bayes",
        "bisnn resume runs/two_moons_bayes_seed0",
        "bisnn tune two_moons_bayes --trials 30",
        "bisnn evaluate runs/two_moons_bayes_seed0 --energy",
        "bisnn predict runs/two_moons_bayes_seed0 points.csv",
        "bisnn calibrate runs/two_moons_bayes_seed0 --data more.csv --coverage 0.9",
        "bisnn reproduce fig2",
        "bisnn report runs/two_moons_bayes_seed0",
        "bisnn export runs/two_moons_bayes_seed0 --to packed",
        "bisnn inspect recording.aedat",
        "bisnn new points.csv",
        "bisnn simulate simulated",
        "bisnn info",
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The commands in the order of the help, with examples of each.
COMMANDS: dict[Callable[..., None], list[str]] = {
    training.train: [
        "bisnn train two_moons_bayes",
        "bisnn train my.toml --out runs/mine --set rule.temperature=1e-3 --set train.epochs=100",
        "bisnn train nmnist_st --members 4",
        "torchrun --standalone --nproc-per-node 2 --max-restarts 3 -m bisnn train my.toml",
    ],
    training.resume: [
        "bisnn resume runs/two_moons_bayes_seed0",
        "bisnn resume runs/two_moons_bayes_seed0 --set train.epochs=200",
        "bisnn resume runs/gestures_seed0 --data /mnt/disk/gestures",
    ],
    tuning.tune: [
        "bisnn tune two_moons_bayes --trials 30 --minutes 10",
        "bisnn tune my.toml --jobs 4 --operations",
        "bisnn tune my.toml --storage postgresql://user@host/database --name mine",
    ],
    training.evaluate: [
        "bisnn evaluate runs/two_moons_bayes_seed0",
        "bisnn evaluate runs/two_moons_bayes_seed0 --energy",
        "bisnn evaluate runs/two_moons_bayes_seed0 --cost int_add=0.03 --cost sram_32k=15",
        "bisnn evaluate runs/nmnist_st_seed0 --corruptions",
        "bisnn evaluate runs/nmnist_st_seed0 --ood N-MNIST/Test",
    ],
    prediction.predict: [
        "bisnn predict runs/two_moons_bayes_seed0 points.csv",
        "bisnn predict runs/mine points.npy --out predictions.csv",
        "bisnn predict runs/mine points.csv --abstain 0.005",
        "bisnn predict runs/nmnist_st_seed0 N-MNIST/Test/7 recording.bin",
        "bisnn predict runs/mine --data moved/points.csv",
    ],
    prediction.calibrate: [
        "bisnn calibrate runs/mine --coverage 0.95",
        "bisnn calibrate runs/mine --data more_points.csv",
        "bisnn calibrate runs/nmnist_st_seed0 --data more_recordings --correction bonferroni",
    ],
    paper.reproduce: [
        "bisnn reproduce fig2",
        "bisnn reproduce all --seeds 5",
        "bisnn reproduce table1 --data N-MNIST --seeds 3",
    ],
    shipping.export: [
        "bisnn export runs/two_moons_bayes_seed0 --to packed",
        "bisnn export runs/two_moons_bayes_seed0 --to packed --as posterior",
        "bisnn export runs/two_moons_bayes_seed0 --to c --as map --out firmware/ --sizes",
        "bisnn export runs/two_moons_bayes_seed0 --to nir",
        "bisnn export runs/two_moons_bayes_seed0 --to web",
    ],
    shipping.try_: ["bisnn try", "bisnn try --no-open --out try.html"],
    training.report: [
        "bisnn report runs/two_moons_bayes_seed0",
        "bisnn report runs/* --out comparison.html",
    ],
    starting.new: [
        "bisnn new points.csv",
        "bisnn new gestures --out gestures.toml",
    ],
    recordings.inspect: [
        "bisnn inspect recording.aedat",
        "bisnn inspect Train/0/00002.bin --out look.png",
        "bisnn inspect gestures --out sheet.html",
    ],
    recordings.simulate: [
        "bisnn simulate simulated",
        "bisnn simulate simulated --images mnist --per-class 1000",
        "bisnn train my.toml --set data.root=simulated",
    ],
    info: ["bisnn info"],
}
for command, examples in COMMANDS.items():
    app.command(command.__name__.rstrip("_"), epilog=_epilog(*examples))(command)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        import bisnn

        typer.echo(bisnn.__version__)
        raise typer.Exit()


def main() -> None:
    """Run a command. An error of its user's is one line; BISNN_DEBUG=1 shows where it arose."""
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
        if isinstance(error, Interrupted):
            sys.exit(128 + error.signal)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _message(error: BaseException) -> str | None:
    """What to print: "" where the first process prints it, None for an error that is no user's."""
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
    # PyTorch reports it by a RuntimeError
    if isinstance(error, MemoryError) or "allocate" in str(error):
        return (
            f"{where}not enough memory: lower train.batch_size, network.layers or the number of "
            "time steps"
        )
    return None


if __name__ == "__main__":
    main()
