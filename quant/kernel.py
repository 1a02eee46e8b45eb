"""What every kernel shares: the interface, the check of block scales, strided views of block records."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Records = NDArray[np.uint8]  # [blocks, bytes per block]

GOOD = -1  # what ``encode`` returns when no block is bad


class EncodeKernel(Protocol):
    """Encodes whole blocks with a workspace made once for ``capacity`` elements."""

    def encode(self, src: Array, out: Records, first: int) -> int:
        """Write the blocks of the flat ``src`` into ``out`` [n, nbytes].

        ``first`` is the index of the first block within the matrix (for importance weights). Returns the index
        of the first block (or element, for the plain types) whose values or scale are not finite, or GOOD.
        Such a block's bytes are unspecified.
        """


def first_true(mask: Array) -> int:
    """Index of the first true value, or GOOD."""
    i = int(mask.argmax())
    return i if mask[i] else GOOD


def first_bad_half(bits: NDArray[np.uint16]) -> int:
    """Index of the first NaN or Inf pattern."""
    return first_true((bits & 0x7C00) == 0x7C00)


def field(out: Records, start: int, dtype: Any, count: int) -> Array:
    """The field of ``count`` items of ``dtype`` at byte ``start`` of every record: a view [blocks, count]."""
    stop = start + np.dtype(dtype).itemsize * count
    return out[:, start:stop].view(dtype)


def join_lanes(op: np.ufunc, lanes: Array, out: Array, scratch: Array) -> None:
    """``op`` over the four lanes of each block: ``lanes`` [4n] -> ``out`` [n]; ``scratch`` [n]."""
    op(lanes[0::4], lanes[1::4], out=out)
    op(lanes[2::4], lanes[3::4], out=scratch)
    op(out, scratch, out=out)


def spread_lanes(values: Array, out: Array) -> None:
    """Repeat each of ``values`` [n] four times into ``out`` [4n]."""
    for lane in range(4):
        out[lane::4] = values


def signed_extreme(high: Array, low: Array, tied_values: Any) -> Array:
    """The value of largest magnitude of each block, written into ``high`` [n], 0.0 for a block of zeros.

    ``high`` and ``low`` are each block's maximum and minimum. ``tied_values(indices)`` returns the elements
    [m, elements] of the blocks where both magnitudes are equal: there the one that comes first counts.
    """
    np.add(high, 0.0, out=high)  # -0.0 becomes 0.0
    tied = np.flatnonzero((high == -low) & (high != 0))
    np.copyto(high, low, where=-low > high)
    if tied.size:
        values = tied_values(tied)
        at = np.abs(values).argmax(axis=1)
        high[tied] = values[np.arange(tied.size), at]
    return high
