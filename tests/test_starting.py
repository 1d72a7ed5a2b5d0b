"""`bisnn new`: what it writes for one's own data trains without a change."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from sklearn.datasets import load_iris

import bisnn
from bisnn.runs import config as configs

QUICK = ("--set", "train.epochs=3", "--set", "encode.steps=20")


@pytest.fixture
def iris(tmp_path):
    """Iris as a CSV, with a column of names of rows and a blank one."""
    bunch = load_iris()
    with open(tmp_path / "iris.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["plant", *bunch.feature_names, "notes", "species"])
        for i, (row, label) in enumerate(zip(bunch.data, bunch.target, strict=True)):
            writer.writerow([f"plant {i}", *row, "", bunch.target_names[label]])
    return tmp_path / "iris.csv"


def test_a_table_of_classes(bisnn_, iris, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = bisnn_("new", "iris.csv")
    assert (code, err) == (0, "")
    assert "3 classes: setosa, versicolor, virginica" in out
    assert "bisnn train iris.toml" in out
    config = configs.load("iris.toml")
    assert config.data.train == str(iris)
    assert config.data.drop == ["plant", "notes"]
    assert config.data.task == "classification"
    assert bisnn_("train", "iris.toml", "--out", "run", "--no-report", "-q", *QUICK)[0] == 0
    assert bisnn.load("run").classes == ("setosa", "versicolor", "virginica")


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_a_table_of_a_quantity(bisnn_, tmp_path, suffix):
    rng = np.random.default_rng(0)
    x = rng.random((40, 3))
    path = tmp_path / f"points.{suffix}"
    if suffix == "npz":
        np.savez(path, x=x, y=x.sum(1))
    else:
        np.savetxt(path, np.column_stack([x, x.sum(1)]), delimiter=",")
    (tmp_path / "configs").mkdir()
    out = tmp_path / "configs" / "my.toml"
    assert bisnn_("new", path, "--out", out)[0] == 0
    config = configs.load(out)
    assert config.task == "regression"
    assert config.data.train == str(path), "relative to the config, not to where it was written"
    code, _, err = bisnn_("train", out, "--out", tmp_path / "run", "--no-report", "-q", *QUICK)
    assert code == 0, err


def test_mistakes_are_one_line(bisnn_, iris, tmp_path):
    (tmp_path / "old.toml").write_text("old")
    for arguments, message in (
        ([iris, "--out", tmp_path / "old.toml"], "old.toml: is there already; delete it, or give"),
        ([iris, "--out", tmp_path / "a.txt"], "a.txt: must be a .toml file; give e.g. --out"),
        ([tmp_path / "none.csv"], "none.csv: there is no such file or folder; check the path"),
    ):
        code, out, err = bisnn_("new", *arguments)
        assert (code, out) == (1, "")
        assert message in err
        assert err.count("\n") == 1
    assert (tmp_path / "old.toml").read_text() == "old"
