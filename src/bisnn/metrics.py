"""How good and how honest a predicted distribution is: accuracy, NLL, Brier score, calibration,
with intervals.

Each metric takes `probs`, probabilities (N, C), and `labels` (N,), classes as int64, and returns a
float; those of regression take `predicted` and `target`, (N, outputs) each. `bins` is the number of
bins that confidences are sorted into, and `level` how often an interval holds the truth. `interval`
and `paired` say how sure a metric is. What scores of uncertainty are good for, `auroc` to
`abstention_threshold`, is in `selection`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bisnn import intervals
from bisnn.checks import choice, finite, number, positive_int, tensor
from bisnn.intervals import Calibration, Interval
from bisnn.selection import (
    Abstention,
    RiskCoverage,
    abstention_threshold,
    aupr,
    aurc,
    auroc,
    fpr95,
    risk_coverage,
)

__all__ = ["BrierParts", "accuracy", "balanced_accuracy", "brier", "brier_decomposition", "nll"]
__all__ += ["Calibration", "Reliability", "adaptive_ece", "calibration", "debiased_ece", "ece"]
__all__ += ["coverage", "mae", "reliability", "rmse", "set_size"]
__all__ += ["Interval", "interval", "interval_of_steps", "mean_interval", "paired"]
__all__ += ["Abstention", "RiskCoverage", "abstention_threshold", "aupr", "aurc", "auroc"]
__all__ += ["fpr95", "risk_coverage"]

BINS = 15


class Reliability(NamedTuple):
    """Confidence against accuracy, bin by bin; NaN where a bin is empty."""

    edges: Tensor  #: (bins + 1,)
    size: Tensor  #: (bins,) recordings in the bin
    confidence: Tensor  #: (bins,) mean confidence
    accuracy: Tensor  #: (bins,)


class BrierParts(NamedTuple):
    """Of the Brier score, which is about reliability - resolution + uncertainty."""

    reliability: float  #: how far the stated probabilities are from the shares found; 0 is best
    resolution: float  #: how far those shares are from the classes' own; large is good
    uncertainty: float  #: of the labels alone


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of recordings whose most probable class is right."""
    _check(probs, labels)
    return float((probs.argmax(-1) == labels).double().mean())


