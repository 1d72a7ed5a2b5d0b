"""Predictors: members, uncertainty, time; each way of computing them against the plain one."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch

from bisnn import (
    Classification,
    Conv2d,
    Linear,
    Network,
    Recurrent,
    Regression,
    map_weights,
    packing,
    predict,
    sample_weights,
)
from bisnn.packed.engine import Engine
from bisnn.runs.exporting import export
from bisnn.weights import draw_members
from conftest import spikes
from networks import EVERY, NEURON, build


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("binary", [True, False], ids=["spikes", "real input"])
def test_members_are_the_networks_at_posterior_samples(kind, binary):
    if "fixed" in kind and not binary:
        pytest.skip("its neurons take spikes")
    net = build(kind, 1, dtype=torch.float32, init=0.4)
    x = spikes(15, 11, *net.input_shape, seed=2) * (1.0 if binary else 0.7)
    members = predict(net, x, samples=4, seed=7).members
    for k in range(4):
        with sample_weights(net, 7, k):
            alone = net(x).readouts[-1].softmax(-1).mean(0)
        torch.testing.assert_close(members[k], alone, rtol=1e-6, atol=1e-7)
    assert members.std(0).max() > 0
    with map_weights(net):
        torch.testing.assert_close(
            predict_outside(net, x), net(x).readouts[-1].softmax(-1).mean(0), rtol=1e-6, atol=1e-7
        )


def predict_outside(net: Network, x: torch.Tensor) -> torch.Tensor:
    """The MAP prediction of a copy that holds no realisation."""
    copy = deepcopy(net)
    for p in copy.parameters():
        p._bisnn_realised = p._bisnn_hard = False
    return predict(copy, x).mean


@pytest.mark.parametrize("shape", [(2, 6, 6), (3, 9, 7)])
def test_packed_bits_give_the_networks_bits(shape, monkeypatch):
    """Convolutions with left-over pixels and over 32 channels, dense on images, several groups."""
    layers = [
        Conv2d(shape[0], 40, (3, 2), padding=(1, 1), pool=2),
        Conv2d(40, 5, 2, padding=1, stride=(2, 1)),
    ]
    size = Network(*layers, readout=3, input_shape=shape).layers[-1].output_shape
    layers = [
        Conv2d(shape[0], 40, (3, 2), padding=(1, 1), pool=2),
        Conv2d(40, 5, 2, padding=1, stride=(2, 1)),
    ]
    net = Network(
        *layers,
        Linear(math.prod(size), 50),
        Linear(50, 33),
        readout=3,
        input_shape=shape,
        neuron=NEURON,
        init=0.3,
    )
    x = spikes(9, 19, *shape, seed=3)
    taken = []
    ours = Engine._through
    monkeypatch.setattr(Engine, "_through", lambda *a: (taken.append(1), ours(*a))[1])
    # The readouts themselves
    members = predict(net, x, samples=3, seed=5, over_time="step", task="regression").members
    assert len(taken) == 4  # layers: members go through each together
    for k in range(3):
        with sample_weights(net, 5, k):
            output = net(x)
        assert torch.equal(members[k], output.readouts[-1])
        assert 0.01 < output.spikes[-1].mean() < 0.9


def test_map_is_the_sign():
    net = build("deep", 1)
    x = spikes(15, 3, 6, dtype=torch.float64)
    with map_weights(net):
        expected = net(x).readouts[-1].softmax(-1).mean(0)
    result = predict(net, x)
    assert torch.equal(result.mean, expected)
    assert torch.equal(result.members[0], expected)
    assert torch.equal(result.mutual_information, torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("samples", [None, 2])
def test_predict_inside_a_realisation(samples):
    net = build("dense")
    with (
        map_weights(net),
        pytest.raises(RuntimeError, match=r"predict\(\): the parameters hold a realisation"),
    ):
        predict(net, spikes(5, 2, 6, dtype=torch.float64), samples=samples)


def test_predict_from_several_threads():
    """It writes nothing into the network, so threads do not meet."""
    net = build("deep", 1, dtype=torch.float32)
    x = spikes(20, 2, 6)
    expected, before = predict(net, x).mean, net.layers[0].weight.detach().clone()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: predict(net, x).mean, range(40)))
    assert all(torch.equal(r, expected) for r in results)
    assert torch.equal(net.layers[0].weight, before)


def test_predict_changes_nothing():
    net = build("deep", 1)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    state = torch.random.get_rng_state()
    predict(net, spikes(5, 2, 6, dtype=torch.float64), samples=3)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in net.parameters())


def test_uncertainty_splits_into_entropy_and_mutual_information():
    net = build("deep", 1, init=0.2)
    result = predict(net, spikes(15, 3, 6, dtype=torch.float64), samples=6)
    assert isinstance(result, Classification)
    for b in range(3):
        entropy = lambda p: -sum(v * math.log(v) for v in p.tolist() if v > 0)  # noqa: E731
        mean = sum(result.members[k, b] for k in range(6)) / 6
        torch.testing.assert_close(result.mean[b], mean)
        expected = sum(entropy(result.members[k, b]) for k in range(6)) / 6
        assert float(result.entropy[b]) == pytest.approx(entropy(mean))
        assert float(result.expected_entropy[b]) == pytest.approx(expected)
        assert float(result.mutual_information[b]) == pytest.approx(entropy(mean) - expected)
        assert 0 < result.mutual_information[b] <= result.entropy[b] <= math.log(3)


def test_regression_mean_and_deviation():
    net = build("deep", 1, init=0.2)
    x = spikes(15, 3, 6, dtype=torch.float64)
    result = predict(net, x, samples=6, task="regression", burn_in=5)
    assert isinstance(result, Regression)
    values = []
    for k in range(6):
        with sample_weights(net, 0, k):
            values.append(net(x).readouts[-1][5:].mean(0))
    torch.testing.assert_close(result.mean, torch.stack(values).mean(0))
    torch.testing.assert_close(result.std, torch.stack(values).std(0, correction=0))


def test_over_time():
    """Each step, the running mean, the whole mean: with a mask they use the steps that are real."""
    net = build("deep", 1)
    x = spikes(10, 2, 6, dtype=torch.float64)
    mask = torch.arange(10)[:, None] < torch.tensor([10, 6])
    options = {"burn_in": 3, "mask": mask, "task": "regression"}
    each = predict(net, x, over_time="step", **options).mean
    running = predict(net, x, over_time="running", **options).mean
    whole = predict(net, x, **options).mean
    assert each.shape == running.shape == (7, 2, 3)
    for b, length in ((0, 10), (1, 6)):
        for t in range(7):
            torch.testing.assert_close(running[t, b], each[: min(t + 1, length - 3), b].mean(0))
        torch.testing.assert_close(whole[b], each[: length - 3, b].mean(0))


def test_logits_of_a_network_without_a_readout():
    output = Network(Linear(6, 8), readout=None, weights="real")(spikes(5, 2, 6))
    with pytest.raises(ValueError, match="logits: need a readout after the last layer"):
        _ = output.logits


def test_running_before_the_first_step_that_counts_is_no_prediction():
    mask = torch.arange(10)[:, None] >= torch.tensor([0, 4])
    mean = predict(build("deep"), X, over_time="running", mask=mask).mean
    assert torch.isnan(mean[:4, 1]).all()
    assert torch.isfinite(mean[4:, 1]).all()
    assert torch.isfinite(mean[:, 0]).all()


def test_full_precision():
    net = build("deep", weights="real")
    x = spikes(10, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(
        predict(net, x).mean, net(x).readouts[-1].softmax(-1).mean(0).detach()
    )
    with pytest.raises(
        ValueError, match="samples: a full-precision network has no posterior to draw from; got 3"
    ):
        predict(net, x, samples=3)


def test_samples_follow_the_latents():
    """Certain latents give one and the same network; a seed gives the same members again."""
    net = build("deep", init=30.0, dtype=torch.float32)
    x = spikes(15, 3, 6)
    assert torch.equal(
        predict(net, x, samples=3).members, predict(net, x).members.expand(3, -1, -1)
    )
    net = build("deep", init=0.1, dtype=torch.float32)
    again = [predict(net, x, samples=3, seed=g).members for g in (1, 1, 2)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_members_may_be_drawn_before():
    net, x = build("deep", init=0.1, dtype=torch.float32), spikes(15, 3, 6)
    drawn = draw_members([layer.weight.detach() for layer in net.layers], 3, seed=1)
    assert torch.equal(predict(net, x, drawn).members, predict(net, x, 3, seed=1).members)
    for bad in ([], drawn[0], [drawn[0][:1]], [[w.float() for w in drawn[0]]], [1, 2], "ten"):
        with pytest.raises(
            ValueError,
            match=r"samples: members need an int8 tensor for every layer, "
            r"\(\d+, 6\).* number 0 has others",
        ):
            predict(net, x, bad)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_seed_draws_the_same_members_on_cuda():
    net, x = build("deep", init=0.1, dtype=torch.float32), spikes(15, 3, 6)
    on_cpu = predict(net, x, 4, seed=7).members
    net.to("cuda")
    torch.testing.assert_close(predict(net, x.to("cuda"), 4, seed=7).members.cpu(), on_cpu)
    latents = [p.detach() for p in net.parameters()]
    for ours, theirs in zip(
        draw_members(latents, 4, 7), draw_members([p.cpu() for p in latents], 4, 7), strict=True
    ):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


X = spikes(10, 2, 6, dtype=torch.float64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples: must be a positive whole number; got 0"),
        ({"samples": 2.0}, "samples: must be"),
        ({"task": "ranking"}, "task: must be one of classification, regression; got 'ranking'"),
        ({"over_time": "last"}, "over_time: must be one of mean, running, step"),
        ({"burn_in": 10}, "burn_in: must be a whole number from 0 to T - 1 = 9"),
        ({"x": X.clone().fill_(math.nan)}, "x: must be finite; got 120 NaN or infinite values"),
        ({"x": X[:0]}, "x: needs at least one time step"),
        ({"x": X[:0], "samples": 2}, "x: needs at least one time step"),
        ({"x": X[:, :0], "samples": 2}, "x: needs at least one time step and one recording"),
        ({"x": X.numpy()}, "x: must be a tensor.*ndarray"),
        ({"x": X[0, 0], "samples": 2}, "x: must be a tensor"),
        ({"x": X[..., :5]}, "x: must be a tensor"),
        ({"mask": torch.ones(3, 2, dtype=torch.bool)}, "mask: must be a bool tensor"),
        (
            {"mask": torch.arange(10)[:, None] < torch.tensor([10, 2]), "burn_in": 2},
            "mask: every recording needs a time step that counts; got none for recording 1",
        ),
        ({"seed": "a", "samples": 2}, "seed: must be a whole number"),
    ],
)
def test_bad_arguments(arguments, message):
    net = build("deep")
    with pytest.raises(ValueError, match=message):
        predict(net, **{"x": X, **arguments})


def test_a_network_without_a_readout():
    net = Network(Recurrent(6, 4), readout=None)
    with pytest.raises(ValueError, match="net: predict needs a readout after the last layer"):
        predict(net, spikes(5, 1, 6))


def test_foreign_modules_are_told_what_is_needed():
    module = torch.nn.Sequential(torch.nn.Linear(6, 2))
    for call in (lambda: predict(module, X), lambda: packing.describe(module)):
        with pytest.raises(
            ValueError,
            match=r"net: must be a bisnn\.Network; got a Sequential; for a module of your own give",
        ):
            call()
    with pytest.raises(
        ValueError,
        match="run: must be the path of a run folder or of its model file; got a Sequential",
    ):
        export(module)
