"""From latents to weights: nearest levels, posteriors, relaxed samples; KL divergence, free energy.

A layer's parameter holds *latents*; a *realisation* writes weights into it for a while
(`realisation.hold`). What the latents are depends on the alphabet and on whether there is a
posterior:

- `Signs`, for {-1, +1}: w^r, one number per weight. q(w = +1) = p = sigma(2 w^r), eq.
  (bernoulli-param): w^r is half the log-odds, mu = tanh(w^r) the mean; and w = sign(w^r) without a
  posterior.
- `Nearest`, for other levels without a posterior: one number per weight; w is the nearest level.
- `Categorical`, for other levels with one: K centred logits per weight, `(K, *shape)`, the first
  axis that of the levels; q(w = v_k) = softmax(logits)_k. A realisation is a one-hot vector y of
  the same shape, or a relaxed one, and w = sum_k v_k y_k.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from bisnn import kernels
from bisnn.alphabet import BINARY, Levels
from bisnn.bits.philox import Purpose
from bisnn.checks import number, seed_number
from bisnn.kernels import draws
from bisnn.kernels.draws import Noise

__all__ = ["logistic_noise", "mean", "mean_gradient_factor", "probability", "relax", "sign"]
__all__ += ["bernoulli_kl", "categorical_kl", "free_energy", "kl_divergence", "logcosh"]
__all__ += ["centred", "gumbel_noise", "level_gradient", "nearest", "one_hot", "relax_levels"]
__all__ += ["Categorical", "Nearest", "Signs", "draw_members", "draw_weights", "latents_of"]

# Epsilon of the Gumbel-softmax draw is kept in [2^-24, 1 - 2^-24]: the logistic noise stays finite
EPS_MIN = 2.0**-24
# Bound on 2 (logcosh w^r - logcosh z); 2 logcosh 10 = 18.6, so it never acts for |w^r| <= 10. And
# on log y_k - log p_k <= -log p_k, where it never acts on a level of probability above e^-20
MAX_EXPONENT = 20.0
Pullback = Callable[[Tensor], Tensor]  # from the gradient at a realisation to that of the mean

# Binary weights


def sign(w_r: Tensor) -> Tensor:
    """sign(w^r) with sign(0) = +1, eq. (st-binarize), for w^r in `w_r`; also the MAP weight of the
    Bernoulli posterior.

    >>> sign(torch.tensor([-0.3, 0.0, 2.0])).tolist()
    [-1.0, 1.0, 1.0]
    """
    if w_r.is_cuda:  # a pass less over memory; on a CPU it takes far longer
        return torch.where(w_r >= 0, 1.0, -1.0).to(w_r.dtype)
    return torch.copysign(w_r.new_ones(()), w_r + 0)  # -0 + 0 is +0


def probability(w_r: Tensor) -> Tensor:
    """p = sigma(2 w^r), for w^r in `w_r`, the probability that a weight is +1; the same on every
    device.
    """
    return draws.probability(w_r).to(w_r.dtype)


def mean(w_r: Tensor) -> Tensor:
    """mu = 2 p - 1 = tanh(w^r), for w^r in `w_r`, the mean of a weight."""
    return torch.tanh(w_r)


def logistic_noise(eps: Tensor) -> Tensor:
    """delta = 1/2 log(eps / (1 - eps)) for `eps` ~ U(0, 1).

    The paper calls delta Gumbel; it is logistic, the difference of two Gumbel variables, halved.
    """
    return 0.5 * torch.logit(eps.clamp(EPS_MIN, 1 - EPS_MIN))


def relax(w_r: Tensor, delta: Tensor, tau: float | Tensor) -> Tensor:
    """Relaxed weight w = tanh((w^r + delta) / tau), eq. (GS-trick).

    Args:
        w_r: latents w^r.
        delta: `logistic_noise` of their shape.
        tau: temperature of the relaxation; towards 0, w is a sign.
    """
    return torch.tanh((w_r + delta) / tau)


def logcosh(x: Tensor) -> Tensor:
    """log(cosh(`x`)) without overflow."""
    return x.abs() + F.softplus(-2 * x.abs()) - math.log(2)


def mean_gradient_factor(w_r: Tensor, delta: Tensor, tau: float | Tensor) -> Tensor:
    """dw/dmu = (1 - w^2) / (tau (1 - tanh^2 w^r)) of eq. (bayes-RP-grad), for w =
    `relax(w_r, delta, tau)`.

    Since 1 - tanh^2 x = cosh^-2 x, it is exp(2 (logcosh w^r - logcosh z)) / tau with z = (w^r +
    delta) / tau: exact where the quotient would be 0/0. It is heavy-tailed; the exponent is bounded
    at MAX_EXPONENT, which never acts for |w^r| <= 10, nor for any w^r at tau = 1.
    """
    exponent = 2 * (logcosh(w_r) - logcosh((w_r + delta) / tau))
    return torch.exp(exponent.clamp(max=MAX_EXPONENT)) / tau


def bernoulli_kl(w_r: Tensor, prior: float | Tensor = 0.0) -> Tensor:
    """KL(q || p) in nats of Bernoulli posteriors, summed over all weights; `w_r` holds w^r and
    `prior` w^r_0.
    """
    l, l_0 = 2 * w_r, 2 * torch.as_tensor(prior, dtype=w_r.dtype, device=w_r.device)
    if l_0.ndim and l_0.shape != l.shape:
        raise ValueError(
            f"prior: must be a number or have the latents' shape {tuple(l.shape)}; got "
            f"{tuple(l_0.shape)}; reshape it"
        )
    up = torch.sigmoid(l) * (F.softplus(-l_0) - F.softplus(-l))
    down = torch.sigmoid(-l) * (F.softplus(l_0) - F.softplus(l))
    return (up + down).sum()


# Weights from any alphabet; the levels are the first axis of logits (K, ...)


@functools.cache
def level_tensor(alphabet: Levels, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The levels, (K,); made once, because a CUDA graph cannot copy them from the host."""
    return torch.tensor(alphabet.levels, dtype=dtype, device=device)


