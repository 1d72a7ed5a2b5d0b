"""Recordings of event cameras: the formats against loops over their records, files from outside,
frames.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisnn import data
from bisnn.data import events as ev
from test_cli import run

HEADER = b"#!AER-DAT2.0\r\n# This is a raw AE data file - do not edit\r\n"
MINUTE_US = 60 * 10**6


def address(x, y, p):
    return y << 8 | x << 1 | p


def aedat(*times, header=HEADER):
    """A file with one event at (3, 5) for each time."""
    return header + b"".join(struct.pack(">II", address(3, 5, 1), t) for t in times)


def nmnist(*records):
    return b"".join(bytes([x, y]) + (p << 23 | t).to_bytes(3, "big") for x, y, t, p in records)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Bytes to a recording."""
    folder = tmp_path_factory.mktemp("events")

    def read(content, name="a.aedat", **options):
        path = folder / name
        path.write_bytes(content)
        return ev.read_events(path, **options)

    return read


# The formats, record by record.


def slow_aedat(content):
    while content.startswith(b"#"):
        content = content.partition(b"\n")[2]
    found = []
    for a, t in struct.iter_unpack(">II", content[: len(content) // 8 * 8]):
        if a < 2**15:
            found.append(((a >> 1) & 127, (a >> 8) & 127, t, bool(a & 1)))
    return sorted(found, key=lambda event: event[2])


def slow_nmnist(content):
    found, late = [], 0
    for i in range(0, len(content) // 5 * 5, 5):
        x, y, word = content[i], content[i + 1], int.from_bytes(content[i + 2 : i + 5], "big")
        if y == 240:
            late += 8192
        elif x < 34 and y < 34:
            found.append((x, y, (word & (2**23 - 1)) + late, bool(word >> 23)))
    return sorted(found, key=lambda event: event[2])


def slow_bins(events, steps, bin_us, start_us, crop, shrink):
    x0, y0, w, h = crop
    frames = np.zeros((steps, 2, h // shrink, w // shrink), np.uint8)
    for x, y, t, p in events.tolist():
        k = (t - start_us) // bin_us
        if 0 <= k < steps and 0 <= x - x0 < w and 0 <= y - y0 < h:
            frames[k, int(p), (y - y0) // shrink, (x - x0) // shrink] = 1
    return frames


def some_events(size, longest_us, least=0):
    one = st.tuples(
        st.integers(0, size[0] - 1),
        st.integers(0, size[1] - 1),
        st.integers(0, longest_us),
        st.booleans(),
    )
    return st.lists(one, min_size=least, max_size=40).map(
        lambda rows: (
            np.array(sorted(rows, key=lambda row: row[2]), ev.EVENTS)
            if rows
            else np.empty(0, ev.EVENTS)
        )
    )


@given(
    records=st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 90_000)), max_size=40),
    header=st.sampled_from([HEADER, HEADER + b"# tail\n", b"#!AER-DAT2.0\n"]),
    rest=st.binary(max_size=7).filter(lambda rest: not rest.startswith(b"#")),
)
def test_aedat_is_what_a_loop_over_the_records_reads(read, records, header, rest):
    content = header + b"".join(struct.pack(">II", *record) for record in records) + rest
    recording = read(content)
    assert recording.events.tolist() == slow_aedat(content)
    assert recording.skipped.get("special events", 0) == sum(a >= 2**15 for a, _ in records)
    assert recording.skipped.get("bytes after the last record", 0) == len(rest)
    assert recording.size == (128, 128)


@given(
    records=st.lists(
        st.tuples(
            st.integers(0, 35),
            st.integers(0, 35) | st.just(240),
            st.integers(0, 90_000),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=40,
    ),
    rest=st.binary(max_size=4),
)
def test_nmnist_is_what_a_loop_over_the_records_reads(read, records, rest):
    marks = sum(y == 240 for _, y, _, _ in records)
    outside = sum(y != 240 and (x > 33 or y > 33) for x, y, _, _ in records)
    if 2 * outside > len(records):
        return
    recording = read(nmnist(*records) + rest, "a.bin")
    assert recording.events.tolist() == slow_nmnist(nmnist(*records))
    assert recording.skipped.get("marks of a time overflow", 0) == marks
    assert recording.skipped.get("outside the sensor", 0) == outside
    assert recording.size == (34, 34)


def real(pattern):
    root = os.environ.get("BISNN_DATA")
    if not root:
        pytest.skip("needs recordings: BISNN_DATA is not set to the folder that holds them")
    files = sorted(Path(root).rglob(pattern))
    if not files:
        pytest.skip(f"needs recordings: nothing under BISNN_DATA={root} matches {pattern}")
    return files


def test_real_recordings_of_mnist_dvs():
    files = real("scale04/*.aedat")
    recordings = [ev.read_aedat(file) for file in files]
    for file, recording in zip(files[:5], recordings, strict=False):
        assert recording.events.tolist() == slow_aedat(file.read_bytes())
    for recording in recordings:
        assert not recording.skipped
        assert not recording.clock
        assert recording.start_us == 0
        assert 10_000 < len(recording.events) < 24_000
        assert 1.9e6 < recording.duration_us < 2.5e6
        assert 0.45 < recording.events["p"].mean() < 0.55


def test_real_recordings_of_nmnist():
    files = real("Train/*/*.bin")
    recordings = [ev.read_nmnist(file) for file in files[::10]]
    for file, recording in zip(files[:50:10], recordings, strict=False):
        assert recording.events.tolist() == slow_nmnist(file.read_bytes())
    for recording in recordings:
        assert not recording.skipped
        assert not recording.clock
        assert 900 < len(recording.events) < 9_000
        assert 0.28e6 < recording.duration_us < 0.32e6


# Headers.


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"#!AER-DAT2.0\n",
        b"#!AER-DAT2.0\r\n",
        b"# no version\r\n",
        HEADER + b"#\n#\xff\x1b[31m\n",
        HEADER + b"#" * 10**6 + b"\n",
    ],
)
def test_headers(read, header):
    recording = read(aedat(7, 9, header=header))
    assert recording.events["t"].tolist() == [7, 9]
    assert ("assumed" in recording.format) == (not header.startswith(b"#!"))
    assert all(
        line.isprintable() and line.isascii() and len(line) <= 200 for line in recording.header
    )


@pytest.mark.parametrize(
    "header", [HEADER, HEADER[:-1], HEADER[:-2], b"#!AER-DAT2.0", HEADER + b"#" * 10**6]
)
def test_a_header_may_end_the_file(read, header):
    recording = read(header)
    assert (
        len(recording.events),
        recording.start_us,
        recording.duration_us,
        recording.skipped,
    ) == (0, 0, 0, {})


def test_formats_are_told_apart(read):
    assert read(aedat(1), "a.dat").format == "AER-DAT2.0"
    assert read(aedat(1), "a.bin").format == "AER-DAT2.0"
    assert read(aedat(1), "a.AEDAT").format == "AER-DAT2.0"
    assert read(nmnist((1, 2, 3, 1)), "a.BIN").format == "N-MNIST"


# Clocks.

TOP, HALF = 2**32, 2**31
CLOCKS = {
    "turns at 2^32": (
        [TOP - 9, TOP - 1, 4, 20],
        [TOP - 9, TOP - 1, TOP + 4, TOP + 20],
        {"clock turned over": 1},
    ),
    "turns at 2^31": (
        [HALF - 9, HALF - 1, 4, 20],
        [HALF - 9, HALF - 1, HALF + 4, HALF + 20],
        {"clock turned over": 1},
    ),
    "runs through 2^31": ([HALF - 9, HALF + 1], [HALF - 9, HALF + 1], {}),
    "turns after a quiet minute": (
        [TOP - MINUTE_US, 5],
        [TOP - MINUTE_US, TOP + 5],
        {"clock turned over": 1},
    ),
    "turns twice": (
        [TOP - 2, 3, HALF, TOP - 1, 3],
        [TOP - 2, TOP + 3, TOP + HALF, 2 * TOP - 1, 2 * TOP + 3],
        {"clock turned over": 2},
    ),
    "out of order at a turn": (
        [TOP - 9, 4, TOP - 2, 7],
        [TOP - 9, TOP - 2, TOP + 4, TOP + 7],
        {"clock turned over": 1, "out of order": 1},
    ),
    "out of order after a turn before the file": (
        [4, TOP - 2, 7],
        [TOP - 2, TOP + 4, TOP + 7],
        {"out of order": 1},
    ),
    "out of order": (
        [10, 90_000, 20, 30, 90_001],
        [10, 20, 30, 90_000, 90_001],
        {"out of order": 2},
    ),
    "set back": (
        [5 * MINUTE_US, 5 * MINUTE_US + 3, 1, 4],
        [5 * MINUTE_US + k for k in (0, 3, 3, 6)],
        {"clock set back": 1},
    ),
    "far ahead": ([5, TOP - 3], [5, TOP - 3], {}),
}


@pytest.mark.parametrize(("times", "expected", "clock"), CLOCKS.values(), ids=CLOCKS)
def test_clocks(read, times, expected, clock):
    recording = read(aedat(*times))
    assert recording.events["t"].tolist() == expected
    assert recording.clock == clock
    assert not recording.skipped


@pytest.mark.parametrize("stray", [0, 3 * 10**9])
def test_one_damaged_time_does_not_move_the_others(read, stray):
    t = [200_000, 200_010, stray, 200_020, 200_030]
    recording = read(aedat(*t))
    assert recording.events["t"].tolist() == [200_000, 200_010, 200_020, 200_030]
    assert recording.skipped == {"stray times": 1}
    assert not recording.clock


def test_a_clock_of_noise_is_refused(read, monkeypatch):
    with pytest.raises(ev.BadEvents, match="its times run over 61 hours; at most 24 are read"):
        read(aedat(*[5, 2**31 + MINUTE_US] * 100))
    monkeypatch.setattr(ev, "LONGEST_US", 10**6)
    assert (
        read(nmnist((1, 1, 0, 0), *[(0, 240, 0, 0)] * 122, (1, 1, 0, 0)), "a.bin").duration_us
        == 122 * 8192
    )
    with pytest.raises(ev.BadEvents, match="at most 24 are read"):
        read(nmnist((1, 1, 0, 0), *[(0, 240, 0, 0)] * 123, (1, 1, 0, 0)), "a.bin")


# Files from outside.


def refused(path, message, reader=ev.read_events, **options):
    with pytest.raises(ev.BadEvents, match=message) as caught:
        reader(path, **options)
    assert "\n" not in str(caught.value)


BAD = {
    "empty": ("a.aedat", b"", "is empty"),
    "empty bin": ("a.bin", b"", "is empty"),
    "4 bytes": ("a.bin", b"1234", "must have records of 5 bytes; got 4"),
    "7 bytes": ("a.aedat", bytes(7), "must have a version line or records of 8 bytes; got 7"),
    "a comment": ("a.aedat", b"# hello\n", "must have a version line or records"),
    "version 1": (
        "a.aedat",
        b"#!AER-DAT1.0\r\n" + bytes(6),
        r"must be AER-DAT2.0; got version 1.0; convert it",
    ),
    "version 3": ("a.aedat", b"#!AER-DAT3.1\r\n#Format: RAW\r\n", "got version 3.1"),
    "version 4": ("a.aedat", b"#!AER-DAT4.0\r\n" + bytes(100), "got version 4.0"),
    "version ?": ("a.aedat", b"#!AER-DATxyz\r\n", "got version unknown"),
    "endless line": (
        "a.aedat",
        b"#!AER-DAT2.0 " + bytes(5 * 2**20),
        "header does not end within 4,194,304 bytes",
    ),
    "endless header": ("a.aedat", (b"#" * 99 + b"\n") * 50_000, "header does not end within"),
    "two recordings": ("a.aedat", aedat(1) + aedat(2), "a second recording starts at byte 66"),
    "noise": (
        "a.aedat",
        np.random.default_rng(0).bytes(8000),
        "1000 of 1000 addresses are outside",
    ),
    "noise bin": (
        "a.bin",
        np.random.default_rng(0).bytes(5000),
        "of 1000 addresses are outside .* no N-MNIST .* check its origin",
    ),
    "zeros": (
        "a.bin",
        bytes(20_000),
        "its 20,000 bytes are all 0, as of a download that failed; get it again",
    ),
    "zeros, aedat": ("a.aedat", bytes(800), "are all 0"),
    "a zip": ("a.zip", b"PK\3\4" + bytes(100), r"must be an .aedat .* got '.zip'"),
    "no suffix": ("recording", b"x" * 100, "got 'no suffix'"),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, message)


@pytest.mark.parametrize("reader", [ev.read_events, ev.read_aedat, ev.read_nmnist])
def test_what_is_no_file(tmp_path, reader):
    refused(tmp_path, "is a folder; give a file", reader)
    refused(tmp_path / "a.bin", "there is no such file; check the path", reader)
    refused(tmp_path / "a.bin" / "b.bin", "no such file", reader)
    refused("a\0.bin", "cannot be opened", reader)
    refused("a" * 300 + ".bin", "cannot be opened", reader)
    refused("/dev/zero", "is no regular file", reader)
    os.mkfifo(tmp_path / "pipe.aedat")
    refused(tmp_path / "pipe.aedat", "is no regular file", reader)
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(2**40)
    refused(
        tmp_path / "huge.bin", "has 1,099,511,627,776 bytes; at most 268,435,456 are read", reader
    )
    (tmp_path / "six.bin").write_bytes(bytes(6))
    refused(
        tmp_path / "six.bin",
        "has 6 bytes; at most 5 are read; split it, or raise most_bytes in Python",
        reader,
        most_bytes=5,
    )
    locked = tmp_path / "locked.bin"
    locked.write_bytes(bytes(5))
    locked.chmod(0)
    if not os.access(locked, os.R_OK):
        refused(locked, "cannot be opened .*Permission denied", reader)
    assert len(os.listdir("/proc/self/fd")) < 200, "no file was left open"


def accounted(recording, content, record_bytes):
    """Events are in order and on the sensor, and every byte of the file is one of them, skipped, or
    in the header.
    """
    events, (width, height) = recording.events, recording.size
    assert events.dtype == ev.EVENTS
    assert (
        (events["x"] >= 0) & (events["x"] < width) & (events["y"] >= 0) & (events["y"] < height)
    ).all()
    assert (np.diff(events["t"]) >= 0).all()
    assert recording.start_us >= 0
    assert recording.duration_us <= ev.LONGEST_US
    assert all(count > 0 for count in [*recording.skipped.values(), *recording.clock.values()])
    rest = recording.skipped.get("bytes after the last record", 0)
    records = len(events) + sum(recording.skipped.values()) - rest
    assert 0 <= rest < record_bytes
    header = 0
    while record_bytes == 8 and content[header : header + 1] == b"#":
        header = (content.find(b"\n", header) + 1) or len(content)
    assert header + record_bytes * records + rest == len(content)


@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.tuples(
            st.sampled_from([HEADER, b"#!AER-DAT2.0", b"#", b"\n#!AER-DAT2.0\n"]),
            st.binary(max_size=200),
        ).map(b"".join),
    ),
    name=st.sampled_from(["a.aedat", "a.bin", "a"]),
)
def test_fuzz_any_bytes(read, content, name):
    try:
        recording = read(content, name)
    except ev.BadEvents:
        return
    accounted(recording, content, 5 if recording.format == "N-MNIST" else 8)


