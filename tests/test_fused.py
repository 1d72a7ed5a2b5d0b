"""A layer as one operation: its bits, gradients, memory and paths, on every kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given
from hypothesis import strategies as st

import reference
from bisnn import SRM, Conv2d, Network, kernels, map_weights
from bisnn.bits import counting
from bisnn.bits import threads as bit_threads
from bisnn.bits.neurons import Loop
from bisnn.kernels import cpu
from bisnn.kernels.layer import srm_layer, srm_layer_backward
from bisnn.weights import sign
from conftest import KERNELS, constants_of, device_of, seeded, spikes, threads

NEURON = SRM(tau_mem=5.0, tau_syn=3.0, tau_ref=2.0, threshold=0.1, slope=2.0)
SEEDS = st.integers(0, 1000)
LEVELS = {True: [-1, 1], False: []}


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
        return (
            F.conv2d(images, weight, None, self.stride, self.padding)
            .movedim(1, -1)
            .unflatten(0, x.shape[:2])
        )

    def run(self, x, weight, state, hard, spikes, neuron=NEURON, refractory=False, outputs=0):
        """The operation, with a kappa for each neuron or channel and a readout of `outputs`."""
        constants, readout = (
            constants_of(neuron, x.dtype).to(x.device),
            (r if r is None else r.to(x) for r in self.readout(outputs)),
        )
        places = (list(self.stride), list(self.padding), self.pool)
        surrogate = (neuron.surrogate, neuron.slope, refractory)
        settings = (*places, LEVELS[hard], spikes, *surrogate)
        return srm_layer(x, weight, *state, self.kappa().to(x), constants, *readout, *settings)

    def readout(self, outputs, seed=0):
        """V, scale; the order of V is that of the spikes in memory."""
        if not outputs:
            return None, None
        one = torch.zeros(1, 1, *self.x[2:])
        *_, H, W, C = (1, 1, *self.product(one, torch.zeros(self.weight)).shape[2:])
        n = H // self.pool * (W // self.pool) * C
        return sign(torch.randn(outputs, n, generator=seeded(seed))), torch.tensor(0.7 / n**0.5)

    def kappa(self):
        return (
            torch.linspace(0.5, 1.5, self.weight[0], dtype=torch.float64) / self.fan_in**0.5
        ).float()

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
        return (
            x,
            sign(weight) if hard else weight.tanh(),
            [0.5 * torch.randn(one.shape, generator=g) for _ in range(3)],
        )


@st.composite
def layers(draw):
    T, B = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        n_in, n_out = draw(st.integers(1, 80)), draw(st.integers(1, 40))
        return Layer((T, B, n_in), (n_out, n_in))
    pair = lambda low, high: (draw(st.integers(low, high)), draw(st.integers(low, high)))  # noqa: E731
    kernel, stride, padding, extra = pair(1, 3), pair(1, 2), pair(0, 2), pair(0, 4)
    pool = draw(st.integers(1, 3))
    least = ((pool - 1) * d + k - 2 * p for d, k, p in zip(stride, kernel, padding, strict=True))
    H, W = (max(1, n) + e for n, e in zip(least, extra, strict=True))
    C, C_out = draw(st.sampled_from([1, 2, 31, 32, 33])), draw(st.integers(1, 5))
    return Layer((T, B, H, W, C), (C_out, C, *kernel), stride, padding, pool)


DENSE = Layer((9, 3, 40), (7, 40))
CONV = Layer((4, 2, 6, 5, 3), (4, 3, 3, 2), (1, 2), (1, 0))
# 8 x 8 neurons: two rows and two columns belong to no window
POOLED = Layer((4, 2, 8, 9, 3), (4, 3, 3, 2), (1, 1), (1, 0), 3)
FIVE = CONV._replace(x=(4, 5, 6, 5, 3))  # recordings: groups of two leave one over
ALL = [
    pytest.param(layer, id=name)
    for name, layer in (("dense", DENSE), ("conv", CONV), ("pooled", POOLED))
]


# The bits


@pytest.mark.parametrize("kernel", KERNELS)
@given(
    layers(), st.sampled_from([0.0, 0.05, 0.3, 1.0]), SEEDS, st.integers(1, 3), st.integers(0, 3)
)
@example(POOLED, 0.3, 0, 3, 2)
def test_hard_weights_and_spikes_give_the_dense_bits(
    kernel, layer, density, seed, n_threads, outputs
):
    """s, u, P, Q, R are those of the scan over the exact currents, on every kernel and any number
    of threads; y is a whole number times the readout's scale.
    """
    x, weight, state = layer.tensors(density, seed=seed)
    I = layer.product(x.double(), weight.double()).float()
    constants = constants_of(NEURON)
    expected = kernels.reference.scan(I, *state, layer.kappa(), constants, layer.pool)
    there = [t.to(device_of(kernel)) for t in (x, weight, *state)]
    with kernels.forced(kernel), threads(n_threads):
        y, *ours, _ = layer.run(there[0], there[1], there[2:], True, True, outputs=outputs)
    for a, b in zip(ours, expected, strict=True):
        assert torch.equal(a.cpu(), b)
    if not outputs:
        assert y.numel() == 0
        return
    V, scale = layer.readout(outputs)
    whole = torch.einsum("tbn,cn->tbc", expected[0].flatten(2).long(), V.long())
    assert torch.equal(y.cpu(), whole.float() * scale)


@pytest.mark.parametrize("pool", [1, 2])
def test_readouts_of_images_count_channels_first(pool):
    """As the public `Readout` does, in any memory order: y is that of the spikes, to the bit."""
    net = Network(Conv2d(2, 5, 3, pool=pool), input_shape=(2, 7, 8), readout=3, neuron=NEURON)
    with map_weights(net):
        output = net(spikes(6, 2, 2, 7, 8))
    s, y = output.spikes[0], output.readouts[0]
    V, scale = net.readouts[0].V, net.readouts[0].scale
    expected = torch.einsum("tbchw,ochw->tbo", s.long(), V.long().unflatten(1, s.shape[2:]))
    assert torch.equal(y, expected.float() * scale)
    assert torch.equal(y, net.readouts[0](s))
    assert y.unique().numel() > 3


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("layer", ALL)
def test_a_negative_zero_is_no_spike(layer, hard, kernel):
    x, weight, state = layer.tensors("dense", hard)
    x, weight, *state = (t.to(device_of(kernel)) for t in (x, weight, *state))
    found = []
    for zero in (0.0, -0.0):
        w = weight.clone().requires_grad_()
        with kernels.forced(kernel):
            outputs = layer.run(torch.where(x == 0, zero, x), w, state, hard, True)
            outputs[1].sum().backward()
        found.append((*outputs[1:], w.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("reuse", [False, True])
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(1, 40),
    SEEDS,
)
def test_pooled_scans_give_the_same_bits(reuse, n_threads, B, pool, rows, columns, C, seed):
    """Real-valued currents; edges without a window; I is kept unless it may be overwritten."""
    g = seeded(seed)
    I = torch.randn(5, B, pool + rows, pool + columns, C, generator=g)
    rest = (
        *(torch.randn(I.shape[1:], generator=g) for _ in range(3)),
        torch.rand(C, generator=g),
        constants_of(NEURON),
        pool,
    )
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
        gaps.append(
            (windows.amax(-1, keepdim=True) - windows).topk(2, largest=False).values[..., 1]
        )
    return all(float(gap.min()) > 1e-5 for gap in gaps)


def gradients(leaves, outputs, errors):
    """Gradients of the leaves from errors {index: error} at outputs; zero where none arrives."""
    at = {i: e for i, e in errors.items() if outputs[i].requires_grad}
    if at:
        torch.autograd.backward([outputs[i] for i in at], [e.to(outputs[i]) for i, e in at.items()])
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]


@contextmanager
def groups_of(recordings: int, layer: Layer, transformed: bool = False) -> Iterator[None]:
    """The CPU's gradients work on so many recordings at a time, in frequencies or tap by tap."""
    neurons = layer.product(torch.zeros(1, 1, *layer.x[2:]), torch.zeros(layer.weight)).numel()
    with (
        patch.object(cpu, "CACHED", recordings * layer.x[0] * neurons),
        patch.object(cpu, "_is_cheaper_in_frequencies", lambda *_: transformed),
    ):
        yield


