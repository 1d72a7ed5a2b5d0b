"""Exported C code on the instruction sets of microcontrollers, by cross compilers and QEMU: golden
vectors of every kind of network, float and fixed, single and ensemble; and what measuring measures.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import bisnn
import networks
from bisnn import Conv2d, Linear, Network, printing
from bisnn.packed import PackedNetwork
from bisnn.packing import describe
from bisnn.runs import microcontrollers, training
from bisnn.shipping import c, conversion, targets
from bisnn_experiments.microcontrollers import ChipStudy
from conftest import spikes
from runs import small
from test_export_c import drawn
from test_export_c_points import POPULATION, points_network, written
from test_export_c_sets import with_sets

NAMES = {target.name: target for target in targets.TARGETS}
BIG_ENDIAN = ("s390x-linux-gnu-gcc", "qemu-s390x")


def needed(missing: str) -> None:
    if missing:
        pytest.skip(f"needs {missing}, which .ci/run installs")


def target_called(name: str) -> targets.Target:
    target = targets.MICROBIT if name == targets.MICROBIT.name else NAMES[name]
    needed(target.missing())
    return target


def written_kind(kind: str, neuron: str, count: int, folder: Path, prefix: str) -> None:
    options = {"neuron": networks.FIXED} if neuron == "fixed" else {}
    net = networks.build(kind, dtype=torch.float32, **options)
    x = spikes(20, *net.input_shape, density=0.3).numpy().astype(np.uint8)
    c.write(describe(net, drawn(net, count)), folder / prefix, x, prefix=prefix)


def wide(neuron) -> PackedNetwork:
    """Of more neurons than a word has bits, and more active inputs than are added up at once."""
    layers = (Conv2d(2, 40, 3, pool=2), Linear(40 * 49, 64))
    net = Network(*layers, input_shape=(2, 16, 16), readout=33, neuron=neuron, seed=0)
    return describe(net, drawn(net, 1))


PROGRAM = """
%s
int main(void)
{
    int bad = 0;
%s
    if (!bad)
        board_print("ok\\n");
    return bad;
}
"""
CHECK = """
    {
        %(name)s_difference first;
        if (%(name)s_check(&first)) {
            board_print("%(name)s differs: ");
            board_print(first.what);
            board_print("\\n");
            bad = 1;
        }
    }"""


def program(names: list[str], board: str = '#include "_board.h"') -> str:
    """A program that checks these models, one after the other."""
    includes = "\n".join([board, *(f'#include "{name}_check.h"' for name in names)])
    return PROGRAM % (includes, "".join(CHECK % {"name": name} for name in names))


def sources(names: list[str]) -> list[str]:
    plain = ("", "_check")
    ends = {name: (*plain, "_encode") if "points" in name else plain for name in names}
    return ["all.c", *(f"{name}/{name}{end}.c" for name in names for end in ends[name])]


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> tuple[Path, list[str]]:
    """A folder with every kind of network, each under a name of its own, and their names."""
    folder, names = tmp_path_factory.mktemp("kinds"), []
    for kind, neuron, count in itertools.product(networks.EVERY, ("float", "fixed"), (1, 3)):
        if neuron == "float" and "fixed" in kind:
            continue
        names.append(f"{neuron}_{kind.replace(' ', '_')}_{count}")
        written_kind(kind, neuron, count, folder, names[-1])
    for name, neuron in (("float_wide", networks.NEURON), ("fixed_wide", networks.FIXED)):
        x = spikes(8, 2, 16, 16, density=0.9).numpy().astype(np.uint8)
        c.write(wide(neuron), folder / name, x, prefix=name)
        names.append(name)
    points = points_network(POPULATION, 3, classes=("no", "yes"))
    written(points, folder / "points", "points")
    whole = conversion.converted(points, "fixed", 12)
    written(whole, folder / "fixed_points", "fixed_points")
    for name, neuron in (("sets", networks.NEURON), ("fixed_sets", networks.FIXED)):
        x = spikes(30, 6, density=0.3).numpy()
        c.write(with_sets(neuron=neuron), folder / name, x, prefix=name)
    names += ["points", "fixed_points", "sets", "fixed_sets"]
    (folder / "all.c").write_text(program(names))
    return folder, names


OPTIONS = ("-Os", "-O2", "-O1", "-Os", "-O2", "-O1", "-Os")


@pytest.mark.parametrize(("name", "option"), list(zip(NAMES, OPTIONS, strict=True)))
def test_every_kind_is_exact_on(name, option, everything):
    target, (folder, names) = target_called(name), everything
    assert len(names) > 30
    own = folder.parent / f"{folder.name}-{name}"
    shutil.copytree(folder, own)
    target.build(own, sources(names), option, *(f"-I{name}" for name in names))
    assert target.run(own / "program") == (0, "ok\n")


def test_every_kind_is_exact_on_a_big_endian_machine(everything, tmp_path):
    needed(targets.missing((BIG_ENDIAN[0],), BIG_ENDIAN[1]))
    folder, names = everything
    board = "#include <stdio.h>\n#define board_print(text) fputs(text, stdout)"
    (tmp_path / "all.c").write_text(program(names, board))
    options = ["-std=gnu99", "-O2", "-static", *(f"-I{folder / name}" for name in names)]
    files = [tmp_path / "all.c", *(folder / source for source in sources(names)[1:])]
    build = [BIG_ENDIAN[0], *options, *files, "-o", tmp_path / "program"]
    subprocess.run(build, check=True)
    done = subprocess.run([BIG_ENDIAN[1], tmp_path / "program"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n")


def test_what_fits_a_microbit_is_exact_on_it(tmp_path):
    """16 kB of RAM, and a real Cortex-M0."""
    target = target_called(targets.MICROBIT.name)
    names = []
    for kind, neuron in (("deep", "float"), ("pooled", "fixed"), ("masked", "fixed")):
        names.append(f"{neuron}_{kind}")
        written_kind(kind, neuron, 3, tmp_path, names[-1])
    (tmp_path / "all.c").write_text(program(names))
    target.build(tmp_path, sources(names), *(f"-I{name}" for name in names))
    assert target.run(tmp_path / "program") == (0, "ok\n")


def test_a_wrong_bit_is_found_on_a_chip(tmp_path):
    target = target_called("Cortex-M3")
    written_kind("dense", "fixed", 1, tmp_path, "net")
    path = tmp_path / "net" / "net_golden.h"
    text = path.read_text()
    last = re.search(r"golden_s0\[\d+\] = {[^}]*(0x\w+)}", text)
    path.write_text(text[: last.start(1)] + hex(int(last[1], 16) ^ 1) + text[last.end(1) :])
    (tmp_path / "all.c").write_text(program(["net"]))
    target.build(tmp_path, sources(["net"]), "-Inet")
    assert target.run(tmp_path / "program") == (1, "net differs: spikes of layer 0\n")


# What the code is made of

SOFT_FLOAT = re.compile(
    r"__aeabi_[fdil]+2?[fd]\w*|__aeabi_[fd]\w+"
    r"|__(add|sub|mul|div|float|fix|lt|gt|le|ge|eq|ne|unord|extend|trunc)\w*[sd]f\w*"
)
FLOATS = {  # instructions
    "Cortex-M4F": r"\tv(add|sub|mul|mla|div|cmp|cvt|ldr|str|mov|mrs|neg|abs)\w*[ .]",
    "RV64": r"\t(f(add|sub|mul|div|lt|le|eq|cvt|mv|ld|lw|sd|sw|sgnj)\w*)[. \t]",
}


def object_file(name: str, neuron: str, folder: Path) -> tuple[targets.Target, Path]:
    target = target_called(name)
    prefix = f"in_{neuron}"
    network = points_network(POPULATION, 3, classes=("no", "yes"))  # it has an encoder, too
    if neuron == "fixed":
        network = conversion.converted(network, "fixed")
    written(network, folder / prefix, prefix)
    made, source = folder / f"{neuron}.o", folder / prefix / f"{prefix}.c"
    subprocess.run([*target.compiler, *targets.BARE, "-c", source, "-o", made], check=True)
    return target, made


def tool_output(target: targets.Target, tool: str, *arguments) -> str:
    command = target.compiler[0].removesuffix("gcc") + tool
    return subprocess.check_output([command, *arguments], text=True)


@pytest.mark.parametrize("name", ["Cortex-M0", "Cortex-M3", "RV32IMC"])
def test_integers_call_no_emulated_floats(name, tmp_path):
    undefined = {}
    for neuron in ("fixed", "float"):
        target, made = object_file(name, neuron, tmp_path)
        undefined[neuron] = set(tool_output(target, "nm", "-u", "-j", made).split())
    assert undefined["fixed"] <= {"memcpy", "memset"}
    assert any(map(SOFT_FLOAT.fullmatch, undefined["float"])), "else this test proves nothing"


@pytest.mark.parametrize("name", FLOATS)
def test_integers_have_no_float_instruction(name, tmp_path):
    found = {}
    for neuron in ("fixed", "float"):
        target, made = object_file(name, neuron, tmp_path)
        found[neuron] = re.findall(FLOATS[name], tool_output(target, "objdump", "-d", made))
    assert not found["fixed"]
    assert len(found["float"]) > 20, "else this test proves nothing"


# What measuring measures

LOOPS = {
    "arm": '"1: sub %0, %0, #1\\n cmp %0, #0\\n bne 1b"',
    "riscv": '"1: addi %0, %0, -1\\n nop\\n bnez %0, 1b"',
}
COUNTED = """
#include "_board.h"
int main(void)
{
    uint32_t before = 0, count = 1000000;
    board_ticks_since(&before);
    __asm__ volatile(%s : "+r"(count) : : "cc");
    board_print_number(board_ticks_since(&before));
    return 0;
}
"""


@pytest.mark.parametrize("name", ["Cortex-M3", "Cortex-M4F", "Cortex-M7F", "Cortex-M33", "RV32IMC"])
def test_instructions_are_counted(name, tmp_path):
    """A loop of three instructions, a million times."""
    target = target_called(name)
    loop = LOOPS["riscv" if name.startswith("RV") else "arm"]
    (tmp_path / "all.c").write_text(COUNTED % loop)
    target.build(tmp_path, ["all.c"])
    status, text = target.run(tmp_path / "program")
    assert status == 0
    assert int(text) * target.nanoseconds == pytest.approx(3_000_000, rel=1e-3)


def test_costs_of_a_network(tmp_path):
    """Twice the members: twice the tables and traces, and about twice the instructions."""
    for target in targets.TARGETS:
        needed(target.missing())
    net = Network(Linear(64, 64), readout=2, neuron=networks.FIXED, seed=0)
    x = spikes(20, 64, density=0.3).numpy().astype(np.uint8)
    costs = []
    for count in (2, 4):
        network = describe(net, drawn(net, count))
        sizes = c.write(network, tmp_path / str(count), x)
        found = targets.measure(network, tmp_path / str(count), "model", 20, sizes["ram"])
        assert [cost.target for cost in found] == list(NAMES)
        for cost in found:
            assert not cost.reason
            assert sizes["flash"] < cost.flash < sizes["flash"] + 6000
            assert cost.ram == sizes["ram"] + cost.stack
            assert 100 < cost.stack < 2000
        costs.append(found)
    for two, four in zip(*costs, strict=True):
        assert four.flash - two.flash == pytest.approx(2 * 64 * 2 * 4, abs=64)
        assert four.instructions / two.instructions == pytest.approx(2, rel=0.1)


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    network = describe(networks.build("dense", dtype=torch.float32))
    (first, *_) = targets.measure(network, tmp_path, "model", 20, 100)
    assert first.reason == "not installed: arm-none-eabi-gcc, qemu-system-arm"
    assert (first.flash, first.instructions) == (0, 0)


def test_a_network_that_does_not_fit_is_told(tmp_path):
    target = target_called("Cortex-M3")
    network = wide(networks.FIXED)
    sizes = c.write(network, tmp_path / "c", np.ones((3, 2, 16, 16), np.uint8))
    small = replace(target, ram=(target.ram[0], 1024))
    cost = partial(targets._cost, network=network, folder=tmp_path / "c", prefix="model")
    found = cost(small, steps=3, ram=sizes["ram"])
    assert found.reason == "takes more RAM than the emulated board's 1 KiB"


# Of a run


def test_sizes_of_a_run_are_kept_for_its_report(tmp_path, monkeypatch, capsys):
    target = target_called("Cortex-M3")
    monkeypatch.setattr(
        targets, "TARGETS", (target, replace(target, name="none", emulator=("no",)))
    )
    run = training.train(small(), tmp_path / "run", show=False)
    bisnn.evaluate(run, show=False)
    assert microcontrollers.load(run) is None
    assert "On microcontrollers" not in bisnn.report([run], show=False).read_text()
    done = bisnn.export(
        run, "c", predictor="members", members=2, sizes=True, prefix="board"
    )  # whose files are called as some of QEMU's board might be
    chip, missing = done.chips.costs
    assert missing.reason == "not installed: no"
    assert done.flash < chip.flash < done.flash + 20_000
    assert chip.ram == done.ram + chip.stack
    assert 1000 < chip.instructions < 10**7
    assert microcontrollers.load(run) == done.chips
    page = bisnn.report([run], show=False).read_text()
    assert "On microcontrollers" in page
    assert f"<td>{chip.instructions:,}</td>" in page
    assert "they are not cycles" in page
    assert "<td>not installed: no</td>" in page
    printing.print_exported("c", done)
    printed = capsys.readouterr().out
    assert f"{chip.instructions:,}" in printed
    assert "none: not installed: no" in printed
    assert "are not cycles" in printed
    path = Path(run) / "microcontrollers.json"
    path.write_text(path.read_text().replace(done.chips.model, "another"))
    assert microcontrollers.load(run) is None, "it was measured of another model"
    path.write_text("{")
    with pytest.raises(
        ValueError, match=r"microcontrollers.json: is damaged; delete it, or measure"
    ):
        microcontrollers.load(run)


def test_sizes_are_of_c_code(tmp_path):
    run = training.train(small(), tmp_path / "run", show=False)
    with pytest.raises(ValueError, match="sizes: are of --to c; got them with 'packed'; leave"):
        bisnn.export(run, "packed", sizes=True)
    (tmp_path / "firmware").mkdir()
    (tmp_path / "firmware" / "uart.c").write_text("int main(void) { return 0; }\n")
    with pytest.raises(ValueError, match=r"holds what is no export, such as 'uart\.c'"):
        bisnn.export(run, "c", tmp_path / "firmware")


def test_the_published_numbers_keep_their_bars():
    """Of docs/results/microcontrollers.json: see docs/SHIPPING.md."""
    root = Path(__file__).parent.parent
    text = (root / "docs" / "results" / "microcontrollers.json").read_text()
    networks_ = ChipStudy.model_validate_json(text).networks
    assert [row.target for row in networks_["digits"].targets] == list(NAMES)
    moons = {row.target: row for row in networks_["two moons"].targets}
    assert moons["Cortex-M3"].fixed.instructions <= 75_000
    assert moons["Cortex-M4F"].fixed.instructions <= moons["Cortex-M4F"].srm.instructions
    for network in networks_.values():
        information = network.weights + network.constants
        for row in network.targets:
            assert max(row.srm.flash, row.fixed.flash) <= 1.15 * information + 6_000
    for row in networks_["digits"].targets:
        for taken in (row.srm, row.fixed):
            assert taken.beside < 64_000
            assert taken.ram < 32_000
