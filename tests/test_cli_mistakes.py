"""Mistakes on the command line: one line that says what to do, and no traceback."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys

import pytest

from bisnn.data import events, simulation
from bisnn.runs import evaluation, loop, training
from runs import made_up, run_of_both_rules, small


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run_of_both_rules(tmp_path_factory.mktemp("cli"))


MISTAKES = {
    "no config": (("train", "nothing.toml"), "nothing.toml: there is no such config file"),
    "key": (
        ("train", "two_moons_bayes", "--set", "rule.temprature=1"),
        "the nearest valid key is rule.temperature",
    ),
    "device": (
        ("train", "two_moons_bayes", "--set", "train.device=tpu"),
        "train.device: must be 'cpu' or 'cuda'",
    ),
    "no run": (("evaluate", "nothing"), "nothing: there is no such run"),
    "no run to resume": (("resume", "nothing"), "nothing: there is no such run folder"),
    "no run to predict with": (("predict", "nothing", "x.csv"), "nothing: there is no such run"),
    "no points": (("predict", "{run}", "nothing.csv"), "nothing.csv: there is no such file"),
    "nan": (
        ("predict", "{run}", "{nan}"),
        "line 2, column 2: must be a finite number; it is blank",
    ),
    "features": (
        ("predict", "{run}", "{three}"),
        "must have 2 columns, the model's features in their order; got 3",
    ),
    "folder in use": (
        ("train", "two_moons_bayes", "--out", "{run}"),
        "is not empty; continue it with: bisnn resume",
    ),
    "no samples": (
        ("predict", "{st}", "{two}", "--samples", "3"),
        "rule 'st' has no posterior to draw from",
    ),
    "over its input": (
        ("predict", "{run}", "{two}", "--out", "{two}"),
        "must be a .csv file other than the input",
    ),
    "not a csv": (
        ("predict", "{run}", "{two}", "--out", "{run}/model.safetensors"),
        "must be a .csv file",
    ),
    "report over the model": (
        ("report", "{run}", "--out", "{run}/model.safetensors"),
        "give a name that ends in .html",
    ),
    "a file for a run": (("evaluate", "{run}/model.safetensors"), "there is no such run folder"),
    "no evaluation": (("report", "{run}"), "do it with: bisnn evaluate"),
    "unwritable": (
        ("train", "two_moons_bayes", "--out", "{nan}/run"),
        "nan.csv is a file, not a folder; give another",
    ),
    "cost": (("evaluate", "{run}", "--cost", "int_ad=1"), "did you mean 'int_add'?"),
    "cost without a number": (
        ("evaluate", "{run}", "--energy", "--cost", "int_add"),
        "must be NAME=PJ",
    ),
    "cost of nothing": (
        ("evaluate", "{run}", "--cost", "int_add=0"),
        "int_add: must be a finite number > 0",
    ),
    "unwritable predictions": (
        ("predict", "{run}", "{two}", "--out", "/nowhere/at/all.csv"),
        "there is no folder /nowhere/at",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line_and_no_traceback(bisnn_, tmp_path, trained, case):
    (tmp_path / "nan.csv").write_text("1,2\n1,nan\n")
    (tmp_path / "two.csv").write_text("1,2\n")
    (tmp_path / "three.csv").write_text("1,2,3\n")
    places = {
        "run": trained,
        "st": trained.parent / "st",
        **{name: tmp_path / f"{name}.csv" for name in ("nan", "two", "three")},
    }
    arguments, message = MISTAKES[case]
    code, out, error = bisnn_(*(argument.format(**places) for argument in arguments))
    assert code == 1
    assert message in error
    assert error.startswith("bisnn: ")
    assert error.count("\n") == 1
    assert "Traceback" not in out + error


def test_unwritable_folder_is_one_line(bisnn_, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", str(tmp_path / "run"))

    monkeypatch.setattr(training.Path, "mkdir", refuse)
    code, _, error = bisnn_("train", "two_moons_bayes", "--out", tmp_path / "run")
    assert (code, error.count("\n")) == (1, 1)
    assert f"bisnn: {tmp_path / 'run'}: permission denied; change the permissions" in error


def drop_the_right_to_write_anywhere():
    """Give up the capabilities by which root may write into read-only folders."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.skipif(sys.platform != "linux", reason="takes rights from root by Linux capabilities")
