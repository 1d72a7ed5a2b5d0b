"""One trial: train with the settings that Optuna suggests, judge on the validation points."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from bisnn import kernels
from bisnn.errors import Stopped
from bisnn.runs import defaults
from bisnn.runs.config import Config
from bisnn.runs.evaluation import energy, predictors
from bisnn.runs.labels import labels_that_count
from bisnn.runs.loop import Training
from bisnn.runs.processes import Processes
from bisnn.runs.tune_section import Tune
from bisnn.tuning import study as studies
from bisnn.tuning.space import Space, suggested, with_settings

if TYPE_CHECKING:
    from optuna import Trial

LOOKS = 10  # at the validation points, while a trial trains: what pruning goes by
STARTUP = 10  # trials that are drawn at random before TPE has something to go by
UNPRUNED = 5  # trials that are trained to the end before one may be pruned
WHY = "why"  # attribute of a trial: why it was pruned


class Surplus(Exception):
    """A trial too many has begun."""


class CutShort(Exception):
    """The search is over before the trial of this number is."""

    def __init__(self, number: int):
        self.number = number


def judged_config(config: Config) -> Config:
    """The config as trials train it: points are held out, and looked at on the way.

    >>> from bisnn.runs.config import load
    >>> judged_config(load("digits_bayes")).data.validation
    0.2
    """
    changes: dict[str, Any] = {}
    if not config.data.validation:
        changes["data.validation"] = (config.tune or Tune()).validation
    if config.train.keep == "last" and not config.train.patience:
        changes["train.validate_every"] = max(1, (config.train.epochs or LOOKS) // LOOKS)
    return config.updated(**changes)


@dataclass(frozen=True)
class Objective:
    """What Optuna minimises: the loss on the validation points, and perhaps the operations of an
    inference.
    """

    config: Config
    space: Space
    trials: int  # asked for, in all
    worker: str  # name of this process
    threads: int
    go_on: Callable[[], bool]

    def __call__(self, trial: Trial) -> float | tuple[float, float]:
        rank = studies.rank(trial.study, trial.number)
        if rank >= self.trials:
            raise Surplus
        trial.set_user_attr(studies.WORKER, self.worker)
        trial.study.sampler = sampler(self.config.seed, rank)
        settings = suggested(trial, self.space)
        began = time.monotonic()
        try:
            config = judged_config(with_settings(self.config, settings))
            config = config.updated(**{"train.threads": self.threads})
            with kernels.precision(config.train.precision):
                loss, operations = self._judged(trial, config)
        except ValueError as error:  # settings that do not fit each other
            _prune(trial, str(error).removeprefix("config.updated: "))
        except Stopped as error:
            _prune(trial, str(error))
        trial.set_user_attr("seconds", round(time.monotonic() - began, 1))
        return (loss, operations) if len(trial.study.directions) > 1 else loss

    def _judged(self, trial: Trial, config: Config) -> tuple[float, float]:
        """The loss of the trained model on the validation points, and the synaptic operations of
        one of its inferences.
        """
        with Processes.joined(config.train.device) as processes:
            run = Training(config, processes, show=False)
            assert run.data.validation is not None
            for row in run.epochs(self.go_on):
                if "validation" in row and len(trial.study.directions) == 1:
                    _report(trial, row["epoch"], row["validation"]["loss"])
        if not run.finished:
            raise CutShort(trial.number)
        model = run.trained_model()
        x, y = run.data.validation
        mean = model.predict_labelled(x, model.members).mean.cpu()
        found = run.quality(mean, labels_that_count(run.config, x, y))
        if not math.isfinite(found["loss"]):
            _prune(trial, f"the validation loss is {found['loss']}")
        usual = list(predictors(model))[-1]
        operations = energy(model, x).rows[usual].synaptic_operations
        for name, value in {**found, "operations": operations}.items():
            trial.set_user_attr(name, value)
        return found["loss"], operations


def sampler(seed: int, rank: int) -> Any:
    """TPE for one trial. Seeded by the trial's rank: what it draws depends on the trials before it
    and not on who runs it, so a search by one worker goes on as if it had not been stopped.
    """
    return studies.optuna().samplers.TPESampler(
        n_startup_trials=STARTUP, seed=(seed * 1_000_003 + rank) % 2**32
    )


def pruner(config: Config) -> Any:
    """Stops a trial whose best loss so far is above the median of the others at its epoch."""
    return studies.optuna().pruners.MedianPruner(
        n_startup_trials=UNPRUNED, n_warmup_steps=(config.train.epochs or defaults.LEAST) // 4
    )


def _report(trial: Trial, epoch: int, loss: float) -> None:
    trial.report(loss, epoch)
    if trial.should_prune():
        _prune(trial, "the loss was above the median of the trials before it")


def _prune(trial: Trial, why: str) -> NoReturn:
    trial.set_user_attr(WHY, why)
    raise studies.optuna().TrialPruned(why)
