"""What the terminal shows beside results. Bars and notes go to stderr: stdout is for what a program
may read.

Where stderr is no terminal, plain lines take the place of the bars.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TimeRemainingColumn
from rich.text import Text

SECONDS = 10.0  # between two lines of a log

# Line breaks and tabs are the program's own. The others move the cursor, colour, clear or reorder
# what a terminal shows; lone surrogates stand for bytes of a file name that are no UTF-8, and
# cannot be printed.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Text with its control characters written as escapes: names from files must not command the
    terminal.

    >>> print(visible("cat\x1b[2J"))
    cat\x1b[2J
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        """All strings pass here, also those in tables, on their way to the terminal."""
        return super().render_str(visible(text), **options)


def console(stderr: bool = False) -> Console:
    """A console that prints names as they are: no markup in brackets, no path broken."""
    return _Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A line on stderr, of the first process alone; above the bars, where there are any."""
    if os.environ.get("RANK", "0") == "0":
        print(visible(text), file=sys.stderr)


def bars(*columns: str | ProgressColumn, show: bool, transient: bool = True) -> Progress:
    """Progress bars on stderr, or none; plain lines where stderr is no terminal."""
    shown = Console(stderr=True)
    if show and not shown.is_terminal and not shown.is_jupyter:
        return _Lines(console=shown, disable=True)
    return Progress(*columns, console=shown, disable=not show, transient=transient)


class _Lines(Progress):
    """A line for a task every `SECONDS` seconds, and at the end of one that had any before."""

    def add_task(self, *arguments: Any, **options: Any) -> TaskID:
        task = super().add_task(*arguments, **options)
        self._tasks[task].fields["pace"] = Pace(self._tasks[task].completed)
        return task

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._log(self._tasks[task_id])

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._log(self._tasks[task_id])

    def _log(self, task: Task) -> None:
        pace = task.fields["pace"]
        if pace.due() or (pace.lines and task.finished and not pace.ended):
            pace.ended = task.finished
            pace.count_line()
            note(
                f"{task.description}: {task.percentage:.0f} "
                f"%{pace.left(task.completed, task.total or 0)}"
            )


class Pace:
    """When a log gets its next line, and how long the work will still take."""

    def __init__(self, done: float):
        self.first, self.began = done, time.monotonic()
        self.last, self.lines, self.ended = self.began, 0, False

    def due(self) -> bool:
        return time.monotonic() - self.last >= SECONDS

    def count_line(self) -> None:
        self.last, self.lines = time.monotonic(), self.lines + 1

    def left(self, done: float, total: float) -> str:
        """The time left, as in "  1:05 left"; nothing at the end, or before anything is done."""
        if not self.first < done < total:
            return ""
        seconds = round((time.monotonic() - self.began) * (total - done) / (done - self.first))
        hours, minutes = seconds // 3600, seconds // 60 % 60
        clock = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
        return f"  {clock}:{seconds % 60:02d} left"


def status(values: dict[str, Any]) -> str:
    """A row of metrics on one line."""
    parts = [f"loss {values['loss']:.3g}"]
    parts += [
        f"{name} {values[key]:.3f}"
        for name, key in (("acc", "accuracy"), ("rmse", "rmse"))
        if key in values
    ]
    parts.append("rates " + " ".join(f"{rate:.2f}" for rate in values["rates"]))
    if "flips" in values:
        parts.append(f"flips {100 * values['flips']:.2g} %")
    if "validation" in values:
        parts.append(f"val {values['validation']['loss']:.4f}")
    return "  ".join(parts)


class RunDisplay:
    """The progress bar of a training run. Where there is no terminal, a line after the first epoch
    and the last, and now and then.

    Notes are always shown, by the first process.
    """

    def __init__(self, epochs: int, show: bool, first: bool):
        self.epochs, self.show, self.first = epochs, show and first, first
        self.last: dict[str, Any] = {}  # what only a whole epoch has
        # Fits 80 columns
        columns = (
            "{task.description}",
            BarColumn(8),
            "{task.fields[status]}",
            TimeRemainingColumn(compact=True),
        )
        self.progress = bars(*columns, show=self.show, transient=False)
        self.plain = isinstance(self.progress, _Lines)
        self.row: dict[str, Any] | None = None  # of the last epoch, until the log has it

    def __enter__(self) -> RunDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()
        if self.row is not None:
            self._line(self.row["epoch"], self.row)

    def say(self, text: str) -> None:
        if self.first:
            self.progress.console.print(
                visible(text), markup=False, highlight=False, soft_wrap=True
            )

    def begin(self, epochs_done: int) -> None:
        self.pace = Pace(epochs_done)
        if not self.plain:
            self.task = self.progress.add_task(
                "", total=self.epochs, completed=epochs_done, status=""
            )
            self.progress.start()

    def step(self, epochs: float, values: dict[str, Any]) -> None:
        """After `epochs` epochs, which need not be whole."""
        if not self.plain:
            where = f"{math.ceil(epochs)}/{self.epochs}"
            shown = status({**values, **self.last})
            self.progress.update(self.task, completed=epochs, description=where, status=shown)
        elif self.pace.due() and not float(epochs).is_integer():  # else its whole row comes now
            self._line(epochs, values)

    def epoch(self, row: dict[str, Any]) -> None:
        self.last = {name: row[name] for name in ("flips", "validation") if name in row}
        if not self.plain:
            self.progress.update(self.task, status=status(row))
            return
        self.row = row
        if row["epoch"] in (self.pace.first + 1, self.epochs) or self.pace.due():
            self._line(row["epoch"], row)

    def _line(self, epochs: float, values: dict[str, Any]) -> None:
        self.pace.count_line()
        self.row = None
        where = epochs if isinstance(epochs, int) else f"{epochs:.2f}"
        self.say(
            f"epoch {where}/{self.epochs}  {status(values)}{self.pace.left(epochs, self.epochs)}"
        )
