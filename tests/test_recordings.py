"""Event datasets and their cache: the right bits, never stale, never half-written; keyed augmentation; a run from end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bisnn
from bisnn import training
from bisnn.config import Augment, parse
from bisnn.data import cache, events
from bisnn.data.recordings import MNISTDVS, NMNIST, Clips, augmented
from bisnn.packed import load as load_packed
from runs import SMALL


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))


def made_up(n: int, side: int, seed: int, length_us: int = 300_000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    recording = np.zeros(n, events.EVENTS)
    recording["x"], recording["y"] = rng.integers(0, side, (2, n))
    recording["p"] = rng.integers(0, 2, n)
    recording["t"] = np.sort(rng.integers(0, length_us, n))
    return recording


@pytest.fixture
def nmnist(tmp_path) -> Path:
    """Three training recordings and two test ones of each of two digits."""
    for part, count in (("Train", 3), ("Test", 2)):
        for digit in (3, 7):
            folder = tmp_path / "N" / part / str(digit)
            folder.mkdir(parents=True)
            for i in range(count):
                side = 17 if digit == 3 else 34  # digits differ
                events.write_nmnist(folder / f"{i + 1:05d}.bin", made_up(2000, side, 10 * digit + i))
    return tmp_path / "N"


def slow(recording: np.ndarray, steps: int, bin_us: int, low: int, side: int, start_us: int) -> np.ndarray:
    frames = np.zeros((steps, 2, side, side), np.uint8)
    for x, y, t, p in recording:
        step = (t - start_us) // bin_us
        if 0 <= step < steps and low <= x < low + side and low <= y < low + side:
            frames[step, int(p), y - low, x - low] = 1
    return frames


def test_nmnist_has_the_bits_of_its_files(nmnist):
    data = NMNIST(nmnist, classes=[7, 3], steps=20, bin_us=10_000, show=False)
    assert (len(data), data.shape, data.names) == (6, (20, 2, 34, 34), ("7", "3"))
    files = sorted(nmnist.glob("Train/*/*.bin"))
    for i, file in enumerate(files):
        spikes, label = data[i]
        recording = events.read_nmnist(file).events
        assert np.array_equal(spikes.numpy(), slow(recording, 20, 10_000, 0, 34, 0))
        assert data.names[label] == file.parent.name
    assert torch.equal(data.batch([4, 0]), torch.stack([data[4][0], data[0][0]], 1))
    assert torch.equal(data[-1][0], data[5][0])
    with pytest.raises(IndexError):
        data[6]
    x, y = next(iter(torch.utils.data.DataLoader(data, batch_size=6)))
    assert x.shape == (6, 20, 2, 34, 34)
    assert y.tolist() == data.labels.tolist()
    assert len(NMNIST(nmnist, train=False, classes=[3], show=False)) == 2


def test_mnist_dvs_by_the_authors_protocol(tmp_path):
    """Ids to 900 train, the rest tests; 26 x 26 pixels from 48 on; time begins with the first event."""
    folder = tmp_path / "D" / "scale04"
    folder.mkdir(parents=True)
    for number in (1, 900, 901):
        recording = made_up(3000, 128, number, 2_000_000)
        recording["t"] += 12_345
        events.write_aedat(folder / f"mnist_5_scale04_{number:04d}.aedat", recording)
    train, test = (MNISTDVS(tmp_path / "D", part, show=False) for part in (True, False))
    assert (len(train), len(test), train.shape) == (2, 1, (400, 2, 26, 26))
    recording = events.read_aedat(folder / "mnist_5_scale04_0901.aedat").events
    assert np.array_equal(test[0][0].numpy(), slow(recording, 400, 5000, 48, 26, recording["t"][0]))
    assert test[0][0].sum() > 50
    assert int(test.labels[0]) == 5


def test_a_changed_file_is_another_dataset(nmnist):
    first = NMNIST(nmnist, steps=5, bin_us=50_000, show=False)
    same = NMNIST(nmnist, steps=5, bin_us=50_000, show=False)
    assert same.bits.path == first.bits.path
    assert NMNIST(nmnist, steps=6, bin_us=50_000, show=False).bits.path != first.bits.path
    file = nmnist / "Train" / "3" / "00001.bin"
    before = os.stat(file)
    events.write_nmnist(file, made_up(2000, 34, 99))  # as many bytes
    assert os.stat(file).st_size == before.st_size
    changed = NMNIST(nmnist, steps=5, bin_us=50_000, show=False)
    assert changed.bits.path != first.bits.path
    assert not torch.equal(changed[0][0], first[0][0])


# The cache


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
    """A flipped bit anywhere but in the padding is noticed: by the header, by the size, or by a record's checksum."""
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
        "def record(i): time.sleep(0.02); print(i, flush=True); return np.full(9, i % 2, np.uint8)\n"
        "print(cache.build(Path(sys.argv[1]), (9,), 20, record).read([3]).sum())"
    )
    command = [sys.executable, "-c", program, tmp_path / "b"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(map(len, said)) == [1, 21], "one built it, the other waited"
    assert said[0][-1] == said[1][-1] == "9"


# Augmentation


def test_augmentation_is_keyed_by_the_sample():
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (12, 5, 2, 9, 9), dtype=np.uint8))
    how = Augment(shift=2, drop=0.3, jitter=1)
    whole = augmented(x, how, 3, 7, torch.arange(5))
    part = augmented(x[:, [4, 1]], how, 3, 7, torch.tensor([4, 1]))
    assert torch.equal(part, whole[:, [4, 1]])
    assert not torch.equal(whole, augmented(x, how, 3, 8, torch.arange(5)))
    assert augmented(x, Augment(), 3, 7, torch.arange(5)) is x


