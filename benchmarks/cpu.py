"""What training and predicting cost on a CPU, beside other libraries: `python benchmarks/cpu.py`,
or `make bench`.

    mlp, conv     one training iteration: ours, other libraries, a ReLU network, the products alone
    long          10,000 time steps in chunks against 100: time per step, peak memory
    ensemble      ten members against one pass, for a batch and for one recording
    startup       `import bisnn; bisnn.Network` against `import torch`
    scaling       time and memory over T, over width and over input density: docs/scaling.png

What is timed and what everybody is given: contestants.py. Each contestant lives in a process of its
own (processes.py, which also says what peak memory is); they take turns, so that changes in the
machine's load meet all of them. Outside the clock: imports, building the network, compilation, the
input. Read the ratios, not the milliseconds. Each case keeps its own date and machine in the JSON;
--case replaces that case there and leaves the others.

The peers of peers.txt are installed into .venv-peers by `python benchmarks/cpu.py --setup`; else
they are left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cases
import figure
from cases import Case, Turns
from contestants import PEERS
from cpu_tables import PREDICTION, tables, targets
from processes import ROOT, Contender, setup
from workloads import CONV, MLP, THRESHOLDS, Workload, small

from bisnn_experiments import results
from bisnn_experiments.measurement import machine, note, table

FLOORS = ["ReLU network", "products alone"]
TRAINING = {
    "mlp": [
        "bisnn: ST, local",
        "bisnn: ST, local, half the inputs active",
        "bisnn: Bayes, local, relaxed",
        "bisnn: Bayes, local, hard",
        "bisnn: ST, bptt",
        "bisnn: Bayes, bptt, relaxed",
    ],
    "conv": [
        "bisnn: ST, local",
        "bisnn: Bayes, local, relaxed",
        "bisnn: Bayes, local, hard",
        "bisnn: ST, bptt",
    ],
}
CHUNKED = ["bisnn: ST, local, chunks of 100", "bisnn: Bayes, local, relaxed, chunks of 100"]
SCALING = ["bisnn: ST, local", "bisnn: Bayes, local, relaxed", *PEERS, "ReLU network"]
# Limits of a point of the scaling case
ITERATION_LIMIT_S, START_LIMIT_S, MEMORY_LIMIT_MIB = 20.0, 75.0, 4096.0
# Half a minute per point over width and density: it runs at fewer of them.
SLOW_TO_COMPILE, FEWER = "snnTorch, compiled time loop", {64, 256, 1024, 4096, 0.01, 0.5}


# The cases: each returns what goes into the JSON


def training(kind: str, quick: bool, threads: int) -> Case:
    workload = small(kind) if quick else MLP if kind == "mlp" else CONV
    turns = (2, 2) if quick else (6, 8) if kind == "mlp" else (3, 1)
    entries = ((name, name, workload) for name in [*TRAINING[kind], *PEERS, *FLOORS])
    results, left_out = Turns(kind, entries, threads).measure(*turns)
    beside = {"fastest_peer": fastest(results, PEERS), "spikingjelly": fastest(results, PEERS[:1])}
    beside |= {"relu": fastest(results, FLOORS[:1]), "products": fastest(results, FLOORS[1:])}
    for row in results.values():
        row["times_faster_than"] = {
            key: None if ms is None else ms / row["median_ms"] for key, ms in beside.items()
        }
    lightest = min(
        (results[name]["peak_mib"] or 0.0 for name in PEERS if name in results), default=None
    )
    about = {
        "workload": asdict(workload),
        "thresholds": THRESHOLDS[kind],
        "floor": workload.floor(),
        "dtype": "float32",
    }
    return about | {
        "rounds": turns[0],
        "iterations": turns[1],
        "lightest_peer_mib": lightest,
        "results": results,
        "left_out": left_out,
    }


def fastest(results: dict[str, dict[str, Any]], names: Sequence[str]) -> float | None:
    return min((results[name]["median_ms"] for name in names if name in results), default=None)


def long(quick: bool, threads: int) -> Case:
    short = small("mlp") if quick else MLP
    many = replace(short, T=(10 if quick else 100) * 100)
    entries = [
        (f"{name}, T = {w.T:,}", name, w) for name in CHUNKED for w in (replace(short, T=100), many)
    ]
    results, left_out = Turns("long", entries, threads).measure(2, 1 if quick else 2)
    for label, row in results.items():
        name, T = label.split(", T = ")
        row["us_per_step"] = 1000 * row["median_ms"] / int(T.replace(",", ""))
        other = results.get(f"{name}, T = 100")
        if other is not None and label != f"{name}, T = 100":
            row["time_per_step_to_short"] = row["us_per_step"] / (1000 * other["median_ms"] / 100)
            row["peak_to_short"] = (
                None if not other["peak_mib"] else row["peak_mib"] / other["peak_mib"]
            )
    return {
        "workload": asdict(many),
        "chunk": 100,
        "input": "uint8",
        "results": results,
        "left_out": left_out,
    }


def ensemble(quick: bool, threads: int) -> Case:
    results, left_out, workloads = dict[str, Any](), dict[str, str](), dict[str, Any]()
    for kind in ("mlp", "conv"):
        usual = small(kind) if quick else MLP if kind == "mlp" else CONV
        for workload in (usual, replace(usual, B=1)):
            group = f"{kind}, B = {workload.B}"
            entries = ((name, name, workload) for name in PREDICTION)
            turns = Turns(f"ensemble, {group}", entries, threads)
            rounds = (2, 1) if quick else (2, 2) if kind == "conv" and workload.B > 1 else (4, 5)
            rows, missing = turns.measure(*rounds)
            ten = rows.get(PREDICTION[-1], {}).get("median_ms")
            for row in rows.values():
                row["ten_to_this"] = None if ten is None else ten / row["median_ms"]
            results[group], workloads[group] = rows, asdict(workload)
            left_out |= {f"{group}: {name}": reason for name, reason in missing.items()}
    return {"workloads": workloads, "results": results, "left_out": left_out}


def startup(quick: bool, threads: int) -> Case:
    """Fresh interpreters in turn. CPU seconds are those of the process with all its threads."""
    programs = {"torch": "import torch", "bisnn": "import bisnn; bisnn.Network"}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    note("startup: interpreters in turn")
    for i in range(3 if quick else 11):
        for name, program in programs.items():
            begin, before = time.perf_counter(), os.times()
            subprocess.run([sys.executable, "-c", program], check=True)
            wall, after = time.perf_counter() - begin, os.times()
            cpu = (
                after.children_user
                + after.children_system
                - before.children_user
                - before.children_system
            )
            if i > 0:  # the first ones read files into the system's cache
                seconds[name].append((wall, cpu))
    results: dict[str, Any] = {}
    for name, both in seconds.items():
        wall, cpu = (statistics.median(values) for values in zip(*both, strict=True))
        results[name] = {"wall_s": wall, "cpu_s": cpu, "runs": len(both)}
    for key in ("wall_s", "cpu_s"):
        results["bisnn"][f"{key}_to_torch"] = results["bisnn"][key] / results["torch"][key]
    return {"programs": programs, "results": results}


def scaling(quick: bool, threads: int, only: str = "", earlier: Case | None = None) -> Case:
    """Over each axis all contestants run one point before the next; who exceeds a limit leaves that
    axis there.

    Those whose names begin with `only` are run anew; the others' points are taken from an `earlier`
    run.
    """
    kept = earlier or {"points": [], "ended": {}}

    def is_kept(name: str) -> bool:
        return bool(only) and not name.startswith(only)

    points: list[dict[str, Any]] = [p for p in kept["points"] if is_kept(p["contestant"])]
    ended = dict[str, dict[str, str]]()
    for axis, workloads in _axes(quick).items():
        names = [*SCALING, *(CHUNKED[:1] if axis == "T" else [])]
        new, reasons = _over(axis, workloads, [n for n in names if n.startswith(only)], threads)
        points += new
        before = kept["ended"].get(axis, {}).items()
        ended[axis] = {name: why for name, why in before if is_kept(name)} | reasons
    limits = {
        "iteration_s": ITERATION_LIMIT_S,
        "start_s": START_LIMIT_S,
        "memory_mib": MEMORY_LIMIT_MIB,
    }
    return {
        "workload": asdict(small("mlp") if quick else MLP),
        "chunk": CHUNKED[:1],
        "limits": limits,
        "points": points,
        "ended": ended,
    }


def _axes(quick: bool) -> dict[str, list[Workload]]:
    base = small("mlp") if quick else MLP
    T = (10, 100, 300) if quick else (10, 30, 100, 300, 1000, 3000, 10_000)
    width = (16, 64) if quick else (64, 128, 256, 512, 1024, 2048, 4096)
    density = (0.01, 0.5) if quick else (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    return {
        "T": [replace(base, T=value) for value in T],
        "width": [replace(base, hidden=(value, value)) for value in width],
        "density": [replace(base, density=value) for value in density],
    }


def _over(
    axis: str, workloads: Sequence[Workload], names: Sequence[str], threads: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The points of an axis, and why contestants have left it."""
    points, ended = list[dict[str, Any]](), dict[str, str]()
    running = dict[str, Contender]()
    for name in names:
        note(f"scaling over {axis}: starting {name}")
        try:
            running[name] = Contender(name, threads)
        except RuntimeError as error:
            ended[name] = f"not started: {error}"
    for workload in workloads:
        value = workload.hidden[0] if axis == "width" else getattr(workload, axis)
        note(f"scaling over {axis}: {value:g}")
        for name in list(running):
            if name == SLOW_TO_COMPILE and axis != "T" and value not in FEWER:
                continue
            point, reason = _point(running[name], workload)
            if point is not None:
                points.append({"axis": axis, "value": value, "contestant": name} | point)
            if reason:
                ended[name] = f"at {value:g}: {reason}"
                running.pop(name).close()
    for contender in running.values():
        contender.close()
    return points, ended


