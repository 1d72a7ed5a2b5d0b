"""Compiled kernels where nothing can be kept on disk, or where what was kept is damaged."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from numba.core.caching import CompileResultCacheImpl

import bisnn
from bisnn import packing
from bisnn.bits import counting
from bisnn.packed import Engine, file
from networks import build

SOURCE = "def twice(x):\n    return x + x\n"


@pytest.fixture
def twice(tmp_path, monkeypatch):
    """A function of a file of its own, whose compiled form is kept in a folder of its own."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "module.py").write_text(SOURCE)
    about = importlib.util.spec_from_file_location("module", tmp_path / "module.py")
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module.twice


def kept(folder: Path) -> dict[str, Path]:
    return {path.suffix: path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc")}


DAMAGE = {
    "empty": lambda whole: b"",
    "cut short": lambda whole: whole[: len(whole) // 2],
    "one byte": lambda whole: whole[:1],
    "zeros": lambda whole: bytes(len(whole)),
    "garbage": lambda whole: b"\x80\x05garbage" * 9,
    "text": lambda whole: b"<html>404</html>",
    "another pickle": lambda whole: b"\x80\x04]\x94.",
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_made_anew(twice, tmp_path, capsys, suffix, damage):
    compiled = counting.kernel("int64(int64)")
    assert compiled(twice)(21) == 42
    path = kept(tmp_path)[suffix]
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert compiled(twice)(21) == 42
    again = compiled(twice)
    assert again(21) == 42
    assert sum(again.stats.cache_hits.values()) == 1, "mended, and used from then on"
    assert capsys.readouterr().err == ""


def test_without_a_place_kernels_are_compiled_in_memory(twice, tmp_path, monkeypatch, capsys):
    counting._say_not_kept.cache_clear()
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    assert counting.kernel("int64(int64)")(twice)(21) == 42
    assert counting.kernel("float64(float64)")(twice)(1.5) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1, "one note, however many kernels"
    assert "NUMBA_CACHE_DIR" in said
    assert not kept(tmp_path)


def test_a_full_disk_is_no_reason_to_stop(twice, monkeypatch, capsys):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    counting._say_not_kept.cache_clear()
    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "_save_data", full)
    assert counting.kernel("int64(int64)")(twice)(21) == 42
    assert "NUMBA_CACHE_DIR" in capsys.readouterr().err


def test_a_kernel_that_does_not_compile_says_so(twice):
    with pytest.raises(numba.core.errors.TypingError):
        counting.kernel("void(ListType(int64), DictType(int64, int64))")(lambda a, b: a + b)


def read_only(folder: Path) -> tuple[list[str], dict[str, str]]:
    """A copy of the package and a home that nobody may write: how a command begins that uses them,
    and its environment.

    Root writes everywhere unless it lacks the capability to; other users need no more than the
    modes.
    """
    shutil.copytree(
        Path(bisnn.__file__).parent, folder / "bisnn", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "home").mkdir()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if os.geteuid() != 0:
        return [sys.executable], env
    if shutil.which("setpriv") is None:
        pytest.skip("root needs setpriv to become unable to write")
    return ["setpriv", "--bounding-set", "-dac_override", sys.executable], env


RUN = {
    "kernels": "from bisnn.bits import counting; print(counting.__file__)",
    "engine": """
import sys, numpy as np, bisnn.packed
engine = bisnn.packed.load(sys.argv[1])
print(bisnn.packed.__file__, engine.run(np.ones((5, 1, 6), np.uint8)).logits.tobytes().hex())
assert "torch" not in sys.modules
""",
}


@pytest.mark.parametrize("what", ["kernels", pytest.param("engine", marks=pytest.mark.slow)])
def test_a_read_only_install_runs(tmp_path, what):
    described = packing.describe(build("dense", dtype=torch.float32))
    file.write(described, tmp_path / "packed.safetensors")
    site = tmp_path / "site"
    site.mkdir()
    start, env = read_only(site)
    command = [*start, "-c", RUN[what], str(tmp_path / "packed.safetensors")]
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    for path in (site, *site.rglob("*")):
        path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "NUMBA_CACHE_DIR" in done.stderr
    assert done.stdout.startswith(str(site))
    assert not list(site.rglob("*.nb?")), "the copy was read-only"
    if what == "engine":
        logits = Engine(described).run(np.ones((5, 1, 6), np.uint8)).logits
        assert done.stdout.split()[-1] == logits.tobytes().hex()