TIMES = st.one_of(
    st.integers(0, 2**32 - 1),
    st.integers(0, 300_000),
    *(
        st.integers(-200_000, 200_000).map(lambda d, top=top: (top + d) % 2**32)
        for top in (2**31, 2**32, 2**32 - 2**26)
    ),
)


@given(
    records=st.lists(
        st.tuples(
            st.integers(0, 2**15 - 1) | st.integers(0, 2**17) | st.integers(0, 2**32 - 1), TIMES
        ),
        max_size=30,
    ),
    header=st.sampled_from([b"", HEADER]),
    rest=st.binary(max_size=7),
)
def test_fuzz_aedat_clocks_and_addresses(read, records, header, rest):
    content = header + b"".join(struct.pack(">II", *record) for record in records) + rest
    try:
        recording = read(content)
    except ev.BadEvents:
        return
    accounted(recording, content, 8)
    kept = sorted(event[:2] + event[3:] for event in slow_aedat(content))
    assert recording.skipped.get("stray times", 0) == len(kept) - len(recording.events)
    if "stray times" not in recording.skipped:
        assert sorted(event[:2] + event[3:] for event in recording.events.tolist()) == kept


@given(
    records=st.lists(
        st.tuples(
            st.integers(0, 33) | st.integers(0, 255),
            st.integers(0, 33) | st.integers(0, 255) | st.just(240),
            st.integers(0, 2**23 - 1) | st.integers(0, 300_000),
            st.integers(0, 1),
        ),
        max_size=30,
    ),
    rest=st.binary(max_size=4),
)
def test_fuzz_nmnist_clocks_and_addresses(read, records, rest):
    content = nmnist(*records) + rest
    try:
        recording = read(content, "a.bin")
    except ev.BadEvents:
        return
    accounted(recording, content, 5)


