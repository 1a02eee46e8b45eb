"""SHA-256 of files, in pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 22  # bytes


def sha256_of(path: Path, copy: BinaryIO | None = None) -> str:
    """SHA-256 of a file in one pass, which also writes its bytes to ``copy`` when that is given."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            if copy is not None:
                copy.write(chunk)
    return digest.hexdigest()
