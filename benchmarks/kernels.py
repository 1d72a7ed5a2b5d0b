"""Products of a layer by the density of spikes, on one CPU thread: sums over bits against dense
products.

    python benchmarks/kernels.py [FILE]

prints a table and writes FILE (or benchmarks/results/kernels.json): medians in milliseconds; the
ways take turns. From it RARE and DENSE (kernels/cpu.py) are set: the densities up to which adding
rows one by one beats adding them by fours, and adding rows beats the dense product. Whole layers
and networks are measured in cpu.py.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from bisnn.bits import counting
from bisnn.kernels import cpu
from bisnn_experiments import results
from bisnn_experiments.measurement import machine, table

ROWS, N = 6400, 256  # T B rows of N spikes, N x N weights
DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
COUNTS, ADDED = "hard weights, counts", "relaxed, add_rows"
FORWARD, ROUNDED = "forward, dense", "forward, dense, bfloat16"
ONE_BY_ONE, BY_FOURS = "gradient, add_rows_transposed", "gradient, add_rows_by_fours"
BACKWARD = "gradient, dense"


def ways(density: float) -> dict[str, Callable[[], object]]:
    """Calls by name. All of them write where they wrote before: fresh memory would cost each the
    same on top.
    """
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(ROWS, N, generator=generator) < density).float()
    w, g = (torch.randn(n, N, generator=generator) for n in (N, ROWS))
    rows, signs = (cpu.keep(z, []).numpy().view(np.uint32) for z in (x, (w > 0).float()))
    w_bits, w_rows = np.ascontiguousarray(signs.T), w.t().contiguous()
    currents, sums = torch.empty(ROWS, N), torch.zeros(N, N)
    return {
        COUNTS: lambda: counting.counts(0, ROWS, rows, w_bits, currents.numpy()),
        ADDED: lambda: counting.add_rows(0, ROWS, rows, w_rows.numpy(), currents.numpy()),
        FORWARD: lambda: torch.mm(x, w_rows, out=currents),
        ROUNDED: lambda: currents.copy_(torch.mm(x.bfloat16(), w_rows.bfloat16())),
        ONE_BY_ONE: lambda: counting.add_rows_transposed(0, N // 32, rows, g.numpy(), sums.numpy()),
        BY_FOURS: lambda: counting.add_rows_by_fours(0, N // 32, rows, g.numpy(), sums.numpy()),
        BACKWARD: lambda: torch.mm(g.t(), x, out=sums),
    }


def measure(calls: dict[str, Callable[[], object]], repeat: int = 51) -> dict[str, float]:
    """The median of each call in milliseconds; they take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - begin)
    return {name: round(1000 * statistics.median(times[1:]), 3) for name, times in taken.items()}


def crossing(rows: list[dict[str, float]], name: str, other: str) -> float | None:
    """The density at which `name` begins to take longer than `other`, between two that were
    measured; None if it never does.
    """
    for a, b in pairwise(rows):
        before, after = a[other] - a[name], b[other] - b[name]
        if before > 0 >= after:
            share = before / (before - after)
            return round(a["density"] + (b["density"] - a["density"]) * share, 2)
    return None


def main() -> None:
    torch.set_num_threads(1)
    about = machine()
    rows = [{"density": density} | measure(ways(density)) for density in DENSITIES]
    crossings = {
        "DENSE": {"set": cpu.DENSE, "measured": crossing(rows, ADDED, FORWARD)},
        "RARE": {"set": cpu.RARE, "measured": crossing(rows, ONE_BY_ONE, BY_FOURS)},
    }
    names = [name for name in rows[0] if name != "density"]
    x, w = (torch.rand(ROWS, N) < 0.3).float(), torch.tanh(torch.randn(N, N))
    error = torch.mm(x.bfloat16(), w.bfloat16()).double() - x.double() @ w.double()
    rounding = float(error.norm() / (x.double() @ w.double()).norm())
    cells = [(f"{row['density']:.0%}", [row[name] for name in names]) for row in rows]
    print(table("spikes active", names, cells))
    print(f"bfloat16: relative error of the currents {rounding:.1e}")
    for name, values in crossings.items():
        print(f"{name}: set to {values['set']}, here {values['measured']}")
    report = {
        "machine": about,
        "rows": ROWS,
        "n": N,
        "milliseconds": rows,
        "crossings": crossings,
        "bfloat16 error": rounding,
    }
    usual = Path(__file__).parent / "results" / "kernels.json"
    results.write(Path(sys.argv[1]) if len(sys.argv) > 1 else usual, report)


if __name__ == "__main__":
    main()
