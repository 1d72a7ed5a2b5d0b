"""Whole sets of recordings under corruptions, worse simulated cameras, and corruption while
training.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bisnn import intervals
from bisnn.data import Dataset
from bisnn.data.archives import NMNIST
from bisnn.data.camera import MNIST_DVS, watch
from bisnn.data.corrupted import CAMERAS, OtherCamera, amounts_of, corrupted, corrupted_anew
from bisnn.data.corruption import CORRUPTIONS
from bisnn.data.loading import Clips
from bisnn.data.simulation import Digits
from bisnn.runs import training
from bisnn.runs.config import parse
from bisnn_experiments import results, robustness
from bisnn_experiments.robustness import HALVES, RobustRow
from runs import RECORDED, made_up_nmnist

CAMERA = replace(MNIST_DVS, width=12, height=10, shot_hz=0.0)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BISNN_CACHE", str(folder / "cache"))
        return NMNIST(made_up_nmnist(folder / "N"), classes=[3, 7], steps=12, show=False)


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path))
    monkeypatch.setattr("bisnn.data.simulation._part", lambda labels, train, own: [3, 5, 8])
    return Digits(True, steps=5, bin_us=15_000, show=False)


def test_lower_light_is_less_light():
    """A camera that is changed sees of the whole light what the usual one sees of a share of it."""
    frames = torch.rand(80, 2, 10, 12, generator=torch.Generator().manual_seed(0))
    video = frames.cumsum(0) / torch.arange(1, 81)[:, None, None, None]
    for share in CAMERAS["lower_light"].amounts:
        changed = CAMERAS["lower_light"].change(CAMERA, share)
        dim, other = (watch(v, c, seed=0) for v, c in ((video * share, CAMERA), (video, changed)))
        for a, b in zip(dim, other, strict=True):
            assert abs(len(a) - len(b)) <= 1 + len(a) // 100
            if len(a) == len(b):
                assert np.mean(np.abs(a["t"] - b["t"]) > 2) < 0.01
    assert len(watch(video, CAMERA, seed=0)[0]) > 1.2 * len(a)


def test_a_higher_threshold_takes_larger_changes():
    """Of a slow change of light, events are its logarithm over the threshold."""
    sharp = replace(CAMERA, mismatch=0.0, leak_hz=0.0, cutoff_hz=0.0, dark=1e-9)
    video = torch.linspace(-8, 0, 200).exp()[:, None, None, None].expand(-1, 1, 10, 12)
    for factor in CAMERAS["higher_threshold"].amounts:
        changed = CAMERAS["higher_threshold"].change(sharp, factor)
        count = len(watch(video, changed, seed=0)[0]) / 120
        assert count == pytest.approx(8 / (factor * sharp.threshold_on), abs=1)


def test_the_usual_camera_sees_the_dataset(simulated):
    source, index = simulated.source, torch.tensor([2, 0])
    assert torch.equal(OtherCamera(source, MNIST_DVS).batch(index), simulated.batch(index))
    assert set(amounts_of(source)) == {*CORRUPTIONS, *CAMERAS}
    clean = int(simulated.batch(index).sum())
    for kind in CAMERAS:
        counts = [int(corrupted(source, kind, k, 0).batch(index).sum()) for k in range(1, 6)]
        assert all(a > b for a, b in itertools.pairwise([clean, *counts])), kind


def test_recordings_of_files_have_no_other_camera(recordings):
    assert set(amounts_of(recordings.source)) == set(CORRUPTIONS)


def test_training_recordings_are_changed_anew_each_epoch(recordings):
    clips, samples = Clips(recordings, torch.arange(6)), torch.arange(6)
    kinds = ["lost_events", "noise_events"]
    first = corrupted_anew(clips, kinds, [1, 5], 3, 0, samples)
    assert not torch.equal(first, corrupted_anew(clips, kinds, [1, 5], 3, 1, samples))
    assert not torch.equal(first, corrupted_anew(clips, kinds, [1, 5], 4, 0, samples))
    some = torch.tensor([4, 1])
    assert torch.equal(corrupted_anew(clips[some], kinds, [1, 5], 3, 0, some), first[:, some])
    clean = clips.spikes()
    assert torch.equal(corrupted_anew(clips, kinds, [0, 0], 3, 0, samples), clean)
    lost = corrupted_anew(clips, kinds[:1], [4, 4], 3, 0, samples)
    assert bool((lost <= clean).all())
    assert float(lost.sum() / clean.sum()) == pytest.approx(0.2, abs=0.03)


def test_kinds_and_strengths_are_drawn_evenly(recordings):
    """Of two hundred epochs of a recording: how many events each strength leaves."""
    one = Clips(recordings, torch.tensor([0]))
    clean = int(one.spikes().sum())
    left = [
        int(corrupted_anew(one, ["lost_events"], [0, 3], 0, epoch, torch.tensor([7])).sum())
        for epoch in range(200)
    ]
    counts = np.histogram(np.array(left) / clean, [0, 0.5, 0.7, 0.95, 1.01])[0]  # 0.4, 0.6, 0.8, 1
    assert counts.sum() == 200
    assert counts.min() > 30


def test_a_run_trains_with_corruptions(tmp_path, monkeypatch):
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    data = {**RECORDED["data"], "root": str(made_up_nmnist(tmp_path / "N"))}
    config = parse({**RECORDED, "data": data}, "run")
    worse = config.updated(**{"augment.corruptions": ["dead_pixels"], "augment.strengths": [3, 5]})
    clean, other, again = (
        (training.train(c, tmp_path / name, show=False) / "model.safetensors").read_bytes()
        for name, c in (("clean", config), ("other", worse), ("again", worse))
    )
    assert other == again
    assert other != clean
    for key, value, message in (
        ("corruptions", ["rain"], "corruptions must be of lost_events, .*; got rain"),
        ("strengths", [4, 2], r"strengths must be the lowest and the highest, .*; got \[4, 2\]"),
        ("strengths", [1, 6], "strengths"),
    ):
        with pytest.raises(ValueError, match=message):
            config.updated(**{f"augment.{key}": value})
    x = np.random.default_rng(0).integers(0, 2, (8, 12, 2, 34, 34), dtype=np.uint8)
    given = Dataset((x, np.arange(8) % 2), (x, np.arange(8) % 2))
    with pytest.raises(ValueError, match=r"augment\.corruptions: change recordings of events"):
        training.train(worse, tmp_path / "spikes", data=given, show=False)


def row(method, half, seed, level, **kinds):
    accuracy = {kind: [level] * 5 for kind in (*HALVES["first"], *HALVES["second"])}
    accuracy |= {kind: [value] * 5 for kind, value in kinds.items()}
    return RobustRow(
        data="made up",
        recipe="corrupted" if half else "today",
        method=method,
        half=half,
        seed=seed,
        explored=False,
        seconds=1.0,
        clean_accuracy=0.9,
        clean_nll=0.1,
        accuracy=accuracy,
        nll=accuracy,
    )


def test_kinds_are_judged_by_runs_that_have_not_trained_with_them():
    rows = [
        row("full", "first", 0, 0.8, lost_events=0.99),  # trained with it: does not count
        row("full", "second", 0, 0.7, lost_events=0.6),
        row("st", "first", 0, 0.75, turned_sensor=0.5),
        row("st", "second", 0, 0.7),
    ]
    full, _ = robustness.summarised(rows)
    assert full.accuracy["lost_events"] == 0.6
    assert full.accuracy["noise_events"] == 0.7
    assert full.accuracy["dead_pixels"] == 0.8
    assert full.suite_accuracy == pytest.approx((0.6 + 4 * 0.7 + 5 * 0.8) / 10)
    (loss,) = robustness.losses(rows)
    assert (loss.method, loss.worst_kind, round(loss.worst, 6)) == ("st", "turned_sensor", 0.3)
    assert loss.mean == pytest.approx((-0.1 + 4 * 0 + 4 * 0.05 + 0.3) / 10)
    assert not list(robustness.summarised(rows[:1])), "half of the kinds have no judge"


def test_losses_have_intervals_over_seeds_and_recordings_that_judge():
    """Against numbers of the seeds and recordings taken one by one."""
    rng, rows = np.random.default_rng(0), []
    for method, half, seed in itertools.product(("full", "st"), HALVES, range(3)):
        kinds = [*itertools.chain(*HALVES.values()), "lower_light"]  # the last is in no half
        counts = {kind: rng.integers(0, 6, 40) for kind in kinds}
        clean = rng.integers(0, 2, 40)
        text = {kind: "".join(map(str, count)) for kind, count in counts.items()}
        changes = {
            "clean_accuracy": clean.mean(),
            "accuracy": {kind: [count.mean() / 5] * 5 for kind, count in counts.items()},
            "nll": dict.fromkeys(counts, [0.0] * 5),
            "clean_right": "".join(map(str, clean)),
            "right": text,
        }
        rows.append(row(method, half, seed, 0).model_copy(update=changes))
    (loss,) = robustness.losses(rows)

    def share(method, seed, i):
        """Of the strengths at which recording i is right, over kinds that weigh alike."""
        of_kinds = []
        for kind in kinds:
            judges = [
                int(run.right[kind][i]) / 5
                for run in rows
                if (run.method, run.seed) == (method, seed) and kind not in HALVES[run.half]
            ]
            of_kinds.append(sum(judges) / len(judges))
        return sum(of_kinds) / len(kinds)

    shares = {
        method: [[share(method, seed, i) for i in range(40)] for seed in range(3)]
        for method in ("full", "st")
    }
    difference = np.subtract(shares["full"], shares["st"])
    assert loss.mean.value == pytest.approx(difference.mean())
    assert loss.mean[1:] == pytest.approx(intervals.of_crossed_mean(difference))
    assert loss.mean.low < loss.mean.value < loss.mean.high
    assert loss.worst.low < loss.worst.value < loss.worst.high
    assert loss.clean is None, "no run of today's"
    rows[0] = rows[0].model_copy(update={"right": None})  # as of older files
    (loss,) = robustness.losses(rows)
    assert loss.mean == pytest.approx(difference.mean())


@pytest.mark.parametrize(
    "name",
    ["robustness_explored", "robustness_explored_digits", "robustness_nmnist", "robustness_digits"],
)
def test_the_published_summary_follows_from_its_rows(name):
    file = Path(__file__).parents[1] / "docs" / "results" / f"{name}.json"
    found = results.read(file, robustness.Robust)
    assert list(robustness.summarised(found.rows)) == found.summary
    assert list(robustness.losses(found.rows)) == found.losses
