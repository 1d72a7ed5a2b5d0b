"""The search for settings: its space, its trials, what a stopped or killed search leaves behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from bisnn.errors import Stopped
from bisnn.runs import config as configs
from bisnn.runs import training
from bisnn.runs.evaluation import evaluate
from bisnn.runs.folder import RunFolder
from bisnn.runs.inputs import load_dataset
from bisnn.tuning import search, trials
from bisnn.tuning import space as spaces
from bisnn.tuning import study as studies
from bisnn.tuning.study import Place
from bisnn.tuning.trials import Objective
from runs import ONE_D, small

TINY = {
    "data.train": 30,
    "encode.steps": 15,
    "network.layers": [8],
    "train.epochs": 4,
    "train.batch_size": 24,
}


def tiny(**changes):
    return small(**TINY | changes)


def always() -> bool:
    return True


def begun(folder: Path, config, name="tiny"):
    """A study of a config in a folder, and where it is."""
    folder.mkdir(exist_ok=True)
    place = Place(folder, name)
    digest = load_dataset(trials.judged_config(config), show=False).digest()
    return studies.begin(place, config, spaces.search_space(config), digest), place


def run(place, config, count, go_on=always, worker="worker"):
    space = spaces.search_space(config)
    search.run_trials(place, Objective(config, space, count, worker, 1, go_on))


# The space


@pytest.mark.parametrize("name", configs.shipped())
def test_every_shipped_config_has_a_space_whose_ends_all_fit_it(name):
    config = configs.load(name)
    space = spaces.search_space(config)
    assert "rule.lr" in space
    assert ("encode.code" in space) == (not config.recorded)
    assert not config.rule.posterior() or "rule.temperature" in space
    for key, dimension in space.items():
        ends = dimension if isinstance(dimension, list) else (float(dimension.low), dimension.high)
        for end in ends:
            dumped = spaces.with_settings(config, {key: end}).model_dump()
            section, leaf = key.split(".")
            assert dumped[section][leaf] == end
    assert spaces.from_text(spaces.to_text(space)) == space


def test_a_config_adds_replaces_and_removes():
    own = {
        "rule.lr": {"low": 0.5, "high": 0.75},
        "train.batch_size": [8, 16],
        "neuron.tau_mem": {"low": 7, "high": 9},
        "neuron.slope": "keep",
    }
    config = tiny(**{"tune.space": own})
    space, shipped = spaces.search_space(config), spaces.search_space(tiny())
    assert set(space) - set(shipped) == {"train.batch_size", "neuron.tau_mem"}
    assert set(shipped) - set(space) == {"neuron.slope"}
    drawn = spaces.suggested(optuna.create_study().ask(), space)
    assert 0.5 <= drawn["rule.lr"] <= 0.75
    assert type(drawn["neuron.tau_mem"]) is int
    assert drawn["train.batch_size"] in (8, 16)
    assert configs.parse(config.model_dump(exclude_none=True), "again") == config


def test_the_example_of_the_document_is_a_space(tmp_path):
    text = (Path(__file__).parents[1] / "docs" / "TUNING.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my.toml").write_text(tiny().to_toml() + example)
    space = spaces.search_space(configs.load(tmp_path / "my.toml"))
    named = set(re.findall(r'^"(.*?)"', example, re.MULTILINE))
    assert len(named) == 5
    assert named - space.keys() == {"neuron.slope"}


def test_every_dense_layer_is_resized_and_stays_what_it_is():
    layers = [{"neurons": 8, "recurrent": True}, 4]
    config = tiny(**{"network.layers": layers})
    resized = spaces.with_settings(config, {"network.layers.*": 32}).network.layers
    assert [layer.neurons for layer in resized] == [32, 32]
    assert [layer.recurrent for layer in resized] == [True, False]


BAD_SPACES = {
    '{"rule.lrr" = [1.0, 2.0]}': r'tune\.space\."rule\.lrr": .*nearest valid key is rule\.lr',
    '{"rule.lr" = [-1.0, -2.0]}': r"got \[-1\.0, -2\.0\]: rule\.lr: must be greater than 0",
    '{"rule.lr" = [1.0]}': r'"rule\.lr" must have two choices or more; got \[1\.0\]; give e\.g\.',
    '{"rule.lr" = {low = 2, high = 1}}': "must have its low below its high",
    '{"rule.lr" = {low = 0.0, high = 1.0, log = true}}': "low above 0 where log = true",
    '{"rule.lr" = {low = 0.0, high = "b"}}': "finite numbers as low and high",
    '{"rule.lr" = {low = 0.0}}': "must have low, high and perhaps log",
    '{"rule.lr" = "leave"}': "a range, a list of choices, or",
    "3": r"must be a table of ranges by key; got 3; write \[tune\.space\]",
}


@pytest.mark.parametrize("text", BAD_SPACES)
def test_a_bad_space_is_one_line_before_anything_is_written(bisnn_, tmp_path, text):
    code, _, error = bisnn_(
        "tune", "two_moons_bayes", "--out", tmp_path / "out", "--set", f"tune.space={text}", "-q"
    )
    assert code == 1
    assert error.count("\n") == 1
    assert re.search(BAD_SPACES[text], error), error
    assert not (tmp_path / "out").exists()


def test_nothing_left_to_search():
    kept = dict.fromkeys(spaces.search_space(tiny()), "keep")
    with pytest.raises(ValueError, match=r"tune\.space: must leave something to search"):
        spaces.search_space(tiny(**{"tune.space": kept}))


# Trials


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search of eight trials by one worker, in this process."""
    folder, config = tmp_path_factory.mktemp("searched"), tiny()
    study, place = begun(folder, config, folder.name)
    run(place, config, 8)
    return study, config, folder


