"""From a trained network to what is shipped: packed bits, and from those C code, a NIR graph or a
web page.

Every export starts from one description, `packed.PackedNetwork`, which needs no PyTorch: what holds
for the packed engine holds for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bisnn.checks import choice, positive_int
from bisnn.conformal import ConformalIntervals, ConformalSets
from bisnn.data.dataset import Dataset
from bisnn.data.series import Series
from bisnn.display import note
from bisnn.files import file_digest
from bisnn.neuron import FixedSRM
from bisnn.packed import file
from bisnn.packed.header import BadFile
from bisnn.packed.network import PackedNetwork
from bisnn.packing import describe
from bisnn.prediction import Dropout
from bisnn.runs import microcontrollers, model, web
from bisnn.runs.inputs import load_dataset, spikes
from bisnn.runs.own import imported
from bisnn.runs.recommendation import recommended, warn_of_map
from bisnn.runs.trial_inputs import golden_recording, trial_inputs
from bisnn.shipping import c, conversion
from bisnn.shipping.web import check_target

if TYPE_CHECKING:
    from bisnn.shipping.nir_simulation import Disagreement

TARGETS = ("packed", "c", "nir", "web")
PREDICTORS = ("map", "members", "posterior")
PROFILES = ("exact", "cubalif")
COMPARED = 50  # inputs, with the graph of a profile that is not exact
# Weights of all members together; while it writes, an export holds several copies of them
MOST_DRAWN = 1 << 28


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path  #: file, or folder
    bytes: int = 0  #: of the file, of "packed", "nir" and "web"
    weights: int = 0  #: of "packed"
    planes: int = 1  #: bits of each of these
    members: int = 0  #: of "packed", "c" and "web"; 0: the posterior itself
    call: str = ""  #: of "packed": the engine's method that predicts
    sets_call: str = ""  #: of "packed" and "c", calibrated: what predicts sets, or intervals
    flash: int = 0  #: bytes of tables, of "c"
    ram: int = 0  #: bytes of state, of "c"
    prefix: str = ""  #: of "c"
    steps: int = 0  #: of the golden recording, of "c"
    profile: str = ""  #: of "nir"
    neuron: str = ""  #: that was asked for
    changes: conversion.Changes | None = None  #: by another neuron than the trained one
    disagreement: Disagreement | None = None  #: of a profile of "nir" that is not exact
    chips: microcontrollers.Microcontrollers | None = None  #: of "c", if its sizes were asked for


def export(
    run: str | Path,
    to: str = "packed",
    out: str | Path | None = None,
    *,
    predictor: str | None = None,
    members: int | None = None,
    profile: str = "exact",
    prefix: str | None = None,
    neuron: str | None = None,
    sizes: bool = False,
    data: Dataset | Series | None = None,
) -> Exported:
    """Ship a run's model.

    Args:
        run: a run folder, or its model file.
        to: "packed", one safetensors file for `bisnn.packed`; "c", a folder of C99 sources with
            golden vectors; "nir", a graph; "web", a page that runs it; or `module:name`, a function
            of your own that is called with the `packed.PackedNetwork` and the path.
        out: file or folder to write; by default named after the target, in the run folder.
        predictor: "map", the most probable weights; "members", draws from the posterior, those of
            `bisnn predict`; "posterior", the posterior itself at 8 bits per weight, from which
            members are drawn when it is loaded ("packed" alone). By default the one that the run's
            evaluation recommends, the map where its NLL or RMSE is clearly lower, else members;
            members where there is none, or `members` says how many; the map where there is no
            posterior, and for "nir", a graph of one network.
        members: how many; by default as many as the config says.
        profile: of "nir": "exact", or "cubalif" for importers that know no more.
        prefix: of "c": of all names, so that a program can hold several models; by default "model".
        neuron: "fixed" ships the SRM in integers, `bisnn.FixedSRM`, on the trained weights, "srm"
            the float one; by default as trained. Where that differs from the training, both
            networks run over the test points.
        data: for that, and for the test inputs of "web", "c" and "nir", of a run whose data were
            given from Python, the same again.
        sizes: of "c": build it for microcontrollers and run it under QEMU, and keep flash, RAM and
            instructions per time step in the run's folder, for its report.
    """
    if not isinstance(run, (str, Path)):
        way = "for a network that is no run use bisnn.packing.describe and bisnn.packed.write"
        raise ValueError(
            "run: must be the path of a run folder or of its model file; "
            f"got a {type(run).__name__}; {way}"
        )
    source = model.file_of(run)
    options: dict[str, Any] = {"predictor": predictor, "members": members}
    options |= {"profile": profile, "prefix": prefix, "neuron": neuron, "data": data}
    options["sizes"] = sizes
    return export_model(model.load(source), source, run, to, out, **options)


def export_model(
    trained: model.Model,
    source: Path,
    run: str | Path,
    to: str = "packed",
    out: str | Path | None = None,
    *,
    predictor: str | None = None,
    members: int | None = None,
    profile: str = "exact",
    prefix: str | None = None,
    neuron: str | None = None,
    sizes: bool = False,
    data: Dataset | Series | None = None,
) -> Exported:
    """As `export`, with the model in memory; `source` is its file."""
    _check(to, profile, prefix, neuron)
    if sizes and to != "c":
        raise ValueError(f"sizes: are of --to c; got them with {to!r}; leave it out")
    if to == "nir" and trained.others:
        raise ValueError(
            f"to: a NIR graph is of one network; got a model of {1 + len(trained.others)}; use "
            "--to packed or c, or export one of the runs in its folder `members`"
        )
    if to == "nir" and (predictor == "members" or members is not None):
        raise ValueError("predictor: a NIR graph is of one network; got members; use 'map'")
    folder = source.parent
    if to == "packed":
        _check_target(Path(out or folder / "packed.safetensors"))
    if to == "c":
        c.check_folder(Path(out or folder / "c"))
    if to == "web":
        check_target(Path(out or folder / "try.html"))
    if to == "nir":
        from bisnn.shipping import nir

        nir.check_target(Path(out or folder / "model.nir"))
    chosen = predictor or _recommended(run, source, trained, to, members)
    if chosen == "map" and trained.config.rule.posterior():
        warn_of_map(
            run,
            source,
            "but a NIR graph is of one network" if to == "nir" else "ship members instead",
        )
    packed = describe_model(trained, chosen, members)
    packed = replace(packed, source=file_digest(source))
    changes = None
    converted = neuron is not None and neuron != trained.config.neuron.kind
    if trained.guarantee is not None:
        packed = _calibrated(trained, packed, chosen, converted)
        if packed.intervals is not None and to in ("c", "web"):
            note(
                f"--to {to} has no place for the run's calibrated intervals, which are left out; "
                "--to packed takes them along"
            )
    if neuron is not None and converted:
        packed, changes = _with_neuron(packed, neuron, trained, data)
    if to == "web":
        path = Path(out or folder / "try.html")
        alone = describe_model(trained, "map") if chosen == "members" else None
        size = web.write(packed, alone, trained, path, data)
        written = Exported(path, size, members=packed.count)
    else:
        written = _written(packed, trained, to, out, folder, profile, prefix, data)
    if sizes:
        written = replace(written, chips=_measured(packed, written, folder))
    return replace(written, neuron=neuron or "", changes=changes)


def _calibrated(
    trained: model.Model, packed: PackedNetwork, predictor: str, converted: bool
) -> PackedNetwork:
    """With the thresholds or the width that go along: those of the very weights and neurons that
    are shipped.
    """
    found = trained.guarantee
    assert found is not None
    each, rule = packed.count // (1 + len(trained.others)), found.rule
    same = found.samples == {"map": None, "members": each, "posterior": 0}[predictor]
    if same and not converted and isinstance(rule, ConformalIntervals):
        return replace(packed, intervals=rule)
    if same and not converted and isinstance(rule, ConformalSets) and rule.score == "margin":
        return replace(packed, sets=rule)
    by = "the one set of weights" if found.samples is None else f"{found.samples} members"
    sets = isinstance(rule, ConformalSets)
    score = f", with the score {rule.score}" if isinstance(rule, ConformalSets) else ""
    note(
        f"the run was calibrated by {by}, with neurons as trained{score}; what is exported "
        f"differs, so the prediction {'sets' if sets else 'intervals'} are left out"
    )
    return packed


def _check(to: str, profile: str, prefix: str | None, neuron: str | None) -> None:
    """The options that are wrong whatever the run."""
    if ":" not in to:
        choice("to", to, TARGETS)
    choice("profile", profile, PROFILES)
    if neuron is not None:
        choice("neuron", neuron, conversion.NEURONS)
    if profile != "exact" and to != "nir":
        raise ValueError(f"profile: is of --to nir; got {profile!r} with {to!r}; leave it out")
    if prefix is not None:
        if to != "c":
            raise ValueError(f"prefix: is of --to c; got {prefix!r} with {to!r}; leave it out")
        c.check_prefix(prefix)


def _with_neuron(
    packed: PackedNetwork, neuron: str, trained: model.Model, data: Dataset | Series | None
) -> tuple[PackedNetwork, conversion.Changes]:
    """The network with another neuron, and what that changes on the test points."""
    config = trained.config
    other = conversion.converted(packed, neuron, FixedSRM.fraction)
    points = load_dataset(config, given=data).test.x
    batches = (
        spikes(config, points[index]).numpy()
        for index in torch.arange(len(points)).split(trained.batch)
    )
    return other, conversion.changes(packed, other, batches)


def _written(
    packed: PackedNetwork,
    trained: model.Model,
    to: str,
    out: str | Path | None,
    folder: Path,
    profile: str,
    prefix: str | None,
    data: Dataset | Series | None,
) -> Exported:
    """Write what is shipped."""
    if ":" in to:  # a writer of the user's own
        path = Path(out or folder / to.partition(":")[2])
        imported("to", to)(packed, path)
        return Exported(path, members=packed.count)
    if to == "packed":
        return _write_packed(packed, Path(out or folder / "packed.safetensors"))
    if packed.layers[0].posterior is not None:
        raise ValueError(
            'predictor: "posterior" is for --to packed, which draws members when it loads; '
            f'got it with {to!r}; use "members"'
        )
    if to == "c":
        path, prefix = Path(out or folder / "c"), prefix or "model"
        golden = golden_recording(packed, trained, data)
        each_step = trained.config.data.each_step()
        made = c.write(packed, path, golden, prefix=prefix, each_step=each_step)
        call = f"{prefix}_decided()" if packed.sets else ""
        return Exported(
            path,
            members=packed.count,
            sets_call=call,
            flash=made["flash"],
            ram=made["ram"],
            prefix=prefix,
            steps=len(golden),
        )
    from bisnn.shipping import nir, nir_simulation

    path = Path(out or folder / "model.nir")
    size = nir.write(packed, path, profile=profile)
    lossy = None
    if profile != "exact":
        lossy = nir_simulation.disagreement(packed, trial_inputs(trained, COMPARED, data)[0])
    return Exported(path, size, profile=profile, disagreement=lossy)


def _measured(
    packed: PackedNetwork, written: Exported, folder: Path
) -> microcontrollers.Microcontrollers:
    """What the C code takes on microcontrollers; kept in the run's folder."""
    sizes = {"flash": written.flash, "ram": written.ram}
    found = microcontrollers.measure(packed, written.path, written.prefix, written.steps, sizes)
    try:
        microcontrollers.save(found, folder)
    except OSError as error:
        note(f"{folder}: the sizes cannot be kept for its report: {error.strerror}")
    return found


