"""The command that searches for settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisnn.commands.shared import Quiet, console


def tune(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", help="A TOML file, or the name of a config that comes with bisnn."
        ),
    ],
    trials: Annotated[
        int, typer.Option(min=1, help="Trials in all, those of earlier calls included.")
    ] = 50,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; called again, it goes on.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of study, best config and page. Default: tuned/ and the config's name."
        ),
    ] = None,
    operations: Annotated[
        bool,
        typer.Option("--operations", help="Also few operations: a front in place of one winner."),
    ] = False,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A database for several machines, postgresql://user@host/database. "
            "Default: a file in the folder.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Of the study in the database. Default: that of the folder."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Search for better settings, judged on validation points. Called again, it goes on."""
    from bisnn.runs import config as configs
    from bisnn.tuning import search

    overrides = [*(set_ or ()), *(["tune.operations=true"] if operations else [])]
    found = search.tune(
        configs.load(config, overrides),
        out or Path("tuned") / Path(config).stem,
        trials=trials,
        minutes=minutes,
        jobs=jobs,
        storage=storage,
        name=name,
        show=not quiet,
    )
    loss = "NLL" if found.best.task == "classification" else "squared error"
    ended = f"{found.finished} of {max(trials, found.finished)} trials"
    console().print(
        f"{ended}, best {loss} on validation points: {found.value:.4g}\n"
        f"config: {', '.join(map(str, found.files))}\npage: {found.page}\n"
        f"train it on all training points: bisnn train {found.files[0]}"
    )
