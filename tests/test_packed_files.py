"""Packed files against all that a file can be: what is read, refused, and what it may cost."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from bisnn import SRM, packing
from bisnn.packed import BadFile, Engine, PackedLayer, PackedNetwork, Unfit, file
from conftest import taking
from networks import EVERY, build, drawn


def contents(network: PackedNetwork, path) -> bytes:
    file.write(network, path)
    return path.read_bytes()


def assert_equal(a: PackedNetwork, b: PackedNetwork) -> None:
    for mine, theirs in zip(a.layers, b.layers, strict=True):
        for name in (f.name for f in fields(PackedLayer)):
            x, y = getattr(mine, name), getattr(theirs, name)
            if isinstance(x, np.ndarray):
                assert x.dtype == y.dtype
                assert np.array_equal(x, y)
            else:
                assert x == y
    assert np.array_equal(a.readout.V, b.readout.V)
    assert a.readout.scale == b.readout.scale
    assert replace(a, layers=(), readout=None) == replace(b, layers=(), readout=None)


@pytest.mark.parametrize("posterior", [False, True])
@pytest.mark.parametrize("kind", EVERY)
def test_files_come_back_as_they_were(kind, posterior, tmp_path):
    net = build(kind, dtype=torch.float32)
    described = packing.describe(net, None if posterior else drawn(net, 3), posterior=posterior)
    described = replace(
        described, classes=("a", "b", "ü"), burn_in=3, source="x" * 32, seed=2**32 - 1
    )
    file.write(described, tmp_path / "n")
    assert_equal(file.read(tmp_path / "n"), described)


BASE: dict[str, bytes] = {}


@pytest.fixture(scope="module", autouse=True)
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for kind in ("mixed", "skip mixed", "masked", "pooled"):
        net = build(kind, dtype=torch.float32)
        BASE[kind] = contents(
            replace(packing.describe(net, drawn(net, 2)), classes=("a", "b", "c")), folder / kind
        )
        BASE[f"{kind}, posterior"] = contents(
            replace(packing.describe(net, posterior=True), members=2), folder / kind
        )
    code = {
        "code": "population",
        "steps": 5,
        "neurons": 3,
        "width": 1.0,
        "low": [0.0, 0.0],
        "high": [1.0, 2.0],
        "seed": 0,
        "encodings": 2,
    }
    BASE["encoding"] = contents(
        replace(packing.describe(build("dense", dtype=torch.float32)), encoding=code),
        folder / "code",
    )


def survives(content: bytes) -> bool:
    """A file is refused with `BadFile`, or it is a network that runs. Returns which."""
    try:
        network = file.parse(content, "hostile")
    except BadFile as error:
        message = str(error)
        good = message.startswith("hostile: ") and len(message) < 500
        if not good:
            raise
        return False
    result = Engine(network, threads=1).run(
        np.ones((3, 1, *network.input_shape), np.uint8), spikes=True
    )
    assert len(result.spikes) == len(network.layers)
    return True


BASES = [
    "mixed",
    "skip mixed",
    "masked",
    "pooled",
    "mixed, posterior",
    "masked, posterior",
    "pooled, posterior",
    "encoding",
]


@given(
    name=st.sampled_from(BASES),
    at=st.integers(0, 5000),
    byte=st.integers(0, 255),
    cut=st.integers(0, 5000),
)
def test_damaged_files(name, at, byte, cut):
    whole = BASE[name]
    assert survives(whole)
    assert not survives(whole[: cut % len(whole)])
    changed = bytearray(whole)
    changed[at % len(whole)] ^= byte or 1
    assert not survives(bytes(changed)), "a digest is over all of it"


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=3)  # lone surrogates too
LARGE = [2**14, 2**26, 2**30]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.integers()
    | st.floats()
    | ANY_TEXT
    | st.sampled_from([2**14, 2**26, 2**30]),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(st.sampled_from(["kind", "mask", "x"]), children, max_size=2)
    ),
    max_leaves=6,
)


def sealed(body: str, tensors: dict[str, np.ndarray]) -> bytes:
    """A file of anybody's making whose digest is right."""
    header = {
        "kind": "packed",
        "version": file.VERSION,
        "network": body,
        "digest": file._digest(body, tensors),
    }
    return save_tensors(tensors, {"bisnn": json.dumps(header)})


def places(node, path=()):
    """Every place in a tree of JSON."""
    yield path
    items = node.items() if isinstance(node, dict) else ()
    if isinstance(node, list):
        items = enumerate(node)
    for key, value in items:
        yield from places(value, (*path, key))


