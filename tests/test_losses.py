"""Losses against loops; bad targets."""

from __future__ import annotations

import math

import pytest
import torch

from bisnn import (
    SRM,
    Linear,
    Network,
    Output,
    Recurrent,
    STBiSNN,
    activity_loss,
    global_loss,
    local_loss,
    map_weights,
    spike_loss,
)
from conftest import seeded, spikes
from networks import NEURON, build

T, B, C = 7, 4, 3
Y = torch.randn(T, B, C, generator=seeded(0), dtype=torch.float64)
OUT = Output((spikes(T, B, 5, dtype=torch.float64),), (torch.zeros(T, B, 5),), (Y,), None)
LABELS = torch.tensor([0, 2, 1, 1])
NET = Network(Linear(3, 5), readout=3)
REAL = torch.randn(B, C, generator=seeded(1), dtype=torch.float64) * 2
MASK = torch.arange(T)[:, None] < torch.tensor([7, 5, 4, 6])


def by_loops(per_step, over_time, burn_in, mask):
    total = 0.0
    for b in range(B):
        steps = [t for t in range(burn_in, T) if mask is None or mask[t, b]]
        value = sum(per_step(t, b) for t in steps)
        total += value / len(steps) if over_time == "mean" else value
    return total / B


def logistic(t, b, label):
    y = Y[t, b].tolist()
    return math.log(sum(math.exp(v) for v in y)) - y[label]


def smooth_l1(d):
    return 0.5 * d * d if abs(d) < 1 else abs(d) - 0.5


@pytest.mark.parametrize("over_time", ["sum", "mean"])
@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_losses_are_the_sums_over_time(over_time, burn_in, mask):
    options = {"over_time": over_time, "burn_in": burn_in, "mask": mask}
    moving = torch.randint(0, C, (T, B), generator=seeded(2))
    targets = REAL.expand(T, B, C) + torch.arange(T)[:, None, None]
    cases = [
        (local_loss(OUT, LABELS, **options), lambda t, b: logistic(t, b, LABELS[b])),
        (local_loss(OUT, moving, **options), lambda t, b: logistic(t, b, moving[t, b])),
        (
            local_loss(OUT, REAL, "squared", **options),
            lambda t, b: float(((Y[t, b] - REAL[b]) ** 2).sum()),
        ),
        (
            local_loss(OUT, targets, "squared", **options),
            lambda t, b: float(((Y[t, b] - targets[t, b]) ** 2).sum()),
        ),
        (
            local_loss(OUT, REAL, "smooth_l1", **options),
            lambda t, b: sum(smooth_l1(d) for d in (Y[t, b] - REAL[b]).tolist()),
        ),
        (
            spike_loss(OUT, 1 - OUT.spikes[0], **options),
            lambda t, b: 5.0,  # every neuron is wrong at every step
        ),
    ]
    for ours, per_step in cases:
        assert float(ours) == pytest.approx(by_loops(per_step, over_time, burn_in, mask), rel=1e-9)


def test_spike_loss_teaches_a_graph_its_target_trains():
    """A masked recurrent network learns to give the spike trains of a teacher of the same shape."""
    make = lambda seed: Network(  # noqa: E731
        Recurrent(8, 12, outputs=[0, 1, 2]), readout=None, neuron=NEURON, gradient="bptt", seed=seed
    )
    teacher, student = make(1), make(2)
    x = spikes(40, 8, 8, seed=3)
    with torch.no_grad(), map_weights(teacher):
        target = teacher(x).spikes[-1]
    assert target.mean() > 0.05
    rule = STBiSNN(student.parameters(), lr=0.2)
    losses = []
    for _ in range(120):
        with rule.sampled():
            loss = spike_loss(student(x), target)
            loss.backward()
        rule.step()
        losses.append(loss.item())
    assert min(losses) < 0.6 * losses[0]


@pytest.mark.parametrize("kind", ["dense", "pooled", "masked"])
def test_activity_loss_by_loops(kind):
    """All neurons count: those behind a pooling and those that are no outputs too."""
    net = build(kind, 2)
    x = spikes(30, 4, *net.input_shape, seed=1, dtype=torch.float64)
    valid = torch.arange(30)[:, None] < torch.tensor([30, 20, 25, 9])
    for mask in (None, valid):
        rule = STBiSNN(net.parameters(), lr=1.0)
        with rule.sampled():
            out = net(x)
            loss = activity_loss(net, out, 0.1, 0.2, mask=mask)
            loss.backward()
        expected = 0.0
        for u in out.potentials:
            fired = (u > NEURON.threshold).double().flatten(2)
            chosen = fired[valid] if mask is not None else fired.flatten(0, 1)
            parts = [
                max(0.1 - rate, 0) ** 2 + max(rate - 0.2, 0) ** 2
                for rate in chosen.mean(0).tolist()
            ]
            expected += sum(parts) / len(parts)
        assert loss.item() == pytest.approx(expected)
        assert all(p.grad.abs().max() > 0 for p in net.parameters())