def nearest(x: Tensor, alphabet: Levels) -> Tensor:
    """The level of `alphabet` nearest to `x`; half way between two the higher, as sign(0) = +1.

    >>> nearest(torch.tensor([-2.0, 0.5, 0.6, 9.0]), Levels(-1, 0, 1)).tolist()
    [-1.0, 1.0, 1.0, 1.0]
    """
    levels = level_tensor(alphabet, x.dtype, x.device)
    return levels[torch.bucketize(x, (levels[1:] + levels[:-1]) / 2, right=True)]


def centred(logits: Tensor) -> Tensor:
    """`logits`, (K, ...), less their mean over the levels: of all that give the same probabilities,
    these.
    """
    return logits - logits.mean(0)


def gumbel_noise(eps: Tensor) -> Tensor:
    """gamma = -log(-log(`eps`)), eps ~ U(0, 1); half the difference of two is `logistic_noise`."""
    return -torch.log(-torch.log(eps.clamp(EPS_MIN, 1 - EPS_MIN)))


def one_hot(scores: Tensor) -> Tensor:
    """1 at the level of the highest of the `scores`, (K, ...), of equal ones the highest level;
    else 0.
    """
    last = len(scores) - 1 - scores.flip(0).argmax(0, keepdim=True)
    return torch.zeros_like(scores).scatter_(0, last, 1)


def relax_levels(logits: Tensor, gamma: Tensor, tau: float | Tensor) -> Tensor:
    """The relaxed one-hot vector y = softmax((logits + gamma) / tau).

    Args:
        logits: of the levels, (K, ...).
        gamma: `gumbel_noise` of their shape.
        tau: temperature of the relaxation; towards 0, y is one-hot.
    """
    return torch.softmax((logits + gamma) / tau, 0)


def level_gradient(logits: Tensor, gamma: Tensor, tau: float | Tensor, g: Tensor) -> Tensor:
    """The gradient with respect to the probabilities p, from that, `g`, at y =
    `relax_levels(logits, gamma, tau)`.

    With log p = logits it is dL/dlogits_k / p_k = y_k / (tau p_k) (g_k - sum_j y_j g_j), and only
    differences between levels matter, since the p_k sum to 1: less its mean over k. y_k / p_k is
    taken in log space, its exponent bounded at MAX_EXPONENT; and the bracket as sum_j y_j (g_k -
    g_j), which does not cancel where y_k is near 1.
    """
    log_y = torch.log_softmax((logits + gamma) / tau, 0)
    exponent = (log_y - torch.log_softmax(logits, 0)).clamp(max=MAX_EXPONENT)
    y = log_y.exp()
    bracket = torch.stack([(y * (g_k - g)).sum(0) for g_k in g])
    return centred(exponent.exp() * bracket / tau)


