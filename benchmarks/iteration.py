"""Time and memory of one training iteration, beside other libraries for spiking networks: `python benchmarks/iteration.py`.

Timed is forward, gradient and update of a network 20-256-256 with a 2-class readout on B = 64 recordings of T = 100 steps with
5 % input density, in float32 on one CPU thread. Outside the clock: imports, building the network, compilation, the input.

Every peer gets the structure that ours has: two layers of leaky integrate-and-fire neurons, then a linear readout; no bias. Each
linear layer takes all time steps at once; surrogate gradients pass through all of time; cross entropy of the mean output; SGD.
"ReLU" is a plain network on the T B rows, to show what little more than the matrix products costs. "dense" is ours without its
event-driven products, as it would run if more than a tenth of the neurons fired at a time.

Each contestant lives in a process of its own; they take turns, a few iterations a round, so that changes in the machine's load
meet all of them. Peak memory is the process's highest resident size during its iterations, less the size with all libraries
imported but no network built (Linux only). All start twice, the first time to fill the caches of those that compile; "first s"
is the first iteration of the second time.

The peers of peers.txt are installed into .venv-peers by `python benchmarks/iteration.py --setup`; else they are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
PEER_PYTHON = ROOT / ".venv-peers" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
T, B, SIZES, DENSITY = 100, 64, (20, 256, 256, 2), 0.05
DECAY = 0.9  # of the peers' membrane potentials, per time step

# Calling a contestant imports its libraries; calling the result builds the network: its parameters, and one iteration.
Built = tuple[list[Tensor], Callable[[], None]]
Build = Callable[[], Built]


def batch() -> tuple[Tensor, Tensor]:
    """Input spikes (T, B, N) and labels (B,)."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(T, B, SIZES[0], generator=generator) < DENSITY).float()
    return x, torch.randint(SIZES[-1], (B,), generator=generator)


def ours(rule: str, bptt: bool = False, sparse: bool = True, **options: Any) -> Build:
    import bisnn

    loss = bisnn.global_loss if bptt else bisnn.local_loss
    kernel = bisnn.kernels.choose(torch.empty(0))  # imports the kernels that will run
    if not sparse:
        vars(kernel)["SPARSE"] = -1.0  # no input is sparse: dense products

    def build() -> Built:
        x, y = batch()
        layers = [bisnn.Linear(n, m) for n, m in pairwise(SIZES[:-1])]
        gradient, after = ("bptt", "last") if bptt else ("local", "every")
        neuron = bisnn.SRM(threshold=0.1)  # about 7 and 11 % of the neurons fire at a time, before learning
        net = bisnn.Network(*layers, readout=SIZES[-1], gradient=gradient, readout_after=after, neuron=neuron)
        learner = getattr(bisnn, rule)(net.parameters(), lr=0.01, **options)

        def iteration() -> None:
            with learner.sampled():
                loss(net(x), y).backward()
            learner.step()

        return list(net.parameters()), iteration

    return build


