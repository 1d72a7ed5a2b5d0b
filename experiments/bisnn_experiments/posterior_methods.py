"""The methods that the study `posterior` compares in the end.

Bayes-BiSNN is a mixture of four posteriors with one member each: two trained by Adam on relaxed
samples, as in the config `nmnist_bayes`, and two by momentum on hard ones. This choice is of a
first exploration alone, with 20 recordings of each class (docs/NOTEBOOK.md): no single posterior
was better than an ST-BiSNN trained as long, of ten members or from a start or a prior at a trained
ST-BiSNN, and mixtures were at least as good as it in all three respects.
"""

from __future__ import annotations

from dataclasses import dataclass

from bisnn_experiments.posterior_runs import MEMBERS, Recipe

SIZES = (20, 100, 400)  # training recordings of each class; 100 more are held out
EPOCHS = {20: 240, 100: 80, 400: 80}  # 80 are too few for 20 recordings, of which 2 steps take all
ST, ENSEMBLE, BAYES = "ST-BiSNN", "ST-BiSNN, 4 networks", "Bayes-BiSNN, 2 + 2 posteriors"


@dataclass(frozen=True)
class Method:
    """A predictor of one or more networks."""

    name: str
    recipes: tuple[Recipe, ...]
    networks: int  # of each recipe: numbers 0, 1, ... of `train.member`
    predictor: str  # see `posterior_runs.members_of`
    members: int  # of each network

    @property
    def inferences(self) -> int:
        """Passes through a network that a prediction takes."""
        each = 1 if self.predictor == "dropout" else self.members
        return len(self.recipes) * self.networks * each


STRAIGHT = Recipe("nmnist_st")
ADAM = Recipe("nmnist_bayes")
MOMENTUM = Recipe(
    "nmnist_bayes",
    {
        "rule.precondition": "momentum",
        "rule.lr": 10.0,
        "rule.straight_through": True,
        "rule.temperature": 1e-4,
    },
)
DROPOUT = Recipe("nmnist_st", {"network.dropout": 0.2})
CYCLES = Recipe("nmnist_st", {"train.cycles": MEMBERS})
FULL = Recipe("nmnist_full")


METHODS = (
    Method("full precision", (FULL,), 1, "map", 1),
    Method(ST, (STRAIGHT,), 1, "map", 1),
    Method(ENSEMBLE, (STRAIGHT,), MEMBERS, "map", 1),
    Method("ST-BiSNN, dropout, 10 masks", (DROPOUT,), 1, "dropout", 10),
    Method("ST-BiSNN, 4 snapshots", (CYCLES,), 1, "snapshots", MEMBERS),
    Method("Bayes-BiSNN, MAP", (ADAM,), 1, "map", 1),
    Method("Bayes-BiSNN, 4 members", (ADAM,), 1, "members", MEMBERS),
    Method(BAYES, (ADAM, MOMENTUM), 2, "members", 1),
)
