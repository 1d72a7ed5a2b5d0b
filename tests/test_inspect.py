"""The command `bisnn inspect`: what it says of a recording or a folder, and what it draws."""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import numpy as np
import pytest

from bisnn.data import events, survey
from bisnn.data.windows import Window
from event_files import HEADER, address, aedat
from runs import made_up


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
        ([tmp_path], "has no recording that can be read; the first: "),
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


def folder_of_three(root):
    """Three classes, two damaged files, one of another sensor, one of no class."""
    for name in ("cat", "dog", "elk"):
        (root / name).mkdir(parents=True)
        for i in range(3):
            events.write_nmnist(root / name / f"{i}.bin", made_up(600, 34, i))
    (root / "cat" / "bad.bin").write_bytes(b"abc")
    (root / "dog" / "bad.csv").write_text("a,b\n1,2\n")
    events.write_aedat(root / "elk" / "large.aedat", made_up(600, 128, 0))
    (root / "stray.bin").write_bytes(b"abc")
    return root


def test_inspect_of_a_folder(bisnn_, tmp_path):
    root = folder_of_three(tmp_path / "animals")
    code, out, err = bisnn_("inspect", root)
    assert code == 1
    assert "3 of 12 recordings cannot be used" in err
    for text in (
        f"{root}/cat/bad.bin: must have records of 5 bytes",
        f"{root}/dog/bad.csv: must name its columns t, x, y and p",
        f"{root}/elk/large.aedat: has 128 x 128 pixels, where others have 34 x 34",
        "34 x 34 pixels",
        "N-MNIST: 9",
        "to begin with",
        "steps = 30, bin_us = 10000",
    ):
        assert text in out
    rows = [line.split()[:2] for line in out.splitlines()]
    assert all([name, "3"] in rows for name in ("cat", "dog", "elk"))
    assert "left out" in out
    assert sorted(os.listdir(tmp_path)) == ["animals"], "nothing is written unasked"


def test_the_contact_sheet(bisnn_, tmp_path):
    root = folder_of_three(tmp_path / "<animals>")
    for bad in ("cat/bad.bin", "elk/large.aedat"):
        (root / bad).unlink()
    assert bisnn_("inspect", root, "--out", tmp_path / "sheet.png", "-q")[0] == 1
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    bisnn_("inspect", root, "--out", tmp_path / "sheet.html", "-q")
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("<img") == 1
    assert "dog/bad.csv: must name its columns" in page
    assert "<animals>" not in page, "names are escaped"
    assert all(f"<td>{name}</td>" in page for name in ("cat", "dog", "elk"))
    (root / "dog" / "bad.csv").unlink()
    code, _, err = bisnn_("inspect", root)
    assert (code, err) == (0, "")
    code, _, err = bisnn_("inspect", root, "--out", tmp_path / "sheet.pdf")
    assert code == 1
    assert "must be a .png or .html file; got '.pdf'" in err


def test_a_folder_without_classes_is_one(bisnn_, tmp_path):
    root = folder_of_three(tmp_path / "animals")
    code, out, err = bisnn_("inspect", root / "dog")
    assert code == 1
    assert "1 of 4 recordings cannot be used" in err
    assert ["dog", "3"] in [line.split()[:2] for line in out.splitlines()]


def test_what_is_suggested(tmp_path):
    """Large sensors are made small, and what is busy needs more events for a spike."""
    (tmp_path / "a").mkdir()
    rng = np.random.default_rng(0)
    some = np.zeros(200_000, events.EVENTS)
    some["x"], some["y"] = rng.integers(0, 640, len(some)), rng.integers(0, 480, len(some))
    some["t"] = np.sort(rng.integers(0, 1_000_000, len(some)))
    np.savez(tmp_path / "a" / "1.npz", events=some, size=np.array([640, 480]))
    found = survey.survey(tmp_path, show=False)
    way = survey.suggested(found)
    assert (way.steps, way.bin_us, way.downsample) == (31, 33_000, 16)
    window = Window(found.size, way.steps, way.bin_us, None, None, way.downsample)
    shares = {
        least: replace(window, least=least).frames(events.from_array(some, (640, 480))).mean()
        for least in (way.min_events // 2, way.min_events)
    }
    assert shares[way.min_events] <= survey.BUSY < shares[way.min_events // 2]


def test_a_crop_is_suggested_where_the_events_are(tmp_path):
    """An object in a corner of a large sensor, in noise."""
    (tmp_path / "a").mkdir()
    rng = np.random.default_rng(0)
    some = np.zeros(20_000, events.EVENTS)
    some["x"], some["y"] = rng.integers(0, 640, len(some)), rng.integers(0, 480, len(some))
    inside = rng.random(len(some)) < 0.6
    some["x"][inside] = rng.integers(500, 590, inside.sum())
    some["y"][inside] = rng.integers(30, 130, inside.sum())
    some["t"] = np.sort(rng.integers(0, 1_000_000, len(some)))
    np.savez(tmp_path / "a" / "1.npz", events=some, size=np.array([640, 480]))
    way = survey.suggested(survey.survey(tmp_path, show=False))
    x0, y0, width, height = way.crop
    assert 460 < x0 <= 500
    assert 590 <= x0 + width < 635
    assert 0 <= y0 <= 30
    assert 130 <= y0 + height < 170
    assert way.downsample == 4
    assert width % 4 == height % 4 == 0
    # Another class is elsewhere: then all of it is to be seen
    (tmp_path / "b").mkdir()
    some["x"][inside] -= 480
    some["y"][inside] += 340
    np.savez(tmp_path / "b" / "1.npz", events=some, size=np.array([640, 480]))
    assert survey.suggested(survey.survey(tmp_path, show=False)).crop is None
