"""Networks of the study `posterior`: recordings, one training in memory, and what its members say.

Recordings are N-MNIST's digits 6 to 9. What is chosen, and temperatures, come from recordings that
are held out: training recordings of the same digits, of another archive. What a member says of a
recording is kept as the log of the softmax's mean over time.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn import kernels, prediction, realisation, weights
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data.archives import NMNIST
from bisnn.data.corruption import CORRUPTIONS, STRENGTHS, corrupt
from bisnn.data.dataset import Dataset
from bisnn.data.loading import Clips, LoadedData, Split, from_recordings
from bisnn.files import write_atomic
from bisnn.prediction import Dropout, Members
from bisnn.runs import config
from bisnn.runs.loop import Training
from bisnn.runs.processes import Processes
from bisnn.shipping import energy

CLASSES = (6, 7, 8, 9)
OTHERS = (0, 1, 2, 3, 4, 5)
STEPS, BIN_US = 30, 10_000
BATCH = 250  # recordings predicted at a time
COUNTED = 16  # recordings that operations are counted on
SHARE = 10  # each kind of corruption at each strength is judged on one in so many of the recordings
CLEAN, OTHER, HELD = "clean", "others", "held out"  # sets of recordings
MEMBERS = 4  # drawn from a posterior
SEED = 0  # of the order of the training recordings, and of the corruptions


@dataclass(frozen=True)
class Recipe:
    """How one network is trained: a config, and what is changed in it."""

    config: str
    settings: dict[str, Any] = field(default_factory=dict)

    def with_settings(self, settings: dict[str, Any]) -> Recipe:
        return replace(self, settings={**self.settings, **settings})

    def name(self) -> str:
        """A short name for files, of all that it says."""
        text = json.dumps([self.config, self.settings])
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


Said = np.ndarray  # what K members say of N recordings: logs of probabilities, (K, N, C)


# Recordings


class Archives:
    """The recordings of both archives, read when first asked for."""

    def __init__(self, digits: Path, small: Path):
        self.digits, self.small = digits, small

    def read(self, root: Path, train: bool, classes: Sequence[int]) -> NMNIST:
        return NMNIST(root, train, classes=classes, steps=STEPS, bin_us=BIN_US, show=False)

    @cached_property
    def train(self) -> NMNIST:
        return self.read(self.digits, True, CLASSES)

    @cached_property
    def test(self) -> NMNIST:
        return self.read(self.digits, False, CLASSES)

    @cached_property
    def held_out(self) -> NMNIST:
        return self.read(self.small, True, CLASSES)

    def others(self, train: bool) -> NMNIST:
        return self.read(self.small, train, OTHERS)

    def few(self, size: int, seed: int) -> LoadedData:
        """So many recordings of each class to train on, other ones for each seed as far as there
        are enough.
        """
        order = torch.from_numpy(
            philox.permutation(len(self.train), SEED, Purpose.VALIDATION_SPLIT)
        )
        by_class = [order[self.train.labels[order] == c] for c in range(len(CLASSES))]
        chosen = torch.cat([some.roll(-seed * size)[:size] for some in by_class])
        whole = from_recordings(self.train, self.held_out, 0.0, 0)
        return replace(whole, train=Split(Clips(self.train, chosen), self.train.labels[chosen]))


@dataclass(frozen=True)
class Sets:
    """Sets of recordings that predictors are asked about: spikes, as bits, and classes."""

    bits: dict[str, np.ndarray]  # (N, bytes)
    labels: dict[str, np.ndarray]  # (N,); -1 of other digits
    shape: tuple[int, ...]

    def batches(self, name: str, device: torch.device) -> Iterator[Tensor]:
        """Spikes (T, B, C, H, W), bool."""
        for some in np.array_split(self.bits[name], -(-len(self.bits[name]) // BATCH)):
            packed = torch.from_numpy(some).to(device)
            bits = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=device) & 1
            size = int(np.prod(self.shape))
            yield bits.flatten(1)[:, :size].reshape(-1, *self.shape).movedim(0, 1).bool()


def _packed(frames: Sequence[np.ndarray]) -> np.ndarray:
    return np.packbits(np.stack(frames).reshape(len(frames), -1), axis=1, bitorder="little")


def corruption(of: str, kind: str, strength: int) -> str:
    """The name of a set of recordings under a corruption."""
    return f"{of}, {kind} {strength}"


def corrupted_rows(k: int, strength: int, recordings: int) -> slice:
    """Which recordings are judged under the k-th kind of corruption at a strength: one in SHARE,
    so that all have the same number of corruptions.
    """
    return slice((k + strength) % SHARE, recordings, SHARE)


def recordings_to_judge(archives: Archives) -> Sets:
    """Test recordings and held-out ones, clean and corrupted, and other digits."""
    bits, labels = {}, {}

    def add(name: str, of: NMNIST, chosen: Sequence[int], change: Any = lambda seen: seen) -> None:
        assert of.source is not None
        window, read = of.source
        bits[name] = _packed([window.frames(change(read(i))) for i in chosen])
        labels[name] = of.labels[list(chosen)].numpy()

    for name, of in ((CLEAN, archives.test), (HELD, archives.held_out)):
        add(name, of, range(len(of)))
        for k, kind in enumerate(CORRUPTIONS):
            for strength in range(1, STRENGTHS + 1):
                change = partial(corrupt, kind=kind, strength=strength, seed=SEED)
                rows = range(len(of))[corrupted_rows(k, strength, len(of))]
                add(corruption(name, kind, strength), of, rows, change)
    others = [archives.others(True), archives.others(False)]
    bits[OTHER] = np.concatenate(
        [_packed([part[i][0].numpy() for i in range(len(part))]) for part in others]
    )
    labels[OTHER] = np.full(len(bits[OTHER]), -1)
    return Sets(bits, labels, archives.test.shape)


# Training


class Subset(Dataset):
    """Data that are there already, as `Training` takes them."""

    def __init__(self, data: LoadedData):
        self.data = data

    def load(self, validation: float, seed: int) -> LoadedData:
        return self.data


def trained(recipe: Recipe, data: LoadedData, seed: int, device: torch.device) -> Training:
    """Train a network, which is kept in memory alone."""
    settings = config.load(recipe.config).updated(
        seed=seed, **{"train.device": device.type, "data.classes": list(CLASSES), **recipe.settings}
    )
    with kernels.precision(settings.train.precision):
        run = Training(settings, Processes(0, 1, device), show=False, given=Subset(data))
        while not run.finished:
            run.update()
    return run


# Predictions


def members_of(run: Training, seed: int) -> dict[str, Members | Dropout | None]:
    """The predictors of a trained network by name, each of one or more members."""
    latents = [layer.weight.detach() for layer in run.net.layers]
    found: dict[str, Members | Dropout | None] = {"map": None}
    if run.snapshots:
        device = latents[0].device
        signs = [[realisation.map_weight(w.to(device)) for w in one] for one in run.snapshots]
        found["snapshots"] = [[w.to(torch.int8) for w in one] for one in signs]
    if run.config.network.dropout:
        found["dropout"] = Dropout(10, run.config.network.dropout)
    if run.config.rule.posterior():
        found["members"] = weights.draw_members(latents, MEMBERS, seed)
    return found


@torch.no_grad()
def said_of(
    run: Training, sets: Sets, members: Members | Dropout | None, seed: int
) -> dict[str, Said]:
    """What each member says of every set of recordings."""
    device, burn_in = next(run.net.parameters()).device, run.config.burn_in
    found = {}
    with kernels.precision("full"):
        for name in sets.bits:
            parts = []
            for x in sets.batches(name, device):
                y = prediction.logits(run.net, x, members, seed=seed)[:, burn_in:]
                log_p = y.log_softmax(-1).double().logsumexp(1) - math.log(y.shape[1])
                parts.append(log_p.float().cpu())
            found[name] = torch.cat(parts, 1).numpy()
    return found


@torch.no_grad()
def operations_of(run: Training, sets: Sets, members: Members | Dropout | None, seed: int) -> float:
    """Synaptic operations of a prediction by all these members, mean over a few recordings."""
    x = next(sets.batches(CLEAN, next(run.net.parameters()).device))[:, :COUNTED]
    rows = energy.ledger(run.net, x, {"it": members}, seed=seed).rows
    return rows["it"].synaptic_operations


# Files


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez_compressed(buffer, **named)
    write_atomic(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def write_said(path: Path, found: dict[str, dict[str, Said]], about: dict[str, Any]) -> None:
    """Write what predictors say, in half precision: {predictor: {set: Said}}."""
    arrays = {
        f"{predictor}/{name}": said.astype(np.float16)
        for predictor, sets in found.items()
        for name, said in sets.items()
    }
    write_arrays(path, {"about": np.array(json.dumps(about)), **arrays})


def read_said(path: Path) -> tuple[dict[str, dict[str, Said]], dict[str, Any]]:
    """What `write_said` wrote."""
    found: dict[str, dict[str, Said]] = {}
    arrays = read_arrays(path)
    about = json.loads(str(arrays.pop("about")))
    for key, said in arrays.items():
        predictor, name = key.split("/")
        found.setdefault(predictor, {})[name] = said.astype(np.float32)
    return found, about
