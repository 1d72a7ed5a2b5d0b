"""Networks of weights from any finite set: they train, resume, predict and ship."""

from __future__ import annotations

import copy
import io
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import bisnn
from bisnn import (
    BayesBiSNN,
    Levels,
    Linear,
    Network,
    STBiSNN,
    Ternary,
    kernels,
    local_loss,
    map_weights,
    packing,
    predict,
    sample_weights,
    weights,
)
from bisnn.packed import Engine
from bisnn.realisation import is_hard, map_weight
from bisnn.runs import evaluation, training
from bisnn.runs.config import load as load_config
from bisnn.shipping import c
from bisnn_experiments import alphabets
from conftest import seeded, spikes
from networks import EVEN, KINDS, POSTERIORS, build
from runs import small

# Rules and kernels

RULES = {
    "st": lambda p: STBiSNN(p, lr=0.05, precondition="adam"),
    "st clip": lambda p: STBiSNN(p, lr=0.05, clip=3.0),
    "bayes": lambda p: BayesBiSNN(p, lr=0.05, temperature=1e-4),
    "bayes hard": lambda p: BayesBiSNN(p, lr=0.05, temperature=1e-4, straight_through=True),
    "bayes adam": lambda p: BayesBiSNN(p, lr=0.05, temperature=1e-4, precondition="adam"),
    "bayes prior": lambda p: BayesBiSNN(
        p, lr=0.05, temperature=1e-2, prior=torch.tensor([0.5, -1.0, 0.5])
    ),
}
every_rule = pytest.mark.parametrize("name", RULES)


def trained(name: str, steps: int = 5, dtype=torch.float32, rounds=1):
    net = build("deep", weights="ternary", posterior=name.startswith("bayes"), dtype=dtype)
    rule = RULES[name](net.parameters())
    for step in range(steps):
        train_step(net, rule, step, dtype, rounds)
    return net, rule


def train_step(net, rule, step, dtype=torch.float32, rounds=1):
    for part in range(rounds):
        x = spikes(12, 6, *net.input_shape, seed=10 * step + part, dtype=dtype)
        with rule.sampled():
            local_loss(net(x), torch.arange(6) % 3).backward()
    rule.step()


@every_rule
def test_a_resumed_run_equals_an_uninterrupted_one(name):
    whole, _ = trained(name, 8)
    net, rule = trained(name, 4)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "rule": rule.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    again, other = trained(name, 0)
    again.load_state_dict(saved["net"])
    other.load_state_dict(saved["rule"])
    for step in range(4, 8):
        train_step(again, other, step)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
@every_rule
def test_copies_train_and_predict(name, way):
    net, _ = trained(name, 2)
    twin = way(net)
    x = spikes(10, 3, 6)
    assert torch.equal(predict(net, x).mean, predict(twin, x).mean)
    assert [map_weight(p).unique().tolist() for p in twin.parameters()]
    train_step(twin, RULES[name](twin.parameters()), 0)
    assert not torch.equal(net.layers[0].weight, twin.layers[0].weight)


@every_rule
def test_realisations_are_levels_and_latents_come_back(name):
    net, rule = trained(name, 1)
    before = [p.detach().clone() for p in net.parameters()]
    relaxed = name in ("bayes", "bayes adam", "bayes prior")
    with rule.sampled():
        realised = [layer.realised().detach().clone() for layer in net.layers]
    for w, layer in zip(realised, net.layers, strict=True):
        assert w.shape == layer.spec.weight_shape
        assert is_hard(w, Ternary()) != relaxed
        assert w.abs().max() <= 1
    with pytest.raises(KeyError), rule.sampled():
        raise KeyError
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    if name.startswith("bayes"):
        total = sum(float(p.detach().sum(0).abs().max()) for p in net.parameters())
        assert total < 1e-4, "logits stay centred"


@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize("member", [None, 0, 1])
def test_kernels_give_the_same_bits(kind, member):
    net = build(kind, dtype=torch.float32)
    x = spikes(20, 3, *net.input_shape)
    outputs = []
    for kernel in ("reference", "cpu"):
        realise = map_weights(net) if member is None else sample_weights(net, 5, member)
        with kernels.forced(kernel), realise, torch.no_grad():
            outputs.append(net(x))
    for a, b in zip(*outputs, strict=True):
        if a is not None:
            assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True) if s is not None)
    assert any(s.any() for s in outputs[0].spikes)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", POSTERIORS)
def test_cuda_gives_the_same_bits(kind):
    net = build(kind, dtype=torch.float32)
    x = spikes(20, 3, *net.input_shape)
    with sample_weights(net, 5), torch.no_grad():
        ours = net(x)
    net.to("cuda")
    with sample_weights(net, 5), torch.no_grad():
        theirs = net(x.to("cuda"))
    for a, b in zip(ours.potentials + ours.spikes, theirs.potentials + theirs.spikes, strict=True):
        assert torch.equal(a, b.cpu())


def test_kappa_is_divided_by_the_size_of_the_levels():
    for kind in KINDS:
        binary, other = build(kind), build(kind, weights=EVEN)
        for a, b in zip(binary.layers, other.layers, strict=True):
            torch.testing.assert_close(a.kappa / math.sqrt(5), b.kappa)


