"""Populations in which the truth is known, on which `interval_coverage` judges intervals.

The methods were chosen on some of them: logits with one boosted class, labels from their softmax,
and a model that states the softmax of logits / temperature (below 1: overconfident). Others were
written afterwards, and nothing was chosen on them (`is_fresh`): mostly, a recording has a chance of
a right answer there, and the model's confidence is a distorted version of it. Differences: runs of
two methods on the same recordings, where each seed shifts a method, and errs on recordings of its
own besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from bisnn import metrics

LARGE = 200_000  # recordings that the truth is taken from
Errors = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def around(top: np.ndarray, classes: int) -> np.ndarray:
    """Probabilities (..., classes): `top` for class 0, the rest in equal parts."""
    rest = np.repeat(((1 - top) / (classes - 1))[..., None], classes - 1, -1)
    return np.concatenate([top[..., None], rest], -1)


def binned_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """The calibration error of recordings whose chances of a right answer are known."""
    which = np.minimum((confidence * metrics.BINS).astype(int), metrics.BINS - 1)
    return float(np.abs(np.bincount(which, confidence - right, metrics.BINS)).sum() / len(right))


# One run


class Logits(NamedTuple):
    """Ten classes, a model whose logits are right but for a factor."""

    boost: float  # of the right class
    temperature: float  # of the logits that are stated

    def recordings(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The true distribution of the label and the one stated, (n, classes) each."""
        logits = rng.standard_normal((n, 10))
        logits[:, 0] += self.boost * rng.gamma(3.0, 1 / 3.0, n)
        return softmax(logits), softmax(logits / self.temperature)


