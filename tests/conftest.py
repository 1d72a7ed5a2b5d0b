from __future__ import annotations

import os
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

from bisnn import SRM, kernels

torch.set_num_threads(1)  # two test processes share the machine
hypothesis.settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
# For files from outside
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=20_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Every implementation of the kernels. `device_of` says where its tensors live.
_has_cuda = torch.cuda.is_available() and "cuda" in kernels.NAMES
_needs_cuda = pytest.mark.skipif(not _has_cuda, reason="needs a CUDA device, and a kernel for it")
KERNELS = ("reference", "cpu", pytest.param("cuda", marks=[pytest.mark.cuda, _needs_cuda]))
# For PyTorch's own
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def device_of(kernel: str) -> str:
    return "cuda" if kernel == "cuda" else "cpu"


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Torch and our kernels on n threads, which share even the smallest work."""
    from bisnn.bits import threads as bit_threads

    before = torch.get_num_threads(), bit_threads.SERIAL
    torch.set_num_threads(n)
    bit_threads.SERIAL = 0
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        bit_threads.SERIAL = before[1]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spikes(*shape: int, seed: int = 0, density: float = 0.3, dtype=torch.float32) -> torch.Tensor:
    return (torch.rand(shape, generator=seeded(seed)) < density).to(dtype)


@contextmanager
def taking(most: int) -> Iterator[None]:
    """What is inside may take so many bytes of memory."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def constants_of(neuron: SRM, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(neuron.constants(np.float64)).to(dtype)


@pytest.fixture
def bisnn_(capsys, monkeypatch):
    """Runs `bisnn ARGUMENTS` in this process and gives its exit code, stdout and stderr."""
    from bisnn import cli

    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bisnn", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of recordings for one test alone."""
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def nmnist(tmp_path) -> Path:
    """A folder of made-up recordings, laid out as N-MNIST."""
    from runs import made_up_nmnist

    return made_up_nmnist(tmp_path / "N")


@pytest.fixture(scope="session")
def small_runs(tmp_path_factory) -> dict[str, Path]:
    """Small evaluated runs on points, by what they were trained on."""
    from reports import evaluated_small_runs

    return evaluated_small_runs(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def report_runs(tmp_path_factory) -> dict[str, Path]:
    """Evaluated runs with everything that a report shows, by what is special about them."""
    from reports import evaluated_runs

    return evaluated_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def pages(report_runs, tmp_path_factory) -> dict[str, str]:
    """The reports of `report_runs`, each alone and some together."""
    from reports import written_pages

    return written_pages(report_runs, tmp_path_factory.mktemp("pages"))
