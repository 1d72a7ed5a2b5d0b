"""Members side by side on a GPU: the bits of one member after the other.

The kernels run on a GPU, or with TRITON_INTERPRET=1 by Triton's interpreter on CPU tensors.
"""

import contextlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bisnn import Conv2d, Levels, Linear, Network, ensemble, kernels, predict, weights
from bisnn.bits.philox import Purpose
from bisnn.realisation import hard
from conftest import seeded, spikes
from networks import FIXED, NEURON, build

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_kernels = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA, or Triton's interpreter"
)
needs_cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs CUDA")
OPTIONS = {
    "binary": {},
    "ternary": {"weights": "ternary", "posterior": True},
    "fixed": {"neuron": FIXED, "weights": Levels(-3, -1, 1, 3), "posterior": True},
}


def chains(kind: str, **options) -> Network:
    """Networks whose layers read one another in turn, of random posteriors."""
    options = {"neuron": NEURON, "readout": 3, "init": 0.1, "seed": 1, **options}
    if kind == "dense":
        return Network(Linear(6, 9), Linear(9, 17), Linear(17, 20), **options)
    if kind == "pooled":
        layers = Conv2d(2, 3, 3, padding=2, pool=2), Conv2d(3, 16, 2, pool=2)
        return Network(*layers, input_shape=(2, 9, 10), **options)
    stride = Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(2, 0))
    return Network(stride, Linear(64, 20), input_shape=(2, 6, 5), **options)


@pytest.fixture
def device(monkeypatch) -> str:
    """Where the Triton kernels run."""
    if not INTERPRETED:
        return "cuda"
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    return "cpu"


def drawn_for(net: Network, K: int) -> list[torch.Tensor]:
    return weights.draw_weights([layer.weight for layer in net.layers], K, seed=3)


@torch.no_grad()
def one_by_one(net: Network, x: torch.Tensor, drawn: list[torch.Tensor]) -> torch.Tensor:
    members = zip(*drawn, strict=True)
    return torch.stack([net(x, weights=[hard(w.to(x)) for w in m]).logits for m in members])


@pytest.mark.cuda
@needs_kernels
@pytest.mark.parametrize(("B", "K"), [(1, 1), (1, 10), (3, 1), (3, 10)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["dense", "pooled", "mixed"])
def test_cuda_members_side_by_side_are_members_one_by_one(kind, options, B, K, device):
    net = chains(kind, **options)
    x, drawn = spikes(10, B, *net.input_shape, density=0.5), drawn_for(net, K)
    here = one_by_one(net, x, drawn)  # by the CPU's kernels
    assert here.abs().sum() > 0
    net, x, drawn = net.to(device), x.to(device), [w.to(device) for w in drawn]
    with kernels.forced("cuda"):
        two = one_by_one(net, x, [w[:2] for w in drawn])
        assert torch.equal(two.cpu(), here[:2])
        assert torch.equal(ensemble.logits(net, x, drawn).cpu(), here)


@pytest.mark.cuda
@needs_kernels
@pytest.mark.parametrize("kind", ["dense", "pooled", "mixed"])
def test_cuda_groups_of_members_change_nothing(kind, device, monkeypatch):
    net = chains(kind).to(device)
    x, drawn = spikes(12, 2, *net.input_shape, density=0.4).to(device), drawn_for(net, 5)
    with kernels.forced("cuda"):
        whole = ensemble.logits(net, x, drawn)
        for most in (1, 3 * 24 * max(map(ensemble._bytes, net.spec))):  # one at a time, or three
            monkeypatch.setattr(ensemble, "GROUP_BYTES", most)
            assert torch.equal(ensemble.logits(net, x, drawn), whole)


@pytest.mark.cuda
@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("seed", "stream", "first"), [(0, 0, 0), (2**32 - 1, 3, 5), (7, 1, 1)])
def test_cuda_draws_the_members_of_the_cpu(dtype, seed, stream, first, device):
    from bisnn.kernels import cuda_draws

    far = torch.tensor([0.0, -0.0, 1e-30, -1e-9, 354.8, -354.8, 1e3, -1e3, -torch.inf])
    w_r = torch.cat([torch.randn(3003, generator=seeded(1)), far]).to(dtype).reshape(-1, 4)
    ours = weights.draw_weights([w_r] * (stream + 1), 3, seed, first)[stream]
    drawn = cuda_draws.signs(w_r.to(device), 3, seed, Purpose.MEMBERS, stream, first)
    assert torch.equal(drawn.cpu(), ours)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None or INTERPRETED, reason="needs Triton")
def test_the_kernels_agree_by_interpretation():
    """Also without a GPU."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_only_chains_run_side_by_side():
    assert all(ensemble.is_chain(chains(kind)) for kind in ("dense", "pooled", "mixed"))
    others = ("recurrent", "masked", "mixed", "skip", "skip conv")
    assert not any(ensemble.is_chain(build(kind)) for kind in others)


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("kind", ["deep", "pooled", "recurrent", "skip", "fixed", "ternary"])
@pytest.mark.parametrize("samples", [None, 3])
def test_cuda_predicts_as_the_cpu(kind, samples):
    net = build(kind, init=0.1, dtype=torch.float32)
    x = spikes(15, 2, *net.input_shape)
    here = predict(net, x, samples, task="regression", over_time="step").members
    there = predict(net.cuda(), x.cuda(), samples, task="regression", over_time="step").members
    assert torch.equal(there.cpu(), here)


@pytest.mark.cuda
@needs_cuda
def test_cuda_never_waits_where_the_type_says_spikes():
    net = chains("pooled").cuda()
    x = spikes(12, 2, *net.input_shape).bool().cuda()
    expected = predict(net, x, 4).members  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = predict(net, x, 4).members
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, expected)


@pytest.mark.cuda
@needs_cuda
def test_cuda_readouts_stay_exact_under_autocast():
    net = chains("dense").cuda()
    x = spikes(12, 2, 6).cuda()
    plain = predict(net, x, 4, task="regression").members
    with torch.autocast("cuda"):
        assert torch.equal(predict(net, x, 4, task="regression").members, plain)
