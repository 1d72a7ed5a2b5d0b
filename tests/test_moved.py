"""A dataset that has moved since a run began: `--data` on resume, evaluate and predict."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import bisnn
from bisnn.data import events
from bisnn.runs import training
from bisnn.runs.config import load, parse
from runs import RECORDED, SMALL, Killed, made_up, small, stop_after

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def root(tmp_path):
    for name, side in (("cat", 17), ("dog", 34)):
        (tmp_path / "old" / name).mkdir(parents=True)
        for i in range(5):
            events.write_nmnist(tmp_path / "old" / name / f"{i}.bin", made_up(900, side, i))
    return tmp_path / "old"


def on_folder(root):
    section = {"name": "folder", "root": str(root), "steps": 12, "bin_us": 25_000}
    return parse({**RECORDED, "data": {**section, "test_share": 0.4}}, "mine")


def test_a_folder(bisnn_, root, tmp_path, monkeypatch):
    whole = training.train(on_folder(root), tmp_path / "whole", show=False)
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(Killed):
            training.train(on_folder(root), tmp_path / "run", show=False)
    moved = shutil.move(root, tmp_path / "new")
    code, _, err = bisnn_("resume", tmp_path / "run", "--no-report", "-q")
    assert code == 1
    assert f"data.root: there is no folder {root}" in err
    code, _, err = bisnn_("resume", tmp_path / "run", "--data", moved, "--no-report", "-q")
    assert code == 0, err
    assert load(tmp_path / "run" / "config.toml").data.root == str(moved)
    ours, theirs = (bisnn.load(run).net.state_dict() for run in (tmp_path / "run", whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs), "to the same bits"

    # The other run does not know yet
    assert bisnn_("evaluate", whole, "-q")[0] == 1
    code, shown, _ = bisnn_("evaluate", whole, "--data", moved, "-q")
    assert code == 0
    rows = [line.split()[:2] for line in shown.splitlines()]
    assert ["cat", "2"] in rows, "classes by name, and their test recordings"
    assert ["dog", "2"] in rows
    assert bisnn.evaluate(whole, data=moved, show=False).points == 4
    code, out, err = bisnn_("predict", whole, "--data", moved, "-q")
    assert code == 0
    rows = [line.split(",")[:2] for line in out.splitlines()[1:]]
    assert len(rows) == 4
    assert all(file.startswith(f"{moved}/") for file, _ in rows)
    right = np.mean([f"/{name}/" in file for file, name in rows])
    assert f"accuracy {right:.4f} on 4 rows" in err
    by_file = bisnn.load(whole).predict_recordings([file for file, _ in rows]).mean.argmax(-1)
    assert [name for _, name in rows] == [("cat", "dog")[i] for i in by_file.tolist()]


def test_another_folder_is_refused(bisnn_, root, tmp_path):
    run = training.train(on_folder(root), tmp_path / "run", show=False)
    other = shutil.copytree(root, tmp_path / "other")
    events.write_nmnist(other / "cat" / "0.bin", made_up(900, 17, 99))
    for command in ("evaluate", "predict", "resume"):
        more = ["--set", "train.epochs=5"] if command == "resume" else []
        code, _, err = bisnn_(command, run, "--data", other, "-q", *more)
        assert code == 1
        assert f"{other}: its recordings are not those that {run} began with" in err
    code, _, err = bisnn_("evaluate", run, "--data", tmp_path / "none")
    assert code == 1
    assert "--data: must be the folder of the recordings; there is no folder" in err
    assert load(run / "config.toml").data.root == str(root)


@pytest.mark.parametrize("test", [False, True])
def test_a_table(bisnn_, tmp_path, test):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    rng = np.random.default_rng(0)
    for name in ("a.csv", "b.csv"):
        x = rng.random((40, 2))
        np.savetxt(old / name, np.column_stack([x, x[:, 0] > 0.5]), "%g", ",")
    section = {"name": "table", "train": str(old / "a.csv")}
    if test:
        section["test"] = str(old / "b.csv")
    run = training.train(parse({**SMALL, "data": section}, "t"), tmp_path / "run", show=False)
    old.rename(new)
    assert bisnn_("evaluate", run, "-q")[0] == 1
    assert bisnn_("evaluate", run, "--data", new, "-q")[0] == 0
    code, out, err = bisnn_("predict", run, "--data", new if test else new / "a.csv", "-q")
    assert code == 0
    assert len(out.splitlines()) == 1 + (40 if test else 8)
    assert "accuracy" in err
    if test:
        code, _, err = bisnn_("evaluate", run, "--data", new / "a.csv")
        assert code == 1
        assert "--data: must be the folder that holds a.csv and b.csv" in err


def test_data_that_cannot_move(bisnn_, tmp_path):
    run = training.train(small("st"), tmp_path / "run", show=False)
    code, _, err = bisnn_("evaluate", run, "--data", tmp_path)
    assert code == 1
    assert "--data: the data of this run, two_moons, are in no file or folder" in err
    code, _, err = bisnn_("predict", run, "x.csv", "--data", tmp_path)
    assert code == 2
    assert "--data is for the run's own test points" in " ".join(err.split())
    code, out, _ = bisnn_("predict", run, "-q")
    assert code == 0
    assert len(out.splitlines()) == 61
