"""A token's id by its text, from the target's tokenizer files: only for drafters that name their mask token."""

from __future__ import annotations

from pathlib import Path

from dflash_convert.jsonfile import read_json


def token_id(directory: Path | None, text: str) -> int | None:
    """The id in tokenizer.json's added tokens or vocabulary, None when the file or the token is not there."""
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
