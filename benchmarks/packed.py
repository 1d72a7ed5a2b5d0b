"""What a trained network costs as packed bits, beside floats: `python benchmarks/packed.py`, or
`make bench`.

    dense     1024 x 1024 weights, one recording of 100 steps, 10 % and 1 % of the inputs active
    mlp       20-256-256-2, T = 100; a stream, with one call per time step; ten members in one
              engine against ten engines
    conv      2 x 26 x 26 inputs, 64-128-128 channels, kernel 7, padding 3, pools 2-1-2, T = 50; ten
              members likewise
    files     bytes against those of float32 weights
    c         the MLP as C code, one time step, against the engine's

One recording, one thread. What everybody is given: inference.py; processes and turns as in cpu.py.
The spikes of all contestants are compared with those of the engine: the JSON says how many differ.
Read the ratios. --case replaces that case in the JSON and leaves the others. Ratios are of minima:
on a busy machine a long iteration is interrupted more often than a short one, so that a ratio of
medians would flatter the engine. Of the C code, the scalar build stands for a small processor, and
the target is for that build.

The peers of peers.txt are installed into .venv-peers by `python benchmarks/cpu.py --setup`; else
they are left out.
"""

from __future__ import annotations

import math
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import cases
import inference
import torch
from cases import Case, Turns
from inference import (
    APART,
    ENGINE,
    FOLDED,
    MEMBERS,
    ORT,
    ORT_SCAN,
    PRODUCT,
    SPIKES,
    STEPS,
    STREAM,
    TEN,
)
from processes import Contender
from workloads import MLP, Workload, small

from bisnn_experiments import results
from bisnn_experiments.measurement import machine, note, show, table

DENSE = Workload("dense", 100, 1, (1024,), 0.1)
NETWORKS = {"mlp": replace(MLP, B=1), "conv": Workload("conv", 50, 1, (64, 128, 128), padding=3)}
OTHERS = [STEPS, FOLDED, ORT, ORT_SCAN]
FASTER = {  # times faster than that, at least
    "dense, 10 % active": {STEPS: 40.0, PRODUCT: 8.0},
    "mlp": {STEPS: 20.0, ORT: 5.0},
    "conv": {STEPS: 10.0, ORT: 5.0},
}
TOGETHER = 0.8  # ten members of the MLP in one engine to ten engines, at most
C_LIMIT = 1.5  # a time step of the C code to the engine's, at most
STEPS_OF_C = 1000
BUILDS = {
    "-O2, scalar": ["-O2", "-fno-tree-vectorize"],
    "-O3": ["-O3"],
    "-O3, this CPU": ["-O3", "-march=native"],
}
TIMING = """
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <time.h>
#include "model.h"
#include "model_golden.h"
static model_state state;
int main(void)
{
    float logits[MODEL_MEMBERS * MODEL_OUTPUTS];
    struct timespec a, b;
    int run, t;
    for (run = 0; run < RUNS; run++) {
        model_reset(&state);
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (t = 0; t < STEPS; t++)
            model_step(&state, golden_x + t * MODEL_INPUT_WORDS, logits);
        clock_gettime(CLOCK_MONOTONIC, &b);
        printf("%.3f\\n", ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / STEPS);
    }
    return 0;
}
"""


def ratio(
    what: str, value: float | None, sign: str = "", limit: float | None = None, **about: Any
) -> dict[str, Any]:
    """A line of the table: what was measured, and the target, if there is one."""
    line: dict[str, Any] = {"what": what, "measured": value, "target": None, "met": None}
    if limit is not None:
        line["target"] = f"{sign} {show(limit)}"
        if value is not None:
            line["met"] = value >= limit if sign == ">=" else value <= limit
    return line | about


# The cases: each returns what goes into the JSON


def side_by_side(group: str, workload: Workload, names: list[str], turns: tuple[int, int]) -> Case:
    """Contestants in turn, their spikes compared."""
    results, left_out = Turns(group, ((name, name, workload) for name in names), 1).measure(*turns)
    if ENGINE not in results:
        raise RuntimeError(f"{group}: the packed engine itself did not run: {left_out[ENGINE]}")
    spikes = {name: row.pop(SPIKES) for name, row in results.items() if SPIKES in row}
    for name, own in spikes.items():
        results[name]["spikes_that_differ"] = inference.share_that_differs(spikes[ENGINE], own)
    rates = results.get(STEPS, {}).pop("firing_rates", None)
    ours, goals, ratios = results[ENGINE]["min_ms"], FASTER.get(group, {}), []
    for name in (name for name in names if name in (STEPS, PRODUCT, *OTHERS)):
        ms = results.get(name, {}).get("min_ms")
        times, what = ms and ms / ours, f"{group}: faster than {name}"
        ratios.append(ratio(what, times, ">=", goals.get(name), unit="times"))
    about = {
        "workload": asdict(workload),
        "floor": floor(workload),
        "rounds": turns[0],
        "iterations": turns[1],
    }
    return about | {
        "firing_rates": rates,
        "results": results,
        "left_out": left_out,
        "ratios": ratios,
    }


