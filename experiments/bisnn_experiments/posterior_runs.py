"""Runs of the study `posterior`: recordings, one training in memory, and what its members say.

Recordings are N-MNIST's digits 6 to 9. For exploring, a fifth of the training recordings is held
out to judge on; in the end runs are judged on the test recordings. What a predictor says of a
recording is kept as two things: `p`, the log of the softmax's mean over time, and `z`, the mean of
the readout.
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
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from bisnn import kernels, prediction, realisation, weights
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data.archives import NMNIST
from bisnn.data.corruption import CORRUPTIONS, corrupt
from bisnn.data.dataset import Dataset
from bisnn.data.loading import Clips, LoadedData, Split, from_recordings
from bisnn.files import write_atomic
from bisnn.kernels.graphs import Graphs
from bisnn.prediction import Dropout, Members
from bisnn.rules import BayesBiSNN
from bisnn.runs import config
from bisnn.runs.loop import Training
from bisnn.runs.processes import Processes
from bisnn.shipping import energy

CLASSES = (6, 7, 8, 9)
OTHERS = (0, 1, 2, 3, 4, 5)
STEPS, BIN_US = 30, 10_000
BATCH = 250  # recordings predicted at a time
HELD_OUT = 100  # training recordings of each class that exploring judges on
EXPLORED = (2, 4)  # strengths of each corruption, and ...
EXPLORED_SHARE = 4  # ... each on one in so many of the held-out recordings
COUNTED = 16  # recordings that operations are counted on
SHARE = 5  # in the end, each of five strengths on one in so many of the test recordings
CLEAN, OTHER, HELD = "clean", "others", "held out"  # sets of recordings
MEMBERS = 4  # drawn from a posterior
SEED = 0  # of the split that exploring holds out, and of the corruptions


@dataclass(frozen=True)
class Recipe:
    """How one network is trained: a config, and what a config cannot say."""

    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    # Begin where ST-BiSNN ended on the same recordings: latents of its signs, times this
    start: float | None = None
    prior: float | None = None  # the prior's logits are those signs, times this
    # Values of tau or temperature for each layer
    by_layer: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def with_settings(self, settings: dict[str, Any]) -> Recipe:
        return replace(self, settings={**self.settings, **settings})

    def name(self) -> str:
        """A short name for files, of all that it says."""
        text = json.dumps([self.config, self.settings, self.start, self.prior, self.by_layer])
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


class Said(NamedTuple):
    """What K members say of N recordings, (K, N, C) each."""

    log_p: np.ndarray  # of the mean softmax over time
    z: np.ndarray  # the mean readout over time

    def pooled(self) -> Said:
        """All members as one."""
        log_p = np.log(np.exp(self.log_p).mean(0, keepdims=True))
        return Said(log_p, self.z.mean(0, keepdims=True))

    def some(self, count: int) -> Said:
        """The first members."""
        return Said(self.log_p[:count], self.z[:count])


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

    def others(self, train: bool) -> NMNIST:
        return self.read(self.small, train, OTHERS)

    def by_class(self, seed: int) -> list[Tensor]:
        """Numbers of the training recordings of each class, in an order of the seed."""
        order = philox.permutation(len(self.train), seed, Purpose.VALIDATION_SPLIT)
        numbers = torch.from_numpy(order)
        return [numbers[self.train.labels[numbers] == c] for c in range(len(CLASSES))]

    def held_out(self) -> Tensor:
        """Training recordings that exploring never trains on."""
        return torch.cat([some[:HELD_OUT] for some in self.by_class(SEED)])

    def few(self, size: int, seed: int) -> LoadedData:
        """So many recordings of each class to train on, other ones for each seed, or all that are
        not held out, which stand in the place of the test.
        """
        rest = [some[HELD_OUT:] for some in self.by_class(SEED)]
        chosen = torch.cat([some.roll(-seed * size)[:size] for some in rest])
        whole = from_recordings(self.train, self.train, 0.0, 0)
        train, test = (
            Split(Clips(self.train, some), self.train.labels[some])
            for some in (chosen, self.held_out())
        )
        return replace(whole, train=train, test=test)


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


def recordings_to_judge(archives: Archives, final: bool) -> Sets:
    """Clean, corrupted, and other digits; corrupted ones are named "kind strength". Each corruption
    is of one in SHARE of the recordings, and all recordings have the same number of them, in the
    end. In the end there are also held-out training recordings, for temperatures.
    """
    source = archives.test if final else archives.train
    numbers = torch.arange(len(source)) if final else archives.held_out()
    bits, labels = {}, {}

    def add(name: str, of: NMNIST, chosen: Tensor, change: Any = lambda seen: seen) -> None:
        assert of.source is not None
        window, read = of.source
        bits[name] = _packed([window.frames(change(read(int(i)))) for i in chosen])
        labels[name] = of.labels[chosen].numpy()

    add(CLEAN, source, numbers)
    share = SHARE if final else EXPLORED_SHARE
    for k, kind in enumerate(CORRUPTIONS):
        for strength in range(1, 6) if final else EXPLORED:
            change = partial(corrupt, kind=kind, strength=strength, seed=SEED)
            add(f"{kind} {strength}", source, numbers[(k + strength) % share :: share], change)
    others = [archives.others(True), *([archives.others(False)] if final else [])]
    every = 1 if final else 2
    frames = [part[i][0].numpy() for part in others for i in range(0, len(part), every)]
    bits[OTHER], labels[OTHER] = _packed(frames), np.full(len(frames), -1)
    if final:
        add(HELD, archives.train, archives.held_out())
    return Sets(bits, labels, source.shape)


# Training


@dataclass(frozen=True)
class Subset:
    """Data that are there already, as `Training` takes them."""

    data: LoadedData

    def load(self, validation: float, seed: int) -> LoadedData:
        return self.data


def trained(recipe: Recipe, data: LoadedData, seed: int, device: torch.device) -> Training:
    """Train a network, which is kept in memory alone."""
    settings = config.load(recipe.config).updated(
        seed=seed, **{"train.device": device.type, "data.classes": list(CLASSES), **recipe.settings}
    )
    signs = None
    if recipe.start is not None or recipe.prior is not None:
        st = trained(Recipe("nmnist_st"), data, seed, device)
        signs = [weights.sign(p.detach()) for p in st.net.parameters()]
    with kernels.precision(settings.train.precision):
        subset = cast(Dataset, Subset(data))
        run = Training(settings, Processes(0, 1, device), show=False, given=subset)
        if signs is not None and recipe.start is not None:
            with torch.no_grad():
                for p, sign in zip(run.net.parameters(), signs, strict=True):
                    p.copy_(recipe.start * sign)
        if recipe.prior is not None or recipe.by_layer:
            _regroup(run, recipe, signs)
        while not run.finished:
            run.update()
    return run


def _regroup(run: Training, recipe: Recipe, signs: Sequence[Tensor] | None) -> None:
    """Give every layer a group of its own, with its own options."""
    rule = run.rule
    assert isinstance(rule, BayesBiSNN)
    (group,) = rule.param_groups
    names = ("lr", "temperature", "tau", "straight_through", "precondition", "betas")
    options = {name: group[name] for name in names}
    groups = []
    for i, p in enumerate(run.net.parameters()):
        own: dict[str, Any] = {name: values[i] for name, values in recipe.by_layer.items()}
        if recipe.prior is not None and signs is not None:
            own["prior"] = recipe.prior * signs[i]
        groups.append({"params": [p], **options, **own})
    run.rule = BayesBiSNN(groups, **options, seed=run.config.seed)
    if run._graphs is not None:
        run._graphs = Graphs(list(run.net.parameters()), run.rule)


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
        # Of the posterior itself, and of a flatter and a sharper one
        for name, factor in {"members": 1.0, "flatter": 0.5, "sharper": 2.0}.items():
            found[name] = weights.draw_members([factor * w for w in latents], MEMBERS, seed)
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
            parts: list[tuple[Tensor, Tensor]] = []
            for x in sets.batches(name, device):
                y = prediction.logits(run.net, x, members, seed=seed)[:, burn_in:]
                log_p = y.log_softmax(-1).double().logsumexp(1) - math.log(y.shape[1])
                parts.append((log_p.float().cpu(), y.mean(1).cpu()))
            found[name] = Said(*(torch.cat(part, 1).numpy() for part in zip(*parts, strict=True)))
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
        f"{predictor}/{name}/{what}": getattr(said, what).astype(np.float16)
        for predictor, sets in found.items()
        for name, said in sets.items()
        for what in Said._fields
    }
    write_arrays(path, {"about": np.array(json.dumps(about)), **arrays})


def read_said(path: Path) -> tuple[dict[str, dict[str, Said]], dict[str, Any]]:
    """What `write_said` wrote."""
    found: dict[str, dict[str, Said]] = {}
    arrays = read_arrays(path)
    about = json.loads(str(arrays.pop("about")))
    for key in (key for key in arrays if key.endswith("/z")):
        predictor, name, _ = key.split("/")
        parts = (arrays[f"{predictor}/{name}/{what}"].astype(np.float32) for what in Said._fields)
        found.setdefault(predictor, {})[name] = Said(*parts)
    return found, about
