"""When does a posterior pay? Bayes-BiSNN beside ensembles of the same cost, on few recordings.

    python -m bisnn_experiments.posterior explore --digits N-MNIST --small N-MNIST --list 1
    python -m bisnn_experiments.posterior explored --list 1 --results posterior_explored.json
    python -m bisnn_experiments.posterior judge --digits N-MNIST --small N-MNIST
    python -m bisnn_experiments.posterior table --results posterior.json

`explore` trains the candidates of a list on few training recordings of the digits 6 to 9 and judges
them on others, held out; the test recordings stay unread. `explored` makes a table of that. `judge`
trains the methods chosen, for several sizes and seeds, asks them about the test recordings, clean
and under all corruptions, and about other digits, and scores them; `table` compares them.

Every network is a file in --out, written when it is done: the same command goes on where it was
stopped, and several processes share the work by --shard 0/8, 1/8, ... (for `judge` run it once more
without --shard at the end, which then only scores). --digits has the digits 6 to 9, --small others.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bisnn_experiments import posterior_explored, posterior_runs, posterior_table, results
from bisnn_experiments.measurement import note
from bisnn_experiments.posterior_candidates import LISTS
from bisnn_experiments.posterior_methods import EPOCHS, METHODS, SIZES, Method
from bisnn_experiments.posterior_runs import CLEAN, Archives, Recipe, Said, Sets

SEEDS = 5
LABELS = "labels.npz"


class Task(NamedTuple):
    """One training."""

    label: str
    recipe: Recipe
    size: int  # recordings of each class
    seed: int  # of the network
    data: int  # which recordings

    def file(self, folder: Path) -> Path:
        return folder / f"{self.recipe.name()}-{self.size}-{self.seed}.npz"


def tasks_to_explore(number: int) -> list[Task]:
    """The trainings of a list of candidates, in its order; seeds that are equal but for hundreds
    have the same recordings.
    """
    return [
        Task(label, candidate.recipe, size, seed, seed % 100)
        for label, candidate in LISTS[number].items()
        for size, seeds in candidate.seeds.items()
        for seed in seeds
    ]


def networks_of(method: Method, size: int, seed: int) -> list[Task]:
    """The trainings of a method, on the same recordings, with the same readouts."""
    return [
        Task(f"{method.name}, {k}", recipe.with_settings(_length(size, k)), size, seed, seed)
        for recipe in method.recipes
        for k in range(method.networks)
    ]


def _length(size: int, member: int) -> dict[str, int]:
    return {"train.epochs": EPOCHS[size], "train.member": member}


def tasks_to_judge(sizes: Sequence[int], seeds: Sequence[int]) -> list[Task]:
    """The trainings of all methods, each once, the small sizes first."""
    every = (
        task
        for size in sizes
        for seed in seeds
        for method in METHODS
        for task in networks_of(method, size, seed)
    )
    return list({task.file(Path()): task for task in every}.values())


def work_on(task: Task, archives: Archives, sets: Sets, folder: Path, device: torch.device) -> None:
    """Train once, ask all predictors, write what they say."""
    began = time.monotonic()
    run = posterior_runs.trained(task.recipe, archives.few(task.size, task.data), task.seed, device)
    between = time.monotonic()
    found: dict[str, dict[str, Said]] = {}
    operations: dict[str, float] = {}
    for name, members in posterior_runs.members_of(run, task.seed).items():
        said = posterior_runs.said_of(run, sets, members, task.seed)
        if name not in ("map", "members", "snapshots"):
            said = {of: one.pooled() for of, one in said.items()}
        found[name] = said
        operations[name] = posterior_runs.operations_of(run, sets, members, task.seed)
    seconds = (round(between - began, 1), round(time.monotonic() - between, 1))
    about = {"label": task.label, "size": task.size, "seed": task.seed, "seconds": seconds}
    posterior_runs.write_said(task.file(folder), found, {**about, "operations": operations})
    note(f"{task.label}, {task.size} a class, seed {task.seed}: {seconds} s")


def work(args: argparse.Namespace, tasks: Sequence[Task], final: bool) -> None:
    """This process' share of the trainings that are not done yet, while there is time."""
    began = time.monotonic()
    shard, shards = map(int, args.shard.split("/"))
    left = [task for task in tasks[shard::shards] if not task.file(args.out).exists()]
    labels = args.out / LABELS
    if not left and labels.exists():
        return
    torch.set_num_threads(1)
    archives = Archives(args.digits, args.small)
    sets = posterior_runs.recordings_to_judge(archives, final)
    posterior_runs.write_arrays(labels, sets.labels)
    note(f"{len(left)} networks, {sum(map(len, sets.bits.values()))} recordings to judge on")
    for task in left:
        if time.monotonic() - began > 60 * args.minutes:
            note("time is up; the same command goes on")
            break
        work_on(task, archives, sets, args.out, torch.device(args.device))
        gc.collect()  # recorded steps hold memory of the GPU


