"""Confidence intervals that cover what they claim, also on a hundred recordings and over three
seeds.

Which one is used where, and how often each covers the truth, is in docs/RESULTS.md ("Intervals"),
written by `bisnn_experiments.interval_coverage`. NumPy alone; arrays of scores have the recordings
as their last axis, and any axes before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from bisnn.bits.philox import Purpose, keyed_generator

LEVEL = 0.95
DRAWS = 500  # of the ECE, for each miscalibration that is tried
HALVINGS = 9  # of the range in which an end of a calibration error's interval is searched
# Of (1 - level) / 2: the tests that are inverted use gaps that are themselves estimated, and reject
# too often
TAIL = 0.8


class Interval(NamedTuple):
    """A value, and between which two it may as well lie."""

    value: float  #: on all the data
    low: float  #: the lower end
    high: float  #: the upper end


class Calibration(NamedTuple):
    """A debiased calibration error with its interval; the plain ECE, and a calibrated model's."""

    error: Interval  #: the debiased one
    ece: float  #: the plain one
    #: the ECE of a perfectly calibrated model with these confidences: on average,
    calibrated_mean: float
    calibrated_high: float  #: and in 95 of 100 cases at most


class Bins(NamedTuple):
    """Recordings by confidence, (bins,) each, none of them empty."""

    size: np.ndarray
    confidence: np.ndarray  # the mean in the bin
    right: np.ndarray  # how many were


def of_share(hits: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """The hull of Wilson's interval and of the mid-P interval, for `hits` of n.

    Each of the two falls below 92 % for some shares near 0 or 1, but not for the same ones. A share
    of weighted recordings has the n of as many equal ones, which need not be whole.
    """
    z = special.ndtri((1 + level) / 2)
    share, shrink = hits / n, 1 / (1 + z * z / n)
    centre = (share + z * z / (2 * n)) * shrink
    half = z * shrink * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)

    def mid_p(p: float) -> float:  # P(X > hits) + P(X = hits) / 2, which grows with p
        at_least, more = (
            special.betainc(k, n - k + 1, p) if 0 < k <= n else float(k <= 0)
            for k in (hits, hits + 1)
        )
        return (at_least + more) / 2

    def end(tail: float) -> float:
        if mid_p(1) < tail:  # less than one whole recording is wrong
            return 1.0
        return optimize.brentq(lambda p: mid_p(p) - tail, 0, 1, xtol=1e-12)

    low = min(centre - half, end((1 - level) / 2)) if hits else 0.0
    high = max(centre + half, end((1 + level) / 2)) if hits < n else 1.0
    return max(0.0, float(low)), min(1.0, float(high))


