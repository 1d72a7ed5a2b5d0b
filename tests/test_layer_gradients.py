"""Gradients of networks against the equations in float64, and training with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from bisnn import (
    SRM,
    BayesBiSNN,
    Network,
    Recurrent,
    STBiSNN,
    global_loss,
    local_loss,
    pad,
    predict,
)
from bisnn.bits import counting
from conftest import needs_compiler, seeded, spikes
from networks import FLOAT, KINDS, NEURON, build, gradients, inputs_of, run


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


# Chunks and recordings of different length


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


# Losses and training


def test_global_loss_is_the_last_readouts():
    net = build("deep")
    x, labels = spikes(5, 2, 6, dtype=torch.float64), torch.tensor([0, 1])
    _, out = run(net, x)
    parts = [local_loss(out._replace(readouts=(y,)), labels) for y in out.readouts]
    assert torch.allclose(local_loss(out, labels), sum(parts))
    assert torch.equal(global_loss(out, labels), parts[-1])


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
