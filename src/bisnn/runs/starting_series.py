"""A first config for series: spikes or values over time.

What it says was chosen on the training halves of other series than those of the results: see
docs/SERIES.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

DELAYS, SHARE = 12, 0.25  # copies of every input, over this share of a recording
UPDATES = 2400  # of the weights, about
FEW = 20  # different whole numbers up to which labels are classes
EVENT_COLUMNS = {"t", "x", "y"}  # of a CSV file of events, which is no series


class SeriesLook(NamedTuple):
    """What was seen in series."""

    recordings: int
    channels: int
    lengths: tuple[int, int, int]  # least, median, most
    spikes: bool  # whether all values are 0 or 1
    each_step: bool
    labels: list[str]  # different ones
    drop: list[str]  # columns of time stamps
    target: str | None


def is_series(data: Path) -> bool:
    """Whether this is an NPZ file with x (N, T, D), or a folder of CSV files that are no events."""
    from bisnn.data import table
    from bisnn.data.arrays import read_arrays
    from bisnn.data.series_files import csv_files

    if data.is_dir():
        files = csv_files(data)
        others = any(f.suffix.lower() not in (".csv", ".tsv") for f in data.rglob("*.*"))
        if not files or others:
            return False
        return not {name.lower() for name in table.read(files[0]).names} >= EVENT_COLUMNS
    return data.suffix.lower() == ".npz" and read_arrays(data, ["x"])["x"].ndim == 3


def for_series(data: Path, path: str) -> tuple[str, dict[str, str]]:
    """The text of the config, in which the data are called `path`, and what was seen in them."""
    from bisnn.runs.starting import comment

    look = _look(data)
    task = "regression" if _quantities(look.labels) else "classification"
    about = f"{len(look.labels)} classes: {', '.join(look.labels[:FEW])}"
    if task == "regression":
        about = "a quantity"
    every = "every time step" if look.each_step else "the whole recording"
    text = (
        _data(comment(data.name), path, look, task, comment(f"{about}, of {every}"))
        + "\n"
        + _learning(look)
    )
    least, median, most = look.lengths
    return text, {
        "recordings": f"{look.recordings:,}, of {look.channels} channels",
        "lengths": f"{least} to {most} time steps, half of them up to {median}",
        "values": "spikes" if look.spikes else "real numbers",
        "predicted": f"{about}, of {every}",
    }


def _look(data: Path) -> SeriesLook:
    from bisnn.data import series_files, table

    target, drop, each_step = None, [], False
    if data.is_dir():
        files = series_files.csv_files(data)
        rows = table.read(files[0])
        drop = [name for name in rows.names if name.lower() in ("t", "time", "timestamp", "step")]
        if files[0].parent == data:
            target = rows.names[-1]
            each_step = any(len(set(table.read(file).texts(target))) > 1 for file in files)
        given = series_files.read(str(data), each_step, target, drop)
    else:
        given = series_files.read(str(data), False, None, [])
        each_step = given.labels[0].ndim > 0
    flat = np.concatenate([np.atleast_1d(label) for label in given.labels]).tolist()
    known = [label for label in flat if label != "" and label == label]
    lengths = np.array([len(item) for item in given.values])
    return SeriesLook(
        len(lengths),
        given.values[0].shape[1],
        (int(lengths.min()), int(np.median(lengths)), int(lengths.max())),
        all(np.isin(item, (0, 1)).all() for item in given.values),
        each_step,
        sorted({table.text_of(label) for label in known}),
        drop,
        target,
    )


def _quantities(labels: list[str]) -> bool:
    """Whether labels are numbers, and no numbers of classes."""
    from bisnn.packed.columns import as_number

    numbers = [as_number(label) for label in labels]
    if None in numbers:
        return False
    return len(labels) > FEW or any(not float(number or 0).is_integer() for number in numbers)


def _data(name: str, path: str, look: SeriesLook, task: str, about: str) -> str:
    apart = max(1, round(SHARE * look.lengths[1] / DELAYS))
    delays = [apart * i for i in range(DELAYS) if apart * i < look.lengths[2]]
    code = (
        'code = "spikes"  # the values are 0 and 1 already'
        if look.spikes
        else 'code = "population"  # of the centres over a channel\'s range the nearest fires; or '
        "delta, rate, latency\nneurons = 8  # centres per channel"
    )
    target = "" if look.target is None else f"target = {json.dumps(look.target)}\n"
    drop = f"drop = {json.dumps(look.drop)}  # columns to leave out\n" if look.drop else ""
    return f"""\
# A first config for {name}, by `bisnn new`. Train it with: bisnn train THIS_FILE
version = 1
seed = 0

[data]
name = "series"
train = {path}  # {look.recordings:,} recordings; relative to this file
steps = {look.lengths[2]}  # values of the longest recording; what is shorter is masked
task = "{task}"  # {about}
labels = "{"step" if look.each_step else "recording"}"
{target}{drop}{code}
# Every input enters {len(delays)} times, so many time steps late: what was, beside what is
delays = {delays}
test_share = 0.2  # recordings that the model is judged on, once, at the end
validation = 0.1  # of the others, held out of training, to choose the best epoch by
"""


def _learning(look: SeriesLook) -> str:
    batch = 50 if look.recordings >= 500 else max(4, look.recordings // 20)
    epochs = min(100, max(10, round(UPDATES * batch / (0.72 * look.recordings))))
    burn_in = min(10, look.lengths[0] // 4)
    return f"""\
[network]
layers = [128, 128]
gradient = "bptt"  # through both layers, from the readout after the last
readout_after = "last"
readout_gain = 4.0

[neuron]  # quick: the delays do the remembering
tau_mem = 4.0
tau_syn = 2.0
tau_ref = 1.0
threshold = {0.25 if look.spikes else 0.5}
slope = 4.0

[rule]
name = "st"
lr = 0.1
precondition = "adam"
betas = [0.9, 0.95]
clip = 1.0

[train]
epochs = {epochs}
batch_size = {batch}
schedule = "cosine"
over_time = "mean"
burn_in = {burn_in}
keep = "best"  # the weights of the epoch that does best on the validation recordings
"""
