r"""The ledger: what one inference takes in weights, operations, memory traffic and energy, counted
from real spikes.

All counts are for one recording of T time steps, mean over the batch. The rules:

- A *synaptic operation* is a spike times a synapse that it reaches: one accumulate and no
  multiplication, for binary and for real weights alike, since a spike is 0 or 1. What a
  convolution's padding would reach is none. A weight of several bit planes takes one operation for
  each, also where it is 0. Spikes of the last time step count like all others.
  The last readout is part of the inference; those that serve learning alone are left out.
- A *neuron update* is one neuron at one time step, whether it fires or not: u = kappa (P - Q) - R,
  u > theta, P' = a_m (P + I), Q' = a_s (Q + I), R' = a_r (R + s). That is 4 multiplications and 6
  additions (the comparison is one), in 32-bit floats. FixedSRM does the same in 32-bit integers,
  with 3 multiplications, as it has no kappa. Another neuron says its own numbers, `operations`.
- *Memory traffic*: every synaptic operation reads its weight, a bit or 32, from an access that is
  filled; every update reads and writes its traces (P, Q and R), 32 bits each; spikes are maps of
  one bit, written once by a layer and read once by the next, at every time step, and by the layer
  itself where it is recurrent. Sums of currents stay in registers.
- A network's weights and state lie in the smallest memory that holds them, and every access is to
  that memory.
- An *ensemble* of K does all this K times, each member with its own spikes and in a memory of its
  own; only the input's spikes are read once for all.
- *Stopped early*: time steps after a prediction set is decided take nothing, nor do members that
  are not asked.
- The *ANN* has the same layers with 32-bit weights, its readout's too, and real activations: one
  multiply-accumulate per synapse, one comparison (ReLU) per neuron, a weight read per operation.
  It makes one pass and not T, and knows no time.
- Left out everywhere: pooling, what follows the readout's sums (scale, softmax, mean over time),
  instructions, leakage.

A spiking network's readout is +-1: one bit per weight and an integer accumulate, also where the
other weights are real.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bisnn import realisation, weights
from bisnn.checks import choice, number, positive_int
from bisnn.layer import Readout
from bisnn.layers import Recurrent
from bisnn.network import Network
from bisnn.neuron import SRM, Neuron
from bisnn.prediction import Dropout, Members
from bisnn.spec import LayerSpec

__all__ = [
    "Costs",
    "Expenses",
    "LayerExpenses",
    "Ledger",
    "LedgerRow",
    "Work",
    "ledger",
    "prices",
    "reach",
    "work",
]

# Bytes
CAPACITY = {"sram_8k": 8 * 2**10, "sram_32k": 32 * 2**10, "sram_1m": 2**20, "dram": math.inf}
EARLY = ", stopped early"  # behind the name of a predictor
HYPOTHETICAL, ANN = "full precision, hypothetical", "ANN"
SOURCE = (
    "M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014: "
    "45 nm, 0.9 V"
)


@dataclass(frozen=True)
class Costs:
    """Energy of one operation, and of one access of 64 bits to each memory, in picojoules. The
    defaults are those of `SOURCE`.

    >>> Costs.parse(["int_add=0.03"]).int_add  # its figure for 8 bits
    0.03
    """

    float_add: float = 0.9  #: 32 bits
    float_multiply: float = 3.7  #: 32 bits
    int_add: float = 0.1  #: 32 bits
    int_multiply: float = 3.1  #: 32 bits
    sram_8k: float = 10.0  #: a memory of 8 KiB
    sram_32k: float = 20.0  #: of 32 KiB
    sram_1m: float = 100.0  #: of 1 MiB
    dram: float = 1300.0  #: the low end of 1.3 to 2.6 nJ: in favour of the larger network

    def __post_init__(self) -> None:
        for field in fields(self):
            number(field.name, getattr(self, field.name), above=0)

    @classmethod
    def parse(cls, settings: Sequence[str]) -> Costs:
        """The usual costs with some set anew by `settings`, texts NAME=PJ; the last one counts."""
        changed = {}
        for setting in settings:
            name, _, value = (part.strip() for part in setting.partition("="))
            choice("cost", name, [field.name for field in fields(cls)])
            try:
                changed[name] = float(value)
            except ValueError:
                raise ValueError(
                    f"cost: must be NAME=PJ, PJ in picojoules; got {setting!r}; give e.g. "
                    f"{name}=0.1"
                ) from None
        return cls(**changed)


class Work(NamedTuple):
    """What a layer, or a readout, does for one recording, whatever its numbers are made of."""

    layer: str  #: its name
    parameters: int  #: weights
    planes: int  #: bits of a weight, where it is from an alphabet
    synapses: int  #: connections: a weight of a convolution serves many
    operations: float  #: synaptic operations
    neurons: int  #: 0 for a readout
    values: int  #: that come in and go out in one time step
    steps: float  #: T; the mean, where recordings stop early
    neuron: Neuron = SRM()  #: whose step is counted

    @property
    def state(self) -> int:
        """Bytes of all traces."""
        return 4 * len(self.neuron.traces) * self.neurons


@dataclass(frozen=True)
class Expenses:
    """What an inference takes: bits of weights, operations, bytes moved, energy."""

    weight_bits: int  #: that the weights take
    synaptic_operations: float  #: additions, or multiply-accumulates, over synapses
    neuron_updates: int | float  #: whole, unless recordings stop early
    weight_bytes: float  #: moved, of weights
    state_bytes: float  #: moved, of the neurons' traces
    spike_bytes: float  #: moved, of spikes or activations
    bytes: float  #: all three
    synapse_joules: float  #: of the synaptic operations
    neuron_joules: float  #: of the neurons' updates
    memory_joules: float  #: of the bytes that are moved
    joules: float  #: all three


@dataclass(frozen=True)
class LayerExpenses(Expenses):
    """Those of one layer, or of the readout."""

    layer: str  #: its name


@dataclass(frozen=True)
class LedgerRow(Expenses):
    """Sums over the layers of a predictor, and the layers."""

    memory: str  #: the smallest that holds weights and state
    layers: list[LayerExpenses]  #: and last the readout
    ratio: float = 1.0  #: of the energy, to the ANN's


@dataclass(frozen=True)
class Ledger:
    """What one inference takes, mean over some recordings."""

    recordings: int  #: how many of them
    steps: int  #: T
    costs: Costs  #: of the operations
    source: str  #: of the usual costs
    rows: dict[str, LedgerRow]  #: by predictor


def reach(layer: LayerSpec) -> Tensor:
    """The synapses that each input of `layer` reaches, flat; a recurrent layer's own come last."""
    if layer.kind == "conv":
        sizes = zip(layer.input_shape[1:], layer.current_shape[1:], strict=True)
        places = zip(layer.kernel, layer.stride, layer.padding, strict=True)
        rows, columns = (_windows(*n, *place) for n, place in zip(sizes, places, strict=True))
        return (layer.neurons * rows[:, None] * columns).expand(layer.input_shape).flatten()
    if layer.mask is not None:
        return torch.from_numpy(layer.mask).sum(0)
    return torch.full((layer.fan_in,), layer.neurons)


