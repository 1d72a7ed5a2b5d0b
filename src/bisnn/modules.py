"""Other people's networks: any `torch.nn.Module` that returns logits, with binary weights.

    net = models.cnn()                            # torch.nn, snnTorch, SpikingJelly, ...
    groups = bisnn.binarise(net, skip=["out"])    # says what becomes binary; str(groups) is a table
    rule = bisnn.BayesBiSNN(groups, lr=0.1, ...)  # trains it as any optimizer does
    bisnn.predict(net, x, 10, rule=rule)          # ten members, and how sure they are
    rule.members(net, 10)                         # their state_dicts, for the network as it was

A layer's weights of +1 and -1 are divided by the root of its fan-in, so that what it passes on has
the size that its author had in mind. PyTorch's own parametrizations do it: the module's parameter
is the latent, its attribute `weight` the scaled weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bisnn.checks import number

BINARY_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)  # whose `weight` may become binary


class Scaled(nn.Module):
    """What makes a layer's weights of its latents or their realisation: a constant times them."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, w: Tensor) -> Tensor:
        return self.scale * w

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight  # latents begin where the layer's author began: only signs are used

    def extra_repr(self) -> str:
        return f"{self.scale:.4g}"


class ParameterGroups(list[dict[str, Any]]):
    """Parameter groups for a rule: the binary ones, and the real ones, if there are any. Printed,
    a table of all parameters.
    """

    def __str__(self) -> str:
        rows = [
            (name, "x".join(map(str, p.shape)), "binary" if group["binary"] else "real")
            for group in self
            for name, p in zip(group["names"], group["params"], strict=True)
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join(f"{a:{widths[0]}}  {b:>{widths[1]}}  {c}" for a, b, c in rows)


def binarise(
    module: nn.Module, skip: Collection[str] = (), gain: float = 1.0, real_lr: float | None = None
) -> ParameterGroups:
    """Let the weights of a module's linear and convolutional layers be binary, in place; biases,
    norms and what is named in `skip` stay real. Returns the parameter groups for a rule.

    Args:
        module: any, trained or not; its device and dtype stay.
        skip: names of layers that keep real weights, as `named_modules` gives them; often the first
            or the last.
        gain: times which +1 and -1 over the root of the fan-in are the weights. Neurons that stay
            silent need more.
        real_lr: learning rate of the real parameters; the rule's own unless given.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    >>> print(binarise(net, skip=["3"]))
    0.weight  8x4  binary
    0.bias      8  real
    1.weight    8  real
    1.bias      8  real
    3.weight  2x8  real
    3.bias      2  real
    """
    number("gain", gain, above=0)
    layers = {n: m for n, m in module.named_modules() if isinstance(m, BINARY_LAYERS)}
    unknown = sorted(set(skip) - layers.keys())
    if unknown:
        raise ValueError(
            f"skip: must name linear or convolutional layers, of {', '.join(layers) or 'none'}; "
            f"got {', '.join(map(repr, unknown))}; see module.named_modules()"
        )
    chosen = {name: layer for name, layer in layers.items() if name not in skip}
    if not chosen:
        raise ValueError(
            f"module: needs a linear or convolutional layer to become binary; got a "
            f"{type(module).__name__} with none that is not skipped; skip fewer"
        )
    for name, layer in chosen.items():
        if parametrize.is_parametrized(layer, "weight"):
            raise ValueError(
                f"module: weights must not be parametrized yet; got {name}; take the "
                "parametrization off, or do not call binarise twice"
            )
    for layer in chosen.values():
        fan_in = layer.weight[0].numel()
        parametrize.register_parametrization(layer, "weight", Scaled(gain / math.sqrt(fan_in)))
    binary = {layer.parametrizations.weight.original for layer in chosen.values()}  # type: ignore[union-attr]
    groups = ParameterGroups()
    for is_binary in (True, False):
        named = [(_plain(n), p) for n, p in module.named_parameters() if (p in binary) == is_binary]
        if named:
            names, params = map(list, zip(*named, strict=True))
            groups.append({"params": params, "names": names, "binary": is_binary})
    if real_lr is not None:
        number("real_lr", real_lr, above=0)
        for group in groups[1:]:
            group["lr"] = real_lr
    return groups


def _plain(name: str) -> str:
    """A parameter's name before `binarise`."""
    return name.replace("parametrizations.weight.original", "weight")


@torch.no_grad()
def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """What the module's state is now, with scaled weights in place of their parameters: a
    `state_dict` for the module as it was before `binarise`.
    """
    state = {}
    for name, value in module.state_dict().items():
        plain = _plain(name)
        if plain != name:
            value = module.get_submodule(plain.removesuffix("weight").removesuffix(".")).weight
        state[plain] = value.detach().clone()
    return state


def module_logits(module: nn.Module, x: Any, realisations: Iterable[Callable[[], Any]]) -> Tensor:
    """The module's outputs for each realisation of its weights, (K, T, B, C), with T = 1 where it
    returns (B, C). It runs in evaluation mode, and is in its own again afterwards.
    """
    training = [(m, m.training) for m in module.modules()]
    outputs = []
    try:
        module.eval()
        for realised in realisations:
            with torch.no_grad(), realised():
                y = module(x)
            if not isinstance(y, Tensor) or y.ndim not in (2, 3):
                got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
                raise ValueError(
                    f"net: must return logits, (B, C) or (T, B, C); got {got}; wrap it in a module "
                    "whose forward returns them"
                )
            outputs.append(y if y.ndim == 3 else y[None])
    finally:
        for m, mode in training:
            m.training = mode
    return torch.stack(outputs)
