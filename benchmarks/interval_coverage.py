"""How often the intervals of `bisnn.metrics` hold the truth, by simulation.

    python benchmarks/interval_coverage.py [--simulations 1000] [--jobs 2] [--out
    docs/results/coverage.json]

Recordings are drawn from populations in which the truth is known. The methods were chosen on some
    of them: logits with one
boosted class, labels from their softmax, and a model that states the softmax of logits /
temperature (below 1: overconfident). Others were written afterwards, and nothing was chosen on them
(`FRESH`): mostly, a recording has a chance of a right answer there, and the model's confidence is a
distorted version of it. Differences: runs of two methods on the same recordings, where each seed
shifts a method, and errs on recordings of its own besides. The accuracy of one run needs no
simulation: its coverage is a sum of binomial probabilities.

An ideal interval is what "wide" is compared with: 3.92 standard deviations of the estimate over the
simulations, which nobody knows who has one sample.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from bisnn import intervals, metrics
from bisnn.files import write_atomic
from bisnn_experiments.measurement import note

SIZES = (100, 400, 2000)
SEEDS = (1, 3, 10)
SHARES = {"0.5 to 0.9": (0.5, 0.9), "0.9 to 0.98": (0.9, 0.98), "0.98 to 0.999": (0.98, 0.999)}
LARGE = 200_000  # recordings that the truth is taken from
CLAIMED = 0.93  # of intervals of 95 %, at every n
CAUTIOUS = 0.97  # coverage above which the width is shown beside that of an ideal interval


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def around(top: np.ndarray, classes: int) -> np.ndarray:
    """Probabilities (..., classes): `top` for class 0, the rest in equal parts."""
    rest = np.repeat(((1 - top) / (classes - 1))[..., None], classes - 1, -1)
    return np.concatenate([top[..., None], rest], -1)


# One run


class Logits(NamedTuple):
    """Ten classes, a model whose logits are right but for a factor."""

    boost: float  # of the right class
    temperature: float  # of the logits that are stated

    def recordings(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The true distribution of the label and the one stated, (n, classes) each."""
        logits = rng.standard_normal((n, 10))
        logits[:, 0] += self.boost * rng.gamma(3.0, 1 / 3.0, n)
        return softmax(logits), softmax(logits / self.temperature)


class Chances(NamedTuple):
    """Four classes, chances of a right answer from a beta distribution, and a confidence that bends
    them.
    """

    a: float
    b: float
    offset: float = 0.0  # of the confidence's logit
    slope: float = 1.0

    def recordings(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        right = rng.beta(self.a, self.b, n).clip(0.3, 0.9999)
        stated = special.expit(self.offset + self.slope * special.logit(right)).clip(0.3, 0.9999)
        return around(right, 4), around(stated, 4)


MODELS: dict[str, Logits | Chances] = {
    "accuracy 0.81, calibrated": Logits(6, 1.0),
    "accuracy 0.81, overconfident": Logits(6, 0.6),
    "accuracy 0.93, calibrated": Logits(10, 1.0),
    "accuracy 0.93, overconfident": Logits(10, 0.6),
    "accuracy 0.97, calibrated": Logits(16, 1.0),
    "accuracy 0.97, overconfident": Logits(16, 0.6),
    "accuracy 0.97, underconfident": Logits(16, 2.0),
    "chances, calibrated": Chances(4, 1),
    "chances, overconfident": Chances(4, 1, offset=0.5),
    "chances near 1, bent": Chances(30, 0.8, slope=0.7),
    "chances low, bent": Chances(3, 2, offset=-0.2, slope=1.6),
}
ERRORS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "Student's t, 5 degrees of freedom": lambda rng, shape: rng.standard_t(5, shape),
    "Student's t, 10 degrees of freedom": lambda rng, shape: rng.standard_t(10, shape),
    "Student's t, 30 degrees of freedom": lambda rng, shape: rng.standard_t(30, shape),
    "logistic": lambda rng, shape: rng.logistic(size=shape),
    "gamma, with a bias": lambda rng, shape: rng.gamma(2.0, size=shape) - 1.5,
    "normal, a twentieth thrice as large": lambda rng, shape: (
        rng.standard_normal(shape) * np.where(rng.random(shape) < 0.05, 3, 1)
    ),
}


