"""The networks that the benchmarks run, and their input: the same for all contestants.

"mlp": 20 inputs, two layers of 256 neurons, 2 classes. "conv": 2 x 26 x 26 inputs, convolutions to
64, 128 and 128 channels (kernel 7, padding 2) whose neurons are max-pooled by 2, 1 and 2, and 10
classes. Inputs are random spikes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

KERNEL, PADDING, POOLS = 7, 2, (2, 1, 2)
THRESHOLDS = {"mlp": (0.1, 0.1), "conv": (0.1, 0.4, 0.3)}  # of our layers


class Sizes(NamedTuple):
    """One layer, without the axes of time and batch."""

    inputs: tuple[int, ...]  # (N,) or (C, H, W)
    neurons: tuple[int, ...]
    pool: int
    parents: int  # inputs of one neuron
    padding: int = 0

    @property
    def outputs(self) -> tuple[int, ...]:
        if self.pool == 1:
            return self.neurons
        return (*self.neurons[:-2], *(n // self.pool for n in self.neurons[-2:]))


@dataclass(frozen=True)
class Workload:
    """A network and the size of its input."""

    # "mlp" or "conv"; without a readout "dense", one layer of 1024 inputs, and "wide", one layer of
    # as many inputs as neurons
    kind: str
    T: int
    B: int
    hidden: tuple[int, ...]  # neurons of the hidden layers, or channels
    density: float = 0.05  # of the input spikes
    device: str = "cpu"
    padding: int = PADDING

    @property
    def classes(self) -> int:
        return {"mlp": 2, "conv": 10, "dense": 0, "wide": 0}[self.kind]

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The thresholds of our layers; a single layer's fits its input, so that 5 to 10 % of its
        neurons fire.
        """
        return THRESHOLDS.get(self.kind, (0.3 * math.sqrt(self.density),))

    @property
    def layers(self) -> list[Sizes]:
        inputs = {"mlp": (20,), "conv": (2, 26, 26), "dense": (1024,), "wide": self.hidden}
        shape: tuple[int, ...] = inputs[self.kind]
        layers = []
        for i, n in enumerate(self.hidden):
            if self.kind == "conv":
                side = shape[1] + 2 * self.padding - KERNEL + 1
                layers.append(
                    Sizes(shape, (n, side, side), POOLS[i], shape[0] * KERNEL**2, self.padding)
                )
            else:
                layers.append(Sizes(shape, (n,), 1, shape[0]))
            shape = layers[-1].outputs
        return layers

    def floor(self) -> dict[str, float]:
        """What one local training iteration cannot avoid, whatever computes it.

        Operations: forward and weight gradient of each layer, a multiplication and an addition per
        synapse. Bytes: a product, a pass over time and a product, each from and to memory, in 2
        bytes per number and 1 per spike: a neuron's current, potential and gradient are written
        once and read once; what leaves a layer is written once and read by product, readout and
        gradient.
        """
        steps = self.T * self.B
        synapses = sum(math.prod(layer.neurons) * layer.parents for layer in self.layers)
        neurons = sum(math.prod(layer.neurons) for layer in self.layers)
        outputs = sum(math.prod(layer.outputs) for layer in self.layers)
        return {
            "flop": 4.0 * steps * synapses,
            "bytes": float(steps * (12 * neurons + 4 * outputs)),
        }

    def batch(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Input spikes (T, B, ...) and labels (B,); the same on every device."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.B, *self.layers[0].inputs)
        steps = [torch.rand(shape, generator=generator) < self.density for _ in range(self.T)]
        x = torch.stack([step.to(dtype) for step in steps])
        y = torch.randint(max(1, self.classes), (self.B,), generator=generator)
        return x.to(self.device), y.to(self.device)


MLP = Workload("mlp", 100, 64, (256, 256))
CONV = Workload("conv", 50, 16, (64, 128, 128))


def small(kind: str) -> Workload:
    """For a smoke run: the same structure, next to no work."""
    if kind == "mlp":
        return replace(MLP, T=20, B=4, hidden=(32, 32))
    return replace(CONV, T=50, B=2, hidden=(4, 8, 8))
