"""bisnn_experiments/uncertainty.py: its scores beside slow ones, its recordings, its messages."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bisnn
from bisnn.data import events, simulation
from bisnn.data.archives import NMNIST
from bisnn.data.camera import N_MNIST_MOTION, record
from bisnn.runs import training
from bisnn.runs.building import build_network
from bisnn.runs.config import Config, parse
from bisnn.runs.model import Model
from bisnn.runs.other_data import Pictures, film, scene_of
from bisnn_experiments import scores, uncertainty
from bisnn_experiments.results import Mean, summarise
from runs import RECORDED, RULES, made_up, small
from test_simulation import idx

DIGITS = {
    **RECORDED["data"],
    "name": "digits",
    "classes": list(range(10)),
    "steps": 3,
    "bin_us": 10_000,
}


def settings(seed: int = 0, rule: str = "bayes", **changes) -> Config:
    return parse({**RECORDED, "seed": seed, "rule": RULES[rule]}, "run").updated(
        **{"train.epochs": 1, **changes}
    )


def untrained(path: Path, config: Config) -> str:
    """A model's file."""
    shape = (2, 34, 34) if config.data.name == "nmnist" else (2, 26, 26)
    classes = tuple(map(str, getattr(config.data, "classes", (0, 1))))
    net = build_network(config, (20,) if config.data.name == "two_moons" else shape, len(classes))
    features = 2 if config.data.name == "two_moons" else 0
    Model(
        net, config, classes, torch.zeros(features).double(), torch.ones(features).double(), 0, ""
    ).save(path)
    return str(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """N-MNIST's 3, 5 and 7; pictures of other things; MNIST; three short runs on 3 and 7."""
    folder = tmp_path_factory.mktemp("uncertainty")
    for part, count in (("Train", 4), ("Test", 6)):
        for digit, side in ((3, 17), (5, 8), (7, 34)):
            where = folder / "N" / part / str(digit)
            where.mkdir(parents=True)
            for i in range(count):
                events.write_nmnist(where / f"{i + 1:05d}.bin", made_up(2000, side, 10 * digit + i))
    rng = np.random.default_rng(0)
    images = np.zeros((9, 28, 28), np.uint8)
    images[:, 8:20, 8:20] = rng.integers(0, 256, (9, 12, 12))
    for name in ("images", "mnist"):
        (folder / name).mkdir()
    (folder / "images" / "shoes-t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    np.savez(folder / "images" / "kmnist-test-imgs.npz", images[::-1])
    (folder / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (folder / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(idx(np.array([1, 3, 7, 3, 2, 7, 7, 3, 0], np.uint8)))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BISNN_CACHE", str(folder / "cache"))
        patch.setenv("BISNN_DATA", str(folder / "N"))
        patch.setenv("COLUMNS", "200")
        for seed, rule in ((0, "bayes"), (1, "bayes"), (0, "full, Adam")):
            training.train(settings(seed, rule), folder / f"{rule[:4]}{seed}", show=False)
        yield folder


def pairs(low: np.ndarray, high: np.ndarray) -> float | None:
    """AUROC by its definition."""
    if not low.size or not high.size:
        return None
    return float(np.mean([(h > l) + 0.5 * (h == l) for h in high for l in low]))


def test_auroc_of_a_case_made_by_hand():
    low, high = np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0])
    assert scores.auroc(low, high) == pytest.approx((0 + 0.5 + 1 + 3) / 6) == pairs(low, high)
    assert scores.auroc(high, low) == pytest.approx(1.5 / 6)
    assert scores.auroc(low, low[:0]) is None
    assert scores.auroc(low[:0], low) is None


def test_from_runs_to_results(place, capsys):
    runs = [str(place / name) for name in ("baye0", "baye1", "full0")]
    folders = [
        "--digits",
        str(place / "N"),
        "--images",
        str(place / "images"),
        "--known",
        str(place / "mnist"),
    ]
    uncertainty.main([*runs, *folders, "--most", "5", "--out", str(place / "out.json")])
    shown = capsys.readouterr().out
    result = json.loads((place / "out.json").read_text())
    assert result["recordings"] == {
        "test": 12,
        "other digits": 10,
        "kmnist": 5,
        "shoes": 5,
        "own digits, simulated": 5,
    }
    assert result["seeds"] == [0, 1]
    predictors = [
        ("bayes", "MAP", 0),
        ("bayes", "ensemble of 3", 0),
        ("bayes", "MAP", 1),
        ("bayes", "ensemble of 3", 1),
    ]
    assert [(row["method"], row["predictor"], row["seed"]) for row in result["rows"]] == [
        *predictors,
        ("full", "real weights", 0),
    ]
    assert [(e["method"], e["predictor"]) for e in result["summary"]] == [
        *(p[:2] for p in predictors[:2]),
        ("full", "real weights"),
    ]

    row = result["rows"][1]
    model = bisnn.load(runs[0])

    def seen(train: bool, classes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        data = NMNIST(place / "N", train, classes=classes, steps=12, bin_us=25_000, show=False)
        return data.batch(range(len(data))).bool(), data.labels

    def told(x: torch.Tensor) -> dict[str, np.ndarray]:
        p = bisnn.predict(model.net, x, 3, burn_in=1, seed=0).members.double()  # (K, B, C)
        entropy = lambda p: -(p * p.log()).sum(-1)  # noqa: E731
        mean = p.mean(0)
        scores = {
            "entropy": entropy(mean),
            "1 - max": 1 - mean.amax(-1),
            "mutual information": entropy(mean) - entropy(p).mean(0),
        }
        return {name: np.round(score.numpy(), 6) for name, score in scores.items()} | {
            "class": mean.argmax(-1).numpy()
        }

    x, y = seen(False, [3, 7])
    own = told(x)
    other = told(torch.cat([seen(True, [5])[0], seen(False, [5])[0]], 1))
    right = own.pop("class") == y.numpy()
    assert row["accuracy"] == pytest.approx(right.mean())
    assert row["entropy"]["test"] == pytest.approx(own["entropy"].mean(), abs=1e-5)
    assert row["entropy"]["other digits"] == pytest.approx(other["entropy"].mean(), abs=1e-5)
    assert row["auroc"]["other digits"] == pytest.approx(
        {name: pairs(own[name], other[name]) for name in own}, abs=0.02
    )
    assert row["mistakes"] == pytest.approx(
        {name: pairs(own[name][right], own[name][~right]) for name in own}, abs=0.05
    )
    assert set(result["rows"][0]["auroc"]["shoes"]) == {"entropy", "1 - max"}, (
        "one set of weights has no mutual information"
    )

    both = [
        r["auroc"]["shoes"]["mutual information"]
        for r in result["rows"]
        if r["predictor"] == "ensemble of 3"
    ]
    over_seeds = result["summary"][1]["auroc"]["shoes"]["mutual information"]
    assert over_seeds == pytest.approx({"mean": np.mean(both), "std": np.std(both, ddof=1)})
    assert f"{over_seeds['mean']:.3f} ± {over_seeds['std']:.3f}" in shown
    assert "bayes, ensemble of 3: mutual information" in shown


def test_scores_that_some_seeds_lack():
    row = scores.ScoreRow(
        run="run",
        seed=0,
        method="st",
        predictor="sign",
        accuracy=1.0,
        entropy={"test": 0.5},
        auroc={},
        mistakes={"a": None},
    )
    more = row.model_copy(update={"accuracy": 0.5, "mistakes": {"a": 0.75}})
    last = more.model_copy(update={"accuracy": 0.0})
    (entry,) = summarise([row, more, last], scores.ScoreSummary)
    assert entry.accuracy == Mean(mean=0.5, std=0.5)
    assert entry.mistakes["a"] == Mean(mean=0.75, std=0.0, seeds=2)
    alone = summarise([row], scores.ScoreSummary)
    assert alone[0].mistakes["a"] is None
    assert " -" in scores.tables(alone)


def test_pictures_are_seen_as_the_runs_digits_are(place):
    """Those of `digits` by that camera; those for N-MNIST on 34 x 34, ON events in channel 1."""
    data = parse({**RECORDED, "data": DIGITS, "train": {"epochs": 1, "burn_in": 0}}, "digits").data
    images, _ = simulation.sklearn_digits()
    numbers = list(range(1437, 1443))
    clips = film("digits", Pictures(images[numbers], numbers), data, "cpu")
    own = simulation.Digits(train=False, steps=3, bin_us=10_000, show=False)
    assert torch.equal(clips.spikes(), own.batch(range(6)))

    data = settings(**{"data.steps": 4}).data
    clips = film("digits", Pictures(images[numbers], numbers), data, "cpu")
    camera, motion, _ = scene_of(data)
    assert motion == replace(N_MNIST_MOTION, duration_us=100_000)
    recording = record(images[[1438]], camera, motion, seed=0, samples=[1438])[0]
    assert torch.equal(
        clips.spikes()[:, 1],
        torch.from_numpy(events.bin_events(recording, 4, 25_000, size=(34, 34))),
    )
    bright = torch.zeros(1, 28, 28)
    bright[:, :, :14] = 1  # moves right and down at first: light comes to dark pixels
    steps = record(
        bright,
        replace(camera, shot_hz=0.0, leak_hz=0.0),
        replace(motion, duration_us=40_000),
        seed=0,
    )[0]
    inside = steps[(steps["x"] > 15) & (steps["y"] > 6) & (steps["y"] < 24)]
    assert len(inside) > 5
    assert inside["p"].all()


def end(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        uncertainty.main([str(argument) for argument in arguments])
    assert isinstance(stop.value.code, str)
    assert stop.value.code.count("\n") == 0
    return stop.value.code


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--most", 0], "--most: must be a positive whole number; got 0"),
        (
            ["--images", "none"],
            r"--images: must be a folder that holds \*-images-idx3-ubyte.gz or "
            r"kmnist-test-imgs.npz; got .*none",
        ),
        (["--digits", "none"], "--digits: there is no folder .*none; unpack the archive"),
        (["--digits", "images"], "--digits: .*images holds no files Train"),
        (["--known", "images"], "--known: .*images: has no train-images-idx3-ubyte"),
        (
            ["--out", "N"],
            "--out: must be a file in a folder that is there; got .*N; give another name",
        ),
        ([], "--images: must be given where there is no other set; got none for runs on nmnist"),
    ],
    ids=lambda x: " ".join(map(str, x)) if isinstance(x, list) else "",
)
def test_bad_arguments_are_one_line(place, options, message, capsys):
    given = [place / o if isinstance(o, str) and not o.startswith("--") else o for o in options]
    out = [] if "--out" in options else ["--out", place / "no.json"]
    found = end([place / "baye0", *given, *out], capsys)
    assert re.search(message, found), found
    assert not (place / "no.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a-images-idx3-ubyte.gz", b"text", "is damaged or no idx file of 3 axes"),
        (
            "a-images-idx3-ubyte.gz",
            gzip.compress(idx(np.zeros((2, 8, 8), np.uint8))),
            "must hold bytes .N, 28, 28., N >= 1; got uint8",
        ),
        ("kmnist-test-imgs.npz", b"text", "is damaged or has no array arr_0"),
        (
            "kmnist-test-imgs.npz",
            {"x": np.zeros((2, 28, 28), np.uint8)},
            "is damaged or has no array arr_0",
        ),
        ("kmnist-test-imgs.npz", {"arr_0": np.array([{}, {}])}, "is damaged or has no array arr_0"),
        (
            "kmnist-test-imgs.npz",
            {"arr_0": np.zeros((2, 28, 28))},
            "must hold bytes .N, 28, 28., N >= 1; got float64",
        ),
    ],
    ids=["no idx", "small", "no npz", "other name", "objects", "floats"],
)
def test_bad_pictures_are_one_line(place, tmp_path, name, content, message):
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.savez(file, **content)
    with pytest.raises(ValueError, match=f"--images: .*{name}: {message}.*take the original"):
        uncertainty.pictures(tmp_path, None, [3], 5)


