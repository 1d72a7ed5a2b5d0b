"""Runs of every kind with their reports, and what stands in a page, for the tests of reports."""

from __future__ import annotations

import base64
import io
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bisnn.reporting.page import report
from bisnn.runs import config
from bisnn.runs.evaluation import evaluate, load_evaluation
from bisnn.runs.folder import RunFolder, save_tree
from bisnn.runs.training import train
from runs import ONE_D, RECORDED, RULES, made_up_nmnist, small

SMALL = [
    "network.layers=[16,16]",
    "neuron.threshold=0.1",
    "encode.steps=20",
    "encode.neurons=5",
    "train.burn_in=2",
    "train.epochs=3",
    "train.threads=1",
    "train.checkpoint_seconds=1000",
    "predict.samples=3",
]
MOONS = ["data.train=20", "data.test=30"]
SCRIPT = "<script>top.owned = 1</script>"
HOSTILE = 'a <img src=x onerror="top.owned=1"> & $x_{1}$'  # a folder's name


def trained(folder: Path, name: str, *overrides: str) -> Path:
    return judged(folder, config.load(name, [*SMALL, *overrides]))


def judged(folder: Path, settings: config.Config) -> Path:
    train(settings, folder, show=False)
    evaluate(folder, show=False)
    return folder


def recorded(folder: Path) -> dict[str, Path]:
    """Runs on recordings: two rules on the same ones, with and without convolutional layers."""
    data = {**RECORDED["data"], "root": str(made_up_nmnist(folder / "N")), "steps": 13}
    wide = {"channels": 10, "kernel": 5, "stride": 2, "pool": 2}
    layers = {
        "conv": [wide, {"channels": 3, "kernel": 3, "padding": 1}],
        "layers": [12],
        "readout_gain": 2.0,
    }
    settings = {**RECORDED, "data": data, "network": layers}
    return {
        "recordings": judged(folder / "recordings", config.parse(settings, "recordings")),
        "again": judged(folder / "again", config.parse({**settings, "rule": RULES["st"]}, "again")),
        "dense": judged(
            folder / "dense", config.parse({**settings, "network": {**layers, "conv": []}}, "dense")
        ),
    }


