"""The packed engine against its network, bit for bit; without PyTorch, and from a run folder."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bisnn
from bisnn import SRM, Conv2d, Linear, Network, Recurrent, packing, weights
from bisnn.alphabet import BINARY, Levels
from bisnn.bits import counting
from bisnn.packed import BadFile, Engine, file
from bisnn.packed import load as load_packed
from bisnn.packed.network import draw, most_probable, words
from bisnn.realisation import map_weight
from bisnn.runs import training
from bisnn.runs.config import load as load_config
from conftest import spikes
from networks import EVERY, NEURON, build, mask
from runs import RECORDED, made_up_nmnist, small
from test_config import SHIPPED

LIVELY = SRM(tau_mem=5.0, tau_syn=3.0, tau_ref=2.0, threshold=0.02)


def drawn(net: Network, K: int, seed: int = 0) -> list[list[torch.Tensor]]:
    return weights.draw_members([layer.weight for layer in net.layers], K, seed)


def assert_same_bits(net: Network, x: torch.Tensor, K: int = 1, threads: int = 1) -> Engine:
    """Spikes of every layer, all logits, and the state afterwards, for K members."""
    members = drawn(net, K)
    engine = Engine(packing.describe(net, members), threads)
    ours = engine.run(x.numpy(), engine.start(x.shape[1]), spikes=True)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(engine.run(x.numpy(), spikes=True).spikes, ours.spikes, strict=True)
    )
    for k, member in enumerate(members):
        with torch.no_grad():
            theirs = net(x, net.initial_state(x.shape[1]), weights=[w.float() for w in member])
        for a, b in zip(ours.spikes, theirs.spikes, strict=True):
            assert np.array_equal(a[k], b.numpy())
        last = theirs.readouts[-1]
        assert (ours.logits is None) == (last is None)
        assert last is None or np.array_equal(ours.logits[k], last.numpy())
        for (P, _, R), state, layer in zip(ours.state, theirs.state, net.layers, strict=True):
            unit = 2.0 ** getattr(layer.neuron, "fraction", 0)  # of integers
            for a, b in ((P, unit * state.traces[0]), (R, unit * state.traces[2])):
                by_pixel = b if len(layer.current_shape) == 1 else b.movedim(1, -1)
                assert np.array_equal(a[k], by_pixel.flatten(1).numpy())
    return engine


# The same bits


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_of_network(kind, K):
    net = build(kind, dtype=torch.float32)
    x = spikes(40, 5, *net.input_shape, density=0.4)
    engine = assert_same_bits(net, x, K)
    assert all(s.any() and not s.all() for s in engine.run(x.numpy(), spikes=True).spikes)


@given(
    n_in=st.integers(1, 140),
    n=st.integers(1, 70),
    K=st.integers(1, 3),
    B=st.integers(1, 19),
    density=st.sampled_from([0.0, 0.004, 0.02, 0.3, 1.0]),
    threads=st.integers(1, 3),
)
def test_dense_layers_of_any_size(n_in, n, K, B, density, threads):
    net = Network(Linear(n_in, n), Linear(n, 33), readout=3, neuron=LIVELY)
    x = spikes(21, B, n_in, seed=n, density=density)
    engine = assert_same_bits(net, x, K, threads)
    assert np.array_equal(
        Engine(engine.network, sparse=False).run(x.numpy()).logits, engine.run(x.numpy()).logits
    )


@pytest.mark.parametrize("of", [Levels(-1, 1), Levels(-1, 0, 1), Levels(-127, 3, 127)])
def test_few_active_inputs_are_added_and_many_counted(of):
    """Both ways are taken, and the currents are the same exact integers."""
    rng = np.random.default_rng(0)
    w = rng.choice(np.array(of.levels, np.int8), (300, 70))  # (n_in, n_out)
    planes = np.ascontiguousarray(words(of.bits(w.T)).swapaxes(1, 2))
    for density in (0.005, 0.3):
        x = rng.random((9, 300)) < density
        counted, added = np.empty((9, 70), np.float32), np.empty((9, 70), np.float32)
        counting.plane_counts(0, 9, words(x), planes, of.low, of.gap, counted)
        counting.events(0, 9, words(x), planes, of.low, of.gap, w, added)
        assert np.array_equal(counted, x.astype(int) @ w)
        assert np.array_equal(added, counted)
        counting.events(0, 9, words(x), planes, of.low, of.gap, 0 * w, added)  # which way?
        assert added.any() == (density == 0.3)


@given(
    C=st.sampled_from([1, 2, 31, 32, 33, 70]),
    out=st.sampled_from([1, 5, 32, 40]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    pool=st.integers(1, 2),
    density=st.sampled_from([0.01, 0.2]),
    K=st.integers(1, 2),
)
def test_convolutions_of_any_shape(C, out, kernel, stride, padding, pool, density, K):
    layer = Conv2d(C, out, kernel, stride=stride, padding=padding, pool=pool)
    shape = Network(layer, readout=None, input_shape=(C, 6, 5)).layers[0].output_shape
    layers = [
        Conv2d(C, out, kernel, stride=stride, padding=padding, pool=pool),
        Linear(math.prod(shape), 9),
    ]
    net = Network(*layers, readout=2, input_shape=(C, 6, 5), neuron=LIVELY)
    assert_same_bits(net, spikes(12, 2, C, 6, 5, seed=C, density=density), K)


@given(
    n_in=st.integers(1, 40),
    n=st.integers(1, 70),
    masked=st.booleans(),
    K=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_recurrent_layers_of_any_size(n_in, n, masked, K, seed):
    graph = mask(n, n_in, seed, density=0.3) if masked else None
    chosen = sorted({0, n // 2, n - 1}, reverse=True) if seed % 2 else None
    net = Network(Recurrent(n_in, n, mask=graph, outputs=chosen), readout=2, neuron=LIVELY)
    assert_same_bits(net, spikes(25, 3, n_in, seed=seed), K)


def test_recurrent_layers_on_images():
    net = Network(
        Conv2d(2, 35, 2),
        Recurrent(35 * 9, 20, mask=mask(20, 35 * 9, 1)),
        readout=2,
        input_shape=(2, 4, 4),
        neuron=LIVELY,
    )
    engine = assert_same_bits(net, spikes(30, 3, 2, 4, 4), K=2)
    assert engine.run(spikes(30, 3, 2, 4, 4).numpy(), spikes=True).spikes[1].any()


@pytest.mark.parametrize("kind", EVERY)
@given(cuts=st.lists(st.integers(1, 29), max_size=6, unique=True))
def test_a_stream_in_pieces_gives_the_same_bits(kind, cuts):
    net = build(kind, dtype=torch.float32)
    engine, x = (
        Engine(packing.describe(net, drawn(net, 2))),
        spikes(30, 3, *net.input_shape).numpy(),
    )
    whole = engine.run(x, engine.start(3), spikes=True)
    assert engine.run(x).state is None
    state, parts = engine.start(3), []
    for lo, hi in zip([0, *sorted(cuts)], [*sorted(cuts), 30], strict=True):
        before = [z.copy() for layer in state for z in layer]
        parts.append(engine.run(x[lo:hi], state, spikes=True))
        assert all(
            np.array_equal(a, b)
            for a, b in zip(before, (z for layer in state for z in layer), strict=True)
        )
        state = parts[-1].state
    assert np.array_equal(np.concatenate([part.logits for part in parts], axis=1), whole.logits)
    for i in range(len(net.layers)):
        assert np.array_equal(
            np.concatenate([part.spikes[i] for part in parts], axis=1), whole.spikes[i]
        )
    assert all(
        np.array_equal(a, b)
        for x, y in zip(state, whole.state, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_a_long_silence_ends_at_zero():
    """Traces are flushed as everywhere else, never denormal."""
    net = build("dense", dtype=torch.float32)
    x = spikes(5, 2, 6)
    x = torch.cat([x, torch.zeros(600, 2, 6)])
    engine = assert_same_bits(net, x)
    assert not any(z.any() for z in engine.run(x.numpy(), engine.start(2)).state[0])


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32, np.float64])
def test_inputs_of_any_type(dtype):
    net = build("pooled", dtype=torch.float32)
    engine, x = Engine(packing.describe(net)), spikes(10, 2, 2, 5, 6).numpy()
    assert np.array_equal(engine.run(x.astype(dtype)).logits, engine.run(x).logits)
    assert np.array_equal(
        engine.run(np.asfortranarray(x.astype(dtype))).logits, engine.run(x).logits
    )


# Trained networks, from the run folder to a prediction


def _short_training(name: str, folder: Path) -> Path:
    """A run of a shipped config, made small; of recordings, on made-up ones."""
    config = load_config(name)
    few = {"train.epochs": 2, "train.burn_in": 5, "network.layers": [40, 33]}
    if not config.recorded:
        return training.train(
            config.updated(**few, **{"encode.steps": 40}), folder / "run", show=False
        )
    data = {**RECORDED["data"], "root": str(made_up_nmnist(folder / "N"))}
    few |= {
        "train.burn_in": 1,
        "predict.burn_in": 2,
        "network.layers": [12],
        "neuron.threshold": 0.03,
    }
    conv = [{"channels": 3, "kernel": 3, "stride": 2, "pool": 2}, {"channels": 5, "kernel": 3}][
        : len(config.network.conv)
    ]
    return training.train(
        config.updated(data=data, **few, **{"network.conv": conv}), folder / "run", show=False
    )


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_trained_config(name, tmp_path, monkeypatch):
    """A short training of each shipped config exports the model's own spikes and predictions."""
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    run = _short_training(name, tmp_path)
    model = bisnn.load(run)
    if model.net.alphabet is None:
        with pytest.raises(ValueError, match="alphabet"):
            bisnn.export(run)
        return
    predictors = ("map", "members") if model.members else ("map",)
    for predictor in predictors:
        done = bisnn.export(run, out=tmp_path / f"{predictor}.safetensors", predictor=predictor)
        engine = load_packed(done.path)
        if model.features:
            points = np.random.default_rng(0).random((7, model.features))
            ours = engine.predict_features(points)
            theirs = model.predict(points, None if predictor == "map" else "usual")
            within = 2e-3 if model.classes else 2e-2  # an encoded spike may differ
            np.testing.assert_allclose(ours.mean, theirs.mean.numpy(), atol=within)
        s = spikes(40, 6, *model.net.input_shape, density=0.3)
        members = [[map_weight(layer.weight) for layer in model.net.layers]]
        if predictor == "members":
            members = drawn(model.net, model.members, model.config.seed)
        result = engine.run(s.numpy(), spikes=True)
        assert len(result.logits) == len(members)
        for k, member in enumerate(members):
            output = model.net(s, weights=[w.float() for w in member])
            assert np.array_equal(result.logits[k], output.logits.detach().numpy())
            for a, b in zip(result.spikes, output.spikes, strict=True):
                assert np.array_equal(a[k], b.detach().numpy())
        assert engine.network.classes == model.classes
        assert engine.network.burn_in == model.config.burn_in
        assert engine.network.source == bisnn.files.file_digest(run / "model.safetensors")


