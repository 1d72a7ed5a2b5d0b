"""What a score of uncertainty is good for: telling other data apart, and not answering at times.

`bisnn.metrics` has these names too. A score of uncertainty is higher for what is less certain
(entropy, 1 - max p), a confidence the other way round. Recordings of equal score cannot be told
apart: no result depends on the order in which they come.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from bisnn.checks import finite, number, tensor

# On confidence, from strict to loose, denser towards 1; float32, so that any tensor compares alike
THRESHOLDS = (1 - 10 ** np.linspace(-6, 0, 61)).astype(np.float32)


class RiskCoverage(NamedTuple):
    """The share of errors among the surest answers, by how many of them are given, (N,) each."""

    coverage: Tensor  #: 1/N, 2/N, ..., 1
    risk: Tensor  #: the share of errors among so many of the surest


class Abstention(NamedTuple):
    """Below which confidence to answer "don't know", and what calibration showed of the rest."""

    threshold: float | None  #: answer where confidence >= threshold; None: no threshold holds
    answered: int  #: calibration points at the threshold, or at the one that failed first
    errors: int  #: among them
    needed: int  #: answers, all of them right, that show so small an error


def auroc(own: Tensor, other: Tensor) -> float:
    """The probability that a recording of other data has a higher score than one of our own; a tie
    counts half.

    Args:
        own: scores of uncertainty of recordings like those of the training, (M,).
        other: scores of other data, (N,), which are to be found.

    >>> auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.4]))  # doctest: +ELLIPSIS
    0.91666...
    """
    low, high = _sorted_scores(own, other)
    below = torch.searchsorted(low, high) + torch.searchsorted(low, high, right=True)
    return int(below.sum()) / (2 * len(low) * len(high))


def aupr(own: Tensor, other: Tensor) -> float:
    """Average precision of finding other data: the mean over them of the share of other data among
    all recordings with a score as high or higher.

    It depends on how many there are of each: chance is N / (M + N).

    Args:
        own, other: as for `auroc`.

    >>> aupr(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.4]))  # doctest: +ELLIPSIS
    0.8333...
    """
    low, high = _sorted_scores(own, other)
    found = len(high) - torch.searchsorted(high, high)
    alarms = len(low) - torch.searchsorted(low, high)
    return float((found / (found + alarms).double()).mean())


def fpr95(own: Tensor, other: Tensor, share: float = 0.95) -> float:
    """The share of our own recordings taken for other data where at least 95 % of those are found.

    Other data are what is to be found (some authors exchange the two). The threshold is the highest
    score that finds enough of them; recordings at it are taken for other data.

    Args:
        own, other: as for `auroc`.
        share: of the other data that is to be found.

    >>> fpr95(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.4]))  # doctest: +ELLIPSIS
    0.6666...
    """
    _check_share("share", share)
    low, high = _sorted_scores(own, other)
    # 0.07 * 100 is a little more than 7
    least = math.ceil(share * len(high) - 1e-9)
    return float((low >= high[len(high) - least]).double().mean())


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """The share of errors among the k surest answers, for k = 1 to N.

    Answers of equal confidence are taken in random order: the risk is its mean over all orders.

    Args:
        confidence: in each answer, (N,).
        correct: whether it is right, bool (N,).

    >>> risk_coverage(torch.tensor([0.9, 0.6, 0.6]), torch.tensor([True, True, False])).risk
    tensor([0.0000, 0.2500, 0.3333], dtype=torch.float64)
    """
    _check_answers(confidence, correct)
    values, group = torch.unique(-confidence.cpu(), return_inverse=True)  # the surest first
    wrong = (~correct.cpu()).double()
    share = torch.bincount(group, weights=wrong) / torch.bincount(group, minlength=len(values))
    k = torch.arange(1, len(group) + 1, dtype=torch.float64)
    risk = share[group.sort().values].cumsum(0) / k
    return RiskCoverage(k / len(group), risk)


def aurc(confidence: Tensor, correct: Tensor) -> float:
    """Area under the risk-coverage curve: its mean over k = 1 to N (Geifman and El-Yaniv, 2017).

    0 where nothing is wrong; the share of errors where confidence says nothing.

    Args:
        confidence, correct: as for `risk_coverage`.
    """
    return float(risk_coverage(confidence, correct).risk.mean())


def abstention_threshold(
    confidence: Tensor, correct: Tensor, error: float = 0.005, confidence_level: float = 0.9
) -> Abstention:
    """The smallest threshold on confidence above which at most a share `error` of all answers is
    wrong, with this confidence over the draw of the calibration points.

    The thresholds are fixed (`THRESHOLDS`) and tested from strict to loose, each by the
    Clopper-Pearson upper bound of the error among the points that are answered; the first that
    fails ends it, so that testing many costs nothing. Those that too few points reach to show
    anything, even without an error, are passed over. The guarantee is for points drawn as the
    calibration points were, which must not have been trained on; and for confidences that mean
    something: if the few surest answers that were passed over are worse than the rest, it is
    approximate.

    Args:
        confidence: of the calibration points, (N,), in [0, 1].
        correct: whether each answer is right, bool (N,).
        error: the share of wrong answers that is allowed among those given.
        confidence_level: how often the threshold keeps it.

    >>> sure = torch.tensor([0.99]).repeat(900)
    >>> right = torch.ones(1000, dtype=torch.bool)
    >>> right[900:950] = False
    >>> found = abstention_threshold(torch.cat([sure, torch.full((100,), 0.6)]), right)
    >>> 0.6 < found.threshold < 0.99, found.answered, found.errors, found.needed
    (True, 900, 0, 460)
    """
    _check_answers(confidence, correct)
    _check_share("error", error)
    _check_share("confidence_level", confidence_level)
    sure, right = confidence.double().cpu().numpy(), correct.cpu().numpy()
    if sure.min() < 0 or sure.max() > 1:
        raise ValueError(
            f"confidence: must lie in [0, 1]; got {sure.min():g}..{sure.max():g}; give the "
            "probability of the predicted class"
        )
    enough = math.ceil(math.log1p(-confidence_level) / math.log1p(-error))
    best: Abstention | None = None
    for threshold in THRESHOLDS.tolist():
        chosen = sure >= threshold
        n, errors = int(chosen.sum()), int((chosen & ~right).sum())
        if n < enough:
            continue
        if _upper_bound(errors, n, confidence_level) > error:
            return best or Abstention(None, n, errors, enough)
        best = Abstention(threshold, n, errors, enough)
    return best or Abstention(None, len(sure), int((~right).sum()), enough)


def _upper_bound(errors: int, n: int, level: float) -> float:
    """Clopper and Pearson's one-sided bound on a share of which `errors` of n were seen."""
    return float(special.betaincinv(errors + 1, n - errors, level)) if errors < n else 1.0


