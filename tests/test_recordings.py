"""Runs on event recordings: from files to a verdict, and predictions from files and arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bisnn
from bisnn.data import cache, events
from bisnn.data.archives import NMNIST
from bisnn.data.loading import Clips
from bisnn.errors import Stopped
from bisnn.packed import load as load_packed
from bisnn.runs import inputs, training
from bisnn.runs.building import build_network
from bisnn.runs.config import parse
from bisnn.runs.model import Model
from runs import RECORDED, RULES, made_up, run_on_recordings

pytestmark = pytest.mark.usefixtures("own_cache")


# From files to a verdict


def test_a_run_on_recordings(nmnist, tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_DATA", str(nmnist))
    run = training.train(parse(RECORDED, "run"), tmp_path / "run", show=False)
    verdict = bisnn.evaluate(run, show=False)
    assert verdict.points == 4
    page = bisnn.report([run], show=False).read_text()
    assert "conv 4 → 12" in page
    model = bisnn.load(run)
    with pytest.raises(
        ValueError,
        match="was trained on nmnist recordings and takes no features; use predict_recordings",
    ):
        model.predict(np.zeros((1, 2)))
    engine = load_packed(bisnn.export(run, predictor="map").path)
    test = NMNIST(nmnist, train=False, classes=[3, 7], steps=12, bin_us=25_000, show=False)
    x = test.batch(range(4))
    clips = Clips(test, torch.arange(4))
    expected = model.predict_points(clips, None).mean.numpy()
    np.testing.assert_allclose(engine.predict(x.numpy()).mean, expected, atol=1e-6)
    assert (run.parent / "run" / "packed.safetensors").exists()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("gradient", ["local", "bptt"])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_on_a_gpu_waits_for_nothing(nmnist, rule, gradient):
    """Reading, augmentation, dropout and update hand work to the GPU and do not wait for it."""
    augment = {"rotate": 10.0, "zoom": 0.1, "shift": 1, "jitter": 1}
    network = {**RECORDED["network"], "gradient": gradient, "dropout": 0.5}
    config = parse({**RECORDED, "rule": RULES[rule], "augment": augment, "network": network}, "run")
    config = config.updated(**{"data.root": str(nmnist), "train.device": "cuda"})
    run = training.Training(config, training.Processes(0, 1, torch.device("cuda")), show=False)
    for _ in range(4):
        run.update()  # kernels are compiled, and recorded for both sizes of mini-batches
    try:
        torch.cuda.set_sync_debug_mode("error")
        run.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_recordings_must_be_those_a_run_began_with(tmp_path):
    run, root = run_on_recordings(tmp_path)
    bisnn.evaluate(run, show=False)
    state = (run / "state.safetensors").read_bytes()
    changed, kept = root / "Train" / "7" / "00001.bin", root / "Train" / "3" / "00001.bin"
    content = changed.read_bytes()
    changed.write_bytes(kept.read_bytes())
    for command in (bisnn.evaluate, training.resume):
        with pytest.raises(
            ValueError,
            match=rf"{root}: its recordings are not those that .*run began with: restore them",
        ):
            command(run, show=False)
    assert (run / "state.safetensors").read_bytes() == state
    changed.write_bytes(content)  # at another time, but the same
    bisnn.evaluate(run, show=False)


def test_all_classes_must_be_there(nmnist):
    config = parse(
        {**RECORDED, "data": {**RECORDED["data"], "classes": [1, 3, 5, 7], "root": str(nmnist)}},
        "run",
    )
    with pytest.raises(
        ValueError,
        match=(
            r"data\.classes: .* has no training recording of 1, 5; give a folder that has, or fewer"
        ),
    ):
        inputs.load_dataset(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"root": "none"}, "data.root: there is no folder"),
        ({"root": "."}, r"data.root: .* holds no files Train/\[0-9\]/\*.bin"),
        ({}, "data.root: must name the folder of nmnist"),
    ],
)
def test_data_that_is_not_there(settings, message, tmp_path, monkeypatch):
    monkeypatch.delenv("BISNN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    config = parse({**RECORDED, "data": {**RECORDED["data"], **settings}}, "run")
    with pytest.raises(ValueError, match=message):
        training.train(config, tmp_path / "run", show=False)
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_damaged_cache_is_named_as_it_is(nmnist, tmp_path):
    config = parse({**RECORDED, "data": {**RECORDED["data"], "root": str(nmnist)}}, "run")
    made = inputs.load_dataset(config)
    path = made.test.x.recordings.bits.path
    path.write_bytes(b"nonsense")
    with pytest.raises(cache.BadCache, match=rf"^{path}: is no file of recordings"):
        inputs.load_dataset(config)


def test_a_silent_layer_on_recordings_is_no_matter_of_the_encoding(nmnist, tmp_path):
    config = parse(
        {
            **RECORDED,
            "data": {**RECORDED["data"], "root": str(nmnist)},
            "neuron": {"threshold": 50.0},
        },
        "run",
    )
    with pytest.raises(
        Stopped, match=r"lower neuron.threshold, raise data.bin_us, or set train.activity"
    ):
        training.train(config, tmp_path / "run", show=False)


# Predictions from files


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model, and the folder it was trained on."""
    run, root = run_on_recordings(tmp_path_factory.mktemp("predict"))
    return bisnn.load(run), root


