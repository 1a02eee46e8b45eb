"""Pre-tokenizers by their split expressions (the table: src/llama-vocab.cpp of llama.cpp).

An expression list stands for the steps of tokenizer.json's pre_tokenizer; ``ByteLevel`` is GPT-2's own
expression, which the ByteLevel step applies when ``use_regex`` is set.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPELLED_OUT = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
GPT2_SPELLINGS = (GPT2, GPT2 + r"|\s+", GPT2.replace("'s|'t|'re|'ve|'m|'ll|'d", "'(?:[sdmt]|ll|ve|re)") + r"|\s+")
Signature = tuple[str, ...]


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    text = files("dflash_convert.vocab").joinpath("pre_structures.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def known_pre() -> list[str]:
    """Every name that llama.cpp accepts as ``tokenizer.ggml.pre`` of a BPE vocabulary."""
    return list(_table()["names"])


def canonical(expression: str) -> str:
    """One spelling for expressions that mean the same: escapes, contractions, possessive quantifiers."""
    text = expression.replace("\r", r"\r").replace("\n", r"\n").replace(SPELLED_OUT, CONTRACTIONS)
    return text.replace("?+", "?").replace("++", "+").replace("*+", "*")


def split_signature(pre_tokenizer: Mapping[str, Any] | None) -> Signature:
    """The expressions of a ``pre_tokenizer`` object in order; steps that never split leave no trace."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer] if pre_tokenizer else [])
    return tuple(text for step in (steps if isinstance(steps, list) else [steps]) if (text := _step(step)))


def _step(step: object) -> str:
    if not isinstance(step, Mapping):
        return repr(step)
    kind = step.get("type")
    if kind == "ByteLevel":
        return "ByteLevel" if step.get("use_regex", True) else ""
    if kind == "Digits":
        return r"\p{N}" if step.get("individual_digits") else r"\p{N}+"
    if kind == "Split":
        pattern = step.get("pattern")
        text = pattern.get("Regex", pattern.get("String")) if isinstance(pattern, Mapping) else pattern
        text = canonical(str(text))
        return "ByteLevel" if text in GPT2_SPELLINGS else text
    return str(kind)


def match_structure(signature: Signature, *, ignore_merges: bool) -> str | None:
    """The name whose expressions are exactly ``signature``, preferring the one that agrees on ignore_merges."""
    matches = [row for row in _table()["structures"] if tuple(map(canonical, row["expressions"])) == signature]
    same = [row for row in matches if "ignore_merges" not in row or row["ignore_merges"] == ignore_merges]
    return str(same[0]["name"]) if same else None


def structure_of(name: str) -> Signature | None:
    """The expressions of a name in the table, or None."""
    return next((tuple(r["expressions"]) for r in _table()["structures"] if r["name"] == name), None)


def nearest_structure(signature: Signature) -> str:
    """The known name whose expressions look most alike; for a message only, never a decision."""
    text = " ".join(signature)

    def likeness(row: Mapping[str, Any]) -> float:
        return difflib.SequenceMatcher(None, text, " ".join(row["expressions"]), autojunk=False).ratio()

    return str(max(_table()["structures"], key=likeness)["name"])
