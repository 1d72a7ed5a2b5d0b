"""The charts of a report, as figures: what they draw, and that they can be read."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from sklearn import metrics as independent

import bisnn
from bisnn.reporting import charts
from bisnn.reporting import page as reporting
from bisnn.reporting.charts import canvas
from bisnn.reporting.page import report
from bisnn.runs import evaluation
from bisnn.runs.evaluation import load_evaluation
from bisnn.runs.inputs import load_dataset
from bisnn.runs.results import Evaluation
from bisnn_experiments import terminal
from reports import tables


def read(*folders: Path) -> list[charts.Run]:
    return reporting._read(folders)


def changed(folder: Path, **parts) -> charts.Run:
    """A run, with parts of its evaluation replaced."""
    (run,) = read(folder)
    return charts.Run(
        run.label, run.config, run.rows, Evaluation(**{**run.judged.model_dump(), **parts})
    )


@pytest.fixture
def drawn(monkeypatch):
    """Draws: the parts that a function gives, and the figure behind each chart, by title."""
    kept: list[Figure] = []
    svg = canvas.svg
    monkeypatch.setattr(canvas, "svg", lambda figure: (kept.append(figure), svg(figure))[1])

    def draw(function, *arguments) -> tuple[dict[str, charts.Part], dict[str, Figure]]:
        kept.clear()
        with charts.styled():
            parts = function(*arguments)
        titled = {part.title: part for part in parts if not isinstance(part, str)}
        names = [part.title for part in parts if isinstance(part, charts.Chart)]
        return titled, dict(zip(names, kept, strict=True))

    return draw


def every(drawn, run: charts.Run) -> dict[str, Figure]:
    return {
        title: figure
        for draw in charts.PARTS.values()
        for title, figure in drawn(draw, run)[1].items()
    }


# Comparisons


def test_settings_that_differ_are_shown(small_runs, tmp_path):
    """And no others, with the values of each run's file."""
    some = [small_runs[name] for name in ("moons", "other", "sign")]
    head, *rows = tables(tmp_path, *some)["Settings that differ"]
    assert head == ["Setting", "moons", "other", "sign"]
    files = [tomllib.loads((run / "config.toml").read_text()) for run in some]
    flat = [
        {
            f"{section}.{key}": v
            for section, keys in f.items()
            if isinstance(keys, dict)
            for key, v in keys.items()
        }
        for f in files
    ]
    keys = {key for f in flat for key in f if len({repr(other.get(key)) for other in flat}) > 1}
    assert {key for key, *_ in rows} == keys
    assert {"rule.lr", "rule.temperature", "rule.name", "train.epochs"} <= keys
    for key, *values in rows:
        for value, file in zip(values, flat, strict=True):
            expected = file.get(key)
            assert value == (
                "-"
                if expected is None
                else expected
                if isinstance(expected, str)
                else json.dumps(expected)
            ), key


def test_runs_that_do_not_differ_say_so(small_runs, tmp_path):
    copy = shutil.copytree(small_runs["moons"], tmp_path / "copy")
    page = report([small_runs["moons"], copy], tmp_path / "page.html", show=False).read_text(
        encoding="utf-8"
    )
    assert "None: these runs have the same settings." in page
    assert "Settings that differ" not in report([copy], show=False).read_text(encoding="utf-8"), (
        "one run, nothing to compare"
    )


def test_learning_curves_lie_over_each_other(drawn, small_runs):
    some = [small_runs[name] for name in ("moons", "other", "sign")]
    parts, figures = drawn(charts.overlay, read(*some))
    logs = [
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in some
    ]
    assert [len(log) for log in logs] == [4, 2, 4]
    for title, name in {
        "Training loss": "loss",
        "Accuracy in training": "accuracy",
        "Flip rate": "flips",
    }.items():
        lines = figures[title].axes[0].lines
        assert [line.get_xydata().tolist() for line in lines] == [
            [[row["epoch"], row[name]] for row in log] for log in logs
        ]
        assert len({line.get_color() for line in lines}) == 3
        assert parts[title].legend == ("moons", "other", "sign")


