"""A page to look at: one self-contained HTML file from the files of one or several runs. Trains
nothing, loads no network.

Text from files goes into the page only through jinja2, which escapes it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import torch

import bisnn
from bisnn import metrics
from bisnn.display import bars, note
from bisnn.files import write_atomic
from bisnn.intervals import Interval
from bisnn.reporting import charts
from bisnn.reporting.charts import TITLES, Part, Run
from bisnn.runs import microcontrollers
from bisnn.runs.config import Config, differences
from bisnn.runs.evaluation import load_evaluation
from bisnn.runs.folder import RunFolder
from bisnn.runs.guarantee import digest_beside
from bisnn.runs.results import Metrics, Slices
from bisnn.runs.robustness import load_robustness
from bisnn.shipping.energy import ANN, HYPOTHETICAL, si

FEWEST = 10  # test points from which on a row may be called best
HIGHER_IS_BETTER = {
    "accuracy": True,
    "balanced_accuracy": True,
    "nll": False,
    "brier": False,
    "calibration_error": False,
    "rmse": False,
    "mae": False,
}
PERCENT = ("accuracy", "balanced_accuracy")
Parts = dict[str, list[Part]]  # of a run's section, by heading
# Test recordings shown, at most, and of these, that all predictors get right
PICTURES = 9
RIGHT = 3


def report(
    folders: Sequence[str | Path], out: str | Path | None = None, *, show: bool = True
) -> Path:
    """Write one HTML page about one or several evaluated runs and return its path. The same files
    give the same bytes.

    Args:
        folders: run folders, each with what `bisnn.runs.evaluation.evaluate` wrote.
        out: the file; by default `report.html` in the run's folder, for several runs in the current
            one.
        show: a progress bar while the charts are drawn.
    """
    return write_report(folders, out, show=show).path


class Written(NamedTuple):
    """A report, and a line on the run that decides most."""

    path: Path
    decisions: str


def draw_parts(folder: str | Path) -> Parts:
    """What a report draws of a run alone, by heading."""
    with charts.styled():
        (run,) = _read([folder])
        return {title: draw(run) for title, draw in charts.PARTS.items()}


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    show: bool = True,
    drawn: Sequence[Parts] = (),
) -> Written:
    """As `report`; returns also what there is to say of decisions. `drawn` has what `draw_parts`
    returned of each folder, where that was done elsewhere.
    """
    if isinstance(folders, (str, Path)) or not folders:
        raise ValueError(
            f"folders: must be a list of one run folder or more; got {folders!r}; "
            "give e.g. [folder]"
        )
    path = _checked_path(folders, out)
    runs = _read(folders)
    shared = _recordings(runs)
    sections = []
    with charts.styled(), bars(show=show) as progress:
        alone = 0 if drawn else len(runs) * len(charts.PARTS)
        bar = progress.add_task("charts", total=1 + len(shared) + alone)
        verdicts = _verdicts(runs)
        progress.advance(bar)
        recordings = []
        for group in shared:
            recordings.append(_disputed(group))
            progress.advance(bar)
        for i, run in enumerate(runs):
            parts = dict(drawn[i]) if drawn else {}
            for title, draw in charts.PARTS.items():
                if title not in parts:
                    parts[title] = draw(run)
                    progress.advance(bar)
            sections.append({"run": run, "facts": _facts(run), "parts": parts})
    number = itertools.count(1).__next__
    content = {"verdicts": verdicts, "recordings": recordings, "sections": sections}
    page = template("report.html").render(**content, number=number, version=bisnn.__version__)
    try:
        write_atomic(path, page.encode())
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}; the report was not written: give another file with out",
            str(path),
        ) from None
    return Written(path, _decisions(runs))


def _decisions(runs: Sequence[Run]) -> str:
    """One line on the first run that decides, of those with few bits per weight if there are any:
    how many, how early, and what was guaranteed; empty where no run decides.
    """
    for run in sorted(runs, key=lambda run: run.config.rule.real_weights()):
        if run.judged.decisions is not None:
            kept = run.judged.guarantee
            doubt = f"; but {kept.doubt()}" if kept is not None and kept.doubt() else ""
            return f"{run.label}: {run.judged.decisions.sentence(run.things)}{doubt}"
    return ""


def _checked_path(folders: Sequence[str | Path], out: str | Path | None) -> Path:
    """The file to write: `out`, or report.html in the only run's folder or in the current one."""
    path = Path("report.html")
    if out is not None:
        path = Path(out)
    elif len(folders) == 1:
        path = RunFolder(folders[0]).report_file
    if path.is_dir():
        raise ValueError(
            f"{path}: is a folder; give the name of a file, e.g. {path / 'report.html'}"
        )
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{path}: the report is an HTML page; give a name that ends in .html")
    if out is not None and not path.parent.is_dir():
        raise ValueError(
            f"{path}: there is no folder {path.parent}; make it first, or give another file"
        )
    return path


