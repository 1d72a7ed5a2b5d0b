"""A layer as one operation: its bits, its gradients, what it keeps and which way it takes, on every kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given
from hypothesis import strategies as st

import reference
from bisnn import SRM, kernels
from bisnn.fused import srm_layer, srm_layer_backward
from bisnn.kernels import bits, cpu
from bisnn.weights import sign
from conftest import KERNELS, device_of, seeded, spikes, threads

NEURON = SRM(tau_mem=5.0, tau_syn=3.0, tau_ref=2.0, threshold=0.1, slope=2.0)
SEEDS = st.integers(0, 1000)


class Layer(NamedTuple):
    """Shapes of inputs (T, B, n_in) or (T, B, H, W, C) and weights; how a convolution runs."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    pool: int = 1

    def product(self, x, weight):
        if not self.stride:
            return F.linear(x, weight)
        images = x.flatten(0, 1).movedim(-1, 1)
        return F.conv2d(images, weight, None, self.stride, self.padding).movedim(1, -1).unflatten(0, self.x[:2])

    def run(self, x, weight, state, hard, spikes, neuron=NEURON, refractory=False):
        """The operation, with a kappa of its own for each neuron or channel."""
        settings = (list(self.stride), list(self.padding), self.pool, hard, spikes)
        constants = neuron.constants(x.dtype).to(x.device)
        return srm_layer(x, weight, *state, self.kappa().to(x), constants, *settings, neuron.surrogate, neuron.slope, refractory)

    def kappa(self):
        return (torch.linspace(0.5, 1.5, self.weight[0], dtype=torch.float64) / self.fan_in**0.5).float()

    @property
    def fan_in(self):
        return torch.Size(self.weight[1:]).numel()

    def tensors(self, inputs="sparse", hard=True, seed=0):
        """Inputs of a density, or "sparse", "dense" or "real"; weights; a state P, Q, R."""
        g = seeded(seed)
        density = {"sparse": 0.05, "dense": 0.5, "real": 0.5}.get(inputs, inputs)
        x = spikes(*self.x, seed=seed, density=density)
        if inputs == "real":
            x = x * torch.randn(self.x, generator=g)
        weight = torch.randn(self.weight, generator=g)
        one = self.product(x, weight)[0]
        return x, sign(weight) if hard else weight.tanh(), [0.5 * torch.randn(one.shape, generator=g) for _ in range(3)]


@st.composite
def layers(draw):
    T, B = draw(st.integers(1, 6)), draw(st.integers(1, 2))
    if draw(st.booleans()):
        n_in, n_out = draw(st.integers(1, 80)), draw(st.integers(1, 40))
        return Layer((T, B, n_in), (n_out, n_in))
    pair = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    kernel, stride, padding, extra, pool = pair(1, 3), pair(1, 2), pair(0, 2), pair(0, 4), draw(st.integers(1, 3))
    least = ((pool - 1) * d + k - 2 * p for d, k, p in zip(stride, kernel, padding, strict=True))
    H, W = (max(1, n) + e for n, e in zip(least, extra, strict=True))
    C, C_out = draw(st.sampled_from([1, 2, 31, 32, 33])), draw(st.integers(1, 5))
    return Layer((T, B, H, W, C), (C_out, C, *kernel), stride, padding, pool)


DENSE = Layer((9, 3, 40), (7, 40))
CONV = Layer((4, 2, 6, 5, 3), (4, 3, 3, 2), (1, 2), (1, 0))
POOLED = Layer((4, 2, 8, 9, 3), (4, 3, 3, 2), (1, 1), (1, 0), 3)  # 8 x 8 neurons: two rows and two columns belong to no window
ALL = [pytest.param(layer, id=name) for name, layer in (("dense", DENSE), ("conv", CONV), ("pooled", POOLED))]


# The bits


@pytest.mark.parametrize("kernel", KERNELS)
@given(layers(), st.sampled_from([0.0, 0.05, 0.3, 1.0]), SEEDS, st.integers(1, 3))
@example(POOLED, 0.3, 0, 3)
def test_hard_weights_and_spikes_give_the_dense_bits(kernel, layer, density, seed, n_threads):
    """s, u, P, Q, R are those of the scan over the exact currents, on every kernel and any number of threads."""
    x, weight, state = layer.tensors(density, seed=seed)
    I = layer.product(x.double(), weight.double()).float()
    constants = NEURON.constants()
    expected = kernels.reference.scan(I, *state, layer.kappa(), constants, layer.pool)
    there = [t.to(device_of(kernel)) for t in (x, weight, *state)]
    with kernels.forced(kernel), threads(n_threads):
        ours = layer.run(there[0], there[1], there[2:], True, True)
    for a, b in zip(ours[:5], expected, strict=True):
        assert torch.equal(a.cpu(), b)


