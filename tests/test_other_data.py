"""Other data beside the test recordings: what evaluation finds, against scikit-learn's scores."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import bisnn
from bisnn.data import events, simulation
from bisnn.runs import evaluation, other_data, training
from bisnn.runs.inputs import load_dataset
from bisnn.runs.other_data import CONTROL, Pictures, film
from runs import made_up, run_on_recordings, small
from test_simulation import idx


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on 3 and 7, a folder of recordings of 3 and 5, and one of pictures."""
    folder = tmp_path_factory.mktemp("others")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BISNN_CACHE", str(folder / "cache"))
        run_on_recordings(folder)
    for digit, side in (("3", 17), ("5", 9)):
        (folder / "more" / digit).mkdir(parents=True)
        for i in range(6):
            recording = made_up(1500, side, 100 * side + i)
            events.write_nmnist(folder / "more" / digit / f"{i}.bin", recording)
    (folder / "pictures").mkdir()
    bytes_ = np.random.default_rng(0).integers(0, 256, (8, 28, 28), dtype=np.uint8)
    (folder / "pictures" / "noise-images-idx3-ubyte").write_bytes(idx(bytes_))
    np.savez(folder / "pictures" / "stripes.npz", arr_0=np.repeat(bytes_[:, :1], 28, 1))
    return folder


@pytest.fixture(autouse=True)
def small_and_apart(place, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(place / "cache"))
    monkeypatch.setattr(other_data, "MOST", 10)


def truth(own, other):
    """0 for test recordings, 1 for others, and their scores."""
    labels = np.concatenate([np.zeros(len(own)), np.ones(len(other))])
    return labels, torch.cat([own, other]).numpy()


def test_recordings_of_other_things_and_of_the_runs_own(place):
    found = evaluation.evaluate(place / "run", show=False, ood=place / "more").ood
    other, control = found.sets
    assert [(s.name, s.control, s.recordings) for s in found.sets] == [
        ("other recordings", False, 6),
        ("own classes, recorded there", True, 6),
    ]
    model = bisnn.load(place / "run")
    test = load_dataset(model.config, show=False).test
    for which, digit in ((other, "5"), (control, "3")):
        files = sorted((place / "more" / digit).iterdir())
        for predictor, samples in (("MAP", None), ("ensemble of 3", 3)):
            own, theirs = (
                model.predict_points(test.x, samples),
                model.predict_recordings(files, samples),
            )
            scores = {"entropy": (own.entropy, theirs.entropy)}
            if samples:
                scores["mutual information"] = (own.mutual_information, theirs.mutual_information)
            for name, pair in scores.items():
                labels, values = truth(*pair)
                row = which.scores[predictor][name]
                assert row.auroc == pytest.approx(roc_auc_score(labels, values))
                assert row.aupr == pytest.approx(average_precision_score(labels, values))
    assert "mutual information" not in other.scores["MAP"]
    stored = evaluation.load_evaluation(place / "run")
    assert stored.ood == found
    assert torch.equal(
        stored.other_entropy["own classes, recorded there"]["ensemble of 3"], theirs.entropy
    )
    assert json.loads((place / "run" / "evaluation.json").read_text())["ood"]["sets"][1]["control"]
    assert evaluation.evaluate(place / "run", show=False).ood == found, "nothing is lost"
    kept = evaluation.load_evaluation(place / "run").other_entropy
    assert kept.keys() == stored.other_entropy.keys()
    model, loaded = evaluation.load_run(place / "run", show=False)
    tempered = evaluation.evaluate_model(place / "run", model.tempered(2.0), loaded, show=False)
    assert tempered.ood is None, "it was found at another temperature"


def test_pictures_go_in_front_of_a_camera_and_so_do_the_runs_own_digits(place):
    model = bisnn.load(place / "run")
    sets = other_data.others_of(place / "pictures", model, show=False)
    names = [("noise", 8, False), ("stripes", 8, False), (CONTROL, 10, True)]
    assert [(s.name, len(s.x), s.control) for s in sets] == names
    images, labels = simulation.sklearn_digits()
    own = [i for i, label in enumerate(labels) if label in (3, 7)][:10]
    expected = film("own", Pictures(images[own], own), model.config.data, "cpu", show=False)
    assert torch.equal(sets[2].x.spikes(), expected.spikes())
    assert not torch.equal(sets[0].x.spikes(), sets[1].x.spikes())


def test_the_command_line(place, tmp_path, bisnn_):
    code, out, error = bisnn_("evaluate", place / "run", "--ood", place / "more", "-q")
    assert code == 0, error
    assert "AUROC" in out
    assert "control: the run's own classes there; how they were recorded tells them apart" in out
    (tmp_path / "empty").mkdir()
    shutil.copytree(place / "more" / "3", tmp_path / "own" / "3")
    moons = training.train(small("st"), tmp_path / "moons", show=False)
    for run, folder, message in (
        (place / "run", tmp_path / "empty", "ood: must hold recordings (.aedat, .bin,"),
        (place / "run", tmp_path / "none", "ood: must be a folder of recordings or pictures"),
        (place / "run", tmp_path / "own", "recordings of other things than the classes 3, 7"),
        (moons, place / "more", "ood: is for runs on recordings with classes"),
    ):
        code, _, error = bisnn_("evaluate", run, "--ood", folder, "-q")
        assert code == 1
        assert message in error
