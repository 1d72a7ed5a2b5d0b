"""The learning rules that a config may name: a section for each, which builds its rule.

A section knows all that a run asks of its rule. PyTorch is imported where a rule is built: a config
is checked without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from bisnn.runs.section import Count, Finite, NotNegative, Positive, Section, Share

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


class RuleSection(Section):
    """A learning rule and its options, those of its constructor."""

    name: str
    lr: Positive
    # Lr of the plain rule, times the time steps that the loss is summed over; with Adam, which
    # knows no scale; None: there is no default. See `defaults`
    summed_lr: ClassVar[float | None] = None
    adam_lr: ClassVar[float | None] = None
    any_levels: ClassVar[bool] = True  # whether it trains weights of other alphabets than -1 and +1

    def title(self) -> str:
        """What a report calls the rule."""
        return self.name

    def posterior(self) -> bool | None:
        """Whether the latents are a posterior that members can be drawn from; None where that is
        not known before the rule is built."""
        return False

    def real_weights(self) -> bool:
        """Whether the network's weights are real numbers."""
        return False

    def hard_weights(self) -> bool:
        """Whether training sees levels of the alphabet as weights, not relaxed or real ones."""
        return True

    def described(self) -> RuleSection:
        """This section, with what a model must know of a rule that it cannot know by itself."""
        return self

    def build(self, params: list[Tensor], seed: int, steps_per_epoch: int) -> Optimizer:
        """The rule for these parameters."""
        raise NotImplementedError

    @classmethod
    def default_lr(cls, rule: dict[str, Any], steps: int) -> float | None:
        """The learning rate where none is given, None if there is no default; `steps` are those
        that the loss is summed over."""
        if rule.get("precondition") == "adam":
            return cls.adam_lr
        if cls.summed_lr is None or rule.get("precondition", "none") != "none":
            return None
        return float(f"{cls.summed_lr / steps:.3g}")

    @classmethod
    def default_options(cls, rule: dict[str, Any], steps: int) -> dict[str, Any]:
        """What else a rule on points gets where it is not given."""
        return {}


class PreconditionedRule(RuleSection):
    precondition: Literal["none", "momentum", "adam"] = "none"  # "none" is the paper's rule
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] = [0.9, 0.999]


class STRule(PreconditionedRule):
    """ST-BiSNN, Algorithm 1."""

    name: Literal["st"]
    clip: Positive | None = None  # keep the latents in [-clip, clip]
    summed_lr: ClassVar[float | None] = 300.0
    adam_lr: ClassVar[float | None] = 0.05

    def title(self) -> str:
        return "ST-BiSNN"

    def build(self, params: list[Tensor], seed: int, steps_per_epoch: int) -> Optimizer:
        from bisnn.rules import STBiSNN

        return STBiSNN(params, **self.model_dump(exclude={"name"}))


class BayesRule(PreconditionedRule):
    """Bayes-BiSNN, Algorithm 2."""

    name: Literal["bayes"]
    temperature: NotNegative
    tau: Positive = 1.0
    prior: Finite = 0.0  # logit of every weight
    straight_through: bool = False  # hard samples forward, the relaxed sample's gradient
    tau_end: Positive | None = None
    temperature_end: Positive | None = None
    anneal_epochs: Count | None = None
    summed_lr: ClassVar[float | None] = 900.0
    adam_lr: ClassVar[float | None] = 0.1
    summed_temperature: ClassVar[float] = 3e-6  # rho, for each of those time steps

    @model_validator(mode="after")
    def _annealing(self) -> BayesRule:
        ends = self.tau_end is not None or self.temperature_end is not None
        if ends != (self.anneal_epochs is not None):
            raise ValueError(
                "anneal_epochs goes with tau_end or temperature_end: give both or neither"
            )
        if self.temperature_end is not None and self.temperature == 0:
            raise ValueError("temperature must be above 0 to be annealed: it moves geometrically")
        return self

    def title(self) -> str:
        return "Bayes-BiSNN"

    def posterior(self) -> bool | None:
        return True

    def hard_weights(self) -> bool:
        return self.straight_through

    def build(self, params: list[Tensor], seed: int, steps_per_epoch: int) -> Optimizer:
        from bisnn.rules import BayesBiSNN

        options = self.model_dump(exclude={"name", "anneal_epochs"})
        steps = None if self.anneal_epochs is None else self.anneal_epochs * steps_per_epoch
        return BayesBiSNN(params, **options, anneal_steps=steps, seed=seed)

    @classmethod
    def default_options(cls, rule: dict[str, Any], steps: int) -> dict[str, Any]:
        temperature = {"temperature": float(f"{cls.summed_temperature * steps:.3g}")}
        left_to_us = "lr" not in rule and cls.default_lr(rule, steps) is not None
        return temperature | ({"straight_through": True} if left_to_us else {})


class BopRule(RuleSection):
    """Bop: no latents, weights flip by a running mean of the gradient."""

    name: Literal["bop"]
    lr: Annotated[float, Field(gt=0, le=1)]
    threshold: Positive
    any_levels: ClassVar[bool] = False

    def title(self) -> str:
        return "Bop"

    def build(self, params: list[Tensor], seed: int, steps_per_epoch: int) -> Optimizer:
        from bisnn.rules import Bop

        return Bop(params, **self.model_dump(exclude={"name"}))


class FullRule(RuleSection):
    """Full precision: real weights and an optimizer of torch's, to compare with."""

    name: Literal["full"]
    optimizer: Literal["sgd", "adam"] = "adam"
    momentum: Share = 0.0  # "sgd" only
    adam_lr: ClassVar[float | None] = 0.03
    any_levels: ClassVar[bool] = False

    def title(self) -> str:
        return "full precision"

    def real_weights(self) -> bool:
        return True

    def hard_weights(self) -> bool:
        return False

    def build(self, params: list[Tensor], seed: int, steps_per_epoch: int) -> Optimizer:
        import torch

        if self.optimizer == "adam":
            return torch.optim.Adam(params, self.lr, fused=True)  # one pass over the weights
        return torch.optim.SGD(params, self.lr, self.momentum)

    @classmethod
    def default_lr(cls, rule: dict[str, Any], steps: int) -> float | None:
        return cls.adam_lr if rule.get("optimizer", "adam") == "adam" else None


SECTIONS = (STRule, BayesRule, BopRule, FullRule)  # what `rule.name` may be; see `kinds`
