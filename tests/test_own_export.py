"""An export from outside the package: a function of the packed network, written in this file."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import bisnn
from bisnn import cli
from bisnn.packed import Engine, PackedNetwork
from runs import small


def write_lists(network: PackedNetwork, path: Path) -> None:
    """A network as plain numbers: for every member and layer the weights, kappa and constants."""
    layers = [
        {
            "inputs": layer.inputs,
            "weights": layer.weights.tolist(),
            "kappa": np.broadcast_to(layer.scale, layer.neurons).tolist(),
            "constants": layer.constants.tolist(),
        }
        for layer in network.layers
    ]
    assert network.readout is not None
    V, scale = network.readout.V.tolist(), float(network.readout.scale)
    path.write_text(json.dumps({"layers": layers, "V": V, "scale": scale}))


def run_lists(path: Path, member: int, x: np.ndarray) -> np.ndarray:
    """Logits (T, outputs) of spikes x (T, N), from such a file alone, in float32."""
    about, f = json.loads(path.read_text()), np.float32
    traces = [[np.zeros(len(layer["kappa"]), f)] * 3 for layer in about["layers"]]
    logits = []
    for s in x:
        left = [s.astype(f)]
        for layer, state in zip(about["layers"], traces, strict=True):
            a_m, a_s, a_r, theta = map(f, layer["constants"])
            P, Q, R = state
            fires = (np.array(layer["kappa"], f) * (P - Q) - R > theta).astype(f)
            (source,) = layer["inputs"]
            I = np.array(layer["weights"][member], f) @ left[source + 1]
            state[:] = a_m * (P + I), a_s * (Q + I), a_r * (R + fires)
            left.append(fires)
        logits.append(f(about["scale"]) * (np.where(about["V"], f(1), f(-1)) @ left[-1]))
    return np.array(logits)


def test_a_writer_of_ones_own_ships_a_run(tmp_path):
    run = bisnn.train(small("bayes"), tmp_path / "run", show=False)
    to = f"{__name__}:write_lists"
    made = bisnn.export(run, to=to, out=tmp_path / "lists.json", predictor="members", members=2)
    assert made.members == 2
    engine = Engine(bisnn.packed.read(bisnn.export(run, predictor="members", members=2).path))
    x = (np.random.default_rng(0).random((30, *engine.network.input_shape)) < 0.3).astype(np.uint8)
    ours = engine.run(x[:, None]).logits
    assert ours.std() > 0
    for k in range(2):
        assert np.array_equal(run_lists(made.path, k, x), ours[k, :, 0])


def test_the_command_line_takes_it_by_name(tmp_path, capsys, monkeypatch):
    run = bisnn.train(small("st"), tmp_path / "run", show=False)
    arguments = ["bisnn", "export", str(run), "--to", f"{__name__}:write_lists"]
    monkeypatch.setattr(sys, "argv", arguments)
    with contextlib.suppress(SystemExit):
        cli.main()
    assert f"{__name__}:write_lists wrote {run / 'write_lists'}" in capsys.readouterr().out.replace(
        "\n", ""
    )
    assert json.loads((run / "write_lists").read_text())["layers"]


def test_a_writer_that_is_none_is_one_line(tmp_path):
    run = bisnn.train(small("st"), tmp_path / "run", show=False)
    with pytest.raises(ValueError, match="to: the module 'nowhere' cannot be imported"):
        bisnn.export(run, to="nowhere:write")
    with pytest.raises(ValueError, match="to: the module 'json' has no 'write'"):
        bisnn.export(run, to="json:write")