Y, S, U = 0, 1, 2  # which output of the operation


@pytest.mark.parametrize("learned", ["weight", "weight and x", "x"])
@pytest.mark.parametrize("inputs", ["sparse", "dense", "real"])
@pytest.mark.parametrize("kernel", KERNELS)
@given(
    layers(),
    st.booleans(),
    st.sampled_from(["sigmoid", "box"]),
    st.booleans(),
    st.sets(st.integers(0, 5), min_size=1),
    st.integers(1, 3),
    st.booleans(),
    st.integers(1, 3),
    SEEDS,
)
@example(POOLED, True, "sigmoid", True, {S, U}, 1, False, 1, 1)
@example(POOLED, False, "box", False, {S}, 1, True, 2, 2)
@example(POOLED, False, "sigmoid", False, {Y}, 1, False, 2, 2)
@example(POOLED, True, "sigmoid", True, {Y, S}, 1, True, 2, 6)
@example(FIVE, True, "sigmoid", False, {Y}, 2, False, 1, 3)
@example(FIVE, False, "box", False, {Y, S}, 2, True, 3, 3)
@example(FIVE, True, "sigmoid", True, {Y, S, U, 3}, 3, True, 2, 3)
@example(FIVE._replace(x=(30, 5, 6, 5, 3)), True, "sigmoid", True, {S}, 5, True, 1, 3)  # two blocks
@example(
    DENSE._replace(x=(3, 5, 40), weight=(700, 40)), True, "sigmoid", False, {Y, S}, 2, False, 2, 0
)  # recordings in several blocks
def test_gradients_are_those_of_the_steps(
    kernel, inputs, learned, layer, hard, surrogate, refractory, used, group, transformed,
    n_threads, seed,
):  # fmt: skip
    """Of x, weight, P, Q, R, from errors at outputs: autograd through the equations in float64."""
    neuron = SRM(5.0, 3.0, 2.0, 0.1, surrogate, 2.0)
    x, weight, state = layer.tensors(inputs, hard, seed)
    V, scale = (t.double() for t in layer.readout(3))
    slow = [t.double() for t in (x, weight, *state)]
    exact = kernel == "reference"
    ours = [
        t.to(device_of(kernel), torch.float64 if exact else torch.float32)
        for t in (x, weight, *state)
    ]
    for leaves in (slow, ours):
        for name, leaf in zip(("x", "weight", "state", "state", "state"), leaves, strict=True):
            leaf.requires_grad_(name in learned or name == "state")
    expected = reference.scan(
        layer.product(*slow[:2]), *slow[2:], layer.kappa().double(), neuron, refractory, layer.pool
    )
    assume(decisions_are_clear(expected[1].detach(), layer, neuron))
    expected = (expected[0].flatten(2) @ V.T * scale, *expected)
    errors = {
        i: torch.randn(expected[i].shape, generator=seeded(seed + i), dtype=torch.float64)
        for i in used
    }
    with (
        kernels.forced(kernel),
        threads(n_threads),
        groups_of(group, layer, transformed),
        torch.backends.cudnn.flags(allow_tf32=False),
    ):
        outputs = layer.run(
            *ours[:2], ours[2:], hard, inputs != "real", neuron, refractory, outputs=3
        )
        found, wanted = gradients(ours, outputs, errors), gradients(slow, expected, errors)
    for y, z in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            y.double().cpu(),
            z,
            rtol=0,
            atol=(1e-12 if exact else 2e-5) * max(1.0, float(z.abs().max())),
        )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layer", ALL)
