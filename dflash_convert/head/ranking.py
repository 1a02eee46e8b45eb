"""Which tokens a reduced head should keep: counted on the target's own output or on text, judged on a held-out part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_convert.engine.trace import Trace
from dflash_convert.errors import ConfigError, UsageError
from dflash_convert.jsonfile import parse_json, refuse_html, text_of
from dflash_convert.named_file import read_named
from dflash_convert.text import shorten
from dflash_convert.validation import reference, result

Ids = NDArray[np.int64]
Counts = NDArray[np.int64]
Tokenize = Callable[[str], Sequence[int]]

HELD_OUT = 4  # every fourth part judges and does not rank
CHUNK = 2000  # characters of a text that are one part
MAX_TEXT = 1 << 30
COUNTS = "give counts as they were seen, or ids alone, best first"
HOW = "store a run with: dflash-convert validate DRAFTER.gguf TARGET.gguf --save RUN.json"


@dataclass(frozen=True)
class Ranking:
    """``counts`` int64 [vocabulary]: how often each token was seen. ``sample``: what ranks when the rest judges;
    ``held_out``: per kind of text the counts that judge, empty for a ranking made elsewhere.

    ``source`` and ``digest`` (SHA-256) say where it comes from; ``curve``: acceptance by position of the run, when
    it is one.
    """

    source: str
    digest: str
    counts: Counts = field(repr=False)
    sample: Counts = field(repr=False)
    held_out: dict[str, Counts] = field(repr=False)
    curve: tuple[float, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """``share`` of held-out tokens that are kept, over all kinds and ``by_kind``; ``tokens`` held out."""

    share: float
    by_kind: dict[str, float]
    tokens: int


def order(counts: Counts, kept: Ids) -> Ids:
    """All ids, best first: those always kept, then by falling count, equal counts by id."""
    first = np.zeros(counts.size, dtype=bool)
    first[kept] = True
    return np.lexsort((np.arange(counts.size), -counts, ~first)).astype(np.int64)


def coverage(ids: Ids, held_out: dict[str, Counts]) -> Coverage | None:
    """None where nothing was held out."""
    total = sum(int(counts.sum()) for counts in held_out.values())
    if not total:
        return None
    by_kind = {k: float(c[ids].sum() / c.sum()) for k, c in held_out.items() if c.sum()}
    return Coverage(sum(int(c[ids].sum()) for c in held_out.values()) / total, by_kind, total)


def rows_for(ranked: Ids, held_out: dict[str, Counts], share: float) -> int | None:
    """The fewest rows of ``ranked`` that cover ``share`` of what was held out; None when all rows do not."""
    together = np.sum(list(held_out.values()), axis=0)
    covered = np.cumsum(together[ranked])
    need = share * together.sum()
    at = int(np.searchsorted(covered, need - 1e-9))
    return at + 1 if at < ranked.size else None


def predicted_length(curve: Sequence[float], share: float) -> float | None:
    """Mean accepted length when each token is missing from the head with the held-out rate, independently.

    The draft at position i is kept if the drafter had it right (``curve``) and all tokens up to it are in the head.
    """
    return 1 + sum(kept * share**i for i, kept in enumerate(curve, 1)) if curve else None


# --- where rankings come from -----------------------------------------------------------------------------------


def from_parts(
    source: str, digest: str, parts: Iterable[tuple[str, Sequence[int]]], size: int, curve: tuple[float, ...] = ()
) -> Ranking:
    """``parts``: (kind of text, token ids); every HELD_OUT-th part of a kind judges."""
    counts, sample = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    held: dict[str, Counts] = {}
    number: dict[str, int] = {}
    for kind, tokens in parts:
        lowest, highest = (min(tokens), max(tokens)) if len(tokens) else (0, 0)
        if lowest < 0:
            raise ConfigError(f"{source}: token {shorten(str(lowest))} is negative", tip="the file is damaged")
        if highest >= size:  # before numpy, whose integers end somewhere
            raise _beyond(source, highest, size)
        ids = np.asarray(tokens, dtype=np.int64)
        found = np.bincount(ids, minlength=size).astype(np.int64)
        counts += found
        number[kind] = number.get(kind, 0) + 1
        if number[kind] % HELD_OUT:
            sample += found
        else:
            held[kind] = held.get(kind, 0) + found
    if not counts.any():
        raise UsageError(f"no token in {source}", tip="give a run or texts of the kind that will be generated")
    return Ranking(source, digest, counts, sample, held, curve)


def _beyond(where: str, token: int, size: int) -> ConfigError:
    return ConfigError(
        f"{where}: token {shorten(str(token))} is beyond the drafter's vocabulary of {size}",
        tip="the ranking was made for another target's tokenizer",
    )


def from_run(path: Path, size: int) -> Ranking:
    """A validation's JSON, a stored reference or a run that ``compare`` has kept: the target's own answers, the best
    ranking there is."""
    data = read_named(path, reference.MAX_BYTES, "a kept run", HOW)
    refuse_html(data, path, HOW)
    document = parse_json(data, str(path), max_items=reference.MAX_ITEMS)
    curve: tuple[float, ...] = ()
    if document.get("kind") == reference.KIND:
        prompts = [(p.set, p.tokens) for p in reference.load(path).prompts]
    elif "traces" in document:
        traces = _traces(document["traces"], path)
        prompts = [("answers", trace.tokens) for trace in traces]
        curve = _measured(traces, path)
    elif document.get("kind") in ("comparison", "tuning"):
        raise ConfigError(
            f"{path} holds the figures of a contest and no answers",
            tip="compare and tune keep the answers in --keep DIR: give one of the files there",
        )
    else:
        run = result.from_json(document, str(path))
        prompts = [(p.set, p.tokens) for p in run.prompts]
        curve = run.total.acceptance_by_position or ()
    if not all(0 <= share <= 1 for share in curve):  # nan neither
        raise ConfigError(f"{path} is damaged: acceptance by position is no share from 0 to 1")
    if not any(tokens for _, tokens in prompts):
        raise ConfigError(f"{path} holds no token ids", tip=HOW)
    return from_parts(f"the answers in {path}", sha256(data).hexdigest(), prompts, size, curve)


def _traces(stored: Any, path: Path) -> list[Trace]:
    try:
        return [result.build(Trace, each) for each in stored]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from None


def _measured(traces: Sequence[Trace], path: Path) -> tuple[float, ...]:
    try:
        return result.figures(traces).acceptance_by_position or ()
    except ArithmeticError as error:  # counts that no float holds
        raise ConfigError(f"{path} is damaged: {error}") from None


def from_text(paths: Sequence[Path], tokenize: Tokenize, size: int) -> Ranking:
    """Text files, each a kind of its own, through the target's tokenizer."""
    digest = sha256()
    parts: list[tuple[str, Sequence[int]]] = []
    for path in paths:
        data = read_named(path, MAX_TEXT, "a text")
        digest.update(data)
        try:
            text = text_of(data)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from None
        parts += [(path.stem, tokenize(part)) for part in _chunks(text)]
    return from_parts(", ".join(path.name for path in paths), digest.hexdigest(), parts, size)


