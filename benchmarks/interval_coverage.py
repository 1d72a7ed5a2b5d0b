"""How often the intervals of `bisnn.metrics` hold the truth, by simulation.

    python benchmarks/interval_coverage.py [--simulations 1000] [--jobs 2] [--out
    docs/results/coverage.json]

Recordings of ten classes are drawn from a population in which the truth is known: logits with one
    boosted class, labels from
their softmax, and a model that states the softmax of logits / temperature (below 1: overconfident).
Differences are simulated with three classes: runs of two methods on the same recordings, where each
seed shifts and blurs a method's logits. Accuracy needs no simulation: its coverage is a sum of
binomial probabilities.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from bisnn import intervals, metrics
from bisnn.files import write_atomic
from bisnn_experiments.measurement import note

SIZES = (100, 400, 2000)
SEEDS = (3, 5, 10)
CLASSES = 10
MODELS = {  # boost of the right class, and temperature of the logits that are stated
    "accuracy 0.81, calibrated": (6, 1.0),
    "accuracy 0.81, overconfident": (6, 0.6),
    "accuracy 0.93, calibrated": (10, 1.0),
    "accuracy 0.93, overconfident": (10, 0.6),
    "accuracy 0.97, calibrated": (16, 1.0),
    "accuracy 0.97, overconfident": (16, 0.6),
    "accuracy 0.97, underconfident": (16, 2.0),
}
SHARES = {"0.5 to 0.9": (0.5, 0.9), "0.9 to 0.98": (0.9, 0.98), "0.98 to 0.999": (0.98, 0.999)}
LARGE = 200_000  # recordings that the truth is taken from


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def recordings(
    rng: np.random.Generator, n: int, boost: float, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """The true distribution of the label and the one stated, (n, classes) each."""
    logits = rng.standard_normal((n, CLASSES))
    logits[:, 0] += boost * rng.gamma(3.0, 1 / 3.0, n)
    return softmax(logits), softmax(logits / temperature)


def labels(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    return (p.cumsum(-1) < rng.random((len(p), 1))).sum(-1).clip(max=CLASSES - 1)


def true_values(rng: np.random.Generator, boost: float, temperature: float) -> dict[str, float]:
    """Each metric's expectation, from the true distributions: no noise of labels."""
    p, q = recordings(rng, LARGE, boost, temperature)
    top = q.argmax(-1)[:, None]
    confidence, right = (np.take_along_axis(a, top, -1)[:, 0] for a in (q, p))
    which = np.minimum((confidence * metrics.BINS).astype(int), metrics.BINS - 1)
    gaps = np.bincount(which, confidence - right, metrics.BINS)
    return {
        "nll": float(-(p * np.log(q)).sum(-1).mean()),
        "brier": float(((q**2).sum(-1) - 2 * (p * q).sum(-1) + 1).mean()),
        metrics.CALIBRATION: float(np.abs(gaps).sum() / LARGE),
    }


def share_coverage(n: int, between: tuple[float, float], points: int = 1000) -> tuple[float, float]:
    """Lowest and highest coverage of the accuracy's interval over true accuracies, exactly."""
    ends = np.array([intervals.of_share(k, n) for k in range(n + 1)])
    p = 1 - np.geomspace(1 - between[0], 1 - between[1], points)[:, None]
    found = (stats.binom.pmf(np.arange(n + 1), n, p) * ((ends[:, 0] <= p) & (p <= ends[:, 1]))).sum(
        1
    )
    return float(found.min()), float(found.max())


