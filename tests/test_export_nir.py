"""NIR graphs give the network's bits, their neurons are the paper's, other libraries agree."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

import networks
from bisnn import Conv2d, Linear, Network
from bisnn.packed import PackedNetwork
from bisnn.packing import describe
from bisnn.realisation import map_weight
from bisnn.shipping import nir as nir_graph
from bisnn.shipping import nir_simulation
from bisnn.weights import sign
from conftest import seeded, spikes

nir = pytest.importorskip("nir")
POOLED = ("pooled", "mixed", "skip mixed", "ternary", "levels", "levels conv")
KINDS = (*(kind for kind in networks.EVERY if "fixed" not in kind), "conv and dense")
SQUARE = {"conv stride": False}  # kernels; nir's own check of shapes takes all for square


def build(kind: str, **options) -> Network:
    if kind == "conv and dense":
        options = {
            "neuron": networks.NEURON,
            "readout": 3,
            "seed": 0,
            "input_shape": (2, 6, 6),
            **options,
        }
        return Network(Conv2d(2, 3, 3), Linear(48, 5), **options)
    return networks.build(kind, dtype=torch.float32, **options)


def signs(net: Network) -> list[torch.Tensor]:
    return [map_weight(layer.weight) for layer in net.layers]


def read_back(network: PackedNetwork, path: Path, check: bool = True, **options):
    nir_graph.write(network, path, **options)
    return nir.read(path, type_check=check)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dt", [1e-4, 1.0])
def test_the_file_gives_the_bits_of_the_network(kind, dt, tmp_path):
    net = build(kind)
    x = spikes(40, 4, *net.input_shape, seed=3)
    out = net(x, weights=signs(net))
    network = describe(net)
    got, logits = nir_simulation.simulate(
        read_back(network, tmp_path / "net.nir", SQUARE.get(kind, True), dt=dt), x.numpy()
    )
    assert any(name.startswith("pooled_") for name in got) == (kind in POOLED)
    for i, layer in enumerate(net.layers):
        s = (out.potentials[i] > layer.constants[3]).numpy()
        assert 0.01 < s.mean() < 0.9, "a test needs spikes"
        assert np.array_equal(got.pop(f"spikes_{i}"), s)
        if f"pooled_{i}" in got:
            assert np.array_equal(got.pop(f"pooled_{i}"), out.spikes[i].detach().numpy())
    assert not got
    assert logits.dtype == np.float32
    assert np.array_equal(logits, out.logits.detach().numpy())


@pytest.mark.parametrize("kind", ["deep", "conv", "masked", "pooled"])
def test_without_a_readout_spikes_come_out(kind, tmp_path):
    net = build(kind, readout=None)
    x = spikes(40, 2, *net.input_shape)
    _, output = nir_simulation.simulate(read_back(describe(net), tmp_path / "net.nir"), x.numpy())
    assert np.array_equal(output, net(x, weights=signs(net)).spikes[-1].detach().numpy())


def test_each_member_can_be_chosen(tmp_path):
    net = build("recurrent")
    members = [
        [sign(torch.randn(w.shape, generator=seeded(k))) for w in signs(net)] for k in range(2)
    ]
    network, x = describe(net, members), spikes(40, 3, 6)
    for k, member in enumerate(members):
        _, logits = nir_simulation.simulate(
            read_back(network, tmp_path / "net.nir", member=k), x.numpy()
        )
        want = net(x, weights=member).readouts[-1]
        assert np.array_equal(logits, want.detach().numpy())


def test_the_file_says_what_it_is(tmp_path):
    network = describe(build("masked"))
    graph = read_back(network, tmp_path / "net.nir", dt=0.002)
    layer, about = network.layers[0], graph.nodes["synapse_0"].metadata
    assert (graph.metadata["made_by"], graph.metadata["profile"], graph.metadata["dt"]) == (
        "bisnn",
        "exact",
        0.002,
    )
    assert [about["a_m"], about["a_s"], graph.nodes["refractory_0"].metadata["a_r"]] == list(
        layer.constants[:3]
    )
    assert np.array_equal(about["kappa"], layer.scale)
    assert graph.nodes["spikes_0"].metadata["theta"] == layer.constants[3]
    W = np.hstack([graph.nodes[name].weight for name in ("weights_0", "recurrent_0")])
    assert np.array_equal(W, np.where(layer.mask, layer.weights[0], 0))


# Continuous time


def test_the_continuous_neuron_answers_with_the_kernels_of_the_paper():
    network = describe(build("masked"))
    graph = nir_graph.graph(network, dt=0.001)
    synapse, refractory = graph.nodes["synapse_0"], graph.nodes["refractory_0"]
    tau_mem, tau_syn, tau_ref = 0.005, 0.003, 0.002  # seconds: those of networks.NEURON
    t = np.linspace(0, 0.04, 200)
    for i in (0, 5):
        tm, ts, r, w_in = (
            getattr(synapse, name)[i] for name in ("tau_mem", "tau_syn", "r", "w_in")
        )

        def cuba_li(_, state, tm=tm, ts=ts, r=r):
            I, v = state
            return -I / ts, (-v + r * I) / tm

        start = [w_in / ts, 0.0]  # S = delta(t) at the start lifts I by w_in / tau_syn
        v = solve_ivp(cuba_li, (0, t[-1]), start, t_eval=t, rtol=1e-10, atol=1e-12).y[1]
        alpha = np.exp(-t / tau_mem) - np.exp(-t / tau_syn)
        np.testing.assert_allclose(v, network.layers[0].scale[i] * alpha, atol=1e-7)
    tau, r = refractory.tau[0], refractory.r[0]
    v = solve_ivp(lambda _, v: -v / tau, (0, t[-1]), [r / tau], t_eval=t, rtol=1e-10, atol=1e-12).y[
        0
    ]
    np.testing.assert_allclose(v, np.exp(-t / tau_ref), atol=1e-7)


@given(st.floats(0, 1, exclude_max=True, width=32), st.floats(1e-9, 1e3))
@example(0.0, 1e-4)
@example(float(np.nextafter(np.float32(1), np.float32(0))), 1e-4)
@example(float(np.nextafter(np.float32(0), np.float32(1))), 1e-4)
def test_any_decay_comes_back_from_its_time_constant(a, dt):
    tau = nir_graph._tau(np.float32(a), dt)
    assert tau > 0
    assert nir_simulation.decay(np.array([tau]), dt)[0] == np.float32(a)


@given(st.floats(0.1, 1e3), st.floats(1e-6, 1.0))
def test_time_constants_in_seconds_are_those_in_time_steps(tau, dt):
    a = np.float32(math.exp(-1 / tau))  # leaves tau few digits where it is far from 1
    assert nir_graph._tau(a, dt) == pytest.approx(tau * dt, rel=1e-3)


def test_a_neuron_without_memory(tmp_path):
    """a_s = a_r = 0 in float32, which no time constant has: same bits, and no division by zero."""
    net = build("recurrent", neuron=replace(networks.NEURON, tau_syn=0.005, tau_ref=0.005))
    assert net.layers[0].constants[1:3].tolist() == [0.0, 0.0]
    x = spikes(40, 4, 6)
    graph = read_back(describe(net), tmp_path / "net.nir")
    assert graph.nodes["refractory_0"].tau.min() > 0
    _, logits = nir_simulation.simulate(graph, x.numpy())
    assert np.array_equal(logits, net(x, weights=signs(net)).readouts[-1].detach().numpy())


# The lossy profile


def by_hand(network: PackedNetwork, x: np.ndarray) -> list[np.ndarray]:
    """Spikes (T, B, N) of CubaLIF neurons for a feedforward network's, one by one, in float64."""
    found = []
    for layer in network.layers:
        (a_m, a_s, _, theta), kappa = layer.constants.astype(np.float64), float(layer.scale[0])
        z = np.zeros((*x.shape[:2], layer.neurons))
        for b in range(x.shape[1]):
            for n in range(layer.neurons):
                I = v = 0.0
                for t in range(len(x)):
                    I = a_s * I + sum(
                        w for w, s in zip(layer.weights[0, n], x[t, b], strict=True) if s
                    )
                    v = a_m * v + I
                    if kappa * (a_m - a_s) * v > theta:
                        z[t, b, n], v = 1, 0.0
        found.append(z)
        x = z
    return found


