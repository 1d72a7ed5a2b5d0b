"""State dicts as one safetensors file in which binary weights take one bit each.

Of any module: `rule.map_weights(net)` and `rule.members(net, K)` give them. A tensor whose numbers
are all +a or -a, with one a > 0, is stored as bits (1 is +a, lowest bit of a byte first) and a;
every other one as it is, and once for all members where they agree on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bisnn.files import afford, read_bytes, write_atomic

KEY = "bisnn_states"  # of the file's metadata: {"members": K, "bits": {name: [shape, dtype]}}
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
# What reading a file of other content raises
_WRONG = (
    SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    RuntimeError,
    RecursionError,
)
_DTYPES = {str(t).removeprefix("torch."): t for t in (torch.float32, torch.float64, torch.float16)}


def save_states(
    path: str | Path, states: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]
) -> int:
    """Write one state dict, or those of several members, whole or not at all; returns the bytes.

    Args:
        path: of the file.
        states: the state dict, or one of each member, all with the same names.

    >>> import tempfile
    >>> state = {"w": torch.tensor([[0.5, -0.5], [-0.5, -0.5]]), "b": torch.zeros(2)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = save_states(folder + "/net.safetensors", state)
    ...     (back,) = load_states(folder + "/net.safetensors")
    >>> torch.equal(back["w"], state["w"])
    True
    """
    members = [states] if isinstance(states, Mapping) else list(states)
    if not members or any(state.keys() != members[0].keys() for state in members):
        raise ValueError(
            "states: need at least one member, and all of them the same names; "
            f"got {len(members)} of them; take them from one module"
        )
    tensors: dict[str, Tensor] = {}
    bits: dict[str, tuple[list[int], str]] = {}
    for name in members[0]:
        values = [state[name].detach().cpu().contiguous() for state in members]
        size = values[0].abs().max() if values[0].numel() else torch.zeros(())
        if all(_is_binary(value, size) for value in values):
            packed = np.stack(
                [np.packbits((v > 0).numpy().reshape(-1), bitorder="little") for v in values]
            )
            tensors[f"bits.{name}"], tensors[f"size.{name}"] = torch.from_numpy(packed), size
            bits[name] = (list(values[0].shape), str(values[0].dtype).removeprefix("torch."))
        elif all(torch.equal(value, values[0]) for value in values):
            tensors[f"same.{name}"] = values[0]
        else:
            tensors[f"each.{name}"] = torch.stack(values)
    header = {KEY: json.dumps({"members": len(members), "bits": bits})}
    content = save(tensors, header)
    write_atomic(Path(path), content)
    return len(content)


def _is_binary(value: Tensor, size: Tensor) -> bool:
    known = value.dtype in _DTYPES.values()
    return known and bool(size > 0) and bool((value.abs() == size).all())


def load_states(path: str | Path) -> list[dict[str, Tensor]]:
    """The state dicts of the file `path`, written by `save_states`. Nothing in it is taken on
    trust.
    """
    content = read_bytes(path)
    with _said_to_be_damaged(path):
        tensors, count, shapes = _parsed(content)
    needed = sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())
    afford(path, count * (needed + len(content)), "its members")
    with _said_to_be_damaged(path):
        return [_member(k, tensors, shapes) for k in range(count)]


def _parsed(content: bytes) -> tuple[dict[str, Tensor], int, Shapes]:
    """The tensors of a file, how many members it has, and the shapes and dtypes of their bits."""
    tensors, length = load(content), int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][KEY])
    count, bits = int(about["members"]), dict(about["bits"])
    shapes = {
        name: (tuple(map(int, shape)), _DTYPES[dtype]) for name, (shape, dtype) in bits.items()
    }
    if count < 1 or any(n < 0 for shape, _ in shapes.values() for n in shape):
        raise ValueError("a negative size")
    return tensors, count, shapes


@contextmanager
def _said_to_be_damaged(path: str | Path) -> Iterator[None]:
    try:
        yield
    except _WRONG as error:
        raise ValueError(
            f"{path}: must be a file of bisnn.save_states; got another, or one that is damaged "
            f"({type(error).__name__}: {str(error)[:80]}); write it again"
        ) from None


def _member(k: int, tensors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    state = {}
    for key, value in tensors.items():
        kind, _, name = key.partition(".")
        if kind == "bits":
            shape, dtype = shapes[name]
            up = np.unpackbits(value[k].numpy(), bitorder="little")[: math.prod(shape)]
            sign = torch.from_numpy(up).to(dtype) * 2 - 1
            state[name] = (sign * tensors[f"size.{name}"].to(dtype)).reshape(shape)
        elif kind == "each":
            state[name] = value[k]
        elif kind == "same":
            state[name] = value
        elif kind != "size":
            raise ValueError(f"{key!r} is no name of such a file")
    return state
