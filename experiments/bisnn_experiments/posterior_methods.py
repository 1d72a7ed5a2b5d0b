"""What the study `posterior` trains and compares.

The network is small, so that two cores train all in an hour and a half: two convolutions, with
strides, in place of the paper's three. Networks of one size have the same number of updates: with
few recordings the configs' 80 epochs are too few, and a longer training was worth more than any
other change that was tried (docs/NOTEBOOK.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bisnn_experiments.posterior_runs import MEMBERS, Recipe

EPOCHS = {20: 240, 100: 100, 500: 24}  # by training recordings of each class
SIZES = tuple(EPOCHS)
WIDTHS = (32, 64)
NETWORK: dict[str, Any] = {
    "network.conv": [
        {"channels": WIDTHS[0], "kernel": 7, "padding": 3, "stride": 3},
        {"channels": WIDTHS[1], "kernel": 5, "padding": 2, "stride": 2},
    ]
}
DROPOUT = {"network.dropout": 0.5}  # before the readouts

FULL = Recipe("nmnist_full", NETWORK)
STRAIGHT = Recipe("nmnist_st", NETWORK)
STRAIGHT_DROPOUT = Recipe("nmnist_st", NETWORK | DROPOUT)
CYCLES = Recipe("nmnist_st", NETWORK | {"train.cycles": MEMBERS})
BAYES = Recipe("nmnist_bayes", NETWORK)
BAYES_DROPOUT = Recipe("nmnist_bayes", NETWORK | DROPOUT)


@dataclass(frozen=True)
class Part:
    """Members of networks that are trained alike."""

    recipe: Recipe
    networks: int = 1  # numbers 0, 1, ... of `train.member`
    members: int = 1  # of each network
    predictor: str = "members"  # see `posterior_runs.predictors_of`


@dataclass(frozen=True)
class Method:
    """A predictor of one or more networks."""

    name: str
    parts: tuple[Part, ...]

    @property
    def inferences(self) -> int:
        """Passes through a network that a prediction takes."""
        return sum(
            part.networks * (1 if part.predictor == "dropout" else part.members)
            for part in self.parts
        )


ST = "ST-BiSNN"
# Of 1, 2, ... networks, to compare with what costs as much
ENSEMBLES = tuple(
    Method(ST if k == 1 else f"{ST}, {k} networks", (Part(STRAIGHT, k, predictor="map"),))
    for k in range(1, MEMBERS + 1)
)
BASELINES = (
    Method("full precision", (Part(FULL, predictor="map"),)),
    *ENSEMBLES,
    Method(f"{ST}, dropout", (Part(STRAIGHT_DROPOUT, predictor="map"),)),
    Method(f"{ST}, dropout, 10 masks", (Part(STRAIGHT_DROPOUT, members=10, predictor="dropout"),)),
    Method(f"{ST}, 4 snapshots", (Part(CYCLES, members=MEMBERS, predictor="snapshots"),)),
)
# Which of them is judged is chosen on recordings that are held out
MAP, DRAWN = "Bayes-BiSNN, MAP", f"Bayes-BiSNN, {MEMBERS} members"
POSTERIORS = tuple(
    Method(f"{name}{suffix}", (Part(recipe, *part),))
    for recipe, suffix in ((BAYES, ""), (BAYES_DROPOUT, ", dropout"))
    for name, part in (
        (MAP, (1, 1, "map")),
        ("Bayes-BiSNN, 2 networks, MAP", (2, 1, "map")),
        (DRAWN, (1, MEMBERS)),
        ("Bayes-BiSNN, 2 networks, 2 members", (2, 2)),
    )
)
CHOSEN = "Bayes-BiSNN, 2 networks, MAP, dropout"  # docs/results/posterior_choice.json
METHODS = (*BASELINES, *POSTERIORS)
