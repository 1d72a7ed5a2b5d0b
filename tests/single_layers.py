"""A single layer of any shape as one operation, with its inputs, weights and readout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from bisnn import SRM
from bisnn.kernels import cpu
from bisnn.kernels.layer import srm_layer
from bisnn.weights import sign
from conftest import constants_of, seeded, spikes

NEURON = SRM(tau_mem=5.0, tau_syn=3.0, tau_ref=2.0, threshold=0.1, slope=2.0)
SEEDS = st.integers(0, 1000)
LEVELS = {True: [-1, 1], False: []}
Y, S, U = 0, 1, 2  # which output of the operation


class Layer(NamedTuple):
    """Shapes of inputs (T, B, n_in) or (T, B, H, W, C) and weights; how a convolution runs."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    pool: int = 1

    def product(self, x, weight):
        if not self.stride:
            return F.linear(x, weight)
        images = x.flatten(0, 1).movedim(-1, 1)
        return (
            F.conv2d(images, weight, None, self.stride, self.padding)
            .movedim(1, -1)
            .unflatten(0, x.shape[:2])
        )

    def run(self, x, weight, state, hard, spikes, neuron=NEURON, refractory=False, outputs=0):
        """The operation, with a kappa for each neuron or channel and a readout of `outputs`."""
        constants, readout = (
            constants_of(neuron, x.dtype).to(x.device),
            (r if r is None else r.to(x) for r in self.readout(outputs)),
        )
        places = (list(self.stride), list(self.padding), self.pool)
        surrogate = (neuron.surrogate, neuron.slope, refractory)
        settings = (*places, LEVELS[hard], spikes, *surrogate)
        return srm_layer(x, weight, *state, self.kappa().to(x), constants, *readout, *settings)

    def readout(self, outputs, seed=0):
        """V, scale; the order of V is that of the spikes in memory."""
        if not outputs:
            return None, None
        one = torch.zeros(1, 1, *self.x[2:])
        *_, H, W, C = (1, 1, *self.product(one, torch.zeros(self.weight)).shape[2:])
        n = H // self.pool * (W // self.pool) * C
        return sign(torch.randn(outputs, n, generator=seeded(seed))), torch.tensor(0.7 / n**0.5)

    def kappa(self):
        return (
            torch.linspace(0.5, 1.5, self.weight[0], dtype=torch.float64) / self.fan_in**0.5
        ).float()

    @property
    def fan_in(self):
        return torch.Size(self.weight[1:]).numel()

    def tensors(self, inputs="sparse", hard=True, seed=0):
        """Inputs of a density, or "sparse", "dense" or "real"; weights; a state P, Q, R."""
        g = seeded(seed)
        density = {"sparse": 0.05, "dense": 0.5, "real": 0.5}.get(inputs, inputs)
        x = spikes(*self.x, seed=seed, density=density)
        if inputs == "real":
            x = x * torch.randn(self.x, generator=g)
        weight = torch.randn(self.weight, generator=g)
        one = self.product(x, weight)[0]
        return (
            x,
            sign(weight) if hard else weight.tanh(),
            [0.5 * torch.randn(one.shape, generator=g) for _ in range(3)],
        )


@st.composite
def layers(draw):
    T, B = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        n_in, n_out = draw(st.integers(1, 80)), draw(st.integers(1, 40))
        return Layer((T, B, n_in), (n_out, n_in))
    pair = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    kernel, stride, padding, extra = pair(1, 3), pair(1, 2), pair(0, 2), pair(0, 4)
    pool = draw(st.integers(1, 3))
    least = ((pool - 1) * d + k - 2 * p for d, k, p in zip(stride, kernel, padding, strict=True))
    H, W = (max(1, n) + e for n, e in zip(least, extra, strict=True))
    C, C_out = draw(st.sampled_from([1, 2, 31, 32, 33])), draw(st.integers(1, 5))
    return Layer((T, B, H, W, C), (C_out, C, *kernel), stride, padding, pool)


DENSE = Layer((9, 3, 40), (7, 40))
CONV = Layer((4, 2, 6, 5, 3), (4, 3, 3, 2), (1, 2), (1, 0))
# 8 x 8 neurons: two rows and two columns belong to no window
POOLED = Layer((4, 2, 8, 9, 3), (4, 3, 3, 2), (1, 1), (1, 0), 3)
FIVE = CONV._replace(x=(4, 5, 6, 5, 3))  # recordings: groups of two leave one over
ALL = [
    pytest.param(layer, id=name)
    for name, layer in (("dense", DENSE), ("conv", CONV), ("pooled", POOLED))
]


@contextmanager
def groups_of(recordings: int, layer: Layer, transformed: bool = False) -> Iterator[None]:
    """The CPU's gradients work on so many recordings at a time, in frequencies or tap by tap."""
    neurons = layer.product(torch.zeros(1, 1, *layer.x[2:]), torch.zeros(layer.weight)).numel()
    with (
        patch.object(cpu, "CACHED", recordings * layer.x[0] * neurons),
        patch.object(cpu, "_is_cheaper_in_frequencies", lambda *_: transformed),
    ):
        yield
