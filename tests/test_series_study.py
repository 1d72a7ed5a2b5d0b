"""The made sets of series, and the study that compares on them."""

from __future__ import annotations

import numpy as np
import pytest

from bisnn_experiments import series, series_sets
from bisnn_experiments.series import SeriesRow


@pytest.mark.parametrize("name", series.SETS)
def test_sets_are_those_of_their_seed(name):
    (x, y), (again, labels), (others, _) = (series.SETS[name](60, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(x, again, strict=True))
    assert (y == labels).all()
    assert any(a.shape != b.shape for a, b in zip(x, others, strict=True)), "ragged, and others"
    assert np.bincount(y).tolist() == [10] * 6


def test_rhythms_differ_in_order_alone():
    """Counts in bins of time are alike in all classes; what follows what is not."""
    x, y = series_sets.rhythms(3000, 0)
    drums = np.stack([item[:80].reshape(80, 4, 4).sum(2) for item in x]).astype(float)  # (N, T, 4)
    binned = drums.reshape(len(x), 8, 10, 4).sum(2)
    means = np.stack([binned[y == k].mean(0) for k in range(6)])
    noise = binned.std(0) / np.sqrt(500)
    assert (np.abs(means - binned.mean(0)) < 5 * noise).all()
    follows = (drums[:, :-8, :, None] * drums[:, 8:, None, :]).mean(1)  # drum j eight steps after i
    for k, order in enumerate(series_sets.ORDERS):
        mean = follows[y == k].mean(0)
        for i in range(4):
            assert mean[order[i]].argmax() == order[(i + 1) % 4]


def test_the_summary_is_of_each_method_over_the_seeds():
    reached = {"bisnn": (0.9, 0.7), "no delays": (0.5, 0.5), "GRU": (0.95, 0.85)}
    reached["logistic regression"] = (0.2, 0.4)
    rows = [
        SeriesRow(data=d, method=m, seed=s, accuracy=a, weights=80, bits=1 if "b" in m else 32)
        for d in series.SETS
        for m, values in reached.items()
        for s, a in enumerate(values)
    ]
    first = series.summarised(rows)[0]
    assert (first.data, first.method, first.bytes) == ("rhythms", "bisnn", 10)
    found = (first.accuracy.mean, first.behind_gru, first.behind_logistic)
    assert found == pytest.approx((0.8, 0.1, -0.5))


@pytest.mark.slow
@pytest.mark.parametrize("method", series.METHODS)
def test_a_small_study(method, tmp_path):
    row = series.measured("rhythms", method, 100, 1000, tmp_path)
    least, most = {"bisnn": (0.9, 1), "no delays": (0, 0.5), "GRU": (0.3, 1)}.get(method, (0, 0.4))
    assert least <= row.accuracy <= most
    assert 35_000 < row.weights < 46_000 or method in ("no delays", "logistic regression")
