"""Who trains the networks of workloads.py, by our rules and by those of other libraries: one
definition for the CPU and the GPU.

An iteration is forward, gradient and update, in float32 unless its name says otherwise. Every peer
gets the structure that ours has: layers of leaky integrate-and-fire neurons, then a linear readout;
no bias. Each product takes all time steps at once where the library can; surrogate gradients pass
through all of time and all layers; cross entropy of the mean output; SGD.

Floors: "ReLU" is a plain network of that shape on the T B rows, with its gradient through all
layers. "products alone" are the layers' float products without anything else: forward and weight
gradient of each, nothing for the readout.

Ours have a threshold with which about 5 to 10 % of the neurons fire at a time before pooling (at
the usual input density; the results say how many did), because our products depend on it. Nobody
else's do.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import KERNEL, Sizes, Workload

DECAY = 0.9  # of the peers' membrane potentials, per time step


@dataclass
class Built:
    """A network on its device with its input."""

    iteration: Callable[[], object]
    parameters: list[Tensor] = field(default_factory=list)  # what an iteration must change
    settles: int = 1  # iterations before all is compiled
    # What else is to be known, asked for after the measurement
    facts: Callable[[], dict[str, Any]] = dict


# What a contestant's function returns, after it has imported its libraries
Build = Callable[[Workload], Built]


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"


# Ours


def ours(
    rule: str = "STBiSNN",
    bptt: bool = False,
    chunk: int | None = None,
    density: float | None = None,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
    **options: Any,
) -> Build:
    """One training iteration. `density` replaces the workload's; with `chunk` the input is in
    bytes, 0 or 1; with `compiled` it is boolean, and the step that of `bisnn.compiled`. A network
    without classes has no update: the sum of its spikes is differentiated.
    """
    import bisnn

    loss = bisnn.global_loss if bptt else bisnn.local_loss
    if chunk is not None and not hasattr(bisnn, "chunked_backward"):
        raise RuntimeError("this version of bisnn has no chunked_backward")

    def build(workload: Workload) -> Built:
        if "bisnn.kernels.cpu" in sys.modules:
            # What an earlier workload left would count as there before.
            sys.modules["bisnn.kernels.cpu"].release()
        if density is not None:
            workload = Workload(**{**vars(workload), "density": density})
        dtype = torch.bool if compiled or not workload.classes else torch.float32
        x, y = workload.batch(dtype if chunk is None else torch.uint8)
        net = network(workload, "bptt" if bptt else "local")
        learner = getattr(bisnn, rule)(net.parameters(), lr=0.01, **options)
        if not workload.classes:
            return Built(_forward_and_backward(net, learner, x, compiled))
        if compiled:
            step = bisnn.compiled(partial(net, potentials=False), learner, loss)
            return Built(lambda: step(x, y), list(net.parameters()))

        def iteration() -> None:
            with _autocast(workload, autocast), learner.sampled():
                if chunk is None:
                    loss(net(x), y).backward()
                else:
                    bisnn.chunked_backward(net, x, y, chunk=chunk)
            learner.step()

        def facts() -> dict[str, Any]:
            with torch.no_grad(), learner.sampled():
                return {"firing_rates": firing_rates(net, x[:100])}

        return Built(iteration, list(net.parameters()), facts=facts)

    return build


def _forward_and_backward(net: Any, learner: Any, x: Tensor, compiled: bool) -> Callable[[], None]:
    import bisnn

    lean = partial(net, potentials=False)
    step = bisnn.compiled(lean, learner, lambda output: output.spikes[-1].sum())

    def iteration() -> None:
        learner.zero_grad()
        if compiled:
            step.accumulate(x)
            return
        with learner.sampled():
            net(x).spikes[-1].sum().backward()

    return iteration


def network(workload: Workload, gradient: str = "local") -> Any:
    """Our network for a workload."""
    import bisnn

    layers: list[Any] = []
    for size, threshold in zip(workload.layers, workload.thresholds, strict=True):
        neuron = bisnn.SRM(threshold=threshold)
        channels = size.inputs[0], size.neurons[0]
        if workload.kind == "conv":
            layers.append(
                bisnn.Conv2d(*channels, KERNEL, padding=size.padding, pool=size.pool, neuron=neuron)
            )
        else:
            layers.append(bisnn.Linear(*channels, neuron=neuron))
    after, shape = "every" if gradient == "local" else "last", workload.layers[0].inputs
    net = bisnn.Network(
        *layers,
        readout=workload.classes or None,
        gradient=gradient,
        readout_after=after,
        input_shape=shape,
    )
    return net.to(workload.device)


def firing_rates(net: Any, x: Tensor) -> list[float]:
    """The share of each layer's neurons that fire at a time, before pooling."""
    output = net(x)
    layers = zip(net.layers, output.potentials, strict=True)
    return [round((u > layer.neuron.threshold).float().mean().item(), 4) for layer, u in layers]


