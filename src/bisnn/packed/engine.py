"""Inference on packed bits: numpy and numba alone, the spikes and logits of the trained network bit
for bit. The loops over time are in `loops`.

All members of an ensemble go through a layer in one call and share what is done with the input.

Axes: K members, T time, B recordings, H W image; words last. A dense layer is a convolution of one
pixel.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bisnn.alphabet import Levels
from bisnn.bits import counting, threads
from bisnn.conformal import PredictionIntervals
from bisnn.files import most_bytes
from bisnn.neuron import Neuron
from bisnn.packed import encoding, file, loops
from bisnn.packed.network import PackedLayer, PackedNetwork, cost
from bisnn.packed.network import words as words_of
from bisnn.packed.sets import EarlySets, member_blocks, predict_sets
from bisnn.spec import LayerSpec, windows_along

# Recordings of a dense layer that are worked on together: weights are then read once for all of
# them
GROUP = 8
POINTS = 250  # encoded and predicted at a time, at most
TABLE = 1 << 26  # bytes of a layer's weights as int8 up to which they are kept, for sparse inputs

# Of each layer its traces for the coming time step, (traces, K, B, neurons)
State = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Result:
    """What a run gives."""

    logits: np.ndarray | None  #: (K, T, B, outputs) float32; None where there is no readout
    spikes: tuple[np.ndarray, ...]  #: if asked for: what leaves each layer, uint8 (K, T, B, ...)
    state: State | None  #: after the last time step, if one was passed in


@dataclass(frozen=True)
class Prediction:
    """Means over time, entropies in nats; of a regression, outputs without entropies."""

    mean: np.ndarray  #: (B, C) the ensemble's distribution, or output
    members: np.ndarray  #: (K, B, C) each member's
    std: np.ndarray  #: (B, C) standard deviation over the members
    entropy: np.ndarray | None  #: (B,) of the mean: the whole uncertainty
    mutual_information: np.ndarray | None  #: (B,) disagreement of the members

    @classmethod
    def of(cls, members: np.ndarray, task: str) -> Prediction:
        """From the distributions or outputs of `members`, (K, B, C), by the network's `task`."""
        mean, std = members.mean(0), members.std(0)
        if task == "regression":
            return cls(mean, members, std, None, None)
        entropy = _entropy(mean)
        return cls(mean, members, std, entropy, np.maximum(entropy - _entropy(members).mean(0), 0))


@dataclass(frozen=True)
class _Layer:
    """A layer as the kernels take it."""

    # uint32 (K, planes, words, n_out): bit planes, inputs in the order of `counting.windows`
    weights: np.ndarray
    alphabet: Levels
    # int8 (K, n_in, n_out): the same for sparse inputs; empty where counting bits is never slower
    table: np.ndarray
    channels: int  # inputs of a pixel
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    pool: int
    neuron: type[Neuron]
    # See `Neuron.step_constants`: shared ones (m, 1), those of each (n, 1); recurrent: (n, n_out)
    neuron_constants: tuple[np.ndarray, np.ndarray]
    mask: np.ndarray | None = None  # uint32 (words, n_out) of a recurrent layer
    outputs: np.ndarray | None = None  # int64: neurons that leave a recurrent layer
    recurrent: bool = False

    def size(self, x: np.ndarray) -> tuple[int, int]:
        """Height and width of the neurons, before pooling, for inputs (..., H, W, words)."""
        places = zip(x.shape[-3:-1], self.kernel, self.stride, self.padding, strict=True)
        height, width = (windows_along(*place) for place in places)
        return height, width

    def of_windows(self) -> _Layer:
        """The same layer for inputs that `_windows` has gathered already."""
        return replace(
            self, channels=32 * self.weights.shape[2], kernel=(1, 1), stride=(1, 1), padding=(0, 0)
        )


