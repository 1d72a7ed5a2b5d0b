"""Runs that are killed, stopped or continued end with the same bits as uninterrupted ones."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import pytest
import torch

from bisnn.errors import Interrupted, Stopped
from bisnn.runs import evaluation, loop, training
from bisnn.runs import folder as checkpoint
from bisnn.runs.folder import RunFolder
from bisnn.runs.model import load
from runs import RULES, Killed, files, small, stop_after

# Killed and resumed


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    config = small(**{"data.validation": 0.25, "train.keep": "best"})
    return config, files(
        training.train(config, tmp_path_factory.mktemp("whole") / "run", show=False)
    )


def run_in_a_child(function, *arguments):
    """A forked process, which has everything imported."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def die_at(operation_number, config, folder):
    """Train in a process that ends, with no clean-up whatever, before its n-th file operation."""
    count = 0

    def counted(real):
        def operation(*arguments):
            nonlocal count
            count += 1
            if count == operation_number:
                os._exit(9)
            return real(*arguments)

        return operation

    for name in ("replace", "fsync"):
        setattr(os, name, counted(getattr(os, name)))
    training.train(config, folder, show=False)


def go_on(folder, config):
    if (folder / "config.toml").exists():
        training.resume(folder, show=False)
    else:
        training.train(config, folder, show=False)


def test_a_kill_at_every_file_operation_changes_nothing(tmp_path):
    config = small(
        **{"data.validation": 0.25, "train.keep": "best", "train.epochs": 2, "data.train": 12}
    )
    expected = files(training.train(config, tmp_path / "whole", show=False))
    kills = 0
    while True:
        folder = tmp_path / str(kills)
        process = run_in_a_child(die_at, kills + 1, config, folder)
        process.join()
        if process.exitcode == 0:
            break  # fewer operations than that
        assert process.exitcode == 9
        kills += 1
        go_on(folder, config)
        assert files(folder) == expected, f"killed before file operation {kills}"
    assert kills > 20


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_kill_9_at_random_moments_changes_nothing(tmp_path, seconds):
    """Also where several epochs lie between two checkpoints, and are done again."""
    changes = {
        "train.epochs": 40,
        "data.validation": 0.25,
        "train.keep": "best",
        "train.checkpoint_seconds": seconds,
    }
    config = small(**changes)
    expected = files(training.train(config, tmp_path / "whole", show=False))
    folder = tmp_path / "killed"
    seed = time.time_ns()
    draw = random.Random(seed)
    kills = 0
    while kills < 8:
        process = run_in_a_child(go_on, folder, config)
        time.sleep(draw.uniform(0.05, 0.4 if kills else 0.1))  # the first one before the run's end
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:
            break
    go_on(folder, config)
    assert kills >= 1, f"seed {seed}"
    assert files(folder) == expected, f"seed {seed}"


def test_damaged_checkpoint_is_told_and_the_previous_one_used(
    tmp_path, monkeypatch, uninterrupted, capsys
):
    config, expected = uninterrupted
    folder = tmp_path / "run"
    stop_after(monkeypatch, 9)
    with pytest.raises(Killed):
        training.train(config, folder, show=False)
    monkeypatch.undo()
    state = folder / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    training.resume(folder, show=False)
    assert "using the checkpoint before it" in capsys.readouterr().err
    assert files(folder) == expected


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_resumes_to_the_same_bits(tmp_path, monkeypatch, rule):
    config = small(rule, **{"train.epochs": 3, "train.schedule": "cosine"})
    expected = files(training.train(config, tmp_path / "whole", show=False))
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(Killed):
            training.train(config, tmp_path / "cut", show=False)
    training.resume(tmp_path / "cut", show=False)
    assert files(tmp_path / "cut") == expected


