"""How often the intervals of `bisnn.metrics` hold the truth, by simulation.

    python -m bisnn_experiments.interval_coverage [--simulations 1000] [--jobs 2]
        [--only errors rare] [--out docs/results/coverage.json]

Recordings are drawn from the populations of `interval_populations`, in which the truth is known.
The accuracy of one run needs no simulation: its coverage is a sum of binomial probabilities.

An ideal interval is what "wide" is compared with: 3.92 standard deviations of the estimate over the
simulations, which nobody knows who has one sample.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from bisnn import intervals, metrics
from bisnn_experiments import results as files
from bisnn_experiments.interval_populations import (
    ERRORS,
    LARGE,
    MODELS,
    PAIRS,
    RARE,
    Answers,
    Chances,
    Logits,
    binned_error,
    both,
    is_fresh,
    labels,
)
from bisnn_experiments.measurement import note

SIZES = (100, 400, 2000)
SEEDS = (1, 3, 10)
SHARES = {"0.5 to 0.9": (0.5, 0.9), "0.9 to 0.98": (0.9, 0.98), "0.98 to 0.999": (0.98, 0.999)}
SIMULATED = ("errors", "rare", "one_run", "paired")
CLAIMED = 0.93  # of intervals of 95 %, at every n
CAUTIOUS = 0.97  # coverage above which the width is shown beside that of an ideal interval
COMPARED = ("accuracy", "nll", metrics.CALIBRATION)
LABELS = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "brier": "Brier score",
    "rmse": "RMSE",
    "mae": "MAE",
}
LABELS[metrics.CALIBRATION] = "calibration error"


# One run


def true_values(rng: np.random.Generator, model: Logits | Chances) -> dict[str, float]:
    """Each metric's expectation, from the true distributions: no noise of labels."""
    p, q = model.recordings(rng, LARGE)
    top = q.argmax(-1)[:, None]
    confidence, right = (np.take_along_axis(a, top, -1)[:, 0] for a in (q, p))
    return {
        "nll": float(-(p * np.log(q)).sum(-1).mean()),
        "brier": float(((q**2).sum(-1) - 2 * (p * q).sum(-1) + 1).mean()),
        metrics.CALIBRATION: binned_error(confidence, right),
    }


def share_coverage(n: int, between: tuple[float, float], points: int = 1000) -> tuple[float, float]:
    """Lowest and highest coverage of the accuracy's interval over true accuracies, exactly."""
    ends = np.array([intervals.of_share(k, n) for k in range(n + 1)])
    p = 1 - np.geomspace(1 - between[0], 1 - between[1], points)[:, None]
    found = (stats.binom.pmf(np.arange(n + 1), n, p) * ((ends[:, 0] <= p) & (p <= ends[:, 1]))).sum(
        1
    )
    return float(found.min()), float(found.max())


def judged(truth: float, found: list[metrics.Interval]) -> dict[str, float]:
    """Coverage of the truth, mean width, and how many times that of an ideal interval it is."""
    value, low, high = np.array(found).T
    assert ((low <= value) & (value <= high)).all()
    width, ideal = float((high - low).mean()), 2 * stats.norm.ppf(0.975) * value.std()
    return {
        "truth": truth,
        "coverage": float(((low <= truth) & (truth <= high)).mean()),
        "width": width,
        "of_ideal": float(width / ideal),
    }


