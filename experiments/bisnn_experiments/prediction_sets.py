"""What prediction sets hold and how early they decide, over many splits of the test recordings.

    python -m bisnn_experiments.prediction_sets --data digits N-MNIST mnist [--seeds 5]
        [--first-seed 0] [--runs out/prediction_sets/runs] [--out out/prediction_sets/results.json]
        [--methods st bayes] [--device cuda] [--jobs 1] [--calibration 200] [--splits 100]
        [--epochs 1]

Each run's test recordings, which it was not trained on, are split at random into some to calibrate
on and others to judge, again and again. Coverage is that of the sets that are answered: a split of
a fixed pool of recordings is exchangeable, so on average over splits it may not fall below the
target, whatever the pool; what is left is the splits' own error.

--data names folders as `bisnn reproduce table1` takes them, or "digits". Runs are looked for in
--runs under the names that `bisnn reproduce table1` gives them, so that its folders serve here too;
those that are missing are trained. Without --calibration, half of the test recordings calibrate.
Where Bonferroni's correction needs more recordings than there are for so many looks, both
corrections are compared at the looks that it can have.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bisnn import conformal, kernels
from bisnn.conformal import CORRECTIONS, LOOKS, SCORES, ConformalSets, Looks
from bisnn.runs.evaluation import load_run
from bisnn.runs.guarantee import scores_of
from bisnn.runs.inputs import spikes
from bisnn.runs.results import Finding
from bisnn.shipping.energy import EARLY, ledger
from bisnn_experiments import recognition, reproduction, results
from bisnn_experiments.measurement import machine, table
from bisnn_experiments.recognition import METHODS
from bisnn_experiments.reproduction import Task
from bisnn_experiments.results import Machine

TARGETS = (0.9, 0.95, 0.99)
COUNTED = 50  # recordings whose operations are counted


class Scored(NamedTuple):
    """A run's test recordings: scores (P, N, C) of each kind at every look that is tried."""

    scores: dict[str, np.ndarray]
    labels: np.ndarray
    path: Looks

    def at(self, path: Looks) -> Scored:
        """With these of its looks alone."""
        places = [self.path.index(look) for look in path]
        return Scored({name: s[places] for name, s in self.scores.items()}, self.labels, path)


class SetSummary(Finding):
    """Means over seeds and splits."""

    data: str
    method: str
    coverage_asked: float
    correction: str
    score: str
    looks: int
    steps: int  # of a whole recording
    calibration: int  # recordings
    coverage: float
    coverage_error: float  # standard error over the splits
    set_size: float
    time_steps: float  # until the answer
    members: float | None = None  # asked for it; older files do not say
    decided: float
    accuracy_of_decided: float | None  # None where none is
    # Synaptic operations with stopping, as a share of those without, of some recordings of a split;
    # None for scores that do not ship
    operations: float | None


class Comparison(Finding):
    """Time steps until the answer, of the integer score."""

    data: str
    method: str
    coverage_asked: float
    looks: int
    joint_over_bonferroni: float
    joint_over_whole: float  # over all time steps of a recording
    margin_over_surprisal: float  # of the joint correction: what the integer score costs


class Sets(Finding):
    """The file of this study."""

    command: str
    machine: Machine
    device: str
    seeds: int
    splits: int
    summary: list[SetSummary]
    comparisons: list[Comparison]


def paths_of(steps: int, members: int, calibration: int) -> dict[float, list[Looks]]:
    """The looks that are tried at each target: the usual ones, and where Bonferroni's correction
    has too few recordings for these, as many as it has enough for. Of an ensemble also one member
    at the usual time steps, and others at the end, for recordings that it leaves undecided.
    """
    found = {}
    for target in TARGETS:
        allowed = [n for n in range(1, LOOKS + 1) if _enough(calibration, target, "bonferroni", n)]
        paths = [conformal.even_path(steps, members, n) for n in (LOOKS, *allowed[-1:])]
        if members > 1:
            paths.append(conformal.one_by_one_path(steps, members))
        found[target] = list(dict.fromkeys(paths))
    return found


