"""Recordings of event cameras: formats, headers and clocks, against loops over their records."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisnn import data
from bisnn.data import events as ev
from event_files import HEADER, aedat, nmnist, reader, real, slow_aedat, slow_nmnist

MINUTE_US = 60 * 10**6


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    return reader(tmp_path_factory.mktemp("events"))


# The formats, record by record.


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


# The package.


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
