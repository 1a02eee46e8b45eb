"""Packing levels of super-blocks: bit operations on 64-bit words while the levels lie sideways, then one transpose.

Levels come as uint8 q [size, n·256/size]: row e holds element e of every sub-block, so the bytes of one super-block
lie together: sixteen a row for sub-blocks of 16 (the word of each half holds quarter 0 … quarter 3, two bytes
each), eight a row for sub-blocks of 32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .kernel import Array, Records

U64 = NDArray[np.uint64]

_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_TWO_BITS = np.uint64(0x0303030303030303)
_ONE_BIT = np.uint64(0x0101010101010101)
_GATHER = np.uint64(0x0102040810204080)  # brings bit 0 of byte k to bit 56 + k


def _u64(value: int) -> np.uint64:
    return np.uint64(value)


class Packer:
    """Two scratch arrays of words for levels of up to ``capacity`` elements."""

    def __init__(self, capacity: int) -> None:
        self._words = np.empty((2, capacity // 8), np.uint64)

    def _views(self, q: Array) -> tuple[U64, U64, U64]:
        words = q.view(np.uint64)
        a, b = (w[: words.size].reshape(words.shape) for w in self._words)
        return words, a, b

    def two_bits(self, q: Array, shift: int, out: Records) -> None:
        """Bits ``shift`` and ``shift + 1`` of the four quarters of each half into one byte (64 bytes a block)."""
        words, a, b = self._views(q)
        np.right_shift(words, _u64(shift), out=a)
        np.bitwise_and(a, _TWO_BITS, out=a)
        self._fold(a, b, 14)
        self._store16(a, out)

    def nibble_halves(self, q: Array, out: Records) -> None:
        """Quarters 0 and 2, then 1 and 3 of each half as the nibbles of a byte (128 bytes a block)."""
        words, a, b = self._views(q)
        np.bitwise_and(words, _LOW_NIBBLES, out=a)
        np.right_shift(a, _u64(28), out=b)
        np.bitwise_or(a, b, out=a)
        packed = a.view(np.uint8).reshape(16, len(out), 2, 8)[..., :4]
        out.reshape(len(out), 2, 4, 16)[...] = packed.transpose(1, 2, 3, 0)

    def third_bit(self, q: Array, out: Records) -> None:
        """Bit 2 of element 32·i + j into bit i of byte j (32 bytes a block)."""
        words, a, b = self._views(q)
        np.right_shift(words, _u64(2), out=a)
        np.bitwise_and(a, _ONE_BIT, out=a)
        self._fold(a, b, 15)
        halves = a.reshape(16, len(out), 2)
        np.left_shift(halves[..., 1], _u64(4), out=halves[..., 1])
        np.bitwise_or(halves[..., 0], halves[..., 1], out=halves[..., 0])
        packed = a.view(np.uint8).reshape(16, len(out), 16)[..., :2]
        out.reshape(len(out), 2, 16)[...] = packed.transpose(1, 2, 0)

    def _fold(self, a: U64, b: U64, shift: int) -> None:
        """The low 16 bits of a = the four 16-bit lanes, each moved up by 16 - shift bits more than the last."""
        np.right_shift(a, _u64(2 * shift), out=b)
        np.bitwise_or(a, b, out=a)
        np.right_shift(a, _u64(shift), out=b)
        np.bitwise_or(a, b, out=a)

    def _store16(self, a: U64, out: Records) -> None:
        packed = a.view(np.uint8).reshape(16, len(out), 2, 8)[..., :2]
        out.reshape(len(out), 2, 2, 16)[...] = packed.transpose(1, 2, 3, 0)

    def nibble_pairs(self, q: Array, out: Records) -> None:
        """The low nibbles of sub-blocks 2i and 2i + 1 of 32 as one byte (128 bytes a block)."""
        words, a, b = self._views(q)
        np.bitwise_and(words, _LOW_NIBBLES, out=a)
        np.right_shift(a, _u64(4), out=b)
        np.bitwise_or(a, b, out=a)
        packed = a.view(np.uint8).reshape(32, len(out), 4, 2)[..., 0]
        out.reshape(len(out), 4, 32)[...] = packed.transpose(1, 2, 0)

    def fifth_bit(self, q: Array, out: Records) -> None:
        """Bit 4 of element j of sub-block i of 32 into bit i of byte j (32 bytes a block)."""
        words, a, _ = self._views(q)
        np.right_shift(words, _u64(4), out=a)
        np.bitwise_and(a, _ONE_BIT, out=a)
        np.multiply(a, _GATHER, out=a)
        out[...] = a.view(np.uint8).reshape(32, len(out), 8)[..., 7].T
