"""Runs of several processes under torchrun: they learn what one process learns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from bisnn.runs import training
from bisnn.runs.folder import RunFolder
from bisnn.runs.model import load
from runs import files, small


def torchrun(*arguments, processes=2):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
        "-m",
        "bisnn",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [*map(str, arguments), "--no-report", "--quiet"]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def train_with_torchrun(tmp_path, config, name, processes=2):
    (tmp_path / f"{name}.toml").write_text(config.to_toml())
    return torchrun(
        "train", tmp_path / f"{name}.toml", "--out", tmp_path / name, processes=processes
    )


@pytest.mark.skipif(sys.platform != "linux", reason="gloo between local processes")
@pytest.mark.parametrize(("rule", "steps"), [("bayes", 1), ("bayes", 21), ("st", 21)])
def test_two_processes_equal_one(tmp_path, rule, steps):
    """One float32 step to 1e-6; 21 float64 steps with equal signs and a last batch of one point."""
    changes = {"train.epochs": 1, "train.batch_size": 50}
    if steps > 1:
        # 43 points
        changes = {
            "train.epochs": 3,
            "train.batch_size": 7,
            "train.dtype": "float64",
            "data.validation": 0.14,
        }
    config = small(rule, **changes, **{"data.train": 25, "train.checkpoint_seconds": 1e6})
    with train_with_torchrun(tmp_path, config, "run") as done:
        error = done.communicate(timeout=200)[1]
    assert done.returncode == 0, error
    expected = training.train(config, tmp_path / "alone", show=False)
    rows, alone = RunFolder(tmp_path / "run").read_metrics(), RunFolder(expected).read_metrics()
    assert rows[-1]["step"] == alone[-1]["step"] == steps
    for p, q in zip(
        load(tmp_path / "run").net.parameters(), load(expected).net.parameters(), strict=True
    ):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=0)
        assert torch.equal(p >= 0, q >= 0)
    for row, other in zip(rows, alone, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert row["flips"] == other["flips"]
        assert row.get("validation", {}) == pytest.approx(other.get("validation", {}), rel=1e-6)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {p.name for p in expected.iterdir()} | {".torchrun"}, (
        "only the first process writes"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="gloo between local processes")
def test_several_processes_fail_with_one_message(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("x")
    with train_with_torchrun(tmp_path, small(), "run") as done:
        error = done.communicate(timeout=200)[1]
    assert done.returncode != 0
    assert error.count("is not empty; give another folder") == 1
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="gloo between local processes")
def test_several_processes_stop_and_resume_to_the_same_bits(tmp_path):
    config = small(**{"train.epochs": 200, "train.checkpoint_seconds": 1e6})
    with train_with_torchrun(tmp_path, config, "whole") as done:
        done.communicate(timeout=200)
    with train_with_torchrun(tmp_path, config, "cut") as first:
        while not (tmp_path / "cut" / "metrics.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.05)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=200)
    rows = len(RunFolder(tmp_path / "cut").read_metrics())
    assert 0 < rows < 200
    with torchrun("resume", tmp_path / "cut") as second:
        error = second.communicate(timeout=200)[1]
    assert second.returncode == 0, error
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_processes_on_a_gpu(tmp_path):
    """nccl: one process a GPU, as many as there are."""
    count = torch.cuda.device_count()
    with train_with_torchrun(tmp_path, small(**{"train.device": "cuda"}), "run", count) as done:
        assert done.communicate(timeout=200)
    assert done.returncode == 0
    assert (tmp_path / "run" / "model.safetensors").exists()
