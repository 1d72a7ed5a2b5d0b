"""Predictions on the command line: tables and CSV, of points and recordings, with any names."""

from __future__ import annotations

import csv
import re
import shutil
import sys

import numpy as np
import pytest

import bisnn
from bisnn import display
from bisnn.data import events
from bisnn.runs import training
from runs import made_up, run_of_both_rules, run_on_recordings, small


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run_of_both_rules(tmp_path_factory.mktemp("cli"))


def test_predictions_as_csv(bisnn_, trained, tmp_path):
    x = np.random.default_rng(0).random((4, 2))
    np.save(tmp_path / "x.npy", x)
    expected = bisnn.load(trained).predict(x)
    code, out, _ = bisnn_("predict", trained, tmp_path / "x.npy")
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0
    assert [float(row["p(1)"]) for row in rows] == expected.mean[:, 1].tolist()
    assert [
        float(row["mutual_information"]) for row in rows
    ] == expected.mutual_information.tolist()
    assert [int(row["class"]) for row in rows] == expected.mean.argmax(-1).tolist()
    # Enough for a bar, which must not get into the output
    np.save(tmp_path / "many.npy", np.tile(x, (70, 1)))
    code, out, _ = bisnn_("predict", trained, tmp_path / "many.npy")
    assert len(list(csv.DictReader(out.splitlines()))) == 280
    assert out.startswith("class,confidence,")
    code, out, _ = bisnn_(
        "predict", trained, tmp_path / "x.npy", "--map", "--out", tmp_path / "p.csv"
    )
    assert "4 predictions" in out
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [float(row["p(1)"]) for row in rows] == bisnn.load(trained).predict(
        x, samples=None
    ).mean[:, 1].tolist()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return run_on_recordings(tmp_path_factory.mktemp("recorded"))


def test_predictions_on_recordings(bisnn_, recorded, tmp_path, monkeypatch):
    run, root = recorded
    alone = shutil.copy(root / "Train" / "7" / "00002.bin", tmp_path / "alone [red].bin")
    files = [*sorted(root.glob("Test/*/*.bin")), alone]
    expected = bisnn.load(run).predict_recordings(files)
    code, out, error = bisnn_("predict", run, root / "Test", alone)
    rows = list(csv.DictReader(out.splitlines()))
    assert (code, error) == (0, "")
    assert list(rows[0]) == [
        "file",
        "class",
        "confidence",
        "p(3)",
        "p(7)",
        "entropy",
        "mutual_information",
    ]
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert [row["class"] for row in rows] == ["37"[i] for i in expected.mean.argmax(-1)]
    for name, values in (
        ("p(7)", expected.mean[:, 1]),
        ("entropy", expected.entropy),
        ("confidence", expected.mean.amax(-1)),
    ):
        assert [float(row[name]) for row in rows] == values.tolist()
    code, out, _ = bisnn_("predict", run, root / "Test" / "3", "--map", "--out", tmp_path / "p.csv")
    assert (code, out) == (0, f"2 predictions: {tmp_path / 'p.csv'}\n")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert {float(row["mutual_information"]) for row in rows} == {0.0}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = bisnn_("predict", run, alone)
    assert code == 0
    assert "alone [red].bin" in out
    assert "mutual_information" in out
    assert "p(3)" not in out, "ten of these would not fit"


def test_recordings_that_cannot_be_predicted(bisnn_, recorded, trained, tmp_path):
    run, root = recorded
    good = root / "Test" / "3"
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.bin").write_bytes(b"\xff" * 100)
    (tmp_path / "points.csv").write_text("1,2\n")
    events.write_aedat(tmp_path / "large.aedat", made_up(100, 128, 0))
    cases = {
        "nothing.bin": "nothing.bin: there is no such file",
        "noise.bin": "noise.bin: 20 of 20 addresses are outside the sensor",
        "empty": "empty: is a folder without recordings",
        "points.csv": "points.csv: must name its columns t, x, y and p; got '1, 2'",
        "large.aedat": (
            "large.aedat: must have the 34 x 34 pixels that the model was trained on; got 128 x 128"
        ),
    }
    for name, message in cases.items():
        code, out, error = bisnn_(
            "predict", run, good, tmp_path / name, "--out", tmp_path / "p.csv"
        )
        assert (code, out, error.count("\n")) == (1, "", 1)
        assert error.startswith("bisnn: ")
        assert message in error
        assert not (tmp_path / "p.csv").exists()
    code, _, error = bisnn_("predict", trained, tmp_path / "points.csv", good)
    assert (code, error.count("\n")) == (1, 1)
    assert "was trained on points, which come in one file; got 2" in error


