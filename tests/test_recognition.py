"""The table on recordings: which configs a folder asks for, its rows, its paired differences, its
picture.
"""

from __future__ import annotations

import gzip
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bisnn import metrics
from bisnn.data import events
from bisnn.runs import evaluation
from bisnn.runs.config import parse
from bisnn_experiments import recognition, reproduction, terminal
from bisnn_experiments.results import Figures, Row, Summary, read, summarise
from runs import RECORDED, made_up, made_up_nmnist
from test_simulation import idx

SMALL = {name: RECORDED[name] for name in ("network", "neuron", "train")}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))


def test_a_folder_says_what_it_holds(tmp_path):
    kind, chosen = recognition.experiment(None, "tuned")
    assert (kind, [c.data.name for c in chosen.values()]) == ("digits", ["digits"] * 3)
    assert [c.rule.name for c in chosen.values()] == ["full", "st", "bayes"]

    kind, chosen = recognition.experiment(made_up_nmnist(tmp_path / "N"), "tuned")
    data = chosen["ST-BiSNN"].data
    assert (kind, data.name, data.classes, data.root) == (
        "nmnist",
        "nmnist",
        [3, 7],
        str(tmp_path / "N"),
    )

    (tmp_path / "V" / "scale04").mkdir(parents=True)
    events.write_aedat(
        tmp_path / "V" / "scale04" / "mnist_0_scale04_0001.aedat", made_up(10, 128, 0)
    )
    kind, chosen = recognition.experiment(tmp_path / "V", "tuned")
    assert (kind, chosen["full precision"].data.name) == ("mnist_dvs", "mnist_dvs")

    (tmp_path / "M").mkdir()
    (tmp_path / "M" / "train-images-idx3-ubyte.gz").write_bytes(
        gzip.compress(idx(np.zeros((1, 28, 28), np.uint8)))
    )
    kind, through = recognition.experiment(tmp_path / "M", "tuned")
    data, real = through["Bayes-BiSNN"].data, chosen["Bayes-BiSNN"].data
    assert (kind, data.name, data.root) == ("mnist", "digits", str(tmp_path / "M"))
    assert (data.steps, data.bin_us, data.crop) == (real.steps, real.bin_us, real.crop), (
        "the protocol of MNIST-DVS"
    )


def test_other_folders_are_one_message(tmp_path):
    with pytest.raises(ValueError, match="data: there is no folder"):
        recognition.experiment(tmp_path / "no", "tuned")
    with pytest.raises(ValueError, match="holds neither N-MNIST"):
        recognition.experiment(tmp_path, "tuned")
    with pytest.raises(ValueError, match="recipe: the paper's is for MNIST-DVS"):
        recognition.experiment(None, "paper")


def test_the_table(tmp_path, monkeypatch):
    """From a folder to results.json: rows agree with the runs' own evaluations, differences are
    paired over both seeds.
    """
    root = made_up_nmnist(tmp_path / "N")
    chosen = recognition.experiment

    def small(data, recipe):
        kind, configs = chosen(data, recipe)
        changes = {
            f"{section}.{key}": value for section in SMALL for key, value in SMALL[section].items()
        }
        changes |= {
            "data.steps": 12,
            "data.bin_us": 25_000,
            "predict.burn_in": 2,
            "train.epochs": 1,
        }
        return kind, {label: config.updated(**changes) for label, config in configs.items()}

    monkeypatch.setattr(recognition, "experiment", small)
    monkeypatch.setattr(
        reproduction,
        "run_all",
        lambda tasks, jobs, show, meanwhile: [reproduction.measure(*task) for task in tasks],
    )
    results = reproduction.reproduce(
        ["table1"], seeds=[0, 1], out=tmp_path / "out", data=root, device="cpu", show=False
    )
    assert read(tmp_path / "out" / "results.json", Figures) == results
    assert (tmp_path / "out" / "table1_nmnist.png").read_bytes().startswith(b"\x89PNG")
    table = results.figures["table1_nmnist"]
    names = [(row.method, row.predictor) for row in table.summary]
    bayes = [("Bayes-BiSNN", "MAP"), ("Bayes-BiSNN", "ensemble of 10")]
    assert names == [("full precision", "real weights"), ("ST-BiSNN", "sign"), *bayes]

    judged = evaluation.load_evaluation(tmp_path / "out" / "runs" / "nmnist_st_tuned_seed1")
    row = next(row for row in table.rows if (row.predictor, row.seed) == ("sign", 1))
    assert row.accuracy == judged.metrics["sign"]["accuracy"].value
    bits = judged.memory.weights
    memory = {row.predictor: row.memory_bytes for row in table.rows}
    assert memory == {
        "real weights": 4 * bits,
        "sign": bits // 8,
        "MAP": bits // 8,
        "ensemble of 10": 10 * bits // 8,
    }
    assert 0 < row.synaptic_operations == judged.energy.rows["sign"].synaptic_operations

    difference = next(d for d in table.differences if (d.a, d.b) == ("ensemble", "sign"))
    assert difference.seeds == 2
    means = {row.predictor: row.nll.mean for row in table.summary}
    assert difference.nll.value == pytest.approx(means["ensemble of 10"] - means["sign"])
    assert difference.nll.low <= difference.nll.value <= difference.nll.high
    assert [(d.a, d.b) for d in table.differences] == list(recognition.PAIRS)
    assert "synaptic\nops" in [str(column.header) for column in terminal.table(table).columns]
    assert set(recognition.COMPARED) <= set(metrics.JUDGED)
    assert row.ece == pytest.approx(metrics.ece(judged.predictors["sign"].mean, judged.y))


def test_runs_on_other_recordings_are_not_compared(tmp_path, monkeypatch):
    first = {"y": torch.tensor([0, 1]), "recordings": "a", "predictors": {}}
    for other in ({"y": torch.tensor([1, 1])}, {"recordings": "b"}):
        found = iter([SimpleNamespace(**first), SimpleNamespace(**first | other)])
        monkeypatch.setattr(evaluation, "load_evaluation", lambda folder, found=found: next(found))
        with pytest.raises(ValueError, match="was judged on other recordings"):
            recognition.differences([tmp_path / "a", tmp_path / "b"])


def test_runs_are_measured_also_without_their_checkpoint_and_elsewhere(tmp_path):
    """Seconds are then unknown; a run of a GPU is measured on a CPU, but not trained on."""
    judged = SimpleNamespace(seconds=None, epoch=3)
    rows = [Row.of(judged, "sign", "a", seed, accuracy=0.5) for seed in range(2)]
    assert [(row.epochs, row.training_seconds) for row in rows] == [(3, None)] * 2
    assert summarise(rows, Summary)[0].training_seconds is None
    config = parse({**RECORDED, "data": {**RECORDED["data"], "root": str(tmp_path)}}, "run")
    run = reproduction.RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.create(config.updated(**{"train.device": "cuda"}))
    with pytest.raises(ValueError, match="was trained on 'cuda'; go on with that --device"):
        reproduction._ensure_trained(config, run.path, train=True)
    reproduction._ensure_trained(config, run.path, train=False)