def categorical_kl(logits: Tensor, prior: float | Tensor = 0.0) -> Tensor:
    """KL(q || p) in nats of categorical posteriors, over all weights: of the `logits`, (K, ...), of
    the levels, and of the `prior`'s, which are 0 (all equally likely), K numbers, or (K, ...).
    """
    log_q = torch.log_softmax(logits, 0)
    log_p = torch.log_softmax(prior_logits(prior, logits).expand_as(logits), 0)
    return (log_q.exp() * (log_q - log_p)).sum()


def prior_logits(prior: float | Tensor, logits: Tensor) -> Tensor:
    """A prior's centred logits, to broadcast against (K, ...): from 0 (all levels equally likely),
    K numbers, or a tensor of the logits' shape.
    """
    l_0 = torch.as_tensor(prior, dtype=logits.dtype, device=logits.device)
    if l_0.ndim == 0 and l_0 == 0:
        return l_0.expand(len(logits), *(1,) * (logits.ndim - 1))
    if l_0.shape == logits.shape:
        return centred(l_0)
    if l_0.shape != logits.shape[:1]:
        raise ValueError(
            f"prior: must be 0, the logits of the {len(logits)} levels, or have the latents' shape "
            f"{tuple(logits.shape)}; got {tuple(l_0.shape) or float(l_0)}; give e.g. "
            f"torch.zeros({len(logits)})"
        )
    return centred(l_0).reshape(-1, *(1,) * (logits.ndim - 1))


# What a parameter's latents are


class Signs:
    """Latents w^r of weights in {-1, +1}; with or without a posterior."""

    alphabet: Levels = BINARY

    def shape(self, weights: tuple[int, ...]) -> tuple[int, ...]:
        """Of the latents of weights of the shape `weights`."""
        return weights

    def initial(self, z: Tensor, init: float) -> Tensor:
        """Latents to begin with, +- `init`, from standard normal numbers `z`."""
        return init * sign(z)

    def modes(self, w_r: Tensor) -> Tensor:
        """The most probable weights of the latents `w_r`."""
        return sign(w_r)

    def limits(self, w_r: Tensor) -> Tensor:
        """Where a uniform number chooses the next level, from the highest down, of the latents
        `w_r`: `(K - 1, *shape)`.
        """
        return probability(w_r)[None]

    def draw(self, w_r: Tensor, count: int, seed: int, layer: int, first: int) -> Tensor:
        """Weights of members, int8 `(count, *shape)`.

        Args:
            w_r: the latents.
            count: how many members.
            seed: of the members.
            layer: number of the layer, whose draws are its own.
            first: the first member, from 0.
        """
        if kernels.name_for(w_r.device, torch.float32) != "cuda":
            return _draw_levels(self, w_r, count, seed, layer, first)
        from bisnn.kernels import cuda_draws

        return cuda_draws.signs(w_r, count, seed, Purpose.MEMBERS, layer, first)

    def write(self, w: Tensor) -> Tensor:
        """What a parameter holds where its weights are `w`."""
        return w

    def read(self, value: Tensor) -> Tensor:
        """The weights of a parameter that holds `value`, inside a realisation."""
        return value

    def sample(
        self, w_r: Tensor, noise: Noise, tau: float | Tensor, straight_through: bool
    ) -> tuple[Tensor, Pullback]:
        """A sample, and the way back from the gradient taken there to the gradient with respect to
        the mean parameters.

        Args:
            w_r: the latents.
            noise: where the random numbers come from.
            tau: temperature of the relaxation.
            straight_through: whether the sample is hard; else it is relaxed.
        """
        match kernels.name_for(w_r.device, w_r.dtype):
            case "cuda":
                from bisnn.kernels import cuda_samples

                w = cuda_samples.sample(w_r, noise, tau, straight_through)
                return w, lambda g: cuda_samples.pulled_back(g, w_r, noise, tau)
            case "cpu":
                from bisnn.kernels import cpu_updates

                w, factor = cpu_updates.sample(w_r, noise, float(tau), straight_through)
            case _:
                delta = logistic_noise(noise.like(w_r)).to(w_r.dtype)
                w = sign(w_r + delta) if straight_through else relax(w_r, delta, tau)
                factor = mean_gradient_factor(w_r, delta, tau)
        return w, lambda g: g * factor

    def prior(self, prior: float | Tensor, w_r: Tensor) -> float | Tensor:
        """The latents of a `prior`, to broadcast against the posterior's, `w_r`."""
        if not isinstance(prior, Tensor):
            return number("prior", prior)
        if prior.ndim and prior.shape != w_r.shape:
            raise ValueError(
                "prior: must be a number or have the shape of every parameter in its group, "
                f"{tuple(w_r.shape)}; got {tuple(prior.shape)}; put each parameter into a group "
                "of its own"
            )
        return prior.to(w_r)

    def settle(self, w_r: Tensor) -> Tensor:
        """Latents `w_r` after an update, in the form in which they are kept."""
        return w_r

    def kl(self, w_r: Tensor, prior: float | Tensor) -> Tensor:
        """KL(q || p) of the latents `w_r` and the `prior`'s, summed over the weights."""
        return bernoulli_kl(w_r, prior)


