"""A contestant in a process of its own: `Contender` starts it and asks it questions; run as a
script, this file answers.

Peak memory is the process's highest resident size during its timed iterations, less its size just
before the first one, when libraries are loaded, network and input are there, and a tiny network has
been trained once, so that what libraries load late is not counted; what a compiler keeps of
compiling the measured network is. Good to a MiB or two, more where a process measures several
networks one after the other (Linux only).
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from contestants import ON_CPU, Built, first_line
from inference import INFERENCE
from torch import nn
from workloads import Workload

# The peers' environment has no package of ours.
sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
from bisnn_experiments.measurement import mib

CONTESTANTS = ON_CPU | INFERENCE
ROOT = Path(__file__).resolve().parents[1]
PEER_PYTHON = ROOT / ".venv-peers" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def setup() -> None:
    """Create .venv-peers, with the PyTorch that constraints.txt pins for bisnn."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", ROOT / ".venv-peers"], check=True)
    pip: list[str | Path] = [PEER_PYTHON, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", "torch", "numpy"], check=True)
    subprocess.run([*pip, "--no-deps", "-r", ROOT / "benchmarks" / "peers.txt"], check=True)


class Contender:
    """A contestant's process, seen from outside. Errors of the process are RuntimeErrors here, with
    one line.
    """

    def __init__(self, name: str, threads: int = 1):
        package = CONTESTANTS[name].package
        peer = package not in ("bisnn", "torch")
        if peer and not PEER_PYTHON.exists():
            raise RuntimeError(
                "there is no .venv-peers; get it with `python benchmarks/cpu.py --setup`"
            )
        libraries = ("OMP_NUM", "MKL_NUM", "NUMBA_NUM", "TORCHINDUCTOR_COMPILE")
        environment = os.environ | {f"{name}_THREADS": str(threads) for name in libraries}
        command = [str(PEER_PYTHON) if peer else sys.executable, __file__, name, str(threads)]
        # Open as long as the process lives
        pipe, self.errors = subprocess.PIPE, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process: Any = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=self.errors, text=True
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.about, self.seconds = self._answer(None), list[float]()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _answer(self, limit_s: float | None) -> Any:
        try:
            line = self.lines.get(timeout=limit_s)
        except queue.Empty:
            self.close()
            raise RuntimeError(f"not done after {limit_s:.0f} s") from None
        if not line:
            self.errors.seek(0)
            last = (self.errors.read().strip().splitlines() or ["it ended without a message"])[-1]
            self.close()
            raise RuntimeError(last)
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def ask(self, action: str, limit_s: float | None = None, **arguments: Any) -> Any:
        """An answer from `Worker`; after `limit_s` without one the process is ended."""
        with suppress(BrokenPipeError):  # the answer says why
            print(json.dumps({"action": action, **arguments}), file=self.process.stdin, flush=True)
        return self._answer(limit_s)

    def build(
        self, workload: Workload, limit_s: float | None = None, limit_mib: float | None = None
    ) -> dict[str, Any]:
        return self.ask(
            "build", limit_s, workload=dataclasses.asdict(workload), limit_mib=limit_mib
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Worker:
    """The process itself: each method answers an action of that name."""

    def __init__(self, name: str, threads: int):
        torch.set_num_threads(threads)
        self.package, function, arguments = CONTESTANTS[name]
        self.make = function(**arguments)
        # PyTorch puts some imports off until there is an optimizer.
        torch.optim.SGD([nn.Parameter(torch.zeros(1))])
        self.built: Built | None = None
        self.before: float | None = None

    def about(self) -> dict[str, str]:
        ours = self.package == "bisnn"  # which may not be installed
        version = sys.modules["bisnn"].__version__ if ours else metadata.version(self.package)
        return {"version": version, "torch": torch.__version__}

    def build(self, workload: dict[str, Any], limit_mib: float | None) -> dict[str, Any]:
        """Build, and iterate until it has settled. With a limit, allocations beyond it fail."""
        workload["hidden"] = tuple(workload["hidden"])
        asked = Workload(**workload)
        if self.before is None:
            self.make(dataclasses.replace(asked, T=3, B=2)).iteration()
        self.free()
        self.built = self.make(asked)
        release_memory()
        self.before = mib("/proc/self/status", "VmRSS")
        if limit_mib is not None:
            limit_memory(limit_mib)
        initial = self._sums()
        begin = time.perf_counter()
        for _ in range(self.built.settles):
            self.built.iteration()
        first_s = time.perf_counter() - begin
        learned = all(new != old for new, old in zip(self._sums(), initial, strict=True))
        release_memory()
        if self.before is not None:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts from the present size
        return {"first_s": first_s, "learned": learned}

    def _sums(self) -> list[float]:
        """The sum of each parameter's values: it tells whether they have changed, and takes no
        memory.
        """
        assert self.built is not None
        return [p.detach().sum(dtype=torch.float64).item() for p in self.built.parameters]

    def run(self, most: int, warm: int = 0, budget_s: float = float("inf")) -> list[float]:
        """Seconds of up to `most` iterations, at least one, begun within a budget; `warm` others
        bring the caches back first.
        """
        assert self.built is not None
        seconds = list[float]()
        for _ in range(warm):
            self.built.iteration()
        while len(seconds) < most and (not seconds or sum(seconds) + seconds[-1] < budget_s):
            begin = time.perf_counter()
            self.built.iteration()
            seconds.append(time.perf_counter() - begin)
        release_memory()  # all contestants are there at the same time
        return seconds

    def peak(self) -> float | None:
        peak = mib("/proc/self/status", "VmHWM")
        return None if self.before is None or peak is None else peak - self.before

    def facts(self) -> dict[str, Any]:
        assert self.built is not None
        return self.built.facts()

    def free(self) -> None:
        self.built = None
        limit_memory(None)
        if "torch._dynamo" in sys.modules:
            # Else the compiler gives up on the functions that it has seen in too many shapes
            torch._dynamo.reset()
        release_memory()


def release_memory() -> None:
    """Give back what Python and the C library keep for later, so that each measurement starts from
    what is in use.
    """
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def limit_memory(more_mib: float | None) -> None:
    """Let the process have that much more memory than now; None: as much as there is. On Linux
    alone.
    """
    data = mib("/proc/self/status", "VmData")
    if data is None:
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = hard if more_mib is None else int((data + more_mib) * 2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"answer": worker.about()}), file=answers)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"answer": getattr(worker, question.pop("action"))(**question)}
        except Exception as error:  # whatever a library raises is a result here
            answer = {"error": first_line(error)}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
