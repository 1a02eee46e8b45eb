"""The scale searches of ggml's K-quants: symmetric (make_qx_quants) and with a minimum (make_qkx2/3_quants).

Every operation is the C code's, in its order, on one element of all sub-blocks at a time.
"""

from __future__ import annotations

import numpy as np

from .half import F32
from .kernel import Array, signed_extreme
from .sub import EPSILON, SubBlocks, nearest_int

WEIGHTED_STEPS = (-0.9, 0.05, 36)  # rmin, rdelta, nstep of every search with importance weights
_TINY = np.float32(1.2e-37)  # nmax / spread overflows below it


class SymmetricSearch:
    """The scale whose levels in [-nmax, nmax - 1] fit x best under the weights w.

    ``run`` needs sub.x, high, low and w. Results: ``scale`` [n] and ``factor`` [n]; ``levels`` are
    clip(rint(factor·x)) + nmax, and 0 where the magnitude stays below EPSILON (scale 0).
    """

    def __init__(self, sub: SubBlocks, nmax: int) -> None:
        self.sub = sub
        self.nmax = nmax

    def run(self) -> F32:
        """The scales [n]; overwrites wx, l and t."""
        s = self.sub
        self.factor, scale, extreme, factor, best, sumlx, suml2, a, b = s.scalar[:9]
        np.copyto(extreme, s.high)
        signed_extreme(extreme, s.low, s.columns)
        np.multiply(s.w, s.x, out=s.wx)
        np.divide(np.float32(-self.nmax), extreme, out=self.factor)
        self._sums(self.factor, sumlx, suml2)
        np.divide(sumlx, suml2, out=scale)
        scale[suml2 == 0] = 0
        np.multiply(scale, sumlx, out=best)
        for step in (*range(-9, 0), *range(1, 10)):
            reach = np.float32(self.nmax) + np.float32(0.1) * np.float32(step)
            np.divide(-reach, extreme, out=factor)
            self._sums(factor, sumlx, suml2)
            np.multiply(sumlx, sumlx, out=a)
            np.multiply(best, suml2, out=b)
            np.greater(a, b, out=s.better)  # never where suml2 is 0: then sumlx is 0 too
            s.choose(s.better)
            np.divide(sumlx, suml2, out=a)
            s.take(scale, a)
            np.multiply(a, sumlx, out=a)
            s.take(best, a)
            s.take(self.factor, factor)
        zero = np.abs(extreme) < EPSILON
        scale[zero] = 0
        self.factor[zero] = 0
        scales: F32 = scale
        return scales

    def _sums(self, factor: F32, sumlx: F32, suml2: F32) -> None:
        """l = clip(rint(factor·x)); sumlx = Σ (w·x)·l, suml2 = Σ (w·l)·l."""
        s = self.sub
        np.multiply(s.x, factor, out=s.l)
        np.rint(s.l, out=s.l)
        np.clip(s.l, np.float32(-self.nmax), np.float32(self.nmax - 1), out=s.l)
        np.multiply(s.wx, s.l, out=s.t)
        s.sum(s.t, sumlx)
        np.multiply(s.w, s.l, out=s.t)
        np.multiply(s.t, s.l, out=s.t)
        s.sum(s.t, suml2)

    def levels(self, indices: Array) -> Array:
        """The search's levels of some sub-blocks, uint8 [size, m]."""
        factor = self.factor[indices]
        levels = np.clip(np.rint(self.sub.x[:, indices] * factor), -self.nmax, self.nmax - 1) + self.nmax
        levels[:, factor == 0] = 0
        return np.asarray(levels, np.uint8)


