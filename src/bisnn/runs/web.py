"""A run's page: which test inputs it brings, and what its simplified camera does with a drawing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bisnn.data.archives import MNISTDVS
from bisnn.data.camera import MNIST_DVS
from bisnn.data.dataset import Dataset
from bisnn.data.loading import Clips, LoadedData
from bisnn.data.motion import Motion
from bisnn.data.series import Series
from bisnn.data.simulation import motion_of
from bisnn.display import note
from bisnn.packed.engine import Engine
from bisnn.packed.network import PackedNetwork
from bisnn.runs.config import Config
from bisnn.runs.data_sections import SimulatedData
from bisnn.runs.inputs import spikes
from bisnn.runs.labels import is_ragged
from bisnn.runs.model import Model
from bisnn.runs.trial_inputs import lengths, made_up, own_data
from bisnn.shipping import web as shipped

EXAMPLES = 10  # of as many classes, first of all
HARD = 2  # more, of recordings those that the answering predictor is least sure of
SEARCHED = 200  # of the test recordings, for those, at most
DOTS = 200  # test points on a plane
GRID = 40  # squares along an edge of the plane; three times as many points of a curve
FRAMES = 5  # of the page's camera in a time step


def write(
    packed: PackedNetwork,
    alone: PackedNetwork | None,
    trained: Model,
    path: Path,
    data: Dataset | Series | None = None,
) -> int:
    """Write the page of a run, whole or not at all; its size in bytes.

    Args:
        packed: what is shipped.
        alone: of an ensemble, the most probable weights, to compare with.
        trained: the model that both are of.
        path: the file.
        data: of a run whose data were given from Python, the same again.
    """
    return shipped.write(content(packed, alone, trained, own_data(trained, data)), path)


def content(
    packed: PackedNetwork, alone: PackedNetwork | None, trained: Model, data: LoadedData | None
) -> shipped.Content:
    """What the page of a run shows; its test inputs are those of `data`, or made up."""
    config = trained.config
    if config.data.each_step():
        raise ValueError(
            "to: a page has one answer for a recording, and this model was trained on labels of "
            'time steps; got "web"; ship it as C or packed'
        )
    if packed.sets is not None and data is not None and is_ragged(data.test.x):
        note(
            "prediction sets look beyond the end of recordings that are shorter than others, where "
            "the page stops: they are left out of it"
        )
        packed = replace(packed, sets=None)
    predictors = {"MAP" if trained.members else "network": packed}
    if alone is not None:
        layers = zip(alone.layers, packed.layers, strict=True)
        same = tuple(replace(layer, neuron=other.neuron) for layer, other in layers)
        several = f" of {alone.count} networks" if alone.count > 1 else ""
        single = {f"MAP{several}": replace(alone, layers=same)}
        predictors = {f"ensemble of {packed.count}": packed} | single
    examples = _made_up(trained) if data is None else _examples(packed, data, trained)
    # Of features that a point can be dragged along: numbers of the table as they are
    columns = trained.schema.columns if trained.schema else ()
    free = 0 if any(c.categories or c.blanks for c in columns) else trained.features
    map_of = {(2, True): _plane, (1, False): _curve}.get((free, bool(packed.classes)))
    return shipped.describe(
        predictors,
        examples,
        title=config.data.title(),
        sketchpad=sketchpad(config, packed.input_shape) if config.recorded else None,
        plane=map_of(packed, data) if map_of and data else None,
    )


def _made_up(trained: Model) -> list[shipped.Example]:
    """Noise, or points at random in the range of the features."""
    drawn = made_up(trained, EXAMPLES)
    if trained.config.recorded:
        return [shipped.Example("noise", recording) for recording in drawn]
    low, high = trained.low.numpy(), trained.high.numpy()
    points = low + drawn.astype(np.float64) * (high - low)
    return [shipped.Example("any", features=tuple(point)) for point in points.tolist()]


def _examples(network: PackedNetwork, data: LoadedData, trained: Model) -> list[shipped.Example]:
    """Test inputs: one of each class and others, of recordings the hardest, spread over the set."""
    x, y = data.test.x, data.test.y.reshape(len(data.test.y), -1)[:, 0]
    first = [int((y == c).nonzero()[0]) for c in y.unique()] if data.classes else []
    others = np.linspace(0, len(y) - 1, EXAMPLES).astype(int).tolist()
    if data.classes and isinstance(x, Clips) and not is_ragged(x):
        some = spikes(trained.config, x[: min(SEARCHED, trained.batch)]).numpy()
        unsure = Engine(network).predict(some).entropy
        assert unsure is not None
        others = np.argsort(-unsure, kind="stable")[: EXAMPLES + HARD].tolist()
    chosen = list(dict.fromkeys([*first[:EXAMPLES], *others]))[: EXAMPLES + HARD]
    labels = [data.classes[int(y[i])] if data.classes else f"{float(y[i]):.4g}" for i in chosen]
    if isinstance(x, Clips):
        clips = x[torch.tensor(chosen)]
        recordings = clips.spikes().numpy().swapaxes(0, 1)  # (N, T, ...)
        ends = zip(labels, recordings, lengths(clips, trained.config.steps), strict=True)
        return [shipped.Example(label, recording[:end]) for label, recording, end in ends]
    points = _raw(x[chosen].numpy(), data)
    return [
        shipped.Example(label, features=tuple(point.tolist()))
        for label, point in zip(labels, points, strict=True)
    ]


def _raw(x: np.ndarray, data: LoadedData) -> np.ndarray:
    """Scaled features in the units of the table, in few digits."""
    low, high = data.low.numpy(), data.high.numpy()
    raw = low + x.astype(np.float64) * (high - low)
    return np.array([[float(f"{value:.6g}") for value in row] for row in raw])


def _plane(network: PackedNetwork, data: LoadedData) -> dict[str, Any]:
    """Of two features: the likeliest class of a grid's squares and how sure that is, of 255."""
    places = (np.arange(GRID) + 0.5) / GRID
    x, y = np.meshgrid(places, places)
    low, high = data.low.numpy(), data.high.numpy()
    grid = low + np.stack([x.ravel(), y.ravel()], 1) * (high - low)
    found = Engine(network).predict_features(grid)
    return {
        "size": GRID,
        "classes": found.mean.argmax(-1).tolist(),
        "sure": np.rint(255 * found.mean.max(-1)).astype(int).tolist(),
        "dots": _dots(data),
    }


