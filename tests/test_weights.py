"""Posterior over the weights against torch.distributions and closed forms."""

from __future__ import annotations

import decimal
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from bisnn import free_energy, kl_divergence, map_weights, realisation, sample_weights, weights
from conftest import seeded
from networks import build

LOGITS = st.lists(st.floats(-50, 50), min_size=1, max_size=8)


def test_sign_of_zero_is_plus_one():
    assert weights.sign(torch.tensor([0.0, -0.0, 1e-30, -1e-30])).tolist() == [1, 1, 1, -1]


@given(LOGITS, st.floats(-10, 10))
def test_kl_is_that_of_torch_distributions(logits, prior):
    w_r = torch.tensor(logits, dtype=torch.float64)
    q = torch.distributions.Bernoulli(logits=2 * w_r)
    p = torch.distributions.Bernoulli(logits=torch.full_like(w_r, 2 * prior))
    expected = torch.distributions.kl_divergence(q, p).sum()
    torch.testing.assert_close(kl_divergence(w_r, prior), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        kl_divergence([w_r[:1], w_r[1:]], prior), expected, rtol=1e-9, atol=1e-9
    )
    single = kl_divergence(w_r.float(), prior)
    assert torch.isfinite(single)
    assert single >= -1e-5
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-4)


@given(LOGITS)
def test_parameters_of_the_bernoulli_agree(logits):
    """Eq. (bernoulli-param): w^r = 1/2 log(p/(1-p)) = 1/2 log((1+mu)/(1-mu)), where float64 can
    tell them apart.
    """
    w_r = torch.tensor(logits, dtype=torch.float64).clamp(-8, 8)
    p, mu = weights.probability(w_r), weights.mean(w_r)
    torch.testing.assert_close(0.5 * torch.log(p / (1 - p)), w_r, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(2 * p - 1, mu, rtol=0, atol=1e-12)


def test_probabilities_against_forty_digits():
    """In float64, within three units of the last place, from where p is 0 to where it is 1."""
    w_r = torch.cat([torch.linspace(-354.7, 40, 1501), torch.linspace(-3, 3, 1001)]).double()
    with decimal.localcontext(prec=40):
        exact = [1 / (1 + (-2 * decimal.Decimal(x)).exp()) for x in w_r.tolist()]
        errors = [
            abs(decimal.Decimal(p) - q) / decimal.Decimal(math.ulp(float(q)))
            for p, q in zip(weights.probability(w_r).tolist(), exact, strict=True)
        ]
    assert max(errors) < 3
    far = torch.tensor([-torch.inf, -1e4, -355.0, -354.7, 0.0, 21.0, torch.inf]).double()
    assert weights.probability(far).sign().tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert weights.probability(far)[4:].tolist() == [0.5, 1, 1]


@given(st.floats(-20, 20, width=32), st.floats(-20, 20, width=32))
def test_the_more_probable_weight_has_the_higher_limit(a, b):
    w_r = torch.tensor(sorted([a, b, np.nextafter(np.float32(a), np.float32(30))])).double()
    low, middle, high = (weights.probability(w_r) * 2**24).ceil().tolist()
    assert 0 < low <= middle <= high <= 2**24


def test_limits_are_those_of_another_exponential():
    """Of two million latents none is so near to a limit that the last bits of exp decide."""
    w_r = torch.cat([torch.linspace(-9, 9, 1_000_001), torch.linspace(-0.01, 0.01, 1_000_001)])
    ours, theirs = weights.probability(w_r.double()), torch.sigmoid(2 * w_r.double())
    assert torch.equal((ours * 2**24).ceil(), (theirs * 2**24).ceil())


@pytest.mark.parametrize("w_r", [-50.0, -1.0, -0.1, 0.0, 0.3, 2.0, 50.0])
def test_frequencies_of_samples(w_r):
    n = 100_000
    ((w,),) = weights.draw_members([torch.full((n,), w_r)], 1, seed=1)
    p = 1 / (1 + math.exp(-2 * w_r)) if w_r > -50 else math.exp(2 * w_r)
    assert stats.binomtest(int((w > 0).sum()), n, p).pvalue > 1e-4


@pytest.mark.parametrize("w_r", [-1.0, 0.0, 0.5])
@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_signs_of_relaxed_samples_have_the_posteriors_frequencies(w_r, tau):
    """sign(tanh((w^r + delta)/tau)) is an exact sample, for every tau; and delta is logistic."""
    n = 100_000
    latent = torch.full((n,), w_r, dtype=torch.float64)
    delta = weights.logistic_noise(torch.rand_like(latent, generator=seeded(2)))
    w = weights.relax(latent, delta, tau)
    assert (
        stats.binomtest(int((w > 0).sum()), n, float(weights.probability(latent[0]))).pvalue > 1e-4
    )
    assert stats.kstest(delta.numpy(), stats.logistic(scale=0.5).cdf).pvalue > 1e-4


def test_noise_is_guarded():
    """epsilon stays in [2^-24, 1 - 2^-24], so |delta| <= 1/2 log(2^24 - 1) = 8.32."""
    delta = weights.logistic_noise(torch.linspace(0, 1, 2_000_000))
    assert torch.isfinite(delta).all()
    assert delta.abs().max() <= 0.5 * math.log(2**24)
    torch.testing.assert_close(
        0.5 * torch.logit(torch.tensor([weights.EPS_MIN])),
        torch.tensor([-0.5 * math.log(2**24 - 1)]),
    )


@given(st.floats(-10, 10), st.floats(2**-24, 1 - 2**-24), st.sampled_from([0.01, 0.1, 0.5, 1.0]))
def test_gradient_factor_is_dw_dmu(w_r, eps, tau):
    """Against autograd through mu -> w^r = atanh(mu) -> w, and never bounded in this range."""
    w_r = torch.tensor(w_r, dtype=torch.float64)
    delta = 0.5 * torch.logit(torch.tensor(eps, dtype=torch.float64))
    factor = weights.mean_gradient_factor(w_r, delta, tau)
    z = (w_r + delta) / tau
    exact = (torch.cosh(w_r) / torch.cosh(z)).square() / tau  # 1 - tanh^2 = cosh^-2
    torch.testing.assert_close(factor, exact, rtol=1e-9, atol=1e-300)
    if abs(w_r) < 3:
        mu = torch.tanh(w_r).requires_grad_()
        (autograd,) = torch.autograd.grad(weights.relax(torch.atanh(mu), delta, tau), mu)
        torch.testing.assert_close(factor, autograd, rtol=1e-6, atol=1e-12)


def test_gradient_factor_is_bounded_where_stated():
    """At tau > 1 and large |w^r| the exponent would overflow; it stops at MAX_EXPONENT."""
    factor = weights.mean_gradient_factor(torch.tensor(80.0), torch.tensor(0.0), 4.0)
    assert factor == pytest.approx(math.exp(weights.MAX_EXPONENT) / 4, rel=1e-6)


def test_free_energy():
    w_r = torch.tensor([0.5, -2.0])
    expected = 3.0 + 0.1 * float(kl_divergence(w_r, 0.2))
    assert float(free_energy(3.0, w_r, 0.1, prior=0.2)) == pytest.approx(expected)
    with pytest.raises(ValueError, match="temperature: must be a finite number >= 0; got -1"):
        free_energy(3.0, w_r, -1)


def test_realisations_come_back_whatever_happens():
    net = build("deep")
    before = [p.detach().clone() for p in net.parameters()]
    with map_weights(net):
        assert all(set(p.flatten().tolist()) == {-1.0, 1.0} for p in net.parameters())
    with pytest.raises(KeyError), sample_weights(net, 0):
        raise KeyError
    with map_weights(net), pytest.raises(RuntimeError, match="do not nest"), map_weights(net):
        pass
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_a_realisation_changes_places_with_the_latents():
    """Nothing is copied, whatever the dtype or layout of the values; an alias keeps the latents."""
    w = nn.Parameter(torch.randn(3, 4).T)
    latents, alias, version = w.data_ptr(), w.detach(), w._version
    value = torch.ones(3, 4).T
    with realisation.hold([w], [value], hard=True):
        assert w.data_ptr() == value.data_ptr()
        assert torch.equal(w, value)
        assert w._version > version
        assert not torch.equal(alias, value)
    assert w.data_ptr() == latents
    assert torch.equal(w, alias)
    for other in (value.double(), value.contiguous()):
        with realisation.hold([w], [other], hard=True):
            assert torch.equal(w, value)
            assert w.dtype == torch.float32
            assert w.stride() == alias.stride()


def test_what_is_known_of_weights():
    """By their values; where those cannot be read, by what wrote them."""
    w = nn.Parameter(torch.tensor([[0.3, -2.0]]))
    assert realisation.is_hard(weights.sign(w))
    for value in (0.0, 0.5, -1.0000001, math.nan, math.inf):
        assert not realisation.is_hard(torch.tensor([1.0, value, -1.0]))
    seen = []

    def inside(scale):
        seen.append((realisation.is_hard(w), realisation.is_hard(w * scale)))
        return scale

    torch.vmap(inside)(
        torch.ones(2)
    )  # the parameter itself can be read in here, what is made of it cannot
    unreadable = nn.Parameter(w.detach().to("meta"))
    for hard in (True, False):
        with realisation.hold([w, unreadable], [weights.sign(w.detach())] * 2, hard=hard):
            seen.append((realisation.is_hard(w), realisation.is_hard(unreadable)))
    seen.append((realisation.is_hard(w), realisation.is_hard(unreadable)))
    assert seen == [(False, False), (True, True), (True, False), (False, False)]


def test_what_is_known_of_inputs():
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64):
        assert realisation.is_spikes(torch.tensor([0, 1, 1]).to(dtype))
    for value in (0.5, -1.0, 2.0, 1e-40, math.nan):
        assert not realisation.is_spikes(torch.tensor([0.0, 1.0, value]))
    assert not realisation.is_spikes(torch.tensor([0, 2], dtype=torch.uint8))
    assert not realisation.is_spikes([0, 1]), "checked before the network says what it takes"
    seen = []

    def inside(x):
        seen.append((realisation.is_spikes(x), realisation.is_spikes(x.bool())))
        return x

    torch.vmap(inside)(torch.ones(2, 3))
    assert seen == [(False, True)], "by type, where values cannot be read"
    assert not realisation.is_spikes(torch.ones(3, device="meta"))


def test_bad_arguments():
    with pytest.raises(
        ValueError,
        match="of: no rule trains binary parameters of this Linear; make the rule first, or pass",
    ):
        map_weights(torch.nn.Linear(2, 3)).__enter__()
    with pytest.raises(ValueError, match="w_r: needs at least one tensor of latents"):
        kl_divergence([])
    with pytest.raises(
        ValueError, match=r"prior: must be a number or have the latents' shape \(3,\); got \(4, 3\)"
    ):
        kl_divergence(torch.zeros(3), torch.zeros(4, 3))
    with (
        pytest.raises(ValueError, match="seed: must be a whole number"),
        sample_weights(build("dense"), "0"),
    ):
        pass


def test_a_seed_names_its_samples():
    net, drawn = build("dense"), []
    for seed, member in ((3, 0), (3, 0), (3, 1), (4, 0)):
        with sample_weights(net, seed, member):
            drawn.append(net.layers[0].weight.detach().clone())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])