@pytest.mark.parametrize("order", ["in order", "noise"])
def test_memory_is_a_small_multiple_of_the_file(read, tmp_path, order):
    rng = np.random.default_rng(0)
    records = np.empty((300_000, 2), ">u4")
    records[:, 0] = rng.integers(0, 2**15, len(records))
    records[:, 1] = np.sort(rng.integers(0, 2**30, len(records)))
    if order == "noise":
        records[:, 1] ^= rng.integers(0, 2**13, len(records)).astype(np.uint32)
    path = tmp_path / "a.aedat"
    path.write_bytes(HEADER + records.tobytes())
    tracemalloc.start()
    assert len(ev.read_aedat(path).events) == len(records)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * path.stat().st_size


# Writing.


@given(events=some_events((128, 128), 2**32 - 1))
def test_aedat_round_trip(tmp_path_factory, events):
    path = tmp_path_factory.getbasetemp() / "round.aedat"
    data.write_aedat(path, events)
    recording = data.read_events(path)
    np.testing.assert_array_equal(recording.events, events)
    assert (recording.format, recording.skipped, recording.clock) == ("AER-DAT2.0", {}, {})


@given(events=some_events((34, 34), 2**23 - 1, least=1))
def test_nmnist_round_trip(tmp_path_factory, events):
    path = tmp_path_factory.getbasetemp() / "round.bin"
    data.write_nmnist(path, events)
    recording = data.read_events(path)
    np.testing.assert_array_equal(recording.events, events)
    assert (recording.format, recording.skipped, recording.clock) == ("N-MNIST", {}, {})