def _read(folders: Sequence[str | Path]) -> list[Run]:
    # First: says best what is wrong with a folder
    judged = [load_evaluation(folder) for folder in folders]
    names = [Path(folder).resolve().name for folder in folders]
    labels = [
        name if names.count(name) == 1 else str(folder)
        for name, folder in zip(names, folders, strict=True)
    ]
    files = [RunFolder(folder) for folder in folders]
    for file, found in zip(files, judged, strict=True):
        if found.calibration_file != digest_beside(file.model_file):
            note(
                f"{file.path}: its calibration has changed since it was evaluated, and the report "
                f"has the earlier one; judge it with: bisnn evaluate {file.path}"
            )
    return [
        Run(
            label,
            f.read_config(),
            f.read_metrics(),
            j,
            microcontrollers.load(f.path),
            load_robustness(f, j.model, j.temperature),
        )
        for label, f, j in zip(labels, files, judged, strict=True)
    ]


def template(name: str) -> jinja2.Template:
    """A page of this package."""
    source = lambda name: (resources.files("bisnn.reporting") / name).read_text(encoding="utf-8")  # noqa: E731
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "asdict": asdict,
        "number": _number,
        "duration": _duration,
        "size": _size,
        "si": si,
    }
    environment.globals |= {"ANN": ANN, "HYPOTHETICAL": HYPOTHETICAL, "chips": charts.chips}
    return environment.get_template(name)


# The verdict


def _verdicts(runs: list[Run]) -> list[dict[str, Any]]:
    """One table for each task and source of points: runs on others do not compare."""
    groups: dict[tuple[str, ...], list[tuple[int, Run]]] = {}
    for number, run in enumerate(runs, 1):
        key = (run.judged.task, *run.config.data.source())
        groups.setdefault(key, []).append((number, run))
    return [_verdict(group) for group in groups.values()]


def _verdict(group: list[tuple[int, Run]]) -> dict[str, Any]:
    first = group[0][1].judged
    rows = [
        (number, run, predictor, values)
        for number, run in group
        for predictor, values in run.judged.metrics.items()
    ]
    names = list(dict.fromkeys(name for *_, values in rows for name in values))
    scales = {
        name: _scale([values[name] for *_, values in rows if name in values]) for name in names
    }
    compared = [run for _, run in group]
    same = all(
        torch.equal(run.judged.x, first.x) and torch.equal(run.judged.y, first.y)
        for run in compared
    )
    same = same and len({run.judged.recordings for _, run in group}) == 1
    best = {
        name: _best(name, [(run, predictor) for _, run, predictor, _ in rows], same)
        for name in names
    }
    table = []
    for place, (number, run, predictor, values) in enumerate(rows):
        cells = [_cell(name, values.get(name), scales[name], best[name] == place) for name in names]
        table.append({"number": number, "run": run, "predictor": predictor, "cells": cells})
    score = "accuracy" if first.task == "classification" else "rmse"
    top = (max if HIGHER_IS_BETTER[score] else min)(rows, key=lambda row: row[3][score].value)
    return {
        "data": group[0][1].config.data.title(),
        "task": first.task,
        "points": sorted({run.judged.points for _, run in group}),
        "same": same,
        "lead": _lead(score, len(rows), best[score]),
        "headline": f"{top[1].label}, {top[2]}, {_headline(top[1].judged.points, top[3])}",
        "names": [(TITLES.get(name, name.capitalize()), _arrow(name)) for name in names],
        "rows": table,
        "baselines": _baselines(compared, names),
        "runs": compared,
        "settings": _differing(compared),
        "learning": charts.overlay(compared) if len(group) > 1 else [],
    }


