"""From a config to the network's input: its data, the shape of a time step, and spikes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data.augmentation import Augmentation, augmented
from bisnn.data.corrupted import corrupted_anew
from bisnn.data.dataset import Dataset, SpikeTrains
from bisnn.data.events import Recording
from bisnn.data.loading import Clips, LoadedData, encoded, rescaled
from bisnn.data.series import Series, check_burn_in, loose
from bisnn.data.series_files import values_of
from bisnn.data.windows import Loose
from bisnn.display import note
from bisnn.kernels.graphs import to_device
from bisnn.packed.columns import Schema
from bisnn.runs.config import Config
from bisnn.runs.own import PYTHON
from bisnn.runs.series_section import SeriesData


def located(config: Config, given: Dataset | Series | str | Path | None) -> Config:
    """The config with its data where they lie now, if a path says so."""
    if not isinstance(given, (str, Path)):
        return config
    return config.model_copy(update={"data": config.data.moved(Path(given))})


def load_dataset(
    config: Config, show: bool = True, given: Dataset | Series | None = None
) -> LoadedData:
    """The points of a config, the same for the same seed, or those given from Python.

    With `show`, a progress bar runs while a cache of recordings is built.
    """
    if given is not None:
        given_section(config, given)  # refuses what does not fit the config
    if isinstance(given, Dataset):
        return given.load(config.data.validation, config.seed)
    if given is not None and isinstance(config.data, SeriesData):
        data = config.data.load_given(given, config.seed)
    else:
        device = config.train.device if torch.cuda.is_available() else "cpu"
        data = config.data.load(config.seed, device, show)
    if isinstance(config.data, SeriesData):
        check_burn_in(data, max(config.train.burn_in, config.burn_in))
    return data


def given_section(config: Config, data: Dataset | Series) -> dict[str, Any]:
    """The section of a config for data given from Python."""
    if isinstance(data, Dataset):
        return {"name": PYTHON, "validation": config.data.validation}
    if not isinstance(data, Series):
        raise ValueError(
            "data: must be a bisnn.data.Dataset, or a bisnn.data.Series of recordings over time; "
            f"got a {type(data).__name__}; give Dataset(train, test), where each of the two may be "
            "a dataset of torch's"
        )
    if not isinstance(config.data, SeriesData):
        raise ValueError(
            'data: series need a config with data.name = "series", which says how they become '
            f'spikes; got "{config.data.name}"; change it, or let `bisnn new` write one'
        )
    return config.data.without_files().model_dump(exclude_none=True)


def described(config: Config, data: LoadedData) -> Config:
    """The config with what a model must know of data and rule of the user's own."""
    sections = {"data": config.data.described(data), "rule": config.rule.described()}
    if sections["data"] is config.data and sections["rule"] is config.rule:
        return config
    return config.updated(
        **{name: section.model_dump(exclude_none=True) for name, section in sections.items()}
    )


def check_unchanged(config: Config, data: LoadedData, digest: str, run: object) -> None:
    """See that these are the points or recordings of this digest, with which a run began."""
    complaint = config.data.complaint(run)
    if complaint is not None and digest != data.digest():
        raise ValueError(complaint)


def input_shape(config: Config, features: int) -> tuple[int, ...]:
    """The shape of the network's input, after (T, B): for points, or for recordings."""
    if config.recorded:
        return config.data.shape_recorded()
    return (features * config.encode.neurons if config.encode.code == "population" else features,)


def spikes(
    config: Config, x: Tensor | Clips, device: torch.device | str = "cpu", encoding_number: int = 0
) -> Tensor:
    """Points x (B, d) encoded as spikes (T, B, N), or recordings (T, B, C, H, W), as they are
    predicted; bool.

    Points are keyed by seed, value and `encoding_number`: any order, batch or subset of them has
    the same spikes.
    """
    if isinstance(x, Clips):
        return x.spikes(device).bool()
    code = config.encode.model_dump()
    return encoded(x, code, config.seed, Purpose.ENCODING, encoding_number, device)


