"""Training by several processes against as many independent trainings at once.

    python benchmarks/data_parallel.py [--processes 2] [--rounds 5] [--out FILE]

`torchrun -m bisnn train` shares a mini-batch among its processes of one thread each. Trainings that
share nothing but the machine are the yardstick: both contend for its caches and memory. They take
turns. A rate is in recordings per second over all processes while all of them train, from their
second step on, with everything that happens between steps (checkpoints, validation). Beside it the
CPU time that a recording takes, which other programs on the machine disturb less; it leaves out
that processes wait for each other. The network is "conv" of workloads.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from torch import Tensor
from workloads import CONV, KERNEL, POOLS, Workload, small

from bisnn.data import Dataset
from bisnn.runs import training
from bisnn.runs.config import Config, parse
from bisnn.runs.loop import Training
from bisnn_experiments import results
from bisnn_experiments.measurement import machine, note, table

TARGET = 0.9  # of the independent trainings' recordings per second
ONE, INDEPENDENT = "one training", "independent trainings"
STEPS, EPOCHS = 4, 3  # of each training; an epoch has so many steps


class Case(NamedTuple):
    """How the trainings that are compared go about it."""

    rule: str
    grows: bool  # whether the mini-batch grows with the processes, or is shared by them
    validation: float = 0.0  # share of the recordings that each epoch ends with


CASES = {
    "ST, as many recordings per process": Case("st", True),
    "Bayes, as many recordings per process": Case("bayes", True),
    "ST, the same mini-batch": Case("st", False),
    "Bayes, as many recordings per process, validation": Case("bayes", True, 0.2),
}


def config_of(case: Case, workload: Workload, batch: int) -> Config:
    convolutions = [
        {"channels": n, "kernel": KERNEL, "padding": workload.padding, "pool": pool}
        for n, pool in zip(workload.hidden, POOLS, strict=True)
    ]
    return parse(
        {
            "version": 1,
            "data": {"name": "python", "validation": case.validation},
            "network": {"conv": convolutions, "layers": []},
            "neuron": {"threshold": 0.1},
            "rule": {"name": case.rule, "lr": 1e-3}
            | ({"temperature": 1e-4} if case.rule == "bayes" else {}),
            "train": {"epochs": EPOCHS, "batch_size": batch, "threads": 1},
        },
        "benchmark",
    )


def train(case: Case, workload: Workload, sharing: int, folder: Path) -> None:
    """Be one process of a training that `sharing` processes share; write when steps began."""
    batch = workload.B * (sharing if case.grows else 1)
    recordings = round(batch * STEPS / (1 - case.validation))
    rng = np.random.default_rng(0)
    shape = (recordings, workload.T, *workload.layers[0].inputs)
    x = (rng.random(shape, dtype=np.float32) < workload.density).astype(np.uint8)
    y = rng.integers(workload.classes, size=recordings)
    steps: list[tuple[float, float]] = []  # when each began, in seconds of the clock and of the CPU
    update = Training.update

    def timed(self: Training) -> Tensor:
        steps.append((time.monotonic(), time.process_time()))
        return update(self)

    with mock.patch.object(Training, "update", timed):
        data = Dataset((x, y), (x[:1], y[:1]), classes=[str(n) for n in range(workload.classes)])
        training.train(config_of(case, workload, batch), folder / "run", data=data, show=False)
    about = {"recordings per step": batch / sharing, "steps": steps}
    (folder / f"process {os.environ.get('RANK', '0')}.json").write_text(json.dumps(about))


def measured(processes: list[dict[str, Any]]) -> dict[str, float]:
    """Recordings per second and CPU time per recording of all processes together, from the second
    step of the last one to begin until the first one begins its last.
    """
    begin = max(process["steps"][1][0] for process in processes)
    end = min(process["steps"][-1][0] for process in processes)
    recordings = cpu = 0.0
    for process in processes:
        clock, busy = np.array(process["steps"]).T
        # A step that is under way counts by its share
        first, last = np.interp([begin, end], clock, np.arange(len(clock)))
        recordings += process["recordings per step"] * (last - first)
        cpu += np.subtract(*np.interp([end, begin], clock, busy))
    return {"recordings_per_s": recordings / (end - begin), "cpu_ms": 1e3 * cpu / recordings}


def run(name: str, count: int, together: bool, quick: bool) -> dict[str, float]:
    """Measure one training by `count` processes, or as many trainings by one each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(i) for i in range(1 if together else count)]
        started = []
        for folder in folders:
            folder.mkdir()
            task = json.dumps([name, count if together else 1, quick, str(folder)])
            command = [sys.executable, *(launcher if together else []), __file__, "--train", task]
            with open(folder / "errors", "w") as errors:
                started.append(subprocess.Popen(command, env=environment, stderr=errors))
        if any([process.wait() for process in started]):
            sys.exit("\n".join((folder / "errors").read_text() for folder in folders))
        files = [file for folder in folders for file in folder.glob("process *.json")]
        return measured([json.loads(file.read_text()) for file in files])


def compare(name: str, count: int, rounds: int, quick: bool) -> dict[str, Any]:
    """What both ways measured in each round, the medians, and those of the rounds' ratios."""
    rounds_of: dict[str, list[dict[str, float]]] = {ONE: [], INDEPENDENT: []}
    for number in range(rounds):
        for way, turns in rounds_of.items():
            turns.append(run(name, count, way == ONE, quick))
        rates = (f"{turns[-1]['recordings_per_s']:.1f}" for turns in rounds_of.values())
        note(f"{name}, round {number + 1}: {' against '.join(rates)} recordings per second")
    medians = {
        way: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for way, turns in rounds_of.items()
    }
    ratios = {
        key: statistics.median(a[key] / b[key] for a, b in zip(*rounds_of.values(), strict=True))
        for key in medians[ONE]
    }
    return {**medians, "ratios": ratios, "rounds": rounds_of}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", action="append", choices=list(CASES), help="repeatable")
    parser.add_argument("--quick", action="store_true", help="a tiny network, to see that it works")
    usual = Path(__file__).parent / "results" / "data_parallel.json"
    parser.add_argument("--out", type=Path, default=usual)
    parser.add_argument("--train", help=argparse.SUPPRESS)  # a process that is measured
    options = parser.parse_args()
    if options.train:
        name, sharing, quick, folder = json.loads(options.train)
        train(CASES[name], small("conv") if quick else CONV, sharing, Path(folder))
        os._exit(0)  # as `bisnn train` does, and for its reason
    about = machine()
    cases = {
        name: compare(name, options.processes, options.rounds, options.quick)
        for name in options.case or CASES
    }
    columns = list(next(iter(cases.values()))["ratios"])
    rows = [(name, list(case["ratios"].values())) for name, case in cases.items()]
    print(table("one training to independent ones", columns, rows))
    print(f"target: {TARGET} of their recordings per second")
    results.write(
        options.out,
        {
            "command": results.command(),
            "machine": about,
            "processes": options.processes,
            "target": TARGET,
            "cases": cases,
        },
    )


if __name__ == "__main__":
    main()
