"""The neuron against its equations, the kernels against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from bisnn import SRM, kernels
from bisnn.kernels.scan import spike, srm_adjoint, srm_scan
from conftest import constants_of, seeded, threads

SETTINGS = ("sigmoid", 1.0, False)


def scan(I, neuron=None, state=None, kappa=None, settings=SETTINGS):
    neuron = neuron or SRM()
    state = state or [torch.zeros_like(I[0]) for _ in range(3)]
    kappa = torch.tensor(0.25, dtype=I.dtype) if kappa is None else kappa
    return srm_scan(I, *state, kappa, constants_of(neuron, I.dtype), *settings)


def integers(*shape, seed=0, high=6, dtype=torch.float32):
    return torch.randint(-high, high + 1, shape, generator=seeded(seed)).to(dtype)


def test_one_input_spike_by_hand():
    """A spike of weight 1 at t = 0 gives u_t = alpha_t from t = 1 on; the first u > theta fires."""
    neuron = SRM(tau_mem=10, tau_syn=5, tau_ref=2, threshold=0.2)
    I = torch.zeros(6, 1, 1, dtype=torch.float64)
    I[0] = 1.0
    s, u, *_ = scan(I, neuron, kappa=torch.tensor(1.0, dtype=torch.float64))
    a = [0.0] + [math.exp(-t / 10) - math.exp(-t / 5) for t in range(1, 6)]
    assert a[3] == pytest.approx(0.192007, abs=1e-6)
    assert a[4] == pytest.approx(0.220991, abs=1e-6)
    assert s.flatten().tolist() == [0, 0, 0, 0, 1, 0]
    expected = [*a[:5], a[5] - math.exp(-1 / 2)]  # the feedback beta_1 follows the spike of t = 4
    assert u.flatten().tolist() == pytest.approx(expected, abs=1e-12)


@given(
    st.integers(0, 10_000),
    st.integers(1, 30),
    st.floats(1.0, 40.0),
    st.floats(0.05, 0.95),
    st.floats(0.3, 20.0),
)
def test_potentials_are_the_convolution_sums(seed, T, tau_mem, ratio, tau_ref):
    neuron = SRM(tau_mem, tau_mem * ratio, tau_ref, threshold=0.3)
    I = torch.randn(T, 2, 3, generator=seeded(seed), dtype=torch.float64) * 4
    s, u, *_ = scan(I, neuron)
    slow = 0.25 * reference.convolve(reference.alpha, I.numpy(), neuron) - reference.convolve(
        reference.beta, s.numpy(), neuron
    )
    assert np.abs(u.numpy() - slow).max() < 1e-10
    clear = np.abs(slow - neuron.threshold) > 1e-9
    assert ((slow > neuron.threshold) == s.numpy())[clear].all()


def test_equality_does_not_fire():
    """u exactly at theta stays silent, the next number above fires."""
    theta = torch.tensor(0.5)
    u = torch.stack(
        [
            theta,
            torch.nextafter(theta, torch.tensor(1.0)),
            torch.nextafter(theta, torch.tensor(0.0)),
        ]
    )
    state = [u[None], torch.zeros(1, 3), torch.zeros(1, 3)]
    for name in ("reference", "cpu"):
        with kernels.forced(name):
            s, *_ = scan(torch.zeros(1, 1, 3), state=state, kappa=torch.tensor(1.0))
        assert s.flatten().tolist() == [0, 1, 0]
    assert spike(u, theta, "sigmoid", 1.0).tolist() == [0, 1, 0]


@given(
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.sampled_from([(1, 1), (3, 7), (2, 3, 5, 4), (5, 1000)]),
    st.booleans(),
    st.integers(1, 3),
)
def test_kernels_give_the_same_bits(seed, T, shape, real_valued, n_threads):
    g = seeded(seed)
    I = torch.randn(T, *shape, generator=g) * 5 if real_valued else integers(T, *shape, seed=seed)
    state = [torch.randn(shape, generator=g) for _ in range(3)]
    kappa = torch.rand(shape[-1], generator=g) if seed % 2 else torch.rand((), generator=g)
    neuron = SRM(10, 6, 2, 0.1)
    results = {}
    for name in ("reference", "cpu"):
        with kernels.forced(name), threads(n_threads):
            results[name] = scan(I, neuron, state, kappa)
    assert 0 < results["reference"][0].mean() < 1 or I.numel() < 100
    for ours, theirs in zip(results["cpu"], results["reference"], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_kernels_give_the_same_bits_over_millions_of_steps():
    I = integers(2000, 4, 2000, high=12)
    with kernels.forced("reference"):
        expected = scan(I)
    assert all(torch.equal(a, b) for a, b in zip(scan(I), expected, strict=True))


def test_several_threads_share_the_work(monkeypatch):
    """The parallel path is really taken, and gives the bits of the serial one."""
    from bisnn.kernels import cpu

    I = integers(20, 4, 5000)
    serial, calls, kernel = scan(I), [], cpu._scan

    def counted(*of):
        return lambda lo, hi, *rest: (calls.append((lo, hi)), kernel(*of)(lo, hi, *rest))

    monkeypatch.setattr(cpu, "_scan", counted)
    with threads(2):
        parallel = scan(I)
    assert sorted(calls) == [(0, 10), (10, 20)], "units of 1024 neurons, of which there are 20,000"
    assert all(torch.equal(a, b) for a, b in zip(serial, parallel, strict=True))


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_silent_traces_end_at_zero(name):
    """No denormal numbers: they never decay, and slow some CPUs down."""
    I = torch.zeros(2000, 1, 8)
    I[:5] = integers(5, 1, 8)
    with kernels.forced(name):
        *_, P, Q, R = scan(I)
    assert P.count_nonzero() == Q.count_nonzero() == R.count_nonzero() == 0


@pytest.mark.parametrize("surrogate", ["sigmoid", "box"])
@pytest.mark.parametrize("refractory", [False, True])
@pytest.mark.parametrize("kernel", ["reference", "cpu"])
def test_adjoint_is_autograd_through_the_steps(surrogate, refractory, kernel):
    """All gradients of the scan, its states included, against autograd through the equations."""
    neuron = SRM(10, 6, 2, 0.2, surrogate, 3.0)
    T, shape = 17, (3, 5)
    g = seeded(1)
    inputs = [torch.randn(T, *shape, generator=g, dtype=torch.float64) * 3]
    inputs += [torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(3)]
    kappa = torch.rand(5, generator=g, dtype=torch.float64) + 0.5
    weights = [
        torch.randn(s, generator=g, dtype=torch.float64) for s in ((T, *shape),) * 2 + (shape,) * 3
    ]

    def gradients(function, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        out = function(*leaves)
        if not refractory:
            out = out[:4]  # R leads nowhere when its path is cut
        sum((w.to(dtype) * y).sum() for w, y in zip(weights, out, strict=False)).backward()
        grads = [x.grad for x in leaves]
        return grads if refractory else grads[:3]

    expected = gradients(
        lambda *inputs: reference.scan(*inputs, kappa, neuron, refractory), torch.float64
    )
    dtype = torch.float64 if kernel == "reference" else torch.float32
    settings = (surrogate, neuron.slope, refractory)
    with kernels.forced(kernel):
        ours = gradients(
            lambda I, P, Q, R: srm_scan(
                I, P, Q, R, kappa.to(dtype), constants_of(neuron, dtype), *settings
            ),
            dtype,
        )
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(
            a.double(),
            b,
            rtol=1e-12 if kernel == "reference" else 2e-5,
            atol=0 if kernel == "reference" else 2e-5,
        )


def test_sigmoid_derivative_of_the_cpu_kernel():
    """The polynomial exp in the numba kernel, over the whole range, against float64."""
    # theta = 0, so that v = u exactly; a_m - a_s = 1/4
    constants = torch.tensor([0.5, 0.25, 0.5, 0.0])
    u = torch.linspace(-65, 65, 200_001).expand(2, 1, -1)
    with kernels.forced("cpu"):
        errors, kappa = (torch.ones_like(u), *(None,) * 4), torch.tensor(1.0)
        g_I, *_ = srm_adjoint(*errors, u, kappa, constants, "sigmoid", 1.0, False)
    # g_I of the first of two steps is (a_m - a_s) sigma'(u of the second)
    ours = 4 * g_I[0, 0].double()
    e = torch.exp(-u[0, 0].double().abs())
    assert (ours * (1 + e) ** 2 / e - 1).abs().max() < 2e-6


@given(st.integers(0, 1000), st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_any_chunks_give_the_same_bits(seed, chunks):
    I = integers(sum(chunks), 2, 9, seed=seed)
    whole = scan(I)
    state, pieces = [torch.zeros(2, 9)] * 3, []
    for piece in I.split(chunks):
        s, u, *state = scan(piece, state=state)
        pieces.append((s, u))
    assert torch.equal(torch.cat([s for s, _ in pieces]), whole[0])
    assert torch.equal(torch.cat([u for _, u in pieces]), whole[1])
    assert all(torch.equal(a, b) for a, b in zip(state, whole[2:], strict=True))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_operation_is_registered_properly(dtype, transposed):
    """Schema, autograd, fake tensors and ahead-of-time dispatch, by PyTorch's own checks."""
    I = (
        integers(5, 2, 3, dtype=dtype)
        if not transposed
        else integers(5, 3, 2, dtype=dtype).transpose(1, 2)
    )
    I.requires_grad_()
    state = [torch.zeros(2, 3, dtype=dtype, requires_grad=True) for _ in range(3)]
    constants = (torch.tensor(0.5, dtype=dtype), constants_of(SRM(), dtype))
    torch.library.opcheck(srm_scan, (I, *state, *constants, "sigmoid", 2.0, True))


