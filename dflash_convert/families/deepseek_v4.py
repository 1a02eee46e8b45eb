"""DeepSeek-V4 DSpark: the stages ``mtp.N`` of a DeepSeek-V4 checkpoint, GGUF architecture dflash.

A stage is a whole DeepSeek-V4 block: hyper connections, low-rank attention with one key-value head, experts.
Names, keys and fixed types are those of llama.cpp (its converter, src/models/dflash.cpp): experts are
MXFP4 and stay so bit for bit, FP8 becomes Q8_0, bf16 and float32 stay what they are, whatever the output type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_convert import tensors
from dflash_convert.checkpoint import Checkpoint, SourceTensor
from dflash_convert.container.types import KV, ValueType, array, boolean, f32, u32
from dflash_convert.drafter import Description, Overrides, TensorPlan, Weight
from dflash_convert.errors import CheckpointError, FamilyError
from dflash_convert.families import fields, rotary, spellings
from dflash_convert.families.backbone import ARCH
from dflash_convert.families.common import Mapped, Needs, plan_tensors, rules, settle
from dflash_convert.hparams import Config, architectures
from dflash_convert.llama import MAX_LAYERS
from dflash_convert.notes import Note
from dflash_convert.rope import Rope, read_rope
from dflash_convert.target import Target

ARCHITECTURES: tuple[str, ...] = ("DeepseekV4DSparkModel",)
FIELDS: tuple[str, ...] = (fields.DEEPSEEK,)
OPTIONS: tuple[str, ...] = ("block-size", "mask-token-id", "taps", "rope-theta", "sample-from-anchor")
EMBEDDED = "DeepseekV4ForCausalLM"  # with the drafter's fields: the stages lie beside the target's own tensors
FILE_TYPE = 38  # mostly MXFP4 experts
SQRT_SOFTPLUS = 4
TILE = 128  # rows and columns of an FP8 matrix that share an exponent
EXPONENTS = ("F8_E8M0", "U8")
CODES = ("I8", "U8")
FIXED = {"BF16": "BF16", "F32": "F32", "F8_E4M3": "Q8_0", "F8_E5M2": "Q8_0"}
# whatever else one file with the target holds
TARGET = ("embed.", "head.", "norm.", "layers.", "hc_head_", "vision.", "aligner.", "image_")
CONTRACT = {
    "block_size": ("dspark_block_size", "--block-size N gives it"),
    "mask_token_id": ("dspark_noise_token_id", "--mask-token-id N gives it"),
    "target_layer_ids": ("dspark_target_layer_ids", spellings.TAP_TIP),
}
TABLE = {**tensors.FUSION, **tensors.ENDS, **tensors.SPARK, **tensors.DEEPSEEK4}
ROOT = rules(
    TABLE,
    {
        "main_proj.weight": "fc.weight",
        "main_norm.weight": "enc.output_norm.weight",
        "norm.weight": "output_norm.weight",
        "hc_head_fn": "output_hc_fn.weight",
        "hc_head_base": "output_hc_base.weight",
        "hc_head_scale": "output_hc_scale.weight",
        "markov_head.markov_w1.weight": "markov_w1.weight",
        "markov_head.markov_w2.weight": "markov_w2.weight",
        "confidence_head.proj.weight": "conf_proj.weight",
    },
)
STAGE = rules(
    TABLE,
    {
        "layers.{}.attn.attn_sink": "blk.{}.attn_sinks.weight",
        "layers.{}.attn.kv_norm.weight": "blk.{}.attn_kv_a_norm.weight",
        "layers.{}.attn.q_norm.weight": "blk.{}.attn_q_a_norm.weight",
        "layers.{}.attn.wkv.weight": "blk.{}.attn_kv.weight",
        "layers.{}.attn.wo_a.weight": "blk.{}.attn_output_a.weight",
        "layers.{}.attn.wo_b.weight": "blk.{}.attn_output_b.weight",
        "layers.{}.attn.wq_a.weight": "blk.{}.attn_q_a.weight",
        "layers.{}.attn.wq_b.weight": "blk.{}.attn_q_b.weight",
        "layers.{}.attn_norm.weight": "blk.{}.attn_norm.weight",
        "layers.{}.ffn.gate.bias": "blk.{}.exp_probs_b.bias",
        "layers.{}.ffn.gate.weight": "blk.{}.ffn_gate_inp.weight",
        "layers.{}.ffn.shared_experts.w1.weight": "blk.{}.ffn_gate_shexp.weight",
        "layers.{}.ffn.shared_experts.w2.weight": "blk.{}.ffn_down_shexp.weight",
        "layers.{}.ffn.shared_experts.w3.weight": "blk.{}.ffn_up_shexp.weight",
        "layers.{}.ffn_norm.weight": "blk.{}.ffn_norm.weight",
        "layers.{}.hc_attn_base": "blk.{}.hc_attn_base.weight",
        "layers.{}.hc_attn_fn": "blk.{}.hc_attn_fn.weight",
        "layers.{}.hc_attn_scale": "blk.{}.hc_attn_scale.weight",
        "layers.{}.hc_ffn_base": "blk.{}.hc_ffn_base.weight",
        "layers.{}.hc_ffn_fn": "blk.{}.hc_ffn_fn.weight",
        "layers.{}.hc_ffn_scale": "blk.{}.hc_ffn_scale.weight",
    },
)
RULES = ROOT | STAGE
# of an expert -> name and rows, columns; in the reference's order
EXPERTS = {"w1": ("ffn_gate_exps", "I", "H"), "w2": ("ffn_down_exps", "H", "I"), "w3": ("ffn_up_exps", "I", "H")}
SKIP = {
    "layers.{}.ffn.gate.bias_vl": "routes image tokens, which a draft never holds",
    "layers.{}.ffn.gate.tid2eid": "routes tokens by hash, which the stages of a drafter do not",
}
REQUIRED = (
    *(rule.name for rule in ROOT.values() if rule.name != "conf_proj.weight"),
    *(rule.name for rule in STAGE.values()),
)
UNCLAIMED = (
    ("compressor", "its DeepSeek-V4 stages have uncompressed attention only"),
    ("indexer", "its DeepSeek-V4 stages have no sparse attention"),
    ("_proj.", "its dflash graph has no such projection; a plain multi-token predictor is not a DSpark drafter"),
)
TIP = "llama.cpp runs this drafter as DeepSeek stores it: MXFP4 experts, FP8 or bf16 for the rest"


def matches(config: Config) -> bool:
    """A DeepSeek-V4 target's config with the drafter's fields: one checkpoint for both."""
    return EMBEDDED in architectures(config.raw) and config.raw.get("dspark_target_layer_ids") is not None


def describe(checkpoint: Checkpoint, target: Target, overrides: Overrides) -> Description:
    """Read the stages of a DeepSeek-V4 checkpoint; ``target`` is the target's config.json."""
    config, target_config = _with_contract(checkpoint.config, overrides), target.stated
    notes: list[Note] = []
    weights, skipped = _weights(checkpoint.tensors)
    stages = _stages(weights)
    dims = _sizes(config, stages)
    rope, rope_notes = read_rope(config, theta=overrides.rope_theta)
    fused = [weight._replace(name="fc.weight") for weight in weights if weight.name == "main_proj.weight"]
    taps = spellings.read_taps(config, target_config, fused, dims["H"], overrides, notes)
    block = spellings.read_block(config, overrides)
    mask = spellings.read_mask(config, target, dims["V"], overrides, notes)
    rank = next((w.shape[-1] for w in weights if w.name == "markov_head.markov_w1.weight" and w.shape), 0)
    dims |= {"T": len(taps) * dims["H"], "R": rank, "M": dims["H"] + rank}
    _check_rank(config, rank)
    _check_rope(config, rope)
    mapped = _tensors(weights, dims, overrides)
    anchor = overrides.sample_from_anchor
    notes.append(
        Note("info", "experts stay MXFP4, FP8 becomes Q8_0, bf16 and float32 stay: the output type changes nothing")
    )
    return Description(
        family="DSpark",
        architecture=ARCH,
        keys=(*_early_keys(config, stages), *rotary.rope_keys(rope, plain=True), *_expert_keys(config, dims)),
        late_keys=(
            *_late_keys(config, dims, stages),
            u32(f"{ARCH}.block_size", block),
            array(f"{ARCH}.target_layers", ValueType.INT32, list(taps.inputs)),
            *([] if anchor is None else [boolean(f"{ARCH}.sample_from_anchor", anchor)]),
        ),
        tensors=tuple(mapped.plans),
        vocab_size=dims["V"],
        block_size=block,
        taps=taps,
        mask_token_id=mask,
        skipped=(*skipped, *mapped.skipped),
        notes=(*notes, *rope_notes),
        early_template=True,
        file_type=FILE_TYPE,
    )


