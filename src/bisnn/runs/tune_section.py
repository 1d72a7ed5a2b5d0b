"""What a config may say about the search for its settings, `bisnn tune`. Training ignores it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from bisnn.runs.section import Finite, Section

EXAMPLE = '{ low = 0.01, high = 1.0, log = true }, [0.1, 0.3], or "keep"'


class Range(Section):
    """Numbers from `low` to `high`: whole ones where both ends are written as such."""

    low: int | Finite
    high: int | Finite
    log: bool = False  # whether factors count, not differences

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


Choices = list[Any]
Kept = Literal["keep"]  # the config's own value, not searched


class Tune(Section):
    # Few synaptic operations as a second objective: a front of settings in place of one winner
    operations: bool = False
    # Of the training points, to judge trials on, where data.validation is 0
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.2
    # By dotted key, on top of the space that comes with the rule
    space: dict[str, Range | Choices | Kept] = {}

    @field_validator("space", mode="before")
    @classmethod
    def _readable(cls, given: Any) -> Any:
        """Each entry must be of one of the three kinds: told here in one line each, not in three
        by pydantic.
        """
        if not isinstance(given, dict):
            raise ValueError(f"must be a table of ranges by key; got {given!r}; write [tune.space]")
        for key, entry in given.items():
            fault = _fault(entry)
            if fault:
                raise ValueError(f'"{key}" {fault}; got {entry!r}; give e.g. {EXAMPLE}')
        return given


def _fault(entry: Any) -> str:
    """What is wrong with a range, choices, or "keep"; nothing where all is well."""
    if isinstance(entry, list):
        return "" if len(entry) > 1 else "must have two choices or more"
    if not isinstance(entry, dict):
        return "" if entry == "keep" else 'must be a range, a list of choices, or "keep"'
    if not {"low", "high"} <= entry.keys() <= {"low", "high", "log"}:
        return "must have low, high and perhaps log, and nothing else"
    low, high, log = entry["low"], entry["high"], entry.get("log", False)
    numbers = all(type(end) in (int, float) and math.isfinite(end) for end in (low, high))
    if not numbers or not isinstance(log, bool):
        return "must have finite numbers as low and high, and true or false as log"
    if not low < high:
        return "must have its low below its high"
    return "must have its low above 0 where log = true" if log and low <= 0 else ""
