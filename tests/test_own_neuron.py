"""A neuron from outside the package: what it takes to train and predict, and what it cannot do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bisnn import (
    BayesBiSNN,
    Conv2d,
    Linear,
    Network,
    Recurrent,
    STBiSNN,
    local_loss,
    map_weights,
    predict,
)
from bisnn.kernels.scan import spike
from bisnn.neuron import Neuron
from bisnn.packing import describe
from bisnn.shipping import energy
from conftest import seeded, spikes


@dataclass(frozen=True)
class Leaky(Neuron):
    """A leaky integrate-and-fire neuron with one trace, reset to 0 by a spike."""

    decay: float = 0.9
    threshold: float = 0.5
    slope: float = 4.0

    def constants(self, dtype=np.float32):
        return np.array([self.decay, self.threshold], dtype)

    def potential(self, state, kappa, constants):
        return kappa * state[0]

    def advance(self, I, s, state, constants):
        return (constants[0] * state[0] * (1 - s) + I,)


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
    options = {"readout": 3, "neuron": Leaky(), "gradient": gradient, "dtype": torch.float64}
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


def networks():
    neuron = Leaky()
    return {
        "dense": Network(Linear(72, 8), Linear(8, 5), readout=3, neuron=neuron),
        "pooled": Network(
            Conv2d(2, 3, 3, pool=2), Linear(12, 5), readout=3, neuron=neuron, input_shape=(2, 6, 6)
        ),
        "recurrent": Network(Recurrent(72, 7), readout=3, neuron=neuron),
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


def test_what_needs_compiled_code_says_so():
    net = networks()["dense"]
    with pytest.raises(ValueError, match=r"got Leaky in layer 0, .* bits/neurons\.py"):
        describe(net)
    with pytest.raises(ValueError, match="known of SRM and FixedSRM; got Leaky"):
        energy.ledger(net, spikes(5, 2, 72), {"MAP": None})
