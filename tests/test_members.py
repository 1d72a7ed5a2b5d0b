"""Members from every source: networks trained one by one, snapshots, dropout, other models; and the
temperature of what they say.
"""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import bisnn
from bisnn import packed, prediction
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.cli import app
from bisnn.realisation import map_weight
from bisnn.runs import calibration, evaluation, exporting, guarantee, training
from bisnn.runs.processes import Processes
from runs import SMALL, files, small

HALF = {"data": {"name": "two_moons", "train": 60, "test": 40, "validation": 0.5}}
CYCLES = {"train.cycles": 2, "train.schedule": "cosine"}
POINTS = np.random.default_rng(0).random((40, 2))


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A run of three networks by ST-BiSNN, and of two by Bayes-BiSNN."""
    base = tmp_path_factory.mktemp("several")
    counts = {"st": 3, "bayes": 2}
    return {
        rule: training.train(small(rule, **{"train.members": count}), base / rule, show=False)
        for rule, count in counts.items()
    }


def in_memory(**changes) -> training.Training:
    """A small run of ST-BiSNN that has not begun."""
    config = small("st", **{"train.schedule": "cosine", **changes})
    return training.Training(config, Processes(0, 1, torch.device("cpu")), show=False)


def weights_of(run: training.Training) -> list[torch.Tensor]:
    return [p.detach().clone() for p in run.net.parameters()]


# Networks trained one by one


def test_several_networks_predict_the_mean_of_their_runs(several):
    model = bisnn.load(several["st"])
    alone = [bisnn.load(several["st"] / "members" / str(k)).predict(POINTS) for k in range(3)]
    result = model.predict(POINTS)
    assert torch.equal(result.members, torch.cat([one.members for one in alone]))
    assert torch.allclose(result.mean, sum(one.mean for one in alone) / 3)
    assert bool((result.mutual_information > 0).any())  # they differ


def test_the_first_network_is_that_of_a_run_without_members(several, tmp_path):
    alone = training.train(small("st"), tmp_path / "alone", show=False)
    first = several["st"] / "members" / "0"
    assert files(alone) == files(first)


def test_networks_share_data_and_readouts_and_nothing_else(several):
    first, second = (bisnn.load(several["bayes"] / "members" / str(k)) for k in range(2))
    assert first.data == second.data
    assert all(
        torch.equal(a.V, b.V) for a, b in zip(first.net.readouts, second.net.readouts, strict=True)
    )
    assert first.config.training_seed != second.config.training_seed
    for a, b in zip(first.net.parameters(), second.net.parameters(), strict=True):
        assert not torch.equal(a, b)


def test_posterior_draws_differ_from_network_to_network(several):
    model = bisnn.load(several["bayes"])
    assert model.predict(POINTS, samples=4).members.shape == (8, 40, 2)
    same = replace(model, others=(tuple(p.detach() for p in model.net.parameters()),))
    drawn = same.draw(2)
    assert not any(
        torch.equal(a, b) for k in range(2) for a, b in zip(drawn[k], drawn[2 + k], strict=True)
    )


@pytest.mark.parametrize("lost", ["1", "2"])
def test_resumed_networks_have_the_same_bits(several, tmp_path, lost):
    run = tmp_path / "run"
    shutil.copytree(several["st"], run)
    model = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").unlink()
    shutil.rmtree(run / "members" / lost)
    training.resume(run, show=False)
    assert (run / "model.safetensors").read_bytes() == model


def test_a_run_of_several_networks_is_evaluated_reported_and_shipped(several):
    run = several["st"]
    verdict = bisnn.evaluate(run, show=False)
    assert list(verdict.metrics) == ["sign of 3 networks"]
    weights = sum(w.numel() for w in bisnn.load(run).net.parameters())
    assert verdict.memory.weights == 3 * weights
    assert bisnn.report([run], show=False).exists()
    engine = packed.load(exporting.export(run, "packed").path)
    said = engine.predict_features(POINTS.astype(np.float32)).mean
    assert np.allclose(said, bisnn.load(run).predict(POINTS).mean.numpy(), atol=1e-6)
    with pytest.raises(ValueError, match=r"NIR graph is of one network; got a model of 3"):
        exporting.export(run, "nir")


def test_calibrated_posteriors_ship_their_sets(tmp_path):
    run = training.train(small("bayes", HALF, **{"train.members": 2}), tmp_path / "run", show=False)
    found = calibration.calibrate(run, coverage=0.8, show=False)
    assert found.rule.path[-1] == (30, 6)  # all members of both
    written = exporting.export(run, "packed", predictor="members")
    assert (written.members, written.sets_call) == (6, "predict_feature_sets(x)")


def test_a_posterior_of_several_networks_is_no_packed_file(several):
    with pytest.raises(ValueError, match=r"holds one posterior.*2 networks; got 'posterior'"):
        exporting.export(several["bayes"], "packed", predictor="posterior")


def test_networks_are_trained_by_one_process(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"train.members: .* got torchrun; leave it out"):
        training.train(small("st", **{"train.members": 2}), tmp_path / "run", show=False)


# Snapshots


def test_a_cycle_ends_where_a_run_of_its_length_ends():
    cycles = in_memory(**CYCLES)
    half = in_memory(**{"train.epochs": SMALL["train"]["epochs"] // 2})
    while not half.finished:
        cycles.update()
        half.update()
    assert all(map(torch.equal, cycles.snapshots[0], weights_of(half)))
    while not cycles.finished:
        cycles.update()
    (other,) = cycles.trained_model().others
    assert all(map(torch.equal, other, cycles.snapshots[0]))
    assert all(map(torch.equal, cycles.snapshots[1], weights_of(cycles)))


def test_snapshots_survive_a_checkpoint(tmp_path):
    whole, begun, goes_on = (in_memory(**CYCLES) for _ in range(3))
    while not whole.finished:
        whole.update()
    for _ in range(begun.steps_per_cycle + 1):
        begun.update()
    assert goes_on.fits(begun.state())
    goes_on.load(begun.state(), training.RunFolder(tmp_path))
    while not goes_on.finished:
        goes_on.update()
    pairs = zip(whole.snapshots, goes_on.snapshots, strict=True)
    assert all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def test_cycles_keep_their_length(tmp_path):
    run = training.train(small("st", **CYCLES), tmp_path / "run", show=False)
    with pytest.raises(ValueError, match=r"train.epochs: a run with train.cycles keeps"):
        training.resume(run, ["train.epochs=8"], show=False)


# Dropout


@pytest.mark.parametrize("weights", ["binary", "real"])
def test_dropout_members_are_those_of_masked_readouts(weights):
    net = bisnn.Network(
        bisnn.Linear(12, 30),
        bisnn.Linear(30, 25),
        readout=3,
        weights=weights,
        neuron=bisnn.SRM(threshold=0.1),
    )
    x = torch.rand(15, 4, 12) < 0.4
    result = prediction.logits(net, x, bisnn.Dropout(5, 0.3), seed=7)
    drawn = philox.uniform(np.arange(5), 25, 7, Purpose.DROPOUT_MEMBERS)
    hard = [map_weight(p) if weights == "binary" else p for p in net.parameters()]
    for k in range(5):
        mask = torch.from_numpy(drawn[k] >= 0.3) / 0.7
        seen = [torch.ones(4, 30), mask.float().expand(4, -1)]
        assert torch.allclose(result[k], net(x, weights=hard, seen=seen).logits, atol=1e-5)
    assert not torch.equal(result[0], result[1])


def test_a_run_with_dropout_predicts_by_it(tmp_path):
    config = small("st", **{"network.dropout": 0.3, "predict.dropout": True})
    run = training.train(config, tmp_path / "run", show=False)
    model = bisnn.load(run)
    assert evaluation.predictors(model) == {"sign": None, "dropout of 3": 3}
    assert model.predict(POINTS).members.shape == (3, 40, 2)
    assert model.predict(POINTS, samples=None).members.shape == (1, 40, 2)
    rows = bisnn.evaluate(run, show=False).energy.rows
    one, three = (rows[name].layers for name in ("sign", "dropout of 3"))
    assert [layer.synaptic_operations for layer in three[:-1]] == [
        layer.synaptic_operations for layer in one[:-1]
    ]
    assert three[-1].synaptic_operations == 3 * one[-1].synaptic_operations


# Models as one


def test_an_ensemble_has_the_members_of_its_models(several):
    models = [bisnn.load(several["st"]), bisnn.load(several["bayes"])]
    result = bisnn.Ensemble(models).predict(POINTS)
    parts = [model.predict(POINTS).members for model in models]
    assert result.members.shape == (3 + 6, 40, 2)
    assert torch.equal(result.members, torch.cat(parts))
    cold = bisnn.Ensemble([several["st"], several["bayes"]]).tempered(0.5).predict(POINTS)
    squares = torch.cat(parts).square()
    assert torch.allclose(cold.members, squares / squares.sum(-1, keepdim=True))


def test_an_ensemble_of_unlike_models_is_refused(several, tmp_path):
    model = bisnn.load(several["st"])
    with pytest.raises(ValueError, match="must be a list of two or more"):
        bisnn.Ensemble([model])
    with pytest.raises(ValueError, match=r"same classes, in the same order; got \['b', 'a'\]"):
        bisnn.Ensemble([replace(model, classes=("a", "b")), replace(model, classes=("b", "a"))])
    one_more = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="must take the same inputs"):
        bisnn.Ensemble([model, replace(model, low=one_more)])


# Temperature


def test_a_temperature_is_found_again():
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(20_000, 4)) * 3)
    true = (z / 2.5).softmax(-1)
    labels = torch.from_numpy((true.cumsum(-1).numpy() < rng.random((20_000, 1))).sum(-1))
    found = prediction.fit_temperature(z.softmax(-1)[None], labels)
    assert found == pytest.approx(2.5, rel=0.03)
    scaled = prediction.tempered(z.softmax(-1), found)
    assert torch.equal(scaled.argmax(-1), z.argmax(-1))
    assert torch.allclose(prediction.tempered(z.softmax(-1), 2.5), true)


def test_the_temperature_of_members_is_that_of_their_mean():
    rng = np.random.default_rng(1)
    members = torch.from_numpy(rng.dirichlet(np.ones(3), (4, 300)))
    labels = members.mean(0).argmax(-1)
    labels[:60] = torch.from_numpy(rng.integers(0, 3, 60))
    grid = np.geomspace(0.1, 10, 400)

    def nll(t: float) -> float:
        sharp = members.numpy() ** (1 / t)
        mean = (sharp / sharp.sum(-1, keepdims=True)).mean(0)
        return -np.log(mean[np.arange(300), labels]).mean()

    best = grid[np.argmin([nll(t) for t in grid])]
    assert prediction.fit_temperature(members, labels) == pytest.approx(best, rel=0.02)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    run = training.train(small("bayes", HALF), tmp_path_factory.mktemp("t") / "run", show=False)
    calibration.calibrate(run, coverage=0.8, show=False)
    return run


def test_recordings_of_the_bound_do_not_give_the_temperature(calibrated):
    model, data = evaluation.load_run(calibrated, show=False)
    x, y = data.validation
    half = philox.permutation(len(y), 0, Purpose.CALIBRATION_SPLIT)[: len(y) // 2]
    first = np.sort(half)
    members = model.predict_points(x[torch.from_numpy(first)], 3).members
    expected = prediction.fit_temperature(members, y[first])
    assert model.guarantee.temperature == pytest.approx(expected)
    assert model.guarantee.temperature != 1
    every = guarantee.calibrated(
        model, x, y.numpy(), 0.5, samples=3, correction="bonferroni", looks=2
    )
    assert every.temperature is None
    with pytest.raises(ValueError, match=r"temperature: .* none from its calibration"):
        replace(model, guarantee=every).tempered()


def test_predictions_are_tempered_when_asked(calibrated, tmp_path):
    model = bisnn.load(calibrated)
    p, t = model.predict(POINTS).members, model.guarantee.temperature
    sharp = p ** (1 / t)
    assert torch.allclose(
        model.tempered().predict(POINTS).members, sharp / sharp.sum(-1, keepdim=True), atol=1e-6
    )
    np.save(tmp_path / "points.npy", POINTS)
    runner, out = CliRunner(), tmp_path / "p.csv"
    arguments = ["predict", str(calibrated), str(tmp_path / "points.npy"), "--out", str(out)]
    assert runner.invoke(app, [*arguments, "--tempered"]).exit_code == 0
    with out.open() as file:
        told = [float(row["p(0)"]) for row in csv.DictReader(file)]
    assert np.allclose(told, model.tempered().predict(POINTS).mean[:, 0], atol=1e-4)
    judged = runner.invoke(app, ["evaluate", str(calibrated), "-q", "--tempered"])
    assert judged.exit_code == 0
    assert f"at temperature {t:.3g}" in " ".join(judged.stdout.split())
    verdict = json.loads((calibrated / "evaluation.json").read_text())
    assert verdict["temperature"] == pytest.approx(t)


# Settings


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        ("st", {"train.cycles": 2}, 'cycles are of schedule = "cosine"'),
        ("st", {**CYCLES, "train.epochs": 5}, "epochs must be a multiple of cycles = 2"),
        ("st", {"train.members": 2, "train.member": 1}, "member is one of several"),
        ("st", {"predict.dropout": True}, "needs network.dropout above 0"),
        ("bayes", {"predict.dropout": True, "network.dropout": 0.2}, "without a posterior"),
        (
            "st",
            {"predict.dropout": True, "network.dropout": 0.2, "train.members": 2},
            "for one network",
        ),
    ],
)
def test_settings_that_do_not_go_together(rule, changes, message):
    with pytest.raises(ValueError, match=message):
        small(rule, **changes)


def test_rates_and_temperatures_out_of_range():
    with pytest.raises(ValueError, match=r"rate: must be below 1; got 1.0"):
        bisnn.Dropout(3, 1.0)
    with pytest.raises(ValueError, match=r"members"):
        bisnn.Dropout(0, 0.5)