def test_written_files_are_the_originals_bytes(tmp_path):
    for pattern, write in (
        ("scale04/*.aedat", data.write_aedat),
        ("Train/*/*.bin", data.write_nmnist),
    ):
        file = real(pattern)[0]
        write(tmp_path / "copy", data.read_events(file).events)
        copy, original = (tmp_path / "copy").read_bytes(), file.read_bytes()
        start = original.rfind(b"\r\n", 0, 300) + 2 if pattern.endswith("aedat") else 0
        assert copy.endswith(original[start:])


GOOD = np.array([(1, 2, 3, True), (33, 33, 900, False)], ev.EVENTS)


def changed(**values):
    events = GOOD.copy()
    for name, value in values.items():
        events[name][1] = value
    return events


@pytest.mark.parametrize(
    ("write", "events", "message"),
    [
        (
            ev.write_aedat,
            changed(x=128),
            "x: must be at least 0 and below 128; got 128; crop or shift",
        ),
        (ev.write_aedat, changed(y=-1), "y: must be at least 0 and below 128; got -1"),
        (
            ev.write_aedat,
            changed(t=2**32),
            "t: must be at least 0 and below 4294967296; got 4294967296",
        ),
        (ev.write_aedat, changed(t=2), "t: must not decrease; got a step back; sort"),
        (ev.write_aedat, [(1, 2, 3, 1)], "events: must be an array .* got list"),
        (
            ev.write_aedat,
            np.zeros((2, 4)),
            r"events: must be an array .* got float64 of shape \(2, 4\)",
        ),
        (
            ev.write_aedat,
            GOOD.astype([("x", "f4"), ("y", "i2"), ("t", "i8"), ("p", "?")]),
            "x: must be whole numbers; got float32",
        ),
        (ev.write_nmnist, changed(x=34), "x: must be at least 0 and below 34; got 34"),
        (ev.write_nmnist, changed(t=2**23), "t: must be at least 0 and below 8388608"),
        (ev.write_nmnist, GOOD[:0], "events: must have at least one"),
    ],
)
def test_what_a_file_cannot_hold_is_not_written(tmp_path, write, events, message):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=message):
        write(path, events)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


