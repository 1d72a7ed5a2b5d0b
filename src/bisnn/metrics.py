"""How good and how honest a predicted distribution is: accuracy, NLL, Brier score, calibration, with bootstrap intervals.

Each metric takes probabilities (N, C) and labels (N,) and returns a float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bisnn.checks import number, positive_int, tensor
from bisnn.packed import philox
from bisnn.packed.philox import Purpose

BINS = 15


class Interval(NamedTuple):
    value: float  # on all the data
    low: float
    high: float


class Reliability(NamedTuple):
    """Confidence against accuracy, bin by bin; NaN where a bin is empty."""

    edges: Tensor  # (bins + 1,)
    size: Tensor  # (bins,) recordings in the bin
    confidence: Tensor  # (bins,) mean confidence
    accuracy: Tensor  # (bins,)


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Share of recordings whose most probable class is right (one line; torchmetrics would take a second to import for it)."""
    _check(probs, labels)
    return float((probs.argmax(-1) == labels).double().mean())


def balanced_accuracy(probs: Tensor, labels: Tensor) -> float:
    """Mean over the classes that occur of the share of each that is right: a rare class counts as much as a frequent one.

    >>> balanced_accuracy(torch.eye(2)[[0, 0, 0, 0]], torch.tensor([0, 0, 0, 1]))
    0.5
    """
    _check(probs, labels)
    right = (probs.argmax(-1) == labels).double()
    size = torch.bincount(labels)
    return float((torch.bincount(labels, weights=right) / size)[size > 0].mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean negative log-likelihood in nats; a probability of 0 counts as the smallest positive number of its dtype."""
    _check(probs, labels)
    return float(F.nll_loss(probs.clamp(min=torch.finfo(probs.dtype).tiny).log(), labels))


def brier(probs: Tensor, labels: Tensor) -> float:
    """Mean over recordings of sum_c (p_c - 1[c = label])^2, in [0, 2]; torchmetrics has none for several classes."""
    _check(probs, labels)
    return float((probs - F.one_hot(labels, probs.shape[-1])).square().sum(-1).mean())


def ece(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error of the most probable class, equal-width bins. Not zero for a perfectly calibrated model.

    >>> ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1]))  # doctest: +ELLIPSIS
    0.3...
    """
    _, size, confidence, share = reliability(probs, labels, bins)
    return float(((share - confidence).abs().nan_to_num() * size).sum() / size.sum())  # an empty bin is 0/0


def reliability(probs: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """The bins of a reliability diagram; sum |accuracy - confidence| size / N over them is the ECE.

    torchmetrics has the sum alone, and takes 30 times as long, which a bootstrap pays hundreds of times.
    """
    _check(probs, labels)
    edges = torch.linspace(0, 1, positive_int("bins", bins) + 1, dtype=probs.dtype)
    top, predicted = probs.clamp(0, 1).cpu().max(-1)
    which = (torch.bucketize(top, edges, right=True) - 1).clamp(max=bins - 1)
    size = torch.bincount(which, minlength=bins)
    right = (predicted == labels.cpu()).to(top.dtype)
    confidence, share = (torch.bincount(which, weights=v, minlength=bins) / size for v in (top, right))
    return Reliability(edges, size, confidence, share)


def rmse(predicted: Tensor, target: Tensor) -> float:
    """Root of the mean squared error, over recordings and outputs, (N, C) each.

    >>> rmse(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [0.0]]))  # doctest: +ELLIPSIS
    1.41421...
    """
    return float(_errors(predicted, target).square().mean().sqrt())


def mae(predicted: Tensor, target: Tensor) -> float:
    """Mean absolute error, over recordings and outputs, (N, C) each."""
    return float(_errors(predicted, target).abs().mean())


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "nll": nll,
    "brier": brier,
    "ece": ece,
}
REGRESSION_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"rmse": rmse, "mae": mae}


def bootstrap(
    metric: Callable[[Tensor, Tensor], float],
    probs: Tensor,
    labels: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap over the recordings. For the ECE, which resampling biases upwards, read it with that in mind."""
    from scipy.stats import bootstrap as scipy_bootstrap

    if not number("level", level, above=0) < 1:
        raise ValueError(f"level: must lie in (0, 1); got {level!r}; give e.g. 0.95")
    value = metric(probs, labels)
    if len(labels) == 1:
        return Interval(value, value, value)

    def on(index: np.ndarray) -> float:
        chosen = torch.from_numpy(index.astype(np.int64))
        return metric(probs[chosen], labels[chosen])

    result = scipy_bootstrap(
        (np.arange(len(labels)),),
        on,
        n_resamples=positive_int("resamples", resamples),
        confidence_level=level,
        vectorized=False,
        method="percentile",
        rng=philox.keyed_generator(seed, Purpose.BOOTSTRAP),
    )
    return Interval(value, float(result.confidence_interval.low), float(result.confidence_interval.high))


def paired(
    metric: Callable[[Tensor, Tensor], float],
    a: Sequence[Tensor],
    b: Sequence[Tensor],
    labels: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """A metric's difference, a minus b, with a bootstrap interval over the recordings, which all share.

    Args:
        a, b: predictions (N, C) of one method and of the other, one tensor a run (seed): means over the runs are compared.

    >>> sure, unsure, y = torch.eye(2).repeat(50, 1), torch.full((100, 2), 0.5), torch.tensor([0, 1]).repeat(50)
    >>> paired(nll, [sure], [unsure], y).high < -0.69
    True
    """

    if not a or not b or len({p.shape for p in (*a, *b)}) != 1:
        shapes = [tuple(p.shape) for p in (*a, *b)]
        raise ValueError(f"a, b: must be predictions of the same recordings and classes, one or more each; got shapes {shapes}")

    def difference(probs: Tensor, labels: Tensor) -> float:
        values = [metric(probs[:, run], labels) for run in range(probs.shape[1])]
        return sum(values[: len(a)]) / len(a) - sum(values[len(a) :]) / len(b)

    return bootstrap(difference, torch.stack([*a, *b], 1), labels, resamples=resamples, level=level, seed=seed)


def _errors(predicted: Tensor, target: Tensor) -> Tensor:
    tensor("predicted", predicted)
    tensor("target", target)
    if predicted.ndim != 2 or predicted.shape != target.shape or len(target) == 0:
        raise ValueError(
            f"predicted, target: must both be (N, C) with N >= 1; got {tuple(predicted.shape)}, {tuple(target.shape)}; reshape them"
        )
    return predicted.double() - target.double()


def _check(probs: Tensor, labels: Tensor) -> None:
    tensor("probs", probs)
    tensor("labels", labels)
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or len(labels) == 0:
        raise ValueError(
            f"probs, labels: must be (N, C) and (N,) with N >= 1; got {tuple(probs.shape)} and {tuple(labels.shape)}; reshape them"
        )
    if not probs.is_floating_point() or labels.dtype != torch.int64:
        raise ValueError(
            f"probs, labels: must be floating point and int64; got {probs.dtype} and {labels.dtype}; use .float(), .long()"
        )
    sums = probs.sum(-1)
    if not (torch.isfinite(probs).all() and (probs >= 0).all() and torch.allclose(sums, torch.ones_like(sums), atol=1e-4)):
        raise ValueError("probs: rows must be probabilities, >= 0 and summing to 1; got others; apply softmax to logits first")
    if labels.min() < 0 or labels.max() >= probs.shape[-1]:
        raise ValueError(
            f"labels: must lie in 0..{probs.shape[-1] - 1}; got {int(labels.min())}..{int(labels.max())}; check the classes"
        )
