r"""A network in the Neuromorphic Intermediate Representation (NIR).

NIR describes neurons in continuous time, in seconds; a time step of ours is `dt` seconds. There are
two profiles.

**exact**, `graph`. A layer is  weights -> CubaLI -> Threshold(theta), with the refractory feedback
Threshold -> LI -> Scale(-1) -> Threshold  and, in a recurrent layer, weights from the Threshold
back to the CubaLI; NIR adds up what several edges bring to a node. Pooling is the OR of the spikes
under a window, which SumPool2d -> Threshold(1/2) says exactly: more than half a spike is one.

    CubaLI  tau_syn dI/dt = -I + w_in S,  tau_mem dv/dt = -v + r I

answers a spike S = delta(t) with I(t) = w_in/tau_syn exp(-t/tau_syn), and this filtered by the
membrane is

    v(t) = r w_in / (tau_mem - tau_syn) (exp(-t/tau_mem) - exp(-t/tau_syn)),

so r = tau_mem - tau_syn and w_in = kappa make it kappa alpha(t) of eq. (ind-membrane). LI, tau
dv/dt = -v + r S, answers with r/tau exp(-t/tau): r = tau = tau_ref makes it beta(t). Sampled every
dt, these responses are the recursion of `bisnn.neuron`. Its decays a = exp(-dt/tau) come back from
the graph's float64 time constants as the very float32 numbers they were, and `nir_simulation` does
the float32 operations of `kernels.reference` in their order: the same spikes, to the bit.

**cubalif**, `cuba_lif`, for importers that know no other neuron: CubaLIF resets its potential to 0
at a spike, and there is no refractory feedback, so spikes differ (`nir_simulation.disagreement`
measures how many). Importers step this neuron by forward Euler with the input of the same step,

    I = (1 - dt/tau_syn) I + w_in dt/tau_syn S,   v = (1 - dt/tau_mem) v + r dt/tau_mem I.

Here tau = dt/(1 - a), w_in = tau_syn/dt and r = tau_mem/dt (snnTorch and SpikingJelly take no
other), which gives 1 - dt/tau = a and

    v_t = sum_d (a_m^(d+1) - a_s^(d+1)) / (a_m - a_s) S_(t-d)
        = sum_d alpha_(d+1) S_(t-d) / (a_m - a_s):

below threshold it is the paper's potential, one time step earlier per layer, with threshold theta /
(kappa (a_m - a_s)).
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bisnn.files import write_atomic
from bisnn.packed.network import PackedLayer, PackedNetwork
from bisnn.spec import INPUT, Shape

__all__ = ["cuba_lif", "graph", "write"]

try:
    import h5py
    import nir
except ImportError:  # an extra: the public functions say so
    nir = h5py = None

DT = 1e-4  # seconds per time step: the only one that snnTorch takes, and SpikingJelly's default
PROFILES = ("exact", "cubalif")


def graph(network: PackedNetwork, member: int | None = None, dt: float = DT) -> Any:
    """The network as a `nir.NIRGraph` that means the same: the exact profile, see above.

    Args:
        network: without a readout the last spikes are the output.
        member: which one, from 0; may be left out where there is only one.
        dt: seconds of a time step.
    """
    return _assemble(network, member, dt, "exact")


def cuba_lif(network: PackedNetwork, member: int | None = None, dt: float = DT) -> Any:
    """The network on `nir.CubaLIF` neurons, the lossy profile.

    Args:
        network: without pooling.
        member, dt: as for `graph`.
    """
    return _assemble(network, member, dt, "cubalif")


def write(
    network: PackedNetwork,
    path: str | Path,
    profile: str = "exact",
    member: int | None = None,
    dt: float = DT,
) -> int:
    """Write the graph of a profile as one file, whole or not at all; returns its bytes.

    `nir.read(path)` reads it; nir 1.0.8 takes kernels for square when it checks shapes, so that a
    network with others needs `nir.read(path, type_check=False)`.

    Args:
        network, member, dt: as for `graph`.
        path: of the file, which ends in .nir.
        profile: "exact" or "cubalif".
    """
    if profile not in PROFILES:
        raise ValueError(
            f'profile: must be "exact" or "cubalif"; got {profile!r}; take "exact" unless the '
            "importer has no CubaLI"
        )
    check_target(Path(path))
    made, content = _assemble(network, member, dt, profile), io.BytesIO()
    nir.write(content, made)
    write_atomic(Path(path), content.getvalue())
    return len(content.getvalue())


@dataclass
class _Graph:
    """Nodes and edges as they come."""

    nodes: dict[str, Any] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, node: Any, after: str) -> str:
        self.nodes[name] = node
        self.edges.append((after, name))
        return name

    def flat(self, name: str, shape: Shape, after: str) -> str:
        """What comes after a node, as a vector."""
        if len(shape) == 1:
            return after
        return self.add(name, nir.Flatten({"input": np.array(shape)}, 0, -1), after)


def _assemble(network: PackedNetwork, member: int | None, dt: float, profile: str) -> Any:
    k = _checked(network, member, dt, profile)
    graph, last = _Graph({"input": nir.Input(np.array(network.input_shape))}), ["input"]
    for i, layer in enumerate(network.layers):
        W = layer.weights[k].astype(np.float32)  # (neurons, inputs)
        W = W if layer.mask is None else W * layer.mask
        if profile == "cubalif":
            # One threshold for all, or importers refuse: what differs goes into the weights.
            W *= (layer.scale / layer.scale.max())[:, None]
        sources = [last[0] if n == INPUT else last[n + 1] for n in layer.inputs]
        last.append(_add_layer(graph, i, layer, W, sources, dt, profile))
    end, shape = last[-1], network.layers[-1].output_shape
    if network.readout is not None:
        V = np.where(network.readout.V, np.float32(1), np.float32(-1))
        scale = np.float32(network.readout.scale)
        end, shape = graph.flat("flatten", shape, end), (len(V),)
        if profile == "exact":
            end = graph.add("readout", nir.Linear(V), end)
            end = graph.add("scale", nir.Scale(np.full(shape, scale)), end)
        else:  # importers know no Scale
            end = graph.add("readout", nir.Linear(V * scale), end)
    graph.add("output", nir.Output(np.array(shape)), end)
    about = {"made_by": "bisnn", "profile": profile, "dt": dt}
    return nir.NIRGraph(graph.nodes, graph.edges, about)


def _add_layer(
    graph: _Graph,
    i: int,
    layer: PackedLayer,
    W: np.ndarray,
    sources: list[str],
    dt: float,
    profile: str,
) -> str:
    """The nodes of a layer on those that it reads, each with weights of its own, whose currents add
    up; returns where its spikes come out.
    """
    neurons, links, inlet, out = (_srm if profile == "exact" else _lif)(i, layer, dt)
    graph.nodes |= neurons
    graph.edges += links
    for j, (source, part, shape) in enumerate(
        zip(sources, layer.columns(), layer.parts, strict=True)
    ):
        tag = f"{i}" if j == 0 else f"{i}_{j}"
        if layer.kind == "conv":
            weights = graph.add(f"weights_{tag}", _conv(layer, W, part, shape), source)
        else:
            flat = graph.flat(f"flatten_{tag}", shape, source)
            weights = graph.add(f"weights_{tag}", nir.Linear(W[:, part]), flat)
        graph.edges.append((weights, inlet))
    if layer.kind == "recurrent":
        own = W[:, layer.fan_in - layer.neurons :]
        graph.edges.append((graph.add(f"recurrent_{i}", nir.Linear(own), out), inlet))
    if layer.pool > 1:
        return _add_pooling(graph, i, layer, out)
    if layer.outputs is None:
        return out
    chosen = np.eye(layer.neurons, dtype=np.float32)[list(layer.outputs)]
    return graph.add(f"outputs_{i}", nir.Linear(chosen), out)


def _add_pooling(graph: _Graph, i: int, layer: PackedLayer, spikes: str) -> str:
    """The OR of the spikes under each window: their sum, above a half."""
    size, none = np.array([layer.pool, layer.pool]), np.array([0, 0])
    node = nir.SumPool2d(size, size, none)
    node.input_type = {"input": np.array(layer.current_shape)}
    node.output_type = {"output": np.array(layer.output_shape)}
    total = graph.add(f"pool_{i}", node, spikes)
    half = nir.Threshold(np.full(layer.output_shape, np.float32(0.5)))
    return graph.add(f"pooled_{i}", half, total)


def _checked(network: PackedNetwork, member: int | None, dt: float, profile: str) -> int:
    """The member, or a ValueError that says what stands in the way of a graph."""
    require_nir()
    if not (isinstance(dt, (int, float)) and math.isfinite(dt) and dt > 0):
        raise ValueError(
            f"dt: must be a number of seconds above 0; got {dt!r}; leave it out for {DT}"
        )
    for i, layer in enumerate(network.layers):
        if layer.neuron.kind != "srm":
            raise ValueError(
                "network: must have SRM neurons, because NIR has none of integers; got "
                f"{type(layer.neuron).__name__} in layer {i}; export it with --neuron srm, or "
                "packed or as C"
            )
        if layer.pool > 1 and profile == "cubalif":
            raise ValueError(
                "network: must have no pooling for the profile cubalif, because importers that "
                "know no other neuron have no OR of spikes; got "
                f'pool={layer.pool} in layer {i}; use the profile "exact", or train with pool=1 '
                "and a stride in its place"
            )
        if layer.constants[0] <= layer.constants[1]:
            raise ValueError(
                "network: must have a_m > a_s, or alpha vanishes or turns negative; got "
                f"a_m={layer.constants[0]}, a_s={layer.constants[1]} in layer {i}; train it with "
                "tau_syn below tau_mem"
            )
    if member is None and network.count == 1:
        return 0
    whole = isinstance(member, int) and not isinstance(member, bool)
    if member is None or not whole or not 0 <= member < network.count:
        raise ValueError(
            f"member: must be one of the network's {network.count}, from 0, because a NIR graph "
            f"holds one; got {member!r}; choose one, or export the MAP weights"
        )
    return member


def require_nir() -> None:
    if nir is None:
        raise ValueError(
            "nir: must be installed for this; got none; run `pip install 'bisnn[nir]'`"
        )


def _conv(layer: PackedLayer, W: np.ndarray, part: slice, shape: Shape) -> Any:
    """The convolution of one input, whose channels are this part of all."""
    kernel = W.reshape(layer.neurons, -1, *layer.kernel)[:, part]
    bias = np.zeros(layer.neurons, np.float32)
    node = nir.Conv2d(shape[1:], kernel, layer.stride, layer.padding, (1, 1), 1, bias)
    # Nir infers it as if all kernels were square.
    node.output_type = {"output": np.array(layer.current_shape)}
    return node


def _tau(a: np.float32, dt: float) -> float:
    """Seconds: the time constant from which `nir_simulation.decay` gives back this float32 decay a.

    No tau has a = 0, which is what float32 makes of all below 2^-150 = exp(-104): dt/128 stands for
    it.
    """
    return -dt / math.log(a) if a > 0 else dt / 128


def _srm(
    i: int, layer: PackedLayer, dt: float
) -> tuple[dict[str, Any], list[tuple[str, str]], str, str]:
    """A layer's neurons in the exact profile: nodes, edges, where currents enter, spikes leave."""
    shape, (a_m, a_s, a_r, theta) = layer.current_shape, layer.constants
    tau_mem, tau_syn, tau_ref = (np.full(shape, _tau(a, dt)) for a in (a_m, a_s, a_r))
    kappa = np.broadcast_to(layer.scale.reshape(-1, *[1] * (len(shape) - 1)), shape).copy()
    names = ("synapse", "spikes", "refractory", "feedback")
    synapse, spikes, refractory, feedback = (f"{name}_{i}" for name in names)
    zero = np.zeros(shape)
    about = {"a_m": a_m, "a_s": a_s, "kappa": layer.scale}
    nodes = {
        synapse: nir.CubaLI(
            tau_syn,
            tau_mem,
            r=tau_mem - tau_syn,
            v_leak=zero,
            w_in=kappa.astype(np.float64),
            metadata=about,
        ),
        spikes: nir.Threshold(np.full(shape, theta), metadata={"theta": theta}),
        refractory: nir.LI(tau_ref, r=tau_ref, v_leak=zero, metadata={"a_r": a_r}),
        feedback: nir.Scale(np.full(shape, np.float32(-1))),
    }
    around = [(spikes, refractory), (refractory, feedback), (feedback, spikes)]
    return nodes, [(synapse, spikes), *around], synapse, spikes


