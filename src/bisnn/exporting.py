"""From a trained network to what is shipped: packed bits, and from those C code or a NIR graph.

Every export starts from one description, `packed.file.Network`, which needs no PyTorch: what holds for the packed engine holds for
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bisnn import encode, model, weights
from bisnn.checks import as_generator, choice, positive_int
from bisnn.config import Events
from bisnn.data.dataset import spikes
from bisnn.files import file_digest
from bisnn.layers import Conv2d, Readout, Recurrent
from bisnn.layers import Layer as TorchLayer
from bisnn.network import Network as TorchNetwork
from bisnn.packed import file

TARGETS = ("packed", "c", "nir")
PREDICTORS = ("map", "members", "posterior")
PROFILES = ("exact", "cubalif")
NOISE = 0.05  # spikes of random recordings
POINTS = 50  # at random in the range of the features: golden vectors and disagreements need no data file


def export(
    run: str | Path,
    to: str = "packed",
    out: str | Path | None = None,
    *,
    predictor: str | None = None,
    members: int | None = None,
    profile: str = "exact",
) -> dict[str, Any]:
    """Ship a run's model.

    Args:
        run: a run folder, or its model file.
        to: "packed", one safetensors file for `bisnn.packed`; "c", a folder of C99 sources with golden vectors; "nir", a graph.
        out: file or folder to write; by default named after the target, in the run folder.
        predictor: "map", the most probable weights; "members", draws from the posterior, those of `bisnn predict`; "posterior", the
            posterior itself at 8 bits a weight, from which members are drawn when it is loaded ("packed" alone). By default the
            model's usual one: members where there is a posterior (but the map for "nir", a graph of one network), else the map.
        members: how many; by default as many as the config says.
        profile: of "nir": "exact", or "cubalif" for importers that know no more.

    Returns:
        what was written: "path", "bytes" and more, by target.
    """
    choice("to", to, TARGETS)
    choice("profile", profile, PROFILES)
    if profile != "exact" and to != "nir":
        raise ValueError(f"profile: is of --to nir; got {profile!r} with {to!r}; leave it out")
    trained = model.load(run)
    if to == "nir" and (predictor == "members" or members is not None):
        raise ValueError("predictor: a NIR graph is of one network; got members; use 'map'")
    if to == "packed":
        _check_target(Path(out or model.file_of(run).parent / "packed.safetensors"))
    packed = describe_model(trained, predictor or _usual(trained, to), members)
    packed = replace(packed, source=file_digest(model.file_of(run)))
    folder = model.file_of(run).parent
    if to == "packed":
        path = Path(out or folder / "packed.safetensors")
        synapses, fixed = sum(layer.synapses for layer in packed.layers), packed.layers[0].posterior is None
        call = "predict_features(x)" if packed.encoding else "predict(spikes)"
        about = {"weights": synapses, "members": packed.count if fixed else 0, "call": call}
        return {"path": path, "bytes": file.write(packed, path), **about}
    if packed.layers[0].posterior is not None:
        raise ValueError(
            f'predictor: "posterior" is for --to packed, which draws members when it loads; got it with {to!r}; use "members"'
        )
    recordings = _recordings(trained)
    if to == "c":
        from bisnn.packed import c

        path = Path(out or folder / "c")
        return {"path": path, "members": packed.count, **c.write(packed, path, recordings[:, 0])}
    from bisnn.packed import nir_graph

    path = Path(out or folder / "model.nir")
    size = nir_graph.write(packed, path, profile=profile)
    lossy = {} if profile == "exact" else {"disagreement": asdict(nir_graph.disagreement(packed, recordings))}
    return {"path": path, "bytes": size, "profile": profile, **lossy}


def _check_target(path: Path) -> None:
    """A packed file may replace a packed file and nothing else: not a run's model, state or config."""
    if path.suffix != ".safetensors":
        raise ValueError(f"out: must end in .safetensors; got {str(path)!r}; give e.g. packed.safetensors")
    if path.is_file():
        try:
            file.read(path)
        except file.BadFile:
            raise ValueError(f"out: {path} is there and is no packed network, and would be lost; give another name") from None


def _recordings(trained: model.Model) -> np.ndarray:
    """Inputs of the network, uint8 (T, POINTS, ...): random points, encoded; noise where it takes recordings."""
    config, rng = trained.config, encode.keyed_rng(trained.config.seed, encode.GRID)
    if isinstance(config.data, Events):
        return (rng.random((config.steps, POINTS, *trained.net.input_shape), dtype=np.float32) < NOISE).astype(np.uint8)
    points = torch.from_numpy(rng.random((POINTS, trained.features), dtype=np.float32))
    return spikes(config, points, encode.GRID, 0, torch.arange(POINTS)).to(torch.uint8).numpy()


def _usual(trained: model.Model, to: str) -> str:
    return "members" if trained.members is not None and to != "nir" else "map"


