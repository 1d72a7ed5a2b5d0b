"""The passes over the weights that are compiled for a CPU, against the functions that define them,
in float64.
"""

from __future__ import annotations

import pytest
import torch

from bisnn import optimizer, weights
from bisnn.bits.philox import Purpose
from bisnn.kernels import cpu_updates
from bisnn.kernels.draws import Noise
from conftest import seeded, threads

N = 7 * 14_287
NOISE = Noise(stream=2, seed=5, purpose=Purpose.TRAINING_NOISE, draw=3)


def latents() -> torch.Tensor:
    """From undecided to decided for good, both ends and zeros among them."""
    w_r = 3 * torch.randn(N, generator=seeded(1))
    w_r[:6] = torch.tensor([0.0, -0.0, 60.0, -60.0, 1e-30, -300.0])
    return w_r.reshape(7, -1)


@pytest.mark.parametrize("tau", [0.2, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("count", [1, 2])
def test_relaxed_samples_are_those_of_the_definition(tau, count):
    w_r = latents()
    with threads(count):
        w, factor = cpu_updates.sample(w_r, NOISE, tau, hard=False)
    delta = weights.logistic_noise(NOISE.like(w_r).double())
    exact = weights.mean_gradient_factor(w_r.double(), delta, tau)
    close = {"check_dtype": False, "rtol": 0, "atol": 2e-6}
    torch.testing.assert_close(w, weights.relax(w_r.double(), delta, tau), **close)
    torch.testing.assert_close(factor, exact, check_dtype=False, rtol=1e-4, atol=1e-30)


def test_hard_samples_are_the_signs_of_the_definition():
    w_r = latents()
    w, factor = cpu_updates.sample(w_r, NOISE, 0.5, hard=True)
    x = w_r.double() + weights.logistic_noise(NOISE.like(w_r).double())
    sure = x.abs() > 1e-6  # of both
    assert sure.float().mean() > 0.999
    assert torch.equal(w[sure], weights.sign(x)[sure].float())
    assert torch.equal(factor, cpu_updates.sample(w_r, NOISE, 0.5, hard=False)[1])


@pytest.mark.parametrize("count", [1, 2])
def test_steps_of_adam_are_those_of_the_definition(count):
    rng = seeded(2)
    m, v = torch.zeros(2, 7, N // 7)
    exact_m, exact_v = m.double(), v.double()
    for step in (1, 2, 3):
        g = torch.randn(7, N // 7, generator=rng).mul_(10.0 ** (step - 5))
        with threads(count):
            got = cpu_updates.adam(g, m, v, step, 0.9, 0.95)
        exact, exact_m, exact_v = optimizer.adam(g.double(), exact_m, exact_v, step, 0.9, 0.95)
        for ours, theirs in ((got, exact), (m, exact_m), (v, exact_v)):
            torch.testing.assert_close(ours, theirs, check_dtype=False, rtol=1e-5, atol=1e-7)
