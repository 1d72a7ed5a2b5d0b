"""The cache of recordings: bits that come back, builders that are interrupted, fail or race, and
files that are damaged or of another's making.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisnn.data import cache


def test_an_interrupted_build_goes_on_where_it_stopped(tmp_path):
    x = np.random.default_rng(0).integers(0, 2, (6, 3, 7), dtype=np.uint8)
    x[1] = 0
    made = []

    def record(i: int) -> np.ndarray:
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(i)
        return x[i]

    with pytest.raises(KeyboardInterrupt):
        cache.build(tmp_path / "b", (3, 7), 6, record)
    assert not (tmp_path / "b").exists()
    made.append("again")
    bits = cache.build(tmp_path / "b", (3, 7), 6, record)
    assert made == [0, 1, 2, 3, "again", 4, 5]
    assert np.array_equal(bits.read(range(6)), x)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".partial") == []


def test_a_damaged_partial_file_is_not_trusted(tmp_path):
    x = np.random.default_rng(1).integers(0, 2, (4, 64), dtype=np.uint8)
    stop = [2]

    def record(i: int) -> np.ndarray:
        if i == stop[0]:
            raise RuntimeError("stop")
        return x[i]

    with pytest.raises(RuntimeError):
        cache.build(tmp_path / "b", (64,), 4, record)
    partial = tmp_path / "b.partial"
    content = bytearray(partial.read_bytes())
    content[cache.LENGTH + 4 * 4 + 3] ^= 8  # a bit of the first record
    partial.write_bytes(content)
    stop[0] = -1
    assert np.array_equal(cache.build(tmp_path / "b", (64,), 4, record).read(range(4)), x)
    partial.write_bytes(b"nonsense")
    (tmp_path / "b").unlink()
    assert np.array_equal(cache.build(tmp_path / "b", (64,), 4, record).read(range(4)), x)


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_bits_come_back(shape, seed, tmp_path_factory):
    x = np.random.default_rng(seed).integers(0, 2, (3, *shape), dtype=np.uint8)
    bits = cache.build(tmp_path_factory.mktemp("c") / "b", tuple(shape), 3, lambda i: x[i])
    assert np.array_equal(bits.read([2, 0, 1, 1]), x[[2, 0, 1, 1]])
    assert len(bits) == 3


@given(at=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.integers(0, 10**6))
def test_damaged_caches_are_recognised(at, bit, cut, tmp_path_factory):
    """A flipped bit is noticed by the header, the size or a record's checksum, but in padding."""
    path = tmp_path_factory.mktemp("c") / "b"
    x = np.random.default_rng(0).integers(0, 2, (3, 100), dtype=np.uint8)
    cache.build(path, (100,), 3, lambda i: x[i])
    whole = path.read_bytes()
    path.write_bytes(whole[: cut % len(whole)])
    with pytest.raises(cache.BadCache, match="delete"):
        cache.Bits(path)
    content = bytearray(whole)
    content[at % len(whole)] ^= 1 << bit
    path.write_bytes(content)
    try:
        seen = cache.Bits(path).read(range(3))
    except cache.BadCache:
        return
    assert np.array_equal(seen, x)