# Frames.


@given(
    events=some_events((12, 9), 1000),
    steps=st.integers(1, 6),
    bin_us=st.integers(1, 400),
    start_us=st.integers(-500, 1200),
    corner=st.tuples(st.integers(0, 4), st.integers(0, 3)),
    cells=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    shrink=st.integers(1, 3),
)
def test_frames_are_what_a_loop_over_the_events_gives(
    events, steps, bin_us, start_us, corner, cells, shrink
):
    crop = (*corner, cells[0] * shrink, cells[1] * shrink)
    frames = ev.bin_events(
        events, steps, bin_us, start_us=start_us, crop=crop, size=(12, 9), shrink=shrink
    )
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(frames, slow_bins(events, steps, bin_us, start_us, crop, shrink))
    whole = ev.bin_events(events, steps, bin_us, start_us=start_us, size=(12, 9))
    np.testing.assert_array_equal(
        whole, slow_bins(events, steps, bin_us, start_us, (0, 0, 12, 9), 1)
    )


def test_frames_of_other_arrays():
    """Other integer types, signed polarities, events off the sensor and extreme times."""
    rows = [(-1, 0, 5, 1), (2, 1, 5, -1), (2, 1, 2**62, 1), (2, 1, -(2**63), 1), (300, 0, 5, 1)]
    events = np.array(rows, [("x", "i4"), ("y", "u2"), ("t", "i8"), ("p", "i1")])
    frames = ev.bin_events(events, 2, 10, size=(4, 2))
    assert np.argwhere(frames).tolist() == [[0, 0, 1, 2]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: must be a positive whole number; got 0"),
        ({"steps": True}, "steps: must be a positive"),
        ({"bin_us": 1.5}, "bin_us: must be a positive whole number; got 1.5"),
        ({"shrink": 0}, "shrink: must be a positive"),
        ({"shrink": 3}, "shrink: must divide the width and height of the frames, 34 x 34; got 3"),
        ({"start_us": 0.5}, "start_us: must be a whole number of microseconds"),
        ({"start_us": 2**80}, "start_us: must be a whole number of microseconds"),
        ({"size": (34,)}, r"size: must be the sensor's \(width, height\); got \(34,\)"),
        ({"size": (0, 3)}, "size: must be"),
        (
            {"crop": (0, 0, 35, 34)},
            r"crop: must be \(x0, y0, width, height\) inside the sensor's \(34, 34\)",
        ),
        ({"crop": (-1, 0, 3, 3)}, "crop: must be"),
        ({"crop": (0, 0, 0, 3)}, "crop: must be"),
        ({"crop": (0, 0, 3)}, "crop: must be"),
        ({"events": None}, "events: must be an array"),
    ],
)
def test_bad_arguments_of_frames(options, message):
    arguments = {"events": GOOD, "steps": 3, "bin_us": 10, "size": (34, 34)} | options
    with pytest.raises(ValueError, match=message):
        ev.bin_events(**arguments)


