"""Targets of a table in their own units, and predictions that are no better than a guess."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

import bisnn.packed
from bisnn.runs import evaluation, exporting, model, training
from bisnn.runs.inputs import load_dataset
from runs import small

# Targets in their units


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    """Runs on the same prices: as they are, in units 1024 times smaller, with a large offset."""
    base = tmp_path_factory.mktemp("prices")
    x = np.random.default_rng(7).random((60, 2))
    y = 300 + 200 * x[:, 0] - 100 * x[:, 1]
    folders = {}
    for name, targets in (("plain", y), ("small units", 1024 * y), ("offset", 1e9 + y)):
        np.savez(base / f"{name}.npz", x=x, y=targets)
        data = {
            "name": "table",
            "task": "regression",
            "train": str(base / f"{name}.npz"),
            "validation": 0.2,
        }
        config = small("bayes", {"data": data}, **{"train.epochs": 15, "rule.lr": 0.1})
        folders[name] = training.train(config, base / name, show=False)
        evaluation.evaluate(folders[name], show=False)
    return folders, x


def metrics_of(folder):
    return json.loads((folder / "evaluation.json").read_text())["metrics"]["ensemble of 3"]


def test_units_of_the_target_change_nothing(priced):
    folders, x = priced
    a, b = (model.load(folders[name]) for name in ("plain", "small units"))
    assert all(
        torch.equal(p, q) for p, q in zip(a.net.parameters(), b.net.parameters(), strict=True)
    )
    for part in ("mean", "members", "std"):
        assert torch.equal(1024 * getattr(a.predict(x), part), getattr(b.predict(x), part)), part
    ours, theirs = (metrics_of(folders[name]) for name in ("plain", "small units"))
    for name in ("rmse", "mae", "deviation"):
        assert theirs[name]["value"] == pytest.approx(1024 * ours[name]["value"])
    rows = [
        [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        for folder in folders.values()
    ]
    for plain, larger in zip(*rows[:2], strict=True):
        assert larger["loss"] == plain["loss"]
        assert larger["rmse"] == 1024 * plain["rmse"]
        assert larger["validation"]["rmse"] == pytest.approx(1024 * plain["validation"]["rmse"])
        assert larger["validation"]["loss"] == pytest.approx(plain["validation"]["loss"])


def test_predictions_are_near_the_targets(priced):
    folders, x = priced
    for name, offset in (("plain", 0), ("offset", 1e9)):
        mean = model.load(folders[name]).predict(x).mean[:, 0].numpy() - offset
        # The targets' deviation is 65
        assert np.sqrt(np.mean((mean - (300 + 200 * x[:, 0] - 100 * x[:, 1])) ** 2)) < 50
        assert metrics_of(folders[name])["rmse"]["value"] < 50


def test_engine_predicts_in_units_and_its_logits_stay_integers(priced, tmp_path):
    folders, x = priced
    for folder in folders.values():
        exporting.export(folder, "packed", tmp_path / "p.safetensors")
        engine = bisnn.packed.load(tmp_path / "p.safetensors")
        ours, theirs = engine.predict_features(x), model.load(folder).predict(x)
        scale = engine.network.target_scale
        for part in ("mean", "members", "std"):
            np.testing.assert_allclose(
                getattr(ours, part), getattr(theirs, part), rtol=0, atol=1e-4 * scale
            )
        spikes = np.random.default_rng(0).integers(
            0, 2, (30, 4, *engine.network.input_shape), dtype=np.uint8
        )
        logits = engine.run(spikes).logits / engine.network.readout.scale
        assert np.array_equal(logits, np.round(logits))
        burnt = engine.run(spikes).logits[:, engine.network.burn_in :].mean(1)
        np.testing.assert_allclose(
            engine.predict(spikes).members, engine.network.target_mean + scale * burnt.astype(float)
        )


def test_the_one_d_task_keeps_its_scale():
    config = small("bayes", {"data": {"name": "one_d", "per_unit": 8, "test": 40}})
    data = load_dataset(config)
    assert (data.target_mean, data.target_scale, data.schema) == (0.0, 1.0, None)
    assert torch.equal(data.standardised(data.train.y), data.train.y)


def test_a_constant_target(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((30, 1)), y=np.full(30, 7.0))
    data = {"name": "table", "task": "regression", "train": str(tmp_path / "a.npz")}
    folder = training.train(small("st", {"data": data}), tmp_path / "run", show=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert abs(float(model.load(folder).predict(np.array([[0.5]])).mean) - 7) < 3


# No better than a guess


def test_no_better_than_the_commonest_class(tmp_path, capsys):
    rng = np.random.default_rng(8)
    y = np.repeat(["b", "a"], [70, 50])
    np.savez(tmp_path / "a.npz", x=rng.random((120, 2)), y=y)
    data = {"name": "table", "train": str(tmp_path / "a.npz"), "test_share": 0.5}
    folder = training.train(small("st", {"data": data}), tmp_path / "run", show=False)
    verdict = evaluation.evaluate(folder, show=False)
    assert verdict.baseline["majority class"]["accuracy"].value == pytest.approx(35 / 60)
    assert verdict.beaten_by == []
    said = capsys.readouterr().err
    assert (
        "is no better, beyond chance, than always answering with the majority class (0.5833): "
        "train longer" in said
    )


def test_no_better_than_the_mean(priced, tmp_path, capsys):
    verdict = json.loads((priced[0]["plain"] / "evaluation.json").read_text())
    data = load_dataset(model.load(priced[0]["plain"]).config)
    mean = float(data.train.y.mean())
    baseline = verdict["baseline"]["training mean"]
    assert baseline["rmse"]["value"] == pytest.approx(
        float((data.test.y - mean).square().mean().sqrt())
    )
    better = [
        name
        for name, row in verdict["metrics"].items()
        if row["rmse"]["high"] < baseline["rmse"]["value"]
    ]
    assert verdict["beaten_by"] == better
    np.savez(
        tmp_path / "a.npz",
        x=np.random.default_rng(0).random((60, 2)),
        y=np.random.default_rng(1).normal(50, 3, 60),
    )
    noise = {
        "name": "table",
        "task": "regression",
        "train": str(tmp_path / "a.npz"),
        "test_share": 0.5,
    }
    evaluation.evaluate(
        training.train(small("st", {"data": noise}), tmp_path / "run", show=False), show=False
    )
    assert (
        "is no better, beyond chance, than always answering with the training mean ("
        in capsys.readouterr().err
    )


def test_targets_that_are_too_large_are_refused_before_training(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x=np.random.default_rng(0).random((30, 2)),
        y=np.linspace(1e300, 1e308, 30),
    )
    data = {"name": "table", "task": "regression", "train": str(tmp_path / "a.npz")}
    with pytest.raises(
        ValueError, match=r"column '3': its targets are too large to have a mean and a deviation"
    ):
        load_dataset(small("st", {"data": data}))
