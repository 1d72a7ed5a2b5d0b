"""Realisations: weights w that stand in a parameter, in place of its latents, for a while.

What is known of a parameter between calls is marked on it: what its latents are, whether a rule
trains it, whether it holds a realisation now, and whether that is hard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bisnn.alphabet import BINARY, Levels
from bisnn.weights import draw_members, latents_of, level_tensor


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
    return hasattr(parameter, "_bisnn_latents")


def is_realised(parameter: nn.Parameter) -> bool:
    """Whether the parameter holds a realisation w at the moment, not its latent w^r."""
    return getattr(parameter, "_bisnn_realised", False)


def is_hard(w: Tensor, alphabet: Levels = BINARY) -> bool:
    """Whether all weights are known to be levels: by value where that is cheap, else by marks."""
    if not _readable(w) or w.device.type != "cpu":
        return is_marked_hard(w)
    if w.numel() == 0:
        return True
    if alphabet != BINARY:
        return bool(torch.isin(w.detach(), level_tensor(alphabet, w.dtype, w.device)).all())
    least, most = w.detach().square().aminmax()  # w^2 = 1 exactly, also rounded, only for -1 and +1
    return bool(least == 1) and bool(most == 1)


def is_marked_hard(w: Tensor) -> bool:
    """Whether what wrote these weights, or what stands for them, said that they are levels."""
    return getattr(w, "_bisnn_hard", False)


def hard(w: Tensor) -> Tensor:
    """`w`, known from now on to be a level of its layer's alphabet everywhere."""
    w._bisnn_hard = True  # type: ignore[attr-defined]
    return w


def is_spikes(x: Tensor) -> bool:
    """Whether all inputs are known to be 0 or 1: by type, or by value where they can be read."""
    if not isinstance(x, Tensor):
        return False
    if x.dtype == torch.bool:
        return True
    # x - x^2 = 0 only for 0 and 1; infinity gives NaN
    return _readable(x) and not bool(torch.addcmul(x, x, x, value=-1).any())


def _readable(x: Tensor) -> bool:
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    unreadable = torch.compiler.is_compiling() or wrapped(x) or x.is_meta
    return not unreadable and not (x.is_cuda and torch.cuda.is_current_stream_capturing())


@contextmanager
def hold(
    parameters: Sequence[nn.Parameter], values: Sequence[Tensor], hard: bool
) -> Iterator[None]:
    """Let `parameters` hold `values` inside the block; the latents come back on leaving, whatever
    happened inside.

    `hard` says whether the weights are levels, and not relaxed.

    The two change places in memory, and nothing is copied. Each change counts as one in place, so
    that autograd notices a backward pass that comes too late.
    """
    if any(is_realised(p) for p in parameters):
        raise RuntimeError("these parameters hold a realisation already: realisations do not nest")
    latents = [p.data for p in parameters]
    try:
        _place(parameters, [_like(w, v) for w, v in zip(latents, values, strict=True)], True, hard)
        yield
    finally:
        _place(parameters, latents, False, False)


def _place(
    parameters: Sequence[nn.Parameter], values: Sequence[Tensor], realised: bool, hard: bool
) -> None:
    for p, value in zip(parameters, values, strict=True):
        p._bisnn_realised, p._bisnn_hard = realised, hard  # type: ignore[attr-defined]
        p.data = value
        torch.autograd.graph.increment_version(p)


def _like(w: Tensor, value: Tensor) -> Tensor:
    """The value, which belongs to the caller, where a parameter can have it in the place of w."""
    value = value.detach().to(w)
    return value if value.stride() == w.stride() else torch.empty_like(w).copy_(value)


def binary_parameters(of: nn.Module | Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """The latents of a network, or of a module those that a rule trains; an iterable is kept."""
    if not isinstance(of, nn.Module):
        return list(of)
    layers = [m for m in of.modules() if hasattr(m, "has_latents")]
    ours = {layer.weight for layer in layers if layer.has_latents}
    found = [p for p in of.parameters() if p in ours or is_binary(p)]
    if not found and not layers:
        raise ValueError(
            f"of: no rule trains binary parameters of this {type(of).__name__}; make the rule "
            "first, or pass the parameters themselves"
        )
    return found


@contextmanager
def map_weights(of: nn.Module | Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside the block the parameters hold the most probable weights: of binary ones sign(w^r).

    Args:
        of: a network, or the parameters themselves.
    """
    parameters = binary_parameters(of)
    values = [map_weight(p) for p in parameters]
    with hold(parameters, _as_parameters(parameters, values), hard=True):
        yield


@contextmanager
def sample_weights(
    of: nn.Module | Iterable[nn.Parameter], seed: int, member: int = 0
) -> Iterator[None]:
    """Inside the block the parameters hold a sample from the posterior.

    Args:
        of: a network, or the parameters themselves.
        seed: of the members.
        member: which of them, from 0.
    """
    parameters = binary_parameters(of)
    (drawn,) = draw_members(parameters, 1, seed, member)
    with hold(parameters, _as_parameters(parameters, drawn), hard=True):
        yield


@torch.no_grad()
def map_weight(parameter: Tensor) -> Tensor:
    """The most probable weights of a parameter that holds latents: hard, in its dtype."""
    return hard(latents_of(parameter).modes(parameter.detach()))


def _as_parameters(parameters: Sequence[nn.Parameter], weights: Sequence[Tensor]) -> list[Tensor]:
    return [latents_of(p).write(w.to(p.dtype)) for p, w in zip(parameters, weights, strict=True)]
