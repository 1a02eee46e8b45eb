"""Vocabularies that were read before, in the user's cache: a large tokenizer.json takes half a second to read.

An entry (see :mod:`dflash_convert.usercache`) is a GGUF without tensors: the ``tokenizer.*`` keys as they go into a
drafter's file, and one key with everything else. Its key stands for directory, options and this program's own code.
Inside are the questions that reading asked of the target's directory, with the answers' hashes; they are asked again,
and one other answer makes the entry void.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dflash_convert import usercache
from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import string
from dflash_convert.container.writer import layout
from dflash_convert.errors import ContainerError, TokenizerError
from dflash_convert.notes import Note
from dflash_convert.vocab.files import TokenizerFiles
from dflash_convert.vocab.types import Vocabulary

SUFFIX = ".gguf"
KEEP = 16  # entries of 6 to 16 MB
FACTS = "dflash_convert.cache"
# what an entry raises that is none
UNUSABLE = (OSError, ContainerError, TokenizerError, ValueError, TypeError, KeyError, RecursionError)


def remembered(files: TokenizerFiles, options: Sequence[Any], load: Callable[[], Vocabulary]) -> Vocabulary:
    """What ``load`` returns for ``files`` and ``options``, from the cache when it is there."""
    place = usercache.directory()
    if place is None:
        return load()
    key = usercache.key_of([str(files.directory.absolute()), *options, _code()])
    found = _recall(place, key, files.directory)
    if found is not None:
        return found
    vocabulary = load()
    with suppress(*UNUSABLE):
        return _read(_store(place, key, vocabulary, files.asked))[0]
    return vocabulary


@lru_cache(maxsize=1)
def _code() -> str:
    """The hash of what turns files into keys: this package, what it imports, the tokenizers library."""
    package = Path(__file__).parent
    return usercache.code_of((package.parent, package, package.parent / "container"), version("tokenizers"))


def _recall(place: Path, key: str, target: Path) -> Vocabulary | None:
    with suppress(OSError):
        for path in usercache.entries(place, SUFFIX, key):
            with suppress(*UNUSABLE):
                vocabulary, asked = _read(path)
                if _still_true(asked, target):
                    usercache.used(path)
                    return vocabulary
    return None


def _still_true(asked: Any, target: Path) -> bool:
    files = TokenizerFiles(target)
    return all(files.answer(kind, name) == answer for kind, name, answer in asked)


def _read(path: Path) -> tuple[Vocabulary, Any]:
    """An entry's vocabulary and questions; one of UNUSABLE when it is not the user's own or not what its name says."""
    data = usercache.read(path)
    gguf = Gguf(path, memoryview(data), len(data))
    facts = json.loads(gguf.keys.pop(FACTS).value)
    notes = tuple(Note(*note) for note in facts["vocabulary"].pop("notes"))
    return Vocabulary(**facts["vocabulary"], notes=notes, entries=tuple(gguf.keys.values())), facts["asked"]


def _store(place: Path, key: str, vocabulary: Vocabulary, asked: Any) -> Path:
    facts = {"vocabulary": asdict(replace(vocabulary, entries=())), "asked": asked}
    del facts["vocabulary"]["entries"]
    data = layout([string(FACTS, json.dumps(facts)), *vocabulary.entries], []).header
    return usercache.store(place, key, data, SUFFIX, KEEP)
