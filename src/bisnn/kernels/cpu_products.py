"""Dense products of float32 matrices, compiled by numba: for gradients, whose sums are rounded.

A tile of the result stays in registers while the sum runs, which numba's own loops cannot express
and which makes the difference to a product from BLAS too: matrices are small here, lie in the cache
and need no packing. Rows and columns that fill no tile take more time each.
"""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.extending import intrinsic

from bisnn.bits.compilation import kernel

LANES = 16
ROWS = 6
# Vectors of LANES columns: of the 32 registers that long, or of 16 with half as many lanes
VECTORS = 2 if llvm.get_host_cpu_features().get("avx512f") else 1
COLUMNS = LANES * VECTORS
_VECTOR, _INT = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)
_V = "float32[::1]"


@njit(inline="always")
def aligned(size):
    """An uninitialised array of float32 that begins with a line of the cache."""
    array = np.empty(size + LANES, np.float32)
    return array[(-array.ctypes.data // 4) % LANES :][:size]


def _tile(rows: int, vectors: int):
    """A function that computes rows x (LANES vectors) numbers of `multiply`."""

    @intrinsic
    def tile(typingctx, a, a_at, a_row, a_step, b, b_at, b_step, c, c_at, c_row, steps, add):
        i = types.int64
        return types.void(a, i, i, i, b, i, i, c, i, i, i, types.boolean), generate

    def generate(context, builder, signature, arguments):
        _, a_at, a_row, a_step, _, b_at, b_step, _, c_at, c_row, steps, add = arguments

        def start(array, at, row=None, number=0):
            data = context.make_array(signature.args[array])(
                context, builder, arguments[array]
            ).data
            place = at if row is None else builder.add(at, builder.mul(row, _INT(number)))
            return builder.gep(data, [place])

        def vector(pointer, number):
            place = builder.gep(pointer, [_INT(LANES * number)])
            return builder.bitcast(place, _VECTOR.as_pointer())

        def spread(number):
            nothing = ir.Constant(_VECTOR, ir.Undefined)
            one = builder.insert_element(nothing, number, ir.IntType(32)(0))
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            return builder.shuffle_vector(one, nothing, lanes)

        zero, fused = ir.Constant(_VECTOR, [0.0] * LANES), ("contract",)
        first_a, first_b = [start(0, a_at, a_row, r) for r in range(rows)], start(4, b_at)
        of_c = [start(7, c_at, c_row, r) for r in range(rows)]
        places = [[vector(row, v) for v in range(vectors)] for row in of_c]
        totals = [[cgutils.alloca_once_value(builder, zero) for _ in row] for row in places]
        with builder.if_then(add):
            for row, kept in zip(places, totals, strict=True):
                for place, t in zip(row, kept, strict=True):
                    builder.store(builder.load(place, align=4), t)
        with cgutils.for_range(builder, steps) as loop:
            row_b = builder.gep(first_b, [builder.mul(loop.index, b_step)])
            of_b = [builder.load(vector(row_b, v), align=4) for v in range(vectors)]
            for a_r, row in zip(first_a, totals, strict=True):
                place = builder.gep(a_r, [builder.mul(loop.index, a_step)])
                factor = spread(builder.load(place))
                for part, t in zip(of_b, row, strict=True):
                    product = builder.fmul(factor, part, flags=fused)
                    builder.store(builder.fadd(builder.load(t), product, flags=fused), t)
        for row, kept in zip(places, totals, strict=True):
            for place, t in zip(row, kept, strict=True):
                builder.store(builder.load(t), place, align=4)
        return context.get_dummy_value()

    return tile


_whole, _of_a_row, _short = _tile(ROWS, VECTORS), _tile(1, VECTORS), _tile(ROWS, 1)
_least = _tile(1, 1)


@kernel(
    f"void({_V}, int64, int64, int64, {_V}, int64, int64, {_V}, int64, int64, int64, int64, int64, "
    "boolean)",
    contract=True,
)
def multiply(a, a_at, a_row, a_step, b, b_at, b_step, c, c_at, c_row, rows, steps, columns, add):
    """c = a b, or c += a b, of matrices anywhere in arrays: (rows, steps) times (steps, columns).

    Numbers are at a[a_at + row a_row + step a_step], b[b_at + step b_step + column] and
    c[c_at + row c_row + column].
    """
    whole_rows = rows - rows % ROWS
    column = 0
    while column + LANES <= columns:
        wide = column + COLUMNS <= columns
        b_c, c_c = b_at + column, c_at + column
        for r in range(0, whole_rows, ROWS):
            a_r, c_r = a_at + r * a_row, c_c + r * c_row
            if wide:
                _whole(a, a_r, a_row, a_step, b, b_c, b_step, c, c_r, c_row, steps, add)
            else:
                _short(a, a_r, a_row, a_step, b, b_c, b_step, c, c_r, c_row, steps, add)
        for r in range(whole_rows, rows):
            a_r, c_r = a_at + r * a_row, c_c + r * c_row
            if wide:
                _of_a_row(a, a_r, a_row, a_step, b, b_c, b_step, c, c_r, c_row, steps, add)
            else:
                _least(a, a_r, a_row, a_step, b, b_c, b_step, c, c_r, c_row, steps, add)
        column += COLUMNS if wide else LANES
    for r in range(rows):
        part = c[c_at + r * c_row + column : c_at + r * c_row + columns]
        if not add:
            part[:] = 0
        for i in range(steps):
            factor = a[a_at + r * a_row + i * a_step]
            b_i = b[b_at + i * b_step + column : b_at + i * b_step + columns]
            for j in range(part.shape[0]):
                part[j] += factor * b_i[j]
