"""A drafter checkpoint on disk: config.json, the safetensors files and their tensors.

The safetensors library checks a header strictly (https://huggingface.co/docs/safetensors); what it does not
look at is checked here first: limits, names that occur twice, a link out of the directory.  Data is read here,
because rows must stream into reused buffers (a mapping counts as resident memory).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from dflash_convert import arrivals, text
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.jsonfile import parse_json, read_json
from dflash_convert.system import open_read, read_all
from dflash_convert.text import one_line, shorten

INDEX = "model.safetensors.index.json"
MAX_HEADER = 16_000_000  # bytes; the format allows 100 MB, a file of 92,000 tensors needs 12 MB
MAX_DIMS = 8
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
    def config_file(self) -> str:
        """For messages."""
        return str(self.directory / "config.json")

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
        inside = sorted(each.name for each in directory.glob("*.gguf"))
        shown = f", only GGUFs ({', '.join(inside[:3])})" if inside else ""
        raise ConfigError(
            f"{directory}: no config.json{shown}",
            tip="give the directory of a Hugging Face checkpoint, or owner/name of one",
        )
    return read_json(path)


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
    weight_map = _weight_map(index)
    files = sorted(set(weight_map.values()))
    missing = [name for name in files if not arrivals.present(directory / name)]
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


def listed_files(directory: Path) -> list[str] | None:
    """The weight files that the index of ``directory`` lists, by name; None without an index."""
    index = _find_index(directory)
    return None if index is None else sorted(set(_weight_map(index).values()))


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor to file, each a plain name; CheckpointError for anything else."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{index.name}: weight_map is missing or does not map names to files")
    for name in sorted(set(weight_map.values())):
        if not _is_plain_name(name):
            raise CheckpointError(f"{index.name}: {name!r} is not a file name inside the checkpoint's directory")
    return weight_map


def _is_plain_name(name: str) -> bool:
    """A file of this directory: an index must not reach outside of it, on any system."""
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        return False
    return 0 < length <= MAX_FILE_NAME and name not in (".", "..") and not set(name) & set("/\\:\0")


def _without_index(directory: Path) -> list[Path]:
    """model*.safetensors, else the only *.safetensors there is."""
    everything = weight_files(directory)
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


def weight_files(directory: Path) -> list[Path]:
    """By name; those that are on their way among them."""
    here = {path for path in directory.glob("*.safetensors") if path.is_file()}
    return sorted(here | {path for path in arrivals.expected(directory) if path.suffix == ".safetensors"})


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
                raise CheckpointError(f"tensor {name!r} is in {merged[name].file} and in {tensor.file}")
            merged[name] = tensor
    return merged


def read_safetensors(path: Path) -> dict[str, SourceTensor]:
    """The tensors of one file, sorted by name; CheckpointError for every rule of the format it breaks."""
    tensors, source = [], arrivals.header_of(path)
    try:
        start, size = _check_header(path, source)
        at = start
        with safe_open(source, framework="numpy") as file:  # maps the file; no tensor is touched
            for name in file.offset_keys():
                tensors.append(_tensor(path, name, file.get_slice(name), at))
                at += tensors[-1].nbytes  # the library has seen that the data has no holes and no overlaps
    except SafetensorError as error:
        raise _refused(path, str(error), size - start) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    tensors.sort(key=lambda tensor: tensor.name)
    return {tensor.name: tensor for tensor in tensors}


def _tensor(path: Path, name: str, found: Any, offset: int) -> SourceTensor:
    dtype, shape = sys.intern(found.get_dtype()), tuple(found.get_shape())
    if len(shape) > MAX_DIMS:
        raise CheckpointError(f"{path}: tensor {name!r} has shape {shorten(str(list(shape)))}")
    return SourceTensor(name, path, dtype, shape, offset, math.prod(shape) * DTYPE_BYTES[dtype])


def _check_header(path: Path, source: Path) -> tuple[int, int]:
    """(where the data starts, bytes of the file), after what the library does not look at: limits, names, dtypes.

    ``source`` is read, messages name ``path``.
    """
    size = source.stat().st_size
    with source.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8 or prefix.startswith(b"version "):
            tip = "a Git LFS pointer: run git lfs pull" if prefix.startswith(b"version ") else "finish the download"
            raise CheckpointError(f"{path}: not a safetensors file ({size} bytes)", tip=tip)
        length = int.from_bytes(prefix, "little")
        if length > size - 8:
            raise CheckpointError(f"{path}: header length {length} in a file of {size} bytes")
        if length > MAX_HEADER:
            raise CheckpointError(f"{path}: a header of {text.size(length)}, more than {text.size(MAX_HEADER)}")
        header = parse_json(file.read(length), f"{path} (header)", refuse=CheckpointError, keep=_dtype_only)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = entry.get("dtype") if isinstance(entry, dict) else entry
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            raise CheckpointError(f"{path}: tensor {name!r} has unknown dtype {shorten(repr(dtype))}")
    return 8 + length, size


def _dtype_only(fields: dict[str, Any]) -> Any:
    """What is kept of a tensor's entry, so that a header of 92,000 tensors does not become 400,000 objects."""
    if not isinstance(fields.get("data_offsets"), list):
        return fields
    dtype = fields.get("dtype")
    return sys.intern(dtype) if isinstance(dtype, str) else dtype


def _refused(path: Path, reason: str, data: int) -> CheckpointError:
    """The library's refusal on one line; it quotes names out of the file."""
    reason = reason.removeprefix("Error while deserializing header: ")
    if "not fully covered" in reason:
        reason = f"its data is {data} bytes long, which is not what its header describes"
    return CheckpointError(
        f"{path}: {shorten(one_line(reason), 300)}",
        tip="the file is incomplete or damaged: finish the download, or fetch it again",
    )


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
                arrivals.wait(tensor.file)
                fd = self._fds[tensor.file] = open_read(tensor.file)
            offset = tensor.offset + start
            if not read_all(fd, buffer, offset):
                raise CheckpointError(f"{tensor.file}: tensor {tensor.name!r} ends early")
        except OSError as error:
            raise CheckpointError(f"{tensor.file}: cannot be read ({error.strerror})") from None