def balanced_accuracy(probs: Tensor, labels: Tensor) -> float:
    """Mean over the classes that occur of the share of each that is right: a rare class counts as
    much as a frequent one.

    >>> balanced_accuracy(torch.eye(2)[[0, 0, 0, 0]], torch.tensor([0, 0, 0, 1]))
    0.5
    """
    _check(probs, labels)
    right = (probs.argmax(-1) == labels).double()
    size = torch.bincount(labels)
    return float((torch.bincount(labels, weights=right) / size)[size > 0].mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood in nats; a probability of 0 counts as the least of its dtype."""
    _check(probs, labels)
    return float(F.nll_loss(probs.clamp(min=torch.finfo(probs.dtype).tiny).log(), labels))


def brier(probs: Tensor, labels: Tensor) -> float:
    """Mean over recordings of sum_c (p_c - 1[c = label])^2, in [0, 2]."""
    _check(probs, labels)
    return float((probs - F.one_hot(labels, probs.shape[-1])).square().sum(-1).mean())


def ece(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error of the most probable class, equal-width bins. Not zero for a
    perfectly calibrated model.

    >>> ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1]))  # doctest: +ELLIPSIS
    0.3...
    """
    _, size, confidence, share = reliability(probs, labels, bins)
    # An empty bin is 0/0
    return float(((share - confidence).abs().nan_to_num() * size).sum() / size.sum())


def reliability(probs: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """The bins of a reliability diagram; sum |accuracy - confidence| size / N over them is the ECE.

    torchmetrics has the sum alone, and takes 30 times as long.
    """
    _check(probs, labels)
    edges = torch.linspace(0, 1, positive_int("bins", bins) + 1, dtype=probs.dtype)
    top, predicted = probs.clamp(0, 1).cpu().max(-1)
    which = _bin_of(top, edges)
    size = torch.bincount(which, minlength=bins)
    right = (predicted == labels.cpu()).to(top.dtype)
    confidence, share = (
        torch.bincount(which, weights=v, minlength=bins) / size for v in (top, right)
    )
    return Reliability(edges, size, confidence, share)


def adaptive_ece(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error of the most probable class, bins of equal numbers of recordings.

    Recordings of equal confidence share a bin, so bins are as equal as these allow.

    >>> sure, y = torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])
    >>> round(adaptive_ece(sure, y, bins=2), 6)  # (0.1 + 0.6) / 2
    0.35
    """
    _check(probs, labels)
    top, predicted = probs.clamp(0, 1).double().cpu().max(-1)
    below = torch.searchsorted(top.sort().values, top)  # recordings that are less sure
    which = below * positive_int("bins", bins) // len(top)
    gap = torch.bincount(which, weights=top - (predicted == labels.cpu()).double())
    return float(gap.abs().sum() / len(top))


def debiased_ece(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error without what chance adds to it: the miscalibration at which `ece`
    would on average be what it is, 0 where a calibrated model would show as much. `calibration`
    gives its interval.

    >>> sure, y = torch.tensor([[0.9, 0.1]]).expand(100, 2), torch.tensor([0] * 80 + [1] * 20)
    >>> round(ece(sure, y), 3), round(debiased_ece(sure, y), 3)
    (0.1, 0.1)
    """
    return intervals.debiased_ece(_bins(probs, labels, bins))


def brier_decomposition(probs: Tensor, labels: Tensor, bins: int = BINS) -> BrierParts:
    """The Brier score's parts (Murphy, 1973), added over the classes.

    Each class's probabilities are binned, equal widths. Murphy's identity is exact where all
    probabilities in a bin are equal; else the score differs from the sum of its parts by what the
    probabilities vary within bins.

    >>> p, y = torch.tensor([[0.8, 0.2]]).expand(10, 2), torch.tensor([0] * 7 + [1] * 3)
    >>> parts = brier_decomposition(p, y)
    >>> [round(part, 6) for part in parts], round(brier(p, y), 6)
    ([0.02, 0.0, 0.42], 0.44)
    """
    _check(probs, labels)
    p, edges = probs.clamp(0, 1).cpu(), torch.linspace(0, 1, positive_int("bins", bins) + 1)
    classes = p.shape[-1]
    # (N, C): a bin for each class and range of its probability
    which = _bin_of(p.contiguous(), edges.to(p.dtype)) + bins * torch.arange(classes)
    hit = F.one_hot(labels.cpu(), classes).double()
    size = torch.bincount(which.flatten(), minlength=bins * classes)
    stated, share = (
        torch.bincount(which.flatten(), weights=v.double().flatten(), minlength=bins * classes)
        / size.clamp(min=1)
        for v in (p, hit)
    )
    prior = hit.mean(0)
    reliability = (size * (stated - share).square()).sum() / len(p)
    resolution = (size * (share - prior.repeat_interleave(bins)).square()).sum() / len(p)
    return BrierParts(float(reliability), float(resolution), float((prior * (1 - prior)).sum()))


def rmse(predicted: Tensor, target: Tensor) -> float:
    """Root of the mean squared error, over recordings and outputs, (N, C) each.

    >>> rmse(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [0.0]]))  # doctest: +ELLIPSIS
    1.41421...
    """
    return float(_errors(predicted, target).square().mean().sqrt())


def mae(predicted: Tensor, target: Tensor) -> float:
    """Mean absolute error, over recordings and outputs, (N, C) each."""
    return float(_errors(predicted, target).abs().mean())


def coverage(sets: Tensor, labels: Tensor) -> float:
    """Share of recordings whose class is in their prediction set; `sets` (N, C) bool, of torch or
    numpy.

    >>> coverage(torch.tensor([[True, True], [True, False]]), torch.tensor([1, 1]))
    0.5
    """
    sets, labels = torch.as_tensor(sets), torch.as_tensor(labels)
    _check_sets(sets)
    _check_labels(labels, sets)
    return float(sets.gather(1, labels[:, None]).double().mean())


def set_size(sets: Tensor) -> float:
    """Mean number of classes in prediction `sets` (N, C) bool.

    >>> set_size(torch.tensor([[True, True], [True, False]]))
    1.5
    """
    sets = torch.as_tensor(sets)
    _check_sets(sets)
    return float(sets.sum(1).double().mean())


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "nll": nll,
    "brier": brier,
    "ece": ece,
}
REGRESSION_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"rmse": rmse, "mae": mae}
CALIBRATION = "calibration_error"  # the debiased ECE, of `calibration`
JUDGED = ("accuracy", "balanced_accuracy", "nll", "brier", CALIBRATION)  # what has an interval