def table(path: Path, label) -> str:
    """A config of points with two features and the class or target that `label` gives to row i."""
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{label(i, a)}" for i, (a, b) in enumerate(rng.random((40, 2)))]
    path.with_suffix(".csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    return str(path.with_suffix(".csv"))


def evaluated_small_runs(folder: Path) -> dict[str, Path]:
    """Runs of a second each on points, evaluated, by what they were trained on."""
    rng = np.random.default_rng(0)
    points = [
        (a, b, c, "rare" if a + b > 1.5 else "low" if a < b else "high")
        for a, b, c in rng.random((90, 3))
    ]
    (folder / "rare.csv").write_text(
        "a,b,c,y\n" + "\n".join(f"{a:.3f},{b:.3f},{c:.3f},{y}" for a, b, c, y in points)
    )
    prices = [(*x, 250_000 + 4e6 * x[0]) for x in rng.random((60, 2))]
    (folder / "prices.csv").write_text(
        "a,b,y\n" + "\n".join(f"{a:.3f},{b:.3f},{y:.0f}" for a, b, y in prices)
    )
    data = lambda name, **more: {"data": {"name": "table", "train": str(folder / name), **more}}  # noqa: E731
    settings = {
        "moons": small(),
        "other": small(**{"rule.lr": 0.2, "rule.temperature": 0.01, "train.epochs": 2}),
        "sign": small("st"),
        "line": small(sections=ONE_D),
        "rare": small(sections=data("rare.csv", test_share=0.5)),
        "prices": small(sections=data("prices.csv", task="regression")),
    }
    return {name: judged(folder / name, chosen) for name, chosen in settings.items()}


def evaluated_runs(folder: Path) -> dict[str, Path]:
    """Runs with everything that a report shows, evaluated, by what is special about them."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BISNN_CACHE", str(folder / "cache"))
        on_recordings = recorded(folder)
    points = (
        'version = 1\n[data]\nname = "table"\ntrain = "{}"\ntask = "{}"\n{}\n[train]\nepochs = 1\n'
    )
    classes = folder / "classes.toml"
    file = table(folder / "classes", lambda i, a: [SCRIPT, "b&amp;b", "$c$"][i % 3])
    classes.write_text(points.format(file, "classification", '[rule]\nname = "full"\nlr = 0.01'))
    targets = folder / "targets.toml"
    file = table(folder / "targets", lambda i, a: 1_000_000 + 1000 * a)  # labels of seven digits
    targets.write_text(
        points.format(file, "regression", '[rule]\nname = "bop"\nlr = 0.1\nthreshold = 1e-6')
    )
    return {
        "validated": trained(
            folder / "validated", "two_moons_bayes", *MOONS, "data.validation=0.2"
        ),
        "st": trained(folder / "st", "two_moons_st", *MOONS, "data.validation=0.0"),
        "line": trained(folder / "line", "one_d_bayes", "data.test=40", "data.validation=0.0"),
        "hostile": trained(folder / HOSTILE, str(classes), "network.layers=[16]", "train.epochs=1"),
        "targets": trained(folder / "targets", str(targets), "train.epochs=1"),
        **on_recordings,
    }


# recordings + learning + predictions + over time + maps and rasters + rates + posterior + energy;
# but for the list of mistakes
FIGURES = {
    "validated": 4 + 2 * 4 + 2 + 3 + 2 + 1 + 1,  # with the plane
    "st": 3 + 4 + 1 + 3 + 2 + 0 + 1,
    "line": 3 + (2 + 3) + 2 + 3 + 2 + 1 + 1,
    "hostile": 3 + 4 + 1 + 3 + 2 + 0 + 1,
    "targets": 3 + 1 + 1 + 3 + 2 + 0 + 1,
    "recordings": 4 + 3 + 2 * 3 + 2 + (3 + 3) + 2 + 1 + 1,
    "again": 4 + 3 + 3 + 1 + (3 + 3) + 2 + 0 + 1,
    "dense": 4 + 3 + 2 * 3 + 2 + 3 + 2 + 1 + 1,
}
TOGETHER = {"both": ("validated", "line"), "shared": ("recordings", "again")}


def figures(runs: dict[str, Path], page: str) -> int:
    """How many figures a page should have; "shared" draws recordings once, and three curves."""
    some = TOGETHER.get(page, (page,))
    judged = [load_evaluation(runs[run]) for run in some]
    usual = [list(found.metrics.values())[-1] for found in judged]
    trust = sum((4 if found.decisions else 1) for found in judged if found.classes)
    mistakes = sum("accuracy" not in found or found["accuracy"].value != 1 for found in usual)
    shared = 3 - 4 if page == "shared" else 0
    return sum(FIGURES[run] for run in some) + mistakes + trust + shared


def written_pages(runs: dict[str, Path], folder: Path) -> dict[str, str]:
    """The reports of these runs, each alone and some together."""
    files = {name: report([run], folder / f"{name}.html", show=False) for name, run in runs.items()}
    for name, some in TOGETHER.items():
        files[name] = report([runs[run] for run in some], folder / f"{name}.html", show=False)
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}


ROW = re.compile(r'<tr><th scope="row"><a [^>]*>(.*?)</a><small>(.*?)</small></th>(.*?)</tr>', re.S)
CELL = re.compile(r"<td( class=\"best\")?>(.*?)</td>", re.S)
HIGHER = ("accuracy", "balanced_accuracy")  # is better
DATA = re.compile(r'<data[^>]* value="([^"]*)">([^<]*)</data>')


class Tables(HTMLParser):
    """The cells of every table below a heading, by heading."""

    def __init__(self, page: str):
        super().__init__()
        self.found: dict[str, list[list[str]]] = {}
        self.heading, self.text = "", None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("h2", "h4", "th", "td"):
            self.text = ""
        elif tag == "tr":
            self.found.setdefault(self.heading, []).append([])

    def handle_data(self, data):
        if self.text is not None:
            self.text += data

    def handle_endtag(self, tag):
        if tag in ("h2", "h4"):
            self.heading, self.text = self.text, None
        elif tag in ("th", "td"):
            self.found[self.heading][-1].append(self.text.strip())
            self.text = None


def tables(folder: Path, *runs: Path) -> dict[str, list[list[str]]]:
    """All tables of a report on these runs, which is written into the folder."""
    return Tables(report(runs, folder / "page.html", show=False).read_text(encoding="utf-8")).found


def drawings(page: str, title: str) -> list[str]:
    """The charts of a page that have this title."""
    return re.findall(rf"<h4>{re.escape(title)}</h4>.*?(<svg.*?</svg>)", page, re.S)


def texts(svg: str) -> list[str]:
    """All labels in a chart."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def images(page: str) -> list[np.ndarray]:
    """The pixels of every image, (H, W, 4)."""
    found = re.findall(r"base64,\s*([^\"]+)", page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(image)))) for image in found]


def changed(run: Path, folder: Path, **parts) -> Path:
    """A copy of a run with parts of its evaluation replaced."""
    shutil.copytree(run, folder)
    save_tree(
        RunFolder(folder).evaluation_file,
        {**load_evaluation(run).model_dump(), **parts},
        "evaluation",
    )
    return folder
