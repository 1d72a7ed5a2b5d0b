"""Training in chunks of time: the gradient of the whole, the memory of a chunk."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import bisnn
import networks
import runs
from bisnn import Linear, Network, STBiSNN, chunked_backward, local_loss, map_weights
from conftest import seeded, spikes

LABELS = torch.tensor([0, 2, 1, 1])


def gradients(kind, backward, gradient="local"):
    net = networks.build(kind, gradient=gradient)
    x = spikes(17, 4, *net.input_shape, dtype=torch.float64)
    with map_weights(net):
        loss = backward(net, x)
    return float(loss), [p.grad for p in net.parameters()]


@pytest.mark.parametrize("kind", networks.EVERY)
@pytest.mark.parametrize("chunk", [1, 5, 17, 40])
@pytest.mark.parametrize(
    "settings", [{}, {"over_time": "mean", "burn_in": 7}, {"burn_in": 3, "mask": True}]
)
def test_chunks_give_the_gradient_of_the_whole(kind, chunk, settings):
    settings = dict(settings)
    if settings.pop("mask", False):
        settings["mask"] = torch.arange(17)[:, None] < torch.tensor([17, 9, 2, 12])
        settings["over_time"] = "mean"

    def whole(net, x):
        loss = local_loss(net(x), LABELS, **settings)
        loss.backward()
        return loss.detach()

    loss, expected = gradients(kind, whole)
    ours, grads = gradients(
        kind, lambda net, x: chunked_backward(net, x, LABELS, chunk, **settings)
    )
    assert ours == pytest.approx(loss, rel=1e-12)
    assert any(g.abs().max() > 0 for g in expected)
    for g, e in zip(grads, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-9, atol=1e-12)


def test_a_target_a_time_step_and_a_factor():
    labels = torch.randint(3, (17, 4), generator=seeded(1))

    def whole(net, x):
        loss = local_loss(net(x), labels)
        (0.25 * loss).backward()
        return loss.detach()

    loss, expected = gradients("deep", whole)
    ours, grads = gradients("deep", lambda net, x: chunked_backward(net, x, labels, 6, factor=0.25))
    assert ours == pytest.approx(loss)
    for g, e in zip(grads, expected, strict=True):
        torch.testing.assert_close(g, e)


def test_with_bptt_errors_end_at_the_borders():
    """Truncated BPTT: one chunk is the whole, several are not."""

    def run(chunk):
        return gradients("deep", lambda net, x: chunked_backward(net, x, LABELS, chunk), "bptt")[1]

    whole = gradients(
        "deep", lambda net, x: (local_loss(net(x), LABELS).backward(), torch.tensor(0.0))[1], "bptt"
    )[1]
    for g, e in zip(run(17), whole, strict=True):
        torch.testing.assert_close(g, e)
    assert any(not torch.allclose(g, e) for g, e in zip(run(4), whole, strict=True))


def test_a_run_in_chunks_is_the_run(tmp_path):
    """From the config: the same losses, scores and rates, and the same latents to rounding."""
    rows, latents = [], []
    for chunk in (0, 7):
        config = runs.small(**{"train.chunk": chunk, "train.dtype": "float64"})
        model = bisnn.load(bisnn.train(config, tmp_path / str(chunk), show=False))
        rows.append(
            [
                json.loads(line)
                for line in (tmp_path / str(chunk) / "metrics.jsonl").read_text().splitlines()
            ]
        )
        latents.append([p.detach() for p in model.net.parameters()])
    for a, b in zip(*rows, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-9)
        assert a["rates"] == pytest.approx(b["rates"], rel=1e-9)
        assert a["accuracy"] == b["accuracy"]
    for a, b in zip(*latents, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    with pytest.raises(ValueError, match=r"train\.activity looks at whole recordings"):
        runs.small(**{"train.chunk": 7, "train.activity": 1.0})


def test_each_chunk_is_shown_once():
    net, lengths = networks.build("deep"), []
    with map_weights(net):
        x = spikes(17, 4, 6, dtype=torch.float64)
        chunked_backward(
            net, x, LABELS, 5, burn_in=6, each=lambda output: lengths.append(len(output.spikes[0]))
        )
    assert lengths == [5, 5, 5, 2]


MEMORY = """
import sys, torch, bisnn
from pathlib import Path
torch.set_num_threads(1)
T = int(sys.argv[1])
net = bisnn.Network(bisnn.Linear(20, 256), bisnn.Linear(256, 256), readout=2)
rule = bisnn.STBiSNN(net.parameters(), lr=0.01)
y = torch.zeros(16, dtype=torch.int64)
def iteration(T):
    x = torch.zeros(T, 16, 20, dtype=torch.bool)
    x[::7, :, ::3] = True
    with rule.sampled():
        bisnn.chunked_backward(net, x, y, chunk=100)
    rule.step()
def size(key):
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(key)).split()[1]) / 1024
iteration(300)
before = size("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
iteration(T)
print(size("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's size from /proc")
def test_memory_does_not_grow_with_time():
    grown = float(
        subprocess.run(
            [sys.executable, "-c", MEMORY, "3000"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert grown < 8  # MiB; in one piece, 3000 steps take 90 MiB a tensor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk": 0}, "chunk: must be"),
        ({"loss": "hinge"}, "loss: must be"),
        ({"over_time": "max"}, "over_time: must be"),
        ({"burn_in": 17}, "burn_in: must be"),
        ({"target": LABELS[:2]}, r"target: labels must have shape \(B,\) = \(4,\)"),
        ({"x": torch.zeros(17, 4, 5)}, r"x: must be a tensor"),
        ({"net": torch.nn.Linear(2, 2)}, "net: must be a bisnn.Network"),
    ],
)
def test_bad_input(change, message):
    net = Network(Linear(6, 4), readout=3)
    arguments = {"net": net, "x": spikes(17, 4, 6), "target": LABELS, "chunk": 5, **change}
    with pytest.raises(ValueError, match=message), STBiSNN(net.parameters(), lr=0.1).sampled():
        chunked_backward(**arguments)
