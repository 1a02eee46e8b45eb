"""Reduced draft vocabularies and own heads: which logits mean which token."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.view import DrafterView, TargetView

KEEP = "convert again: the drafter's own lm_head and d2t belong together"


def check_heads(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    head, d2t = drafter.tensors.get("output.weight"), drafter.tensors.get("d2t")
    if d2t is not None:
        if head is None:
            yield error("reduced-vocabulary", f"d2t of {d2t[0]}, no output.weight", target.rows, KEEP)
        elif head[0] != d2t[0]:
            yield error("reduced-vocabulary", f"d2t of {d2t[0]}, head of {head[0]} rows", target.rows, KEEP)
        if drafter.d2t_last is not None and target.rows is not None and drafter.d2t_last >= target.rows:
            yield error("reduced-vocabulary", f"d2t names token {drafter.d2t_last}", target.rows, KEEP)
    elif head is not None and target.rows is not None and head[0] != target.rows:
        yield error("reduced-vocabulary", f"head of {head[0]} rows, no d2t", target.rows, KEEP)
    embedding = drafter.tensors.get("token_embd.weight")
    if embedding is not None and target.rows is not None and embedding[0] != target.rows:
        yield error("embedding-rows", embedding[0], target.rows, "the drafter's table is of another vocabulary")
    if embedding is not None and head is None and drafter.spark:
        cure = "llama.cpp then uses the embeddings as head; right only if they are tied: convert again to keep lm_head"
        yield warning("tied-head", "token_embd without output", None, cure)
