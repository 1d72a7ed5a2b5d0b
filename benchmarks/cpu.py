"""What training and predicting cost on a CPU, beside other libraries: `python benchmarks/cpu.py`,
or `make bench`.

    mlp, conv     one training iteration: ours, other libraries, a ReLU network, the products alone
    long          10,000 time steps in chunks against 100: time a step, peak memory
    ensemble      ten members against one pass, for a batch and for one recording
    startup       `import bisnn; bisnn.Network` against `import torch`
    scaling       time and memory over T, over width and over input density: docs/scaling.png

What is timed and what everybody is given: contestants.py. Each contestant lives in a process of its
    own (processes.py, which also
says what peak memory is); they take turns, so that changes in the machine's load meet all of them.
Outside the clock: imports, building the network, compilation, the input. Read the ratios, not the
milliseconds. Each case keeps its own date and machine in the JSON; --case replaces that case there
and leaves the others.

The peers of peers.txt are installed into .venv-peers by `python benchmarks/cpu.py --setup`; else
they are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import figure
from contestants import CONV, MLP, PEERS, THRESHOLDS, Workload
from processes import ROOT, Contender, setup

from bisnn_experiments.measurement import machine, note, table

Case = dict[str, Any]
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
PREDICTION = ["one pass, net(x)", "one pass, predict(net, x)", "ten members, predict(net, x, 10)"]
SCALING = ["bisnn: ST, local", "bisnn: Bayes, local, relaxed", *PEERS, "ReLU network"]
ITERATION_LIMIT_S, START_LIMIT_S, MEMORY_LIMIT_MIB = (
    20.0,
    75.0,
    4096.0,
)  # of a point of the scaling case
SLOW_TO_COMPILE, FEWER = (
    "snnTorch, compiled time loop",
    {64, 256, 1024, 4096, 0.01, 0.5},
)  # half a minute a point over width, density


class Turns:
    """Contestants side by side: start all, then a few iterations of each in turn, round after
    round.
    """

    def __init__(self, case: str, entries: Iterable[tuple[str, str, Workload]], threads: int):
        """Entries: label, name of the contestant, what it runs."""
        self.case, self.running, self.left_out = case, dict[str, Contender](), dict[str, str]()
        self.results: dict[str, dict[str, Any]] = {}
        for label, name, workload in entries:
            note(f"{case}: starting {label}")
            try:
                self.running[label] = contender = Contender(name, threads)
                started = contender.build(workload)
                if not started.pop("learned"):
                    raise RuntimeError("a layer did not learn: its weights have not changed")
                self.results[label] = started | contender.about
            except RuntimeError as error:
                self._leave_out(label, error)

    def measure(
        self, rounds: int, iterations: int
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        for i in range(rounds):
            note(f"{self.case}: round {i + 1} of {rounds}")
            for label, contender in list(self.running.items()):
                try:
                    contender.seconds += contender.ask("run", most=iterations, warm=1)
                except RuntimeError as error:
                    self._leave_out(label, error)
        for label, contender in self.running.items():
            ms = [1000 * s for s in contender.seconds]
            times = {
                "median_ms": statistics.median(ms),
                "min_ms": min(ms),
                "times_ms": [round(x, 3) for x in ms],
            }
            self.results[label] |= (
                times | {"peak_mib": contender.ask("peak")} | contender.ask("facts")
            )
            contender.close()
        return self.results, self.left_out

    def _leave_out(self, label: str, error: RuntimeError) -> None:
        self.left_out[label] = str(error)
        self.results.pop(label, None)
        if label in self.running:
            self.running.pop(label).close()


# The cases: each returns what goes into the JSON


def training(kind: str, quick: bool, threads: int) -> Case:
    workload = (MLP if kind == "mlp" else CONV) if not quick else small(kind)
    turns = (2, 2) if quick else (6, 8) if kind == "mlp" else (3, 1)
    names = [*TRAINING[kind], *PEERS, *FLOORS]
    results, left_out = Turns(kind, ((name, name, workload) for name in names), threads).measure(
        *turns
    )
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


def small(kind: str) -> Workload:
    """For a smoke run: the same structure, next to no work."""
    return (
        replace(MLP, T=20, B=4, hidden=(32, 32))
        if kind == "mlp"
        else replace(CONV, T=50, B=2, hidden=(4, 8, 8))
    )


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
            turns = Turns(
                f"ensemble, {group}", ((name, name, workload) for name in PREDICTION), threads
            )
            rounds = (2, 1) if quick else (2, 2) if kind == "conv" and workload.B > 1 else (4, 5)
            rows, missing = turns.measure(*rounds)
            ten = rows.get(PREDICTION[-1], {}).get("median_ms")
            for row in rows.values():
                row["ten_to_this"] = None if ten is None else ten / row["median_ms"]
            results[group], workloads[group] = rows, asdict(workload)
            left_out |= {f"{group}: {name}": reason for name, reason in missing.items()}
    return {"workloads": workloads, "results": results, "left_out": left_out}


def startup(quick: bool, threads: int) -> Case:
    """A fresh interpreter each time, alternating. CPU seconds are those of the process, all its
    threads together.
    """
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

    `only` those whose names begin so are run anew, and the others' points taken from an `earlier`
    run.
    """
    base = small("mlp") if quick else MLP
    axes: dict[str, list[Workload]] = {
        "T": [
            replace(base, T=T)
            for T in ((10, 100, 300) if quick else (10, 30, 100, 300, 1000, 3000, 10_000))
        ],
        "width": [
            replace(base, hidden=(n, n))
            for n in ((16, 64) if quick else (64, 128, 256, 512, 1024, 2048, 4096))
        ],
        "density": [
            replace(base, density=d)
            for d in ((0.01, 0.5) if quick else (0.01, 0.02, 0.05, 0.1, 0.2, 0.5))
        ],
    }
    kept = earlier or {"points": [], "ended": {}}
    points: list[dict[str, Any]] = [
        p for p in kept["points"] if only and not p["contestant"].startswith(only)
    ]
    ended = dict[str, dict[str, str]]()
    for axis, workloads in axes.items():
        ended[axis] = {
            n: why
            for n, why in kept["ended"].get(axis, {}).items()
            if only and not n.startswith(only)
        }
        running = dict[str, Contender]()
        for name in [
            n for n in [*SCALING, *(CHUNKED[:1] if axis == "T" else [])] if n.startswith(only)
        ]:
            note(f"scaling over {axis}: starting {name}")
            try:
                running[name] = Contender(name, threads)
            except RuntimeError as error:
                ended[axis][name] = f"not started: {error}"
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
                    ended[axis][name] = f"at {value:g}: {reason}"
                    running.pop(name).close()
        for contender in running.values():
            contender.close()
    limits = {
        "iteration_s": ITERATION_LIMIT_S,
        "start_s": START_LIMIT_S,
        "memory_mib": MEMORY_LIMIT_MIB,
    }
    return {
        "workload": asdict(base),
        "chunk": CHUNKED[:1],
        "limits": limits,
        "points": points,
        "ended": ended,
    }


