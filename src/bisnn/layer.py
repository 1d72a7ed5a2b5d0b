"""What all layers have in common: the latent weights, the neuron's constants, state in and out.

A layer first computes the currents of all time steps, I = W s, as one product with time folded into
the batch, and then runs one scan over time. A layer is a description until a `Network` builds it:
only then has it weights and constants.

Axes: T time, B batch, N neurons, C channels, H W image. No layer has a bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bisnn.alphabet import BINARY, Levels
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.kernels import fixed, halves_potentials, reference
from bisnn.kernels.fixed import with_gradient_of
from bisnn.kernels.scan import spike
from bisnn.neuron import Neuron
from bisnn.realisation import hard, is_hard, is_marked_hard, is_realised, pinned
from bisnn.spec import LayerSpec, Shape, read_from, side_by_side
from bisnn.weights import Categorical, Signs, latents_for, mark_latents, sign

Inputs = Sequence[int | Literal["input"]] | None


class LayerState(NamedTuple):
    """What a layer carries from one chunk of time to the next; it holds for the coming step."""

    traces: tuple[Tensor, ...]  #: of the neurons, as `Neuron.traces` names them, (B, ...)
    #: X_m and X_s, the slow and the fast trace of the layer's input, (B, ...): they keep the local
    #: gradient of the next chunk exact. None for neurons without compiled kernels, whose local
    #: gradient is cut where a chunk begins.
    inputs: tuple[Tensor, ...]

    def detach(self) -> LayerState:
        """The same values cut from the graph: chunks then make truncated BPTT."""
        return LayerState(*(tuple(x.detach() for x in part) for part in self))


class LayerOutput(NamedTuple):
    """What a layer returns."""

    spikes: Tensor  #: what leaves the layer, (T, B, ...)
    potentials: Tensor | None  #: u of every neuron, before pooling, (T, B, ...), if asked for
    readout: Tensor | None  #: (T, B, outputs), where there is one
    state: LayerState | None  #: for the next chunk of time, if one was passed in


def joined(kind: str, inputs: Sequence[Tensor]) -> Tensor:
    """Spikes of several layers, (T, B, ...) each, side by side as `spec.side_by_side` says."""
    if len(inputs) == 1:
        return inputs[0]
    return torch.cat(list(inputs) if kind == "conv" else [s.flatten(2) for s in inputs], 2)


class Readout(nn.Module):
    """y = gain/sqrt(n) V s with fixed random V in {-1, +1}: spikes to logits or real outputs."""

    V: Tensor  # (outputs, n)
    scale: Tensor  # gain/sqrt(n), ()

    def __init__(
        self, n: int, outputs: int, gain: float, seed: int, number: int, dtype: torch.dtype
    ):
        super().__init__()
        V = sign(_normal((outputs, n), seed, Purpose.READOUTS, number))
        self.register_buffer("V", V.to(dtype))
        self.register_buffer(
            "scale", torch.tensor(gain / math.sqrt(n), dtype=torch.float64).to(dtype)
        )

    def forward(self, s: Tensor) -> Tensor:
        """(T, B, ...) -> (T, B, outputs): an exact integer where s is 0 or 1, times `scale`."""
        return reference.readout(s, self.V, self.scale)

    def channels_last(self, shape: Shape) -> Tensor:
        """V for images (C, H, W) whose channels come last in memory."""
        return self.V.unflatten(1, shape).movedim(1, -1).flatten(1)

    def extra_repr(self) -> str:
        return f"{self.V.shape[1]}, {self.V.shape[0]}, scale={float(self.scale):.4g}"


def _normal(shape: tuple[int, ...], seed: int, purpose: Purpose, stream: int) -> Tensor:
    """Standard normal numbers, float64, keyed by what they are for."""
    u = (philox.words(math.prod(shape), seed, purpose, stream) + 0.5) * 2.0**-32
    return torch.special.ndtri(torch.from_numpy(u)).reshape(shape)


class Layer(nn.Module):
    """Common part of all layers: the latent weights, the neuron's constants, the way from input to
    spikes.

    Subclasses say what they are for the shape that comes in (`settings`), and what the product W s
    is.

    Args:
        inputs: the layers whose spikes it reads; None for the one before it.
        neuron: this layer's own; None for the network's.
    """

    kind: str  # as in `LayerSpec`
    spec: LayerSpec  # from the moment a network builds it
    weight: nn.Parameter  # latents, or real weights; inside a realisation, what stands for w
    latents: Signs  # what the latents are
    kappa: Tensor  # 1/sqrt(|P_i|) over the size of the levels, () or (N,)
    constants: Tensor  # of the neuron: (a_m, a_s, a_r, theta)
    integers: Tensor | None  # of a neuron that computes in them, see `FixedSRM.integers`

    def __init__(self, inputs: Inputs, neuron: Neuron | None):
        super().__init__()
        self.own_inputs, self.own_neuron = inputs, neuron

    # What a subclass provides

    def settings(self, shape: Shape) -> dict[str, Any]:
        """Fields of the `LayerSpec` for inputs of this `shape`, or a ValueError."""
        raise NotImplementedError

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """W s for inputs with any leading axes: `(..., *input_shape)` -> `(..., *current_shape)`.

        Args:
            x: the inputs.
            weight: the weights, of the shape of the parameter.
        """
        raise NotImplementedError

    # Construction

    def plan(
        self, number: int, shapes: Sequence[Shape], neuron: Neuron, alphabet: Levels | None
    ) -> LayerSpec:
        """The description of this layer as a network's layer `number`.

        Args:
            number: its place, from 0.
            shapes: what leaves the earlier layers, and last, where INPUT finds it, the shape of the
                network's input.
            neuron: the network's, for a layer that has none of its own.
            alphabet: that the weights are from; None for real ones.
        """
        inputs = read_from(self.own_inputs, number)
        parts = tuple(shapes[n] for n in inputs)
        settings = self.settings(side_by_side(self.kind, parts))
        settings |= {"neuron": self.own_neuron or neuron, "alphabet": alphabet}
        spec = LayerSpec(kind=self.kind, inputs=inputs, parts=parts, **settings)
        spec.check()
        return spec

    def build(
        self,
        spec: LayerSpec,
        posterior: bool,
        init: float,
        seed: int,
        number: int,
        dtype: torch.dtype,
    ) -> None:
        """Make weights and constants; called once, by the network, of which this is layer `number`.

        Real weights are N(0, 1); how latents begin, `weights` says.

        Args:
            spec: the layer's description, from `plan`.
            posterior: whether latents are logits, one per level.
            init: where latents begin.
            seed: of the initial weights.
            number: the layer's place, from 0.
            dtype: of weights and constants.
        """
        if self.is_built:
            raise ValueError(
                f"layers: each layer object belongs to one network, once; got {self} a second time"
            )
        self.spec, self.latents = spec, latents_for(spec.alphabet or BINARY, posterior)
        w = _normal(spec.weight_shape, seed, Purpose.WEIGHTS, number)
        w = self.latents.initial(w, init) if self.has_latents else w
        self.weight = nn.Parameter(w.to(dtype))
        mark_latents(self.weight, self.latents)
        self.register_buffer("kappa", torch.from_numpy(spec.kappa).to(dtype))
        constants = torch.from_numpy(spec.neuron.constants(np.float64))
        self.register_buffer("constants", constants.to(dtype))
        whole = spec.integers
        if whole is not None and spec.alphabet is None:
            raise ValueError(
                f"neuron: {type(self.neuron).__name__} takes hard weights; got a network of real "
                'weights; use weights="binary", or SRM'
            )
        integers = None if whole is None else torch.from_numpy(whole)
        self.register_buffer("integers", integers, persistent=False)

    @property
    def is_built(self) -> bool:
        """Whether it is part of a network, and so has weights."""
        return "spec" in self.__dict__

    @property
    def has_latents(self) -> bool:
        """Whether weights come from an alphabet, and are not real numbers."""
        return self.is_built and self.spec.alphabet is not None

    @property
    def input_shape(self) -> Shape:
        """Of what it reads, side by side."""
        return self.spec.input_shape

    @property
    def current_shape(self) -> Shape:
        """Of the neurons: the axes after (T, B) of currents and potentials."""
        return self.spec.current_shape

    @property
    def output_shape(self) -> Shape:
        """Of what leaves the layer."""
        return self.spec.output_shape

    @property
    def neuron(self) -> Neuron:
        """The neuron of this layer: its own, or the network's."""
        return self.spec.neuron

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        """Shapes of a state's traces and inputs, for `batch_size` recordings."""
        inputs = 2 if self.neuron.fused else 0
        traces = [(batch_size, *self.current_shape)] * len(self.neuron.traces)
        return traces + [(batch_size, *self._trace_shape())] * inputs

    def initial_state(self, batch_size: int) -> LayerState:
        """The state of `batch_size` recordings before the first time step: all zero."""
        inputs = self.state_shapes(batch_size)[len(self.neuron.traces) :]
        zeros = tuple(self.kappa.new_zeros(shape) for shape in inputs)
        return LayerState(self._at_rest(batch_size), zeros)

    def _at_rest(self, batch_size: int) -> tuple[Tensor, ...]:
        dtype = self.kappa.dtype if self.integers is None else torch.float64  # see `kernels.fixed`
        zero = self.kappa.new_zeros((batch_size, *self.current_shape), dtype=dtype)
        return (zero,) * len(self.neuron.traces)

    def _trace_shape(self) -> Shape:
        return self.input_shape

    # The way of the data

    def forward(
        self,
        x: Tensor,
        state: LayerState | None = None,
        bptt: bool = False,
        weight: Tensor | None = None,
        spikes: bool = False,
        readout: Readout | None = None,
        potentials: bool = True,
    ) -> LayerOutput:
        """Spikes and potentials of all time steps.

        Args:
            x: what the layer reads, `(T, B, *input_shape)`.
            state: that of the chunk before, or of `initial_state`; None for a whole recording.
            bptt: let gradients travel to the layer below, through the refractory feedback and
                through the state; else (local learning) they reach this layer's weights only,
                through eq. (der-general).
            weight: stands in for the parameter.
            spikes: promises that x is 0 or 1 everywhere.
            readout: reads what leaves the layer.
            potentials: return them; see `Network.forward`.
        """
        if weight is None:
            weight = self.realised()
        if not bptt:
            x = x.detach()
        if self.integers is not None:
            check_whole(bool(self._levels(weight)), spikes)
        half = not potentials and halves_potentials(x, self.kind == "conv", self.neuron)
        output = self._run(x, weight, state, bptt, spikes, readout, half)
        return output if potentials else output._replace(potentials=None)

    def _run(
        self,
        x: Tensor,
        weight: Tensor,
        state: LayerState | None,
        bptt: bool,
        spikes: bool,
        readout: Readout | None,
        half: bool,
    ) -> LayerOutput:
        """The whole layer as one operation; `Recurrent` has its own way."""
        raise NotImplementedError

    def realised(self) -> Tensor:
        """The weights w of the present realisation, or real ones, with the parameter's gradient."""
        if not self.is_built:
            raise RuntimeError(
                "a layer has weights only as part of a network: bisnn.Network(layer, ...) builds it"
            )
        if self.has_latents and not is_realised(self.weight):
            raise RuntimeError(
                f"a network of {'binary' if self.spec.alphabet == BINARY else 'discrete'} weights "
                "was called while its parameters hold the latents w^r: to train, call it inside "
                "`with rule.sampled():`; to infer, use `bisnn.predict(net, x)` or `with "
                'bisnn.map_weights(net):`; for real weights declare Network(..., weights="real")'
            )
        if not isinstance(self.latents, Categorical):
            return self.weight
        w = self.latents.read(pinned(self.weight))
        return hard(w) if is_marked_hard(self.weight) else w

    def _levels(self, weight: Tensor) -> list[int]:
        """The levels, where all weights are known to be among them; else none."""
        alphabet = self.spec.alphabet or BINARY
        return list(alphabet.levels) if is_hard(weight, alphabet) else []

    def _before(
        self, x: Tensor, weight: Tensor, state: LayerState | None, bptt: bool
    ) -> tuple[Tensor, ...]:
        """The neurons' traces before the first time step."""
        if state is None:
            return self._at_rest(x.shape[1])
        if bptt or not state.inputs or not (weight.requires_grad and torch.is_grad_enabled()):
            return state.traces
        # P is W X_m: its value is carried (same bits), its gradient is taken at the carried input
        # trace.
        (P, Q, R), (X_m, X_s) = state
        P = with_gradient_of(P, self.product(X_m, weight))
        Q = with_gradient_of(Q, self.product(X_s, weight))
        return P, Q, R

    def _next_state(
        self, x: Tensor, state: LayerState | None, after: tuple[Tensor, ...], bptt: bool
    ) -> LayerState | None:
        if state is None:
            return None
        if bptt:  # gradients reach earlier chunks through the traces themselves
            return LayerState(after, state.inputs)
        steps = torch.arange(len(x), 0, -1, device=x.device, dtype=x.dtype)
        # X' = a^T X + sum_t a^(T-t) x_t
        inputs = tuple(
            a ** len(x) * trace + torch.tensordot(a**steps, x, dims=1)
            for a, trace in zip(self.constants, state.inputs, strict=False)
        )
        return LayerState(after, inputs).detach()

    # One time step by the neuron's own definition, for cycles and for neurons without kernels

    def _fire(self, traces: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Potentials and spikes."""
        settings = (self.constants[-1], self.neuron.surrogate, self.neuron.slope)
        if self.integers is None:
            u = self.neuron.potential(traces, self.kappa, self.constants)
            return u, spike(u, *settings)
        u, fires = fixed.fire(traces, self.kappa, self.integers)
        return u, with_gradient_of(fires.to(u.dtype), spike(u, *settings))

    def _advance(self, I: Tensor, s: Tensor, traces: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The traces of the next time step."""
        if self.integers is None:
            return self.neuron.advance(I, s, traces, self.constants)
        return fixed.advance(I, s, traces, self.kappa, self.constants, self.integers)

    def _neuron_settings(self, bptt: bool) -> tuple[str, float, bool, Tensor | None]:
        """The last arguments of the compiled operations."""
        return self.neuron.surrogate, self.neuron.slope, bptt, self.integers

    def _loop(
        self, I: Tensor, traces: tuple[Tensor, ...], bptt: bool
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Spikes and potentials (T, B, ...) of neurons without a compiled kernel, and their traces
        after the last step.
        """
        steps = []
        for I_t in I:
            u_t, s_t = self._fire(traces)
            traces = self._advance(I_t, s_t if bptt else s_t.detach(), traces)
            steps.append((s_t, u_t))
        s, u = (torch.stack(x) for x in zip(*steps, strict=True))
        return s, u, traces

    def _run_loop(
        self,
        x: Tensor,
        weight: Tensor,
        state: LayerState | None,
        bptt: bool,
        readout: Readout | None,
        pool: int = 1,
    ) -> LayerOutput:
        """`_run` of a layer whose neuron has no compiled kernel."""
        I = self.product(x, pinned(weight))
        s, u, after = self._loop(I, self._before(x, weight, state, bptt), bptt)
        if pool > 1:  # where the highest potential of a window fires
            highest = F.max_pool2d(u.flatten(0, 1), pool).unflatten(0, u.shape[:2])
            s = spike(highest, self.constants[-1], self.neuron.surrogate, self.neuron.slope)
        return LayerOutput(
            s, u, readout(s) if readout else None, self._next_state(x, state, after, bptt)
        )

    # Files and copies

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.is_built:
            mark_latents(self.weight, self.latents)  # a parameter's copy loses its marks

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        if self.is_built and is_realised(self.weight):
            raise RuntimeError(
                "state_dict() inside a realisation would save w in place of the latents w^r; call "
                "it outside the block"
            )
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if is_realised(self.weight):
            raise RuntimeError(
                "load_state_dict() inside a realisation would be undone on leaving it; call it "
                "outside the block"
            )
        for name in ("constants", "kappa"):
            own, other = getattr(self, name), state_dict.get(prefix + name)
            if other is None or own.is_meta or own.shape != other.shape:
                continue  # torch reports what is missing or of another shape
            if not torch.allclose(own.double().cpu(), other.double().cpu(), rtol=1e-6, atol=0):
                i = int((own.cpu() - other.cpu()).abs().argmax())
                raise ValueError(
                    f"state_dict: {prefix}{name} must be that of this network's neuron; got "
                    f"{other.flatten()[i].item():.6g} in the file against "
                    f"{own.flatten()[i].item():.6g} here; build the network with the neuron it was "
                    "saved with"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)


def check_size(n_in: int, input_shape: tuple[int, ...]) -> None:
    size = math.prod(input_shape)
    if size != n_in:
        raise ValueError(
            f"n_in: must equal the size of what comes in, {size} (shape {input_shape}); got "
            f"{n_in}; use {size}"
        )


def check_whole(hard: bool, spikes: bool) -> None:
    """A ValueError where a layer of FixedSRM would have to add up what are no whole numbers."""
    if not spikes:
        raise ValueError(
            "x: FixedSRM adds up whole numbers and takes spikes, 0 or 1; got real values; encode "
            "them as spikes, or take SRM (straight_through makes weights hard, not inputs)"
        )
    if not hard:
        raise ValueError(
            "weights: FixedSRM adds up whole numbers and takes hard weights; got a relaxed sample "
            "or real weights; train with BayesBiSNN(..., straight_through=True) or STBiSNN, or "
            "take SRM"
        )
