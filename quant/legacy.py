"""Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 without importance weights: blocks of 32 with one float16 scale (and minimum).

    Q8_0  34 bytes: d f16, 32 × int8            x = d·q
    Q4_0  18 bytes: d f16, 16 × 2 nibbles       x = d·(q - 8)
    Q4_1  20 bytes: d f16, m f16, 16 × 2 nibbles   x = d·q + m
    Q5_0  22 bytes: d f16, qh u32, 16 × 2 nibbles  x = d·(q - 16), bit j of qh is bit 4 of element j
    Q5_1  24 bytes: d f16, m f16, qh u32, 16 × 2 nibbles  x = d·q + m

Byte j of the nibbles holds element j in its low half and element j + 16 in its high half.

The workspace is sideways (see load.py): eight rows of four lanes per block.
"""

from __future__ import annotations

import numpy as np

from .half import HalfCoder
from .kernel import GOOD, Array, Records, field, first_bad_half, join_lanes, signed_extreme, spread_lanes
from .load import Loader

_HALF_BELOW = np.uint32(0x3EFFFFFF)  # the largest float32 below one half
_SIGN = np.uint32(0x80000000)


class Block32:
    """Workspace and the steps that the five types share."""

    def __init__(self, capacity: int) -> None:
        blocks = capacity // 32
        self._loader = Loader(capacity)
        self._half = HalfCoder(blocks * 2)
        self._flat = np.empty(capacity, np.float32)
        self._work = np.empty(capacity, np.float32)
        self._bytes = np.empty(capacity, np.uint8)
        self._lanes = np.empty(blocks * 4, np.float32)
        self._scalar = np.empty((3, blocks), np.float32)
        self._pair = np.empty(blocks * 2, np.float32)
        self._fit(blocks)

    def _fit(self, n: int) -> None:
        """Make the views for ``n`` blocks."""
        self.n = n
        self.x = self._flat[: 32 * n].reshape(8, 4 * n)
        self.y = self._work[: 32 * n].reshape(8, 4 * n)
        self.q = self._bytes[: 32 * n].reshape(8, 4 * n)
        self.lanes = self._lanes[: 4 * n]
        self.high, self.inverse, self.spare = self._scalar[:, :n]
        self.pair = self._pair[: 2 * n]
        self.d, self.low = self.pair[:n], self.pair[n:]

    def load(self, src: Array, n: int) -> None:
        if n != self.n:
            self._fit(n)
        self._loader.load(src, self._flat[: 32 * n], 8, 4)

    def reduce(self, op: np.ufunc, out: Array) -> None:
        """``op`` (maximum or minimum; both pass NaN on) over each block of x."""
        op.reduce(self.x, axis=0, out=self.lanes)
        join_lanes(op, self.lanes, out, self.y[0])

    def absolute_maximum(self, out: Array) -> None:
        self.reduce(np.maximum, out)
        self.reduce(np.minimum, self.low)
        np.negative(self.low, out=self.low)
        np.maximum(out, self.low, out=out)
        np.add(out, 0.0, out=out)  # -0.0 becomes 0.0

    def invert(self) -> None:
        """inverse = 1/d, or 0 where d is 0; then spread over the lanes."""
        np.divide(1.0, self.d, out=self.inverse)
        np.copyto(self.inverse, 0.0, where=self.d == 0)
        spread_lanes(self.inverse, self.lanes)

    def store_scales(self, values: Array, out: Records) -> int:
        """Write ``values`` [n] or [2n] as the float16 fields at the start of the records; the first bad block."""
        bits = self._half.encode(values).reshape(-1, self.n)
        np.copyto(field(out, 0, np.uint16, len(bits)).T, bits)
        if not self._half.has_nonfinite(bits.reshape(-1)):
            return GOOD
        return first_bad_half(np.maximum.reduce(bits & 0x7FFF, axis=0))

    def store_nibbles(self, out: Records, start: int) -> None:
        """Pack q (values below 16; the upper half of the byte must be free) into 16 bytes a block."""
        low, high = self.q[:4].view(np.uint32), self.q[4:].view(np.uint32)
        np.left_shift(high, 4, out=high)
        np.bitwise_or(low, high, out=low)
        np.copyto(field(out, start, np.uint32, 4).T, self.q[:4].view(np.uint32))

    def limit(self, levels: int) -> None:
        """q = min(q, 2·levels - 1); q is at most 2·levels."""
        q = self.q.view(np.uint32)
        over = self.y.reshape(-1)[: q.size].view(np.uint32).reshape(q.shape)
        np.right_shift(q, 4 if levels == 8 else 5, out=over)
        np.bitwise_and(over, 0x01010101, out=over)
        np.subtract(q, over, out=q)

    def store_fifth_bits(self, out: Records, start: int) -> None:
        """Move bit 4 of every q into the u32 at ``start``, bit j for element j."""
        n, q = self.n, self.q.view(np.uint32)
        words = self.y.reshape(-1)[: 8 * n].view(np.uint32).reshape(8, n)
        np.right_shift(q, 4, out=words)
        np.bitwise_and(words, 0x01010101, out=words)
        np.multiply(words, 0x01020408, out=words)  # gathers the four bits in the top byte
        np.right_shift(words, 24, out=words)
        np.bitwise_and(words, 15, out=words)
        for row in range(1, 8):
            np.left_shift(words[row], 4 * row, out=words[row])
        np.bitwise_or.reduce(words, axis=0, out=self.spare.view(np.uint32))
        field(out, start, np.uint32, 1)[:, 0] = self.spare.view(np.uint32)
        np.bitwise_and(q, 0x0F0F0F0F, out=q)

    def tied(self, indices: Array) -> Array:
        """Elements [m, 32] of the given blocks, in order."""
        return self.x.reshape(8, self.n, 4)[:, indices].transpose(1, 0, 2).reshape(-1, 32)