def floor(workload: Workload) -> dict[str, float]:
    """What one recording takes: operations of a float network, words to be counted, steps of
    neurons; and the bytes of the weights as floats and as bits.
    """
    synapses = [math.prod(layer.neurons) * layer.parents for layer in workload.layers]
    weights = sum(layer.neurons[0] * layer.parents for layer in workload.layers)
    neurons = sum(math.prod(layer.neurons) for layer in workload.layers)
    steps = workload.T * workload.B
    return {
        "flop": 2.0 * steps * sum(synapses),
        "words": steps * sum(synapses) / 32,
        "neuron_steps": float(steps * neurons),
        "bytes_float": 4.0 * weights,
        "bytes_packed": weights / 8,
    }


def dense(quick: bool) -> dict[str, Case]:
    base = replace(DENSE, hidden=(64,), T=10) if quick else DENSE
    loads = {f"dense, {100 * d:.0f} % active": replace(base, density=d) for d in (0.1, 0.01)}
    turns = (2, 2) if quick else (10, 10)
    return {
        group: side_by_side(group, load, [ENGINE, STEPS, PRODUCT], turns)
        for group, load in loads.items()
    }


def network(kind: str, quick: bool) -> dict[str, Case]:
    workload = replace(small(kind), B=1) if quick else NETWORKS[kind]
    names = [ENGINE, *OTHERS, TEN, APART, *([STREAM] if kind == "mlp" else [])]
    turns = (2, 2) if quick else (10, 15) if kind == "mlp" else (6, 3)
    case = side_by_side(kind, workload, names, turns)
    ms = {name: row["min_ms"] for name, row in case["results"].items()}
    limit = TOGETHER if kind == "mlp" else None
    apart, one, ten = ms[APART], ms[ENGINE], f"{kind}: ten members in one engine"
    case["ratios"].append(ratio(f"{ten} / in ten", ms[TEN] / apart, "<=", limit, unit="ratio"))
    case["ratios"].append(ratio(f"{ten} / one", ms[TEN] / one, unit="ratio"))
    if STREAM in ms:
        us = 1000 * ms[STREAM] / workload.T
        case["ratios"].append(ratio(f"{kind}: a call a time step", us, unit="us per step"))
    return {kind: case}


def files(quick: bool) -> dict[str, Case]:
    """Sizes on disk; the limit is a thirtieth of the float32 weights and 4 KiB."""
    from bisnn.packed import write

    sizes, ratios = dict[str, Any](), []
    with tempfile.TemporaryDirectory() as folder:
        for kind, workload in NETWORKS.items():
            floats = floor(workload)["bytes_float"]
            kinds: dict[str, dict[str, Any]] = {
                "map": {},
                f"{MEMBERS} members": {"members": MEMBERS},
                "posterior": {"posterior": True},
            }
            sizes[kind] = {"float32_weights": floats}
            for name, options in kinds.items():
                network = inference.packed_network(workload, **options)
                size = sizes[kind][name] = write(network, Path(folder) / "file")
                limit = floats / 30 + 4096 if name == "map" else None
                about = {"unit": "bytes", "of_float": size / floats}
                ratios.append(ratio(f"{kind}: file, {name}", float(size), "<=", limit, **about))
    return {"files": {"results": sizes, "ratios": ratios, "left_out": {}}}


