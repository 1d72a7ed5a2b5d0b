"""Which sections the names of data and rules stand for: those of the package, which its modules
list, each by the `name` it has, and those of the user's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args

from pydantic import Discriminator, Tag

from bisnn.runs import data_sections, rule_sections
from bisnn.runs.folder_data import FolderData
from bisnn.runs.own import PYTHON, OwnData, OwnRule
from bisnn.runs.section import Section
from bisnn.runs.series_section import SeriesData


def tag_of(section: Any) -> str | None:
    """The kind of a section of data or rule: its name, or "own" for one of the user's own."""
    name = section.get("name") if isinstance(section, dict) else getattr(section, "name", None)
    own = isinstance(name, str) and (":" in name or name == PYTHON)
    return "own" if own else None if name is None else str(name)


def _one_of(sections: Iterable[type[Section]], own: type[Section]) -> Any:
    """A section of one of these kinds, told by its name."""
    named = {get_args(section.model_fields["name"].annotation)[0]: section for section in sections}
    kinds = tuple(Annotated[kind, Tag(tag)] for tag, kind in {**named, "own": own}.items())
    return Annotated[Union[kinds], Discriminator(tag_of)]  # noqa: UP007 (of a tuple)


if TYPE_CHECKING:
    from bisnn.runs.data_sections import DataSection
    from bisnn.runs.rule_sections import RuleSection

    AnyData = DataSection
    AnyRule = RuleSection
else:
    AnyData = _one_of((*data_sections.SECTIONS, FolderData, SeriesData), OwnData)
    AnyRule = _one_of(rule_sections.SECTIONS, OwnRule)
