"""A learning rule of one's own, trained from the command line, in the folder of this file:

    bisnn train two_moons_st --set rule.name=own_rule:SignDescent --set rule.lr=0.05

A rule is an optimizer whose parameters are latents. `Rule` realises them as their signs and takes
gradients there; what is left to say is the update. Options of the constructor are settings:
`--set rule.decay=0.01`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bisnn.checks import number
from bisnn.rules import Rule


class SignDescent(Rule):
    """Every latent moves by `lr` against the sign of its gradient, and decays towards 0."""

    def __init__(self, params: Iterable[Any], lr: float, decay: float = 0.0):
        super().__init__(params, {"lr": lr, "decay": number("decay", decay, least=0)})

    def _update(
        self, w_r: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]
    ) -> Tensor:
        return w_r * (1 - group["lr"] * group["decay"]) - group["lr"] * torch.sign(g)
