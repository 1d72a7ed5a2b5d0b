"""Several processes: rules under DistributedDataParallel equal one process; a death is survived."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from bisnn import BayesBiSNN, STBiSNN, local_loss
from conftest import spikes
from networks import build
from runs import files, small

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
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    x, labels = data()
    net = build("deep", 3)
    half = slice(3 * rank, 3 * rank + 3)
    torch.save(
        train(name, net, DistributedDataParallel(net), x[:, half], labels[half]),
        f"{folder}/{rank}.pt",
    )
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # as `cli.main` does, and for its reason


needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform != "linux",
    reason="needs torch.distributed with gloo",
)


@needs_gloo
@pytest.mark.parametrize("name", RULES)
def test_two_processes_equal_one(name, tmp_path):
    mp.spawn(worker, (name, str(tmp_path)), nprocs=2)
    net = build("deep", 3)
    expected = train(name, net, net, *data())
    for rank in range(2):
        for ours, theirs in zip(torch.load(tmp_path / f"{rank}.pt"), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


# `bisnn train` whose worker RANK is killed once, by SIGKILL, after some checkpoints.
KILLED_ONCE = """
import os, signal, sys
from bisnn import cli
from bisnn.runs import training

update, (victim, step) = training.Training.update, map(int, sys.argv[1:3])
del sys.argv[1:3]

def killed(self):
    here = (self.step, int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"])
    if here == (step, victim, "0"):
        # torchrun may name the other worker's end, which comes of it
        print("killed now", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self)

training.Training.update = killed
cli.main()
"""
NOBODY = -1


def train_under_torchrun(tmp_path, out, victim, step=6, restarts=1):
    (tmp_path / "killed_once.py").write_text(KILLED_ONCE)
    (tmp_path / "small.toml").write_text(small().to_toml())
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        f"--max-restarts={restarts}",
    ]
    command += [
        tmp_path / "killed_once.py",
        str(victim),
        str(step),
        "train",
        tmp_path / "small.toml",
        "--out",
        out,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--no-report"], env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.slow
@needs_gloo
@pytest.mark.parametrize(("victim", "step"), [(1, 6), (0, 6), (1, 0)])
def test_a_worker_group_that_torchrun_restarts_goes_on_to_the_same_bits(tmp_path, victim, step):
    """Whichever worker dies, in the second epoch, or before the first checkpoint."""
    whole = train_under_torchrun(tmp_path, tmp_path / "whole", NOBODY)
    assert whole.returncode == 0, whole.stderr
    done = train_under_torchrun(tmp_path, tmp_path / "run", victim, step)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("killed now") == 1
    assert "another process of this run ended" in done.stderr
    assert files(tmp_path / "run") == files(tmp_path / "whole")


@pytest.mark.slow
@needs_gloo
def test_a_restart_touches_no_run_of_another_launch(tmp_path):
    """A folder in use is refused, and refused again when torchrun tries again."""
    first = train_under_torchrun(tmp_path, tmp_path / "run", NOBODY)
    assert first.returncode == 0, first.stderr
    before = {
        path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()
    }
    second = train_under_torchrun(tmp_path, tmp_path / "run", NOBODY)
    assert second.returncode != 0
    assert second.stderr.count("is not empty; continue it with: bisnn resume") == 2
    assert {
        path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()
    } == before


@needs_gloo
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_process_that_nobody_joins_says_so(tmp_path, rank):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "small.toml").write_text(small().to_toml())
    program = (
        "from bisnn import cli; from bisnn.runs import processes; processes.MINUTES = 0.02; "
        "cli.main()"
    )
    environment = {
        **os.environ,
        "RANK": rank,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    command = [
        sys.executable,
        "-c",
        program,
        "train",
        tmp_path / "small.toml",
        "--out",
        tmp_path / "run",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "another process of this run does not answer (limit: 0.02 minutes)" in last
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