def _write_packed(packed: PackedNetwork, path: Path) -> Exported:
    synapses = sum(layer.synapses for layer in packed.layers)
    members = packed.count if packed.layers[0].posterior is None else 0
    call = "predict_features(x)" if packed.encoding else "predict(spikes)"
    answers = "sets" if packed.sets else "intervals" if packed.intervals else ""
    more = f"predict_feature_{answers}(x)" if packed.encoding else f"predict_{answers}(spikes)"
    size = file.write(packed, path)
    return Exported(
        path,
        size,
        synapses,
        packed.layers[0].alphabet.planes,
        members,
        call,
        more if answers else "",
    )


def _check_target(path: Path) -> None:
    """A packed file may replace a packed file and nothing else, such as a run's model."""
    if path.suffix != ".safetensors":
        raise ValueError(
            f"out: must end in .safetensors; got {str(path)!r}; give e.g. packed.safetensors"
        )
    if path.is_file():
        try:
            file.read(path)
        except BadFile:
            raise ValueError(
                f"out: {path} is there and is no packed network, and would be lost; "
                "give another name"
            ) from None


def _recommended(
    run: str | Path, source: Path, trained: model.Model, to: str, members: int | None
) -> str:
    """The predictor to ship where none was asked for."""
    if not trained.config.rule.posterior() or to == "nir":
        return "map"
    assert trained.members is not None
    return "members" if members is not None else recommended(run, source, trained.members)


