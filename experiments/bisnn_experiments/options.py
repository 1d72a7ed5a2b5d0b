"""The table that the studies of options print and write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bisnn_experiments import results, terminal
from bisnn_experiments.results import Row, Study, Summary


def publish(rows: Sequence[Row], out: Path, width: int) -> None:
    """Print the summary of all rows, and write it with the rows to a file."""
    summary = results.summarise(rows, Summary)
    title = f"mean and deviation, seeds: {summary[0].seeds}"
    Console(width=width).print(terminal.summary_table(summary, title))
    out.parent.mkdir(parents=True, exist_ok=True)
    results.write(out, Study(command=results.command(), summary=summary, rows=list(rows)))
