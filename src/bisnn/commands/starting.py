"""The command that writes a first config for one's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisnn.commands.shared import console


def new(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A folder of recordings, or a CSV, TSV, NPY or NPZ file of points. Series: an NPZ "
            "file with x (N, T, D), or a folder of CSV files.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The config to write. Default: the data's name and .toml, here."),
    ] = None,
) -> None:
    """Look at one's own data, and write a commented config that trains on them."""
    from bisnn.printing import print_facts
    from bisnn.runs import starting

    out = out or Path(f"{data.resolve().stem}.toml")
    draft = starting.write(data, out)
    print_facts(draft.found, title=str(data))
    console().print(f"config: {out}; train it with: bisnn train {out}")
