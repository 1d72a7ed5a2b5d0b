"""Learning rules as optimizers: ST-BiSNN (Algorithm 1), Bayes-BiSNN (Algorithm 2), Bop (the paper's
disabled block).

The parameters are the latents w^r. A training step of every rule reads

    with rule.sampled():                 # the parameters hold a realisation w in here
        loss(net(x), r).backward()       # gradients are taken at w
    rule.step()                          # the paper's update of w^r

On leaving the block the latents are back and each binary parameter's `.grad` has been multiplied by
the rule's own factor. Several blocks before one `step()` are averaged (more samples, gradient
accumulation); chunks of one recording, whose losses add up, belong into one block. The update
equations are the pure functions below; the classes store and loop. Rules work on any torch.nn
module, not only on bisnn's.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from bisnn import weights
from bisnn.bits.philox import Purpose
from bisnn.checks import choice, finite, flag, number, positive_int, seed_number
from bisnn.kernels import draws

PRECONDITIONERS = ("none", "momentum", "adam")

# The updates, as in the paper


def descend(w: Tensor, g: Tensor, lr: float) -> Tensor:
    """w <- w - eta g.

    Algorithm 1 with g the batch mean of the gradient taken at sign(w^r); Algorithm 2 with g =
    `natural_gradient`, which is eq. (bayes-update), w^r <- (1 - eta rho) w^r - eta (grad_mu L - rho
    w^r_0), with its terms reordered.
    """
    return w - lr * g


def natural_gradient(
    w_r: Tensor, g_mu: Tensor, temperature: float, prior: float | Tensor
) -> Tensor:
    """Natural gradient of the free energy, grad_mu L + rho (w^r - w^r_0), with grad_mu L from eq.
    (bayes-RP-grad-estimator).
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


