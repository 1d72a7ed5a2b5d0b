"""From a config to the network's input: its data, the shape of a time step, and spikes."""

from __future__ import annotations

import torch
from torch import Tensor

from bisnn.bits.philox import Purpose
from bisnn.data.augmentation import Augmentation, augmented
from bisnn.data.dataset import Dataset
from bisnn.data.loading import Clips, LoadedData, encoded
from bisnn.runs.config import Config


def load_dataset(config: Config, show: bool = True, given: Dataset | None = None) -> LoadedData:
    """The points of a config, the same for the same seed, or those given from Python.

    With `show`, a progress bar runs while a cache of recordings is built.
    """
    if given is not None:
        return given.load(config.data.validation, config.seed)
    device = config.train.device if torch.cuda.is_available() else "cpu"
    return config.data.load(config.seed, device, show)


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
        how = Augmentation(**config.augment.model_dump())
        return augmented(x.spikes(device), how, config.seed, epoch, samples).bool()
    code = config.encode.model_dump()
    return encoded(x, code, config.seed, Purpose.TRAINING_ENCODING, epoch, device)