def test_initial_latents_are_spread_over_the_levels():
    real = Network(Linear(100, 100), readout=2, weights=EVEN).layers[0].weight
    logits = (
        Network(Linear(100, 100), readout=2, weights=EVEN, posterior=True, init=0.7)
        .layers[0]
        .weight
    )
    for w in (real.detach(), map_weight(logits)):
        seen = [int((w == v).sum()) for v in EVEN.levels]
        assert stats.chisquare(seen).pvalue > 1e-4
    top, *others = logits.detach().sort(0, descending=True).values
    torch.testing.assert_close(top - others[0], torch.full_like(top, 1.4))
    torch.testing.assert_close(others[0], others[-1])


# An alphabet from outside the package


class Powers(Levels):
    """An alphabet that the package does not know: 0 and plus or minus powers of two."""

    def __init__(self, n: int):
        super().__init__(0, *(sign * 2**k for k in range(n) for sign in (-1, 1)))


@pytest.mark.parametrize("posterior", [False, True])
def test_an_alphabet_of_ones_own(posterior, tmp_path):
    """It trains until it has learnt, predicts, packs to the same bits, and exports."""
    net = Network(Linear(8, 24), readout=2, weights=Powers(3), posterior=posterior, readout_gain=4)
    assert net.layers[0].spec.alphabet.planes == 4
    rule = (
        BayesBiSNN(net.parameters(), lr=0.3, temperature=1e-5, precondition="adam")
        if posterior
        else STBiSNN(net.parameters(), lr=0.3, precondition="adam")
    )
    y = torch.arange(40) % 2
    rates = torch.where(y[:, None] == (torch.arange(8) >= 4), 0.4, 0.1)
    draw = lambda seed: (torch.rand(20, 40, 8, generator=seeded(seed)) < rates).float()  # noqa: E731
    for step in range(60):
        with rule.sampled():
            local_loss(net(draw(step)), y).backward()
        rule.step()
    x = draw(99)
    samples = 5 if posterior else None
    result = predict(net, x, samples)
    assert (result.mean.argmax(-1) == y).float().mean() > 0.9
    members = weights.draw_members(list(net.parameters()), 5, 0) if posterior else None
    packed = packing.describe(net, members)
    logits = Engine(packed).run(x.numpy()).logits
    each = members or [[map_weight(p) for p in net.parameters()]]
    for k, member in enumerate(each):
        with torch.no_grad():
            theirs = net(x, weights=[w.float() for w in member]).logits
        assert np.array_equal(logits[k], theirs.numpy())
    file = tmp_path / "own.safetensors"
    bisnn.packed.write(packed, file)
    assert np.array_equal(Engine(bisnn.packed.read(file)).run(x.numpy()).logits, logits)
    assert c.write(packed, tmp_path / "c", x[:, 0].numpy().astype(np.uint8))["flash"] > 0


# From a config to a file


@pytest.mark.parametrize("rule", ["st", "bayes"])
@pytest.mark.parametrize("levels", ["ternary", [-3, -1, 1, 3]])
def test_a_run_by_a_config(rule, levels, tmp_path):
    """It trains, resumes, is judged, reports, predicts, and exports to the same bits."""
    config = small(rule, **{"network.weights": levels, "train.epochs": 2})
    run = training.train(config, tmp_path / "run", show=False)
    training.resume(run, ["train.epochs=3"], show=False)
    verdict = evaluation.evaluate(run, show=False)
    assert verdict.memory.bits == 2
    assert set(verdict.metrics) == (
        {"MAP", "ensemble of 3"} if rule == "bayes" else {"nearest level"}
    )
    assert "2 bits each" in Path(bisnn.report([run])).read_text()
    model = bisnn.load(run)
    points = np.random.default_rng(0).random((5, 2))
    for predictor in ("map", "members", "posterior") if rule == "bayes" else ("map",):
        done = bisnn.export(run, out=tmp_path / f"{predictor}.safetensors", predictor=predictor)
        ours = bisnn.packed.load(done.path).predict_features(points).mean
        theirs = model.predict(points, None if predictor == "map" else "usual").mean.numpy()
        np.testing.assert_allclose(ours, theirs, atol=0.1 if predictor == "posterior" else 2e-3)


def test_configs_say_what_is_wrong():
    with pytest.raises(ValueError, match="levels: must be two or more distinct integers"):
        small("st", **{"network.weights": [1, 1]})
    for rule in ("bop", "full, Adam"):
        with pytest.raises(ValueError, match=r"network.weights: rule .* trains no other levels"):
            small(rule, **{"network.weights": "ternary"})


def test_the_study_changes_the_weights_and_the_scale_of_steps():
    kind, chosen = alphabets.methods("two_moons")
    assert kind == "two_moons"
    assert {rule: list(by) for rule, by in chosen.items()} == {
        "bayes": list(alphabets.LEVELS),
        "st": list(alphabets.LEVELS),
        "full": ["full precision"],
    }
    binary, four = chosen["st"]["binary"], chosen["st"]["4 levels"]
    assert binary == load_config("two_moons_st")
    assert four.rule.lr == pytest.approx(5 * binary.rule.lr)
    assert chosen["bayes"]["4 levels"].rule == chosen["bayes"]["binary"].rule


def test_integers_of_the_neuron_hold_the_largest_level():
    """FixedSRM refuses, for wide levels, what it takes for binary weights."""
    neuron = bisnn.FixedSRM(fraction=16)
    Network(Linear(500, 3), readout=2, neuron=neuron)
    with pytest.raises(ValueError, match="fraction: traces of currents up to 63500 must stay"):
        Network(Linear(500, 3), readout=2, neuron=neuron, weights=[-127, 127])
