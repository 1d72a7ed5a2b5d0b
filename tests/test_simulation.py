"""Datasets of the simulated camera: the layouts of MNIST and MNIST-DVS, and built-in digits."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from bisnn.data import events, simulation
from bisnn.data.archives import MNISTDVS
from bisnn.data.camera import MNIST_DVS, MNIST_DVS_MOTION, record


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def short(monkeypatch):
    """A look of 60 ms."""
    monkeypatch.setattr(
        simulation, "MNIST_DVS_MOTION", replace(MNIST_DVS_MOTION, duration_us=60_000)
    )


def idx(values: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, values.ndim])
        + struct.pack(f">{values.ndim}I", *values.shape)
        + values.tobytes()
    )


@pytest.fixture
def mnist(tmp_path):
    """Thirty images of three digits."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    images = np.zeros((30, 28, 28), np.uint8)
    images[:, 8:20, 8:20] = rng.integers(0, 256, (30, 12, 12))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(30, dtype=np.uint8) % 3))
    return folder


def test_mnist_is_read(mnist):
    images, labels = simulation.mnist(mnist)
    assert images.shape == (30, 28, 28)
    assert 0.9 < float(images.max()) <= 1
    assert labels.tolist() == [i % 3 for i in range(30)]


def test_recordings_in_the_layout_of_mnist_dvs(mnist, tmp_path, short):
    assert simulation.simulate(tmp_path / "out", mnist, per_class=4, seed=5, show=False) == 12
    files = sorted(path.name for path in (tmp_path / "out" / "scale04").iterdir())
    assert files == [
        f"mnist_{digit}_scale04_{i:04d}.aedat" for digit in range(3) for i in range(1, 5)
    ]
    images, labels = simulation.mnist(mnist)
    which = np.flatnonzero(labels == 1)[2]  # the third 1
    expected = record(
        images[[which]], MNIST_DVS, simulation.MNIST_DVS_MOTION, seed=5, samples=[int(which)]
    )[0]
    found = events.read_aedat(tmp_path / "out" / "scale04" / "mnist_1_scale04_0003.aedat").events
    assert len(found) > 100
    assert all(np.array_equal(found[name], expected[name]) for name in ("x", "y", "t", "p"))
    data = MNISTDVS(tmp_path / "out", steps=12, show=False)
    assert len(data) == 12
    assert data[0][0].any()


def test_an_interrupted_simulation_goes_on(mnist, tmp_path, short):
    simulation.simulate(tmp_path / "whole", mnist, per_class=2, show=False)
    simulation.simulate(tmp_path / "out", mnist, per_class=2, show=False)
    for path in list((tmp_path / "out" / "scale04").iterdir())[::2]:
        path.unlink()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "scale04").iterdir()}
    simulation.simulate(tmp_path / "out", mnist, per_class=2, show=False)
    for path in (tmp_path / "whole" / "scale04").iterdir():
        assert (tmp_path / "out" / "scale04" / path.name).read_bytes() == path.read_bytes()
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())


def test_an_image_has_one_id_however_many_are_asked_for(tmp_path, short, capsys):
    """And no test image is a training image under another name."""
    simulation.simulate(tmp_path / "out", per_class=5, show=False)
    simulation.simulate(tmp_path / "out", per_class=10, show=False)
    simulation.simulate(tmp_path / "fresh", per_class=10, show=False)
    files = {path.name: path.read_bytes() for path in (tmp_path / "out" / "scale04").iterdir()}
    assert files == {
        path.name: path.read_bytes() for path in (tmp_path / "fresh" / "scale04").iterdir()
    }
    assert len(files) == len(set(files.values())) == 100
    assert len([name for name in files if int(name[-10:-6]) > 900]) == 20
    assert "none to test" not in capsys.readouterr().err
    simulation.simulate(tmp_path / "few", per_class=2, show=False)
    assert (
        "2 of each digit are all to train with, none to test; ask for 3 or more to have both"
        in capsys.readouterr().err
    )
    with pytest.raises(
        ValueError, match="was made with other images, another seed or another camera"
    ):
        simulation.simulate(tmp_path / "out", per_class=2, seed=1, show=False)


def test_digits_need_no_file():
    images, labels = simulation.sklearn_digits()
    assert images.shape == (1797, 28, 28)
    assert not images[:, :4].any()
    assert np.bincount(labels).min() > 150
    test = simulation.Digits(train=False, steps=3, bin_us=10_000, show=False)
    assert (len(test), test.shape, test.labels.tolist()) == (
        360,
        (3, 2, 26, 26),
        labels[1437:].tolist(),
    )
    spikes, _ = test[17]
    one = record(
        images[[1454]], MNIST_DVS, simulation.motion_of(True, 30_000), seed=0, samples=[1454]
    )[0]
    assert torch.equal(
        spikes,
        torch.from_numpy(events.bin_events(one, 3, 10_000, size=(128, 128), crop=(48, 48, 26, 26))),
    )
    assert 0 < float(test.batch(range(360)).float().mean()) < 0.5
    assert (
        simulation.Digits(train=False, steps=3, bin_us=10_000, show=False).bits.path
        == test.bits.path
    )


