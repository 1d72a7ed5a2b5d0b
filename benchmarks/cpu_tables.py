"""What cpu.py prints of its cases: tables, and the targets beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cases import Case

from bisnn_experiments.measurement import table

PREDICTION = ["one pass, net(x)", "one pass, predict(net, x)", "ten members, predict(net, x, 10)"]
ST, BAYES, BPTT = "bisnn: ST, local", "bisnn: Bayes, local, relaxed", "bisnn: ST, bptt"
# Case, contestant, and how many times faster than that it is to be
FASTER = (
    ("mlp", ST, "spikingjelly", 5.0),
    ("mlp", ST, "fastest_peer", 3.0),
    ("mlp", BAYES, "spikingjelly", 4.0),
    ("mlp", BAYES, "fastest_peer", 2.5),
    ("mlp", BPTT, "fastest_peer", 1.0),
    ("conv", ST, "fastest_peer", 3.0),
    ("conv", BAYES, "fastest_peer", 3.0),
    ("conv", BPTT, "fastest_peer", 1.0),
)
# Case, contestant, and the milliseconds that it may take on one thread
AT_MOST_MS = (
    ("mlp", ST, 10.5),
    ("mlp", BPTT, 21.0),
    ("conv", ST, 800.0),
    ("conv", BPTT, 1450.0),
)


def targets(cases: dict[str, Case]) -> list[dict[str, Any]]:
    """The ratios and times that this library aims at, beside what was measured; cases that were not
    run are left out.
    """
    results = {name: case["results"] for name, case in cases.items() if "results" in case}
    return [*_speed(results), *_memory(results), *_ensembles(results), *_startup(results)]


def _target(
    what: str, goal: str, sign: str, limit: float, measured: float | None
) -> dict[str, Any]:
    met = None if measured is None else measured >= limit if sign == ">=" else measured <= limit
    target = f"{sign} {limit:g}"
    return {"what": what, "ratio": goal, "target": target, "measured": measured, "met": met}


def _speed(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for case, name, other, limit in FASTER:
        if case in results:
            measured = results[case].get(name, {}).get("times_faster_than", {}).get(other)
            goal = f"times faster than {other.replace('_', ' ')}"
            yield _target(f"{case}, {name}", goal, ">=", limit, measured)
    for case, name, limit in AT_MOST_MS:
        if case in results:
            measured = results[case].get(name, {}).get("median_ms")
            yield _target(f"{case}, {name}", "median, ms", "<=", limit, measured)


def _memory(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in (ST, BAYES) if "conv" in results else ():
        measured = results["conv"].get(name, {}).get("peak_mib")
        yield _target(f"conv, {name}", "peak memory, MiB", "<=", 500, measured)
    for label, row in results.get("long", {}).items():
        if "peak_to_short" in row:
            peak, time = row["peak_to_short"], row["time_per_step_to_short"]
            yield _target(label, "peak memory to that of T = 100", "<=", 1.1, peak)
            yield _target(label, "time per step to that of T = 100", "<=", 1.1, time)


def _ensembles(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group, rows in results.get("ensemble", {}).items():
        limit = 5.0 if group.startswith("mlp") else 7.0
        for name in PREDICTION[:2]:
            measured = rows.get(name, {}).get("ten_to_this")
            yield _target(f"ensemble, {group}", f"ten members to {name}", "<=", limit, measured)


def _startup(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key, time in (("wall_s", "wall time"), ("cpu_s", "CPU time")):
        if "startup" in results:
            measured = results["startup"]["bisnn"][f"{key}_to_torch"]
            yield _target("startup", f"to import torch, {time}", "<=", 1.5, measured)


def tables(name: str, case: Case) -> str:
    """The results of a case as text."""
    if name in ("mlp", "conv"):
        return _training(name, case)
    if name == "scaling":
        return _scaling(case)
    results = case["results"]
    if name == "long":
        columns = {
            "us per step": "us_per_step",
            "peak MiB": "peak_mib",
            "time per step / T = 100": "time_per_step_to_short",
            "peak / T = 100": "peak_to_short",
        }
        rows = results.items()
    elif name == "ensemble":
        columns = {"median ms": "median_ms", "ten members / this": "ten_to_this"}
        groups = results.items()
        rows = [(f"{group}: {label}", r) for group, g in groups for label, r in g.items()]
    else:
        columns = {
            "wall s": "wall_s",
            "CPU s": "cpu_s",
            "wall / torch": "wall_s_to_torch",
            "CPU / torch": "cpu_s_to_torch",
        }
        rows = [(case["programs"][label], r) for label, r in results.items()]
    return table(name, list(columns), _cells(rows, columns.values()))


def _cells(rows: Any, keys: Any) -> list[tuple[str, list[Any]]]:
    return [(label, [row.get(key) for key in keys]) for label, row in rows]


def _training(name: str, case: Case) -> str:
    columns = {
        "median ms": "median_ms",
        "min ms": "min_ms",
        "x fastest peer": "fastest_peer",
        "x SpikingJelly": "spikingjelly",
        "x ReLU": "relu",
        "x products": "products",
        "peak MiB": "peak_mib",
        "first s": "first_s",
        "version": "version",
    }
    rows = [(label, r | r["times_faster_than"]) for label, r in case["results"].items()]
    return "\n".join(
        [
            table(name, list(columns), _cells(rows, columns.values())),
            "x: how many times faster than that. "
            "Share of our neurons that fire at a time, by layer, before pooling:",
            *(f"  {label}: {r['firing_rates']}" for label, r in rows if "firing_rates" in r),
        ]
    )


def _scaling(case: Case) -> str:
    parts = []
    for axis in dict.fromkeys(point["axis"] for point in case["points"]):
        here = {(p["contestant"], p["value"]): p for p in case["points"] if p["axis"] == axis}
        values, names = (list(dict.fromkeys(key[i] for key in here)) for i in (1, 0))
        for title, key in (("ms", "median_ms"), ("peak MiB", "peak_mib")):
            rows = [(n, [here.get((n, v), {}).get(key) for v in sorted(values)]) for n in names]
            parts.append(table(f"{title}, over {axis}", [f"{v:g}" for v in sorted(values)], rows))
        ended = case["ended"][axis].items()
        parts += [f"{contestant} ends {reason}" for contestant, reason in ended]
    return "\n".join(parts)
