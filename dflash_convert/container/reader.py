"""A strict GGUF v3 reader.

Every count and length is bounded by the bytes that remain before anything is allocated, every rule of the
format is checked, and each violation raises :class:`ContainerError` that names the file, the place and the
defect.  Arrays are decoded when they are first used; tensor data stays in the file (a read-only mapping).
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

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
)
from dflash_convert.errors import ContainerError
from dflash_convert.system import kind_of_place, tip_for

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_KEY = 65535  # bytes, by the format's own rule
MIN_KV_BYTES = 8 + 1 + 4 + 1
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
MAX_ALIGNMENT = 1 << 20
BOOL_CHUNK = 1 << 20
HEADER_BYTES = 4 + 4 + 8 + 8
INCOMPLETE = "the file is incomplete: download or convert it again"
DAMAGED = "the file is truncated or damaged: download or convert it again"
TARGET_TIP = (
    "get the target's GGUF from the Hub, or make it of the directory with llama.cpp's convert_hf_to_gguf.py "
    "(docs/convert.md#the-targets-gguf)"
)

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALAR = {kind: struct.Struct("<" + code) for kind, code in STRUCT_CODE.items() if code != "?"}
_SCALAR[ValueType.BOOL] = struct.Struct("<B")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place: ``shape`` in numpy order (the row last), ``offset`` from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])


class Strings(Sequence[str]):
    """A string array that decodes when it is used; invalid UTF-8 becomes lone surrogates, as in ``os.fsdecode``.

    ``raw`` is the items as they stand in the file.
    """

    kind = ValueType.STRING

    def __init__(self, data: memoryview, count: int) -> None:
        self.raw, self._count = data, count

    @cached_property
    def _ends(self) -> list[int]:
        """Where each item ends in ``raw``."""
        at, ends, unpack = 0, [], _U64.unpack_from
        for _ in range(self._count):
            at += 8 + unpack(self.raw, at)[0]
            ends.append(at)
        return ends

    @cached_property
    def _items(self) -> list[str]:
        data, start, items = bytes(self.raw), 8, []
        for end in self._ends:
            items.append(data[start:end])
            start = end + 8
        try:
            return [*map(bytes.decode, items)]
        except UnicodeDecodeError:
            return [item.decode("utf-8", "surrogateescape") for item in items]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice) or "_items" in self.__dict__:
            return self._items[index]
        number = range(self._count)[index]
        start = self._ends[number - 1] if number else 0
        return str(self.raw[start + 8 : self._ends[number]], "utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Strings, list, tuple)):
            return self._items == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Numbers(Sequence[Any]):
    """A numeric array that decodes to plain Python numbers when it is used; ``numpy()`` views the bytes ``raw``."""

    def __init__(self, data: memoryview, kind: ValueType, count: int) -> None:
        self.raw, self.kind, self._count = data, kind, count

    @cached_property
    def _items(self) -> list[Any]:
        code = STRUCT_CODE[self.kind]
        return list(struct.unpack(f"<{self._count}{code}", self.raw))

    def numpy(self) -> npt.NDArray[Any]:
        import numpy as np

        code = {"?": "?", "b": "i1", "B": "u1", "h": "<i2", "H": "<u2", "i": "<i4", "I": "<u4"}
        code |= {"q": "<i8", "Q": "<u8", "f": "<f4", "d": "<f8"}
        return np.frombuffer(self.raw, dtype=code[STRUCT_CODE[self.kind]])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Numbers, list, tuple)):
            return self._items == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Beyond(Exception):  # noqa: N818
    """The header goes on behind the bytes at hand, at least to byte ``end`` of the file."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