def test_a_trial_s_loss_is_that_of_a_run_with_its_settings(searched, tmp_path):
    """Through files and the whole of `bisnn train`, from the config that is written as the best."""
    study, config, _ = searched
    found = search._results(study, config, spaces.search_space(config), tmp_path)
    best = configs.load(found.files[0])
    assert best.tune is None
    assert best.data.validation == config.data.validation == 0
    settings = best.updated(**{"data.validation": 0.2, "train.validate_every": 4})
    run_folder = training.train(settings, tmp_path / "run", show=False)
    rows = RunFolder(run_folder).read_metrics()
    assert rows[-1]["validation"]["loss"] == found.value == study.best_value
    assert found.value == min(t.values[0] for t in study.trials if t.values)


def test_a_stopped_search_goes_on_as_if_it_had_not_been(searched, tmp_path):
    whole, config, _ = searched
    study, place = begun(tmp_path, config)
    run(place, config, 3)
    steps = iter([True] * 5)
    run(place, config, 8, lambda: next(steps, False))  # cut short in the middle of a trial
    waiting = [t for t in study.trials if t.state is TrialState.WAITING]
    assert len(waiting) == 1
    assert waiting[0].params == whole.trials[3].params
    run(place, config, 8)
    ended = studies.finished(study)
    assert len(ended) == 8
    first, again = ([t.params for t in studies.finished(found)] for found in (whole, study))
    assert again == first
    assert len({str(params) for params in again}) == 8
    states = [t.state for t in study.trials]
    assert states.count(TrialState.FAIL) == 1
    run(place, config, 8)
    assert [t.state for t in study.trials] == states, "as many as asked for, and no more"


def test_the_test_points_change_nothing(tmp_path):
    rows = [f"{i % 7},{i % 5},{int(i % 7 > 3)}" for i in range(60)]
    (tmp_path / "train.csv").write_text("a,b,class\n" + "\n".join(rows))
    losses = []
    for name, label in (("right", 1), ("wrong", 0)):
        test = "\n".join(f"{i % 7},{i % 5},{int(i % 7 > 3) ^ 1 ^ label}" for i in range(40))
        (tmp_path / f"{name}.csv").write_text("a,b,class\n" + test)
        data = {
            "name": "table",
            "train": str(tmp_path / "train.csv"),
            "test": str(tmp_path / f"{name}.csv"),
        }
        config = small(
            sections={"data": data}, **{k: v for k, v in TINY.items() if k[:4] != "data"}
        )
        study, place = begun(tmp_path / name, config)
        run(place, config, 2)
        losses.append([(trial.values, trial.params) for trial in study.trials])
    assert losses[0] == losses[1]


