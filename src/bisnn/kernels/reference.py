"""The scan over time and its adjoint, as plain PyTorch loops over the steps that `neuron` defines.

Axes: currents I, spikes s and potentials u are (T, B, ...); the state P, Q, R is (B, ...); kappa
broadcasts against the state; constants holds (a_m, a_s, a_r, theta) in the dtype of the current.
Every other kernel gives the bits of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from bisnn.neuron import SRM, fixed_advance, fixed_potential
from bisnn.spec import windows_along

_STEP = SRM()  # whose step is a function of its arguments alone


def pseudo_derivative(v: Tensor, surrogate: str, slope: float) -> Tensor:
    """Derivative of the smooth stand-in for the Heaviside step at v = u - theta.

    sigmoid: d/dv sigma(k v) = k sigma(k v) (1 - sigma(k v)); box: d/dv clip(k v + 1/2, 0, 1) = k
        where |k v| < 1/2.
    """
    if surrogate == "sigmoid":
        # 1 - sigma(x) = sigma(-x), without cancellation
        return slope * torch.sigmoid(slope * v) * torch.sigmoid(-slope * v)
    return slope * ((slope * v).abs() < 0.5).to(v.dtype)


def scan(
    I: Tensor,
    P: Tensor,
    Q: Tensor,
    R: Tensor,
    kappa: Tensor,
    constants: Tensor,
    pool: int = 1,
    u: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Spikes s and potentials u of all time steps, and the state after the last: (s, u, P, Q, R).

    With `pool`, currents are (T, B, H, W, C) and s is what leaves the layer: 1 where the highest
    potential of a window of pool x pool pixels exceeds theta, which is the OR of the window's
    spikes. A kernel may write the potentials to `u`, which may be I.
    """
    theta = constants[3]
    s, u = (torch.empty_like(I, memory_format=torch.contiguous_format) for _ in range(2))
    for t in range(I.shape[0]):
        u[t] = _STEP.potential((P, Q, R), kappa, constants)
        s[t] = (u[t] > theta).to(I.dtype)  # equality does not fire
        P, Q, R = _STEP.advance(I[t], s[t], (P, Q, R), constants)
    return pooled(s, pool), u, P.contiguous(), Q.contiguous(), R.contiguous()


