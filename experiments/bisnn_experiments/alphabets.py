"""What more levels per weight are worth: binary, ternary, four levels, full precision.

    python -m bisnn_experiments.alphabets [--data NAME] [--device cuda] [--seeds N]
        [--first-seed N] [--jobs N]

Two moons and scikit-learn's digits, or a folder of N-MNIST, MNIST-DVS or MNIST. Each row is the
shipped config of its data and rule with `network.weights` changed and nothing tuned for it; the
test set is read once, at the end of a run. Steps of ST-BiSNN are scaled with the size of the levels
(see `scaled`). Interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bisnn.alphabet import alphabet_of
from bisnn.runs import config as configs
from bisnn.runs.config import Config
from bisnn.runs.results import Finding
from bisnn.runs.rule_sections import STRule
from bisnn_experiments import recognition, reproduction, results
from bisnn_experiments.reproduction import Task
from bisnn_experiments.results import Row, Study, Summary

LEVELS: dict[str, Any] = {"binary": "binary", "ternary": "ternary", "4 levels": [-3, -1, 1, 3]}
FULL = {"name": "full", "lr": 0.01, "optimizer": "adam"}  # on two moons, which has no such config


def scaled(config: Config, weights: Any) -> Config:
    """The config with other weights.

    The gradient of a weight is as large as kappa, so inversely to the levels' root mean square r;
    latents of ST-BiSNN are as large as the levels. So that a step goes as far, measured in levels,
    its learning rate is multiplied by r^2, behind Adam by r, and its clip by the largest level.
    """
    alphabet, changes = alphabet_of(weights), {"network.weights": weights}
    if isinstance(config.rule, STRule) and alphabet is not None:
        power = 1 if config.rule.precondition == "adam" else 2
        changes["rule.lr"] = config.rule.lr * alphabet.rms**power
        if config.rule.clip is not None:
            changes["rule.clip"] = config.rule.clip * alphabet.reach
    return config.updated(**changes)


def methods(data: str) -> tuple[str, dict[str, dict[str, Config]]]:
    """Name of the data, and of each rule the config of each kind of weights."""
    if data == "two_moons":
        kind, full = data, configs.load("two_moons_st").updated(rule=FULL)
        rules = {rule: configs.load(f"two_moons_{rule}") for rule in ("bayes", "st")}
    else:
        kind, chosen = recognition.experiment(None if data == "digits" else data, "tuned")
        by_rule = {config.rule.name: config for config in chosen.values()}
        full, rules = by_rule["full"], {rule: by_rule[rule] for rule in ("bayes", "st")}
    found = {
        rule: {name: scaled(config, weights) for name, weights in LEVELS.items()}
        for rule, config in rules.items()
    }
    return kind, {**found, "full": {"full precision": full}}


class Alphabets(Finding):
    """The file of this study."""

    data: dict[str, Study]


def measure(method: str, config: Config, folder: Path, *_: bool) -> list[Row]:
    """Train (or go on, or take what is there) and evaluate; a row for each predictor."""
    return recognition.rows(method, config.seed, reproduction.ensure_judged(config, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data",
        action="append",
        help="two_moons, digits, or a folder of recordings or images; by default the first two",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("out/alphabets"), help="their folders")
    parser.add_argument("--out", type=Path, default=Path("docs/results/alphabets.json"))
    options = parser.parse_args()
    earlier = results.read(options.out, Alphabets).data if options.out.exists() else {}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    plan: dict[str, list[Task]] = {}
    for data in options.data or ["two_moons", "digits"]:
        kind, chosen = methods(data)
        plan[kind] = [
            Task(
                f"{rule}, {weights}",
                config.updated(seed=seed, **{"train.device": options.device, "train.threads": 1}),
                options.runs / f"{kind}_{rule}_{weights.replace(' ', '_')}_{seed}",
            )
            for seed in seeds
            for rule, by_weights in chosen.items()
            for weights, config in by_weights.items()
        ]
    tasks = [task for of_data in plan.values() for task in of_data]
    measured = iter(reproduction.run_all(tasks, options.jobs, True, measure))
    found = {}
    for kind, of_data in plan.items():
        rows = [row for _ in of_data for row in next(measured)]
        found[kind] = Study(
            command=results.command(),
            device=options.device,
            summary=results.summarise(rows, Summary),
            rows=rows,
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results.write(options.out, Alphabets(data=earlier | found))


if __name__ == "__main__":
    main()
