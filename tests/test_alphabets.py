"""Weights from any finite set: against torch.distributions, closed forms and enumeration."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import distributions as D
from torch import nn

from bisnn import (
    BayesBiSNN,
    Binary,
    Bop,
    Levels,
    Linear,
    Network,
    STBiSNN,
    Ternary,
    kl_divergence,
    predict,
    weights,
)
from bisnn.alphabet import alphabet_of
from conftest import seeded
from networks import EVEN, build

F64 = torch.float64
UNEVEN = Levels(-7, 0, 2, 5)


def logits_of(K: int, *shape: int, seed: int = 0, size: float = 2.0) -> torch.Tensor:
    return weights.centred(size * torch.randn(K, *shape, generator=seeded(seed), dtype=F64))


def noise(K: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return weights.gumbel_noise(torch.rand(K, *shape, generator=seeded(seed), dtype=F64))


# Values


def test_an_alphabet_is_its_levels():
    assert Levels(1, -1) == Binary() == alphabet_of("binary") == alphabet_of([-1, 1])
    assert Ternary() == alphabet_of("ternary")
    assert alphabet_of("real") is None
    assert alphabet_of(EVEN) is EVEN
    assert (Binary().low, Binary().gap, Binary().planes, Binary().rms) == (-1, 2, 1, 1.0)
    assert (Ternary().low, Ternary().gap, Ternary().planes) == (-1, 1, 2)
    assert EVEN.rms == pytest.approx(math.sqrt(5))
    assert (EVEN.gap, EVEN.planes, EVEN.reach) == (2, 2, 3)
    assert len({Levels(0, 1), Levels(1, 0), Levels(0, 2)}) == 2
    assert repr(Levels(2, -5)) == "Levels(-5, 2)"
    assert copy.deepcopy(Ternary()) == pickle.loads(pickle.dumps(Ternary())) == Ternary()


@given(st.sets(st.integers(-127, 127), min_size=2, max_size=20))
def test_bits_are_codes_are_levels(levels):
    of = Levels(*levels)
    w = np.array(of.levels, np.int8)
    codes = sum(plane.astype(int) << k for k, plane in enumerate(of.bits(w)))
    assert np.array_equal(of.low + of.gap * codes, w)
    assert np.array_equal(of.weights(of.bits(w)), w)
    assert math.gcd(*(int(c) for c in codes)) == 1, "no smaller codes would do"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Levels(1), "levels: must be two or more distinct integers; got"),
        (lambda: Levels(1, 1), "levels: must be two or more distinct integers"),
        (lambda: Levels(0.5, 1), "levels: must be two or more distinct integers"),
        (lambda: Levels(True, 2), "levels: must be two or more distinct integers"),
        (lambda: Levels(-128, 1), "levels: must lie from -127 to 127"),
        (lambda: alphabet_of(3), "weights: must be"),
        (
            lambda: Network(Linear(140_000, 1), readout=1, weights=[-127, 127]),
            "weights: 140000 parents times the largest level 127 must be at most 2\\^24",
        ),
        (
            lambda: BayesBiSNN(build("dense", weights="ternary").parameters(), 0.1, 0.1),
            "params: BayesBiSNN does not train Nearest latents of .*posterior=True",
        ),
        (
            lambda: STBiSNN(build("ternary").parameters(), 0.1),
            "params: STBiSNN does not train Categorical latents of .*posterior=False",
        ),
        (
            lambda: Bop(build("dense", weights="ternary").parameters(), 0.1, 0.1),
            "params: Bop does not train Nearest latents of .*; give binary weights$",
        ),
        (
            lambda: BayesBiSNN(build("ternary").parameters(), 0.1, 0.1, prior=0.3),
            "prior: must be 0, the logits of the 3 levels, or have the latents' shape",
        ),
        (
            lambda: predict(build("dense", weights="ternary"), torch.zeros(3, 1, 6, dtype=F64), 2),
            "have no posterior to draw members from; build the network with posterior=True",
        ),
        (
            lambda: predict(
                build("dense"),
                torch.zeros(3, 1, 6, dtype=F64),
                [[torch.zeros(7, 6, dtype=torch.int8)]],
            ),
            r"samples: weights of members must be levels, \(-1, 1\); number 0 has others",
        ),
    ],
)
def test_clear_messages(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Formulas


@given(st.lists(st.floats(-200, 200), min_size=1, max_size=20))
def test_the_nearest_level_and_half_way_the_higher(x):
    for of in (Binary(), Ternary(), UNEVEN):
        got = weights.nearest(torch.tensor(x, dtype=F64), of).tolist()
        assert got == [min(of.levels, key=lambda v: (abs(v - Fraction(y)), -v)) for y in x]
    halves = torch.tensor([-0.5, 0.5], dtype=F64)
    assert weights.nearest(halves, Ternary()).tolist() == [0, 1]


def test_kl_is_that_of_torch_distributions():
    for K, seed in itertools.product((2, 3, 5), range(3)):
        logits, prior = logits_of(K, 4, 3, seed=seed), logits_of(K, seed=seed + 9)
        q = D.OneHotCategorical(logits=logits.movedim(0, -1))
        p = D.OneHotCategorical(logits=prior.expand(4, 3, K))
        expected = D.kl_divergence(q, p).sum()
        torch.testing.assert_close(weights.categorical_kl(logits, prior), expected)
        full = prior[:, None, None].expand(K, 4, 3) + 1.5  # a constant changes nothing
        torch.testing.assert_close(weights.categorical_kl(logits, full), expected)
        uniform = D.OneHotCategorical(logits=torch.zeros(4, 3, K, dtype=F64))
        expected = D.kl_divergence(q, uniform).sum()
        torch.testing.assert_close(weights.categorical_kl(logits), expected)
        parameter = nn.Parameter(logits)
        weights.mark_latents(parameter, weights.Categorical(Levels(*range(K))))
        torch.testing.assert_close(kl_divergence([parameter]).detach(), expected)


def test_relaxed_samples_have_the_density_of_torch_distributions():
    """Of one weight: the mean of any function of y is that of RelaxedOneHotCategorical."""
    logits, tau, n = logits_of(3), 0.7, 200_000
    y = weights.relax_levels(logits[:, None], noise(3, n), tau)
    torch.manual_seed(0)
    theirs = D.RelaxedOneHotCategorical(torch.tensor(tau, dtype=F64), logits=logits).sample((n,)).T
    for a, b in zip(y, theirs, strict=True):
        assert stats.ks_2samp(a.numpy(), b.numpy()).pvalue > 1e-4
    hard = weights.one_hot(logits[:, None] + noise(3, n, seed=1)).mean(1) * n
    p = torch.softmax(logits, 0) * n
    assert stats.chisquare(hard.numpy(), p.numpy()).pvalue > 1e-4


@given(st.floats(-9, 9), st.floats(-8, 8), st.sampled_from([0.05, 0.5, 1.0]), st.floats(-2, 2))
def test_two_levels_are_the_binary_closed_form(w_r, delta, tau, g):
    """K = 2, v = -1, +1: logits -+w^r, half the difference of the noises is delta."""
    w_r, delta = torch.tensor(w_r, dtype=F64), torch.tensor(delta, dtype=F64)
    logits, gamma = torch.stack([-w_r, w_r]), torch.stack([-delta, delta])
    general, v = weights.Categorical(Binary()), torch.tensor([-1.0, 1.0], dtype=F64)
    w = general.read(weights.relax_levels(logits, gamma, tau))
    torch.testing.assert_close(w, weights.relax(w_r, delta, tau), rtol=1e-12, atol=1e-12)
    ours = weights.level_gradient(logits, gamma, tau, v * g)
    binary = g * weights.mean_gradient_factor(w_r, delta, tau)
    torch.testing.assert_close(ours, torch.stack([-binary, binary]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        weights.categorical_kl(logits), weights.bernoulli_kl(w_r), rtol=1e-12, atol=1e-12
    )
    assert general.modes(logits) == weights.sign(w_r)
    torch.testing.assert_close(
        general.limits(logits)[0], weights.probability(w_r), rtol=1e-12, atol=0
    )


def test_two_levels_train_as_binary_ones(monkeypatch):
    """Twenty steps of the rule by the general formula, from the noise of the closed form."""
    w_r = nn.Parameter(torch.linspace(-2, 2, 7, dtype=F64))
    logits = nn.Parameter(torch.stack([-w_r.detach(), w_r.detach()]))
    weights.mark_latents(logits, weights.Categorical(Binary()))
    delta = torch.zeros(())
    monkeypatch.setattr(weights, "logistic_noise", lambda eps: delta)
    monkeypatch.setattr(weights, "gumbel_noise", lambda eps: torch.stack([-delta, delta]))
    options = {"lr": 0.1, "temperature": 0.05, "tau": 0.6, "precondition": "adam"}
    binary, general = BayesBiSNN([w_r], **options), BayesBiSNN([logits], **options)
    for step in range(20):
        delta = weights.torch.logit(torch.rand(7, generator=seeded(step), dtype=F64)) / 2
        for rule, p in ((binary, w_r), (general, logits)):
            with rule.sampled():
                w = p if p is w_r else p[1] - p[0]
                ((w - 0.3).square() * torch.arange(1, 8)).sum().backward()
            rule.step()
    torch.testing.assert_close(logits.detach()[1], w_r.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        logits.detach().sum(0), torch.zeros(7, dtype=F64), atol=1e-12, rtol=0
    )


def test_the_gradient_is_that_of_the_probabilities():
    """Against autograd through p -> log p -> y, projected onto what keeps the sum of p at 1."""
    logits, gamma, tau = logits_of(4, 5), noise(4, 5), 0.7
    g = torch.randn(4, 5, generator=seeded(3), dtype=F64)
    p = torch.softmax(logits, 0).requires_grad_()
    y = torch.softmax((p.log() + gamma) / tau, 0)
    (expected,) = torch.autograd.grad((g * y).sum(), p)
    ours = weights.level_gradient(logits, gamma, tau, g)
    torch.testing.assert_close(ours, expected - expected.mean(0), rtol=1e-9, atol=1e-12)


def test_the_bound_acts_on_improbable_levels_only():
    logits = torch.tensor([[30.0], [-30.0], [0.0]], dtype=F64)
    gamma = torch.tensor([[0.0], [200.0], [0.0]], dtype=F64)
    g = torch.tensor([[1.0], [2.0], [4.0]], dtype=F64)
    assert torch.isfinite(weights.level_gradient(logits, gamma, 1.0, g)).all()
    log_p = torch.log_softmax(logits_of(3, 1000, size=1.0), 0)
    assert (-log_p).max() < weights.MAX_EXPONENT


# Enumeration: two inputs, one weight to each of two outputs, all settings tried

SCORES = torch.tensor([[0.7, -1.1, 0.4], [-0.3, 0.9, 0.2]], dtype=F64)  # logits of 2 weights
V = torch.tensor([-1.0, 0.0, 1.0], dtype=F64)


def tiny_loss(w: torch.Tensor) -> torch.Tensor:
    """A smooth loss of weights (..., 2) that does not split into a sum over them."""
    return torch.tanh(w[..., 0] * 1.3 + w[..., 1] * 0.8 + 0.3).square() + 0.5 * w.prod(-1)


def exact_gradient(logits: torch.Tensor) -> torch.Tensor:
    """grad_p E_q[L] over all settings, less its mean over the levels: (2, K)."""
    p = torch.softmax(logits, -1).requires_grad_()
    settings = torch.cartesian_prod(V, V)
    q = torch.cartesian_prod(p[0], p[1]).prod(-1)
    (g,) = torch.autograd.grad((q * tiny_loss(settings)).sum(), p)
    return g - g.mean(-1, keepdim=True)


def test_the_estimate_is_the_exact_gradient_as_tau_vanishes():
    """Mean over many draws, at two taus: the smaller has the smaller bias, and it is small."""
    exact, bias, n = exact_gradient(SCORES), {}, 400_000
    logits = SCORES.T[:, None, :].expand(3, n, 2)
    for tau in (1.0, 0.1):
        gamma = noise(3, n, 2, seed=5)
        y = weights.relax_levels(logits, gamma, tau).requires_grad_()
        (g,) = torch.autograd.grad(tiny_loss(torch.tensordot(V, y, 1)).sum(), y)
        estimate = weights.level_gradient(logits, gamma, tau, g).mean(1).T
        bias[tau] = float((estimate - exact).norm() / exact.norm())
    assert bias[0.1] < 0.08
    assert bias[0.1] < 0.5 * bias[1.0]


def test_the_rule_minimises_the_free_energy_by_enumeration():
    """A linear loss, for which the estimate is unbiased enough to find the known optimum: logits
    centred -c v_k / rho plus the prior's.
    """
    prior = torch.tensor([0.3, -0.5, 0.2], dtype=F64)
    c, rho = torch.tensor([0.4, -0.2, 0.0] * 400, dtype=F64), 0.5
    logits = nn.Parameter(torch.zeros(3, 1200, dtype=F64))
    weights.mark_latents(logits, weights.Categorical(Ternary()))
    rule = BayesBiSNN([logits], lr=0.05, temperature=rho, tau=0.3, prior=prior)
    found = torch.zeros_like(logits)
    for step in range(600):
        with rule.sampled():
            (c * torch.tensordot(V, logits, 1)).sum().backward()
        rule.step()
        found += logits.detach() / 300 if step >= 300 else 0
    expected = -c * V[:, None] / rho + weights.centred(prior)[:, None]
    groups = found.reshape(3, 400, 3).mean(1)
    torch.testing.assert_close(groups, expected[:, :3], atol=0.08, rtol=0)

    def energy(l):
        p = torch.softmax(l, 0)
        return float((p * V[:, None] * c[:3]).sum() + rho * weights.categorical_kl(l, prior))

    assert energy(groups) == pytest.approx(energy(expected[:, :3]), abs=0.01)


# Members


@pytest.mark.parametrize("alphabet", [UNEVEN, Levels(-127, -126, 126, 127)])  # 252: beyond int8
def test_members_are_samples_of_the_posterior(alphabet):
    logits = nn.Parameter(logits_of(4, 50_000, size=0.0) + logits_of(4, 1, seed=3))
    weights.mark_latents(logits, weights.Categorical(alphabet))
    ((w,),) = weights.draw_members([logits], 1, seed=4)
    assert w.dtype == torch.int8
    seen = np.array([int((w == v).sum()) for v in alphabet.levels])
    p = torch.softmax(logits.detach()[:, 0], 0).numpy() * 50_000
    assert stats.chisquare(seen, p).pvalue > 1e-4


def test_two_levels_draw_the_binary_members():
    w_r = torch.randn(500, generator=seeded(1), dtype=F64)
    logits = torch.stack([-w_r, w_r])
    weights.mark_latents(logits, weights.Categorical(Binary()))
    for ours, theirs in zip(
        weights.draw_members([logits], 4, 7), weights.draw_members([w_r], 4, 7), strict=True
    ):
        assert torch.equal(ours[0], theirs[0])
