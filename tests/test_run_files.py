"""Model files and checkpoints of another's making: with a right digest and a wrong structure, or
that claim to be large.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bisnn
from bisnn.runs import evaluation, training
from bisnn.runs import folder as checkpoint
from bisnn.runs.folder import Damaged, RunFolder, load_tree, save_tree
from runs import SMALL, files, small

KEPT: dict[str, object] = {}
RULES_TRIED = ("bayes", "full, Adam", "bop")


@pytest.fixture(scope="module", autouse=True)
def trained(tmp_path_factory):
    """Finished runs, and one of each that stopped after its second epoch, with two checkpoints."""
    folder = tmp_path_factory.mktemp("runs")
    for rule in RULES_TRIED:
        changes = {"train.epochs": 2, **({"data.validation": 0.2} if rule == "bayes" else {})}
        KEPT[rule] = training.train(small(rule, **changes), folder / rule, show=False)


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=3)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 50)
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.sampled_from([10**6, 10**7])
)
TENSORS = st.sampled_from(
    [
        torch.zeros(0),
        torch.zeros(2),
        torch.ones(3, 3),
        torch.tensor(True),
        torch.full((16, 20), torch.nan),
        torch.zeros(1).double(),
    ]
)
KEYS = st.sampled_from(["name", "x", "", 0, 1, 2])
VALUES = st.recursive(
    LEAVES | TENSORS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


def places(node, path=()):
    yield path
    for key, value in (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    ):
        yield from places(value, (*path, key))


def copied(node):
    if isinstance(node, dict):
        return {key: copied(value) for key, value in node.items()}
    return [copied(value) for value in node] if isinstance(node, list) else node


def mutated(tree, data):
    """A tree in which one thing is replaced, removed or added."""
    tree = copied(tree)
    *path, key = data.draw(st.sampled_from([place for place in places(tree) if place]))
    node = tree
    for step in path:
        node = node[step]
    how = data.draw(st.sampled_from(["replaced", "removed", "added"]))
    if how == "removed":
        del node[key]
    elif how == "added" and isinstance(node, dict):
        node[data.draw(ANY_TEXT)] = data.draw(VALUES)
    else:
        node[key] = data.draw(VALUES)
    return tree


@given(data=st.data())
def test_hostile_models(tmp_path_factory, data):
    """Refused by Damaged, or a model that predicts."""
    path = tmp_path_factory.mktemp("m") / "model.safetensors"
    tree = mutated(load_tree(KEPT["bayes"] / "model.safetensors", "model"), data)
    try:
        save_tree(path, tree, "model")
    except (UnicodeEncodeError, ValueError):  # a name that no file can have
        return
    try:
        model = bisnn.load(path)
    except Damaged:
        return
    if model.config.predict.samples * model.config.encode.steps < 10_000:
        model.predict([[0.5, 0.5]])


@given(data=st.data(), rule=st.sampled_from(RULES_TRIED))
def test_hostile_checkpoints(tmp_path_factory, data, rule):
    """Refused, or one that training goes on from."""
    config = RunFolder(KEPT[rule]).read_config()
    with training.Processes.joined("cpu") as processes:
        run = training.Training(config, processes, show=False)
        tree = mutated(load_tree(KEPT[rule] / "state.safetensors", "state"), data)
        folder = RunFolder(tmp_path_factory.mktemp("s"))
        try:
            save_tree(folder.state_file, tree, "state")
        except (UnicodeEncodeError, ValueError):
            return
        try:
            state, _ = folder.load_state(run.fits)
        except ValueError as error:
            if "no checkpoint is whole" not in str(error):
                raise
            return
        try:
            run.load(state, folder)
        except ValueError as error:  # of another config
            if "was changed since" not in str(error):
                raise
            return
        run.step = 0
        run.update()


def test_resume_goes_back_to_the_checkpoint_before(tmp_path, capsys):
    """One with a right digest and a wrong structure is no checkpoint."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    training.train(small(), whole, show=False)
    shutil.copytree(whole, cut)
    run = RunFolder(cut)
    for break_it in (
        lambda state: state.pop("step"),
        lambda state: state.update(step="3"),
        lambda state: state.update(step=-1),
        lambda state: state["latents"].pop(),
        lambda state: state.update(latents=[w.double() for w in state["latents"]]),
        lambda state: state.update(config="[" * 10_000),
        lambda state: state["rule"].pop("param_groups"),
        lambda state: state["rule"]["state"][0].update(m=torch.zeros(3)),
        lambda state: state["rule"]["state"].update({7: {}}),
    ):
        state = load_tree(whole / "state.safetensors", "state")
        break_it(state)
        save_tree(run.state_file, state, "state")
        run.model_file.unlink(missing_ok=True)
        shutil.copy(whole / "state.previous.safetensors", run.previous_file)
        training.resume(cut, show=False)
        assert (
            "it is no checkpoint of this run; using the checkpoint before it"
            in capsys.readouterr().err
        )
        assert files(cut) == files(whole)
    for file in (run.state_file, run.previous_file):
        save_tree(file, ["no", "checkpoint"], "state")
    with pytest.raises(ValueError, match="no checkpoint is whole"):
        training.resume(cut, show=False)
    assert evaluation._seconds(run) is None


