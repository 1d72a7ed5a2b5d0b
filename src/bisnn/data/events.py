"""Recordings of event cameras: AER-DAT2.0 (`.aedat`, jAER's DVS128) and N-MNIST (`.bin`), and by
others' readers further formats, to one array of events, and to frames.

An event is a row of `EVENTS`, the fields of tonic's arrays: pixel `x`, `y`, time `t` in
microseconds, polarity `p`. Rows are sorted in time; `t` starts where the file starts, and
`Recording.start_us` is what to subtract. Coordinates and the polarity are those of the file, bit
for bit:

    AER-DAT2.0   x = (a >> 1) & 127, y = (a >> 8) & 127, p = a & 1 of the address a. tonic exchanges
                 x and y; jAER shows 127 - x, with y upwards, and calls a set bit OFF, where the
                 format's document calls it ON.
    N-MNIST      bytes x, y, then a bit p and 23 bits of time. y counts downwards: `image[y, x]`
                 shows the digit upright.

Which bit is ON is the formats' word, not a fact of the scene: in the recordings of MNIST-DVS and of
N-MNIST events with p = 1 trail those with p = 0 in the direction of motion, as OFF events of a
bright digit do.

A file comes from outside. What it says is checked, what cannot be an event is skipped and counted
by reason, and what is no recording at all is a `BadEvents`. NumPy alone: no PyTorch is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bisnn.data import clocks
from bisnn.files import open_regular, write_atomic

EVENTS = np.dtype([("x", np.int16), ("y", np.int16), ("t", np.int64), ("p", bool)])
DVS128, NMNIST = (128, 128), (34, 34)  # sensors: width, height
# Files of cameras, and of events as columns, which may as well be points
CAMERA_SUFFIXES = (".aedat", ".bin", ".aedat4", ".raw", ".dat", ".es", ".h5", ".hdf5")
SUFFIXES = (*CAMERA_SUFFIXES, ".csv", ".npy", ".npz")
MOST_BYTES = 256 * 2**20  # reading takes up to ten times the file in memory
NOTHING = 64  # bytes, from which on zeros alone are no recording
# A recording's clock that runs over more than a day is noise read as a clock
LONGEST_US = 24 * 3600 * 10**6
_HEADER_BYTES = 4 * 2**20  # jAER may put all its preferences into the header
# N-MNIST: this row is no pixel but "add so much to all times from here on"
_OVERFLOW_Y = 240
_OVERFLOW_US = 2**13
# Where AER-DAT2.0 clocks start again from 0: unsigned, or signed with the sign dropped
_TURNS_US = (2**32, 2**31)


class BadEvents(ValueError):
    """A file that is no recording, or none that can be read here."""


@dataclass(frozen=True, eq=False)
class Recording:
    """Events of one file, and what was found beside them."""

    events: np.ndarray  #: (N,) EVENTS, sorted in time
    size: tuple[int, int]  #: width, height of the sensor
    format: str  #: its name
    #: what was left out, by reason: records, or bytes where it says so
    skipped: dict[str, int] = field(default_factory=dict)
    #: what was put right in the times: kept events
    clock: dict[str, int] = field(default_factory=dict)
    header: tuple[str, ...] = ()  #: the first lines, printable characters only
    #: whether the file says its size; if not, it is the least that holds all events
    size_stated: bool = True

    @property
    def start_us(self) -> int:
        """Time of the first event; 0 if there is none."""
        return int(self.events["t"][0]) if len(self.events) else 0

    @property
    def duration_us(self) -> int:
        """From the first event to the last."""
        return int(self.events["t"][-1]) - self.start_us if len(self.events) else 0


def read_events(path: str | Path, *, most_bytes: int = MOST_BYTES) -> Recording:
    """A recording in any known format, by its first bytes and its suffix.

    Args:
        path: of the file.
        most_bytes: a larger file is refused, as a `BadEvents`.
    """
    from bisnn.data import event_columns, foreign  # which need what is defined here

    path = Path(path)
    suffix, content = path.suffix.lower(), _content(path, most_bytes)
    if suffix == ".aedat4" or content.startswith(b"#!AER-DAT4"):
        return foreign.read(path, content, "AEDAT4")
    if content.startswith(b"#!AER-DAT") or suffix == ".aedat":
        return _aedat(path, content)
    if suffix == ".bin":
        return _nmnist(path, content)
    if suffix in foreign.FORMATS:
        return foreign.read(path, content, foreign.FORMATS[suffix])
    if suffix == ".csv":
        return event_columns.read_csv(path, content)
    if suffix in (".npy", ".npz"):
        return event_columns.read_arrays(path)
    raise BadEvents(
        f"{path}: must be one of {', '.join(SUFFIXES)}; got {path.suffix or 'no suffix'!r}; "
        "give a recording"
    )


def read_aedat(path: str | Path, *, most_bytes: int = MOST_BYTES) -> Recording:
    """AER-DAT2.0 of a DVS128: `#` lines, then big-endian uint32 address and uint32 time in
    microseconds.

    Skipped and counted: special events (bit 15 of the address), addresses beyond the sensor (bits
    16 to 31), single records whose time lies far from both neighbours, bytes after the last whole
    record. Times that start again from 0 at 2^31 or 2^32 go on. Steps back of up to 0.1 s are
    sorted; a longer one is a clock that was set back, and goes on from where it was.

    Args:
        path, most_bytes: as for `read_events`.
    """
    path = Path(path)
    return _aedat(path, _content(path, most_bytes))


def read_nmnist(path: str | Path, *, most_bytes: int = MOST_BYTES) -> Recording:
    """N-MNIST: 5 bytes per event, x, y, a bit of polarity and 23 bits of time in microseconds,
    big-endian; 34 x 34 pixels.

    A record with y = 240 is no event: all times from it on are 2^13 us later. (The format has it
    from its camera; none of the recordings of N-MNIST at hand uses it.) Addresses beyond the sensor
    and what else is skipped is counted, as in `read_aedat`.

    Args:
        path, most_bytes: as for `read_events`.
    """
    path = Path(path)
    return _nmnist(path, _content(path, most_bytes))


def from_array(events: object, size: tuple[int, int], name: str = "events") -> Recording:
    """A recording from an array with tonic's fields, in any order of its rows and of any dtype of
    whole numbers.

    Events beyond the sensor are skipped and counted. Those of a sensor of one row need no `y`.

    Args:
        events: (N,), with the fields x, y, t in microseconds, p.
        size: the sensor's width and height.
        name: of the recording, for messages.

    >>> events = np.array([(3, 20, 1), (9, 10, 1)], [("x", int), ("t", int), ("p", int)])
    >>> from_array(events, (5, 1)).skipped
    {'outside the sensor': 1}
    """
    try:
        _check_fields(events, "xtp" if size[1] == 1 else "xytp")
    except ValueError as error:
        raise BadEvents(f"{name}: {error}") from None
    assert isinstance(events, np.ndarray)
    row = events["y"] if "y" in (events.dtype.names or ()) else np.zeros(len(events), np.int16)
    kept = (events["x"] >= 0) & (events["x"] < size[0]) & (row >= 0) & (row < size[1])
    outside = len(events) - int(kept.sum())
    refuse_noise(name, outside, len(events), f"{size[0]} x {size[1]}")
    found = np.empty(len(events) - outside, EVENTS)
    found["x"] = events["x"][kept]
    found["y"] = row[kept]
    found["t"] = events["t"][kept]
    found["p"] = events["p"][kept] > 0
    found = found[np.argsort(found["t"], kind="stable")]
    return not_too_long(
        name, Recording(found, size, "array", nonzero({"outside the sensor": outside}))
    )


def write_aedat(path: str | Path, events: np.ndarray) -> None:
    """Write `events` of a DVS128 to `path` as AER-DAT2.0, whole or not; see `read_aedat`."""
    _check_events(events, DVS128, 2**32)
    record = np.empty((len(events), 2), ">u4")
    record[:, 0] = (
        events["y"].astype(np.uint32) << 8 | events["x"].astype(np.uint32) << 1 | (events["p"] > 0)
    )
    record[:, 1] = events["t"]
    header = (
        "#!AER-DAT2.0\r\n# Data format is int32 address, int32 timestamp (8 bytes total), repeated "
        "for each event\r\n"
    )
    write_atomic(Path(path), (header + "# Timestamps tick is 1 us\r\n").encode() + record.tobytes())


def write_nmnist(path: str | Path, events: np.ndarray) -> None:
    """Write `events` of a 34 x 34 sensor to `path` as N-MNIST, whole or not; see `read_nmnist`."""
    _check_events(events, NMNIST, 2**23)
    if not len(events):
        raise ValueError(
            "events: must have at least one, as an empty .bin file is taken for a failed copy; "
            "got none; leave it out"
        )
    record = np.empty((len(events), 5), np.uint8)
    record[:, 0], record[:, 1] = events["x"], events["y"]
    t = events["t"]
    record[:, 2] = (events["p"] > 0).astype(np.int64) << 7 | t >> 16
    record[:, 3], record[:, 4] = t >> 8 & 255, t & 255
    write_atomic(Path(path), record.tobytes())


def bin_events(
    events: np.ndarray,
    steps: int,
    bin_us: int,
    *,
    size: tuple[int, int],
    start_us: int = 0,
    crop: Sequence[int] | None = None,
    shrink: int = 1,
    least: int = 1,
) -> np.ndarray:
    """Frames (steps, 2, h, w) uint8: 1 where a pixel has an event, or more, in a bin of `bin_us`.

    Channel p is polarity p, whichever of the two a format calls ON. Bin k has the times start_us +
    k bin_us <= t < start_us + (k + 1) bin_us. Events outside the bins or the crop are left out.

    Args:
        events: (N,) `EVENTS`.
        steps: number of bins.
        bin_us: length of a bin.
        size: the sensor's (width, height).
        start_us: where the first bin begins.
        crop: the part (x0, y0, w, h) of the sensor to keep; by default all of it.
        shrink: squares of so many pixels a side become one, and their events are summed.
        least: how many events make a 1.

    >>> events = np.array([(5, 1, 30, True), (5, 1, 99, False)], EVENTS)
    >>> bin_events(events, 3, 50, size=(34, 34), crop=(4, 0, 2, 2))[:, :, 1, 1].tolist()
    [[0, 1], [1, 0], [0, 0]]
    """
    _check_fields(events)
    for name, value in {
        "steps": steps,
        "bin_us": bin_us,
        "shrink": shrink,
        "least": least,
    }.items():
        if not _whole(value) or not 0 < value < 2**31:
            raise ValueError(
                f"{name}: must be a positive whole number; got {value!r}; give 1 or more"
            )
    if not _whole(start_us) or abs(start_us) >= 2**61:
        raise ValueError(
            f"start_us: must be a whole number of microseconds; got {start_us!r}; "
            "give e.g. the recording's start_us"
        )
    if len(size) != 2 or not all(_whole(side) and 0 < side < 2**15 for side in size):
        raise ValueError(
            f"size: must be the sensor's (width, height); got {size!r}; give the recording's size"
        )
    x0, y0, w, h = _checked_crop(crop, size)
    if w % shrink or h % shrink:
        raise ValueError(
            f"shrink: must divide the width and height of the frames, {w} x {h}; got {shrink!r}; "
            "change the crop"
        )
    x, y, t = events["x"], events["y"], events["t"]
    in_time = (t >= start_us) & (t < start_us + steps * bin_us)
    part = events[in_time & (x >= x0) & (x < x0 + w) & (y >= y0) & (y < y0 + h)]
    frames = np.zeros((steps, 2, h // shrink, w // shrink), np.uint8)
    step = (part["t"].astype(np.int64) - start_us) // bin_us
    row, column = (part["y"] - y0) // shrink, (part["x"] - x0) // shrink
    place = (step, (part["p"] > 0).astype(np.intp), row, column)
    if least == 1:
        frames[place] = 1
    else:
        found, counts = np.unique(np.ravel_multi_index(place, frames.shape), return_counts=True)
        frames.reshape(-1)[found[counts >= least]] = 1
    return frames


def _checked_crop(crop: Sequence[int] | None, size: tuple[int, int]) -> tuple[int, int, int, int]:
    if crop is None:
        return 0, 0, *size
    if len(crop) == 4 and all(map(_whole, crop)):
        x0, y0, w, h = crop
        if min(x0, y0) >= 0 and min(w, h) > 0 and x0 + w <= size[0] and y0 + h <= size[1]:
            return x0, y0, w, h
    raise ValueError(
        f"crop: must be (x0, y0, width, height) inside the sensor's {size}; got {crop!r}; "
        "make it smaller"
    )


def _content(path: Path, most_bytes: int) -> bytes:
    """All of a regular file that is not too large."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most_bytes:
                raise BadEvents(
                    f"{path}: has {size:,} bytes; at most {most_bytes:,} are read; "
                    "split it, or raise most_bytes in Python"
                )
            content = file.read(size)
    except FileNotFoundError:
        raise BadEvents(f"{path}: there is no such file; check the path") from None
    except OSError as error:
        raise BadEvents(
            f"{path}: cannot be opened or read ({error.strerror}); check the path"
        ) from None
    except ValueError as error:
        raise BadEvents(str(error)) from None
    if len(content) >= NOTHING and not content.strip(b"\0"):
        raise BadEvents(
            f"{path}: its {len(content):,} bytes are all 0, as of a download that failed; "
            "get it again"
        )
    if not content:
        raise BadEvents(f"{path}: is empty; copy or download it again")
    return content