def momentum(g: Tensor, m: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Heavy ball: m <- beta m + g; the update uses m."""
    m = beta * m + g
    return m, m


def adam(
    g: Tensor, m: Tensor, v: Tensor, step: int, beta1: float, beta2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's scaled gradient, bias-corrected for the `step`-th update (from 1), and its two running
    means.
    """
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g.square()
    return m / (1 - beta1**step) / ((v / (1 - beta2**step)).sqrt() + 1e-8), m, v


def anneal(start: float, end: float | None, step: int, steps: int | None) -> float:
    """Geometric from `start` (step 0) to `end` (step `steps` and after); constant if `end` is None."""
    if end is None or steps is None:
        return start
    return start * (end / start) ** min(1.0, step / steps)


# The optimizers


class Rule(Optimizer):
    """Common part of the rules: realisations, accumulation over `sampled()` blocks, state.

    A parameter group with `"binary": False` holds real parameters that train beside the binary
    ones: no realisation, plain gradient descent with the group's `lr` (and the rule's
    preconditioner, if any).
    """

    # Whether the latents are the logits of a posterior over weights, to draw members from
    has_posterior: ClassVar[bool] = False

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]):
        self._inside = False
        self._blocks = 0  # sampled() blocks since the last step
        self._draws = (
            0  # sampled() blocks ever begun: which of its random numbers a rule takes next
        )
        self._earlier: list[Tensor | None] = []  # gradients from the blocks before the present one
        self._guarded: set[Tensor] = set()  # parameters with a guard against a late backward pass
        params = list(params)
        if not params:
            raise ValueError(
                "params: needs at least one parameter; got an empty parameter group; pass net.parameters()"
            )
        super().__init__(params, {"binary": True, "steps": 0, **defaults})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked: at least one parameter, floating point, options within their
        ranges.
        """
        params = param_group["params"]
        group = {**param_group, "params": [params] if isinstance(params, Tensor) else list(params)}
        if not group["params"]:
            raise ValueError(
                "params: needs at least one parameter; got an empty parameter group; leave the group out"
            )
        for p in group["params"]:
            if isinstance(p, Tensor) and not p.is_floating_point():
                raise ValueError(f"params: must be floating point; got {p.dtype}; use .float()")
        self._check_group({**self.defaults, **group})
        super().add_param_group(group)
        binary = self.param_groups[-1]["binary"]
        if binary:
            _warn_of_vectors(group["params"])
        for p in group["params"]:
            weights.mark_binary(p, binary)

    # What a rule provides

    def _check_group(self, group: dict[str, Any]) -> None:
        flag("binary", group["binary"])
        number("lr", group["lr"], above=0)

    def _realise(
        self, w_r: Tensor, group: dict[str, Any], number: int
    ) -> tuple[Tensor, Tensor | None]:
        """A realisation w of the latent of this parameter, and the factor on the gradient taken
        there (None for 1).
        """
        return weights.sign(w_r), None

    def _hard(self, group: dict[str, Any]) -> bool:
        """Whether realisations are -1 and +1."""
        return True

    def _update(
        self, w_r: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        """The new latent of a binary parameter, from the mean gradient over the blocks."""
        raise NotImplementedError

    def _update_real(
        self, w: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        return descend(w, g, group["lr"])

    # The two halves of a training step

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """The binary parameters hold a realisation inside the block; run forward and backward
        there, before `step()`.
        """
        if self._inside:
            raise RuntimeError(
                "sampled(): this rule is inside a sampled() block already; blocks follow each other, they do not nest"
            )
        params = [(p, group) for group in self.param_groups for p in group["params"]]
        if all(p.grad is None for p, _ in params):
            self._blocks = 0  # somebody called module.zero_grad()
        binary = [p for p, group in params if group["binary"]]
        realised = {
            p: self._realise(p.detach(), group, i)
            for i, (p, group) in enumerate(params)
            if group["binary"]
        }
        self._draws += 1
        # Before the first block a real parameter may have a gradient of its own (of a regulariser);
        # a binary one's is a left-over.
        self._earlier = [
            p.grad if self._blocks or not group["binary"] else None for p, group in params
        ]
        for p, _ in params:
            p.grad = None
        for p in binary:
            if p.requires_grad and p not in self._guarded:
                p.register_post_accumulate_grad_hook(_late_backward_guard(weakref.ref(self)))
                self._guarded.add(p)
        done = False
        try:
            hard = all(self._hard(group) for group in self.param_groups if group["binary"])
            with weights.held(binary, [realised[p][0] for p in binary], hard):
                self._inside = True
                yield
            done = True
        finally:
            self._inside = False
            for (p, _), before in zip(params, self._earlier, strict=True):
                factor = realised[p][1] if p in realised else None
                g = p.grad if done else None
                if g is not None and factor is not None:
                    g = g * factor
                p.grad = before if g is None else g if before is None else before + g
            self._earlier = []
            self._blocks += done

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters from the mean gradient of the `sampled()` blocks since the last
        step.

        With a closure (as trainers pass one), it runs inside `sampled()` first.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad(), self.sampled():
                loss = closure()
        if self._inside:
            raise RuntimeError(
                "step(): called inside a sampled() block, where the parameters hold w and not w^r; call it after the block"
            )
        if self._blocks == 0:
            raise RuntimeError(
                "step(): no sampled() block before it; run forward and backward inside `with rule.sampled():`, then rule.step()"
            )
        for group in self.param_groups:
            update = self._update if group["binary"] else self._update_real
            for p in group["params"]:
                g = p.grad
                if g is None and group["binary"] and p.requires_grad:
                    g = torch.zeros_like(
                        p
                    )  # the loss does not depend on it, and a prior still pulls
                if g is not None:
                    p.copy_(update(p, g / self._blocks, group, self.state[p]))
            group["steps"] += 1
        self.zero_grad()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and with them the `sampled()` blocks so far; `step()` does it by
        itself.
        """
        super().zero_grad(set_to_none)
        self._earlier = [None] * len(self._earlier)
        self._blocks = 0

    # All that the next step depends on

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on: torch's state, which draw is next, and gradients
        that await a `step()`.
        """
        if self._inside:
            raise RuntimeError(
                "state_dict(): called inside a sampled() block; call it after the block"
            )
        pending = (
            [p.grad for group in self.param_groups for p in group["params"]] if self._blocks else []
        )
        grads = {i: g.detach().clone() for i, g in enumerate(pending) if g is not None}
        return {
            **super().state_dict(),
            "draws": self._draws,
            "pending": {"blocks": self._blocks, "grads": grads},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        missing = {"state", "param_groups", "draws", "pending"} - state_dict.keys()
        missing |= {
            key
            for group in state_dict.get("param_groups", ())
            for key in self.defaults.keys() - group.keys() - {"differentiable"}
        }
        if missing:
            raise ValueError(
                f"state_dict: must come from the state_dict() of a {type(self).__name__}; got one without "
                f"{', '.join(sorted(missing))}; load it into the rule it was saved from"
            )
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        params = [p for group in self.param_groups for p in group["params"]]
        self._draws, self._blocks = state_dict["draws"], state_dict["pending"]["blocks"]
        for i, p in enumerate(params):
            g = state_dict["pending"]["grads"].get(i)
            p.grad = None if g is None else g.to(p.device, p.dtype, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: a copy is outside any block, and its parameters have no gradients
        yet.
        """
        return {
            **super().__getstate__(),
            "_inside": False,
            "_blocks": 0,
            "_draws": self._draws,
            "_earlier": [],
            "_guarded": set(),
        }


