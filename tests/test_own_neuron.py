"""A neuron from outside the package: what it takes to train and predict, and what more to ship. And
every neuron that ships: the same bits in PyTorch, in the packed engine, from its file and in C.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numba import njit
from numba.core.errors import TypingError

from bisnn import (
    BayesBiSNN,
    Conv2d,
    Linear,
    Network,
    Recurrent,
    STBiSNN,
    kernels,
    local_loss,
    map_weights,
    packed,
    predict,
    weights,
)
from bisnn.kernels.scan import spike
from bisnn.neuron import CStep, Neuron
from bisnn.packing import describe
from bisnn.shipping import c, conversion, energy
from bisnn.shipping import nir as nir_graph
from conftest import seeded, spikes
from networks import FIXED, NEURON, mask

ZERO, ONE = np.float32(0), np.float32(1)


@dataclass(frozen=True)
class Plain(Neuron):
    """A leaky integrate-and-fire neuron with one trace, reset to 0 by a spike: in PyTorch alone."""

    decay: float = 0.9
    threshold: float = 0.5
    slope: float = 4.0

    def constants(self, dtype=np.float32):
        return np.array([self.decay, self.threshold], dtype)

    def potential(self, state, kappa, constants):
        return kappa * state[0]

    def advance(self, I, s, state, constants):
        return (constants[0] * state[0] * (1 - s) + I,)


@njit(inline="always")
def leaky_potential(state, each, shared):
    return each[0] * state[0], shared[1]


@njit(inline="always")
def leaky_advance(I, fires, state, each, shared):
    return (shared[0] * state[0] * (ZERO if fires else ONE) + I,)


@dataclass(frozen=True)
class Leaky(Plain):
    """The same, with all that it takes to ship."""

    shared = ("decay_factor", "theta")
    operations = (3, 3)
    c = CStep(
        fire="s = rounded(kappa * P[j], zero) > theta;",
        integrate="P[j] = rounded(decay_factor * (s ? 0.0f : P[j]), zero) + (float)I;",
    )

    @staticmethod
    def compiled():
        return leaky_potential, leaky_advance


SHIPPED = {"leaky": Leaky(), "srm": NEURON, "fixed": FIXED}  # every neuron with a step for numba


def slow(net: Network, weight: torch.Tensor, x: torch.Tensor, bptt: bool) -> torch.Tensor:
    """Spikes (T, B, n) of one dense layer, as a loop with the neuron's equations written out."""
    (layer,) = net.layers
    P, s_all = torch.zeros(x.shape[1], len(weight), dtype=x.dtype), []
    for x_t in x:
        s = spike(layer.kappa * P, torch.tensor(0.5, dtype=x.dtype), "sigmoid", 4.0)
        s_all.append(s)
        P = layer.constants[0] * P * (1 - (s if bptt else s.detach())) + F.linear(x_t, weight)
    return torch.stack(s_all)