def _baselines(runs: list[Run], names: list[str]) -> list[dict[str, Any]]:
    """What predicts without a look at the points; runs that share their points share it."""
    found: list[dict[str, Any]] = []
    for run in runs:
        for name, values in run.judged.baseline.items():
            same = [row for row in found if row["values"] == values]
            if not same:
                found.append({"name": name, "values": values, "runs": []})
            (same or found)[-1]["runs"].append(run.label)
    for row in found:
        row["cells"] = [
            row["values"].get(name)
            and {**row["values"][name]._asdict(), "percent": name in PERCENT}
            for name in names
        ]
    return found


def _differing(runs: list[Run]) -> dict[str, list[str]]:
    """The settings in which the runs differ, by dotted key: each run's value, as in TOML."""
    first, *others = (run.config for run in runs)
    keys = dict.fromkeys(key for other in others for key in differences(first, other))
    return {key: [_setting(run.config, key) for run in runs] for key in keys}


def _setting(config: Config, key: str) -> str:
    value: Any = config.model_dump()
    for part in key.split("."):
        value = value.get(part)
    if value is None:  # another rule's, say
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


def _headline(points: int, values: Metrics) -> str:
    if "accuracy" in values:
        return (
            f"is right on {round(values['accuracy'].value * points):,} of {points:,} test points."
        )
    return (
        f"is off by {_number(values['rmse'].value)} (root mean square) on {points:,} test points."
    )


def _arrow(name: str) -> str:
    return {True: "higher is better", False: "lower is better", None: ""}[
        HIGHER_IS_BETTER.get(name)
    ]


def _lead(score: str, rows: int, best: int | None) -> str:
    """How the verdict's sentence begins."""
    if rows == 1:
        return ""
    if best is not None:
        return "Best: "
    return f"None is best beyond chance; {'highest' if HIGHER_IS_BETTER[score] else 'lowest'}: "


def _best(name: str, rows: list[tuple[Run, str]], same: bool) -> int | None:
    """The row that is better than every other beyond chance; None where there is none, or no better
    and worse.

    On the same test points the others are compared with it point by point, at 5 % for all of them
    together; on different points its interval must not meet theirs.
    """
    values = {
        i: run.judged.metrics[p][name]
        for i, (run, p) in enumerate(rows)
        if name in run.judged.metrics[p]
    }
    if (
        name not in HIGHER_IS_BETTER
        or len(values) < 2
        or min(len(run.judged.y) for run, _ in rows) < FEWEST
    ):
        return None
    sign = 1 if HIGHER_IS_BETTER[name] else -1
    best = max(values, key=lambda i: sign * values[i].value)
    level = 1 - 0.05 / (len(values) - 1)
    for other in values.keys() - {best}:
        if same:
            (run, predictor), (rival, by) = rows[best], rows[other]
            mine = run.judged.predictors[predictor].mean
            theirs = rival.judged.predictors[by].mean
            found = metrics.paired(name, [mine], [theirs], run.judged.y, level=level)
            beyond = min(sign * found.low, sign * found.high) > 0
        else:
            low, high = (best, other) if sign < 0 else (other, best)
            beyond = values[low].high < values[high].low
        if not beyond:
            return None
    return best


