"""What exported C code takes on microcontrollers, with either neuron, under QEMU.

    python -m bisnn_experiments.microcontrollers [--out out/microcontrollers] [--jobs 2]

Networks are trained with the float SRM, and exported with either neuron on the same weights, the
most probable ones. Needs the cross compilers and QEMU that `.ci/run` installs. Runs that are there
are not trained again. It writes OUT/results.json; docs/results/microcontrollers.json is a copy.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bisnn.packed import Engine, PackedNetwork
from bisnn.runs import config, model
from bisnn.runs.exporting import describe_model
from bisnn.runs.results import Finding
from bisnn.runs.trial_inputs import golden_recording
from bisnn.shipping import c, conversion, targets
from bisnn_experiments import reproduction, results
from bisnn_experiments.measurement import machine, note, table
from bisnn_experiments.reproduction import Task
from bisnn_experiments.results import Machine

CONFIGS = {"two moons": "two_moons_bayes", "digits": "digits_bayes"}
NEURONS = ("srm", "fixed")
FRACTION = 12
TOOLS = ("arm-none-eabi-gcc", "riscv64-unknown-elf-gcc", "qemu-system-arm", "qemu-system-riscv32")


class Taken(Finding):
    """By one neuron on one target, in bytes."""

    flash: int
    beside: int  # of the flash, beside the weights' bits
    ram: int
    stack: int  # of the ram
    instructions: int  # per time step


class ChipRow(Finding):
    """A network on one target, with either neuron."""

    target: str
    srm: Taken
    fixed: Taken


class NetworkOnChips(Finding):
    """A network on all of them."""

    data: str
    layers: list[str]
    weights: int  # bytes of their bits
    constants: int  # bytes of other tables
    state: int  # bytes
    steps: int  # over which instructions are a mean
    rates: dict[str, list[float]]  # of each layer, spikes per neuron and time step, by neuron
    targets: list[ChipRow]


class ChipStudy(Finding):
    """The file of this study."""

    command: str
    machine: Machine
    tools: list[str]
    networks: dict[str, NetworkOnChips]


def versions() -> list[str]:
    """The first line that each tool says of itself."""
    return [
        subprocess.run(
            [tool, "--version"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
        for tool in TOOLS
    ]


def costs(
    network: PackedNetwork, x: np.ndarray
) -> tuple[dict[str, int], dict[str, targets.Cost], list[float]]:
    """Sizes of the exported code, its cost on each target, and the layers' firing rates."""
    with tempfile.TemporaryDirectory() as name:
        sizes = c.write(network, Path(name) / "c", x)
        found = targets.measure(network, Path(name) / "c", "model", len(x), sizes["ram"])
    reasons = [f"{cost.target}: {cost.reason}" for cost in found if cost.reason]
    if reasons:
        raise SystemExit(f"cannot be measured: {'; '.join(reasons)}")
    spikes = Engine(network).run(x[:, None], spikes=True).spikes
    rates = [float(s.mean()) for s in spikes]
    return sizes, {cost.target: cost for cost in found}, rates


def measure(data: str, folder: Path) -> NetworkOnChips:
    """A run's network on every target, with either neuron."""
    trained = model.load(folder)
    float_network = describe_model(trained, "map")
    x = golden_recording(float_network, trained)
    weights = sum(-(-layer.bits().size // 8) for layer in float_network.layers)
    found: dict[str, Any] = {}
    rates: dict[str, list[float]] = {}
    for neuron in NEURONS:
        note(f"{data}, {neuron}")
        network = float_network
        if neuron == "fixed":
            network = conversion.converted(float_network, "fixed", FRACTION)
        sizes, found[neuron], rates[neuron] = costs(network, x)

    def taken(cost: targets.Cost) -> Taken:
        values = cost.to_json()
        numbers = {name: values[name] for name in ("flash", "ram", "stack", "instructions")}
        return Taken(**numbers, beside=cost.flash - weights)

    return NetworkOnChips(
        data=data,
        layers=[str(layer.current_shape) for layer in float_network.layers],
        weights=weights,
        constants=sizes["flash"] - weights,
        state=sizes["ram"],
        steps=len(x),
        rates=rates,
        targets=[
            ChipRow(target=name, **{neuron: taken(found[neuron][name]) for neuron in NEURONS})
            for name in found["srm"]
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/microcontrollers"))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    folders = {data: options.out / name for data, name in CONFIGS.items()}
    tasks = [
        Task(data, config.load(name, ["train.threads=1"]), folders[data])
        for data, name in CONFIGS.items()
    ]
    reproduction.run_all(tasks, options.jobs, True)
    networks = {data: measure(data, folder) for data, folder in folders.items()}
    for data, found in networks.items():
        rows = [
            (row.target, [row.srm.flash, row.srm.instructions, row.fixed.instructions])
            for row in found.targets
        ]
        print(table(data, ("flash", "instructions, SRM", "FixedSRM"), rows))
    results.write(
        options.out / "results.json",
        ChipStudy(
            command=results.command(),
            machine=Machine(**machine()),
            tools=versions(),
            networks=networks,
        ),
    )


if __name__ == "__main__":
    main()