def c_code(quick: bool) -> dict[str, Case]:
    """Builds of the C code and two ways through the engine, in turn. Each build must first pass the
    test that comes with the code.
    """
    try:
        from bisnn.shipping import c
    except ImportError as error:
        return {"c": {"ratios": [], "left_out": {"C code": str(error)}}}
    if shutil.which("gcc") is None:
        return {"c": {"ratios": [], "left_out": {"C code": "there is no gcc"}}}
    workload = replace(small("mlp") if quick else MLP, B=1, T=100 if quick else STEPS_OF_C)
    x, packed = workload.batch(torch.uint8)[0][:, 0].numpy(), inference.packed_network(workload)
    rounds = 2 if quick else 10
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = c.write(packed, folder, x)
        (folder / "timing.c").write_text(TIMING)
        programs = {
            f"C, {build}": compile_timing(folder, build, flags, workload.T)
            for build, flags in BUILDS.items()
        }
        ns = time_in_turn(programs, workload, rounds)
    version = subprocess.run(
        ["gcc", "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    results = {
        label: {"median_ns": statistics.median(times), "min_ns": min(times), "times_ns": times}
        for label, times in ns.items()
    }
    about = {
        "workload": asdict(workload),
        "floor": floor(workload),
        "rounds": rounds,
        "compiler": version,
        "builds": BUILDS,
    }
    ratios = c_ratios({label: min(times) for label, times in ns.items()}, list(programs), sizes)
    return {"c": about | {"sizes": sizes, "results": results, "ratios": ratios, "left_out": {}}}


def c_ratios(
    ns: dict[str, float], builds: list[str], sizes: dict[str, int]
) -> list[dict[str, Any]]:
    """The best nanoseconds of each, the C code's beside the engine's, and the size of the code; the
    target is that of the first build.
    """
    ratios = [ratio(f"mlp: a step, {label}", ns[label], unit="ns") for label in ns]
    ways = {"engine within a recording": ENGINE, "engine, a call a step": STREAM}
    for build in builds:
        goal = C_LIMIT if build == builds[0] else None
        for way, label in ways.items():
            value = ns[build] / ns[label]
            ratios.append(ratio(f"mlp: {build} / {way}", value, "<=", goal, unit="ratio"))
    for key, size in sizes.items():
        ratios.append(ratio(f"mlp: C code, {key}", float(size), unit="bytes"))
    return ratios


def compile_timing(folder: Path, build: str, flags: list[str], steps: int) -> Path:
    """Compile the timing program, after the code's test has passed with the same options."""
    note(f"c: compiling {build}")
    gcc = ["gcc", "-std=c99", *flags, f"-DSTEPS={steps}", "-DRUNS=5", "-w", "model.c"]
    program = folder / build.replace(", ", "_").replace(" ", "_")
    subprocess.run(
        [*gcc, "model_check.c", "main.c", "-o", f"{program}_test"], cwd=folder, check=True
    )
    subprocess.run([f"{program}_test"], check=True, capture_output=True)
    subprocess.run([*gcc, "timing.c", "-o", program], cwd=folder, check=True)
    return program


def time_in_turn(
    programs: dict[str, Path], workload: Workload, rounds: int
) -> dict[str, list[float]]:
    """Nanoseconds per time step, of the programs and of the engine."""
    engines = {name: Contender(name) for name in (ENGINE, STREAM)}
    for contender in engines.values():
        contender.build(workload)
    ns: dict[str, list[float]] = {label: [] for label in (*programs, *engines)}
    for i in range(rounds):
        note(f"c: round {i + 1} of {rounds}")
        for label, program in programs.items():
            ran = subprocess.run([program], check=True, capture_output=True, text=True)
            ns[label] += [float(line) for line in ran.stdout.split()[1:]]  # the first one warms up
        for label, contender in engines.items():
            seconds = contender.ask("run", most=4, warm=1)
            ns[label] += [round(1e9 * s / workload.T, 3) for s in seconds]
    for contender in engines.values():
        contender.close()
    return ns


CASES: dict[str, Callable[[bool], dict[str, Case]]] = {
    "dense": dense,
    "mlp": lambda quick: network("mlp", quick),
    "conv": lambda quick: network("conv", quick),
    "files": files,
    "c": c_code,
}


def times(name: str, case: Case) -> str:
    """The contestants of a case as a table."""
    columns = {
        "median ms": "median_ms",
        "min ms": "min_ms",
        "spikes that differ": "spikes_that_differ",
        "peak MiB": "peak_mib",
        "version": "version",
    }
    rows = [(k, [row.get(key) for key in columns.values()]) for k, row in case["results"].items()]
    shown = table(name, list(columns), rows)
    if case["firing_rates"]:
        shown += f"\nfiring rates by layer, before pooling: {case['firing_rates']}"
    return shown


def main() -> None:
    args = cases.parser(__doc__, CASES, "packed.json", "packed_quick.json").parse_args()
    out, report = cases.begin(args)
    packages = ("numpy", "numba", "llvmlite", "torch")
    for name in args.case or CASES:
        about = cases.about(args.quick, threads=1)
        about["versions"] = {package: metadata.version(package) for package in packages}
        begin = time.perf_counter()
        for group, case in CASES[name](args.quick).items():
            report["cases"][group] = about | case | {"took_s": round(time.perf_counter() - begin)}
            shown = [times(group, case)] if "firing_rates" in case else []
            print(*shown, *cases.left_out(case), sep="\n", end="\n\n", flush=True)
        results.write(out, report)  # after each case: what was measured stays, whatever follows
    rows = [row for case in report["cases"].values() for row in case["ratios"]]
    columns = ["measured", "unit", "target", "met"]
    cells = ((row["what"], [row[key] for key in columns]) for row in rows)
    print(table("packed", columns, cells), end="\n\n")
    print(" | ".join(f"{key} {value}" for key, value in machine().items()))
    print(f"written: {out}")


if __name__ == "__main__":
    main()
