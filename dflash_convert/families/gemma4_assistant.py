"""Gemma 4's assistants (multi-token prediction heads), GGUF architecture gemma4-assistant.

A small Gemma 4 that attends to the target's own keys and values, so it has no k and v projections.  Keys and
their order are those of llama.cpp's Gemma route; the loader is src/models/gemma4-assistant.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from dflash_convert import tensors
from dflash_convert.checkpoint import Checkpoint
from dflash_convert.container.types import KV, ValueType, array, f32, u32
from dflash_convert.drafter import Description, Overrides, Taps, TensorPlan
from dflash_convert.errors import CheckpointError, ConfigError, FamilyError
from dflash_convert.families import fields, gemma4, promises, quantized, rotary
from dflash_convert.families.backbone import early_causal
from dflash_convert.families.common import Needs, plan_tensors, rules, settle
from dflash_convert.hparams import Config
from dflash_convert.llama import GEMMA4_ASSISTANT
from dflash_convert.notes import Note
from dflash_convert.rope import proportional_factors
from dflash_convert.target import Target

ARCH = GEMMA4_ASSISTANT.name
ARCHITECTURES: tuple[str, ...] = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
RULES = rules(
    tensors.GEMMA4_ASSISTANT,
    {
        "embed_tokens.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "pre_projection.weight": "nextn.pre_projection.weight",
        "post_projection.weight": "nextn.post_projection.weight",
        "layers.{}.input_layernorm.weight": "blk.{}.attn_norm.weight",
        "layers.{}.self_attn.q_proj.weight": "blk.{}.attn_q.weight",
        "layers.{}.self_attn.o_proj.weight": "blk.{}.attn_output.weight",
        "layers.{}.self_attn.q_norm.weight": "blk.{}.attn_q_norm.weight",
        "layers.{}.post_attention_layernorm.weight": "blk.{}.post_attention_norm.weight",
        "layers.{}.pre_feedforward_layernorm.weight": "blk.{}.ffn_norm.weight",
        "layers.{}.post_feedforward_layernorm.weight": "blk.{}.post_ffw_norm.weight",
        "layers.{}.layer_scalar": "blk.{}.layer_output_scale.weight",
        "layers.{}.layer_scalar.weight": "blk.{}.layer_output_scale.weight",
        "layers.{}.mlp.gate_proj.weight": "blk.{}.ffn_gate.weight",
        "layers.{}.mlp.up_proj.weight": "blk.{}.ffn_up.weight",
        "layers.{}.mlp.down_proj.weight": "blk.{}.ffn_down.weight",
    },
)
FIELDS: tuple[str, ...] = (fields.MTP,)
OPTIONS: tuple[str, ...] = ("rope-theta",)
REQUIRED = tuple(dict.fromkeys(rule.name for rule in RULES.values()))
CLUSTERED = "masked_embedding."
UNCLAIMED = (
    ("k_proj", "its gemma4-assistant graph reads the target's keys and values"),
    ("v_proj", "its gemma4-assistant graph reads the target's keys and values"),
)


@dataclass(frozen=True)
class Shape:
    """Sizes; ``full`` and ``sliding`` are the head sizes of the two kinds of layers."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    backbone: int
    full: int
    sliding: int
    is_sliding: tuple[bool, ...]
    wide_from: int

    def head(self, layer: int) -> int:
        return self.sliding if self.is_sliding[layer] else self.full

    def width(self, layer: int) -> int:
        return self.ffn * 2 if layer >= self.wide_from else self.ffn


