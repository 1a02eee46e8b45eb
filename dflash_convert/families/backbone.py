"""The transformer that every drafter of GGUF architecture dflash shares: sizes, tensor table, keys.

Keys and their order are those of llama.cpp's converter; the table is what its loader claims
(src/models/dflash.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash_convert import tensors
from dflash_convert.container.types import KV, ValueType, array, boolean, f32, string, u32
from dflash_convert.drafter import TensorPlan, Weight
from dflash_convert.errors import ConfigError, FamilyError
from dflash_convert.families.common import rules
from dflash_convert.hparams import Config, classes
from dflash_convert.llama import ACTIVATIONS, DFLASH
from dflash_convert.notes import Note

ARCH = DFLASH.name
TABLE = {**tensors.FUSION, **tensors.ENDS, **tensors.BACKBONE}
BACKBONE = rules(
    TABLE,
    {
        "fc.weight": "fc.weight",
        "encoder.fc.weight": "fc.weight",
        "hidden_norm.weight": "enc.output_norm.weight norm",
        "encoder.output_norm_enc.weight": "enc.output_norm.weight norm",
        "norm.weight": "output_norm.weight norm",
        "embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "layers.{}.input_layernorm.weight": "blk.{}.attn_norm.weight norm",
        "layers.{}.post_attention_layernorm.weight": "blk.{}.ffn_norm.weight norm",
        "layers.{}.self_attn.q_proj.weight": "blk.{}.attn_q.weight rope",
        "layers.{}.self_attn.k_proj.weight": "blk.{}.attn_k.weight rope",
        "layers.{}.self_attn.v_proj.weight": "blk.{}.attn_v.weight",
        "layers.{}.self_attn.o_proj.weight": "blk.{}.attn_output.weight",
        "layers.{}.self_attn.q_norm.weight": "blk.{}.attn_q_norm.weight rope norm",
        "layers.{}.self_attn.k_norm.weight": "blk.{}.attn_k_norm.weight rope norm",
        "layers.{}.mlp.gate_proj.weight": "blk.{}.ffn_gate.weight",
        "layers.{}.mlp.up_proj.weight": "blk.{}.ffn_up.weight",
        "layers.{}.mlp.down_proj.weight": "blk.{}.ffn_down.weight",
        "layers.{}.self_attn.attention_sink_bias": "blk.{}.attn_sinks.weight",
        "layers.{}.self_attn.attention_sink_bias.weight": "blk.{}.attn_sinks.weight",
        "layers.{}.self_attn.sinks": "blk.{}.attn_sinks.weight",
        "layers.{}.self_attn.sinks.weight": "blk.{}.attn_sinks.weight",
    },
)
VALUES = "blk.{}.attn_v.weight"  # the loader takes an absent one as K = V, so a lost one would pass
REQUIRED = tuple(name for name in TABLE if name == VALUES or name in tensors.needed(TABLE))
# (part of a tensor's name, what llama.cpp lacks for it); the first that fits is told
UNCLAIMED = (
    ("self_attn.g_proj", "its dflash graph has no attention gate"),
    ("attn_gate", "its dflash graph has no attention gate"),
    ("aux_norm", "its dflash graph has no auxiliary feature norm"),
    ("_proj.bias", "its dflash graph has no biases in attention or feed-forward layers"),
    ("qkv_proj", "its dflash graph has separate query, key and value projections"),
    ("experts", "its dflash graph has no mixture of experts for this backbone"),
    ("confidence_head", "its dflash graph reads a confidence head only beside a Markov head"),
    ("log_snr", "its DSpark head has no noise-level embedding"),
)
# overrides that mean something for every drafter of a block on this backbone
OPTIONS = (
    "block-size",
    "mask-token-id",
    "taps",
    "rope-dimension-count",
    "rope-theta",
    "rope-style",
    "sample-from-anchor",
)
WINDOW = ("dflash_config.swa_window_size", "sliding_window", "dflash_config.sliding_window")
LAYER_KINDS = ("full_attention", "sliding_attention")
SPELLED = {"swish": ACTIVATIONS[0]}  # another name of the same activation


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

    def symbols(self, taps: int) -> dict[str, int]:
        """Values of the tables' shape symbols."""
        return {
            "L": self.layers,
            "H": self.hidden,
            "F": self.ffn,
            "N": self.heads,
            "D": self.head_dim,
            "Q": self.heads * self.head_dim,
            "K": self.heads_kv * self.head_dim,
            "U": self.heads_kv * self.head_dim,
            "T": taps * self.hidden,
            "V": self.vocab,
            "W": self.draft_vocab,
            "E": 2 * self.hidden,
        }


