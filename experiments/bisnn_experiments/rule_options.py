"""What each option of the rules changes on two moons: the table of docs/NOTEBOOK.md.

    python -m bisnn_experiments.rule_options             judged on the test points
    python -m bisnn_experiments.rule_options --select    judged on 100 held-out training points, to
                                                         choose settings

Everything but the rule is equal: 40 epochs of batches of 40, cosine decay, threshold 0.5, slope 4,
readout gain 2, init 0.5.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bisnn.runs import config
from bisnn.runs.config import Config
from bisnn.runs.folder import RunFolder
from bisnn_experiments import options, reproduction
from bisnn_experiments.reproduction import Task
from bisnn_experiments.results import Row

BASE = {
    "version": 1,
    "data": {"name": "two_moons"},
    "network": {"readout_gain": 2.0},
    "neuron": {"slope": 4.0},
    "train": {"epochs": 40, "schedule": "cosine", "threads": 1},
}
ST: dict[str, Any] = {"name": "st", "lr": 3.0}
BAYES: dict[str, Any] = {"name": "bayes", "lr": 0.05, "temperature": 5e-4, "precondition": "adam"}
OPTIONS: dict[str, dict[str, Any]] = {  # learning rates from a coarse grid, judged with --select
    "ST, plain": ST,
    "ST, clip 1": {**ST, "clip": 1.0},
    "ST, momentum": {**ST, "lr": 0.1, "precondition": "momentum"},
    "ST, Adam": {**ST, "lr": 0.02, "precondition": "adam"},
    "Bop": {"name": "bop", "lr": 0.01, "threshold": 1e-3},
    "Bayes, plain, tau 1": {**BAYES, "lr": 0.5, "precondition": "none"},
    "Bayes, momentum, tau 1": {**BAYES, "lr": 0.1, "precondition": "momentum"},
    "Bayes, Adam, tau 1": BAYES,
    "Bayes, Adam, tau 0.3": {**BAYES, "tau": 0.3},
    "Bayes, Adam, tau 1 to 0.2": {**BAYES, "tau_end": 0.2, "anneal_epochs": 30},
    "Bayes, Adam, tau 1, hard": {**BAYES, "straight_through": True},
    "full precision, Adam": {"name": "full", "lr": 0.01},
}


def settings_of(name: str, seed: int, select: bool) -> Config:
    """The config of an option's run; to select, a quarter of the training points is held out."""
    settings = config.parse({**BASE, "seed": seed, "rule": OPTIONS[name]}, name)
    if not select:
        return settings
    last = settings.train.epochs
    return settings.updated(**{"data.validation": 0.25, "train.validate_every": last})


def held_out_row(task: Task) -> Row:
    """The last validation of a run as a row."""
    last = RunFolder(task.folder).read_metrics()[-1]["validation"]
    numbers = {"nll": last["loss"], "accuracy": last["accuracy"]}
    return Row(method=task.method, predictor="usual", seed=task.config.seed, **numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--select",
        action="store_true",
        help="judge on held-out training points, not on the test points",
    )
    parser.add_argument("--out", type=Path, default=Path("out/rule_options"))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    runs = args.out / ("select" if args.select else "test")
    tasks = [
        Task(
            name,
            settings_of(name, seed, args.select),
            runs / f"{name.replace(', ', '_').replace(' ', '-')}_seed{seed}",
        )
        for name in OPTIONS
        for seed in range(args.seeds)
    ]
    measured = reproduction.run_all(tasks, args.jobs, True)
    if args.select:
        rows = [held_out_row(task) for task in tasks]
    else:
        rows = [row for run in measured for row in run.rows]
    out = args.out / ("select.json" if args.select else "results.json")
    options.publish(rows, out, width=200)


if __name__ == "__main__":
    main()