@pytest.mark.xfail(strict=True, reason="the packed bits take -0.0 for a spike")
def test_a_negative_zero_is_no_spike():
    x, weight, state = DENSE.tensors("dense")
    ours = DENSE.run(torch.where(x == 0, -0.0, x), weight, state, True, True)
    assert torch.equal(ours[1], DENSE.run(x, weight, state, True, True)[1])


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("reuse", [False, True])
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 5), st.integers(0, 5), st.integers(1, 40), SEEDS)
def test_pooled_scans_give_the_same_bits(reuse, n_threads, B, pool, rows, columns, C, seed):
    """Real-valued currents; edges that fill no window; I is left alone unless it may be overwritten."""
    g = seeded(seed)
    I = torch.randn(5, B, pool + rows, pool + columns, C, generator=g)
    rest = (*(torch.randn(I.shape[1:], generator=g) for _ in range(3)), torch.rand(C, generator=g), NEURON.constants(), pool)
    expected = kernels.reference.scan(I, *rest)
    given_to = I.clone()
    with threads(n_threads):
        ours = cpu.scan(given_to, *rest, reuse=reuse)
    for a, b in zip(ours, expected, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(given_to, ours[1] if reuse else I)


# Gradients


def decisions_are_clear(u, layer, neuron) -> bool:
    """Whether rounding to float32 changes no spike, no edge of the box, no maximum of a window."""
    v = u - neuron.threshold
    gaps = [v.abs(), ((neuron.slope * v).abs() - 0.5).abs()]
    if (k := layer.pool) > 1:
        windows = u.unfold(2, k, k).unfold(3, k, k).flatten(-2)
        gaps.append((windows.amax(-1, keepdim=True) - windows).topk(2, largest=False).values[..., 1])
    return all(float(gap.min()) > 1e-5 for gap in gaps)


def gradients(leaves, outputs, errors):
    """Gradients of the leaves from errors {index: error} at some outputs; zero where none arrives."""
    at = {i: e for i, e in errors.items() if outputs[i].requires_grad}
    if at:
        torch.autograd.backward([outputs[i] for i in at], [e.to(outputs[i]) for i, e in at.items()])
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]


@pytest.mark.parametrize("inputs", ["sparse", "dense", "real"])
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
@given(layers(), st.sampled_from(["sigmoid", "box"]), st.booleans(), st.sets(st.integers(0, 4), min_size=1), SEEDS)
@example(POOLED, "sigmoid", True, {0, 1}, 1)
@example(POOLED, "box", False, {0}, 2)
def test_gradients_are_those_of_the_steps(kernel, hard, inputs, layer, surrogate, refractory, used, seed):
    """Of x, weight, P, Q, R, from errors at some of s, u, P, Q, R: autograd through the equations in float64."""
    neuron = SRM(5.0, 3.0, 2.0, 0.1, surrogate, 2.0)
    x, weight, state = layer.tensors(inputs, hard, seed)
    slow = [t.double().requires_grad_() for t in (x, weight, *state)]
    expected = reference.scan(layer.product(*slow[:2]), *slow[2:], layer.kappa().double(), neuron, refractory, layer.pool)
    assume(decisions_are_clear(expected[1].detach(), layer, neuron))
    exact = kernel == "reference"
    ours = [t.to(device_of(kernel), torch.float64 if exact else torch.float32).requires_grad_() for t in (x, weight, *state)]
    with kernels.forced(kernel), torch.backends.cudnn.flags(allow_tf32=False):
        outputs = layer.run(*ours[:2], ours[2:], hard, inputs != "real", neuron, refractory)
        errors = {i: torch.randn(expected[i].shape, generator=seeded(seed + i), dtype=torch.float64) for i in used}
        found, wanted = gradients(ours, outputs, errors), gradients(slow, expected, errors)
    for y, z in zip(found, wanted, strict=True):
        torch.testing.assert_close(y.double().cpu(), z, rtol=0, atol=(1e-12 if exact else 2e-5) * max(1.0, float(z.abs().max())))


