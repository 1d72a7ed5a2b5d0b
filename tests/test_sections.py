"""Every kind of data and of rule that a config can name, by one table each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bisnn.data import events, simulation
from bisnn.data.loading import Clips
from bisnn.runs import config_errors
from bisnn.runs.config import Config, parse
from bisnn.runs.inputs import described, input_shape, load_dataset, spikes
from runs import RECORDED, RULES, SMALL, made_up, made_up_nmnist


def write_table(folder):
    np.savez(folder / "points.npz", x=np.random.default_rng(0).random((20, 3)), y=np.arange(20) % 2)
    return {"train": str(folder / "points.npz")}


def write_mnist_dvs(folder):
    (folder / "scale04").mkdir()
    for digit in (3, 7):
        for number in (1, 2, 901):
            name = f"mnist_{digit}_scale04_{number:04d}.aedat"
            events.write_aedat(folder / "scale04" / name, made_up(500, 128, number))
    return {"root": str(folder), "classes": [3, 7], "crop": 10, "steps": 12}


def write_folder(folder):
    for name in ("cat", "dog"):
        (folder / "mine" / name).mkdir(parents=True)
        for number in range(5):
            path = folder / "mine" / name / f"{number}.bin"
            events.write_nmnist(path, made_up(500, 34, number))
    return {"root": str(folder / "mine"), "crop": [2, 2, 30, 32], "steps": 5, "bin_us": 20_000}


def simulated(folder):
    return {"crop": 10, "steps": 3, "bin_us": 2000}


def write_series(folder):
    x = np.random.default_rng(0).random((20, 12, 3))
    np.savez(folder / "series.npz", x=x, y=np.arange(20) % 2, lengths=np.arange(20) % 6 + 7)
    return {"train": str(folder / "series.npz"), "steps": 12}


def tonic(folder):
    pytest.importorskip("tonic")
    pytest.skip("its archives are read in test_tonic.py")


DATA = {  # by name: what the section needs beside it, written into a folder
    "two_moons": lambda folder: {"train": 5, "test": 6},
    "one_d": lambda folder: {"per_unit": 4, "test": 6},
    "table": write_table,
    "nmnist": lambda folder: {"root": str(made_up_nmnist(folder / "N")), "classes": [3, 7]},
    "mnist_dvs": write_mnist_dvs,
    "folder": write_folder,
    "digits": simulated,
    "tonic": tonic,
    "series": write_series,
}


def test_the_tables_are_whole():
    assert {*DATA, "own"} == config_errors.kinds_of(Config, "data").keys()
    named = {settings["name"] for settings in RULES.values()}
    assert {*named, "own"} == config_errors.kinds_of(Config, "rule").keys()


@pytest.mark.parametrize("name", DATA)
def test_a_section_loads_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(simulation.Digits, "TRAINING", 20)
    settings = SMALL if name in ("two_moons", "one_d", "table") else RECORDED
    section = {"name": name, "validation": 0.2, **DATA[name](tmp_path)}
    network = {} if name == "series" else settings["network"]
    config = parse({**settings, "data": section, "augment": {}, "network": network}, name)
    loaded = load_dataset(config, show=False)
    config = described(config, loaded)
    assert config.recorded == isinstance(loaded.train.x, Clips) == (settings is RECORDED)
    assert bool(loaded.classes) == (config.task == "classification")
    assert loaded.validation is not None
    some = loaded.test.x[torch.arange(2)]
    seen = spikes(config, some)
    assert seen.shape == (config.steps, 2, *input_shape(config, len(loaded.low)))
    if config.recorded and name not in ("digits", "series"):
        assert seen.shape[2:] == config.data.window().shape[1:]
    assert load_dataset(config, show=False).digest() == loaded.digest()


@pytest.mark.parametrize("rule", RULES)
def test_a_section_builds_the_rule_it_describes(rule):
    config = parse({**SMALL, "rule": RULES[rule]}, rule)
    built = config.rule.build([torch.nn.Parameter(torch.ones(2, 2))], 0, 5)
    assert getattr(built, "has_posterior", False) == config.rule.posterior()
    assert hasattr(built, "sampled") != config.rule.real_weights()
    assert built.param_groups[0]["lr"] == config.rule.lr
