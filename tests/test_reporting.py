"""The report of runs: what stands in the page, what must not, and runs side by side."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from bisnn import metrics
from bisnn.reporting import page as reporting
from bisnn.reporting.page import report
from bisnn.runs.evaluation import load_evaluation
from reports import (
    CELL,
    DATA,
    HIGHER,
    HOSTILE,
    ROW,
    SCRIPT,
    changed,
    drawings,
    figures,
    images,
    texts,
)


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


def test_names_from_files_are_escaped(pages, report_runs):
    page = Elements(pages["hostile"])
    assert not [
        tag
        for tag, attributes in page.tags
        if tag in ("script", "img") or any(name.startswith("on") for name in attributes)
    ]
    text = "".join(page.text)
    assert HOSTILE in text
    assert f"$c$, {SCRIPT}, b&amp;b" in text  # as names, in the order of the alphabet
    assert f'train = "{report_runs["hostile"].parent / "classes.csv"}"' in text  # in the settings


def test_same_files_same_bytes(pages, report_runs, tmp_path):
    """In another process, with other hashes and another style of the user's."""
    code = (
        "import sys, matplotlib; matplotlib.rcParams.update({'axes.xmargin': "
        "0.3, 'lines.linestyle': ':', 'svg.fonttype': 'path'});"
        "from bisnn.reporting.page import report; "
        "report([sys.argv[1], sys.argv[2]], sys.argv[3], show=False)"
    )
    arguments = [
        str(report_runs["validated"]),
        str(report_runs["line"]),
        str(tmp_path / "again.html"),
    ]
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"},
    )
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == pages["both"]


def test_parts_that_are_drawn_elsewhere_make_the_same_page(report_runs, tmp_path):
    folders = [report_runs[name] for name in ("validated", "line")]
    here = reporting.write_report(folders, tmp_path / "here.html", show=False)
    drawn = [pickle.loads(pickle.dumps(reporting.draw_parts(folder))) for folder in folders]
    there = reporting.write_report(folders, tmp_path / "there.html", show=False, drawn=drawn)
    assert there.path.read_bytes() == here.path.read_bytes()
    assert there.decisions == here.decisions


def test_style_of_the_user_stays(report_runs, tmp_path):
    before = dict(matplotlib.rcParams)
    report([report_runs["st"]], tmp_path / "page.html", show=False)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", ["validated", "st", "line"])
def test_verdict_has_the_numbers_of_the_evaluation(pages, report_runs, name):
    verdict = json.loads((report_runs[name] / "evaluation.json").read_text())
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


def test_reliability_shows_the_count_of_each_bin(pages, report_runs):
    judged = load_evaluation(report_runs["validated"])
    for name, result in judged.predictors.items():
        confidence = [max(row) for row in result.mean.tolist()]
        counts = [sum(int(min(c * 15, 14.999)) == k for c in confidence) for k in range(15)]
        (svg,) = drawings(pages["validated"], f"Reliability, {name}")
        whole = [text for text in texts(svg) if text.isdigit()]  # ticks of the axes have decimals
        assert whole == [str(count) for count in counts if count]


def test_raster_has_every_spike(pages, report_runs):
    raster = load_evaluation(report_runs["st"]).raster
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


@pytest.mark.parametrize("name", ["validated", "st", "hostile"])
def test_energy_has_the_numbers_of_the_ledger(pages, report_runs, name):
    rows = load_evaluation(report_runs[name]).energy.rows
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


