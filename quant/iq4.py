"""IQ4_NL and IQ4_XS: sixteen unevenly spaced levels (tables.IQ4_VALUES).

    IQ4_NL   18 bytes: d f16, qs 16; blocks of 32; x = d·value[q]
    IQ4_XS  136 bytes: d f16, scales_h u16, scales_l 4, qs 128; 8 sub-blocks of 32; x = d·(scale - 32)·value[q]

qs[16·i + j] holds element j of sub-block i in its low half and element j + 16 in its high half. The 6-bit scale of
sub-block i: its low nibble is in half i % 2 of scales_l[i // 2], its upper two bits are bits 2i of scales_h.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from .half import F32, HalfCoder
from .kernel import GOOD, Array, Records, field, first_bad_half, signed_extreme
from .sub import EPSILON, ColumnWeights, SubBlocks, nearest_int
from .tables import IQ4_VALUES

_MIDPOINTS = (IQ4_VALUES[1:] + IQ4_VALUES[:-1]) / np.float32(2)  # a tie goes up
_STEPS = np.diff(IQ4_VALUES).astype(np.uint8)
_FIRST = np.uint8(int(IQ4_VALUES[0]) & 0xFF)
_TRIES = 7


class LevelSearch:
    """The scale whose nearest levels fit x best under the weights w (ggml's quantize_row_iq4_nl_impl)."""

    def __init__(self, capacity: int) -> None:
        self.sub = SubBlocks(capacity, 32)
        self._above = np.empty(capacity, np.bool_)

    def run(self) -> F32:
        """The scales [n]; needs sub.w, overwrites wx, l, t and q."""
        s = self.sub
        extreme, factor, scale, best, sumqx, sumq2, a, b = s.scalar[:8]
        np.copyto(extreme, s.high)
        signed_extreme(extreme, s.low, s.columns)
        np.divide(-extreme, IQ4_VALUES[0], out=factor)
        np.divide(np.float32(1), factor, out=factor)
        self._sums(factor, sumqx, sumq2)
        np.divide(sumqx, sumq2, out=scale)
        scale[~(sumq2 > 0)] = 0
        np.multiply(scale, sumqx, out=best)
        for step in range(-_TRIES, _TRIES + 1):
            np.divide(IQ4_VALUES[0] + np.float32(step), extreme, out=factor)
            self._sums(factor, sumqx, sumq2)
            np.multiply(sumqx, sumqx, out=a)
            np.multiply(best, sumq2, out=b)
            np.greater(a, b, out=s.better)  # never where sumq2 is 0: then sumqx is 0 too
            s.choose(s.better)
            np.divide(sumqx, sumq2, out=a)
            s.take(scale, a)
            np.multiply(a, sumqx, out=a)
            s.take(best, a)
        scale[np.abs(extreme) < EPSILON] = 0
        scales: F32 = scale
        return scales

    def _sums(self, factor: F32, sumqx: F32, sumq2: F32) -> None:
        """v = the level nearest to factor·x; sumqx = Σ (w·v)·x, sumq2 = Σ (w·v)·v."""
        s = self.sub
        self._count(factor, _STEPS, _FIRST)
        np.copyto(s.l, s.q.view(np.int8))
        np.multiply(s.w, s.l, out=s.wx)
        np.multiply(s.wx, s.x, out=s.t)
        s.sum(s.t, sumqx)
        np.multiply(s.wx, s.l, out=s.t)
        s.sum(s.t, sumq2)

    def codes(self, factor: F32) -> None:
        """q = the code of the level nearest to factor·x."""
        self._count(factor, np.ones(15, np.uint8), np.uint8(0))

    def _count(self, factor: F32, steps: Array, first: np.uint8) -> None:
        s = self.sub
        above = self._above[: s.q.size].reshape(s.q.shape)
        ones = above.view(np.uint8)
        np.multiply(s.x, factor, out=s.l)
        s.q.fill(first)
        for midpoint, step in zip(_MIDPOINTS, steps, strict=True):
            np.greater_equal(s.l, midpoint, out=above)
            np.multiply(ones, step, out=ones)
            np.add(s.q, ones, out=s.q)


class _IQ4(ABC):
    block: int

    def __init__(self, capacity: int, imatrix: F32 | None = None) -> None:
        self._search = LevelSearch(capacity)
        self._columns = None if imatrix is None else ColumnWeights(imatrix, self._search.sub)
        self._half = HalfCoder(capacity // self.block)

    def encode(self, src: Array, out: Records, first: int) -> int:
        s = self._search.sub
        bad = s.load(src)
        if bad != GOOD:
            return bad * 32 // self.block
        if self._columns is None:
            np.multiply(s.x, s.x, out=s.w)
        else:
            ratio = self.block // 32
            sigma2 = np.repeat(s.mean_squares(src, self.block, 2.0), ratio)
            self._columns.fill(first * ratio, sigma2)
        return self.finish(self._search.run(), out)

    @abstractmethod
    def finish(self, scale: F32, out: Records) -> int:
        """Write the records from the scales of the sub-blocks [n·block/32]; the first bad block."""

    def store_scale(self, d: F32, out: Records) -> int:
        bits = self._half.encode(d)
        field(out, 0, np.uint16, 1)[:, 0] = bits
        return first_bad_half(bits) if self._half.has_nonfinite(bits) else GOOD

    def store_codes(self, out: Records, start: int) -> None:
        q = self._search.sub.q
        packed = (q[:16] | q[16:] << 4).T
        out[:, start:] = packed.reshape(len(out), -1)


def _inverse(values: F32) -> F32:
    """1/v, and 0 for 0."""
    inverse: F32 = np.float32(1) / values
    inverse[values == 0] = 0
    return inverse


class IQ4NLKernel(_IQ4):
    block = 32

    def finish(self, scale: F32, out: Records) -> int:
        self._search.codes(_inverse(scale))
        self.store_codes(out, 2)
        return self.store_scale(scale, out)


class IQ4XSKernel(_IQ4):
    block = 256

    def finish(self, scale: F32, out: Records) -> int:
        n = len(out)
        scales = scale.reshape(n, 8)
        top = scales[np.arange(n), np.abs(scales).argmax(axis=1)]
        d: F32 = np.divide(np.where(top == 0, np.float32(0), top), np.float32(-32), dtype=np.float32)
        levels = np.clip(nearest_int(_inverse(d)[:, None] * scales), -32, 31)
        steps: F32 = np.multiply(d[:, None], levels, dtype=np.float32).reshape(-1)
        self._search.codes(_inverse(steps))
        stored = (levels + 32).astype(np.uint16)
        high = stored >> 4 << np.arange(0, 16, 2, dtype=np.uint16)
        field(out, 2, np.uint16, 1)[:, 0] = np.bitwise_or.reduce(high, axis=1)
        out[:, 4:8] = (stored[:, 0::2] & 15) | (stored[:, 1::2] & 15) << 4
        self.store_codes(out, 8)
        return self.store_scale(d, out)
