"""Losses per time step, eq. (loss-real): l(f_w(x), r) = sum_t l_t(w), averaged over the mini-batch.

`local_loss` adds the losses of all readouts (DECOLLE: each layer's own error signal); `global_loss` takes the last readout
only (with gradient="bptt" the error reaches all layers from there); `spike_loss` compares the read-out neurons' own spikes
with target spike trains. `activity_loss` is a regulariser to add to any of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bisnn.checks import choice, number
from bisnn.network import Output

LOSSES = ("logistic", "squared", "smooth_l1")


def step_losses(y: Tensor, target: Tensor, loss: str) -> Tensor:
    """l_t of every time step and recording, (T, B), for readouts y (T, B, C).

    logistic: -log softmax(y)[r]; squared: sum_c (y_c - r_c)^2; smooth_l1: sum_c of Huber's loss with corner 1. The target is
    one for the whole recording, (B,) or (B, C), or one a time step, (T, B) or (T, B, C).
    """
    choice("loss", loss, LOSSES)
    T, B, C = y.shape
    if loss == "logistic":
        labels = _check_labels(target, T, B, C)
        return F.cross_entropy(y.flatten(0, 1), labels.reshape(-1), reduction="none").reshape(T, B)
    if not target.is_floating_point():
        raise ValueError(f"target: the {loss} loss takes real values; got {target.dtype}; use target.float()")
    if target.shape not in ((B, C), (T, B, C)):
        raise ValueError(f"target: must have shape (B, C) = ({B}, {C}) or (T, B, C) = ({T}, {B}, {C}); got {tuple(target.shape)}")
    target = target.to(y.dtype).expand(T, B, C)
    pairwise = F.mse_loss if loss == "squared" else F.smooth_l1_loss
    return pairwise(y, target, reduction="none").sum(-1)


def local_loss(
    output: Output,
    target: Tensor,
    loss: str = "logistic",
    *,
    over_time: str = "sum",
    burn_in: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    """Sum over all readouts of their losses, averaged over the batch.

    Args:
        output: what the network returned.
        target: labels (B,) or (T, B), or real targets (B, C) or (T, B, C).
        loss: "logistic", "squared" or "smooth_l1".
        over_time: "sum" as in eq. (loss-real), or "mean" over each recording's time steps that count.
        burn_in: number of first time steps that do not count.
        mask: (T, B), True where a time step counts; for recordings of different length, see `bisnn.pad`.

    >>> y = torch.zeros(100, 8, 2)  # a readout that has no opinion on two classes
    >>> output = Output((), (), (y,), None)
    >>> round(local_loss(output, torch.zeros(8, dtype=torch.int64), burn_in=10).item(), 3)  # 90 log 2
    62.383
    """
    readouts = [y for y in output.readouts if y is not None]
    if not readouts:
        raise ValueError("output: the network has no readout; got readout=None; give it one, or use spike_loss")
    losses = [_reduce(step_losses(y, target, loss), over_time, burn_in, mask) for y in readouts]
    return torch.stack(losses).sum()


def global_loss(
    output: Output,
    target: Tensor,
    loss: str = "logistic",
    *,
    over_time: str = "sum",
    burn_in: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    """The loss of the last readout alone; arguments as for `local_loss`."""
    last = Output(output.spikes, output.potentials, output.readouts[-1:], output.state)
    return local_loss(last, target, loss, over_time=over_time, burn_in=burn_in, mask=mask)


def spike_loss(
    output: Output,
    target: Tensor,
    *,
    over_time: str = "sum",
    burn_in: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    """Reference signals r_t for the read-out neurons themselves: l_t = sum_i (s_{i,t} - r_{i,t})^2.

    For spike trains that counts the spikes that are missing or too many. In local mode it teaches the last layer only.

    Args:
        output: what the network returned; the read-out neurons are its last layer's.
        target: reference signals, (T, B, ...) as the last layer's spikes; 0/1, or real-valued.
        over_time, burn_in, mask: as for `local_loss`.
    """
    s = output.spikes[-1]
    if target.shape != s.shape:
        raise ValueError(f"target: must have the shape of the last layer's spikes, {tuple(s.shape)}; got {tuple(target.shape)}")
    per_step = (s - target.to(s.dtype)).square().flatten(2).sum(-1)
    return _reduce(per_step, over_time, burn_in, mask)


def activity_loss(output: Output, low: float = 0.01, high: float = 0.5, *, mask: Tensor | None = None) -> Tensor:
    """Keeps neurons neither silent nor saturated: 0 while every firing rate lies in [low, high], in spikes per time step.

    Sum over layers of the mean over neurons of max(low - rate, 0)^2 + max(rate - high, 0)^2; a neuron's rate is taken over all
    time steps and recordings that count. Add it to a loss with a factor of your own.
    """
    number("low", low, least=0)
    if not low < high <= 1:
        raise ValueError(f"high: must lie above low={low!r} and be at most 1; got {high!r}")
    total = torch.zeros((), dtype=output.spikes[0].dtype, device=output.spikes[0].device)
    for s in output.spikes:
        T, B = s.shape[:2]
        weight = time_weights(T, B, 0, mask, s)
        rate = torch.einsum("tb,tbn->n", weight, s.flatten(2)) / weight.sum()
        total = total + (F.relu(low - rate).square() + F.relu(rate - high).square()).mean()
    return total


def _check_labels(target: Tensor, T: int, B: int, C: int) -> Tensor:
    if target.dtype not in (torch.int64, torch.int32, torch.uint8):
        raise ValueError(f"target: the logistic loss takes class labels as int64; got {target.dtype}; use target.long()")
    if target.shape not in ((B,), (T, B)):
        raise ValueError(f"target: labels must have shape (B,) = ({B},) or (T, B) = ({T}, {B}); got {tuple(target.shape)}")
    if not torch.compiler.is_compiling():  # values are not known there
        low, high = int(target.min()), int(target.max())
        if low < 0 or high >= C:
            raise ValueError(
                f"target: labels must lie in 0..{C - 1} for {C} outputs; got {low if low < 0 else high}; check readout="
            )
    return target.long().expand(T, B)


def time_weights(T: int, B: int, burn_in: int, mask: Tensor | None, like: Tensor) -> Tensor:
    """1 where a time step counts, else 0: (T, B)."""
    if isinstance(burn_in, bool) or not isinstance(burn_in, int) or not 0 <= burn_in < T:
        raise ValueError(f"burn_in: must be a whole number from 0 to T - 1 = {T - 1}, or no time step is left; got {burn_in!r}")
    if mask is None:
        weight = like.new_ones(T, B)
    else:
        if mask.shape != (T, B) or mask.dtype != torch.bool:
            raise ValueError(f"mask: must be a bool tensor (T, B) = ({T}, {B}); got {mask.dtype} of {tuple(mask.shape)}")
        weight = mask.to(like.dtype)
    return torch.cat([torch.zeros_like(weight[:burn_in]), weight[burn_in:]])


def _reduce(per_step: Tensor, over_time: str, burn_in: int, mask: Tensor | None) -> Tensor:
    """Sum or mean over the time steps that count, then the mean over the batch."""
    choice("over_time", over_time, ("sum", "mean"))
    T, B = per_step.shape
    weight = time_weights(T, B, burn_in, mask, per_step)
    total = (weight * per_step).sum(0)  # (B,)
    if over_time == "mean":
        steps = weight.sum(0)
        total = total / steps.clamp(min=1)  # a recording that ends within the burn-in counts as zero
    return total.mean()
