"""Recordings of other makers' cameras, as columns of text or numbers, and damaged ones of each."""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisnn import data
from bisnn.data import event_columns, foreign
from bisnn.data.events import EVENTS, SUFFIXES, BadEvents, read_events
from camera_files import BYTES, EVENTS_WRITTEN, SIZE, aedat4, csv_text, event_stream, evt2, evt3

needs_faery = pytest.mark.skipif(
    importlib.util.find_spec("faery") is None, reason="needs faery: pip install 'bisnn[cameras]'"
)


def sane_or_refused(path, content):
    """A file gives events in order on its sensor, or one line."""
    path.write_bytes(content)
    try:
        found = read_events(path)
    except BadEvents as error:
        line = str(error)
    else:
        line = ""
        events, (width, height) = found.events, found.size
        assert events.dtype == EVENTS
        assert ((events["x"] >= 0) & (events["x"] < width)).all()
        assert ((events["y"] >= 0) & (events["y"] < height)).all()
        assert (np.diff(events["t"]) >= 0).all()
    assert "\n" not in line


FOREIGN = [name for name in BYTES if not name.endswith(".csv")]


def read(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return read_events(path)


def refused(folder, name, content, message):
    with pytest.raises(BadEvents, match=message) as caught:
        read(folder, name, content)
    assert "\n" not in str(caught.value)


@needs_faery
@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_composed_by_hand_reads_back(tmp_path, name):
    found = read(tmp_path, name, BYTES[name](EVENTS_WRITTEN))
    expected = EVENTS_WRITTEN.copy()
    if name.endswith(".es"):
        expected["t"] -= expected["t"][0]  # the format has no other clock
    np.testing.assert_array_equal(found.events, expected)
    assert (found.size, found.size_stated) == (SIZE, True)
    assert (found.skipped, found.clock) == ({}, {})
    assert found.format == foreign.FORMATS[os.path.splitext(name)[1]]
    assert data.read_events(tmp_path / name).events.dtype == EVENTS


@needs_faery
def test_aedat4_is_told_by_its_first_line(tmp_path):
    found = read(tmp_path, "a.aedat", aedat4(EVENTS_WRITTEN))
    assert found.format == "AEDAT4"
    np.testing.assert_array_equal(found.events, EVENTS_WRITTEN)


@needs_faery
def test_many_events_over_several_packets(tmp_path):
    rng = np.random.default_rng(0)
    events = np.zeros(100_000, EVENTS)
    events["x"], events["y"] = rng.integers(0, 640, len(events)), rng.integers(0, 480, len(events))
    events["t"] = np.sort(rng.integers(0, 3_000_000, len(events)))
    events["p"] = rng.integers(0, 2, len(events))
    for name, write in (("a.raw", evt3), ("b.raw", evt2), ("a.aedat4", aedat4)):
        found = read(tmp_path, name, write(events, (640, 480)))
        np.testing.assert_array_equal(found.events, events)


@needs_faery
def test_a_size_that_no_header_says_is_not_made_up(tmp_path):
    content = evt2(EVENTS_WRITTEN).replace(b"% geometry 20x12\n", b"")
    found = read(tmp_path, "a.raw", content)
    assert (found.size, found.size_stated) == (SIZE, False), "the least that holds all events"
    np.testing.assert_array_equal(found.events, EVENTS_WRITTEN)


@needs_faery
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.raw", b"abc" * 100, "must begin as Prophesee RAW does, with b'%'; got b'abcabcab'"),
        ("a.raw", b"% date today\n" + bytes(range(200)), "must name its encoding, as '% evt 3.0'"),
        ("a.dat", b"% Version 2\n", "cannot be read as Prophesee DAT .*; it is damaged"),
        ("a.es", b"Event Stream" + bytes(1) + b"abc", "cannot be read as Event Stream"),
        ("a.es", event_stream(EVENTS_WRITTEN)[:20], "has no event; leave it out"),
        ("a.aedat4", b"#!AER-DAT4.0\r\n" + bytes(100), "cannot be read as AEDAT4"),
        ("a.raw", evt3(EVENTS_WRITTEN, (6, 12)), "x overflow"),
        ("a.h5", b"\x89HDF\r\n\x1a\n" + bytes(100), "cannot be read as HDF5"),
    ],
)
def test_damaged_files_of_others(tmp_path, name, content, message):
    refused(tmp_path, name, content, message)


