from __future__ import annotations

import os

import hypothesis
import torch

torch.set_num_threads(1)  # two test processes share the machine
hypothesis.settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spikes(*shape: int, seed: int = 0, density: float = 0.3, dtype=torch.float32) -> torch.Tensor:
    return (torch.rand(shape, generator=seeded(seed)) < density).to(dtype)
