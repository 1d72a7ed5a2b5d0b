"""The verdict on a run: test metrics with intervals, and everything that a report shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from rich.progress import Progress
from torch import Tensor

from bisnn import kernels, metrics, realisation, weights
from bisnn.alphabet import BINARY
from bisnn.conformal import PredictionSets
from bisnn.data.dataset import Dataset
from bisnn.data.loading import Clips, LoadedData, Split
from bisnn.data.series import Series
from bisnn.display import bars, note
from bisnn.files import file_digest, write_atomic
from bisnn.prediction import Classification, Regression
from bisnn.runs.decisions import Scores, kept
from bisnn.runs.folder import Damaged, RunFolder, load_tree, save_tree
from bisnn.runs.guarantee import answers, digest_beside
from bisnn.runs.inputs import check_unchanged, load_dataset, located, spikes
from bisnn.runs.labels import (
    is_ragged,
    labels_that_count,
    recordings_of_labels,
    steps_that_count,
)
from bisnn.runs.model import Model, load, weight_count
from bisnn.runs.other_data import Others, others_of, told_apart
from bisnn.runs.results import (
    Curves,
    Evaluation,
    FeatureMaps,
    FurtherMetrics,
    Histogram,
    Memory,
    Metrics,
    OtherData,
    PlainCalibration,
    Plane,
    Predictions,
    Raster,
    Slices,
    Verdict,
)
from bisnn.shipping.energy import Costs, Ledger, ledger

SHOWN = 200  # test points that rates and uncertainty over time are taken from
EXAMPLES = 6  # test points whose input and spikes are kept
WRONG = 4  # of these, at most, that the model gets wrong
PLANE = 40  # points per side of the grid over the plane of a model with two features
SLICES = 6  # of time, that the events of a recording are counted in
MAPS = 8  # channels of a convolutional layer whose spikes are counted
COUNTED = 16  # test points that the energy ledger counts
BINS = 40  # of the histogram of p
FORMAT = 6  # of what is stored: it grows with what a report shows


def predictors(model: Model) -> dict[str, int | None]:
    """Name of each predictor of a run, and how many members it draws from every network; the first
    draws none, the last is the usual one, and one that was calibrated is among them.
    """
    networks, count = 1 + len(model.others), model.members
    single = "sign" if model.net.alphabet == BINARY else "nearest level"
    if model.net.alphabet is None:
        single = "real weights"
    if model.config.rule.posterior():
        single = "MAP"
    found: dict[str, int | None] = {
        single if networks == 1 else f"{single} of {networks} networks": None
    }
    if count is not None:
        by = "dropout" if model.config.predict.dropout else "ensemble"
        calibrated = None if model.guarantee is None else model.guarantee.samples
        for members in dict.fromkeys((calibrated or count, count)):
            found[f"{by} of {model.size(members)}"] = members
    return found


def evaluate(
    folder: str | Path,
    *,
    data: Dataset | Series | str | Path | None = None,
    show: bool = True,
    costs: Costs | None = None,
    ood: str | Path | None = None,
) -> Verdict:
    """Judge a run's model on its test points; writes `evaluation.safetensors` and `evaluation.json`
    into the run folder.

    Args:
        folder: the run.
        data: of a run whose data were given from Python, the same again; of a dataset that has
            moved, the file or folder where it lies now.
        show: a progress bar.
        costs: prices of the energy ledger's operations; by default those of 45 nm.
        ood: a folder of other recordings, or of pictures, to be told from the test recordings; see
            `bisnn.runs.other_data`.

    Returns all of `evaluation.json`: for each predictor, each metric's value with its 95 %
    interval, the plain ECE beside that of a calibrated model, and the energy ledger.
    """
    model, loaded = load_run(folder, data, show)
    return evaluate_model(folder, model, loaded, show=show, costs=costs, ood=ood)


def load_run(
    folder: str | Path, given: Dataset | Series | str | Path | None = None, show: bool = True
) -> tuple[Model, LoadedData]:
    """A run's model, and the data that it was trained on; an error where these have changed."""
    RunFolder(folder).check()
    model = load(folder)
    config = located(model.config, given)
    data = load_dataset(config, show, None if isinstance(given, (str, Path)) else given)
    check_unchanged(config, data, model.data, folder)
    return model, data