def _point(contender: Contender, workload: Workload) -> tuple[dict[str, Any] | None, str | None]:
    """Time and memory of an iteration, if it is within the limits; and why the contestant goes no
    further, if it does not.
    """
    try:
        started = contender.build(workload, START_LIMIT_S, MEMORY_LIMIT_MIB)
        ms = [1000 * s for s in contender.ask("run", START_LIMIT_S, most=9, budget_s=2.5)]
        point = started | {
            "median_ms": statistics.median(ms),
            "min_ms": min(ms),
            "iterations": len(ms),
        }
        point |= {"peak_mib": contender.ask("peak")}
        contender.ask("free")
    except RuntimeError as error:
        out_of_memory = "memory" in str(error).lower()
        return None, f"more than {MEMORY_LIMIT_MIB / 1024:g} GiB" if out_of_memory else str(error)
    if min(ms) > 1000 * ITERATION_LIMIT_S:
        return None, f"more than {ITERATION_LIMIT_S:g} s per iteration"
    return point, None


CASES: dict[str, Callable[[bool, int], Case]] = {
    "startup": startup,
    "mlp": lambda quick, threads: training("mlp", quick, threads),
    "conv": lambda quick, threads: training("conv", quick, threads),
    "long": long,
    "ensemble": ensemble,
    "scaling": scaling,
}


