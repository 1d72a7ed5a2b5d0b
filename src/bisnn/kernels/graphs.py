"""What keeps a GPU busy: copies that wait for nothing, and a pass over a mini-batch as one CUDA
graph.

Python hands out the kernels of a training step more slowly than a GPU runs them, so it must never
wait, and better hand out few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


def to_device(x: Tensor, device: torch.device | str) -> Tensor:
    """x on a device; to a GPU through pinned memory, so that the CPU does not wait for it."""
    return (
        x.pin_memory().to(device, non_blocking=True)
        if torch.device(device).type == "cuda" and not x.is_cuda
        else x.to(device)
    )


class Arriving:
    """Numbers on their way from a device to the CPU."""

    def __init__(self, values: Tensor):
        self._values = values.to("cpu", non_blocking=True)
        self._arrived = torch.cuda.current_stream().record_event() if values.is_cuda else None

    def values(self) -> Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values


class _RecordedStep(NamedTuple):
    """A pass over inputs of certain shapes, all of it at fixed places in memory."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    output: Tensor
    gradients: list[Tensor | None]  # of the parameters


class Graphs:
    """The CUDA graphs of one function, by the shapes of its inputs. They share their memory, as one
    runs at a time.

    Args:
        parameters: what the function differentiates by; their values change in place.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        self._parameters = parameters
        # None: has run once, so that all its kernels are compiled
        self._graphs: dict[Any, _RecordedStep | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, function: Callable[..., Tensor], *inputs: Tensor, record: bool = True) -> Tensor:
        """function(*inputs), which adds to the gradients of the parameters.

        It is recorded at the second call with inputs of such shapes, or at the first after it that
        says `record`, and replayed from then on. A graph keeps its memory: what has no graph takes
        its own beside that.

        What the function does may depend on its inputs and on values that stay at their place in
        the GPU's memory, and it must not wait for the GPU. Give the same one every time: it is not
        kept, so that its owner is not. The output holds until the next call.
        """
        key = tuple((x.shape, x.dtype) for x in inputs)
        recorded = self._graphs.get(key)
        if recorded is None:
            if key not in self._graphs or not record:
                self._graphs[key] = None
                return function(*inputs)
            recorded = self._graphs[key] = self._record(function, inputs)
        for fixed, x in zip(recorded.inputs, inputs, strict=True):
            fixed.copy_(x)
        recorded.graph.replay()
        for p, g in zip(self._parameters, recorded.gradients, strict=True):
            if g is not None:
                # Copies: the next replay, of any graph, writes over g
                p.grad = g.clone() if p.grad is None else p.grad + g
        return recorded.output

    def _record(self, function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> _RecordedStep:
        """The function as a graph, which has not run yet."""
        stream, before = torch.cuda.current_stream(), [p.grad for p in self._parameters]
        for p in self._parameters:
            p.grad = None  # so that the graph writes its own
        graph, fixed = torch.cuda.CUDAGraph(), [x.clone() for x in inputs]
        try:
            with torch.cuda.graph(graph, self._pool):
                output = function(*fixed)
            return _RecordedStep(graph, fixed, output, [p.grad for p in self._parameters])
        finally:
            torch.cuda.set_stream(stream)  # an error on the GPU may leave another one
            for p, g in zip(self._parameters, before, strict=True):
                p.grad = g
