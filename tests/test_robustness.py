"""Test recordings with their events changed, and a run judged on them."""

from __future__ import annotations

import pickle
import re
import shutil
import sys

import numpy as np
import pytest
import torch

import bisnn
from bisnn import cli, metrics
from bisnn.data import Dataset, corrupt, events, read_events
from bisnn.data.archives import MNISTDVS, NMNIST, ChangedRecordings, Recordings
from bisnn.data.corruption import CORRUPTIONS, STRENGTHS
from bisnn.data.simulation import Digits
from bisnn.data.tonic_sets import FromTonic
from bisnn.runs import evaluation, robustness, training
from bisnn.runs.config import parse
from bisnn.runs.robustness import Robustness
from runs import RECORDED, made_up, made_up_nmnist, run_on_recordings, small


class Fake:
    """Of tonic's kind."""

    sensor_size = (34, 34, 2)

    def __len__(self):
        return 5

    def __getitem__(self, i):
        return made_up(300, 34, i), i % 2


def nmnist(folder):
    return NMNIST(made_up_nmnist(folder / "N"), classes=[3, 7], steps=12, show=False)


def mnist_dvs(folder):
    (folder / "scale04").mkdir()
    for digit in (3, 7):
        for number in (1, 2):
            name = f"mnist_{digit}_scale04_{number:04d}.aedat"
            found = made_up(500, 128, number)
            found["t"] += 5_000_000
            events.write_aedat(folder / "scale04" / name, found)
    return MNISTDVS(folder, classes=[3, 7], steps=12, show=False)


def digits(folder):
    return Digits(True, steps=5, bin_us=4000, show=False)


def tonic(folder):
    return FromTonic(Fake(), steps=6, bin_us=50_000, pool=4, show=False)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Digits, "TRAINING", 70)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("make", [nmnist, mnist_dvs, digits, tonic])
def test_events_that_are_not_changed_are_the_bits_of_the_dataset(make, tmp_path):
    """Also by a copy, as the process of a loader has it."""
    data = make(tmp_path)
    index = torch.tensor([len(data) - 1, 0, 3])
    for copy in (data, pickle.loads(pickle.dumps(data))):
        same = ChangedRecordings(copy.source, lambda seen: seen)
        assert torch.equal(same.batch(index), data.batch(index))
        assert data.batch(index).any()
    names = sorted(file.name for file in (tmp_path / "cache").iterdir())
    worse = ChangedRecordings(data.source, lambda seen: corrupt(seen, "moved_sensor", 4))
    changed = worse.batch(torch.arange(len(data)))
    assert not torch.equal(changed, data.batch(torch.arange(len(data))))
    assert torch.equal(worse.batch(index), changed[:, index]), "in any order and subset"
    assert sorted(file.name for file in (tmp_path / "cache").iterdir()) == names


@pytest.mark.usefixtures("own_cache")
def test_a_part_of_the_classes_is_changed_as_all_of_them(tmp_path):
    every = nmnist(tmp_path)
    some = NMNIST(tmp_path / "N", classes=[7], steps=12, show=False)
    change = lambda seen: corrupt(seen, "lost_events", 3)  # noqa: E731
    all_of_7 = torch.arange(3, 6)
    assert torch.equal(
        ChangedRecordings(some.source, change).batch(torch.arange(3)),
        ChangedRecordings(every.source, change).batch(all_of_7),
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return run_on_recordings(tmp_path_factory.mktemp("robust"))


def bisnn_(capsys, monkeypatch, *arguments, columns=200):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "argv", ["bisnn", *map(str, arguments)])
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    return code, *capsys.readouterr()


