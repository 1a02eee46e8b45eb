"""Configs that trainers publish, each reduced to what is its own on a tiny checkpoint: read, or refused by name.

The rows are those of docs/bug-reports.md, section G.  Shapes follow from the fields, as a trainer's would.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import make_checkpoints as mk
import pytest
from family_cases import Key, Make, Read

from dflash_convert import conversion
from dflash_convert.errors import DflashError, PairingError
from dflash_convert.target import Target

ROOT = Path(__file__).resolve().parents[2]
H = mk.HIDDEN
Fields = dict[str, Any]


class Row(NamedTuple):
    """``config`` goes over the base's, ``nested`` over its dflash_config; ``outcome`` is a regex, empty for a drafter
    that is read.

    ``expect`` are keys of the file, ``note`` a part of a note, ``target`` goes over the target's config.
    """

    name: str
    base: Callable[[], mk.Case]
    config: Fields = {}  # noqa: RUF012
    nested: Fields = {}  # noqa: RUF012
    drop: tuple[str, ...] = ()
    outcome: str = ""
    expect: Fields = {}  # noqa: RUF012
    note: str = ""
    target: Fields = {}  # noqa: RUF012


def sized_eagle(heads: int = mk.HEADS, kv: int = mk.KV_HEADS, dim: int = mk.HEAD_DIM, draft: int = 0) -> mk.Case:
    """An EAGLE-3 head whose attention has other sizes than the fixture's; ``draft`` tokens, 0: as the fixture."""
    case = mk.eagle3()
    case.config |= {"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim}
    for part, rows, columns in (
        ("q_proj", heads * dim, 2 * H),
        ("k_proj", kv * dim, 2 * H),
        ("v_proj", kv * dim, 2 * H),
        ("o_proj", H, heads * dim),
    ):
        case.tensors.add(f"midlayer.self_attn.{part}.weight", rows, columns)
    if draft:
        case.config["draft_vocab_size"] = draft
        case.tensors.add("lm_head.weight", draft, H)
        for name in ("d2t", "t2d"):
            case.tensors.pop(name)
    return case


def multi_head() -> mk.Case:
    return sized_eagle(kv=mk.HEADS)


def whole_vocabulary() -> mk.Case:
    return sized_eagle(draft=mk.VOCAB)


def expert_eagle() -> mk.Case:
    case = mk.eagle3()
    for name in [name for name in case.tensors if ".mlp." in name]:
        del case.tensors[name]
    case.tensors.add("midlayer.mlp.gate.weight", 4, H)
    for i in range(4):
        for part in ("gate_proj", "up_proj"):
            case.tensors.add(f"midlayer.mlp.experts.{i}.{part}.weight", 32, H)
        case.tensors.add(f"midlayer.mlp.experts.{i}.down_proj.weight", H, 32)
    return case


def expert_spark() -> mk.Case:
    case = mk.dspark_specforge()
    for name in [name for name in case.tensors if ".mlp." in name]:
        del case.tensors[name]
    for layer in range(mk.LAYERS):
        case.tensors.add(f"layers.{layer}.mlp.gate.weight", 4, H)
        for i in range(4):
            case.tensors.add(f"layers.{layer}.mlp.experts.{i}.up_proj.weight", 32, H)
    return case


def no_confidence() -> mk.Case:
    case = mk.dspark_specforge()
    case.tensors = mk.Tensors({name: t for name, t in case.tensors.items() if "confidence" not in name})
    return case


def reduced_spark() -> mk.Case:
    """Rows for a part of the vocabulary: Markov's second matrix and the head."""
    case = mk.dspark_specforge()
    case.config["draft_vocab_size"] = mk.DRAFT_VOCAB
    second = next(name for name in case.tensors if "markov_w2" in name)
    case.tensors.add(second, mk.DRAFT_VOCAB, mk.RANK)
    mk.reduced(case.tensors)
    return case


YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
LONG = [1.0 + i / 8 for i in range(mk.HEAD_DIM // 2)]
LONGROPE = {"rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": 4096}
FACTORS = {"long_factor": LONG, "short_factor": LONG}
MOE = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SECTIONS = {"mrope_interleaved": True, "mrope_section": [12, 10, 10], "rope_type": "default"}
TWO_BACKENDS = {"backend": "fla", "head_dim": 32, "num_heads": 4, "short_conv_kernel_size": 4}

ROWS = (
    # SpecForge's templates for EAGLE-3
    Row("deepseek-v3-671b-eagle3", mk.eagle3, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}),
    Row(
        "ling-flash-2.0-eagle3", mk.eagle3, drop=("rope_theta",), expect={"rope.freq_base": 10000.0}, note="rope_theta"
    ),
    Row("llama4-scout-17B-16E-eagle3", mk.eagle3, drop=("head_dim",), note="head_dim"),
    Row("llava_eagle3", multi_head, drop=("rope_theta", "head_dim"), expect={"attention.head_count_kv": mk.HEADS}),
    Row("phi4-eagle3", mk.eagle3, {"model_type": "phi3"}, drop=("head_dim",)),
    Row("qwq-32B-eagle3", mk.eagle3, {"model_type": "qwen2", "max_window_layers": 64, "sliding_window": 32768}),
    Row("longcat-flash-eagle3", whole_vocabulary, {"use_sliding_window": False}),
    Row("gemma4-26b-a4b-eagle3", whole_vocabulary, {"target_model_type": "gemma4_text"}),
    Row("minicpm-v4-eagle3", mk.eagle3, {"rope_scaling": LONGROPE | FACTORS}, outcome="rope_type is 'longrope'"),
    Row("qwen3-omni-eagle3", mk.eagle3, drop=("rope_theta",), target={"thinker_config": {}}, note="rope_theta"),
    Row("qwen3-next-80b-a3b-eagle3", mk.eagle3, {"decoder_sparse_step": 1, "num_experts": 512}),
    Row("qwen3-30B-A3B-eagle3.1", mk.eagle3, {"norm_output": True, "fc_norm": True}, outcome="norm_output is True"),
    Row(
        "kimi-k25-eagle3 (for DeepSeek-V3)",
        multi_head,
        target={"architectures": ["DeepseekV3ForCausalLM"]},
        outcome="target-architecture .*deepseek2",
    ),
    Row("gpt-oss-20B-eagle3-moe", expert_eagle, {"architectures": ["GptOssForCausalLMEagle3"]}, outcome="of experts"),
    Row(
        "qwen3-30B-A3B-eagle3-moe-draft",
        expert_eagle,
        {"architectures": ["Qwen3MoEForCausalLMEagle3"], "num_experts": 4},
        outcome="one dense layer, no mixture of experts",
    ),
    Row("qwen3-8b-edsd", mk.eagle3, {"architectures": ["EdsdDraftModel"], "target_layer_ids": [2, 4]}, outcome="EDSD"),
    Row("qwen3-8b-peagle", mk.eagle3, {"architectures": ["PEagleDraftModel"]}, outcome="P-EAGLE"),
    # SpecForge's templates for drafters of a block
    Row("qwen3-8b-dta", mk.dflash, nested={"training_mode": "vp_drafter", "prefix_weight_base": 0.9}),
    Row(
        "qwen3-vl-8b-dflash",
        mk.dflash,
        {"model_type": "qwen3_vl_text", "rope_scaling": SECTIONS},
        target={"text_config": {"rope_parameters": SECTIONS | {"rope_theta": 5e6}}},
    ),
    Row("qwen3.6-27b-dflash2", mk.dflash2, {"is_causal": False}, expect={"attention.causal": False}),
    Row("longcat-flash-dflash", mk.dflash, {"max_window_layers": 5, "rope_scaling": None, "sliding_window": None}),
    Row("qwen3-8b-dspark-causal-noconf-b16", no_confidence, {"is_causal": True}, {"enable_confidence_head": False}),
    Row("qwen3-8b-dspark-draftvocab32k", reduced_spark, nested={"attention_mode": "gqa"}),
    Row("kimi-k3-dspark-fullattn-gqa16", mk.dspark_specforge, nested={"attention_mode": "gqa"}),
    Row("qwen3-4b-dspark (attention_modes all gqa)", mk.dspark_specforge, nested={"attention_modes": ["gqa"] * 3}),
    Row(
        "qwen3-4b-dspark-kda",
        mk.dspark_specforge,
        {"linear_attn_config": TWO_BACKENDS},
        {"attention_modes": ["kda", "gqa", "kda"]},
        outcome=r"dflash_config.attention_modes is .*neither latent nor linear attention",
    ),
    Row(
        "kimi-k3-dspark-4kda-1mla",
        mk.dspark_specforge,
        {"architectures": ["KimiK3DSpark4KDA1MLADraftModel"], "draft_layer_types": ["kda", "mla", "kda"]},
        outcome="DFlash or DSpark with latent",
    ),
    Row(
        "kimi-k3-dspark (layer types alone)",
        mk.dspark_specforge,
        {"draft_layer_types": ["kda", "mla", "kda"]},
        outcome="draft_layer_types is",
    ),
    Row(
        "qwen3.5-4b-dspark-kv",
        mk.dspark_specforge,
        nested={"conditioning_source": "target_kv", "target_kv_heads": 4},
        outcome="conditioning_source is 'target_kv'; .* not its keys and values",
    ),
    Row("qwen3.8-27b-dspark-moe", expert_spark, MOE | {"moe_preset": "qwen3_5_moe"}, outcome="mixture of experts"),
    Row(
        "deepseek-v4-flash-dspark-moe",
        expert_spark,
        MOE | {"rope_parameters": YARN | {"rope_theta": 1e4}, "scoring_func": "sqrtsoftplus"},
        {"moe_grouped_dispatch": True},
        outcome="mixture of experts",
    ),
    Row(
        "deepseek-v2-lite-dflash",
        mk.dflash,
        {"architectures": ["DeepseekDFlashDraftModel"], "model_type": "deepseek_v3", "kv_lora_rank": 512},
        outcome="DFlash or DSpark with latent",
    ),
    Row(
        "qwen3-4b-hspec-reference",
        mk.dspark_specforge,
        {"architectures": ["HSpecDraftModel"], "hspec_config": {"block_pattern": ["mamba", "mlp"]}},
        outcome="H-Spec",
    ),
    Row("qwen3-8b-dspine", mk.dflash, {"architectures": ["DSpineDraftModel"], "dspine_config": {}}, outcome="DSpine"),
    Row("qwen3.5-4b-mtp", mk.dflash, {"architectures": ["Qwen3_5MTPDraftModel"]}, outcome="prediction layer"),
    Row("qwen3.6-27b-domino-full-attention", mk.dflash, {"architectures": ["DominoDraftModel"]}, outcome="Domino"),
)


def case_of(row: Row) -> mk.Case:
    case = row.base()
    case.config |= row.config
    if row.nested:
        case.config["dflash_config"] = {**case.config["dflash_config"], **row.nested}
    for name in row.drop:
        case.config.pop(name)
    case.target |= row.target
    return case


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_read_or_refused_for_a_stated_reason(row: Row, case_dir: Make, key: Key) -> None:
    where = case_dir(case_of(row))
    source, target = conversion.Source(where / "drafter"), Target.read(where / "target")
    if row.outcome:
        with pytest.raises(DflashError, match=row.outcome) as caught:
            conversion.prepare(source, target, conversion.Options())
        assert caught.value.exit_code == (4 if isinstance(caught.value, PairingError) else 3)
        assert "keep-unclaimed" not in f"{caught.value} {caught.value.tip}"
        return
    found = conversion.prepare(source, target, conversion.Options())
    for name, value in row.expect.items():
        assert key(found.description, name) == value
    assert row.note in " ".join(note.text for note in found.notes)
    unknown = [note.text for note in found.notes if "is not known here" in note.text]
    assert unknown == []


def test_there_are_enough_of_them() -> None:
    assert len(ROWS) >= 35
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {bool(row.outcome) for row in ROWS} == {True, False}


def test_the_document_lists_them() -> None:
    table = (ROOT / "docs" / "bug-reports.md").read_text("utf-8").split("## G.")[1]
    listed = re.findall(r"^\| G\d\d \| ([^|]+) \| (read|refused)", table, re.MULTILINE)
    assert listed == [(row.name, "refused" if row.outcome else "read") for row in ROWS]


def test_a_list_is_judged_by_its_entries(read: Read) -> None:
    case = mk.dspark_specforge()
    case.config["dflash_config"]["attention_modes"] = ["gqa", None, "mha"]
    assert read(case).family == "DSpark"
    case.config["dflash_config"]["attention_modes"] = ["gqa", "mla"]
    with pytest.raises(DflashError, match="attention_modes"):
        read(case)
