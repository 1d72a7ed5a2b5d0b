"""`BiSNNClassifier` and `BiSNNRegressor` beside linear models and random forests: docs/SKLEARN.md.

    python -m bisnn_experiments.estimators [--jobs 2] [--out docs/results/estimators.json]
    python -m bisnn_experiments.estimators --choose [--variants ...] [--seeds 2]
        [--out docs/results/estimators_choice.json]

The first judges the estimators as they come, by five-fold cross-validation on eleven tables. The
second compares settings on other tables (`estimator_tables`): the defaults were chosen so.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bisnn.runs.results import Finding
from bisnn.sklearn import BiSNNClassifier, BiSNNRegressor, members
from bisnn_experiments import results, workers
from bisnn_experiments.estimator_tables import CHOSEN_ON, JUDGED_ON, Table
from bisnn_experiments.measurement import machine
from bisnn_experiments.results import Machine

FOLDS = 5
WITHIN = {True: 0.02, False: 0.05}  # of the better other model: accuracy, or R2
NLL_WITHIN = 0.02  # of logistic regression
SECONDS = 120  # at most, for a fold on one core
WORST = 3.0  # tolerances that a table counts at most, when settings are compared

# Settings that differ from the defaults. Names in capitals are constants of `bisnn.sklearn.members`
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "learning rate 0.02": {"learning_rate": 0.02},
    "learning rate 0.1": {"learning_rate": 0.1},
    "alpha 1e-3": {"alpha": 1e-3},
    "alpha 3e-3": {"alpha": 3e-3},
    "alpha 3e-2": {"alpha": 3e-2},
    "relaxed samples": {"HARD": False},
    "relaxed samples, rate 0.1": {"HARD": False, "learning_rate": 0.1},
    "init 0.5": {"INIT": 0.5},
    "rho 0.1": {"RHO": 0.1},
    "rho 1": {"RHO": 1.0},
    "ST, rate 0.01": {"rule": "st", "learning_rate": 0.01},
    "ST, rate 0.01, dropout 0.3": {"rule": "st", "learning_rate": 0.01, "dropout": 0.3},
    "dropout 0.2": {"dropout": 0.2},
    "128 neurons": {"hidden_layer_sizes": (128,)},
    "512 neurons": {"hidden_layer_sizes": (512,)},
    "two layers": {"hidden_layer_sizes": (256, 256)},
    "4 steps": {"time_steps": 4},
    "16 steps": {"time_steps": 16},
    "4 units": {"units": 4},
    "16 units": {"units": 16},
    "readout rate 0.003": {"READOUT_LR": 0.003},
    "readout rate 0.03": {"READOUT_LR": 0.03},
    "batches of 32": {"batch_size": 32},
    "threshold 0.1": {"NEURON": replace(members.NEURON, threshold=0.1)},
    "threshold 0.6": {"NEURON": replace(members.NEURON, threshold=0.6)},
    "slope 2": {"NEURON": replace(members.NEURON, slope=2.0)},
    "slope 8": {"NEURON": replace(members.NEURON, slope=8.0)},
    "slow neurons": {"NEURON": replace(members.NEURON, tau_mem=10.0)},
    "8 networks": {"n_networks": 8},
    "4,000 updates": {"UPDATES": 4000},
}


class Fold(Finding):
    """One model on one fold of one table."""

    table: str
    model: str
    fold: int
    score: float  # accuracy or R2
    nll: float | None  # of classes
    seconds: float  # of one core, training and prediction


class Numbers(Finding):
    """Of one model, means over the folds."""

    score: float
    nll: float | None
    seconds: float


class TableResult(Finding):
    """All models on one table."""

    table: str
    rows: int
    columns: int
    measure: str  # "accuracy" or "R2"
    bisnn: Numbers
    linear: Numbers
    forest: Numbers
    slowest: float  # fold of bisnn, in seconds
    gap: float  # to the better of the others; above 0 where bisnn is better
    nll_gap: float | None  # to the linear model
    score_holds: bool
    nll_holds: bool | None
    verdict: str


class Judgement(Finding):
    """The file of the judged tables."""

    command: str
    machine: Machine
    folds: int
    tables: list[TableResult]
    score_holds: int
    nll_holds: int
    nll_tables: int
    slowest: float


class VariantResult(Finding):
    """What a choice of settings misses, in tolerances: 1 is two points of accuracy, 0.05 of R2 or
    0.02 of NLL; a table counts at most `WORST`, and at least 0.
    """

    variant: str
    score_missed: float  # means over the tables
    nll_missed: float
    missed: float  # both
    seconds: float  # of a fold
    tables: dict[str, Numbers]


class Choice(Finding):
    """The file of the tables that settings are chosen on."""

    command: str
    machine: Machine
    folds: int
    variants: list[VariantResult]


def other_models(table: Table) -> dict[str, Any]:
    """The models to compare with, each with what it needs for words and blanks."""
    words = list(table.categories)
    numbers = [j for j in range(table.x.shape[1]) if j not in words]

    def prepared(model: Any) -> Any:
        scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
        parts = [("numbers", scaled, numbers)]
        if words:
            parts.append(("words", OneHotEncoder(handle_unknown="ignore"), words))
        return make_pipeline(ColumnTransformer(parts), model)

    if table.classes:
        linear: Any = LogisticRegression(max_iter=2000)
        return {
            "linear": prepared(linear),
            "forest": prepared(RandomForestClassifier(random_state=0)),
        }
    linear = LinearRegression()
    return {"linear": prepared(linear), "forest": prepared(RandomForestRegressor(random_state=0))}


def fitted_fold(source: str, name: str, fold: int, model: str, settings: dict[str, Any]) -> Fold:
    """Train a model on all folds but one of a table, and judge it on that one."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = (CHOSEN_ON if source == "chosen" else JUDGED_ON)[name]()
    kind = StratifiedKFold if table.classes else KFold
    split = kind(FOLDS, shuffle=True, random_state=0).split(np.zeros(len(table.y)), table.y)
    train, test = list(split)[fold]
    if model == "bisnn":
        given = {name: value for name, value in settings.items() if not name.isupper()}
        estimator = (BiSNNClassifier if table.classes else BiSNNRegressor)(random_state=fold)
        estimator.set_params(**given)
    else:
        estimator = other_models(table)[model]
    began = time.process_time()
    with ExitStack() as stack:
        for constant in filter(str.isupper, settings):
            stack.enter_context(patch.object(members, constant, settings[constant]))
        estimator.fit(table.x[train], table.y[train])
    score, nll = float(estimator.score(table.x[test], table.y[test])), None
    if table.classes:
        probabilities = estimator.predict_proba(table.x[test])
        nll = float(log_loss(table.y[test], probabilities, labels=estimator.classes_))
    seconds = time.process_time() - began
    return Fold(table=name, model=model, fold=fold, score=score, nll=nll, seconds=seconds)


