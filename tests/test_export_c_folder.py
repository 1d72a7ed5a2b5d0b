"""The folder of exported C code: it builds in every way that is offered, as C and as C++, and
nothing is lost or half-written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import networks
from bisnn import Conv2d, Linear, Network
from bisnn.packing import describe
from bisnn.shipping import c
from conftest import spikes
from test_export_c import COMPILERS, WARNINGS, build, drawn, exported, outcome
from test_export_c_points import POPULATION, points_network, written
from test_export_c_sets import with_sets

pytestmark = pytest.mark.skipif(not COMPILERS, reason="needs a C compiler: gcc or clang")

PLUS_PLUS = {"gcc": "g++", "clang": "clang++"}


def made_in_every_way(folder: Path) -> None:
    """Networks whose sources have different parts: kinds, floats, integers, points, sets."""
    for kind in ("mixed", "fixed", "levels"):
        exported(networks.build(kind, dtype=torch.float32), 2, folder / kind)
    written(points_network(POPULATION, 3, classes=("no", "yes")), folder / "points")
    c.write(with_sets(), folder / "sets", spikes(30, 6, density=0.3).numpy())
    silent = networks.build("deep", dtype=torch.float32, readout=None)
    exported(silent, 1, folder / "silent")


def run(command: list, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_c_and_cpp_without_a_warning(tmp_path):
    made_in_every_way(tmp_path)
    for folder in tmp_path.iterdir():
        for compiler in COMPILERS:
            build(folder, "-std=c99", *WARNINGS, "-O2", compiler=compiler)
            assert outcome(folder)[0] == 0
            sources = "model.c stream.c"
            options = ("-std=c99", *WARNINGS, "-O2")
            build(folder, *options, compiler=compiler, sources=sources, last=("-lm",))
            assert outcome(folder)[0] == 0
            if shutil.which(PLUS_PLUS[compiler]) is None:
                continue
            options, plus = ("-x", "c++", "-std=c++17", *WARNINGS, "-O2"), PLUS_PLUS[compiler]
            build(folder, *options, compiler=plus)
            assert outcome(folder)[0] == 0
            build(folder, *options, compiler=plus, sources=sources, last=("-lm",))
            assert outcome(folder)[0] == 0


def test_the_header_alone_is_cpp_11(tmp_path):
    made_in_every_way(tmp_path)
    for folder in tmp_path.iterdir():
        (folder / "use.cpp").write_text('#include "model.h"\nmodel_state state;\n')
        for compiler in COMPILERS:
            if shutil.which(PLUS_PLUS[compiler]) is not None:
                options = ("-std=c++11", *WARNINGS, "-c")
                build(folder, *options, compiler=PLUS_PLUS[compiler], sources="use.cpp")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_builds_and_tests_it(tmp_path):
    written(points_network(POPULATION, 3, classes=("no", "yes")), tmp_path / "c", "gate")
    assert "ok: 40 steps, twice, 2 members" in run(["make", "test"], tmp_path / "c")
    run(["make", "stream", "CFLAGS=-O2 -Werror"], tmp_path / "c")
    assert run(["./stream"], tmp_path / "c").startswith("class ")
    run(["make", "clean"], tmp_path / "c")
    assert not {"check", "stream", "gate.o"} & {path.name for path in (tmp_path / "c").iterdir()}


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_cmake_builds_and_tests_it_alone_and_within_a_project(tmp_path):
    exported(networks.build("mixed", dtype=torch.float32), 2, tmp_path / "c")
    run(["cmake", "-B", "out", "-S", "c", "-DCMAKE_BUILD_TYPE=Release"], tmp_path)
    run(["cmake", "--build", "out"], tmp_path)
    assert "100% tests passed" in run(["ctest", "--test-dir", "out"], tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(firmware C)\nadd_subdirectory(c)\n"
        "add_executable(firmware firmware.c)\ntarget_link_libraries(firmware PRIVATE model)\n"
    )
    (tmp_path / "firmware.c").write_text(
        '#include "model.h"\nstatic model_state state;\n'
        "int main(void) { model_reset(&state); return (int)state.s0[0][0]; }\n"
    )
    run(["cmake", "-B", "own", "-S", "."], tmp_path)
    run(["cmake", "--build", "own"], tmp_path)
    run([tmp_path / "own" / "firmware"], tmp_path)


def test_the_readme_says_what_is_in_it(tmp_path):
    sizes = c.write(with_sets(), tmp_path / "c", spikes(30, 6).numpy(), prefix="net")
    text = (tmp_path / "c" / "README.md").read_text()
    for part in (
        "3 members",
        f"{sizes['flash']:,} bytes of tables",
        "net_decided(&decision",
        "IEEE",
    ):
        assert part in text
    for path in (tmp_path / "c").iterdir():
        own = path.name.removeprefix("net")
        assert path.name in text or own in ("Makefile", "CMakeLists.txt", "README.md")
        assert c.MARK in path.read_bytes()[:300]


# A folder that is there


def test_an_export_takes_the_place_of_another(tmp_path):
    network, x = describe(networks.build("dense", dtype=torch.float32)), np.ones((5, 6), np.uint8)
    c.write(network, tmp_path / "c", x, prefix="old")
    run(["make", "check"], tmp_path / "c")
    c.write(network, tmp_path / "c", x, prefix="new")
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert "new.c" in names
    assert not {"old.c", "old.o", "check"} & names


def test_what_an_interrupted_export_left_does_not_block_the_next(tmp_path):
    network, x = describe(networks.build("dense", dtype=torch.float32)), np.ones((5, 6), np.uint8)
    c.write(network, tmp_path / "c", x)
    left = tmp_path / "c" / ".export-abc" / "new"
    left.mkdir(parents=True)
    (left / "model.c").write_text("half of it")
    c.write(network, tmp_path / "c", x, prefix="new")
    assert not [path for path in (tmp_path / "c").iterdir() if path.is_dir()]


def test_a_folder_with_anything_else_is_left_alone(tmp_path):
    network, x = describe(networks.build("dense", dtype=torch.float32)), np.ones((5, 6), np.uint8)
    c.write(network, tmp_path / "c", x)
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    (tmp_path / "c" / "uart.c").write_text("int main(void) { return 0; }\n")
    (tmp_path / "file").write_text("text")
    what = r"out: .*c is there and holds what is no export, such as 'uart\.c'.*; give another"
    with pytest.raises(ValueError, match=what):
        c.write(network, tmp_path / "c", x, prefix="new")
    with pytest.raises(FileExistsError, match="file"):
        c.write(network, tmp_path / "file", x, prefix="new")
    (tmp_path / "c" / "uart.c").unlink()
    assert {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()} == before
    assert (tmp_path / "file").read_text() == "text"


def test_files_of_a_user_with_names_or_words_of_ours_are_left_alone(tmp_path):
    """What a Makefile builds is ours beside one of ours alone, and a marked file by its name."""
    network, x = describe(networks.build("dense", dtype=torch.float32)), np.ones((5, 6), np.uint8)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "check").write_text("#!/bin/sh\n")
    with pytest.raises(ValueError, match="such as 'check'"):
        c.write(network, tmp_path / "mine", x)
    c.write(network, tmp_path / "c", x)
    copied = (tmp_path / "c" / "stream.c").read_text()
    (tmp_path / "c" / "my_app.c").write_text(copied)
    with pytest.raises(ValueError, match=r"such as 'my_app\.c'"):
        c.write(network, tmp_path / "c", x)
    assert (tmp_path / "c" / "my_app.c").read_text() == copied


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_half_written(there, tmp_path, monkeypatch):
    network, x = describe(networks.build("dense", dtype=torch.float32)), np.ones((5, 6), np.uint8)
    if there:
        c.write(network, tmp_path / "c", x, prefix="old")
    before = sorted(os.walk(tmp_path))

    def full(path, content):
        if path.name == "README.md":
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr(c, "write_atomic", full)
    with pytest.raises(OSError, match="No space left"):
        c.write(network, tmp_path / "c", x, prefix="new")
    assert sorted(os.walk(tmp_path)) == before


def test_sizes_beyond_32_bit_addresses(tmp_path, monkeypatch):
    image = (1, 20_000, 20_000)
    net = Network(Conv2d(1, 1, 1), input_shape=image, readout=None, neuron=networks.NEURON)
    with pytest.raises(ValueError, match=r"state must stay below 2\^31 bytes.*; got 4,850,000,000"):
        c.write(describe(net), tmp_path / "c", np.zeros((1, 6), bool))
    net = Network(Linear(640, 64), readout=None)
    monkeypatch.setattr(c, "MOST_BYTES", 2000)
    with pytest.raises(ValueError, match=r"tables must stay below .*; got 5,144; ship fewer"):
        c.write(describe(net), tmp_path / "c", np.zeros((1, 640), bool))
    assert not list(tmp_path.iterdir())


def test_a_chip_that_cannot_address_the_tables_refuses_them(tmp_path):
    net = Network(Linear(64, 64), readout=2)
    c.write(describe(net, drawn(net, 1)), tmp_path, np.ones((3, 64), np.uint8))
    source = (tmp_path / "model.c").read_text().replace("SIZE_MAX", "UINT32_C(1000)")
    (tmp_path / "model.c").write_text(source)
    with pytest.raises(AssertionError, match="larger than what this machine can address"):
        build(tmp_path, "-std=c99", "-c", sources="model.c")
