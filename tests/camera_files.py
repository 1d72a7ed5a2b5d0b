"""Recordings in the formats of other makers, composed byte by byte as their documents say."""

from __future__ import annotations

import struct

import numpy as np

from bisnn.data.events import EVENTS

SIZE = (20, 12)
EVENTS_WRITTEN = np.array(
    [
        (1, 0, 10, False),
        (2, 1, 20, True),
        (19, 11, 2_000, False),
        (4, 3, 30_000, True),
        (5, 3, 30_000, True),
        (5, 9, 50_001, False),
    ],
    EVENTS,
)


def rows(events):
    return [(int(x), int(y), int(t), int(p)) for x, y, t, p in events.tolist()]


def evt2(events, size=SIZE):
    """A word of 32 bits: type (4 bits), time (6), x (11), y (11); type 8 is the time above."""
    header = f"% evt 2.0\n% geometry {size[0]}x{size[1]}\n% end\n".encode()
    words, high = [], None
    for x, y, t, p in rows(events):
        if t >> 6 != high:
            high = t >> 6
            words.append(8 << 28 | high)
        words.append(p << 28 | (t & 63) << 22 | x << 11 | y)
    return header + struct.pack(f"<{len(words)}I", *words)


def evt3(events, size=SIZE):
    """A word of 16 bits: type (4 bits) and 12 bits of y (0), polarity and x (2), time (6, 8)."""
    geometry = f"width={size[0]};height={size[1]}"
    words = []
    for x, y, t, p in rows(events):
        words += [8 << 12 | t >> 12 & 4095, 6 << 12 | t & 4095, y, 2 << 12 | p << 11 | x]
    header = f"% format EVT3;{geometry}\n% evt 3.0\n% end\n".encode()
    return header + struct.pack(f"<{len(words)}H", *words)


def dat(events, size=SIZE, kind=12):
    """Two words of 32 bits: time; x (14 bits), y (14), polarity (4). Older files are of kind 0."""
    header = "% Data file containing CD events.\n% Version 2\n"
    header += f"% Width {size[0]}\n% Height {size[1]}\n"
    records = (struct.pack("<II", t, p << 28 | y << 14 | x) for x, y, t, p in rows(events))
    return header.encode() + bytes([kind, 8]) + b"".join(records)


def event_stream(events, size=SIZE):
    """A byte of time since the event before (7 bits; 127: wait so long) and polarity; x, y upwards.

    The first event is at 0.
    """
    content = b"Event Stream" + bytes([2, 0, 0, 1]) + struct.pack("<HH", *size)
    before = int(events["t"][0])
    for x, y, t, p in rows(events):
        waits, rest = divmod(t - before, 127)
        content += b"\xff" * waits + struct.pack("<BHH", rest << 1 | p, x, size[1] - 1 - y)
        before = t
    return content


def _table(identifier, fields, body=b""):
    """A flatbuffer, its size first: `fields` are (place in the table, bytes), or None."""
    places, inside = [], b""
    for place, content in fields:
        places.append(place)
        inside = inside.ljust(place - 4, b"\0") + content
    vtable = struct.pack("<HH", 4 + 2 * len(places), 4 + len(inside))
    vtable += struct.pack(f"<{len(places)}H", *places)
    at = 8 + 4  # after root and identifier, and padding
    table_at = at + len(vtable) + (-(at + len(vtable))) % 8
    buffer = struct.pack("<I4s", table_at, identifier) + bytes(4) + vtable
    buffer = buffer.ljust(table_at, b"\0") + struct.pack("<i", table_at - at) + inside + body
    return struct.pack("<I", len(buffer)) + buffer


def aedat4(events, size=SIZE):
    """A header that describes the streams in XML, then packets of records of 16 bytes."""
    attributes = f"""<attr key="sizeX" type="int">{size[0]}</attr>
        <attr key="sizeY" type="int">{size[1]}</attr>
        <attr key="source" type="string">by hand</attr>"""
    xml = f"""<dv version="2.0"><node name="outInfo" path="/mainloop/Recorder/outInfo/">
        <node name="0" path="/mainloop/Recorder/outInfo/0/">
        <attr key="compression" type="string">NONE</attr>
        <attr key="originalOutputName" type="string">events</attr>
        <attr key="typeIdentifier" type="string">EVTS</attr>
        <node name="info" path="/mainloop/Recorder/outInfo/0/info/">{attributes}</node>
        </node></node></dv>""".encode()
    text = struct.pack("<I", len(xml)) + xml + b"\0"
    head = [(4, struct.pack("<i", 0)), (8, struct.pack("<q", -1)), (16, struct.pack("<I", 4))]
    elements = struct.pack("<I", len(events))
    for x, y, t, p in rows(events):
        elements += struct.pack("<qhhB3x", t, x, y, p)
    packet = _table(b"EVTS", [(4, struct.pack("<I", 4))], elements)
    start = b"#!AER-DAT4.0\r\n" + _table(b"IOHE", head, text)
    return start + struct.pack("<ii", 0, len(packet)) + packet


def csv_text(events, names="t,x,y,p"):
    values = dict(zip("xytp", (events[name] for name in "xytp"), strict=True))
    lines = [names]
    for i in range(len(events)):
        lines.append(",".join(str(int(values[name[0]][i])) for name in names.split(",")))
    return ("\n".join(lines) + "\n").encode()


BYTES = {  # by name of file
    "evt2.raw": evt2,
    "evt3.raw": evt3,
    "a.dat": dat,
    "old.dat": lambda events: dat(events, kind=0),
    "a.es": event_stream,
    "a.aedat4": aedat4,
    "a.csv": csv_text,
}