def test_predictions_are_those_of_predict():
    net = build("deep", dtype=torch.float32)
    x = spikes(30, 8, 6)
    network = replace(packing.describe(net, drawn(net, 4, seed=3)), burn_in=4)
    ours = Engine(network).predict(x.numpy())
    theirs = bisnn.predict(net, x, 4, burn_in=4, seed=3)
    for name in ("mean", "members", "entropy", "mutual_information"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name).numpy(), rtol=2e-5, atol=2e-6
        )
    assert ours.mutual_information.max() > 1e-4
    values = bisnn.predict(net, x, 4, burn_in=4, seed=3, task="regression")
    ours = Engine(replace(network, task="regression")).predict(x.numpy())
    np.testing.assert_allclose(ours.mean, values.mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.std, values.std.numpy(), rtol=1e-4, atol=1e-6)
    assert ours.entropy is None


def test_many_points_are_predicted_in_parts(tmp_path, monkeypatch):
    run = training.train(small(), tmp_path / "run", show=False)
    engine = load_packed(bisnn.export(run).path)
    x = np.random.default_rng(0).random((11, 2))
    whole = engine.predict_features(x)
    monkeypatch.setattr("bisnn.packed.engine.POINTS", 4)
    parts = engine.predict_features(x)
    for name in ("mean", "members", "std", "entropy", "mutual_information"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-6, atol=1e-7)
    far = engine.predict_features(np.array([[1e308, -1e308]])).mean
    np.testing.assert_allclose(far, [[0.5, 0.5]])  # no input, no opinion