def read_sizes(config: Config, weights: Sequence[Weight], target: Config, notes: list[Note]) -> Sizes:
    """Every size from the config; head_dim and context may be derived, which is noted."""

    def size(name: str) -> int:
        return config.need(config.integer(name, low=1), name)

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    context = config.integer("max_position_embeddings", low=1)
    if context is None:
        context = config.need(target.integer("max_position_embeddings", low=1), "max_position_embeddings")
        notes.append(Note("derived", f"context length {context} from the target's config"))
    vocab = size("vocab_size")
    draft_vocab = config.integer("draft_vocab_size", low=1) or vocab
    if draft_vocab > vocab:
        raise ConfigError(f"{config.file}: draft_vocab_size {draft_vocab} exceeds vocab_size {vocab}")
    return Sizes(
        layers=size("num_hidden_layers"),
        context=context,
        hidden=hidden,
        ffn=size("intermediate_size"),
        heads=heads,
        heads_kv=config.integer("num_key_value_heads", low=1) or heads,
        head_dim=_head_dim(config, weights, heads, notes),
        vocab=vocab,
        draft_vocab=draft_vocab,
        eps=config.need(config.number("rms_norm_eps", "norm_eps", low=0, high=1), "rms_norm_eps"),
    )


def _head_dim(config: Config, weights: Sequence[Weight], heads: int, notes: list[Note]) -> int:
    head_dim = config.integer("head_dim", low=1)
    if head_dim is None:
        rows = next((w.shape[0] for w in weights if w.name.endswith("self_attn.q_proj.weight")), 0)
        if rows == 0 or rows % heads:
            raise config.missing("head_dim")
        head_dim = rows // heads
        notes.append(Note("derived", f"head_dim {head_dim} from the rows of q_proj"))
    if head_dim % 2:
        raise config.fail("head_dim", head_dim, "an even number")
    return head_dim


def early_keys(config: Config, rope: Sequence[KV], sizes: Sizes, arch: str = ARCH) -> list[KV]:
    """The keys before general.file_type; ``rope`` are those of the rotary embedding."""
    return [*size_keys(sizes, arch), *early_causal(config, arch), *rope, *norm_keys(sizes, arch)]


def early_causal(config: Config, arch: str) -> list[KV]:
    """What every family's converter writes of ``is_causal: false``."""
    return [boolean(f"{arch}.attention.causal", False)] if config.boolean("is_causal") is False else []


def size_keys(sizes: Sizes, arch: str = ARCH) -> list[KV]:
    """The first keys of every drafter."""
    return [
        u32(f"{arch}.block_count", sizes.layers),
        u32(f"{arch}.context_length", sizes.context),
        u32(f"{arch}.embedding_length", sizes.hidden),
        u32(f"{arch}.feed_forward_length", sizes.ffn),
        u32(f"{arch}.attention.head_count", sizes.heads),
        u32(f"{arch}.attention.head_count_kv", sizes.heads_kv),
    ]


def norm_keys(sizes: Sizes, arch: str = ARCH) -> list[KV]:
    """What follows the rope."""
    return [
        f32(f"{arch}.attention.layer_norm_rms_epsilon", sizes.eps),
        u32(f"{arch}.attention.key_length", sizes.head_dim),
        u32(f"{arch}.attention.value_length", sizes.head_dim),
    ]


def scale_keys(config: Config, target: Config, notes: list[Note]) -> list[KV]:
    """Logit scale, soft cap and embedding scale."""
    keys: list[KV] = []
    multiplier = config.number("dflash_config.output_multiplier", "output_multiplier")
    if multiplier is not None:
        keys.append(f32(f"{ARCH}.logit_scale", multiplier))
    softcap = config.number("dflash_config.final_logit_softcapping", "final_logit_softcapping", low=0)
    if softcap:
        keys.append(f32(f"{ARCH}.final_logit_softcapping", softcap))
    scale = config.number("dflash_config.input_embedding_scale", "input_embedding_scale")
    if scale is None and any(a.startswith("Gemma") for a in classes(target.raw)):
        hidden = target.need(target.integer("hidden_size", low=1), "hidden_size")
        scale = hidden**0.5
        notes.append(Note("derived", f"embedding scale sqrt({hidden}): a Gemma target scales its embeddings"))
    if scale is not None:
        keys.append(f32(f"{ARCH}.embedding_scale", scale))
    return keys


def activation_keys(config: Config, notes: list[Note]) -> list[KV]:
    """Nothing for silu, the runtime's default; the reference converter loses gelu."""
    name = config.text("hidden_act", "hidden_activation")
    if name is None:
        return []
    name = SPELLED.get(name, name)
    if name not in ACTIVATIONS:
        raise FamilyError(
            f"{config.file}: hidden_act is {name!r}, but llama.cpp runs a dflash drafter with silu or gelu only"
        )
    if name == ACTIVATIONS[0]:
        return []
    notes.append(Note("info", f"hidden_act {name}: written, the reference converter loses it"))
    return [string(f"{ARCH}.hidden_activation", name)]


