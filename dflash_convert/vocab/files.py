"""Reading the target's tokenizer files: bounded, and with one sentence for every way they can be bad."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflash_convert.errors import ConfigError, TokenizerError
from dflash_convert.jsonfile import LFS, parse_json, read_bounded, text_of
from dflash_convert.notes import Note
from dflash_convert.text import named

MAX_BYTES = 128 << 20  # the largest tokenizer.json in the field is 35 MB
MAX_ITEMS = 8_000_000  # lists, objects and commas, which bound what parsing allocates; Gemma 4's has 1.8 million
EXPECTED = "tokenizer.json, tokenizer.model, tekken.json, *.tiktoken, tiktoken.model, or vocab.json with merges.txt"


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without the cyclic collector a 500,000-element JSON parses twice as fast; nothing cyclic is built."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def left_out(notes: list[Note]) -> Iterator[None]:
    """A side file inside that cannot be used is left out with a warning; a disk that fails still stops the run."""
    try:
        yield
    except TokenizerError as error:
        if isinstance(error.__cause__, OSError):
            raise
        notes.append(Note("warning", f"{error}; left out"))


class TokenizerFiles:
    """The files of one target directory; remembers the SHA-256 of each file it has read.

    ``asked`` lists every question about the directory, with its answer: (has, read or glob; name; answer).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hashes: dict[str, str] = {}
        self.asked: list[tuple[str, str, Any]] = []
        if not directory.is_dir():
            raise TokenizerError(f"{directory}: the target directory does not exist")

    def answer(self, kind: str, name: str) -> Any:
        """The answer of today to a question of ``asked``."""
        if kind == "read":
            self.read(name)
        elif kind == "has":
            self.has(name)
        else:
            self.glob(name)
        return self.asked[-1][2]

    def has(self, name: str) -> bool:
        found = (self.directory / name).is_file()
        self.asked.append(("has", name, found))
        return found

    def names(self, limit: int = 12) -> str:
        """What the directory holds, for a message."""
        found = sorted(entry.name for entry in self.directory.iterdir())
        return named(found, limit, None) or "nothing"

    def glob(self, pattern: str) -> list[Path]:
        found = sorted(path for path in self.directory.glob(pattern) if path.is_file())
        self.asked.append(("glob", pattern, [path.name for path in found]))
        return found

    def read(self, name: str) -> bytes:
        """The whole file; refuses files that are far too large and Git LFS pointers."""
        path = self.directory / name
        try:
            data = read_bounded(path, MAX_BYTES)
        except ConfigError as error:
            raise TokenizerError(str(error)) from error.__cause__
        if data.startswith(LFS):
            raise TokenizerError(
                f"{path}: a Git LFS pointer, not the file itself", tip="Fetch the file (git lfs pull) and try again."
            )
        self.hashes[name] = hashlib.sha256(data).hexdigest()
        self.asked.append(("read", name, self.hashes[name]))
        return data

    def text(self, name: str) -> str:
        try:
            return text_of(self.read(name))
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{self.directory / name}: not UTF-8 at byte {error.start}") from None

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object, or a TokenizerError; always UTF-8, whatever the locale says."""
        where = str(self.directory / name)
        with collector_paused():
            return parse_json(self.read(name), where, refuse=TokenizerError, max_items=MAX_ITEMS, strict=False)

    def optional_json(self, name: str) -> dict[str, Any]:
        return self.json(name) if self.has(name) else {}

    def side_json(self, name: str, notes: list[Note]) -> dict[str, Any]:
        """As :meth:`optional_json`; a damaged file is left out with a warning, because the model does without it."""
        with left_out(notes):
            return self.optional_json(name)
        return {}


def content(entry: object) -> str | None:
    """The text of a token written as a string or as an AddedToken object."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, Mapping):
        text = entry.get("content")
        return text if isinstance(text, str) else None
    return None


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
