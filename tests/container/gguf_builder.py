"""Builds GGUF files byte by byte, so that a test can break exactly one rule."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
SCALAR = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def scalar(name: str, kind: int, value: float) -> bytes:
    return key(name, kind, struct.pack("<" + SCALAR[kind], value))


def string(name: str, value: str | bytes) -> bytes:
    return key(name, STRING, text(value))


def array(name: str, item: int, count: int, data: bytes) -> bytes:
    return key(name, ARRAY, struct.pack("<IQ", item, count) + data)


def tensor(name: str | bytes, dims: Sequence[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    head = text(name) + struct.pack("<I", len(dims) if n_dims is None else n_dims)
    return head + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    out = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return out + bytes(-len(out) % alignment) + data


ARCH = string("general.architecture", "dflash")
ONE = tensor("a", [8])  # 32 bytes of F32