def test_large_rasters_are_thinned_and_say_so(report_runs, tmp_path):
    spikes = torch.zeros(1000, 1, 300, dtype=torch.uint8)
    spikes[502, 0, 0] = 1  # the first neuron is always among those drawn
    run = changed(
        report_runs["st"],
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


def test_an_evaluation_of_another_version_is_refused(report_runs, tmp_path):
    old = changed(report_runs["again"], tmp_path / "old", format=1)
    with pytest.raises(
        ValueError,
        match=f"evaluated by another version of bisnn; do it again with: bisnn evaluate {old}",
    ):
        report([old], show=False)


def test_best_is_over_all_runs_of_the_same_data(report_runs, tmp_path):
    judged = load_evaluation(report_runs["st"]).metrics["sign"]
    better = {
        name: dict.fromkeys(("value", "low", "high"), 1.0 if name in HIGHER else -1.0)
        for name in judged
    }
    other = changed(
        report_runs["st"], tmp_path / "better", metrics={"sign": better}, x=torch.zeros(60, 2)
    )
    page = report(
        [report_runs["st"], other, report_runs["line"]], tmp_path / "page.html", show=False
    ).read_text(encoding="utf-8")
    rows = {run: CELL.findall(row) for run, _, row in ROW.findall(page)}
    assert not any(best for best, _ in rows["st"])
    assert all(best for best, _ in rows["better"][:5])
    assert page.count("Verdict on") == 2  # points of another kind have a table of their own
    assert page.count("tested on different draws") == 1


def test_two_runs(pages, report_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert report([report_runs["validated"], report_runs["line"]], show=False) == Path(
        "report.html"
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == pages["both"]
    assert re.findall(r'<section id="run-(\d)">\s*<h2>(\w+)</h2>', page) == [
        ("1", "validated"),
        ("2", "line"),
    ]
    assert [run for run, *_ in ROW.findall(page)] == ["validated"] * 2 + ["line"] * 2


def test_runs_of_the_same_name_are_told_apart(report_runs, tmp_path):
    copies = [
        shutil.copytree(report_runs["st"], tmp_path / parent / "run") for parent in ("a", "b")
    ]
    page = report(copies, tmp_path / "page.html", show=False).read_text(encoding="utf-8")
    assert [run for run, *_ in ROW.findall(page)] == [str(copy) for copy in copies]


def test_missing_parts_are_said(pages, report_runs, tmp_path):
    assert "no points were held out" in pages["st"]
    assert "no points were held out" not in pages["validated"]
    assert "(ST-BiSNN) learns one value for each weight: it has no posterior" in pages["st"]
    assert "has no posterior" not in pages["validated"]
    assert "No error against deviation for MAP" in pages["line"]
    assert "No curve over x: the points have 2 features" in pages["targets"]
    assert "This run has real weights" in pages["hostile"]
    run = shutil.copytree(report_runs["st"], tmp_path / "bare")
    (run / "metrics.jsonl").unlink()
    page = report([run], show=False).read_text(encoding="utf-8")
    assert "No learning curves: metrics.jsonl has no rows" in page
    assert "No firing rates over epochs" in page
    assert page.count("<figure>") == figures(report_runs, "st") - 4


def test_epoch_of_the_model_is_marked(pages, report_runs, tmp_path):
    mark = "the dashed line is the epoch that the model is from"
    assert mark not in pages["st"]
    page = report([changed(report_runs["st"], tmp_path / "early", epoch=2)], show=False).read_text(
        encoding="utf-8"
    )
    assert page.count(mark) == 4


# Errors


def test_a_run_without_evaluation(report_runs, tmp_path):
    run = shutil.copytree(report_runs["st"], tmp_path / "run")
    (run / "evaluation.safetensors").unlink()
    with pytest.raises(
        ValueError,
        match=f"has not been evaluated; do it with: bisnn evaluate {re.escape(str(run))}",
    ):
        report([report_runs["line"], run], tmp_path / "page.html", show=False)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("folders", [[], "runs/a"])
def test_folders_must_be_a_list(folders):
    with pytest.raises(ValueError, match="folders: must be a list of one run folder or more"):
        report(folders, show=False)


def test_targets_that_cannot_be_written(report_runs, tmp_path, monkeypatch):
    with pytest.raises(
        ValueError, match=r"missing/page.html: there is no folder .*missing; make it first"
    ):
        report([report_runs["st"]], tmp_path / "missing" / "page.html", show=False)
    with pytest.raises(ValueError, match="is a folder; give the name of a file"):
        report([report_runs["st"]], tmp_path, show=False)
    (tmp_path / "page.html").write_text("old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"No space left on device; the report was not written.*page.html"
    ):
        report([report_runs["st"]], tmp_path / "page.html", show=False)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "old"
