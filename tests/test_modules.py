"""Other people's networks: what becomes binary, what they take with them, what members say."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import bisnn
from bisnn import weights
from bisnn.modules import Scaled


def seeded_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3, bias=False)
    )


def trained(rule=bisnn.BayesBiSNN, **options):
    """A network after some steps, and its rule."""
    net = seeded_net()
    options = {"temperature": 1e-3} | options if rule is bisnn.BayesBiSNN else options
    made = rule(bisnn.binarise(net), lr=0.5, **options)
    x, y = images(16), torch.arange(16) % 3
    for _ in range(5):
        with made.sampled():
            nn.functional.cross_entropy(net(x), y).backward()
        made.step()
    return net, made


def images(n: int) -> torch.Tensor:
    return torch.randn(n, 1, 4, 4, generator=torch.Generator().manual_seed(n))


def test_which_parameters_become_binary():
    net = seeded_net()
    groups = bisnn.binarise(net, skip=["4"], real_lr=0.01)
    assert [(g["names"], g["binary"]) for g in groups] == [
        (["0.weight"], True),
        (["0.bias", "1.weight", "1.bias", "4.weight"], False),
    ]
    assert sum(len(g["params"]) for g in groups) == len(list(net.parameters()))
    assert "lr" not in groups[0]
    assert groups[1]["lr"] == 0.01
    assert str(groups).splitlines()[0].split() == ["0.weight", "4x1x3x3", "binary"]


def test_weights_are_signs_over_the_root_of_the_fan_in():
    plain, net = seeded_net(), seeded_net()
    rule = bisnn.STBiSNN(bisnn.binarise(net), lr=0.1)
    assert isinstance(net[0].parametrizations.weight[0], Scaled)
    with rule.sampled():
        assert torch.equal(net[0].weight, weights.sign(plain[0].weight) / 3)
        assert torch.equal(net[4].weight, weights.sign(plain[4].weight) / 4)
    assert torch.equal(net[0].parametrizations.weight.original, plain[0].weight)
    state = rule.map_weights(net)
    plain.load_state_dict(state)  # the module as it was takes it
    net.eval(), plain.eval()
    with torch.no_grad(), bisnn.map_weights(net):
        assert torch.equal(net(images(4)), plain(images(4)))


def test_members_of_any_module_are_those_of_its_state_dicts():
    net, rule = trained()
    net.train()
    x, plain = images(6), seeded_net()
    result = bisnn.predict(net, x, 5, rule=rule, seed=3)
    assert net.training, "its mode is its own"
    assert all(p.grad is None for p in net.parameters())
    states = rule.members(net, 5, seed=3)
    assert len({state["4.weight"].numpy().tobytes() for state in states}) == 5, "they differ"
    for state, member in zip(states, result.members, strict=True):
        plain.load_state_dict(state)
        with torch.no_grad():
            want = plain.eval()(x).softmax(-1)
        assert torch.allclose(member, want, atol=1e-6)
    assert torch.allclose(result.mean, result.members.mean(0))
    assert (result.mutual_information >= 0).all()
    one = bisnn.predict(net, x, rule=rule)
    assert one.members.shape == (1, 6, 3)


def test_many_members_have_the_posterior_s_frequencies():
    net, rule = trained()
    p = weights.probability(net[4].parametrizations.weight.original.detach())
    up = torch.stack([state["4.weight"] > 0 for state in rule.members(net, 400)]).float().mean(0)
    assert ((up - p).abs() < 5 * (p * (1 - p) / 400).sqrt() + 0.02).all()


def test_a_module_over_time_is_averaged_like_a_network():
    class OverTime(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 2, bias=False)

        def forward(self, x):  # (T, B, 4)
            return self.out(x)

    net = OverTime()
    rule = bisnn.STBiSNN(bisnn.binarise(net), lr=0.1)
    x = torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(0))
    with bisnn.map_weights(net), torch.no_grad():
        want = net(x).softmax(-1)
    assert torch.allclose(bisnn.predict(net, x, rule=rule, burn_in=2).mean, want[2:].mean(0))
    each = bisnn.predict(net, x, rule=rule, over_time="step").mean
    assert torch.allclose(each, want)


def test_files_of_states(tmp_path):
    net, rule = trained()
    states, path = rule.members(net, 9), tmp_path / "members.safetensors"
    size = bisnn.save_states(path, states)
    back = bisnn.load_states(path)
    for got, want in zip(back, states, strict=True):
        assert got.keys() == want.keys()
        for name in want:
            assert got[name].dtype == want[name].dtype
            assert torch.equal(got[name], want[name])
    assert size == path.stat().st_size
    many = seeded_net()
    many[4] = nn.Linear(16, 4000, bias=False)
    large = bisnn.STBiSNN(bisnn.binarise(many), lr=0.1).map_weights(many)
    assert bisnn.save_states(path, large) < 64_000 / 8 + 2000, "a bit a weight, and a header"


@given(
    st.lists(
        st.lists(st.sampled_from([-0.25, 0.25]), min_size=3, max_size=3), min_size=1, max_size=4
    )
)
def test_any_binary_tensor_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("states") / "one.safetensors"
    state = {"w": torch.tensor(rows), "a.b": torch.tensor(math.pi), "none": torch.zeros(0, 2)}
    bisnn.save_states(path, state)
    (back,) = bisnn.load_states(path)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("cut", [0, 7, 40, 200, -1])
def test_damaged_files_of_states_are_refused(tmp_path, cut):
    path = tmp_path / "net.safetensors"
    bisnn.save_states(path, {"w": torch.ones(40), "b": torch.zeros(3)})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"net.safetensors: must be a file of bisnn.save_states"):
        bisnn.load_states(path)


def test_other_files_of_states_are_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    header = '{"members": 1, "bits": {"w": [[%s], "float32"]}}'
    sized = {"size.w": torch.ones(())}
    for tensors, about in (
        ({"w": torch.ones(3)}, None),
        ({"w": torch.ones(3)}, '{"members": 1, "bits": {}}'),
        ({"bits.w": torch.zeros(1, 1, dtype=torch.uint8), **sized}, header % "-3"),
        ({"bits.w": torch.zeros(1, 1, dtype=torch.uint8), **sized}, header % "9"),
        ({"bits.w": torch.zeros(1, 1, dtype=torch.uint8)}, header % "8"),
    ):
        save_file(tensors, path, None if about is None else {"bisnn_states": about})
        with pytest.raises(ValueError, match=r"must be a file of bisnn\.save_states"):
            bisnn.load_states(path)
    save_file(sized, path, {"bisnn_states": header % "99999999999"})
    with pytest.raises(ValueError, match="BISNN_MOST_BYTES"):
        bisnn.load_states(path)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bisnn.binarise(seeded_net(), ["9"]), "skip: must name .* of 0, 4; got '9'"),
        (lambda: bisnn.binarise(seeded_net(), ["0", "4"]), "module: needs a linear or"),
        (lambda: bisnn.binarise(nn.ReLU()), "module: needs .* got a ReLU"),
        (lambda: bisnn.binarise(seeded_net(), real_lr=0), "real_lr"),
        (lambda: bisnn.predict(seeded_net(), images(2)), r"give the rule .* rule=rule"),
        (lambda: bisnn.save_states("x", []), "states: need at least one"),
    ],
)
def test_mistakes(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_mistakes_with_a_rule():
    net, rule = trained(bisnn.STBiSNN)
    with pytest.raises(ValueError, match="samples: STBiSNN has no posterior"):
        bisnn.predict(net, images(2), 5, rule=rule)
    with pytest.raises(ValueError, match="samples: of a module other than"):
        bisnn.predict(net, images(2), [], rule=rule)
    with pytest.raises(ValueError, match="must not be parametrized yet; got 0"):
        bisnn.binarise(net)
    flat = nn.Sequential(nn.Linear(3, 2), nn.Flatten(0))
    rule = bisnn.STBiSNN(bisnn.binarise(flat), lr=0.1)
    with pytest.raises(ValueError, match=r"net: must return logits, .* got \(8,\)"):
        bisnn.predict(flat, torch.ones(4, 3), rule=rule)
