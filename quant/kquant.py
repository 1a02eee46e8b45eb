"""Q4_K, Q5_K and Q2_K: super-blocks of 256 whose sub-blocks have a scale and a minimum, themselves quantized.

    Q4_K  144 bytes: d f16, dmin f16, scales 12, qs 128      8 sub-blocks of 32, 6-bit scales and minimums
    Q5_K  176 bytes: d f16, dmin f16, scales 12, qh 32, qs 128
    Q2_K   84 bytes: scales 16, qs 64, d f16, dmin f16       16 sub-blocks of 16, 4-bit scales and minimums

x = d·scale·q - dmin·minimum.
Q4_K and Q5_K: qs[32·i + j] holds element j of sub-block 2i in its low half, of sub-block 2i + 1 in its high half;
bit i of qh[j] is bit 4 of element j of sub-block i. scales: bytes 0-3 scales 0-3, bytes 4-7 minimums 0-3 (6 bits
each), bytes 8-11 the low nibbles of scale and minimum 4-7, whose upper 2 bits top bytes 0-3 and 4-7.
Q2_K: scales[j] = scale | minimum << 4; per half of 128, qs[j] holds elements j, j+32, j+64, j+96 from bit 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from .half import F32, HalfCoder
from .kernel import GOOD, Array, Records, field, first_bad_half
from .pack import Packer
from .positive import positive_scale
from .search import WEIGHTED_STEPS, AffineSearch
from .sub import ColumnWeights, SubBlocks, nearest_int


class _AffineK(ABC):
    """The steps that the three types share."""

    size: int
    nmax: int
    top: int  # the largest quantized scale
    sigma: float  # with importance weights: sigma² is this times the mean of x²
    steps: tuple[float, float, int]  # the search's rmin, rdelta and nstep without importance weights
    at: int  # where d and dmin are
    absolute = False

    def __init__(self, capacity: int, imatrix: F32 | None = None) -> None:
        self._sub = SubBlocks(capacity, self.size)
        self._half = HalfCoder(capacity // 256)
        self._pack = Packer(capacity)
        self._columns = None if imatrix is None else ColumnWeights(imatrix, self._sub)
        if self._columns is None:
            self._search = AffineSearch(self._sub, self.nmax, *self.steps, absolute=self.absolute)
        else:
            self._search = AffineSearch(self._sub, self.nmax, *WEIGHTED_STEPS, guarded=True)

    @abstractmethod
    def weigh(self) -> None:
        """Fill w from x."""

    @abstractmethod
    def store(self, out: Records, scales: Array, lows: Array) -> None:
        """Write all fields but d and dmin."""

    def quantized(self, values: F32) -> tuple[Array, F32]:
        """One factor for each super-block's ``values`` [n, m]: quantized [n, m] and the factor [n]."""
        peak = np.maximum(values.max(axis=1), np.float32(0))
        inverse = np.float32(self.top) / peak
        inverse[peak == 0] = 0
        levels = nearest_int(inverse[:, None] * values) & 0xFF
        return np.minimum(levels, self.top).astype(np.uint8), peak / np.float32(self.top)

    def weighted(self, values: F32, sums: F32) -> tuple[Array, F32]:
        """The same under the weights ``sums`` [n, m]."""
        d, levels = positive_scale(np.ascontiguousarray(values.T), np.ascontiguousarray(sums.T), self.top)
        return np.minimum(levels, self.top).T, d

    def encode(self, src: Array, out: Records, first: int) -> int:
        s, n = self._sub, len(out)
        bad = s.load(src)
        if bad != GOOD:
            return bad * self.size // 256
        if self._columns is None:
            self.weigh()
            scale, low = self._search.run()
            scales, d = self.quantized(scale.reshape(n, -1))
            lows, dmin = self.quantized(low.reshape(n, -1))
        else:
            sigma2 = s.mean_squares(src, 256, self.sigma)
            self._columns.fill(first * 256 // self.size, np.repeat(sigma2, 256 // self.size))
            sums = s.weight_sums().reshape(n, -1)
            scale, low = self._search.run()
            scales, d = self.weighted(scale.reshape(n, -1), sums)
            lows, dmin = self.weighted(low.reshape(n, -1), sums)
        return self.finish(out, scales, d, lows, dmin)

    def finish(self, out: Records, scales: Array, d: F32, lows: Array, dmin: F32) -> int:
        halves = field(out, self.at, np.float16, 2)
        halves[:, 0].view(np.uint16)[...] = self._half.encode(d)
        halves[:, 1].view(np.uint16)[...] = self._half.encode(dmin)
        steps = halves.astype(np.float32)
        step, offset = (steps[:, :1] * scales).reshape(-1), (steps[:, 1:] * lows).reshape(-1)
        self._sub.finish(step, offset, (0, self.nmax), self._search.levels)
        self.store(out, scales, lows)
        bad = first_bad_half(halves.view(np.uint16).reshape(-1))
        return bad // 2 if bad != GOOD else GOOD


class _K32(_AffineK):
    size = 32
    top = 63
    sigma = 2.0
    at = 0

    def weigh(self) -> None:
        """w = |x| + sqrt(mean x²)."""
        s = self._sub
        mean = s.scalar[0]
        np.multiply(s.x, s.x, out=s.t)
        s.sum(s.t, mean)
        np.divide(mean, np.float32(32), out=mean)
        np.sqrt(mean, out=mean)
        np.abs(s.x, out=s.w)
        np.add(s.w, mean, out=s.w)

    def store(self, out: Records, scales: Array, lows: Array) -> None:
        packed = out[:, 4:16]
        packed[:, 0:4] = scales[:, :4] | scales[:, 4:] >> 4 << 6
        packed[:, 4:8] = lows[:, :4] | lows[:, 4:] >> 4 << 6
        packed[:, 8:12] = (scales[:, 4:] & 15) | lows[:, 4:] << 4
        self.store_levels(out)

    @abstractmethod
    def store_levels(self, out: Records) -> None:
        """Write the fields that hold the levels."""


class Q4KKernel(_K32):
    nmax = 15
    steps = (-1.0, 0.1, 20)

    def store_levels(self, out: Records) -> None:
        self._pack.nibble_pairs(self._sub.q, out[:, 16:144])


class Q5KKernel(_K32):
    nmax = 31
    steps = (-0.5, 0.1, 15)

    def store_levels(self, out: Records) -> None:
        self._pack.fifth_bit(self._sub.q, out[:, 16:48])
        self._pack.nibble_pairs(self._sub.q, out[:, 48:176])


class Q2KKernel(_AffineK):
    size = 16
    nmax = 3
    top = 15
    sigma = 1.0
    steps = (-0.5, 0.1, 15)
    at = 80
    absolute = True

    def weigh(self) -> None:
        np.abs(self._sub.x, out=self._sub.w)

    def store(self, out: Records, scales: Array, lows: Array) -> None:
        out[:, 0:16] = scales | lows << 4
        self._pack.two_bits(self._sub.q, 0, out[:, 16:80])
