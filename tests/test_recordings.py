"""Event datasets and their cache: right bits, never stale or half-written; augmentation; a run."""

from __future__ import annotations

import builtins
import dataclasses
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bisnn
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data import archives, cache, camera, events, simulation, tonic_sets
from bisnn.data.archives import MNISTDVS, NMNIST
from bisnn.data.augmentation import Augmentation, augmented
from bisnn.data.loading import Clips
from bisnn.data.tonic_sets import FromTonic, tonic_dataset
from bisnn.data.windows import Window
from bisnn.errors import Stopped
from bisnn.packed import load as load_packed
from bisnn.runs import inputs, training
from bisnn.runs.config import parse
from bisnn.runs.model import Model, build_network
from runs import RECORDED, RULES, made_up, made_up_nmnist, run_on_recordings


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def nmnist(tmp_path) -> Path:
    return made_up_nmnist(tmp_path / "N")


def slow(
    recording: np.ndarray, steps: int, bin_us: int, low: int, side: int, start_us: int
) -> np.ndarray:
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
    """Ids to 900 train, the rest test; 26 x 26 pixels from 48 on; time from the first event."""
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


def test_a_bad_recording_leaves_nothing_of_a_build(nmnist, tmp_path):
    """It is named; mended, it gives another cache file, so what was begun would never be used."""
    (nmnist / "Train" / "7" / "00002.bin").write_bytes(bytes(1000))
    with pytest.raises(events.BadEvents, match=r"00002\.bin: its 1,000 bytes are all 0"):
        NMNIST(nmnist, show=False)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"], (
        "an empty file, which others may wait for"
    )


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


# Augmentation


def test_augmentation_is_keyed_by_the_sample():
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (12, 5, 2, 9, 9), dtype=np.uint8))
    how = Augmentation(rotate=30, zoom=0.2, shift=2, drop=0.3, jitter=1)
    whole = augmented(x, how, 3, 7, torch.arange(5))
    part = augmented(x[:, [4, 1]], how, 3, 7, torch.tensor([4, 1]))
    assert torch.equal(part, whole[:, [4, 1]])
    assert not torch.equal(whole, augmented(x, how, 3, 8, torch.arange(5)))
    assert augmented(x, Augmentation(), 3, 7, torch.arange(5)) is x


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_augmentation_and_unpacking_on_a_gpu_give_the_same_bits(tmp_path):
    x = np.random.default_rng(0).integers(0, 2, (7, 5, 2, 9, 9), dtype=np.uint8)
    bits = cache.build(tmp_path / "x.bits", (5, 2, 9, 9), 7, lambda i: x[i])
    seen_by, index = archives.Recordings(bits, [0] * 7, ["0"]), torch.tensor([6, 0, 3])
    seen = seen_by.batch(index, "cuda")
    assert torch.equal(seen.cpu(), seen_by.batch(index))
    how = Augmentation(rotate=30, zoom=0.2, shift=2, drop=0.3, jitter=1)
    assert torch.equal(
        augmented(seen, how, 3, 7, index).cpu(), augmented(seen_by.batch(index), how, 3, 7, index)
    )


def test_augmentation_moves_and_thins():
    """A dot moves at most the stated steps and pixels, both ways; spikes are lost at the rate."""
    x = torch.zeros(11, 400, 2, 9, 9, dtype=torch.uint8)
    x[5, :, 1, 4, 4] = 1
    moved = augmented(x, Augmentation(shift=2, jitter=3), 0, 0, torch.arange(400)).nonzero()
    assert len(moved) == 400
    t, _, channel, row, column = (moved - torch.tensor([5, 0, 1, 4, 4])).T
    assert set(t.tolist()) == set(range(-3, 4))
    assert set(row.tolist()) == set(column.tolist()) == set(range(-2, 3))
    assert set(channel.tolist()) == {0}
    kept = (
        augmented(torch.ones_like(x), Augmentation(drop=0.3), 0, 0, torch.arange(400))
        .float()
        .mean()
    )
    assert abs(float(kept) - 0.7) < 0.005


