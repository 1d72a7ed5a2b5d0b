"""The report of runs: what a browser makes of the page, what stands in it, and what must not."""

from __future__ import annotations

import base64
import errno
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

import bisnn
from bisnn import metrics
from bisnn.data import events
from bisnn.reporting import page as reporting
from bisnn.reporting.charts.canvas import BLUE, ORANGE
from bisnn.reporting.page import report
from bisnn.runs import config
from bisnn.runs.evaluation import evaluate, load_evaluation
from bisnn.runs.folder import RunFolder, save_tree
from bisnn.runs.training import train
from runs import RECORDED, RULES, made_up_nmnist

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


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Evaluated runs, by what is special about them."""
    folder = tmp_path_factory.mktemp("runs")
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
    usual = [list(load_evaluation(runs[run]).metrics.values())[-1] for run in some]
    mistakes = sum("accuracy" not in found or found["accuracy"].value != 1 for found in usual)
    return sum(FIGURES[run] for run in some) + mistakes + (3 - 4 if page == "shared" else 0)


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    files = {name: report([run], folder / f"{name}.html", show=False) for name, run in runs.items()}
    for name, some in TOGETHER.items():
        files[name] = report([runs[run] for run in some], folder / f"{name}.html", show=False)
    return {name: file.read_text(encoding="utf-8") for name, file in files.items()}


class Elements(HTMLParser):
    """All tags with their attributes, and all text."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


# In a browser

