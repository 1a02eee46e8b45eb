"""EAGLE-3 heads, GGUF architecture eagle3: one Llama layer over token embeddings and fused target states.

Keys, order and the head permutation are those of llama.cpp's Llama route; the loader is
src/models/eagle3.cpp, which wants exactly three taps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_convert import tensors
from dflash_convert.checkpoint import Checkpoint
from dflash_convert.container.types import ValueType, array, boolean, u32
from dflash_convert.drafter import Description, Overrides, Taps, TensorPlan
from dflash_convert.errors import CheckpointError, ConfigError, FamilyError
from dflash_convert.families import backbone, draft_map, fields, promises, quantized, rotary
from dflash_convert.families.backbone import Sizes
from dflash_convert.families.common import Mapped, Needs, plan_tensors, rules, settle
from dflash_convert.hparams import Config
from dflash_convert.llama import EAGLE3
from dflash_convert.notes import Note
from dflash_convert.rope import Rope, read_rope
from dflash_convert.target import Target

ARCH = EAGLE3.name
ARCHITECTURES: tuple[str, ...] = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "Eagle3DraftModel",
)
TABLE = {**tensors.EAGLE3, **tensors.EAGLE3_FUSION_NORM}
RULES = rules(
    TABLE,
    {
        "fc.weight": "fc.weight",
        "input_norm.weight": "enc.output_norm.weight",
        "norm.weight": "output_norm.weight",
        "embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "d2t": "d2t add_index",
        "layers.{}.hidden_norm.weight": "blk.{}.attn_norm_2.weight",
        "layers.{}.input_layernorm.weight": "blk.{}.attn_norm.weight",
        "layers.{}.post_attention_layernorm.weight": "blk.{}.ffn_norm.weight",
        "layers.{}.self_attn.q_proj.weight": "blk.{}.attn_q.weight rope_interleave",
        "layers.{}.self_attn.k_proj.weight": "blk.{}.attn_k.weight rope_interleave",
        "layers.{}.self_attn.v_proj.weight": "blk.{}.attn_v.weight",
        "layers.{}.self_attn.o_proj.weight": "blk.{}.attn_output.weight",
        "layers.{}.mlp.gate_proj.weight": "blk.{}.ffn_gate.weight",
        "layers.{}.mlp.up_proj.weight": "blk.{}.ffn_up.weight",
        "layers.{}.mlp.down_proj.weight": "blk.{}.ffn_down.weight",
    },
)
FIELDS: tuple[str, ...] = (fields.EAGLE,)
OPTIONS: tuple[str, ...] = ("taps", "rope-dimension-count", "rope-theta", "rope-style")
AUX = "eagle_aux_hidden_state_layer_ids"
CLASS_THETA = 10000.0  # LlamaConfig without rope_theta (transformers)
SKIP = {"t2d": "the runtime derives it from d2t"}
REQUIRED = tensors.needed(tensors.EAGLE3)
UNCLAIMED = (
    ("_proj.bias", "its eagle3 graph has no biases"),
    ("q_norm", "its eagle3 graph has no query and key norms"),
    ("k_norm", "its eagle3 graph has no query and key norms"),
    ("experts", "its eagle3 graph has one dense layer, no mixture of experts"),
    ("kv_a_proj", "its eagle3 graph has no latent (MLA) attention"),
)


def looks_like(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> bool:
    """A single-layer head with a draft vocabulary under its backbone's architecture string (early EAGLE-3)."""
    names = {name.removeprefix("model.") for name in tensors}
    return (
        "draft_vocab_size" in config
        and config.get("num_hidden_layers") == 1
        and "fc.weight" in names
        and any(name.endswith("hidden_norm.weight") and name != "hidden_norm.weight" for name in names)
    )