def evaluate_model(
    folder: str | Path,
    model: Model,
    data: LoadedData,
    *,
    show: bool = True,
    costs: Costs | None = None,
    ood: str | Path | None = None,
) -> Verdict:
    """As `evaluate`, with the run's model and data in memory."""
    run = RunFolder(folder)
    others = [] if ood is None else others_of(Path(ood), model, show)
    if model.config.train.device == "cuda" and torch.cuda.is_available():
        model.net.to("cuda")
    with run.locked(), bars(show=show) as progress, kernels.precision("full"):
        tree = _judged(model, data, progress)
        tree["energy"] = energy(model, data.test[0], costs)
        tree["recordings"] = data.test.x.digest().hex() if isinstance(data.test.x, Clips) else ""
        if ood is None:
            tree |= _told_apart_before(folder, model, tree["recordings"])
        else:
            tree["ood"], tree["other_entropy"] = _told_apart(
                model, Path(ood), others, tree, progress
            )
        tree["calibration_file"] = digest_beside(run.model_file)
        tree |= {"seconds": _seconds(run), "epoch": model.epoch}
        tree["temperature"] = model.temperature
        tree |= {"model": file_digest(run.model_file), "format": FORMAT}
        evaluation = Evaluation(**tree, beaten_by=_beaten_by(tree["metrics"], tree["baseline"]))
        save_tree(run.evaluation_file, evaluation.model_dump(), "evaluation")
        verdict = Verdict(**{name: getattr(evaluation, name) for name in Verdict.model_fields})
        text = json.dumps(verdict.model_dump(), indent=1) + "\n"
        write_atomic(run.path / "evaluation.json", text.encode())
    _warn_of_guesses(folder, verdict)
    return verdict


def _told_apart(
    model: Model, folder: Path, others: list[Others], tree: dict[str, Any], progress: Progress
) -> tuple[OtherData, dict[str, dict[str, Tensor]]]:
    members = tree["members"]
    total = sum(map(model.size, members.values())) * sum(len(some.x) for some in others)
    advance = partial(progress.advance, progress.add_task("other recordings", total=total))
    return told_apart(model, folder, others, tree["predictors"], members, advance)


def _told_apart_before(folder: str | Path, model: Model, recordings: str) -> dict[str, Any]:
    """What an earlier evaluation found of other data, by the same model on the same recordings."""
    try:
        before = load_evaluation(folder)
    except ValueError:  # none, or of another model
        return {}
    if (before.temperature, before.recordings) != (model.temperature, recordings):
        return {}
    return {"ood": before.ood, "other_entropy": before.other_entropy}


def _beaten_by(judged: dict[str, Metrics], baselines: dict[str, Metrics]) -> list[str]:
    """The predictors whose whole 95 % interval of accuracy or RMSE beats the baseline."""
    (baseline,) = baselines.values()
    if "rmse" in baseline:
        bound = baseline["rmse"].value
        return [name for name, row in judged.items() if row["rmse"].high < bound]
    bound = baseline["accuracy"].value
    return [name for name, row in judged.items() if row["accuracy"].low > bound]


def _warn_of_guesses(folder: str | Path, verdict: Verdict) -> None:
    ((label, baseline),) = verdict.baseline.items()
    metric = "rmse" if "rmse" in baseline else "accuracy"
    for name, row in verdict.metrics.items():
        if name not in verdict.beaten_by:
            note(
                f"{folder}: {name} ({metric} {row[metric].value:.4g}) is no better, beyond chance, "
                "than always answering with "
                f"the {label} ({baseline[metric].value:.4g}): train longer, or look at the data"
            )


def _seconds(run: RunFolder) -> float | None:
    """How long training took, if a checkpoint still knows it: the model file does not say."""
    try:
        state, _ = run.load_state(
            lambda state: isinstance(state, dict) and type(state.get("seconds")) is float
        )
    except ValueError:
        return None
    return state["seconds"] if state else None


def load_evaluation(folder: str | Path) -> Evaluation:
    """What `evaluate` wrote, tensors included."""
    run = RunFolder(folder)
    run.check()
    again = f"do it again with: bisnn evaluate {folder}"
    if not run.evaluation_file.exists():
        raise ValueError(f"{folder}: has not been evaluated; do it with: bisnn evaluate {folder}")
    tree = load_tree(run.evaluation_file, "evaluation")
    if isinstance(tree, dict) and tree.get("format") != FORMAT:
        raise ValueError(f"{folder}: was evaluated by another version of bisnn; {again}")
    try:
        evaluation = Evaluation.model_validate(tree)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise Damaged(f"{run.evaluation_file}: is no evaluation (see {where}); {again}") from None
    if not run.model_file.exists() or evaluation.model != file_digest(run.model_file):
        raise ValueError(f"{folder}: its model has changed since it was evaluated; {again}")
    return evaluation


