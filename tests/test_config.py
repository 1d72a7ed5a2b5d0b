"""Configs: every shipped one loads; a mistake is one line with file, key and nearest valid key."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisnn.runs import config, config_errors, defaults
from bisnn_experiments.reproduction import FIGURES
from runs import RECORDED, RULES, small

SHIPPED = config.shipped()


def test_configs_are_shipped():
    assert {"two_moons_bayes", "two_moons_st", "one_d_bayes", "one_d_st"} <= SHIPPED.keys()
    used = {
        entry.config
        for recipes in FIGURES.values()
        for entries in recipes.values()
        for entry in entries
    }
    assert used <= SHIPPED.keys()


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_config_loads(name):
    loaded = config.load(name)
    assert loaded == config.load(SHIPPED[name])
    text = SHIPPED[name].read_text()
    assert text.startswith("#"), "a config begins with a comment that says what it is for"


@pytest.mark.parametrize("rule", RULES)
def test_resolved_config_comes_back(rule):
    settings = small(rule)
    assert config.parse(tomllib.loads(settings.to_toml()), "x") == settings


MISTAKES = {
    "rule.temprature=1": "rule.temprature: unknown key; the nearest valid key is rule.temperature",
    "epochs=3": "epochs: unknown key; the nearest valid key is train.epochs",
    "train.batchsize=3": "train.batchsize: unknown key; the nearest valid key is train.batch_size",
    "rule.clip=1": (
        "rule.clip: unknown key; it belongs to another rule; "
        "bayes has rule.name, rule.lr, rule.precondition"
    ),
    "zzz=1": "zzz: unknown key; valid keys here: version, seed, data",
    "rule.name=bays": (
        "rule.name: must be one of st, bayes, bop, full; got 'bays'; did you mean 'bayes'?"
    ),
    "data.name=moons": (
        "table, nmnist, mnist_dvs, digits, tonic, folder, series; got 'moons'; did you mean "
        "'two_moons'?"
    ),
    "train.epochs=1.5": "train.epochs: must be a valid integer; got 1.5",
    "train.epochs=ten": "train.epochs: must be a valid integer; got 'ten'",
    "train.epochs=-1": "train.epochs: must be greater than or equal to 0; got -1",
    "rule.lr=-0.1": "rule.lr: must be greater than 0; got -0.1",
    "rule.lr=nan": "rule.lr: must be a finite number; got nan",
    "rule.temperature=-1": "rule.temperature: must be greater than or equal to 0; got -1",
    "train.schedule=cosin": "train.schedule: must be 'constant' or 'cosine'; got 'cosin'",
    "network.layers=[]": "network: layers must have at least one item where there is no conv",
    "network.conv=[{channels=4,kernel=3}]": (
        "network.conv and augment are for recordings; two_moons has points: leave them out"
    ),
    "network.conv=[{channels=4,kernel=3,poool=2}]": (
        "conv.0.poool: unknown key; the nearest valid key is network.conv.0.pool"
    ),
    "augment.shift=1": (
        "network.conv and augment are for recordings; two_moons has points: leave them out"
    ),
    "network.layers=[16, 0]": "network.layers.1: must be greater than or equal to 1; got 0",
    "neuron.tau_mem=3": "neuron: tau_mem must be above tau_syn = 6",
    "train.burn_in=100": "train.burn_in must be below encode.steps = 100; got 100",
    "predict.readouts=2": "predict.readouts: is gone: the mean of several readouts",
    "train.patience=3": "need held-out points: set data.validation",
    "train.keep=best": "need held-out points: set data.validation",
    "train.loss=squared": "does not fit the task classification",
    "train.samples=0": "train.samples: must be greater",
    "network.readout_after=last": "network.readout_after must be",
    "rule.tau_end=0.1": "rule: anneal_epochs goes with tau_end",
    "rule.lr.x=1": "lr is a value, not a section",
    "rule=3": "rule: ",
    "seed=-1": "seed: must be greater than or equal to 0; got -1",
    "seed=4294967296": "seed: must be less than 4294967296; got 4294967296",
    "rule.prior=inf": "rule.prior: must be a finite number; got inf",
    "network.layers=[100000000000]": "network.layers.0: must be less than or equal to 10000000",
    "version=2": "version: this bisnn reads configs of version 1; got 2",
    "lr": "must read section.key=value",
    "=3": "must read section.key=value",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_mistake_is_one_clear_line(override):
    with pytest.raises(ValueError, match=re.escape(MISTAKES[override])) as error:
        config.load("two_moons_bayes", [override])
    message = str(error.value)

    assert "\n" not in message
    assert override in message, "says which override it was"


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("two_moons_bayes", "rule.rho=1", "the nearest valid key is rule.temperature"),
        ("two_moons_bayes", "rho=1", "the nearest valid key is rule.temperature"),
        (
            "two_moons_st",
            "rule.rho=1",
            "you may mean rule.temperature, which rule st does not have",
        ),
        ("two_moons_bayes", "train.early_stopping=3", "the nearest valid key is train.patience"),
        ("two_moons_bayes", "train.learning_rate=3", "the nearest valid key is rule.lr"),
        ("two_moons_bayes", "rule.eta=3", "the nearest valid key is rule.lr"),
        ("two_moons_bayes", "network.hidden=3", "the nearest valid key is network.layers"),
        ("two_moons_bayes", "train.batch=3", "the nearest valid key is train.batch_size"),
        ("two_moons_bayes", "predict.n_members=3", "the nearest valid key is predict.samples"),
        ("two_moons_bayes", "T=3", "the nearest valid key is encode.steps"),
        ("nmnist_st", "T=3", "the nearest valid key is data.steps"),
    ],
)
def test_keys_by_other_names(name, override, message):
    with pytest.raises(ValueError, match=re.escape(f"unknown key; {message}")):
        config.load(name, [override])


def test_every_synonym_is_of_a_key_and_is_none_itself():
    valid = set(config.keys())
    leaves = {key.rpartition(".")[2] for key in valid}
    assert config_errors.SYNONYMS.keys() <= valid
    assert not leaves & {wrong for many in config_errors.SYNONYMS.values() for wrong in many}


@pytest.mark.parametrize("name", ["st", "full"])
def test_another_rule_drops_the_keys_it_does_not_have(capsys, name):
    before = config.load("two_moons_bayes")
    loaded = config.load("two_moons_bayes", [f"rule.name={name}", "seed=1"])
    assert (loaded.rule.name, loaded.rule.lr, loaded.seed) == (name, before.rule.lr, 1)
    (line,) = capsys.readouterr().err.splitlines()
    dropped, kept = line.removeprefix(f"rule.name = {name}: leaves out ").split(
        ", which it does not have; keeps "
    )
    written = tomllib.loads(config.shipped()["two_moons_bayes"].read_text())["rule"].keys() - {
        "name"
    }
    assert set(dropped.split(", ")) == written - set(type(loaded.rule).model_fields)
    assert (
        set(dropped.split(", ")) | {part.partition(" = ")[0] for part in kept.split(", ")}
        == written
    )
    for order in (1, -1):
        with pytest.raises(ValueError, match=r"rule\.tau: unknown key; it belongs to another rule"):
            config.load("two_moons_bayes", [f"rule.name={name}", "rule.tau=1"][::order])


def test_another_rule_is_not_said_to_keep_what_is_given_too(capsys):
    loaded = config.load("two_moons_bayes", ["rule.lr=0.5", "rule.name=st"])
    assert loaded.rule.lr == 0.5
    assert capsys.readouterr().err.endswith("keeps precondition = 'momentum'\n")


def test_the_same_rule_drops_nothing(capsys):
    assert config.load("two_moons_bayes", ["rule.name=bayes"]) == config.load("two_moons_bayes")
    assert capsys.readouterr().err == ""


def test_several_mistakes_are_a_line_each_and_name_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'version = 1\nsed = 1\n[data]\nname = "two_moons"\n[rule]\nname = "bop"\nlr = 0.1\n'
        "[train]\nepochs = 1\n"
    )
    with pytest.raises(ValueError, match=r"rule\.threshold: is missing") as error:
        config.load(file)
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{file}: ") for line in lines)
    assert any("sed: unknown key; the nearest valid key is seed" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version = 1\n[data", "is not valid TOML"),
        (b"\xff\xfe\x00", "is not a text file"),
        (b"", "version: this bisnn reads configs of version 1; got none"),
        (b"version = 1", "data: is missing"),
        (
            b"version = 1\n[data]\n[rule]\n[train]",
            "data.name: is missing; give one of two_moons, one_d, table",
        ),
    ],
)
def test_bad_files(tmp_path, content, message):
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        config.load(file)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'two_moons_bayes'"):
        config.load("two_moons_bays")
    with pytest.raises(ValueError, match="no such config file"):
        config.load(tmp_path / "nothing.toml")
    with pytest.raises(ValueError, match="is a folder"):
        config.load(tmp_path)


def test_values_of_overrides():
    loaded = config.load(
        "two_moons_bayes",
        [
            "network.layers=[8, 4]",
            "train.schedule=constant",
            'rule.precondition="none"',
            "seed = 7",
        ],
    )
    assert (
        loaded.model_dump()["network"]["layers"],
        loaded.train.schedule,
        loaded.rule.precondition,
        loaded.seed,
    ) == ([8, 4], "constant", "none", 7)


@given(st.text(max_size=30))
def test_no_override_crashes(text):
    try:
        config.load("two_moons_bayes", [text])
    except ValueError as error:
        kind = type(error)
    else:
        kind = ValueError
    assert kind is ValueError, "and not pydantic's own, which is one too"


def test_one_realisation_where_there_is_no_posterior():
    with pytest.raises(ValueError, match='rule "st" has one realisation of its weights; got 2'):
        config.load("two_moons_st", ["train.samples=2"])


def test_paths_of_a_table_are_relative_to_the_config(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'version = 1\n[data]\nname = "table"\ntrain = "points.csv"\n[rule]\nname = "st"\nlr = 1.0\n'
        "[train]\nepochs = 1\n"
    )
    assert config.load(tmp_path / "mine.toml").data.train == str(
        (tmp_path / "points.csv").resolve()
    )


def test_a_path_on_the_command_line_is_relative_to_where_it_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = config.load(
        "two_moons_st", ["data={name='table', train='/x.csv'}", "data.train=mine.csv"]
    )
    assert loaded.data.train == str((tmp_path / "mine.csv").resolve())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"dataset": "NMNIST"}, r"data.steps: is missing; add it\n.*data.bin_us: is missing"),
        (
            {"dataset": "MNIST", "steps": 9, "bin_us": 9},
            "data.dataset: must be 'NMNIST', 'DVSGesture' or 'SHD'; got 'MNIST'",
        ),
        (
            {"dataset": "SHD", "steps": 9, "bin_us": 9, "pool": 0},
            "data.pool: must be greater than or equal to 1; got 0",
        ),
        (
            {"dataset": "SHD", "steps": 9, "bin_us": 9, "classes": [1]},
            "data.classes: unknown key; it belongs to another data",
        ),
    ],
)
def test_mistakes_with_tonic(data, message):
    with pytest.raises(ValueError, match=message):
        config.parse({**RECORDED, "data": {"name": "tonic", **data}}, "x")


def test_the_folder_of_tonic_is_relative_to_the_config(tmp_path):
    data = {"name": "tonic", "dataset": "SHD", "root": "saved", "steps": 100, "bin_us": 10_000}
    (tmp_path / "mine.toml").write_text(config.parse({**RECORDED, "data": data}, "x").to_toml())
    loaded = config.load(tmp_path / "mine.toml")
    assert (loaded.data.root, loaded.steps, loaded.task) == (
        str((tmp_path / "saved").resolve()),
        100,
        "classification",
    )


def test_differences():
    a = small("bayes")
    assert config.differences(a, a) == []
    assert config.differences(a, a.updated(**{"train.threads": 7})) == []
    assert config.differences(a, a.updated(**{"rule.lr": 0.2, "seed": 3})) == ["seed", "rule.lr"]
    assert "rule.temperature" in config.differences(a, small("st"))


BAYES, ST = {"name": "bayes"}, {"name": "st"}
MINIMAL = {"version": 1, "data": {"name": "table", "train": "/points.csv"}}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_state_what_has_a_default_by_rule_and_data(name):
    settings = tomllib.loads(SHIPPED[name].read_text())
    resolved = config.load(name)
    assert defaults.completed(settings, type(resolved.data), type(resolved.rule)) == settings
    assert settings["train"]["epochs"] > 0


@pytest.mark.parametrize(
    ("sections", "rule", "schedule"),
    [
        (
            {"rule": BAYES},
            {"lr": 10.0, "temperature": 2.7e-4, "straight_through": True, "precondition": "none"},
            "cosine",
        ),
        ({"rule": ST}, {"lr": 3.33, "precondition": "none"}, "cosine"),
        ({"rule": {"name": "full"}}, {"lr": 0.03, "optimizer": "adam"}, "cosine"),
        (
            {"rule": ST, "encode": {"steps": 40}},
            {"lr": 10.0},
            "cosine",
        ),  # a third of the steps that count
        (
            {"rule": BAYES, "train": {"over_time": "mean", "schedule": "constant"}},
            {"lr": 900.0, "temperature": 3e-6},
            "constant",
        ),
        (
            {"rule": {**BAYES, "precondition": "adam"}},
            {"lr": 0.1, "straight_through": True},
            "cosine",
        ),
        (
            {"rule": {**BAYES, "straight_through": False}},
            {"lr": 10.0, "straight_through": False},
            "cosine",
        ),
        (
            {"rule": {**BAYES, "lr": 0.5}},
            {"lr": 0.5, "temperature": 2.7e-4, "straight_through": False},
            "constant",
        ),
    ],
)
def test_what_a_config_may_leave_out(sections, rule, schedule):
    """A learning rate that is given gets the paper's rule; one that is left out gets what works."""
    resolved = config.parse({**MINIMAL, **sections}, "minimal")
    assert resolved.rule.model_dump().items() >= rule.items()
    assert resolved.train.schedule == schedule
    assert config.parse(tomllib.loads(resolved.to_toml()), "again") == resolved


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"rule": {"name": "bop", "threshold": 0.1}}, "rule.lr: is missing"),
        ({"rule": {**ST, "precondition": "momentum"}}, "rule.lr: is missing"),
        ({"rule": {"name": "full", "optimizer": "sgd"}}, "rule.lr: is missing"),
        ({"rule": ST, "encode": {"steps": "many"}}, "encode.steps: must be a valid integer"),
        ({"rule": ST, "data": {"name": "nmnist"}, "train": {"epochs": 1}}, "rule.lr: is missing"),
        (
            {"rule": {**ST, "lr": 1.0}, "data": {"name": "nmnist"}},
            "train.epochs: is missing, and recordings have no",
        ),
    ],
)
def test_what_has_no_default(sections, message):
    with pytest.raises(ValueError, match=message):
        config.parse({**MINIMAL, **sections}, "minimal")


def test_fewer_epochs_for_more_points():
    assert [defaults.epochs(n, 40) for n in (10, 200, 400, 1000, 100_000)] == [60, 60, 30, 20, 20]
