"""A layer as one operation: its bits on every kernel, and what PyTorch sees of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from bisnn import Conv2d, Network, kernels, map_weights
from bisnn.kernels import cpu
from bisnn.kernels.layer import srm_layer, srm_layer_backward
from conftest import KERNELS, constants_of, device_of, seeded, spikes, threads
from single_layers import ALL, CONV, DENSE, LEVELS, NEURON, POOLED, SEEDS, layers

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
        ours = cpu.scan(given_to, *rest, given_to if reuse else None)
    for a, b in zip(ours, expected, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(given_to, ours[1] if reuse else I)


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