def _sorted_scores(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    for name, scores in (("own", own), ("other", other)):
        _check_scores(name, scores)
    dtype = torch.promote_types(own.dtype, other.dtype)
    low, high = (scores.detach().to("cpu", dtype).sort().values for scores in (own, other))
    return low, high


def _check_scores(name: str, scores: Tensor) -> None:
    tensor(name, scores)
    if scores.ndim != 1 or len(scores) == 0 or not scores.is_floating_point():
        raise ValueError(
            f"{name}: must be one floating-point number per recording, (N,) with N >= 1; got "
            f"{scores.dtype} {tuple(scores.shape)}; reshape it, or leave out an empty set"
        )
    finite(name, scores)


def _check_answers(confidence: Tensor, correct: Tensor) -> None:
    _check_scores("confidence", confidence)
    tensor("correct", correct)
    if correct.dtype != torch.bool or correct.shape != confidence.shape:
        raise ValueError(
            f"correct: must be bool {tuple(confidence.shape)}, as confidence has it; got "
            f"{correct.dtype} {tuple(correct.shape)}; give e.g. probs.argmax(-1) == labels"
        )


def _check_share(name: str, value: float) -> None:
    if not number(name, value, above=0) < 1:
        raise ValueError(f"{name}: must lie in (0, 1); got {value!r}; give e.g. 0.9")