def describe(checkpoint: Checkpoint, target: Target, overrides: Overrides) -> Description:
    """Read an EAGLE-3 head; ``target`` is the target's config.json, whose depth gives taps that are not stated."""
    config, target_config = Config(checkpoint.config, checkpoint.config_file), target.stated
    notes: list[Note] = []
    loaded = quantized.logical_weights(checkpoint, notes)
    weights = [weight._replace(name=_canonical(weight.name)) for weight in loaded.weights]
    sizes = backbone.read_sizes(config, weights, target_config, notes)
    if sizes.layers != 1:
        raise FamilyError(
            f"{config.file}: num_hidden_layers is {sizes.layers}; llama.cpp runs EAGLE-3 heads of one layer"
        )
    notes += promises.check(config, weights, sizes)
    promises.check_eagle(config, weights)
    draft_map.check(weights, sizes)
    rope, rope_notes = read_rope(config, theta=overrides.rope_theta, default_theta=CLASS_THETA)
    notes += rope_notes
    taps = _taps(config, target_config, overrides, notes)
    width = config.integer("target_hidden_size", low=1) or target_config.integer("hidden_size", low=1)
    width = target_config.need(width, "hidden_size", tip="--target-model-dir names the target")
    before = promises.eagle_flag(config, "norm_before_fc") is True
    dims = sizes.symbols(len(taps)) | {"Z": len(taps) * width}
    mapped = plan_tensors(weights, RULES, dims, SKIP)
    settle(mapped, RULES, UNCLAIMED, overrides, ARCH, Needs(REQUIRED, 1, "EAGLE-3"))
    _check(mapped, before, sizes)
    plans = _turned(config, mapped, sizes, overrides)
    count = _rotated(config, rope, sizes, overrides)
    plans = [*rotary.rope_factors(rope, sizes.head_dim, count, count // 2, plain=overrides.plain), *plans]
    notes += rotary.rope_notes(rope, plain=overrides.plain, sliding=False)
    _check_graph(config, notes)
    return Description(
        family="EAGLE-3",
        architecture=ARCH,
        keys=(*backbone.early_keys(config, rotary.rope_keys(rope, ARCH, plain=overrides.plain), sizes, ARCH),),
        late_keys=(u32(f"{ARCH}.vocab_size", sizes.vocab), u32(f"{ARCH}.rope.dimension_count", count)),
        tensors=tuple(plans),
        vocab_size=sizes.vocab,
        block_size=None,
        taps=taps,
        mask_token_id=None,
        skipped=(*loaded.skipped, *mapped.skipped),
        notes=tuple(notes),
        eagle3_vocab=True,
        first_keys=(
            array(f"{ARCH}.target_layers", ValueType.INT32, list(taps.inputs)),
            u32(f"{ARCH}.target_hidden_size", width),
            boolean(f"{ARCH}.norm_before_residual", config.boolean("norm_before_residual") is True),
            boolean(f"{ARCH}.norm_before_fc", before),
        ),
    )


def _turned(config: Config, mapped: Mapped, sizes: Sizes, overrides: Overrides) -> list[TensorPlan]:
    """Plans in file order, d2t last; rows of q and k as the graph rotates them (neighbours), if they are not yet."""
    norm = rotary.interleaved(config, overrides)
    step, head = ("copy", 0) if norm else ("rope_interleave", sizes.head_dim)
    plans = [replace(p, transform=step, argument=head) if p.transform == "rope_interleave" else p for p in mapped.plans]
    return sorted(plans, key=lambda plan: plan.name == "d2t")


def _rotated(config: Config, rope: Rope, sizes: Sizes, overrides: Overrides) -> int:
    """The whole head; a part of it would need another order of the rows of q and k."""
    whole = sizes.head_dim
    chosen = rotary.rotated_dimensions(config, rope, sizes, overrides.rope_dimension_count)
    if chosen not in (None, whole):
        raise FamilyError(
            f"{config.file}: {chosen} of {whole} dimensions of a head are rotated; an EAGLE-3 head is written with the "
            "whole head rotated",
            tip=f"exporters copy the factor from the target: --rope-dimension-count {whole} if this one did",
        )
    return whole


def _check_graph(config: Config, notes: list[Note]) -> None:
    """What the eagle3 graph does another way than the config says."""
    name = config.text("hidden_act", "hidden_activation")
    if name not in (None, "silu", "swish"):
        raise FamilyError(f"{config.file}: hidden_act is {name!r}, but llama.cpp runs an EAGLE-3 head with silu only")
    window = config.integer("sliding_window", low=0)
    if window and "sliding_attention" in (config.strings("layer_types") or ()):
        text = f"llama.cpp's eagle3 graph has no window: beyond {window} tokens the head sees more than in training"
        notes.append(Note("warning", text))


def _canonical(name: str) -> str:
    """midlayer.X -> layers.0.X, whatever prefix stands before."""
    bare = name.removeprefix("model.")
    return "layers.0." + bare.removeprefix("midlayer.") if bare.startswith("midlayer.") else bare


def _taps(config: Config, target: Config, overrides: Overrides, notes: list[Note]) -> Taps:
    """Stated, else the rule of every engine: inputs of layer 2, the middle, three before the end."""
    where = f"{config.file}:" if overrides.taps is None else "--taps:"
    taps = overrides.taps or _stated_taps(config, target, notes)
    if not taps:
        depth = target.need(target.integer("num_hidden_layers", low=6), "num_hidden_layers")
        taps = Taps.from_inputs((2, depth // 2, depth - 3))
        notes.append(Note("derived", f"{taps}, from the target's {depth} layers: config.json states no taps"))
    count = config.integer("num_aux_hidden_states", low=1)
    if count is not None and count != len(taps):
        raise ConfigError(f"{config.file}: num_aux_hidden_states is {count}, {where} {len(taps)} taps")
    if len(taps) != 3:
        raise FamilyError(f"{where} {len(taps)} taps, but llama.cpp runs EAGLE-3 with exactly 3")
    if not taps.distinct:
        raise ConfigError(f"{where} the taps ({taps}) are not three distinct layers")
    return taps


def _stated_taps(config: Config, target: Config, notes: list[Note]) -> Taps | None:
    """At the top, layer inputs (vLLM, speculators); in eagle_config, layer outputs (ModelOpt, SpecForge, SGLang)."""
    ids = config.integers(AUX)
    if ids:
        return Taps.from_inputs(ids)
    ids = Config(config.table("eagle_config") or {}, f"{config.file}: eagle_config").integers(AUX)
    if not ids:
        return None
    depth = target.integer("num_hidden_layers", low=1)
    if depth is not None and max(ids) == depth:  # as vLLM reads them: the input after the last layer
        taps = Taps.from_inputs(ids)
        text = f"{taps}, from eagle_config: {depth} is not a layer of the target but what follows, so it counts inputs"
        notes.append(Note("warning", text, True))
        return taps
    taps = Taps.from_outputs(ids)
    notes.append(Note("derived", f"{taps}, from eagle_config, whose writers count outputs (--taps overrules)"))
    return taps


def _check(mapped: Mapped, before: bool, sizes: Sizes) -> None:
    for name in ("d2t", "output.weight") if sizes.draft_vocab < sizes.vocab else ():
        if not mapped.has(name):
            raise CheckpointError(
                f"draft_vocab_size {sizes.draft_vocab} < vocab_size {sizes.vocab} but no tensor for {name}"
            )
    norm = mapped.has("enc.output_norm.weight")
    if norm != before:
        there = "has" if norm else "has no"
        raise CheckpointError(
            f"config.json: norm_before_fc is {str(before).lower()}, but the checkpoint {there} input_norm.weight"
        )
