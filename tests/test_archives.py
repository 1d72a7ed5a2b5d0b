"""Archives of event recordings: right bits, never stale, and what was left out of them is said."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bisnn.data import camera, events, simulation
from bisnn.data.archives import MNISTDVS, NMNIST
from bisnn.data.windows import Window
from bisnn.runs.config import parse
from event_files import slow_bins
from runs import RECORDED, made_up

pytestmark = pytest.mark.usefixtures("own_cache")


def test_nmnist_has_the_bits_of_its_files(nmnist):
    data = NMNIST(nmnist, classes=[7, 3], steps=20, bin_us=10_000, show=False)
    assert (len(data), data.shape, data.names) == (6, (20, 2, 34, 34), ("7", "3"))
    files = sorted(nmnist.glob("Train/*/*.bin"))
    for i, file in enumerate(files):
        spikes, label = data[i]
        recording = events.read_nmnist(file).events
        assert np.array_equal(
            spikes.numpy(), slow_bins(recording, 20, 10_000, 0, (0, 0, 34, 34), 1)
        )
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
    assert np.array_equal(
        test[0][0].numpy(), slow_bins(recording, 400, 5000, recording["t"][0], (48, 48, 26, 26), 1)
    )
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


def test_a_bad_recording_leaves_nothing_of_a_build(nmnist, tmp_path):
    """It is named; mended, it gives another cache file, so what was begun would never be used."""
    (nmnist / "Train" / "7" / "00002.bin").write_bytes(bytes(1000))
    with pytest.raises(events.BadEvents, match=r"00002\.bin: its 1,000 bytes are all 0"):
        NMNIST(nmnist, show=False)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"], (
        "an empty file, which others may wait for"
    )


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


# Errors and windows


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
