"""What a mini-batch of recordings costs beside the training step that uses it: reading, unpacking,
augmentation.

    python benchmarks/loading.py --data N-MNIST [--device cuda]

A batch is read from the cache on disk (its pages in memory after the first epoch, as in training),
checked, unpacked on the device it is trained on, and augmented there as the config `nmnist_st`
says. The step is that config's: the whole update, loading included, a mean over steps that follow
each other as in training. Beside it the same on spikes that are there already, and, on a GPU, with
kernels that are handed out one by one instead of as one CUDA graph.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from bisnn import kernels
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.data.loading import Clips
from bisnn.display import bars
from bisnn.runs import config
from bisnn.runs.augment_section import Augment
from bisnn.runs.inputs import training_spikes
from bisnn.runs.loop import Training
from bisnn.runs.processes import Processes
from bisnn_experiments import recognition, results
from bisnn_experiments.measurement import machine, table


def milliseconds(function: Callable[[], Any], repeats: int, wait: Callable[[], Any]) -> float:
    """Median wall time, after one call that does not count."""
    function()
    times = []
    for _ in range(repeats):
        wait()
        began = time.perf_counter()
        function()
        wait()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def per_step(update: Callable[[], Any], steps: int, wait: Callable[[], Any]) -> float:
    """Mean wall time of successive updates, after some that do not count: they compile kernels and
    record graphs.
    """
    for _ in range(3):
        update()
    wait()
    began = time.perf_counter()
    for _ in range(steps):
        update()
    wait()
    return 1e3 * (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of N-MNIST")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--steps", type=int, default=3, help="timed training steps of each kind (default: 3)"
    )
    parser.add_argument("--out", type=Path, default=Path("out/loading.json"))
    options = parser.parse_args()
    try:
        kind, chosen = recognition.experiment(options.data, "tuned")
        if kind != "nmnist":
            raise ValueError(
                f"--data: must be a folder of N-MNIST; got one of {kind}; "
                "give the one that holds Train and Test"
            )
        settings = chosen["ST-BiSNN"].updated(**{"train.device": options.device})
        with (
            Processes.joined(options.device) as processes,
            kernels.precision(settings.train.precision),
        ):
            measured = measure(settings, processes, options.repeats, options.steps)
    except ValueError as error:
        sys.exit(str(error))
    result = {
        "command": results.command(),
        "machine": machine(),
        "device": options.device,
        **measured,
    }
    step = measured["ms"]["training step"]
    rows = [(name, [value, value / step]) for name, value in measured["ms"].items()]
    print(table("one mini-batch", ["ms", "of the step"], rows))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results.write(options.out, result)


def measure(
    settings: config.Config, processes: Processes, repeats: int, steps: int
) -> dict[str, Any]:
    """The milliseconds that each part takes, and what they were measured with."""
    training = Training(settings, processes)
    data, device = training.data.train, processes.device
    assert isinstance(data.x, Clips)
    wait: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    batch = torch.from_numpy(philox.permutation(len(data.x), 0, Purpose.SHUFFLING))[
        : settings.train.batch_size
    ]
    plain = settings.updated(augment=Augment().model_dump())
    with bars(show=True) as progress:
        bar = progress.add_task("measuring", total=4 + (device.type == "cuda"))
        ms = {}
        for name, how in (("reading and unpacking", plain), ("the same, augmented", settings)):
            load = functools.partial(training_spikes, how, data.x[batch], 0, batch, device)
            ms[name] = milliseconds(load, repeats, wait)
            progress.advance(bar)

        def update() -> None:
            if training.step % training.steps_per_epoch == training.steps_per_epoch - 1:
                training.step += 1  # without the last mini-batch of an epoch, which may be smaller
            training.update()

        def step(name: str) -> None:
            ms[name] = per_step(update, steps, wait)
            progress.advance(bar)

        training.step = training.steps_per_epoch  # graphs are recorded from the second epoch on
        step("training step")
        if device.type == "cuda":
            with mock.patch.object(training, "_graphs", None):
                step("the same, kernel by kernel")
        x = training_spikes(settings, data.x[batch], 0, batch, device)
        with mock.patch("bisnn.runs.loop.training_spikes", return_value=x):
            step("the same, nothing to load")
    about = {"precision": settings.train.precision, "threads": torch.get_num_threads()}
    return {
        **about,
        "batch": len(batch),
        "shape": [settings.steps, *training.net.input_shape],
        "ms": ms,
    }


if __name__ == "__main__":
    main()