def sliding_layers(config: Config, layers: int, notes: list[Note]) -> list[bool]:
    """Which layers have a window: layer_types count unless use_sliding_window is explicitly false."""
    kinds = config.strings("layer_types", "dflash_config.layer_types")
    wanted = config.boolean("use_sliding_window", "dflash_config.use_sliding_window")
    window = config.integer(*WINDOW, low=0) or 0
    if config.boolean("dflash_config.use_swa") is True:
        return [True] * layers
    for kind in (kinds or [])[:layers] if wanted is not False else ():
        if kind not in LAYER_KINDS:
            raise FamilyError(
                f"{config.file}: layer_types holds {kind!r}, and llama.cpp's dflash graph has only "
                + " and ".join(LAYER_KINDS),
                tip="correct the list; use_sliding_window false makes every layer a full one",
            )
    if kinds is None and wanted is True and window:
        first = config.integer("max_window_layers")
        notes.append(
            Note(
                "derived",
                f"layer_types is missing: layers from max_window_layers {28 if first is None else first} on are "
                "sliding, as transformers reads such a config",
            )
        )
        return [i >= (28 if first is None else first) for i in range(layers)]
    sliding = [kind == "sliding_attention" for kind in kinds or []]
    if any(sliding) and wanted is False:
        notes.append(Note("info", "use_sliding_window is false: sliding layer_types are written as full attention"))
        return []
    if sliding and (any(sliding) or wanted) and len(sliding) != layers:
        raise ConfigError(f"{config.file}: layer_types has {len(sliding)} entries for {layers} layers")
    if any(sliding) and wanted is None:
        notes.append(Note("derived", "sliding layers from layer_types; use_sliding_window is not set"))
    return sliding if any(sliding) or (wanted and window) else []


def window_keys(config: Config, sliding: Sequence[bool], block: int, notes: list[Note]) -> list[KV]:
    """Window and one bool per layer."""
    if not sliding:
        return []
    window = config.integer(*WINDOW, low=1)
    window = config.need(window, "sliding_window", tip="layer_types names sliding layers, so their window is needed")
    if window < block:
        notes.append(Note("warning", f"the sliding window of {window} is shorter than a block of {block}"))
    return [
        u32(f"{ARCH}.attention.sliding_window", window),
        array(f"{ARCH}.attention.sliding_window_pattern", ValueType.BOOL, list(sliding)),
    ]


def causal_keys(config: Config, sliding: Sequence[bool], notes: list[Note]) -> list[KV]:
    """Absent when nothing says so; an early key already stands for ``is_causal: false``."""
    own = config.boolean("is_causal")
    if own is False:
        return []
    causal = own if own is not None else config.boolean("dflash_config.causal")
    if causal is None:
        causal = _exported_causality(config, sliding, notes)
    return [] if causal is None else [boolean(f"{ARCH}.attention.causal", causal)]


def _exported_causality(config: Config, sliding: Sequence[bool], notes: list[Note]) -> bool | None:
    """An exporter's own field; the runtime has one flag, so causal windows beside free full layers fit nowhere."""
    query = config.boolean("dflash_config.dflash_query_causal", "dflash_query_causal")
    if query is not None:
        notes.append(Note("derived", f"causal attention {str(query).lower()} from dflash_query_causal"))
        return query
    free = config.boolean("dflash_config.sliding_window_non_causal", "sliding_window_non_causal")
    if free is not None and any(sliding):
        if free or all(sliding):
            notes.append(
                Note("derived", f"causal attention {str(not free).lower()} from sliding_window_non_causal {free}")
            )
            return not free
        notes.append(
            Note(
                "warning",
                "sliding layers are causal and full ones are not (sliding_window_non_causal is false): llama.cpp has "
                "one flag for all layers, so none is written and every layer attends both ways; expect lower "
                "acceptance",
                True,
            )
        )
    elif any(sliding):
        notes.append(
            Note(
                "warning",
                "nothing says whether the sliding layers are causal (is_causal, dflash_config.causal): llama.cpp "
                "will attend both ways in every layer, other engines take sliding layers as causal",
                True,
            )
        )
    return None


def finish(plan: TensorPlan, interleaved: int, gemma_norm: bool) -> TensorPlan:
    """Turn a table's marks into transforms: rope rows only for interleaved checkpoints, 1 + w for Gemma norms."""
    marks = plan.transform.split()
    steps = []
    if "rope" in marks and interleaved:
        steps.append("rope_rows")
    if "norm" in marks and gemma_norm:
        steps.append("add_one")
    known = [mark for mark in marks if mark not in ("rope", "norm")]
    argument = interleaved if "rope_rows" in steps else plan.argument
    return replace(plan, transform="+".join(steps or known or ["copy"]), argument=argument)
