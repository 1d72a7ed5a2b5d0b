"""Layers and networks against the equations in float64: potentials, gradients, chunks."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import reference
from bisnn import (
    SRM,
    BayesBiSNN,
    Conv2d,
    Linear,
    Network,
    Recurrent,
    STBiSNN,
    global_loss,
    local_loss,
    map_weights,
    pad,
    predict,
    sample_weights,
)
from bisnn.bits import counting
from conftest import needs_compiler, seeded, spikes
from networks import FLOAT, KINDS, NEURON, build, mask


def run(net, x, relaxed=False):
    """Weights and output at a realisation: hard, or real-valued in (-1, 1)."""
    params = [layer.weight for layer in net.layers]
    if relaxed:
        rule = BayesBiSNN(net.parameters(), lr=1.0, temperature=0.0)
        with rule.sampled():
            return [p.detach().clone() for p in params], net(x)
    with map_weights(net):
        return [p.detach().clone() for p in params], net(x)


def inputs_of(net, x, out):
    """What arrives at each layer, as numpy arrays; a recurrent layer's own spikes included."""
    left = [x, *out.spikes]
    for layer, u in zip(net.layers, out.potentials, strict=True):
        read = [left[n + 1] for n in layer.spec.inputs]
        a = torch.cat(read if isinstance(layer, Conv2d) else [z.flatten(2) for z in read], dim=2)
        if isinstance(layer, Recurrent):
            a = torch.cat([a, (u > layer.neuron.threshold).double()], dim=-1)
        yield a.detach().numpy()


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


