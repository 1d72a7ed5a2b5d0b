r"""From latent w^r to weight w: sign, Bernoulli, relaxed Bernoulli; mean parameters, KL divergence,
free energy.

The posterior over a binary weight is q(w = +1) = p = sigma(2 w^r), eq. (bernoulli-param): w^r is
half the log-odds, mu = tanh(w^r) the mean. A binary layer's parameter *is* w^r; a *realisation*
writes weights into it for a while (`held`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bisnn.bits.philox import Purpose
from bisnn.checks import number, seed_number
from bisnn.kernels import draws

EPS_MIN = (
    2.0**-24
    # Epsilon of the Gumbel-softmax draw is kept in [2^-24, 1 - 2^-24]: the logistic noise stays finite
)
# Bound on 2 (logcosh w^r - logcosh z); 2 logcosh 10 = 18.6, so it never acts for |w^r| <= 10
MAX_EXPONENT = 20.0


def sign(w_r: Tensor) -> Tensor:
    """sign(w^r) with sign(0) = +1, eq. (st-binarize); also the MAP weight of the Bernoulli
    posterior.

    >>> sign(torch.tensor([-0.3, 0.0, 2.0])).tolist()
    [-1.0, 1.0, 1.0]
    """
    return (w_r >= 0).to(w_r.dtype) * 2 - 1  # `where` of two numbers takes three times as long


def probability(w_r: Tensor) -> Tensor:
    """p = sigma(2 w^r), the probability that the weight is +1."""
    return torch.sigmoid(2 * w_r)


def mean(w_r: Tensor) -> Tensor:
    """mu = 2 p - 1 = tanh(w^r), the mean of the weight."""
    return torch.tanh(w_r)


def draw_members(
    latents: Sequence[Tensor], count: int, seed: int, first: int = 0
) -> list[list[Tensor]]:
    """Members of an ensemble, w ~ Bern(w | sigma(2 w^r)): for each one bool tensor per layer, True
    where the weight is +1.

    They are the members of a seed from the `first` on. Member k does not depend on how many there
    are, nor on the device: limits of the draws are made on the CPU, in float64.
    """
    seed_number(seed)
    limits = [
        (torch.ceil(probability(w_r.cpu().double()) * 2**24) * 2.0**-24).float().to(w_r.device)
        for w_r in latents
    ]
    return [
        [
            draws.uniform_like(limit, i, seed, Purpose.MEMBERS, k) < limit
            for i, limit in enumerate(limits)
        ]
        for k in range(first, first + count)
    ]


def logistic_noise(eps: Tensor) -> Tensor:
    """delta = 1/2 log(eps / (1 - eps)) for eps ~ U(0, 1).

    The paper calls delta Gumbel; it is logistic, the difference of two Gumbel variables, halved.
    """
    return 0.5 * torch.logit(eps.clamp(EPS_MIN, 1 - EPS_MIN))


def relax(w_r: Tensor, delta: Tensor, tau: float) -> Tensor:
    """Relaxed weight w = tanh((w^r + delta) / tau), eq. (GS-trick)."""
    return torch.tanh((w_r + delta) / tau)


def logcosh(x: Tensor) -> Tensor:
    """log(cosh(x)) without overflow."""
    return x.abs() + F.softplus(-2 * x.abs()) - math.log(2)


def mean_gradient_factor(w_r: Tensor, delta: Tensor, tau: float) -> Tensor:
    """dw/dmu = (1 - w^2) / (tau (1 - tanh^2 w^r)) of eq. (bayes-RP-grad), for w = relax(w_r, delta,
    tau).

    Since 1 - tanh^2 x = cosh^-2 x, it is exp(2 (logcosh w^r - logcosh z)) / tau with z = (w^r +
    delta) / tau: exact where the quotient would be 0/0. It is heavy-tailed; the exponent is bounded
    at MAX_EXPONENT, which never acts for
    |w^r| <= 10, nor for any w^r at tau = 1.
    """
    exponent = 2 * (logcosh(w_r) - logcosh((w_r + delta) / tau))
    return torch.exp(exponent.clamp(max=MAX_EXPONENT)) / tau


def kl_divergence(w_r: Tensor | Iterable[Tensor], prior: float | Tensor = 0.0) -> Tensor:
    """KL(q || p) in nats, summed over all weights; `prior` holds the prior's logits w^r_0 (0: both
    signs equally likely).

    >>> float(kl_divergence(torch.zeros(5)))
    0.0
    >>> round(float(kl_divergence(torch.full((10,), 20.0)) / math.log(2)), 3)  # ten certain weights are ten bits
    10.0
    """
    if not isinstance(w_r, Tensor):
        parts = [kl_divergence(w, prior) for w in w_r]
        if not parts:
            raise ValueError(
                "w_r: needs at least one tensor of latents; got none; pass net.parameters()"
            )
        return torch.stack(parts).sum()
    l, l_0 = 2 * w_r, 2 * torch.as_tensor(prior, dtype=w_r.dtype, device=w_r.device)
    if l_0.ndim and l_0.shape != l.shape:
        raise ValueError(
            f"prior: must be a number or have the latents' shape {tuple(l.shape)}; got {tuple(l_0.shape)}; reshape it"
        )
    up = torch.sigmoid(l) * (F.softplus(-l_0) - F.softplus(-l))
    down = torch.sigmoid(-l) * (F.softplus(l_0) - F.softplus(l))
    return (up + down).sum()


def free_energy(
    expected_loss: Tensor | float,
    w_r: Tensor | Iterable[Tensor],
    temperature: float,
    prior: float | Tensor = 0.0,
) -> Tensor:
    """E_q[L_D(w)] + rho KL(q || p), eq. (bayes-opt). `expected_loss` is the first term, usually a
    mean over samples.
    """
    return expected_loss + number("temperature", temperature, least=0) * kl_divergence(w_r, prior)


class _Pin(torch.autograd.Function):
    """A copy, whose backward pass insists that the weight is still the one the forward pass saw."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor) -> Tensor:
        return w.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        _ = ctx.saved_tensors  # autograd compares versions here
        return g


