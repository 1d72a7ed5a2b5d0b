"""The neuron in integers against a loop over Python's unbounded ones, and its way through training,
conversion and C.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import networks
import runs
from bisnn import (
    SRM,
    BayesBiSNN,
    FixedSRM,
    Linear,
    Network,
    Recurrent,
    STBiSNN,
    kernels,
    local_loss,
    map_weights,
    predict,
)
from bisnn.cli import app
from bisnn.kernels import reference
from bisnn.kernels.scan import srm_scan
from bisnn.packed import Engine, read
from bisnn.packing import describe
from bisnn.runs import training
from bisnn.runs.exporting import export
from bisnn.shipping import c, conversion, energy
from bisnn.shipping import nir as nir_graph
from conftest import KERNELS, constants_of, device_of, seeded, spikes

NEURON = networks.FIXED
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64",
    reason="needs GCC for x86-64, which can do without float registers",
)


def truncated(a: int, x: int) -> int:
    """a x / 2^16 towards zero, in Python's integers."""
    return (abs(x) * a >> 16) * (1 if x >= 0 else -1)


def slow_scan(
    I: np.ndarray, integers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Spikes and v (T, n) of currents I (T, n), and the last state; nothing here can overflow."""
    T, n = I.shape
    s, v = np.zeros((T, n), int), np.zeros((T, n), object)
    state = [[0] * n for _ in range(3)]
    for j in range(n):
        a_m, a_s, a_r, f, one, theta = (
            int(z) for z in integers.reshape(6, -1)[:, j % integers[0].size]
        )
        P = Q = R = 0
        for t in range(T):
            v[t, j] = P - Q - R
            s[t, j] = v[t, j] > theta
            current = int(I[t, j]) * 2**f
            P, Q = truncated(a_m, P + current), truncated(a_s, Q + current)
            R = truncated(a_r, R + one * int(s[t, j]))
        for trace, value in zip(state, (P, Q, R), strict=True):
            trace[j] = value
    return s, v, state


def scan(I, neuron, kappa, most, kernel="reference"):
    """Spikes, potentials, traces as integers, and the constants, of currents I (T, n)."""
    integers = torch.from_numpy(neuron.integers(kappa.numpy(), most)).to(device_of(kernel))
    I, kappa = I[:, None].to(device_of(kernel)), kappa.to(device_of(kernel))
    state = [torch.zeros(1, I.shape[2], dtype=torch.float64, device=I.device)] * 3
    constants = constants_of(neuron).to(I.device)
    with kernels.forced(kernel):
        s, u, *after = srm_scan(I, *state, kappa, constants, "sigmoid", 1.0, False, integers)
    traces = [(z * 2.0**neuron.fraction)[0].cpu() for z in after]
    return s[:, 0].cpu(), u[:, 0].cpu(), traces, integers.cpu().numpy()


@pytest.mark.parametrize("kernel", KERNELS)
@given(
    seed=st.integers(0, 10_000),
    T=st.integers(1, 40),
    fraction=st.integers(2, 16),
    most=st.sampled_from([1, 7, 784]),
    own_scale=st.booleans(),
    tau_mem=st.floats(0.5, 40),
    ratio=st.floats(0.2, 0.9),
    tau_ref=st.floats(0.3, 20),
)
def test_the_step_is_that_of_python_integers(
    kernel, seed, T, fraction, most, own_scale, tau_mem, ratio, tau_ref
):
    neuron = FixedSRM(tau_mem, tau_mem * ratio, tau_ref, threshold=0.5, fraction=fraction)
    n = 5
    parents = torch.randint(1, most + 1, (n,) if own_scale else (), generator=seeded(seed))
    kappa = parents.double().rsqrt().float()
    I = torch.randint(-most, most + 1, (T, n), generator=seeded(seed)).float()
    s, u, after, integers = scan(I, neuron, kappa, most, kernel)
    slow_s, slow_v, slow_after = slow_scan(I.numpy(), integers)
    assert np.array_equal(s.numpy(), slow_s)
    assert [z.tolist() for z in after] == slow_after
    v = torch.tensor(slow_v.tolist(), dtype=torch.float32)
    assert torch.equal(u, kappa * v * 2.0**-fraction)


@pytest.mark.parametrize("kernel", KERNELS)
def test_traces_end_at_zero_from_either_side(kernel):
    """Rounded to the nearest, a trace would stop at 5 units: 0.905 times 5 is nearer to 5."""
    neuron = FixedSRM(threshold=5.0)
    I = torch.zeros(400, 2)
    I[0] = torch.tensor([3.0, -3.0])
    _, u, after, _ = scan(I, neuron, torch.tensor(1.0), 3, kernel)
    assert not any(z.any() for z in after)
    assert torch.equal(u[:, 0], -u[:, 1])
    P = 5
    assert round(P * 59299 / 2**16) == P


@pytest.mark.parametrize("signs", [[1], [-1], [1, -1], [1] * 60 + [-1] * 60])
def test_the_largest_currents_that_are_allowed_do_not_overflow(signs):
    """At the largest fan-in that a fraction takes, driven as hard as it can be."""
    neuron = FixedSRM(tau_mem=20, tau_syn=4, tau_ref=8, threshold=3.0, fraction=16)

    def fits(most: int) -> bool:
        try:
            return neuron.integers(np.array(1 / np.sqrt(most)), most) is not None
        except ValueError:
            return False

    most = max(m for m in range(1, 5000) if fits(m))
    assert 100 < most < 4999
    I = torch.tensor([most * signs[t % len(signs)] for t in range(400)]).float()[:, None]
    kappa = torch.tensor(most, dtype=torch.float64).rsqrt().float()
    for kernel in ("reference", "cpu"):
        s, _, after, integers = scan(I, neuron, kappa, most, kernel)
        slow_s, slow_v, slow_after = slow_scan(I.numpy(), integers)
        assert np.array_equal(s.numpy(), slow_s)
        assert [z.tolist() for z in after] == slow_after
        assert np.abs(slow_v).max() < 2**31


def test_it_is_the_srm_but_for_rounding():
    """Potentials agree to a few units of 2^-f as long as the spikes do."""
    fixed, srm = FixedSRM(threshold=0.3), SRM(threshold=0.3)
    I = torch.randint(-9, 10, (100, 300), generator=seeded(1)).float()
    kappa = torch.tensor(0.1)
    s, u, *_ = scan(I, fixed, kappa, 100)
    state = [torch.zeros(1, 300)] * 3
    s_f, u_f, *_ = srm_scan(I[:, None], *state, kappa, constants_of(srm), "sigmoid", 1.0, False)
    same = (s == s_f[:, 0]).cummin(0).values
    assert same[-1].float().mean() > 0.9
    assert (u - u_f[:, 0])[same].abs().max() < 2e-2
    assert ((u - u_f[:, 0])[same].abs() < 2e-3).float().mean() > 0.99


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedSRM(fraction=-1), "fraction: must be a whole number of bits from 0 to 24"),
        (lambda: FixedSRM(fraction=1.5), "fraction: must be a whole number"),
        (lambda: FixedSRM(tau_ref=0.05), "tau_ref: .* no 16-bit factor stands for it; got 0.05"),
        (lambda: FixedSRM(tau_mem=1e6), "tau_mem: .* no 16-bit factor"),
        (lambda: FixedSRM(9.0, 8.9999), "tau_syn: must differ from tau_mem in the first 16 bits"),
        (
            lambda: Network(Linear(784, 10), readout=2, neuron=FixedSRM(fraction=20)),
            "fraction: traces of currents up to 784 .* use fraction=17",
        ),
        (
            lambda: Network(Linear(2, 4), readout=2, neuron=FixedSRM(threshold=1e-4, fraction=0)),
            "threshold: must be at least half a unit",
        ),
        (
            lambda: Network(Linear(2, 4), readout=2, neuron=FixedSRM(), weights="real"),
            "neuron: FixedSRM takes hard weights",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_fraction_that_is_named_fits():
    Network(Linear(784, 10), readout=2, neuron=FixedSRM(fraction=17))
    with pytest.raises(ValueError, match="use fraction=17"):
        Network(Linear(784, 10), readout=2, neuron=FixedSRM(fraction=18))


def test_relaxed_samples_and_real_inputs_are_refused():
    net = Network(Linear(6, 4), readout=2, neuron=NEURON)
    x = spikes(5, 2, 6)
    rule = BayesBiSNN(net.parameters(), lr=0.1, temperature=1e-3)
    with pytest.raises(ValueError, match="straight_through"), rule.sampled():
        net(x)
    with pytest.raises(ValueError, match=r"takes spikes.*straight_through"), map_weights(net):
        net(0.5 * x)
    with BayesBiSNN(net.parameters(), lr=0.1, temperature=1e-3, straight_through=True).sampled():
        net(x)


# Gradients


@pytest.mark.parametrize("refractory", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_adjoint_is_that_of_the_srm_at_the_dequantised_potential(kernel, refractory):
    neuron, kappa = replace(NEURON, slope=3.0), torch.tensor(0.5)
    integers = torch.from_numpy(neuron.integers(kappa.numpy(), 4)).to(device_of(kernel))
    g = seeded(3)
    I = torch.randint(-4, 5, (20, 3, 7), generator=g).float().to(device_of(kernel))
    state = [torch.zeros(3, 7, dtype=torch.float64, device=I.device) for _ in range(3)]
    inputs = [z.requires_grad_() for z in (I, *state)]
    settings = (constants_of(neuron).to(I.device), "sigmoid", neuron.slope, refractory)
    with kernels.forced(kernel):
        s, u, *_ = srm_scan(*inputs, kappa.to(I.device), *settings, integers)
        error = torch.randn(s.shape, generator=g).to(I.device)
        s.backward(error)
    wanted = reference.adjoint(error, None, (None,) * 3, u.detach(), kappa.to(I.device), *settings)
    for got, expected in zip((z.grad for z in inputs[:3]), wanted[:3], strict=True):
        torch.testing.assert_close(got.float(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(inputs[3].grad.float(), wanted[3] * kappa.to(I.device))


@pytest.mark.parametrize("layer", [Linear, Recurrent])
def test_bptt_in_chunks_is_bptt_of_the_whole(layer):
    """An attached state gives the whole gradient: traces carry it, though they are integers."""
    x, labels = spikes(12, 3, 6, dtype=torch.float64), torch.tensor([0, 2, 1])

    def gradient(chunk: int) -> torch.Tensor:
        options = {"readout": 3, "neuron": NEURON, "gradient": "bptt", "dtype": torch.float64}
        net = Network(layer(6, 8), **options)
        with map_weights(net):
            state, loss = net.initial_state(3), 0.0
            for piece in x.split(chunk):
                out = net(piece, state)
                state, loss = out.state, loss + local_loss(out, labels)
            loss.backward()
        return net.layers[0].weight.grad

    assert gradient(12).abs().max() > 0
    torch.testing.assert_close(gradient(5), gradient(12), rtol=1e-10, atol=1e-12)


RULES = {
    "st": lambda p: STBiSNN(p, lr=0.05, precondition="adam"),
    "bayes": lambda p: BayesBiSNN(
        p, lr=0.1, temperature=1e-4, straight_through=True, precondition="adam"
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_training_learns_which_half_fires(rule):
    neuron = FixedSRM(threshold=0.1, slope=4.0)
    net = Network(Linear(20, 32), Linear(32, 32), readout=2, readout_gain=4.0, neuron=neuron)
    optimizer = RULES[rule](net.parameters())
    labels = torch.arange(40) % 2
    rates = torch.where(labels[:, None] == (torch.arange(20) >= 10).long(), 0.3, 0.1)

    def data(seed: int) -> torch.Tensor:
        return (torch.rand(30, 40, 20, generator=seeded(seed)) < rates).float()

    def accuracy() -> float:
        return float((predict(net, data(1000)).mean.argmax(-1) == labels).float().mean())

    for step in range(40):
        with optimizer.sampled():
            local_loss(net(data(step)), labels, over_time="mean").backward()
        optimizer.step()
    assert accuracy() > 0.95


# Conversion


def test_a_trained_network_converts_by_its_state():
    srm = networks.build("mixed", 3, dtype=torch.float32)
    with torch.no_grad():
        for p in srm.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(1)))
    fixed = networks.build("fixed", 3, dtype=torch.float32)
    fixed.load_state_dict(srm.state_dict())
    by_state, by_packing = describe(fixed), conversion.converted(describe(srm), "fixed")
    x = spikes(25, 4, *srm.input_shape).numpy()
    for a, b in zip(
        *(Engine(n).run(x, spikes=True).spikes for n in (by_state, by_packing)), strict=True
    ):
        assert np.array_equal(a, b)
    assert conversion.converted(by_packing, "srm").layers[0].neuron == networks.NEURON


def test_changes_are_counted():
    before = describe(networks.build("deep", 1, dtype=torch.float32))
    batches = [spikes(60, 30, 6, seed=seed).numpy() for seed in range(3)]
    coarse = conversion.converted(before, "fixed", fraction=4)
    found = conversion.changes(before, coarse, batches)
    spikes_of = [[Engine(n).run(x, spikes=True).spikes for x in batches] for n in (before, coarse)]
    pairs = [(a, b) for x, y in zip(*spikes_of, strict=True) for a, b in zip(x, y, strict=True)]
    assert found.recordings == 90
    assert found.spikes == sum(int(a.sum()) for a, _ in pairs)
    assert found.changed_spikes == sum(int((a != b).sum()) for a, b in pairs) > 0
    said = [[Engine(n).predict(x).mean.argmax(-1) for x in batches] for n in (before, coarse)]
    assert found.changed_decisions == sum(int((a != b).sum()) for a, b in zip(*said, strict=True))
    fine = conversion.changes(before, conversion.converted(before, "fixed", 16), batches)
    assert fine.changed_spikes < found.changed_spikes / 4
    assert conversion.changes(before, before, batches).changed_spikes == 0


def test_layers_that_do_not_fit_are_named():
    network = describe(Network(Linear(60, 4), Linear(4, 4), readout=2))
    with pytest.raises(ValueError, match=r"layer 0: fraction: .* use fraction=2\d"):
        conversion.converted(network, "fixed", fraction=24)
    with pytest.raises(ValueError, match="neuron: must be one of"):
        conversion.converted(network, "lif")


@pytest.mark.parametrize("rule", ["st", "bayes"])
def test_runs_train_with_it_and_float_runs_export_with_it(rule, tmp_path):
    settings = {"st": {}, "bayes": {"rule.straight_through": True}}[rule]
    fixed = runs.small(rule, **settings, **{"neuron.kind": "fixed", "neuron.fraction": 10})
    training.train(fixed, tmp_path / "fixed", show=False)
    done = export(tmp_path / "fixed", predictor="map")
    assert Engine(read(done.path)).network.layers[0].neuron.fraction == 10
    training.train(runs.small(rule), tmp_path / "float", show=False)
    done = export(tmp_path / "float", neuron="fixed", predictor="map")
    assert done.changes.recordings == 60
    assert done.changes.spikes > 100 > done.changes.changed_spikes
    assert done.changes.changed_decisions < 5
    assert export(tmp_path / "float", neuron="srm", predictor="map").changes is None
    said = CliRunner().invoke(
        app, ["export", str(tmp_path / "float"), "--neuron", "fixed", "--as", "map"]
    )
    assert said.exit_code == 0, said.output
    assert "spikes differ on the test set" in said.output
    assert "of 60 decisions change" in said.output


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        ("bayes", {"neuron.kind": "fixed"}, "rule.straight_through = true"),
        ("full, Adam", {"neuron.kind": "fixed"}, "hard weights"),
        ("st", {"neuron.fraction": 9}, 'fraction is of kind = "fixed"'),
        ("st", {"neuron.kind": "float"}, "neuron.kind"),
    ],
)
def test_settings_that_do_not_go_together(rule, changes, message):
    with pytest.raises(ValueError, match=message):
        runs.small(rule, **changes)


# What ships


@needs_gcc
def test_other_alphabets_give_the_same_bits_everywhere(tmp_path):
    net = networks.build("levels", neuron=NEURON, dtype=torch.float32)
    x = spikes(40, 3, *net.input_shape, density=0.4)
    network = describe(net)
    with torch.no_grad(), map_weights(net):
        ours = net(x)
        with kernels.forced("reference"):
            slow = net(x)
    packed = Engine(network).run(x.numpy(), spikes=True)
    for a, b, c_ in zip(ours.spikes, slow.spikes, packed.spikes, strict=True):
        assert torch.equal(a, b)
        assert np.array_equal(a.numpy(), c_[0])
        assert a.any()
    c.write(network, tmp_path, x[:, 0].numpy())
    build = ["gcc", "-std=c99", "-O2", "-Werror", "model.c", "model_check.c", "main.c", "-o", "t"]
    subprocess.run(build, cwd=tmp_path, check=True)
    done = subprocess.run(["./t"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("ok:"), done.stdout


def test_the_largest_level_counts_towards_the_range():
    Network(Linear(784, 4), readout=2, neuron=FixedSRM(fraction=17))
    options = {"weights": (-7, 0, 7), "neuron": FixedSRM(fraction=17)}
    with pytest.raises(ValueError, match=r"currents up to 5488 .* use fraction=14"):
        Network(Linear(784, 4), readout=2, **options)


def test_nir_has_no_integers():
    pytest.importorskip("nir")
    with pytest.raises(ValueError, match="got FixedSRM in layer 0; export it with --neuron srm"):
        nir_graph.graph(describe(Network(Linear(6, 4), readout=2, neuron=NEURON)))


def test_the_ledger_knows_integers():
    x = spikes(10, 2, 6)
    layers = {}
    for neuron in (networks.NEURON, NEURON):
        net = Network(Linear(6, 4), readout=2, neuron=neuron)
        layers[neuron.kind] = energy.ledger(net, x, {"MAP": None}).rows["MAP"].layers[0]
    per_update = {kind: row.neuron_joules / (10 * 4) for kind, row in layers.items()}
    assert per_update["fixed"] == pytest.approx((3 * 3.1 + 6 * 0.1) * 1e-12)
    assert per_update["srm"] == pytest.approx((4 * 3.7 + 6 * 0.9) * 1e-12)


@needs_gcc
@pytest.mark.parametrize("count", [1, 3])
def test_the_code_needs_no_floating_point_unit(count, tmp_path):
    """With general registers alone, a compiler refuses a function that has a float in it."""
    net = networks.build("fixed", dtype=torch.float32)
    members = [
        [torch.rand(layer.weight.shape, generator=seeded(k)) < 0.5 for layer in net.layers]
        for k in range(count)
    ]
    c.write(describe(net, members), tmp_path, spikes(40, *net.input_shape, density=0.4).numpy())
    strict = ["-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    build = ["gcc", *strict, "-mgeneral-regs-only", "-fsanitize=undefined", "-c", "model.c"]
    subprocess.run(build, cwd=tmp_path, check=True)
    link = ["gcc", *strict, "-fsanitize=undefined", "-fno-sanitize-recover"]
    subprocess.run(
        [*link, "model.o", "model_check.c", "main.c", "-o", "t"], cwd=tmp_path, check=True
    )
    done = subprocess.run(["./t"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout[:3], done.stderr) == (0, "ok:", "")
    header = (tmp_path / "model.h").read_text()
    assert "int32_t *counts" in header
    assert f"LOGIT_SCALE {float(net.readouts[-1].scale)!r}f " in header
    assert "float" not in header.replace("floating-point", "")