def test_digits_stay_inside_the_crop():
    """The crop misses next to nothing of scikit-learn's digits: its outermost pixels see noise."""
    test = simulation.Digits(train=False, steps=5, bin_us=60_000, show=False)
    counts = test.batch(range(len(test))).sum((0, 1, 2)).float()
    rim = torch.cat([counts[[0, -1]].flatten(), counts[:, [0, -1]].flatten()])
    assert float(rim.mean()) < 0.01 * float(counts.mean())


def test_mnist_goes_straight_into_the_cache(mnist, monkeypatch):
    """Ids and labels are MNIST-DVS's, events the camera's; the images are not read again."""
    monkeypatch.setattr(MNISTDVS, "TRAINING_IDS", 7)
    parts = [
        simulation.Digits(train, mnist, steps=3, bin_us=10_000, show=False)
        for train in (True, False)
    ]
    assert [part.labels.tolist() for part in parts] == [
        [0] * 7 + [1] * 7 + [2] * 7,
        [0] * 3 + [1] * 3 + [2] * 3,
    ]
    images, _ = simulation.mnist(mnist)
    looked = replace(MNIST_DVS_MOTION, duration_us=30_000)
    # The ninth 1, the second to test with
    one = record(images[[3 * 8 + 1]], MNIST_DVS, looked, seed=0, samples=[25])[0]
    assert torch.equal(
        parts[1][4][0],
        torch.from_numpy(events.bin_events(one, 3, 10_000, size=(128, 128), crop=(48, 48, 26, 26))),
    )
    monkeypatch.setattr(simulation, "mnist", lambda folder: pytest.fail("read the images again"))
    assert len(simulation.Digits(True, mnist, steps=3, bin_us=10_000, show=False)) == 21
    monkeypatch.setattr(MNISTDVS, "TRAINING_IDS", 900)
    with pytest.raises(ValueError, match="has no digits number 901 to 1000 of their class"):
        simulation.Digits(False, mnist, steps=3, bin_us=10_000, show=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged or no idx file of 3 axes"),
        (gzip.compress(b"abcdefgh" * 9), "is damaged or no idx file of 3 axes"),
        (
            gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 28, 28)),
            "is damaged or no idx file of 3 axes",
        ),
        (
            gzip.compress(idx(np.zeros((30, 28, 28), np.uint8)))[:-30],
            "is damaged or no idx file of 3 axes",
        ),
        (
            gzip.compress(idx(np.zeros((30, 28, 28), np.uint8)) + b"x"),
            "is damaged or no idx file of 3 axes",
        ),
        (
            gzip.compress(idx(np.zeros((29, 28, 28), np.uint8))),
            "must have as many labels as images; got 30 and 29",
        ),
    ],
    ids=["empty", "text", "enormous", "cut", "longer", "fewer"],
)
def test_bad_images_are_one_clear_message(mnist, tmp_path, content, message):
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        simulation.simulate(tmp_path / "out", mnist, show=False)
    assert not (tmp_path / "out").exists()


def test_other_mistakes(tmp_path):
    with pytest.raises(ValueError, match="has no train-images-idx3-ubyte"):
        simulation.simulate(tmp_path / "out", tmp_path, show=False)
    with pytest.raises(ValueError, match="per_class: must be at most 9999"):
        simulation.simulate(tmp_path / "out", per_class=10**6, show=False)
    with pytest.raises(ValueError, match="device: must be one of cpu, cuda; got 'gpu'"):
        simulation.simulate(tmp_path / "out", device="gpu", show=False)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="crop: must fit the sensor"):
        simulation.Digits(crop=500, show=False)


def test_only_what_was_simulated_there_is_added_to(mnist, tmp_path, short):
    """Not recordings of another origin, nor of other images under the same names."""
    real = tmp_path / "real" / "scale04"
    real.mkdir(parents=True)
    (real / "mnist_0_scale04_0001.aedat").write_bytes(b"real")
    with pytest.raises(
        ValueError,
        match=r"scale04 holds files that were not simulated there .* give another folder",
    ):
        simulation.simulate(tmp_path / "real", show=False)
    assert [path.name for path in real.iterdir()] == ["mnist_0_scale04_0001.aedat"]
    assert not (tmp_path / "real" / "simulation.json").exists()
    simulation.simulate(tmp_path / "out", mnist, per_class=1, show=False)
    images, _ = simulation.mnist(mnist)
    others = 255 - (255 * images.numpy()).round().astype(np.uint8)
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(others)))
    with pytest.raises(ValueError, match="was made with other images"):
        simulation.simulate(tmp_path / "out", mnist, per_class=2, show=False)


def test_one_folder_of_recordings_at_a_time(tmp_path, short):
    for name in ("a", "b"):
        simulation.simulate(tmp_path / name, per_class=3, show=False)
    with pytest.raises(
        ValueError,
        match=(
            r"root: .* has 2 folders of such recordings, .*a/scale04 and .*b/scale04; give the one"
        ),
    ):
        MNISTDVS(tmp_path, show=False)
    assert len(MNISTDVS(tmp_path / "a", show=False)) == 20
