"""A packed network as a folder of C99 that builds: the network, its golden vectors, an example, and
what builds them. The spikes and logits are those of the engine.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np

from bisnn.files import write_atomic
from bisnn.packed.network import PackedNetwork
from bisnn.shipping import c_sets
from bisnn.shipping.c_encoder import encoder_source
from bisnn.shipping.c_folder import cmake_lists, makefile, readme, stream_program
from bisnn.shipping.c_golden import check_header, check_program, golden_header
from bisnn.shipping.c_source import CSource, state_bytes
from bisnn.shipping.c_text import filled

__all__ = ["write"]

# Names of the standard's headers, and of those that glibc's, newlib's and picolibc's include:
# another would hide the compiler's. And those of the folder's other files and targets.
TAKEN = (
    r"assert|complex|ctype|errno|fenv|float|inttypes|iso646|limits|locale|math|setjmp|signal|stdarg|"
    r"stdbool|stddef|stdint|stdio|stdlib|string|tgmath|time|wchar|wctype|features|newlib|picolibc|"
    r"all|check|clean|help|install|main|stream|test"
)
ASIDE = ".export-*"  # folders in which files are written, before they are put in their place
MARK = b"ade by bisnn"  # near the start of every file of an export
LONGEST = 63  # letters of a prefix; of a name, C99 promises no more than that many count
MOST_BYTES = 2**31 - 1  # of tables or state: what 32-bit addresses and their differences reach


def write(
    network: PackedNetwork,
    folder: str | Path,
    x: np.ndarray,
    *,
    prefix: str = "model",
    each_step: bool = False,
) -> dict[str, int]:
    """Write a folder that builds: PREFIX.h and PREFIX.c; PREFIX_check.h, PREFIX_check.c and
    PREFIX_golden.h, which compare every bit with the engine's; PREFIX_encode.c, where points come
    in; main.c, stream.c, a Makefile, a CMakeLists.txt and a README.md.

    Args:
        network: the readout of its last layer gives the logits.
        folder: made whole or not at all; one that is there must be an export, which is replaced.
        x: a recording for the test, 0 and 1, `(T, *input_shape)`.
        prefix: of the files' names and of all that the header declares, so that one program can
            hold several networks.
        each_step: the network was trained to answer at every time step, and the example says so.

    Returns:
        "flash", bytes of the network's constant tables, and "ram", bytes of the state; code and
        stack, which the compiler decides, come on top.
    """
    check_prefix(prefix)
    folder = Path(folder)
    check_folder(folder)
    x = np.asarray(x)
    _check(network, x)
    x = x.astype(np.uint8)
    source = CSource(network, prefix)
    _check_size("flash", source.sizes["flash"])
    _write_folder(
        folder,
        {
            f"{prefix}.c": source.code(),
            f"{prefix}.h": source.header(),
            **({f"{prefix}_encode.c": encoder_source(network, prefix)} if network.encoding else {}),
            f"{prefix}_check.h": check_header(prefix, len(x)),
            f"{prefix}_check.c": check_program(network, prefix),
            f"{prefix}_golden.h": golden_header(network, prefix, x),
            "main.c": filled("main.c.in", name=prefix, NAME=prefix.upper()),
            "stream.c": stream_program(network, prefix, len(x), each_step),
            "Makefile": makefile(network, prefix),
            "CMakeLists.txt": cmake_lists(network, prefix),
            "README.md": readme(network, prefix, source.sizes),
        },
    )
    return source.sizes


def check_prefix(prefix: str) -> None:
    """See that all names made of it are C identifiers, and no file hides another."""
    named = isinstance(prefix, str)
    if named and len(prefix) > LONGEST:
        raise ValueError(
            f"prefix: must have at most {LONGEST} letters; got {len(prefix)}; use e.g. 'model'"
        )
    named = named and bool(re.fullmatch(r"[A-Za-z]\w*", prefix, re.ASCII))
    if not named or re.fullmatch(TAKEN, prefix.lower()):
        raise ValueError(
            "prefix: must be a C identifier that starts with a letter and names no header of C and "
            f"no other file of the folder; got {prefix!r}; use e.g. 'model'"
        )


def check_folder(folder: Path) -> None:
    """See that the folder is not there, or is an export of ours, in which nothing can be lost."""
    if folder.is_dir():
        left = {path.name for path in folder.glob(ASIDE)}
        if others := sorted({path.name for path in folder.iterdir()} - _own(folder) - left):
            raise ValueError(
                f"out: {folder} is there and holds what is no export, such as {others[0]!r}, which "
                "would be lost; give another folder"
            )
    elif folder.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    elif not folder.parent.is_dir():
        raise ValueError(f"out: there is no folder {folder.parent}; make it first")


def _own(folder: Path) -> set[str]:
    """Names of the files in a folder that an export has written, or its Makefile built."""
    names: set[str] = set()
    for golden in folder.glob("*_golden.h"):
        prefix = golden.name.removesuffix("_golden.h")
        sources = (prefix, f"{prefix}_encode", f"{prefix}_check", "main", "stream")
        written = {f"{stem}{end}" for stem in sources for end in (".c", ".h")}
        written |= {golden.name, "Makefile", "CMakeLists.txt", "README.md"}
        names |= {name for name in written if _is_marked(folder / name)}
        names |= {"check", "stream", *(f"{stem}.o" for stem in sources)}
    return {name for name in names if (folder / name).is_file()}


def _is_marked(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK in file.read(300)


def _check(network: PackedNetwork, x: np.ndarray) -> None:
    """See that the network can be written in C, and the recording tries it."""
    _check_size("ram", state_bytes(network))
    if x.shape[1:] != network.input_shape or len(x) == 0 or not np.isin(x, (0, 1)).all():
        raise ValueError(
            f"x: must be a recording of 0 and 1, (T, {', '.join(map(str, network.input_shape))}); "
            f"got {x.dtype} of {x.shape}; encode it first"
        )
    for i, layer in enumerate(network.layers):
        if layer.neuron.c is None:
            raise ValueError(
                "network: every neuron must have its step in C, `c`; got "
                f"{type(layer.neuron).__name__} in layer {i}, which has none; add it as "
                "bisnn.neuron.CStep says, or ship it packed"
            )
    c_sets.check(network)
    if network.sets is not None and len(x) < network.sets.path[-1][0]:
        raise ValueError(
            f"x: must have {network.sets.path[-1][0]} time steps or more, as the calibration has; "
            f"got {len(x)}; record longer"
        )


def _check_size(kind: str, size: int) -> None:
    if size > MOST_BYTES:
        what = {"ram": "state", "flash": "tables"}[kind]
        raise ValueError(
            f"network: {what} must stay below 2^31 bytes, what 32-bit addresses reach; got "
            f"{size:,}; ship fewer members, or a smaller network"
        )


def _write_folder(folder: Path, texts: dict[str, str]) -> None:
    """As `_put_in_place`; an error names the folder, and not what is written aside."""
    try:
        _put_in_place(folder, texts)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def _put_in_place(folder: Path, texts: dict[str, str]) -> None:
    """Write all files aside, and only then put them in their place, one by one, and an old export's
    away; with what an export that was interrupted had left.
    """
    there = folder.is_dir()
    for left in folder.glob(ASIDE) if there else ():
        shutil.rmtree(left)
    beside = folder if there else folder.parent  # which another file system may hold
    with tempfile.TemporaryDirectory(prefix=ASIDE.removesuffix("*"), dir=beside) as name:
        made = Path(name) / "new"
        made.mkdir()
        for file_name, text in texts.items():
            write_atomic(made / file_name, text.encode("ascii"))
        if not there:
            os.rename(made, folder)
            return
        old = _own(folder)
        for file_name in texts:
            os.replace(made / file_name, folder / file_name)
        for file_name in old - texts.keys():
            (folder / file_name).unlink()
