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
from bisnn.bits import compilation
from bisnn.bits.neurons import SHARED, TRACES, advance, column, loop, store
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
    compiled = compilation.kernel("int64(int64)")
    assert compiled(twice)(21) == 42
    path = kept(tmp_path)[suffix]
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert compiled(twice)(21) == 42
    again = compiled(twice)
    assert again(21) == 42
    assert sum(again.stats.cache_hits.values()) == 1, "mended, and used from then on"
    assert capsys.readouterr().err == ""


def test_without_a_place_kernels_are_compiled_in_memory(twice, tmp_path, monkeypatch, capsys):
    compilation._say_not_kept.cache_clear()
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    assert compilation.kernel("int64(int64)")(twice)(21) == 42
    assert compilation.kernel("float64(float64)")(twice)(1.5) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1, "one note, however many kernels"
    assert "NUMBA_CACHE_DIR" in said
    assert not kept(tmp_path)


def test_a_full_disk_is_no_reason_to_stop(twice, monkeypatch, capsys):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    compilation._say_not_kept.cache_clear()
    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "_save_data", full)
    assert compilation.kernel("int64(int64)")(twice)(21) == 42
    assert "NUMBA_CACHE_DIR" in capsys.readouterr().err


NEURON_SOURCE = """
from dataclasses import dataclass
import numpy as np
from numba import njit
from bisnn.neuron import Neuron

class Adding(Neuron):
    shared = ("theta",)

    @staticmethod
    def compiled():
        potential = njit(lambda state, each, shared: (state[0], shared[0]))
        return potential, njit(lambda I, fires, state, each, shared: (state[0] + STEP * I,))

STEP = np.float32(1)
"""


@loop("void(float32, trace[:, ::1], trace[:, ::1])")
def moved(I, traces, constants):
    """One step of a neuron that is given as an argument of the loop."""
    k, state = column(constants, 0, SHARED), column(traces, 0, TRACES)
    store(traces, 0, TRACES, advance(I, False, state, k, k))


def test_loops_are_kept_by_the_file_of_the_neuron(tmp_path, monkeypatch):
    """One that has changed is compiled anew: numba itself looks at the loop's file alone."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "own.py").write_text(NEURON_SOURCE)

    def step() -> tuple[float, int]:
        """A trace of 1 after a current of 1, and whether the kernel came from disk."""
        about = importlib.util.spec_from_file_location("own", tmp_path / "own.py")
        module = importlib.util.module_from_spec(about)
        monkeypatch.setitem(sys.modules, "own", module)
        about.loader.exec_module(module)
        traces, kernel = np.ones((1, 1), np.float32), moved(module.Adding)
        kernel(np.float32(1), traces, np.zeros((1, 1), np.float32))
        return float(traces[0, 0]), sum(kernel.stats.cache_hits.values())

    assert step() == (2, 0)
    assert step() == (2, 1)
    (tmp_path / "own.py").write_text(NEURON_SOURCE.replace("float32(1)", "float32(5)"))
    importlib.invalidate_caches()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert step() == (6, 0)


def test_loops_of_neurons_without_a_place_in_a_file_stay_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    class Local(bisnn.SRM):
        pass

    traces, constants = np.ones((3, 1), np.float32), np.zeros((4, 1), np.float32)
    moved(Local)(np.float32(1), traces, constants)
    assert not traces.any()
    assert not kept(tmp_path)


def test_a_kernel_that_does_not_compile_says_so(twice):
    with pytest.raises(numba.core.errors.TypingError):
        compilation.kernel("void(ListType(int64), DictType(int64, int64))")(lambda a, b: a + b)


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
