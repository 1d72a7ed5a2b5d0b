"""The energy ledger against counts in nested loops, closed forms and single changed prices."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from bisnn import Conv2d, Linear, Network, Recurrent, weights
from bisnn.realisation import hard
from bisnn.shipping.energy import ANN, HYPOTHETICAL, Costs, Ledger, ledger, reach, si, work
from conftest import seeded
from networks import KINDS, build

T, B = 5, 2
COUNTS = (
    "synaptic_operations",
    "neuron_updates",
    "weight_bytes",
    "state_bytes",
    "spike_bytes",
    "joules",
)


def spikes(net: Network, rate: float = 0.4) -> torch.Tensor:
    return (torch.rand(T, B, *net.input_shape, generator=seeded(3)) < rate).to(net.dtype)


def synapses(layer) -> list[tuple[int, int]]:
    """Every synapse as (input, neuron), both flat: the definition of each layer in loops."""
    if isinstance(layer, Linear):
        return list(product(range(layer.n_in), range(layer.n_out)))
    if isinstance(layer, Recurrent):
        return [
            (j, i)
            for i in range(layer.n)
            for j in range(layer.n_in + layer.n)
            if layer.mask is None or layer.mask[i, j]
        ]
    (_, H, W), (C, H_out, W_out), found = layer.input_shape, layer.current_shape, []
    for c, y, x, c_in in product(range(C), range(H_out), range(W_out), range(layer.channels_in)):
        for dy, dx in product(*map(range, layer.kernel_size)):
            row, column = (
                y * layer.stride[0] + dy - layer.padding[0],
                x * layer.stride[1] + dx - layer.padding[1],
            )
            if 0 <= row < H and 0 <= column < W:
                found.append((c_in * H * W + row * W + column, c * H_out * W_out + y * W_out + x))
    return found


def counted(net: Network, x: torch.Tensor, realised: list[torch.Tensor]) -> list[int]:
    """Synaptic operations of each layer and of the readout over all recordings, one by one."""
    out, totals = net(x, weights=realised), []
    for i, (layer, u) in enumerate(zip(net.layers, out.potentials, strict=True)):
        s = net.read(i, x, out.spikes).flatten(2)
        if isinstance(layer, Recurrent):
            s = torch.cat([s, (u > layer.neuron.threshold).to(s)], -1)
        sources = [j for j, _ in synapses(layer)]
        totals.append(sum(row[j] == 1 for row in s.flatten(0, 1).tolist() for j in sources))
    for readout, s in zip(net.readouts[-1:], out.spikes[-1:], strict=True):
        rows, (classes, n) = s.flatten(2).flatten(0, 1).tolist(), readout.V.shape
        totals.append(
            sum(row[j] == 1 for row in rows for _, j in product(range(classes), range(n)))
        )
    return totals


@pytest.mark.parametrize("kind", KINDS)
def test_every_synapse_of_every_kind(kind):
    net = build(kind)
    x, realised = spikes(net), [weights.sign(p.detach()) for p in net.parameters()]
    rows, expected = ledger(net, x, {"MAP": None}).rows, counted(net, x, realised)
    assert all(count > 0 for count in expected)
    for row in (rows["MAP"], rows[HYPOTHETICAL]):
        assert [layer.synaptic_operations for layer in row.layers] == [
            count / B for count in expected
        ]
    passes = [layer.synaptic_operations for layer in rows[ANN].layers]
    assert passes == [*(len(synapses(layer)) for layer in net.layers), net.readouts[-1].V.numel()]
    for layer, line, real in zip(
        net.layers, rows["MAP"].layers, rows[HYPOTHETICAL].layers, strict=False
    ):
        neurons = 1 + max(i for _, i in synapses(layer))
        assert line.weight_bits == layer.weight.numel()
        assert real.weight_bits == 32 * layer.weight.numel()
        assert line.neuron_updates == T * neurons
        assert line.state_bytes == T * neurons * 3 * 2 * 4
        assert (line.weight_bytes, real.weight_bytes) == tuple(
            line.synaptic_operations * size for size in (1 / 8, 4)
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [None, 3])
def test_stopped_early_is_each_recording_cut_short(kind, members):
    net = build(kind)
    x, until = spikes(net), torch.tensor([[2, 5], [2, 4], [1, 3]][: members or 1])
    rows = ledger(net, x, {"a": members}, early={"a": until}).rows
    drawn = [[weights.sign(p.detach()) for p in net.parameters()]]
    if members:
        drawn = [
            [w.to(x) for w in member] for member in weights.draw_members([*net.parameters()], 3, 0)
        ]
    expected = 0
    for k, b in product(range(len(drawn)), range(B)):
        realised = [hard(w) for w in drawn[k]]
        expected = expected + np.array(counted(net, x[: until[k, b], b : b + 1], realised))
    found = [layer.synaptic_operations for layer in rows["a, stopped early"].layers]
    assert found == pytest.approx((expected / B).tolist())
    whole, part = rows["a"], rows["a, stopped early"]
    share = float(until.double().mean()) / T
    assert part.neuron_updates == pytest.approx(share * whole.neuron_updates)
    assert part.weight_bits == whole.weight_bits
    assert part.joules < whole.joules
    everything = ledger(net, x, {"a": members}, early={"a": torch.full_like(until, T)}).rows
    assert everything["a, stopped early"].joules == pytest.approx(whole.joules)


@given(data=st.data())
def test_reach_of_a_pixel(data):
    """It is the gradient of a convolution with ones."""
    draw = lambda low, high: data.draw(st.tuples(st.integers(low, high), st.integers(low, high)))  # noqa: E731
    (channels, size), kernel, stride, padding = (
        (draw(1, 3), draw(1, 9)),
        draw(1, 4),
        draw(1, 4),
        draw(0, 4),
    )
    size = tuple(max(n, k - 2 * p) for n, k, p in zip(size, kernel, padding, strict=True))
    layer = Conv2d(*channels, kernel, stride=stride, padding=padding)
    Network(layer, readout=None, input_shape=(channels[0], *size))
    image = torch.zeros(1, channels[0], *size, requires_grad=True)
    F.conv2d(image, torch.ones(layer.weight.shape), None, stride, padding).sum().backward()
    assert reach(layer.spec).tolist() == image.grad.flatten().int().tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_silence_takes_no_synaptic_operations(kind):
    net = build(kind)
    row = ledger(net, spikes(net, rate=0), {"MAP": None}).rows["MAP"]
    assert (row.synaptic_operations, row.weight_bytes, row.synapse_joules) == (0, 0, 0)
    assert row.neuron_joules > 0  # neurons are updated all the same


def test_closed_form_of_a_dense_network():
    """20 inputs that fire at all 10 time steps, 64 neurons, a readout of 2."""
    net = Network(Linear(20, 64), readout=2, weights="real")
    x, costs = torch.ones(10, 3, 20), Costs()
    rows = ledger(net, x, {"real weights": None}).rows
    assert list(rows) == ["real weights", ANN]
    fired = float(net(x).spikes[0].detach().sum()) / 3
    hidden, readout = rows["real weights"].layers
    assert (hidden.synaptic_operations, readout.synaptic_operations) == (
        10 * 20 * 64,
        2 * fired,
    )
    assert (hidden.spike_bytes, readout.spike_bytes) == (10 * (20 + 64) / 8, 10 * 64 / 8)
    # The readout is +-1
    assert (hidden.weight_bits, readout.weight_bits) == (32 * 20 * 64, 2 * 64)
    bytes_ = 12800 * 4 + 640 * 24 + 105 + 2 * fired / 8 + 80
    adding = 12800 * 0.9 + 2 * fired * 0.1 + 640 * (4 * 3.7 + 6 * 0.9)
    assert rows["real weights"].memory == rows[ANN].memory == "sram_8k"  # 5,120 bytes and a little
    assert rows["real weights"].joules == pytest.approx(
        1e-12 * (adding + bytes_ / 8 * costs.sram_8k), rel=1e-12
    )
    macs, values = 20 * 64 + 64 * 2, 20 + 64 + 64
    energy = macs * (3.7 + 0.9) + 64 * 0.9 + (macs + values) * 4 / 8 * costs.sram_8k
    assert rows[ANN].joules == pytest.approx(1e-12 * energy, rel=1e-12)
    assert rows["real weights"].ratio == pytest.approx(
        rows["real weights"].joules / rows[ANN].joules
    )


def test_an_ensemble_has_its_members_spikes_and_reads_its_input_once():
    net = build("deep", init=0.3)
    x, drawn = spikes(net), weights.draw_members([p.detach() for p in net.parameters()], 3, seed=7)
    members = [[w.to(net.dtype) for w in member] for member in drawn]
    row = ledger(net, x, {"three": 3}, seed=7).rows["three"]
    expected = [
        sum(counts) / B
        for counts in zip(*(counted(net, x, member) for member in members), strict=True)
    ]
    assert [layer.synaptic_operations for layer in row.layers] == expected
    assert len({tuple(counted(net, x, member)) for member in members}) == 3  # they differ
    assert row.layers[0].spike_bytes == T * (6 + 3 * 9) / 8
    assert row.layers[1].spike_bytes == T * 3 * (9 + 8) / 8


def test_certain_members_are_the_map_network_again():
    net = build("pooled", init=30.0)
    rows = ledger(net, spikes(net), {"MAP": None, "four": 4}).rows
    shared = 3 * T * 2 * 5 * 6 / 8  # bytes of the input that three members need not read
    for name in COUNTS[:-1]:
        assert getattr(rows["four"], name) == pytest.approx(
            4 * getattr(rows["MAP"], name) - shared * (name == "spike_bytes")
        ), name
    assert rows["four"].weight_bits == 4 * rows["MAP"].weight_bits
    assert rows["four"].joules == pytest.approx(
        4 * rows["MAP"].joules - 1e-12 * shared / 8 * Costs().sram_8k
    )


@pytest.mark.parametrize("kind", ["mixed", "masked"])
def test_sums_and_json(kind):
    net = build(kind)
    result = ledger(net, spikes(net), {"MAP": None, "two": 2})
    again = TypeAdapter(Ledger).validate_json(json.dumps(asdict(result)))
    assert again == result
    assert result.costs == Costs()
    for row in result.rows.values():
        assert all(
            getattr(row, name) == pytest.approx(sum(getattr(layer, name) for layer in row.layers))
            for name in (*COUNTS, "weight_bits")
        )
        assert row.bytes == pytest.approx(row.weight_bytes + row.state_bytes + row.spike_bytes)
        assert row.joules == pytest.approx(
            row.synapse_joules + row.neuron_joules + row.memory_joules
        )


@pytest.mark.parametrize(
    ("inputs", "neurons", "memories"),  # full precision, MAP, ANN
    [
        (
            3997,
            16,
            ("sram_1m", "sram_8k", "sram_1m"),
        ),  # 7,994 bytes of weights, 192 of state, 4 of readout
        (4000, 16, ("sram_1m", "sram_32k", "sram_1m")),
        (4000, 100, ("dram", "sram_1m", "dram")),
    ],
)
def test_the_smallest_memory_that_holds_it(inputs, neurons, memories):
    net = Network(Linear(inputs, neurons), readout=2)
    rows = ledger(net, torch.zeros(1, 1, inputs), {"MAP": None}).rows
    assert tuple(row.memory for row in rows.values()) == memories


def test_costs_act_linearly_and_where_they_should():
    net = build("dense")
    x, usual = spikes(net), Costs()

    def energy(costs):
        return {name: row.joules for name, row in ledger(net, x, {"MAP": None}, costs).rows.items()}

    before, rows = energy(usual), ledger(net, x, {"MAP": None}).rows
    gains = {name: {} for name in rows}
    for cost, value in asdict(usual).items():
        once, twice = (
            energy(replace(usual, **{cost: 2 * value})),
            energy(replace(usual, **{cost: 3 * value})),
        )
        for name in rows:
            gains[name][cost] = once[name] - before[name]
            assert twice[name] - before[name] == pytest.approx(2 * gains[name][cost], abs=1e-20)
    for name, row in rows.items():
        assert sum(gains[name].values()) == pytest.approx(before[name])
        assert gains[name]["sram_8k"] == pytest.approx(row.memory_joules)
    assert gains["MAP"]["int_add"] == pytest.approx(1e-13 * rows["MAP"].synaptic_operations)
    assert gains[ANN]["int_add"] == 0
    assert gains[ANN]["float_multiply"] == pytest.approx(3.7e-12 * rows[ANN].synaptic_operations)


def test_costs_from_text():
    assert Costs.parse([]) == Costs()
    assert Costs.parse(["int_add=0.03", " dram = 2600", "int_add=0.04"]) == Costs(
        int_add=0.04, dram=2600
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("int_ad=1", r"cost: must be one of float_add, .*; got 'int_ad'; did you mean 'int_add'\?"),
        ("sram=1", "got 'sram'; did you mean"),
        (
            "int_add",
            "cost: must be NAME=PJ, PJ in picojoules; got 'int_add'; give e.g. int_add=0.1",
        ),
        ("int_add=cheap", "cost: must be NAME=PJ"),
        ("int_add=0", "int_add: must be a finite number > 0; got 0.0"),
        ("dram=-1", "dram: must be a finite number > 0; got -1.0"),
        ("dram=nan", "dram: must be a finite number > 0; got nan"),
    ],
)
def test_bad_costs(setting, message):
    with pytest.raises(ValueError, match=message):
        Costs.parse([setting])


def test_bad_input():
    net = Network(Linear(4, 3), readout=2, weights="real")
    with pytest.raises(ValueError, match="x: must be spikes, 0 or 1"):
        work(net, torch.full((2, 1, 4), 0.5), list(net.parameters()))
    with pytest.raises(ValueError, match="has no posterior to draw from"):
        ledger(net, torch.zeros(2, 1, 4), {"ensemble": 3})
    with pytest.raises(ValueError, match="predictors: must be a positive whole number; got 0"):
        ledger(build("dense"), torch.zeros(2, 1, 6, dtype=torch.bool), {"ensemble": 0})


def test_a_network_without_readout():
    net = build("recurrent", readout=None)
    assert [
        layer.layer for layer in ledger(net, spikes(net), {"MAP": None}).rows["MAP"].layers
    ] == ["1 Recurrent"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-12, "1 pJ"),
        (4.6e-14, "0.046 pJ"),
        (0.9996, "1 J"),
        (12345.0, "12.3 kJ"),
        (5e15, "5e+06 GJ"),
    ],
)
def test_prefixes(value, text):
    assert si(value, "J") == text
