"""What keeps a GPU busy: copies that wait for nothing, and a training step, or the pass of one, as
one CUDA graph.

Python hands out the kernels of a training step more slowly than a GPU runs them, so it must never
wait, and better hand out few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

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


class Counting(Protocol):
    """What a recorded function counts in Python: a rule's draws, steps and pending blocks."""

    generation: int

    def refresh(self) -> None: ...
    def counters(self) -> tuple[int, int, int]: ...
    def advance(self, draws: int, steps: int, blocks: int) -> None: ...


class _RecordedStep(NamedTuple):
    """A step, or its pass, over inputs of certain shapes, all of it at fixed places in memory."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    output: Tensor
    gradients: list[Tensor | None]  # of the parameters
    counted: tuple[int, ...]  # draws, steps and blocks of the rule in one run


class Graphs:
    """The CUDA graphs of one function, by the shapes of its inputs. They share their memory, as one
    runs at a time.

    Args:
        parameters: what the function differentiates by; their values change in place.
        rule: whose draws and updates are part of the function; None where they are not.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rule: Counting | None = None):
        self._parameters, self._rule = parameters, rule
        # None: has run once, so that all its kernels are compiled
        self._graphs: dict[Any, _RecordedStep | None] = {}
        self._generation = 0 if rule is None else rule.generation
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, function: Callable[..., Tensor], *inputs: Tensor, record: bool = True) -> Tensor:
        """function(*inputs), which adds to the gradients of the parameters, or updates them.

        It is recorded at the second call with inputs of such shapes, or at the first after it that
        says `record`, and replayed from then on. A graph keeps its memory: what has no graph takes
        its own beside that.

        What the function does may depend on its inputs and on values that stay at their place in
        the GPU's memory, and it must not wait for the GPU. Give the same one every time: it is not
        kept, so that its owner is not. The output holds until the next call.
        """
        key = tuple((x.shape, x.dtype) for x in inputs)
        if self._rule is not None and self._rule.generation != self._generation:
            self._graphs, self._generation = {}, self._rule.generation  # its state has moved
        recorded = self._graphs.get(key)
        if recorded is None and (key not in self._graphs or not record):
            self._graphs[key] = None
            return function(*inputs)
        if self._rule is not None:
            self._rule.refresh()
        if recorded is None:
            recorded = self._graphs[key] = self._record(function, inputs)
        for fixed, x in zip(recorded.inputs, inputs, strict=True):
            fixed.copy_(x)
        recorded.graph.replay()
        if self._rule is not None:
            self._rule.advance(*recorded.counted)
        for p, g in zip(self._parameters, recorded.gradients, strict=True):
            if g is not None:
                # Copies: the next replay, of any graph, writes over g
                p.grad = g.clone() if p.grad is None else p.grad + g
        return recorded.output

    def _record(self, function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> _RecordedStep:
        """The function as a graph, which has not run yet and has counted nothing."""
        stream, before = torch.cuda.current_stream(), [p.grad for p in self._parameters]
        counters = (0, 0, 0) if self._rule is None else self._rule.counters()
        for p in self._parameters:
            p.grad = None  # so that the graph writes its own
        if self._rule is not None:
            self._rule.advance(0, 0, -counters[2])  # no gradients, no pending blocks
        graph, fixed = torch.cuda.CUDAGraph(), [x.clone() for x in inputs]
        try:
            with torch.cuda.graph(graph, self._pool):
                output = function(*fixed)
            gradients = [p.grad for p in self._parameters]
        finally:
            torch.cuda.set_stream(stream)  # an error on the GPU may leave another one
            for p, g in zip(self._parameters, before, strict=True):
                p.grad = g
            counted = self._take_back(counters)
        return _RecordedStep(graph, fixed, output, gradients, counted)

    def _take_back(self, before: tuple[int, ...]) -> tuple[int, ...]:
        """What recording has counted, which is taken back: only a run counts."""
        if self._rule is None:
            return ()
        draws, steps, blocks = self._rule.counters()
        counted = (draws - before[0], steps - before[1], blocks)
        self._rule.advance(-counted[0], -counted[1], before[2] - blocks)
        return counted
