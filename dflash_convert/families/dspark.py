"""DSpark's heads on a DFlash backbone: the Markov bias, the confidence head, the reduced vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash_convert import tensors
from dflash_convert.container.types import KV, boolean
from dflash_convert.drafter import Rule, TensorPlan, Weight
from dflash_convert.families.backbone import ARCH, Sizes
from dflash_convert.families.common import rules
from dflash_convert.notes import Note

MARKOV = rules(
    tensors.SPARK,
    {
        "markov_head.markov_w1.weight": "markov_w1.weight",
        "markov_head.markov_w2.weight": "markov_w2.weight",
        "confidence_head.proj.weight": "conf_proj.weight",
        "confidence_head.proj.bias": "conf_proj.bias",
    },
)
REQUIRED = tensors.needed(tensors.SPARK)
ZERO_RANK = 32  # one row of every 32-element block type


def has_markov(weights: Sequence[Weight]) -> bool:
    return any(weight.name == "markov_head.markov_w1.weight" for weight in weights)


def markov_rank(weights: Sequence[Weight]) -> int:
    shape = next((w.shape for w in weights if w.name == "markov_head.markov_w1.weight"), ())
    return shape[-1] if shape else ZERO_RANK


def zero_head(sizes: Sizes, notes: list[Note]) -> list[TensorPlan]:
    """A Markov head that adds nothing: the runtime drafts from the anchor's slot only with a head."""
    notes.append(
        Note(
            "derived",
            f"an all-zero Markov head of rank {ZERO_RANK}: this plain drafter drafts from its anchor's slot, which "
            "llama.cpp does for DSpark files only; the head changes no token",
        )
    )
    return [
        TensorPlan("markov_w1.weight", (sizes.vocab, ZERO_RANK), transform="zeros"),
        TensorPlan("markov_w2.weight", (sizes.draft_vocab, ZERO_RANK), transform="zeros"),
    ]


def confidence_rules(weights: Sequence[Weight], sizes: Sizes) -> dict[str, Rule]:
    """The confidence head's rule: one that sees the hidden state only is padded with zero weights."""
    head = next((w for w in weights if w.name == "confidence_head.proj.weight"), None)
    if head is not None and head.shape == (1, sizes.hidden):
        return {"confidence_head.proj.weight": Rule("conf_proj.weight", "1 H", "pad_columns")}
    return {}


def pad_confidence(plan: TensorPlan, rank: int) -> TensorPlan:
    """[1, hidden] -> [1, hidden + rank]: the runtime's head also reads the Markov embedding."""
    if plan.transform != "pad_columns":
        return plan
    shape = (*plan.shape[:-1], plan.shape[-1] + rank)
    return replace(plan, shape=shape, argument=rank)


def keys(anchor: bool, plans: Sequence[TensorPlan]) -> list[KV]:
    confidence = any(plan.name == "conf_proj.weight" for plan in plans)
    return [boolean(f"{ARCH}.sample_from_anchor", anchor), boolean(f"{ARCH}.has_confidence_head", confidence)]
