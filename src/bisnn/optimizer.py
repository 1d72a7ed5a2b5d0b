"""What all learning rules share, as optimizers: realisations, accumulation, preconditioners, state.

The parameters are latents. A training step of every rule reads

    with rule.sampled():                 # the parameters hold a realisation in here
        loss(net(x), r).backward()       # gradients are taken at it
    rule.step()                          # the rule's update of the latents

On leaving the block the latents are back, and each binary parameter's `.grad` has gone back through
the realisation, by the rule's own way. Several blocks before one `step()` are averaged (more
samples, gradient accumulation); chunks of one recording, whose losses add up, belong into one
block. Rules work on any torch.nn module, not only on bisnn's.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bisnn import kernels, modules, realisation
from bisnn.checks import choice, flag, number, positive_int
from bisnn.weights import Categorical, Pullback, Signs, latents_of

PRECONDITIONERS = ("none", "momentum", "adam")


def descend(w: Tensor, g: Tensor, lr: float) -> Tensor:
    """w <- w - eta g.

    Algorithm 1 with g the batch mean of the gradient taken at sign(w^r); Algorithm 2 with g =
    `rules.natural_gradient`, which is eq. (bayes-update), w^r <- (1 - eta rho) w^r - eta (grad_mu L
    - rho w^r_0), with its terms reordered.
    """
    return w - lr * g


def momentum(g: Tensor, m: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Heavy ball: m <- beta m + g; the update uses m."""
    m = beta * m + g
    return m, m


