"""A layer in half precision and bfloat16 stays close to float64 where rounding is allowed."""

from __future__ import annotations

import math

import pytest
import torch

from bisnn import SRM, Conv2d, FixedSRM, Linear, Network, STBiSNN, kernels, local_loss
from bisnn.kernels import cpu
from bisnn.kernels.layer import srm_layer
from bisnn.weights import sign
from conftest import constants_of, seeded, spikes
from single_layers import LEVELS


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(("hard", "half"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize(
    ("needs_x", "refractory", "beside_s", "outputs", "slope"),
    [
        (False, False, False, 3, 2.0),  # local learning
        (False, True, False, 0, 12.0),  # BPTT in the first layer; too steep for a bound
        (True, True, False, 3, 2.0),  # BPTT in another
        (True, False, False, 20, 2.0),  # a part of it; many outputs
        (True, True, True, 0, 2.0),  # errors elsewhere too
    ],
)
@pytest.mark.parametrize(
    ("n_in", "kernel", "stride", "padding", "pool"),
    [
        ((9, 9, 2), (3, 3), [1, 1], [1, 1], 2),
        ((9, 9, 64), (3, 3), [1, 1], [1, 1], 1),
        ((9, 9, 48), (3, 3), [1, 1], [1, 1], 3),
        ((9, 8, 20), (3, 2), [1, 1], [0, 1], 1),
        ((9, 9, 8), (3, 3), [2, 1], [1, 1], 1),
        ((6, 6, 8), (2, 2), [1, 1], [2, 2], 1),  # more padding than the kernel reaches
        ((50,), (), [], [], 1),
    ],
)
def test_half_precision_where_tf32_is_allowed(
    hard, half, needs_x, refractory, beside_s, outputs, slope, n_in, kernel, stride, padding, pool
):
    """Gradients of weights and inputs on a GPU are close to float64 at any size of the error, with
    potentials that are kept in half precision too.
    """
    if half and beside_s:
        pytest.skip("potentials that carry errors are not halved")
    x, neuron = spikes(6, 5, *n_in, density=0.2), SRM(threshold=0.05)
    w = torch.randn(40, n_in[-1], *kernel, generator=seeded(1))
    w = (
        sign(w) if hard else torch.tanh(w).half().float()
    )  # already rounded: another spike would be another gradient
    I = torch.empty(kernels.reference.current_shape(x.shape, w, stride, padding))
    shape, n = I.shape[1:], math.prod(kernels.reference.pooled_shape(I, pool)[2:])
    readout = (sign(torch.randn(outputs, n, generator=seeded(3))), torch.tensor(0.5))
    for size in (1.0, 1e-12, 1e12):
        grads = []
        for device, dtype in (("cuda", torch.float32), ("cpu", torch.float64)):
            weight, x_d = (t.to(device, dtype, copy=True) for t in (w, x))
            weight.requires_grad_()
            x_d.requires_grad_(needs_x)
            constants = constants_of(neuron, dtype).to(device)
            zero = torch.zeros(shape, device=device, dtype=dtype)
            kappa = torch.tensor(w[0].numel() ** -0.5, device=device, dtype=dtype)
            settings = (stride, padding, pool, LEVELS[hard], True, "sigmoid", slope, refractory)
            read = (t.to(device, dtype) if outputs else None for t in readout)
            with kernels.precision("mixed"):
                y, s, u, P, *_ = srm_layer(
                    *(x_d, weight, zero, zero, zero, kappa, constants, *read, *settings),
                    half=half and device == "cuda",
                )
                of_spikes = [y] * bool(outputs) + [s] * (needs_x or not outputs)
                errors = [
                    (o, torch.randn(o.shape, generator=seeded(2), dtype=torch.float64))
                    for o in of_spikes + [u, P] * beside_s
                ]
                sum((o * (size * e).to(device, dtype)).sum() for o, e in errors).backward()
            grads.append([g.double().cpu() for g in (weight.grad, x_d.grad) if g is not None])
        assert len(grads[0]) == 1 + needs_x
        for on_gpu, exact in zip(*grads, strict=True):
            assert (on_gpu - exact).norm() < 1e-3 * exact.norm()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("neuron", [SRM(threshold=0.05), FixedSRM(threshold=0.05)])
@pytest.mark.parametrize("pool", [1, 2, 3])
def test_potentials_that_nobody_reads_change_nothing(neuron, pool):
    """Without them in half precision: spikes, readouts and state have the same bits, gradients
    hardly differ, the first of equal potentials gets a window's error, and less memory is taken.
    """
    net = Network(
        Conv2d(2, 8, 3, padding=1, pool=pool), Linear(8 * (12 // pool) ** 2, 40),
        readout=3, neuron=neuron, input_shape=(2, 12, 12),
    ).cuda()  # fmt: skip
    x, found = spikes(30, 16, 2, 12, 12, density=0.1).cuda(), []
    with kernels.precision("mixed"):
        for potentials in (True, False):
            rule = STBiSNN(net.parameters(), lr=0.1)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with rule.sampled():
                out = net(x, net.initial_state(16), potentials=potentials)
                local_loss(out, torch.arange(16).cuda() % 3).backward()
            memory = torch.cuda.max_memory_allocated() - before
            assert bool(out.potentials) == potentials
            gradients = [p.grad.clone() for p in net.parameters()]
            rule.zero_grad()
            found.append((out, gradients, memory))
    (a, exact, most), (b, ours, least) = found
    for one, other in zip(
        (*a.spikes, *a.readouts, *(z for layer in a.state for z in layer.traces)),
        (*b.spikes, *b.readouts, *(z for layer in b.state for z in layer.traces)),
        strict=True,
    ):
        assert torch.equal(one, other)
    assert all((g - h).norm() < 1e-3 * g.norm() for g, h in zip(exact, ours, strict=True))
    assert least < most


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("conv", [False, True])
def test_potentials_that_nobody_reads_of_real_inputs(conv):
    layer = Conv2d(2, 8, 3, padding=1, pool=2) if conv else Linear(2 * 6 * 6, 8)
    shape = (2, 6, 6)
    net = Network(layer, readout=3, neuron=SRM(threshold=0.05), input_shape=shape).cuda()
    x, labels = torch.rand(9, 4, *shape, generator=seeded(0)).cuda(), torch.arange(4).cuda() % 3
    gradients = []
    with kernels.precision("mixed"):
        for potentials in (True, False):
            rule = STBiSNN(net.parameters(), lr=0.1)
            with rule.sampled():
                local_loss(net(x, potentials=potentials), labels).backward()
            gradients += [p.grad.clone() for p in net.parameters()]
            rule.zero_grad()
    assert (gradients[0] - gradients[1]).norm() < 1e-3 * gradients[0].norm()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_potentials_beyond_half_precision_have_no_gradient():
    """Far beyond the threshold the surrogate is flat, also where windows are pooled."""
    x, w = spikes(8, 3, 6, 6, 4, density=0.2).cuda(), sign(torch.randn(8, 4, 3, 3)).cuda()
    zero, constants = torch.zeros(3, 6, 6, 8).cuda(), constants_of(SRM(tau_mem=500), torch.float32)
    neuron = (torch.tensor(1e6).cuda(), constants.cuda(), None, None, [1, 1], [1, 1], 2)
    w.requires_grad_()
    settings = ([-1, 1], True, "sigmoid", 4.0, False)
    _, s, u, *_ = srm_layer(x, w, zero, zero, zero, *neuron, *settings, half=True)
    s.sum().backward()
    assert u.abs().max() > 60_000
    assert w.grad.isfinite().all()


def test_potentials_are_halved_where_their_rounding_does_not_show():
    """By the kernel, PyTorch's own switches, and how steep the surrogate is at the threshold."""
    x, halved = torch.zeros(1), kernels.halves_potentials
    with kernels.precision("mixed"):
        assert not halved(x, True, SRM()), "on a CPU"
        with kernels.forced("cuda"):
            assert halved(x, True, SRM(threshold=0.25, slope=4))
            assert halved(x, False, FixedSRM(threshold=0.25, slope=4))
            assert not halved(x, True, SRM(threshold=1, slope=10))
            assert not halved(x, True, SRM(surrogate="box"))
    with kernels.precision("full"), kernels.forced("cuda"):
        assert not halved(x, True, SRM())


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="needs a CPU with bfloat16")
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_bfloat16_where_it_is_allowed(kind):
    """Relaxed weights, many spikes: within 5e-3 of exact currents. Hard weights keep their bits."""
    x = spikes(20, 4, 30, density=0.5) if kind == "linear" else spikes(6, 4, 8, 8, 5, density=0.5)
    w = torch.tanh(
        torch.randn((40, 30) if kind == "linear" else (40, 5, 3, 3), generator=seeded(1))
    )
    places = ([], []) if kind == "linear" else ([1, 1], [1, 1])
    kept, before = cpu.keep(x, places[1]), torch.get_float32_matmul_precision()
    exact, full = (
        cpu.product(x.double(), None, w.double(), *places, []),
        cpu.product(x, kept, w, *places, []),
    )
    hard = cpu.product(x, kept, sign(w), *places, [-1, 1])
    try:
        torch.set_float32_matmul_precision("medium")
        rounded = cpu.product(x, kept, w, *places, [])
        assert torch.equal(cpu.product(x, kept, sign(w), *places, [-1, 1]), hard)
    finally:
        torch.set_float32_matmul_precision(before)
    assert 1e-5 < (rounded - exact).norm() / exact.norm() < 5e-3
    torch.testing.assert_close(full.double(), exact, rtol=1e-5, atol=1e-5)
