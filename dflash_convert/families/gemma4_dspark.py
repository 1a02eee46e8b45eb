"""Gemma-4 DSpark: DSpark on Gemma 4's layer (K = V, four norms, layer scale), GGUF architecture dflash.

What is required here is what llama.cpp can run (its converter and src/models/dflash.cpp): K = V, full
attention in every layer, tanh-gelu, the whole vocabulary, default or proportional rope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_convert.checkpoint import Checkpoint
from dflash_convert.container.types import KV, ValueType, array, f32, string, u32
from dflash_convert.drafter import Description, Overrides, TensorPlan, Weight
from dflash_convert.errors import CheckpointError, FamilyError
from dflash_convert.families import backbone, dspark, fields, gemma4, promises, quantized, rotary, spellings
from dflash_convert.families.backbone import ARCH, BACKBONE, Sizes
from dflash_convert.families.common import Mapped, Needs, plan_tensors, rules, settle
from dflash_convert.hparams import Config, classes
from dflash_convert.notes import Note
from dflash_convert.rope import GLOBAL_SHARE, Rope, read_rope
from dflash_convert.target import Target

ARCHITECTURES: tuple[str, ...] = ("Gemma4DSparkModel",)
FIELDS: tuple[str, ...] = (fields.GEMMA,)
OPTIONS: tuple[str, ...] = backbone.OPTIONS
GELU = "gelu_pytorch_tanh"
GLOBAL_ROPE = {"rope_type": "proportional", "partial_rotary_factor": GLOBAL_SHARE, "rope_theta": 1000000.0}
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
LENGTHS = ("attention.key_length", "attention.value_length")
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
    notes += promises.check(config, weights, sizes)
    rope = _rope(config, overrides, notes)
    taps = spellings.read_taps(config, target_config, weights, sizes.hidden, overrides, notes)
    block = spellings.read_block(config, overrides)
    mask = spellings.read_mask(config, target, sizes.vocab, overrides, notes)
    anchor = spellings.read_anchor(config, block, True, overrides, notes)
    zero = anchor and not dspark.has_markov(weights)
    spark = zero or dspark.has_markov(weights)
    turned = sizes.head_dim if rotary.interleaved(config, overrides) else 0
    mapped = _tensors(weights, sizes, len(taps), spark, turned, overrides)
    _check_head(config, mapped.plans)
    factors = rotary.rope_factors(rope, sizes.head_dim, sizes.head_dim, sizes.head_dim // 2)
    plans = [*factors, *(dspark.zero_head(sizes, notes) if zero else []), *mapped.plans]
    late = _scale_keys(config, target_config, sizes, rope, block, overrides)
    late.append(array(f"{ARCH}.target_layers", ValueType.INT32, list(taps.inputs)))
    # the top-level window is Gemma's own and means nothing here unless the drafter asks for it
    sliding = [True] * sizes.layers if config.boolean("dflash_config.use_swa") is True else []
    late += backbone.window_keys(config, sliding, block, notes) + backbone.causal_keys(config, sliding, notes)
    early, moved = _early(Config(checkpoint.config), backbone.early_keys(config, rotary.rope_keys(rope), sizes))
    late += [*moved, *_overwritten(config, rope, sizes, target_config, overrides)]
    late += [f32(f"{ARCH}.attention.scale", 1.0), string(f"{ARCH}.hidden_activation", GELU)]
    late += dspark.keys(anchor, plans) if spark else []
    return Description(
        family="DSpark" if spark else "DFlash",
        architecture=ARCH,
        keys=tuple(early),
        late_keys=tuple(late),
        tensors=tuple(plans),
        vocab_size=sizes.vocab,
        block_size=block,
        taps=taps,
        mask_token_id=mask,
        skipped=(*loaded.skipped, *mapped.skipped),
        notes=tuple(notes),
    )


def _scale_keys(config: Config, target: Config, sizes: Sizes, rope: Rope, block: int, overrides: Overrides) -> list[KV]:
    """From the rotary count to the embedding scale.

    The reference writes the count and the embedding scale here only where its plain DFlash route has them: a stated
    partial_rotary_factor, a Gemma target or a stated scale.  Elsewhere they follow the window (:func:`_overwritten`).
    """
    keys: list[KV] = []
    if rope.partial is not None:
        keys.append(_count(sizes, overrides))
    value_scale = config.number("dflash_config.attention_value_scale", "attention_value_scale")
    if value_scale is not None:
        keys.append(f32(f"{ARCH}.attention.value_scale", value_scale))
    keys.append(u32(f"{ARCH}.block_size", block))
    multiplier = config.number("dflash_config.output_multiplier", "output_multiplier")
    if multiplier is not None:
        keys.append(f32(f"{ARCH}.logit_scale", multiplier))
    return [*keys, _embedding_scale(sizes)] if _scaled_early(config, target) else keys


def _early(stated: Config, keys: Sequence[KV]) -> tuple[list[KV], list[KV]]:
    """(early keys, those that the reference writes only with the global sizes: what has no field of its own)."""
    own = {"attention.head_count_kv": "num_key_value_heads"} | dict.fromkeys(LENGTHS, "head_dim")
    late = {f"{ARCH}.{key}" for key, field in own.items() if stated.integer(field) is None}
    return [kv for kv in keys if kv.name not in late], [kv for kv in keys if kv.name in late]


def _overwritten(config: Config, rope: Rope, sizes: Sizes, target: Config, overrides: Overrides) -> list[KV]:
    keys = [] if rope.partial is not None else [_count(sizes, overrides)]
    return keys if _scaled_early(config, target) else [*keys, _embedding_scale(sizes)]


def _count(sizes: Sizes, overrides: Overrides) -> KV:
    return u32(f"{ARCH}.rope.dimension_count", overrides.rope_dimension_count or sizes.head_dim)


def _embedding_scale(sizes: Sizes) -> KV:
    return f32(f"{ARCH}.embedding_scale", sizes.hidden**0.5)


def _scaled_early(config: Config, target: Config) -> bool:
    """Whether the plain DFlash route has a scale to write, whatever value it gets in the end."""
    stated = config.number("dflash_config.input_embedding_scale", "input_embedding_scale")
    return stated is not None or _gemma(target)


def _gemma(target: Config) -> bool:
    return any(name.startswith("Gemma") for name in classes(target.raw))


def _tensors(
    weights: Sequence[Weight], sizes: Sizes, n_taps: int, spark: bool, turned: int, overrides: Overrides
) -> Mapped:
    table, dims, rank = dict(RULES), sizes.symbols(n_taps), 0
    if spark:
        table |= dspark.MARKOV | dspark.confidence_rules(weights, sizes)
        rank = dspark.markov_rank(weights)
        dims |= {"R": rank, "M": sizes.hidden + rank}
    mapped = plan_tensors(weights, table, dims, {})
    settle(mapped, table, UNCLAIMED, overrides, ARCH, Needs(REQUIRED, sizes.layers, "Gemma-4 DSpark"))
    mapped.plans = [dspark.pad_confidence(backbone.finish(plan, turned, False), rank) for plan in mapped.plans]
    return mapped


def _with_global_heads(raw: Mapping[str, Any]) -> Config:
    """Gemma's full-attention layers have their own head size and count; the drafter has only such layers."""
    config = Config(raw)
    full = [True] * (config.integer("num_hidden_layers", low=1) or 0)
    for name, of in (("head_dim", gemma4.HEAD_DIM), ("num_key_value_heads", gemma4.KV_HEADS)):
        config.fields[name] = config.need(gemma4.full_size(config, of, full), of)
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


def _rope(config: Config, overrides: Overrides, notes: list[Note]) -> Rope:
    """The full-attention rope; absent parameters mean Gemma 4's documented defaults, not plain rope."""
    if not config.table("rope_parameters") and not config.table("rope_scaling"):
        config.fields["rope_parameters"] = {"full_attention": GLOBAL_ROPE}
        notes.append(Note("derived", "rope_parameters is missing: Gemma 4's default for full attention is taken"))
    rope, rope_notes = read_rope(config, theta=overrides.rope_theta)
    notes += rope_notes
    if rope.kind not in ("none", "proportional"):
        raise FamilyError(
            f"{config.file}: rope type {rope.kind}; a Gemma-4 DSpark drafter runs with default or proportional"
        )
    return replace(rope, sliding_theta=None, sections=())  # every layer is a full one, every position a text's
