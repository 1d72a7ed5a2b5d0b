"""The table that the studies of options print and write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from bisnn_experiments import reproduction, results


def publish(rows: list[dict[str, Any]], seeds: int, out: Path, width: int) -> None:
    """Print the summary of all rows, and write it with the rows to a file."""
    study = {"command": results.command(), "summary": reproduction.summary(rows), "rows": rows}
    figure = {"recipe": "options", "seeds": range(seeds), **study}
    Console(width=width).print(reproduction.table(figure))
    out.parent.mkdir(parents=True, exist_ok=True)
    results.write(out, study)
