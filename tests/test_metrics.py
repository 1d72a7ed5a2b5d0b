"""Metrics against scikit-learn, torchmetrics and plain loops."""

from __future__ import annotations

import math

import numpy as np
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
    assert metrics.accuracy(PROBS, LABELS) == pytest.approx(
        sklearn.metrics.accuracy_score(y, p.argmax(1))
    )
    some = LABELS != 2  # a class that does not occur has no share
    uneven = torch.cat([LABELS[some], torch.zeros(70, dtype=torch.int64)])
    probs = torch.cat([PROBS[some], PROBS[:70]])
    expected = pytest.approx(
        sklearn.metrics.recall_score(uneven, probs.argmax(1), labels=[0, 1, 3], average="macro")
    )
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


@pytest.mark.parametrize("bins", [1, 20, 50])
def test_adaptive_ece_of_equal_parts(bins):
    """Without ties, and where the bins divide the recordings, a bin is a part of the sorted ones;
    one bin has the plain ECE's gap.
    """
    order = np.argsort(PROBS.max(-1).values.numpy())
    confidence = PROBS.max(-1).values.numpy()[order]
    right = (PROBS.argmax(-1) == LABELS).numpy()[order]
    parts = zip(np.split(confidence, bins), np.split(right, bins), strict=True)
    gaps = [abs(stated.mean() - found.mean()) for stated, found in parts]
    assert metrics.adaptive_ece(PROBS, LABELS, bins) == pytest.approx(np.mean(gaps))
    if bins == 1:
        assert metrics.ece(PROBS, LABELS, 1) == pytest.approx(np.mean(gaps))


def test_adaptive_ece_does_not_depend_on_the_order_of_ties():
    coarse = (PROBS * 5).round().clamp(min=1)
    coarse = coarse / coarse.sum(-1, keepdim=True)
    mixed = torch.randperm(N, generator=seeded(2))
    found = metrics.adaptive_ece(coarse, LABELS)
    assert metrics.adaptive_ece(coarse[mixed], LABELS[mixed]) == pytest.approx(found, abs=1e-12)
    total = 0.0  # by the values themselves, where all of them are apart
    top, predicted = coarse.max(-1)
    for value in top.unique():
        at = top == value
        total += abs(float((top - (predicted == LABELS).double())[at].sum()))
    assert metrics.adaptive_ece(coarse, LABELS, bins=10**6) == pytest.approx(total / N)


@pytest.mark.parametrize("gap", [0.0, 0.1])
def test_debiased_ece_is_the_miscalibration_itself(gap):
    """On average over draws of right answers, where the plain ECE is more."""
    rng = np.random.default_rng(0)
    stated = torch.linspace(0.75, 0.9, 200, dtype=torch.float64)
    probs = torch.stack([stated, 1 - stated], 1)
    plain, debiased = [], []
    for _ in range(200):
        labels = torch.from_numpy((rng.random(200) >= stated.numpy() - gap).astype(np.int64))
        plain.append(metrics.ece(probs, labels))
        debiased.append(metrics.debiased_ece(probs, labels))
    assert abs(np.mean(debiased) - gap) < 0.02
    assert np.mean(plain) - gap > max(0.02 if gap == 0 else 0, np.mean(debiased) - gap)


def murphy(probs, labels, bins):
    """Reliability, resolution, uncertainty, and what probabilities vary within bins (Stephenson et
    al., 2008), by loops.
    """
    parts = np.zeros(4)
    for c in range(probs.shape[1]):
        hits = [float(y == c) for y in labels]
        prior = sum(hits) / len(hits)
        parts[2] += prior * (1 - prior)
        for k in range(bins):
            chosen = [i for i, p in enumerate(probs[:, c]) if min(int(p * bins), bins - 1) == k]
            if chosen:
                p, hit = probs[chosen, c], np.array(hits)[chosen]
                share = len(chosen) / len(hits)
                parts[0] += share * (p.mean() - hit.mean()) ** 2
                parts[1] += share * (hit.mean() - prior) ** 2
                parts[3] += share * (p.var() - 2 * np.mean((p - p.mean()) * (hit - hit.mean())))
    return parts