def test_bad_runs_are_one_line(place, tmp_path, capsys):
    images = ["--images", place / "images", "--out", tmp_path / "no.json"]
    first = untrained(tmp_path / "first", settings())
    again = untrained(tmp_path / "again", settings())
    hotter = untrained(tmp_path / "hotter", settings(1, **{"rule.temperature": 0.1}))
    finer = untrained(tmp_path / "finer", settings(1, **{"data.steps": 24}))
    moons = untrained(tmp_path / "moons", small())
    every = untrained(tmp_path / "every", settings(**{"data.classes": list(range(10))}))
    assert "got two_moons of" in end([moons, *images], capsys)
    assert f"got {first} and {again} with the same seed; give one of them" in end(
        [first, again, *images], capsys
    )
    assert f"got {first} and {hotter} with another rule.temperature" in end(
        [first, hotter, *images], capsys
    )
    assert f"got data.steps = 24 of {finer} and 12 of {first}" in end(
        [first, finer, *images], capsys
    )
    assert "there is no such run folder or model file" in end([tmp_path / "none", *images], capsys)
    assert "needs digits that the runs' classes leave out" in end(
        [every, "--digits", place / "N", *images], capsys
    )
    if not torch.cuda.is_available():
        assert "--device: must be one that PyTorch finds" in end(
            [first, "--device", "cuda", *images], capsys
        )


def test_what_runs_on_digits_leave_out(place, tmp_path, capsys):
    config = parse({**RECORDED, "data": DIGITS, "train": {"epochs": 1, "burn_in": 0}}, "digits")
    run = untrained(tmp_path / "digits", config)
    other = untrained(
        tmp_path / "other", config.updated(**{"seed": 1, "data.root": str(place / "mnist")})
    )
    alone = ["--digits", place / "N", "--known", place / "mnist", "--out", tmp_path / "no.json"]
    assert "got none for runs on digits" in end([run, *alone], capsys)
    noted = capsys.readouterr().err
    assert "--digits: is for runs on nmnist; these are on digits: left out" in noted
    assert "--known: is for runs on nmnist" in noted
    assert 'got data.root = "MNIST\'s"' in end([run, other, *alone], capsys)
