"""G1 to G46: where llama.cpp b11434's converter or loader fails or loses information (docs/gaps.md)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import numpy as np
import pytest
from family_cases import Key, Make, Read
from torch_archive import mask_program, tensor, write_archive

from dflash_convert import conversion as convert
from dflash_convert.checkpoint import open_checkpoint
from dflash_convert.container.reader import open_gguf
from dflash_convert.drafter import Description, Overrides, Taps
from dflash_convert.errors import CheckpointError, ConfigError, DflashError, FamilyError, PairingError
from dflash_convert.families.detect import describe
from dflash_convert.target import Target
from dflash_convert.vocab import load_vocabulary


def texts(description: Description, level: str) -> str:
    return "\n".join(note.text for note in description.notes if note.level == level)


def shape(description: Description, name: str) -> tuple[int, ...] | None:
    return next((plan.shape for plan in description.tensors if plan.name == name), None)


def transform(description: Description, name: str) -> str:
    return next(plan.transform for plan in description.tensors if plan.name == name)


def one_sentence(error: DflashError) -> str:
    """The message, which must be one line without a traceback."""
    message = str(error)
    assert "\n" not in message
    assert len(message) > 20
    return message


def refused(read: Read, case: mk.Case | str, kind: type[DflashError] = FamilyError, **overrides: object) -> str:
    with pytest.raises(kind) as caught:
        read(case, **overrides)
    return one_sentence(caught.value)


def prepared(where: Path, **options: Any) -> convert.Conversion:
    sources = convert.Source(where / "drafter"), Target.read(where / "target")
    return convert.prepare(*sources, convert.Options(**options))


def test_g01_qwen3_moe_targets_convert(case_dir: Make) -> None:
    case = mk.dflash()
    case.target = {"architectures": ["Qwen3MoeForCausalLM"]}
    assert prepared(case_dir(case)).vocabulary.model == "gpt2"
    case.target = {"architectures": ["Qwen3VLMoeForConditionalGeneration"]}  # its graph exports no layer inputs
    with pytest.raises(PairingError, match="target-architecture"):
        prepared(case_dir(case))
    assert prepared(case_dir(case), force_pair=True).vocabulary.model == "gpt2"


def test_g02_untied_embeddings_and_head_are_both_kept(read: Read) -> None:
    found = read("dspark_deepspec")
    assert shape(found, "token_embd.weight") == (mk.VOCAB, mk.HIDDEN)
    assert shape(found, "output.weight") == (mk.VOCAB, mk.HIDDEN)
    alone = mk.dspark_deepspec()
    del alone.tensors["embed_tokens.weight"]
    assert shape(read(alone), "output.weight") == (mk.VOCAB, mk.HIDDEN)


def test_g03_speculators_dflash(read: Read, key: Key) -> None:
    found = read("dflash_speculators")
    assert (found.family, found.block_size, found.mask_token_id) == ("DFlash", mk.BLOCK, mk.MASK)
    assert key(found, "target_layers") == [2, 3, 4]
    assert key(found, "block_count") == mk.LAYERS
    assert shape(found, "output.weight") == (mk.DRAFT_VOCAB, mk.HIDDEN)
    assert shape(found, "d2t") == (mk.DRAFT_VOCAB,)
    assert found.tensors[-1].transform == "add_index"
    assert [name for name, _ in found.skipped] == ["t2d"]
    assert "example/Tiny-Target" in texts(found, "info")


@pytest.mark.parametrize(("tokens", "anchor"), [(mk.BLOCK, True), (mk.BLOCK - 1, False)])
def test_g04_proposal_methods_decide_the_anchor_rule(read: Read, key: Key, tokens: int, anchor: bool) -> None:
    case = mk.Case(mk.speculators("dspark", "DSparkSpeculator", tokens), mk.markov(mk.backbone()))
    found = read(case)
    assert key(found, "sample_from_anchor") is anchor
    assert f"{tokens} speculative tokens" in texts(found, "derived")


@pytest.mark.parametrize("anchor", [True, False])
def test_g05_nested_sample_from_anchor_counts(read: Read, key: Key, anchor: bool) -> None:
    case = mk.Case(
        mk.contract({"sample_from_anchor": anchor}, architectures=["DSparkDraftModel"]), mk.markov(mk.backbone())
    )
    assert key(read(case), "sample_from_anchor") is anchor


QWEN35 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
}


def test_g06_a_head_that_repeats_its_targets_partial_factor_rotates_fully(read: Read, key: Key) -> None:
    case = mk.dspark_ling()
    case.config |= {"partial_rotary_factor": 0.25}
    case.target = QWEN35
    found = read(case)
    assert key(found, "rope.dimension_count") is None
    assert key(found, "rope.dimension_sections") == [mk.HEAD_DIM // 2, 0, 0, 0]
    assert "full rotary" in texts(found, "derived")
    chosen = read(case, rope_dimension_count=16)
    assert key(chosen, "rope.dimension_count") == 16
    assert key(chosen, "rope.dimension_sections") == [8, 0, 0, 0]
    other = mk.dspark_ling()
    other.config |= {"partial_rotary_factor": 0.5}
    other.target = QWEN35
    assert key(read(other), "rope.dimension_count") == 32


def test_g06_plain_dflash_takes_the_factor_as_the_reference_does(read: Read, key: Key) -> None:
    case = mk.Case(mk.contract(partial_rotary_factor=0.25), mk.backbone(), QWEN35)
    assert key(read(case), "rope.dimension_count") == 16


def test_g07_sliding_layer_types_count_unless_switched_off(read: Read, key: Key) -> None:
    kinds: mk.Config = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
    found = read(mk.Case(mk.contract(**kinds), mk.backbone()))
    assert key(found, "attention.sliding_window") == 64
    assert key(found, "attention.sliding_window_pattern") == [True, False]
    assert "sliding layers from layer_types" in texts(found, "derived")
    off = read(mk.Case(mk.contract(**kinds, use_sliding_window=False), mk.backbone()))
    assert key(off, "attention.sliding_window") is None
    assert "use_sliding_window is false" in texts(off, "info")


def test_g07_other_kinds_of_layers_are_refused(read: Read) -> None:
    kinds = ["full_attention", "chunked_attention"]
    with pytest.raises(FamilyError, match="layer_types holds 'chunked_attention'"):
        read(mk.Case(mk.contract(layer_types=kinds), mk.backbone()))
    window = {**mk.contract()["dflash_config"], "use_swa": True, "swa_window_size": 64}
    for decided in ({"use_sliding_window": False}, {"dflash_config": window}):
        read(mk.Case(mk.contract(layer_types=kinds, **decided), mk.backbone()))


def test_g08_mixed_causality_is_said_and_no_key_is_written(read: Read, key: Key) -> None:
    kinds: mk.Config = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
        "use_sliding_window": True,
    }
    found = read(mk.Case(mk.contract(**kinds), mk.backbone()))
    assert key(found, "attention.causal") is None
    assert "nothing says whether the sliding layers are causal" in texts(found, "warning")
    stated = read(mk.Case(mk.contract({"causal": True}, **kinds), mk.backbone()))
    assert key(stated, "attention.causal") is True
    assert texts(stated, "warning") == ""


def test_g09_exporters_own_causality_fields(read: Read, key: Key) -> None:
    every: mk.Config = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64, "use_sliding_window": True}
    mixed = every | {"layer_types": ["sliding_attention", "full_attention"]}

    def causal(**fields: Any) -> object:
        return key(read(mk.Case(mk.contract(**fields), mk.backbone())), "attention.causal")

    assert causal(**every, sliding_window_non_causal=False) is True
    assert causal(**every, sliding_window_non_causal=True) is False
    assert causal(**mixed, sliding_window_non_causal=False) is None
    assert causal(**mixed, sliding_window_non_causal=True) is False
    assert causal(dflash_query_causal=True) is True
    assert causal(sliding_window_non_causal=False) is None  # no sliding layer: says nothing
    muse = mk.muse_glimmer()
    muse.config["is_causal"] = True
    assert key(read(muse), "attention.causal") is True


def test_g10_mask_token_at_the_top_or_as_text(read: Read) -> None:
    config = mk.contract(mask_token_id=mk.MASK)
    del config["dflash_config"]["mask_token_id"]
    assert read(mk.Case(config, mk.backbone())).mask_token_id == mk.MASK
    del config["mask_token_id"]
    assert "mask_token_id is missing" in refused(read, mk.Case(config, mk.backbone()), ConfigError)
    assert read(mk.Case(config, mk.backbone()), mask_token_id=7).mask_token_id == 7
    config["dflash_config"]["mask_token"] = "<|mask|>"
    found = read(mk.Case(config, mk.backbone()))
    assert found.mask_token_id == 503
    assert "<|mask|>" in texts(found, "derived")
    config["dflash_config"]["mask_token"] = "<|nothing|>"
    assert "does not name" in refused(read, mk.Case(config, mk.backbone()), ConfigError)


def test_g11_missing_taps_are_asked_for_not_guessed(read: Read) -> None:
    config = mk.contract()
    del config["dflash_config"]["target_layer_ids"]
    case = mk.Case(config, mk.backbone())
    with pytest.raises(ConfigError, match=r"target_layer_ids is missing \(fc\.weight is made for 3\)") as caught:
        read(case)
    assert "--taps 1,9,17" in str(caught.value.tip)
    assert read(case, taps=Taps.from_outputs((0, 2, 5))).taps.inputs == (1, 3, 6)


def test_g12_a_missing_block_size_is_an_error(read: Read) -> None:
    case = mk.dflash()
    del case.config["block_size"]
    assert "block_size is missing" in refused(read, case, ConfigError)
    assert read(case, block_size=16).block_size == 16


def test_g13_modelopt_dspark_names(read: Read, key: Key) -> None:
    found = read("dspark_modelopt")
    assert shape(found, "markov_w1.weight") == (mk.VOCAB, mk.RANK)
    assert shape(found, "conf_proj.weight") == (1, mk.HIDDEN + mk.RANK)
    assert key(found, "has_confidence_head") is True
    assert key(found, "sample_from_anchor") is False


def test_g14_logit_head_prefix_is_read_and_domino_is_refused(read: Read) -> None:
    assert shape(read("dspark_specforge"), "markov_w2.weight") == (mk.VOCAB, mk.RANK)
    case = mk.dflash()
    case.tensors.add("prefix_gru.weight_ih_l0", 3 * mk.HIDDEN, mk.HIDDEN)
    message = refused(read, case)
    assert "Domino" in message
    assert "GRU" in message


def test_g15_markov_tensors_under_the_plain_name(read: Read, key: Key) -> None:
    found = read("dspark_hybrid")
    assert found.family == "DSpark"
    assert key(found, "sample_from_anchor") is True
    assert key(found, "has_confidence_head") is True
    case = mk.dspark_hybrid()
    case.config["dflash_config"]["markov_head_type"] = "gated"
    assert "markov_head_type is gated" in refused(read, case)


def test_g16_plain_dflash_of_a_dspark_name_drafts_from_its_anchor(read: Read, key: Key) -> None:
    found = read("dspark_deepspec_plain")
    assert found.family == "DSpark"
    assert key(found, "sample_from_anchor") is True
    assert key(found, "has_confidence_head") is False
    head = [plan for plan in found.tensors if plan.name.startswith("markov_w")]
    assert [(plan.shape, plan.transform, plan.sources) for plan in head] == [((mk.VOCAB, 32), "zeros", ())] * 2
    assert "changes no token" in texts(found, "derived")
    bonus = mk.dspark_deepspec_plain()
    bonus.config["sample_from_anchor"] = False
    assert read(bonus).family == "DFlash"
    broken = mk.dspark_deepspec_plain()
    broken.config["markov_rank"] = 256
    assert "markov_rank is 256, but the checkpoint has no Markov head" in refused(read, broken, CheckpointError)


def masked(case_dir: Make, target_names: dict[str, str] | None = None) -> Path:
    """A drafter with mask_embedding.pt, and a target with weights under the given names."""
    where = case_dir(mk.Case(mk.contract(tie_word_embeddings=False), mk.backbone()))
    weights = mk.own_vocabulary(mk.Tensors())
    if target_names:
        renamed = weights.rename(lambda name: target_names[name])
        mk.write_safetensors(where / "target" / "model.safetensors", renamed)
    return where


def test_g17_mask_embedding_as_a_bare_tensor_is_refused(case_dir: Make) -> None:
    where = masked(case_dir)
    vector = np.ones(mk.HIDDEN, dtype=np.float32)
    write_archive(where / "drafter" / "mask_embedding.pt", b"\x80\x02" + tensor(mk.HIDDEN) + b".", vector)
    with pytest.raises(CheckpointError, match="bare tensor without the token"):
        prepared(where)


PREFIXES = {
    "plain": {"embed_tokens.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"},
    "nested": {
        "embed_tokens.weight": "model.language_model.embed_tokens.weight",
        "lm_head.weight": "model.language_model.lm_head.weight",
    },
}


@pytest.mark.parametrize("names", PREFIXES)
def test_g18_mask_embedding_finds_the_targets_weights(case_dir: Make, tmp_path: Path, names: str) -> None:
    where = masked(case_dir, PREFIXES[names])
    vector = mk.values("mask", (mk.HIDDEN,), 1.0)
    write_archive(where / "drafter" / "mask_embedding.pt", mask_program(mk.MASK, mk.HIDDEN), vector)
    path = convert.write(prepared(where), [tmp_path / "out.gguf"], threads=1)[0].path
    file, weights = open_gguf(path), mk.own_vocabulary(mk.Tensors())
    wanted = weights["embed_tokens.weight"][1].copy()
    wanted[mk.MASK] = (vector.view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal(file.data("token_embd.weight").view(np.uint16), wanted)
    assert np.array_equal(file.data("output.weight").view(np.uint16), weights["lm_head.weight"][1])


def test_g18_mask_embedding_without_the_targets_weights(case_dir: Make) -> None:
    where = masked(case_dir)
    vector = np.ones(mk.HIDDEN, dtype=np.float32)
    write_archive(where / "drafter" / "mask_embedding.pt", mask_program(mk.MASK, mk.HIDDEN), vector)
    with pytest.raises(CheckpointError, match=r"needs the target's tensor 'lm_head\.weight'"):
        prepared(where)


def test_g19_attention_biases_stop_the_conversion(read: Read) -> None:
    case = mk.dflash()
    for part, rows in (("q", 256), ("k", 128), ("v", 128), ("o", 128)):
        case.tensors.add(f"layers.0.self_attn.{part}_proj.bias", rows)
    message = refused(read, case)
    assert "layers.0.self_attn.k_proj.bias' (and 3 more)" in message
    assert "no biases" in message
    kept = read(case, keep_unclaimed=True)
    assert shape(kept, "blk.0.attn_q.bias") == (256,)


def test_g20_confidence_heads_that_the_loader_refuses(read: Read, key: Key) -> None:
    alone = mk.dflash()
    alone.tensors.add("confidence_head.proj.weight", 1, mk.HIDDEN)
    assert "only beside a Markov head" in refused(read, alone)
    case = mk.Case(mk.contract(architectures=["DSparkDraftModel"]), mk.markov(mk.backbone(), confidence=False))
    case.tensors.add("confidence_head.proj.weight", 1, mk.HIDDEN)
    found = read(case)
    assert shape(found, "conf_proj.weight") == (1, mk.HIDDEN + mk.RANK)
    assert transform(found, "conf_proj.weight") == "pad_columns"
    assert key(found, "has_confidence_head") is True


def test_g21_a_weight_file_of_another_name_is_read_and_none_is_an_error(case_dir: Make) -> None:
    where = case_dir(mk.dflash()) / "drafter"
    (where / "model.safetensors").rename(where / "dflash_draft_model.safetensors")
    assert len(open_checkpoint(where).tensors) == 25
    (where / "dflash_draft_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        open_checkpoint(where)


def test_g22_a_tap_on_the_last_layer_is_said(read: Read) -> None:
    case = mk.Case(mk.contract({"target_layer_ids": [1, 2, mk.DEPTH - 1]}), mk.backbone())
    found = read(case)
    assert found.taps.inputs == (2, 3, mk.DEPTH)
    assert "last layer" in texts(found, "warning")
    beyond = mk.Case(mk.contract({"target_layer_ids": [1, 2, mk.DEPTH]}), mk.backbone())
    assert "outside a target of 8 layers" in refused(read, beyond, ConfigError)


def findings(where: Path) -> dict[str, str]:
    from dflash_convert.pairing import check, open_pair

    return {f.name: f.severity for f in check(*open_pair(where / "drafter", where / "target"), None)}


def test_g23_targets_that_llama_cpp_cannot_tap_are_findings_of_check(case_dir: Make) -> None:
    case = mk.dflash()
    case.target = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    assert findings(case_dir(case)) == {"target-architecture": "error"}
    last = mk.Case(mk.contract({"target_layer_ids": [1, 2, mk.DEPTH - 1]}), mk.backbone())
    assert findings(case_dir(last)) == {"last-layer-tap": "error"}
    assert findings(case_dir(mk.dflash())) == {}


def test_g24_a_target_of_another_width_is_refused(read: Read) -> None:
    case = mk.Case(mk.contract(target_hidden_size=96), mk.backbone())
    case.tensors.add("fc.weight", mk.HIDDEN, 3 * 96)
    message = refused(read, case)
    assert "target states of width 96" in message
    assert "equal" in message


def test_g25_checkpoints_that_disagree_with_themselves(read: Read) -> None:
    case = mk.Case(mk.contract({"target_layer_ids": [1, 2]}), mk.backbone())
    assert "names 2 taps, but fc.weight is made for 3" in refused(read, case, ConfigError)
    lost = mk.dflash()
    del lost.tensors["hidden_norm.weight"]
    assert "enc.output_norm.weight" in refused(read, lost, CheckpointError)
    short = mk.dflash()
    short.config["num_hidden_layers"] = 3
    assert "blk.2.attn_norm.weight" in refused(read, short, CheckpointError)
    found = read(mk.Case(mk.contract({"target_layer_ids": [4, 1, 2]}), mk.backbone()))
    assert found.taps.inputs == (5, 2, 3)
    assert "not in ascending order" in texts(found, "warning")


@pytest.mark.parametrize("field", ["rope_is_neox_style", "is_neox_style"])
def test_g26_interleaved_rope_in_both_spellings(read: Read, field: str) -> None:
    found = read(mk.Case(mk.contract(None, **{field: False}), mk.backbone()))
    assert transform(found, "blk.0.attn_q.weight") == "rope_rows"
    assert transform(found, "blk.1.attn_k_norm.weight") == "rope_rows"
    assert transform(found, "blk.0.attn_v.weight") == "copy"
    assert transform(read("dflash"), "blk.0.attn_q.weight") == "copy"


def test_g27_llama3_rope_becomes_a_tensor(read: Read, key: Key) -> None:
    found = read("dflash_llama3_rope")
    plan = found.tensors[0]
    assert plan.name == "rope_freqs.weight"
    assert plan.constant is not None
    factors = plan.constant
    assert factors.shape == (mk.HEAD_DIM // 2,)
    assert (factors[0], factors[-1]) == (1.0, 8.0)
    assert (np.diff(factors) >= 0).all()
    assert key(found, "rope.scaling.type") is None


def test_g28_gelu_and_gemma_norms(read: Read, key: Key, case_dir: Make, tmp_path: Path) -> None:
    assert key(read("dflash_gelu"), "hidden_activation") == "gelu_pytorch_tanh"
    assert "hidden_act is 'relu'" in refused(read, mk.Case(mk.contract(hidden_act="relu"), mk.backbone()))
    case = mk.Case(mk.contract(use_gemma_norm=True), mk.backbone())
    path = convert.write(prepared(case_dir(case)), [tmp_path / "out.gguf"], threads=1)[0].path
    written = open_gguf(path).data("blk.1.attn_q_norm.weight").view(np.float32).reshape(-1)
    assert np.array_equal(written, case.tensors.float32("layers.1.self_attn.q_norm.weight") + np.float32(1))


def test_g29_fp8_with_one_scale_for_a_tensor(read: Read) -> None:
    case = mk.dflash()
    name = "layers.0.mlp.up_proj.weight"
    case.tensors[name] = ("F8_E4M3", np.full((mk.FFN, mk.HIDDEN), 0x38, dtype=np.uint8))
    case.tensors[name + "_scale"] = ("F32", np.array([0.5], dtype=np.float32))
    found = read(case)
    plan = next(plan for plan in found.tensors if plan.name == "blk.0.ffn_up.weight")
    assert (plan.scheme, plan.block, len(plan.sources)) == ("fp8", (mk.FFN, mk.HIDDEN), 2)


@pytest.mark.parametrize(
    ("field", "value", "scheme"),
    [
        ("quantization_config", {"quant_method": "awq"}, "AWQ"),
        ("quantization_config", {"quant_method": "gptq"}, "GPTQ"),
        (
            "quantization_config",
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"format": "int-quantized"}}},
            "int8",
        ),
        ("quantization_config", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "pack-quantized"),
        ("quantization_config", {"quant_method": "bitsandbytes"}, "bitsandbytes"),
    ],
)
def test_g30_integer_schemes_are_refused_by_name(read: Read, field: str, value: Any, scheme: str) -> None:
    case = mk.Case(mk.contract(None, **{field: value}), mk.backbone())
    read(case)  # a label alone was inherited from the target
    case.tensors["layers.0.mlp.up_proj.weight"] = ("I8", np.zeros((mk.FFN, mk.HIDDEN), dtype=np.int8))
    assert scheme in refused(read, case)


def test_g30_mlx_and_int8_tensors_are_refused_by_name(read: Read) -> None:
    mlx = mk.dflash()
    mlx.tensors.add("layers.0.mlp.up_proj.scales", mk.FFN, 2)
    mlx.tensors.add("layers.0.mlp.up_proj.biases", mk.FFN, 2)
    assert "MLX" in refused(read, mlx)
    integer = mk.dflash()
    integer.tensors["layers.0.mlp.up_proj.weight"] = ("I8", np.zeros((mk.FFN, mk.HIDDEN), dtype=np.int8))
    assert "integer (I8)" in refused(read, integer)


def test_g31_a_vocabulary_smaller_than_the_tokenizer(case_dir: Make) -> None:
    case = mk.Case(mk.contract({"mask_token_id": 5}, vocab_size=400), mk.backbone())
    with pytest.raises(PairingError) as caught:
        prepared(case_dir(case))
    assert "vocabulary-size (drafter 400 rows, target 504 tokens in 512 rows)" in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("arch", "family"),
    [
        ("DFlashSpeculator", "DFlash"),
        ("Qwen3DFlashDraftModel", "DFlash"),
        ("MiniMaxDFlash2DraftModel", "DFlash2"),
        ("DFlash2BeamDraftModel", "DFlash2"),
    ],
)
def test_g32_aliases_are_read(read: Read, arch: str, family: str) -> None:
    case = mk.dflash2(arch) if family == "DFlash2" else mk.dflash()
    case.config["architectures"] = [arch]
    assert read(case).family == family


@pytest.mark.parametrize(
    "arch",
    [
        "Qwen35DSparkModel",
        "Qwen3_5DSparkModel",
        "DominoDraftModel",
        "KimiK3DSparkModel",
        "K3DSparkModel",
        "Glm5_2DSparkModel",
        "MiniMaxM3DSparkModel",
        "DSparkMiniMaxDraftModel",
        "PEagleDraftModel",
        "DFlareDraftModel",
    ],
)
def test_g32_what_llama_cpp_cannot_run_is_refused_by_name(read: Read, arch: str) -> None:
    message = refused(read, mk.Case(mk.contract(architectures=[arch]), mk.backbone()))
    assert arch in message
    assert "llama.cpp cannot run it" in message


def test_g32_a_config_without_architectures_is_told_by_its_fields(read: Read) -> None:
    found = read("dflash_no_architecture")
    assert found.family == "DFlash"
    assert "no architectures" in texts(found, "derived")


def test_g33_laguna_is_refused_by_name_field_or_tensor(read: Read) -> None:
    named = mk.Case(mk.contract(architectures=["DFlashLagunaForCausalLM"]), mk.backbone())
    typed = mk.Case(mk.contract(model_type="laguna"), mk.backbone())
    gated = mk.dflash()
    gated.tensors.add("layers.0.self_attn.g_proj.weight", mk.HEADS, mk.HIDDEN)
    for case in (named, typed, gated):
        message = refused(read, case)
        assert "Laguna" in message
        assert "attention gate" in message


def test_g34_default_names_are_found_by_llama_cpp(case_dir: Make) -> None:
    plain, spark, eagle = mk.dflash(), mk.dspark_ling(), mk.eagle3()
    names = [prepared(case_dir(case)).default_paths(Path())[0].name for case in (plain, spark, eagle)]
    assert names == ["dflash-target-BF16.gguf", "dspark-target-BF16.gguf", "eagle3-target-BF16.gguf"]


def test_g35_a_missing_theta_is_an_error(read: Read) -> None:
    case = mk.Case(mk.contract(rope_parameters=None), mk.backbone())
    del case.config["rope_theta"]
    assert "rope_theta is missing" in refused(read, case, ConfigError)


def test_g36_only_the_config_counts_not_an_installed_library(read: Read, key: Key) -> None:
    """transformers would null the window and derive layer_types; here config.json counts as it stands."""
    config = mk.contract(sliding_window=64, layer_types=["sliding_attention"] * 2, max_window_layers=28)
    assert key(read(mk.Case(config, mk.backbone())), "attention.sliding_window_pattern") == [True, True]
    config = mk.contract(sliding_window=64, use_sliding_window=True, max_window_layers=1)
    found = read(mk.Case(config, mk.backbone()))
    assert key(found, "attention.sliding_window_pattern") == [False, True]
    assert "max_window_layers 1" in texts(found, "derived")


def test_g37_tiktoken_targets_need_no_code_of_the_repository(fixtures: Path, tmp_path: Path) -> None:
    source = tmp_path / "target"
    shutil.copytree(fixtures / "tokenizers" / "tiktoken-qwen", source)
    assert "raise RuntimeError" in next(source.glob("tokenization_*.py")).read_text()
    assert load_vocabulary(source, vocab_size=2000).model == "gpt2"


def test_g38_an_unknown_tokenizer_hash_is_told_by_its_split_expressions(fixtures: Path) -> None:
    found = load_vocabulary(fixtures / "tiny-js" / "target", vocab_size=512)
    assert (found.pre, found.pre_source) == ("qwen2", "split expressions")


def test_g39_yarn_reaches_the_runtime(read: Read, key: Key) -> None:
    found = read("dflash_yarn_own")
    assert key(found, "rope.scaling.attn_factor") == 1.25
    assert shape(found, "rope_freqs.weight") == (mk.HEAD_DIM // 2,)


def test_g40_the_slot_rule_in_its_trainers_words(read: Read, key: Key) -> None:
    for field in ("query_zero_predicts_next", "shift_label"):
        case = mk.dspark_hybrid()
        case.config["dflash_config"][field] = False
        assert key(read(case), "sample_from_anchor") is False


def test_g41_eagle_3_1_is_refused_by_name(read: Read) -> None:
    for field in ("norm_output", "fc_norm"):
        case = mk.eagle3()
        case.config[field] = True
        assert f"{field} is True; llama.cpp cannot express it" in refused(read, case)


def test_g42_taps_of_eagle_config_count_outputs(read: Read) -> None:
    case = mk.eagle3()
    case.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    assert read(case).taps.inputs == (2, mk.DEPTH // 2, mk.DEPTH - 3)  # the class's rule in its trainers' counting


def test_g43_a_map_that_leads_astray_is_refused(read: Read) -> None:
    case = mk.eagle3()
    case.tensors["d2t"] = ("I64", 2 * np.arange(mk.DRAFT_VOCAB, dtype=np.int64))
    assert "absolute ids where offsets belong" in refused(read, case, CheckpointError)


def test_g44_a_broken_promise_is_refused(read: Read) -> None:
    case = mk.dflash()
    case.config["has_embed_tokens"] = True
    message = refused(read, case, CheckpointError)
    assert "has_embed_tokens is true, but the checkpoint has no embed_tokens.weight" in message


def test_g45_unknown_fields_are_named(read: Read) -> None:
    found = read(mk.Case(mk.contract({"causall": True}), mk.backbone()))
    assert "dflash_config.causall is not known here and does nothing (causal is known)" in texts(found, "warning")


def test_g46_the_base_of_sliding_layers_is_said_to_be_lost(read: Read, key: Key) -> None:
    kinds: mk.Config = {"layer_types": ["sliding_attention"] * mk.LAYERS, "sliding_window": 64}
    found = read(mk.Case(mk.contract(**kinds, rope_local_base_freq=1e4), mk.backbone()))
    assert key(found, "rope.freq_base_swa") == 1e4
    assert "main base" in texts(found, "warning")


def test_g47_an_eagle_3_head_for_gemma_4_has_its_merges(read: Read, fixtures: Path) -> None:
    assert read("eagle3").eagle3_vocab
    for plain in (True, False):
        gemma = load_vocabulary(fixtures / "tokenizers" / "gemma", vocab_size=mk.VOCAB, plain=plain, eagle3=True)
        assert gemma.model == "gemma4"
        assert any(kv.name == "tokenizer.ggml.merges" for kv in gemma.entries)


def test_every_gap_has_a_test_and_a_line_in_the_documentation() -> None:
    own = Path(__file__).read_text()
    table = (Path(__file__).resolve().parents[2] / "docs" / "gaps.md").read_text()
    listed = re.findall(r"^\| G(\d+) \|.*\| `(g\d\d_\w+)` \|$", table, re.MULTILINE)
    assert [int(number) for number, _ in listed] == list(range(1, 48))
    assert [test for _, test in listed if f"def test_{test}(" not in own] == []


def test_swapped_arguments_are_named(case_dir: Make) -> None:
    where = case_dir(mk.dflash())
    mk.write_safetensors(where / "target" / "model.safetensors", mk.backbone())
    with pytest.raises(FamilyError, match="did you swap the arguments"):
        describe(open_checkpoint(where / "target"), Target.read(where / "target"), Overrides())