def _lif(
    i: int, layer: PackedLayer, dt: float
) -> tuple[dict[str, Any], list[tuple[str, str]], str, str]:
    """As `_srm`, in the lossy profile: one node."""
    a_m, a_s, _, theta = layer.constants.astype(np.float64)
    tau_syn, tau_mem = (np.full(layer.current_shape, dt / (1 - a)) for a in (a_s, a_m))
    zero, threshold = (
        np.zeros_like(tau_mem),
        np.full_like(tau_mem, theta / (float(layer.scale.max()) * (a_m - a_s))),
    )
    about = {"theta": layer.constants[3]}
    rates = (tau_mem / dt, zero, threshold, zero, tau_syn / dt)
    node = nir.CubaLIF(tau_syn, tau_mem, *rates, metadata=about)
    return {f"spikes_{i}": node}, [], f"spikes_{i}", f"spikes_{i}"


def check_target(path: Path) -> None:
    """A graph may replace a graph and no other file."""
    if path.suffix != ".nir":
        raise ValueError(
            f"path: must end in .nir, as NIR files do; got {str(path)!r}; use "
            f"{path.with_suffix('.nir')}"
        )
    if h5py is not None and path.is_file() and not _is_graph(path):
        raise ValueError(
            f"path: {path} is there and is no graph, and would be lost; give another name"
        )


def _is_graph(path: Path) -> bool:
    """Whether a file is HDF5 with what nir puts into one."""
    try:
        with h5py.File(path) as file:
            return {"node", "version"} <= set(file)
    except OSError:
        return False
