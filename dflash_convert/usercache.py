"""What is kept in the user's cache: results that cost time and follow from nothing but files and code.

An entry's name holds the SHA-256 of what it is the answer to and of the entry itself; one that is not the user's own,
or not what its name says, is none. Entries may be deleted at any time, and nothing that happens to them is an error.

``DFLASH_TOKENIZER_CACHE`` names another directory, or is ``off``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any

ENVIRONMENT = "DFLASH_TOKENIZER_CACHE"
MAX_BYTES = 256 << 20
PARTIAL, PATIENCE = ".partial", 3600.0  # seconds after which nobody writes it any more
# the names of our own files: whatever else is in the directory is never touched
ENTRY, UNFINISHED = re.compile(r"[0-9a-f]{64}-[0-9a-f]{64}"), re.compile(r"[0-9a-f]{16}")


def directory() -> Path | None:
    """Where entries are kept; None when the user wants none or has no home."""
    named = os.environ.get(ENVIRONMENT, "")
    if named == "off":
        return None
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"  # noqa: PTH117
    except RuntimeError:
        return None
    return root / "dflash-convert" / "tokenizers"


def key_of(asked: Sequence[Any]) -> str:
    """The name of a question: the SHA-256 of what JSON makes of it."""
    return sha256(json.dumps(asked).encode("utf-8", "surrogatepass")).hexdigest()


def code_of(packages: Iterable[Path], *versions: str) -> str:
    """The SHA-256 of the code and tables in these directories, and of the versions of what they call."""
    digest = sha256(json.dumps(versions).encode())
    for package in packages:
        for path in sorted(path for path in package.iterdir() if path.suffix in (".py", ".json")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def entries(place: Path, suffix: str, key: str = "") -> Iterator[Path]:
    return (path for path in place.glob(f"{key}*{suffix}") if ENTRY.fullmatch(path.name.removesuffix(suffix)))


def read(path: Path) -> bytes:
    """An entry's bytes; OSError or ValueError when it is no entry of the user's own, which a link never is."""
    flags = [getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")]
    with os.fdopen(os.open(path, os.O_RDONLY | sum(flags)), "rb") as file:
        status = os.fstat(file.fileno())  # of what is read: the name may mean another file by now
        if (
            not S_ISREG(status.st_mode)
            or status.st_size > MAX_BYTES
            or (hasattr(os, "getuid") and status.st_uid != os.getuid())
        ):
            raise ValueError("not an entry")
        data = file.read(status.st_size)  # not mapped: the file may change while it is in use
    if sha256(data).hexdigest() != path.stem.rpartition("-")[2]:
        raise ValueError("damaged")
    return data


def used(path: Path) -> None:
    """An entry is worth keeping; where nothing may be written it is as good as before."""
    with suppress(OSError):
        os.utime(path)


def store(place: Path, key: str, data: bytes, suffix: str, keep: int) -> Path:
    """Keep ``data``, instead of the key's other entries; of this kind the ``keep`` last used stay."""
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = place / f"{key}-{sha256(data).hexdigest()}{suffix}"
    partial = place / f"{secrets.token_hex(8)}{PARTIAL}"
    old = [*entries(place, suffix, key)]
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _prune(place, [entry for entry in old if entry != path], suffix, keep)
    return path


def _prune(place: Path, outdated: Sequence[Path], suffix: str, keep: int) -> None:
    """Remove what another answer made void, what has not been used for longest, and what killed runs left."""
    with suppress(OSError):
        for partial in place.glob("*" + PARTIAL):
            if UNFINISHED.fullmatch(partial.stem) and time.time() - partial.stat().st_mtime > PATIENCE:
                partial.unlink(missing_ok=True)
        by_age = sorted(entries(place, suffix), key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in {*outdated, *by_age[keep:]}:
            entry.unlink(missing_ok=True)
