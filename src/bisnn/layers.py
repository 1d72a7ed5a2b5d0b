"""The kinds of layer: Linear, Conv2d with max-pooling, Recurrent on any directed graph."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bisnn.checks import positive_int
from bisnn.kernels.fixed import with_gradient_of
from bisnn.kernels.layer import srm_layer
from bisnn.kernels.scan import srm_scan
from bisnn.layer import Inputs, Layer, LayerOutput, LayerState, Readout, check_size
from bisnn.neuron import Neuron
from bisnn.realisation import pinned
from bisnn.spec import Shape


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
        check_size(self.n_in, shape)
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
        half: bool,
    ) -> LayerOutput:
        if not self.neuron.fused:
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
            x, weight, *before, self.kappa, self.constants, *reading, *settings, *neuron, half
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
    >>> conv = Conv2d(2, 16, 7, padding=3, pool=2)
    >>> net = bisnn.Network(conv, readout=10, input_shape=(2, 26, 26))
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
        half: bool,
    ) -> LayerOutput:
        if not self.neuron.fused:
            return self._run_loop(x, weight, state, bptt, readout, self.pool)
        # Channels come last in memory: then a pixel's neighbours are whole vectors, for the kernels
        # and for the scan.
        before = (z.movedim(1, -1) for z in self._before(x, weight, state, bptt))
        settings = (list(self.stride), list(self.padding), self.pool, self._levels(weight), spikes)
        neuron = self._neuron_settings(bptt)
        reading: tuple[Tensor | None, Tensor | None] = (None, None)
        if readout is not None:
            reading = (readout.channels_last(self.output_shape), readout.scale)
        constants = (self.kappa, self.constants)
        y, s, u, *after, _ = srm_layer(
            x.movedim(2, -1), weight, *before, *constants, *reading, *settings, *neuron, half
        )
        P, Q, R = (z.movedim(-1, 1) for z in after)
        after = self._next_state(x, state, (P, Q, R), bptt)
        return LayerOutput(s.movedim(-1, 2), u.movedim(-1, 2), y if readout else None, after)

    def extra_repr(self) -> str:
        return (
            f"{self.channels_in}, {self.channels_out}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, pool={self.pool}"
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
    >>> mask = torch.tensor([[1, 0, 0, 1], [0, 1, 1, 0]]).bool()  # parents: an input, the other one
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
                    f"mask: must be a bool tensor of shape (n, n_in + n) = ({n}, {n_in + n}); got "
                    f"{mask.dtype} of {tuple(mask.shape)}; inputs come first, then the neurons"
                )
            if not mask.any(1).all():
                orphan = int((~mask.any(1)).nonzero()[0])
                raise ValueError(
                    f"mask: every neuron needs at least one parent; got none for neuron {orphan}; "
                    "give it one or drop it"
                )
        self.register_buffer("mask", mask)
        if outputs is not None:
            whole = all(isinstance(i, Integral) for i in outputs)
            distinct = whole and len(set(outputs)) == len(outputs) > 0
            if not distinct or min(outputs) < 0 or max(outputs) >= n:
                raise ValueError(
                    f"outputs: must be distinct neuron indices from 0 to {n - 1}, at least one; "
                    f"got {outputs}; leave it out for all"
                )
        self.outputs = None if outputs is None else [int(i) for i in outputs]

    def settings(self, shape: Shape) -> dict[str, Any]:
        check_size(self.n_in, shape)
        mask = None if self.mask is None else self.mask.cpu().numpy()
        outputs = None if self.outputs is None else tuple(self.outputs)
        return {"neurons": self.n, "mask": mask, "outputs": outputs}

    def _trace_shape(self) -> Shape:
        return (self.n_in + self.n,)  # the layer's own spikes are inputs too

    def matrix(self, weight: Tensor) -> Tensor:
        """The synapses of `weight` as a matrix (n, n_in + n), zero where there is none."""
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
        half: bool,
    ) -> LayerOutput:
        x = x.flatten(2)
        if bptt:
            I, s, u, after = self._steps(x, weight, state)
            inputs = x
        else:
            with torch.no_grad():
                I, s, u, after = self._steps(x, weight, state)
            # The layer's own past spikes are constants for the gradient
            inputs = torch.cat([x, s], dim=-1)
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
        if not self.neuron.fused:
            return self._loop(I, before, bptt=False)
        neuron = self._neuron_settings(bptt=False)
        s, u, *after = srm_scan(I, *before, self.kappa, self.constants, *neuron)
        return s, u, tuple(after)

    def _steps(
        self, x: Tensor, weight: Tensor, state: LayerState | None
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """The scan's equations step by step: currents, spikes, potentials (T, B, n), state."""
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
        outputs = "all" if self.outputs is None else len(self.outputs)
        return f"{self.n_in}, {self.n}, synapses={synapses}, outputs={outputs}"


def _pair(name: str, value: int | tuple[int, int], least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= least for v in pair)
    if len(pair) != 2 or not whole:
        raise ValueError(
            f"{name}: must be a whole number >= {least} or a pair of them; got {value!r}; give "
            f"e.g. {max(least, 1)}"
        )
    return pair
