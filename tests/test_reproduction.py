"""The paper's figures from small stand-ins of their runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bisnn.runs import config
from bisnn_experiments import drawing, pages, reproduction, terminal
from bisnn_experiments.reproduction import Entry, farthest, grid, in_clusters
from bisnn_experiments.results import Figures, read
from runs import ONE_D, small

ENTRIES = {
    "fig1": {"tuned": [Entry("ST-BiSNN", "one_d_st"), Entry("Bayes-BiSNN", "one_d_bayes")]},
    "fig2": {
        "tuned": [
            Entry("ST-BiSNN", "moons_st"),
            *reproduction._temperatures("moons_bayes", 1e-6, 1e-2),
        ],
    },
}
CONFIGS = {
    "one_d_st": small("st", ONE_D),
    "one_d_bayes": small("bayes", ONE_D),
    "moons_st": small("st"),
    "moons_bayes": small("bayes"),
}


@pytest.fixture
def stand_ins(monkeypatch):
    monkeypatch.setattr(reproduction, "FIGURES", ENTRIES)
    monkeypatch.setattr(reproduction, "GRID", 8)
    monkeypatch.setattr(
        config,
        "load",
        lambda name, overrides=(): CONFIGS[name] if name in CONFIGS else LOAD(name, overrides),
    )


LOAD = config.load


def test_results_and_figures(stand_ins, tmp_path, monkeypatch):
    monkeypatch.setattr(
        reproduction,
        "run_all",
        lambda tasks, jobs, show, meanwhile: [reproduction.measure(*task) for task in tasks],
    )
    results = reproduction.reproduce(seeds=[0, 1], out=tmp_path, jobs=2, show=False)
    assert results == read(tmp_path / "results.json", Figures)
    moons = results.figures["fig2"]
    assert [(row.method, row.predictor, row.seed) for row in moons.rows][:4] == [
        ("ST-BiSNN", "sign", 0),
        ("ST-BiSNN", "sign", 1),
        ("Bayes-BiSNN, rho = 1e-06", "MAP", 0),
        ("Bayes-BiSNN, rho = 1e-06", "ensemble of 3", 0),
    ]
    mean = moons.summary[0].accuracy.mean
    assert mean == pytest.approx(sum(row.accuracy for row in moons.rows[:2]) / 2)
    for row in results.figures["fig1"].rows:
        one = row.predictor in ("sign", "MAP")
        expected = None if one else row.deviation_gaps / row.deviation_inside
        assert row.deviation_ratio == expected
    assert len(moons.panels) == 5, "a panel a predictor, of the first seed"
    first = moons.panels[0]
    p = torch.tensor(first.p1)
    far = farthest(grid(), torch.tensor(moons.training_points.x))
    assert moons.rows[0].far_confidence == pytest.approx(
        float(torch.maximum(p, 1 - p)[far].mean()), abs=2e-5
    )
    again = reproduction.reproduce(["fig2"], seeds=[0, 1], out=tmp_path, jobs=2, show=False)
    assert again.figures["fig2"].rows == moons.rows, "finished runs are taken as they are"
    assert again.figures["fig2"].wall_seconds is None, "which is no time to report"
    assert again.figures["fig1"] == results.figures["fig1"], "the other figure's results stay"
    pictures = {name: (tmp_path / f"{name}.png").read_bytes() for name in ("fig1", "fig2")}
    for name in pictures:
        drawing.FIGURES[name](
            read(tmp_path / "results.json", Figures).figures[name], tmp_path / "again.png"
        )
        assert (tmp_path / "again.png").read_bytes() == pictures[name], (
            "drawn from results.json alone"
        )
    assert "ST-BiSNN" in str(list(terminal.table(moons).columns[0].cells))


@pytest.mark.slow
def test_pages_of_runs(stand_ins, tmp_path):
    """A report of all runs, and the first that has a posterior, to play with."""
    reproduction.reproduce(["fig2"], seeds=[0], out=tmp_path, jobs=2, show=False)
    runs = reproduction.run_folders(["fig2"], "tuned", [0], tmp_path)
    assert all(run.is_dir() for run in runs)
    written = pages.write(runs, tmp_path, 2, False)
    report = (tmp_path / "report.html").read_text()
    assert all(run.name in report for run in runs)
    assert written.network is not None
    assert written.network.path == tmp_path / "try.html"
    assert "moons" in (tmp_path / "try.html").read_text()
    alone = pages.write(runs[:1], tmp_path, 1, False)
    assert alone.network is None, "ST-BiSNN has no posterior"


def test_other_settings_are_not_overwritten(stand_ins, tmp_path):
    first = reproduction.measure("ST", CONFIGS["moons_st"], tmp_path / "run")
    other_jobs = CONFIGS["moons_st"].updated(**{"train.threads": 2})
    assert reproduction.measure("ST", other_jobs, tmp_path / "run") == first, (
        "the number of threads does not count"
    )
    with pytest.raises(ValueError, match="was trained with another seed; remove it"):
        reproduction.measure("ST", CONFIGS["moons_st"].updated(seed=3), tmp_path / "run")


def test_regions():
    inside, outside = [0.0, 1 / 6, 2.5 / 6, 3.5 / 6, 5 / 6, 1.0], [0.17, 0.4, 0.6]
    assert in_clusters(torch.tensor(inside)).all()
    assert not in_clusters(torch.tensor(outside)).any()
    points = grid()
    assert points.shape == (2500, 2)
    corner = farthest(points, torch.tensor([[0.0, 0.0]]))
    assert len(corner) == 250
    nearest_of_them = points[corner].norm(dim=1).min()
    others = torch.ones(2500, dtype=torch.bool)
    others[corner] = False
    assert nearest_of_them >= points[others].norm(dim=1).max()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["fig3"],), "must be one of fig1, fig2, table1"),
        ((["fig1"], "best"), "must be one of tuned, paper"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        reproduction.reproduce(*arguments, out=tmp_path)
    with pytest.raises(ValueError, match="device: must be one of cpu, cuda"):
        reproduction.reproduce(["table1"], device="tpu", out=tmp_path)
    with pytest.raises(ValueError, match="are for table1 alone"):
        reproduction.reproduce(["fig1"], data=tmp_path, out=tmp_path)
    with pytest.raises(ValueError, match="seeds: needs at least one"):
        reproduction.reproduce(["fig1"], seeds=[], out=tmp_path)


def test_without_training(stand_ins, tmp_path):
    config = CONFIGS["moons_st"]
    with pytest.raises(ValueError, match="there is no such run folder"):
        reproduction.measure("ST", config, tmp_path / "run", train=False)
    training = reproduction.training.Training(
        config, reproduction.training.Processes(0, 1, torch.device("cpu"))
    )
    folder = reproduction.RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.create(config)
    training.seconds = 1.0
    folder.save_state(training.state())
    with pytest.raises(ValueError, match="has no model yet"):
        reproduction.measure("ST", config, folder.path, train=False)
    training.trained_model().save(folder.model_file)
    before = {p: p.read_bytes() for p in folder.path.iterdir()}
    rows = reproduction.measure("ST", config, folder.path, train=False).rows
    assert rows[0].epochs == 0, "and the rows say so"
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.parametrize("content", ["[]", "{}", "nonsense", '{"figures": 3}'])
def test_damaged_results_are_found_before_training(stand_ins, tmp_path, monkeypatch, content):
    monkeypatch.setattr(reproduction, "run_all", lambda *arguments: pytest.fail("trained"))
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match="is damaged or of another version"):
        reproduction.reproduce(seeds=[0], out=tmp_path, show=False)
    assert (tmp_path / "results.json").read_text() == content


STAGED = """
import sys
from pathlib import Path
from bisnn_experiments import workers
log = Path(sys.argv[1])
def note(name):
    with log.open("a") as file:
        file.write(name)