def interval(
    name: str, predicted: Tensor, truth: Tensor, *, level: float = intervals.LEVEL, seed: int = 0
) -> Interval:
    """A metric with its interval: where its value on all recordings of this kind lies, for these
    very weights.

    Args:
        name: of `JUDGED`, with probabilities (N, C) and labels (N,), or of `REGRESSION_METRICS`,
            with (N, outputs) twice.
        predicted, truth: these two.
        level: how often such intervals hold the truth; see docs/RESULTS.md for what they were found
            to do.
        seed: of the draws that the interval of the calibration error takes.

    >>> y = torch.tensor([0] * 95 + [1] * 5)
    >>> interval("accuracy", torch.tensor([[0.9, 0.1]]).expand(100, 2), y)  # doctest: +ELLIPSIS
    Interval(value=0.95, low=0.888..., high=0.98...)
    """
    choice("name", name, (*JUDGED, *REGRESSION_METRICS))
    _check_level(level)
    if name == CALIBRATION:
        return calibration(predicted, truth, level=level, seed=seed).error
    scores = _scores(name, predicted, truth)
    if name in ("accuracy", "balanced_accuracy"):
        value = METRICS[name](predicted, truth)
        n = len(scores) if name == "accuracy" else 1 / (_weights(truth) ** 2).sum()
        return Interval(value, *intervals.of_share(min(value * n, n), n, level))
    if name == "rmse":
        ends = intervals.of_mean_square(scores, level)
        return Interval(*(math.sqrt(max(0.0, end)) for end in (scores.mean(), *ends)))
    found = mean_interval(scores, level)
    if name in ("nll", "brier"):
        high = _with_unseen_mistakes(name, predicted, truth, level)
        found = found._replace(high=max(found.high, high))
    return found._replace(low=max(0.0, found.low))


def interval_of_steps(
    name: str,
    predicted: Tensor,
    truth: Tensor,
    recordings: Tensor,
    *,
    level: float = intervals.LEVEL,
) -> Interval:
    """As `interval`, of rows that are time steps: those of one recording depend on each other.

    The interval is that of a mean over recordings, each with the influence of all of its rows.

    Args:
        name, predicted, truth: as for `interval`.
        recordings: the recording that each row is of, (N,) int64.
    """
    rows = _linear(name, predicted, truth)
    which = torch.unique(recordings.cpu(), return_inverse=True)[1].numpy()
    sums = np.bincount(which, rows - rows.mean())
    low, high = intervals.of_mean(rows.mean() + sums * len(sums) / len(rows), level)
    return Interval(float(rows.mean()), max(0.0, float(low)), float(high))


def mean_interval(scores: np.ndarray, level: float = intervals.LEVEL) -> Interval:
    """Mean of `scores`, one per recording, with its interval."""
    low, high = intervals.of_mean(scores, level)
    return Interval(float(np.mean(scores)), float(low), float(high))


def calibration(
    probs: Tensor,
    labels: Tensor,
    *,
    level: float = intervals.LEVEL,
    seed: int = 0,
    bins: int = BINS,
) -> Calibration:
    """The debiased ECE with its interval, by draws from `seed`, the plain ECE, and the ECE that a
    calibrated model of these confidences would show.

    >>> sure, y = torch.tensor([[0.9, 0.1]]).expand(100, 2), torch.tensor([0] * 88 + [1] * 12)
    >>> found = calibration(sure, y)
    >>> round(found.ece, 3), round(found.calibrated_mean, 3), found.error.value, found.error.low
    (0.02, 0.024, 0.0, 0.0)
    """
    _check_level(level)
    return intervals.calibration(_bins(probs, labels, bins), level, seed)


