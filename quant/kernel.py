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
    """``op`` over the four lanes of each block: ``lanes`` [4n] -> ``out`` [n]; overwrites both others."""
    op(lanes[:-1], lanes[1:], out=scratch[:-1])
    op(scratch[:-3], scratch[2:-1], out=lanes[:-3])
    np.copyto(out, lanes[::4])


def spread_lanes(values: Array, out: Array) -> None:
    """Repeat each of ``values`` [n] four times into ``out`` [4n]."""
    twice = out.view(np.uint64)
    np.multiply(values.view(np.uint32), np.uint64(0x0000000100000001), out=twice[0::2])
    np.copyto(twice[1::2], twice[0::2])


def column_sums(terms: Array, out: Array) -> None:
    """Σ over axis 0 of ``terms`` [m, n], C-contiguous, into ``out`` [n]: term after term, as C adds them."""
    if terms.shape[1] == 1:  # numpy would take the single column for a row and add pairwise
        out[0] = np.add.accumulate(terms[:, 0])[-1]
    else:
        np.add.reduce(terms, axis=0, out=out)


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