def _judged(model: Model, data: LoadedData, progress: Progress) -> dict[str, Any]:
    x, of = data.test[0], recordings_of_labels(model.config, data.test.x)
    y = labels_that_count(model.config, *data.test)
    some = _evenly(len(x), SHOWN)
    names = predictors(model)
    plane = unit_grid(PLANE) if model.classes and model.features == 2 else torch.zeros(0, 2)
    work = len(x) + len(some) + len(plane)
    bar = progress.add_task("test points", total=sum(map(model.size, names.values())) * work)
    results, judged, over_time, planes = {}, {}, {}, {}
    calibration: dict[str, PlainCalibration] = {}
    further: dict[str, FurtherMetrics] = {}
    watched = model.members if model.guarantee is None else model.guarantee.samples
    scores, kept_as = Scores(model, watched), None
    for name, members in names.items():
        each = model.size(members)
        advance = lambda points, each=each: progress.advance(bar, points * each)  # noqa: E731
        watch = members == watched and of is None
        look: Any = {"look": scores.look} if watch and model.classes else {}
        result = model.predict_labelled(x, members, advance, **look)
        results[name] = _parts(result)
        judged[name] = judge(result, y, model.config.seed, of)
        if isinstance(result, Classification):
            calibration[name] = _ece(result, y, model.config.seed)
            further[name] = _further(result, y)
        if watch and model.guarantee is not None:
            kept_as = kept(model, name, result, scores, y.numpy())
        over_time[name] = _curves(model, x[some], data.test.y[some], members, advance)
        if len(plane):
            probs = model.predict_points(plane, members, advance=advance).mean.cpu()
            planes[name] = probs.reshape(PLANE, PLANE, -1)
    few = _examples(result, y) if of is None else _evenly(len(x), EXAMPLES)
    decided = None if is_ragged(x) else scores.decisions(y.numpy(), few.numpy())
    count = (1 + len(model.others)) * weight_count(model.net)
    bits = 1 if model.net.alphabet is None else model.net.alphabet.planes
    return {
        "task": model.config.task,
        "rule": model.config.rule.name,
        "classes": list(model.classes),
        "points": len(y),
        "x": torch.zeros(len(y), 0) if isinstance(x, Clips) else x,
        "y": y,
        "predictors": results,
        "members": names,
        "metrics": judged,
        "baseline": _baseline(labels_that_count(model.config, *data.train), y, model, of),
        "calibration": calibration,
        "further": further,
        "over_time": over_time,  # of `SHOWN` test points, from the end of the burn-in
        "plane": _plane(planes, model, data.train),
        **_activity(model, x, some, few),
        **(dict(zip(("decisions", "looked"), decided, strict=True)) if decided else {}),
        "guarantee": kept_as,
        "posterior": _posterior(model),
        "memory": Memory(
            weights=count, bits=bits, bytes=-(-bits * count // 8), bytes_32_bit=4 * count
        ),
    }


def judge(
    result: Classification | Regression, y: Tensor, seed: int, recordings: Tensor | None = None
) -> Metrics:
    """Every metric of the task with its 95 % interval; for regression also the mean deviation.

    `recordings` says which recording each row is of, where rows are time steps.
    """
    mean = result.mean.cpu()
    names = (
        metrics.JUDGED if isinstance(result, Classification) else tuple(metrics.REGRESSION_METRICS)
    )
    judged = {
        name: metrics.interval(name, mean, y, seed=seed)
        if recordings is None
        else metrics.interval_of_steps(name, mean, y, recordings)
        for name in names
    }
    if isinstance(result, Regression):
        judged["deviation"] = metrics.mean_interval(result.std.cpu().double().mean(-1).numpy())
    return judged


def _ece(result: Classification, y: Tensor, seed: int) -> PlainCalibration:
    """The plain ECE of a predictor, and what it would be if its confidences were calibrated."""
    found = metrics.calibration(result.mean.cpu(), y, seed=seed)
    return PlainCalibration(
        ece=found.ece, calibrated_mean=found.calibrated_mean, calibrated_high=found.calibrated_high
    )


def _further(result: Classification, y: Tensor) -> FurtherMetrics:
    probs, labels = result.mean.cpu(), y.cpu()
    confidence, best = probs.double().max(-1)
    parts = metrics.brier_decomposition(probs, labels)
    return FurtherMetrics(
        adaptive_ece=metrics.adaptive_ece(probs, labels),
        debiased_ece=metrics.debiased_ece(probs, labels),
        aurc=metrics.aurc(confidence, best == labels),
        reliability=parts.reliability,
        resolution=parts.resolution,
        uncertainty=parts.uncertainty,
    )


def _baseline(train: Tensor, y: Tensor, model: Model, of: Tensor | None) -> dict[str, Metrics]:
    """The metrics on y of a guess blind to x: the training points' class shares or mean target."""
    classes, seed = len(model.classes), model.config.seed
    if classes:
        mean = (torch.bincount(train, minlength=classes) / len(train)).expand(len(y), -1)
        return {
            "majority class": judge(
                Classification(mean, mean[None], *torch.zeros(3, len(y))), y, seed, of
            )
        }
    mean = train.double().mean(0).to(y.dtype).expand(len(y), -1)
    judged = judge(Regression(mean, mean[None], torch.zeros_like(mean)), y, seed, of)
    return {"training mean": {name: value for name, value in judged.items() if name != "deviation"}}


def unit_grid(side: int) -> Tensor:
    """side x side points over the unit square, row by row, (side^2, 2)."""
    axis = torch.linspace(0, 1, side)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1)


