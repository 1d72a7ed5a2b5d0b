"""What training and predicting cost on a CUDA device, beside another library: `make bench-gpu`, or
`python benchmarks/gpu.py`.

The networks of workloads.py with B = 64 and T = 100; and "wide", one layer of n inputs and n
neurons, B = 16 and T = 500, forward and backward without an update, as in a chart of libraries that
Open Neuromorphic publishes. "Compiled" are steps of `bisnn.compiled`. All contestants live in this
process and take turns, a few iterations per round; times are medians from CUDA events, after warm-
up. Peak memory is what PyTorch had allocated at most during an iteration, less what it had just
before the contestant's first one, when network and input were there; of a compiled step also in
those before it, because the memory of a graph counts only while it is recorded. What cannot run is
left out, with its reason.

Ours run under PyTorch's usual settings. The others get what makes them fast: TF32 in matrix
products, and cuDNN's search for the fastest algorithm. Gradients in float16 are not scaled. The
floor is operations and bytes (workloads.py: Workload.floor) at the rates measured here: a large
float16 product, a copy.

SpikingJelly 2.0 comes from .venv-peers (`python benchmarks/cpu.py --setup`), or from --peers, a
folder that holds the Python files of spikingjelly and loguru; PyTorch and all else are those of
this environment.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from contestants import (
    BAYES,
    HARD,
    ST,
    Build,
    Built,
    first_line,
    ours,
    prediction,
    products,
    relu,
    spikingjelly,
    step_by_step,
)
from workloads import CONV, MLP, THRESHOLDS, Workload

from bisnn_experiments import results
from bisnn_experiments.measurement import machine, note, table

ROOT = Path(__file__).resolve().parents[1]
CASES = ("conv", "mlp", "wide", "ensemble")
WIDTHS = (512, 4096, 16384)
# At most, on an H200: of a case and a row, milliseconds and MiB (None: not set)
TARGETS: dict[str, dict[str, tuple[float, float | None]]] = {
    "conv": {
        "bisnn: ST, local, compiled": (6.7, 2048),
        "bisnn: ST, bptt, compiled": (10.0, None),
    },
    "mlp": {"bisnn: ST, local, compiled": (0.85, None)},
    "wide, n = 512": {"bisnn: ST, compiled": (0.45, None)},
    "wide, n = 4096": {"bisnn: ST, compiled": (1.5, 0.6 * 1024)},
    "wide, n = 16384": {
        "bisnn: ST, compiled": (14.0, 5 * 1024),
        "bisnn: Bayes, relaxed, compiled": (20.0, None),
    },
}


class Entry(NamedTuple):
    """A contestant."""

    function: Callable[..., Build]
    arguments: dict[str, Any]
    fast: bool = True  # TF32 and cuDNN's search on
    conv_only: bool = False


HALF = {"autocast": torch.float16}
GRAPH = {"compiled": True}
TRAINING: dict[str, Entry] = {
    "bisnn: ST, local, compiled": Entry(ours, ST | GRAPH, False),
    "bisnn: Bayes, local, relaxed, compiled": Entry(ours, BAYES | GRAPH, False),
    "bisnn: ST, bptt, compiled": Entry(ours, ST | GRAPH | {"bptt": True}, False),
    "bisnn: ST, local": Entry(ours, ST, False),
    "bisnn: Bayes, local, relaxed": Entry(ours, BAYES, False),
    "bisnn: Bayes, local, relaxed, fp16 autocast": Entry(ours, BAYES | HALF, False),
    "bisnn: Bayes, local, hard": Entry(ours, HARD, False),
    "bisnn: ST, bptt": Entry(ours, ST | {"bptt": True}, False),
    "SpikingJelly, TF32": Entry(spikingjelly, {}),
    "SpikingJelly, TF32, channels last": Entry(
        spikingjelly, {"channels_last": True}, conv_only=True
    ),
    "SpikingJelly, fp16 autocast": Entry(spikingjelly, {"half": "autocast"}),
    "SpikingJelly, fp16 autocast, fp16 neurons": Entry(spikingjelly, {"half": "neurons"}),
    "SpikingJelly, fp16 autocast, fp16 neurons, channels last": Entry(
        spikingjelly, {"half": "neurons", "channels_last": True}, conv_only=True
    ),
    "step by step in PyTorch, TF32": Entry(step_by_step, {}),
    "ReLU network, TF32": Entry(relu, {}),
    "products alone, fp16, channels last": Entry(
        products, {"dtype": torch.float16, "channels_last": True}
    ),
}
WIDE: dict[str, Entry] = {
    "bisnn: ST, compiled": Entry(ours, ST | GRAPH),
    "bisnn: ST": Entry(ours, ST),
    "bisnn: Bayes, relaxed, compiled": Entry(ours, BAYES | GRAPH),
    "bisnn: Bayes, relaxed": Entry(ours, BAYES),
    "SpikingJelly, TF32": Entry(spikingjelly, {}),
    "SpikingJelly, fp16 autocast, fp16 neurons": Entry(spikingjelly, {"half": "neurons"}),
    "ReLU, TF32": Entry(relu, {}),
}
COMPILED = {"SpikingJelly, TF32, compiled": Entry(spikingjelly, {"compiled": True})}
PREDICTION: dict[str, Entry] = {
    "one pass, net(x)": Entry(prediction, {"raw": True}, False),
    "one pass, predict(net, x)": Entry(prediction, {}, False),
    "ten members, predict(net, x, 10)": Entry(prediction, {"samples": 10}, False),
}
# At most so many times as long as one pass, net(x), ten members are to take on an H200
TEN_TO_ONE = {"conv, B = 64": 8, "conv, B = 1": 2, "mlp, B = 1": 2}


class Clock:
    """Times and memory on one device; on a CPU, which is for trying this file out, times alone."""

    def __init__(self, device: str):
        self.cuda = device.startswith("cuda")

    def ms(self, call: Callable[[], object], repeat: int) -> list[float]:
        if not self.cuda:
            marks = [time.perf_counter()]
            for _ in range(repeat):
                call()
                marks.append(time.perf_counter())
            return [1000 * (b - a) for a, b in pairwise(marks)]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeat + 1)]
        torch.cuda.synchronize()
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairwise(events)]

    def allocated_bytes(self) -> int:
        if not self.cuda:
            return 0
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def peak_mib(self, call: Callable[[], object], before: int) -> float | None:
        if not self.cuda:
            return None
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20


@contextmanager
def settings(fast: bool) -> Iterator[None]:
    """PyTorch's usual settings inside the block, or those that make float networks fast."""
    precision, search = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    if fast:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = search


