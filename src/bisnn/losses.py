"""Losses per time step, eq. (loss-real): l(f_w(x), r) = sum_t l_t(w), averaged over the mini-batch.

`local_loss` adds the losses of all readouts (DECOLLE: each layer's own error signal); `global_loss`
takes the last readout only (with gradient="bptt" the error reaches all layers from there);
`spike_loss` compares the read-out neurons' own spikes with target spike trains. `activity_loss` is
a regulariser to add to any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bisnn.checks import choice, number, positive_int, tensor
from bisnn.kernels.scan import spike
from bisnn.network import Network, Output

LOSSES = ("logistic", "squared", "smooth_l1")


def step_losses(y: Tensor, target: Tensor, loss: str, count: Tensor | None = None) -> Tensor:
    """l_t of every time step and recording, (T, B), for readouts y (T, B, C).

    logistic: -log softmax(y)[r]; squared: sum_c (y_c - r_c)^2; smooth_l1: sum_c of Huber's loss
        with corner 1. The target is
    one for the whole recording, (B,) or (B, C), or one per time step, (T, B) or (T, B, C). Where
    `count` (T, B) is 0, labels may be anything.
    """
    choice("loss", loss, LOSSES)
    T, B, C = y.shape
    _check_shape(target, loss, T, B, C)
    if loss == "logistic":
        labels = _check_labels(target.long().expand(T, B), C, count)
        return F.cross_entropy(y.flatten(0, 1), labels.reshape(-1), reduction="none").reshape(T, B)
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
        over_time: "sum" as in eq. (loss-real), or "mean" over each recording's time steps that
            count.
        burn_in: number of first time steps that do not count (of this output: for a recording in
            chunks use the mask).
        mask: (T, B), True where a time step counts; for recordings of different length, see
            `bisnn.pad`.

    >>> y = torch.zeros(100, 8, 2)  # a readout that has no opinion on two classes
    >>> output = Output((), (), (y,), None)
    >>> labels = torch.zeros(8, dtype=torch.int64)
    >>> round(local_loss(output, labels, burn_in=10).item(), 3)  # 90 log 2
    62.383
    """
    return _readout_loss(output.readouts, target, loss, over_time, burn_in, mask)


