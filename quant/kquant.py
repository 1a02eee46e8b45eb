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

import numpy as np

from .half import F32, HalfCoder
from .kernel import GOOD, Array, Records, field, first_bad_half
from .search import AffineSearch
from .sub import SubBlocks, nearest_int


class _AffineK:
    """The steps that the three types share."""

    size: int
    nmax: int
    top: int  # the largest quantized scale

    def __init__(self, capacity: int) -> None:
        self._sub = SubBlocks(capacity, self.size)
        self._search = self.make_search()
        self._half = HalfCoder(capacity // 256)

    def make_search(self) -> AffineSearch:
        raise NotImplementedError

    def weigh(self) -> None:
        """Fill w from x."""
        raise NotImplementedError

    def store(self, out: Records, scales: Array, lows: Array) -> None:
        raise NotImplementedError

    def quantized(self, values: F32) -> tuple[Array, F32]:
        """One factor for each super-block's ``values`` [n, m]: quantized [n, m] and the factor [n]."""
        peak = np.maximum(values.max(axis=1), np.float32(0))
        inverse = np.float32(self.top) / peak
        inverse[peak == 0] = 0
        levels = nearest_int(inverse[:, None] * values) & 0xFF
        return np.minimum(levels, self.top).astype(np.uint8), peak / np.float32(self.top)

    def encode(self, src: Array, out: Records, first: int) -> int:
        s, n = self._sub, len(out)
        bad = s.load(src)
        if bad != GOOD:
            return bad * self.size // 256
        self.weigh()
        scale, low = self._search.run()
        scales, d = self.quantized(scale.reshape(n, -1))
        lows, dmin = self.quantized(low.reshape(n, -1))
        at = 80 if self.size == 16 else 0
        halves = field(out, at, np.float16, 2)
        halves[:, 0].view(np.uint16)[...] = self._half.encode(d)
        halves[:, 1].view(np.uint16)[...] = self._half.encode(dmin)
        steps = halves.astype(np.float32)
        step = steps[:, :1] * scales
        s.finish(step.reshape(-1), (steps[:, 1:] * lows).reshape(-1), (0, self.nmax), self._search.levels)
        self.store(out, scales, lows)
        bad = first_bad_half(halves.view(np.uint16).reshape(-1))
        return bad // 2 if bad != GOOD else GOOD


class _K32(_AffineK):
    size = 32
    top = 63

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
        # q[element, block, pair, which of the pair]
        q = self._sub.q.reshape(32, len(out), 4, 2)
        self.store_levels(out, q)

    def store_levels(self, out: Records, q: Array) -> None:
        raise NotImplementedError


class Q4KKernel(_K32):
    nmax = 15

    def make_search(self) -> AffineSearch:
        return AffineSearch(self._sub, 15, -1.0, 0.1, 20)

    def store_levels(self, out: Records, q: Array) -> None:
        qs = out[:, 16:144].reshape(len(out), 4, 32)
        qs[...] = (q[..., 0] | q[..., 1] << 4).transpose(1, 2, 0)


class Q5KKernel(_K32):
    nmax = 31

    def make_search(self) -> AffineSearch:
        return AffineSearch(self._sub, 31, -0.5, 0.1, 15)

    def store_levels(self, out: Records, q: Array) -> None:
        qs = out[:, 48:176].reshape(len(out), 4, 32)
        qs[...] = ((q[..., 0] & 15) | q[..., 1] << 4).transpose(1, 2, 0)
        bits = (q >> 4).reshape(32, len(out), 8)
        out[:, 16:48] = np.bitwise_or.reduce(bits << np.arange(8, dtype=np.uint8), axis=2).T


class Q2KKernel(_AffineK):
    size = 16
    nmax = 3
    top = 15

    def make_search(self) -> AffineSearch:
        return AffineSearch(self._sub, 3, -0.5, 0.1, 15, absolute=True)

    def weigh(self) -> None:
        np.abs(self._sub.x, out=self._sub.w)

    def store(self, out: Records, scales: Array, lows: Array) -> None:
        out[:, 0:16] = scales | lows << 4
        # q[element of 16, block, half, quarter, which 16 of the quarter's 32]
        q = self._sub.q.reshape(16, len(out), 2, 4, 2)
        qs = q[:, :, :, 0] | q[:, :, :, 1] << 2 | q[:, :, :, 2] << 4 | q[:, :, :, 3] << 6
        out[:, 16:80].reshape(len(out), 2, 2, 16)[...] = qs.transpose(1, 2, 3, 0)