def _aedat(path: Path, content: bytes) -> Recording:
    start, lines = _aedat_header(path, content)
    second = content.find(b"#!AER-DAT", max(start, 1))
    if second >= 0:
        raise BadEvents(
            f"{path}: a second recording starts at byte {second}; got two files in one; "
            "split them there"
        )
    count, rest = divmod(len(content) - start, 8)
    stated = bool(lines) and lines[0].startswith("#!AER-DAT")
    if not count and not stated:
        raise BadEvents(
            f"{path}: must have a version line or records of 8 bytes; got {len(content)} bytes; "
            "it is no AER-DAT2.0 file"
        )
    records = np.frombuffer(content, ">u4", 2 * count, start).reshape(-1, 2)
    address = records[:, 0].astype(np.uint32)
    special = (address >> 15 & 1).astype(bool) & (address < 2**16)
    outside = address >= 2**16
    refuse_noise(path, int(outside.sum()), count, "AER-DAT2.0 of a DVS128 (128 x 128)")
    kept = ~(special | outside)
    address = address[kept]
    events = np.empty(len(address), EVENTS)
    events["x"], events["y"], events["p"] = address >> 1 & 127, address >> 8 & 127, address & 1
    events["t"] = records[:, 1][kept]
    skipped = {"special events": int(special.sum()), "outside the sensor": int(outside.sum())}
    format = "AER-DAT2.0" if stated else "AER-DAT2.0 (assumed: no version line)"
    return _recording(path, events, DVS128, format, skipped, rest, lines, _TURNS_US)


