"""From a config to its network, and what the state of its rule will be."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from typing import Any

import torch

from bisnn.alphabet import alphabet_of
from bisnn.files import afford
from bisnn.layer import Layer
from bisnn.layers import Conv2d, Linear, Recurrent
from bisnn.network import Network
from bisnn.neuron import SRM, FixedSRM
from bisnn.optimizer import Rule
from bisnn.runs.config import Config, Convolution, Dense
from bisnn.spec import LayerSpec, Shape, read_from, side_by_side


def planned_layers(config: Config, shape: Shape) -> list[tuple[Layer, LayerSpec]]:
    """The layers of a config, without weights yet, and their descriptions, within the budget."""
    planned: list[tuple[Layer, LayerSpec]] = []
    neuron, alphabet = _neuron(config), alphabet_of(config.network.weights)
    entries: list[Convolution | Dense] = [*config.network.conv, *config.network.layers]
    for number, entry in enumerate(entries):
        shapes = [*(spec.output_shape for _, spec in planned), shape]
        conv = isinstance(entry, Convolution)
        try:
            parts = [shapes[n] for n in read_from(entry.inputs, number)]
            layer = _layer(entry, side_by_side("conv" if conv else "dense", parts))
            planned.append((layer, layer.plan(number, shapes, neuron, alphabet)))
        except ValueError as error:
            at = number if conv else number - len(config.network.conv)
            raise ValueError(f"network.{'conv' if conv else 'layers'}.{at}: {error}") from None
    weights = sum(spec.synapses for _, spec in planned)
    values = math.prod(shape) + sum(math.prod(spec.current_shape) for _, spec in planned)
    members = config.predict.samples if config.rule.posterior() else 0
    what = f"a prediction by {max(members, 1)} members over {config.steps} time steps"
    needed = members * weights + 4 * config.steps * values
    afford("predict.samples, network and time steps", needed, what)
    return planned


def _layer(entry: Convolution | Dense, shape: Shape) -> Layer:
    """The layer of a config's entry, for what comes in."""
    if isinstance(entry, Dense):
        kind = Recurrent if entry.recurrent else Linear
        return kind(math.prod(shape), entry.neurons, inputs=entry.inputs)
    return Conv2d(
        shape[0],
        entry.channels,
        entry.kernel,
        stride=entry.stride,
        padding=entry.padding,
        pool=entry.pool,
        inputs=entry.inputs,
    )


def _neuron(config: Config) -> SRM:
    settings = config.neuron.model_dump(exclude={"kind"})
    if config.neuron.kind == "fixed":
        return FixedSRM(**settings)
    settings.pop("fraction")
    return SRM(**settings)


def build_network(config: Config, shape: tuple[int, ...], outputs: int) -> Network:
    """The untrained network of a config, for inputs (T, B, *shape), on the CPU."""
    layers = [layer for layer, _ in planned_layers(config, shape)]
    return Network(
        *layers,
        input_shape=shape,
        readout=outputs,
        neuron=_neuron(config),
        weights="real" if config.rule.real_weights() else config.network.weights,
        posterior=bool(config.rule.posterior()),
        gradient=config.network.gradient,
        readout_after=config.network.readout_after,
        readout_gain=config.network.readout_gain,
        init=config.network.init,
        seed=config.seed,
        weights_seed=config.training_seed,
        dtype=getattr(torch, config.train.dtype),
    )


def state_after_a_step(rule: Rule | torch.optim.Optimizer) -> dict[str, Any]:
    """What a copy of the rule has in its state after a step: the structure of checkpoints."""
    twin = copy.deepcopy(rule)
    with twin.sampled() if isinstance(twin, Rule) else nullcontext():
        for p in (p for group in twin.param_groups for p in group["params"]):
            p.grad = torch.zeros_like(p)
    twin.step()
    return twin.state_dict()