def scored(folder: Path, calibration: int, device: str) -> Scored:
    """Score the test recordings of a run by its usual predictor, at every look that is tried."""
    model, data = load_run(folder, show=False)
    model.net.to(device)
    paths = paths_of(
        model.config.steps, model.size(model.members), calibration or len(data.test.x) // 2
    )
    path = tuple(sorted({look for some in paths.values() for one in some for look in one}))
    found = {kind: scores_of(model, data.test.x, model.members, path, kind) for kind in SCORES}
    return Scored(found, data.test.y.numpy(), path)


def operations(
    folder: Path, rule: ConformalSets, run: Scored, some: np.ndarray, device: str
) -> float:
    """Synaptic operations on some recordings with stopping, as a share of those without."""
    model, data = load_run(folder, show=False)
    model.net.to(device)
    answer = rule.stop(run.scores[rule.score][:, some])
    until = torch.from_numpy(answer.seen_by(model.size(model.members)))
    s = spikes(model.config, data.test.x[torch.from_numpy(some)], device=device)
    rows = ledger(model.net, s, {"": model.members}, None, model.config.seed, {"": until}).rows
    return rows[EARLY].synaptic_operations / rows[""].synaptic_operations


def judged(rule: ConformalSets, scores: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    """Coverage, set size, time steps, members, share decided, accuracy of these."""
    answer = rule.stop(scores)
    inside = answer.hold(labels)
    right = inside[answer.decided].mean() if answer.decided.any() else np.nan
    means = (inside, answer.sizes, answer.steps, answer.members, answer.decided)
    return (*(float(part.mean()) for part in means), float(right))


def splits(count: int, n: int, calibration: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Recordings to calibrate on and to judge: the same splits for all that is compared."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        order = rng.permutation(n)
        yield order[:calibration], order[calibration:]


def calibrated(run: Scored, some: np.ndarray, target: float, how: tuple[str, str]) -> ConformalSets:
    """Thresholds from some of the recordings, by a correction and a score."""
    correction, score = how
    return conformal.calibrate_sets(
        run.scores[score][:, some],
        run.labels[some],
        run.path,
        target,
        correction=correction,
        score=score,
    )


def summaries(
    data: str,
    method: str,
    runs: Sequence[Scored],
    count: int,
    calibration: int,
    folders: Sequence[Path] = (),
    device: str = "cpu",
) -> Iterator[SetSummary]:
    """A row for each target, number of looks, correction and score that so many recordings allow;
    operations are counted where the runs' folders are given.
    """
    last = runs[0].path[-1]
    for target, paths in paths_of(*last, calibration).items():
        for path in paths:
            for correction in CORRECTIONS:
                if not _enough(calibration, target, correction, len(path)):
                    continue
                for score in SCORES:
                    how = (correction, score)
                    rules = [
                        (seen, calibrated(seen, some, target, how), others)
                        for seen in (run.at(path) for run in runs)
                        for some, others in splits(count, len(seen.labels), calibration)
                    ]
                    found = [
                        judged(rule, seen.scores[score][:, others], seen.labels[others])
                        for seen, rule, others in rules
                    ]
                    means = np.mean([row[:5] for row in found], 0).tolist()
                    coverage, size, steps, members, decided = means
                    right = [row[5] for row in found if not np.isnan(row[5])]
                    saved = [
                        operations(folder, rule, seen, others[:COUNTED], device)
                        for folder, (seen, rule, others) in zip(
                            folders, rules[::count], strict=False
                        )
                        if score == "margin"
                    ]
                    # Seeds share the recordings and the splits: these are what is independent
                    of_splits = np.reshape([row[0] for row in found], (len(runs), count)).mean(0)
                    error = np.std(of_splits, ddof=1) / np.sqrt(count)
                    yield SetSummary(
                        data=data.replace("_", " "),
                        method=method,
                        coverage_asked=target,
                        correction=correction,
                        score=score,
                        looks=len(path),
                        steps=last[0],
                        calibration=calibration,
                        coverage=coverage,
                        coverage_error=float(error),
                        set_size=size,
                        time_steps=steps,
                        members=members,
                        decided=decided,
                        accuracy_of_decided=float(np.mean(right)) if right else None,
                        operations=float(np.mean(saved)) if saved else None,
                    )


def _enough(calibration: int, target: float, correction: str, looks: int) -> bool:
    """Whether so many recordings allow this coverage."""
    try:
        conformal.check_enough(calibration, target, correction, looks)
    except ValueError:
        return False
    return True


def comparisons(rows: Sequence[SetSummary]) -> Iterator[Comparison]:
    """Of the corrections and the scores, wherever there are both."""
    found = {(r.data, r.method, r.coverage_asked, r.looks, r.correction, r.score): r for r in rows}
    for key in dict.fromkeys(key[:4] for key in found):
        joint, plain, other = (
            found.get((*key, *how))
            for how in (("joint", "margin"), ("bonferroni", "margin"), ("joint", "surprisal"))
        )
        if joint and plain and other:
            yield Comparison(
                data=joint.data,
                method=joint.method,
                coverage_asked=joint.coverage_asked,
                looks=joint.looks,
                joint_over_bonferroni=joint.time_steps / plain.time_steps,
                joint_over_whole=joint.time_steps / joint.steps,
                margin_over_surprisal=joint.time_steps / other.time_steps,
            )


def tasks_of(data: str, options: argparse.Namespace) -> dict[str, list[Task]]:
    """The runs on some data, by method, in folders named as `bisnn reproduce` names them."""
    kind, configs = recognition.experiment(None if data == "digits" else data, "tuned")
    changes = {"train.threads": 1, "train.device": options.device}
    changes |= {"train.epochs": options.epochs} if options.epochs else {}
    return {
        end: [
            Task(
                label,
                configs[label].updated(seed=seed, **changes),
                options.runs / f"{kind}_{end}_tuned_seed{seed}",
            )
            for seed in range(options.first_seed, options.first_seed + options.seeds)
        ]
        for label, end in METHODS.items()
        if end in options.methods
    }


def measure(options: argparse.Namespace) -> list[SetSummary]:
    """Train what is missing, and judge all."""
    plan = {data: tasks_of(data, options) for data in options.data}
    tasks = [task for methods in plan.values() for some in methods.values() for task in some]
    # Unfinished runs are trained to the end, others taken as they are
    missing = [task for task in tasks if not (task.folder / "evaluation.json").exists()]
    if missing:
        reproduction.run_all(missing, options.jobs, True)
    rows: list[SetSummary] = []
    for data, methods in plan.items():
        for method, some in methods.items():
            folders = [task.folder for task in some]
            with kernels.precision("full"):
                runs = [scored(folder, options.calibration, options.device) for folder in folders]
            calibration = options.calibration or len(runs[0].labels) // 2
            name = recognition.recognised(None if data == "digits" else data)[0]
            how = (options.splits, calibration, folders, options.device)
            rows += summaries(name, method, runs, *how)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["digits"])
    parser.add_argument("--methods", nargs="+", default=["st", "bayes"], choices=METHODS.values())
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("out/prediction_sets/runs"))
    parser.add_argument("--out", type=Path, default=Path("out/prediction_sets/results.json"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--calibration", type=int, default=0)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--epochs", type=int, help="of new runs, in place of their configs'")
    options = parser.parse_args(arguments)
    rows = measure(options)
    columns = {"coverage": "coverage", "error": "coverage_error", "set size": "set_size"}
    columns |= {"time steps": "time_steps", "decided": "decided", "right": "accuracy_of_decided"}
    columns |= {"operations": "operations"}
    lines = [
        (
            f"{row.data} {row.method}, {row.coverage_asked:g}, {row.looks}, {row.correction}, "
            f"{row.score}",
            [getattr(row, name) for name in columns.values()],
        )
        for row in rows
    ]
    print(table("data, target, looks, correction, score", tuple(columns), lines))
    found = Sets(
        command=results.command(),
        machine=Machine(**machine()),
        device=torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        seeds=options.seeds,
        splits=options.splits,
        summary=rows,
        comparisons=list(comparisons(rows)),
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results.write(options.out, found)


if __name__ == "__main__":
    main()
