"""EAGLE-3, Gemma-4 DSpark, Gemma-4 assistants, and Muse: what is particular to each."""

from __future__ import annotations

from typing import Any

import make_checkpoints as mk
import numpy as np
import pytest
from family_cases import Key, Make, Read

from dflash_convert import conversion as convert
from dflash_convert.drafter import Taps
from dflash_convert.errors import CheckpointError, ConfigError, DflashError, FamilyError
from dflash_convert.target import Target


def notes(description: Any, level: str) -> str:
    return "\n".join(note.text for note in description.notes if note.level == level)


def test_eagle3_taps_are_stated_nested_or_derived_and_said(read: Read, key: Key) -> None:
    found = read("eagle3")
    assert found.taps.inputs == (2, mk.DEPTH // 2, mk.DEPTH - 3)
    assert f"outputs of target layers 1, {mk.DEPTH // 2 - 1}, {mk.DEPTH - 4}, from the target's" in notes(
        found, "derived"
    )
    stated = read("eagle3_speculators")
    assert stated.taps.inputs == (1, 3, 4)  # layer inputs already: never shifted
    assert key(stated, "norm_before_residual") is True
    nested = mk.eagle3()
    nested.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 4, 5]}
    assert read(nested).taps.outputs == (1, 4, 5)  # ModelOpt and SpecForge write outputs there
    assert "from eagle_config, whose writers count outputs" in notes(read(nested), "derived")
    nested.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [2, 4, mk.DEPTH]}
    assert read(nested).taps.inputs == (2, 4, mk.DEPTH)  # the target has no layer of that number, only an input
    assert "so it counts inputs" in notes(read(nested), "warning")
    assert read("eagle3", taps=Taps.from_outputs((0, 1, 2))).taps.inputs == (1, 2, 3)


def test_eagle3_under_its_backbones_name(read: Read) -> None:
    found = read(mk.eagle3("LlamaForCausalLM"))
    assert found.family == "EAGLE-3"
    assert "a single layer" in notes(found, "derived")


def eagle3_four_taps(case: mk.Case) -> None:
    case.config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3, 4]


def eagle3_two_layers(case: mk.Case) -> None:
    case.config["num_hidden_layers"] = 2


def eagle3_no_map(case: mk.Case) -> None:
    del case.tensors["d2t"]


def eagle3_norm(case: mk.Case) -> None:
    case.tensors.norm("input_norm.weight", 3 * mk.HIDDEN)


def eagle3_bias(case: mk.Case) -> None:
    case.tensors.add("midlayer.self_attn.q_proj.bias", mk.HEADS * mk.HEAD_DIM)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (eagle3_four_taps, "exactly 3"),
        (eagle3_two_layers, "EAGLE-3 heads of one layer"),
        (eagle3_no_map, "no tensor for d2t"),
        (eagle3_norm, "norm_before_fc is false, but the checkpoint has input_norm"),
        (eagle3_bias, "no biases"),
    ],
)
def test_eagle3_refusals(change: Any, text: str, read: Read) -> None:
    case = mk.eagle3()
    change(case)
    with pytest.raises(DflashError, match=text):
        read(case)


def test_eagle3_norm_before_fc(read: Read, key: Key) -> None:
    case = mk.eagle3()
    case.config["norm_before_fc"] = True
    case.tensors.norm("input_norm.weight", 3 * mk.HIDDEN)
    found = read(case)
    assert key(found, "norm_before_fc") is True
    assert any(plan.name == "enc.output_norm.weight" for plan in found.tensors)


def test_gemma4_dspark_without_rope_parameters_takes_the_class_default(read: Read, key: Key) -> None:
    found = read("gemma4_dspark")
    assert key(found, "rope.freq_base") == 1000000.0
    assert "Gemma 4's default" in notes(found, "derived")
    factors = found.tensors[0].constant
    assert factors is not None
    assert factors.tolist() == [1.0] * 8 + [np.float32(1e30)] * 24
    assert key(found, "embedding_scale") == mk.HIDDEN**0.5


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("attention_k_eq_v", False, "attention_k_eq_v must be true"),
        ("layer_types", ["sliding_attention", "full_attention"], "must be full_attention"),
        ("hidden_activation", "silu", "must be gelu_pytorch_tanh"),
        ("attention_bias", True, "attention_bias must be false"),
        ("enable_moe_block", True, "enable_moe_block must be false"),
        ("draft_vocab_size", 256, "must be the whole one"),
        ("final_logit_softcapping", 30.0, "must be absent"),
        ("markov_head_type", "gated", "markov_head_type is gated"),
    ],
)
def test_gemma4_dspark_refusals(field: str, value: Any, text: str, read: Read) -> None:
    case = mk.gemma4_dspark()
    case.config[field] = value
    with pytest.raises(FamilyError, match=text):
        read(case)


