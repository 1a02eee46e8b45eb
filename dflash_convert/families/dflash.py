"""The DFlash lineage on a Qwen3-type backbone: DFlash, DFlash2, DSpark and Muse Glimmer's assistant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash_convert import tensors
from dflash_convert.checkpoint import Checkpoint
from dflash_convert.container.types import KV, ValueType, array, f32, u32
from dflash_convert.drafter import Description, Overrides, TensorPlan, Weight
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.families import (
    backbone,
    draft_map,
    dspark,
    fields,
    mask_embedding,
    promises,
    quantized,
    rotary,
    spellings,
)
from dflash_convert.families.backbone import ARCH, Sizes
from dflash_convert.families.common import Mapped, Needs, plan_tensors, rules, settle
from dflash_convert.hparams import Config, architectures, classes
from dflash_convert.notes import Note
from dflash_convert.rope import Rope, read_rope
from dflash_convert.target import Target

CONVOLUTION = rules(
    tensors.SELECTOR,
    {
        "layers.{}.attention_conv.base_kernel": "blk.{}.attn_conv_base",
        "layers.{}.attention_conv.kernel_projection.weight": "blk.{}.attn_conv_proj.weight",
        "layers.{}.mlp_conv.base_kernel": "blk.{}.ffn_conv_base",
        "layers.{}.mlp_conv.kernel_projection.weight": "blk.{}.ffn_conv_proj.weight",
        "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
        "candidate_selector.successor_codebook": "selector_successor.weight",
        "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    },
)
CONVOLUTION_REQUIRED = tensors.needed(tensors.SELECTOR)
CONVOLUTION_FIELDS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
REDUCED = rules(tensors.ENDS, {"d2t": "d2t add_index"})
SKIP = {"t2d": "the runtime derives it from d2t"}
PLAIN = ("DFlashDraftModel", "DFlashSpeculator", "Qwen3DFlashDraftModel", "MuseGlimmerAssistantModel")
SECOND = ("DFlash2DraftModel", "DFlash2BeamDraftModel", "MiniMaxDFlash2DraftModel")
SPARK = ("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator", "Lfm2DSparkDraftModel", "LingDSparkModel")
ARCHITECTURES: tuple[str, ...] = PLAIN + SECOND + SPARK
FIELDS: tuple[str, ...] = fields.QWEN
OPTIONS: tuple[str, ...] = backbone.OPTIONS
GEMMA_NORM = ("dflash_config.use_gemma_norm", "use_gemma_norm")


def describe(checkpoint: Checkpoint, target: Target, overrides: Overrides) -> Description:
    """Read a DFlash, DFlash2 or DSpark checkpoint; ``target`` is the target's config.json."""
    config, target_config = Config(checkpoint.config, checkpoint.config_file), target.stated
    notes: list[Note] = []
    loaded = quantized.logical_weights(checkpoint, notes)
    weights = spellings.canonical(loaded.weights)
    _note_exporter(config, weights, notes)
    sizes = backbone.read_sizes(config, weights, target_config, notes)
    notes += promises.check(config, weights, sizes)
    draft_map.check(weights, sizes)
    rope, rope_notes = read_rope(config, theta=overrides.rope_theta)
    notes += rope_notes
    taps = spellings.read_taps(config, target_config, weights, sizes.hidden, overrides, notes)
    block = spellings.read_block(config, overrides)
    mask = spellings.read_mask(config, target, sizes.vocab, overrides, notes)
    named = is_spark_name(config)
    markov = dspark.has_markov(weights)
    anchor = spellings.read_anchor(config, block, named or markov, overrides, notes)
    zero = anchor and not markov
    spark = markov or zero
    second = _second(config, weights)
    turned = sizes.head_dim if rotary.interleaved(config, overrides) else 0
    mapped = _tensors(config, weights, sizes, len(taps), spark, second, turned, overrides)
    plans = [*(dspark.zero_head(sizes, notes) if zero else []), *mapped.plans]
    plans = mask_embedding.patch(checkpoint, config, target, sizes, mask, plans, notes)
    _note_head(config, plans, sizes, notes)
    count, sections = _rotary(config, rope, sizes, target_config, spark, overrides, notes)
    rotated = sizes.head_dim if count is None else count
    plans = [*rotary.rope_factors(rope, sizes.head_dim, rotated, sizes.head_dim // 2, plain=overrides.plain), *plans]
    sliding = backbone.sliding_layers(config, sizes.layers, notes)
    notes += rotary.rope_notes(rope, plain=overrides.plain, sliding=any(sliding))
    late: list[KV] = [] if count is None else [u32(f"{ARCH}.rope.dimension_count", count)]
    late += _block_keys(config, block, second) + backbone.scale_keys(config, target_config, notes)
    late.append(array(f"{ARCH}.target_layers", ValueType.INT32, list(taps.inputs)))
    late += _attention_keys(config, sliding, block, None if rope.sections else sections, notes)
    late += dspark.keys(anchor, plans) if spark else []
    return Description(
        family="DSpark" if spark else "DFlash2" if second else "DFlash",
        architecture=ARCH,
        keys=tuple(backbone.early_keys(config, _rope_keys(rope, sections, overrides), sizes)),
        late_keys=tuple(late),
        tensors=tuple(plans),
        vocab_size=sizes.vocab,
        block_size=block,
        taps=taps,
        mask_token_id=mask,
        skipped=(*loaded.skipped, *mapped.skipped),
        notes=tuple(notes),
    )


def _rope_keys(rope: Rope, sections: int | None, overrides: Overrides) -> list[KV]:
    """Sections that the drafter states itself stand here, as the reference writes them; others stand later."""
    if rope.sections and sections is None and rope.by_tensor:
        rope = replace(rope, sections=())  # with sections the graph would take no divisors; text is the same without
    stated = (sections,) if rope.sections and sections is not None else None
    return rotary.rope_keys(rope, plain=overrides.plain, sections=stated)


def _attention_keys(
    config: Config, sliding: Sequence[bool], block: int, sections: int | None, notes: list[Note]
) -> list[KV]:
    keys = backbone.window_keys(config, sliding, block, notes) + backbone.causal_keys(config, sliding, notes)
    keys += backbone.activation_keys(config, notes)
    if sections is not None:
        keys.append(array(f"{ARCH}.rope.dimension_sections", ValueType.INT32, [sections, 0, 0, 0]))
    return keys


def is_spark_name(config: Config) -> bool:
    """DSpark by architecture, speculators' model type or SpecForge's projector type."""
    return (
        any(name in SPARK for name in architectures(config.raw))
        or config.raw.get("speculators_model_type") == "dspark"
        or config.nested.get("projector_type", config.raw.get("projector_type")) == "dspark"
    )


def _second(config: Config, weights: Sequence[Weight]) -> bool:
    """DFlash2: convolutions and a candidate selector, by fields or by tensors."""
    return config.raw_value("dflash_config.conv_kernel_size", "conv_kernel_size")[1] is not None or any(
        weight.name.startswith("candidate_selector.") for weight in weights
    )


def _note_exporter(config: Config, weights: Sequence[Weight], notes: list[Note]) -> None:
    who = spellings.exporter(config, weights)
    made_for = spellings.proposed_target(config.raw)
    if who not in ("z-lab", "unknown"):
        notes.append(Note("info", f"written in {who}'s format" + (f", for {made_for}" if made_for else "")))


def _note_head(config: Config, plans: Sequence[TensorPlan], sizes: Sizes, notes: list[Note]) -> None:
    """The runtime takes own embeddings without an own head as tied."""
    names = {plan.name for plan in plans}
    if "output.weight" in names:
        return
    if sizes.draft_vocab < sizes.vocab:
        raise CheckpointError("the checkpoint has a reduced draft vocabulary but no lm_head of its own for it")
    if "token_embd.weight" in names and config.boolean("tie_word_embeddings") is not True:
        notes.append(
            Note(
                "warning",
                "embed_tokens without lm_head and without tie_word_embeddings: llama.cpp will use embed_tokens as "
                "the output head too",
            )
        )


def _rotary(
    config: Config,
    rope: Rope,
    sizes: Sizes,
    target: Config,
    spark: bool,
    overrides: Overrides,
    notes: list[Note],
) -> tuple[int | None, int | None]:
    """(rotary dimension count or None for the whole head, M-RoPE section or None)."""
    count = rotary.rotated_dimensions(config, rope, sizes, overrides.rope_dimension_count)
    if overrides.rope_dimension_count is None and count is not None and spark and _repeats_target(rope, target):
        notes.append(
            Note(
                "derived",
                f"full rotary embedding: partial_rotary_factor {rope.partial:g} only repeats the target's, and such "
                f"heads are trained with the whole head rotated (--rope-dimension-count {count} overrules)",
            )
        )
        count = None
    if not rotary.uses_mrope(target):
        return count, None
    if not (overrides.plain and rope.kind == "yarn"):
        rotary.refuse_divisors(config, rope)
    notes.append(Note("derived", "the target uses M-RoPE: the drafter gets temporal-only sections"))
    # the reference writes half the head here whatever the count; only a chosen count changes that
    chosen = overrides.rope_dimension_count or sizes.head_dim
    return count, chosen // 2


def _repeats_target(rope: Rope, target: Config) -> bool:
    """A Qwen3.5-type target's config copied into the head: the same factor in both."""
    kinds = [str(target.raw.get("model_type", "")), str(target.fields.get("model_type", ""))]
    names = [kind for kind in (*kinds, *classes(target.raw)) if kind.startswith(("qwen3_5", "Qwen3_5"))]
    return bool(names) and rotary.target_partial(target.raw) == rope.partial


def _block_keys(config: Config, block: int, second: bool) -> list[KV]:
    keys: list[KV] = []
    value_scale = config.number("dflash_config.attention_value_scale", "attention_value_scale")
    if value_scale is not None:
        keys.append(f32(f"{ARCH}.attention.value_scale", value_scale))
    keys.append(u32(f"{ARCH}.block_size", block))
    if second:
        keys += [u32(f"{ARCH}.{name}", _second_size(config, name)) for name in CONVOLUTION_FIELDS]
    return keys


def _second_size(config: Config, name: str) -> int:
    return config.need(config.integer(f"dflash_config.{name}", name, low=1), f"dflash_config.{name}")


def _tensors(
    config: Config,
    weights: Sequence[Weight],
    sizes: Sizes,
    n_taps: int,
    spark: bool,
    second: bool,
    turned: int,
    overrides: Overrides,
) -> Mapped:
    """Plans in file order, d2t last; everything in the checkpoint is planned, skipped or refused."""
    table, dims, required = {**backbone.BACKBONE, **REDUCED}, sizes.symbols(n_taps), list(backbone.REQUIRED)
    skip = dict(SKIP)
    if config.boolean("has_embed_tokens") is False:
        skip["embed_tokens.weight"] = "config.json says has_embed_tokens false: the target's embeddings are used"
    if second:
        table |= CONVOLUTION
        required += CONVOLUTION_REQUIRED
        dims |= _second_dims(config, sizes)
    rank = 0
    if spark:
        table |= dspark.MARKOV | dspark.confidence_rules(weights, sizes)
        required += [] if not dspark.has_markov(weights) else dspark.REQUIRED
        rank = dspark.markov_rank(weights)
        dims |= {"R": rank, "M": sizes.hidden + rank}
    mapped = plan_tensors(weights, table, dims, skip)
    family = "DSpark" if spark else "DFlash2" if second else "DFlash"
    settle(mapped, table, backbone.UNCLAIMED, overrides, ARCH, Needs(required, sizes.layers, family))
    if sizes.draft_vocab < sizes.vocab and not mapped.has("d2t"):
        raise CheckpointError(f"draft_vocab_size {sizes.draft_vocab} < vocab_size {sizes.vocab} but no d2t tensor")
    gemma_norm = config.boolean(*GEMMA_NORM) is True
    finished = [dspark.pad_confidence(backbone.finish(plan, turned, gemma_norm), rank) for plan in mapped.plans]
    mapped.plans = sorted(finished, key=lambda plan: plan.name == "d2t")
    return mapped


def _second_dims(config: Config, sizes: Sizes) -> dict[str, int]:
    kernel, group = _second_size(config, "conv_kernel_size"), _second_size(config, "conv_group_size")
    rank, top = _second_size(config, "selector_rank"), _second_size(config, "selector_top_k")
    if sizes.hidden % group:
        raise ConfigError(f"{config.file}: conv_group_size {group} does not divide hidden_size {sizes.hidden}")
    if sizes.hidden < top * (top + 1):
        raise ConfigError(
            f"{config.file}: selector_top_k {top} needs a hidden_size of at least {top * (top + 1)} in llama.cpp"
        )
    return {"C": kernel, "P": 2 * kernel * (sizes.hidden // group), "S": rank}
