"""Small helpers of the vocabulary tests."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from dflash_convert.container.types import KV, ValueType
from dflash_convert.vocab import Vocabulary

PREFIX = "tokenizer.ggml."


def values(vocabulary: Vocabulary, mask: int | None = None) -> dict[str, Any]:
    """Key -> value, without the common prefix; arrays as lists."""
    keys = vocabulary.keys(mask)
    return {kv.name.removeprefix(PREFIX): list(kv.value) if kv.type is ValueType.ARRAY else kv.value for kv in keys}


def notes(vocabulary: Vocabulary, level: str | None = None) -> list[str]:
    return [note.text for note in vocabulary.notes if level in (None, note.level)]


def summary(kv: KV) -> dict[str, Any]:
    """A key as the expected files of the reference write it."""
    kind, value = kv.type.name, kv.value
    if kv.type is ValueType.ARRAY:
        assert kv.item is not None
        value, kind = list(value), f"ARRAY/{kv.item.name}"
        if len(value) > 64:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            value = {"length": len(value), "sha256": hashlib.sha256(text.encode()).hexdigest(), "head": value[:4]}
    elif kv.type is ValueType.STRING and len(value) > 400:
        value = {"length": len(value), "sha256": hashlib.sha256(value.encode()).hexdigest()}
    return {"type": kind, "value": value}


def variant(source: Path, folder: Path, **changes: Any) -> Path:
    """A copy of a fixture with JSON files changed: ``tokenizer={...}`` updates tokenizer.json, None removes a file."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    for stem, change in changes.items():
        path = folder / f"{stem}.json"
        if change is None:
            path.unlink()
        else:
            old = json.loads(path.read_text("utf-8")) if path.is_file() else {}
            path.write_text(json.dumps({**old, **change}, ensure_ascii=False), "utf-8")
    return folder


def document(source: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((source / "tokenizer.json").read_text("utf-8"))
    return data