class Q8Kernel(Block32):
    def encode(self, src: Array, out: Records, first: int) -> int:
        self.load(src, len(out))
        self.absolute_maximum(self.high)
        np.divide(self.high, 127.0, out=self.d)
        self.invert()
        np.multiply(self.x, self.lanes, out=self.x)
        # Half away from zero: add the largest float below one half, with the value's sign, then truncate.
        bits, signs = self.x.view(np.uint32), self.y.view(np.uint32)
        np.bitwise_and(bits, _SIGN, out=signs)
        np.bitwise_or(signs, _HALF_BELOW, out=signs)
        np.add(self.x, self.y, out=self.x)
        np.copyto(self.q.view(np.int8), self.x, casting="unsafe")
        np.copyto(field(out, 2, np.uint32, 8).T, self.q.view(np.uint32))
        return self.store_scales(self.d, out)


class _Symmetric(Block32):
    def quantize_symmetric(self, src: Array, n: int, levels: int) -> None:
        """d = extreme / -levels; q = x/d + levels, rounded."""
        self.load(src, n)
        self.reduce(np.maximum, self.high)
        self.reduce(np.minimum, self.low)
        signed_extreme(self.high, self.low, self.tied)
        np.divide(self.high, -float(levels), out=self.d)
        self.invert()
        np.multiply(self.x, self.lanes, out=self.x)
        np.add(self.x, levels + 0.5, out=self.x)
        np.copyto(self.q, self.x, casting="unsafe")
        self.limit(levels)


class Q4Kernel(_Symmetric):
    def encode(self, src: Array, out: Records, first: int) -> int:
        self.quantize_symmetric(src, len(out), 8)
        self.store_nibbles(out, 2)
        return self.store_scales(self.d, out)


class Q5Kernel(_Symmetric):
    def encode(self, src: Array, out: Records, first: int) -> int:
        self.quantize_symmetric(src, len(out), 16)
        self.store_fifth_bits(out, 2)
        self.store_nibbles(out, 6)
        return self.store_scales(self.d, out)


class _Affine(Block32):
    def quantize_affine(self, src: Array, out: Records, nmax: int) -> int:
        """d = (maximum - minimum) / nmax; q = (x - minimum) / d, rounded; stores d and m, returns the bad block."""
        self.load(src, len(out))
        self.reduce(np.maximum, self.high)
        self.reduce(np.minimum, self.low)
        zero = np.flatnonzero(self.low == 0)
        if zero.size:  # the sign of a zero minimum is that of the first zero
            values = self.tied(zero)
            self.low[zero] = values[np.arange(zero.size), (values == 0).argmax(axis=1)]
        np.subtract(self.high, self.low, out=self.d)
        np.divide(self.d, float(nmax), out=self.d)
        np.add(self.d, 0.0, out=self.d)
        spread_lanes(self.low, self.lanes)
        np.subtract(self.x, self.lanes, out=self.x)
        self.invert()
        np.multiply(self.x, self.lanes, out=self.x)
        np.add(self.x, 0.5, out=self.x)
        np.copyto(self.q, self.x, casting="unsafe")
        return self.store_scales(self.pair, out)


class Q41Kernel(_Affine):
    def encode(self, src: Array, out: Records, first: int) -> int:
        bad = self.quantize_affine(src, out, 15)
        self.store_nibbles(out, 4)
        return bad


class Q51Kernel(_Affine):
    def encode(self, src: Array, out: Records, first: int) -> int:
        bad = self.quantize_affine(src, out, 31)
        self.store_fifth_bits(out, 4)
        self.store_nibbles(out, 8)
        return bad
