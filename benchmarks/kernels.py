"""What the CPU kernels cost by themselves: scan and adjoint, products by spike density, members together or one by one.

`python benchmarks/kernels.py [FILE]` prints tables and writes FILE (or benchmarks/results/kernels.json): medians in milliseconds,
one thread. The constant SPARSE (kernels/cpu.py) and the choice in prediction.members_in_one_pass are set from it. Where there is a
CUDA device, the ensembles run on it too.
"""

from __future__ import annotations

import json
import statistics
import sys
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from report import machine

import bisnn
from bisnn import prediction
from bisnn.kernels import cpu, reference

T, B, N = 100, 64, 256


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
        row = {
            "density": density,
            "events": ms(cpu._sparse_rows, x),
            "forward, dense": ms(reference.linear, x, w),
            "forward, events": ms(cpu.linear, x, w),
        }
        row["gradient, dense"] = ms(reference.linear_weight_gradient, g, x)
        row["gradient, events"] = ms(cpu.linear_weight_gradient, g, x)
        rows.append(row)
    cpu.SPARSE = usual
    return rows


def ensembles(device: str) -> list[dict[str, Any]]:
    """Ten members of two layers of N neurons, by length and batch."""
    rows = []
    cases = [
        ("layers", 10, 1),
        ("layers", 100, 1),
        ("layers", 100, 8),
        ("layers", 100, 64),
        ("stepping", 100, 1),
        ("stepping", 100, 64),
    ]
    usual = prediction.members_in_one_pass
    for kind, steps, batch in cases:
        hidden = bisnn.Linear(N, N) if kind == "layers" else bisnn.Recurrent(N, N)
        net = bisnn.Network(bisnn.Linear(20, N), hidden, readout=2, neuron=bisnn.SRM(threshold=0.1)).to(device)
        x = (torch.rand(steps, batch, 20, generator=torch.Generator().manual_seed(0)) < 0.05).float().to(device)
        row = {"network": kind, "T": steps, "B": batch, "one member": ms(members, net, x, 1, repeat=5)}
        for name, together in (("ten, one by one", 1), ("ten, together", 10)):
            vars(prediction)["members_in_one_pass"] = lambda *_, n=together: n
            row[name] = ms(members, net, x, 10, repeat=5)
        rows.append(row)
    vars(prediction)["members_in_one_pass"] = usual
    return rows


def members(net: bisnn.Network, x: torch.Tensor, samples: int) -> float:
    return bisnn.predict(net, x, samples).mean.sum().item()  # .item() waits for the device


def main() -> None:
    torch.set_num_threads(1)
    tables = {"scans": [scans()], "products": products(), "ensembles": ensembles("cpu")}
    if torch.cuda.is_available():
        tables["ensembles on " + torch.cuda.get_device_name()] = ensembles("cuda")
    for name, rows in tables.items():
        print(name)
        print("  ".join(f"{key:>22}" for key in rows[0]))
        for row in rows:
            print("  ".join(f"{value!s:>22}" for value in row.values()))
    report = {"machine": machine(), "sizes": {"T": T, "B": B, "N": N}, "milliseconds": tables}
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "kernels.json"
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
