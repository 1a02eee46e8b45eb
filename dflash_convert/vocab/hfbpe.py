"""SentencePiece-style BPE in tokenizer.json (``▁`` for spaces, byte fallback): Gemma 4, Llama 2 without its model."""

from __future__ import annotations

import re
from array import array as packed
from collections.abc import Mapping
from typing import Any

from dflash_convert.notes import Note
from dflash_convert.vocab.bytelevel import added_tokens
from dflash_convert.vocab.tokens import (
    TokenTable,
    check_size,
    check_vocab,
    merge_lines,
    place_normal,
    placeholders,
    special_names,
)
from dflash_convert.vocab.types import TokenType

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
SCORE = -1000.0
# the chat parser of llama.cpp must see these in the text (conversion/gemma.py)
VISIBLE = frozenset(
    ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')
)


def is_spm_style(document: Mapping[str, Any]) -> bool:
    """BPE with byte fallback: pieces are raw text, not byte-level letters."""
    return bool(document["model"].get("byte_fallback"))


def is_gemma_style(document: Mapping[str, Any]) -> bool:
    """Spaces replaced and nothing prepended: what llama.cpp's ``gemma4`` model does."""
    normalizer = document.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    kinds = [step.get("type") for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []
    return "Replace" in kinds and "Prepend" not in kinds


def has_visible_tokens(document: Mapping[str, Any]) -> bool:
    """Gemma 4's own markers; Gemma 3, whose tokenizer.json is otherwise alike, has none of them."""
    vocab = document["model"].get("vocab") or {}
    return any(text in vocab for text in VISIBLE)


def spm_style_tokens(
    document: Mapping[str, Any], config: Mapping[str, Any], size: int, where: str, *, pad: bool
) -> TokenTable:
    """The vocabulary by id, with added tokens beyond it; the reference's LlamaHfVocab does not ``pad`` to ``size``."""
    vocab = check_vocab(document["model"].get("vocab"), where)
    added, notes = added_tokens(document, config, where)
    beyond = sorted((token for token in added if token.id >= len(vocab)), key=lambda token: token.id)
    count = len(vocab) + len(beyond)
    check_size(max(max(vocab.values()), count - 1), size, where)
    table = placeholders(size if pad else count)
    table.notes = notes
    table.scores = packed("f", [SCORE]) * len(table.texts)
    texts, types = table.texts, table.types
    named = set(special_names(config))
    place_normal(table, vocab)
    for text in named & vocab.keys():
        types[vocab[text]] = TokenType.CONTROL
    for text in vocab:
        if text.startswith("<0x") and BYTE_TOKEN.fullmatch(text):
            types[vocab[text]] = TokenType.BYTE
    for tid, token in enumerate(beyond, start=len(vocab)):
        texts[tid] = token.text
        types[tid] = TokenType.CONTROL if token.text in named else TokenType.USER_DEFINED
    table.make_unique()
    return table


def mark_visible(table: TokenTable) -> None:
    for text in VISIBLE & set(table.texts):
        table.types[table.texts.index(text)] = TokenType.USER_DEFINED


def scores_from_merges(table: TokenTable, document: Mapping[str, Any], where: str) -> None:
    """llama.cpp's ``llama`` model merges by score, tokenizer.json by rank: the earlier the merge, the higher."""
    ids = document["model"]["vocab"]
    scores = table.scores
    if scores is None:
        return
    seen = set()
    for rank, line in enumerate(merge_lines(document["model"].get("merges"), where)):
        text = line.replace(" ", "", 1)
        if text in ids and text not in seen:
            seen.add(text)
            scores[ids[text]] = -float(rank)
    table.notes.append(
        Note("derived", "scores of the tokens: from the order of the merges (there is no tokenizer.model)")
    )
