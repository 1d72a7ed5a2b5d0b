"""Layers and networks refuse what has no meaning, with a message that says how to fix it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from bisnn import SRM, Conv2d, Linear, Network, Recurrent, map_weights, pad, sample_weights
from conftest import spikes
from networks import build

# Networks that cannot be built


def network(*layers, **options):
    return Network(*(layers or (Linear(3, 4),)), **{"readout": 2, **options})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0, 3), "n_in: must be a positive whole number; got 0"),
        (lambda: Linear(3, 2.5), "n_out: must be a positive whole number; got 2.5"),
        (
            lambda: Conv2d(1, 2, 3.0),
            "kernel_size: must be a whole number >= 1 or a pair of them; got 3.0; give e.g. 1",
        ),
        (lambda: Conv2d(1, 2, 0), "kernel_size: must be a whole number >= 1 or a pair"),
        (lambda: Conv2d(1, 2, 3, padding=-1), "padding: must be a whole number >= 0"),
        (lambda: Conv2d(1, 2, 3, stride=(1, 2, 3)), "stride: must be"),
        (lambda: Conv2d(1, 2, 3, pool=0), "pool: must be a positive whole number"),
        (
            lambda: Recurrent(2, 3, mask=torch.ones(3, 4, dtype=torch.bool)),
            r"mask: .* shape \(n, n_in \+ n\) = \(3, 5\); got .*\(3, 4\)",
        ),
        (lambda: Recurrent(2, 3, mask=torch.ones(3, 5)), "mask: must be a bool tensor"),
        (
            lambda: Recurrent(2, 2, mask=torch.tensor([[True] * 4, [False] * 4])),
            "mask: every neuron needs at least one parent; got none for neuron 1",
        ),
        (
            lambda: Recurrent(2, 3, outputs=[]),
            "outputs: must be distinct neuron indices from 0 to 2",
        ),
        (lambda: Recurrent(2, 3, outputs=[3]), "outputs: must be distinct"),
        (lambda: Recurrent(2, 3, outputs=[1.7]), "outputs: must be distinct"),
        (lambda: network(neuron="srm"), "neuron: must be a bisnn.SRM, .*; got 'srm'"),
        (lambda: network(input_shape=5), "input_shape: must be the sizes of the axes"),
        (
            lambda: pad([torch.zeros(3, 2), torch.zeros(3, 4)]),
            "recordings: must agree in all axes but the first",
        ),
        (lambda: Network(readout=2), "layers: must be one or more of"),
        (lambda: network(torch.nn.Linear(2, 3)), "layers: must be one or more of"),
        (
            lambda: network(Conv2d(2, 4, 3)),
            r"input_shape: needed because the first layer is a Conv2d, as \(2, H, W\)",
        ),
        (
            lambda: network(Conv2d(2, 4, 3), input_shape=(1, 8, 8)),
            r"input_shape: Conv2d with channels_in=2 takes \(2, H, W\); got \(1, 8, 8\)",
        ),
        (lambda: network(Conv2d(2, 4, 9), input_shape=(2, 8, 8)), "input_shape: too small"),
        (
            lambda: network(Linear(3, 4), Linear(5, 2)),
            r"n_in: must equal the size of what comes in, 4 .*got 5",
        ),
        (
            lambda: network(*[Linear(3, 3)] * 2),
            "layers: each layer object belongs to one network, once",
        ),
        (lambda: network(readout=0), "readout: must be a positive whole number; got 0"),
        (
            lambda: network(weights="trinary"),
            'weights: must be "binary", "ternary", "real", a list of levels .*; got \'trinary\'',
        ),
        (
            lambda: network(weights=[1, 1]),
            r"levels: must be two or more distinct integers; got \(1, 1\)",
        ),
        (lambda: network(posterior="yes"), "posterior: must be True or False"),
        (lambda: network(gradient="rtrl"), "gradient: must be one of local, bptt"),
        (lambda: network(readout_after="first"), "readout_after: must be one of every, last"),
        (
            lambda: network(Linear(3, 4), Linear(4, 4), readout_after="last"),
            "readout_after: local learning needs a readout after every layer",
        ),
        (
            lambda: network(dtype=torch.float16),
            "dtype: must be torch.float32 or torch.float64; got torch.float16",
        ),
        (lambda: network(init=-1.0), "init: must be a finite number >= 0; got -1.0"),
        (lambda: network(readout_gain=0.0), "readout_gain: must be a finite number > 0"),
        (lambda: network(seed="7"), "seed: must be a whole number"),
        (lambda: pad([]), "recordings: needs at least one"),
        (lambda: pad([torch.zeros(0, 3)]), "recordings: needs at least one, each with T >= 1"),
        (lambda: network().initial_state(0), "batch_size: must be a positive whole number"),
    ],
)
def test_bad_networks(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([Linear(6, 5), Linear(5, 4, inputs=(1,))], "must be layers before this one, number 1"),
        ([Linear(6, 5), Linear(5, 4, inputs=(2,))], "got 2; it may read \"input\" and 0 to 0"),
        ([Linear(6, 5, inputs=(0,))], "number 0; got 0; it may read \"input\", and cycles"),
        ([Linear(6, 5), Linear(5, 4, inputs=(-1,))], "got -1"),
        ([Linear(6, 5), Linear(5, 4, inputs=("x",))], "got 'x'"),
        ([Linear(6, 5), Linear(5, 4, inputs=(True,))], "got True"),
        ([Linear(6, 5), Linear(5, 4, inputs=(0, 0))], "a list of distinct layers; got (0, 0)"),
        ([Linear(6, 5), Linear(5, 4, inputs=())], "must be a list of distinct layers; got ()"),
        ([Linear(6, 5), Linear(5, 4, inputs="input")], "must be a list of distinct layers"),
        ([Linear(6, 5), Linear(5, 4, inputs=3)], "must be a list of distinct layers; got 3"),
        ([Linear(6, 5), Linear(5, 4, inputs=("input", 0))], "n_in: must equal the size"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(layers, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Network(*layers, readout=2)


def test_images_of_other_sizes_do_not_lie_side_by_side():
    layers = (Conv2d(2, 3, 3), Conv2d(5, 4, 3, inputs=("input", 0)))
    with pytest.raises(ValueError, match="must be images of one height and width"):
        Network(*layers, readout=2, input_shape=(2, 8, 8))


# Networks that cannot be run


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(5, 2, 7), r"x: must be a tensor \(T, B, 6\); got \(5, 2, 7\)"),
        (torch.zeros(5, 6), "x: must be a tensor"),
        (torch.zeros(6), "x: must be a tensor"),
        (torch.zeros(0, 2, 6), r"x: needs at least one time step and one recording.*\(0, 2, 6\)"),
        (torch.zeros(5, 0, 6), "x: needs at least one time step and one recording"),
        (
            torch.zeros(5, 2, 6, dtype=torch.float64),
            "x: must have the network's dtype torch.float32.*got torch.float64",
        ),
        (torch.zeros(5, 2, 6, dtype=torch.int64), "x: must have the network's dtype"),
        (np.zeros((5, 2, 6)), "x: must be a tensor.*ndarray"),
    ],
)
def test_bad_input(x, message):
    net = build("dense", dtype=torch.float32)
    with map_weights(net), pytest.raises(ValueError, match=message):
        net(x)


@pytest.mark.parametrize(
    "state",
    [
        lambda net: net.initial_state(3),
        lambda net: build("deep").initial_state(2),
        lambda net: [torch.zeros(2, 7)],
    ],
)
def test_a_state_of_another_batch_or_network(state):
    net = build("dense", dtype=torch.float32)
    with (
        map_weights(net),
        pytest.raises(ValueError, match="state: must come from this network and this batch of 2"),
    ):
        net(spikes(5, 2, 6), state(net))


def test_a_binary_network_outside_a_realisation():
    net = build("dense")
    x = spikes(4, 1, 6, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"rule.sampled\(\).*bisnn.predict\(net, x\)"):
        net(x)
    with sample_weights(net, 0):
        net(x)
        with pytest.raises(RuntimeError, match=r"state_dict\(\) inside a realisation"):
            net.state_dict()
        with pytest.raises(
            RuntimeError, match=r"load_state_dict\(\) inside a realisation would be undone"
        ):
            net.load_state_dict(build("dense").state_dict())
    with pytest.raises(RuntimeError, match="latents"):
        net(x)
    build("dense", weights="real")(x)


def test_half_precision_is_refused():
    net = build("dense", dtype=torch.float32).half()
    with (
        map_weights(net),
        pytest.raises(
            ValueError, match="net: must be float32 or float64, or its currents are not exact"
        ),
    ):
        net(spikes(5, 2, 6))


def test_a_layer_by_itself():
    with pytest.raises(RuntimeError, match="a layer has weights only as part of a network"):
        Linear(2, 3)(torch.zeros(4, 1, 2))


def test_loading_another_neuron_is_refused():
    with pytest.raises(
        ValueError,
        match=r"state_dict: layers.0.constants must be that of this network's neuron; got 0.904",
    ):
        build("dense", neuron=SRM(tau_mem=20)).load_state_dict(
            build("dense", neuron=SRM()).state_dict()
        )