@given(name=st.sampled_from(BASES), data=st.data())
def test_hostile_files(name, data):
    """Headers and tensors of another's making, with a matching digest: refused, or they run."""
    tensors = load_tensors(BASE[name])
    about = json.loads(json.loads(file._metadata(BASE[name]))["network"])
    assert survives(sealed(json.dumps(about), tensors))
    for _ in range(data.draw(st.integers(1, 2))):
        if data.draw(st.booleans()):
            *path, key = data.draw(st.sampled_from([p for p in places(about) if p]))
            node = about
            for step in path:
                node = node[step]
            node[key] = data.draw(JSON)
        else:
            key = data.draw(st.sampled_from(sorted(tensors)))
            old = tensors.pop(key)
            change = data.draw(st.sampled_from(["gone", "longer", "type", "values", "name"]))
            if change == "longer":
                tensors[key] = np.concatenate([old, old])
            elif change == "type":
                tensors[key] = old.astype(
                    data.draw(st.sampled_from([np.float16, np.int8, np.float64]))
                )
            elif change == "values":
                value = data.draw(st.sampled_from([0, 1, 255, np.inf, -1]))
                tensors[key] = ~old if old.dtype == np.uint8 else np.full_like(old, value)
            elif change == "name":
                tensors[data.draw(st.sampled_from(["0.weights", "9.mask", "0.scale", "x"]))] = old
    survives(sealed(json.dumps(about), tensors))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        b"\xff" * 64,
        b"\x02" + b"\x00" * 7 + b"{}",
        b"[" * 100_000,
        b"\x10" + b"\x00" * 7 + b"[" * 16,
    ],
)
def test_files_of_nothing(content):
    assert not survives(content)


def test_files_of_other_formats_are_refused():
    text, tensors = (
        json.loads(file._metadata(BASE["mixed"]))["network"],
        load_tensors(BASE["mixed"]),
    )
    for version, good in (
        (file.VERSION, True),
        (file.VERSION - 1, False),
        (file.VERSION + 1, False),
    ):
        header = {
            "kind": "packed",
            "version": version,
            "network": text,
            "digest": file._digest(text, tensors),
        }
        assert survives(save_tensors(tensors, {"bisnn": json.dumps(header)})) == good


def test_claims_take_no_memory(tmp_path):
    """A file of a kilobyte that claims gigabytes is refused by its claims."""
    about = json.loads(json.loads(file._metadata(BASE["pooled"]))["network"])
    for shape, refused in (
        ([2, 2**20, 2**20], "its input shape"),
        ([2, 2**12, 2**12], "would take"),
    ):
        about["input_shape"] = shape
        with taking(10 * 2**20), pytest.raises(BadFile, match=refused):
            file.parse(sealed(json.dumps(about), load_tensors(BASE["pooled"])), "f")
    about = json.loads(json.loads(file._metadata(BASE["mixed"]))["network"])
    with taking(10 * 2**20), pytest.raises(BadFile, match=r"would take .* bytes of memory"):
        file.parse(
            sealed(json.dumps({**about, "outputs": 2**26}), load_tensors(BASE["mixed"])), "f"
        )


@pytest.mark.parametrize("inputs", [[], [0, 0, 0, 0], [1], [-2], ["input"], [0.0], 0, None, [True]])
def test_inputs_that_are_none(inputs):
    """Of the second layer, which may read the network's input and the first."""
    about = json.loads(json.loads(file._metadata(BASE["skip mixed"]))["network"])
    about["layers"][1]["inputs"] = inputs
    with pytest.raises(BadFile, match="layer 1"):
        file.parse(sealed(json.dumps(about), load_tensors(BASE["skip mixed"])), "f")


def changed(name: str, **entries) -> bytes:
    """A base file with other entries in its header, and a digest to match."""
    about = json.loads(json.loads(file._metadata(BASE[name]))["network"])
    return sealed(json.dumps({**about, **entries}), load_tensors(BASE[name]))


ENCODING = {
    "code": "population",
    "steps": 2**26,
    "neurons": 3,
    "width": 1.0,
    "low": [0.0, 0.0],
    "high": [1.0, 2.0],
}
ENCODING |= {"seed": 0, "encodings": 1}


