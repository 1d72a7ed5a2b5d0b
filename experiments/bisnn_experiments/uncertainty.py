"""How well a run's uncertainty tells recordings like those it learned from others.

    python -m bisnn_experiments.uncertainty RUN... --digits N-MNIST --images ood --known mnist \\
        --out results.json

RUN... are trained on N-MNIST, or on digits in front of the simulated MNIST-DVS camera: several
seeds and rules, on the same data. Their own test recordings are set beside others:

    other digits             --digits: N-MNIST recordings, Train and Test, of the digits that the
                             runs' classes leave out
    fashion-mnist, ...       --images: other pictures in front of a simulated camera like that of
                             the runs' recordings
    own digits, simulated    --known: a control for runs on N-MNIST, MNIST's digits of their own
                             classes in front of that camera. What tells these from the test
                             recordings is the simulation; read the sets above beside it

Scores: the entropy of the mean prediction, the mutual information of an ensemble's members, and
1 - the largest probability. AUROC is the probability that a recording of the other set scores
higher than a test recording; 0.5 is chance. "own mistakes" is the same for test recordings alone,
those predicted wrong against those predicted right. Deviations are over seeds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue

from bisnn import kernels
from bisnn.checks import positive_int
from bisnn.data import simulation
from bisnn.data.archives import NMNIST, Recordings
from bisnn.data.loading import Clips, Split
from bisnn.display import bars
from bisnn.runs import config, data_sections
from bisnn.runs import model as models
from bisnn.runs.evaluation import predictors
from bisnn.runs.inputs import load_dataset
from bisnn.runs.model import Model
from bisnn.runs.other_data import CONTROL, Filmed, Pictures, film, read_pictures
from bisnn.runs.results import Finding
from bisnn_experiments import results
from bisnn_experiments.measurement import machine, note
from bisnn_experiments.results import Machine
from bisnn_experiments.scores import OWN, ScoreRow, ScoreSummary, auroc, score, tables

IDX, KMNIST = "-images-idx3-ubyte.gz", "kmnist-test-imgs.npz"
OTHER, KNOWN = "other digits", CONTROL
# Settings in which runs of one rule may differ
FREE = ("seed", "data.root", "train.device", "train.checkpoint_seconds")


@dataclass(frozen=True)
class Run:
    """A trained run."""

    path: Path
    model: Model

    @property
    def data(self) -> Filmed:
        assert isinstance(self.model.config.data, Filmed)
        return self.model.config.data


# The runs


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Runs on the same data; those of one rule differ in their seed alone."""
    runs: list[Run] = []
    for path in paths:
        model = models.load(path)
        if not isinstance(model.config.data, Filmed):
            raise ValueError(
                "RUN: must be trained on nmnist, mnist_dvs or digits; "
                f"got {model.config.data.name} of {path}; leave it out"
            )
        runs.append(Run(path, model))
        _check_same_data(runs[0], runs[-1])
        of_rule = [run for run in runs if run.model.config.rule.name == model.config.rule.name]
        _check_other_seed(of_rule[:-1], of_rule[-1])
    return runs


def _check_same_data(first: Run, run: Run) -> None:
    a, b = (_data(r) for r in (first, run))
    for key in {**a, **b}:
        if a.get(key) != b.get(key):
            raise ValueError(
                f"RUN: all must have the same data, but for root; got data.{key} = {b.get(key)!r} "
                f"of {run.path} and {a.get(key)!r} of {first.path}; compare them in two commands"
            )


def _data(run: Run) -> dict[str, Any]:
    """The data section. Of root, only whether MNIST's digits or scikit-learn's are meant."""
    data = run.data.model_dump(exclude={"root"})
    return (
        {**data, "root": "MNIST's" if run.data.root else "scikit-learn's"}
        if isinstance(run.data, data_sections.SimulatedData)
        else data
    )


def _check_other_seed(earlier: Sequence[Run], run: Run) -> None:
    for other in earlier:
        changed = config.differences(other.model.config, run.model.config)
        rule = (
            f"RUN: runs of a rule must differ in their seed alone; got {other.path} and {run.path}"
        )
        if "seed" not in changed:
            raise ValueError(f"{rule} with the same seed; give one of them")
        if others := [key for key in changed if key not in FREE]:
            raise ValueError(
                f"{rule} with another {', '.join(others)}; compare them in two commands"
            )


