"""What options of the training change on scikit-learn's digits: the table of docs/NOTEBOOK.md.

    python -m bisnn_experiments.recording_options

Augmentation, dropout, the schedule, time constants, gradients through time and more. Each seed
holds out another fifth of the training recordings, most of which other people wrote than the rest,
and is judged on it: the test recordings stay unread. A row is one of the configs `digits_*` with
one thing changed; the first of a method has nothing changed but for `START`: the configs as they
were when most rows were measured, at half the epochs they have now.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from bisnn import metrics
from bisnn.data.loading import LoadedData, Split
from bisnn.display import bars
from bisnn.runs import config, evaluation, loop
from bisnn.runs.config import Config
from bisnn.runs.inputs import load_dataset
from bisnn.runs.processes import Processes
from bisnn_experiments.options import publish
from bisnn_experiments.results import Row

PLAIN = {"augment.rotate": 0.0, "augment.zoom": 0.0, "augment.shift": 0}
TURNED = {"augment.rotate": 5.0, "augment.zoom": 0.05}
USUAL = {"rule.betas": [0.9, 0.999]}
BPTT = {"network.gradient": "bptt"}
LONGER = {"train.epochs": 40}
# The configs as they are now, but for the number of epochs
AS_SHIPPED = {f"as shipped, {epochs} epochs": {"train.epochs": epochs} for epochs in (32, 40)}
# What all rows of a method have, unless they say otherwise
START: dict[str, dict[str, Any]] = {
    "full": {"train.epochs": 20},
    "st": {"train.epochs": 20, "augment.rotate": 0.0, "augment.zoom": 0.0},
    "bayes": {
        "train.epochs": 20,
        "augment.rotate": 0.0,
        "augment.zoom": 0.0,
        "rule.lr": 0.4,
        "rule.tau": 1.0,
        "rule.straight_through": True,
    },
}
RELAXED = {"rule.straight_through": False, "rule.tau": 0.5}
SLOWER = LONGER | RELAXED | {"rule.lr": 0.2}
UNCHANGED: dict[str, Any] = {}
# Of each method, by name
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "full": {
        "as it is": UNCHANGED,
        "40 epochs": LONGER,
        "no augmentation": PLAIN,
        "shifted, not turned": PLAIN | {"augment.shift": 1},
        "gradients through layers and time": BPTT,
    },
    "st": {
        "as it is": UNCHANGED,
        "40 epochs": LONGER,
        "40 epochs, turned and resized besides": LONGER | TURNED,
        "no augmentation": PLAIN,
        "turned and resized besides": TURNED,
        "drop 0.2 and jitter 1 besides": {"augment.drop": 0.2, "augment.jitter": 1},
        "dropout 0.3": {"network.dropout": 0.3},
        "constant learning rate": {"train.schedule": "constant"},
        "tau 10, 6, 2 as in the authors' code": {
            "neuron.tau_mem": 10.0,
            "neuron.tau_syn": 6.0,
            "neuron.tau_ref": 2.0,
        },
        "Adam's usual betas": USUAL,
        "gradients through layers and time": BPTT,
    },
    "bayes": {
        "as it is": UNCHANGED,
        "40 epochs": LONGER,
        "no augmentation": PLAIN,
        "relaxed samples, tau 0.5": RELAXED,
        "40 epochs, relaxed samples": LONGER | RELAXED,
        "40 epochs, relaxed samples, lr 0.2": SLOWER,
        "40 epochs, relaxed samples, lr 0.2, turned and resized": SLOWER | TURNED,
        "Adam's usual betas": USUAL,
        "gradients through layers and time": BPTT,
    },
}
FOLDS = 5


def held_out(settings: Config, show: bool = False, given: None = None) -> LoadedData:
    """The config's data with a fifth of the training recordings held out; its seed says which."""
    data = load_dataset(settings, show)
    n, fold = len(data.train.y), settings.seed % FOLDS
    out = torch.zeros(n, dtype=torch.bool)
    out[n * fold // FOLDS : n * (fold + 1) // FOLDS] = True
    train, validation = (
        Split(data.train.x[part.nonzero()[:, 0]], data.train.y[part]) for part in (~out, out)
    )
    return dataclasses.replace(data, train=train, validation=validation)


def judge(method: str, option: str, seed: int) -> list[Row]:
    """Train one run, which is kept in memory alone; returns a row for each of its predictors."""
    torch.set_num_threads(1)
    start = {} if option in AS_SHIPPED else START[method]
    settings = config.load(f"digits_{method}").updated(
        seed=seed, **start | (OPTIONS[method] | AS_SHIPPED)[option]
    )
    loop.load_dataset = held_out  # type: ignore[assignment, attr-defined]
    run = loop.Training(settings, Processes(0, 1, torch.device("cpu")))
    validation = run.data.validation
    assert validation is not None
    run.data = dataclasses.replace(run.data, validation=None)  # judged once, at the end
    while not run.finished:
        run.update()
    model = run.trained_model()
    rows = []
    for name, members in evaluation.predictors(model).items():
        probs = model.predict_points(validation.x, members).mean
        numbers = {
            metric: metrics.METRICS[metric](probs, validation.y)
            for metric in ("accuracy", "nll", "ece")
        }
        rows.append(Row(method=f"{method}: {option}", predictor=name, seed=seed, **numbers))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=FOLDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="only options with this text in their name"
    )
    parser.add_argument("--out", type=Path, default=Path("out/recording_options.json"))
    args = parser.parse_args()
    load_dataset(config.load("digits_st"))  # the cache, before several processes want it
    chosen = [
        (method, name)
        for method, options in OPTIONS.items()
        for name in options | AS_SHIPPED
        if args.only in name
    ]
    if not chosen:
        parser.error(
            f"--only: no option has {args.only!r} in its name; the names are the keys of OPTIONS"
        )
    tasks = [(method, name, seed) for method, name in chosen for seed in range(args.seeds)]
    pool = ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn"))
    rows: list[Row] = []
    with pool, bars(show=True) as progress:
        judged = pool.map(judge, *zip(*tasks, strict=True))
        for result in progress.track(judged, len(tasks), description="runs"):
            rows += result
    publish(rows, args.out, width=120)


if __name__ == "__main__":
    main()
