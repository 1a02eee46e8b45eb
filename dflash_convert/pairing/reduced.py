"""Reduced draft vocabularies and own tables: which logits mean which token."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.geometry import wrong_target
from dflash_convert.pairing.view import DrafterView, TargetView
from dflash_convert.reduced import map_fault

KEEP = "convert again: the drafter's own lm_head and d2t belong together"
NAME = "reduced-vocabulary"
HEAD_ROWS = "dflash_convert.head.rows"  # of files whose head was made here


def check_heads(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    head, d2t = drafter.tensors.get("output.weight"), drafter.tensors.get("d2t")
    rows = drafter.rows or target.rows  # the loader sizes its tables by the file's own vocabulary
    if d2t is not None:
        if head is None:
            yield error(NAME, f"d2t of {d2t[0]}, no output.weight", target.rows, KEEP)
        elif head[0] != d2t[0]:
            yield error(NAME, f"d2t of {d2t[0]}, head of {head[0]} rows", target.rows, KEEP)
        yield from _map(drafter, target)
    elif head is not None and rows is not None and head[0] != rows:
        yield error(NAME, f"head of {head[0]} rows, no d2t", rows, KEEP)
    embedding = drafter.tensors.get("token_embd.weight")
    if embedding is not None and rows is not None and embedding[0] != rows:
        yield error("embedding-rows", embedding[0], rows, "the drafter's table is of another vocabulary")
    if embedding is not None and head is None and drafter.spark:
        cure = "llama.cpp then uses the embeddings as head; right only if they are tied: convert again to keep lm_head"
        yield warning("tied-head", "token_embd without output", None, cure)


def _map(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    kind = drafter.types.get("d2t")
    if kind is not None and kind.name != "I64":
        yield error(NAME, f"d2t is {kind.name}", "I64", "llama.cpp asserts that it is I64: convert the drafter again")
    elif drafter.d2t is not None:
        fault = map_fault(drafter.d2t, target.rows or drafter.rows, offsets=False)
        if fault is not None:
            cure = wrong_target(drafter) if fault.kind == "range" else "a file needs one absolute id for each draft row"
            yield error(NAME, f"d2t {fault.text}", target.rows, f"{cure}; or convert the drafter again")
        elif HEAD_ROWS in drafter.keys and drafter.d2t.size > 1 and int((drafter.d2t[1:] - drafter.d2t[:-1]).min()) < 1:
            yield warning(NAME, "d2t not ascending", None, "head writes it ascending: something else moved the rows")
