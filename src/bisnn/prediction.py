"""Predictors: the MAP weights, or an ensemble of members drawn from the posterior, and how sure
they are.

The predicted distribution is the mean, over time after the burn-in and over the members, of the
softmax of the last readout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from scipy import optimize
from torch import Tensor, nn

from bisnn import ensemble, kernels, realisation, weights
from bisnn.alphabet import Levels
from bisnn.bits.philox import Purpose
from bisnn.checks import choice, finite, number, positive_int, seed_number
from bisnn.kernels import draws, reference
from bisnn.layer import Readout
from bisnn.losses import time_weights
from bisnn.modules import module_logits
from bisnn.network import Network, check_network
from bisnn.optimizer import Rule

# For each member one tensor per layer, its weights: int8, or real of a full-precision network
Members = Sequence[Sequence[Tensor]]
TEMPERATURES = (0.1, 10.0)  # the lowest and the highest that are fitted


@dataclass(frozen=True)
class Dropout:
    """Members by dropout: one set of weights, and each member's last readout does not see a share
    of the neurons, the same ones for every recording.

    They share all layers: any number of them takes about as long as one.
    """

    members: int  #: how many of them
    rate: float  #: share of the neurons, in (0, 1); that of the training

    def __post_init__(self) -> None:
        positive_int("members", self.members)
        number("rate", self.rate, above=0)
        if self.rate >= 1:
            raise ValueError(f"rate: must be below 1; got {self.rate!r}; give e.g. 0.2")


@dataclass(frozen=True)
class Classification:
    """Class probabilities; "..." is (B,), or (T, B) for every time step. Entropies in nats."""

    mean: Tensor  #: (..., C) the ensemble's distribution
    members: Tensor  #: (K, ..., C) each member's
    entropy: Tensor  #: (...) of the mean: the whole uncertainty
    expected_entropy: Tensor  #: (...) mean entropy of the members: what more data would not remove
    #: (...) the difference, >= 0: disagreement of the members, what more data would remove
    mutual_information: Tensor

    @classmethod
    def of(cls, members: Tensor) -> Classification:
        """From the distributions of `members`, (K, ..., C)."""
        mean = members.mean(0)
        entropy, expected = _entropy(mean), _entropy(members).mean(0)
        return cls(mean, members, entropy, expected, (entropy - expected).clamp(min=0))


@dataclass(frozen=True)
class Regression:
    """Real outputs. Leading axes "...": (B,), or (T, B) if asked for every time step."""

    mean: Tensor  #: (..., C)
    members: Tensor  #: (K, ..., C)
    #: (..., C) standard deviation over the members (divided by K), on the same input spikes
    std: Tensor

    @classmethod
    def of(cls, members: Tensor) -> Regression:
        """From the outputs of `members`, (K, ..., C)."""
        return cls(members.mean(0), members, members.std(0, correction=0))


@overload
def predict(
    net: Network | nn.Module,
    x: Tensor,
    samples: int | Members | Dropout | None = None,
    *,
    rule: Rule | None = None,
    task: Literal["classification"] = "classification",
    over_time: str = "mean",
    burn_in: int = 0,
    mask: Tensor | None = None,
    seed: int = 0,
) -> Classification: ...


@overload
def predict(
    net: Network | nn.Module,
    x: Tensor,
    samples: int | Members | Dropout | None = None,
    *,
    rule: Rule | None = None,
    task: Literal["regression"],
    over_time: str = "mean",
    burn_in: int = 0,
    mask: Tensor | None = None,
    seed: int = 0,
) -> Regression: ...


@torch.no_grad()
def predict(
    net: Network | nn.Module,
    x: Tensor,
    samples: int | Members | Dropout | None = None,
    *,
    rule: Rule | None = None,
    task: str = "classification",
    over_time: str = "mean",
    burn_in: int = 0,
    mask: Tensor | None = None,
    seed: int = 0,
) -> Classification | Regression:
    """Predict from recordings x, (T, B, ...).

    On a GPU members run side by side where the network allows it, in groups of at most
    `ensemble.GROUP_BYTES`; with x as bool nothing waits for the GPU.

    Args:
        net: a network with a readout after its last layer, or, with `rule`, any module that returns
            logits, (B, C) or (T, B, C). Its parameters are left as they are.
        x: input, finite; of another module whatever it takes.
        samples: None for one prediction with the MAP weights, for binary ones sign(w^r) (or a
            full-precision network's own), K for so many members drawn from the posterior, for
            binary weights Bern(sigma(2 w^r)), or the members, as `weights.draw_members` gives them:
            to draw once for many calls; they may as well be networks trained one by one. A
            `Dropout` for members that differ in what their readout sees.
        rule: that which trains a module that is not a `Network`; see `bisnn.binarise`.
        task: "classification" (softmax of the readout) or "regression" (the readout itself).
        over_time: "mean" over the time steps that count; "running", that mean up to each time step;
            "step", each by itself.
        burn_in: number of first time steps that do not count ("running" and "step" then return the
            T - burn_in others).
        mask: (T, B), True where a recording is real; see `bisnn.pad`.
        seed: of the members, 0 to 2^32 - 1; the same members on every device.

    >>> import bisnn
    >>> net = bisnn.Network(bisnn.Linear(20, 64), readout=2)
    >>> x = torch.zeros(10, 3, 20)
    >>> result = bisnn.predict(net, x, samples=5)
    >>> result.members.shape, result.mean.tolist()  # (K, B, C); no input, no spikes: no opinion
    (torch.Size([5, 3, 2]), [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    """
    if rule is None:
        y = logits(net, x, samples, seed=seed)  # type: ignore[arg-type]
    else:
        y = module_logits(net, x, rule.realisations(_count(samples), seed))
    return of_logits(y, task=task, over_time=over_time, burn_in=burn_in, mask=mask)


def of_logits(
    y: Tensor,
    *,
    task: str = "classification",
    over_time: str = "mean",
    burn_in: int = 0,
    mask: Tensor | None = None,
) -> Classification | Regression:
    """What members with the logits y (K, T, B, C) predict; the other arguments as in `predict`."""
    choice("task", task, ("classification", "regression"))
    choice("over_time", over_time, ("mean", "running", "step"))
    if task == "classification":
        # Several times faster so, for few classes
        y = y.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1)
    each = _over_time(y, over_time, burn_in, mask)
    return Regression.of(each) if task == "regression" else Classification.of(each)


def tempered(members: Tensor, temperature: float) -> Tensor:
    """Distributions (..., C) made softer, by a temperature above 1, or sharper: p^(1/temperature),
    normalised. 1 changes nothing, and no temperature changes which class is the most probable.

    >>> tempered(torch.tensor([0.8, 0.2]), 0.5).tolist()
    [0.9411764740943909, 0.05882352963089943]
    """
    return members if temperature == 1 else (members.log() / temperature).softmax(-1)


def fit_temperature(members: Tensor, labels: Tensor) -> float:
    """The temperature at which the mean of the members' distributions, (K, N, C), has the lowest
    NLL on these labels (N,): temperature scaling (Guo et al. 2017), of every member alike.

    The recordings must not have been trained on, nor may a conformal quantile use them. It lies in
    `TEMPERATURES`, which bound it where all answers are right, or none is better than a guess.
    """
    log_p = members.double().clamp(min=1e-30).log()
    rows = torch.arange(len(labels), device=members.device)

    def nll(log_t: float) -> float:
        p = (log_p * math.exp(-log_t)).softmax(-1).mean(0)
        return float(-p[rows, labels.to(rows.device)].log().mean())

    bounds = [math.log(t) for t in TEMPERATURES]
    return math.exp(optimize.minimize_scalar(nll, bounds=bounds, method="bounded").x)


def _count(samples: int | Members | Dropout | None) -> int | None:
    if isinstance(samples, (Sequence, Dropout)):
        raise ValueError(
            "samples: of a module other than a bisnn.Network, the number of members; got "
            f"a {type(samples).__name__}; "
            "load the state_dicts of rule.members(net, K) instead"
        )
    return samples


@torch.no_grad()
def logits(
    net: Network, x: Tensor, samples: int | Members | Dropout | None = None, *, seed: int = 0
) -> Tensor:
    """The last readout of every member at every time step, (K, T, B, C); arguments as in `predict`.

    It is `scale` times an integer, V s, whatever the weights; with dropout, over 1 - rate.
    """
    _check(net, samples)
    spikes = realisation.is_spikes(x)
    x = net.checked(x)
    if not spikes:
        finite("x", x)
    if isinstance(samples, Dropout):
        return _dropout_logits(net, x.bool() if spikes else x, samples, seed)
    if net.alphabet is None:
        own = [[layer.weight for layer in net.layers]]
        members = samples if isinstance(samples, Sequence) else own
        return torch.stack([net(x, weights=member).logits for member in members])
    return _logits(net, x, _drawn(net, samples, seed), spikes)


def _dropout_logits(net: Network, x: Tensor, dropout: Dropout, seed: int) -> Tensor:
    """One pass, and the last readout through every member's mask, (K, T, B, C)."""
    hard = net.alphabet is not None
    weights = [realisation.map_weight(w) if hard else w for w in net.parameters()]
    s, readout = net(x, weights=weights).spikes[-1].flatten(2), net.readouts[-1]  # (T, B, n)
    assert isinstance(readout, Readout)
    members = torch.arange(dropout.members, device=s.device)
    drawn = draws.uniform(members, s.shape[2], seed_number(seed), Purpose.DROPOUT_MEMBERS)
    kept = (drawn >= dropout.rate).to(s.dtype)[:, None] * readout.V  # (K, C, n)
    y = reference.readout(s, kept.flatten(0, 1), readout.scale) / (1 - dropout.rate)
    return y.unflatten(2, (dropout.members, -1)).movedim(2, 0)


def _check(net: Network, samples: int | Members | Dropout | None) -> None:
    """A ValueError or RuntimeError that says why this network cannot predict so."""
    check_network(net)
    if not isinstance(net.readouts[-1], Readout):
        raise ValueError(
            "net: predict needs a readout after the last layer; got readout=None; give the "
            "network one"
        )
    if samples is not None and not isinstance(samples, Dropout):
        given = isinstance(samples, Sequence)
        count = len(samples) if isinstance(samples, Sequence) else positive_int("samples", samples)
        if net.alphabet is None and not given:
            raise ValueError(
                f"samples: a full-precision network has no posterior to draw from; got {count} of "
                "them; leave it out"
            )
        if isinstance(samples, Sequence):
            _check_members(net, samples)
    if any(realisation.is_realised(p) for p in net.parameters()):
        raise RuntimeError(
            "predict(): the parameters hold a realisation w and not the latents w^r; call it "
            "outside the block"
        )


def _check_members(net: Network, members: Members) -> None:
    shapes = [layer.spec.weight_shape for layer in net.layers]
    dtype, article = (net.dtype, "a") if net.alphabet is None else (torch.int8, "an")
    for k, member in enumerate(members or [()]):
        layers = member if isinstance(member, Sequence) else ()
        drawn = [w for w in layers if isinstance(w, Tensor) and w.dtype == dtype]
        if [tuple(w.shape) for w in drawn] != shapes:
            raise ValueError(
                f"samples: members need {article} {str(dtype).removeprefix('torch.')} tensor for "
                f"every layer, {', '.join(str(tuple(n)) for n in shapes)}; number {k} has others; "
                "take them from weights.draw_members, or say how many"
            )
    if net.alphabet is None:
        return
    alphabet = net.alphabet
    foreign = torch.stack([_has_others(w, alphabet) for w in _stacked(members)]).any(0)  # (K,)
    if foreign.any():
        raise ValueError(
            f"samples: weights of members must be levels, {alphabet.levels}; number "
            f"{int(foreign.nonzero()[0])} has others; take them from weights.draw_members, or say "
            "how many"
        )


def _has_others(w: Tensor, alphabet: Levels) -> Tensor:
    """Whether the weights (K, ...) of a member are not all levels, (K,)."""
    levels = weights.level_tensor(alphabet, w.dtype, w.device)
    return ~torch.isin(w, levels).flatten(1).all(1)


def _stacked(members: Members) -> list[Tensor]:
    """The members' weights layer by layer, (K, ...)."""
    return [torch.stack(layer) for layer in zip(*members, strict=True)]


def _drawn(net: Network, samples: int | Members | None, seed: int) -> list[Tensor]:
    """The weights of all members, layer by layer, int8 (K, ...), on the network's device."""
    latents = [layer.weight for layer in net.layers]
    if samples is None:
        return [realisation.map_weight(w_r).to(torch.int8)[None] for w_r in latents]
    if isinstance(samples, Sequence):
        return [w.to(latents[0].device) for w in _stacked(samples)]
    return weights.draw_weights(latents, samples, seed)


def _logits(net: Network, x: Tensor, drawn: Sequence[Tensor], spikes: bool) -> Tensor:
    """Of each member, (K, T, B, C)."""
    kernel = kernels.name_for(x.device, x.dtype) if spikes else None
    if kernel == "cpu" and all(type(layer.neuron).compiled is not None for layer in net.layers):
        return _packed_logits(net, x, drawn)
    if kernel == "cuda" and ensemble.is_chain(net):
        return ensemble.logits(net, x, drawn)
    seen = x.bool() if spikes else x  # bits need no second look
    members = zip(*drawn, strict=True)
    hard = ([realisation.hard(w.to(x.dtype)) for w in member] for member in members)
    return torch.stack([net(seen, weights=member).logits for member in hard])


def _packed_logits(net: Network, x: Tensor, drawn: Sequence[Tensor]) -> Tensor:
    """All members on packed bits: the network's own bits, without its potentials."""
    from bisnn import packing  # numba takes a while to load
    from bisnn.packed.engine import Engine

    described = packing.describe(net, list(zip(*drawn, strict=True)))
    # For one run a table does not pay
    engine = Engine(described, torch.get_num_threads(), sparse=False)
    logits = engine.run(x.bool().numpy()).logits
    assert logits is not None
    return torch.from_numpy(logits)


def _over_time(y: Tensor, over_time: str, burn_in: int, mask: Tensor | None) -> Tensor:
    """(K, T, B, C) -> (K, B, C), or (K, T - burn_in, B, C) for one prediction a time step."""
    T, B = y.shape[1:3]
    count = time_weights(T, B, burn_in, mask, y)[burn_in:, :, None]  # (T', B, 1)
    if mask is not None:
        _check_mask(count, burn_in)
    y = y[:, burn_in:]
    if over_time == "step":
        return y
    if over_time == "running":
        # NaN before a recording's first time step that counts
        return (y * count).cumsum(1) / count.cumsum(0)
    return (y * count).sum(1) / count.sum(0)


def _check_mask(count: Tensor, burn_in: int) -> None:
    empty = (count.sum(0) == 0).flatten().nonzero()
    if len(empty):
        raise ValueError(
            "mask: every recording needs a time step that counts; got none for recording "
            f"{int(empty[0])} after burn_in={burn_in}; drop it or lower burn_in"
        )


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)
