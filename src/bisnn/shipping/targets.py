"""Microcontrollers on which exported C code is tried: cross compilers, and QEMU's boards.

    flash          bytes of code and tables, with what the compiler's library adds
    ram            bytes of the state, and of the stack that a time step takes
    instructions   per time step, by QEMU's instruction counter

Instructions are not cycles: a chip takes one to several cycles for each, and waits for its flash.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bisnn.packed.network import PackedNetwork
from bisnn.shipping.c_text import filled, output_type

ARM = ("arm-none-eabi-gcc", "-mthumb")
RISC_V = ("riscv64-unknown-elf-gcc", "--specs=picolibc.specs")
BARE = ("-std=c99", "-O2", "-ffunction-sections", "-fdata-sections", "-nostartfiles")
LINKED = ("-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments", "-T", "board.ld")
MEGABYTE = 1 << 20
LIMIT_S = 120  # of an emulated run


@dataclass(frozen=True)
class Target:
    """An instruction set, a compiler for it, and an emulated board."""

    name: str
    compiler: tuple[str, ...]
    emulator: tuple[str, ...]
    flash: tuple[int, int]  # address and size
    ram: tuple[int, int]
    nanoseconds: int = 1  # of a tick of its counter, while an instruction takes one

    def missing(self) -> str:
        """What is not installed, or nothing."""
        return missing(self.compiler, self.emulator[0])

    def build(
        self, folder: Path, sources: Sequence[str], *options: str, out: str = "program"
    ) -> None:
        """Link C sources of a folder into a program for the board; a ValueError says why not."""
        texts = {
            "board.c": filled("board.c.in"),
            "_board.h": filled("board.h.in"),  # no prefix begins so: it hides no model's header
            "board.ld": filled(
                "board.ld.in",
                flash=hex(self.flash[0]),
                flash_size=self.flash[1],
                ram=hex(self.ram[0]),
                ram_size=self.ram[1],
            ),
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        command = [*self.compiler, *BARE, *options, *sources, "board.c", *LINKED, "-o", out]
        plain = os.environ | {"LC_ALL": "C"}  # messages that are not translated
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=plain)
        for region, (_, size) in (("FLASH", self.flash), ("RAM", self.ram)):
            if f"region `{region}' overflowed" in done.stderr:
                raise ValueError(
                    f"{self.name}: takes more {region} than the emulated board's {size >> 10:,} KiB"
                )
        if done.returncode:
            raise ValueError(f"{self.name}: {_reason(done.stderr)}")

    def run(self, program: Path) -> tuple[int, str]:
        """Exit status and output of a program on the emulated board."""
        quiet = ("-display", "none", "-serial", "none", "-monitor", "none")
        semihosting = ("-semihosting-config", "enable=on,target=native")
        counted = ("-icount", "shift=0", "-kernel", str(program))
        command = [*self.emulator, *quiet, *semihosting, *counted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ValueError(f"{self.name}: did not end within {LIMIT_S} s under QEMU") from None
        return done.returncode, done.stdout + done.stderr


def missing(compiler: tuple[str, ...], emulator: str) -> str:
    """What is not installed, or nothing."""
    gone = [name for name in (compiler[0], emulator) if shutil.which(name) is None]
    if not gone and not _has_library(compiler):
        gone = [f"the C library of {compiler[0]}"]
    return ", ".join(gone)


@functools.cache
def _has_library(compiler: tuple[str, ...]) -> bool:
    """Whether a compiler finds C's headers, which some systems have in a package of their own."""
    include = [*compiler, "-fsyntax-only", "-x", "c", "-"]
    return not subprocess.run(include, input=b"#include <string.h>", capture_output=True).returncode


def _reason(text: str) -> str:
    """The line of a compiler's output that says most."""
    lines = [line for line in text.splitlines() if "error" in line]
    return lines[0].strip() if lines else text.strip()[-200:]


