"""Do both sides count the same tokens?  Drafts are token ids: one shifted id and every draft is noise."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.view import DrafterView, TargetView, Vocab

UNUSED = 5  # token type of padding rows
PADDING = re.compile(r"\[PAD\d+\]")
SHOWN = 3  # differences listed in a finding
RECONVERT = "convert the drafter again with --target-model-dir pointing to this target"


def check_vocabulary(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Size, content, tokenizer and special ids; a drafter directory brings no vocabulary of its own."""
    if drafter.is_gguf and (drafter.vocab.tokens is None or drafter.vocab.model in (None, "none", "no_vocab")):
        yield error(
            "vocabulary-missing",
            drafter.vocab.model,
            target.vocab.size,
            "llama.cpp ignores the mask token of a file without a vocabulary: " + RECONVERT,
        )
        return
    if target.vocab.tokens is None:
        yield error("target-vocabulary-missing", drafter.vocab.size, None, "give the complete target")
        return
    if drafter.vocab.tokens is None:
        return
    yield from _tokenizer(drafter.vocab, target.vocab)
    yield from _sizes(drafter.vocab, target)
    differences = list(_differences(drafter.vocab, target.vocab))
    if differences:
        first = differences[:SHOWN]
        more = [f"and {len(differences) - SHOWN} more"] if len(differences) > SHOWN else []
        yield error(
            "vocabulary-content",
            [f"{i}: {mine}" for i, mine, _ in first] + more,
            [f"{i}: {its}" for i, _, its in first] + more,
            "the drafter was made for another tokenizer; " + RECONVERT,
        )


def _tokenizer(mine: Vocab, its: Vocab) -> Iterator[Finding]:
    if mine.model != its.model:
        yield error("tokenizer-model", mine.model, its.model, "the tokenizers are of different kinds: " + RECONVERT)
    elif mine.pre and its.pre and mine.pre != its.pre:
        yield warning(
            "pre-tokenizer", mine.pre, its.pre, "drafting itself does not split text, but the tokenizers may differ"
        )
    for kind in ("bos", "eos"):
        if kind in mine.special and kind in its.special and mine.special[kind] != its.special[kind]:
            yield warning(f"{kind}-token", mine.special[kind], its.special[kind], RECONVERT)


def _sizes(mine: Vocab, target: TargetView) -> Iterator[Finding]:
    """Padding does not count: drafts are the same with 504, 512 or 640 rows for a target of 512 (measured)."""
    used, needed = usable(mine), usable(target.vocab)
    if used != needed:
        yield error("vocabulary-size", used, needed, "both must know the same tokens: " + RECONVERT)


def is_padding(vocab: Vocab, index: int) -> bool:
    if vocab.types is not None and index < len(vocab.types) and vocab.types[index] == UNUSED:
        return True
    return vocab.tokens is not None and PADDING.fullmatch(vocab.tokens[index]) is not None


def usable(vocab: Vocab) -> int:
    """Tokens without the padding at the end."""
    count = vocab.size or 0
    while count and is_padding(vocab, count - 1):
        count -= 1
    return count


def _differences(mine: Vocab, its: Vocab) -> Iterator[tuple[int, str, str]]:
    """(id, the drafter's token, the target's) wherever a token that either uses differs."""
    ours: Sequence[str] = mine.tokens or ()
    theirs: Sequence[str] = its.tokens or ()
    if list(ours) == list(theirs):
        return
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b and not (is_padding(mine, index) and is_padding(its, index)):
            yield index, _shown(a), _shown(b)


def _shown(token: str) -> str:
    """A token fit to print: invalid UTF-8 escaped, long ones cut."""
    text = token.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text if len(text) <= 40 else text[:37] + "..."
