"""What prediction sets hold and how early they decide, over many splits of the test recordings.

    python -m bisnn_experiments.prediction_sets [--seeds 5] [--out out/prediction_sets] [--jobs 2]
        [--configs digits_st digits_bayes] [--calibration 200] [--splits 100]

Each run's test recordings, which it was not trained on, are split at random into some to calibrate
on and others to judge, again and again. Coverage is that of the sets that are answered: a split of
a fixed pool of recordings is exchangeable, so on average over splits it may not fall below the
target, whatever the pool; what is left is the splits' own error. Runs that are there are not
trained again. It writes OUT/results.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bisnn import conformal
from bisnn.conformal import CORRECTIONS, SCORES, ConformalSets
from bisnn.runs import config
from bisnn.runs.evaluation import load_run
from bisnn.runs.guarantee import scores_of
from bisnn.runs.results import Finding
from bisnn_experiments import reproduction, results
from bisnn_experiments.measurement import machine, table
from bisnn_experiments.reproduction import Task
from bisnn_experiments.results import Machine

CONFIGS = ("digits_st", "digits_bayes")
TARGETS = (0.9, 0.95, 0.99)


class Scored(NamedTuple):
    """A run's test recordings: scores (P, N, C) of each kind, and classes."""

    scores: dict[str, np.ndarray]
    labels: np.ndarray
    path: conformal.Looks


class SetSummary(Finding):
    """Means over seeds and splits."""

    data: str
    method: str
    coverage_asked: float
    correction: str
    score: str
    steps: int  # of a whole recording
    coverage: float
    coverage_error: float  # standard error over the splits
    set_size: float
    time_steps: float  # until the answer
    decided: float
    accuracy_of_decided: float


class Sets(Finding):
    """The file of this study."""

    command: str
    machine: Machine
    seeds: int
    splits: int
    calibration: int  # recordings
    summary: list[SetSummary]


def scored(folder: Path) -> Scored:
    """Score the test recordings of a run by its usual predictor."""
    model, data = load_run(folder, show=False)
    path = conformal.even_path(model.config.steps, model.members or 1)
    found = {kind: scores_of(model, data.test.x, model.members, path, kind) for kind in SCORES}
    return Scored(found, data.test.y.numpy(), path)


def judged(rule: ConformalSets, scores: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    """Coverage, set size, time steps, share decided, accuracy of these."""
    answer = rule.stop(scores)
    inside = answer.sets[np.arange(len(labels)), labels]
    right = inside[answer.decided].mean() if answer.decided.any() else np.nan
    means = (inside, answer.sizes, answer.steps, answer.decided)
    return (*(float(part.mean()) for part in means), float(right))


def splits(run: Scored, count: int, calibration: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Recordings to calibrate on and to judge: the same splits for all that is compared."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        order = rng.permutation(len(run.labels))
        yield order[:calibration], order[calibration:]


def summaries(
    name: str, runs: Sequence[Scored], count: int, calibration: int
) -> Iterator[SetSummary]:
    """A row for each target, correction and score that so many recordings allow."""
    data, method = name.rsplit("_", 1)
    for target in TARGETS:
        for correction in CORRECTIONS:
            if not _enough(calibration, target, correction, len(runs[0].path)):
                continue
            for score in SCORES:
                found = [
                    judged(
                        conformal.calibrate_sets(
                            run.scores[score][:, some],
                            run.labels[some],
                            run.path,
                            target,
                            correction=correction,
                            score=score,
                        ),
                        run.scores[score][:, others],
                        run.labels[others],
                    )
                    for run in runs
                    for some, others in splits(run, count, calibration)
                ]
                coverage, size, steps, decided, right = np.nanmean(found, 0).tolist()
                error = np.std([row[0] for row in found], ddof=1) / np.sqrt(len(found))
                yield SetSummary(
                    data=data.replace("_", " "),
                    method=method,
                    coverage_asked=target,
                    correction=correction,
                    score=score,
                    steps=runs[0].path[-1][0],
                    coverage=coverage,
                    coverage_error=float(error),
                    set_size=size,
                    time_steps=steps,
                    decided=decided,
                    accuracy_of_decided=right,
                )


def _enough(calibration: int, target: float, correction: str, looks: int) -> bool:
    """Whether so many recordings allow this coverage; the joint correction bounds by half."""
    try:
        if correction == "joint":
            conformal.order(calibration - calibration // 2, target)
        else:
            conformal.order(calibration, target, looks)
    except ValueError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/prediction_sets"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--configs", nargs="+", default=CONFIGS)
    parser.add_argument("--calibration", type=int, default=200)
    parser.add_argument("--splits", type=int, default=100)
    options = parser.parse_args()
    plan = {
        name: [options.out / f"{name}_seed{seed}" for seed in range(options.seeds)]
        for name in options.configs
    }
    tasks = [
        Task(name, config.load(name, [f"seed={seed}", "train.threads=1"]), folder)
        for name, folders in plan.items()
        for seed, folder in enumerate(folders)
    ]
    reproduction.run_all(tasks, options.jobs, True)
    rows = [
        row
        for name, folders in plan.items()
        for row in summaries(
            name, [scored(folder) for folder in folders], options.splits, options.calibration
        )
    ]
    columns = {"coverage": "coverage", "error": "coverage_error", "set size": "set_size"}
    columns |= {"time steps": "time_steps", "decided": "decided", "right": "accuracy_of_decided"}
    lines = [
        (
            f"{row.data} {row.method}, {row.coverage_asked:g}, {row.correction}, {row.score}",
            [getattr(row, name) for name in columns.values()],
        )
        for row in rows
    ]
    print(table("data, target, correction, score", tuple(columns), lines))
    found = Sets(
        command=results.command(),
        machine=Machine(**machine()),
        seeds=options.seeds,
        splits=options.splits,
        calibration=options.calibration,
        summary=rows,
    )
    results.write(options.out / "results.json", found)


if __name__ == "__main__":
    main()
