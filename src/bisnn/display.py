"""What the terminal shows beside results. Bars and notes go to stderr: stdout is for what a program may read."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import Progress, ProgressColumn


def console(stderr: bool = False) -> Console:
    """A console that prints names as they are: brackets in a path are no markup, and no path is broken over lines."""
    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """A line on stderr; above the bars, where there are any."""
    print(text, file=sys.stderr)


def bars(*columns: str | ProgressColumn, show: bool, transient: bool = True) -> Progress:
    """Progress bars on stderr, or none."""
    return Progress(*columns, console=Console(stderr=True), disable=not show, transient=transient)
