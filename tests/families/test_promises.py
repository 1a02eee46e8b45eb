"""What config.json promises of the tensors is compared with them; a broken promise names both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import make_checkpoints as mk
import numpy as np
import pytest
from family_cases import Read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_convert.errors import CheckpointError, ConfigError, DflashError, FamilyError
from dflash_convert.families import fields

Change = Callable[[mk.Case], None]


def top(**values: Any) -> Change:
    return lambda case: case.config.update(values)


def nested(**values: Any) -> Change:
    return lambda case: case.config.setdefault("dflash_config", {}).update(values)


def eagle(**values: Any) -> Change:
    return lambda case: case.config.setdefault("eagle_config", {}).update(values)


def without(*parts: str) -> Change:
    def change(case: mk.Case) -> None:
        for name in [n for n in case.tensors if any(part in n for part in parts)]:
            del case.tensors[name]

    return change


def both(*changes: Change) -> Change:
    def change(case: mk.Case) -> None:
        for one in changes:
            one(case)

    return change


# (case, field, change, what the sentence says of config and tensors); the case itself is read without a word
BROKEN: tuple[tuple[str, str, Change, str], ...] = (
    ("dflash", "has_embed_tokens", top(has_embed_tokens=True), "is true, but the checkpoint has no embed_tokens"),
    ("dflash", "has_lm_head", top(has_lm_head=True), "is true, but the checkpoint has no lm_head"),
    ("dspark_deepspec", "has_lm_head", top(has_lm_head=False), "is false, but the checkpoint has lm_head"),
    ("eagle3", "has_lm_head", top(has_lm_head=False), "is false, but the checkpoint has lm_head"),
    ("dflash", "attention_bias", top(attention_bias=True), r"has no self_attn\.q_proj\.bias"),
    ("dflash", "mlp_bias", top(mlp_bias=True), r"has no mlp\.gate_proj\.bias"),
    ("dflash", "attention_sink_bias", nested(attention_sink_bias=True), "is true, but the checkpoint has no sink"),
    ("dflash_window_causal", "attention_sink_bias", nested(attention_sink_bias=False), "is false, .* has sink"),
    ("dflash", "use_attention_sink", nested(use_attention_sink=True), "is true, but the checkpoint has no sink"),
    ("dspark_deepspec", "markov_rank", top(markov_rank=64), "is 64, .* a Markov head of rank 32"),
    ("dspark_deepspec", "markov_rank", top(markov_rank=0), "is 0, .* a Markov head of rank 32"),
    ("dspark_deepspec", "markov_rank", without("markov_"), "is 32, but the checkpoint has no Markov head"),
    ("dspark_specforge", "markov_rank", nested(markov_rank=256), "is 256, .* of rank 32"),
    ("gemma4_dspark", "markov_rank", top(markov_rank=256), "is 256, .* of rank 32"),
    ("dspark_ling", "enable_confidence_head", top(enable_confidence_head=False), "is false, .* has confidence_head"),
    ("dspark_lfm2", "enable_confidence_head", top(enable_confidence_head=True), "is true, .* has no confidence_head"),
    ("dspark_lfm2", "use_confidence_head", nested(use_confidence_head=True), "is true, .* has no confidence_head"),
    ("dspark_ling", "confidence_head_with_markov", top(confidence_head_with_markov=False), r"is false, .*\[1, 160\]"),
    ("dflash", "use_aux_hidden_state", nested(use_aux_hidden_state=False), r"is false, .* has fc\.weight"),
    ("eagle3", "use_aux_hidden_state", eagle(use_aux_hidden_state=False), r"is false, .* has fc\.weight"),
    ("eagle3", "use_last_layernorm", eagle(use_last_layernorm=False), r"is false, .* has norm\.weight"),
    (
        "eagle3",
        "use_input_layernorm_in_first_layer",
        eagle(use_input_layernorm_in_first_layer=False),
        r"is false, .* has layers\.0\.input_layernorm",
    ),
    ("eagle3", "norm_before_fc", top(norm_before_fc=True), "is true, but the checkpoint has no input_norm"),
    ("eagle3", "norm_before_fc", eagle(norm_before_fc=True), "is true, but the checkpoint has no input_norm"),
    ("eagle3", "num_aux_hidden_states", top(num_aux_hidden_states=4), "is 4, .*3 taps"),
    ("eagle3", "target_hidden_size", top(target_hidden_size=64), r"fc\.weight' has shape .* implies \[128, 192\]"),
    ("dflash", "target_hidden_size", top(target_hidden_size=64), r"is 64, but fc\.weight reads 3 states of 128"),
    ("dflash", "num_hidden_layers", top(num_hidden_layers=3), r"no tensor for blk\.2\.attn_norm"),
    ("dflash", "num_hidden_layers", top(num_hidden_layers=1), "of layer 1, config.json says 1 layers"),
    ("dflash", "num_target_layers", top(num_target_layers=2), "outside a target of 2 layers"),
    ("dflash_speculators", "draft_vocab_size", top(draft_vocab_size=128), r"d2t' has shape \[256\], .* \[128\]"),
    ("eagle3", "draft_vocab_size", top(draft_vocab_size=mk.VOCAB), "has shape .* implies"),
    ("dflash", "draft_vocab_size", top(draft_vocab_size=128), "draft_vocab_size 128 < vocab_size 512 but no d2t"),
    ("deepseek_v4_dspark", "dspark_markov_rank", top(dspark_markov_rank=64), "is 64, markov_w1 has rank 32"),
    ("gemma4_assistant", "use_ordered_embeddings", top(use_ordered_embeddings=True), "has no masked_embedding"),
    ("dflash", "rope_dim", top(rope_scaling={"rope_dim": 32}), "rope_dim is 32, expected the 64 rotated"),
)


@pytest.mark.parametrize(("name", "field", "change", "text"), BROKEN, ids=[f"{b[0]}-{b[1]}" for b in BROKEN])
def test_a_broken_promise_names_both(name: str, field: str, change: Change, text: str, read: Read) -> None:
    read(name)
    case = mk.CASES[name]()
    change(case)
    with pytest.raises((CheckpointError, ConfigError, FamilyError), match=text) as caught:
        read(case)
    assert "\n" not in str(caught.value)
    if text.startswith("is "):
        assert field in str(caught.value)


def test_every_checked_field_is_broken_here_or_below() -> None:
    checked = {name for row in fields.TABLE if row.treatment == "checked" for name in row.names.split()}
    assert checked - {field for _, field, _, _ in BROKEN} == {"tie_word_embeddings"}


KEPT: tuple[tuple[str, Change], ...] = (
    ("dspark_deepspec", top(has_lm_head=True, has_embed_tokens=True, markov_rank=32, attention_bias=False)),
    ("dspark_ling", top(enable_confidence_head=True, confidence_head_with_markov=True)),
    ("dspark_lfm2", nested(use_confidence_head=False, markov_rank=32)),
    ("dspark_deepspec_plain", top(markov_rank=0, enable_confidence_head=False)),
    ("dflash_window_causal", nested(attention_sink_bias=True)),
    ("dflash", both(top(has_lm_head=False, target_hidden_size=mk.HIDDEN), nested(use_aux_hidden_state=True))),
    ("eagle3", eagle(use_aux_hidden_state=True, use_last_layernorm=True, use_input_layernorm_in_first_layer=True)),
    ("eagle3", top(num_aux_hidden_states=3, target_hidden_size=mk.HIDDEN, norm_before_fc=False)),
    ("gemma4_assistant", top(use_ordered_embeddings=False)),
    ("dflash", top(rope_scaling={"rope_dim": mk.HEAD_DIM})),
)


@pytest.mark.parametrize(("name", "change"), KEPT)
def test_a_kept_promise_changes_nothing(name: str, change: Change, read: Read) -> None:
    plain = read(name)
    case = mk.CASES[name]()
    change(case)
    found = read(case)
    planned = [[(p.name, p.shape, p.transform) for p in one.tensors] for one in (found, plain)]
    assert (found.all_keys, planned[0]) == (plain.all_keys, planned[1])


@pytest.mark.parametrize("name", ["dspark_deepspec", "eagle3"])
def test_tied_embeddings_beside_another_head(name: str, read: Read) -> None:
    case = mk.CASES[name]()
    case.tensors.add("embed_tokens.weight", mk.VOCAB, mk.HIDDEN, scale=0.5)
    case.config["tie_word_embeddings"] = True
    (note,) = [note for note in read(case).notes if "tie_word_embeddings" in note.text]
    assert (note.level, note.guess) == ("warning", True)
    assert "lm_head.weight counts" in note.text
    if name == "dspark_deepspec":
        case.tensors["lm_head.weight"] = case.tensors["embed_tokens.weight"]
        assert not [note for note in read(case).notes if "tie_word_embeddings" in note.text]


BOOLEANS = [(name, field, change) for name, field, change, text in BROKEN if text.startswith(("is true", "is false"))]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(which=st.sampled_from(BOOLEANS), flipped=st.booleans())
def test_a_flipped_promise_is_found(which: Any, flipped: bool, read: Read) -> None:
    name, field, change = which
    case = mk.CASES[name]()
    change(case)
    holder = next(h for h in (case.config, *(v for v in case.config.values() if isinstance(v, dict))) if field in h)
    if not flipped:
        with pytest.raises(DflashError):
            read(case)
        return
    holder[field] = not holder[field]  # back to the truth
    read(case)


# a reduced vocabulary's map -------------------------------------------------------------------------------------------


def spread(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64)


@pytest.mark.parametrize("name", ["dflash_speculators", "dspark_speculators", "eagle3"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: 2 * np.arange(d.size), "holds absolute ids where offsets belong"),
        (lambda d: np.where(np.arange(d.size) == 7, -8, d), "maps draft row 7 to token -1"),
        (lambda d: np.where(np.arange(d.size) == 7, 600, d), "maps draft row 7 to token 607 of 512"),
        (lambda d: np.where(np.arange(d.size) == 7, d - 2, d), "maps draft rows 6 and 7 both to token 12"),
    ],
)
def test_a_map_that_leads_astray_is_refused(name: str, change: Any, text: str, read: Read) -> None:
    read(name)
    case = mk.CASES[name]()
    stored = case.tensors["d2t"][1]
    case.tensors["d2t"] = ("I64", spread(change(stored)))
    with pytest.raises(CheckpointError, match=text) as caught:
        read(case)
    assert str(caught.value).partition("/model.safetensors: ")[2].startswith("d2t ")
    assert caught.value.tip


def test_a_map_and_a_selection_of_other_tokens_are_refused(read: Read) -> None:
    case = mk.eagle3()
    marks = case.tensors["t2d"][1].copy()
    marks[0], marks[1] = 0, 1
    case.tensors["t2d"] = ("BOOL", marks)
    with pytest.raises(CheckpointError, match="d2t and t2d keep different tokens"):
        read(case)
    del case.tensors["t2d"]
    read(case)
    case.tensors["d2t"] = ("I32", case.tensors["d2t"][1].astype(np.int32))
    read(case)
