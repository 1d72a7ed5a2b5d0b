"""What exports are tried on: which recording is golden, where it ends, what takes its place."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import bisnn
from bisnn import packed
from bisnn.runs import training
from bisnn.runs.exporting import describe_model
from bisnn.runs.inputs import load_dataset
from bisnn.runs.trial_inputs import NOISE, TRIED, golden_recording, trial_inputs
from runs import SMALL, parse, run_on_recordings


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_on_recordings(tmp_path_factory.mktemp("trial"))[0]


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """A run on recordings of several lengths, and their data."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("series")
    lengths = rng.integers(8, 25, 40)
    x, y = [(rng.random((n, 5)) < 0.4).astype(float) for n in lengths], np.arange(40) % 2
    data = {"name": "series", "train": "given", "code": "spikes", "steps": 30}
    sections = {name: section for name, section in SMALL.items() if name != "encode"}
    np.savez(
        folder / "x.npz",
        x=np.stack([np.pad(one, ((0, 30 - len(one)), (0, 0))) for one in x]),
        y=y,
        lengths=lengths,
    )
    config = parse({**sections, "data": {**data, "train": str(folder / "x.npz")}}, "x")
    return training.train(config, folder / "run", show=False), x


def test_the_golden_recording_makes_the_last_layer_fire_most(run):
    model = bisnn.load(run)
    network = describe_model(model, "members")
    test = load_dataset(model.config).test.x
    x = test[:TRIED].spikes().numpy()
    assert np.array_equal(trial_inputs(model, TRIED)[0], x)
    last = packed.Engine(network).run(x, spikes=True).spikes[-1][0]  # of the first member
    fired = [int(last[:, n].sum()) for n in range(x.shape[1])]
    golden = golden_recording(network, model)
    assert np.array_equal(golden, x[:, int(np.argmax(fired))])


def test_recordings_that_cannot_be_read_are_noise(run, tmp_path, capsys):
    model = bisnn.load(run)
    gone = replace(model, config=model.config.updated(**{"data.root": str(tmp_path / "gone")}))
    x, ends = trial_inputs(gone, 4)
    assert x.shape == (model.config.steps, 4, *model.net.input_shape)
    assert x.mean() == pytest.approx(NOISE, rel=0.2)
    assert ends == [model.config.steps] * 4
    assert "inputs are made up, as the run's own are not read" in capsys.readouterr().err


def test_a_silent_layer_is_named(run, capsys):
    model = bisnn.load(run)
    network = describe_model(model, "map")
    golden_recording(network, model)
    assert "fires at none" not in capsys.readouterr().err
    high = [replace(z, constants=z.constants.copy()) for z in network.layers]
    high[-1].constants[-1] = 1e6  # the threshold
    golden_recording(replace(network, layers=tuple(high)), model)
    assert f"layer {len(high) - 1} fires at none of the time steps" in capsys.readouterr().err


def test_a_golden_recording_of_series_ends_where_it_ends(series):
    """And not before the last look at prediction sets."""
    model = bisnn.load(series[0])
    network = describe_model(model, "map")
    test = load_dataset(model.config).test.x
    golden = golden_recording(network, model)
    ends = {
        end
        for x, end in zip(test.spikes().movedim(1, 0), test.mask().sum(0).tolist(), strict=True)
        if torch.equal(x[:end], torch.from_numpy(golden))
    }
    assert ends == {len(golden)}
    assert len(golden) < 30
    looks = bisnn.conformal.ConformalSets(((30, 1),), ((5, 5),), 0.9, recordings=40)
    assert len(golden_recording(replace(network, sets=looks), model)) == 30


def test_models_of_series_predict_as_one(series):
    run, x = series
    model = bisnn.load(run)
    both = bisnn.Ensemble([model, run]).predict_series(x[:5])
    assert torch.allclose(both.mean, model.predict_series(x[:5]).mean)
    with pytest.raises(ValueError, match="models: must be models or run folders; got 3"):
        bisnn.Ensemble([model, 3])


def test_reading_data_of_ones_own_takes_the_data(tmp_path, capsys, monkeypatch):
    """A module that a config names is not run for an export."""
    (tmp_path / "theirs.py").write_text(
        "import numpy as np, bisnn\n"
        "x = (np.random.default_rng(0).random((40, 12, 6)) < 0.3).astype(np.uint8)\n"
        "parts = (x[:30], np.arange(30) % 2), (x[30:], np.arange(10) % 2)\n"
        "data = lambda: bisnn.data.Dataset(*parts)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sections = {name: section for name, section in SMALL.items() if name != "encode"}
    config = parse({**sections, "data": {"name": "theirs:data"}}, "x")
    run = training.train(config, tmp_path / "run", show=False)
    model, network = bisnn.load(run), describe_model(bisnn.load(run), "map")
    (tmp_path / "theirs.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.delitem(sys.modules, "theirs")
    capsys.readouterr()
    golden_recording(network, model)
    assert "reading them would run the code of theirs:data" in capsys.readouterr().err