def test_arrays_go_through_tonic():
    transforms = pytest.importorskip("tonic.transforms")
    rng = np.random.default_rng(0)
    events = np.empty(400, ev.EVENTS)
    events["x"], events["y"], events["t"] = (
        rng.integers(0, 34, 400),
        rng.integers(0, 34, 400),
        np.sort(rng.integers(0, 5000, 400)),
    )
    events["t"][0], events["p"] = 0, rng.random(400) < 0.5
    frames = transforms.ToFrame(sensor_size=(34, 34, 2), time_window=1000, include_incomplete=True)(
        events
    )
    ours = ev.bin_events(events, len(frames), 1000, size=(34, 34))
    np.testing.assert_array_equal(np.minimum(frames, 1), ours)
    fewer = transforms.Denoise(filter_time=1000)(events)
    assert 0 < len(fewer) < 400
    moved = transforms.TimeJitter(std=10, clip_negative=True, sort_timestamps=True)(events.copy())
    assert ev.bin_events(moved, 5, 1000, size=(34, 34)).any()


def test_tonic_reads_the_same_events(tmp_path):
    tonic = pytest.importorskip("tonic.io")
    data.write_nmnist(tmp_path / "a.bin", GOOD)
    np.testing.assert_array_equal(tonic.read_mnist_file(str(tmp_path / "a.bin"), ev.EVENTS), GOOD)


