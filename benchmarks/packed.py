"""What a trained network costs as packed bits, beside floats: `python benchmarks/packed.py`, or
`make bench`.

    dense     1024 x 1024 weights, one recording of 100 steps, 10 % and 1 % of the inputs active
    mlp       20-256-256-2, T = 100; a stream, a call a time step; ten members in one engine against
    ten engines conv      2 x 26 x 26 inputs, 64-128-128 channels, kernel 7, padding 3, pools 2-1-2,
    T = 50; ten members likewise files     bytes against those of float32 weights c         the MLP
    as C code, a time step, against the engine's

One recording, one thread. What everybody is given: inference.py; processes and turns as in cpu.py.
    The spikes of all contestants
are compared: the JSON has how many differ, to those of the engine. Read the ratios. --case replaces
    that case in the JSON and
leaves the others. Ratios are of minima: on a busy machine a long iteration is interrupted more
    often than a short one, so that a
ratio of medians would flatter the engine. Of the C code, the scalar build stands for a small
processor, and the target is its. The peers of peers.txt are installed into .venv-peers by `python
benchmarks/cpu.py --setup`; else they are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import inference
import torch
from contestants import MLP, Workload
from cpu import Case, Turns, small
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
from processes import ROOT, Contender

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
    met = (
        None
        if value is None or limit is None
        else (value >= limit if sign == ">=" else value <= limit)
    )
    return {
        "what": what,
        "measured": value,
        "target": None if limit is None else f"{sign} {show(limit)}",
        "met": met,
    } | about


# The cases: each returns what goes into the JSON


def side_by_side(group: str, workload: Workload, names: list[str], turns: tuple[int, int]) -> Case:
    """Contestants in turn, their spikes compared."""
    results, left_out = Turns(group, ((name, name, workload) for name in names), 1).measure(*turns)
    if ENGINE not in results:
        raise RuntimeError(f"{group}: the packed engine itself did not run: {left_out[ENGINE]}")
    spikes = {name: row.pop(SPIKES) for name, row in results.items() if SPIKES in row}
    for name, own in spikes.items():
        results[name]["spikes_that_differ"] = inference.differing(spikes[ENGINE], own)
    rates = results.get(STEPS, {}).pop("firing_rates", None)
    ours, goals, ratios = results[ENGINE]["min_ms"], FASTER.get(group, {}), []
    for name in (name for name in names if name in (STEPS, PRODUCT, *OTHERS)):
        ms = results.get(name, {}).get("min_ms")
        ratios.append(
            ratio(
                f"{group}: faster than {name}",
                ms and ms / ours,
                ">=",
                goals.get(name),
                unit="times",
            )
        )
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
    """Of a recording: operations of a float network, bits to be counted, and bytes of weights as
    floats and as bits.
    """
    synapses = [math.prod(layer.neurons) * layer.parents for layer in workload.layers]
    weights = sum(layer.neurons[0] * layer.parents for layer in workload.layers)
    steps, neurons = (
        workload.T * workload.B,
        sum(math.prod(layer.neurons) for layer in workload.layers),
    )
    return {
        "flop": 2.0 * steps * sum(synapses),
        "words": steps * sum(synapses) / 32,
        "neuron_steps": float(steps * neurons),
    } | {
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
    case = side_by_side(
        kind, workload, names, (2, 2) if quick else (10, 15) if kind == "mlp" else (6, 3)
    )
    ms = {name: row["min_ms"] for name, row in case["results"].items()}
    limit = TOGETHER if kind == "mlp" else None
    case["ratios"].append(
        ratio(
            f"{kind}: ten members in one engine / in ten",
            ms[TEN] / ms[APART],
            "<=",
            limit,
            unit="ratio",
        )
    )
    case["ratios"].append(
        ratio(f"{kind}: ten members in one engine / one", ms[TEN] / ms[ENGINE], unit="ratio")
    )
    if STREAM in ms:
        case["ratios"].append(
            ratio(f"{kind}: a call a time step", 1000 * ms[STREAM] / workload.T, unit="us a step")
        )
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
                size = sizes[kind][name] = write(
                    inference.described(workload, **options), Path(folder) / "file"
                )
                limit = floats / 30 + 4096 if name == "map" else None
                ratios.append(
                    ratio(
                        f"{kind}: file, {name}",
                        float(size),
                        "<=",
                        limit,
                        unit="bytes",
                        of_float=size / floats,
                    )
                )
    return {"files": {"results": sizes, "ratios": ratios, "left_out": {}}}


def c_code(quick: bool) -> dict[str, Case]:
    """Builds of the C code and two ways through the engine, in turn. Each build must first pass its
    golden vectors.
    """
    try:
        from bisnn.shipping import c
    except ImportError as error:
        return {"c": {"ratios": [], "left_out": {"C code": str(error)}}}
    if shutil.which("gcc") is None:
        return {"c": {"ratios": [], "left_out": {"C code": "there is no gcc"}}}
    workload = replace(small("mlp") if quick else MLP, B=1, T=100 if quick else STEPS_OF_C)
    x, packed, rounds = (
        workload.batch(torch.uint8)[0][:, 0].numpy(),
        inference.described(workload),
        2 if quick else 10,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = c.write(packed, folder, x)
        (folder / "timing.c").write_text(TIMING)
        programs = {
            f"C, {build}": compiled(folder, build, flags, workload.T)
            for build, flags in BUILDS.items()
        }
        ns = timed_in_turn(programs, workload, rounds)
    best = {label: min(times) for label, times in ns.items()}
    ratios = [ratio(f"mlp: a step, {label}", best[label], unit="ns") for label in ns]
    for label in programs:
        goal = C_LIMIT if label == next(iter(programs)) else None
        ratios.append(
            ratio(
                f"mlp: {label} / engine within a recording",
                best[label] / best[ENGINE],
                "<=",
                goal,
                unit="ratio",
            )
        )
        ratios.append(
            ratio(
                f"mlp: {label} / engine, a call a step",
                best[label] / best[STREAM],
                "<=",
                goal,
                unit="ratio",
            )
        )
    ratios += [
        ratio(f"mlp: C code, {key}", float(size), unit="bytes") for key, size in sizes.items()
    ]
    results = {
        label: {"median_ns": statistics.median(times), "min_ns": best[label], "times_ns": times}
        for label, times in ns.items()
    }
    version = subprocess.run(
        ["gcc", "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    about = {
        "workload": asdict(workload),
        "floor": floor(workload),
        "rounds": rounds,
        "compiler": version,
        "builds": BUILDS,
    }
    return {"c": about | {"sizes": sizes, "results": results, "ratios": ratios, "left_out": {}}}


def compiled(folder: Path, build: str, flags: list[str], steps: int) -> Path:
    """The timing program, after the test that comes with the code has passed with the same options."""
    note(f"c: compiling {build}")
    gcc = ["gcc", "-std=c99", *flags, f"-DSTEPS={steps}", "-DRUNS=5", "-w", "model.c"]
    program = folder / build.replace(", ", "_").replace(" ", "_")
    subprocess.run([*gcc, "model_test.c", "-o", f"{program}_test"], cwd=folder, check=True)
    subprocess.run([f"{program}_test"], check=True, capture_output=True)
    subprocess.run([*gcc, "timing.c", "-o", program], cwd=folder, check=True)
    return program


def timed_in_turn(
    programs: dict[str, Path], workload: Workload, rounds: int
) -> dict[str, list[float]]:
    """Nanoseconds a time step, of the programs and of the engine."""
    engines = {name: Contender(name) for name in (ENGINE, STREAM)}
    for contender in engines.values():
        contender.build(workload)
    ns: dict[str, list[float]] = {label: [] for label in (*programs, *engines)}
    for i in range(rounds):
        note(f"c: round {i + 1} of {rounds}")
        for label, program in programs.items():
            lines = subprocess.run(
                [program], check=True, capture_output=True, text=True
            ).stdout.split()
            ns[label] += [float(line) for line in lines[1:]]  # the first one warms up
        for label, contender in engines.items():
            ns[label] += [
                round(1e9 * s / workload.T, 3) for s in contender.ask("run", most=4, warm=1)
            ]
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
    rows = [
        (
            label,
            [
                row["median_ms"],
                row["min_ms"],
                row.get("spikes_that_differ"),
                row["peak_mib"],
                row["version"],
            ],
        )
        for label, row in case["results"].items()
    ]
    rates = (
        f"\nfiring rates by layer, before pooling: {case['firing_rates']}"
        if case["firing_rates"]
        else ""
    )
    return (
        table(name, ["median ms", "min ms", "spikes that differ", "peak MiB", "version"], rows)
        + rates
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=CASES,
        help="run this one alone (may be given several times)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny networks: does everything run? The numbers mean nothing",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where the JSON goes (default: benchmarks/results/packed.json; quick: out/)",
    )
    args = parser.parse_args()
    out = args.out or ROOT / (
        "out/packed_quick.json" if args.quick else "benchmarks/results/packed.json"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    report = json.loads(out.read_text()) if args.case and out.exists() else {"cases": {}}
    for name in args.case or CASES:
        about = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "threads": 1,
            "quick": args.quick,
        }
        about["versions"] = {
            package: metadata.version(package)
            for package in ("numpy", "numba", "llvmlite", "torch")
        }
        begin = time.perf_counter()
        for group, case in CASES[name](args.quick).items():
            report["cases"][group] = about | case | {"took_s": round(time.perf_counter() - begin)}
            left_out = [
                f"left out: {label}: {reason}" for label, reason in case["left_out"].items()
            ]
            print(
                *([times(group, case)] if "firing_rates" in case else []),
                *left_out,
                sep="\n",
                end="\n\n",
                flush=True,
            )
        out.write_text(
            json.dumps(report, indent=1) + "\n"
        )  # after each case: what was measured stays, whatever follows
    rows = [row for case in report["cases"].values() for row in case["ratios"]]
    columns = ["measured", "unit", "target", "met"]
    print(
        table("packed", columns, ((row["what"], [row[key] for key in columns]) for row in rows)),
        end="\n\n",
    )
    print(" | ".join(f"{key} {value}" for key, value in machine().items()))
    print(f"written: {out}")


if __name__ == "__main__":
    main()
