"""The memory plan against published figures (Gemma-4-12B with its DFlash drafter, context 163840)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import TensorType
from dflash_convert.errors import ConfigError, ContainerError, UsageError
from dflash_convert.memory.models import drafter_from_config, model_from_keys, target_from_config
from dflash_convert.memory.plan import Serving, plan_memory

CONTEXT = 163840
DRAFTER = {
    "hidden_size": 3840,
    "intermediate_size": 7680,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "use_sliding_window": True,
    "sliding_window": 2048,
    "vocab_size": 262144,
    "max_position_embeddings": 262144,
    "dflash_config": {"target_layer_ids": [1, 10, 19, 28, 37, 46], "mask_token_id": 4},
}
TARGET = {
    "model_type": "gemma4",
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 48,
        "num_kv_shared_layers": 0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 8,
        "sliding_window": 1024,
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
    },
}


def published(**over: Any) -> dict[str, Any]:
    request = Serving(**{"ctx_size": CONTEXT, "cache_k": "q8_0", "cache_v": "q8_0", "n_max": 4, **over})
    return plan_memory(drafter_from_config(DRAFTER, "q4_0"), target_from_config(TARGET), request).json()


def test_published_drafter_is_reproduced_from_the_config() -> None:
    part = published()["drafter"]
    assert part["weights_mib"] == pytest.approx(390.42, abs=0.005)
    assert part["kv_mib"] == 640.00
    assert part["swa_kv_mib"] == 136.00


def test_published_target_caches_are_reproduced_from_the_config() -> None:
    part = published()["target"]
    assert (part["kv_mib"], part["swa_kv_mib"]) == (1360.00, 765.00)
    assert part["weights_mib"] is None


def test_published_compute_buffers_of_the_drafter_are_near() -> None:
    part = published()["drafter"]
    assert part["compute_mib"] == pytest.approx(519.50, abs=0.01)
    assert part["compute_host_mib"] == pytest.approx(176.02, abs=0.05)


def test_drafts_are_sampled_from_a_second_copy_of_the_logits() -> None:
    """Allocated by llama.cpp b11434 for 151936 tokens: 297.75 MiB, then 595.08 (H = 256) and 610.08 (H = 4096)."""
    small = {**DRAFTER, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 151936, "layer_types": None}
    part = plan_memory(drafter_from_config({**small, "use_sliding_window": False}), None, Serving(8192)).json()[
        "drafter"
    ]
    assert part is not None
    assert part["compute_mib"] == pytest.approx(297.75, abs=1)
    assert part["compute_mib"] + part["sampling_mib"] == pytest.approx(595.08, abs=1)  # type: ignore[operator]


def test_dflash2_selects_its_drafts_itself() -> None:
    drafter = drafter_from_config(DRAFTER)
    chosen = plan_memory(dataclasses.replace(drafter, own_selector=True), None, Serving(CONTEXT))
    plain = plan_memory(drafter, None, Serving(CONTEXT))
    assert (chosen.drafter.sampling, plain.drafter.total - chosen.drafter.total) == (0, plain.drafter.sampling)


def test_explicit_slots_have_their_own_windows() -> None:
    plan = published(parallel=4)
    assert plan["drafter"]["swa_kv_mib"] == 160.00  # 4 x 2560 cells
    assert plan["drafter"]["kv_mib"] == 640.00
    assert (plan["unified"], plan["parallel"]) == (False, 4)


def test_one_slot_needs_one_window() -> None:
    assert published(parallel=1)["drafter"]["swa_kv_mib"] == 40.00  # 2560 cells x 4 layers x 4 KiB


def test_small_contexts_cap_the_window() -> None:
    plan = published(ctx_size=1000)  # padded to 1024, less than window and micro-batch
    assert plan["ctx_size"] == 1024
    assert plan["drafter"]["kv_mib"] == 4.00
    assert plan["drafter"]["swa_kv_mib"] == 16.00


def test_taps_are_carried_for_one_batch() -> None:
    assert published()["target"]["taps_host_mib"] == 180.00  # 6 taps x 2048 tokens x 3840 x 4 bytes


def test_other_encodings_count_their_blocks() -> None:
    matrices = 727_449_600
    assert drafter_from_config(DRAFTER, "bf16").weights == matrices * 2 + 189_440
    assert drafter_from_config(DRAFTER, "q8_0").weights == matrices // 32 * 34 + 189_440


def test_drafter_without_window_is_all_full() -> None:
    plan = plan_memory(drafter_from_config({**DRAFTER, "use_sliding_window": False}), None, Serving(CONTEXT))
    assert (plan.drafter.kv, plan.drafter.window_kv) == (5 * 640 << 20, 0)
    assert plan.target is None


def test_swa_of_dflash_config_covers_every_layer() -> None:
    nested = {**DRAFTER["dflash_config"], "use_swa": True, "swa_window_size": 1024}  # type: ignore[dict-item]
    plan = plan_memory(drafter_from_config({**DRAFTER, "dflash_config": nested}), None, Serving(CONTEXT))
    assert plan.drafter.kv == 0
    assert plan.drafter.window_kv == 5 * 4608 * 4096


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"ctx_size": -1}, "context of -1"),
        ({"ctx_size": 1 << 40}, "context of 1099511627776"),
        ({"parallel": 0}, "0 parallel slots"),
        ({"parallel": 300}, "300 parallel slots"),
        ({"cache_k": "q3_k"}, "q3_k is not a cache type"),
        ({"n_max": 0}, "n-max"),
    ],
)
def test_impossible_requests_are_refused(over: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        published(**over)
    assert caught.value.exit_code == 2


def test_cache_rows_must_fill_blocks() -> None:
    odd = {**DRAFTER, "head_dim": 20, "num_key_value_heads": 1, "num_attention_heads": 1}
    with pytest.raises(UsageError, match="row of 20 elements"):
        plan_memory(drafter_from_config(odd), None, Serving(4096, draft_cache_k="q8_0"))


def test_quantized_drafter_cache_is_warned_about() -> None:
    plan = plan_memory(drafter_from_config(DRAFTER), None, Serving(4096, draft_cache_k="q8_0"))
    assert any("keep f16" in note.text for note in plan.notes)


def test_context_beyond_training_is_a_warning() -> None:
    plan = plan_memory(drafter_from_config(DRAFTER), None, Serving(300_000))
    assert any("exceed the drafter's trained context" in note.text for note in plan.notes)


def test_context_zero_is_the_trained_one() -> None:
    assert plan_memory(drafter_from_config(DRAFTER), None, Serving()).ctx_size == 262144


def test_heads_beyond_plain_dflash_are_left_to_the_tensors() -> None:
    with pytest.raises(ConfigError, match="only the tensors tell"):
        drafter_from_config({**DRAFTER, "markov_rank": 256})


def test_missing_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="intermediate_size"):
        drafter_from_config({k: v for k, v in DRAFTER.items() if k != "intermediate_size"})


def test_gguf_of_the_bundled_target(fixtures: Path) -> None:
    file = open_gguf(fixtures / "tiny-js" / "target-bf16.gguf")
    model = model_from_keys(
        {name: kv.value for name, kv in file.keys.items()}, {t.name: (t.shape, t.type) for t in file.tensors.values()}
    )
    assert model.weights == sum(t.nbytes for t in file.tensors.values())
    assert (len(model.layers), model.vocab, model.hidden) == (6, 512, 128)
    plan = plan_memory(drafter_from_config(DRAFTER), model, Serving(4096))
    assert plan.target is not None
    assert plan.target.kv == 6 * 4096 * 2 * 2 * 64 * 2


KEYS = {
    "general.architecture": "x",
    "x.block_count": 4,
    "x.embedding_length": 64,
    "x.attention.head_count": 4,
    "x.attention.head_count_kv": 2,
    "x.context_length": 4096,
}


def test_keys_with_two_head_sizes_and_a_pattern() -> None:
    keys = {
        **KEYS,
        "x.attention.sliding_window": 128,
        "x.attention.sliding_window_pattern": [True, True, False, True],
        "x.attention.key_length": 32,
        "x.attention.value_length": 32,
        "x.attention.key_length_swa": 16,
        "x.attention.value_length_swa": 16,
        "x.attention.head_count_kv": [2, 2, 1, 2],
        "x.attention.shared_kv_layers": 1,
    }
    model = model_from_keys(keys, {"x": ((2, 32), TensorType.Q8_0)})
    assert [(layer.k, layer.v, layer.windowed) for layer in model.layers] == [
        (32, 32, True),
        (32, 32, True),
        (32, 32, False),
    ]
    assert model.weights == 68


def test_hybrid_models_cache_only_their_attention_layers() -> None:
    model = model_from_keys({**KEYS, "x.full_attention_interval": 4})
    assert len(model.layers) == 1
    assert any("not counted" in note.text for note in model.notes)


def test_unknown_window_pattern_is_counted_as_full_and_said() -> None:
    model = model_from_keys({**KEYS, "x.attention.sliding_window": 128})
    assert not any(layer.windowed for layer in model.layers)
    assert any("not known" in note.text for note in model.notes)


def test_keys_without_layers_are_refused() -> None:
    with pytest.raises(ContainerError, match=r"x\.block_count"):
        model_from_keys({"general.architecture": "x"})


def test_latent_and_linear_attention_of_a_config() -> None:
    base = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "layer_types": ["linear_attention", "full_attention"],
    }
    model = target_from_config({**base, "kv_lora_rank": 512, "qk_rope_head_dim": 64})
    assert [(layer.k, layer.v) for layer in model.layers] == [(576, 0)]
    assert any("not counted" in note.text for note in model.notes)


def test_layer_kinds_nobody_knows_are_refused() -> None:
    text = {**TARGET["text_config"], "layer_types": ["moon_attention"] * 48}  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="layer_types is 'moon_attention'"):
        target_from_config({"text_config": text})


def test_a_model_without_a_context_length_needs_one() -> None:
    silent = drafter_from_config({k: v for k, v in DRAFTER.items() if k != "max_position_embeddings"})
    with pytest.raises(UsageError, match="does not say its context length") as caught:
        plan_memory(silent, None, Serving())
    assert caught.value.tip == "give --ctx-size"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"x.attention.head_count_kv": [2, 2]},
            r"x\.attention\.head_count_kv is \[2, 2\], expected 3 values, one a layer",
        ),
        ({"x.embedding_length": "64"}, r"x\.embedding_length is '64', expected a whole number"),
        (
            {"x.attention.sliding_window": 8, "x.attention.sliding_window_pattern": [True]},
            "one flag for each of 4 layers",
        ),
    ],
)
def test_unusable_keys_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ContainerError, match=words):
        model_from_keys({**KEYS, **change})


def test_patterns_the_runtime_has_built_in() -> None:
    keys = {name.replace("x.", "gpt-oss."): value for name, value in KEYS.items()}
    keys |= {"general.architecture": "gpt-oss", "gpt-oss.attention.sliding_window": 128}
    assert [layer.windowed for layer in model_from_keys(keys).layers] == [True, False, True, False]
