"""What a classifier predicts: the plane of two features, calibration, confusions, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from bisnn import metrics
from bisnn.reporting.charts.canvas import (
    BACK,
    CLASSES,
    SERIES,
    SIDE,
    SOFT,
    Chart,
    Part,
    Run,
    Table,
    chart,
    dashed,
    plot,
)

LISTED = 8  # mistakes, or pairs of classes, in a list
MATRIX = 12  # classes up to which a confusion matrix is shown whole
PANELS = (SIDE, 46)  # heights of a square plot and of the bars below it


def parts_of(run: Run) -> list[Part]:
    parts: list[Part] = []
    probs = {name: result.mean for name, result in run.judged.predictors.items()}
    for name, mean in probs.items():
        parts += [*_plane(run, name), _reliability(run, name, mean), _confidence(run, name, mean)]
    return [*parts, *(_confusion(run, name, mean) for name, mean in probs.items()), _mistakes(run)]


def _plane(run: Run, name: str) -> list[Part]:
    """The most probable class over the plane, the stronger the surer, as in Figure 2."""
    plane, classes = run.judged.plane, run.judged.classes
    if plane is None:
        return []
    if len(classes) > len(CLASSES):
        return [f"No plane for {name}: {len(classes)} classes are more than there are colours."]
    confidence, top = (t.numpy() for t in plane.probs[name].max(-1))  # (rows, columns)
    low, high = plane.low.numpy(), plane.high.numpy()
    image = np.empty((*top.shape, 4), np.uint8)
    image[..., :3] = np.array(CLASSES)[top]
    chance = 1 / len(classes)
    image[..., 3] = np.round(255 * 0.85 * ((confidence - chance) / (1 - chance)).clip(0, 1))
    figure, (ax,) = plot(SIDE)
    extent = (low[0], high[0], low[1], high[1])
    ax.imshow(image, aspect="auto", interpolation="none", origin="lower", extent=extent)
    raw = lambda x: low + x.double().numpy() * (high - low)  # noqa: E731
    points, labels = raw(plane.x), plane.y.numpy()
    for k, colour in zip(range(len(classes)), SERIES, strict=False):
        ax.plot(*points[labels == k].T, "o", color=colour, ms=4.5, mec=BACK, mew=0.8)
    mean, y = run.judged.predictors[name].mean, run.judged.y
    wrong = raw(run.judged.x[mean.argmax(-1) != y])
    ax.plot(*wrong.T, "x", color=SOFT, ms=5, mew=1.4)
    ax.set(title="second feature", xlabel="first feature", xlim=extent[:2], ylim=extent[2:])
    ax.grid(False)
    crosses = "no test point is wrong"
    if len(wrong):
        crosses = f"crosses: the {len(wrong):,} test points that are wrong"
    caption = (
        "Colour is the most probable class, its strength the confidence: "
        "far from the training points, which are the "
    )
    caption += f"dots, it should fade; {crosses}."
    return [
        chart(f"The plane, {name}", caption, figure, [f"class {c}" for c in classes], smooth=True)
    ]


def _reliability(run: Run, name: str, probs: Tensor) -> Chart:
    from scipy.stats import binomtest  # takes a second to import

    bins = metrics.reliability(probs, run.judged.y)
    size, edges = bins.size.numpy(), bins.edges.numpy()
    used = size > 0
    figure, (ax, counts) = plot(*PANELS)
    centre, share = bins.confidence.numpy()[used], bins.accuracy.numpy()[used]
    right = np.round(share * size[used]).astype(int).tolist()
    spans = [
        binomtest(k, n).proportion_ci(method="wilson")
        for k, n in zip(right, size[used].tolist(), strict=True)
    ]
    dashed(ax, [0, 1], [0, 1])
    ax.vlines(
        centre, [s.low for s in spans], [s.high for s in spans], color=SERIES[0], lw=1.4, alpha=0.55
    )
    ax.plot(centre, share, "o", color=SERIES[0], ms=5.5, clip_on=False)
    ax.set(title="share right", xlim=(0, 1), ylim=(0, 1))
    colours: dict[str, Any] = {"color": SERIES[0], "alpha": 0.45, "ec": BACK, "lw": 1}
    counts.bar(edges[:-1][used], size[used], np.diff(edges)[used], align="edge", **colours)
    # Every bar says its number
    counts.set(ylim=(0, 1.4 * size.max()), yticks=[], xlabel="confidence")
    counts.set_title("points in the bin", pad=3)
    for left, right_edge, n in zip(
        edges[:-1][used], edges[1:][used], size[used].tolist(), strict=True
    ):
        counts.text((left + right_edge) / 2, n, _short(n), ha="center", va="bottom", fontsize=8.5)
    caption = (
        "Dots on the dashed line: the model is right as often as it says; "
        "below it is too sure, above not sure enough."
    )
    return chart(f"Reliability, {name}", f"{caption} Bars are 95 % intervals.", figure)


def _confidence(run: Run, name: str, probs: Tensor) -> Chart:
    top, predicted = probs.max(-1)
    right = (predicted == run.judged.y).numpy()
    figure, axes = plot(SIDE / 2 + 10, SIDE / 2 + 10)
    start = 1 / probs.shape[1]  # the least that the most probable class can have
    edges = np.linspace(start, 1, 31).tolist()
    for ax, of, colour, title in zip(
        axes, (right, ~right), SERIES, ("right", "wrong"), strict=False
    ):
        ax.hist(top.numpy()[of].clip(start, 1), edges, color=colour, ec=BACK, lw=0.6)
        ax.set(title=f"{title}: {of.sum():,} points", xlim=(start, 1))
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes[-1].set_xlabel("confidence")
    caption = (
        "Mistakes should lie at low confidence, on the left; "
        "those on the right were made with confidence."
    )
    if right.all():
        caption = "Every test point is right, so there is no mistake to be too sure of."
    return chart(f"Confidence, {name}", caption, figure)


def _confusion(run: Run, name: str, probs: Tensor) -> Table:
    """Which classes are taken for which: the matrix, or of many classes the worst pairs."""
    classes, y = run.judged.classes, run.judged.y.numpy()
    counts = np.zeros((len(classes), len(classes)), int)  # (true, predicted)
    np.add.at(counts, (y, probs.argmax(-1).numpy()), 1)
    title = f"Confusion, {name}"
    if len(classes) <= MATRIX:
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        shares[~np.eye(len(classes), dtype=bool)] *= -1
        rows = tuple((c, *map(str, row)) for c, row in zip(classes, counts.tolist(), strict=True))
        caption = (
            "A row for each true class, a column for what it was taken for, in test points: "
            "right is on the diagonal."
        )
        return Table(title, caption, ("", *classes), rows, tuple(map(tuple, shares.tolist())))
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = wrong.ravel().argsort(kind="stable")[::-1][:LISTED]
    pairs = [divmod(int(k), len(classes)) for k in order if wrong.ravel()[k]]
    caption = (
        f"The classes that are confused most, of {len(classes)}; "
        f"{wrong.sum():,} of {len(y):,} test points are wrong."
    )
    listed = tuple(
        (classes[a], classes[b], f"{wrong[a, b]:,} of {counts[a].sum():,}") for a, b in pairs
    )
    return Table(title, caption, ("class", "taken for", "test points"), listed)


def _mistakes(run: Run) -> Part:
    """The surest mistakes of the usual predictor, the last one."""
    name, result = list(run.judged.predictors.items())[-1]
    confidence, top = result.mean.max(-1)
    y, classes = run.judged.y, run.judged.classes
    wrong = (top != y).nonzero()[:, 0]
    if not len(wrong):
        return f"No mistakes to list: {name} is right on every test point."
    order = wrong[confidence[wrong].argsort(descending=True, stable=True)][:LISTED].tolist()
    rows = tuple(
        (
            f"{i + 1:,}",
            classes[int(y[i])],
            classes[int(top[i])],
            f"{100 * float(confidence[i]):.1f} %",
        )
        for i in order
    )
    what = f"{len(rows)} of {len(wrong):,} mistakes" if len(rows) < len(wrong) else "All mistakes"
    return Table(
        f"Surest mistakes, {name}",
        f"{what}, the surest first.",
        ("point", "class", "taken for", "confidence"),
        rows,
    )


def _short(count: int) -> str:
    if count < 1000:
        return str(count)
    if count < 10_000:
        return f"{count / 1000:.1f}k"
    return f"{count / 1000:.0f}k"