def measure(
    entries: dict[str, Entry], workload: Workload, rounds: int, iterations: int
) -> dict[str, Any]:
    """Results by contestant, and the reason for each that could not run."""
    clock, running = Clock(workload.device), dict[str, Built]()
    results, left_out = dict[str, dict[str, Any]](), dict[str, str]()

    def leave_out(name: str, error: Exception) -> None:
        left_out[name] = first_line(error)
        note(f"  left out: {name}: {left_out[name]}")
        running.pop(name, None)
        results.pop(name, None)

    for name, entry in entries.items():
        note(f"{workload.kind}, B = {workload.B}: {name}")
        try:
            built = entry.function(**entry.arguments)(workload)
            before = clock.allocated_bytes()
            initial = [p.detach().sum(dtype=torch.float64).item() for p in built.parameters]
            with settings(entry.fast):
                peak = clock.peak_mib(partial(settle, built), before)
                if not entry.arguments.get("compiled"):
                    peak = clock.peak_mib(built.iteration, before)
            learned = [p.detach().sum(dtype=torch.float64).item() for p in built.parameters]
            if any(new == old for new, old in zip(learned, initial, strict=True)):
                raise RuntimeError("a layer did not learn: its weights have not changed")
            running[name], results[name] = built, {"peak_mib": peak, "times_ms": []}
        except Exception as error:  # whatever a library raises is a result here
            leave_out(name, error)
        if clock.cuda:
            torch.cuda.empty_cache()
    for i in range(rounds):
        note(f"{workload.kind}, B = {workload.B}: round {i + 1} of {rounds}")
        for name, built in list(running.items()):
            try:
                with settings(entries[name].fast):
                    clock.ms(built.iteration, 2)  # brings caches and clock rates back
                    results[name]["times_ms"] += clock.ms(built.iteration, iterations)
            except Exception as error:
                leave_out(name, error)
    for name, built in list(running.items()):
        try:
            ms = results[name].pop("times_ms")
            results[name] |= {
                "median_ms": statistics.median(ms),
                "min_ms": min(ms),
                "max_ms": max(ms),
                "iterations": len(ms),
            }
            results[name] |= built.facts()
        except Exception as error:
            leave_out(name, error)
    return {"workload": asdict(workload), "results": results, "left_out": left_out}


