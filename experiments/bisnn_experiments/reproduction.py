"""The paper's experiments: Figure 1 (1-D regression), Figure 2 (two moons) and the table. They are
runs, one results.json, and drawings from it.

Two recipes. `paper`: its network, data, T and number of epochs, the plain rules with relaxed
samples, one sample and one update per mini-batch, the loss summed over t; it gives no learning
rate, temperature, tau, threshold or batch size, so those are ours. `tuned`: the best we know, much
shorter. Each run is a run folder of its own, so the same command goes on where it stopped.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bisnn.bits.threads import cores
from bisnn.checks import choice
from bisnn.data.toy import CLUSTERS, X_RANGE
from bisnn.errors import Interrupted
from bisnn.prediction import Classification
from bisnn.runs import config as configs
from bisnn.runs import evaluation, model, training
from bisnn.runs.config import Config
from bisnn.runs.folder import RunFolder
from bisnn.runs.inputs import load_dataset
from bisnn.runs.results import Evaluation
from bisnn_experiments import compilation, drawing, recognition, workers
from bisnn_experiments.measurement import commit, processor
from bisnn_experiments.results import (
    FigureResults,
    Figures,
    Origin,
    Panel,
    Points,
    Row,
    Summary,
    Versions,
    read,
    summarise,
    write,
)

GRID = 50  # points per side of the confidence map over the unit square
FAR = 0.1  # share of the square, farthest from all training points, that "far from the data" means


class Task(NamedTuple):
    """The arguments of `measure`: a run of a method with one seed."""

    method: str
    config: Config
    folder: Path
    picture: bool = False
    train: bool = True


class Measured(NamedTuple):
    """What a run measured, and, if asked for, what is drawn of it."""

    rows: list[Row]
    panels: list[Panel]
    points: Points | None


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
) -> Figures:
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
    there = cores()
    jobs = jobs or (there if device == "cpu" else 1)
    began = time.monotonic()
    methods = _methods(figures, recipe, data, device)
    plan = {
        name: _plan(of_figure, seeds, out / "runs", max(1, there // jobs), train)
        for name, of_figure in methods.items()
    }
    tasks = [task for of_figure in plan.values() for task in of_figure]
    resumed = any(task.folder.exists() for task in tasks)
    file = out / "results.json"
    earlier = read(file, Figures).figures if file.exists() else {}
    measured = iter(run_all(tasks, jobs, show, meanwhile=partial(_build_caches, methods, show)))
    origin = Origin(
        recipe=recipe,
        command=_command(),
        machine=f"{_gpu(device)}{there} cores of {processor()}, {jobs} runs at a time",
        versions=Versions(
            torch=torch.__version__,
            python=platform.python_version(),
            commit=commit(Path(__file__).parent),
        ),
        wall_seconds=None if resumed else round(time.monotonic() - began, 1),
        seeds=seeds,
    )
    made = {
        name: _figure(origin, of_figure, [next(measured) for _ in of_figure], show)
        for name, of_figure in plan.items()
    }
    results = Figures(figures=earlier | made)
    write(file, results)
    for name, figure in made.items():
        drawing.FIGURES[name.partition("_")[0]](figure, out / f"{name}.png")
    return results


def run_folders(
    figures: Sequence[str],
    recipe: str,
    seeds: Iterable[int],
    out: Path,
    data: str | Path | None = None,
) -> list[Path]:
    """Where `reproduce` keeps its runs."""
    methods = _methods(figures, recipe, data, "cpu")
    plans = [
        _plan(of_figure, list(seeds), out / "runs", 1, False) for of_figure in methods.values()
    ]
    return [task.folder for plan in plans for task in plan]


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
    methods: Sequence[Method], seeds: Sequence[int], runs: Path, threads: int, train: bool
) -> list[Task]:
    return [
        Task(
            label,
            config.updated(seed=seed, **{"train.threads": threads}),
            runs / f"{run}_seed{seed}",
            seed == seeds[0],
            train,
        )
        for label, run, config in methods
        for seed in seeds
    ]


def _build_caches(methods: dict[str, list[Method]], show: bool) -> None:
    """Load the data before the runs start: a cache is built once, with one bar, and on one core,
    since the workers compile meanwhile.
    """
    every = [method.config for of_figure in methods.values() for method in of_figure]
    with training.threads(1):
        for config in {config.data.model_dump_json(): config for config in every}.values():
            load_dataset(config, show)


def _figure(
    origin: Origin, tasks: Sequence[Task], measured: Sequence[Measured], show: bool
) -> FigureResults:
    """What the runs of a figure measured: all rows with their summary, and what is drawn."""
    rows = [row for run in measured for row in run.rows]
    found = FigureResults(
        **dict(origin),
        summary=summarise(rows, Summary),
        rows=rows,
        panels=[panel for run in measured for panel in run.panels],
        training_points=next((run.points for run in measured if run.points), None),
    )
    if not tasks[0].config.recorded:
        return found
    differences = recognition.differences([task.folder for task in tasks], show)
    return found.model_copy(update={"differences": differences})


def _command() -> str:
    program = "bisnn" if sys.argv[0].endswith("__main__.py") else Path(sys.argv[0]).name
    return " ".join([program, *sys.argv[1:]])


def _gpu(device: str) -> str:
    there = device == "cuda" and torch.cuda.is_available()
    return f"{torch.cuda.get_device_name()}, " if there else ""


# Runs, several at a time


def measure(
    method: str, config: Config, folder: Path, picture: bool = False, train: bool = True
) -> Measured:
    """Train (or go on, or take what is there), evaluate, and measure what the figure shows."""
    judged = ensure_judged(config, folder, train)
    if config.recorded:
        return Measured(recognition.rows(method, config.seed, judged), [], None)
    if config.task == "regression":
        return _fig1(method, config, judged, picture)
    return _fig2(method, config, judged, model.load(folder), picture)


def run_all(
    tasks: Sequence[Task],
    jobs: int,
    show: bool,
    function: Callable[..., Any] = measure,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Any]:
    """`function` of each task, in worker processes; the bar follows the runs' metrics files."""
    return workers.run_all(
        function,
        tasks,
        jobs,
        show,
        length=lambda task: task.config.train.epochs,
        progress=_progress,
        before=compilation.STAGES if tasks[0].config.train.device == "cpu" else (),
        meanwhile=meanwhile,
    )


