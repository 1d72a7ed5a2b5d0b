"""Whether `bisnn tune` finds what people found: 30 trials against the configs that are shipped.

    python -m bisnn_experiments.tuning [--trials 30] [--seeds 5] [--jobs 2] [--minutes 8]
        [--only CASE...] [--out out/tuning]

Two configs on scikit-learn's digits in front of the simulated camera, and one on a table that is
made, with the defaults that tables have. Each search begins at random: the shipped settings are not
among its trials, and each trial is judged on a fifth of the training data. The winner and the
shipped config are then trained on all of it with seeds that the search has not seen, and judged
once on the test data, seed beside seed. Searches and runs that are there are not done again, so
the same command goes on where `--minutes` or a kill ended it. It writes OUT/results.json.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification

from bisnn import metrics
from bisnn.runs import config
from bisnn.runs.config import Config
from bisnn.runs.evaluation import load_evaluation
from bisnn.runs.results import Evaluation, Finding, Metric
from bisnn.tuning.search import Tuned, tune
from bisnn.tuning.space import search_space
from bisnn_experiments import reproduction, results
from bisnn_experiments.measurement import machine, note, table
from bisnn_experiments.reproduction import Task
from bisnn_experiments.results import Machine, Mean

CASES = ("digits_bayes", "digits_st", "table")
TRAIN, TEST = 1000, 4000  # rows of the table
FIRST_SEED = 100  # of the runs that are judged on test data; the search has seed 0


class TuningCase(Finding):
    """A search, and its winner beside the shipped config on the test data."""

    case: str
    trials: int
    pruned: int
    validation_nll: float  # of the winner, in the search
    settings: dict[str, Any]  # of the winner: those that were searched
    seeds: int
    shipped_nll: Mean
    tuned_nll: Mean
    shipped_accuracy: Mean
    tuned_accuracy: Mean
    nll_difference: Metric  # tuned minus shipped, over points and seeds
    no_worse: bool  # whether the interval reaches 0 or below


class TuningStudy(Finding):
    """The file of this study."""

    command: str
    machine: Machine
    cases: list[TuningCase]


def write_table(folder: Path) -> Path:
    """A table of three classes, with features of use, copies of these, and noise, as two files."""
    x, y = make_classification(
        TRAIN + TEST,
        20,
        n_informative=8,
        n_redundant=4,
        n_classes=3,
        flip_y=0.03,
        random_state=7,
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", slice(None, TRAIN)), ("test", slice(TRAIN, None))):
        np.savez(folder / f"{name}.npz", x=x[rows], y=y[rows])
    return folder


def shipped(case: str, out: Path, epochs: int | None) -> Config:
    """The config that a search has to match; with `epochs`, trained for less, to try this out."""
    if case != "table":
        found = config.load(case)
    else:
        folder = write_table(out / "table").resolve()
        data = {
            "name": "table",
            "train": str(folder / "train.npz"),
            "test": str(folder / "test.npz"),
        }
        settings = {"version": 1, "data": data, "rule": {"name": "bayes"}, "train": {"epochs": 20}}
        found = config.parse(settings, "table")
    return found if epochs is None else found.updated(**{"train.epochs": epochs})


def judge(method: str, settings: Config, folder: Path, *others: Any) -> None:
    """Train a run and judge it on the test data, as far as that is not done yet."""
    reproduction.ensure_judged(settings, folder)


def compared(case: str, found: Tuned, runs: dict[str, list[Path]], keys: list[str]) -> TuningCase:
    judged = {name: [load_evaluation(folder) for folder in runs[name]] for name in runs}
    probs = {name: [_usual(run) for run in judged[name]] for name in judged}
    y = judged["shipped"][0].y
    assert all(torch.equal(run.y, y) for some in judged.values() for run in some)
    difference = metrics.paired("nll", probs["tuned"], probs["shipped"], y)
    means = {
        f"{name}_{metric}": results.over_seeds([metrics.METRICS[metric](p, y) for p in probs[name]])
        for name in probs
        for metric in ("nll", "accuracy")
    }
    settings = found.best.model_dump()
    return TuningCase(
        case=case,
        trials=found.finished,
        pruned=found.pruned,
        validation_nll=found.value,
        settings={key: settings[key.split(".")[0]][key.split(".")[1]] for key in keys},
        seeds=len(runs["tuned"]),
        nll_difference=difference,
        no_worse=difference.low <= 0,
        **means,
    )


def _usual(run: Evaluation) -> torch.Tensor:
    """Predictions of the run's ensemble, or of its one set of weights."""
    return list(run.predictors.values())[-1].mean


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="at a time, of all searches together")
    parser.add_argument("--minutes", type=float, help="of the searches, in this call")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="CASE")
    parser.add_argument("--epochs", type=int, help="in place of the configs', to try this out")
    parser.add_argument("--out", type=Path, default=Path("out/tuning"))
    args = parser.parse_args()
    cases = {case: shipped(case, args.out, args.epochs) for case in args.only}
    began = time.monotonic()

    def search(case: str) -> Tuned:
        found = tune(
            cases[case].updated(**{"train.threads": 1}),
            args.out / f"search_{case}",
            trials=args.trials,
            minutes=args.minutes,
            jobs=max(1, args.jobs // len(cases)),
            show=False,
        )
        minutes = (time.monotonic() - began) / 60
        note(f"{case}: {found.finished} trials, best NLL {found.value:.4f}, {minutes:.1f} min")
        return found

    with ThreadPoolExecutor(len(cases)) as pool:
        tuned = dict(zip(cases, pool.map(search, cases), strict=True))
    if any(found.finished < args.trials for found in tuned.values()):
        note("the searches have not ended; the same command goes on")
        return
    runs = {
        case: {
            name: [args.out / f"{case}_{name}_seed{FIRST_SEED + i}" for i in range(args.seeds)]
            for name in ("shipped", "tuned")
        }
        for case in cases
    }
    tasks = [
        Task(name, settings.updated(seed=FIRST_SEED + i, **{"train.threads": 1}), folder)
        for case in cases
        for name, settings in (("shipped", cases[case]), ("tuned", tuned[case].best))
        for i, folder in enumerate(runs[case][name])
    ]
    reproduction.run_all(tasks, args.jobs, True, judge)
    found = [
        compared(case, tuned[case], runs[case], list(search_space(cases[case]))) for case in cases
    ]
    lines = [
        (
            row.case,
            [row.shipped_nll.mean, row.tuned_nll.mean, *row.nll_difference, row.no_worse],
        )
        for row in found
    ]
    print(table("case", ("shipped", "tuned", "difference", "low", "high", "no worse"), lines))
    study = TuningStudy(command=results.command(), machine=Machine(**machine()), cases=found)
    results.write(args.out / "results.json", study)


if __name__ == "__main__":
    main()
