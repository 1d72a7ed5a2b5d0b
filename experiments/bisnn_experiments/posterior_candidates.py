"""What the study `posterior` tries on training recordings, in the order in which it was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bisnn_experiments.posterior_runs import Recipe

Seeds = Mapping[int, tuple[int, ...]]  # by recordings of each class

ONE = {20: (0,), 100: (0,)}
TWO = {20: (0, 100), 100: (0, 100)}  # two networks on the same recordings
THREE = {20: (0, 100, 1), 100: (0, 100, 1)}  # and one on others
# Twice four networks on the same recordings: what an ensemble of them says
FOURS = {size: (0, 100, 200, 300, 1, 101, 201, 301) for size in (20, 100)}


@dataclass(frozen=True)
class Candidate:
    """A way to train, and how many networks are trained so: seeds, for each size."""

    recipe: Recipe
    seeds: Seeds = field(default_factory=lambda: ONE)


def _st(seeds: Seeds = ONE, **settings: Any) -> Candidate:
    return Candidate(Recipe("nmnist_st", _dotted(settings)), seeds)


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("__", "."): value for key, value in settings.items()}


def _bayes(
    seeds: Seeds = ONE,
    *,
    start: float | None = None,
    prior: float | None = None,
    by_layer: dict[str, tuple[float, ...]] | None = None,
    **settings: Any,
) -> Candidate:
    recipe = Recipe("nmnist_bayes", _dotted(settings), start, prior, by_layer or {})
    return Candidate(recipe, seeds)


MOMENTUM: dict[str, Any] = {
    "rule__precondition": "momentum",
    "rule__lr": 10.0,
    "rule__straight_through": True,
    "rule__temperature": 1e-4,
}

FIRST = {
    "st": _st(FOURS),
    "st, 240 epochs": _st(TWO, train__epochs=240),
    "st, batches of 16": _st(TWO, train__batch_size=16),
    "st, momentum, lr 1": _st(
        rule__precondition="momentum", rule__lr=1.0, network__readout_gain=8.0
    ),
    "st, momentum, lr 10": _st(
        rule__precondition="momentum", rule__lr=10.0, network__readout_gain=8.0
    ),
    "st, dropout 0.2": _st(network__dropout=0.2),
    "st, dropout 0.5": _st(network__dropout=0.5),
    "st, 4 cycles": _st(train__cycles=4),
    "st, 4 cycles, 160 epochs": _st(train__cycles=4, train__epochs=160),
    "st, 4 cycles, 320 epochs": _st(train__cycles=4, train__epochs=320),
    "full": Candidate(Recipe("nmnist_full"), TWO),
    "adam": _bayes(FOURS),
    "adam, hard": _bayes(TWO, rule__straight_through=True),
    "adam, tau 0.25": _bayes(rule__tau=0.25),
    "adam, tau 1": _bayes(rule__tau=1.0),
    "adam, tau 2": _bayes(rule__tau=2.0),
    "adam, tau 1 to 0.1": _bayes(rule__tau=1.0, rule__tau_end=0.1, rule__anneal_epochs=80),
    "adam, rho 1e-4": _bayes(rule__temperature=1e-4),
    "adam, rho 3e-4": _bayes(rule__temperature=3e-4),
    "adam, init 0.5": _bayes(network__init=0.5),
    "adam, gain 4": _bayes(network__readout_gain=4.0),
    "adam, lr 0.03": _bayes(rule__lr=0.03),
    "adam, lr 0.3": _bayes(rule__lr=0.3),
    "adam, 4 samples": _bayes(train__samples=4),
    "adam, 240 epochs": _bayes(TWO, train__epochs=240),
    "adam, batches of 16": _bayes(train__batch_size=16),
    "adam, 240 epochs, lr 0.03": _bayes(train__epochs=240, rule__lr=0.03),
    "adam, dropout 0.2": _bayes(network__dropout=0.2),
    "momentum": _bayes(FOURS, **MOMENTUM),
    "momentum, lr 3": _bayes(**MOMENTUM | {"rule__lr": 3.0}),
    "momentum, lr 30": _bayes(**MOMENTUM | {"rule__lr": 30.0}),
    "momentum, rho 1e-5": _bayes(TWO, **MOMENTUM | {"rule__temperature": 1e-5}),
    "momentum, rho 3e-4": _bayes(**MOMENTUM | {"rule__temperature": 3e-4}),
    "momentum, rho 1e-3": _bayes(**MOMENTUM | {"rule__temperature": 1e-3}),
    "momentum, relaxed": _bayes(**MOMENTUM | {"rule__straight_through": False}),
    "momentum, tau 1": _bayes(**MOMENTUM, rule__tau=1.0),
    "momentum, tau 0.25": _bayes(**MOMENTUM, rule__tau=0.25),
    "momentum, gain 4": _bayes(**MOMENTUM, network__readout_gain=4.0),
    "momentum, gain 16": _bayes(**MOMENTUM, network__readout_gain=16.0),
    "momentum, init 0.5": _bayes(**MOMENTUM, network__init=0.5),
    "momentum, 4 samples": _bayes(**MOMENTUM, train__samples=4),
    "momentum, 240 epochs": _bayes(TWO, **MOMENTUM, train__epochs=240),
    "momentum, 240 epochs, rho 1e-5": _bayes(
        **MOMENTUM | {"rule__temperature": 1e-5}, train__epochs=240
    ),
    "momentum, batches of 16": _bayes(**MOMENTUM, train__batch_size=16),
    "momentum, betas 0.97": _bayes(**MOMENTUM | {"rule__lr": 3.0}, rule__betas=[0.97, 0.999]),
    "momentum, dropout 0.2": _bayes(**MOMENTUM, network__dropout=0.2),
    "from st at 0.5, adam, lr 0.03": _bayes(start=0.5, rule__lr=0.03),
    "from st at 1, adam, lr 0.01": _bayes(TWO, start=1.0, rule__lr=0.01),
    "from st at 1, adam, lr 0.03": _bayes(TWO, start=1.0, rule__lr=0.03),
    "from st at 1, adam, lr 0.1": _bayes(start=1.0),
    "from st at 2, adam, lr 0.01": _bayes(start=2.0, rule__lr=0.01),
    "from st at 2, adam, lr 0.03": _bayes(start=2.0, rule__lr=0.03),
    "from st at 0.5, momentum": _bayes(start=0.5, **MOMENTUM),
    "from st at 1, momentum": _bayes(TWO, start=1.0, **MOMENTUM),
    "from st at 1, momentum, rho 1e-5": _bayes(start=1.0, **MOMENTUM | {"rule__temperature": 1e-5}),
    "from st at 2, momentum": _bayes(start=2.0, **MOMENTUM),
    "prior st at 1, adam, rho 1e-4": _bayes(prior=1.0, rule__temperature=1e-4),
    "prior st at 1, momentum, rho 1e-4": _bayes(prior=1.0, **MOMENTUM),
    "prior st at 1, momentum, rho 1e-3": _bayes(
        prior=1.0, **MOMENTUM | {"rule__temperature": 1e-3}
    ),
    "from and prior st at 1, momentum, rho 1e-3": _bayes(
        start=1.0, prior=1.0, **MOMENTUM | {"rule__temperature": 1e-3}
    ),
    "from and prior st at 1, adam, rho 1e-4": _bayes(
        start=1.0, prior=1.0, rule__lr=0.03, rule__temperature=1e-4
    ),
    "momentum, rho 1e-4, 1e-5, 1e-6": _bayes(
        by_layer={"temperature": (1e-4, 1e-5, 1e-6)}, **MOMENTUM
    ),
    "momentum, rho 1e-6, 1e-5, 1e-4": _bayes(
        by_layer={"temperature": (1e-6, 1e-5, 1e-4)}, **MOMENTUM
    ),
    "adam, tau 1, 0.5, 0.25": _bayes(by_layer={"tau": (1.0, 0.5, 0.25)}),
    "adam, tau 0.25, 0.5, 1": _bayes(by_layer={"tau": (0.25, 0.5, 1.0)}),
}

# The first list showed that 80 epochs are too few for few recordings: with 240, all rules come out
# alike. From here on all networks take 1,000 updates or so.
UPDATES = {20: 500, 100: 143}  # epochs
HUNDRED = {100: (0,)}
FOUR = {100: (0, 100, 200, 300), 20: (0, 100, 200, 300)}
PAIR = {100: (0, 100)}


def _longer(
    method: str, seeds: Seeds = HUNDRED, start: float | None = None, **settings: Any
) -> dict[str, Candidate]:
    """The same candidate for each size, with its number of epochs."""
    about = ", ".join(f"{key.rpartition('__')[2]} {value}" for key, value in settings.items())
    label = ", ".join(part for part in (method, about) if part)
    config = {"st": "nmnist_st", "full": "nmnist_full"}.get(method, "nmnist_bayes")
    own = MOMENTUM if "momentum" in method else {}
    return {
        f"{label}, longer, {size}": Candidate(
            Recipe(config, {**_dotted({**own, **settings}), "train.epochs": UPDATES[size]}, start),
            {size: seeds[size]},
        )
        for size in seeds
    }


SECOND = {
    **_longer("st", FOUR),
    **_longer("momentum", FOUR),
    **_longer("adam", FOUR),
    **_longer("momentum", PAIR, network__dropout=0.3),
    **_longer("adam", PAIR, network__dropout=0.3),
    **_longer("st", PAIR, network__dropout=0.3),
    **_longer("full", {100: (0,), 20: (0,)}),
    **_longer("momentum", rule__temperature=3e-4),
    **_longer("momentum", PAIR, rule__temperature=1e-3),
    **_longer("adam", PAIR, rule__temperature=3e-4),
    **_longer("adam", rule__temperature=1e-3),
    **_longer("momentum", rule__lr=30.0),
    **_longer("momentum", rule__lr=30.0, rule__temperature=3e-4),
    **_longer("momentum", rule__straight_through=False),
    **_longer("momentum", network__readout_gain=4.0),
    **_longer("momentum", rule__tau=1.0),
    **_longer("momentum", rule__tau=0.25),
    **_longer("adam", network__readout_gain=4.0),
    **_longer("adam", rule__straight_through=True),
    **_longer("adam", rule__lr=0.3, rule__temperature=3e-4),
    **_longer("adam", rule__tau=0.25),
    **_longer("adam", rule__tau=1.0),
    **_longer("momentum from st", start=2.0),
    **_longer("momentum from st", start=2.0, rule__temperature=1e-3),
    **_longer("st", train__cycles=1, network__readout_gain=8.0),
    **_longer("st", network__dropout=0.6),
    **_longer("momentum", network__dropout=0.6),
    **_longer("momentum", {20: (0,)}, rule__temperature=1e-3),
    **_longer("adam", {20: (0,)}, rule__temperature=3e-4),
    **_longer("momentum", {20: (0,)}, network__dropout=0.3),
    **_longer("adam", {20: (0,)}, network__dropout=0.3),
    **_longer("st", {20: (0,)}, network__dropout=0.3),
}

LISTS = {1: FIRST, 2: SECOND}