class Nearest(Signs):
    """Latents of any alphabet without a posterior: the weight is the level nearest to it.

    Args:
        alphabet: that the weights are from.
    """

    def __init__(self, alphabet: Levels):
        self.alphabet = alphabet

    def initial(self, z: Tensor, init: float) -> Tensor:
        """Each latent at one of the levels, all equally likely."""
        levels = level_tensor(self.alphabet, z.dtype, z.device)
        return levels[_shares(z, len(levels))]

    def modes(self, w_r: Tensor) -> Tensor:
        return nearest(w_r, self.alphabet)

    def limits(self, w_r: Tensor) -> Tensor:
        raise ValueError(
            f"weights: latents of {self.alphabet!r} have no posterior to draw members from; build "
            "the network with posterior=True and train it with BayesBiSNN"
        )

    def draw(self, w_r: Tensor, count: int, seed: int, layer: int, first: int) -> Tensor:
        return self.limits(w_r)  # the same refusal

    def kl(self, w_r: Tensor, prior: float | Tensor) -> Tensor:
        return self.limits(w_r)  # the same refusal


class Categorical(Signs):
    """K centred logits per weight, `(K, *shape)`, of a posterior over any alphabet's levels.

    Args:
        alphabet: that the weights are from.
    """

    def __init__(self, alphabet: Levels):
        self.alphabet = alphabet

    def shape(self, weights: tuple[int, ...]) -> tuple[int, ...]:
        return (len(self.alphabet.levels), *weights)

    def initial(self, z: Tensor, init: float) -> Tensor:
        """Weights at equally likely levels, with log-odds of 2 init; for two levels +-init."""
        K = len(self.alphabet.levels)
        chosen = torch.stack([_shares(z, K) == k for k in range(K)])
        return centred(2 * init * chosen.to(z.dtype))

    def modes(self, w_r: Tensor) -> Tensor:
        return self.read(one_hot(w_r))

    def limits(self, w_r: Tensor) -> Tensor:
        return torch.softmax(w_r.flip(0), 0).cumsum(0)[:-1]

    def draw(self, w_r: Tensor, count: int, seed: int, layer: int, first: int) -> Tensor:
        return _draw_levels(self, w_r, count, seed, layer, first)

    def write(self, w: Tensor) -> Tensor:
        return torch.stack([w == v for v in self.alphabet.levels]).to(w.dtype)

    def read(self, value: Tensor) -> Tensor:
        return torch.tensordot(level_tensor(self.alphabet, value.dtype, value.device), value, 1)

    def sample(
        self, w_r: Tensor, noise: Noise, tau: float | Tensor, straight_through: bool
    ) -> tuple[Tensor, Pullback]:
        gamma = gumbel_noise(noise.like(w_r)).to(w_r.dtype)
        y = one_hot(w_r + gamma) if straight_through else relax_levels(w_r, gamma, tau)
        return y, lambda g: level_gradient(w_r, gamma, tau, g)

    def prior(self, prior: float | Tensor, w_r: Tensor) -> float | Tensor:
        return prior_logits(prior, w_r)

    def settle(self, w_r: Tensor) -> Tensor:
        return centred(w_r)

    def kl(self, w_r: Tensor, prior: float | Tensor) -> Tensor:
        return categorical_kl(w_r, prior)


