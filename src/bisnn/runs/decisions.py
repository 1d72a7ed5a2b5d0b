"""How a guarantee held on the test points, and how early a classifier can decide with one.

A calibrated run's own thresholds are used, and judged on all test points. For any other run, half
of the test points give the thresholds, and the other half is judged: what a calibration would buy.
"""

from __future__ import annotations

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from bisnn import conformal, intervals, metrics
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.conformal import ConformalSets, Looks, PredictionIntervals
from bisnn.data.loading import Split
from bisnn.intervals import Interval
from bisnn.runs.guarantee import answers, score_readouts
from bisnn.runs.model import Model
from bisnn.runs.results import Decisions, Kept, Looked

COVERAGE = 0.95  # of runs that are not calibrated
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
SPLITS = 10  # in halves, that coverage is the mean over
MOST = 2000  # points that these are of


class Margins:
    """Collects the scores of the usual predictor's looks while it predicts the test points."""

    def __init__(self, model: Model):
        self.model, found = model, model.guarantee
        shared = found is not None and found.samples == model.members
        rule = found.rule if found is not None and shared else None
        self.rule = rule if isinstance(rule, ConformalSets) and rule.score == "margin" else None
        self.path: Looks = (
            self.rule.path
            if self.rule
            else conformal.even_path(model.config.steps, model.size(model.members))
        )
        self.parts: list[np.ndarray] = []

    def look(self, readouts: list[Tensor]) -> None:
        """Score what `Model.readouts` gives of some points."""
        self.parts.append(score_readouts(self.model, readouts, self.path))

    def decisions(self, y: np.ndarray, shown: np.ndarray) -> tuple[Decisions, Looked] | None:
        """What the looks decide, and what a report draws of it; `shown` are the points whose sets
        it shows. None where there are too few points for a guarantee.
        """
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
        inside = answer.sets[np.arange(len(judged)), y[judged]]
        found = Decisions(
            coverage=rule.coverage,
            calibrated_on=rule.recordings,
            own=self.rule is not None,
            judged=len(judged),
            steps=self.model.config.steps,
            covered=int(inside.sum()),
            decided=int(answer.decided.sum()),
            right=int(inside[answer.decided].sum()),
            mean_steps=float(answer.steps[answer.decided].mean()) if answer.decided.any() else None,
        )
        targets, coverage = _coverages(scores, y, self.path, seed)
        return found, Looked(
            times=torch.tensor([t for t, _ in self.path]),
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
            kept.append(answer.sets[np.arange(len(others)), y[others]].mean())
        if kept:
            targets.append(target)
            found.append(float(np.mean(kept)))
    return targets, found


def kept(model: Model, test: Split, progress: Progress) -> Kept | None:
    """How the guarantee of a calibrated model holds on the test points."""
    if model.guarantee is None:
        return None
    bar = progress.add_task("sets", total=len(test.x))
    found = answers(model, test.x, lambda points: progress.advance(bar, points))
    rule, y = model.guarantee.rule, test.y.numpy()
    if isinstance(found, PredictionIntervals):
        inside = (found.low <= y[:, 0]) & (y[:, 0] <= found.high)
        widths = metrics.mean_interval(found.high - found.low)
        judged = {"coverage": _share(inside), "width": widths}
    else:
        inside = found.sets[np.arange(len(y)), y]
        judged = {
            "coverage": _share(inside),
            "set_size": metrics.mean_interval(found.sizes),
            "time_steps": metrics.mean_interval(found.steps),
            "decided": _share(found.decided),
        }
        if found.decided.any():
            judged["accuracy_of_decided"] = _share(inside[found.decided])
    return Kept(
        coverage=rule.coverage,
        correction=rule.correction if isinstance(rule, ConformalSets) else "",
        recordings=rule.recordings,
        steps=model.config.steps,
        samples=model.guarantee.samples,
        metrics=judged,
    )


def _share(hits: np.ndarray) -> Interval:
    return Interval(float(hits.mean()), *intervals.of_share(int(hits.sum()), len(hits)))