# What makes faery 0.7.1 abort: an AEDAT4 packet that says it has 2^31 - 1 events.
def aborting():
    content = bytearray(aedat4(EVENTS_WRITTEN))
    at = content.rindex(len(EVENTS_WRITTEN).to_bytes(4, "little"), 0, -16 * len(EVENTS_WRITTEN))
    content[at : at + 4] = (2**31 - 1).to_bytes(4, "little")
    return bytes(content)


@needs_faery
def test_a_file_that_ends_its_reader_ends_nothing_else(tmp_path, capfd):
    refused(tmp_path, "a.aedat4", aborting(), "cannot be read as AEDAT4")
    np.testing.assert_array_equal(
        read(tmp_path, "b.aedat4", aedat4(EVENTS_WRITTEN)).events, EVENTS_WRITTEN
    )
    assert capfd.readouterr() == ("", ""), "and the reader's own words reach nobody"


@needs_faery
@settings(max_examples=30)
@given(name=st.sampled_from(FOREIGN), changes=st.data())
def test_fuzz_files_of_others(tmp_path_factory, name, changes):
    content = bytearray(BYTES[name](EVENTS_WRITTEN))
    for _ in range(changes.draw(st.integers(0, 3))):
        content[changes.draw(st.integers(0, len(content) - 1))] = changes.draw(st.integers(0, 255))
    content = content[: changes.draw(st.integers(0, len(content)))]
    content += changes.draw(st.binary(max_size=40))
    sane_or_refused(tmp_path_factory.getbasetemp() / name, bytes(content))


def test_a_missing_reader_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.raw").write_bytes(evt2(EVENTS_WRITTEN))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = (
        r"a.raw: Prophesee RAW is read by faery, which is not installed; "
        r"pip install 'bisnn\[cameras\]'"
    )
    with pytest.raises(foreign.MissingReader, match=message) as caught:
        read_events(tmp_path / "a.raw")
    assert not isinstance(caught.value, BadEvents), "the file is not to blame"


# HDF5


