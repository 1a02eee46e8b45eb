"""Which pre-tokenizer of llama.cpp a byte-level BPE tokenizer needs.

By the probe hash (as the reference does), else by the split expressions, else the caller must name it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from dflash_convert.errors import TokenizerError, UsageError
from dflash_convert.notes import Note
from dflash_convert.vocab.probe import probe_hashes
from dflash_convert.vocab.structure import known_pre, match_structure, nearest_structure, split_signature


@dataclass(frozen=True)
class Pre:
    name: str
    source: str
    notes: tuple[Note, ...] = ()


def known_hashes() -> tuple[str, dict[str, str]]:
    """The probe text and hash -> name, from llama.cpp's get_vocab_base_pre."""
    data = json.loads(files("dflash_convert.vocab").joinpath("pre_hashes.json").read_text("utf-8"))
    return data["probe"], data["hashes"]


def given_pre(name: str) -> Pre:
    known = known_pre()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        raise UsageError(
            f"--pre {name}: llama.cpp knows no pre-tokenizer of that name",
            tip=f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}.",
        )
    return Pre(name, "given with --pre")


def identify_pre(document: Mapping[str, Any], where: str) -> Pre:
    """The pre-tokenizer of a parsed tokenizer.json with a BPE model; ``where`` names the file in messages."""
    text, table = known_hashes()
    notes = []
    try:
        for digest, how in probe_hashes(document, text):
            if digest in table:
                return Pre(table[digest], f"probe hash{how}")
    except Exception as error:  # the tokenizers library raises plain Exception for what its version cannot read
        notes.append(Note("info", f"the probe hash could not be computed ({error}); the split expressions decide"))
    signature = split_signature(document.get("pre_tokenizer"))
    name = match_structure(signature, ignore_merges=bool(document["model"].get("ignore_merges")))
    if name is not None:
        notes.append(
            Note("derived", f"pre-tokenizer {name}: found by the split expressions (the probe hash is unknown)")
        )
        return Pre(name, "split expressions", tuple(notes))
    shown = " ; ".join(signature) or "none"
    nearest = nearest_structure(signature)
    raise TokenizerError(
        f"{where}: unknown pre-tokenizer, its split expressions are: {shown}",
        tip=f"The closest one that llama.cpp knows is {nearest}; name the right one with --pre NAME.",
    )
