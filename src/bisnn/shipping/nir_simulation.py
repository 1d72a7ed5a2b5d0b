"""What a NIR graph means, as a numpy simulation from its nodes and edges alone."""

from __future__ import annotations

import graphlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisnn.neuron import FLUSH
from bisnn.packed.network import PackedNetwork
from bisnn.shipping.nir import cuba_lif, require_nir
from bisnn.shipping.nir import graph as exact_graph

__all__ = ["Disagreement", "disagreement", "simulate"]

try:
    import nir
except ImportError:  # an extra: `require_nir` says so
    nir = None


def simulate(
    graph: Any, x: np.ndarray, dt: float | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Run a graph of either profile, as made here or read back from a file, in float32.

    What CubaLI and LI give out at time t depends on earlier inputs alone: spikes of one time step
    arrive in the next. CubaLIF takes the input of the same step, and its own spikes, through
    recurrent weights, in the next.

    Args:
        graph: of Input, Linear, Conv2d, SumPool2d, Flatten, Scale, CubaLI, LI, Threshold, CubaLIF
            and Output nodes.
        x: spikes, `(T, B, *input_shape)`.
        dt: seconds of a time step; by default what the graph's metadata say.

    Returns:
        the spikes of each Threshold and CubaLIF node by its name, and the output, all (T, B, ...).
    """
    require_nir()
    dt = float(graph.metadata["dt"] if dt is None else dt)
    (inlet, source), *_ = graph.inputs.items()
    outlet, *_ = graph.outputs
    if x.ndim < 2 or x.shape[2:] != tuple(source.input_type["input"]):
        raise ValueError(
            f"x: must be (T, B, ...) with the graph's input shape {source.input_type['input']} "
            f"last; got {x.shape}"
        )
    order, late = _order(graph)
    before: dict[str, list[str]] = {
        name: [a for a, b in graph.edges if b == name] for name in graph.nodes
    }
    run = {name: _running(node, x.shape[1], dt) for name, node in graph.nodes.items()}
    causal = {name: node for name, node in run.items() if isinstance(node, (_CubaLI, _LI))}
    firing = [
        name for name, node in graph.nodes.items() if isinstance(node, (nir.Threshold, nir.CubaLIF))
    ]
    trace: dict[str, list[np.ndarray]] = {name: [] for name in (*firing, outlet)}
    values: dict[str, Any] = {}

    def arriving(name: str, earlier: dict[str, Any]) -> Any:
        return sum(
            earlier.get(a, np.float32(0)) if (a, name) in late else values[a] for a in before[name]
        )

    for x_t in x.astype(np.float32):
        earlier, values = values, {name: node.value() for name, node in causal.items()}
        values[inlet] = x_t
        for name in order:
            if name not in values:
                values[name] = run[name](arriving(name, earlier))
        for name, node in causal.items():
            node.advance(arriving(name, earlier))
        for name, steps in trace.items():
            steps.append(values[name])
    whole = {name: np.stack(steps) for name, steps in trace.items()}
    return {name: whole[name] for name in firing}, whole[outlet]


def _order(graph: Any) -> tuple[list[str], set[tuple[str, str]]]:
    """The nodes in an order in which a time step can run, and the edges that arrive a step late."""
    after: dict[str, list[str]] = {
        name: [b for a, b in graph.edges if a == name] for name in graph.nodes
    }

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            new = set(after[ahead.pop()]) - found
            found |= new
            ahead += new
        return found

    late = {
        (a, b)
        for b, node in graph.nodes.items()
        if isinstance(node, nir.CubaLIF)
        for a in reached(b)
        if b in after[a]
    }
    needs: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for a, b in graph.edges:
        if (a, b) not in late and not isinstance(graph.nodes[b], (nir.CubaLI, nir.LI)):
            needs[b].append(a)
    try:
        return list(graphlib.TopologicalSorter(needs).static_order()), late
    except graphlib.CycleError as error:
        raise ValueError(
            f"graph: must have a node with memory in every cycle; got {error.args[1]}; add one"
        ) from None


def _running(node: Any, B: int, dt: float) -> Any:
    """A node as a function of what arrives; one that needs none of it has `value`, `advance`."""
    if isinstance(node, (nir.CubaLI, nir.LI, nir.CubaLIF)):
        if np.any(node.v_leak):
            raise ValueError(
                f"graph: must have v_leak = 0; got {node.v_leak.max()} in a {type(node).__name__}; "
                "leave it out"
            )
        running = {nir.CubaLI: _CubaLI, nir.LI: _LI, nir.CubaLIF: _CubaLIF}
        return running[type(node)](node, B, dt)
    if isinstance(node, (nir.Input, nir.Output)):
        return lambda x: x
    if isinstance(node, nir.Linear):
        return lambda x: x @ node.weight.T.astype(np.float32)
    if isinstance(node, nir.Conv2d):
        return lambda x: _convolved(x, node)
    if isinstance(node, nir.SumPool2d):
        return lambda x: _summed(x, node)
    if isinstance(node, nir.Flatten):
        return lambda x: x.reshape(len(x), *node.output_type["output"])
    if isinstance(node, nir.Scale):
        return lambda x: x * node.scale.astype(np.float32)
    if isinstance(node, nir.Threshold):
        # Equality does not fire
        return lambda x: (x > node.threshold.astype(np.float32)).astype(np.float32)
    raise ValueError(
        f"graph: has a node this simulation does not know; got {type(node).__name__}; see `graph` "
        "for those it does"
    )


def _convolved(x: np.ndarray, node: Any) -> np.ndarray:
    """(B, C, H, W) -> (B, C_out, H', W')."""
    (k0, k1), (d0, d1), (p0, p1) = node.weight.shape[2:], node.stride, node.padding
    framed = np.pad(x, ((0, 0), (0, 0), (p0, p0), (p1, p1)))
    # (B, C, H', W', k0, k1)
    views = np.lib.stride_tricks.sliding_window_view(framed, (k0, k1), (2, 3))[:, :, ::d0, ::d1]
    return np.moveaxis(
        np.tensordot(views, node.weight.astype(np.float32), ((1, 4, 5), (1, 2, 3))), -1, 1
    )


def _summed(x: np.ndarray, node: Any) -> np.ndarray:
    """(B, C, H, W) -> (B, C, H', W'): sums over windows that lie within the padded image."""
    (k0, k1), (d0, d1), (p0, p1) = (
        np.broadcast_to(size, 2) for size in (node.kernel_size, node.stride, node.padding)
    )
    framed = np.pad(x, ((0, 0), (0, 0), (p0, p0), (p1, p1)))
    views = np.lib.stride_tricks.sliding_window_view(framed, (k0, k1), (2, 3))[:, :, ::d0, ::d1]
    return views.sum((-2, -1), dtype=np.float32)


def decay(tau: np.ndarray, dt: float) -> np.ndarray:
    """a = exp(-dt/tau), computed in float64 and rounded once."""
    return np.exp(-dt / np.asarray(tau, np.float64)).astype(np.float32)


def _flush(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) > np.float32(FLUSH), x, np.float32(0))


class _CubaLI:
    """kappa (P - Q), with P' = a_m (P + I) and Q' = a_s (Q + I), as `kernels.reference` has it."""

    def __init__(self, node: Any, B: int, dt: float):
        self.a_m, self.a_s = decay(node.tau_mem, dt), decay(node.tau_syn, dt)
        self.kappa = (node.w_in * (node.r / (node.tau_mem - node.tau_syn))).astype(np.float32)
        self.P = self.Q = np.zeros((B, *node.r.shape), np.float32)

    def value(self) -> np.ndarray:
        return self.kappa * (self.P - self.Q)

    def advance(self, I: np.ndarray) -> None:
        self.P, self.Q = _flush(self.a_m * (self.P + I)), _flush(self.a_s * (self.Q + I))


class _LI:
    """R, with R' = a_r (R + s)."""

    def __init__(self, node: Any, B: int, dt: float):
        self.a, self.gain = decay(node.tau, dt), (node.r / node.tau).astype(np.float32)
        self.R = np.zeros((B, *node.r.shape), np.float32)

    def value(self) -> np.ndarray:
        return self.gain * self.R

    def advance(self, s: np.ndarray) -> None:
        self.R = _flush(self.a * (self.R + s))


class _CubaLIF:
    """Forward Euler, as above; then spikes where v > threshold, and v = v_reset there."""

    def __init__(self, node: Any, B: int, dt: float):
        decays = (
            1 - dt / node.tau_syn,
            1 - dt / node.tau_mem,
            node.w_in * dt / node.tau_syn,
            node.r * dt / node.tau_mem,
        )
        self.a_s, self.a_m, self.w_in, self.r = (value.astype(np.float32) for value in decays)
        self.threshold, self.v_reset = (
            node.v_threshold.astype(np.float32),
            node.v_reset.astype(np.float32),
        )
        self.I = self.v = np.zeros((B, *node.r.shape), np.float32)

    def __call__(self, S: np.ndarray) -> np.ndarray:
        self.I = self.a_s * self.I + self.w_in * S
        v = self.a_m * self.v + self.r * self.I
        self.v = np.where(v > self.threshold, self.v_reset, v)
        return (v > self.threshold).astype(np.float32)


@dataclass(frozen=True)
class Disagreement:
    """What the lossy profile costs."""

    #: fraction of neurons and time steps in which the spikes differ, its lead of one time step per
    #: layer taken out
    spikes: float
    rate: float  #: spikes per neuron and time step, of the network
    rate_cuba_lif: float  #: and of its CubaLIF graph
    #: fraction of recordings with another class; None where there are no classes
    predictions: float | None


def disagreement(network: PackedNetwork, x: np.ndarray, member: int | None = None) -> Disagreement:
    """How far the CubaLIF graph of a `network` is from it on spikes `x`, `(T, B, *input_shape)`;
    with several members, of the one numbered `member`.
    """
    depth, T = len(network.layers), len(x)
    if max(depth, network.burn_in) >= T:
        raise ValueError(
            f"x: must have more time steps than layers, {depth}, and burn-in, {network.burn_in}; "
            f"got {T}; give more"
        )
    (exact, logits), (lossy, logits_lossy) = (
        simulate(of(network, member), x) for of in (exact_graph, cuba_lif)
    )
    ours = [exact[f"spikes_{i}"][i + 1 :] for i in range(depth)]
    theirs = [lossy[f"spikes_{i}"][: T - i - 1] for i in range(depth)]
    size = sum(s.size for s in ours)
    differ = sum(np.count_nonzero(a != b) for a, b in zip(ours, theirs, strict=True))
    predictions = None
    if network.outputs and network.task == "classification":
        a, b = (_predicted(y[network.burn_in :]) for y in (logits, logits_lossy))
        predictions = float(np.mean(a != b))
    rate, rate_cuba_lif = (float(sum(s.sum() for s in spikes)) / size for spikes in (ours, theirs))
    return Disagreement(float(differ) / size, rate, rate_cuba_lif, predictions)


def _predicted(logits: np.ndarray) -> np.ndarray:
    """(T, B, classes) -> (B,): the class of the mean softmax."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)).mean(0).argmax(-1)
