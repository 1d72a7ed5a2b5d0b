"""A config that says no more than which table and which rule trains well."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from sklearn import datasets

from bisnn.runs import defaults, evaluation, training
from bisnn.runs.config import parse
from bisnn.runs.inputs import load_dataset
from runs import small


def judged(folder, x, y, rule, task="classification"):
    np.savez(folder / "table.npz", x=x, y=y)
    data = {"name": "table", "train": str(folder / "table.npz"), "task": task}
    run = training.train(
        parse({"version": 1, "data": data, "rule": {"name": rule}}, "minimal"),
        folder / "run",
        show=False,
    )
    return run, evaluation.evaluate(run, show=False)


def score(verdict, metric):
    """Of the rule's usual predictor, which comes last."""
    return list(verdict.metrics.values())[-1][metric].value


def test_minimal_config_trains_and_writes_down_what_it_took(tmp_path):
    x, y = datasets.make_blobs(60, 4, centers=3, cluster_std=2.0, random_state=3)
    run, verdict = judged(tmp_path, 50 + 10 * x, y, "bayes")
    assert score(verdict, "accuracy") >= 0.9
    assert list(verdict.metrics) == verdict.beaten_by
    written = tomllib.loads((run / "config.toml").read_text())
    points = len(load_dataset(parse(written, "written")).train.x)
    assert (
        written["train"]["epochs"]
        == defaults.epochs(points, 40)
        == len((run / "metrics.jsonl").read_text().splitlines())
    )
    assert {name: written["rule"][name] for name in ("lr", "temperature")} == {
        "lr": 10.0,
        "temperature": 2.7e-4,
    }
    assert training.resume(run, show=False) == run


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["bayes", "st", "full"])
@pytest.mark.parametrize("name", ["wine", "iris"])
def test_minimal_config_on_real_tables(tmp_path, name, rule):
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    assert score(judged(tmp_path, x, y, rule)[1], "accuracy") >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["bayes", "st", "full"])
def test_minimal_config_on_a_made_regression(tmp_path, rule):
    x, y = datasets.make_friedman1(
        400, noise=1.0, random_state=7
    )  # the noise alone is an RMSE of 1, the mean one of 5
    assert score(judged(tmp_path, x, 1000 * y, rule, "regression")[1], "rmse") < 3500


# Near chance


def test_training_near_chance_is_said(tmp_path, capsys):
    rng = np.random.default_rng(0)
    cases = {
        "classes": ({"y": np.repeat([0, 1], [60, 40])}, {}, "accuracy 0."),
        "targets": ({"y": rng.normal(50, 3, 100)}, {"task": "regression"}, "RMSE "),
    }
    for name, (y, settings, said) in cases.items():
        np.savez(tmp_path / f"{name}.npz", x=rng.random((100, 2)), **y)
        data = {"name": "table", "train": str(tmp_path / f"{name}.npz"), **settings}
        config = small("st", {"data": data}, **{"rule.lr": 1e-6})
        training.train(config, tmp_path / name, show=False)
        error = capsys.readouterr().err
        assert f"training ended near chance: {said}" in error
        assert "leave it out" in error


def test_training_that_learns_says_nothing(tmp_path, capsys):
    run = training.train(
        small("st", **{"train.epochs": 10, "rule.lr": 1.0}), tmp_path / "run", show=False
    )
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    assert rows[-1]["accuracy"] > 0.75
    assert capsys.readouterr().err == ""
