"""A token's id by its text, from the target's tokenizer files: only for drafters that name their mask token."""

from __future__ import annotations

from pathlib import Path

from dflash_convert.jsonfile import read_json
from dflash_convert.target import Target


def token_id(target: Target, text: str) -> int | None:
    """The id in the target's vocabulary, None when vocabulary or token are not there."""
    if target.header is None:
        return _in_file(target.directory, text)
    tokens = target.header.get("tokenizer.ggml.tokens") or ()
    return next((index for index, token in enumerate(tokens) if token == text), None)


def _in_file(directory: Path | None, text: str) -> int | None:
    """In tokenizer.json's added tokens or its vocabulary."""
    if directory is None or not (directory / "tokenizer.json").is_file():
        return None
    tokenizer = read_json(directory / "tokenizer.json")
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict) and entry.get("content") == text and isinstance(entry.get("id"), int):
            return int(entry["id"])
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    value = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return value if isinstance(value, int) else None
