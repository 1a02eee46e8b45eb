"""``release.toml``: many pairs and types, as independent jobs.

::

    out = "out/release"                 # relative to this file
    types = ["Q8_0", "Q4_0"]            # what every pair gets, unless it says otherwise

    [[pair]]
    name = "tiny-js"                    # directory name; default: the target's name
    drafter = "fixtures/tiny-js/drafter"        # a directory (relative to this file) or a Hub id
    target = "fixtures/tiny-js/target"          # a directory, a GGUF or a Hub id
    target_gguf = "fixtures/tiny-js/target-bf16.gguf"   # then the pair is validated

Other keys of a pair, each allowed at the top for all pairs: ``target_name``, ``model_name``, ``pre``, ``license``,
``repo`` (where it will be published), ``drafter_repo``, ``target_repo``, ``n_max``, ``prompts``, ``min_acceptance``,
``min_mean_length``, ``llama_server``, ``fidelity`` (true: verify compares by the numpy forward too, and drafts where
``target_gguf`` is a small Qwen3-type model) and ``package_target`` (the target GGUF that the card names, when it is not
``target_gguf``). Thresholds, ``validate``, ``prompts`` and ``llama_server`` are of a validation: without a
``target_gguf`` they are a mistake, but ``prompts`` and ``llama_server`` at the top are for the pairs that have one.

``convert`` and ``validate`` hold any other option of these commands, as a table by the options' names::

    convert = { taps = "1,9,17", pure = true, tensor-type = ["ffn_down=q6_k", "attn_v=q6_k"] }

A list of arguments (``["--pure"]``) will do too. Paths in them are the command line's, from the working directory; all
other places are looked up from this file's directory alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dflash_convert.errors import ConfigError, UsageError
from dflash_convert.jsonfile import parse_toml, text_of
from dflash_convert.named_file import read_named, undecodable
from dflash_convert.naming import MAX_NAME, check_target_name
from dflash_convert.release.manifest import plain_name as is_plain
from dflash_convert.target import plain_name
from dflash_convert.text import short, shorten

MAX_FILE = 1 << 20  # bytes of a release.toml
MAX_DEPTH = 8  # tables and lists in each other; an option's list of values is the fifth
TEXTS = ("target_name", "model_name", "pre", "license", "drafter_repo", "target_repo", "package_target", "repo")
PLACES = ("target_gguf", "prompts", "llama_server")
RUN = ("prompts", "llama_server")  # of a validation alone; at the top they are for the pairs that have one
RANGES = {"min_acceptance": (0.0, 1.0), "min_mean_length": (1.0, 1e9)}
COMMON = (*TEXTS, *PLACES, *RANGES, "n_max", "types", "convert", "validate", "fidelity")
OWN = ("name", "drafter", "target")


@dataclass(frozen=True)
class Pair:
    """One drafter and its target. Places are absolute paths, or Hub ids as written."""

    name: str
    drafter: str
    target: str
    types: tuple[str, ...]
    target_name: str | None = None
    model_name: str | None = None
    pre: str | None = None
    license: str | None = None
    drafter_repo: str | None = None
    target_repo: str | None = None
    package_target: str | None = None
    repo: str | None = None
    target_gguf: str | None = None
    prompts: str | None = None
    llama_server: str | None = None
    n_max: int | None = None
    min_acceptance: float | None = None
    min_mean_length: float | None = None
    convert: tuple[str, ...] = ()
    validate: tuple[str, ...] = ()
    fidelity: bool = False


@dataclass(frozen=True)
class Job:
    """One pair in one type: ``name`` is ``PAIR/TYPE``, ``directory`` is where its files go."""

    pair: Pair
    type: str
    directory: Path

    @property
    def name(self) -> str:
        return f"{self.pair.name}/{self.type}"


@dataclass(frozen=True)
class Release:
    """A read release.toml: ``out`` holds ``jobs/PAIR/TYPE`` and ``packages/PAIR``."""

    path: Path
    out: Path
    pairs: tuple[Pair, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(Job(p, t, self.out / "jobs" / p.name / t) for p in self.pairs for t in p.types)

    def job(self, name: str) -> Job:
        """A job by its name or its number, counted from 0 in the order of the file."""
        jobs = self.jobs
        if name.isdecimal() and int(name) < len(jobs):
            return jobs[int(name)]
        for job in jobs:
            if job.name.lower() == name.lower():
                return job
        shown = ", ".join(job.name for job in jobs[:5]) + (", …" if len(jobs) > 5 else "")
        raise UsageError(f"{self.path} has no job {name}", tip=f"jobs 0 to {len(jobs) - 1}: {shown}")


def read_release(path: Path) -> Release:
    """Read and check all of a release.toml; ConfigError names the first defect."""
    data = read_named(path, MAX_FILE, "a release.toml")
    try:
        document = parse_toml(text_of(data))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {undecodable(error)}") from None
    _sound(path, document)
    base = path.resolve().parent
    _known(str(path), document, ("out", "pair", *COMMON))
    tables = document.get("pair")
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise ConfigError(f"{path} has no [[pair]]", tip="give each pair a [[pair]] with drafter and target")
    shared = {key: value for key, value in document.items() if key in COMMON}
    pairs = tuple(_pair(f"{path}: pair {i + 1}", base, t, shared) for i, t in enumerate(tables))
    if not any(pair.target_gguf for pair in pairs) and (idle := [key for key in RUN if key in shared]):
        raise ConfigError(f"{path} has {idle[0]}, but no pair has a target_gguf to validate with")
    names = [pair.name.lower() for pair in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: two pairs are named {name}", tip='tell them apart with name = "…"')
    out = _typed(str(path), document, "out", str) or "out/release"
    return Release(path.resolve(), base / out, pairs)


def _sound(path: Path, document: Mapping[str, Any]) -> None:
    """ConfigError for what TOML or a file's name cannot hold, and for nesting that no key here has."""
    waiting: list[tuple[str, int, Any]] = [("", 0, document)]
    while waiting:
        key, depth, value = waiting.pop()
        where = f"{path}: {short(key)}" if not key.isprintable() or len(key) > 60 else f"{path}: {key}"
        if depth > MAX_DEPTH:
            raise ConfigError(
                f"{where} is nested too deeply", tip="its keys take values, lists and one table of options"
            )
        if isinstance(value, dict):
            for name, inner in value.items():
                waiting += [(name, depth, name), (name, depth + 1, inner)]
        elif isinstance(value, list):
            waiting += [(key, depth + 1, inner) for inner in value]
        elif isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{where} holds a NUL byte, which no path and no option can")
        elif isinstance(value, int) and value.bit_length() > 63:
            raise ConfigError(f"{where} is a whole number of more than 64 bits, which TOML does not have")


