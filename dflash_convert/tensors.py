"""The tensors that llama.cpp's loaders create for a drafter: names, shapes, and which of them may be absent.

A file is refused as a whole when it lacks a tensor that is needed or has one more than the loader creates ("wrong
number of tensors").  One table serves every use: families map checkpoints to it, ``check`` holds files against it,
forks' files are rewritten to it, the memory plan counts it.

A table maps a name, with ``{}`` for the number of the layer, to a shape: symbols of :data:`SYMBOLS` or numbers, the
outermost dimension first; ``?`` in front marks a tensor that may be absent, ``*`` stands for any shape.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from dflash_convert.container.keys import Keys

Table = Mapping[str, str]

SYMBOLS = {
    "L": "num_hidden_layers",
    "H": "hidden_size",
    "F": "intermediate_size",
    "N": "num_attention_heads",
    "D": "head_dim",
    "O": "head_dim / 2",
    "Q": "num_attention_heads * head_dim",
    "K": "num_key_value_heads * head_dim",
    "U": "num_key_value_heads * head_dim of values",
    "T": "taps * hidden_size",
    "V": "vocab_size",
    "W": "draft_vocab_size",
    "R": "markov_rank",
    "M": "hidden_size + markov_rank",
    "S": "selector_rank",
    "C": "conv_kernel_size",
    "P": "2 * conv_kernel_size * hidden_size / conv_group_size",
    "E": "2 * hidden_size",
    "Z": "taps * target_hidden_size",
    "B": "backbone_hidden_size",
    "A": "2 * backbone_hidden_size",
    "Lq": "q_lora_rank",
    "Lo": "o_groups * o_lora_rank",
    "G": "num_attention_heads * head_dim / o_groups",
    "X": "n_routed_experts",
    "I": "moe_intermediate_size",
    "J": "n_shared_experts * moe_intermediate_size",
    "Y": "hc_mult",
    "YH": "hc_mult * hidden_size",
    "YY": "(2 + hc_mult) * hc_mult",
}


def _layer(parts: Table) -> Table:
    return {f"blk.{{}}.{name}": shape for name, shape in parts.items()}


# --- dflash ------------------------------------------------------------------------------------------------------

FUSION: Table = {"fc.weight": "H T", "enc.output_norm.weight": "H", "fc.scale": "?1"}
ENDS: Table = {"output_norm.weight": "H", "token_embd.weight": "?V H", "output.weight": "?W H", "d2t": "?W"}
QWEN3_LAYER: Table = {
    "attn_norm.weight": "H",
    "attn_q.weight": "Q H",
    "attn_k.weight": "K H",
    "attn_v.weight": "?U H",  # an absent one is K = V, so a lost one would load
    "attn_output.weight": "H Q",
    "attn_q_norm.weight": "D",
    "attn_k_norm.weight": "D",
    "attn_sinks.weight": "?N",
    "ffn_norm.weight": "H",
    "ffn_gate.weight": "F H",
    "ffn_up.weight": "F H",
    "ffn_down.weight": "H F",
}
GEMMA4_LAYER: Table = {
    "post_attention_norm.weight": "?H",
    "post_ffw_norm.weight": "?H",
    "layer_output_scale.weight": "?1",
}
BACKBONE: Table = {"rope_freqs.weight": "?O", **_layer(QWEN3_LAYER), **_layer(GEMMA4_LAYER)}
SPARK: Table = {
    "markov_w1.weight": "V R",
    "markov_w2.weight": "W R",
    "markov_w2.scale": "?1",
    "conf_proj.weight": "?1 M",
    "conf_proj.bias": "?1",
}
CONVOLUTION_LAYER: Table = {
    "attn_conv_base": "2 C H",
    "attn_conv_proj.weight": "P H",
    "ffn_conv_base": "2 C H",
    "ffn_conv_proj.weight": "P H",
}
SELECTOR: Table = {
    "selector_predecessor.weight": "V S",
    "selector_successor.weight": "V S",
    "selector_hidden.weight": "S H",
    **_layer(CONVOLUTION_LAYER),
}
DEEPSEEK4: Table = {
    "output_hc_fn.weight": "Y YH",
    "output_hc_base.weight": "Y",
    "output_hc_scale.weight": "1",
    **_layer(
        {
            "attn_norm.weight": "H",
            "attn_sinks.weight": "N",
            "attn_q_a.weight": "Lq H",
            "attn_q_a_norm.weight": "Lq",
            "attn_q_b.weight": "Q Lq",
            "attn_kv.weight": "D H",
            "attn_kv_a_norm.weight": "D",
            "attn_output_a.weight": "Lo G",
            "attn_output_b.weight": "H Lo",
            "hc_attn_fn.weight": "YY YH",
            "hc_attn_base.weight": "YY",
            "hc_attn_scale.weight": "3",
            "hc_ffn_fn.weight": "YY YH",
            "hc_ffn_base.weight": "YY",
            "hc_ffn_scale.weight": "3",
            "ffn_norm.weight": "H",
            "ffn_gate_inp.weight": "X H",
            "exp_probs_b.bias": "X",
            "ffn_gate_exps.weight": "X I H",
            "ffn_down_exps.weight": "X H I",
            "ffn_up_exps.weight": "X I H",
            "ffn_gate_shexp.weight": "J H",
            "ffn_down_shexp.weight": "H J",
            "ffn_up_shexp.weight": "J H",
        }
    ),
}

# --- eagle3, gemma4-assistant --------------------------------------------------------------------------------------

EAGLE3: Table = {
    "fc.weight": "H Z",
    **ENDS,
    "rope_freqs.weight": "?O",
    **_layer(
        {
            "attn_norm.weight": "H",
            "attn_norm_2.weight": "H",
            "attn_q.weight": "Q E",
            "attn_k.weight": "K E",
            "attn_v.weight": "U E",
            "attn_output.weight": "H Q",
            "ffn_norm.weight": "H",
            "ffn_gate.weight": "F H",
            "ffn_up.weight": "F H",
            "ffn_down.weight": "H F",
        }
    ),
}
EAGLE3_FUSION_NORM: Table = {"enc.output_norm.weight": "Z"}
GEMMA4_ASSISTANT: Table = {
    "token_embd.weight": "V H",
    "output_norm.weight": "H",
    "nextn.pre_projection.weight": "H A",
    "nextn.post_projection.weight": "B H",
    "rope_freqs.weight": "O",
    "masked_embd_centroids.weight": "?*",  # loaded and never read
    "masked_embd_ordering": "?*",
    **_layer(
        {  # two kinds of layers have two head sizes and widths
            "attn_norm.weight": "H",
            "attn_q.weight": "*",
            "attn_output.weight": "*",
            "attn_q_norm.weight": "*",
            "post_attention_norm.weight": "H",
            "ffn_norm.weight": "H",
            "ffn_gate.weight": "*",
            "ffn_up.weight": "*",
            "ffn_down.weight": "*",
            "post_ffw_norm.weight": "H",
            "layer_output_scale.weight": "1",
        }
    ),
}


@dataclass(frozen=True)
class Part:
    """A table, and when the loader uses it: ``mark`` is a tensor of the file, ``key`` and ``unless`` are keys of the
    architecture that are set (neither absent nor false nor 0)."""

    tensors: Table
    mark: str = ""
    key: str = ""
    unless: str = ""

    def applies(self, names: Container[str], keys: Keys) -> bool:
        if self.mark and self.mark not in names:
            return False
        if self.key and not keys.value(self.key):
            return False
        return not (self.unless and keys.value(self.unless))


def created(parts: Iterable[Part], names: Container[str], keys: Keys, layers: int) -> dict[str, str]:
    """Every tensor that the loader creates for a file with tensors ``names`` and the architecture's ``keys``."""
    table = {name: shape for part in parts if part.applies(names, keys) for name, shape in part.tensors.items()}
    found: dict[str, str] = {}
    for name, shape in table.items():
        found |= dict.fromkeys([name.format(i) for i in range(layers)] if "{}" in name else [name], shape)
    return found


def optional(shape: str) -> bool:
    return shape.startswith("?")


def symbols(shape: str) -> list[str]:
    return shape.lstrip("?").split()


def needed(table: Table) -> tuple[str, ...]:
    """The names of a table that no file may lack."""
    return tuple(name for name, shape in table.items() if not optional(shape))


def dimension(symbol: str, sizes: Mapping[str, int]) -> int:
    """A number, or the symbol's size."""
    return int(symbol) if symbol.isdigit() else sizes[symbol]
