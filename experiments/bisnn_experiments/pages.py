"""The pages of an experiment: a report of its runs, and the first ensemble, to play with.

Workers draw the runs and make that page at the same time: the workers of the runs have imported
already what it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bisnn.bits.threads import cores
from bisnn.reporting.page import Written, draw_parts, write_report
from bisnn.runs.folder import RunFolder
from bisnn_experiments.workers import run_all

if TYPE_CHECKING:
    from bisnn.runs.exporting import Exported


class Pages(NamedTuple):
    """What was written."""

    report: Written
    network: Exported | None  # a page that runs an ensemble, where one was trained


def write(runs: Sequence[Path], out: Path, jobs: int | None, show: bool) -> Pages:
    """Write `report.html` of all runs and `try.html` of the first that has a posterior to `out`.

    Args:
        runs: run folders, judged.
        out: folder of both.
        jobs: workers, by default one per core.
        show: progress bars.
    """
    tasks: list[tuple[Any, ...]] = [(draw_parts, run) for run in runs]
    ensembles = [run for run in runs if RunFolder(run).read_config().rule.posterior()]
    if ensembles:
        tasks.insert(0, (_play, ensembles[0], out / "try.html"))
    made = run_all(
        _call,
        tasks,
        jobs or cores(),
        show,
        length=lambda task: 1,
        progress=lambda task: 0,
        things="pages",
    )
    network = made.pop(0) if ensembles else None
    return Pages(write_report(runs, out / "report.html", show=False, drawn=made), network)


def _play(run: Path, page: Path) -> Exported:
    from bisnn.runs import exporting  # with kernels, which the server of workers must not compile

    return exporting.export(run, "web", page)


def _call(function: Any, *arguments: Any) -> Any:
    torch.set_num_threads(1)
    return function(*arguments)