def test_file_sizes(tmp_path):
    """One bit per weight: at most 1/30 of float32 and 4 KiB, for the paper's networks."""
    mlp = Network(Linear(20, 256), Linear(256, 256), readout=2)
    conv = (
        Conv2d(2, 64, 7, padding=3, pool=2),
        Conv2d(64, 128, 7, padding=3),
        Conv2d(128, 128, 7, padding=3, pool=2),
    )
    for net in (mlp, Network(*conv, readout=10, input_shape=(2, 26, 26))):
        size = file.write(packing.describe(net), tmp_path / "net.safetensors")
        n = sum(p.numel() for p in net.parameters())
        assert size == (tmp_path / "net.safetensors").stat().st_size <= 4 * n / 30 + 4096
        assert (
            file.write(packing.describe(net, posterior=True), tmp_path / "net.safetensors")
            <= 1.05 * n + 4096
        )


# The posterior


def test_the_posterior_draws_what_it_says(tmp_path):
    net = Network(Linear(30, 40), readout=2)
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.linspace(-6, 6, 1200).reshape(40, 30))
    path = tmp_path / "p.safetensors"
    file.write(replace(packing.describe(net, posterior=True), members=5, seed=7), path)
    p = torch.sigmoid(2 * net.layers[0].weight.detach().double()).numpy()
    assert np.abs(file.read(path).layers[0].posterior[0] / 255 - p).max() <= 0.5 / 255 + 1e-12
    assert np.array_equal(
        file.read(path, "map").layers[0].weights[0] > 0, (net.layers[0].weight >= 0).numpy()
    )
    assert file.read(path).count == 5
    many = file.read(path, 4000).layers[0].weights
    deviation = np.sqrt(np.maximum(p * (1 - p), 1e-9) / 4000)
    assert (np.abs((many > 0).mean(0) - p) < 5 * deviation + 0.5 / 255 + 2**-16).all()
    assert np.array_equal(many[:5], file.read(path).layers[0].weights), (
        "more members leave the first as they are"
    )
    assert not np.array_equal(many[:5], file.read(path, seed=8).layers[0].weights)
    assert not np.array_equal(many[0], many[1])
    certain = file.read(path, 50).layers[0]
    assert (certain.weights[:, certain.posterior[0] == 255] == 1).all()
    assert (certain.weights[:, certain.posterior[0] == 0] == -1).all()


