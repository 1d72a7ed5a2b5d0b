"""Calibrated models and runs: sets against a loop over the network's own readouts, the file, which
data are taken, and the command line.
"""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import bisnn
from bisnn import conformal, metrics, weights
from bisnn.data import events, toy
from bisnn.data.loading import fingerprints
from bisnn.realisation import hard
from bisnn.runs import calibration, evaluation, guarantee, training
from bisnn.runs.folder import Damaged, load_tree, save_tree
from bisnn.runs.inputs import load_dataset, spikes
from bisnn_experiments import prediction_sets
from bisnn_experiments.prediction_sets import Scored
from runs import ONE_D, SMALL, made_up, run_on_recordings, small

HALF = {"data": {"name": "two_moons", "train": 60, "test": 40, "validation": 0.5}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("calibrated")
    held_out = {"data": {**ONE_D["data"], "per_unit": 20, "validation": 0.5}}
    configs = {
        "bayes": small("bayes", HALF),
        "st": small("st", HALF),
        "full": small("full, Adam", HALF),
        "one_d": small("bayes", {**ONE_D, **held_out}),
        "none held out": small("st"),
    }
    made = {
        name: training.train(config, base / name, show=False) for name, config in configs.items()
    }
    for name in ("bayes", "one_d"):
        calibration.calibrate(made[name], coverage=0.8, show=False)
    return made


def points(n, seed=0):
    """Two moons of another seed: raw features are the points themselves."""
    _, (x, y) = toy.two_moons(1, 200, noise=0.1, seed=seed + 100)
    order = np.random.default_rng(seed).permutation(400)[:n]
    return x.numpy()[order], y.numpy()[order]


def slow_sets(model, x, rule, members):
    """Sets and time steps by the definition, one point at a time."""
    s = spikes(model.config, torch.from_numpy(x).float()).float()
    net, readout = model.net, model.net.readouts[-1]
    V = readout.V.numpy()
    found = []
    for n in range(len(x)):
        sums = np.zeros((model.config.steps, len(V)))
        for member in members:
            out = net(s[:, n : n + 1], weights=member)
            sums += (out.spikes[-1][:, 0].flatten(1).numpy() @ V.T).cumsum(0)
        for p, (t, _) in enumerate(rule.path):
            inside = [sums[t - 1].max() - v <= rule.thresholds[p][0] for v in sums[t - 1]]
            if sum(inside) <= rule.most:
                break
        found.append((inside, t))
    return np.array([inside for inside, _ in found]), np.array([t for _, t in found])


def test_sets_are_those_of_the_networks_readouts(runs):
    model = bisnn.load(runs["bayes"])
    rule = model.guarantee.rule
    assert (model.guarantee.samples, rule.coverage, rule.recordings) == (3, 0.8, 60)
    x, _ = points(30)
    answer = model.predict_set(x)
    latents = [layer.weight for layer in model.net.layers]
    members = [[hard(w.float()) for w in m] for m in weights.draw_members(latents, 3, 0)]
    sets, steps = slow_sets(model, x, rule, members)
    assert np.array_equal(answer.sets, sets)
    assert np.array_equal(answer.steps, steps)
    assert len(set(steps)) > 1
    # of a subset, in another order
    assert np.array_equal(model.predict_set(x[[7, 3]]).sets, sets[[7, 3]])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["bayes", "st"])
def test_sets_are_the_same_on_a_gpu(runs, name):
    x, y = points(200)
    model = bisnn.load(runs[name]).calibrate(x[:100], y[:100])
    expected = model.predict_set(x[100:])
    model.net.to("cuda")
    found = model.predict_set(x[100:])
    assert np.array_equal(found.sets, expected.sets)
    assert np.array_equal(found.steps, expected.steps)


@pytest.mark.parametrize("name", ["st", "full"])
def test_models_without_a_posterior(runs, name):
    x, y = points(200)
    model = bisnn.load(runs[name])
    with pytest.raises(ValueError, match=r"is not calibrated; use model\.calibrate"):
        model.predict_set(x)
    ready = model.calibrate(x[:100], y[:100], 0.8, looks=5)
    assert model.guarantee is None
    assert ready.guarantee.samples is None
    assert ready.guarantee.rule.path == ((6, 1), (12, 1), (18, 1), (24, 1), (30, 1))
    answer = ready.predict_set(x[100:])
    assert answer.sets[np.arange(100), y[100:]].mean() > 0.65


