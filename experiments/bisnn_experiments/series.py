"""Series by one bit per weight, beside a GRU with as many weights and logistic regression.

    python -m bisnn_experiments.series [--seeds 5] [--recordings 5000] [--out out/series] [--jobs 2]

For each of the two sets of `series_sets` and each seed, a file of recordings is made, `bisnn new`
writes its config, and that is trained as it is. "no delays" is the same config with every input
entering once. A GRU with as many weights in full precision, and logistic regression on the input's
spikes counted in bins of time, learn from the same training recordings and are judged on the same
test recordings. Settings of all of them were chosen on sets of other seeds. It writes
OUT/results.json; docs/results/series.json is a copy.
"""

from __future__ import annotations

import argparse
import copy
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from bisnn.data import series_files
from bisnn.data.loading import Clips, Split
from bisnn.data.series import SeriesTrains, padded, split
from bisnn.runs import config as configs
from bisnn.runs import starting
from bisnn.runs.building import build_network
from bisnn.runs.config import Config
from bisnn.runs.evaluation import evaluate_model
from bisnn.runs.inputs import described, input_shape, load_dataset
from bisnn.runs.model import weight_count
from bisnn.runs.results import Finding
from bisnn.runs.series_section import SeriesData
from bisnn.runs.training import train_run
from bisnn_experiments import results, series_sets, workers
from bisnn_experiments.measurement import machine, table
from bisnn_experiments.results import Machine, Mean

SETS = {"rhythms": series_sets.rhythms, "gestures": series_sets.gestures}
METHODS = ("bisnn", "no delays", "GRU", "logistic regression")
BINS = 10  # of time, for logistic regression
EPOCHS, RATE, BATCH, NORM = 30, 5e-3, 50, 1.0  # of the GRU: passes, Adam's rate, norm of a gradient


class SeriesRow(Finding):
    """One method on one set."""

    data: str
    method: str
    seed: int
    accuracy: float
    weights: int
    bits: int  # per weight


class SeriesSummary(Finding):
    """A method over all seeds."""

    data: str
    method: str
    accuracy: Mean
    weights: int
    bytes: int
    behind_gru: float  # accuracy of the GRU less that of the method, mean over the seeds
    behind_logistic: float


class SeriesStudy(Finding):
    """The file of this study."""

    command: str
    machine: Machine
    seeds: int
    recordings: int
    rows: list[SeriesRow]
    summary: list[SeriesSummary]


class Arrays(NamedTuple):
    """Recordings of a split as they came, (N, T, D), where they are real, (N, T), and labels."""

    x: np.ndarray
    real: np.ndarray
    y: np.ndarray


def first_config(data: str, seed: int, recordings: int, folder: Path) -> Config:
    """Make a set of recordings, and let `bisnn new` write its config."""
    folder.mkdir(parents=True, exist_ok=True)
    file, written = folder / f"{data}.npz", folder / f"{data}.toml"
    values, labels = SETS[data](recordings, seed)
    steps = max(map(len, values))
    x = np.stack([np.pad(item, ((0, steps - len(item)), (0, 0))) for item in values])
    np.savez(file, x=x, y=labels, lengths=[len(item) for item in values])
    written.unlink(missing_ok=True)
    starting.write(file, written)
    return configs.load(written, [f"seed={seed}", "train.threads=1"])


def measured(data: str, method: str, seed: int, recordings: int, out: Path) -> SeriesRow:
    """Train a method, and judge it on the test recordings."""
    torch.set_num_threads(1)
    folder = out / f"{data}_{method.replace(' ', '_')}_seed{seed}"
    config = first_config(data, seed, recordings, folder)
    if method == "logistic regression":
        accuracy, weights, bits = (*logistic_regression(config), 64)
    elif method == "GRU":
        accuracy, weights, bits = (*gru(config, seed), 32)
    else:
        if method == "no delays":
            config = config.updated(**{"data.delays": [0]})
        run = train_run(config, folder / "run", show=False)
        verdict = evaluate_model(run.folder, run.model, run.data, show=False)
        accuracy = verdict.metrics["sign"]["accuracy"].value
        weights, bits = verdict.memory.weights, 1
    return SeriesRow(
        data=data, method=method, seed=seed, accuracy=accuracy, weights=weights, bits=bits
    )


def logistic_regression(config: Config) -> tuple[float, int]:
    """Accuracy and number of weights, on counts of the input's spikes in bins of time."""
    data = load_dataset(config, show=False)

    def counts(of: Split) -> np.ndarray:
        trains = clips(of).recordings
        assert isinstance(trains, SeriesTrains)
        spikes = trains.spikes[clips(of).index].numpy()
        return np.concatenate([part.sum(1) for part in np.array_split(spikes, BINS, 1)], 1)

    model = make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=7, max_iter=500))
    model.fit(counts(data.train), data.train.y.numpy())
    accuracy = model.score(counts(data.test), data.test.y.numpy())
    return float(accuracy), int(model[-1].coef_.size)


