"""Q3_K: super-blocks of 256 = 16 sub-blocks of 16 with 6-bit scales.

110 bytes: hmask 32, qs 64, scales 12, d f16; x = d·(scale - 32)·(q - 4).
Per half of 128, qs[j] holds the low two bits of elements j, j+32, j+64, j+96 from bit 0; bit i of hmask[j] is the
upper bit of element 32·i + j. scales: bytes 0-7 hold the low nibbles of scale j and j + 8, bytes 8-11 the upper
two bits of scales j, j+4, j+8, j+12.
"""

from __future__ import annotations

import numpy as np

from .descent import DescentSearch
from .half import F32, HalfCoder
from .kernel import GOOD, Array, Records, field, first_bad_half
from .pack import Packer
from .search import SymmetricSearch
from .sub import ColumnWeights, SubBlocks, nearest_int


class Q3KKernel:
    def __init__(self, capacity: int, imatrix: F32 | None = None) -> None:
        self._sub = SubBlocks(capacity, 16)
        self._search: DescentSearch | SymmetricSearch = DescentSearch(self._sub, 4)
        self._columns: ColumnWeights | None = None
        if imatrix is not None:
            self._columns = ColumnWeights(imatrix, self._sub)
            self._search = SymmetricSearch(self._sub, 4)
            self._upper = SubBlocks(capacity // 16, 16)
            self._upper_search = SymmetricSearch(self._upper, 32)
        self._half = HalfCoder(capacity // 256)
        self._pack = Packer(capacity)

    def encode(self, src: Array, out: Records, first: int) -> int:
        s, n = self._sub, len(out)
        bad = s.load(src)
        if bad != GOOD:
            return bad // 16
        if self._columns is None:
            levels, d = self._quantized(self._search.run().reshape(n, 16))
        else:
            sigma2 = s.mean_squares(src, 256, 2.0)
            self._columns.fill(first * 16, np.repeat(sigma2, 16))
            levels, d = self._weighted(s.weight_sums())
        bits = self._half.encode(d)
        field(out, 108, np.uint16, 1)[:, 0] = bits
        step = bits.view(np.float16).astype(np.float32)[:, None] * (levels.astype(np.float32) - np.float32(32))
        s.finish(step.reshape(-1), None, (-4, 3), self._search.levels)
        self._store(out, levels)
        return first_bad_half(bits) if self._half.has_nonfinite(bits) else GOOD

    def _quantized(self, scales: F32) -> tuple[Array, F32]:
        """The stored scales uint8 [n, 16] (32 added) and the factor d [n]."""
        top = scales[np.arange(len(scales)), np.abs(scales).argmax(axis=1)]
        empty = top == 0
        inverse = np.float32(-32.0) / top
        levels = nearest_int(inverse[:, None] * scales).astype(np.int8)
        levels = (np.clip(levels, -32, 31) + 32).astype(np.uint8)
        levels[empty] = 0
        d = np.float32(1.0) / inverse
        d[empty] = 0
        return levels, d

    def _weighted(self, sums: F32) -> tuple[Array, F32]:
        """The same with importance weights: the scales searched like the values, weighted by their sub-blocks."""
        upper = self._upper
        upper.load(self._search.run())
        np.copyto(upper.w, sums.reshape(-1, 16).T)
        d = self._upper_search.run()
        return self._upper_search.levels(np.arange(upper.n)).T, d

    def _store(self, out: Records, levels: Array) -> None:
        n = len(out)
        out[:, 96:104] = (levels[:, :8] & 15) | levels[:, 8:] << 4
        up = (levels >> 4).reshape(n, 4, 4)
        out[:, 104:108] = up[:, 0] | up[:, 1] << 2 | up[:, 2] << 4 | up[:, 3] << 6
        self._pack.third_bit(self._sub.q, out[:, 0:32])
        self._pack.two_bits(self._sub.q, 0, out[:, 32:96])