def _aedat_header(path: Path, content: bytes) -> tuple[int, tuple[str, ...]]:
    """Where the records start, and the first lines; the header may be missing or cut off."""
    start, lines = 0, list[str]()
    while content.startswith(b"#", start):
        end = content.find(b"\n", start, _HEADER_BYTES)
        if end < 0 and len(content) > _HEADER_BYTES:
            raise BadEvents(
                f"{path}: its header does not end within {_HEADER_BYTES:,} bytes; "
                "it is no AER-DAT2.0 file"
            )
        end = len(content) if end < 0 else end + 1
        if len(lines) < 20:
            line = content[start : min(end, start + 200)].decode("latin-1").rstrip("\r\n")
            lines.append(
                "".join(character if " " <= character <= "~" else "?" for character in line)
            )
        start = end
    version = re.match(r"#!AER-DAT(\d+\.\d+|)", lines[0]) if lines else None
    if version and version[1] != "2.0":
        raise BadEvents(
            f"{path}: must be AER-DAT2.0; got version {version[1] or 'unknown'}; "
            "convert it, for example with jAER"
        )
    return start, tuple(lines)


def _nmnist(path: Path, content: bytes) -> Recording:
    count, rest = divmod(len(content), 5)
    if not count:
        raise BadEvents(
            f"{path}: must have records of 5 bytes; got {rest} bytes; it is no N-MNIST file"
        )
    records = np.frombuffer(content, np.uint8, 5 * count).reshape(-1, 5)
    x, y = records[:, 0], records[:, 1]
    marks = y == _OVERFLOW_Y
    kept = (x < NMNIST[0]) & (y < NMNIST[1])
    outside = count - int(kept.sum()) - int(marks.sum())
    refuse_noise(path, outside, count, "N-MNIST (34 x 34)")
    late = np.cumsum(marks, dtype=np.int64)[kept] * _OVERFLOW_US
    records = records[kept]
    events = np.empty(len(records), EVENTS)
    events["x"], events["y"], events["p"] = records[:, 0], records[:, 1], records[:, 2] >> 7
    events["t"] = (
        (records[:, 2].astype(np.int64) & 127) << 16
        | records[:, 3].astype(np.int64) << 8
        | records[:, 4]
    )
    events["t"] += late
    skipped = {"marks of a time overflow": int(marks.sum()), "outside the sensor": outside}
    return _recording(path, events, NMNIST, "N-MNIST", skipped, rest, (), ())


