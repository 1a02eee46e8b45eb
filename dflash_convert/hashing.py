"""SHA-256 of files, in pieces, and what tells cheaply that a file is still the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
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


def known_sha256(path: Path) -> str:
    """As :func:`sha256_of`; a file that has not changed since this process read it is not read again."""
    return _remembered(path.resolve(), stamp_of(path))


@lru_cache(maxsize=256)
def _remembered(path: Path, _: tuple[int | str, ...]) -> str:
    return sha256_of(path)


def stamp_of(path: Path) -> tuple[int | str, ...]:
    """What tells a file from any other that was at ``path`` without reading all of it: the hash of its first megabytes
    (a GGUF's keys), size, inode, and the times of its last changes, in nanoseconds.

    A program can set ``mtime`` back; ``ctime`` only the system sets, at every write, rename and change of ``mtime``.
    Windows keeps the time of creation there: the whole content is hashed instead.
    """
    status = path.stat()
    if os.name == "nt":
        return (status.st_size, sha256_of(path))
    return (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, _head(path))


def _head(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.sha256(source.read(CHUNK)).hexdigest()


def copies(paths: Iterable[Path]) -> list[tuple[Path, Path]]:
    """Each path that holds the bytes of an earlier one and is another file, with that one.

    Files are read whole only where their size and their first megabytes, a GGUF's keys, agree.
    """
    found: list[tuple[Path, Path]] = []
    seen: list[Path] = []
    for path in paths:
        if any(path.samefile(other) for other in seen):
            continue
        same = next((other for other in seen if _same(path, other)), None)
        if same is None:
            seen.append(path)
        else:
            found.append((path, same))
    return found


def _same(one: Path, other: Path) -> bool:
    return (
        one.stat().st_size == other.stat().st_size
        and _head(one) == _head(other)
        and known_sha256(one) == known_sha256(other)
    )
