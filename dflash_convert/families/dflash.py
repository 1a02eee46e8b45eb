"""The DFlash lineage: DFlash, DFlash2, DSpark and Muse Glimmer's assistant, all of GGUF architecture dflash.

Keys and their order are those of llama.cpp b11434's converter; the tensor tables follow what its loader
claims (src/models/dflash.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_convert.checkpoint import Checkpoint, SourceTensor
from dflash_convert.container.types import KV, ValueType, array, boolean, f32, string, u32
from dflash_convert.errors import CheckpointError, ConfigError, FamilyError
from dflash_convert.families.common import Description, Rule, TensorPlan, plan_tensors, require
from dflash_convert.hparams import Config, Rope, architectures, llama3_frequency_factors, read_rope
from dflash_convert.notes import Note

ARCH = "dflash"
BACKBONE = {
    "fc.weight": Rule("fc.weight", "H T"),
    "encoder.fc.weight": Rule("fc.weight", "H T"),
    "hidden_norm.weight": Rule("enc.output_norm.weight", "H"),
    "encoder.output_norm_enc.weight": Rule("enc.output_norm.weight", "H"),
    "norm.weight": Rule("output_norm.weight", "H"),
    "embed_tokens.weight": Rule("token_embd.weight", "V H"),
    "lm_head.weight": Rule("output.weight", "W H"),
    "layers.{}.input_layernorm.weight": Rule("blk.{}.attn_norm.weight", "H"),
    "layers.{}.post_attention_layernorm.weight": Rule("blk.{}.ffn_norm.weight", "H"),
    "layers.{}.self_attn.q_proj.weight": Rule("blk.{}.attn_q.weight", "Q H", "rope_rows"),
    "layers.{}.self_attn.k_proj.weight": Rule("blk.{}.attn_k.weight", "K H", "rope_rows"),
    "layers.{}.self_attn.v_proj.weight": Rule("blk.{}.attn_v.weight", "K H"),
    "layers.{}.self_attn.o_proj.weight": Rule("blk.{}.attn_output.weight", "H Q"),
    "layers.{}.self_attn.q_norm.weight": Rule("blk.{}.attn_q_norm.weight", "D", "rope_rows"),
    "layers.{}.self_attn.k_norm.weight": Rule("blk.{}.attn_k_norm.weight", "D", "rope_rows"),
    "layers.{}.mlp.gate_proj.weight": Rule("blk.{}.ffn_gate.weight", "F H"),
    "layers.{}.mlp.up_proj.weight": Rule("blk.{}.ffn_up.weight", "F H"),
    "layers.{}.mlp.down_proj.weight": Rule("blk.{}.ffn_down.weight", "H F"),
    "layers.{}.self_attn.attention_sink_bias": Rule("blk.{}.attn_sinks.weight", "N"),
    "layers.{}.self_attn.sinks": Rule("blk.{}.attn_sinks.weight", "N"),
}
CONVOLUTION = {
    "layers.{}.attention_conv.base_kernel": Rule("blk.{}.attn_conv_base", "2 C H"),
    "layers.{}.attention_conv.kernel_projection.weight": Rule("blk.{}.attn_conv_proj.weight", "P H"),
    "layers.{}.mlp_conv.base_kernel": Rule("blk.{}.ffn_conv_base", "2 C H"),
    "layers.{}.mlp_conv.kernel_projection.weight": Rule("blk.{}.ffn_conv_proj.weight", "P H"),
    "candidate_selector.predecessor_codebook": Rule("selector_predecessor.weight", "V S"),
    "candidate_selector.successor_codebook": Rule("selector_successor.weight", "V S"),
    "candidate_selector.hidden_projection.weight": Rule("selector_hidden.weight", "S H"),
}
MARKOV = {
    "markov_head.markov_w1.weight": Rule("markov_w1.weight", "V R"),
    "markov_head.markov_w2.weight": Rule("markov_w2.weight", "W R"),
    "confidence_head.proj.weight": Rule("conf_proj.weight", "1 M"),
    "confidence_head.proj.bias": Rule("conf_proj.bias", "1"),
    "d2t": Rule("d2t", "W", "add_index"),
}
SKIP = {"t2d": "the runtime derives it from d2t"}
BLOCK_PARTS = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_q_norm",
    "attn_k_norm",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)
REQUIRED = (
    "fc.weight",
    "enc.output_norm.weight",
    "output_norm.weight",
    *(f"blk.{{}}.{part}.weight" for part in BLOCK_PARTS),
)
REQUIRED_CONVOLUTION = (
    "selector_predecessor.weight",
    "selector_successor.weight",
    "selector_hidden.weight",
    "blk.{}.attn_conv_base",
    "blk.{}.attn_conv_proj.weight",
    "blk.{}.ffn_conv_base",
    "blk.{}.ffn_conv_proj.weight",
)
PLAIN = ("DFlashDraftModel", "DFlashSpeculator", "Qwen3DFlashDraftModel", "MuseGlimmerAssistantModel")
SECOND = ("DFlash2DraftModel", "DFlash2BeamDraftModel", "MiniMaxDFlash2DraftModel")
SPARK = ("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator", "Lfm2DSparkDraftModel", "LingDSparkModel")
ARCHITECTURES: tuple[str, ...] = PLAIN + SECOND + SPARK


@dataclass(frozen=True)
class Sizes:
    """The backbone's dimensions."""

    layers: int
    context: int
    hidden: int
    ffn: int
    heads: int
    heads_kv: int
    head_dim: int
    vocab: int
    draft_vocab: int
    eps: float