def header(**entries) -> str:
    return json.dumps(
        {"kind": "model", "version": checkpoint.VERSION, "tree": "{}", "digest": "", **entries}
    )


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "8",
        "null",
        '"x"',
        "[" * 100_000,
        header(tree=8),
        header(tree="\ud800"),
        header(kind=[[]]),
        header(version={}),
    ],
)
def test_headers_of_anything(tmp_path, text):
    path = tmp_path / "model.safetensors"
    path.write_bytes(checkpoint.save({"a": torch.zeros(1)}, {"bisnn": text}))
    with pytest.raises(Damaged, match=r"model\.safetensors: ") as refused:
        load_tree(path, "model")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "tree",
    ['{"tensor": "z"}', '{"dict": 8}', '{"dict": [[[], 1]]}', '{"x": 1}', "[" * 5000, "", "\ud800"],
)
def test_trees_of_anything(tmp_path, tree):
    path = tmp_path / "model.safetensors"
    digest = "" if tree == "\ud800" else checkpoint._digest(tree, {})
    path.write_bytes(checkpoint.save({}, {"bisnn": header(tree=tree, digest=digest)}))
    with pytest.raises(Damaged, match="its header does not describe a model"):
        load_tree(path, "model")


def changed_model(path, change) -> None:
    tree = load_tree(KEPT["bayes"] / "model.safetensors", "model")
    change(tree)
    save_tree(path, tree, "model")


BOMBS = {
    "layers": (
        lambda tree: tree["config"]["network"].update(layers=[12_000, 12_000]),
        "and its config says",
    ),
    "classes": (
        lambda tree: tree.update(classes=[str(i) for i in range(10**5)]),
        "and its config says",
    ),
    "members": (
        lambda tree: tree["config"]["predict"].update(samples=10**7),
        "a prediction by 10000000 members",
    ),
    "time steps": (
        lambda tree: tree["config"]["encode"].update(steps=10**7),
        "over 10000000 time steps would take",
    ),
}


def test_small_models_that_claim_to_be_large(tmp_path):
    """In a process that may have 0.5 GiB more than it takes to start."""
    for name, (change, _) in BOMBS.items():
        changed_model(tmp_path / name, change)
    script = """
import resource, sys, bisnn, bisnn.runs.model
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**29,) * 2)
for path in sys.argv[1:]:
    try:
        bisnn.load(path)
    except ValueError as error:
        print(error)
"""
    command = [sys.executable, "-c", script, *(str(tmp_path / name) for name in BOMBS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, (_, refused) in zip(done.stdout.splitlines(), BOMBS.values(), strict=True):
        assert refused in line


def test_a_config_of_one_s_own_learns_of_the_budget_before_it_trains(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"predict\.samples.*a prediction by 10000000 members .*set BISNN_MOST_BYTES",
    ):
        training.train(small(**{"predict.samples": 10**7}), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()
    assert SMALL["predict"]["samples"] < 10


def test_pipes_in_place_of_a_run_s_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Damaged, match="is no regular file"):
        bisnn.load(tmp_path / "pipe")
    run = RunFolder(tmp_path / "run")
    shutil.copytree(KEPT["bayes"], run.path)
    for file in (run.metrics_file, run.config_file):
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(ValueError, match="is no regular file"):
            run.read_metrics() if file == run.metrics_file else run.read_config()