def test_losses_on_another_scale_are_not_compared(small_runs):
    one, other = read(small_runs["moons"], small_runs["other"])
    config = other.config.updated(**{"train.over_time": "mean"})
    with charts.styled():
        parts = charts.overlay([one, charts.Run(other.label, config, other.rows, other.judged)])
    assert "No common training loss" in parts[0]
    assert "Training loss" not in [part.title for part in parts[1:]]


# Predictions


def test_plane_is_what_the_model_says_there(drawn, small_runs):
    trained = bisnn.load(small_runs["moons"])
    plane = load_evaluation(small_runs["moons"]).plane
    side = evaluation.PLANE
    for name, members in {"MAP": None, "ensemble of 3": 3}.items():
        axis = torch.linspace(0, 1, side).tolist()  # to the last bit: spikes are keyed by it
        corners = torch.tensor([[x, y] for y in axis for x in axis])
        probs = trained.predict_points(corners, members).mean
        torch.testing.assert_close(plane.probs[name].reshape(-1, 2), probs, atol=1e-5, rtol=0)
        _, figures = drawn(charts.PARTS["Predictions"], read(small_runs["moons"])[0])
        (ax,) = figures[f"The plane, {name}"].axes
        image = np.asarray(ax.images[0].get_array())
        assert (image[..., 2] > image[..., 0]).ravel().tolist() == (
            probs.argmax(1) == 0
        ).tolist(), "blue is class 0"
        confidence = probs.max(1).values.numpy()
        order = image[..., 3].ravel()[confidence.argsort()].astype(int)
        assert (np.diff(order) >= 0).all(), "the surer, the stronger"
        judged = load_evaluation(small_runs["moons"])
        wrong = judged.x[judged.predictors[name].mean.argmax(1) != judged.y]
        crosses = ax.lines[-1].get_xydata()
        np.testing.assert_allclose(crosses, wrong.numpy(), atol=1e-6)
        dots = sum(len(line.get_xydata()) for line in ax.lines[:-1])
        assert dots == len(load_dataset(trained.config).train.x), "all training points"
        box = ax.get_window_extent()
        assert box.width == pytest.approx(box.height)


def test_confusion_is_that_of_scikit_learn(small_runs, tmp_path):
    judged = load_evaluation(small_runs["rare"])
    found = tables(tmp_path, small_runs["rare"])
    for name, result in judged.predictors.items():
        head, *rows = found[f"Confusion, {name}"]
        assert head == ["", "high", "low", "rare"]
        assert [row[0] for row in rows] == head[1:]
        expected = independent.confusion_matrix(judged.y, result.mean.argmax(1), labels=[0, 1, 2])
        assert [[int(cell) for cell in row[1:]] for row in rows] == expected.tolist()


def test_many_classes_are_a_list_of_what_is_confused_most(drawn, small_runs):
    rng = np.random.default_rng(1)
    y = torch.from_numpy(rng.integers(0, 30, 400))
    probs = torch.eye(30)[torch.where(torch.from_numpy(rng.random(400) < 0.5), y, (y + 1) % 30)]
    names = [f"class {k}" for k in range(30)]
    parts = {
        "y": y,
        "classes": names,
        "predictors": {"MAP": {"mean": probs}},
        "plane": None,
        "points": 400,
    }
    found, _ = drawn(charts.PARTS["Predictions"], changed(small_runs["moons"], **parts))
    table = found["Confusion, MAP"]
    matrix = independent.confusion_matrix(y, probs.argmax(1))
    np.fill_diagonal(matrix, 0)
    assert [int(row[2].split()[0]) for row in table.rows] == sorted(matrix.ravel().tolist())[::-1][
        :8
    ]
    assert all(int(after[6:]) == (int(before[6:]) + 1) % 30 for before, after, _ in table.rows)


