"""Recordings of one's own in a folder: layouts, splits, groups, and what of them is seen."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch

import bisnn
from bisnn.data import events, folders
from bisnn.data.archives import ChangedRecordings
from bisnn.data.windows import Window
from bisnn.runs import robustness, training
from bisnn.runs.config import parse
from bisnn.runs.inputs import load_dataset
from camera_files import aedat4, csv_text, dat
from event_files import slow_bins
from runs import RECORDED, made_up

pytestmark = pytest.mark.usefixtures("own_cache")


def write(root, *files, seed=0):
    """N-MNIST files at these places; all differ."""
    for number, name in enumerate(files):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        events.write_nmnist(path, made_up(400, 34, 100 * seed + number))
    return root


def cats_and_dogs(root, count=10):
    return write(root, *(f"{name}/{i:02d}.bin" for name in ("cat", "dog") for i in range(count)))


def config(root, **settings):
    section = {"name": "folder", "root": str(root), "steps": 4, "bin_us": 80_000, **settings}
    return parse({**RECORDED, "data": section, "augment": {}}, "mine")


def names(split, root):
    """The files of a split, from the folder on."""
    return {str(split.x.recordings.files[i].relative_to(root)) for i in split.x.index.tolist()}


# Layouts


def test_classes_are_folders_split_by_share_and_seed(tmp_path):
    root = cats_and_dogs(tmp_path / "mine")
    loaded = load_dataset(config(root, validation=0.25), show=False)
    assert loaded.classes == ("cat", "dog")
    parts = [names(split, root) for split in (loaded.train, loaded.validation, loaded.test)]
    assert [len(part) for part in parts] == [12, 4, 4]
    assert len(set.union(*parts)) == 20
    for part, each in zip(parts, (6, 2, 2), strict=True):
        assert Counter(name[:3] for name in part) == {"cat": each, "dog": each}
    for split in (loaded.train, loaded.validation, loaded.test):
        labels = [loaded.classes[y] for y in split.y.tolist()]
        assert [split.x.recordings.files[i].parent.name for i in split.x.index.tolist()] == labels
    again = load_dataset(config(root, validation=0.25), show=False)
    other = load_dataset(config(root, validation=0.25).updated(seed=1), show=False)
    assert again.digest() == loaded.digest() != other.digest()
    assert names(other.test, root) != parts[2]


def test_train_and_test_folders(tmp_path):
    places = [f"{part}/{name}/{i}.bin" for part in ("Train", "TEST", "val") for name in "ab"
              for i in range(2)]  # fmt: skip
    root = write(tmp_path / "mine", *places, "Train/stray.bin", "other/a/1.bin")
    loaded = load_dataset(config(root), show=False)
    assert names(loaded.train, root) == {place for place in places if place.startswith("Train")}
    assert names(loaded.test, root) == {place for place in places if place.startswith("TEST")}
    assert names(loaded.validation, root) == {place for place in places if place.startswith("val")}
    unlisted = [str(file.relative_to(root)) for file in folders.listed(root).unlisted]
    assert unlisted == ["Train/stray.bin", "other/a/1.bin"]


def test_split_csv(tmp_path):
    root = write(tmp_path / "mine", "cat/1.bin", "dog/1.bin", "x.bin", "y.bin", "z.bin")
    (root / "split.csv").write_text(
        "split,file,class\ntrain,cat/1.bin,\ntrain,dog/1.bin,\ntest,x.bin,cat\ntest,y.bin,dog\n"
    )
    loaded = load_dataset(config(root), show=False)
    assert names(loaded.train, root) == {"cat/1.bin", "dog/1.bin"}
    assert names(loaded.test, root) == {"x.bin", "y.bin"}
    assert loaded.test.y.tolist() == [0, 1]
    assert [file.name for file in folders.listed(root).unlisted] == ["z.bin"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "split.csv: must name its columns in the first line, file among them"),
        ("file\n", "split.csv: lists no recording"),
        ("file\nnone.bin\n", "line 2: file must be a recording in the folder; got 'none.bin'"),
        ("file\n../mine/x.bin\n", "line 2: file must be a recording in the folder"),
        ("file\nx.bin\n", "line 2: has no class, and the file lies in no folder of one"),
        ("file,split\ncat/1.bin,later\n", "line 2: split must be .*; got 'later'; mend it"),
        ("file\ncat/1.bin\ncat/1.bin\n", "line 3: cat/1.bin is listed twice; delete one"),
        ('file\n"cat/1.bin\n', "split.csv: is no CSV text in UTF-8"),
        (
            "file,split,group\ncat/1.bin,train,ann\ndog/1.bin,train,bo\ndog/2.bin,test,ann\n",
            "the group 'ann' must be on one side of the split; got recordings in train and test",
        ),
        ("file,split\ncat/1.bin,train\ndog/1.bin,train\n", "has no test recording, as its 2"),
        ("file,split\ncat/1.bin,train\ndog/1.bin,test\n", "has no training recording of dog"),
    ],
)
def test_bad_split_csv(tmp_path, text, message):
    root = write(tmp_path / "mine", "cat/1.bin", "dog/1.bin", "dog/2.bin", "x.bin")
    (root / "split.csv").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_dataset(config(root), show=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(5))
def test_groups_stay_together(tmp_path, seed):
    """Of 12 people, each with recordings of both classes, none is on two sides."""
    places = [f"{name}/{who:02d}_{i}.bin" for who in range(12) for name in "ab" for i in range(2)]
    root = write(tmp_path / "mine", *places)
    rows = [f"{place},{place[2:4]}" for place in places]
    (root / "split.csv").write_text("\n".join(["file,group", *rows]))
    made = config(root, validation=0.2, test_share=0.25).updated(seed=seed)
    loaded = load_dataset(made, show=False)
    parts = [names(split, root) for split in (loaded.train, loaded.validation, loaded.test)]
    people = [{name[2:4] for name in part} for part in parts]
    for one, other in combinations(people, 2):
        assert not one & other
    assert len(people[2]) == 3
    assert len(people[1]) == 2
    assert sum(map(len, parts)) == len(places)


def test_groups_of_one_class_each_are_drawn_from_every_class():
    """Objects seen several times each: a share of the objects of every class is tested."""
    entries = [
        folders.Entry(folders.Path(f"{label}/{thing}_{i}.bin"), label, group=f"{label}{thing}")
        for label in "abc"
        for thing in range(5)
        for i in range(4)
    ]
    listing = folders.Listing(folders.Path(), tuple(entries))
    for seed in range(20):
        test = folders.split_of(listing, 0.2, 0.0, seed)["test"]
        assert Counter(entries[i].label for i in test) == {"a": 4, "b": 4, "c": 4}
        assert len({entries[i].group for i in test}) == 3


def test_order_of_classes():
    def of(*labels):
        entries = tuple(folders.Entry(folders.Path(label), label) for label in labels)
        return folders.Listing(folders.Path(), entries).classes

    assert of("10", "9", "1") == ("1", "9", "10")
    assert of("10", "9", "b") == ("10", "9", "b")


def test_some_classes(tmp_path):
    root = write(tmp_path / "mine", *(f"{name}/{i}.bin" for name in "abc" for i in range(5)))
    loaded = load_dataset(config(root, classes=["c", "a"]), show=False)
    assert loaded.classes == ("a", "c")
    with pytest.raises(ValueError, match=r"data.classes: .* has no recording of d; it has a, b, c"):
        load_dataset(config(root, classes=["a", "d"]), show=False)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "mine must hold a folder for each class, .* got 0 recordings in none"),
        (["1.bin"], "got 1 recordings in none; move each into a folder named after its class"),
        (["a/1.bin", "a/2.bin"], "must have recordings of two classes or more; got a alone"),
        (["a/1.bin", "b/1.bin"], "has no test recording, as its 2 are split"),
    ],
)
def test_folders_that_cannot_train(tmp_path, files, message):
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=message):
        load_dataset(config(write(tmp_path / "mine", *files)), show=False)
    with pytest.raises(ValueError, match=r"data.root: there is no folder .*none"):
        load_dataset(config(tmp_path / "none"), show=False)


# What is seen


def test_formats_may_differ_but_not_the_sensor(tmp_path):
    root = tmp_path / "mine"
    size = (34, 34)
    for i, name in enumerate(("a/1.aedat4", "a/2.dat", "a/3.csv", "b/1.csv", "b/2.npy", "b/3.bin")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        some = made_up(50, 34, i)
        if name.endswith(".npy"):
            np.save(path, some)
        elif name.endswith(".bin"):
            events.write_nmnist(path, some)
        else:
            kind = {"csv": lambda e, s: csv_text(e), "dat": dat, "aedat4": aedat4}
            path.write_bytes(kind[name.rpartition(".")[2]](some, size))
    pytest.importorskip("faery")
    loaded = load_dataset(config(root, test_share=0.34), show=False)
    recordings = loaded.train.x.recordings
    for i, seen in enumerate(recordings.batch(range(6)).movedim(1, 0)):
        expected = slow_bins(made_up(50, 34, i), 4, 80_000, made_up(50, 34, i)["t"][0],
                             (0, 0, 34, 34), 1)  # fmt: skip
        np.testing.assert_array_equal(seen.numpy(), expected)
    (root / "b" / "4.csv").write_text("t,x,y,p\n1,34,2,1\n")
    with pytest.raises(
        events.BadEvents, match=r"4.csv: must have the 34 x 34 pixels .* got at least 35 x 3 pixels"
    ):
        load_dataset(config(root), show=False)


def test_a_size_that_no_file_says_must_be_given(tmp_path):
    root = tmp_path / "mine"
    for name in ("a/1.csv", "a/2.csv", "b/1.csv", "b/2.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("t,x,y,p\n1,3,2,1\n")
    with pytest.raises(
        ValueError,
        match=r"data.size: must be given, as .*1.csv does not say .* give e.g. size = \[4, 3\]",
    ):
        load_dataset(config(root, test_share=0.5), show=False)
    loaded = load_dataset(config(root, test_share=0.5, size=[8, 6]), show=False)
    assert loaded.train.x.spikes().shape[2:] == (2, 6, 8)


def slow_sums(found, steps, bin_us, edge, least, size):
    """Events summed over squares of pixels, one after another."""
    width, height = (-(-side // edge) for side in size)
    counts = np.zeros((steps, 2, height, width), int)
    for x, y, t, p in found.tolist():
        k = (t - int(found["t"][0])) // bin_us
        if k < steps:
            counts[k, int(p), y // edge, x // edge] += 1
    return counts >= least


@pytest.mark.parametrize(("edge", "least"), [(1, 1), (1, 2), (4, 1), (4, 3), (5, 2)])
def test_downsampling_sums_events(edge, least):
    found = made_up(3000, 34, 0)
    window = Window((34, 34), 5, 50_000, None, None, edge, least=least)
    frames = window.frames(events.from_array(found, (34, 34)))
    expected = slow_sums(found, 5, 50_000, edge, least, (34, 34))
    np.testing.assert_array_equal(frames, expected)
    assert frames.shape == window.shape
    assert 0 < frames.mean() < 1


def test_time_steps_of_so_many_events():
    found = made_up(1000, 34, 0)
    window = Window((34, 34), 6, None, None, (4, 6, 20, 16), 2, per_step=30)
    inside = [e for e in found.tolist() if 4 <= e[0] < 24 and 6 <= e[1] < 22]
    expected = np.zeros(window.shape, np.uint8)
    for place, (x, y, _, p) in enumerate(inside[:180]):
        expected[place // 30, int(p), (y - 6) // 2, (x - 4) // 2] = 1
    np.testing.assert_array_equal(window.frames(events.from_array(found, (34, 34))), expected)


def test_a_run_by_number_of_events_with_names(tmp_path):
    """From a folder to predictions, report and calibration, by names of classes."""
    root = tmp_path / "mine"
    for name, side in (("left hand", 17), ("right hand", 34)):
        for i in range(8):
            path = root / name / f"{i}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            events.write_nmnist(path, made_up(2000, side, i))
    looks = {"bin_us": None, "bin_events": 150, "steps": 12, "downsample": 2, "validation": 0.25}
    section = {key: v for key, v in {**config(root).data.model_dump(), **looks}.items() if v}
    made = parse({**RECORDED, "data": section}, "mine")
    run = training.train(made, tmp_path / "run", show=False)
    model = bisnn.load(run)
    assert model.classes == ("left hand", "right hand")
    assert model.config.data.size == [34, 34]
    verdict = bisnn.evaluate(run, show=False)
    assert verdict.points == 4
    loaded = load_dataset(model.config, show=False)
    as_they_are = ChangedRecordings(robustness.source_of(run, loaded), lambda seen: seen)
    again = as_they_are.batch(loaded.test.x.index)
    np.testing.assert_array_equal(again, loaded.test.x.spikes())
    assert "right hand" in bisnn.report([run], show=False).read_text()
    file = root / "left hand" / "0.bin"
    result = model.predict_recordings([file, made_up(2000, 34, 3)])
    assert torch.isfinite(result.mean).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bin_us": None}, "needs bin_us, .* or bin_events"),
        ({"bin_events": 5}, "and not both"),
        ({"classes": ["a", "a"]}, "classes must be two or more, each named once"),
        ({"crop": [0, 0, 30, 30], "size": [20, 40]}, "crop must be .* inside the sensor of 20 x"),
        ({"crop": [0, 0, 9, 8], "downsample": 2}, "crop must be a multiple of downsample = 2"),
        ({"crop": [-1, 0, 8, 8]}, "crop must be"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, settings, message):
    section = {"name": "folder", "root": ".", "steps": 4, "bin_us": 80_000, **settings}
    given = {key: value for key, value in section.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        parse({**RECORDED, "data": given, "augment": {}}, "mine")


def test_a_crop_beyond_the_sensor_that_files_say(tmp_path):
    root = cats_and_dogs(tmp_path / "mine", 3)
    with pytest.raises(ValueError, match=r"data.crop must be .* inside the sensor of 34 x 34"):
        load_dataset(config(root, crop=[0, 0, 40, 34], test_share=0.4), show=False)
