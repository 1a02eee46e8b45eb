"""The table of fields: it lists what configs carry, the code reads what it says, and strangers are named."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import pytest
from click.testing import CliRunner
from family_cases import Make, Read
from hypothesis import given, settings
from hypothesis import strategies as st
from public_drafters import ROWS

from dflash_convert.cli.convert import command
from dflash_convert.errors import ConfigError, FamilyError, InputError
from dflash_convert.families import contract, fields
from dflash_convert.families.fields import (
    BACKBONE,
    EAGLE,
    EAGLES,
    GEMMA,
    MTP,
    NESTED,
    PROPOSAL,
    ROPE,
    SPARK,
    SPECULATORS,
    TABLE,
    TOP,
    VERIFIER,
)
from dflash_convert.hparams import Config

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_the_table() -> None:
    """docs/contract.md; a second listing could only differ."""
    call = [sys.executable, str(ROOT / "docs" / "make_contract.py"), "--check"]
    assert subprocess.run(call, check=False).returncode == 0, "run docs/make_contract.py"


def test_every_field_has_one_treatment_in_its_place() -> None:
    seen: dict[tuple[str, str, str], str] = {}
    for field in TABLE:
        assert field.reason
        for name in field.names.split():
            for where in field.where:
                for family in field.families:
                    assert (name, where, family) not in seen, f"{name} in {where} for {family} stands twice"
                    seen[name, where, family] = field.treatment


# fields that public exporters write, by place; sources in families/fields.py
EXPORTED = {
    # SpecForge's templates, all 45
    (TOP, "SpecForge"): """architectures attention_bias attention_dropout auto_map block_size bos_token_id
        decoder_sparse_step dflash_config draft_vocab_size dtype eagle_config emb_dim eos_token_id fc_norm head_dim
        hidden_act hidden_size initializer_range intermediate_size layer_types max_position_embeddings
        max_window_layers model_type norm_output num_attention_heads num_hidden_layers num_key_value_heads
        num_target_layers pad_token_id pretraining_tp rms_norm_eps rope_parameters rope_scaling rope_theta
        sliding_window target_hidden_size target_model_type tie_word_embeddings torch_dtype transformers_version
        use_cache use_sliding_window vocab_size""",
    (NESTED, "SpecForge"): """attention_mode confidence_head_alpha confidence_head_with_markov emb_dim
        enable_confidence_head gru_hidden_dim markov_head_type markov_rank mask_token_id projector_type
        pure_draft_prefix_len shift_label target_layer_ids""",
    (EAGLES, "SpecForge"): "eagle_aux_hidden_state_layer_ids use_aux_hidden_state",
    # ModelOpt's DFlash, Domino, DSpark and EAGLE exporters
    (NESTED, "ModelOpt"): """mask_token_id target_layer_ids use_swa swa_window_size causal projector_type shift_label
        pure_draft_prefix_len gru_hidden_dim emb_dim markov_rank markov_head_type use_confidence_head""",
    (EAGLES, "ModelOpt"): """eagle_aux_hidden_state_layer_ids use_aux_hidden_state use_input_layernorm_in_first_layer
        use_last_layernorm use_mtp_layernorm next_layer_regular parallel_draft_step parallel_draft_heads_num_layers""",
    (TOP, "ModelOpt"): "mlp_bias has_embed_tokens has_lm_head eagle_aux_hidden_state_layer_ids quantization_config",
    # speculators' DFlash, DSpark and EAGLE-3 schemas
    (TOP, "speculators"): """architectures speculators_model_type speculators_version transformer_layer_config
        draft_vocab_size block_size target_hidden_size aux_hidden_state_layer_ids mask_token_id
        sliding_window_non_causal sample_from_anchor markov_rank markov_head_type enable_confidence_head
        confidence_head_with_markov norm_before_residual eagle_aux_hidden_state_layer_ids norm_before_fc fc_norm
        norm_output embed_requires_grad max_anchors""",
    (SPECULATORS, "speculators"): "algorithm default_proposal_method proposal_methods verifier",
    (PROPOSAL, "speculators"): "proposal_type speculative_tokens verifier_accept_k accept_tolerance",
    (VERIFIER, "speculators"): "name_or_path architectures",
    # DeepSpec, z-lab, LiquidAI, MiMo, NVIDIA
    (TOP, "DeepSpec"): """target_layer_ids mask_token_id block_size num_anchors markov_rank markov_head_type
        enable_confidence_head confidence_head_with_markov logits_start log_snr_conditioning min_log_snr
        max_log_snr""",
    (NESTED, "z-lab"): """block_size conv_group_size conv_kernel_size mask_token_id selector_rank selector_top_k
        target_layer_ids num_target_layers final_logit_softcapping output_multiplier""",
    (NESTED, "MiMo"): "use_swa swa_window_size attention_value_scale attention_sink_bias mask_token causal",
    (TOP, "LiquidAI"): "rope_is_neox_style is_neox_style",
    # readers: vLLM, SGLang, TensorRT-LLM
    (NESTED, "readers"): """query_zero_predicts_next sample_from_anchor sliding_window_non_causal dflash_query_causal
        use_aux_hidden_state layer_ids use_attention_sink""",
    (EAGLES, "readers"): "return_hidden_post_norm norm_before_fc eh_proj_before_attn",
    (ROPE, "readers"): """rope_type type rope_theta factor original_max_position_embeddings attention_factor
        attn_factor beta_fast beta_slow mscale mscale_all_dim truncate extrapolation_factor low_freq_factor
        high_freq_factor mrope_section mrope_interleaved partial_rotary_factor alpha apply_yarn_scaling rope_dim
        full_attention sliding_attention""",
    # transformers 5.24: what any config class serializes
    (BACKBONE, "transformers"): """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
        num_key_value_heads head_dim hidden_act max_position_embeddings initializer_range rms_norm_eps use_cache
        tie_word_embeddings rope_parameters attention_bias use_sliding_window sliding_window max_window_layers
        layer_types attention_dropout pad_token_id bos_token_id eos_token_id mlp_bias pretraining_tp dtype
        transformers_version architectures output_hidden_states return_dict chunk_size_feed_forward
        is_encoder_decoder id2label label2id problem_type""",
}


@pytest.mark.parametrize("place", EXPORTED, ids=lambda place: f"{place[1]} {place[0]}")
def test_what_exporters_write_is_in_the_table(place: tuple[str, str]) -> None:
    places = {TOP, BACKBONE} if place[0] in (TOP, BACKBONE) else {place[0]}
    known = {name for field in TABLE if places & set(field.where) for name in field.names.split()}
    assert set(EXPORTED[place].split()) <= known


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_public_drafters_hold_nothing_unknown(row: Any) -> None:
    for path, where, table in contract.tables(Config(row.config)):
        known = contract.known(where)
        assert set(table) <= known, path


def variants() -> Iterator[mk.Case]:
    """Every family's cases, and those that reach what a plain case leaves unread."""
    for make in mk.CASES.values():
        yield make()
    for change in (
        {"mask_token": "<mask>"},
        {"rope_scaling": {"type": "dynamic", "alpha": 2.0}},
        {"layer_types": ["sliding_attention"] * mk.LAYERS, "sliding_window": 8},
        {"use_sliding_window": True, "sliding_window": 8},
    ):
        case = mk.dspark_specforge()
        case.config |= change
        if "mask_token" in change:
            del case.config["dflash_config"]["mask_token_id"]
        yield case
    spark = mk.gemma4_dspark()
    spark.config |= {"dflash_config": {"use_swa": True, "swa_window_size": 8}}
    spark.config |= {"speculators_config": {"proposal_methods": [{"speculative_tokens": 7}]}}
    yield spark
    named = mk.gemma4_dspark()
    named.config |= {"mask_token": "<mask>"}
    del named.config["mask_token_id"]
    yield named
    eagle = mk.eagle3()
    eagle.config |= {"sliding_window": 8, "layer_types": ["sliding_attention"]}
    yield eagle
    eagle.config |= {"rope_scaling": {"type": "dynamic", "alpha": 2.0}}
    yield eagle


