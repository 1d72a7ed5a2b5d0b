"""What the terminal shows beside results. Bars and notes go to stderr: stdout is for what a program may read."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TimeRemainingColumn


def console(stderr: bool = False) -> Console:
    """A console that prints names as they are: brackets in a path are no markup, and no path is broken over lines."""
    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A line on stderr; above the bars, where there are any."""
    print(text, file=sys.stderr)


def bars(*columns: str | ProgressColumn, show: bool, transient: bool = True) -> Progress:
    """Progress bars on stderr, or none."""
    return Progress(*columns, console=Console(stderr=True), disable=not show, transient=transient)


def status(values: dict[str, Any]) -> str:
    """A row of metrics on one line."""
    parts = [f"loss {values['loss']:.3g}"]
    parts += [f"{name} {values[key]:.3f}" for name, key in (("acc", "accuracy"), ("rmse", "rmse")) if key in values]
    parts.append("rates " + " ".join(f"{rate:.2f}" for rate in values["rates"]))
    if "flips" in values:
        parts.append(f"flips {100 * values['flips']:.2g} %")
    if "validation" in values:
        parts.append(f"val {values['validation']['loss']:.4f}")
    return "  ".join(parts)


class RunDisplay:
    """The progress bar of a training run; where there is no terminal, a line now and then.

    Notes are always shown, by the first process.
    """

    def __init__(self, epochs: int, show: bool, first: bool):
        self.epochs, self.show, self.first = epochs, show and first, first
        self.last: dict[str, Any] = {}  # what only a whole epoch has
        self.last_line = time.monotonic()
        columns = (
            "{task.description}",
            BarColumn(8),
            "{task.fields[status]}",
            TimeRemainingColumn(compact=True),
        )  # fits 80 columns
        self.progress = bars(*columns, show=self.show, transient=False)

    def __enter__(self) -> RunDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def say(self, text: str) -> None:
        if self.first:
            self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, epochs_done: int) -> None:
        self.task = self.progress.add_task("", total=self.epochs, completed=epochs_done, status="")
        self.progress.start()

    def step(self, epochs: float, values: dict[str, Any]) -> None:
        """After `epochs` epochs, which need not be whole."""
        where = f"{math.ceil(epochs)}/{self.epochs}"
        self.progress.update(self.task, completed=epochs, description=where, status=status({**values, **self.last}))

    def epoch(self, row: dict[str, Any]) -> None:
        self.last = {name: row[name] for name in ("flips", "validation") if name in row}
        self.progress.update(self.task, status=status(row))
        if self.show and not self.progress.console.is_terminal and time.monotonic() - self.last_line > 10:
            self.last_line = time.monotonic()
            self.say(f"epoch {row['epoch']}/{self.epochs}  {status(row)}")
