"""Vocabularies that were read before, in the user's cache: a large tokenizer.json takes half a second to read.

An entry is a GGUF without tensors: the ``tokenizer.*`` keys as they go into a drafter's file, and one key with
everything else. Its name holds the SHA-256 of what was asked for (directory, options, this program's own code) and of
the entry itself. Inside are the questions that reading asked of the target's directory, with the answers' hashes; they
are asked again, and one other answer makes the entry void. Entries may be deleted at any time, and nothing that
happens to them is an error.

``DFLASH_TOKENIZER_CACHE`` names another directory, or is ``off``.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import string
from dflash_convert.container.writer import layout
from dflash_convert.errors import ContainerError, TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.files import TokenizerFiles
from dflash_convert.vocab.types import Vocabulary

ENVIRONMENT = "DFLASH_TOKENIZER_CACHE"
KEEP = 16  # entries of 6 to 16 MB
MAX_BYTES = 256 << 20
FACTS = "dflash_convert.cache"
PARTIAL, PATIENCE = ".partial", 3600.0  # seconds after which nobody writes it any more
UNUSABLE = (OSError, ContainerError, TokenizerError, ValueError, TypeError, KeyError)  # an entry that is none


def remembered(files: TokenizerFiles, options: Sequence[Any], load: Callable[[], Vocabulary]) -> Vocabulary:
    """What ``load`` returns for ``files`` and ``options``, from the cache when it is there."""
    place = directory()
    if place is None:
        return load()
    key = _key(files.directory, options)
    found = _recall(place, key, files.directory)
    if found is not None:
        return found
    vocabulary = load()
    with suppress(*UNUSABLE):
        return _read(_store(place, key, vocabulary, files.asked))[0]
    return vocabulary


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


def _key(target: Path, options: Sequence[Any]) -> str:
    asked = [str(target.absolute()), *options, _code()]
    return sha256(json.dumps(asked).encode("utf-8", "surrogatepass")).hexdigest()


@lru_cache(maxsize=1)
def _code() -> str:
    """The hash of what turns files into keys: this package, the container's form, the tokenizers library."""
    digest = sha256(version("tokenizers").encode())
    package = Path(__file__).parent
    for part in (package, package.parent / "container"):
        for path in sorted(path for path in part.iterdir() if path.suffix in (".py", ".json")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _entries(place: Path, key: str = "") -> Iterator[Path]:
    return place.glob(f"{key}*.gguf")


def _recall(place: Path, key: str, target: Path) -> Vocabulary | None:
    with suppress(OSError):
        for path in _entries(place, key):
            with suppress(*UNUSABLE):
                vocabulary, asked = _read(path)
                if _still_true(asked, target):
                    os.utime(path)
                    return vocabulary
    return None


def _still_true(asked: Any, target: Path) -> bool:
    files = TokenizerFiles(target)
    return all(files.answer(kind, name) == answer for kind, name, answer in asked)


def _read(path: Path) -> tuple[Vocabulary, Any]:
    """An entry's vocabulary and questions; ValueError when it is not the user's own or not what its name says."""
    status = path.stat()
    if status.st_size > MAX_BYTES or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        raise ValueError("not an entry")
    data = path.read_bytes()  # not mapped: the file may change while it is in use
    if sha256(data).hexdigest() != path.stem.rpartition("-")[2]:
        raise ValueError("damaged")
    gguf = Gguf(path, memoryview(data), len(data))
    facts = json.loads(gguf.keys.pop(FACTS).value)
    notes = tuple(Note(*note) for note in facts["vocabulary"].pop("notes"))
    return Vocabulary(**facts["vocabulary"], notes=notes, entries=tuple(gguf.keys.values())), facts["asked"]


def _store(place: Path, key: str, vocabulary: Vocabulary, asked: Any) -> Path:
    facts = {"vocabulary": asdict(replace(vocabulary, entries=())), "asked": asked}
    del facts["vocabulary"]["entries"]
    data = layout([string(FACTS, json.dumps(facts)), *vocabulary.entries], []).header
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = place / f"{key}-{sha256(data).hexdigest()}.gguf"
    partial = place / f"{secrets.token_hex(8)}{PARTIAL}"
    old = [*_entries(place, key)]
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _prune(place, [entry for entry in old if entry != path])
    return path


def _prune(place: Path, outdated: Sequence[Path]) -> None:
    """Remove what another answer made void, what has not been used for longest, and what killed runs left."""
    with suppress(OSError):
        for partial in place.glob("*" + PARTIAL):
            if time.time() - partial.stat().st_mtime > PATIENCE:
                partial.unlink(missing_ok=True)
        by_age = sorted(_entries(place), key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in {*outdated, *by_age[KEEP:]}:
            entry.unlink(missing_ok=True)
