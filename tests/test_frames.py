"""Frames of events: what a loop over the events gives, and what tonic makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisnn import data
from bisnn.data import events as ev
from event_files import GOOD, slow_bins, some_events


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