def test_what_predictions_leave_out_goes_to_stderr(bisnn_, recorded, tmp_path):
    run, root = recorded
    content = (root / "Test" / "3" / "00001.bin").read_bytes()
    (tmp_path / "spoilt.bin").write_bytes(content + bytes([200, 3, 0, 0, 0]))
    code, out, error = bisnn_("predict", run, tmp_path / "spoilt.bin")
    assert (code, len(out.splitlines())) == (0, 2)
    assert error == "recordings: events left out of 1 recording (outside the sensor: 1)\n"


def test_names_are_no_markup(bisnn_, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [f"{i % 7},{i % 5},{('[red]', '[/b]')[i % 2]}" for i in range(40)]
    (tmp_path / "points.csv").write_text("\n".join(rows))
    settings = small("st", {"data": {"name": "table", "train": str(tmp_path / "points.csv")}})
    (tmp_path / "small.toml").write_text(settings.to_toml())
    folder = tmp_path / "a [/b] [red] b"
    code, out, error = bisnn_("train", tmp_path / "small.toml", "--out", folder, "-q")
    assert code == 0
    # That the features say nothing
    assert all(line.startswith(f"{folder}: ") for line in error.splitlines())
    assert f"report: {folder / 'report.html'}\n" in out
    (tmp_path / "x.csv").write_text("1,2\n")
    code, out, error = bisnn_("predict", folder, tmp_path / "x.csv")
    assert (code, error) == (0, "")
    assert "p([red])" in out


FORMULA, ESCAPE = "=cmd|' /C calc'!A0", "a\x1b]0;owned\x07\x9b2J\u202eb"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run and a folder with names that a spreadsheet or a terminal would obey."""
    folder = tmp_path_factory.mktemp("hostile")
    classes = [FORMULA, ESCAPE, "-1", "@x", "+1e3", "-x"]
    rows = [[i % 7, i % 5, classes[i % 6]] for i in range(120)]
    with open(folder / "points.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    config = small("st", {"data": {"name": "table", "train": str(folder / "points.csv")}})
    return training.train(config, folder / "run", show=False), classes


def test_no_cell_of_a_csv_is_a_formula(bisnn_, hostile, tmp_path):
    run, classes = hostile
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(0, 6, (200, 2)))
    code, _, error = bisnn_("predict", run, tmp_path / "x.npy", "--out", tmp_path / "p.csv")
    assert (code, error) == (0, "")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()))
    meant = [
        bisnn.load(run).classes[i]
        for i in bisnn.load(run).predict(np.load(tmp_path / "x.npy")).mean.argmax(-1)
    ]
    assert {FORMULA, "-1"} <= set(meant)
    written = {FORMULA: f"'{FORMULA}", "@x": "'@x", "-x": "'-x"}
    assert [row["class"] for row in rows] == [
        written.get(name, display.visible(name)) for name in meant
    ]
    shown = [f"p({display.visible(name)})" for name in sorted(classes)]
    assert [header for header in rows[0] if header.startswith("p(")] == shown
    assert "\x1b" not in (tmp_path / "p.csv").read_text(encoding="utf-8"), (
        "a CSV may be piped to a terminal"
    )


def test_names_do_not_command_the_terminal(bisnn_, hostile, recorded, tmp_path, monkeypatch):
    run, _ = hostile
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    outputs = [bisnn_("predict", run, tmp_path / "x.npy")]
    assert r"p(a\x1b]0;owned\x07\x9b2J\u202eb)" in outputs[0][1]
    strange = tmp_path / f"{ESCAPE} \udcff.bin"
    shutil.copy(next(recorded[1].glob("Test/3/*.bin")), strange)
    outputs += [
        bisnn_("inspect", strange, "--out", f"{strange}.png"),
        bisnn_("predict", recorded[0], strange),
    ]
    strange.write_bytes(b"abc")
    outputs += [
        bisnn_("predict", recorded[0], strange),
        bisnn_("report", tmp_path / ESCAPE),
        bisnn_("train", ESCAPE),
    ]
    for _, out, error in outputs:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", out + error)  # without our own colours
        assert "owned" in plain
        assert not set("\x1b\x07\x9b\u202e\udcff") & set(plain)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    shutil.copy(next(recorded[1].glob("Test/3/*.bin")), strange)
    code, out, _ = bisnn_("predict", recorded[0], strange)
    assert (code, r"\udcff.bin" in out) == (0, True), (
        "a byte that is no UTF-8 does not stop predictions"
    )
    assert [code for code, *_ in outputs] == [0, 0, 0, 1, 1, 1]
