"""A first config for one's own data: look at a file or a folder, and write a TOML that trains.

`first_config` finds out what lies at a path and asks the function of that kind of data, which
returns a `Draft`: the text of the config, with comments, and what was seen in the data.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bisnn.display import visible
from bisnn.files import write_atomic
from bisnn.runs import starting_series

if TYPE_CHECKING:
    from bisnn.data.survey import Suggestion, Survey

FEW = 20  # different whole numbers up to which they are classes, and not a quantity
SPARE = 10  # recordings of each class from which on some are held out to validate
UPDATES = 1500  # of the weights, about, by recordings
QUIET = 0.04  # share of active inputs below which neurons need a lower threshold


@dataclass(frozen=True)
class Draft:
    """A config to start from."""

    text: str  # TOML, with comments
    found: dict[str, str]  # what was seen in the data, in words


def first_config(data: Path, folder: Path) -> Draft:
    """A config, to lie in `folder`, that trains on a file or folder of one's own."""
    if starting_series.is_series(data):
        return Draft(*starting_series.for_series(data, relative(data, folder)))
    if data.is_dir():
        return for_recordings(data, folder)
    return for_table(data, folder)


def write(data: Path, out: Path) -> Draft:
    """Write the first config of some data; a file that is there already stays as it is."""
    if out.suffix != ".toml":
        raise ValueError(f"{out}: must be a .toml file; give e.g. --out my.toml")
    if out.exists():
        raise ValueError(f"{out}: is there already; delete it, or give another name with --out")
    if not data.exists():
        raise ValueError(f"{data}: there is no such file or folder; check the path")
    draft = first_config(data, out.parent)
    write_atomic(out, draft.text.encode())
    return draft


def toml(value: Any) -> str:
    """A text, number, truth value or list as TOML has it, which is almost as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def comment(text: str) -> str:
    """Text from the data that stays on its line."""
    return visible(" ".join(text.split()))


def relative(data: Path, folder: Path) -> str:
    """Where the data lie, as a config in this folder names them."""
    return toml(Path(os.path.relpath(data.resolve(), folder.resolve())).as_posix())


def for_table(data: Path, folder: Path) -> Draft:
    """Points of a table: the last column is what to predict."""
    from bisnn.data import table
    from bisnn.packed.columns import as_number, is_blank

    rows = table.read(data)
    target = rows.names[-1]
    labels = [text for text in rows.texts(target) if not is_blank(text)]
    numbers = [as_number(text) for text in labels]
    distinct = sorted(set(labels))
    quantity = None not in numbers and (
        len(distinct) > FEW or any(not float(number or 0).is_integer() for number in numbers)
    )
    task = "regression" if quantity else "classification"
    drop = [name for name in rows.names[:-1] if _says_nothing(rows.column(name))]
    about = (
        f"a quantity, {min(map(float, labels)):g} to {max(map(float, labels)):g}"
        if quantity
        else f"{len(distinct)} classes: {', '.join(distinct[:FEW])}"
    )
    text = f"""\
# A first config for {comment(data.name)}, by `bisnn new`. Train it with: bisnn train THIS_FILE
version = 1
seed = 0

[data]
name = "table"
train = {relative(data, folder)}  # {len(rows):,} rows; relative to this file
task = "{task}"  # or "{"classification" if quantity else "regression"}"
target = {toml(target)}  # the column to predict: {comment(about)}
drop = {toml(drop)}  # columns to leave out: names, numbers of rows, what nobody knows beforehand
test_share = 0.2  # rows that the model is judged on, once, at the end
validation = 0.2  # of the others, held out of training, to choose the best epoch by

[rule]
name = "bayes"  # weights are drawn from a posterior, so that it knows how sure it is; or "st"

