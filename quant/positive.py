"""ggml's make_qp_quants: one positive factor for the scales (or minimums) of a super-block, weighted.

Used with importance weights by Q2_K, Q4_K and Q5_K. A value may be negative; its level is then kept in a byte, as
in C, so it wraps around.
"""

from __future__ import annotations

import numpy as np

from .half import F32
from .kernel import Array, column_sums
from .sub import EPSILON, nearest_int

_TRIES = 5


def positive_scale(x: F32, w: F32, nmax: int) -> tuple[F32, Array]:
    """The factors [n] and levels uint8 [m, n] of ``x`` [m, n] under the weights ``w`` [m, n].

    Both are m values of n super-blocks, C-contiguous.
    """
    peak = np.maximum(x.max(axis=0), np.float32(0))
    zero = peak < EPSILON
    factor = _best_factor(x, w, nmax, peak)
    levels = np.minimum(nearest_int(factor * x), nmax)
    levels[:, zero] = 0
    wx, as_float = w * x, levels.astype(np.float32)
    sum_lx, sum_l2 = _sums(wx * as_float), _sums(w * as_float * as_float)
    levels = levels.astype(np.uint8)
    _descend(x, w, wx, levels, sum_lx, sum_l2, nmax, np.flatnonzero(~zero))
    scale: F32 = sum_lx / sum_l2
    scale[~(sum_l2 > 0) | zero] = 0
    return scale, levels


def _best_factor(x: F32, w: F32, nmax: int, peak: F32) -> F32:
    """The factor of least weighted squared error among nine around nmax / peak."""
    factor = np.float32(nmax) / peak
    best = _error(x, w, np.float32(1) / factor, nearest_int(factor * x) & 0xFF)
    for step in (*range(-4, 0), *range(1, 5)):
        other = (np.float32(0.1) * np.float32(step) + np.float32(nmax)) / peak
        error = _error(x, w, np.float32(1) / other, np.minimum(nearest_int(other * x), nmax))
        better = error < best
        factor = np.where(better, other, factor)
        best = np.where(better, error, best)
    return factor


def _error(x: F32, w: F32, scale: F32, levels: Array) -> F32:
    difference = x - scale * levels.astype(np.float32)
    return _sums(w * difference * difference)


def _sums(terms: F32) -> F32:
    out = np.empty(terms.shape[1], np.float32)
    column_sums(terms, out)
    return out


def _descend(x: F32, w: F32, wx: F32, levels: Array, sum_lx: F32, sum_l2: F32, nmax: int, active: Array) -> None:
    """Up to five sweeps over the m values, moving one level at a time while that helps; in place."""
    for _ in range(_TRIES):
        if not active.size:
            return
        changed = np.zeros(active.size, np.bool_)
        for i in range(len(x)):
            old = levels[i, active].astype(np.float32)
            lx, l2 = sum_lx[active], sum_l2[active]
            new_lx = lx - wx[i, active] * old
            new_l2 = l2 - w[i, active] * old * old
            possible = (new_lx > 0) & (new_l2 > 0)
            new = np.minimum(nearest_int(x[i, active] * new_l2 / new_lx), nmax)
            possible &= new != levels[i, active]
            as_float = new.astype(np.float32)
            new_lx += wx[i, active] * as_float
            new_l2 += w[i, active] * as_float * as_float
            possible &= new_lx * new_lx * l2 > lx * lx * new_l2
            at = active[possible]
            levels[i, at] = new[possible].astype(np.uint8)
            sum_lx[at] = new_lx[possible]
            sum_l2[at] = new_l2[possible]
            changed |= possible
        active = active[changed]
