"""What `FixedSRM`, the neuron in integers, changes in the predictions of trained networks.

    python -m bisnn_experiments.fixed_point [--seeds 5] [--first-seed 0] [--out out/fixed_point]
        [--jobs 2]

Networks are trained with the float SRM, and judged on their test points with either neuron on the
same weights. Differences are paired, point by point, with intervals over seeds and points. Runs
that are there are not trained again. It writes OUT/results.json; docs/results/fixed_point.json is a
copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bisnn import intervals
from bisnn.intervals import Interval
from bisnn.packed import Engine
from bisnn.runs import config, model
from bisnn.runs.exporting import describe_model
from bisnn.runs.inputs import load_dataset, spikes
from bisnn.runs.results import Finding, Metric
from bisnn.shipping import conversion
from bisnn.shipping.conversion import Changes
from bisnn_experiments import reproduction, results
from bisnn_experiments.measurement import machine, table
from bisnn_experiments.reproduction import Task
from bisnn_experiments.results import Machine

CONFIGS = ("two_moons_st", "two_moons_bayes", "digits_st", "digits_bayes")
FRACTION = 12


class Compared(NamedTuple):
    """A network's predictions with either neuron."""

    right: list[np.ndarray]  # which test points are, with SRM and with FixedSRM
    changes: Changes


class Accuracies(Finding):
    """With either neuron."""

    srm: float
    fixed: float


class NeuronSummary(Finding):
    """What the neuron changes, over all seeds; shares of points or spikes."""

    data: str
    method: str
    accuracy: Accuracies
    lost: Metric
    changed_spikes: float
    changed_decisions: Metric
    lost_by_seed: list[float]
    totals: Changes


class FixedPoint(Finding):
    """The file of this study."""

    command: str
    machine: Machine
    seeds: int
    fraction: int
    summary: list[NeuronSummary]


def compare_neurons(folder: Path) -> Compared:
    """Predict the test points of a run with either neuron."""
    trained = model.load(folder)
    points, labels = load_dataset(trained.config, show=False).test
    batches = [
        spikes(trained.config, points[index]).numpy()
        for index in torch.arange(len(points)).split(trained.batch)
    ]
    before = describe_model(trained, "map" if trained.members is None else "members")
    after = conversion.converted(before, "fixed", FRACTION)
    right = [
        np.concatenate([Engine(network).predict(x).mean.argmax(-1) for x in batches])
        == labels.numpy()
        for network in (before, after)
    ]
    return Compared(right, conversion.changes(before, after, batches))


def summary(name: str, runs: Sequence[Compared]) -> NeuronSummary:
    """Accuracies with either neuron, their difference, what differs, over all seeds."""
    right = np.array([run.right for run in runs], float)  # (seeds, 2, points)
    lost = right[:, 0] - right[:, 1]
    totals = Changes(*map(sum, zip(*(astuple(run.changes) for run in runs), strict=True)))
    assert totals.changed_decisions is not None
    decisions = (totals.changed_decisions, totals.recordings)
    data, rule = name.rsplit("_", 1)
    return NeuronSummary(
        data=data.replace("_", " "),
        method=rule,
        accuracy=Accuracies(srm=right[:, 0].mean(), fixed=right[:, 1].mean()),
        lost=Interval(lost.mean(), *map(float, intervals.of_crossed_mean(lost))),
        changed_spikes=totals.changed_spikes / totals.spikes,
        changed_decisions=Interval(decisions[0] / decisions[1], *intervals.of_share(*decisions)),
        lost_by_seed=lost.mean(1).tolist(),
        totals=totals,
    )


def cells(row: NeuronSummary) -> list[float]:
    """The numbers of a row in per cent, as the table shows them."""
    accuracies = (row.accuracy.srm, row.accuracy.fixed)
    shares = (*accuracies, *row.lost, row.changed_spikes, row.changed_decisions.value)
    return [100 * share for share in shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/fixed_point"))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    plan = {
        name: [
            options.out / f"{name}_seed{seed}"
            for seed in range(options.first_seed, options.first_seed + options.seeds)
        ]
        for name in CONFIGS
    }
    tasks = [
        Task(name, config.load(name, [f"seed={seed}", "train.threads=1"]), folder)
        for name, folders in plan.items()
        for seed, folder in enumerate(folders, options.first_seed)
    ]
    reproduction.run_all(tasks, options.jobs, True)
    rows = [summary(name, [compare_neurons(folder) for folder in plan[name]]) for name in CONFIGS]
    columns = ("accuracy, SRM", "FixedSRM", "points lost", "low", "high", "spikes", "decisions")
    print(table("in %", columns, [(f"{row.data}, {row.method}", cells(row)) for row in rows]))
    found = FixedPoint(
        command=results.command(),
        machine=Machine(**machine()),
        seeds=options.seeds,
        fraction=FRACTION,
        summary=rows,
    )
    results.write(options.out / "results.json", found)


if __name__ == "__main__":
    main()
