"""Targets with a tokenizer.json: byte-level BPE, SentencePiece-style BPE, unigram."""

from __future__ import annotations

from array import array as packed
from collections.abc import Mapping
from typing import Any

from dflash_convert.container.types import boolean
from dflash_convert.errors import TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab import hfbpe
from dflash_convert.vocab.adjust import adjust_specials, adjust_types, resolve_leftovers
from dflash_convert.vocab.assemble import SPACE_PREFIX, Asked, say_no_bos, specials_of, vocabulary
from dflash_convert.vocab.bytelevel import added_tokens, byte_level_tokens
from dflash_convert.vocab.pre import Pre, given_pre, identify_pre
from dflash_convert.vocab.special import ADD_KEY
from dflash_convert.vocab.tokens import merge_lines, placeholders
from dflash_convert.vocab.types import TokenType, Vocabulary

NAME = "tokenizer.json"


def check_document(document: Mapping[str, Any], where: str) -> str:
    """The model's type; TokenizerError when the parts that every route needs are missing."""
    model = document.get("model")
    if not isinstance(model, Mapping):
        raise TokenizerError(f"{where}: the field model is missing")
    for key, kind in (
        ("added_tokens", list),
        ("pre_tokenizer", Mapping),
        ("normalizer", Mapping),
        ("post_processor", Mapping),
    ):
        if document.get(key) is not None and not isinstance(document[key], kind):
            raise TokenizerError(f"{where}: the field {key} is a {type(document[key]).__name__}")
    guess = "BPE" if "merges" in model else "Unigram" if isinstance(model.get("vocab"), list) else None
    return str(model.get("type") or guess)


def load_byte_level(request: Asked, document: Mapping[str, Any], where: str, *, from_json: bool = True) -> Vocabulary:
    """llama.cpp's ``gpt2`` model; ``from_json`` False when ``document`` was made from vocab.json and merges.txt."""
    size = padded_size(request)
    pre = given_pre(request.pre) if request.pre else identify_pre(document, where)
    listed = request.files.optional_json("added_tokens.json") if from_json else {}
    table = byte_level_tokens(document, request.config, size, where, listed)
    merges = merge_lines(document["model"].get("merges"), where)
    if not merges:
        raise TokenizerError(f"{where}: model.merges is empty; a byte-level BPE tokenizer needs merges")
    tokens, _ = added_tokens(document, request.config, where, listed)
    named = (
        {entry["content"]: entry["id"] for entry in reversed(document.get("added_tokens") or [])} if from_json else {}
    )
    specials = specials_of(request, size, named, document if from_json else None)
    ids = {**document["model"]["vocab"], **{token.text: token.id for token in tokens}}
    after = adjust_specials(request, pre, ids, specials)
    adjust_types(pre, table)
    if not request.plain:
        resolve_leftovers(request, ids, table.texts, specials)
    say_no_bos(request, pre, specials)
    return vocabulary(request, "gpt2", pre, table, specials, merges=merges, after=after)


def padded_size(request: Asked) -> int:
    """Nemotron-H rounds its vocabulary up to a multiple of 8 (conversion/nemotron.py)."""
    if str(request.model_config.get("model_type")).startswith("nemotron_h"):
        return -(request.size // -8) * 8
    return request.size


def load_gemma(request: Asked, document: Mapping[str, Any], where: str) -> Vocabulary:
    """llama.cpp's ``gemma4`` model: merges on raw text, no pre-tokenizer."""
    table = hfbpe.spm_style_tokens(document, request.config, request.size, where, pad=not request.plain)
    hfbpe.mark_visible(table)
    merges = merge_lines(document["model"].get("merges"), where)
    specials = specials_of(request, len(table.texts), _listed(document), document)
    after = [boolean(SPACE_PREFIX, False), boolean(ADD_KEY["bos"], True)]
    return vocabulary(request, "gemma4", None, table, specials, merges=merges, after=after)


def load_llama_json(request: Asked, document: Mapping[str, Any], where: str) -> Vocabulary:
    """Llama 2's tokenizer.json without its tokenizer.model: llama.cpp's ``llama`` model, scores from the merges."""
    table = hfbpe.spm_style_tokens(document, request.config, request.size, where, pad=not request.plain)
    if not request.plain:
        hfbpe.scores_from_merges(table, document, where)
    specials = specials_of(request, len(table.texts), _listed(document), document, strict=not request.plain)
    return vocabulary(request, "llama", Pre("default", "SentencePiece has none"), table, specials)


def load_unigram(request: Asked, document: Mapping[str, Any], where: str) -> Vocabulary:
    """A unigram model in tokenizer.json: pieces with scores, as a tokenizer.model would give them."""
    pairs = document["model"].get("vocab")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise TokenizerError(f"{where}: model.vocab of a unigram model is a list of [piece, score]")
    if len(pairs) > request.size:
        raise TokenizerError(f"{where}: {len(pairs)} pieces do not fit the drafter's vocab_size {request.size}")
    table = placeholders(request.size)
    table.scores = packed("f", [-10000.0]) * request.size
    for tid, (text, score) in enumerate(pairs):
        table.texts[tid], table.scores[tid] = str(text), float(score)
        table.types[tid] = TokenType.BYTE if hfbpe.BYTE_TOKEN.fullmatch(str(text)) else TokenType.NORMAL
    unk = document["model"].get("unk_id")
    if isinstance(unk, int) and 0 <= unk < len(pairs):
        table.types[unk] = TokenType.UNKNOWN
    for token in added_tokens(document, request.config, where)[0]:
        if token.id < request.size:
            table.texts[token.id] = token.text
            table.types[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    table.make_unique()
    table.notes.append(
        Note("warning", "unigram tokenizer: llama.cpp's llama model merges greedily and may split differently")
    )
    specials = specials_of(request, request.size, _listed(document), document)
    return vocabulary(request, "llama", Pre("default", "SentencePiece has none"), table, specials)


def _listed(document: Mapping[str, Any]) -> dict[str, int]:
    """Added tokens of tokenizer.json, the first of equal texts winning."""
    return {entry["content"]: entry["id"] for entry in reversed(document.get("added_tokens") or [])}


def describe_kind(document: Mapping[str, Any]) -> str:
    """``byte-level``, ``gemma``, ``llama``, ``unigram`` or the unsupported type's own name."""
    kind = check_document(document, NAME)
    if kind == "Unigram":
        return "unigram"
    if kind != "BPE":
        return kind
    if not hfbpe.is_spm_style(document):
        return "byte-level"
    return "gemma" if hfbpe.is_gemma_style(document) else "llama"