def describe_model(trained: model.Model, predictor: str = "map", members: int | None = None) -> file.Network:
    """A trained model as bits, with its encoding and classes: see `export`."""
    choice("predictor", predictor, PREDICTORS)
    net, config = trained.net, trained.config
    if predictor != "map" and trained.members is None:
        raise ValueError(f"predictor: the rule {config.rule.name!r} has no posterior; got {predictor!r}; use 'map'")
    if predictor == "map" and members is not None:
        way = "leave it out" if trained.members is None else "leave it out, or use predictor 'members'"
        raise ValueError(f"members: are drawn from a posterior, and the map is one set of weights; got {members}; {way}")
    drawn, count = None, positive_int("members", trained.members if members is None else members) if predictor != "map" else 0
    if predictor == "members":
        drawn = weights.draw_members([layer.weight.detach() for layer in net.layers], count, as_generator(config.seed))
    bits = describe(net, drawn, posterior=predictor == "posterior")
    code = config.encode
    scale = {"low": trained.low.tolist(), "high": trained.high.tolist()}
    encoding: dict[str, Any] = {"code": code.code, "steps": code.steps, "neurons": code.neurons, "width": code.width}
    encoding |= {"seed": config.seed, **scale}
    if isinstance(config.data, Events):  # spikes come in
        encoding = {}
    about: dict[str, Any] = {"task": config.task, "classes": trained.classes, "burn_in": config.train.burn_in, "encoding": encoding}
    return replace(bits, **about, members=count if predictor == "posterior" else 0, seed=config.seed)


def describe(
    net: TorchNetwork, members: Sequence[Sequence[Tensor]] | None = None, *, readouts: str = "last", posterior: bool = False
) -> file.Network:
    """A network of binary weights as its bits.

    Args:
        net: float32, binary weights.
        members: for each member one bool tensor a layer, True where the weight is +1; None for the MAP weights sign(w^r).
        readouts: "last", all that a prediction needs, or "every".
        posterior: put the posterior itself in, at 8 bits a weight; its MAP weights are those of the network.
    """
    choice("readouts", readouts, ("last", "every"))
    if net.weights != "binary":
        raise ValueError(
            "net: must have binary weights, or it has no bits to pack; got a full-precision network; train another rule"
        )
    if net.dtype != torch.float32:
        way = "use net.float(), or train with train.dtype = 'float32'"
        raise ValueError(f"net: must be float32, as all kernels that ship are; got {net.dtype}; {way}")
    if any(weights.is_realised(p) for p in net.parameters()):
        raise RuntimeError("describe(): the parameters hold a realisation w and not the latents w^r; call it outside the block")
    if members is None:
        members = [[layer.weight.detach() >= 0 for layer in net.layers]]
    layers = []
    for i, (layer, readout) in enumerate(zip(net.layers, net.readouts, strict=True)):
        kept = isinstance(readout, Readout) and (readouts == "every" or i == len(net.layers) - 1)
        layers.append(_layer(layer, [member[i] for member in members], readout if kept else None, posterior))  # type: ignore[arg-type]
    return file.Network(tuple(layers))


def _layer(layer: TorchLayer, up: list[Tensor], readout: Readout | None, posterior: bool) -> file.Layer:
    kind, neurons, places, mask, outputs = "dense", layer.current_shape[0], {}, None, None
    if isinstance(layer, Conv2d):
        kind, places = "conv", {name: getattr(layer, name) for name in ("stride", "padding", "pool")}
        places["kernel"] = layer.kernel_size
    elif isinstance(layer, Recurrent):
        kind, outputs = "recurrent", None if layer.outputs is None else tuple(layer.outputs)
        mask = None if layer.mask is None else layer.mask.cpu().numpy()

    def full(values: np.ndarray) -> np.ndarray:
        if mask is None:
            return values.reshape(neurons, -1)
        spread = np.zeros(mask.shape, values.dtype)
        spread[mask] = values
        return spread

    return file.Layer(
        kind=kind,
        input_shape=layer.input_shape,
        neurons=neurons,
        weights=np.stack([full(w.cpu().numpy()) for w in up]),
        kappa=layer.kappa.cpu().numpy().reshape(-1),
        constants=layer.constants.cpu().numpy(),
        **places,
        mask=mask,
        outputs=outputs,
        readout=None if readout is None else file.Readout((readout.V > 0).cpu().numpy(), np.float32(readout.scale.item())),
        posterior=full(quantised(layer.weight.detach().cpu())) if posterior else None,
    )


def quantised(w_r: Tensor) -> np.ndarray:
    """p = sigma(2 w^r) as round(255 p), uint8, with the sign of w^r kept: 128 and above where w^r >= 0."""
    q = torch.floor(255 * weights.probability(w_r.double()) + 0.5)
    return torch.where(w_r >= 0, q.clamp(128, 255), q.clamp(0, 127)).to(torch.uint8).numpy()