def pinned(w: Tensor) -> Tensor:
    """`w`, for use within one realisation: a backward pass after it, or in the next one, raises.

    For operations whose own backward pass needs no weight, and which would not notice.
    """
    return _Pin.apply(w) if w.requires_grad and torch.is_grad_enabled() else w


def is_binary(parameter: Tensor) -> bool:
    """Whether the last rule that took this parameter trains it as the latent of binary weights."""
    return getattr(parameter, "_bisnn_binary", False)


def mark_binary(parameter: Tensor, binary: bool) -> None:
    """Remember whether a rule trains this parameter as the latent of binary weights."""
    parameter._bisnn_binary = binary  # type: ignore[attr-defined]


def is_synapses(parameter: Tensor) -> bool:
    """Whether this parameter is the weight of a layer of ours, whatever its number of axes."""
    return getattr(parameter, "_bisnn_synapses", False)


def is_realised(parameter: nn.Parameter) -> bool:
    """Whether the parameter holds a realisation w at the moment, not its latent w^r."""
    return getattr(parameter, "_bisnn_realised", False)


def is_hard(w: Tensor) -> bool:
    """Whether all weights are known to be -1 or +1: by their values where looking is cheap, else by
    what wrote them.
    """
    if not _readable(w) or w.device.type != "cpu":
        return getattr(w, "_bisnn_hard", False)
    if w.numel() == 0:
        return True
    least, most = w.detach().square().aminmax()  # w^2 = 1 exactly, also rounded, only for -1 and +1
    return bool(least == 1) and bool(most == 1)


def hard(w: Tensor) -> Tensor:
    """`w`, known from now on to be -1 or +1 everywhere."""
    w._bisnn_hard = True  # type: ignore[attr-defined]
    return w


def is_spikes(x: Tensor) -> bool:
    """Whether all inputs are known to be 0 or 1: by type, or by their values where they can be
    read.
    """
    if not isinstance(x, Tensor):
        return False
    if x.dtype == torch.bool:
        return True
    return _readable(x) and not bool(
        torch.addcmul(x, x, x, value=-1).any()
    )  # x - x^2 = 0 only for 0 and 1; infinity gives NaN


def _readable(x: Tensor) -> bool:
    return not (
        torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
        or x.is_meta
    )


@contextmanager
def held(
    parameters: Sequence[nn.Parameter], values: Sequence[Tensor], hard: bool
) -> Iterator[None]:
    """Let `parameters` hold `values` inside the block; the latents come back on leaving, whatever
    happened inside.

    `hard` says whether the values are -1 and +1.

    Written in place under no_grad, so that autograd notices a backward pass that comes too late.
    """
    if any(is_realised(p) for p in parameters):
        raise RuntimeError("these parameters hold a realisation already: realisations do not nest")
    latents = [p.detach().clone() for p in parameters]
    try:
        _write(parameters, values, True, hard)
        yield
    finally:
        _write(parameters, latents, False, False)


@torch.no_grad()
def _write(
    parameters: Sequence[nn.Parameter], values: Sequence[Tensor], realised: bool, hard: bool
) -> None:
    for p, value in zip(parameters, values, strict=True):
        p.copy_(value)
        p._bisnn_realised, p._bisnn_hard = realised, hard  # type: ignore[attr-defined]


def binary_parameters(of: nn.Module | Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """The latents of a network's binary layers, and of a module those that a rule trains; an
    iterable is taken as it is.
    """
    if not isinstance(of, nn.Module):
        return list(of)
    layers = [m for m in of.modules() if hasattr(m, "binary")]
    ours = {layer.weight for layer in layers if layer.binary}
    found = [p for p in of.parameters() if p in ours or is_binary(p)]
    if not found and not layers:
        raise ValueError(
            f"of: no rule trains binary parameters of this {type(of).__name__}; make the rule first, or pass the parameters "
            "themselves"
        )
    return found


@contextmanager
def map_weights(of: nn.Module | Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside the block the binary parameters hold the MAP weights sign(w^r)."""
    parameters = binary_parameters(of)
    with held(parameters, [sign(p.detach()) for p in parameters], hard=True):
        yield


@contextmanager
def sample_weights(
    of: nn.Module | Iterable[nn.Parameter], seed: int, member: int = 0
) -> Iterator[None]:
    """Inside the block the binary parameters hold a sample from the posterior Bern(sigma(2 w^r)):
    this member of the seed's.
    """
    parameters = binary_parameters(of)
    (drawn,) = draw_members([p.detach() for p in parameters], 1, seed, member)
    with held(
        parameters,
        [2 * up.to(p.dtype) - 1 for up, p in zip(drawn, parameters, strict=True)],
        hard=True,
    ):
        yield
