"""Drafters of other methods and programs are named, with what llama.cpp lacks; trainers' wrappers are taken off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import pytest
from family_cases import Make, Read

from dflash_convert.cli import main
from dflash_convert.errors import CheckpointError, DflashError, FamilyError
from dflash_convert.families.detect import known, refuse_target
from dflash_convert.families.refused import method_of
from dflash_convert.inspect_file import inspect

# class, further fields -> what it is called; classes as vLLM, SGLang, speculators and the methods' authors write them
METHODS: list[tuple[str | None, dict[str, Any], str]] = [
    ("MedusaModel", {}, "Medusa"),
    ("MedusaLlamaForCausalLM", {}, "Medusa"),
    ("MedusaForCausalLM", {"model_type": "medusa"}, "Medusa"),
    (None, {"medusa_num_heads": 5, "medusa_num_layers": 1, "base_model_name_or_path": "x"}, "Medusa"),
    ("LlamaForCausalLM", {"medusa_num_heads": 3}, "Medusa"),
    (None, {"hydra_num_heads": 4}, "Hydra"),
    ("HydraModel", {}, "Hydra"),
    ("MLPSpeculatorPreTrainedModel", {"model_type": "mlp_speculator", "n_predict": 4}, "MLP speculator"),
    ("MLPSpeculator", {"speculators_model_type": "mlp"}, "MLP speculator"),
    ("EAGLEModel", {"model_type": "eagle"}, "EAGLE-1/2"),
    ("EagleLlamaForCausalLM", {}, "EAGLE-1/2"),
    ("EagleLlama4ForCausalLM", {}, "EAGLE-1/2"),
    ("EagleMiniCPMForCausalLM", {}, "EAGLE-1/2"),
    ("EagleMistralLarge3ForCausalLM", {}, "EAGLE-1/2"),
    ("EagleQwen2ForCausalLM", {}, "EAGLE-1/2"),
    ("EagleDeepSeekMTPModel", {}, "EAGLE-1/2"),
    ("LlamaForCausalLMEagle", {}, "EAGLE-1/2"),
    ("Qwen2ForCausalLMEagle", {}, "EAGLE-1/2"),
    ("EagleSpeculator", {"speculators_model_type": "eagle"}, "EAGLE-1/2"),
    ("LlamaForCausalLM", {"num_hidden_layers": 1, "bias": True}, "EAGLE-1/2"),
    ("Qwen2ForCausalLM", {"num_hidden_layers": 1}, "EAGLE-1/2"),
    ("Eagle3DeepseekV2ForCausalLM", {}, "EAGLE-3 with latent (MLA) attention"),
    ("Eagle3DeepseekV3ForCausalLM", {}, "EAGLE-3 with latent (MLA) attention"),
    ("DeepseekV3ForCausalLMEagle3", {}, "EAGLE-3 with latent (MLA) attention"),
    ("Eagle3KimiK2ForCausalLM", {}, "EAGLE-3 with latent (MLA) attention"),
    ("DeepSeekMTPModel", {}, "prediction layer (MTP)"),
    ("MiMoMTPModel", {}, "prediction layer (MTP)"),
    ("MiMoV2MTPModel", {}, "prediction layer (MTP)"),
    ("Glm4MoeMTPModel", {}, "prediction layer (MTP)"),
    ("Qwen3NextMTP", {}, "prediction layer (MTP)"),
    ("Qwen3_5MoeMTP", {}, "prediction layer (MTP)"),
    ("ErnieMTPModel", {}, "prediction layer (MTP)"),
    ("NemotronHMTPModel", {}, "prediction layer (MTP)"),
    ("DeepseekV3ForCausalLMNextN", {}, "prediction layer (MTP)"),
    ("Qwen3NextForCausalLMMTP", {}, "prediction layer (MTP)"),
    ("FastMTPDraftModel", {"speculators_model_type": "fastmtp"}, "prediction layer (MTP)"),
    (None, {"model_type": "deepseek_mtp"}, "prediction layer (MTP)"),
]


@pytest.mark.parametrize(("name", "fields", "kind"), METHODS, ids=lambda value: str(value)[:40])
def test_a_drafter_of_another_method_is_named(
    name: str | None,
    fields: dict[str, Any],
    kind: str,
    fixtures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From config.json alone: such checkpoints often have .bin or .pt weights, which say nothing."""
    config = mk.body() | fields
    if name is not None:
        config["architectures"] = [name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    for line in (
        [str(tmp_path), "--target-model-dir", str(fixtures / "tiny-js/target")],
        ["check", str(tmp_path), str(fixtures / "tiny-js/target")],
        ["inspect", str(tmp_path)],
    ):
        with pytest.raises(SystemExit) as ended:
            main(line)
        error = capsys.readouterr().err
        assert ended.value.code == 3, error
        assert f"ERROR config.json: a drafter of the kind {kind} (" in error or name is None
        assert f"a drafter of the kind {kind}" in error
        assert "llama.cpp cannot run it: " in error
        assert "nearest" not in error
        assert "keep-unclaimed" not in error


TARGETS = [
    "Qwen3NextForCausalLM",
    "LlavaNextForConditionalGeneration",
    "Eagle2_5_VLForConditionalGeneration",
    "Eagle2VLForConditionalGeneration",
    "DeepseekV3ForCausalLM",
    "Phi3ForCausalLM",
]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_no_method(name: str) -> None:
    assert method_of([name], {"num_hidden_layers": 36}, known()) is None


@pytest.mark.parametrize("name", known())
def test_our_own_classes_are_no_other_method(name: str) -> None:
    assert method_of([name], {}, known()) is None


@pytest.mark.parametrize("field", ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"])
def test_prediction_layers_inside_a_target(field: str) -> None:
    config = {"architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 48, "text_config": {field: 1}}
    with pytest.raises(FamilyError, match="did you swap the arguments") as caught:
        refuse_target(config, "x")
    assert "--spec-type draft-mtp" in str(caught.value.tip)
    with pytest.raises(FamilyError) as plain:
        refuse_target({**config, "text_config": {field: 0}}, "x")
    assert "draft-mtp" not in str(plain.value.tip)


def test_latent_attention_in_an_eagle_head_is_told_by_its_tensors(read: Read) -> None:
    case = mk.eagle3()
    case.tensors.add("midlayer.self_attn.kv_a_proj_with_mqa.weight", 4, mk.HIDDEN)
    with pytest.raises(FamilyError, match=r"EAGLE-3 with latent \(MLA\) attention"):
        read(case)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("DFlashDraftModle", "the nearest is DFlashDraftModel"),
        ("DFlashDraftModels", "the nearest is DFlashDraftModel"),
        ("WhisperEncoder", "is not a known drafter"),
        ("BertModel", "is not a known drafter"),
    ],
)
def test_only_a_slip_of_the_pen_has_a_nearest(name: str, told: str, read: Read) -> None:
    case = mk.dflash()
    case.config["architectures"] = [name]
    with pytest.raises(FamilyError) as caught:
        read(case)
    assert told in str(caught.value)
    assert ("nearest" in str(caught.value)) is ("nearest" in told)


# --- wrappers -------------------------------------------------------------------------------------------------------

WRAPPERS = [
    "_orig_mod.{}",
    "module.{}",
    "module._orig_mod.{}",
    "_orig_mod.module.{}",
    "dflash_module.{}",
    "draft_model.{}",
    "model.draft_model.{}",
    "drafter.{}",
    "module.draft_model.model.{}",
    "_fsdp_wrapped_module.{}",
    "student.{}",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("family", ["dflash", "eagle3", "dspark_deepspec"])
def test_a_trainers_wrapper_is_taken_off_and_told(wrapper: str, family: str, read: Read) -> None:
    plain, case = read(mk.CASES[family]()), mk.CASES[family]()
    case.tensors = case.tensors.rename(lambda name: name if name in ("d2t", "t2d") else wrapper.format(name))
    found = read(case)
    assert [(t.name, t.shape) for t in found.tensors] == [(t.name, t.shape) for t in plain.tensors]
    told = [note.text for note in found.notes if "wrapper is taken off" in note.text]
    assert len(told) == 1
    assert wrapper.partition("{")[0].removeprefix("model.").partition(".")[0] in told[0]
    assert not any("wrapper" in note.text for note in plain.notes)


def test_wrappers_inside_a_name(read: Read) -> None:
    case = mk.dflash()
    case.tensors = case.tensors.rename(
        lambda name: name.replace("layers.0.", "layers.0._checkpoint_wrapped_module.").replace("mlp.", "mlp._orig_mod.")
    )
    found = read(case)
    assert len(found.tensors) == len(read(mk.dflash()).tensors)
    assert any("_checkpoint_wrapped_module." in note.text for note in found.notes)


def test_one_tensor_with_and_without_its_wrapper(read: Read) -> None:
    case = mk.dflash()
    case.tensors.add("_orig_mod.fc.weight", 4, 4)
    with pytest.raises(CheckpointError, match=r"tensors '.*fc\.weight' and '.*fc\.weight' are one tensor but for"):
        read(case)


def test_a_drafter_inside_another_models_checkpoint(read: Read) -> None:
    case = mk.dflash()
    case.tensors = case.tensors.rename("dflash_module.{}".format)
    case.tensors.add("model.embed_tokens.weight", 4, 4)
    with pytest.raises(CheckpointError, match=r"25 tensors stand under dflash_module\. and 1 beside it") as caught:
        read(case)
    assert "export the drafter alone" in str(caught.value.tip)


def test_names_of_no_known_exporter_never_tip_keep_unclaimed(read: Read) -> None:
    case = mk.dflash()
    case.tensors = case.tensors.rename(lambda name: f"backbone.{name}" if "layers." in name else name)
    with pytest.raises(CheckpointError, match=r"no tensor for blk\.0\.attn_norm\.weight, .* but 'backbone") as caught:
        read(case)
    assert "--keep-unclaimed" not in f"{caught.value} {caught.value.tip}"
    whole = mk.dflash()
    whole.tensors.add("backbone.extra.weight", 4, 4)
    with pytest.raises(FamilyError) as other:
        read(whole)
    assert "--keep-unclaimed" in str(other.value.tip)


def test_inspect_tells_a_wrapped_drafter(case_dir: Make) -> None:
    case = mk.dflash()
    case.tensors = case.tensors.rename("_orig_mod.{}".format)
    drafter = case_dir(case)
    found = inspect(drafter / "drafter" if (drafter / "drafter").is_dir() else drafter)
    assert any("wrapper is taken off" in note.text for note in found.notes)
    assert isinstance(found.kind, str)
    assert issubclass(FamilyError, DflashError)