@pytest.mark.parametrize("bins", [1, 4, 16])
def test_parts_of_the_brier_score(bins):
    expected = murphy(PROBS.numpy(), LABELS.tolist(), bins)
    found = metrics.brier_decomposition(PROBS, LABELS, bins)
    assert found == pytest.approx(tuple(expected[:3]))
    total = found.reliability - found.resolution + found.uncertainty
    assert total + expected[3] == pytest.approx(metrics.brier(PROBS, LABELS))
    assert abs(expected[3]) > 1e-6, "binning leaves something out"


def test_murphys_identity_is_exact_for_few_probabilities():
    values = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    which = torch.randint(0, 3, (300,), generator=seeded(5))
    probs, labels = values[which], torch.randint(0, 3, (300,), generator=seeded(6))
    found = metrics.brier_decomposition(probs, labels, bins=10)
    total = found.reliability - found.resolution + found.uncertainty
    assert total == pytest.approx(metrics.brier(probs, labels))
    assert metrics.brier_decomposition(values, torch.tensor([2, 0, 1]), 10).uncertainty == (
        pytest.approx(2 / 3)
    )


def test_a_single_recording():
    low, high = metrics.interval("accuracy", PROBS[:1], LABELS[:1])[1:]
    assert high - low > 0.7, "one says little"
    value, low, high = metrics.interval("brier", PROBS[:1], LABELS[:1])
    assert low <= value <= high
    assert metrics.paired("nll", [PROBS[:1]], [PROBS[:1]], LABELS[:1]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: metrics.accuracy(PROBS[0], LABELS[0]),
            r"probs, labels: must be \(N, C\) and \(N,\)",
        ),
        (lambda: metrics.accuracy(PROBS[:0], LABELS[:0]), "N >= 1"),
        (lambda: metrics.nll(PROBS, LABELS[:10]), "probs, labels: must be"),
        (
            lambda: metrics.nll(PROBS, LABELS.int()),
            "probs, labels: must be floating point and int64",
        ),
        (lambda: metrics.ece(5 * PROBS, LABELS), "probs: rows must be probabilities"),
        (lambda: metrics.ece(PROBS.log(), LABELS), "probs: rows must be probabilities.*softmax"),
        (lambda: metrics.brier(PROBS * math.nan, LABELS), "probs: must be finite; got .* NaN"),
        (lambda: metrics.brier(PROBS, LABELS + 1), r"labels: must lie in 0..3; got 1..4"),
        (
            lambda: metrics.paired("nll", [], [PROBS], LABELS),
            "a, b: must be predictions of the same recordings",
        ),
        (
            lambda: metrics.paired("nll", [PROBS], [PROBS[:3]], LABELS),
            "a, b: must be predictions of the same recordings",
        ),
        (lambda: metrics.ece(PROBS, LABELS, bins=0), "bins: must be a positive whole number"),
        (lambda: metrics.adaptive_ece(PROBS, LABELS, bins=0), "bins: must be a positive whole"),
        (lambda: metrics.adaptive_ece(PROBS[:0], LABELS[:0]), "N >= 1"),
        (lambda: metrics.brier_decomposition(PROBS, LABELS, 1.5), "bins: must be a positive whole"),
        (lambda: metrics.brier_decomposition(PROBS, LABELS - 1), "labels: must lie in 0..3"),
        (lambda: metrics.paired("nll", [PROBS] * 2, [PROBS], LABELS), "by as many runs"),
        (lambda: metrics.paired("ece", [PROBS], [PROBS], LABELS), "name: must be one of accuracy"),
        (lambda: metrics.interval("ece", PROBS, LABELS), "name: must be one of accuracy"),
        (lambda: metrics.interval("nll", PROBS, LABELS, level=1.0), r"level: must lie in \(0, 1\)"),
        (
            lambda: metrics.interval("calibration_error", PROBS.log(), LABELS),
            "probs: rows must be probabilities",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
