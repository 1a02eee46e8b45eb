"""Reading source rows sideways: an (elements, blocks) array in which block reductions are vector operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .half import F32, HalfCoder

Array = NDArray[Any]

SOURCE_DTYPES = ("float32", "float16", "uint16")
_WIDE: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 4: np.dtype(np.complex128)}
_NARROW: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint16), 4: np.dtype(np.uint64)}


_TILE = 1024  # blocks: their source stays in the cache while it is read once for every row


def _turn(src: Array, out: Array) -> None:
    """out = src [rows, blocks], where a row of ``src`` is scattered over all of its memory."""
    for start in range(0, out.shape[1], _TILE):
        part = slice(start, start + _TILE)
        np.copyto(out[:, part], src[:, part])


class Loader:
    """Turns flat source values (float32, float16, or bf16 patterns as uint16) into float32, sideways.

    ``load(src, x, rows, unit)``: ``src`` holds n blocks of rows·unit elements; ``x`` [n·rows·unit] receives
    element group r of all blocks at ``x.reshape(rows, n·unit)[r]``. With unit 4 one copy moves 16 bytes, which
    is three times cheaper than a full transpose (unit 1).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._narrow: NDArray[np.uint16] | None = None
        self._half: HalfCoder | None = None

    def load(self, src: Array, x: F32, rows: int, unit: int) -> None:
        if src.dtype == np.float32:
            wide = _WIDE[unit]
            _turn(src.view(wide).reshape(-1, rows).T, x.view(wide).reshape(rows, -1))
            return
        if self._narrow is None:
            self._narrow = np.empty(self._capacity, np.uint16)
        h = self._narrow[: x.size]
        narrow = _NARROW[unit]
        _turn(src.view(narrow).reshape(-1, rows).T, h.view(narrow).reshape(rows, -1))
        self._widen(h, x, src.dtype == np.float16)

    def flat(self, src: Array, x: F32) -> None:
        """float32 values of ``src`` [n] into ``x`` [n], in order."""
        if src.dtype == np.float32:
            np.copyto(x, src)
        else:
            self._widen(src.view(np.uint16), x, src.dtype == np.float16)

    def _widen(self, h: NDArray[np.uint16], x: F32, is_half: bool) -> None:
        if is_half:
            if self._half is None:
                self._half = HalfCoder(self._capacity)
            self._half.decode(h, x)
            return
        bits = x.view(np.uint32)
        np.copyto(bits, h)
        np.left_shift(bits, 16, out=bits)
