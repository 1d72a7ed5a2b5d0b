"""Data and rules of the user's own: given from Python, or named module:name on the command line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import bisnn
from bisnn import cli
from bisnn.data import Dataset, Window, events
from bisnn.runs import config, evaluation, training
from bisnn.runs.config import parse
from runs import RECORDED, RULES, SMALL, made_up_nmnist, small

OWN = ("own_rule", "own_dataset")
EXAMPLES = Path(__file__).parent.parent / "examples"
QUICK = ("--set", "train.epochs=2", "--set", "network.layers=[8]", "--quiet")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(3, 7, (30, 4)), RNG.integers(0, 2, 30)
TEST_X, TEST_Y = RNG.normal(3, 7, (20, 4)), RNG.integers(0, 2, 20)
POINTS = Dataset((X, Y), (TEST_X, TEST_Y))
SPIKES = (RNG.random((12, 30, 6)) < 0.4, np.arange(12) % 3)


def on_spikes(**changes):
    sections = {name: section for name, section in SMALL.items() if name != "encode"}
    return parse({**sections, "data": {"name": "python"}}, "spikes").updated(**changes)


def weights(run):
    return {name: p for name, p in bisnn.load(run).net.state_dict().items()}


def assert_same_model(a, b):
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs bisnn in the folder of the examples, which are modules there and nowhere else."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bisnn", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as done:
            return done.code or 0
        return 0

    def forget():
        """As on a machine that has none of the modules."""
        monkeypatch.chdir(tmp_path)
        for name in OWN:
            sys.modules.pop(name, None)
        sys.path[:] = [place for place in sys.path if place != str(EXAMPLES)]

    run.forget = forget
    yield run
    forget()


# By name


NAMED = {
    "rule": ["two_moons_st", "--set", "rule.name=own_rule:SignDescent", "--set", "rule.decay=0.1"],
    "optimizer": ["two_moons_st", "--set", "rule.name=torch.optim:AdamW", "--set", "rule.lr=0.01"],
    "points": ["own_dataset.toml", "--set", "data.points=40"],
    "spikes": [
        *("own_dataset.toml", "--set", "data.name=own_dataset:chirps"),
        *("--set", "data.recordings=20", "--set", "data.steps=20"),
    ],
}


@pytest.mark.parametrize("kind", NAMED)
def test_own_rules_and_datasets_train_from_the_command_line(kind, command, tmp_path, capsys):
    run = tmp_path / "run"
    assert command("train", *NAMED[kind], *QUICK, "--out", run) == 0
    module = NAMED[kind][2] if kind == "rule" else ""
    assert (run / "report.html").exists()
    assert command("evaluate", run, "--quiet") == 0
    told = capsys.readouterr()
    assert "95 % interval" in told.out
    assert not module or "imports own_rule, which runs its code" in told.err
    resolved = config.load(run / "config.toml")
    assert resolved.rule.posterior() == (kind in ("points", "spikes"))
    assert resolved.rule.real_weights() == (kind == "optimizer")
    assert resolved.recorded == (kind == "spikes")
    assert command("resume", run, "--set", "train.epochs=3", "--quiet") == 0
    # Elsewhere, the model loads, predicts and ships without the module
    command.forget()
    model = bisnn.load(run)
    shape = (5, model.config.steps, *model.net.input_shape) if kind == "spikes" else (5, 2)
    x = np.random.default_rng(0).integers(0, 2, shape)
    result = model.predict_spikes(x) if kind == "spikes" else model.predict(x)
    assert result.mean.shape == (5, 2)
    if kind != "optimizer":
        assert command("export", run) == 0
    assert not set(OWN) & sys.modules.keys()
    if kind in ("points", "spikes"):
        with pytest.raises(ValueError, match="the module 'own_dataset' cannot be imported"):
            evaluation.evaluate(run, show=False)


def test_own_rule_is_what_it_says(command, tmp_path):
    """Every latent moves by whole steps of lr, at most one for each update."""
    folder = training.train(
        small("st", {"rule": {"name": "own_rule:SignDescent", "lr": 0.05}}, **{"train.epochs": 2}),
        tmp_path / "run",
        show=False,
    )
    begun = parse({**SMALL, "rule": RULES["st"]}, "x")
    start = training.Training(begun, training.Processes(0, 1, torch.device("cpu")), show=False)
    for p, first in zip(bisnn.load(folder).net.parameters(), start.net.parameters(), strict=True):
        steps = ((p - first) / 0.05).detach()
        assert torch.allclose(steps, steps.round(), atol=1e-4), "whole steps of lr"
        assert steps.abs().round().max() <= 2 * start.steps_per_epoch


MISNAMED = {
    "rule.name=nowhere:Rule": "rule.name: the module 'nowhere' cannot be imported",
    "rule.name=own_rule:Nothing": "rule.name: the module 'own_rule' has no 'Nothing'",
    "rule.name=own_dataset:rings": "must be a class of optimizers, such as a subclass of",
    "rule.name=own_rule:": "rule.name: string must match pattern",
    "rule.momentum=1": "rule.momentum: unknown key; SignDescent takes lr, decay",
    "data.name=own_dataset:nothing": "data.name: the module 'own_dataset' has no 'nothing'",
    "data.name=builtins:dict": "builtins:dict must return a bisnn.data.Dataset; got a dict",
    "data.noises=3": "data.noises: unknown key; rings takes points, noise, seed",
    "data.name=python": "data: the data of this run were given from Python",
}


@pytest.mark.parametrize("override", MISNAMED)
def test_mistakes_in_names_and_options(override, command, tmp_path, capsys):
    sets = ["rule.name=own_rule:SignDescent", "rule.lr=0.1", override]
    sets = [part for setting in sets for part in ("--set", setting)]
    train = ["train", "own_dataset.toml", *sets, *QUICK, "--out", tmp_path / "r"]
    assert command(*train) == 1
    assert MISNAMED[override] in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_required_options_are_asked_for(tmp_path, monkeypatch):
    (tmp_path / "needy_rule.py").write_text(
        "import bisnn.rules\nclass Needy(bisnn.rules.Rule):\n"
        "    def __init__(self, params, lr, bound):\n        super().__init__(params, {'lr': lr})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = small("st", {"rule": {"name": "needy_rule:Needy", "lr": 0.05}})
    with pytest.raises(ValueError, match=r"rule.bound: is missing; add it: Needy needs it"):
        training.train(settings, tmp_path / "run", show=False)


# From Python


def test_arrays_train_as_the_same_rows_of_a_table(tmp_path):
    np.savez(tmp_path / "train.npz", x=X, y=Y)
    np.savez(tmp_path / "test.npz", x=TEST_X, y=TEST_Y)
    data = {"name": "table", "train": str(tmp_path / "train.npz"), "validation": 0.2}
    table = small("bayes", {"data": {**data, "test": str(tmp_path / "test.npz")}})
    from_file = training.train(table, tmp_path / "file", show=False)
    given = bisnn.train(table, tmp_path / "given", data=POINTS, show=False)
    assert_same_model(from_file, given)
    verdicts = [
        evaluation.evaluate(from_file, show=False),
        bisnn.evaluate(given, data=POINTS, show=False),
    ]
    assert verdicts[0].metrics == verdicts[1].metrics
    models = [bisnn.load(run) for run in (from_file, given)]
    assert torch.equal(models[0].predict(TEST_X).mean, models[1].predict(TEST_X).mean)
    written = (given / "config.toml").read_text()
    assert 'name = "python"' in written
    assert "train.npz" not in written


@pytest.mark.parametrize("kind", ["tensors", "lists", "torch's"])
def test_any_container_of_the_same_data(kind, tmp_path):
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    train = {
        "tensors": (x, y),
        "lists": (X.tolist(), Y.tolist()),
        "torch's": TensorDataset(x, y),
    }[kind]
    made = Dataset(train, (TEST_X, TEST_Y)).load(0.2, 0)
    assert made.digest() == POINTS.load(0.2, 0).digest()


def test_real_targets_are_in_their_own_units(tmp_path):
    target = 1000 + 50 * X[:, 0]
    data = Dataset((X, target), (TEST_X, 1000 + 50 * TEST_X[:, :1]))
    run = bisnn.train(small("st"), tmp_path / "run", data=data, show=False)
    assert bisnn.load(run).config.task == "regression"
    mean = bisnn.load(run).predict(TEST_X).mean
    assert mean.shape == (20, 1)
    assert 500 < float(mean.mean()) < 2500
    assert "rmse" in bisnn.evaluate(run, data=data, show=False).metrics["sign"]


def test_spikes_train_evaluate_and_predict(tmp_path):
    data = Dataset(SPIKES, SPIKES, classes=["a", "b", "c"])
    run = bisnn.train(on_spikes(), tmp_path / "run", data=data, show=False)
    verdict = bisnn.evaluate(run, data=data, show=False)
    assert verdict.points == 12
    model = bisnn.load(run)
    assert (model.classes, model.net.input_shape, model.config.steps) == (("a", "b", "c"), (6,), 30)
    result = model.predict_spikes(SPIKES[0], samples=3)
    direct = bisnn.predict(
        model.net, torch.from_numpy(SPIKES[0]).movedim(0, 1).float(), 3, burn_in=2
    )
    assert torch.equal(result.mean, direct.mean)
    bisnn.report([run], show=False)
    for x in (SPIKES[0][:, :-1], SPIKES[0][0], 2 * SPIKES[0].astype(int)):
        with pytest.raises(ValueError, match=r"x: must be spikes, 0 or 1, \(N, 30, 6\)"):
            model.predict_spikes(x)
    with pytest.raises(ValueError, match="knows no way from events to them; use predict_spikes"):
        model.predict_recordings([np.zeros(3, events.EVENTS)])
    points = bisnn.train(small(), tmp_path / "points", data=POINTS, show=False)
    with pytest.raises(ValueError, match="takes no spikes; use predict"):
        bisnn.load(points).predict_spikes(SPIKES[0])


def test_events_train_as_the_same_files_of_an_archive(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    root = made_up_nmnist(tmp_path / "N")
    settings = parse({**RECORDED, "data": {**RECORDED["data"], "root": str(root)}}, "run")
    archive = training.train(settings, tmp_path / "archive", show=False)
    parts = []
    for part in ("Train", "Test"):
        files = sorted((root / part).rglob("*.bin"))
        labels = [0 if file.parent.name == "3" else 1 for file in files]
        parts.append(([events.read_nmnist(file).events for file in files], labels))
    window = Window((34, 34), steps=12, bin_us=25_000)
    data = Dataset(*parts, classes=["3", "7"], window=window)
    given = bisnn.train(settings, tmp_path / "given", data=data, show=False)
    assert_same_model(archive, given)
    seen = [bisnn.load(run).predict_recordings(files) for run in (archive, given)]
    assert torch.equal(seen[0].mean, seen[1].mean)
    bisnn.evaluate(given, data=data, show=False)
    bisnn.report([given], show=False)


def test_a_run_on_given_data_asks_for_them_again(tmp_path):
    run = bisnn.train(small(), tmp_path / "run", data=POINTS, show=False)
    asks = "the data of this run were given from Python and are in no file; give them again"
    with pytest.raises(ValueError, match=asks):
        bisnn.evaluate(run, show=False)
    with pytest.raises(ValueError, match=asks):
        bisnn.resume(run, show=False)
    other = Dataset((X + 1, Y), (TEST_X, TEST_Y))
    other.x[0][0, 0] += 5
    for again in (bisnn.evaluate, bisnn.resume):
        with pytest.raises(
            ValueError, match=r"is not what .* began with: give the same data again"
        ):
            again(run, data=other, show=False)
    assert bisnn.resume(run, data=POINTS, show=False) == run


def test_a_resumed_run_on_given_data_ends_with_the_same_bits(tmp_path):
    whole = bisnn.train(small(), tmp_path / "whole", data=POINTS, show=False)
    shorter = small(**{"train.epochs": 2})
    part = bisnn.train(shorter, tmp_path / "part", data=POINTS, show=False)
    bisnn.resume(part, ["train.epochs=4"], data=POINTS, show=False)
    assert_same_model(whole, part)


BAD = {
    "no labels": (lambda: Dataset(X, (X, Y)), "train: must have labels: a pair (x, y)"),
    "items without labels": (
        lambda: Dataset((X, Y), [x for x in X]),
        "test: must have labels: each item a pair (input, label); got a ndarray in place 0",
    ),
    "fewer labels": (
        lambda: Dataset((X, Y[:-1]), (X, Y)),
        "train: must have one label for each of its 30 inputs; got shape (29,)",
    ),
    "words": (
        lambda: Dataset((X, Y.astype(str)), (X, Y)),
        "train: labels must be whole numbers of classes, or real targets; got <U",
    ),
    "negative": (lambda: Dataset((X, Y - 1), (X, Y)), "numbers of classes, from 0 on; got -1"),
    "NaN targets": (lambda: Dataset((X, Y * np.nan), (X, Y)), "train: targets must be finite"),
    "NaN": (
        lambda: Dataset((X, Y), (np.where(X[2, 1] == X, np.nan, X), Y)),
        "test: features must be finite; got nan in row 2, column 1; fill it in or drop the row",
    ),
    "one number each": (lambda: Dataset((X[:, 0], Y), (X, Y)), "features (N, d) or spikes (N, T"),
    "real spikes": (
        lambda: Dataset((SPIKES[0] * 0.5, SPIKES[1]), SPIKES),
        "train: spikes (N, T, ...) must be 0 or 1; got other values; series of values",
    ),
    "unequal lengths": (
        lambda: Dataset(([np.zeros((3, 2)), np.zeros((4, 2))], [0, 1]), SPIKES),
        "train: its inputs must be arrays of one shape",
    ),
    "other features": (
        lambda: Dataset((X, Y), (X[:, :3], Y)),
        "test: must have inputs of the shape of train's, (4,); got (3,)",
    ),
    "other labels": (lambda: Dataset((X, Y), (X, 1.5 * Y)), "test: must have labels of the kind"),
    "few names": (lambda: Dataset((X, Y), (X, Y), classes=["a"]), "classes: must be a name of its"),
    "names of targets": (
        lambda: Dataset((X, 1.5 * Y), (X, 1.5 * Y), classes=["a", "b"]),
        "classes: are of whole numbers, and the labels are real targets",
    ),
    "events without a window": (
        lambda: Dataset(([np.zeros(3, events.EVENTS)] * 2, [0, 1]), SPIKES),
        "give a window, which says how events become spikes",
    ),
    "window": (lambda: Dataset((X, Y), (X, Y), window=(34, 34)), "must be a bisnn.data.Window"),
    "array of events": (
        lambda: Dataset((X, Y), (X, Y), window=Window((34, 34), 5, 100)),
        "train: events must come as a list of one array per recording; got ndarray",
    ),
    "empty": (lambda: Dataset((X[:0].reshape(0, 4), []), (X, Y)), "train: "),
}


@pytest.mark.parametrize("mistake", BAD)
def test_bad_data(mistake):
    make, message = BAD[mistake]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_settings_that_do_not_fit_given_data(tmp_path):
    data = Dataset(SPIKES, SPIKES)
    for sections, message in (
        ({"encode": {"steps": 30}}, "encode is for points; python has recordings"),
        ({"augment": {"shift": 1}}, "augment is for recordings of pixels"),
        ({"train": {"burn_in": 40, "epochs": 1}}, "train.burn_in must be below data.steps = 30"),
        ({"train": {"burn_in": 2}}, "train.epochs: is missing, and recordings have no default"),
    ):
        settings = parse({**on_spikes().model_dump(exclude_none=True), **sections}, "x")
        with pytest.raises(ValueError, match=message):
            bisnn.train(settings, tmp_path / "run", data=data, show=False)
    convolutional = on_spikes(**{"network.conv": [{"channels": 2, "kernel": 3}]})
    with pytest.raises(ValueError, match=r"network.conv and augment are for recordings"):
        bisnn.train(convolutional, tmp_path / "run", data=POINTS, show=False)
    assert not (tmp_path / "run").exists()
