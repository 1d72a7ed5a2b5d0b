"""Public names that load when first used (PEP 562): imports stay quick and free of PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def names(
    package: str,
    home: Mapping[str, Sequence[str]],
    modules: Mapping[str, str],
    own: Sequence[str] = (),
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The names, `__getattr__` and `__dir__` of a package.

    Args:
        package: its own name.
        home: the names of each module.
        modules: names that are modules themselves, and where these lie.
        own: names that the package has at once.
    """
    homes = {name: module for module, some in home.items() for name in some}
    every = [*own, *homes, *modules]

    def get(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        if name in modules:
            return importlib.import_module(f"{package}.{modules[name]}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return every, get, lambda: sorted(every)