def labels(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    return (p.cumsum(-1) < rng.random((len(p), 1))).sum(-1).clip(max=p.shape[-1] - 1)


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


def binned_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """The calibration error of recordings whose chances of a right answer are known."""
    which = np.minimum((confidence * metrics.BINS).astype(int), metrics.BINS - 1)
    return float(np.abs(np.bincount(which, confidence - right, metrics.BINS)).sum() / len(right))


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
    rng = np.random.default_rng([seed, n, *kind.encode()])
    many = ERRORS[kind](rng, (50 * LARGE, 1))
    truth = {"rmse": float(np.sqrt((many**2).mean())), "mae": float(np.abs(many).mean())}
    found: dict[str, list[metrics.Interval]] = {name: [] for name in truth}
    for _ in range(simulations):
        errors = torch.from_numpy(ERRORS[kind](rng, (n, 1)))
        for name in truth:
            found[name].append(metrics.interval(name, errors, torch.zeros_like(errors)))
    return {name: judged(truth[name], found[name]) for name in truth}


# Runs of two methods


class Blurred(NamedTuple):
    """Recordings of class 0 by their logits: every seed shifts that class's logit, and blurs all in
    its own way.
    """

    boost: float
    temperature: float
    between: float  # deviation of the shift over the seeds
    blur: float = 0.5

    def runs(self, rng: np.random.Generator, recordings: np.ndarray, shifts: np.ndarray) -> Tensor:
        """Stated probabilities (seeds, n, classes), one seed for each of the standard normal
        shifts.
        """
        ease = special.gammaincinv(3, special.ndtr(recordings[:, 3])) / 3
        z = recordings[:, :3] + self.blur * rng.standard_normal((len(shifts), len(recordings), 3))
        z[..., 0] += self.boost * ease + self.between * shifts[:, None]
        return torch.from_numpy(softmax(z / self.temperature))


class Answers(NamedTuple):
    """Recordings of class 0 by the chance of a right answer, which every seed shifts; runs share
    part of their luck.
    """

    easy: float  # logit of the chance, in the middle
    spread: float
    between: float  # deviation of the shift over the seeds
    slope: float = 1.0  # of the confidence's logit: above 1 is overconfident
    shared: float = 0.7  # part of the luck that all runs have in common

    def runs(self, rng: np.random.Generator, recordings: np.ndarray, shifts: np.ndarray) -> Tensor:
        chance, stated = self._chances(recordings[:, 0], shifts)
        own = rng.standard_normal(chance.shape)
        luck = special.ndtr(
            np.sqrt(self.shared) * recordings[:, 1] + np.sqrt(1 - self.shared) * own
        )
        right = around(stated, 3)
        return torch.from_numpy(np.where((luck < chance)[..., None], right, right[..., [1, 0, 2]]))

    def _chances(self, ease: np.ndarray, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of a right answer, (seeds, n), and as stated."""
        chance = special.expit(
            self.easy + self.spread * ease + self.between * shifts[:, None]
        ).clip(0.35, 0.9999)
        return chance, special.expit(self.slope * special.logit(chance)).clip(0.35, 0.9999)

    def calibration_error(self, shift: float) -> float:
        """Of one seed, from the chances: drawn answers would leave a calibrated method an error."""
        points = stats.norm.ppf((np.arange(LARGE // 2) + 0.5) / (LARGE // 2))
        chance, stated = self._chances(points, np.array([shift]))
        return binned_error(stated[0], chance[0])


PAIRS: dict[str, tuple[Blurred | Answers, Blurred | Answers]] = {
    "seeds alike": (Blurred(5, 1.0, 0.0), Blurred(4.5, 1.0, 0.0)),
    "seeds differ": (Blurred(5, 1.0, 0.5), Blurred(4.5, 1.0, 0.5)),
    "one overconfident": (Blurred(5, 0.5, 0.3), Blurred(5, 1.0, 0.3)),
    "accuracy 0.99": (Blurred(14, 1.0, 0.3), Blurred(12, 1.0, 0.3)),
    "answers, accuracy 0.85": (Answers(2.4, 1.5, 0.3), Answers(2.1, 1.5, 0.3, slope=1.3)),
    "answers, accuracy 0.98": (Answers(4.8, 1.0, 0.2, slope=0.9), Answers(4.6, 1.0, 0.2)),
    "answers, accuracy 0.94": (
        Answers(4.0, 1.6, 0.3, slope=1.2),
        Answers(3.8, 1.4, 0.3, shared=0.5),
    ),
    "answers, luck apart": (
        Answers(1.8, 1.0, 0.1, slope=1.5, shared=0.2),
        Answers(1.8, 1.0, 0.4, slope=0.8, shared=0.2),
    ),
    "answers, underconfident": (Answers(3.0, 1.2, 0.3, slope=0.75), Answers(3.2, 1.2, 0.2)),
    "answers, both calibrated": (Answers(2.8, 1.3, 0.2), Answers(2.2, 1.3, 0.2)),
}
COMPARED = ("accuracy", "nll", metrics.CALIBRATION)
LABELS = {
    "accuracy": "accuracy",
    "nll": "NLL",
    "brier": "Brier score",
    "rmse": "RMSE",
    "mae": "MAE",
}
LABELS[metrics.CALIBRATION] = "calibration error"
FRESH = {  # nothing was chosen on these
    *(name for name in MODELS if name.startswith("chances")),
    *(name for name in ERRORS if not name.startswith("Student")),
    "answers, accuracy 0.85",
    "answers, accuracy 0.94",
    "answers, luck apart",
    "answers, underconfident",
    "answers, both calibrated",
}
CHOSEN_ON = {
    "answers, accuracy 0.85",
    "answers, accuracy 0.94",
    "answers, luck apart",
}  # for differences in calibration error


def is_fresh(name: str, population: str) -> bool:
    return population in FRESH and not (name == metrics.CALIBRATION and population in CHOSEN_ON)


def both(
    rng: np.random.Generator, pair: str, n: int, shifts: tuple[np.ndarray, np.ndarray]
) -> list[list[Tensor]]:
    """The runs of both methods of a pair on the same n recordings."""
    recordings = rng.standard_normal((n, 4))
    return [
        list(method.runs(rng, recordings, shift))
        for method, shift in zip(PAIRS[pair], shifts, strict=True)
    ]


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


def summary(results: dict[str, Any]) -> list[dict[str, Any]]:
    """What each interval is, and its lowest and highest coverage at each n: the table of
    docs/RESULTS.md.
    """
    runs, pairs, calibration = results["one_run"], results["paired"], metrics.CALIBRATION
    single, several = (
        [row for row in pairs if (row["seeds"] == 1) == one] for one in (True, False)
    )
    calibrated = [row for row in runs if row[calibration]["truth"] < 1e-9]
    others = [row for row in runs if row not in calibrated]
    hall = (
        "Hall's (Student's t with the skewness taken out), the most extreme recording counts twice"
    )
    cells: list[tuple[str, str, str, list[dict[str, Any]]]] = [
        (
            "NLL of a run",
            f"{hall}; at the upper end at least what the accuracy's interval allows in mistakes",
            "nll",
            runs,
        ),
        ("Brier score of a run", "the same", "brier", runs),
        ("RMSE", "Hall's as above, of the squares", "rmse", results["errors"]),
        ("MAE", "Hall's as above", "mae", results["errors"]),
        ("calibration error, true value 0", "inversion of a test", calibration, calibrated),
        ("calibration error, others", "the same", calibration, others),
        (
            "difference in accuracy, 3 to 10 seeds",
            "seeds and recordings, and one more recording for each method",
            "accuracy",
            several,
        ),
        (
            "difference in NLL, 3 to 10 seeds",
            "seeds and recordings, and further extreme ones",
            "nll",
            several,
        ),
        (
            "difference in calibration error, 3 to 10 seeds",
            "the same, and what is left of each method's bias at one end",
            calibration,
            several,
        ),
        (
            "difference in accuracy, one run each",
            "recordings, otherwise as above",
            "accuracy",
            single,
        ),
        ("difference in NLL, one run each", "recordings, otherwise as above", "nll", single),
        (
            "difference in calibration error, one run each",
            "recordings, otherwise as above",
            calibration,
            single,
        ),
    ]
    shares = [(row["n"], row[end]) for row in results["accuracy"] for end in ("lowest", "highest")]
    rows = [
        {
            "of": "accuracy of a run (exact, not simulated)",
            "interval": "the hull of Wilson's and the mid-P interval",
            **{f"n = {n}": extent(value for size, value in shares if size == n) for n in SIZES},
            "cautious": "",
        }
    ]
    for of, interval, name, found in cells:
        for fresh in (False, True):
            some = [row for row in found if is_fresh(name, row["population"]) == fresh]
            wide = [row[name]["of_ideal"] for row in some if row[name]["coverage"] > CAUTIOUS]
            at = {
                f"n = {n}": extent(row[name]["coverage"] for row in some if row["n"] == n)
                for n in SIZES
            }
            rows.append(
                {
                    "of": of + ("; fresh" if fresh else ""),
                    "interval": interval,
                    **at,
                    "cautious": "",
                }
            )
            if wide:
                rows[-1]["cautious"] = " to ".join(
                    dict.fromkeys(f"{end(wide):.1f}" for end in (min, max))
                )
    return rows


def widths(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean widths that docs/RESULTS.md names."""
    name = metrics.CALIBRATION
    cells = {
        "calibration error, true value 0": [
            row for row in results["one_run"] if row[name]["truth"] < 1e-9
        ],
        "difference in calibration error": [row for row in results["paired"] if row["seeds"] > 1],
    }
    return [
        {
            "of": of,
            **{
                f"n = {n}": extent(row[name]["width"] for row in rows if row["n"] == n)
                for n in SIZES
            },
        }
        for of, rows in cells.items()
    ]


def misses(results: dict[str, Any]) -> list[dict[str, Any]]:
    """All that covers less than 93 %, the lowest first."""
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
        for kind in ("errors", "one_run", "paired")
        for row in results[kind]
        for name, cell in row.items()
        if isinstance(cell, dict) and cell["coverage"] < CLAIMED
    ]
    return sorted(found, key=lambda row: row["coverage"])


def extent(values: Iterable[float]) -> dict[str, float]:
    some = list(values)
    return {"lowest": min(some), "highest": max(some)}


def main() -> None:
    parser = argparse.ArgumentParser(description="How often intervals hold the truth.")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=Path("docs/results/coverage.json"))
    arguments = parser.parse_args()
    count, began = arguments.simulations, time.monotonic()
    results: dict[str, Any] = {"simulations": count, "accuracy": []}
    for n in SIZES:
        for shares, between in SHARES.items():
            low, high = share_coverage(n, between)
            results["accuracy"].append(
                {"n": n, "true accuracy": shares, "lowest": low, "highest": high}
            )
    with ProcessPoolExecutor(
        arguments.jobs,
        mp_context=get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    ) as pool:
        cells = {
            "errors": [
                ({"n": n, "population": kind}, pool.submit(errors_coverage, n, kind, count))
                for n in SIZES
                for kind in ERRORS
            ],
            "one_run": [
                ({"n": n, "population": model}, pool.submit(single_runs, n, model, count))
                for n in SIZES
                for model in MODELS
            ],
            "paired": [
                (
                    {"n": n, "seeds": seeds, "population": pair},
                    pool.submit(paired_runs, n, seeds, pair, count),
                )
                for n in SIZES
                for seeds in SEEDS
                for pair in PAIRS
            ],
        }
        for kind, submitted in cells.items():
            results[kind] = []
            for about, future in submitted:
                results[kind].append({**about, **future.result()})
                note(f"{about}: {time.monotonic() - began:.0f} s")
    results |= {"summary": summary(results), "widths": widths(results), "misses": misses(results)}
    write_atomic(arguments.out, (json.dumps(results, indent=1) + "\n").encode())
    for name in ("accuracy", *cells):
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
