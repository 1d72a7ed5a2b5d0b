"""Series: codes against loops, ragged recordings and masks, labels of time steps, files, Python."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import bisnn
from bisnn import metrics
from bisnn.data import Dataset, Series
from bisnn.data.series_code import SeriesCode
from bisnn.runs import evaluation, training
from bisnn.runs.config import parse
from runs import SMALL

STEPS = 16
RNG = np.random.default_rng(0)


def series(name="population", **data):
    """A small config of series."""
    sections = {key: section for key, section in SMALL.items() if key != "encode"}
    about = {"name": "series", "steps": STEPS, "code": name, **data}
    rule = {"name": "st", "lr": 0.1, "precondition": "adam", "clip": 1.0}
    return parse({**sections, "data": about, "rule": rule}, "series")


def recordings(count, seed=0, channels=2):
    """Ragged walks, and for each whether its first channel ends above its second."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(0, 0.5, (rng.integers(8, STEPS + 1), channels)).cumsum(0) for _ in range(count)]
    return x, np.array([int(item[-1, 0] > item[-1, 1]) for item in x])


def save(path, x, y, fill=0.0):
    """An NPZ of ragged recordings, filled up with some value."""
    array = np.full((len(x), STEPS, x[0].shape[1]), fill)
    for row, item in zip(array, x, strict=True):
        row[: len(item)] = item
    np.savez(path, x=array, y=y, lengths=[len(item) for item in x])
    return str(path)


# Codes

VALUES = RNG.random((3, 9, 2))
ALL = np.ones((3, 9), bool)
RANGES = {"low": (0.0, 0.0), "high": (1.0, 1.0)}


def test_the_delta_code_follows_the_values():
    """Send-on-delta as a loop: a spike moves what was said by the threshold towards the value."""
    code = SeriesCode("delta", threshold=0.2, **RANGES)
    spikes = code.encode(VALUES, ALL, seed=0)
    for n, values in enumerate(VALUES):
        for d in range(2):
            said = values[0, d]
            for t in range(9):
                up, down = values[t, d] - said >= 0.2, said - values[t, d] >= 0.2
                assert (spikes[n, t, d], spikes[n, t, 2 + d]) == (up, down)
                said += 0.2 * up - 0.2 * down
    slow = np.linspace(0, 1, 200)[None, :, None]
    code = SeriesCode("delta", threshold=0.1, low=(0.0,), high=(1.0,))
    moves = code.encode(slow, np.ones((1, 200), bool), 0)[0].astype(float)
    said = 0.1 * (moves[:, 0] - moves[:, 1]).cumsum()
    assert np.abs(said - slow[0, :, 0]).max() < 0.1 + 1e-9, "never further off than the threshold"


def test_the_population_code_fires_the_nearest_centre():
    spikes = SeriesCode("population", neurons=5, **RANGES).encode(VALUES, ALL, 0)
    nearest = np.abs(VALUES[..., None] - np.linspace(0, 1, 5)).argmin(-1)
    assert (spikes.reshape(3, 9, 2, 5).argmax(-1) == nearest).all()
    assert (spikes.reshape(3, 9, 2, 5).sum(-1) == 1).all()


def test_the_latency_code_fires_once_the_earlier_the_larger():
    spikes = SeriesCode("latency", substeps=4, **RANGES).encode(VALUES, ALL, 0)
    spikes = spikes.reshape(3, 9, 4, 2)
    assert (spikes.sum(2) == 1).all()
    assert (
        spikes.argmax(2) == sum((edge > VALUES).astype(int) for edge in (0.75, 0.5, 0.25))
    ).all()


def test_the_rate_code_has_the_rate_and_knows_no_neighbours():
    values = np.broadcast_to([0.2, 0.9], (40, 100, 2)).copy()
    code = SeriesCode("rate", substeps=2, **RANGES)
    spikes = code.encode(values, np.ones((40, 100), bool), seed=3)
    assert spikes.shape == (40, 200, 2)
    values[0, :, 0] = 0.5
    again = code.encode(values[:5], np.ones((5, 100), bool), seed=3)
    assert (again[1:] == spikes[1:5]).all()
    assert (again[0] != spikes[0]).any()
    # Recordings of equal values have equal spikes: one counts
    share, deviation = spikes[0].mean(0), np.sqrt(np.array([0.16, 0.09]) / 200)
    assert (np.abs(share - [0.2, 0.9]) < 4 * deviation).all()