MEASURE = """
<!doctype html><body><script>
const right = e => e.getBoundingClientRect().right;
function measure(frame) {
  const page = frame.contentDocument, root = page.documentElement, wrong = [], scales = new Set();
  for (const figure of page.querySelectorAll("figure")) {
    const name = figure.querySelector("h4").textContent;
    const chart = figure.querySelector(".chart"), svg = chart.querySelector("svg");
    const box = (svg || chart).getBoundingClientRect();
    if (box.width < 100 || box.height < 40)
      wrong.push(name + ": is " + box.width + " x " + box.height);
    if (!figure.querySelector("figcaption").textContent.trim())
      wrong.push(name + ": has no caption");
    if (chart.querySelector("table")) {  // which needs no label
      if (!chart.querySelector("td")) wrong.push(name + ": is empty");
      continue;
    }
    if (chart.getAttribute("role") != "img" || !chart.getAttribute("aria-label"))
      wrong.push(name + ": has no label");
    if (!svg) continue;
    const edges = figure.getBoundingClientRect().width - 34;  // padding and border
    scales.add((box.width / svg.viewBox.baseVal.width).toFixed(3));
    if (box.width < 0.9 * edges) wrong.push(name + ": fills " + box.width + " of " + edges);
    const drawn = [...svg.querySelectorAll("path, use, image")];
    const shapes = drawn.filter(e => !e.closest("defs, clipPath"));
    const sizes = shapes.map(e => e.getBoundingClientRect()).map(b => Math.max(b.width, b.height));
    if (!sizes.some(size => size > 20)) wrong.push(name + ": is empty");
    for (const text of svg.querySelectorAll("text")) {
      const t = text.getBoundingClientRect();
      const across = t.left < box.left - 1 || t.right > box.right + 1;
      const along = t.top < box.top - 1 || t.bottom > box.bottom + 1;
      if (t.width == 0 || across || along)
        wrong.push(name + ": '" + text.textContent + "' is cut off");
    }
    for (const e of svg.querySelectorAll("[*|href^='#'], [clip-path]")) {
      const id = (e.getAttribute("href") || e.getAttribute("clip-path")).match(/#([^)]*)/)[1];
      if (!svg.querySelector("#" + id)) wrong.push(name + ": refers to " + id + " elsewhere");
    }
  }
  const ids = [...page.querySelectorAll("[id]")].map(e => e.id);
  return {
    figures: page.querySelectorAll("figure").length, wrong,
    width: root.scrollWidth, view: root.clientWidth,
    twice: ids.filter((id, i) => ids.indexOf(id) != i), scales: [...scales],
    bars: [...page.querySelectorAll(".pair")].map(
      e => right(e.lastElementChild) / right(e.parentElement)),
    loads: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name),
    back: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
    text: frame.contentWindow.getComputedStyle(page.querySelector("figure svg text")).fill,
    owned: window.owned || 0,
  };
}
window.onload = () => {
  const result = {};
  for (const frame of document.querySelectorAll("iframe")) result[frame.name] = measure(frame);
  document.body.innerHTML = "<pre></pre>";
  document.body.firstChild.textContent = JSON.stringify(result);
};
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return found


def measured(
    browser: str, pages: dict[str, str], folder: Path, dark: bool = False, width: int = 360
) -> dict:
    frames = [
        f'<iframe name="{name}" style="width: {width}px; height: 700px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
    ]
    (folder / "wrapper.html").write_text(MEASURE + "\n".join(frames), encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
    ]
    options.append(f"--blink-settings=preferredColorScheme={0 if dark else 1}")
    command = [browser, *options, "--dump-dom", (folder / "wrapper.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<pre>(\{.*\})</pre>", dom, re.S)
    assert found, f"the page was not measured: {dom[-2000:]}"
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize(
    ("dark", "back", "text"),
    [(False, "244, 246, 248", "90, 102, 117"), (True, "14, 17, 21", "156, 167, 181")],
)
def test_every_figure_renders_on_a_phone(browser, pages, runs, tmp_path, dark, back, text):
    result = measured(browser, pages, tmp_path, dark)
    assert result.keys() == pages.keys()
    for name, page in result.items():
        assert page["wrong"] == [], name
        assert page["figures"] == figures(runs, name), name
        assert page["width"] <= page["view"] == 360, f"{name}: scrolls sideways"
        assert page["twice"] == [], f"{name}: ids occur twice"
        assert page["loads"] == [], f"{name}: loads something"
        assert page["owned"] == 0, f"{name}: a name from a file ran"
        assert (page["back"], page["text"]) == (f"rgb({back})", f"rgb({text})"), (
            f"{name}: does not follow the theme"
        )


@pytest.mark.parametrize("width", [360, 800, 1100])
def test_labels_have_one_size_and_cards_are_full(browser, pages, tmp_path, width):
    """All charts are scaled by one factor and fill their cards, the ledger the page's width."""
    some = {name: pages[name] for name in ("validated", "targets", "shared")}
    for name, page in measured(browser, some, tmp_path, width=width).items():
        assert len(page["scales"]) == 1, name
        assert page["wrong"] == [], name
        assert page["width"] <= page["view"] == width, f"{name}: scrolls sideways"
        assert all(share > 0.9 for share in page["bars"]), name


# What stands in the page


def test_nothing_comes_from_elsewhere(pages):
    links = 0
    for page in pages.values():
        for tag, attributes in Elements(page).tags:
            assert tag not in ("script", "link", "iframe", "img", "object", "embed", "base")
            for name, value in attributes.items():
                if name in ("src", "href", "xlink:href", "srcset", "action"):
                    links += 1
                    assert value.startswith(("#", "data:image/png;base64,")), (
                        f"{tag} {name}={value}"
                    )
                    if tag == "image":
                        Image.open(io.BytesIO(base64.b64decode(value.partition(",")[2]))).verify()
        assert all(target.startswith("#") for target in re.findall(r"url\(\s*['\"]?([^)]*)", page))
        assert "@import" not in page
        assert len(page) < 1_500_000
    assert links > 50  # the loop saw some


def test_names_from_files_are_escaped(pages, runs):
    page = Elements(pages["hostile"])
    assert not [
        tag
        for tag, attributes in page.tags
        if tag in ("script", "img") or any(name.startswith("on") for name in attributes)
    ]
    text = "".join(page.text)
    assert HOSTILE in text
    assert f"$c$, {SCRIPT}, b&amp;b" in text  # as names, in the order of the alphabet
    assert f'train = "{runs["hostile"].parent / "classes.csv"}"' in text  # in the settings


