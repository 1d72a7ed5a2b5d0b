"""Files of a run: atomic writes, checked safetensors, and the run folder that only one process
writes at a time.

A run folder has `config.toml` (resolved), `metrics.jsonl` (one row per epoch), `state.safetensors`
and `state.previous.safetensors` (all that the next step depends on), `model.safetensors`, and what
is made from them later. Loading any of them runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bisnn.files import open_regular, read_bytes, write_atomic
from bisnn.runs import config
from bisnn.runs.config import Config

VERSION = 1  # of the files


class Damaged(ValueError):
    """A file that is not what was written: cut short, changed, or of another kind."""


def save_tree(path: Path, tree: Any, kind: str) -> None:
    """Write nested dicts and lists of tensors, numbers and strings as safetensors, digested."""
    tensors: dict[str, Tensor] = {}
    body = json.dumps(_packed(tree, tensors))
    header = {"kind": kind, "version": VERSION, "tree": body, "digest": _digest(body, tensors)}
    # One entry: safetensors does not keep the order of several
    write_atomic(path, save(tensors, {"bisnn": json.dumps(header)}))


def load_tree(path: Path, kind: str) -> Any:
    """What `save_tree` wrote. A file that is damaged or of another kind raises `Damaged`."""
    try:
        # The second takes names alone, and waits for pipes
        with open_regular(path), safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("bisnn", "{}"))
            names = list(file.keys())
            # Copies: the file itself is mapped
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, (FileNotFoundError, PermissionError)):
            raise
        raise Damaged(f"{path}: is damaged or no safetensors file ({_short(error)})") from None
    if not isinstance(header, dict) or header.get("kind") != kind:
        fields = header if isinstance(header, dict) else {}
        stated = fields.get("kind", "nothing of its kind")
        raise Damaged(f"{path}: is no bisnn {kind} file; it says {stated!r:.50}")
    if header.get("version") != VERSION:
        raise Damaged(
            f"{path}: was written by another version of bisnn: "
            f"format {header.get('version')!r:.50}, this one reads {VERSION}"
        )
    try:
        if header.get("digest") == _digest(header["tree"], tensors):
            return _unpacked(json.loads(header["tree"]), tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        # A RecursionError is a RuntimeError
        raise Damaged(f"{path}: its header does not describe a {kind} ({_short(error)})") from None
    raise Damaged(f"{path}: is damaged: its content does not match its digest")


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def alike(a: Any, b: Any) -> bool:
    """Whether two trees have the same keys, lengths, kinds of values, and types of tensors."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape
    if isinstance(a, dict):
        return (
            isinstance(b, dict) and a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
        )
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, float):
        return isinstance(b, (int, float)) and not isinstance(b, bool)
    return type(a) is type(b)


