"""What a guarantee is worth where the test recordings are unlike those that calibrated it.

    python -m bisnn_experiments.other_writers [--seeds 5] [--first-seed 0] [--jobs 2]
        [--out out/other_writers]

scikit-learn's digits: most of the test recordings were written by other people than the training
recordings. Runs of configs/digits_st.toml hold a quarter of the training recordings out, calibrate
on that share, as `bisnn calibrate RUN` does, and are judged on all test recordings. Runs that are
there are not trained again. It writes OUT/results.json; docs/results/other_writers.json is a copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bisnn.conformal import PredictionSets
from bisnn.runs import config, guarantee
from bisnn.runs.evaluation import load_run
from bisnn.runs.results import Finding
from bisnn_experiments import reproduction, results
from bisnn_experiments.measurement import machine
from bisnn_experiments.prediction_sets import TARGETS
from bisnn_experiments.reproduction import Task
from bisnn_experiments.results import Machine, Mean, over_seeds

SHARE = 0.25


class Promised(Finding):
    """What was asked for, and the coverage that was found, over the seeds."""

    coverage_asked: float
    coverage: Mean


class OtherWriters(Finding):
    """The file of this study."""

    command: str
    machine: Machine
    seeds: int
    calibration: int  # recordings
    judged: int
    summary: list[Promised]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/other_writers"))
    options = parser.parse_args(arguments)
    changes = {"data.validation": SHARE, "train.threads": 1, "train.device": "cpu"}
    chosen = config.load("digits_st").updated(**changes)
    tasks = [
        Task("ST-BiSNN", chosen.updated(seed=seed), options.out / "runs" / f"seed{seed}")
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    reproduction.run_all(
        [task for task in tasks if not (task.folder / "evaluation.json").exists()],
        options.jobs,
        True,
    )
    found: dict[float, list[float]] = {}
    for task in tasks:
        model, data = load_run(task.folder, show=False)
        assert data.validation is not None
        held_out, y = data.validation, data.test.y.numpy()
        for target in TARGETS[:2]:  # what so few recordings allow
            rule = guarantee.calibrated(
                model, held_out.x, held_out.y.numpy(), target, samples=model.members
            )
            answer = guarantee.answers(replace(model, guarantee=rule), data.test.x)
            assert isinstance(answer, PredictionSets)
            found.setdefault(target, []).append(float(answer.hold(y).mean()))
    results.write(
        options.out / "results.json",
        OtherWriters(
            command=results.command(),
            machine=Machine(**machine()),
            seeds=options.seeds,
            calibration=len(held_out.y),
            judged=len(y),
            summary=[
                Promised(coverage_asked=target, coverage=over_seeds(values))
                for target, values in found.items()
            ],
        ),
    )


if __name__ == "__main__":
    main()
