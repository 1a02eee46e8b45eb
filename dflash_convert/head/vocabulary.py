"""Tokens of a GGUF's vocabulary that a reduced head keeps whatever a ranking says."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash_convert.container.types import array_length
from dflash_convert.errors import TokenizerError
from dflash_convert.head.base import Base
from dflash_convert.vocab.bytelevel import BYTE
from dflash_convert.vocab.tokens import SPACE_MARK
from dflash_convert.vocab.types import TokenType

TEMPLATE = "tokenizer.chat_template"
# names of tokens that exist to be given a meaning later; a target emits none of them
RESERVED = re.compile(r"^[<\[|]*(?:unused|reserved)[_ a-z]*\d*[>\]|]*$", re.IGNORECASE)


@dataclass(frozen=True)
class Vocabulary:
    """``texts``: what each token adds to the output, None where it is no whole number of characters; ``names``:
    the tokens as the file spells them; ``types``: llama.cpp's token types; ``ends``: ids that end a generation."""

    names: tuple[str, ...]
    texts: tuple[str | None, ...]
    types: tuple[int, ...]
    ends: frozenset[int]
    template: str

    @property
    def size(self) -> int:
        return len(self.names)


def read_vocabulary(drafter: Base) -> Vocabulary:
    """From ``tokenizer.ggml.*``; TokenizerError when the file has no vocabulary."""
    names = drafter.get("tokenizer.ggml.tokens")
    if not array_length(names):
        raise TokenizerError(
            f"{drafter.name} has no vocabulary, so no token of it can be ranked",
            tip="convert the drafter with its target's tokenizer: --target-model-dir TARGET",
        )
    words = tuple(str(name) for name in names)
    byte_level = drafter.get("tokenizer.ggml.model") == "gpt2"
    types = drafter.get("tokenizer.ggml.token_type")
    kinds = tuple(int(kind) for kind in types) if array_length(types) == len(words) else (1,) * len(words)
    ends = (drafter.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom", "bos"))
    template = drafter.get(TEMPLATE)
    return Vocabulary(
        words,
        tuple(_text(word, kind, byte_level) for word, kind in zip(words, kinds, strict=True)),
        kinds,
        frozenset(i for i in ends if isinstance(i, int) and 0 <= i < len(words)),
        template if isinstance(template, str) else "",
    )


def _text(word: str, kind: int, byte_level: bool) -> str | None:
    if kind != TokenType.NORMAL:
        return word
    if not byte_level:
        return word.replace(SPACE_MARK, " ")
    try:
        return bytes(BYTE[letter] for letter in word).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return None


def always_kept(vocabulary: Vocabulary, seen: Iterable[int]) -> NDArray[np.int64]:
    """Ascending ids: control, byte and end-of-generation tokens, tokens that the chat template spells, single
    bytes, and single characters of the scripts in the tokens ``seen``."""
    scripts = {script for i in seen for letter in vocabulary.texts[i] or "" if (script := _script(letter))}
    kept = set(vocabulary.ends)
    for i, (name, text, kind) in enumerate(zip(vocabulary.names, vocabulary.texts, vocabulary.types, strict=True)):
        named = kind != TokenType.NORMAL and name in vocabulary.template
        special = kind in (TokenType.CONTROL, TokenType.BYTE, TokenType.USER_DEFINED) and not RESERVED.match(name)
        single = kind == TokenType.NORMAL and len(name) == 1
        letter = text is not None and len(text) == 1 and (_script(text) in scripts or text.isascii())
        if named or special or single or letter:
            kept.add(i)
    return np.array(sorted(kept), dtype=np.int64)


def _script(letter: str) -> str:
    """LATIN, CYRILLIC, CJK …: the first word of a letter's Unicode name; empty for what is no letter."""
    return unicodedata.name(letter, "").split(" ")[0] if letter.isalpha() else ""
