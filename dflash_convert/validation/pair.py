"""What the headers of drafter and target say about how to run them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert import llama
from dflash_convert.container.keys import keys_of
from dflash_convert.container.reader import open_gguf, require_file, require_target
from dflash_convert.container.shards import all_shards
from dflash_convert.container.types import array_length
from dflash_convert.errors import FamilyError
from dflash_convert.forks.dialects import refuse_fork
from dflash_convert.hashing import copies
from dflash_convert.notes import Note
from dflash_convert.validation.result import FileFacts

if TYPE_CHECKING:
    from dflash_convert.container.reader import Gguf


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
    require_file(drafter)
    require_target(target)
    draft = open_gguf(drafter)
    variant = drafting_method(draft, drafter)
    main = read_target(target)
    own = keys_of(draft).under(draft.architecture)
    block = own.integer("block_size", low=1)
    cap = None if block is None else max(variant.max_drafts(block, own.boolean("sample_from_anchor")), 1)
    shards = all_shards(target, main)
    return Pair(
        drafter=_facts(draft, (drafter,), block, variant.spec_type),
        target=_facts(main, shards, None, None),
        n_max_cap=cap,
        has_template=isinstance(main.get("tokenizer.chat_template"), str),
        trained_context=keys_of(main).under(main.architecture).integer("context_length"),
        vocab_size=array_length(main.get("tokenizer.ggml.tokens")) or None,
    )


def read_target(path: Path) -> Gguf:
    """The target's header; FamilyError for a drafter in its place, ContainerError for a directory."""
    require_target(path)
    main = open_gguf(path)
    if llama.drafter(main.architecture) is not None:
        raise FamilyError(
            f"{path} is a drafter ({main.architecture}), not a target model",
            tip="give the GGUF of the model that it drafts for",
        )
    return main


def drafting_method(draft: Gguf, path: Path) -> llama.Variant:
    """How llama.cpp drafts with this file; FamilyError for a fork's dialect and for what is no drafter."""
    refuse_fork(draft)
    variant = llama.method(draft.architecture, draft.tensors)
    if variant is None:
        raise FamilyError(
            f"{path} is a {draft.architecture or 'nameless'} model, not a drafter",
            tip="give a drafter's GGUF; a model stands as TARGET",
        )
    return variant


def _facts(gguf: Gguf, files: tuple[Path, ...], block: int | None, spec_type: str | None) -> FileFacts:
    keys = keys_of(gguf)
    number = keys.integer("general.file_type")
    return FileFacts(
        path=str(files[0]),
        size=sum(p.stat().st_size for p in files),
        architecture=gguf.architecture,
        name=keys.text("general.name"),
        file_type=None if number is None else llama.file_type_name(number) or f"type {number}",
        block_size=block,
        spec_type=spec_type,
    )


def copied(role: str, paths: Iterable[Path]) -> tuple[Note, ...]:
    """A note for each file among ``paths`` that is an earlier one under another name: it is measured as if it were
    another ``role``."""
    return tuple(
        Note("warning", f"{path} holds the same bytes as {other}: one {role}, told apart by settings and noise alone")
        for path, other in copies(paths)
    )
