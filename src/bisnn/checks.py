"""Checks of arguments at the public boundary. Each message has the argument, the rule, the value and, if not plain, the fix."""

from __future__ import annotations

import math

import torch


def positive_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: must be a positive whole number; got {value!r}")
    return value


def number(name: str, value: object, *, above: float | None = None, least: float | None = None) -> float:
    """A finite number, > `above` or >= `least`."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if good and (above is None or value > above) and (least is None or value >= least):  # type: ignore[operator]
        return value  # type: ignore[return-value]
    rule = f" > {above:g}" if above is not None else f" >= {least:g}" if least is not None else ""
    raise ValueError(f"{name}: must be a finite number{rule}; got {value!r}")


def choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: must be one of {', '.join(choices)}; got {value!r}")


def as_generator(generator: int | torch.Generator, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch.Generator on `device` from a seed; a generator is passed through."""
    if isinstance(generator, torch.Generator):
        return generator
    if isinstance(generator, bool) or not isinstance(generator, int):
        raise ValueError(f"generator: must be a seed (int) or a torch.Generator; got {generator!r}")
    return torch.Generator(device).manual_seed(generator)