def test_members_may_be_added_one_by_one(runs):
    x, y = points(200)
    path = [(10, 1), (30, 1), (30, 2), (30, 3)]
    model = bisnn.load(runs["bayes"]).calibrate(x[:100], y[:100], 0.9, looks=path)
    answer = model.predict_set(x[100:])
    for n in range(100):
        assert (answer.steps[n], answer.members[n]) in path
    last = conformal.margins_of(_sums(model, x[100:], 30, 3))
    late = answer.members == 3
    assert late.any()
    assert np.array_equal(answer.sets[late], (last <= model.guarantee.rule.thresholds[-1][0])[late])


def test_members_one_by_one_from_the_command_line(runs, tmp_path, bisnn_):
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    code, _, error = bisnn_("calibrate", run, "--looks", "3", "--one-by-one", "-q")
    assert code == 0, error
    path = ((10, 1), (20, 1), (30, 1), (30, 2), (30, 3))
    assert bisnn.load(run).guarantee.rule.path == path
    verdict = evaluation.evaluate(run, show=False)
    asked = verdict.energy.rows["ensemble of 3, stopped early"].neuron_updates
    one = verdict.energy.rows["MAP"].neuron_updates
    assert asked < 3 * one
    code, _, error = bisnn_("calibrate", run, "--map", "--one-by-one", "-q")
    assert code == 1
    assert "one_by_one: is of several members" in error
    with pytest.raises(ValueError, match="one_by_one: says which looks there are"):
        bisnn.load(run).calibrate(*points(60), looks=[(10, 1)], one_by_one=True)


def _sums(model, x, t, k):
    s = spikes(model.config, torch.from_numpy(x).float())
    y = bisnn.prediction.logits(model.net, s, k, seed=model.config.seed)
    return (y / model.net.readouts[-1].scale).round()[:, :t].sum((0, 1)).long().numpy()


def test_surprisals_decide_too(runs):
    x, y = points(200)
    model = bisnn.load(runs["bayes"]).calibrate(x[:100], y[:100], score="surprisal", looks=4)
    answer = model.predict_set(x[100:])
    assert answer.sets[np.arange(100), y[100:]].mean() > 0.75
    last = model.calibrate(x[:100], y[:100], score="surprisal", looks=[(30, 3)])
    expected = conformal.surprisals(
        bisnn.prediction.logits(
            model.net, spikes(model.config, torch.from_numpy(x[100:]).float()), 3
        ),
        ((30, 3),),
    )
    assert np.array_equal(last.predict_set(x[100:]).sets, last.guarantee.rule.stop(expected).sets)


def test_intervals_of_a_regression(runs):
    model = bisnn.load(runs["one_d"])
    assert model.guarantee.rule.recordings == 30
    x = np.linspace(0, 1, 20)[:, None]
    low, high = model.predict_set(x)
    mean = model.predict(x).mean[:, 0].double().numpy()
    assert np.allclose((low + high) / 2, mean)
    assert np.allclose(high - low, 2 * model.guarantee.rule.width)
    y = mean + np.linspace(-1, 1, 20)
    assert model.calibrate(x, y, 0.5).guarantee.rule.width == sorted(abs(y - mean))[10]
    scaled = model.calibrate(x, y, 0.5, scaled=True)
    low, high = scaled.predict_set(x)
    std = model.predict(x).std[:, 0].double().numpy()
    assert np.allclose(high - low, 2 * scaled.guarantee.rule.width * std)
    with pytest.raises(ValueError, match="most: is of sets of classes"):
        model.calibrate(x, y, 0.5, most=2)
    with pytest.raises(ValueError, match="scaled: is of intervals"):
        bisnn.load(runs["bayes"]).calibrate(*points(50), scaled=True)