def single_runs(n: int, model: str, simulations: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """The intervals on n test recordings of one trained model."""
    rng = np.random.default_rng([seed, n, *model.encode()])
    truth = true_values(rng, MODELS[model])
    found: dict[str, list[metrics.Interval]] = {name: [] for name in truth}
    for i in range(simulations):
        p, q = MODELS[model].recordings(rng, n)
        probs, y = torch.from_numpy(q), torch.from_numpy(labels(rng, p))
        for name in truth:
            found[name].append(metrics.interval(name, probs, y, seed=i))
    return {name: judged(truth[name], found[name]) for name in truth}


def errors_coverage(
    n: int, kind: str, simulations: int, seed: int = 0
) -> dict[str, dict[str, float]]:
    """The intervals of RMSE and MAE on n errors of a kind."""
    rng, draw = np.random.default_rng([seed, n, *kind.encode()]), (ERRORS | RARE)[kind]
    many = draw(rng, (50 * LARGE, 1))
    truth = {"rmse": float(np.sqrt((many**2).mean())), "mae": float(np.abs(many).mean())}
    found: dict[str, list[metrics.Interval]] = {name: [] for name in truth}
    for _ in range(simulations):
        errors = torch.from_numpy(draw(rng, (n, 1)))
        for name in truth:
            found[name].append(metrics.interval(name, errors, torch.zeros_like(errors)))
    return {name: judged(truth[name], found[name]) for name in truth}


# Runs of two methods


@functools.cache
def true_differences(pair: str, one_run: bool) -> dict[str, float]:
    """Means over evenly spread seeds, on recordings of their own; of one run each: of these two
    runs, which are average ones.
    """
    rng, y = (
        np.random.default_rng([one_run, *pair.encode()]),
        torch.zeros(LARGE // 10, dtype=torch.int64),
    )
    found: dict[str, list[float]] = {name: [] for name in COMPARED}
    first, second = PAIRS[pair]
    for spread in stats.norm.ppf((np.arange(50) + 0.5) / 50):
        shift = 0.0 if one_run else spread
        a, b = both(rng, pair, len(y), (np.array([shift]),) * 2)
        for name in COMPARED:
            if (
                name == metrics.CALIBRATION
                and isinstance(first, Answers)
                and isinstance(second, Answers)
            ):
                found[name].append(first.calibration_error(shift) - second.calibration_error(shift))
            else:
                found[name].append(metrics.paired(name, a, b, y).value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def paired_runs(
    n: int, seeds: int, pair: str, simulations: int, seed: int = 0
) -> dict[str, dict[str, float]]:
    """The intervals of differences, over recordings and seeds; of one run each, over recordings."""
    rng = np.random.default_rng([seed, n, seeds, *pair.encode()])
    truth, y = true_differences(pair, seeds == 1), torch.zeros(n, dtype=torch.int64)
    found: dict[str, list[metrics.Interval]] = {name: [] for name in COMPARED}
    for _ in range(simulations):
        a, b = both(rng, pair, n, tuple(rng.standard_normal((2, seeds)) * (seeds > 1)))
        for name in COMPARED:
            found[name].append(metrics.paired(name, a, b, y))
    return {name: judged(truth[name], found[name]) for name in COMPARED}


# All of it


def rows_of(results: dict[str, Any]) -> Iterator[tuple[str, str, str, list[dict[str, Any]]]]:
    """What is estimated, how its interval is made, the metric, and the rows that simulate it."""
    runs, errors, calibration = results["one_run"], results["errors"], metrics.CALIBRATION
    hall = (
        "Hall's (Student's t with the skewness taken out), the most extreme recording counts twice"
    )
    mistakes = "at the upper end at least what the accuracy's interval allows in mistakes"
    yield "NLL of a run", f"{hall}; {mistakes}", "nll", runs
    yield "Brier score of a run", "the same", "brier", runs
    squares = "Hall's, of the squares; at the upper end the largest square counts three times"
    yield "RMSE", squares, "rmse", errors
    yield "MAE", "Hall's, the most extreme error counts twice", "mae", errors
    calibrated = [row for row in runs if row[calibration]["truth"] < 1e-9]
    others = [row for row in runs if row not in calibrated]
    yield "calibration error, true value 0", "inversion of a test", calibration, calibrated
    yield "calibration error, others", "the same", calibration, others
    differences = {
        "accuracy": "seeds and recordings, and one more recording for each method",
        "nll": "seeds and recordings, and further extreme ones",
        calibration: "the same, and what is left of each method's bias at one end",
    }
    several = [row for row in results["paired"] if row["seeds"] > 1]
    single = [row for row in results["paired"] if row["seeds"] == 1]
    for name, interval in differences.items():
        yield f"difference in {LABELS[name]}, 3 to 10 seeds", interval, name, several
    for name in differences:
        interval = "recordings, otherwise as above"
        yield f"difference in {LABELS[name]}, one run each", interval, name, single


def summary(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Each interval's lowest and highest coverage at each n: the table of docs/RESULTS.md."""
    shares = [(row["n"], row[end]) for row in results["accuracy"] for end in ("lowest", "highest")]
    rows = [
        {
            "of": "accuracy of a run (exact, not simulated)",
            "interval": "the hull of Wilson's and the mid-P interval",
            **{f"n = {n}": extent(value for size, value in shares if size == n) for n in SIZES},
            "cautious": "",
        }
    ]
    for of, interval, name, found in rows_of(results):
        for fresh in (False, True):
            some = [row for row in found if is_fresh(name, row["population"]) == fresh]
            wide = [row[name]["of_ideal"] for row in some if row[name]["coverage"] > CAUTIOUS]
            ends = [f"{end(wide):.1f}" for end in (min, max)] if wide else []
            rows.append(
                {
                    "of": of + ("; fresh" if fresh else ""),
                    "interval": interval,
                    **{
                        f"n = {n}": extent(row[name]["coverage"] for row in some if row["n"] == n)
                        for n in SIZES
                    },
                    "cautious": " to ".join(dict.fromkeys(ends)),
                }
            )
    return rows


def widths(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean widths that the documents name; those of the RMSE as multiples of an ideal one."""
    calibration = metrics.CALIBRATION
    calibrated = [row for row in results["one_run"] if row[calibration]["truth"] < 1e-9]
    several = [row for row in results["paired"] if row["seeds"] > 1]
    cells = (
        ("calibration error, true value 0", calibrated, calibration, "width"),
        ("difference in calibration error", several, calibration, "width"),
        ("RMSE, of an ideal one", results["errors"], "rmse", "of_ideal"),
    )
    return [
        {
            "of": of,
            **{
                f"n = {n}": extent(row[name][width] for row in rows if row["n"] == n) for n in SIZES
            },
        }
        for of, rows, name, width in cells
    ]


def misses(results: dict[str, Any]) -> list[dict[str, Any]]:
    """All that is claimed and covers less than 93 %, the lowest first."""
    found = [
        {
            "of": ("difference in " if kind == "paired" else "") + LABELS[name],
            "n": row["n"],
            "runs": row.get("seeds", 1),
            "population": row["population"]
            + ("; fresh" if is_fresh(name, row["population"]) else ""),
            "coverage": cell["coverage"],
            "of_ideal": cell["of_ideal"],
        }
        for kind in SIMULATED
        if kind != "rare"
        for row in results[kind]
        for name, cell in row.items()
        if isinstance(cell, dict) and cell["coverage"] < CLAIMED
    ]
    return sorted(found, key=lambda row: row["coverage"])


def extent(values: Iterable[float]) -> dict[str, float]:
    some = list(values)
    return {"lowest": min(some), "highest": max(some)}


def simulate(kinds: Sequence[str], count: int, jobs: int) -> dict[str, list[dict[str, Any]]]:
    """The rows of some of `SIMULATED`, each of so many simulations."""
    began, found = time.monotonic(), dict[str, list[dict[str, Any]]]()
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        submitted = {kind: _submit(pool, kind, count) for kind in kinds}
        for kind, cells in submitted.items():
            found[kind] = []
            for about, future in cells:
                found[kind].append({**about, **future.result()})
                note(f"{about}: {time.monotonic() - began:.0f} s")
    return found


def _submit(
    pool: ProcessPoolExecutor, kind: str, count: int
) -> list[tuple[dict[str, Any], Future[dict[str, dict[str, float]]]]]:
    """Each cell's description, and what will be its coverage."""
    if kind in ("errors", "rare"):
        return [
            ({"n": n, "population": errors}, pool.submit(errors_coverage, n, errors, count))
            for n in SIZES
            for errors in (ERRORS if kind == "errors" else RARE)
        ]
    if kind == "one_run":
        return [
            ({"n": n, "population": model}, pool.submit(single_runs, n, model, count))
            for n in SIZES
            for model in MODELS
        ]
    return [
        (
            {"n": n, "seeds": seeds, "population": pair},
            pool.submit(paired_runs, n, seeds, pair, count),
        )
        for n in SIZES
        for seeds in SEEDS
        for pair in PAIRS
    ]


def accuracy_rows() -> list[dict[str, Any]]:
    rows = []
    for n in SIZES:
        for shares, between in SHARES.items():
            low, high = share_coverage(n, between)
            rows.append({"n": n, "true accuracy": shares, "lowest": low, "highest": high})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="How often intervals hold the truth.")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--only", choices=SIMULATED, nargs="+", help="simulate these, keep the file's others"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results/coverage.json"))
    arguments = parser.parse_args()
    count, kinds = arguments.simulations, arguments.only or SIMULATED
    results: dict[str, Any] = {"simulations": count}
    if arguments.only:
        results = json.loads(arguments.out.read_text())
        if results["simulations"] != count:
            parser.error(
                f"--simulations: must be the {results['simulations']} of {arguments.out}, whose "
                f"other rows are kept; got {count}; leave --only out to simulate all"
            )
    results |= {"accuracy": accuracy_rows(), **simulate(kinds, count, arguments.jobs)}
    results |= {"summary": summary(results), "widths": widths(results), "misses": misses(results)}
    files.write(arguments.out, results)
    for name in ("accuracy", *kinds):
        print(
            f"\n{name}\n"
            + "\n".join(" ".join(_short(v) for v in row.values()) for row in results[name])
        )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        width = f"{value['width']:.4f} ({value['of_ideal']:.2f})"
        return f"| {value['truth']:.4f}: {value['coverage']:.3f}, width {width}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