def test_same_files_same_bytes(pages, runs, tmp_path):
    """In another process, with other hashes and another style of the user's."""
    code = (
        "import sys, matplotlib; matplotlib.rcParams.update({'axes.xmargin': "
        "0.3, 'lines.linestyle': ':', 'svg.fonttype': 'path'});"
        "from bisnn.reporting.page import report; "
        "report([sys.argv[1], sys.argv[2]], sys.argv[3], show=False)"
    )
    arguments = [str(runs["validated"]), str(runs["line"]), str(tmp_path / "again.html")]
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"},
    )
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == pages["both"]


def test_style_of_the_user_stays(runs, tmp_path):
    before = dict(matplotlib.rcParams)
    report([runs["st"]], tmp_path / "page.html", show=False)
    assert dict(matplotlib.rcParams) == before


ROW = re.compile(r'<tr><th scope="row"><a [^>]*>(.*?)</a><small>(.*?)</small></th>(.*?)</tr>', re.S)
CELL = re.compile(r"<td( class=\"best\")?>(.*?)</td>", re.S)
HIGHER = ("accuracy", "balanced_accuracy")  # is better
DATA = re.compile(r'<data[^>]* value="([^"]*)">([^<]*)</data>')


@pytest.mark.parametrize("name", ["validated", "st", "line"])
def test_verdict_has_the_numbers_of_the_evaluation(pages, runs, name):
    verdict = json.loads((runs[name] / "evaluation.json").read_text())
    rows = ROW.findall(pages[name])
    assert [(run, predictor) for run, predictor, _ in rows] == [
        (name, predictor) for predictor in verdict["metrics"]
    ]
    for _, predictor, row in rows:
        cells = CELL.findall(row)
        for (best, cell), (metric, interval) in zip(
            cells, verdict["metrics"][predictor].items(), strict=False
        ):
            shown = DATA.findall(cell)
            assert [float(value) for value, _ in shown] == [
                interval["value"],
                interval["low"],
                interval["high"],
            ]
            factor, unit = (100, 0.05) if metric in HIGHER else (1, 0.00005)
            for value, text in shown:
                assert float(text.removesuffix(" %")) == pytest.approx(
                    factor * float(value), abs=unit * 1.001
                )
            others = [values[metric]["value"] for values in verdict["metrics"].values()]
            top = max(others) if metric in HIGHER else min(others)
            if best:
                assert len(others) > 1
                assert metric != "deviation", "more spread is neither better nor worse"
                assert interval["value"] == top
        if verdict["calibration"]:
            number = f"{verdict['calibration'][predictor]['calibrated_mean']:.4f}"
            assert f"would show {number} on average" in pages[name]
        assert len(cells) == len(verdict["metrics"][predictor]) + 1
        assert cells[-1][1] == f"{verdict['seconds']:.1f} s<small>model of epoch 3 of 3</small>"


def judged_as(probs: dict[str, torch.Tensor], y: torch.Tensor) -> SimpleNamespace:
    """Predictors by name, with their metrics, as an evaluation has them."""
    return SimpleNamespace(
        y=y,
        predictors={name: SimpleNamespace(mean=p) for name, p in probs.items()},
        metrics={
            name: {m: metrics.interval(m, p, y) for m in metrics.JUDGED}
            for name, p in probs.items()
        },
    )


