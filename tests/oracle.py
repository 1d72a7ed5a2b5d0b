"""A network so small that all 2^n settings of its weights can be tried: exact posterior, exact
gradients, exact free energy.

2 inputs - 2 neurons - 2 neurons, 8 binary weights, a fixed +-1 readout of two classes, four
recordings of twelve steps, labels given by one of the weight settings. Written from the equations,
for many weight settings at once, with either spikes (and a surrogate gradient) or the sigmoid in
place of the step (and then its true gradient).

`python tests/oracle.py` measures the bias of Bayes-BiSNN's gradient estimate; the figures are in
docs/EQUATIONS.md.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from bisnn import weights

N = 8
TEACHER = 0b10010110
GAIN = 4.0
SLOPE, THETA = 4.0, 0.15
A_M, A_S, A_R = (math.exp(-1 / tau) for tau in (10.0, 6.0, 2.0))


class _Heaviside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        y = torch.sigmoid(SLOPE * ctx.saved_tensors[0])
        return g * SLOPE * y * (1 - y)


class Oracle:
    """The loss L_D(w) for all 2^n weights at once, and what follows from it exactly."""

    def __init__(self, spiking: bool, seed: int = 3):
        g = torch.Generator().manual_seed(seed)
        self.spiking = spiking
        self.x = (torch.rand(12, 4, 2, generator=g) < 0.6).double()  # (T, B, 2)
        self.V = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
        bits = torch.arange(2**N)[:, None] >> torch.arange(N) & 1
        self.settings = (2 * bits - 1).double()  # (2^n, n): every weight vector
        self.labels = self.readouts(self.settings[TEACHER, None]).sum(0).argmax(-1)[0]
        self.losses = self.loss(self.settings)  # (2^n,)

    def readouts(self, w: Tensor) -> Tensor:
        """Class logits of each row of w, (S, n) -> (T, S, B, 2)."""
        S = len(w)
        layers = w[:, :4].reshape(S, 2, 2), w[:, 4:].reshape(S, 2, 2)
        P, Q, R = ([torch.zeros(S, 4, 2, dtype=w.dtype) for _ in layers] for _ in range(3))
        y = []
        for x_t in self.x:
            signal = x_t.expand(S, 4, 2)
            for l, W in enumerate(layers):
                u = (torch.einsum("sij,sbj->sbi", W, P[l] - Q[l])) / math.sqrt(2) - R[l]
                s = (
                    _Heaviside.apply(u - THETA)
                    if self.spiking
                    else torch.sigmoid(SLOPE * (u - THETA))
                )
                P[l], Q[l], R[l] = A_M * (P[l] + signal), A_S * (Q[l] + signal), A_R * (R[l] + s)
                signal = s
            y.append(GAIN * signal @ self.V.T)
        return torch.stack(y)

    def loss(self, w: Tensor) -> Tensor:
        """L_D of each row of w, (S, n) -> (S,): eq. (loss-real), logistic, summed over t, averaged
        over recordings.
        """
        log_p = torch.log_softmax(self.readouts(w), dim=-1)
        return -log_p[:, :, torch.arange(4), self.labels].mean(-1).sum(0)

    def log_q(self, w_r: Tensor) -> Tensor:
        """log q(w) of every setting under the mean-field posterior with logits w^r, eq.
        (exp-bernoulli).
        """
        return torch.nn.functional.logsigmoid(2 * w_r[..., None, :] * self.settings).sum(-1)

    def expected_loss(self, w_r: Tensor) -> Tensor:
        return (self.log_q(w_r).exp() * self.losses).sum()

    def free_energy(self, w_r: Tensor, rho: float) -> Tensor:
        """Eq. (bayes-opt) with the uniform prior, by enumeration."""
        log_q = self.log_q(w_r)
        return (log_q.exp() * (self.losses + rho * (log_q + N * math.log(2)))).sum(-1)

    def gibbs(self, rho: float) -> Tensor:
        """The exact posterior of every setting, eq. (bayes-sol)."""
        return torch.softmax(-self.losses / rho, 0)

    def mean_gradient(self, w_r: Tensor) -> Tensor:
        """Exact grad_mu E_q[L_D], with q a product of (1 + mu_i w_i) / 2."""
        mu = torch.tanh(w_r).requires_grad_()
        q = ((1 + mu * self.settings) / 2).prod(-1)
        (g,) = torch.autograd.grad((q * self.losses).sum(), mu)
        return g

    def best_mean_field(self, rho: float, starts: int = 64, steps: int = 600) -> Tensor:
        """The logits of least free energy, by descent on the exact one from many starts."""
        g = torch.Generator().manual_seed(0)
        w_r = (2 * torch.randn(starts, N, generator=g, dtype=torch.float64)).requires_grad_()
        optimizer = torch.optim.Adam([w_r], lr=0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            energies = self.free_energy(w_r, rho)
            energies.sum().backward()
            optimizer.step()
        return w_r.detach()[energies.argmin()]

    def estimate(
        self, w_r: Tensor, tau: float, draws: int, straight_through: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Mean over draws of Algorithm 2's gradient estimate, eq. (bayes-RP-grad-estimator), and
        its standard error.
        """
        g = torch.Generator().manual_seed(0)
        parts = []
        for _ in range(draws // 20_000):
            latent = w_r.expand(20_000, N)
            delta = weights.logistic_noise(torch.rand_like(latent, generator=g))
            w = (
                weights.sign(latent + delta)
                if straight_through
                else weights.relax(latent, delta, tau)
            ).requires_grad_()
            (grad,) = torch.autograd.grad(self.loss(w).sum(), w)
            parts.append(grad * weights.mean_gradient_factor(latent, delta, tau))
        every = torch.cat(parts)
        return every.mean(0), every.std(0) / math.sqrt(len(every))


POINT = torch.tensor(
    [0.3, -0.2, 0.5, 0.1, -0.4, 0.2, 0.0, -0.6], dtype=torch.float64
)  # where the bias is measured


def bias(
    oracle: Oracle, tau: float, draws: int, straight_through: bool = False
) -> dict[str, float]:
    """Relative bias |mean estimate - exact| / |exact| and cosine, at POINT; `noise` is what so few
    draws alone can make.
    """
    exact = oracle.mean_gradient(POINT)
    estimate, error = oracle.estimate(POINT, tau, draws, straight_through=straight_through)
    return {
        "bias": float((estimate - exact).norm() / exact.norm()),
        "cosine": float(torch.cosine_similarity(estimate, exact, dim=0)),
        "noise": float(error.norm() / exact.norm()),
    }


def main() -> None:
    results = []
    for spiking, hard in ((False, False), (True, False), (True, True)):
        oracle = Oracle(spiking)
        for tau in (1.0, 0.5, 0.2, 0.1):
            row = {
                "neuron": "spikes" if spiking else "sigmoid",
                "samples": "hard" if hard else "relaxed",
                "tau": tau,
            }
            row |= bias(oracle, tau, draws=400_000, straight_through=hard)
            results.append(row)
            print(
                "  ".join(
                    f"{k} {v:.3f}" if isinstance(v, float) else f"{v:8s}" for k, v in row.items()
                )
            )
    path = Path(__file__).parent.parent / "docs" / "results" / "gradient_bias.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps(
            {"command": "python tests/oracle.py", "draws": 400_000, "results": results}, indent=1
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
