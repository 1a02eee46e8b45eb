"""float32 <-> float16 with vector operations, bit for bit as IEEE 754 (and ggml) round.

numpy converts halves one at a time (2.5 ns an element); these are a dozen passes at 0.06 ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
Array = NDArray[Any]

_TO_INF = np.float32(2.0**112)
_TO_ZERO = np.float32(2.0**-110)
_EXPONENT = np.uint16(0x7C00)


def has_nonfinite_half(bits: U16, scratch: U16) -> bool:
    """Whether any float16 pattern in ``bits`` is NaN or Inf; ``scratch`` has the same shape."""
    np.bitwise_and(bits, _EXPONENT, out=scratch)
    return bool(scratch.max(initial=0) == _EXPONENT)


class HalfCoder:
    """Converts up to ``capacity`` values at a time without allocating."""

    def __init__(self, capacity: int) -> None:
        self._a = np.empty(capacity, np.float32)
        self._b = np.empty(capacity, np.uint32)
        self._c = np.empty(capacity, np.uint32)
        self._h = np.empty(capacity, np.uint16)
        self._g = np.empty(capacity, np.uint16)

    def encode(self, x: F32) -> U16:
        """The float16 patterns of ``x`` [n]; a view that the next call overwrites.

        Overflow and NaN become Inf (callers refuse both).
        """
        n = x.size
        a, b, c = self._a[:n], self._b[:n], self._c[:n]
        h, g = self._h[:n], self._g[:n]
        w = x.view(np.uint32)
        # Adding 2^k aligned to the value's exponent lets the float adder round at float16's last bit.
        np.left_shift(w, 1, out=b)
        np.bitwise_and(b, 0xFF000000, out=b)
        np.clip(b, 0x71000000, 0xFF000000, out=b)  # faster than maximum with a scalar
        np.right_shift(b, 1, out=b)
        np.add(b, 0x07800000, out=b)
        np.abs(x, out=a)
        np.multiply(a, _TO_INF, out=a)
        np.multiply(a, _TO_ZERO, out=a)
        np.add(a, b.view(np.float32), out=a)
        bits = a.view(np.uint32)
        np.right_shift(bits, 13, out=b)
        np.bitwise_and(b, 0x7C00, out=b)
        np.bitwise_and(bits, 0x0FFF, out=c)
        np.add(b, c, out=b)
        np.copyto(h, b, casting="unsafe")
        np.clip(h, 0, _EXPONENT, out=h)  # a NaN's mantissa must not carry the pattern past Inf
        np.right_shift(w, 16, out=c)
        np.copyto(g, c, casting="unsafe")
        np.bitwise_and(g, 0x8000, out=g)
        np.bitwise_or(h, g, out=h)
        return h

    def has_nonfinite(self, bits: U16) -> bool:
        """Whether any float16 pattern in ``bits`` [n] is NaN or Inf."""
        return has_nonfinite_half(bits, self._g[: bits.size])

    def decode(self, bits: U16, out: F32) -> None:
        """float32 values of the patterns ``bits`` [n] into ``out`` [n], NaN and Inf included."""
        n = bits.size
        if self.has_nonfinite(bits):
            np.copyto(out, bits.view(np.float16))
            u = out.view(np.uint32)
            np.bitwise_or(u, 0x00400000, out=u, where=np.isnan(out))  # ggml's arithmetic quiets a NaN
            return
        b = self._b[:n]
        u = out.view(np.uint32)
        np.copyto(b, bits)
        np.bitwise_and(b, 0x7FFF, out=u)
        np.left_shift(u, 13, out=u)
        np.multiply(out, _TO_INF, out=out)  # exact: rebiases the exponent, subnormals included
        np.right_shift(b, 15, out=b)
        np.left_shift(b, 31, out=b)
        np.bitwise_or(u, b, out=u)