def test_recordings(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    run, root = run_on_recordings(tmp_path)
    for digit in (3, 7):
        (tmp_path / "more" / str(digit)).mkdir(parents=True)
        for i in range(10):
            file = tmp_path / "more" / str(digit) / f"{i}.bin"
            events.write_nmnist(file, made_up(2000, 17 if digit == 3 else 34, 1000 * digit + i))
    found = bisnn.calibrate(run, tmp_path / "more", 0.8, looks=4, show=False)
    assert found.rule.path == ((3, 3), (6, 3), (9, 3), (12, 3))
    files = sorted((tmp_path / "more").rglob("*.bin"))
    model = bisnn.load(run)
    assert model.guarantee == found
    answer = model.predict_set(files)
    window = model.config.data.window()
    trains = np.stack([window.frames(events.read_events(file)) for file in files])
    assert np.array_equal(model.predict_set(trains).sets, answer.sets)
    with pytest.raises(ValueError, match="must not have been trained on; 6 of 6 were"):
        bisnn.calibrate(run, root / "Train", 0.5, show=False)
    (tmp_path / "more" / "3").rename(tmp_path / "more" / "4")
    with pytest.raises(ValueError, match="folder named after its class, one of 3, 7; got '4'"):
        bisnn.calibrate(run, tmp_path / "more", 0.5, show=False)


def test_the_validation_share_is_what_a_run_calibrates_on(runs):
    model = bisnn.load(runs["bayes"])
    held_out = load_dataset(model.config).validation
    again = model.calibrate(held_out.x.numpy(), held_out.y.numpy(), 0.8)
    assert again.guarantee == model.guarantee
    with pytest.raises(ValueError, match=r"no validation share .* data.validation = 0.2"):
        bisnn.calibrate(runs["none held out"], show=False)


def test_files_of_points(runs, tmp_path, capsys):
    x, y = points(40)
    np.savetxt(tmp_path / "more.csv", np.column_stack([x, y]), delimiter=",")
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    found = bisnn.calibrate(run, tmp_path / "more.csv", 0.8, show=False)
    assert found == bisnn.load(run).calibrate(x, y, 0.8).guarantee
    train = load_dataset(bisnn.load(run).config).train
    np.savez(tmp_path / "train.npz", x=train.x.numpy().astype(float), y=train.y.numpy())
    with pytest.raises(ValueError, match="must not have been trained on; 60 of 60 were"):
        bisnn.calibrate(run, tmp_path / "train.npz", show=False)
    test = load_dataset(bisnn.load(run).config).test
    np.savez(tmp_path / "test.npz", x=test.x.numpy().astype(float), y=test.y.numpy())
    bisnn.calibrate(run, tmp_path / "test.npz", show=False)
    assert "80 of 80 are test points of the run" in capsys.readouterr().err
    np.savetxt(tmp_path / "other.csv", np.column_stack([x, y + 1]), delimiter=",")
    with pytest.raises(ValueError, match="class '2' does not occur"):
        bisnn.calibrate(run, tmp_path / "other.csv", show=False)
    np.savetxt(tmp_path / "few.csv", np.column_stack([x, y])[:8], delimiter=",")
    with pytest.raises(
        ValueError, match=r"needs 17 calibration recordings or more, half .*; got 8"
    ):
        bisnn.calibrate(run, tmp_path / "few.csv", show=False)


def test_equal_rows_of_a_table_are_no_training_data(runs, tmp_path, capsys):
    """A few may be alike by chance; more are not."""
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    train = load_dataset(bisnn.load(run).config).train
    x, y = points(40)
    for count, refused in ((4, False), (5, True)):
        some = np.concatenate([x[count:], train.x.numpy()[:count]]).astype(float)
        np.savez(tmp_path / "x.npz", x=some, y=y)
        if refused:
            with pytest.raises(ValueError, match="must not have been trained on; 5 of 40 were"):
                bisnn.calibrate(run, tmp_path / "x.npz", 0.8, show=False)
        else:
            bisnn.calibrate(run, tmp_path / "x.npz", 0.8, show=False)
            assert "4 of 40 are equal to training points" in capsys.readouterr().err


def test_python_recognises_training_points_too(runs, tmp_path):
    """Of a loaded model, and of one that was saved again; other targets at the same place are no
    training points.
    """
    model = bisnn.load(runs["bayes"])
    train = load_dataset(model.config).train
    with pytest.raises(ValueError, match="x: must not have been trained on; 60 of 60 were"):
        model.calibrate(train.x.numpy(), train.y.numpy())
    model.save(tmp_path / "again.safetensors")
    with pytest.raises(ValueError, match="x: must not have been trained on; 20 of 20 were"):
        bisnn.load(tmp_path / "again.safetensors").calibrate(
            train.x.numpy()[5:25], train.y.numpy()[5:25], 0.8
        )
    with pytest.raises(ValueError, match=r"labels: .*, one for each of 60 recordings"):
        model.calibrate(train.x.numpy(), train.y.numpy()[1:])
    with pytest.raises(ValueError, match="y: must be an array of numbers"):
        model.calibrate(train.x.numpy(), [[1], [0, 1]])
    targets = bisnn.load(runs["one_d"])
    data = load_dataset(targets.config)
    x, y = data.train.x * (data.high - data.low) + data.low, data.train.y
    assert np.array_equal(targets.inputs(x.numpy()), data.train.x)
    with pytest.raises(ValueError, match="x: must not have been trained on"):
        targets.calibrate(x.numpy(), y.numpy(), 0.8)
    targets.calibrate(x.numpy(), y.numpy() + 0.01, 0.8)
    for wrong in (y.numpy()[1:], ["a"] * len(x), np.full(len(x), np.nan)):
        with pytest.raises(ValueError, match="y: must be"):
            targets.calibrate(x.numpy(), wrong, 0.8)


def test_a_model_that_does_not_know_its_training_points_says_so(runs, tmp_path, capsys):
    """As files of bisnn 0.2.0 do not; a run still knows its data."""
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    model = replace(bisnn.load(run), trained_on=torch.empty(0, dtype=torch.int64), guarantee=None)
    model.save(run / "model.safetensors")
    tree = load_tree(run / "model.safetensors", "model")
    del tree["trained_on"]
    save_tree(run / "model.safetensors", tree, "model")
    (run / "calibration.json").unlink()
    train = load_dataset(model.config).train
    old = bisnn.load(run)
    old.calibrate(train.x.numpy(), train.y.numpy(), 0.8)
    assert "does not know what it was trained on" in capsys.readouterr().err
    np.savez(tmp_path / "train.npz", x=train.x.numpy().astype(float), y=train.y.numpy())
    with pytest.raises(ValueError, match="must not have been trained on; 60 of 60 were"):
        bisnn.calibrate(run, tmp_path / "train.npz", show=False)


def test_equal_rows_are_common_where_training_rows_are_equal(runs):
    """A table of two kinds of rows: new ones are equal to training rows, and are no such."""
    model = bisnn.load(runs["bayes"])
    x, y = np.tile([[0.2, 0.3], [0.7, 0.6]], (20, 1)), np.tile([0, 1], 20)
    seen = fingerprints(model.inputs(x), y, classes=True)
    replace(model, trained_on=seen).calibrate(x, y, 0.8)
    with pytest.raises(ValueError, match="40 of 40 were"):
        replace(model, trained_on=seen.unique()).calibrate(x, y, 0.8)


def test_a_model_is_saved_with_its_calibration(runs, tmp_path):
    model = bisnn.load(runs["bayes"]).calibrate(*points(60), 0.7)
    model.save(str(tmp_path / "model.safetensors"))
    assert bisnn.load(tmp_path / "model.safetensors").guarantee == model.guarantee


def test_a_report_says_that_a_run_was_calibrated_anew(runs, tmp_path, capsys):
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    bisnn.evaluate(run, show=False)
    bisnn.report([run], show=False)
    assert "calibration has changed" not in capsys.readouterr().err
    bisnn.calibrate(run, coverage=0.7, show=False)
    bisnn.report([run], show=False)
    assert "its calibration has changed since it was evaluated" in capsys.readouterr().err


def test_a_validation_share_that_chose_the_epoch(tmp_path, capsys):
    config = small("st", HALF, train={**SMALL["train"], "keep": "best"})
    run = training.train(config, tmp_path / "run", show=False)
    bisnn.calibrate(run, coverage=0.8, show=False)
    assert "also chose the epoch that was kept" in capsys.readouterr().err


def test_the_study_of_splits():
    """Scores that follow the promise: rows that can be, with the coverage that they should have."""
    rng, n = np.random.default_rng(0), 300
    labels = rng.integers(0, 3, n)
    counts = rng.normal(0, 30, (1, 4, n, 3)) + 25 * np.eye(3)[labels]
    path = tuple((t, 1) for t in range(1, 5))
    scores = conformal.margins(counts.astype(int), path)
    run = Scored({kind: scores for kind in conformal.SCORES}, labels, path)
    rows = list(prediction_sets.summaries("two_moons", "st", [run], 40, 100))
    found = {(row.coverage_asked, row.correction, row.looks) for row in rows}
    both = {(t, c, 4) for t in (0.9, 0.95) for c in conformal.CORRECTIONS}
    assert found == both | {(0.99, "bonferroni", 1)}  # 100 recordings are enough for one look
    for row in rows:
        assert row.coverage > row.coverage_asked - 3 * row.coverage_error
        assert (row.data, row.method, row.steps) == ("two moons", "st", 4)
    joint, bonferroni = (
        next(r for r in rows if (r.coverage_asked, r.correction) == (0.9, c))
        for c in conformal.CORRECTIONS
    )
    assert joint.time_steps < bonferroni.time_steps
    compared = list(prediction_sets.comparisons(rows))
    assert [found.coverage_asked for found in compared] == [0.9, 0.95]
    ratio = joint.time_steps / bonferroni.time_steps
    assert (compared[0].joint_over_bonferroni, compared[0].margin_over_surprisal) == (ratio, 1)


def test_a_calibration_of_another_model_or_a_damaged_one_is_not_used(runs, tmp_path, capsys):
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    file, whole = run / "calibration.json", (run / "calibration.json").read_text()
    shutil.copy(runs["st"] / "model.safetensors", run / "model.safetensors")
    with pytest.raises(guarantee.OtherModel, match=r"is of another model than model\.safetensors"):
        guarantee.read(run / "model.safetensors", 2)
    model = bisnn.load(run)
    assert "is of another model" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is not calibrated"):
        model.predict_set(points(3)[0])
    shutil.copy(runs["bayes"] / "model.safetensors", run / "model.safetensors")
    assert bisnn.load(run).guarantee is not None
    body = json.loads(whole)
    changed = {**body, "sets": {**body["sets"], "most": 2}}
    # A file that was written so on purpose, with its digest
    forged = {**body, "answers": {**body["answers"], "correct": [True]}}
    del forged["digest"]
    forged["digest"] = guarantee._digest(forged)
    texts = (whole[:100], whole.replace("0.8", "0.7"), "[]", "{}", "\xff")
    for text in (*texts, json.dumps(changed), json.dumps(forged)):
        file.write_text(text)
        with pytest.raises(Damaged, match="is damaged or no calibration"):
            guarantee.read(run / "model.safetensors", 2)
        assert bisnn.load(run).guarantee is None
        assert "it is not used" in capsys.readouterr().err


def test_the_verdict_says_how_the_guarantee_held(runs):
    verdict = evaluation.evaluate(runs["bayes"], show=False)
    test = load_dataset(bisnn.load(runs["bayes"]).config).test
    x, y = test.x.numpy(), test.y.numpy()
    answer = bisnn.load(runs["bayes"]).predict_set(x)
    inside = answer.hold(y)
    found = verdict.guarantee
    values = {name: interval.value for name, interval in found.metrics.items()}
    assert values == {
        "coverage": inside.mean(),
        "set_size": answer.sizes.mean(),
        "time_steps": answer.steps.mean(),
        "decided": (answer.sizes == 1).mean(),
        "accuracy_of_decided": inside[answer.sizes == 1].mean(),
    }
    assert all(i.low <= i.value <= i.high for i in found.metrics.values())
    assert (found.coverage, found.steps, found.predictor) == (0.8, 30, "ensemble of 3")
    assert not found.doubt()
    assert evaluation.load_evaluation(runs["bayes"]).guarantee == found
    rows = verdict.energy.rows
    some = np.rint(np.linspace(0, len(y) - 1, 16)).astype(int)
    saved = (
        rows["ensemble of 3, stopped early"].neuron_updates / rows["ensemble of 3"].neuron_updates
    )
    assert saved == pytest.approx(answer.steps[some].mean() / 30)
    assert "MAP, stopped early" not in rows
    assert evaluation.evaluate(runs["st"], show=False).guarantee is None
    names = set(evaluation.evaluate(runs["one_d"], show=False).guarantee.metrics)
    assert names == {"coverage", "width"}


def test_sets_of_any_calibrated_predictor_are_judged(runs, tmp_path):
    """Of the most probable weights, and of more members than the usual ones."""
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    for samples, name in ((None, "MAP"), (4, "ensemble of 4")):
        bisnn.calibrate(run, coverage=0.8, samples=samples, show=False)
        verdict = evaluation.evaluate(run, show=False)
        assert list(verdict.metrics)[-1] == "ensemble of 3"
        assert verdict.guarantee.predictor == name
        test = load_dataset(bisnn.load(run).config).test
        answer = bisnn.load(run).predict_set(test.x.numpy())
        assert verdict.guarantee.metrics["coverage"].value == answer.hold(test.y.numpy()).mean()
        assert verdict.decisions.own
        assert verdict.decisions.covered == answer.hold(test.y.numpy()).sum()


def test_a_calibration_on_the_test_points_is_no_test(runs, tmp_path, bisnn_):
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    test = load_dataset(bisnn.load(run).config).test
    np.savez(tmp_path / "test.npz", x=test.x.numpy().astype(float), y=test.y.numpy())
    bisnn.calibrate(run, tmp_path / "test.npz", 0.8, show=False)
    said = "80 of the 80 calibration points are test points: this is no test of the guarantee"
    code, out, error = bisnn_("evaluate", run, "-q")
    assert code == 0, error
    assert said in " ".join(out.split())
    code, out, error = bisnn_("report", run, "-q")
    assert code == 0, error
    assert " ".join(out.split()).endswith(said)
    assert said in (run / "report.html").read_text()


def test_coverage_below_what_was_asked_for_is_said(runs, tmp_path, bisnn_):
    """On points unlike those of the calibration, where the model was always right."""
    kept = evaluation.evaluate(runs["bayes"], show=False).guarantee
    assert not kept.doubt()
    said = "below what was asked for, beyond chance"
    assert said in kept.model_copy(update={"falls_short": True}).doubt()
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    model = bisnn.load(run)
    x = np.random.default_rng(0).random((300, 2))
    lucky = model.predict(x).mean.argmax(-1).numpy()  # whatever the model says
    guarantee.write(model.calibrate(x, lucky, 0.95).guarantee, run / "model.safetensors")
    code, out, error = bisnn_("evaluate", run, "-q")
    assert code == 0, error
    assert said in " ".join(out.split())


def test_prediction_and_sets_take_one_pass(runs, monkeypatch):
    model = bisnn.load(runs["bayes"])
    x = model.inputs(points(30)[0])
    apart = model.predict_points(x, 3), model.predict_set(points(30)[0])
    passes = []

    def counted(*arguments, **options):
        passes.append(arguments)
        return bisnn.prediction.logits(*arguments, **options)

    monkeypatch.setattr("bisnn.runs.model.logits", counted)
    result, sets = guarantee.predictions_and_answers(model, x)
    assert len(passes) == 1
    assert torch.equal(result.mean, apart[0].mean)
    assert np.array_equal(sets.sets, apart[1].sets)


def test_answers_are_given_where_calibration_shows_that_few_are_wrong(runs, tmp_path, bisnn_):
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    model = bisnn.load(run)
    held_out = load_dataset(model.config).validation
    probs = model.predict_points(held_out.x, 3).mean
    sure, best = probs.max(-1)
    right = best == held_out.y
    expected = metrics.abstention_threshold(sure, right, 0.45)
    assert 0 < expected.threshold < 1
    assert model.guarantee.abstention(0.45) == expected
    x, _ = points(40)
    np.savetxt(tmp_path / "x.csv", x, delimiter=",")
    code, out, error = bisnn_("predict", run, tmp_path / "x.csv", "--abstain", "0.45")
    assert code == 0, error
    assert f"{expected.answered} of 60 calibration recordings" in error
    confidence, best = model.predict(x).mean.max(-1)
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["answer"] for row in rows] == [
        str(int(c)) if p >= expected.threshold else "don't know"
        for p, c in zip(confidence, best, strict=True)
    ]
    assert {"don't know"} < {row["answer"] for row in rows}
    for command, message in {
        (run, "--abstain", "0.005"): "60 calibration recordings do not show, with 90 % confidence",
        (run, "--abstain", "1.5"): "abstain: must lie in (0, 1); got 1.5; give e.g. 0.005",
        (run, "--tempered", "--map"): "tempered: the temperature is that of the predictor",
        (run, "--abstain", "0.45", "--map"): "abstain: needs a run that is calibrated, for this",
        (runs["st"], "--abstain", "0.45"): "do it with: bisnn calibrate",
    }.items():
        code, _, error = bisnn_("predict", command[0], tmp_path / "x.csv", *command[1:])
        assert code == 1
        assert message in error
    np.savetxt(tmp_path / "x.csv", np.linspace(0, 1, 5)[:, None], delimiter=",")
    code, _, error = bisnn_("predict", runs["one_d"], tmp_path / "x.csv", "--abstain", "0.1")
    assert code == 1
    assert "abstain: is for classes" in error


