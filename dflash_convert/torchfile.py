"""A dict of one number and one tensor from a torch.save file, without unpickling.

A pickle is a program; this reads the few instructions such a file needs and refuses every other one.  The
layout is torch's zip archive: ``<name>/data.pkl`` and one raw storage ``<name>/data/<key>``
(https://pytorch.org/docs/stable/notes/serialization.html).
"""

from __future__ import annotations

import io
import pickletools
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dflash_convert.errors import CheckpointError
from quant import from_bf16

MAX_PICKLE = 64 << 10  # bytes: such a dict takes about 300
MAX_VALUES = 1 << 20
DTYPES = {
    "FloatStorage": ("<f4", 4),
    "DoubleStorage": ("<f8", 8),
    "HalfStorage": ("<f2", 2),
    "BFloat16Storage": ("<u2", 2),
}
NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
NUMBERS = frozenset(("BININT", "BININT1", "BININT2"))
TEXTS = frozenset(("BINUNICODE", "SHORT_BINUNICODE"))
PUTS = frozenset(("BINPUT", "LONG_BINPUT", "MEMOIZE"))
GETS = frozenset(("BINGET", "LONG_BINGET"))
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
FRAMING = frozenset(("PROTO", "FRAME", "STOP"))
BUILDING = frozenset(("EMPTY_DICT", "SETITEMS", "SETITEM", "MARK", "TUPLE", "GLOBAL", "BINPERSID", "REDUCE"))
ALLOWED = FRAMING.union(BUILDING, NUMBERS, TEXTS, PUTS, GETS, TUPLES, CONSTANTS)
REBUILD = ("torch._utils", "_rebuild_tensor_v2")
ORDERED = ("collections", "OrderedDict")
TIP = "it must be torch.save of {'mask_token_id': int, 'embedding': tensor} and nothing else"


class Global(NamedTuple):
    module: str
    name: str


class Storage(NamedTuple):
    dtype: str
    key: str
    values: int


class Tensor(NamedTuple):
    storage: Storage
    offset: int
    shape: tuple[int, ...]


class _RefusedError(Exception):
    pass


def read_mask_embedding(path: Path) -> tuple[int, npt.NDArray[np.float32]]:
    """(token id, float32 [hidden]); CheckpointError for anything but exactly that dict."""
    try:
        with zipfile.ZipFile(path) as archive:
            stem, program = _program(archive)
            value = _interpret(program)
            token, tensor = _dict(value)
            return token, _values(archive, stem, tensor)
    except _RefusedError as reason:
        raise CheckpointError(f"{path}: {reason}", tip=TIP) from None
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError):
        raise CheckpointError(f"{path}: not a torch.save archive", tip=TIP) from None


def _program(archive: zipfile.ZipFile) -> tuple[str, bytes]:
    names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(names) != 1:
        raise _RefusedError(f"has {len(names)} data.pkl entries, not one")
    return names[0].removesuffix("data.pkl"), _entry(archive, names[0], MAX_PICKLE)


