"""What this installation is and runs on: for bug reports, and to see which kernel will run."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import torch

import bisnn
from bisnn import kernels
from bisnn.runs import config


def info() -> dict[str, str]:
    """Versions, devices, the kernel for each device and dtype, and the configs of the package."""
    facts = {"bisnn": bisnn.__version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "numba", "safetensors", "tensorboard"):
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts["cpu"] = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of PyTorch"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    facts["cuda"] = ", ".join(gpus) or "no device"
    for device in ("cpu", "cuda"):
        for dtype in (torch.float32, torch.float64):
            name = f"kernel, {device} {str(dtype).removeprefix('torch.')}"
            facts[name] = kernels.name_for(torch.device(device), dtype)
    return {**facts, "config version": str(config.VERSION), "configs": ", ".join(config.shipped())}
