"""JSON and text out of untrusted files: bounded before it is parsed, and strict about what it says."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_convert.errors import ConfigError, InputError

MAX_JSON = 64_000_000  # bytes; gpt-oss' tokenizer.json has 28 MB
# lists, objects and commas, which bound what parsing allocates; Gemma 4's tokenizer.json has 1.8 million
MAX_ITEMS = 4_000_000
LFS = b"version https://git-lfs.github.com/spec/"
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ConfigError for anything else, for repeated keys and deep nesting."""
    return parse_json(read_bounded(path, MAX_JSON), path.name)


def read_bounded(path: Path, limit: int) -> bytes:
    """A file of at most ``limit`` bytes, of which no more than one beyond are read whatever its size is said to be;
    ConfigError for a longer one and for what is no regular file."""
    try:
        # not blocking: opening a pipe would wait for its other end
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: not a regular file")
            size = status.st_size
            data = file.read(size + 1) if size <= limit else b""  # reading allocates what it asks for
            if size < len(data) <= limit:  # it grows, or has no size, as those of /proc
                data += file.read(limit + 1 - len(data))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if max(size, len(data)) > limit:
        raise ConfigError(f"{path}: larger than {limit // 1_000_000} MB")
    return data


def parse_toml(text: str) -> dict[str, Any]:
    """A TOML document; ValueError for anything else."""
    if sys.version_info >= (3, 11):  # a few milliseconds that most runs need not spend
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def parse_json(
    data: bytes,
    name: str,
    *,
    refuse: type[InputError] = ConfigError,
    max_items: int = MAX_ITEMS,
    strict: bool = True,
    keep: Callable[[dict[str, Any]], Any] | None = None,
) -> dict[str, Any]:
    """The JSON object in ``data``, always UTF-8; ``refuse`` names ``name`` and the defect.

    NaN and the infinities, which JSON forbids and exporters write, are read as numbers: whoever needs one as a number
    refuses it.  ``strict=False`` admits repeated keys (the last one counts), as tokenizer libraries do.
    ``keep`` turns every strictly read object into what is kept of it, the innermost first.
    """

    def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            twice, _ = Counter(key for key, _ in items).most_common(1)[0]
            raise refuse(f"{name}: key {twice!r} occurs twice")
        return result if keep is None else keep(result)

    if sum(map(data.count, (b"{", b"[", b","))) > max_items:
        raise refuse(f"{name}: more than {max_items:,} items")
    pointer, escapes = data.startswith(LFS), escapes_surrogates(data)
    try:
        text = text_of(data)
        del data  # as large as what is parsed beside it, and no caller keeps it
        value = json.loads(text, object_pairs_hook=unique if strict else None)
    except UnicodeDecodeError:
        raise refuse(f"{name}: not UTF-8 text") from None
    except RecursionError:
        raise refuse(f"{name}: nested too deeply") from None
    except ValueError as error:
        tip = "a Git LFS pointer, not the file: run git lfs pull" if pointer else None
        raise refuse(f"{name}: not valid JSON ({defect(error)})", tip=tip) from None
    if not isinstance(value, dict):
        raise refuse(f"{name}: a JSON object was expected, found {type(value).__name__}")
    if escapes and has_lone_surrogate(value):
        raise refuse(f"{name}: contains an unpaired surrogate")
    return value


def parse_result(data: bytes, path: Path, how: str) -> Any:
    """What ``data``, a result that a command wrote to ``path``, holds; ConfigError for an HTML report in its place and
    for what is no JSON. ``how`` says how such a file is written."""
    refuse_html(data, path, how)
    try:
        return json.loads(text_of(data))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {defect(error)}", tip=how) from None


def refuse_html(data: bytes, path: Path, how: str) -> None:
    """ConfigError for a report's page where its figures belong."""
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        raise ConfigError(f"{path} is an HTML report, not JSON", tip=how)


def defect(error: ValueError | RecursionError) -> str:
    """Why a document cannot be parsed, for people."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def text_of(data: bytes) -> str:
    """UTF-8 text of a person's or exporter's file, without the byte order mark that some editors put first;
    UnicodeDecodeError for anything else."""
    return data.decode("utf-8-sig")


def escapes_surrogates(data: bytes) -> bool:
    """Whether a JSON document may hold one: they come as escapes only, because UTF-8 has none."""
    return SURROGATE.search(data) is not None


def has_lone_surrogate(value: Any) -> bool:
    """Whether a text in what was parsed holds a lone surrogate, which no file can hold as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return True
    return False