def _plane(probs: dict[str, Tensor], model: Model, train: Split) -> Plane | None:
    """Probabilities over the plane of the two features, per predictor, and some training points."""
    if not probs:
        return None
    some = _evenly(len(train.x), SHOWN)
    x = train.x[some]
    assert isinstance(x, Tensor)
    return Plane(probs=probs, low=model.low, high=model.high, x=x, y=train.y[some])


def _examples(result: Classification | Regression, y: Tensor) -> Tensor:
    """Indices of a few test points: first the worst, surest of a wrong answer, then good ones."""
    mean = result.mean.cpu()
    if isinstance(result, Classification):
        confidence, top = mean.max(-1)
        badness = torch.where(top == y, 0, confidence)
        fine = badness == 0
    else:
        badness = (mean - y).abs().sum(1)
        fine = badness <= badness.median()
    worst = badness.argsort(descending=True, stable=True)[:WRONG]
    worst = worst[badness[worst] > 0]
    fine[worst] = False
    good = fine.nonzero()[:, 0]
    return torch.cat([worst, good[_evenly(len(good), EXAMPLES - len(worst))]])


def _parts(result: Classification | Regression) -> Predictions:
    names = (
        ("mean", "entropy", "mutual_information")
        if isinstance(result, Classification)
        else ("mean", "std")
    )
    return Predictions(**{name: getattr(result, name).float().cpu() for name in names})


def _curves(
    model: Model,
    x: Tensor | Clips,
    y: Tensor,
    members: int | None,
    advance: Callable[[int], Any],
) -> Curves:
    """Means over the points, (T',) each, of the prediction up to each time step, or of that for
    each time step over the recordings that have a label there."""
    if not model.config.data.each_step():
        return _over_time(model.predict_points(x, members, "running", advance), y)
    assert isinstance(x, Clips)
    result = model.predict_points(x, members, "step", advance)
    counts = steps_that_count(model.config, x).T  # (T', B)
    columns = [
        _over_time(type(result).of(result.members[:, t, row][:, None]), y[row, t - len(counts)])
        for t, row in enumerate(counts)
        if row.any()
    ]
    stacked = {name: torch.cat([getattr(c, name) for c in columns]) for name in Curves.model_fields}
    return Curves(**stacked)


def _over_time(result: Classification | Regression, y: Tensor) -> Curves:
    """Means over the points, (T',) each, of the prediction up to each time step."""
    y = y.to(result.mean.device)
    if isinstance(result, Classification):
        names = ("entropy", "expected_entropy", "mutual_information")
        curves = {name: getattr(result, name).mean(1) for name in names}
        return Curves(**curves, accuracy=(result.mean.argmax(-1) == y).float().mean(1))
    rmse = (result.mean - y).square().mean((1, 2)).sqrt()
    return Curves(std=result.std.mean((1, 2)), rmse=rmse)


def _evenly(n: int, most: int) -> Tensor:
    """Up to `most` of n indices, evenly spread: test points may be sorted."""
    return torch.linspace(0, n - 1, min(most, n)).round().long()


