"""A network: layers that read earlier ones, and fixed random +-1 readouts after them (DECOLLE)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from bisnn.alphabet import Levels, alphabet_of
from bisnn.checks import choice, flag, number, positive_int, seed_number
from bisnn.layer import Layer, LayerState, Readout, joined
from bisnn.layers import Conv2d, Linear, Recurrent
from bisnn.neuron import SRM, Neuron
from bisnn.realisation import is_spikes
from bisnn.spec import INPUT, LayerSpec, Shape

NetworkState = tuple[LayerState, ...]


class Output(NamedTuple):
    """What a network returns; one entry per layer."""

    spikes: tuple[Tensor, ...]  #: what leaves each layer, (T, B, ...)
    #: u of each layer's neurons, before pooling, (T, B, ...); none if they were not asked for
    potentials: tuple[Tensor, ...]
    #: linear readouts, (T, B, outputs); None where a layer has none
    readouts: tuple[Tensor | None, ...]
    state: NetworkState | None  #: for the next chunk of time, if one was passed in

    @property
    def logits(self) -> Tensor:
        """The last layer's readout, (T, B, outputs), from which predictions come."""
        last = self.readouts[-1]
        if last is None:
            raise ValueError(
                "logits: need a readout after the last layer; got a network without one; build it "
                "with readout=..., or use `spikes`"
            )
        return last