def describe(checkpoint: Checkpoint, target: Mapping[str, Any]) -> Description:
    """Read a DFlash, DFlash2 or DSpark checkpoint; ``target`` is the target's config.json."""
    config = Config(checkpoint.config)
    notes: list[Note] = []
    target_text = Config(target, "target config.json")
    name = next((a for a in architectures(checkpoint.config) if a in ARCHITECTURES), "DFlashDraftModel")
    spark = name in SPARK or any(t.endswith("markov_w1.weight") for t in checkpoint.tensors)
    sizes = _sizes(config, checkpoint, target_text, notes)
    rope, rope_notes = read_rope(config)
    notes += rope_notes
    taps = _taps(config, target_text)
    block = config.integer("dflash_config.block_size", "block_size", low=2)
    block = config.need(block, "block_size", tip="--block-size N gives it")
    mask = config.integer("dflash_config.mask_token_id", "mask_token_id")
    mask = config.need(mask, "dflash_config.mask_token_id", tip="--mask-token-id N gives it")
    if mask >= sizes.vocab:
        raise ConfigError(f"config.json: mask_token_id {mask} is outside the vocabulary of {sizes.vocab}")
    plans, skipped = _tensors(config, checkpoint, sizes, len(taps), spark)
    plans = _rope_factors(rope, sizes) + plans
    late = _block_keys(config, rope, sizes, block) + _scale_keys(config, target_text, notes)
    late.append(array(f"{ARCH}.target_layers", ValueType.INT32, taps))
    late += _window_keys(config, sizes.layers, notes) + _causal_keys(config)
    if _is_mrope(target_text):
        late.append(array(f"{ARCH}.rope.dimension_sections", ValueType.INT32, [_rope_dim(rope, sizes) // 2, 0, 0, 0]))
        notes.append(Note("derived", "the target uses M-RoPE: the drafter gets temporal-only sections"))
    if spark:
        late += _spark_keys(config, plans)
    return Description(
        family="DSpark" if spark else "DFlash2" if "conv_kernel_size" in config.nested else "DFlash",
        architecture=ARCH,
        keys=tuple(_early_keys(config, rope, sizes)),
        late_keys=tuple(late),
        tensors=tuple(plans),
        vocab_size=sizes.vocab,
        block_size=block,
        taps=tuple(taps),
        mask_token_id=mask,
        skipped=tuple(skipped),
        notes=tuple(notes),
    )


def _sizes(config: Config, checkpoint: Checkpoint, target: Config, notes: list[Note]) -> Sizes:
    def size(name: str) -> int:
        return config.need(config.integer(name, low=1), name)

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    head_dim = config.integer("head_dim", low=1)
    if head_dim is None:
        rows = next((t.shape[0] for n, t in checkpoint.tensors.items() if n.endswith("self_attn.q_proj.weight")), 0)
        if rows == 0 or rows % heads:
            raise config.missing("head_dim")
        head_dim = rows // heads
        notes.append(Note("derived", f"head_dim {head_dim} from the rows of q_proj"))
    context = config.integer("max_position_embeddings", low=1)
    if context is None:
        context = config.need(target.integer("max_position_embeddings", low=1), "max_position_embeddings")
        notes.append(Note("derived", f"context length {context} from the target's config"))
    vocab = size("vocab_size")
    draft_vocab = config.integer("draft_vocab_size", low=1) or vocab
    if draft_vocab > vocab:
        raise ConfigError(f"config.json: draft_vocab_size {draft_vocab} exceeds vocab_size {vocab}")
    return Sizes(
        layers=size("num_hidden_layers"),
        context=context,
        hidden=hidden,
        ffn=size("intermediate_size"),
        heads=heads,
        heads_kv=config.integer("num_key_value_heads", low=1) or heads,
        head_dim=head_dim,
        vocab=vocab,
        draft_vocab=draft_vocab,
        eps=config.need(config.number("rms_norm_eps"), "rms_norm_eps"),
    )


def _taps(config: Config, target: Config) -> list[int]:
    """Runtime taps: the checkpoint counts layer outputs, the runtime layer inputs, so each id + 1.

    EAGLE-style exports (aux_hidden_state_layer_ids) count layer inputs already.
    """
    inputs = config.integers("aux_hidden_state_layer_ids")
    outputs = config.integers("dflash_config.target_layer_ids", "target_layer_ids")
    taps = [i + 1 for i in outputs] if outputs is not None else inputs
    if not taps:
        raise config.missing(
            "dflash_config.target_layer_ids", tip="the drafter's taps are needed: --taps 1,9,17 gives them"
        )
    if min(taps) < 0 or len(set(taps)) != len(taps):
        raise ConfigError(f"config.json: target_layer_ids {taps} are not distinct layers")
    return taps


def _early_keys(config: Config, rope: Rope, sizes: Sizes) -> list[KV]:
    keys = [
        u32(f"{ARCH}.block_count", sizes.layers),
        u32(f"{ARCH}.context_length", sizes.context),
        u32(f"{ARCH}.embedding_length", sizes.hidden),
        u32(f"{ARCH}.feed_forward_length", sizes.ffn),
        u32(f"{ARCH}.attention.head_count", sizes.heads),
        u32(f"{ARCH}.attention.head_count_kv", sizes.heads_kv),
    ]
    if config.boolean("is_causal") is False:
        keys.append(boolean(f"{ARCH}.attention.causal", False))
    return [
        *keys,
        *rope_keys(rope),
        f32(f"{ARCH}.attention.layer_norm_rms_epsilon", sizes.eps),
        u32(f"{ARCH}.attention.key_length", sizes.head_dim),
        u32(f"{ARCH}.attention.value_length", sizes.head_dim),
    ]


def rope_keys(rope: Rope, arch: str = ARCH) -> list[KV]:
    """Scaling keys, then the base; nothing is written for unscaled rope (llama3 becomes a tensor)."""
    keys: list[KV] = []
    if rope.kind in ("linear", "yarn"):
        keys += [string(f"{arch}.rope.scaling.type", rope.kind), f32(f"{arch}.rope.scaling.factor", rope.factor or 1.0)]
    if rope.kind == "yarn":
        keys.append(u32(f"{arch}.rope.scaling.original_context_length", rope.original_context or 0))
        for name in ("ext_factor", "attn_factor", "beta_fast", "beta_slow"):
            value = getattr(rope, name)
            if value is not None:
                keys.append(f32(f"{arch}.rope.scaling.yarn_{name}", value))
    keys.append(f32(f"{arch}.rope.freq_base", rope.theta))
    return keys


def _rope_dim(rope: Rope, sizes: Sizes) -> int:
    return sizes.head_dim


def _block_keys(config: Config, rope: Rope, sizes: Sizes, block: int) -> list[KV]:
    keys: list[KV] = []
    if rope.partial is not None:
        keys.append(u32(f"{ARCH}.rope.dimension_count", int(sizes.head_dim * rope.partial)))
    value_scale = config.number("dflash_config.attention_value_scale")
    if value_scale is not None:
        keys.append(f32(f"{ARCH}.attention.value_scale", value_scale))
    keys.append(u32(f"{ARCH}.block_size", block))
    if config.nested.get("conv_kernel_size") is not None:
        for name in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"):
            value = config.integer(f"dflash_config.{name}", low=1)
            keys.append(u32(f"{ARCH}.{name}", config.need(value, f"dflash_config.{name}")))
    return keys


def _scale_keys(config: Config, target: Config, notes: list[Note]) -> list[KV]:
    keys: list[KV] = []
    multiplier = config.number("dflash_config.output_multiplier", "output_multiplier")
    if multiplier is not None:
        keys.append(f32(f"{ARCH}.logit_scale", multiplier))
    softcap = config.number("dflash_config.final_logit_softcapping", "final_logit_softcapping")
    if softcap is not None and softcap > 0:
        keys.append(f32(f"{ARCH}.final_logit_softcapping", softcap))
    scale = config.number("dflash_config.input_embedding_scale", "input_embedding_scale")
    if scale is None and any(a.startswith("Gemma") for a in architectures(target.raw)):
        hidden = target.need(target.integer("hidden_size", low=1), "hidden_size")
        scale = hidden**0.5
        notes.append(Note("derived", f"embedding scale sqrt({hidden}): a Gemma target scales its embeddings"))
    if scale is not None:
        keys.append(f32(f"{ARCH}.embedding_scale", scale))
    return keys


def _window_keys(config: Config, layers: int, notes: list[Note]) -> list[KV]:
    """Window and one bool per layer: layer_types count unless use_sliding_window is explicitly false."""
    window = config.integer("dflash_config.swa_window_size", "sliding_window", low=1)
    kinds = config.strings("layer_types")
    wanted = config.boolean("use_sliding_window")
    every = config.boolean("dflash_config.use_swa") is True
    sliding = [True] * layers if every else [kind == "sliding_attention" for kind in kinds or []]
    if not any(sliding):
        return []
    if not every and wanted is False:
        notes.append(Note("info", "use_sliding_window is false: sliding layer_types are written as full attention"))
        return []
    if len(sliding) != layers:
        raise ConfigError(f"config.json: layer_types has {len(sliding)} entries for {layers} layers")
    window = config.need(window, "sliding_window")
    if not every and wanted is None:
        notes.append(Note("derived", f"sliding window {window} from layer_types; use_sliding_window is not set"))
    return [
        u32(f"{ARCH}.attention.sliding_window", window),
        array(f"{ARCH}.attention.sliding_window_pattern", ValueType.BOOL, sliding),
    ]


def _causal_keys(config: Config) -> list[KV]:
    """Absent when nothing says so; an early key already stands for ``is_causal: false``."""
    own = config.boolean("is_causal")
    causal = own if own is not None else config.boolean("dflash_config.causal")
    if causal is None or own is False:
        return []
    return [boolean(f"{ARCH}.attention.causal", causal)]


def _is_mrope(target: Config) -> bool:
    rope = target.table("rope_parameters") or target.table("rope_scaling") or {}
    return "mrope_section" in rope


def _spark_keys(config: Config, plans: list[TensorPlan]) -> list[KV]:
    anchor = config.boolean("sample_from_anchor")
    if anchor is None:
        # EAGLE-style exports draft after a bonus anchor, the DFlash lineage samples from the anchor itself
        anchor = not {"transformer_layer_config", "aux_hidden_state_layer_ids"} & set(config.raw)
    confidence = any(plan.name == "conf_proj.weight" for plan in plans)
    return [boolean(f"{ARCH}.sample_from_anchor", anchor), boolean(f"{ARCH}.has_confidence_head", confidence)]


def _tensors(
    config: Config, checkpoint: Checkpoint, sizes: Sizes, n_taps: int, spark: bool
) -> tuple[list[TensorPlan], list[tuple[str, str]]]:
    rules = dict(BACKBONE)
    dims = {
        "L": sizes.layers,
        "H": sizes.hidden,
        "F": sizes.ffn,
        "N": sizes.heads,
        "D": sizes.head_dim,
        "Q": sizes.heads * sizes.head_dim,
        "K": sizes.heads_kv * sizes.head_dim,
        "T": n_taps * sizes.hidden,
        "V": sizes.vocab,
        "W": sizes.draft_vocab,
    }
    required = list(REQUIRED)
    if config.nested.get("conv_kernel_size") is not None:
        rules |= CONVOLUTION
        required += REQUIRED_CONVOLUTION
        kernel = config.integer("dflash_config.conv_kernel_size", low=1) or 0
        group = config.need(config.integer("dflash_config.conv_group_size", low=1), "dflash_config.conv_group_size")
        rank = config.need(config.integer("dflash_config.selector_rank", low=1), "dflash_config.selector_rank")
        dims |= {"C": kernel, "P": 2 * kernel * (sizes.hidden // group), "S": rank}
    if spark:
        rules |= MARKOV
        required += ["markov_w1.weight", "markov_w2.weight"]
        rank = _rank(checkpoint.tensors)
        dims |= {"R": rank, "M": sizes.hidden + rank}
    plans, skipped, unclaimed = plan_tensors(checkpoint.tensors, rules, dims, SKIP)
    if unclaimed:
        raise FamilyError(
            f"{checkpoint.tensors[unclaimed[0]].file.name}: llama.cpp would not load tensor {unclaimed[0]!r}"
            + (f" (and {len(unclaimed) - 1} more)" if len(unclaimed) > 1 else ""),
            tip="a file with a tensor that the runtime does not claim is refused as a whole",
        )
    require(plans, required, sizes.layers, "DSpark" if spark else "DFlash")
    if sizes.draft_vocab < sizes.vocab and not any(plan.name == "d2t" for plan in plans):
        raise CheckpointError(f"draft_vocab_size {sizes.draft_vocab} < vocab_size {sizes.vocab} but no d2t tensor")
    interleaved = config.boolean("rope_is_neox_style", "is_neox_style") is False
    finished = [_finish(plan, sizes.head_dim if interleaved else 0) for plan in plans]
    return sorted(finished, key=lambda plan: plan.name == "d2t"), skipped


def _rank(tensors: Mapping[str, SourceTensor]) -> int:
    shape = next((t.shape for n, t in tensors.items() if n.endswith("markov_w1.weight")), ())
    return shape[-1] if shape else 0


def _finish(plan: TensorPlan, head_dim: int) -> TensorPlan:
    """rope_rows only applies to interleaved checkpoints: per head, even rows first, then odd (NeoX layout)."""
    if plan.transform != "rope_rows":
        return plan
    transform = "rope_rows" if head_dim else "copy"
    return TensorPlan(plan.name, plan.shape, plan.sources, transform, head_dim)


def _rope_factors(rope: Rope, sizes: Sizes) -> list[TensorPlan]:
    if rope.kind != "llama3":
        return []
    import numpy as np

    values = np.array(llama3_frequency_factors(rope, sizes.head_dim), dtype=np.float32)
    return [TensorPlan("rope_freqs.weight", values.shape, transform="constant", constant=values)]
