"""Dequantization, bit for bit as ggml's ``to_float``: the same float32 operations in the same order.

Each function takes records uint8 [n, bytes per block] and returns float32 of n blocks. The block layouts are
described in legacy.py, kquant.py, q6k.py, iq4.py and mxfp4.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .half import F32
from .kernel import Array, Records, field
from .tables import E8M0_HALF, FP4_VALUES, IQ4_VALUES


def _half(data: Records, start: int) -> F32:
    """The float16 at byte ``start`` of every record as float32 [n, 1]."""
    return field(data, start, np.float16, 1).astype(np.float32)


def _nibbles(packed: Array) -> Array:
    """[..., m] bytes -> [..., 2, m]: the low halves, then the high halves."""
    return np.stack((packed & 15, packed >> 4), axis=-2)


def _legacy_levels(data: Records, start: int) -> Array:
    return _nibbles(data[:, start : start + 16]).reshape(-1, 32)


def _fifth_bits(data: Records, start: int) -> Array:
    """Bit j of the u32 at ``start`` as 0 or 16 for element j: uint8 [n, 32]."""
    return np.unpackbits(data[:, start : start + 4], axis=1, bitorder="little") << 4


def decode_f32(data: Records) -> F32:
    return data.view(np.float32)


def decode_q8_0(data: Records) -> F32:
    return field(data, 2, np.int8, 32).astype(np.float32) * _half(data, 0)


def decode_q4_0(data: Records) -> F32:
    levels = _legacy_levels(data, 2).view(np.int8) - np.int8(8)
    return levels.astype(np.float32) * _half(data, 0)


def decode_q4_1(data: Records) -> F32:
    return _legacy_levels(data, 4).astype(np.float32) * _half(data, 0) + _half(data, 2)


def decode_q5_0(data: Records) -> F32:
    levels = (_legacy_levels(data, 6) | _fifth_bits(data, 2)).view(np.int8) - np.int8(16)
    return levels.astype(np.float32) * _half(data, 0)


def decode_q5_1(data: Records) -> F32:
    levels = _legacy_levels(data, 8) | _fifth_bits(data, 4)
    return levels.astype(np.float32) * _half(data, 0) + _half(data, 2)


def decode_mxfp4(data: Records) -> F32:
    levels = FP4_VALUES.take(_legacy_levels(data, 1))
    return np.multiply(levels, E8M0_HALF.take(data[:, :1]))


def decode_iq4_nl(data: Records) -> F32:
    return np.multiply(_half(data, 0), IQ4_VALUES.take(_legacy_levels(data, 2)))


def decode_iq4_xs(data: Records) -> F32:
    high = field(data, 2, np.uint16, 1) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack((data[:, 4:8] & 15, data[:, 4:8] >> 4), axis=-1).reshape(-1, 8)
    scales = (low | (high & 3) << 4).astype(np.float32) - np.float32(32)
    values = IQ4_VALUES.take(_nibbles(data[:, 8:136].reshape(-1, 8, 16))).reshape(-1, 8, 32)
    step: F32 = _half(data, 0) * scales
    return np.multiply(step[:, :, None], values, dtype=np.float32)


def _pairs(packed: Array) -> Array:
    """Two-bit fields [n, 64] of Q2_K and Q3_K -> uint8 [n, 16, 16] in element order."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    pairs: Array = ((packed.reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 16, 16)
    return pairs


def decode_q2_k(data: Records) -> F32:
    scales = data[:, :16]
    step = _half(data, 80) * (scales & 15)
    low = _half(data, 82) * (scales >> 4)
    values: F32 = step[:, :, None] * _pairs(data[:, 16:80]) - low[:, :, None]
    return values


def q3_scales(packed: Array) -> Array:
    """The sixteen 6-bit scales [n, 16] in the 12 bytes [n, 12] of Q3_K, as stored (32 too large)."""
    low = _nibbles(packed[:, :8]).reshape(-1, 16)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = ((packed[:, None, 8:12] >> shifts) & 3).reshape(-1, 16)
    values: Array = low | high << 4
    return values


def decode_q3_k(data: Records) -> F32:
    step = _half(data, 108) * (q3_scales(data[:, 96:108]).astype(np.float32) - np.float32(32))
    masks = np.left_shift(np.uint8(1), np.arange(8, dtype=np.uint8))[:, None]
    absent = ((data[:, None, :32] & masks) == 0).reshape(-1, 16, 16)
    levels = _pairs(data[:, 32:96]).view(np.int8) - (absent.view(np.int8) << 2)
    values: F32 = step[:, :, None] * levels.astype(np.float32)
    return values


def k4_scales(packed: Array) -> tuple[Array, Array]:
    """The eight 6-bit scales and minimums [n, 8] in the 12 bytes [n, 12] of Q4_K and Q5_K."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((a & 63, (c & 15) | (a >> 6) << 4), axis=1)
    lows = np.concatenate((b & 63, (c >> 4) | (b >> 6) << 4), axis=1)
    return scales, lows


def _affine_k(data: Records, levels: Array) -> F32:
    scales, lows = k4_scales(data[:, 4:16])
    step, low = _half(data, 0) * scales, _half(data, 2) * lows
    values: F32 = step[:, :, None] * levels - low[:, :, None]
    return values


def decode_q4_k(data: Records) -> F32:
    return _affine_k(data, _nibbles(data[:, 16:144].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def decode_q5_k(data: Records) -> F32:
    levels = _nibbles(data[:, 48:176].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    bits = (data[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _affine_k(data, levels | bits << 4)


def decode_q6_k(data: Records) -> F32:
    low = _nibbles(data[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = (data[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
    levels = (low | high << 4).view(np.int8) - np.int8(32)
    step = _half(data, 208) * field(data, 192, np.int8, 16)
    values: F32 = step[:, :, None] * levels.reshape(-1, 16, 16)
    return values


DECODERS: dict[str, Callable[[Records], F32]] = {
    "F32": decode_f32,
    "Q8_0": decode_q8_0,
    "Q4_0": decode_q4_0,
    "Q4_1": decode_q4_1,
    "Q5_0": decode_q5_0,
    "Q5_1": decode_q5_1,
    "MXFP4": decode_mxfp4,
    "IQ4_NL": decode_iq4_nl,
    "IQ4_XS": decode_iq4_xs,
    "Q2_K": decode_q2_k,
    "Q3_K": decode_q3_k,
    "Q4_K": decode_q4_k,
    "Q5_K": decode_q5_k,
    "Q6_K": decode_q6_k,
}