def gradients(net, x, labels, loss, rule=None):
    """Gradients at the MAP weights, by way of ST-BiSNN, whose factor is 1."""
    rule = rule or STBiSNN(net.parameters(), lr=1.0)
    with rule.sampled():
        loss(net(x), labels).backward()
    return [p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("surrogate", ["sigmoid", "box"])
@pytest.mark.parametrize("kind", ["deep", "recurrent", "masked"])
def test_local_gradient_is_eq_der_general(kind, surrogate):
    neuron = SRM(5.0, 3.0, 2.0, 0.05, surrogate, 2.0)
    net = build(kind, 3, neuron=neuron)
    x, labels = spikes(12, 3, 6, seed=1, dtype=torch.float64), torch.tensor([0, 2, 1])
    grads = gradients(net, x, labels, local_loss)
    _, out = run(net, x)
    assert all(0 < s.mean() < 1 for s in out.spikes)
    for layer, readout, a, u, g in zip(
        net.layers, net.readouts, inputs_of(net, x, out), out.potentials, grads, strict=True
    ):
        u = u.detach().numpy()
        own = (u > neuron.threshold).astype(float)
        index = layer.outputs if getattr(layer, "outputs", None) is not None else slice(None)
        e = np.zeros_like(own)
        e[..., index] = reference.logistic_error(
            own[..., index], readout.V.numpy(), float(readout.scale), labels.numpy()
        )
        p = reference.convolve(reference.alpha, a, neuron)
        slow = torch.from_numpy(reference.local_gradient(e, u, p, layer.kappa.numpy(), neuron))
        slow = slow[layer.mask] if getattr(layer, "mask", None) is not None else slow
        torch.testing.assert_close(g, slow, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["conv", "conv stride", "pooled"])
def test_local_gradient_of_convolutions(kind):
    """Eq. (der-general) with shared weights; with pooling, through a window's first maximum."""
    net = build(kind, 5)
    x, labels = spikes(6, 2, *net.input_shape, seed=2, dtype=torch.float64), torch.tensor([0, 2])
    grads = gradients(net, x, labels, local_loss)
    _, out = run(net, x)
    for layer, readout, a, u, s, g in zip(
        net.layers,
        net.readouts,
        inputs_of(net, x, out),
        out.potentials,
        out.spikes,
        grads,
        strict=True,
    ):
        u, s = u.detach().numpy(), s.detach().numpy()
        T, B = u.shape[:2]
        e = reference.logistic_error(
            s.reshape(T, B, -1), readout.V.numpy(), float(readout.scale), labels.numpy()
        ).reshape(s.shape)
        full = np.zeros_like(u)  # errors at full resolution
        k = layer.pool
        for index in np.ndindex(s.shape):
            t, b, c, h, w = index
            window = u[t, b, c, h * k : h * k + k, w * k : w * k + k]
            # Argmax returns the first maximum
            i, j = np.unravel_index(np.argmax(window), window.shape)
            full[t, b, c, h * k + i, w * k + j] += e[index]
        post = full * reference.sigma_prime(u - NEURON.threshold, NEURON) * float(layer.kappa)
        p = reference.convolve(reference.alpha, a, NEURON)
        slow = np.zeros(g.shape)
        terms = reference.conv_terms(
            a.shape[3:], u.shape[3:], layer.kernel_size, layer.stride, layer.padding
        )
        for (oh, ow), (kh, kw), (h, w) in terms:
            for o in range(slow.shape[0]):
                for c in range(slow.shape[1]):
                    slow[o, c, kh, kw] += (post[:, :, o, oh, ow] * p[:, :, c, h, w]).sum()
        torch.testing.assert_close(g, torch.from_numpy(slow), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("readout_after", ["every", "last"])
@pytest.mark.parametrize("kind", FLOAT)
def test_bptt_gradient_is_autograd_through_the_steps(kind, readout_after):
    """At real weights: with hard ones, rounding breaks ties in a pooling window at random."""
    net = build(kind, 7, gradient="bptt", readout_after=readout_after, weights="real")
    x, labels = spikes(9, 3, *net.input_shape, seed=4, dtype=torch.float64), torch.tensor([0, 2, 1])
    local_loss(net(x), labels).backward()
    grads = [p.grad for p in net.parameters()]
    weights = [p.detach().clone().requires_grad_() for p in net.parameters()]
    readouts = reference.stepwise(net, weights, x)
    per_step = [torch.log_softmax(y, -1)[:, torch.arange(3), labels] for y in readouts]
    (-sum(y.sum(0).mean() for y in per_step)).backward()
    for ours, slow in zip(grads, weights, strict=True):
        torch.testing.assert_close(ours, slow.grad, rtol=1e-9, atol=1e-11)
        assert ours.abs().max() > 1e-6


def test_local_and_bptt_differ_where_they_should():
    """One layer: BPTT adds the refractory path, and alone has a gradient of the input."""
    x, labels = spikes(9, 3, 6, dtype=torch.float64).requires_grad_(), torch.tensor([0, 2, 1])
    local = gradients(build("dense", 1), x, labels, local_loss)
    assert x.grad is None
    bptt = gradients(build("dense", 1, gradient="bptt"), x, labels, local_loss)
    assert x.grad is not None
    assert not torch.allclose(local[0], bptt[0])


@pytest.mark.parametrize("kind", KINDS)
@given(chunks=st.lists(st.integers(1, 7), min_size=1, max_size=6), seed=st.integers(0, 100))
def test_chunks_same_bits_and_same_local_gradient(kind, chunks, seed):
    net = build(kind, seed)
    x, labels = (
        spikes(sum(chunks), 2, *net.input_shape, seed=seed, dtype=torch.float64),
        torch.tensor([0, 1]),
    )
    whole = gradients(net, x, labels, local_loss)
    rule = STBiSNN(net.parameters(), lr=1.0)
    state, pieces = net.initial_state(2), []
    with rule.sampled():
        for piece in x.split(chunks):
            out = net(piece, state)
            local_loss(out, labels).backward()
            state, pieces = out.state, [*pieces, out]
    for p, g in zip(net.parameters(), whole, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-9, atol=1e-12)
    _, expected = run(net, x)
    for i in range(len(net.layers)):
        assert torch.equal(torch.cat([o.spikes[i] for o in pieces]), expected.spikes[i])
        assert torch.equal(torch.cat([o.potentials[i] for o in pieces]), expected.potentials[i])


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


def test_bptt_in_chunks():
    """An attached state gives the whole gradient; a detached one truncates it."""
    net = build("deep", 1, gradient="bptt")
    x, labels = spikes(10, 3, 6, dtype=torch.float64), torch.tensor([0, 2, 1])
    whole = gradients(net, x, labels, local_loss)

    def in_chunks(detach):
        def loss(_, labels):
            state, total = net.initial_state(3), 0.0
            for piece in x.split(5):
                out = net(piece, state)
                state = tuple(s.detach() for s in out.state) if detach else out.state
                total = total + local_loss(out, labels)
            return total

        return gradients(net, x, labels, loss)

    assert all(
        torch.allclose(a, b, rtol=1e-10) for a, b in zip(in_chunks(False), whole, strict=True)
    )
    assert not any(
        torch.allclose(a, b, rtol=1e-3) for a, b in zip(in_chunks(True), whole, strict=True)
    )


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


def test_recordings_of_different_length():
    """A padded batch gives each recording the loss, gradient and prediction it has alone."""
    net = build("deep", 2)
    recordings = [spikes(T, 6, seed=T, dtype=torch.float64) for T in (5, 12, 8)]
    labels = torch.tensor([0, 2, 1])
    x, valid = pad(recordings)
    for over_time in ("sum", "mean"):
        together = gradients(
            net,
            x,
            labels,
            lambda o, r, w=over_time: local_loss(o, r, over_time=w, burn_in=2, mask=valid),
        )
        alone = [
            gradients(
                net,
                r[:, None],
                labels[i : i + 1],
                lambda o, r, w=over_time: local_loss(o, r, over_time=w, burn_in=2),
            )
            for i, r in enumerate(recordings)
        ]
        for i, g in enumerate(together):
            torch.testing.assert_close(g, sum(a[i] for a in alone) / 3, rtol=1e-10, atol=1e-12)
    mean = predict(net, x, mask=valid, burn_in=2).mean
    for i, r in enumerate(recordings):
        torch.testing.assert_close(mean[i], predict(net, r[:, None], burn_in=2).mean[0])


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


def test_loading_another_neuron_is_refused():
    with pytest.raises(
        ValueError,
        match=r"state_dict: layers.0.constants must be that of this network's neuron; got 0.904",
    ):
        build("dense", neuron=SRM(tau_mem=20)).load_state_dict(
            build("dense", neuron=SRM()).state_dict()
        )


def test_to_moves_everything():
    net = build("mixed", dtype=torch.float32).to("meta")
    assert {t.device.type for t in (*net.parameters(), *net.buffers())} == {"meta"}
    double = build("dense", dtype=torch.float32).double()
    with map_weights(double):
        assert double(spikes(3, 1, 6, dtype=torch.float64)).readouts[0].dtype == torch.float64


def test_spikes_as_bool_or_bytes():
    net = build("dense", dtype=torch.float32)
    x = spikes(10, 2, 6)
    with map_weights(net):
        assert torch.equal(net(x).spikes[0], net(x.bool()).spikes[0])
        assert torch.equal(net(x).spikes[0], net(x.to(torch.uint8)).spikes[0])


def test_a_binary_network_outside_a_realisation():
    net = build("dense")
    x = spikes(4, 1, 6, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"rule.sampled\(\).*bisnn.predict\(net, x\)"):
        net(x)
    with sample_weights(net, 0):
        net(x)
        with pytest.raises(RuntimeError, match=r"state_dict\(\) inside a realisation"):
            net.state_dict()
        with pytest.raises(
            RuntimeError, match=r"load_state_dict\(\) inside a realisation would be undone"
        ):
            net.load_state_dict(build("dense").state_dict())
    with pytest.raises(RuntimeError, match="latents"):
        net(x)
    build("dense", weights="real")(x)


def test_full_precision_trains_with_any_torch_optimizer():
    net = build("deep", weights="real", dtype=torch.float32)
    x, labels = spikes(20, 4, 6), torch.arange(4) % 3
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = local_loss(net(x), labels, over_time="mean")
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def loss_of(net, x, labels):
    return local_loss(net(x), labels)


@pytest.mark.parametrize(
    ("kinds", "backend"),
    [
        (("deep", "pooled", "mixed"), "aot_eager"),
        pytest.param(("pooled",), "inductor", marks=[pytest.mark.slow, needs_compiler]),
    ],
)
def test_compiles_in_one_graph(kinds, backend, monkeypatch):
    """Forward and loss trace without a graph break and give what they give uncompiled.

    One compiled function serves hard and relaxed weights, and several networks; it knows hard
    weights by what wrote them.
    """
    torch.compiler.reset()
    compiled = torch.compile(loss_of, fullgraph=True, backend=backend)
    counts, counted = counting.plane_counts, []
    monkeypatch.setattr(
        counting, "plane_counts", lambda *arguments: (counted.append(1), counts(*arguments))
    )
    for kind in kinds:
        net = build(kind, dtype=torch.float32, readout=2)
        x, labels = spikes(6, 4, *net.input_shape), torch.tensor([0, 1, 0, 1])
        for rule in (
            STBiSNN(net.parameters(), lr=1.0),
            BayesBiSNN(net.parameters(), lr=1.0, temperature=0.0),
        ):
            results = []
            with rule.sampled():
                for function in (loss_of, compiled):
                    net.zero_grad()
                    counted.clear()
                    value = function(net, x, labels)
                    value.backward()
                    results.append((value.detach(), *(p.grad.clone() for p in net.parameters())))
            assert bool(counted) is isinstance(rule, STBiSNN)
            for a, b in zip(*results, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_global_loss_is_the_last_readouts():
    net = build("deep")
    x, labels = spikes(5, 2, 6, dtype=torch.float64), torch.tensor([0, 1])
    _, out = run(net, x)
    parts = [local_loss(out._replace(readouts=(y,)), labels) for y in out.readouts]
    assert torch.allclose(local_loss(out, labels), sum(parts))
    assert torch.equal(global_loss(out, labels), parts[-1])


def network(*layers, **options):
    return Network(*(layers or (Linear(3, 4),)), **{"readout": 2, **options})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0, 3), "n_in: must be a positive whole number; got 0"),
        (lambda: Linear(3, 2.5), "n_out: must be a positive whole number; got 2.5"),
        (
            lambda: Conv2d(1, 2, 3.0),
            "kernel_size: must be a whole number >= 1 or a pair of them; got 3.0; give e.g. 1",
        ),
        (lambda: Conv2d(1, 2, 0), "kernel_size: must be a whole number >= 1 or a pair"),
        (lambda: Conv2d(1, 2, 3, padding=-1), "padding: must be a whole number >= 0"),
        (lambda: Conv2d(1, 2, 3, stride=(1, 2, 3)), "stride: must be"),
        (lambda: Conv2d(1, 2, 3, pool=0), "pool: must be a positive whole number"),
        (
            lambda: Recurrent(2, 3, mask=torch.ones(3, 4, dtype=torch.bool)),
            r"mask: .* shape \(n, n_in \+ n\) = \(3, 5\); got .*\(3, 4\)",
        ),
        (lambda: Recurrent(2, 3, mask=torch.ones(3, 5)), "mask: must be a bool tensor"),
        (
            lambda: Recurrent(2, 2, mask=torch.tensor([[True] * 4, [False] * 4])),
            "mask: every neuron needs at least one parent; got none for neuron 1",
        ),
        (
            lambda: Recurrent(2, 3, outputs=[]),
            "outputs: must be distinct neuron indices from 0 to 2",
        ),
        (lambda: Recurrent(2, 3, outputs=[3]), "outputs: must be distinct"),
        (lambda: Recurrent(2, 3, outputs=[1.7]), "outputs: must be distinct"),
        (lambda: network(neuron="srm"), "neuron: must be a bisnn.SRM, .*; got 'srm'"),
        (lambda: network(input_shape=5), "input_shape: must be the sizes of the axes"),
        (
            lambda: pad([torch.zeros(3, 2), torch.zeros(3, 4)]),
            "recordings: must agree in all axes but the first",
        ),
        (lambda: Network(readout=2), "layers: must be one or more of"),
        (lambda: network(torch.nn.Linear(2, 3)), "layers: must be one or more of"),
        (
            lambda: network(Conv2d(2, 4, 3)),
            r"input_shape: needed because the first layer is a Conv2d, as \(2, H, W\)",
        ),
        (
            lambda: network(Conv2d(2, 4, 3), input_shape=(1, 8, 8)),
            r"input_shape: Conv2d with channels_in=2 takes \(2, H, W\); got \(1, 8, 8\)",
        ),
        (lambda: network(Conv2d(2, 4, 9), input_shape=(2, 8, 8)), "input_shape: too small"),
        (
            lambda: network(Linear(3, 4), Linear(5, 2)),
            r"n_in: must equal the size of what comes in, 4 .*got 5",
        ),
        (
            lambda: network(*[Linear(3, 3)] * 2),
            "layers: each layer object belongs to one network, once",
        ),
        (lambda: network(readout=0), "readout: must be a positive whole number; got 0"),
        (
            lambda: network(weights="trinary"),
            'weights: must be "binary", "ternary", "real", a list of levels .*; got \'trinary\'',
        ),
        (
            lambda: network(weights=[1, 1]),
            r"levels: must be two or more distinct integers; got \(1, 1\)",
        ),
        (lambda: network(posterior="yes"), "posterior: must be True or False"),
        (lambda: network(gradient="rtrl"), "gradient: must be one of local, bptt"),
        (lambda: network(readout_after="first"), "readout_after: must be one of every, last"),
        (
            lambda: network(Linear(3, 4), Linear(4, 4), readout_after="last"),
            "readout_after: local learning needs a readout after every layer",
        ),
        (
            lambda: network(dtype=torch.float16),
            "dtype: must be torch.float32 or torch.float64; got torch.float16",
        ),
        (lambda: network(init=-1.0), "init: must be a finite number >= 0; got -1.0"),
        (lambda: network(readout_gain=0.0), "readout_gain: must be a finite number > 0"),
        (lambda: network(seed="7"), "seed: must be a whole number"),
        (lambda: pad([]), "recordings: needs at least one"),
        (lambda: pad([torch.zeros(0, 3)]), "recordings: needs at least one, each with T >= 1"),
        (lambda: network().initial_state(0), "batch_size: must be a positive whole number"),
    ],
)
def test_bad_networks(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(5, 2, 7), r"x: must be a tensor \(T, B, 6\); got \(5, 2, 7\)"),
        (torch.zeros(5, 6), "x: must be a tensor"),
        (torch.zeros(6), "x: must be a tensor"),
        (torch.zeros(0, 2, 6), r"x: needs at least one time step and one recording.*\(0, 2, 6\)"),
        (torch.zeros(5, 0, 6), "x: needs at least one time step and one recording"),
        (
            torch.zeros(5, 2, 6, dtype=torch.float64),
            "x: must have the network's dtype torch.float32.*got torch.float64",
        ),
        (torch.zeros(5, 2, 6, dtype=torch.int64), "x: must have the network's dtype"),
        (np.zeros((5, 2, 6)), "x: must be a tensor.*ndarray"),
    ],
)
def test_bad_input(x, message):
    net = build("dense", dtype=torch.float32)
    with map_weights(net), pytest.raises(ValueError, match=message):
        net(x)


