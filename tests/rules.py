"""Every rule with every option, and problems for each of them to go through."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bisnn import BayesBiSNN, Bop, Linear, Network, STBiSNN, local_loss
from conftest import seeded, spikes
from networks import NEURON

# The table: every rule, every option. Each row goes through all the tests that take `make`.
RULES = {
    "st": lambda p: STBiSNN(p, lr=0.3),
    "st clip": lambda p: STBiSNN(p, lr=0.3, clip=1.0),
    "st momentum": lambda p: STBiSNN(p, lr=0.05, precondition="momentum"),
    "st adam": lambda p: STBiSNN(p, lr=0.1, precondition="adam"),
    "bayes": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3),
    "bayes tau": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, tau=0.5),
    "bayes hard": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, straight_through=True),
    "bayes prior": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, prior=0.2),
    "bayes momentum": lambda p: BayesBiSNN(p, lr=0.02, temperature=1e-3, precondition="momentum"),
    "bayes adam": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, precondition="adam"),
    "bayes anneal": lambda p: BayesBiSNN(
        p, lr=0.1, temperature=1e-2, tau_end=0.2, temperature_end=1e-4, anneal_steps=20
    ),
    "bop": lambda p: Bop(p, lr=0.2, threshold=1e-3),
}
every_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES.keys())


def latent(values, dtype):
    """A parameter of these latent weights."""
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def one_step(rule, w_r, c):
    """A step on sum_i c_i w_i^2 / 2, whose gradient c_i w_i depends on w; returns that w."""
    with rule.sampled():
        (0.5 * c * w_r.square()).sum().backward()
        w = w_r.detach().clone()
    rule.step()
    return w


C = [0.7, -1.3, 0.4, 2.0, -0.2, 1.0, -0.6]


def plain_module():
    """A module that is no bisnn layer: a teacher with weights +-1 can be learned."""
    torch_rng = seeded(5)
    x = torch.randn(64, 15, generator=torch_rng)
    teacher = torch.where(torch.rand(15, generator=torch_rng) < 0.5, 1.0, -1.0)
    labels = (x @ teacher > 0).long()
    student = nn.Sequential(nn.Linear(15, 9, bias=False), nn.Tanh(), nn.Linear(9, 2, bias=False))
    with torch.no_grad():
        for p in student.parameters():
            p.copy_(torch.rand(p.shape, generator=torch_rng) - 0.5)
    return student, lambda: 20 * nn.functional.cross_entropy(student(x / 4), labels)


def spiking_network():
    """Two layers that learn which half of the inputs is active."""
    net = Network(Linear(12, 32), Linear(32, 24), readout=2, neuron=NEURON, readout_gain=2.0)
    labels = torch.arange(8) % 2
    active = (torch.arange(12) >= 6).long() == labels[:, None]
    x = spikes(30, 8, 12, seed=9, density=0.5) * active
    return net, lambda: local_loss(net(x), labels)