def _warn_of_vectors(params: list[Tensor]) -> None:
    """Biases and norms, which come along in `module.parameters()`, should stay real; a layer of
    ours knows that it is binary.
    """
    vectors = [tuple(p.shape) for p in params if p.ndim < 2 and not weights.is_synapses(p)]
    if vectors and len(vectors) < len(params):
        warnings.warn(
            f"params: {len(vectors)} of {len(params)} parameters have fewer than two axes, such as {vectors[0]}: biases or norms, "
            "whose values will be -1 or +1; to train them as real numbers, give them in a group of their own: "
            '[{"params": [p for p in net.parameters() if p.ndim > 1]}, '
            '{"params": [p for p in net.parameters() if p.ndim < 2], "binary": False}]',
            stacklevel=5,
        )


def _late_backward_guard(rule: weakref.ref[Rule]) -> Callable[[Tensor], None]:
    """A hook that raises if a gradient reaches a binary parameter outside a realisation.

    Autograd's own check (saved tensors changed in place) misses it where the backward pass needs no
    weight, as in local mode.
    """

    def guard(p: Tensor) -> None:
        owner = rule()
        if owner is not None and not weights.is_realised(p):  # type: ignore[arg-type]
            owner.zero_grad()  # what was collected is spoilt
            raise RuntimeError(
                "backward() outside a sampled() block reached a binary parameter, which holds the latent w^r and not the weight w; "
                "call it inside `with rule.sampled():`; for a gradient with respect to w^r itself use torch.autograd.grad"
            )

    return guard


