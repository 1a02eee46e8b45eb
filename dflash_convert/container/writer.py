"""A streaming GGUF v3 writer.

The header follows from the keys and the tensor list alone, so it is written first and every tensor has a
known place: bytes may arrive in any order and from several processes (`fileno`, `offset`).  `commit` syncs the
file, reads it back with the strict reader and moves it into place (:mod:`dflash_convert.output`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dflash_convert.container.reader import MAX_ALIGNMENT, MAX_KEY, Numbers, Strings, open_gguf
from dflash_convert.container.types import (
    ALIGNMENT,
    BLOCK,
    KV,
    MAGIC,
    MAX_DIMS,
    MAX_NAME,
    STRUCT_CODE,
    VERSION,
    TensorType,
    ValueType,
    tensor_nbytes,
)
from dflash_convert.errors import ContainerError, OutputError
from dflash_convert.output import OutputFile


class Entry(NamedTuple):
    """A tensor to write: ``shape`` in numpy order, the row last."""

    name: str
    shape: tuple[int, ...]
    type: TensorType


class Layout(NamedTuple):
    """The finished header, each tensor's offset from the start of the file, and the file's exact size."""

    header: bytes
    offsets: dict[str, int]
    size: int


def layout(keys: Sequence[KV], tensors: Sequence[Entry]) -> Layout:
    """Header bytes and tensor places; ContainerError for names, shapes or values the format forbids."""
    out = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(keys)))
    alignment = _alignment(keys)
    seen: set[str] = set()
    for kv in keys:
        if not kv.name or kv.name in seen:
            raise ContainerError(f"key {kv.name!r} is empty or occurs twice")
        seen.add(kv.name)
        _put_value(out, kv)
    relative: dict[str, int] = {}
    position = 0
    for entry in tensors:
        _check_entry(entry, relative)
        relative[entry.name] = position
        _put_string(out, entry.name, "tensor name")
        dims = entry.shape[::-1]
        out += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, entry.type, position)
        nbytes = tensor_nbytes(entry.type, entry.shape)
        position += nbytes + -nbytes % alignment
    out += bytes(-len(out) % alignment)
    return Layout(bytes(out), {name: len(out) + at for name, at in relative.items()}, len(out) + position)


def _alignment(keys: Sequence[KV]) -> int:
    """The file's own alignment, which a GGUF made from another one keeps."""
    for kv in keys:
        if kv.name == "general.alignment":
            value = kv.value
            if kv.type is not ValueType.UINT32 or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
                raise ContainerError(f"general.alignment {value!r} is not a UINT32 power of two up to {MAX_ALIGNMENT}")
            return int(value)
    return ALIGNMENT


def _check_entry(entry: Entry, seen: dict[str, int]) -> None:
    name, shape, kind = entry
    if not 0 < len(name.encode(errors="surrogatepass")) <= MAX_NAME:
        raise ContainerError(f"tensor name {name!r} is not 1 to {MAX_NAME} bytes long, which llama.cpp requires")
    if name in seen:
        raise ContainerError(f"tensor {name!r} occurs twice")
    if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1:
        raise ContainerError(
            f"tensor {name!r} has shape {list(shape)}: 1 to {MAX_DIMS} dimensions of 1 or more are allowed"
        )
    if shape[-1] % BLOCK[kind][0]:
        raise ContainerError(f"rows of tensor {name!r} have {shape[-1]} elements, which {kind.name} cannot hold")


def _put_string(out: bytearray, text: str | bytes, what: str) -> None:
    try:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise ContainerError(f"{what} contains an unpaired surrogate ({error.object[error.start]!a})") from None
    out += struct.pack("<Q", len(data))
    out += data


def _put_value(out: bytearray, kv: KV) -> None:
    if len(kv.name.encode(errors="surrogatepass")) > MAX_KEY:
        raise ContainerError(f"key {kv.name[:40]!r}... is longer than {MAX_KEY} bytes")
    _put_string(out, kv.name, "key name")
    out += struct.pack("<I", kv.type)
    if kv.type is ValueType.STRING:
        _put_string(out, kv.value, kv.name)
    elif kv.type is ValueType.ARRAY:
        if kv.item is None:
            raise ContainerError(f"array key {kv.name!r} has no item type")
        _put_array(out, kv.name, kv.item, kv.value)
    else:
        try:
            out += struct.pack("<" + STRUCT_CODE[kv.type], kv.value)
        except (struct.error, OverflowError):
            raise ContainerError(f"{kv.name} = {kv.value!r} does not fit its type {kv.type.name}") from None


def _put_array(out: bytearray, name: str, item: ValueType, values: Sequence[Any]) -> None:
    if item is ValueType.ARRAY:
        raise ContainerError(f"key {name!r} is an array of arrays, which llama.cpp does not read")
    out += struct.pack("<IQ", item, len(values))
    out += packed(name, item, values)


def packed(name: str, item: ValueType, values: Sequence[Any]) -> bytes | bytearray | memoryview:
    """The items of array ``name`` as they stand in a file; ContainerError for one that its type cannot hold."""
    if isinstance(values, Strings if item is ValueType.STRING else Numbers) and values.kind is item:
        return values.raw  # as another file has it
    try:
        if item is not ValueType.STRING:
            return struct.pack(f"<{len(values)}{STRUCT_CODE[item]}", *values)
        out, pack = bytearray(), struct.Struct("<Q").pack
        for text in values:
            data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
            out += pack(len(data))
            out += data
        return out
    except (struct.error, OverflowError):
        raise ContainerError(f"an item of {name} does not fit its type {item.name}") from None
    except UnicodeEncodeError as error:
        raise ContainerError(
            f"an item of {name} contains an unpaired surrogate ({error.object[error.start]!a})"
        ) from None


class GgufOutput(OutputFile):
    """A GGUF file under construction: the header stands, tensors may arrive in any order (:meth:`offset`)."""

    def __init__(self, path: Path, tensors: Sequence[Entry], plan: Layout, *, force: bool = False) -> None:
        super().__init__(path, plan.size, force=force)
        self._entries = list(tensors)
        self._offsets = plan.offsets
        try:
            self.write_at(0, plan.header)
        except BaseException:
            self.close()
            raise

    def offset(self, name: str) -> int:
        """Where tensor ``name`` begins, in bytes from the start of the file."""
        return self._offsets[name]

    def read_back(self, source: Path) -> None:
        """The strict reader finds every tensor where it was planned."""
        found = open_gguf(source)
        expected = [(e.name, e.shape, e.type, self._offsets[e.name]) for e in self._entries]
        if [(t.name, t.shape, t.type, t.offset) for t in found.tensors.values()] != expected:
            raise OutputError(f"{self.path}: what was written does not read back as planned")
