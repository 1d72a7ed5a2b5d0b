"""Data and rules of the user's own: given from Python, or named `module:name` in a config.

A name makes bisnn import a module, which runs its code. That happens where a run is trained,
resumed or evaluated, and a line says so. Loading a model, predicting and exporting import nothing:
what they need to know of the data and the rule is recorded in the run's config when training
begins.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from bisnn.display import note
from bisnn.runs.data_sections import DataSection, Task
from bisnn.runs.rule_sections import RuleSection
from bisnn.runs.section import Count, Section

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from bisnn.data.loading import LoadedData
    from bisnn.data.windows import Window

PYTHON = "python"  # data.name of data given from Python
OPEN = ConfigDict(extra="allow", frozen=True, strict=True)  # options of the user's own


def imported(key: str, name: str) -> Any:
    """What `module:name` names; modules in the current folder count."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    if module not in sys.modules:
        note(f"{key}: imports {module}, which runs its code")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever a module of the user's does
        raise ValueError(
            f"{key}: the module {module!r} cannot be imported ({type(error).__name__}: {error}); "
            f"install it, or run bisnn in the folder of {module}.py"
        ) from error
    if not hasattr(found, attribute):
        raise ValueError(
            f"{key}: the module {module!r} has no {attribute!r}; got {name!r}; give module:name"
        )
    return getattr(found, attribute)


def arguments(
    key: str,
    function: Callable[..., Any],
    options: dict[str, Any],
    seed: int,
    ours: Collection[str] = (),
) -> dict[str, Any]:
    """The options of a section as arguments of a function, checked.

    `ours` are given beside them, and a function that takes a seed gets the run's.
    """
    try:
        taken = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some functions written in C
        return options
    names = [name for name in taken if name not in ours]
    if "seed" in names:
        options = {"seed": seed, **options}
    for name in options:
        if name not in names and all(p.kind != p.VAR_KEYWORD for p in taken.values()):
            raise ValueError(
                f"{key}.{name}: unknown key; {function.__name__} takes {', '.join(names)}"
            )
    for name in names:
        parameter = taken[name]
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in options:
            raise ValueError(f"{key}.{name}: is missing; add it: {function.__name__} needs it")
    return options


class EventWindow(Section):
    """The fields of `bisnn.data.Window`."""

    size: Annotated[list[Count], Field(min_length=2, max_length=2)]
    steps: Count
    bin_us: Count | None = None
    start_us: int | None = None
    crop: Annotated[list[int], Field(min_length=4, max_length=4)] | None = None
    pool: Count = 1
    channels: Literal[1, 2] = 2
    least: Count = 1
    per_step: Count | None = None


class DataRecord(Section):
    """What a model must know of data of the user's own."""

    task: Task
    shape: list[Count] = []  # (T, ...) of a recording's spikes; empty for points
    window: EventWindow | None = None  # that events were seen through


class OwnData(DataSection):
    """Data given from Python, or by a function `module:name`, with options, of the user's."""

    model_config = OPEN
    name: Annotated[str, Field(pattern=r"^(python|[\w.]+:\w+)$")]
    recorded: DataRecord | None = None  # when training begins

    @classmethod
    def takes_defaults_of_points(cls, settings: dict[str, Any]) -> bool:
        recorded = settings.get("recorded")
        return not (isinstance(recorded, dict) and recorded.get("shape"))

    def predicts(self) -> Task:
        return self.recorded.task if self.recorded else "classification"

    def steps_recorded(self) -> int | None:
        return self.recorded.shape[0] if self.recorded and self.recorded.shape else None

    def step_us(self) -> int | None:
        window = self.recorded and self.recorded.window
        return window.bin_us if window else None

    def shape_recorded(self) -> tuple[int, ...]:
        return tuple(self.recorded.shape[1:]) if self.recorded else ()

    def window(self) -> Window:
        from bisnn.data.windows import Window

        window = self.recorded and self.recorded.window
        if not window:
            raise ValueError(
                "recordings: this model was trained on spikes, and knows no way from events to "
                "them; "
                "use predict_spikes"
            )
        settings = window.model_dump()
        settings["size"] = tuple(settings["size"])
        settings["crop"] = settings["crop"] and tuple(settings["crop"])
        return Window(**settings)

    def load(self, seed: int, device: str, show: bool) -> LoadedData:
        from bisnn.data.dataset import Dataset

        if self.name == PYTHON:
            raise ValueError(
                "data: the data of this run were given from Python and are in no file; give them "
                "again, from Python: data=bisnn.data.Dataset(...)"
            )
        function = imported("data.name", self.name)
        options = arguments("data", function, self.model_extra or {}, seed)
        made = function(**options)
        if not isinstance(made, Dataset):
            raise ValueError(
                f"data.name: {self.name} must return a bisnn.data.Dataset; got a "
                f"{type(made).__name__}; return Dataset(train, test)"
            )
        return made.load(self.validation, seed)

    def described(self, loaded: LoadedData) -> OwnData:
        from bisnn.data.dataset import SpikeTrains
        from bisnn.data.loading import Clips

        about: dict[str, Any] = {"task": "classification" if loaded.classes else "regression"}
        if isinstance(loaded.train.x, Clips):
            trains = loaded.train.x.recordings
            assert isinstance(trains, SpikeTrains)
            about["shape"] = list(trains.spikes.shape[1:])
            if trains.window is not None:
                seen = asdict(trains.window)
                seen["size"], seen["crop"] = list(seen["size"]), seen["crop"] and list(seen["crop"])
                about["window"] = EventWindow(**seen)
        return self.model_copy(update={"recorded": DataRecord(**about)})

    def complaint(self, run: object) -> str | None:
        return f"data: {self.name} is not what {run} began with: give the same data again"


class RuleRecord(Section):
    """What a model must know of a rule of the user's own."""

    posterior: bool
    real_weights: bool


class OwnRule(RuleSection):
    """A rule `module:Class` of the user's, with the options of its constructor.

    Or an optimizer, such as `torch.optim:AdamW`, which trains real weights.
    """

    model_config = OPEN
    name: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    recorded: RuleRecord | None = None  # when training begins

    def title(self) -> str:
        return self.name.partition(":")[2]

    def posterior(self) -> bool | None:
        return self.recorded.posterior if self.recorded else None

    def real_weights(self) -> bool:
        return bool(self.recorded and self.recorded.real_weights)

    def hard_weights(self) -> bool:
        return not self.real_weights()  # a layer that needs them says so where samples are relaxed

    def described(self) -> OwnRule:
        from bisnn.optimizer import Rule

        kind = self._class()
        binary = issubclass(kind, Rule)
        record = RuleRecord(posterior=binary and kind.has_posterior, real_weights=not binary)
        return self.model_copy(update={"recorded": record})

    def build(self, params: list[Tensor], seed: int, steps_per_epoch: int) -> Optimizer:
        kind = self._class()
        options = {"lr": self.lr, **(self.model_extra or {})}
        return kind(params, **arguments("rule", kind, options, seed, ours=("params",)))

    def _class(self) -> Any:
        from torch.optim import Optimizer

        kind = imported("rule.name", self.name)
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            raise ValueError(
                f"rule.name: {self.name} must be a class of optimizers, such as a subclass of "
                f"bisnn.rules.Rule; got {kind!r}"
            )
        return kind