# The command.


@pytest.fixture
def bisnn_(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def test_inspect(bisnn_, tmp_path):
    path = tmp_path / "[a].aedat"
    path.write_bytes(
        aedat(500_010, 10, 20)
        + struct.pack(">II", 2**15, 0)
        + struct.pack(">II", address(9, 9, 0), 600_010)
        + b"xyz"
    )
    code, out, _ = bisnn_("inspect", path)
    assert code == 0
    for text in (
        "AER-DAT2.0",
        "0.600000 s, from 0.500010 s",
        "7 events/s",
        "x 3 to 9, y 5 to 9",
        "75.0% p = 1",
        "(3, 5): 3",
    ):
        assert text in out
    assert "special events: 1, bytes after the last record: 3" in out
    assert "clock set back: 1" in out
    assert os.listdir(tmp_path) == ["[a].aedat"], "nothing is written unasked"
    (tmp_path / "looks").mkdir()
    for asked, written in (("look.png", "look.png"), ("looks", "looks/[a].aedat.png")):
        code, out, _ = bisnn_("inspect", path, "--out", tmp_path / asked)
        assert code == 0
        assert f"picture: {tmp_path / written}\n" in out
        assert (tmp_path / written).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("content", [HEADER, aedat(5)], ids=["no event", "one"])
def test_inspect_of_next_to_nothing(bisnn_, tmp_path, content):
    (tmp_path / "a.aedat").write_bytes(content)
    assert bisnn_("inspect", tmp_path / "a.aedat", "--out", tmp_path / "look.png")[0] == 0
    assert (tmp_path / "look.png").exists()
    assert sorted(os.listdir(tmp_path)) == ["a.aedat", "look.png"]


def test_inspect_of_bad_files_is_one_line(bisnn_, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"abc")
    for arguments, message in (
        ([tmp_path], "is a folder"),
        ([tmp_path / "b.bin"], "there is no such file"),
        ([tmp_path / "a.bin"], "must have records of 5 bytes"),
        ([tmp_path / "a.bin", "--out", "look.jpg"], "must be a .png file"),
    ):
        code, out, err = bisnn_("inspect", *arguments)
        assert (code, out) == (1, "")
        assert message in err
        assert err.count("\n") == 1
    code, out, _ = bisnn_("inspect", "--help")
    assert code == 0
    assert "bisnn inspect recording.aedat" in out


def test_reading_loads_no_torch(tmp_path):
    (tmp_path / "a.aedat").write_bytes(aedat(5))
    code = "import sys; from bisnn.data import read_events; read_events(sys.argv[1]); "
    code += "assert not {'torch', 'matplotlib', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.aedat"], check=True)


def test_every_public_name_of_data_is_there():
    for name in data.__all__:
        assert getattr(data, name) is not None
        assert name in dir(data)
    with pytest.raises(AttributeError, match=r"module 'bisnn\.data' has no attribute 'moons'"):
        data.moons  # noqa: B018