def _known(where: str, table: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    unknown = [key for key in table if key not in allowed]
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]}", tip="known: " + ", ".join(allowed))


def _pair(where: str, base: Path, own: Mapping[str, Any], shared: Mapping[str, Any]) -> Pair:
    table = {**shared, **own}
    shared = {key: value for key, value in shared.items() if key not in own}
    _known(where, table, (*OWN, *COMMON))
    values: dict[str, Any] = {}
    for key in (*OWN, *TEXTS, *PLACES):
        values[key] = _typed(where, table, key, str)
    for key, (low, high) in RANGES.items():
        values[key] = _typed(where, table, key, (int, float))
        if values[key] is not None and not low <= values[key] <= high:
            limits = f"between {low:g} and {high:g}" if high < 1e9 else f"at least {low:g}"
            raise ConfigError(f"{where}: {key} is {values[key]:g}, which is not {limits}")
    values["n_max"] = _typed(where, table, "n_max", int)
    if values["n_max"] is not None and values["n_max"] < 1:
        raise ConfigError(f"{where}: n_max must be at least 1")
    values["types"] = tuple(dict.fromkeys(t.upper() for t in _strings(where, table, "types")))
    values["fidelity"] = _flag(where, table, "fidelity")
    for key in ("convert", "validate"):
        values[key] = _arguments(where, table, key)
    for key in ("drafter", "target"):
        if values[key] is None:
            raise ConfigError(f"{where} has no {key}")
        values[key] = _place(f"{where}: {key}", base, values[key])
    for key in PLACES:
        if values[key] is not None:
            values[key] = str(base / values[key])
    if not values["types"]:
        raise ConfigError(f"{where} has no types", tip='for example types = ["Q8_0"]')
    from quant.recipe import FTYPES  # numpy comes with it: a mistake is told before

    for name in values["types"]:
        if name not in (*FTYPES, "AUTO"):
            raise ConfigError(f"{where}: {name} is not an output type", tip="known: " + ", ".join(FTYPES))
    for key in ("validate", *RANGES, *RUN):
        if values[key] and not values["target_gguf"] and not (key in RUN and key in shared):
            raise ConfigError(f"{where} has {key}, but no target_gguf to validate with")
    check_target_name(values["target_name"], f"{where}: target_name", ConfigError)
    values["name"] = values["name"] or values["target_name"] or _target_name(values["target"])
    for name in (values["name"], *values["types"]):
        if not is_plain(name) or any(c.isspace() for c in name) or len(os.fsencode(name)) > MAX_NAME:
            raise ConfigError(
                f"{where}: {shorten(name)!r} cannot be a directory name", tip='give the pair a plain name = "…"'
            )
    return Pair(**{field.name: values[field.name] for field in fields(Pair)})


def _target_name(target: str) -> str:
    """The last part of the place; of a GGUF the model's name alone."""
    place = target.partition("@")[0]
    return plain_name(place) if place.lower().endswith("gguf") else Path(place).name


def is_there(path: Path) -> bool:
    """Whether it exists; a name longer than the system has does not."""
    try:
        return path.exists()
    except OSError:
        return False


def _place(where: str, base: Path, text: str) -> str:
    """What exists as an absolute path; anything else stays as it is (a Hub id)."""
    if is_there(base / text):
        return str(base / text)
    if is_there(Path(text)):  # where the program runs must decide nothing
        raise ConfigError(
            f"{where} {text} is in the working directory, and places are looked up from {base}",
            tip=f"write {Path(text).absolute()}",
        )
    return text


def _typed(where: str, table: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    value = table.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ConfigError(f"{where}: {key} is {short(value)}, which is not {'text' if kind is str else 'a number'}")
    return value


def _flag(where: str, table: Mapping[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {key} is {short(value)}, which is neither true nor false")
    return value


def _arguments(where: str, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Options as a command line has them: from a table by their names, or as a list of arguments."""
    given = table.get(key, {})
    if isinstance(given, list):
        return tuple(_strings(where, table, key))
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: {key} must be a table of options", tip=f"for example {key} = {{ pure = true }}")
    call: list[str] = []
    spelled: dict[str, str] = {}
    for name, value in given.items():
        option = "--" + name.replace("_", "-").lstrip("-")
        if option in spelled:
            raise ConfigError(f"{where}: {key} has {spelled[option]} and {name}, which are one option")
        spelled[option] = name
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):
                call.append(option if one else option.replace("--", "--no-", 1))
            elif isinstance(one, (str, int, float)):
                call += [option, str(one)]
            else:
                raise ConfigError(f"{where}: {key}.{name} is {short(one)}, which no option takes")
    return tuple(call)


def _strings(where: str, table: Mapping[str, Any], key: str) -> list[str]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ConfigError(f"{where}: {key} must be a list of texts")
    return value
