"""`BiSNNClassifier` and `BiSNNRegressor` beside linear models and random forests: docs/SKLEARN.md.

    python -m bisnn_experiments.estimators [--jobs 2] [--out docs/results/estimators.json]
    python -m bisnn_experiments.estimators --choose [--variants ...] [--folds 2]
        [--out docs/results/estimators_choice.json]

The first judges the estimators as they come, by five-fold cross-validation on eleven tables. The
second compares settings on other tables (`estimator_tables`): the defaults were chosen so. Folds
that are there (`--runs`, out/estimators) are not trained again.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
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
from bisnn.sklearn import BiSNNClassifier, BiSNNRegressor, networks
from bisnn_experiments import results, workers
from bisnn_experiments.estimator_tables import CHOSEN_ON, JUDGED_ON, Table
from bisnn_experiments.measurement import machine
from bisnn_experiments.results import Machine

TABLES = CHOSEN_ON | JUDGED_ON
FOLDS = 5
WITHIN = {True: 0.02, False: 0.05}  # of the better other model: accuracy, or R2
NLL_WITHIN = 0.02  # of logistic regression
SECONDS = 120  # at most, for a fold on one core
WORST = 3.0  # tolerances that a table counts at most, when settings are compared

# Settings unlike the defaults; names in capitals are constants of `bisnn.sklearn.networks`
BAYES: dict[str, Any] = {"rule": "bayes"}
LONGER: dict[str, Any] = {"UPDATES": 3000, "EPOCHS": (30, 300)}
VARIANTS: dict[str, dict[str, Any]] = {
    "as judged": {},
    "rate 0.03": {"learning_rate": 0.03},
    "no dropout": {"dropout": 0.0},
    "alpha 1": {"alpha": 1.0},
    "Bayes": BAYES,
    "Bayes, rate 0.1": BAYES | {"learning_rate": 0.1},
    "Bayes, relaxed samples": BAYES | {"HARD": False},
    "Bayes, 3,000 updates, 30 epochs or more": BAYES | LONGER,
}
COMPARED = {"n_networks": 2}  # in all of them, for speed


class Task(NamedTuple):
    table: str
    fold: int
    model: str  # "bisnn", "linear" or "forest"
    variant: str = ""  # of `VARIANTS`; none for an estimator as it comes


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
    gap: float  # mean difference of the score to the better of the others
    nll_gap: float  # and of the NLL to logistic regression
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


def fold_file(runs: Path, task: Task) -> Path:
    name = f"{task.variant or task.model} on {task.table}, fold {task.fold}.json"
    return runs / ("chosen" if task.table in CHOSEN_ON else "judged") / name


def fitted_fold(runs: Path, task: Task) -> Fold:
    """Train a model on all folds but one of a table, and judge it on that one; what has been done
    before is read from its file.
    """
    file = fold_file(runs, task)
    if file.exists():
        return results.read(file, Fold)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    table = TABLES[task.table]()
    kind = StratifiedKFold if table.classes else KFold
    split = kind(FOLDS, shuffle=True, random_state=0).split(np.zeros(len(table.y)), table.y)
    train, test = list(split)[task.fold]
    began = time.process_time()
    with settled(table, task) as estimator:
        estimator.fit(table.x[train], table.y[train])
        score, nll = float(estimator.score(table.x[test], table.y[test])), None
        if table.classes:
            probabilities = estimator.predict_proba(table.x[test])
            nll = float(log_loss(table.y[test], probabilities, labels=estimator.classes_))
    seconds = time.process_time() - began
    found = Fold(
        table=task.table, model=task.model, fold=task.fold, score=score, nll=nll, seconds=seconds
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    results.write(file, found)
    return found


@contextmanager
def settled(table: Table, task: Task) -> Iterator[Any]:
    """The model of a task, with the settings of its variant."""
    if task.model != "bisnn":
        yield other_models(table)[task.model]
        return
    settings = COMPARED | VARIANTS[task.variant] if task.variant else {}
    estimator = (BiSNNClassifier if table.classes else BiSNNRegressor)(random_state=task.fold)
    estimator.set_params(**{name: settings[name] for name in settings if not name.isupper()})
    with ExitStack() as stack:
        for constant in filter(str.isupper, settings):
            stack.enter_context(patch.object(networks, constant, settings[constant]))
        yield estimator


def run(tasks: Sequence[Task], runs: Path, jobs: int) -> list[Fold]:
    sizes = {name: TABLES[name]().x.size for name in {task.table for task in tasks}}

    def length(arguments: tuple[Path, Task]) -> float:
        task = arguments[1]
        return sizes[task.table] * (10.0 if task.model == "bisnn" else 1.0)

    # The first task alone: the workers that come after it find the kernels compiled
    first = fitted_fold(runs, tasks[0])
    others = workers.run_all(
        fitted_fold,
        [(runs, task) for task in tasks[1:]],
        jobs,
        True,
        length=length,
        progress=lambda arguments: 0.0,
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
    slowest = max(f.seconds for f in folds if f.table == name and f.model == "bisnn")
    holds = {"score": score_holds, "NLL": nll_holds, "time": slowest <= SECONDS}
    misses = [what for what, held in holds.items() if held is False]
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


def judge(names: Sequence[str], runs: Path, jobs: int) -> Judgement:
    models = ("bisnn", "linear", "forest")
    tasks = [Task(name, fold, model) for model in models for name in names for fold in range(FOLDS)]
    folds = run(tasks, runs, jobs)
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
    tables, gaps, missed = dict[str, Numbers](), list[float](), list[float]()
    nll_gaps = list[float]()
    for name in dict.fromkeys(fold.table for fold in folds):
        ours, rest = by_model(folds, name)["bisnn"], by_model(others, name)
        gaps.append(ours.score - max(rest["linear"].score, rest["forest"].score))
        missed.append(tolerances(-gaps[-1], WITHIN[ours.nll is not None]))
        if ours.nll is not None and rest["linear"].nll is not None:
            nll_gaps.append(ours.nll - rest["linear"].nll)
        tables[name] = ours
    score = statistics.fmean(missed)
    nll = statistics.fmean(tolerances(gap, NLL_WITHIN) for gap in nll_gaps)
    return VariantResult(
        variant=variant,
        score_missed=score,
        nll_missed=nll,
        missed=score + nll,
        gap=statistics.fmean(gaps),
        nll_gap=statistics.fmean(nll_gaps),
        seconds=statistics.fmean(fold.seconds for fold in folds),
        tables=tables,
    )


def tolerances(short: float, tolerance: float) -> float:
    """How many tolerances a number falls short, from 0 to `WORST`."""
    return min(WORST, max(0.0, short / tolerance))


def choose(
    names: Sequence[str], variants: Sequence[str], count: int, runs: Path, jobs: int
) -> Choice:
    models = [*(("bisnn", variant) for variant in variants), ("linear", ""), ("forest", "")]
    tasks = [
        Task(name, fold, model, variant)
        for model, variant in models
        for name in names
        for fold in range(count)
    ]
    folds = run(tasks, runs, jobs)
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
    parser.add_argument("--runs", type=Path, default=Path("out/estimators"), help="single folds")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.choose:
        names = options.tables or list(CHOSEN_ON)
        choice = choose(names, options.variants, options.folds, options.runs, options.jobs)
        for each in choice.variants:
            print(
                f"{each.variant:30} missed {each.missed:.2f}: score {each.score_missed:.2f} "
                f"({each.gap:+.3f}), NLL {each.nll_missed:.2f} ({each.nll_gap:+.3f}); "
                f"{each.seconds:.0f} s"
            )
        results.write(options.out or Path("docs/results/estimators_choice.json"), choice)
        return
    found = judge(options.tables or list(JUDGED_ON), options.runs, options.jobs)
    for table in found.tables:
        print(f"{table.table:20} {table.gap:+.3f} {table.nll_gap} {table.verdict}")
    print(
        f"{found.score_holds} of {len(found.tables)}, NLL {found.nll_holds} of {found.nll_tables}"
    )
    results.write(options.out or Path("docs/results/estimators.json"), found)


if __name__ == "__main__":
    main()
