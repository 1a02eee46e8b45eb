"""MXFP4: blocks of 32 with a power-of-two scale.

17 bytes: e (E8M0 exponent), 16 × 2 nibbles (E2M1: sign, two exponent bits, one mantissa bit);
x = 2^(e - 128) · value with the values of tables.FP4_VALUES. Byte j holds element j in its low half and
element j + 16 in its high half.
"""

from __future__ import annotations

import numpy as np

from .kernel import GOOD, Array, Records, first_true, spread_lanes
from .legacy import Block32
from .tables import E8M0_HALF

_BETWEEN = (0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0)  # midpoints of the eight magnitudes; a tie goes down


class MXFP4Kernel(Block32):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._above = np.empty(capacity, np.bool_)

    def encode(self, src: Array, out: Records, first: int) -> int:
        n = len(out)
        self.load(src, n)
        self.absolute_maximum(self.high)
        if not np.isfinite(self.high.max()):
            return first_true(~np.isfinite(self.high))
        exponents = self._exponents()
        out[:, 0] = exponents
        np.copyto(self.d, E8M0_HALF[exponents])
        np.abs(self.x, out=self.y)
        above = self._above[: 32 * n].reshape(self.q.shape)
        self.q.fill(0)
        for between in _BETWEEN:
            np.multiply(self.d, np.float32(between), out=self.spare)
            spread_lanes(self.spare, self.lanes)
            np.greater(self.y, self.lanes, out=above)
            np.add(self.q, above.view(np.uint8), out=self.q)
        np.less(self.x, 0, out=above)
        signs = above.view(np.uint8)
        np.multiply(signs, 8, out=signs)
        np.add(self.q, signs, out=self.q)
        np.copyto(self.q, 0, where=self.q == 8)  # minus zero is stored as zero
        self.store_nibbles(out, 1)
        return GOOD

    def _exponents(self) -> Array:
        """floor(log2(maximum)) - 2 + 127 in a byte, 0 for a block of zeros; log2 rounded to float32 as in C."""
        logs = np.log2(self.high.astype(np.float64)).astype(np.float32)
        logs[self.high == 0] = -125
        exponents: Array = (np.floor(logs) + np.float32(125)).astype(np.int32).astype(np.uint8)
        return exponents
