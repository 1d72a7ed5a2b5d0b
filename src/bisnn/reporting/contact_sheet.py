"""A contact sheet of a folder of recordings: some of each class, as a picture or as a page."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from bisnn.data import events, inspection
from bisnn.data.survey import Look, Survey
from bisnn.data.windows import of_size
from bisnn.files import write_atomic

COLUMNS, ROWS = 6, 24  # recordings of a class, classes
STYLE = (
    "body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 "
    "1rem } table { border-collapse: collapse } th, td { padding: .2rem .8rem; text-align: left; "
    "border-bottom: 1px solid #ccc } img { max-width: 100% }"
)


def write(found: Survey, table: list[list[str]], facts: dict[str, str], path: Path) -> None:
    """Write the sheet: a .png has the pictures alone, an .html the table and facts beside them."""
    picture = _picture(found)
    if path.suffix.lower() == ".png":
        write_atomic(path, picture)
    else:
        write_atomic(path, _page(found, table, facts, picture).encode())


def _picture(found: Survey) -> bytes:
    """Some recordings of each class, all of their events: p = 1 orange, p = 0 blue."""
    classes = [label for label in found.listing.classes if found.of_class(label)][:ROWS]
    width, height = found.size
    cell = 1.6, max(0.5, 1.6 * min(2.0, height / width))
    figure = Figure(
        figsize=(cell[0] * COLUMNS + 1, (cell[1] + 0.35) * len(classes)), layout="constrained"
    )
    axes = figure.subplots(len(classes), COLUMNS, squeeze=False)
    for row, label in zip(axes, classes, strict=True):
        for axis, look in zip(row, _some(found.of_class(label)), strict=False):
            _draw(axis, found, look)
        for axis in row:
            axis.set(xticks=(), yticks=())
            axis.spines[:].set_visible(False)
        # No mathematics in a name that has a dollar sign
        row[0].set_ylabel(label[:20].replace("$", r"\$"), fontsize=9)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def _some(looks: list[Look]) -> list[Look]:
    """Recordings evenly from the first to the last."""
    count = min(COLUMNS, len(looks))
    return [looks[i * (len(looks) - 1) // max(1, count - 1)] for i in range(count)]


def _draw(axis: object, found: Survey, look: Look) -> None:
    file = look.entry.file
    seen = of_size(events.read_events(file), found.size, file, "", "")
    axis.imshow(inspection.picture(seen.events, *found.size), interpolation="nearest")  # type: ignore[attr-defined]
    axis.set_title(file.name[-22:].replace("$", r"\$"), fontsize=6)  # type: ignore[attr-defined]


def _page(found: Survey, table: list[list[str]], facts: dict[str, str], picture: bytes) -> str:
    head, *rows = table
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    about = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items()
    )
    damaged = "".join(f"<li>{escape(line)}</li>" for line in found.damaged)
    bad = f"<h2>Recordings that cannot be used</h2><ul>{damaged}</ul>" if damaged else ""
    title = escape(str(found.listing.root))
    image = base64.b64encode(picture).decode()
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1><table>{about}</table>{bad}"
        f"<h2>Classes</h2><table><tr>{cells}</tr>{body}</table><h2>Some recordings</h2>"
        f'<img alt="Some recordings of each class" src="data:image/png;base64,{image}">'
        "</body></html>\n"
    )
