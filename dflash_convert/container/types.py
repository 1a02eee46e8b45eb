"""GGUF v3's value types, tensor types and key-value records (ggml.h and gguf.md of llama.cpp)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
MAX_NAME = 63  # bytes; GGML_MAX_NAME is 64 with the terminator
MAX_DIMS = 4


class ValueType(IntEnum):
    """Type codes of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


STRUCT_CODE = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}


class TensorType(IntEnum):
    """Type ids of tensors; the gaps are ids that ggml has retired."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


# (elements per block, bytes per block)
BLOCK: dict[TensorType, tuple[int, int]] = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.Q8_0: (32, 34),
    TensorType.Q8_1: (32, 36),
    TensorType.Q2_K: (256, 84),
    TensorType.Q3_K: (256, 110),
    TensorType.Q4_K: (256, 144),
    TensorType.Q5_K: (256, 176),
    TensorType.Q6_K: (256, 210),
    TensorType.Q8_K: (256, 292),
    TensorType.IQ2_XXS: (256, 66),
    TensorType.IQ2_XS: (256, 74),
    TensorType.IQ3_XXS: (256, 98),
    TensorType.IQ1_S: (256, 50),
    TensorType.IQ4_NL: (32, 18),
    TensorType.IQ3_S: (256, 110),
    TensorType.IQ2_S: (256, 82),
    TensorType.IQ4_XS: (256, 136),
    TensorType.I8: (1, 1),
    TensorType.I16: (1, 2),
    TensorType.I32: (1, 4),
    TensorType.I64: (1, 8),
    TensorType.F64: (1, 8),
    TensorType.IQ1_M: (256, 56),
    TensorType.BF16: (1, 2),
    TensorType.TQ1_0: (256, 54),
    TensorType.TQ2_0: (256, 66),
    TensorType.MXFP4: (32, 17),
    TensorType.NVFP4: (64, 36),
    TensorType.Q1_0: (128, 18),
    TensorType.Q2_0: (64, 18),
}


def tensor_nbytes(kind: TensorType, shape: Sequence[int]) -> int:
    """Bytes of a tensor of ``shape`` (numpy order, the row last); the row must fill whole blocks."""
    block, size = BLOCK[kind]
    return math.prod(shape) // block * size


@dataclass(frozen=True, slots=True)
class KV:
    """One metadata key: ``item`` is the element type when ``type`` is ARRAY.

    Array values are sequences: str or bytes for STRING items, numbers (numpy arrays allowed) otherwise.
    """

    name: str
    type: ValueType
    value: Any
    item: ValueType | None = None


def array_length(value: Any) -> int:
    """Items of an array's value; 0 for a key that is absent or, in a damaged file, no array."""
    return len(value) if isinstance(value, Sequence) and not isinstance(value, str) else 0


def u32(name: str, value: int) -> KV:
    return KV(name, ValueType.UINT32, int(value))


def u64(name: str, value: int) -> KV:
    return KV(name, ValueType.UINT64, int(value))


def f32(name: str, value: float) -> KV:
    return KV(name, ValueType.FLOAT32, float(value))


def boolean(name: str, value: bool) -> KV:
    return KV(name, ValueType.BOOL, bool(value))


def string(name: str, value: str) -> KV:
    return KV(name, ValueType.STRING, str(value))


def array(name: str, item: ValueType, value: Any) -> KV:
    return KV(name, ValueType.ARRAY, value, item)
