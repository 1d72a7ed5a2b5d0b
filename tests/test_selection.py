"""Scores that tell data apart against scikit-learn and torchmetrics; selective prediction against
slow loops, and by simulation of what it guarantees.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torchmetrics.functional import classification

from bisnn import metrics, selection

# Few values, so that most are tied
SCORES = st.lists(st.integers(-3, 3).map(lambda k: k / 4), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_telling_apart_is_scikit_learns_and_torchmetrics(own, other):
    truth = np.repeat([0, 1], [len(own), len(other)])
    scores = np.array(own + other)
    low, high = torch.tensor(own), torch.tensor(other)
    assert metrics.auroc(low, high) == pytest.approx(sklearn.metrics.roc_auc_score(truth, scores))
    precision = pytest.approx(sklearn.metrics.average_precision_score(truth, scores))
    assert metrics.aupr(low, high) == precision
    rates = sklearn.metrics.roc_curve(truth, scores, drop_intermediate=False)
    expected = min(fpr for fpr, tpr, _ in zip(*rates, strict=True) if tpr >= 0.95)
    assert metrics.fpr95(low, high) == pytest.approx(expected)
    # As probabilities, for torchmetrics would take the sigmoid of others
    theirs = torch.from_numpy((scores + 1) / 2), torch.from_numpy(truth)
    assert metrics.auroc(low, high) == pytest.approx(
        float(classification.binary_auroc(*theirs)), abs=1e-6
    )
    assert metrics.aupr(low, high) == pytest.approx(
        float(classification.binary_average_precision(*theirs)), abs=1e-6
    )


def test_fpr95_needs_19_of_20():
    """One that is missed may lie anywhere; and 7 % of 100 are 7, though 0.07 * 100 is more."""
    own = torch.tensor([0.5, 1.5])
    other = torch.cat([torch.full((19,), 1.0), torch.tensor([-9.0])])
    assert metrics.fpr95(own, other) == 0.5
    assert metrics.fpr95(own, torch.cat([other, torch.tensor([-9.0])])) == 1
    other = torch.cat([torch.full((7,), 1.0), torch.full((93,), -9.0)])
    assert 0.07 * 100 > 7
    assert metrics.fpr95(own, other, 0.07) == 0.5


def test_single_and_double_precision_are_compared_in_double():
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert metrics.auroc(third, third.float()) == 1, "float32 rounds 1/3 up"


def risks_by_loops(confidence: list[float], correct: list[bool]) -> np.ndarray:
    """The mean curve over all orders of equal confidences."""
    curves = []
    for order in itertools.permutations(range(len(correct))):
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order)):
            wrong = np.cumsum([not correct[i] for i in order])
            curves.append(wrong / np.arange(1, len(order) + 1))
    return np.mean(curves, 0)


@given(st.lists(st.tuples(st.sampled_from([0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_risk_and_coverage_by_loops(answers):
    confidence, correct = map(list, zip(*answers, strict=True))
    curve = metrics.risk_coverage(torch.tensor(confidence), torch.tensor(correct))
    expected = risks_by_loops(confidence, correct)
    np.testing.assert_allclose(curve.risk, expected, atol=1e-12)
    np.testing.assert_allclose(curve.coverage, np.arange(1, len(correct) + 1) / len(correct))
    area = metrics.aurc(torch.tensor(confidence), torch.tensor(correct))
    assert area == pytest.approx(expected.mean())


def test_a_confidence_that_says_nothing_has_the_risk_as_its_area():
    correct = torch.arange(100) % 4 > 0
    assert metrics.aurc(torch.full((100,), 0.5), correct) == pytest.approx(0.25)
    best, worst = (metrics.aurc(c, correct) for c in (correct.float(), (~correct).float()))
    assert best < 0.05
    assert worst > 0.5


# Abstention


def threshold_by_loops(confidence, correct, error, level):
    """SciPy's bound at each threshold in turn, as the docstring has it."""
    last = None
    for threshold in selection.THRESHOLDS:
        answered = [c for s, c in zip(confidence, correct, strict=True) if s >= threshold]
        n, wrong = len(answered), answered.count(False)
        if (1 - error) ** n > 1 - level:
            continue
        test = stats.binomtest(wrong, n, alternative="less")
        if test.proportion_ci(level, method="exact").high > error:
            break
        last = float(threshold)
    return last


@pytest.mark.parametrize("error", [0.02, 0.1])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_thresholds_by_loops(error, level):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(20):
        confidence = rng.beta(6, 1, 400).astype(np.float32)
        correct = rng.random(400) < confidence**0.1
        found = metrics.abstention_threshold(
            torch.from_numpy(confidence), torch.from_numpy(correct), error, level
        )
        assert found.threshold == threshold_by_loops(confidence, correct.tolist(), error, level)
        if found.threshold is not None:
            held += 1
            assert found.answered == (confidence >= found.threshold).sum()
    assert held > 5, "else nothing was compared"


