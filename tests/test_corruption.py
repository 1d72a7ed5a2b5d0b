"""Corruptions of events: each kind against its closed form, and what all kinds have in common."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bisnn.data import corruption, events
from bisnn.data.corrupted import CAMERAS
from bisnn.data.corruption import CORRUPTIONS, STRENGTHS, corrupt
from bisnn.data.events import EVENTS, Recording
from runs import made_up

SIDE = 34
ALL = [(kind, strength) for kind in CORRUPTIONS for strength in range(1, STRENGTHS + 1)]


def recorded(n: int = 4000, seed: int = 0, start_us: int = 0) -> Recording:
    found = made_up(n, SIDE, seed)
    found["t"] += start_us
    return Recording(found, (SIDE, SIDE), "made up")


def rows(found: np.ndarray) -> list[tuple]:
    return sorted(found.tolist())


def amounts(kind: str) -> list[tuple[int, float]]:
    return list(enumerate(CORRUPTIONS[kind].amounts, 1))


def pixels(found: np.ndarray) -> np.ndarray:
    return found["y"].astype(int) * SIDE + found["x"]


def added(before: Recording, after: Recording) -> np.ndarray:
    """The events that a corruption has added; all others must be there still."""
    left = list(map(tuple, after.events.tolist()))
    for event in map(tuple, before.events.tolist()):
        left.remove(event)
    return np.array(left, EVENTS)


# What each kind does, against closed forms


@pytest.mark.parametrize(("strength", "share"), amounts("lost_events"))
def test_lost_events_are_a_binomial_share(strength, share):
    seen = recorded(20_000)
    kept = corrupt(seen, "lost_events", strength).events
    assert stats.binomtest(len(kept), 20_000, 1 - share).pvalue > 1e-4
    counts = [
        len(corrupt(recorded(200, seed), "lost_events", strength).events) for seed in range(300)
    ]
    spread = np.var(counts, ddof=1) / (200 * share * (1 - share))
    assert 1e-4 < stats.chi2(299).cdf(299 * spread) < 1 - 1e-4, "independent, event by event"
    assert set(rows(kept)) <= set(rows(seen.events))


@pytest.mark.parametrize(("strength", "hz"), amounts("noise_events"))
def test_noise_is_uniform_over_pixels_times_and_polarities(strength, hz):
    seen = recorded(3, start_us=70_000)
    seen.events["t"] = 70_000, 2_000_000, 5_070_000
    noise = added(seen, corrupt(seen, "noise_events", strength))
    assert len(noise) == round(hz * SIDE**2 * 5)
    assert stats.chisquare(np.bincount(pixels(noise), minlength=SIDE**2)).pvalue > 1e-4
    assert stats.binomtest(int(noise["p"].sum()), len(noise)).pvalue > 1e-4
    times = stats.uniform(70_000, 5_000_000)
    assert stats.kstest(noise["t"], times.cdf).pvalue > 1e-4
    for a, b in itertools.combinations("xytp", 2):
        together = np.corrcoef(noise[a].astype(float), noise[b].astype(float))[0, 1]
        assert abs(together) < 5 / np.sqrt(len(noise))


@pytest.mark.parametrize(("strength", "share"), amounts("hot_pixels"))
def test_hot_pixels_fire_all_the_time(strength, share):
    seen = recorded(500)
    hot = added(seen, corrupt(seen, "hot_pixels", strength))
    each = round(corruption.HOT_HZ * seen.duration_us * 1e-6)
    counts = np.bincount(pixels(hot), minlength=SIDE**2)
    assert sorted(set(counts.tolist())) == [0, each]
    assert (counts > 0).sum() == round(share * SIDE**2)
    for pixel in np.flatnonzero(counts):
        assert len(set(hot["p"][pixels(hot) == pixel])) == 1, "of one polarity"
    where = stats.uniform(seen.start_us, seen.duration_us)
    assert stats.kstest(hot["t"], where.cdf).pvalue > 1e-4


@pytest.mark.parametrize(("strength", "share"), amounts("dead_pixels"))
def test_dead_pixels_see_nothing_and_others_all(strength, share):
    seen = recorded(40_000)  # an event at every pixel
    left = corrupt(seen, "dead_pixels", strength).events
    dead = np.setdiff1d(np.arange(SIDE**2), pixels(left))
    assert len(dead) == round(share * SIDE**2)
    assert rows(left) == rows(seen.events[~np.isin(pixels(seen.events), dead)])


def test_every_pixel_dies_equally_often():
    seen = recorded(1)
    seen.events["t"] = np.arange(1)
    count = np.zeros(SIDE**2)
    for seed in range(400):
        draws = corruption._draws(seen, "dead_pixels", seed)
        count[corruption._some_pixels(seen, 0.2, draws)] += 1
    # Without replacement: the sum is fixed, the variance is a little smaller
    spread = ((count - count.mean()) ** 2).sum() / (count.mean() * (1 - 0.2))
    assert 1e-4 < stats.chi2(SIDE**2 - 1).cdf(spread) < 1 - 1e-4


@pytest.mark.parametrize(("strength", "far"), amounts("moved_sensor"))
def test_a_moved_sensor_moves_all_events_alike(strength, far):
    ways = set()
    for seed in range(60):
        seen = recorded(300, seed)
        seen.events["t"] = np.arange(300)  # each event is known by its time
        moved = corrupt(seen, "moved_sensor", strength).events
        before = seen.events[moved["t"]]
        ((dx, dy),) = {
            (int(x), int(y))
            for x, y in zip(moved["x"] - before["x"], moved["y"] - before["y"], strict=True)
        }
        assert abs(np.hypot(dx, dy) - far) <= np.sqrt(0.5), "as far, to the nearest pixel"
        ways.add((np.sign(dx), np.sign(dy)))
        x, y = seen.events["x"] + dx, seen.events["y"] + dy
        inside = (x >= 0) & (x < SIDE) & (y >= 0) & (y < SIDE)
        assert moved["t"].tolist() == np.flatnonzero(inside).tolist()
    assert {(-1, -1), (-1, 1), (1, -1), (1, 1)} <= ways


@pytest.mark.parametrize(("strength", "degrees"), amounts("turned_sensor"))
def test_a_turned_sensor_turns_all_events_about_its_middle(strength, degrees):
    """As numbers of the complex plane; what lands beyond the sensor is lost, and nothing else."""
    middle = complex((SIDE - 1) / 2, (SIDE - 1) / 2)
    signs = set()
    for seed in range(20):
        seen = recorded(400, seed)
        seen.events["t"] = np.arange(400)
        turned = corrupt(seen, "turned_sensor", strength).events
        z, w = (e["x"] + 1j * e["y"] - middle for e in (seen.events, turned))
        sign = np.sign((w * z[turned["t"]].conj()).sum().imag)
        signs.add(sign)
        exact = z * np.exp(1j * sign * np.deg2rad(degrees))
        assert np.abs(w - exact[turned["t"]]).max() <= np.sqrt(0.5) + 1e-9, "the nearest pixel"
        inside = (np.abs(exact.real) < SIDE / 2) & (np.abs(exact.imag) < SIDE / 2)
        assert turned["t"].tolist() == np.flatnonzero(inside).tolist()
    assert signs == {-1, 1}


@pytest.mark.parametrize("kind", ["faster_motion", "slower_motion"])
def test_motion_is_stretched_from_the_first_event_on(kind):
    seen = recorded(2000, start_us=12_345)
    for strength, factor in amounts(kind):
        found = corrupt(seen, kind, strength).events
        expected = seen.start_us + np.floor((seen.events["t"] - seen.start_us) * factor)
        assert found["t"].tolist() == expected.tolist()
        for name in "xyp":
            assert (found[name] == seen.events[name]).all()
    assert (CORRUPTIONS[kind].amounts[0] < 1) == (kind == "faster_motion")


@pytest.mark.parametrize(("strength", "most"), amounts("jittered_times"))
def test_jitter_is_uniform(strength, most):
    seen = recorded(SIDE**2)
    seen.events["x"], seen.events["y"] = np.divmod(np.arange(SIDE**2), SIDE)  # known by its pixel
    seen.events["t"] += 10**6
    seen.events["t"][0], seen.events["t"][-1] = 0, 3 * 10**6  # so that none meets an end
    found = corrupt(seen, "jittered_times", strength).events
    found = found[np.argsort(found["x"].astype(int) * SIDE + found["y"])]
    late = (found["t"] - seen.events["t"])[1:-1]
    assert stats.kstest(late, stats.uniform(-most, 2 * most).cdf).pvalue > 1e-4


def test_jitter_stays_within_the_recording():
    seen = recorded(2000, start_us=500)
    found = corrupt(seen, "jittered_times", STRENGTHS).events
    assert found["t"].min() >= seen.start_us
    assert found["t"].max() <= seen.start_us + seen.duration_us


@pytest.mark.parametrize(("strength", "share"), amounts("dropped_polarity"))
def test_one_polarity_is_dropped(strength, share):
    which = []
    for seed in range(40):
        seen = recorded(2000, seed)
        found = corrupt(seen, "dropped_polarity", strength).events
        left = np.bincount(found["p"], minlength=2) / np.bincount(seen.events["p"], minlength=2)
        which.append(int(left.argmin()))
        assert left.max() == 1
        of = int((seen.events["p"] == which[-1]).sum())
        assert stats.binomtest(round(left.min() * of), of, 1 - share).pvalue > 1e-6
    assert stats.binomtest(sum(which), 40).pvalue > 1e-4


# What all kinds have in common


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_strength_0_and_empty_recordings_stay_as_they_are(kind):
    seen, empty = recorded(50), recorded(0)
    assert corrupt(seen, kind, 0) is seen
    for strength in range(STRENGTHS + 1):
        assert len(corrupt(empty, kind, strength).events) == 0


@pytest.mark.parametrize("kind", CORRUPTIONS)
@given(
    strength=st.integers(1, STRENGTHS),
    n=st.integers(0, 200),
    width=st.integers(1, 20),
    height=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    start=st.integers(-(2**40), 2**40),
)
def test_events_stay_in_order_on_the_sensor_and_of_their_type(
    kind, strength, n, width, height, seed, start
):
    rng = np.random.default_rng(n)
    found = np.zeros(n, EVENTS)
    found["x"], found["y"] = rng.integers(0, width, n), rng.integers(0, height, n)
    found["t"], found["p"] = start + np.sort(rng.integers(0, 10**5, n)), rng.integers(0, 2, n)
    seen = Recording(found.copy(), (width, height), "made up", {"outside the sensor": 2})
    after = corrupt(seen, kind, strength, seed=seed)
    assert (seen.events == found).all(), "the recording itself is not touched"
    assert after.events.dtype == EVENTS
    assert (after.size, after.format, after.skipped) == (seen.size, seen.format, seen.skipped)
    assert ((after.events["x"] >= 0) & (after.events["x"] < width)).all()
    assert ((after.events["y"] >= 0) & (after.events["y"] < height)).all()
    assert (np.diff(after.events["t"]) >= 0).all()
    if n:
        assert after.events["t"].min(initial=start + 10**7) >= seen.start_us
    again = corrupt(replace(seen, format="another"), kind, strength, seed=seed)
    assert (again.events == after.events).all(), "by its events and the seed alone"


@pytest.mark.parametrize("kind", sorted(set(CORRUPTIONS) - {"faster_motion", "slower_motion"}))
def test_draws_are_of_the_kind_the_seed_and_the_events(kind):
    """Another polarity of a single event, another seed, kind or name: other numbers, unrelated."""
    seen = recorded(400)
    near = replace(seen, events=seen.events.copy())
    near.events["p"][0] ^= True
    base = corruption._draws(seen, kind, 0)("one", 500)[:, 0]
    for other in (
        corruption._draws(seen, kind, 0)("two", 500),
        corruption._draws(seen, kind, 1)("one", 500),
        corruption._draws(near, kind, 0)("one", 500),
        corruption._draws(seen, "another", 0)("one", 500),
    ):
        assert abs(np.corrcoef(base, other[:, 0])[0, 1]) < 0.2
    found = [rows(corrupt(seen, kind, 5, seed=seed).events) for seed in range(8)]
    assert any(other != found[0] for other in found)


@pytest.mark.parametrize("kind", ["lost_events", "dead_pixels", "dropped_polarity"])
def test_what_is_lost_at_one_strength_is_lost_at_the_next(kind):
    seen = recorded(1000)
    kept = [set(rows(corrupt(seen, kind, strength).events)) for strength in range(STRENGTHS + 1)]
    assert all(more > less for more, less in itertools.pairwise(kept))


@pytest.mark.parametrize("kind", ["noise_events", "hot_pixels"])
def test_what_is_added_at_one_strength_is_added_at_the_next(kind):
    seen = recorded(300)
    there = [rows(corrupt(seen, kind, strength).events) for strength in range(STRENGTHS + 1)]
    assert all(set(less) < set(more) for less, more in itertools.pairwise(there))


@pytest.mark.parametrize("size", [(50, 1), (1, 50)])
def test_a_row_of_sensors_does_not_leave_itself(size):
    found = np.zeros(50, EVENTS)
    found["t"] = np.arange(50)
    found["x" if size[1] == 1 else "y"] = np.arange(50)
    seen = Recording(found, size, "ear")
    assert (corrupt(seen, "turned_sensor", 5).events == found).all()
    assert len(corrupt(seen, "moved_sensor", 5).events) == 50 - 6


def test_amounts_grow_with_strength():
    assert len(CORRUPTIONS) == 10
    for kind, (_, amounts, _) in CORRUPTIONS.items():
        assert len(amounts) == STRENGTHS
        away = [abs(np.log(a)) if "motion" in kind else a for a in amounts]
        assert all(a < b for a, b in itertools.pairwise([0, *away])), kind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lost_event", 1), "kind: must be one of lost_events.*did you mean 'lost_events'"),
        (("lost_events", 6), "strength: must be a whole number from 0 to 5; got 6"),
        (("lost_events", True), "strength: must be a whole number from 0 to 5; got True"),
        (("lost_events", 1.5), "strength: must be a whole number from 0 to 5; got 1.5"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        corrupt(recorded(10), *arguments)
    with pytest.raises(ValueError, match="seed: must be a whole number"):
        corrupt(recorded(10), "lost_events", 0, seed=-1)


def test_a_file_is_corrupted_as_its_events_are(tmp_path):
    seen = recorded(100)
    events.write_nmnist(tmp_path / "a.bin", seen.events)
    read = events.read_events(tmp_path / "a.bin")
    for kind, strength in ALL:
        assert (corrupt(read, kind, strength).events == corrupt(seen, kind, strength).events).all()


def test_the_document_has_every_kind_with_its_amounts():
    text = (Path(__file__).parent.parent / "docs" / "EVENTS.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| ([\d., ]+) \|", text, re.MULTILINE))
    unit = {"jittered_times": 1000}  # the document has milliseconds
    assert {
        kind: [float(amount) * unit.get(kind, 1) for amount in row.split(",")]
        for kind, row in table.items()
    } == {kind: list(row.amounts) for kind, row in (CORRUPTIONS | CAMERAS).items()}
