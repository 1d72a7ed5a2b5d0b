"""bisnn_experiments.estimators: its tables, its verdicts, and that single folds are kept."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from bisnn_experiments import estimators
from bisnn_experiments.estimator_tables import CHOSEN_ON, JUDGED_ON
from bisnn_experiments.estimators import Fold, Task


def test_tables_are_made_the_same_again_and_none_is_in_both_lists():
    assert len(JUDGED_ON) == 11
    assert not set(JUDGED_ON) & set(CHOSEN_ON)
    for make in (CHOSEN_ON | JUDGED_ON).values():
        one, two = make(), make()
        np.testing.assert_array_equal(one.y, two.y)
        assert pickle.dumps(one.x) == pickle.dumps(two.x)
    sizes = [len(make().y) for make in list(JUDGED_ON.values())[4:8]]
    assert min(sizes) >= 500
    assert max(sizes) <= 20_000


def folds_of(table: str, **scores: tuple[float, float | None, float]) -> list[Fold]:
    return [
        Fold(table=table, model=model, fold=i, score=score, nll=nll, seconds=seconds)
        for model, (score, nll, seconds) in scores.items()
        for i in range(5)
    ]


def test_a_verdict_names_what_was_missed():
    linear, forest = (0.95, 0.1, 0.1), (0.97, 0.5, 1.0)
    judged = {
        "held": (0.951, 0.119, 119.0),
        "missed: score": (0.949, 0.119, 119.0),
        "missed: NLL": (0.99, 0.121, 1.0),
        "missed: score and NLL and time": (0.5, 0.9, 121.0),
    }
    for verdict, bisnn in judged.items():
        folds = folds_of("iris", bisnn=bisnn, linear=linear, forest=forest)
        assert estimators.table_result("iris", folds).verdict == verdict
    folds = folds_of("diabetes", bisnn=(0.41, None, 1), linear=(0.45, None, 0), forest=(0, None, 1))
    assert estimators.table_result("diabetes", folds).verdict == "held"


def test_a_fold_is_not_trained_again(tmp_path, monkeypatch):
    task = Task("iris", 0, "linear")
    found = estimators.fitted_fold(tmp_path, task)
    assert found.score > 0.9
    monkeypatch.setattr(estimators, "other_models", pytest.fail)
    assert estimators.fitted_fold(tmp_path, task) == found