def test_a_trial_above_the_median_of_the_others_is_pruned(tmp_path):
    config = tiny(**{"tune.space": {"rule.lr": [1e-6, 2e-6]}})
    study, place = begun(tmp_path, config)
    for _ in range(trials.UNPRUNED):
        curve = dict.fromkeys(range(1, 5), 0.01)
        study.add_trial(optuna.create_trial(value=0.01, intermediate_values=curve))
    run(place, config, trials.UNPRUNED + 1)
    last = study.trials[-1]
    assert last.state is TrialState.PRUNED
    assert list(last.intermediate_values) == [1], "at its first look after the first quarter"
    assert "median" in last.user_attrs[trials.WHY]


def test_settings_that_do_not_fit_each_other_and_silent_layers_end_a_trial(tmp_path):
    space = {"neuron.tau_mem": [2.0, 20.0], "neuron.threshold": [90.0, 95.0]}
    config = tiny(**{"tune.space": space})
    study, place = begun(tmp_path, config)
    run(place, config, 8)
    reasons = " ".join(trial.user_attrs[trials.WHY] for trial in study.trials)
    assert {trial.state for trial in study.trials} == {TrialState.PRUNED}
    assert "tau_mem must be above tau_syn" in reasons
    assert "fell silent" in reasons
    with pytest.raises(Stopped, match=r"none of the 8 trials so far has a result; the last was"):
        search._results(study, config, spaces.search_space(config), tmp_path)


def test_operations_are_those_of_the_ledger_and_the_front_is_beaten_by_none(tmp_path):
    own = {"network.layers.*": [4, 8, 16], "predict.samples": [1, 4]}
    config = tiny(**{"tune.operations": True, "tune.space": own})
    study, place = begun(tmp_path, config)
    run(place, config, 9)
    points = {t.number: t.values for t in studies.completed(study)}
    assert len(points) == 9
    front = {
        n
        for n, (loss, operations) in points.items()
        if not any(
            a <= loss and b <= operations and (a, b) != (loss, operations)
            for a, b in points.values()
        )
    }
    assert {trial.number for trial in studies.best(study)} == front
    found = search._results(study, config, spaces.search_space(config), tmp_path)
    assert len(found.files) == len(front)
    losses = [points[trial.number][0] for trial in studies.best(study)]
    assert losses == sorted(losses)
    run_folder = training.train(found.best, tmp_path / "run", show=False)
    judged = evaluate(run_folder, show=False).energy.rows
    counted = judged[f"ensemble of {found.best.predict.samples}"].synaptic_operations
    # Other points, and a network that was trained on more of them
    assert points[studies.best(study)[0].number][1] == pytest.approx(counted, rel=0.3)


# Studies


def test_a_study_goes_on_only_with_what_it_began_with(tmp_path):
    config = tiny()
    study, _ = begun(tmp_path, config)
    with pytest.raises(ValueError, match=r"got another in rule\.tau; .* another --out"):
        begun(tmp_path, config.updated(**{"rule.tau": 0.7}))
    space = spaces.search_space(config)
    del space["rule.tau"]
    with pytest.raises(ValueError, match="in the space that comes with bisnn;"):
        studies.begin(Place(tmp_path, "tiny"), config, space, study.user_attrs["data"])


def test_a_worker_may_come_while_another_begins_the_study(tmp_path, monkeypatch):
    """After each thing that is written of it."""
    config, url = tiny(), f"sqlite:///{tmp_path}/study.db"
    space, written = spaces.search_space(config), []
    write = optuna.Study.set_user_attr

    def then_another_comes(study, key, value):
        write(study, key, value)
        written.append(key)
        if len(written) <= 3:
            studies.begin(Place(tmp_path, "tiny", url), config, space, "digest")

    monkeypatch.setattr(optuna.Study, "set_user_attr", then_another_comes)
    study = studies.begin(Place(tmp_path, "tiny", url), config, space, "digest")
    assert study.user_attrs.keys() == {"config", "space", "data"}
    assert len(written) > 3


