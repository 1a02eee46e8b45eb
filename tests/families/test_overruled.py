"""The slot rule in every exporter's words, and options that mean the same in every family."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import pytest
from click.testing import CliRunner
from family_cases import Key, Make, Read

from dflash_convert import conversion as convert
from dflash_convert.cli.check import command as check
from dflash_convert.cli.convert import command
from dflash_convert.cli.inspect import command as inspect
from dflash_convert.cli.migrate import command as migrate
from dflash_convert.container.reader import open_gguf
from dflash_convert.drafter import Description, Overrides, Taps
from dflash_convert.errors import ConfigError, FamilyError, PairingError, UsageError
from dflash_convert.target import Target
from dflash_convert.verification.tensors import verify


def text(description: Description, level: str) -> str:
    return "\n".join(note.text for note in description.notes if note.level == level)


# where drafting starts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["query_zero_predicts_next", "shift_label", "sample_from_anchor"])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("value", [True, False])
def test_the_slot_rule_under_each_name(field: str, nested: bool, value: bool, read: Read, key: Key) -> None:
    config = mk.contract({field: value} if nested else None, architectures=["DSparkDraftModel"], block_size=7)
    if not nested:
        config[field] = value
    found = read(mk.Case(config, mk.markov(mk.backbone())))
    assert key(found, "sample_from_anchor") is value
    if field != "sample_from_anchor":
        assert f"sample_from_anchor {str(value).lower()}: " in text(found, "derived")


@pytest.mark.parametrize("field", ["query_zero_predicts_next", "shift_label"])
def test_a_plain_drafter_that_starts_at_its_anchor_gets_the_head_that_makes_llama_cpp_do_so(
    field: str, read: Read, key: Key
) -> None:
    found = read(mk.Case(mk.contract({field: True}), mk.backbone()))
    assert (found.family, key(found, "sample_from_anchor")) == ("DSpark", True)
    assert read(mk.Case(mk.contract({field: False}), mk.backbone())).family == "DFlash"


@pytest.mark.parametrize(("start", "anchor"), [(0, True), (1, False)])
def test_where_the_logits_start(start: int, anchor: bool, read: Read, key: Key) -> None:
    case = mk.dspark_ling()
    case.config["logits_start"] = start
    assert key(read(case), "sample_from_anchor") is anchor
    case.config["logits_start"] = 2
    with pytest.raises(ConfigError, match="logits_start is 2"):
        read(case)


def test_two_words_that_disagree_are_said_and_refused_by_strict(read: Read, key: Key) -> None:
    case = mk.dspark_ling()
    case.config["sample_from_anchor"] = False
    case.config["dflash_config"]["shift_label"] = True
    found = read(case)
    assert key(found, "sample_from_anchor") is False
    (note,) = [note for note in found.notes if "name different slot rules" in note.text]
    assert note.guess
    assert not [n for n in read(case, sample_from_anchor=True).notes if "slot rules" in n.text]


@pytest.mark.parametrize("name", ["dflash", "dspark_ling", "gemma4_dspark", "deepseek_v4_dspark"])
@pytest.mark.parametrize("anchor", [True, False])
def test_the_slot_rule_by_option(name: str, anchor: bool, read: Read, key: Key) -> None:
    found = read(name, sample_from_anchor=anchor)
    wanted = None if name == "dflash" and not anchor else anchor
    assert key(found, "sample_from_anchor") is wanted
    assert f"--{'' if anchor else 'no-'}sample-from-anchor" in text(found, "info")


# options in every family ----------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {
    "block_size": 6,
    "mask_token_id": 9,
    "taps": Taps.from_outputs((0, 2, 5)),
    "rope_dimension_count": 64,
    "rope_theta": 12345.0,
    "rope_style": "norm",
    "sample_from_anchor": True,
}
FAMILIES = ("dflash", "dflash2", "dspark_ling", "muse_glimmer", "gemma4_dspark", "deepseek_v4_dspark", "eagle3")
NOT_FOR = {
    "deepseek_v4_dspark": {"rope_dimension_count", "rope_style"},
    "eagle3": {"block_size", "mask_token_id", "sample_from_anchor"},
    "gemma4_assistant": set(OPTIONS) - {"rope_theta"},
}


@pytest.mark.parametrize("name", [*FAMILIES, "gemma4_assistant"])
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_means_the_same_everywhere_or_is_refused(name: str, option: str, read: Read, key: Key) -> None:
    given = {option: OPTIONS[option]}
    if option in NOT_FOR.get(name, ()):
        with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} means nothing for a drafter of the family"):
            read(name, **given)
        return
    found = read(name, **given)
    seen = {
        "block_size": found.block_size,
        "mask_token_id": found.mask_token_id,
        "taps": found.taps,
        "rope_dimension_count": key(found, "rope.dimension_count"),
        "rope_theta": key(found, "rope.freq_base"),
        "rope_style": "norm",  # tests/families/test_rotary.py
        "sample_from_anchor": key(found, "sample_from_anchor"),
    }
    assert seen[option] == OPTIONS[option]
    assert "given by the caller, whatever config.json says: --" in text(found, "info")


def test_what_was_overruled_stands_in_the_file_and_verify_asks_for_it(case_dir: Make, tmp_path: Path) -> None:
    where = case_dir(mk.dspark_ling())
    source = convert.Source(where / "drafter"), Target.read(where / "target")
    overrides = Overrides(taps=Taps.from_outputs((0, 2, 5)), rope_theta=5e5, sample_from_anchor=False)
    options = convert.Options(outtypes=("bf16",), overrides=overrides)
    (one,) = convert.write(convert.prepare(*source, options), [tmp_path / "d.gguf"], threads=1)
    stated = open_gguf(one.path).get("dflash_convert.overruled")
    assert list(stated) == ["taps=0,2,5", "rope-theta=500000", "sample-from-anchor=false"]
    same = verify(one.path, where / "drafter", Target.read(where / "target"), overrides=overrides)
    assert same.differences == ()
    assert not [note for note in same.notes if "give verify the same" in note.text]
    bare = verify(one.path, where / "drafter", Target.read(where / "target"))
    assert bare.differences
    (note,) = [note for note in bare.notes if "give verify the same" in note.text]
    assert "--taps 0,2,5, --rope-theta 500000, --no-sample-from-anchor" in note.text
    plain = convert.Options(outtypes=("bf16",), overrides=overrides, plain=True)
    (two,) = convert.write(convert.prepare(*source, plain), [tmp_path / "p.gguf"], threads=1)
    assert "dflash_convert.overruled" not in open_gguf(two.path).keys


def test_the_command_line_has_them(case_dir: Make) -> None:
    where = case_dir(mk.dspark_ling())
    call = [str(where / "drafter"), "--target-model-dir", str(where / "target"), "--dry-run"]
    given = ["--rope-theta", "5e5", "--rope-style", "norm", "--no-sample-from-anchor"]
    result = CliRunner().invoke(command, [*call, *given], catch_exceptions=False)
    assert "dflash.rope.freq_base = 500000.0" in result.stdout
    assert "dflash.sample_from_anchor = False" in result.stdout
    assert CliRunner().invoke(command, [*call, "--rope-theta", "0"]).exit_code == 2
    assert CliRunner().invoke(command, [*call, "--rope-style", "gptj"]).exit_code == 2
    eagle = case_dir(mk.eagle3())
    call = [str(eagle / "drafter"), "--target-model-dir", str(eagle / "target"), "--dry-run", "--block-size", "4"]
    refused = CliRunner().invoke(command, call)
    assert isinstance(refused.exception, UsageError)
    assert refused.exception.exit_code == 2


def test_inspect_and_check_take_them_for_a_drafter_that_needs_them(case_dir: Make) -> None:
    config = mk.contract()
    del config["dflash_config"]["target_layer_ids"]
    where = case_dir(mk.Case(config, mk.backbone()))
    drafter, target = str(where / "drafter"), str(where / "target")
    runner = CliRunner()
    bare = runner.invoke(check, [drafter, target])
    assert isinstance(bare.exception, PairingError)
    assert "cure:    the drafter's taps are needed: --taps" in bare.stdout
    assert runner.invoke(check, [drafter, target, "--taps", "0,1,2"], catch_exceptions=False).exit_code == 0
    assert isinstance(runner.invoke(inspect, [drafter]).exception, ConfigError)
    shown = runner.invoke(inspect, [drafter, "--taps", "0,1,2"], catch_exceptions=False)
    assert "outputs of target layers 0, 1, 2" in shown.output or "[0, 1, 2]" in shown.output
    other = runner.invoke(inspect, [target, "--taps", "0,1,2"])
    assert isinstance(other.exception, UsageError)


def test_migrate_refuses_what_it_does_not_change(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    refused = CliRunner().invoke(migrate, [str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), "--rope-theta", "5"])
    assert isinstance(refused.exception, UsageError)
    assert "--rope-theta has no effect on migrate" in str(refused.exception)


# Gemma 4 --------------------------------------------------------------------------------------------------------------


def test_gemma4_dspark_writes_the_scales_that_its_graph_applies(read: Read, key: Key) -> None:
    case = mk.gemma4_dspark()
    case.config |= {"output_multiplier": 0.5, "attention_value_scale": 0.25}
    found = read(case)
    assert (key(found, "logit_scale"), key(found, "attention.value_scale")) == (0.5, 0.25)
    nested = mk.gemma4_dspark()
    nested.config["dflash_config"] = {"output_multiplier": 0.5, "attention_value_scale": 0.25}
    assert read(nested).all_keys == found.all_keys


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("gemma", [True, False])
def test_gemma4_dspark_keys_stand_in_the_reference_s_order(partial: bool, gemma: bool, read: Read) -> None:
    """Its plain DFlash route comes first and writes what it knows; what follows is only appended where it is new."""
    case = mk.gemma4_dspark()
    rope = {"rope_type": "proportional", "rope_theta": 1e6} | ({"partial_rotary_factor": 0.25} if partial else {})
    case.config["rope_parameters"] = {"full_attention": rope}
    case.target = {"architectures": ["Gemma4ForConditionalGeneration" if gemma else "Qwen3ForCausalLM"]}
    names = [kv.name.removeprefix("dflash.") for kv in read(case).late_keys]
    first = ["rope.dimension_count"] * partial + ["block_size"] + ["embedding_scale"] * gemma + ["target_layers"]
    then = ["rope.dimension_count"] * (not partial) + ["embedding_scale"] * (not gemma)
    rest = ["attention.scale", "hidden_activation", "sample_from_anchor", "has_confidence_head"]
    assert names == [*first, *then, *rest]


def per_layer(case: mk.Case, entries: dict[str, Any]) -> mk.Case:
    text_config = case.config.get("text_config", case.config)
    del text_config["global_head_dim"], text_config["num_global_key_value_heads"]
    text_config["per_layer_config"] = entries
    return case


SIZES = {"head_dim": mk.HEAD_DIM, "num_key_value_heads": mk.KV_HEADS}


@pytest.mark.parametrize(
    ("name", "entries"),
    [("gemma4_assistant", {"1": SIZES}), ("gemma4_dspark", {"0": SIZES, "1": SIZES})],
)
def test_sizes_of_full_layers_as_transformers_writes_them_now(name: str, entries: dict[str, Any], read: Read) -> None:
    found = read(per_layer(mk.CASES[name](), entries))
    assert found.all_keys == read(name).all_keys


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ({"0": SIZES}, FamilyError, "changes more than the sizes of full-attention layers"),
        ({"1": SIZES | {"intermediate_size": 5}}, FamilyError, "changes more than the sizes"),
        ({"7": SIZES}, ConfigError, "per_layer_config is"),
        ({"a": SIZES}, ConfigError, "per_layer_config is"),
        ({"1": 5}, ConfigError, "per_layer_config is"),
        ({"1": {"num_key_value_heads": 2}}, ConfigError, "global_head_dim is missing"),
        ({"1": {"head_dim": -1}}, ConfigError, "head_dim is -1"),
    ],
)
def test_other_layer_tables_are_refused(
    entries: dict[str, Any], error: type[Exception], message: str, read: Read
) -> None:
    with pytest.raises(error, match=message):
        read(per_layer(mk.gemma4_assistant(), copy.deepcopy(entries)))


def test_full_layers_of_different_sizes_are_refused(read: Read) -> None:
    other = {"0": SIZES, "1": SIZES | {"head_dim": 2 * mk.HEAD_DIM}}
    with pytest.raises(FamilyError, match="different head_dim"):
        read(per_layer(mk.gemma4_dspark(), other))
    with pytest.raises(FamilyError, match="different head_dim"):
        read(per_layer(mk.gemma4_dspark(), {"0": SIZES}))


# EAGLE-3 --------------------------------------------------------------------------------------------------------------


def test_eagle3_reads_its_own_table(read: Read, key: Key) -> None:
    case = mk.eagle3()
    case.config["eagle_config"] = {"norm_before_fc": True}
    case.tensors.norm("input_norm.weight", 3 * mk.HIDDEN)
    assert key(read(case), "norm_before_fc") is True


def test_eagle3_graph_s_limits(read: Read) -> None:
    case = mk.eagle3()
    case.config["hidden_act"] = "gelu"
    with pytest.raises(FamilyError, match=r"hidden_act is 'gelu', but llama\.cpp runs an EAGLE-3 head with silu only"):
        read(case)
    case = mk.eagle3()
    case.config |= {"sliding_window": 64, "layer_types": ["sliding_attention"]}
    assert "has no window: beyond 64 tokens" in text(read(case), "warning")
