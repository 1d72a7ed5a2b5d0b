"""The scan over time, in several implementations that give the same bits.

`reference` (plain PyTorch, any device and float type) is the definition; in float32, `cpu` (numba)
is what runs on a CPU and `cuda` (Triton) on an NVIDIA GPU. Which one runs is decided by device and
dtype alone, or by `forced`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from bisnn.checks import choice
from bisnn.neuron import Neuron

__all__ = ["forced", "name_for", "precision"]

NAMES = ("reference", "cpu", "cuda")
_forced: str | None = None


def choose(I: Tensor) -> ModuleType:
    """The kernel module that handles a current of this device and dtype."""
    # When first used: numba and Triton take a while to load
    return import_module(f"bisnn.kernels.{name_for(I.device, I.dtype)}")


def name_for(device: torch.device, dtype: torch.dtype) -> str:
    """Name of the kernel in use for `device` and `dtype`."""
    if _forced is not None:
        return _forced
    fast = device.type == "cpu" or (device.type == "cuda" and _has_triton())
    return device.type if fast and dtype == torch.float32 else "reference"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None  # not on every platform that has CUDA


def halves_potentials(x: Tensor, conv: bool, neuron: Neuron) -> bool:
    """Whether potentials that nobody reads are kept for the backward pass in half precision: by
    `cuda`, where PyTorch may round the operands of such products.

    They are kept for the surrogate's derivative. Rounding u changes that of "sigmoid" by a share of
    about slope u / 2^12: near the threshold, where it is large, by a part in 1,000 at most, or they
    are not halved. The edges of "box" bear no rounding.
    """
    if name_for(x.device, x.dtype) != "cuda" or neuron.surrogate != "sigmoid":
        return False  # before PyTorch's switches, which raise where they were set in two ways
    rounds = torch.backends.cudnn.allow_tf32 if conv else torch.backends.cuda.matmul.allow_tf32
    return rounds and bool(neuron.slope * neuron.constants()[-1] <= 4)


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Inside the block, PyTorch's switches for products of real numbers by `name`: "full", or
    "mixed", where operands may be rounded.

    Rounded to half precision or TF32 on a GPU, to bfloat16 on a CPU that has it. Hard weights and
    spikes are exact in both. cuDNN takes algorithms that give the same bits every time.
    """
    choice("precision", name, ("full", "mixed"))
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic
    torch.set_float32_matmul_precision("medium" if name == "mixed" else "highest")
    cudnn.allow_tf32, cudnn.deterministic = name == "mixed", True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.deterministic = before[1:]


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Run every scan inside the block on the kernel `name`, "reference", "cpu" or "cuda",
    process-wide: for tests and benchmarks.
    """
    global _forced
    choice("name", name, NAMES)
    previous, _forced = _forced, name
    try:
        yield
    finally:
        _forced = previous
