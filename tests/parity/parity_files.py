"""GGUF files in the form of the expected files: metadata and tensors with hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dflash_convert.container.reader import open_gguf

WHOLE = ("dflash_spm_llama",)  # its tokenizer is small enough to be a fixture

Files = dict[str, Path]  # output type -> file


def tensors_of(path: Path) -> list[dict[str, Any]]:
    """The file's tensors as the expected files list them."""
    gguf = open_gguf(path)
    return [
        {
            "name": t.name,
            "shape": list(t.shape[::-1]),
            "type": t.type.name,
            "sha256": hashlib.sha256(gguf.data(t.name)).hexdigest(),
        }
        for t in gguf.tensors.values()
    ]


def metadata_of(path: Path) -> dict[str, Any]:
    """The file's keys as the expected files list them: long values as length, hash and first items."""
    result = {}
    for kv in open_gguf(path).keys.values():
        kind = kv.type.name if kv.item is None else f"{kv.type.name}/{kv.item.name}"
        value: Any = kv.value if kv.item is None else list(kv.value)
        if isinstance(value, list) and len(value) > 64:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
            value = {"length": len(value), "sha256": digest, "head": value[:4]}
        elif isinstance(value, str) and len(value) > 400:
            value = {"length": len(value), "sha256": hashlib.sha256(value.encode()).hexdigest()}
        result[kv.name] = {"type": kind, "value": value}
    return result


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
