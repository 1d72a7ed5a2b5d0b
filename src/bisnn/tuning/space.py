"""What is searched: ranges and choices of settings, by dotted key.

Every rule has a space that comes with the package (`spaces/`, whose blocks count where the config
has what their `when` says), and a config changes it by `[tune.space]`. All of it is settled before
the first trial: the settings of a config decide what is searched, those of a trial do not.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from pydantic import TypeAdapter

from bisnn.runs.config import Config, Dense
from bisnn.runs.tune_section import Choices, Range, Tune

Dimension = Range | Choices
Space = dict[str, Dimension]
EVERY_LAYER = "network.layers.*"  # the number of neurons of every dense layer

_DIMENSION: TypeAdapter[Dimension] = TypeAdapter(Dimension)


def search_space(config: Config) -> Space:
    """The space of a config's rule with the config's own ranges on top; a ValueError where a range
    has nothing that fits the config.
    """
    shipped = {
        key: _DIMENSION.validate_python(dimension)
        for name in ("every", config.rule.name)
        for block in _blocks(name)
        if _holds(block.pop("when", {}), config)
        for key, dimension in block.items()
    }
    own = (config.tune or Tune()).space
    space = {key: found for key, found in {**shipped, **own}.items() if found != "keep"}
    if not space:
        raise ValueError(
            'tune.space: must leave something to search; got "keep" for everything; give a range, '
            'such as "rule.lr" = { low = 0.01, high = 1.0, log = true }'
        )
    for key, dimension in space.items():
        _check(config, key, dimension)
    return space


def _blocks(name: str) -> list[dict[str, Any]]:
    """What a file of `spaces/` has; nothing for a rule of the user's own."""
    file = resources.files("bisnn.tuning") / "spaces" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))["space"] if file.is_file() else []


def _holds(when: Mapping[str, Any], config: Config) -> bool:
    """Whether a config has these values, by dotted key or property."""
    return all(_found(config, key) == value for key, value in when.items())


def _found(config: Config, key: str) -> Any:
    value: Any = config.model_copy(update={"tune": config.tune or Tune()})
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


def _check(config: Config, key: str, dimension: Dimension) -> None:
    """Raise where no value of a dimension fits the config. One that fits only together with others
    is left to the trials.
    """
    errors = []
    ends = [dimension.low, dimension.high] if isinstance(dimension, Range) else dimension
    for value in ends:
        try:
            with_settings(config, {key: value})
            return
        except ValueError as error:
            errors.append(str(error).removeprefix("config.updated: "))
    raise ValueError(
        f'tune.space."{key}": must have a value that the config takes; got '
        f"{json.dumps(ends)}: {errors[0]}; change the range, or write "
        f'"{key}" = "keep"'
    )


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """A config with settings changed by dotted key, among them `EVERY_LAYER`; a ValueError where
    they do not fit each other.
    """
    changed = dict(settings)
    if EVERY_LAYER in changed:
        neurons = changed.pop(EVERY_LAYER)
        layers = [_resized(layer, neurons) for layer in config.network.layers]
        changed["network.layers"] = layers
    return config.updated(**changed)


def _resized(layer: Dense, neurons: Any) -> dict[str, Any]:
    return {"neurons": neurons, "recurrent": layer.recurrent, "inputs": layer.inputs}


def suggested(trial: Any, space: Space) -> dict[str, Any]:
    """A value of every dimension, by an Optuna trial."""
    return dict(_suggestions(trial, space))


def _suggestions(trial: Any, space: Space) -> Iterator[tuple[str, Any]]:
    for key, dimension in space.items():
        if not isinstance(dimension, Range):
            # As text, since Optuna takes no lists
            texts = [json.dumps(choice) for choice in dimension]
            yield key, json.loads(trial.suggest_categorical(key, texts))
        elif dimension.whole:
            yield key, trial.suggest_int(key, dimension.low, dimension.high, log=dimension.log)
        else:
            value = trial.suggest_float(key, dimension.low, dimension.high, log=dimension.log)
            yield key, float(f"{value:.4g}")


def values_of(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """The settings that the parameters of a finished trial stand for."""
    return {
        key: _value(params[key], dimension) for key, dimension in space.items() if key in params
    }


def _value(param: Any, dimension: Dimension) -> Any:
    if not isinstance(dimension, Range):
        return json.loads(param)
    return param if dimension.whole else float(f"{param:.4g}")


def to_text(space: Space) -> str:
    """The space as JSON, to compare and to keep."""
    return json.dumps(
        {
            key: found.model_dump() if isinstance(found, Range) else found
            for key, found in space.items()
        }
    )


def from_text(text: str) -> Space:
    return {key: _DIMENSION.validate_python(found) for key, found in json.loads(text).items()}
