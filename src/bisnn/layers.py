"""Layers of SRM neurons: Linear, Conv2d (with optional max-pooling), Recurrent (any directed graph,
by a mask).

A layer first computes the currents of all time steps, I = W s, as one product with time folded into
the batch, and then runs one scan over time. A layer is a description until a `Network` builds it:
only then has it weights and constants.

Axes: T time, B batch, N neurons, C channels, H W image. No layer has a bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bisnn.alphabet import BINARY, Levels
from bisnn.bits import philox
from bisnn.bits.philox import Purpose
from bisnn.checks import positive_int
from bisnn.kernels import fixed, reference
from bisnn.kernels.fixed import with_gradient_of
from bisnn.kernels.layer import srm_layer
from bisnn.kernels.scan import spike, srm_scan
from bisnn.neuron import Neuron
from bisnn.realisation import hard, is_hard, is_marked_hard, is_realised, pinned
from bisnn.spec import LayerSpec, Shape, read_from, side_by_side
from bisnn.weights import Categorical, Signs, latents_for, mark_latents, sign

Inputs = Sequence[int | Literal["input"]] | None


class LayerState(NamedTuple):
    """What a layer carries from one chunk of time to the next: all of it holds for the coming time
    step.
    """

    traces: tuple[Tensor, ...]  # of the neurons, as `Neuron.traces` names them, (B, ...)
    # X_m and X_s, the slow and the fast trace of the layer's input, (B, ...): they keep the local
    # gradient of the next chunk exact. None for neurons without compiled kernels, whose local
    # gradient is cut where a chunk begins.
    inputs: tuple[Tensor, ...]

    def detach(self) -> LayerState:
        """The same values cut from the graph: chunks then make truncated BPTT."""
        return LayerState(*(tuple(x.detach() for x in part) for part in self))


class LayerOutput(NamedTuple):
    spikes: Tensor  # what leaves the layer, (T, B, ...)
    potentials: Tensor  # u of every neuron, before pooling, (T, B, ...)
    readout: Tensor | None  # (T, B, outputs), where there is one
    state: LayerState | None


def joined(kind: str, inputs: Sequence[Tensor]) -> Tensor:
    """Spikes of several layers, (T, B, ...) each, side by side as `spec.side_by_side` says."""
    if len(inputs) == 1:
        return inputs[0]
    return (
        torch.cat(list(inputs), 2)
        if kind == "conv"
        else torch.cat([s.flatten(2) for s in inputs], 2)
    )


class Readout(nn.Module):
    """y = gain/sqrt(n) V s with fixed random V in {-1, +1}: from spikes to class logits or real
    outputs.
    """

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
        """Fields of the `LayerSpec` for inputs of this shape, or a ValueError."""
        raise NotImplementedError

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """W s for inputs with any leading axes: (..., *input_shape) -> (..., *current_shape)."""
        raise NotImplementedError

    # Construction

    def plan(
        self, number: int, shapes: Sequence[Shape], neuron: Neuron, alphabet: Levels | None
    ) -> LayerSpec:
        """The description of this layer as a network's layer `number`.

        `shapes` are what leaves the earlier layers, and last, where INPUT finds it, the shape of
        the network's input.
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
        return "spec" in self.__dict__

    @property
    def has_latents(self) -> bool:
        """Whether weights come from an alphabet, and are not real numbers."""
        return self.is_built and self.spec.alphabet is not None

    @property
    def input_shape(self) -> Shape:
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
        return self.spec.neuron

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        """Shapes of a state's traces and inputs."""
        inputs = 0 if self.neuron.kind is None else 2
        traces = [(batch_size, *self.current_shape)] * len(self.neuron.traces)
        return traces + [(batch_size, *self._trace_shape())] * inputs

    def initial_state(self, batch_size: int) -> LayerState:
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
    ) -> LayerOutput:
        """Spikes and potentials of all time steps of x, (T, B, *input_shape).

        With `bptt` gradients travel to the layer below, through the refractory feedback and through
        the state; without (local learning), they reach this layer's weights only, through eq.
        (der-general). `weight` stands in for the parameter. `spikes` promises that x is 0 or 1
        everywhere. `readout` reads what leaves the layer.
        """
        if weight is None:
            weight = self.realised()
        if not bptt:
            x = x.detach()
        if self.integers is not None:
            _check_whole(bool(self._levels(weight)), spikes)
        return self._run(x, weight, state, bptt, spikes, readout)

    def _run(
        self,
        x: Tensor,
        weight: Tensor,
        state: LayerState | None,
        bptt: bool,
        spikes: bool,
        readout: Readout | None,
    ) -> LayerOutput:
        """The whole layer as one operation; `Recurrent` has its own way."""
        raise NotImplementedError

    def realised(self) -> Tensor:
        """The weights w of the present realisation, or real ones; with the gradient of the parameter."""
        if not self.is_built:
            raise RuntimeError(
                "a layer has weights only as part of a network: bisnn.Network(layer, ...) builds it"
            )
        if self.has_latents and not is_realised(self.weight):
            raise RuntimeError(
                f"a network of {'binary' if self.spec.alphabet == BINARY else 'discrete'} weights was "
                "called while its parameters hold the latents w^r: to train, call it inside "
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
        inputs = tuple(
            a ** len(x) * trace
            + torch.tensordot(a**steps, x, dims=1)  # X' = a^T X + sum_t a^(T-t) x_t
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

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        if self.is_built and is_realised(self.weight):
            raise RuntimeError(
                "state_dict() inside a realisation would save w in place of the latents w^r; call it outside the block"
            )
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict, prefix, *args):
        if is_realised(self.weight):
            raise RuntimeError(
                "load_state_dict() inside a realisation would be undone on leaving it; call it outside the block"
            )
        for name in ("constants", "kappa"):
            own, other = getattr(self, name), state_dict.get(prefix + name)
            if other is None or own.is_meta or own.shape != other.shape:
                continue  # torch reports what is missing or of another shape
            if not torch.allclose(own.double().cpu(), other.double().cpu(), rtol=1e-6, atol=0):
                i = int((own.cpu() - other.cpu()).abs().argmax())
                raise ValueError(
                    f"state_dict: {prefix}{name} must be that of this network's neuron; got {other.flatten()[i].item():.6g} "
                    f"in the file against {own.flatten()[i].item():.6g} here; build the network with the neuron it was saved with"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)


class Linear(Layer):
    """`n_out` neurons, each with all `n_in` inputs as parents. Inputs with more axes, (T, B, C, H,
    W), are flattened.

    Args:
        n_in, n_out: number of inputs and of neurons.
        inputs: the layers whose spikes it reads, side by side: numbers of earlier ones, from 0, or
            "input" for the network's input; by default the layer before it.
        neuron: this layer's own; by default the network's.
    """

    kind = "dense"

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        inputs: Inputs = None,
        neuron: Neuron | None = None,
    ):
        super().__init__(inputs, neuron)
        self.n_in, self.n_out = positive_int("n_in", n_in), positive_int("n_out", n_out)

    def settings(self, shape: Shape) -> dict[str, Any]:
        _check_size(self.n_in, shape)
        return {"neurons": self.n_out}

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x.flatten(x.ndim - len(self.input_shape)), weight)

    def _run(
        self,
        x: Tensor,
        weight: Tensor,
        state: LayerState | None,
        bptt: bool,
        spikes: bool,
        readout: Readout | None,
    ) -> LayerOutput:
        if self.neuron.kind is None:
            return self._run_loop(x, weight, state, bptt, readout)
        before, neuron = self._before(x, weight, state, bptt), self._neuron_settings(bptt)
        reading = (None, None) if readout is None else (readout.V, readout.scale)
        settings: tuple[list[int], list[int], int, list[int], bool] = (
            [],
            [],
            1,
            self._levels(weight),
            spikes,
        )
        y, s, u, P, Q, R, _ = srm_layer(
            x.flatten(2), weight, *before, self.kappa, self.constants, *reading, *settings, *neuron
        )
        return LayerOutput(
            s, u, y if readout else None, self._next_state(x, state, (P, Q, R), bptt)
        )

    def extra_repr(self) -> str:
        return f"{self.n_in}, {self.n_out}"


