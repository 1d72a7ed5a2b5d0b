"""Two moons: ST-BiSNN and Bayes-BiSNN side by side, with a table and a picture of how sure they are.

    python examples/two_moons.py                      one seed, table and picture in out/
    python examples/two_moons.py --seeds 0 1 2        the figures of docs/RESULTS.md (adds a results.json)
    python examples/two_moons.py --seeds 0 1 2 --options    the plain rules and what each option changes; no picture
    python examples/two_moons.py --seeds 0 1 2 --options --select    judged on 100 held-out training points: for choosing settings

The paper's network (20 inputs, two layers of 256 neurons, T = 100) and data (200 points a class, noise 0.1), trained for 40 epochs
with Adam-scaled updates. Settings were chosen with --select, which does not read the test points (1000 a class).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import bisnn
from bisnn import encode, metrics
from bisnn.data import Split, two_moons

T, BURN_IN, EPOCHS, BATCH = 100, 10, 40, 40
SAMPLES = 10


def spikes(x: torch.Tensor, generator: int | torch.Generator) -> torch.Tensor:
    """Population code, 10 neurons a dimension: (B, 2) -> (T, B, 20)."""
    return encode.population(x, T, neurons=10, width=1.0, generator=generator)


def network(seed: int) -> bisnn.Network:
    neuron = bisnn.SRM(tau_mem=10, tau_syn=6, tau_ref=2, threshold=0.5, slope=4.0)
    return bisnn.Network(
        bisnn.Linear(20, 256), bisnn.Linear(256, 256), readout=2, neuron=neuron, readout_gain=2.0, init=0.5, generator=seed
    )


Make = Callable[[list[torch.nn.Parameter], int], bisnn.STBiSNN | bisnn.BayesBiSNN | bisnn.Bop]


def bayes(lr: float, tau: float, **options: Any) -> Make:
    return lambda params, seed: bisnn.BayesBiSNN(params, lr, temperature=5e-4, tau=tau, generator=seed, **options)


def st(lr: float, **options: Any) -> Make:
    return lambda params, seed: bisnn.STBiSNN(params, lr, **options)


RULES: dict[str, Make] = {
    "ST-BiSNN": st(0.02, precondition="adam"),
    "Bayes-BiSNN": bayes(0.05, 0.3, precondition="adam"),
}
OPTIONS: dict[str, Make] = {  # the plain rules and what each option changes; learning rates from a coarse grid
    "ST, plain": st(3.0),
    "ST, clip 1": st(3.0, clip=1.0),
    "ST, momentum": st(0.1, precondition="momentum"),
    "ST, Adam": st(0.02, precondition="adam"),
    "Bop": lambda params, seed: bisnn.Bop(params, lr=0.01, threshold=1e-3),
    "Bayes, plain, tau 1": bayes(0.5, 1.0),
    "Bayes, momentum, tau 1": bayes(0.1, 1.0, precondition="momentum"),
    "Bayes, Adam, tau 1": bayes(0.05, 1.0, precondition="adam"),
    "Bayes, Adam, tau 0.3": bayes(0.05, 0.3, precondition="adam"),
    "Bayes, Adam, tau 1 to 0.2": bayes(0.05, 1.0, precondition="adam", tau_end=0.2, anneal_steps=300),
    "Bayes, Adam, tau 1, hard": bayes(0.05, 1.0, precondition="adam", straight_through=True),
}


def train(
    net: bisnn.Network, rule: bisnn.STBiSNN | bisnn.BayesBiSNN | bisnn.Bop, data: Split, seed: int, progress: Progress, name: str
) -> float:
    """EPOCHS passes over the data; returns the seconds they took."""
    draw = torch.Generator().manual_seed(seed)
    steps = EPOCHS * -(-len(data.x) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(rule, steps)
    bar = progress.add_task(name, total=steps)
    start = time.perf_counter()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(data.x), generator=draw).split(BATCH):
            x = spikes(data.x[batch], draw)
            with rule.sampled():
                bisnn.local_loss(net(x), data.y[batch], burn_in=BURN_IN).backward()
            rule.step()
            schedule.step()
            progress.advance(bar)
    return time.perf_counter() - start


def probabilities(
    net: bisnn.Network, x: torch.Tensor, samples: int | None, seed: int, progress: Progress, name: str
) -> torch.Tensor:
    """Class probabilities of the points x, (N, 2); all predictors see the same input spikes and the same members."""
    bar = progress.add_task(name, total=len(x))
    draw, parts = torch.Generator().manual_seed(1000 + seed), []
    for points in x.split(250):
        result = bisnn.predict(net, spikes(points, draw), samples, burn_in=BURN_IN, generator=seed)
        parts.append(result.mean)
        progress.advance(bar, len(points))
    return torch.cat(parts)


def run(
    rules: dict[str, Make], seed: int, select: bool, grid: torch.Tensor | None, progress: Progress
) -> tuple[list[dict], list[torch.Tensor]]:
    """Rows of the table and, if a grid is given, the confidence on it, for each predictor."""
    data, test = two_moons(seed=seed)
    if select:  # the first 300 and the last 100 of the training points, in random order
        parts = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed)).split([300, 100])
        data, test = (Split(data.x[part], data.y[part]) for part in parts)
    rows, maps = [], []
    for name, make in rules.items():
        net = network(seed)
        rule = make(list(net.parameters()), seed)
        seconds = train(net, rule, data, seed, progress, f"seed {seed}: train {name}")
        predictors: dict[str, int | None] = {"sign": None}
        if isinstance(rule, bisnn.BayesBiSNN):
            predictors = {"MAP": None, f"ensemble of {SAMPLES}": SAMPLES}
        for predictor, samples in predictors.items():
            label = f"seed {seed}: {name}, {predictor}"
            probs = probabilities(net, test.x, samples, seed, progress, label)
            row: dict = {"seed": seed, "rule": name, "predictor": predictor, "training_seconds": round(seconds, 1)}
            for metric, function in metrics.METRICS.items():
                row[metric] = metrics.bootstrap(function, probs, test.y, resamples=200, seed=seed)._asdict()
            rows.append(row)
            if grid is not None:
                maps.append(probabilities(net, grid, samples, seed, progress, label + ", map"))
    return rows, maps


def draw(rows: list[dict], maps: list[torch.Tensor], axis: torch.Tensor, data: Split, path: Path) -> None:
    """One panel a predictor: colour is the predicted class, its intensity the confidence; the training points on top."""
    figure, panels = plt.subplots(1, len(maps), figsize=(4 * len(maps), 4.6), sharey=True, layout="constrained")
    for panel, row, probs in zip(panels, rows, maps, strict=True):
        image = panel.contourf(
            axis, axis, probs[:, 1].reshape(len(axis), -1), levels=torch.linspace(0, 1, 21).tolist(), cmap="RdBu_r", vmin=0, vmax=1
        )
        for label, marker, colour in ((0, "^", "#4aa3df"), (1, "o", "#f4a07a")):
            points = data.x[data.y == label]
            panel.plot(*points.T.tolist(), marker, color=colour, markeredgecolor="white", markeredgewidth=0.4, markersize=4)
        values = ", ".join(f"{m} {row[m]['value']:.3f}" for m in ("accuracy", "nll", "ece"))
        panel.set(title=f"{row['rule']}, {row['predictor']}\n{values}", aspect="equal", xlabel="$x_1$")
    panels[0].set_ylabel("$x_2$")
    figure.colorbar(image, ax=panels, label="probability of class 1", shrink=0.8)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture (and results.json)")
    parser.add_argument("--options", action="store_true", help="compare the rules' options instead")
    parser.add_argument("--select", action="store_true", help="judge on 100 held-out training points, not on the test points")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    axis = torch.linspace(-0.02, 1.02, 40)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    rows: list[dict] = []
    console = Console(width=140)
    with Progress(console=console, transient=True) as progress:
        for seed in options.seeds:
            picture = seed == options.seeds[0] and not options.options
            grid = torch.stack([x.flatten(), y.flatten()], 1) if picture else None
            new, maps = run(OPTIONS if options.options else RULES, seed, options.select, grid, progress)
            rows += new
            if grid is not None:
                draw(new, maps, axis, two_moons(seed=seed)[0], options.out / "two_moons.png")

    points = "100 held-out training points" if options.select else "2000 test points"
    table = Table(title=f"Two moons: {points}; value and 95 % bootstrap interval")
    for column in ("seed", "rule", "predictor", "accuracy", "NLL", "ECE (15 bins)", "training"):
        table.add_column(column)
    for row in rows:
        cells = (f"{row[m]['value']:.4f} [{row[m]['low']:.3f}, {row[m]['high']:.3f}]" for m in ("accuracy", "nll", "ece"))
        table.add_row(str(row["seed"]), row["rule"], row["predictor"], *cells, f"{row['training_seconds']} s")
    console.print(table)
    if not options.options:
        console.print(f"picture: {options.out / 'two_moons.png'}")
    if len(options.seeds) > 1:
        settings = {
            "command": " ".join(["python", *sys.argv]),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }
        (options.out / "results.json").write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
