"""Q4_0, Q4_1, Q5_0 and Q5_1 with importance weights: scales searched as in the K-quants, over blocks of 32.

The block layouts are in legacy.py. The weights are imatrix·sqrt(mean x² of the row + x²), so an encoder must be
given whole rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from .half import F32, HalfCoder
from .kernel import GOOD, Array, Records, field, first_bad_half
from .search import WEIGHTED_STEPS, AffineSearch, SymmetricSearch
from .sub import ColumnWeights, SubBlocks


class _Weighted(ABC):
    def __init__(self, capacity: int, imatrix: F32, nmax: int) -> None:
        self._sub = SubBlocks(capacity, 32)
        self._columns = ColumnWeights(imatrix, self._sub)
        self._length = imatrix.size
        self._half = HalfCoder(capacity // 16)
        self._nmax = nmax

    def encode(self, src: Array, out: Records, first: int) -> int:
        s = self._sub
        bad = s.load(src)
        if bad != GOOD:
            return bad
        sigma2 = s.mean_squares(src, self._length, 1.0)
        self._columns.fill(first, np.repeat(sigma2, self._length // 32))
        scales, levels = self.search()
        bits = self._half.encode(scales.reshape(-1)).reshape(-1, s.n)
        np.copyto(field(out, 0, np.uint16, len(bits)).T, bits)
        at = 2 * len(bits)
        if self._nmax > 15:
            out[:, at : at + 4] = np.packbits(levels >> 4, axis=0, bitorder="little").T
            at += 4
        out[:, at:] = ((levels[:16] & 15) | levels[16:] << 4).T
        return first_bad_half(np.maximum.reduce(bits & 0x7FFF, axis=0))

    @abstractmethod
    def search(self) -> tuple[F32, Array]:
        """The float16 fields [1 or 2, n] and the levels uint8 [32, n]."""


class WeightedSymmetric(_Weighted):
    """Q4_0 (nmax 15) and Q5_0 (nmax 31)."""

    def search(self) -> tuple[F32, Array]:
        search = SymmetricSearch(self._sub, (self._nmax + 1) // 2)
        scale = search.run()
        return scale[None], search.levels(np.arange(self._sub.n))


class WeightedAffine(_Weighted):
    """Q4_1 (nmax 15) and Q5_1 (nmax 31)."""

    def search(self) -> tuple[F32, Array]:
        s = self._sub
        search = AffineSearch(s, self._nmax, *WEIGHTED_STEPS, guarded=True)
        zero = np.flatnonzero(s.low == 0)
        if zero.size:  # the sign of a zero minimum is that of the first zero
            values = s.columns(zero)
            s.low[zero] = values[np.arange(zero.size), (values == 0).argmax(axis=1)]
        scale, low = search.run()
        return np.stack((scale, -low)), search.levels(np.arange(self._sub.n))