def test_surest_mistakes_are_listed(small_runs, tmp_path):
    judged = load_evaluation(small_runs["rare"])
    name, result = list(judged.predictors.items())[-1]
    head, *rows = tables(tmp_path, small_runs["rare"])[f"Surest mistakes, {name}"]
    assert head == ["point", "class", "taken for", "confidence"]
    names, expected = ("high", "low", "rare"), []
    for i, (p, y) in enumerate(zip(result.mean.tolist(), judged.y.tolist(), strict=True)):
        if p.index(max(p)) != y:
            expected.append(
                (-max(p), [str(i + 1), names[y], names[p.index(max(p))], f"{100 * max(p):.1f} %"])
            )
    assert len(expected) > 0
    assert rows == [row for _, row in sorted(expected, key=lambda item: item[0])][:8]


def test_largest_errors_are_listed(small_runs, tmp_path):
    judged = load_evaluation(small_runs["line"])
    head, *rows = tables(tmp_path, small_runs["line"])["Largest errors, ensemble of 3"]
    assert head == ["point", "target", "prediction", "error"]
    error = (judged.predictors["ensemble of 3"].mean - judged.y).abs()[:, 0]
    assert [int(row[0]) - 1 for row in rows] == error.argsort(descending=True, stable=True)[
        :8
    ].tolist()
    assert [abs(float(row[3])) for row in rows] == pytest.approx(
        sorted(error.tolist())[::-1][:8], rel=1e-2
    )


# Legibility


@pytest.mark.parametrize("name", ["moons", "sign", "line", "rare", "prices"])
def test_no_label_is_cut_off(drawn, small_runs, name):
    (run,) = read(small_runs[name])
    for title, figure in every(drawn, run).items():
        renderer = FigureCanvasAgg(figure).get_renderer()
        width, height = figure.bbox.size
        for ax in figure.axes:
            for axis in (ax.xaxis, ax.yaxis):
                box = axis.get_tightbbox(renderer)
                if box is not None:
                    assert box.x0 >= 0, title
                    assert box.x1 <= width + 0.5, title
                    assert box.y0 >= 0, title
                    assert box.y1 <= height, title


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 200_000, 400_000], ["0", "200k", "400k"]),
        ([1_000_100, 1_000_200], ["1.0001M", "1.0002M"]),
        ([-0.5, 0.0, 0.5], ["−0.5", "0.0", "0.5"]),  # noqa: RUF001
        ([0, 5000], ["0", "5000"]),
        ([], []),
    ],
)
def test_tick_labels_tell_ticks_apart(values, labels):
    assert canvas.Short().format_ticks(values) == labels


def test_large_numbers_are_read_as_such():
    assert [reporting._number(value) for value in (391_836.15, 1234.56, 0.0123, 99.5)] == [
        "391,836",
        "1,234.6",
        "0.0123",
        "99.5000",
    ]
    assert [terminal._short(value) for value in (123.2, 0.12345, 45_000)] == [
        "123.2",
        "0.123",
        "45 k",
    ]


@pytest.mark.parametrize("name", ["moons", "line", "rare", "prices"])
def test_logarithmic_axes_say_so_and_have_no_bars(drawn, small_runs, name):
    (run,) = read(small_runs[name])
    scales = set()
    for title, figure in every(drawn, run).items():
        for ax in figure.axes:
            scales.add(ax.get_yscale())
            if ax.get_yscale() != "linear":
                assert "log scale" in ax.get_title("left"), title
                low, high = ax.get_ylim()
                assert sum(low <= tick <= high for tick in ax.get_yticks()) >= 2, title
                assert not [patch for patch in ax.patches if isinstance(patch, Rectangle)], title
    assert len(scales) > 1


def test_reliability_is_square(drawn, small_runs):
    (run,) = read(small_runs["moons"])
    figures = {
        title: figure
        for title, figure in every(drawn, run).items()
        if title.startswith("Reliability")
    }
    assert len(figures) == 2
    for figure in figures.values():
        ax = figure.axes[0]
        box = ax.get_window_extent()
        assert box.width == pytest.approx(box.height)
        assert ax.get_xlim() == ax.get_ylim() == (0, 1)


