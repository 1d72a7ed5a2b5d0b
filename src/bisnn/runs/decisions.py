"""How a guarantee held on the test points, and how early a classifier can decide with one.

A calibrated run's own thresholds are used, and judged on all test points. For any other run, half
of the test points give the thresholds, and the other half is judged: what a calibration would buy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn import conformal, intervals, metrics
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.conformal import ConformalIntervals, ConformalSets, Looks
from bisnn.intervals import Interval
from bisnn.prediction import Classification, Regression
from bisnn.runs.guarantee import outputs, score_readouts
from bisnn.runs.model import Model
from bisnn.runs.results import Decisions, Kept, Looked, Metrics

COVERAGE = 0.95  # of runs that are not calibrated
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
SPLITS = 10  # in halves, that coverage is the mean over
MOST = 2000  # points that these are of


class Scores:
    """Collects the scores of the looks while a predictor, of `samples` members of each network,
    says what the test points are.
    """

    def __init__(self, model: Model, samples: int | None):
        self.model, found = model, model.guarantee
        own = found.rule if found is not None and found.samples == samples else None
        self.rule = own if isinstance(own, ConformalSets) else None
        self.score = self.rule.score if self.rule else conformal.SCORES[0]
        self.path: Looks = (
            self.rule.path
            if self.rule
            else conformal.even_path(model.config.steps, model.size(samples))
        )
        self.parts: list[np.ndarray] = []

    def look(self, readouts: list[Tensor]) -> None:
        """Score what `Model.readouts` gives of some points."""
        self.parts.append(score_readouts(self.model, readouts, self.path, self.score))

    def kept(self, rule: ConformalSets, y: np.ndarray) -> tuple[Metrics, np.ndarray]:
        """What sets by a rule with this path are worth, and which of them hold the truth."""
        answer = rule.stop(np.concatenate(self.parts, 1))
        inside = answer.hold(y)
        judged = {
            "coverage": _share(inside),
            "set_size": metrics.mean_interval(answer.sizes),
            "time_steps": metrics.mean_interval(answer.steps),
            "decided": _share(answer.decided),
        }
        if answer.decided.any():
            right = "accuracy" if rule.most == 1 else "coverage"
            judged[f"{right}_of_decided"] = _share(inside[answer.decided])
        return judged, inside

    def decisions(self, y: np.ndarray, shown: np.ndarray) -> tuple[Decisions, Looked] | None:
        """What the looks decide, and what a report draws of it; `shown` are the points whose sets
        it shows. None where there are too few points for a guarantee.
        """
        if not self.parts:
            return None
        scores, seed = np.concatenate(self.parts, 1), self.model.config.seed
        order = philox.permutation(len(y), seed, Purpose.DECISION_SPLIT)
        some, judged = order[: len(y) // 2], order[len(y) // 2 :]
        rule = self.rule
        if rule is None:
            try:
                rule = conformal.calibrate_sets(scores[:, some], y[some], self.path, COVERAGE)
            except ValueError:
                return None
        else:
            judged = np.arange(len(y))
        answer = rule.stop(scores[:, judged])
        inside = answer.hold(y[judged])
        found = Decisions(
            coverage=rule.coverage,
            calibrated_on=rule.recordings,
            own=self.rule is not None,
            most=rule.most,
            judged=len(judged),
            steps=self.model.config.steps,
            covered=int(inside.sum()),
            decided=int(answer.decided.sum()),
            right=int(inside[answer.decided].sum()),
            mean_steps=float(answer.steps[answer.decided].mean()) if answer.decided.any() else None,
        )
        targets, coverage = _coverages(scores, y, self.path, seed)
        return found, Looked(
            path=torch.tensor(self.path),
            sets=torch.from_numpy(np.stack([rule.at(p, s[shown]) for p, s in enumerate(scores)])),
            stops=torch.from_numpy(answer.steps),
            decided=torch.from_numpy(answer.decided),
            targets=torch.tensor(targets),
            coverage=torch.tensor(coverage),
        )


def _coverages(
    scores: np.ndarray, y: np.ndarray, path: Looks, seed: int
) -> tuple[list[float], list[float]]:
    """The targets that halves of the test points allow, and the mean coverage of the sets that are
    answered, over splits in halves.
    """
    targets, found = [], []
    for target in TARGETS:
        kept = []
        for split in range(1, SPLITS + 1):
            order = philox.permutation(len(y), seed, Purpose.DECISION_SPLIT, split)[:MOST]
            some, others = order[: len(order) // 2], order[len(order) // 2 :]
            try:
                rule = conformal.calibrate_sets(scores[:, some], y[some], path, target)
            except ValueError:
                break
            answer = rule.stop(scores[:, others])
            kept.append(answer.hold(y[others]).mean())
        if kept:
            targets.append(target)
            found.append(float(np.mean(kept)))
    return targets, found


def kept(
    model: Model, predictor: str, result: Classification | Regression, scores: Scores, y: np.ndarray
) -> Kept:
    """How the guarantee of a calibrated model holds on test points y, of which the calibrated
    `predictor` says `result`; or of classes, at each look, the `scores`.
    """
    assert model.guarantee is not None
    rule, tested = model.guarantee.rule, model.guarantee.tested
    about: dict[str, Any] = {"correction": "", "most": 1}
    if isinstance(rule, ConformalIntervals):
        low, high = rule.around(*outputs(result))
        inside = (low <= y[:, 0]) & (y[:, 0] <= high)
        judged = {"coverage": _share(inside), "width": metrics.mean_interval(high - low)}
    else:
        about = {"correction": rule.correction, "most": rule.most}
        judged, inside = scores.kept(rule, y)
    short = bool(rule.bound) and not tested
    return Kept(
        coverage=rule.coverage,
        recordings=rule.recordings,
        tested=tested,
        falls_short=short
        and conformal.falls_short(int(inside.sum()), len(inside), rule.bound, rule.coverage),
        steps=model.config.steps,
        predictor=predictor,
        metrics=judged,
        **about,
    )


def _share(hits: np.ndarray) -> Interval:
    return Interval(float(hits.mean()), *intervals.of_share(int(hits.sum()), len(hits)))
