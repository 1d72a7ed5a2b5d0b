"""Layers and networks: potentials as in the equations, exact currents, state and weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import reference
from bisnn import Conv2d, Linear, Network, Recurrent, map_weights
from conftest import seeded, spikes
from networks import FLOAT, KINDS, NEURON, build, inputs_of, mask, run

# Potentials and currents


def matrix_of(layer, w):
    return layer.matrix(w).numpy() if isinstance(layer, Recurrent) else w.numpy()


@pytest.mark.parametrize("kind", FLOAT)
@given(
    seed=st.integers(0, 10_000),
    T=st.integers(2, 9),
    relaxed=st.booleans(),
    real_input=st.booleans(),
)
def test_potentials_equal_the_convolution_sums(kind, seed, T, relaxed, real_input):
    net = build(kind, seed, init=0.7)
    shape = (T, 2, *net.input_shape)
    x = (
        torch.randn(shape, generator=seeded(seed), dtype=torch.float64)
        if real_input
        else spikes(*shape, seed=seed, dtype=torch.float64)
    )
    weights, out = run(net, x, relaxed)
    for layer, w, a, u, s in zip(
        net.layers, weights, inputs_of(net, x, out), out.potentials, out.spikes, strict=True
    ):
        p = reference.convolve(reference.alpha, a, layer.neuron)
        if isinstance(layer, Conv2d):
            current = reference.conv_product(w.numpy(), p, layer)
            kappa = 1 / np.sqrt(np.prod(w.shape[1:]))
        else:
            m = matrix_of(layer, w)
            current = reference.dense_product(m, p)
            parents = (
                layer.mask.sum(1).numpy()
                if isinstance(layer, Recurrent) and layer.mask is not None
                else m.shape[1]
            )
            kappa = 1 / np.sqrt(parents)
        own = (u > layer.neuron.threshold).double().numpy()
        slow = reference.potentials(current, own, kappa, layer.neuron)
        assert np.abs(u.detach().numpy() - slow).max() < 1e-10
        clear = np.abs(slow - layer.neuron.threshold) > 1e-9
        assert ((slow > layer.neuron.threshold) == own)[clear].all()
        leaving = own
        if isinstance(layer, Conv2d) and layer.pool > 1:  # the OR of the window's spikes
            k, (H, W) = layer.pool, layer.output_shape[1:]
            leaving = own[..., : H * k, : W * k].reshape(*own.shape[:3], H, k, W, k).max((4, 6))
        if isinstance(layer, Recurrent) and layer.outputs is not None:
            leaving = own[..., layer.outputs]
        assert np.array_equal(s.detach().numpy(), leaving)


@pytest.mark.parametrize("kind", KINDS)
def test_hard_weights_and_spikes_give_exact_integers(kind):
    net = build(kind, 4, dtype=torch.float32)
    x = spikes(12, 3, *net.input_shape, seed=5)
    weights, out = run(net, x)
    arriving = [torch.from_numpy(a).float() for a in inputs_of(net, x, out)]
    for layer, w, a in zip(net.layers, weights, arriving, strict=True):
        I = layer.product(a, w)
        assert torch.equal(I, I.round())
        assert torch.equal(I.double(), layer.product(a.double(), w.double()))
    for readout, y in zip(net.readouts, out.readouts, strict=True):
        whole = y / readout.scale
        torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-4)
        assert torch.equal(whole.round() * readout.scale, y)


@pytest.mark.parametrize("kind", KINDS)
@given(
    chunks=st.lists(st.integers(1, 9), min_size=3, max_size=12),
    density=st.sampled_from([0.05, 0.3]),
)
@example(chunks=[1] * 25, density=0.3)
def test_any_chunks_in_float32_give_the_same_bits(kind, chunks, density):
    net = build(kind, 2, dtype=torch.float32)
    x = spikes(sum(chunks), 3, *net.input_shape, seed=3, density=density)
    with torch.no_grad(), map_weights(net):
        whole, state, pieces = net(x), net.initial_state(3), []
        for piece in x.split(chunks):
            pieces.append(net(piece, state))
            state = pieces[-1].state
    for name in ("spikes", "potentials", "readouts"):
        for i, expected in enumerate(getattr(whole, name)):
            assert torch.equal(torch.cat([getattr(p, name)[i] for p in pieces]), expected)


@pytest.mark.parametrize("first", [Linear(300, 64), Conv2d(40, 8, 3, padding=1)])
def test_permuted_inputs_change_no_spike(first):
    shape = (300,) if isinstance(first, Linear) else (40, 6, 6)
    copy = type(first)(
        *((300, 64) if isinstance(first, Linear) else (40, 8, 3)),
        **({} if isinstance(first, Linear) else {"padding": 1}),
    )
    nets = [Network(layer, readout=2, input_shape=shape, neuron=NEURON) for layer in (first, copy)]
    order = torch.randperm(shape[0], generator=seeded(0))
    with torch.no_grad():
        nets[1].layers[0].weight.copy_(nets[0].layers[0].weight[:, order])
    x = spikes(50, 4, *shape, density=0.2)
    (_, a), (_, b) = run(nets[0], x), run(nets[1], x[:, :, order])
    assert torch.equal(a.spikes[0], b.spikes[0])
    assert torch.equal(a.potentials[0], b.potentials[0])
    assert 0 < a.spikes[0].mean() < 1


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_leaves_the_currents_exact(kind):
    net = build(kind, dtype=torch.float32)
    x = spikes(20, 2, *net.input_shape)
    _, expected = run(net, x)
    with torch.autocast("cpu", torch.bfloat16):
        _, out = run(net, x)
    assert all(torch.equal(a, b) for a, b in zip(out.potentials, expected.potentials, strict=True))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_gives_the_bits_of_the_cpu(kind):
    net = build(kind, 3, dtype=torch.float32)
    x = spikes(40, 4, *net.input_shape)
    (_, here), (_, there) = run(net, x), run(net.cuda(), x.cuda())
    for name in ("spikes", "potentials", "readouts"):
        assert all(
            torch.equal(a, b.cpu())
            for a, b in zip(getattr(here, name), getattr(there, name), strict=True)
        )


def test_spikes_as_bool_or_bytes():
    net = build("dense", dtype=torch.float32)
    x = spikes(10, 2, 6)
    with map_weights(net):
        assert torch.equal(net(x).spikes[0], net(x.bool()).spikes[0])
        assert torch.equal(net(x).spikes[0], net(x.to(torch.uint8)).spikes[0])


def test_masks_count_each_neurons_own_parents():
    m = mask(8, 6, 0)
    net = Network(Recurrent(6, 8, mask=m), readout=2, dtype=torch.float64)
    layer = net.layers[0]
    assert layer.weight.shape == (int(m.sum()),)
    assert torch.equal(layer.matrix(torch.ones_like(layer.weight)) != 0, m)
    torch.testing.assert_close(layer.kappa, m.sum(1).double() ** -0.5)


# Several inputs


def test_inputs_side_by_side_are_sums_of_currents():
    """W1 s1 + W2 s2, by two products, is what one layer on both makes of them."""
    x = spikes(20, 3, 2, 5, 6)
    net = build("skip conv", dtype=torch.float32)
    weights, out = run(net, x)
    second, w = net.layers[1], weights[1]
    parts = [
        torch.nn.functional.conv2d(s.flatten(0, 1), part, padding=1)
        for s, part in zip((x, out.spikes[0]), w.split([2, 3], 1), strict=True)
    ]
    I = sum(parts).unflatten(0, x.shape[:2])
    assert torch.equal(I, second.product(torch.cat([x, out.spikes[0]], 2), w))
    assert float(second.kappa) == pytest.approx((5 * 9) ** -0.5)
    assert second.spec.parts == ((2, 5, 6), (3, 5, 6))


def test_a_layer_that_nobody_reads_changes_nothing_else():
    layers = [Linear(6, 9), Linear(9, 8), Linear(9, 8, inputs=(0,))]
    net = Network(*layers, readout=3, neuron=NEURON, seed=1)
    alone = Network(Linear(6, 9), Linear(9, 8), readout=3, neuron=NEURON, seed=1)
    x = spikes(12, 4, 6)
    with map_weights(net), map_weights(alone):
        for ours, theirs in zip(net(x).spikes, alone(x).spikes, strict=False):
            assert torch.equal(ours, theirs)


# Weights and stored state


def test_weights_as_an_argument():
    """A realisation of the caller's own; nothing is written into the network."""
    net = build("deep")
    x = spikes(9, 2, 6, dtype=torch.float64)
    weights, expected = run(net, x)
    assert torch.equal(net(x, weights=weights).readouts[-1], expected.readouts[-1])
    with pytest.raises(
        ValueError,
        match=r"weights: must have the layers' shapes \[\(9, 6\), .*; give one per layer",
    ):
        net(x, weights=weights[:2])