def _draw_levels(
    latents: Signs, w_r: Tensor, count: int, seed: int, layer: int, first: int
) -> Tensor:
    """Members by limits made on the CPU, on any device."""
    limits = torch.ceil(latents.limits(w_r.cpu().double()) * 2**24) * 2.0**-24
    limits = limits.float().to(w_r.device)
    levels = latents.alphabet.levels[::-1]
    # Modulo 256, which the bits of int8 are: a step down may be larger than int8 holds
    drawn = limits.new_full((count, *limits.shape[1:]), levels[0] % 256, dtype=torch.uint8)
    for k, w in enumerate(drawn, first):
        u = draws.uniform_like(limits[0], layer, seed, Purpose.MEMBERS, k)
        for limit, (level, lower) in zip(limits, pairwise(levels), strict=True):  # limits ascend
            w.sub_((u >= limit).view(torch.uint8), alpha=level - lower)
    return drawn.view(torch.int8)


def _shares(z: Tensor, K: int) -> Tensor:
    """Standard normal numbers in K classes of equal probability."""
    return (torch.special.ndtr(z) * K).long().clamp(0, K - 1)


_SIGNS = Signs()


def latents_for(alphabet: Levels, posterior: bool) -> Signs:
    """What the latents of an alphabet's weights are; {-1, +1} has the same in both cases."""
    if alphabet == BINARY:
        return _SIGNS
    return Categorical(alphabet) if posterior else Nearest(alphabet)


def latents_of(parameter: Tensor) -> Signs:
    """What the latents of `parameter` are; those of {-1, +1} unless a layer has said otherwise."""
    return getattr(parameter, "_bisnn_latents", _SIGNS)


def mark_latents(parameter: Tensor, latents: Signs) -> None:
    """Remember what the latents of this parameter, the weight of a layer of ours, are."""
    parameter._bisnn_latents = latents  # type: ignore[attr-defined]


@torch.no_grad()
def draw_members(
    latents: Sequence[Tensor], count: int, seed: int, first: int = 0
) -> list[list[Tensor]]:
    """Members of an ensemble, samples of the posterior: for each one int8 tensor per layer, its
    weights. Member k does not depend on how many there are, nor on the device.

    Args:
        latents: the layers' parameters.
        count: how many members.
        seed: whose members they are.
        first: the first of them, from 0.
    """
    return [list(member) for member in zip(*draw_weights(latents, count, seed, first), strict=True)]


@torch.no_grad()
def draw_weights(latents: Sequence[Tensor], count: int, seed: int, first: int = 0) -> list[Tensor]:
    """The members of `draw_members` layer by layer: of each the weights of all, int8 `(K, *shape)`.

    `latents`, `count`, `seed`, `first` are as there. On a GPU binary weights are drawn where they
    are. Limits of other draws are made on the CPU, in float64.
    """
    seed_number(seed)
    return [
        latents_of(w_r).draw(w_r, count, seed, layer, first) for layer, w_r in enumerate(latents)
    ]


def kl_divergence(w_r: Tensor | Iterable[Tensor], prior: float | Tensor = 0.0) -> Tensor:
    """KL(q || p) in nats, summed over all weights.

    Args:
        w_r: latents w^r, or the parameters of a network, whose layers say what they are.
        prior: the prior's logits: w^r_0 of binary weights (0: both signs equally likely); of other
            alphabets one per level (0: all levels equally likely).

    >>> float(kl_divergence(torch.zeros(5)))
    0.0
    >>> ten_certain = torch.full((10,), 20.0)
    >>> round(float(kl_divergence(ten_certain) / math.log(2)), 3)  # ten certain weights: ten bits
    10.0
    """
    if isinstance(w_r, Tensor):
        return latents_of(w_r).kl(w_r, prior)
    parts = [kl_divergence(w, prior) for w in w_r]
    if not parts:
        raise ValueError(
            "w_r: needs at least one tensor of latents; got none; pass net.parameters()"
        )
    return torch.stack(parts).sum()


def free_energy(
    expected_loss: Tensor | float,
    w_r: Tensor | Iterable[Tensor],
    temperature: float,
    prior: float | Tensor = 0.0,
) -> Tensor:
    """E_q[L_D(w)] + rho KL(q || p), eq. (bayes-opt).

    Args:
        expected_loss: the first term, over all the data.
        w_r: latents w^r, or the parameters of a network.
        temperature: rho.
        prior: the prior's logits, as in `kl_divergence`.
    """
    return expected_loss + number("temperature", temperature, least=0) * kl_divergence(w_r, prior)