def _check_drawn(trained: model.Model, members: int) -> None:
    """See that there is memory for so many members, before they are drawn."""
    weights = sum(layer.weight.numel() for layer in trained.net.layers)
    if members * weights > MOST_DRAWN:
        raise ValueError(
            f"members: an export holds at most {MOST_DRAWN:,} weights; got {members:,} times "
            f"{weights:,}; use {MOST_DRAWN // weights:,} members or fewer, or ship the posterior"
        )


def describe_model(
    trained: model.Model, predictor: str = "map", members: int | None = None
) -> PackedNetwork:
    """A trained model as bits, with its encoding and classes: see `export`."""
    choice("predictor", predictor, PREDICTORS)
    net, config = trained.net, trained.config
    if predictor != "map" and not config.rule.posterior():
        raise ValueError(
            f"predictor: the rule {config.rule.name!r} has no posterior; got {predictor!r}; "
            "use 'map'"
        )
    if predictor == "map" and members is not None:
        way = "leave it out"
        if config.rule.posterior():
            way += ", or use predictor 'members'"
        raise ValueError(
            "members: are drawn from a posterior, and the map is one set of weights; "
            f"got {members}; {way}"
        )
    if predictor == "posterior" and trained.others:
        raise ValueError(
            f"predictor: a packed file holds one posterior, and this model has "
            f"{1 + len(trained.others)} networks; got 'posterior'; use 'members'"
        )
    count = None
    if predictor != "map":
        count = positive_int("members", trained.members if members is None else members)
    if predictor == "members":
        _check_drawn(trained, count or 0)
    drawn = None if predictor == "posterior" else trained.draw(count)
    assert not isinstance(drawn, Dropout)  # for lack of a posterior
    bits = describe(net, drawn, posterior=predictor == "posterior")
    code = config.encode
    scale = {"low": trained.low.tolist(), "high": trained.high.tolist()}
    encoding: dict[str, Any] = {
        "code": code.code,
        "steps": code.steps,
        "neurons": code.neurons,
        "width": code.width,
    }
    encoding |= {"seed": config.seed, "encodings": config.predict.encodings, **scale}
    if config.recorded:  # spikes come in
        encoding = {}
    about: dict[str, Any] = {
        "task": config.task,
        "classes": trained.classes,
        "burn_in": config.burn_in,
        "encoding": encoding,
    }
    about |= {
        "schema": trained.schema,
        "target_mean": trained.target_mean,
        "target_scale": trained.target_scale,
    }
    return replace(
        bits, **about, members=count or 0 if predictor == "posterior" else 0, seed=config.seed
    )
