"""Prediction sets and intervals: against MAPIE, slow loops of the definitions, and simulations of
what is promised.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from bisnn import conformal, metrics
from bisnn.conformal import ConformalIntervals, ConformalSets

ONE = ((1, 1),)


class Fixed(ClassifierMixin, BaseEstimator):
    """A classifier whose features are its probabilities."""

    def __init__(self, classes: int = 2):
        self.classes = classes
        self.classes_ = np.arange(classes)
        self.n_features_in_ = classes

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return np.asarray(X)

    def predict(self, X):
        return np.asarray(X).argmax(1)


class Identity(RegressorMixin, BaseEstimator):
    """A regression whose feature is its answer."""

    def __init__(self):
        self.n_features_in_ = 1

    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.asarray(X)[:, 0]


def probabilities(rng, n, classes):
    """Multiples of 2^-20 that sum to 1, so that 1 - p is exact, and labels that follow them."""
    p = np.floor(rng.dirichlet(np.ones(classes), n) * 2**20)
    p[:, 0] += 2**20 - p.sum(1)
    p /= 2**20
    return p, (p.cumsum(1) > rng.random((n, 1))).argmax(1)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("n", [21, 60, 99])
def test_sets_are_those_of_mapie(coverage, n):
    from mapie.classification import SplitConformalClassifier

    rng = np.random.default_rng(n)
    p, y = probabilities(rng, n, 4)
    x, _ = probabilities(rng, 200, 4)
    theirs = SplitConformalClassifier(Fixed(4), confidence_level=coverage, conformity_score="lac")
    expected = theirs.conformalize(p, y).predict_set(x)[1][:, :, 0]
    lac = lambda q: ((1 - q) * 2**20).astype(np.int64)  # noqa: E731
    rule = conformal.calibrate_sets(lac(p)[None], y, ONE, coverage, correction="bonferroni")
    inside = lac(x) <= np.array(rule.thresholds[0])
    assert np.array_equal(inside, expected)
    # an empty set becomes the top class, and nothing else changes
    ours = rule.stop(lac(x)[None]).sets
    assert np.array_equal(ours[inside.any(1)], expected[inside.any(1)])
    assert np.array_equal(ours[~inside.any(1)].argmax(1), x[~inside.any(1)].argmax(1))
    assert (ours.sum(1) >= 1).all()


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_are_those_of_mapie(coverage):
    from mapie.regression import SplitConformalRegressor

    rng = np.random.default_rng(0)
    x, y, new = rng.random((50, 1)), rng.random(50), rng.random((20, 1))
    theirs = SplitConformalRegressor(Identity(), confidence_level=coverage, prefit=True)
    expected = theirs.conformalize(x, y).predict_interval(new)[1][:, :, 0]
    rule = conformal.calibrate_intervals(x[:, 0], np.zeros(50), y, coverage)
    ends = rule.around(new[:, 0], np.zeros(20))
    assert np.allclose(np.stack(ends, 1), expected, rtol=1e-12)


def test_scaled_intervals_follow_the_deviation():
    rng = np.random.default_rng(0)
    std = rng.uniform(0.1, 10, 4000)
    y = std * rng.standard_normal(4000)
    rule = conformal.calibrate_intervals(np.zeros(4000), std, y, 0.9, scaled=True)
    assert rule.width == pytest.approx(1.645, abs=0.08)  # the normal's quantile
    low, high = rule.around(np.zeros(2), np.array([1.0, 3.0]))
    assert high[1] == 3 * high[0] == -low[1]


def test_scores_are_what_they_say():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((3, 6, 5, 4))
    counts = rng.integers(-9, 9, (3, 6, 5, 4))
    path = ((1, 1), (2, 1), (2, 3), (6, 3))
    margins, surprisals = conformal.margins(counts, path), conformal.surprisals(logits, path)
    for p, (t, k) in enumerate(path):
        for n in range(5):
            sums = [sum(counts[i, s, n, c] for i in range(k) for s in range(t)) for c in range(4)]
            assert margins[p, n].tolist() == [max(sums) - s for s in sums]
            mean = np.zeros(4)
            for i in range(k):
                for s in range(t):
                    mean += np.exp(logits[i, s, n]) / np.exp(logits[i, s, n]).sum() / (t * k)
            assert np.allclose(surprisals[p, n] / 2**20, -np.log(mean), atol=1e-6)


def test_looks_are_spread_evenly():
    assert conformal.even_path(60, 2, 20) == tuple((3 * i, 2) for i in range(1, 21))
    assert conformal.even_path(7, looks=20) == tuple((i, 1) for i in range(1, 8))
    assert conformal.even_path(100, looks=3)[-1] == (100, 1)


@st.composite
def problems(draw):
    """Scores (P, n, C) with ties, and labels; enough of them for 0.8 at each look."""
    P, C = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    n = draw(st.integers(40, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(0, draw(st.sampled_from([2, 10, 1000])), (P, n, C))
    return scores, rng.integers(0, C, n), tuple((t + 1, 1) for t in range(P)), rng


@settings(max_examples=60, deadline=None)
@given(problems())
def test_bonferroni_is_the_p_values(problem):
    scores, labels, path, rng = problem
    rule = conformal.calibrate_sets(scores, labels, path, 0.8, correction="bonferroni")
    new = rng.integers(0, scores.max() + 2, (len(path), 7, scores.shape[2]))
    alpha, n = 0.2 / len(path), len(labels)
    for p in range(len(path)):
        true = [scores[p, i, labels[i]] for i in range(n)]
        for s in new[p].ravel():
            value = (1 + sum(v >= s for v in true)) / (n + 1)
            assert conformal.p_values(np.array(true), np.array([s]))[0] == value
            if abs(value - alpha) > 1e-12:  # equality: 0.2 is no binary fraction
                assert (s <= rule.thresholds[p][0]) == (value > alpha)


def slow_rank(s, first):
    """How many lie below s; between two values in proportion; beyond the highest, by its height."""
    low = [v for v in first if v <= s]
    if s > max(first):
        return len(first) * (s / max(first) if max(first) else 1 + s)
    if not low:
        return 0
    a, up = max(low), [v for v in first if v > s]
    below = sum(v < a for v in first)
    if a == s or not up:
        return below
    b = min(up)
    return below + (s - a) / (b - a) * (sum(v < b for v in first) - below)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_joint_is_its_definition(problem):
    scores, labels, path, rng = problem
    first = rng.random(len(labels)) < 0.5
    first[:10], first[10:20] = True, False
    rule = conformal.calibrate_sets(scores, labels, path, 0.8, first=first)
    true = np.array([scores[:, i, c] for i, c in enumerate(labels)])  # (n, P)
    maxima = sorted(
        max(slow_rank(row[p], true[first, p].tolist()) for p in range(len(path)))
        for row in true[~first]
    )
    bound = maxima[math.ceil((len(maxima) + 1) * 0.8 - 1e-9) - 1]
    for p in range(len(path)):
        for s in range(int(scores.max()) + 3):
            rank = slow_rank(s, true[first, p].tolist())
            if abs(rank - bound) > 1e-9 or rank == bound:
                assert (s <= rule.thresholds[p][0]) == (rank <= bound)
    # by that many recordings of the second part, all looks are held
    held = (true[~first] <= np.array(rule.thresholds)[:, 0]).all(1)
    assert held.sum() >= math.ceil((len(maxima) + 1) * 0.8 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(conformal.CORRECTIONS), st.booleans())
def test_sets_grow_with_coverage_and_are_never_empty(problem, correction, by_class):
    scores, labels, path, rng = problem
    options = {"correction": correction, "first": np.arange(len(labels)) % 2 == 0}
    if by_class:  # enough of each
        scores, labels = np.tile(scores, (1, 4, 1)), np.tile(labels, 4)
        labels[: 4 * 30] = np.arange(4 * 30) % scores.shape[2]
        options |= {"by_class": True, "first": np.arange(len(labels)) // 4 % 2 == 0}
    new = rng.integers(0, 1200, (len(path), 30, scores.shape[2]))
    low, high = (
        conformal.calibrate_sets(scores, labels, path, coverage, **options)
        for coverage in (0.3, 0.6)
    )
    for p in range(len(path)):
        small, large = low.at(p, new[p]), high.at(p, new[p])
        inside = new[p] <= np.array(low.thresholds[p])
        assert (large | ~inside).all()
        assert small.any(1).all()
        assert large.any(1).all()
    assert (high.stop(new).sizes >= 1).all()


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(conformal.CORRECTIONS))
def test_the_order_of_the_recordings_does_not_matter(problem, correction):
    scores, labels, path, rng = problem
    first = np.arange(len(labels)) < len(labels) // 2
    order = rng.permutation(len(labels))
    one, other = (
        conformal.calibrate_sets(
            scores[:, i], labels[i], path, 0.7, correction=correction, first=first[i]
        )
        for i in (np.arange(len(labels)), order)
    )
    assert one == other


def walks(rng, n, looks=8, drift=0.35):
    """Scores (looks, n, 3) of random walks, class 0, the true one, with a drift; without ties."""
    noise = rng.standard_normal((looks, n, 3)).cumsum(0)
    noise[:, :, 0] += drift * np.arange(1, looks + 1)[:, None]
    behind_the_mean = noise.mean(-1, keepdims=True) - noise
    return ((1000 + behind_the_mean) * 2**30).astype(np.int64)


def test_coverage_over_a_thousand_splits():
    """Simultaneous coverage is what the theory says, and stopping costs none of it."""
    n2, coverage, path = 49, 0.9, tuple((t, 1) for t in range(1, 9))
    rng = np.random.default_rng(5)
    held, at_stop, bonferroni, steps = [], [], [], []
    for _ in range(1000):
        scores = walks(rng, 2 * n2)
        labels = np.zeros(2 * n2, int)
        new = walks(rng, 400)
        rule = conformal.calibrate_sets(scores, labels, path, coverage)
        true_inside = new[:, :, 0] <= np.array(rule.thresholds)[:, :1]
        held.append(true_inside.all(0).mean())
        answer = rule.stop(new)
        at_stop.append(answer.sets[:, 0].mean())
        steps.append(answer.steps.mean())
        other = conformal.calibrate_sets(scores, labels, path, coverage, correction="bonferroni")
        answer = other.stop(new)
        bonferroni.append((answer.sets[:, 0].mean(), answer.steps.mean()))
    error = np.std(held, ddof=1) / math.sqrt(len(held))
    expected = math.ceil((n2 + 1) * coverage) / (n2 + 1)
    assert abs(np.mean(held) - expected) < 3 * error
    assert np.mean(at_stop) > coverage - 3 * np.std(at_stop, ddof=1) / math.sqrt(len(at_stop))
    covered, waited = np.mean(bonferroni, 0)
    assert covered > np.mean(at_stop) > coverage - 0.01
    assert np.mean(steps) < waited  # what the joint correction is for


def test_coverage_by_class_holds_in_the_hard_class_too():
    rng, path = np.random.default_rng(1), ((1, 1), (2, 1))
    found, marginal = [], []
    for _ in range(300):

        def draw(n):
            labels = rng.integers(0, 2, n)
            scores = rng.integers(0, 1 << 40, (2, n, 2))
            return scores * np.where(labels == 1, 5, 1)[None, :, None], labels

        scores, labels = draw(120)
        new, truth = draw(300)
        for by_class, into in ((True, found), (False, marginal)):
            rule = conformal.calibrate_sets(scores, labels, path, 0.8, by_class=by_class)
            inside = np.take_along_axis(
                new <= np.array(rule.thresholds)[:, None], truth[None, :, None], 2
            )[:, :, 0].all(0)
            into.append(inside[truth == 1].mean())
    assert np.mean(found) > 0.8 - 3 * np.std(found) / math.sqrt(300)
    assert np.mean(marginal) < 0.75


def test_stopping_is_the_first_small_set():
    rule = ConformalSets(((1, 1), (3, 1), (5, 2)), ((4, 4, 4), (2, 2, 2), (1, 1, 1)), 0.9)
    scores = np.array(
        [
            [[0, 5, 9], [0, 1, 2], [0, 1, 2]],
            [[0, 5, 9], [3, 0, 3], [0, 1, 2]],
            [[9, 0, 9], [9, 9, 0], [0, 0, 1]],
        ]
    )
    answer = rule.stop(scores)
    assert answer.steps.tolist() == [1, 3, 5]
    assert answer.members.tolist() == [1, 1, 2]
    assert answer.decided.tolist() == [True, True, False]
    assert answer.sets.astype(int).tolist() == [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    assert answer.sizes.tolist() == [1, 1, 3]


def test_values_come_back_from_json():
    value = ConformalSets(ONE, ((3, 4),), 0.9, recordings=20)
    assert ConformalSets.from_json(json.loads(json.dumps(value.to_json())), 2) == value
    width = ConformalIntervals(0.5, 0.9, True, 20)
    assert ConformalIntervals.from_json(json.loads(json.dumps(width.to_json()))) == width
    for name, bad in {
        "path": [[2, 1], [1, 1]],
        "thresholds": [[3]],
        "coverage": 1.5,
        "most": 0,
        "score": "other",
        "by_class": 1,
        "recordings": "20",
    }.items():
        with pytest.raises(ValueError):  # noqa: PT011
            ConformalSets.from_json({**value.to_json(), name: bad}, 2)
    with pytest.raises(ValueError, match="not described"):
        ConformalSets.from_json([], 2)
    for name, bad in {"width": math.nan, "scaled": None}.items():
        with pytest.raises(ValueError, match="no number"):
            ConformalIntervals.from_json({**width.to_json(), name: bad})


SCORES, LABELS = np.arange(30).reshape(1, 15, 2), np.arange(15) % 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coverage": 1}, r"coverage: must lie in \(0, 1\); got 1"),
        ({"coverage": math.nan}, "coverage: must lie"),
        ({"coverage": 0.9}, "needs 9 calibration recordings or more; got 8"),
        ({"coverage": 0.95, "correction": "bonferroni"}, "needs 19 calibration"),
        ({"correction": "none"}, "correction: must be one of"),
        ({"labels": LABELS + 1}, r"labels: must lie in 0..1; got 1..2"),
        ({"labels": LABELS - 1}, r"labels: must lie in 0..1"),
        ({"labels": LABELS[:3]}, "one for each of 15 recordings"),
        ({"labels": LABELS + 0.5}, "labels: must be whole numbers"),
        ({"labels": 0 * LABELS, "by_class": True}, "got none of class 1"),
        ({"coverage": 0.8, "by_class": True}, "class 0: coverage: 0.8 needs 4"),
        ({"coverage": 0.9, "by_class": True}, "class 0: coverage: 0.9 needs 17 .*; got 8"),
        ({"scores": SCORES / 2.0}, "scores: must be whole numbers"),
        ({"scores": SCORES - 5}, "scores: must be 0 or more"),
        ({"path": ()}, "path: must be looks"),
        ({"path": ((1, 1), (1, 1))}, "path: must be looks"),
        ({"path": ((1.5, 1),)}, "path: must be looks"),
        ({"most": 0}, "most: must be a positive"),
        ({"most": 9}, "most: must be less than the . classes"),
        ({"by_class": "no"}, "by_class: must be True or False; got 'no'"),
    ],
)
def test_bad_input(change, message):
    usual = {"scores": SCORES, "labels": LABELS, "path": ONE, "coverage": 0.5}
    if change.get("by_class") and "coverage" in change:
        usual["first"] = np.arange(15) < 9
    with pytest.raises(ValueError, match=message):
        conformal.calibrate_sets(**{**usual, **change})


def test_the_number_needed_is_the_least():
    for coverage, looks in [(0.9, 1), (0.9, 4), (0.95, 20), (0.99, 3)]:
        least = round(looks / (1 - coverage)) - 1
        assert conformal.order(least, coverage, looks) == least
        with pytest.raises(ValueError, match=f"needs {least} calibration"):
            conformal.order(least - 1, coverage, looks)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_the_joint_correction_says_how_many_it_needs(coverage):
    """The least number whose larger half has the order."""
    least = next(n for n in range(1, 99) if n - n // 2 >= round(1 / (1 - coverage)) - 1)
    conformal.check_enough(least, coverage, "joint", 5)
    assert conformal.order(least - least // 2, coverage)
    with pytest.raises(ValueError, match=f"needs {least} calibration .*; got {least - 1}"):
        conformal.check_enough(least - 1, coverage, "joint", 5)


def test_bad_input_of_intervals_and_surprisals():
    x = np.ones(30)
    with pytest.raises(ValueError, match="calibration: must be finite"):
        conformal.p_values(np.nan * x, x)
    with pytest.raises(ValueError, match="must be finite"):
        conformal.calibrate_intervals(x, x, np.full(30, np.nan))
    with pytest.raises(ValueError, match="deviation of 0"):
        conformal.calibrate_intervals(x, 0 * x, x, scaled=True)
    with pytest.raises(ValueError, match="reshape"):
        conformal.calibrate_intervals(x, x, x[:3])
    with pytest.raises(ValueError, match="needs 9 calibration"):
        conformal.calibrate_intervals(x[:8], x[:8], x[:8])
    with pytest.raises(ValueError, match="logits: must be finite"):
        conformal.surprisals(np.full((1, 1, 1, 2), np.nan), ONE)
    with pytest.raises(ValueError, match="within 5 time steps and 1 members"):
        conformal.checked_path([(6, 1)], 5, 1)


def test_metrics_of_sets():
    sets, labels = torch.rand(50, 4) < 0.5, torch.arange(50) % 4
    assert metrics.coverage(sets, labels) == sum(bool(s[c]) for s, c in zip(sets, labels)) / 50  # noqa: B905
    assert metrics.set_size(sets) == sum(int(s.sum()) for s in sets) / 50
    assert metrics.coverage(sets.numpy(), labels.numpy()) == metrics.coverage(sets, labels)
    with pytest.raises(ValueError, match="sets: must be bool"):
        metrics.set_size(sets.float())
    with pytest.raises(ValueError, match="one per set"):
        metrics.coverage(sets, labels[:3])
    with pytest.raises(ValueError, match=r"must lie in 0..3"):
        metrics.coverage(sets, labels + 1)


@pytest.mark.parametrize(
    ("n", "m", "coverage"), [(60, 200, 0.9), (360, 360, 0.9), (400, 5000, 0.95)]
)
def test_coverage_rarely_falls_short_on_exchangeable_data(n, m, coverage):
    """In at most 1 of 40 calibrations; and nearly always where coverage is far lower."""
    rng, alarms, missed = np.random.default_rng(n), 0, 0
    for _ in range(1000):
        scores = rng.random(n + m)
        threshold = np.sort(scores[:n])[conformal.order(n, coverage) - 1]
        inside = scores[n:] <= threshold
        alarms += conformal.falls_short(int(inside.sum()), m, n, coverage)
        worse = rng.random(m) < coverage - 0.2
        missed += not conformal.falls_short(int(worse.sum()), m, n, coverage)
    assert alarms / 1000 < 0.025 + 3 * (0.025 * 0.975 / 1000) ** 0.5
    assert missed / 1000 < 0.1


def test_coverage_and_set_sizes_are_those_of_mapie():
    from mapie.metrics.classification import (
        classification_coverage_score,
        classification_mean_width_score,
    )

    rng = np.random.default_rng(0)
    sets, labels = rng.random((50, 4)) < 0.5, rng.integers(0, 4, 50)
    (coverage,) = classification_coverage_score(labels, sets[:, :, None])
    (width,) = classification_mean_width_score(sets[:, :, None])
    assert metrics.coverage(torch.from_numpy(sets), torch.from_numpy(labels)) == coverage
    assert metrics.set_size(torch.from_numpy(sets)) == width
