"""A drafter checkpoint on disk: config.json, the safetensors files and their tensors.

safetensors is read here rather than through its library because rows must stream into reused buffers (a
mapping counts as resident memory) and because every length in a header is checked before it is believed.
Layout: https://huggingface.co/docs/safetensors (8 bytes header length, JSON header, data).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_convert.errors import CheckpointError, ConfigError

INDEX = "model.safetensors.index.json"
MAX_HEADER = 32_000_000  # bytes; the format allows 100 MB, a file of 92,000 tensors would need 12 MB
MAX_JSON = 64_000_000  # bytes; gpt-oss' tokenizer.json has 28 MB
# lists, objects and commas, which bound what parsing allocates; Gemma 4's tokenizer.json has 1.8 million
MAX_ITEMS = 4_000_000
MAX_DIMS = 8
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
MAX_FILE_NAME = 255  # bytes

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor in a safetensors file: ``offset`` from the start of the file, ``shape`` outermost first."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Checkpoint:
    """``config`` is config.json as it stands; ``tensors`` lists files by name, tensors by name within each."""

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, SourceTensor] = field(repr=False)

    @property
    def files(self) -> list[Path]:
        return list(dict.fromkeys(tensor.file for tensor in self.tensors.values()))


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read config and headers; ConfigError or CheckpointError names the file and the defect."""
    config = read_config(directory)
    return Checkpoint(directory, config, _tensors(directory))


def read_config(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory")
    path = directory / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{directory}: no config.json", tip="give the directory of a Hugging Face checkpoint, or owner/name of one"
        )
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ConfigError for anything else, for NaN constants, repeated keys and deep nesting."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise ConfigError(f"{path.name}: larger than {MAX_JSON // 1_000_000} MB")
        value = parse_json(path.read_bytes(), path.name)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    return value


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """Strict JSON: ConfigError names ``name`` and the defect."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in items:
            if key in result:
                raise ConfigError(f"{name}: key {key!r} occurs twice")
            result[key] = value
        return result

    def constant(text: str) -> Any:
        raise ConfigError(f"{name}: {text} is not a number that JSON allows")

    if sum(map(data.count, (b"{", b"[", b","))) > MAX_ITEMS:
        raise ConfigError(f"{name}: more than {MAX_ITEMS:,} items")
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: not UTF-8 text") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply") from None
    except ValueError as error:
        tip = "a Git LFS pointer, not the file: run git lfs pull" if data.startswith(b"version https://git") else None
        raise ConfigError(f"{name}: not valid JSON ({error})", tip=tip) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: holds a {type(value).__name__}, not an object")
    if has_half_character(data, value):
        raise ConfigError(f"{name}: holds half of a surrogate pair, which is no character")
    return value


def has_half_character(data: bytes, value: Any) -> bool:
    """Whether the JSON ``data``, parsed to ``value``, escapes a lone surrogate, which no file can hold as UTF-8."""
    if SURROGATE.search(data) is None:
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return True
    return False


def _tensors(directory: Path) -> dict[str, SourceTensor]:
    index = _find_index(directory)
    if index is not None:
        return _from_index(directory, index)
    return _merge(read_safetensors(path) for path in _without_index(directory))


def _find_index(directory: Path) -> Path | None:
    if (directory / INDEX).is_file():
        return directory / INDEX
    others = sorted(directory.glob("*.safetensors.index.json"))
    if len(others) > 1:
        names = ", ".join(p.name for p in others)
        raise CheckpointError(f"{directory}: several index files ({names})", tip=f"keep one, or name it {INDEX}")
    return others[0] if others else None


def _from_index(directory: Path, index: Path) -> dict[str, SourceTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{index.name}: weight_map is missing or does not map names to files")
    files = sorted(set(weight_map.values()))
    for name in files:
        if not _is_plain_name(name):
            raise CheckpointError(f"{index.name}: {name!r} is not a file name inside the checkpoint's directory")
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index.name} lists files that are missing: {', '.join(missing)}", tip="finish the download"
        )
    tensors = _merge(read_safetensors(directory / name) for name in files)
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].file.name != file:
            raise CheckpointError(f"{index.name} places tensor {name!r} in {file}, which does not hold it")
    extra = [name for name in tensors if name not in weight_map]
    if extra:
        raise CheckpointError(f"{index.name} does not list tensor {extra[0]!r} of {tensors[extra[0]].file.name}")
    return tensors


def _is_plain_name(name: str) -> bool:
    """A file of this directory: an index must not reach outside of it, on any system."""
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        return False
    return 0 < length <= MAX_FILE_NAME and name not in (".", "..") and not set(name) & set("/\\:\0")


def _without_index(directory: Path) -> list[Path]:
    """model*.safetensors, else the only *.safetensors there is."""
    everything = sorted(p for p in directory.glob("*.safetensors") if p.is_file())
    named = [p for p in everything if p.name.startswith("model")]
    chosen = named or everything
    if not chosen:
        raise _no_weights(directory)
    if not named and len(chosen) > 1:
        raise CheckpointError(
            f"{directory}: several weight files and no index: {', '.join(p.name for p in chosen)}",
            tip=f"add {INDEX} or keep the drafter's file only",
        )
    return chosen


def _no_weights(directory: Path) -> CheckpointError:
    pickles = sorted(p.name for p in directory.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if pickles:
        return CheckpointError(
            f"{directory} has no .safetensors file, only {', '.join(pickles)}, which can run code when it is loaded",
            tip="take the safetensors revision of the checkpoint, or save it as safetensors on a trusted machine",
        )
    return CheckpointError(
        f"{directory} has no weights: no {INDEX}, no model*.safetensors, no other *.safetensors",
        tip="finish the download of the drafter",
    )


def _merge(parts: Iterable[dict[str, SourceTensor]]) -> dict[str, SourceTensor]:
    merged: dict[str, SourceTensor] = {}
    for part in parts:
        for name, tensor in part.items():
            if name in merged:
                raise CheckpointError(f"tensor {name!r} is in {merged[name].file.name} and in {tensor.file.name}")
            merged[name] = tensor
    return merged


def read_safetensors(path: Path) -> dict[str, SourceTensor]:
    """The tensors of one file, sorted by name; CheckpointError for every rule of the format it breaks."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8 or prefix.startswith(b"version "):
                tip = "a Git LFS pointer: run git lfs pull" if prefix.startswith(b"version ") else "finish the download"
                raise CheckpointError(f"{path.name}: not a safetensors file ({size} bytes)", tip=tip)
            length = int.from_bytes(prefix, "little")
            if length > size - 8:
                raise CheckpointError(f"{path.name}: header length {length} in a file of {size} bytes")
            if length > MAX_HEADER:
                raise CheckpointError(f"{path.name}: a header of {length} bytes, more than {MAX_HEADER // 10**6} MB")
            try:
                header = parse_json(file.read(length), f"{path.name} (header)")
            except ConfigError as error:
                raise CheckpointError(str(error), tip=error.tip) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path.name}: __metadata__ does not map names to texts")
    start = 8 + length
    tensors = [_entry(path, name, entry, start, size) for name, entry in header.items()]
    _check_cover(path, tensors, start, size)
    return {tensor.name: tensor for tensor in sorted(tensors, key=lambda t: t.name)}