def _windows(n: int, windows: int, kernel: int, stride: int, padding: int) -> Tensor:
    """In how many of the windows along an axis each of its n pixels lies, (n,)."""
    at = torch.arange(n)[:, None] + padding - stride * torch.arange(windows)
    return ((at >= 0) & (at < kernel)).sum(1)


@torch.no_grad()
def work(
    net: Network, x: Tensor, realised: Sequence[Tensor], until: Tensor | None = None
) -> list[Work]:
    """The work of each layer and of the last readout.

    Args:
        net: the network.
        x: input spikes, `(T, B, *input_shape)`.
        realised: the weights, one tensor per layer.
        until: for how many time steps each recording runs, (B,); by default to the end.
    """
    x = net.checked(x)
    if not realisation.is_spikes(x):
        raise ValueError(
            "x: must be spikes, 0 or 1, or there is nothing to count; got other values; encode "
            "them first"
        )
    output, seen = net(x, weights=realised), None
    steps: float = len(x)
    if until is not None:
        seen = torch.arange(len(x), device=x.device)[:, None] < until.to(x.device)  # (T, B)
        steps = float(until.double().mean())
    counts = []
    for i, (layer, u) in enumerate(zip(net.layers, output.potentials, strict=True)):
        s = net.read(i, x, output.spikes).flatten(2)
        outputs, reached = math.prod(layer.output_shape), reach(layer.spec)
        if isinstance(layer, Recurrent):  # also the spikes that do not leave the layer
            s, outputs = torch.cat([s, (u > layer.constants[-1]).to(s)], -1), layer.n
        name, neurons = f"{i + 1} {type(layer).__name__}", math.prod(layer.current_shape)
        planes = 1 if layer.spec.alphabet is None else layer.spec.alphabet.planes
        if layer.neuron.operations is None:
            raise ValueError(
                "net: every neuron must say its `operations`, multiplications and additions of an "
                f"update; got {type(layer.neuron).__name__}, which does not; add them"
            )
        synapses = (layer.spec.synapses, planes, int(reached.sum()), _fired(s, reached, seen))
        values = len(reached) + outputs
        counts.append(Work(name, *synapses, neurons, values, steps, layer.neuron))
    readout = net.readouts[-1]
    if isinstance(readout, Readout):
        classes, n = readout.V.shape
        operations = _fired(output.spikes[-1].flatten(2), torch.full((n,), classes), seen)
        counts.append(Work("readout", classes * n, 1, classes * n, operations, 0, n, steps))
    return counts


