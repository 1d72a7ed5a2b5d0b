"""What each option of the rules changes on two moons: the table of docs/RESULTS.md.

    python benchmarks/rule_options.py                 judged on the test points
    python benchmarks/rule_options.py --select        judged on 100 held-out training points: for
    choosing settings

Everything but the rule is equal: 40 epochs of batches of 40, cosine decay, threshold 0.5, slope 4,
    readout gain 2, init 0.5.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bisnn.runs import config
from bisnn.runs.folder import RunFolder
from bisnn_experiments import reproduction

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
    options = parser.parse_args()
    tasks, plan = [], []
    for name, rule in OPTIONS.items():
        for seed in range(options.seeds):
            settings = config.parse({**BASE, "seed": seed, "rule": rule}, name)
            if options.select:
                settings = settings.updated(
                    **{"data.validation": 0.25, "train.validate_every": settings.train.epochs}
                )
            folder = (
                options.out
                / ("select" if options.select else "test")
                / f"{name.replace(', ', '_').replace(' ', '-')}_seed{seed}"
            )
            tasks.append((settings, folder, False, True))
            plan.append((name, seed, folder))
    measured = reproduction.run_all(tasks, options.jobs, True)
    rows = []
    for (name, seed, folder), result in zip(plan, measured, strict=True):
        if options.select:
            held_out = RunFolder(folder).read_metrics()[-1]["validation"]
            rows.append(
                {
                    "method": name,
                    "seed": seed,
                    "predictor": "usual",
                    "nll": held_out["loss"],
                    "accuracy": held_out["accuracy"],
                }
            )
        else:
            rows += [{"method": name, "seed": seed, **row} for row in result["rows"]]
    results = {
        "command": " ".join(["python", *sys.argv]),
        "summary": reproduction.summary(rows),
        "rows": rows,
    }
    Console(width=200).print(
        reproduction.table({"recipe": "options", "seeds": range(options.seeds), **results})
    )
    (options.out / ("select.json" if options.select else "results.json")).write_text(
        json.dumps(results, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