def _entry(path: Path, name: str, entry: Any, start: int, size: int) -> SourceTensor:
    def fail(text: str) -> CheckpointError:
        return CheckpointError(f"{path.name}: tensor {name!r} {text}")

    if not isinstance(entry, dict):
        raise fail("has no description")
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise fail(f"has unknown dtype {dtype!r}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(_is_count(n) for n in shape):
        raise fail(f"has shape {shape!r}")
    if not isinstance(span, list) or len(span) != 2 or not all(_is_count(n) for n in span):
        raise fail(f"has data_offsets {span!r}")
    begin, end = span
    if end < begin or start + end > size:
        raise CheckpointError(
            f"{path.name}: tensor {name!r} lies at bytes {begin} to {end} of {size - start}",
            tip="the file is incomplete: finish the download",
        )
    count = 1
    for n in shape:
        count *= n
    if count * DTYPE_BYTES[dtype] != end - begin:
        raise fail(f"has shape {shape} of {dtype} but {end - begin} bytes")
    return SourceTensor(name, path, dtype, tuple(shape), start + begin, end - begin)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _check_cover(path: Path, tensors: list[SourceTensor], start: int, size: int) -> None:
    """The data must be covered without holes and overlaps, as the format demands."""
    at = start
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != at:
            defect = "overlaps another" if tensor.offset < at else "leaves a hole before it"
            raise CheckpointError(f"{path.name}: tensor {tensor.name!r} {defect}")
        at += tensor.nbytes
    if at != size:
        raise CheckpointError(f"{path.name}: {size - at} bytes belong to no tensor")


class Reader:
    """Reads byte ranges of checkpoint files into caller-owned buffers; keeps the files open."""

    def __init__(self) -> None:
        self._fds: dict[Path, int] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def into(self, tensor: SourceTensor, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the tensor's bytes from byte ``start`` on."""
        fd = self._fds.get(tensor.file)
        try:
            if fd is None:
                fd = self._fds[tensor.file] = os.open(tensor.file, os.O_RDONLY)
            offset = tensor.offset + start
            while buffer:
                done = os.preadv(fd, [buffer], offset)
                if done == 0:
                    raise CheckpointError(f"{tensor.file.name}: tensor {tensor.name!r} ends early")
                buffer = buffer[done:]
                offset += done
        except OSError as error:
            raise CheckpointError(f"{tensor.file}: cannot be read ({error.strerror})") from None
