"""Gradients of a layer as one operation are those of the equations, on every kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

import reference
from bisnn import SRM, kernels
from conftest import KERNELS, device_of, seeded, threads
from single_layers import ALL, DENSE, FIVE, NEURON, POOLED, SEEDS, S, U, Y, groups_of, layers


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