def single_runs(n: int, model: str, simulations: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Coverage and mean width of the intervals on n test recordings of one trained model."""
    rng = np.random.default_rng([seed, n, *model.encode()])
    truth = true_values(rng, *MODELS[model])
    found: dict[str, list[tuple[bool, float]]] = {name: [] for name in truth}
    for i in range(simulations):
        p, q = recordings(rng, n, *MODELS[model])
        probs, y = torch.from_numpy(q), torch.from_numpy(labels(rng, p))
        for name in truth:
            value, low, high = metrics.interval(name, probs, y, seed=i)
            assert low <= value <= high
            found[name].append((low <= truth[name] <= high, high - low))
    means = {name: np.mean(values, 0) for name, values in found.items()}
    return {
        name: {"truth": truth[name], "coverage": float(c), "width": float(w)}
        for name, (c, w) in means.items()
    }


def errors_coverage(n: int, degrees: int, simulations: int, seed: int = 0) -> dict[str, float]:
    """Coverage of RMSE and MAE with errors of Student's t."""
    rng = np.random.default_rng([seed, n, degrees])
    truth = {"rmse": float(stats.t.std(degrees)), "mae": float(stats.t.expect(abs, (degrees,)))}
    hits = dict.fromkeys(truth, 0)
    for _ in range(simulations):
        errors = torch.from_numpy(rng.standard_t(degrees, (n, 1)))
        for name in truth:
            _, low, high = metrics.interval(name, errors, torch.zeros_like(errors))
            hits[name] += low <= truth[name] <= high
    return {name: hits[name] / simulations for name in truth}


class Method(NamedTuple):
    """Runs of a method on recordings of class 0: every seed shifts that class's logit, and blurs
    all in its own way.
    """

    boost: float
    temperature: float
    between: float  # deviation of the shift over the seeds
    blur: float = 0.5

    def runs(self, rng: np.random.Generator, logits: np.ndarray, shifts: np.ndarray) -> Tensor:
        """Stated probabilities (seeds, n, classes), one seed for each of the standard normal
        shifts.
        """
        z = logits + self.blur * rng.standard_normal((len(shifts), *logits.shape))
        z[..., 0] += self.between * shifts[:, None]
        return torch.from_numpy(softmax(z / self.temperature))


PAIRS = {
    "seeds alike": (Method(5, 1.0, 0.0), Method(4.5, 1.0, 0.0)),
    "seeds differ": (Method(5, 1.0, 0.5), Method(4.5, 1.0, 0.5)),
    "one overconfident": (Method(5, 0.5, 0.3), Method(5, 1.0, 0.3)),
}
COMPARED = ("accuracy", "nll", metrics.CALIBRATION)


def both(
    rng: np.random.Generator, pair: str, n: int, shifts: tuple[np.ndarray, np.ndarray]
) -> list[Tensor]:
    """The runs of both methods of a pair on the same n recordings."""
    logits, ease = rng.standard_normal((n, 3)), rng.gamma(3.0, 1 / 3.0, n)
    boosted = [logits + method.boost * ease[:, None] * [1, 0, 0] for method in PAIRS[pair]]
    return [
        method.runs(rng, z, shift)
        for method, z, shift in zip(PAIRS[pair], boosted, shifts, strict=True)
    ]


def true_differences(rng: np.random.Generator, pair: str) -> dict[str, float]:
    """Means over evenly spread seeds, on recordings of their own."""
    found: dict[str, list[float]] = {name: [] for name in COMPARED}
    for shift in stats.norm.ppf((np.arange(50) + 0.5) / 50):
        runs = both(rng, pair, LARGE // 10, (np.array([shift]),) * 2)
        for name in COMPARED:
            found[name].append(
                metrics.paired(
                    name, list(runs[0]), list(runs[1]), torch.zeros(LARGE // 10, dtype=torch.int64)
                ).value
            )
    return {name: float(np.mean(values)) for name, values in found.items()}


def paired_runs(
    n: int, seeds: int, pair: str, simulations: int, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Coverage and mean width of the intervals of differences, over recordings and seeds."""
    rng = np.random.default_rng([seed, n, seeds, *pair.encode()])
    truth, y = true_differences(rng, pair), torch.zeros(n, dtype=torch.int64)
    found: dict[str, list[tuple[bool, float]]] = {name: [] for name in COMPARED}
    for _ in range(simulations):
        a, b = both(rng, pair, n, (rng.standard_normal(seeds), rng.standard_normal(seeds)))
        for name in COMPARED:
            _, low, high = metrics.paired(name, list(a), list(b), y)
            found[name].append((low <= truth[name] <= high, high - low))
    means = {name: np.mean(values, 0) for name, values in found.items()}
    return {
        name: {"truth": truth[name], "coverage": float(c), "width": float(w)}
        for name, (c, w) in means.items()
    }


def summary(results: dict[str, Any]) -> list[dict[str, Any]]:
    """What each interval is, and its lowest and highest coverage at each n: the table of
    docs/RESULTS.md.
    """

    def coverage(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
        return [(row["n"], row[name]["coverage"]) for row in rows]

    shares = [(row["n"], row[end]) for row in results["accuracy"] for end in ("lowest", "highest")]
    runs, pairs, calibration = results["one_run"], results["paired"], metrics.CALIBRATION
    normal = [row for row in results["errors"] if row["degrees"] >= 10]
    calibrated = [row for row in runs if row[calibration]["truth"] < 1e-9]
    others = [row for row in runs if row not in calibrated]
    hall = "Hall's (Student's t with the skewness taken out); at the upper end at least what the accuracy's interval allows"
    cells = [
        (
            "accuracy of a run (exact, not simulated)",
            "the hull of Wilson's and the mid-P interval",
            shares,
        ),
        ("NLL of a run", f"{hall} in mistakes", coverage(runs, "nll")),
        ("Brier score of a run", "the same", coverage(runs, "brier")),
        (
            "RMSE, errors of Student's t, 10 and 30 degrees of freedom",
            "Hall's, of the squares",
            [(r["n"], r["rmse"]) for r in normal],
        ),
        ("MAE, the same errors", "Hall's", [(row["n"], row["mae"]) for row in normal]),
        (
            "calibration error, true value 0",
            "inversion of a test",
            coverage(calibrated, calibration),
        ),
        ("calibration error, others", "the same", coverage(others, calibration)),
        (
            "difference in accuracy, 3 to 10 seeds",
            "seeds and recordings",
            coverage(pairs, "accuracy"),
        ),
        ("difference in NLL, 3 to 10 seeds", "the same", coverage(pairs, "nll")),
        (
            "difference in calibration error, 3 to 10 seeds",
            "the same, and what is left of the bias",
            coverage(pairs, calibration),
        ),
    ]
    rows = []
    for of, interval, values in cells:
        at = {n: [value for size, value in values if size == n] for n in SIZES}
        ranges = {
            f"n = {n}": {"lowest": min(found), "highest": max(found)} for n, found in at.items()
        }
        rows.append({"of": of, "interval": interval, **ranges})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="How often intervals hold the truth.")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=Path("docs/results/coverage.json"))
    arguments = parser.parse_args()
    count, began = arguments.simulations, time.monotonic()
    results: dict[str, Any] = {
        "simulations": count,
        "accuracy": [],
        "one_run": [],
        "errors": [],
        "paired": [],
    }
    for n in SIZES:
        for shares, between in SHARES.items():
            low, high = share_coverage(n, between)
            results["accuracy"].append(
                {"n": n, "true accuracy": shares, "lowest": low, "highest": high}
            )
        for degrees in (5, 10, 30):
            results["errors"].append(
                {"n": n, "degrees": degrees, **errors_coverage(n, degrees, count)}
            )
    with ProcessPoolExecutor(
        arguments.jobs,
        mp_context=get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    ) as pool:
        runs = [
            ({"n": n, "model": m}, pool.submit(single_runs, n, m, count))
            for n in SIZES
            for m in MODELS
        ]
        pairs = [
            (
                {"n": n, "seeds": seeds, "pair": pair},
                pool.submit(paired_runs, n, seeds, pair, count),
            )
            for n in SIZES
            for seeds in SEEDS
            for pair in PAIRS
        ]
        for kind, cells in (("one_run", runs), ("paired", pairs)):
            for about, future in cells:
                results[kind].append({**about, **future.result()})
                note(f"{about}: {time.monotonic() - began:.0f} s")
    results["summary"] = summary(results)
    write_atomic(arguments.out, (json.dumps(results, indent=1) + "\n").encode())
    for name, rows in results.items():
        if isinstance(rows, list) and name != "summary":
            print(
                f"\n{name}\n" + "\n".join(" ".join(_short(v) for v in row.values()) for row in rows)
            )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"| {value['truth']:.4f}: {value['coverage']:.3f}, width {value['width']:.4f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