@pytest.mark.parametrize(("equal", "first"), [(((0, 0), (2, 2)), (0, 0)), (((1, 0), (0, 2)), (0, 2)), (((2, 1), (1, 2)), (1, 2))])
@pytest.mark.parametrize("refractory", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_of_equal_potentials_the_first_gets_the_gradient(kernel, refractory, equal, first):
    """In row order; where there is no window, there is no gradient."""
    x, weight, state = (torch.zeros(POOLED.x), torch.zeros(POOLED.weight), [torch.zeros(2, 8, 8, 4) for _ in range(3)])
    for i, j in equal:
        state[0][:, i::3, j::3] = 0.3
    there = [t.to(device_of(kernel)).requires_grad_() for t in (x[:1], weight, *state)]
    with kernels.forced(kernel):
        s, *_ = POOLED.run(*there[:2], there[2:], False, True, refractory=refractory)
        s.sum().backward()
    u = POOLED.kappa().double() * 0.3
    expected = torch.zeros(2, 8, 8, 4, dtype=torch.float64)
    slope = torch.from_numpy(reference.sigma_prime((u - NEURON.threshold).numpy(), NEURON))
    expected[:, first[0] : 6 : 3, first[1] : 6 : 3] = POOLED.kappa() * slope
    torch.testing.assert_close(there[2].grad.double().cpu(), expected, rtol=1e-5, atol=1e-8)


# The operation as PyTorch sees it


@pytest.mark.parametrize(
    ("layer", "inputs", "hard", "dtype"),
    [
        (DENSE, "sparse", True, torch.float32),
        (DENSE, "dense", False, torch.float32),
        (POOLED, "sparse", True, torch.float32),
        (POOLED, "dense", False, torch.float32),
        (POOLED, "real", False, torch.float32),
        (CONV, "dense", True, torch.float64),
    ],
)
def test_the_operation_is_registered_properly(layer, inputs, hard, dtype):
    """Schema, autograd, fake tensors and ahead-of-time dispatch, by PyTorch's own checks; of the backward pass, fake tensors."""
    x, weight, state = layer.tensors(inputs, hard)
    leaves = [t.to(dtype).requires_grad_() for t in (x, weight, *state)]
    constants = (layer.kappa().to(dtype), NEURON.constants(dtype))
    window = (list(layer.stride), list(layer.padding), layer.pool)
    arguments = (*leaves, *constants, *window, hard, inputs != "real", "sigmoid", 2.0, True)
    torch.library.opcheck(srm_layer, arguments)
    s, u, *_, kept = (y.detach() for y in srm_layer(*arguments))
    x, weight = (t.detach() for t in leaves[:2])
    x_kept = x if inputs == "real" else kept
    for needed in ((True, True), (False, True), (False, False)):
        settings = (*window, inputs != "real", "sigmoid", 2.0, True, *needed)
        backward = (torch.ones_like(s), None, None, None, None, u, x_kept, list(x.shape), weight, *constants, *settings)
        torch.library.opcheck(srm_layer_backward, backward, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("in_dims", [(None, 0, None), (0, None, None), (0, 0, 0), (1, 2, None)])
@pytest.mark.parametrize("layer", ALL)
def test_vmap_is_one_member_at_a_time(layer, in_dims):
    members = [layer.tensors("dense", seed=k) for k in range(3)]
    x, weight, P = (
        parts[0] if d is None else torch.stack(parts, d)
        for parts, d in zip(zip(*((x, w, state[0]) for x, w, state in members), strict=True), in_dims, strict=True)
    )
    state = members[0][2]
    run = lambda x, weight, P: layer.run(x, weight, (P, *state[1:]), True, True)  # noqa: E731
    ours = torch.vmap(run, in_dims=in_dims)(x, weight, P)
    for k in range(3):
        alone = run(*(t if d is None else t.select(d, k) for t, d in zip((x, weight, P), in_dims, strict=True)))
        for a, b in zip(ours, alone, strict=True):
            assert torch.equal(a[k], b)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layer", ALL)
def test_what_is_kept_of_the_inputs(layer, kernel):
    """Spikes take a bit on the CPU, a byte elsewhere; real values are kept as they are, and not a second time."""
    for inputs in ("sparse", "real"):
        x, weight, state = layer.tensors(inputs)
        x, weight, *state = (t.to(device_of(kernel)) for t in (x, weight, *state))
        saved: list[torch.Tensor] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: (saved.append(t), t)[1], lambda t: t)
        with kernels.forced(kernel), hooks:
            *_, kept = layer.run(x, weight.requires_grad_(), state, False, inputs != "real")
        as_they_are = [t for t in saved if t.data_ptr() == x.data_ptr()]
        if inputs == "real":
            assert len(as_they_are) == 1
            assert kept.numel() == 0
        else:
            assert not as_they_are
            assert any(t.data_ptr() == kept.data_ptr() for t in saved)
            if kernel == "cpu":
                assert kept.dtype == torch.int32
                assert kept.shape == (*x.shape[:-1], -(-x.shape[-1] // 32))
            else:
                frame = [p for n in reversed(layer.padding) for p in (n, n)] if kernel == "cuda" else []  # padding included
                assert kept.element_size() == 1
                assert torch.equal(kept.to(x.dtype), F.pad(x, [0, 0, *frame]))


# The way taken on the CPU

KERNELS_OF = {
    bits: ("pack", "unpack", "windows", "counts", "add_rows", "add_rows_transposed"),
    cpu: ("_scan", "_adjoint"),
    kernels.reference: ("product", "weight_gradient"),
}


@contextmanager
def watched() -> Iterator[dict[str, list]]:
    """Which kernels run, and their first two arguments: those of numba's are the range."""
    calls: dict[str, list] = defaultdict(list)

    def spy(name, function):
        return lambda *arguments: (calls[name].append(arguments[:2]), function(*arguments))[1]

    with ExitStack() as stack:
        for module, names in KERNELS_OF.items():
            for name in names:
                stack.enter_context(patch.object(module, name, spy(name, getattr(module, name))))
        yield calls


def forward_and_backward(layer, inputs, hard):
    """Outputs and gradients; the kernels that ran in each direction."""
    x, weight, state = layer.tensors(inputs, hard)
    with watched() as forward:
        outputs = layer.run(x, weight.requires_grad_(), state, hard, inputs != "real")
    with watched() as backward:
        outputs[0].sum().backward()
    return (*outputs, weight.grad), forward, backward


@pytest.mark.parametrize(
    ("inputs", "hard", "forward", "backward"),
    [
        ("sparse", True, {"pack", "counts"}, {"add_rows_transposed"}),
        ("dense", True, {"pack", "counts"}, {"unpack", "weight_gradient"}),
        ("sparse", False, {"pack", "add_rows"}, {"add_rows_transposed"}),
        ("dense", False, {"pack", "product"}, {"unpack", "weight_gradient"}),
        ("real", True, {"product"}, {"weight_gradient"}),
        ("real", False, {"product"}, {"weight_gradient"}),
    ],
)
@pytest.mark.parametrize("layer", [*ALL, pytest.param(Layer((3, 1, 64), (4, 64)), id="few rows")])
def test_which_way_is_taken(layer, inputs, hard, forward, backward):
    """Hard weights and spikes are counted, few spikes added up, all else is a dense product."""
    _, there, back = forward_and_backward(layer, inputs, hard)
    assert there.keys() - {"windows"} == forward | {"_scan"}
    assert back.keys() - {"windows"} == backward | {"_adjoint"}
    over_bits = bool({"counts", "add_rows"} & forward), "add_rows_transposed" in backward
    assert ("windows" in there, "windows" in back) == (over_bits if layer.stride else (False, False))


@pytest.mark.parametrize(("inputs", "hard"), [("sparse", True), ("sparse", False), ("dense", True)])
def test_threads_share_the_work(inputs, hard):
    """All that runs on several threads gives the bits of one; a small layer stays on one."""
    layer = Layer((4, 2, 8, 7, 20), (4, 20, 3, 2), (1, 1), (1, 0), 3)
    small = cpu.SERIAL
    with threads(2):
        ours, *calls = forward_and_backward(layer, inputs, hard)
        with patch.object(cpu, "SERIAL", small):
            alone, *calls_alone = forward_and_backward(layer, inputs, hard)
    assert all(torch.equal(a, b) for a, b in zip(ours, alone, strict=True))
    names = [name for module in (bits, cpu) for name in KERNELS_OF[module]]
    for shared, single in zip(calls, calls_alone, strict=True):
        assert shared.keys() == single.keys()
        for name in shared.keys() & names:
            expected = [part for _, n in single[name] for part in ((0, n // 2), (n // 2, n))]
            assert all(lo == 0 for lo, _ in single[name])
            assert sorted(shared[name]) == sorted(expected)
