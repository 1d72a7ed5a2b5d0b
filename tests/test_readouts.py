"""benchmarks/readouts.py: its numbers beside those of the models, and its messages."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import bisnn
from bisnn import metrics
from bisnn.data.simulation import Digits
from bisnn.runs.config import parse
from bisnn.runs.model import Model, build_network
from runs import RECORDED, RULES
from test_simulation import idx

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import readouts

PER_DIGIT = 4


@pytest.fixture
def place(tmp_path, monkeypatch):
    """MNIST of four images a digit, the first to train and the others to test; two models on it,
    untrained.
    """
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(readouts, "USED", 2)
    monkeypatch.setattr("bisnn.data.archives.MNISTDVS.TRAINING_IDS", 1)
    rng = np.random.default_rng(0)
    images = np.zeros((10 * PER_DIGIT, 28, 28), np.uint8)
    images[:, 6:22, 6:22] = rng.integers(0, 256, (len(images), 16, 16))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    labels = np.arange(len(images), dtype=np.uint8) % 10
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    data = {"name": "digits", "root": str(tmp_path / "mnist"), "steps": 4, "bin_us": 20_000}
    for rule in ("bayes", "full, Adam"):
        config = parse(
            {**RECORDED, "data": data, "rule": RULES[rule], "train": {"epochs": 1, "burn_in": 1}},
            "run",
        )
        config = config.updated(**{"predict.samples": 2, "neuron.threshold": 0.02})
        net = build_network(config, (2, 26, 26), 10)
        nothing = torch.zeros(0).double()
        Model(net, config, tuple("0123456789"), nothing, nothing, 0, "").save(
            tmp_path / rule[:5].strip(",")
        )
    return tmp_path


def test_from_runs_to_results(place, capsys):
    runs = [str(place / name) for name in ("bayes", "full")]
    readouts.main(
        [*runs, "--images", str(place / "mnist"), "--most", "1", "--out", str(place / "out.json")]
    )
    assert "written: " in capsys.readouterr().out
    found = json.loads((place / "out.json").read_text())
    assert found["recordings"] == {"test": 10 * (PER_DIGIT - 1), "further digits": 10}
    for row in found["rows"]:
        model = bisnn.load(place / row["run"])
        model = Model(
            **{
                **vars(model),
                "config": model.config.updated(**{"predict.readouts": row["readouts"]}),
            }
        )
        test = Digits(False, str(place / "mnist"), steps=4, bin_us=20_000, show=False)
        clips = readouts.Clips(test, torch.arange(len(test)))
        members = 2 if row["predictor"].startswith("ensemble") else None
        probs = model.predict_points(clips, members).mean
        labels = torch.tensor([int(label) for _, label in test])
        for name in readouts.JUDGED:
            assert row["test"][name] == pytest.approx(
                metrics.METRICS[name](probs, labels), abs=1e-5
            )
    depth = max(row["readouts"] for row in found["rows"])
    assert [row["readouts"] for row in found["rows"]] == [
        n + 1 for _ in range(3) for n in range(depth)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--most", "0"], "--most: must be a positive whole number; got 0"),
        (["--out", "nowhere/x.json"], "--out: must be a file in a folder that is there"),
        (["--images", "nowhere"], "--images: nowhere: has no train-"),
    ],
)
def test_bad_arguments_are_one_line(place, options, message):
    usual = [
        str(place / "bayes"),
        "--images",
        str(place / "mnist"),
        "--out",
        str(place / "out.json"),
    ]
    with pytest.raises(SystemExit, match=f"readouts: {message}"):
        readouts.main([*usual, *options])
