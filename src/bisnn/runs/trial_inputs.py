"""What exports are tried on: test recordings of the run, or inputs that are made up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data.dataset import Dataset
from bisnn.data.loading import Clips, LoadedData
from bisnn.data.series import Series
from bisnn.display import note
from bisnn.packed.engine import Engine
from bisnn.packed.network import PackedNetwork
from bisnn.runs.inputs import load_dataset, spikes
from bisnn.runs.model import Model
from bisnn.runs.own import PYTHON, OwnData

NOISE = 0.05  # spikes of recordings that are made up
TRIED = 10  # inputs, one of which is the golden one


def own_data(trained: Model, data: Dataset | Series | None) -> LoadedData | None:
    """The run's data, or those given from Python; None, and a line says why, where they cannot be
    read, or not without running the code of a module that the config names.
    """
    section, why = trained.config.data, ""
    if data is None and isinstance(section, OwnData) and section.name != PYTHON:
        why = f"reading them would run the code of {section.name}; give data, from Python"
    else:
        try:
            return load_dataset(trained.config, given=data)
        except (ValueError, OSError) as error:
            why = str(error)
    note(f"inputs are made up, as the run's own are not read: {why}")
    return None


def made_up(trained: Model, count: int) -> np.ndarray:
    """Noise, uint8 (N, T, ...); or for a model of points features over their range, (N, d) in
    [0, 1].
    """
    config = trained.config
    shape = (config.steps, *trained.net.input_shape) if config.recorded else (trained.features,)
    drawn = philox.uniform(range(count), math.prod(shape), config.seed, Purpose.EXPORT)
    drawn = drawn.reshape(count, *shape)
    return (drawn < NOISE).astype(np.uint8) if config.recorded else drawn


def trial_inputs(
    trained: Model, count: int, data: Dataset | Series | None = None
) -> tuple[np.ndarray, list[int]]:
    """Inputs of the network, uint8 (T, N, ...), and how many time steps of each count: the first
    test recordings, or noise where there are none; of a model of points, these at random, encoded.

    Args:
        trained: the model.
        count: at most so many.
        data: of a run whose data were given from Python, the same again.
    """
    config = trained.config
    if not config.recorded:
        x = spikes(config, torch.from_numpy(made_up(trained, count))).to(torch.uint8).numpy()
        return x, [config.steps] * count
    loaded = own_data(trained, data)
    if loaded is None:
        return made_up(trained, count).swapaxes(0, 1), [config.steps] * count
    recordings = loaded.test.x[:count]
    assert isinstance(recordings, Clips)
    return recordings.spikes().numpy(), lengths(recordings, config.steps)


def lengths(recordings: Clips, steps: int) -> list[int]:
    """How many time steps of each recording count."""
    mask = recordings.mask()
    return [steps] * len(recordings) if mask is None else mask.sum(0).tolist()


def golden_recording(
    network: PackedNetwork, trained: Model, data: Dataset | Series | None = None
) -> np.ndarray:
    """What exported C code is tried and measured on, uint8 (T, ...): of some inputs the one that
    makes the last layer fire most, by the first member; to its end, and to the last look at it.
    """
    x, ends = trial_inputs(trained, TRIED, data)
    first = replace(
        network, layers=tuple(replace(z, weights=z.weights[:1]) for z in network.layers), sets=None
    )
    found = Engine(first).run(x, spikes=True).spikes  # each (1, T, N, ...)
    best = int(found[-1].reshape(*found[-1].shape[:3], -1).sum((0, 1, 3)).argmax())
    silent = [i for i, s in enumerate(found) if not s[:, :, best].any()]
    if silent:
        note(
            f"layer {silent[0]} fires at none of the time steps of the golden recording, so that "
            "its golden vectors show little: train longer, or with a lower threshold"
        )
    looks = network.sets.path[-1][0] if network.sets else 0
    return x[: max(ends[best], looks), best]