def settle(built: Built) -> None:
    """Iterations until all is compiled and recorded."""
    for _ in range(max(3, built.settles)):
        built.iteration()


def ceilings(device: str, quick: bool) -> dict[str, float]:
    """What this device reaches: a float16 product of 8192 x 8192 matrices, a copy of 1 GiB (read
    and written).
    """
    clock, n = Clock(device), 256 if quick else 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.float16) for _ in range(2))
    clock.ms(lambda: a @ b, 5)
    product_ms = statistics.median(clock.ms(lambda: a @ b, 5 if quick else 50))
    x = torch.empty(2 ** (20 if quick else 30), dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    clock.ms(lambda: y.copy_(x), 5)
    copy_ms = statistics.median(clock.ms(lambda: y.copy_(x), 5 if quick else 50))
    return {
        "fp16_tflop_per_s": 2 * n**3 / product_ms / 1e9,
        "copy_tb_per_s": 2 * x.numel() / copy_ms / 1e9,
    }


def training(
    workload: Workload, rates: dict[str, float], args: argparse.Namespace
) -> dict[str, Any]:
    entries = TRAINING | (COMPILED if args.compile else {})
    entries = {
        name: entry
        for name, entry in entries.items()
        if workload.kind == "conv" or not entry.conv_only
    }
    case = measure(some_of(entries, args), workload, args.rounds, args.iterations)
    work = workload.floor()
    floor = {
        "operations_ms": work["flop"] / rates["fp16_tflop_per_s"] / 1e9,
        "bytes_ms": work["bytes"] / rates["copy_tb_per_s"] / 1e9,
    }
    case |= {"thresholds": THRESHOLDS[workload.kind], "floor": work | floor}
    results = case["results"]
    others = {
        "spikingjelly": "SpikingJelly",
        "step_by_step": "step by step",
        "products": "products alone",
    }
    fastest = {
        key: min(
            (r["median_ms"] for name, r in results.items() if name.startswith(start)), default=None
        )
        for key, start in others.items()
    }
    fastest["floor"] = max(floor.values())
    for row in results.values():
        row["times_faster_than"] = {
            key: None if ms is None else ms / row["median_ms"] for key, ms in fastest.items()
        }
    return case


def some_of(entries: dict[str, Entry], args: argparse.Namespace) -> dict[str, Entry]:
    """Those that --only asks for, or all."""
    return {
        name: entry
        for name, entry in entries.items()
        if not args.only or any(text in name for text in args.only)
    }


def targets(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What ours aim at, beside what was measured."""
    rows: list[dict[str, Any]] = []
    for case, aims in TARGETS.items():
        kind, _, width = case.partition(", ")
        measured = report.get(kind, {})
        results = (measured.get(width, {}) if width else measured).get("results", {})
        for name, limits in aims.items():
            for key, unit, limit in zip(
                ("median_ms", "peak_mib"), ("ms", "MiB"), limits, strict=True
            ):
                got = results.get(name, {}).get(key)
                if limit is not None and got is not None:
                    found = {"at_most": limit, "measured": got, "met": got <= limit}
                    rows.append({"what": f"{case}, {name}", "unit": unit} | found)
    return rows


def device_facts(device: str) -> dict[str, Any]:
    if not device.startswith("cuda"):
        return {"device": "CPU: for trying this file out, not for numbers"}
    facts = torch.cuda.get_device_properties(torch.device(device))
    versions = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    for name in ("triton", "spikingjelly"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = getattr(sys.modules.get(name), "__version__", "unknown")
    capability = f"{facts.major}.{facts.minor}"
    return {
        "device": facts.name,
        "memory_gib": round(facts.total_memory / 2**30, 1),
        "capability": capability,
    } | versions


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "gpu.json",
        help="where the JSON goes",
    )
    parser.add_argument(
        "--peers", type=Path, help="a folder with spikingjelly and loguru (default: .venv-peers)"
    )
    parser.add_argument(
        "--compile", action="store_true", help="SpikingJelly under torch.compile too: minutes more"
    )
    parser.add_argument("--case", action="append", choices=CASES, help="run this one alone")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="contestants whose names hold it",
    )
    parser.add_argument("--width", type=int, action="append", help="of a wide layer (default: all)")
    parser.add_argument(
        "--rounds", type=int, default=10, help="turns of each contestant (default: 10)"
    )
    parser.add_argument(
        "--iterations", type=int, default=10, help="timed iterations per turn (default: 10)"
    )
    parser.add_argument(
        "--device", default="cuda", help='default: cuda; "cpu" tries this file out, with --quick'
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny networks, few rounds: does everything run?"
    )
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.iterations = 2, 2
    return args


def workloads(args: argparse.Namespace) -> tuple[Workload, Workload]:
    """The convolutional network and the MLP."""
    conv, mlp = (replace(w, T=100, B=64, device=args.device) for w in (CONV, MLP))
    if args.quick:
        return replace(conv, T=50, B=2, hidden=(4, 8, 8)), replace(mlp, B=4, hidden=(32, 32))
    return conv, mlp


def wide(n: int, args: argparse.Namespace) -> dict[str, Any]:
    """One layer of n neurons, forward and backward; printed."""
    workload = Workload("wide", 500, 16, (n,), device=args.device)
    case = measure(some_of(WIDE, args), workload, args.rounds, args.iterations)
    rows = [(name, [r["median_ms"], r["peak_mib"]]) for name, r in case["results"].items()]
    print(table(f"wide, n = {n}", ["median ms", "peak MiB"], rows), end="\n\n")
    return case


def print_training(workload: Workload, case: dict[str, Any]) -> None:
    columns = ["median ms", "min ms", "x SpikingJelly", "x step by step"]
    columns += ["x products", "x floor", "peak MiB"]
    rows = [
        (name, [r["median_ms"], r["min_ms"], *r["times_faster_than"].values(), r["peak_mib"]])
        for name, r in case["results"].items()
    ]
    print(table(f"{workload.kind}, B = {workload.B}, T = {workload.T}", columns, rows))
    missing = case["left_out"].items()
    print(*(f"left out: {name}: {why}" for name, why in missing), sep="\n", end="\n\n")


def ensemble(workload: Workload, args: argparse.Namespace) -> dict[str, Any]:
    """Ten members beside one pass; printed."""
    case = measure(PREDICTION, workload, args.rounds, max(2, args.iterations // 2))
    ten = case["results"].get("ten members, predict(net, x, 10)", {}).get("median_ms")
    for name, row in case["results"].items():
        row["ten_to_this"] = None if ten is None else ten / row["median_ms"]
        row["at_most"] = TEN_TO_ONE.get(_group(workload)) if name == "one pass, net(x)" else None
    keys = ("median_ms", "ten_to_this", "at_most", "peak_mib")
    rows = [(name, [row[key] for key in keys]) for name, row in case["results"].items()]
    columns = ["median ms", "ten members / this", "at most", "peak MiB"]
    print(table(_group(workload), columns, rows), end="\n\n")
    return case


def _group(workload: Workload) -> str:
    return f"{workload.kind}, B = {workload.B}"


def main() -> None:
    args = arguments()
    # Last in the path, or the peers' PyTorch would take the place of ours.
    installed = (ROOT / ".venv-peers").glob("lib/python*/site-packages")
    sys.path += map(str, [args.peers.resolve()] if args.peers else installed)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "quick": args.quick,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        report["left_out"] = {"everything": "PyTorch finds no CUDA device here"}
        results.write(args.out, report)
        print(f"PyTorch finds no CUDA device here: nothing measured; {args.out} says so")
        return
    conv, mlp = workloads(args)
    chosen = args.case or CASES
    report["ceilings"] = rates = ceilings(args.device, args.quick)
    results.write(args.out, report)
    for workload in (w for w in (conv, mlp) if w.kind in chosen):
        report[workload.kind] = case = training(workload, rates, args)
        results.write(args.out, report)
        print_training(workload, case)
    if "wide" in chosen:
        report["wide"] = {}
        for n in (32,) if args.quick else args.width or WIDTHS:
            report["wide"][f"n = {n}"] = wide(n, args)
            results.write(args.out, report)
    if "ensemble" in chosen:
        report["ensemble"] = {}
        for workload in (mlp, replace(mlp, B=1), conv, replace(conv, B=1)):
            report["ensemble"][_group(workload)] = ensemble(workload, args)
            results.write(args.out, report)
    report["targets"] = targets(report)
    columns = ["unit", "at_most", "measured", "met"]
    lines = [(row["what"], [row[name] for name in columns]) for row in report["targets"]]
    print(table("targets", columns, lines), end="\n\n")
    report["device"] = device_facts(args.device)
    results.write(args.out, report)
    print(report["device"], report["ceilings"], f"written: {args.out}", sep="\n")


if __name__ == "__main__":
    main()
