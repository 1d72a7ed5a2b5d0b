"""What a classifier can be trusted with: decisions with a guarantee, and the report's charts."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

import bisnn
from bisnn import conformal
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.reporting.charts import trust
from bisnn.runs import calibration, decisions, evaluation, training
from bisnn.runs.folder import Damaged, RunFolder
from bisnn.runs.guarantee import scores_of
from bisnn.runs.inputs import load_dataset
from bisnn.runs.results import OtherData, OtherSet, Separation
from bisnn.runs.robustness import CorruptedTest, Quality, Robustness, load_robustness
from runs import ONE_D, small
from test_charts import changed, drawn, read  # noqa: F401

LARGE = {"data": {"name": "two_moons", "train": 40, "test": 100, "validation": 0.5}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("trust")
    made = {
        name: training.train(config, base / name, show=False)
        for name, config in {
            "plain": small("bayes", LARGE),
            "few": small("st"),
            "targets": small("st", ONE_D),
        }.items()
    }
    made["calibrated"] = shutil.copytree(made["plain"], base / "calibrated")
    calibration.calibrate(made["calibrated"], coverage=0.8, looks=4, show=False)
    for run in made.values():
        evaluation.evaluate(run, show=False)
    return made


def test_half_of_the_test_points_give_thresholds_and_the_others_are_judged(runs):
    model = bisnn.load(runs["plain"])
    test = load_dataset(model.config).test
    y, path = test.y.numpy(), conformal.even_path(30, 3)
    scores = scores_of(model, test.x, 3, path)
    order = philox.permutation(200, 0, Purpose.DECISION_SPLIT)
    rule = conformal.calibrate_sets(scores[:, order[:100]], y[order[:100]], path, 0.95)
    found = evaluation.load_evaluation(runs["plain"])
    decided = right = covered = 0
    steps = []
    for n in order[100:]:
        for p in range(len(path)):
            inside = rule.at(p, scores[p, [n]])[0]
            if inside.sum() == 1:
                break
        covered += inside[y[n]]
        if inside.sum() == 1:
            decided, right = decided + 1, right + inside[y[n]]
            steps.append(path[p][0])
    said = found.decisions
    assert (said.judged, said.calibrated_on, said.coverage, said.own) == (100, 100, 0.95, False)
    assert (said.decided, said.right, said.covered) == (decided, right, covered)
    assert said.mean_steps == pytest.approx(np.mean(steps))
    few = found.raster.points.numpy()
    expected = [rule.at(p, s[few]) for p, s in enumerate(scores)]
    assert np.array_equal(found.looked.sets.numpy(), np.stack(expected))
    # 50 points give the bound: enough for 0.98
    assert found.looked.targets.tolist() == pytest.approx([*decisions.TARGETS[:-1]])
    excess = found.looked.coverage - found.looked.targets
    assert float(excess.min()) > -0.03
    assert f"of 100 test points {decided} were decided" in said.sentence()


def test_a_calibrated_run_is_judged_by_its_own_thresholds_on_all_points(runs):
    model = bisnn.load(runs["calibrated"])
    test = load_dataset(model.config).test
    answer = model.predict_set(test.x.numpy())
    found = evaluation.load_evaluation(runs["calibrated"])
    said = found.decisions
    assert (said.own, said.judged, said.calibrated_on, said.coverage) == (True, 200, 40, 0.8)
    assert said.decided == answer.decided.sum()
    assert np.array_equal(found.looked.stops.numpy(), answer.steps)
    assert found.looked.path.tolist() == [[8, 3], [15, 3], [23, 3], [30, 3]]


def test_looks_at_one_time_step_are_one_bar(drawn, runs, tmp_path):  # noqa: F811
    """Members asked one by one: bars count what was answered at a time step, whoever was asked."""
    run = shutil.copytree(runs["plain"], tmp_path / "run")
    path = [(8, 1), (20, 1), (20, 2), (20, 3), (30, 3)]
    calibration.calibrate(run, coverage=0.8, looks=path, show=False)
    evaluation.evaluate(run, show=False)
    _, figures = drawn(trust.parts_of, read(run)[0])
    found = evaluation.load_evaluation(run)
    stops = found.looked.stops[found.looked.decided].tolist()
    bars = figures["Time to decision"].axes[0].patches
    assert all(bar.get_width() > 1 for bar in bars)
    assert [bar.get_height() for bar in bars[:3]] == [stops.count(t) for t in (8, 20, 30)]
    assert "20, 2" in [
        text.get_text() for text in figures["Sets as they shrink"].axes[-1].get_xticklabels()
    ]


def test_intervals_of_a_calibrated_regression_are_in_the_report(runs, tmp_path):
    held_out = {"data": {**ONE_D["data"], "per_unit": 20, "validation": 0.5}}
    run = training.train(small("st", {**ONE_D, **held_out}), tmp_path / "run", show=False)
    calibration.calibrate(run, coverage=0.8, show=False)
    evaluation.evaluate(run, show=False)
    (table,) = trust.parts_of(read(run)[0])
    coverage, width = evaluation.load_evaluation(run).guarantee.metrics.values()
    assert [row[:2] for row in table.rows] == [
        ("coverage", f"{coverage.value:.4g}"),
        ("width", f"{width.value:.4g}"),
    ]
    assert "to hold the truth in 80 % of all cases" in table.caption


def test_larger_sets_are_no_decisions_for_one_class(runs):
    said = evaluation.load_evaluation(runs["plain"]).decisions.model_copy(update={"most": 3})
    assert "got a set of at most 3 classes" in said.sentence()
    assert f"{said.right} of these sets hold the right one" in said.sentence()


def test_too_few_points_and_targets_have_no_decisions(drawn, runs):  # noqa: F811
    assert evaluation.load_evaluation(runs["few"]).decisions is None
    assert evaluation.load_evaluation(runs["targets"]).decisions is None
    titled, _ = drawn(trust.parts_of, read(runs["few"])[0])
    assert list(titled) == ["Risk and coverage"]
    assert trust.parts_of(read(runs["targets"])[0]) == [
        "No prediction intervals: this run is not calibrated."
    ]


def test_charts_have_the_numbers(drawn, runs):  # noqa: F811
    (run,) = read(runs["plain"])
    _, figures = drawn(trust.parts_of, run)
    said = run.judged.decisions
    bars = figures["Time to decision"].axes[0].patches
    assert sum(bar.get_height() for bar in bars) == said.judged
    *_, mark = figures["Coverage"].axes[0].lines
    assert mark.get_xydata().tolist() == [[said.coverage, said.covered / said.judged]]
    risk = figures["Risk and coverage"].axes[0].lines[-1].get_ydata()
    mean = list(run.judged.predictors.values())[-1].mean
    assert risk[-1] == pytest.approx(float((mean.argmax(-1) != run.judged.y).double().mean()))
    image = figures["Sets as they shrink"].axes[0].images[0].get_array()
    assert np.array_equal(np.asarray(image)[..., 3] > 0, run.judged.looked.sets[:, 0].T.numpy())


def quality(accuracy):
    return {"MAP": Quality(accuracy=accuracy, nll=1.0, ece=0.1)}


def test_corruptions_are_small_multiples(drawn, runs):  # noqa: F811
    folder = RunFolder(runs["plain"])
    rows = [
        CorruptedTest(kind=k, strength=s, amount=s, unit="", predictors=quality(a - s / 10))
        for k, a in (("lost_events", 0.9), ("hot_pixels", 0.8))
        for s in range(1, 6)
    ]
    found = Robustness(
        model=evaluation.load_evaluation(runs["plain"]).model,
        recordings="",
        points=10,
        seed=0,
        clean=quality(0.95),
        corrupted=rows,
        mean=quality(0.6),
    )
    folder.corruptions_file.write_text(found.model_dump_json())
    assert load_robustness(folder, found.model) == found
    assert load_robustness(folder, "another model") is None
    _, figures = drawn(trust.parts_of, read(runs["plain"])[0])
    lines = [ax.lines[0].get_ydata().tolist() for ax in figures["A worse camera"].axes]
    assert lines[0] == pytest.approx([0.95, 0.8, 0.7, 0.6, 0.5, 0.4])
    assert lines[1] == pytest.approx([0.95, 0.7, 0.6, 0.5, 0.4, 0.3])
    for quality_, title in (("nll", "NLL"), ("ece", "calibration")):
        ax = figures[f"A worse camera: {title}"].axes[1]
        expected = [found.clean, *(row.predictors for row in rows[5:])]
        expected = [getattr(of["MAP"], quality_) for of in expected]
        assert ax.lines[0].get_ydata().tolist() == pytest.approx(expected)
        assert ax.get_ylim()[1] >= max(expected)
    assert load_robustness(folder, found.model, temperature=2.0) is None
    folder.corruptions_file.write_text("{}")
    with pytest.raises(Damaged, match=r"corruptions\.json: is damaged .* --corruptions"):
        load_robustness(folder, found.model)
    folder.corruptions_file.unlink()


def test_other_data_are_a_table_and_their_entropies(drawn, runs):  # noqa: F811
    row = {"entropy": Separation(auroc=0.9, aupr=0.8, fpr95=0.3)}
    names = list(read(runs["plain"])[0].judged.predictors)
    sets = [
        OtherSet(name=n, control=c, recordings=5, scores=dict.fromkeys(names, row))
        for n, c in (("rain", False), ("own", True))
    ]
    entropy = {n: dict.fromkeys(names, torch.full((5,), 0.6)) for n in ("rain", "own")}
    run = changed(
        runs["plain"], ood=OtherData(folder="x", sets=sets).model_dump(), other_entropy=entropy
    )
    parts, figures = drawn(trust.parts_of, run)
    table = parts["Other data"]
    assert table.rows[0] == ("rain", names[0], "entropy", "0.900", "0.800", "0.300")
    assert table.rows[2][0] == "own (control)"
    assert "how it was recorded" in table.caption
    (title,) = (title for title in figures if title.startswith("Entropy of other data"))
    assert len(figures[title].axes[0].patches) == 3


def test_a_report_ends_with_the_decisions_of_the_first_run_that_has_some(runs, tmp_path, bisnn_):
    code, out, error = bisnn_(
        "report", runs["few"], runs["plain"], "--out", tmp_path / "r.html", "-q"
    )
    assert code == 0, error
    said = evaluation.load_evaluation(runs["plain"]).decisions
    last = " ".join(out.split())
    assert last.endswith(f"plain: {said.sentence()}")
    code, out, _ = bisnn_("report", runs["targets"], "-q")
    assert out.strip().endswith("report.html")