def _test_spikes(model: Model, x: Tensor | Clips, points: Tensor) -> Tensor:
    """The spikes that some of the test points x are judged on, (T, n, ...)."""
    return spikes(model.config, x[points], next(model.net.parameters()).device)


def energy(model: Model, x: Tensor | Clips, costs: Costs | None = None) -> Ledger:
    """The energy ledger of every predictor, with the ensemble's members, on a few of the points."""
    some = _evenly(len(x), COUNTED)
    s, names = _test_spikes(model, x, some), predictors(model)
    drawn = {name: model.draw(members) for name, members in names.items()}
    return ledger(model.net, s, drawn, costs, model.config.seed, _early(model, x[some], names))


def _early(model: Model, x: Tensor | Clips, names: dict[str, int | None]) -> dict[str, Tensor]:
    """For how many time steps each member of the calibrated predictor sees each point, (K, B)."""
    found = None if model.guarantee is None else answers(model, x)
    if not isinstance(found, PredictionSets) or model.guarantee is None:
        return {}
    samples = model.guarantee.samples
    until = torch.from_numpy(found.seen_by(model.size(samples)))
    return {name: until for name, members in names.items() if members == samples}


@torch.no_grad()
def _activity(model: Model, x: Tensor | Clips, some: Tensor, few: Tensor) -> dict[str, Any]:
    """Firing rates of every neuron over some points, and spikes of a few, with MAP weights."""
    net = model.net
    realised = [p if net.alphabet is None else realisation.map_weight(p) for p in net.parameters()]

    def run(points: Tensor) -> list[Tensor]:
        s = _test_spikes(model, x, points)
        return [s, *net(s, weights=realised).spikes]

    # In parts, as the spikes of all are too many
    parts = [
        [s.sum((0, 1)).flatten() for s in run(points)[1:]] for points in some.split(model.batch)
    ]
    rates = [sum(layer) / (model.config.steps * len(some)) for layer in zip(*parts, strict=True)]
    inputs, *layers = run(few)
    shape, data = tuple(inputs.shape[2:]), model.config.data
    # ON and OFF on a sensor of pixels
    images = len(shape) == 3 and shape[0] == 2 and min(shape) > 1
    step_us = data.step_us()
    seen = _slices(inputs, step_us) if step_us and images else _rows(inputs)
    left = [
        _maps(s, rate) if s.ndim > 3 else _rows(s) for s, rate in zip(layers, rates, strict=True)
    ]
    # (n,); (N,) each
    return {"raster": Raster(points=few, input=seen, layers=left), "rates": rates}


def _rows(s: Tensor) -> Tensor:
    """Every spike, of neurons in a row, (T, n, N)."""
    return s.flatten(2).to(torch.uint8)


def _slices(s: Tensor, bin_us: int) -> Slices:
    """Recordings s (T, n, 2, H, W): time steps with an event, by slice, (n, slices, 2, H, W)."""
    slices = min(SLICES, len(s))
    edges = [k * len(s) // slices for k in range(slices + 1)]
    counts = torch.stack([_counted(s[start:end]) for start, end in pairwise(edges)], 1)
    return Slices(counts=counts, edges_us=[bin_us * edge for edge in edges])


def _maps(s: Tensor, rates: Tensor) -> FeatureMaps:
    """Spikes s (T, n, C, H, W) of the k busiest channels, counted over time, (n, k, H, W)."""
    channels = (
        rates.unflatten(0, s.shape[2:]).mean((1, 2)).argsort(descending=True, stable=True)[:MAPS]
    )
    return FeatureMaps(counts=_counted(s[:, :, channels]), channels=channels, of=s.shape[2])


def _counted(s: Tensor) -> Tensor:
    """The sum of spikes over time, in the smallest type that holds it."""
    return s.sum(0).to(
        next(d for d in (torch.uint8, torch.int16, torch.int32) if len(s) <= torch.iinfo(d).max)
    )


def _posterior(model: Model) -> Histogram | None:
    """Histogram, by layer, of the probability that a weight is the highest level.

    For binary weights this is p = sigma(2 w^r). None where the weights have no posterior.
    """
    if not model.config.rule.posterior():
        return None
    counts = [
        torch.histc(weights.latents_of(p).limits(p.detach().float())[0], BINS, 0, 1)
        for p in model.net.parameters()
    ]
    edges = torch.linspace(0, 1, BINS + 1)
    return Histogram(counts=torch.stack(counts).to(torch.int64), edges=edges)
