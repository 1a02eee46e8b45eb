"""F32, F16 and BF16: one value per block.

    F32   4 bytes, IEEE 754 binary32
    F16   2 bytes, IEEE 754 binary16, rounded half to even
    BF16  2 bytes, the upper half of a binary32, rounded half to even

A bf16 or float16 source of the same type is copied byte for byte.
"""

from __future__ import annotations

import numpy as np

from .half import HalfCoder
from .kernel import GOOD, Array, Records, first_bad_half, first_true
from .load import Loader


def _bad_f32(src: Array, limit: int = 0x7F800000) -> int:
    """First element whose magnitude pattern reaches ``limit`` (NaN and Inf by default)."""
    u = src.view(np.uint32)
    if u.max() < 0x80000000 | limit and u.view(np.int32).max() < limit:
        return GOOD
    return first_true((u & 0x7FFFFFFF) >= limit)


def _bad_16(src: Array, limit: int) -> int:
    u = src.view(np.uint16)
    if u.max() < 0x8000 | limit and u.view(np.int16).max() < limit:
        return GOOD
    return first_true((u & 0x7FFF) >= limit)


def from_bf16(patterns: Array) -> Array:
    """float32 values of bf16 bit patterns (uint16), in their shape; exact."""
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bad_source(src: Array) -> int:
    """Index of the first NaN or Inf in a flat float32, float16 or bf16-pattern array, or GOOD."""
    if src.dtype == np.float32:
        return _bad_f32(src)
    return _bad_16(src, 0x7C00 if src.dtype == np.float16 else 0x7F80)


def nonfinite_row(rows: Array) -> int | None:
    """The first row of ``rows`` [n, k] with a NaN or Inf; ``rows`` is float32, float16 or bf16 patterns (uint16)."""
    bad = bad_source(np.ascontiguousarray(rows).reshape(-1)) if rows.size else GOOD
    return None if bad == GOOD else bad // rows.shape[1]


class F32Kernel:
    def __init__(self, capacity: int) -> None:
        self._loader = Loader(capacity)

    def encode(self, src: Array, out: Records, first: int) -> int:
        self._loader.flat(src, out.reshape(-1).view(np.float32))
        return bad_source(src)


class F16Kernel:
    def __init__(self, capacity: int) -> None:
        self._loader = Loader(capacity)
        self._half = HalfCoder(capacity)
        self._x = np.empty(capacity, np.float32)

    def encode(self, src: Array, out: Records, first: int) -> int:
        bits = out.reshape(-1).view(np.uint16)
        if src.dtype == np.float16:
            np.copyto(bits, src.view(np.uint16))
        elif src.dtype == np.float32:
            np.copyto(bits, self._half.encode(src))
        else:
            x = self._x[: src.size]
            self._loader.flat(src, x)
            np.copyto(bits, self._half.encode(x))
        return first_bad_half(bits) if self._half.has_nonfinite(bits) else GOOD


class BF16Kernel:
    def __init__(self, capacity: int) -> None:
        self._loader = Loader(capacity)
        self._x = np.empty(capacity, np.float32)
        self._u = np.empty(capacity, np.uint32)

    def encode(self, src: Array, out: Records, first: int) -> int:
        bits = out.reshape(-1).view(np.uint16)
        if src.dtype == np.uint16:
            np.copyto(bits, src)
            return bad_source(src)
        if src.dtype == np.float16:
            x = self._x[: src.size]
            self._loader.flat(src, x)
            src = x
        w, u = src.view(np.uint32), self._u[: src.size]
        np.right_shift(w, 16, out=u)
        np.bitwise_and(u, 1, out=u)
        np.add(u, 0x7FFF, out=u)
        np.add(u, w, out=u)
        np.right_shift(u, 16, out=u)
        np.copyto(bits, u, casting="unsafe")
        return _bad_f32(src, 0x7F7F8000)  # from here on rounding reaches Inf
