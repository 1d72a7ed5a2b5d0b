"""The definition of the scan and of its adjoint, as plain PyTorch loops over time.

Axes: currents I, spikes s and potentials u are (T, B, ...); the state P, Q, R is (B, ...); kappa broadcasts against the
state; constants holds (a_m, a_s, a_r, theta) in the dtype of the current. Every other kernel performs the operations of
`step` in the order written here, each rounded once (no fused multiply-add), and therefore gives the same bits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Traces that have decayed below this are set to zero. Nothing near a threshold can notice (2^-64 is about 5e-20), but
# without it the recursion ends in denormal numbers, which never decay (0.85 of the smallest rounds back up to it) and
# which some CPUs process many times slower. See "Deviations" in docs/EQUATIONS.md.
FLUSH = 2.0**-64


def potential(P: Tensor, Q: Tensor, R: Tensor, kappa: Tensor) -> Tensor:
    """u_t = kappa (P_t - Q_t) - R_t, eq. (ind-membrane)."""
    return kappa * (P - Q) - R


def advance(I: Tensor, s: Tensor, P: Tensor, Q: Tensor, R: Tensor, constants: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The traces of the next time step: P' = a_m (P + I), Q' = a_s (Q + I), R' = a_r (R + s)."""
    a_m, a_s, a_r, _ = constants.unbind()
    return _flush(a_m * (P + I)), _flush(a_s * (Q + I)), _flush(a_r * (R + s))


def _flush(x: Tensor) -> Tensor:
    """x, or 0 where |x| <= FLUSH; for autograd the identity, because a trace at rest still passes gradients on."""
    flushed = F.hardshrink(x.detach(), FLUSH)
    return x + (flushed - x.detach()) if x.requires_grad else flushed


def pseudo_derivative(v: Tensor, surrogate: str, slope: float) -> Tensor:
    """Derivative of the smooth stand-in for the Heaviside step at v = u - theta.

    sigmoid: d/dv sigma(k v) = k sigma(k v) (1 - sigma(k v)); box: d/dv clip(k v + 1/2, 0, 1) = k where |k v| < 1/2.
    """
    if surrogate == "sigmoid":
        return slope * torch.sigmoid(slope * v) * torch.sigmoid(-slope * v)  # 1 - sigma(x) = sigma(-x), without cancellation
    return slope * ((slope * v).abs() < 0.5).to(v.dtype)


def scan(
    I: Tensor, P: Tensor, Q: Tensor, R: Tensor, kappa: Tensor, constants: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Spikes s and potentials u of all time steps, and the state after the last: (s, u, P, Q, R)."""
    theta = constants[3]
    s, u = (torch.empty_like(I, memory_format=torch.contiguous_format) for _ in range(2))
    for t in range(I.shape[0]):
        u[t] = potential(P, Q, R, kappa)
        s[t] = (u[t] > theta).to(I.dtype)  # equality does not fire
        P, Q, R = advance(I[t], s[t], P, Q, R, constants)
    return s, u, P.contiguous(), Q.contiguous(), R.contiguous()


def adjoint(
    g_s: Tensor | None,
    g_u: Tensor | None,
    g_state: tuple[Tensor | None, Tensor | None, Tensor | None],
    u: Tensor,
    kappa: Tensor,
    constants: Tensor,
    surrogate: str,
    slope: float,
    refractory: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients (g_I, g_P, g_Q, g_R) of the current and the initial state, from those of the scan's outputs.

    With `refractory` the error also travels through the neuron's own feedback R (BPTT); without, that path is cut.
    """
    a_m, a_s, a_r, theta = constants.unbind()
    G_P, G_Q, G_R = (torch.zeros_like(u[0]) if g is None else g for g in g_state)
    if not refractory:
        G_R = torch.zeros_like(u[0])
    g_I = torch.empty_like(u, memory_format=torch.contiguous_format)
    for t in range(u.shape[0] - 1, -1, -1):
        G_P, G_Q, G_R = a_m * G_P, a_s * G_Q, a_r * G_R  # adjoints of P_{t+1}, ... carried through their decay
        g_I[t] = G_P + G_Q
        e = G_R if g_s is None else G_R + g_s[t]  # error on s_t
        g = e * pseudo_derivative(u[t] - theta, surrogate, slope)
        if g_u is not None:
            g = g + g_u[t]
        G_P, G_Q = G_P + kappa * g, G_Q - kappa * g
        if refractory:
            G_R = G_R - g
    return g_I, G_P.contiguous(), G_Q.contiguous(), G_R.contiguous()


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """The currents of a dense layer: x (R, n_in) times weight (n_out, n_in)."""
    return x @ weight.t()


def linear_weight_gradient(g: Tensor, x: Tensor) -> Tensor:
    """Its weight gradient g^T x, (n_out, n_in), for g (R, n_out)."""
    return g.t() @ x
