"""Checks of arguments at the boundary: a message has the argument, rule, value and fix."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def positive_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: must be a positive whole number; got {value!r}; give 1 or more")
    return int(value)


def number(
    name: str, value: object, *, above: float | None = None, least: float | None = None
) -> float:
    """A finite number, > `above` or >= `least`."""
    good = (
        isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) < float("inf")
    )
    if good and (above is None or value > above) and (least is None or value >= least):  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    rule = f" > {above:g}" if above is not None else f" >= {least:g}" if least is not None else ""
    raise ValueError(
        f"{name}: must be a finite number{rule}; got {value!r}; give a "
        f"number{rule or ', not a special value'}"
    )


def choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"the usual one is {choices[0]!r}"
        raise ValueError(f"{name}: must be one of {', '.join(choices)}; got {value!r}; {fix}")


def flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}: must be True or False; got {value!r}; give one of the two")


def tensor(name: str, value: object) -> None:
    from torch import Tensor  # others here need no PyTorch

    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name}: must be a torch.Tensor; got {type(value).__name__}; use torch.as_tensor"
        )


def finite(name: str, value: Tensor) -> None:
    bad = int((~value.isfinite()).sum()) if value.is_floating_point() else 0
    if bad:
        raise ValueError(
            f"{name}: must be finite; got {bad} NaN or infinite values; remove or replace them"
        )


def seed_number(value: object, name: str = "seed") -> int:
    """A seed: one 32-bit word of a generator's key."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 1 << 32:
        raise ValueError(
            f"{name}: must be a whole number from 0 to 2^32 - 1; got {value!r}; give a seed such "
            "as 0"
        )
    return int(value)
