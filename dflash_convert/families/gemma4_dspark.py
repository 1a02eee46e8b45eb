"""Gemma-4 DSpark: DSpark on Gemma 4's layer (K = V, four norms, layer scale), GGUF architecture dflash.

What is required here is what llama.cpp can run (its converter and src/models/dflash.cpp): K = V, full
attention in every layer, tanh-gelu, the whole vocabulary, default or proportional rope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dflash_convert.checkpoint import Checkpoint
from dflash_convert.container.types import KV, ValueType, array, f32, string, u32
from dflash_convert.drafter import Description, Overrides, TensorPlan, Weight
from dflash_convert.errors import CheckpointError, ConfigError, FamilyError
from dflash_convert.families import backbone, dspark, quantized, spellings
from dflash_convert.families.backbone import ARCH, BACKBONE, Sizes
from dflash_convert.families.common import Mapped, plan_tensors, refuse_unclaimed, require, rules
from dflash_convert.hparams import Config, Rope, read_rope
from dflash_convert.notes import Note
from dflash_convert.target import Target

ARCHITECTURES: tuple[str, ...] = ("Gemma4DSparkModel",)
GELU = "gelu_pytorch_tanh"
GLOBAL_PARTIAL = 0.25
GLOBAL_ROPE = {"rope_type": "proportional", "partial_rotary_factor": GLOBAL_PARTIAL, "rope_theta": 1000000.0}
RULES = {
    **{k: r for k, r in BACKBONE.items() if "v_proj" not in k and "sink" not in k},
    **rules(
        backbone.TABLE,
        {
            "layers.{}.post_attention_layernorm.weight": "blk.{}.post_attention_norm.weight",
            "layers.{}.pre_feedforward_layernorm.weight": "blk.{}.ffn_norm.weight",
            "layers.{}.post_feedforward_layernorm.weight": "blk.{}.post_ffw_norm.weight",
            "layers.{}.layer_scalar": "blk.{}.layer_output_scale.weight",
            "layers.{}.layer_scalar.weight": "blk.{}.layer_output_scale.weight",
        },
    ),
}
REQUIRED = (
    *(name for name in backbone.REQUIRED if name != backbone.VALUES),
    "blk.{}.post_attention_norm.weight",
    "blk.{}.post_ffw_norm.weight",
)
UNCLAIMED = (
    ("v_proj", "with K = V the value projection is never read"),
    *backbone.UNCLAIMED,
)


def describe(checkpoint: Checkpoint, target: Target, overrides: Overrides) -> Description:
    """Read a Gemma-4 DSpark checkpoint; ``target`` is the target's config.json."""
    config, target_config = _with_global_heads(checkpoint.config), target.stated
    notes: list[Note] = []
    loaded = quantized.logical_weights(checkpoint, notes)
    weights = spellings.canonical(loaded.weights)
    sizes = backbone.read_sizes(config, weights, target_config, notes)
    _check(config, sizes)
    rope = _rope(config, notes)
    taps = spellings.read_taps(config, target_config, weights, sizes.hidden, overrides, notes)
    block = spellings.read_block(config, overrides)
    mask = spellings.read_mask(config, target, sizes.vocab, overrides, notes)
    anchor = spellings.read_anchor(config, block, True, notes)
    zero = anchor and dspark.lacks_markov(config, weights)
    spark = zero or dspark.has_markov(weights)
    mapped = _tensors(weights, sizes, len(taps), spark, overrides)
    _check_head(config, mapped.plans)
    plans = [*_rope_factors(rope, sizes), *(dspark.zero_head(sizes, notes) if zero else []), *mapped.plans]
    rotary = overrides.rope_dimension_count or sizes.head_dim
    late: list[KV] = [
        u32(f"{ARCH}.rope.dimension_count", rotary),
        u32(f"{ARCH}.block_size", block),
        f32(f"{ARCH}.embedding_scale", sizes.hidden**0.5),
        array(f"{ARCH}.target_layers", ValueType.INT32, list(taps.inputs)),
    ]
    # the top-level window is Gemma's own and means nothing here unless the drafter asks for it
    sliding = [True] * sizes.layers if config.boolean("dflash_config.use_swa") is True else []
    late += backbone.window_keys(config, sliding, block, notes) + backbone.causal_keys(config, sliding, notes)
    late += [f32(f"{ARCH}.attention.scale", 1.0), string(f"{ARCH}.hidden_activation", GELU)]
    late += dspark.keys(anchor, plans) if spark else []
    return Description(
        family="DSpark" if spark else "DFlash",
        architecture=ARCH,
        keys=tuple(backbone.early_keys(config, rope, sizes)),
        late_keys=tuple(late),
        tensors=tuple(plans),
        vocab_size=sizes.vocab,
        block_size=block,
        taps=taps,
        mask_token_id=mask,
        skipped=(*loaded.skipped, *mapped.skipped),
        notes=tuple(notes),
    )


