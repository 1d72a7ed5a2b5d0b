"""The command line: what each command loads, prints and writes, and how quick it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import bisnn
from bisnn.runs import config, data_sections
from bisnn.runs import model as models
from bisnn_experiments import reproduction
from bisnn_experiments.results import FigureResults, Figures, Mean, Summary, Versions
from runs import run_of_both_rules, small

COMMANDS = (
    "train",
    "resume",
    "tune",
    "evaluate",
    "predict",
    "calibrate",
    "reproduce",
    "report",
    "export",
    "try",
    "inspect",
    "simulate",
    "new",
    "info",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run_of_both_rules(tmp_path_factory.mktemp("cli"))


LOADS = {  # of the model, of the data, and validations of a config
    "train CONFIG --out OUT -q": (0, 1, 3),
    "resume RUN -q": (0, 1, 3),
    "evaluate RUN -q": (1, 1, 1),
    "evaluate RUN --energy -q": (1, 1, 1),
    "predict RUN POINTS": (1, 0, 1),
    "calibrate RUN --data LABELLED --coverage 0.5 -q": (1, 1, 1),
    "export RUN --to packed --as members": (1, 0, 1),
    "export RUN --to c --as map": (1, 0, 1),
    "export RUN --to web --as map": (1, 1, 1),
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
            "c test",
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
