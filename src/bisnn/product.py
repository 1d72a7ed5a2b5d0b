"""The product W s of a dense layer as one operation, so that a kernel may use that spikes are few and are ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bisnn import kernels


@torch.library.custom_op("bisnn::linear", mutates_args=())
def spike_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Currents I = W s of all rows: (R, n_in), (n_out, n_in) -> (R, n_out)."""
    return kernels.choose(x).linear(x, weight)


@torch.library.custom_op("bisnn::linear_weight_gradient", mutates_args=())
def spike_linear_weight_gradient(g: Tensor, x: Tensor) -> Tensor:
    """Gradient with respect to the weight: (R, n_out), (R, n_in) -> (n_out, n_in)."""
    return kernels.choose(x).linear_weight_gradient(g, x)


@spike_linear.register_fake
def _(x, weight):
    return x.new_empty(x.shape[0], weight.shape[0])


@spike_linear_weight_gradient.register_fake
def _(g, x):
    return g.new_empty(g.shape[1], x.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    g_x = g @ weight if ctx.needs_input_grad[0] else None
    return g_x, spike_linear_weight_gradient(g, x) if ctx.needs_input_grad[1] else None


spike_linear.register_autograd(_backward, setup_context=_save)


@spike_linear.register_vmap
def _(info, in_dims, x, weight):
    """Members that share an input become one product with all their weights; others are done one by one."""
    K = info.batch_size
    if in_dims[0] is None:
        weights = weight.movedim(in_dims[1], 0)
        return spike_linear(x, weights.flatten(0, 1)).unflatten(1, (K, -1)), 1
    members = zip(x.movedim(in_dims[0], 0), [weight] * K if in_dims[1] is None else weight.movedim(in_dims[1], 0), strict=True)
    return torch.stack([spike_linear(*member) for member in members]), 0
