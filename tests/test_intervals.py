"""Intervals of metrics and of differences: what they are made of, and how often they hold."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from bisnn import intervals, metrics
from bisnn_experiments import interval_coverage as coverage
from bisnn_experiments import interval_populations as populations
from conftest import seeded

N, C = 500, 4
PROBS = torch.softmax(2 * torch.randn(N, C, generator=seeded(0), dtype=torch.float64), -1)
LABELS = torch.multinomial(PROBS, 1, generator=seeded(1)).squeeze(1)  # a calibrated model


def test_paired_differences_are_tighter_than_apart():
    """Two methods that err on the same recordings: their difference is known better than either;
    runs count by their mean.
    """
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (400,), generator=rng)
    hard = torch.rand(400, generator=rng) < 0.3
    right, wrong = (
        torch.nn.functional.one_hot(y % 3, 3) * 0.94 + 0.02 for y in (labels, labels + 1)
    )
    b = torch.where(hard[:, None], wrong, right)
    a = b.clone()
    fixed = hard.nonzero()[:20, 0]
    a[fixed] = right[fixed]
    found = metrics.paired("accuracy", [a], [b], labels)
    assert found.value == pytest.approx(0.05)
    assert 0.02 < found.low < 0.05 < found.high < 0.08
    apart = metrics.interval("accuracy", a, labels)
    assert found.high - found.low < 0.6 * (apart.high - apart.low)
    assert metrics.paired("nll", [b], [a], labels).low > 0
    seeds = metrics.paired("accuracy", [a, b, b], [b, b, b], labels)
    assert seeds.value == pytest.approx(0.05 / 3)
    assert seeds.low < 0 < seeds.high, "one seed of three is no evidence"


def test_differences_of_the_other_metrics():
    """The value of a difference is that of the metrics; for the RMSE by its linear expansion."""
    rng = seeded(3)
    y, a, b = (torch.randn(300, 2, generator=rng, dtype=torch.float64) for _ in range(3))
    for name, metric in metrics.REGRESSION_METRICS.items():
        found = metrics.paired(name, [a], [b], y)
        assert found.value == pytest.approx(metric(a, y) - metric(b, y))
        assert found.low < found.value < found.high
    same = metrics.paired("rmse", [y], [y], y)
    assert same == (0, 0, 0)
    other = torch.softmax(PROBS.log() * 2, -1)
    found = metrics.paired("calibration_error", [other], [PROBS], LABELS)
    assert found.low > 0, "twice the logits is overconfident"


def test_what_is_left_of_the_bias_moves_the_end_that_it_may_have_moved():
    """The first method is calibrated, and its error too high: the interval reaches lower for it."""
    rng = np.random.default_rng(0)
    y = torch.zeros(400, dtype=torch.int64)
    pair = "answers, underconfident"
    b, a = populations.both(rng, pair, len(y), (np.zeros(4), np.zeros(4)))
    found, mirrored = (
        metrics.paired("calibration_error", a, b, y),
        metrics.paired("calibration_error", b, a, y),
    )
    assert mirrored == (
        pytest.approx(-found.value),
        pytest.approx(-found.high),
        pytest.approx(-found.low),
    )
    scores = np.stack(
        [
            metrics._linear("calibration_error", p, y) - metrics._linear("calibration_error", q, y)
            for p, q in zip(a, b, strict=True)
        ]
    )
    low, high = intervals.of_crossed_mean(scores, least=1)
    bins = [[metrics._bins(p, y) for p in runs] for runs in (a, b)]
    first, second = (
        [intervals.corrected_ece(of) - intervals.debiased_ece(of) for of in some] for some in bins
    )
    assert low - found.low == pytest.approx(
        np.mean(np.maximum(first, 0) + np.maximum(np.negative(second), 0))
    )
    assert found.high - high == pytest.approx(
        np.mean(np.maximum(second, 0) + np.maximum(np.negative(first), 0))
    )
    assert low - found.low > 1.5 * (found.high - high) >= 0


def test_balanced_accuracy_covers():
    """A rare class widens the interval; equal classes give that of the accuracy."""
    rng = np.random.default_rng(0)
    share = np.array([0.95, 0.8, 0.6])
    hits, pairs = 0, 0
    for _ in range(400):
        y = rng.choice(3, 200, p=[0.7, 0.2, 0.1])
        a, b = (
            torch.eye(3)[torch.from_numpy(np.where(rng.random(200) < share[y], y, (y + 1) % 3))]
            for _ in range(2)
        )
        labels = torch.from_numpy(y)
        value, low, high = metrics.interval("balanced_accuracy", a, labels)
        assert value == pytest.approx(metrics.balanced_accuracy(a, labels))
        hits += low <= share.mean() <= high
        difference = metrics.paired("balanced_accuracy", [a], [b], labels)
        assert difference.value == pytest.approx(value - metrics.balanced_accuracy(b, labels))
        pairs += difference.low <= 0 <= difference.high
    assert covers(hits / 400, 400, most=0.975)
    assert covers(pairs / 400, 400, most=0.975)
    equal = torch.arange(200) % 2
    a = torch.eye(2)[torch.where(torch.arange(200) < 20, 1 - equal, equal)]
    alike = [metrics.interval(name, a, equal) for name in ("accuracy", "balanced_accuracy")]
    assert alike[0] == pytest.approx(alike[1])


def test_share_is_the_hull_of_wilson_and_mid_p():
    for hits, n in ((0, 10), (10, 10), (98, 100), (99, 100), (700, 1000)):
        low, high = intervals.of_share(hits, n)
        wilson = stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert low <= wilson.low + 1e-12
        assert wilson.high - 1e-12 <= high
        for end, tail in ((low, 0.025), (high, 0.975)):
            if (
                abs(end - (wilson.low if end == low else wilson.high)) > 1e-9 and 0 < end < 1
            ):  # then it is mid-P's
                assert stats.binom.sf(hits, n, end) + stats.binom.pmf(
                    hits, n, end
                ) / 2 == pytest.approx(tail, abs=1e-8)
        exact = stats.binomtest(hits, n).proportion_ci(method="exact")
        assert exact.low - 0.02 < low <= high < exact.high + 0.02


def test_mean_is_near_the_bca_bootstrap_and_shifts_with_the_skew():
    scores = np.random.default_rng(0).gamma(0.5, size=400)
    low, high = intervals.of_mean(scores)
    bca = stats.bootstrap(
        (scores,), np.mean, method="BCa", n_resamples=4000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert (low, high) == (pytest.approx(bca.low, abs=0.012), pytest.approx(bca.high, abs=0.012))
    assert high - scores.mean() > scores.mean() - low
    mirrored = intervals.of_mean(-scores)
    assert mirrored == (pytest.approx(-high), pytest.approx(-low))
    even = np.array([-1.0, 1.0] * 50)
    half = stats.t.ppf(0.975, 99) * even.std(ddof=1) / 10
    assert intervals._around(even, 0.95) == (
        pytest.approx(half, rel=1e-4),
        pytest.approx(half, rel=1e-4),
    )
    both = intervals.of_mean(np.stack([scores, 2 * scores]))
    assert both[0].tolist() == pytest.approx([low, 2 * low])


def test_mean_square_solves_halls_equation_at_either_end():
    """Hall's transformed statistic is Student's quantile: of the squares at the lower end, and with
    the largest three times at the upper end; the RMSE has the roots.
    """
    errors = np.random.default_rng(0).standard_t(5, 80)
    squares = errors**2

    def transformed(sample: np.ndarray, mu: float) -> float:
        w, g = (sample.mean() - mu) / sample.std(ddof=1), ((sample - sample.mean()) ** 3).mean()
        g /= sample.std(ddof=1) ** 3
        w = w + g * w**2 / 3 + g**2 * w**3 / 27 + g / (6 * len(sample))
        return w * math.sqrt(len(sample)) / stats.t.ppf(0.975, len(sample) - 1)

    low, high = intervals.of_mean_square(squares)
    assert transformed(squares, low) == pytest.approx(1)
    assert transformed(np.append(squares, [squares.max()] * 2), high) == pytest.approx(-1)
    both = intervals.of_mean_square(np.stack([squares, 4 * squares]))
    assert np.transpose(both).ravel() == pytest.approx([low, high, 4 * low, 4 * high])
    found = metrics.interval("rmse", torch.from_numpy(errors)[:, None], torch.zeros(80, 1))
    assert found == pytest.approx((math.sqrt(squares.mean()), math.sqrt(low), math.sqrt(high)))
    for n, scale in itertools.product((1, 2, 3, 7, 49), (0.0, 0.1, 1e-3)):
        for some in (np.full(n, scale), scale * squares[:n]):
            low, high = intervals.of_mean_square(some)
            assert low <= some.mean() <= high


def test_a_few_large_errors_are_allowed_for():
    """A hundred normal errors, of which a twentieth is thrice as large: counting the most extreme
    twice, as for other means, covers 91 %.
    """
    errors = populations.contaminated(0.05, 3)(np.random.default_rng(0), (20_000, 100))

    def coverage_of(low: np.ndarray, high: np.ndarray) -> float:
        return float(((low <= 1.4) & (high >= 1.4)).mean())

    assert coverage_of(*intervals.of_mean(errors**2)) < 0.92
    assert 0.935 < coverage_of(*intervals.of_mean_square(errors**2)) < 0.96


def test_crossed_mean_of_one_kind_of_variation():
    """Where nothing but the seeds varies it is Student's interval, where nothing but the recordings
    does, that of a mean.
    """
    rng = np.random.default_rng(0)
    seeds = np.repeat(rng.standard_normal((4, 1)), 50, 1)
    low, high = intervals.of_crossed_mean(seeds)
    t = stats.ttest_1samp(seeds[:, 0], 0).confidence_interval()
    assert (low, high) == (pytest.approx(t.low), pytest.approx(t.high))
    shared = np.repeat(rng.standard_normal((1, 50)), 4, 0)
    values = shared[0]
    far = np.abs(values - values.mean()).max()
    extreme = values[np.abs(values - values.mean()).argmax()]
    extended = [
        np.append(values, extreme),
        np.append(values, [values.mean() - far, values.mean() + far]),
    ]
    below, above = np.max([intervals._around(of, 0.95) for of in extended], 0)
    for scores in (shared, shared[:1]):
        low, high = intervals.of_crossed_mean(scores)
        assert (low, high) == (
            pytest.approx(values.mean() - below),
            pytest.approx(values.mean() + above),
        )


@pytest.mark.parametrize(("more", "fewer"), [(0, 0), (1, 0), (6, 2), (30, 10)])
def test_one_run_each_is_bonett_and_prices_interval(more, fewer):
    """p_ij = (f_ij + 1) / (n + 2), a Wald interval of their difference (about the difference
    itself, Student's t for z).
    """
    n = 100
    scores = np.zeros((1, n))
    scores[0, :more], scores[0, more : more + fewer] = 1, -1
    low, high = intervals.of_crossed_mean(scores, least=1, skewed=False)
    p, q = (more + 1) / (n + 2), (fewer + 1) / (n + 2)
    width = 2 * stats.norm.ppf(0.975) * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    assert high - low == pytest.approx(width, rel=0.05)
    assert low < (more - fewer) / n < high


def test_a_calibrated_models_ece():
    """Mean and 95 % quantile of the ECE of labels drawn from the model's own confidences, by plain
    draws.
    """
    found = metrics.calibration(PROBS, LABELS)
    assert found.ece == pytest.approx(metrics.ece(PROBS, LABELS))
    drawn = []
    for i in range(400):
        labels = torch.multinomial(PROBS, 1, generator=seeded(100 + i)).squeeze(1)
        drawn.append(metrics.ece(PROBS, labels))
    assert found.calibrated_mean == pytest.approx(np.mean(drawn), rel=0.04)
    assert found.calibrated_high == pytest.approx(np.quantile(drawn, 0.95), rel=0.08)


def test_expected_ece_by_enumeration():
    bins = intervals.Bins(np.array([1, 4, 7]), np.array([1.0, 0.55, 0.9]), np.array([1, 2, 6]))
    for shares in (bins.confidence, np.array([0.3, 0.0, 1.0])):
        total = sum(
            stats.binom.pmf(k, n, p) * abs(k - n * c)
            for n, c, p in zip(bins.size, bins.confidence, shares, strict=True)
            for k in range(n + 1)
        )
        assert intervals._expected_ece(bins, shares) == pytest.approx(total / 12)


def test_calibration_error_holds_its_value_and_leaves_out_chance():
    """The plain ECE of a calibrated model is chance: the debiased one is about 0, its interval
    begins there.
    """
    found = metrics.calibration(PROBS, LABELS)
    assert found.ece < found.calibrated_high
    assert found.error.value < 0.6 * found.ece
    assert found.error.low == 0
    for power in (1, 1.5, 3):
        probs = torch.softmax(power * PROBS.log(), -1)
        for seed in range(3):
            error = metrics.calibration(probs, LABELS, seed=seed).error
            assert error.low <= error.value <= error.high
            assert metrics.interval("calibration_error", probs, LABELS, seed=seed) == error
    assert error.low > 0.05, "three times the logits"
    sure = torch.eye(2).repeat(50, 1)
    perfect = metrics.calibration(sure, torch.tensor([0, 1]).repeat(50))
    assert perfect.error[:2] == (0, 0)
    assert 1 - 0.025 ** (1 / 100) < perfect.error.high < 5 / 100, (
        "a hundred right answers allow a few per cent"
    )


def test_hardly_any_mistake_says_little_of_what_one_costs():
    """A calibrated model with a true NLL of 0.056 may be right a hundred times: the interval must
    reach there all the same.
    """
    probs = torch.tensor([[0.99, 0.01]], dtype=torch.float64).expand(100, 2)
    found = metrics.interval("nll", probs, torch.zeros(100, dtype=torch.int64))
    assert found.value == pytest.approx(-math.log(0.99))
    assert found.high > -0.99 * math.log(0.99) - 0.01 * math.log(0.01)


@pytest.mark.parametrize(
    "n",
    [100, pytest.param(400, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.slow)],
)
def test_accuracy_covers(n):
    """Exactly, by the binomial distribution: never below 93 %, above 97 % only within ten mistakes
    of the end.
    """
    for between in coverage.SHARES.values():
        low, _ = coverage.share_coverage(n, between, 300)
        assert low >= 0.93
    low, high = coverage.share_coverage(n, (0.5, 1 - 10 / n), 300)
    assert 0.93 <= low <= high < 0.9705


def covers(found: float, simulations: int, *, most: float = 1.0) -> bool:
    """Whether a coverage of at least 93 % (and at most `most`) is within what chance does in 19 of
    20 simulations.

    With 1,000 that is 1.3 points.
    """
    noise = 1.65 * math.sqrt(0.07 * 0.93 / simulations)
    return 0.93 - noise <= found <= most + noise


HARD = ("accuracy 0.81, overconfident", "accuracy 0.97, calibrated", "chances near 1, bent")


@pytest.mark.parametrize(
    ("n", "model", "simulations"),
    [
        (100, "accuracy 0.93, overconfident", 100),
        (400, "chances, calibrated", 100),
        *(
            pytest.param(n, model, 1000, marks=pytest.mark.slow)
            for n in coverage.SIZES
            for model in HARD
        ),
    ],
)
def test_intervals_of_a_run_cover(n, model, simulations):
    found = coverage.single_runs(n, model, simulations)
    for name, row in found.items():
        assert covers(row["coverage"], simulations), name
    if n == 2000:
        assert covers(found["nll"]["coverage"], simulations, most=0.97)


@pytest.mark.parametrize("kind", populations.ERRORS)
@pytest.mark.parametrize("n", coverage.SIZES)
def test_intervals_of_errors_cover(n, kind):
    for name, row in coverage.errors_coverage(n, kind, 1000).items():
        assert covers(row["coverage"], 1000, most=0.97), name


@pytest.mark.parametrize(
    ("n", "seeds", "pair", "simulations"),
    [
        (100, 1, "accuracy 0.99", 200),
        (100, 3, "seeds differ", 100),
        (100, 10, "answers, accuracy 0.98", 50),
        *(
            pytest.param(n, seeds, pair, 1000, marks=pytest.mark.slow)
            for n, seeds in ((100, 1), (100, 3), (100, 10), (400, 5), (2000, 3))
            for pair in ("one overconfident", "answers, accuracy 0.98")
        ),
    ],
)
def test_intervals_of_differences_cover(n, seeds, pair, simulations):
    for name, row in coverage.paired_runs(n, seeds, pair, simulations).items():
        assert covers(row["coverage"], simulations), name


@pytest.mark.parametrize("n", [3.2, 10, 77.5])
def test_shares_of_weighted_recordings_need_not_be_whole(n):
    """Balanced accuracy has a share of so many equal recordings: ends grow with it, and hold it,
    also within one of all.
    """
    shares = [intervals.of_share(hits, n) for hits in np.linspace(0, n, 101)]
    assert all(
        low <= hits / n <= high
        for (low, high), hits in zip(shares, np.linspace(0, n, 101), strict=True)
    )
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(shares))
    assert shares[0][0] == 0
    assert shares[-1][1] == 1
