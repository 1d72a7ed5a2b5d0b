"""Sums over single bits, compiled by numba: what a layer does where inputs are spikes, with no
multiplication over synapses.

Spikes are packed along their last axis into 32-bit words, the lowest bit first (32 and not 64,
because popcounts then come out in the width of a float32 and the loops vectorise). A convolution is
made a dense product by gathering, for each output pixel, the bits under the kernel (`windows`):
taps in row order, channels within a tap. So these serve all layers:

    counts    binary weights: sum_j w_ij s_j = 2 popcount(w_i & s) - popcount(s), an exact integer
    plane_counts  weights of any alphabet, as bit planes b_k: low popcount(s) + gap sum_k 2^k
    popcount(b_ik & s)
    events    the same, by adding the rows of W^T at the active inputs as small integers: cheaper
    where few of many are active add_rows  real weights: the sum of the rows of W^T at the active
    inputs add_rows  of the transposed bits: the weight gradient, the sum of the rows of g at the
    time steps where an input was active;
              where spikes are many, by fours of inputs, whose sixteen patterns many rows share

All release the GIL and take a range lo..hi of their first axis, for a thread each. Only numpy and
numba are needed here.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.core.extending import intrinsic

from bisnn.bits.compilation import copy, kernel

_M, _B = "float32[:, ::1]", "uint32[:, ::1]"  # matrix of floats, of words
_F = np.float32
_ONE_BITS = np.uint32(0x3F800000)  # of the float32 1.0
_NO_SIGN = np.uint32(0x7FFFFFFF)
_U0, _U1 = np.uint32(0), np.uint32(1)
_L0, _L1, _L32 = np.uint64(0), np.uint64(1), np.uint64(32)
# Rows of a gradient whose selections are added while they stay in the L2 cache; a multiple of 32
ROWS = 512
BLOCK = 16  # words of inputs whose weights stay there, likewise
WORDS = (
    2  # of inputs, to each that is active, from which on adding rows is cheaper than counting bits
)
# Columns that a block of rows is counted for at a time, so that the counts stay in the L1 cache
COLUMNS = 512


@intrinsic
def popcount(typingctx, x):
    """Number of ones of a uint32, as an instruction that LLVM can vectorise; numba has none."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint32(types.uint32), generate