@pytest.mark.parametrize("kind", ["dense", "deep"])
def test_disagreement_is_a_count(kind):
    net = build(kind)
    network, x = describe(net), spikes(30, 3, 6)
    measured = nir_simulation.disagreement(network, x.numpy())
    out, lossy = net(x, weights=signs(net)), by_hand(network, x.numpy())
    # CubaLIF leads by one time step per layer
    ours = [s.detach().numpy()[i + 1 :] for i, s in enumerate(out.spikes)]
    theirs = [s[: 30 - i - 1] for i, s in enumerate(lossy)]
    size = sum(s.size for s in ours)
    assert measured.spikes == sum((a != b).sum() for a, b in zip(ours, theirs, strict=True)) / size
    assert 0 < measured.spikes < 1
    assert measured.rate == sum(s.sum() for s in ours) / size
    assert measured.rate_cuba_lif == sum(s.sum() for s in theirs) / size
    readout = network.readout
    logits = lossy[-1] @ np.where(readout.V, readout.scale, -readout.scale).T
    classes = [
        torch.as_tensor(y).softmax(-1).mean(0).argmax(-1)
        for y in (out.readouts[-1].detach(), logits)
    ]
    assert measured.predictions == (classes[0] != classes[1]).double().mean().item()


@pytest.mark.parametrize("kind", ["dense", "conv", "conv stride", "masked"])
def test_until_its_first_spike_a_cuba_lif_neuron_is_ours(kind, tmp_path):
    network = describe(build(kind))
    if kind == "masked":  # recurrent spikes of others differ once these have fired
        network = replace(
            network, layers=(replace(network.layers[0], mask=_feedforward(network.layers[0].mask)),)
        )
    x = spikes(40, 4, *network.input_shape).numpy()
    graph = read_back(network, tmp_path / "net.nir", SQUARE.get(kind, True), profile="cubalif")
    lossy, exact = (
        nir_simulation.simulate(g, x)[0]["spikes_0"] for g in (graph, nir_graph.graph(network))
    )
    first = [np.where(s.any(0), s.argmax(0), 40) for s in (lossy[:-1], exact[1:])]
    assert np.array_equal(*first)
    assert (first[0] < 40).mean() > 0.3