def test_augmentation_turns_and_grows_about_the_middle():
    """Against a loop over pixels: each shows what lay at its place turned and shrunk back."""
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (2, 40, 1, 9, 7), dtype=np.uint8))
    samples = torch.arange(40) + 10
    turned = augmented(x, Augmentation(rotate=50, zoom=0.4), 3, 7, samples)
    draws = philox.uniform(samples.numpy(), 5, 3, Purpose.AUGMENTATION, 7)[:, 3:].astype(np.float64)
    for b, (u, v) in enumerate(draws):
        back = np.exp(-1j * math.radians(50 * (2 * u - 1))) / (1 + 0.4 * (2 * v - 1))
        for row, column in np.ndindex(9, 7):
            place = complex(row - 4, column - 3) * back + complex(4, 3)
            h, w = round(place.real), round(place.imag)
            seen = (
                x[:, b, 0, h, w] if 0 <= h < 9 and 0 <= w < 7 else torch.zeros(2, dtype=torch.uint8)
            )
            assert torch.equal(turned[:, b, 0, row, column], seen)
    assert len({float(u) for u in draws[:, 0]}) == 40  # each its own angle


def test_one_row_of_sensors_is_not_moved_off_itself():
    x = torch.zeros(5, 50, 1, 1, 30, dtype=torch.uint8)
    x[2, :, 0, 0, 15] = 1
    moved = augmented(x, Augmentation(rotate=90, shift=3), 0, 0, torch.arange(50)).nonzero()
    assert len(moved) == 50
    assert set((moved[:, 4] - 15).tolist()) == set(range(-3, 4))


# What was left out


def spoilt(path: Path) -> None:
    """Two events outside the sensor, and a byte too many."""
    path.write_bytes(path.read_bytes() + bytes([200, 3, 0, 0, 0, 3, 99, 0, 0, 0, 7]))


def test_what_was_left_out_is_said_once(nmnist, capsys):
    NMNIST(nmnist, show=False)
    assert capsys.readouterr().err == ""
    spoilt(nmnist / "Train" / "3" / "00001.bin")
    NMNIST(nmnist, show=False)
    said = (
        "nmnist: events left out of 1 recording (outside the sensor: "
        "2, bytes after the last record: 1)"
    )
    assert capsys.readouterr().err == f"{said}\n"
    NMNIST(nmnist, show=False)
    assert capsys.readouterr().err == "", "it comes from the cache"


def test_clocks_that_were_put_right_are_said(tmp_path, capsys):
    folder = tmp_path / "D" / "scale04"
    folder.mkdir(parents=True)
    for number in (1, 2):
        recording = made_up(300, 128, number)
        events.write_aedat(folder / f"mnist_5_scale04_{number:04d}.aedat", recording)
        file = folder / f"mnist_5_scale04_{number:04d}.aedat"
        content = file.read_bytes()
        records = len(content) - 8 * 300
        # The first event comes last
        file.write_bytes(
            content[:records] + content[records + 8 :] + content[records : records + 8]
        )
    MNISTDVS(tmp_path / "D", steps=3, show=False)
    assert (
        capsys.readouterr().err
        == "mnist_dvs: times put right in 2 recordings (clock set back: 2)\n"
    )


def test_an_interrupted_build_says_what_it_found(nmnist, capsys, monkeypatch):
    """The next one does not read these recordings again."""
    spoilt(nmnist / "Train" / "3" / "00001.bin")
    read, limit = events.read_nmnist, [2]

    def stopped(path):
        limit[0] -= 1
        if limit[0] < 0:
            raise KeyboardInterrupt
        return read(path)

    monkeypatch.setattr(events, "read_nmnist", stopped)
    with pytest.raises(KeyboardInterrupt):
        NMNIST(nmnist, show=False)
    assert "outside the sensor: 2" in capsys.readouterr().err
    limit[0] = 100
    NMNIST(nmnist, show=False)
    assert capsys.readouterr().err == ""


# From files to a verdict


