r"""Spiking neurons as values: constants, traces, and one time step in PyTorch, for numba and in C.

**SRM**, eqs. (ind-threshold) and (ind-membrane) of the paper, a discrete-time Spike Response Model:

    s_{i,t} = Theta(u_{i,t} - theta)
    u_{i,t} = kappa sum_j w_{ij} (alpha * s_j)_t - (beta * s_i)_t
    (f * g)_t = sum_{d >= 1} f_d g_{t-d}
    alpha_t = exp(-t / tau_mem) - exp(-t / tau_syn),   beta_t = exp(-t / tau_ref),   t >= 1

All synapses of a layer share alpha, so filter and weights commute and alpha is applied once to the
current I_t = sum_j w_{ij} s_{j,t}, as a recursion (a_m = exp(-1/tau_mem), a_s = exp(-1/tau_syn),
a_r = exp(-1/tau_ref)):

    u_t = kappa (P_t - Q_t) - R_t,   s_t = 1 where u_t > theta
    P_{t+1} = a_m (P_t + I_t),   Q_{t+1} = a_s (Q_t + I_t),   R_{t+1} = a_r (R_t + s_t)
    P_1 = Q_1 = R_1 = 0

u_t depends on the state alone, never on I_t: the neuron is strictly causal.

**FixedSRM** is the same recursion in integers. Traces are 32-bit multiples of 2^-f, decays 16-bit
factors a / 2^16, and kappa is divided out, so that nothing is multiplied by it:

    v_t = P_t - Q_t - R_t,   s_t = 1 where v_t > theta_f
    P_{t+1} = [a_m (P_t + 2^f I_t)],   Q_{t+1} = [a_s (Q_t + 2^f I_t)]
    R_{t+1} = [a_r (R_t + K s_t)]
    [a x] = a x / 2^16 towards zero,   K = round(2^f / kappa),   theta_f = round(2^f theta / kappa)

u = kappa 2^-f v is the potential of the SRM. Rounding goes towards zero so that a trace without
input reaches 0 from either side; to the nearest, it would stop once (1 - a) x is below a half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bisnn.checks import choice, number

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SRM", "CStep", "FixedSRM", "Neuron"]

SURROGATES = ("sigmoid", "box")

# A trace of a float neuron at or below this is 0. Without it the recursion ends in denormal
# numbers, which never decay (0.85 of the smallest rounds back up to it) and which some CPUs process
# many times slower. See "Deviations" in docs/EQUATIONS.md.
FLUSH = 2.0**-64
DECAY_BITS = 16  # of a fixed-point decay
MOST_FRACTION = 24  # bits: beyond it 2^f I leaves 32 bits for any layer worth the name


class CStep(NamedTuple):
    """One time step of neuron j in C99, as statements. They know each trace as `P[j]`, all
    constants by name, and of floats `rounded(product, zero)`, which no compiler fuses with a sum,
    and `flush(trace)`.
    """

    fire: str  #: sets `s`, 1 or 0; may also move on traces that depend on the spike alone
    integrate: str  #: moves on the others, by the current `I`, an int32_t, and `s`
    helpers: str = ""  #: functions that these call


class Neuron:
    """What a layer asks of its neurons. A subclass with `constants`, `potential` and `advance`
    trains and predicts by a loop over time in PyTorch.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Leaky(Neuron):
    ...     decay: float = 0.9
    ...     threshold: float = 0.5
    ...     def constants(self, dtype=np.float32):
    ...         return np.array([self.decay, self.threshold], dtype)
    ...     def potential(self, state, kappa, constants):
    ...         return kappa * state[0]
    ...     def advance(self, I, s, state, constants):
    ...         return (constants[0] * (state[0] + I) * (1 - s),)

    To ship it takes `shared` and `compiled` (the packed engine), `c` (C99) and `operations` (the
    ledger) on top; tests/test_own_neuron.py has one with all of them.
    """

    kind: ClassVar[str]  # its name in packed files: module:Class, but for those of this module
    fused: ClassVar[bool] = False  # whether `kernels` has its scan and adjoint
    traces: ClassVar[tuple[str, ...]] = ("P",)  # names of the state's parts, each (B, ...), first 0
    surrogate: str = "sigmoid"  # what stands in for the derivative of the step, see `SURROGATES`
    slope: float = 1.0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in vars(cls):
            cls.kind = f"{cls.__module__}:{cls.__qualname__}"

    def constants(self, dtype: DTypeLike = np.float32) -> np.ndarray:
        """What `potential` and `advance` are given as a tensor, of type `dtype`; last the threshold
        theta.
        """
        raise NotImplementedError

    def potential(self, state: Sequence[Tensor], kappa: Tensor, constants: Tensor) -> Tensor:
        """u_t from the state alone; the neuron fires where u_t > theta.

        Args:
            state: one tensor (B, ...) for each of `traces`.
            kappa: the scale of the synaptic current, () or (N,).
            constants: those of `constants()`, (n,).
        """
        raise NotImplementedError

    def advance(
        self, I: Tensor, s: Tensor, state: Sequence[Tensor], constants: Tensor
    ) -> tuple[Tensor, ...]:
        """The state of the next time step from the current and the spikes of this one.

        Args:
            I: the synaptic current W s, (B, ...), a whole number where weights are hard.
            s: the neurons' spikes, 0 or 1, (B, ...).
            state: one tensor (B, ...) for each of `traces`.
            constants: those of `constants()`, (n,).
        """
        raise NotImplementedError

    def integers(self, kappa: np.ndarray, most: int) -> np.ndarray | None:
        """The constants of a neuron that computes in integers, or None; see `FixedSRM.integers`.

        Args:
            kappa: the scale of the current, () or (N,).
            most: the largest |I|: the fan-in times the largest weight.
        """
        return None

    # What ships: the same step, to the bit, on scalars of one type

    dtype: ClassVar[type] = np.float32  # of traces and constants: np.float32 or np.int32
    shared: ClassVar[tuple[str, ...]] = ()  # names of the constants of all neurons of a layer
    each: ClassVar[tuple[str, ...]] = ("kappa",)  # and of those that may differ between neurons
    # A static method that returns the step for numba: two functions, compiled with inline="always",
    #   potential(state, each, shared) -> (u, theta)
    #   advance(I, fires, state, each, shared) -> state
    # of tuples of scalars, a float32 I that is a whole number, and a bool.
    compiled: ClassVar[Callable[[], tuple[Callable[..., Any], Callable[..., Any]]] | None] = None
    c: ClassVar[CStep | None] = None
    operations: ClassVar[tuple[int, int] | None] = None  # multiplications and additions of a step

    def step_constants(
        self, kappa: np.ndarray, constants: np.ndarray, most: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The constants of a layer as `shared` and `each` name them, (m,) and (n, 1 or neurons).

        Args:
            kappa: the layer's, as rounded.
            constants: the layer's, as rounded.
            most: the largest |I|.
        """
        return constants, kappa.reshape(1, -1)

    def edges(self, kappa: np.float32, constants: np.ndarray) -> np.ndarray:
        """States at which a product that is not rounded would decide otherwise, to try C code on:
        rows of traces and whether they fire. None are known.

        Args:
            kappa: the scale of the current.
            constants: those of `constants()`.
        """
        return np.empty((0, len(self.traces) + 1), np.float32)

    def to_json(self) -> dict[str, Any]:
        """Kind and settings, for a header."""
        return {"kind": self.kind, **vars(self)}


