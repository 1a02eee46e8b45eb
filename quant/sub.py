"""The sideways workspace of sub-blocks, and the search for a symmetric scale (Q6_K; others with weights)."""

from __future__ import annotations

import numpy as np

from .half import F32
from .kernel import Array, signed_extreme
from .load import Loader

EPSILON = np.float32(1e-15)  # ggml's GROUP_MAX_EPS: a block below it is all zero


class SubBlocks:
    """Values of n sub-blocks of ``size`` elements as x [size, n], and four more arrays of that shape."""

    def __init__(self, capacity: int, size: int) -> None:
        self.size = size
        self._loader = Loader(capacity)
        self._flat = np.empty((5, capacity), np.float32)
        self._bytes = np.empty(capacity, np.uint8)
        self._scalar = np.empty((12, capacity // size), np.float32)
        self._mask = np.empty((2, capacity // size), np.bool_)
        self._fit(capacity // size)

    def _fit(self, n: int) -> None:
        self.n = n
        views = [f[: n * self.size].reshape(self.size, n) for f in self._flat]
        self.x, self.w, self.wx, self.l, self.t = views
        self.q = self._bytes[: n * self.size].reshape(self.size, n)
        self.scalar = self._scalar[:, :n]
        self.better, self.other = self._mask[:, :n]

    def load(self, src: Array) -> None:
        n = src.size // self.size
        if n != self.n:
            self._fit(n)
        self._loader.load(src, self._flat[0, : src.size], self.size, 1)


class SymmetricSearch:
    """ggml's make_qx_quants: the scale whose levels in [-nmax, nmax - 1] fit x best under weights w.

    Inputs: sub.x, sub.w. Results: ``scale`` [n] and ``factor`` [n]; the levels are
    clip(rint(factor·x)), and a sub-block whose magnitude stays below EPSILON has scale 0 and factor 0.
    """

    def __init__(self, sub: SubBlocks, nmax: int) -> None:
        self.sub = sub
        self.nmax = nmax

    def run(self) -> tuple[F32, F32]:
        """Requires sub.w; overwrites sub.wx, sub.l and sub.t."""
        s = self.sub
        extreme, low, factor, best_factor, scale, best, sumlx, suml2, tmp, tmp2 = s.scalar[:10]
        np.maximum.reduce(s.x, axis=0, out=extreme)
        np.minimum.reduce(s.x, axis=0, out=low)
        signed_extreme(extreme, low, lambda i: s.x[:, i].T)
        np.multiply(s.w, s.x, out=s.wx)
        np.divide(np.float32(-self.nmax), extreme, out=best_factor)
        self._sums(best_factor, sumlx, suml2, low=False, high=True)
        np.divide(sumlx, suml2, out=scale)
        np.copyto(scale, 0.0, where=suml2 == 0)
        np.multiply(scale, sumlx, out=best)
        for step in (*range(-9, 0), *range(1, 10)):
            reach = np.float32(self.nmax) + np.float32(0.1) * np.float32(step)
            np.divide(-reach, extreme, out=factor)
            self._sums(factor, sumlx, suml2, low=step >= 4, high=True)
            np.multiply(sumlx, sumlx, out=tmp)
            np.multiply(best, suml2, out=tmp2)
            np.greater(tmp, tmp2, out=s.better)
            np.greater(suml2, 0.0, out=s.other)
            np.logical_and(s.better, s.other, out=s.better)
            np.divide(sumlx, suml2, out=tmp)
            np.copyto(scale, tmp, where=s.better)
            np.multiply(tmp, sumlx, out=tmp)
            np.copyto(best, tmp, where=s.better)
            np.copyto(best_factor, factor, where=s.better)
        np.abs(extreme, out=tmp)
        np.less(tmp, EPSILON, out=s.other)
        np.copyto(scale, 0.0, where=s.other)
        np.copyto(best_factor, 0.0, where=s.other)
        return scale, best_factor

    def _sums(self, factor: F32, sumlx: F32, suml2: F32, *, low: bool, high: bool) -> None:
        """l = clip(rint(factor·x)); sumlx = Σ (w·x)·l, suml2 = Σ (w·l)·l, element after element."""
        s = self.sub
        np.multiply(s.x, factor, out=s.l)
        np.rint(s.l, out=s.l)
        if high:
            np.minimum(s.l, np.float32(self.nmax - 1), out=s.l)
        if low:
            np.maximum(s.l, np.float32(-self.nmax), out=s.l)
        np.multiply(s.wx, s.l, out=s.t)
        np.add.reduce(s.t, axis=0, out=sumlx)
        np.multiply(s.w, s.l, out=s.t)
        np.multiply(s.t, s.l, out=s.t)
        np.add.reduce(s.t, axis=0, out=suml2)
