"""Recordings in a report: pictures of events, maps of spikes, and what predictors see in them."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import torch

import bisnn
from bisnn.data import events
from bisnn.reporting.charts.canvas import BLUE, ORANGE
from bisnn.reporting.page import report
from bisnn.runs.evaluation import load_evaluation
from bisnn.runs.folder import RunFolder
from reports import changed, drawings, images, texts


def test_pictures_have_the_events_of_the_file(pages, report_runs):
    """The four test files, read anew: blue where only p = 0, orange where only p = 1."""
    files = [
        report_runs["recordings"].parent / "N" / "Test" / name
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


def test_maps_have_the_spikes_of_the_most_active_channels(pages, report_runs):
    files = sorted((report_runs["recordings"].parent / "N" / "Test").glob("*/*.bin"))
    frames = [
        events.bin_events(events.read_nmnist(file).events, 13, 25_000, size=(34, 34))
        for file in files
    ]
    net = bisnn.load(report_runs["recordings"]).net
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


def test_every_predictor_says_what_it_sees(pages, report_runs):
    """Runs on the same recordings share their pictures."""
    for page, some in (("recordings", ["recordings"]), ("shared", ["recordings", "again"])):
        for number in (1, 2, 3, 4):
            figures = re.findall(
                rf"<h4>Test recording {number}, class (\d)</h4>(.*?)</figure>", pages[page], re.S
            )
            ((truth, figure),) = figures
            expected = []
            for run in some:
                for predictor, result in load_evaluation(report_runs[run]).predictors.items():
                    probs = result.mean[number - 1].tolist()
                    name = "37"[probs.index(max(probs))]
                    called = run if len(some) > 1 else ""
                    expected.append(
                        (called, predictor, name, "right" if name == truth else "wrong", max(probs))
                    )
            assert [(*words, float(value)) for *words, value in ANSWER.findall(figure)] == expected


def test_other_recordings_have_pictures_of_their_own(report_runs, tmp_path):
    other = changed(report_runs["again"], tmp_path / "other", recordings="another digest")
    page = report([report_runs["recordings"], other], tmp_path / "page.html", show=False).read_text(
        encoding="utf-8"
    )
    assert "<h2>Test recordings of recordings</h2>" in page
    assert "<h2>Test recordings of other</h2>" in page
    assert page.count("<h4>Test recording 1, class 3</h4>") == 2


def test_recordings_of_one_row_are_rasters(report_runs, tmp_path):
    """Sensors that are no camera, as a cochlea's."""
    raster = load_evaluation(report_runs["dense"]).raster.model_dump()
    raster |= {"input": torch.zeros(13, 4, 300, dtype=torch.uint8)}
    page = report(
        [changed(report_runs["dense"], tmp_path / "row", raster=raster)], show=False
    ).read_text(encoding="utf-8")
    assert "Test recordings" not in page
    assert "input: 60 of 300 neurons" in page


def test_the_evaluation_keeps_counts_not_spikes(report_runs):
    # A byte for each of the input's alone
    assert (
        RunFolder(report_runs["recordings"]).evaluation_file.stat().st_size < 13 * 4 * 2 * 34 * 34
    )
