"""From real numbers to spike trains: population coding and rate coding, Bernoulli spikes at a rate.

Spikes are keyed by a seed and by the point's own float32 values: a point's spikes do not depend on
its row, its batch or its neighbours. Equal points have equal spikes; another seed, or another
`draw`, gives others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.checks import finite, number, positive_int, seed_number, tensor
from bisnn.packed import encoding

__all__ = ["population", "population_rates", "rate"]


def population_rates(x: Tensor, neurons: int, width: float) -> Tensor:
    """Firing rates of a population of raised-cosine tuning curves, one population for each
    dimension.

    rate_k(x) = 1/2 + 1/2 cos(clip(pi (x - c_k) / D, -pi, pi)), with centres c_k evenly on [0, 1]
    and D = `width` spacings.

    Args:
        x: values, (B, d), meant to lie in [0, 1]; outside, the population falls silent.
        neurons: centres for each dimension, at least 2.
        width: D in units of the centres' spacing. The authors' code has 1 for two moons and 4 for
            1-D regression.

    Returns:
        rates in [0, 1], (B, d * neurons).

    >>> population_rates(torch.tensor([[0.5]]), neurons=3, width=1.0).tolist()
    [[0.0, 1.0, 0.0]]
    """
    _check_values("x", x)
    _check_population(neurons, width)
    centres = torch.arange(neurons, dtype=x.dtype, device=x.device) / (neurons - 1)
    r = (x[..., None] - centres) / (width / (neurons - 1))
    return encoding.raised_cosine(r.clamp(-1, 1)).flatten(1)


def rate(rates: Tensor, T: int, seed: int, *, draw: int = 0) -> Tensor:
    """Rate code: independent spikes at each time step, with these probabilities. (B, ...) -> (T, B,
    ...).

    Args:
        rates: probabilities of a spike, in [0, 1].
        T: number of time steps.
        seed: of the spikes, 0 to 2^32 - 1.
        draw: another one gives other spikes of the same seed: an epoch, say.

    >>> rate(torch.tensor([[0.0, 1.0]]), T=3, seed=0).tolist()
    [[[0.0, 1.0]], [[0.0, 1.0]], [[0.0, 1.0]]]
    """
    _check_values("rates", rates)
    if rates.min() < 0 or rates.max() > 1:
        raise ValueError(
            "rates: must lie in [0, 1], spikes per time step; got "
            f"{float(rates.min()):g}..{float(rates.max()):g}; rescale first"
        )
    x = rates.detach().flatten(1).double().cpu().numpy()
    spikes = philox.point_spikes(
        x, x, positive_int("T", T), seed_number(seed), Purpose.ENCODING, seed_number(draw, "draw")
    )
    return torch.from_numpy(spikes).reshape(T, *rates.shape).to(rates)


def population(
    x: Tensor, T: int, *, neurons: int, width: float, seed: int, draw: int = 0
) -> Tensor:
    """Population code as spikes, (B, d) -> (T, B, d * neurons).

    Args:
        x, neurons, width: as for `population_rates`.
        T, seed, draw: as for `rate`.
    """
    _check_values("x", x)
    _check_population(neurons, width)
    code = {"code": "population", "steps": positive_int("T", T), "neurons": neurons, "width": width}
    values, seed, draw = (
        x.detach().float().cpu().numpy(),
        seed_number(seed),
        seed_number(draw, "draw"),
    )
    spikes = encoding.encode(values, code, seed, Purpose.ENCODING, draw)
    return torch.from_numpy(spikes).to(x)


def _check_values(name: str, x: Tensor) -> None:
    tensor(name, x)
    if not x.is_floating_point() or x.ndim < 2 or x.numel() == 0:
        raise ValueError(
            f"{name}: must be a non-empty floating-point tensor (B, d); got {x.dtype} of "
            f"{tuple(x.shape)}; use x.float(), x[None]"
        )
    finite(name, x)


def _check_population(neurons: int, width: float) -> None:
    number("width", width, above=0)
    if positive_int("neurons", neurons) < 2:
        raise ValueError(
            f"neurons: needs at least 2 centres to span [0, 1]; got {neurons}; give e.g. 10"
        )