def first():
    note("a")
def second():
    note("b")
if __name__ == "__main__":
    stages = ((first, first), (second,))
    settings = dict(length=lambda task: 1, progress=lambda task: 0)
    settings |= dict(before=stages, meanwhile=lambda: note("m"))
    workers.run_all(note, [("c",)] * 3, 2, False, **settings)
"""


def test_stages_come_before_the_tasks(tmp_path):
    (tmp_path / "script.py").write_text(STAGED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "log")]
    subprocess.run(command, env=environment, check=True)
    log = (tmp_path / "log").read_text()
    assert log.replace("m", "") == "aabccc"
    assert log.index("m") < log.index("b")


COMPILED = """
import sys, tempfile
from numba.core.caching import FunctionCache
from bisnn_experiments import compilation, reproduction
from pathlib import Path
from runs import small

for stage in compilation.STAGES:
    for function in stage:
        function()
FunctionCache.save_overload = lambda self, *arguments: print("compiled", self._name)
reproduction.measure("ST", small("st"), Path(tempfile.mkdtemp()) / "run")
"""


@pytest.mark.slow
def test_a_run_uses_no_kernels_beside_those_of_the_stages(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "compiled" not in done.stdout, done.stdout


SCRIPT = """
import sys
from bisnn_experiments import reproduction
from runs import small
if __name__ == "__main__":
    config = small("st", **{"train.epochs": 4000})
    from pathlib import Path
    runs = [reproduction.Task("ST", config, Path(sys.argv[1]) / str(i)) for i in range(3)]
    reproduction.run_all(runs, 2, False)
"""


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_dead_worker_is_one_message(tmp_path):
    with start(tmp_path) as process:
        (worker, *_) = [pid for child in children(process.pid) for pid in children(child)]
        os.kill(worker, signal.SIGKILL)
        error = process.communicate(timeout=60)[1]
    assert "a worker process died" in error
    assert "BrokenProcessPool" not in error


def start(tmp_path):
    """Three runs, two at a time, in a process of its own; both under way."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    files = [tmp_path / str(i) / "metrics.jsonl" for i in (0, 1)]
    deadline = time.monotonic() + 60
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


def test_a_signal_stops_all_runs_and_saves_them(tmp_path):
    with start(tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        error = process.communicate(timeout=60)[1]
    assert "stopped and saved; the same command goes on" in error
    for i in (0, 1):
        assert (tmp_path / str(i) / "model.safetensors").exists()
    assert not (tmp_path / "2").exists()
