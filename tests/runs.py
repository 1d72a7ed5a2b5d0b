"""Small training runs for the tests: a second or less each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bisnn.data import events
from bisnn.runs import training
from bisnn.runs.config import Config, parse

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
    "bayes, plain": {
        "name": "bayes",
        "lr": 0.1,
        "temperature": 1e-3,
        "tau": 1.0,
        "tau_end": 0.5,
        "anneal_epochs": 2,
    },
    "bop": {"name": "bop", "lr": 0.01, "threshold": 1e-2},
    "full, Adam": {"name": "full", "lr": 0.01},
    "full, SGD": {"name": "full", "lr": 0.01, "optimizer": "sgd", "momentum": 0.9},
}
ONE_D = {
    "data": {"name": "one_d", "per_unit": 8, "test": 40},
    "encode": {"steps": 30, "neurons": 20, "width": 4.0},
}

RECORDED = {
    **{name: section for name, section in SMALL.items() if name != "encode"},
    "data": {"name": "nmnist", "classes": [3, 7], "steps": 12, "bin_us": 25_000},
    "network": {
        "conv": [{"channels": 4, "kernel": 5, "stride": 2, "pool": 2}],
        "layers": [12],
        "readout_gain": 2.0,
    },
    "train": {**SMALL["train"], "epochs": 3, "batch_size": 4, "burn_in": 1},
    "augment": {"shift": 1},
    "neuron": {"threshold": 0.03, "slope": 4.0},
}


def small(rule: str = "bayes", sections: dict | None = None, **changes) -> Config:
    """The small config with another rule, other sections, and settings changed by dotted key."""
    return parse({**SMALL, "rule": RULES[rule], **(sections or {})}, "small").updated(**changes)


def files(folder: Path) -> dict[str, bytes]:
    """The parts of a run folder that a resumed run must reproduce, bit for bit."""
    return {
        name: (folder / name).read_bytes()
        for name in ("config.toml", "metrics.jsonl", "model.safetensors")
    }


def made_up(n: int, side: int, seed: int, length_us: int = 300_000) -> np.ndarray:
    """Random events on side x side pixels."""
    rng = np.random.default_rng(seed)
    recording = np.zeros(n, events.EVENTS)
    recording["x"], recording["y"] = rng.integers(0, side, (2, n))
    recording["p"] = rng.integers(0, 2, n)
    recording["t"] = np.sort(rng.integers(0, length_us, n))
    return recording


def made_up_nmnist(root: Path) -> Path:
    """A folder with three training recordings and two test ones of each of two digits, which
    differ.
    """
    for part, count in (("Train", 3), ("Test", 2)):
        for digit in (3, 7):
            folder = root / part / str(digit)
            folder.mkdir(parents=True)
            for i in range(count):
                events.write_nmnist(
                    folder / f"{i + 1:05d}.bin",
                    made_up(2000, 17 if digit == 3 else 34, 10 * digit + i),
                )
    return root


def run_on_recordings(folder: Path) -> tuple[Path, Path]:
    """A run on made-up recordings, and the folder of these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BISNN_CACHE", str(folder / "cache"))
        root = made_up_nmnist(folder / "N")
        config = parse({**RECORDED, "data": {**RECORDED["data"], "root": str(root)}}, "run")
        return training.train(config, folder / "run", show=False), root


class Killed(BaseException):
    """Stops a run in this process where nothing catches it."""


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let runs be killed once they have taken so many steps."""
    update = training.Training.update

    def stopping(self):
        if self.step == steps:
            raise Killed
        return update(self)

    monkeypatch.setattr(training.Training, "update", stopping)


def run_of_both_rules(folder: Path) -> Path:
    """Train a run by Bayes-BiSNN and, beside it in `st`, one by ST-BiSNN; return the first."""
    training.train(small("st"), folder / "st", show=False)
    return training.train(small(), folder / "run", show=False)