def of_mean(scores: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the mean of independent scores: Hall's, where the most extreme score counts
    twice.

    A hundred recordings hardly show how heavy a tail is.
    """
    scores = np.asarray(scores, dtype=np.float64)
    mean = scores.mean(-1)
    if scores.shape[-1] == 1:
        return mean, mean
    below, above = _around(_extreme_twice(scores), level)
    return mean - below, mean + above


def of_mean_square(squares: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the mean of squared errors: from the lower end of Hall's interval to the upper
    end of the one that counts the largest square three times.

    A few large errors make up much of such a mean, and a small sample is more often short of them
    than rich in them.
    """
    squares = np.asarray(squares, dtype=np.float64)
    mean = squares.mean(-1)
    if squares.shape[-1] == 1:
        return mean, mean
    largest = squares.max(-1, keepdims=True)
    extended = np.concatenate([squares, largest, largest], -1)
    below, above = _around(squares, level)[0], _around(extended, level)[1]
    return mean - below, np.maximum(mean, extended.mean(-1) + above)  # equal ones may round below


def of_crossed_mean(
    scores: np.ndarray, level: float = LEVEL, *, least: float = 0.0, skewed: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the mean of scores (..., S, n) over seeds and recordings, both of which are
    samples.

    y_si = mu + seed_s + recording_i + rest_si. The variance of the seeds' means over S holds what
    seeds and rest do to the grand mean, and gets Student's t with S - 1 degrees of freedom; what is
    left is that all seeds share their recordings, with the quantiles of Hall's interval. Those of
    the two are averaged, weighted with the variances (Cochran 1964). One seed: recordings alone.

    What a hundred recordings hardly show is how far others may lie, and on which side. So the
    recordings are extended by two that lie as far out as the most extreme, one on either side, or
    by that one a second time, and the interval holds what either gives.

    Args:
        least: how far out the two lie at least, in one of the S runs: what a mistake costs. For
            right or wrong that is 1, and for S = 1 the interval is Bonett and Price's (2012) then.
        skewed: False leaves the second way of extending out, where scores cannot lie farther out
            than `least`.
    """
    scores = np.asarray(scores, dtype=np.float64)
    seeds, n = scores.shape[-2:]
    mean = scores.mean((-2, -1))
    if n == 1:
        return mean, mean
    between, rest = np.zeros_like(mean), np.zeros_like(mean)
    if seeds > 1:
        between = scores.mean(-1).var(-1, ddof=1) / seeds
        left = (
            scores
            - scores.mean(-1, keepdims=True)
            - scores.mean(-2, keepdims=True)
            + mean[..., None, None]
        )
        rest = (left**2).sum((-2, -1)) / ((seeds - 1) * (n - 1)) / (seeds * n)
    t = special.stdtrit(max(seeds - 1, 1), (1 + level) / 2)

    def around(shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        all_of_it = shared.var(-1, ddof=1) / n
        scale = np.sqrt(np.where(all_of_it > 0, all_of_it, 1))
        recordings = np.maximum(all_of_it - rest, 0)
        total = np.sqrt(np.where(between + recordings > 0, between + recordings, 1))
        below, above = (
            (t * between + half / scale * recordings) / total for half in _around(shared, level)
        )
        return below, above

    shared = scores.mean(-2)
    below, above = around(_both_sides(shared, least / seeds))
    if skewed:
        below, above = (
            np.maximum(a, b)
            for a, b in zip((below, above), around(_extreme_twice(shared)), strict=True)
        )
    return mean - below, mean + above


def _around(scores: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """How far Hall's (1992) interval reaches below and above the mean: Student's t, transformed so
    that skewness drops out.

    With W = (mean - mu) / s and skewness g: W + g W^2 / 3 + g^2 W^3 / 27 + g / (6 n) is normal up
    to O(1/n). It covers as the studentised bootstrap does, without draws.
    """
    n = scores.shape[-1]
    centred = scores - scores.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).sum(-1) / (n - 1))
    scale = np.where(deviation > 0, deviation, 1)
    skewness = (centred**3).mean(-1) / scale**3
    a = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness) / 3  # the limit of a symmetric sample
    t = special.stdtrit(n - 1, (1 + level) / 2) / np.sqrt(n)
    below, above = (
        side * deviation * (np.cbrt(1 + 3 * a * (side * t - skewness / (6 * n))) - 1) / a
        for side in (1, -1)
    )
    return below, above


def _extreme_twice(scores: np.ndarray) -> np.ndarray:
    extreme = np.abs(scores - scores.mean(-1, keepdims=True)).argmax(-1)[..., None]
    return np.concatenate([scores, np.take_along_axis(scores, extreme, -1)], -1)


def _both_sides(scores: np.ndarray, least: float) -> np.ndarray:
    """With two more, one on either side, as far from the mean as the most extreme or `least`."""
    mean = scores.mean(-1, keepdims=True)
    far = np.maximum(np.abs(scores - mean).max(-1, keepdims=True), least)
    return np.concatenate([scores, mean - far, mean + far], -1)


# Calibration


def plain_ece(bins: Bins) -> float:
    return float(np.abs(bins.right - bins.size * bins.confidence).sum() / bins.size.sum())


def debiased_ece(bins: Bins) -> float:
    """The miscalibration whose expected plain ECE is the one seen; 0 where chance gives as much."""
    ece, path = plain_ece(bins), _Path(bins)

    def excess(error: float) -> float:
        return _expected_ece(bins, path.shares(error)) - ece

    if excess(0) >= 0:
        return 0.0
    return ece if excess(ece) <= 0 else float(optimize.brentq(excess, 0, ece, xtol=1e-12))


def corrected_ece(bins: Bins) -> float:
    """The plain ECE less the bias it would have at the gaps observed (one step of the bootstrap's
    correction).

    Kumar et al. (2019) do so with draws. It keeps more bias near 0 than `debiased_ece`, but is
    never cut off there and varies less, so it serves differences, in which most of the bias
    cancels.
    """
    return 2 * plain_ece(bins) - _expected_ece(bins, bins.right / bins.size)


def calibration(bins: Bins, level: float = LEVEL, seed: int = 0, draws: int = DRAWS) -> Calibration:
    """The debiased ECE, and an interval by inversion of a test (a parametric bootstrap at each
    miscalibration tried).

    The estimand is the binned calibration error of the population, sum_b P(b) |E[confidence - right
    | b]|. An error is in the interval unless the plain ECE lies in a tail of the ECEs that right
    answers drawn with that error show.
    """
    ece, path, tail = plain_ece(bins), _Path(bins), TAIL * (1 - level) / 2

    def drawn(error: float) -> np.ndarray:
        right = keyed_generator(seed, Purpose.BOOTSTRAP).binomial(
            bins.size, path.shares(error), (draws, len(bins.size))
        )
        return np.abs(right - bins.size * bins.confidence).sum(1) / bins.size.sum()

    calibrated = drawn(0)
    value = debiased_ece(bins)
    low = _bisect(lambda error: (drawn(error) >= ece).mean() <= tail, ece, HALVINGS)
    # A calibrated model is sometimes luckier than most: it must not pass for known to be perfect.
    reached = max(ece, float(np.median(calibrated)))
    n = bins.size.sum()
    farthest = min(path.most, reached + 4 / np.sqrt(n) + 8 / n)
    high = _bisect(lambda error: (drawn(error) <= reached).mean() > tail, farthest, HALVINGS)
    interval = Interval(value, float(min(low, value)), float(max(high, value)))
    return Calibration(
        interval, ece, _expected_ece(bins, bins.confidence), float(np.quantile(calibrated, 0.95))
    )


class _Path:
    """Shares of right answers in the bins for every total error sum_b p_b |d_b|, near those
    observed.

    All observed gaps d_b = confidence - share shrink or grow by the same number of standard errors,
    so that gaps that are noise vanish first. (Maximum likelihood for a given total moves each by
    its variance; that keeps the noise of small bins at the cost of what a large bin has shown, and
    covers 88 %.)
    """

    def __init__(self, bins: Bins) -> None:
        self.bins, self.weight = bins, bins.size / bins.size.sum()
        smooth = (bins.right + 0.5) / (bins.size + 1)
        self.error = np.sqrt(smooth * (1 - smooth) / bins.size)
        self.gap = np.abs(bins.confidence - bins.right / bins.size)
        self.room = np.maximum(bins.confidence, 1 - bins.confidence)
        turns = np.concatenate([-self.gap, self.room - self.gap]) / np.tile(self.error, 2)
        # Where a gap leaves 0 or meets its limit: the total is linear between these
        self.turns = np.sort(turns)
        self.totals = self._gaps(self.turns[:, None]) @ self.weight
        self.most = float(self.totals[-1])

    def _gaps(self, move: np.ndarray) -> np.ndarray:
        return np.clip(self.gap + move * self.error, 0, self.room)

    def shares(self, error: float) -> np.ndarray:
        """Each bin is on the side of its confidence that makes its right answers more likely."""
        gap = self._gaps(np.interp(error, self.totals, self.turns))
        size, confidence, right = self.bins
        below, above = confidence - gap, confidence + gap
        chance = [
            special.xlogy(right, p) + special.xlog1py(size - right, -p)
            for p in (below.clip(0, 1), above.clip(0, 1))
        ]
        over = (above > 1) | ((below >= 0) & (chance[0] >= chance[1]))
        return np.where(over, below, above).clip(0, 1)


def _expected_ece(bins: Bins, shares: np.ndarray) -> float:
    """Mean ECE where the right answers of each bin are binomial: E|K - x| in closed form."""
    size, stated = bins.size, bins.size * bins.confidence
    k = np.floor(stated)
    # Of size - 1
    one_less = np.where(
        size > 1, special.bdtr(np.maximum(k - 1, 0), np.maximum(size - 1, 1), shares), 1
    )
    # E max(x - K, 0)
    partial = stated * special.bdtr(k, size, shares) - size * shares * np.where(k >= 1, one_less, 0)
    return float((size * shares - stated + 2 * partial).sum() / size.sum())


def _bisect(goes_on: Callable[[float], bool], end: float, halvings: int) -> float:
    """Where, from 0 to `end`, `goes_on` turns false; 0 where it is so from the start."""
    low, high = 0.0, end
    if not goes_on(low):
        return 0.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if goes_on(middle) else (low, middle)
    return high
