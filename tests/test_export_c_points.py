"""Exported C that encodes points: spikes against `packed.encoding`, results against the engine."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bisnn
from bisnn import Linear, Network
from bisnn.packed import Engine, PackedNetwork, encoding
from bisnn.packed.columns import Column, Schema
from bisnn.packing import describe
from bisnn.runs import training
from bisnn.shipping import c, conversion
from runs import small
from test_export_c import COMPILERS, FLAGS, STRICT, build, drawn, outcome

pytestmark = pytest.mark.skipif(not COMPILERS, reason="needs a C compiler: gcc or clang")

DOCUMENT = Path(__file__).parent.parent / "docs" / "SHIPPING.md"
POPULATION = {
    "code": "population",
    "steps": 40,
    "neurons": 10,
    "width": 2.5,
    "seed": 3,
    "encodings": 2,
}
RATE = {"code": "rate", "steps": 301, "neurons": 2, "width": 1.0, "seed": 2**32 - 1, "encodings": 1}


def points_network(
    code: dict, features: int, *, classes: tuple[str, ...] = (), members: int = 2
) -> PackedNetwork:
    """A network of random weights for so many features; the first has low = 0, others any."""
    rng = np.random.default_rng(features)
    low = np.concatenate([[0.0], rng.normal(0, 10.0 ** rng.integers(-3, 4, features - 1))])
    high = low + rng.uniform(0.1, 10, features) * 10.0 ** rng.integers(-3, 4, features)
    inputs = features * (code["neurons"] if code["code"] == "population" else 1)
    net = Network(
        Linear(inputs, 33), Linear(33, 20), readout=len(classes) or 1, seed=0, dtype=torch.float32
    )
    code = {**code, "low": low.tolist(), "high": high.tolist()}
    about = {
        "classes": classes,
        "encoding": code,
        "burn_in": 5,
        "task": "classification" if classes else "regression",
    }
    return replace(describe(net, drawn(net, members)), **about)


def written(network: PackedNetwork, folder: Path, prefix: str = "model") -> dict[str, int]:
    recording = encoding.spikes(network.encoding, np.array([network.encoding["high"]]))[:, 0]
    return c.write(network, folder, recording, prefix=prefix)


def some_points(network: PackedNetwork, count: int) -> np.ndarray:
    low, high = (np.array(network.encoding[name]) for name in ("low", "high"))
    return low + (high - low) * np.random.default_rng(1).uniform(-0.3, 1.3, (count, len(low)))


def lines(points: np.ndarray) -> str:
    return "\n".join(" ".join(map(repr, row)) for row in points.tolist())


def answers(folder: Path, given: str) -> list[str]:
    done = subprocess.run(
        [folder / "program"], input=given, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("code", [POPULATION, RATE], ids=lambda code: code["code"])
@pytest.mark.parametrize("features", [1, 2, 5, 32])
def test_golden_points_are_exact_however_they_are_compiled(code, features, tmp_path):
    network = points_network(code, features, classes=("no", "yes"))
    written(network, tmp_path)
    for compiler in COMPILERS:
        for flags in FLAGS if features == 5 else (("-O2",),):
            build(tmp_path, *STRICT, *flags, compiler=compiler)
            assert outcome(tmp_path)[0] == 0


ALL_SPIKES = """
#include <stdio.h>
#include "model.h"
int main(void) {
    static model_encoder encoder;
    double features[MODEL_FEATURES];
    uint32_t x[MODEL_INPUT_WORDS], t, i;
    for (;;) {
        for (i = 0; i < MODEL_FEATURES; i++)
            if (scanf("%lf", &features[i]) != 1) return 0;
        if (model_encode_start(&encoder, features, 7)) { puts("not finite"); continue; }
        for (i = 0; i < MODEL_INPUTS; i++) printf("%lx ", (unsigned long)encoder.limits[i]);
        for (t = 0; t < MODEL_STEPS; t++) {
            model_encode_step(&encoder, t, x);
            for (i = 0; i < MODEL_INPUTS; i++) putchar('0' + (int)(x[i / 32] >> i % 32 & 1));
        }
        putchar('\\n');
    }
}
"""


@pytest.mark.parametrize("fusing", [False, True])
@pytest.mark.parametrize("code", [POPULATION, RATE], ids=lambda code: code["code"])
def test_every_spike_of_many_points_is_the_encodings(code, fusing, tmp_path):
    network = points_network(code, 3)
    written(network, tmp_path)
    (tmp_path / "all.c").write_text(ALL_SPIKES)
    points = np.concatenate(
        [some_points(network, 200), [[-0.0, 1e300, -1e300], [5e-324, -0.0, 1.0]]]
    )
    wanted = encoding.spikes(network.encoding, points, draw=7)  # (T, N, M)
    low, high = (np.array(network.encoding[name]) for name in ("low", "high"))
    scaled = encoding.scaled(points, low, high)
    rates = (
        encoding.population_rates(scaled, code["neurons"], code["width"])
        if code is POPULATION
        else scaled.clip(0, 1)
    )
    limits = np.ceil(rates.astype(np.float64) * 2**24).astype(int)
    options = ("-O3", "-march=native", "-ffp-contract=fast") if fusing else ("-O2",)
    for compiler in COMPILERS:
        build(tmp_path, *STRICT, *options, compiler=compiler, sources="model.c all.c")
        printed = answers(tmp_path, lines(points))
        assert len(printed) == len(points)
        for i, line in enumerate(printed):
            *numbers, bits = line.split()
            assert [int(number, 16) for number in numbers] == limits[i].tolist()
            assert bits == "".join(map(str, wanted[:, i].ravel()))


def test_points_that_are_not_finite_are_refused(tmp_path):
    written(points_network(POPULATION, 3), tmp_path)
    (tmp_path / "all.c").write_text(ALL_SPIKES)
    build(tmp_path, *STRICT, "-O3", sources="model.c all.c")
    printed = answers(tmp_path, "nan 0 0\n0 inf 0\n0 0 -inf\n0 0 0")
    assert printed[:3] == ["not finite"] * 3
    assert len(printed[3]) > 1000


def test_a_wrong_golden_spike_is_found(tmp_path):
    written(points_network(POPULATION, 2), tmp_path)
    path = tmp_path / "model_golden.h"
    text = path.read_text()
    last = re.search(r"golden_encoded\[\d+\] = {[^}]*(0x\w+)}", text)
    path.write_text(text[: last.start(1)] + hex(int(last[1], 16) ^ 1) + text[last.end(1) :])
    build(tmp_path, *STRICT)
    code, printed = outcome(tmp_path)
    assert code == 1
    assert re.fullmatch(r"different: run 15, step 39, spikes of the encoder, word 0: .*\n", printed)


def documented_program() -> str:
    (program,) = re.findall(r"```c\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return program


def predicted(line: str) -> tuple[list[str], list[float]]:
    names, numbers = zip(*(part.rsplit(" ", 1) for part in line.split(", ")), strict=True)
    return list(names), [float(number) for number in numbers]


def test_the_documented_program_predicts_as_the_engine_does(tmp_path):
    classes = ("café", 'a "b"\\c', "??/ %d")  # what C could misread
    network = points_network(POPULATION, 4, classes=classes, members=3)
    written(network, tmp_path)
    (tmp_path / "main.c").write_text(documented_program())
    build(tmp_path, *STRICT, "-O2", sources="model.c main.c", last=("-lm",))
    points = some_points(network, 6)
    printed = [predicted(line) for line in answers(tmp_path, lines(points))]
    assert [names for names, _ in printed] == [list(classes)] * 6
    mean = Engine(network).predict_features(points).mean
    assert np.ptp(mean, 0).max() > 0.01, "points that all have one answer would prove little"
    np.testing.assert_allclose([numbers for _, numbers in printed], mean, atol=2e-6)


def test_a_run_predicts_in_c_as_it_does_in_python(tmp_path):
    """With the documented program, from raw features to the probabilities of the classes."""
    run = training.train(small(), tmp_path / "run", show=False)
    done = bisnn.export(run, "c", tmp_path / "c", prefix="moons")
    assert done.prefix == "moons"
    program = documented_program().replace("model", "moons").replace("MODEL", "MOONS")
    (tmp_path / "c" / "program.c").write_text(program)
    build(tmp_path / "c", *STRICT, "-O2", sources="moons.c moons_encode.c program.c", last=("-lm",))
    points = np.random.default_rng(0).uniform(-1, 2, (8, 2))
    printed = [predicted(line)[1] for line in answers(tmp_path / "c", lines(points))]
    np.testing.assert_allclose(printed, bisnn.load(run).predict(points).mean, atol=2e-6)
    build(tmp_path / "c", *STRICT, "-O2", sources="moons.c moons_encode.c moons_check.c main.c")
    assert outcome(tmp_path / "c")[0] == 0


def test_two_models_in_one_program(tmp_path):
    """Both predict as they do alone, from one program that includes both headers."""
    networks = {
        "gate": points_network(POPULATION, 2, classes=("open", "shut")),
        "door": points_network(RATE, 5, classes=("left", "right", "none"), members=1),
    }
    sources, mains = [], []
    for prefix, network in networks.items():
        written(network, tmp_path / prefix, prefix)
        body = documented_program().replace("model", prefix).replace("MODEL", prefix.upper())
        body = body.replace("int main(void)", f"int {prefix}_main(void)").replace(
            "add_softmax", f"{prefix}_softmax"
        )
        (tmp_path / f"{prefix}_main.c").write_text(
            body.replace("static int", "int").replace("predict(", f"{prefix}_predict(")
        )
        code = [f"{prefix}/{prefix}{end}.c" for end in ("", "_encode")]
        sources += [*code, f"{prefix}_main.c"]
        mains.append(f"int {prefix}_main(void);")
    (tmp_path / "both.c").write_text(
        '#include "gate.h"\n#include "door.h"\n#include <stdio.h>\n'
        + "\n".join(mains)
        + "\nint main(void) { int c = getchar(); "
        "return sizeof(gate_state) == sizeof(door_state) ? 2 : c == 'g' ? gate_main() : "
        "door_main(); }\n"
    )
    build(
        tmp_path,
        *STRICT,
        "-Wno-missing-prototypes",
        *(f"-I{prefix}" for prefix in networks),
        sources=" ".join([*sources, "both.c"]),
        last=("-lm",),
    )
    for prefix, network in networks.items():
        points = some_points(network, 3)
        printed = [predicted(line) for line in answers(tmp_path, prefix[0] + lines(points))]
        assert printed[0][0] == list(network.classes)
        np.testing.assert_allclose(
            [numbers for _, numbers in printed],
            Engine(network).predict_features(points).mean,
            atol=2e-6,
        )
    for prefix in networks:
        sources = f"{prefix}.c {prefix}_encode.c {prefix}_check.c main.c"
        build(tmp_path / prefix, *STRICT, sources=sources)
        assert outcome(tmp_path / prefix)[0] == 0


def test_what_the_header_says_of_a_model(tmp_path):
    sizes = written(points_network(POPULATION, 3, classes=("no", "maybe")), tmp_path)
    header = (tmp_path / "model.h").read_text()
    constants = dict(re.findall(r"^#define MODEL_(\w+) (\S+)", header, re.MULTILINE))
    wanted = {
        "STEPS": "40",
        "BURN_IN": "5",
        "FEATURES": "3",
        "ENCODINGS": "2",
        "CLASSES": "2",
        "INPUTS": "30",
    }
    assert wanted.items() <= constants.items()
    assert "extern const char model_classes[MODEL_CLASSES][6];" in header
    assert not {"TARGET_MEAN", "TARGET_SCALE"} & set(constants)
    # Of 2 members a row for each of 33 neurons; a row for each of 33 inputs, and what vectors read
    # beyond the last; the readout's; the classes
    assert sizes["flash"] == 4 * 2 * 33 + 4 * (2 * 33 + 7) + 4 * 2 + 2 * 6
    flash = 2 * 8 * 3 + 8 * len(encoding.COSINE)  # low and span, the cosine
    assert f"model_encode.c, with {flash} bytes of\n" in header
    parts = {"model.c": (("reset", "step"), sizes["flash"])}
    parts["model_encode.c"] = (("encode_start", "encode_step"), flash)
    for compiler in COMPILERS:
        for source, (names, size) in parts.items():
            build(tmp_path, *STRICT, "-O0", "-c", compiler=compiler, sources=source)
            listed = subprocess.check_output(["nm", "-S", tmp_path / "program"], text=True)
            symbols = [line.split() for line in listed.splitlines()]
            functions = {symbol[-1] for symbol in symbols if symbol[-2] == "T"}
            assert functions == {f"model_{name}" for name in names}
            assert not [symbol for symbol in symbols if symbol[-2] in "bBdDC"]
            tables = [symbol for symbol in symbols if symbol[-2] in "rR" and len(symbol) == 4]
            assert sum(int(symbol[1], 16) for symbol in tables) == size


def test_a_network_of_recordings_has_no_encoder(tmp_path):
    network = replace(points_network(POPULATION, 3, classes=("no", "yes")), encoding={})
    c.write(network, tmp_path, np.ones((9, 30), np.uint8))
    header = (tmp_path / "model.h").read_text()
    assert "encode" not in header
    assert "STEPS" not in header
    assert "#define MODEL_BURN_IN 5 " in header
    build(tmp_path, *STRICT, "-O2")
    assert outcome(tmp_path)[0] == 0


PRINT_UNITS = """
#include <stdio.h>
#include "model.h"
int main(void) {
    printf("%.17g %.17g", MODEL_TARGET_SCALE, 1 -MODEL_TARGET_MEAN);
    return 0;
}
"""


def test_regression_knows_the_units_of_its_target_and_the_names_of_its_features(tmp_path):
    plain = points_network(RATE, 2)
    columns = (Column("age"), Column("job */ \n", categories=("cook",)))
    schema = Schema(columns, ("age", "job */ \n"))
    of_table = replace(plain, target_mean=-1234.5, target_scale=0.1, schema=schema)
    for network, printed in ((plain, "1 1"), (of_table, "0.10000000000000001 1235.5")):
        folder = tmp_path / printed
        written(network, folder)
        (folder / "units.c").write_text(PRINT_UNITS)
        build(folder, *STRICT, sources="model.c units.c")
        assert outcome(folder) == (0, printed)
    order = "in this order:\n *   0: age\n *   1: job __ _ = cook */\n"
    assert order in (folder / "model.h").read_text()
    blank = replace(plain, schema=Schema((Column("age", 30.5, True),), ("age",)))
    written(blank, tmp_path / "blank")
    said = "1: age is blank: 1 where it is, with 30.5 in the feature before; else 0"
    assert said in (tmp_path / "blank" / "model.h").read_text()


@pytest.mark.parametrize("encodings", [1, 3])
@pytest.mark.parametrize("neuron", ["srm", "fixed"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_example_says_what_the_engine_predicts(tmp_path, task, neuron, encodings):
    """Of a point: the probability of the likeliest class, or the target in its units."""
    code, classes = {**POPULATION, "encodings": encodings}, ("no", "yes", "perhaps")
    network = points_network(code, 3, classes=() if task == "regression" else classes)
    if neuron == "fixed":
        network = conversion.converted(network, "fixed", 12)
    if task == "regression":
        network = replace(network, target_mean=1000.0, target_scale=25.0)
    written(network, tmp_path)
    build(tmp_path, *STRICT, "-O2", sources="model.c stream.c", last=("-lm",))
    code = network.encoding
    first = np.array(code["low"])[None]  # the first golden point
    found = Engine(network).predict_features(first)
    _, said = outcome(tmp_path)
    if task == "regression":
        assert float(said) == pytest.approx(found.mean[0, 0], rel=1e-4)
    else:
        best = found.mean[0].argmax()
        assert said == f"class {best}, {100 * found.mean[0, best]:.0f} % sure\n"


def test_the_example_answers_at_each_step_where_the_network_was_trained_to(tmp_path):
    network = points_network(POPULATION, 3, classes=("no", "yes"))
    point = np.array([network.encoding["low"]])
    x = encoding.spikes(network.encoding, point)[:, 0]
    c.write(replace(network, encoding={}), tmp_path, x, each_step=True)
    build(tmp_path, *STRICT, "-O2", sources="model.c stream.c", last=("-lm",))
    logits = Engine(network).run(x[:, None]).logits[:, network.burn_in :, 0]  # (K, T, C)
    probs = torch.from_numpy(logits).softmax(-1).mean(0)
    best, sure = probs.argmax(-1).tolist(), probs.amax(-1).tolist()
    said = [f"class {c}, {100 * p:.0f} % sure" for c, p in zip(best, sure, strict=True)]
    assert outcome(tmp_path)[1].splitlines() == said


def test_the_example_has_no_answer_where_all_is_burn_in(tmp_path):
    network = replace(points_network(POPULATION, 3, classes=("no", "yes")), burn_in=1000)
    written(network, tmp_path)
    build(tmp_path, *STRICT, "-O2", sources="model.c stream.c", last=("-lm",))
    assert outcome(tmp_path) == (1, "")
