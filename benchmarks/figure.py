"""How cost grows, drawn from the JSON alone.

python benchmarks/figure.py [cpu.json [scaling.png]]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bisnn_experiments.drawing import BLUE, GREY, ORANGE

# Name in the JSON; name here, colour and line. Ours are thick and in the colours of the other
# figures.
LINES = {
    "bisnn: ST, local": ("bisnn: ST, local", BLUE, "-"),
    "bisnn: Bayes, local, relaxed": ("bisnn: Bayes, local, relaxed samples", ORANGE, "-"),
    "bisnn: ST, local, chunks of 100": ("bisnn: ST, local, chunks of 100 steps", BLUE, "--"),
    "SpikingJelly, multi-step": ("SpikingJelly 2.0", "#2f855a", "-"),
    "snnTorch, eager": ("snnTorch 1.0", "#805ad5", "-"),
    "snnTorch, compiled time loop": ("snnTorch 1.0, compiled time loop", "#805ad5", "--"),
    "Norse": ("Norse 1.1", "#b83280", "-"),
    "sinabs": ("sinabs 3.1", "#975a16", "-"),
    "ReLU network": ("ReLU network of that shape", GREY, ":"),
}
AXES = {"T": "time steps T", "width": "neurons per hidden layer", "density": "input density"}
QUANTITIES = {"median_ms": "time, ms", "peak_mib": "peak memory, MiB"}


def scaling(case: dict[str, Any], path: Path) -> None:
    """Time and memory of one training iteration over T, over width and over input density."""
    figure = Figure(figsize=(12.6, 7.4), layout="constrained")
    grid = figure.subplots(len(QUANTITIES), len(AXES), sharex="col", sharey="row")
    for j, (axis_name, axis_title) in enumerate(AXES.items()):
        for i, (quantity, title) in enumerate(QUANTITIES.items()):
            axis = grid[i, j]
            for name, (_, colour, line) in LINES.items():
                points = [
                    p
                    for p in case["points"]
                    if (p["axis"], p["contestant"]) == (axis_name, name) and p[quantity]
                ]
                here = sorted((p["value"], p[quantity]) for p in points)
                ours = name.startswith("bisnn")
                style: dict[str, Any] = {
                    "linewidth": 2.2 if ours else 1.2,
                    "markersize": 4 if ours else 3,
                    "zorder": 3 if ours else 2,
                }
                axis.plot(
                    [x for x, _ in here],
                    [y for _, y in here],
                    line,
                    marker="o",
                    color=colour,
                    **style,
                )
            axis.set(xscale="log", yscale="log")
            axis.grid(True, which="major", color="#e2e8f0", linewidth=0.8)
            axis.tick_params(labelsize=8)
            if j == 0:
                axis.set_ylabel(title)
        values = sorted({p["value"] for p in case["points"] if p["axis"] == axis_name})
        grid[-1, j].set_xticks(
            values, [f"{v:.0%}" if axis_name == "density" else f"{v:,}" for v in values]
        )
        grid[-1, j].set_xticks([], minor=True)
        grid[-1, j].set_xlabel(axis_title)
    shown = {p["contestant"] for p in case["points"]}
    handles = [grid[0, 0].lines[i] for i, name in enumerate(LINES) if name in shown]
    labels = [label for name, (label, _, _) in LINES.items() if name in shown]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(caption(case), fontsize=9)
    figure.savefig(path, dpi=150)


def caption(case: dict[str, Any]) -> str:
    w, limits, threads = case["workload"], case["limits"], case["threads"]
    sizes = "-".join(map(str, (20, *w["hidden"], 2)))
    usual = f"{sizes}, B = {w['B']}, T = {w['T']}, {w['density']:.0%} of the inputs active"
    where = f"{threads} thread{'s' * (threads > 1)} of {case['machine']['cpu']}"
    most = f"{limits['iteration_s']:g} s per iteration, {limits['start_s']:g} s to start, "
    most += f"or {limits['memory_mib'] / 1024:g} GiB"
    first = f"One training iteration; where not varied: {usual}; {where}"
    return f"{first}\nA line ends early where its next point takes more than {most}"


def main() -> None:
    root = Path(__file__).resolve().parents[1]
    usual = [root / "benchmarks" / "results" / "cpu.json", root / "docs" / "scaling.png"]
    given = [Path(argument) for argument in sys.argv[1:3]]
    source, path = given + usual[len(given) :]
    scaling(json.loads(source.read_text())["cases"]["scaling"], path)


if __name__ == "__main__":
    main()
