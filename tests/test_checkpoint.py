"""Files of a run: whole or not at all, damage recognised, one writer."""

from __future__ import annotations

import errno
import multiprocessing
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bisnn.files import write_atomic
from bisnn.runs import folder as checkpoint
from bisnn.runs.folder import Damaged, RunFolder, load_tree, save_tree
from runs import small

TREE = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": [1, 0.1, None, "x", True],
    3: {"c": torch.tensor(True), "d": torch.zeros(0)},
}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def test_tree_comes_back(tmp_path):
    save_tree(tmp_path / "f", TREE, "state")
    assert equal(load_tree(tmp_path / "f", "state"), TREE)


numbers = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.none(),
    st.booleans(),
)
trees = st.recursive(
    numbers,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)


@given(trees)
@settings(max_examples=50)
def test_any_tree_comes_back(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "f"
    save_tree(path, {"tree": tree}, "state")
    assert equal(load_tree(path, "state"), {"tree": tree})


@given(st.data())
@settings(max_examples=60)
def test_damage_anywhere_is_recognised(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "f"
    save_tree(path, TREE, "state")
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:cut])
    else:
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
    try:
        loaded = load_tree(path, "state")
    except Damaged:
        return
    assert equal(loaded, TREE)  # a flip in the padding of the header changes nothing


def test_other_kinds_are_refused(tmp_path):
    save_tree(tmp_path / "f", TREE, "model")
    with pytest.raises(Damaged, match="is no bisnn state file; it says 'model'"):
        load_tree(tmp_path / "f", "state")


def full_disk(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, operation):
    write_atomic(tmp_path / "f", b"old")
    monkeypatch.setattr(checkpoint.os, operation, full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "f", b"new")
    monkeypatch.undo()
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"], "no temporary file is left behind"


def test_previous_state_is_used_when_the_newest_is_damaged(tmp_path):
    run = RunFolder(tmp_path)
    assert run.load_state() == (None, [])
    for step in (1, 2, 3):
        run.save_state({"step": step})
    assert run.load_state() == ({"step": 3}, [])
    run.state_file.write_bytes(run.state_file.read_bytes()[:-3])
    state, notes = run.load_state()
    assert state == {"step": 2}
    assert "is damaged" in notes[0]
    assert "using the checkpoint before it" in notes[0]
    run.previous_file.write_bytes(b"x")
    with pytest.raises(ValueError, match="no checkpoint is whole"):
        run.load_state()


def test_rows_after_the_checkpoint_are_cut(tmp_path):
    run = RunFolder(tmp_path)
    run.cut_metrics(0)
    for epoch in (1, 2, 3):
        run.append_metrics({"epoch": epoch})
    with open(run.metrics_file, "a") as file:
        file.write('{"epo')  # a kill in the middle of a row
    assert [row["epoch"] for row in run.read_metrics()] == [1, 2, 3]
    run.cut_metrics(2)
    assert run.metrics_file.read_text() == '{"epoch": 1}\n{"epoch": 2}\n'
    with pytest.raises(ValueError, match="has 2 rows where the checkpoint knows 5"):
        run.cut_metrics(5)
    run.metrics_file.write_text("garbage\n")
    with pytest.raises(Damaged, match="is damaged"):
        run.read_metrics()


def hold(path, held, finish):
    with RunFolder(path).locked():
        held.set()
        finish.wait(30)


def test_one_writer_and_a_killed_one_lets_go(tmp_path):
    context = multiprocessing.get_context("fork")
    held, finish = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, finish))
    other.start()
    assert held.wait(30)
    with (
        pytest.raises(ValueError, match="another process is writing this run"),
        RunFolder(tmp_path).locked(),
    ):
        pass
    other.kill()
    other.join()
    with RunFolder(tmp_path).locked():
        pass


def test_left_overs_of_a_killed_writer_are_removed(tmp_path):
    (tmp_path / ".config.toml.123.tmp").write_text("half")
    run = RunFolder(tmp_path)
    (tmp_path / ".lock").write_text("")
    with run.locked():
        run.create(small())
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "config.toml"}


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / ".notes.tmp").write_text("mine")
    with RunFolder(tmp_path).locked():
        pass
    with pytest.raises(ValueError, match="is not empty; give another folder"):
        RunFolder(tmp_path).check_new()
    assert (tmp_path / ".notes.tmp").read_text() == "mine"


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is no regular file"):
        write_atomic(tmp_path / "pipe", b"x")
    with pytest.raises(
        FileNotFoundError, match=r"missing/f'$"
    ):  # the file's own name, not the temporary one's
        write_atomic(tmp_path / "missing" / "f", b"x")


def test_another_version(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "VERSION", 2)
        save_tree(tmp_path / "f", TREE, "state")
    with pytest.raises(
        Damaged, match="was written by another version of bisnn: format 2, this one reads 1"
    ):
        load_tree(tmp_path / "f", "state")


def test_folder_in_use_is_not_overwritten(tmp_path):
    run = RunFolder(tmp_path)
    run.create(small())
    with pytest.raises(
        ValueError, match=r"is not empty; continue it with: bisnn resume .* or give another folder"
    ):
        run.create(small())
    run.config_file.unlink()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; give another folder"):
        run.create(small())
    assert (tmp_path / "thesis.txt").read_text() == "mine"
