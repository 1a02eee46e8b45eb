"""The scale search of Q3_K without importance weights (ggml's make_q3_quants): coordinate descent on the levels.

An element moves to another level when that raises (Σ w·x·l)² / Σ w·l². In trained weights one element in fifty
moves, so a sweep first finds the sub-blocks in which any element would, and only those are swept one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .half import F32
from .kernel import Array, signed_extreme
from .sub import EPSILON, MAGIC, SubBlocks

_TRIES = 5
_BIAS = np.int32(0x00400000)  # nearest_int's integers before it subtracts this


@dataclass(slots=True)
class _Part:
    """Some of the sub-blocks: values, weights, weighted values, levels [size, m] and the two sums [m]."""

    index: Array  # where they came from
    x: F32
    w: F32
    wx: F32
    levels: F32
    sum_lx: F32
    sum_l2: F32

    def only(self, at: Array) -> _Part:
        """The sub-blocks ``at``, copied."""
        x, w, wx, levels = (np.take(a, at, axis=1) for a in (self.x, self.w, self.wx, self.levels))
        return _Part(self.index[at], x, w, wx, levels, self.sum_lx[at], self.sum_l2[at])


class DescentSearch:
    """Levels in [-nmax, nmax - 1] and their least-squares scale under the weights x²."""

    def __init__(self, sub: SubBlocks, nmax: int) -> None:
        self.sub = sub
        self.nmax = nmax
        capacity = sub.x.size
        self._spare = np.empty((2, capacity), np.float32)
        self._mask = np.empty(capacity, np.bool_)
        self._index = np.arange(capacity // sub.size)

    def run(self) -> F32:
        """The scales [n]; the levels stay in l."""
        s = self.sub
        extreme, factor, sumlx, suml2 = s.scalar[:4]
        np.copyto(extreme, s.high)
        signed_extreme(extreme, s.low, s.columns)
        np.divide(np.float32(-self.nmax), extreme, out=factor)
        self._zero = np.abs(extreme) < EPSILON
        factor[self._zero] = 0
        np.multiply(s.x, factor, out=s.l)
        np.rint(s.l, out=s.l)
        np.clip(s.l, np.float32(-self.nmax), np.float32(self.nmax - 1), out=s.l)
        np.multiply(s.x, s.x, out=s.w)
        np.multiply(s.w, s.x, out=s.wx)
        lx, l2 = (f[: s.x.size].reshape(s.x.shape) for f in self._spare)
        np.multiply(s.wx, s.l, out=lx)
        s.sum(lx, sumlx)
        np.multiply(s.w, s.l, out=l2)
        np.multiply(l2, s.l, out=l2)
        s.sum(l2, suml2)
        whole = _Part(self._index[: s.n], s.x, s.w, s.wx, s.l, sumlx, suml2)
        self._descend(whole, lx, l2)
        np.divide(sumlx, suml2, out=factor)
        factor[~(suml2 > 0) | self._zero] = 0
        scales: F32 = factor
        return scales

    def _descend(self, whole: _Part, lx: F32, l2: F32) -> None:
        s = self.sub
        restless = self._restless(whole, lx, l2, s.t)
        restless[self._zero] = False
        part = whole.only(np.flatnonzero(restless))
        for _ in range(_TRIES):
            if not part.index.size:
                return
            lx = part.wx * part.levels
            l2 = part.w * part.levels * part.levels
            changed = self._sweep(part, lx, l2, whole.levels)
            whole.sum_lx[part.index] = part.sum_lx
            whole.sum_l2[part.index] = part.sum_l2
            part = part.only(np.flatnonzero(changed))

    def _wishes(self, x: F32, rest_lx: F32, rest_l2: F32, out: F32) -> NDArray[np.int32]:
        """Each element's best level given the others' sums, biased, in ``out``'s bits."""
        np.multiply(x, rest_l2, out=out)
        np.divide(out, rest_lx, out=out)
        np.add(out, MAGIC, out=out)
        bits = out.view(np.int32)
        np.bitwise_and(bits, np.int32(0x007FFFFF), out=bits)
        np.clip(bits, _BIAS - np.int32(self.nmax), _BIAS + np.int32(self.nmax - 1), out=bits)
        return bits

    def _restless(self, p: _Part, lx: F32, l2: F32, t: F32) -> NDArray[np.bool_]:
        """The sub-blocks where some element wishes another level; overwrites lx, l2 and t."""
        mask = self._mask[: t.size].reshape(t.shape)
        np.subtract(p.sum_lx, lx, out=lx)
        np.subtract(p.sum_l2, l2, out=l2)
        wishes = self._wishes(p.x, lx, l2, t)
        np.add(p.levels, MAGIC, out=l2)
        current = l2.view(np.int32)
        np.bitwise_and(current, np.int32(0x007FFFFF), out=current)
        np.not_equal(wishes, current, out=mask)
        restless: NDArray[np.bool_] = np.logical_or.reduce(mask, axis=0)
        return restless

    def _sweep(self, p: _Part, lx: F32, l2: F32, levels: F32) -> NDArray[np.bool_]:
        """One pass over the elements in order, also into all ``levels``; which sub-blocks changed."""
        changed = np.zeros(p.index.size, np.bool_)
        current = (p.levels + MAGIC).view(np.int32) & np.int32(0x007FFFFF)
        rest_lx, rest_l2, t = np.empty((3, p.index.size), np.float32)
        for i in range(len(p.x)):
            np.subtract(p.sum_lx, lx[i], out=rest_lx)
            np.subtract(p.sum_l2, l2[i], out=rest_l2)
            wishes = self._wishes(p.x[i], rest_lx, rest_l2, t)
            at = np.flatnonzero((wishes != current[i]) & (rest_lx > 0))
            if not at.size:
                continue
            new = wishes.take(at)
            new -= _BIAS
            new = new.astype(np.float32)
            new_lx = rest_lx.take(at) + p.wx[i].take(at) * new
            new_l2 = rest_l2.take(at) + p.w[i].take(at) * new * new
            old_lx, old_l2 = p.sum_lx.take(at), p.sum_l2.take(at)
            better = np.flatnonzero((new_l2 > 0) & (new_lx * new_lx * old_l2 > old_lx * old_lx * new_l2))
            at, new = at.take(better), new.take(better)
            p.levels[i, at] = new
            levels[i, p.index.take(at)] = new
            p.sum_lx[at] = new_lx.take(better)
            p.sum_l2[at] = new_l2.take(better)
            changed[at] = True
        return changed

    def levels(self, indices: Array) -> Array:
        """The search's levels of some sub-blocks, uint8 [size, m]."""
        levels = self.sub.l[:, indices] + self.nmax
        levels[:, self._zero[indices]] = 0
        return levels.astype(np.uint8)
