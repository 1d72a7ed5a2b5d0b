"""Imports point one way: each part of the library imports from the parts below it alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bisnn

SOURCE = Path(bisnn.__file__).parent
BASE = {"lazy", "checks", "files", "errors", "display"}  # what every part may use
DESCRIPTION = {"alphabet", "neuron", "spec", "conformal"}  # values, without PyTorch
PAPER = {
    *(
        "weights",
        "realisation",
        "modules",
        "layer",
        "layers",
        "network",
        "losses",
        "optimizer",
        "rules",
        "steps",
        "states",
    ),
    *("ensemble", "prediction", "metrics", "intervals", "selection", "encode", "packing"),
}

# From the bottom to the top: what each part may import beside itself, BASE and DESCRIPTION.
ALLOWED: dict[str, set[str]] = {
    "bits": set(),
    "description": set(),
    "packed": {"bits"},
    "kernels": {"bits"},
    "paper": {"bits", "kernels", "packed"},
    "shipping": {"bits", "packed", "paper"},
    "data": {"bits", "kernels", "packed", "paper"},
    "sklearn": {"bits", "packed", "paper"},
    "runs": {"bits", "kernels", "packed", "paper", "shipping", "data"},
    "reporting": {"packed", "paper", "shipping", "data", "runs"},
    "tuning": {"bits", "kernels", "runs", "reporting"},
    "cli": {
        *("kernels", "packed", "paper", "shipping", "data", "runs", "reporting", "tuning"),
        "experiments",
    },
}
TOP = {"cli", "commands", "printing", "system", "__main__"}  # the command line


def part_of(module: str) -> str:
    """The part of the library that a module, such as `kernels.cpu`, belongs to."""
    first = module.split(".")[0]
    if first in ALLOWED:
        return first
    if first in BASE:
        return "base"
    if first in DESCRIPTION:
        return "description"
    if first in PAPER:
        return "paper"
    assert first in TOP, f"{module} belongs to no part: name it in ALLOWED, BASE, PAPER or TOP"
    return "cli"


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, wherever in it, but not for type checkers alone."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("bisnn_experiments"):
                found.add("experiments")
            elif name.startswith("bisnn."):
                found.add(name.removeprefix("bisnn."))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if path != SOURCE / "__init__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    own = part_of(module)
    if own == "base":
        return  # held below
    for name in imported(SOURCE / Path(*module.split(".")).with_suffix(".py")):
        known = {"experiments": "experiments", "__version__": "base"}
        other = known.get(name) or part_of(name)
        assert other in {own, "base", "description", *ALLOWED[own]}, (
            f"{module} ({own}) imports {name} ({other})"
        )


def test_the_base_imports_nothing_above_it():
    for module in BASE:
        assert {part_of(name) for name in imported(SOURCE / f"{module}.py")} <= {"base"}


def test_only_shipping_reads_templates():
    for module in MODULES:
        text = (SOURCE / Path(*module.split(".")).with_suffix(".py")).read_text()
        reads = 'joinpath("templates"' in text
        assert not reads or module.startswith("shipping"), module


def test_no_two_classes_share_a_name():
    names: dict[str, str] = {}
    for module in MODULES:
        for node in ast.parse(
            (SOURCE / Path(*module.split(".")).with_suffix(".py")).read_text()
        ).body:
            if isinstance(node, ast.ClassDef):
                assert node.name not in names, f"{node.name}: in {names[node.name]} and in {module}"
                names[node.name] = module