def paired(
    name: str,
    a: Sequence[Tensor],
    b: Sequence[Tensor],
    truth: Tensor,
    *,
    level: float = intervals.LEVEL,
) -> Interval:
    """A metric's difference, a minus b, over the same recordings, with an interval over recordings
    and seeds.

    Args:
        name: as for `interval`.
        a, b: predictions (N, C) of one method and of the other, one tensor per run; runs of the
            same seed in the same place. Means over the runs are compared. With one run each, the
            interval is about these two runs alone.
        truth: labels or targets, as for `interval`.

    >>> sure, unsure = 0.98 * torch.eye(2).repeat(50, 1) + 0.01, torch.full((100, 2), 0.5)
    >>> y = torch.tensor([0, 1]).repeat(50)
    >>> paired("nll", [sure], [unsure], y).high < -0.6
    True
    """
    choice("name", name, (*JUDGED, *REGRESSION_METRICS))
    _check_level(level)
    if not a or len(a) != len(b) or len({p.shape for p in (*a, *b)}) != 1:
        shapes = [[tuple(p.shape) for p in runs] for runs in (a, b)]
        raise ValueError(
            "a, b: must be predictions of the same recordings and classes by as many runs, one or "
            f"more; got shapes {shapes}; leave runs out that only one has"
        )
    pairs = zip(a, b, strict=True)
    gains = [_linear(name, p, truth) - _linear(name, q, truth) for p, q in pairs]
    scores = np.stack(gains)  # (S, N)
    value = float(scores.mean())
    least = float(np.mean([_price_of_a_mistake(name, p) for p in (*a, *b)]))
    low, high = intervals.of_crossed_mean(scores, level, least=least, skewed=name != "accuracy")
    if name == CALIBRATION:
        # Two corrections of the ECE's bias differ by about what the first leaves. An error of a
        # that is still too high makes the difference too high, one of b makes it too low: each
        # moves one end, in full, as seeds do not average it out.
        bins = [_bins(p, truth) for p in (*a, *b)]
        left = np.array([intervals.corrected_ece(of) - intervals.debiased_ece(of) for of in bins])
        too_high = left * np.repeat([1, -1], len(a)) / len(a)
        low, high = low - too_high.clip(min=0).sum(), high - too_high.clip(max=0).sum()
    return Interval(value, float(low), float(high))


def _scores(name: str, predicted: Tensor, truth: Tensor) -> np.ndarray:
    """One number per recording, whose mean is the metric (RMSE: its square; balanced: weighted)."""
    if name in REGRESSION_METRICS:
        errors = _errors(predicted, truth)
        return (errors.square() if name == "rmse" else errors.abs()).mean(-1).cpu().numpy()
    _check(predicted, truth)
    probs = predicted.double().cpu()
    if name in ("accuracy", "balanced_accuracy"):
        return (probs.argmax(-1) == truth.cpu()).double().numpy()
    return _costs(name, predicted).gather(-1, truth.cpu()[:, None])[:, 0].numpy()


def _weights(labels: Tensor) -> np.ndarray:
    """Of recordings in balanced accuracy: the same sum for each class that occurs, 1 in all."""
    size = torch.bincount(labels.cpu())
    return (1 / (size[labels.cpu()] * (size > 0).sum()).double()).numpy()


def _costs(name: str, probs: Tensor) -> Tensor:
    """What each label would cost, (N, C)."""
    if name == "nll":
        return -probs.clamp(min=torch.finfo(probs.dtype).tiny).double().log().cpu()
    p = probs.double().cpu()
    return p.square().sum(-1, keepdim=True) - 2 * p + 1


def _with_unseen_mistakes(name: str, probs: Tensor, labels: Tensor, level: float) -> float:
    """The mean cost if mistakes were as frequent as the accuracy's interval allows.

    With hardly a mistake in the sample, its costs say nothing of what one costs. So one more is
    added to them, at the price that the model itself expects.
    """
    costs, right = _scores(name, probs, labels), _scores("accuracy", probs, labels) > 0
    mistake = (costs[~right].sum() + _price_of_a_mistake(name, probs)) / ((~right).sum() + 1)
    share = 1 - intervals.of_share(int(right.sum()), len(right), level)[0]
    return float((1 - share) * (costs[right].mean() if right.any() else 0) + share * mistake)


def _price_of_a_mistake(name: str, predicted: Tensor) -> float:
    """What a mistake adds to a score; for the NLL and the Brier score as the model expects it."""
    if name in ("accuracy", CALIBRATION):
        return 1.0
    # Errors of a regression have no such step; rare classes weigh more than 1
    if name not in ("nll", "brier"):
        return 0.0
    wrong_labels = predicted.double().cpu().scatter(-1, predicted.cpu().argmax(-1, keepdim=True), 0)
    if not float(wrong_labels.sum()) > 0:
        wrong_labels = torch.ones_like(wrong_labels)
    return float((wrong_labels * _costs(name, predicted)).sum() / wrong_labels.sum())


