"""The one random number generator: Philox 4x32-10, a key for each purpose, the same numbers
everywhere.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from scipy import stats

import bisnn
from bisnn import encode, kernels, weights
from bisnn.bits import philox, philox_kernels
from bisnn.bits.philox import Purpose
from bisnn.kernels import draws
from bisnn.packed import encoding

# Who draws for which purpose. Two modules draw for the same one only where the numbers are to be
# the same.
USERS = {
    Purpose.WEIGHTS: {"layer"},
    Purpose.READOUTS: {"layer"},
    Purpose.TRAINING_NOISE: {"rules"},
    Purpose.MEMBERS: {"weights", "packed/network"},
    Purpose.POINTS: {"bits/philox", "shipping/c_encoder", "shipping/web"},
    Purpose.ENCODING: {
        "data/series_code",
        "encode",
        "runs/inputs",
        "packed/encoding",
        "shipping/c_encoder",
        "shipping/web",
    },
    Purpose.TRAINING_ENCODING: {"runs/inputs"},
    Purpose.SHUFFLING: {"runs/inputs", "sklearn/networks"},
    Purpose.TEST_SPLIT: {"data/folders", "data/tabular"},
    Purpose.VALIDATION_SPLIT: {"data/folders", "data/loading"},
    Purpose.DROPOUT: {"runs/loop", "sklearn/networks"},
    Purpose.AUGMENTATION: {"data/augmentation"},
    Purpose.LOST_SPIKES: {"data/augmentation"},
    Purpose.EXPORT: {"runs/trial_inputs", "shipping/c_golden"},
    Purpose.BOOTSTRAP: {"intervals"},
    Purpose.CALIBRATION_SPLIT: {"runs/guarantee"},
    Purpose.DROPOUT_MEMBERS: {"prediction"},
    Purpose.TRAINED_MEMBERS: {"runs/config"},
    Purpose.DECISION_SPLIT: {"runs/decisions"},
    Purpose.CAMERA_RECORDING: {"data/camera"},
    Purpose.CAMERA_SENSOR: {"data/camera"},
    Purpose.CORRUPTION: {"data/corruption"},
    Purpose.TRAINING_CORRUPTION: {"data/corrupted"},
}


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_published_answers(counter, key, block):
    """The known answers that its authors publish, as whole numbers, compiled, in NumPy and in
    PyTorch.
    """
    assert philox.philox(*counter, *key) == block
    compiled = njit(philox.philox)
    assert compiled(*counter, *key) == block
    assert [int(w[0]) for w in philox.philox(*(np.array([c]) for c in counter), *key)] == list(
        block
    )
    assert [int(w[0]) for w in philox.philox(*(torch.tensor([c]) for c in counter), *key)] == list(
        block
    )


def compiled_words(n, seed, purpose, stream, draw):
    return philox_kernels.words(n, stream, draw, seed, int(purpose))


@given(
    seed=st.integers(0, 2**32 - 1),
    draw=st.integers(0, 2**32 - 1),
    streams=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4),
    n=st.integers(0, 23),
)
def test_compiled_numbers_are_the_reference(seed, draw, streams, n):
    streams = torch.tensor(streams)
    args = (seed, Purpose.DROPOUT, draw)
    ours = draws.uniform(streams, n, *args)
    with kernels.forced("reference"):
        assert torch.equal(draws.uniform(streams, n, *args), ours)
    place, stream = (
        x.flatten()
        for x in torch.meshgrid(torch.arange(n), torch.arange(len(streams)), indexing="ij")
    )
    assert torch.equal(draws.uniform_at(place, streams[stream], *args), ours[stream, place])
    for words in (philox.words, compiled_words):
        several = [words(n, seed, Purpose.DROPOUT, int(s), draw) for s in streams]
        assert np.array_equal(np.stack(several) >> 8, ours.numpy() * 2.0**24)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("n", [1, 4, 1023, 100_001])
def test_a_gpu_draws_the_same_numbers(n):
    streams = torch.tensor([0, 7, 2**32 - 1])
    args = (2**32 - 5, Purpose.CAMERA_SENSOR, 2**31 + 3)
    ours = draws.uniform(streams, n, *args)
    assert torch.equal(draws.uniform(streams.cuda(), n, *args).cpu(), ours)
    place = torch.randint(n, (3,))
    assert torch.equal(
        draws.uniform_at(place.cuda(), streams.cuda(), *args).cpu(), ours[torch.arange(3), place]
    )


def test_numbers_are_uniform_and_neighbours_independent():
    drawn = philox.uniform(range(100), 2000, 3, Purpose.DROPOUT, 1)
    assert (drawn.min() >= 0) & (drawn.max() < 1)
    counts = np.histogram(drawn, 64, (0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-4
    for a, b in (
        (drawn[:-1], drawn[1:]),
        (drawn[:, :-1], drawn[:, 1:]),
        (drawn, philox.uniform(range(100), 2000, 3, Purpose.DROPOUT, 2)),
    ):
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.01


def test_every_purpose_has_its_own_stream():
    """No block of one purpose's is another's, for the same seed, streams and draws."""
    seen: dict[bytes, Purpose] = {}
    for purpose in Purpose:
        for stream in range(4):
            for draw in range(4):
                for block in philox.words(64, 0, purpose, stream, draw).reshape(-1, 4):
                    assert block.tobytes() not in seen, (purpose, seen[block.tobytes()])
                    seen[block.tobytes()] = purpose
    assert len(seen) == len(Purpose) * 16 * 16


def test_every_purpose_is_drawn_for_by_those_who_say_so():
    """A list of all purposes: whoever draws for one that is another's, or with a generator of its
    own, is found here.
    """
    folder = Path(bisnn.__file__).parent
    found: dict[Purpose, set[str]] = {purpose: set() for purpose in Purpose}
    for path in folder.rglob("*.py"):
        text, name = path.read_text(), str(path.relative_to(folder).with_suffix(""))
        code = "\n".join(line for line in text.splitlines() if ">>>" not in line)
        for purpose in re.findall(r"\bPurpose\.([A-Z_]+)", code):
            found[Purpose[purpose]].add(name)
        other = re.findall(
            r"torch\.(?:rand\w*|Generator|manual_seed)\(|default_rng\(|RandomState\(|np\.random\.Philox\(",
            code,
        )
        assert not other or name in ("bits/philox", "data/toy"), (
            name,
            other,
        )  # toy tasks: scikit-learn's own, and NumPy's
    assert found == USERS


def test_a_permutation():
    for n in (0, 1, 2, 100):
        assert sorted(philox.permutation(n, 0, Purpose.SHUFFLING).tolist()) == list(range(n))
    firsts = [int(philox.permutation(5, 0, Purpose.SHUFFLING, epoch)[0]) for epoch in range(2000)]
    assert stats.chisquare(np.bincount(firsts)).pvalue > 1e-4
    assert not np.array_equal(
        philox.permutation(50, 0, Purpose.SHUFFLING), philox.permutation(50, 0, Purpose.TEST_SPLIT)
    )


# Members


def standardised_members(purpose, monkeypatch):
    """Sums of (w - mu) sign(w^r) over 800 weights of 100 members, standardised, after training with
    the same seeds.
    """
    monkeypatch.setattr(weights, "Purpose", type("P", (), {"MEMBERS": purpose}))
    z = []
    for seed in range(20):
        w_r = torch.nn.Parameter(torch.zeros(800))
        rule = bisnn.BayesBiSNN([w_r], lr=0.3, temperature=0.0, seed=seed)
        for _ in range(5):
            with rule.sampled():
                (0.5 * w_r.square()).sum().backward()  # a gradient that follows the noise
            rule.step()
        latent = w_r.detach()
        mu = weights.mean(latent)
        for (w,) in weights.draw_members([latent], 5, seed):
            z.append(
                float(((w - mu) * weights.sign(latent)).sum() / (1 - mu.square()).sum().sqrt())
            )
    return np.array(z)


def test_members_are_samples_of_the_posterior_given_the_training_draws(monkeypatch):
    """Chi-squared over members of trained posteriors; with the numbers that training used, the same
    test fails.
    """
    z = standardised_members(Purpose.MEMBERS, monkeypatch)
    assert 1e-3 < stats.chi2(len(z)).cdf(z @ z) < 1 - 1e-3
    z = standardised_members(Purpose.TRAINING_NOISE, monkeypatch)
    assert stats.chi2(len(z)).sf(z @ z) < 1e-6


def test_member_k_is_the_same_however_many_there_are():
    w_r = [torch.linspace(-1, 1, 60).reshape(6, 10), torch.zeros(7)]
    many = weights.draw_members(w_r, 5, seed=3)
    for k, member in enumerate(weights.draw_members(w_r, 2, seed=3, first=3)):
        assert all(torch.equal(a, b) for a, b in zip(member, many[3 + k], strict=True))
    assert not torch.equal(many[0][0], many[1][0])


# Points


@given(st.integers(0, 2**32 - 1), st.permutations(range(8)), st.integers(1, 5), st.integers(0, 3))
def test_spikes_belong_to_the_point(seed, order, features, draw):
    """Any order, subset or repetition of points gives each the same spikes."""
    x = torch.rand(8, features, generator=torch.Generator().manual_seed(features))
    whole = encode.population(x, 20, neurons=3, width=1.0, seed=seed, draw=draw)
    assert torch.equal(
        encode.population(x[order], 20, neurons=3, width=1.0, seed=seed, draw=draw), whole[:, order]
    )
    again = encode.population(x[[2, 2, 5]], 20, neurons=3, width=1.0, seed=seed, draw=draw)
    assert torch.equal(again, whole[:, [2, 2, 5]])


def test_spikes_of_a_point_by_hand():
    """Digest and draws step by step, with whole numbers."""
    x = np.array([[0.25, -0.0, 0.5, 0.75, 1.0]], np.float32)
    rates = np.array([[0.1, 0.5, 0.9]])
    h = philox.philox(4, 5, 0, 0, 9, Purpose.POINTS)
    bits = [0x3E800000, 0, 0x3F000000, 0x3F400000, 0x3F800000, 0, 0, 0]
    for first in (0, 4):
        h = philox.philox(
            *(a ^ b for a, b in zip(h, bits[first : first + 4], strict=True)), 9, Purpose.POINTS
        )
    words = [w for b in range(5) for w in philox.philox(b, *h[:3], 9, Purpose.ENCODING)]
    expected = [
        [w / 2**32 < rates[0, m] for m, w in enumerate(words[3 * t : 3 * t + 3])] for t in range(6)
    ]
    got = philox.point_spikes(x, rates, 6, 9, Purpose.ENCODING, draw=4)[:, 0]
    assert got.astype(bool).tolist() == expected


@pytest.mark.parametrize("change", [1, 6, 255])
def test_draw_and_value_do_not_cancel(change):
    """Epochs of a point are not other epochs of a neighbour whose bits differ as the epochs do."""
    x = np.array([[0.25, 0.5]], np.float32)
    near = (x.view(np.uint32) ^ np.array([[change, 0]], np.uint32)).view(np.float32)
    rates = np.full((1, 40), 0.5)
    a = philox.point_spikes(x, rates, 50, 0, Purpose.TRAINING_ENCODING, draw=8)
    b = philox.point_spikes(near, rates, 50, 0, Purpose.TRAINING_ENCODING, draw=8 ^ change)
    assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.1


def test_minus_zero_is_zero_and_neighbouring_floats_are_other_points():
    rates = np.full((3, 40), 0.5)
    x = np.array([[0.0], [-0.0], [np.nextafter(np.float32(0), np.float32(1))]], np.float32)
    a, b, c = philox.point_spikes(x, rates, 50, 0, Purpose.ENCODING).transpose(1, 0, 2)
    assert np.array_equal(a, b)
    assert abs(np.corrcoef(a.flatten(), c.flatten())[0, 1]) < 0.1


def test_tuning_curves_are_the_papers():
    """The polynomial against the cosine, on the whole line; exactly 0 at the ends and 1 at the
    centre.
    """
    r = np.linspace(-1, 1, 20_001)
    assert np.abs(encoding.raised_cosine(r) - (0.5 + 0.5 * np.cos(np.pi * r))).max() < 1e-15
    assert encoding.raised_cosine(np.array([-1.0, 0.0, 1.0])).tolist() == [0.0, 1.0, 0.0]
    x = np.random.default_rng(0).uniform(-0.5, 1.5, (200, 2)).astype(np.float32)
    centres = np.linspace(0, 1, 10)
    phase = np.clip(np.pi * (x.astype(np.float64)[..., None] - centres) / (2.5 / 9), -np.pi, np.pi)
    np.testing.assert_allclose(
        encoding.population_rates(x, 10, 2.5),
        (0.5 + 0.5 * np.cos(phase)).reshape(200, 20),
        atol=1e-14,
    )
    ours = encode.population_rates(torch.from_numpy(x).double(), 10, 2.5).numpy()
    np.testing.assert_allclose(ours, encoding.population_rates(x, 10, 2.5), atol=1e-15)


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.4, 1.0])
def test_spikes_over_points_have_their_rates(rate):
    x = np.random.default_rng(0).random((2000, 3)).astype(np.float32)
    s = philox.point_spikes(x, np.full((2000, 7), rate), 11, 1, Purpose.ENCODING)
    assert stats.binomtest(int(s.sum()), s.size, rate).pvalue > 1e-4