def run(tasks: Sequence[tuple[Any, ...]], jobs: int) -> list[Fold]:
    def length(task: tuple[Any, ...]) -> float:
        table = (CHOSEN_ON if task[0] == "chosen" else JUDGED_ON)[task[1]]()
        return table.x.size * (10.0 if task[3] == "bisnn" else 1.0)

    # The first task alone: the workers that come after it find the kernels compiled
    first = fitted_fold(*tasks[0])
    others = workers.run_all(
        fitted_fold, tasks[1:], jobs, True, length=length, progress=lambda task: 0.0
    )
    return [first, *others]


def means(folds: Sequence[Fold]) -> Numbers:
    nlls = [fold.nll for fold in folds if fold.nll is not None]
    return Numbers(
        score=statistics.fmean(fold.score for fold in folds),
        nll=statistics.fmean(nlls) if nlls else None,
        seconds=statistics.fmean(fold.seconds for fold in folds),
    )


def by_model(folds: Sequence[Fold], table: str) -> dict[str, Numbers]:
    some = [fold for fold in folds if fold.table == table]
    names = dict.fromkeys(fold.model for fold in some)
    return {name: means([fold for fold in some if fold.model == name]) for name in names}


# Judged as it comes


def table_result(name: str, folds: Sequence[Fold]) -> TableResult:
    table, found = JUDGED_ON[name](), by_model(folds, name)
    bisnn, linear, forest = found["bisnn"], found["linear"], found["forest"]
    gap = bisnn.score - max(linear.score, forest.score)
    nll_gap = None if bisnn.nll is None or linear.nll is None else bisnn.nll - linear.nll
    score_holds = gap >= -WITHIN[table.classes]
    nll_holds = None if nll_gap is None else nll_gap <= NLL_WITHIN
    misses = ["score"] * (not score_holds) + ["NLL"] * (nll_holds is False)
    slowest = max(f.seconds for f in folds if f.table == name and f.model == "bisnn")
    return TableResult(
        table=name,
        rows=table.x.shape[0],
        columns=table.x.shape[1],
        measure="accuracy" if table.classes else "R2",
        bisnn=bisnn,
        linear=linear,
        forest=forest,
        slowest=slowest,
        gap=gap,
        nll_gap=nll_gap,
        score_holds=score_holds,
        nll_holds=nll_holds,
        verdict=f"missed: {' and '.join(misses)}" if misses else "held",
    )


