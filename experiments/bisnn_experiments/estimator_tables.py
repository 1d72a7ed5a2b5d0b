"""Tables for `estimators`: those that its defaults were chosen on, and others that judge them.

None is downloaded: they come with scikit-learn or are made from a seed. No table and no seed is in
both lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn import datasets


class Table(NamedTuple):
    x: np.ndarray  # (N, d) numbers, or any cells
    y: np.ndarray  # (N,)
    categories: tuple[int, ...] = ()  # columns of text

    @property
    def classes(self) -> bool:
        return self.y.dtype.kind in "iu"


def blanked(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """A table of any cells in which a share of the numbers is missing."""
    return np.where(rng.random(x.shape) < share, np.nan, x).astype(object)


# To choose on


def _moons() -> Table:
    return Table(*datasets.make_moons(600, noise=0.35, random_state=11))


def _blobs() -> Table:
    x, y = datasets.make_blobs(500, n_features=5, centers=4, cluster_std=4.0, random_state=14)
    return Table(x, y)


def _small() -> Table:
    """Three Gaussian classes in 150 rows."""
    rng = np.random.default_rng(17)
    y = np.repeat(np.arange(3), 50)
    return Table((1.8 * rng.normal(size=(3, 4)))[y] + rng.normal(size=(150, 4)), y)


def _many_rows() -> Table:
    x, y = datasets.make_classification(
        8000, 12, n_informative=8, n_redundant=2, n_classes=4, class_sep=1.2, random_state=19
    )
    return Table(x, y)


def _classes(rows: int, informative: int, classes: int, seed: int) -> Callable[[], Table]:
    def table() -> Table:
        x, y = datasets.make_classification(
            rows,
            18,
            n_informative=informative,
            n_redundant=3,
            n_classes=classes,
            flip_y=0.02,
            random_state=seed,
        )
        return Table(x, y)

    return table


def _noisy() -> Table:
    return Table(*datasets.make_friedman1(1900, 12, noise=2.0, random_state=9))


def _linear() -> Table:
    x, y = datasets.make_regression(400, 10, n_informative=6, noise=100.0, random_state=21)
    return Table(x, y)


def _friedman2() -> Table:
    return Table(*datasets.make_friedman2(1500, noise=100.0, random_state=22))


def _sparse() -> Table:
    return Table(*datasets.make_sparse_uncorrelated(800, 12, random_state=24))


CHOSEN_ON: dict[str, Callable[[], Table]] = {
    "moons": _moons,
    "blobs": _blobs,
    "small": _small,
    "750 rows": _classes(750, 6, 2, 11),
    "1,900 rows": _classes(1900, 6, 3, 12),
    "3,100 rows": _classes(3100, 8, 2, 13),
    "many rows": _many_rows,
    "linear": _linear,
    "friedman 2": _friedman2,
    "noisy": _noisy,
    "sparse": _sparse,
}


# To judge


def _iris() -> Table:
    return Table(*datasets.load_iris(return_X_y=True))


def _wine() -> Table:
    return Table(*datasets.load_wine(return_X_y=True))


def _breast_cancer() -> Table:
    return Table(*datasets.load_breast_cancer(return_X_y=True))


def _digits() -> Table:
    return Table(*datasets.load_digits(return_X_y=True))


def _nuisance() -> Table:
    """Two classes in 5 columns and 5 that repeat them, 20 columns of noise, 5 % wrong labels."""
    x, y = datasets.make_classification(
        1000, 30, n_informative=5, n_redundant=5, flip_y=0.05, random_state=101
    )
    return Table(x, y)


def _large() -> Table:
    x, y = datasets.make_classification(
        20_000, 20, n_informative=10, n_redundant=4, n_classes=3, random_state=102
    )
    return Table(x, y)


def _quantiles() -> Table:
    x, y = datasets.make_gaussian_quantiles(
        n_samples=3000, n_features=6, n_classes=3, random_state=103
    )
    return Table(x, y)


def _mixed() -> Table:
    """Six numbers, a tenth of them missing, two columns of words; two classes, a quarter in one."""
    rng = np.random.default_rng(104)
    x = np.exp(0.5 * rng.normal(size=(5000, 6)))
    place, colour = rng.integers(0, 8, 5000), rng.integers(0, 3, 5000)
    effect = rng.normal(size=(8, 3))
    score = np.log(x[:, 0]) * 2 - x[:, 1] * (colour == 1) + (x[:, 2] > 1.2) + effect[place, colour]
    y = score + rng.logistic(size=5000) * 0.5 > np.quantile(score, 0.75)
    cells = [
        blanked(x, 0.1, rng),
        np.array([f"place {i}" for i in range(8)], object)[place, None],
        np.array(["red", "green", "blue"], object)[colour, None],
    ]
    return Table(np.hstack(cells), y.astype(np.int64), (6, 7))


def _diabetes() -> Table:
    return Table(*datasets.load_diabetes(return_X_y=True))


def _friedman1() -> Table:
    return Table(*datasets.make_friedman1(2000, 10, noise=1.0, random_state=105))


def _friedman3() -> Table:
    return Table(*datasets.make_friedman3(1000, noise=0.1, random_state=106))


JUDGED_ON: dict[str, Callable[[], Table]] = {
    "iris": _iris,
    "wine": _wine,
    "breast cancer": _breast_cancer,
    "digits": _digits,
    "nuisance columns": _nuisance,
    "20,000 rows": _large,
    "Gaussian quantiles": _quantiles,
    "words and blanks": _mixed,
    "diabetes": _diabetes,
    "Friedman 1": _friedman1,
    "Friedman 3": _friedman3,
}