def _curve(network: PackedNetwork, data: LoadedData) -> dict[str, Any]:
    """Of one feature: the output over its range, and the members' deviation."""
    x = np.linspace(data.low.numpy(), data.high.numpy(), 3 * GRID)
    found = Engine(network).predict_features(x)
    mean, spread = (np.round(part[:, 0], 6).tolist() for part in (found.mean, found.std))
    return {"x": x[:, 0].tolist(), "mean": mean, "spread": spread, "dots": _dots(data)}


def _dots(data: LoadedData) -> list[list[float]]:
    """Some test points with their class or target."""
    assert isinstance(data.test.x, torch.Tensor)
    every = max(1, len(data.test.x) // DOTS)
    x, y = data.test.x[::every].numpy(), data.test.y[::every].numpy().reshape(-1, 1)
    return np.concatenate([_raw(x, data), np.round(y.astype(np.float64), 6)], 1).tolist()


def sketchpad(config: Config, shape: tuple[int, ...]) -> shipped.Sketchpad | None:
    """How a drawing moves: as the simulated digits do, or for others along a V and back."""
    if len(shape) != 3 or shape[0] > 2:
        return None
    height, width = shape[1:]
    data, steps = config.data, config.steps
    t_us = np.arange(FRAMES * steps + 1) / FRAMES
    if isinstance(data, SimulatedData):
        motion, corner = motion_of(not data.root, steps * data.bin_us), MNISTDVS.corner(data.crop)
        return shipped.Sketchpad(
            path=_path(motion, t_us * data.bin_us, corner),
            frames=FRAMES,
            scale=motion.scale,
            threshold_on=MNIST_DVS.threshold_on,
            threshold_off=MNIST_DVS.threshold_off,
            on=int(MNIST_DVS.on),
            follow=1 - math.exp(-data.bin_us / FRAMES / motion.response_us),
            dark=MNIST_DVS.dark,
            contrast=motion.contrast,
            level=motion.level,
            grid=20 if data.root else 8,
        )
    x, y = (width - 1) / 2, (height - 1) / 2
    far = 0.09 * min(height, width)
    corners = ((x + far, y + far), (x, y - far), (x - far, y + far), (x, y - far))
    motion = Motion(corners, legs_us=(max(1, steps // 4),) * 4, duration_us=steps)
    scale = 0.034 * min(height, width)
    return shipped.Sketchpad(_path(motion, t_us, 0), FRAMES, (scale, scale), 0.5, 0.5, on=1)


def _path(motion: Motion, t_us: np.ndarray, corner: int) -> tuple[tuple[float, float], ...]:
    if motion.refresh_us:  # of the display
        t_us = t_us // motion.refresh_us * motion.refresh_us
    places = np.round(motion.at(t_us) - corner, 3)
    return tuple((float(x), float(y)) for x, y in places)