class Conv2d(Layer):
    """`channels_out` maps of neurons that share a kernel.

    kappa = 1/sqrt(channels_in k0 k1), also at the borders. With `pool`, the refractory feedback and
    its spikes live at full resolution; what leaves the layer is 1 where the maximum potential of a
    window exceeds theta, which is the OR of the window's spikes; the gradient goes to the first
    maximum.

    Args:
        channels_in, channels_out: channels before and after.
        kernel_size: k0 = k1, or (k0, k1).
        stride, padding: as in torch.nn.Conv2d; an int or a pair.
        pool: edge of the max-pooling window and its stride; 1 means none.
        inputs: the layers whose spikes it reads, side by side: numbers of earlier ones, from 0, or
            "input" for the network's input; by default the layer before it.
        neuron: this layer's own; by default the network's.

    >>> import bisnn
    >>> net = bisnn.Network(Conv2d(2, 16, 7, padding=3, pool=2), readout=10, input_shape=(2, 26, 26))
    >>> with bisnn.map_weights(net):
    ...     net(torch.zeros(5, 1, 2, 26, 26)).spikes[0].shape
    torch.Size([5, 1, 16, 13, 13])
    """

    kind = "conv"

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel_size: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        pool: int = 1,
        inputs: Inputs = None,
        neuron: Neuron | None = None,
    ):
        super().__init__(inputs, neuron)
        self.channels_in = positive_int("channels_in", channels_in)
        self.channels_out = positive_int("channels_out", channels_out)
        self.kernel_size = _pair("kernel_size", kernel_size, 1)
        self.stride = _pair("stride", stride, 1)
        self.padding = _pair("padding", padding, 0)
        self.pool = positive_int("pool", pool)

    def settings(self, shape: Shape) -> dict[str, Any]:
        if len(shape) != 3 or shape[0] != self.channels_in:
            raise ValueError(
                f"input_shape: Conv2d with channels_in={self.channels_in} takes "
                f"({self.channels_in}, H, W); got {shape}"
            )
        places = {"stride": self.stride, "padding": self.padding, "pool": self.pool}
        return {"neurons": self.channels_out, "kernel": self.kernel_size, **places}

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        images = x.reshape(-1, *self.input_shape)
        return F.conv2d(images, weight, None, self.stride, self.padding).reshape(
            *x.shape[:-3], *self.current_shape
        )

    def _run(
        self,
        x: Tensor,
        weight: Tensor,
        state: LayerState | None,
        bptt: bool,
        spikes: bool,
        readout: Readout | None,
    ) -> LayerOutput:
        if self.neuron.kind is None:
            return self._run_loop(x, weight, state, bptt, readout, self.pool)
        # Channels come last in memory: then a pixel's neighbours are whole vectors, for the kernels
        # and for the scan.
        before = (z.movedim(1, -1) for z in self._before(x, weight, state, bptt))
        settings = (list(self.stride), list(self.padding), self.pool, self._levels(weight), spikes)
        neuron = self._neuron_settings(bptt)
        reading: tuple[Tensor | None, Tensor | None] = (None, None)
        if readout is not None:
            reading = (
                readout.V.unflatten(1, self.output_shape).movedim(1, -1).flatten(1),
                readout.scale,
            )
        y, s, u, *after, _ = srm_layer(
            x.movedim(2, -1),
            weight,
            *before,
            self.kappa,
            self.constants,
            *reading,
            *settings,
            *neuron,
        )
        P, Q, R = (z.movedim(-1, 1) for z in after)
        after = self._next_state(x, state, (P, Q, R), bptt)
        return LayerOutput(s.movedim(-1, 2), u.movedim(-1, 2), y if readout else None, after)

    def extra_repr(self) -> str:
        return (
            f"{self.channels_in}, {self.channels_out}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, pool={self.pool}"
        )


