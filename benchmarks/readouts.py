"""How many of a network's layers should speak (`predict.readouts`): its predictions from the last
readout, the last two, and so on.

    python benchmarks/readouts.py RUN... --images mnist

RUN... are trained on MNIST in front of the simulated camera, split and cropped as MNIST-DVS:
several seeds and rules, on the same data. Judged are their own test recordings, and further digits:
MNIST's images that come after the 1,000 of each digit which train and test there. One pass gives
all readouts; deviations are over seeds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import machine, table
from torch import Tensor
from uncertainty import Pictures, Run, load_runs, over_seeds, own_recordings, simulated

from bisnn import metrics, packing, weights
from bisnn.checks import positive_int
from bisnn.data import simulation
from bisnn.data.loading import Clips
from bisnn.display import bars
from bisnn.files import write_atomic
from bisnn.network import Output
from bisnn.packed import Engine
from bisnn.runs.config import SimulatedData
from bisnn.runs.evaluation import predictors
from bisnn.runs.inputs import spikes

USED = 1000  # of each digit, to train and to test
OWN, FURTHER = "test", "further digits"
JUDGED = ("accuracy", "nll", "ece")


def further(images: Path, most: int, run: Run) -> tuple[Clips, Tensor]:
    """The first `most` digits of each class that the protocol leaves alone, in front of the runs'
    camera.
    """
    try:
        pictures, labels = simulation.mnist(images)
    except ValueError as error:
        raise ValueError(f"--images: {error}") from None
    numbers = [
        int(i) for digit in range(10) for i in np.flatnonzero(labels == digit)[USED : USED + most]
    ]
    if not numbers:
        raise ValueError(
            f"--images: must have more than {USED} of a digit; got {images}; give MNIST's own files, all of them"
        )
    (clips,) = simulated("further", Pictures(pictures[numbers], numbers), run.data, "cpu")
    return clips, torch.from_numpy(labels[numbers])


def judged(run: Run, sets: dict[str, tuple[Clips, Tensor]], advance: Any) -> list[dict[str, Any]]:
    """A row for each predictor of a run and each number of readouts."""
    model, rows = run.model, []
    net, config, depth = model.net, model.config, len(model.net.layers)
    latents = [layer.weight.detach() for layer in net.layers]
    for name, count in predictors(model).items():
        engine, probabilities = None, {}
        if net.weights == "binary":
            members = None if count is None else weights.draw_members(latents, count, config.seed)
            engine = Engine(packing.describe(net, members, readouts=depth), sparse=False)
        for of, (clips, _) in sets.items():
            parts = []
            for index in torch.arange(len(clips)).split(model.batch):
                x = spikes(config, clips[index])
                with torch.no_grad():
                    of_layers = (
                        [y[None] for y in net(x, weights=latents).readouts]
                        if engine is None
                        else _tensors(engine, x)
                    )
                said = [
                    Output((), (), tuple(of_layers), None).logits(n + 1) for n in range(depth)
                ]  # (K, T, B, C) each
                parts.append(
                    torch.stack([y[:, config.burn_in :].softmax(-1).mean((0, 1)) for y in said])
                )
                advance(len(index) * (count or 1))
            probabilities[of] = torch.cat(parts, 1)  # (depth, N, C)
        for n in range(depth):
            row: dict[str, Any] = {
                "run": run.path.name,
                "method": config.rule.name,
                "seed": config.seed,
                "predictor": name,
            }
            values = {
                of: {m: metrics.METRICS[m](p[n], sets[of][1]) for m in JUDGED}
                for of, p in probabilities.items()
            }
            rows.append({**row, "readouts": n + 1, **values})
    return rows


def _tensors(engine: Engine, x: Tensor) -> list[Tensor]:
    return [torch.from_numpy(y) for y in engine.run(x.numpy()).readouts]


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and deviations over the seeds."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["predictor"], row["readouts"]), []).append(row)
    entries = []
    for (method, predictor, readouts), group in groups.items():
        values = {of: over_seeds([row[of] for row in group]) for of in (OWN, FURTHER)}
        entries.append({"method": method, "predictor": predictor, "readouts": readouts, **values})
    return entries


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of trained runs")
    parser.add_argument("--images", type=Path, required=True, help="folder of MNIST's idx files")
    parser.add_argument("--most", type=int, default=200, help="further digits of each class")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results.json"),
        help="where the JSON goes (default: results.json)",
    )
    args = parser.parse_args(arguments)
    try:
        positive_int("--most", args.most)
        if not args.out.parent.is_dir():
            raise ValueError(
                f"--out: must be a file in a folder that is there; got {args.out}; give another name"
            )
        runs = load_runs(args.runs)
        if not isinstance(runs[0].data, SimulatedData) or not runs[0].data.root:
            raise ValueError(
                f"RUN: must be trained on MNIST in front of the camera; got {args.runs[0]}; give others"
            )
        for run in runs:
            if (
                run.model.config.network.readout_after == "last"
                or run.model.config.train.dtype != "float32"
            ):
                raise ValueError(
                    f"RUN: must have a readout after every layer, and float32; got {run.path}; leave it out"
                )
        own, (clips, labels) = own_recordings(runs, "cpu"), further(args.images, args.most, runs[0])
    except ValueError as error:
        raise SystemExit(f"readouts: {error}") from None
    rows = []
    with bars(show=True) as progress:
        passes = sum(sum(k or 1 for k in predictors(run.model).values()) for run in runs)
        bar = progress.add_task(
            "recordings and members", total=passes * (len(own[0].y) + len(clips))
        )
        for run, test in zip(runs, own, strict=True):
            assert isinstance(test.x, Clips)
            sets = {OWN: (test.x, test.y), FURTHER: (clips, labels)}
            rows += judged(run, sets, lambda n: progress.advance(bar, n))
    entries = summary(rows)
    lines = [
        (
            f"{e['method']}, {e['predictor']}, {e['readouts']}",
            [f"{e[of][m]['mean']:.4f}" for of in (OWN, FURTHER) for m in JUDGED],
        )
        for e in entries
    ]
    print(
        table("readouts that speak", [f"{of}: {m}" for of in (OWN, FURTHER) for m in JUDGED], lines)
    )
    about: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
    }
    about |= {"machine": machine(), "recordings": {OWN: len(own[0].y), FURTHER: len(clips)}}
    write_atomic(
        args.out,
        (json.dumps({**about, "summary": entries, "rows": rows}, indent=1) + "\n").encode(),
    )
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