def test_the_named_generator_never_changes():
    """The draws are part of the file format: another result here is another format."""
    posterior = np.arange(256, dtype=np.uint8).repeat(3)
    drawn = draw(posterior[None], BINARY, 3, seed=2**31 + 1, layer=2)
    bits = np.packbits(drawn > 0, bitorder="little")
    assert file.hashlib.blake2b(bits.tobytes(), digest_size=8).hexdigest() == "3b5049599f17ccc4"


@given(w=st.floats(-30, 30, width=32))
def test_quantising_keeps_the_sign(w):
    q = int(packing.quantised(torch.tensor([w]))[0, 0])
    assert (q >= 128) == (w >= 0)
    assert abs(q / 255 - 1 / (1 + math.exp(-2 * w))) <= 0.5 / 255 + 1e-9


@given(
    st.lists(st.floats(-12, 12), min_size=2, max_size=6), st.lists(st.floats(-12, 12), min_size=2)
)
def test_quantised_levels_add_up_and_keep_the_most_probable(one, other):
    """K levels in 255 shares: each within a share of its probability, and the same MAP weight."""
    K = min(len(one), len(other))
    logits = torch.tensor([one[:K], other[:K]], dtype=torch.float64).T.contiguous()
    of = Levels(*range(K))
    weights.mark_latents(logits, weights.Categorical(of))
    shares = packing.quantised(logits)
    p = torch.softmax(logits, 0).flip(0).numpy()
    each = np.diff(shares.astype(int), axis=0, prepend=0, append=255)
    assert (each >= 0).all()
    assert np.abs(each / 255 - p).max() <= 2 / 255
    assert np.array_equal(most_probable(shares, of), map_weight(logits).numpy())


# Without PyTorch

ALONE = """
import sys

class Only:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        needed = {"numpy", "numba", "llvmlite", "safetensors", "bisnn"}
        if first not in needed | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Only())
import numpy as np, bisnn.packed
engine = bisnn.packed.load(sys.argv[1])
x = np.load(sys.argv[2])
np.save(sys.argv[3], engine.run(x).logits)
print(engine.predict_features(np.full((2, 2), 0.5)).mean.shape, "torch" in sys.modules)
"""


def test_it_runs_without_pytorch(tmp_path):
    run = training.train(small(), tmp_path / "run", show=False)
    path = bisnn.export(run, predictor="posterior").path
    x = spikes(30, 4, 20).numpy()
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", ALONE, path, tmp_path / "x.npy", tmp_path / "y.npy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 2) False"
    assert np.array_equal(np.load(tmp_path / "y.npy"), load_packed(path).run(x).logits)


# What has no meaning