def test_a_run_is_judged_under_every_corruption(recorded, tmp_path, capsys, monkeypatch):
    """The numbers are those of the same files, corrupted by hand and predicted one by one."""
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    run, root = shutil.copytree(recorded[0], tmp_path / "run"), recorded[1]
    assert bisnn_(capsys, monkeypatch, "evaluate", run, "-q")[0] == 0
    plain = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
    assert "corruptions.json" not in plain
    code, out, error = bisnn_(capsys, monkeypatch, "evaluate", run, "--corruptions", "-q")
    assert code == 0, error
    for name, content in plain.items():
        assert (run / name).read_bytes() == content, f"{name} is as without corruptions"
    text = (run / "corruptions.json").read_bytes()
    found = Robustness.model_validate_json(text)
    assert [(row.kind, row.strength) for row in found.corrupted] == [
        (kind, strength) for kind in CORRUPTIONS for strength in range(1, STRENGTHS + 1)
    ]
    files = sorted(root.glob("Test/*/*.bin"))
    labels = torch.tensor([[3, 7].index(int(file.parent.name)) for file in files])
    model = bisnn.load(run)
    for row in found.corrupted[::7]:
        assert row.amount == CORRUPTIONS[row.kind].amounts[row.strength - 1]
        worse = [corrupt(read_events(file), row.kind, row.strength) for file in files]
        for name, members in {"MAP": None, "ensemble of 3": 3}.items():
            probs = model.predict_recordings(worse, members).mean
            assert row.predictors[name].model_dump() == {
                "accuracy": metrics.accuracy(probs, labels),
                "nll": pytest.approx(metrics.nll(probs, labels), rel=1e-5),
                "ece": pytest.approx(metrics.ece(probs, labels), abs=1e-5),
            }
    judged = evaluation.load_evaluation(run)
    for name, mean in found.mean.items():
        rows = [row.predictors[name] for row in found.corrupted]
        assert mean.nll == pytest.approx(np.mean([row.nll for row in rows]))
        assert mean.accuracy == pytest.approx(np.mean([row.accuracy for row in rows]))
        assert found.clean[name].nll == pytest.approx(judged.metrics[name]["nll"].value)
        assert f"{name}, mean over the suite: accuracy {mean.accuracy:.4f}" in out
    assert found.model == judged.model
    assert found.recordings == judged.recordings
    lost = [row.predictors["MAP"].nll for row in found.corrupted[:STRENGTHS]]
    cells = " ".join(f"{value:.3f}" for value in [found.clean["MAP"].nll, *lost, np.mean(lost)])
    assert f"NLL {cells}" in " ".join(out.split())
    _, out, _ = bisnn_(capsys, monkeypatch, "evaluate", run, "--corruptions", "-q", columns=80)
    assert (run / "corruptions.json").read_bytes() == text
    for kind in CORRUPTIONS:
        assert re.search(rf"^ *{kind.replace('_', ' ')} +accuracy( +[01]\.\d{{3}}){{7}}", out, re.M)


def test_a_run_without_events_is_refused_before_any_work(tmp_path, capsys, monkeypatch):
    points = training.train(small("st"), tmp_path / "points", show=False)
    code, out, error = bisnn_(capsys, monkeypatch, "evaluate", points, "--corruptions", "-q")
    assert (code, out) == (1, "")
    assert "points: corruptions change recordings of events" in error
    assert "got a run on points; leave out --corruptions" in error
    assert not (points / "evaluation.json").exists()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, (8, 12, 2, 17, 17)), np.arange(8) % 2
    data = Dataset((x, y), (x, y))
    settings = {name: part for name, part in RECORDED.items() if name != "data"}
    config = parse({**settings, "data": {"name": "python"}, "augment": {}}, "spikes")
    run = bisnn.train(config, tmp_path / "spikes", data=data, show=False)
    loaded = evaluation.load_run(run, data, show=False)[1]
    with pytest.raises(ValueError, match="got a run on spikes without their events"):
        robustness.source_of(run, loaded)


def test_recordings_without_a_source_are_refused(tmp_path, recorded, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    _, loaded = evaluation.load_run(recorded[0], show=False)
    clips = loaded.test.x
    clips.recordings = Recordings(clips.recordings.bits, [0] * 4, ["0"])
    with pytest.raises(ValueError, match="got a run on spikes without their events"):
        robustness.source_of(recorded[0], loaded)
