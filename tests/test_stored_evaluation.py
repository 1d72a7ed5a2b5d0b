"""What an evaluation stores for its report: baselines, and the examples that are drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn import dummy
from sklearn import metrics as independent

import bisnn
from bisnn.runs import evaluation
from bisnn.runs.evaluation import load_evaluation
from bisnn.runs.inputs import load_dataset
from reports import tables


def test_baseline_is_that_of_scikit_learn(small_runs, tmp_path):
    """Which knows such predictors, too; and it is no candidate for the best."""
    for name, label in {
        "rare": "majority class",
        "moons": "majority class",
        "line": "training mean",
    }.items():
        data = load_dataset(bisnn.load(small_runs[name]).config)
        verdict = json.loads((small_runs[name] / "evaluation.json").read_text())["baseline"]
        assert list(verdict) == [label]
        values = {metric: interval["value"] for metric, interval in verdict[label].items()}
        y, zeros = data.test.y.numpy(), np.zeros((len(data.test.y), 1))
        if name == "line":
            predicted = (
                dummy.DummyRegressor()
                .fit(np.zeros((len(data.train.y), 1)), data.train.y.numpy())
                .predict(zeros)
            )
            expected = {"rmse": independent.root_mean_squared_error(y, predicted)}
            expected["mae"] = independent.mean_absolute_error(y, predicted)
        else:
            guess = dummy.DummyClassifier(strategy="prior").fit(
                np.zeros((len(data.train.y), 1)), data.train.y.numpy()
            )
            labels = guess.predict(zeros)
            expected = {
                "accuracy": independent.accuracy_score(y, labels),
                "nll": independent.log_loss(y, guess.predict_proba(zeros)),
            }
            expected["balanced_accuracy"] = independent.balanced_accuracy_score(y, labels)
            values = {metric: values[metric] for metric in expected}
        assert values == pytest.approx(expected, rel=1e-5)
        shown = tables(tmp_path, small_runs[name])[
            "Verdict on "
            f"{'rare.csv' if name == 'rare' else 'two moons' if name == 'moons' else 'one d'}"
        ]
        assert shown[-1][0] == f"baseline: {label}"
        assert "best" not in "".join(shown[-1])


def test_only_two_features_have_a_plane(small_runs):
    assert load_evaluation(small_runs["rare"]).plane is None
    assert load_evaluation(small_runs["line"]).plane is None


def test_wrong_examples_come_first():
    y = torch.arange(20) % 3
    probs = torch.full((20, 3), 0.1)
    probs[torch.arange(20), y] = 0.8
    for point, confidence in {4: 0.6, 9: 0.9, 15: 0.7}.items():
        probs[point] = (1 - confidence) / 2
        probs[point, (y[point] + 1) % 3] = confidence
    result = bisnn.Classification(probs, probs[None], *torch.zeros(3, 20))
    chosen = evaluation._examples(result, y).tolist()
    assert chosen[:3] == [9, 15, 4], "the surest mistake first"
    assert len(set(chosen)) == evaluation.EXAMPLES
    assert not {4, 9, 15} & set(chosen[3:])
    wrong = bisnn.Classification(probs.roll(1, 1), probs[None], *torch.zeros(3, 20))
    assert len(evaluation._examples(wrong, y)) == evaluation.WRONG, "none is right"


def test_worst_predictions_come_first():
    y = torch.arange(30.0)[:, None]
    mean = y.clone()
    mean[[3, 21, 8]] += torch.tensor([[5.0], [-9.0], [7.0]])
    chosen = evaluation._examples(
        bisnn.Regression(mean, mean[None], torch.zeros_like(mean)), y
    ).tolist()
    assert chosen[:3] == [21, 8, 3]
    assert len(set(chosen)) == len(chosen) == evaluation.EXAMPLES