class _Preconditioned(Rule):
    """A rule whose gradient may go through one preconditioner, "momentum" or "adam"; off by
    default.
    """

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        choice("precondition", group["precondition"], PRECONDITIONERS)
        betas = group["betas"]
        if (
            not isinstance(betas, (tuple, list))
            or len(betas) != 2
            or not all(isinstance(b, (int, float)) and 0 <= b < 1 for b in betas)
        ):
            raise ValueError(
                f"betas: must be two numbers in [0, 1); got {betas!r}; the usual ones are (0.9, 0.999)"
            )

    def _precondition(self, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        beta1, beta2 = group["betas"]
        if group["precondition"] == "momentum":
            g, state["m"] = momentum(g, state.get("m", torch.zeros_like(g)), beta1)
        elif group["precondition"] == "adam":
            m, v = state.get("m", torch.zeros_like(g)), state.get("v", torch.zeros_like(g))
            state["step"] = state.get("step", 0) + 1
            g, state["m"], state["v"] = adam(g, m, v, state["step"], beta1, beta2)
        return g

    def _update_real(
        self, w: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        return descend(w, self._precondition(g, group, state), group["lr"])


class STBiSNN(_Preconditioned):
    """ST-BiSNN, Algorithm 1: w = sign(w^r); w^r <- w^r - eta g.

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


class BayesBiSNN(_Preconditioned):
    """Bayes-BiSNN, Algorithm 2: natural gradient descent on the free energy of a Bernoulli
    posterior with logits w^r.

    A realisation is w = tanh((w^r + delta)/tau), delta = 1/2 log(eps/(1-eps)), eps ~ U(0, 1).

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
    ...         w_r.sum().backward()  # the loss sum_i w_i: E_q[w] + rho KL is least at w^r = -1/rho = -2
    ...     rule.step()
    >>> bool((weights.mean(w_r) < -0.9).all())
    True
    """

    has_posterior: ClassVar[bool] = True

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
        prior = group["prior"]
        if not isinstance(prior, Tensor):
            number("prior", prior)
        else:
            finite("prior", prior)
        if (
            isinstance(prior, Tensor)
            and prior.ndim
            and any(prior.shape != p.shape for p in group["params"])
        ):
            shapes = [tuple(p.shape) for p in group["params"]]
            raise ValueError(
                f"prior: must be a number or have the shape of every parameter in its group, {shapes}; got {tuple(prior.shape)}; "
                "put each parameter into a group of its own"
            )
        ends = [name for name in ("tau_end", "temperature_end") if group[name] is not None]
        for name in ends:
            number(name, group[name], above=0)
        if "temperature_end" in ends:
            number(
                "temperature", group["temperature"], above=0
            )  # a geometric path does not start at zero
        if bool(ends) != (group["anneal_steps"] is not None):
            raise ValueError(
                f"anneal_steps: goes with tau_end or temperature_end; got anneal_steps={group['anneal_steps']!r}, "
                f"tau_end={group['tau_end']!r}, temperature_end={group['temperature_end']!r}"
            )
        if ends:
            positive_int("anneal_steps", group["anneal_steps"])

    def annealed(self, name: str, group: dict[str, Any]) -> float:
        """The present value of "tau" or "temperature" in a parameter group."""
        return anneal(group[name], group[name + "_end"], group["steps"], group["anneal_steps"])

    def _realise(
        self, w_r: Tensor, group: dict[str, Any], number: int
    ) -> tuple[Tensor, Tensor | None]:
        tau = self.annealed("tau", group)
        eps = draws.uniform_like(w_r, number, self.seed, Purpose.TRAINING_NOISE, self._draws)
        delta = weights.logistic_noise(eps).to(w_r.dtype)
        w = (
            weights.sign(w_r + delta)
            if group["straight_through"]
            else weights.relax(w_r, delta, tau)
        )
        return w, weights.mean_gradient_factor(w_r, delta, tau)

    def _hard(self, group: dict[str, Any]) -> bool:
        return group["straight_through"]

    def _update(
        self, w_r: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        prior = group["prior"].to(w_r) if isinstance(group["prior"], Tensor) else group["prior"]
        g = natural_gradient(w_r, g, self.annealed("temperature", group), prior)
        return descend(w_r, self._precondition(g, group, state), group["lr"])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seed": self.seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "seed" not in state_dict:
            raise ValueError(
                "state_dict: must come from the state_dict() of a BayesBiSNN; got one without seed; load it where it was saved"
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
        m = state.get("m", torch.zeros_like(g))
        w, state["m"] = bop_update(weights.sign(w_r), m, g, group["lr"], group["threshold"])
        return w
