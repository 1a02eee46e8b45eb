"""Byte-level BPE (tokenizer.json): tokens, types and merges of llama.cpp's ``gpt2`` model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_convert.errors import TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.files import content, is_int
from dflash_convert.vocab.tokens import (
    SPACE_MARK,
    TokenTable,
    check_size,
    check_vocab,
    looks_special,
    place_normal,
    placeholders,
    special_names,
)
from dflash_convert.vocab.types import TokenType


def byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte: printable Latin-1 stands for itself, the rest moves to 256 on."""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = (byte for byte in range(256) if byte not in keep)
    return {byte: chr(byte) for byte in keep} | {byte: chr(256 + n) for n, byte in enumerate(moved)}


LETTER = byte_letters()
BYTE = {letter: byte for byte, letter in LETTER.items()}


def to_letters(data: bytes) -> str:
    return "".join(map(LETTER.__getitem__, data))


@dataclass(frozen=True)
class Added:
    """An added token: kept whole by the tokenizer, outside the merges."""

    text: str
    id: int
    special: bool
    normalized: bool


def added_tokens(
    document: Mapping[str, Any], config: Mapping[str, Any], where: str, listed: Mapping[str, Any] | None = None
) -> tuple[list[Added], list[Note]]:
    """Added tokens of tokenizer.json, then those that only tokenizer_config.json has, or added_tokens.json
    (``listed``: text -> id), which older transformers write."""
    found: dict[str, Added] = {}
    for entry in document.get("added_tokens") or []:
        token = _added(entry, entry.get("id") if isinstance(entry, Mapping) else None, where)
        found[token.text] = token
    notes = []
    decoder = config.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, Mapping) else ():
        number = int(key) if isinstance(key, str) and key.isdecimal() else None
        token = _added(entry, number, "tokenizer_config.json: added_tokens_decoder")
        known = found.get(token.text)
        if known is None:
            found[token.text] = token
        elif known.id != token.id:
            text = (
                f"tokenizer_config.json gives {token.text!r} the id {token.id}, {where} {known.id}; the latter is used"
            )
            notes.append(Note("warning", text))
    for text, number in (listed or {}).items():
        if text not in found and text not in document["model"]["vocab"]:
            found[text] = _added({"content": text}, number, "added_tokens.json")
    return list(found.values()), notes


def _added(entry: object, tid: object, where: str) -> Added:
    text = content(entry)
    if text is None or not is_int(tid) or int(tid) < 0 or not isinstance(entry, Mapping):  # type: ignore[call-overload]
        raise TokenizerError(f"{where}: an added token without a text or a valid id ({entry!r})"[:300])
    return Added(text, int(tid), bool(entry.get("special")), bool(entry.get("normalized", not entry.get("special"))))  # type: ignore[call-overload]


def byte_level_tokens(
    document: Mapping[str, Any],
    config: Mapping[str, Any],
    size: int,
    where: str,
    listed: Mapping[str, Any] | None = None,
) -> TokenTable:
    """Every id from 0 to ``size``: the vocabulary, the added tokens, and placeholders for the rest."""
    vocab = check_vocab(document["model"].get("vocab"), where)
    added, notes = added_tokens(document, config, where, listed)
    highest = max(max(vocab.values()), max((token.id for token in added), default=0))
    check_size(highest, size, where)
    table = placeholders(size)
    table.notes = notes
    place_normal(table, vocab)
    known = {token.text for token in added}
    promoted = [
        Added(text, vocab[text], True, False) for text in special_names(config) if text in vocab and text not in known
    ]
    for token in [*added, *promoted]:
        _place(table, token, vocab, where)
    table.make_unique()
    return table


def _place(table: TokenTable, token: Added, vocab: Mapping[str, int], where: str) -> None:
    if vocab.get(token.text, token.id) != token.id:
        raise TokenizerError(
            f"{where}: {token.text!r} is token {vocab[token.text]} in the vocabulary, but added as token {token.id}",
            tip="The tokenizer files contradict each other; fetch them again from the target's repository.",
        )
    if table.types[token.id] != TokenType.UNUSED and table.texts[token.id] != token.text:
        raise TokenizerError(
            f"{where}: token id {token.id} is both {table.texts[token.id]!r} and {token.text!r}",
            tip="The tokenizer files contradict each other; fetch them again from the target's repository.",
        )
    text = token.text if token.normalized else spelled(token.text)
    if token.special or looks_special(text):
        table.types[token.id] = TokenType.CONTROL
    else:
        table.types[token.id] = TokenType.USER_DEFINED
        text = text.replace(SPACE_MARK, " ")  # llama.cpp wants user-defined tokens as they stand in the text
    table.texts[token.id] = text


def spelled(text: str) -> str:
    """The text as the byte-level decoder shows it: letters become the bytes they stand for, when all of them can."""
    if all(letter in BYTE for letter in text):
        return bytes(map(BYTE.__getitem__, text)).decode("utf-8", "replace")
    return text