def test_activity_loss_wakes_a_silent_network():
    net = Network(Linear(6, 20), readout=2, neuron=SRM(threshold=0.8, slope=2.0))
    x = spikes(40, 4, 6, density=0.3)
    rule = STBiSNN(net.parameters(), lr=200.0)
    silent = []
    for _ in range(60):
        with rule.sampled():
            out = net(x)
            activity_loss(net, out, low=0.02).backward()
        rule.step()
        silent.append((out.spikes[0].mean((0, 1)) == 0).sum().item())
    assert silent[-1] < 0.5 * silent[0]


def test_what_does_not_count_may_be_anything():
    """NaN targets and labels like -100 under the mask leave no trace."""
    real, labels = REAL.expand(T, B, C).clone(), LABELS.expand(T, B).clone()
    good = local_loss(OUT, real, "squared", mask=MASK), local_loss(OUT, labels, mask=MASK)
    real[~MASK], labels[~MASK] = math.nan, -100
    assert torch.equal(local_loss(OUT, real, "squared", mask=MASK), good[0])
    assert torch.equal(local_loss(OUT, labels, mask=MASK), good[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: local_loss(OUT, LABELS, "hinge"),
            "loss: must be one of logistic, squared, smooth_l1; got 'hinge'",
        ),
        (lambda: local_loss(OUT, LABELS, over_time="max"), "over_time: must be one of sum, mean"),
        (
            lambda: local_loss(OUT, LABELS, burn_in=T),
            "burn_in: must be a whole number from 0 to T - 1 = 6, .*got 7",
        ),
        (lambda: local_loss(OUT, LABELS, burn_in=-1), "burn_in: must be"),
        (lambda: local_loss(OUT, LABELS, burn_in=1.5), "burn_in: must be a whole number"),
        (
            lambda: local_loss(OUT, torch.tensor([0, 1, 2, 3])),
            r"target: labels must lie in 0..2 for 3 outputs; got 3",
        ),
        (
            lambda: local_loss(OUT, torch.tensor([0, -1, 2, 1])),
            r"target: labels must lie in 0..2 for 3 outputs; got -1",
        ),
        (lambda: local_loss(OUT, LABELS[:2]), r"target: labels must have shape \(B,\) = \(4,\)"),
        (
            lambda: local_loss(OUT, LABELS.float()),
            "target: the logistic loss takes class labels as int64; got torch.float32",
        ),
        (
            lambda: local_loss(OUT, LABELS, "squared"),
            "target: the squared loss takes real values; got torch.int64",
        ),
        (
            lambda: local_loss(OUT, REAL[:, :2], "squared"),
            r"target: must have shape \(B, C\) = \(4, 3\)",
        ),
        (
            lambda: local_loss(OUT, LABELS, mask=MASK[:3]),
            r"mask: must be a bool tensor \(T, B\) = \(7, 4\)",
        ),
        (lambda: local_loss(OUT, LABELS, mask=MASK.float()), "mask: must be a bool tensor"),
        (
            lambda: local_loss(OUT._replace(readouts=(None,)), LABELS),
            "output: the network has no readout",
        ),
        (
            lambda: global_loss(OUT._replace(readouts=(None,)), LABELS),
            "output: the network has no readout",
        ),
        (
            lambda: spike_loss(OUT, torch.zeros(T, B, 4)),
            r"target: must have the shape of the last layer's spikes, \(7, 4, 5\)",
        ),
        (lambda: activity_loss(NET, OUT, low=-0.1), "low: must be a finite number >= 0"),
        (lambda: activity_loss(NET, OUT, low=0.5, high=0.4), "high: must lie above low=0.5"),
        (lambda: activity_loss(NET, OUT, mask=~MASK & MASK), "mask: must be True somewhere"),
        (
            lambda: local_loss(OUT, LABELS.numpy()),
            "target: must be a torch.Tensor; got ndarray; use torch.as_tensor",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
