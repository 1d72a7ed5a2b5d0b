"""Loops over neurons, compiled by numba for each class of them: a loop is written once, and a
neuron's own step (`Neuron.compiled`) is inlined in it.

Only numpy and numba are needed here.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.extending import intrinsic

from bisnn.bits.compilation import kernel
from bisnn.neuron import Neuron

# What loops call, and every neuron has its own of.
TRACES = SHARED = EACH = 0  # numbers of its traces, and of its constants of either kind
TRACE = np.float32  # type of both
OWN = False  # whether neurons have constants of their own: a kernel of its own, as the caller says


def potential(state, each, shared):
    """The potential u and the threshold theta: the neuron fires where u > theta."""
    raise NotImplementedError


def advance(I, fires, state, each, shared):
    """The state of the next time step."""
    raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Loop:
    """A function in which the names above stand for those of a neuron, and other loops for
    themselves with the same neuron; `loop(neuron)` is the kernel for a class of neurons.

    In its signature `trace` is the type of traces and constants. Kernels are compiled when first
    asked for, and kept on disk by the content of the file that the neuron is from: what its step
    uses belongs in that file. Those of classes without a file or a place in it stay in memory.
    """

    function: Callable[..., Any]
    signature: str
    kernels: dict[Any, Callable[..., Any]] = field(default_factory=dict, repr=False)

    def __call__(self, neuron: type[Neuron], own: bool = False) -> Callable[..., Any]:
        if (neuron, own) not in self.kernels:
            self.kernels[neuron, own] = self._compiled(neuron, own)
        return self.kernels[neuron, own]

    def _compiled(self, neuron: type[Neuron], own: bool) -> Callable[..., Any]:
        assert neuron.compiled is not None
        code, names = self.function.__code__, dict(self.function.__globals__)
        names |= {n: names[n](neuron) for n in code.co_names if isinstance(names.get(n), Loop)}
        names |= zip(("potential", "advance"), neuron.compiled(), strict=True)
        names |= {"TRACES": len(neuron.traces), "TRACE": neuron.dtype, "OWN": own}
        names |= {"SHARED": len(neuron.shared), "EACH": len(neuron.each)}
        function, source = FunctionType(code, names), _digest(neuron)
        # By which numba finds what it kept
        function.__qualname__ = f"{code.co_name}_{neuron.__name__}_{own:d}_{source}"
        signature = self.signature.replace("trace", np.dtype(neuron.dtype).name)
        return kernel(signature, keep=bool(source))(function)


def loop(signature: str) -> Callable[[Callable[..., Any]], Loop]:
    return lambda function: Loop(function, signature)


def _digest(neuron: type[Neuron]) -> str:
    """Of the file that a class is from, its place there, and this file; else empty."""
    place = neuron.__qualname__
    try:
        content = Path(inspect.getfile(neuron)).read_bytes() + Path(__file__).read_bytes()
    except (OSError, TypeError):
        return ""
    digest = hashlib.blake2b(place.encode() + content, digest_size=8).hexdigest()
    return "" if "<locals>" in place else digest


def _pointers(context, builder, kind, x, i, count):
    """Where x[0, i], x[1, i], ... lie."""
    array = context.make_array(kind)(context, builder, x)
    rows = (context.get_constant(types.intp, k) for k in range(count))
    return [cgutils.get_item_pointer(context, builder, kind, array, [row, i]) for row in rows]


@intrinsic(prefer_literal=True)
def column(typingctx, x, i, count):
    """x[0, i], x[1, i], ..., so many, as a tuple."""
    n = count.literal_value

    def generate(context, builder, signature, arguments):
        places = _pointers(context, builder, signature.args[0], *arguments[:2], n)
        return context.make_tuple(builder, signature.return_type, map(builder.load, places))

    return types.UniTuple(x.dtype, n)(x, types.intp, count), generate


@intrinsic(prefer_literal=True)
def store(typingctx, x, i, count, values):
    """x[0, i], x[1, i], ..., so many, = values, which must be of the type of x."""
    # Where this raises, numba tries again without the literal
    wanted = types.UniTuple(x.dtype, getattr(count, "literal_value", len(values)))
    if values != wanted:  # converted, they would be rounded once more
        raise TypingError(f"advance: must return {wanted}, the traces; got {values}; convert them")

    def generate(context, builder, signature, arguments):
        places = _pointers(context, builder, signature.args[0], *arguments[:2], wanted.count)
        for value, place in zip(cgutils.unpack_tuple(builder, arguments[3]), places, strict=True):
            builder.store(value, place)
        return context.get_dummy_value()

    return types.void(x, types.intp, count, values), generate


@intrinsic
def store_bits(typingctx, x, i, value):
    """x[i] = the bits of a value as wide as x's: as a view of x, which would cost more."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        bits = builder.bitcast(arguments[2], array.data.type.pointee)
        builder.store(bits, builder.gep(array.data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(x, types.intp, value), generate
