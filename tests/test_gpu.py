"""CUDA graphs of a training step: the same bits, no memory kept, gradients safe after an error."""

from __future__ import annotations

import functools
import gc

import pytest
import torch

from bisnn.kernels.graphs import Graphs
from bisnn.runs import loop, training
from bisnn.runs.config import parse
from runs import RECORDED, RULES, files, made_up_nmnist, small

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Counted(Graphs):
    """Counts what it records."""

    recorded = 0

    def _record(self, function, inputs):
        Counted.recorded += 1
        return super()._record(function, inputs)


class Unrecorded(Graphs):
    """Runs the function itself, every time."""

    def run(self, function, *inputs, record=True):
        return function(*inputs)


def both(config, folder, monkeypatch) -> list[dict[str, bytes]]:
    """The files of a run with graphs, of mini-batches of two sizes, and of one without."""
    monkeypatch.setattr(loop, "Graphs", Counted)
    monkeypatch.setattr(Counted, "recorded", 0)
    with_graphs = files(training.train(config, folder / "with", show=False))
    assert Counted.recorded == 2
    monkeypatch.setattr(loop, "Graphs", Unrecorded)
    return [with_graphs, files(training.train(config, folder / "without", show=False))]


@pytest.mark.parametrize("rule", RULES)
def test_a_run_has_the_same_bits(tmp_path, monkeypatch, rule):
    """With a smaller last mini-batch, two realisations per step, and validation in between."""
    config = small(
        rule,
        **{
            "train.device": "cuda",
            "train.samples": 2 if "bayes" in rule else 1,
            "train.activity": 0.1,
            "data.validation": 0.25,
        },
    )
    with_graphs, without = both(config, tmp_path, monkeypatch)
    assert with_graphs == without


@pytest.mark.parametrize("gradient", ["local", "bptt"])
@pytest.mark.parametrize("precision", ["full", "mixed"])
@pytest.mark.parametrize("rule", ["st", "bayes", "bayes, plain", "full, Adam"])
def test_a_run_on_recordings_has_the_same_bits(tmp_path, monkeypatch, rule, gradient, precision):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    network = {**RECORDED["network"], "gradient": gradient, "dropout": 0.5}
    config = parse(
        {**RECORDED, "rule": RULES[rule], "network": network, "augment": {"shift": 1, "drop": 0.1}},
        "run",
    )
    root = str(made_up_nmnist(tmp_path / "N"))
    config = config.updated(
        **{
            "data.root": root,
            "train.device": "cuda",
            "train.precision": precision,
            "train.epochs": 4,
        }
    )
    with_graphs, without = both(config, tmp_path, monkeypatch)
    assert with_graphs == without


def test_gradients_add_up():
    """To those that are there already, as in a backward pass; also to those of the last call."""
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0], device="cuda"))
    unused = torch.nn.Parameter(torch.zeros(1, device="cuda"))
    graphs = Graphs([w, unused])

    def function(x):
        y = (w.square() * x).sum()
        y.backward()
        return y.detach()

    expected = torch.zeros(2, device="cuda")
    for i in range(1, 6):
        y = graphs.run(function, torch.full((2,), float(i), device="cuda"))
        expected += 2 * i * w.detach()
        assert torch.equal(w.grad, expected)
        assert float(y) == float(i * w.detach().square().sum())
    with torch.no_grad():
        w.mul_(3.0)  # in place: the graph sees it
    w.grad = None
    graphs.run(function, torch.ones(2, device="cuda"))
    assert w.grad.tolist() == [6.0, 12.0]
    assert unused.grad is None


def test_an_error_while_recording_leaves_gradients_and_stream():
    w = torch.nn.Parameter(torch.ones(2, device="cuda"))
    graphs, x, stream = Graphs([w]), torch.ones(2, device="cuda"), torch.cuda.current_stream()

    def function(x, broken=False):
        (w * x).sum().backward()
        if broken:
            raise ValueError("broken")
        return x.sum()

    graphs.run(function, x)
    before = w.grad.clone()
    with pytest.raises(ValueError, match="broken"):
        graphs.run(functools.partial(function, broken=True), x)
    assert torch.equal(w.grad, before)
    assert torch.cuda.current_stream() == stream


def run_for(config, steps):
    run = training.Training(config, training.Processes(0, 1, torch.device("cuda")), show=False)
    for _ in range(steps):
        run.update()
    torch.cuda.synchronize()
    return run


def test_memory_goes_with_the_run():
    config = small("st", **{"train.device": "cuda"})
    run_for(config, 6)  # cuBLAS keeps what it takes the first time
    gc.collect()
    before = torch.cuda.memory_allocated()
    gc.disable()
    try:
        run = run_for(config, 6)
        assert torch.cuda.memory_allocated() > before
        del run
        assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()
