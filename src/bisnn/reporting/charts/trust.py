"""What a classifier's answers can be trusted with: sets with a guarantee, answers that are not
given, other data, a worse camera.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bisnn import metrics
from bisnn.reporting.charts.canvas import (
    BACK,
    BLUE,
    BOTTOM,
    LEFT,
    RIGHT,
    SERIES,
    SIDE,
    SOFT,
    TOP,
    WIDTH,
    Chart,
    Part,
    Run,
    Table,
    chart,
    dashed,
    plot,
)
from bisnn.runs.results import Decisions, Kept, Looked
from bisnn.runs.robustness import Robustness

COLUMNS = 3  # of small multiples
ROW = 9  # height of a class in a picture of sets, in points
SHOWN = 2  # points whose sets are drawn, of the worst, and of the good ones
MANY = 20  # classes above which sets are not drawn


def parts_of(run: Run) -> list[Part]:
    judged = run.judged
    parts: list[Part] = [_kept(judged.guarantee)] if judged.guarantee is not None else []
    if not judged.classes:
        return parts or ["No prediction intervals: this run is not calibrated."]
    if judged.decisions is None or judged.looked is None:
        parts.append("No prediction sets: there are too few test points to calibrate on.")
    else:
        parts += [
            _shrinking(run, judged.decisions, judged.looked),
            _coverage(judged.decisions, judged.looked),
            _times(run, judged.decisions, judged.looked),
        ]
    parts.append(_risk(run))
    parts += [*_other_data(run), *_corruptions(run)]
    return parts


def _kept(found: Kept) -> Part:
    """How the guarantee of a calibrated run holds."""
    what = "Prediction sets" if found.correction else "Prediction intervals"
    rows = tuple(
        (name.replace("_", " "), f"{value.value:.4g}", f"{value.low:.4g} to {value.high:.4g}")
        for name, value in found.metrics.items()
    )
    by = f", {found.correction} correction" if found.correction else ""
    caption = (
        f"{what} of {found.predictor}, to hold the truth in {100 * found.coverage:.10g} % of all "
        f"cases: calibrated on {found.recordings:,} points{by}, judged on the test points."
    )
    if found.doubt():
        caption += f" {found.doubt()[0].upper()}{found.doubt()[1:]}."
    return Table(f"{what}, by its own calibration", caption, ("", "found", "95 % interval"), rows)


def _shrinking(run: Run, found: Decisions, looked: Looked) -> Part:
    """The sets of some points of the raster, one below the other, look by look."""
    classes, every = run.judged.classes, run.judged.raster.points.tolist()
    if len(classes) > MANY:
        return f"No pictures of sets: {len(classes)} classes are more than can be told apart."
    shown = sorted({*range(len(every))[:SHOWN], *range(len(every))[-SHOWN:]})
    figure, axes = plot(*(ROW * len(classes) for _ in shown))
    times, members = looked.path.T.tolist()
    said = []
    for ax, i in zip(axes, shown, strict=True):
        sets, truth = looked.sets[:, i].numpy(), int(run.judged.y[every[i]])  # (P, C)
        image = np.zeros((*sets.T.shape, 4), np.uint8)
        image[..., :3] = BLUE
        image[..., 3] = np.where(sets.T, 190, 0)
        ax.imshow(image, aspect="auto", interpolation="none", origin="lower")
        ax.axhline(truth, color=SERIES[1], lw=1)
        ax.set(title=f"test {run.things[:-1]} {every[i] + 1:,}", yticks=[])
        ax.grid(False)
        sizes = sets.sum(1)
        said.append(f"Number {every[i] + 1}: {sizes[0]} classes at first, {sizes[-1]} at the end.")
    some = range(len(times))[:: -(-len(times) // 6)]
    grows = len(set(members)) > 1
    label = "time step, members" if grows else "time step"
    axes[-1].set(xlabel=f"{label} of the look", xticks=some)
    axes[-1].set_xticklabels([f"{times[p]}" + f", {members[p]}" * grows for p in some])
    enough = "one class" if found.most == 1 else f"at most {found.most} classes"
    caption = (
        "A column for each look, a row for each class, filled where it is in the set; the line is "
        f"the true class. A set of {enough} is an answer, and the rest need not be seen."
    )
    legend = ["class in the set", "true class"]
    return chart("Sets as they shrink", caption, figure, legend, alt=" ".join(said))


def _coverage(found: Decisions, looked: Looked) -> Chart:
    figure, (ax,) = plot(SIDE)
    targets, coverage = looked.targets.numpy(), looked.coverage.numpy()
    low = min(0.5, *coverage.tolist()) if len(coverage) else 0.5
    dashed(ax, [low, 1], [low, 1])
    ax.plot(targets, coverage, "o-", color=SERIES[0], clip_on=False)
    own = found.covered / found.judged
    ax.plot([found.coverage], [own], "D", color=SERIES[1], ms=6, clip_on=False)
    ax.set(title="found", xlabel="asked for", xlim=(low, 1), ylim=(low, 1))
    by = "its own calibration" if found.own else "a half of the test points"
    caption = (
        "How often the answered set has the true class, against what was asked for: on average it "
        "must not lie below the dashed line. Dots: means over splits of the test points in "
        f"halves. Diamond: {found.covered:,} of {found.judged:,}, by {by}."
    )
    return chart("Coverage", caption, figure, ["splits of the test points", "this calibration"])


def _times(run: Run, found: Decisions, looked: Looked) -> Chart:
    figure, (ax,) = plot()
    times = looked.path[:, 0].unique().tolist()  # several looks may be at one time step
    counts = [int(((looked.stops == t) & looked.decided).sum()) for t in times]
    width = 0.8 * min(np.diff([0, *times]))
    ax.bar(times, counts, width, color=SERIES[0], ec=BACK, lw=0.6)
    ax.set(title="test points", xlabel="time step of the answer", xlim=(0, times[-1] + width))
    left = found.judged - found.decided
    if left:
        ax.bar([times[-1]], [left], width, bottom=[counts[-1]], color=SERIES[1], ec=BACK, lw=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    sentence = found.sentence(run.things)
    caption = f"{sentence[0].upper()}{sentence[1:]}."
    return chart("Time to decision", caption, figure, ["decided", "not decided"][: 1 + bool(left)])


def _risk(run: Run) -> Chart:
    """The share of errors among the surest answers, for each predictor."""
    figure, (ax,) = plot()
    said = []
    for (name, result), colour in zip(run.judged.predictors.items(), SERIES, strict=False):
        confidence, top = result.mean.max(-1)
        right = top == run.judged.y
        curve = metrics.risk_coverage(confidence.double(), right)
        ax.plot(curve.coverage.numpy(), curve.risk.numpy(), color=colour)
        area = metrics.aurc(confidence.double(), right)
        said.append(f"{name}: {100 * float(curve.risk[-1]):.1f} % wrong in all, area {area:.4f}")
    ax.set(title="share wrong", xlabel="share of points that are answered", xlim=(0, 1))
    ax.set_ylim(bottom=0)
    caption = (
        "Answering only the surest: the curve should stay low for long and rise at the end. "
        f"{'; '.join(said)}."
    )
    legend = list(run.judged.predictors)
    return chart("Risk and coverage", caption, figure, legend if len(legend) > 1 else ())


def _other_data(run: Run) -> list[Part]:
    """A table of how well other data are told apart, and their entropies."""
    found = run.judged.ood
    if found is None:
        return []
    rows = tuple(
        (
            f"{other.name}{' (control)' * other.control}",
            predictor,
            score,
            *(f"{value:.3f}" for value in (row.auroc, row.aupr, row.fpr95)),
        )
        for other in found.sets
        for predictor, scores in other.scores.items()
        for score, row in scores.items()
    )
    caption = (
        "How well each score tells other recordings from the test recordings: AUROC 0.5 is chance."
    )
    if any(other.control for other in found.sets):
        caption += " The control has the run's own classes: how it was recorded tells it apart."
    head = ("recordings", "predictor", "score", "AUROC", "AUPR", "FPR95")
    name = list(run.judged.predictors)[-1]
    return [Table("Other data", caption, head, rows), _entropies(run, name)]


def _entropies(run: Run, name: str) -> Chart:
    own = run.judged.predictors[name].entropy
    sets = {"test recordings": own}
    sets |= {other: of[name] for other, of in run.judged.other_entropy.items()}
    most = max(float(np.log(len(run.judged.classes))), *(float(s.max()) for s in sets.values()))
    edges = np.linspace(0, most, 25)
    figure, (ax,) = plot()
    for (_, values), colour in zip(sets.items(), SERIES, strict=False):
        shares = np.histogram(values.numpy(), edges)[0] / len(values)
        ax.stairs(shares, edges, color=colour, lw=1.6)
    ax.set(title="share of the recordings", xlabel="entropy in nats", xlim=(0, most))
    ax.set_ylim(bottom=0)
    caption = "What is known lies on the left; what the model has never seen should not."
    return chart(f"Entropy of other data, {name}", caption, figure, list(sets)[: len(SERIES)])


QUALITIES = {
    "accuracy": ("Accuracy", "A worse camera"),
    "nll": ("NLL", "A worse camera: NLL"),
    "ece": ("Plain ECE", "A worse camera: calibration"),
}


def _corruptions(run: Run) -> list[Part]:
    """Accuracy, NLL and ECE under each kind of corruption by strength, as small multiples."""
    found = run.corruptions
    return [] if found is None else [_by_strength(found, quality) for quality in QUALITIES]


def _by_strength(found: Robustness, quality: str) -> Part:
    """One number of every predictor from clean recordings to the strongest corruption."""
    kinds = list(dict.fromkeys(row.kind for row in found.corrupted))
    figure, axes = _small_multiples(len(kinds))
    most = 1.0
    if quality != "accuracy":
        every = [found.clean, *(row.predictors for row in found.corrupted)]
        most = 1.05 * max(getattr(q, quality) for one in every for q in one.values()) or 1.0
    for ax, kind in zip(axes, kinds, strict=True):
        rows = [row for row in found.corrupted if row.kind == kind]
        for name, colour in zip(found.clean, SERIES, strict=False):
            each = [found.clean[name], *(row.predictors[name] for row in rows)]
            values = [getattr(q, quality) for q in each]
            ax.plot(range(len(values)), values, color=colour, lw=1.5)
        ax.set(ylim=(0, most), xlim=(0, len(rows)), xticks=[0, len(rows)])
        if quality == "accuracy":
            ax.set_yticks([0, 0.5, 1])
        ax.set_title(kind.replace("_", " "), fontsize=9.5, pad=3)
    means = "; ".join(f"{name} {getattr(q, quality):.3g}" for name, q in found.mean.items())
    label, title = QUALITIES[quality]
    caption = (
        f"{label} on the test recordings as a worse camera would have seen them, from clean to "
        f"strength 5. Mean over all: {means}."
    )
    names = list(found.clean)
    return chart(title, caption, figure, names if len(names) > 1 else ())


def _small_multiples(count: int) -> tuple[Figure, list[Axes]]:
    rows, side, gap = -(-count // COLUMNS), 62, 30
    height = TOP + rows * side + (rows - 1) * gap + BOTTOM
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    figure.subplots_adjust(
        LEFT / WIDTH, BOTTOM / height, 1 - RIGHT / WIDTH, 1 - TOP / height, 0.2, gap / side
    )
    grid = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
    axes = list(grid.flat)
    for ax in axes[count:]:
        ax.remove()
    axes[(rows - 1) * COLUMNS].set_xlabel("strength", color=SOFT)
    return figure, axes[:count]