@pytest.mark.parametrize(
    ("name", "entries", "refused"),
    [
        ("mixed, posterior", {"members": 10**6}, "the suggested number of members is 1000000"),
        ("mixed, posterior", {"members": 2**26}, "the suggested number of members is 67108864"),
        ("mixed", {"count": 2**26}, "the number of members is 67108864"),
        (
            "encoding",
            {"encoding": {**ENCODING, "steps": 5, "encodings": 2**26}},
            "the number of encodings is 67108864",
        ),
        (
            "encoding",
            {"encoding": ENCODING},
            "a network of 1 members would take .* bytes of memory; at most 1,073,741,824",
        ),
    ],
)
def test_one_budget(name, entries, refused):
    """Each of these small files asked for gigabytes, or for minutes."""
    content = changed(name, **entries)
    assert len(content) < 5000
    with taking(2 * 2**20), pytest.raises(BadFile, match=refused):
        file.parse(content, "f")


def padded(depth: int) -> bytes:
    """Convolutions of one weight, each padding its input: few bytes per million neurons."""
    layers, tensors = [], {}
    for i in range(depth):
        about = {"kind": "conv", "inputs": [i - 1], "neurons": 1, "neuron": {"kind": "srm"}}
        about |= {"kernel": [1, 1], "stride": [1, 1], "padding": [250, 250], "pool": 1}
        layers.append(about)
        tensors |= {f"{i}.weights": np.ones(1, np.uint8), f"{i}.scale": np.ones(1, np.float32)}
        tensors[f"{i}.constants"] = SRM().constants()
    about = {
        "task": "classification",
        "classes": [],
        "burn_in": 0,
        "input_shape": [1, 1, 1],
        "outputs": 0,
        "encoding": {},
        "source": "",
        "members": 0,
    }
    about |= {"schema": None, "target_mean": 0.0, "target_scale": 1.0}
    body = {**about, "seed": 0, "layers": layers, "count": 1, "generator": file.GENERATOR}
    return sealed(json.dumps(body), tensors)


def test_the_budget_is_for_all_layers_together():
    assert len(file.parse(padded(2), "f").layers) == 2
    with taking(2 * 2**20), pytest.raises(BadFile, match="a network of 1 members would take"):
        file.parse(padded(16), "f")


def test_the_budget_can_be_changed(monkeypatch):
    monkeypatch.setenv("BISNN_MOST_BYTES", "1000")
    with pytest.raises(BadFile, match="at most 1,000; set BISNN_MOST_BYTES for more"):
        file.parse(BASE["mixed"], "f")
    monkeypatch.setenv("BISNN_MOST_BYTES", "many")
    with pytest.raises(
        ValueError, match="BISNN_MOST_BYTES: must be a whole number of bytes; got 'many'"
    ):
        file.parse(BASE["mixed"], "f")
    monkeypatch.setenv("BISNN_MOST_BYTES", str(2**24))
    assert file.parse(BASE["mixed"], "f").count == 2


def test_members_that_are_asked_for_are_within_the_budget():
    """The caller's number is no fault of the file."""
    with taking(2 * 2**20), pytest.raises(Unfit, match="a network of 10000000 members would take"):
        file.parse(BASE["mixed, posterior"], "f", members=10**7)


def test_long_encodings_are_predicted_in_smaller_batches():
    code = {**ENCODING, "steps": 20_000}
    engine = Engine(file.parse(changed("encoding", encoding=code), "f"), threads=1)
    assert 1 <= engine._points < 250
    x = np.random.default_rng(0).random((engine._points + 2, 2))
    with taking(2**29):
        assert engine.predict_features(x).mean.shape == (len(x), 3)


@pytest.mark.parametrize("body", ["\ud800", '{"layers": "\udfff"}'])
def test_a_lone_surrogate_in_the_header(body):
    header = {"kind": "packed", "version": file.VERSION, "network": body, "digest": ""}
    with pytest.raises(BadFile, match="its description is no text"):
        file.parse(save_tensors({}, {"bisnn": json.dumps(header)}), "f")
    with pytest.raises(BadFile, match="the name of a class is no text"):
        file.parse(changed("mixed", classes=["a", "b", "\ud800"]), "f")


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(BadFile, match="is no regular file"):
            file.read(path)
    with pytest.raises(BadFile, match="is a folder"):
        file.read(tmp_path)
    with open(tmp_path / "large", "wb") as large:
        large.truncate(2**31)  # a hole, no bytes on disk
    with taking(2**20), pytest.raises(BadFile, match="its content would take 2,147,483,648 bytes"):
        file.read(tmp_path / "large")
