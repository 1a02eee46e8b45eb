"""What a package keeps of ``compare --json`` and ``tune --json`` documents: which settings were best on what hardware.

Of every load and kind of prompt the fastest packaged file counts, and what it lost to, if anything.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_convert.engine.settings import FIELDS
from dflash_convert.errors import ConfigError, UsageError
from dflash_convert.jsonfile import MAX_JSON, parse_json, refuse_html
from dflash_convert.llama import NGRAMS
from dflash_convert.measure.speed import FASTER, Gain
from dflash_convert.named_file import read_named
from dflash_convert.text import short
from dflash_convert.validation.result import build

KINDS = ("comparison", "tuning")
SCHEMA = 1
HOW = "write it with: dflash-convert compare --json, or tune --json"
LIMIT = 300  # characters of a text
PLACES = ("threads", "spec-draft-device", "spec-draft-ngl")  # shown, but for that one machine alone
KNOWN = frozenset((*FIELDS, *PLACES))
RANGES = {  # of figures
    **dict.fromkeys(("speedup", "low", "high"), (0, 10**6)),
    **{"tokens_per_second": (0, 10**9), "mean_length": (1, 4097)},
}
VALUE = re.compile(r"[A-Za-z0-9_.]{1,32}", re.ASCII)


@dataclass(frozen=True)
class Contestant:
    """A candidate on one kind of work, as ``compare`` and ``tune`` write it; ``settings`` are llama-server's other
    options with their values."""

    name: str
    methods: tuple[str, ...]
    file: str | None
    n_max: int | None
    p_min: float | None
    best: bool
    tokens_per_second: float
    gain: Gain | None
    speedup: float | None
    low: float | None
    high: float | None
    mean_length: float | None
    settings: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Work:
    """One load or kind of prompt."""

    label: str
    winner: str
    candidates: tuple[Contestant, ...]


@dataclass(frozen=True)
class File:
    """A drafter that took part."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Contest:
    """One document; ``by_kind`` holds the same work by kind of prompt."""

    kind: str
    engine: str
    hardware: str
    files: tuple[File, ...]
    work: tuple[Work, ...]
    by_kind: tuple[Work, ...] = ()


@dataclass(frozen=True)
class BestSettings:
    """How a package's commands and preset run its files. ``file`` is the one to show (None: nobody measured);
    ``spec_type`` with the methods mixed in, ``extra`` llama-server's other options."""

    spec_type: str
    n_max: int | None
    p_min: float | None = None
    file: str | None = None
    extra: tuple[tuple[str, str], ...] = ()


def read_contest(path: Path) -> Contest:
    """ConfigError for anything that is no document of this schema."""
    read = read_named(path, MAX_JSON, "a result of compare or tune", HOW)
    refuse_html(read, path, HOW)
    data = parse_json(read, path.name, keep=_pairs)
    if data.get("kind") not in KINDS or data.get("schema") != SCHEMA:
        raise ConfigError(f"{path} is not a result of compare or tune", tip=HOW)
    if data["kind"] == "tuning":
        data = {**data, "work": [data.get("final")]}
    try:
        found = build(Contest, data)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a result of compare or tune: {error}", tip=HOW) from None
    _require_sane(path, found)
    return found


def _pairs(data: dict[str, Any]) -> dict[str, Any]:
    """An object whose ``settings`` are pairs, in the order of the file."""
    found = data.get("settings")
    return data | {"settings": list(found.items())} if isinstance(found, dict) else data


def _require_sane(path: Path, found: Contest) -> None:
    """Everything goes into a card that others read, and into commands that they run."""
    works = (*found.work, *found.by_kind)
    entries = [entry for work in works for entry in work.candidates]
    texts = [found.engine, found.hardware, *(e.name for e in entries)]
    texts += [text for work in works for text in (work.label, work.winner)]
    if not all(text.isprintable() and len(text) <= LIMIT for text in texts):
        long = f"is not one line of text of at most {LIMIT} characters"
        raise ConfigError(f"{path}: engine, hardware, a label or a name {long}", tip=HOW)
    for work in works:
        if work.winner not in [each.name for each in work.candidates]:
            raise ConfigError(f"{path}: {work.winner!r}, the winner of {work.label!r}, did not take part", tip=HOW)
    for entry in entries:
        mixed = entry.methods[1:] if entry.file else entry.methods
        if any(len(pair) != 2 or pair[0] not in KNOWN or not VALUE.fullmatch(pair[1]) for pair in entry.settings):
            raise ConfigError(f"{path}: {entry.name!r} has settings that no contest makes", tip=HOW)
        if not set(mixed) <= set(NGRAMS) or not 0 <= (entry.p_min or 0) < 1 or not 0 <= (entry.n_max or 0) <= 4096:
            raise ConfigError(f"{path}: {entry.name!r} has settings that llama.cpp does not know", tip=HOW)
        _require_figures(path, entry)