@intrinsic
def lowest(typingctx, x):
    """Index of the lowest one of a uint32 or uint64 that is not 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return x(x), generate


@njit(inline="always")
def _two_words(x, k, end):
    """Words k and k + 1 of a row, of words before `end`, as one: loops over its ones end once for
    both, and it is at such ends that processors guess wrong.
    """
    high = x[k + 1] if k + 1 < end else _U0
    return np.uint64(x[k]) | np.uint64(high) << np.uint64(32)


@kernel(f"boolean(int64, int64, {_B}, {_B})")
def pack(lo, hi, x, words):
    """words[r] = the bits of row r of x, float32 as its bits; whether every value is 0 or 1."""
    n = x.shape[1]
    good = True
    for r in range(lo, hi):
        for k in range(words.shape[1]):
            first = 32 * k
            word = _U0
            if first + 32 <= n:
                part = x[r, first : first + 32]
                other = _U0
                for i in range(32):
                    v = part[i] & _NO_SIGN  # -0.0 is no spike
                    word |= np.uint32(v != _U0) << np.uint32(i)
                    other |= np.uint32((v != _U0) & (part[i] != _ONE_BITS))
                good &= other == _U0
            else:
                for i in range(n - first):
                    v = x[r, first + i] & _NO_SIGN
                    word |= np.uint32(v != _U0) << np.uint32(i)
                    good &= (v == _U0) | (x[r, first + i] == _ONE_BITS)
            words[r, k] = word
    return good


@kernel(f"void(int64, int64, {_B}, {_M})")
def unpack(lo, hi, words, x):
    """x[r] = the bits of row r of words as 0.0 and 1.0: what `pack` has packed."""
    for r in range(lo, hi):
        for k in range(words.shape[1]):
            word, part = words[r, k], x[r, 32 * k : 32 * k + 32]
            for i in range(part.shape[0]):
                part[i] = _F(np.int32((word >> np.uint32(i)) & _U1))


@njit(inline="always")
def _add_bits(source, start, n, target, at):
    """n bits of `source` from bit `start` go to `target` from bit `at`, where there are zeros."""
    while n > 0:
        m = min(n, 32)
        k, shift = start >> 5, np.uint32(start & 31)
        word = source[k] >> shift
        if (start & 31) + m > 32:
            word |= source[k + 1] << (np.uint32(32) - shift)
        # numba's shifts are 64 bits wide
        word = np.uint32(word & ((np.uint64(1) << np.uint64(m)) - np.uint64(1)))
        k, shift = at >> 5, np.uint32(at & 31)
        target[k] |= word << shift
        if (at & 31) + m > 32:
            target[k + 1] |= word >> (np.uint32(32) - shift)
        n, start, at = n - m, start + m, at + m


@kernel("void(int64, int64, uint32[:, :, :, ::1], int64, uint32[:, :, ::1])")
def join_pixels(lo, hi, images, channels, rows):
    """rows[n] (H, words) = the rows of images[n] (H, W, words), whose pixels begin with a word,
    without the gaps behind their channels.
    """
    for n in range(lo, hi):
        for h in range(images.shape[1]):
            row = rows[n, h]
            if channels % 32 == 0:
                copy(images[n, h].reshape(-1), row)
                continue
            row[:] = _U0
            for w in range(images.shape[2]):
                _add_bits(images[n, h, w], 0, channels, row, w * channels)


@kernel("void(int64, int64, uint32[:, :, ::1], int64, uint32[:, :, ::1])")
def interleave(lo, hi, planes, W, rows):
    """rows[n] (H, words) = planes[n] (channels, words), images of W pixels per row, with the
    channels of a pixel side by side, as `join_pixels` has them.
    """
    channels = planes.shape[1]
    for n in range(lo, hi):
        rows[n, :, :] = _U0
        for c in range(channels):
            h, end = 0, W  # the row where the last bit was, and the first pixel behind it
            for k in range(planes.shape[2]):
                word = planes[n, c, k]
                while word:
                    i = 32 * k + np.int64(lowest(word))
                    word &= word - _U1
                    while i >= end:
                        h, end = h + 1, end + W
                    at = (i - end + W) * channels + c
                    rows[n, h, at >> 5] |= _U1 << np.uint32(at & 31)


@njit(inline="always")
def _windows_of_few(images, W, channels, k0, k1, stride0, stride1, pad0, pad1, out):
    """`windows` of kernels whose rows have at most 32 bits. Where they lie is worked out once for
    all images.
    """
    H = images.shape[1]
    for y in range(out.shape[1]):
        top = y * stride0 - pad0
        for x in range(out.shape[2]):
            left = x * stride1 - pad1
            first, last = max(left, 0), min(left + k1, W)
            if first >= last:
                out[:, y, x] = _U0
                continue
            start, size = first * channels, (last - first) * channels
            word, shift, inside = start >> 5, np.uint64(start & 31), (_L1 << np.uint64(size)) - _L1
            second = word + 1 if (start & 31) + size > 32 else word  # else nothing of it is inside
            at = (max(-top, 0) * k1 + first - left) * channels  # of the first row in its window
            for n in range(images.shape[0]):
                target = out[n, y, x]
                target[: at >> 5] = _U0
                # Bits from word k on that are not written yet, and where the next ones go
                waiting, k, place = _L0, at >> 5, np.uint64(at & 31)
                for h in range(max(top, 0), min(top + k0, H)):
                    row = images[n, h]
                    seen = np.uint64(row[word]) | np.uint64(row[second]) << _L32
                    waiting |= ((seen >> shift) & inside) << place
                    place += np.uint64(k1 * channels)
                    if place >= _L32:
                        target[k] = np.uint32(waiting)
                        waiting, k, place = waiting >> _L32, k + 1, place - _L32
                for i in range(k, target.shape[0]):
                    target[i] = np.uint32(waiting)
                    waiting = waiting >> _L32


@kernel(
    "void(int64, int64, uint32[:, :, ::1], int64, int64, int64, int64, int64, int64, int64, int64, "
    "uint32[:, :, :, ::1])"
)
def windows(lo, hi, images, W, channels, k0, k1, stride0, stride1, pad0, pad1, out):
    """out[n, y, x] = the k0 k1 channels bits of images[n] under the kernel at output pixel (y, x),
    0 outside. Images are (H, words): rows of W pixels without gaps, as `join_pixels` makes them.

    So what a row of the kernel sees is one run of bits: of whole words where channels fill them.
    """
    if k1 * channels <= 32:
        _windows_of_few(
            images[lo:hi], W, channels, k0, k1, stride0, stride1, pad0, pad1, out[lo:hi]
        )
        return
    H, whole = images.shape[1], channels % 32 == 0
    for n in range(lo, hi):
        for y in range(out.shape[1]):
            top = y * stride0 - pad0
            for x in range(out.shape[2]):
                target, left = out[n, y, x], x * stride1 - pad1
                target[:] = _U0
                first, last = max(left, 0), min(left + k1, W)
                if first >= last:
                    continue
                start, size = first * channels, (last - first) * channels
                for h in range(max(top, 0), min(top + k0, H)):
                    at = ((h - top) * k1 + first - left) * channels
                    if whole:
                        part, seen = target[at >> 5 :], images[n, h, start >> 5 :]
                        for i in range(size >> 5):  # a slice at once would check for overlap
                            part[i] = seen[i]
                    else:
                        _add_bits(images[n, h], start, size, target, at)


@njit(inline="always")
def _counts_of_few(lo, hi, x, w, out):
    """`counts` of inputs that fit one or two words: nothing to add up."""
    n_words, n_out = w.shape
    w_k, w_l = w[0], w[n_words - 1]
    for r in range(lo, hi):
        a, e, o = x[r, 0], x[r, 1] if n_words == 2 else _U0, out[r]
        active = np.int32(popcount(a) + popcount(e))
        for i in range(n_out):
            up = np.int32(popcount(w_k[i] & a) + popcount(w_l[i] & e))
            o[i] = _F(np.int32(_U1 + _U1) * up - active)


@kernel(f"void(int64, int64, {_B}, {_B}, {_M})")
def counts(lo, hi, x, w, out):
    """out[r, i] = 2 popcount(w[:, i] & x[r]) - popcount(x[r]) of x (R, words), w (words, n_out).

    Four rows and two words at a time: weights are then read from the cache once for four rows, and
    sums written once for two words.
    """
    n_words, n_out = w.shape
    if n_words <= 2:
        _counts_of_few(lo, hi, x, w, out)
        return
    # One array: the compiler sees that its four parts do not overlap
    sums = np.empty(4 * COLUMNS, np.uint32)
    for first in range(0, n_out, COLUMNS):
        n = min(COLUMNS, n_out - first)
        for r in range(lo, hi, 4):
            rows = min(4, hi - r)
            for j in range(4):
                sums[j * COLUMNS : j * COLUMNS + n] = _U0
            # Of the last rows some count twice
            r_1, r_2, r_3 = min(r + 1, hi - 1), min(r + 2, hi - 1), min(r + 3, hi - 1)
            for k in range(0, n_words - 1, 2):
                a, b, c, d = x[r, k], x[r_1, k], x[r_2, k], x[r_3, k]
                e, f, g, h = x[r, k + 1], x[r_1, k + 1], x[r_2, k + 1], x[r_3, k + 1]
                if not (a | b | c | d | e | f | g | h):
                    continue
                w_k, w_l = w[k, first : first + n], w[k + 1, first : first + n]
                if rows == 1:
                    for i in range(n):
                        sums[i] += popcount(w_k[i] & a) + popcount(w_l[i] & e)
                    continue
                for i in range(n):
                    sums[i] += popcount(w_k[i] & a) + popcount(w_l[i] & e)
                    sums[COLUMNS + i] += popcount(w_k[i] & b) + popcount(w_l[i] & f)
                    sums[2 * COLUMNS + i] += popcount(w_k[i] & c) + popcount(w_l[i] & g)
                    sums[3 * COLUMNS + i] += popcount(w_k[i] & d) + popcount(w_l[i] & h)
            if n_words % 2:
                k = n_words - 1
                a, b, c, d = x[r, k], x[r_1, k], x[r_2, k], x[r_3, k]
                w_k = w[k, first : first + n]
                for i in range(n):
                    sums[i] += popcount(w_k[i] & a)
                    sums[COLUMNS + i] += popcount(w_k[i] & b)
                    sums[2 * COLUMNS + i] += popcount(w_k[i] & c)
                    sums[3 * COLUMNS + i] += popcount(w_k[i] & d)
            for j in range(rows):
                active = _U0
                for k in range(n_words):
                    active += popcount(x[r + j, k])
                o, part = out[r + j, first : first + n], sums[j * COLUMNS : j * COLUMNS + n]
                for i in range(n):
                    o[i] = _F(np.int32(_U1 + _U1) * np.int32(part[i]) - np.int32(active))


@njit(inline="always")
def _add_plane(x, r, last, w, first, n, shift, sums):
    """Add 2^shift times the popcounts of one plane's words w to the sums of rows r to r + 3 of x.

    w is (words, n_out), taken from column `first` on; of the rows, those up to `last` exist.
    """
    r_1, r_2, r_3 = min(r + 1, last), min(r + 2, last), min(r + 3, last)
    for k in range(w.shape[0]):
        a, b, c, d = x[r, k], x[r_1, k], x[r_2, k], x[r_3, k]
        if not (a | b | c | d):
            continue
        w_k = w[k, first : first + n]
        for i in range(n):
            sums[i] += popcount(w_k[i] & a) << shift
            sums[COLUMNS + i] += popcount(w_k[i] & b) << shift
            sums[2 * COLUMNS + i] += popcount(w_k[i] & c) << shift
            sums[3 * COLUMNS + i] += popcount(w_k[i] & d) << shift


@kernel(f"void(int64, int64, {_B}, uint32[:, :, ::1], int64, int64, {_M})")
def plane_counts(lo, hi, x, w, low, gap, out):
    """out[r, i] = sum_j w_ij s_j for rows x (R, words) and weights low + gap sum_k 2^k b_k, whose
    bit planes b_k are w (planes, words, n_out). Four rows at a time, as `counts`, which is the case
    of {-1, +1}.
    """
    if w.shape[0] == 1 and low == -1 and gap == 2:
        counts(lo, hi, x, w[0], out)
        return
    n_out = w.shape[2]
    least, step = np.int32(low), np.int32(gap)
    sums = np.empty(4 * COLUMNS, np.uint32)
    for first in range(0, n_out, COLUMNS):
        n = min(COLUMNS, n_out - first)
        for r in range(lo, hi, 4):
            for j in range(4):
                sums[j * COLUMNS : j * COLUMNS + n] = _U0
            for plane in range(w.shape[0]):
                _add_plane(x, r, hi - 1, w[plane], first, n, np.uint32(plane), sums)
            for j in range(min(4, hi - r)):
                active = _U0
                for k in range(x.shape[1]):
                    active += popcount(x[r + j, k])
                base = least * np.int32(active)
                o, part = out[r + j, first : first + n], sums[j * COLUMNS : j * COLUMNS + n]
                for i in range(n):
                    o[i] = _F(base + step * np.int32(part[i]))


@kernel(f"void(int64, int64, {_B}, uint32[:, :, ::1], int64, int64, int8[:, ::1], {_M})")
def events(lo, hi, x, w, low, gap, rows, out):
    """As `plane_counts`, cheaper where few inputs are active: adds `rows` of W^T, (n_in, n_out)."""
    n_words, n_out = w.shape[1], w.shape[2]
    active, block = _U0, x[lo:hi].reshape(-1)
    for k in range(block.shape[0]):
        active += popcount(block[k])
    if active * WORDS > block.shape[0] * w.shape[0]:
        plane_counts(lo, hi, x, w, low, gap, out)
        return
    index = np.empty(32 * n_words, np.uint32)
    total = np.empty(n_out, np.int32)
    for r in range(lo, hi):
        count = 0
        for k in range(n_words):
            word = x[r, k]
            while word:
                index[count] = np.uint32(32 * k) + lowest(word)
                word &= word - _U1
                count += 1
        total[:] = np.int32(0)
        for k in range(0, count - 3, 4):
            a, b, c, d = rows[index[k]], rows[index[k + 1]], rows[index[k + 2]], rows[index[k + 3]]
            for i in range(n_out):
                total[i] += np.int32(
                    (np.int16(a[i]) + np.int16(b[i])) + (np.int16(c[i]) + np.int16(d[i]))
                )
        for k in range(count - count % 4, count):
            a = rows[index[k]]
            for i in range(n_out):
                total[i] += np.int32(a[i])
        o = out[r]
        for i in range(n_out):
            o[i] = _F(total[i])


@njit(inline="always")
def _add_listed(index, count, rows, out):
    """out += the sum of rows[index[k]] for k < count: eight at a time, to read `out` less often."""
    k = 0
    while k + 8 <= count:
        a, b, c, d = rows[index[k]], rows[index[k + 1]], rows[index[k + 2]], rows[index[k + 3]]
        e, f, g, h = rows[index[k + 4]], rows[index[k + 5]], rows[index[k + 6]], rows[index[k + 7]]
        for i in range(out.shape[0]):
            out[i] += ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]))
        k += 8
    while k + 2 <= count:
        a, b = rows[index[k]], rows[index[k + 1]]
        for i in range(out.shape[0]):
            out[i] += a[i] + b[i]
        k += 2
    if k < count:
        a = rows[index[k]]
        for i in range(out.shape[0]):
            out[i] += a[i]


@kernel(f"void(int64, int64, {_B}, {_M}, {_M})")
def add_rows(lo, hi, x, w, out):
    """out[r] = the sum of w[j] over the ones j of row r of x (R, words); w is (n_in, n_out)."""
    index = np.empty(32 * BLOCK, np.uint32)
    out[lo:hi] = _F(0)
    for first in range(0, x.shape[1], BLOCK):
        end = min(first + BLOCK, x.shape[1])
        for r in range(lo, hi):
            count = 0
            for k in range(first, end, 2):
                word = _two_words(x[r], k, end)
                while word:
                    index[count] = np.uint32(32 * k + lowest(word))
                    word &= word - _L1
                    count += 1
            _add_listed(index, count, w, out[r])


@kernel(f"void(int64, int64, {_B}, {_M}, {_M})")
def add_rows_transposed(lo, hi, x, g, out):
    """out[j] += the sum of g[r] over rows r of x (R, words) with bit j set; j in words lo..hi."""
    index = np.empty((64, ROWS), np.uint32)  # of two words' inputs: the rows where each is active
    count = np.empty(64, np.int64)
    for first in range(0, x.shape[0], ROWS):
        for k in range(lo, hi, 2):
            count[:] = 0
            for r in range(first, min(first + ROWS, x.shape[0])):
                word = _two_words(x[r], k, hi)
                while word:
                    j = np.int64(lowest(word))
                    index[j, count[j]] = r
                    count[j] += 1
                    word &= word - _L1
            for j in range(min(64, out.shape[0] - 32 * k)):
                _add_listed(index[j], count[j], g, out[32 * k + j])


@kernel(f"void(int64, int64, {_B}, {_M}, {_M})")
def add_rows_by_fours(lo, hi, x, g, out):
    """As `add_rows_transposed`, for frequent spikes: adds rows with the same four bits first."""
    index = np.empty((16, ROWS), np.uint32)
    count = np.empty(16, np.int64)
    total = np.empty(out.shape[1], np.float32)
    for first in range(0, x.shape[0], ROWS):
        for four in range(8 * lo, min(8 * hi, (out.shape[0] + 3) // 4)):
            k, shift = four >> 3, np.uint32(4 * (four & 7))
            count[:] = 0
            for r in range(first, min(first + ROWS, x.shape[0])):
                v = (x[r, k] >> shift) & np.uint32(15)
                index[v, count[v]] = r
                count[v] += 1
            for v in range(1, 16):
                if count[v]:
                    total[:] = _F(0)
                    _add_listed(index[v], count[v], g, total)
                    for j in range(4):
                        if (v >> j) & 1:
                            o = out[4 * four + j]
                            for i in range(o.shape[0]):
                                o[i] += total[i]