def prediction(samples: int | None = None, raw: bool = False) -> Build:
    """`bisnn.predict` with the most probable weights or with members of an ensemble; raw: one pass
    of the network and nothing else.
    """
    import bisnn

    def build(workload: Workload) -> Built:
        x, _ = workload.batch()
        net = network(workload)

        def forward() -> None:
            with torch.no_grad(), bisnn.map_weights(net):
                net(x)

        return Built(forward if raw else lambda: bisnn.predict(net, x, samples))

    return build


def _autocast(workload: Workload, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast(workload.device.split(":")[0], dtype)


# Other libraries


class Flattened(nn.Module):
    """A module that knows one batch axis, over time and batch."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class OverTime(nn.Module):
    """A neuron that knows one time step, (I_t, state) -> (s_t, state), run over currents (T, B,
    ...).
    """

    def __init__(
        self,
        step: nn.Module,
        initial: Callable[[Tensor], Any] = torch.zeros_like,
        compiled: bool = False,
    ):
        super().__init__()
        self.step, self.initial = step, initial
        if compiled:
            # The shapes of an earlier network must not make this one slower.
            self.compile(dynamic=False)

    def forward(self, currents: Tensor) -> Tensor:
        state, spikes = self.initial(currents[0]), []
        for I in currents.unbind(0):
            s, state = self.step(I, state)
            spikes.append(s)
        return torch.stack(spikes)


def standard(
    neuron: Callable[[], nn.Module],
    reset: Callable[[nn.Module], object] = lambda net: None,
    time_axis: int = 0,
    prepare: Callable[[nn.Sequential, str], nn.Module] = lambda net, device: net,
    autocast: torch.dtype | None = None,
    channels_last: bool = False,
    settles: int = 1,
    facts: Callable[[], dict[str, Any]] = dict,
) -> Build:
    """Linear layers or convolutions with `neuron()` after each, pooling, a readout.

    `prepare` gets this network and its device, and gives the one to train.
    """

    def build(workload: Workload) -> Built:
        x, y = workload.batch()
        x = x.transpose(0, time_axis).contiguous()
        modules: list[nn.Module] = []
        for i, size in enumerate(workload.layers):
            modules += [_product(size, workload.density if i == 0 else 0.1), neuron()]
            if size.pool > 1:
                modules.append(Flattened(nn.MaxPool2d(size.pool)))
        n = math.prod(workload.layers[-1].outputs)
        if workload.classes:
            readout = nn.Linear(n, workload.classes, bias=False)
            modules += [nn.Flatten(2), _with_initial_weights(readout, n, 0.1)]
        sequence = nn.Sequential(*modules).to(workload.device)
        if channels_last and workload.kind == "conv":
            sequence.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        net = prepare(sequence, workload.device)
        parameters: list[Tensor] = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=0.01)

        def iteration() -> None:
            reset(net)
            optimizer.zero_grad()
            with _autocast(workload, autocast):
                out = net(x)
                loss = F.cross_entropy(out.mean(time_axis), y) if workload.classes else out.sum()
            loss.backward()
            if workload.classes:
                optimizer.step()

        return Built(iteration, parameters if workload.classes else [], settles, facts)

    return build


def _product(size: Sizes, density: float) -> nn.Module:
    channels = size.inputs[0], size.neurons[0]
    if len(size.inputs) == 1:
        return _with_initial_weights(nn.Linear(*channels, bias=False), size.parents, density)
    return Flattened(
        _with_initial_weights(
            nn.Conv2d(*channels, KERNEL, padding=size.padding, bias=False), size.parents, density
        )
    )


def _with_initial_weights(module: Any, parents: int, density: float) -> Any:
    """Weights that make currents of about 1, so that no layer is silent."""
    nn.init.normal_(
        module.weight, std=(parents * density) ** -0.5, generator=torch.Generator().manual_seed(0)
    )
    return module


def relu() -> Build:
    return standard(nn.ReLU)


def spikingjelly(
    half: str | None = None, channels_last: bool = False, compiled: bool = False
) -> Build:
    """Multi-step: on a GPU with the kernels it picks by itself (its Triton ones, if it was
    installed as Python files alone).

    half: "autocast" alone, or with its "neurons" in float16 too. Under autocast alone its neurons
    fall back from those kernels to a loop in PyTorch, because they then get currents and a state in
    float16.
    """
    from spikingjelly.activation_based import functional, neuron, surrogate

    def prepare(net: nn.Sequential, device: str) -> nn.Module:
        if half == "neurons":
            precision = import_module("spikingjelly.activation_based.precision")
            precision.prepare_model_for_precision(
                net, device, {"mode": "fp16", "neuron_storage": "fp16"}
            )
        if compiled:
            net.compile()
        return net

    def facts() -> dict[str, Any]:
        chosen = vars(import_module("spikingjelly._ops.lif")._selection)["_selections"].values()
        return {"neuron_kernels": sorted({choice.name for choice in chosen if choice is not None})}

    options = {
        "tau": 1 / (1 - DECAY),
        "decay_input": False,
        "v_reset": None,
        "detach_reset": True,
        "step_mode": "m",
    }
    return standard(
        lambda: neuron.LIFNode(surrogate_function=surrogate.ATan(), **options),
        functional.reset_net,
        prepare=prepare,
        autocast=torch.float16 if half else None,
        channels_last=channels_last,
        settles=2 if compiled else 1,
        facts=facts,
    )


def snntorch(compiled: bool = False) -> Build:
    """Compiled is a layer's whole loop over time: slower to compile than a single step, faster to
    run.
    """
    import snntorch

    if compiled:
        import_module("torch._inductor.compile_fx")  # the compiler would import it
    return standard(
        lambda: OverTime(snntorch.Leaky(beta=DECAY), compiled=compiled),
        settles=2 if compiled else 1,
    )


def norse() -> Build:
    from norse.torch import LIFBoxCell, LIFBoxFeedForwardState, LIFBoxParameters

    # The box neuron has no synaptic current, which is faster. It scales its input by 1 - DECAY; the
    # threshold makes up for that.
    p = LIFBoxParameters(tau_mem_inv=torch.tensor((1 - DECAY) * 1000), v_th=torch.tensor(1 - DECAY))
    return standard(
        lambda: OverTime(LIFBoxCell(p), lambda I: LIFBoxFeedForwardState(v=torch.zeros_like(I)))
    )


def sinabs() -> Build:
    # sinabs imports matplotlib, for plots only: an empty module will do.
    sys.modules["pylab"] = ModuleType("pylab")
    layers, utils = import_module("sinabs.layers"), import_module("sinabs.utils")
    return standard(
        lambda: layers.LIF(tau_mem=1 / (1 - DECAY), norm_input=False).requires_grad_(False),
        utils.reset_states,
        1,
    )


# Floors, and the slow way


def products(dtype: torch.dtype = torch.float32, channels_last: bool = False) -> Build:
    """Forward and weight gradient of each layer's product, on tensors that are there already."""

    def build(workload: Workload) -> Built:
        generator = torch.Generator().manual_seed(0)
        calls: list[Callable[[], object]] = []
        for size in workload.layers:
            x, g = (
                torch.randn(workload.T * workload.B, *shape, generator=generator)
                for shape in (size.inputs, size.neurons)
            )
            w = next(_product(size, 1.0).parameters()).detach()
            layout = (
                torch.channels_last if channels_last and x.ndim == 4 else torch.contiguous_format
            )
            x, g, w = (z.to(workload.device, dtype, memory_format=layout) for z in (x, g, w))
            calls += (
                _linear_calls(x, w, g) if x.ndim == 2 else _convolution_calls(x, w, g, size.padding)
            )
        return Built(lambda: [call() for call in calls] and None)

    return build


def _linear_calls(x: Tensor, w: Tensor, g: Tensor) -> list[Callable[[], object]]:
    current, gradient = torch.empty_like(g), torch.empty_like(w)
    return [lambda: torch.mm(x, w.T, out=current), lambda: torch.mm(g.T, x, out=gradient)]


def _convolution_calls(x: Tensor, w: Tensor, g: Tensor, pad: int) -> list[Callable[[], object]]:
    one, padding, none = [1, 1], [pad, pad], [0, 0]
    weight_only = [False, True, False]
    backward = torch.ops.aten.convolution_backward
    return [
        lambda: F.conv2d(x, w, padding=pad),
        lambda: backward(g, x, w, None, one, padding, one, False, none, 1, weight_only),
    ]


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        return g / (1 + (math.pi * v) ** 2)


class StepByStep(nn.Module):
    """The standard network with all layers of one time step before the next: what one writes
    without a library.
    """

    def __init__(self, net: nn.Sequential):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        potentials: dict[int, Tensor] = {}
        outputs = []
        for x_t in x.unbind(0):
            for i, module in enumerate(self.net):
                if isinstance(module, nn.Identity):  # stands for the neurons
                    v = x_t if i not in potentials else DECAY * potentials[i] + x_t
                    x_t = _Spike.apply(v - 1)
                    potentials[i] = v - x_t.detach()
                elif isinstance(module, nn.Flatten):
                    x_t = x_t.flatten(1)
                else:
                    x_t = (module.module if isinstance(module, Flattened) else module)(x_t)
            outputs.append(x_t)
        return torch.stack(outputs)


def step_by_step() -> Build:
    return standard(nn.Identity, prepare=lambda net, device: StepByStep(net))


ST: dict[str, Any] = {"rule": "STBiSNN"}
BAYES: dict[str, Any] = {"rule": "BayesBiSNN", "temperature": 1e-3, "tau": 1.0}
HARD = BAYES | {"straight_through": True}


class Contestant(NamedTuple):
    """Who runs a workload."""

    # Whose version the results name; bisnn and torch run in our environment, the others in that of
    # the peers
    package: str
    function: Callable[..., Build]
    arguments: dict[str, Any]


ON_CPU: dict[str, Contestant] = {
    "bisnn: ST, local": Contestant("bisnn", ours, ST),
    "bisnn: ST, local, half the inputs active": Contestant("bisnn", ours, ST | {"density": 0.5}),
    "bisnn: Bayes, local, relaxed": Contestant("bisnn", ours, BAYES),
    "bisnn: Bayes, local, hard": Contestant("bisnn", ours, HARD),
    "bisnn: ST, bptt": Contestant("bisnn", ours, ST | {"bptt": True}),
    "bisnn: Bayes, bptt, relaxed": Contestant("bisnn", ours, BAYES | {"bptt": True}),
    "bisnn: ST, local, chunks of 100": Contestant("bisnn", ours, ST | {"chunk": 100}),
    "bisnn: Bayes, local, relaxed, chunks of 100": Contestant(
        "bisnn", ours, BAYES | {"chunk": 100}
    ),
    "one pass, net(x)": Contestant("bisnn", prediction, {"raw": True}),
    "one pass, predict(net, x)": Contestant("bisnn", prediction, {}),
    "ten members, predict(net, x, 10)": Contestant("bisnn", prediction, {"samples": 10}),
    "ReLU network": Contestant("torch", relu, {}),
    "products alone": Contestant("torch", products, {}),
    "SpikingJelly, multi-step": Contestant("spikingjelly", spikingjelly, {}),
    "snnTorch, eager": Contestant("snntorch", snntorch, {}),
    "snnTorch, compiled time loop": Contestant("snntorch", snntorch, {"compiled": True}),
    "Norse": Contestant("norse", norse, {}),
    "sinabs": Contestant("sinabs", sinabs, {}),
}
PEERS = [
    name for name, contestant in ON_CPU.items() if contestant.package not in ("bisnn", "torch")
]