def _progress(task: Task) -> float:
    try:
        epochs = (task.folder / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0.0
    return 0.9 * min(1.0, epochs / task.config.train.epochs)


def ensure_judged(config: Config, folder: Path, train: bool = True) -> Evaluation:
    """The evaluation of a run, which is trained and judged as far as it is not yet."""
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
        return evaluation.load_evaluation(folder)
    except ValueError:  # none yet, or of another model
        evaluation.evaluate(folder, show=False)
        return evaluation.load_evaluation(folder)


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


def _fig1(method: str, config: Config, judged: Evaluation, picture: bool) -> Measured:
    """The error against the noiseless function and the deviation over the members, inside the
    clusters and in the gaps between them.
    """
    x, y = judged.x, judged.y
    inside = in_clusters(x[:, 0])
    rows, panels = [], []
    for name, result in judged.predictors.items():
        error = (result.mean - y).square()[:, 0]
        std = result.std[:, 0]
        numbers: dict[str, float | None] = {}
        for where, part in (("inside", inside), ("gaps", ~inside)):
            numbers[f"rmse_{where}"] = float(error[part].mean().sqrt())
            numbers[f"deviation_{where}"] = float(std[part].mean())
        numbers["deviation_ratio"] = _ratio(std[~inside], std[inside])
        rows.append(Row.of(judged, name, method, config.seed, **numbers))
        drawn = {"mean": _list(result.mean), "std": _list(result.std)}
        panels.append(Panel(method=method, predictor=name, **drawn))
    if not picture:
        return Measured(rows, [], None)
    train = load_dataset(config).train
    assert isinstance(train.x, Tensor)
    test = {"test_x": _list(x), "test_y": _list(y)}
    return Measured(rows, panels, Points(x=_list(train.x), y=_list(train.y), **test))


def _ratio(gaps: Tensor, inside: Tensor) -> float | None:
    """The members' deviation in the gaps over that in the clusters; None for one network."""
    a, b = float(gaps.mean()), float(inside.mean())
    return a / b if b else None


def in_clusters(x: Tensor) -> Tensor:
    """Whether x, rescaled to [0, 1], lies in a cluster of the 1-D task's training points."""
    raw = X_RANGE[0] + (X_RANGE[1] - X_RANGE[0]) * x.double()
    # The ends count, also of a float32 x.
    return torch.stack([(raw >= a - 1e-5) & (raw <= b + 1e-5) for a, b in CLUSTERS]).any(0)


def _fig2(
    method: str, config: Config, judged: Evaluation, trained: model.Model, picture: bool
) -> Measured:
    """Test metrics, and the mean confidence on the part of the unit square that lies farthest from
    all training points.
    """
    train = load_dataset(config).train
    assert isinstance(train.x, Tensor)
    points = grid()
    far = farthest(points, train.x)
    rows, panels = [], []
    for name, members in evaluation.predictors(trained).items():
        result = trained.predict_points(points if picture else points[far], members)
        assert isinstance(result, Classification)
        confidence = result.mean.max(-1).values
        numbers = judged.numbers(name) | {
            "confidence": float(judged.predictors[name].mean.max(-1).values.mean()),
            "far_confidence": float((confidence[far] if picture else confidence).mean()),
        }
        rows.append(Row.of(judged, name, method, config.seed, **numbers))
        panels.append(Panel(method=method, predictor=name, p1=_list(result.mean[:, 1])))
    if not picture:
        return Measured(rows, [], None)
    return Measured(rows, panels, Points(x=_list(train.x), y=train.y.tolist()))


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
