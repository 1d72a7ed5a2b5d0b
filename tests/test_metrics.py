"""Metrics against scikit-learn and plain loops."""

from __future__ import annotations

import math

import pytest
import sklearn.metrics
import torch

from bisnn import metrics
from conftest import seeded

N, C = 500, 4
PROBS = torch.softmax(2 * torch.randn(N, C, generator=seeded(0), dtype=torch.float64), -1)
LABELS = torch.multinomial(PROBS, 1, generator=seeded(1)).squeeze(1)  # a calibrated model


def test_against_scikit_learn():
    one_hot = torch.nn.functional.one_hot(LABELS, C).numpy()
    p, y = PROBS.numpy(), LABELS.numpy()
    assert metrics.accuracy(PROBS, LABELS) == pytest.approx(sklearn.metrics.accuracy_score(y, p.argmax(1)))
    some = LABELS != 2  # a class that does not occur has no share
    uneven = torch.cat([LABELS[some], torch.zeros(70, dtype=torch.int64)])
    probs = torch.cat([PROBS[some], PROBS[:70]])
    expected = pytest.approx(sklearn.metrics.recall_score(uneven, probs.argmax(1), labels=[0, 1, 3], average="macro"))
    assert metrics.balanced_accuracy(probs, uneven) == expected != metrics.accuracy(probs, uneven)
    assert metrics.nll(PROBS, LABELS) == pytest.approx(sklearn.metrics.log_loss(y, p))
    assert metrics.brier(PROBS, LABELS) == pytest.approx(((p - one_hot) ** 2).sum(1).mean())
    binary = torch.stack([1 - PROBS[:, 0], PROBS[:, 0]], 1)
    half = sklearn.metrics.brier_score_loss((y == 0).astype(int), p[:, 0])
    assert metrics.brier(binary, (LABELS == 0).long()) == pytest.approx(2 * half)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_and_reliability_by_loops(bins):
    total, rows = 0.0, []
    for k in range(bins):
        members = [i for i in range(N) if k / bins <= float(PROBS[i].max()) < (k + 1) / bins]
        if not members:
            rows.append((0, math.nan, math.nan))
            continue
        confidence = sum(float(PROBS[i].max()) for i in members) / len(members)
        right = sum(int(PROBS[i].argmax() == LABELS[i]) for i in members) / len(members)
        rows.append((len(members), confidence, right))
        total += abs(confidence - right) * len(members) / N
    assert metrics.ece(PROBS, LABELS, bins) == pytest.approx(total, abs=1e-6)
    table = metrics.reliability(PROBS, LABELS, bins)
    for k, (size, confidence, right) in enumerate(rows):
        assert table.size[k] == size
        assert float(table.confidence[k]) == pytest.approx(confidence, nan_ok=True)
        assert float(table.accuracy[k]) == pytest.approx(right, nan_ok=True)


def test_certainty():
    """Probabilities of exactly 0 and 1, and a rounding error above 1, are no trouble."""
    probs = torch.tensor([[1.0, 0.0], [1.0000001, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1])
    assert metrics.ece(probs, labels) == pytest.approx(0, abs=1e-6)
    assert metrics.nll(probs, labels) == pytest.approx(0, abs=1e-6)
    assert metrics.reliability(probs, labels).size.tolist() == [0] * 14 + [3]
    assert math.isfinite(metrics.nll(probs, 1 - labels))


def test_ece_is_torchmetrics():
    from torchmetrics.functional.classification import multiclass_calibration_error

    for seed, bins in ((0, 15), (1, 7), (2, 40)):
        probs = (4 * torch.randn(500, 4, generator=torch.Generator().manual_seed(seed))).softmax(-1)
        labels = torch.randint(0, 4, (500,), generator=torch.Generator().manual_seed(seed))
        theirs = float(multiclass_calibration_error(probs, labels, num_classes=4, n_bins=bins))
        assert metrics.ece(probs, labels, bins) == pytest.approx(theirs, abs=1e-6)


def test_paired_differences_are_tighter_than_apart():
    """Two methods that err on the same recordings: their difference is known better than either; runs count by their mean."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (400,), generator=rng)
    hard = torch.rand(400, generator=rng) < 0.3
    right, wrong = (torch.nn.functional.one_hot(y % 3, 3) * 0.94 + 0.02 for y in (labels, labels + 1))
    b = torch.where(hard[:, None], wrong, right)
    a = b.clone()
    fixed = hard.nonzero()[:20, 0]
    a[fixed] = right[fixed]
    found = metrics.paired(metrics.accuracy, [a, a], [b], labels, resamples=300)
    assert found.value == pytest.approx(0.05)
    assert 0.02 < found.low < 0.05 < found.high < 0.08
    apart = metrics.bootstrap(metrics.accuracy, a, labels, resamples=300)
    assert found.high - found.low < 0.6 * (apart.high - apart.low)
    assert metrics.paired(metrics.nll, [b], [a], labels, resamples=50).low > 0
    mean = metrics.paired(metrics.accuracy, [a, b], [b], labels, resamples=50)
    assert mean.value == pytest.approx(0.025)


def test_bootstrap_covers():
    """The interval of the accuracy is about the binomial one, holds the value, and repeats with its seed."""
    interval = metrics.bootstrap(metrics.accuracy, PROBS, LABELS, resamples=400)
    deviation = math.sqrt(interval.value * (1 - interval.value) / N)
    assert interval.low < interval.value < interval.high
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * deviation, rel=0.15)
    assert metrics.bootstrap(metrics.accuracy, PROBS, LABELS, resamples=400) == interval
    assert metrics.bootstrap(metrics.accuracy, PROBS, LABELS, resamples=400, seed=1) != interval
    for metric in metrics.METRICS.values():
        low, high = metrics.bootstrap(metric, PROBS, LABELS, resamples=50)[1:]
        assert low < high


def test_a_single_recording():
    assert metrics.bootstrap(metrics.accuracy, PROBS[:1], LABELS[:1]).low in (0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.accuracy(PROBS[0], LABELS[0]), r"probs, labels: must be \(N, C\) and \(N,\)"),
        (lambda: metrics.accuracy(PROBS[:0], LABELS[:0]), "N >= 1"),
        (lambda: metrics.nll(PROBS, LABELS[:10]), "probs, labels: must be"),
        (lambda: metrics.nll(PROBS, LABELS.int()), "probs, labels: must be floating point and int64"),
        (lambda: metrics.ece(5 * PROBS, LABELS), "probs: rows must be probabilities"),
        (lambda: metrics.ece(PROBS.log(), LABELS), "probs: rows must be probabilities.*softmax"),
        (lambda: metrics.brier(PROBS * math.nan, LABELS), "probs: rows must be probabilities"),
        (lambda: metrics.brier(PROBS, LABELS + 1), r"labels: must lie in 0..3; got 1..4"),
        (lambda: metrics.paired(metrics.ece, [], [PROBS], LABELS), "a, b: must be predictions of the same recordings"),
        (lambda: metrics.paired(metrics.ece, [PROBS], [PROBS[:3]], LABELS), "a, b: must be predictions of the same recordings"),
        (lambda: metrics.ece(PROBS, LABELS, bins=0), "bins: must be a positive whole number"),
        (lambda: metrics.bootstrap(metrics.ece, PROBS, LABELS, level=1.0), r"level: must lie in \(0, 1\)"),
        (lambda: metrics.bootstrap(metrics.ece, PROBS, LABELS, resamples=0), "resamples: must be"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
