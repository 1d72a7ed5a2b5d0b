"""Which posterior the study `posterior` judges: mixtures on recordings that are held out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bisnn.runs.results import Finding
from bisnn_experiments import results
from bisnn_experiments.measurement import table
from bisnn_experiments.posterior_methods import BASELINES, ENSEMBLES, POSTERIORS, ST
from bisnn_experiments.posterior_runs import HELD
from bisnn_experiments.posterior_table import Ask, Scores, rival_of, scores_by_method

COMPARED = (*ENSEMBLES, *(m for m in BASELINES if "dropout" in m.name), *POSTERIORS)


class Candidate(Finding):
    """A method on held-out recordings, with so many training recordings of each class: means over
    the seeds.
    """

    method: str
    size: int
    nll: float
    worse_nll: float  # over all corruptions
    operations: float  # beside ST-BiSNN's
    rival: str  # the ensemble of ST-BiSNNs of the same cost
    gain: float  # mean of the logs of both NLLs, of ST-BiSNN's and of the rival's, less its own


class Choice(Finding):
    """The file of this choice."""

    command: str
    seeds: dict[int, list[int]]  # by size
    recordings: int  # held out
    best: str  # the posterior that gains most over all sizes
    rows: list[Candidate]


def candidate_of(name: str, size: int, scores: Scores) -> Candidate:
    own, st, rival = scores[name], scores[ST], rival_of(name, scores)
    clean = st["nll"].mean() / own["nll"].mean()
    worse = scores[rival]["worse_nll"].mean() / own["worse_nll"].mean()
    return Candidate(
        method=name,
        size=size,
        nll=float(own["nll"].mean()),
        worse_nll=float(own["worse_nll"].mean()),
        operations=float((own["operations"] / st["operations"]).mean()),
        rival=rival,
        gain=float(np.log([clean, worse]).mean()),
    )


def choice_of(
    ask: Ask, labels: dict[str, np.ndarray], sizes: Sequence[int], seeds: Sequence[int]
) -> Choice:
    """Score all mixtures of posteriors, and ST-BiSNN beside them."""
    rows, found = [], {}
    for size in sizes:
        scores, found[size] = scores_by_method(ask, COMPARED, labels, size, seeds, HELD)
        rows += [candidate_of(method.name, size, scores) for method in COMPARED if scores]
    if not rows:
        raise ValueError("--out: holds all networks of no seed; train them first with `train`")
    gains = {m.name: [row.gain for row in rows if row.method == m.name] for m in POSTERIORS}
    return Choice(
        command=results.command(),
        seeds=found,
        recordings=len(labels[HELD]),
        best=max(gains, key=lambda name: sum(gains[name])),
        rows=rows,
    )


def text_of(choice: Choice) -> str:
    """The rows as text."""
    lines = []
    for r in choice.rows:
        numbers = [f"{v:.4f}" for v in (r.nll, r.worse_nll, r.operations, r.gain)]
        lines.append((f"{r.size} a class, {r.method}", [*numbers, r.rival]))
    columns = ("NLL", "worse NLL", "operations", "gain", "rival")
    return f"{table('held out', columns, lines)}\n{choice.best}"