def _chunks(text: str) -> Iterable[str]:
    """Parts of about CHUNK characters that end at line ends where there are any."""
    part: list[str] = []
    length = 0
    for line in text.splitlines(keepends=True):
        for at in range(0, len(line), CHUNK):
            part.append(line[at : at + CHUNK])
            length += len(part[-1])
            if length >= CHUNK:
                yield "".join(part)
                part, length = [], 0
    if part:
        yield "".join(part)


def from_file(path: Path, size: int) -> Ranking:
    """A ranking made elsewhere: a token id a line, best first, or an id and its count."""
    data = read_named(path, MAX_TEXT, "a ranking")
    counts = np.zeros(size, dtype=np.int64)
    seen: set[int] = set()
    lines = [line.split() for line in data.decode("utf-8-sig", "replace").splitlines() if line.strip()]
    for number, words in enumerate(lines, 1):
        if len(words) > 2 or not all(word.isascii() and word.isdecimal() and len(word) < 16 for word in words):
            raise ConfigError(f"{path}, line {number}: expected a token id, or an id and its count")
        if len(words) != len(lines[0]):
            one, other = ("a", "none") if len(words) == 2 else ("no", "one")
            raise ConfigError(f"{path}, line {number}: {one} count, where line 1 has {other}")
        token = int(words[0])
        if token >= size:
            raise _beyond(f"{path}, line {number}", token, size)
        if token in seen:
            raise ConfigError(f"{path}, line {number}: token {token} occurs twice")
        seen.add(token)
        counts[token] = int(words[1]) if len(words) == 2 else len(lines) - number + 1
    if not lines:
        raise UsageError(f"{path} holds no token")
    if not counts.any():
        raise UsageError(f"{path}: every count is 0, so no token is better than another", tip=COUNTS)
    return Ranking(path.name, sha256(data).hexdigest(), counts, counts, {})
