"""A trained network as what it is: bits. K members that differ in their weights alone, and what it
takes to use them. Only numpy is needed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bisnn.alphabet import BINARY, Levels
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.conformal import ConformalIntervals, ConformalSets
from bisnn.packed.columns import Schema
from bisnn.spec import LayerSpec, Shape


@dataclass(frozen=True)
class PackedReadout:
    """logits = scale V s, of what leaves the last layer."""

    V: np.ndarray  #: bool (outputs, n), True is +1; n in the order of the layer's output, flattened
    scale: np.float32  #: gain / sqrt(n)


@dataclass(frozen=True, kw_only=True)
class PackedLayer(LayerSpec):
    """A layer of K networks: its description, its weights and its constants as rounded."""

    alphabet: Levels = BINARY
    #: int8 (K, neurons, fan_in), 0 where there is no synapse; inputs one after the other, or
    #: (C, k0, k1), then the layer's own
    weights: np.ndarray
    scale: np.ndarray  #: kappa, float32 (1,), or (neurons,) where neurons differ in their parents
    constants: np.ndarray  #: of the neuron, float32; of SRM a_m, a_s, a_r, theta
    #: uint8 (levels - 1, neurons, fan_in): of 255, how often the weight is the highest level, one
    #: of the two highest, and so on
    posterior: np.ndarray | None = None

    def bits(self) -> np.ndarray:
        """The weights' bit planes, bool (K, planes, neurons, fan_in); 0 without a synapse."""
        bits = np.moveaxis(self.alphabet.bits(self.weights), 0, 1)
        return bits if self.mask is None else bits & self.mask

    def step_constants(self) -> tuple[np.ndarray, np.ndarray]:
        """As `Neuron.step_constants`; a ValueError where the neuron's traces could overflow."""
        return self.neuron.step_constants(self.scale, self.constants, self.most_current)


@dataclass(frozen=True)
class PackedNetwork:
    """K members of a network, and what it takes to use them."""

    layers: tuple[PackedLayer, ...]  #: from the input to the output
    input_shape: Shape  #: axes of the input after (T, B)
    readout: PackedReadout | None = None  #: None: the last spikes are the output
    task: str = "classification"  #: or "regression"
    classes: tuple[str, ...] = ()  #: names
    burn_in: int = 0  #: first time steps that a prediction leaves out
    #: from features to spikes; {}: spikes come in
    encoding: dict[str, Any] = field(default_factory=dict)
    schema: Schema | None = None  #: of a table: from its columns to features
    target_mean: float = 0.0  #: of a regression, whose prediction is the mean logit ...
    target_scale: float = 1.0  #: ... times this scale, plus the mean
    source: str = ""  #: digest of the model file it was made from
    members: int = 0  #: that the file suggests to draw from its posterior
    seed: int = 0  #: for drawing them
    sets: ConformalSets | None = None  #: of a calibrated model: thresholds of its prediction sets
    intervals: ConformalIntervals | None = None  #: of one that predicts targets

    @property
    def count(self) -> int:
        """K."""
        return len(self.layers[0].weights)

    @property
    def outputs(self) -> int:
        """Of its readout; 0 where there is none."""
        return 0 if self.readout is None else len(self.readout.V)


def cost(
    layers: Sequence[LayerSpec], inputs: int, outputs: int, members: int, steps: int
) -> tuple[int, int]:
    """Bytes of memory, estimated from above, that an engine takes to stand ready, and for each
    recording of so many time steps.

    Weights as bytes, as bits on their way into words, and as bytes again; what a layer's kernel
    works on; for a recording its draws, spikes and logits.
    """
    ready, recording = 2 * outputs * math.prod(layers[-1].output_shape), 10 * steps * inputs
    for layer in layers:
        neurons, leaving = math.prod(layer.current_shape), math.prod(layer.output_shape)
        pixels = neurons // layer.neurons
        work = (640 if pixels == 1 else 16) * neurons + 4 * pixels * -(-layer.fan_in // 32)
        planes = 1 if layer.alphabet is None else layer.alphabet.planes
        ready += (2 + planes) * members * layer.neurons * layer.fan_in + min(members, 16) * work
        recording += members * (4 * len(layer.neuron.traces) * neurons + steps * (leaving // 8 + 4))
    return ready, recording + members * steps * 8 * outputs


def draw(posterior: np.ndarray, alphabet: Levels, count: int, seed: int, layer: int) -> np.ndarray:
    """`count` members (count, S), int8, of weights with this posterior (levels - 1, S): see
    `PackedLayer`; 0 and 255 are certain.

    By the numbers that draw the members of the network itself: see `philox`. More members leave the
    first ones as they are.
    """
    limits = (np.ceil(posterior * (2**24 / 255)) * 2.0**-24).astype(np.float32)
    levels = np.array(alphabet.levels[::-1], np.int8)
    size = posterior.shape[1]
    drawn = (
        levels[(philox.uniform([layer], size, seed, Purpose.MEMBERS, k)[0] >= limits).sum(0)]
        for k in range(count)
    )
    return np.stack(list(drawn))


def most_probable(posterior: np.ndarray, alphabet: Levels) -> np.ndarray:
    """The likeliest weights (S,), int8, of a posterior (levels - 1, S); of equals the highest."""
    shares = np.diff(posterior.astype(np.int16), axis=0, prepend=0, append=255)
    return np.array(alphabet.levels[::-1], np.int8)[shares.argmax(0)]


def spread(values: np.ndarray, layer: LayerSpec) -> np.ndarray:
    """(K, synapses) -> (K, neurons, inputs), zero where there is no synapse."""
    shape = (len(values), layer.neurons, layer.fan_in)
    if layer.mask is None:
        return values.reshape(shape)
    full = np.zeros(shape, values.dtype)
    full[:, layer.mask] = values
    return full


def words(x: np.ndarray) -> np.ndarray:
    """Booleans, or 0 and 1, packed along the last axis into 32-bit words, lowest bit first."""
    if 0 < x.shape[-1] <= 8:  # as polarities are: `packbits` takes its time with each short row
        word = np.zeros(x.shape[:-1], np.uint8)
        for i in range(x.shape[-1]):
            word |= x[..., i].astype(np.uint8) << i
        return word[..., None].astype(np.uint32)
    packed = np.packbits(x, axis=-1, bitorder="little")
    whole = np.zeros((*packed.shape[:-1], -(-packed.shape[-1] // 4) * 4), np.uint8)
    whole[..., : packed.shape[-1]] = packed
    return whole.view("<u4").astype(np.uint32, copy=False)
