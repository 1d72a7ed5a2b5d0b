"""The processes of a run: one, or those that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bisnn.errors import Lost
from bisnn.kernels.graphs import Arriving, to_device

# That a process waits for one that is alive and silent: they are never further apart than a step,
# a share of the validation or a checkpoint. A death is noticed at once, by the closed connection.
MINUTES = 10.0


@contextmanager
def _answering() -> Iterator[None]:
    """Another process that ended, or does not answer, in one sentence."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        silent = f"has not answered for {MINUTES:g} minutes"
        why = silent if "timed out" in str(error).lower() else "ended"
        raise Lost(f"another process of this run {why}; {_way_on()}") from error


def _way_on() -> str:
    """What comes after the loss of a process: one of torchrun's restarts, or the user's turn."""
    done, allowed = (
        int(os.environ.get(f"TORCHELASTIC_{name}", "0"))
        for name in ("RESTART_COUNT", "MAX_RESTARTS")
    )
    if done < allowed:
        return (
            f"torchrun starts all of them again (restart {done + 1} of {allowed}), to go on from "
            "the last checkpoint"
        )
    none_left = f"no restart is left of {allowed}; " if allowed else ""
    return (
        f"{none_left}see what it printed; `bisnn resume`, by as many processes, goes on from the "
        "last checkpoint, and `torchrun --standalone --max-restarts 3` does so by itself"
    )


def _join(backend: str) -> None:
    """Meet the other processes that torchrun started."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(minutes=MINUTES)
    store, rank, count = next(iter(rendezvous("env://", timeout=limit)))
    # torchrun keeps one store through its restarts, where new processes would find the addresses of
    # dead ones and wait for them.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=limit)


class Total:
    """Sums over the processes, and flags that any of them raised, on their way to the CPU.

    Flags ride on the message of the sums: a message of their own would cost as much again.
    """

    def __init__(self, values: Tensor, flags: list[bool]):
        self._flags, self._shared = flags, dist.is_initialized()
        if self._shared:
            raised = torch.tensor(flags, dtype=values.dtype)
            values = torch.cat([values, to_device(raised, values.device)])
            dist.all_reduce(values)
        self._arriving = Arriving(values)

    def values(self) -> tuple[Tensor, list[bool]]:
        values = self._arriving.values()
        if not self._shared:
            return values, self._flags
        values, raised = values.tensor_split([-len(self._flags)])
        return values, raised.bool().tolist()


class Processes:
    """This process among those of its run."""

    def __init__(self, rank: int, count: int, device: torch.device):
        self.rank, self.count, self.device = rank, count, device

    @classmethod
    @contextmanager
    def joined(cls, kind: str) -> Iterator[Processes]:
        """One process, or a process group (gloo on CPUs, nccl on GPUs) where torchrun says so."""
        if kind == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                'train.device: "cuda" needs a GPU that PyTorch can use, and there is none; '
                "use --set train.device=cpu"
            )
        device = torch.device("cpu")
        if kind == "cuda":
            device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        if "WORLD_SIZE" not in os.environ:  # torchrun sets it
            yield cls(0, 1, device)
            return
        with _answering():
            _join("nccl" if kind == "cuda" else "gloo")
            try:
                yield cls(dist.get_rank(), dist.get_world_size(), device)
                # All leave together: a process that ends while another still talks to it can crash
                # on the way out
                dist.barrier()
            finally:
                dist.destroy_process_group()

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Let every process have the sum of their gradients: one message for all parameters."""
        if not dist.is_initialized():
            return
        reached = [(p, p.grad) for p in parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for _, g in reached])
        dist.all_reduce(flat)
        for (p, _), total in zip(reached, flat.split([p.numel() for p, _ in reached]), strict=True):
            p.grad = total.view_as(p)

    def gather(self, values: list[Any]) -> list[Any]:
        """The values of all processes, in their order."""
        if not dist.is_initialized():
            return values
        parts: list[Any] = [None] * self.count
        dist.all_gather_object(parts, values)
        return [value for part in parts for value in part]

    def first(self, function: Callable[[], Any]) -> Any:
        """What the function returns, or raises, on the first process, on all of them."""
        if not dist.is_initialized():
            return function()
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = function()
            except Exception as error:
                error.from_first = True  # type: ignore[attr-defined]  # so that only one process prints it
                outcome[1] = error
        dist.broadcast_object_list(
            outcome, device=self.device if self.device.type == "cuda" else None
        )
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]
