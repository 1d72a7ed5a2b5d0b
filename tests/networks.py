"""Small networks of every kind, and ways to run and differentiate them, for laws they share."""

from __future__ import annotations

import torch

from bisnn import (
    SRM,
    BayesBiSNN,
    Conv2d,
    FixedSRM,
    Levels,
    Linear,
    Network,
    Recurrent,
    STBiSNN,
    map_weights,
)
from bisnn.weights import draw_members
from conftest import seeded

NEURON = SRM(tau_mem=5.0, tau_syn=3.0, tau_ref=2.0, threshold=0.05, slope=2.0)
FIXED = FixedSRM(**vars(NEURON))
EVEN = Levels(-3, -1, 1, 3)
KINDS = (
    *("dense", "deep", "conv", "conv stride", "pooled", "recurrent", "masked", "mixed"),
    *("skip", "skip conv", "skip mixed", "fixed"),
)
POSTERIORS = {  # alphabets with a posterior, on the layers of another kind
    "ternary": ("mixed", "ternary"),
    "ternary masked": ("masked", "ternary"),
    "levels": ("skip mixed", EVEN),
    "levels conv": ("pooled", Levels(0, 2, 12)),
    "levels fixed": ("fixed", EVEN),
}
EVERY = (*KINDS, *POSTERIORS)
FLOAT = tuple(kind for kind in KINDS if kind != "fixed")  # for laws of real numbers


def mask(n: int, n_in: int, seed: int, density: float = 0.5) -> torch.Tensor:
    m = torch.rand(n, n_in + n, generator=seeded(seed)) < density
    m[torch.arange(n), torch.randint(0, n_in, (n,), generator=seeded(seed + 1))] = (
        True  # nobody without parents
    )
    return m


def build(kind: str, seed: int = 0, **options) -> Network:
    options = {"neuron": NEURON, "readout": 3, "seed": seed, "dtype": torch.float64, **options}
    if kind in POSTERIORS:
        kind, weights = POSTERIORS[kind]
        options = {"weights": weights, "posterior": True, **options}
    if kind == "dense":
        return Network(Linear(6, 7), **options)
    if kind == "deep":
        return Network(Linear(6, 9), Linear(9, 8), Linear(8, 5), **options)
    if kind == "conv":
        return Network(Conv2d(2, 3, 3, padding=1), input_shape=(2, 5, 6), **options)
    if kind == "conv stride":
        return Network(
            Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(2, 0)), input_shape=(2, 6, 5), **options
        )
    if kind == "pooled":
        return Network(
            Conv2d(2, 3, 3, padding=2, pool=2),
            Conv2d(3, 4, 2, pool=2),
            input_shape=(2, 5, 6),
            **options,
        )
    if kind == "recurrent":
        return Network(Recurrent(6, 7), **options)
    if kind == "masked":
        return Network(Recurrent(6, 8, mask=mask(8, 6, seed), outputs=[7, 0, 3]), **options)
    if kind in ("mixed", "fixed"):
        options |= {"neuron": FIXED} if kind == "fixed" else {}
        layers = (Conv2d(2, 3, 3, pool=2), Recurrent(12, 6, mask=mask(6, 12, seed)), Linear(6, 5))
        return Network(*layers, input_shape=(2, 6, 6), **options)
    if kind == "skip":
        layers = (Linear(6, 9), Linear(15, 8, inputs=(0, "input")), Linear(17, 5, inputs=(1, 0)))
        return Network(*layers, **options)
    if kind == "skip conv":
        padded = {"padding": 1}
        layers = (
            Conv2d(2, 3, 3, **padded),
            Conv2d(5, 4, 3, **padded, inputs=("input", 0)),
            Conv2d(4, 2, 2),
        )
        return Network(*layers, input_shape=(2, 5, 6), **options)
    if kind == "skip mixed":
        layers = (
            Conv2d(2, 3, 3, pool=2),
            Recurrent(84, 6, inputs=(0, "input"), mask=mask(6, 84, seed, 0.2), outputs=[4, 1]),
            Linear(86, 5, inputs=("input", 1, 0)),
        )
        return Network(*layers, input_shape=(2, 6, 6), **options)
    raise AssertionError(kind)


def run(net, x, relaxed=False):
    """Weights and output at a realisation: hard, or real-valued in (-1, 1)."""
    params = [layer.weight for layer in net.layers]
    if relaxed:
        rule = BayesBiSNN(net.parameters(), lr=1.0, temperature=0.0)
        with rule.sampled():
            return [p.detach().clone() for p in params], net(x)
    with map_weights(net):
        return [p.detach().clone() for p in params], net(x)


def inputs_of(net, x, out):
    """What arrives at each layer, as numpy arrays; a recurrent layer's own spikes included."""
    left = [x, *out.spikes]
    for layer, u in zip(net.layers, out.potentials, strict=True):
        read = [left[n + 1] for n in layer.spec.inputs]
        a = torch.cat(read if isinstance(layer, Conv2d) else [z.flatten(2) for z in read], dim=2)
        if isinstance(layer, Recurrent):
            a = torch.cat([a, (u > layer.neuron.threshold).double()], dim=-1)
        yield a.detach().numpy()


def gradients(net, x, labels, loss, rule=None):
    """Gradients at the MAP weights, by way of ST-BiSNN, whose factor is 1."""
    rule = rule or STBiSNN(net.parameters(), lr=1.0)
    with rule.sampled():
        loss(net(x), labels).backward()
    return [p.grad.clone() for p in net.parameters()]


def drawn(net: Network, K: int, seed: int = 0) -> list[list[torch.Tensor]]:
    """K realisations of hard weights, drawn from the posterior: a tensor for each layer."""
    return draw_members([layer.weight for layer in net.layers], K, seed)
