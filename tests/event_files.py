"""Event files of a few records, and loops over records that say what a reader must find in them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from bisnn.data import events as ev

HEADER = b"#!AER-DAT2.0\r\n# This is a raw AE data file - do not edit\r\n"


def address(x, y, p):
    return y << 8 | x << 1 | p


def aedat(*times, header=HEADER):
    """A file with one event at (3, 5) for each time."""
    return header + b"".join(struct.pack(">II", address(3, 5, 1), t) for t in times)


def nmnist(*records):
    return b"".join(bytes([x, y]) + (p << 23 | t).to_bytes(3, "big") for x, y, t, p in records)


def reader(folder):
    """A function from the bytes of a file to its recording."""

    def read(content, name="a.aedat", **options):
        path = folder / name
        path.write_bytes(content)
        return ev.read_events(path, **options)

    return read


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
    """Frames (T, 2, H, W), one event after another."""
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


def real(pattern):
    """Files of recordings that lie on this machine; the test is skipped where there are none."""
    root = os.environ.get("BISNN_DATA")
    if not root:
        pytest.skip("needs recordings: BISNN_DATA is not set to the folder that holds them")
    files = sorted(Path(root).rglob(pattern))
    if not files:
        pytest.skip(f"needs recordings: nothing under BISNN_DATA={root} matches {pattern}")
    return files


GOOD = np.array([(1, 2, 3, True), (33, 33, 900, False)], ev.EVENTS)