def global_loss(
    output: Output,
    target: Tensor,
    loss: str = "logistic",
    *,
    over_time: str = "sum",
    burn_in: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    """The loss of the last readout alone.

    Args:
        output, target, loss, over_time, burn_in, mask: as for `local_loss`.
    """
    return _readout_loss(output.readouts[-1:], target, loss, over_time, burn_in, mask)


def _readout_loss(
    readouts: Sequence[Tensor | None],
    target: Tensor,
    loss: str,
    over_time: str,
    burn_in: int,
    mask: Tensor | None,
) -> Tensor:
    given = _existing(readouts)
    choice("loss", loss, LOSSES)
    choice("over_time", over_time, ("sum", "mean"))
    _check_shape(target, loss, *given[0].shape)
    total = _per_recording(given, target, loss, burn_in, mask)
    if over_time == "mean":
        total = total / _steps(len(given[0]), burn_in, mask)
    return total.mean(1).sum()


def _existing(readouts: Sequence[Tensor | None]) -> list[Tensor]:
    given = [y for y in readouts if y is not None]
    if not given:
        raise ValueError(
            "output: the network has no readout; got readout=None; give it one, or use spike_loss"
        )
    return given


def _per_recording(
    readouts: Sequence[Tensor], target: Tensor, loss: str, burn_in: int, mask: Tensor | None
) -> Tensor:
    """The losses of n readouts, summed over the time steps that count: (n, B)."""
    y, n = torch.cat(list(readouts), dim=1), len(readouts)  # (T, n B, C): all readouts in one go
    T, B = readouts[0].shape[:2]
    per_step = target.ndim == (2 if loss == "logistic" else 3)
    target = (
        target.repeat(1, n, *(1,) * (target.ndim - 2))
        if per_step
        else target.repeat(n, *(1,) * (target.ndim - 1))
    )
    if mask is None:
        burn_in = _checked_burn_in(burn_in, T)
        losses = step_losses(y[burn_in:], target[burn_in:] if per_step else target, loss)
    else:
        count = time_weights(T, B, burn_in, mask, y).repeat(1, n)
        # NaN where nothing counts stays out
        losses = torch.where(count > 0, step_losses(y, target, loss, count), 0)
    return losses.sum(0).reshape(n, B)


def _steps(T: int, burn_in: int, mask: Tensor | None) -> int | Tensor:
    """Time steps of each recording that count; 1 where it ends in the burn-in, with loss zero."""
    return T - burn_in if mask is None else mask[burn_in:].sum(0).clamp(min=1)


def chunked_backward(
    net: nn.Module,
    x: Tensor,
    target: Tensor,
    chunk: int,
    loss: str = "logistic",
    *,
    over_time: str = "sum",
    burn_in: int = 0,
    mask: Tensor | None = None,
    factor: float = 1.0,
    seen: Sequence[Tensor] | None = None,
    each: Callable[[Output], object] | None = None,
) -> Tensor:
    """`local_loss(net(x), target, ...).backward()` in chunks: memory depends on these, not on T.

    The gradient is that of the whole recording, because layers carry traces of their input from
    chunk to chunk. With gradient="bptt" it is not: errors end at the borders, which is truncated
    BPTT. Call it inside `rule.sampled()`; several chunks belong into one block.

    Args:
        net: the network, or a DistributedDataParallel of it.
        x: recordings (T, B, ...); bool takes least memory.
        chunk: time steps at a time.
        target, loss, over_time, burn_in, mask: as for `local_loss`, over the whole recording.
        factor: on the loss, for its gradient only.
        seen: dropout before the readouts, as for `Network.forward`.
        each: called with every chunk's output, before it is let go.

    Returns the loss, without a graph.

    >>> import bisnn
    >>> net = bisnn.Network(bisnn.Linear(20, 64), readout=2)
    >>> rule = bisnn.STBiSNN(net.parameters(), lr=0.1)
    >>> x, labels = torch.rand(1000, 8, 20) < 0.1, torch.zeros(8, dtype=torch.int64)
    >>> with rule.sampled():
    ...     total = chunked_backward(net, x, labels, chunk=100)
    >>> rule.step()
    """
    positive_int("chunk", chunk)
    choice("loss", loss, LOSSES)
    choice("over_time", over_time, ("sum", "mean"))
    module = _network_in(net)
    module.checked(x[:1])
    T, B = x.shape[:2]
    _checked_burn_in(burn_in, T)
    norm = _steps(T, burn_in, mask) if over_time == "mean" else 1
    state, total = module.initial_state(B), module.layers[0].kappa.new_zeros(())
    for start in range(0, T, chunk):
        part = slice(start, min(start + chunk, T))
        skip = min(max(burn_in - start, 0), part.stop - start)  # all: it only moves the state
        with torch.set_grad_enabled(skip < part.stop - start):
            output = net(x[part], state, seen=seen)
            state = tuple(layer.detach() for layer in output.state)
            if skip < part.stop - start:
                total += _part_backward(output, part, skip, target, loss, mask, norm, factor)
        if each is not None:
            each(output)
        del output  # or this chunk's tensors would live on beside the next one's
    return total


def _network_in(net: nn.Module) -> Network:
    """The network itself, of which `net` may be a DistributedDataParallel."""
    module = getattr(net, "module", net)
    if not isinstance(module, Network):
        raise ValueError(
            "net: must be a bisnn.Network, or one in DistributedDataParallel; got "
            f"{type(net).__name__}"
        )
    return module


def _part_backward(
    output: Output,
    part: slice,
    skip: int,
    target: Tensor,
    loss: str,
    mask: Tensor | None,
    norm: Tensor | int,
    factor: float,
) -> Tensor:
    """The loss of a part of the time steps, less `skip` at its start, after its backward pass."""
    given = _existing(output.readouts)
    piece = target[part] if target.ndim == (2 if loss == "logistic" else 3) else target
    _check_shape(piece, loss, *given[0].shape)
    sums = _per_recording(given, piece, loss, skip, None if mask is None else mask[part])
    value = (sums / norm).mean(1).sum()
    (value * factor).backward()
    return value.detach()


def spike_loss(
    output: Output,
    target: Tensor,
    *,
    over_time: str = "sum",
    burn_in: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    """Reference signals r_t for the read-out neurons themselves: l_t = sum_i (s_{i,t} - r_{i,t})^2.

    For spike trains that counts the spikes that are missing or too many. In local mode it teaches
    the last layer only.

    Args:
        output: what the network returned; the read-out neurons are its last layer's.
        target: reference signals, (T, B, ...) as the last layer's spikes; 0/1, or real-valued.
        over_time, burn_in, mask: as for `local_loss`.
    """
    s = output.spikes[-1]
    tensor("target", target)
    if target.shape != s.shape:
        raise ValueError(
            f"target: must have the shape of the last layer's spikes, {tuple(s.shape)}; got "
            f"{tuple(target.shape)}; reshape it"
        )
    per_step = (s - target.to(s.dtype)).square().flatten(2).sum(-1)
    T, B = per_step.shape
    return _reduce(per_step, over_time, time_weights(T, B, burn_in, mask, s))


def activity_loss(
    net: Network,
    output: Output,
    low: float = 0.01,
    high: float = 0.5,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """Keeps neurons neither silent nor saturated: 0 while every firing rate lies in [low, high], in
    spikes per time step.

    Sum over layers of the mean over neurons of max(low - rate, 0)^2 + max(rate - high, 0)^2. All
    neurons count, also those behind a pooling or that are no outputs; a neuron's rate is taken over
    all time steps and recordings that count. Add it to a loss with a factor of your own.

    Args:
        net: the network.
        output: what it returned.
        low, high: the range of firing rates that costs nothing.
        mask: (T, B), True where a time step counts.
    """
    number("low", low, least=0)
    if not low < number("high", high) <= 1:
        raise ValueError(
            f"high: must lie above low={low!r} and be at most 1; got {high!r}; give e.g. 0.5"
        )
    if not output.potentials:
        raise ValueError(
            "output: has no potentials, which this loss is of; got that of net(x, "
            "potentials=False); leave that out"
        )
    total = output.potentials[0].new_zeros(())
    for layer, u in zip(net.layers, output.potentials, strict=True):
        s = spike(u, layer.constants[3], layer.neuron.surrogate, layer.neuron.slope).flatten(2)
        count = time_weights(s.shape[0], s.shape[1], 0, mask, s)
        if mask is not None and not torch.compiler.is_compiling() and not count.any():
            raise ValueError(
                "mask: must be True somewhere; got all False; check the recordings' lengths"
            )
        rate = torch.einsum("tb,tbn->n", count, s) / count.sum()
        total = total + (F.relu(low - rate).square() + F.relu(rate - high).square()).mean()
    return total


def _check_shape(target: Tensor, loss: str, T: int, B: int, C: int) -> None:
    """A target's type and shape; sizes are compared singly: they may be a compiler's symbols."""
    tensor("target", target)
    if loss == "logistic":
        if target.dtype not in (torch.int64, torch.int32, torch.uint8):
            raise ValueError(
                f"target: the logistic loss takes class labels as int64; got {target.dtype}; use "
                "target.long()"
            )
        ours = target.ndim in (1, 2) and target.shape[-1] == B
        if not ours or (target.ndim == 2 and target.shape[0] != T):
            raise ValueError(
                f"target: labels must have shape (B,) = ({B},) or (T, B) = ({T}, {B}); got "
                f"{tuple(target.shape)}; reshape them"
            )
        return
    if not target.is_floating_point():
        raise ValueError(
            f"target: the {loss} loss takes real values; got {target.dtype}; use target.float()"
        )
    wrong = target.ndim not in (2, 3) or target.shape[-1] != C or target.shape[-2] != B
    if wrong or (target.ndim == 3 and target.shape[0] != T):
        raise ValueError(
            f"target: must have shape (B, C) = ({B}, {C}) or (T, B, C) = ({T}, {B}, {C}); got "
            f"{tuple(target.shape)}; reshape it"
        )


def _check_labels(target: Tensor, C: int, count: Tensor | None) -> Tensor:
    if count is not None:
        target = torch.where(count > 0, target, 0)
    if torch.compiler.is_compiling():
        return target  # values are not known there
    rule = f"target: labels must lie in 0..{C - 1} for {C} outputs"
    if target.device.type != "cpu":  # looking would stall the device: it looks itself
        torch._assert_async(((target >= 0) & (target < C)).all(), rule)
        return target
    low, high = int(target.min()), int(target.max())
    if low < 0 or high >= C:
        raise ValueError(f"{rule}; got {low if low < 0 else high}; check readout=")
    return target


def _checked_burn_in(burn_in: int, T: int) -> int:
    if isinstance(burn_in, bool) or not isinstance(burn_in, int) or not 0 <= burn_in < T:
        raise ValueError(
            f"burn_in: must be a whole number from 0 to T - 1 = {T - 1}, or no time step is left; "
            f"got {burn_in!r}; lower it"
        )
    return burn_in


def time_weights(T: int, B: int, burn_in: int, mask: Tensor | None, like: Tensor) -> Tensor:
    """1 where a time step counts, else 0: (T, B)."""
    _checked_burn_in(burn_in, T)
    if mask is None:
        count = like.new_ones(T, B)
    else:
        tensor("mask", mask)
        if mask.shape != (T, B) or mask.dtype != torch.bool:
            raise ValueError(
                f"mask: must be a bool tensor (T, B) = ({T}, {B}); got {mask.dtype} of "
                f"{tuple(mask.shape)}; bisnn.pad makes one"
            )
        count = mask.to(like.dtype)
    return torch.cat([torch.zeros_like(count[:burn_in]), count[burn_in:]])


def _reduce(per_step: Tensor, over_time: str, count: Tensor) -> Tensor:
    """Sum or mean over the time steps that count, then the mean over the batch."""
    choice("over_time", over_time, ("sum", "mean"))
    # (B,); whatever stands where nothing counts, NaN too, stays out
    total = torch.where(count > 0, per_step, 0).sum(0)
    if over_time == "mean":
        # A recording that ends within the burn-in counts as zero
        total = total / count.sum(0).clamp(min=1)
    return total.mean()
