"""Trained networks, run by the packed engine and by others: the contestants of packed.py.

All get the same float +-1 weights, drawn from a seed here, without bisnn, which the peers'
environment does not have; the same neurons with their refractory feedback, and one recording of
random spikes: the engine as bytes, to be packed within the clock, the others as the float32 that
they compute with. All give the logits of every time step.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from contestants import Build, Built, Contestant, network
from torch import Tensor
from workloads import KERNEL, Sizes, Workload

TAU_MEM, TAU_SYN, TAU_REF = 10.0, 6.0, 2.0
MEMBERS = 10
SPIKES = "spikes"  # among a contestant's facts: what left each layer, for comparison


@dataclass(frozen=True)
class Stage:
    """A layer as floats."""

    size: Sizes
    weight: Tensor  # +-1
    kappa: float
    constants: tuple[float, ...]  # a_m, a_s, a_r, theta

    def current(self, s: Tensor) -> Tensor:
        if self.weight.ndim == 2:
            return F.linear(s, self.weight)
        return F.conv2d(s, self.weight, padding=self.size.padding)


@dataclass(frozen=True)
class Plain:
    """A network as floats: all that one needs to write it down in another library."""

    stages: list[Stage]
    V: Tensor | None  # +-1, (outputs, n)
    scale: float


def plain(workload: Workload) -> Plain:
    """The network of a workload, with weights drawn from a seed."""
    generator = torch.Generator().manual_seed(0)
    stages = []
    for size, threshold in zip(workload.layers, workload.thresholds, strict=True):
        kernel = () if len(size.inputs) == 1 else (KERNEL, KERNEL)
        weight = _signs((size.neurons[0], size.inputs[0], *kernel), generator)
        decays = [math.exp(-1 / tau) for tau in (TAU_MEM, TAU_SYN, TAU_REF)]
        constants = tuple(map(_float32, (*decays, threshold)))
        stages.append(Stage(size, weight, _float32(size.parents**-0.5), constants))
    n = math.prod(workload.layers[-1].outputs)
    V = _signs((workload.classes, n), generator) if workload.classes else None
    return Plain(stages, V, _float32(n**-0.5))


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, shape, generator=generator) * 2.0 - 1.0


def _float32(value: float) -> float:
    return float(np.float32(value))


def spikes_as_fact(spikes: list[Any]) -> dict[str, str]:
    """The spikes of each layer as a fact that fits into a line of JSON."""
    bits = np.packbits(np.concatenate([np.asarray(s).astype(bool).reshape(-1) for s in spikes]))
    return {SPIKES: base64.b64encode(zlib.compress(bits.tobytes())).decode()}


def share_that_differs(one: str, other: str) -> float:
    """The number of places in which the spikes of two contestants differ, per spike of the first: 0
    means the same bits.
    """
    a, b = (
        np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(s)), np.uint8))
        for s in (one, other)
    )
    return float((a != b).sum() / max(1, int(a.sum())))


# Ours


def trained_network(workload: Workload) -> Any:
    """The same network in bisnn."""
    net, same = network(workload, "bptt"), plain(workload)
    with torch.no_grad():
        for layer, stage in zip(net.layers, same.stages, strict=True):
            layer.weight.copy_(0.5 * stage.weight)
            ours = [*layer.constants.tolist(), layer.kappa.item()]
            if ours != [*stage.constants, stage.kappa]:
                raise RuntimeError("bisnn's constants differ from those written here")
        if same.V is not None:
            net.readouts[-1].V.copy_(same.V)
            net.readouts[-1].scale.fill_(same.scale)
    return net


def packed_network(workload: Workload, members: int | None = None, posterior: bool = False) -> Any:
    """The same network as bits; with `members` draws from its posterior."""
    from bisnn import packing, weights

    net, drawn = trained_network(workload), None
    if members is not None:
        drawn = weights.draw_members([layer.weight for layer in net.layers], members, seed=0)
    return packing.describe(net, drawn, posterior=posterior)


def engine(members: int | None = None, apart: bool = False, stream: bool = False) -> Build:
    """The packed engine: a recording in one call, or a stream with one call per time step; members
    in one engine, or each in its own.
    """
    import bisnn  # noqa: F401  the version in the results is its
    from bisnn.packed import Engine, State

    def build(workload: Workload) -> Built:
        x, packed = workload.batch(torch.uint8)[0].numpy(), packed_network(workload, members)
        several = [packed]
        if apart:
            parts = [
                [replace(one, weights=one.weights[k : k + 1]) for one in packed.layers]
                for k in range(packed.count)
            ]
            several = [replace(packed, layers=tuple(layers)) for layers in parts]
        engines = [Engine(one, threads=1) for one in several]

        def steps() -> None:
            state: State | None = engines[0].start(workload.B)
            for t in range(len(x)):
                state = engines[0].run(x[t : t + 1], state).state

        def whole() -> None:
            for one in engines:
                one.run(x)

        def facts() -> dict[str, Any]:
            if members is not None:
                return {}
            return spikes_as_fact([s[0] for s in engines[0].run(x, spikes=True).spikes])

        return Built(steps if stream else whole, facts=facts)

    return build


def in_pytorch() -> Build:
    """Our network in PyTorch, as it is trained: all time steps of a layer at once."""
    import bisnn

    def build(workload: Workload) -> Built:
        x, net = workload.batch()[0], trained_network(workload)

        def forward() -> Any:
            with torch.no_grad(), bisnn.map_weights(net):
                return net(x)

        def facts() -> dict[str, Any]:
            return spikes_as_fact(list(forward().spikes))

        return Built(forward, facts=facts)

    return build


# Others


def by_step() -> Build:
    """PyTorch, float32, a loop over time: what one writes without a library. State in place."""

    def build(workload: Workload) -> Built:
        x, net = workload.batch()[0], plain(workload)
        V = None if net.V is None else net.V * net.scale

        def forward(
            fired: list[list[Tensor]] | None = None, left: list[list[Tensor]] | None = None
        ) -> None:
            states = [
                torch.zeros(3, workload.B, *stage.size.neurons).unbind(0) for stage in net.stages
            ]
            logits = []
            for s in x.unbind(0):
                for i, (stage, (P, Q, R)) in enumerate(zip(net.stages, states, strict=True)):
                    a_m, a_s, a_r, theta = stage.constants
                    I = stage.current(s)
                    s = ((P - Q).mul_(stage.kappa).sub_(R) > theta).float()
                    P.add_(I).mul_(a_m)
                    Q.add_(I).mul_(a_s)
                    R.add_(s).mul_(a_r)
                    if fired is not None:
                        fired[i].append(s)
                    s = F.max_pool2d(s, stage.size.pool) if stage.size.pool > 1 else s
                    if left is not None:
                        left[i].append(s)
                logits.append(s if V is None else F.linear(s.flatten(1), V))
            torch.stack(logits)

        def iteration() -> None:
            with torch.inference_mode():
                forward()

        def facts() -> dict[str, Any]:
            fired, left = ([list[Tensor]() for _ in net.stages] for _ in range(2))
            forward(fired, left)
            rates = [round(torch.stack(s).mean().item(), 4) for s in fired]
            return {"firing_rates": rates} | spikes_as_fact([torch.stack(s) for s in left])

        return Built(iteration, facts=facts)

    return build


def product() -> Build:
    """The float product of the first layer for all time steps at once, and nothing else."""

    def build(workload: Workload) -> Built:
        x, w = workload.batch()[0].flatten(0, 1), plain(workload).stages[0].weight.T.contiguous()
        out = torch.empty(len(x), w.shape[1])
        return Built(lambda: torch.matmul(x, w, out=out))

    return build


# ONNX Runtime


def onnx_runtime(scan: bool = False) -> Build:
    """One time step as a graph with the state going in and out, called for each; or the loop within
    the graph, by Scan.
    """
    runtime = import_module("onnxruntime")

    def session(graph: Any) -> Any:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        return runtime.InferenceSession(graph.model(), options, providers=["CPUExecutionProvider"])

    def build(workload: Workload) -> Built:
        x, net = workload.batch()[0].numpy(), plain(workload)
        zeros = {
            name: np.zeros(shape, np.float32)
            for name, shape in Graph(net, workload.B).states.items()
        }
        if scan:
            loop = session(Graph(net, workload.B).over_time(workload.T))
            iteration: Callable[[], object] = lambda: loop.run(["logits"], zeros | {"x": x})  # noqa: E731
        else:
            iteration = _bound_steps(session(Graph(net, workload.B)), x, zeros, workload.classes)

        def facts() -> dict[str, Any]:
            graph = Graph(net, workload.B, spikes=True)
            check, state, left = session(graph), dict(zeros), list[list[Any]]()
            for x_t in x:
                values = check.run(None, state | {"x": x_t})
                after, (_, *spikes) = values[: len(zeros)], values[len(zeros) :]
                state = dict(zip(zeros, after, strict=True))
                left.append(spikes)
            return spikes_as_fact([np.stack(s) for s in zip(*left, strict=True)])

        return Built(iteration, facts=facts)

    return build


def _bound_steps(
    session: Any, x: np.ndarray, zeros: dict[str, np.ndarray], classes: int
) -> Callable[[], object]:
    """A loop over time that allocates nothing: two sets of buffers, each in turn the state before a
    step and that after it.
    """
    sets = [[z.copy() for z in zeros.values()] for _ in range(2)]
    x_t, logits_t = np.empty_like(x[0]), np.empty((x.shape[1], classes), np.float32)
    bindings = []
    for before, after in (sets, sets[::-1]):
        binding = session.io_binding()
        for name, b, a in zip(zeros, before, after, strict=True):
            binding.bind_input(name, "cpu", 0, np.float32, b.shape, b.ctypes.data)
            binding.bind_output(f"{name}_next", "cpu", 0, np.float32, a.shape, a.ctypes.data)
        binding.bind_input("x", "cpu", 0, np.float32, x_t.shape, x_t.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, logits_t.shape, logits_t.ctypes.data)
        bindings.append(binding)

    def steps() -> np.ndarray:
        logits = np.empty((len(x), *logits_t.shape), np.float32)
        for z in sets[0]:
            z.fill(0)
        for t in range(len(x)):
            x_t[...] = x[t]
            session.run_with_iobinding(bindings[t % 2])
            logits[t] = logits_t
        return logits

    return steps


class Graph:
    """A time step: the state P0, Q0, R0, ... and x go in; P0_next, ..., logits and, if asked for,
    spikes come out.
    """

    def __init__(self, net: Plain, B: int, spikes: bool = False):
        self.onnx, self.nodes, self.constants = import_module("onnx"), list[Any](), list[Any]()
        self.states = {
            f"{z}{i}": (B, *stage.size.neurons) for i, stage in enumerate(net.stages) for z in "PQR"
        }
        self.x, s, left = (B, *net.stages[0].size.inputs), "x", dict[str, tuple[int, ...]]()
        for i, stage in enumerate(net.stages):
            s = self._layer(i, stage, s)
            left[s] = (B, *stage.size.outputs)
        assert net.V is not None
        flat = self._add("Flatten", [s], axis=1)
        self._add("MatMul", [flat, self._constant("V", (net.V * net.scale).T)], "logits")
        self.outputs = {f"{name}_next": shape for name, shape in self.states.items()} | {
            "logits": (B, len(net.V))
        }
        self.outputs |= left if spikes else {}

    def _add(self, kind: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, name: str, value: Any) -> str:
        self.constants.append(
            self.onnx.numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name)
        )
        return name

    def _layer(self, i: int, stage: Stage, x: str) -> str:
        P, Q, R = (f"{z}{i}" for z in "PQR")
        a_m, a_s, a_r, theta = (
            self._constant(f"{name}{i}", value)
            for name, value in zip(("a_m", "a_s", "a_r", "theta"), stage.constants, strict=True)
        )
        if stage.weight.ndim == 2:
            I = self._add("MatMul", [x, self._constant(f"W{i}", stage.weight.T)])
        else:
            I = self._add(
                "Conv", [x, self._constant(f"W{i}", stage.weight)], pads=[stage.size.padding] * 4
            )
        scaled = self._add(
            "Mul", [self._add("Sub", [P, Q]), self._constant(f"kappa{i}", stage.kappa)]
        )
        s = self._add(
            "Cast",
            [self._add("Greater", [self._add("Sub", [scaled, R]), theta])],
            to=self.onnx.TensorProto.FLOAT,
        )
        for trace, decay, value in ((P, a_m, I), (Q, a_s, I), (R, a_r, s)):
            self._add("Mul", [self._add("Add", [trace, value]), decay], f"{trace}_next")
        if stage.size.pool == 1:
            return s
        pool = [stage.size.pool] * 2
        return self._add("MaxPool", [s], kernel_shape=pool, strides=pool)

    def graph(self) -> Any:
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        ins, outs = (
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in of.items()]
            for of in (self.states | {"x": self.x}, self.outputs)
        )
        return helper.make_graph(self.nodes, "step", ins, outs, self.constants)

    def over_time(self, T: int) -> Graph:
        """This step as the body of a loop: x and logits get a first axis of T."""
        whole = object.__new__(Graph)
        whole.onnx, whole.constants = self.onnx, []
        whole.states, whole.x = self.states, (T, *self.x)
        whole.outputs = {
            name: (T, *shape) if name == "logits" else shape for name, shape in self.outputs.items()
        }
        body = {"body": self.graph(), "num_scan_inputs": 1}
        whole.nodes = [
            self.onnx.helper.make_node("Scan", [*self.states, "x"], list(self.outputs), **body)
        ]
        return whole

    def model(self) -> bytes:
        helper = self.onnx.helper
        opsets = [helper.make_opsetid("", 18)]
        model = helper.make_model(self.graph(), opset_imports=opsets, ir_version=9)
        return model.SerializeToString()


ENGINE = "packed engine"
STREAM = "packed engine, a call a time step"
TEN, APART = "packed engine, ten members", "ten packed engines, a member each"
FOLDED = "bisnn in PyTorch, net(x)"
STEPS = "PyTorch, step by step"
PRODUCT = "PyTorch, the float product of all steps"
ORT, ORT_SCAN = "ONNX Runtime, step by step", "ONNX Runtime, loop in the graph (Scan)"

INFERENCE: dict[str, Contestant] = {
    ENGINE: Contestant("bisnn", engine, {}),
    STREAM: Contestant("bisnn", engine, {"stream": True}),
    TEN: Contestant("bisnn", engine, {"members": MEMBERS}),
    APART: Contestant("bisnn", engine, {"members": MEMBERS, "apart": True}),
    FOLDED: Contestant("bisnn", in_pytorch, {}),
    STEPS: Contestant("torch", by_step, {}),
    PRODUCT: Contestant("torch", product, {}),
    ORT: Contestant("onnxruntime", onnx_runtime, {}),
    ORT_SCAN: Contestant("onnxruntime", onnx_runtime, {"scan": True}),
}