[train]
keep = "best"  # the weights of the epoch that does best on the validation rows
"""
    return Draft(text, {"rows": f"{len(rows):,}", "predicted": f"{target}: {about}"} | _of(drop))


def _of(drop: list[str]) -> dict[str, str]:
    return {"left out": ", ".join(drop)} if drop else {}


def _says_nothing(values: Any) -> bool:
    """Whether a column is blank, or has another word in almost every row."""
    from bisnn.packed.columns import as_number, is_blank

    given = [value for value in values if not is_blank(value)]
    words = bool(given) and all(as_number(value) is None for value in given)
    return not given or (words and len(set(given)) > max(2, len(values) // 2))


def for_recordings(data: Path, folder: Path) -> Draft:
    """Recordings of an event camera, in a folder for each class."""
    from bisnn.data import survey as surveys

    found = surveys.survey(data)
    classes = found.listing.classes
    if found.damaged or len(classes) < 2:
        wrong = (
            f"{len(found.damaged)} of its recordings cannot be used"
            if found.damaged
            else f"its recordings are all of one class, {classes[0]}"
        )
        raise ValueError(
            f"{data}: cannot be trained on: {wrong}; `bisnn inspect {data}` tells more"
        )
    way = surveys.suggested(found)
    text = "\n".join((_recordings_seen(data, folder, found, way), _recordings_learned(found, way)))
    facts = {
        "recordings": f"{len(found.looks):,}",
        "classes": f"{len(classes)}: {', '.join(classes[:FEW])}",
        "sensor": f"{found.size[0]} x {found.size[1]} pixels",
    }
    return Draft(text, facts)


def _recordings_seen(data: Path, folder: Path, found: Survey, way: Suggestion) -> str:
    """What of the recordings the network sees."""
    said = "" if found.size_stated else ": no file says it, this is the least that holds all events"
    crop = "# crop = [x0, y0, width, height]  # a part of the sensor"
    if way.crop is not None:
        crop = f"crop = {list(way.crop)}  # x0, y0, width, height: almost all events are there"
    return f"""\
# A first config for {comment(data.name)}, by `bisnn new`. Train it with: bisnn train THIS_FILE
version = 1
seed = 0

[data]
name = "folder"
root = {relative(data, folder)}  # {len(found.looks):,} recordings; relative to this file
classes = {toml(list(found.listing.classes))}
size = [{found.size[0]}, {found.size[1]}]  # of the sensor{said}
steps = {way.steps}  # time steps, from the first event on: nine of ten recordings end within them
bin_us = {way.bin_us}  # length of a time step; or in its place bin_events, a number of events
{crop}
downsample = {way.downsample}  # edge of the squares of pixels that become one
min_events = {way.min_events}  # of such a square in a time step that make a spike
test_share = 0.2  # to judge the model on, where no folder or split.csv says which recordings
validation = {0.15 if _many(found) else 0.0}  # of the others, held out of training
"""


def _recordings_learned(found: Survey, way: Suggestion) -> str:
    """A small network, and how it learns: the shipped config of the digits, fitted to the data."""
    sides = [-(-side // way.downsample) for side in (way.crop[2:] if way.crop else found.size)]
    training = round(0.8 * len(found.looks))
    batch = max(4, min(40, training // 10))
    epochs = min(100, max(20, round(UPDATES * batch / training)))
    usual = median(look.events for look in found.looks)
    active = usual / (way.steps * 2 * sides[0] * sides[1])  # share of the inputs, at most
    return f"""\
[network]
{_convolution(min(sides))}
layers = [256]
readout_gain = 8.0
init = 0.1  # so small, a weight is almost as likely the one as the other at first

[neuron]  # quick, for a few time steps: the response of a neuron peaks after 3 of them
tau_mem = 4.0
tau_syn = 2.0
tau_ref = 1.0
threshold = {0.1 if active < QUIET else 0.25}  # lower for few events, or neurons stay silent
slope = 4.0

[augment]  # of training recordings, anew each epoch; also rotate (degrees), zoom and drop (shares)
shift = {max(sides) // 16}  # pixels

[rule]
name = "bayes"  # weights are drawn from a posterior, so that it knows how sure it is
lr = 0.2
temperature = 1e-5  # rho
tau = 0.5
precondition = "adam"
betas = [0.9, 0.9]

[train]
epochs = {epochs}
batch_size = {batch}
schedule = "cosine"
burn_in = {way.steps // 6}
keep = "{"best" if _many(found) else "last"}"  # epoch: best on the validation recordings, or last

[predict]
burn_in = {way.steps // 3}  # by then both layers have seen some of the recording
samples = 10  # members of the ensemble
"""


def _many(found: Survey) -> bool:
    """Whether each class has recordings to spare for validation."""
    return min(len(found.of_class(label)) for label in found.listing.classes) >= SPARE


def _convolution(side: int) -> str:
    """A layer that leaves about a third of the pixels along each side, where there are enough."""
    if side < 8:
        return "conv = []  # so few pixels need none"
    stride = min(3, side // 8)
    kernel = 2 * stride + 1
    return (
        f"conv = [{{ channels = 24, kernel = {kernel}, stride = {stride}, padding = {stride} }}]"
        "  # and the dense layers after it"
    )
