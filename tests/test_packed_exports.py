"""Exported networks: trained configs, draws from the posterior, PyTorch left out, refusals."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bisnn
from bisnn import Conv2d, Linear, Network, packing, weights
from bisnn.alphabet import BINARY, Levels
from bisnn.packed import file
from bisnn.packed import load as load_packed
from bisnn.packed.network import draw, most_probable
from bisnn.realisation import map_weight
from bisnn.runs import training
from bisnn.runs.config import load as load_config
from conftest import spikes
from networks import drawn
from runs import RECORDED, made_up_nmnist, small
from test_config import SHIPPED

# Trained networks, from the run folder to a prediction


def _short_training(name: str, folder: Path) -> Path:
    """A run of a shipped config, made small; of recordings, on made-up ones."""
    config = load_config(name)
    few = {"train.epochs": 2, "train.burn_in": 5, "network.layers": [40, 33]}
    if not config.recorded:
        return training.train(
            config.updated(**few, **{"encode.steps": 40}), folder / "run", show=False
        )
    data = {**RECORDED["data"], "root": str(made_up_nmnist(folder / "N"))}
    few |= {
        "train.burn_in": 1,
        "predict.burn_in": 2,
        "network.layers": [12],
        "neuron.threshold": 0.03,
    }
    conv = [{"channels": 3, "kernel": 3, "stride": 2, "pool": 2}, {"channels": 5, "kernel": 3}][
        : len(config.network.conv)
    ]
    return training.train(
        config.updated(data=data, **few, **{"network.conv": conv}), folder / "run", show=False
    )


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_trained_config(name, tmp_path, monkeypatch):
    """A short training of each shipped config exports the model's own spikes and predictions."""
    monkeypatch.setenv("BISNN_CACHE", str(tmp_path / "cache"))
    run = _short_training(name, tmp_path)
    model = bisnn.load(run)
    if model.net.alphabet is None:
        with pytest.raises(ValueError, match="alphabet"):
            bisnn.export(run)
        return
    predictors = ("map", "members") if model.members else ("map",)
    for predictor in predictors:
        done = bisnn.export(run, out=tmp_path / f"{predictor}.safetensors", predictor=predictor)
        engine = load_packed(done.path)
        if model.features:
            points = np.random.default_rng(0).random((7, model.features))
            ours = engine.predict_features(points)
            theirs = model.predict(points, None if predictor == "map" else "usual")
            within = 2e-3 if model.classes else 2e-2  # an encoded spike may differ
            np.testing.assert_allclose(ours.mean, theirs.mean.numpy(), atol=within)
        s = spikes(40, 6, *model.net.input_shape, density=0.3)
        members = [[map_weight(layer.weight) for layer in model.net.layers]]
        if predictor == "members":
            members = drawn(model.net, model.members, model.config.seed)
        result = engine.run(s.numpy(), spikes=True)
        assert len(result.logits) == len(members)
        for k, member in enumerate(members):
            output = model.net(s, weights=[w.float() for w in member])
            assert np.array_equal(result.logits[k], output.logits.detach().numpy())
            for a, b in zip(result.spikes, output.spikes, strict=True):
                assert np.array_equal(a[k], b.detach().numpy())
        assert engine.network.classes == model.classes
        assert engine.network.burn_in == model.config.burn_in
        assert engine.network.source == bisnn.files.file_digest(run / "model.safetensors")


def test_many_points_are_predicted_in_parts(tmp_path, monkeypatch):
    run = training.train(small(), tmp_path / "run", show=False)
    engine = load_packed(bisnn.export(run).path)
    x = np.random.default_rng(0).random((11, 2))
    whole = engine.predict_features(x)
    monkeypatch.setattr("bisnn.packed.engine.POINTS", 4)
    parts = engine.predict_features(x)
    for name in ("mean", "members", "std", "entropy", "mutual_information"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-6, atol=1e-7)
    far = engine.predict_features(np.array([[1e308, -1e308]])).mean
    np.testing.assert_allclose(far, [[0.5, 0.5]])  # no input, no opinion


def test_file_sizes(tmp_path):
    """One bit per weight: at most 1/30 of float32 and 4 KiB, for the paper's networks."""
    mlp = Network(Linear(20, 256), Linear(256, 256), readout=2)
    conv = (
        Conv2d(2, 64, 7, padding=3, pool=2),
        Conv2d(64, 128, 7, padding=3),
        Conv2d(128, 128, 7, padding=3, pool=2),
    )
    for net in (mlp, Network(*conv, readout=10, input_shape=(2, 26, 26))):
        size = file.write(packing.describe(net), tmp_path / "net.safetensors")
        n = sum(p.numel() for p in net.parameters())
        assert size == (tmp_path / "net.safetensors").stat().st_size <= 4 * n / 30 + 4096
        assert (
            file.write(packing.describe(net, posterior=True), tmp_path / "net.safetensors")
            <= 1.05 * n + 4096
        )


# The posterior