def describe(checkpoint: Checkpoint, target: Target, overrides: Overrides) -> Description:
    """Read an assistant; ``target`` is the target's config.json, whose width must be the assistant's backbone."""
    config, target_config = Config(checkpoint.config, checkpoint.config_file), target.stated
    notes: list[Note] = []
    loaded = quantized.logical_weights(checkpoint, notes)
    shape, shared = _shape(config)
    theta = overrides.rope_theta  # of the full-attention layers, as in every family
    hidden = target_config.integer("hidden_size", low=1)
    if hidden is not None and hidden != shape.backbone:
        notes.append(
            Note(
                "warning", f"backbone_hidden_size is {shape.backbone}, the target's hidden_size {hidden}: other target?"
            )
        )
    clustered = [w for w in loaded.weights if CLUSTERED in w.name]
    promises.compare(config, "use_ordered_embeddings", bool(clustered), CLUSTERED.strip("."))
    dims = {"L": shape.layers, "H": shape.hidden, "V": shape.vocab, "B": shape.backbone, "A": 2 * shape.backbone}
    mapped = plan_tensors([w for w in loaded.weights if CLUSTERED not in w.name], RULES, dims, {})
    if clustered:
        mapped.skipped += [(w.sources[0].name, "llama.cpp's head has no clustered vocabulary") for w in clustered]
        notes.append(
            Note("warning", "this assistant's clustered output head is left out: llama.cpp scores the whole vocabulary")
        )
    settle(mapped, RULES, UNCLAIMED, overrides, ARCH, Needs(REQUIRED, shape.layers, "Gemma-4 assistant"))
    for plan in mapped.plans:
        _check_layer(plan, shape)
    return Description(
        family="MTP",
        architecture=ARCH,
        keys=tuple(_early(config, shape, theta)),
        late_keys=tuple(_late(config, shape, shared)),
        tensors=(_frequencies(config, shape), *mapped.plans),
        vocab_size=shape.vocab,
        block_size=None,
        taps=Taps(),
        mask_token_id=None,
        skipped=(*loaded.skipped, *mapped.skipped),
        notes=tuple(notes),
    )


def _shape(config: Config) -> tuple[Shape, int]:
    """(sizes, layers that share keys and values)"""

    def size(name: str) -> int:
        return config.need(config.integer(name, low=1), name)

    layers = size("num_hidden_layers")
    kinds = config.need(config.strings("layer_types"), "layer_types")
    if len(kinds) != layers:
        raise ConfigError(f"{config.file}: layer_types has {len(kinds)} entries for {layers} layers")
    shared = config.need(config.integer("num_kv_shared_layers"), "num_kv_shared_layers")
    if config.boolean("enable_moe_block") is True:
        raise FamilyError(f"{config.file}: llama.cpp's gemma4-assistant graph has no mixture of experts")
    full = [kind != "sliding_attention" for kind in kinds]
    double = config.boolean("use_double_wide_mlp") is True
    shape = Shape(
        layers=layers,
        hidden=size("hidden_size"),
        ffn=size("intermediate_size"),
        heads=size("num_attention_heads"),
        vocab=size("vocab_size"),
        backbone=size("backbone_hidden_size"),
        full=config.need(gemma4.full_size(config, gemma4.HEAD_DIM, full), gemma4.HEAD_DIM),
        sliding=size("head_dim"),
        is_sliding=tuple(kind == "sliding_attention" for kind in kinds),
        wide_from=layers - shared if double else layers,
    )
    if shape.backbone == shape.hidden:
        raise FamilyError(
            f"{config.file}: backbone_hidden_size equals hidden_size {shape.hidden}, which llama.cpp does not load"
        )
    return shape, shared


def _check_layer(plan: TensorPlan, shape: Shape) -> None:
    """Sizes that differ between sliding and full layers."""
    prefix, _, part = plan.name.partition(".")
    if prefix != "blk":
        return
    number, _, part = part.partition(".")
    head, width = shape.head(int(number)), shape.width(int(number))
    expected = {
        "attn_q.weight": (shape.heads * head, shape.hidden),
        "attn_output.weight": (shape.hidden, shape.heads * head),
        "attn_q_norm.weight": (head,),
        "ffn_gate.weight": (width, shape.hidden),
        "ffn_up.weight": (width, shape.hidden),
        "ffn_down.weight": (shape.hidden, width),
    }.get(part)
    if expected is not None and plan.shape != expected:
        source = plan.sources[0]
        raise CheckpointError(
            f"{source.file}: tensor {source.name!r} has shape {list(plan.shape)}, config.json implies {list(expected)}"
        )


