"""Every rule through the same mishaps: blocks that are cut short, misordered, saved or copied."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from bisnn import BayesBiSNN, STBiSNN, local_loss
from conftest import spikes
from networks import KINDS, build
from rules import C, every_rule, latent, one_step, plain_module, spiking_network


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