def test_ranges_leave_out_the_tails_and_constant_channels_stay():
    values = np.stack([np.r_[np.arange(1000), 1e9], np.full(1001, 7.0)], 1)
    code = SeriesCode("population", neurons=3).fitted(values)
    assert (*code.low, *code.high) == pytest.approx((5, 7, 995, 8))
    spikes = code.encode(np.array([[[1e12, 7.0], [-1e12, 7.0]]]), np.ones((1, 2), bool), 0)
    assert spikes[0].tolist() == [[0, 0, 1, 1, 0, 0], [1, 0, 0, 1, 0, 0]]


def test_inputs_enter_once_for_every_delay():
    x, y = recordings(6)
    config = series(delays=[0, 3, 5])
    run = training.Training(config, one_process(), show=False, given=Series((x, y), (x, y)))
    s = run.data.train.x.spikes()  # (T, B, inputs)
    plain, late, later = s.split(s.shape[2] // 3, 2)
    assert plain.any()
    for delayed, d in ((late, 3), (later, 5)):
        assert torch.equal(delayed, torch.cat([torch.zeros_like(plain[:d]), plain[:-d]]))
    assert run.net.input_shape == (s.shape[2],) == (3 * 2 * 8,)


def one_process():
    return training.Processes(0, 1, torch.device("cpu"))


# Ragged recordings


def test_what_lies_beyond_the_end_does_not_matter(tmp_path):
    x, y = recordings(40)
    runs = []
    for fill in (0.0, 9.0):
        path = save(tmp_path / f"{fill}.npz", x, y, fill)
        config = series(train=path, validation=0.2, delays=[0, 2])
        runs.append(training.train(config, tmp_path / f"run{fill}", show=False))
    a, b = (bisnn.load(run) for run in runs)
    for p, q in zip(a.net.parameters(), b.net.parameters(), strict=True):
        assert torch.equal(p, q)
    verdict = evaluation.evaluate(runs[0], show=False)
    together = a.predict_series(x).mean
    assert verdict.points == 8
    for item, mean in zip(x, together, strict=True):
        assert torch.allclose(a.predict_series([item]).mean[0], mean, atol=1e-6)
        short = np.pad(item, ((0, STEPS - len(item)), (0, 0)))
        spikes = a.config.data.series_code().encode(short[None], np.ones((1, STEPS), bool), 0)
        late = np.pad(spikes, ((0, 0), (2, 0), (0, 0)))[:, :STEPS]
        s = torch.from_numpy(np.concatenate([spikes, late], 2)[0, : len(item), None])
        alone = bisnn.predict(a.net, s.bool(), burn_in=a.config.burn_in).mean[0]
        assert torch.allclose(alone, mean, atol=1e-6), "as the network alone, on its real steps"


def test_a_resumed_run_has_the_same_bits(tmp_path):
    x, y = recordings(30)
    data = Series((x, y), (x, y))
    config = series("delta")
    whole = training.train(config, tmp_path / "whole", data=data, show=False)
    training.train(config.updated(**{"train.epochs": 2}), tmp_path / "parts", data=data, show=False)
    training.resume(tmp_path / "parts", ["train.epochs=4"], data=data, show=False)
    nets = [bisnn.load(run).net for run in (whole, tmp_path / "parts")]
    assert all(torch.equal(p, q) for p, q in zip(*(n.parameters() for n in nets), strict=True))
    with pytest.raises(ValueError, match=r"data: is not what .* began with"):
        evaluation.evaluate(whole, data=Series((x, 1 - y), (x, y)), show=False)


# Labels of time steps


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_labels_of_time_steps(task, tmp_path):
    (x, _), (test_x, _) = recordings(60, 1), recordings(30, 2)
    truth = lambda items: [item[:, 0] - item[:, 1] for item in items]  # noqa: E731
    y, test_y = truth(x), truth(test_x)
    test_y[0][4] = np.nan
    if task == "classification":
        y, test_y = ([np.where(v > 0, 1, 0) for v in part] for part in (y, test_y))
        test_y[0][4] = -1
    config = series(labels="step", task=task, validation=0.2, delays=[0, 1], substeps=2).updated(
        **{"train.epochs": 15, "train.over_time": "mean", "train.keep": "best"},
        **{"neuron.tau_mem": 2.0, "neuron.tau_syn": 1.0, "neuron.tau_ref": 1.0},
        network={"layers": [48], "readout_gain": 2.0},
    )
    data = Series((x, y), (test_x, test_y))
    run = bisnn.train(config, tmp_path / "run", data=data, show=False)
    verdict = bisnn.evaluate(run, data=data, show=False)
    assert verdict.points == sum(2 * len(item) for item in test_x) - 2 - 30 * config.burn_in
    assert verdict.beaten_by, "better than a guess"
    # By hand, recording by recording
    result, hits, errors = bisnn.load(run).predict_series(test_x).mean, [], []
    for i, labels in enumerate(test_y):
        for t, label in list(enumerate(np.repeat(labels, 2)))[config.burn_in :]:
            said = result[t - config.burn_in, i]
            if task == "classification" and label >= 0:
                hits.append(int(said.argmax()) == label)
            if task == "regression" and not np.isnan(label):
                errors.append((float(said[0]) - label) ** 2)
    (judged,) = verdict.metrics.values()
    if hits:
        assert judged["accuracy"].value == pytest.approx(np.mean(hits))
    else:
        assert judged["rmse"].value == pytest.approx(np.sqrt(np.mean(errors)))
    assert "report" in str(bisnn.report([run], show=False))


def test_intervals_of_steps_are_those_of_recordings():
    """Ten equal rows of each recording say no more than one."""
    probs = torch.from_numpy(RNG.dirichlet([1, 1, 1], 200))
    y = torch.from_numpy(RNG.integers(0, 3, 200))
    of = torch.arange(200).repeat_interleave(10)
    rows = [part.repeat_interleave(10, 0) for part in (probs, y)]
    for name in ("accuracy", "nll", "brier"):
        scores = metrics._linear(name, probs, y)
        want = metrics.mean_interval(scores)
        assert metrics.interval_of_steps(name, *rows, of) == pytest.approx(want)
        assert metrics.interval(name, *rows).high < want.high


# Files


def test_a_folder_of_csv_files_is_the_same_as_an_npz(tmp_path):
    x, y = recordings(20)
    x = [item.astype(np.float32) for item in x]
    names = np.array(["down", "up"])[y]
    np.savez(
        tmp_path / "all.npz",
        x=np.stack([np.pad(item, ((0, STEPS - len(item)), (0, 0))) for item in x]),
        y=names,
        lengths=[len(item) for item in x],
    )
    order = np.argsort(names, kind="stable")
    for place, i in enumerate(order):
        file = tmp_path / "folder" / names[i] / f"{place:03d}.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{t},{a:.9g},{b:.9g}" for t, (a, b) in enumerate(x[i])]
        file.write_text("\n".join(["time,a,b", *rows]))
    both = [
        series(train=str(path), test=str(path), drop=["time"]).data.load(0, "cpu", False)
        for path in (tmp_path / "folder", tmp_path / "all.npz")
    ]
    assert both[0].classes == both[1].classes == ("down", "up")
    pairs = [
        sorted(
            zip(
                part.train.x.spikes().movedim(1, 0).flatten(1).tolist(),
                part.train.y.tolist(),
                strict=True,
            )
        )
        for part in both
    ]
    assert pairs[0] == pairs[1]