def test_a_run_on_recordings(nmnist, tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_DATA", str(nmnist))
    run = training.train(parse(RECORDED, "run"), tmp_path / "run", show=False)
    verdict = bisnn.evaluate(run, show=False)
    assert verdict.points == 4
    page = bisnn.report([run], show=False).read_text()
    assert "conv 4 → 12" in page
    model = bisnn.load(run)
    with pytest.raises(
        ValueError,
        match="was trained on nmnist recordings and takes no features; use predict_recordings",
    ):
        model.predict(np.zeros((1, 2)))
    engine = load_packed(bisnn.export(run, predictor="map").path)
    test = NMNIST(nmnist, train=False, classes=[3, 7], steps=12, bin_us=25_000, show=False)
    x = test.batch(range(4))
    clips = Clips(test, torch.arange(4))
    expected = model.predict_points(clips, None).mean.numpy()
    np.testing.assert_allclose(engine.predict(x.numpy()).mean, expected, atol=1e-6)
    assert (run.parent / "run" / "packed.safetensors").exists()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("gradient", ["local", "bptt"])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_on_a_gpu_waits_for_nothing(nmnist, rule, gradient):
    """Reading, augmentation, dropout and update hand work to the GPU and do not wait for it."""
    augment = {"rotate": 10.0, "zoom": 0.1, "shift": 1, "jitter": 1}
    network = {**RECORDED["network"], "gradient": gradient, "dropout": 0.5}
    config = parse({**RECORDED, "rule": RULES[rule], "augment": augment, "network": network}, "run")
    config = config.updated(**{"data.root": str(nmnist), "train.device": "cuda"})
    run = training.Training(config, training.Processes(0, 1, torch.device("cuda")), show=False)
    for _ in range(4):
        run.update()  # kernels are compiled, and recorded for both sizes of mini-batches
    try:
        torch.cuda.set_sync_debug_mode("error")
        run.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_recordings_must_be_those_a_run_began_with(tmp_path):
    run, root = run_on_recordings(tmp_path)
    bisnn.evaluate(run, show=False)
    state = (run / "state.safetensors").read_bytes()
    changed, kept = root / "Train" / "7" / "00001.bin", root / "Train" / "3" / "00001.bin"
    content = changed.read_bytes()
    changed.write_bytes(kept.read_bytes())
    for command in (bisnn.evaluate, training.resume):
        with pytest.raises(
            ValueError,
            match=rf"{root}: its recordings are not those that .*run began with: restore them",
        ):
            command(run, show=False)
    assert (run / "state.safetensors").read_bytes() == state
    changed.write_bytes(content)  # at another time, but the same
    bisnn.evaluate(run, show=False)


def test_all_classes_must_be_there(nmnist):
    config = parse(
        {**RECORDED, "data": {**RECORDED["data"], "classes": [1, 3, 5, 7], "root": str(nmnist)}},
        "run",
    )
    with pytest.raises(
        ValueError,
        match=(
            r"data\.classes: .* has no training recording of 1, 5; give a folder that has, or fewer"
        ),
    ):
        inputs.load_dataset(config)


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
    config = parse({**RECORDED, "data": {**RECORDED["data"], **settings}}, "run")
    with pytest.raises(ValueError, match=message):
        training.train(config, tmp_path / "run", show=False)
    assert not (tmp_path / "run" / "config.toml").exists()


def test_clear_errors(nmnist):
    with pytest.raises(
        ValueError, match=r"classes: must be distinct digits from 0 to 9; got \[3, 3\]"
    ):
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


def test_a_damaged_cache_is_named_as_it_is(nmnist, tmp_path):
    config = parse({**RECORDED, "data": {**RECORDED["data"], "root": str(nmnist)}}, "run")
    made = inputs.load_dataset(config)
    path = made.test.x.recordings.bits.path
    path.write_bytes(b"nonsense")
    with pytest.raises(cache.BadCache, match=rf"^{path}: is no file of recordings"):
        inputs.load_dataset(config)


def test_a_silent_layer_on_recordings_is_no_matter_of_the_encoding(nmnist, tmp_path):
    config = parse(
        {
            **RECORDED,
            "data": {**RECORDED["data"], "root": str(nmnist)},
            "neuron": {"threshold": 50.0},
        },
        "run",
    )
    with pytest.raises(
        Stopped, match=r"lower neuron.threshold, raise data.bin_us, or set train.activity"
    ):
        training.train(config, tmp_path / "run", show=False)


# Predictions from files


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model, and the folder it was trained on."""
    run, root = run_on_recordings(tmp_path_factory.mktemp("predict"))
    return bisnn.load(run), root


def test_files_arrays_and_the_dataset_give_the_same_predictions(trained, capsys):
    model, root = trained
    data = NMNIST(root, train=False, classes=[3, 7], steps=12, bin_us=25_000, show=False)
    expected = model.predict_points(Clips(data, torch.arange(4)), 3)
    files = sorted(root.glob("Test/*/*.bin"))
    read = [events.read_events(file) for file in files]
    done = []
    for recordings_ in (
        files,
        [str(file) for file in files],
        read,
        [seen.events[::-1] for seen in read],
    ):
        result = model.predict_recordings(recordings_, advance=done.append)
        assert torch.equal(result.mean, expected.mean)
        assert torch.equal(result.mutual_information, expected.mutual_information)
    assert sum(done) == 16
    assert capsys.readouterr().err == ""
    assert torch.equal(
        model.predict_recordings(files, None).mean,
        model.predict_points(Clips(data, torch.arange(4)), None).mean,
    )


def test_recordings_that_are_not_as_the_trained_ones(trained, tmp_path, capsys):
    model, root = trained
    good = root / "Test" / "3" / "00001.bin"
    events.write_aedat(tmp_path / "large.aedat", made_up(100, 128, 0))
    (tmp_path / "noise.bin").write_bytes(b"\xff" * 100)
    with pytest.raises(
        events.BadEvents, match=r"large.aedat: must have the 34 x 34 pixels .* got 128 x 128 pixels"
    ):
        model.predict_recordings([good, tmp_path / "large.aedat"])
    with pytest.raises(
        events.BadEvents, match=r"noise.bin: 20 of 20 addresses are outside the sensor"
    ):
        model.predict_recordings([good, tmp_path / "noise.bin"])
    with pytest.raises(
        events.BadEvents, match=r"recordings\[0\]: 9\d of 100 addresses are outside"
    ):
        model.predict_recordings([made_up(100, 128, 0)])
    with pytest.raises(
        events.BadEvents,
        match=r"recordings\[1\]: events: must be an array \(N,\) with the fields x, y, t, p",
    ):
        model.predict_recordings([good, np.zeros((3, 4))])
    for wrong in (good, str(good), []):
        with pytest.raises(ValueError, match="recordings: must be a list of one or more"):
            model.predict_recordings(wrong)
    assert capsys.readouterr().err == ""
    late = made_up(100, 34, 0)
    late["t"] += 400_000
    late["x"][:3] = 40
    model.predict_recordings([good, late])
    assert capsys.readouterr().err.splitlines() == [
        "recordings: events left out of 1 recording (outside the sensor: 3)",
        "recordings: 1 recording without an event in what the model looks at, the first 12 "
        "time steps of 25,000 us",
    ]


def test_a_model_of_simulated_digits_says_that_files_are_others(capsys):
    network = {**RECORDED["network"], "layers": []}
    config = parse(
        {**RECORDED, "data": {"name": "digits", "steps": 12, "bin_us": 25_000}, "network": network},
        "run",
    )
    net = build_network(config, inputs.input_shape(config, 0), 10)
    none = torch.zeros(0, dtype=torch.float64)
    model = Model(net, config, tuple("0123456789"), none, none, 1, "")
    model.predict_recordings([made_up(500, 128, 0)])
    assert (
        "knows digits along a path of their own, which no file has; of others, expect guesses"
        in capsys.readouterr().err
    )


def test_the_window_of_each_kind_of_data(tmp_path):
    """What a run's data section shows of a file is what the run was trained on."""
    looks = {"steps": 10, "bin_us": 20_000}
    window = lambda data: parse({**RECORDED, "data": {**looks, **data}}, "x").data.window()  # noqa: E731
    recording = made_up(3000, 128, 1)
    recording["t"] += 777
    folder = tmp_path / "scale04"
    folder.mkdir()
    events.write_aedat(folder / "mnist_5_scale04_0001.aedat", recording)
    seen = events.read_events(folder / "mnist_5_scale04_0001.aedat")
    expected = MNISTDVS(tmp_path, **looks, crop=20, show=False)[0][0].numpy()
    assert np.array_equal(window({"name": "mnist_dvs", "crop": 20}).frames(seen), expected)
    motion = replace(camera.MNIST_DVS_MOTION, duration_us=200_000)
    images = simulation.sklearn_digits()[0][[3]]
    made = camera.record(images, camera.MNIST_DVS, motion, seed=0, samples=[3])[0]
    expected = camera.binned(
        images,
        camera.MNIST_DVS,
        motion,
        bin_us=20_000,
        seed=0,
        samples=[3],
        window=(48, 48, 26, 26),
    )
    events.write_aedat(tmp_path / "digit.aedat", made)
    assert np.array_equal(
        window({"name": "digits"}).frames(events.read_events(tmp_path / "digit.aedat")),
        expected[:, 0].numpy(),
    )


@pytest.mark.parametrize("pool", [1, 2, 5])
def test_pooled_pixels(pool):
    """Squares at the edge may be smaller: pixel // pool, whatever the size."""
    recording = made_up(400, 9, 2)
    window = Window((9, 9), 4, 75_000, pool=pool, channels=1)
    frames = np.zeros((4, 1, -(-9 // pool), -(-9 // pool)), np.uint8)
    for x, y, t, _ in recording:
        frames[t // 75_000, 0, y // pool, x // pool] = 1
    assert window.shape == frames.shape
    assert np.array_equal(window.frames(events.from_array(recording, (9, 9))), frames)


# tonic


class Fake:
    """Like a dataset of tonic's: files on disk, or nothing but numbers."""

    sensor_size = (34, 34, 2)
    classes = ["none", "one", "two", "three"]  # noqa: RUF012

    def __init__(
        self, folder: Path | None = None, count: int = 5, train: bool = True, transform=None
    ):
        self.train, self.transform, self.reads = train, transform, Reads()
        self.targets = [(i + train) % 4 for i in range(count)]
        self.arrays = [made_up(800, 34, i) for i in range(count)]
        self.data = []
        for i, array in enumerate(self.arrays if folder else []):
            np.save(folder / f"{i}.npy", array)
            self.data.append(str(folder / f"{i}.npy"))

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        self.reads.append(i)
        found = np.load(self.data[i]) if self.data else self.arrays[i]
        return found if self.transform is None else self.transform(found), self.targets[i]


class Reads(list):
    """What was asked for; no setting of the dataset."""


class FakeSHD(Fake):
    """One row of sensors, one polarity, names as bytes."""

    sensor_size = (700, 1, 1)
    classes = np.array([b"null", b"eins", b"zwei", b"drei"])

    def __getitem__(self, i):
        whole, label = super().__getitem__(i)
        found = np.zeros(len(whole), [("t", int), ("x", int), ("p", int)])
        found["t"], found["x"], found["p"] = whole["t"], whole["x"] * 20, 1
        return found, label


LOOKS = {"steps": 6, "bin_us": 50_000, "start_us": 0, "show": False}


def test_a_dataset_of_tonics_has_the_bits_of_its_events(capsys):
    fake = Fake()
    data = FromTonic(fake, **LOOKS)
    assert (len(data), data.shape, data.names) == (
        5,
        (6, 2, 34, 34),
        ("none", "one", "two", "three"),
    )
    assert data.labels.tolist() == fake.targets
    for i, array in enumerate(fake.arrays):
        assert np.array_equal(data[i][0].numpy(), slow(array, 6, 50_000, 0, 34, 0))
    first = FromTonic(fake, **{**LOOKS, "start_us": None})
    assert np.array_equal(
        first[2][0].numpy(), slow(fake.arrays[2], 6, 50_000, 0, 34, int(fake.arrays[2]["t"][0]))
    )
    assert FromTonic(fake, **LOOKS, pool=4).shape == (6, 2, 9, 9)
    sound = FromTonic(FakeSHD(), **LOOKS, pool=5)
    assert (sound.shape, sound.names) == ((6, 1, 1, 140), ("null", "eins", "zwei", "drei"))
    expected = np.zeros((6, 1, 1, 140), np.uint8)
    for x, _, t, _ in fake.arrays[1]:
        expected[t // 50_000, 0, 0, 20 * x // 5] = 1
    assert np.array_equal(sound[1][0].numpy(), expected)
    assert capsys.readouterr().err == ""


def test_a_cached_dataset_is_not_read_again(tmp_path):
    fake = Fake(tmp_path)
    first = FromTonic(fake, **LOOKS)
    assert sorted(fake.reads) == [0, 1, 2, 3, 4], "each once, for events and label"
    fake.reads.clear()
    again = FromTonic(fake, **LOOKS)
    assert fake.reads == []
    assert again.bits.path == first.bits.path
    assert torch.equal(again.labels, first.labels)
    first.bits.path.with_suffix(".labels").unlink()  # interrupted in between
    assert torch.equal(FromTonic(fake, **LOOKS).labels, first.labels)


@dataclasses.dataclass(frozen=True)
class Thinned:
    every: int

    def __call__(self, found):
        return found[:: self.every]


class Part:
    """Some recordings of another dataset, as torch's Subset."""

    def __init__(self, dataset: Fake, indices):
        self.dataset = dataset
        self.indices = indices
        self.sensor_size = dataset.sensor_size
        self.data = None

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        return self.dataset[self.indices[i]]


def test_parts_of_a_dataset_have_caches_of_their_own(tmp_path):
    """Even with the same first and last recordings; another dataset behind them is noticed."""
    parts = [
        FromTonic(Part(Fake(), indices), **LOOKS)
        for indices in ([0, 1, 4], [0, 2, 4], np.array([0, 3, 4]))
    ]
    assert [part.labels.tolist() for part in parts] == [[1, 2, 1], [1, 3, 1], [1, 0, 1]]
    assert np.array_equal(parts[1][1][0].numpy(), slow(made_up(800, 34, 2), 6, 50_000, 0, 34, 0))
    behind = [
        FromTonic(Part(Fake(tmp_path, train=train), [0, 1, 4]), **LOOKS).bits.path
        for train in (True, False)
    ]
    assert len({*behind, parts[0].bits.path}) == 3


def test_another_dataset_has_another_cache(tmp_path):
    (tmp_path / "a").mkdir()
    paths = [FromTonic(Fake(), **LOOKS).bits.path]
    paths += [
        FromTonic(fake, **LOOKS).bits.path
        for fake in (Fake(train=False), Fake(count=4), FakeSHD(), Fake(tmp_path / "a"))
    ]
    paths += [
        FromTonic(Fake(transform=how), **LOOKS).bits.path
        for how in (Thinned(2), Thinned(3), lambda found: found[::2])
    ]
    paths += [
        FromTonic(Fake(), **{**LOOKS, **other}).bits.path
        for other in ({"steps": 5}, {"pool": 2}, {"name": "mine"})
    ]
    changed = Fake()
    changed.arrays[-1]["x"][0] ^= 1
    paths.append(FromTonic(changed, **LOOKS).bits.path)
    on_disk = Fake(tmp_path / "a")
    np.save(tmp_path / "a" / "2.npy", made_up(800, 34, 99))  # as many bytes
    paths.append(FromTonic(on_disk, **LOOKS).bits.path)
    paths.append(FromTonic(with_(Fake(), sensor_size=(35, 34, 2)), **LOOKS).bits.path)
    (tmp_path / "b").mkdir()
    labelled = Fake(tmp_path / "b")
    paths += [
        FromTonic(with_(labelled, targets=labels), **LOOKS).bits.path
        for labels in ([0, 1, 2, 3, 0], [0, 1, 2, 3, 1])
    ]
    assert len(set(paths)) == len(paths)
    assert FromTonic(Fake(transform=Thinned(2)), **LOOKS).bits.path in paths
    assert FromTonic(Fake(transform=lambda found: found[::2]), **LOOKS).bits.path in paths, (
        "a function has no address in it"
    )


def with_(fake: Fake, **values) -> Fake:
    for name, value in values.items():
        setattr(fake, name, value)
    return fake


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda: with_(Fake(), sensor_size=None),
            {},
            r"its sensor_size must be \(W, H, P\) with P = 1 or 2; got None",
        ),
        (lambda: with_(Fake(), sensor_size=(34, 34, 3)), {}, "with P = 1 or 2"),
        (lambda: Fake(count=0), {}, "dataset: must have recordings; got a Fake of none"),
        (lambda: with_(Fake(), targets=[0, 1, 2, 3, 4]), {}, "for each label; got 4 and label 4"),
        (
            lambda: with_(Fake(), targets=[0, 1, (2, 3), 3, 3]),
            {},
            r"numbers of classes, from 0 on; got \(2, 3\) in Fake\[2\]",
        ),
        (
            lambda: with_(Fake(), targets=[0, 1, -2, 3, 3]),
            {},
            "numbers of classes, from 0 on; got -2",
        ),
        (
            lambda: with_(Fake(), targets=[0, 1, 2**31, 3, 3]),
            {},
            "numbers of classes, from 0 on; got 2147483648",
        ),
        (
            lambda: Fake(transform=lambda found: np.zeros((2, 3))),
            {},
            r"Fake\[0\]: events: must be an array",
        ),
        (
            lambda: Fake(transform=lambda found: found[["x", "t", "p"]]),
            {},
            "with the fields x, y, t, p",
        ),
        (Fake, {"name": "../mine"}, "name: must be letters"),
        (Fake, {"steps": 0}, "steps: must be a positive whole number"),
        (Fake, {"pool": 0}, "pool: must be a positive whole number"),
    ],
)
def test_datasets_that_cannot_be_taken(make, options, message):
    with pytest.raises(ValueError, match=message):
        FromTonic(make(), **{**LOOKS, **options})


def test_a_dataset_without_names_of_its_classes():
    assert FromTonic(with_(Fake(), classes=None), **LOOKS).names == ("0", "1", "2", "3")


def test_a_damaged_file_behind_a_dataset_is_named(tmp_path, capsys):
    fake = Fake(tmp_path)
    found = made_up(800, 34, 7)
    found["x"][:5] = 99
    np.save(tmp_path / "0.npy", found)
    (tmp_path / "3.npy").write_bytes(b"nonsense")
    with pytest.raises(
        events.BadEvents, match=r"3.npy: cannot be read \(.*\); copy or download it again"
    ):
        FromTonic(fake, **LOOKS)
    assert (
        capsys.readouterr().err == "Fake: events left out of 1 recording (outside the sensor: 5)\n"
    )


TONIC = {
    **RECORDED,
    "data": {
        "name": "tonic",
        "dataset": "SHD",
        "root": "somewhere",
        "steps": 12,
        "bin_us": 25_000,
        "pool": 7,
        "validation": 0.2,
    },
    "network": {"layers": [16], "readout_gain": 2.0},
}


def test_a_run_on_tonics_recordings(tmp_path, monkeypatch):
    monkeypatch.setattr(
        tonic_sets,
        "tonic_dataset",
        lambda name, root, train: FakeSHD(count=10 if train else 6, train=train),
    )
    run = training.train(parse(TONIC, "run"), tmp_path / "run", show=False)
    assert bisnn.evaluate(run, show=False).points == 6
    model = bisnn.load(run)
    assert model.classes == ("null", "eins", "zwei", "drei")
    assert model.net.input_shape == (1, 1, 100)
    test = FakeSHD(count=6, train=False)
    data = FromTonic(test, steps=12, bin_us=25_000, pool=7, start_us=0, show=False)
    expected = model.predict_points(Clips(data, torch.arange(6)), 3).mean
    assert torch.equal(model.predict_recordings([test[i][0] for i in range(6)]).mean, expected)
    with pytest.raises(
        ValueError, match="no file that can be read here is one of SHD; give arrays"
    ):
        model.predict_recordings(["x.bin"])


@pytest.mark.parametrize("name", tonic_sets.TONIC)
def test_shapes_of_tonics_datasets_are_known_without_it(name):
    config = parse({**TONIC, "data": {**TONIC["data"], "dataset": name, "pool": 3}}, "run")
    shapes = {"NMNIST": (2, 12, 12), "DVSGesture": (2, 43, 43), "SHD": (1, 1, 234)}
    assert inputs.input_shape(config, 0) == shapes[name]
    datasets = pytest.importorskip("tonic").datasets
    assert getattr(datasets, name).sensor_size == tonic_sets.TONIC[name][0]


def test_without_tonic(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "tonic":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    message = (
        r"data.dataset: tonic must be installed to read SHD; got none; "
        r"run `pip install 'bisnn\[tonic\]'`"
    )
    with pytest.raises(ValueError, match=message):
        training.train(parse(TONIC, "run"), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def no_network(monkeypatch):
    """tonic, where it would download if it were asked to."""
    utils = pytest.importorskip("tonic").download_utils

    def refuse(*arguments, **options):
        raise AssertionError("tonic went to the network")

    monkeypatch.setattr(utils.urllib.request, "urlopen", refuse)


@pytest.mark.parametrize("name", tonic_sets.TONIC)
def test_nothing_is_downloaded(name, tmp_path, no_network):
    config = parse(
        {**TONIC, "data": {**TONIC["data"], "dataset": name, "root": str(tmp_path / "saved")}},
        "run",
    )
    with pytest.raises(
        ValueError,
        match=rf"data.root: tonic looks for {name} in .*saved/{name}.*get it with: python -c",
    ) as error:
        training.train(config, tmp_path / "run", show=False)
    code = str(error.value).split('python -c "')[1].rstrip('"')
    # What it tells the user to do downloads
    with pytest.raises(AssertionError, match="went to the network"):
        exec(code, {})


def test_tonics_own_nmnist(nmnist, tmp_path, no_network):
    """Read by tonic, it gives the same bits as our reader; a half-unpacked one is refused."""
    (tmp_path / "saved").mkdir()
    nmnist.rename(tmp_path / "saved" / "NMNIST")
    ours = NMNIST(tmp_path / "saved" / "NMNIST", steps=6, bin_us=50_000, show=False)
    data = {
        "name": "tonic",
        "dataset": "NMNIST",
        "root": str(tmp_path / "saved"),
        "steps": 6,
        "bin_us": 50_000,
    }
    made = inputs.load_dataset(parse({**RECORDED, "data": data}, "run"))
    assert torch.equal(made.train.x.spikes(), ours.batch(range(6)))
    assert made.train.y.tolist() == [3, 3, 3, 7, 7, 7]
    assert (made.classes[7], len(made.test.x)) == ("7 - seven", 4)
    only = FromTonic(tonic_dataset("NMNIST", tmp_path / "saved", True), **LOOKS)
    assert only.bits.path == made.train.x.recordings.bits.path
    (tmp_path / "saved" / "NMNIST" / "train.zip").write_bytes(b"not unpacked yet")
    with pytest.raises(ValueError, match="where it is not, or not whole"):
        tonic_dataset("NMNIST", tmp_path / "saved", True)
    with pytest.raises(
        ValueError,
        match="dataset: must be one of NMNIST, DVSGesture, SHD; got 'NMNST'; did you mean 'NMNIST'",
    ):
        tonic_dataset("NMNST", tmp_path / "saved", True)


def test_tonics_own_gestures(tmp_path, no_network):
    """Milliseconds, in the order of the names; time begins with the first event."""
    for user in ("user02_led", "user01_lab"):
        folder = tmp_path / "DVSGesture" / "ibmGestureTrain" / user
        folder.mkdir(parents=True)
        np.save(folder / "3.npy", np.array([[5, 9, 1, 1000], [127, 0, 0, 1030]]))
    gestures = tonic_dataset("DVSGesture", tmp_path, True)
    assert [Path(file).parent.name for file in gestures.data] == ["user01_lab", "user02_led"]
    data = FromTonic(gestures, steps=4, bin_us=10_000, pool=4, show=False)
    assert data[1][0].nonzero().tolist() == [[0, 1, 2, 1], [3, 0, 0, 31]]
    assert data.names[int(data.labels[0])] == "Right arm cw"
    (tmp_path / "DVSGesture" / "ibmGestureTrain" / "stray").mkdir()
    with pytest.raises(ValueError, match="root: tonic cannot read DVSGesture in"):
        tonic_dataset("DVSGesture", tmp_path, True)


def test_tonics_own_spoken_digits(tmp_path, no_network):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "SHD").mkdir()
    with h5py.File(tmp_path / "SHD" / "shd_train.h5", "w") as file:
        for name, dtype, values in (
            ("times", np.float16, [[0.25, 0.5], [0.75]]),
            ("units", np.uint16, [[3, 699], [0]]),
        ):
            spikes = file.create_dataset(f"spikes/{name}", (2,), dtype=h5py.vlen_dtype(dtype))
            for i, value in enumerate(values):
                spikes[i] = np.array(value, dtype)
        file["labels"] = [1, 0]
        file["extra/keys"] = np.array([b"null", b"eins"])
        file["extra/speaker"] = [0, 0]
    data = FromTonic(
        tonic_dataset("SHD", tmp_path, True), steps=4, bin_us=250_000, start_us=0, show=False
    )
    assert (data.shape, data.names, data.labels.tolist()) == (
        (4, 1, 1, 700),
        ("null", "eins"),
        [1, 0],
    )
    assert data[0][0].nonzero().tolist() == [[1, 0, 0, 3], [2, 0, 0, 699]]
    before = data.bits.path
    os.utime(tmp_path / "SHD" / "shd_train.h5", (0, 0))
    assert (
        FromTonic(
            tonic_dataset("SHD", tmp_path, True), steps=4, bin_us=250_000, start_us=0, show=False
        ).bits.path
        != before
    )
    (tmp_path / "SHD" / "shd_train.h5").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="root: tonic cannot read SHD in"):
        tonic_dataset("SHD", tmp_path, True)
