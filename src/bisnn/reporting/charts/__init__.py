"""The charts of a report: inline SVG by matplotlib, and tables, from the files of a run."""

from __future__ import annotations

from collections.abc import Callable

from bisnn.reporting.charts import (
    classification,
    learning,
    neurons,
    regression,
    spikes,
    trust,
    uncertainty,
)
from bisnn.reporting.charts.board import chips
from bisnn.reporting.charts.canvas import TITLES, Chart, Part, Run, Table, styled
from bisnn.reporting.charts.learning import overlay
from bisnn.reporting.charts.spikes import events

__all__ = [
    "PARTS",
    "TITLES",
    "Chart",
    "Part",
    "Run",
    "Table",
    "chips",
    "events",
    "overlay",
    "styled",
]


def _predictions(run: Run) -> list[Part]:
    return (regression if run.judged.task == "regression" else classification).parts_of(run)


PARTS: dict[str, Callable[[Run], list[Part]]] = {  # of a run's section, by heading
    "Learning": learning.parts_of,
    "Predictions": _predictions,
    "Uncertainty over time": uncertainty.parts_of,
    "Trust": trust.parts_of,
    "Spikes": spikes.parts_of,
    "Firing rates and weights": neurons.parts_of,
}