def _entry(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise _RefusedError(f"has no entry {name}") from None
    if info.file_size > limit or info.compress_type != zipfile.ZIP_STORED:
        raise _RefusedError(f"entry {name} is compressed or larger than {limit} bytes")
    return archive.read(name)


def _interpret(program: bytes) -> Any:
    """Run the allow-listed instructions; the stack holds plain values, marks and the records above."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    mark = object()
    try:
        for name, argument in _instructions(program):
            _step(name, argument, stack, memo, mark)
    except (ValueError, IndexError, TypeError, KeyError, AttributeError):
        raise _RefusedError("is a damaged pickle") from None
    if len(stack) != 1:
        raise _RefusedError("does not end in one value")
    return stack[0]


def _instructions(program: bytes) -> Iterator[tuple[str, Any]]:
    """(name, argument) up to STOP; an instruction that is not allowed is not even decoded."""
    stream = io.BytesIO(program)
    decoded = pickletools.genops(stream)
    while (at := stream.tell()) < len(program):
        name = NAMES.get(program[at], repr(program[at : at + 1]))
        if name not in ALLOWED:
            raise _RefusedError(f"contains the pickle instruction {name}, which is not allowed")
        with warnings.catch_warnings():  # a damaged text may hold an escape that Python warns of
            warnings.simplefilter("ignore")
            _, argument, _ = next(decoded)
        if name == "STOP":
            return
        yield name, argument
    raise ValueError("ends without STOP")


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any], mark: object) -> None:
    if name in NUMBERS or name in TEXTS:
        stack.append(argument)
    elif name in CONSTANTS:
        stack.append(CONSTANTS[name])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "MARK":
        stack.append(mark)
    elif name in PUTS:
        memo[len(memo) if argument is None else argument] = stack[-1]
    elif name in GETS:
        stack.append(memo[argument])
    elif name in TUPLES:
        count = TUPLES[name]
        stack[-count:] = [tuple(stack[-count:])]
    elif name == "TUPLE":
        stack.append(tuple(_since(stack, mark)))
    elif name == "GLOBAL":  # decoded as "module name"
        stack.append(Global(*argument.split(" ", 1)))
    elif name == "SETITEMS":
        items = _since(stack, mark)
        stack[-1].update(dict(zip(items[::2], items[1::2], strict=True)))
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        stack[-1][key] = value
    elif name == "BINPERSID":
        stack.append(_storage(stack.pop()))
    elif name == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        stack.append(_call(function, arguments))


def _since(stack: list[Any], mark: object) -> list[Any]:
    at = max(i for i, value in enumerate(stack) if value is mark)
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _storage(value: Any) -> Storage:
    """('storage', torch.XStorage, key, device, element count)"""
    if not isinstance(value, tuple) or len(value) != 5 or value[0] != "storage":
        raise _RefusedError("refers to an object that is not a tensor's storage")
    kind, key, count = value[1], value[2], value[4]
    if not isinstance(kind, Global) or kind.module != "torch" or kind.name not in DTYPES:
        raise _RefusedError("holds a tensor of a type other than float32, float64, float16 or bfloat16")
    if not isinstance(key, str) or not key.isdigit() or not isinstance(count, int) or not 0 < count <= MAX_VALUES:
        raise _RefusedError("has a damaged tensor storage")
    return Storage(kind.name, key, count)


def _call(function: Any, arguments: Any) -> Any:
    """The two calls such a file makes; neither is carried out, both are understood."""
    if function == Global(*ORDERED) and arguments == ():
        return ()
    if function == Global(*REBUILD) and isinstance(arguments, tuple) and len(arguments) in (6, 7):
        storage, offset, shape, stride = arguments[:4]
        if not isinstance(storage, Storage) or not isinstance(offset, int) or isinstance(offset, bool):
            raise _RefusedError("has a damaged tensor")
        if not isinstance(shape, tuple) or not all(isinstance(n, int) and n > 0 for n in shape):
            raise _RefusedError("has a damaged tensor")
        if len(shape) != 1 or stride != (1,):
            raise _RefusedError(f"holds a tensor of shape {list(shape)}, not one contiguous vector")
        return Tensor(storage, offset, shape)
    raise _RefusedError(
        f"calls {'.'.join(function) if isinstance(function, Global) else 'an object'}, which is not allowed"
    )


def _dict(value: Any) -> tuple[int, Tensor]:
    if isinstance(value, Tensor):
        raise _RefusedError("holds a bare tensor without the token it is for")
    if not isinstance(value, dict) or set(value) != {"mask_token_id", "embedding"}:
        raise _RefusedError("is not a dict of mask_token_id and embedding")
    token, tensor = value["mask_token_id"], value["embedding"]
    if not isinstance(token, int) or isinstance(token, bool) or token < 0:
        raise _RefusedError("has a mask_token_id that is not a token id")
    if not isinstance(tensor, Tensor):
        raise _RefusedError("has an embedding that is not a tensor")
    return token, tensor


def _values(archive: zipfile.ZipFile, stem: str, tensor: Tensor) -> npt.NDArray[np.float32]:
    dtype, size = DTYPES[tensor.storage.dtype]
    raw = _entry(archive, f"{stem}data/{tensor.storage.key}", MAX_VALUES * 8)
    if f"{stem}byteorder" in archive.namelist() and archive.read(f"{stem}byteorder") != b"little":
        raise _RefusedError("is not little-endian")
    last = tensor.offset + tensor.shape[0]
    if tensor.offset < 0 or last > tensor.storage.values or last * size > len(raw):
        raise _RefusedError("has a tensor that reaches beyond its storage")
    values = np.frombuffer(raw, dtype=dtype)[tensor.offset : last]
    if tensor.storage.dtype == "BFloat16Storage":
        values = from_bf16(values)
    return np.ascontiguousarray(values, dtype=np.float32)
