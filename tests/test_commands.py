"""Commands that the documents show: they parse, and those of the README's tour run."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from bisnn import cli
from bisnn.data import two_moons
from bisnn.runs import config

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
HISTORY = {"CHANGELOG.md", "NOTEBOOK.md"}  # may name in passing what is gone
BISNN = typer.main.get_command(cli.app).commands


def blocks(document: Path) -> list[str]:
    return re.findall(r"^ *```(?:sh|bash)\n(.*?)^ *```", document.read_text(), re.DOTALL | re.M)


def lines_of(block: str) -> list[list[str]]:
    """The commands of a block as words, without comments, and those on one line apart."""
    lines = block.replace("\\\n", " ").splitlines()  # a command may go on in the next line
    parts = [part for line in lines for part in line.split(" && ")]
    return [words for part in parts if (words := shlex.split(part, comments=True))]


def in_passing(document: Path) -> list[list[str]]:
    """Commands in the text. Often they are parts of a command, but with options that are real."""
    text = re.sub(r"<!--.*?-->|^ *```.*?^ *```", "", document.read_text(), flags=re.DOTALL | re.M)
    found = re.findall(r"`([^`]+)`|<code>(.*?)</code>", text)
    commands = [" ".join((a or b).split()) for a, b in found]
    return [shlex.split(c) for c in commands if re.match(r"(bisnn|make|python) [-\w]", c)]


class Parsed(Exception):
    """In place of all that a program does after it has parsed its arguments."""


def check_script(words: list[str], monkeypatch) -> None:
    """`python -m module ARGUMENTS` or `python FILE ARGUMENTS`, as far as its arguments."""
    run = runpy.run_module if words[0] == "-m" else runpy.run_path
    name = words[1] if words[0] == "-m" else str(ROOT / words[0])
    arguments = words[2:] if words[0] == "-m" else words[1:]
    assert Path(name).is_file() or find_spec(name)
    if not arguments:  # perhaps it parses none, and would run
        return
    parse = argparse.ArgumentParser.parse_args

    def stop(parser, *given):
        parse(parser, *given)
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(sys, "argv", [name, *arguments])
        patch.syspath_prepend(Path(name).parent)  # as Python does with a script's folder
        with pytest.raises(Parsed):
            run(name, run_name="__main__")


def check(words: list[str], monkeypatch, whole: bool) -> None:
    """Raise an error where a command, or a part of one, is none."""
    if "bisnn" in words:  # perhaps by torchrun
        _, name, *arguments = words[words.index("bisnn") :]
        if whole:
            BISNN[name].make_context(name, [*arguments])  # which takes words from its list
        parameters = BISNN[name].params
        options = {option for p in parameters for option in [*p.opts, *p.secondary_opts]}
        assert {word.partition("=")[0] for word in arguments if word.startswith("--")} <= options
        settings = [b for a, b in pairwise(arguments) if a == "--set"]
        assert {setting.partition("=")[0] for setting in settings} <= set(config.keys())
    elif words[0] == "make" and "-C" not in words:
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif words[0] == "python":
        check_script(words[1:], monkeypatch)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_in_documents_are_commands(document, monkeypatch):
    commands = [(words, True) for block in blocks(document) for words in lines_of(block)]
    if document.name not in HISTORY:
        commands += [(words, False) for words in in_passing(document)]
    for words, whole in commands:
        try:
            check(words, monkeypatch, whole)
        except (Exception, SystemExit) as error:
            pytest.fail(f"{document.name}: {shlex.join(words)}: {error!r}")


def test_a_renamed_command_option_setting_or_target_is_noticed(monkeypatch):
    for command in (
        "bisnn export RUN --too packed",
        "bisnn exports RUN",
        "bisnn train my.toml --set rule.speed=0.1",
        "make tested",
        "python -m bisnn_experiments.alphabets --rounds 5",
        "python benchmarks/gone.py",
    ):
        with pytest.raises((Exception, SystemExit)):
            check(shlex.split(command), monkeypatch, whole=True)


def test_examples_of_the_help_are_commands(monkeypatch):
    for examples in cli.COMMANDS.values():
        for example in examples:
            check(shlex.split(example), monkeypatch, whole=True)


def test_documents_are_read():
    """Or the test above would pass on nothing."""
    found = [words for document in DOCUMENTS for b in blocks(document) for words in lines_of(b)]
    assert sum(words[0] == "bisnn" for words in found) > 30
    assert ["bisnn", "try"] in found  # behind an &&


@pytest.mark.slow
def test_the_commands_of_the_tour_run(tmp_path):
    """As they stand, but for two that take long: one after the other, in an empty folder."""
    for name, sample in zip(("points", "more"), two_moons(seed=0), strict=True):
        rows = zip(sample.x.tolist(), sample.y.tolist(), strict=True)
        lines = [f"{a},{b},{('upper', 'lower')[y]}" for (a, b), y in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["width,height,moon", *lines]))
    tour = next(block for block in blocks(ROOT / "docs" / "TOUR.md") if "bisnn new" in block)
    commands = [w for w in lines_of(tour) if w[1] not in ("tune", "reproduce")]
    assert len(commands) > 6
    for words in commands:
        line = " ".join(word if "*" in word else shlex.quote(word) for word in words)
        subprocess.run(f"{sys.executable} -m {line}", shell=True, cwd=tmp_path, check=True)
