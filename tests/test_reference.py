"""The API reference: every public name is in it, with a docstring that describes its parameters.

Public are the names in `__all__` of `bisnn`, of the modules among them, and of those in `EXTENDED`,
whose classes a user's own code derives from; the classes in `FURTHER` come with them. A parameter
is described

- in `Args:` of its function, or in a sentence of that docstring that has it in backticks, or of the
  module's, where it means the same in all functions;
- of a constructor, in `Args:` of the class; of a method, also there, because it means the same;
- of a tuple or dataclass, also by a comment `#:` behind the field, or above it.

A method may inherit its docstring, as from scikit-learn, and then its parameters are described
there. The keys of a config are described in docs/CONFIG.md, which has a test of its own.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic
import pytest

import bisnn

ROOT = Path(__file__).parent.parent
EXTENDED = ("bisnn.neuron", "bisnn.optimizer")
# Classes without a public name of their own that public names take, return or derive from
FURTHER = (
    *("bisnn.layer.Layer", "bisnn.layer.LayerState", "bisnn.spec.LayerSpec"),
    *("bisnn.steps.CompiledStep", "bisnn.modules.ParameterGroups", "bisnn.packed.columns.Schema"),
    *("bisnn.runs.results.Verdict", "bisnn.runs.guarantee.Guarantee"),
    *("bisnn.runs.exporting.Exported", "bisnn.tuning.search.Tuned"),
)
METHODS = (classmethod, staticmethod, property, cached_property)


def public_modules(top: ModuleType = bisnn) -> Iterator[ModuleType]:
    yield top
    for name in top.__all__:
        if isinstance(getattr(top, name), ModuleType):
            yield from public_modules(getattr(top, name))


def public_names() -> dict[str, Any]:
    """Each public class, function and constant by its longest name, as `bisnn.metrics.ece`."""
    modules = [*public_modules(), *map(importlib.import_module, EXTENDED)]
    paths = [f"{module.__name__}.{name}" for module in modules for name in module.__all__]
    values = {path: pkgutil.resolve_name(path) for path in [*paths, *FURTHER]}
    return {path: value for path, value in values.items() if not isinstance(value, ModuleType)}


NAMES = public_names()
CODE = {path: v for path, v in NAMES.items() if inspect.isclass(v) or inspect.isfunction(v)}


def own_classes(kind: type) -> list[type]:
    """A class and its bases, as far as they are this package's."""
    return [base for base in kind.__mro__ if base.__module__.startswith("bisnn.")]


def members(kind: type) -> dict[str, list[Any]]:
    """Public methods and properties of a class that are this package's, and those they override."""
    found: dict[str, list[Any]] = {}
    for base in own_classes(kind):
        for name, value in vars(base).items():
            known = inspect.isfunction(value) or isinstance(value, METHODS)
            if known and (not name.startswith("_") or name == "__call__"):
                found.setdefault(name, []).append(value)
    return found


def docstring(value: Any) -> str:
    """Its own, not one that it inherits."""
    return inspect.cleandoc(value.__doc__ or "")


def function_of(member: Any) -> Any:
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    return getattr(member, "fget", None) or getattr(member, "func", member)


def described_by(text: str) -> set[str]:
    """Names in the sections `Args:` and `Attributes:`, and those in backticks."""
    names = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))
    for section in re.findall(r"^(?:Args|Attributes):\n((?:(?: {4}.*)?\n)+)", text + "\n", re.M):
        for line in re.findall(r"^ {4}(?! )([*\w, ]+?):", section, re.M):
            names |= set(re.findall(r"\w+", line))
    return names


def commented_in(kind: type) -> set[str]:
    """Fields with a comment `#:`, behind them or above."""
    source = inspect.getsource(kind)
    behind = re.findall(r"^    (\w+):.*#: ", source, re.M)
    above = re.findall(r"^    #: .*\n(?:    #.*\n)*    (\w+):", source, re.M)
    return {*behind, *above}


def parameters(function: Any) -> set[str]:
    given = list(inspect.signature(function).parameters)
    return {name for name in given if name not in ("self", "cls") and not name.startswith("_")}


