"""bisnn_experiments.moving_picture: what it shows is what the packed engine does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bisnn.packed import Engine
from bisnn.shipping import web
from bisnn_experiments import moving_picture
from bisnn_experiments.moving_picture import moments, recording, shipped

PICTURE = Path(__file__).parents[1] / "docs" / "decision.gif"


@pytest.fixture(scope="module")
def shown():
    return recording(moving_picture.RECORDING)


def test_every_moment_is_the_engines(shown):
    network, x = shipped(), shown[:, None]
    story, rule = list(moments(network, shown)), network.sets
    whole, answer = Engine(network).run(x, spikes=True), Engine(network).predict_sets(x)
    assert len(story) == answer.steps[0] < len(x)
    assert story[-1].decided
    assert (story[-1].inside == answer.sets[0]).all()
    looks = {t: look for look, (t, _) in enumerate(rule.path)}
    for n, moment in enumerate(story, 1):
        assert (moment.events == shown[n - 1]).all()
        for layer, spikes in zip(moment.spikes, whole.spikes, strict=True):
            assert (layer == spikes[:, n - 1, 0].mean(0)).all()
        cut = replace(network, burn_in=min(n - 1, network.burn_in))
        expected = Engine(cut).predict(x[:n]).mean[0]
        assert moment.probabilities == pytest.approx(expected, abs=1e-6)
        assert moment.looked == (n in looks)
        if n in looks:
            path, thresholds = rule.path[looks[n]], rule.thresholds[looks[n]]
            alone = replace(rule, path=(path,), thresholds=(thresholds,))
            found = Engine(replace(network, sets=alone)).predict_sets(x)
            assert (moment.inside == found.sets[0]).all()
        else:
            assert moment.inside.all()


def test_a_recording_that_is_never_decided_is_shown_to_its_end():
    network, noise = shipped(), np.zeros((20, 2, 26, 26), np.uint8)
    story = list(moments(network, noise))
    assert len(story) == 20
    assert not story[-1].decided
    assert story[-1].inside.all()
    assert np.allclose(story[-1].probabilities, 0.1)


def test_pixels_that_get_brighter_are_blue(shown):
    story = list(moments(shipped(), shown))
    drawn = np.asarray(moving_picture.draw(story, story[-1].probabilities, len(shown), 1.0))
    on = web.digits().about["sketchpad"]["on"]
    edge, scale = 196 / 26, moving_picture.SCALE
    for channel, colour in ((on, moving_picture.BLUE), (1 - on, moving_picture.ORANGE)):
        places = np.argwhere(story[-1].events[channel] > story[-1].events[1 - channel])
        assert len(places) > 10
        for y, x in places:
            row, column = scale * (34 + edge * (y + 0.5)), scale * (16 + edge * (x + 0.5))
            assert tuple(drawn[int(row), int(column)]) == colour


def test_the_picture_in_the_docs_ends_as_the_recording_does(shown):
    story = list(moments(shipped(), shown))
    last = moving_picture.draw(story, story[-1].probabilities, len(shown), 1.0)
    with Image.open(PICTURE) as picture:
        assert picture.n_frames == 1 + moving_picture.BETWEEN * len(story)
        picture.seek(picture.n_frames - 1)
        there = np.asarray(picture.convert("RGB"), int)
    assert np.abs(there - np.asarray(last, int)).mean() < 1  # of 255: colours of a palette
    assert PICTURE.stat().st_size < 600_000
