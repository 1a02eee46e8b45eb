"""The written vocabulary tried in llama.cpp beside all other work, and remembered where it passed.

A trial depends on nothing but the vocabulary's keys, the tokenizer's file, the engine, the library, the probe texts and
this program's code. One that passed need not be repeated while all of them stay the same: loading 262k tokens in two
libraries takes longer than a conversion. Only large vocabularies are remembered (see :mod:`dflash_convert.usercache`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import util
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert import usercache
from dflash_convert.container.types import array_length
from dflash_convert.container.writer import layout
from dflash_convert.engine import embedded
from dflash_convert.errors import DflashError, EngineError, TokenizerError
from dflash_convert.hashing import sha256_of
from dflash_convert.notes import Note
from dflash_convert.processes import Json, Workers
from dflash_convert.system import can_share
from dflash_convert.verification.vocabulary import PROBES, probe_texts, round_trip, tokenizer_file, vocabulary_keys
from dflash_convert.vocab.load import LARGE

if TYPE_CHECKING:
    from dflash_convert.engine.trace import EngineInfo

SUFFIX = ".trial"
KEEP = 64  # entries of a hundred bytes
SAID = "llama.cpp splits {count} probe texts as the target's tokenizer does"
BEFORE = " (tried earlier: same vocabulary, tokenizer and engine)"


@dataclass(frozen=True)
class Tried:
    """What ids that differ say; an explained difference is only noted."""

    differences: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()

    def json(self) -> Json:
        return {"differences": self.differences, "notes": self.notes}


def tried_from_json(data: Json) -> Tried:
    return Tried(tuple(data["differences"]), tuple(Note(*note) for note in data["notes"]))


def tried(gguf: Path, target: Path | None, scratch: Path | None = None) -> Tried:
    """The file's vocabulary in the embedded engine against the tokenizer library of the directory ``target``.

    Ids that differ are differences, unless a known limit of llama.cpp explains them; without an engine a note says that
    nothing was run, and so it does for a file without a vocabulary and for a target whose tokenizer no library reads
    (a GGUF without a directory, a directory with ranks alone).
    """
    if target is None:
        text = "the vocabulary was not tried against the target's own tokenizer: a GGUF brings none"
        return Tried(notes=(Note("info", text),))
    engine = embedded.info()
    if engine is None:
        return Tried(notes=(_not_tried("no embedded engine is installed", "info"),))
    texts = probe_texts(PROBES)
    try:
        key = _key(gguf, target, texts, engine)
    except TokenizerError as error:
        return Tried(notes=(_not_tried(str(error), "warning"),))
    limits = _recall(key)
    if limits is not None:
        return Tried(notes=_notes(limits, len(texts), BEFORE))
    try:
        found = round_trip(gguf, target, texts, engine, scratch)
    except EngineError as error:
        return Tried(notes=(_not_tried(str(error), "warning"),))
    wrong = tuple(f"llama.cpp splits {one}" for one in found if one.limit is None)
    limits = sorted({one.limit for one in found if one.limit is not None})
    if not wrong and key is not None and _still(key, gguf, target, texts, engine):
        _keep(key, limits)
    return Tried(wrong, () if wrong and not limits else _notes(limits, len(texts)))


def _not_tried(why: str, kind: Any) -> Note:
    return Note(kind, f"the vocabulary was not tried in llama.cpp: {why}")


def _notes(limits: Iterable[str], count: int, how: str = "") -> tuple[Note, ...]:
    notes = [Note("info", f"llama.cpp splits some probe texts differently: {limit}{how}") for limit in limits]
    return tuple(notes or [Note("info", SAID.format(count=count) + how)])


def _key(gguf: Path, target: Path, texts: Sequence[str], engine: EngineInfo) -> str | None:
    """Stands for all that a trial depends on; None for a small vocabulary, which is tried each time."""
    keys = vocabulary_keys(gguf)
    file = tokenizer_file(target)
    if max(array_length(kv.value) for kv in keys) < LARGE or usercache.directory() is None:
        return None
    package = Path(__file__).parent.parent
    code = usercache.code_of(package / name for name in (".", "container", "engine", "verification", "vocab"))
    libraries = [version(name) for name in ("tokenizers", "sentencepiece")]
    written = sha256(layout(keys, []).header).hexdigest()
    asked = [written, file.name, sha256_of(file), engine.build, _binary(), libraries, list(texts), code]
    return usercache.key_of(asked)


def _still(key: str, gguf: Path, target: Path, texts: Sequence[str], engine: EngineInfo) -> bool:
    """Whether what was tried is what the key was made of: a file may have changed between its hash and its use."""
    with suppress(OSError, DflashError):
        return _key(gguf, target, texts, engine) == key
    return False


def _binary() -> list[Any]:
    """The engine's files, as they would change with another build of the same version."""
    spec = util.find_spec(embedded.PACKAGE)
    places = (spec.submodule_search_locations or []) if spec else []
    files = sorted(file for place in places for file in Path(place).iterdir() if file.is_file())
    return [(file.name, (status := file.stat()).st_size, status.st_mtime_ns) for file in files]


def _recall(key: str | None) -> list[str] | None:
    """The limits that an earlier trial met; None when none has passed."""
    place = usercache.directory()
    if key is None or place is None:
        return None
    with suppress(OSError):
        for path in usercache.entries(place, SUFFIX, key):
            with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
                passed = json.loads(usercache.read(path))
                if passed["key"] == key:
                    usercache.used(path)
                    return [str(limit) for limit in passed["limits"]]
    return None


def _keep(key: str, limits: Sequence[str]) -> None:
    place = usercache.directory()
    if place is not None:
        with suppress(OSError):
            usercache.store(place, key, json.dumps({"key": key, "limits": limits}).encode(), SUFFIX, KEEP)


class Trial:
    """:func:`tried` from when the block begins, in a process of its own; nothing of it is left when the block ends."""

    def __init__(self, gguf: Path, target: Path | None) -> None:
        self._task = {"gguf": str(gguf), "target": str(target) if target else None}
        self._stack = ExitStack()
        self._result: Future[Tried] = Future()

    def __enter__(self) -> Trial:
        with ExitStack() as stack:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dflash-verify-"))
            aside = stack.enter_context(ThreadPoolExecutor(1))
            task = {**self._task, "scratch": scratch}
            if can_share() and self._task["target"] and embedded.info() is not None:
                self._result = aside.submit(_apart, stack.enter_context(Workers("verification.trial_worker", 1)), task)
            else:
                self._result = aside.submit(work, task)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def result(self) -> Tried:
        """Waits for it; raises what :func:`tried` raises."""
        return self._result.result()


def work(task: Json) -> Tried:
    target = Path(task["target"]) if task["target"] else None
    return tried(Path(task["gguf"]), target, Path(task["scratch"]))


def _apart(worker: Workers, task: Json) -> Tried:
    found: list[Json] = []
    worker.exchange([task], [], lambda _, reply: found.append(reply))
    return tried_from_json(found[0])