def gru(config: Config, seed: int) -> tuple[float, int]:
    """Accuracy and number of weights of a GRU with as many weights as the config's network, whose
    logits are the mean over the recording; of its epochs, the best on the validation recordings.
    """
    train, validation, test, classes, weights = _raw(config)
    channels = train.x.shape[2]
    hidden = round((-(channels + 2) + math.sqrt((channels + 2) ** 2 + 4 * weights / 3)) / 2)
    torch.manual_seed(seed)
    net, readout = nn.GRU(channels, hidden, batch_first=True), nn.Linear(hidden, classes)
    both = nn.ModuleList([net, readout])
    optimizer = torch.optim.Adam(both.parameters(), RATE)
    updates = EPOCHS * math.ceil(len(train.y) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    mean, std = (getattr(train.x[train.real], f)(0) for f in ("mean", "std"))

    def logits(part: Arrays, rows: np.ndarray) -> Tensor:
        real = torch.from_numpy(part.real[rows])[..., None].float()
        x = torch.from_numpy(((part.x[rows] - mean) / std).astype(np.float32)) * real
        return (readout(net(x)[0]) * real).sum(1) / real.sum(1)

    @torch.no_grad()
    def accuracy(part: Arrays) -> float:
        rows = np.array_split(np.arange(len(part.y)), 8)
        said = torch.cat([logits(part, some).argmax(1) for some in rows])
        return float((said.numpy() == part.y).mean())

    best, kept, rng = -1.0, copy.deepcopy(both.state_dict()), np.random.default_rng(seed)
    for _ in range(EPOCHS):
        for rows in np.array_split(rng.permutation(len(train.y)), updates // EPOCHS):
            optimizer.zero_grad()
            said = logits(train, rows)
            nn.functional.cross_entropy(said, torch.from_numpy(train.y[rows])).backward()
            nn.utils.clip_grad_norm_(both.parameters(), NORM)
            optimizer.step()
            schedule.step()
        if (now := accuracy(validation)) > best:
            best, kept = now, copy.deepcopy(both.state_dict())
    both.load_state_dict(kept)
    return accuracy(test), sum(p.numel() for p in both.parameters())


def _raw(config: Config) -> tuple[Arrays, Arrays, Arrays, int, int]:
    """The splits of a config as they came, its number of classes, its network's of weights."""
    section, loaded = config.data, load_dataset(config, show=False)
    assert isinstance(section, SeriesData)
    config = described(config, loaded)
    network = build_network(config, input_shape(config, 0), len(loaded.classes))
    given = series_files.read(section.train, False, None, [])
    parts = split(given, None, section.how(), config.seed)
    values = [item for part in parts for item in part.values]
    x, real = padded(values, section.steps, section.series_code(), section.train)
    train, validation, test = (
        Arrays(x[clips(of).index], real[clips(of).index], of.y.numpy())
        for of in (loaded.train, loaded.validation, loaded.test)
        if of is not None
    )
    return train, validation, test, len(loaded.classes), weight_count(network)


def clips(of: Split) -> Clips:
    """The recordings of a split of recordings."""
    assert isinstance(of.x, Clips)
    return of.x


def summarised(rows: list[SeriesRow]) -> list[SeriesSummary]:
    """Every method on every set, over the seeds."""
    found = []
    for data in SETS:
        by_method = {m: [r for r in rows if (r.data, r.method) == (data, m)] for m in METHODS}
        means = {m: float(np.mean([r.accuracy for r in of])) for m, of in by_method.items()}
        for method, of in by_method.items():
            found.append(
                SeriesSummary(
                    data=data,
                    method=method,
                    accuracy=results.over_seeds([row.accuracy for row in of]),
                    weights=of[0].weights,
                    bytes=-(-of[0].weights * of[0].bits // 8),
                    behind_gru=means["GRU"] - means[method],
                    behind_logistic=means["logistic regression"] - means[method],
                )
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--recordings", type=int, default=5000)
    parser.add_argument("--first-seed", type=int, default=0, help="Others to choose settings on.")
    parser.add_argument("--out", type=Path, default=Path("out/series"))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"--out: {options.out} is there already; delete it, or give another folder")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    tasks = [
        (data, method, seed, options.recordings, options.out)
        for seed in seeds
        for data in SETS
        for method in METHODS
    ]
    cost = {"GRU": 4, "logistic regression": 2}
    rows = workers.run_all(
        measured,
        tasks,
        options.jobs,
        True,
        length=lambda task: cost.get(task[1], 1),
        progress=lambda task: 0.0,
    )
    summary = summarised(rows)
    lines = [
        (f"{s.data}, {s.method}", [s.accuracy.mean, s.weights, s.bytes, s.behind_gru])
        for s in summary
    ]
    print(table("", ("accuracy", "weights", "bytes", "behind the GRU"), lines))
    found = SeriesStudy(
        command=results.command(),
        machine=Machine(**machine()),
        seeds=options.seeds,
        recordings=options.recordings,
        rows=rows,
        summary=summary,
    )
    results.write(options.out / "results.json", found)


if __name__ == "__main__":
    main()
