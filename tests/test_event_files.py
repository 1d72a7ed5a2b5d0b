"""Event files from outside give events or one clear line; those of our own read back the same."""

from __future__ import annotations

import os
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisnn import data
from bisnn.data import events as ev
from event_files import GOOD, HEADER, aedat, nmnist, reader, real, slow_aedat, some_events


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    return reader(tmp_path_factory.mktemp("events"))


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
    "a zip": (
        "a.zip",
        b"PK\3\4" + bytes(100),
        r"must be one of .aedat, .* got '.zip'; give a recording",
    ),
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
