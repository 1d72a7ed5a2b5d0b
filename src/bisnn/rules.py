"""Learning rules as optimizers: ST-BiSNN (Algorithm 1), Bayes-BiSNN (Algorithm 2), Bop (the paper's
disabled block).

The update equations are the pure functions below and in `optimizer` and `weights`; the classes
store and loop. How a training step reads, and what all rules share: `optimizer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bisnn import weights
from bisnn.bits.philox import Purpose
from bisnn.checks import finite, flag, number, positive_int, seed_number
from bisnn.kernels.draws import Noise
from bisnn.optimizer import Preconditioned, Rule, descend, remembered
from bisnn.weights import Categorical, Nearest, Pullback, Signs

__all__ = ["BayesBiSNN", "Bop", "Rule", "STBiSNN"]

# The updates, as in the paper


def natural_gradient(
    w_r: Tensor, g_mu: Tensor, temperature: float | Tensor, prior: float | Tensor
) -> Tensor:
    """Natural gradient of the free energy, grad_mu L + rho (w^r - w^r_0), with grad_mu L from eq.
    (bayes-RP-grad-estimator), or for other alphabets from `weights.level_gradient`.
    """
    return g_mu + temperature * (w_r - prior)


def bop_update(
    w: Tensor, m: Tensor, g: Tensor, lr: float, threshold: float
) -> tuple[Tensor, Tensor]:
    """Bop: m <- (1 - eta) m + eta g, then w <- hyst(m, w): flip where |m| > threshold and sign(m) =
    sign(w).

    m is what the paper's disabled block calls w^r; w is in {-1, +1}.
    """
    m = (1 - lr) * m + lr * g
    flip = (m.abs() > threshold) & (weights.sign(m) == w)
    return torch.where(flip, -w, w), m


def anneal(start: float, end: float | None, step: int, steps: int | None) -> float:
    """Geometric from `start` at step 0 to `end` from step `steps` on; constant without an `end`."""
    if end is None or steps is None:
        return start
    return start * (end / start) ** min(1.0, step / steps)


# The optimizers


class STBiSNN(Preconditioned):
    """ST-BiSNN, Algorithm 1: w = sign(w^r), of other alphabets the nearest level; w^r <- w^r - eta
    g.

    Args:
        params: parameters or parameter groups; a group with `"binary": False` holds real ones.
        lr: eta.
        clip: keep the latents in [-clip, clip]; None (the paper) leaves them free.
        precondition: "none" (the paper), "momentum" or "adam", applied to the gradient.
        betas: the preconditioner's decay rates; momentum uses the first.

    >>> w_r = torch.nn.Parameter(torch.tensor([0.3, -0.2]))
    >>> rule = STBiSNN([w_r], lr=0.1)
    >>> with rule.sampled():
    ...     (w_r * torch.tensor([5.0, 2.0])).sum().backward()  # w = [1, -1] in here
    >>> rule.step()
    >>> [round(x, 3) for x in w_r.tolist()]
    [-0.2, -0.4]
    """

    takes = (Signs, Nearest)
    capturable = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        clip: float | None = None,
        precondition: str = "none",
        betas: tuple[float, float] = (0.9, 0.999),
    ):
        super().__init__(
            params, {"lr": lr, "clip": clip, "precondition": precondition, "betas": betas}
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["clip"] is not None:
            number("clip", group["clip"], above=0)

    def _update(
        self, w_r: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        w_r = descend(w_r, self._precondition(g, group, state), group["lr"])
        return w_r if group["clip"] is None else w_r.clamp(-group["clip"], group["clip"])


class BayesBiSNN(Preconditioned):
    """Bayes-BiSNN, Algorithm 2: natural gradient descent on the free energy of a Bernoulli
    posterior with logits w^r.

    A realisation is w = tanh((w^r + delta)/tau), delta = 1/2 log(eps/(1-eps)), eps ~ U(0, 1). Of
    other alphabets the posterior is categorical, and w = sum_k v_k y_k over the levels v_k with y =
    softmax((logits + gamma)/tau), gamma Gumbel.

    Args:
        params: parameters or parameter groups; a group with `"binary": False` holds real ones.
        lr: eta.
        temperature: rho >= 0, the weight of KL(q || prior) in the free energy.
        tau: temperature of the relaxation; the smaller, the harder the samples.
        prior: the prior's logits w^r_0: a number, or a tensor of the parameters' shape (one group a
            parameter, then).
        seed: of the draws, 0 to 2^32 - 1; every process of a distributed run gives the same one.
        straight_through: hard samples w = sign(w^r + delta) forward, with the relaxed sample's
            gradient factor.
        precondition: "none" (the paper), "momentum" or "adam", applied to the natural gradient of
            the free energy, prior included, so that its fixed points stay where they are.
        betas: the preconditioner's decay rates; momentum uses the first.
        tau_end, temperature_end, anneal_steps: move tau and rho geometrically to these values over
            so many steps.

    >>> w_r = torch.nn.Parameter(torch.zeros(1000))  # both signs equally likely
    >>> rule = BayesBiSNN([w_r], lr=0.1, temperature=0.5)
    >>> for _ in range(200):
    ...     with rule.sampled():
    ...         w_r.sum().backward()  # E_q[sum_i w_i] + rho KL is least at w^r = -1/rho = -2
    ...     rule.step()
    >>> bool((weights.mean(w_r) < -0.9).all())
    True
    """

    takes = (Signs, Categorical)
    has_posterior = True
    capturable = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        temperature: float,
        tau: float = 1.0,
        *,
        prior: float | Tensor = 0.0,
        seed: int = 0,
        straight_through: bool = False,
        precondition: str = "none",
        betas: tuple[float, float] = (0.9, 0.999),
        tau_end: float | None = None,
        temperature_end: float | None = None,
        anneal_steps: int | None = None,
    ):
        defaults = {
            "lr": lr,
            "temperature": temperature,
            "tau": tau,
            "prior": prior,
            "straight_through": straight_through,
            "precondition": precondition,
            "betas": betas,
            "tau_end": tau_end,
            "temperature_end": temperature_end,
            "anneal_steps": anneal_steps,
        }
        super().__init__(params, defaults)
        self.seed = seed_number(seed)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        flag("straight_through", group["straight_through"])
        number("temperature", group["temperature"], least=0)
        number("tau", group["tau"], above=0)
        if isinstance(group["prior"], Tensor):
            finite("prior", group["prior"])
        ends = [name for name in ("tau_end", "temperature_end") if group[name] is not None]
        for name in ends:
            number(name, group[name], above=0)
        if "temperature_end" in ends:
            # a geometric path does not start at zero
            number("temperature", group["temperature"], above=0)
        if bool(ends) != (group["anneal_steps"] is not None):
            raise ValueError(
                "anneal_steps: goes with tau_end or temperature_end; got "
                f"anneal_steps={group['anneal_steps']!r}, tau_end={group['tau_end']!r}, "
                f"temperature_end={group['temperature_end']!r}"
            )
        if ends:
            positive_int("anneal_steps", group["anneal_steps"])

    def _check_latents(self, group: dict[str, Any]) -> None:
        super()._check_latents(group)
        for p in group["params"]:
            weights.latents_of(p).prior(group["prior"], p.detach())

    def annealed(self, name: str, group: dict[str, Any]) -> float:
        """The present value of `name`, "tau" or "temperature", in a parameter `group`."""
        return anneal(group[name], group[name + "_end"], group["steps"], group["anneal_steps"])

    def _changing(self, group: dict[str, Any]) -> dict[str, float]:
        annealed = {name: self.annealed(name, group) for name in ("tau", "temperature")}
        return {**super()._changing(group), **annealed}

    def _realise(
        self, w_r: Tensor, latents: Signs, group: dict[str, Any], number: int
    ) -> tuple[Tensor, Pullback | None]:
        noise = Noise(number, self.seed, Purpose.TRAINING_NOISE, group["draw"])
        return latents.sample(w_r, noise, group["tau"], group["straight_through"])

    def _hard(self, group: dict[str, Any]) -> bool:
        return group["straight_through"]

    def _update(
        self, w_r: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        latents = weights.latents_of(w_r)
        prior = latents.prior(group["prior"], w_r)
        g = natural_gradient(w_r, g, group["temperature"], prior)
        return latents.settle(descend(w_r, self._precondition(g, group, state), group["lr"]))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "seed" not in state_dict:
            raise ValueError(
                "state_dict: must come from the state_dict() of a BayesBiSNN; got one without "
                "seed; load it where it was saved"
            )
        super().load_state_dict(state_dict)
        self.seed = state_dict["seed"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "seed": self.seed}


class Bop(Rule):
    """Bop (Helwegen et al. 2019), the hysteresis rule of the paper's disabled block; there are no
    latents.

    The parameter is the weight itself, +-1 from the first step on; the running mean m of the
    gradient is optimizer state.

    Args:
        params: parameters or parameter groups; a group with `"binary": False` holds real ones.
        lr: the adaptivity rate eta in (0, 1] of m <- (1 - eta) m + eta g.
        threshold: a weight flips where |m| exceeds it and m has the weight's sign.

    >>> w = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    >>> rule = Bop([w], lr=0.1, threshold=0.05)
    >>> with rule.sampled():
    ...     w.sum().backward()  # the gradient is 1: only the first weight has its sign
    >>> rule.step()
    >>> w.tolist()
    [-1.0, -1.0]
    """

    capturable = True

    def __init__(self, params: Iterable[Any], lr: float, threshold: float):
        super().__init__(params, {"lr": lr, "threshold": threshold})

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        number("threshold", group["threshold"], above=0)
        if group["binary"] and group["lr"] > 1:
            raise ValueError(
                f"lr: Bop's adaptivity rate must lie in (0, 1]; got {group['lr']!r}; give e.g. 0.01"
            )

    def _update(
        self, w_r: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        m = remembered(state, "m", g)
        w, new = bop_update(weights.sign(w_r), m, g, group["lr"], group["threshold"])
        m.copy_(new)
        return w
