"""bisnn_experiments.diagrams: what the explanations draw is what is true."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import bisnn
from bisnn_experiments import diagrams
from reference import alpha, convolve, potentials

FOUND = Path(__file__).parents[1] / "docs" / "results" / "guarantee.json"


def test_the_layer_that_is_drawn_has_the_papers_potentials():
    parts, neuron = diagrams.layer(), bisnn.SRM(threshold=0.2)
    T, kappa = diagrams.STEPS, 1 / math.sqrt(diagrams.INPUTS)
    assert set(np.unique(parts["W"])) == {-1, 1}
    for recording in (slice(T), slice(T, 2 * T)):
        current = np.einsum("ij,jt->ti", parts["W"], parts["s"][:, recording])
        assert (parts["I"][:, recording] == current.T).all()
        filtered = convolve(alpha, current.astype(float), neuron)
        expected = potentials(filtered, parts["spikes"].T[recording], kappa, neuron)
        assert parts["u"].T[recording] == pytest.approx(expected, abs=1e-5)
    assert (parts["spikes"] == (parts["u"] > 0.2)).all()
    assert parts["spikes"].any()


def test_coverages_of_calibrations_are_beta_distributed():
    """Of n scores without ties the k-th smallest covers Beta(k, n + 1 - k)."""
    found = json.loads(FOUND.read_text())
    for size, values in found["sizes"].items():
        k = math.ceil((int(size) + 1) * 0.9)
        exact = stats.beta(k, int(size) + 1 - k)
        error = exact.std() / math.sqrt(found["calibrations"])
        assert values["mean"] == pytest.approx(exact.mean(), abs=4 * error)
        assert values["deviation"] == pytest.approx(exact.std(), rel=0.05)
        assert values["low"] == pytest.approx(exact.ppf(0.05), abs=10 * error)
        assert values["high"] == pytest.approx(exact.ppf(0.95), abs=10 * error)


def test_a_threshold_for_each_class_covers_each_class():
    rng = np.random.default_rng(1)
    some = {
        by_class: np.mean(
            [
                diagrams.coverages(diagrams.calibrated(rng, 400, by_class=by_class))
                for _ in range(200)
            ],
            0,
        )
        for by_class in (False, True)
    }
    assert some[True] == pytest.approx([0.9, 0.9, 0.9], abs=0.015)
    # One threshold t with 0.8 e^-t + 0.2 e^-(t / 3) = 0.1
    t = 3.2262
    assert some[False] == pytest.approx([0.9, 1 - math.exp(-t), 1 - math.exp(-t / 3)], abs=0.015)
