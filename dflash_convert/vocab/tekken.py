"""Mistral's ``tekken.json``: ranks with base64 bytes, special tokens first."""

from __future__ import annotations

import base64
import binascii
from array import array as packed
from collections.abc import Mapping
from typing import Any

from dflash_convert.container.types import ValueType, array, boolean, string, u32
from dflash_convert.errors import TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.assemble import Asked, finish, leading_entries
from dflash_convert.vocab.bytelevel import to_letters
from dflash_convert.vocab.files import is_int
from dflash_convert.vocab.pre import Pre, given_pre
from dflash_convert.vocab.special import ADD_KEY, Specials
from dflash_convert.vocab.template import default_template, find_template, template_entries
from dflash_convert.vocab.tokens import TokenTable, check_size, placeholders
from dflash_convert.vocab.types import SPECIAL_KEY, TokenType, Vocabulary

NAME = "tekken.json"
# mistral-common's tokens for files that list none (its first tekken version)
LEGACY = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]
ENDS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}


def load_tekken(request: Asked) -> Vocabulary:
    """llama.cpp's ``gpt2`` model with pre ``tekken``, in the reference's key order for this route."""
    where = request.where(NAME)
    data = request.files.json(NAME)
    config = data.get("config")
    if not isinstance(config, Mapping):
        raise TokenizerError(f"{where}: the field config is missing")
    reserved = _count(config, "default_num_special_tokens", where)
    check_size(reserved, request.size, where)
    tokens = _ranked(data.get("vocab"), _count(config, "default_vocab_size", where) - reserved, where)
    special = _special(data.get("special_tokens"), reserved, where)
    count = reserved + len(tokens)
    check_size(count - 1, request.size, where)
    table = placeholders(count if request.plain else request.size)
    table.scores = packed("i", bytes(4 * len(table.texts)))  # integers, as the reference writes them
    for tid, text in enumerate(special):
        table.texts[tid], table.types[tid] = text, TokenType.CONTROL
    for rank, token in enumerate(tokens):
        table.texts[reserved + rank], table.types[reserved + rank] = to_letters(token), TokenType.NORMAL
    table.make_unique()
    pre = given_pre(request.pre) if request.pre else Pre("tekken", "tekken.json")
    return _assemble(request, pre, table, _ids(special), _merges(tokens, where))


def _assemble(request: Asked, pre: Pre, table: TokenTable, specials: Specials, merges: list[str]) -> Vocabulary:
    template, notes = find_template(request.files, request.config or {"": ""}, plain=request.plain)
    if template is None:
        notes = [*notes, Note("info", "no chat template in the target; a drafter does not need one")]
    entries = [
        *leading_entries(request),
        string("tokenizer.ggml.model", "gpt2"),
        string("tokenizer.ggml.pre", pre.name),
        array("tokenizer.ggml.merges", ValueType.STRING, merges),
        *(u32(SPECIAL_KEY[kind], tid) for kind, tid in specials.ids.items()),
        *table.entries(),
        boolean(ADD_KEY["bos"], True),
        boolean(ADD_KEY["eos"], False),
        *template_entries(template),
    ]
    return finish(request, "gpt2", pre, table, specials, entries, default_template(template), notes)


def _count(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if not is_int(value) or not 0 < int(value) < 1 << 24:  # type: ignore[arg-type]
        raise TokenizerError(f"{where}: config.{key} is {value!r}; a positive number was expected")
    return int(value)  # type: ignore[arg-type]


def _ranked(vocab: object, count: int, where: str) -> list[bytes]:
    """The first ``count`` tokens by rank; more may be listed than are used."""
    if not isinstance(vocab, list) or not 0 < count <= len(vocab):
        raise TokenizerError(f"{where}: the field vocab does not hold the {count} tokens that config promises")
    tokens = []
    for rank, entry in enumerate(vocab[:count]):
        try:
            if entry["rank"] != rank:
                raise ValueError
            tokens.append(base64.b64decode(entry["token_bytes"], validate=True))
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise TokenizerError(f"{where}: vocab entry {rank} has a wrong rank or bad token_bytes") from None
    return tokens


def _special(entries: object, reserved: int, where: str) -> list[str]:
    """``reserved`` texts: those listed by rank, the rest named after their ids."""
    texts = [f"<SPECIAL_{i}>" for i in range(reserved)]
    if entries is None:
        texts[: len(LEGACY)] = LEGACY[:reserved]
        return texts
    for entry in entries if isinstance(entries, list) else [None]:
        rank = entry.get("rank") if isinstance(entry, Mapping) else None
        text = entry.get("token_str") if isinstance(entry, Mapping) else None
        if not is_int(rank) or not 0 <= int(rank) < reserved or not isinstance(text, str):  # type: ignore[arg-type]
            raise TokenizerError(f"{where}: special_tokens holds a bad entry {entry!r}"[:300])
        texts[int(rank)] = text  # type: ignore[arg-type]
    return texts


def _ids(special: list[str]) -> Specials:
    found = Specials()
    for kind, text in ENDS.items():
        if text in special:
            found.ids[kind] = special.index(text)
        elif kind == "pad" and "eos" in found.ids:
            found.ids["pad"] = found.ids["eos"]  # as in the reference
    found.add.update(bos=True, eos=False)
    return found


def _merges(tokens: list[bytes], where: str) -> list[str]:
    """Every split of every token into two tokens, lower ranks first (the reference's rule for tekken)."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    lines = []
    for token in tokens[256:]:
        splits = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [pair for pair in splits if pair[0] in ranks and pair[1] in ranks]
        if not pairs:
            raise TokenizerError(f"{where}: no two tokens make up the token of rank {ranks[token]}")
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        lines += [f"{to_letters(left)} {to_letters(right)}" for left, right in pairs]
    return lines
