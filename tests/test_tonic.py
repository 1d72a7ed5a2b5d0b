"""Datasets of tonic's: the bits of their events, caches of their own, and no downloads."""

from __future__ import annotations

import builtins
import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import bisnn
from bisnn.data import events, tonic_sets
from bisnn.data.archives import NMNIST
from bisnn.data.loading import Clips
from bisnn.data.tonic_sets import FromTonic, tonic_dataset
from bisnn.runs import inputs, training
from bisnn.runs.config import parse
from event_files import slow_bins
from runs import RECORDED, made_up

pytestmark = pytest.mark.usefixtures("own_cache")


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
        assert np.array_equal(data[i][0].numpy(), slow_bins(array, 6, 50_000, 0, (0, 0, 34, 34), 1))
    first = FromTonic(fake, **{**LOOKS, "start_us": None})
    assert np.array_equal(
        first[2][0].numpy(),
        slow_bins(fake.arrays[2], 6, 50_000, int(fake.arrays[2]["t"][0]), (0, 0, 34, 34), 1),
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
    assert np.array_equal(
        parts[1][1][0].numpy(), slow_bins(made_up(800, 34, 2), 6, 50_000, 0, (0, 0, 34, 34), 1)
    )
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
