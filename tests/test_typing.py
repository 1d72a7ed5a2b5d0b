"""The public API under a strict type checker, as a user of the installed package sees it."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bisnn

PROGRAM = Path(__file__).parent / "user_program.py"


def test_a_users_program_passes_a_strict_type_checker_and_runs(tmp_path, pytestconfig):
    """In a folder of its own. Type checkers do not see an editable install: there, mypy gets its
    source; what CI installs from the wheel has to be found by its py.typed.
    """
    (tmp_path / PROGRAM.name).write_text(PROGRAM.read_text())
    installed = Path(bisnn.__file__).parents[1]
    source = {} if installed.name == "site-packages" else {"MYPYPATH": str(installed)}
    cache = pytestconfig.cache.mkdir("mypy")  # PyTorch's types take the time
    checks = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={cache}"]
    for command in (["-m", "mypy", *checks, PROGRAM.name], [PROGRAM.name]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, **source},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", ["bisnn", "bisnn.data", "bisnn.packed", "bisnn.shipping"])
def test_type_checkers_see_every_public_name_that_loads_lazily(package):
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = [alias for statement in block.body for alias in statement.names]
    assert all(alias.asname == alias.name for alias in shown), "only `name as name` is public"
    assert {alias.name for alias in shown} == set(module.__all__) - {"__version__"}