def _fired(s: Tensor, reached: Tensor, seen: Tensor | None) -> float:
    """Mean over the batch of the synapses that all spikes s, (T, B, N), reach together, those that
    are `seen` (T, B) alone.
    """
    if seen is not None:
        s = s * seen[:, :, None].to(s)
    return float(s.sum((0, 1), dtype=torch.float64).cpu() @ reached.double()) / s.shape[1]


@torch.no_grad()
def ledger(
    net: Network,
    x: Tensor,
    predictors: Mapping[str, int | Members | Dropout | None],
    costs: Costs | None = None,
    seed: int = 0,
    early: Mapping[str, Tensor] | None = None,
) -> Ledger:
    """What one inference takes: a row for each predictor, for full precision at the same spikes,
    and for the ANN.

    Args:
        net: the network, outside any realisation. Its parameters are left as they are.
        x: input spikes, `(T, B, *input_shape)`.
        predictors: by name, as `samples` of `bisnn.predict`: None for the MAP weights (or a
            full-precision network's own), K for an ensemble, or the members themselves.
        costs: of the operations; by default those of `SOURCE`.
        seed: of the members; that of `bisnn.predict` gives its members.
        early: by name of a predictor, for how many time steps each member sees each recording, (K,
            B); adds a row.

    A row has the sums over its layers, their ratio to the ANN's energy and the layers themselves.
    Real weights on a binary network's MAP spikes are hypothetical: trained so, the network would
    fire otherwise.

    >>> import bisnn
    >>> net = bisnn.Network(bisnn.Linear(20, 64), readout=2)
    >>> rows = ledger(net, torch.ones(10, 1, 20), {"MAP": None}).rows
    >>> [row.weight_bits for row in rows.values()]
    [41088, 1408, 45056]
    >>> rows["MAP"].layers[0].synaptic_operations  # 10 time steps, 20 spikes, 64 neurons
    12800.0
    """
    costs, x = costs or Costs(), net.checked(x)
    latents: list[Tensor] = [layer.weight for layer in net.layers]
    real = net.alphabet is None
    if real and any(isinstance(members, int) for members in predictors.values()):
        raise ValueError(
            "predictors: a full-precision network has no posterior to draw from; got "
            f"{dict(predictors)}; give None"
        )
    realised = latents if real else [realisation.map_weight(p) for p in latents]
    single = work(net, x, realised)
    rows = {} if real else {HYPOTHETICAL: _spiking([single], True, costs)}
    for name, members in predictors.items():
        counts = (
            [single]
            if members is None
            else _with_readouts(single, members.members)
            if isinstance(members, Dropout)
            else _drawn(net, x, latents, members, seed)
        )
        rows[name] = _spiking(counts, real, costs)
        if early and name in early:
            counts = (
                [work(net, x, realised, early[name][0])]
                if members is None or isinstance(members, Dropout)
                else _drawn(net, x, latents, members, seed, early[name])
            )
            rows[f"{name}{EARLY}"] = _spiking(counts, real, costs)
    rows[ANN] = _one_pass(single, costs)
    ratio = {name: row.joules / rows[ANN].joules for name, row in rows.items()}
    rows = {name: replace(row, ratio=ratio[name]) for name, row in rows.items()}
    return Ledger(x.shape[1], len(x), costs, SOURCE, rows)


def _drawn(
    net: Network,
    x: Tensor,
    latents: list[Tensor],
    members: int | Members,
    seed: int,
    until: Tensor | None = None,
) -> list[list[Work]]:
    """The work of each member of an ensemble; the first one alone reads the input."""
    counts = []
    if isinstance(members, int):
        members = weights.draw_members(latents, positive_int("predictors", members), seed)
    for k, member in enumerate(members):
        real = net.alphabet is None
        realised = [w if real else realisation.hard(w.to(x.dtype)) for w in member]
        first, *others = work(net, x, realised, None if until is None else until[k])
        if k:
            first = first._replace(values=first.values - math.prod(net.input_shape))
        counts.append([first, *others])
    return counts


def _with_readouts(single: list[Work], members: int) -> list[list[Work]]:
    """Members by dropout share the layers, and each has a readout of its own."""
    *layers, readout = single
    return [[*layers, readout._replace(operations=members * readout.operations)]]


