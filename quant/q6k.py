"""Q6_K: super-blocks of 256 = 16 sub-blocks of 16.

210 bytes: ql 128 (low nibbles), qh 64 (upper 2 bits), scales 16 × int8, d f16; x = d·scale·(q - 32).
Per half of 128 elements, j = 0…31: ql[j] = e[j] | e[j+64] << 4, ql[j+32] = e[j+32] | e[j+96] << 4,
qh[j] = the upper bits of e[j], e[j+32], e[j+64], e[j+96], two each from bit 0.
"""

from __future__ import annotations

import numpy as np

from .half import F32, HalfCoder
from .kernel import GOOD, Array, Records, field, first_bad_half
from .pack import Packer
from .search import SymmetricSearch
from .sub import EPSILON, ColumnWeights, SubBlocks, nearest_int


class Q6KKernel:
    def __init__(self, capacity: int, imatrix: F32 | None = None) -> None:
        self._sub = SubBlocks(capacity, 16)
        self._columns = None if imatrix is None else ColumnWeights(imatrix, self._sub)
        self._search = SymmetricSearch(self._sub, 32)
        self._half = HalfCoder(capacity // 256)
        self._pack = Packer(capacity)

    def encode(self, src: Array, out: Records, first: int) -> int:
        s, n = self._sub, len(out)
        bad = s.load(src)
        if bad != GOOD:
            return bad // 16
        if self._columns is None:
            np.multiply(s.x, s.x, out=s.w)
        else:
            self._columns.fill_plain(first * 16)
        scales = self._search.run().reshape(n, 16)
        top = scales[np.arange(n), np.abs(scales).argmax(axis=1)]
        empty = np.abs(top) < EPSILON
        inverse = np.float32(-128.0) / top
        inverse[empty] = 0
        d = np.float32(1.0) / inverse
        d[empty] = 0
        bits = self._half.encode(d)
        field(out, 208, np.uint16, 1)[:, 0] = bits
        levels = np.minimum(nearest_int(inverse[:, None] * scales), 127)
        np.copyto(field(out, 192, np.int8, 16), levels, casting="unsafe")
        step = bits.view(np.float16).astype(np.float32)[:, None] * levels.astype(np.float32)
        s.finish(step.reshape(-1), None, (-32, 31), self._search.levels)
        if empty.any():
            s.q.reshape(16, n, 16)[:, empty] = 0
        self._pack.nibble_halves(s.q, out[:, 0:128])
        self._pack.two_bits(s.q, 4, out[:, 128:192])
        return first_bad_half(bits) if self._half.has_nonfinite(bits) else GOOD