def fields(kind: type) -> set[str]:
    """What a class takes or holds, under the names that its docstring has to describe."""
    if kind is bisnn.config.Config:
        return set()
    if issubclass(kind, pydantic.BaseModel):
        return set(kind.model_fields)
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind) if not field.name.startswith("_")}
    if hasattr(kind, "_fields"):
        return set(kind._fields)
    return parameters(kind) if inspect.isfunction(kind.__init__) else set()


def faults(path: str, value: Any) -> Iterator[str]:
    """What the reference would lack of a class or function."""
    text = docstring(value)
    made = inspect.isclass(value) and text.startswith(
        f"{value.__name__}("
    )  # by dataclasses, tuples
    if not text or made:
        yield f"{path} has no docstring"
    known = described_by(text)
    if not inspect.isclass(value):
        known |= described_by(docstring(inspect.getmodule(value)))
        yield from (f"{path}: {name} is not described" for name in parameters(value) - known)
        return
    for base in own_classes(value):
        known |= described_by(docstring(base)) | commented_in(base)
    yield from (f"{path}: {name} is not described" for name in fields(value) - known)
    for name, versions in members(value).items():
        own = [text for member in versions if (text := docstring(function_of(member)))]
        if not own and not inspect.getdoc(getattr(value, name)):
            yield f"{path}.{name} has no docstring"
        if own and not isinstance(versions[0], property | cached_property):
            lacking = parameters(function_of(versions[0])) - known
            lacking -= set().union(*map(described_by, own))
            yield from (f"{path}.{name}: {one} is not described" for one in lacking)


def test_public_names_are_found():
    assert len(NAMES) > 150
    assert CODE["bisnn.metrics.auroc"] is bisnn.metrics.auroc
    assert {"forward", "initial_state"} <= members(bisnn.Network).keys()


@pytest.mark.parametrize("path", CODE)
def test_a_public_name_is_described_with_its_parameters(path):
    assert not sorted(faults(path, CODE[path]))


@pytest.mark.parametrize(
    ("docstring", "lacking"),
    [
        (None, {"f has no docstring", "f: x is not described", "f: seed is not described"}),
        ("Double `x`.", {"f: seed is not described"}),
        ("Double.\n\n    Args:\n        x: what\n            seed: to double.\n    ", {"f: seed"}),
        ("Double.\n\n    Args:\n        x: a number; see `seed`.\n    ", set()),
        ("Double.\n\n    Args:\n        x, seed: both.\n    ", set()),
    ],
)
def test_what_is_missing_is_named(docstring, lacking):
    def f(x, seed):
        return x

    f.__doc__ = docstring
    said = set(faults("f", f))
    assert len(said) == len(lacking)
    assert all(any(text.startswith(start) for text in said) for start in lacking)


def texts() -> Iterator[tuple[str, str]]:
    for path, value in CODE.items():
        yield path, docstring(value)
        if inspect.isclass(value):
            for name, versions in members(value).items():
                yield f"{path}.{name}", docstring(function_of(versions[0]))
    for module in public_modules():
        yield module.__name__, docstring(module)


def test_examples_are_doctests():
    """So that pytest, which collects all doctests, runs them."""
    examples = 0
    for path, text in texts():
        found = doctest.DocTestParser().get_examples(text)
        examples += len(found)
        assert not any(doctest.SKIP in example.options for example in found), path
        assert ("Example" in re.findall(r"^(\w+)s?:$", text, re.M)) <= bool(found), path
        assert not re.search(r"::$|```", text, re.M), f"{path}: code that no test runs"
    assert examples > 50


def documented() -> set[str]:
    """The names that the pages of the reference have directives for; of constants, with a text."""
    names: set[str] = set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        text = page.read_text()
        names |= set(re.findall(r"^\.\. auto(?:class|function):: (\S+)$", text, re.M))
        names |= set(re.findall(r"^\.\. py:data:: (\S+)\n\n   \S", text, re.M))
        for module, left_out in re.findall(
            r"^\.\. automodule:: (\S+)\n   :members:\n(?:   :exclude-members: (.*)\n)?", text, re.M
        ):
            listed = set(importlib.import_module(module).__all__) - set(left_out.split(", "))
            names |= {f"{module}.{name}" for name in listed} & CODE.keys()
    return names


def test_every_public_name_is_in_the_reference():
    there = documented()
    assert there <= NAMES.keys()
    covered = {id(NAMES[path]) for path in there}
    assert not [path for path, value in NAMES.items() if id(value) not in covered]
