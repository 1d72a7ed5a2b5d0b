"""Which posterior the study `posterior` judges: mixtures on recordings that are held out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bisnn.runs.results import Finding
from bisnn_experiments import results
from bisnn_experiments.measurement import table
from bisnn_experiments.posterior_methods import BASELINES, ENSEMBLE, POSTERIORS, ST
from bisnn_experiments.posterior_runs import HELD
from bisnn_experiments.posterior_table import Ask, scores_by_method

COMPARED = (*(m for m in BASELINES if m.name in (ST, ENSEMBLE)), *POSTERIORS)


class Candidate(Finding):
    """A method on held-out recordings, with so many training recordings of each class: means over
    the seeds.
    """

    method: str
    size: int
    nll: float
    worse_nll: float  # over all corruptions
    operations: float  # beside ST-BiSNN's


class Choice(Finding):
    """The file of this choice."""

    command: str
    seeds: dict[int, list[int]]  # by size
    recordings: int  # held out
    best: str  # the posterior of the lowest geometric mean of both NLLs over all sizes
    rows: list[Candidate]


def choice_of(
    ask: Ask, labels: dict[str, np.ndarray], sizes: Sequence[int], seeds: Sequence[int]
) -> Choice:
    """Score all mixtures of posteriors, and ST-BiSNN beside them."""
    rows, found = [], {}
    for size in sizes:
        scores, found[size] = scores_by_method(ask, COMPARED, labels, size, seeds, HELD)
        rows += [
            Candidate(
                method=method.name,
                size=size,
                nll=float(scores[method.name]["nll"].mean()),
                worse_nll=float(scores[method.name]["worse_nll"].mean()),
                operations=float(
                    (scores[method.name]["operations"] / scores[ST]["operations"]).mean()
                ),
            )
            for method in COMPARED
            if scores
        ]
    if not rows:
        raise ValueError("--out: holds all networks of no seed; train them first with `train`")

    def price(name: str) -> float:
        return float(np.mean([np.log([r.nll, r.worse_nll]) for r in rows if r.method == name]))

    return Choice(
        command=results.command(),
        seeds=found,
        recordings=len(labels[HELD]),
        best=min((method.name for method in POSTERIORS), key=price),
        rows=rows,
    )


def text_of(choice: Choice) -> str:
    """The rows as text."""
    lines = [
        (f"{r.size} a class, {r.method}", [f"{v:.4f}" for v in (r.nll, r.worse_nll, r.operations)])
        for r in choice.rows
    ]
    return f"{table('held out', ('NLL', 'worse NLL', 'operations'), lines)}\n{choice.best}"