def _linear(name: str, predicted: Tensor, truth: Tensor) -> np.ndarray:
    """One number per recording: their mean is the metric, their spread its influence function's."""
    if name == CALIBRATION:
        table = reliability(predicted, truth)
        top = predicted.clamp(0, 1).cpu().max(-1).values
        sign = torch.sign(table.confidence - table.accuracy)[_bin_of(top, table.edges)]
        # Their mean is the plain ECE
        gaps = sign.numpy() * (top.double().numpy() - _scores("accuracy", predicted, truth))
        return gaps - gaps.mean() + intervals.corrected_ece(_bins(predicted, truth))
    scores = _scores(name, predicted, truth)
    if name == "balanced_accuracy":
        weights, labels = _weights(truth), truth.cpu().numpy()
        shares = np.bincount(labels, scores) / np.maximum(np.bincount(labels), 1)
        return weights @ scores + len(scores) * weights * (scores - shares[labels])
    if name == "rmse":
        value = math.sqrt(scores.mean())
        return value + (scores - value**2) / (2 * value) if value else scores
    return scores


def _bin_of(confidence: Tensor, edges: Tensor) -> Tensor:
    return (torch.bucketize(confidence, edges, right=True) - 1).clamp(max=len(edges) - 2)


def _bins(probs: Tensor, labels: Tensor, bins: int = BINS) -> intervals.Bins:
    """The bins of `reliability` that hold recordings."""
    table = reliability(probs, labels, bins)
    used = table.size > 0
    size, confidence, share = (
        t[used].double().numpy() for t in (table.size, table.confidence, table.accuracy)
    )
    return intervals.Bins(size.astype(np.int64), confidence.clip(0, 1), (share * size).round())


def _check_level(level: float) -> None:
    if not number("level", level, above=0) < 1:
        raise ValueError(f"level: must lie in (0, 1); got {level!r}; give e.g. 0.95")


def _errors(predicted: Tensor, target: Tensor) -> Tensor:
    tensor("predicted", predicted)
    tensor("target", target)
    if predicted.ndim != 2 or predicted.shape != target.shape or len(target) == 0:
        raise ValueError(
            f"predicted, target: must both be (N, C) with N >= 1; got {tuple(predicted.shape)}, "
            f"{tuple(target.shape)}; reshape them"
        )
    return predicted.double() - target.double()


def _check(probs: Tensor, labels: Tensor) -> None:
    tensor("probs", probs)
    tensor("labels", labels)
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        raise ValueError(
            f"probs, labels: must be (N, C) and (N,) with N >= 1; got {tuple(probs.shape)} and "
            f"{tuple(labels.shape)}; reshape them"
        )
    if not probs.is_floating_point() or labels.dtype != torch.int64:
        raise ValueError(
            f"probs, labels: must be floating point and int64; got {probs.dtype} and "
            f"{labels.dtype}; use .float(), .long()"
        )
    if probs.isnan().any():
        finite("probs", probs)
    wrong = ((probs.sum(-1) - 1).abs() > 1.1e-4) | (probs < 0).any(-1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            "probs: rows must be probabilities, >= 0 and summing to 1; got "
            f"{probs[row].tolist()[:4]} in row {row}; apply softmax to logits first"
        )
    _check_range(labels, probs.shape[-1])


def _check_sets(sets: Tensor) -> None:
    tensor("sets", sets)
    if sets.dtype != torch.bool or sets.ndim != 2 or len(sets) == 0:
        raise ValueError(
            f"sets: must be bool, (N, C) with N >= 1; got {sets.dtype} {tuple(sets.shape)}; "
            "True where a class is inside"
        )


def _check_labels(labels: Tensor, sets: Tensor) -> None:
    tensor("labels", labels)
    if labels.shape != sets.shape[:1] or labels.dtype != torch.int64:
        raise ValueError(
            f"labels: must be int64, ({len(sets)},), one per set; got {labels.dtype} "
            f"{tuple(labels.shape)}; use .long()"
        )
    _check_range(labels, sets.shape[1])


def _check_range(labels: Tensor, classes: int) -> None:
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"labels: must lie in 0..{classes - 1}; got "
            f"{int(labels.min())}..{int(labels.max())}; check the classes"
        )
