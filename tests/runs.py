"""Small training runs for the tests: a second or less each."""

from __future__ import annotations

from pathlib import Path

from bisnn.config import Config, parse

SMALL = {
    "version": 1,
    "data": {"name": "two_moons", "train": 20, "test": 30},
    "encode": {"steps": 30},
    "network": {"layers": [16, 16], "readout_gain": 2.0},
    "neuron": {"threshold": 0.1, "slope": 4.0},
    "rule": {"name": "bayes", "lr": 0.05, "temperature": 1e-3, "precondition": "adam"},
    "train": {"epochs": 4, "batch_size": 12, "burn_in": 2, "checkpoint_seconds": 0.0, "threads": 1},
    "predict": {"samples": 3},
}
RULES = {
    "st": {"name": "st", "lr": 0.5},
    "bayes": SMALL["rule"],
    "bayes, plain": {"name": "bayes", "lr": 0.1, "temperature": 1e-3, "tau": 1.0, "tau_end": 0.5, "anneal_epochs": 2},
    "bop": {"name": "bop", "lr": 0.1, "threshold": 1e-3},
    "full, Adam": {"name": "full", "lr": 0.01},
    "full, SGD": {"name": "full", "lr": 0.01, "optimizer": "sgd", "momentum": 0.9},
}
ONE_D = {"data": {"name": "one_d", "per_unit": 8, "test": 40}, "encode": {"steps": 30, "neurons": 20, "width": 4.0}}


def small(rule: str = "bayes", sections: dict | None = None, **changes) -> Config:
    """The small config with another rule, other sections, and settings changed by dotted key."""
    return parse({**SMALL, "rule": RULES[rule], **(sections or {})}, "small").updated(**changes)


def files(folder: Path) -> dict[str, bytes]:
    """The parts of a run folder that a resumed run must reproduce, bit for bit."""
    return {name: (folder / name).read_bytes() for name in ("config.toml", "metrics.jsonl", "model.safetensors")}