def test_no_error_no_gradient(layer, kernel):
    """Of outputs that do not learn, and of a readout whose error is nought."""
    x, weight, state = layer.tensors()
    x, weight, *state = (t.to(device_of(kernel)) for t in (x, weight, *state))
    with kernels.forced(kernel):
        y, *_ = layer.run(x, weight.requires_grad_(), state, True, True, outputs=2)
        (0 * y).sum().backward()
    assert not weight.grad.any()


@pytest.mark.parametrize(
    ("equal", "first"),
    [(((0, 0), (2, 2)), (0, 0)), (((1, 0), (0, 2)), (0, 2)), (((2, 1), (1, 2)), (1, 2))],
)
@pytest.mark.parametrize("refractory", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_of_equal_potentials_the_first_gets_the_gradient(kernel, refractory, equal, first):
    """In row order; where there is no window, there is no gradient."""
    x, weight, state = (
        torch.zeros(POOLED.x),
        torch.zeros(POOLED.weight),
        [torch.zeros(2, 8, 8, 4) for _ in range(3)],
    )
    for i, j in equal:
        state[0][:, i::3, j::3] = 0.3
    there = [t.to(device_of(kernel)).requires_grad_() for t in (x[:1], weight, *state)]
    with kernels.forced(kernel):
        _, s, *_ = POOLED.run(*there[:2], there[2:], False, True, refractory=refractory)
        s.sum().backward()
    u = POOLED.kappa().double() * 0.3
    expected = torch.zeros(2, 8, 8, 4, dtype=torch.float64)
    slope = torch.from_numpy(reference.sigma_prime((u - NEURON.threshold).numpy(), NEURON))
    expected[:, first[0] : 6 : 3, first[1] : 6 : 3] = POOLED.kappa() * slope
    torch.testing.assert_close(there[2].grad.double().cpu(), expected, rtol=1e-5, atol=1e-8)


# The operation as PyTorch sees it


@pytest.mark.parametrize("outputs", [0, 3])
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
def test_the_operation_is_registered_properly(layer, inputs, hard, dtype, outputs):
    """Schema, autograd, fake tensors and dispatch, by PyTorch's own checks; backward: fake ones."""
    x, weight, state = layer.tensors(inputs, hard)
    leaves = [t.to(dtype).requires_grad_() for t in (x, weight, *state)]
    readout = (r if r is None else r.to(dtype) for r in layer.readout(outputs))
    constants = (layer.kappa().to(dtype), constants_of(NEURON, dtype), *readout)
    window = (list(layer.stride), list(layer.padding), layer.pool)
    arguments = (*leaves, *constants, *window, LEVELS[hard], inputs != "real", "sigmoid", 2.0, True)
    torch.library.opcheck(srm_layer, arguments)
    y, s, u, *_, kept = (y.detach() for y in srm_layer(*arguments))
    x, weight = (t.detach() for t in leaves[:2])
    x_kept = x if inputs == "real" else kept
    for needed in ((True, True), (False, True), (False, False)):
        settings = (*window, inputs != "real", "sigmoid", 2.0, True, *needed)
        errors = (torch.ones_like(y) if outputs else None, torch.ones_like(s), *(None,) * 4)
        backward = (*errors, u, x_kept, list(x.shape), weight, *constants, *settings)
        torch.library.opcheck(
            srm_layer_backward, backward, test_utils=("test_schema", "test_faketensor")
        )


@pytest.mark.parametrize("in_dims", [(None, 0, None), (0, None, None), (0, 0, 0), (1, 2, None)])
@pytest.mark.parametrize("outputs", [0, 3])
@pytest.mark.parametrize("layer", ALL)
def test_vmap_is_one_member_at_a_time(layer, outputs, in_dims):
    members = [layer.tensors("dense", seed=k) for k in range(3)]
    x, weight, P = (
        parts[0] if d is None else torch.stack(parts, d)
        for parts, d in zip(
            zip(*((x, w, state[0]) for x, w, state in members), strict=True), in_dims, strict=True
        )
    )
    state = members[0][2]
    run = lambda x, weight, P: layer.run(x, weight, (P, *state[1:]), True, True, outputs=outputs)  # noqa: E731
    ours = torch.vmap(run, in_dims=in_dims, randomness="same")(x, weight, P)
    for k in range(3):
        alone = run(
            *(
                t if d is None else t.select(d, k)
                for t, d in zip((x, weight, P), in_dims, strict=True)
            )
        )
        for a, b in zip(ours, alone, strict=True):
            assert torch.equal(a[k], b)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layer", ALL)
def test_what_is_kept_of_the_inputs(layer, kernel):
    """Spikes take a bit on the CPU, a byte elsewhere; real values are kept once, as they are."""
    for inputs in ("sparse", "real"):
        x, weight, state = layer.tensors(inputs)
        x, weight, *state = (t.to(device_of(kernel)) for t in (x, weight, *state))
        saved: list[torch.Tensor] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: (saved.append(t), t)[1], lambda t: t
        )
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
                rows = x.flatten(-2) if x.ndim == 5 else x  # of an image, without gaps
                assert kept.shape == (*rows.shape[:-1], -(-rows.shape[-1] // 32))
            else:
                frame = (
                    [p for n in reversed(layer.padding) for p in (n, n)] if kernel == "cuda" else []
                )  # padding included
                assert kept.element_size() == 1
                assert torch.equal(kept.to(x.dtype), F.pad(x, [0, 0, *frame]))


# The way taken on the CPU

KERNELS_OF = {
    counting: (
        "pack",
        "windows",
        "plane_counts",
        "add_rows",
        "add_rows_transposed",
        "add_rows_by_fours",
    ),
    cpu: ("_scan", "_adjoint", "_by_rows", "_in_frequencies"),
    kernels.reference: ("product", "weight_gradient", "input_gradient"),
}


@contextmanager
def watched() -> Iterator[dict[str, list]]:
    """Which kernels run, and their arguments: the first two of numba's are the range."""
    calls: dict[str, list] = defaultdict(list)

    def spy(name, function):
        if isinstance(function, Loop):  # of a class of neurons
            return lambda *neuron: spy(name, function(*neuron))
        return lambda *arguments: (calls[name].append(arguments), function(*arguments))[1]

    with ExitStack() as stack:
        for module, names in KERNELS_OF.items():
            for name in names:
                stack.enter_context(patch.object(module, name, spy(name, getattr(module, name))))
        yield calls


def forward_and_backward(layer, inputs, hard, learns_x=False):
    """Outputs and gradients; the kernels that ran in each direction."""
    x, weight, state = layer.tensors(inputs, hard)
    with watched() as forward:
        leaves = (x.requires_grad_(learns_x), weight.requires_grad_())
        outputs = layer.run(*leaves, state, hard, inputs != "real", outputs=2)
    with watched() as backward:
        (outputs[Y].sum() + outputs[S].sum()).backward()
    return outputs, [t.grad for t in (x, weight) if t.requires_grad], forward, backward


@pytest.mark.parametrize("learns_x", [False, True])
@pytest.mark.parametrize(
    ("inputs", "hard", "forward", "backward"),
    [
        (0.05, True, {"pack", "plane_counts"}, "add_rows_transposed"),
        (0.25, True, {"pack", "plane_counts"}, "add_rows_by_fours"),
        (1.0, True, {"pack", "plane_counts"}, "add_rows_by_fours"),
        (0.05, False, {"pack", "add_rows"}, "add_rows_transposed"),
        (0.25, False, {"pack", "add_rows"}, "add_rows_by_fours"),
        (0.6, False, {"pack", "product"}, "add_rows_by_fours"),
        ("real", True, {"product"}, "weight_gradient"),
        ("real", False, {"product"}, "weight_gradient"),
    ],
)
@pytest.mark.parametrize("layer", [*ALL, pytest.param(Layer((3, 1, 64), (4, 64)), id="few rows")])
def test_which_way_is_taken(layer, inputs, hard, forward, backward, learns_x, monkeypatch):
    """Hard weights and spikes are counted, few spikes added up, all else is a dense product.
    Backward, spikes are added up one by one or by fours, in one kernel with the adjoint unless the
    input of a convolution learns too.
    """
    monkeypatch.setattr(cpu, "RARE", 0.15)
    monkeypatch.setattr(cpu, "DENSE", 0.4)
    monkeypatch.setattr(cpu, "_is_cheaper_in_frequencies", lambda *_: False)
    *_, there, back = forward_and_backward(layer, inputs, hard, learns_x)
    assert there.keys() - {"windows"} == forward | {"_scan"}
    assert ("windows" in there) == bool(layer.stride and {"plane_counts", "add_rows"} & forward)
    if backward == "weight_gradient":
        assert back.keys() == {"_adjoint", backward} | ({"input_gradient"} if learns_x else set())
    elif layer.stride and learns_x:
        assert back.keys() == {"_adjoint", "input_gradient", "windows", backward}
    else:
        assert back.keys() == {"_by_rows"}
        assert all(
            is_rare(arguments) == (backward == "add_rows_transposed")
            for arguments in back["_by_rows"]
        )


def is_rare(arguments) -> bool:
    """Whether rows are added one by one; weights and the inputs' gradient follow."""
    return arguments[-3]


TAP_BY_TAP = {"_adjoint", "input_gradient", "windows", "add_rows_transposed"}


@pytest.mark.parametrize(
    ("side", "channels", "kernel", "stride", "density", "alone", "both"),
    [
        (12, 64, 7, 1, 0.2, {"_in_frequencies"}, {"_in_frequencies"}),
        (10, 128, 7, 1, 0.09, {"_in_frequencies"}, {"_in_frequencies"}),
        (12, 64, 7, 1, 0.01, {"_by_rows"}, {"_in_frequencies"}),
        (16, 64, 3, 1, 0.1, {"_by_rows"}, {"_in_frequencies"}),
        (34, 2, 5, 2, 0.1, {"_by_rows"}, TAP_BY_TAP),  # few channels, few outputs
    ],
)
def test_which_convolutions_multiply_transforms(
    side, channels, kernel, stride, density, alone, both
):
    """Those of large kernels, and those whose inputs learn too unless few taps meet a pixel."""
    layer = Layer(
        (2, 1, side, side, channels), (64, channels, kernel, kernel), (stride,) * 2, (2, 2)
    )
    for learns_x, expected in ((False, alone), (True, both)):
        *_, back = forward_and_backward(layer, density, True, learns_x)
        assert back.keys() == expected


@pytest.mark.parametrize(
    ("density", "rare", "dense"),
    [(0.15, True, False), (0.16, False, False), (0.25, False, False), (0.26, False, True)],
)
def test_densities_at_which_the_way_changes(density, rare, dense):
    """As they are set; the bound itself still counts as below."""
    x, layer = torch.zeros(10, 10, 40), Layer((10, 10, 40), (6, 40))
    x.view(-1)[: round(density * x.numel())] = 1
    _, weight, state = layer.tensors(hard=False)
    with watched() as calls:
        layer.run(x, weight.requires_grad_(), state, False, True)[S].sum().backward()
    assert ("product" in calls) == dense
    assert is_rare(calls["_by_rows"][0]) == rare


def parts(n: int, k: int) -> list[tuple[int, int]]:
    """0..n in k ranges."""
    return list(pairwise(n * i // k for i in range(k + 1)))


SHARED = Layer((4, 4, 8, 7, 20), (4, 20, 3, 2), (1, 1), (1, 0), 3)


@pytest.mark.parametrize("learns_x", [False, True])
@pytest.mark.parametrize(
    ("inputs", "hard"), [("sparse", True), ("sparse", False), ("dense", True), ("real", False)]
)
@pytest.mark.parametrize(
    "layer",
    [SHARED, SHARED._replace(pool=1), Layer((4, 4, 70), (300, 70))],
    ids=["pooled", "conv", "dense"],
)
def test_threads_share_the_work(layer, inputs, hard, learns_x):
    """Work is split evenly over threads: outputs are the same bits, gradients other sums."""
    small = bit_threads.SERIAL
    with threads(2), groups_of(1, layer), patch.object(bit_threads, "SERIAL", small):
        alone, gradients_alone, *calls_alone = forward_and_backward(layer, inputs, hard, learns_x)
    names = [name for module in (counting, cpu) for name in KERNELS_OF[module]]
    for n_threads in (1, 2, 3):
        with threads(n_threads), groups_of(1, layer):
            ours, gradients_ours, *calls = forward_and_backward(layer, inputs, hard, learns_x)
        assert all(torch.equal(a, b) for a, b in zip(ours, alone, strict=True))
        for a, b in zip(gradients_ours, gradients_alone, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6 * float(b.abs().max()))
        for shared, single in zip(calls, calls_alone, strict=True):
            assert shared.keys() == single.keys()
            for name in shared.keys() & names:
                ends = [arguments[:2] for arguments in single[name]]
                assert all(lo == 0 for lo, _ in ends)
                expected = [part for _, n in ends for part in parts(n, min(n_threads, n))]
                assert sorted(arguments[:2] for arguments in shared[name]) == sorted(expected)


# Memory that is used again on the CPU

MIB = 1 << 18  # float32 numbers


@pytest.fixture
def no_memory(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(cpu, "_free", {})


def kept_bytes() -> int:
    return sum(size * len(blocks) for size, blocks in cpu._free.items())


@pytest.mark.parametrize("shape", [(MIB,), (2, MIB // 2), (4, 8, MIB // 32)])
def test_memory_that_nobody_uses_is_used_again(shape, no_memory):
    first = cpu._empty((MIB,))
    where = first.data_ptr()
    del first
    again = cpu._empty(shape)
    assert again.data_ptr() == where
    assert again.shape == shape
    assert again.dtype == torch.float32
    assert again.is_contiguous()
    other = cpu._empty((2 * MIB,))
    assert other.numel() == 2 * MIB
    assert kept_bytes() == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[3:5],
        lambda t: t.detach(),
        lambda t: t.t()[7],
        lambda t: t.numpy()[1],
        lambda t: torch.from_numpy(t.numpy()[1]),
        lambda t: t.untyped_storage(),
        lambda t: memoryview(t.numpy()),
        lambda t: (torch.ones(1, requires_grad=True) * t).grad_fn,  # saved for a backward pass
    ],
)
def test_a_view_keeps_its_memory(view, no_memory):
    first = cpu._empty((8, MIB))
    where = first.data_ptr()
    alive = view(first)
    del first
    assert kept_bytes() == 0
    assert cpu._empty((8, MIB)).data_ptr() != where
    cpu._free.clear()
    del alive
    assert cpu._empty((8, MIB)).data_ptr() == where


@given(
    st.lists(st.tuples(st.sampled_from(["new", "drop", "view"]), st.integers(0, 9)), max_size=30)
)
def test_two_live_tensors_never_share_memory(actions):
    """Each holds a number of its own, which no other tensor overwrites."""
    with patch.object(cpu, "_free", {}), patch.object(cpu, "KEPT", 12 * MIB):
        alive: list[tuple[torch.Tensor, float]] = []
        for number, (action, i) in enumerate(actions):
            if action == "new":
                alive.append((cpu._empty((1 + i % 3, MIB)).fill_(number), number))
            elif alive and action == "view":
                t, own = alive[i % len(alive)]
                alive[i % len(alive)] = (t[-1:], own)
                del t
            elif alive:
                del alive[i % len(alive)]
            assert all(bool((t == own).all()) for t, own in alive)
            assert kept_bytes() <= cpu.KEPT
        ranges = sorted(
            (t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t, _ in alive
        )
        assert all(a + size <= b for (a, size), (b, _) in pairwise(ranges))


def test_not_more_memory_is_kept_than_the_limit(no_memory, monkeypatch):
    monkeypatch.setattr(cpu, "KEPT", 4 * 5 * MIB)
    tensors = [cpu._empty((n * MIB,)) for n in (2, 2, 2, 1)]
    del tensors
    assert kept_bytes() == 4 * 5 * MIB


def test_small_tensors_are_left_to_torch(no_memory):
    cpu._empty((MIB - 1,))
    assert kept_bytes() == 0


def test_a_layer_uses_its_memory_again_and_never_that_of_another(no_memory):
    """Iterations whose outputs are gone cost no new memory; outputs that stay keep their values."""
    layer = Layer((16, 64, 20), (256, 20))
    x, weight, state = layer.tensors()
    run = lambda: layer.run(x, weight.requires_grad_(), state, True, True, outputs=2)  # noqa: E731
    kept, where = run(), set()
    values = [t.detach().clone() for t in kept]
    for _ in range(3):
        y, s, u, *_ = run()
        (y.sum() + s.sum()).backward()
        where |= {s.data_ptr(), u.data_ptr()}
        del y, s, u, _
    assert len(where) == 2
    assert where.isdisjoint(t.data_ptr() for t in kept)
    assert all(torch.equal(a, b) for a, b in zip(kept, values, strict=True))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize(
    (
        "needs_x",
        "refractory",
        "beside_s",
    ),  # local learning; BPTT in the first layer, in another; a part of it; errors elsewhere too
    [
        (False, False, False),
        (False, True, False),
        (True, True, False),
        (True, False, False),
        (True, True, True),
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
    hard, needs_x, refractory, beside_s, n_in, kernel, stride, padding, pool
):
    """Gradients of weights and inputs on a GPU are close to float64 at any size of the error."""
    x, neuron = spikes(6, 5, *n_in, density=0.2), SRM(threshold=0.05)
    w = torch.randn(40, n_in[-1], *kernel, generator=seeded(1))
    w = (
        sign(w) if hard else torch.tanh(w).half().float()
    )  # already rounded: another spike would be another gradient
    shape = kernels.reference.current_shape(x, w, stride, padding)[1:]
    for size in (1.0, 1e-12, 1e12):
        grads = []
        for device, dtype in (("cuda", torch.float32), ("cpu", torch.float64)):
            weight, x_d = (t.to(device, dtype, copy=True) for t in (w, x))
            weight.requires_grad_()
            x_d.requires_grad_(needs_x)
            constants = constants_of(neuron, dtype).to(device)
            zero = torch.zeros(shape, device=device, dtype=dtype)
            kappa = torch.tensor(w[0].numel() ** -0.5, device=device, dtype=dtype)
            settings = (stride, padding, pool, LEVELS[hard], True, "sigmoid", 2.0, refractory)
            with kernels.precision("mixed"):
                _, s, u, P, *_ = srm_layer(
                    x_d, weight, zero, zero, zero, kappa, constants, None, None, *settings
                )
                errors = [
                    (o, torch.randn(o.shape, generator=seeded(2), dtype=torch.float64))
                    for o in (s, u, P)[: 3 if beside_s else 1]
                ]
                sum((o * (size * e).to(device, dtype)).sum() for o, e in errors).backward()
            grads.append([g.double().cpu() for g in (weight.grad, x_d.grad) if g is not None])
        assert len(grads[0]) == 1 + needs_x
        for on_gpu, exact in zip(*grads, strict=True):
            assert (on_gpu - exact).norm() < 1e-3 * exact.norm()


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