def _check_rank(config: Config, rank: int) -> None:
    stated = config.integer("dspark_markov_rank")
    if stated is not None and rank and stated != rank:
        raise CheckpointError(f"{config.file}: dspark_markov_rank is {stated}, markov_w1 has rank {rank}")


def _check_rope(config: Config, rope: Rope) -> None:
    """The graph of the stages rotates with the runtime's own YaRN and takes no divisors."""
    if rope.by_tensor:
        what = "YaRN with other betas than 32 and 1" if rope.own_yarn else f"rope type {rope.kind}"
        raise FamilyError(f"{config.file}: {what}, which llama.cpp's DeepSeek-V4 stages do not run")


def _with_contract(raw: Mapping[str, Any], overrides: Overrides) -> Config:
    """The config with the drafter's fields under the names that other families use."""
    config = Config(raw)
    given = {"block_size": overrides.block_size, "mask_token_id": overrides.mask_token_id}
    given["target_layer_ids"] = None if overrides.taps is None else len(overrides.taps)
    for name, (own, tip) in CONTRACT.items():
        if given[name] is None:
            config.fields[name] = config.need(config.raw_value(own)[1], own, tip=tip)
    return config


def _weights(tensors: Mapping[str, SourceTensor]) -> tuple[list[Weight], list[tuple[str, str]]]:
    """(the stages' weights joined with their scales, what belongs to the target): names lose ``mtp.N``."""
    weights, skipped = [], []
    for name, tensor in tensors.items():
        if name.startswith(TARGET):
            skipped.append((name, "a tensor of the target"))
        elif name.endswith(".scale"):
            if name.removesuffix("scale") + "weight" not in tensors:
                raise FamilyError(f"{tensor.file}: tensor {name!r} is a scale without its weight", tip=TIP)
        else:
            weights.append(_join(tensor, tensors.get(name.removesuffix("weight") + "scale")))
    return weights, skipped


