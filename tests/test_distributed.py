"""Rules under DistributedDataParallel: two processes with half of the batch each equal one process with all of it."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from bisnn import BayesBiSNN, STBiSNN, local_loss
from conftest import spikes
from networks import build

RULES = {
    "st": lambda p: STBiSNN(p, lr=0.5),
    "bayes": lambda p: BayesBiSNN(p, lr=0.3, temperature=1e-3, precondition="momentum"),
}


def train(name, net, model, x, labels):
    rule = RULES[name](net.parameters())
    for step in range(6):
        for _ in range(1 + step % 2):  # also several blocks before a step
            with rule.sampled():
                local_loss(model(x), labels).backward()
        rule.step()
    return [p.detach().clone() for p in net.parameters()]


def data():
    return spikes(20, 6, 6, seed=5, dtype=torch.float64), torch.arange(6) % 3


def worker(rank, name, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    x, labels = data()
    net = build("deep", 3)
    half = slice(3 * rank, 3 * rank + 3)
    torch.save(train(name, net, DistributedDataParallel(net), x[:, half], labels[half]), f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # as `cli.main` does, and for its reason


@pytest.mark.skipif(not torch.distributed.is_available() or sys.platform != "linux", reason="needs torch.distributed with gloo")
@pytest.mark.parametrize("name", RULES)
def test_two_processes_equal_one(name, tmp_path):
    mp.spawn(worker, (name, str(tmp_path)), nprocs=2)
    net = build("deep", 3)
    expected = train(name, net, net, *data())
    for rank in range(2):
        for ours, theirs in zip(torch.load(tmp_path / f"{rank}.pt"), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
