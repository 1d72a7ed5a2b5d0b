"""What the study `posterior` trains and compares.

The network is the paper's at half its width, so that a hundred and eighty of them can be trained.
All of one size have the same number of updates: with few recordings the configs' 80 epochs are too
few, and a longer training was worth more than any other change that was tried (docs/NOTEBOOK.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bisnn_experiments.posterior_runs import MEMBERS, Recipe

EPOCHS = {20: 240, 100: 100, 500: 32}  # by training recordings of each class
SIZES = tuple(EPOCHS)
WIDTHS = (32, 64, 64)
NETWORK: dict[str, Any] = {
    "network.conv": [
        {"channels": WIDTHS[0], "kernel": 7, "padding": 3, "pool": 2},
        {"channels": WIDTHS[1], "kernel": 7, "padding": 3},
        {"channels": WIDTHS[2], "kernel": 7, "padding": 3, "pool": 2},
    ]
}
HARD = {"rule.precondition": "momentum", "rule.lr": 10.0, "rule.straight_through": True}

FULL = Recipe("nmnist_full", NETWORK)
STRAIGHT = Recipe("nmnist_st", NETWORK)
DROPOUT = Recipe("nmnist_st", NETWORK | {"network.dropout": 0.2})
CYCLES = Recipe("nmnist_st", NETWORK | {"train.cycles": MEMBERS})
ADAM = Recipe("nmnist_bayes", NETWORK)
MOMENTUM = Recipe("nmnist_bayes", NETWORK | HARD | {"rule.temperature": 1e-4})
STRONG = Recipe("nmnist_bayes", NETWORK | HARD | {"rule.temperature": 1e-3})


@dataclass(frozen=True)
class Part:
    """Members of networks that are trained alike."""

    recipe: Recipe
    networks: int = 1  # numbers 0, 1, ... of `train.member`
    members: int = 1  # of each network
    predictor: str = "members"  # see `posterior_runs.members_of`


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


ST, ENSEMBLE = "ST-BiSNN", "ST-BiSNN, 4 networks"
BASELINES = (
    Method("full precision", (Part(FULL, predictor="map"),)),
    Method(ST, (Part(STRAIGHT, predictor="map"),)),
    Method(ENSEMBLE, (Part(STRAIGHT, MEMBERS, predictor="map"),)),
    Method("ST-BiSNN, dropout, 10 masks", (Part(DROPOUT, members=10, predictor="dropout"),)),
    Method("ST-BiSNN, 4 snapshots", (Part(CYCLES, members=MEMBERS, predictor="snapshots"),)),
    Method("Bayes-BiSNN, MAP", (Part(ADAM, predictor="map"),)),
)
# Of four members each, as the ensemble of ST-BiSNNs: which of them is judged is chosen on
# recordings that are held out
POSTERIORS = (
    Method("Adam", (Part(ADAM, members=4),)),
    Method("momentum", (Part(MOMENTUM, members=4),)),
    Method("strong prior", (Part(STRONG, members=4),)),
    Method("2 by Adam", (Part(ADAM, 2, 2),)),
    Method("2 by momentum", (Part(MOMENTUM, 2, 2),)),
    Method("Adam and momentum", (Part(ADAM, 1, 2), Part(MOMENTUM, 1, 2))),
    Method("2 by Adam, 2 by momentum", (Part(ADAM, 2), Part(MOMENTUM, 2))),
    Method("Adam and strong prior", (Part(ADAM, 1, 2), Part(STRONG, 1, 2))),
    Method("momentum and strong prior", (Part(MOMENTUM, 1, 2), Part(STRONG, 1, 2))),
    Method("2 by Adam, momentum, strong prior", (Part(ADAM, 2), Part(MOMENTUM), Part(STRONG))),
    Method("Adam, 2 by momentum, strong prior", (Part(ADAM), Part(MOMENTUM, 2), Part(STRONG))),
)
CHOSEN = "2 by Adam"  # docs/results/posterior_choice.json
METHODS = (*BASELINES, *POSTERIORS)