def test_vmap_folds_members_into_the_batch():
    I = integers(20, 4, 3, 5)  # (T, K, B, N)
    together = torch.vmap(lambda i: scan(i)[0], in_dims=1)(I)
    assert torch.equal(together, torch.stack([scan(I[:, k])[0] for k in range(4)]))


def test_constants_are_rounded_once():
    exact = [math.exp(-1 / 10), math.exp(-1 / 6), math.exp(-1 / 2), 0.5]
    assert constants_of(SRM(), torch.float64).tolist() == exact
    assert constants_of(SRM()).tolist() == [float(np.float32(x)) for x in exact]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau_mem": 0}, "tau_mem: must be a finite number > 0; got 0"),
        ({"tau_ref": -1.0}, "tau_ref: must be"),
        ({"tau_syn": math.nan}, "tau_syn: must be"),
        ({"tau_mem": math.inf}, "tau_mem: must be"),
        ({"tau_mem": 6, "tau_syn": 6}, "tau_syn: must be below tau_mem.*got tau_syn=6, tau_mem=6"),
        ({"tau_mem": 5, "tau_syn": 6}, "tau_syn: must be below tau_mem"),
        (
            {"tau_mem": 6.0000001, "tau_syn": 6},
            "tau_syn: must be below tau_mem, or the synaptic kernel .* vanishes",
        ),
        ({"threshold": 0}, "threshold: must be a finite number > 0; got 0"),
        ({"slope": -1}, "slope: must be"),
        (
            {"surrogate": "sigmiod"},
            r"surrogate: must be one of sigmoid, box; got 'sigmiod'; did you mean 'sigmoid'\?",
        ),
        ({"tau_mem": "10"}, "tau_mem: must be.*got '10'"),
    ],
)
def test_bad_neurons(arguments, message):
    with pytest.raises(ValueError, match=message):
        SRM(**arguments)


def test_numpy_numbers_are_numbers():
    assert torch.equal(
        constants_of(SRM(np.float32(10), np.int64(6), 2, 0.5)), constants_of(SRM(10, 6, 2, 0.5))
    )


def test_unknown_kernel():
    with (
        pytest.raises(ValueError, match="name: must be one of reference, cpu, cuda; got 'gpu'"),
        kernels.forced("gpu"),
    ):
        pass


@pytest.mark.parametrize("triton", [True, False])
def test_which_kernel_runs(triton, monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(kernels, "_has_triton", lambda: triton)
    assert kernels.name_for(cpu, torch.float32) == "cpu"
    assert (
        kernels.name_for(cpu, torch.float64) == kernels.name_for(cuda, torch.float64) == "reference"
    )
    assert kernels.name_for(cuda, torch.float32) == ("cuda" if triton else "reference")
    with kernels.forced("reference"):
        assert kernels.name_for(cpu, torch.float32) == "reference"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_bits_of_the_cpu():
    I = integers(200, 4, 3000)
    inputs = (I, *[torch.zeros_like(I[0])] * 3, torch.tensor(0.25), constants_of(SRM()))
    ours = srm_scan(*(x.cuda() for x in inputs), *SETTINGS)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, scan(I), strict=True))