def _cortex(name: str, flags: str, board: str, *, memory: int = 0, nanoseconds: int = 40) -> Target:
    emulator = ("qemu-system-arm", "-machine", board)
    places = ((memory, 4 * MEGABYTE), (0x20000000 + memory + memory // 2, 2 * MEGABYTE))
    return Target(name, (*ARM, *flags.split()), emulator, *places, nanoseconds)


def _risc_v(name: str, flags: str, emulator: str) -> Target:
    board = (*emulator.split(), "-machine", "virt", "-bios", "none")
    places = ((0x80000000, 4 * MEGABYTE), (0x80400000, 4 * MEGABYTE))
    return Target(name, (*RISC_V, *flags.split()), board, *places)


TARGETS = (
    # No board of QEMU's with a Cortex-M0 has the memory: its code runs on a Cortex-M3 as it is
    _cortex("Cortex-M0", "-mcpu=cortex-m0", "mps2-an385"),
    _cortex("Cortex-M3", "-mcpu=cortex-m3", "mps2-an385"),
    _cortex("Cortex-M4F", "-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16", "mps2-an386"),
    _cortex("Cortex-M7F", "-mcpu=cortex-m7 -mfloat-abi=hard", "mps2-an500"),
    _cortex(
        "Cortex-M33",
        "-mcpu=cortex-m33 -mfloat-abi=hard",
        "mps2-an505",
        memory=0x10000000,
        nanoseconds=50,
    ),
    _risc_v(
        "RV32IMC",
        "-march=rv32imc -mabi=ilp32",
        "qemu-system-riscv32 -cpu rv32,a=off,f=off,d=off",
    ),
    _risc_v("RV64", "-march=rv64gc -mabi=lp64d -mcmodel=medany", "qemu-system-riscv64"),
)
MICROBIT = Target(
    "micro:bit",
    (*ARM, "-mcpu=cortex-m0"),
    ("qemu-system-arm", "-machine", "microbit"),
    (0, 256 << 10),
    (0x20000000, 16 << 10),
)


@dataclass(frozen=True)
class Cost:
    """What a network takes on a target, or why that is not known."""

    target: str
    flash: int = 0
    ram: int = 0
    stack: int = 0  # of the ram
    instructions: int = 0  # per time step
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(network: PackedNetwork, folder: Path, prefix: str, steps: int, ram: int) -> list[Cost]:
    """The cost of exported code on every target whose tools are installed.

    Args:
        network: that was exported, with its golden recording of so many time steps.
        folder: that `c.write` wrote, with this prefix.
        ram: bytes of its state.
    """
    return [_cost(target, network, folder, prefix, steps, ram) for target in TARGETS]


def _cost(
    target: Target, network: PackedNetwork, folder: Path, prefix: str, steps: int, ram: int
) -> Cost:
    missing = target.missing()
    if missing:
        return Cost(target.name, reason=f"not installed: {missing}")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        program = filled(
            "measure.c.in",
            name=prefix,
            NAME=prefix.upper(),
            output=output_type(network),
            steps=steps,
        )
        (work / "measure.c").write_text(program)
        include = f"-I{folder.resolve()}"
        try:
            target.build(work, ["measure.c"], include, out="without")
            source = str(folder.resolve() / f"{prefix}.c")
            target.build(work, ["measure.c", source], include, "-DNETWORK", out="with")
            status, text = target.run(work / "with")
        except ValueError as error:
            return Cost(target.name, reason=str(error).removeprefix(f"{target.name}: "))
        if status:
            return Cost(target.name, reason=f"ended with status {status} under QEMU: {text[-200:]}")
        ticks, stack = map(int, text.split())
        flash = _size(target, work / "with") - _size(target, work / "without")
    instructions = round(ticks * target.nanoseconds / steps)
    return Cost(target.name, flash, ram + stack, stack, instructions)


def _size(target: Target, program: Path) -> int:
    """Bytes of a program that are in flash: code, tables, and what is copied to RAM."""
    tool = target.compiler[0].removesuffix("gcc") + "size"
    listed = subprocess.run([tool, program], capture_output=True, text=True, check=True).stdout
    text, data, *_ = listed.splitlines()[1].split()
    return int(text) + int(data)
