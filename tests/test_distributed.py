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
from bisnn.runs.folder import RunFolder
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


# `bisnn` with workers that are killed, by SIGKILL, or stopped: a plan, "rank what number,...", says
# for each attempt of torchrun who it is, and before which call of what.
STRUCK = """
import os, signal, sys
import torch.distributed as dist
from bisnn import cli
from bisnn.runs import evaluation, processes, training

PLACES = {
    "step": (training.Training, "update"),
    "leaving": (dist, "barrier"),
    "evaluation": (evaluation, "evaluate_model"),
}
number, blow, plan = signal.SIGKILL, "killed", sys.argv.pop(1).split(",")
if plan[0] == "stop":
    number, blow, plan = signal.SIGSTOP, "stopped", plan[1:]
    processes.MINUTES = 0.05
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
victim, what, calls = plan[attempt].split() if attempt < len(plan) else ("nobody", "step", "0")
owner, name = PLACES.get(what, (os, "replace"))
function, left = getattr(owner, name), [int(calls)]

def struck(*arguments, **named):
    # A file is named by what it becomes
    if what in PLACES or os.path.basename(arguments[1]) == what:
        left[0] -= 1
        if left[0] == 0:
            print(f"{blow} now", file=sys.stderr, flush=True)
            os.kill(os.getpid(), number)
    return function(*arguments, **named)

if os.environ["RANK"] == victim:
    setattr(owner, name, struck)
cli.main()
"""


NOBODY = "nobody step 0"


def under_torchrun(folder, plan, *arguments, restarts=1):
    """A command of `bisnn` by two processes, some of which are struck."""
    (folder / "struck.py").write_text(STRUCK)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, f"--max-restarts={restarts}", folder / "struck.py", plan]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments, "--quiet"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def train_under_torchrun(folder, out, plan=NOBODY, restarts=1, report=False):
    (folder / "small.toml").write_text(small(**{"data.validation": 0.25}).to_toml())
    arguments = ["train", folder / "small.toml", "--out", out]
    if not report:
        arguments.append("--no-report")
    return under_torchrun(folder, plan, *arguments, restarts=restarts)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The files of a run by two processes that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = train_under_torchrun(folder, folder / "run", restarts=0)
    assert done.returncode == 0, done.stderr
    return files(folder / "run")


@needs_gloo
def test_a_worker_that_is_killed_costs_nothing_but_time(tmp_path, undisturbed):
    done = train_under_torchrun(tmp_path, tmp_path / "run", "1 step 7")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("killed now") == 1
    lost = "bisnn: another process of this run ended; torchrun starts all of them again"
    assert done.stderr.count(f"{lost} (restart 1 of 1)") == 1
    assert files(tmp_path / "run") == undisturbed


@pytest.mark.slow
@needs_gloo
@pytest.mark.parametrize(
    "plan",
    [
        "0 step 7",
        "1 step 1",  # before the first checkpoint
        "0 config.toml 1",  # before there is a run
        "0 state.safetensors 1",  # while the first checkpoint is written
        "0 .state.next.safetensors 3",  # while a later one is,
        "0 state.previous.safetensors 3",  # when it is there beside the last,
        "0 state.safetensors 4",  # and when the last has made room for it
        "0 model.safetensors 1",  # when all is trained and the model is not written
        "0 leaving 1",
        "1 leaving 1",
        "0 step 3,0 step 3",  # twice in a row,
        "1 step 3,1 step 1,0 state.safetensors 1",  # and three times, the second at the same step
    ],
)
def test_killed_at_any_moment_the_run_ends_with_the_same_bits(tmp_path, undisturbed, plan):
    blows = plan.count(",") + 1
    done = train_under_torchrun(tmp_path, tmp_path / "run", plan, restarts=blows)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("killed now") == blows
    assert files(tmp_path / "run") == undisturbed
    left = {path.name for path in (tmp_path / "run").iterdir()}
    known = {*undisturbed, "state.safetensors", "state.previous.safetensors"}
    assert left - {".lock", "tensorboard"} == {*known, ".torchrun"}


@pytest.mark.slow
@needs_gloo
def test_killed_in_its_evaluation_a_run_is_evaluated_again(tmp_path, undisturbed):
    done = train_under_torchrun(tmp_path, tmp_path / "run", "0 evaluation 1", report=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("killed now") == 1
    assert files(tmp_path / "run") == undisturbed
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
@needs_gloo
def test_more_deaths_than_restarts_leave_a_run_to_resume(tmp_path, undisturbed):
    """Not a step is lost: processes write checkpoints as often as one alone, here at each step."""
    done = train_under_torchrun(tmp_path, tmp_path / "run", "1 step 7,0 step 3")
    assert done.returncode != 0
    assert done.stderr.count("killed now") == 2
    assert done.stderr.count("another process of this run ended; torchrun starts all") == 1
    assert done.stderr.count("another process of this run ended; no restart is left of 1; ") == 1
    state, notes = RunFolder(tmp_path / "run").load_state()
    assert (state["step"], notes) == (8, [])
    done = under_torchrun(tmp_path, NOBODY, "resume", tmp_path / "run", "--no-report")
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "run") == undisturbed


@pytest.mark.slow
@needs_gloo
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_falls_silent_is_replaced(tmp_path, undisturbed, victim):
    """One that lives and does not answer: the other one gives up after a while, and says so."""
    done = train_under_torchrun(tmp_path, tmp_path / "run", f"stop,{victim} step 7")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("stopped now") == 1
    assert "another process of this run has not answered for 0.05 minutes; " in done.stderr
    assert files(tmp_path / "run") == undisturbed


@pytest.mark.slow
@needs_gloo
def test_a_restart_touches_no_run_of_another_launch(tmp_path):
    """A folder in use is refused, and refused again when torchrun tries again."""
    first = train_under_torchrun(tmp_path, tmp_path / "run")
    assert first.returncode == 0, first.stderr
    before = {
        path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()
    }
    second = train_under_torchrun(tmp_path, tmp_path / "run")
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
    assert "another process of this run has not answered for 0.02 minutes; see what" in last
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
