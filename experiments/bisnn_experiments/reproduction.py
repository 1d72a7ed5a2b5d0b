"""The paper's experiments: Figure 1 (1-D regression), Figure 2 (two moons) and the table. They are
runs, one results.json, and drawings from it.

Two recipes. `paper`: its network, data, T and number of epochs, the plain rules with relaxed
samples, one sample and one update per mini-batch, the loss summed over t; it gives no learning
rate, temperature, tau, threshold or batch size, so those are ours. `tuned`: the best we know, much
shorter. Each run is a run folder of its own, so the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bisnn.checks import choice
from bisnn.data.toy import CLUSTERS, X_RANGE
from bisnn.errors import Interrupted
from bisnn.files import read_bytes
from bisnn.metrics import CALIBRATION
from bisnn.prediction import Classification
from bisnn.runs import config as configs
from bisnn.runs import evaluation, model, training
from bisnn.runs.config import Config
from bisnn.runs.folder import RunFolder
from bisnn.runs.inputs import load_dataset
from bisnn.shipping import energy
from bisnn_experiments import drawing, recognition, workers
from bisnn_experiments.measurement import processor
from bisnn_experiments.results import write

if TYPE_CHECKING:
    from rich.table import Table

GRID = 50  # points per side of the confidence map over the unit square
HEADERS = {
    "training_seconds": "seconds",
    "memory_bytes": "weight\nbytes",
    "synaptic_operations": "synaptic\nops",
    "nll": "NLL",
    "ece": "ECE",
}
# What the table leaves out
HIDDEN = (
    *("method", "predictor", "seeds", "epochs"),
    *("balanced_accuracy", "brier", "confidence", CALIBRATION),
)
FAR = 0.1  # share of the square, farthest from all training points, that "far from the data" means


Task = tuple[Config, Path, bool, bool]  # the arguments of `measure`


@dataclass(frozen=True)
class Entry:
    """A method of a figure: a config that comes with the package, and what is changed in it."""

    label: str
    config: str
    changes: dict[str, Any] = field(default_factory=dict)

    def name(self) -> str:
        """The name of its run folders, before the seed."""
        changes = (f"{key.rpartition('.')[2]}{value:g}" for key, value in self.changes.items())
        return "_".join([self.config, *changes])


def _temperatures(config: str, *values: float) -> list[Entry]:
    return [
        Entry(f"Bayes-BiSNN, rho = {value:g}", config, {"rule.temperature": value})
        for value in values
    ]


FIGURES = {
    "fig1": {
        "tuned": [Entry("ST-BiSNN", "one_d_st"), Entry("Bayes-BiSNN", "one_d_bayes")],
        "paper": [Entry("ST-BiSNN", "one_d_st_paper"), Entry("Bayes-BiSNN", "one_d_bayes_paper")],
    },
    "fig2": {
        "tuned": [
            Entry("ST-BiSNN", "two_moons_st"),
            *_temperatures("two_moons_bayes", 1e-7, 0.03, 3.0),
        ],
        "paper": [
            Entry("ST-BiSNN", "two_moons_st_paper"),
            *_temperatures("two_moons_bayes_paper", 1e-7, 0.05, 3.0),
        ],
    },
}


def reproduce(
    figures: Sequence[str] = ("fig1", "fig2"),
    recipe: str = "tuned",
    *,
    seeds: Iterable[int] = range(5),
    out: str | Path | None = None,
    jobs: int | None = None,
    train: bool = True,
    show: bool = True,
    data: str | Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Train, measure and draw; returns what `results.json` in `out` then holds.

    Args:
        figures: of "fig1", "fig2", "table1".
        recipe: "tuned" or "paper".
        seeds: one run per method and seed.
        out: folder for the runs, `results.json` and one picture per figure, by default `out/` and
            the recipe. Finished runs in it are taken as they are.
        jobs: runs at a time, by default one per core, or one on a GPU; each gets its share of the
            cores.
        train: False measures the runs that are there as they are, also interrupted ones (the rows
            say how many epochs they had).
        show: progress bars.
        data: "table1" only, the folder of its recordings: see `recognition.experiment`.
        device: "table1" only, "cpu" or "cuda"; by default a GPU if there is one.
    """
    seeds = list(seeds)
    _check(figures, recipe, seeds, train, data, device)
    out = Path(out or Path("out") / recipe)
    device = device or ("cuda" if "table1" in figures and torch.cuda.is_available() else "cpu")
    cores = _cores()
    jobs = jobs or (cores if device == "cpu" else 1)
    began = time.monotonic()
    methods = _methods(figures, recipe, data, device)
    plan = _plan(methods, seeds, out, max(1, cores // jobs), train)
    _build_caches(methods, show)
    resumed = any(run.folder.exists() for run in plan)
    results = _earlier(out / "results.json")
    measured = run_all([run.task for run in plan], jobs, show)
    about = {
        "recipe": recipe,
        "command": _command(),
        "machine": f"{_gpu(device)}{cores} cores of {processor()}, {jobs} runs at a time",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        # Of the whole command
        "wall_seconds": None if resumed else round(time.monotonic() - began, 1),
        "seeds": seeds,
    }
    for name in methods:
        runs = [(run, m) for run, m in zip(plan, measured, strict=True) if run.figure == name]
        results["figures"][name] = about | _figure(runs)
        if name.startswith("table1"):
            differences = recognition.differences([run.folder for run, _ in runs], show)
            results["figures"][name]["differences"] = differences
    write(out / "results.json", results)
    for name in methods:
        drawing.FIGURES[name.partition("_")[0]](results["figures"][name], out / f"{name}.png")
    return results


def _check(
    figures: Sequence[str],
    recipe: str,
    seeds: Sequence[int],
    train: bool,
    data: str | Path | None,
    device: str | None,
) -> None:
    for name in figures:
        choice("figures", name, (*FIGURES, "table1"))
    if "table1" not in figures and (data is not None or device is not None):
        raise ValueError("data, device: are for table1 alone; leave them out")
    choice("recipe", recipe, ("tuned", "paper"))
    if device is not None:
        choice("device", device, ("cpu", "cuda"))
    if device == "cuda" and train and not torch.cuda.is_available():
        raise ValueError("device: PyTorch finds no GPU here; got 'cuda'; use 'cpu'")
    if not seeds:
        raise ValueError("seeds: needs at least one; got none; give e.g. range(5)")


class Method(NamedTuple):
    """A method of a figure, ready to run."""

    label: str
    run: str  # name of its run folders, before the seed
    config: Config


class Planned(NamedTuple):
    """A run of a method with one seed."""

    figure: str
    label: str
    seed: int
    task: Task

    @property
    def folder(self) -> Path:
        return self.task[1]


def _methods(
    figures: Sequence[str], recipe: str, data: str | Path | None, device: str
) -> dict[str, list[Method]]:
    """The methods of each figure, which is named with its data if it is the table."""
    methods: dict[str, list[Method]] = {}
    for name in figures:
        if name == "table1":
            kind, chosen = recognition.experiment(data, recipe)
            methods[f"table1_{kind}"] = [
                Method(
                    label,
                    f"{kind}_{recognition.METHODS[label]}_{recipe}",
                    config.updated(**{"train.device": device}),
                )
                for label, config in chosen.items()
            ]
        else:
            methods[name] = [
                Method(e.label, e.name(), configs.load(e.config).updated(**e.changes))
                for e in FIGURES[name][recipe]
            ]
    return methods


def _plan(
    methods: dict[str, list[Method]], seeds: Sequence[int], out: Path, threads: int, train: bool
) -> list[Planned]:
    plan = []
    for figure in methods:
        for label, run, config in methods[figure]:
            for seed in seeds:
                settings = config.updated(seed=seed, **{"train.threads": threads})
                folder = out / "runs" / f"{run}_seed{seed}"
                task = (settings, folder, seed == seeds[0], train)
                plan.append(Planned(figure, label, seed, task))
    return plan


def _build_caches(methods: dict[str, list[Method]], show: bool) -> None:
    """Load the data before the workers start: a cache is built once, with one bar."""
    every = [method.config for of_figure in methods.values() for method in of_figure]
    for config in {config.data.model_dump_json(): config for config in every}.values():
        load_dataset(config, show)


def _figure(runs: list[tuple[Planned, dict[str, Any]]]) -> dict[str, Any]:
    """What the runs of a figure measured: all rows with their summary, and what is drawn."""
    rows = [{"method": run.label, "seed": run.seed, **row} for run, m in runs for row in m["rows"]]
    return {
        "summary": summary(rows),
        "rows": rows,
        "panels": [{"method": run.label, **panel} for run, m in runs for panel in m["panels"]],
        "training_points": next((m["points"] for _, m in runs if m["points"]), None),
    }


def _command() -> str:
    program = "bisnn" if sys.argv[0].endswith("__main__.py") else Path(sys.argv[0]).name
    return " ".join([program, *sys.argv[1:]])


def _earlier(file: Path) -> dict[str, Any]:
    """The results so far: figures that are not made again stay."""
    if not file.exists():
        return {"figures": {}}
    try:
        results = json.loads(read_bytes(file))
    except (ValueError, RecursionError):
        results = None
    if not isinstance(results, dict) or not isinstance(results.get("figures"), dict):
        raise ValueError(f"{file}: is damaged; remove it or give another --out")
    return results


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpu(device: str) -> str:
    there = device == "cuda" and torch.cuda.is_available()
    return f"{torch.cuda.get_device_name()}, " if there else ""


# Runs, several at a time


def run_all(tasks: list[Task], jobs: int, show: bool) -> list[dict[str, Any]]:
    """`measure` for each task, in worker processes; the bar follows the runs' metrics files."""
    return workers.run_all(
        measure, tasks, jobs, show, length=lambda task: task[0].train.epochs, progress=_progress
    )


def _progress(task: Task) -> float:
    config, folder = task[:2]
    try:
        epochs = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0.0
    return 0.9 * min(1.0, epochs / config.train.epochs)


def measure(config: Config, folder: Path, picture: bool, train: bool) -> dict[str, Any]:
    """Train (or go on, or take what is there), evaluate, and measure what the figure shows."""
    global _stopping
    if _stopping is not None:
        raise _stopping  # the pool hands a worker its next task even after a signal
    torch.set_num_threads(config.train.threads)
    try:
        _ensure_trained(config, folder, train)
    except Interrupted as stop:
        _stopping = stop
        raise
    try:
        evaluation.load_evaluation(folder)
    except ValueError:  # none yet, or of another model
        evaluation.evaluate(folder, show=False)
    if config.recorded:
        return {"rows": recognition.rows(folder), "panels": [], "points": None}
    return (_fig1 if config.task == "regression" else _fig2)(config, folder, picture)


_stopping: Interrupted | None = None  # in a worker process that got a signal


def _ensure_trained(config: Config, folder: Path, train: bool) -> None:
    run = RunFolder(folder)
    if train and not run.config_file.exists():
        training.train(config, folder, show=False)
        return
    changed = configs.differences(run.read_config(), config)
    if not train:  # what is there is measured wherever one is
        changed = [key for key in changed if key != "train.device"]
    if changed == ["train.device"]:
        raise ValueError(
            f"{folder}: was trained on {run.read_config().train.device!r}; "
            "go on with that --device, or give another --out"
        )
    if changed:
        raise ValueError(
            f"{folder}: was trained with another {', '.join(changed)}; "
            "remove it or give another --out"
        )
    if train:
        training.resume(folder, show=False)


def _fig1(config: Config, folder: Path, picture: bool) -> dict[str, Any]:
    """The error against the noiseless function and the deviation over the members, inside the
    clusters and in the gaps between them.
    """
    judged = evaluation.load_evaluation(folder)
    x, y = judged.x, judged.y
    inside = in_clusters(x[:, 0])
    rows, panels = [], []
    for name, result in judged.predictors.items():
        error = (result.mean - y).square()[:, 0]
        std = result.std[:, 0]
        row = judged.row(name)
        for where, part in (("inside", inside), ("gaps", ~inside)):
            row[f"rmse_{where}"] = float(error[part].mean().sqrt())
            row[f"deviation_{where}"] = float(std[part].mean())
        row["deviation_ratio"] = _ratio(row)
        rows.append(row)
        if picture:
            panels.append({"predictor": name, "mean": _list(result.mean), "std": _list(result.std)})
    points = load_dataset(config).train
    assert isinstance(points.x, Tensor)
    about = (
        {"x": _list(points.x), "y": _list(points.y), "test_x": _list(x), "test_y": _list(y)}
        if picture
        else None
    )
    return {"rows": rows, "panels": panels, "points": about}


def _ratio(row: dict[str, Any]) -> float | None:
    """The members' deviation in the gaps over that in the clusters; None for one network."""
    return row["deviation_gaps"] / row["deviation_inside"] if row["deviation_inside"] else None


def in_clusters(x: Tensor) -> Tensor:
    """Whether x, rescaled to [0, 1], lies in a cluster of the 1-D task's training points."""
    raw = X_RANGE[0] + (X_RANGE[1] - X_RANGE[0]) * x.double()
    # The ends count, also of a float32 x.
    return torch.stack([(raw >= a - 1e-5) & (raw <= b + 1e-5) for a, b in CLUSTERS]).any(0)


def _fig2(config: Config, folder: Path, picture: bool) -> dict[str, Any]:
    """Test metrics, and the mean confidence on the part of the unit square that lies farthest from
    all training points.
    """
    judged = evaluation.load_evaluation(folder)
    trained = model.load(folder)
    train = load_dataset(config).train
    assert isinstance(train.x, Tensor)
    points = grid()
    far = farthest(points, train.x)
    rows, panels = [], []
    for name, members in evaluation.predictors(trained).items():
        result = trained.predict_points(points if picture else points[far], members)
        assert isinstance(result, Classification)
        confidence = result.mean.max(-1).values
        row = judged.row(name) | judged.numbers(name)
        row["confidence"] = float(judged.predictors[name].mean.max(-1).values.mean())
        row["far_confidence"] = float((confidence[far] if picture else confidence).mean())
        rows.append(row)
        if picture:
            panels.append({"predictor": name, "p1": _list(result.mean[:, 1])})
    about = {"x": _list(train.x), "y": train.y.tolist()} if picture else None
    return {"rows": rows, "panels": panels, "points": about}


def grid() -> Tensor:
    """GRID x GRID points over the unit square, row by row, (GRID^2, 2)."""
    return evaluation.unit_grid(GRID)


def farthest(points: Tensor, train: Tensor) -> Tensor:
    """Indices of the share FAR of the points whose nearest training point is farthest away."""
    return torch.cdist(points, train).min(1).values.topk(round(FAR * len(points))).indices


def _list(x: Tensor) -> list[Any]:
    """The numbers rounded to five digits: a drawing shows no more."""
    if x.ndim > 1 and x.shape[-1] > 1:
        return [[round(v, 5) for v in row] for row in x.tolist()]
    return [round(v, 5) for v in x.flatten().tolist()]


# Summaries


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation of every number over the seeds, in a row for each method and
    predictor.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["predictor"]), []).append(row)
    result = []
    for (method, predictor), group in groups.items():
        numbers = [name for name in group[0] if name not in ("method", "predictor", "seed")]
        values = {
            name: [row[name] for row in group]
            for name in numbers
            if all(row[name] is not None for row in group)
        }
        spread = lambda v: statistics.stdev(v) if len(v) > 1 else 0.0  # noqa: E731
        means = {
            name: {"mean": statistics.fmean(v), "std": spread(v)} for name, v in values.items()
        }
        result.append({"method": method, "predictor": predictor, "seeds": len(group), **means})
    return result


def table(figure: dict[str, Any]) -> Table:
    """The summary as a table for the terminal."""
    from rich.table import Table

    first = figure["summary"][0]
    numbers = [name for name in first if name not in HIDDEN]
    grid = Table("method", *(HEADERS.get(name, name.replace("_", " ")) for name in numbers))
    over = "mean and deviation over seeds" if len(figure["seeds"]) > 1 else "seed"
    grid.title = f"recipe {figure['recipe']}, {over} {', '.join(map(str, figure['seeds']))}"
    for row in figure["summary"]:
        grid.add_row(
            f"{row['method']}\n{row['predictor']}",
            *(_cell(row.get(name), row["seeds"]) for name in numbers),
        )
    return grid


def _cell(value: dict[str, float] | None, seeds: int) -> str:
    if value is None:
        return "-"
    return _short(value["mean"]) + (f"\n± {_short(value['std'])}" if seeds > 1 else "")


def _short(value: float) -> str:
    """Small numbers with three decimals, large ones with one, larger ones with an SI prefix."""
    if value >= 1000:
        return energy.si(value, "")
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
