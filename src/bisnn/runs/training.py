"""Training runs: from a config to a run folder, over any number of processes, resumable."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bisnn import kernels
from bisnn.data.dataset import Dataset
from bisnn.data.loading import LoadedData
from bisnn.data.series import Series
from bisnn.display import RunDisplay
from bisnn.runs.config import Config
from bisnn.runs.folder import RunFolder
from bisnn.runs.inputs import given_section, located
from bisnn.runs.loop import Training
from bisnn.runs.memory import keep_freed
from bisnn.runs.model import Model, load
from bisnn.runs.monitoring import (
    advice_on_a_full_disk,
)
from bisnn.runs.processes import Processes

MEMBERS = "members"  # folder, in that of a run, of the runs of its networks


@dataclass(frozen=True)
class TrainedRun:
    """A run folder, and what training it had in memory."""

    folder: Path
    model: Model
    data: LoadedData


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    data: Dataset | Series | None = None,
    show: bool = True,
) -> Path:
    """Train a config into a new run folder and return it.

    Args:
        config: from `bisnn.config.load`.
        out: the folder; by default `runs/` and the names of data, rule and seed. With
            `train.members` above 1 its folder `members` has a run for each network, and its model
            is all of them.
        data: arrays, tensors or datasets in place of the config's data, or series in place of
            those of a config of series; the share held out for validation stays the config's.
        show: a progress bar with loss, accuracy, firing rates, flip rate and time left.
    """
    return train_run(config, out, data=data, show=show).folder


def train_run(
    config: Config,
    out: str | Path | None = None,
    *,
    data: Dataset | Series | None = None,
    show: bool = True,
) -> TrainedRun:
    """As `train`; returns also the model and the data."""
    _check_config(config)
    if data is not None:
        config = config.updated(data=given_section(config, data))
    kinds = (name.replace(":", "_") for name in (config.data.name, config.rule.name))
    folder = RunFolder(out or Path("runs") / f"{'_'.join(kinds)}_seed{config.seed}")
    if config.train.members > 1:
        return _run_members(folder, config, True, show, data=data)
    return _run(folder, config, True, show, data=data)


def _check_config(config: object) -> None:
    """A ValueError that names what to call where arrays are given as they are."""
    if not isinstance(config, Config):
        raise ValueError(
            "config: must be a Config, as bisnn.config.load gives it; got a "
            f"{type(config).__name__}; for a table X and y call "
            "bisnn.sklearn.BiSNNClassifier().fit(X, y) or BiSNNRegressor().fit(X, y), and with "
            "other settings bisnn.train(config, data=bisnn.data.Dataset((X, y), (test_X, test_y)))"
        )


def resume(
    folder: str | Path,
    overrides: Sequence[str] = (),
    *,
    data: Dataset | Series | str | Path | None = None,
    show: bool = True,
) -> Path:
    """Go on with a run that was interrupted or killed; a finished one stays as it is, unless it
    gets more epochs.

    Args:
        folder: of the run.
        overrides: "section.key=value" of what may change on the way (`config.CHANGEABLE`); the
            run's config is changed with it.
        data: of a run whose data were given from Python, the same again; of a dataset that has
            moved, the file or folder where it lies now, which the run's config then says.
        show: as in `train`.
    """
    return resume_run(folder, overrides, data=data, show=show).folder


def resume_run(
    folder: str | Path,
    overrides: Sequence[str] = (),
    *,
    data: Dataset | Series | str | Path | None = None,
    show: bool = True,
) -> TrainedRun:
    """As `resume`; returns also the model and the data."""
    run = RunFolder(folder)
    config = run.read_config(overrides)
    if config.train.members > 1:
        return _run_members(run, config, False, show, overrides, data)
    return _run(run, config, False, show, overrides, data)


def _run_members(
    folder: RunFolder,
    config: Config,
    fresh: bool,
    show: bool,
    overrides: Sequence[str] = (),
    data: Dataset | Series | str | Path | None = None,
) -> TrainedRun:
    """Train several networks one after the other, each a run of its own in the folder `members`, or
    go on with them; and put them together.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "train.members: networks are trained one by one by a single process; got torchrun; "
            "leave it out, or train.members"
        )
    if fresh:
        folder.check_new()
        folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        if fresh:
            folder.create(config)
        elif overrides or isinstance(data, (str, Path)):
            folder.write_config(located(config, data))
        runs = []
        for k in range(config.train.members):
            member = RunFolder(folder.path / MEMBERS / str(k))
            if member.config_file.exists():
                own = member.read_config(overrides)
                runs.append(_run(member, own, False, show, overrides, data))
            else:
                own = config.updated(**{"train.members": 1, "train.member": k})
                runs.append(_run(member, own, True, show, data=data))
        model = _together([run.model for run in runs])
        model.save(folder.model_file)
    return TrainedRun(folder.path, model, runs[0].data)