@pytest.mark.parametrize(
    "state",
    [
        lambda net: net.initial_state(3),
        lambda net: build("deep").initial_state(2),
        lambda net: [torch.zeros(2, 7)],
    ],
)
def test_a_state_of_another_batch_or_network(state):
    net = build("dense", dtype=torch.float32)
    with (
        map_weights(net),
        pytest.raises(ValueError, match="state: must come from this network and this batch of 2"),
    ):
        net(spikes(5, 2, 6), state(net))


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


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_leaves_the_currents_exact(kind):
    net = build(kind, dtype=torch.float32)
    x = spikes(20, 2, *net.input_shape)
    _, expected = run(net, x)
    with torch.autocast("cpu", torch.bfloat16):
        _, out = run(net, x)
    assert all(torch.equal(a, b) for a, b in zip(out.potentials, expected.potentials, strict=True))


@pytest.mark.parametrize("gradient", ["local", "bptt"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_single_time_step_has_a_zero_gradient(kind, gradient):
    """Strictly causal: the first step does not depend on the weights."""
    net = build(kind, gradient=gradient)
    grads = gradients(
        net, spikes(1, 2, *net.input_shape, dtype=torch.float64), torch.tensor([0, 1]), local_loss
    )
    assert all((g == 0).all() for g in grads)


def test_neurons_that_are_no_outputs_are_a_reservoir_in_local_mode():
    x, labels = spikes(20, 3, 6, dtype=torch.float64), torch.tensor([0, 2, 1])
    for gradient, learns in (("local", False), ("bptt", True)):
        net = Network(
            Recurrent(6, 8, outputs=[7, 0, 3]),
            readout=3,
            neuron=NEURON,
            gradient=gradient,
            dtype=torch.float64,
        )
        (g,) = gradients(net, x, labels, local_loss)
        assert (g[[7, 0, 3]].abs().sum(1) > 0).any()
        assert bool(g[[1, 2, 4, 5, 6]].any()) is learns


def test_half_precision_is_refused():
    net = build("dense", dtype=torch.float32).half()
    with (
        map_weights(net),
        pytest.raises(
            ValueError, match="net: must be float32 or float64, or its currents are not exact"
        ),
    ):
        net(spikes(5, 2, 6))


def test_a_layer_by_itself():
    with pytest.raises(RuntimeError, match="a layer has weights only as part of a network"):
        Linear(2, 3)(torch.zeros(4, 1, 2))


def test_masks_count_each_neurons_own_parents():
    m = mask(8, 6, 0)
    net = Network(Recurrent(6, 8, mask=m), readout=2, dtype=torch.float64)
    layer = net.layers[0]
    assert layer.weight.shape == (int(m.sum()),)
    assert torch.equal(layer.matrix(torch.ones_like(layer.weight)) != 0, m)
    torch.testing.assert_close(layer.kappa, m.sum(1).double() ** -0.5)


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


@pytest.mark.parametrize("kind", ["deep", "pooled", "masked"])
@pytest.mark.parametrize("gradient", ["local", "bptt"])
def test_a_readout_sees_what_it_is_shown(kind, gradient):
    """Dropout: the readout of spikes times factors, with its gradient; factors of 1 do nothing."""
    net = build(kind, gradient=gradient)
    x = spikes(12, 3, *net.input_shape, dtype=torch.float64)
    sizes = [math.prod(layer.output_shape) for layer in net.layers]
    ones = [torch.ones(3, n, dtype=torch.float64) for n in sizes]
    factors = [2.0 * (torch.rand(3, n, generator=seeded(n)) < 0.5).double() for n in sizes]
    rule = STBiSNN(net.parameters(), lr=1.0)

    def gradients(seen):
        with rule.sampled():
            output = net(x, seen=seen)
            sum((y * (i + 1)).square().sum() for i, y in enumerate(output.readouts)).backward()
        found = [p.grad.clone() for p in net.parameters()]
        rule.zero_grad()
        return output, found

    plain, expected = gradients(None)
    same, found = gradients(ones)
    for a, b in zip((*plain.readouts, *expected), (*same.readouts, *found), strict=True):
        torch.testing.assert_close(a, b)
    dropped, found = gradients(factors)
    for y, s, readout, factor in zip(
        dropped.readouts, dropped.spikes, net.readouts, factors, strict=True
    ):
        torch.testing.assert_close(y, readout.scale * ((s.flatten(2) * factor) @ readout.V.T))
    assert any(not torch.allclose(a, b) for a, b in zip(found, expected, strict=True))


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


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([Linear(6, 5), Linear(5, 4, inputs=(1,))], "must be layers before this one, number 1"),
        ([Linear(6, 5), Linear(5, 4, inputs=(2,))], "got 2; it may read \"input\" and 0 to 0"),
        ([Linear(6, 5, inputs=(0,))], "number 0; got 0; it may read \"input\", and cycles"),
        ([Linear(6, 5), Linear(5, 4, inputs=(-1,))], "got -1"),
        ([Linear(6, 5), Linear(5, 4, inputs=("x",))], "got 'x'"),
        ([Linear(6, 5), Linear(5, 4, inputs=(True,))], "got True"),
        ([Linear(6, 5), Linear(5, 4, inputs=(0, 0))], "a list of distinct layers; got (0, 0)"),
        ([Linear(6, 5), Linear(5, 4, inputs=())], "must be a list of distinct layers; got ()"),
        ([Linear(6, 5), Linear(5, 4, inputs="input")], "must be a list of distinct layers"),
        ([Linear(6, 5), Linear(5, 4, inputs=3)], "must be a list of distinct layers; got 3"),
        ([Linear(6, 5), Linear(5, 4, inputs=("input", 0))], "n_in: must equal the size"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(layers, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Network(*layers, readout=2)


def test_images_of_other_sizes_do_not_lie_side_by_side():
    layers = (Conv2d(2, 3, 3), Conv2d(5, 4, 3, inputs=("input", 0)))
    with pytest.raises(ValueError, match="must be images of one height and width"):
        Network(*layers, readout=2, input_shape=(2, 8, 8))