class Gguf:
    """An open GGUF file: ``keys`` and ``tensors`` in file order.

    ``view`` holds its bytes, or only the first of ``size`` (:class:`Beyond` when the header is longer).
    """

    def __init__(self, path: Path, view: memoryview, size: int) -> None:
        self.path = path
        self._view = view
        self.size = size
        parser = _Parser(path, view, size)
        self.keys: dict[str, KV] = parser.keys
        self.tensors: dict[str, TensorInfo] = parser.tensors
        self.alignment = parser.alignment
        self.data_offset = parser.data_offset
        self._header_end = parser.header_end

    def get(self, name: str, default: Any = None) -> Any:
        """The value of key ``name`` (arrays as sequences), or ``default``."""
        kv = self.keys.get(name)
        return default if kv is None else kv.value

    @property
    def architecture(self) -> str:
        value = self.get("general.architecture", "")
        return value if isinstance(value, str) else ""

    @property
    def whole(self) -> bool:
        """Whether the tensors' data are at hand too."""
        return len(self._view) == self.size

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as uint8 [rows, bytes per row], a read-only view of the file."""
        import numpy as np

        if not self.whole:
            raise ContainerError(f"{self.path}: only its header is at hand, not the data of {name!r}")
        info = self.tensors[name]
        flat = np.frombuffer(self._view, dtype=np.uint8, count=info.nbytes, offset=info.offset)
        return flat.reshape(info.rows, -1)

    def fill(self) -> Iterator[tuple[int, bytes]]:
        """Where bytes lie that belong to no key and no tensor, and those bytes: before the data, behind each tensor."""
        tensors = self.tensors.values()
        ends = (self._header_end, *(info.offset + info.nbytes for info in tensors))
        for start, stop in zip(ends, (*(info.offset for info in tensors), self.size), strict=True):
            if start < stop:
                yield start, bytes(self._view[start:stop])


def require_file(*paths: Path) -> None:
    """ContainerError for the first that does not exist: told before anything large is imported."""
    for path in paths:
        if not path.exists():
            raise _missing(path)
        if path.is_dir():
            raise _directory(path)


def require_target(path: Path) -> None:
    """As :func:`require_file`, where a target's GGUF belongs."""
    if not path.exists():
        raise _missing(path)
    if path.is_dir():
        raise ContainerError(f"{path}: a directory, not a GGUF", tip=_inside(path) or TARGET_TIP)


def _missing(path: Path) -> ContainerError:
    return ContainerError(f"{path}: no such file")


def _directory(path: Path) -> ContainerError:
    """A checkpoint where a GGUF belongs, or the folder of the GGUF."""
    tip = _inside(path)
    if (path / "config.json").is_file():
        convert = f"dflash-convert {path} --target-model-dir TARGET -t TYPE"
        tip = f"of a target, name its GGUF; a drafter's checkpoint is converted with: {convert}"
    return ContainerError(f"{path}: a directory, not a GGUF", tip=tip)


def _inside(path: Path) -> str | None:
    """Names the GGUFs of a directory; None where there is none."""
    inside = sorted(entry.name for entry in path.glob("*.gguf"))
    return f"it holds {', '.join(inside[:3])}: name the file" if inside else None


def open_gguf(path: str | Path) -> Gguf:
    """Map and check the GGUF at ``path``; ContainerError names the first defect found."""
    path = Path(path)
    try:
        # not blocking: opening a pipe would wait for its other end
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise _directory(path)
            if not stat.S_ISREG(status.st_mode):
                kind = kind_of_place(path)
                raise ContainerError(f"{path}: {kind}, not a GGUF", tip=tip_for(kind))
            size = status.st_size
            if size < HEADER_BYTES:
                raise ContainerError(f"{path}: {size} bytes are too few for a GGUF header", tip=INCOMPLETE)
            mapping = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise _missing(path) from None
    except (OSError, ValueError) as error:
        raise ContainerError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return Gguf(path, memoryview(mapping), size)