def standard(neuron: Callable[[], nn.Module], reset: Callable[[nn.Module], object] = lambda net: None, time_axis: int = 0) -> Build:
    """Linear layers with `neuron()` between them."""

    def build() -> Built:
        x, y = batch()
        x = x.transpose(0, time_axis).contiguous()
        linear = [nn.Linear(n, m, bias=False) for n, m in pairwise(SIZES)]
        for layer, density in zip(linear, (DENSITY, 0.1, 0.1), strict=True):  # currents of about 1, so that no layer is silent
            nn.init.normal_(layer.weight, std=(layer.in_features * density) ** -0.5, generator=torch.Generator().manual_seed(0))
        net = nn.Sequential(linear[0], neuron(), linear[1], neuron(), linear[2])
        parameters: list[Tensor] = [layer.weight for layer in linear]
        optimizer = torch.optim.SGD(parameters, lr=0.01)

        def iteration() -> None:
            reset(net)
            F.cross_entropy(net(x).mean(time_axis), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return parameters, iteration

    return build


class OverTime(nn.Module):
    """A neuron that knows one time step, (I_t, state) -> (s_t, state), run over currents (T, B, N)."""

    def __init__(self, step: nn.Module, initial: Callable[[Tensor], Any] = torch.zeros_like, compiled: bool = False):
        super().__init__()
        self.step, self.initial = step, initial
        if compiled:
            self.compile()

    def forward(self, currents: Tensor) -> Tensor:
        state, spikes = self.initial(currents[0]), []
        for I in currents.unbind(0):
            s, state = self.step(I, state)
            spikes.append(s)
        return torch.stack(spikes)


def spikingjelly() -> Build:
    from spikingjelly.activation_based import functional, neuron, surrogate

    options = {"tau": 1 / (1 - DECAY), "decay_input": False, "v_reset": None, "detach_reset": True, "step_mode": "m"}
    return standard(lambda: neuron.LIFNode(surrogate_function=surrogate.ATan(), **options), functional.reset_net)


def snntorch(compiled: bool = False) -> Build:
    """Compiled is a layer's whole loop over time: slower to compile than a single step, faster to run."""
    import snntorch

    if compiled:
        import_module("torch._inductor.compile_fx")  # the compiler would import it
    return standard(lambda: OverTime(snntorch.Leaky(beta=DECAY), compiled=compiled))


def norse() -> Build:
    from norse.torch import LIFBoxCell, LIFBoxFeedForwardState, LIFBoxParameters

    # The box neuron has no synaptic current, which is faster. It scales its input by 1 - DECAY; the threshold makes up for that.
    p = LIFBoxParameters(tau_mem_inv=torch.tensor((1 - DECAY) * 1000), v_th=torch.tensor(1 - DECAY))
    return standard(lambda: OverTime(LIFBoxCell(p), lambda I: LIFBoxFeedForwardState(v=torch.zeros_like(I))))


def sinabs() -> Build:
    sys.modules["pylab"] = ModuleType("pylab")  # sinabs imports matplotlib, for plots only: an empty module will do
    layers, utils = import_module("sinabs.layers"), import_module("sinabs.utils")
    return standard(lambda: layers.LIF(tau_mem=1 / (1 - DECAY), norm_input=False).requires_grad_(False), utils.reset_states, 1)


ST, BAYES = {"rule": "STBiSNN"}, {"rule": "BayesBiSNN", "temperature": 1e-3, "tau": 1.0}
CONTESTANTS: dict[str, tuple[str, Callable[..., Build], dict[str, Any]]] = {  # package, its function, arguments
    "bisnn: ST, local": ("bisnn", ours, ST),
    "bisnn: ST, local, dense": ("bisnn", ours, ST | {"sparse": False}),
    "bisnn: Bayes, local, relaxed": ("bisnn", ours, BAYES),
    "bisnn: Bayes, local, hard": ("bisnn", ours, BAYES | {"straight_through": True}),
    "bisnn: ST, bptt": ("bisnn", ours, ST | {"bptt": True}),
    "ReLU": ("torch", standard, {"neuron": nn.ReLU}),
    "SpikingJelly, multi-step": ("spikingjelly", spikingjelly, {}),
    "snnTorch, eager": ("snntorch", snntorch, {}),
    "snnTorch, compiled time loop": ("snntorch", snntorch, {"compiled": True}),
    "Norse": ("norse", norse, {}),
    "sinabs": ("sinabs", sinabs, {}),
}
OURS = ("bisnn", "torch")  # packages that this interpreter runs; the others are peers


def field(path: str, key: str) -> str | None:
    """The first "key: value" of a file under /proc; None where there is none, as on other systems than Linux."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith(key)), None)


def resident(key: str) -> float | None:
    """This process's size in MiB: VmRSS (now) or VmHWM (peak)."""
    size = field("/proc/self/status", key)
    return None if size is None else int(size.split()[0]) / 1024


def work(name: str) -> None:
    """A contestant's process. After its first line, it answers "run n" by n times in seconds and "peak" by MiB, as JSON."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    torch.set_num_threads(1)
    package, contestant, arguments = CONTESTANTS[name]
    build = contestant(**arguments)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # PyTorch puts some imports off until there is an optimizer
    before = resident("VmRSS")
    parameters, iteration = build()
    initial = [p.detach().clone() for p in parameters]
    first_s = timeit.timeit(iteration, number=1)
    iteration()
    if any(torch.equal(p, p_0) for p, p_0 in zip(parameters, initial, strict=True)):
        raise RuntimeError("a layer did not learn: its weights have not changed")
    if before is not None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts from the present size
    release = sys.modules["bisnn"].__version__ if package == "bisnn" else metadata.version(package)  # ours may not be installed
    print(json.dumps({"version": release, "torch": torch.__version__, "first_s": first_s}), file=answers)
    for line in sys.stdin:
        if line.startswith("run"):
            seconds = timeit.repeat(iteration, "import gc; gc.enable()", number=1, repeat=int(line.split()[1]) + 1)
            print(json.dumps(seconds[1:]), file=answers)  # the first one brings the caches back after the others' turns
        else:
            peak = resident("VmHWM")
            print(json.dumps(None if before is None or peak is None else peak - before), file=answers)


class Worker:
    """A contestant's process, seen from outside."""

    def __init__(self, name: str):
        command = [sys.executable if CONTESTANTS[name][0] in OURS else str(PEER_PYTHON), __file__, "--worker", name]
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1")
        pipe, self.errors = subprocess.PIPE, tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process lives
        self.process: Any = subprocess.Popen(command, env=os.environ | one, stdin=pipe, stdout=pipe, stderr=self.errors, text=True)
        self.about, self.ms = self.ask(""), list[float]()

    def ask(self, command: str) -> Any:
        print(command, end="\n" if command else "", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            self.errors.seek(0)
            raise RuntimeError((self.errors.read().strip().splitlines() or ["it ended without a message"])[-1])
        return json.loads(answer)


def setup() -> None:
    """Create .venv-peers, with the PyTorch that constraints.txt pins for bisnn."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", ROOT / ".venv-peers"], check=True)
    pip: list[str | Path] = [PEER_PYTHON, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", "torch", "numpy"], check=True)
    subprocess.run([*pip, "--no-deps", "-r", ROOT / "benchmarks" / "peers.txt"], check=True)


def machine() -> dict[str, Any]:
    cpu = field("/proc/cpuinfo", "model name") or platform.processor()
    return {"cpu": cpu, "cores": os.cpu_count(), "threads used": 1, "python": sys.version.split()[0], "torch": torch.__version__}


def measure(rounds: int, iterations: int) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Results by contestant, and the reason for each that could not run."""
    workers, left_out = dict[str, Worker](), dict[str, str]()
    for name in CONTESTANTS:
        print(f"starting {name}", file=sys.stderr, flush=True)
        try:
            Worker(name).process.communicate()
            workers[name] = Worker(name)
        except FileNotFoundError:
            left_out[name] = "there is no .venv-peers; get it with `python benchmarks/iteration.py --setup`"
        except RuntimeError as error:
            left_out[name] = str(error)
    for _ in range(rounds):
        for worker in workers.values():
            worker.ms += [1000 * s for s in worker.ask(f"run {iterations}")]
    results = {}
    for name, worker in workers.items():
        times = {"median_ms": statistics.median(worker.ms), "min_ms": min(worker.ms)}
        results[name] = times | {"peak_mib": worker.ask("peak")} | worker.about
        worker.process.communicate()
    for statistic in ("median", "min"):
        fastest = min((r[f"{statistic}_ms"] for name, r in results.items() if CONTESTANTS[name][0] not in OURS), default=None)
        for r in results.values():
            r[f"{statistic}_to_fastest_peer"] = None if fastest is None else r[f"{statistic}_ms"] / fastest
    return results, left_out


def table(results: dict[str, dict[str, Any]]) -> str:
    columns = {"median ms": ("median_ms", 1), "min ms": ("min_ms", 1), "median / fastest peer": ("median_to_fastest_peer", 2)}
    columns |= {"min / fastest peer": ("min_to_fastest_peer", 2), "peak MiB": ("peak_mib", 0), "first s": ("first_s", 1)}
    lines = [" " * 30 + "  ".join([*columns, "version"])]
    for name, r in results.items():
        cells = [("-" if r[key] is None else f"{r[key]:.{digits}f}").rjust(len(title)) for title, (key, digits) in columns.items()]
        lines.append(name.ljust(30) + "  ".join([*cells, r["version"]]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="install the peers into .venv-peers, then stop")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each contestant (default: 6)")
    parser.add_argument("--iterations", type=int, default=8, help="timed iterations a turn (default: 8)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "iteration.json", help="where the JSON goes")
    parser.add_argument("--worker", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker or args.setup:
        return work(args.worker) if args.worker else setup()
    results, left_out = measure(args.rounds, args.iterations)
    print(" | ".join(f"{key} {value}" for key, value in machine().items()), end="\n\n")
    print(table(results), *(f"left out: {name}: {reason}" for name, reason in left_out.items()), sep="\n", end="\n\n")
    workload = {"T": T, "B": B, "sizes": SIZES, "density": DENSITY, "dtype": "float32"}
    report = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "workload": workload}
    report |= {"rounds": args.rounds, "iterations": args.iterations, "results": results, "left_out": left_out}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{args.rounds} rounds of {args.iterations} iterations; written to {args.out}")


if __name__ == "__main__":
    main()
