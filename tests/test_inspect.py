"""The command `bisnn inspect`: what it says of a recording, and the picture it draws."""

from __future__ import annotations

import os
import struct

import pytest

from event_files import HEADER, address, aedat


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