def test_too_few_points_are_told_how_many_would_do():
    """The rule of three: without an error, 1 - error to the power n must be 1 - level or less."""
    right = torch.ones(459, dtype=torch.bool)
    found = metrics.abstention_threshold(torch.full((459,), 0.99), right)
    assert found.threshold is None
    assert found.needed == 460 == math.ceil(math.log(0.1) / math.log(0.995))
    enough = torch.ones(460, dtype=torch.bool)
    found = metrics.abstention_threshold(torch.full((460,), 0.99), enough)
    assert found.threshold == 0, "no answer is refused"


def test_where_errors_are_too_many_it_takes_surer_answers():
    """As many as it says, all right, above those that failed."""
    failed, right = torch.full((1000,), 0.9), torch.arange(1000) > 5
    found = metrics.abstention_threshold(failed, right)
    assert found[:3] == (None, 1000, 6)
    for more, enough in ((found.needed - 1, False), (found.needed, True)):
        sure = torch.cat([failed, torch.full((more,), 0.99)])
        again = metrics.abstention_threshold(sure, torch.cat([right, torch.ones(more).bool()]))
        assert (again.threshold is not None and again.threshold > 0.9) == enough


def drawn(rng, kind, n, error):
    """Confidences, and the chance of an error at each; and the error above every threshold."""
    confidence = 1 - rng.random(n) ** 3
    if kind == "confidence says nothing":  # then every threshold is just too loose
        return confidence, np.full(n, error * 1.0001)
    if kind == "a step":  # just too many errors below 0.9
        share = 1 - 0.1 ** (1 / 3)  # of confidences below
        return confidence, np.where(confidence < 0.9, 1.0001 * error / share, 0)
    return confidence, 1 - confidence  # calibrated


@pytest.mark.parametrize("kind", ["confidence says nothing", "a step", "calibrated"])
def test_answers_keep_the_error_as_often_as_promised(kind):
    """Of 1,000 calibration sets, at most a tenth gives a threshold with more errors, up to chance;
    where confidence says nothing, hardly fewer, and far more had every threshold been tried.
    """
    rng = np.random.default_rng(1)
    error, level, sets = 0.05, 0.9, 1000
    everyone, chance = drawn(rng, kind, 1_000_000, error)
    true = {float(t): chance[everyone >= t].mean() for t in selection.THRESHOLDS[10:]}
    broken = tried = 0
    for _ in range(sets):
        confidence, chance = drawn(rng, kind, 500, error)
        correct = rng.random(500) >= chance
        found = metrics.abstention_threshold(
            torch.from_numpy(confidence), torch.from_numpy(correct), error, level
        )
        broken += found.threshold is not None and true[found.threshold] > error
        if kind == "confidence says nothing":
            order = np.argsort(-confidence)
            wrong = np.cumsum(~correct[order])[44::20]
            n = np.arange(1, 501)[44::20]
            tried += bool((stats.beta.ppf(level, wrong + 1, n - wrong) <= error).any())
    assert broken <= stats.binom(sets, 1 - level).ppf(0.999)
    if kind == "confidence says nothing":
        assert broken > 0.05 * sets
        assert tried > 2 * broken


SURE, RIGHT = torch.tensor([0.5, 0.9]), torch.tensor([True, False])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.auroc(SURE[:0], SURE), r"own: must be one .* number .*N >= 1; got .*\(0,"),
        (lambda: metrics.aupr(SURE, SURE[:0]), "other: must be one .*leave out an empty set"),
        (lambda: metrics.auroc(SURE * math.nan, SURE), "own: must be finite; got 2 NaN"),
        (lambda: metrics.fpr95(SURE, SURE[None]), r"other: must be one .*got .*\(1, 2\)"),
        (lambda: metrics.fpr95(SURE, SURE, 95), r"share: must lie in \(0, 1\); got 95"),
        (lambda: metrics.auroc([0.5], SURE), "own: must be a torch.Tensor; got list"),
        (lambda: metrics.auroc(SURE, RIGHT), "other: must be one floating-point"),
        (lambda: metrics.risk_coverage(SURE, RIGHT.long()), "correct: must be bool.*argmax"),
        (lambda: metrics.aurc(SURE, RIGHT[:1]), r"correct: must be bool \(2,\).*got .*\(1,\)"),
        (lambda: metrics.aurc(SURE[:0], RIGHT[:0]), "confidence: must be one .*N >= 1"),
        (lambda: metrics.abstention_threshold(2 * SURE, RIGHT), r"confidence: must lie in \[0, 1"),
        (
            lambda: metrics.abstention_threshold(SURE, RIGHT, 0),
            "error: must be a finite number > 0",
        ),
        (
            lambda: metrics.abstention_threshold(SURE, RIGHT, 0.1, 90),
            r"confidence_level: must lie in \(0, 1\); got 90",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