class Recurrent(Layer):
    """`n` neurons connected among themselves and to `n_in` inputs: with a mask, any directed graph,
    cycles included.

    The spikes of time t act on the potentials from t + 1 on. Time cannot be done in parallel here;
    the layer steps. kappa_i = 1/sqrt(|P_i|) counts the neuron's own parents, exogenous and
    recurrent.

    Args:
        n_in, n: number of exogenous inputs and of neurons.
        mask: (n, n_in + n), True where the synapse exists: first the columns of the inputs, then
            those of the neurons. Every neuron needs a parent. Without a mask all synapses exist,
            each neuron's onto itself too.
        outputs: indices of the read-out neurons, whose spikes leave the layer; by default all. In
            local mode the others get no error signal and learn nothing, a reservoir (Bayes-BiSNN's
            prior alone pulls them); gradient="bptt" trains them.
        inputs: the layers whose spikes it reads, side by side: numbers of earlier ones, from 0, or
            "input" for the network's input; by default the layer before it.
        neuron: this layer's own; by default the network's.

    The parameter holds the synapses that exist and no others: (n, n_in + n) without a mask, a
        vector in row order with one.

    >>> import bisnn
    >>> mask = torch.tensor([[1, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)  # two neurons: an input and each other as parents
    >>> net = bisnn.Network(Recurrent(2, 2, mask=mask, outputs=[1]), readout=None)
    >>> net.layers[0].weight.shape, net.layers[0].output_shape
    (torch.Size([4]), (1,))
    """

    kind = "recurrent"
    mask: Tensor | None

    def __init__(
        self,
        n_in: int,
        n: int,
        *,
        mask: Tensor | None = None,
        outputs: Sequence[int] | None = None,
        inputs: Inputs = None,
        neuron: Neuron | None = None,
    ):
        super().__init__(inputs, neuron)
        self.n_in, self.n = positive_int("n_in", n_in), positive_int("n", n)
        if mask is not None:
            mask = torch.as_tensor(mask)
            if mask.shape != (n, n_in + n) or mask.dtype != torch.bool:
                raise ValueError(
                    f"mask: must be a bool tensor of shape (n, n_in + n) = ({n}, {n_in + n}); got {mask.dtype} of "
                    f"{tuple(mask.shape)}; inputs come first, then the neurons"
                )
            if not mask.any(1).all():
                orphan = int((~mask.any(1)).nonzero()[0])
                raise ValueError(
                    f"mask: every neuron needs at least one parent; got none for neuron {orphan}; give it one or drop it"
                )
        self.register_buffer("mask", mask)
        if outputs is not None:
            whole = all(isinstance(i, Integral) for i in outputs)
            if (
                not whole
                or len(outputs) == 0
                or min(outputs) < 0
                or max(outputs) >= n
                or len(set(outputs)) < len(outputs)
            ):
                raise ValueError(
                    f"outputs: must be distinct neuron indices from 0 to {n - 1}, at least one; got {outputs}; leave it out for all"
                )
        self.outputs = None if outputs is None else [int(i) for i in outputs]

    def settings(self, shape: Shape) -> dict[str, Any]:
        _check_size(self.n_in, shape)
        mask = None if self.mask is None else self.mask.cpu().numpy()
        outputs = None if self.outputs is None else tuple(self.outputs)
        return {"neurons": self.n, "mask": mask, "outputs": outputs}

    def _trace_shape(self) -> Shape:
        return (self.n_in + self.n,)  # the layer's own spikes are inputs too

    def matrix(self, weight: Tensor) -> Tensor:
        """The synapses as a matrix (n, n_in + n), zero where there is none."""
        weight = pinned(weight)
        if self.mask is None:
            return weight
        return weight.new_zeros(self.mask.shape).index_put(self.mask.nonzero(as_tuple=True), weight)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, self.matrix(weight))

    def _run(
        self,
        x: Tensor,
        weight: Tensor,
        state: LayerState | None,
        bptt: bool,
        spikes: bool,
        readout: Readout | None,
    ) -> LayerOutput:
        x = x.flatten(2)
        if bptt:
            I, s, u, after = self._steps(x, weight, state)
            inputs = x
        else:
            with torch.no_grad():
                I, s, u, after = self._steps(x, weight, state)
            inputs = torch.cat(
                [x, s], dim=-1
            )  # the layer's own past spikes are constants for the gradient
            if weight.requires_grad and torch.is_grad_enabled():
                I = with_gradient_of(I, self.product(inputs, weight))
                before = self._before(x, weight, state, bptt)
                s, u, after = self._scan(I, before)  # the same bits, now with a gradient
        if self.outputs is not None:
            s = s[..., self.outputs]
        return LayerOutput(
            s, u, readout(s) if readout else None, self._next_state(inputs, state, after, bptt)
        )

    def _scan(
        self, I: Tensor, before: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Spikes, potentials and state from the currents, in local mode."""
        if self.neuron.kind is None:
            return self._loop(I, before, bptt=False)
        neuron = self._neuron_settings(bptt=False)
        s, u, *after = srm_scan(I, *before, self.kappa, self.constants, *neuron)
        return s, u, tuple(after)

    def _steps(
        self, x: Tensor, weight: Tensor, state: LayerState | None
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """The equations of the scan, one step at a time: currents, spikes, potentials (T, B, n),
        state.
        """
        W_in, W_rec = self.matrix(weight).split([self.n_in, self.n], dim=-1)
        I_in = F.linear(x, W_in)
        # Zero, but part of the graph: a first time step has a gradient, which is zero, as in the
        # other layers.
        zero = I_in[0] - I_in[0]
        at_rest = tuple(trace + zero for trace in self._at_rest(x.shape[1]))
        traces = at_rest if state is None else state.traces
        steps = []
        for I_t in I_in:
            u_t, s_t = self._fire(traces)
            I_t = I_t + F.linear(s_t, W_rec)
            traces = self._advance(I_t, s_t, traces)
            steps.append((I_t, s_t, u_t))
        I, s, u = (torch.stack(x) for x in zip(*steps, strict=True))
        return I, s, u, traces

    def extra_repr(self) -> str:
        synapses = self.n * (self.n_in + self.n) if self.mask is None else int(self.mask.sum())
        return f"{self.n_in}, {self.n}, synapses={synapses}, outputs={'all' if self.outputs is None else len(self.outputs)}"


def _pair(name: str, value: int | tuple[int, int], least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or any(
        isinstance(v, bool) or not isinstance(v, int) or v < least for v in pair
    ):
        raise ValueError(
            f"{name}: must be a whole number >= {least} or a pair of them; got {value!r}; give e.g. {max(least, 1)}"
        )
    return pair


def _check_size(n_in: int, input_shape: tuple[int, ...]) -> None:
    size = math.prod(input_shape)
    if size != n_in:
        raise ValueError(
            f"n_in: must equal the size of what comes in, {size} (shape {input_shape}); got {n_in}; use {size}"
        )


def _check_whole(hard: bool, spikes: bool) -> None:
    """A ValueError where a layer of FixedSRM would have to add up what are no whole numbers."""
    if not spikes:
        raise ValueError(
            "x: FixedSRM adds up whole numbers and takes spikes, 0 or 1; got real values; encode "
            "them as spikes, or take SRM (straight_through makes weights hard, not inputs)"
        )
    if not hard:
        raise ValueError(
            "weights: FixedSRM adds up whole numbers and takes hard weights; got a relaxed sample or "
            "real weights; train with BayesBiSNN(..., straight_through=True) or STBiSNN, or take SRM"
        )