class AffineSearch:
    """The scale and minimum whose levels in [0, nmax] fit x best under the weights w.

    Steps: reach = rmin + rdelta·i + nmax for i = 0…nstep. ``absolute`` weighs |error| in place of error²;
    ``guarded`` clips before it rounds, which matters where the quotient is out of nearest_int's range.
    """

    def __init__(
        self,
        sub: SubBlocks,
        nmax: int,
        rmin: float,
        rdelta: float,
        nstep: int,
        *,
        absolute: bool = False,
        guarded: bool = False,
    ) -> None:
        self.sub = sub
        self.nmax = nmax
        self.absolute = absolute
        self.guarded = guarded
        self._zeros = np.zeros(sub.n, np.float32)
        self._reaches = [
            np.float32(rmin) + np.float32(rdelta) * np.float32(i) + np.float32(nmax) for i in range(nstep + 1)
        ]

    def run(self) -> tuple[F32, F32]:
        """Scales [n] and minimums (negated, >= 0) [n]; overwrites wx, l and t."""
        s = self.sub
        self.factor, self.base, scale, low, best, sum_w, sum_x = s.scalar[:7]
        factor, error, new_scale, new_low, a = s.scalar[7:12]
        s.sum(s.w, sum_w)
        np.multiply(s.w, s.x, out=s.t)
        s.sum(s.t, sum_x)
        np.copyto(low, s.low)
        low[low > 0] = 0  # keeps the sign of a zero
        np.copyto(self.base, low)
        flat = s.high == low
        np.subtract(s.high, low, out=a)
        np.divide(np.float32(self.nmax), a, out=self.factor)
        np.divide(np.float32(1.0), self.factor, out=scale)
        self.factor[np.isinf(self.factor)] = 0  # nearest_int makes level 0 of Inf and NaN
        self._limits(flat, a)
        self._levels(self.factor, low, a)
        self._error(scale, low, best)
        for reach in self._reaches:
            np.subtract(s.high, low, out=a)
            np.divide(reach, a, out=factor)
            self._levels(factor, low, a)
            self._fit(sum_w, sum_x, new_scale, new_low)
            self._error(new_scale, new_low, error)
            np.less(error, best, out=s.other)
            np.logical_and(s.better, s.other, out=s.better)
            s.choose(s.better)
            s.take(self.factor, factor)
            s.take(self.base, low)
            s.take(best, error)
            s.take(scale, new_scale)
            s.take(low, new_low)
        self._settle(flat, scale, low)
        return scale, low

    def _settle(self, flat: Array, scale: F32, low: F32) -> None:
        """A sub-block of equal values keeps its minimum and gets scale 0 and levels 0."""
        scale[flat] = 0
        np.copyto(low, self.sub.low, where=flat)
        self.factor[flat] = 0
        np.negative(low, out=low)

    def _limits(self, flat: Array, spread: F32) -> None:
        """The spread (maximum - fitted minimum) below which factor·(x - minimum) could leave nearest_int's range."""
        self._limit = self.sub.scalar[18]
        np.multiply(spread, np.float32(1e-5), out=self._limit)
        np.maximum(self._limit, _TINY, out=self._limit)
        self._limit[flat] = -1

    def _levels(self, factor: F32, low: F32, spread: F32) -> None:
        """l = clip(nearest_int(factor·(x - low)))."""
        s = self.sub
        np.subtract(s.x, low, out=s.l)
        np.multiply(s.l, factor, out=s.l)
        np.rint(s.l, out=s.l)
        np.clip(s.l, np.float32(0), np.float32(self.nmax), out=s.l)
        np.less(spread, self._limit, out=s.other)
        if s.other.any():
            wild = np.flatnonzero(s.other)
            s.l[:, wild] = self._levels_of(wild, factor, low)

    def _levels_of(self, indices: Array, factor: F32, low: F32) -> Array:
        levels = (self.sub.x[:, indices] - low[indices]) * factor[indices]
        if self.guarded:
            levels = np.fmin(np.fmax(levels, np.float32(0)), np.float32(self.nmax))
        return np.clip(nearest_int(levels), 0, self.nmax)

    def _fit(self, sum_w: F32, sum_x: F32, scale: F32, low: F32) -> None:
        """Weighted least squares of x on l with the minimum held at or below 0; sets s.better where it exists."""
        s = self.sub
        sum_l, sum_l2, sum_xl, d, a, b = s.scalar[12:18]
        np.multiply(s.w, s.l, out=s.wx)
        s.sum(s.wx, sum_l)
        np.multiply(s.wx, s.l, out=s.t)
        s.sum(s.t, sum_l2)
        np.multiply(s.wx, s.x, out=s.t)
        s.sum(s.t, sum_xl)
        if self.guarded:
            np.add(sum_xl, 0.0, out=sum_xl)  # C's sum starts at 0.0, so it is never -0.0
        np.multiply(sum_w, sum_l2, out=d)
        np.subtract(d, np.multiply(sum_l, sum_l, out=a), out=d)
        np.greater(d, 0.0, out=s.better)
        np.multiply(sum_w, sum_xl, out=a)
        np.subtract(a, np.multiply(sum_x, sum_l, out=b), out=a)
        np.divide(a, d, out=scale)
        np.multiply(sum_l2, sum_x, out=a)
        np.subtract(a, np.multiply(sum_l, sum_xl, out=b), out=a)
        np.divide(a, d, out=low)
        np.greater(low, 0.0, out=s.other)
        s.choose(s.other)
        np.divide(sum_xl, sum_l2, out=a)
        s.take(scale, a)
        s.take(low, self._zeros[: s.n])

    def _error(self, scale: F32, low: F32, out: F32) -> None:
        """Σ w·|e| or Σ w·e² with e = scale·l + low - x."""
        s = self.sub
        np.multiply(s.l, scale, out=s.t)
        np.add(s.t, low, out=s.t)
        np.subtract(s.t, s.x, out=s.t)
        if self.absolute:
            np.abs(s.t, out=s.t)
        else:
            np.multiply(s.t, s.t, out=s.t)
        np.multiply(s.w, s.t, out=s.t)
        s.sum(s.t, out)

    def levels(self, indices: Array) -> Array:
        """The search's levels of some sub-blocks, uint8 [size, m]."""
        return self._levels_of(indices, self.factor, self.base).astype(np.uint8)
