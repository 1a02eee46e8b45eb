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
from .sub import SubBlocks, nearest_int


class Q3KKernel:
    def __init__(self, capacity: int) -> None:
        self._sub = SubBlocks(capacity, 16)
        self._search = DescentSearch(self._sub, 4)
        self._half = HalfCoder(capacity // 256)

    def encode(self, src: Array, out: Records, first: int) -> int:
        s, n = self._sub, len(out)
        bad = s.load(src)
        if bad != GOOD:
            return bad // 16
        scales = self._search.run().reshape(n, 16)
        levels, d = self._quantized(scales)
        bits = self._half.encode(d)
        field(out, 108, np.uint16, 1)[:, 0] = bits
        step = bits.view(np.float16).astype(np.float32)[:, None] * (levels - np.float32(32))
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

    def _store(self, out: Records, levels: Array) -> None:
        n = len(out)
        out[:, 96:104] = (levels[:, :8] & 15) | levels[:, 8:] << 4
        up = (levels >> 4).reshape(n, 4, 4)
        out[:, 104:108] = up[:, 0] | up[:, 1] << 2 | up[:, 2] << 4 | up[:, 3] << 6
        # q[element of 16, block, half, quarter, which 16 of the quarter's 32]
        q = self._sub.q.reshape(16, n, 2, 4, 2)
        high = (q >> 2).reshape(16, n, 8, 2)
        mask = np.bitwise_or.reduce(high << np.arange(8, dtype=np.uint8)[:, None], axis=2)
        out[:, 0:32].reshape(n, 2, 16)[...] = mask.transpose(1, 2, 0)
        q = q & 3
        qs = q[:, :, :, 0] | q[:, :, :, 1] << 2 | q[:, :, :, 2] << 4 | q[:, :, :, 3] << 6
        out[:, 32:96].reshape(n, 2, 2, 16)[...] = qs.transpose(1, 2, 3, 0)