def test_augmentation_moves_and_thins():
    """A single dot moves by at most the stated steps and pixels, both ways; spikes are lost at the stated rate."""
    x = torch.zeros(11, 400, 2, 9, 9, dtype=torch.uint8)
    x[5, :, 1, 4, 4] = 1
    moved = augmented(x, Augment(shift=2, jitter=3), 0, 0, torch.arange(400)).nonzero()
    assert len(moved) == 400
    t, _, channel, row, column = (moved - torch.tensor([5, 0, 1, 4, 4])).T
    assert set(t.tolist()) == set(range(-3, 4))
    assert set(row.tolist()) == set(column.tolist()) == set(range(-2, 3))
    assert set(channel.tolist()) == {0}
    kept = augmented(torch.ones_like(x), Augment(drop=0.3), 0, 0, torch.arange(400)).float().mean()
    assert abs(float(kept) - 0.7) < 0.005


# From files to a verdict

RUN = {
    **SMALL,
    "data": {"name": "nmnist", "classes": [3, 7], "steps": 12, "bin_us": 25_000},
    "network": {"conv": [{"channels": 4, "kernel": 5, "stride": 2, "pool": 2}], "layers": [12], "readout_gain": 2.0},
    "train": {**SMALL["train"], "epochs": 3, "batch_size": 4, "burn_in": 1},
    "augment": {"shift": 1},
    "neuron": {"threshold": 0.03, "slope": 4.0},
}
RUN.pop("encode")


def test_a_run_on_recordings(nmnist, tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_DATA", str(nmnist))
    run = training.train(parse(RUN, "run"), tmp_path / "run", show=False)
    verdict = bisnn.evaluate(run, show=False)
    assert verdict["points"] == 4
    page = bisnn.report([run], show=False).read_text()
    assert "conv 4 → 12" in page
    model = bisnn.load(run)
    with pytest.raises(ValueError, match="was trained on nmnist recordings and takes no features"):
        model.predict(np.zeros((1, 2)))
    engine = load_packed(bisnn.export(run, predictor="map")["path"])
    test = NMNIST(nmnist, train=False, classes=[3, 7], steps=12, bin_us=25_000, show=False)
    x = test.batch(range(4))
    clips = Clips(test, torch.arange(4))
    expected = model.predict_points(clips, None, 0).mean.numpy()
    np.testing.assert_allclose(engine.predict(x.numpy()).mean, expected, atol=1e-6)
    assert (run.parent / "run" / "packed.safetensors").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"root": "none"}, "data.root: there is no folder"),
        ({"root": "."}, r"data.root: .* holds no files Train/\[0-9\]/\*.bin"),
        ({}, "data.root: must name the folder of nmnist"),
    ],
)
def test_data_that_is_not_there(settings, message, tmp_path, monkeypatch):
    monkeypatch.delenv("BISNN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    config = parse({**RUN, "data": {**RUN["data"], **settings}}, "run")
    with pytest.raises(ValueError, match=message):
        training.train(config, tmp_path / "run", show=False)
    assert not (tmp_path / "run" / "config.toml").exists()


def test_clear_errors(nmnist):
    with pytest.raises(ValueError, match=r"classes: must be distinct digits from 0 to 9; got \[3, 3\]"):
        NMNIST(nmnist, classes=[3, 3], show=False)
    with pytest.raises(ValueError, match=r"has no recording of \[9\]"):
        NMNIST(nmnist, classes=[9], show=False)
    with pytest.raises(ValueError, match="scale: must be one of 4, 8, 16"):
        MNISTDVS(nmnist, scale=5)
    with pytest.raises(ValueError, match="crop: must fit the sensor"):
        MNISTDVS(nmnist, crop=200)
    (nmnist / "Train" / "3" / "00004.bin").write_bytes(b"\xff" * 500)
    with pytest.raises(events.BadEvents, match=r"00004.bin"):
        NMNIST(nmnist, show=False)