@dataclass(frozen=True)
class SRM(Neuron):
    """A Spike Response Model neuron and the surrogate derivative it is trained with.

    Args:
        tau_mem: membrane time constant, in time steps; the slow part of alpha.
        tau_syn: synaptic time constant, in time steps; below `tau_mem`, or alpha would vanish or
            turn negative.
        tau_ref: time constant of the refractory feedback beta, in time steps.
        threshold: theta > 0. The neuron fires where u > theta; equality does not fire.
        surrogate: what stands in for the derivative of the step: "sigmoid" (the paper's) or "box".
        slope: k in d/dv sigma(k v) (the paper's is 1) or in d/dv clip(k v + 1/2, 0, 1).

    >>> SRM(tau_mem=10, tau_syn=6, tau_ref=2, threshold=0.5)
    SRM(tau_mem=10, tau_syn=6, tau_ref=2, threshold=0.5, surrogate='sigmoid', slope=1.0)
    """

    kind = "srm"
    fused = True
    traces = ("P", "Q", "R")
    shared = ("a_m", "a_s", "a_r", "theta")
    operations = (4, 6)

    tau_mem: float = 10.0
    tau_syn: float = 6.0
    tau_ref: float = 2.0
    threshold: float = 0.5
    surrogate: str = "sigmoid"
    slope: float = 1.0

    def __post_init__(self) -> None:
        for name in ("tau_mem", "tau_syn", "tau_ref", "threshold", "slope"):
            number(name, getattr(self, name), above=0)
        a_m, a_s, *_ = self.constants()
        if a_s >= a_m:
            raise ValueError(
                "tau_syn: must be below tau_mem, or the synaptic kernel exp(-t/tau_mem) - "
                f"exp(-t/tau_syn) vanishes or turns negative; got tau_syn={self.tau_syn!r}, "
                f"tau_mem={self.tau_mem!r}; swap them or lower tau_syn"
            )
        choice("surrogate", self.surrogate, SURROGATES)

    def constants(self, dtype: DTypeLike = np.float32) -> np.ndarray:
        """(a_m, a_s, a_r, theta), computed in float64 and rounded once to `dtype`."""
        decays = [math.exp(-1.0 / tau) for tau in (self.tau_mem, self.tau_syn, self.tau_ref)]
        return np.array([*decays, self.threshold], np.float64).astype(dtype)

    def potential(self, state: Sequence[Tensor], kappa: Tensor, constants: Tensor) -> Tensor:
        """u_t = kappa (P_t - Q_t) - R_t, eq. (ind-membrane).

        Every other implementation does the operations of this and of `advance` in the order written
        here, each rounded once (no fused multiply-add), and therefore gives the same bits.
        """
        P, Q, R = state
        return kappa * (P - Q) - R

    def advance(
        self, I: Tensor, s: Tensor, state: Sequence[Tensor], constants: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """P' = a_m (P + I), Q' = a_s (Q + I), R' = a_r (R + s)."""
        P, Q, R = state
        a_m, a_s, a_r, _ = constants.unbind()
        return _flush(a_m * (P + I)), _flush(a_s * (Q + I)), _flush(a_r * (R + s))

    @staticmethod
    def compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
        """`potential` and `advance` for numba, on scalars."""
        from numba import njit

        zero, one, least = np.float32(0), np.float32(1), np.float32(FLUSH)

        @njit(inline="always")
        def potential(state: Any, each: Any, shared: Any) -> Any:
            P, Q, R = state
            return each[0] * (P - Q) - R, shared[3]

        @njit(inline="always")
        def advance(I: Any, fires: Any, state: Any, each: Any, shared: Any) -> Any:
            P, Q, R = state
            a_m, a_s, a_r, _ = shared
            P, Q, R = a_m * (P + I), a_s * (Q + I), a_r * (R + (one if fires else zero))
            return (
                zero if abs(P) <= least else P,
                zero if abs(Q) <= least else Q,
                zero if abs(R) <= least else R,
            )

        return potential, advance

    c = CStep(
        fire="""
            s = rounded(kappa * (P[j] - Q[j]), zero) - R[j] > theta;
            R[j] = flush(a_r * (R[j] + (float)(int32_t)s));""",
        integrate="""
            P[j] = flush(a_m * (P[j] + (float)I));
            Q[j] = flush(a_s * (Q[j] + (float)I));""",
    )

    def edges(self, kappa: np.float32, constants: np.ndarray) -> np.ndarray:
        """With Q = 0 the potential is kappa P - R: R puts the rounded product at the threshold, and
        what rounding took off decides. There are none where kappa is a power of two: no product is
        rounded then.
        """
        theta = constants[3]
        P = (theta / kappa * np.linspace(16, 64, 1000)).astype(np.float32)
        R = kappa * P - theta
        fires = kappa * P - R > theta
        # The product is exact
        fused = (kappa.astype(np.float64) * P.astype(np.float64) - R).astype(np.float32) > theta
        return np.stack([P, np.zeros_like(P), R, fires], 1)[fires != fused].astype(np.float32)


def _flush(x: Tensor) -> Tensor:
    """x, or 0 where |x| <= FLUSH; for autograd the identity: a trace at rest passes gradients."""
    import torch.nn.functional as F  # this module is part of what ships without PyTorch

    flushed = F.hardshrink(x.detach(), FLUSH)
    return x + (flushed - x.detach()) if x.requires_grad else flushed


@dataclass(frozen=True)
class FixedSRM(SRM):
    """The SRM in integers, for chips without a floating-point unit: the recursion in this module's
    head. Its gradients are those of the SRM at the potential kappa 2^-f v.

    It takes spikes and hard weights: whole networks of integers up to the readouts' counts. Relaxed
    samples and real-valued inputs are refused.

    Args:
        tau_mem, tau_syn, tau_ref, threshold, surrogate, slope: as in `SRM`.
        fraction: f, the bits of a trace below the unit of the current, 0 to 24. A layer whose
            traces could leave 32 bits is refused when it is built.

    >>> FixedSRM(threshold=0.25).integers(np.array(0.25), most=16).tolist()
    [59299, 55475, 39750, 12, 16384, 4096]
    """

    kind = "fixed"
    dtype = np.int32
    shared = ("a_m", "a_s", "a_r", "fraction")
    each = ("feedback", "theta")
    operations = (3, 6)

    fraction: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        f = self.fraction
        if isinstance(f, bool) or not isinstance(f, int) or not 0 <= f <= MOST_FRACTION:
            raise ValueError(
                f"fraction: must be a whole number of bits from 0 to {MOST_FRACTION}; got {f!r}; "
                "leave it out for 12"
            )
        self.decays()

    def decays(self) -> list[int]:
        """The decays as 16-bit factors: a_m, a_s, a_r in units of 2^-16."""
        # From the float32 constants, which are what a packed file has.
        factors = np.rint(self.constants()[:3].astype(np.float64) * 2**DECAY_BITS).astype(int)
        for name, factor in zip(("tau_mem", "tau_syn", "tau_ref"), factors.tolist(), strict=True):
            if not 0 < factor < 2**DECAY_BITS:
                raise ValueError(
                    f"{name}: exp(-1/{name}) must lie between 2^-17 and 1 - 2^-17, or no 16-bit "
                    f"factor stands for it; got {getattr(self, name)!r}; use 0.1 to 100000"
                )
        if factors[0] == factors[1]:
            raise ValueError(
                "tau_syn: must differ from tau_mem in the first 16 bits of exp(-1/tau), or the "
                f"synaptic kernel vanishes; got tau_syn={self.tau_syn!r}, tau_mem={self.tau_mem!r};"
                " lower tau_syn"
            )
        return factors.tolist()

    def integers(self, kappa: np.ndarray, most: int) -> np.ndarray:
        """(a_m, a_s, a_r, f, K, theta_f) as int32, (6,) or for kappa of each neuron (6, N).

        `most` is the largest |I|: the fan-in times the largest weight. Nothing overflows if the
        bounds most 2^f / (1 - a_m), most 2^f / (1 - a_s), K / (1 - a_r) and theta_f together stay
        below 2^31: they bound |P + 2^f I|, |Q + 2^f I|, R + K, and by their sum v - theta_f.
        """
        unit = 1 / np.asarray(kappa).astype(np.float32).astype(np.float64)
        a_m, a_s, a_r = (factor / 2**DECAY_BITS for factor in self.decays())
        theta = float(np.float32(self.threshold))

        def bound(f: int) -> float:
            currents = most * 2.0**f * (1 / (1 - a_m) + 1 / (1 - a_s))
            return float(currents + (2.0**f * unit).max() * (1 / (1 - a_r) + theta) + 2)

        if bound(self.fraction) >= 2**31:
            fits = [f for f in range(self.fraction) if bound(f) < 2**31]
            way = f"use fraction={fits[-1]}" if fits else "shorten tau_mem or split the layer"
            raise ValueError(
                f"fraction: traces of currents up to {most} must stay below 2^31; got "
                f"fraction={self.fraction}, with which they reach {bound(self.fraction):.3g}; {way}"
            )
        one, threshold = (
            np.rint(2.0**self.fraction * unit),
            np.rint(2.0**self.fraction * unit * theta),
        )
        if (threshold < 1).any():
            raise ValueError(
                "threshold: must be at least half a unit of 2^-fraction kappa; got "
                f"{self.threshold!r} with fraction={self.fraction}; raise fraction"
            )
        shared = [np.full_like(one, value) for value in (*self.decays(), self.fraction)]
        return np.stack([*shared, one, threshold]).astype(np.int32)

    def step_constants(
        self, kappa: np.ndarray, constants: np.ndarray, most: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(a_m, a_s, a_r, f), and of each neuron K and theta_f."""
        found = self.integers(kappa, most).reshape(6, -1)
        return found[:4, 0], found[4:]

    @staticmethod
    def compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
        """`potential` and `advance` for numba, on integers."""
        from numba import njit

        zero, bits, below = np.int32(0), np.int64(DECAY_BITS), np.int64(2**DECAY_BITS - 1)

        @njit(inline="always")
        def decayed(x: Any, a: Any) -> Any:
            # A negative product is raised, for the shift rounds down
            y = np.int64(x) * np.int64(a)
            return np.int32((y + ((y >> np.int64(63)) & below)) >> bits)

        @njit(inline="always")
        def potential(state: Any, each: Any, shared: Any) -> Any:
            P, Q, R = state
            return np.int32(P - Q - R), each[1]

        @njit(inline="always")
        def advance(I: Any, fires: Any, state: Any, each: Any, shared: Any) -> Any:
            P, Q, R = state
            a_m, a_s, a_r, fraction = shared
            I = np.int64(I) << np.int64(fraction)
            s = each[0] if fires else zero
            return decayed(P + I, a_m), decayed(Q + I, a_s), decayed(R + s, a_r)

        return potential, advance

    c = CStep(
        helpers="""
/* a x / 2^16, rounded down; a is below 2^16. */
INLINE uint32_t scaled(uint32_t x, int32_t a)
{
#if defined(__ARM_ARCH_6M__) || defined(__ARM_ARCH_8M_BASE__) || defined(__AVR__)
    /* These have no product of 64 bits. */
    return (x >> 16) * (uint32_t)a + ((x & UINT32_C(0xffff)) * (uint32_t)a >> 16);
#else
    /* The upper word of a product: one instruction. */
    return (uint32_t)((uint64_t)x * ((uint32_t)a << 16) >> 32);
#endif
}

/* a x / 2^16, rounded towards zero. */
INLINE int32_t decayed(int32_t x, int32_t a)
{
    return x < 0 ? -(int32_t)scaled(0 - (uint32_t)x, a) : (int32_t)scaled((uint32_t)x, a);
}
""",
        fire="""
            s = P[j] - Q[j] - R[j] > theta;
            /* R is never negative. */
            R[j] = (int32_t)scaled((uint32_t)(R[j] + (s ? feedback : 0)), a_r);""",
        integrate="""
            P[j] = decayed(P[j] + I * (INT32_C(1) << fraction), a_m);
            Q[j] = decayed(Q[j] + I * (INT32_C(1) << fraction), a_s);""",
    )

    def edges(self, kappa: np.float32, constants: np.ndarray) -> np.ndarray:
        """None: integers are not rounded."""
        return Neuron.edges(self, kappa, constants)


# The recursion of FixedSRM on int32 tensors.


def fixed_potential(state: Sequence[Tensor]) -> Tensor:
    """v_t = P_t - Q_t - R_t."""
    P, Q, R = state
    return P - Q - R


def fixed_advance(
    I: Tensor, fires: Tensor, state: Sequence[Tensor], integers: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """P' = [a_m (P + 2^f I)], Q' = [a_s (Q + 2^f I)], R' = [a_r (R + K s)]; fires is s as bool."""
    P, Q, R = state
    a_m, a_s, a_r, fraction, one, _ = integers.unbind()
    I = I << fraction
    return _decayed(P + I, a_m), _decayed(Q + I, a_s), _decayed(R + fires * one, a_r)


def _decayed(x: Tensor, a: Tensor) -> Tensor:
    """a x / 2^16, rounded towards zero."""
    return x.long().mul(a).div(2**DECAY_BITS, rounding_mode="trunc").int()
