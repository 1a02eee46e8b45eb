"""The words of the trade, each explained once: docs/glossary.md, the report and the card quote them."""

from __future__ import annotations

import re
from typing import NamedTuple

from dflash_convert.llama import BUILD


class Term(NamedTuple):
    """``anchor`` is its place in docs/glossary.md; ``text`` is Markdown: code, emphasis, links to other pages."""

    anchor: str
    title: str
    text: str


TERMS = (
    Term(
        "target",
        "Target",
        "The language model whose text is wanted. It alone decides every token.",
    ),
    Term(
        "drafter",
        "Drafter",
        "A small model trained for one target that guesses what the target will say next. With another "
        "target, even a fine-tune of the same one, its guesses are of no use.",
    ),
    Term(
        "speculative-decoding",
        "Speculative decoding",
        "The drafter proposes several tokens, the target checks all of them in one pass and keeps the "
        "first ones that are its own choice. The text is the target's own.",
    ),
    Term(
        "step",
        "Step",
        "One draft and the target's check of it.",
    ),
    Term(
        "block",
        "Block",
        "The tokens that a drafter of the DFlash kind computes at once, 4 to 16. A block of 16 holds the "
        "last known token and 15 drafts, or 16 drafts where the drafter starts in the anchor.",
    ),
    Term(
        "anchor",
        "Anchor",
        "The first place of a block, which holds the last token that the target has decided.",
    ),
    Term(
        "mask-token",
        "Mask token",
        "What stands in a block where a token is to be guessed.",
    ),
    Term(
        "tap",
        "Tap",
        "A layer of the target whose output the drafter reads. A checkpoint counts layer outputs from 0; "
        "a GGUF counts layer inputs, one more.",
    ),
    Term(
        "n-max",
        "n-max",
        "How many tokens are drafted a step at most (`--spec-draft-n-max`). A longer draft costs more to "
        "check and its last tokens are seldom right.",
    ),
    Term(
        "p-min",
        "p-min",
        "A draft ends where the drafter's own probability falls below it.",
    ),
    Term(
        "acceptance",
        "Acceptance",
        "The share of drafted tokens that the target kept. It falls when n-max grows, so compare it at one n-max only.",
    ),
    Term(
        "mean-accepted-length",
        "Mean accepted length",
        "The tokens that one step yields on average, the target's own included: 1 means that no draft was "
        "of use. No speed-up can be higher.",
    ),
    Term(
        "speed-up",
        "Speed-up",
        "Tokens per second with the drafter over tokens per second without it, on this machine: the "
        "median of several rounds, with its spread.",
    ),
    Term(
        "verdict",
        "Verdict",
        "There are two. The *pair* is healthy, weak or broken: acceptance and text decide, on any "
        "machine. The *gain* is faster, no gain, slower or disturbed: it holds for one machine.",
    ),
    Term(
        "near-tie",
        "Near tie",
        "Two tokens that the target finds equally likely but for the noise of its arithmetic. A text that "
        "parts there is no fault of the drafter.",
    ),
    Term(
        "greedy",
        "Greedy, sampled",
        "Greedy text takes the likeliest token each time and is the same with and without a drafter. "
        "Sampled text is drawn.",
    ),
    Term(
        "encoding",
        "Encoding",
        "How weights are stored: F32, F16, BF16 as they are, Q8_0 in about half of BF16's bytes, Q4_0 and "
        "Q4_K in about a quarter.",
    ),
    Term(
        "family",
        "Family, dialect",
        "A family is a kind of drafter with a graph of its own (DFlash, DSpark, EAGLE-3 …), a dialect the "
        "way an exporter or a fork spells it.",
    ),
    Term(
        "head",
        "Head",
        "The matrix that turns hidden states into tokens. Most drafters borrow the target's; a [reduced "
        "one](shrink.md) has rows for some tokens only.",
    ),
    Term(
        BUILD,
        BUILD,
        f"llama.cpp numbers its builds. Facts about llama.cpp in these pages are those of build {BUILD[1:]}, and "
        "files are compared with those of its converter. The embedded engine is a later build; most later "
        "ones load the same files.",
    ),
    Term(
        "kv-cache",
        "KV cache, context",
        "What a model keeps of the tokens so far, and how many there may be. Both models have one each.",
    ),
)
BY_ANCHOR = {term.anchor: term for term in TERMS}


def plain(term: Term) -> str:
    """The explanation without Markdown."""
    return re.sub(r"[*`]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", term.text))
