"""A layer on the CPU: the kernels it chooses, threads that share work, memory used again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bisnn import kernels
from bisnn.bits import counting, spreading
from bisnn.bits import threads as bit_threads
from bisnn.bits.neurons import Loop
from bisnn.kernels import cpu
from conftest import spikes, threads
from single_layers import ALL, Layer, S, Y, groups_of

# The way taken

KERNELS_OF = {
    counting: (
        "pack",
        "windows",
        "counts",
        "plane_counts",
        "add_rows",
        "add_rows_transposed",
        "add_rows_by_fours",
    ),
    spreading: ("add_runs",),
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
        (0.05, True, "plane_counts", "add_rows_transposed"),
        (0.25, True, "plane_counts", "add_rows_by_fours"),
        (1.0, True, "plane_counts", "add_rows_by_fours"),
        (0.05, False, "add_rows", "add_rows_transposed"),
        (0.25, False, "add_rows", "add_rows_by_fours"),
        (0.6, False, "product", "add_rows_by_fours"),
        ("real", True, "product", "weight_gradient"),
        ("real", False, "product", "weight_gradient"),
    ],
)
@pytest.mark.parametrize("layer", [*ALL, pytest.param(Layer((3, 1, 64), (4, 64)), id="few rows")])
def test_which_way_is_taken(layer, inputs, hard, forward, backward, learns_x, monkeypatch):
    """Hard weights and spikes are counted, few spikes added up, all else is a dense product; the
    readout is counted. Backward, spikes are added up one by one or by fours, in one kernel with the
    adjoint unless the input of a convolution learns too. Of a convolution with few channels each
    spike is added to what sees it.
    """
    monkeypatch.setattr(cpu, "RARE", 0.15)
    monkeypatch.setattr(cpu, "DENSE", 0.4)
    monkeypatch.setattr(cpu, "_is_cheaper_in_frequencies", lambda *_: False)
    *_, there, back = forward_and_backward(layer, inputs, hard, learns_x)
    few = bool(layer.stride) and layer.weight[1] <= cpu.FEW_CHANNELS
    gathers = bool(layer.stride) and (
        forward == "plane_counts" or (forward == "add_rows" and not few)
    )
    if few and forward == "add_rows":
        forward = "add_runs"
    assert there.keys() == {"pack", forward, "_scan", "counts"} | (
        {"windows"} if gathers else set()
    )
    if backward == "weight_gradient":
        assert back.keys() == {"_adjoint", backward} | ({"input_gradient"} if learns_x else set())
    elif layer.stride and learns_x:
        assert back.keys() == {"_adjoint", "input_gradient", "windows", backward}
    else:
        assert back.keys() == {"_by_rows"}
        way = cpu.ONE_BY_ONE if backward == "add_rows_transposed" else cpu.BY_FOURS
        assert {way_of(arguments) for arguments in back["_by_rows"]} == {
            cpu.BY_RUNS if few else way
        }


def way_of(arguments) -> int:
    """How a weight gradient is added up; weights and the inputs' gradient follow."""
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
    ("density", "way", "dense"),
    [
        (0.15, cpu.ONE_BY_ONE, False),
        (0.16, cpu.BY_FOURS, False),
        (0.25, cpu.BY_FOURS, False),
        (0.26, cpu.BY_FOURS, True),
    ],
)
def test_densities_at_which_the_way_changes(density, way, dense):
    """As they are set; the bound itself still counts as below."""
    x, layer = torch.zeros(10, 10, 40), Layer((10, 10, 40), (6, 40))
    x.view(-1)[: round(density * x.numel())] = 1
    _, weight, state = layer.tensors(hard=False)
    with watched() as calls:
        layer.run(x, weight.requires_grad_(), state, False, True)[S].sum().backward()
    assert ("product" in calls) == dense
    assert way_of(calls["_by_rows"][0]) == way


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


# Images whose channels lie elsewhere in memory


@pytest.mark.parametrize("channels", [1, 2, 5, 40])
def test_images_are_read_in_either_order_of_memory(channels):
    """Those of the input begin with channels, those of a layer end with them: the same bits."""
    first = spikes(3, 4, channels, 7, 9, density=0.3)
    last = first.movedim(2, -1).contiguous()
    assert torch.equal(cpu.keep(first.movedim(2, -1), [0, 0]), cpu.keep(last, [0, 0]))
    assert torch.equal(cpu.flat(last.movedim(-1, 2)), first.flatten(2))
    assert torch.equal(cpu.flat(first), first.flatten(2))


# Memory that is used again

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
