"""One step of each neuron for numba, inlined by the CPU kernels and by the packed engine.

What they compute is defined in `bisnn.neuron`: the same operations in the same order, each rounded
once. The caller compares the potential with the threshold. Only numpy and numba are needed here.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bisnn.neuron import DECAY_BITS, FLUSH

_ZERO, _FLUSH = np.float32(0), np.float32(FLUSH)
_BITS = np.int64(DECAY_BITS)


@njit(inline="always")
def srm_potential(p, q, r, kappa):
    """u = kappa (P - Q) - R, float32."""
    return kappa * (p - q) - r


@njit(inline="always")
def srm_advance(p, q, r, I, s, a_m, a_s, a_r):
    """The next P, Q, R; all float32."""
    p, q, r = a_m * (p + I), a_s * (q + I), a_r * (r + s)
    return (
        _ZERO if abs(p) <= _FLUSH else p,
        _ZERO if abs(q) <= _FLUSH else q,
        _ZERO if abs(r) <= _FLUSH else r,
    )


@njit(inline="always")
def fixed_potential(p, q, r):
    """v = P - Q - R, int32."""
    return np.int32(p - q - r)


@njit(inline="always")
def fixed_advance(p, q, r, I, s, a_m, a_s, a_r, fraction):
    """The next P, Q, R, int32, from the whole current I and s, which is K or 0."""
    I = np.int64(I) << fraction
    return _decayed(p + I, a_m), _decayed(q + I, a_s), _decayed(r + s, a_r)


@njit(inline="always")
def _decayed(x, a):
    """a x / 2^16, rounded towards zero: a negative product is raised, for the shift rounds down."""
    y = np.int64(x) * np.int64(a)
    return np.int32((y + ((y >> np.int64(63)) & np.int64((1 << 16) - 1))) >> _BITS)
