"""Training runs: what is learned and written, and that stopping at any moment changes nothing."""

from __future__ import annotations

import errno
import itertools
import math
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import bisnn
from bisnn import display, encode
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.errors import Interrupted, Stopped
from bisnn.losses import local_loss
from bisnn.runs import evaluation, loop, monitoring, training
from bisnn.runs import folder as checkpoint
from bisnn.runs.folder import RunFolder
from bisnn.runs.inputs import load_dataset, spikes, training_spikes
from bisnn.runs.model import build_network, load
from runs import ONE_D, RULES, files, small

# What a run does


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_trains_on_both_tasks(tmp_path, rule):
    for name, sections in (("classes", {}), ("regression", ONE_D)):
        folder = training.train(small(rule, sections), tmp_path / name, show=False)
        rows = RunFolder(folder).read_metrics()
        assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
        assert all(math.isfinite(row["loss"]) and len(row["rates"]) == 2 for row in rows)
        model = load(folder)
        assert (model.members is None) == ("bayes" not in rule)
        assert model.epoch == 4


def by_hand(config, steps):
    """The same training as a plain loop over the public parts, without files."""
    data = load_dataset(config).train
    net = build_network(config, (20,), 2)
    rule = bisnn.BayesBiSNN(
        net.parameters(),
        config.rule.lr,
        config.rule.temperature,
        precondition="adam",
        seed=config.seed,
    )
    per_epoch = math.ceil(len(data.x) / config.train.batch_size)
    for step in range(steps):
        epoch, position = divmod(step, per_epoch)
        order = philox.permutation(len(data.x), config.seed, Purpose.SHUFFLING, epoch)
        batch = torch.from_numpy(
            order[position * config.train.batch_size :][: config.train.batch_size]
        )
        total = config.train.epochs * per_epoch
        rule.param_groups[0]["lr"] = config.rule.lr * 0.5 * (1 + math.cos(math.pi * step / total))
        with rule.sampled():
            x = training_spikes(config, data.x[batch], epoch, batch)
            local_loss(net(x), data.y[batch], burn_in=config.train.burn_in).backward()
        rule.step()
    return net


