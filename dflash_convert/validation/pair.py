"""What the headers of drafter and target say about how to run them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert.container.types import array_length
from dflash_convert.errors import ContainerError, FamilyError, InputError
from dflash_convert.forks.dialects import refuse_fork
from dflash_convert.validation.result import FileFacts

if TYPE_CHECKING:
    from dflash_convert.container.reader import Gguf

SHARD = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
SWAPPED = "were drafter and target swapped?"
# general.file_type, as in llama.h (LLAMA_FTYPE_MOSTLY_*)
FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16", 38: "MXFP4_MOE"},
}
CHUNK = 1 << 22
DIRECTORY = "convert the drafter with: dflash-convert DRAFTER --target-model-dir TARGET; take the target as a GGUF"


@dataclass(frozen=True)
class Pair:
    """Both files, the largest n-max that makes sense, and what the target's header offers."""

    drafter: FileFacts
    target: FileFacts
    n_max_cap: int | None
    has_template: bool
    trained_context: int | None
    vocab_size: int | None


def read_pair(drafter: Path, target: Path) -> Pair:
    """Read both headers. Raises :class:`ContainerError` for damaged files and :class:`FamilyError` when the
    files are not what their places say."""
    from dflash_convert.container.reader import open_gguf

    for path in (drafter, target):
        if path.is_dir():
            raise InputError(f"{path} is a directory, and validate runs GGUF files", tip=DIRECTORY)
    draft, main = open_gguf(drafter), open_gguf(target)
    spec_type = drafting_method(draft, drafter)
    if main.architecture == "dflash" or main.architecture.startswith("eagle3"):
        raise FamilyError(f"{target} is a drafter ({main.architecture}), not a target model", tip=SWAPPED)
    block = _integer(draft, "dflash.block_size")
    cap = None
    if block is not None:
        # b11434, common/speculative.cpp: DSpark that samples from the anchor drafts the whole block
        whole = spec_type == "draft-dspark" and draft.get("dflash.sample_from_anchor", True) is not False
        cap = max(block if whole else block - 1, 1)
    shards = target_shards(target, main)
    return Pair(
        drafter=_facts(draft, (drafter,), block, spec_type),
        target=_facts(main, shards, None, None),
        n_max_cap=cap,
        has_template=isinstance(main.get("tokenizer.chat_template"), str),
        trained_context=_integer(main, f"{main.architecture}.context_length"),
        vocab_size=array_length(main.get("tokenizer.ggml.tokens")) or None,
    )


def drafting_method(draft: Gguf, path: Path) -> str:
    """llama.cpp's name of the drafting method for this file (b11434: a Markov head makes it DSpark)."""
    architecture = draft.architecture
    if architecture == "dflash":
        return "draft-dspark" if "markov_w1.weight" in draft.tensors else "draft-dflash"
    if architecture == "eagle3":
        return "draft-eagle3"
    if any(".nextn.eh_proj." in name for name in draft.tensors):
        return "draft-mtp"
    refuse_fork(draft)
    raise FamilyError(f"{path} is a {architecture or 'nameless'} model, not a drafter", tip=SWAPPED)


def target_shards(path: Path, main: Gguf) -> tuple[Path, ...]:
    """All files of a target that was split; every one must be there."""
    match = SHARD.match(path.name)
    count = _integer(main, "split.count") or 1
    if count <= 1:
        return (path,)
    if match is None or int(match["count"]) != count:
        raise ContainerError(
            f"{path}: split.count is {count}, but the name does not end in -00001-of-{count:05d}.gguf",
            tip="give the shards the names they were made with",
        )
    names = [path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    if int(match["number"]) != 1:
        raise InputError(f"{path} is not the first shard", tip=f"give {names[0]}")
    missing = [p.name for p in names if not p.is_file()]
    if missing:
        raise InputError(f"{path}: the shard {', '.join(missing)} is missing", tip="download all shards into one place")
    return tuple(names)


def shard_paths(path: Path) -> tuple[Path, ...]:
    """The files that belong to ``path``, by its name alone."""
    match = SHARD.match(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    return tuple(path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _facts(gguf: Gguf, files: tuple[Path, ...], block: int | None, spec_type: str | None) -> FileFacts:
    name = gguf.get("general.name")
    number = _integer(gguf, "general.file_type")
    return FileFacts(
        path=str(files[0]),
        size=sum(p.stat().st_size for p in files),
        architecture=gguf.architecture,
        name=name if isinstance(name, str) else None,
        file_type=None if number is None else FILE_TYPES.get(number, f"type {number}"),
        block_size=block,
        spec_type=spec_type,
    )


def _integer(gguf: Gguf, key: str) -> int | None:
    value = gguf.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