def test_data_are_known_by_their_content_not_by_their_place(tmp_path):
    """Machines that share a study keep their files where they like."""
    rows = [f"{i % 7},{i % 5},{int(i % 7 > 3)}\n" for i in range(40)]
    configured = []
    for name, last in (("here", ""), ("there", ""), ("changed", "1,2,1\n")):
        (tmp_path / f"{name}.csv").write_text("a,b,class\n" + "".join(rows) + last)
        data = {"name": "table", "train": str(tmp_path / f"{name}.csv")}
        configured.append(small(sections={"data": data}))
    here, there, changed = configured
    begun(tmp_path, here)
    begun(tmp_path, there)
    with pytest.raises(ValueError, match="got another in the data;"):
        begun(tmp_path, changed)


def test_one_command_at_a_time_works_on_a_file(tmp_path):
    with (
        Place(tmp_path, "a").claimed(),
        pytest.raises(ValueError, match="another process is working on this study"),
        Place(tmp_path, "b").claimed(),
    ):
        pass


def test_the_trial_of_a_dead_worker_is_run_again_but_not_for_ever(tmp_path):
    config = tiny()
    study, place = begun(tmp_path, config)
    drawn = []
    for death in range(studies.RETRIES + 1):
        trial = study.ask()
        trial.set_user_attr(studies.WORKER, f"worker {death}")
        params = spaces.suggested(trial, spaces.search_space(config))
        drawn.append(params)
        studies.retry_running(study, "another worker")
        assert study.trials[trial.number].state is TrialState.RUNNING
        studies.retry_running(study, f"worker {death}")
        studies.retry_running(study, f"worker {death}")
    states = [trial.state for trial in study.trials]
    assert states == [TrialState.FAIL] * (studies.RETRIES + 1)
    assert drawn == [drawn[0]] * len(drawn)
    run(place, config, 1)
    assert len(studies.finished(study)) == 1


def test_a_trial_too_many_does_not_count(tmp_path):
    config = tiny()
    study, _ = begun(tmp_path, config)
    first, second = study.ask(), study.ask()
    assert [studies.rank(study, trial.number) for trial in (first, second)] == [0, 1]
    assert not studies.may_begin(study, 2)
    with pytest.raises(trials.Surplus):
        Objective(config, {}, 1, "worker", 1, always)(second)
    study.tell(second.number, state=TrialState.FAIL)
    assert studies.may_begin(study, 2)


def test_a_search_under_torchrun_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"torchrun: must not start a search.*use --jobs"):
        search.tune(tiny(), tmp_path / "out")


def test_a_database_that_is_lost_is_one_line(tmp_path, monkeypatch):
    def lost(*arguments):
        raise optuna.exceptions.StorageInternalError("gone") from OSError("server closed\nmore")

    monkeypatch.setattr(search._Search, "run", lost)
    with pytest.raises(Stopped, match=r"no longer answers \(server closed\); see that its server"):
        search.tune(tiny(), tmp_path, show=False)


def test_regression(tmp_path):
    config = small(sections=ONE_D, **{"train.epochs": 2, "network.layers": [8]})
    study, place = begun(tmp_path, config)
    run(place, config, 2)
    assert all(trial.user_attrs["rmse"] > 0 for trial in studies.completed(study))
    if studies.completed(study):
        found = search._results(study, config, spaces.search_space(config), tmp_path)
        assert "squared error" in found.page.read_text()


