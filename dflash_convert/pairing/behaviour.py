"""Values that change what the drafter computes: mask token, rope, scale, window, block, causality."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dflash_convert.llama import ACTIVATIONS, DEFAULT_BLOCK
from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.geometry import wrong_target
from dflash_convert.pairing.view import DrafterView, TargetView
from dflash_convert.vocab.types import TokenType

MASK = "tokenizer.ggml.mask_token_id"


def check_mask(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """The mask token fills the block: it must be a row of the target's table that means nothing else."""
    mask = drafter.keys.integer(MASK)
    if mask is None:
        cure = "llama.cpp aborts at the first draft: convert again, --mask-token-id N gives the id"
        yield error("mask-token-missing", None, None, cure)
        return
    rows = [n for n in (target.rows, drafter.vocab.size) if n is not None]
    if mask < 0 or (rows and mask >= min(rows)):
        cure = f"{wrong_target(drafter)}; otherwise the id is: compare dflash_config.mask_token_id in its config.json"
        yield error("mask-token-range", mask, f"{min(rows, default=0)} embedding rows", cure)
        return
    for kind, token in target.vocab.special.items():
        if token == mask:
            yield warning("mask-token-special", mask, f"{kind} is {token}", "a mask that is eos or pad is a fallback")
            return
    types = target.vocab.types
    if types is not None and mask < len(types) and types[mask] == TokenType.NORMAL:
        text = (target.vocab.tokens or [])[mask] if target.vocab.tokens else ""
        yield warning("mask-token-ordinary", mask, f"the token {text!r}", "an ordinary word is unlikely to be the mask")


