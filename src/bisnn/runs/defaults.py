"""What a config of points may leave out of its rule and its training, and what is taken then.

Chosen by trials on tables made by scikit-learn (two to six classes, Friedman's functions; 60 to
2,000 rows, 2 to 60 features), at the default network: see "Defaults that depend on others" in
docs/CONFIG.md. The plain rules do well there with a large learning rate, and their gradients grow
with the number of time steps over which the loss is summed: so the rate is divided by it.
Recordings differ too much to have defaults.
"""

from __future__ import annotations

import math
from typing import Any

POINTS = ("two_moons", "one_d", "table")  # names of data that are points
# Lr of the plain rules, times the time steps that the loss is summed over
SUMMED = {"bayes": 900.0, "st": 300.0}
ADAM = {"bayes": 0.1, "st": 0.05, "full": 0.03}  # lr with Adam, which knows no scale
TEMPERATURE = 3e-6  # rho of the plain rule, for each of those time steps
UPDATES, LEAST, MOST = 300, 20, 60  # of the weights, in all; epochs


def completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as read from TOML, with those that are missing and have a default by rule and data.

    A config that leaves out `rule.lr` leaves to us how to train: then the learning rate decays, and
    Bayes-BiSNN sees hard samples, unless it says otherwise. One that gives it has the paper's rule.
    """
    data, rule, train = (settings.get(name, {}) for name in ("data", "rule", "train"))
    if (
        not all(isinstance(section, dict) for section in (data, rule, train))
        or data.get("name") not in POINTS
    ):
        return settings
    rule, train, name = dict(rule), dict(train), rule.get("name")
    if not isinstance(name, str):
        return settings
    steps = _summed_steps(train, settings.get("encode", {}))
    if name == "bayes":
        rule.setdefault("temperature", float(f"{TEMPERATURE * steps:.3g}"))
    rate = _learning_rate(rule, steps)
    if "lr" not in rule and rate is not None:
        rule["lr"] = rate
        train.setdefault("schedule", "cosine")
        if name == "bayes":
            rule.setdefault("straight_through", True)
    return {**settings, "rule": rule, "train": train}


def _summed_steps(train: dict[str, Any], encode: Any) -> int:
    """Time steps that the loss is summed over; 1 for their mean, and where a setting is wrong,
    which is said elsewhere.
    """
    steps, burn_in = (
        encode.get("steps", 100) if isinstance(encode, dict) else None,
        train.get("burn_in", 10),
    )
    known = isinstance(steps, int) and isinstance(burn_in, int) and steps > burn_in
    return steps - burn_in if known and train.get("over_time") != "mean" else 1


def _learning_rate(rule: dict[str, Any], steps: int) -> float | None:
    """None where there is no default."""
    name = rule.get("name")
    if name == "full" or rule.get("precondition") == "adam":
        return None if name not in ADAM or rule.get("optimizer", "adam") != "adam" else ADAM[name]
    if name not in SUMMED or rule.get("precondition", "none") != "none":
        return None
    return float(f"{SUMMED[name] / steps:.3g}")


def epochs(points: int, batch_size: int) -> int:
    """Passes over so many training points."""
    return max(LEAST, min(MOST, math.ceil(UPDATES / math.ceil(points / batch_size))))