def test_every_command_that_writes_says_where_it_may_not(trained, tmp_path):
    """Read-only folders, a file for a folder and a folder for a file: one line, path first."""
    run = shutil.copytree(trained, tmp_path / "run")
    evaluation.evaluate(run, show=False)
    shutil.copytree(run, tmp_path / "locked").joinpath(".lock").unlink(missing_ok=True)
    (tmp_path / "small.toml").write_text(small().to_toml())
    (tmp_path / "x.csv").write_text("1,2\n")
    (tmp_path / "y.csv").write_text("0.5,0.5,1\n" * 9)
    events.write_aedat(tmp_path / "a.aedat", made_up(100, 128, 0))
    for name in ("closed", "folder.csv", "folder.safetensors"):
        (tmp_path / name).mkdir()
    denied = ": permission denied; change the permissions"
    file = "x.csv is a file, not a folder; give another place"
    cases = [
        ("train small.toml -q --out closed/a", "closed/a" + denied),
        ("train small.toml -q --out x.csv", "x.csv: is a file where a folder is needed"),
        ("train small.toml -q --out x.csv/a", f"x.csv/a: {file}"),
        ("resume locked -q", f"{tmp_path}/locked/.lock{denied}"),
        ("evaluate locked -q", f"{tmp_path}/locked/.lock{denied}"),
        ("calibrate locked -q --data y.csv --coverage 0.5", f"{tmp_path}/locked/.lock{denied}"),
        ("predict run x.csv --out closed/a.csv", "closed/a.csv" + denied),
        (
            "predict run x.csv --out folder.csv",
            "folder.csv: is a folder where a file is needed; give the name of a file",
        ),
        ("predict run x.csv --out x.csv/a.csv", f"x.csv/a.csv: {file}"),
        (
            "report run -q --out closed/a.html",
            "closed/a.html: Permission denied; the report was not written",
        ),
        (
            "export run --as members --out folder.safetensors",
            "folder.safetensors: is a folder where a file is needed",
        ),
        ("export run --as members --out x.csv/a.safetensors", f"x.csv/a.safetensors: {file}"),
        ("export run --as members --out closed/a.safetensors", "closed/a.safetensors" + denied),
        ("export run --as members --to c --out x.csv", "x.csv: is a file where a folder is needed"),
        ("export run --as members --to c --out closed/c", "closed/c" + denied),
        ("inspect a.aedat --out closed", "closed/a.aedat.png" + denied),
        ("simulate closed/a --per-class 1 -q", "closed/a" + denied),
        ("simulate x.csv --per-class 1 -q", f"x.csv/scale04: {file}"),
    ]
    program = """
import contextlib, io, json, sys
from bisnn import cli
for arguments in json.load(sys.stdin):
    sys.argv = ["bisnn", *arguments.split()]
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.main()
        except SystemExit as end:
            print(json.dumps([end.code, error.getvalue()]), file=sys.__stdout__)
"""
    for name in ("closed", "locked"):
        (tmp_path / name).chmod(0o555)
    asked = json.dumps([arguments for arguments, _ in cases])
    options = {
        "cwd": tmp_path,
        "capture_output": True,
        "text": True,
        "timeout": 300,
        "input": asked,
    }
    done = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=drop_the_right_to_write_anywhere, **options
    )
    for name in ("closed", "locked"):
        (tmp_path / name).chmod(0o755)
    if any((tmp_path / "closed").iterdir()):
        pytest.skip("this user may write into read-only folders")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases), done.stderr
    for (arguments, message), (code, error) in zip(cases, answers, strict=True):
        assert (code, error.count("\n")) == (1, 1), (arguments, error)
        assert error.startswith(f"bisnn: {message}"), arguments


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_one_line(bisnn_, tmp_path, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(loop, "build_network", fail)
    code, _, text = bisnn_("train", "two_moons_bayes", "--out", tmp_path / "run")
    assert (code, text.count("\n")) == (1, 1)
    assert "not enough memory: lower train.batch_size" in text
    assert not (tmp_path / "run").exists()


def test_bugs_are_not_hidden(bisnn_, tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("a bug")

    monkeypatch.setattr(loop, "build_network", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        bisnn_("train", "two_moons_bayes", "--out", tmp_path / "run")


def test_typos_in_commands_and_options(bisnn_):
    assert "Did you mean 'train'?" in bisnn_("trian")[2]
    code, _, error = bisnn_("train")
    assert code == 2
    assert "CONFIG" in error
    assert bisnn_("reproduce", "fig3")[0] == 2


def test_tracebacks_for_developers(bisnn_, monkeypatch):
    monkeypatch.setenv("BISNN_DEBUG", "1")
    with pytest.raises(ValueError, match="there is no such config file"):
        bisnn_("train", "nothing.toml")


def test_interrupted_runs_say_how_to_go_on(bisnn_, tmp_path, monkeypatch):
    update = training.Training.update
    monkeypatch.setattr(
        training.Training, "update", lambda self: (os.kill(os.getpid(), 15), update(self))[1]
    )
    (tmp_path / "small.toml").write_text(small().to_toml())
    code, _, error = bisnn_("train", tmp_path / "small.toml", "--out", tmp_path / "run", "-q")
    assert code == 128 + 15
    assert f"bisnn resume {tmp_path / 'run'}" in error
    monkeypatch.undo()
    for command in (["evaluate", "-q"], ["export"]):
        code, _, error = bisnn_(command[0], tmp_path / "run", *command[1:])
        assert code == 0
        assert (
            f"{tmp_path / 'run'}: its model is of epoch 0 of 4; `bisnn resume` trains it to the end"
            in error
        )


def test_ctrl_c_is_one_word(bisnn_, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "simulate", interrupted)
    code, _, error = bisnn_("simulate", tmp_path / "out")
    assert (code, error.strip()) == (130, "bisnn: stopped")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "c", "--as", "posterior"], '"posterior" is for --to packed'),
        (
            ["--to", "c", "--prefix", "2nd"],
            "prefix: must be a C identifier that starts with a letter and names no header of "
            "C and no other file of the folder; got '2nd'",
        ),
        (["--to", "c", "--prefix", "math"], "got 'math'; use e.g. 'model'"),
        (["--prefix", "moons"], "prefix: is of --to c; got 'moons' with 'packed'; leave it out"),
        (["--as", "map", "--members", "3"], "members: are drawn from a posterior"),
        (["--to", "packed", "--out", "no/such/folder/x"], "no/such/folder/x"),
    ],
)
def test_exports_that_cannot_be(bisnn_, trained, arguments, message):
    code, _, error = bisnn_("export", trained, *arguments)
    assert code == 1
    assert error.startswith("bisnn: ")
    assert message in error


def test_a_run_without_a_model_cannot_be_exported(bisnn_, tmp_path):
    code, _, error = bisnn_("export", tmp_path / "none")
    assert code == 1
    assert "there is no such run folder" in error
