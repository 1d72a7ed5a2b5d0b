"""The paper's equations as slow, direct code in float64.

Potentials are convolution sums over all past time steps, not recursions; local gradients are
explicit loops over t, i, j; the BPTT reference is a network stepped through time, each synapse with
its own trace, and differentiated by autograd. A network's sizes, masks and fixed readouts are read
from the network under test.
"""

from __future__ import annotations

import math

import numpy as np
import torch


def alpha(t: float, neuron) -> float:
    return math.exp(-t / neuron.tau_mem) - math.exp(-t / neuron.tau_syn)


def beta(t: float, neuron) -> float:
    return math.exp(-t / neuron.tau_ref)


def convolve(kernel, signal: np.ndarray, neuron) -> np.ndarray:
    """(f * g)_t = sum_{d > 0} f_d g_{t-d} along the first axis."""
    out = np.zeros_like(signal)
    for t in range(len(signal)):
        for d in range(1, t + 1):
            out[t] += kernel(d, neuron) * signal[t - d]
    return out


def dense_product(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(T, B, n_in) -> (T, B, n): sum over the parents, one by one."""
    out = np.zeros((*x.shape[:2], len(weight)))
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            out[:, :, i] += weight[i, j] * x[:, :, j]
    return out


def conv_terms(shape_in, shape_out, kernel, stride, padding):
    """All (output position, kernel position, input position) triples of a convolution, borders left
    out.
    """
    for oh in range(shape_out[0]):
        for ow in range(shape_out[1]):
            for kh in range(kernel[0]):
                for kw in range(kernel[1]):
                    h, w = oh * stride[0] + kh - padding[0], ow * stride[1] + kw - padding[1]
                    if 0 <= h < shape_in[0] and 0 <= w < shape_in[1]:
                        yield (oh, ow), (kh, kw), (h, w)


def conv_product(weight: np.ndarray, x: np.ndarray, layer) -> np.ndarray:
    """(T, B, C, H, W) -> (T, B, C', H', W')."""
    out = np.zeros((*x.shape[:2], *layer.current_shape))
    terms = conv_terms(
        x.shape[3:], layer.current_shape[1:], layer.kernel_size, layer.stride, layer.padding
    )
    for (oh, ow), (kh, kw), (h, w) in terms:
        for o in range(weight.shape[0]):
            for c in range(weight.shape[1]):
                out[:, :, o, oh, ow] += weight[o, c, kh, kw] * x[:, :, c, h, w]
    return out


def potentials(current, own_spikes: np.ndarray, kappa, neuron) -> np.ndarray:
    """Eq. (ind-membrane), with `current(p)` = sum_j w_ij p_j and p given by the caller's traces."""
    return kappa * current - convolve(beta, own_spikes, neuron)


def sigma_prime(v, neuron):
    k = neuron.slope
    if neuron.surrogate == "box":
        return k * (np.abs(k * v) < 0.5)
    y = 1 / (1 + np.exp(-k * v))
    return k * y * (1 - y)


def logistic_error(
    spikes: np.ndarray, V: np.ndarray, scale: float, labels: np.ndarray
) -> np.ndarray:
    """e_{i,t} = dl_t/ds_{i,t} of the mean-over-batch logistic loss on softmax(scale V s_t): (T, B,
    n).
    """
    T, B, n = spikes.shape
    e = np.zeros((T, B, n))
    for t in range(T):
        for b in range(B):
            y = scale * V @ spikes[t, b]
            q = np.exp(y - y.max())
            q /= q.sum()
            q[labels[b]] -= 1
            e[t, b] = scale * V.T @ q / B
    return e


def local_gradient(e, u, p, kappa, neuron) -> np.ndarray:
    """Eq. (der-general): sum_t e_{i,t} sigma'(u_{i,t} - theta) kappa_i p_{j,t}, by loops over t, i,
    j (and the batch).
    """
    T, B, n = u.shape
    kappa = np.broadcast_to(kappa, (n,))
    g = np.zeros((n, p.shape[2]))
    for t in range(T):
        for b in range(B):
            for i in range(n):
                post = e[t, b, i] * sigma_prime(u[t, b, i] - neuron.threshold, neuron) * kappa[i]
                for j in range(p.shape[2]):
                    g[i, j] += post * p[t, b, j]
    return g


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, neuron):
        ctx.save_for_backward(v)
        ctx.neuron = neuron
        return (v > 0).double()

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g * torch.from_numpy(sigma_prime(v.numpy(), ctx.neuron)), None


def scan(I, P, Q, R, kappa, neuron, refractory: bool, pool: int = 1) -> tuple[torch.Tensor, ...]:
    """s, u (T, B, ...) and the state after the last step, one step at a time, gradients left to
    autograd.

    With `pool`, I is (T, B, H, W, C) and s what leaves the layer; without `refractory` no gradient
    passes through the feedback.
    """
    a_m, a_s, a_r, theta = neuron.constants(np.float64).tolist()
    s, u = [], []
    for I_t in I:
        u.append(kappa * (P - Q) - (R if refractory else R.detach()))
        own = _Step.apply(u[-1] - theta, neuron)
        P, Q = a_m * (P + I_t), a_s * (Q + I_t)
        R = a_r * (R + own) if refractory else a_r * (R + own).detach()
        if pool > 1:
            highest = torch.nn.functional.max_pool2d(u[-1].movedim(-1, 1), pool).movedim(1, -1)
            own = _Step.apply(highest - theta, neuron)
        s.append(own)
    return torch.stack(s), torch.stack(u), P, Q, R


def stepwise(net, weights, x: torch.Tensor) -> list[torch.Tensor]:
    """The whole network one time step at a time, each synapse with its own trace; returns the
    readouts, (T, B, C) each.

    Everything is left to autograd: through layers, time, refractory feedback and recurrent weights.
    """
    T, B = x.shape[:2]
    kinds = [type(layer).__name__ for layer in net.layers]
    slow = [torch.zeros(B, *_trace_shape(layer), dtype=torch.float64) for layer in net.layers]
    fast = [torch.zeros_like(z) for z in slow]
    feedback = [torch.zeros(B, *layer.current_shape, dtype=torch.float64) for layer in net.layers]
    readouts = [[] for _ in net.layers]
    for t in range(T):
        left = [x[t]]  # then what leaves each layer
        for l, (layer, kind, w) in enumerate(zip(net.layers, kinds, weights, strict=True)):
            n = layer.neuron
            p = slow[l] - fast[l]
            kappa = layer.kappa
            if kind == "Conv2d":
                u = (
                    torch.nn.functional.conv2d(p, w, stride=layer.stride, padding=layer.padding)
                    * kappa
                    - feedback[l]
                )
            else:
                u = kappa * (p @ (layer.matrix(w) if kind == "Recurrent" else w).T) - feedback[l]
            s = _Step.apply(u - n.threshold, n)
            out = s
            if kind == "Conv2d" and layer.pool > 1:
                out = _Step.apply(torch.nn.functional.max_pool2d(u, layer.pool) - n.threshold, n)
            read = [left[n + 1] for n in layer.spec.inputs]
            arriving = torch.cat(read if kind == "Conv2d" else [z.flatten(1) for z in read], dim=1)
            if kind == "Recurrent":
                arriving = torch.cat([arriving, s], dim=-1)
            slow[l] = math.exp(-1 / n.tau_mem) * (slow[l] + arriving)
            fast[l] = math.exp(-1 / n.tau_syn) * (fast[l] + arriving)
            feedback[l] = math.exp(-1 / n.tau_ref) * (feedback[l] + s)
            if kind == "Recurrent" and layer.outputs is not None:
                out = out[:, layer.outputs]
            readout = net.readouts[l]
            if hasattr(readout, "V"):
                readouts[l].append(out.flatten(1) @ readout.V.T * readout.scale)
            left.append(out)
    return [torch.stack(y) for y in readouts if y]


def _trace_shape(layer):
    kind = type(layer).__name__
    if kind == "Recurrent":
        return (layer.n_in + layer.n,)
    return (layer.n_in,) if kind == "Linear" else layer.input_shape
