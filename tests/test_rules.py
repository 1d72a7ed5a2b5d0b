"""Every rule against its formula: updates, preconditioners, annealing, priors and settings."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from scipy import stats
from torch import nn

from bisnn import BayesBiSNN, Bop, Linear, Network, Recurrent, STBiSNN, map_weights
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.optimizer import adam, descend, momentum
from bisnn.rules import anneal, bop_update, natural_gradient
from bisnn.weights import MAX_EXPONENT, mean_gradient_factor, sign
from conftest import needs_compiler, seeded
from rules import C, latent, one_step

GRID = [0.0, 10.0, -10.0, 50.0, -50.0, 0.3, -1.0]
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@both_dtypes
@pytest.mark.parametrize("clip", [None, 1.0])
def test_st_step_is_algorithm_1(dtype, clip):
    w_r, c = latent(GRID, dtype), torch.tensor(C, dtype=dtype)
    w = one_step(STBiSNN([w_r], lr=0.25, clip=clip), w_r, c)
    for i, x in enumerate(GRID):
        sign = 1.0 if x >= 0 else -1.0
        assert w[i] == sign
        expected = x - 0.25 * C[i] * sign
        expected = expected if clip is None else min(max(expected, -clip), clip)
        assert w_r[i].item() == pytest.approx(expected, rel=1e-6)


@both_dtypes
@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize(
    ("tau", "rho", "prior"), list(itertools.product([0.01, 1.0], [0.0, 0.05], [0.0, -0.4]))
)
def test_bayes_step_is_algorithm_2(dtype, straight_through, tau, rho, prior):
    """In float64 with the rule's own epsilon, by the paper's formula; finite on the whole grid."""
    for seed in range(20):
        w_r, c = latent(GRID, dtype), torch.tensor(C, dtype=dtype)
        rule = BayesBiSNN(
            [w_r], 0.25, rho, tau, prior=prior, seed=seed, straight_through=straight_through
        )
        w = one_step(rule, w_r, c)
        eps = (
            torch.from_numpy(philox.uniform([0], len(GRID), seed, Purpose.TRAINING_NOISE)[0])
            .double()
            .clamp(2**-24, 1 - 2**-24)
        )
        for i, x in enumerate(GRID):
            delta = 0.5 * math.log(eps[i] / (1 - eps[i]))
            z = (x + delta) / tau
            sample = math.tanh(z) if not straight_through else (1.0 if z >= 0 else -1.0)
            # (1 - w^2) / (tau (1 - tanh^2 w^r)) with 1 - tanh^2 = cosh^-2: no 0/0 in float64 here
            factor = (math.cosh(x) / math.cosh(z)) ** 2 / tau if abs(z) < 300 else 0.0
            assert factor <= math.exp(MAX_EXPONENT) / tau
            expected = (1 - 0.25 * rho) * x - 0.25 * (factor * C[i] * sample - rho * prior)
            tolerance = 1e-11 if dtype == torch.float64 else 1e-5 + 2e-4 * abs(factor * C[i])
            assert w[i].item() == pytest.approx(sample, rel=1e-5, abs=1e-6)
            assert w_r[i].item() == pytest.approx(expected, rel=1e-6, abs=tolerance)
        assert torch.isfinite(w_r).all()


@both_dtypes
def test_bop_step_is_the_hysteresis_rule(dtype):
    values = [1.0, 1.0, 1.0, -1.0, -1.0, 0.2, -0.2]
    gradient = torch.tensor([5.0, 0.05, -5.0, -5.0, 5.0, 5.0, -5.0], dtype=dtype)
    w = latent(values, dtype)
    rule = Bop([w], lr=0.1, threshold=0.02)
    m = [0.0] * 7
    expected = [1.0 if v >= 0 else -1.0 for v in values]
    for _ in range(3):
        with rule.sampled():
            assert w.tolist() == expected
            (gradient * w).sum().backward()
        rule.step()
        for i in range(7):
            m[i] = 0.9 * m[i] + 0.1 * float(gradient[i])
            if abs(m[i]) > 0.02 and (m[i] > 0) == (expected[i] > 0):
                expected[i] = -expected[i]
        assert w.tolist() == expected
        torch.testing.assert_close(rule.state[w]["m"], torch.tensor(m, dtype=dtype))
    assert expected == [-1, 1, 1, 1, -1, -1, 1]


def test_preconditioners_are_torchs():
    """On real parameters the rule is torch's SGD with momentum, or Adam."""
    for name, optimizer in [
        ("momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.1)),
    ]:
        ours, theirs, binary = (
            latent(C, torch.float64),
            latent(C, torch.float64),
            latent(C, torch.float64),
        )
        rule = STBiSNN(
            [{"params": [binary]}, {"params": [ours], "binary": False}], lr=0.1, precondition=name
        )
        reference = optimizer([theirs])
        for _ in range(10):
            with rule.sampled():
                ((ours.square() * torch.arange(7.0)).sum() + binary.sum()).backward()
            rule.step()
            reference.zero_grad()
            (theirs.square() * torch.arange(7.0)).sum().backward()
            reference.step()
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_preconditioner_keeps_the_fixed_point():
    """With a loss c w, Algorithm 2 rests where w^r = w^r_0 - c E[dw/dmu] / rho, also with Adam."""
    c, rho = torch.tensor([0.02, -0.05]), 0.1
    noise = 0.5 * torch.logit((torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000)
    rest = torch.zeros(2, dtype=torch.float64)
    for _ in range(100):
        rest = 0.1 - c / rho * mean_gradient_factor(rest[:, None], noise, 1.0).mean(1)
    for precondition in ("none", "adam"):
        w_r = latent([0.0, 0.0], torch.float32)
        rule = BayesBiSNN(
            [w_r],
            0.01 if precondition == "adam" else 0.2,
            rho,
            prior=0.1,
            precondition=precondition,
        )
        tail = []
        for step in range(4000):
            with rule.sampled():
                (c * w_r).sum().backward()
            rule.step()
            if step >= 2000:
                tail.append(w_r.detach().clone())
        torch.testing.assert_close(torch.stack(tail).mean(0).double(), rest, rtol=0, atol=0.03)


def test_prior_as_a_tensor():
    prior = torch.tensor([1.0, -2.0])
    w_r = latent([0.0, 0.0], torch.float32)
    rule = BayesBiSNN([{"params": [w_r], "prior": prior}], lr=0.5, temperature=0.1)
    with rule.sampled():
        (0 * w_r).sum().backward()
    rule.step()
    torch.testing.assert_close(w_r.detach(), 0.05 * prior)


def test_annealing():
    assert [anneal(1.0, 0.01, k, 2) for k in (0, 1, 2, 3)] == pytest.approx([1.0, 0.1, 0.01, 0.01])
    assert anneal(1.0, None, 5, None) == 1.0
    w_r = latent([0.1], torch.float32)
    rule = BayesBiSNN([w_r], 0.1, 1.0, tau_end=0.25, temperature_end=0.01, anneal_steps=2)
    seen = []
    for _ in range(4):
        group = rule.param_groups[0]
        seen.append((rule.annealed("tau", group), rule.annealed("temperature", group)))
        one_step(rule, w_r, 1.0)
    assert [t for t, _ in seen] == pytest.approx([1.0, 0.5, 0.25, 0.25])
    assert [r for _, r in seen] == pytest.approx([1.0, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("name", ["temperature", "tau"])
def test_annealing_enters_the_update(name):
    """Two steps of annealing equal a step with the first value and one with the second."""
    annealed, by_hand = latent(C, torch.float64), latent(C, torch.float64)
    c = torch.tensor(C, dtype=torch.float64)
    a = BayesBiSNN([annealed], 0.1, 0.4, **{name + "_end": 0.1}, anneal_steps=1)
    b = BayesBiSNN([by_hand], 0.1, 0.4)
    for step in range(2):
        if step == 1:
            b.param_groups[0][name] = 0.1
        one_step(a, annealed, c)
        one_step(b, by_hand, c)
    assert torch.equal(annealed, by_hand)


UPDATES = {
    "descend": lambda w, m, g: descend(w, g, 0.1),
    "natural_gradient": lambda w, m, g: natural_gradient(w, g, 0.5, 0.2),
    "natural_gradient prior": lambda w, m, g: natural_gradient(w, g, 0.5, m),
    "bop_update": lambda w, m, g: bop_update(sign(w), m, g, 0.1, 0.05),
    "momentum": lambda w, m, g: momentum(g, m, 0.9),
    "adam": lambda w, m, g: adam(g, m, w.square(), 3, 0.9, 0.999),
}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES.keys())
def test_updates_compile_in_one_graph(update, backend):
    """Pure functions of tensors: no graph breaks, nothing changed in place, the same numbers."""
    arguments = torch.randn(3, 50, generator=seeded(0)).unbind()
    before = [a.clone() for a in arguments]
    torch.testing.assert_close(
        torch.compile(update, fullgraph=True, backend=backend)(*arguments), update(*arguments)
    )
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


def test_biases_and_norms_are_not_made_binary_unnoticed():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))
    with pytest.warns(
        UserWarning,
        match=r"params: 3 of 5 parameters have fewer than two axes, such as \(3,\): "
        "biases or norms",
    ):
        STBiSNN(module.parameters(), lr=0.1)
    masked = Network(
        Linear(12, 6), Recurrent(6, 5, mask=torch.ones(5, 11, dtype=torch.bool)), readout=2
    )
    assert {p.ndim for p in masked.parameters()} == {1, 2}
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    matrices, vectors = (
        [p for p in module.parameters() if (p.ndim > 1) == flat] for flat in (True, False)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        STBiSNN(masked.parameters(), lr=0.1)
        STBiSNN([nn.Parameter(torch.zeros(3))], lr=0.1)
        STBiSNN([{"params": matrices}, {"params": vectors, "binary": False}], lr=0.1)
    with pytest.warns(UserWarning, match="biases or norms"):
        STBiSNN(module.parameters(), lr=0.1)  # again, and taken back by the rule after it
    with pytest.warns(UserWarning, match="biases or norms"):
        STBiSNN(module.parameters(), lr=0.1)
    STBiSNN([{"params": matrices}, {"params": vectors, "binary": False}], lr=0.1)
    with map_weights(module):  # it knows what the last rule trains
        assert all((p.detach().abs() == 1).all() for p in matrices)
        assert not any((p.detach().abs() == 1).any() for p in vectors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_of_half_precision_parameters_is_finite_and_unbiased(dtype):
    """Drawn in float32: rounded to half precision, a number would be 1, and its noise infinite."""
    w_r = nn.Parameter(torch.full((400_000,), -5.0, dtype=dtype))
    rule = BayesBiSNN([w_r], 0.1, 0.0, straight_through=True)
    with rule.sampled():
        up = int((w_r > 0).sum())
    assert stats.binomtest(up, 400_000, 1 / (1 + math.exp(10))).pvalue > 1e-4


def test_a_prior_pulls_parameters_without_a_gradient():
    """Algorithm 2 with the gradient 0, by hand; frozen parameters and real ones stay."""
    idle, used, frozen, real = (nn.Parameter(torch.ones(1)) for _ in range(4))
    frozen.requires_grad_(False)
    groups = [{"params": [idle, used, frozen]}, {"params": [real], "binary": False}]
    rule = BayesBiSNN(groups, lr=0.1, temperature=0.3)
    with rule.sampled():
        (0.0 * used).sum().backward()
    rule.step()
    assert idle.item() == pytest.approx(1 - 0.1 * 0.3)
    assert used.item() == pytest.approx(1 - 0.1 * 0.3)
    assert frozen.item() == real.item() == 1


P = [nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: STBiSNN([], lr=0.1),
            "params: needs at least one parameter; got an empty parameter group",
        ),
        (
            lambda: STBiSNN([{"params": []}], lr=0.1),
            "params: needs at least one parameter; got an empty parameter group",
        ),
        (lambda: STBiSNN(P, lr=0.0), "lr: must be a finite number > 0; got 0.0"),
        (lambda: STBiSNN(P, lr=math.nan), "lr: must be a finite number"),
        (lambda: STBiSNN(P, lr=0.1, clip=0), "clip: must be a finite number > 0; got 0"),
        (
            lambda: STBiSNN(P, lr=0.1, precondition="adamw"),
            "precondition: must be one of none, momentum, adam; got 'adamw'",
        ),
        (lambda: STBiSNN(P, lr=0.1, betas=(0.9, 1.0)), r"betas: must be two numbers in \[0, 1\)"),
        (
            lambda: STBiSNN([{"params": P, "binary": 1}], lr=0.1),
            "binary: must be True or False; got 1",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, -1e-3),
            "temperature: must be a finite number >= 0; got -0.001",
        ),
        (lambda: BayesBiSNN(P, 0.1, 1e-3, tau=0.0), "tau: must be a finite number > 0; got 0.0"),
        (
            lambda: BayesBiSNN(P, 0.1, 1e-3, prior=torch.zeros(3)),
            r"prior: must be a number or have the shape .*got \(3,\)",
        ),
        (lambda: BayesBiSNN(P, 0.1, 1e-3, prior=math.inf), "prior: must be a finite number"),
        (
            lambda: BayesBiSNN(P, 0.1, 1e-3, tau_end=0.1),
            "anneal_steps: goes with tau_end or temperature_end",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 1e-3, anneal_steps=10),
            "anneal_steps: goes with tau_end or temperature_end",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 1e-3, tau_end=0.1, anneal_steps=0),
            "anneal_steps: must be a positive whole number",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 0.0, temperature_end=0.1, anneal_steps=5),
            "temperature: must be a finite number > 0",
        ),
        (lambda: BayesBiSNN(P, 0.1, 1e-3, seed=None), "seed: must be a whole number"),
        (
            lambda: Bop(P, lr=1.5, threshold=0.1),
            r"lr: Bop's adaptivity rate must lie in \(0, 1\]; got 1.5",
        ),
        (lambda: Bop(P, lr=0.5, threshold=0.0), "threshold: must be a finite number > 0"),
        (
            lambda: STBiSNN(P, lr=0.1).load_state_dict({"state": {}, "param_groups": []}),
            "got one without draws, pending",
        ),
        (
            lambda: STBiSNN(P, lr=0.1).load_state_dict(BayesBiSNN(P, 0.1, 0.0).state_dict()),
            "a STBiSNN; got one without clip",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 0.0).load_state_dict(STBiSNN(P, lr=0.1).state_dict()),
            "got one without seed",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 0.0, straight_through="no"),
            "straight_through: must be True or False; got 'no'",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 0.0, prior=torch.tensor([math.nan, 0.0])),
            "prior: must be finite",
        ),
        (
            lambda: STBiSNN([torch.zeros(2, dtype=torch.int64)], lr=0.1),
            "params: must be floating point; got torch.int64",
        ),
        (lambda: STBiSNN(P, lr=0.1, betas=None), "betas: must be two numbers"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
