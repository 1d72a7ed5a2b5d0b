"""A study: where its trials are kept, which of them count, and what becomes of a dead worker's.

By default a study is one file, an Optuna journal: lines that are only ever added, by several
processes at once, so that a kill costs the last one at most, and no database library; SQLite needs
two, and its locks fail on network drives. One command at a time works on a file, and a lock
says so: trials that run when nobody holds it are of workers that died. A URL is a database, on
which any number of commands work at once: there a heartbeat tells.

A trial that was cut short comes back as a new one with the same parameters. Trials that ended,
with a result or pruned, are those that count.
"""

from __future__ import annotations

import contextlib
import os
import time
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from bisnn.errors import Stopped
from bisnn.runs.config import Config, differences, parse
from bisnn.tuning import space as spaces
from bisnn.tuning.space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

HEARTBEAT, SILENCE = 15, 90  # seconds between two of them, and until a worker counts as dead
RETRIES = 2  # of a trial whose worker died: it may be what kills them
FILE = "study.journal"
WORKER = "worker"  # attribute of a trial: who runs it


def optuna() -> Any:
    """Optuna, or a ValueError that says how to get it."""
    try:
        import optuna
    except ImportError:
        raise ValueError(
            "optuna: must be installed for this; got none; run `pip install 'bisnn[tune]'`"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Optuna calls some of what is used here experimental; its users need not hear of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class JournalLock:
    """Lets one process at a time write a journal. The system frees it when its holder dies, and
    the next one cuts off what that has left unfinished; Optuna's own locks are files, which stay
    behind.
    """

    def __init__(self, path: Path):
        self.path, self.lock = path, FileLock(path.with_name(".journal.lock"))

    def acquire(self) -> bool:
        self.lock.acquire()
        with open(self.path, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read() not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self.lock.release()


@dataclass(frozen=True)
class Place:
    """Where a study is kept: a file in `folder`, or under a name in the database at `url`."""

    folder: Path
    name: str
    url: str | None = None

    def __str__(self) -> str:
        return f"study {self.name!r} in the database" if self.url else str(self.folder / FILE)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Be the only command that works on a file; a database takes any number."""
        if self.url is not None:
            yield
            return
        lock = FileLock(self.folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(
                f"{self}: another process is working on this study; wait for it, give another "
                "--out, or let both work on a database with --storage"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def storage(self) -> BaseStorage:
        found = optuna()
        if self.url is None:
            from optuna.storages.journal import JournalFileBackend

            path = self.folder / FILE
            backend = JournalFileBackend(str(path), JournalLock(path))  # type: ignore[arg-type]
            return found.storages.JournalStorage(backend)
        try:
            try:
                return self._database(found)
            except Exception:  # another machine may be making the same tables at this moment
                time.sleep(1)
                return self._database(found)
        except ImportError as error:
            raise ValueError(
                f"--storage: must be a database whose driver is installed; got {_shown(self.url)} "
                f"({error}); run `pip install 'bisnn[tune]'`"
            ) from None
        except Exception as error:  # SQLAlchemy's and the driver's have no common base
            reason = str(error).strip().splitlines()[0]
            raise ValueError(
                f"--storage: must be a database that answers; got {_shown(self.url)} ({reason}); "
                "give e.g. postgresql://user@host/database"
            ) from None

    def _database(self, found: Any) -> BaseStorage:
        with _no_warnings():
            return found.storages.RDBStorage(
                _with_driver(self.url or ""),
                engine_kwargs={"pool_pre_ping": True},
                heartbeat_interval=HEARTBEAT,
                grace_period=SILENCE,
                heartbeat_stale_trial_callback=found.storages.RetryHeartbeatStaleTrialCallback(
                    RETRIES
                ),
            )


def _with_driver(url: str) -> str:
    """PostgreSQL by the driver that the extra brings, unless the URL names one."""
    scheme, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgresql", "postgres") else url


def _shown(url: str) -> str:
    """A URL without its password."""
    scheme, _, rest = url.partition("://")
    who, at, where = rest.rpartition("@")
    return f"{scheme}://{who.partition(':')[0]}{at}{where}"


@contextlib.contextmanager
def answering(place: Place) -> Iterator[None]:
    """Say in a line that the database is gone, where it is."""
    try:
        yield
    except optuna().exceptions.StorageInternalError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise Stopped(
            f"{place}: no longer answers ({reason}); see that its server runs; the same command "
            "goes on"
        ) from None


# The study


def begin(place: Place, config: Config, space: Space, data: str) -> Study:
    """Open a study, or begin it; a ValueError where it was begun with other settings or data.

    Args:
        place: where it is kept.
        config: whose settings are searched.
        space: what is searched.
        data: digest of the points.
    """
    found = optuna()
    directions = ["minimize"] * (2 if config.tune and config.tune.operations else 1)
    try:
        study = found.create_study(
            storage=place.storage(),
            study_name=place.name,
            directions=directions,
            load_if_exists=True,
        )
    except (KeyError, ValueError) as error:
        if place.url is not None:
            raise
        raise ValueError(
            f"{place}: is damaged or no journal of a study ({error}); remove it, or give another "
            "--out"
        ) from None
    if "config" not in study.user_attrs:
        study.set_user_attr("space", spaces.to_text(space))
        study.set_user_attr("data", data)
        # Last: another worker that finds it finds the others too
        study.set_user_attr("config", config.to_toml())
    _check_unchanged(place, study.user_attrs, config, space, data)
    return study


def _check_unchanged(
    place: Place, known: dict[str, Any], config: Config, space: Space, data: str
) -> None:
    # Machines keep the same files at different places, and simulate recordings a little otherwise
    paths = [f"data.{name}" for name in config.data.paths]
    changed = [key for key in differences(config_of(known), config) if key not in paths]
    if not changed and spaces.from_text(known["space"]) != space:
        changed = ["the space that comes with bisnn"]
    may_differ = config.data.complaint(place) is None
    if not changed and not may_differ and known.get("data") not in (None, data):
        changed = ["the data"]
    if changed:
        way = "--name" if place.url else "--out"
        raise ValueError(
            f"{place}: must go on with what it was begun with; got another in "
            f"{', '.join(changed)}; change it back, or begin a new study with another {way}"
        )


def config_of(attributes: dict[str, Any]) -> Config:
    """The config that a study was begun with."""
    return parse(tomllib.loads(attributes["config"]), "the study's config")


def finished(study: Study) -> list[FrozenTrial]:
    """The trials that count: with a result, or pruned."""
    state = optuna().trial.TrialState
    return study.get_trials(deepcopy=False, states=(state.COMPLETE, state.PRUNED))


def completed(study: Study) -> list[FrozenTrial]:
    """The trials with a result."""
    return study.get_trials(deepcopy=False, states=(optuna().trial.TrialState.COMPLETE,))


def may_begin(study: Study, trials: int) -> bool:
    """Whether one more trial may begin: those that count or run are fewer than asked for."""
    return len(_counted(study)) < trials


def rank(study: Study, number: int) -> int:
    """How many of the trials that count or run began before a trial; one whose rank is not below
    the number of trials asked for is one too many: two workers saw the same place free.
    """
    return sum(trial.number < number for trial in _counted(study))


def _counted(study: Study) -> list[FrozenTrial]:
    state = optuna().trial.TrialState
    return study.get_trials(deepcopy=False, states=(state.COMPLETE, state.PRUNED, state.RUNNING))


def retry_stale(study: Study) -> None:
    """Let the trials of workers whose heartbeat has stopped wait to be run again."""
    with _no_warnings():
        optuna().storages.fail_stale_trials(study)


def retry_running(study: Study, worker: str | None = None) -> None:
    """Let the trials that a dead worker was at, or all dead workers, wait to be run again."""
    found = optuna()
    state = found.trial.TrialState
    for trial in study.get_trials(deepcopy=False, states=(state.RUNNING,)):
        if worker is None or trial.user_attrs.get(WORKER) == worker:
            # Where another process was quicker, the retry is its own, too
            with contextlib.suppress(ValueError, found.exceptions.UpdateFinishedTrialError):
                study.tell(trial.number, state=state.FAIL)
                put_back(study, trial, RETRIES)


def put_back(study: Study, trial: FrozenTrial, most: int | None = None) -> None:
    """Let a trial that was cut short wait to be run again, at most so many times."""
    with _no_warnings():
        optuna().storages.RetryHeartbeatStaleTrialCallback(most)(study, trial)


def best(study: Study) -> list[FrozenTrial]:
    """The trials that no other beats, the lowest loss first; one, where there is one objective."""
    front = study.best_trials if completed(study) else []
    ordered = sorted(front, key=lambda trial: (trial.values[0], trial.number))
    return ordered if len(study.directions) > 1 else ordered[:1]


def importance(study: Study) -> dict[str, float]:
    """How much of the difference in loss each setting explains, the largest share first; empty
    where the trials are too few, or all alike.
    """
    trials = completed(study)
    if len({trial.values[0] for trial in trials}) < 2:
        return {}
    with _no_warnings():
        found = optuna().importance.get_param_importances(
            study, target=lambda trial: trial.values[0]
        )
    return {key: float(share) for key, share in found.items()}