def test_the_posterior_draws_what_it_says(tmp_path):
    net = Network(Linear(30, 40), readout=2)
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.linspace(-6, 6, 1200).reshape(40, 30))
    path = tmp_path / "p.safetensors"
    file.write(replace(packing.describe(net, posterior=True), members=5, seed=7), path)
    p = torch.sigmoid(2 * net.layers[0].weight.detach().double()).numpy()
    assert np.abs(file.read(path).layers[0].posterior[0] / 255 - p).max() <= 0.5 / 255 + 1e-12
    assert np.array_equal(
        file.read(path, "map").layers[0].weights[0] > 0, (net.layers[0].weight >= 0).numpy()
    )
    assert file.read(path).count == 5
    many = file.read(path, 4000).layers[0].weights
    deviation = np.sqrt(np.maximum(p * (1 - p), 1e-9) / 4000)
    assert (np.abs((many > 0).mean(0) - p) < 5 * deviation + 0.5 / 255 + 2**-16).all()
    assert np.array_equal(many[:5], file.read(path).layers[0].weights), (
        "more members leave the first as they are"
    )
    assert not np.array_equal(many[:5], file.read(path, seed=8).layers[0].weights)
    assert not np.array_equal(many[0], many[1])
    certain = file.read(path, 50).layers[0]
    assert (certain.weights[:, certain.posterior[0] == 255] == 1).all()
    assert (certain.weights[:, certain.posterior[0] == 0] == -1).all()


def test_the_named_generator_never_changes():
    """The draws are part of the file format: another result here is another format."""
    posterior = np.arange(256, dtype=np.uint8).repeat(3)
    drawn = draw(posterior[None], BINARY, 3, seed=2**31 + 1, layer=2)
    bits = np.packbits(drawn > 0, bitorder="little")
    assert file.hashlib.blake2b(bits.tobytes(), digest_size=8).hexdigest() == "3b5049599f17ccc4"


@given(w=st.floats(-30, 30, width=32))
def test_quantising_keeps_the_sign(w):
    q = int(packing.quantised(torch.tensor([w]))[0, 0])
    assert (q >= 128) == (w >= 0)
    assert abs(q / 255 - 1 / (1 + math.exp(-2 * w))) <= 0.5 / 255 + 1e-9


@given(
    st.lists(st.floats(-12, 12), min_size=2, max_size=6), st.lists(st.floats(-12, 12), min_size=2)
)
def test_quantised_levels_add_up_and_keep_the_most_probable(one, other):
    """K levels in 255 shares: each within a share of its probability, and the same MAP weight."""
    K = min(len(one), len(other))
    logits = torch.tensor([one[:K], other[:K]], dtype=torch.float64).T.contiguous()
    of = Levels(*range(K))
    weights.mark_latents(logits, weights.Categorical(of))
    shares = packing.quantised(logits)
    p = torch.softmax(logits, 0).flip(0).numpy()
    each = np.diff(shares.astype(int), axis=0, prepend=0, append=255)
    assert (each >= 0).all()
    assert np.abs(each / 255 - p).max() <= 2 / 255
    assert np.array_equal(most_probable(shares, of), map_weight(logits).numpy())


# Without PyTorch

ALONE = """
import sys

class Only:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        needed = {"numpy", "numba", "llvmlite", "safetensors", "bisnn"}
        if first not in needed | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Only())
import numpy as np, bisnn.packed
engine = bisnn.packed.load(sys.argv[1])
x = np.load(sys.argv[2])
np.save(sys.argv[3], engine.run(x).logits)
print(engine.predict_features(np.full((2, 2), 0.5)).mean.shape, "torch" in sys.modules)
"""


def test_it_runs_without_pytorch(tmp_path):
    run = training.train(small(), tmp_path / "run", show=False)
    path = bisnn.export(run, predictor="posterior").path
    x = spikes(30, 4, 20).numpy()
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", ALONE, path, tmp_path / "x.npy", tmp_path / "y.npy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 2) False"
    assert np.array_equal(np.load(tmp_path / "y.npy"), load_packed(path).run(x).logits)


# What has no meaning


def test_exports_refuse_what_has_no_meaning(tmp_path):
    st_run = training.train(small("st"), tmp_path / "st", show=False)
    for predictor in ("members", "posterior"):
        with pytest.raises(
            ValueError, match=f"predictor: the rule 'st' has no posterior; got '{predictor}'"
        ):
            bisnn.export(st_run, predictor=predictor)
    full = training.train(small("full, Adam"), tmp_path / "full", show=False)
    with pytest.raises(ValueError, match="net: must have weights from an alphabet"):
        bisnn.export(full)
    run = training.train(small(), tmp_path / "run", show=False)
    with pytest.raises(ValueError, match="members: are drawn from a posterior"):
        bisnn.export(run, predictor="map", members=3)
    with pytest.raises(ValueError, match='"posterior" is for --to packed'):
        bisnn.export(run, "c", predictor="posterior")
    model_file = run / "model.safetensors"
    before = model_file.read_bytes()
    for name in ("model.safetensors", "state.safetensors"):
        with pytest.raises(
            ValueError,
            match="is there and is no packed network, and would be lost; give another name",
        ):
            bisnn.export(run, out=run / name)
    with pytest.raises(ValueError, match=r"out: must end in .safetensors"):
        bisnn.export(run, out=run / "config.toml")
    assert model_file.read_bytes() == before
    with pytest.raises(ValueError, match="profile: is of --to nir; got 'cubalif' with 'packed'"):
        bisnn.export(run, profile="cubalif")
    with pytest.raises(ValueError, match="a NIR graph is of one network"):
        bisnn.export(run, "nir", predictor="members")
    with pytest.raises(
        ValueError,
        match="to: must be one of packed, c, nir, web; got 'pack'; did you mean 'packed'",
    ):
        bisnn.export(run, "pack")
    assert sorted(p.name for p in run.iterdir() if "packed" in p.name) == []
    assert bisnn.export(run).members == 3
    assert bisnn.export(run).members == 3, "a packed file may be replaced"
    assert load_packed(run / "packed.safetensors").network.count == 3
