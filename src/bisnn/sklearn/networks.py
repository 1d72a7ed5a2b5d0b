"""One network of an estimator: bits from the input to the last layer, real numbers that read it.

All weights of the layers are +-1, trained by Bayes-BiSNN or ST-BiSNN with Adam and gradients
through time. The readout is real: for each class or target one number per neuron of the last layer,
times its firing rate, and one more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.layers import Linear
from bisnn.network import Network
from bisnn.neuron import SRM
from bisnn.optimizer import Rule
from bisnn.realisation import map_weights, sample_weights
from bisnn.rules import BayesBiSNN, STBiSNN

NEURON = SRM(tau_mem=4.0, tau_syn=1.0, tau_ref=1.0, threshold=0.3, slope=4.0)
INIT = 0.1  # latents begin at +- this
RHO = 1e-3  # temperature of Bayes-BiSNN times the number of training rows
HARD = True  # whether Bayes-BiSNN's samples are hard in training as in prediction
READOUT_LR = 0.01  # of the readout, by Adam
PRIOR = 1.0  # rows of all classes alike that a classifier has seen beside its own
UPDATES = 1000  # of the weights, about, where nobody says for how many epochs to train
EPOCHS = (10, 300)  # and not fewer or more than these
BATCH = 1024  # rows that are predicted together
QUIET = 0.25  # the firing rate that the readout takes as zero
GAIN = 4.0  # of the readout: its weights, as Adam moves them, are of the size of their rates


@dataclass(frozen=True)
class TrainingPlan:
    """How a network is built and trained."""

    widths: tuple[int, ...]
    rule: str  # "bayes" or "st"
    samples: int  # of the posterior, in a prediction
    epochs: int
    batch: int
    lr: float
    dropout: float
    alpha: float  # of the squares of the readout's weights, beside the sum of the rows' losses
    patience: int  # epochs without a better held-out loss


class EncodedRows(NamedTuple):
    """Encoded rows, their targets, and how much each of them counts."""

    spikes: Tensor  # bool (T, N, inputs)
    y: Tensor  # (N,), int64 classes or float32 targets
    weights: Tensor  # (N,) float32

    def at(self, index: Tensor) -> EncodedRows:
        return EncodedRows(self.spikes[:, index], self.y[index], self.weights[index])

    def loss(self, outputs: Tensor) -> Tensor:
        """The mean of the rows' losses by their weights, for outputs (N, C)."""
        if self.y.is_floating_point():
            each = (outputs[:, 0] - self.y).square()
        else:
            each = F.cross_entropy(outputs, self.y, reduction="none")
        return (each * self.weights).sum() / self.weights.sum()


class TableNetwork(nn.Module):
    """A network of binary weights without readouts of its own, and the real one that reads it."""

    def __init__(self, inputs: int, outputs: int, plan: TrainingPlan, seed: int):
        super().__init__()
        sizes = [inputs, *plan.widths]
        layers = [Linear(n, m) for n, m in pairwise(sizes)]
        self.net = Network(
            *layers, readout=None, neuron=NEURON, gradient="bptt", init=INIT, seed=seed
        )
        self.weight = nn.Parameter(torch.zeros(outputs, sizes[-1]))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.samples = plan.samples if plan.rule == "bayes" else None
        self.seed = seed
        self.epochs = 0  # that it was trained for

    def rates(self, spikes: Tensor) -> Tensor:
        """Firing rates of the last layer, (B, N), from the step on at which the input can have
        reached it. Call it inside a realisation of the weights.
        """
        return self.net(spikes).spikes[-1][len(self.net.layers) :].mean(0)

    def read(self, rates: Tensor) -> Tensor:
        """Logits, or the target, (B, C)."""
        weight, bias = self.weight.to(rates.dtype), self.bias.to(rates.dtype)
        return F.linear(GAIN * (rates - QUIET), weight, bias)

    def realisations(self) -> Iterator[None]:
        """The parameters hold the weights of one sample of the posterior after the other; of a
        network without a posterior, their signs.
        """
        for k in range(self.samples or 1):
            with sample_weights(self.net, self.seed, k) if self.samples else map_weights(self.net):
                yield

    @torch.no_grad()
    def predict_rates(self, spikes: Tensor) -> Tensor:
        """Firing rates of every sample, (K, B, N) float64."""
        return torch.stack(
            [
                torch.cat([self.rates(some) for some in spikes.split(BATCH, 1)]).double()
                for _ in self.realisations()
            ]
        )

    @torch.no_grad()
    def predict(self, spikes: Tensor) -> Tensor:
        """Logits or targets of every sample, (K, B, C) float64."""
        return self.read(self.predict_rates(spikes))


def trained(
    train: EncodedRows,
    held_out: EncodedRows | None,
    outputs: int,
    plan: TrainingPlan,
    seed: int,
    verbose: int = 0,
) -> TableNetwork:
    """Train a network. With rows that are held out, it stops when their loss no longer falls, and
    the best epoch is kept.
    """
    network = TableNetwork(train.spikes.shape[2], outputs, plan, seed)
    rule = _rule(network, plan, len(train.y))
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(rule, plan.epochs)
    best, kept, waited = math.inf, None, 0
    for epoch in range(plan.epochs):
        for batch in _batches(len(train.y), plan.batch, seed, epoch):
            some = train.at(batch)
            with rule.sampled():
                seen = _with_dropout(network.rates(some.spikes), batch, epoch, plan, seed)
                penalty = plan.alpha / len(train.y) * network.weight.square().sum()
                (some.loss(network.read(seen)) + penalty).backward()
            rule.step()
        decay.step()
        network.epochs += 1
        if held_out is None:
            continue
        loss = float(held_out.loss(network.predict(held_out.spikes).mean(0)))
        if verbose > 1:
            print(f"epoch {epoch + 1}: held-out loss {loss:.4f}", flush=True)
        waited += 1
        if loss < best:
            best, waited = loss, 0
            kept = {name: value.clone() for name, value in network.state_dict().items()}
        if waited >= plan.patience:
            break
    if kept is not None:
        network.load_state_dict(kept)
    if verbose:
        found = "" if kept is None else f", best held-out loss {best:.4f}"
        print(f"network trained for {network.epochs} epochs{found}", flush=True)
    return network


def _rule(network: TableNetwork, plan: TrainingPlan, rows: int) -> Rule:
    """Of bits and readout; rho is of the sum over the rows, so that more data weigh more."""
    groups = [
        {"params": list(network.net.parameters())},
        {"params": [network.weight, network.bias], "binary": False, "lr": READOUT_LR},
    ]
    if plan.rule == "st":
        return STBiSNN(groups, lr=plan.lr, precondition="adam", clip=1.0)
    return BayesBiSNN(
        groups,
        lr=plan.lr,
        temperature=RHO / rows,
        precondition="adam",
        seed=network.seed,
        straight_through=HARD,
    )


def _batches(rows: int, size: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """The rows in another order each epoch, in batches of nearly the same size."""
    order = torch.from_numpy(philox.permutation(rows, seed, Purpose.SHUFFLING, epoch))
    yield from order.tensor_split(math.ceil(rows / size))


def _with_dropout(rates: Tensor, rows: Tensor, epoch: int, plan: TrainingPlan, seed: int) -> Tensor:
    if not plan.dropout:
        return rates
    drawn = philox.uniform(rows.numpy(), rates.shape[1], seed, Purpose.DROPOUT, epoch)
    kept = torch.from_numpy(drawn >= plan.dropout)
    return (rates - QUIET) * kept / (1 - plan.dropout) + QUIET
