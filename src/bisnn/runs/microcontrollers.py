"""What a run's exported C code takes on microcontrollers, measured once and kept in its folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from bisnn.files import file_digest, read_bytes, write_atomic
from bisnn.packed.network import PackedNetwork
from bisnn.runs.folder import RunFolder
from bisnn.runs.results import Finding
from bisnn.shipping import targets
from bisnn.shipping.targets import Cost


class Microcontrollers(Finding):
    """What `microcontrollers.json` holds."""

    model: str  # digest of the model's file
    members: int
    neurons: str  # their kind
    tables: int  # bytes
    state: int  # bytes
    steps: int  # of the recording over which instructions are a mean
    costs: list[Cost]


def measure(
    network: PackedNetwork, folder: Path, prefix: str, steps: int, sizes: dict[str, int]
) -> Microcontrollers:
    """Measure code that `shipping.c.write` wrote into a folder, and returned these sizes of."""
    return Microcontrollers(
        model=network.source,
        members=network.count,
        neurons=network.layers[0].neuron.kind,
        tables=sizes["flash"],
        state=sizes["ram"],
        steps=steps,
        costs=targets.measure(network, folder, prefix, steps, sizes["ram"]),
    )


def save(found: Microcontrollers, folder: Path) -> None:
    """Keep it in the run folder, for its report."""
    write_atomic(_file(folder), found.model_dump_json(indent=1).encode())


def load(folder: str | Path) -> Microcontrollers | None:
    """What was measured of the run's model as it is; None where nothing was."""
    path, model = _file(Path(folder)), RunFolder(folder).model_file
    if not path.is_file() or not model.is_file():
        return None
    try:
        found = Microcontrollers.model_validate_json(read_bytes(path))
    except ValidationError:
        raise ValueError(
            f"{path}: is damaged; delete it, or measure anew: bisnn export {folder} --to c --sizes"
        ) from None
    return found if found.model == file_digest(model) else None


def _file(folder: Path) -> Path:
    return folder / "microcontrollers.json"