@pytest.fixture
def signals_as_usual():
    """A shell that starts tests in the background ignores SIGINT, and what is ignored stays so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


SELDOM = {"data.validation": 0.25, "train.checkpoint_seconds": 1e6}


@pytest.mark.parametrize(
    "signal_at", [None, 3, 4, 5]
)  # epochs have three steps; a signal is read with the sums, at the end of an epoch at once
@pytest.mark.usefixtures("signals_as_usual")
def test_sums_that_are_read_late_are_the_same(tmp_path, monkeypatch, signal_at):
    """As on a GPU: each step begins before the sums of the one before it are read."""
    expected = files(training.train(small(**SELDOM), tmp_path / "whole", show=False))
    monkeypatch.setitem(loop.AHEAD, "cpu", 1)
    update, folder = training.Training.update, tmp_path / "run"

    def interrupted(self):
        if self.step == signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self)

    monkeypatch.setattr(training.Training, "update", interrupted)
    with nullcontext() if signal_at is None else pytest.raises(Interrupted):
        training.train(small(**SELDOM), folder, show=False)
    if signal_at is not None:
        # Points of the epoch under way
        assert RunFolder(folder).load_state()[0]["sums"][0] == {3: 24, 4: 0, 5: 0}[signal_at]
        signal_at = None
        training.resume(folder, show=False)
    assert files(folder) == expected


@pytest.mark.parametrize("step", [4, 5])
def test_a_nan_that_is_read_late_stops_the_run_too(tmp_path, monkeypatch, step):
    monkeypatch.setitem(loop.AHEAD, "cpu", 1)
    update = training.Training.update
    spoilt = lambda self: update(self) * (math.nan if self.step == step + 1 else 1)  # noqa: E731
    monkeypatch.setattr(training.Training, "update", spoilt)
    with pytest.raises(Stopped, match="NaN or infinite in epoch 2"):
        training.train(small(**SELDOM), tmp_path / "run", show=False)
    assert len(RunFolder(tmp_path / "run").read_metrics()) == 1
    assert RunFolder(tmp_path / "run").load_state()[0] is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("signals_as_usual")
def test_signals_save_and_say_how_to_resume(tmp_path, monkeypatch, uninterrupted, number):
    config, expected = uninterrupted
    folder = tmp_path / "run"
    update = training.Training.update

    def interrupted(self):
        if self.step == 4:
            os.kill(os.getpid(), number)
        return update(self)

    with monkeypatch.context() as patch:
        patch.setattr(training.Training, "update", interrupted)
        # So that only the signal saves
        settings = config.updated(**{"train.checkpoint_seconds": 1e6})
        with pytest.raises(
            Interrupted,
            match=f"stopped in epoch 2 of 4 and saved; go on with: bisnn resume {folder}",
        ) as error:
            training.train(settings, folder, show=False)
    assert error.value.signal == number
    assert RunFolder(folder).load_state()[0]["step"] == 5
    assert load(folder).epoch == 1, "what there is can be looked at already"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "handlers are put back"
    training.resume(folder, show=False)
    assert {**files(folder), "config.toml": b"", "model.safetensors": b""} == {
        **expected,
        "config.toml": b"",
        "model.safetensors": b"",
    }
    for ours, theirs in zip(
        load(folder).net.parameters(), model_of(expected, tmp_path).net.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def model_of(run, tmp_path):
    (tmp_path / "expected.safetensors").write_bytes(run["model.safetensors"])
    return load(tmp_path / "expected.safetensors")


@pytest.mark.parametrize("name", ["update", "_end_epoch"])
def test_a_signal_in_the_last_step_is_not_lost(tmp_path, monkeypatch, uninterrupted, name):
    config, expected = uninterrupted
    method = getattr(training.Training, name)
    monkeypatch.setattr(
        training.Training,
        name,
        lambda self: (method(self), self.step == 12 and os.kill(os.getpid(), 15))[0],
    )
    with pytest.raises(Interrupted, match="stopped at its end and saved"):
        training.train(config, tmp_path / "run", show=False)
    assert files(tmp_path / "run") == expected


def test_training_in_a_thread_takes_no_signals(tmp_path):
    thread = threading.Thread(
        target=training.train, args=(small(), tmp_path / "run"), kwargs={"show": False}
    )
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "model.safetensors").exists()


# Things that go wrong


def test_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch, uninterrupted):
    config, expected = uninterrupted
    folder = tmp_path / "run"
    real, calls = os.fsync, [0]

    def full(descriptor):
        calls[0] += 1
        if calls[0] > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            training.train(config, folder, show=False)
    assert f"make room, then bisnn resume {folder}" in str(error.value)
    assert not list(folder.glob("*.tmp")) + list(folder.glob(".*.tmp"))
    training.resume(folder, show=False)
    assert files(folder) == expected


def test_settings_and_data_must_be_those_the_run_began_with(tmp_path, monkeypatch):
    rows = [f"{i % 7},{i % 5},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "points.csv").write_text("\n".join(rows))
    config = small("st", {"data": {"name": "table", "train": str(tmp_path / "points.csv")}})
    folder = tmp_path / "run"
    stop_after(monkeypatch, 5)
    with pytest.raises(Killed):
        training.train(config, folder, show=False)
    monkeypatch.undo()
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("lr = 0.5", "lr = 0.6"))
    with pytest.raises(
        ValueError, match=r"was changed since the run began, in rule\.lr; change it back"
    ):
        training.resume(folder, show=False)
    (folder / "config.toml").write_text(text)
    (tmp_path / "points.csv").write_text("\n".join([*rows[1:], rows[0]]))
    with pytest.raises(ValueError, match=r"is not what .* began with"):
        training.resume(folder, show=False)
    (tmp_path / "points.csv").write_text("\n".join(rows))
    training.resume(folder, show=False)
    (tmp_path / "points.csv").write_text("\n".join(rows[1:]))
    with pytest.raises(ValueError, match=r"is not what .* began with"):
        evaluation.evaluate(folder, show=False)


def test_resume_of_nothing(tmp_path):
    with pytest.raises(ValueError, match="there is no such run folder"):
        training.resume(tmp_path / "nothing")
    with pytest.raises(ValueError, match="it has no config"):
        training.resume(tmp_path)


def test_two_writers(tmp_path):
    folder = training.train(small(), tmp_path / "run", show=False)
    code = (
        f"from bisnn.runs.folder import RunFolder\nwith RunFolder({str(folder)!r}).locked(): "
        "print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        before = files(folder)
        with pytest.raises(ValueError, match="another process is writing this run"):
            training.resume(folder, show=False)
        assert files(folder) == before
        other.communicate("\n")
    training.resume(folder, show=False)


# Going on with other settings


def test_a_finished_run_gets_more_epochs(tmp_path):
    """As if it had been asked for so many at once, also with a learning rate that falls."""
    for schedule in ("constant", "cosine"):
        config = small(**{"train.schedule": schedule})
        folder = training.train(config, tmp_path / schedule, show=False)
        training.resume(folder, ["train.epochs=7"], show=False)
        rows = RunFolder(folder).read_metrics()
        assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
        assert (
            load(folder).epoch
            == load(folder).config.train.epochs
            == RunFolder(folder).read_config().train.epochs
            == 7
        )
        whole = training.train(
            config.updated(**{"train.epochs": 7}), tmp_path / f"{schedule} at once", show=False
        )
        if schedule == "constant":
            assert files(folder) == files(whole)
        else:  # the first four fell to 0; from there on the rates are those of seven epochs
            assert [row["lr"] for row in rows[4:]] == [
                row["lr"] for row in RunFolder(whole).read_metrics()[4:]
            ]


def test_more_epochs_survive_a_kill(tmp_path, monkeypatch):
    """Before the longer run's first checkpoint, when config and metrics are ahead of the state."""
    rare = {"train.checkpoint_seconds": 1e6}
    whole = training.train(small(**rare, **{"train.epochs": 7}), tmp_path / "whole", show=False)
    folder = training.train(small(**rare), tmp_path / "run", show=False)
    for steps, overrides in ((16, ["train.epochs=7"]), (22, ())):  # an epoch has four
        with monkeypatch.context() as patch:
            stop_after(patch, steps)
            with pytest.raises(Killed):
                training.resume(folder, overrides, show=False)
    assert len(RunFolder(folder).read_metrics()) == 5
    training.resume(folder, show=False)
    assert files(folder) == files(whole)


def test_more_patience_trains_on(tmp_path):
    # Nothing is learned, so every validation is the same
    changes = {
        "data.validation": 0.25,
        "train.epochs": 30,
        "rule.lr": 1e-9,
    }
    folder = training.train(
        small("st", **changes, **{"train.patience": 2}), tmp_path / "run", show=False
    )
    before = len(RunFolder(folder).read_metrics())
    assert before < 30
    training.resume(folder, [f"train.patience={before + 3}"], show=False)
    assert len(RunFolder(folder).read_metrics()) > before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "rule.lr=1",
            r"--set rule\.lr: a run keeps the settings it began with, but for train\.epochs, "
            r"train\.patience",
        ),
        ("train.epochs=3", r"train\.epochs: the run is in epoch 4 already; got 3; give 4 or more"),
        ("train.epochs=x", r"train\.epochs: must be a valid integer"),
        ("epochs=9", r"epochs: unknown key; the nearest valid key is train\.epochs"),
    ],
)
def test_other_settings_stay(tmp_path, override, message):
    folder = training.train(small(), tmp_path / "run", show=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(ValueError, match=message):
        training.resume(folder, [override], show=False)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