def judge(jobs: int, names: Sequence[str]) -> Judgement:
    models = ("bisnn", "linear", "forest")
    tasks = [
        ("judged", name, fold, model, {})
        for model in models
        for name in names
        for fold in range(FOLDS)
    ]
    folds = run(tasks, jobs)
    tables = [table_result(name, folds) for name in names]
    classes = [table for table in tables if table.nll_holds is not None]
    return Judgement(
        command=results.command(),
        machine=Machine(**machine()),
        folds=FOLDS,
        tables=tables,
        score_holds=sum(table.score_holds for table in tables),
        nll_holds=sum(bool(table.nll_holds) for table in classes),
        nll_tables=len(classes),
        slowest=max(table.slowest for table in tables),
    )


# Chosen on other tables


def variant_result(variant: str, folds: Sequence[Fold], others: Sequence[Fold]) -> VariantResult:
    tables, score_missed, nll_missed = dict[str, Numbers](), list[float](), list[float]()
    for name in dict.fromkeys(fold.table for fold in folds):
        ours, rest = by_model(folds, name)["bisnn"], by_model(others, name)
        best = max(rest["linear"].score, rest["forest"].score)
        tolerance = WITHIN[ours.nll is not None]
        score_missed.append(min(WORST, max(0.0, (best - ours.score) / tolerance)))
        if ours.nll is not None:
            over = ours.nll - (rest["linear"].nll or math.inf)
            nll_missed.append(min(WORST, max(0.0, over / NLL_WITHIN)))
        tables[name] = ours
    score, nll = statistics.fmean(score_missed), statistics.fmean(nll_missed)
    return VariantResult(
        variant=variant,
        score_missed=score,
        nll_missed=nll,
        missed=score + nll,
        seconds=statistics.fmean(fold.seconds for fold in folds),
        tables=tables,
    )


def choose(jobs: int, names: Sequence[str], variants: Sequence[str], count: int) -> Choice:
    tasks = [
        ("chosen", name, fold, model, VARIANTS.get(variant, {}))
        for variant, models in [*((v, ("bisnn",)) for v in variants), ("", ("linear", "forest"))]
        for model in models
        for name in names
        for fold in range(count)
    ]
    folds = run(tasks, jobs)
    size = len(names) * count
    others = folds[len(variants) * size :]
    found = [
        variant_result(variant, folds[i * size : (i + 1) * size], others)
        for i, variant in enumerate(variants)
    ]
    return Choice(
        command=results.command(),
        machine=Machine(**machine()),
        folds=count,
        variants=sorted(found, key=lambda each: each.missed),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--choose", action="store_true", help="compare settings on other tables")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--tables", nargs="+", help="some of the tables alone")
    parser.add_argument("--folds", type=int, default=2, help="of the tables to choose on")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.choose:
        choice = choose(
            options.jobs, options.tables or list(CHOSEN_ON), options.variants, options.folds
        )
        for each in choice.variants:
            print(
                f"{each.variant:40} missed {each.missed:.2f}: score {each.score_missed:.2f}, "
                f"NLL {each.nll_missed:.2f}; {each.seconds:.0f} s"
            )
        results.write(options.out or Path("docs/results/estimators_choice.json"), choice)
        return
    found = judge(options.jobs, options.tables or list(JUDGED_ON))
    for table in found.tables:
        print(f"{table.table:20} {table.gap:+.3f} {table.nll_gap} {table.verdict}")
    print(f"{found.score_holds} of {len(found.tables)}, NLL {found.nll_holds} of {found.nll_tables}")
    results.write(options.out or Path("docs/results/estimators.json"), found)


if __name__ == "__main__":
    main()
