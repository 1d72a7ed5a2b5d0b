"""Alphabets: the finite sets of integers that a weight takes its value from.

    Binary()              {-1, +1}, the paper's and the default
    Ternary()             {-1, 0, +1}
    Levels(-3, -1, 1, 3)  any two or more distinct integers from -127 to 127

An alphabet is its `levels`; everything else follows from them. With low the least level and gap
the greatest common divisor of the differences, every level is low + gap c with a whole code
c = sum_k 2^k b_k, so that a current is a sum over bit planes b_k,

    sum_j w_j s_j = low popcount(s) + gap sum_k 2^k popcount(b_k & s),

an exact integer in any order of summation. {-1, +1} is low = -1, gap = 2 and one plane. Levels
need not be evenly spaced: codes then leave some numbers out. Nothing here needs PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

import numpy as np

MOST = 127  # |level|: a weight fits into 8 bits with its sign
EXACT = 1 << 24  # float32 holds every whole number up to this one


class Levels:
    """A finite set of integers.

    Args:
        *levels: two or more distinct integers from -127 to 127, in any order.

    >>> Levels(3, -3, 1, -1).levels
    (-3, -1, 1, 3)
    >>> Levels(0, 2, 6).low, Levels(0, 2, 6).gap, Levels(0, 2, 6).planes  # codes 0, 1, 3
    (0, 2, 2)
    """

    def __init__(self, *levels: int):
        whole = all(isinstance(v, Integral) and not isinstance(v, bool) for v in levels)
        if not whole or len(levels) < 2 or len(set(levels)) < len(levels):
            raise ValueError(
                f"levels: must be two or more distinct integers; got {levels!r}; "
                "give e.g. Levels(-3, -1, 1, 3)"
            )
        if max(map(abs, levels)) > MOST:
            raise ValueError(
                f"levels: must lie from -{MOST} to {MOST}, to fit into 8 bits; got {levels!r}; "
                "divide them by a common factor: kappa is scaled by their size anyway"
            )
        self.levels: tuple[int, ...] = tuple(sorted(int(v) for v in levels))

    @property
    def rms(self) -> float:
        """Root mean square of the levels: a neuron's scale kappa is divided by it."""
        return math.sqrt(sum(v * v for v in self.levels) / len(self.levels))

    @property
    def low(self) -> int:
        """The least level, whose code is 0."""
        return self.levels[0]

    @property
    def gap(self) -> int:
        """The unit of codes: the greatest common divisor of the levels' differences."""
        return math.gcd(*(v - self.low for v in self.levels))

    @property
    def planes(self) -> int:
        """Bits of a code, and so of a weight that is stored."""
        return ((self.levels[-1] - self.low) // self.gap).bit_length()

    @property
    def reach(self) -> int:
        """The largest |level|."""
        return max(map(abs, self.levels))

    def codes(self, w: np.ndarray) -> np.ndarray:
        """`(w - low) / gap` as uint8, for weights of these levels."""
        return ((w.astype(np.int16) - self.low) // self.gap).astype(np.uint8)

    def bits(self, w: np.ndarray) -> np.ndarray:
        """The bit planes of weights `w`, bool `(planes, *w.shape)`, the lowest bit first.

        >>> Ternary().bits(np.array([-1, 0, 1])).astype(int).tolist()
        [[0, 1, 0], [0, 0, 1]]
        """
        if self.planes == 1:
            return (w > self.low)[None]
        codes = self.codes(w)
        return np.stack([codes >> k & 1 for k in range(self.planes)]).astype(bool)

    def weights(self, bits: np.ndarray) -> np.ndarray:
        """The weights, int8, whose bit planes are `bits`."""
        codes = sum(plane.astype(np.int16) << k for k, plane in enumerate(bits))
        return (self.low + self.gap * codes).astype(np.int8)

    def check_fan_in(self, parents: int) -> None:
        """A ValueError if a sum over `parents` inputs could leave the whole numbers of float32."""
        if parents * self.reach > EXACT:
            raise ValueError(
                f"weights: {parents} parents times the largest level {self.reach} must be at most "
                "2^24, up to which float32 holds every current exactly; got "
                f"{parents * self.reach}; use smaller levels or fewer inputs"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Levels) and self.levels == other.levels

    def __hash__(self) -> int:
        return hash(self.levels)

    def __repr__(self) -> str:
        return f"Levels({', '.join(map(str, self.levels))})"


class Binary(Levels):
    """{-1, +1}: one bit per weight."""

    def __init__(self) -> None:
        super().__init__(-1, 1)

    def __repr__(self) -> str:
        return "Binary()"


class Ternary(Levels):
    """{-1, 0, +1}: two bits per weight, of which 0 needs no operation."""

    def __init__(self) -> None:
        super().__init__(-1, 0, 1)

    def __repr__(self) -> str:
        return "Ternary()"


BINARY = Binary()


def alphabet_of(weights: str | Sequence[int] | Levels) -> Levels | None:
    """The alphabet of a name, a list of levels or an alphabet; None for "real", full precision."""
    if isinstance(weights, Levels):
        return weights
    named = {"binary": Binary, "ternary": Ternary}
    if isinstance(weights, str) and weights in (*named, "real"):
        return named[weights]() if weights in named else None
    if isinstance(weights, Sequence) and not isinstance(weights, str):
        return Levels(*weights)
    raise ValueError(
        f'weights: must be "binary", "ternary", "real", a list of levels or an alphabet such as '
        f"bisnn.Levels(-3, -1, 1, 3); got {weights!r}; leave it out for binary"
    )