def hdf5(path, layout):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        t, x, y, p = (EVENTS_WRITTEN[name] for name in "txyp")
        if layout == "Prophesee":
            kind = [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")]
            records = np.zeros(len(t), kind)
            for name in "xytp":
                records[name] = EVENTS_WRITTEN[name]
            file.create_dataset("CD/events", data=records)
            file.attrs["geometry"] = "20x12"
        elif layout == "DSEC":
            for name, column in zip("txyp", (t.astype("u4"), x, y, p), strict=True):
                file.create_dataset(f"events/{name}", data=column, compression="gzip")
            file["t_offset"] = 123
            file.attrs["width"], file.attrs["height"] = SIZE
        else:
            seconds = t / 1e6
            for name, column in zip(("ts", "xs", "ys", "ps"), (seconds, x, y, p), strict=True):
                file.create_dataset(f"events/{name}", data=column)
            file.attrs["sensor_resolution"] = SIZE[::-1]


@pytest.mark.parametrize("layout", ["Prophesee", "DSEC", "e2vid"])
@pytest.mark.parametrize("suffix", ["h5", "hdf5"])
def test_hdf5(tmp_path, layout, suffix):
    path = tmp_path / f"a.{suffix}"
    hdf5(path, layout)
    found = read_events(path)
    np.testing.assert_array_equal(found.events, EVENTS_WRITTEN)
    assert (found.size, found.size_stated, found.format) == (SIZE, True, "HDF5")


def test_hdf5_without_events(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros(3)
    with pytest.raises(BadEvents, match="no events at CD/events, events, /; it holds images"):
        read_events(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (0x8ECF, "a.h5: is compressed by filter 36559, .* install Prophesee's plugin hdf5_ecf"),
        (32001, "a.h5: is compressed by filter 32001, .*; pip install hdf5plugin"),
    ],
)
def test_a_missing_filter_is_named(tmp_path, code, message):
    h5py = pytest.importorskip("h5py")
    if h5py.h5z.filter_avail(code):
        pytest.skip(f"the filter {code} is installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((6,))
        created.set_filter(code, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((6,))
        kind = h5py.h5t.py_create(EVENTS)
        h5py.h5d.create(file.create_group("CD").id, b"events", kind, space, created)
    with pytest.raises(foreign.MissingReader, match=message):
        read_events(tmp_path / "a.h5")


# Columns


@pytest.mark.parametrize(
    "names", ["t,x,y,p", "p,y,x,t", "x,y,polarity,timestamp", "Time,X,Y,On,x2", "t_us,x,y,p"]
)
def test_csv_columns_come_in_any_order(tmp_path, names):
    content = csv_text(EVENTS_WRITTEN, names.lower().replace("on", "p"))
    content = names.encode() + b"\n" + content.partition(b"\n")[2]
    found = read(tmp_path, "a.csv", content)
    np.testing.assert_array_equal(found.events, EVENTS_WRITTEN)
    assert (found.size, found.size_stated, found.format) == (SIZE, False, "CSV")


@pytest.mark.parametrize(
    "text",
    [
        "# a comment\nt;x;y;p\n5;1;2;1\n7;3;0;0\n",
        "t\tx\ty\tp\n5\t1\t2\ton\n7\t3\t0\toff\n",
        "t x y p\n5 1 2 1\n7 3 0 -1\n",
        '"t","x","y","p"\r\n5,1,2,True\r\n7,3,0,False\r\n',
        "t_s,x,y,p\n0.000005,1,2,1\n7e-6,3,0,0\n",
        "time (ms),x,y,p\n0.005,1,2,1\n0.007,3,0,0\n",
        "t [ns],x,y,p\n5000,1,2,1\n7000,3,0,0\n",
        "\ufefft,x,y,p\n7,3,0,0\n5,1,2,1\n",
    ],
)
def test_csv_dialects(tmp_path, text):
    found = read(tmp_path, "a.csv", text.encode())
    assert found.events.tolist() == [(1, 2, 5, True), (3, 0, 7, False)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3,4\n5,6,7,8\n", "must name its columns t, x, y and p; got '1, 2, 3, 4'"),
        ("t,x,y\n1,2,3\n", "give a name to p"),
        ("t,x,y,p,pol\n1,2,3,1,1\n", "has two columns for p, 'p' and 'pol'; leave one out"),
        ("t,x,y,p\n", "has no event"),
        ("t,x,y,p\n1,2,3\n", "has a line that is no event"),
        ("t,x,y,p\n1,2,abc,1\n", "has a line that is no event .*'abc'"),
        ("t,x,y,p\n1.5,2,3,1\n", "t must be whole numbers; got 1.5; .* by the unit, t_s or t_ms"),
        ("t,x,y,p\n1,2.5,3,1\n", "x must be whole numbers; got 2.5"),
        ("t,x,y,p\nnan,2,3,1\n", "t must be whole numbers; got nan"),
        ("t,x,y,p\n1,2,3,7\n", "p must be 0 or 1, or -1 or 1"),
        ("t,x,y,p\n1,2,3,up\n", "p must be 0 or 1, -1 or 1, or on or off; got 'up'"),
        ("t,x,y,p\n1,-2,3,1\n", "1 of 1 addresses are outside the sensor"),
        ("t_s,x,y,p\n1e9,1,1,1\n0,1,1,1\n", "its times run over .* hours"),
    ],
)
def test_bad_csv(tmp_path, text, message):
    refused(tmp_path, "a.csv", text.encode(), message)


def saved(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_numpy_files(tmp_path):
    columns = {name: EVENTS_WRITTEN[name] for name in "txyp"}
    tonic = np.empty(len(EVENTS_WRITTEN), [("t", "i8"), ("p", "i1"), ("x", "u2"), ("y", "u2")])
    for name in "txyp":
        tonic[name] = EVENTS_WRITTEN[name]
    for content in (npy(EVENTS_WRITTEN), npy(tonic), saved(**columns), saved(e=EVENTS_WRITTEN)):
        name = "a.npz" if content.startswith(b"PK") else "a.npy"
        found = read(tmp_path, name, content)
        np.testing.assert_array_equal(np.sort(found.events), np.sort(EVENTS_WRITTEN))
        assert (found.size, found.size_stated) == (SIZE, False)
    found = read(tmp_path, "a.npz", saved(events=EVENTS_WRITTEN, size=np.array([32, 24]), more=1))
    assert (found.size, found.size_stated) == ((32, 24), True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(np.zeros((5, 4))), r"must be an array \(N,\) with the fields t, x, y, p; got float64"),
        (npy(np.zeros(3, [("t", "i8"), ("x", "i8")])), "give a name to y, p"),
        (npy(np.array([{}])), "holds pickled Python objects"),
        (saved(t=np.arange(3), x=np.arange(2), y=np.arange(3), p=np.ones(3)), "equally long"),
        (saved(events=EVENTS_WRITTEN, size=np.array([1.5, 2])), r"size must be \(width, height\)"),
        (npy(EVENTS_WRITTEN)[:-3], "is damaged or no NumPy file"),
        (b"PK\3\4" + bytes(50), "is damaged or no NumPy file"),
        (npy(EVENTS_WRITTEN[:0]), "has no event"),
    ],
)
def test_bad_numpy_files(tmp_path, content, message):
    refused(tmp_path, "a.npz" if content.startswith(b"PK") else "a.npy", content, message)


CELLS = st.one_of(
    st.integers(-3, 40).map(str),
    st.sampled_from(["on", "", "1.5", "nan", "inf", "1e300", '"', "#", "9" * 25, "-1", "٣"]),
)


@given(
    header=st.permutations(["t", "x", "y", "p"]) | st.lists(st.text(max_size=6), max_size=5),
    lines=st.lists(st.lists(CELLS, min_size=3, max_size=5), max_size=6),
    mark=st.sampled_from([",", ";", "\t", " "]),
    rest=st.binary(max_size=10),
)
def test_fuzz_csv(tmp_path_factory, header, lines, mark, rest):
    text = "\n".join(mark.join(cells) for cells in [header, *lines])
    sane_or_refused(
        tmp_path_factory.getbasetemp() / "f.csv", text.encode("utf-8", "surrogatepass") + rest
    )


@given(
    kinds=st.lists(
        st.sampled_from(["<i8", "<u8", "<f8", "<f4", "?", "i1", "U3", "S2", "<M8[us]", "<c8"]),
        min_size=4,
        max_size=4,
    ),
    content=st.binary(min_size=64, max_size=256),
    cut=st.integers(0, 30),
    packed=st.booleans(),
)
def test_fuzz_arrays(tmp_path_factory, kinds, content, cut, packed):
    kind = np.dtype(list(zip("txyp", kinds, strict=True)))
    array = np.frombuffer(content[: len(content) // kind.itemsize * kind.itemsize], kind)
    file = saved(events=array) if packed else npy(array)
    name = "f.npz" if packed else "f.npy"
    sane_or_refused(tmp_path_factory.getbasetemp() / name, file[: len(file) - cut])


def test_what_else_lies_in_an_npz_is_not_read(tmp_path):
    content = saved(**{name: EVENTS_WRITTEN[name] for name in "txyp"})
    (tmp_path / "a.npz").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("notes.npy", b"no array")
    np.testing.assert_array_equal(read_events(tmp_path / "a.npz").events, EVENTS_WRITTEN)


def test_every_suffix_has_a_reader(tmp_path):
    for suffix in SUFFIXES:
        (tmp_path / f"a{suffix}").write_bytes(b"nothing at all, in any format" * 5)
        with pytest.raises(BadEvents) as caught:
            read_events(tmp_path / f"a{suffix}")
        assert "must be one of" not in str(caught.value)
    assert event_columns.NAMES.keys() == set("txyp")
