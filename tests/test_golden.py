"""Spikes, logits, members and 20 steps of every rule, as they were when `golden.json` was written.

Spikes and logits are compared to the bit, trained latents to rounding. After a change that is meant
to give other numbers, `python tests/test_golden.py` writes the file anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bisnn import local_loss, map_weights, predict
from bisnn.weights import draw_members
from conftest import spikes
from networks import build
from rules import RULES

FILE = Path(__file__).parent / "golden.json"
KINDS = ("dense", "deep", "conv", "conv stride", "pooled", "recurrent", "masked", "mixed")
STEPS, T, B = 20, 15, 4


def digest(*tensors: torch.Tensor) -> str:
    """Of values and shapes, in row order."""
    sums = hashlib.blake2b(digest_size=16)
    for x in tensors:
        sums.update(repr(tuple(x.shape)).encode() + x.detach().contiguous().numpy().tobytes())
    return sums.hexdigest()


def inference(kind: str) -> dict[str, str]:
    """Digests of what a network of this kind gives for its most probable weights and members."""
    net = build(kind, dtype=torch.float32, init=0.3)
    x = spikes(T, B, *net.input_shape)
    with map_weights(net):
        out = net(x)
    members = draw_members([layer.weight.detach() for layer in net.layers], 3, seed=7)
    return {
        "spikes": digest(*(s.to(torch.uint8) for s in out.spikes)),
        "potentials": digest(*out.potentials),
        "logits": digest(*out.readouts),
        "members": digest(*(w > 0 for member in members for w in member)),
        "ensemble": digest((predict(net, x, samples=3, seed=7).members * 2**20).round().int()),
    }


def trained(rule: str, kind: str, dtype: torch.dtype) -> list[float]:
    """The latents after some steps of a rule."""
    net = build(kind, dtype=dtype)
    optimizer = RULES[rule](net.parameters())
    for step in range(STEPS):
        x, y = spikes(T, B, *net.input_shape, seed=step, dtype=dtype), torch.arange(B) % 3
        with optimizer.sampled():
            local_loss(net(x), y).backward()
        optimizer.step()
    return [v for p in net.parameters() for v in p.detach().double().flatten().tolist()]


TRAINED = [
    *((rule, "deep", "float64") for rule in RULES),
    *((rule, kind, "float64") for rule in ("st", "bayes") for kind in ("pooled", "masked")),
    *((rule, "deep", "float32") for rule in ("st", "bayes")),
]


@pytest.fixture(scope="module")
def golden():
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_of_an_inference_are_those_of_the_file(golden, kind):
    assert inference(kind) == golden["inference"][kind]


@pytest.mark.parametrize(("rule", "kind", "dtype"), TRAINED)
def test_training_goes_where_it_went(golden, rule, kind, dtype):
    wanted = golden["trained"][f"{rule}, {kind}, {dtype}"]
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    got = trained(rule, kind, getattr(torch, dtype))
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


if __name__ == "__main__":
    runs = {", ".join(t): trained(t[0], t[1], getattr(torch, t[2])) for t in TRAINED}
    content = {"inference": {kind: inference(kind) for kind in KINDS}, "trained": runs}
    rounded = json.dumps(
        json.loads(json.dumps(content), parse_float=lambda v: float(f"{float(v):.12g}"))
    )
    FILE.write_text(rounded.replace('"trained"', '\n"trained"').replace("], ", "],\n") + "\n")