def _point(contender: Contender, workload: Workload) -> tuple[dict[str, Any] | None, str | None]:
    """Time and memory of an iteration, if within the limits; and why the contestant goes no
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
        return None, f"more than {ITERATION_LIMIT_S:g} s an iteration"
    return point, None


CASES: dict[str, Callable[[bool, int], Case]] = {
    "startup": startup,
    "mlp": lambda quick, threads: training("mlp", quick, threads),
    "conv": lambda quick, threads: training("conv", quick, threads),
    "long": long,
    "ensemble": ensemble,
    "scaling": scaling,
}


# What they come to


def targets(cases: dict[str, Case]) -> list[dict[str, Any]]:
    """The ratios that this library set out for, beside what was measured; cases that were not run
    are left out.
    """
    rows: list[dict[str, Any]] = []

    def row(what: str, goal: str, sign: str, limit: float, measured: float | None) -> None:
        met = (
            None if measured is None else (measured >= limit if sign == ">=" else measured <= limit)
        )
        rows.append(
            {
                "what": what,
                "ratio": goal,
                "target": f"{sign} {limit:g}",
                "measured": measured,
                "met": met,
            }
        )

    st, bayes, bptt = "bisnn: ST, local", "bisnn: Bayes, local, relaxed", "bisnn: ST, bptt"
    goals = [("mlp", st, "spikingjelly", 5.0), ("mlp", st, "fastest_peer", 3.0)]
    goals += [
        ("mlp", bayes, "spikingjelly", 4.0),
        ("mlp", bayes, "fastest_peer", 2.5),
        ("mlp", bptt, "fastest_peer", 1.0),
    ]
    goals += [
        ("conv", st, "fastest_peer", 3.0),
        ("conv", bayes, "fastest_peer", 3.0),
        ("conv", bptt, "fastest_peer", 1.0),
    ]
    for case, name, other, limit in goals:
        if case in cases:
            measured = cases[case]["results"].get(name, {}).get("times_faster_than", {}).get(other)
            row(
                f"{case}, {name}",
                f"times faster than {other.replace('_', ' ')}",
                ">=",
                limit,
                measured,
            )
    for name in (st, bayes) if "conv" in cases else ():
        row(
            f"conv, {name}",
            "peak memory, MiB",
            "<=",
            500,
            cases["conv"]["results"].get(name, {}).get("peak_mib"),
        )
    for label, result in cases["long"]["results"].items() if "long" in cases else ():
        if "peak_to_short" in result:
            row(label, "peak memory to that of T = 100", "<=", 1.1, result["peak_to_short"])
            row(
                label, "time a step to that of T = 100", "<=", 1.1, result["time_per_step_to_short"]
            )
    for group, results in cases["ensemble"]["results"].items() if "ensemble" in cases else ():
        for name in PREDICTION[:2]:
            limit = 5.0 if group.startswith("mlp") else 7.0
            row(
                f"ensemble, {group}",
                f"ten members to {name}",
                "<=",
                limit,
                results.get(name, {}).get("ten_to_this"),
            )
    for key in ("wall_s", "cpu_s") if "startup" in cases else ():
        measured = cases["startup"]["results"]["bisnn"][f"{key}_to_torch"]
        row(
            "startup",
            f"to import torch, {'wall time' if key == 'wall_s' else 'CPU time'}",
            "<=",
            1.5,
            measured,
        )
    return rows


def tables(name: str, case: Case) -> str:
    results = case.get("results", {})
    if name in ("mlp", "conv"):
        columns = [
            "median ms",
            "min ms",
            "x fastest peer",
            "x SpikingJelly",
            "x ReLU",
            "x products",
            "peak MiB",
            "first s",
            "version",
        ]
        keys = ("fastest_peer", "spikingjelly", "relu", "products")
        rows: list[tuple[str, list[Any]]] = []
        for label, r in results.items():
            faster = [r["times_faster_than"][key] for key in keys]
            rows.append(
                (
                    label,
                    [
                        r["median_ms"],
                        r["min_ms"],
                        *faster,
                        r["peak_mib"],
                        r["first_s"],
                        r["version"],
                    ],
                )
            )
        rates = {label: r["firing_rates"] for label, r in results.items() if "firing_rates" in r}
        below = "x: so many times faster than that. Share of our neurons that fire at a time, by layer, before pooling:"
        return "\n".join(
            [
                table(name, columns, rows),
                below,
                *(f"  {label}: {values}" for label, values in rates.items()),
            ]
        )
    if name == "long":
        keys = ("us_per_step", "peak_mib", "time_per_step_to_short", "peak_to_short")
        columns = ["us a step", "peak MiB", "time a step / T = 100", "peak / T = 100"]
        return table(
            name, columns, ((label, [r.get(key) for key in keys]) for label, r in results.items())
        )
    if name == "ensemble":
        rows = [
            (f"{group}: {label}", [r["median_ms"], r["ten_to_this"]])
            for group, g in results.items()
            for label, r in g.items()
        ]
        return table(name, ["median ms", "ten members / this"], rows)
    if name == "startup":
        keys = ("wall_s", "cpu_s", "wall_s_to_torch", "cpu_s_to_torch")
        columns = ["wall s", "CPU s", "wall / torch", "CPU / torch"]
        return table(
            name,
            columns,
            (
                (case["programs"][label], [r.get(key) for key in keys])
                for label, r in results.items()
            ),
        )
    parts = []
    for axis in dict.fromkeys(point["axis"] for point in case["points"]):
        here = {(p["contestant"], p["value"]): p for p in case["points"] if p["axis"] == axis}
        values, names = (list(dict.fromkeys(key[i] for key in here)) for i in (1, 0))
        for title, key in (("ms", "median_ms"), ("peak MiB", "peak_mib")):
            rows = [(n, [here.get((n, v), {}).get(key) for v in sorted(values)]) for n in names]
            parts.append(table(f"{title}, over {axis}", [f"{v:g}" for v in sorted(values)], rows))
        parts += [
            f"{contestant} ends {reason}" for contestant, reason in case["ended"][axis].items()
        ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--setup", action="store_true", help="install the peers into .venv-peers, then stop"
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=CASES,
        help="run this one alone (may be given several times)",
    )
    parser.add_argument(
        "--only",
        default="",
        help="scaling: run those anew whose names begin so, keep the others' points",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny networks: does everything run? The numbers mean nothing",
    )
    parser.add_argument("--threads", type=int, default=1, help="of every contestant (default: 1)")
    parser.add_argument(
        "--out",
        type=Path,
        help="where the JSON goes (default: benchmarks/results/cpu.json; quick: out/)",
    )
    parser.add_argument(
        "--figure",
        type=Path,
        help="where the scaling figure goes (default: docs/scaling.png; quick: out/)",
    )
    args = parser.parse_args()
    if args.setup:
        return setup()
    out = args.out or ROOT / (
        "out/bench_quick.json" if args.quick else "benchmarks/results/cpu.json"
    )
    picture = args.figure or ROOT / ("out/scaling_quick.png" if args.quick else "docs/scaling.png")
    out.parent.mkdir(parents=True, exist_ok=True)
    report = json.loads(out.read_text()) if args.case and out.exists() else {"cases": {}}
    for name in args.case or CASES:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "threads": args.threads,
        }
        begin = time.perf_counter()
        again = (args.only, report["cases"].get(name)) if name == "scaling" and args.only else ()
        case = about | {"quick": args.quick} | CASES[name](args.quick, args.threads, *again)
        report["cases"][name] = case | {"took_s": round(time.perf_counter() - begin)}
        report["targets"] = targets(report["cases"])
        out.write_text(
            json.dumps(report, indent=1) + "\n"
        )  # after each case: what was measured stays, whatever follows
        left_out = [
            f"left out: {label}: {reason}" for label, reason in case.get("left_out", {}).items()
        ]
        print(tables(name, case), *left_out, sep="\n", end="\n\n", flush=True)
    columns = ["ratio", "target", "measured", "met"]
    print(
        table(
            "targets",
            columns,
            ((row["what"], [row[c] for c in columns]) for row in report["targets"]),
        ),
        end="\n\n",
    )
    print(" | ".join(f"{key} {value}" for key, value in machine().items()))
    if "scaling" in (args.case or CASES):
        figure.scaling(report["cases"]["scaling"], picture)
        print(f"drawn: {picture}")
    print(f"written: {out}")


if __name__ == "__main__":
    main()
