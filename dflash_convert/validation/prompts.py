"""Prompts: the bundled sets, and JSON-lines files of the user.

One object a line: ``{"prompt": text}`` (sent as it is), ``{"messages": [...]}`` (a chat, put into the target's
template by the engine) or ``{"turns": [text, ...]}`` (a conversation: each turn is one request that sees the
answers to the turns before). ``n_predict``, ``name`` (else the first words) and ``set`` (the kind of prompt, else the
name of the file) are optional.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from dflash_convert.errors import ConfigError, UsageError
from dflash_convert.jsonfile import escapes_surrogates, has_lone_surrogate, text_of
from dflash_convert.named_file import read_named
from dflash_convert.text import shorten

SETS = ("code", "javascript", "prose", "reasoning")  # what is run unless others are named
BUNDLED = (*SETS, "chat")
N_PREDICT = 256
MAX_N_PREDICT = 1 << 20
MAX_FILE = 256 << 20  # bytes; prompts may hold pictures
NAME = 30  # characters of a name made of first words
FORMS = ("prompt", "messages", "turns")
EXAMPLE = 'one object a line: {"prompt": "…", "n_predict": 128}, or "messages", or "turns"'


@dataclass(frozen=True)
class Item:
    """One line of a prompt file; exactly one of ``prompt``, ``messages`` and ``turns`` is set."""

    name: str
    set: str
    n_predict: int
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    turns: tuple[str, ...] = ()


def bundled(names: Iterable[str], n_predict: int | None = None) -> tuple[Item, ...]:
    """The prompts of bundled sets, in the order of ``names``."""
    items: list[Item] = []
    for name in names:
        if name not in BUNDLED:
            raise UsageError(f"there is no bundled prompt set {name}", tip=f"sets: {', '.join(BUNDLED)}")
        text = (resources.files("dflash_convert.prompts") / f"{name}.jsonl").read_text("utf-8")
        items += parse(text, name, name, n_predict)
    return tuple(items)


def read(path: Path, n_predict: int | None = None) -> tuple[Item, ...]:
    """The prompts of a file. Raises :class:`ConfigError` that names file and line."""
    data = read_named(path, MAX_FILE, "a file of prompts", f"--prompts takes {EXAMPLE}")
    try:
        text = text_of(data)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", tip=f"--prompts takes {EXAMPLE}") from None
    return parse(text, str(path), path.stem, n_predict)


def parse(text: str, source: str, set_name: str, n_predict: int | None = None) -> tuple[Item, ...]:
    items: list[Item] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            item = _item(line, f"{source}, line {number}", set_name, len(items) + 1, n_predict)
            taken = any(item.name == other.name for other in items)
            items.append(replace(item, name=f"{item.name} ({number})") if taken else item)
    if not items:
        raise ConfigError(f"{source} holds no prompt", tip=f"--prompts takes {EXAMPLE}")
    return tuple(items)


def _item(line: str, where: str, set_name: str, number: int, n_predict: int | None) -> Item:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}", tip=EXAMPLE) from None
    if escapes_surrogates(line.encode()) and has_lone_surrogate(data):
        raise ConfigError(
            f"{where}: contains an unpaired surrogate, which is no character",
            tip="write the character itself, or both halves of the pair",
        )
    given = [form for form in FORMS if isinstance(data, dict) and form in data]
    if len(given) != 1:
        raise ConfigError(f"{where} needs exactly one of {', '.join(FORMS)}", tip=EXAMPLE)
    count = n_predict or data.get("n_predict", N_PREDICT)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_N_PREDICT:
        raise ConfigError(f"{where}: n_predict must be a whole number from 1 to {MAX_N_PREDICT}, not {count!r}")
    set_name = data.get("set", set_name)
    if not isinstance(set_name, str) or not set_name:
        raise ConfigError(f"{where}: set must be text, not {set_name!r}", tip='the kind of prompt, for example "prose"')
    value = data[given[0]]
    name = str(data.get("name") or _first_words(value) or f"{set_name} {number}")
    if given[0] == "prompt":
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{where}: prompt must be text")
        return Item(name, set_name, count, prompt=value)
    if given[0] == "messages":
        return Item(name, set_name, count, messages=_messages(value, where))
    if not isinstance(value, list) or not value or not all(isinstance(t, str) and t for t in value):
        raise ConfigError(f"{where}: turns must be a list of texts")
    return Item(name, set_name, count, turns=tuple(value))


def _first_words(value: Any) -> str:
    """Of a text, of a conversation's first turn, or of the last message of a chat; nothing where there are none."""
    if isinstance(value, list) and value:
        value = value[-1].get("content") if isinstance(value[-1], dict) else value[0]
    if isinstance(value, list):  # an image beside its question
        value = next((part.get("text") for part in value if isinstance(part, dict) and part.get("text")), "")
    return shorten(" ".join(value.split()), NAME) if isinstance(value, str) else ""


def _messages(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    usable = isinstance(value, list) and bool(value)
    if not usable or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value):
        raise ConfigError(f"{where}: messages must be a list of objects with role and content")
    return tuple(value)
