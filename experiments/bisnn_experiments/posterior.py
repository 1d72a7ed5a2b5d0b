"""When does a posterior pay? Bayes-BiSNN beside ensembles of the same cost, on few recordings.

    python -m bisnn_experiments.posterior explore --digits nmnist-6789 --small nmnist-small \\
        --out FOLDER [--list 1] [--shard 0/8] [--minutes 9]
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path
from typing import NamedTuple

import torch

from bisnn_experiments import posterior_runs
from bisnn_experiments.measurement import note
from bisnn_experiments.posterior_candidates import LISTS
from bisnn_experiments.posterior_runs import Archives, Recipe, Said, Sets


class Task(NamedTuple):
    """One training."""

    label: str
    recipe: Recipe
    size: int  # recordings of each class
    seed: int

    def file(self, folder: Path) -> Path:
        return folder / f"{self.recipe.name()}-{self.size}-{self.seed}.npz"


def tasks_of(number: int) -> list[Task]:
    """The trainings of a list of candidates, in its order."""
    return [
        Task(label, candidate.recipe, size, seed)
        for label, candidate in LISTS[number].items()
        for size, seeds in candidate.seeds.items()
        for seed in seeds
    ]


def explore(task: Task, archives: Archives, sets: Sets, folder: Path, device: torch.device) -> None:
    """Train once, ask all predictors, write what they say."""
    began = time.monotonic()
    data = archives.explored(task.size, task.seed % 100)
    run = posterior_runs.trained(task.recipe, data, task.seed, device)
    between = time.monotonic()
    found: dict[str, dict[str, Said]] = {}
    for name, members in posterior_runs.members_of(run, task.seed).items():
        said = posterior_runs.said_of(run, sets, members, task.seed)
        if name not in ("map", "members", "snapshots"):
            said = {of: one.pooled() for of, one in said.items()}
        found[name] = said
    seconds = (round(between - began, 1), round(time.monotonic() - between, 1))
    about = {"label": task.label, "size": task.size, "seed": task.seed, "seconds": seconds}
    posterior_runs.write_said(task.file(folder), found, about)
    note(f"{task.label}, {task.size} a class, seed {task.seed}: {seconds} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=("explore",))
    parser.add_argument("--digits", type=Path, required=True, help="N-MNIST, digits 6 to 9")
    parser.add_argument("--small", type=Path, required=True, help="N-MNIST, all digits")
    parser.add_argument("--out", type=Path, default=Path("out/posterior"))
    parser.add_argument("--list", type=int, default=1)
    parser.add_argument("--shard", default="0/1", help="which of how many processes this is")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    began = time.monotonic()
    shard, shards = map(int, args.shard.split("/"))
    torch.set_num_threads(1)
    archives = Archives(args.digits, args.small)
    sets = posterior_runs.recordings_to_judge(archives, final=False)
    note(f"{sum(map(len, sets.bits.values()))} recordings to judge on")
    for task in tasks_of(args.list)[shard::shards]:
        if time.monotonic() - began > 60 * args.minutes:
            note("time is up")
            break
        if not task.file(args.out).exists():
            try:
                explore(task, archives, sets, args.out, torch.device(args.device))
            except (ValueError, RuntimeError) as error:
                note(f"{task}: {error}")
            gc.collect()  # recorded steps hold memory of the GPU


if __name__ == "__main__":
    main()
