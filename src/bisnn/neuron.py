r"""The spiking neuron: a discrete-time Spike Response Model, eqs. (ind-threshold) and
(ind-membrane) of the paper.

    s_{i,t} = Theta(u_{i,t} - theta)
    u_{i,t} = kappa sum_j w_{ij} (alpha * s_j)_t - (beta * s_i)_t,      (f * g)_t = sum_{d >= 1} f_d
    g_{t-d} alpha_t = exp(-t / tau_mem) - exp(-t / tau_syn),   beta_t = exp(-t / tau_ref),   t >= 1

All synapses of a layer share alpha, so filter and weights commute and alpha is applied once to the
current I_t = sum_j w_{ij} s_{j,t}, as a recursion (a_m = exp(-1/tau_mem), a_s = exp(-1/tau_syn),
a_r = exp(-1/tau_ref)):

    u_t = kappa (P_t - Q_t) - R_t,   s_t = 1 where u_t > theta
    P_{t+1} = a_m (P_t + I_t),   Q_{t+1} = a_s (Q_t + I_t),   R_{t+1} = a_r (R_t + s_t),   P_1 = Q_1
    = R_1 = 0

u_t depends on the state alone, never on I_t: the neuron is strictly causal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from bisnn.checks import choice, number

SURROGATES = ("sigmoid", "box")

# A trace of a neuron at or below this is 0. Without it the recursion ends in denormal numbers,
# which never decay (0.85 of the smallest rounds back up to it) and which some CPUs process many
# times slower. See "Deviations" in docs/EQUATIONS.md.
FLUSH = 2.0**-64


@dataclass(frozen=True)
class SRM:
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
                "tau_syn: must be below tau_mem, or the synaptic kernel exp(-t/tau_mem) - exp(-t/tau_syn) vanishes or "
                f"turns negative; got tau_syn={self.tau_syn!r}, tau_mem={self.tau_mem!r}; swap them or lower tau_syn"
            )
        choice("surrogate", self.surrogate, SURROGATES)

    def constants(self, dtype: DTypeLike = np.float32) -> np.ndarray:
        """(a_m, a_s, a_r, theta), computed in float64 and rounded once to `dtype`."""
        decays = [math.exp(-1.0 / tau) for tau in (self.tau_mem, self.tau_syn, self.tau_ref)]
        return np.array([*decays, self.threshold], np.float64).astype(dtype)
