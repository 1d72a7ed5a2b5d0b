"""Every rule against its formula, on the same problems, and through the same mishaps."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import warnings

import pytest
import torch
from scipy import stats
from torch import nn

from bisnn import BayesBiSNN, Bop, Linear, Network, Recurrent, STBiSNN, local_loss, map_weights
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.optimizer import adam, descend, momentum
from bisnn.rules import anneal, bop_update, natural_gradient
from bisnn.weights import MAX_EXPONENT, mean_gradient_factor, sign
from conftest import needs_compiler, seeded, spikes
from networks import KINDS, NEURON, build

GRID = [0.0, 10.0, -10.0, 50.0, -50.0, 0.3, -1.0]

# The table: every rule, every option. Each row goes through all the tests that take `make`.
RULES = {
    "st": lambda p: STBiSNN(p, lr=0.3),
    "st clip": lambda p: STBiSNN(p, lr=0.3, clip=1.0),
    "st momentum": lambda p: STBiSNN(p, lr=0.05, precondition="momentum"),
    "st adam": lambda p: STBiSNN(p, lr=0.1, precondition="adam"),
    "bayes": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3),
    "bayes tau": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, tau=0.5),
    "bayes hard": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, straight_through=True),
    "bayes prior": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, prior=0.2),
    "bayes momentum": lambda p: BayesBiSNN(p, lr=0.02, temperature=1e-3, precondition="momentum"),
    "bayes adam": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, precondition="adam"),
    "bayes anneal": lambda p: BayesBiSNN(
        p, lr=0.1, temperature=1e-2, tau_end=0.2, temperature_end=1e-4, anneal_steps=20
    ),
    "bop": lambda p: Bop(p, lr=0.2, threshold=1e-3),
}
every_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES.keys())


def latent(values, dtype):
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def one_step(rule, w_r, c):
    """A step on sum_i c_i w_i^2 / 2, whose gradient c_i w_i depends on w; returns that w."""
    with rule.sampled():
        (0.5 * c * w_r.square()).sum().backward()
        w = w_r.detach().clone()
    rule.step()
    return w


C = [0.7, -1.3, 0.4, 2.0, -0.2, 1.0, -0.6]
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 1e-7},
    torch.float64: {"rtol": 1e-12, "atol": 1e-14},
}
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@both_dtypes
@pytest.mark.parametrize("clip", [None, 1.0])
def test_st_step_is_algorithm_1(dtype, clip):
    w_r, c = latent(GRID, dtype), torch.tensor(C, dtype=dtype)
    w = one_step(STBiSNN([w_r], lr=0.25, clip=clip), w_r, c)
    for i, x in enumerate(GRID):
        sign = 1.0 if x >= 0 else -1.0
        assert w[i] == sign
        expected = x - 0.25 * C[i] * sign
        expected = expected if clip is None else min(max(expected, -clip), clip)
        assert w_r[i].item() == pytest.approx(expected, rel=1e-6)


@both_dtypes
@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize(
    ("tau", "rho", "prior"), list(itertools.product([0.01, 1.0], [0.0, 0.05], [0.0, -0.4]))
)
def test_bayes_step_is_algorithm_2(dtype, straight_through, tau, rho, prior):
    """In float64 with the rule's own epsilon, by the paper's formula; finite on the whole grid."""
    for seed in range(20):
        w_r, c = latent(GRID, dtype), torch.tensor(C, dtype=dtype)
        rule = BayesBiSNN(
            [w_r], 0.25, rho, tau, prior=prior, seed=seed, straight_through=straight_through
        )
        w = one_step(rule, w_r, c)
        eps = (
            torch.from_numpy(philox.uniform([0], len(GRID), seed, Purpose.TRAINING_NOISE)[0])
            .double()
            .clamp(2**-24, 1 - 2**-24)
        )
        for i, x in enumerate(GRID):
            delta = 0.5 * math.log(eps[i] / (1 - eps[i]))
            z = (x + delta) / tau
            sample = math.tanh(z) if not straight_through else (1.0 if z >= 0 else -1.0)
            # (1 - w^2) / (tau (1 - tanh^2 w^r)) with 1 - tanh^2 = cosh^-2: no 0/0 in float64 here
            factor = (math.cosh(x) / math.cosh(z)) ** 2 / tau if abs(z) < 300 else 0.0
            assert factor <= math.exp(MAX_EXPONENT) / tau
            expected = (1 - 0.25 * rho) * x - 0.25 * (factor * C[i] * sample - rho * prior)
            tolerance = 1e-11 if dtype == torch.float64 else 1e-5 + 2e-4 * abs(factor * C[i])
            assert w[i].item() == pytest.approx(sample, rel=1e-5, abs=1e-6)
            assert w_r[i].item() == pytest.approx(expected, rel=1e-6, abs=tolerance)
        assert torch.isfinite(w_r).all()


@both_dtypes
def test_bop_step_is_the_hysteresis_rule(dtype):
    values = [1.0, 1.0, 1.0, -1.0, -1.0, 0.2, -0.2]
    gradient = torch.tensor([5.0, 0.05, -5.0, -5.0, 5.0, 5.0, -5.0], dtype=dtype)
    w = latent(values, dtype)
    rule = Bop([w], lr=0.1, threshold=0.02)
    m = [0.0] * 7
    expected = [1.0 if v >= 0 else -1.0 for v in values]
    for _ in range(3):
        with rule.sampled():
            assert w.tolist() == expected
            (gradient * w).sum().backward()
        rule.step()
        for i in range(7):
            m[i] = 0.9 * m[i] + 0.1 * float(gradient[i])
            if abs(m[i]) > 0.02 and (m[i] > 0) == (expected[i] > 0):
                expected[i] = -expected[i]
        assert w.tolist() == expected
        torch.testing.assert_close(rule.state[w]["m"], torch.tensor(m, dtype=dtype))
    assert expected == [-1, 1, 1, 1, -1, -1, 1]


def test_preconditioners_are_torchs():
    """On real parameters the rule is torch's SGD with momentum, or Adam."""
    for name, optimizer in [
        ("momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.1)),
    ]:
        ours, theirs, binary = (
            latent(C, torch.float64),
            latent(C, torch.float64),
            latent(C, torch.float64),
        )
        rule = STBiSNN(
            [{"params": [binary]}, {"params": [ours], "binary": False}], lr=0.1, precondition=name
        )
        reference = optimizer([theirs])
        for _ in range(10):
            with rule.sampled():
                ((ours.square() * torch.arange(7.0)).sum() + binary.sum()).backward()
            rule.step()
            reference.zero_grad()
            (theirs.square() * torch.arange(7.0)).sum().backward()
            reference.step()
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_preconditioner_keeps_the_fixed_point():
    """With a loss c w, Algorithm 2 rests where w^r = w^r_0 - c E[dw/dmu] / rho, also with Adam."""
    c, rho = torch.tensor([0.02, -0.05]), 0.1
    noise = 0.5 * torch.logit((torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000)
    rest = torch.zeros(2, dtype=torch.float64)
    for _ in range(100):
        rest = 0.1 - c / rho * mean_gradient_factor(rest[:, None], noise, 1.0).mean(1)
    for precondition in ("none", "adam"):
        w_r = latent([0.0, 0.0], torch.float32)
        rule = BayesBiSNN(
            [w_r],
            0.01 if precondition == "adam" else 0.2,
            rho,
            prior=0.1,
            precondition=precondition,
        )
        tail = []
        for step in range(4000):
            with rule.sampled():
                (c * w_r).sum().backward()
            rule.step()
            if step >= 2000:
                tail.append(w_r.detach().clone())
        torch.testing.assert_close(torch.stack(tail).mean(0).double(), rest, rtol=0, atol=0.03)


def test_blocks_before_a_step_are_averaged():
    """Several samples: the update uses the mean of factor * gradient over the blocks."""
    single, joint = [latent(C, torch.float64) for _ in range(3)], latent(C, torch.float64)
    deltas = []
    for seed, w_r in enumerate(single):
        one_step(BayesBiSNN([w_r], 1.0, 0.0, seed=seed), w_r, 1.0)
        deltas.append(w_r.detach() - torch.tensor(C, dtype=torch.float64))
    rule = BayesBiSNN([joint], 1.0, 0.0)
    for seed in range(3):
        rule.seed, rule._draws = seed, 0
        with rule.sampled():
            (0.5 * joint.square()).sum().backward()
    rule.step()
    torch.testing.assert_close(
        joint.detach() - torch.tensor(C, dtype=torch.float64), sum(deltas) / 3
    )


def test_prior_as_a_tensor():
    prior = torch.tensor([1.0, -2.0])
    w_r = latent([0.0, 0.0], torch.float32)
    rule = BayesBiSNN([{"params": [w_r], "prior": prior}], lr=0.5, temperature=0.1)
    with rule.sampled():
        (0 * w_r).sum().backward()
    rule.step()
    torch.testing.assert_close(w_r.detach(), 0.05 * prior)


def test_annealing():
    assert [anneal(1.0, 0.01, k, 2) for k in (0, 1, 2, 3)] == pytest.approx([1.0, 0.1, 0.01, 0.01])
    assert anneal(1.0, None, 5, None) == 1.0
    w_r = latent([0.1], torch.float32)
    rule = BayesBiSNN([w_r], 0.1, 1.0, tau_end=0.25, temperature_end=0.01, anneal_steps=2)
    seen = []
    for _ in range(4):
        group = rule.param_groups[0]
        seen.append((rule.annealed("tau", group), rule.annealed("temperature", group)))
        one_step(rule, w_r, 1.0)
    assert [t for t, _ in seen] == pytest.approx([1.0, 0.5, 0.25, 0.25])
    assert [r for _, r in seen] == pytest.approx([1.0, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("name", ["temperature", "tau"])
def test_annealing_enters_the_update(name):
    """Two steps of annealing equal a step with the first value and one with the second."""
    annealed, by_hand = latent(C, torch.float64), latent(C, torch.float64)
    c = torch.tensor(C, dtype=torch.float64)
    a = BayesBiSNN([annealed], 0.1, 0.4, **{name + "_end": 0.1}, anneal_steps=1)
    b = BayesBiSNN([by_hand], 0.1, 0.4)
    for step in range(2):
        if step == 1:
            b.param_groups[0][name] = 0.1
        one_step(a, annealed, c)
        one_step(b, by_hand, c)
    assert torch.equal(annealed, by_hand)


# Problems that every rule goes through


UPDATES = {
    "descend": lambda w, m, g: descend(w, g, 0.1),
    "natural_gradient": lambda w, m, g: natural_gradient(w, g, 0.5, 0.2),
    "natural_gradient prior": lambda w, m, g: natural_gradient(w, g, 0.5, m),
    "bop_update": lambda w, m, g: bop_update(sign(w), m, g, 0.1, 0.05),
    "momentum": lambda w, m, g: momentum(g, m, 0.9),
    "adam": lambda w, m, g: adam(g, m, w.square(), 3, 0.9, 0.999),
}


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES.keys())
def test_updates_compile_in_one_graph(update, backend):
    """Pure functions of tensors: no graph breaks, nothing changed in place, the same numbers."""
    arguments = torch.randn(3, 50, generator=seeded(0)).unbind()
    before = [a.clone() for a in arguments]
    torch.testing.assert_close(
        torch.compile(update, fullgraph=True, backend=backend)(*arguments), update(*arguments)
    )
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


def plain_module():
    """A module that is no bisnn layer: a teacher with weights +-1 can be learned."""
    torch_rng = seeded(5)
    x = torch.randn(64, 15, generator=torch_rng)
    teacher = torch.where(torch.rand(15, generator=torch_rng) < 0.5, 1.0, -1.0)
    labels = (x @ teacher > 0).long()
    student = nn.Sequential(nn.Linear(15, 9, bias=False), nn.Tanh(), nn.Linear(9, 2, bias=False))
    with torch.no_grad():
        for p in student.parameters():
            p.copy_(torch.rand(p.shape, generator=torch_rng) - 0.5)
    return student, lambda: 20 * nn.functional.cross_entropy(student(x / 4), labels)


def spiking_network():
    """Two layers that learn which half of the inputs is active."""
    net = Network(Linear(12, 32), Linear(32, 24), readout=2, neuron=NEURON, readout_gain=2.0)
    labels = torch.arange(8) % 2
    active = (torch.arange(12) >= 6).long() == labels[:, None]
    x = spikes(30, 8, 12, seed=9, density=0.5) * active
    return net, lambda: local_loss(net(x), labels)


@pytest.mark.parametrize("problem", [plain_module, spiking_network])
@every_rule
def test_every_rule_trains(make, problem):
    module, loss = problem()
    rule = make(module.parameters())
    losses = []
    for _ in range(150):
        with rule.sampled():
            value = loss()
            value.backward()
        rule.step()
        losses.append(value.item())
        assert all(torch.isfinite(p).all() for p in module.parameters())
    assert sum(losses[-30:]) / 30 < 0.8 * sum(losses[:5]) / 5


@every_rule
@pytest.mark.parametrize("pending", [False, True], ids=["between steps", "between blocks"])
def test_saved_and_loaded_mid_training_continues_bit_for_bit(make, pending):
    def continued(module, rule, loss, started):
        for step in range(6):
            if not (step == 0 and started):
                with rule.sampled():
                    loss().backward()
            with rule.sampled():
                loss().backward()
            rule.step()
        return [p.detach().clone() for p in module.parameters()]

    module, loss = spiking_network()
    rule = make(module.parameters())
    continued(module, rule, loss, False)
    if pending:
        with rule.sampled():
            loss().backward()
    file = io.BytesIO()
    torch.save({"net": module.state_dict(), "rule": rule.state_dict()}, file)
    expected = continued(module, rule, loss, pending)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, other_loss = spiking_network()
    other_rule = make(other.parameters())
    other.load_state_dict(saved["net"])
    other_rule.load_state_dict(saved["rule"])
    assert all(
        torch.equal(a, b)
        for a, b in zip(continued(other, other_rule, other_loss, pending), expected, strict=True)
    )


@every_rule
def test_an_exception_inside_the_block_leaves_everything_as_it_was(make):
    module, loss = spiking_network()
    rule = make(module.parameters())
    with rule.sampled():
        loss().backward()
    latents = [p.detach().clone() for p in module.parameters()]
    grads = [p.grad.clone() for p in module.parameters()]

    def interrupted():
        with rule.sampled():
            loss().backward()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(torch.equal(p, b) for p, b in zip(module.parameters(), latents, strict=True))
    assert all(torch.equal(p.grad, b) for p, b in zip(module.parameters(), grads, strict=True))
    rule.step()


@pytest.mark.parametrize("problem", [plain_module, spiking_network])
@every_rule
def test_a_backward_pass_after_the_block_raises(make, problem):
    module, loss = problem()
    rule = make(module.parameters())
    with rule.sampled():
        value = loss()
    with pytest.raises(RuntimeError, match=r"sampled\(\)|modified by an inplace operation"):
        value.backward()


def test_a_backward_pass_in_the_next_block_raises():
    """A realisation's forward pass never meets another's factor, in any kind of layer."""
    for kind in KINDS:
        net = build(kind)
        x, labels = spikes(9, 2, *net.input_shape, dtype=torch.float64), torch.tensor([0, 1])
        hard = kind == "fixed"  # whose neurons take no relaxed samples
        rule = BayesBiSNN(net.parameters(), lr=0.1, temperature=0.0, straight_through=hard)
        with rule.sampled():
            value = local_loss(net(x), labels)
        with rule.sampled(), pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


def test_a_late_backward_pass_spoils_nothing_silently():
    """What was collected before it is dropped, so that step() cannot use half of it."""
    module, loss = spiking_network()
    rule = STBiSNN(module.parameters(), lr=0.1)
    with rule.sampled():
        loss().backward()
    w_r = next(module.parameters())
    with pytest.raises(RuntimeError, match="reached a binary parameter"):
        (2 * w_r).sum().backward()
    with pytest.raises(RuntimeError, match=r"no sampled\(\) block"):
        rule.step()
    # a gradient with respect to w^r itself
    assert torch.autograd.grad((2 * w_r).sum(), w_r)[0].mean() == 2


def test_zero_grad_of_the_module_forgets_the_blocks():
    w_r = latent([0.5], torch.float32)
    rule = STBiSNN([w_r], lr=1.0)
    for _ in range(3):
        with rule.sampled():
            w_r.sum().backward()
        w_r.grad = None
    one_step(rule, w_r, 1.0)
    assert w_r.item() == pytest.approx(-0.5)


def test_an_aborted_block_leaves_no_gradient_on_real_parameters():
    real, binary = latent([0.0], torch.float32), latent([1.0], torch.float32)
    rule = STBiSNN([{"params": [binary]}, {"params": [real], "binary": False}], lr=1.0)

    def block(scale, fail):
        with rule.sampled():
            (scale * real + binary).sum().backward()
            if fail:
                raise KeyError

    block(1.0, False)
    with pytest.raises(KeyError):
        block(100.0, True)
    rule.step()
    assert real.item() == -1.0


def test_adam_counts_each_parameters_own_steps():
    early, late = latent([0.0], torch.float64), latent([0.0], torch.float64)
    rule = STBiSNN([early, late], lr=0.1, precondition="adam")
    for step in range(50):
        late.requires_grad_(step == 49)
        with rule.sampled():
            (early + late).sum().backward()
        rule.step()
    assert late.item() == pytest.approx(-0.1, rel=1e-6)


@every_rule
def test_copies_and_pickles_go_on_like_the_original(make):
    module, loss = spiking_network()
    rule = make(module.parameters())
    with rule.sampled():
        loss().backward()
    rule.step()
    for duplicate in (copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        mine = duplicate.param_groups[0]["params"]
        assert all(torch.equal(a, b) for a, b in zip(mine, module.parameters(), strict=True))
        with duplicate.sampled():
            sum(p.sum() for p in mine).backward()
            drawn = [p.detach().clone() for p in mine]
        duplicate.step()
    with rule.sampled():
        assert all(torch.equal(a, b) for a, b in zip(drawn, module.parameters(), strict=True))


def test_the_next_draw_is_saved_from_the_start():
    """Also before the first draw; loading takes over the seed and rewinds."""

    def draws(rule):
        with rule.sampled():
            return rule.param_groups[0]["params"][0].detach().clone()

    first = BayesBiSNN([latent(C, torch.float32)], 0.1, 0.0, seed=1)
    state = first.state_dict()
    expected = draws(first)
    other = BayesBiSNN([latent(C, torch.float32)], 0.1, 0.0, seed=2)
    draws(other)
    other.load_state_dict(state)
    assert torch.equal(draws(other), expected)
    assert not torch.equal(draws(other), expected)


def test_biases_and_norms_are_not_made_binary_unnoticed():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))
    with pytest.warns(
        UserWarning,
        match=r"params: 3 of 5 parameters have fewer than two axes, such as \(3,\): "
        "biases or norms",
    ):
        STBiSNN(module.parameters(), lr=0.1)
    masked = Network(
        Linear(12, 6), Recurrent(6, 5, mask=torch.ones(5, 11, dtype=torch.bool)), readout=2
    )
    assert {p.ndim for p in masked.parameters()} == {1, 2}
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    matrices, vectors = (
        [p for p in module.parameters() if (p.ndim > 1) == flat] for flat in (True, False)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        STBiSNN(masked.parameters(), lr=0.1)
        STBiSNN([nn.Parameter(torch.zeros(3))], lr=0.1)
        STBiSNN([{"params": matrices}, {"params": vectors, "binary": False}], lr=0.1)
    with pytest.warns(UserWarning, match="biases or norms"):
        STBiSNN(module.parameters(), lr=0.1)  # again, and taken back by the rule after it
    with pytest.warns(UserWarning, match="biases or norms"):
        STBiSNN(module.parameters(), lr=0.1)
    STBiSNN([{"params": matrices}, {"params": vectors, "binary": False}], lr=0.1)
    with map_weights(module):  # it knows what the last rule trains
        assert all((p.detach().abs() == 1).all() for p in matrices)
        assert not any((p.detach().abs() == 1).any() for p in vectors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_of_half_precision_parameters_is_finite_and_unbiased(dtype):
    """Drawn in float32: rounded to half precision, a number would be 1, and its noise infinite."""
    w_r = nn.Parameter(torch.full((400_000,), -5.0, dtype=dtype))
    rule = BayesBiSNN([w_r], 0.1, 0.0, straight_through=True)
    with rule.sampled():
        up = int((w_r > 0).sum())
    assert stats.binomtest(up, 400_000, 1 / (1 + math.exp(10))).pvalue > 1e-4


def test_a_prior_pulls_parameters_without_a_gradient():
    """Algorithm 2 with the gradient 0, by hand; frozen parameters and real ones stay."""
    idle, used, frozen, real = (nn.Parameter(torch.ones(1)) for _ in range(4))
    frozen.requires_grad_(False)
    groups = [{"params": [idle, used, frozen]}, {"params": [real], "binary": False}]
    rule = BayesBiSNN(groups, lr=0.1, temperature=0.3)
    with rule.sampled():
        (0.0 * used).sum().backward()
    rule.step()
    assert idle.item() == pytest.approx(1 - 0.1 * 0.3)
    assert used.item() == pytest.approx(1 - 0.1 * 0.3)
    assert frozen.item() == real.item() == 1


@every_rule
def test_order_of_calls(make):
    module, loss = spiking_network()
    rule = make(module.parameters())
    with pytest.raises(
        RuntimeError,
        match=r"step\(\): no sampled\(\) block before it; run forward and backward inside",
    ):
        rule.step()
    with rule.sampled():
        loss().backward()
        with pytest.raises(RuntimeError, match=r"step\(\): called inside a sampled\(\) block"):
            rule.step()
        with pytest.raises(RuntimeError, match=r"state_dict\(\): called inside"):
            rule.state_dict()
        with pytest.raises(RuntimeError, match=r"they do not nest"), rule.sampled():
            pass
    rule.zero_grad()
    with pytest.raises(RuntimeError, match=r"no sampled\(\) block"):
        rule.step()


@every_rule
def test_a_closure_runs_inside_a_realisation(make):
    """As trainers call an optimizer: step(closure), with zero_grad and backward in the closure."""
    results = []
    for with_closure in (True, False):
        module, loss = spiking_network()
        rule = make(module.parameters())

        def closure(rule=rule, loss=loss):
            rule.zero_grad()
            value = loss()
            value.backward()
            return value

        for _ in range(3):
            if with_closure:
                assert rule.step(closure).item() > 0
            else:
                with rule.sampled():
                    loss().backward()
                rule.step()
        results.append([p.detach().clone() for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_real_parameters_train_beside_binary_ones():
    """A learned readout on top of a binary layer: the real group never holds a realisation."""
    net, _ = spiking_network()
    head = nn.Linear(24, 2)
    nn.init.zeros_(head.weight)
    labels = torch.arange(8) % 2
    x = spikes(30, 8, 12, seed=9, density=0.5) * ((torch.arange(12) >= 6).long() == labels[:, None])
    rule = BayesBiSNN(
        [{"params": net.parameters()}, {"params": head.parameters(), "binary": False, "lr": 0.5}],
        lr=0.05,
        temperature=1e-3,
    )
    losses = []
    for _ in range(100):
        before = head.weight.detach().clone()
        with rule.sampled():
            assert torch.equal(head.weight, before)
            out = net(x)
            loss = nn.functional.cross_entropy(head(out.spikes[1].mean(0)), labels)
            (loss + local_loss(out, labels)).backward()
        rule.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_schedulers_drive_the_learning_rate():
    w_r = latent([0.5], torch.float32)
    rule = STBiSNN([w_r], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(rule, 1, 0.1)
    one_step(rule, w_r, 1.0)
    scheduler.step()
    assert rule.param_groups[0]["lr"] == pytest.approx(0.1)


def test_gradients_can_be_clipped_before_the_step():
    w_r = latent([3.0, -3.0], torch.float32)
    rule = STBiSNN([w_r], lr=1.0)
    with rule.sampled():
        (torch.tensor([30.0, 40.0]) * w_r).sum().backward()
    nn.utils.clip_grad_norm_([w_r], 1.0)
    rule.step()
    torch.testing.assert_close(w_r.detach(), torch.tensor([3.0 - 0.6, -3.0 - 0.8]))


def test_a_frozen_parameter_stays():
    module, loss = spiking_network()
    module.layers[0].weight.requires_grad_(False)
    before = module.layers[0].weight.clone()
    rule = BayesBiSNN(module.parameters(), lr=0.1, temperature=0.1)
    with rule.sampled():
        loss().backward()
    rule.step()
    assert torch.equal(module.layers[0].weight, before)
    assert not torch.equal(module.layers[1].weight, spiking_network()[0].layers[1].weight)


P = [nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: STBiSNN([], lr=0.1),
            "params: needs at least one parameter; got an empty parameter group",
        ),
        (
            lambda: STBiSNN([{"params": []}], lr=0.1),
            "params: needs at least one parameter; got an empty parameter group",
        ),
        (lambda: STBiSNN(P, lr=0.0), "lr: must be a finite number > 0; got 0.0"),
        (lambda: STBiSNN(P, lr=math.nan), "lr: must be a finite number"),
        (lambda: STBiSNN(P, lr=0.1, clip=0), "clip: must be a finite number > 0; got 0"),
        (
            lambda: STBiSNN(P, lr=0.1, precondition="adamw"),
            "precondition: must be one of none, momentum, adam; got 'adamw'",
        ),
        (lambda: STBiSNN(P, lr=0.1, betas=(0.9, 1.0)), r"betas: must be two numbers in \[0, 1\)"),
        (
            lambda: STBiSNN([{"params": P, "binary": 1}], lr=0.1),
            "binary: must be True or False; got 1",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, -1e-3),
            "temperature: must be a finite number >= 0; got -0.001",
        ),
        (lambda: BayesBiSNN(P, 0.1, 1e-3, tau=0.0), "tau: must be a finite number > 0; got 0.0"),
        (
            lambda: BayesBiSNN(P, 0.1, 1e-3, prior=torch.zeros(3)),
            r"prior: must be a number or have the shape .*got \(3,\)",
        ),
        (lambda: BayesBiSNN(P, 0.1, 1e-3, prior=math.inf), "prior: must be a finite number"),
        (
            lambda: BayesBiSNN(P, 0.1, 1e-3, tau_end=0.1),
            "anneal_steps: goes with tau_end or temperature_end",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 1e-3, anneal_steps=10),
            "anneal_steps: goes with tau_end or temperature_end",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 1e-3, tau_end=0.1, anneal_steps=0),
            "anneal_steps: must be a positive whole number",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 0.0, temperature_end=0.1, anneal_steps=5),
            "temperature: must be a finite number > 0",
        ),
        (lambda: BayesBiSNN(P, 0.1, 1e-3, seed=None), "seed: must be a whole number"),
        (
            lambda: Bop(P, lr=1.5, threshold=0.1),
            r"lr: Bop's adaptivity rate must lie in \(0, 1\]; got 1.5",
        ),
        (lambda: Bop(P, lr=0.5, threshold=0.0), "threshold: must be a finite number > 0"),
        (
            lambda: STBiSNN(P, lr=0.1).load_state_dict({"state": {}, "param_groups": []}),
            "got one without draws, pending",
        ),
        (
            lambda: STBiSNN(P, lr=0.1).load_state_dict(BayesBiSNN(P, 0.1, 0.0).state_dict()),
            "a STBiSNN; got one without clip",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 0.0).load_state_dict(STBiSNN(P, lr=0.1).state_dict()),
            "got one without seed",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 0.0, straight_through="no"),
            "straight_through: must be True or False; got 'no'",
        ),
        (
            lambda: BayesBiSNN(P, 0.1, 0.0, prior=torch.tensor([math.nan, 0.0])),
            "prior: must be finite",
        ),
        (
            lambda: STBiSNN([torch.zeros(2, dtype=torch.int64)], lr=0.1),
            "params: must be floating point; got torch.int64",
        ),
        (lambda: STBiSNN(P, lr=0.1, betas=None), "betas: must be two numbers"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
