"""Commands for an event camera's recordings: inspect, simulate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisnn.commands.shared import Device, Quiet, console


def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A recording (.aedat, .aedat4, .bin, .raw, .dat, .es, .h5, .csv, .npy, .npz), or "
            "a folder of them.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also draw it: a .png, or a folder for FILE.png; of a folder, some recordings of "
            "each class: a .png or .html. Without it nothing is written."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Look at a recording or a folder of them: numbers, what is damaged, with --out a picture."""
    if file.is_dir():
        _inspect_folder(file, out, quiet)
        return
    if out is not None and out.is_dir():
        out /= f"{file.name}.png"
    if out is not None and out.suffix.lower() != ".png":
        raise ValueError(
            f"{out}: must be a .png file; got {out.suffix or 'no suffix'!r}; "
            "give e.g. --out look.png"
        )
    from bisnn.data import events, inspection
    from bisnn.printing import print_facts

    recording = events.read_events(file)
    print_facts(inspection.facts(recording), title=str(file))
    if out is None:
        console().print("see it: --out look.png")
    else:
        inspection.draw(recording, out)
        console().print(f"picture: {out}")


def _inspect_folder(folder: Path, out: Path | None, quiet: bool) -> None:
    """Print what a folder holds, all damaged files, and settings to begin with."""
    if out is not None and out.suffix.lower() not in (".png", ".html"):
        raise ValueError(
            f"{out}: must be a .png or .html file; got {out.suffix or 'no suffix'!r}; "
            "give e.g. --out sheet.html"
        )
    from bisnn import printing
    from bisnn.data import survey as surveys

    found = surveys.survey(folder, show=not quiet)
    table, facts = printing.survey_rows(found), printing.survey_facts(found)
    printing.print_facts(facts, title=str(folder))
    printing.print_table(table)
    if out is None:
        console().print(
            "see some of each class: --out sheet.html; a first config: bisnn new FOLDER"
        )
    else:
        from bisnn.reporting import contact_sheet

        contact_sheet.write(found, table, facts, out)
        console().print(f"contact sheet: {out}")
    if found.damaged:
        for line in found.damaged:
            console().print(line)
        raise ValueError(
            f"{folder}: {len(found.damaged)} of {len(found.listing.entries)} recordings cannot be "
            "used; the lines above say why; mend them, or leave them out"
        )


def simulate(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder to make, in the layout of MNIST-DVS.")
    ],
    images: Annotated[
        str, typer.Option(help='Folder of MNIST\'s idx files, or "digits": those of scikit-learn.')
    ] = "digits",
    per_class: Annotated[
        int, typer.Option(min=1, max=9999, help="Recordings of each digit, at most.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the camera's noise.")] = 0,
    device: Annotated[Device, typer.Option(help="Where to simulate.")] = Device.cpu,
    quiet: Quiet = False,
) -> None:
    """Record images with a simulated event camera. Called again, it goes on where it stopped."""
    from bisnn.data import simulation

    count = simulation.simulate(
        out, images, per_class=per_class, seed=seed, device=device.value, show=not quiet
    )
    console().print(
        f"{count:,} recordings in {out / 'scale04'}; look at one with: bisnn inspect FILE"
    )
