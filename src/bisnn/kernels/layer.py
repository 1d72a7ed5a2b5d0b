"""A layer as one operation: product W s, scan over time, pooling, readout; its backward pass is the
adjoint scan and one product.

As one operation it keeps little: currents never leave it, and of input spikes what is kept for the
backward pass takes a bit (CPU) or a byte each. Axes: (T, B, N) for dense layers, (T, B, H, W, C),
channels last, for convolutions.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bisnn import kernels
from bisnn.kernels import fixed, reference
from bisnn.kernels.reference import Errors, LayerConstants


@torch.library.custom_op("bisnn::layer", mutates_args=())
def srm_layer(
    x: Tensor,
    weight: Tensor,
    P: Tensor,
    Q: Tensor,
    R: Tensor,
    kappa: Tensor,
    constants: Tensor,
    V: Tensor | None,
    scale: Tensor | None,
    stride: list[int],
    padding: list[int],
    pool: int,
    levels: list[int],
    spikes: bool,
    surrogate: str,
    slope: float,
    refractory: bool,
    integers: Tensor | None = None,
    half: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Inputs x of all time steps through weights and neurons.

    Args:
        x: inputs, (T, B, H, W, C_in) to a convolution, else (T, B, ...), of n_in numbers each.
        weight: (n_out, n_in) or (C_out, C_in, k0, k1).
        P, Q, R, kappa, constants, surrogate, slope, refractory, integers: as for `scan.srm_scan`.
        V, scale: of the readout y = scale V s, (outputs, ...), images with channels last; None for
            no readout.
        stride, padding, pool: of a convolution.
        levels: a promise that every weight is one of these integers, sorted, as an alphabet's;
            empty for any numbers.
        spikes: a promise that the inputs are 0 and 1. With both, products are exact, and faster.
        half: potentials come rounded to half precision, for the backward pass alone; see
            `kernels.halves_potentials`.

    Returns:
        the readout y (empty if there is none), what leaves the layer s, potentials u, the state P,
        Q, R for the step after the last, and the inputs as they are kept.
    """
    kernel = kernels.choose(x)
    x = x if weight.ndim > 2 else kernel.flat(x)
    kept = kernel.keep(x, padding) if spikes else None
    I = kernel.product(x, kept, weight, stride, padding, levels)
    u = I if I.dtype == x.dtype else None
    if half:
        u = torch.empty_like(I, dtype=torch.float16)
    scanned = fixed.scan(kernel, I, (P, Q, R), kappa, constants, integers, pool, u)
    s = scanned[0]
    y = s.new_empty(0) if V is None or scale is None else kernel.readout(s, V, scale)
    return (y, *scanned, x.new_empty(0) if kept is None else kept)


@torch.library.custom_op("bisnn::layer_backward", mutates_args=())
def srm_layer_backward(
    g_y: Tensor | None,
    g_s: Tensor | None,
    g_u: Tensor | None,
    g_P: Tensor | None,
    g_Q: Tensor | None,
    g_R: Tensor | None,
    u: Tensor,
    x: Tensor,
    x_shape: list[int],
    weight: Tensor,
    kappa: Tensor,
    constants: Tensor,
    V: Tensor | None,
    scale: Tensor | None,
    stride: list[int],
    padding: list[int],
    pool: int,
    spikes: bool,
    surrogate: str,
    slope: float,
    refractory: bool,
    needs_x: bool,
    needs_weight: bool,
    integers: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weight (empty unless needed), P, Q, R; x is the input as it was kept."""
    after = fixed.gradients_after((g_P, g_Q, g_R), kappa, integers)
    errors = Errors(g_y if g_y is None or scale is None else g_y * scale, g_s, g_u, after)
    layer = LayerConstants(
        weight, kappa, constants, V, stride, padding, pool, surrogate, slope, refractory
    )
    g_x, g_w, *before = kernels.choose(constants).gradients(
        errors, u, x, x_shape, spikes, layer, needs_x, needs_weight
    )
    return (g_x, g_w, *fixed.gradients_before(before, kappa, integers))


@srm_layer.register_fake
def _(
    x,
    weight,
    P,
    Q,
    R,
    kappa,
    constants,
    V,
    scale,
    stride,
    padding,
    pool,
    levels,
    spikes,
    surrogate,
    slope,
    refractory,
    integers=None,
    half=False,
):
    u = constants.new_empty(reference.current_shape(x.shape, weight, stride, padding))
    s = reference.pooled_shape(u, pool)
    x = x if weight.ndim > 2 else x.flatten(2)
    y = u.new_empty(0 if V is None else (*u.shape[:2], V.shape[0]))
    kept_u = torch.empty_like(u, dtype=torch.float16 if half else u.dtype)
    shape, dtype = kernels.choose(x).kept_shape(x.shape, padding) if spikes else ((0,), x.dtype)
    state = [fixed.empty_trace(u[0], integers) for _ in range(3)]
    return y, u.new_empty(s), kept_u, *state, x.new_empty(shape, dtype=dtype)


@srm_layer_backward.register_fake
def _(g_y, g_s, g_u, g_P, g_Q, g_R, u, x, x_shape, weight, kappa, constants, *settings):
    needs_x, needs_weight, integers = (*settings, None)[9:12]
    g_x, g_w = (
        constants.new_empty(x_shape if needs_x else 0),
        constants.new_empty(weight.shape if needs_weight else 0),
    )
    like = torch.empty_like(u[0], dtype=constants.dtype)
    return g_x, g_w, *(fixed.empty_trace(like, integers) for _ in range(3))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, _, _, kappa, constants, V, scale, *settings, integers, _ = inputs
    stride, padding, pool, _, spikes, *neuron = settings
    ctx.settings = (stride, padding, pool, spikes, *neuron)
    ctx.x_shape = list(x.shape)
    ctx.set_materialize_grads(False)  # an unused output costs no zeros of its size
    # The weight is saved also where no gradient needs its value: autograd then notices that a
    # realisation has ended.
    kept = output[6] if spikes else x
    ctx.save_for_backward(output[2], kept, weight, kappa, constants, V, scale, integers)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    u, x, *layer, integers = ctx.saved_tensors
    if all(g is None for g in grads[:6]):
        return (None,) * 19
    needed, shape = ctx.needs_input_grad[:2], ctx.x_shape
    if layer[0].ndim == 2:
        x, shape = x.flatten(2), [*shape[:2], math.prod(shape[2:])]
    g_x, *g = srm_layer_backward(*grads[:6], u, x, shape, *layer, *ctx.settings, *needed, integers)
    asked = (g_x.reshape(ctx.x_shape) if needed[0] else None, g[0] if needed[1] else None)
    return (*asked, *g[1:], *(None,) * 14)


srm_layer.register_autograd(_backward, setup_context=_save)


@srm_layer.register_vmap
def _(info, in_dims, *arguments):
    """Members one by one: `prediction.predict` has a way of its own for many."""
    members = [
        srm_layer(
            *(
                a.select(d, k) if isinstance(d, int) else a
                for a, d in zip(arguments, in_dims, strict=True)
            )
        )
        for k in range(info.batch_size)
    ]
    return tuple(torch.stack(outputs) for outputs in zip(*members, strict=True)), (0,) * 7