# read from the raw object, before a family is chosen or beside Config
RAW = {
    *("architectures", "model_type", "speculators_model_type", "projector_type", "text_config"),
    *("transformer_layer_config", "dflash_config", "quantization_config", "compression_config"),
    *("proposal_methods", "default_proposal_method", "proposal_type", "verifier", "name_or_path"),
    *("full_attention", "sliding_attention", "speculators_config", "markov_head_type"),
}


def place_of(config: Config, name: str) -> tuple[str, str] | None:
    """(place, bare name) of a read; None for the target's config and for tables within tables."""
    if config.file.startswith("target "):
        return None
    file, bare = config.file.rpartition("/")[2], name.removeprefix("dflash_config.")
    if file == "config.json":
        return (NESTED, bare) if bare != name else (BACKBONE, name)
    if re.match(r"config\.json: (rope_parameters|rope_scaling)", file):
        return ROPE, name
    return {"config.json: eagle_config": (EAGLES, name), "config.json: proposal_methods": (PROPOSAL, name)}.get(file)


def test_the_code_reads_what_the_table_says(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field that is read has a row, and each used or checked row is read by the families it names."""
    reads: dict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)  # by the families of one module
    now: list[tuple[str, ...]] = []
    before, looked_up = contract.check, Config.raw_value

    def check(config: Config, families: Any) -> Any:
        notes = before(config, families)
        now[:] = [tuple(families)]
        return notes

    def raw_value(self: Config, *names: str) -> tuple[str, Any]:
        for place in filter(None, (place_of(self, name) for name in names)):
            for families in now:
                reads[families].add(place)
        return looked_up(self, *names)

    monkeypatch.setattr(contract, "check", check)
    monkeypatch.setattr(Config, "raw_value", raw_value)
    for case in variants():
        now.clear()
        try:
            read(case)
        except InputError:
            continue
    listed = {
        (BACKBONE if where == TOP else where, name)
        for field in TABLE
        for where in field.where
        for name in field.names.split()
    }
    assert {family for families in reads for family in families} == set(fields.ALL)
    assert set.union(*reads.values()) - listed == set(), "read, but not in the table"
    unread = []
    for field in TABLE:
        for name in set(field.names.split()) - RAW if field.treatment in ("used", "checked") else ():
            places = {(BACKBONE if where == TOP else where, name) for where in field.where}
            unread += [(name, f) for f in reads if set(f) & set(field.families) and not places & reads[f]]
    assert str(unread) == "[]", "used or checked in the table, but nothing reads it"


TABLES = (
    ("dflash", ("dflash_config",)),
    ("dspark_specforge", ("dflash_config",)),
    ("gemma4_dspark", ("rope_parameters", "full_attention")),
    ("eagle3", ("eagle_config",)),
    ("eagle3", ("rope_scaling",)),
    ("dflash", ("rope_parameters",)),
    ("dflash_speculators", ("speculators_config",)),
    ("dflash_speculators", ("speculators_config", "verifier")),
    ("dflash_speculators", ("speculators_config", "proposal_methods", 0)),
    ("dspark_speculators", ("transformer_layer_config",)),
    ("eagle3_speculators", ("transformer_layer_config", "rope_scaling")),
    ("gemma4_assistant", ("text_config", "rope_parameters", "sliding_attention")),
)
ROPE_DEFAULTS = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "rope_scaling": {"rope_type": "default", "rope_theta": 1000000.0},
}


def with_field(name: str, path: tuple[Any, ...], field: str, value: Any) -> mk.Case:
    case = mk.CASES[name]()
    at: Any = case.config
    for step in path:
        if isinstance(step, str) and step not in at:
            at[step] = copy.deepcopy(ROPE_DEFAULTS.get(step, {}))
            if step == "full_attention":
                at[step] |= {"rope_type": "proportional", "partial_rotary_factor": 0.25}
        at = at[step]
    at[field] = value
    return case


WORDS = st.from_regex(r"zz_[a-z]{1,12}", fullmatch=True)
VALUES = st.one_of(st.booleans(), st.integers(-5, 5), st.text(max_size=4), st.lists(st.integers(0, 3), max_size=3))


@settings(max_examples=60)
@given(table=st.sampled_from(TABLES), field=WORDS, value=VALUES)
def test_a_made_up_field_in_a_drafters_table_is_named(table: Any, field: str, value: Any) -> None:
    name, path = table
    case = with_field(name, path, field, value)
    notes = contract.check(Config(case.config), ())
    (found,) = [note for note in notes if note.level == "warning"]
    assert f".{field} is not known here" in found.text
    assert found.text.startswith(str(path[0]))
    assert found.guess
    with pytest.raises(ConfigError, match=field):
        contract.refuse_guesses(notes)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table[0]} {'.'.join(map(str, table[1]))}")
def test_the_warning_comes_with_the_description_and_strict_refuses_it(table: Any, read: Read, case_dir: Make) -> None:
    name, path = table
    texts = [note.text for note in read(with_field(name, path, "zz_new", 1)).notes]
    assert sum("zz_new is not known here" in text for text in texts) == 1
    where = case_dir(with_field(name, path, "zz_new", 1))
    call = [str(where / "drafter"), "--target-model-dir", str(where / "target"), "--dry-run"]
    runner = CliRunner()
    assert runner.invoke(command, call, catch_exceptions=False).exit_code == 0
    refused = runner.invoke(command, [*call, "--strict"])
    assert isinstance(refused.exception, ConfigError)
    assert refused.exception.exit_code == 3
    assert "zz_new" in str(refused.exception)


def test_a_slip_of_the_pen_gets_its_right_spelling(read: Read) -> None:
    case = mk.Case(mk.contract({"sampel_from_anchor": True}), mk.backbone())
    assert any("(sample_from_anchor is known)" in note.text for note in read(case).notes)


def test_known_cases_pass_strict(read: Read) -> None:
    """No fixture is a guess but Muse's, whose config does not state whether its sliding layers attend causally."""
    guesses = {name for name in mk.CASES if any(note.guess for note in read(name).notes)}
    assert guesses == {"muse_glimmer"}


REFUSABLE = {SPARK: "dspark_specforge", EAGLE: "eagle3", GEMMA: "gemma4_dspark", MTP: "gemma4_assistant"} | {
    "DFlash": "dflash",
    "DFlash2": "dflash2",
    "DeepSeek-V4": "deepseek_v4_dspark",
}
ACTIVE = {"attention_mode": "mla", "beam_width": 4, "beam_size": 4, "parallel_draft_step": 2} | {
    "parallel_draft_heads_num_layers": 2,
    "attention_factor": 1.5,
    "attn_factor": 1.5,
}
REFUSED = [
    (family, where, name)
    for field in TABLE
    if field.treatment == "refused"
    for family in field.families
    for where in field.where
    for name in field.names.split()
]


@pytest.mark.parametrize(("family", "where", "name"), REFUSED)
def test_refused_fields_are_refused_by_name(family: str, where: str, name: str, read: Read) -> None:
    case = mk.CASES[REFUSABLE[family]]()
    path = {NESTED: "dflash_config", EAGLES: "eagle_config", ROPE: "rope_scaling"}.get(where)
    at = case.config if path is None else case.config.setdefault(path, {})
    at[name] = ACTIVE.get(name, True)
    with pytest.raises(FamilyError, match=rf"{name} is .*; llama\.cpp cannot express it: ") as caught:
        read(case)
    assert json.dumps(str(caught.value)).count("\\n") == 0
    harmless = next(f.harmless for f in TABLE if f.treatment == "refused" and name in f.names.split())
    at[name] = harmless[1]
    read(case)
