"""The search: worker processes that run trials, watched by one that shows how far they are."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import platform
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bisnn.bits.threads import cores
from bisnn.checks import number, positive_int
from bisnn.display import bars
from bisnn.errors import Interrupted, Stopped
from bisnn.files import write_atomic
from bisnn.reporting.charts.tuning import Searched, SearchedTrial
from bisnn.reporting.tuning import write_page
from bisnn.runs.config import Config
from bisnn.runs.inputs import load_dataset
from bisnn.runs.memory import keep_freed
from bisnn.runs.monitoring import signals
from bisnn.tuning import study as studies
from bisnn.tuning.space import Space, search_space, values_of, with_settings
from bisnn.tuning.study import Place
from bisnn.tuning.trials import WHY, CutShort, Objective, Surplus, judged_config, pruner

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

PAUSE = 0.5  # seconds between two looks at the workers
DEATHS = 3  # of workers, beyond which a command gives up, unless trials end meanwhile


@dataclass(frozen=True)
class Tuned:
    """What a search found."""

    best: Config  #: settings of the lowest validation loss
    value: float  #: that loss
    finished: int  #: trials that ended
    pruned: int  #: of these, without a result
    files: list[Path]  #: configs that `bisnn train` takes: the best, and the others of a front
    page: Path  #: the HTML page of the search


def tune(
    config: Config,
    out: str | Path | None = None,
    *,
    trials: int = 50,
    minutes: float | None = None,
    jobs: int = 1,
    storage: str | None = None,
    name: str | None = None,
    show: bool = True,
) -> Tuned:
    """Search for settings that predict validation points better. Called again, it goes on.

    Workers are processes that import the calling script again: call this under
    `if __name__ == "__main__":`.

    Args:
        config: what is not searched, and the data; `config.tune` changes what is.
        out: folder of the study's file, the best config and a page; by default `tuned/` and the
            names of data and rule.
        trials: in all, those of earlier calls included.
        minutes: of this call, at most; what is under way then waits for the next.
        jobs: trials at a time.
        storage: URL of a database, such as postgresql://user@host/database, that several machines
            work on; by default a file in `out`.
        name: of the study in the database; by default that of `out`.
        show: a progress bar.
    """
    positive_int("trials", trials)
    positive_int("jobs", jobs)
    if minutes is not None:
        number("minutes", minutes, above=0)
    kinds = "_".join(kind.replace(":", "_") for kind in (config.data.name, config.rule.name))
    folder = Path(out or Path("tuned") / kinds)
    place = Place(folder, name or folder.resolve().name, storage)
    studies.optuna()
    if "WORLD_SIZE" in os.environ:
        raise ValueError(
            "torchrun: must not start a search, which has processes of its own; got WORLD_SIZE = "
            f"{os.environ['WORLD_SIZE']}; use --jobs"
        )
    space = search_space(config)
    # Before anything is written: a bad config or bad data leave no folder behind
    data = load_dataset(judged_config(config), show)
    folder.mkdir(parents=True, exist_ok=True)
    with place.claimed():
        study = studies.begin(place, config, space, data.digest())
        if storage is None:
            studies.retry_running(study)  # nobody else works on a file
        if len(studies.finished(study)) < trials:
            with studies.answering(place):
                _Search(place, config, space, trials, jobs, minutes).run(study, show)
        return _results(study, config, space, folder)


@dataclass
class _Search:
    """The workers of one call."""

    place: Place
    config: Config
    space: Space
    trials: int
    jobs: int
    minutes: float | None
    workers: dict[str, tuple[Any, Connection]] = field(default_factory=dict)
    deaths: int = 0

    def run(self, study: Study, show: bool) -> None:
        """Until all trials have ended, or the time is over; Ctrl-C and SIGTERM stop the workers,
        and their trials wait for the next call.
        """
        deadline = None if self.minutes is None else time.time() + 60 * self.minutes
        before = len(studies.finished(study))
        with bars(show=show, transient=False) as shown, signals() as caught:
            bar = shown.add_task("", total=self.trials, completed=before)
            try:
                for _ in range(min(self.jobs, self.trials - before)):
                    self._start(deadline)
                while self.workers and not caught[0]:
                    time.sleep(PAUSE)
                    done = len(studies.finished(study))
                    self._look_after_workers(study, deadline, done - before)
                    shown.update(bar, completed=done, description=self._text(study, done))
            finally:
                self._stop()
        if caught[0]:
            done = len(studies.finished(study))
            raise Interrupted(
                f"stopped after {done} of {self.trials} trials; the same command goes on",
                caught[0],
            )

    def _start(self, deadline: float | None) -> None:
        context = multiprocessing.get_context("spawn")  # threads do not survive a fork
        ours, theirs = context.Pipe(duplex=False)
        name = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
        threads = self.config.train.threads or max(1, cores() // self.jobs)
        objective = (self.config, self.space, self.trials, name, threads)
        process = context.Process(
            target=_work, args=(self.place, deadline, os.getpid(), theirs, objective)
        )
        with _ctrl_c_ignored():
            process.start()
        theirs.close()
        self.workers[name] = (process, ours)

    def _look_after_workers(self, study: Study, deadline: float | None, ended: int) -> None:
        """Raise what went wrong in a worker; start another in the place of one that was killed."""
        for name, (process, connection) in list(self.workers.items()):
            if process.is_alive():
                continue
            del self.workers[name]
            error = _received(connection)
            if error is not None:
                raise error
            if process.exitcode == 0:
                continue
            self.deaths += 1
            studies.retry_running(study, name)
            if self.deaths > DEATHS + ended:
                raise Stopped(
                    f"{self.place}: {self.deaths} workers were killed; out of memory? Lower "
                    "--jobs, or train.batch_size; the same command goes on"
                )
            self._start(deadline)

    def _text(self, study: Study, done: int) -> str:
        found = studies.best(study)
        best = f", best {found[0].values[0]:.4g}" if found else ""
        return f"{done} of {self.trials} trials{best}"

    def _stop(self) -> None:
        """Tell the workers that are left to stop, and wait for them."""
        for process, _ in self.workers.values():
            process.terminate()
        for process, _ in self.workers.values():
            process.join()


def _received(connection: Connection) -> Exception | None:
    try:
        return connection.recv() if connection.poll() else None
    except EOFError:
        return None


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """A terminal sends Ctrl-C to all processes: this one tells its workers to stop."""
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread may
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(
    place: Place,
    deadline: float | None,
    parent: int,
    connection: Connection,
    objective: tuple[Config, Space, int, str, int],
) -> None:
    """A worker process: `run_trials`, or the error that ended it."""
    with signals() as caught:

        def go_on() -> bool:
            in_time = deadline is None or time.time() < deadline
            return in_time and not caught[0] and os.getppid() == parent

        try:
            run_trials(place, Objective(*objective, go_on))
        except Exception as error:
            try:
                connection.send(error)
            except (pickle.PicklingError, TypeError):
                connection.send(RuntimeError(repr(error)))


def run_trials(place: Place, objective: Objective) -> None:
    """Run trials until as many as asked for have ended, or the objective may not go on."""
    optuna = studies.optuna()
    torch.set_num_threads(objective.threads)
    keep_freed()
    study = optuna.load_study(
        study_name=place.name, storage=place.storage(), pruner=pruner(objective.config)
    )
    while objective.go_on() and len(studies.finished(study)) < objective.trials:
        studies.retry_stale(study)
        if not studies.may_begin(study, objective.trials):
            time.sleep(PAUSE)  # the last ones are with others, and may come back
            continue
        try:
            study.optimize(objective, n_trials=1)
        except Surplus:
            continue
        except CutShort as cut:
            studies.put_back(study, study.trials[cut.number])


def _results(study: Study, config: Config, space: Space, folder: Path) -> Tuned:
    """Write the best configs and the page."""
    ended = len(studies.finished(study))
    front = studies.best(study)
    if not front:
        reasons = [t.user_attrs[WHY] for t in studies.finished(study) if WHY in t.user_attrs]
        why = f"; the last was pruned: {reasons[-1]}" if reasons else ""
        raise Stopped(
            f"{folder}: none of the {ended} trials so far has a result{why}; give more --trials or "
            "--minutes, or another tune.space"
        )
    for earlier in folder.glob("front_*.toml"):
        earlier.unlink()
    files = []
    for place, trial in enumerate(front):
        path = folder / ("best.toml" if place == 0 else f"front_{place:02d}.toml")
        write_atomic(path, _toml(trial, ended, config, space).encode())
        files.append(path)
    best = tuned_config(front[0], config, space)
    found = _searched(study, config, space)
    page = write_page(folder / "tuning.html", study.study_name, found, best)
    return Tuned(best, front[0].values[0], ended, ended - len(found.trials), files, page)


def _searched(study: Study, config: Config, space: Space) -> Searched:
    """What the page shows."""
    names = ("loss", "operations", "accuracy", "seconds")
    trials = [
        SearchedTrial(
            number=trial.number,
            settings=values_of(trial.params, space),
            **{name: trial.user_attrs[name] for name in names if name in trial.user_attrs},
        )
        for trial in sorted(studies.completed(study), key=lambda trial: trial.values[0])
    ]
    pruned = [t.user_attrs[WHY] for t in studies.finished(study) if WHY in t.user_attrs]
    unit = "NLL in nats" if config.task == "classification" else "squared error"
    return Searched(unit, space, trials, pruned, studies.importance(study))


def tuned_config(trial: FrozenTrial, config: Config, space: Space) -> Config:
    """The config with a trial's settings, as `bisnn train` takes it."""
    found = with_settings(config, values_of(trial.params, space))
    return found.model_copy(update={"tune": None})


def _toml(trial: FrozenTrial, ended: int, config: Config, space: Space) -> str:
    loss = "NLL" if config.task == "classification" else "squared error"
    operations = trial.user_attrs["operations"]
    return (
        f"# Trial {trial.number}, found by `bisnn tune` among {ended}: {loss} "
        f"{trial.values[0]:.4g} on validation points,\n# {operations:,.0f} synaptic operations "
        f"per inference. Searched: {', '.join(space)}.\n"
        f"{tuned_config(trial, config, space).to_toml()}"
    )