def _digest(body: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(body.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _packed(node: Any, tensors: dict[str, Tensor], name: str = "") -> Any:
    """JSON with tensors taken out by name; dicts become pairs, since keys may be numbers."""
    if isinstance(node, Tensor):
        # Safetensors takes no shared memory
        tensors[name] = node.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(node, dict):
        return {
            "dict": [
                [key, _packed(value, tensors, f"{name}.{key}" if name else str(key))]
                for key, value in node.items()
            ]
        }
    if isinstance(node, (list, tuple)):
        return [
            _packed(value, tensors, f"{name}.{i}" if name else str(i))
            for i, value in enumerate(node)
        ]
    return node


def _unpacked(node: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_unpacked(value, tensors) for value in node]
    if isinstance(node, dict) and "tensor" in node:
        return tensors[node["tensor"]]
    if isinstance(node, dict):
        return {key: _unpacked(value, tensors) for key, value in node["dict"]}
    return node


_LEFT_OVER = re.compile(  # of a killed writer
    r"\.(config\.toml|metrics\.jsonl|[\w.]+\.safetensors|evaluation\.json|calibration\.json|"
    r"corruptions\.json|microcontrollers\.json|"
    r"\.torchrun)\.\d+\.tmp"
)


LAUNCH = ".torchrun"  # names the launch that began a run


def launch() -> str | None:
    """What names a launch of torchrun through its restarts; None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    # Its id where it was given none; the parent is torchrun itself
    return f"none of {os.getppid()}" if name == "none" else name


class RunFolder:
    """The files of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.metrics_file = self.path / "metrics.jsonl"
        self.state_file = self.path / "state.safetensors"
        self.previous_file = self.path / "state.previous.safetensors"
        self.model_file = self.path / "model.safetensors"
        self.evaluation_file = self.path / "evaluation.safetensors"
        self.corruptions_file = self.path / "corruptions.json"
        self.report_file = self.path / "report.html"

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer of this run, or raise. The system frees the lock of a dead process."""
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(
                f"{self}: another process is writing this run; wait for it, or give another folder"
            ) from None
        try:
            for entry in self.path.iterdir():
                if _LEFT_OVER.fullmatch(entry.name):
                    entry.unlink()
            yield
        finally:
            lock.release()

    def check_new(self) -> None:
        """The folder must be new, or empty but for what a killed start leaves behind."""
        entries = self.path.iterdir() if self.path.exists() else ()
        if any(
            entry.name not in (".lock", LAUNCH) and not _LEFT_OVER.fullmatch(entry.name)
            for entry in entries
        ):
            way = "give"
            if self.config_file.exists():
                way = f"continue it with: bisnn resume {self}, or give"
            raise ValueError(f"{self}: is not empty; {way} another folder")

    def create(self, settings: Config) -> None:
        """Begin a run."""
        self.check_new()
        name = launch()
        if name is not None:
            write_atomic(self.path / LAUNCH, name.encode())
        self.write_config(settings)

    def write_config(self, settings: Config) -> None:
        write_atomic(
            self.config_file, f"# Resolved settings of this run.\n{settings.to_toml()}".encode()
        )

    def begun_by_this_launch(self, settings: Config) -> bool:
        """Whether torchrun restarted this process for the run that lies in the folder."""
        if (
            os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
            or not self.config_file.exists()
        ):
            return False
        try:
            same = (self.path / LAUNCH).read_text(encoding="utf-8", errors="replace") == launch()
        except FileNotFoundError:
            return False
        return same and not config.differences(self.read_config(), settings)

    def check(self) -> None:
        """Say what is wrong if this is no run folder."""
        if not self.path.is_dir():
            raise ValueError(f"{self}: there is no such run folder; `bisnn train CONFIG` makes one")
        if not self.config_file.exists():
            raise ValueError(
                f"{self}: is no run folder: it has no config.toml; "
                "give the folder that `bisnn train` wrote"
            )

    def read_config(self, overrides: Sequence[str] = ()) -> Config:
        self.check()
        return config.resumed(self.config_file, overrides)

    def save_state(self, state: dict[str, Any]) -> None:
        """Write the checkpoint; the last one stays as `state.previous`, so one is always whole."""
        if self.metrics_file.exists():
            with open(self.metrics_file, "rb") as file:
                os.fsync(file.fileno())  # the rows that the checkpoint counts
        if self.state_file.exists():
            fresh = self.path / ".state.next.safetensors"
            save_tree(fresh, state, "state")
            os.replace(self.state_file, self.previous_file)
            os.replace(fresh, self.state_file)
        else:
            save_tree(self.state_file, state, "state")

    def load_state(
        self, fits: Callable[[Any], bool] = lambda state: isinstance(state, dict)
    ) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest whole checkpoint, None if there is none yet; and what the user should be told
        about damaged ones.

        `fits` says whether a tree is a checkpoint of this run: a right digest does not make it one.
        """
        damaged: list[str] = []
        for file in (self.state_file, self.previous_file):
            try:
                state = load_tree(file, "state")
                if not fits(state):
                    raise Damaged(f"{file}: is damaged: it is no checkpoint of this run")
                return state, [f"{why}; using the checkpoint before it" for why in damaged]
            except FileNotFoundError:
                continue
            except Damaged as error:
                damaged.append(str(error))
        if damaged:
            raise ValueError(
                f"{self}: no checkpoint is whole: {'; '.join(damaged)}; "
                "train again in another folder"
            )
        return None, []

    def append_metrics(self, row: dict[str, Any]) -> None:
        try:
            with open(self.metrics_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.metrics_file)) from None

    def cut_metrics(self, rows: int) -> None:
        """Keep the first `rows` rows: those after the checkpoint will come again."""
        content = read_bytes(self.metrics_file) if self.metrics_file.exists() else b""
        lines = content.splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        if len(whole) < rows:
            raise ValueError(
                f"{self.metrics_file}: has {len(whole)} rows where the checkpoint knows {rows}; "
                "restore the file"
            )
        if len(lines) != rows:
            write_atomic(self.metrics_file, b"".join(whole[:rows]))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows so far; a last line that is still being written is left out."""
        if not self.metrics_file.exists():
            return []
        lines = read_bytes(self.metrics_file).splitlines(keepends=True)
        try:
            return [json.loads(line) for line in lines if line.endswith(b"\n")]
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{self.metrics_file}: is damaged: {error}") from None