def adam(
    g: Tensor, m: Tensor, v: Tensor, step: int | Tensor, beta1: float, beta2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's bias-corrected scaled gradient of update `step`, from 1, and its two running means."""
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g.square()
    return m / (1 - beta1**step) / ((v / (1 - beta2**step)).sqrt() + 1e-8), m, v


class Rule(Optimizer):
    """Common part of the rules: realisations, accumulation over `sampled()` blocks, state.

    A parameter group with `"binary": False` holds real parameters that train beside the binary
    ones: no realisation, plain gradient descent with the group's `lr` (and the rule's
    preconditioner, if any).
    """

    takes: tuple[type[Signs], ...] = (Signs,)  # the latents that the rule trains
    # Whether the latents are a posterior over weights, to draw members from
    has_posterior: bool = False
    # Whether a CUDA graph may replay its draws and updates: all that changes from step to step is
    # in `_changing`, and the state's tensors are written in place
    capturable: bool = False

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]):
        self._inside = False
        self._blocks = 0  # sampled() blocks since the last step
        self._draws = 0  # sampled() blocks ever begun: which random numbers a rule takes next
        self._earlier: list[Tensor | None] = []  # gradients from the blocks before the present one
        # Of each group the numbers of the present step; on a GPU, where a recorded step finds them
        self._present: list[dict[str, Any]] = []
        self._sent: Tensor | None = None
        self._sent_draws = 0  # the draws when they were sent
        self.generation = 0  # changes with the places of the state: what was recorded is void then
        self._guarded: set[Tensor] = set()  # parameters with a guard against a late backward pass
        params = list(params)
        if not params:
            raise ValueError(
                "params: needs at least one parameter; got an empty parameter group; pass "
                "net.parameters()"
            )
        super().__init__(params, {"binary": True, "steps": 0, **defaults})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked: one or more parameters, floating point, options in their ranges."""
        params = param_group["params"]
        group = {**param_group, "params": [params] if isinstance(params, Tensor) else list(params)}
        if not group["params"]:
            raise ValueError(
                "params: needs at least one parameter; got an empty parameter group; leave the "
                "group out"
            )
        for p in group["params"]:
            if isinstance(p, Tensor) and not p.is_floating_point():
                raise ValueError(f"params: must be floating point; got {p.dtype}; use .float()")
        checked = {**self.defaults, **group}
        self._check_group(checked)
        if checked["binary"]:
            self._check_latents(checked)
            _warn_of_vectors(group["params"])
        super().add_param_group(group)
        self.generation += 1
        binary = self.param_groups[-1]["binary"]
        for p in group["params"]:
            realisation.mark_binary(p, binary)

    # What a rule provides

    def _check_group(self, group: dict[str, Any]) -> None:
        flag("binary", group["binary"])
        number("lr", group["lr"], above=0)

    def _check_latents(self, group: dict[str, Any]) -> None:
        for latents in map(latents_of, group["params"]):
            if type(latents) not in self.takes:
                fix = "posterior=True" if Categorical in self.takes else "posterior=False"
                raise ValueError(
                    f"params: {type(self).__name__} does not train {type(latents).__name__} "
                    f"latents of {latents.alphabet!r}; give binary weights"
                    + ("" if self.takes == (Signs,) else f", or build the network with {fix}")
                )

    def _changing(self, group: dict[str, Any]) -> dict[str, float]:
        """The numbers of a group that change from step to step. Where `_realise` and `_update` are
        given the group, it has them as numbers, or on a GPU as tensors of one number.
        """
        return {"lr": group["lr"]}

    def _realise(
        self, w_r: Tensor, latents: Signs, group: dict[str, Any], number: int
    ) -> tuple[Tensor, Pullback | None]:
        """A parameter's realisation, and the way back for the gradient taken there, or None."""
        return latents.modes(w_r), None

    def _hard(self, group: dict[str, Any]) -> bool:
        """Whether realisations are levels, and not relaxed."""
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
        """Inside the block, for forward and backward, binary parameters hold a realisation."""
        if self._inside:
            raise RuntimeError(
                "sampled(): this rule is inside a sampled() block already; "
                "blocks follow each other, they do not nest"
            )
        realised = self._draw()
        binary, values = list(realised), [value for value, _ in realised.values()]
        hard = all(self._hard(group) for group in self.param_groups if group["binary"])
        self._set_gradients_aside()
        self._guard(binary)
        done = False
        try:
            with realisation.hold(binary, values, hard):  # which undoes it, whatever happens
                self._inside = True
                yield
            done = True
        finally:
            self._inside = False
            self._add_gradients({p: back for p, (_, back) in realised.items()}, done)

    def _params(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Every parameter with its group; its place here is the number of its random stream."""
        return [(p, group) for group in self.param_groups for p in group["params"]]

    def refresh(self) -> None:
        """Work out the numbers of the coming step, and send them to the GPU if parameters are
        there. While a graph is recorded those that were sent stay: each replay has its own.
        """
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        numbers = [{**self._changing(group), "draw": self._draws} for group in self.param_groups]
        devices = {p.device for p, _ in self._params()}
        self._present, self._sent_draws = numbers, self._draws
        if len(devices) == 1 and (device := devices.pop()).type == "cuda":
            values = [value for group in numbers for value in group.values()]
            if self._sent is None or self._sent.shape != (len(values),):
                self._sent = torch.empty(len(values), dtype=torch.float64, device=device)
            self._sent.copy_(torch.tensor(values, dtype=torch.float64).pin_memory(), True)
            places = iter(self._sent.unbind())
            self._present = [{name: next(places) for name in group} for group in numbers]

    def _now(self) -> list[dict[str, Any]]:
        """The parameter groups with the numbers of the present step."""
        later = self._draws - self._sent_draws  # of several draws of a recorded step
        return [
            {**group, **numbers, "draw": numbers["draw"] + later if later else numbers["draw"]}
            for group, numbers in zip(self.param_groups, self._present, strict=True)
        ]

    @property
    def pending(self) -> bool:
        """Whether there are gradients that the next step will use."""
        return self._blocks > 0

    def counters(self) -> tuple[int, int, int]:
        """Draws and steps so far, and the blocks that are pending."""
        return self._draws, self.param_groups[0]["steps"], self._blocks

    def advance(self, draws: int, steps: int, blocks: int) -> None:
        """Count what a recorded graph has done, or take back what was only recorded."""
        self._draws, self._blocks = self._draws + draws, self._blocks + blocks
        for group in self.param_groups:
            group["steps"] += steps

    def _draw(self) -> dict[Any, tuple[Tensor, Pullback | None]]:
        """A realisation of every binary parameter, and the way back for its gradient."""
        self.refresh()
        groups = [group for group in self._now() for _ in group["params"]]
        realised = {
            p: self._realise(p.detach(), latents_of(p), group, i)
            for i, ((p, _), group) in enumerate(zip(self._params(), groups, strict=True))
            if group["binary"]
        }
        self._draws += 1
        return realised

    def _set_gradients_aside(self) -> None:
        """Let a block begin without gradients; those of the blocks before are added at its end."""
        params = self._params()
        if all(p.grad is None for p, _ in params):
            self._blocks = 0  # somebody called module.zero_grad()
        # Before the first block a real parameter may have a gradient of its own (of a regulariser);
        # a binary one's is a left-over.
        self._earlier = [
            p.grad if self._blocks or not group["binary"] else None for p, group in params
        ]
        for p, _ in params:
            p.grad = None

    def _add_gradients(self, backs: dict[Any, Pullback | None], done: bool) -> None:
        """Take a block's gradients back to the latents and add those of the blocks before; a block
        that did not end well leaves only those.
        """
        for (p, _), before in zip(self._params(), self._earlier, strict=True):
            g, back = p.grad if done else None, backs.get(p)
            if g is not None and back is not None:
                g = back(g)
            p.grad = before if g is None else g if before is None else before + g
        self._earlier = []
        self._blocks += done

    def _guard(self, binary: list[Tensor]) -> None:
        for p in binary:
            if p.requires_grad and p not in self._guarded:
                p.register_post_accumulate_grad_hook(_late_backward_guard(weakref.ref(self)))
                self._guarded.add(p)

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
                "step(): called inside a sampled() block, where the parameters hold w and not "
                "w^r; call it after the block"
            )
        if self._blocks == 0:
            raise RuntimeError(
                "step(): no sampled() block before it; run forward and backward inside `with "
                "rule.sampled():`, then rule.step()"
            )
        self.refresh()
        for group in self._now():
            update = self._update if group["binary"] else self._update_real
            for p in group["params"]:
                g = p.grad
                if g is None and group["binary"] and p.requires_grad:
                    # The loss does not depend on it, and a prior still pulls
                    g = torch.zeros_like(p)
                if g is not None:
                    mean = g if self._blocks == 1 else g / self._blocks
                    p.copy_(update(p, mean, group, self.state[p]))
        self.advance(0, 1, 0)
        self.zero_grad()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients and the `sampled()` blocks so far; `step()` does it by itself."""
        super().zero_grad(set_to_none)
        self._earlier = [None] * len(self._earlier)
        self._blocks = 0

    # What a network takes with it

    def map_weights(self, net: nn.Module) -> dict[str, Tensor]:
        """The most probable weights of a module that this rule trains, with everything else that
        belongs to it: a `state_dict` for the module as it was before `bisnn.binarise`.
        """
        with realisation.map_weights(self._binary()):
            return modules.plain_state(net)

    def members(self, net: nn.Module, samples: int, seed: int = 0) -> list[dict[str, Tensor]]:
        """So many members drawn from the posterior, each as `map_weights` gives the MAP weights."""
        states = []
        for realised in self.realisations(samples, seed):
            with realised():
                states.append(modules.plain_state(net))
        return states

    def realisations(
        self, samples: int | None = None, seed: int = 0
    ) -> list[Callable[[], AbstractContextManager[None]]]:
        """Blocks in which the parameters hold the MAP weights, or those of each member."""
        binary = self._binary()
        if samples is None:
            return [partial(realisation.map_weights, binary)]
        positive_int("samples", samples)
        if not self.has_posterior:
            raise ValueError(
                f"samples: {type(self).__name__} has no posterior to draw from; got {samples}; "
                "leave it out, or train with BayesBiSNN"
            )
        return [partial(realisation.sample_weights, binary, seed, k) for k in range(samples)]

    def _binary(self) -> list[Any]:
        return [p for p, group in self._params() if group["binary"]]

    # All that the next step depends on

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on: torch's state, the next draw, pending gradients."""
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
                f"state_dict: must come from the state_dict() of a {type(self).__name__}; got one "
                f"without {', '.join(sorted(missing))}; load it into the rule it was saved from"
            )
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.generation += 1
        params = [p for group in self.param_groups for p in group["params"]]
        self._draws, self._blocks = state_dict["draws"], state_dict["pending"]["blocks"]
        for i, p in enumerate(params):
            g = state_dict["pending"]["grads"].get(i)
            p.grad = None if g is None else g.to(p.device, p.dtype, copy=True)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: a copy is outside any block, its parameters without gradients."""
        return {
            **super().__getstate__(),
            "_inside": False,
            "_blocks": 0,
            "_draws": self._draws,
            "_earlier": [],
            "_guarded": set(),
            "_present": [],
            "_sent": None,
            "_sent_draws": 0,
            "generation": 0,
        }


def _warn_of_vectors(params: list[Tensor]) -> None:
    """Warn of biases and norms, from `module.parameters()`: they should stay real numbers."""
    vectors = [tuple(p.shape) for p in params if p.ndim < 2 and not realisation.is_synapses(p)]
    if vectors and len(vectors) < len(params):
        warnings.warn(
            f"params: {len(vectors)} of {len(params)} parameters have fewer than two axes, such as "
            f"{vectors[0]}: biases or norms, whose values will be -1 or +1; to train them as real "
            "numbers, give them in a group of their own: "
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
        if owner is not None and not realisation.is_realised(p):  # type: ignore[arg-type]
            owner.zero_grad()  # what was collected is spoilt
            raise RuntimeError(
                "backward() outside a sampled() block reached a binary parameter, which holds the "
                "latent w^r and not the weight w; call it inside `with rule.sampled():`; for a "
                "gradient with respect to w^r itself use torch.autograd.grad"
            )

    return guard


def remembered(state: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """A tensor of a parameter's state, zero at first. To be written in place: a recorded step finds
    it where it was.
    """
    if name not in state:
        state[name] = torch.zeros_like(like, memory_format=torch.contiguous_format)
    return state[name]


def _count(state: dict[str, Any], like: Tensor) -> int | Tensor:
    """The number of this update of a parameter, from 1; on a GPU there, for a recorded step."""
    step = state.get("step", 0)
    if like.is_cuda and not (isinstance(step, Tensor) and step.is_cuda):
        step = torch.as_tensor(step, dtype=torch.float64, device=like.device)
    elif not like.is_cuda:
        step = int(step)
    step += 1  # a tensor in place
    state["step"] = step
    return step


class Preconditioned(Rule):
    """A rule whose gradient may go through one preconditioner, "momentum" or "adam"; off by
    default.
    """

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        choice("precondition", group["precondition"], PRECONDITIONERS)
        betas = group["betas"]
        pair = isinstance(betas, (tuple, list)) and len(betas) == 2
        if not pair or not all(isinstance(b, (int, float)) and 0 <= b < 1 for b in betas):
            raise ValueError(
                f"betas: must be two numbers in [0, 1); got {betas!r}; the usual ones are (0.9, "
                "0.999)"
            )

    def _precondition(self, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> Tensor:
        beta1, beta2 = group["betas"]
        if group["precondition"] == "momentum":
            g, m = momentum(g, remembered(state, "m", g), beta1)
            state["m"].copy_(m)
        elif group["precondition"] == "adam":
            m, v, step = remembered(state, "m", g), remembered(state, "v", g), _count(state, g)
            if kernels.name_for(g.device, g.dtype) == "cpu":
                from bisnn.kernels import cpu_updates

                return cpu_updates.adam(g, m, v, int(step), beta1, beta2)
            g, m, v = adam(g, m, v, step, beta1, beta2)
            state["m"].copy_(m)
            state["v"].copy_(v)
        return g

    def _update_real(
        self, w: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        return descend(w, self._precondition(g, group, state), group["lr"])