def test_a_line_that_a_killed_worker_left_unfinished_is_cut_off(tmp_path):
    config = tiny()
    study, place = begun(tmp_path, config)
    study.set_user_attr("before", 1)
    whole = (tmp_path / studies.FILE).read_bytes()
    (tmp_path / studies.FILE).write_bytes(whole + b'{"op_code":5,"trial_')
    again, _ = begun(tmp_path, config)
    again.set_user_attr("after", 2)
    assert (tmp_path / studies.FILE).read_bytes().startswith(whole + b'{"op_code"')
    fresh = studies.optuna().load_study(study_name="tiny", storage=place.storage())
    assert (fresh.user_attrs["before"], fresh.user_attrs["after"]) == (1, 2)


def test_a_worker_that_dies_while_it_writes_stops_nobody(tmp_path):
    """It takes its lock along, also where the folder was named relative to another."""
    code = (
        "import os, pathlib, sys; from bisnn.tuning import study;"
        "path = pathlib.Path('study.journal'); path.touch();"
        "study.JournalLock(path).acquire(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    begun(tmp_path, tiny())


def test_a_damaged_journal_is_one_line(tmp_path):
    (tmp_path / studies.FILE).write_text("no journal\n")
    with pytest.raises(ValueError, match="is damaged or no journal of a study"):
        begun(tmp_path, tiny())


# The command


def test_without_optuna(bisnn_, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, error = bisnn_("tune", "two_moons_bayes", "--out", tmp_path / "out")
    assert code == 1
    assert error == (
        "bisnn: optuna: must be installed for this; got none; run `pip install 'bisnn[tune]'`\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:secret@localhost:1/x", r"postgresql://me@localhost:1/x \("),
        ("nothing://x", "must be a database that answers; got nothing://x"),
        ("tune.db", "must be a database that answers; got tune.db"),
    ],
)
def test_a_database_that_does_not_answer(tmp_path, url, said):
    with pytest.raises(ValueError, match=said) as caught:
        Place(tmp_path, "x", url).storage()
    assert "secret" not in str(caught.value)


def test_the_command_writes_and_says_what_a_finished_study_found(bisnn_, searched, tmp_path):
    study, config, folder = searched
    (tmp_path / "tiny.toml").write_text(config.to_toml())
    code, out, error = bisnn_("tune", tmp_path / "tiny.toml", "--trials", 8, "--out", folder)
    assert code == 0, error
    assert f"8 of 8 trials, best NLL on validation points: {study.best_value:.4g}" in out
    assert configs.load(folder / "best.toml").rule.lr == float(
        f"{study.best_params['rule.lr']:.4g}"
    )
    assert f"bisnn train {folder / 'best.toml'}\n" in out


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"trials": 0}, "trials: must be a positive whole number; got 0"),
        ({"jobs": 1.5}, r"jobs: must be a positive whole number; got 1\.5"),
        ({"minutes": -1}, "minutes: must be a finite number > 0; got -1"),
    ],
)
def test_bad_arguments(tmp_path, argument, said):
    with pytest.raises(ValueError, match=said):
        search.tune(tiny(), tmp_path / "out", **argument)
    assert not (tmp_path / "out").exists()


def test_the_page_shows_the_trials_and_loads_nothing(searched, tmp_path):
    study, config, _ = searched
    found = search._results(study, config, spaces.search_space(config), tmp_path)
    page = found.page.read_text()
    for title in (
        "Trial by trial",
        "Which settings matter",
        "Parallel coordinates",
        "Loss against operations",
        "The best trials",
    ):
        assert f"<h4>{title}</h4>" in page
    complete = studies.completed(study)
    assert f"Losses of {len(complete)} trials" in page
    best = study.best_trial
    assert f'<th scope="col" title="trial {best.number}">' in page
    shares = studies.importance(study)
    assert sum(shares.values()) == pytest.approx(1)
    top = next(iter(shares))
    assert f"{top} {100 * shares[top]:.0f} %" in page
    assert "default-src 'none'" in page
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "<script" not in page


def test_the_page_of_a_single_trial(tmp_path):
    config = tiny()
    study, place = begun(tmp_path, config)
    run(place, config, 1)
    found = search._results(study, config, spaces.search_space(config), tmp_path)
    assert "No importance of settings" in found.page.read_text()
    assert json.loads(study.user_attrs["space"]).keys() == spaces.search_space(config).keys()
