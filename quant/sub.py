"""The sideways workspace of sub-blocks and the small steps that the scale searches share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .half import F32
from .kernel import GOOD, Array, column_sums, first_true
from .load import Loader

EPSILON = np.float32(1e-15)  # ggml's GROUP_MAX_EPS: a block below it is all zero
MAGIC = np.float32(12582912.0)
_REACH = np.float32(4194303.0)  # the magnitude up to which ggml's nearest_int rounds


def nearest_int(values: F32) -> NDArray[np.int32]:
    """ggml's nearest_int bit for bit, with the wrapped integers it gives beyond its range."""
    bits = np.add(values, MAGIC, dtype=np.float32).view(np.int32)
    return (bits & 0x007FFFFF) - 0x00400000


class SubBlocks:
    """Values of n sub-blocks of ``size`` elements as x [size, n], and four more arrays of that shape."""

    def __init__(self, capacity: int, size: int) -> None:
        self.size = size
        self._loader = Loader(capacity)
        self._flat = np.empty((5, capacity), np.float32)
        self._bytes = np.empty(capacity, np.uint8)
        self._scalar = np.empty((24, capacity // size), np.float32)
        self._masks = np.empty((2, capacity // size), np.bool_)
        self._select = np.empty((2, capacity // size), np.int32)
        self._fit(capacity // size)

    def _fit(self, n: int) -> None:
        self.n = n
        views = [f[: n * self.size].reshape(self.size, n) for f in self._flat]
        self.x, self.w, self.wx, self.l, self.t = views
        self.q = self._bytes[: n * self.size].reshape(self.size, n)
        self.high, self.low = self._scalar[:2, :n]
        self.scalar = self._scalar[2:, :n]
        self.better, self.other = self._masks[:, :n]
        self._mask, self._difference = self._select[:, :n]

    def load(self, src: Array) -> int:
        """x, high and low (each sub-block's extremes); the first sub-block with NaN or Inf, or GOOD."""
        n = src.size // self.size
        if n != self.n:
            self._fit(n)
        self._loader.load(src, self._flat[0, : src.size], self.size, 1)
        np.maximum.reduce(self.x, axis=0, out=self.high)
        np.minimum.reduce(self.x, axis=0, out=self.low)
        if np.isfinite(self.high.max()) and np.isfinite(self.low.min()):  # both pass NaN on
            return GOOD
        return first_true(~(np.isfinite(self.high) & np.isfinite(self.low)))

    def mean_squares(self, src: Array, length: int, times: float) -> F32:
        """times·Σx² / length over each run of ``length`` source elements, added in order; overwrites t."""
        flat = self.t.reshape(-1)
        self._loader.flat(src, flat)
        np.multiply(flat, flat, out=flat)
        runs = flat.reshape(-1, length)
        np.add.accumulate(runs, axis=1, out=runs)
        means: F32 = np.float32(times) * runs[:, -1] / np.float32(length)
        return means

    def columns(self, indices: Array) -> Array:
        """Elements [m, size] of the given sub-blocks."""
        return self.x[:, indices].T

    def weight_sums(self) -> F32:
        """Σ w of each sub-block [n], newly made."""
        sums = np.empty(self.n, np.float32)
        column_sums(self.w, sums)
        return sums

    def sum(self, terms: F32, out: F32) -> None:
        """Σ over each sub-block, element after element as C adds them."""
        column_sums(terms, out)

    def choose(self, condition: NDArray[np.bool_]) -> None:
        """Where ``take`` will take: several times faster than copyto(where=…)."""
        np.copyto(self._mask, condition)
        np.negative(self._mask, out=self._mask)

    def take(self, into: F32, new: F32) -> None:
        """into = new where the condition of the last ``choose`` holds."""
        bits = into.view(np.int32)
        np.bitwise_xor(bits, new.view(np.int32), out=self._difference)
        np.bitwise_and(self._difference, self._mask, out=self._difference)
        np.bitwise_xor(bits, self._difference, out=bits)

    def finish(self, step: F32, low: F32 | None, bounds: tuple[int, int], kept: Callable[[Array], Array]) -> None:
        """q = clip(nearest_int((x + low) / step)) - bounds[0].

        Where the step is 0 the levels stay those of the search: ``kept(indices)`` returns them [size, m].
        """
        lowest, highest = bounds
        if low is None:
            np.divide(self.x, step, out=self.t)
        else:
            np.add(self.x, low, out=self.t)
            np.divide(self.t, step, out=self.t)
        wild = self._beyond_reach(step, low)
        odd = nearest_int(self.t[:, wild])
        np.rint(self.t, out=self.t)
        self.t[:, wild] = odd
        np.clip(self.t, np.float32(lowest), np.float32(highest), out=self.t)
        if lowest:
            np.add(self.t, np.float32(-lowest), out=self.t)
        np.copyto(self.q, self.t, casting="unsafe")
        rest = np.flatnonzero(step == 0)
        if rest.size:
            self.q[:, rest] = kept(rest)

    def _beyond_reach(self, step: F32, low: F32 | None) -> Array:
        """Sub-blocks where nearest_int would leave its range (quotients are monotonic in x)."""
        up, down, worst = self.scalar[-3:]
        offset = np.float32(0) if low is None else low
        np.divide(np.add(self.high, offset, out=up), step, out=up)
        np.divide(np.add(self.low, offset, out=down), step, out=down)
        np.maximum(np.abs(up, out=up), np.abs(down, out=down), out=worst)
        if worst.max() <= _REACH:
            return np.empty(0, np.intp)
        return np.flatnonzero((worst > _REACH) & (step != 0))


class ColumnWeights:
    """Importance weights [k] of a matrix's columns, laid out for the sub-blocks of ``sub``."""

    def __init__(self, imatrix: F32, sub: SubBlocks) -> None:
        self._sub = sub
        self._weights = np.ascontiguousarray(imatrix.reshape(-1, sub.size).T)
        self._index = np.arange(sub.n)

    def fill_plain(self, first: int) -> None:
        """sub.w = the weights of the sub-blocks from the matrix's ``first`` on."""
        columns = (self._index[: self._sub.n] + first) % self._weights.shape[1]
        np.take(self._weights, columns, axis=1, out=self._sub.w)

    def fill(self, first: int, sigma2: F32) -> None:
        """sub.w = weight·sqrt(sigma2 + x²), ``sigma2`` [n] a sub-block; overwrites t."""
        s = self._sub
        self.fill_plain(first)
        np.multiply(s.x, s.x, out=s.t)
        np.add(s.t, sigma2, out=s.t)
        np.sqrt(s.t, out=s.t)
        np.multiply(s.w, s.t, out=s.w)