def scores_of(
    method: Method, networks: Sequence[tuple[dict[str, Any], Any]], labels: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Scores of a method from what its networks say, of as many members as it has."""
    parts = [said[method.predictor] for said, _ in networks]
    each = 1 if method.predictor == "dropout" else method.members
    counts = [
        about["operations"][method.predictor] * each / len(part[CLEAN].z)
        for (_, about), part in zip(networks, parts, strict=True)
    ]
    of = {name: [part[name].some(each) for part in parts] for name in parts[0]}
    return posterior_table.scores_of(of, labels, sum(counts))


def score(folder: Path, sizes: Sequence[int], seeds: Sequence[int]) -> None:
    """Score the methods for every size and seed whose networks are all there."""
    labels = posterior_runs.read_arrays(folder / LABELS)
    for size in sizes:
        for seed in seeds:
            tasks = tasks_to_judge([size], [seed])
            if not all(task.file(folder).exists() for task in tasks):
                note(f"{size} a class, seed {seed}: not all networks are there yet")
                continue
            read = {
                task.file(folder): posterior_runs.read_said(task.file(folder)) for task in tasks
            }
            scores = {}
            for method in METHODS:
                networks = [read[t.file(folder)] for t in networks_of(method, size, seed)]
                scores[method.name] = scores_of(method, networks, labels)
            posterior_table.write_scores(folder / f"scores-{size}-{seed}.npz", scores)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("explore", "explored", "judge", "table"))
    parser.add_argument("--digits", type=Path, help="N-MNIST with the digits 6 to 9")
    parser.add_argument("--small", type=Path, help="N-MNIST with the digits 0 to 5")
    parser.add_argument("--out", type=Path, default=Path("out/posterior"), help="networks' files")
    parser.add_argument("--results", type=Path, help="where the JSON goes")
    parser.add_argument("--list", type=int, default=1, choices=LISTS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(SEEDS))
    parser.add_argument("--shard", default="0/1", help="which of how many processes this is")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.mode in ("explore", "judge") and not (args.digits and args.small):
        parser.error("--digits and --small: are missing; give the folders that hold Train and Test")
    if args.mode in ("explored", "table") and not args.results:
        parser.error("--results: is missing; give the JSON file to write")
    if args.mode == "explore":
        work(args, tasks_to_explore(args.list), final=False)
    elif args.mode == "judge":
        work(args, tasks_to_judge(args.sizes, args.seeds), final=True)
        if args.shard == "0/1":
            score(args.out, args.sizes, args.seeds)
    elif args.mode == "table":
        found = posterior_table.table_of(args.out, args.device)
        results.write(args.results, found)
        print(posterior_table.text_of(found))
    else:
        files = [task.file(args.out) for task in tasks_to_explore(args.list)]
        labels = posterior_runs.read_arrays(args.out / LABELS)
        explored = posterior_explored.explored([f for f in files if f.exists()], labels)
        results.write(args.results, explored)


if __name__ == "__main__":
    main()
