"""What a robust recipe keeps under a worse camera: binary weights beside real ones, trained alike.

    python -m bisnn_experiments.robustness --data N-MNIST digits --explore [--recipes today ...]
        [--methods full st] [--seeds 1] [--first-seed 0] [--shard 0/4] [--minutes 9]
        [--device cuda] [--runs FOLDER] [--out out/robustness]

A recipe trains with corrupted recordings, and is judged on corruptions of kinds that it has not
trained with: the kinds come in two halves, a run trains with one of them, and each kind is judged
by the runs that trained with the other. `today` is the config as it is; it trains with none, and is
judged on all. Kinds of a worse simulated camera are trained with by none.

With --explore runs train on four fifths of the training recordings and are judged on the last one:
the test recordings stay unread. A recipe is chosen so; without it, runs are judged on the test.
Those of `today` are then looked for in --runs, under the names that `bisnn reproduce table1` gives
them, before they are trained.

Every run is a file in OUT/rows, and is not done again; the same command goes on. --shard i/n takes
every n-th run, so that several commands share the work; --minutes begins no run that would take
longer. OUT/results.json is a summary of all rows that are there. Corrupted recordings are made
once, in the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bisnn import intervals, kernels, metrics
from bisnn.data import cache
from bisnn.data.archives import Recordings
from bisnn.data.corrupted import amounts_of, corrupted
from bisnn.data.corruption import STRENGTHS
from bisnn.data.loading import Batches, Clips, LoadedData, Split
from bisnn.data.simulation import SimulatedEvents
from bisnn.intervals import Interval
from bisnn.prediction import Classification
from bisnn.runs.config import Config
from bisnn.runs.evaluation import load_run
from bisnn.runs.loop import Training
from bisnn.runs.model import Model
from bisnn.runs.processes import Processes
from bisnn.runs.results import Finding, Metric
from bisnn.runs.robustness import SEED
from bisnn_experiments import recognition, results
from bisnn_experiments.measurement import machine, note, table
from bisnn_experiments.recognition import METHODS
from bisnn_experiments.results import Machine

# Of each pair of relatives (events that are missing, that are too many, another place, another
# time) one kind in each half
HALVES = {
    "first": ("lost_events", "noise_events", "moved_sensor", "faster_motion", "dropped_polarity"),
    "second": ("dead_pixels", "hot_pixels", "turned_sensor", "slower_motion", "jittered_times"),
}
TOGETHER = 64  # recordings corrupted at a time
LOW = {"neuron.threshold": 0.15}
LOWER = {"neuron.threshold": 0.1}
THROUGH = {"network.gradient": "bptt"}


class Recipe(NamedTuple):
    """What is changed in a config, and whether it trains with corruptions."""

    changes: dict[str, Any]
    corrupted: bool = True


# A binary weight cannot grow: where events are missing, currents fall below the threshold that a
# real weight would reach. So thresholds are among the candidates.
RECIPES = {
    "today": Recipe({}, False),
    "corrupted": Recipe({}),
    "corrupted, threshold 0.1": Recipe(LOWER),
    "threshold 0.1": Recipe(LOWER, False),
    "threshold 0.15": Recipe(LOW, False),
    "threshold 0.2": Recipe({"neuron.threshold": 0.2}, False),
    "corrupted, through layers and time": Recipe(THROUGH),
    "corrupted, threshold 0.15": Recipe(LOW),
    "corrupted, threshold 0.1, through layers and time": Recipe(LOWER | THROUGH),
    "corrupted to strength 3": Recipe({"augment.strengths": [0, 3]}),
}


class RobustRow(Finding):
    """A run: its accuracy and NLL on clean recordings, and by strength on those of each kind."""

    data: str
    recipe: str
    method: str
    half: str  # of the kinds that it trained with; empty for none
    seed: int
    explored: bool
    seconds: float
    clean_accuracy: float
    clean_nll: float
    accuracy: dict[str, list[float]]
    nll: dict[str, list[float]]
    # For each recording a digit: whether it is right when clean, at how many strengths of each kind
    clean_right: str | None = None
    right: dict[str, str] | None = None


class RobustSummary(Finding):
    """Means over seeds, and strengths, of runs that have not trained with the kind."""

    data: str
    recipe: str
    method: str
    explored: bool
    seeds: int
    clean_accuracy: float
    suite_accuracy: float  # mean over the kinds
    suite_nll: float
    accuracy: dict[str, float]


class Loss(Finding):
    """How much more accuracy binary weights lose than real ones, trained by the same recipe.

    With intervals over seeds and recordings where rows of both have the same seeds, and say which
    recordings were right.
    """

    data: str
    recipe: str
    method: str  # of the binary weights
    explored: bool
    clean: Metric | float | None  # accuracy of binary weights, less that of today's
    mean: Metric | float  # over the suite: real weights less binary ones
    worst: Metric | float
    worst_kind: str


class Robust(Finding):
    """The file of this study."""

    command: str
    machine: Machine
    losses: list[Loss]
    summary: list[RobustSummary]
    rows: list[RobustRow]


class Case(NamedTuple):
    """A run to do."""

    data: str  # folder, or "digits"
    kind: str  # what it holds
    recipe: str
    method: str  # the end of the config's name
    half: str
    seed: int

    def file(self, out: Path, explore: bool) -> Path:
        parts = [self.kind, self.method, self.recipe, self.half, "explored" * explore]
        name = "_".join(part.replace(",", "").replace(" ", "-") for part in parts if part)
        return out / "rows" / f"{name}_seed{self.seed}.json"

    def config(self, options: argparse.Namespace) -> Config:
        label = next(label for label, end in METHODS.items() if end == self.method)
        folder = None if self.data == "digits" else self.data
        recipe = RECIPES[self.recipe]
        changes = {"train.device": options.device, "train.threads": 1} | recipe.changes
        if recipe.corrupted:
            changes["augment.corruptions"] = list(HALVES[self.half])
        if options.explore:
            changes["data.validation"] = 0.2
        if options.epochs:
            changes["train.epochs"] = options.epochs
        chosen = recognition.experiment(folder, "tuned")[1][label]
        return chosen.updated(seed=self.seed, **changes)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """All runs, seed by seed, so that what ends early has compared something."""
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for data in options.data:
            kind = recognition.recognised(None if data == "digits" else data)[0]
            for recipe in options.recipes:
                for half in HALVES if RECIPES[recipe].corrupted else ("",):
                    for method in options.methods:
                        yield Case(data, kind, recipe, method, half, seed)


def suite(split: Split, name: str) -> Iterator[tuple[str, int, Split]]:
    """Recordings under every kind and strength of corruption, from the cache or made now."""
    clips = split.x
    assert isinstance(clips, Clips)
    assert isinstance(clips.recordings, Recordings)
    source = clips.recordings.source
    assert source is not None
    for kind in amounts_of(source):
        for strength in range(1, STRENGTHS + 1):
            about = {"kind": kind, "strength": strength, "seed": SEED}
            key = cache.key({**about, "of": clips.digest().hex()}, [], Path())
            worse = corrupted(source, kind, strength, SEED)
            index = clips.index
            one = _made_together(worse, index)
            path = cache.folder() / f"{name}-{kind}-{strength}-{key}.bits"
            bits = cache.build(path, source.window.shape, len(index), one)
            every = Clips(Recordings(bits, [0] * len(bits), []), torch.arange(len(bits)))
            yield kind, strength, Split(every, split.y)


def _made_together(worse: Batches, index: Tensor) -> Callable[[int], np.ndarray]:
    """The frames of each recording, made some at a time."""

    @lru_cache(1)
    def some(first: int) -> np.ndarray:
        return worse.batch(index[first : first + TOGETHER]).numpy()

    return lambda i: some(i - i % TOGETHER)[:, i % TOGETHER]


def trained(config: Config, device: str) -> tuple[Model, LoadedData]:
    """A run, kept in memory alone, and its data."""
    with kernels.precision(config.train.precision):
        run = Training(config, Processes(0, 1, torch.device(device)), show=False)
        data = run.data
        _share_events(data)
        while not run.finished:
            run.update()
        return run.trained_model(), data


def _found(case: Case, options: argparse.Namespace) -> tuple[Model, LoadedData] | None:
    """A run that `bisnn reproduce table1` has trained, and its data; None where there is none."""
    if options.runs is None or options.explore or case.recipe != "today":
        return None
    folder = options.runs / f"{case.kind}_{case.method}_tuned_seed{case.seed}"
    if not folder.exists():
        return None
    model, data = load_run(folder, show=False)
    model.net.to(options.device)
    return model, data


_EVENTS: dict[tuple[int, ...], dict[int, np.ndarray]] = {}


def _share_events(data: LoadedData) -> None:
    """Let all runs of this process share the events of simulated recordings, which take long."""
    for split in (data.train, data.test):
        assert isinstance(split.x, Clips)
        source = getattr(split.x.recordings, "source", None)
        if source is not None and isinstance(source.read, SimulatedEvents):
            source.read.made = _EVENTS.setdefault(tuple(source.read.samples), source.read.made)


def judged(model: Model, split: Split) -> tuple[np.ndarray, float]:
    """Which answers of the usual predictor are right, and their NLL."""
    with kernels.precision("full"):
        result = model.predict_points(split.x, model.members)
    assert isinstance(result, Classification)
    probs = result.mean.cpu()
    return (probs.argmax(-1) == split.y).numpy(), metrics.nll(probs, split.y)


def measured(case: Case, options: argparse.Namespace) -> RobustRow:
    """Train a run and judge it."""
    began = time.monotonic()
    model, data = _found(case, options) or trained(case.config(options), options.device)
    seconds = time.monotonic() - began
    split = data.validation if options.explore else data.test
    assert split is not None
    clean, clean_nll = judged(model, split)
    right: dict[str, list[np.ndarray]] = {}
    nll: dict[str, list[float]] = {}
    for kind, _, worse in suite(split, case.kind):
        found = judged(model, worse)
        right.setdefault(kind, []).append(found[0])
        nll.setdefault(kind, []).append(found[1])
    return RobustRow(
        data=case.kind,
        recipe=case.recipe,
        method=case.method,
        half=case.half,
        seed=case.seed,
        explored=options.explore,
        seconds=round(seconds, 1),
        clean_accuracy=float(clean.mean()),
        clean_nll=clean_nll,
        accuracy={kind: [float(one.mean()) for one in some] for kind, some in right.items()},
        nll=nll,
        clean_right=_text(clean),
        right={kind: _text(np.sum(some, 0)) for kind, some in right.items()},
    )


def _text(counts: np.ndarray) -> str:
    return "".join(map(str, counts.astype(int)))


def summarised(rows: Sequence[RobustRow]) -> Iterator[RobustSummary]:
    """Of each recipe and method, where every kind has been judged by a run that did not train with
    it.
    """
    keys = dict.fromkeys((r.data, r.recipe, r.method, r.explored) for r in rows)
    for key in keys:
        some = [r for r in rows if (r.data, r.recipe, r.method, r.explored) == key]
        judges = {
            kind: [r for r in some if kind not in HALVES.get(r.half, ())]
            for kind in some[0].accuracy
        }
        if not all(judges.values()):
            continue
        accuracy = {k: fmean(fmean(r.accuracy[k]) for r in by) for k, by in judges.items()}
        nll = {k: fmean(fmean(r.nll[k]) for r in by) for k, by in judges.items()}
        yield RobustSummary(
            data=some[0].data,
            recipe=some[0].recipe,
            method=some[0].method,
            explored=some[0].explored,
            seeds=len({r.seed for r in some}),
            clean_accuracy=fmean(r.clean_accuracy for r in some),
            suite_accuracy=fmean(accuracy.values()),
            suite_nll=fmean(nll.values()),
            accuracy=accuracy,
        )


def losses(rows: Sequence[RobustRow]) -> Iterator[Loss]:
    """Of every recipe that both kinds of weights were trained by."""
    summary = {(s.data, s.recipe, s.method, s.explored): s for s in summarised(rows)}
    for (data, recipe, method, explored), bits in summary.items():
        real = summary.get((data, recipe, "full", explored))
        if method == "full" or real is None:
            continue
        today = summary.get((data, "today", method, explored))
        gaps = {kind: real.accuracy[kind] - bits.accuracy[kind] for kind in real.accuracy}
        worst = max(gaps, key=lambda kind: gaps[kind])
        yield Loss(
            data=data,
            recipe=recipe,
            method=method,
            explored=explored,
            clean=None
            if today is None
            else _difference(bits.clean_accuracy - today.clean_accuracy, rows, bits, today),
            mean=_difference(fmean(gaps.values()), rows, real, bits, list(gaps)),
            worst=_difference(gaps[worst], rows, real, bits, [worst]),
            worst_kind=worst,
        )


def _difference(
    value: float,
    rows: Sequence[RobustRow],
    a: RobustSummary,
    b: RobustSummary,
    kinds: Sequence[str] = (),
) -> Interval | float:
    """The accuracy of a less that of b, on clean recordings or over these kinds of corruption, with
    its interval where one can be had.
    """
    right_a, right_b = (_right(rows, of, kinds) for of in (a, b))
    if right_a is None or right_b is None or right_a.keys() != right_b.keys():
        return value
    low, high = intervals.of_crossed_mean(np.stack([right_a[s] - right_b[s] for s in right_a]))
    return Interval(value, float(low), float(high))


def _right(
    rows: Sequence[RobustRow], of: RobustSummary, kinds: Sequence[str]
) -> dict[int, np.ndarray] | None:
    """By seed, the share right of each recording, over all strengths of kinds that weigh alike, or
    with no kinds clean; None if it is not known, or not of all kinds.
    """
    key = (of.data, of.recipe, of.method, of.explored)
    found: dict[int, list[RobustRow]] = {}
    for row in rows:
        if (row.data, row.recipe, row.method, row.explored) == key:
            found.setdefault(row.seed, []).append(row)
    if any(row.right is None for some in found.values() for row in some):
        return None
    shares = {}
    for seed, some in sorted(found.items()):
        judges = [[r for r in some if kind not in HALVES.get(r.half, ())] for kind in kinds]
        if not all(judges):
            return None
        each = [
            np.mean([_digits((r.right or {})[kind]) for r in by], 0) / STRENGTHS
            for kind, by in zip(kinds, judges, strict=True)
        ]
        shares[seed] = np.mean(each or [_digits(r.clean_right or "") for r in some], 0)
    return shares


def _digits(text: str) -> np.ndarray:
    return np.array(list(text), np.float64)


def do_all(options: argparse.Namespace) -> None:
    """Do the runs of this shard that are not done yet, as long as there is time."""
    began, longest = time.monotonic(), 0.0
    place, count = (int(part) for part in options.shard.split("/"))
    for case in list(cases(options))[place::count]:
        file = case.file(options.out, options.explore)
        if file.exists():
            continue
        start = time.monotonic()
        if options.minutes and start - began + longest > 60 * options.minutes:
            note(f"no time for {file.stem}: the same command goes on")
            return
        row = measured(case, options)
        results.write(file, row)
        longest = max(longest, time.monotonic() - start)
        over = fmean(value for some in row.accuracy.values() for value in some)
        note(f"{file.stem}: clean {row.clean_accuracy:.4f}, suite {over:.4f}, {row.seconds:.0f} s")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["digits"])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--methods", nargs="+", default=["full", "st"], choices=METHODS.values())
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, help="runs of `bisnn reproduce table1`")
    parser.add_argument("--explore", action="store_true")
    parser.add_argument("--shard", default="0/1", metavar="I/N")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--epochs", type=int, help="in place of the configs'")
    parser.add_argument("--out", type=Path, default=Path("out/robustness"))
    options = parser.parse_args(arguments)
    (options.out / "rows").mkdir(parents=True, exist_ok=True)
    do_all(options)
    rows = [results.read(file, RobustRow) for file in sorted((options.out / "rows").glob("*.json"))]
    summary = list(summarised(rows))
    found = list(losses(rows))
    kinds = list(dict.fromkeys(kind for s in summary for kind in s.accuracy))
    lines = [
        (
            f"{s.data}, {s.recipe}, {s.method}{', explored' * s.explored}",
            [s.clean_accuracy, s.suite_accuracy, *(s.accuracy.get(kind) for kind in kinds)],
        )
        for s in summary
    ]
    print(table("accuracy", ["clean", "suite", *kinds], lines))
    gaps = [
        (
            f"{g.data}, {g.recipe}, {g.method}{', explored' * g.explored}",
            [g.clean, g.mean, g.worst, g.worst_kind],
        )
        for g in found
    ]
    print(table("binary weights", ["clean, to today", "loss", "worst", "kind"], gaps))
    whole = Robust(
        command=results.command(),
        machine=Machine(**machine()),
        losses=found,
        summary=summary,
        rows=rows,
    )
    results.write(options.out / "results.json", whole)


if __name__ == "__main__":
    main()
