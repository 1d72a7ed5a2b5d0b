"""Which sections the names of data and rules stand for."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from bisnn.runs.data_sections import (
    MNISTDVSData,
    NMNISTData,
    OneDData,
    SimulatedData,
    TableData,
    TonicData,
    TwoMoonsData,
)
from bisnn.runs.own import PYTHON, OwnData, OwnRule
from bisnn.runs.rule_sections import BayesRule, BopRule, FullRule, STRule


def tag_of(section: Any) -> str | None:
    """The kind of a section of data or rule: its name, or "own" for one of the user's own."""
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", None)
    own = isinstance(name, str) and (":" in name or name == PYTHON)
    return "own" if own else None if name is None else str(name)


AnyData = Annotated[
    Annotated[TwoMoonsData, Tag("two_moons")]
    | Annotated[OneDData, Tag("one_d")]
    | Annotated[TableData, Tag("table")]
    | Annotated[NMNISTData, Tag("nmnist")]
    | Annotated[MNISTDVSData, Tag("mnist_dvs")]
    | Annotated[SimulatedData, Tag("digits")]
    | Annotated[TonicData, Tag("tonic")]
    | Annotated[OwnData, Tag("own")],
    Discriminator(tag_of),
]
AnyRule = Annotated[
    Annotated[STRule, Tag("st")]
    | Annotated[BayesRule, Tag("bayes")]
    | Annotated[BopRule, Tag("bop")]
    | Annotated[FullRule, Tag("full")]
    | Annotated[OwnRule, Tag("own")],
    Discriminator(tag_of),
]