@pytest.mark.parametrize("gradient", ["local", "bptt"])
def test_a_layer_is_the_loop_over_its_step(gradient):
    options = {"readout": 3, "neuron": Plain(), "gradient": gradient, "dtype": torch.float64}
    net = Network(Linear(6, 8), **options)
    x, labels = spikes(15, 4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    with map_weights(net):
        out = net(x)
        w = net.layers[0].weight.detach().clone().requires_grad_()
        s = slow(net, w, x, gradient == "bptt")
        assert torch.equal(out.spikes[0], s)
        assert 0.05 < s.mean() < 0.95
        local_loss(out, labels).backward()
    y = net.readouts[0](s)
    F.cross_entropy(y.flatten(0, 1), labels.repeat(15), reduction="sum").div(4).backward()
    torch.testing.assert_close(net.layers[0].weight.grad, w.grad, rtol=1e-10, atol=1e-12)


def networks(neuron=Plain()):  # noqa: B008 (a value)
    return {
        "dense": Network(Linear(72, 8), Linear(8, 5), readout=3, neuron=neuron),
        "pooled": Network(
            Conv2d(2, 3, 3, pool=2), Linear(12, 5), readout=3, neuron=neuron, input_shape=(2, 6, 6)
        ),
        "recurrent": Network(Recurrent(72, 7), readout=3, neuron=neuron),
        "masked": Network(
            Recurrent(72, 9, mask=mask(9, 72, 0), outputs=[8, 0]), readout=3, neuron=neuron
        ),
    }


@pytest.mark.parametrize("kind", networks())
def test_chunks_give_the_bits_of_the_whole(kind):
    net = networks()[kind]
    x = spikes(20, 3, *net.input_shape)
    with torch.no_grad(), map_weights(net):
        whole, state, pieces = net(x), net.initial_state(3), []
        for piece in x.split(6):
            pieces.append(net(piece, state))
            state = pieces[-1].state
    for i, (s, u) in enumerate(zip(whole.spikes, whole.potentials, strict=True)):
        assert torch.equal(torch.cat([p.spikes[i] for p in pieces]), s)
        assert torch.equal(torch.cat([p.potentials[i] for p in pieces]), u)
        assert s.any()
    if kind == "pooled":  # the OR over a window
        fired = (whole.potentials[0] > 0.5).float().flatten(0, 1)
        assert torch.equal(F.max_pool2d(fired, 2), whole.spikes[0].flatten(0, 1))


@pytest.mark.parametrize("gradient", ["local", "bptt"])
@pytest.mark.parametrize("rule", ["st", "bayes"])
@pytest.mark.parametrize("kind", networks())
def test_it_trains_and_predicts(kind, rule, gradient):
    net = networks()[kind]
    net.gradient = gradient
    optimizer = (
        STBiSNN(net.parameters(), lr=0.05, precondition="adam")
        if rule == "st"
        else BayesBiSNN(net.parameters(), lr=0.1, temperature=1e-4, precondition="adam")
    )
    labels = torch.arange(24) % 3
    rates = torch.where(labels[:, None] == torch.arange(72) // 24, 0.4, 0.1)

    def data(seed: int) -> torch.Tensor:
        drawn = torch.rand(12, 24, 72, generator=seeded(seed)) < rates
        return drawn.float().reshape(12, 24, *net.input_shape)

    def loss() -> float:
        with torch.no_grad(), map_weights(net):
            return float(local_loss(net(data(99)), labels))

    before = loss()
    for step in range(25):
        with optimizer.sampled():
            local_loss(net(data(step)), labels, over_time="mean").backward()
        optimizer.step()
    assert loss() < 0.9 * before
    result = predict(net, data(99), samples=3)
    assert result.members.shape == (3, 24, 3)


# What ships


def members_of(net: Network, K: int) -> list[list[torch.Tensor]]:
    return weights.draw_members([layer.weight for layer in net.layers], K, 0)


@pytest.mark.parametrize("kind", networks())
@pytest.mark.parametrize("neuron", SHIPPED)
def test_the_engine_gives_the_bits_of_the_network(neuron, kind, tmp_path):
    net = networks(SHIPPED[neuron])[kind]
    x, drawn = spikes(30, 3, *net.input_shape, density=0.3), members_of(net, 2)
    packed.write(describe(net, drawn), tmp_path / "net.safetensors")
    engine = packed.load(tmp_path / "net.safetensors", neurons=[Leaky])
    assert [layer.neuron for layer in engine.network.layers] == [SHIPPED[neuron]] * len(net.layers)
    whole, state, pieces = engine.run(x.numpy(), spikes=True), engine.start(3), []
    for piece in np.split(x.numpy(), [7, 8]):
        pieces.append(engine.run(piece, state, spikes=True))
        state = pieces[-1].state
    for k, member in enumerate(drawn):
        with torch.no_grad(), kernels.forced("reference"):
            ours = net(x, weights=[w.float() for w in member])
        assert np.array_equal(whole.logits[k], ours.logits.numpy())
        for i, s in enumerate(ours.spikes):
            assert np.array_equal(whole.spikes[i][k], s.numpy())
            in_pieces = np.concatenate([piece.spikes[i][k] for piece in pieces])
            assert np.array_equal(in_pieces, s.numpy())
            assert s.any()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs GCC")
@pytest.mark.parametrize("kind", networks())
@pytest.mark.parametrize("neuron", SHIPPED)
def test_the_c_code_gives_the_bits_of_the_engine(neuron, kind, tmp_path):
    net = networks(SHIPPED[neuron])[kind]
    x = spikes(30, *net.input_shape, density=0.3).numpy()
    c.write(describe(net, members_of(net, 2)), tmp_path, x)
    strict = ["-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    build = ["gcc", *strict, "model.c", "model_check.c", "main.c", "-o", "t"]
    subprocess.run(build, cwd=tmp_path, check=True)
    done = subprocess.run(["./t"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("ok:"), done.stdout


def test_the_ledger_takes_the_neurons_own_operations():
    found = energy.ledger(networks(Leaky())["recurrent"], spikes(5, 2, 72), {"MAP": None})
    (layer, _) = found.rows["MAP"].layers
    assert layer.neuron_updates == 5 * 7
    assert layer.neuron_joules == pytest.approx(5 * 7 * (3 * 3.7 + 3 * 0.9) * 1e-12)
    assert layer.state_bytes == 2 * 4 * 5 * 7


def test_predictions_of_a_neuron_that_ships_are_those_of_the_loop():
    net = networks(Leaky())["pooled"]
    x = spikes(12, 4, *net.input_shape)
    with kernels.forced("reference"):
        slow = predict(net, x, samples=3)
    assert torch.equal(predict(net, x, samples=3).members, slow.members)


# What does not


def test_a_file_runs_no_code_to_find_a_neuron(tmp_path):
    packed.write(describe(networks(Leaky())["dense"]), tmp_path / "net.safetensors")
    with pytest.raises(packed.BadFile, match=r"'test_own_neuron:Leaky'.*; give the class, neurons"):
        packed.load(tmp_path / "net.safetensors")


def test_a_step_of_another_type_is_no_step():
    class Wide(Leaky):  # 1 is an int64, and with it all becomes a float64
        @staticmethod
        def compiled():
            return leaky_potential, njit(lambda I, fires, state, each, shared: (1 - I,))

    engine = packed.Engine(describe(networks(Wide())["dense"]))
    with pytest.raises(TypingError, match=r"advance: must return UniTuple\(float32 x 1\)"):
        engine.run(np.zeros((2, 1, 72)))


def test_what_a_neuron_lacks_is_named():
    net = networks()["dense"]
    with pytest.raises(ValueError, match=r"`compiled`; got Plain in layer 0, .* step alone"):
        describe(net)
    with pytest.raises(ValueError, match=r"`operations`, .* got Plain"):
        energy.ledger(net, spikes(5, 2, 72), {"MAP": None})

    class Engined(Leaky):
        c = None

    network, x = describe(networks(Engined())["dense"]), np.zeros((2, 72))
    with pytest.raises(ValueError, match="step in C, `c`; got Engined in layer 0"):
        c.write(network, "nowhere", x)
    with pytest.raises(ValueError, match=r"layer 0: neuron: must be SRM .* got Engined"):
        conversion.converted(network, "fixed")


def test_nir_has_no_such_neuron():
    pytest.importorskip("nir")
    with pytest.raises(ValueError, match="got Leaky in layer 0"):
        nir_graph.graph(describe(networks(Leaky())["dense"]))
