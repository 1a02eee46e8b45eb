"""Dequantization, bit for bit as ggml's ``to_float``: the same float32 operations in the same order.

Each function here turns records uint8 [n, bytes per block] into levels, one byte an element in order, and into the
float32 scales (and minimums) of the blocks or sub-blocks; ``Kernel`` then has x = step·level ± low. The block
layouts are described in legacy.py, kquant.py, q3k.py, q6k.py, iq4.py and mxfp4.py.

What makes it quick: bits move as 64-bit words over whole arrays, and pieces of 16 bytes and more change places as
one item each, so that only the scales meet the elements in loops as short as a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .half import F32
from .kernel import Array, Records, field
from .tables import E8M0_HALF, FP4_VALUES, IQ4_VALUES

Bytes = NDArray[np.uint8]

HALVES: F32 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""Every float16 pattern's value: cheaper than a conversion for the few scales of a chunk."""


class Parts(NamedTuple):
    """``levels`` are 8-bit integers [elements]; ``step`` and ``low`` [m] serve elements / m of them each."""

    levels: Array
    step: F32
    low: F32 | None = None
    join: np.ufunc = np.add  # how ``low`` goes to step·level


class Work:
    """Scratch bytes for blocks of up to ``capacity`` elements."""

    def __init__(self, capacity: int) -> None:
        self._rooms = np.empty((4, capacity), np.uint8)
        self.levels: Bytes = self._rooms[0]
        self._fit(capacity)

    def fit(self, elements: int) -> None:
        if elements != self.levels.size:
            self._fit(elements)

    def _fit(self, elements: int) -> None:
        self.levels = self._rooms[0, :elements]
        self.bits = self._rooms[1, :elements]
        self._packed, self._moved = self._rooms[2], self._rooms[3]

    def packed(self, data: Records, start: int, count: int) -> Bytes:
        """The ``count`` bytes at ``start`` of every record, contiguous [n·count]."""
        room: Bytes = self._packed[: len(data) * count]
        np.copyto(_items(room, count), data[:, start : start + count].view(f"V{count}")[:, 0])
        return room

    def part(self, source: Bytes, shift: int, mask: int) -> Bytes:
        """The bits ``mask`` of every byte of ``source``, moved right by ``shift`` (left if negative) before."""
        room: Bytes = self._moved[: source.size]
        words, result = source.view(np.uint64), room.view(np.uint64)
        if shift > 0:
            words = np.right_shift(words, np.uint64(shift), out=result)
        elif shift < 0:
            words = np.left_shift(words, np.uint64(-shift), out=result)
        np.bitwise_and(words, np.uint64(mask * 0x0101010101010101), out=result)
        return room

    def split(self, source: Bytes, width: int, shifts: tuple[int, ...], mask: int, out: Bytes) -> None:
        """Every ``width`` bytes of ``source``: their parts at each of ``shifts``, one after the other, into ``out``."""
        rows = _items(out, width).reshape(-1, len(shifts))
        for at, shift in enumerate(shifts):
            np.copyto(rows[:, at], _items(self.part(source, shift, mask), width))

    def nibbles(self, data: Records, start: int, count: int, width: int) -> None:
        """levels = of every ``width`` bytes the low halves, then the high halves."""
        self.split(self.packed(data, start, count), width, (0, 4), 15, self.levels)

    def add_bits(self) -> None:
        """levels |= bits."""
        levels = self.levels.view(np.uint64)
        np.bitwise_or(levels, self.bits.view(np.uint64), out=levels)

    def centred(self, middle: int) -> Array:
        """levels - middle as int8."""
        levels = self.levels.view(np.int8)
        return np.subtract(levels, np.int8(middle), out=levels)


def _items(data: Bytes, width: int) -> Array:
    """``data`` as items of ``width`` bytes, which numpy moves whole."""
    return data.view(f"V{width}")


