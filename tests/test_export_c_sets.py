"""Prediction sets in exported C code: those of the packed engine, where it stops and what is in
them.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bisnn
import networks
from bisnn import Linear, Network
from bisnn.conformal import ConformalSets
from bisnn.packed import Engine, PackedNetwork
from bisnn.packing import describe
from bisnn.runs import training
from bisnn.shipping import c
from runs import small
from test_export_c import COMPILERS, SANITIZED, STRICT, build, drawn, outcome
from test_export_c_points import POPULATION, points_network, some_points
from test_guarantee import HALF

pytestmark = pytest.mark.skipif(not COMPILERS, reason="needs a C compiler: gcc or clang")

# Looks, (time steps, members), and the thresholds of each: ties at 0, empty sets below it, and all
# classes at once
RULES = {
    "every step": ([(t, 3) for t in range(1, 21)], range(20, 0, -1)),
    "ties": ([(1, 3), (2, 3), (3, 3), (20, 3)], (0, 0, 0, 0)),
    "empty": ([(1, 3), (20, 3)], (-1, -5)),
    "all": ([(5, 3), (20, 3)], (2**61, 2**40)),
    "members": ([(2, 1), (2, 2), (2, 3), (7, 3), (20, 3)], (3, 3, 2, 2, 1)),
    "fewer members": ([(4, 1), (15, 2)], (4, 4)),
}


def with_sets(
    rule: str = "every step", outputs: int = 3, most: int = 1, neuron=networks.NEURON
) -> PackedNetwork:
    net = Network(Linear(6, 9), Linear(9, 8), readout=outputs, neuron=neuron, seed=0)
    path, thresholds = RULES[rule]
    rows = tuple((n,) * outputs for n in thresholds)
    sets = ConformalSets(tuple(path), rows, 0.9, most=most, recordings=100)
    return replace(describe(net, drawn(net, 3)), sets=sets)


DRIVER = """
#include <stdio.h>
#include <string.h>
#include "model.h"
int main(void)
{
    static model_state states[STATES];
    model_decision decision;
    unsigned long word;
    memset(&decision, 0xff, sizeof decision);
    for (;;) {
        int t, e, k, done = 0;
        for (e = 0; e < STATES; e++)
            model_reset(&states[e]);
        model_decision_reset(&decision);
        for (t = 0; t < STEPS; t++) {
            for (e = 0; e < STATES; e++) {
                uint32_t x[MODEL_INPUT_WORDS];
                for (k = 0; k < MODEL_INPUT_WORDS; k++) {
                    if (scanf("%lx", &word) != 1)
                        return 0;
                    x[k] = (uint32_t)word;
                }
                model_step(&states[e], x, NULL);
            }
            done = model_decided(&decision, states);
        }
        for (k = 0; k < MODEL_OUTPUTS; k++)
            printf("%d ", (int)(decision.set[k / 32] >> k % 32 & 1));
        printf("%lu %lu %lu %d\\n", (unsigned long)decision.size, (unsigned long)decision.steps,
               (unsigned long)decision.members, done);
    }
}
"""


def answers(
    network: PackedNetwork, folder: Path, recordings: list[np.ndarray], flags=SANITIZED
) -> np.ndarray:
    """Of each recording: its set, size, time steps, members, and whether it is decided; from
    recordings (T, B, N), one for each encoding.
    """
    c.write(network, folder, recordings[0][:, 0])
    steps, batch = recordings[0].shape[:2]
    (folder / "driver.c").write_text(DRIVER)
    options = (f"-DSTEPS={steps}", f"-DSTATES={len(recordings)}")
    build(folder, *STRICT, *flags, *options, sources="model.c driver.c")
    words = np.stack(recordings, 2).astype(bool)  # (T, B, E, N)
    packed = (words * (1 << np.arange(words.shape[-1]))).sum(-1)
    given = "\n".join(format(word, "x") for word in packed.swapaxes(0, 1).ravel())
    done = subprocess.run(
        [folder / "program"], input=given, capture_output=True, text=True, check=True
    )
    found = np.array([line.split() for line in done.stdout.splitlines()], int)
    assert len(found) == batch
    return found


def expected(found) -> np.ndarray:
    columns = (found.sizes, found.steps, found.members, np.ones_like(found.sizes))
    return np.concatenate([found.sets, np.stack(columns, 1)], 1)


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_the_sets_are_the_engines(rule, most, tmp_path):
    network = with_sets(rule, most=most)
    x = (np.random.default_rng(0).random((20, 150, 6)) < 0.3).astype(np.uint8)
    x[:, 0] = 0  # no spike at all: every class is the best
    wanted = expected(Engine(network).predict_sets(x))
    assert np.array_equal(answers(network, tmp_path, [x]), wanted)
    sizes, steps = wanted[:, 3], wanted[:, 4]
    if rule in ("every step", "members"):
        assert len(np.unique(sizes)) > 1
        assert len(np.unique(steps)) > 1
    if rule == "ties":
        assert (sizes > 1).any()
    if rule == "empty":
        assert (sizes == 1).all()


def test_many_classes_and_integers(tmp_path):
    network = with_sets("members", outputs=40, neuron=networks.FIXED)
    x = (np.random.default_rng(1).random((20, 60, 6)) < 0.3).astype(np.uint8)
    wanted = expected(Engine(network).predict_sets(x))
    assert len(np.unique(wanted[:, 40])) > 2
    assert np.array_equal(answers(network, tmp_path, [x]), wanted)


def test_several_encodings_of_a_point_are_seen_at_once(tmp_path):
    network = points_network(POPULATION, 2, classes=("a", "b", "c"), members=2)
    path = tuple((t, 2) for t in range(1, 41, 3))
    rows = tuple((2 * n,) * 3 for n in range(len(path), 0, -1))
    network = replace(network, sets=ConformalSets(path, rows, 0.8, recordings=9))
    engine, points = Engine(network), some_points(network, 80)
    recordings = next(engine._coded(points))
    assert len(recordings) == 2
    wanted = expected(engine.predict_feature_sets(points))
    assert len(np.unique(wanted[:, 4])) > 2
    assert np.array_equal(answers(network, tmp_path, recordings), wanted)
    for compiler in COMPILERS:  # as do the golden vectors, which were written with these sets
        build(tmp_path, *STRICT, compiler=compiler)
        assert outcome(tmp_path)[0] == 0


def test_a_wrong_golden_set_is_found(tmp_path):
    network = with_sets()
    c.write(network, tmp_path, np.ones((20, 6), np.uint8))
    build(tmp_path, *STRICT)
    assert outcome(tmp_path)[0] == 0
    path = tmp_path / "model_golden.h"
    head, end = path.read_text().rsplit("golden_set[3] = {\n", 1)
    first, rest = end.split(",", 1)
    path.write_text(f"{head}golden_set[3] = {{\n{int(first, 16) ^ 1},{rest}")
    build(tmp_path, *STRICT)
    assert outcome(tmp_path)[1].startswith("different: run 0, ")
    assert ", prediction set, word 0: " in outcome(tmp_path)[1]


def test_a_calibrated_run_ships_its_sets(tmp_path, capsys):
    run = training.train(small("bayes", HALF), tmp_path / "run", show=False)
    bisnn.calibrate(run, coverage=0.8, show=False)
    bisnn.export(run, "c", tmp_path / "c", predictor="members")
    header = (tmp_path / "c" / "model.h").read_text()
    assert "class is in the set in 0.8 of all cases" in header
    assert "int model_decided(model_decision *decision, const model_state *state);" in header
    build(tmp_path / "c", *STRICT)
    assert outcome(tmp_path / "c")[0] == 0
    build(tmp_path / "c", *STRICT, sources="model.c stream.c")
    assert outcome(tmp_path / "c")[1].startswith("after ")
    capsys.readouterr()
    bisnn.export(run, "c", tmp_path / "map", predictor="map")
    assert "so the prediction sets are left out" in capsys.readouterr().err
    assert "decided" not in (tmp_path / "map" / "model.h").read_text()


def test_what_sets_cannot_be(tmp_path):
    network = with_sets()
    with pytest.raises(ValueError, match=r"x: must have 20 time steps or more.*; got 19; record"):
        c.write(network, tmp_path / "c", np.ones((19, 6), np.uint8))
    long = replace(network.sets, path=((1 << 27, 3),), thresholds=((1, 1, 1),))
    with pytest.raises(ValueError, match=r"sums of counts must stay below 2\^31.*earlier looks"):
        c.write(replace(network, sets=long), tmp_path / "c", np.ones((19, 6), np.uint8))
    assert not list(tmp_path.iterdir())
