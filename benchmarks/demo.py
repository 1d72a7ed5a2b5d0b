"""How long `make demo` takes after the install, with nothing compiled and no data simulated yet.

    python benchmarks/demo.py [--rounds 3]

Each round has empty caches of its own, and the command of the Makefile, whose results, report and
page to draw on are in out/demo afterwards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import ROOT

from bisnn_experiments import results
from bisnn_experiments.measurement import machine, note, table

TARGET_S = 60.0
CACHES = {"XDG_CACHE_HOME": "user", "NUMBA_CACHE_DIR": "kernels", "BISNN_CACHE": "data"}


def seconds() -> float:
    """Wall time of one round."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder) / part) for name, part in CACHES.items()}
        began = time.monotonic()
        subprocess.run(
            ["make", "demo"],
            cwd=ROOT,
            env=os.environ | caches,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.monotonic() - began


def measured(rounds: int) -> dict[str, Any]:
    """Times of all rounds, and what the last one reached; the target is for the median."""
    about, times = machine(), []
    for _ in range(rounds):
        times.append(round(seconds(), 1))
        note(f"{times[-1]} s")
    figure = results.read(ROOT / "out/demo/results.json", results.Figures).figures["table1_digits"]
    median = statistics.median(times)
    return {
        "command": results.command(),
        "machine": about,
        "seconds": times,
        "median_s": median,
        "target_s": TARGET_S,
        "met": median <= TARGET_S,
        "accuracy": {row.predictor: row.accuracy.mean for row in figure.summary if row.accuracy},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/demo.json")
    args = parser.parse_args()
    subprocess.run(["make", ".venv/ready"], cwd=ROOT, check=True)  # the install is not timed
    found = measured(args.rounds)
    results.write(args.out, found)
    print(table("make demo, s", ("median", "target"), [("", (found["median_s"], TARGET_S))]))


if __name__ == "__main__":
    main()
