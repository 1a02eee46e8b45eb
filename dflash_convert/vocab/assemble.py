"""From tokens, special ids and template to the ``tokenizer.*`` keys in the reference's order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dflash_convert.container.types import KV, ValueType, array, boolean, string
from dflash_convert.llama_tables import LLAMA_VOCABULARY
from dflash_convert.notes import Note
from dflash_convert.vocab.files import TokenizerFiles
from dflash_convert.vocab.pre import Pre
from dflash_convert.vocab.special import ADD_KEY, Specials, SpecialSources, read_specials
from dflash_convert.vocab.template import default_template, find_template, template_entries
from dflash_convert.vocab.tokens import TokenTable
from dflash_convert.vocab.types import Vocabulary

SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"
# classes whose own set_vocab writes it behind everything else, of a SentencePiece model: always false, or as
# tokenizer_config.json has it (conversion/gemma.py, ernie.py, pangu.py, internlm.py)
GEMMA = (
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma3TextModel",
)
AS_STATED = (
    "Ernie4_5_ForCausalLM",
    "Ernie4_5ForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "PaddleOCRVLForConditionalGeneration",
    "PanguEmbeddedForCausalLM",
    "InternLM3ForCausalLM",
)
# pre-tokenizers whose vocabularies get a bos from llama.cpp when the file says nothing about it
BOS_BY_DEFAULT = frozenset(
    [
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
        "chameleon",
    ]
)


@dataclass
class Asked:
    """What load_vocabulary was asked for, and the small JSON files that every route reads."""

    files: TokenizerFiles
    size: int
    pre: str | None
    tokenizer_model: Path | None
    plain: bool
    eagle3: bool
    config: dict[str, Any] = field(default_factory=dict)
    model_config: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def where(self, name: str) -> str:
        return str(self.files.directory / name)

    @cached_property
    def generation(self) -> dict[str, Any]:
        """generation_config.json, which only adds to what the tokenizer's files say."""
        return self.files.side_json("generation_config.json", self.notes)

    @property
    def architecture(self) -> str:
        names = self.model_config.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else ""


def specials_of(
    request: Asked, size: int, added: Mapping[str, int], document: Mapping[str, Any] | None, *, strict: bool = True
) -> Specials:
    """Special ids of this target; ``document`` is tokenizer.json when there is one."""
    post = document.get("post_processor") if document is not None else None
    sources = SpecialSources(request.config, request.model_config, added, post, document is not None)
    return read_specials(sources, size, strict=strict, plain=request.plain)


def leading_entries(request: Asked) -> list[KV]:
    """add_space_prefix as the reference's Llama route writes it, before everything else."""
    prefix = request.config.get("add_prefix_space")
    if isinstance(prefix, bool) and (request.eagle3 or request.architecture in LLAMA_VOCABULARY):
        return [boolean(SPACE_PREFIX, prefix)]
    return []


def trailing_entries(request: Asked, dummy_prefix: bool) -> list[KV]:
    """add_space_prefix of a SentencePiece model; ``dummy_prefix`` is the model's own word."""
    stated = request.config.get("add_prefix_space")
    if request.plain and request.eagle3:
        return []  # the reference writes every target's as a Llama's
    if request.plain and request.architecture in AS_STATED and isinstance(stated, bool):
        return [boolean(SPACE_PREFIX, stated)]
    never = request.architecture in GEMMA if request.plain else not dummy_prefix
    return [boolean(SPACE_PREFIX, False)] if never else []


def vocabulary(
    request: Asked,
    model: str,
    pre: Pre | None,
    table: TokenTable,
    specials: Specials,
    *,
    merges: Sequence[str] | None = None,
    after: Sequence[KV] = (),
) -> Vocabulary:
    """Keys in the reference's order: model, pre, tokens, scores, types, merges, ids, flags, template, ``after``."""
    template, template_notes = find_template(request.files, request.config, plain=request.plain)
    entries = [*leading_entries(request), string("tokenizer.ggml.model", model)]
    if pre is not None:
        entries.append(string("tokenizer.ggml.pre", pre.name))
    entries += table.entries()
    if merges:
        entries.append(array("tokenizer.ggml.merges", ValueType.STRING, merges))
    entries += [*specials.entries(), *template_entries(template), *after]
    return finish(request, model, pre, table, specials, entries, default_template(template), template_notes)


def finish(
    request: Asked,
    model: str,
    pre: Pre | None,
    table: TokenTable,
    specials: Specials,
    entries: Sequence[KV],
    template: str | None,
    notes: Sequence[Note],
) -> Vocabulary:
    """The result, with one entry per key: a key given twice keeps its first place and its last value."""
    unique = {entry.name: entry for entry in entries}
    pre_notes = pre.notes if pre is not None else ()
    return Vocabulary(
        model=model,
        pre=pre.name if pre is not None else None,
        pre_source=pre.source if pre is not None else "not needed by this model",
        size=len(table.texts),
        special=dict(specials.ids),
        template_sha256=hashlib.sha256(template.encode("utf-8")).hexdigest() if template is not None else None,
        notes=(*request.notes, *pre_notes, *table.notes, *specials.notes, *notes),
        entries=tuple(unique.values()),
        files=dict(request.files.hashes),
    )


def say_no_bos(request: Asked, pre: Pre, specials: Specials) -> None:
    """llama.cpp would add a bos for this pre-tokenizer; the tokenizer's files ask for none, so say it."""
    if not request.plain and pre.name in BOS_BY_DEFAULT and "bos" not in specials.add:
        specials.add["bos"] = False
        specials.notes.append(Note("derived", f"{ADD_KEY['bos']} false: nothing in the tokenizer's files adds a bos"))
