"""What a run shows while it trains: bars in a terminal, lines in a log, and TensorBoard."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from bisnn import display
from bisnn.runs import loop, monitoring, training
from bisnn.runs.folder import RunFolder
from runs import Killed, small, stop_after

# TensorBoard


def test_tensorboard_events(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = training.train(small(), tmp_path / "run", show=False)
    log = events.EventAccumulator(str(folder / "tensorboard"))
    log.Reload()
    rows = RunFolder(folder).read_metrics()
    np.testing.assert_allclose(
        [e.value for e in log.Scalars("loss")], [row["loss"] for row in rows], rtol=1e-6
    )
    assert "rate/layer_2" in log.Tags()["scalars"]


def test_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setattr(monitoring.importlib.util, "find_spec", lambda name: None)
    folder = training.train(small(), tmp_path / "run", show=False)
    assert not (folder / "tensorboard").exists()


# Bars and log lines


def test_progress_shows_what_happens_within_80_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    training.train(small(**{"data.validation": 0.25}), tmp_path / "run")
    shown = capsys.readouterr().err
    row = RunFolder(tmp_path / "run").read_metrics()[-1]
    # No colours; cursor moves end a line
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", re.sub(r"\x1b\[[0-9;]*m", "", shown))
    last = [line for line in plain.splitlines() if "4/4" in line][-1]
    assert len(last) <= 80
    assert (
        f"loss {row['loss']:.3g}  acc {row['accuracy']:.3f}  rates {row['rates'][0]:.2f} "
        f"{row['rates'][1]:.2f}" in last
    )
    assert f"flips {100 * row['flips']:.2g} %  val {row['validation']['loss']:.4f}" in last
    assert re.search(r"\d\d:\d\d", last), "time left"


def log_lines(tmp_path, monkeypatch, capsys, seconds, **changes):
    """What a run writes where stderr is no terminal; the clock is `seconds` on at every look."""
    clock = itertools.count(0, seconds)
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(clock)))
    training.train(small(**changes), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    if not lines[-1].startswith("epoch"):
        assert "near chance" in lines.pop()  # after a few epochs it may be
    return lines


def test_a_log_has_the_first_epoch_and_the_last(tmp_path, monkeypatch, capsys):
    lines = log_lines(tmp_path, monkeypatch, capsys, seconds=1e-4)
    rows = RunFolder(tmp_path / "run").read_metrics()
    assert len(lines) == 2
    for line, row in zip(lines, (rows[0], rows[-1]), strict=True):
        assert line.startswith(
            f"epoch {row['epoch']}/4  loss {row['loss']:.3g}  acc {row['accuracy']:.3f}  rates "
        )
    assert re.search(r"  0:00 left$", lines[0])
    assert "left" not in lines[1]


def test_a_log_has_a_line_every_ten_seconds(tmp_path, monkeypatch, capsys):
    """Within long epochs too, with the time left."""
    lines = log_lines(tmp_path, monkeypatch, capsys, seconds=7)
    assert len(lines) > 8
    places = [float(re.match(r"epoch ([\d.]+)/4  loss ", line)[1]) for line in lines]
    assert places == sorted(places)
    assert {1.0, 2.0, 3.0, 4.0} <= set(places)
    assert 0.25 in places, "a step of the first epoch"
    left = [
        int(minutes) * 60 + int(seconds)
        for minutes, seconds in re.findall(r"  (\d+):(\d\d) left$", "\n".join(lines), re.M)
    ]
    assert left[0] > left[-1] > 0


def test_a_log_ends_with_the_last_epoch_of_a_stopped_run(tmp_path, monkeypatch, capsys):
    stop_after(monkeypatch, 10)
    with pytest.raises(Killed):
        training.train(small(), tmp_path / "run")
    assert [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "epoch 1/4",
        "epoch 2/4",
    ]


def test_bars_are_lines_in_a_log(monkeypatch, capsys):
    now = itertools.count(0, 4)
    monkeypatch.setattr(display.time, "monotonic", lambda: float(next(now)))
    with display.bars(show=True) as progress:
        bar = progress.add_task("recordings", total=1000)
        for _ in range(10):
            progress.advance(bar, 100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert lines[-1] == "recordings: 100 %"
    assert re.fullmatch(r"recordings: \d0 %  0:\d\d left", lines[0])
    monkeypatch.setattr(display.time, "monotonic", lambda: 0.0)
    for show in (True, False):
        with display.bars(show=show) as progress:
            assert list(progress.track(range(3), description="quick")) == [0, 1, 2]
    assert capsys.readouterr().err == "", "what takes less than ten seconds needs no line"