def _join(tensor: SourceTensor, scale: SourceTensor | None) -> Weight:
    found = re.fullmatch(r"mtp\.(\d{1,5})\.(.+)", tensor.name)
    name = tensor.name
    if found:
        name = found.group(2) if found.group(2) in ROOT else f"layers.{int(found.group(1))}.{found.group(2)}"
    expert = ".ffn.experts." in name
    if not expert and tensor.dtype not in ("F8_E4M3", "F8_E5M2"):
        if scale is not None:
            raise FamilyError(f"{tensor.file}: tensor {tensor.name!r} is {tensor.dtype} and has a scale", tip=TIP)
        return Weight(name, tensor.shape, (tensor,))
    if (
        len(tensor.shape) != 2
        or scale is None
        or scale.dtype not in EXPONENTS
        or (expert and tensor.dtype not in CODES)
    ):
        scheme = "MXFP4" if expert else "FP8"
        raise FamilyError(
            f"{tensor.file}: tensor {tensor.name!r} ({tensor.dtype}) is not a matrix in {scheme} with E8M0 scales",
            tip=TIP,
        )
    rows, columns = tensor.shape
    shape = (rows, 2 * columns) if expert else tensor.shape
    wanted = (rows, columns // 16) if expert else (-(-rows // TILE), -(-columns // TILE))
    if scale.shape != wanted or (expert and columns % 16):
        raise CheckpointError(
            f"{scale.file}: tensor {scale.name!r} has shape {list(scale.shape)}, {tensor.name!r} "
            f"needs {list(wanted)} scales"
        )
    return Weight(name, shape, (tensor, scale), "mxfp4" if expert else "fp8", (1, 32) if expert else (TILE, TILE))


def _stages(weights: Sequence[Weight]) -> int:
    """How many stages the names count."""
    numbers = [int(found.group(1)) for w in weights if (found := re.match(r"layers\.(\d+)\.", w.name))]
    if not numbers:
        raise CheckpointError(
            "the checkpoint has no stage mtp.0 of a DSpark drafter", tip="take the checkpoint that holds the drafter"
        )
    if max(numbers) >= MAX_LAYERS:
        raise CheckpointError(f"the checkpoint names a stage mtp.{max(numbers)}, llama.cpp runs {MAX_LAYERS} layers")
    return max(numbers) + 1


def _sizes(config: Config, stages: int) -> dict[str, int]:
    """The tables' shape symbols."""

    def size(name: str) -> int:
        return _size(config, name)

    heads, head_dim, groups, streams = size("num_attention_heads"), size("head_dim"), size("o_groups"), size("hc_mult")
    rotary = size("qk_rope_head_dim")
    if rotary > head_dim or rotary % 2:
        raise config.fail("qk_rope_head_dim", rotary, f"an even number up to head_dim {head_dim}")
    if heads * head_dim % groups:
        raise config.fail("o_groups", groups, f"a divisor of {heads * head_dim}, the width of all heads")
    if config.text("scoring_func") != "sqrtsoftplus":
        raise FamilyError(
            f"{config.file}: scoring_func is {config.text('scoring_func')!r}; llama.cpp runs sqrtsoftplus"
        )
    return {
        "L": stages,
        "H": size("hidden_size"),
        "V": size("vocab_size"),
        "W": size("vocab_size"),
        "N": heads,
        "D": head_dim,
        "Q": heads * head_dim,
        "G": heads * head_dim // groups,
        "Lq": size("q_lora_rank"),
        "Lo": groups * size("o_lora_rank"),
        "X": size("n_routed_experts"),
        "I": size("moe_intermediate_size"),
        "J": size("n_shared_experts") * size("moe_intermediate_size"),
        "Y": streams,
        "YH": streams * size("hidden_size"),
        "YY": (2 + streams) * streams,
    }


def _size(config: Config, name: str, low: int = 1) -> int:
    return config.need(config.integer(name, low=low), name)


def _number(config: Config, *names: str) -> float:
    return config.need(config.number(*names), names[0])


def _tensors(weights: Sequence[Weight], dims: Mapping[str, int], overrides: Overrides) -> Mapped:
    """Stacked experts first, then the rest in source order."""
    stacks = _stacks([w for w in weights if w.scheme == "mxfp4"], dims)
    mapped = plan_tensors([w for w in weights if w.scheme != "mxfp4"], RULES, dims, SKIP, prefixes=())
    settle(mapped, RULES, UNCLAIMED, overrides, ARCH, Needs(REQUIRED, dims["L"], "DeepSeek-V4 DSpark"))
    mapped.plans = [*stacks, *(_typed(plan) for plan in mapped.plans)]
    return mapped


def _typed(plan: TensorPlan) -> TensorPlan:
    """The type follows the checkpoint's; vectors and norms become float32 as everywhere."""
    if len(plan.shape) < 2 or plan.name.endswith("_norm.weight"):
        return plan
    kind = FIXED.get(plan.sources[0].dtype, "F32" if "ffn_gate_inp" in plan.name else "")
    return replace(plan, type=kind)


def _stacks(weights: Sequence[Weight], dims: Mapping[str, int]) -> list[TensorPlan]:
    """One tensor of all experts for each projection of each stage; CheckpointError when one is missing or odd."""
    found = {weight.name: weight for weight in weights}
    plans = []
    for stage in range(dims["L"]):
        for part, (name, rows, columns) in EXPERTS.items():
            shape = (dims[rows], dims[columns])
            sources: list[SourceTensor] = []
            for expert in range(dims["X"]):
                weight = found.pop(f"layers.{stage}.ffn.experts.{expert}.{part}.weight", None)
                if weight is None:
                    raise CheckpointError(
                        f"the checkpoint has no tensor 'mtp.{stage}.ffn.experts.{expert}.{part}.weight' "
                        f"(config.json says {dims['X']} experts)",
                        tip="finish the download of the drafter",
                    )
                if weight.shape != shape:
                    raise CheckpointError(f"{weight.where} holds {list(weight.shape)} values, not {list(shape)}")
                sources += weight.sources
            full = (dims["X"], *shape)
            plans.append(
                TensorPlan(
                    f"blk.{stage}.{name}.weight",
                    full,
                    tuple(sources),
                    transform="stack",
                    scheme="mxfp4",
                    type="MXFP4",
                )
            )
    for weight in found.values():
        raise CheckpointError(f"{weight.where} is not one of the {dims['X']} experts that config.json names")
    return plans


def _early_keys(config: Config, stages: int) -> list[KV]:
    """The keys before those of the rope."""
    keys = [
        u32(f"{ARCH}.block_count", stages),
        u32(f"{ARCH}.context_length", _size(config, "max_position_embeddings")),
        u32(f"{ARCH}.embedding_length", _size(config, "hidden_size")),
    ]
    if config.integer("intermediate_size") is not None:
        keys.append(u32(f"{ARCH}.feed_forward_length", _size(config, "intermediate_size")))
    keys.append(u32(f"{ARCH}.attention.head_count", _size(config, "num_attention_heads")))
    keys.append(u32(f"{ARCH}.attention.head_count_kv", _size(config, "num_key_value_heads")))
    if config.boolean("is_causal") is False:
        keys.append(boolean(f"{ARCH}.attention.causal", False))
    return keys


def _expert_keys(config: Config, dims: Mapping[str, int]) -> list[KV]:
    """The keys from the rope's to general.file_type."""
    keys = [
        f32(f"{ARCH}.attention.layer_norm_rms_epsilon", _number(config, "rms_norm_eps", "norm_eps")),
        u32(f"{ARCH}.expert_count", dims["X"]),
        u32(f"{ARCH}.expert_used_count", _size(config, "num_experts_per_tok")),
    ]
    for name, field in (("expert_group_count", "n_group"), ("expert_group_used_count", "topk_group")):
        if config.integer(field) is not None:
            keys.append(u32(f"{ARCH}.{name}", _size(config, field)))
    return [
        *keys,
        u32(f"{ARCH}.expert_gating_func", SQRT_SOFTPLUS),
        u32(f"{ARCH}.attention.key_length", dims["D"]),
        u32(f"{ARCH}.attention.value_length", dims["D"]),
    ]


def _late_keys(config: Config, dims: Mapping[str, int], stages: int) -> list[KV]:
    """The keys after general.file_type: the stages have neither compressed attention nor routing by hash."""
    clamp = [_number(config, "swiglu_limit")] * stages
    return [
        u32(f"{ARCH}.rope.dimension_count", _size(config, "qk_rope_head_dim")),
        u32(f"{ARCH}.attention.q_lora_rank", dims["Lq"]),
        u32(f"{ARCH}.attention.sliding_window", _size(config, "sliding_window")),
        u32(f"{ARCH}.expert_feed_forward_length", dims["I"]),
        u32(f"{ARCH}.expert_shared_count", _size(config, "n_shared_experts")),
        f32(f"{ARCH}.expert_weights_scale", _number(config, "routed_scaling_factor")),
        boolean(f"{ARCH}.expert_weights_norm", config.need(config.boolean("norm_topk_prob"), "norm_topk_prob")),
        array(f"{ARCH}.swiglu_clamp_exp", ValueType.FLOAT32, clamp),
        array(f"{ARCH}.swiglu_clamp_shexp", ValueType.FLOAT32, clamp),
        u32(f"{ARCH}.attention.indexer.head_count", _size(config, "index_n_heads")),
        u32(f"{ARCH}.attention.indexer.key_length", _size(config, "index_head_dim")),
        u32(f"{ARCH}.attention.indexer.top_k", _size(config, "index_topk")),
        u32(f"{ARCH}.attention.output_group_count", _size(config, "o_groups")),
        u32(f"{ARCH}.attention.output_lora_rank", _size(config, "o_lora_rank")),
        array(f"{ARCH}.attention.compress_ratios", ValueType.INT32, [0] * stages),
        f32(f"{ARCH}.attention.compress_rope_freq_base", _number(config, "compress_rope_theta")),
        u32(f"{ARCH}.hyper_connection.count", dims["Y"]),
        u32(f"{ARCH}.hyper_connection.sinkhorn_iterations", _size(config, "hc_sinkhorn_iters")),
        f32(f"{ARCH}.hyper_connection.epsilon", _number(config, "hc_eps")),
        u32(f"{ARCH}.hash_layer_count", 0),
    ]
