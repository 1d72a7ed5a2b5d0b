"""A training step as one function: on a GPU one CUDA graph, from the draw to the update."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bisnn.checks import positive_int
from bisnn.kernels.graphs import Graphs
from bisnn.optimizer import Rule
from bisnn.realisation import is_spikes


class CompiledStep:
    """What `compiled` returns: a training step as one function.

    Args:
        net, rule, loss, samples: as for `compiled`.
    """

    def __init__(
        self, net: Callable[..., Any], rule: Rule, loss: Callable[..., Tensor], samples: int
    ):
        self.net, self.rule, self.loss, self.samples = net, rule, loss, samples
        self._parameters = [p for group in rule.param_groups for p in group["params"]]
        self.eager_because: str | None = None  # why nothing is recorded, or None
        if any(p.device.type != "cuda" for p in self._parameters):
            self.eager_because = "the parameters are not on a GPU"
        elif not rule.capturable:
            self.eager_because = f"{type(rule).__name__} does not say that it is capturable"
        self._graphs = (
            {update: Graphs(self._parameters, rule) for update in (True, False)}
            if self.eager_because is None
            else {}
        )

    def __call__(self, x: Tensor, *targets: Tensor) -> Tensor:
        """Update the weights from one mini-batch, and the blocks that were accumulated before it;
        return its loss, the mean over the samples.

        Args:
            x: what the network takes.
            targets: what the loss takes beside the network's output.
        """
        if self.rule.pending:  # the graph of a whole step knows of no gradients before it
            loss = self.accumulate(x, *targets)
            self.rule.step()
            return loss
        return self._run(True, x, targets)

    def accumulate(self, x: Tensor, *targets: Tensor) -> Tensor:
        """Add the gradients of one mini-batch to those of the coming step, which averages.

        Args:
            x, targets: as for a step.
        """
        return self._run(False, x, targets)

    def _run(self, update: bool, x: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        if self.eager_because is not None:
            return self._step(update, x, *targets)
        # A graph cannot look at values: what is known to be spikes is known by its type
        x = x.bool() if x.dtype != torch.bool and is_spikes(x) else x
        before = self.rule.counters()
        try:
            function = self._whole if update else self._pass
            return self._graphs[update].run(function, x, *targets).clone()
        except RuntimeError as error:
            if self.rule.counters() != before or "captur" not in str(error):
                raise
            reason = str(error).strip().splitlines()[0]
            self.eager_because = f"the step cannot be recorded ({reason})"
            self._graphs = {}
            warnings.warn(
                f"compiled: {self.eager_because}; it runs operation by operation; a loss that is "
                "to be recorded must not read values from the GPU, as item() and print() do",
                stacklevel=3,
            )
            return self._step(update, x, *targets)

    def _step(self, update: bool, x: Tensor, *targets: Tensor) -> Tensor:
        losses = []
        for _ in range(self.samples):
            with self.rule.sampled():
                loss = self.loss(self.net(x), *targets)
                loss.backward()
            losses.append(loss.detach())
        if update:
            self.rule.step()
        return torch.stack(losses).mean()

    def _whole(self, *inputs: Tensor) -> Tensor:
        return self._step(True, *inputs)

    def _pass(self, *inputs: Tensor) -> Tensor:
        return self._step(False, *inputs)


def compiled(
    net: Callable[..., Any], rule: Rule, loss: Callable[..., Tensor], *, samples: int = 1
) -> CompiledStep:
    """A training step as a function of a mini-batch: `step = compiled(net, rule, loss)`, then
    `step(x, y)` draws weights, runs forward and backward, and updates.

    On a GPU the whole of it is recorded as one CUDA graph when inputs of a shape come for the
    second time, and replayed from then on: the same bits as operation by operation, without
    Python's time between them. Learning rates, temperatures and annealing may change between
    steps, and the rule's `state_dict` is the same. Elsewhere, for a rule that is not `capturable`,
    and where a loss cannot be recorded (a warning says so), it runs operation by operation;
    `step.eager_because` says why.

    Args:
        net: any module, or a function of its inputs that calls it: one that leaves the
            potentials out, `functools.partial(net, potentials=False)`, takes less memory on a GPU.
        rule: of its parameters.
        loss: `loss(net(x), *targets)`, a number to differentiate; on a GPU it must not read values.
        samples: realisations of the weights per step, whose gradients are averaged.

    >>> import bisnn
    >>> net = bisnn.Network(bisnn.Linear(20, 32), readout=2, neuron=bisnn.SRM(threshold=0.05))
    >>> step = compiled(net, bisnn.STBiSNN(net.parameters(), lr=0.5), bisnn.local_loss)
    >>> x, y = torch.ones(10, 4, 20, dtype=torch.bool), torch.ones(4, dtype=torch.int64)
    >>> losses = [float(step(x, y)) for _ in range(20)]
    >>> losses[-1] < losses[0]
    True
    """
    if not isinstance(rule, Rule):
        raise ValueError(
            f"rule: must be a rule such as bisnn.STBiSNN; got a {type(rule).__name__}; make one of "
            "net.parameters()"
        )
    return CompiledStep(net, rule, loss, positive_int("samples", samples))
