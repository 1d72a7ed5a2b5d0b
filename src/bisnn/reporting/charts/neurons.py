"""How often the neurons fire, and how settled the weights are."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator

from bisnn.alphabet import BINARY, alphabet_of
from bisnn.reporting.charts.canvas import BACK, SERIES, Part, Run, chart, plain_numbers, plot
from bisnn.reporting.charts.learning import rates_over_epochs


def parts_of(run: Run) -> list[Part]:
    return [_rates(run), rates_over_epochs(run), _posterior(run)]


def _rates(run: Run) -> Part:
    rates = [layer.double().numpy() for layer in run.judged.rates]
    figure, axes = plot(*[80] * len(rates))
    edges = np.linspace(0, max(1e-3, *(layer.max() for layer in rates)), 41).tolist()
    for i, (ax, layer) in enumerate(zip(axes, rates, strict=True)):
        ax.hist(layer, edges, color=SERIES[i % len(SERIES)], ec=BACK, lw=0.6)
        ax.set(title=f"layer {i + 1}: neurons, mean rate {layer.mean():.3f}", xlim=(0, edges[-1]))
        ax.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes[-1].set_xlabel("spikes per time step")
    silent, count = sum(int((layer == 0).sum()) for layer in rates), sum(map(len, rates))
    caption = (
        f"Neurons by how often they fire; {silent:,} of {count:,} never do, and carry nothing."
    )
    return chart("Firing rates of the neurons", caption, figure)


def _posterior(run: Run) -> Part:
    posterior = run.judged.posterior
    if posterior is None:
        rule = run.config.rule.title()
        return (
            f"The rule of this run ({rule}) learns one value for each weight: "
            "it has no posterior to draw."
        )
    counts, edges = posterior.counts.double().numpy(), posterior.edges.double().numpy()
    figure, axes = plot(*[80] * len(counts))
    shares = counts / counts.sum(1, keepdims=True)
    for i, (ax, share) in enumerate(zip(axes, shares, strict=True)):
        ax.stairs(np.where(share > 0, share, np.nan), edges, color=SERIES[i % len(SERIES)], lw=1.6)
        ax.set(
            title=f"layer {i + 1}: share of {counts[i].sum():,.0f} weights, log scale",
            xlim=(0, 1),
            yscale="log",
        )
        ax.set_ylim(min(shares[shares > 0].min() / 2, 0.01), 1)
        ax.yaxis.set_major_locator(LogLocator(numticks=4))
        plain_numbers(ax)
    alphabet = alphabet_of(run.config.network.weights) or BINARY
    axes[-1].set_xlabel(f"p, probability that the weight is {alphabet.levels[-1]:+d}")
    decided = counts[:, (edges[:-1] < 0.1 - 1e-6) | (edges[1:] > 0.9 + 1e-6)].sum() / counts.sum()
    settled = f"{100 * decided:.0f} % are below 0.1 or above 0.9"
    return chart(
        "Probability of each weight",
        f"At 0 or 1 a weight is settled, at 0.5 it is a coin toss; {settled}.",
        figure,
    )