def _half(data: Records, start: int) -> F32:
    """The float16 at byte ``start`` of every record as float32 [n]."""
    return HALVES.take(field(data, start, np.uint16, 1)[:, 0])


def _products(factors: F32, scales: Array) -> F32:
    """Each block's factor [n] times its 8-bit integer scales [n·m], flat."""
    products: F32 = scales.reshape(-1).astype(np.float32)
    return np.multiply(products, np.repeat(factors, products.size // factors.size), out=products)


def q8_0(data: Records, work: Work) -> Parts:
    return Parts(field(data, 2, np.int8, 32), _half(data, 0))


def q4_0(data: Records, work: Work) -> Parts:
    work.nibbles(data, 2, 16, 16)
    return Parts(work.centred(8), _half(data, 0))


def q4_1(data: Records, work: Work) -> Parts:
    work.nibbles(data, 4, 16, 16)
    return Parts(work.levels, _half(data, 0), _half(data, 2))


def _fifth_bits(data: Records, start: int, work: Work) -> None:
    """Bit j of the u32 at ``start`` as bit 4 of level j."""
    bits = np.unpackbits(work.packed(data, start, 4), bitorder="little")
    np.left_shift(bits.view(np.uint64), np.uint64(4), out=work.bits.view(np.uint64))
    work.add_bits()


def q5_0(data: Records, work: Work) -> Parts:
    work.nibbles(data, 6, 16, 16)
    _fifth_bits(data, 2, work)
    return Parts(work.centred(16), _half(data, 0))


def q5_1(data: Records, work: Work) -> Parts:
    work.nibbles(data, 8, 16, 16)
    _fifth_bits(data, 4, work)
    return Parts(work.levels, _half(data, 0), _half(data, 2))


def _looked_up(values: F32) -> NDArray[np.uint16]:
    """Two levels at a time: a byte -> the int8 values of its low half and, above it, of its high half."""
    codes = np.arange(256)
    pair = np.stack((values[codes & 15], values[codes >> 4]), axis=1).astype(np.int8)
    return pair.view(np.uint16)[:, 0]


_FP4_PAIRS, _IQ4_PAIRS = _looked_up(FP4_VALUES), _looked_up(IQ4_VALUES)


def _table_levels(data: Records, start: int, count: int, table: NDArray[np.uint16], work: Work) -> Array:
    """levels = the table's values for 16 low halves, then 16 high halves."""
    pairs = table.take(work.packed(data, start, count))
    halves = work.levels.reshape(-1, 2, 16)
    packed = work.bits[: pairs.size]
    for at in (0, 1):
        np.copyto(packed, pairs.view(np.uint8)[at::2])
        np.copyto(_items(halves.reshape(-1), 16).reshape(-1, 2)[:, at], _items(packed, 16))
    return work.levels.view(np.int8)


def mxfp4(data: Records, work: Work) -> Parts:
    return Parts(_table_levels(data, 1, 16, _FP4_PAIRS, work), E8M0_HALF.take(data[:, 0]))


def iq4_nl(data: Records, work: Work) -> Parts:
    return Parts(_table_levels(data, 2, 16, _IQ4_PAIRS, work), _half(data, 0))


def iq4_xs(data: Records, work: Work) -> Parts:
    high = field(data, 2, np.uint16, 1) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack((data[:, 4:8] & 15, data[:, 4:8] >> 4), axis=-1).reshape(-1, 8)
    scales = (low | (high.astype(np.uint8) & 3) << 4).view(np.int8) - np.int8(32)
    return Parts(_table_levels(data, 8, 128, _IQ4_PAIRS, work), _products(_half(data, 0), scales))


def q2_k(data: Records, work: Work) -> Parts:
    work.split(work.packed(data, 16, 64), 32, (0, 2, 4, 6), 3, work.levels)
    scales = work.packed(data, 0, 16)
    step = _products(_half(data, 80), work.part(scales, 0, 15))
    low = _products(_half(data, 82), work.part(scales, 4, 15))
    return Parts(work.levels, step, low, np.subtract)


def q3_scales(data: Records, start: int) -> Bytes:
    """The sixteen 6-bit scales [n, 16] in the 12 bytes of Q3_K at ``start``, as stored (32 too large)."""
    words = field(data, start, np.uint32, 3)
    first, second, upper = (np.ascontiguousarray(words[:, i]) for i in range(3))
    scales = np.empty((len(data), 4), np.uint32)
    for at, (word, shift) in enumerate(((first, 0), (second, 0), (first, 4), (second, 4))):
        scales[:, at] = (word >> shift) & 0x0F0F0F0F | ((upper >> (2 * at)) & 0x03030303) << 4
    return scales.view(np.uint8)


def q3_k(data: Records, work: Work) -> Parts:
    work.split(work.packed(data, 0, 32), 32, (-2, -1, 0, 1, 2, 3, 4, 5), 4, work.bits)
    work.split(work.packed(data, 32, 64), 32, (0, 2, 4, 6), 3, work.levels)
    work.add_bits()
    scales = q3_scales(data, 96).view(np.int8) - np.int8(32)
    return Parts(work.centred(4), _products(_half(data, 108), scales))


def k4_scales(data: Records, start: int) -> tuple[Bytes, Bytes]:
    """The eight 6-bit scales and minimums [n, 8] in the 12 bytes of Q4_K and Q5_K at ``start``."""
    words = field(data, start, np.uint32, 3)
    a, b, c = (np.ascontiguousarray(words[:, i]) for i in range(3))
    found = np.empty((2, len(data), 2), np.uint32)
    for out, word, low in ((found[0], a, c), (found[1], b, c >> 4)):
        out[:, 0] = word & 0x3F3F3F3F
        out[:, 1] = low & 0x0F0F0F0F | (word >> 2) & 0x30303030
    return found[0].view(np.uint8), found[1].view(np.uint8)


def _affine_k(data: Records, work: Work) -> Parts:
    scales, lows = k4_scales(data, 4)
    step, low = _products(_half(data, 0), scales), _products(_half(data, 2), lows)
    return Parts(work.levels, step, low, np.subtract)


def q4_k(data: Records, work: Work) -> Parts:
    work.nibbles(data, 16, 128, 32)
    return _affine_k(data, work)


def q5_k(data: Records, work: Work) -> Parts:
    work.nibbles(data, 48, 128, 32)
    work.split(work.packed(data, 16, 32), 32, (-4, -3, -2, -1, 0, 1, 2, 3), 16, work.bits)
    work.add_bits()
    return _affine_k(data, work)


def q6_k(data: Records, work: Work) -> Parts:
    work.nibbles(data, 0, 128, 64)
    work.split(work.packed(data, 128, 64), 32, (-4, -2, 0, 2), 48, work.bits)
    work.add_bits()
    scales = work.packed(data, 192, 16).view(np.int8)
    return Parts(work.centred(32), _products(_half(data, 208), scales))


DECODERS: dict[str, Callable[[Records, Work], Parts]] = {
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "MXFP4": mxfp4,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}


class Kernel:
    """Decodes whole blocks of one type through a workspace made once for ``capacity`` elements."""

    def __init__(self, type_name: str, capacity: int) -> None:
        self._parts = DECODERS[type_name]
        self._work = Work(capacity)

    def decode(self, records: Records, out: F32) -> None:
        """The values of ``records`` [n, bytes per block] into the flat ``out``."""
        self._work.fit(out.size)
        parts = self._parts(records, self._work)
        np.copyto(out.reshape(parts.levels.shape), parts.levels)
        blocks = out.reshape(parts.step.size, -1)
        np.multiply(blocks, parts.step[:, None], out=blocks)
        if parts.low is not None:
            parts.join(blocks, parts.low[:, None], out=blocks)
