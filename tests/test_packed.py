"""The packed engine against its network, bit for bit, whole and as a stream in pieces."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bisnn
from bisnn import SRM, Conv2d, Linear, Network, Recurrent, packing
from bisnn.alphabet import Levels
from bisnn.bits import counting
from bisnn.packed import BadFile, Engine, file
from bisnn.packed import load as load_packed
from bisnn.packed.network import words
from conftest import spikes
from networks import EVERY, NEURON, build, drawn, mask

LIVELY = SRM(tau_mem=5.0, tau_syn=3.0, tau_ref=2.0, threshold=0.02)


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


@pytest.mark.parametrize("n", [1, 2, 8, 9, 32, 33])
@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_words_have_the_bits_of_short_and_long_rows(n, dtype):
    x = (np.random.default_rng(n).random((2, n, 3)) < 0.5).astype(dtype).swapaxes(1, 2)
    expected = [[[sum(int(v) << i for i, v in enumerate(row))] for row in rows] for rows in x]
    found = words(x)
    assert found.dtype == np.uint32
    whole = (found.astype(object) << 32 * np.arange(found.shape[-1])).sum(-1, keepdims=True)
    assert np.array_equal(whole, np.array(expected, object))


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
