"""Each mistake in a pair gives its finding, with its severity, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_convert.pairing import DrafterView, TargetView, check, open_pair
from dflash_convert.pairing.view import Vocab

Edit = Callable[[DrafterView, TargetView], tuple[DrafterView, TargetView]]


@pytest.fixture(scope="session")
def pair(drafter_gguf: Path, target_gguf: Path) -> tuple[DrafterView, TargetView]:
    return open_pair(drafter_gguf, target_gguf)


def keys(**changes: Any) -> Edit:
    """Set keys of the drafter, dots written as double underscores, ``dflash`` assumed; None deletes."""

    def edit(drafter: DrafterView, target: TargetView) -> tuple[DrafterView, TargetView]:
        values = dict(drafter.keys.values)
        for name, value in changes.items():
            full = name.replace("__", ".")
            full = full if full.startswith(("general.", "tokenizer.", "dflash_convert.")) else f"dflash.{full}"
            values.pop(full, None)
            if value is not None:
                values[full] = value
        return replace(drafter, keys=replace(drafter.keys, values=values)), target

    return edit


def tensors(add: dict[str, tuple[int, ...]] | None = None, drop: str = " ") -> Edit:
    def edit(drafter: DrafterView, target: TargetView) -> tuple[DrafterView, TargetView]:
        kept = {name: shape for name, shape in drafter.tensors.items() if drop not in name}
        return replace(drafter, tensors=kept | (add or {})), target

    return edit


def side(which: int, **fields: Any) -> Edit:
    def edit(drafter: DrafterView, target: TargetView) -> tuple[DrafterView, TargetView]:
        return (replace(drafter, **fields), target) if which == 0 else (drafter, replace(target, **fields))

    return edit


def vocabulary(which: int, change: Callable[[list[str], list[int]], None], **fields: Any) -> Edit:
    def edit(drafter: DrafterView, target: TargetView) -> tuple[DrafterView, TargetView]:
        vocab = (drafter, target)[which].vocab
        tokens, types = list(vocab.tokens or ()), list(vocab.types or ())
        change(tokens, types)
        new = replace(vocab, tokens=tokens, types=types, **fields)
        return (replace(drafter, vocab=new), target) if which == 0 else (drafter, replace(target, vocab=new))

    return edit


def both(*edits: Edit) -> Edit:
    def edit(drafter: DrafterView, target: TargetView) -> tuple[DrafterView, TargetView]:
        for one in edits:
            drafter, target = one(drafter, target)
        return drafter, target

    return edit


def swap_token(tokens: list[str], types: list[int]) -> None:
    tokens[300], tokens[301] = tokens[301], tokens[300]


def one_more(tokens: list[str], types: list[int]) -> None:
    tokens[504], types[504] = "<|extra|>", 4


def more_padding(tokens: list[str], types: list[int]) -> None:
    tokens += [f"[PAD{i}]" for i in range(512, 520)]
    types += [5] * 8


def other_padding(tokens: list[str], types: list[int]) -> None:
    tokens[505] = "<unused5>"


def unchanged(tokens: list[str], types: list[int]) -> None:
    pass


E, W = "error", "warning"
SLIDING = {"attention__sliding_window": 64, "attention__sliding_window_pattern": [True, True, True]}
SPARK = {"markov_w1.weight": (512, 16), "markov_w2.weight": (512, 16)}
SELECTOR = {
    "selector_predecessor.weight": (512, 4),
    "selector_successor.weight": (512, 4),
    "selector_hidden.weight": (4, 128),
    **{f"blk.{i}.{part}_conv_base": (2, 3, 128) for i in range(3) for part in ("attn", "ffn")},
    **{f"blk.{i}.{part}_conv_proj.weight": (24, 128) for i in range(3) for part in ("attn", "ffn")},
}
SELECTOR_KEYS = {"selector_rank": 4, "selector_top_k": 4, "conv_kernel_size": 3, "conv_group_size": 32}
CASES: dict[str, tuple[Edit, list[tuple[str, str]]]] = {
    "healthy": (keys(), []),
    # vocabulary
    "no vocabulary": (side(0, vocab=Vocab("none")), [("vocabulary-missing", E)]),
    "target without vocabulary": (side(1, vocab=Vocab()), [("target-vocabulary-missing", E)]),
    "vocabulary of the target alone": (side(0, vocab=Vocab(), is_gguf=False), []),
    "one token swapped": (vocabulary(0, swap_token), [("vocabulary-content", E)]),
    "one token more": (vocabulary(0, one_more), [("vocabulary-size", E), ("vocabulary-content", E)]),
    "more padding": (vocabulary(0, more_padding), []),
    "another name for padding": (vocabulary(0, other_padding), []),
    "SentencePiece drafter": (vocabulary(0, unchanged, model="llama"), [("tokenizer-model", E)]),
    "another splitting": (vocabulary(1, unchanged, pre="llama-bpe"), [("pre-tokenizer", W)]),
    "another eos": (vocabulary(0, unchanged, special={"eos": 501}), [("eos-token", W)]),
    # shapes and taps
    "hidden size": (side(1, hidden=256), [("hidden-size", E), ("fc-width", E)]),
    "a tap too many": (
        keys(target_layers=[1, 2, 4, 5], dflash_convert__source_taps=None),
        [("fc-width", E), ("tensor-shapes", E)],
    ),
    "a tap below the target": (keys(target_layers=[2, 4, 9], dflash_convert__source_taps=None), [("taps-depth", E)]),
    "last layer": (keys(target_layers=[2, 4, 6], dflash_convert__source_taps=None), [("last-layer-tap", E)]),
    "another depth": (side(1, layers=8), [("target-depth", E)]),
    "prediction layers do not count": (both(side(0, depth=5), side(1, layers=5)), [("last-layer-tap", E)]),
    "negative tap": (keys(target_layers=[-1, 4, 5], dflash_convert__source_taps=None), [("taps-depth", E)]),
    "taps shifted": (keys(target_layers=[1, 3, 4]), [("taps-shift", E)]),
    "taps out of order": (keys(target_layers=[4, 2, 5], dflash_convert__source_taps=None), [("taps-order", W)]),
    "no taps": (keys(target_layers=None), [("taps-missing", E)]),
    "target without layer export": (side(1, architecture="deepseek2"), [("target-architecture", E)]),
    "unknown target class": (side(1, architecture=None), [("target-architecture", W)]),
    "trained for less": (keys(context_length=256), [("trained-context", W)]),
    "a target of 256": (side(1, context=256), []),
    # padding: 504 tokens are used
    "a few rows less": (side(0, rows=504, vocab=Vocab(), is_gguf=False), []),
    "too few rows": (side(0, rows=503, vocab=Vocab(), is_gguf=False), [("vocabulary-size", E)]),
    "twins": (side(0, rows=640, vocab=Vocab(), is_gguf=False), []),
    "unusual padding": (side(0, rows=641, vocab=Vocab(), is_gguf=False), [("vocabulary-padding", W)]),
    "more than padding": (side(0, rows=1024, vocab=Vocab(), is_gguf=False), [("vocabulary-size", E)]),
    "forced": (keys(dflash_convert__forced_pair=["target-depth"]), [("forced-pair", W)]),
    # mask token
    "no mask": (keys(tokenizer__ggml__mask_token_id=None), [("mask-token-missing", E)]),
    "mask outside": (keys(tokenizer__ggml__mask_token_id=512), [("mask-token-range", E)]),
    "mask is eos": (keys(tokenizer__ggml__mask_token_id=502), [("mask-token-special", W)]),
    "mask is a word": (keys(tokenizer__ggml__mask_token_id=300), [("mask-token-ordinary", W)]),
    # rope, scale, window, block
    "rope base": (keys(rope__freq_base=1e7), [("rope-base", W)]),
    "no rope base": (keys(rope__freq_base=None), [("rope-base", W)]),
    "M-RoPE target": (side(1, mrope=True), [("rope-sections", E)]),
    "M-RoPE pair": (both(side(1, mrope=True), keys(rope__dimension_sections=[32, 0, 0, 0])), []),
    "wrong sections": (
        both(side(1, mrope=True), keys(rope__dimension_sections=[11, 11, 10, 0])),
        [("rope-sections", E)],
    ),
    "M-RoPE drafter, plain target": (keys(rope__dimension_sections=[32, 0, 0, 0]), [("rope-sections", W)]),
    "a scale of nobody": (keys(embedding_scale=2.5), [("embedding-scale", W)]),
    "Gemma without scale": (side(1, embedding_scale=128**0.5), [("embedding-scale", E)]),
    "Gemma with scale": (both(side(1, embedding_scale=128**0.5), keys(embedding_scale=11.3137)), []),
    "wrong scale": (both(side(1, embedding_scale=128**0.5), keys(embedding_scale=1.0)), [("embedding-scale", E)]),
    "sliding, causality unsaid": (keys(**SLIDING), [("mixed-causality", W)]),
    "sliding, causal": (keys(**SLIDING, attention__causal=True), []),
    "a pattern without a window": (
        keys(attention__sliding_window_pattern=[True, True, False]),
        [("window-pattern", E)],
    ),
    "window below the block": (
        keys(**(SLIDING | {"attention__sliding_window": 4}), attention__causal=False),
        [("window-block", W)],
    ),
    "one number for a pattern": (keys(**(SLIDING | {"attention__sliding_window_pattern": 5})), [("window-pattern", E)]),
    "pattern too short": (
        keys(**(SLIDING | {"attention__sliding_window_pattern": [False, False]})),
        [("window-pattern", E)],
    ),
    "no block size": (keys(block_size=None), [("block-size", W)]),
    "block of one": (keys(block_size=1), [("block-size", E)]),
    "unknown activation": (keys(hidden_activation="relu"), [("hidden-activation", E)]),
    # heads
    "small head without map": (
        tensors({"output.weight": (64, 128)}),
        [("reduced-vocabulary", E), ("tensor-shapes", E)],
    ),
    "embeddings of another size": (
        tensors({"token_embd.weight": (500, 128)}),
        [("embedding-rows", E), ("tensor-shapes", E)],
    ),
    "map without head": (tensors({"d2t": (64,)}), [("reduced-vocabulary", E)]),
    "map and head": (tensors({"d2t": (64,), "output.weight": (64, 128)}), []),
    "map to a token that is not there": (
        both(tensors({"d2t": (64,), "output.weight": (64, 128)}), side(0, d2t=np.arange(537, 601))),
        [("reduced-vocabulary", E)],
    ),
    # keys against tensors
    "a key of another vocabulary": (keys(vocab_size=640), [("vocabulary-key", E)]),
    "a confidence head that is not there": (
        both(tensors(SPARK), keys(has_confidence_head=True), side(0, path=Path("dspark-target-F32.gguf"))),
        [("confidence-head", E)],
    ),
    # tensors
    "attention bias": (tensors({"blk.0.attn_q.bias": (256,)}), [("unclaimed-tensors", E)]),
    "norms dropped": (tensors(drop="_k_norm"), [("missing-tensors", E)]),
    "a layer without values": (tensors(drop="blk.1.attn_v"), [("value-projections", E)]),
    "no values at all": (tensors(drop="attn_v"), [("value-projections", W)]),
    "wrong shape": (tensors({"blk.0.ffn_up.weight": (384, 64)}), [("tensor-shapes", E)]),
    "DSpark": (
        both(tensors(SPARK), keys(sample_from_anchor=True), side(0, path=Path("dspark-target-F32.gguf"))),
        [],
    ),
    "DSpark with embeddings as head": (
        both(
            tensors(SPARK | {"token_embd.weight": (512, 128)}),
            side(0, path=Path("dspark-target-F32.gguf")),
        ),
        [("tied-head", W)],
    ),
    "DSpark without block": (
        both(tensors(SPARK), keys(block_size=None), side(0, path=Path("dspark-target-F32.gguf"))),
        [("block-size", E)],
    ),
    "DFlash2": (both(tensors(SELECTOR), keys(**SELECTOR_KEYS)), []),
    "DFlash2 without its keys": (tensors(SELECTOR), [("selector-keys", E)]),
    "DFlash2, lattice too large": (
        both(tensors(SELECTOR), keys(**(SELECTOR_KEYS | {"selector_top_k": 12}))),
        [("selector-keys", E)],
    ),
    # names
    "file name": (side(0, path=Path("Qwen3-DFlash-F32.gguf")), [("file-name", W)]),
    "upper-case prefix": (side(0, path=Path("DFlash-target.gguf")), [("file-name", W)]),
    "shard": (side(0, path=Path("dflash-target-00001-of-00002.gguf")), [("file-name", W)]),
    "another lineage": (side(1, names=("Llama 3.1 8B Instruct",)), [("lineage", W)]),
    "QAT target": (side(1, names=("Tiny JS target qat",)), [("lineage-variant", W)]),
    "fork dialect": (side(0, architecture="dflash-draft"), [("dialect", E)]),
    "swapped": (
        both(side(0, architecture="qwen3"), side(1, architecture="dflash")),
        [("drafter-architecture", E), ("target-is-drafter", E)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_mistake_has_its_finding(pair: tuple[DrafterView, TargetView], name: str) -> None:
    edit, expected = CASES[name]
    findings = check(*edit(*pair))
    assert [(finding.name, finding.severity) for finding in findings] == expected
    assert all(finding.cure for finding in findings)


def test_all_findings_come_at_once(pair: tuple[DrafterView, TargetView]) -> None:
    edit = both(
        keys(tokenizer__ggml__mask_token_id=None, rope__freq_base=1.0, target_layers=[9]),
        vocabulary(0, swap_token),
        tensors(drop="output_norm"),
    )
    names = {finding.name for finding in check(*edit(*pair))}
    assert names >= {"mask-token-missing", "rope-base", "taps-depth", "vocabulary-content", "missing-tensors"}


def test_values_of_both_sides_are_shown(pair: tuple[DrafterView, TargetView]) -> None:
    (finding,) = check(*vocabulary(0, swap_token)(*pair))
    target = pair[1]
    tokens = list(target.vocab.tokens or ())
    assert finding.drafter == [f"300: {tokens[301]}", f"301: {tokens[300]}"]
    assert finding.target == [f"300: {tokens[300]}", f"301: {tokens[301]}"]
    (finding,) = check(*keys(rope__freq_base=1e7)(*pair))
    assert (finding.drafter, finding.target) == (1e7, [1e6])


def test_only_the_first_differences_are_shown(pair: tuple[DrafterView, TargetView]) -> None:
    def rotate(tokens: list[str], types: list[int]) -> None:
        tokens[:500] = tokens[1:500] + tokens[:1]

    (finding,) = check(*vocabulary(0, rotate)(*pair))
    assert len(finding.drafter) == 4
    assert finding.drafter[-1] == "and 497 more"


@pytest.mark.parametrize(
    ("n_max", "expected"), [(7, []), (8, [("n-max", W)]), (15, [("n-max", W)]), (0, [("n-max", E)])]
)
def test_n_max_against_the_block(
    pair: tuple[DrafterView, TargetView], n_max: int, expected: list[tuple[str, str]]
) -> None:
    assert [(f.name, f.severity) for f in check(*pair, n_max)] == expected


def test_an_anchor_first_block_drafts_one_more(pair: tuple[DrafterView, TargetView]) -> None:
    spark = both(tensors(SPARK), side(0, path=Path("dspark-t.gguf")))
    anchor = both(spark, keys(sample_from_anchor=True))
    bonus = both(spark, keys(sample_from_anchor=False))
    assert check(*anchor(*pair), 8) == []
    assert [f.drafter for f in check(*bonus(*pair), 8)] == [7]


def test_taps_of_the_last_layer_work_where_the_graph_exports_it(pair: tuple[DrafterView, TargetView]) -> None:
    edit = both(keys(target_layers=[2, 4, 6], dflash_convert__source_taps=None), side(1, architecture="mimo2"))
    assert check(*edit(*pair)) == []


@pytest.mark.parametrize(
    ("drafter", "target", "word"),
    [
        ("dflash", "qwen3", "it aborts at the first draft"),
        ("dflash", "gpt-oss", "it aborts at the first draft"),
        ("dflash", "nemotron_h", None),
        ("eagle3", "gpt-oss", None),
        ("eagle3", "qwen3", "the drafts are noise"),
        ("eagle3", "nemotron_h", "the drafts are noise"),
        ("eagle3", "mimo2", None),
    ],
)
def test_the_last_layer_by_what_the_graph_exports(
    pair: tuple[DrafterView, TargetView], drafter: str, target: str, word: str | None
) -> None:
    """Published EAGLE-3 heads of gpt-oss-120b tap its last layer, which its graph gives to them and to no DFlash."""
    view, other = pair
    values = {name.replace("dflash.", f"{drafter}.", 1): value for name, value in view.keys.values.items()}
    values |= {f"{drafter}.target_layers": [2, 4, 6]}
    view = replace(view, architecture=drafter, keys=replace(view.keys, values=values))
    found = [f for f in check(view, replace(other, architecture=target)) if f.name == "last-layer-tap"]
    assert [word in finding.cure for finding in found if word] == ([] if word is None else [True])
    assert bool(found) is (word is not None)


def test_an_assistant_belongs_to_a_gemma_4(pair: tuple[DrafterView, TargetView]) -> None:
    view, other = pair
    own = {
        "embedding_length_out": 128,
        "block_count": 2,
        "nextn_predict_layers": 2,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [True, False],
    }
    keys = {f"gemma4-assistant.{name}": value for name, value in own.items()}
    view = replace(view, architecture="gemma4-assistant", keys=replace(view.keys, values=keys), tensors={}, depth=None)
    gemma = replace(other, architecture="gemma4", rope_bases=(1e6, 1e4), embedding_scale=128**0.5)
    name = Path("mtp-target-F32.gguf")

    def told(view: DrafterView, target: TargetView) -> list[str]:
        return [finding.name for finding in check(replace(view, path=name), target)]

    assert told(view, gemma) == []
    assert told(view, replace(gemma, hidden=256)) == ["hidden-size"]
    assert told(view, replace(other, rope_bases=gemma.rope_bases)) == ["target-architecture"]
    assert told(view, replace(gemma, rope_bases=(1e6, 5e5))) == ["rope-base"]
    fewer = replace(view, keys=replace(view.keys, values=keys | {"gemma4-assistant.nextn_predict_layers": 1}))
    assert told(fewer, gemma) == ["prediction-layers"]


def test_without_a_target_the_drafter_is_judged_by_itself(pair: tuple[DrafterView, TargetView]) -> None:
    view, _ = pair
    assert check(view, None) == []
    edit = both(keys(target_layers=None, block_size=1), tensors({"blk.0.attn_q.bias": (256,)}))
    names = [finding.name for finding in check(edit(*pair)[0], None)]
    assert names == ["taps-missing", "block-size", "unclaimed-tensors"]


def test_causes_come_before_their_consequences(pair: tuple[DrafterView, TargetView]) -> None:
    """Another model's vocabulary and depth first, then what follows from them."""
    edit = both(
        side(0, rows=262144, vocab=Vocab(), is_gguf=False, depth=60),
        keys(tokenizer__ggml__mask_token_id=4000, target_layers=[2, 4, 58], dflash_convert__source_taps=None),
        side(1, hidden=96),
    )
    errors = [finding for finding in check(*edit(*pair)) if finding.severity == "error"]
    names = [finding.name for finding in errors]
    assert names[:4] == ["vocabulary-size", "target-depth", "hidden-size", "taps-depth"]
    assert names.index("mask-token-range") > 3
    assert all("most likely the wrong target" in finding.cure for finding in errors[:4])
    (drafter, target) = edit(*pair)
    known = keys(general__base_model__0__name="gemma-4-31B-it", dflash_convert__target__name=None)(drafter, target)[0]
    assert "this drafter says it was made for gemma-4-31B-it" in check(known, target)[0].cure
