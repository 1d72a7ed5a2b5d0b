"""What is said of MAP and the ensemble, and which of them is shipped: by the numbers in
evaluation.json.
"""

from __future__ import annotations

import json
import shutil

import pytest

import bisnn
from bisnn.runs import evaluation, training
from runs import ONE_D, small

TASKS = {"classes": ({}, "nll"), "regression": (ONE_D, "rmse")}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recommendation")
    for name, (sections, _) in TASKS.items():
        evaluation.evaluate(
            training.train(small(sections=sections), folder / name, show=False), show=False
        )
    training.train(small("st"), folder / "st", show=False)
    return folder


def with_values(evaluated, tmp_path, name, ours, theirs):
    """A run whose evaluation found these values and intervals of its main metric for MAP and the
    ensemble.
    """
    folder = shutil.copytree(evaluated / name, tmp_path / name)
    found = json.loads((folder / "evaluation.json").read_text())
    for predictor, values in (("MAP", ours), ("ensemble of 3", theirs)):
        found["metrics"][predictor][TASKS[name][1]] = dict(
            zip(("value", "low", "high"), values, strict=True)
        )
    (folder / "evaluation.json").write_text(json.dumps(found))
    return folder


@pytest.mark.parametrize("name", TASKS)
def test_map_that_is_clearly_worse_is_said_with_the_numbers(bisnn_, evaluated, tmp_path, name):
    folder = with_values(evaluated, tmp_path, name, (0.7, 0.6, 0.8), (0.2, 0.1, 0.3))
    (tmp_path / "x.csv").write_text("1,2\n" if name == "classes" else "0.5\n")
    numbers = f"{TASKS[name][1].upper()} 0.7 (0.6 to 0.8) against 0.2 (0.1 to 0.3)"
    for arguments in (
        ["predict", folder, tmp_path / "x.csv", "--map"],
        ["export", folder, "--as", "map"],
    ):
        code, _, error = bisnn_(*arguments)
        assert code == 0
        assert (
            f"{folder}: MAP is clearly worse than its ensemble of 3 on the test points: {numbers}"
            in error
        )
        assert error.count("\n") == 1
    code, _, error = bisnn_("predict", folder, tmp_path / "x.csv")
    assert (code, error) == (0, "")


def test_map_that_may_be_as_good_is_not_spoken_of(bisnn_, evaluated, tmp_path):
    folder = with_values(evaluated, tmp_path, "classes", (0.3, 0.25, 0.35), (0.2, 0.1, 0.3))
    assert bisnn_("export", folder, "--as", "map")[2] == ""


@pytest.mark.parametrize("to", ["packed", "c"])
@pytest.mark.parametrize("name", TASKS)
def test_the_recommended_predictor_is_shipped(capsys, evaluated, tmp_path, name, to):
    """MAP where its interval lies below the ensemble's; the ensemble where it is better, or the two
    cannot be told apart.
    """
    cases = {
        "worse": ((0.3, 0.2, 0.4), (0.1, 0.05, 0.15), 3),
        "alike": ((0.29, 0.2, 0.4), (0.3, 0.2, 0.4), 3),
        "better": ((0.1, 0.05, 0.15), (0.3, 0.2, 0.4), 1),
    }
    for case, (a, b, members) in cases.items():
        folder = with_values(evaluated, tmp_path / case, name, a, b)
        done = bisnn.export(
            folder, to, tmp_path / case / ("p.safetensors" if to == "packed" else "c")
        )
        assert done.members == members
        error = capsys.readouterr().err
        assert (
            f"its evaluation recommends {'MAP' if members == 1 else 'the ensemble of 3'}" in error
        )
        assert error.count("\n") == 1
        assert (
            bisnn.export(
                folder,
                to,
                tmp_path / case / ("q.safetensors" if to == "packed" else "d"),
                members=2,
            ).members
            == 2
        )
        assert capsys.readouterr().err == "", "a number of members asks for members"


@pytest.mark.parametrize("spoil", ["missing", "of another model", "damaged", "of another shape"])
def test_without_an_evaluation_the_usual_predictor_is_shipped(capsys, evaluated, tmp_path, spoil):
    folder = with_values(evaluated, tmp_path, "classes", (0.1, 0.1, 0.1), (0.9, 0.9, 0.9))
    file = folder / "evaluation.json"
    found = json.loads(file.read_text())
    if spoil == "missing":
        file.unlink()
    else:
        other = {"damaged": file.read_text()[:99], "of another shape": "[1]"}
        file.write_text(other.get(spoil, json.dumps({**found, "model": "x"})))
    assert bisnn.export(folder).members == 3
    assert (
        "has no evaluation of this model, so its usual ensemble of 3 is taken; bisnn evaluate"
        in capsys.readouterr().err
    )


def test_one_set_of_weights_needs_no_advice(capsys, evaluated):
    bisnn.export(evaluated / "st")
    assert capsys.readouterr().err == ""
