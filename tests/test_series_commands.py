"""Series from the command line: `bisnn new`, `train`, `predict`, `calibrate`; SHD by tonic."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

import bisnn
from bisnn.data import Series
from bisnn.data.tonic_sets import FromTonic, tonic_dataset
from bisnn.runs import config as configs
from bisnn.runs.config import parse
from bisnn_experiments import series_sets

QUICK = ("--set", "train.epochs=3", "--set", "network.layers=[16]", "--no-report", "-q")


def save(path, values, labels, steps=None):
    steps = steps or max(map(len, values))
    x = np.stack([np.pad(item, ((0, steps - len(item)), (0, 0))) for item in values])
    np.savez(path, x=x, y=labels, lengths=[len(item) for item in values])
    return path


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_file_of_spikes(bisnn_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values, labels = series_sets.rhythms(120, 100)
    save("rhythms.npz", values, labels)
    code, out, err = bisnn_("new", "rhythms.npz")
    assert (code, err) == (0, "")
    assert "120, of 16 channels" in out
    config = configs.load("rhythms.toml")
    assert (config.data.code, config.data.steps) == ("spikes", max(map(len, values)))
    assert config.data.delays == list(range(0, 24, 2))
    assert bisnn_("train", "rhythms.toml", "--out", "run", *QUICK)[0] == 0
    # What is predicted from the file is what the model says of the values
    code, out, err = bisnn_("predict", "run", "rhythms.npz")
    assert (code, err) == (0, "")
    said = [row["class"] for row in rows(out)]
    expected = bisnn.load("run").predict_series(values).mean.argmax(-1)
    assert said == [str(i) for i in expected.tolist()]
    assert bisnn_("predict", "run")[0] == 0, "its own test recordings"
    code, _, err = bisnn_("calibrate", "run", "--data", "rhythms.npz", "-q")
    assert code == 1
    assert "must not have been trained on; 86 of 120 were" in err
    save("others.npz", *series_sets.rhythms(60, 101), steps=120)
    assert bisnn_("calibrate", "run", "--data", "others.npz", "-q")[0] == 0
    assert "set_size" in bisnn_("predict", "run", "others.npz")[1]


def test_a_folder_of_csv_files_with_a_state_in_every_row(bisnn_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "walks").mkdir()
    for i in range(24):
        walk = rng.normal(0, 1, 20 + i % 5).cumsum()
        lines = [f"{t},{x:.3f},{'up' if x > 0 else 'down'}" for t, x in enumerate(walk)]
        (tmp_path / "walks" / f"{i:02d}.csv").write_text("\n".join(["time,x,state", *lines]))
    assert bisnn_("new", "walks")[0] == 0
    config = configs.load("walks.toml")
    assert (config.data.labels, config.data.target, config.data.drop) == ("step", "state", ["time"])
    assert (config.data.code, config.task) == ("population", "classification")
    assert bisnn_("train", "walks.toml", "--out", "run", *QUICK)[0] == 0
    code, out, _ = bisnn_("predict", "run", "walks/03.csv")
    assert code == 0
    burn_in = config.burn_in
    assert [row["file"] for row in rows(out)] == [f"walks/03.csv:{t}" for t in range(burn_in, 23)]
    code, _, err = bisnn_("calibrate", "run", "-q")
    assert code == 1
    assert 'got a model with data.labels = "step"' in err


def test_a_folder_that_moved(bisnn_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i in range(30):
        file = tmp_path / "old" / "ab"[i % 2] / f"{i}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["x,z"] + [f"{t * (i % 2)},{i}" for t in range(12)]))
    assert bisnn_("new", "old", "--out", "my.toml")[0] == 0
    assert bisnn_("train", "my.toml", "--out", "run", *QUICK)[0] == 0
    (tmp_path / "old").rename(tmp_path / "new")
    assert bisnn_("evaluate", "run", "-q")[0] == 1
    assert bisnn_("evaluate", "run", "--data", "new", "-q")[0] == 0


def write_shd(file, count, seed):
    """Sweeps through the channels in SHD's layout, upwards or downwards, begun at any time."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    with h5py.File(file, "w") as target:
        times = target.create_dataset("spikes/times", (count,), dtype=h5py.vlen_dtype(np.float16))
        units = target.create_dataset("spikes/units", (count,), dtype=h5py.vlen_dtype(np.uint16))
        for i, label in enumerate(labels):
            at = np.sort(rng.random(300))
            heard = (at if label else 1 - at) * 699 + rng.normal(0, 20, 300)
            times[i] = (0.3 * rng.random() + 0.5 * at).astype(np.float16)
            units[i] = heard.clip(0, 699).astype(np.uint16)
        target["labels"] = labels
        target["extra/keys"] = np.array([b"down", b"up"])
        target["extra/speaker"] = np.zeros(count, np.int64)


def test_shd_by_tonic(tmp_path, monkeypatch):
    """Sweeps have the same counts in both classes: what tells them apart is their order."""
    pytest.importorskip("tonic")
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BISNN_DATA", str(tmp_path))
    (tmp_path / "SHD").mkdir()
    for part, count in (("train", 80), ("test", 40)):
        write_shd(tmp_path / "SHD" / f"shd_{part}.h5", count, len(part))
    looks = {"steps": 40, "bin_us": 20_000, "pool": 50}
    both = [
        FromTonic(tonic_dataset("SHD", tmp_path, train), **looks, start_us=0, show=False)
        for train in (True, False)
    ]
    parts = [[(spikes.flatten(1), label) for spikes, label in part] for part in both]
    learned = {
        "network": {"layers": [32], "readout_gain": 4.0},
        "neuron": {"tau_mem": 4.0, "tau_syn": 2.0, "tau_ref": 1.0, "threshold": 0.25, "slope": 4.0},
        "rule": {"name": "st", "lr": 0.1, "precondition": "adam", "clip": 1.0},
        "train": {"epochs": 8, "batch_size": 20, "over_time": "mean", "threads": 1},
    }
    section = {"name": "series", "steps": 40, "code": "spikes", "delays": [0, 3, 6]}
    series = parse({"version": 1, "data": section, **learned}, "series")
    run = bisnn.train(series, tmp_path / "series", data=Series(*parts), show=False)
    verdict = bisnn.evaluate(run, data=Series(*parts), show=False)
    assert verdict.metrics["sign"]["accuracy"].value > 0.9
    # The same file by its name, as the section of tonic's datasets reads it
    tonic = {"version": 1, "data": {"name": "tonic", "dataset": "SHD", **looks}, **learned}
    run = bisnn.train(parse(tonic, "tonic"), tmp_path / "tonic", show=False)
    assert bisnn.load(run).classes == ("down", "up")
    assert bisnn.evaluate(run, show=False).points == 40