def test_gemma4_dspark_needs_a_head_unless_tied(read: Read) -> None:
    case = mk.gemma4_dspark()
    case.config["tie_word_embeddings"] = False
    with pytest.raises(CheckpointError, match="tie_word_embeddings is not true"):
        read(case)


def test_gemma4_dspark_window_of_the_target_means_nothing(read: Read, key: Key) -> None:
    case = mk.gemma4_dspark()
    case.config["sliding_window"] = 512
    assert key(read(case), "attention.sliding_window") is None
    case.config["dflash_config"] = {"use_swa": True, "swa_window_size": 64}
    assert key(read(case), "attention.sliding_window") == 64


def test_gemma4_plain_dflash_of_deepspec(read: Read, key: Key) -> None:
    """DeepSpec's plain Gemma drafter: the DSpark name with rank 0."""
    case = mk.gemma4_dspark()
    case.config["markov_rank"] = 0
    for name in [n for n in case.tensors if n.startswith(("markov", "confidence"))]:
        del case.tensors[name]
    found = read(case)
    assert (found.family, key(found, "sample_from_anchor")) == ("DSpark", True)


def test_gemma4_assistant_keys(read: Read, key: Key) -> None:
    for arch in ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"):
        case = mk.gemma4_assistant()
        case.config["architectures"] = [arch]
        found = read(case)
        assert (found.family, found.architecture) == ("MTP", "gemma4-assistant")
        assert key(found, "embedding_length_out") == mk.HIDDEN
        assert key(found, "nextn_predict_layers") == mk.LAYERS
        assert key(found, "attention.sliding_window_pattern") == [True, False]
        assert key(found, "attention.head_count_kv") == [mk.KV_HEADS] * 2
        assert key(found, "rope.freq_base_swa") == 10000.0


