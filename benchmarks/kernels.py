"""What the CPU kernels cost by themselves: scan and adjoint, products by spike density, members together or one by one.

`python benchmarks/kernels.py` prints a table and writes benchmarks/results/kernels.json: medians in milliseconds, one thread. The
constants SPARSE (kernels/cpu.py) and TOGETHER, TOGETHER_STEPPING (prediction.py) are set from it.
"""

from __future__ import annotations

import json
import statistics
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from iteration import machine

import bisnn
from bisnn import prediction
from bisnn.kernels import cpu, reference

T, B, N = 100, 64, 256
OUT = Path(__file__).parent / "results" / "kernels.json"


def ms(function: Callable[..., object], *arguments: Any, repeat: int = 21, **options: Any) -> float:
    call = partial(function, *arguments, **options)
    call()
    return round(1000 * statistics.median(timeit.repeat(call, number=1, repeat=repeat)), 2)


def scans() -> dict[str, float]:
    """One layer of N neurons, B recordings, T steps."""
    I = torch.randint(-5, 6, (T, B, N), generator=torch.Generator().manual_seed(0)).float()
    zero, kappa, constants = torch.zeros(B, N), torch.tensor(N**-0.5), bisnn.SRM().constants()
    forward = (I, zero, zero, zero, kappa, constants)
    s, u, *_ = cpu.scan(*forward)
    results = {"scan, reference": ms(reference.scan, *forward), "scan, cpu": ms(cpu.scan, *forward)}
    for name in ("sigmoid", "box"):
        results[f"adjoint, {name}, cpu"] = ms(cpu.adjoint, s, None, (None, None, None), u, kappa, constants, name, 1.0, False)
    return results


def products() -> list[dict[str, Any]]:
    """T B rows of N spikes with an N x N matrix, forward and weight gradient, event-driven against dense."""
    generator = torch.Generator().manual_seed(0)
    w = torch.where(torch.rand(N, N, generator=generator) < 0.5, 1.0, -1.0)
    g = torch.randn(T * B, N, generator=generator)
    rows = []
    usual, cpu.SPARSE = cpu.SPARSE, 1.0  # event-driven at any density
    for density in (0.01, 0.05, 0.1, 0.15, 0.2, 0.3):
        x = (torch.rand(T * B, N, generator=generator) < density).float()
        row = {"density": density, "forward, dense": ms(reference.linear, x, w), "forward, events": ms(cpu.linear, x, w)}
        row["gradient, dense"] = ms(reference.linear_weight_gradient, g, x)
        row["gradient, events"] = ms(cpu.linear_weight_gradient, g, x)
        rows.append(row)
    cpu.SPARSE = usual
    return rows


def ensembles() -> list[dict[str, Any]]:
    """Ten members of two layers of N neurons, by length and batch."""
    rows = []
    cases = [
        ("layers", 10, 1),
        ("layers", 50, 1),
        ("layers", 100, 8),
        ("layers", 100, 64),
        ("stepping", 100, 1),
        ("stepping", 100, 64),
    ]
    usual = prediction.TOGETHER, prediction.TOGETHER_STEPPING
    for kind, steps, batch in cases:
        hidden = bisnn.Linear(N, N) if kind == "layers" else bisnn.Recurrent(N, N)
        net = bisnn.Network(bisnn.Linear(20, N), hidden, readout=2, neuron=bisnn.SRM(threshold=0.1))
        x = (torch.rand(steps, batch, 20, generator=torch.Generator().manual_seed(0)) < 0.05).float()
        row = {"network": kind, "T": steps, "B": batch, "one member": ms(bisnn.predict, net, x, samples=1, repeat=5)}
        for name, limit in (("ten, one by one", 0), ("ten, together", 1 << 40)):
            prediction.TOGETHER = prediction.TOGETHER_STEPPING = limit
            row[name] = ms(bisnn.predict, net, x, samples=10, repeat=5)
        rows.append(row)
    prediction.TOGETHER, prediction.TOGETHER_STEPPING = usual
    return rows


def main() -> None:
    torch.set_num_threads(1)
    tables = {"scans": [scans()], "products": products(), "ensembles": ensembles()}
    for rows in tables.values():
        print("  ".join(f"{key:>22}" for key in rows[0]))
        for row in rows:
            print("  ".join(f"{value!s:>22}" for value in row.values()))
    report = {"machine": machine(), "sizes": {"T": T, "B": B, "N": N}, "milliseconds": tables}
    OUT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