class Engine:
    """A packed network that runs.

    Args:
        network: from `packed.read` or `packing.describe`.
        threads: at most so many; by default one a core that this process may use.
        sparse: whether to hold the weights of wide layers as bytes too, eight times the memory, for
            inputs of which few are active.
    """

    def __init__(self, network: PackedNetwork, threads: int | None = None, *, sparse: bool = True):
        whole = isinstance(threads, int) and not isinstance(threads, bool)
        if threads is not None and not (whole and threads >= 1):
            raise ValueError(
                f"threads: must be a positive whole number; got {threads!r}; leave it out for one "
                "a core"
            )
        self.network, self.threads = network, threads or _cores()
        self._layers = [_layer_of(layer, sparse) for layer in network.layers]
        self._neurons = [math.prod(layer.current_shape) for layer in network.layers]
        steps, inputs = network.encoding.get("steps", 1), math.prod(network.input_shape)
        each = cost(network.layers, inputs, network.outputs, network.count, steps)[1]
        # Predicted at a time, whatever a file's time steps
        self._points = max(1, min(POINTS, most_bytes() // (4 * each)))
        self._blocks: list[Engine] | None = None  # of members, made when sets are asked for
        self._V = np.empty((0, 0), np.uint32)
        if network.readout is not None:
            self._V = _by_pixel(network.readout.V, network.layers[-1].output_shape)

    def start(self, batch: int = 1) -> State:
        """The state before the first time step of a stream of `batch` recordings."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ValueError(
                f"batch: must be a positive whole number; got {batch!r}; give the number of "
                "recordings"
            )
        return self._at_rest(batch)

    def _at_rest(self, batch: int) -> State:
        return tuple(
            np.zeros((len(layer.neuron.traces), self.network.count, batch, n), layer.neuron.dtype)
            for layer, n in zip(self._layers, self._neurons, strict=True)
        )

    def run(self, x: np.ndarray, state: State | None = None, *, spikes: bool = False) -> Result:
        """Run over `x`, 0 or 1, `(T, B, *input_shape)`, bool, uint8 or floating; from `state`, or
        from rest.

        A recording may come whole, or in pieces from `start(B)` on, down to single time steps, each
        with the state that the one before returned: the bits are the same. `spikes` asks for what
        leaves each layer.
        """
        x = np.asarray(x)
        words, after = self._packed(x), self._before(x, state)
        left: list[np.ndarray] = []  # the layers, as words
        for number, (layer, traces) in enumerate(zip(self._layers, after, strict=True)):
            spec, everything = self.network.layers[number], [*left, words]  # INPUT is the last
            read = _side_by_side(spec, [everything[n] for n in spec.inputs])
            if number == 0 and self.network.count > 1 and layer.kernel != (1, 1):
                read, layer = self._windows(read, layer), layer.of_windows()  # members share it
            left.append(self._through(read, layer, traces))
        logits = None if self.network.readout is None else self._read(left[-1])
        shapes = [layer.output_shape for layer in self.network.layers]
        kept = map(_unpacked, left, shapes) if spikes else ()
        return Result(logits, tuple(kept), None if state is None else after)

    def predict(self, x: np.ndarray) -> Prediction:
        """Predict from whole recordings `x`, `(T, B, *input_shape)`: the mean over time, after the
        burn-in, and over the members.

        Regression is in the units of the training targets.
        """
        logits = self.run(x).logits
        if logits is None:
            raise ValueError(
                "predict: needs a readout after the last layer; this network has none; use run(x, "
                "spikes=True)"
            )
        burn_in = self.network.burn_in
        if len(x) <= burn_in:
            raise ValueError(
                f"x: must be longer than the burn-in of {burn_in} time steps; got {len(x)}; record "
                "longer"
            )
        y = logits[:, burn_in:]
        if self.network.task == "classification":
            y = np.exp(y - y.max(-1, keepdims=True))
            y /= y.sum(-1, keepdims=True)
        members = y.mean(1)
        # In float64: an offset may be large
        if self.network.target_mean or self.network.target_scale != 1:
            members = self.network.target_mean + self.network.target_scale * members.astype(
                np.float64
            )
        return Prediction.of(members, self.network.task)

    def predict_sets(self, x: np.ndarray) -> EarlySets:
        """Sets of classes that hold the truth as often as the model was calibrated for, from
        recordings `x`, `(T, B, *input_shape)`: the time steps after a recording is decided are not
        run.
        """
        return self._sets_of([np.asarray(x)])

    def predict_feature_sets(self, x: Any) -> EarlySets:
        """As `predict_sets`, from raw features `x`, as `predict_features` takes them."""
        coded = self._coded(x)
        return EarlySets.joined([self._sets_of(recordings) for recordings in coded])

    def predict_intervals(self, x: np.ndarray) -> PredictionIntervals:
        """Intervals that hold the target as often as the model was calibrated for, from recordings
        `x`, `(T, B, *input_shape)`.
        """
        return self._around(self.predict(x))

    def predict_feature_intervals(self, x: Any) -> PredictionIntervals:
        """As `predict_intervals`, from raw features `x`, as `predict_features` takes them."""
        return self._around(self.predict_features(x))

    def _around(self, found: Prediction) -> PredictionIntervals:
        rule = self.network.intervals
        if rule is None:
            raise ValueError(
                "predict_intervals: needs a calibration of these members, and this network has "
                "none; use `bisnn calibrate RUN`, and export the run again"
            )
        return rule.around(*(part[:, 0].astype(np.float64) for part in (found.mean, found.std)))

    def _sets_of(self, recordings: list[np.ndarray]) -> EarlySets:
        rule = self.network.sets
        if rule is None:
            raise ValueError(
                "predict_sets: needs a calibration of these members, and this network has none; "
                "use `bisnn calibrate RUN`, and export the run again"
            )
        if len(recordings[0]) < rule.path[-1][0]:
            raise ValueError(
                f"x: must have {rule.path[-1][0]} time steps or more, as the calibration has; "
                f"got {len(recordings[0])}; record longer"
            )
        if self._blocks is None:
            networks = member_blocks(self.network, rule)
            whole = networks[0].count == self.network.count
            self._blocks = [self] if whole else [Engine(part, self.threads) for part in networks]
        return predict_sets(self._blocks, rule, recordings)

    def predict_features(self, x: Any) -> Prediction:
        """Predict from raw features, in the units of the training file, by the file's own encoding.

        `x` is an array (N, d); for a model of a table, as `packed.columns.Schema.encode` takes it:
        its columns, numbers or text, NaN where a cell is blank, or a mapping from their names to a
        value, or to one per point. Cells that no training row was like raise a UserWarning.
        """
        members = [
            np.mean([self.predict(recording).members for recording in recordings], 0)
            for recordings in self._coded(x)
        ]
        return Prediction.of(np.concatenate(members, 1), self.network.task)

    def _coded(self, x: Any) -> Iterator[list[np.ndarray]]:
        """Features as spikes (T, B, N), some at a time, for each encoding."""
        if self.network.schema is not None:
            x, notes = self.network.schema.encode(x)
            for note in notes:
                warnings.warn(note, stacklevel=3)
        x, code, some = np.asarray(x), self.network.encoding, self._points
        for i in range(0, max(1, len(x)), some):
            encodings = range(code.get("encodings", 1))
            yield [encoding.spikes(code, x[i : i + some], e) for e in encodings]

    def _packed(self, x: np.ndarray) -> np.ndarray:
        """Words (1, T, B, H, W, words) of an input, checked."""
        shape = self.network.input_shape
        if x.ndim != 2 + len(shape) or x.shape[2:] != shape or 0 in x.shape:
            axes = ", ".join(map(str, ("T", "B", *shape)))
            raise ValueError(
                f"x: must have the shape ({axes}), T and B >= 1; got {x.shape}; time comes first, "
                "then the batch"
            )
        if x.dtype != bool:
            good = (
                x.max() <= 1
                if x.dtype == np.uint8
                else x.dtype.kind in "iuf" and ((x == 0) | (x == 1)).all()
            )
            if not good:
                raise ValueError(
                    f"x: must be 0 or 1 everywhere; got other values, of type {x.dtype}; encode it "
                    "as spikes first"
                )
        by_pixel = x[..., None, None, :] if len(shape) == 1 else np.moveaxis(x, 2, -1)
        return words_of(by_pixel if x.dtype in (bool, np.uint8) else by_pixel.astype(bool))[None]

    def _before(self, x: np.ndarray, state: State | None) -> State:
        """A copy of the state, to move on; empty for none."""
        if state is None:
            return self._at_rest(0)
        B, parts = x.shape[1], zip(self._layers, self._neurons, strict=True)
        wanted = [(len(layer.neuron.traces), self.network.count, B, n) for layer, n in parts]
        given = [getattr(z, "shape", None) for z in state] if isinstance(state, tuple) else []
        if given != wanted:
            raise ValueError(
                f"state: must come from this network and {B} recordings; got another; begin with "
                "engine.start(B)"
            )
        layers = zip(state, self._layers, strict=True)
        return tuple(np.array(z, layer.neuron.dtype, order="C") for z, layer in layers)

    def _through(self, x: np.ndarray, layer: _Layer, state: np.ndarray) -> np.ndarray:
        """What leaves a layer, as words; the state moves on in place."""
        neurons = (*layer.neuron_constants, state.reshape(len(state), -1))
        height, width = layer.size(x)
        K, n_out = layer.weights.shape[0], layer.weights.shape[3]
        affine = (layer.alphabet.low, layer.alphabet.gap)
        work = K * x.shape[1] * x.shape[2] * height * width * layer.weights[0].size
        leaving = n_out if layer.outputs is None else len(layer.outputs)
        out = np.empty(
            (K, *x.shape[1:3], height // layer.pool, width // layer.pool, -(-leaving // 32)),
            np.uint32,
        )
        inputs = (x, layer.weights, *affine)
        if layer.recurrent:
            loop = loops.recurrent(layer.neuron)
            settings: tuple[Any, ...] = (layer.mask, layer.outputs)
            self._spread(loop, work, K * x.shape[2], *inputs, *settings, *neurons, out)
            return out
        group = GROUP if height * width == 1 else 1
        places = (layer.channels, *layer.kernel, *layer.stride, *layer.padding, layer.pool)
        loop, settings = loops.spikes(layer.neuron), (layer.table, *places, group)
        items = K * -(-x.shape[2] // group)
        self._spread(loop, work, items, *inputs, *settings, *neurons, out)
        return out

    def _read(self, words: np.ndarray) -> np.ndarray:
        """The readout of what leaves the last layer, (K, T, B, outputs)."""
        assert self.network.readout is not None
        rows = words.reshape(math.prod(words.shape[:3]), -1)
        out = np.empty((len(rows), len(self._V)), np.float32)
        work, scale = rows.size * len(self._V), self.network.readout.scale
        self._spread(loops.readout, work, len(rows), rows, self._V, scale, out)
        return out.reshape(*words.shape[:3], -1)

    def _windows(self, x: np.ndarray, layer: _Layer) -> np.ndarray:
        images = x.reshape(-1, *x.shape[3:])
        n, H, W, _ = images.shape
        rows = np.empty((n, H, -(-W * layer.channels // 32)), np.uint32)
        self._spread(counting.join_pixels, images.size, n, images, layer.channels, rows)
        out = np.empty((n, *layer.size(x), layer.weights.shape[2]), np.uint32)
        places = (W, layer.channels, *layer.kernel, *layer.stride, *layer.padding)
        self._spread(counting.windows, out.size, n, rows, *places, out)
        return out.reshape(*x.shape[:3], *out.shape[1:])

    def _spread(self, kernel: Any, work: int, size: int, *arguments: Any) -> list[Any]:
        return threads.run(kernel, work, size, *arguments, count=self.threads)


_cores = threads.cores  # the constructor has an argument of the module's name


def load(
    path: str | Path,
    members: int | Literal["map"] | None = None,
    *,
    seed: int | None = None,
    neurons: Sequence[type[Neuron]] = (),
    threads: int | None = None,
    sparse: bool = True,
) -> Engine:
    """An engine from a packed file. Runs no code.

    Args:
        path, members, seed, neurons: as for `packed.read`.
        threads, sparse: as for `Engine`.
    """
    return Engine(file.read(path, members, seed, neurons=neurons), threads, sparse=sparse)


def _side_by_side(spec: LayerSpec, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """What a layer reads, as words (K, T, B, H, W, words); each input has words of its own."""
    if len(inputs) > 1:
        K = max(len(words) for words in inputs)  # the network's input is shared by the members
        inputs = [np.broadcast_to(words, (K, *words.shape[1:])) for words in inputs]
    if spec.kind == "recurrent" or (spec.kind == "dense" and len(inputs) > 1):
        inputs = [words.reshape(*words.shape[:3], 1, 1, -1) for words in inputs]
    return inputs[0] if len(inputs) == 1 else np.concatenate(inputs, -1)


def _layer_of(layer: PackedLayer, sparse: bool) -> _Layer:
    if layer.kind == "recurrent":
        return _recurrent_of(layer)
    kernel, parts, bits = layer.kernel, layer.parts, layer.bits()  # (K, planes, neurons, inputs)
    K, planes = bits.shape[:2]
    if layer.kind == "dense" and len(parts) == 1 and len(parts[0]) == 3:
        kernel = (parts[0][1], parts[0][2])  # on images: a kernel as large as they are
    if layer.kind == "dense" and len(parts) > 1:
        channels, rows = 0, np.concatenate(_padded(layer, bits), -1)
    else:
        channels, taps = layer.input_shape[0], math.prod(kernel)
        rows = bits.reshape(K, planes, layer.neurons, channels, taps)
        if len(parts) > 1:  # the channels of each input begin with a word
            rows = np.concatenate([_filled(rows[..., part, :], 3) for part in layer.columns()], 3)
            channels = rows.shape[3]
        rows = np.moveaxis(rows, 3, 4).reshape(K, planes, layer.neurons, -1)
    n_in = rows.shape[3]
    table = np.empty((K, 0, 0), np.int8)
    if sparse and n_in > 64 and K * n_in * layer.neurons <= TABLE:
        table = layer.alphabet.weights(np.ascontiguousarray(rows.transpose(1, 0, 3, 2)))
    places = (layer.stride, layer.padding, layer.pool)
    weights = (_columns(rows), layer.alphabet, table)
    neuron = (type(layer.neuron), _neuron_constants(layer, 1))
    return _Layer(*weights, channels, kernel, *places, *neuron)


def _recurrent_of(layer: PackedLayer) -> _Layer:
    """Inputs and own spikes lie in words of their own: each begins at a word's first bit."""
    n = layer.neurons

    def columns(rows: np.ndarray) -> np.ndarray:
        parts = [*_padded(layer, rows), rows[..., layer.fan_in - n :]]
        return np.concatenate([_columns(part) for part in parts], axis=-2)

    mask = np.zeros((0, n), np.uint32) if layer.mask is None else columns(layer.mask)
    outputs = np.arange(n) if layer.outputs is None else np.array(layer.outputs)
    one = ((1, 1), (1, 1), (0, 0), 1)
    empty = np.empty((0, 0, 0), np.int8)
    return _Layer(
        columns(layer.bits()),
        layer.alphabet,
        empty,
        1,
        *one,
        type(layer.neuron),
        _neuron_constants(layer, n),
        np.ascontiguousarray(mask),
        outputs,
        True,
    )


def _neuron_constants(layer: PackedLayer, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The constants of a layer's neurons as the kernels take them, each in so many columns."""
    shared, each = layer.step_constants()
    spread = np.broadcast_to(each, (len(each), columns))
    return shared.astype(layer.neuron.dtype)[:, None], spread.astype(layer.neuron.dtype, "C")


def _padded(layer: PackedLayer, rows: np.ndarray) -> list[np.ndarray]:
    """The columns (..., inputs) of each of a layer's inputs, in the order in which they are packed:
    pixels first, each with whole words.
    """
    found = []
    for part, shape in zip(layer.columns(), layer.parts, strict=True):
        C, pixels = shape[0], math.prod(shape[1:])
        by_pixel = np.moveaxis(rows[..., part].reshape(*rows.shape[:-1], C, pixels), -2, -1)
        found.append(_filled(by_pixel, -1).reshape(*rows.shape[:-1], -1))
    return found


def _filled(bits: np.ndarray, axis: int) -> np.ndarray:
    """Bits with zeros behind them along an axis, so that they fill whole words."""
    n = bits.shape[axis]
    gap = [(0, 0)] * bits.ndim
    gap[axis] = (0, -n % 32)
    return np.pad(bits, gap)


def _columns(rows: np.ndarray) -> np.ndarray:
    """Bits (..., n_out, n_in) as words (..., words, n_out)."""
    return np.ascontiguousarray(np.swapaxes(words_of(rows), -1, -2))


def _by_pixel(V: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A readout's signs (outputs, n) as words (outputs, words), for outputs (N,) or (C, H, W)."""
    channels = V.reshape(len(V), *(shape if len(shape) == 3 else (*shape, 1, 1)))
    return words_of(np.moveaxis(channels, 1, -1)).reshape(len(V), -1)


def _unpacked(words: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Words (K, T, B, H, W, words) as uint8 (K, T, B, *shape)."""
    as_bytes = np.ascontiguousarray(words.astype("<u4", copy=False)).view(np.uint8)
    spikes = np.moveaxis(np.unpackbits(as_bytes, axis=-1, count=shape[0], bitorder="little"), -1, 3)
    return np.ascontiguousarray(spikes).reshape(*words.shape[:3], *shape)


def _entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