def training_spikes(
    config: Config,
    x: Tensor | Clips,
    epoch: int,
    samples: Tensor,
    device: torch.device | str = "cpu",
) -> Tensor:
    """As `spikes`, anew each epoch, recordings augmented by draws of (seed, epoch, sample)."""
    if isinstance(x, Clips):
        how = config.augment.model_dump()
        kinds, strengths = how.pop("corruptions"), how.pop("strengths")
        seen = (
            to_device(
                corrupted_anew(x, kinds, strengths, config.training_seed, epoch, samples), device
            )
            if kinds
            else x.spikes(device)
        )
        return augmented(seen, Augmentation(**how), config.training_seed, epoch, samples).bool()
    code = config.encode.model_dump()
    return encoded(x, code, config.training_seed, Purpose.TRAINING_ENCODING, epoch, device)


def points_of(config: Config, x: Any, schema: Schema | None, low: Tensor, high: Tensor) -> Tensor:
    """Raw features from a user, as a model of points takes them, (N, d) float32 in [0, 1]."""
    if config.recorded:
        raise ValueError(
            f"x: this model was trained on {config.data.name} recordings and takes no "
            "features; use predict_recordings"
        )
    if schema is not None:
        x, notes = schema.encode(x)
        for text in notes:
            note(text)
    x = np.asarray(x, dtype=np.float64)
    if x.ndim == 3:
        raise ValueError(
            f"x: must be points, (N, {len(low)}); got series {x.shape}, (N, T, D), which take a "
            'model trained with data.name = "series"'
        )
    if x.ndim != 2 or x.shape[1] != len(low) or len(x) == 0:
        raise ValueError(
            f"x: must be (N, {len(low)}) with N >= 1; got shape {x.shape}; one row per point"
        )
    if bad := len(x) - int(np.isfinite(x).all(1).sum()):
        raise ValueError(
            f"x: must be finite; got NaN or infinite values in {bad} of {len(x)} rows; fill them "
            "in, or leave these out"
        )
    return rescaled(x, low, high)


def recordings_of(
    config: Config, recordings: Sequence[str | Path | np.ndarray | Recording]
) -> tuple[Clips, Loose]:
    """Recordings from a user, as a model of recordings takes them, and what reads them."""
    if not config.recorded:
        raise ValueError(
            f"recordings: this model was trained on the points of {config.data.name} and takes no "
            "recordings; use predict"
        )
    if not isinstance(recordings, (list, tuple)) or not recordings:
        raise ValueError(
            f"recordings: must be a list of one or more; got {type(recordings).__name__}; "
            "give e.g. [file]"
        )
    config.data.check_recordings(recordings)
    loose = Loose(recordings, config.data.window())
    return Clips(loose, torch.arange(len(recordings))), loose


def series_of(config: Config, x: Any) -> Clips:
    """Series from a user, (N, T, D) or a list of (T, D), as a model of series takes them."""
    if not isinstance(config.data, SeriesData):
        raise ValueError(
            f"x: this model was trained on {config.data.name} and takes no series; use predict or "
            "predict_recordings"
        )
    return loose(values_of("x", x), config.data.series_code(), config.data.steps, config.seed)


def spike_trains_of(config: Config, x: Any, shape: tuple[int, ...]) -> Clips:
    """Spikes (N, T, *shape) from a user, as a model of recordings takes them."""
    if not config.recorded:
        raise ValueError(
            f"x: this model was trained on the points of {config.data.name} and takes no "
            "spikes; use predict"
        )
    trains, wanted = np.asarray(x), (config.steps, *shape)
    if trains.shape[1:] != wanted or len(trains) == 0 or not np.isin(trains, (0, 1)).all():
        raise ValueError(
            f"x: must be spikes, 0 or 1, (N, {', '.join(map(str, wanted))}) with N >= 1; "
            f"got shape {trains.shape}; "
            "recordings come first, then time"
        )
    return Clips(SpikeTrains(torch.from_numpy(trains.astype(np.uint8))), torch.arange(len(trains)))


@functools.lru_cache(maxsize=1)
def shuffled(points: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch takes its points; made once for all of its steps."""
    return torch.from_numpy(philox.permutation(points, seed, Purpose.SHUFFLING, epoch))
