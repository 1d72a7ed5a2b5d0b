"""What a config of points may leave out of its rule and its training, and what is taken then.

Chosen by trials on tables made by scikit-learn (two to six classes, Friedman's functions; 60 to
2,000 rows, 2 to 60 features), at the default network: see "Defaults that depend on others" in
docs/CONFIG.md. The plain rules do well there with a large learning rate, and their gradients grow
with the number of time steps over which the loss is summed: so the rate is divided by it.
Recordings differ too much to have defaults.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bisnn.runs.data_sections import DataSection
    from bisnn.runs.rule_sections import RuleSection

UPDATES, LEAST, MOST = 300, 20, 60  # of the weights, in all; epochs


def completed(
    settings: dict[str, Any], data: type[DataSection], rule: type[RuleSection]
) -> dict[str, Any]:
    """Settings as read from TOML, with those that are missing and have a default by the kinds of
    rule and data.

    A config that leaves out `rule.lr` leaves to us how to train: then the learning rate decays, and
    Bayes-BiSNN sees hard samples, unless it says otherwise. One that gives it has the paper's rule.
    """
    train = settings.get("train", {})
    if not isinstance(train, dict) or not data.takes_defaults_of_points(settings["data"]):
        return settings
    given, steps = settings["rule"], _summed_steps(train, settings.get("encode", {}))
    options = rule.default_options(given, steps)
    rate = rule.default_lr(given, steps)
    if "lr" not in given and rate is not None:
        options["lr"], train = rate, {"schedule": "cosine", **train}
    return {**settings, "rule": {**options, **given}, "train": train}


def _summed_steps(train: dict[str, Any], encode: Any) -> int:
    """Time steps that the loss is summed over; 1 for their mean, or where a setting is wrong."""
    steps = encode.get("steps", 100) if isinstance(encode, dict) else None
    burn_in = train.get("burn_in", 10)
    known = isinstance(steps, int) and isinstance(burn_in, int) and steps > burn_in
    return steps - burn_in if known and train.get("over_time") != "mean" else 1


def epochs(points: int, batch_size: int) -> int:
    """Passes over so many training points."""
    return max(LEAST, min(MOST, math.ceil(UPDATES / math.ceil(points / batch_size))))
