"""What `FixedSRM`, the neuron in integers, changes in the predictions of trained networks.

    python -m bisnn_experiments.fixed_point [--seeds 5] [--out out/fixed_point] [--jobs 2]

Networks are trained with the float SRM, and judged on their test points with either neuron on the
same weights. Differences are paired, point by point, with intervals over seeds and points. Runs
that are there are not trained again. It writes OUT/results.json; docs/results/fixed_point.json is a
copy.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bisnn import intervals
from bisnn.packed import Engine
from bisnn.runs import config, model
from bisnn.runs.exporting import describe_model
from bisnn.runs.inputs import load_dataset, spikes
from bisnn.shipping import conversion
from bisnn_experiments import reproduction, results
from bisnn_experiments.measurement import machine, table

CONFIGS = ("two_moons_st", "two_moons_bayes", "digits_st", "digits_bayes")
FRACTION = 12


def compare_neurons(folder: Path) -> dict[str, Any]:
    """Predict with either neuron: which test points are right, and what differs."""
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
    return {"right": right, "changes": asdict(conversion.changes(before, after, batches))}


def summary(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """A row: accuracies with either neuron, their difference, what differs, over all seeds."""
    right = np.array([run["right"] for run in runs], float)  # (seeds, 2, points)
    lost = right[:, 0] - right[:, 1]
    low, high = intervals.of_crossed_mean(lost)
    totals = {key: sum(run["changes"][key] for run in runs) for key in runs[0]["changes"]}
    decisions = (totals["changed_decisions"], totals["recordings"])
    changed = dict(zip(("low", "high"), intervals.of_share(*decisions), strict=True))
    changed["value"] = decisions[0] / decisions[1]
    data, rule = name.rsplit("_", 1)
    return {
        "data": data.replace("_", " "),
        "method": rule,
        "accuracy": {"srm": float(right[:, 0].mean()), "fixed": float(right[:, 1].mean())},
        "lost": {"value": float(lost.mean()), "low": float(low), "high": float(high)},
        "changed_spikes": totals["changed_spikes"] / totals["spikes"],
        "changed_decisions": changed,
        "lost_by_seed": lost.mean(1).tolist(),
        "totals": totals,
    }


def cells(row: dict[str, Any]) -> list[float]:
    """The numbers of a row in per cent, as the table shows them."""
    shares = [*row["accuracy"].values(), *row["lost"].values()]
    return [
        100 * share for share in (*shares, row["changed_spikes"], row["changed_decisions"]["value"])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/fixed_point"))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    plan = {
        name: [options.out / f"{name}_seed{seed}" for seed in range(options.seeds)]
        for name in CONFIGS
    }
    tasks = [
        (config.load(name, [f"seed={seed}", "train.threads=1"]), folder, False, True)
        for name, folders in plan.items()
        for seed, folder in enumerate(folders)
    ]
    reproduction.run_all(tasks, options.jobs, True)
    rows = [summary(name, [compare_neurons(folder) for folder in plan[name]]) for name in CONFIGS]
    columns = ("accuracy, SRM", "FixedSRM", "points lost", "low", "high", "spikes", "decisions")
    print(table("in %", columns, [(f"{row['data']}, {row['method']}", cells(row)) for row in rows]))
    about = {"command": results.command(), "machine": machine(), "seeds": options.seeds}
    results.write(options.out / "results.json", about | {"fraction": FRACTION, "summary": rows})


if __name__ == "__main__":
    main()