def own_recordings(runs: Sequence[Run], device: str) -> list[Split]:
    """The test recordings of each run. Simulated ones are made on `device`, as all others here."""
    found: dict[str, Split] = {}
    for run in runs:
        key = run.data.model_dump_json()
        if key not in found:
            try:
                found[key] = load_dataset(run.model.config.updated(**{"train.device": device})).test
            except ValueError as error:
                raise ValueError(f"{run.path}: {error}") from None
    return [found[run.data.model_dump_json()] for run in runs]


# The other recordings


def other_digits(folder: Path, data: Filmed) -> list[Clips]:
    """N-MNIST recordings of the digits that the runs leave out."""
    digits = [digit for digit in range(10) if digit not in data.classes]
    if not digits:
        raise ValueError(
            "--digits: needs digits that the runs' classes leave out; "
            f"got all of {data.classes}; leave it out"
        )
    try:
        parts = [
            NMNIST(folder, train, classes=digits, steps=data.steps, bin_us=data.bin_us)
            for train in (True, False)
        ]
    except ValueError as error:
        raise ValueError(f"--digits: {str(error).removeprefix('root: ')}") from None
    return [_all(part) for part in parts]


def pictures(
    images: Path | None, known: Path | None, classes: Sequence[int], most: int
) -> dict[str, Pictures]:
    """The first `most` pictures of every file, and of MNIST's digits of these classes."""
    found = {}
    if images:
        for file in sorted([*images.glob(f"*{IDX}"), *images.glob(KMNIST)]):
            try:
                some = read_pictures(file)[:most].astype(np.float32) / 255
            except ValueError as error:
                raise ValueError(f"--images: {error}") from None
            name = _name(file) if _name(file) not in found else file.name
            found[name] = Pictures(torch.from_numpy(some), list(range(len(some))))
        if not found:
            raise ValueError(
                f"--images: must be a folder that holds *{IDX} or {KMNIST}; "
                f"got {images}; give that of the pictures"
            )
    if known:
        try:
            digits, labels = simulation.mnist(known)
        except ValueError as error:
            raise ValueError(f"--known: {error}") from None
        numbers = np.flatnonzero(np.isin(labels, classes))[:most]
        if not len(numbers):
            raise ValueError(
                f"--known: must hold digits of {list(classes)}; "
                f"got none in {known}; give the folder of MNIST's files"
            )
        found[KNOWN] = Pictures(digits[numbers], numbers.tolist())
    return found


def _name(file: Path) -> str:
    return "kmnist" if file.name == KMNIST else file.name.removesuffix(IDX).removesuffix("-t10k")


def _all(recordings: Recordings) -> Clips:
    return Clips(recordings, torch.arange(len(recordings)))


# What the scores tell


def judge(
    run: Run, test: Split, others: dict[str, list[Clips]], advance: Callable[[int], Any]
) -> list[ScoreRow]:
    """A row for each predictor of a run."""
    rows = []
    assert isinstance(test.x, Clips)
    for name, members in predictors(run.model).items():
        more = lambda n, members=members: advance(n * (members or 1))  # noqa: E731
        own, taken_for = score(run.model, [test.x], members, more)
        right = taken_for == test.y.numpy()
        theirs = {other: score(run.model, sets, members, more)[0] for other, sets in others.items()}
        entropies = {OWN: own["entropy"]} | {other: theirs[other]["entropy"] for other in theirs}
        rows.append(
            ScoreRow(
                method=run.model.config.rule.name,
                predictor=name,
                accuracy=float(right.mean()),
                entropy={which: float(entropy.mean()) for which, entropy in entropies.items()},
                auroc={
                    other: {kind: auroc(own[kind], scores[kind]) for kind in own}
                    for other, scores in theirs.items()
                },
                mistakes={kind: auroc(x[right], x[~right]) for kind, x in own.items()},
                run=str(run.path),
                seed=run.model.config.seed,
            )
        )
    return rows


# The command


