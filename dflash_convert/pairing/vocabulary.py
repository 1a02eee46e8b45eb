"""Do both sides count the same tokens?  Drafts are token ids: one shifted id and every draft is noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.geometry import wrong_target
from dflash_convert.pairing.view import UNKNOWN, DrafterView, TargetView, Vocab
from dflash_convert.text import shorten
from dflash_convert.vocab.types import TokenType

SHOWN = 3  # differences listed in a finding
RECONVERT = "convert the drafter again with --target-model-dir pointing to this target"
# Tables are padded to multiples of 64 to 512 rows (Llama 3.1's 128256 is 2004 x 64, Qwen 3's 151936 1187 x 128, Gemma
# 3's 262208 4097 x 64, Qwen 2.5's 152064 297 x 512), so two paddings of the same tokens lie less than 512 apart.
# Known twins lie at most 128 apart (Qwen 2.5's 151936 and 152064), which is also what llama.cpp allows a draft model.
PADDING, TWINS = 512, 128


def check_vocabulary(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Size, content, tokenizer and special ids; a drafter directory brings at most its own tokenizer files."""
    if drafter.is_gguf and (drafter.vocab.tokens is None or drafter.vocab.model in (None, "none", "no_vocab")):
        yield error(
            "vocabulary-missing",
            drafter.vocab.model,
            target.vocab.size,
            "llama.cpp ignores the mask token of a file without a vocabulary: " + RECONVERT,
        )
        return
    if target is UNKNOWN:
        return
    if target.vocab.tokens is None:
        yield error("target-vocabulary-missing", drafter.vocab.size, None, "give the complete target")
        return
    yield from _sizes(drafter, target)
    if drafter.vocab.tokens is None:
        return
    strangers = abs((drafter.vocab.used or 0) - (target.vocab.used or 0)) >= PADDING
    if drafter.is_gguf:
        yield from _tokenizer(drafter.vocab, target.vocab)
    if not strangers:  # of another model's vocabulary nothing more is to be learned token by token
        content = list(_content(drafter, target))
        yield from content
        if drafter.is_gguf and not content:
            yield from _types_and_merges(drafter.vocab, target.vocab)


def _sizes(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Padding does not count: drafts are the same with 504, 512 or 640 rows for a target of 512 (measured)."""
    rows, used = target.rows or target.vocab.size or 0, target.vocab.used or 0
    mine, mine_used = drafter.rows, drafter.vocab.used if drafter.is_gguf else None
    theirs = f"{used} tokens in {rows} rows"
    if mine is not None and mine < used:
        yield error("vocabulary-size", f"{mine} rows", theirs, f"too few for its tokens: {wrong_target(drafter)}")
    elif mine is not None and mine - rows >= PADDING:
        more = f"{mine - rows} more, and padding explains less than {PADDING}"
        yield error("vocabulary-size", f"{mine} rows", theirs, f"{more}: {wrong_target(drafter)}")
    elif mine_used is not None and mine_used != used:
        cure = "both must know the same tokens: " + (
            RECONVERT if abs(mine_used - used) < PADDING else wrong_target(drafter)
        )
        yield error("vocabulary-size", f"{mine_used} tokens", theirs, cure)
    elif mine is not None and mine - rows > TWINS:
        cure = "more padding than is usual: if the target is the right one, measure it with dflash-convert validate"
        yield warning("vocabulary-padding", f"{mine} rows", theirs, cure)


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


def _content(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Every token that either side uses; of a directory's tokenizer, the drafter's own mask token may be added."""
    mask = None if drafter.is_gguf else drafter.keys.integer("tokenizer.ggml.mask_token_id")
    differences = [each for each in _differences(drafter.vocab, target.vocab) if each[0] != mask]
    if not differences:
        return
    first = differences[:SHOWN]
    more = [f"and {len(differences) - SHOWN} more"] if len(differences) > SHOWN else []
    mine = [f"{i}: {own}" for i, own, _ in first] + more
    its = [f"{i}: {other}" for i, _, other in first] + more
    if drafter.is_gguf:
        yield error("vocabulary-content", mine, its, f"made for another tokenizer; {RECONVERT}")
    elif all(_marks(drafter.vocab, i) or _marks(target.vocab, i) for i, _, _ in differences):
        cure = "only special tokens differ between the tokenizer beside the drafter and the target's: two versions?"
        yield warning("vocabulary-content", mine, its, cure)
    else:
        cure = f"the tokenizer beside the drafter is not the target's: {wrong_target(drafter)}"
        yield error("vocabulary-content", mine, its, cure)


def _types_and_merges(mine: Vocab, its: Vocab) -> Iterator[Finding]:
    """Drafts are ids, so neither changes one; but then the file was made from another tokenizer than it seems."""
    if mine.types is not None and its.types is not None and not same(mine.types, its.types):
        pairs = enumerate(zip(mine.types, its.types, strict=False))
        wrong = [(i, a, b) for i, (a, b) in pairs if a != b and not (mine.is_padding(i) and its.is_padding(i))]
        if wrong:
            index, kind, wanted = wrong[0]
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            yield warning("token-types", f"{index}: {kind}{more}", f"{index}: {wanted}{more}", RECONVERT)
    if mine.merges is not None and its.merges is not None and not same(mine.merges, its.merges):
        own, other = list(mine.merges), list(its.merges)
        at = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), min(len(own), len(other)))
        sides = [_shown(merges[at]) if at < len(merges) else "no more" for merges in (own, other)]
        yield warning("merges", f"{at}: {sides[0]}", f"{at}: {sides[1]}", RECONVERT)


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Equal arrays; of two files the bytes are compared, which decodes nothing."""
    mine, its = getattr(a, "raw", None), getattr(b, "raw", None)
    if mine is not None and its is not None and getattr(a, "kind", None) == getattr(b, "kind", None):
        return len(a) == len(b) and bool(mine == its)
    return list(a) == list(b)


def _marks(vocab: Vocab, index: int) -> bool:
    """A special or added token, or padding."""
    if vocab.types is None or index >= len(vocab.types):
        return vocab.tokens is None or index >= len(vocab.tokens) or vocab.is_padding(index)
    return vocab.types[index] in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED)


def _differences(mine: Vocab, its: Vocab) -> Iterator[tuple[int, str, str]]:
    """(id, the drafter's token, the target's) wherever a token that either uses differs."""
    ours: Sequence[str] = mine.tokens or ()
    theirs: Sequence[str] = its.tokens or ()
    if same(ours, theirs):
        return
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b and not (mine.is_padding(index) and its.is_padding(index)):
            yield index, _shown(a), _shown(b)


def _shown(token: str) -> str:
    """A token fit to print: invalid UTF-8 escaped, long ones cut."""
    return shorten(token.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), 40)