def refuse_noise(path: Path | str, outside: int, count: int, format: str) -> None:
    """Noise, or another camera's file, has most of its addresses outside."""
    if 2 * outside > count:
        raise BadEvents(
            f"{path}: {outside} of {count} addresses are outside the sensor; "
            f"it is no {format} recording; check its origin"
        )


def _recording(
    path: Path,
    events: np.ndarray,
    size: tuple[int, int],
    format: str,
    skipped: dict[str, int],
    rest: int,
    header: tuple[str, ...],
    turns_us: Sequence[int],
) -> Recording:
    """Events in the file's order to a recording: times put right, sorted, and all counted."""
    clock: dict[str, int] = {}
    if (events["t"][1:] < events["t"][:-1]).any():
        stray = clocks.strays(events["t"], turns_us)
        events = events[~stray]
        skipped["stray times"] = int(stray.sum())
        events["t"], clock = clocks.straightened(events["t"], turns_us)
        events = events[np.argsort(events["t"], kind="stable")]
    skipped["bytes after the last record"] = rest
    return not_too_long(
        path, Recording(events, size, format, nonzero(skipped), nonzero(clock), header)
    )


def not_too_long(path: Path | str, recording: Recording) -> Recording:
    if recording.duration_us > LONGEST_US:
        raise BadEvents(
            f"{path}: its times run over {recording.duration_us / 3.6e9:.0f} hours; "
            "at most 24 are read; it is damaged"
        )
    return recording


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _check_fields(events: object, fields: str = "xytp") -> None:
    got = type(events).__name__
    names: set[str] = set()
    if isinstance(events, np.ndarray):
        got = f"{events.dtype} of shape {events.shape}"
        names = set(events.dtype.names or ()) if events.ndim == 1 else names
    if not isinstance(events, np.ndarray) or not set(fields) <= names:
        raise ValueError(
            f"events: must be an array (N,) with the fields {', '.join(fields)}; got {got}; "
            "see bisnn.data.EVENTS"
        )
    for name in fields.rstrip("p"):
        if events[name].dtype.kind not in "iu":
            raise ValueError(f"{name}: must be whole numbers; got {events[name].dtype}; round them")


def _check_events(events: np.ndarray, size: tuple[int, int], most_us: int) -> None:
    """What a file can hold; anything else would come back as something else."""
    _check_fields(events)
    for name, end in (("x", size[0]), ("y", size[1]), ("t", most_us)):
        values = events[name]
        bad = values[(values < 0) | (values >= end)]
        if len(bad):
            raise ValueError(
                f"{name}: must be at least 0 and below {end}; got {bad[0]}; "
                "crop or shift the events"
            )
    if (events["t"][1:] < events["t"][:-1]).any():
        raise ValueError("t: must not decrease; got a step back; sort the events by time")


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