def check_context(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Behind the positions it was trained for a drafter guesses; the text stays right, acceptance falls."""
    own = drafter.keys.integer(drafter.own("context_length"))
    if own is not None and target.context is not None and own < target.context:
        cure = f"beyond {own} tokens acceptance may fall to nothing: keep contexts below (-c {own}), or measure them"
        yield warning("trained-context", own, target.context, cure)


def check_rope(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """The base, which is the target's in nearly every drafter."""
    base = drafter.keys.number(drafter.own("rope.freq_base"))
    if base is None:
        yield warning("rope-base", None, list(target.rope_bases), "without freq_base llama.cpp assumes 10000")
    elif target.rope_bases and not any(math.isclose(base, own, rel_tol=1e-6) for own in target.rope_bases):
        cure = "most drafters share the target's base: compare with rope_theta in the drafter's config.json"
        yield warning("rope-base", base, list(target.rope_bases), cure)
    windowed = drafter.keys.number(drafter.own("rope.freq_base_swa"))
    if windowed is not None and len(target.rope_bases) > 1 and windowed not in target.rope_bases:
        cure = "an assistant reads the target's rotated keys: both bases are the target's; convert it again"
        yield error("rope-base", windowed, list(target.rope_bases), cure)


def check_sections(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """A target with M-RoPE hands over positions in sections, of which a drafter uses time alone."""
    sections = drafter.keys.integers(drafter.own("rope.dimension_sections"))
    if target.mrope and sections is None:
        cure = "the target uses M-RoPE: convert again with its --target-model-dir"
        yield error("rope-sections", None, "M-RoPE", cure)
    elif sections is not None and not _temporal_only(drafter, sections):
        yield error("rope-sections", sections, None, "a drafter rotates by time alone: [head_dim / 2, 0, 0, 0]")
    elif sections is not None and not target.mrope:
        yield warning("rope-sections", sections, "plain rope", "made for an M-RoPE target; this one is not")


def _temporal_only(drafter: DrafterView, sections: list[int]) -> bool:
    head = drafter.keys.first(drafter.own("rope.dimension_count"))
    head = head or drafter.keys.first(drafter.own("attention.key_length")) or 0
    return len(sections) == 4 and not any(sections[1:]) and 2 * sections[0] >= head


def check_scale(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """The drafter reads the target's embedding table, so it needs the target's factor too."""
    own, wanted = drafter.keys.number(drafter.own("embedding_scale")), target.embedding_scale
    if wanted is None or math.isclose(wanted, 1.0):
        if own is not None and not math.isclose(own, 1.0):
            cure = "the target's embeddings have no factor: compare with input_embedding_scale in its config.json"
            yield warning("embedding-scale", own, None, cure)
        return
    shown = round(wanted, 4)
    if own is None:
        cure = "the target multiplies its embeddings: convert again with its --target-model-dir"
        yield error("embedding-scale", None, shown, cure)
    elif not math.isclose(own, wanted, rel_tol=1e-2):
        borrowed = "token_embd.weight" not in drafter.tensors
        found = error if borrowed else warning
        yield found("embedding-scale", own, shown, "compare with input_embedding_scale in the drafter's config.json")


def check_window(drafter: DrafterView) -> Iterator[Finding]:
    """A window needs one bool per layer that says which layers have it, and the other way round."""
    window = drafter.keys.integer(drafter.own("attention.sliding_window"))
    name = drafter.own("attention.sliding_window_pattern")
    if drafter.keys.integer(drafter.own("hyper_connection.count")):
        return  # DeepSeek-V4 stages are windowed all and have no pattern
    if not window:
        if any(drafter.keys.items(name) or []):
            cure = f"the pattern names windowed layers, but {drafter.own('attention.sliding_window')} is missing"
            yield error("window-pattern", None, None, f"{cure}: convert the drafter again")
        return
    value = drafter.keys.values.get(name)
    layers = drafter.keys.integer(drafter.own("block_count"))
    if value is None or isinstance(value, (int, str)):
        yield error("window-pattern", value, None, "llama.cpp needs one bool per layer: convert the drafter again")
        return
    pattern = drafter.keys.integers(name) or []
    if layers is not None and len(pattern) != layers:
        yield error("window-pattern", len(pattern), f"{layers} drafter layers", "one bool per layer is needed")
    block = drafter.keys.integer(drafter.own("block_size"))
    if any(pattern) and block is not None and window < block:
        yield warning("window-block", window, f"block of {block}", "a window smaller than the block hides part of it")
    if drafter.row is not None and drafter.row.block:
        yield from _causality(drafter, pattern)


def _causality(drafter: DrafterView, pattern: list[int]) -> Iterator[Finding]:
    """Trainers attend causally in sliding layers unless told otherwise; the runtime has one flag for all."""
    if not any(pattern) or drafter.own("attention.causal") in drafter.keys:
        return
    if drafter.config.get("sliding_window_non_causal") is True:
        return
    kinds = f"{sum(map(bool, pattern))} sliding, {len(pattern) - sum(map(bool, pattern))} full layers"
    yield warning(
        "mixed-causality",
        kinds,
        None,
        "llama.cpp attends to both sides in all layers; if the sliding ones were trained causally, acceptance drops",
    )


def check_block(drafter: DrafterView, n_max: int | None) -> Iterator[Finding]:
    block = drafter.keys.integer(drafter.own("block_size"))
    if block is None:
        if drafter.spark:
            yield error(
                "block-size", None, None, f"DSpark needs {drafter.own('block_size')}: convert the drafter again"
            )
            return
        yield warning("block-size", None, None, f"llama.cpp assumes {DEFAULT_BLOCK}: convert the drafter again")
        block = DEFAULT_BLOCK
    if drafter.variant is None:
        return
    most = drafter.variant.max_drafts(block, drafter.keys.boolean(drafter.own("sample_from_anchor")))
    if most < 1:
        yield error("block-size", block, None, "a block must hold the last token and at least one draft")
    elif n_max is not None and n_max > most:
        yield warning("n-max", most, n_max, f"llama.cpp clamps it: --spec-draft-n-max {most}")
    if n_max is not None and n_max < 1:
        yield error("n-max", most, n_max, "n-max must be at least 1")


def check_activation(drafter: DrafterView) -> Iterator[Finding]:
    kind = drafter.keys.text(drafter.own("hidden_activation"))
    if kind is not None and kind not in ACTIVATIONS:
        yield error("hidden-activation", kind, None, f"llama.cpp knows {', '.join(ACTIVATIONS)}")