def _scale(intervals: list[Interval]) -> tuple[float, float]:
    low, high = min(i.low for i in intervals), max(i.high for i in intervals)
    return low, max(high - low, 1e-12)


def _cell(
    name: str, interval: Interval | None, scale: tuple[float, float], best: bool
) -> dict[str, Any] | None:
    """Numbers of a metric and where its interval lies on the column's common scale, in percent."""
    if interval is None:
        return None
    at = {
        end: round(100 * (min(max(value, scale[0]), sum(scale)) - scale[0]) / scale[1], 2)
        for end, value in interval._asdict().items()
    }
    return {**interval._asdict(), "percent": name in PERCENT, "best": best, "at": at}


def _number(value: float, percent: bool = False) -> str:
    if percent:
        return f"{100 * value:.1f}"
    if 100 <= abs(value) < 1e9:
        return f"{value:,.1f}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 100 else f"{value:.3g}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    if count < 2**20:
        return f"{count / 1024:.1f} KiB"
    return f"{count / 2**20:.1f} MiB"


def _facts(run: Run) -> list[tuple[str, str]]:
    config, judged = run.config, run.judged
    facts = [
        ("rule", config.rule.title()),
        ("data", config.data.title()),
        (
            "layers",
            " → ".join(
                [
                    *(f"conv {c.channels}" for c in config.network.conv),
                    *(f"{'recurrent ' * d.recurrent}{d.neurons}" for d in config.network.layers),
                ]
            ),
        ),
        ("time steps", str(config.steps)),
        ("model", f"epoch {judged.epoch} of {config.train.epochs}"),
        ("training", _duration(judged.seconds)),
        ("test points", f"{judged.points:,}"),
        ("seed", str(config.seed)),
    ]
    return [*facts, ("classes", ", ".join(judged.classes))] if judged.classes else facts


# Recordings


def _recordings(runs: list[Run]) -> list[list[tuple[int, Run]]]:
    """Runs that have recordings to draw, by number, grouped by the recordings they share."""
    groups: dict[tuple[Any, ...], list[tuple[int, Run]]] = {}
    for number, run in enumerate(runs, 1):
        judged = run.judged
        if isinstance(judged.raster.input, Slices):
            tested_on = (judged.recordings, *judged.raster.input.edges_us, *judged.classes)
            groups.setdefault(tested_on, []).append((number, run))
    return list(groups.values())


def _disputed(group: list[tuple[int, Run]]) -> dict[str, Any]:
    """Recordings that these runs were tested on, the most disputed first, with the answers."""
    # The first run that keeps a recording, and its place there
    kept: dict[int, tuple[Run, int]] = {}
    for _, run in group:
        for i, point in enumerate(run.judged.raster.points.tolist()):
            kept.setdefault(point, (run, i))
    answers = {point: _answers(group, point) for point in kept}
    order = sorted(answers, key=lambda point: sum(row["right"] for row in answers[point]))
    disputed = [point for point in order if not all(row["right"] for row in answers[point])]
    right = [point for point in order if point not in disputed][:RIGHT]
    shown = disputed[: PICTURES - len(right)] + right
    return {
        "runs": group,
        "seen": [(charts.events(*kept[point]), answers[point]) for point in shown],
    }


def _answers(group: list[tuple[int, Run]], point: int) -> list[dict[str, Any]]:
    answers = []
    for number, run in group:
        for predictor, result in run.judged.predictors.items():
            confidence, top = result.mean[point].max(-1)
            right = bool(top == run.judged.y[point])
            verdict = {
                "name": run.judged.classes[top],
                "confidence": float(confidence),
                "right": right,
            }
            answers.append({"number": number, "run": run, "predictor": predictor, **verdict})
    return answers
