"""The scan of SRM neurons, in floats or in integers, and its adjoint as PyTorch operations: for
autograd, vmap, compile (not `torch.func.grad`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bisnn import kernels
from bisnn.kernels import fixed
from bisnn.kernels.reference import pseudo_derivative


@torch.library.custom_op("bisnn::srm_scan", mutates_args=())
def srm_scan(
    I: Tensor,
    P: Tensor,
    Q: Tensor,
    R: Tensor,
    kappa: Tensor,
    constants: Tensor,
    surrogate: str,
    slope: float,
    refractory: bool,
    integers: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The neuron over all time steps at once: one differentiable operation.

    Args:
        I: currents, (T, B, ...).
        P, Q, R: state before the first step, (B, ...).
        kappa: scale of the current, broadcast against the state.
        constants: (a_m, a_s, a_r, theta) from `SRM.constants`, in the dtype of I.
        surrogate, slope: the pseudo-derivative of the step, see `SRM`.
        refractory: whether gradients travel through the feedback R (BPTT) or not (local learning).
        integers: of `FixedSRM`, whose state is described at `fixed.to_integers`; None for `SRM`.

    Returns:
        spikes s (T, B, ...), potentials u (T, B, ...), and the state P, Q, R (B, ...) for the step
        after the last.
    """
    return fixed.scan(kernels.choose(I), I, (P, Q, R), kappa, constants, integers)


@torch.library.custom_op("bisnn::srm_adjoint", mutates_args=())
def srm_adjoint(
    g_s: Tensor | None,
    g_u: Tensor | None,
    g_P: Tensor | None,
    g_Q: Tensor | None,
    g_R: Tensor | None,
    u: Tensor,
    kappa: Tensor,
    constants: Tensor,
    surrogate: str,
    slope: float,
    refractory: bool,
    integers: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of I, P, Q, R from those of `srm_scan`: the same filter, backwards in time."""
    g_state = fixed.gradients_after((g_P, g_Q, g_R), kappa, integers)
    g_I, *g_before = kernels.choose(u).adjoint(
        g_s, g_u, g_state, u, kappa, constants, surrogate, slope, refractory
    )
    return (g_I, *fixed.gradients_before(g_before, kappa, integers))


@srm_scan.register_fake
def _(I, P, Q, R, kappa, constants, surrogate, slope, refractory, integers=None):
    one = fixed.empty_trace(I[0], integers)
    whole = torch.empty_like(I, memory_format=torch.contiguous_format)
    return whole, torch.empty_like(whole), one, torch.empty_like(one), torch.empty_like(one)


@srm_adjoint.register_fake
def _(g_s, g_u, g_P, g_Q, g_R, u, kappa, constants, surrogate, slope, refractory, integers=None):
    one = fixed.empty_trace(u[0], integers)
    return torch.empty_like(u), one, torch.empty_like(one), torch.empty_like(one)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, _, _, kappa, constants, *ctx.settings, integers = inputs
    ctx.set_materialize_grads(False)  # an unused output costs no zeros of its size
    ctx.save_for_backward(output[1], kappa, constants, integers)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    u, kappa, constants, integers = ctx.saved_tensors
    if all(g is None for g in grads):
        return (None,) * 10
    return (*srm_adjoint(*grads, u, kappa, constants, *ctx.settings, integers), *(None,) * 6)


srm_scan.register_autograd(_backward, setup_context=_save)


@srm_scan.register_vmap
def _(info, in_dims, I, P, Q, R, kappa, constants, *settings):
    """Members of an ensemble become part of the batch: the scan is elementwise in B."""
    K = info.batch_size

    def members_first(x: Tensor, dim: int | None) -> Tensor:
        return x.expand(K, *x.shape) if dim is None else x.movedim(dim, 0)

    if in_dims[4] is not None or in_dims[5] is not None:
        raise ValueError("kappa, constants: are shared by all members of a vmap; got a batched one")
    I = members_first(I, in_dims[0]).movedim(0, 1).flatten(1, 2)  # (T, K B, ...)
    state = [
        members_first(x, d).flatten(0, 1) for x, d in zip((P, Q, R), in_dims[1:4], strict=True)
    ]
    s, u, *state = srm_scan(I, *state, kappa, constants, *settings)
    s, u = (x.unflatten(1, (K, -1)) for x in (s, u))
    return (s, u, *(x.unflatten(0, (K, -1)) for x in state)), (1, 1, 0, 0, 0)


class _Spike(torch.autograd.Function):
    """Theta(v) forward, the surrogate's derivative backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, surrogate: str, slope: float) -> Tensor:
        return (v > 0).to(v.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        v, *ctx.settings = inputs
        ctx.save_for_backward(v)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (v,) = ctx.saved_tensors
        return g * pseudo_derivative(v, *ctx.settings), None, None


def spike(u: Tensor, theta: Tensor, surrogate: str, slope: float) -> Tensor:
    """s = Theta(u - theta), eq. (ind-threshold), with a surrogate gradient.

    u - theta > 0 and u > theta are the same in IEEE arithmetic with gradual underflow, so this
    agrees with the scan.
    """
    return _Spike.apply(u - theta, surrogate, slope)