def main() -> None:
    parser = cases.parser(__doc__, CASES, "cpu.json", "bench_quick.json")
    parser.add_argument(
        "--setup", action="store_true", help="install the peers into .venv-peers, then stop"
    )
    parser.add_argument(
        "--only",
        default="",
        help="scaling: run only those anew whose names begin with this, keep the others' points",
    )
    parser.add_argument("--threads", type=int, default=1, help="of every contestant (default: 1)")
    parser.add_argument(
        "--figure",
        type=Path,
        help="where the scaling figure goes (default: docs/scaling.png; quick: out/)",
    )
    args = parser.parse_args()
    if args.setup:
        return setup()
    out, report = cases.begin(args)
    for name in args.case or CASES:
        about = cases.about(args.quick, args.threads)
        begin = time.perf_counter()
        again = (args.only, report["cases"].get(name)) if name == "scaling" and args.only else ()
        case = about | CASES[name](args.quick, args.threads, *again)
        report["cases"][name] = case | {"took_s": round(time.perf_counter() - begin)}
        report["targets"] = targets(report["cases"])
        results.write(out, report)  # after each case: what was measured stays, whatever follows
        print(tables(name, case), *cases.left_out(case), sep="\n", end="\n\n", flush=True)
    columns = ["ratio", "target", "measured", "met"]
    rows = ((row["what"], [row[c] for c in columns]) for row in report["targets"])
    print(table("targets", columns, rows), end="\n\n")
    print(" | ".join(f"{key} {value}" for key, value in machine().items()))
    if "scaling" in (args.case or CASES):
        picture = ROOT / ("out/scaling_quick.png" if args.quick else "docs/scaling.png")
        figure.scaling(report["cases"]["scaling"], args.figure or picture)
        print(f"drawn: {args.figure or picture}")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