def _require_figures(path: Path, entry: Contestant) -> None:
    """Comparisons alone: they hold for no NaN, and no number is too large for them."""
    for name, (low, high) in RANGES.items():
        value = getattr(entry, name)
        if value is not None and not low <= value <= high:
            what = f"{name} of {entry.name!r} is {short(value)}, not a number from {low} to {high}"
            raise ConfigError(f"{path}: {what}", tip=HOW)
    spread = (entry.low, entry.speedup, entry.high)
    known = [value for value in spread if value is not None]
    if len(known) not in (0, len(spread)) or known != sorted(known):
        raise ConfigError(f"{path}: the speedup of {entry.name!r} does not lie between its low and its high", tip=HOW)


def contest_summary(path: Path, names: Mapping[str, str], most: int | None) -> dict[str, Any]:
    """The manifest's entry. ``names``: SHA-256 of each packaged file to its name in the package; ``most`` tokens a
    block drafts. UsageError when no packaged file took part."""
    found = read_contest(path)
    packaged = {file.path: names[file.sha256] for file in found.files if file.sha256 in names}
    works = (*found.work, *found.by_kind)
    rows = [row for work in works if (row := _row(work, packaged)) is not None]
    if not rows:
        raise UsageError(
            f"none of the drafters that {path} compares has the bytes of a file of this package",
            tip="compare the packaged files and give that result",
        )
    if most is not None and any((row["n_max"] or 0) > most for row in rows):
        raise ConfigError(f"{path}: a draft length is above the {most} tokens that a block drafts", tip=HOW)
    return {"kind": found.kind, "engine": found.engine, "hardware": found.hardware, "rows": rows}


def _row(work: Work, packaged: Mapping[str, str]) -> dict[str, Any] | None:
    own = [each for each in work.candidates if each.file in packaged]
    if not own:
        return None
    top = next((each for each in own if each.name == work.winner), None)
    top = top or max(own, key=lambda each: (each.best, each.tokens_per_second))
    kept = {name: value for name, value in dataclasses.asdict(top).items() if name not in ("name", "file", "methods")}
    kept["mixed"] = list(top.methods[1:])
    return {"label": work.label, "file": packaged[str(top.file)], **kept, "winner": _winner(work, top, packaged)}


def _winner(work: Work, top: Contestant, packaged: Mapping[str, str]) -> str | None:
    """What to take instead of ``top``; None when that is the best."""
    winner = next((each for each in work.candidates if each.name == work.winner), None)
    if winner is None or winner is top:
        return None
    return packaged.get(winner.file or "") or ("no drafter" if not winner.methods else winner.name[:LIMIT])


def settings_of(spec_type: str, n_max: int | None, contests: Sequence[Mapping[str, Any]]) -> BestSettings:
    """Those of the first load of the first contest; without one a first guess."""
    if not contests:
        return BestSettings(spec_type, n_max)
    first = contests[0]["rows"][0]
    extra = tuple((name, value) for name, value in first["settings"] if name not in PLACES)
    methods = ",".join((spec_type, *first["mixed"]))
    return BestSettings(methods, first["n_max"] or n_max, first["p_min"], first["file"], extra)


def row_settings(row: Mapping[str, Any]) -> str:
    """``n-max 4, p-min 0.5, with ngram-mod``."""
    parts = [f"n-max {row['n_max']}"] if row["n_max"] else []
    parts += [f"p-min {row['p_min']:g}"] if row["p_min"] else []
    parts += [f"with {', '.join(row['mixed'])}"] if row["mixed"] else []
    parts += [f"{name} {value}" for name, value in row["settings"]]
    return ", ".join(parts) or "as it is"


def row_advice(row: Mapping[str, Any]) -> str:
    """What the measurement says of the file, in a few words."""
    if row["winner"] is None and row["gain"] == FASTER:
        return "the best here"
    if row["winner"] in (None, "no drafter"):
        return "no gain: run the target alone" if row["gain"] != FASTER else "a simpler way is as fast: no drafter"
    return f"{row['winner']} was the better choice"