def _tensors(weights: Sequence[Weight], sizes: Sizes, n_taps: int, spark: bool, overrides: Overrides) -> Mapped:
    table, dims, rank = dict(RULES), sizes.symbols(n_taps), 0
    if spark:
        table |= dspark.MARKOV | dspark.confidence_rules(weights, sizes)
        rank = dspark.markov_rank(weights)
        dims |= {"R": rank, "M": sizes.hidden + rank}
    mapped = plan_tensors(weights, table, dims, {})
    refuse_unclaimed(mapped, table, UNCLAIMED, overrides, ARCH)
    require(mapped.plans, REQUIRED, sizes.layers, "Gemma-4 DSpark")
    mapped.plans = [dspark.pad_confidence(backbone.finish(plan, 0, False), rank) for plan in mapped.plans]
    return mapped


def _with_global_heads(raw: Mapping[str, Any]) -> Config:
    """Gemma's full-attention layers have their own head size and count; the drafter has only such layers."""
    config = Config(raw)
    for name, of in (("head_dim", "global_head_dim"), ("num_key_value_heads", "num_global_key_value_heads")):
        value = config.need(config.integer(of, low=1), of)
        config.fields[name] = value
    return config


def _check(config: Config, sizes: Sizes) -> None:
    """FamilyError for every variant that llama.cpp's graph does not have."""
    kinds = config.strings("layer_types") or []
    activation = config.text("hidden_activation", "hidden_act") or GELU
    problems = (
        (config.boolean("attention_k_eq_v") is not True, "attention_k_eq_v must be true"),
        (kinds != ["full_attention"] * sizes.layers, "every layer type must be full_attention"),
        (activation != GELU, f"hidden_activation must be {GELU}"),
        (config.boolean("attention_bias") is True, "attention_bias must be false"),
        (config.boolean("enable_moe_block") is True, "enable_moe_block must be false"),
        (sizes.draft_vocab != sizes.vocab, "the draft vocabulary must be the whole one"),
        (bool(config.number("final_logit_softcapping")), "final_logit_softcapping must be absent"),
    )
    for wrong, rule in problems:
        if wrong:
            raise FamilyError(f"{config.file}: {rule} for llama.cpp to run a Gemma-4 DSpark drafter")


def _check_head(config: Config, plans: Sequence[TensorPlan]) -> None:
    if config.boolean("tie_word_embeddings") is not True and all(plan.name != "output.weight" for plan in plans):
        raise CheckpointError("the checkpoint has no lm_head.weight and tie_word_embeddings is not true")


def _rope(config: Config, notes: list[Note]) -> Rope:
    """The full-attention rope; absent parameters mean Gemma 4's documented defaults, not plain rope."""
    if not config.table("rope_parameters") and not config.table("rope_scaling"):
        config.fields["rope_parameters"] = {"full_attention": GLOBAL_ROPE}
        notes.append(Note("derived", "rope_parameters is missing: Gemma 4's default for full attention is taken"))
    rope, rope_notes = read_rope(config)
    notes += rope_notes
    if rope.kind not in ("none", "proportional"):
        raise FamilyError(
            f"{config.file}: rope type {rope.kind}; a Gemma-4 DSpark drafter runs with default or proportional"
        )
    return rope


def _rope_factors(rope: Rope, sizes: Sizes) -> list[TensorPlan]:
    """Proportional rope: the unrotated pairs stay in place, their frequency divided away."""
    if rope.kind != "proportional":
        return []
    fraction = GLOBAL_PARTIAL if rope.partial is None else rope.partial
    rotated = int(sizes.head_dim * fraction / 2)
    if rotated == 0 or sizes.head_dim * fraction != 2 * rotated:
        raise ConfigError(f"config.json: partial_rotary_factor {fraction} is not an even share of {sizes.head_dim}")
    values = np.array([1.0] * rotated + [1e30] * (sizes.head_dim // 2 - rotated), dtype=np.float32)
    return [TensorPlan("rope_freqs.weight", values.shape, transform="constant", constant=values)]
