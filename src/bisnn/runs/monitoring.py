"""What a run watches for: signals, layers that cannot learn, chance, a full disk; TensorBoard."""

from __future__ import annotations

import errno
import importlib.util
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bisnn.errors import Stopped
from bisnn.runs.config import Config

# Mean firing rates of a layer, in spikes per time step, beyond which it cannot learn
SILENT, SATURATED = 1e-4, 0.9
NOT_FINITE = (
    "{folder}: the loss or the weights became NaN or infinite in epoch {epoch}; "
    "lower rule.lr, or check the data's scale; "
    "checkpoints from before it are kept"
)
_SILENT = (
    "{folder}: layer {layer} fell silent ({rate:.2g} spikes per neuron and step in epoch {epoch}): "
    "nothing behind it can learn; "
    "lower neuron.threshold, {more}or set train.activity = 1"
)
_SATURATED = (
    "{folder}: layer {layer} is saturated ({rate:.2g} spikes per neuron and step in epoch "
    "{epoch}): its spikes carry nothing; "
    "raise neuron.threshold, lower rule.lr, or set train.activity = 1"
)


def check_rates(row: dict[str, Any], config: Config, folder: object) -> None:
    """Stop a run in which a layer fires too little or too much to learn, by its row of metrics."""
    for layer, rate in enumerate(row["rates"], 1):
        advice = _SILENT if rate < SILENT else _SATURATED if rate > SATURATED else None
        if advice is not None:
            more = _more_spikes(config)
            raise Stopped(
                advice.format(layer=layer, rate=rate, epoch=row["epoch"], folder=folder, more=more)
            )


def _more_spikes(config: Config) -> str:
    """What gives the first layer more spikes a time step, where a setting does."""
    if config.recorded:
        return "raise data.bin_us, " if config.data.step_us() else ""
    return "raise encode.width, " if config.encode.code == "population" else ""


def near_chance(row: dict[str, Any], y: Tensor) -> str:
    """A line if the last epoch was hardly better than a guess that looks at no feature; y are the
    training labels or targets."""
    if "accuracy" in row:
        share = float(torch.bincount(y).max()) / len(y)
        if row["accuracy"] > share + 2 * math.sqrt(share * (1 - share) / len(y)):
            return ""
        score = (
            f"accuracy {row['accuracy']:.3f} on the training points, of which {share:.3f} are of "
            "the commonest class"
        )
    else:
        deviation = float(y.double().std(correction=0))
        if row.get("rmse", 0.0) < 0.95 * deviation:
            return ""
        score = (
            f"RMSE {row['rmse']:.4g} on the training points, whose targets deviate by "
            f"{deviation:.4g}"
        )
    return (
        f"training ended near chance: {score}; try another rule.lr (or leave it out), more epochs, "
        "other features"
    )


@contextmanager
def advice_on_a_full_disk(folder: object) -> Iterator[None]:
    """A full disk: nothing is lost, and the message says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        way = f"{error.strerror}; what was saved is whole: make room, then bisnn resume {folder}"
        advised = OSError(error.errno, way, error.filename)
        advised.from_first = getattr(error, "from_first", False)  # type: ignore[attr-defined]
        raise advised from None


@contextmanager
def signals() -> Iterator[list[int]]:
    """Note Ctrl-C and SIGTERM as [number], 0 for none; a second Ctrl-C stops at once."""
    caught = [0]
    if threading.current_thread() is not threading.main_thread():
        yield caught  # only the main thread may take signals
        return

    def note(number: int, frame: Any) -> None:
        if caught[0] and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught[0] = caught[0] or number

    taken = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, note) for number in taken}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tensorboard_writer(folder: Path, epoch: int) -> Any:
    """A writer of TensorBoard events, where the extra is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder / "tensorboard", purge_step=epoch + 1)


def log(writer: Any, row: dict[str, Any]) -> None:
    """Write the numbers of a row of metrics."""
    named = {**row, **{f"rate/layer_{i}": rate for i, rate in enumerate(row["rates"], 1)}}
    named |= {f"validation/{name}": value for name, value in row.get("validation", {}).items()}
    for name, value in named.items():
        if isinstance(value, (int, float)):
            writer.add_scalar(name, value, row["epoch"])
