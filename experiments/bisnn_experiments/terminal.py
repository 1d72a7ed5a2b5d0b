"""Summaries as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bisnn.metrics import CALIBRATION
from bisnn.shipping import energy
from bisnn_experiments.results import FigureResults, Mean, Numbers, Summary

HEADERS = {
    "training_seconds": "seconds",
    "memory_bytes": "weight\nbytes",
    "synaptic_operations": "synaptic\nops",
    "nll": "NLL",
    "ece": "ECE",
}
# What the table leaves out
HIDDEN = (
    *("method", "predictor", "epochs"),
    *("balanced_accuracy", "brier", "confidence", CALIBRATION),
)


def table(figure: FigureResults) -> Table:
    """The summary of a figure as a table for the terminal."""
    over = "mean and deviation over seeds" if len(figure.seeds) > 1 else "seed"
    title = f"recipe {figure.recipe}, {over} {', '.join(map(str, figure.seeds))}"
    return summary_table(figure.summary, title)


def summary_table(summary: Sequence[Summary], title: str) -> Table:
    """Summaries as a table for the terminal."""
    numbers = [
        name
        for name in Numbers.model_fields
        if name not in HIDDEN and any(getattr(entry, name) is not None for entry in summary)
    ]
    headers = [HEADERS.get(name, name.replace("_", " ")) for name in numbers]
    grid = Table("method", *headers, title=title)
    for entry in summary:
        cells = [_cell(getattr(entry, name)) for name in numbers]
        grid.add_row(f"{entry.method}\n{entry.predictor}", *cells)
    return grid


def _cell(value: Mean | None) -> str:
    if value is None:
        return "-"
    return _short(value.mean) + ("" if value.std is None else f"\n± {_short(value.std)}")


def _short(value: float) -> str:
    """Small numbers with three decimals, large ones with one, larger ones with an SI prefix."""
    if value >= 1000:
        return energy.si(value, "")
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
