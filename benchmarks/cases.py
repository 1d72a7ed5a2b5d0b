"""What cpu.py and packed.py share: contestants that take turns, arguments, a JSON with cases."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from processes import ROOT, Contender
from workloads import Workload

from bisnn_experiments.measurement import machine, note

Case = dict[str, Any]


class Turns:
    """Contestants side by side: all are started, then each in turn runs a few iterations, round
    after round.
    """

    def __init__(self, case: str, entries: Iterable[tuple[str, str, Workload]], threads: int):
        """Start the entries: label, name of the contestant, what it runs."""
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
        """Results by label, and the reason for each that could not run."""
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


def parser(
    description: str | None, cases: Iterable[str], file: str, quick_file: str
) -> argparse.ArgumentParser:
    """The arguments of both commands; the files are those of the results."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--case",
        action="append",
        choices=tuple(cases),
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
        help=f"where the JSON goes (default: benchmarks/results/{file}; quick: out/)",
    )
    parser.set_defaults(file=f"benchmarks/results/{file}", quick_file=f"out/{quick_file}")
    return parser


def begin(args: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """The file of the results, and what it holds already if single cases are run again."""
    out = args.out or ROOT / (args.quick_file if args.quick else args.file)
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = args.case and out.exists()
    return out, json.loads(out.read_text()) if kept else {"cases": {}}


def about(quick: bool, threads: int) -> Case:
    """When and where a case is run, and how."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "threads": threads,
        "quick": quick,
    }


def left_out(case: Case) -> list[str]:
    """A line for each contestant that did not run."""
    missing = case.get("left_out", {})
    return [f"left out: {label}: {reason}" for label, reason in missing.items()]