def test_best_is_best_beyond_chance():
    """Point by point on the same points; ties, and what chance may have done, have no badge."""
    y = torch.arange(400) % 2
    right, wrong = torch.eye(2)[y] * 0.8 + 0.1, torch.eye(2)[1 - y] * 0.8 + 0.1
    wrong_on = lambda n: torch.where((torch.arange(400) < n)[:, None], wrong, right)  # noqa: E731
    run = lambda probs: SimpleNamespace(judged=judged_as(probs, y))  # noqa: E731

    def badge(*mistakes: int, metric: str = "accuracy", same: bool = True) -> int | None:
        rows = [(run({"sign": wrong_on(n)}), "sign") for n in mistakes]
        return reporting._best(metric, rows, same)

    assert badge(20, 20) is None
    assert badge(20, 21) is None
    assert badge(32, 20) == 1
    assert badge(32, 20, 33, metric="nll") == 1
    assert badge(32, 20, 21) is None, "better than one is not better than all"
    assert badge(32, 20, same=False) is None, "the intervals overlap; only the pairs tell"
    assert badge(90, 20, same=False) == 1
    assert badge(20) is None
    assert badge(32, 20, metric="deviation") is None


def drawings(page: str, title: str) -> list[str]:
    return re.findall(rf"<h4>{re.escape(title)}</h4>.*?(<svg.*?</svg>)", page, re.S)


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def images(page: str) -> list[np.ndarray]:
    """The pixels of every image, (H, W, 4)."""
    found = re.findall(r"base64,\s*([^\"]+)", page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(image)))) for image in found]


def test_reliability_shows_the_count_of_each_bin(pages, runs):
    judged = load_evaluation(runs["validated"])
    for name, result in judged.predictors.items():
        confidence = [max(row) for row in result.mean.tolist()]
        counts = [sum(int(min(c * 15, 14.999)) == k for c in confidence) for k in range(15)]
        (svg,) = drawings(pages["validated"], f"Reliability, {name}")
        whole = [text for text in texts(svg) if text.isdigit()]  # ticks of the axes have decimals
        assert whole == [str(count) for count in counts if count]


def test_raster_has_every_spike(pages, runs):
    raster = load_evaluation(runs["st"]).raster
    svgs = re.findall(
        r"<h4>Test point \d+, class \d(?:, taken for \d)?</h4>.*?(<svg.*?</svg>)", pages["st"], re.S
    )
    for point, svg in zip((0, 1, 5), svgs, strict=True):  # of the six that are kept
        for image, spikes in zip(images(svg), [raster.input, *raster.layers], strict=True):
            drawn = in_blocks(image, spikes.shape[2], 20)
            expected = spikes[:, point].bool().T.numpy()
            assert expected.any() or spikes.sum() == 0
            assert (drawn == expected).all() or (drawn[::-1] == expected).all()


