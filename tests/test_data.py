"""Encodings and the synthetic tasks."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from bisnn import encode
from bisnn.data import f_1d, one_d, two_moons
from bisnn.data.toy import CLUSTERS
from conftest import seeded


@pytest.mark.parametrize(("neurons", "width"), [(10, 1.0), (20, 4.0)], ids=["two moons", "1-D"])
def test_population_rates_by_the_formula(neurons, width):
    x = torch.tensor([[0.0, 1.0], [0.37, 0.5], [-0.3, 1.2]], dtype=torch.float64)
    rates = encode.population_rates(x, neurons, width).reshape(3, 2, neurons)
    for b in range(3):
        for d in range(2):
            for k in range(neurons):
                D = width / (neurons - 1)
                phase = min(
                    max(math.pi * (float(x[b, d]) - k / (neurons - 1)) / D, -math.pi), math.pi
                )
                assert float(rates[b, d, k]) == pytest.approx(
                    0.5 + 0.5 * math.cos(phase), abs=1e-12
                )
    assert (rates[:2].sum(-1) > 0.9).all()  # inside [0, 1] some neuron is always active


def test_spikes_have_their_rates():
    rates = torch.tensor([[0.0, 0.02, 0.5, 1.0]], dtype=torch.float64)
    s = encode.rate(rates, 20_000, 3)
    assert s.shape == (20_000, 1, 4)
    assert set(s.unique().tolist()) == {0.0, 1.0}
    for i, p in enumerate(rates[0].tolist()):
        assert stats.binomtest(int(s[..., i].sum()), 20_000, p).pvalue > 1e-4


def test_encoding_is_seeded():
    x = torch.rand(5, 2, generator=seeded(0))

    def make(seed, **options):
        return encode.population(x, 50, neurons=10, width=1.0, seed=seed, **options)

    assert torch.equal(make(1), make(1))
    assert not torch.equal(make(1), make(2))
    assert not torch.equal(make(1), make(1, draw=1))
    assert make(1).shape == (50, 5, 20)


def test_two_moons():
    train, test = two_moons(200, 1000, seed=1)
    assert train.x.shape == (400, 2)
    assert test.x.shape == (2000, 2)
    assert train.y.bincount().tolist() == [200, 200]
    assert test.y.bincount().tolist() == [1000, 1000]
    assert train.x.amin(0).tolist() == [0, 0]
    assert train.x.amax(0).tolist() == [1, 1]
    assert test.x.min() > -0.3
    assert test.x.max() < 1.3
    assert torch.equal(train.x, two_moons(200, 10, seed=1)[0].x)
    assert not torch.equal(train.x, two_moons(200, 10, seed=2)[0].x)
    nearest = torch.cdist(test.x, train.x).argmin(1)
    assert (train.y[nearest] == test.y).double().mean() > 0.99  # the task is learnable


def test_one_d():
    train, test = one_d(seed=1)
    assert train.x.shape == train.y.shape == (60, 1)
    x = 6 * train.x - 1
    assert all(any(a - 1e-5 <= v <= b + 1e-5 for a, b in CLUSTERS) for v in x.flatten().tolist())
    assert test.x.min() == 0
    assert test.x.max() == 1
    assert test.y.min() == pytest.approx(0, abs=1e-3)
    assert test.y.max() == pytest.approx(1, abs=1e-3)
    span = f_1d(torch.linspace(-1, 5, 6001)).max() - f_1d(torch.linspace(-1, 5, 6001)).min()
    residual = train.y * span - f_1d(x) + f_1d(torch.linspace(-1, 5, 6001)).min()
    assert 0.07 < residual.std() < 0.13
    assert float(f_1d(torch.tensor(2.0))) == pytest.approx(2 - 0.4 - 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: encode.population_rates(torch.rand(3, 2), 1, 1.0),
            "neurons: needs at least 2 centres",
        ),
        (
            lambda: encode.population_rates(torch.rand(3, 2), 10, 0.0),
            "width: must be a finite number > 0",
        ),
        (
            lambda: encode.population_rates(torch.rand(3), 10, 1.0),
            "x: must be a non-empty floating-point tensor",
        ),
        (
            lambda: encode.population_rates(torch.tensor([[math.nan]]), 10, 1.0),
            "x: must be finite; got 1 NaN",
        ),
        (
            lambda: encode.rate(torch.tensor([[1.5]]), 10, 0),
            r"rates: must lie in \[0, 1\].*got 1.5..1.5",
        ),
        (lambda: encode.rate(torch.rand(2, 2), 0, 0), "T: must be a positive whole number; got 0"),
        (lambda: encode.rate(torch.rand(0, 2), 5, 0), "rates: must be a non-empty"),
        (
            lambda: encode.rate(torch.rand(2, 2), 5, -1),
            "seed: must be a whole number from 0 to 2.32 - 1; got -1",
        ),
        (
            lambda: encode.population_rates([[0.5]], 10, 1.0),
            "x: must be a torch.Tensor; got list; use torch.as_tensor",
        ),
        (lambda: two_moons(0), "train, test: must be a positive whole number; got 0"),
        (lambda: two_moons(noise=-1), "noise: must be a finite number >= 0"),
        (lambda: one_d(per_unit=0), "per_unit: must be a positive whole number"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