def test_run_equals_a_plain_loop(tmp_path):
    config = small(**{"train.schedule": "cosine"})
    folder = training.train(config, tmp_path / "run", show=False)
    net = by_hand(config, 16)
    for ours, theirs in zip(load(folder).net.parameters(), net.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_rows_say_what_happened(tmp_path):
    config = small("st", **{"data.validation": 0.25, "train.epochs": 2})
    folder = RunFolder(training.train(config, tmp_path / "run", show=False))
    rows = folder.read_metrics()
    start = build_network(config, (20,), 2)
    middle, end = (
        training.Training(config, training.Processes(0, 1, torch.device("cpu"))) for _ in range(2)
    )
    for training_, steps in ((middle, 3), (end, 6)):
        for _ in range(steps):
            training_.update()
    pairs = ((rows[0], start, middle.net), (rows[1], middle.net, end.net))
    for row, before, after in pairs:
        flips = [
            ((a >= 0) != (b >= 0)).double().flatten()
            for a, b in zip(before.parameters(), after.parameters(), strict=True)
        ]
        assert row["flips"] == pytest.approx(float(torch.cat(flips).mean()))
        assert row["validation"].keys() == {"loss", "accuracy"}
        assert 0 <= row["accuracy"] <= 1
    assert rows[0]["flips"] > 0


def test_encoding_is_anew_each_epoch():
    config = small()
    x = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    whole = training_spikes(config, x, 3, torch.arange(6))
    some = torch.tensor([4, 1])
    assert torch.equal(training_spikes(config, x[some], 3, some), whole[:, some])
    for other in (
        training_spikes(config, x, 4, torch.arange(6)),
        spikes(config, x, encoding_number=3),
        training_spikes(config.updated(seed=1), x, 3, torch.arange(6)),
    ):
        assert not torch.equal(other, whole)
    rates = encode.population_rates(x, 10, 1.0)
    many = torch.stack(
        [training_spikes(config, x, e, torch.arange(6)).float().mean(0) for e in range(300)]
    ).mean(0)
    # 9000 draws each: five standard errors
    torch.testing.assert_close(many, rates, atol=0.03, rtol=0)


# Validation


def test_best_and_patience(tmp_path, monkeypatch):
    losses = iter([0.5, 0.3, 0.4, 0.45, 0.1])
    monkeypatch.setattr(training.Training, "_validate", lambda self: {"loss": next(losses)})
    seen = []
    update = training.Training.update
    monkeypatch.setattr(
        training.Training,
        "update",
        lambda self: (
            update(self),
            seen.append([p.detach().clone() for p in self.net.parameters()]),
        )[0],
    )
    changes = {"train.epochs": 9, "data.validation": 0.25, "train.patience": 2}
    folder = training.train(
        small(**changes, **{"train.keep": "best"}), tmp_path / "run", show=False
    )
    assert len(RunFolder(folder).read_metrics()) == 4, "two validations without a better one: stop"
    model = load(folder)
    assert model.epoch == 2
    per_epoch = len(seen) // 4
    for ours, theirs in zip(model.net.parameters(), seen[2 * per_epoch - 1], strict=True):
        assert torch.equal(ours, theirs)
    before = files(folder)
    assert training.resume(folder, show=False) == folder, "a run that stopped early is finished"
    assert files(folder) == before
    for name in ("state.safetensors", "state.previous.safetensors"):
        (folder / name).unlink()
    training.resume(folder, show=False)
    assert files(folder) == before, "and so is one without its checkpoints"


def test_validate_every(tmp_path):
    config = small(**{"data.validation": 0.25, "train.validate_every": 3, "train.epochs": 4})
    rows = RunFolder(training.train(config, tmp_path / "run", show=False)).read_metrics()
    assert ["validation" in row for row in rows] == [False, False, True, False]


# Killed and resumed


class Killed(BaseException):
    """Stops a run in this process where nothing catches it."""


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
        time.sleep(draw.uniform(0.05, 0.4))
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


def stop_after(monkeypatch, steps):
    update = training.Training.update

    def stopping(self):
        if self.step == steps:
            raise Killed
        return update(self)

    monkeypatch.setattr(training.Training, "update", stopping)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"neuron.threshold": 50.0},
            "layer 1 fell silent .* in epoch 1.*lower neuron.threshold, raise encode.width, or",
        ),
        (
            {"neuron.threshold": 50.0, "encode.code": "rate"},
            "layer 1 fell silent .*lower neuron.threshold, or set train.activity",
        ),
        ({"rule.lr": 1e38, "rule.precondition": "none"}, "NaN or infinite in epoch 1; lower rule"),
    ],
)
def test_hopeless_runs_stop_with_advice(tmp_path, change, message):
    with pytest.raises(Stopped, match=message):
        training.train(small(**change), tmp_path / "run", show=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_saturated_runs_stop_with_advice(tmp_path, monkeypatch):
    # The refractory feedback keeps small networks well below the real bound
    monkeypatch.setattr(monitoring, "SATURATED", 0.05)
    with pytest.raises(Stopped, match=r"is saturated .* raise neuron\.threshold"):
        training.train(small(), tmp_path / "run", show=False)


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


def test_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        training.train(small(), tmp_path / "file" / "run", show=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        training.train(small(), tmp_path / "run", show=False)


def test_a_start_that_fails_leaves_no_folder(tmp_path):
    data = {"name": "table", "train": str(tmp_path / "missing.csv")}
    with pytest.raises(ValueError, match="there is no such file"):
        training.train(small("st", {"data": data}), tmp_path / "run", show=False)
    with pytest.raises(ValueError, match=r"data\.validation: leaves no training point of 40"):
        training.train(small(**{"data.validation": 0.99}), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


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


def test_a_validation_loss_that_is_not_finite_is_never_the_best(tmp_path, monkeypatch):
    losses = iter([math.nan, 0.3, math.inf, 0.4])
    monkeypatch.setattr(training.Training, "_validate", lambda self: {"loss": next(losses)})
    folder = training.train(
        small(**{"data.validation": 0.25, "train.keep": "best"}), tmp_path / "run", show=False
    )
    assert load(folder).epoch == 2


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


# GPUs


def test_graphs_are_recorded_once_mini_batches_of_all_sizes_have_passed(tmp_path):
    """In the epoch after this process's first: shown by a stand-in for the graphs, on the CPU."""

    class Graphs:
        def __init__(self):
            self.calls = []

        def run(self, function, x, *rest, record):
            self.calls.append((x.shape[1], record))
            return function(x, *rest)

    def run_for(steps, state=None):
        run = training.Training(small(), training.Processes(0, 1, torch.device("cpu")), show=False)
        if state is not None:
            run.load(state, RunFolder(tmp_path))
        run._graphs = Graphs()
        for _ in range(steps):
            run.update()
        return run

    begun = run_for(6)
    assert begun._graphs.calls == [
        (12, False),
        (12, False),
        (12, False),
        (4, False),
        (12, True),
        (12, True),
    ]
    resumed = run_for(4, begun.state())
    assert resumed._graphs.calls == [(12, False), (4, False), (12, True), (12, True)]
    plain = run_for(0)
    plain._graphs = None
    for _ in range(10):
        plain.update()
    for p, q in zip(plain.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rule", RULES)
def test_training_on_a_gpu(tmp_path, monkeypatch, rule):
    """Learns what the CPU learns, resumes, and its model runs anywhere."""
    config = small(rule, **{"train.device": "cuda", "data.validation": 0.25, "train.keep": "best"})
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(Killed):
            training.train(config, tmp_path / "run", show=False)
    training.resume(tmp_path / "run", show=False)
    rows = RunFolder(tmp_path / "run").read_metrics()
    on_cpu = RunFolder(
        training.train(config.updated(**{"train.device": "cpu"}), tmp_path / "cpu", show=False)
    ).read_metrics()
    if rule != "bayes" and rule != "bayes, plain":  # whose draws differ between devices
        np.testing.assert_allclose(
            [row["loss"] for row in rows], [row["loss"] for row in on_cpu], rtol=0.05
        )
    assert evaluation.evaluate(tmp_path / "run", show=False).points == 60


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_processes_on_a_gpu(tmp_path):
    """nccl: one process a GPU, as many as there are."""
    count = torch.cuda.device_count()
    with train_with_torchrun(tmp_path, small(**{"train.device": "cuda"}), "run", count) as done:
        assert done.communicate(timeout=200)
    assert done.returncode == 0
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_no_gpu_is_a_clear_message(tmp_path):
    with pytest.raises(
        ValueError, match="needs a GPU that PyTorch can use, and there is none; use --set train"
    ):
        training.train(small(**{"train.device": "cuda"}), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


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


# Several processes


def torchrun(*arguments, processes=2):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        "-m",
        "bisnn",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [*map(str, arguments), "--no-report", "--quiet"]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def train_with_torchrun(tmp_path, config, name, processes=2):
    (tmp_path / f"{name}.toml").write_text(config.to_toml())
    return torchrun(
        "train", tmp_path / f"{name}.toml", "--out", tmp_path / name, processes=processes
    )


@pytest.mark.skipif(sys.platform != "linux", reason="gloo between local processes")
@pytest.mark.parametrize(("rule", "steps"), [("bayes", 1), ("bayes", 21), ("st", 21)])
def test_two_processes_equal_one(tmp_path, rule, steps):
    """One float32 step to 1e-6; 21 float64 steps with equal signs and a last batch of one point."""
    changes = {"train.epochs": 1, "train.batch_size": 50}
    if steps > 1:
        # 43 points
        changes = {
            "train.epochs": 3,
            "train.batch_size": 7,
            "train.dtype": "float64",
            "data.validation": 0.14,
        }
    config = small(rule, **changes, **{"data.train": 25, "train.checkpoint_seconds": 1e6})
    with train_with_torchrun(tmp_path, config, "run") as done:
        error = done.communicate(timeout=200)[1]
    assert done.returncode == 0, error
    expected = training.train(config, tmp_path / "alone", show=False)
    rows, alone = RunFolder(tmp_path / "run").read_metrics(), RunFolder(expected).read_metrics()
    assert rows[-1]["step"] == alone[-1]["step"] == steps
    for p, q in zip(
        load(tmp_path / "run").net.parameters(), load(expected).net.parameters(), strict=True
    ):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0)
        assert torch.equal(p >= 0, q >= 0)
    for row, other in zip(rows, alone, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert row["flips"] == other["flips"]
        assert row.get("validation", {}) == pytest.approx(other.get("validation", {}), rel=1e-6)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {p.name for p in expected.iterdir()} | {".torchrun"}, (
        "only the first process writes"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="gloo between local processes")
def test_several_processes_fail_with_one_message(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("x")
    with train_with_torchrun(tmp_path, small(), "run") as done:
        error = done.communicate(timeout=200)[1]
    assert done.returncode != 0
    assert error.count("is not empty; give another folder") == 1
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="gloo between local processes")
def test_several_processes_stop_and_resume_to_the_same_bits(tmp_path):
    config = small(**{"train.epochs": 200, "train.checkpoint_seconds": 1e6})
    with train_with_torchrun(tmp_path, config, "whole") as done:
        done.communicate(timeout=200)
    with train_with_torchrun(tmp_path, config, "cut") as first:
        while not (tmp_path / "cut" / "metrics.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.05)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=200)
    rows = len(RunFolder(tmp_path / "cut").read_metrics())
    assert 0 < rows < 200
    with torchrun("resume", tmp_path / "cut") as second:
        error = second.communicate(timeout=200)[1]
    assert second.returncode == 0, error
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


# What the user sees


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