def _together(models: Sequence[Model]) -> Model:
    """One model of networks that differ in their weights alone."""
    first = models[0]
    weights = [
        of
        for model in models
        for of in (tuple(p.detach().cpu() for p in model.net.parameters()), *model.others)
    ]
    config = first.config.updated(**{"train.members": len(models)})
    return replace(first, config=config, others=tuple(weights[1:]))


def _run(
    folder: RunFolder,
    config: Config,
    fresh: bool,
    show: bool,
    overrides: Sequence[str] = (),
    data: Dataset | Series | str | Path | None = None,
) -> TrainedRun:
    """Train from the start, or what lies in the folder from its last checkpoint; its config is then
    read from there.
    """
    asked = located(_with_threads(config), data)
    given = None if isinstance(data, (str, Path)) else data
    keep_freed()
    with Processes.joined(asked.train.device) as processes, contextlib.ExitStack() as stack:
        config = processes.first(lambda: asked)
        stack.enter_context(threads(config.train.threads))
        stack.enter_context(kernels.precision(config.train.precision))
        # Before anything is written: bad data leaves no folder behind
        training = Training(config, processes, show, given)
        config = training.config
        state, notes = processes.first(lambda: _begin(folder, training, fresh, stack))
        display = stack.enter_context(RunDisplay(config.train.epochs, show, processes.rank == 0))
        for note in notes:
            display.say(note)
        if state is not None:
            training.load(state, folder)
            if state["processes"] != processes.count:
                display.say(
                    f"the run had {state['processes']} processes and has {processes.count} now: "
                    "its bits will differ"
                )
        if overrides or given is not data:
            processes.first(lambda: folder.write_config(config))
        if processes.first(folder.model_file.exists) and (
            state is None or (training.finished and not overrides)
        ):
            if display.show:
                display.say(f"{folder}: has ended already")
            model = load(folder.path) if state is None else training.trained_model()
        else:
            display.begin(training.epochs_done)
            with advice_on_a_full_disk(folder):
                model = training.fit(folder, display)
    return TrainedRun(folder.path, model, training.data)


def _begin(
    folder: RunFolder, training: Training, fresh: bool, stack: contextlib.ExitStack
) -> tuple[dict[str, Any] | None, list[str]]:
    """Make a new run folder, or open one to go on with: its checkpoint, and what to say."""
    if not fresh or folder.begun_by_this_launch(training.config):
        stack.enter_context(folder.locked())
        state, notes = folder.load_state(training.fits)
        if state is not None or not folder.model_file.exists():
            folder.cut_metrics(state["rows"] if state else 0)
        return state, notes
    folder.check_new()
    folder.path.mkdir(parents=True, exist_ok=True)
    stack.enter_context(folder.locked())
    folder.create(training.config)
    return None, []


def _with_threads(config: Config) -> Config:
    """The config with the number of threads that 0 stands for."""
    return config.updated(**{"train.threads": config.train.threads or torch.get_num_threads()})


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch, and our kernels, use so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
