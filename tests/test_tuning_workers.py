"""Searches by several processes, of which some are killed: no trial is lost or counted twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from optuna.trial import TrialState

import postgres
from bisnn.runs import config as configs
from bisnn.tuning import space as spaces
from bisnn.tuning import study as studies
from bisnn.tuning.study import Place
from test_tuning import tiny

TRIALS = 8
# A worker whose heart beats fast, and which takes its time for a step
WORKER = """
import sys, time
from pathlib import Path
from bisnn.runs import config
from bisnn.tuning import search, space, study

study.HEARTBEAT, study.SILENCE = 1, 3
settings = config.load(sys.argv[1])
pause = float(sys.argv[4])

def go_on():
    time.sleep(pause)
    return True

objective = search.Objective(
    settings, space.search_space(settings), int(sys.argv[5]), sys.argv[3], 1, go_on
)
search.run_trials(study.Place(Path("."), "shared", sys.argv[2]), objective)
"""


def worker(folder: Path, url: str, name: str, pause: float) -> subprocess.Popen:
    command = [sys.executable, "-c", WORKER, "tiny.toml", url, name, str(pause), str(TRIALS)]
    return subprocess.Popen(command, cwd=folder)


def wait_for(what, process: subprocess.Popen | None = None, seconds: float = 120.0):
    """What a function gives, as soon as that is anything."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        assert process is None or process.poll() is None, "it ended before that"
        time.sleep(0.05)
    pytest.fail("nothing happened")


def check_none_is_lost_or_counted_twice(study, count: int) -> None:
    """All trials ended; each drawn set of parameters is counted once, those of dead workers too."""
    ended = studies.finished(study)
    assert len(ended) == count
    times = Counter(str(sorted(trial.params.items())) for trial in ended)
    assert set(times.values()) == {1}
    for trial in study.trials:
        if trial.state is TrialState.FAIL:  # it may have died before it had drawn everything
            assert any(trial.params.items() <= other.params.items() for other in ended)
    assert {trial.state for trial in study.trials} <= {
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.FAIL,
    }


@pytest.mark.skipif(
    postgres.programs() is None, reason="needs PostgreSQL's server (Debian's package postgresql)"
)
def test_two_workers_on_postgresql_one_of_which_is_killed(tmp_path):
    config = tiny()
    (tmp_path / "tiny.toml").write_text(config.to_toml())
    config = configs.load(tmp_path / "tiny.toml")
    with postgres.server() as url:
        place = Place(tmp_path, "shared", url)
        with ThreadPoolExecutor(4) as pool:  # machines that begin at the same moment
            list(pool.map(lambda _: place.storage(), range(4)))
        study = studies.begin(place, config, spaces.search_space(config), "digest")
        victim = worker(tmp_path, url, "victim", 0.25)
        at = wait_for(
            lambda: [
                trial
                for trial in study.get_trials(states=(TrialState.RUNNING,))
                if len(trial.params) == len(spaces.search_space(config))
            ],
            victim,
        )
        other = worker(tmp_path, url, "other", 0.02)
        wait_for(lambda: [t for t in study.trials if t.user_attrs.get("worker") == "other"], other)
        running = study.get_trials(states=(TrialState.RUNNING,))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        assert other.wait(timeout=120) == 0
        assert any(trial.user_attrs.get("worker") == "victim" for trial in running), at
        check_none_is_lost_or_counted_twice(study, TRIALS)
        killed = [trial for trial in study.trials if trial.state is TrialState.FAIL]
        assert [trial.user_attrs["worker"] for trial in killed] == ["victim"]
        study._storage.remove_session()


def children(process: subprocess.Popen) -> list[int]:
    """The workers of a command, by what their command line says."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == process.pid and b"spawn_main" in command:
            found.append(int(folder.name))
    return found


def tune(folder: Path, *arguments: str) -> subprocess.Popen:
    """`bisnn tune`, its bar as plain lines."""
    command = [sys.executable, "-m", "bisnn", "tune", "tiny.toml", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find the workers")
def test_the_command_survives_its_workers_and_its_own_end(tmp_path):
    """A killed worker is replaced; after SIGTERM, and after a kill of all, the same command goes
    on."""
    config = tiny(**{"train.epochs": 12})
    (tmp_path / "tiny.toml").write_text(config.to_toml())
    place = Place(tmp_path / "tuned" / "tiny", "tiny")
    arguments = ("--trials", str(TRIALS), "--jobs", "2")

    def study():
        try:
            return studies.optuna().load_study(study_name="tiny", storage=place.storage())
        except (OSError, KeyError):
            return None  # not begun yet

    command = tune(tmp_path, *arguments)
    wait_for(lambda: (found := study()) and studies.finished(found), command)
    os.kill(children(command)[0], signal.SIGKILL)
    time.sleep(1)
    command.terminate()
    _, error = command.communicate(timeout=60)
    if command.returncode:  # else all trials had ended before the signal came
        assert command.returncode == 128 + signal.SIGTERM
        assert "trials; the same command goes on" in error
    left = {trial.state for trial in study().trials}
    assert TrialState.RUNNING not in left
    command = tune(tmp_path, *arguments)
    out, error = command.communicate(timeout=120)
    assert command.returncode == 0, error
    assert f"{TRIALS} of {TRIALS} trials, best NLL on validation points" in out
    check_none_is_lost_or_counted_twice(study(), TRIALS)
    best = configs.load(place.folder / "best.toml")
    assert best.rule.lr == pytest.approx(study().best_params["rule.lr"], rel=1e-3)
    assert (place.folder / "tuning.html").exists()


@pytest.mark.slow
def test_the_study_of_searches_compares_the_winner_with_the_shipped_config(tmp_path, monkeypatch):
    """At a tiny size; the difference is that of the runs' own evaluations."""
    from bisnn_experiments import results, tuning

    monkeypatch.setattr(tuning, "TRAIN", 60)
    monkeypatch.setattr(tuning, "TEST", 40)
    monkeypatch.setattr(
        sys, "argv", ["tuning", *["--only", "table", "--trials", "3", "--seeds", "2"]]
    )
    sys.argv += ["--epochs", "2", "--out", str(tmp_path)]
    tuning.main()
    (case,) = results.read(tmp_path / "results.json", tuning.TuningStudy).cases
    nll = {
        name: [
            json.loads((tmp_path / f"table_{name}_seed{seed}" / "evaluation.json").read_text())[
                "metrics"
            ]["ensemble of 10"]["nll"]["value"]
            for seed in (100, 101)
        ]
        for name in ("shipped", "tuned")
    }
    assert case.trials == 3
    assert case.tuned_nll.mean == pytest.approx(sum(nll["tuned"]) / 2)
    difference = sum(nll["tuned"]) / 2 - sum(nll["shipped"]) / 2
    assert case.nll_difference.value == pytest.approx(difference)
