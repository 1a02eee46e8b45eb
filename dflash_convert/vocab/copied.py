"""The vocabulary in a target's GGUF, key by key, so that drafter and target cannot differ; else from its files."""

from __future__ import annotations

import hashlib
from array import array as packed
from pathlib import Path
from typing import Any

from dflash_convert.container.keys import keys_of
from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import KV, ValueType, array
from dflash_convert.errors import ContainerError, TokenizerError, UsageError
from dflash_convert.notes import Note
from dflash_convert.target import Target
from dflash_convert.vocab import load_vocabulary
from dflash_convert.vocab.load import check_size
from dflash_convert.vocab.spm import PAD_SCORE
from dflash_convert.vocab.types import SPECIAL_KEY, TokenType, Vocabulary

TOKENS, TYPES, SCORES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores"))


def vocabulary_of(
    target: Target,
    *,
    vocab_size: int,
    pre: str | None = None,
    tokenizer_model: Path | None = None,
    plain: bool = False,
    eagle3: bool = False,
    fresh: bool = False,
) -> Vocabulary:
    """The vocabulary of ``target``, from its files as :func:`load_vocabulary` reads them or from its GGUF.

    UsageError for options that say how files are read when there are none.
    """
    if target.header is None:
        return load_vocabulary(
            target.files,
            vocab_size=vocab_size,
            pre=pre,
            tokenizer_model=tokenizer_model,
            plain=plain,
            eagle3=eagle3,
            fresh=fresh,
        )
    for option, value in (("--pre", pre), ("--tokenizer-model", tokenizer_model)):
        if value is not None:
            name = target.header.path.name
            raise UsageError(f"{option} does not apply: the vocabulary is copied from {name}", tip="leave it out")
    return copied(target.header, vocab_size)


def copied(gguf: Gguf, size: int) -> Vocabulary:
    """All ``tokenizer.*`` keys of ``gguf`` in its order, padded or shortened (by padding) to ``size`` tokens.

    TokenizerError when it has none or more tokens than fit, ContainerError for keys of the wrong kind.
    """
    check_size(size)
    keys = [kv for name, kv in gguf.keys.items() if name.startswith("tokenizer.")]
    typed, name = keys_of(gguf), gguf.path.name
    model, pre = typed.text("tokenizer.ggml.model"), typed.text("tokenizer.ggml.pre")
    tokens = gguf.keys.get(TOKENS)
    if tokens is None or model is None or not len(_items(name, tokens)):
        raise TokenizerError(
            f"{name} carries no vocabulary", tip="give the target model's GGUF, or its directory with the tokenizer"
        )
    template = gguf.get("tokenizer.chat_template")
    text = template.encode("utf-8", "surrogateescape") if isinstance(template, str) else None
    special = {kind: typed.integer(key) for kind, key in SPECIAL_KEY.items()}
    return Vocabulary(
        model=model,
        pre=pre,
        pre_source=name,
        size=size,
        special={kind: token for kind, token in special.items() if token is not None},
        template_sha256=None if text is None else hashlib.sha256(text).hexdigest(),
        notes=(Note("info", f"the vocabulary and chat template are those of {name}, key by key"),),
        entries=tuple(_fitted(gguf, keys, size)),
    )


def _items(source: str, kv: KV) -> Any:
    """An array of the kind that its name stands for."""
    wanted = {TOKENS: ValueType.STRING, TYPES: ValueType.INT32, SCORES: ValueType.FLOAT32}[kv.name]
    if kv.item is not wanted and not (kv.name == SCORES and kv.item is ValueType.INT32):
        raise ContainerError(f"{source}: key {kv.name} is not an array of {wanted.name}")
    return kv.value


def _fitted(gguf: Gguf, keys: list[KV], size: int) -> list[KV]:
    name = gguf.path.name
    columns = {kv.name: _items(name, kv) for kv in keys if kv.name in (TOKENS, TYPES, SCORES)}
    count = len(columns[TOKENS])
    for column, items in columns.items():
        if len(items) != count:
            raise ContainerError(f"{name}: key {column} has {len(items)} items for {count} tokens")
    if size == count:
        return keys
    types = columns.get(TYPES)
    if size < count and (types is None or any(kind != TokenType.UNUSED for kind in types[size:])):
        raise TokenizerError(
            f"{name}: its {count} tokens do not fit the drafter's vocab_size {size}",
            tip="Is this the target that the drafter was trained for?",
        )
    more = range(count, size)
    if types is not None:
        columns[TYPES] = packed("i", [*types[:size], *(TokenType.UNUSED for _ in more)])
    if SCORES in columns:
        columns[SCORES] = [*columns[SCORES][:size], *(PAD_SCORE for _ in more)]
    columns[TOKENS] = [*columns[TOKENS][:size], *(f"[PAD{i}]" for i in more)]
    return [
        array(kv.name, kv.item, columns[kv.name]) if kv.name in columns and kv.item is not None else kv for kv in keys
    ]
