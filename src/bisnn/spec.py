"""The description of a network, without PyTorch: what is trained is built from it, what ships is
written from it.

A layer is a kind, shapes, a neuron, an alphabet of weights and a place in a graph: `inputs` names
the earlier layers whose spikes it reads. Several inputs lie side by side: W1 s1 + W2 s2 is the
product of the weights [W1 W2] with the spikes of both, one exact integer, and kappa counts all
parents. Images must agree in height and width to lie side by side, channel after channel; other
shapes are flattened, one after the other.

Axes: N neurons, C channels, H W image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from bisnn.alphabet import BINARY, Levels
from bisnn.neuron import SRM, Neuron

INPUT = -1  # among the inputs of a layer: the network's own input
KINDS = ("dense", "conv", "recurrent")
Shape = tuple[int, ...]


def windows_along(n: int, kernel: int, stride: int, padding: int) -> int:
    """Places of a kernel along an axis of n pixels: the size of a convolution."""
    return (n + 2 * padding - kernel) // stride + 1


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """What a layer is, but for the values of its weights."""

    kind: str  #: "dense", "conv" or "recurrent"
    inputs: tuple[int, ...]  #: numbers of the layers whose spikes it reads, or INPUT
    parts: tuple[Shape, ...]  #: the shape of each input, (N,) or (C, H, W)
    neurons: int  #: or output channels
    neuron: Neuron = field(default_factory=SRM)  #: of all of the layer
    alphabet: Levels | None = BINARY  #: that its weights are from; None: real numbers
    kernel: tuple[int, int] = (1, 1)  #: of a convolution: height and width
    stride: tuple[int, int] = (1, 1)  #: of a convolution
    padding: tuple[int, int] = (0, 0)  #: of a convolution, with zeros
    pool: int = 1  #: edge of the max-pooling window
    #: of a recurrent layer: bool (neurons, inputs and then neurons), the synapses that exist
    mask: np.ndarray | None = field(default=None, compare=False)
    outputs: tuple[int, ...] | None = None  #: of a recurrent layer: the neurons that are read

    @cached_property
    def input_shape(self) -> Shape:
        """Of all inputs side by side; dense and recurrent layers flatten it."""
        return side_by_side(self.kind, self.parts)

    @cached_property
    def current_shape(self) -> Shape:
        """Of the neurons: (N,) or (C, H, W)."""
        if self.kind != "conv":
            return (self.neurons,)
        places = zip(self.input_shape[1:], self.kernel, self.stride, self.padding, strict=True)
        return (self.neurons, *(windows_along(*place) for place in places))

    @cached_property
    def output_shape(self) -> Shape:
        """Of what leaves the layer."""
        if self.kind == "conv":
            channels, height, width = self.current_shape
            return (channels, height // self.pool, width // self.pool)
        return (self.neurons,) if self.outputs is None else (len(self.outputs),)

    @cached_property
    def fan_in(self) -> int:
        """Parents of a neuron, whether a mask lets them exist or not."""
        if self.kind == "conv":
            return self.input_shape[0] * math.prod(self.kernel)
        return math.prod(self.input_shape) + (self.neurons if self.kind == "recurrent" else 0)

    @cached_property
    def weight_shape(self) -> Shape:
        """Of the parameter: with a mask, a vector of the synapses that exist."""
        if self.kind == "conv":
            return (self.neurons, self.input_shape[0], *self.kernel)
        return (self.neurons, self.fan_in) if self.mask is None else (self.synapses,)

    @cached_property
    def synapses(self) -> int:
        """Weights."""
        return self.neurons * self.fan_in if self.mask is None else int(self.mask.sum())

    @cached_property
    def kappa(self) -> np.ndarray:
        """1/sqrt(|P_i|) over the levels' root mean square, float64, () or one per neuron."""
        parents = np.array(self.fan_in) if self.mask is None else self.mask.sum(1)
        size = 1.0 if self.alphabet is None else self.alphabet.rms
        return np.asarray(1 / np.sqrt(parents) / size)

    @cached_property
    def most_current(self) -> int:
        """The largest |I| of a neuron, whatever its weights."""
        parents = self.fan_in if self.mask is None else int(self.mask.sum(1).max())
        return parents * (1 if self.alphabet is None else self.alphabet.reach)

    @cached_property
    def integers(self) -> np.ndarray | None:
        """The constants of neurons that compute in integers, (6,) or (6, neurons); else None."""
        return self.neuron.integers(self.kappa, self.most_current)

    def values(self) -> dict[str, Any]:
        """The fields by name, to build another description from."""
        return {item.name: getattr(self, item.name) for item in fields(LayerSpec)}

    def columns(self) -> list[slice]:
        """Where the weights of each input lie along the flattened inputs (conv: the channels)."""
        sizes = [part[0] if self.kind == "conv" else math.prod(part) for part in self.parts]
        ends = np.cumsum(sizes).tolist()
        return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def check(self) -> None:
        """A ValueError that says what does not fit together."""
        if self.alphabet is not None:
            self.alphabet.check_fan_in(self.fan_in)
        if self.kind != "conv":
            return
        shape = self.input_shape
        if min(self.current_shape[1:]) < self.pool:
            raise ValueError(
                f"input_shape: too small for kernel {self.kernel}, padding {self.padding}, stride "
                f"{self.stride} and pool {self.pool}; got {shape}; enlarge the input or the padding"
            )


def side_by_side(kind: str, parts: Sequence[Shape]) -> Shape:
    """The shape of several inputs together, or a ValueError where they do not fit."""
    if len(parts) == 1:
        return parts[0]
    if kind != "conv":
        return (sum(math.prod(part) for part in parts),)
    if any(len(part) != 3 for part in parts) or len({part[1:] for part in parts}) > 1:
        raise ValueError(
            "inputs: of a convolution must be images of one height and width, to lie side by side; "
            f"got {list(parts)}; read other layers, or pool and pad them to one size"
        )
    return (sum(part[0] for part in parts), *parts[0][1:])


def read_from(inputs: Sequence[int | str] | None, number: int) -> tuple[int, ...]:
    """The inputs of layer `number` as numbers: those named, or else the layer before it."""
    if inputs is None:
        return (number - 1,)
    known = '"input"' if number == 0 else f'"input" and 0 to {number - 1}'
    listed = not isinstance(inputs, str) and isinstance(inputs, Sequence)
    numbers = [INPUT if name == "input" else name for name in inputs] if listed else []
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"inputs: must be a list of distinct layers; got {inputs!r}; layer {number} may read "
            f"{known}"
        )
    for n, name in zip(numbers, inputs, strict=True):
        earlier = isinstance(n, int) and not isinstance(n, bool) and 0 <= n < number
        if not earlier and name != "input":
            raise ValueError(
                f"inputs: must be layers before this one, number {number}; got {name!r}; it may "
                f"read {known}, and cycles are for a Recurrent layer"
            )
    return tuple(int(n) for n in numbers)
