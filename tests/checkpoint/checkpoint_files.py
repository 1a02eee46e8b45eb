"""Small checkpoints with one thing wrong each."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = {"architectures": ["DFlashDraftModel"]}


def safetensors(header: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with the given header (bytes are taken as they stand) and, if wished, a length that lies."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def directory(path: Path, files: Mapping[str, bytes | Mapping[str, Any]]) -> Path:
    """A checkpoint directory; objects are written as JSON."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": CONFIG, **files}.items():
        (path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path
