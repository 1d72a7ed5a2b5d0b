"""The event-driven product against the dense one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bisnn import kernels
from bisnn.kernels import cpu
from bisnn.product import spike_linear
from bisnn.weights import sign
from conftest import seeded, spikes

SHAPES = st.tuples(st.integers(1, 80), st.integers(1, 40), st.integers(1, 70))


@given(SHAPES, st.sampled_from([0.0, 0.03, 0.1, 0.5, 1.0]), st.integers(0, 100), st.integers(1, 3))
def test_hard_weights_and_spikes_give_the_dense_bits(shape, density, seed, threads):
    R, n_in, n_out = shape
    x = spikes(R, n_in, seed=seed, density=density)
    w = sign(torch.randn(n_out, n_in, generator=seeded(seed)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        ours = spike_linear(x, w)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(ours, (x.double() @ w.double().t()).float())


@given(SHAPES, st.sampled_from([0.0, 0.05, 0.5]), st.booleans(), st.integers(0, 100))
def test_gradients_are_those_of_a_matrix_product(shape, density, real_valued, seed):
    R, n_in, n_out = shape
    x = spikes(R, n_in, seed=seed, density=density) * (torch.rand(R, n_in, generator=seeded(seed)) if real_valued else 1)
    w, e = (torch.randn(*s, generator=seeded(seed + i)) for i, s in enumerate([(n_out, n_in), (R, n_out)]))
    grads = []
    for product, dtype in ((spike_linear, torch.float32), (lambda x, w: x @ w.t(), torch.float64)):
        leaves = [t.detach().clone().to(dtype).requires_grad_() for t in (x, w)]
        out = product(*leaves)
        (out * e.to(dtype)).sum().backward()
        grads.append([out.detach().double(), *(t.grad.double() for t in leaves)])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_which_way_is_taken():
    """Few spikes: event-driven. Many, or real values: dense. Both ways are really there."""
    assert cpu._sparse_rows(spikes(100, 50, density=0.05)) is not None
    assert cpu._sparse_rows(spikes(100, 50, density=0.5)) is None
    assert cpu._sparse_rows(0.5 * spikes(100, 50, density=0.05)) is None


def test_work_is_shared_among_threads(monkeypatch):
    calls = []
    kernel = cpu._add_rows
    monkeypatch.setattr(cpu, "_add_rows", lambda lo, hi, *rest: (calls.append((lo, hi)), kernel(lo, hi, *rest)))
    x, w = spikes(2000, 100, density=0.05), sign(torch.randn(60, 100, generator=seeded(0)))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        ours = spike_linear(x, w)
    finally:
        torch.set_num_threads(before)
    assert sorted(calls) == [(0, 32), (32, 60)]
    with kernels.forced("reference"):
        assert torch.equal(ours, spike_linear(x, w))


@pytest.mark.parametrize("density", [0.05, 0.5])
def test_the_operation_is_registered_properly(density):
    x, w = spikes(20, 30, density=density).requires_grad_(), torch.randn(5, 30, generator=seeded(0)).requires_grad_()
    torch.library.opcheck(spike_linear, (x, w))


@pytest.mark.parametrize("in_dims", [(None, 0), (0, None), (0, 0), (1, 2)])
def test_vmap(in_dims):
    x = spikes(3, 10, 30, density=0.1) if in_dims[0] == 0 else spikes(10, 3, 30, density=0.1) if in_dims[0] == 1 else spikes(10, 30)
    w = sign(torch.randn({0: (3, 5, 30), 2: (5, 30, 3), None: (5, 30)}[in_dims[1]], generator=seeded(0)))
    ours = torch.vmap(spike_linear, in_dims=in_dims)(x, w)
    for k in range(3):
        x_k = x if in_dims[0] is None else x.select(in_dims[0], k)
        w_k = w if in_dims[1] is None else w.select(in_dims[1], k)
        assert torch.equal(ours[k], x_k @ w_k.t())