def test_the_command_line(runs, tmp_path, bisnn_):
    run = shutil.copytree(runs["bayes"], tmp_path / "run")
    code, out, error = bisnn_("calibrate", run, "--coverage", "0.7", "--looks", "5", "-q")
    assert code == 0, error
    assert "hold the truth in 0.7 of all cases" in out
    assert "5 looks from time step 6 to 30" in out
    x, _ = points(20)
    np.savetxt(tmp_path / "x.csv", x, delimiter=",")
    code, out, error = bisnn_("predict", run, tmp_path / "x.csv")
    assert code == 0, error
    answer = bisnn.load(run).predict_set(x)
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["set"] for row in rows] == [
        "|".join(str(c) for c in np.flatnonzero(inside)) for inside in answer.sets
    ]
    assert [int(row["set_size"]) for row in rows] == answer.sizes.tolist()
    assert [int(row["time_steps"]) for row in rows] == answer.steps.tolist()
    code, out, error = bisnn_("predict", run, tmp_path / "x.csv", "--map")
    assert "set" not in out.splitlines()[0]
    assert "was not calibrated for the one set of weights" in error
    code, out, error = bisnn_("evaluate", run, "-q")
    assert code == 0, error
    assert "sets of ensemble of 3, to hold the truth in 0.7 of all cases" in " ".join(out.split())
    assert "accuracy of decided" in out
    for arguments, message in {
        ("--coverage", "1.5"): "coverage: must lie in (0, 1); got 1.5",
        ("--correction", "bonferroni"): "needs 99 calibration recordings or more; got 60",
        ("--data", str(tmp_path / "nothing.csv")): "there is no such file",
    }.items():
        code, _, error = bisnn_("calibrate", run, *arguments, "-q")
        assert code == 1
        assert message in error
    run = runs["one_d"]
    assert "intervals of the mean +-" in bisnn_("calibrate", run, "-q")[1]
    np.savetxt(tmp_path / "x.csv", np.linspace(0, 1, 5)[:, None], delimiter=",")
    rows = list(csv.DictReader(bisnn_("predict", run, tmp_path / "x.csv")[1].splitlines()))
    low, high = bisnn.load(run).predict_set(np.linspace(0, 1, 5)[:, None])
    assert [float(row["low"]) for row in rows] == low.tolist()
    assert [float(row["high"]) for row in rows] == high.tolist()