def _rope(config: Config, kind: str) -> Config:
    table = config.need(config.table("rope_parameters"), "rope_parameters")
    inner = table.get(kind)
    if not isinstance(inner, dict):
        raise config.missing(f"rope_parameters.{kind}")
    return Config(inner, f"{config.file}: rope_parameters.{kind}")


def _early(config: Config, shape: Shape, theta: float | None) -> list[KV]:
    full, sliding = _rope(config, "full_attention"), _rope(config, "sliding_attention")
    eps = config.need(config.number("rms_norm_eps", "norm_eps", low=0, high=1), "rms_norm_eps")
    context = config.need(config.integer("max_position_embeddings", low=1), "max_position_embeddings")
    widths = [shape.width(i) for i in range(shape.layers)]
    wide: KV = u32(f"{ARCH}.feed_forward_length", shape.ffn)
    if shape.wide_from < shape.layers:
        wide = array(wide.name, ValueType.INT32, widths)
    return [
        u32(f"{ARCH}.block_count", shape.layers),
        u32(f"{ARCH}.context_length", context),
        u32(f"{ARCH}.embedding_length", shape.hidden),
        wide,
        u32(f"{ARCH}.attention.head_count", shape.heads),
        _kv_heads(config, shape),
        *early_causal(config, ARCH),
        f32(f"{ARCH}.rope.freq_base", full.need(full.number("rope_theta") if theta is None else theta, "rope_theta")),
        f32(f"{ARCH}.rope.freq_base_swa", sliding.need(sliding.number("rope_theta"), "rope_theta")),
        f32(f"{ARCH}.attention.layer_norm_rms_epsilon", eps),
        u32(f"{ARCH}.attention.key_length", shape.full),
        u32(f"{ARCH}.attention.value_length", shape.full),
    ]


def _kv_heads(config: Config, shape: Shape) -> KV:
    sliding = config.need(config.integer("num_key_value_heads", low=1), "num_key_value_heads")
    full = gemma4.full_size(config, gemma4.KV_HEADS, [not sliding for sliding in shape.is_sliding])
    name = f"{ARCH}.attention.head_count_kv"
    if full is None:
        return u32(name, sliding)
    return array(name, ValueType.INT32, [sliding if is_sliding else full for is_sliding in shape.is_sliding])


def _late(config: Config, shape: Shape, shared: int) -> list[KV]:
    softcap = config.number("final_logit_softcapping", low=0)
    window = config.need(config.integer("sliding_window", low=1), "sliding_window")
    sliding = _rope(config, "sliding_attention").number("partial_rotary_factor")
    keys = [f32(f"{ARCH}.final_logit_softcapping", softcap)] if softcap else []
    return [
        *keys,
        u32(f"{ARCH}.attention.sliding_window", window),
        u32(f"{ARCH}.attention.shared_kv_layers", shared),
        u32(f"{ARCH}.embedding_length_per_layer_input", config.integer("hidden_size_per_layer_input") or 0),
        array(f"{ARCH}.attention.sliding_window_pattern", ValueType.BOOL, list(shape.is_sliding)),
        u32(f"{ARCH}.attention.key_length_swa", shape.sliding),
        u32(f"{ARCH}.attention.value_length_swa", shape.sliding),
        u32(f"{ARCH}.rope.dimension_count", shape.full),
        u32(f"{ARCH}.rope.dimension_count_swa", int(shape.sliding * (1.0 if sliding is None else sliding))),
        u32(f"{ARCH}.embedding_length_out", shape.backbone),
        u32(f"{ARCH}.nextn_predict_layers", shape.layers),
    ]


def _frequencies(config: Config, shape: Shape) -> TensorPlan:
    """Proportional rope of the full layers: the unrotated pairs stay in place, their frequency divided away."""
    rope = _rope(config, "full_attention")
    if rope.text("rope_type", "type") != "proportional":
        raise FamilyError(f"{rope.file}: rope_type must be proportional for llama.cpp to run a Gemma-4 assistant")
    share = rope.need(rope.number("partial_rotary_factor"), "partial_rotary_factor")
    return rotary.constant_tensor(proportional_factors(shape.full, share))
