"""The probe hash: SHA-256 of the ids that a tokenizer gives for one fixed text.

Loading a whole tokenizer for one text costs up to 0.9 s and 320 MB.  Only tokens that can occur in the text
matter to the result, so a tokenizer with just those tokens and merges is built: same ids, a few milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONGEST = 64  # characters; longer tokens are looked up one by one


def hash_ids(ids: list[int]) -> str:
    return sha256(str(ids).encode()).hexdigest()


def probe_hashes(document: Mapping[str, Any], text: str) -> Iterator[tuple[str, str]]:
    """Hashes to look up, most telling first, each with how it was made (for a message)."""
    tokenizer, present = reduced_tokenizer(document, text)
    ids = tokenizer.encode(text).ids
    yield hash_ids(ids), ""
    bare = tokenizer.encode(text, add_special_tokens=False).ids
    # transformers' Llama class prepends bos on its own account; before the bare ids, because Llama 3's without
    # its bos are those of another name that merges otherwise
    for entry in document.get("added_tokens") or []:
        if entry.get("special"):
            yield hash_ids([entry["id"], *bare]), " with a leading special token"
    yield hash_ids(bare), " without special tokens"
    if present:
        plain = reduced_tokenizer({**document, "added_tokens": []}, text)[0]
        yield hash_ids(plain.encode(text).ids), " without the added tokens"
        yield hash_ids(plain.encode(text, add_special_tokens=False).ids), " without added and special tokens"


def reduced_tokenizer(document: Mapping[str, Any], text: str) -> tuple[Tokenizer, list[Any]]:
    """A tokenizer that encodes ``text`` as the whole one does, and the added tokens that occur in the text."""
    from tokenizers import Tokenizer

    model = document["model"]
    skeleton: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        **{key: document.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")},
        "model": {**model, "vocab": {}, "merges": [], "unk_token": None},
    }
    empty = Tokenizer.from_str(json.dumps(skeleton))
    normal = empty.normalizer.normalize_str(text) if empty.normalizer else text
    pieces = [p for p, _ in empty.pre_tokenizer.pre_tokenize_str(normal)] if empty.pre_tokenizer else [normal]
    vocab: dict[str, int] = model["vocab"]
    kept = _occurring(vocab, pieces)
    if model.get("byte_fallback"):
        kept |= {token for token in vocab if len(token) == 6 and token.startswith("<0x")}
    present = [entry for entry in document.get("added_tokens") or [] if entry["content"] in text + normal]
    small = {token: vocab[token] for token in kept} | {entry["content"]: entry["id"] for entry in present}
    unk = model.get("unk_token")
    if unk in vocab:
        small[unk] = vocab[unk]
    skeleton["added_tokens"] = present
    merges = _merges_within(model.get("merges") or [], small)
    skeleton["model"] = {**model, "vocab": small, "merges": merges, "unk_token": unk if unk in small else None}
    return Tokenizer.from_str(json.dumps(skeleton)), present


def _occurring(vocab: dict[str, int], pieces: list[str]) -> set[str]:
    """Tokens of ``vocab`` that are a substring of the joined pieces, or of a piece after a prefix space."""
    whole = "".join(pieces)
    haystacks = [whole, *("Ġ" + piece for piece in pieces), *("▁" + piece for piece in pieces)]
    parts = {h[i : i + n] for h in haystacks for i in range(len(h)) for n in range(1, min(LONGEST, len(h) - i) + 1)}
    long = {token for token in vocab if len(token) > LONGEST and token in whole}
    return (vocab.keys() & parts) | long


def _merges_within(merges: Iterable[Any], vocab: Mapping[str, int]) -> list[list[str]]:
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
    return [[left, right] for left, right in pairs if left in vocab and right in vocab and left + right in vocab]