def in_blocks(image: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Which cells of a raster are drawn, (rows, columns): blocks of pixels, each of one colour."""
    opacity = image[..., 3].reshape(
        rows, image.shape[0] // rows, columns, image.shape[1] // columns
    )
    assert (opacity == opacity[:, :1, :, :1]).all()
    return opacity[:, 0, :, 0] > 0


def changed(run: Path, folder: Path, **parts) -> Path:
    """A copy of a run with parts of its evaluation replaced."""
    shutil.copytree(run, folder)
    save_tree(
        RunFolder(folder).evaluation_file,
        {**load_evaluation(run).model_dump(), **parts},
        "evaluation",
    )
    return folder


@pytest.mark.parametrize("name", ["validated", "st", "hostile"])
def test_energy_has_the_numbers_of_the_ledger(pages, runs, name):
    rows = load_evaluation(runs[name]).energy.rows
    section = pages[name].split("<h4>What one inference takes</h4>")[1].split("</figure>")[0]
    energy, rest = section.split("<li>Memory of the ")
    shown = {
        predictor.strip(): float(value)
        for predictor, value in re.findall(r'<span>([^<]*)<data value="([^"]*)">', energy)
    }
    assert shown == {predictor: row.joules for predictor, row in rows.items()}
    assert ("hypothetical" in section) == (name != "hostile")  # which has real weights
    cells = [
        [text for _, text in CELL.findall(row)]
        for row in re.findall(r"<tr.*?</tr>", rest, re.S)[1:]
    ]
    lines = [line for row in rows.values() for line in (row, *row.layers)]
    counts = ("synaptic_operations", "neuron_updates")
    assert [row[1:3] for row in cells] == [
        [f"{getattr(line, count):,.0f}" for count in counts] for line in lines
    ]
    widths = [float(width) for width in re.findall(r'style="width: ([\d.]+)%"', energy)]
    most = max(row.joules for row in rows.values())
    parts = [
        getattr(row, f"{part}_joules")
        for row in rows.values()
        for part in ("synapse", "neuron", "memory")
    ]
    assert widths == pytest.approx([100 * part / most for part in parts], abs=0.006)


def test_large_rasters_are_thinned_and_say_so(runs, tmp_path):
    spikes = torch.zeros(1000, 1, 300, dtype=torch.uint8)
    spikes[502, 0, 0] = 1  # the first neuron is always among those drawn
    run = changed(
        runs["st"],
        tmp_path / "large",
        raster={
            "points": torch.arange(spikes.shape[1]),
            "input": spikes,
            "layers": [spikes.clone()],
        },
    )
    page = report([run], show=False).read_text(encoding="utf-8")
    assert "input: 60 of 300 neurons" in page
    assert "layer 1: 60 of 300 neurons" in page
    (svg,) = re.findall(r"<h4>Test point [^<]*</h4>.*?(<svg.*?</svg>)", page, re.S)
    assert len(images(svg)) == 2
    for image in images(svg):
        drawn = in_blocks(image, 60, 334)  # three time steps a column
        assert drawn.sum() == 1
        assert drawn[:, 502 // 3].any()


# Recordings


def test_pictures_have_the_events_of_the_file(pages, runs):
    """The four test files, read anew: blue where only p = 0, orange where only p = 1."""
    files = [
        runs["recordings"].parent / "N" / "Test" / name
        for name in ("3/00001.bin", "3/00002.bin", "7/00001.bin", "7/00002.bin")
    ]
    slices = list(pairwise([0, 2, 4, 6, 8, 10, 13]))  # of 13 time steps of 25 ms
    for number, file in zip((1, 2, 3, 4), files, strict=True):
        title = f"Test recording {number}, class {file.parent.name}"
        (svg,) = drawings(pages["recordings"], title)
        steps = np.zeros((13, 2, 34, 34), bool)
        for x, y, t, p in events.read_nmnist(file).events:
            if t < 13 * 25_000:
                steps[t // 25_000, int(p), y, x] = True
        assert texts(svg) == [f"{25 * start} to {25 * end} ms" for start, end in slices]
        assert len(re.findall(r'transform="matrix\(3\.\d+ 0 0 3\.', svg)) == len(slices), "upright"
        for image, (start, end) in zip(images(svg), slices, strict=True):
            off, on = steps[start:end].sum(0)
            assert (image[(on > 0) & (off == 0), :3] == ORANGE).all()
            assert (image[(off > 0) & (on == 0), :3] == BLUE).all()
            assert (np.abs(image[(off == on) & (on > 0), :3] - np.add(BLUE, ORANGE) / 2) <= 1).all()
            none, one, two = (image[off + on == n, 3] for n in range(3))
            assert not none.any()
            assert 0 < one.min() <= one.max() < two.min()
        off, on = steps[10:].sum((0, 2, 3))
        (label,) = re.findall(rf'<h4>{title}</h4>.*?aria-label="(.*?)"', pages["recordings"], re.S)
        assert label.endswith(f"; 250 to 325 ms: {off} of p = 0, {on} of p = 1.")


def test_maps_have_the_spikes_of_the_most_active_channels(pages, runs):
    files = sorted((runs["recordings"].parent / "N" / "Test").glob("*/*.bin"))
    frames = [
        events.bin_events(events.read_nmnist(file).events, 13, 25_000, size=(34, 34))
        for file in files
    ]
    net = bisnn.load(runs["recordings"]).net
    with bisnn.map_weights(net), torch.no_grad():
        spikes = net(torch.from_numpy(np.stack(frames, 1))).spikes
    assert all(layer.any() for layer in spikes)
    svgs = re.findall(
        r"<h4>Test recording (\d), class \d: maps</h4>.*?(<svg.*?</svg>)", pages["recordings"], re.S
    )
    assert len(svgs) == 3
    for number, svg in svgs:
        point = int(number) - 1
        drawn, headings, names = iter(images(svg)), [], []
        for number, (few, layer) in enumerate(zip(("8 of 10", "3"), spikes[:2], strict=True), 1):
            counts = layer[:, point].sum(0).numpy()  # (C, H, W)
            active = layer.sum((0, 1, 3, 4)).argsort(descending=True, stable=True)[:8].tolist()
            most = counts[active].max()
            headings.append(f"layer {number}: {few} channels, 7 x 7, up to {most:.0f} spikes")
            names += [f"channel {channel + 1}" for channel in active]
            for channel in active:
                image, count = next(drawn), counts[channel]
                assert (image[..., :3] == BLUE).all()
                np.testing.assert_allclose(
                    image[..., 3], 255 * np.where(count > 0, 0.3 + 0.7 * count / most, 0), atol=0.51
                )
        assert next(drawn, None) is None
        assert texts(svg) == [*names, *headings]


ANSWER = re.compile(
    r"<li><span><span>(?:<a [^>]*>(\w+)</a>, )?([^<]*)</span>\s*"
    r"<span><strong>(\d)</strong>(\w+)<data value=\"([\d.e-]+)\">"
)


def test_every_predictor_says_what_it_sees(pages, runs):
    """Runs on the same recordings share their pictures."""
    for page, some in (("recordings", ["recordings"]), ("shared", ["recordings", "again"])):
        for number in (1, 2, 3, 4):
            figures = re.findall(
                rf"<h4>Test recording {number}, class (\d)</h4>(.*?)</figure>", pages[page], re.S
            )
            ((truth, figure),) = figures
            expected = []
            for run in some:
                for predictor, result in load_evaluation(runs[run]).predictors.items():
                    probs = result.mean[number - 1].tolist()
                    name = "37"[probs.index(max(probs))]
                    called = run if len(some) > 1 else ""
                    expected.append(
                        (called, predictor, name, "right" if name == truth else "wrong", max(probs))
                    )
            assert [(*words, float(value)) for *words, value in ANSWER.findall(figure)] == expected


def test_other_recordings_have_pictures_of_their_own(runs, tmp_path):
    other = changed(runs["again"], tmp_path / "other", recordings="another digest")
    page = report([runs["recordings"], other], tmp_path / "page.html", show=False).read_text(
        encoding="utf-8"
    )
    assert "<h2>Test recordings of recordings</h2>" in page
    assert "<h2>Test recordings of other</h2>" in page
    assert page.count("<h4>Test recording 1, class 3</h4>") == 2


def test_an_evaluation_of_another_version_is_refused(runs, tmp_path):
    old = changed(runs["again"], tmp_path / "old", format=1)
    with pytest.raises(
        ValueError,
        match=f"evaluated by another version of bisnn; do it again with: bisnn evaluate {old}",
    ):
        report([old], show=False)


def test_recordings_of_one_row_are_rasters(runs, tmp_path):
    """Sensors that are no camera, as a cochlea's."""
    raster = load_evaluation(runs["dense"]).raster.model_dump()
    raster |= {"input": torch.zeros(13, 4, 300, dtype=torch.uint8)}
    page = report([changed(runs["dense"], tmp_path / "row", raster=raster)], show=False).read_text(
        encoding="utf-8"
    )
    assert "Test recordings" not in page
    assert "input: 60 of 300 neurons" in page


def test_the_evaluation_keeps_counts_not_spikes(runs):
    # A byte for each of the input's alone
    assert RunFolder(runs["recordings"]).evaluation_file.stat().st_size < 13 * 4 * 2 * 34 * 34


def test_best_is_over_all_runs_of_the_same_data(runs, tmp_path):
    judged = load_evaluation(runs["st"]).metrics["sign"]
    better = {
        name: dict.fromkeys(("value", "low", "high"), 1.0 if name in HIGHER else -1.0)
        for name in judged
    }
    other = changed(runs["st"], tmp_path / "better", metrics={"sign": better}, x=torch.zeros(60, 2))
    page = report([runs["st"], other, runs["line"]], tmp_path / "page.html", show=False).read_text(
        encoding="utf-8"
    )
    rows = {run: CELL.findall(row) for run, _, row in ROW.findall(page)}
    assert not any(best for best, _ in rows["st"])
    assert all(best for best, _ in rows["better"][:5])
    assert page.count("Verdict on") == 2  # points of another kind have a table of their own
    assert page.count("tested on different draws") == 1


def test_two_runs(pages, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report([runs["validated"], runs["line"]], show=False) == Path("report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == pages["both"]
    assert re.findall(r'<section id="run-(\d)">\s*<h2>(\w+)</h2>', page) == [
        ("1", "validated"),
        ("2", "line"),
    ]
    assert [run for run, *_ in ROW.findall(page)] == ["validated"] * 2 + ["line"] * 2


def test_runs_of_the_same_name_are_told_apart(runs, tmp_path):
    copies = [shutil.copytree(runs["st"], tmp_path / parent / "run") for parent in ("a", "b")]
    page = report(copies, tmp_path / "page.html", show=False).read_text(encoding="utf-8")
    assert [run for run, *_ in ROW.findall(page)] == [str(copy) for copy in copies]


def test_missing_parts_are_said(pages, runs, tmp_path):
    assert "no points were held out" in pages["st"]
    assert "no points were held out" not in pages["validated"]
    assert "(ST-BiSNN) learns one value for each weight: it has no posterior" in pages["st"]
    assert "has no posterior" not in pages["validated"]
    assert "No error against deviation for MAP" in pages["line"]
    assert "No curve over x: the points have 2 features" in pages["targets"]
    assert "This run has real weights" in pages["hostile"]
    run = shutil.copytree(runs["st"], tmp_path / "bare")
    (run / "metrics.jsonl").unlink()
    page = report([run], show=False).read_text(encoding="utf-8")
    assert "No learning curves: metrics.jsonl has no rows" in page
    assert "No firing rates over epochs" in page
    assert page.count("<figure>") == figures(runs, "st") - 4


def test_epoch_of_the_model_is_marked(pages, runs, tmp_path):
    mark = "the dashed line is the epoch that the model is from"
    assert mark not in pages["st"]
    page = report([changed(runs["st"], tmp_path / "early", epoch=2)], show=False).read_text(
        encoding="utf-8"
    )
    assert page.count(mark) == 4


# Errors


def test_a_run_without_evaluation(runs, tmp_path):
    run = shutil.copytree(runs["st"], tmp_path / "run")
    (run / "evaluation.safetensors").unlink()
    with pytest.raises(
        ValueError,
        match=f"has not been evaluated; do it with: bisnn evaluate {re.escape(str(run))}",
    ):
        report([runs["line"], run], tmp_path / "page.html", show=False)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("folders", [[], "runs/a"])
def test_folders_must_be_a_list(folders):
    with pytest.raises(ValueError, match="folders: must be a list of one run folder or more"):
        report(folders, show=False)


def test_targets_that_cannot_be_written(runs, tmp_path, monkeypatch):
    with pytest.raises(
        ValueError, match=r"missing/page.html: there is no folder .*missing; make it first"
    ):
        report([runs["st"]], tmp_path / "missing" / "page.html", show=False)
    with pytest.raises(ValueError, match="is a folder; give the name of a file"):
        report([runs["st"]], tmp_path, show=False)
    (tmp_path / "page.html").write_text("old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"No space left on device; the report was not written.*page.html"
    ):
        report([runs["st"]], tmp_path / "page.html", show=False)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "old"
