"""The checks of a packed file's header: nothing in a file from outside is taken on trust."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bisnn.alphabet import BINARY, Levels
from bisnn.bits import philox
from bisnn.conformal import ConformalIntervals, ConformalSets
from bisnn.neuron import SRM, FixedSRM, Neuron
from bisnn.packed.columns import Schema
from bisnn.spec import INPUT, KINDS, LayerSpec, Shape

MOST_NEURONS = 1 << 26  # of a layer, and the most of anything else that a header counts
MOST_MEMBERS = 1 << 14  # that a file has or suggests: drawing each takes time


class BadFile(ValueError):
    """A file that holds no packed network that this version can read."""


class Unfit(ValueError):
    """A good file, but not what was asked of it."""


def require(good: bool, what: str) -> None:
    if not good:
        raise BadFile(what + "; export it again")


def whole(value: Any, least: int, what: str, most: int = MOST_NEURONS) -> int:
    require(
        isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
        f"{what} is {value!r:.50}",
    )
    return value


def _wholes(value: Any, count: int, least: int, what: str) -> tuple[int, ...]:
    require(isinstance(value, list) and len(value) == count, f"{what} is {value!r:.50}")
    return tuple(whole(n, least, what) for n in value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def text(value: Any, what: str, most: int = 1000) -> str:
    require(isinstance(value, str) and len(value) <= most, f"{what} is {value!r:.50}")
    require(
        not any("\ud800" <= character <= "\udfff" for character in value),
        f"{what} is no text: {value!r:.50}",
    )
    return value


def shape_of(value: Any, what: str) -> Shape:
    require(isinstance(value, list) and len(value) in (1, 3), f"{what} is {value!r:.50}")
    shape = _wholes(value, len(value), 1, what)
    require(math.prod(shape) <= MOST_NEURONS, f"{what} is {value!r:.50}")
    return shape


def layer_of(
    i: int, of: Any, shapes: list[Shape], neurons: Sequence[type[Neuron]] = ()
) -> LayerSpec:
    """A layer's description, checked; `shapes` are those of earlier outputs and of the input,
    `neurons` classes that it may be of beside those of the package.
    """
    require(isinstance(of, dict) and of.get("kind") in KINDS, f"layer {i} is of no known kind")
    inputs = of.get("inputs")
    require(
        isinstance(inputs, list) and 1 <= len(inputs) <= i + 1, f"layer {i} reads {inputs!r:.50}"
    )
    for n in inputs:
        whole(n, INPUT, f"an input of layer {i}", i - 1)
    plan: dict[str, Any] = {"kind": of["kind"], "inputs": tuple(inputs)}
    plan["parts"] = tuple(shapes[n] for n in inputs)
    plan["neurons"] = whole(of.get("neurons"), 1, f"the size of layer {i}")
    plan["neuron"] = _neuron(i, of.get("neuron"), neurons)
    levels = of.get("levels", list(BINARY.levels))
    require(isinstance(levels, list), f"the levels of layer {i} are no list")
    plan["alphabet"] = Levels(*levels)
    if of["kind"] == "conv":
        require(all(len(part) == 3 for part in plan["parts"]), f"layer {i} convolves no images")
        for name, least in (("kernel", 1), ("stride", 1), ("padding", 0)):
            plan[name] = _wholes(of.get(name), 2, least, f"the {name} of layer {i}")
        plan["pool"] = whole(of.get("pool"), 1, f"the pooling of layer {i}")
    chosen = of.get("outputs")
    if chosen is not None:
        listed = isinstance(chosen, list) and len(chosen) > 0
        require(of["kind"] == "recurrent" and listed, f"the outputs of layer {i} are no list")
        plan["outputs"] = _wholes(chosen, len(chosen), 0, f"an output of layer {i}")
        distinct = max(chosen) < plan["neurons"] and len(set(chosen)) == len(chosen)
        require(distinct, f"the outputs of layer {i} are not distinct neurons")
    require(
        of["kind"] == "recurrent" or not of.get("mask"),
        f"layer {i} has a mask and is not recurrent",
    )
    spec = LayerSpec(**plan)
    spec.check()
    shapes = [spec.input_shape, spec.current_shape, spec.output_shape]
    sizes = map(math.prod, shapes)
    require(all(0 < n <= MOST_NEURONS for n in sizes), f"layer {i} is too large or has no neurons")
    return spec


def _neuron(i: int, about: Any, others: Sequence[type[Neuron]]) -> Neuron:
    known: list[type[Neuron]] = [SRM, FixedSRM, *others]
    kinds = {neuron.kind: neuron for neuron in known}
    kind = str(about.get("kind")) if isinstance(about, dict) else ""
    if ":" in kind and kind not in kinds:
        raise BadFile(
            f"the neurons of layer {i} are of {kind!r:.50}, from outside the package, and no file "
            "can name code to be run; give the class, neurons=[...]"
        )
    require(kind in kinds, f"the neurons of layer {i} are of no known kind")
    return kinds[kind](**{k: value for k, value in about.items() if k != "kind"})


def seed_of(value: Any) -> int:
    require(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < philox.SEEDS,
        f"the seed is {value!r:.50}",
    )
    return value


def encoding_of(about: Any, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """{}, or the encoding of features that `packed.encoding` reads, checked."""
    require(isinstance(about, dict), "its encoding is no table")
    if not about:
        return {}
    known = {"code", "steps", "neurons", "width", "low", "high", "seed", "encodings"}
    require(
        set(about) == known and about["code"] in ("population", "rate"),
        f"its encoding is {about!r:.100}",
    )
    whole(about["steps"], 1, "the number of time steps")
    whole(about["neurons"], 2, "the number of neurons per feature")
    whole(about["encodings"], 1, "the number of encodings", MOST_MEMBERS)
    seed_of(about["seed"])
    for name in ("low", "high"):
        require(
            isinstance(about[name], list) and 1 <= len(about[name]) <= MOST_NEURONS,
            f"the encoding's {name} is no list",
        )
    numbers = [about["width"], *about["low"], *about["high"]]
    require(all(map(_is_finite, numbers)), "its encoding holds what is no number")
    fits = len(about["low"]) == len(about["high"])
    fits = fits and all(a < b for a, b in zip(about["low"], about["high"], strict=True))
    size = len(about["low"]) * (about["neurons"] if about["code"] == "population" else 1)
    require(
        fits and about["width"] > 0 and (size,) == input_shape,
        "its encoding does not fit its input",
    )
    return about


def units_of(about: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    """From what a user has to spikes, and from logits to what a user wants."""
    schema = about.get("schema")
    require(schema is None or bool(encoding), "it describes a table, and no encoding of features")
    if schema is not None:
        schema = Schema.from_json(schema, len(encoding["low"]))
    target: dict[str, Any] = {name: about.get(name) for name in ("target_mean", "target_scale")}
    for name, value in target.items():
        fits = _is_finite(value) and (name == "target_mean" or value > 0)
        require(fits, f"its {name} is {value!r:.50}")
    return {"encoding": encoding, "schema": schema, **target}


def sets_of(about: Any, outputs: int, members: int) -> ConformalSets | None:
    """The thresholds of prediction sets by so many members, checked; None where there are none."""
    if about is None:
        return None
    found = ConformalSets.from_json(about, outputs)
    steps, asked = found.path[-1]
    require(
        asked <= members and steps <= MOST_NEURONS and found.score == "margin",
        f"its prediction sets are of {asked!r:.50} members and {steps!r:.50} time steps",
    )
    return found


def intervals_of(about: Any, task: str) -> ConformalIntervals | None:
    """The width of prediction intervals, checked; None where there is none."""
    if about is None:
        return None
    require(task == "regression", "it has intervals, and predicts classes")
    return ConformalIntervals.from_json(about)