def test_two_processes_build_one_file(tmp_path):
    program = (
        "import sys, time, numpy as np; from pathlib import Path; from bisnn.data import cache\n"
        "def record(i): time.sleep(0.02); print(i, flush=True); "
        "return np.full(9, i % 2, np.uint8)\n"
        "print(cache.build(Path(sys.argv[1]), (9,), 20, record).read([3]).sum())"
    )
    command = [sys.executable, "-c", program, tmp_path / "b"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(map(len, said)) == [1, 21], "one built it, the other waited"
    assert said[0][-1] == said[1][-1] == "9"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_recordings_are_the_same_wherever_they_lie(tmp_path):
    """The fingerprint is of their bits: not of files, folders or times of change."""
    x = np.random.default_rng(0).integers(0, 2, (4, 5, 2, 3, 3), dtype=np.uint8)
    here, there = (
        cache.build(tmp_path / name, (5, 2, 3, 3), 4, lambda i: x[i])
        for name in ("a.bits", "b.bits")
    )
    other = cache.build(tmp_path / "c.bits", (5, 2, 3, 3), 4, lambda i: x[i] ^ (i == 2))
    assert here.digest([2, 0]) == there.digest([2, 0])
    assert here.digest([0, 1, 3]) == other.digest([0, 1, 3])
    assert (
        len({here.digest([2, 0]), here.digest([0, 2]), here.digest([0]), other.digest([2, 0])}) == 4
    )


class Builder(threading.Thread):
    """A build in a thread of its own, which stops at its first record until it is let go."""

    def __init__(self, path: Path, error: Exception | None = None):
        super().__init__(daemon=True)
        self.path, self.error, self.raised = path, error, None
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self.start()

    def record(self, i: int) -> np.ndarray:
        self.began.set()
        assert self.may_go_on.wait(20)
        if self.error is not None:
            raise self.error
        return np.ones(9, np.uint8)

    def run(self) -> None:
        try:
            cache.build(self.path, (9,), 3, self.record)
        except Exception as error:
            self.raised = error


@pytest.mark.parametrize("error", [ValueError("bad recording"), OSError("disk")])
def test_a_build_that_fails_leaves_the_next_one_alone(tmp_path, monkeypatch, error):
    """The first fails while a second waits; a third, who comes when the second builds, must wait
    for it.
    """
    first = Builder(tmp_path / "b", error)
    assert first.began.wait(20)
    second = Builder(tmp_path / "b")
    remove = Path.unlink

    def slowly(path: Path, *arguments, **options) -> None:
        if path.suffix == ".lock" and threading.current_thread() is first:
            assert second.began.wait(
                20
            )  # a remove that comes late, when the lock is another's already
        remove(path, *arguments, **options)

    monkeypatch.setattr(Path, "unlink", slowly)
    first.may_go_on.set()
    first.join(20)
    assert first.raised is error
    assert second.began.wait(20)
    third = Builder(tmp_path / "b")
    assert not third.began.wait(0.5), "two build the same file"
    second.may_go_on.set()
    third.may_go_on.set()
    for builder in (second, third):
        builder.join(20)
        assert builder.raised is None
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def race(path: Path, seed: int, start: Any, outcome: Any) -> None:
    rng = np.random.default_rng(seed)

    def record(i: int) -> np.ndarray:
        if rng.random() < 0.15:
            raise ValueError("bad recording")
        return np.full(9, i % 2, np.uint8)

    start.wait(20)
    try:
        outcome.put(cache.build(path, (9,), 4, record).read([3, 2]).tolist() == [[1] * 9, [0] * 9])
    except Exception as error:
        outcome.put(repr(error))


def test_races_for_one_cache(tmp_path):
    """Four processes, some of which fail: each has its own error, or the file."""
    context = multiprocessing.get_context("fork")
    for turn in range(25):
        start, outcome = context.Event(), context.Queue()
        racers = [
            context.Process(target=race, args=(tmp_path / f"b{turn}", 4 * turn + i, start, outcome))
            for i in range(4)
        ]
        for racer in racers:
            racer.start()
        start.set()
        results = [outcome.get(timeout=20) for _ in racers]
        for racer in racers:
            racer.join(20)
        assert all(result in (True, "ValueError('bad recording')") for result in results), results


def sealed_cache(path: Path, header: str, records: int = 1) -> Path:
    path.write_bytes((cache.MAGIC + header.encode()).ljust(cache.LENGTH, b"\0") + bytes(records))
    return path


DEEP = "[" * 4000


@pytest.mark.parametrize(
    "header",
    [
        '{"shape": [8], "count": Infinity}',
        '{"shape": [-Infinity], "count": 1}',
        '{"shape": [8], "count": NaN}',
        '{"shape": [-1, -8], "count": 1}',
        '{"shape": [8], "count": 0}',
        '{"shape": [8], "count": -1}',
        '{"shape": [8], "count": 1e3}',
        '{"shape": [1e400], "count": 1}',
        '{"shape": [true], "count": 1}',
        '{"shape": "8", "count": 1}',
        '{"shape": {"8": 1}, "count": 1}',
        '{"shape": [[8]], "count": 1}',
        '{"shape": null, "count": 1}',
        '{"shape": [1208925819614629174706176], "count": 1}',
        '{"count": 1}',
        "[]",
        "8",
        "null",
        "",
        DEEP,
        f'{{"shape": {DEEP[:1500] + "]" * 1500}, "count": 1}}',
        "\\ud800",
    ],
)
def test_headers_of_anything(tmp_path, header):
    with pytest.raises(cache.BadCache, match="delete it, and it will be made again"):
        cache.Bits(sealed_cache(tmp_path / "b", header, 5))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 20)
    | st.integers()
    | st.floats()
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(shape=JSON_VALUES, count=JSON_VALUES, records=st.integers(0, 12))
def test_hostile_headers(tmp_path_factory, shape, count, records):
    """Refused by BadCache, or records of the shape that it says."""
    path = sealed_cache(
        tmp_path_factory.mktemp("h") / "b", json.dumps({"shape": shape, "count": count}), records
    )
    try:
        bits = cache.Bits(path)
    except cache.BadCache:
        return
    with contextlib.suppress(cache.BadCache):
        assert bits.read([0]).shape == (1, *shape)


def test_a_cache_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "b")
    with pytest.raises(cache.BadCache, match="is no regular file"):
        cache.Bits(tmp_path / "b")


def test_without_a_home_caches_need_a_folder(monkeypatch):
    for name in ("BISNN_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    with pytest.raises(ValueError, match="BISNN_CACHE: must name a folder"):
        cache.folder()