class Chances(NamedTuple):
    """Four classes, chances of a right answer from a beta distribution, and a confidence that bends
    them.
    """

    a: float
    b: float
    offset: float = 0.0  # of the confidence's logit
    slope: float = 1.0

    def recordings(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        right = rng.beta(self.a, self.b, n).clip(0.3, 0.9999)
        stated = special.expit(self.offset + self.slope * special.logit(right)).clip(0.3, 0.9999)
        return around(right, 4), around(stated, 4)


MODELS: dict[str, Logits | Chances] = {
    "accuracy 0.81, calibrated": Logits(6, 1.0),
    "accuracy 0.81, overconfident": Logits(6, 0.6),
    "accuracy 0.93, calibrated": Logits(10, 1.0),
    "accuracy 0.93, overconfident": Logits(10, 0.6),
    "accuracy 0.97, calibrated": Logits(16, 1.0),
    "accuracy 0.97, overconfident": Logits(16, 0.6),
    "accuracy 0.97, underconfident": Logits(16, 2.0),
    "chances, calibrated": Chances(4, 1),
    "chances, overconfident": Chances(4, 1, offset=0.5),
    "chances near 1, bent": Chances(30, 0.8, slope=0.7),
    "chances low, bent": Chances(3, 2, offset=-0.2, slope=1.6),
}


def contaminated(share: float, factor: float) -> Errors:
    """Normal errors, of which a share is larger by a factor."""
    return lambda rng, shape: (
        rng.standard_normal(shape) * np.where(rng.random(shape) < share, factor, 1)
    )


ERRORS: dict[str, Errors] = {
    "Student's t, 5 degrees of freedom": lambda rng, shape: rng.standard_t(5, shape),
    "Student's t, 10 degrees of freedom": lambda rng, shape: rng.standard_t(10, shape),
    "Student's t, 30 degrees of freedom": lambda rng, shape: rng.standard_t(30, shape),
    "logistic": lambda rng, shape: rng.logistic(size=shape),
    "gamma, with a bias": lambda rng, shape: rng.gamma(2.0, size=shape) - 1.5,
    "normal, a twentieth thrice as large": contaminated(0.05, 3),
    "Laplace": lambda rng, shape: rng.laplace(size=shape),
    "normal, a tenth 2.5 times as large": contaminated(0.1, 2.5),
    "normal, of log-normal scale": lambda rng, shape: (
        rng.standard_normal(shape) * rng.lognormal(0, 0.5, shape)
    ),
}
# Tails that lie in so few errors that a hundred of them may show nothing of it: not claimed
RARE: dict[str, Errors] = {"normal, three in a hundred four times as large": contaminated(0.03, 4)}


def labels(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    return (p.cumsum(-1) < rng.random((len(p), 1))).sum(-1).clip(max=p.shape[-1] - 1)


# Runs of two methods


class Blurred(NamedTuple):
    """Recordings of class 0 by their logits: every seed shifts that class's logit, and blurs all in
    its own way.
    """

    boost: float
    temperature: float
    between: float  # deviation of the shift over the seeds
    blur: float = 0.5

    def runs(self, rng: np.random.Generator, recordings: np.ndarray, shifts: np.ndarray) -> Tensor:
        """Stated probabilities (seeds, n, classes), one seed for each of the standard normal
        shifts.
        """
        ease = special.gammaincinv(3, special.ndtr(recordings[:, 3])) / 3
        z = recordings[:, :3] + self.blur * rng.standard_normal((len(shifts), len(recordings), 3))
        z[..., 0] += self.boost * ease + self.between * shifts[:, None]
        return torch.from_numpy(softmax(z / self.temperature))


class Answers(NamedTuple):
    """Recordings of class 0 by the chance of a right answer, which every seed shifts; runs share
    part of their luck.
    """

    easy: float  # logit of the chance, in the middle
    spread: float
    between: float  # deviation of the shift over the seeds
    slope: float = 1.0  # of the confidence's logit: above 1 is overconfident
    shared: float = 0.7  # part of the luck that all runs have in common

    def runs(self, rng: np.random.Generator, recordings: np.ndarray, shifts: np.ndarray) -> Tensor:
        chance, stated = self._chances(recordings[:, 0], shifts)
        own = rng.standard_normal(chance.shape)
        luck = special.ndtr(
            np.sqrt(self.shared) * recordings[:, 1] + np.sqrt(1 - self.shared) * own
        )
        right = around(stated, 3)
        return torch.from_numpy(np.where((luck < chance)[..., None], right, right[..., [1, 0, 2]]))

    def _chances(self, ease: np.ndarray, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of a right answer, (seeds, n), and as stated."""
        chance = special.expit(
            self.easy + self.spread * ease + self.between * shifts[:, None]
        ).clip(0.35, 0.9999)
        return chance, special.expit(self.slope * special.logit(chance)).clip(0.35, 0.9999)

    def calibration_error(self, shift: float) -> float:
        """Of one seed, from the chances: drawn answers would leave a calibrated method an error."""
        points = stats.norm.ppf((np.arange(LARGE // 2) + 0.5) / (LARGE // 2))
        chance, stated = self._chances(points, np.array([shift]))
        return binned_error(stated[0], chance[0])


PAIRS: dict[str, tuple[Blurred | Answers, Blurred | Answers]] = {
    "seeds alike": (Blurred(5, 1.0, 0.0), Blurred(4.5, 1.0, 0.0)),
    "seeds differ": (Blurred(5, 1.0, 0.5), Blurred(4.5, 1.0, 0.5)),
    "one overconfident": (Blurred(5, 0.5, 0.3), Blurred(5, 1.0, 0.3)),
    "accuracy 0.99": (Blurred(14, 1.0, 0.3), Blurred(12, 1.0, 0.3)),
    "answers, accuracy 0.85": (Answers(2.4, 1.5, 0.3), Answers(2.1, 1.5, 0.3, slope=1.3)),
    "answers, accuracy 0.98": (Answers(4.8, 1.0, 0.2, slope=0.9), Answers(4.6, 1.0, 0.2)),
    "answers, accuracy 0.94": (
        Answers(4.0, 1.6, 0.3, slope=1.2),
        Answers(3.8, 1.4, 0.3, shared=0.5),
    ),
    "answers, luck apart": (
        Answers(1.8, 1.0, 0.1, slope=1.5, shared=0.2),
        Answers(1.8, 1.0, 0.4, slope=0.8, shared=0.2),
    ),
    "answers, underconfident": (Answers(3.0, 1.2, 0.3, slope=0.75), Answers(3.2, 1.2, 0.2)),
    "answers, both calibrated": (Answers(2.8, 1.3, 0.2), Answers(2.2, 1.3, 0.2)),
}


def both(
    rng: np.random.Generator, pair: str, n: int, shifts: tuple[np.ndarray, np.ndarray]
) -> list[list[Tensor]]:
    """The runs of both methods of a pair on the same n recordings."""
    recordings = rng.standard_normal((n, 4))
    return [
        list(method.runs(rng, recordings, shift))
        for method, shift in zip(PAIRS[pair], shifts, strict=True)
    ]


# What was chosen on which

FRESH = {  # nothing was chosen on these
    *(name for name in MODELS if name.startswith("chances")),
    *(name for name in ERRORS if not name.startswith("Student")),
    "answers, accuracy 0.85",
    "answers, accuracy 0.94",
    "answers, luck apart",
    "answers, underconfident",
    "answers, both calibrated",
}
CHOSEN_ON = {  # but for one metric
    metrics.CALIBRATION: {
        "answers, accuracy 0.85",
        "answers, accuracy 0.94",
        "answers, luck apart",
    },
    "rmse": {"logistic", "gamma, with a bias", "normal, a twentieth thrice as large"},
}


def is_fresh(name: str, population: str) -> bool:
    """Whether nothing was chosen on a population for the intervals of a metric."""
    return population in FRESH and population not in CHOSEN_ON.get(name, ())
