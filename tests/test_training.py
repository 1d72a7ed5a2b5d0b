"""Training runs: what is learned and written, what is kept, and when a run stops with advice."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

import bisnn
from bisnn import encode
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.errors import Stopped
from bisnn.losses import local_loss
from bisnn.runs import evaluation, monitoring, training
from bisnn.runs.building import build_network
from bisnn.runs.folder import RunFolder
from bisnn.runs.inputs import load_dataset, spikes, training_spikes
from bisnn.runs.model import load
from runs import ONE_D, RULES, Killed, files, small, stop_after

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


def test_a_validation_loss_that_is_not_finite_is_never_the_best(tmp_path, monkeypatch):
    losses = iter([math.nan, 0.3, math.inf, 0.4])
    monkeypatch.setattr(training.Training, "_validate", lambda self: {"loss": next(losses)})
    folder = training.train(
        small(**{"data.validation": 0.25, "train.keep": "best"}), tmp_path / "run", show=False
    )
    assert load(folder).epoch == 2


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_no_gpu_is_a_clear_message(tmp_path):
    with pytest.raises(
        ValueError, match="needs a GPU that PyTorch can use, and there is none; use --set train"
    ):
        training.train(small(**{"train.device": "cuda"}), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
