"""When does a posterior pay? Bayes-BiSNN beside ensembles of the same cost, on few recordings.

    python -m bisnn_experiments.posterior train --digits N-MNIST --small N-MNIST-small
    python -m bisnn_experiments.posterior choose --results posterior_choice.json
    python -m bisnn_experiments.posterior judge --results posterior.json

`train` trains the networks of all methods on few recordings of the digits 6 to 9, for several sizes
and seeds, and keeps what they say of test recordings and of held-out training recordings, clean and
under all corruptions, and of other digits. `choose` scores the mixtures of posteriors on what was
said of the held-out recordings alone; the one chosen is written into `posterior_methods.CHOSEN`.
`judge` then scores it and its rivals on the test recordings, once.

Every network is a file in --out, written when it is done: the same command goes on where it was
stopped, and several processes share the work by --shard 0/8, 1/8, ... --digits has the digits 6 to
9, --small other recordings of these, which are held out, and other digits.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from bisnn_experiments import posterior_choice, posterior_runs, posterior_table, results
from bisnn_experiments.measurement import note
from bisnn_experiments.posterior_methods import EPOCHS, METHODS, SIZES, Method, Part
from bisnn_experiments.posterior_runs import Archives, Recipe, Said, Sets
from bisnn_experiments.posterior_table import Answers

SEEDS = 5
LABELS = "labels.npz"


class Task(NamedTuple):
    """One training."""

    recipe: Recipe
    size: int  # recordings of each class
    seed: int  # of the recordings and of the network

    def file(self, folder: Path) -> Path:
        return folder / f"{self.recipe.name()}-{self.size}-{self.seed}.npz"


def networks_of(part: Part, size: int, seed: int) -> list[Task]:
    """The trainings of some members, on the same recordings, with the same readouts."""
    return [
        Task(
            part.recipe.with_settings({"train.epochs": EPOCHS[size], "train.member": k}), size, seed
        )
        for k in range(part.networks)
    ]


def tasks(sizes: Sequence[int], seeds: Sequence[int]) -> list[Task]:
    """The trainings of all methods, each once, seed by seed."""
    every = (
        task
        for seed in seeds
        for size in sizes
        for method in METHODS
        for part in method.parts
        for task in networks_of(part, size, seed)
    )
    return list({task.file(Path()): task for task in every}.values())


def predictors_of(task: Task) -> set[str]:
    """What the methods ask of a network."""
    return {
        part.predictor
        for method in METHODS
        for part in method.parts
        if task in networks_of(part, task.size, task.seed)
    }


def work_on(task: Task, archives: Archives, sets: Sets, folder: Path, device: torch.device) -> None:
    """Train once, ask all predictors, write what they say."""
    began = time.monotonic()
    run = posterior_runs.trained(task.recipe, archives.few(task.size, task.seed), task.seed, device)
    between = time.monotonic()
    found: dict[str, dict[str, Said]] = {}
    operations: dict[str, float] = {}
    every = posterior_runs.members_of(run, task.seed)
    for name in predictors_of(task):
        members = every[name]
        found[name] = posterior_runs.said_of(run, sets, members, task.seed)
        operations[name] = posterior_runs.operations_of(run, sets, members, task.seed)
    seconds = (round(between - began, 1), round(time.monotonic() - between, 1))
    about = {"operations": operations, "seconds": seconds}
    posterior_runs.write_said(task.file(folder), found, about)
    note(f"{task.recipe.config}, {task.size} a class, seed {task.seed}: {seconds} s")


def train(args: argparse.Namespace) -> None:
    """This process' share of the trainings that are not done yet, while there is time."""
    began = time.monotonic()
    shard, shards = map(int, args.shard.split("/"))
    mine = tasks(args.sizes, args.seeds)[shard::shards]
    left = [task for task in mine if not task.file(args.out).exists()]
    torch.set_num_threads(1)
    archives = Archives(args.digits, args.small)
    sets = posterior_runs.recordings_to_judge(archives)
    posterior_runs.write_arrays(args.out / LABELS, sets.labels)
    note(f"{len(left)} networks, {sum(map(len, sets.bits.values()))} recordings to judge on")
    for task in left:
        if time.monotonic() - began > 60 * args.minutes:
            note("time is up; the same command goes on")
            break
        work_on(task, archives, sets, args.out, torch.device(args.device))
        gc.collect()  # recorded steps hold memory of the GPU


def answers_of(method: Method, folder: Path, size: int, seed: int) -> Answers | None:
    """What the members of a method say of every set, with their operations; None where a network is
    missing.
    """
    every, operations = [], 0.0
    for part in method.parts:
        for task in networks_of(part, size, seed):
            if not task.file(folder).exists():
                return None
            said, about = posterior_runs.read_said(task.file(folder))
            members = said[part.predictor]
            every.append({name: one[: part.members] for name, one in members.items()})
            drawn = len(next(iter(members.values())))
            share = (
                1 if part.predictor == "dropout" else part.members / drawn
            )  # of one pass, or all
            operations += about["operations"][part.predictor] * share
    return Answers.of(every, operations)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("train", "choose", "judge"))
    parser.add_argument("--digits", type=Path, help="N-MNIST with the digits 6 to 9")
    parser.add_argument("--small", type=Path, help="N-MNIST with all digits, other recordings")
    parser.add_argument("--out", type=Path, default=Path("out/posterior"), help="networks' files")
    parser.add_argument("--results", type=Path, help="where the JSON goes")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(SEEDS))
    parser.add_argument("--shard", default="0/1", help="which of how many processes this is")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.mode == "train":
        if not (args.digits and args.small):
            parser.error("--digits and --small: are missing; give folders with Train and Test")
        train(args)
        return
    if not args.results:
        parser.error("--results: is missing; give the JSON file to write")
    labels = posterior_runs.read_arrays(args.out / LABELS)

    def ask(method: Method, size: int, seed: int) -> Answers | None:
        return answers_of(method, args.out, size, seed)

    if args.mode == "choose":
        choice = posterior_choice.choice_of(ask, labels, args.sizes, args.seeds)
        results.write(args.results, choice)
        print(posterior_choice.text_of(choice))
    else:
        found = posterior_table.table_of(ask, labels, args.sizes, args.seeds)
        results.write(args.results, found)
        print(posterior_table.text_of(found))


if __name__ == "__main__":
    main()
