"""Models as files, predictions on raw features, and the verdict."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import bisnn
import bisnn.packed
from bisnn import metrics
from bisnn.network import Network
from bisnn.packed import encoding
from bisnn.runs import evaluation, exporting, model, training
from bisnn.runs.config import load as load_config
from bisnn.runs.folder import Damaged, RunFolder, load_tree, save_tree
from bisnn.runs.inputs import load_dataset, spikes
from bisnn.runs.results import Verdict
from runs import ONE_D, small


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    configs = {
        "bayes": small("bayes"),
        "st": small("st"),
        "one_d": small("bayes", ONE_D),
        "full": small("full, Adam"),
    }
    return {
        name: training.train(config, base / name, show=False) for name, config in configs.items()
    }


def points(rows, features=2):
    return np.random.default_rng(0).random((rows, features))


def test_predict_is_the_network_on_keyed_spikes(runs):
    trained = model.load(runs["bayes"])
    x = points(5)
    s = spikes(trained.config, torch.from_numpy(x).float())
    expected = bisnn.predict(trained.net, s, 3, burn_in=2, seed=0)
    result = trained.predict(x)
    for name in ("mean", "members", "entropy", "expected_entropy", "mutual_information"):
        assert torch.equal(getattr(result, name), getattr(expected, name)), name
    assert torch.equal(
        trained.predict(x, samples=None).mean, bisnn.predict(trained.net, s, burn_in=2).mean
    )


def test_a_prediction_does_not_depend_on_the_row(runs):
    """Any order, subset and repetition of points; also in the packed engine and in a report."""
    trained = model.load(runs["bayes"])
    x = points(40)
    whole = trained.predict(x).mean
    order = np.random.default_rng(1).permutation(40)
    torch.testing.assert_close(trained.predict(x[order]).mean, whole[order], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(
        trained.predict(x[[7] * 10]).mean, whole[[7] * 10], rtol=1e-6, atol=1e-7
    )
    torch.testing.assert_close(trained.predict(x[3:5]).mean, whole[3:5], rtol=1e-6, atol=1e-7)
    engine = bisnn.packed.Engine(exporting.describe_model(trained, "members"))
    assert np.array_equal(
        encoding.spikes(engine.network.encoding, x),
        spikes(trained.config, torch.from_numpy(x).float()).numpy(),
    )
    np.testing.assert_allclose(
        engine.predict_features(x[order]).mean, whole[order].numpy(), rtol=2e-5, atol=2e-6
    )


def test_predictions_may_be_means_over_encodings(runs):
    trained = model.load(runs["bayes"])
    several = replace(trained, config=trained.config.updated(**{"predict.encodings": 3}))
    x = torch.from_numpy(points(5)).float()
    each = [
        bisnn.predict(
            trained.net, spikes(trained.config, x, encoding_number=e), 3, burn_in=2
        ).members
        for e in range(3)
    ]
    assert not torch.equal(each[0], each[1])
    expected = torch.stack(each).mean(0)
    result = several.predict(points(5))
    torch.testing.assert_close(result.members, expected)
    torch.testing.assert_close(result.entropy, torch.special.entr(expected.mean(0)).sum(-1))
    engine = bisnn.packed.Engine(exporting.describe_model(several, "members"))
    np.testing.assert_allclose(
        engine.predict_features(points(5)).members, expected.numpy(), rtol=2e-5, atol=2e-6
    )


def test_evaluation_runs_hard_weights_as_such(runs, monkeypatch):
    """On a GPU the mark decides whether integers are summed exactly."""
    seen = []
    forward = Network.forward
    monkeypatch.setattr(
        Network,
        "forward",
        lambda net, x, *a, weights=None, **k: (
            seen.append(weights),
            forward(net, x, *a, weights=weights, **k),
        )[1],
    )
    evaluation.evaluate(runs["st"], show=False)
    marks = [getattr(w, "_bisnn_hard", False) for some in seen if some is not None for w in some]
    assert marks
    assert all(marks)


@pytest.mark.parametrize("over_time", ["mean", "running"])
def test_batches_of_points_change_nothing(runs, monkeypatch, over_time):
    for name, features in (("bayes", 2), ("one_d", 1)):
        trained = model.load(runs[name])
        whole = trained.predict(points(7, features), over_time=over_time)
        with monkeypatch.context() as patch:
            patch.setattr(model, "BATCH", 3)
            seen = []
            pieces = trained.predict(points(7, features), over_time=over_time, advance=seen.append)
        assert seen == [3, 3, 1]
        for field in whole.__dataclass_fields__:
            # Sums in float32
            torch.testing.assert_close(
                getattr(pieces, field), getattr(whole, field), rtol=1e-6, atol=1e-6
            )


@pytest.mark.parametrize("x", [points(3, 3), points(0), points(2)[0], np.full((1, 2), np.nan)])
def test_bad_points(runs, x):
    with pytest.raises(ValueError, match=r"x: must be (\(N, 2\)|finite; .* in 1 of 1 rows)"):
        model.load(runs["bayes"]).predict(x)


def test_no_posterior_no_samples(runs):
    with pytest.raises(ValueError, match="has no posterior to draw from"):
        model.load(runs["st"]).predict(points(2), samples=5)


@pytest.mark.parametrize("samples", [0, -1, 2.5, True, "ten"])
def test_bad_samples(runs, samples):
    with pytest.raises(ValueError, match="samples: must be a positive whole number; got"):
        model.load(runs["bayes"]).predict(points(2), samples=samples)


def test_own_data_with_names_and_units(tmp_path):
    rng = np.random.default_rng(1)
    rows = [
        (*(100 + 50 * rng.random(2) + 50 * k), ("low", "tall")[k])
        for k in (0, 1)
        for _ in range(30)
    ]
    (tmp_path / "train.csv").write_text(
        "a,b,kind\n" + "\n".join(",".join(map(str, row)) for row in rows)
    )
    data = {"name": "table", "train": str(tmp_path / "train.csv"), "test_share": 0.25}
    config = small("st", {"data": data}, **{"rule.lr": 1.0, "train.epochs": 10})
    folder = training.train(config, tmp_path / "run", show=False)
    trained = model.load(folder)
    assert trained.classes == ("low", "tall")
    assert trained.predict(np.array([[105.0, 105.0], [195.0, 195.0]])).mean.argmax(-1).tolist() == [
        0,
        1,
    ]
    assert evaluation.evaluate(folder, show=False).metrics["sign"]["accuracy"].value > 0.9
    split = load_dataset(config)
    assert (len(split.train.x), len(split.test.x)) == (44, 16)
    assert split.train.x.min() == 0
    assert split.train.x.max() == 1


def test_own_regression_with_a_test_file(tmp_path):
    x = np.linspace(0, 10, 40)
    np.save(tmp_path / "train.npy", np.stack([x, np.sin(x)], 1))
    np.savez(tmp_path / "test.npz", x=x[:7, None], y=np.sin(x[:7]))
    data = {
        "name": "table",
        "task": "regression",
        "train": str(tmp_path / "train.npy"),
        "test": str(tmp_path / "test.npz"),
    }
    folder = training.train(small("bayes", {"data": data}), tmp_path / "run", show=False)
    verdict = evaluation.evaluate(folder, show=False)
    assert verdict.points == 7
    assert verdict.metrics.keys() == {"MAP", "ensemble of 3"}
    wrong = {**data, "test": str(tmp_path / "wrong.csv")}
    (tmp_path / "wrong.csv").write_text("1,2,3\n")
    with pytest.raises(
        ValueError, match=r"must have 1 columns, .* or 2, as the training file has; got 3"
    ):
        load_dataset(small("bayes", {"data": wrong}))


# Files


def test_model_file_comes_back_anywhere(runs, tmp_path):
    trained = model.load(runs["bayes"])
    trained.save(tmp_path / "copy.safetensors")
    again = model.load(tmp_path / "copy.safetensors")
    assert torch.equal(again.predict(points(4)).members, trained.predict(points(4)).members)
    assert (again.config, again.classes, again.epoch) == (
        trained.config,
        trained.classes,
        trained.epoch,
    )


def test_run_without_model(tmp_path):
    with pytest.raises(ValueError, match="there is no such run folder or model file"):
        model.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="it has no config"):
        model.load(tmp_path)
    RunFolder(tmp_path).create(small())
    with pytest.raises(ValueError, match=r"has no model yet: .* bisnn resume"):
        model.load(tmp_path)


def changed(runs, tmp_path, change):
    tree = load_tree(runs["bayes"] / "model.safetensors", "model")
    change(tree)
    save_tree(tmp_path / "bad.safetensors", tree, "model")
    return tmp_path / "bad.safetensors"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["config"].update(version=2), "reads configs of version 1; got 2"),
        (
            lambda tree: tree["config"]["network"].update(layers=[16, 8]),
            "is no model of this version",
        ),
        (lambda tree: tree.pop("scale"), "is no model of this version"),
        (lambda tree: tree["net"].pop("layers.0.weight"), "is no model of this version"),
        (
            lambda tree: tree["net"]["layers.0.weight"].fill_(float("nan")),
            "weights that are not finite",
        ),
    ],
)
def test_models_that_are_none(runs, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        model.load(changed(runs, tmp_path, change))


def test_damaged_model(runs, tmp_path):
    whole = (runs["bayes"] / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    with pytest.raises(Damaged, match="is damaged"):
        model.load(tmp_path / "cut.safetensors")


# The verdict


@pytest.mark.parametrize(
    ("name", "predictors"),
    [
        ("bayes", {"MAP": None, "ensemble of 3": 3}),
        ("st", {"sign": None}),
        ("full", {"real weights": None}),
    ],
)
def test_verdict_is_that_of_the_metrics(runs, name, predictors):
    verdict = evaluation.evaluate(runs[name], show=False)
    written = (runs[name] / "evaluation.json").read_text()
    assert verdict == Verdict.model_validate_json(written)
    assert json.loads(written) == verdict.model_dump()
    trained = model.load(runs[name])
    test = load_dataset(trained.config).test
    assert verdict.points == len(test.x) == 60
    for predictor, samples in predictors.items():
        probs = trained.predict_points(test.x, samples).mean
        for metric in ("accuracy", "balanced_accuracy", "nll", "brier"):
            got = verdict.metrics[predictor][metric]
            assert got.value == pytest.approx(metrics.METRICS[metric](probs, test.y))
        for got in verdict.metrics[predictor].values():
            assert got.low <= got.value <= got.high
        found = metrics.calibration(probs, test.y, seed=trained.config.seed)
        assert verdict.metrics[predictor]["calibration_error"] == found.error
        assert verdict.calibration[predictor].ece == pytest.approx(metrics.ece(probs, test.y))
        assert verdict.calibration[predictor].calibrated_mean == found.calibrated_mean
        more = verdict.further[predictor]
        assert more.adaptive_ece == metrics.adaptive_ece(probs, test.y)
        confidence, best = probs.double().max(-1)
        assert more.aurc == metrics.aurc(confidence, best == test.y)
        parts = (more.reliability, more.resolution, more.uncertainty)
        assert parts == tuple(metrics.brier_decomposition(probs, test.y))
    assert verdict.memory.model_dump() == {
        "weights": 20 * 16 + 16 * 16,
        "bits": 1,
        "bytes": 72,
        "bytes_32_bit": 2304,
    }


def test_verdict_on_regression(runs):
    verdict = evaluation.evaluate(runs["one_d"], show=False)
    trained = model.load(runs["one_d"])
    test = load_dataset(trained.config).test
    result = trained.predict_points(test.x, 3)
    values = {name: v.value for name, v in verdict.metrics["ensemble of 3"].items()}
    error = (result.mean - test.y).double()
    expected = {
        "rmse": error.square().mean().sqrt(),
        "mae": error.abs().mean(),
        "deviation": result.std.mean(),
    }
    assert values == pytest.approx({name: float(v) for name, v in expected.items()})


def test_what_a_report_shows(runs):
    evaluation.evaluate(runs["bayes"], show=False)
    tree = evaluation.load_evaluation(runs["bayes"])
    trained = model.load(runs["bayes"])
    test = load_dataset(trained.config).test
    with bisnn.map_weights(trained.net), torch.no_grad():
        s = spikes(trained.config, test.x)
        output = trained.net(s)
    for layer in range(2):
        points = tree.raster.points
        right = tree.predictors["ensemble of 3"].mean.argmax(1)[points] == test.y[points]
        assert len(points) == 6
        assert right.tolist() == sorted(right.tolist()), "wrong ones first"
        assert torch.equal(tree.raster.layers[layer].float(), output.spikes[layer][:, points])
        torch.testing.assert_close(tree.rates[layer], output.spikes[layer].mean((0, 1)))
    counts = tree.posterior.counts
    assert counts.sum(1).tolist() == [20 * 16, 16 * 16]
    p = bisnn.weights.probability(trained.net.layers[0].weight.detach())
    assert counts[0].tolist() == torch.histogram(p, tree.posterior.edges)[0].int().tolist()
    running = trained.predict_points(test.x, 3, "running")
    curves = tree.over_time["ensemble of 3"]
    torch.testing.assert_close(curves.entropy, running.entropy.mean(1))
    torch.testing.assert_close(
        curves.mutual_information,
        curves.entropy - curves.expected_entropy,
        atol=1e-5,
        rtol=0,
    )
    assert curves.accuracy[-1] == pytest.approx(
        metrics.accuracy(trained.predict_points(test.x, 3).mean, test.y)
    )


def test_evaluation_of_another_model_is_refused(tmp_path):
    folder = training.train(small(), tmp_path / "run", show=False)
    evaluation.evaluate(folder, show=False)
    evaluation.load_evaluation(folder)
    trained = model.load(folder)
    with torch.no_grad():
        next(trained.net.parameters()).neg_()
    trained.save(folder / "model.safetensors")
    with pytest.raises(
        ValueError, match="its model has changed since it was evaluated; do it again"
    ):
        evaluation.load_evaluation(folder)


def test_every_class_is_in_both_parts_of_a_split(tmp_path):
    rows = [f"{i},{'rare' if i < 4 else 'common'}" for i in range(60)]
    (tmp_path / "points.csv").write_text("\n".join(rows))
    for seed in range(5):
        data = {"name": "table", "train": str(tmp_path / "points.csv"), "test_share": 0.25}
        split = load_dataset(small("st", {"data": data}, seed=seed))
        assert torch.bincount(split.test.y).tolist() == [14, 1]
        assert torch.bincount(split.train.y).tolist() == [42, 3]


def test_not_evaluated(runs, tmp_path):
    RunFolder(tmp_path).create(small())
    with pytest.raises(ValueError, match="do it with: bisnn evaluate"):
        evaluation.load_evaluation(tmp_path)


def test_members_beyond_all_memory_are_refused(runs):
    with pytest.raises(
        ValueError, match=r"samples: an ensemble of 1,000,000,000 members would take"
    ):
        model.load(runs["bayes"]).predict(points(2), samples=10**9)


def test_a_config_may_wire_layers_and_have_cycles(tmp_path):
    """Skipping and recurrent layers, from a config to training, prediction, file and export."""
    layers = [12, {"neurons": 10, "recurrent": True}, {"neurons": 9, "inputs": ["input", 0, 1]}]
    settings = {"network.layers": layers, "train.epochs": 2, "train.device": "cpu"}
    config = load_config("two_moons_bayes").updated(**settings)
    assert config.model_dump()["network"]["layers"][0] == 12
    run = bisnn.train(config, tmp_path / "run", show=False)
    model = bisnn.load(run)
    assert [spec.inputs for spec in model.net.spec] == [(-1,), (0,), (-1, 0, 1)]
    assert [spec.kind for spec in model.net.spec] == ["dense", "recurrent", "dense"]
    assert model.net.layers[2].weight.shape == (9, 20 + 12 + 10)
    points = np.random.default_rng(0).random((5, 2))
    packed = bisnn.packed.load(
        bisnn.export(run, out=tmp_path / "p.safetensors", predictor="members").path
    )
    ours, theirs = packed.predict_features(points), model.predict(points)
    np.testing.assert_allclose(ours.mean, theirs.mean.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([8, {"neurons": 8, "inputs": [1]}], "network.layers.1: inputs: must be layers before"),
        ([8, {"neurons": 8, "inputs": []}], "network.layers.1: inputs: must be a list"),
    ],
)
def test_wiring_that_does_not_fit_is_one_line(layers, message, tmp_path):
    config = load_config("two_moons_bayes").updated(**{"network.layers": layers})
    with pytest.raises(ValueError, match=re.escape(message)):
        bisnn.train(config, tmp_path / "run", show=False)
