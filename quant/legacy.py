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


class _Block32:
    """Workspace and the steps that the five types share."""

    def __init__(self, capacity: int) -> None:
        blocks = capacity // 32
        self._loader = Loader(capacity)
        self._half = HalfCoder(blocks)
        self._flat = np.empty(capacity, np.float32)
        self._work = np.empty(capacity, np.float32)
        self._bytes = np.empty(capacity, np.uint8)
        self._lanes = np.empty(blocks * 4, np.float32)
        self._scalar = np.empty((6, blocks), np.float32)
        self._fit(blocks)

    def _fit(self, n: int) -> None:
        """Make the views for ``n`` blocks."""
        self.n = n
        self.x = self._flat[: 32 * n].reshape(8, 4 * n)
        self.y = self._work[: 32 * n].reshape(8, 4 * n)
        self.q = self._bytes[: 32 * n].reshape(8, 4 * n)
        self.lanes = self._lanes[: 4 * n]
        self.high, self.low, self.d, self.inverse, self.scratch, self.spare = self._scalar[:, :n]

    def load(self, src: Array, n: int) -> None:
        if n != self.n:
            self._fit(n)
        self._loader.load(src, self._flat[: 32 * n], 8, 4)

    def reduce(self, op: np.ufunc, out: Array) -> None:
        """``op`` (maximum or minimum; both pass NaN on) over each block of x."""
        op.reduce(self.x, axis=0, out=self.lanes)
        join_lanes(op, self.lanes, out, self.scratch)

    def invert(self) -> None:
        """inverse = 1/d, or 0 where d is 0; then spread over the lanes."""
        np.divide(1.0, self.d, out=self.inverse)
        np.copyto(self.inverse, 0.0, where=self.d == 0)
        spread_lanes(self.inverse, self.lanes)

    def store_scale(self, values: Array, out: Records, start: int) -> int:
        bits = self._half.encode(values)
        field(out, start, np.uint16, 1)[:, 0] = bits
        return first_bad_half(bits) if self._half.has_nonfinite(bits) else GOOD

    def store_nibbles(self, out: Records, start: int) -> None:
        """Pack q (values below 16; the upper half of the byte must be free) into 16 bytes a block."""
        low, high = self.q[:4].view(np.uint64), self.q[4:].view(np.uint64)
        np.left_shift(high, 4, out=high)
        np.bitwise_or(low, high, out=low)
        np.copyto(field(out, start, np.uint32, 4).T, self.q[:4].view(np.uint32))

    def tied(self, indices: Array) -> Array:
        """Elements [m, 32] of the given blocks, in order."""
        return self.x.reshape(8, self.n, 4)[:, indices].transpose(1, 0, 2).reshape(-1, 32)


class Q8Kernel(_Block32):
    def encode(self, src: Array, out: Records, first: int) -> int:
        self.load(src, len(out))
        self.reduce(np.maximum, self.high)
        self.reduce(np.minimum, self.low)
        np.negative(self.low, out=self.low)
        np.maximum(self.high, self.low, out=self.d)
        np.divide(self.d, 127.0, out=self.d)
        np.add(self.d, 0.0, out=self.d)
        self.invert()
        np.multiply(self.x, self.lanes, out=self.x)
        # Half away from zero: add the largest float below one half, with the value's sign, then truncate.
        bits, signs = self.x.view(np.uint32), self.y.view(np.uint32)
        np.bitwise_and(bits, _SIGN, out=signs)
        np.bitwise_or(signs, _HALF_BELOW, out=signs)
        np.add(self.x, self.y, out=self.x)
        np.copyto(self.q.view(np.int8), self.x, casting="unsafe")
        np.copyto(field(out, 2, np.uint32, 8).T, self.q.view(np.uint32))
        return self.store_scale(self.d, out, 0)


class Q4Kernel(_Block32):
    def encode(self, src: Array, out: Records, first: int) -> int:
        self.quantize_symmetric(src, len(out), 8)
        np.minimum(self.q, 15, out=self.q)
        self.store_nibbles(out, 2)
        return self.store_scale(self.d, out, 0)

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