def test_state_dict_has_no_neuron_state_and_travels():
    m = mask(6, 12, 0)
    make = lambda seed: Network(  # noqa: E731
        Conv2d(2, 3, 3, pool=2),
        Recurrent(12, 6, mask=m),
        Linear(6, 5),
        readout=3,
        input_shape=(2, 6, 6),
        neuron=NEURON,
        seed=seed,
    )
    net, other = make(1), make(2)
    saved = {"weight", "kappa", "constants", "mask", "V", "scale"}
    assert {name.split(".")[-1] for name in net.state_dict()} == saved
    x = spikes(20, 2, 2, 6, 6)
    expected, before = run(net, x)[1], run(other, x)[1]
    assert not torch.equal(expected.readouts[-1], before.readouts[-1])
    other.load_state_dict(net.state_dict())
    after = run(other, x)[1]
    for name in ("spikes", "potentials", "readouts"):
        assert all(
            torch.equal(a, b)
            for a, b in zip(getattr(after, name), getattr(expected, name), strict=True)
        )
    on_meta = make(3).to("meta")
    on_meta.load_state_dict(net.state_dict(), assign=True)
    assert torch.equal(run(on_meta, x)[1].readouts[-1], expected.readouts[-1])


def test_to_moves_everything():
    net = build("mixed", dtype=torch.float32).to("meta")
    assert {t.device.type for t in (*net.parameters(), *net.buffers())} == {"meta"}
    double = build("dense", dtype=torch.float32).double()
    with map_weights(double):
        assert double(spikes(3, 1, 6, dtype=torch.float64)).readouts[0].dtype == torch.float64