def test_gemma4_assistant_says_that_its_clustered_head_is_left_out(read: Read) -> None:
    case = mk.gemma4_assistant()
    case.tensors.add("masked_embedding.centroids.weight", 16, mk.HIDDEN // 2)
    case.tensors["masked_embedding.token_ordering"] = ("I64", np.arange(mk.VOCAB, dtype=np.int64))
    found = read(case)
    assert "clustered output head is left out" in notes(found, "warning")
    skipped = {name for name, _ in found.skipped}
    assert skipped == {"masked_embedding.centroids.weight", "masked_embedding.token_ordering"}


def test_gemma4_assistant_layers_have_the_size_of_their_kind(read: Read) -> None:
    case = mk.gemma4_assistant()
    case.config["text_config"]["global_head_dim"] = 2 * mk.HEAD_DIM
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn"):
        read(case)


def test_gemma4_assistant_default_name(case_dir: Make) -> None:
    where = case_dir(mk.gemma4_assistant())
    source = convert.Source(where / "drafter"), Target.read(where / "target")
    paths = convert.prepare(*source, convert.Options()).default_paths(where)
    assert paths[0].name == "mtp-target-BF16.gguf"


def test_muse_glimmer_encoder_names(read: Read, key: Key) -> None:
    found = read("muse_glimmer")
    names = {plan.name: plan.sources[0].name for plan in found.tensors}
    assert names["fc.weight"] == "encoder.fc.weight"
    assert names["enc.output_norm.weight"] == "encoder.output_norm_enc.weight"
    assert key(found, "attention.sliding_window_pattern") == [True, True]


def test_dflash2_sizes_that_the_runtime_refuses(read: Read) -> None:
    case = mk.dflash2()
    case.config["dflash_config"]["selector_top_k"] = 12
    with pytest.raises(ConfigError, match="hidden_size of at least 156"):
        read(case)
    case = mk.dflash2()
    case.config["dflash_config"]["conv_group_size"] = 24
    with pytest.raises(ConfigError, match="does not divide hidden_size"):
        read(case)
    case = mk.dflash2()
    del case.config["dflash_config"]["selector_rank"]
    with pytest.raises(ConfigError, match="selector_rank is missing"):
        read(case)


def test_dflash2_fields_at_the_top_level(read: Read, key: Key) -> None:
    """speculators' DFlash2 has the same names outside dflash_config."""
    case = mk.dflash2()
    inner = case.config["dflash_config"]
    for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
        case.config[name] = inner.pop(name)
    found = read(case)
    assert found.family == "DFlash2"
    assert key(found, "selector_top_k") == 8


def test_own_embeddings_without_a_head_are_said(read: Read) -> None:
    case = mk.Case(mk.contract(tie_word_embeddings=False), mk.backbone())
    case.tensors.add("embed_tokens.weight", mk.VOCAB, mk.HIDDEN)
    assert "use embed_tokens as the output head too" in notes(read(case), "warning")
    case.config["has_embed_tokens"] = False
    found = read(case)
    assert [name for name, _ in found.skipped] == ["embed_tokens.weight"]


def test_a_reduced_vocabulary_needs_its_own_head(read: Read) -> None:
    case = mk.dflash_speculators()
    del case.tensors["lm_head.weight"]
    with pytest.raises(CheckpointError, match="no lm_head of its own"):
        read(case)


def test_a_mask_token_that_is_the_targets_end_is_said(read: Read) -> None:
    case = mk.dflash()
    case.target = {"eos_token_id": [502, mk.MASK]}
    assert "the target's eos_token_id" in notes(read(case), "warning")


def test_overrides_count_before_the_config(read: Read, key: Key) -> None:
    found = read("dflash", block_size=4, mask_token_id=9, taps=Taps.from_outputs((0, 1, 2)), rope_dimension_count=32)
    assert (found.block_size, found.mask_token_id, found.taps.inputs) == (4, 9, (1, 2, 3))
    assert key(found, "rope.dimension_count") == 32
    with pytest.raises(ConfigError, match="--rope-dimension-count 66"):
        read("dflash", rope_dimension_count=66)
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        read("dflash", mask_token_id=mk.VOCAB)


def test_two_lists_of_taps_that_disagree_are_said(read: Read) -> None:
    agreeing = mk.Case(mk.contract(eagle_aux_hidden_state_layer_ids=[2, 3, 4]), mk.backbone())
    assert notes(read(agreeing), "warning") == ""
    other = mk.Case(mk.contract(eagle_aux_hidden_state_layer_ids=[1, 2, 3]), mk.backbone())
    found = read(other)
    assert found.taps.inputs == (2, 3, 4)
    assert "name different layers" in notes(found, "warning")


def test_a_speculators_config_proposes_its_target(case_dir: Make) -> None:
    from click.testing import CliRunner

    from dflash_convert.cli.convert import command
    from dflash_convert.errors import UsageError

    where = case_dir(mk.dspark_speculators())
    result = CliRunner().invoke(command, [str(where / "drafter")])
    assert isinstance(result.exception, UsageError)
    assert "for example example/Tiny-Target" in str(result.exception.tip)


def test_options_of_the_command_line_reach_the_family(case_dir: Make) -> None:
    import json

    from click.testing import CliRunner

    from dflash_convert.cli.convert import command

    case = mk.dflash()
    del case.config["block_size"], case.config["dflash_config"]
    where = case_dir(case)
    arguments = [str(where / "drafter"), "--target-model-dir", str(where / "target"), "--dry-run", "--json"]
    given = ["--block-size", "4", "--mask-token-id", "9", "--taps", "0, 2,5", "--rope-dimension-count", "32"]
    result = CliRunner().invoke(command, [*arguments, *given], catch_exceptions=False)
    keys = {kv["name"]: kv["value"] for kv in json.loads(result.stdout)[0]["keys"]}
    assert keys["dflash.block_size"] == 4
    assert keys["dflash.target_layers"] == [1, 3, 6]
    assert keys["dflash.rope.dimension_count"] == 32
    assert keys["tokenizer.ggml.mask_token_id"] == 9
    bad = CliRunner().invoke(command, [*arguments, "--taps", "1,x"])
    assert bad.exit_code == 2
    assert "is not a list of layer numbers" in bad.output
