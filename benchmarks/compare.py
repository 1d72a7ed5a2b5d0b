"""Two versions of bisnn against each other: `python benchmarks/compare.py OLD NEW`, folders that
hold the package `bisnn`, such as the `src` of two checkouts.

Each version has a process of its own, which builds the same networks (contestants.py, inference.py)
and waits; they take turns, a few iterations each (of short ones many), and which of them begins
changes every round. A time is CPU time, or on a GPU that between CUDA events. The ratio new / old
of each round's medians gives a mean and its 95 % interval (Student's t): a row is slower only if
the interval says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from contestants import BAYES, HARD, ST, Built, ours, prediction
from workloads import CONV, MLP, Workload

TURN_MS = 40.0  # that a turn takes at least
BPTT = {"bptt": True}
TRAINING = {
    "ST, local": ST,
    "Bayes, local, relaxed": BAYES,
    "Bayes, local, hard": HARD,
    "ST, bptt": ST | BPTT,
}
PACKED = {
    "packed: dense": Workload("dense", 100, 1, (1024,), 0.1),
    "packed: mlp": replace(MLP, B=1),
    "packed: conv": Workload("conv", 50, 1, (64, 128, 128), padding=3),
}


def rows(cases: list[str], device: str) -> dict[str, Callable[[], Built]]:
    """What is measured: a function for each row that builds its network."""
    found: dict[str, Callable[[], Built]] = {}
    sizes = {"mlp": MLP, "conv": CONV}
    if device != "cpu":
        sizes = {name: replace(size, B=64, T=100, device=device) for name, size in sizes.items()}
    for case in (case for case in cases if case in sizes):
        for name, options in TRAINING.items():
            found[f"{case}: {name}"] = lambda o=options, w=sizes[case]: ours(**o)(w)  # type: ignore[misc]
        found[f"{case}: ten members"] = lambda w=sizes[case]: prediction(10)(w)  # type: ignore[misc]
    if "packed" in cases:
        from inference import engine

        found |= {name: lambda w=w: engine()(w) for name, w in PACKED.items()}  # type: ignore[misc]
    return found


def answer(cases: list[str], device: str) -> None:
    """Be the process of one version: a line with a row's name and a count of iterations comes in,
    their times in milliseconds go out.
    """
    torch.set_num_threads(1)
    built: dict[str, Built] = {}
    for line in sys.stdin:
        name, count = json.loads(line)
        if name not in built:
            built[name] = rows(cases, device)[name]()
            for _ in range(3):
                built[name].iteration()
        print(json.dumps(_times(built[name].iteration, count, device)), flush=True)


def _times(iteration: Callable[[], object], count: int, device: str) -> list[float]:
    if device == "cpu":
        marks = [time.process_time()]
        for _ in range(count):
            iteration()
            marks.append(time.process_time())
        return [1000 * (b - a) for a, b in pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        iteration()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(events)]


class Version:
    """The process of a version, seen from outside."""

    def __init__(self, folder: Path, arguments: list[str]):
        path = os.pathsep.join([str(folder.resolve()), *sys.path[1:]])
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "NUMBA")}
        self.process: Any = subprocess.Popen(
            [sys.executable, __file__, "--answer", *arguments],
            env=os.environ | threads | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def median_ms(self, name: str, count: int) -> float:
        print(json.dumps([name, count]), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{name}: the process ended; its message is above")
        return statistics.median(json.loads(line))


def compared(old: Version, new: Version, name: str, rounds: int, count: int) -> dict[str, Any]:
    """Medians of both versions and the ratio new / old with its interval."""
    from scipy.stats import t

    first = [version.median_ms(name, 1) for version in (old, new)]  # builds and compiles
    count = max(count, math.ceil(TURN_MS / min(first)))
    times: dict[Version, list[float]] = {old: [], new: []}
    for i in range(rounds):
        for version in (old, new) if i % 2 else (new, old):
            times[version].append(version.median_ms(name, count))
    ratios = [b / a for a, b in zip(times[old], times[new], strict=True)]
    mean = statistics.fmean(ratios)
    half = float(t.ppf(0.975, rounds - 1)) * statistics.stdev(ratios) / rounds**0.5
    medians = {"old_ms": statistics.median(times[old]), "new_ms": statistics.median(times[new])}
    return {**medians, "ratio": mean, "low": mean - half, "high": mean + half}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, help="OLD NEW")
    parser.add_argument("--case", action="append", choices=("mlp", "conv", "packed"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=5, help="per turn")
    parser.add_argument("--out", type=Path, help="where the JSON goes; by default nowhere")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = options.case or ["mlp", "conv"] + (["packed"] if options.device == "cpu" else [])
    if options.answer:
        answer(cases, options.device)
        return
    if len(options.folders) != 2 or options.rounds < 2:
        parser.error("give two folders, OLD and NEW, and at least two rounds")
    passed = [f"--case={case}" for case in cases] + [f"--device={options.device}"]
    old, new = (Version(folder, passed) for folder in options.folders)
    found = {}
    for name in rows(cases, options.device):
        found[name] = row = compared(old, new, name, options.rounds, options.iterations)
        times = f"{row['old_ms']:9.2f} -> {row['new_ms']:9.2f} ms"
        interval = f"{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        print(f"{name:30} {times}   new / old {interval}", flush=True)
    for version in (old, new):
        version.process.kill()
    if options.out:
        # Here, because the process of a version must not import another one
        from bisnn_experiments import results
        from bisnn_experiments.measurement import commit, machine

        versions = dict(zip(("old", "new"), map(commit, options.folders), strict=True))
        about = {name: getattr(options, name) for name in ("device", "rounds", "iterations")}
        results.write(
            options.out, about | {"versions": versions, "machine": machine(), "rows": found}
        )


if __name__ == "__main__":
    main()
