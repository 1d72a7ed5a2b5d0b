"""The traces of `FixedSRM` between kernels, which want int32, and autograd, which wants floats.

In PyTorch a trace travels as float64, in multiples of 2^-f: 32-bit integers are exact there, and
unlike integers it carries gradients, of local learning in chunks and of BPTT. P and Q are then
those of the SRM but for rounding, R is in units of 1/kappa.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bisnn.kernels import reference
from bisnn.neuron import fixed_advance, fixed_potential


def to_integers(state: Sequence[Tensor], integers: Tensor) -> tuple[Tensor, ...]:
    """Traces in multiples of 2^-f as int32."""
    return tuple(torch.ldexp(trace.detach(), integers[3]).int() for trace in state)


def to_traces(state: Sequence[Tensor], integers: Tensor) -> tuple[Tensor, ...]:
    """Traces as float64, from int32."""
    return tuple(torch.ldexp(trace.double(), -integers[3]) for trace in state)


def empty_trace(like: Tensor, integers: Tensor | None) -> Tensor:
    """What a trace of neurons `like` (B, ...) looks like."""
    dtype = like.dtype if integers is None else torch.float64
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


def scan(
    kernel: ModuleType,
    I: Tensor,
    state: Sequence[Tensor],
    kappa: Tensor,
    constants: Tensor,
    integers: Tensor | None,
    pool: int = 1,
    u: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The scan of a kernel module: of the SRM, or with `integers` of `FixedSRM`."""
    if integers is None:
        return kernel.scan(I, *state, kappa, constants, pool, u)
    before = to_integers(state, integers)
    s, u, *after = kernel.fixed_scan(I, *before, kappa, integers, pool, u)
    P, Q, R = to_traces(after, integers)
    return s, u, P, Q, R


State = tuple[Any, Any, Any]  # gradients of P, Q, R, each a tensor or None


def gradients_after(g: State, kappa: Tensor, integers: Tensor | None) -> State:
    """Gradients of the state after the last step, as the adjoint of the SRM takes them."""
    if integers is None:
        return g
    g_P, g_Q, g_R = (x if x is None else x.to(kappa.dtype) for x in g)
    return g_P, g_Q, g_R if g_R is None else g_R / kappa


def gradients_before(g: Sequence[Tensor], kappa: Tensor, integers: Tensor | None) -> State:
    """Gradients of the state before the first step, from what the adjoint of the SRM gives."""
    g_P, g_Q, g_R = g
    if integers is None:
        return g_P, g_Q, g_R
    return g_P.double(), g_Q.double(), (g_R * kappa).double()


# One step, for layers that step by themselves; with the gradients of the SRM.


def fire(state: Sequence[Tensor], kappa: Tensor, integers: Tensor) -> tuple[Tensor, Tensor]:
    """The potential u, and whether v > theta_f."""
    P, Q, R = state
    v = fixed_potential(to_integers(state, integers))
    u = with_gradient_of(
        reference.dequantised(v, kappa, integers), (kappa * (P - Q - R)).to(kappa.dtype)
    )
    return u, v > integers[5]


def advance(
    I: Tensor,
    s: Tensor,
    state: Sequence[Tensor],
    kappa: Tensor,
    constants: Tensor,
    integers: Tensor,
) -> tuple[Tensor, ...]:
    """The state of the next time step; s as floats."""
    after = fixed_advance(
        I.detach().int(), s.detach().bool(), to_integers(state, integers), integers
    )
    (P, Q, R), (a_m, a_s, a_r, _) = state, constants.unbind()
    smooth = (a_m * (P + I), a_s * (Q + I), a_r * (R + s / kappa))
    return tuple(map(with_gradient_of, to_traces(after, integers), smooth))


def with_gradient_of(value: Tensor, proxy: Tensor) -> Tensor:
    """`value` to the bit, with the gradient of `proxy`."""
    return value.detach() + (proxy - proxy.detach())