class _Parser:
    """One pass over header, keys and tensor infos."""

    def __init__(self, path: Path, view: memoryview, size: int) -> None:
        self.path, self.view, self.size, self.at = path, view, size, 0
        n_tensors, n_keys = self._header()
        self.keys: dict[str, KV] = {}
        for index in range(n_keys):
            self._key(index)
        self.alignment = self._alignment()
        raw = [self._tensor(index) for index in range(n_tensors)]
        self.header_end = self.at
        self.data_offset = self.at + -self.at % self.alignment
        self.tensors: dict[str, TensorInfo] = {}
        self._place(raw)

    def fail(self, text: str, tip: str | None = None) -> ContainerError:
        return ContainerError(f"{self.path}: {text}", tip=tip)

    def need(self, count: int, what: str) -> None:
        if count > len(self.view) - self.at and count <= self.size - self.at:
            raise Beyond(self.at + count)
        if count > self.size - self.at:
            raise self.fail(
                f"{what} needs {count} bytes at offset {self.at}, {self.size - self.at} remain",
                DAMAGED,
            )

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.view, self.at)
        self.at += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.view, self.at)
        self.at += 8
        return int(value)

    def text(self, what: str, limit: int, errors: str = "strict") -> str:
        length = self.u64(f"length of {what}")
        if length > limit:
            raise self.fail(f"{what} is {length} bytes long, the format allows {limit}")
        self.need(length, what)
        try:
            value = str(self.view[self.at : self.at + length], "utf-8", errors)
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8") from None
        self.at += length
        return value

    def _header(self) -> tuple[int, int]:
        magic = bytes(self.view[:4])
        if magic != MAGIC:
            hint = "a safetensors file? give its directory" if bytes(self.view[8:10]) == b'{"' else None
            if bytes(self.view[:19]) == b"version https://git":
                hint = "a Git LFS pointer, not the file itself: run git lfs pull"
            raise self.fail(f"not a GGUF file: it begins with {magic!r}", hint)
        self.at = 4
        version = self.u32("version")
        if version != VERSION:
            if version == VERSION << 24:
                raise self.fail("big-endian GGUF is not supported", "convert it on a little-endian machine")
            raise self.fail(f"GGUF version {version} is not supported, only {VERSION}")
        n_tensors = self.u64("tensor count")
        n_keys = self.u64("key count")
        left = self.size - self.at
        for count, least, what in ((n_keys, MIN_KV_BYTES, "keys"), (n_tensors, MIN_TENSOR_BYTES, "tensors")):
            if count * least > left:
                raise self.fail(f"{count} {what} cannot fit in the {left} bytes that follow")
        return n_tensors, n_keys

    def _key(self, index: int) -> None:
        name = self.text(f"name of key {index}", MAX_KEY)
        if not name:
            raise self.fail(f"key {index} has an empty name")
        if name in self.keys:
            raise self.fail(f"key {name!r} occurs twice")
        kind = self._kind(self.u32(f"type of key {name!r}"), f"key {name!r}")
        if kind is ValueType.ARRAY:
            self.keys[name] = self._array(name)
        else:
            self.keys[name] = KV(name, kind, self._scalar(kind, f"value of {name!r}"))

    def _kind(self, code: int, what: str) -> ValueType:
        try:
            return ValueType(code)
        except ValueError:
            raise self.fail(f"{what} has unknown value type {code}") from None

    def _scalar(self, kind: ValueType, what: str) -> Any:
        if kind is ValueType.STRING:
            return self.text(what, self.size, "surrogateescape")
        packed = _SCALAR[kind]
        self.need(packed.size, what)
        (value,) = packed.unpack_from(self.view, self.at)
        self.at += packed.size
        if kind is ValueType.BOOL:
            if value > 1:
                raise self.fail(f"{what} is a bool with byte {value}")
            return bool(value)
        return value

    def _array(self, name: str) -> KV:
        item = self._kind(self.u32(f"item type of {name!r}"), f"array {name!r}")
        if item is ValueType.ARRAY:
            raise self.fail(f"key {name!r} is an array of arrays, which llama.cpp does not read")
        count = self.u64(f"length of array {name!r}")
        if item is ValueType.STRING:
            self.need(8 * count, f"array {name!r} of {count} strings")
            start = self.at
            self._skip_strings(name, count)
            return KV(name, ValueType.ARRAY, Strings(self.view[start : self.at], count), item)
        total = count * _SCALAR[item].size
        self.need(total, f"array {name!r} of {count} items")
        data = self.view[self.at : self.at + total]
        self.at += total
        if item is ValueType.BOOL:
            for start in range(0, count, BOOL_CHUNK):
                if odd := bytes(data[start : start + BOOL_CHUNK]).translate(None, b"\0\1"):
                    raise self.fail(f"array {name!r} holds a bool with byte {odd[0]}")
        return KV(name, ValueType.ARRAY, Numbers(data, item, count), item)

    def _skip_strings(self, name: str, count: int) -> None:
        # the hot loop of opening a file: a vocabulary has hundreds of thousands of strings
        at, last, view, unpack = self.at, len(self.view) - 8, self.view, _U64.unpack_from
        for index in range(count):
            if at > last:
                if at > self.size:
                    raise self.fail(f"string {index} of array {name!r} begins past the end of the file", DAMAGED)
                self.at = at
                self.need(8, f"string {index} of array {name!r}")
            at += 8 + unpack(view, at)[0]
        if at > self.size:
            raise self.fail(f"a string of array {name!r} reaches past the end of the file")
        if at > len(view):
            raise Beyond(at)
        self.at = at

    def _alignment(self) -> int:
        kv = self.keys.get("general.alignment")
        if kv is None:
            return ALIGNMENT
        value = kv.value
        if kv.type is not ValueType.UINT32:
            raise self.fail(f"general.alignment has type {kv.type.name}, not UINT32")
        if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self.fail(f"general.alignment is {value}, not a power of two from 8 to {MAX_ALIGNMENT}")
        return int(value)

    def _tensor(self, index: int) -> tuple[str, tuple[int, ...], TensorType, int]:
        name = self.text(f"name of tensor {index}", MAX_NAME)
        if not name:
            raise self.fail(f"tensor {index} has an empty name")
        n_dims = self.u32(f"dimension count of {name!r}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.fail(f"tensor {name!r} has {n_dims} dimensions, 1 to {MAX_DIMS} are allowed")
        dims = tuple(self.u64(f"dimension {d} of {name!r}") for d in range(n_dims))
        if 0 in dims:
            raise self.fail(f"tensor {name!r} has a dimension of zero: {list(dims)}")
        code = self.u32(f"type of {name!r}")
        try:
            kind = TensorType(code)
        except ValueError:
            raise self.fail(
                f"tensor {name!r} has unknown or retired type {code}",
                "it was written for another runtime; convert the checkpoint again",
            ) from None
        return name, dims[::-1], kind, self.u64(f"offset of {name!r}")

    def _place(self, raw: list[tuple[str, tuple[int, ...], TensorType, int]]) -> None:
        """Check each offset against the running padded sum, so that nothing overlaps or leaves a hole."""
        position = 0
        for name, shape, kind, offset in raw:
            if name in self.tensors:
                raise self.fail(f"tensor {name!r} occurs twice")
            nbytes = self._nbytes(name, shape, kind)
            if offset != position:
                defect = "overlaps the one before" if offset < position else "leaves a hole"
                raise self.fail(f"tensor {name!r} lies at data offset {offset}, expected {position}: it {defect}")
            start = self.data_offset + offset
            if start + nbytes > self.size:
                raise self.fail(
                    f"tensor {name!r} ends at byte {start + nbytes}, the file has {self.size}",
                    "the file is truncated: download or convert it again",
                )
            self.tensors[name] = TensorInfo(name, shape, kind, start, nbytes)
            position += nbytes + -nbytes % self.alignment
        end = self.data_offset + position if raw else self.at
        if self.size > end + self.alignment:
            raise self.fail(f"{self.size - end} bytes follow the last tensor")

    def _nbytes(self, name: str, shape: tuple[int, ...], kind: TensorType) -> int:
        block, size = BLOCK[kind]
        if shape[-1] % block:
            raise self.fail(
                f"rows of tensor {name!r} have {shape[-1]} elements, {kind.name} needs a multiple of {block}"
            )
        count = math.prod(shape)
        if count >= 1 << 63:
            raise self.fail(f"tensor {name!r} has {' x '.join(map(str, shape))} elements: the product overflows")
        return count // block * size