def test_labels_of_time_steps_in_a_column(tmp_path):
    for name, labels in (("a", "x,,y,y"), ("b", "y,x,x,x"), ("c", "x,y,x,y")):
        rows = [f"{t},{2 * t},{label}" for t, label in enumerate(labels.split(","))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,state", *rows]))
    config = series(train=str(tmp_path), test=str(tmp_path), labels="step", steps=6)
    loaded = config.data.load(0, "cpu", False)
    assert loaded.classes == ("x", "y")
    mask = loaded.train.x.mask()
    assert mask.T.int().tolist()[0] == [1, 0, 1, 1, 0, 0]
    assert loaded.train.y[0][mask[:, 0]].tolist() == [0, 1, 1]


# From Python, and mistakes


def test_a_tensor_dataset_of_series_trains(tmp_path):
    x, y = torch.randn(20, STEPS, 3), torch.arange(20) % 2
    data = Series(TensorDataset(x, y), TensorDataset(x, y))
    assert str(data) == "Series(3 channels, 20 to train, 20 to test)"
    run = bisnn.train(series(), tmp_path / "run", data=data, show=False)
    assert bisnn.load(run).predict_series(x).mean.shape == (20, 2)


X, Y = np.random.default_rng(1).random((6, STEPS, 2)), np.arange(6) % 2
GOOD = (X, Y)
MISTAKES = {
    "a dataset alone": (
        lambda: bisnn.train(series(), data=TensorDataset(torch.zeros(3, 2), torch.zeros(3))),
        "data: must be a bisnn.data.Dataset, or a bisnn.data.Series of recordings over time; got a "
        "TensorDataset; give Dataset(train, test)",
    ),
    "series with another config": (
        lambda: bisnn.train(parse(SMALL, "x"), data=Series(GOOD, GOOD)),
        'data: series need a config with data.name = "series", which says how they become spikes; '
        'got "two_moons"',
    ),
    "values as spikes": (
        lambda: Dataset(GOOD, GOOD),
        "series of values, (N, T, D), are a bisnn.data.Series",
    ),
    "one sequence too short": (
        lambda: training.train(
            series().updated(**{"train.burn_in": 9}), data=Series(([X[0], X[1][:4]], [0, 1]), GOOD)
        ),
        "train.burn_in: must leave every recording a time step that counts; got 9, and a recording "
        "of 4 such time steps",
    ),
    "values for the code of spikes": (
        lambda: training.train(series("spikes"), data=Series(GOOD, GOOD)),
        'data.code = "spikes" takes values 0 and 1',
    ),
    "step labels where one is asked for": (
        lambda: training.train(series(), data=Series((X, np.zeros((6, STEPS), int)), GOOD)),
        'for a label per time step set data.labels = "step"',
    ),
    "one label where those of steps are": (
        lambda: training.train(series(labels="step"), data=Series(GOOD, GOOD)),
        'data.labels = "step" needs a label for each of the 16 time steps of recording 0',
    ),
    "a hole": (
        lambda: Series((np.where(X > 0.99, np.nan, X), Y), GOOD),
        "train: values must be finite; got nan in recording",
    ),
    "points": (
        lambda: Series((X[:, 0], Y), GOOD),
        "train: a recording must be numbers (T, D), time first; got float64 of shape (2,)",
    ),
    "other channels": (
        lambda: training.train(series(), data=Series(GOOD, (X[..., :1], Y))),
        "test: must have the 2 channels of the training recordings; got 1",
    ),
    "names as targets": (
        lambda: training.train(
            series(task="regression"), data=Series((X, ["a"] * 6), (X, ["b"] * 6))
        ),
        "train: targets must be numbers; got names",
    ),
    "latency without time": (lambda: series("latency"), "needs data.substeps of 2 or more"),
    "delays": (lambda: series(delays=[0, 20]), "must be different numbers below 16"),
    "ranges": (
        lambda: series(low=[1.0], high=[0.0]),
        "which training records; got [1.0] and [0.0]",
    ),
    "no file": (lambda: training.train(series()), "data.train: is missing; add the path"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_series_where_points_are_expected_name_the_way_out(tmp_path):
    np.savez(tmp_path / "x.npz", x=X, y=Y)
    table = {**SMALL, "data": {"name": "table", "train": str(tmp_path / "x.npz")}}
    with pytest.raises(ValueError, match=r'set data.name = "series"') as told:
        training.train(parse(table, "x"), tmp_path / "run", show=False)
    assert "reshape" not in str(told.value)
    run = training.train(
        parse(SMALL, "x").updated(**{"train.epochs": 1}), tmp_path / "p", show=False
    )
    with pytest.raises(ValueError, match=r'a model trained with data.name = "series"'):
        bisnn.load(run).predict(X)
