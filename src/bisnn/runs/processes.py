"""The processes of a run: one, or those that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bisnn.errors import Lost

# That a process waits for the others; the longest they are apart is a validation by the first one
MINUTES = 10.0


@contextmanager
def _answering() -> Iterator[None]:
    """Another process that ended, or does not answer, in one sentence."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        why = "does not answer" if "timed out" in str(error).lower() else "ended"
        raise Lost(
            f"another process of this run {why} (limit: {MINUTES:g} minutes); see what it printed; "
            "`bisnn resume` goes on from the "
            "last checkpoint, and `torchrun --standalone --max-restarts 3` does so by itself"
        ) from error


def _join(backend: str) -> None:
    """Meet the other processes that torchrun started."""
    limit = timedelta(minutes=MINUTES)
    store, rank, count = next(iter(dist.rendezvous("env://", timeout=limit)))
    # torchrun keeps one store through its restarts, where new processes would find the addresses of
    # dead ones and wait for them.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=limit)


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
        if kind == "cuda":
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

    def total(self, values: Tensor) -> Tensor:
        """Sum over the processes, on their device where there are several."""
        if dist.is_initialized():
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

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
