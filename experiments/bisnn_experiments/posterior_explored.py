"""What exploring found: candidates of the study `posterior`, on held-out training recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bisnn.runs.results import Finding
from bisnn_experiments import posterior_runs, results
from bisnn_experiments.posterior_runs import CLEAN, OTHER, Said
from bisnn_experiments.posterior_table import entropy, placements, pooled, temperature_of

# Networks of several seeds and candidates as one: candidate, predictor, members of each network
MIXTURES = {
    "ST-BiSNN, 2 networks": (("st, 240 epochs", "map", 1),),
    "2 posteriors by Adam, 2 members of each": (("adam, 240 epochs", "members", 2),),
    "2 posteriors by momentum, 2 members of each": (("momentum, 240 epochs", "members", 2),),
    "2 posteriors by Adam, 2 by momentum, 1 member of each": (
        ("adam, 240 epochs", "members", 1),
        ("momentum, 240 epochs", "members", 1),
    ),
}
MIXED = (20, (0, 100))  # size, and the seeds


class Explored(Finding):
    """A predictor of one network, or a mixture of several."""

    candidate: str
    predictor: str
    size: int  # recordings of each class
    seed: int  # the first of several
    temperature: float  # fitted on the held-out recordings
    accuracy: float
    nll: float  # at temperatures fitted on the other half of the recordings
    worse_accuracy: float  # means over the corruptions
    worse_nll: float
    auroc: float  # of the entropy, for other digits


class Exploration(Finding):
    """The file of this study."""

    command: str
    networks: int
    rows: list[Explored]


def judged(said: dict[str, Said], labels: dict[str, np.ndarray]) -> dict[str, float]:
    """The numbers of a predictor that says this of every set of recordings."""
    y, halves = labels[CLEAN], np.arange(len(labels[CLEAN])) % 2
    clean = said[CLEAN]
    nll = np.empty(len(y))
    for half in (0, 1):
        fitted, other = (Said(*(part[:, halves == h] for part in clean)) for h in (half, 1 - half))
        predicted = pooled([other], temperature_of([fitted], y[halves == half]))
        nll[halves != half] = -predicted[np.arange(len(predicted)), y[halves != half]]
    temperature = temperature_of([clean], y)
    log_p = {name: pooled([one], temperature) for name, one in said.items()}
    worse = [name for name in said if name not in (CLEAN, OTHER)]
    right = {name: float((log_p[name].argmax(-1) == labels[name]).mean()) for name in said}
    rows = {name: np.arange(len(labels[name])) for name in worse}
    numbers = {
        "temperature": temperature,
        "accuracy": right[CLEAN],
        "nll": float(nll.mean()),
        "worse_accuracy": float(np.mean([right[name] for name in worse])),
        "worse_nll": float(
            np.mean([-log_p[name][rows[name], labels[name]].mean() for name in worse])
        ),
        "auroc": float(placements(entropy(log_p[CLEAN]), entropy(log_p[OTHER]))[0].mean()),
    }
    return {name: round(value, 4) for name, value in numbers.items()}


def _mixed(
    read: Mapping[tuple[str, int, int], dict[str, dict[str, Said]]],
    parts: Sequence[tuple[str, str, int]],
) -> dict[str, Said]:
    """What the members of several networks say, as those of one."""
    size, seeds = MIXED
    each = [
        {name: one.some(count) for name, one in read[candidate, size, seed][predictor].items()}
        for candidate, predictor, count in parts
        for seed in seeds
    ]
    return {
        name: Said(
            *(np.concatenate(arrays) for arrays in zip(*(of[name] for of in each), strict=True))
        )
        for name in each[0]
    }


def explored(files: Sequence[Path], labels: dict[str, np.ndarray]) -> Exploration:
    """A row for each predictor of each network."""
    rows: list[Explored] = []
    read: dict[tuple[str, int, int], dict[str, dict[str, Said]]] = {}

    def add(candidate: str, predictor: str, size: int, seed: int, said: dict[str, Said]) -> None:
        names = {"candidate": candidate, "predictor": predictor, "size": size, "seed": seed}
        rows.append(Explored.model_validate(names | judged(said, labels)))

    for file in files:
        found, about = posterior_runs.read_said(file)
        place = (about["label"], about["size"], about["seed"])
        read[place] = found
        for predictor, said in found.items():
            add(place[0], predictor, *place[1:], said)
    size, seeds = MIXED
    for name, parts in MIXTURES.items():
        places = [(candidate, size, seed) for candidate, _, _ in parts for seed in seeds]
        if all(place in read for place in places):
            add(name, "mixture", size, seeds[0], _mixed(read, parts))
    return Exploration(command=results.command(), networks=len(files), rows=rows)
