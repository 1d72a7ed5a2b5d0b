"""Inference on packed bits: spikes in, spikes out, nothing else kept. Hard weights, float32, on the CPU.

One time step of one recording at a time: gather the bits under the kernel, count, move the neurons on, pack what fires. Currents
and traces stay in the cache; spikes are those of the other kernels, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic
from torch import Tensor

from bisnn import layers
from bisnn.kernels import bits
from bisnn.kernels.bits import kernel
from bisnn.kernels.cpu import run
from bisnn.kernels.reference import FLUSH

_ZERO, _ONE, _FLUSH = np.float32(0), np.float32(1), np.float32(FLUSH)
_U0 = np.uint32(0)
GROUP = 8  # recordings of a dense layer that are worked on together: weights are then read once for all of them


@dataclass(frozen=True)
class Layer:
    """A layer's constants. A dense one is a convolution of one pixel."""

    weights: np.ndarray  # uint32, (words, n_out): bits of the inputs in the order of `bits.windows`
    channels: int  # inputs of a pixel
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    pool: int
    kappa: np.float32
    constants: np.ndarray  # float32: a_m, a_s, a_r, theta

    def size(self, x: np.ndarray) -> tuple[int, int]:
        """Height and width of the neurons, before pooling, for inputs (T, B, H, W, words)."""
        places = zip(x.shape[2:4], self.kernel, self.stride, self.padding, strict=True)
        height, width = ((n + 2 * p - k) // s + 1 for n, k, s, p in places)
        return height, width

    def of_windows(self) -> Layer:
        """The same layer for inputs that `windows` has gathered already."""
        return replace(self, channels=32 * len(self.weights), kernel=(1, 1), stride=(1, 1), padding=(0, 0))


@intrinsic
def _negative(typingctx, x, first):
    """The sign bits of x[first], ..., x[first + 31], float32, as one word: a few instructions, where a loop would take dozens."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        lanes = ir.VectorType(ir.IntType(32), 32)
        at = builder.bitcast(builder.gep(array.data, [arguments[1]]), lanes.as_pointer())
        signs = builder.icmp_signed("<", builder.load(at, align=4), ir.Constant(lanes, [0] * 32))
        return builder.bitcast(signs, ir.IntType(32))

    return types.uint32(x, types.int64), generate


@kernel(
    "void(int64, int64, uint32[:, :, :, :, ::1], uint32[:, ::1], int64, int64, int64, int64, int64, int64, int64, int64, int64, "
    "float32, float32[::1], uint32[:, :, :, :, ::1])"
)
def _spikes(lo, hi, x, weights, channels, k0, k1, s0, s1, p0, p1, pool, group, kappa, c, out):
    """Groups lo..hi of `group` recordings of x (T, B, H, W, words) through a layer; out is (T, B, H', W', words)."""
    a_m, a_s, a_r, theta = c[0], c[1], c[2], c[3]
    T, B, n_out = x.shape[0], x.shape[1], weights.shape[1]
    height, width = (x.shape[2] + 2 * p0 - k0) // s0 + 1, (x.shape[3] + 2 * p1 - k1) // s1 + 1
    pixels = height * width
    rows = np.empty((group, height, width, weights.shape[0]), np.uint32)
    u = np.empty((group * pixels, n_out), np.float32)  # currents, then theta - u: its sign bit is the spike
    p, q, r = np.empty_like(u), np.empty_like(u), np.empty_like(u)
    fires = np.empty(32, np.uint32)
    for first in range(lo * group, min(hi * group, B), group):
        n = min(group, B - first)
        p[:], q[:], r[:] = _ZERO, _ZERO, _ZERO
        u_, p_, q_, r_ = u.reshape(-1), p.reshape(-1), q.reshape(-1), r.reshape(-1)
        signs = u_.view(np.uint32)
        for t in range(T):
            if k0 * k1 * s0 * s1 == 1 and p0 + p1 == 0:
                rows[:n] = x[t, first : first + n]
            else:
                bits.windows(0, n, x[t, first : first + n], channels, k0, k1, s0, s1, p0, p1, rows)
            bits.counts(0, n * pixels, rows.reshape((group * pixels, weights.shape[0])), weights, u)
            for i in range(n * pixels * n_out):
                v = kappa * (p_[i] - q_[i]) - r_[i]
                p_i, q_i, r_i = a_m * (p_[i] + u_[i]), a_s * (q_[i] + u_[i]), a_r * (r_[i] + (_ONE if v > theta else _ZERO))
                u_[i] = theta - v
                p_[i] = _ZERO if abs(p_i) <= _FLUSH else p_i
                q_[i] = _ZERO if abs(q_i) <= _FLUSH else q_i
                r_[i] = _ZERO if abs(r_i) <= _FLUSH else r_i
            if pool == 1 and n_out % 32 == 0:  # as it often is: words lie as potentials do
                words = out[t, first : first + n].reshape(-1)
                for k in range(words.shape[0]):
                    words[k] = _negative(u_, 32 * k)
                continue
            for b in range(n):
                for y in range(out.shape[2]):
                    for z in range(out.shape[3]):
                        target = out[t, first + b, y, z]
                        for k in range(target.shape[0]):
                            m = min(32, n_out - 32 * k)
                            word = _U0
                            fires[:] = _U0
                            for dy in range(pool):
                                for dx in range(pool):
                                    at = ((b * height + y * pool + dy) * width + z * pool + dx) * n_out + 32 * k
                                    signs_k = signs[at : at + m]
                                    for i in range(m):
                                        fires[i] |= signs_k[i] >> np.uint32(31)
                            for i in range(32):
                                word |= fires[i] << np.uint32(i)
                            target[k] = word


def spikes(x: np.ndarray, layer: Layer) -> np.ndarray:
    """What leaves the layer, (T, B, H', W', words), for packed inputs x (T, B, H, W, words); all state starts at zero."""
    height, width = layer.size(x)
    out = np.empty((*x.shape[:2], height // layer.pool, width // layer.pool, -(-layer.weights.shape[1] // 32)), np.uint32)
    group = GROUP if height * width == 1 else 1
    settings = (layer.channels, *layer.kernel, *layer.stride, *layer.padding, layer.pool, group)
    work = x.shape[0] * x.shape[1] * height * width * layer.weights.size
    run(_spikes, work, -(-x.shape[1] // group), x, layer.weights, *settings, layer.kappa, layer.constants, out)
    return out


def windows(x: np.ndarray, layer: Layer) -> np.ndarray:
    """The inputs of `layer.of_windows()`, (T, B, H', W', words): what members with other weights share."""
    images = x.reshape(-1, *x.shape[2:])
    out = np.empty((len(images), *layer.size(x), len(layer.weights)), np.uint32)
    run(bits.windows, out.size, len(images), images, layer.channels, *layer.kernel, *layer.stride, *layer.padding, out)
    return out.reshape(*x.shape[:2], *out.shape[1:])


@kernel("void(int64, int64, uint32[:, ::1], uint32[:, ::1], float32[:, ::1])")
def _readout(lo, hi, x, weights, out):
    for r in range(lo, hi):
        active = _U0
        for k in range(x.shape[1]):
            active += bits.popcount(x[r, k])
        for i in range(weights.shape[0]):
            total = _U0
            for k in range(x.shape[1]):
                total += bits.popcount(x[r, k] & weights[i, k])
            out[r, i] = np.float32(np.int32(2) * np.int32(total) - np.int32(active))


def readout(x: np.ndarray, V: np.ndarray) -> np.ndarray:
    """sum_j V_ij s_j, (R, outputs), of rows of bits x (R, words) and V (outputs, words): few outputs, so along the words."""
    out = np.empty((len(x), len(V)), np.float32)
    run(_readout, x.size * len(V), len(x), x, V, out)
    return out


# From PyTorch to packed bits


def images_of(x: Tensor) -> np.ndarray:
    """Spikes (T, B, N) or (T, B, C, H, W) as (T, B, H, W, words)."""
    x = x[..., None, None] if x.ndim == 3 else x
    return _words(x.movedim(2, -1) > 0)


def layer_of(layer: layers.Layer, up: Tensor) -> Layer:
    """A dense or convolutional layer whose weights are +1 where `up`, else -1."""
    kernel, stride, padding, pool = (1, 1), (1, 1), (0, 0), 1
    if isinstance(layer, layers.Conv2d):
        kernel, stride, padding, pool = layer.kernel_size, layer.stride, layer.padding, layer.pool
    elif len(layer.input_shape) == 3:  # a dense layer on images is a kernel as large as they are
        up, kernel = up.unflatten(1, layer.input_shape), (layer.input_shape[1], layer.input_shape[2])
    inputs = up if up.ndim == 2 else up.movedim(1, -1).flatten(1)
    constants = (np.float32(layer.kappa.item()), layer.constants.numpy())
    return Layer(np.ascontiguousarray(_words(inputs).T), layer.input_shape[0], kernel, stride, padding, pool, *constants)


def readout_of(up: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """A readout's signs (outputs, n) as bits (outputs, words), for what leaves a layer of this shape, (N,) or (C, H, W)."""
    by_pixel = up.unflatten(1, shape if len(shape) == 3 else (*shape, 1, 1)).movedim(1, -1)
    return _words(by_pixel).reshape(len(up), -1)


def _words(x: Tensor) -> np.ndarray:
    """Booleans packed along the last axis into 32-bit words."""
    packed = np.packbits(x.numpy(), axis=-1, bitorder="little")
    words = np.zeros((*packed.shape[:-1], -(-packed.shape[-1] // 4) * 4), np.uint8)
    words[..., : packed.shape[-1]] = packed
    return words.view("<u4").astype(np.uint32, copy=False)
