"""`bisnn new`: what it writes for one's own data trains without a change."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from sklearn.datasets import load_iris

import bisnn
from bisnn.data import events
from bisnn.runs import config as configs
from camera_files import csv_text
from runs import made_up

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


NAMES = ["a # b", 'say "no"', "back\\slash", "ünï 猫", "two\nlines", "del\x7f", "[x]", "t = 1"]


def test_names_from_the_data_stay_data(bisnn_, tmp_path):
    """Whatever columns and classes are called, the config says it."""
    path = tmp_path / "odd # name\n.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "= [target]\n#"])
        writer.writerows([i, NAMES[i % len(NAMES)]] for i in range(40))
    out = tmp_path / "my.toml"
    assert bisnn_("new", path, "--out", out)[0] == 0
    config = configs.load(out)
    assert config.data.target == "= [target]\n#"
    assert config.data.train == str(path)
    root = tmp_path / "odd"
    for i, name in enumerate(NAMES):
        (root / name).mkdir(parents=True)
        events.write_nmnist(root / name / "1.bin", made_up(100, 34, i))
    assert bisnn_("new", root, "--out", tmp_path / "odd.toml")[0] == 0
    assert configs.load(tmp_path / "odd.toml").data.classes == sorted(NAMES)


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


def gestures(root, suffix="bin", count=4, number=1500):
    """Recordings of two gestures, which differ in where so many events are."""
    for name, side in (("swipe", 12), ("wave", 34)):
        for i in range(count):
            path = root / name / f"{i}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            some = made_up(number, side, i)
            if suffix == "csv":
                path.write_bytes(csv_text(some))
            else:
                events.write_nmnist(path, some)
    return root


@pytest.mark.parametrize(
    ("suffix", "count", "number"), [("bin", 12, 1500), ("csv", 5, 1500), ("bin", 12, 300)]
)
def test_a_folder_of_recordings(bisnn_, tmp_path, own_cache, suffix, count, number):
    """It trains as it is, also where events are few: no layer falls silent."""
    root = gestures(tmp_path / "gestures", suffix, count, number)
    out = tmp_path / "my.toml"
    code, shown, err = bisnn_("new", root, "--out", out)
    assert code == 0, err
    assert "2: swipe, wave" in shown
    config = configs.load(out)
    assert config.data.size == [34, 34]
    assert config.data.classes == ["swipe", "wave"]
    assert config.data.steps * config.data.bin_us >= 299_000, "whole recordings are seen"
    assert bool(config.data.validation) == (count >= 10)
    run = tmp_path / "run"
    code, _, err = bisnn_(
        "train", out, "--out", run, "-q", "--no-report", "--set", "train.epochs=8"
    )
    assert code == 0, err
    code, predicted, _ = bisnn_("predict", run, root / "wave")
    assert code == 0
    assert predicted.splitlines()[0].startswith("file,class,confidence,p(swipe),p(wave),")
    assert [row.split(",")[1] for row in predicted.splitlines()[1:]] == ["wave"] * count


def test_a_folder_that_cannot_train(bisnn_, tmp_path):
    root = gestures(tmp_path / "gestures")
    (root / "wave" / "9.bin").write_bytes(b"abc")
    for folder, message in (
        (root, "1 of its recordings cannot be used; `bisnn inspect"),
        (root / "swipe", "its recordings are all of one class, swipe"),
        (tmp_path, "its recordings are all of one class"),
    ):
        code, _, err = bisnn_("new", folder, "--out", tmp_path / "my.toml")
        assert code == 1
        assert message in err or "cannot be used" in err
    assert not (tmp_path / "my.toml").exists()