def fixed_scan(
    I: Tensor,
    P: Tensor,
    Q: Tensor,
    R: Tensor,
    kappa: Tensor,
    integers: Tensor,
    pool: int = 1,
    u: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `scan`, of `FixedSRM`: the state is int32, integers are those of `FixedSRM.integers`, and
    u = kappa 2^-f v in the dtype of kappa.
    """
    theta, v = integers[5], torch.empty_like(I, dtype=torch.int32)
    s = torch.empty_like(I, dtype=kappa.dtype, memory_format=torch.contiguous_format)
    state: tuple[Tensor, ...] = (P, Q, R)
    for t, I_t in enumerate(I.int()):
        v[t] = fixed_potential(state)
        fires = v[t] > theta
        s[t] = fires
        state = fixed_advance(I_t, fires, state, integers)
    P, Q, R = (trace.contiguous() for trace in state)
    return pooled(s, pool), dequantised(v, kappa, integers), P, Q, R


def dequantised(v: Tensor, kappa: Tensor, integers: Tensor) -> Tensor:
    """kappa 2^-f v in the dtype of kappa: v is rounded to it, then the product."""
    return torch.ldexp(kappa * v.to(kappa.dtype), -integers[3])


def pooled(s: Tensor, pool: int) -> Tensor:
    """The OR of spikes over windows of pool x pool pixels."""
    return s if pool == 1 else channels_last(F.max_pool2d(channels_first(s), pool), s)


def pooled_shape(I: Tensor, pool: int) -> tuple[int, ...]:
    """Shape of what leaves a layer of currents I, (T, B, H, W, C) where there is pooling."""
    T, B, *size = I.shape
    return (T, B, size[0] // pool, size[1] // pool, size[2]) if pool > 1 else (T, B, *size)


def channels_first(x: Tensor) -> Tensor:
    """Images (T, B, H, W, C) as (T B, C, H, W), a view."""
    return x.flatten(0, 1).permute(0, 3, 1, 2)


def channels_last(images: Tensor, like: Tensor) -> Tensor:
    """Images (T B, C, H, W) as (T, B, H, W, C), contiguous, with T and B of `like`."""
    return images.permute(0, 2, 3, 1).unflatten(0, like.shape[:2]).contiguous()


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
    pool: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients (g_I, g_P, g_Q, g_R) of the current and the initial state, from those of the scan's
    outputs.

    With `refractory` the error also travels through the neuron's own feedback R (BPTT); without,
    that path is cut. With `pool` the error of a window goes to its first maximum.
    """
    a_m, a_s, a_r, theta = constants.unbind()
    if g_s is not None and pool > 1:
        images = channels_first(u)
        _, first = F.max_pool2d(images, pool, return_indices=True)
        g_s = channels_last(
            F.max_unpool2d(channels_first(g_s), first, (pool, pool), output_size=images.shape[-2:]),
            u,
        )
    G_P, G_Q, G_R = (torch.zeros_like(u[0]) if g is None else g for g in g_state)
    if not refractory:
        G_R = torch.zeros_like(u[0])
    g_I = torch.empty_like(u, memory_format=torch.contiguous_format)
    for t in range(u.shape[0] - 1, -1, -1):
        # Adjoints of P_{t+1}, ... carried through their decay
        G_P, G_Q, G_R = (a_m * G_P, a_s * G_Q, a_r * G_R)
        g_I[t] = G_P + G_Q
        e = G_R if g_s is None else G_R + g_s[t]  # error on s_t
        g = e * pseudo_derivative(u[t] - theta, surrogate, slope)
        if g_u is not None:
            g = g + g_u[t]
        G_P, G_Q = G_P + kappa * g, G_Q - kappa * g
        if refractory:
            G_R = G_R - g
    return g_I, G_P.contiguous(), G_Q.contiguous(), G_R.contiguous()


# The product of a layer, and its gradients. Inputs are (T, B, n_in) for weights (n_out, n_in), or
# images (T, B, H, W, C) for kernels (C_out, C, k0, k1). `levels` promises that every weight is one
# of them (empty: any number), `spikes` that inputs are 0 and 1: a kernel may use it.


def flat(x: Tensor) -> Tensor:
    """Inputs (T, B, ...) as (T, B, n)."""
    return x.flatten(2)


def keep(x: Tensor, padding: list[int]) -> Tensor:
    """Spikes as kept for the backward pass, here one byte each; a kernel may add the padding."""
    return x.to(torch.uint8)


def kept_shape(shape: torch.Size, padding: list[int]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of what `keep` returns."""
    return tuple(shape), torch.uint8


def current_shape(
    shape: Sequence[int], weight: Tensor, stride: list[int], padding: list[int]
) -> list[int]:
    """Shape of the currents that inputs of this shape make."""
    if weight.ndim == 2:
        return [*shape[:2], weight.shape[0]]
    places = zip(shape[2:4], weight.shape[2:], stride, padding, strict=True)
    return [*shape[:2], *(windows_along(*place) for place in places), weight.shape[0]]


def product(
    x: Tensor,
    kept: Tensor | None,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    levels: list[int],
) -> Tensor:
    """Currents I = W s of all time steps; `kept` is None where the inputs are no spikes."""
    if weight.ndim == 2:
        return F.linear(x, weight)
    return channels_last(F.conv2d(channels_first(x), weight, None, stride, padding), x)


def weight_gradient(
    g: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    """Gradient of the weights from that of the currents and the inputs."""
    if weight.ndim == 2:
        return g.flatten(0, 1).t() @ x.flatten(0, 1)
    g_w = conv2d_weight(channels_first(x), weight.shape, channels_first(g), stride, padding)
    return g_w.contiguous()


def input_gradient(
    g: Tensor, shape: list[int], weight: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    """Gradient of the inputs, of this shape, from that of the currents."""
    if weight.ndim == 2:
        return g @ weight
    size = torch.Size([g.shape[0] * g.shape[1], shape[-1], *shape[2:4]])
    return channels_last(conv2d_input(size, weight, channels_first(g), stride, padding), g)


def readout(s: Tensor, V: Tensor, scale: Tensor) -> Tensor:
    """y = scale V s, (T, B, outputs), of what leaves a layer; images have channels last."""
    return F.linear(s.flatten(2), V) * scale


def spike_error(
    g_s: Tensor | None, g_y: Tensor | None, V: Tensor | None, u: Tensor, pool: int
) -> Tensor | None:
    """The error on what leaves a layer, from g_s and its readout's g_y V; u gives the shape."""
    if g_y is None or V is None:
        return g_s
    g = (g_y @ V).reshape(pooled_shape(u, pool))
    return g if g_s is None else g_s + g


class Errors(NamedTuple):
    """Gradients of a layer's outputs; None where one is not used."""

    y: Tensor | None  # of V s, the readout without its scale, (T, B, outputs)
    s: Tensor | None
    u: Tensor | None
    state: tuple[Tensor | None, Tensor | None, Tensor | None]  # P, Q, R after the last step


class LayerConstants(NamedTuple):
    """What a layer's backward pass needs to know of it; see `layer.srm_layer`."""

    weight: Tensor
    kappa: Tensor
    constants: Tensor
    V: Tensor | None
    stride: list[int]
    padding: list[int]
    pool: int
    surrogate: str
    slope: float
    refractory: bool

    @property
    def neuron(self) -> tuple[Tensor, Tensor, str, float, bool]:
        return self.kappa, self.constants, self.surrogate, self.slope, self.refractory


def gradients(
    errors: Errors,
    u: Tensor,
    x: Tensor,
    x_shape: list[int],
    spikes: bool,
    layer: LayerConstants,
    needs_x: bool,
    needs_weight: bool,
    adjoint: Callable[..., tuple[Tensor, ...]] = adjoint,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x and weight (empty where not needed) and of P, Q, R.

    x is the layer's input, of shape `x_shape`: as it was, or if it was `spikes`, as `keep` gave it.
    """
    weight, places = layer.weight, (layer.stride, layer.padding)
    g_s = spike_error(errors.s, errors.y, layer.V, u, layer.pool)
    g_I, *g_before = adjoint(g_s, errors.u, errors.state, u, *layer.neuron, layer.pool)
    g_x = input_gradient(g_I, x_shape, weight, *places) if needs_x else g_I.new_empty(0)
    x = x.to(g_I.dtype)
    g_w = weight_gradient(g_I, x, weight, *places) if needs_weight else g_I.new_empty(0)
    return (g_x, g_w, *g_before)  # type: ignore[return-value]
