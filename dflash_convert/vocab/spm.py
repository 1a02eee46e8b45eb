"""A SentencePiece ``tokenizer.model``: llama.cpp's ``llama`` model."""

from __future__ import annotations

import re
from array import array as packed
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_convert.errors import TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.files import TokenizerFiles, content, is_int
from dflash_convert.vocab.tokens import SPACE_MARK, TokenTable, looks_special, placeholders
from dflash_convert.vocab.types import TokenType

NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
PAD_SCORE = -10000.0
ADDED_SCORE = -1000.0


@dataclass(frozen=True)
class Pieces:
    """What the model file holds."""

    texts: list[str]
    scores: list[float]
    types: list[int]
    unigram: bool
    space_prefix: bool
    special: Mapping[str, int]


def model_file(files: TokenizerFiles, notes: list[Note] | None = None) -> Path | None:
    """The directory's SentencePiece model; of Mistral's several (``NAME.model.v3``, ``.v7m1``) the newest version."""
    for name in NAMES:
        if files.has(name):
            return files.directory / name
    versions = [path for path in files.glob("*.model.v*") if is_sentencepiece(files.read(path.name))]
    versions.sort(key=lambda path: list(map(int, re.findall(r"\d{1,9}", path.name.partition(".model.")[2]))))
    if len(versions) > 1 and notes is not None:
        rest = ", ".join(path.name for path in versions[:-1])
        notes.append(Note("derived", f"tokenizer from {versions[-1].name}, the newest beside {rest}"))
    return versions[-1] if versions else None


def is_sentencepiece(data: bytes) -> bool:
    """A serialized ModelProto begins with the tag of its first field (``pieces``); a tiktoken file is text."""
    return data[:1] == b"\n" and len(data) > 2


def read_pieces(data: bytes, where: Path | str) -> Pieces:
    """All pieces of a serialized model; TokenizerError when it is damaged."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except Exception as error:  # the binding raises RuntimeError or its own types, depending on the version
        raise TokenizerError(
            f"{where}: not a SentencePiece model ({error})".splitlines()[0], tip="Fetch the file again."
        ) from error
    ids = range(processor.vocab_size())
    try:
        texts = [processor.IdToPiece(i) for i in ids]
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{where}: a piece is not UTF-8", tip="Fetch the file again.") from error
    unigram, prefix = _model_kind(data)
    special = {kind: getattr(processor, f"{kind}_id")() for kind in ("bos", "eos", "unk", "pad")}
    named = {kind: tid for kind, tid in special.items() if tid >= 0}
    scores, types = [processor.GetScore(i) for i in ids], [_type(processor, i) for i in ids]
    return Pieces(texts, scores, types, unigram, prefix, named)


def _type(processor: Any, tid: int) -> int:
    if processor.IsUnknown(tid):
        return TokenType.UNKNOWN
    if processor.IsControl(tid):
        return TokenType.CONTROL
    if processor.IsUnused(tid):
        return TokenType.UNUSED
    return TokenType.BYTE if processor.IsByte(tid) else TokenType.NORMAL


def _model_kind(data: bytes) -> tuple[bool, bool]:
    """(is unigram, puts a space before the text): trainer_spec.model_type and normalizer_spec.add_dummy_prefix."""
    trainer = _submessage(data, 2)
    normalizer = _submessage(data, 3)
    return trainer.get(3, 1) == 1, bool(normalizer.get(3, 1))


def _submessage(data: bytes, number: int) -> dict[int, int]:
    """The varint fields of the last top-level message ``number`` of a protobuf; {} when there is none."""
    found: dict[int, int] = {}
    for field, value in _fields(data):
        if field == number and isinstance(value, bytes):
            found = {inner: v for inner, v in _fields(value) if isinstance(v, int)}
    return found


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value: int | bytes
            value, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            value, at = data[at : at + width], at + width
        else:
            break
        fields.append((tag >> 3, value))
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at


def sentencepiece_tokens(pieces: Pieces, files: TokenizerFiles, config: Mapping[str, Any], size: int) -> TokenTable:
    """Pieces, then added_tokens.json, then tokenizer_config.json's added_tokens_decoder, as in the reference."""
    table = placeholders(size)
    table.scores = packed("f", [PAD_SCORE]) * size
    count = len(pieces.texts)
    if count > size:
        table.notes.append(
            Note("warning", f"tokenizer.model holds {count} pieces, the vocabulary {size}; the rest is left out")
        )
        count = size
    table.texts[:count] = pieces.texts[:count]
    table.types[:count] = packed("i", pieces.types[:count])
    table.scores[:count] = packed("f", pieces.scores[:count])
    for text, tid in files.optional_json("added_tokens.json").items():
        _put(table, tid, text, TokenType.USER_DEFINED, "added_tokens.json", count)
    decoder = config.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, Mapping) else ():
        added = content(entry)
        if added is None or not isinstance(entry, Mapping) or not key.isdecimal():
            raise TokenizerError(f"tokenizer_config.json: added_tokens_decoder has a bad entry {key!r}")
        special = bool(entry.get("special")) or looks_special(added)
        kind = TokenType.CONTROL if special else TokenType.USER_DEFINED
        _put(
            table, int(key), added if special else added.replace(SPACE_MARK, " "), kind, "tokenizer_config.json", count
        )
    table.make_unique()
    return table


def _put(table: TokenTable, tid: object, text: str, kind: TokenType, source: str, count: int) -> None:
    if not is_int(tid) or int(tid) < 0:  # type: ignore[call-overload]
        raise TokenizerError(f"{source}: {text!r} has the id {tid!r}; ids are integers from 0 on")
    place = int(tid)  # type: ignore[call-overload]
    if place >= len(table.texts):
        table.notes.append(Note("warning", f"{source}: token {place} ({text!r}) lies outside the vocabulary; left out"))
        return
    renames = place < count and table.texts[place] != text
    if renames and table.types[place] == TokenType.NORMAL and source == "added_tokens.json":
        raise TokenizerError(
            f"{source}: token {place} is {table.texts[place]!r} in tokenizer.model, not {text!r}",
            tip="The tokenizer files contradict each other; fetch them again from the target's repository.",
        )
    if renames and table.types[place] != TokenType.UNUSED:
        table.notes.append(Note("warning", f"{source}: token {place} changes from {table.texts[place]!r} to {text!r}"))
    table.texts[place] = text
    table.types[place] = kind
    if table.scores is not None:
        table.scores[place] = ADDED_SCORE