@pytest.mark.parametrize("steps", [7, 10, 13])
def test_time_steps_are_whole(drawn, small_runs, steps):
    spikes = torch.zeros(steps, 3, 12, dtype=torch.uint8)
    raster = {"points": torch.arange(3), "input": spikes, "layers": [spikes]}
    _, figures = drawn(charts.PARTS["Spikes"], changed(small_runs["moons"], raster=raster))
    assert len(figures) == 3
    for figure in figures.values():
        labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
        assert len(labels) > 1
        assert all(re.fullmatch(r"\d+", label) for label in labels), labels


def test_epochs_are_whole(drawn, small_runs):
    (run,) = read(small_runs["moons"])
    _, figures = drawn(
        charts.PARTS["Learning"], charts.Run(run.label, run.config, run.rows[:1], run.judged)
    )
    for title, figure in figures.items():
        assert all(tick == round(tick) for tick in figure.axes[0].get_xticks()), title


def test_rows_of_a_raster_have_one_height(drawn, small_runs):
    """In every layer, however many neurons it has; a browser scales them smoothly."""
    layers = [torch.zeros(20, 1, n, dtype=torch.uint8) for n in (3, 64, 100, 300)]
    raster = {"points": torch.arange(1), "input": layers[0], "layers": layers[1:]}
    parts, figures = drawn(charts.PARTS["Spikes"], changed(small_runs["moons"], raster=raster))
    ((title, figure),) = figures.items()
    rows = [3, 64, 50, 60]
    heights = [ax.get_window_extent().height / n for ax, n in zip(figure.axes, rows, strict=True)]
    assert heights == pytest.approx([heights[0]] * 4)
    assert parts[title].smooth


# Captions


def test_an_ensemble_that_agrees_is_no_single_network(drawn, small_runs):
    judged = load_evaluation(small_runs["line"])

    def flat(parts):
        return {
            name: part.model_copy(update={"std": torch.zeros_like(part.std)})
            for name, part in parts.items()
        }

    run = changed(
        small_runs["line"], predictors=flat(judged.predictors), over_time=flat(judged.over_time)
    )
    said: dict[str, list[str]] = {"MAP": [], "ensemble of 3": []}
    with charts.styled():
        for draw in (charts.PARTS["Predictions"], charts.PARTS["Uncertainty over time"]):
            for part in draw(run):
                text = part if isinstance(part, str) else f"{part.title}: {part.caption}"
                for name in said:
                    said[name] += [text] if name in text else []
    assert sum("single network" in text for text in said["MAP"]) == 3
    assert sum("members agree" in text for text in said["ensemble of 3"]) == 3
    assert not any("single network" in text for text in said["ensemble of 3"])


@pytest.mark.parametrize(
    ("entropy", "expected"),
    [
        (np.linspace(0.2, 0.6, 50), "the entropy rises from 0.216 to 0.584 nats"),
        (np.linspace(0.6, 0.2, 50), "the entropy falls from 0.584 to 0.216 nats"),
        (np.full(50, 0.4), "the entropy stays near 0.4 nats"),
    ],
)
def test_caption_says_what_the_entropy_does(small_runs, entropy, expected):
    curve = torch.from_numpy(entropy)
    curves = {
        "entropy": curve,
        "expected_entropy": curve,
        "mutual_information": 0 * curve,
        "accuracy": curve,
    }
    run = changed(small_runs["moons"], over_time={"MAP": curves})
    with charts.styled():
        (chart,) = charts.PARTS["Uncertainty over time"](run)
    assert expected in chart.caption
    assert ("gets less sure" in chart.caption) == ("rises" in expected)


def test_only_an_ensemble_has_mutual_information(drawn, small_runs):
    (run,) = read(small_runs["moons"])
    parts, figures = drawn(charts.PARTS["Uncertainty over time"], run)
    for name, areas in {"MAP": 1, "ensemble of 3": 2}.items():
        title = f"Entropy and accuracy, {name}"
        assert any("mutual information" in series for series in parts[title].legend) == (areas == 2)
        assert len(figures[title].axes[0].collections) == areas
        assert len(parts[title].legend) == areas + 1