def _feedforward(mask: np.ndarray) -> np.ndarray:
    mask = mask.copy()
    mask[:, mask.shape[1] - mask.shape[0] :] = False
    return mask


def test_no_classes_no_predictions_to_differ():
    network, x = describe(build("dense")), spikes(20, 2, 6).numpy()
    for other in (replace(network, task="regression"), describe(build("dense", readout=None))):
        assert nir_simulation.disagreement(other, x).predictions is None
    with pytest.raises(
        ValueError, match="x: must have more time steps than layers, 1, and burn-in, 20; got 20"
    ):
        nir_simulation.disagreement(replace(network, burn_in=20), x)


# Other libraries run the lossy profile. They may live in another environment: a script there runs
# the files and saves its results.

RUN = """
import importlib.util, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import nir, numpy as np, torch

def loaded(library, graph):
    if library == "norse":
        import norse.torch
        return norse.torch.from_nir(graph, dt=1e-4)
    if library == "snntorch":
        from snntorch.import_nir import import_from_nir
        return import_from_nir(graph)
    from spikingjelly.activation_based.nir_exchange import import_from_nir
    return import_from_nir(graph, dt=1e-4)

folder, *libraries = sys.argv[1:]
for library in libraries:
    if importlib.util.find_spec(library) is None or importlib.util.find_spec("nirtorch") is None:
        continue
    for path in Path(folder).glob("*.nir"):
        found = []
        recordings = torch.from_numpy(np.load(path.with_suffix(".npy")))
        for one in recordings.unbind(1):  # some take Flatten to be of the batch, too
            net = loaded(library, nir.read(path))  # anew: snnTorch's neurons keep their state
            state, steps = None, []
            for x in one:
                x = x[None] if library == "spikingjelly" else x
                y = net(x) if state is None else net(x, state)
                y, state = y if isinstance(y, tuple) else (y, None)
                steps.append(y.detach().numpy().reshape(-1))
            found.append(np.stack(steps))
        np.save(path.with_suffix("." + library + ".npy"), np.stack(found, 1))
"""
LIBRARIES = ("norse", "snntorch", "spikingjelly")
# Kinds, and their readouts
LOSSY = {"deep": None, "conv and dense": 3, "recurrent": None, "masked": 3}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """A folder of lossy files, of inputs, and of what the installed libraries made of them."""
    folder = tmp_path_factory.mktemp("lossy")
    for kind, readout in LOSSY.items():
        net = build(kind, readout=readout)
        nir_graph.write(describe(net), folder / f"{kind}.nir", "cubalif")
        np.save(folder / f"{kind}.npy", spikes(40, 2, *net.input_shape, seed=3).numpy())
    other = Path(__file__).parent.parent / ".venv-peers" / "bin" / "python"
    here = [library for library in LIBRARIES if importlib.util.find_spec(library) is not None]
    there = [library for library in LIBRARIES if library not in here] if other.exists() else []
    for python, libraries in ((sys.executable, here), (other, there)):
        if libraries:
            done = subprocess.run(
                [python, "-c", RUN, folder, *libraries], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("kind", LOSSY)
@pytest.mark.parametrize("library", LIBRARIES)
def test_another_library_runs_the_file_as_we_do(library, kind, elsewhere):
    if library == "snntorch" and kind in ("recurrent", "masked"):
        pytest.skip(
            "snnTorch 1.0 leads the input of a recurrent layer through its recurrent weights"
        )
    path = elsewhere / f"{kind}.{library}.npy"
    if not path.exists():
        pytest.skip(
            f"{library} with nirtorch is installed neither here nor in .venv-peers; see "
            "benchmarks/peers.txt"
        )
    got, x = np.load(path), np.load(elsewhere / f"{kind}.npy")
    _, want = nir_simulation.simulate(nir.read(elsewhere / f"{kind}.nir"), x)
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    assert (got != 0).mean() > 0.1, "silent"
    assert np.isclose(got, want, atol=1e-5).mean() > 0.99, "the same steps but for their rounding"


# What cannot be


@pytest.mark.parametrize("kind", POOLED)
def test_pooling_is_refused_where_importers_have_no_or(kind, tmp_path):
    with pytest.raises(
        ValueError, match=r'have no OR of spikes; got pool=2 in layer 0; use the profile "exact"'
    ):
        nir_graph.write(describe(build(kind)), tmp_path / "net.nir", "cubalif")
    assert not list(tmp_path.iterdir())


def test_a_pool_leaves_out_what_no_window_covers(tmp_path):
    """7 x 5 neurons under windows of 3 x 3: 2 x 1, and the rest is seen by nobody."""
    options = {"neuron": networks.NEURON, "readout": 3, "seed": 0, "input_shape": (2, 7, 5)}
    net = Network(Conv2d(2, 3, 3, padding=1, pool=3), Linear(6, 5), **options)
    x = spikes(40, 4, 2, 7, 5, seed=3)
    out = net(x, weights=signs(net))
    graph = read_back(describe(net), tmp_path / "net.nir")
    pool = graph.nodes["pool_0"]
    assert isinstance(pool, nir.SumPool2d)
    assert [pool.kernel_size.tolist(), pool.stride.tolist(), pool.padding.tolist()] == [
        [3, 3],
        [3, 3],
        [0, 0],
    ]
    assert graph.nodes["pooled_0"].threshold.shape == (3, 2, 1)
    got, logits = nir_simulation.simulate(graph, x.numpy())
    assert np.array_equal(got["pooled_0"], out.spikes[0].detach().numpy())
    assert 0.1 < got["pooled_0"].mean() < 0.95
    assert np.array_equal(logits, out.logits.detach().numpy())


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(4, 9), st.integers(4, 9)
)
def test_sums_over_windows_are_those_of_pytorch(kernel, stride, padding, height, width):
    x = np.random.default_rng(height).integers(0, 2, (2, 3, height, width)).astype(np.float32)
    padding = min(padding, kernel // 2)
    node = nir.SumPool2d(*(np.array([n, n]) for n in (kernel, stride, padding)))
    mean = torch.nn.functional.avg_pool2d(torch.from_numpy(x), kernel, stride, padding)
    want = mean.double().numpy() * kernel**2
    np.testing.assert_allclose(nir_simulation._summed(x, node), want, atol=1e-5)


def test_bad_requests_are_told_apart_and_leave_the_old_file(tmp_path, monkeypatch):
    net = build("dense")
    w = signs(net)
    one, two, path = describe(net), describe(net, [w, w]), tmp_path / "net.nir"
    nir_graph.write(one, path)
    before = path.read_bytes()
    layer = one.layers[0]
    flat = replace(one, layers=(replace(layer, constants=layer.constants[[1, 1, 2, 3]]),))
    for network, options, message in (
        (two, {}, "member: must be one of the network's 2, from 0, .* got None; choose one"),
        (two, {"member": 2}, "member: .* got 2"),
        (one, {"member": True}, "member: .* got True"),
        (one, {"dt": 0.0}, "dt: must be a number of seconds above 0; got 0.0"),
        (one, {"profile": "lossy"}, 'profile: must be "exact" or "cubalif"; got \'lossy\''),
        (flat, {}, "a_m > a_s"),
    ):
        with pytest.raises(ValueError, match=message):
            nir_graph.write(network, path, **options)
    with pytest.raises(ValueError, match=r"path: must end in \.nir"):
        nir_graph.write(one, tmp_path / "net.h5")
    monkeypatch.setattr(nir_graph, "nir", None)
    with pytest.raises(ValueError, match=r"nir: must be installed.*pip install 'bisnn\[nir\]'"):
        nir_graph.write(one, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_graph_replaces_a_graph_and_nothing_else(tmp_path):
    network, path = describe(build("dense")), tmp_path / "net.nir"
    nir_graph.write(network, path)
    nir_graph.write(network, path)
    path.write_text("precious")
    with pytest.raises(ValueError, match=r"net\.nir is there and is no graph, and would be lost"):
        nir_graph.write(network, path)
    assert path.read_text() == "precious"
    path.unlink()
    with h5py.File(path, "w") as file:
        file["events"] = np.arange(3)
    with pytest.raises(ValueError, match="is there and is no graph"):
        nir_graph.check_target(path)


def test_graphs_that_cannot_be_simulated():
    graph, x = nir_graph.graph(describe(build("dense"))), spikes(5, 2, 6).numpy()
    with pytest.raises(ValueError, match=r"x: must be \(T, B, ...\)"):
        nir_simulation.simulate(graph, x[..., :3])
    graph.edges.append(("scale", "readout"))
    with pytest.raises(ValueError, match="graph: must have a node with memory in every cycle"):
        nir_simulation.simulate(graph, x)
    graph.edges.pop()
    graph.nodes["synapse_0"].v_leak = np.ones(7)
    with pytest.raises(ValueError, match=r"v_leak = 0; got 1\.0 in a CubaLI"):
        nir_simulation.simulate(graph, x)
    graph.nodes["synapse_0"] = nir.Delay(np.ones(7))
    with pytest.raises(ValueError, match="does not know; got Delay"):
        nir_simulation.simulate(graph, x)
