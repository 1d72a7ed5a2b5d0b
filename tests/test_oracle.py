"""Bayes-BiSNN against full enumeration of a network of eight weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import oracle as o
from bisnn import (
    BayesBiSNN,
    Linear,
    Network,
    free_energy,
    kl_divergence,
    local_loss,
    sample_weights,
)
from bisnn.neuron import SRM
from bisnn.realisation import hold


@pytest.fixture(scope="module")
def smooth() -> o.Oracle:
    return o.Oracle(spiking=False)


@pytest.fixture(scope="module")
def spiking() -> o.Oracle:
    return o.Oracle(spiking=True)


def test_the_oracle_is_the_packages_network(spiking):
    """All 256 losses, by the library's own layers, losses and contexts."""
    neuron = SRM(10.0, 6.0, 2.0, o.THETA, slope=o.SLOPE)
    net = Network(
        Linear(2, 2),
        Linear(2, 2),
        readout=2,
        neuron=neuron,
        gradient="bptt",
        readout_after="last",
        dtype=torch.float64,
    )
    net.readouts[-1].V.copy_(spiking.V)
    net.readouts[-1].scale.fill_(o.GAIN)
    for w, expected in zip(spiking.settings, spiking.losses, strict=True):
        with hold(list(net.parameters()), [w[:4].reshape(2, 2), w[4:].reshape(2, 2)], hard=True):
            loss = local_loss(net(spiking.x), spiking.labels)
        assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    assert spiking.losses.std() > 0.1


def test_the_gibbs_posterior_is_optimal(smooth):
    """Eq. (bayes-sol) has the free energy -rho log E_p[exp(-L/rho)], and no other distribution
    less.
    """
    rho = 0.5
    q = smooth.gibbs(rho)
    energy = lambda q: (q * (smooth.losses + rho * (torch.log(q) + o.N * math.log(2)))).sum()  # noqa: E731
    closed = -rho * (torch.logsumexp(-smooth.losses / rho, 0) - o.N * math.log(2))
    assert float(energy(q)) == pytest.approx(float(closed), abs=1e-10)
    for seed in range(20):
        noise = torch.randn(
            len(q), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        assert energy(torch.softmax(torch.log(q) + 0.1 * noise, 0)) > closed
    mean_field = smooth.free_energy(smooth.best_mean_field(rho, starts=8), rho)
    assert closed <= mean_field < smooth.free_energy(torch.zeros(o.N, dtype=torch.float64), rho)


def test_free_energy_and_kl_by_enumeration(smooth):
    log_q = smooth.log_q(o.POINT)
    assert float(log_q.exp().sum()) == pytest.approx(1)
    kl = (log_q.exp() * (log_q + o.N * math.log(2))).sum()
    assert float(kl_divergence(o.POINT)) == pytest.approx(float(kl), abs=1e-10)
    ours = free_energy(smooth.expected_loss(o.POINT), o.POINT, 0.3)
    assert float(ours) == pytest.approx(float(smooth.free_energy(o.POINT, 0.3)), abs=1e-10)


def test_posterior_samples_have_the_enumerated_mean(smooth):
    w_r = nn.Parameter(o.POINT.clone())
    losses = []
    for k in range(4000):
        with sample_weights([w_r], 0, k):
            losses.append(w_r.detach().clone())
    values = smooth.loss(torch.stack(losses))
    assert float(values.mean()) == pytest.approx(
        float(smooth.expected_loss(o.POINT)), abs=4 * float(values.std()) / math.sqrt(4000)
    )


def test_the_bias_of_the_estimate_shrinks_with_tau(smooth):
    """With the sigmoid's true gradient, eq. (bayes-RP-grad) is exact as tau -> 0."""
    bias = [o.bias(smooth, tau, draws=200_000) for tau in (1.0, 0.5, 0.1)]
    values = [b["bias"] for b in bias]
    assert values[0] > 1.4 * values[1] > 1.4 * 1.4 * values[2]
    assert values[2] < 0.12
    assert bias[2]["cosine"] > 0.995


def test_surrogate_gradients_are_biased(spiking):
    """Honest: with spikes the estimate is not the gradient of the loss, and no tau makes it so; but
    it points downhill.
    """
    for tau in (1.0, 0.1):
        measured = o.bias(spiking, tau, draws=100_000)
        assert measured["bias"] > 0.3
        assert 0.1 < measured["cosine"] < 0.99


@pytest.mark.parametrize("seed", [0, 1])
def test_training_closes_the_gap_in_free_energy(smooth, seed):
    """From the prior, Algorithm 2 reaches at least 88 % of the way to the best mean-field
    posterior.
    """
    rho, steps = 0.3, 300
    prior = smooth.free_energy(torch.zeros(o.N, dtype=torch.float64), rho)
    best = smooth.free_energy(smooth.best_mean_field(rho), rho)
    w_r = nn.Parameter(torch.zeros(o.N, dtype=torch.float64))
    rule = BayesBiSNN([w_r], lr=0.1, temperature=rho, tau=0.1, seed=seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(rule, steps)
    for _ in range(steps):
        for _ in range(8):
            with rule.sampled():
                smooth.loss(w_r[None]).sum().backward()
        rule.step()
        schedule.step()
    reached = smooth.free_energy(w_r.detach(), rho)
    assert prior - best > 0.4
    assert float((prior - reached) / (prior - best)) >= 0.88
