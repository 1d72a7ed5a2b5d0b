"""Files from outside, damaged, hostile or no files at all: each is refused by one sentence, at
once, and takes no memory.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisnn import files
from bisnn.data import simulation, table
from bisnn.runs import config
from conftest import taking
from runs import SMALL


def read_or_refused(name: str, read):
    """What is read; None where it is refused by a ValueError that begins with the name."""
    try:
        return read()
    except ValueError as error:
        if not str(error).startswith(name):
            raise
    return None


def npy(header: str, content: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = header.encode("latin1", "replace")
    return (
        b"\x93NUMPY"
        + bytes(version)
        + struct.pack("<H" if version[0] == 1 else "<I", len(text))
        + text
        + content
    )


def npz(**entries: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def whole(x: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, x)
    return out.getvalue()


X = np.arange(6.0).reshape(3, 2)
GOOD = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }"


@pytest.mark.parametrize(
    "content",
    [
        npy(GOOD.replace("}", "")),  # tokenize.TokenError
        npy(GOOD.replace("(3, 2)", "(3, 2")),
        npy("(" * 3000),
        npy("-" * 9000 + "1"),
        npy("{'descr': [" + "(" * 2000),
        npy(GOOD.replace("<f8", "<f999999999999")),
        npy(GOOD.replace("<f8", "\x00")),
        npy(GOOD.replace("(3, 2)", "(-3, -2)"), X.tobytes()),
        npy(GOOD.replace("(3, 2)", "(3, True)"), X.tobytes()),
        npy(GOOD.replace("(3, 2)", f"({10**4000}, 2)")),
        npy(GOOD, X.tobytes(), (3, 0)),
        npy(GOOD, X.tobytes(), (9, 9)),
        npy(GOOD, X.tobytes()[:-1]),
        b"\x93NUMPY",
        b"PK\x05\x06" + bytes(17),
        npz(x=b"no array"),
        npz(x=b""),
        npz(x=npy(GOOD.replace("}", ""))),
        npz(x=npy(GOOD, X.tobytes()[:-8])),
        npz(x=npy(GOOD.replace("(3, 2)", "(300, 2)"), X.tobytes())),
    ],
)
def test_damaged_arrays(tmp_path, content):
    for suffix in (".npy", ".npz"):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(content)
        with (
            taking(4 * 2**20),
            pytest.raises(ValueError, match=r"damaged or no NumPy file|pickled"),
        ):
            table.read_points(path, None, 2)[0]


@given(data=st.data())
def test_hostile_arrays(tmp_path_factory, data):
    """Bytes changed anywhere, but in an NPZ so that its checksums match: refused by a ValueError,
    or finite numbers.
    """
    content = bytearray(whole(X))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(6, len(content) - 1))] = data.draw(st.integers(0, 255))
    for suffix, seen in (
        (".npy", bytes(content)),
        (".npz", npz(x=bytes(content), y=whole(np.arange(3)))),
    ):
        path = tmp_path_factory.mktemp("a") / f"x{suffix}"
        path.write_bytes(seen)
        with warnings.catch_warnings(action="ignore"):
            x = read_or_refused(str(path), lambda path=path: table.read_points(path, None, 2)[0])
        assert x is None or np.isfinite(x).all()


def test_what_is_not_needed_is_not_read(tmp_path):
    """An array of 200 MB that nobody asked for, and another that is no array at all."""
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=X, y=np.arange(3), unused=np.zeros(25 * 10**6))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("readme.txt", "no array")
        archive.writestr("broken.npy", b"no array")
    with taking(10 * 2**20):
        rows = table.read(path)
        assert np.array_equal(np.stack(rows.values[:-1], 1), X)
        assert rows.values[-1] == ["0", "1", "2"]


def test_arrays_within_the_budget(tmp_path, monkeypatch):
    """A file of 4 kB whose array would take 4 MB; and the same within a larger budget."""
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros((250_000, 2)))
    assert path.stat().st_size < 10_000
    monkeypatch.setenv("BISNN_MOST_BYTES", str(4 * 2**20))
    with (
        taking(2**20),
        pytest.raises(
            ValueError, match=r"an array \(250000, 2\) of float64 would take .*set BISNN_MOST_BYTES"
        ),
    ):
        table.read_points(path, None, 2)[0]
    monkeypatch.setenv("BISNN_MOST_BYTES", str(16 * 2**20))
    assert table.read_points(path, None, 2)[0].shape == (250_000, 2)


def idx(*sizes: int, content: bytes = b"") -> bytes:
    return bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + content


def test_idx_files_that_claim_too_much(tmp_path):
    claims = tmp_path / "claims"
    claims.write_bytes(idx(10**6, 256, 256, content=bytes(100)))  # 116 bytes, 65 GB
    with (
        taking(2**20),
        pytest.raises(ValueError, match="it claims 65,536,000,000 bytes, which it cannot hold"),
    ):
        simulation.read_idx(claims, 3)
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", 6) as file:
        file.write(idx(10**6, 16, 16))
        for _ in range(256):
            file.write(bytes(10**6))
    assert bomb.stat().st_size < 2**20
    with (
        taking(2**20),
        pytest.raises(
            ValueError, match="would take 2,304,000,000 bytes of memory; at most 1,073,741,824"
        ),
    ):
        simulation.read_idx(bomb, 3)
    longer = tmp_path / "longer.gz"
    with gzip.open(longer, "wb", 6) as file:
        file.write(idx(10, 16, 16))
        for _ in range(100):
            file.write(bytes(10**6))
    with taking(2**20), pytest.raises(ValueError, match="longer or shorter than it says"):
        simulation.read_idx(longer, 3)
    good = tmp_path / "good.gz"
    good.write_bytes(gzip.compress(idx(3, 2, content=b"abcdef")))
    assert simulation.read_idx(good, 2).tolist() == [[97, 98], [99, 100], [101, 102]]


DEEP = 100_000


DOTTED = ".".join("a" * DEEP)


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * DEEP, "x = " + "{a = " * DEEP, f"{DOTTED} = 1", f"[{DOTTED}]", "[[[" * DEEP],
)
def test_configs_nested_deeply(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(f"version = 1\n{text}\n")
    with (
        taking(50 * 2**20),
        pytest.raises(ValueError, match=r"nested too deeply|not valid TOML") as refused,
    ):
        config.load(path)
    assert len(str(refused.value)) < 500
    key, _, value = text.partition(" = ")
    with (
        taking(50 * 2**20),
        pytest.raises(
            ValueError, match=r"nested too deeply|must read section.key|unknown key|must be"
        ),
    ):
        config.load("two_moons_bayes", [f"{key}={value}" if value else key])


def test_numbers_of_many_digits(tmp_path):
    (tmp_path / "c.toml").write_text("version = 1\nseed = " + "9" * 10_000)
    with pytest.raises(ValueError, match=r"c\.toml: is not valid TOML: Exceeds the limit"):
        config.load(tmp_path / "c.toml")


WORDS = ["st", "table", "name", "lr", "conv", "x", ""]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 50)
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(node, path=()):
    yield path
    for key, value in (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    ):
        yield from places(value, (*path, key))


def planted(tree, data, values):
    """A tree of JSON with one thing in it replaced, removed or added."""
    tree = json.loads(json.dumps(tree))
    *path, key = data.draw(st.sampled_from([place for place in places(tree) if place]))
    node = tree
    for step in path:
        node = node[step]
    how = data.draw(st.sampled_from(["replaced", "removed", "added"]))
    if how == "removed":
        del node[key]
    elif how == "added" and isinstance(node, dict):
        node[data.draw(st.text(max_size=3))] = data.draw(values)
    else:
        node[key] = data.draw(values)
    return tree


@given(data=st.data())
def test_hostile_settings(data):
    settings = SMALL
    for _ in range(data.draw(st.integers(1, 3))):
        settings = planted(settings, data, VALUES)
    read_or_refused("f: ", lambda: config.parse(settings, "f"))


@pytest.mark.parametrize("name", ["c.toml", "x.csv", "x.npy", "x.npz"])
def test_pipes_and_devices_are_no_files(tmp_path, name):
    """They would wait for ever, or never end."""
    read = config.load if name == "c.toml" else lambda path: table.read_points(path, None, 2)[0]
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="is no regular file"):
        read(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is no regular file"):
        read(tmp_path / name)


def test_a_pipe_in_place_of_an_idx_file(tmp_path):
    os.mkfifo(tmp_path / "x")
    with pytest.raises(ValueError, match="is no regular file"):
        simulation.read_idx(tmp_path / "x", 1)


def test_reading_is_bounded(tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**31)
    with (
        taking(2**20),
        pytest.raises(ValueError, match="its content would take 2,147,483,648 bytes of memory"),
    ):
        files.read_bytes(tmp_path / "large")
    with pytest.raises(ValueError, match="zero byte in its name"):
        files.read_bytes("a\0b")