class Network(nn.Module):
    """Layers of SRM neurons, each reading earlier ones, with fixed random readouts.

    Args:
        *layers: `Linear`, `Conv2d`, `Recurrent`.
        readout: outputs of each readout (classes, or regression targets); None for a network
            without readouts, whose last layer's spikes are the output.
        neuron: of every layer that names none of its own.
        weights: "binary" or "ternary", a list of levels or an alphabet such as
            `bisnn.Levels(-3, -1, 1, 3)` (parameters are latents; call it inside a realisation), or
            "real" (full precision).
        posterior: whether the latents of an alphabet other than binary are the logits of a
            posterior over its levels, one per level, for BayesBiSNN; else they are one number per
            weight, for STBiSNN. Those of binary weights serve both.
        gradient: "local" (each layer learns from its own readout, nothing passes between layers or
            through time) or "bptt".
        readout_after: "every" layer (DECOLLE) or the "last" only.
        readout_gain: factor on the readouts' scale 1/sqrt(n).
        input_shape: axes of the input after (T, B); needed if the first layer is a Conv2d.
        init: binary latents start at +-init; logits with log-odds of 2 init for a random level,
            and other latents at one.
        seed: of initial weights and readouts, 0 to 2^32 - 1.
        weights_seed: of the initial weights where it is another one: networks that are to predict
            as one share their readouts.
        dtype: float32, or float64 for checks. Constants are computed in float64 and rounded once to
            it.

    >>> import bisnn
    >>> net = bisnn.Network(bisnn.Linear(20, 256), bisnn.Linear(256, 256), readout=2)
    >>> spikes = torch.zeros(100, 8, 20)  # (T, B, N)
    >>> with bisnn.map_weights(net):
    ...     net(spikes).readouts[-1].shape
    torch.Size([100, 8, 2])
    """

    def __init__(
        self,
        *layers: Layer,
        readout: int | None,
        neuron: Neuron | None = None,
        weights: str | Sequence[int] | Levels = "binary",
        posterior: bool = False,
        gradient: str = "local",
        readout_after: str = "every",
        readout_gain: float = 1.0,
        input_shape: Sequence[int] | None = None,
        init: float = 0.5,
        seed: int = 0,
        weights_seed: int | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        flag("posterior", posterior)
        choice("gradient", gradient, ("local", "bptt"))
        choice("readout_after", readout_after, ("every", "last"))
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"dtype: must be torch.float32 or torch.float64; got {dtype}; leave it out for "
                "float32"
            )
        if neuron is not None and not isinstance(neuron, Neuron):
            raise ValueError(
                "neuron: must be a bisnn.SRM, a bisnn.FixedSRM or another bisnn.neuron.Neuron; got "
                f"{neuron!r}; leave it out for the usual one"
            )
        number("init", init, least=0)
        number("readout_gain", readout_gain, above=0)
        reads_last_alone = readout is not None and readout_after == "last" and len(layers) > 1
        if gradient == "local" and reads_last_alone:
            raise ValueError(
                "readout_after: local learning needs a readout after every layer, or the layers "
                'below the last never learn; got "last"; use "every", or gradient="bptt"'
            )
        self.alphabet, self.gradient = alphabet_of(weights), gradient
        self.input_shape = _input_shape(layers, input_shape)
        first = seed_number(seed if weights_seed is None else weights_seed)
        seed_number(seed)
        self.layers: Sequence[Layer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.readouts = nn.ModuleList()
        shapes: list[Shape] = []
        for i, layer in enumerate(layers):
            spec = layer.plan(i, [*shapes, self.input_shape], neuron or SRM(), self.alphabet)
            layer.build(spec, posterior, init, first, i, dtype)
            shapes.append(spec.output_shape)
            if readout is None or (readout_after == "last" and i < len(layers) - 1):
                self.readouts.append(nn.Identity())  # stands for none
            else:
                n, outputs = math.prod(spec.output_shape), positive_int("readout", readout)
                self.readouts.append(Readout(n, outputs, readout_gain, seed, i, dtype))

    def forward(
        self,
        x: Tensor,
        state: NetworkState | None = None,
        *,
        weights: Sequence[Tensor] | None = None,
        seen: Sequence[Tensor] | None = None,
        potentials: bool = True,
    ) -> Output:
        """Run the network over a batch of recordings, or over a chunk of time of one.

        With a state a recording can come in chunks, down to single time steps: with hard weights
        and spikes the same bits forward as in one piece (else the same to rounding), and in
        local mode the same gradient. Runs in the network's own precision, also under autocast:
        currents must stay exact.

        Args:
            x: the input, `(T, B, *input_shape)`, floating or 0/1 as bool or uint8.
            state: from `initial_state`, then from the previous output.
            weights: one tensor per layer, which stand in for the parameters.
            seen: one tensor (B, n) per layer, whose readout sees the spikes times these factors:
                dropout.
            potentials: return them. Without, an NVIDIA GPU keeps them in half precision for the
                backward pass, half as much memory, where PyTorch may round products (TF32).
        """
        spikes = is_spikes(x)
        x = self.checked(x, state)
        shapes = [spec.weight_shape for spec in self.spec]
        got = shapes if weights is None else [tuple(w.shape) for w in weights]
        if got != shapes:
            raise ValueError(
                f"weights: must have the layers' shapes {shapes}; got {got}; give one per layer"
            )
        with torch.autocast(x.device.type, enabled=False):
            return self._forward(x, state, weights, spikes, seen, potentials)

    def _forward(
        self,
        x: Tensor,
        state: NetworkState | None,
        weights: Sequence[Tensor] | None,
        binary: bool,
        seen: Sequence[Tensor] | None,
        with_potentials: bool,
    ) -> Output:
        bptt = self.gradient == "bptt"
        spikes: list[Tensor] = []
        potentials, readouts, states = [], [], []
        for i, (layer, readout) in enumerate(zip(self.layers, self.readouts, strict=True)):
            before = None if state is None else state[i]
            weight = None if weights is None else weights[i]
            reading = readout if isinstance(readout, Readout) else None
            exact = binary or INPUT not in layer.spec.inputs  # layers give spikes
            fused = reading if seen is None else None
            inputs = self.read(i, x, spikes)
            s, u, y, after = layer(inputs, before, bptt, weight, exact, fused, with_potentials)
            if seen is not None and reading is not None:
                y = reading(s.flatten(2) * seen[i])
            spikes.append(s)
            potentials += [u] if with_potentials else []
            readouts.append(y)
            states.append(after)
        after = None if state is None else tuple(states)
        return Output(tuple(spikes), tuple(potentials), tuple(readouts), after)

    if TYPE_CHECKING:
        __call__ = forward  # whose types torch's own, of any module, does not know

    def read(self, number: int, x: Tensor, spikes: Sequence[Tensor]) -> Tensor:
        """What layer `number` reads of the network's input `x` and of `spikes`, those that have
        left the layers before it.
        """
        spec, everything = self.layers[number].spec, [*spikes[:number], x]  # INPUT is the last
        return joined(spec.kind, [everything[n] for n in spec.inputs])

    @property
    def spec(self) -> tuple[LayerSpec, ...]:
        """The description of the layers."""
        return tuple(layer.spec for layer in self.layers)

    def initial_state(self, batch_size: int) -> NetworkState:
        """The state of `batch_size` recordings before the first time step: all zero."""
        return tuple(
            layer.initial_state(positive_int("batch_size", batch_size)) for layer in self.layers
        )

    def extra_repr(self) -> str:
        weights, neuron = self.alphabet or "real", self.layers[0].neuron
        return f"weights={weights}, gradient={self.gradient}, neuron={neuron}"

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights and constants: float32 or float64."""
        return self.layers[0].kappa.dtype

    def checked(self, x: Tensor, state: NetworkState | None = None) -> Tensor:
        """The input `x` in the network's dtype, or a ValueError that says what is wrong with it or
        with the `state`.
        """
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                "net: must be float32 or float64, or its currents are not exact; got "
                f"{self.dtype}; use net.float()"
            )
        axes = "(T, B, " + ", ".join(map(str, self.input_shape)) + ")"
        if not isinstance(x, Tensor) or tuple(x.shape[2:]) != self.input_shape or x.ndim < 2:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"x: must be a tensor {axes}; got {got}; time comes first, then the batch"
            )
        if x.shape[0] == 0 or x.shape[1] == 0:
            raise ValueError(
                "x: needs at least one time step and one recording, T >= 1 and B >= 1; got shape "
                f"{tuple(x.shape)}"
            )
        if x.dtype in (torch.bool, torch.uint8):
            x = x.view(torch.uint8).to(self.dtype)  # from bool it would take ten times as long
        if x.dtype != self.dtype:
            raise ValueError(
                f"x: must have the network's dtype {self.dtype}, or be bool or uint8; got "
                f"{x.dtype}; use x.to({self.dtype})"
            )
        if state is not None:
            wanted = [shape for layer in self.layers for shape in layer.state_shapes(x.shape[1])]
            ours = all(isinstance(z, LayerState) for z in state)
            if not ours or [tuple(z.shape) for z in chain(*chain(*state))] != wanted:
                raise ValueError(
                    f"state: must come from this network and this batch of {x.shape[1]} "
                    "recordings; got another; start from net.initial_state(B)"
                )
        return x


def check_network(net: object) -> None:
    """A ValueError if this is no network of ours, whose layers and readouts could be asked for."""
    if not isinstance(net, Network):
        raise ValueError(
            f"net: must be a bisnn.Network; got a {type(net).__name__}; for a module of your own "
            "give the rule that trains it: predict(module, x, rule=rule)"
        )


def pad(recordings: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A batch from recordings of different length: x (T, B, ...), zero-padded, and the mask (T, B),
    True where it is real.

    Args:
        recordings: one tensor (T, ...) each, of any length T.

    Pass the mask on to the loss and to `predict`: the network is causal, so padding behind a
    recording's end changes nothing before it.

    >>> x, mask = pad([torch.ones(3, 5), torch.ones(2, 5)])
    >>> x.shape, mask.int().tolist()
    (torch.Size([3, 2, 5]), [[1, 1], [1, 1], [1, 0]])
    """
    if not recordings or any(len(r) == 0 for r in recordings):
        raise ValueError(
            "recordings: needs at least one, each with T >= 1; got lengths "
            f"{[len(r) for r in recordings]}; drop empty ones"
        )
    shapes = {tuple(r.shape[1:]) for r in recordings}
    if len(shapes) > 1:
        raise ValueError(
            f"recordings: must agree in all axes but the first, time; got {sorted(shapes)}; crop "
            "or reshape them"
        )
    lengths = torch.tensor([len(r) for r in recordings], device=recordings[0].device)
    mask = torch.arange(int(lengths.max()), device=lengths.device)[:, None] < lengths
    return nn.utils.rnn.pad_sequence(list(recordings)), mask


def _input_shape(layers: Sequence[Layer], input_shape: Sequence[int] | None) -> tuple[int, ...]:
    if not layers or not all(isinstance(layer, Layer) for layer in layers):
        raise ValueError(
            "layers: must be one or more of Linear, Conv2d, Recurrent; got "
            f"{[type(x).__name__ for x in layers]}"
        )
    if input_shape is not None:
        if not isinstance(input_shape, Sequence):
            raise ValueError(
                f"input_shape: must be the sizes of the axes after (T, B); got {input_shape!r}; "
                "give e.g. (2, 26, 26)"
            )
        return tuple(positive_int("input_shape", n) for n in input_shape)
    first = layers[0]
    if isinstance(first, (Linear, Recurrent)):
        return (first.n_in,)
    assert isinstance(first, Conv2d)
    raise ValueError(
        f"input_shape: needed because the first layer is a Conv2d, as ({first.channels_in}, H, W); "
        "got None"
    )
