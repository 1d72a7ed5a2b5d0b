"""Prediction sets on packed bits: the model's own, without the work that a decision saves."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import bisnn
import bisnn.packed
from bisnn.packed import Engine
from bisnn.runs import exporting, training
from bisnn.runs.inputs import spikes
from runs import ONE_D, small
from test_guarantee import HALF, points


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return training.train(
        small("bayes", HALF), tmp_path_factory.mktemp("packed") / "run", show=False
    )


def engine_of(model, predictor="members"):
    packed = exporting.describe_model(model, predictor)
    return Engine(replace(packed, sets=model.guarantee.rule), threads=1)


@pytest.mark.parametrize(
    "path", [30, [(10, 1), (10, 3), (25, 3)], [(5, 2), (30, 2), (30, 3)], [(5, 1), (20, 2)]]
)
def test_the_engine_has_the_same_sets_and_stops(run, path):
    x, y = points(300)
    model = bisnn.load(run).calibrate(x[:100], y[:100], looks=path)
    engine = engine_of(model)
    ours, theirs = engine.predict_feature_sets(x[100:]), model.predict_set(x[100:])
    for name in ("sets", "sizes", "steps", "members", "decided"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert len(np.unique(theirs.sizes)) == 2
    steps, members = model.guarantee.rule.path[-1]
    assert ours.all_passes == 200 * members * steps
    # at the last look, (t, k), all of k members have been run for t time steps, and no further
    assert ours.passes == (ours.steps * ours.members).sum() <= ours.all_passes
    engine._points = 7  # some at a time
    again = engine.predict_feature_sets(x[100:])
    assert np.array_equal(again.sets, ours.sets)
    assert again.passes == ours.passes


def test_the_engine_stops_computing(run, monkeypatch):
    """Time steps of recordings that are decided never reach the loops."""
    x, y = points(200)
    model = bisnn.load(run).calibrate(x[:100], y[:100], looks=10)
    engine, seen, run = engine_of(model), [], Engine.run
    monkeypatch.setattr(
        Engine, "run", lambda self, s, *rest: seen.append(s.shape[:2]) or run(self, s, *rest)
    )
    found = engine.predict_feature_sets(x[100:])
    assert sum(t * b for t, b in seen) == found.steps.sum() < 30 * 100


def test_several_encodings_of_a_point(tmp_path):
    config = small("bayes", HALF, predict={"samples": 2, "encodings": 3})
    model = bisnn.load(training.train(config, tmp_path / "run", show=False))
    x, y = points(150)
    model = model.calibrate(x[:100], y[:100], looks=5)
    found = engine_of(model).predict_feature_sets(x[100:])
    assert np.array_equal(found.sets, model.predict_set(x[100:]).sets)
    assert np.array_equal(found.steps, model.predict_set(x[100:]).steps)


def test_a_packed_file_carries_its_sets(run, tmp_path, capsys):
    run = shutil.copytree(run, tmp_path / "run")
    bisnn.calibrate(run, coverage=0.8, show=False)
    model, (x, _) = bisnn.load(run), points(50)
    made = bisnn.export(run, predictor="members")
    assert made.sets_call == "predict_feature_sets(x)"
    engine = bisnn.packed.load(made.path)
    assert engine.network.sets == model.guarantee.rule
    found = engine.predict_feature_sets(x)
    assert np.array_equal(found.sets, model.predict_set(x).sets)
    recordings = spikes(model.config, torch.from_numpy(x).float()).numpy()
    assert np.array_equal(engine.predict_sets(recordings).sets, found.sets)
    with pytest.raises(ValueError, match="x: must have 30 time steps or more"):
        engine.predict_sets(recordings[:29])
    with pytest.raises(ValueError, match="needs a calibration of these members"):
        bisnn.packed.load(made.path, members=2).predict_feature_sets(x)
    capsys.readouterr()
    for options in ({"predictor": "map"}, {"predictor": "posterior"}, {"members": 2}):
        made = bisnn.export(run, out=tmp_path / "other.safetensors", **options)
        assert "so the prediction sets are left out" in capsys.readouterr().err
        assert bisnn.packed.read(made.path).sets is None
    fixed = bisnn.export(
        run, out=tmp_path / "fixed.safetensors", predictor="members", neuron="fixed"
    )
    assert bisnn.packed.read(fixed.path).sets is None


def test_sets_in_a_file_are_checked(run, tmp_path):
    x, y = points(50)
    model = bisnn.load(run).calibrate(x, y)
    packed = exporting.describe_model(model, "members")
    rule = model.guarantee.rule
    for bad in (
        replace(rule, path=((1, 4),), thresholds=((0, 0),)),  # of other members
        replace(rule, score="surprisal"),
        replace(rule, thresholds=((0,),) * len(rule.path)),
        replace(rule, coverage=2.0),
        replace(rule, path=((1 << 40, 3),), thresholds=((0, 0),)),
    ):
        bisnn.packed.write(replace(packed, sets=bad), tmp_path / "bad")
        with pytest.raises(bisnn.packed.BadFile):
            bisnn.packed.read(tmp_path / "bad")


@pytest.mark.parametrize("scaled", [False, True])
def test_intervals_go_along(tmp_path, scaled, capsys):
    """Those of the model, from the file; a file of other members has none."""
    held_out = {"data": {**ONE_D["data"], "per_unit": 20, "validation": 0.5}}
    run = training.train(small("bayes", {**ONE_D, **held_out}), tmp_path / "run", show=False)
    bisnn.calibrate(run, coverage=0.8, scaled=scaled, show=False)
    x = np.linspace(0, 1, 20)[:, None]
    low, high = bisnn.load(run).predict_set(x)
    done = bisnn.export(run, "packed", tmp_path / "p.safetensors", members=3)
    assert done.sets_call == "predict_feature_intervals(x)"
    engine = bisnn.packed.load(done.path)
    found = engine.predict_feature_intervals(x)
    np.testing.assert_allclose(found.low, low, atol=1e-5)
    np.testing.assert_allclose(found.high, high, atol=1e-5)
    trains = spikes(bisnn.load(run).config, torch.from_numpy(x).float()).numpy()
    np.testing.assert_allclose(engine.predict_intervals(trains).low, low, atol=1e-5)
    with pytest.raises(ValueError, match="predict_sets: needs a calibration"):
        engine.predict_feature_sets(x)
    other = bisnn.export(run, "packed", tmp_path / "q.safetensors", members=2)
    assert "so the prediction intervals are left out" in capsys.readouterr().err
    bisnn.export(run, "c", tmp_path / "c", members=3)
    assert "--to c has no place for the run's calibrated intervals" in capsys.readouterr().err
    with pytest.raises(ValueError, match="predict_intervals: needs a calibration"):
        bisnn.packed.load(other.path).predict_feature_intervals(x)