def _update(neuron: Neuron, costs: Costs) -> float:
    """Picojoules of a neuron update."""
    assert neuron.operations is not None
    multiplications, additions = neuron.operations
    if neuron.dtype == np.int32:
        return multiplications * costs.int_multiply + additions * costs.int_add
    return multiplications * costs.float_multiply + additions * costs.float_add


def _spiking(members: list[list[Work]], real: bool, costs: Costs) -> LedgerRow:
    """The row of a predictor that adds where spikes are."""
    # A readout is +-1 in any case
    bits = [32 if real and count.neurons else count.planes for count in members[0]]
    size = sum(
        b * count.parameters / 8 + count.state for b, count in zip(bits, members[0], strict=True)
    )
    memory = _memory(size)
    layers = []
    for b, parts in zip(bits, zip(*members, strict=True), strict=True):
        # An operation adds a real weight, or one bit plane of a weight
        operations = sum(part.operations for part in parts) * (1 if b == 32 else b)
        updates = sum(part.steps * part.neurons for part in parts)
        spikes = sum(part.steps * part.values for part in parts) / 8
        moved = 2.0 * sum(part.steps * part.state for part in parts)
        traffic = operations * (4 if b == 32 else 1 / 8), moved, spikes
        adding = operations * (costs.float_add if b == 32 else costs.int_add)
        picojoules = adding, updates * _update(parts[0].neuron, costs)
        bits_stored = b * sum(part.parameters for part in parts)
        done = parts[0].layer, bits_stored, operations, updates
        layers.append(_entry(*done, traffic, picojoules, memory, costs))
    return _row(layers, memory)


def prices(layers: Sequence[Work], costs: Costs | None = None) -> list[tuple[float, float]]:
    """Of each of the `layers` of a network that adds where spikes are, by its rules and `costs`:
    joules of a time step without a spike, and of each synaptic operation on top.
    """

    def joules(operations: float) -> list[float]:
        counts = [part._replace(operations=operations / part.planes, steps=1) for part in layers]
        return [layer.joules for layer in _spiking([counts], False, costs or Costs()).layers]

    return [(idle, one - idle) for idle, one in zip(joules(0), joules(1), strict=True)]


def _one_pass(counts: list[Work], costs: Costs) -> LedgerRow:
    """The ANN's row."""
    memory = _memory(sum(4 * (count.parameters + count.neurons) for count in counts))
    layers = []
    for count in counts:
        operations, updates = float(count.synapses), count.neurons
        traffic = 4 * operations, 0.0, 4.0 * count.values
        summing = operations * (costs.float_multiply + costs.float_add)
        picojoules = summing, updates * costs.float_add
        done = count.layer, 32 * count.parameters, operations, updates
        layers.append(_entry(*done, traffic, picojoules, memory, costs))
    return _row(layers, memory)


def _memory(size: float) -> str:
    return next(name for name, capacity in CAPACITY.items() if size <= capacity)


def _entry(
    layer: str,
    bits: int,
    operations: float,
    updates: int | float,
    traffic: tuple[float, float, float],
    picojoules: tuple[float, float],
    memory: str,
    costs: Costs,
) -> LayerExpenses:
    """A line of the ledger from counts, bytes (weights, state, spikes) and energies."""
    access = sum(traffic) / 8 * getattr(costs, memory)
    synapses, neurons = picojoules
    weight_bytes, state_bytes, spike_bytes = traffic
    return LayerExpenses(
        weight_bits=bits,
        synaptic_operations=operations,
        neuron_updates=updates,
        weight_bytes=weight_bytes,
        state_bytes=state_bytes,
        spike_bytes=spike_bytes,
        bytes=sum(traffic),
        synapse_joules=1e-12 * synapses,
        neuron_joules=1e-12 * neurons,
        memory_joules=1e-12 * access,
        joules=1e-12 * (synapses + neurons + access),
        layer=layer,
    )


def _row(layers: list[LayerExpenses], memory: str) -> LedgerRow:
    """Sums over the layers, and the layers."""
    names = [field.name for field in fields(Expenses)]
    total = {name: sum(getattr(layer, name) for layer in layers) for name in names}
    return LedgerRow(**total, memory=memory, layers=layers)


def si(value: float, unit: str) -> str:
    """Three digits and a prefix.

    >>> si(1234e-9, "J"), si(999.9e3, "B"), si(0, "J")
    ('1.23 µJ', '1 MB', '0 J')
    """
    value = float(f"{value:.3g}")  # first, or 999.9 would become 1e+03
    power = min(max(math.floor(math.log10(value) / 3), -4), 3) if value else 0
    return f"{value / 1000.0**power:.3g} {('', 'k', 'M', 'G', 'p', 'n', 'µ', 'm')[power]}{unit}"