def test_files_arrays_and_the_dataset_give_the_same_predictions(trained, capsys):
    model, root = trained
    data = NMNIST(root, train=False, classes=[3, 7], steps=12, bin_us=25_000, show=False)
    expected = model.predict_points(Clips(data, torch.arange(4)), 3)
    files = sorted(root.glob("Test/*/*.bin"))
    read = [events.read_events(file) for file in files]
    done = []
    for recordings_ in (
        files,
        [str(file) for file in files],
        read,
        [seen.events[::-1] for seen in read],
    ):
        result = model.predict_recordings(recordings_, advance=done.append)
        assert torch.equal(result.mean, expected.mean)
        assert torch.equal(result.mutual_information, expected.mutual_information)
    assert sum(done) == 16
    assert capsys.readouterr().err == ""
    assert torch.equal(
        model.predict_recordings(files, None).mean,
        model.predict_points(Clips(data, torch.arange(4)), None).mean,
    )


def test_recordings_that_are_not_as_the_trained_ones(trained, tmp_path, capsys):
    model, root = trained
    good = root / "Test" / "3" / "00001.bin"
    events.write_aedat(tmp_path / "large.aedat", made_up(100, 128, 0))
    (tmp_path / "noise.bin").write_bytes(b"\xff" * 100)
    with pytest.raises(
        events.BadEvents, match=r"large.aedat: must have the 34 x 34 pixels .* got 128 x 128 pixels"
    ):
        model.predict_recordings([good, tmp_path / "large.aedat"])
    with pytest.raises(
        events.BadEvents, match=r"noise.bin: 20 of 20 addresses are outside the sensor"
    ):
        model.predict_recordings([good, tmp_path / "noise.bin"])
    with pytest.raises(
        events.BadEvents, match=r"recordings\[0\]: 9\d of 100 addresses are outside"
    ):
        model.predict_recordings([made_up(100, 128, 0)])
    with pytest.raises(
        events.BadEvents,
        match=r"recordings\[1\]: events: must be an array \(N,\) with the fields x, y, t, p",
    ):
        model.predict_recordings([good, np.zeros((3, 4))])
    for wrong in (good, str(good), []):
        with pytest.raises(ValueError, match="recordings: must be a list of one or more"):
            model.predict_recordings(wrong)
    assert capsys.readouterr().err == ""
    late = made_up(100, 34, 0)
    late["t"] += 400_000
    late["x"][:3] = 40
    model.predict_recordings([good, late])
    assert capsys.readouterr().err.splitlines() == [
        "recordings: events left out of 1 recording (outside the sensor: 3)",
        "recordings: 1 recording without an event in what the model looks at, the first 12 "
        "time steps of 25,000 us",
    ]


def test_a_model_of_simulated_digits_says_that_files_are_others(capsys):
    network = {**RECORDED["network"], "layers": []}
    config = parse(
        {**RECORDED, "data": {"name": "digits", "steps": 12, "bin_us": 25_000}, "network": network},
        "run",
    )
    net = build_network(config, inputs.input_shape(config, 0), 10)
    none = torch.zeros(0, dtype=torch.float64)
    model = Model(net, config, tuple("0123456789"), none, none, 1, "")
    model.predict_recordings([made_up(500, 128, 0)])
    assert (
        "knows digits along a path of their own, which no file has; of others, expect guesses"
        in capsys.readouterr().err
    )