class Uncertainty(Finding):
    """The file of this study."""

    command: str
    date: str
    machine: Machine
    device: str
    data: dict[str, JsonValue]  # the section of the runs' configs, without their root
    seeds: list[int]
    recordings: dict[str, int]  # by set
    summary: list[ScoreSummary]
    rows: list[ScoreRow]
    wall_seconds: float


def measure(args: argparse.Namespace) -> Uncertainty:
    """All that the file holds. Errors in the arguments are raised before anything takes long."""
    began = time.monotonic()
    _check(args)
    runs = load_runs(args.runs)
    data, digits, known = runs[0].data, args.digits, args.known
    if not isinstance(data, data_sections.NMNISTData):
        for option, folder in (("--digits", digits), ("--known", known)):
            if folder:
                note(f"{option}: is for runs on nmnist; these are on {data.name}: left out")
        digits = known = None
    if not (digits or known or args.images):
        raise ValueError(
            "--images: must be given where there is no other set; "
            f"got none for runs on {data.name}; give a folder"
        )
    if args.images and isinstance(data, data_sections.MNISTDVSData) and data.scale != 4:
        raise ValueError(
            "--images: is for recordings at scale 4; "
            f"got runs with data.scale = {data.scale}; leave it out"
        )
    seen = pictures(args.images, known, data.classes, args.most)
    others = {OTHER: other_digits(digits, data)} if digits else {}
    tests = own_recordings(runs, args.device)
    others |= {name: [film(name, what, data, args.device)] for name, what in seen.items()}
    rows = _measure_runs(runs, tests, others, args.device)
    sizes = {OWN: len(tests[0].x)} | {name: sum(map(len, sets)) for name, sets in others.items()}
    return Uncertainty(
        command=results.command(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=Machine(**machine()),
        device=torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        data=data.model_dump(exclude={"root"}, mode="json"),
        seeds=sorted({run.model.config.seed for run in runs}),
        recordings=sizes,
        summary=results.summarise(rows, ScoreSummary),
        rows=rows,
        wall_seconds=round(time.monotonic() - began, 1),
    )


def _check(args: argparse.Namespace) -> None:
    positive_int("--most", args.most)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "--device: must be one that PyTorch finds; got cuda, which is not here; use cpu"
        )
    if args.out.is_dir() or not args.out.parent.is_dir():
        raise ValueError(
            f"--out: must be a file in a folder that is there; got {args.out}; give another name"
        )


def _measure_runs(
    runs: Sequence[Run], tests: Sequence[Split], others: dict[str, list[Clips]], device: str
) -> list[ScoreRow]:
    away = sum(len(clips) for sets in others.values() for clips in sets)
    total = sum(
        (members or 1) * (len(test.x) + away)
        for run, test in zip(runs, tests, strict=True)
        for members in predictors(run.model).values()
    )
    rows = []
    with bars(show=True) as progress, kernels.precision("full"):
        bar = progress.add_task("recordings", total=total)
        for run, test in zip(runs, tests, strict=True):
            progress.update(bar, description=run.path.name)
            run.model.net.to(device)
            rows += judge(run, test, others, lambda n: progress.advance(bar, n))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a trained run")
    parser.add_argument(
        "--digits",
        type=Path,
        help="N-MNIST, the folder of Train and Test: the digits that the runs leave out",
    )
    parser.add_argument(
        "--images", type=Path, help=f"folder of *{IDX} (Fashion-MNIST, notMNIST) and {KMNIST}"
    )
    parser.add_argument(
        "--known", type=Path, help="folder of MNIST's train-images and train-labels"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=1000,
        help="pictures of each file, and of --known (default: 1000)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where to simulate and predict (default: cpu)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results.json"),
        help="where the JSON goes (default: results.json)",
    )
    args = parser.parse_args(arguments)
    try:
        result = measure(args)
        results.write(args.out, result)
    except (ValueError, OSError) as error:
        raise SystemExit(f"uncertainty: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(
            "uncertainty: stopped; the same command goes on with the pictures where it was"
        ) from None
    print(tables(result.summary))
    counts = ", ".join(f"{n} {name}" for name, n in result.recordings.items())
    print(f"\nrecordings: {counts}; written: {args.out}")


if __name__ == "__main__":
    main()
