"""Whether a config.json holds to the contract of :mod:`dflash_convert.families.fields`.

Fields of a drafter's own tables that the contract does not list are reported; at the top level only the listed ones
mean anything, the rest belongs to other programs.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dflash_convert.errors import ConfigError, FamilyError
from dflash_convert.families.fields import (
    BACKBONE,
    EAGLES,
    NESTED,
    PROPOSAL,
    ROPE,
    SPECULATORS,
    TABLE,
    TOP,
    VERIFIER,
    Field,
)
from dflash_convert.hparams import Config
from dflash_convert.notes import Note

ROPE_TABLES = ("rope_parameters", "rope_scaling")
ROPE_PARTS = ("full_attention", "sliding_attention")


def check(config: Config, families: Collection[str]) -> list[Note]:
    """Notes on fields that are not in the table; FamilyError for one that llama.cpp cannot express."""
    notes: list[Note] = []
    for path, kind, table in tables(config):
        names = known(kind)
        for name, value in table.items():
            if value is not None and name not in names:
                notes.append(Note("warning", _unknown(path, name, names), True))
    for field in TABLE:
        if field.treatment == "refused" and set(families) & set(field.families):
            _refuse(config, field)
    return notes


def refuse_guesses(notes: Sequence[Note]) -> None:
    """ConfigError for what --strict does not let pass: guesses among the notes."""
    guesses = [note.text for note in notes if note.guess]
    if guesses:
        raise ConfigError(f"--strict: {'; '.join(guesses)}", tip="correct config.json, or leave --strict out")


def tables(config: Config) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(path, where, table) of every table that belongs to the drafter alone."""
    raw = config.raw
    for name, where in (("dflash_config", NESTED), ("eagle_config", EAGLES), ("transformer_layer_config", BACKBONE)):
        if isinstance(raw.get(name), dict):
            yield name, where, raw[name]
    for outer in ("", "text_config", "transformer_layer_config"):
        yield from _rope_tables(outer, raw if not outer else raw.get(outer))
    yield from _speculators_tables(raw.get("speculators_config"))


def _rope_tables(outer: str, holder: Any) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for name in ROPE_TABLES if isinstance(holder, dict) else ():
        path = f"{outer}.{name}" if outer else name
        if isinstance(holder.get(name), dict):
            yield path, ROPE, holder[name]
            for part in ROPE_PARTS:
                if isinstance(holder[name].get(part), dict):
                    yield f"{path}.{part}", ROPE, holder[name][part]


def _speculators_tables(outer: Any) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    if not isinstance(outer, dict):
        return
    yield SPECULATORS, SPECULATORS, outer
    methods = outer.get("proposal_methods")
    for i, method in enumerate(methods[:16] if isinstance(methods, list) else ()):
        if isinstance(method, dict):
            yield f"{SPECULATORS}.{PROPOSAL}[{i}]", PROPOSAL, method
    if isinstance(outer.get("verifier"), dict):
        yield f"{SPECULATORS}.{VERIFIER}", VERIFIER, outer["verifier"]


def known(where: str) -> set[str]:
    """Names that the table has for a place; a backbone may also repeat what stands at the top."""
    places = (TOP, BACKBONE) if where == BACKBONE else (where,)
    return {name for field in TABLE if set(places) & set(field.where) for name in field.names.split()}


def _unknown(path: str, name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    meant = f" ({close[0]} is known)" if close else ""
    return f"{path}.{name} is not known here and does nothing{meant}"


def _refuse(config: Config, field: Field) -> None:
    for name in field.names.split():
        for path, value in _values(config, field.where, name):
            asked = value if isinstance(value, list) else [value]  # of a list each entry, as of one for each layer
            if any(each not in field.harmless for each in asked):
                raise FamilyError(f"{config.file}: {path} is {value!r}; llama.cpp cannot express it: {field.reason}")


def _values(config: Config, where: Sequence[str], name: str) -> Iterator[tuple[str, Any]]:
    if {TOP, BACKBONE} & set(where):
        yield name, config.fields.get(name)
    for path, kind, table in tables(config):
        if kind in where and kind != BACKBONE:
            yield f"{path}.{name}", table.get(name)
