"""The command line: what it prints, how it fails, how quick it is."""

from __future__ import annotations

import csv
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import bisnn
from bisnn import cli, display
from bisnn.data import events, simulation
from bisnn.runs import config, data_sections, evaluation, loop, training
from bisnn.runs import model as models
from bisnn_experiments import reproduction
from bisnn_experiments.results import FigureResults, Figures, Mean, Summary, Versions
from runs import made_up, run_on_recordings, small

COMMANDS = (
    "train",
    "resume",
    "evaluate",
    "predict",
    "calibrate",
    "reproduce",
    "report",
    "export",
    "inspect",
    "simulate",
    "info",
)


def run(capsys, monkeypatch, *arguments):
    """Exit code, stdout and stderr of `bisnn ARGUMENTS`, in this process."""
    monkeypatch.setattr(sys, "argv", ["bisnn", *map(str, arguments)])
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def bisnn_(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    training.train(small("st"), folder / "st", show=False)
    return training.train(small(), folder / "run", show=False)


LOADS = {  # of the model, of the data, and validations of a config
    "train CONFIG --out OUT -q": (0, 1, 3),
    "resume RUN -q": (0, 1, 3),
    "evaluate RUN -q": (1, 1, 1),
    "evaluate RUN --energy -q": (1, 1, 1),
    "predict RUN POINTS": (1, 0, 1),
    "calibrate RUN --data LABELLED --coverage 0.5 -q": (1, 1, 1),
    "export RUN --to packed --as members": (1, 0, 1),
    "export RUN --to c --as map": (1, 0, 1),
    "export RUN --to packed --neuron fixed": (1, 1, 1),
    "report RUN -q": (0, 0, 1),
}


def test_a_command_loads_model_and_data_once(bisnn_, trained, tmp_path, monkeypatch):
    """And reads every config file, and the config of a model, at most once. `train` and `resume`
    validate it again with the number of their threads, and for their report.
    """
    counts = Counter()

    def counted(owner, name, what):
        whole = getattr(owner, name)

        def call(*arguments, **options):
            counts[what if what != "config" else ("config", str(arguments[0]))] += 1
            return whole(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    run = shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "small.toml").write_text(small().to_toml())
    (tmp_path / "points.csv").write_text("0.5,0.5\n")
    (tmp_path / "labelled.csv").write_text("0.5,0.5,1\n0.25,0.5,0\n" * 9)
    assert bisnn_("evaluate", run, "-q")[0] == 0
    counted(models, "load_tree", "model")
    counted(data_sections.TwoMoonsData, "load", "data")
    counted(config, "load", "config")
    counted(config, "parse", "validation")
    words = {"CONFIG": "small.toml", "RUN": "run", "OUT": "new", "POINTS": "points.csv"}
    words["LABELLED"] = "labelled.csv"
    for command, loads in LOADS.items():
        counts.clear()
        arguments = [tmp_path / words[w] if w in words else w for w in command.split()]
        code, _, error = bisnn_(*arguments)
        assert code == 0, error
        found = tuple(counts[what] for what in ("model", "data", "validation"))
        assert found == loads, command
        files = {key: n for key, n in counts.items() if isinstance(key, tuple)}
        most = 2 if command.startswith("resume") else 1  # its report draws from the files alone
        assert all(n <= most for n in files.values()), (command, files)


def test_from_a_config_to_a_verdict(bisnn_, tmp_path):
    (tmp_path / "small.toml").write_text(small().to_toml())
    code, out, _ = bisnn_(
        "train", tmp_path / "small.toml", "--out", tmp_path / "run", "--set", "train.epochs=2", "-q"
    )
    assert code == 0
    verdict = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert f"{verdict['metrics']['MAP']['accuracy']['value']:.4f}" in out
    assert "ensemble of 3" in out
    assert f"report: {tmp_path / 'run' / 'report.html'}\n" in out
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert bisnn_("resume", tmp_path / "run", "-q")[0] == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert bisnn_("evaluate", tmp_path / "run")[0] == 0
    assert bisnn_("report", tmp_path / "run", "--out", tmp_path / "page.html", "-q")[0] == 0
    assert (tmp_path / "page.html").exists()


def test_predictions_as_csv(bisnn_, trained, tmp_path):
    x = np.random.default_rng(0).random((4, 2))
    np.save(tmp_path / "x.npy", x)
    expected = bisnn.load(trained).predict(x)
    code, out, _ = bisnn_("predict", trained, tmp_path / "x.npy")
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0
    assert [float(row["p(1)"]) for row in rows] == expected.mean[:, 1].tolist()
    assert [
        float(row["mutual_information"]) for row in rows
    ] == expected.mutual_information.tolist()
    assert [int(row["class"]) for row in rows] == expected.mean.argmax(-1).tolist()
    # Enough for a bar, which must not get into the output
    np.save(tmp_path / "many.npy", np.tile(x, (70, 1)))
    code, out, _ = bisnn_("predict", trained, tmp_path / "many.npy")
    assert len(list(csv.DictReader(out.splitlines()))) == 280
    assert out.startswith("class,confidence,")
    code, out, _ = bisnn_(
        "predict", trained, tmp_path / "x.npy", "--map", "--out", tmp_path / "p.csv"
    )
    assert "4 predictions" in out
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [float(row["p(1)"]) for row in rows] == bisnn.load(trained).predict(
        x, samples=None
    ).mean[:, 1].tolist()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return run_on_recordings(tmp_path_factory.mktemp("recorded"))


def test_predictions_on_recordings(bisnn_, recorded, tmp_path, monkeypatch):
    run, root = recorded
    alone = shutil.copy(root / "Train" / "7" / "00002.bin", tmp_path / "alone [red].bin")
    files = [*sorted(root.glob("Test/*/*.bin")), alone]
    expected = bisnn.load(run).predict_recordings(files)
    code, out, error = bisnn_("predict", run, root / "Test", alone)
    rows = list(csv.DictReader(out.splitlines()))
    assert (code, error) == (0, "")
    assert list(rows[0]) == [
        "file",
        "class",
        "confidence",
        "p(3)",
        "p(7)",
        "entropy",
        "mutual_information",
    ]
    assert [row["file"] for row in rows] == [str(file) for file in files]
    assert [row["class"] for row in rows] == ["37"[i] for i in expected.mean.argmax(-1)]
    for name, values in (
        ("p(7)", expected.mean[:, 1]),
        ("entropy", expected.entropy),
        ("confidence", expected.mean.amax(-1)),
    ):
        assert [float(row[name]) for row in rows] == values.tolist()
    code, out, _ = bisnn_("predict", run, root / "Test" / "3", "--map", "--out", tmp_path / "p.csv")
    assert (code, out) == (0, f"2 predictions: {tmp_path / 'p.csv'}\n")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert {float(row["mutual_information"]) for row in rows} == {0.0}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = bisnn_("predict", run, alone)
    assert code == 0
    assert "alone [red].bin" in out
    assert "mutual_information" in out
    assert "p(3)" not in out, "ten of these would not fit"


def test_recordings_that_cannot_be_predicted(bisnn_, recorded, trained, tmp_path):
    run, root = recorded
    good = root / "Test" / "3"
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.bin").write_bytes(b"\xff" * 100)
    (tmp_path / "points.csv").write_text("1,2\n")
    events.write_aedat(tmp_path / "large.aedat", made_up(100, 128, 0))
    cases = {
        "nothing.bin": "nothing.bin: there is no such file",
        "noise.bin": "noise.bin: 20 of 20 addresses are outside the sensor",
        "empty": "empty: is a folder without recordings",
        "points.csv": "points.csv: must be an .aedat (AER-DAT2.0) or a .bin (N-MNIST) file",
        "large.aedat": (
            "large.aedat: must have the 34 x 34 pixels that the model was trained on; got 128 x 128"
        ),
    }
    for name, message in cases.items():
        code, out, error = bisnn_(
            "predict", run, good, tmp_path / name, "--out", tmp_path / "p.csv"
        )
        assert (code, out, error.count("\n")) == (1, "", 1)
        assert error.startswith("bisnn: ")
        assert message in error
        assert not (tmp_path / "p.csv").exists()
    code, _, error = bisnn_("predict", trained, tmp_path / "points.csv", good)
    assert (code, error.count("\n")) == (1, 1)
    assert "was trained on points, which come in one file; got 2" in error


def test_what_predictions_leave_out_goes_to_stderr(bisnn_, recorded, tmp_path):
    run, root = recorded
    content = (root / "Test" / "3" / "00001.bin").read_bytes()
    (tmp_path / "spoilt.bin").write_bytes(content + bytes([200, 3, 0, 0, 0]))
    code, out, error = bisnn_("predict", run, tmp_path / "spoilt.bin")
    assert (code, len(out.splitlines())) == (0, 2)
    assert error == "recordings: events left out of 1 recording (outside the sensor: 1)\n"


def test_energy_is_kept_and_shown_when_asked_for(bisnn_, trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    verdict = lambda: json.loads((run / "evaluation.json").read_text())  # noqa: E731
    code, out, _ = bisnn_("evaluate", run, "-q")
    assert (code, "synaptic" in out, "energy" in verdict()) == (0, False, True)
    code, out, _ = bisnn_("evaluate", run, "--energy", "-q")
    ledger = verdict()["energy"]
    assert code == 0
    assert list(ledger["rows"]) == ["full precision, hypothetical", "MAP", "ensemble of 3", "ANN"]
    for name, row in ledger["rows"].items():
        (cells,) = re.findall(rf"^  {name} (.*)", out.split("One inference")[1], re.M)
        counts = [
            f"{row[key]:,.0f}" for key in ("weight_bits", "synaptic_operations", "neuron_updates")
        ]
        assert cells.split()[:3] == counts
        assert cells.split()[-1] == f"{row['ratio']:.2f}"
    assert "Horowitz" in out
    bisnn_("evaluate", run, "--cost", "int_add=0.2", "-q")
    again = verdict()["energy"]
    assert again["costs"]["int_add"] == 0.2
    assert again["rows"]["MAP"]["synapse_joules"] == pytest.approx(
        2 * ledger["rows"]["MAP"]["synapse_joules"]
    )


def test_names_are_no_markup(bisnn_, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [f"{i % 7},{i % 5},{('[red]', '[/b]')[i % 2]}" for i in range(40)]
    (tmp_path / "points.csv").write_text("\n".join(rows))
    settings = small("st", {"data": {"name": "table", "train": str(tmp_path / "points.csv")}})
    (tmp_path / "small.toml").write_text(settings.to_toml())
    folder = tmp_path / "a [/b] [red] b"
    code, out, error = bisnn_("train", tmp_path / "small.toml", "--out", folder, "-q")
    assert code == 0
    # That the features say nothing
    assert all(line.startswith(f"{folder}: ") for line in error.splitlines())
    assert f"report: {folder / 'report.html'}\n" in out
    (tmp_path / "x.csv").write_text("1,2\n")
    code, out, error = bisnn_("predict", folder, tmp_path / "x.csv")
    assert (code, error) == (0, "")
    assert "p([red])" in out


FORMULA, ESCAPE = "=cmd|' /C calc'!A0", "a\x1b]0;owned\x07\x9b2J\u202eb"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run and a folder with names that a spreadsheet or a terminal would obey."""
    folder = tmp_path_factory.mktemp("hostile")
    classes = [FORMULA, ESCAPE, "-1", "@x", "+1e3", "-x"]
    rows = [[i % 7, i % 5, classes[i % 6]] for i in range(120)]
    with open(folder / "points.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    config = small("st", {"data": {"name": "table", "train": str(folder / "points.csv")}})
    return training.train(config, folder / "run", show=False), classes


def test_no_cell_of_a_csv_is_a_formula(bisnn_, hostile, tmp_path):
    run, classes = hostile
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(0, 6, (200, 2)))
    code, _, error = bisnn_("predict", run, tmp_path / "x.npy", "--out", tmp_path / "p.csv")
    assert (code, error) == (0, "")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()))
    meant = [
        bisnn.load(run).classes[i]
        for i in bisnn.load(run).predict(np.load(tmp_path / "x.npy")).mean.argmax(-1)
    ]
    assert {FORMULA, "-1"} <= set(meant)
    written = {FORMULA: f"'{FORMULA}", "@x": "'@x", "-x": "'-x"}
    assert [row["class"] for row in rows] == [
        written.get(name, display.visible(name)) for name in meant
    ]
    shown = [f"p({display.visible(name)})" for name in sorted(classes)]
    assert [header for header in rows[0] if header.startswith("p(")] == shown
    assert "\x1b" not in (tmp_path / "p.csv").read_text(encoding="utf-8"), (
        "a CSV may be piped to a terminal"
    )


def test_names_do_not_command_the_terminal(bisnn_, hostile, recorded, tmp_path, monkeypatch):
    run, _ = hostile
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    outputs = [bisnn_("predict", run, tmp_path / "x.npy")]
    assert r"p(a\x1b]0;owned\x07\x9b2J\u202eb)" in outputs[0][1]
    strange = tmp_path / f"{ESCAPE} \udcff.bin"
    shutil.copy(next(recorded[1].glob("Test/3/*.bin")), strange)
    outputs += [
        bisnn_("inspect", strange, "--out", f"{strange}.png"),
        bisnn_("predict", recorded[0], strange),
    ]
    strange.write_bytes(b"abc")
    outputs += [
        bisnn_("predict", recorded[0], strange),
        bisnn_("report", tmp_path / ESCAPE),
        bisnn_("train", ESCAPE),
    ]
    for _, out, error in outputs:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", out + error)  # without our own colours
        assert "owned" in plain
        assert not set("\x1b\x07\x9b\u202e\udcff") & set(plain)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    shutil.copy(next(recorded[1].glob("Test/3/*.bin")), strange)
    code, out, _ = bisnn_("predict", recorded[0], strange)
    assert (code, r"\udcff.bin" in out) == (0, True), (
        "a byte that is no UTF-8 does not stop predictions"
    )
    assert [code for code, *_ in outputs] == [0, 0, 0, 1, 1, 1]


def test_info(bisnn_):
    code, out, _ = bisnn_("info")
    assert code == 0
    assert re.search(r"kernel, cpu float32\W+cpu", out)
    assert "two_moons_bayes" in out
    assert bisnn.info()["bisnn"] == bisnn.__version__
    assert all(value in out for value in bisnn.info().values() if len(value) < 50)
    assert bisnn_("--version")[1].strip() == bisnn.__version__


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(bisnn_, command):
    code, out, _ = bisnn_(command, "--help")
    assert code == 0
    assert f"bisnn {command}" in out.split("Examples:")[1]
    assert f"bisnn {command}" in bisnn_("--help")[1].split("Examples:")[1]


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


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys\nsys.argv = ['bisnn', '--help']\nfrom bisnn.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'numba', 'numpy', 'matplotlib', 'sklearn', 'pydantic') if m "
        "in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout[-500:] + done.stderr
    seconds = []
    for _ in range(3):
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "bisnn", "train", "--help"],
            capture_output=True,
            check=True,
            timeout=60,
        )
        after = os.times()
        seconds.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    assert min(seconds) < 0.5  # of CPU time: other tests run beside this one


def test_reproduce_passes_its_options_on(bisnn_, tmp_path, monkeypatch):
    asked = {}

    def reproduce(figures, recipe, **options):
        asked.update(options, figures=figures, recipe=recipe)
        ece = Mean(mean=0.25, std=0.0)
        figure = FigureResults(
            recipe=recipe,
            command="bisnn",
            machine="one core",
            versions=Versions(torch="2", python="3"),
            wall_seconds=None,
            seeds=[5, 6],
            summary=[Summary(method="ST-BiSNN", predictor="sign", seeds=2, ece=ece)],
            rows=[],
            panels=[],
            training_points=None,
        )
        return Figures(figures=dict.fromkeys(figures, figure))

    monkeypatch.setattr(reproduction, "reproduce", reproduce)
    code, out, _ = bisnn_(
        "reproduce", "all", "--recipe", "paper", "--seeds", 2, "--first-seed", 5, "--jobs", 3, "-q"
    )
    assert code == 0
    assert asked == {
        "figures": ["fig1", "fig2"],
        "recipe": "paper",
        "seeds": range(5, 7),
        "out": Path("out/paper"),
        "jobs": 3,
        "train": True,
        "show": False,
        "data": None,
        "device": None,
    }
    assert "0.250" in out
    assert "± 0.000" in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["train", "--help"], 0), (["trian"], 2), (["evaluate", "no such run"], 1)],
)
def test_under_torchrun_the_interpreter_is_left_without_its_shutdown(arguments, code):
    """There gloo's threads could abort it (see `cli.main`); all output and the exit status stay."""
    program = (
        "import atexit, sys; from bisnn.cli import main; atexit.register(print, 'shut down'); "
        "main()"
    )
    outcomes = []
    for extra in ({}, {"WORLD_SIZE": "1", "RANK": "0"}):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code
        outcomes.append((done.stdout, done.stderr))
    assert outcomes[0][0] == outcomes[1][0] + "shut down\n"
    assert outcomes[0][1] == outcomes[1][1]
    assert len(outcomes[1][0] + outcomes[1][1]) > 20


# Exports


@pytest.mark.parametrize(
    ("arguments", "said", "written"),
    [
        (["--to", "packed"], "weights, 3 x 1 bit each", "packed.safetensors"),
        (["--as", "posterior"], "weights, the posterior at 8 bits each", "packed.safetensors"),
        (["--as", "map"], "weights, 1 x 1 bit each", "packed.safetensors"),
        (["--to", "c", "--as", "members", "--members", "2"], "of tables (flash)", "c/model.c"),
        (
            ["--to", "c", "--prefix", "moons"],
            "cc -O2 moons.c moons_test.c -o moons_test && ./moons_test",
            "c/moons.c",
        ),
        (["--to", "nir"], "NIR graph (exact)", "model.nir"),
        (["--to", "nir", "--profile", "cubalif"], "not the network's own spikes", "model.nir"),
    ],
)
def test_exports_say_what_they_wrote(bisnn_, trained, arguments, said, written):
    if "nir" in arguments:
        pytest.importorskip("nir")
    code, out, _ = bisnn_("export", trained, *arguments)
    assert code == 0
    assert said in " ".join(out.split())
    assert (trained / written).stat().st_size > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "c", "--as", "posterior"], '"posterior" is for --to packed'),
        (
            ["--to", "c", "--prefix", "2nd"],
            "prefix: must be a C identifier that starts with a letter and names no header of "
            "C; got '2nd'",
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
