"""The target's embedding table and output matrix, wherever its weights are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from dflash_convert.checkpoint import Reader, SourceTensor, open_checkpoint
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.shards import all_shards
from dflash_convert.errors import CheckpointError, ContainerError, InputError
from dflash_convert.tables import EMBEDDINGS as TABLE
from dflash_convert.tables import HEAD, find_table

BLOCK = 1 << 22
WEIGHTS = "give the target's GGUF (convert: --target-gguf FILE), or its directory with the weights"
CHECKPOINT_NAMES = {HEAD: "lm_head.weight", TABLE: "embed_tokens.weight"}


@dataclass(frozen=True)
class Matrices:
    """``table`` and ``head`` [vocabulary, hidden]; one and the same tensor where the target ties them."""

    name: str
    table: SourceTensor
    head: SourceTensor

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the head's bytes, streamed."""
        return digest(self.head)


def target_matrices(target: Path) -> Matrices:
    """From a GGUF (all shards) or a directory of safetensors. InputError when the weights are not there."""
    found = _from_directory(target) if target.is_dir() else _from_gguf(target)
    if TABLE not in found:
        raise InputError(
            f"{target} holds no embedding table, so the head's rows cannot be copied from it",
            tip=WEIGHTS,
        )
    table = found[TABLE]
    return Matrices(target.name, table, found.get(HEAD, table))


def _from_gguf(path: Path) -> dict[str, SourceTensor]:
    if not path.exists():
        raise InputError(f"{path}: no such file or directory")
    found: dict[str, SourceTensor] = {}
    for shard in all_shards(path, open_gguf(path)):
        gguf = open_gguf(shard)
        for name in (HEAD, TABLE):
            if name in gguf.tensors:
                info = gguf.tensors[name]
                if len(info.shape) != 2:
                    raise ContainerError(f"{shard.name}: tensor {name!r} is no matrix")
                found[name] = SourceTensor(name, shard, info.type.name, info.shape, info.offset, info.nbytes)
    return found


def _from_directory(directory: Path) -> dict[str, SourceTensor]:
    if not any(directory.glob("*.safetensors*")):
        raise CheckpointError(f"{directory} has no weights, so a head's rows cannot be copied from it", tip=WEIGHTS)
    tensors = open_checkpoint(directory).tensors
    found: dict[str, SourceTensor] = {}
    for name, last in CHECKPOINT_NAMES.items():
        source = find_table(tensors, last)
        if source is None:
            continue
        if source.dtype not in ("BF16", "F16", "F32") or len(source.shape) != 2:
            raise CheckpointError(
                f"{source.file}: tensor {source.name!r} is {source.dtype}, whose rows cannot be copied",
                tip="give a GGUF of the target instead",
            )
        found[name] = source
    return found


def digest(source: SourceTensor) -> str:
    found = sha256()
    buffer = memoryview(bytearray(min(BLOCK, source.nbytes)))
    with Reader() as reader:
        for at in range(0, source.nbytes, len(buffer)):
            part = buffer[: min(len(buffer), source.nbytes - at)]
            reader.into(source, at, part)
            found.update(part)
    return found.hexdigest()