def test_clear_messages(tmp_path):
    net = build("dense", dtype=torch.float32)
    path = tmp_path / "n.safetensors"
    file.write(packing.describe(net, drawn(net, 2)), path)
    with pytest.raises(BadFile, match="cannot be read: No such file"):
        load_packed(tmp_path / "none")
    with pytest.raises(
        ValueError, match=r"n.safetensors: members: the file has 2; got 3; export more"
    ):
        load_packed(path, 3)
    with pytest.raises(ValueError, match='members: "map" needs a file with a posterior'):
        load_packed(path, "map")
    for bad in (0, True, 1.5, "all"):
        with pytest.raises(ValueError, match="members: must be a positive whole number"):
            load_packed(path, bad)
    with pytest.raises(
        ValueError, match=r"seed: must be a whole number from 0 to 2.32 - 1; got -1"
    ):
        load_packed(path, seed=-1)
    with pytest.raises(ValueError, match="threads: must be a positive whole number; got 0"):
        load_packed(path, threads=0)
    engine = load_packed(path, 1)
    assert engine.network.count == 1
    for x in (np.zeros((3, 6)), np.zeros((3, 1, 7)), np.zeros((0, 1, 6)), np.zeros((3, 0, 6))):
        with pytest.raises(
            ValueError, match=r"x: must have the shape \(T, B, 6\), T and B >= 1; got"
        ):
            engine.run(x)
    for x in (
        np.full((3, 1, 6), 0.5),
        np.full((3, 1, 6), np.nan),
        np.full((3, 1, 6), 2, np.uint8),
        np.full((3, 1, 6), "a"),
    ):
        with pytest.raises(ValueError, match="x: must be 0 or 1 everywhere; got other values"):
            engine.run(x)
    for state in (engine.start(1), 5, (None,), [1, 2]):
        with pytest.raises(ValueError, match="state: must come from this network and 2 recordings"):
            engine.run(np.zeros((3, 2, 6)), state)
    for batch in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="batch: must be a positive whole number"):
            engine.start(batch)
    assert np.array_equal(
        engine.run(np.zeros((3, 1, 6)).tolist(), engine.start(1)).logits, np.zeros((1, 3, 1, 3))
    )
    with pytest.raises(ValueError, match="x: must be longer than the burn-in of 9"):
        Engine(replace(engine.network, burn_in=9)).predict(np.zeros((9, 1, 6)))
    with pytest.raises(ValueError, match="this file takes spikes"):
        engine.predict_features(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="needs a readout"):
        Engine(packing.describe(Network(Linear(6, 3), readout=None, neuron=NEURON))).predict(
            np.zeros((3, 1, 6))
        )
    with pytest.raises(ValueError, match="net: must have weights from an alphabet"):
        packing.describe(Network(Linear(6, 3), readout=2, weights="real"))
    with pytest.raises(ValueError, match="net: must be float32"):
        packing.describe(build("dense"))
    with bisnn.map_weights(net), pytest.raises(RuntimeError, match="call it outside the block"):
        packing.describe(net)


def test_exports_refuse_what_has_no_meaning(tmp_path):
    st_run = training.train(small("st"), tmp_path / "st", show=False)
    for predictor in ("members", "posterior"):
        with pytest.raises(
            ValueError, match=f"predictor: the rule 'st' has no posterior; got '{predictor}'"
        ):
            bisnn.export(st_run, predictor=predictor)
    full = training.train(small("full, Adam"), tmp_path / "full", show=False)
    with pytest.raises(ValueError, match="net: must have weights from an alphabet"):
        bisnn.export(full)
    run = training.train(small(), tmp_path / "run", show=False)
    with pytest.raises(ValueError, match="members: are drawn from a posterior"):
        bisnn.export(run, predictor="map", members=3)
    with pytest.raises(ValueError, match='"posterior" is for --to packed'):
        bisnn.export(run, "c", predictor="posterior")
    model_file = run / "model.safetensors"
    before = model_file.read_bytes()
    for name in ("model.safetensors", "state.safetensors"):
        with pytest.raises(
            ValueError,
            match="is there and is no packed network, and would be lost; give another name",
        ):
            bisnn.export(run, out=run / name)
    with pytest.raises(ValueError, match=r"out: must end in .safetensors"):
        bisnn.export(run, out=run / "config.toml")
    assert model_file.read_bytes() == before
    with pytest.raises(ValueError, match="profile: is of --to nir; got 'cubalif' with 'packed'"):
        bisnn.export(run, profile="cubalif")
    with pytest.raises(ValueError, match="a NIR graph is of one network"):
        bisnn.export(run, "nir", predictor="members")
    with pytest.raises(
        ValueError, match="to: must be one of packed, c, nir; got 'pack'; did you mean 'packed'"
    ):
        bisnn.export(run, "pack")
    assert sorted(p.name for p in run.iterdir() if "packed" in p.name) == []
    assert bisnn.export(run).members == 3
    assert bisnn.export(run).members == 3, "a packed file may be replaced"
    assert load_packed(run / "packed.safetensors").network.count == 3
