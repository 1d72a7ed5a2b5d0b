"""A training step as one function: the bits of the loop it stands for, on a GPU as one graph."""

from __future__ import annotations

import copy

import pytest
import torch

from bisnn import BayesBiSNN, Bop, Conv2d, Linear, Network, STBiSNN, compiled, local_loss
from bisnn.optimizer import Rule, descend
from conftest import seeded

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, CUDA])]
RULES = {
    "st": lambda p: STBiSNN(p, lr=0.1),
    "st, adam": lambda p: STBiSNN(p, lr=0.05, precondition="adam", clip=1.0),
    "bayes": lambda p: BayesBiSNN(p, lr=0.1, temperature=1e-3, tau=0.5, seed=3),
    "bayes, hard, momentum": lambda p: BayesBiSNN(
        p, lr=0.1, temperature=1e-3, straight_through=True, precondition="momentum"
    ),
    "bayes, annealed": lambda p: BayesBiSNN(
        p, lr=0.1, temperature=0.1, temperature_end=1e-4, tau_end=0.1, anneal_steps=5
    ),
    "bop": lambda p: Bop(p, lr=0.1, threshold=1e-4),
}


class Plain(Rule):
    """A rule that does not say whether it can be recorded."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def _update(self, w_r, g, group, state):
        return descend(w_r, g, group["lr"])


def network(device: str, kind: str = "dense") -> Network:
    if kind == "dense":
        net = Network(Linear(12, 16), Linear(16, 8), readout=3, seed=1)
    else:
        net = Network(Conv2d(3, 4, 3, padding=1, pool=2), readout=3, input_shape=(3, 4, 4), seed=1)
    return net.to(device)


def batches(net: Network, count: int, sizes=(5,)) -> list[tuple[torch.Tensor, torch.Tensor]]:
    device, found = net.layers[0].kappa.device, []
    for i in range(count):
        B, source = sizes[i % len(sizes)], seeded(i)
        x = torch.rand(10, B, *net.input_shape, generator=source) < 0.3
        found.append((x.to(device), torch.randint(3, (B,), generator=source).to(device)))
    return found


def by_hand(net, rule, x, y, samples: int = 1) -> torch.Tensor:
    losses = []
    for _ in range(samples):
        with rule.sampled():
            loss = local_loss(net(x), y)
            loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def same(a: Network, b: Network, rules=()) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)
    if rules:
        first, second = (rule.state_dict() for rule in rules)
        assert first["draws"] == second["draws"]
        assert first["pending"]["blocks"] == second["pending"]["blocks"]
        for i, state in first["state"].items():
            for name, value in state.items():
                assert torch.equal(
                    torch.as_tensor(value), torch.as_tensor(second["state"][i][name])
                )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("name", RULES)
def test_a_step_has_the_bits_of_the_loop(name, kind, samples, device):
    """With a learning rate that changes, and mini-batches of two sizes."""
    one, two = network(device, kind), network(device, kind)
    rules = RULES[name](one.parameters()), RULES[name](two.parameters())
    step = compiled(one, rules[0], local_loss, samples=samples)
    for i, (x, y) in enumerate(batches(one, 9, sizes=(5, 5, 3))):
        for rule in rules:
            rule.param_groups[0]["lr"] = 0.1 / (1 + i)
        loss = step(x, y)
        assert torch.equal(loss, by_hand(two, rules[1], x, y, samples))
        rules[1].step()
        same(one, two, rules)
    assert (step.eager_because is None) == (device == "cuda")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["st, adam", "bayes"])
def test_blocks_add_up(name, device):
    one, two = network(device), network(device)
    rules = RULES[name](one.parameters()), RULES[name](two.parameters())
    step = compiled(one, rules[0], local_loss)
    for i, (x, y) in enumerate(batches(one, 12)):
        last = i % 3 == 2
        (step if last else step.accumulate)(x, y)
        by_hand(two, rules[1], x, y)
        if last:
            rules[1].step()
        same(one, two, rules)
        for p, q in zip(one.parameters(), two.parameters(), strict=True):
            assert last or torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("device", DEVICES)
def test_a_rule_that_is_loaded_goes_on(device):
    """The state of a rule moves when it is loaded: what was recorded is void."""
    one, two = network(device), network(device)
    rules = [RULES["st, adam"](net.parameters()) for net in (one, two)]
    step = compiled(one, rules[0], local_loss)
    data = batches(one, 8)
    for x, y in data[:4]:
        step(x, y)
    saved, weights = copy.deepcopy(rules[0].state_dict()), copy.deepcopy(one.state_dict())
    for x, y in data[4:6]:
        step(x, y)
    one.load_state_dict(weights)
    two.load_state_dict(weights)
    for rule in rules:
        rule.load_state_dict(copy.deepcopy(saved))
    for x, y in data[4:]:
        step(x, y)
        by_hand(two, rules[1], x, y)
        rules[1].step()
        same(one, two, rules)


@pytest.mark.parametrize("device", DEVICES)
def test_spikes_as_floats_and_real_values(device):
    nets = [network(device) for _ in range(2)]
    steps = [compiled(net, STBiSNN(net.parameters(), lr=0.1), local_loss) for net in nets]
    for x, y in batches(nets[0], 4):
        steps[0](x, y)
        steps[1](x.float(), y)
        same(*nets)
    by_loop = copy.deepcopy(nets[0])
    rule = STBiSNN(by_loop.parameters(), lr=0.1)
    for x, y in batches(nets[0], 4):
        steps[0](x * 0.5, y)
        by_hand(by_loop, rule, x * 0.5, y)
        rule.step()
    same(nets[0], by_loop)


@pytest.mark.cuda
@CUDA
def test_a_loss_that_reads_values_runs_operation_by_operation_cuda():
    one, two = network("cuda"), network("cuda")
    rules = STBiSNN(one.parameters(), lr=0.1), STBiSNN(two.parameters(), lr=0.1)

    def reading(output, y):
        loss = local_loss(output, y)
        return loss * (2.0 if loss.item() > 1e9 else 1.0)

    step, data = compiled(one, rules[0], reading), batches(one, 5)
    step(*data[0])
    with pytest.warns(UserWarning, match="cannot be recorded"):
        step(*data[1])
    for x, y in data[2:]:
        step(x, y)
    for x, y in data:
        by_hand(two, rules[1], x, y)
        rules[1].step()
    same(one, two, rules)
    assert "cannot be recorded" in step.eager_because


@pytest.mark.parametrize("device", DEVICES)
def test_a_rule_that_does_not_say_so_is_not_recorded(device):
    net = network(device)
    step = compiled(net, Plain(net.parameters(), lr=0.1), local_loss)
    for x, y in batches(net, 3):
        step(x, y)
    assert ("Plain" if device == "cuda" else "not on a GPU") in step.eager_because


def test_bad_input():
    net = network("cpu")
    with pytest.raises(ValueError, match=r"rule: must be a rule .*; got a Adam"):
        compiled(net, torch.optim.Adam(net.parameters()), local_loss)
    with pytest.raises(ValueError, match="samples: must be"):
        compiled(net, STBiSNN(net.parameters(), lr=0.1), local_loss, samples=0)
