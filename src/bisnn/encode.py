"""From real numbers to spike trains: population coding and rate coding, Bernoulli spikes at a rate, seeded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bisnn.checks import as_generator, finite, number, positive_int, tensor
from bisnn.packed.encoding import AUGMENT, DROPOUT, GRID, PREDICT, SHUFFLE, SPLIT, TEST, TRAIN, VALIDATION, keyed_rng  # noqa: F401


def population_rates(x: Tensor, neurons: int, width: float) -> Tensor:
    """Firing rates of a population of raised-cosine tuning curves, one population a dimension.

    rate_k(x) = 1/2 + 1/2 cos(clip(pi (x - c_k) / D, -pi, pi)), with centres c_k evenly on [0, 1] and D = `width` spacings.

    Args:
        x: values, (B, d), meant to lie in [0, 1]; outside, the population falls silent.
        neurons: centres for each dimension, at least 2.
        width: D in units of the centres' spacing. The paper's tasks use 1 (two moons) and 4 (1-D regression).

    Returns:
        rates in [0, 1], (B, d * neurons).

    >>> population_rates(torch.tensor([[0.5]]), neurons=3, width=1.0).tolist()
    [[0.0, 1.0, 0.0]]
    """
    _check_values("x", x)
    number("width", width, above=0)
    if positive_int("neurons", neurons) < 2:
        raise ValueError(f"neurons: needs at least 2 centres to span [0, 1]; got {neurons}; give e.g. 10")
    centres = torch.linspace(0, 1, neurons, dtype=x.dtype, device=x.device)
    D = width / (neurons - 1)
    phase = (math.pi * (x[..., None] - centres) / D).clamp(-math.pi, math.pi)
    return (0.5 + 0.5 * torch.cos(phase)).flatten(1)


def rate(rates: Tensor, T: int, generator: int | torch.Generator) -> Tensor:
    """Rate code: independent spikes at each time step, with these probabilities. (B, ...) -> (T, B, ...).

    >>> rate(torch.tensor([[0.0, 1.0]]), T=3, generator=0).tolist()
    [[[0.0, 1.0]], [[0.0, 1.0]], [[0.0, 1.0]]]
    """
    _check_values("rates", rates)
    if rates.min() < 0 or rates.max() > 1:
        raise ValueError(
            f"rates: must lie in [0, 1], spikes per time step; got {float(rates.min()):g}..{float(rates.max()):g}; rescale first"
        )
    draws = torch.rand(
        (positive_int("T", T), *rates.shape),
        generator=as_generator(generator, rates.device),
        dtype=rates.dtype,
        device=rates.device,
    )
    return (draws < rates).to(rates.dtype)


def population(x: Tensor, T: int, *, neurons: int, width: float, generator: int | torch.Generator) -> Tensor:
    """Population code as spikes, (B, d) -> (T, B, d * neurons)."""
    return rate(population_rates(x, neurons, width), T, generator)


def _check_values(name: str, x: Tensor) -> None:
    tensor(name, x)
    if not x.is_floating_point() or x.ndim < 2 or x.numel() == 0:
        raise ValueError(
            f"{name}: must be a non-empty floating-point tensor (B, d); got {x.dtype} of {tuple(x.shape)}; use x.float(), x[None]"
        )
    finite(name, x)


# Keyed draws: the same for a (seed, purpose, epoch, sample), whatever the batch, the order, the worker or the process.


def keyed_rate(rates: Tensor, T: int, seed: int, purpose: int, epoch: int, samples: Tensor) -> Tensor:
    """`rate`, with draws keyed by the sample's number: (B, N) -> (T, B, N), on the CPU, as bool."""
    positive_int("T", T)
    draws = [keyed_rng(seed, purpose, epoch, int(i)).random((T, rates.shape[1]), dtype=np.float32) for i in samples]
    return torch.from_numpy(np.stack(draws, axis=1)) < rates.float()


def keyed_uniform(shape: Sequence[int], seed: int, purpose: int, epoch: int, samples: Tensor) -> Tensor:
    """Numbers in [0, 1), float32 (B, *shape), for the samples (B,), on their device: quick where a generator each would be slow.

    A hash of key and position (the finaliser of splitmix64), in integers that wrap the same way everywhere.
    """
    places = torch.arange(math.prod(shape), device=samples.device)
    return keyed_uniform_at(places, seed, purpose, epoch, samples[:, None]).reshape(len(samples), *shape)


def keyed_uniform_at(places: Tensor, seed: int, purpose: int, epoch: int, samples: Tensor) -> Tensor:
    """The numbers of `keyed_uniform` at some places, of some samples, whose shapes broadcast: where few of them are needed."""
    base = int(keyed_rng(seed, purpose, epoch).integers(1 << 63))
    z = _mixed(_mixed(samples.to(torch.int64) + base) + (places + 1) * _GOLDEN)
    return (z >> 40 & 0xFFFFFF).float() * 2.0**-24


_GOLDEN, _FIRST, _SECOND = (n - (1 << 64) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ (z >> 30 & (1 << 34) - 1)) * _FIRST
    z = (z ^ (z >> 27 & (1 << 37) - 1)) * _SECOND
    return z ^ (z >> 31 & (1 << 33) - 1)
