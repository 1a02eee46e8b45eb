"""Does llama.cpp claim every tensor of the file, and find every one it needs, in the shape it expects?

The table is what the loader of the pinned build creates for architecture ``dflash``; a file with one tensor more is
refused as a whole ("wrong number of tensors").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dflash_convert import llama
from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.view import DrafterView, Shape

# name -> shape, outermost first, in the symbols of _dimensions; a leading ? marks an optional tensor
TOP = {
    "fc.weight": "H I",
    "enc.output_norm.weight": "H",
    "output_norm.weight": "H",
    "token_embd.weight": "?V H",
    "output.weight": "?W H",
    "d2t": "?W",
    "fc.scale": "?1",
}
BLOCK = {
    "attn_norm.weight": "H",
    "attn_q.weight": "Q H",
    "attn_k.weight": "K H",
    "attn_v.weight": "?U H",
    "attn_output.weight": "H Q",
    "attn_q_norm.weight": "D",
    "attn_k_norm.weight": "D",
    "post_attention_norm.weight": "?H",
    "post_ffw_norm.weight": "?H",
    "layer_output_scale.weight": "?1",
    "attn_sinks.weight": "?N",
    "ffn_norm.weight": "H",
    "ffn_gate.weight": "F H",
    "ffn_up.weight": "F H",
    "ffn_down.weight": "H F",
}
ROPE_FREQS = {"rope_freqs.weight": "?R"}
SPARK = {
    "markov_w1.weight": "V M",
    "markov_w2.weight": "W M",
    "markov_w2.scale": "?1",
    "conf_proj.weight": "?1 E",
    "conf_proj.bias": "?1",
}
SELECTOR = {"selector_predecessor.weight": "V S", "selector_successor.weight": "V S", "selector_hidden.weight": "S H"}
CONVOLUTION = {
    "attn_conv_base": "2 C H",
    "attn_conv_proj.weight": "P H",
    "ffn_conv_base": "2 C H",
    "ffn_conv_proj.weight": "P H",
}
# the DeepSeek-V4 backbone (dflash.hyper_connection.count > 0): names only
DEEPSEEK_TOP = ("output_hc_fn.weight", "output_hc_base.weight", "output_hc_scale.weight")
DEEPSEEK_BLOCK = (
    *("attn_norm", "attn_sinks", "attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv", "attn_kv_a_norm"),
    *("attn_output_a", "attn_output_b", "hc_attn_fn", "hc_attn_base", "hc_attn_scale"),
    *("hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale", "ffn_gate_inp", "ffn_norm"),
    *("ffn_gate_exps", "ffn_down_exps", "ffn_up_exps", "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp"),
)
HOSTS = {
    "bias": "llama.cpp claims no bias of a DFlash layer: the drafter needs another engine",
    "attn_gate": "a Laguna drafter: it needs a build with gated attention",
    "aux_norm": "a Laguna drafter: it needs a build with gated attention",
}
INCOMPLETE = "the file is incomplete or of another family: convert the checkpoint again"


def check_tensors(drafter: DrafterView) -> Iterator[Finding]:
    """Unclaimed, missing and misshapen tensors, at most one finding each."""
    if not drafter.tensors or drafter.row is not llama.DFLASH:
        return
    expected, loose = expectations(drafter)
    unclaimed = [name for name in drafter.tensors if name not in expected]
    missing = [name for name, shape in expected.items() if not shape.startswith("?") and name not in drafter.tensors]
    if unclaimed:
        yield error("unclaimed-tensors", listed(unclaimed), "refused as a whole", _cure(unclaimed))
    if missing:
        yield error("missing-tensors", listed(missing), None, INCOMPLETE)
    if not loose:
        wrong = list(_misshapen(drafter, expected))
        if wrong:
            yield error("tensor-shapes", listed(wrong), None, "keys and tensors are not of the same drafter")
        yield from _values(drafter)
    yield from _selector(drafter)


def expectations(drafter: DrafterView) -> tuple[dict[str, str], bool]:
    """Every name the loader would create, with its shape; True when shapes are not known (DeepSeek-V4)."""
    blocks = range(min(drafter.keys.integer(drafter.own("block_count")) or 0, 1024))
    expected = dict(TOP)
    if drafter.spark:
        expected |= SPARK
    deepseek = (drafter.keys.integer(drafter.own("hyper_connection.count")) or 0) > 0
    if deepseek:
        expected |= dict.fromkeys(DEEPSEEK_TOP, "")
        expected |= {f"blk.{i}.{part}.weight": "" for i in blocks for part in DEEPSEEK_BLOCK}
        expected |= {f"blk.{i}.exp_probs_b.bias": "" for i in blocks}
        return expected, True
    expected |= ROPE_FREQS
    parts = dict(BLOCK)
    if "selector_hidden.weight" in drafter.tensors:
        expected |= SELECTOR
        parts |= CONVOLUTION
    expected |= {f"blk.{i}.{name}": shape for i in blocks for name, shape in parts.items()}
    return expected, False


def _dimensions(drafter: DrafterView) -> dict[str, int | None]:
    """Symbols of the tables; None is unknown and fits anything."""
    own, first = drafter.own, drafter.keys.first
    hidden, heads = first(own("embedding_length")), first(own("attention.head_count"))
    kv = first(own("attention.head_count_kv")) or heads
    default = hidden // heads if hidden and heads else None
    head = first(own("attention.key_length")) or default
    value = first(own("attention.value_length")) or default
    taps = drafter.keys.integers(own("target_layers"))
    vocab = drafter.vocab.size
    reduced = drafter.tensors.get("d2t")
    rank = drafter.tensors.get("markov_w1.weight", (None,))[-1]
    kernel, group = first(own("conv_kernel_size")), first(own("conv_group_size"))
    return {
        "H": hidden,
        "I": _times(hidden, len(taps) if taps else None),
        "V": vocab,
        "W": reduced[0] if reduced else vocab,
        "Q": _times(heads, head),
        "K": _times(kv, head),
        "U": _times(kv, value),
        "D": head,
        "N": heads,
        "F": first(own("feed_forward_length")),
        "R": head // 2 if head else None,
        "M": rank,
        "E": hidden + rank if hidden and rank else None,
        "S": first(own("selector_rank")),
        "C": kernel,
        "P": 2 * kernel * (hidden // group) if hidden and kernel and group else None,
        "1": 1,
        "2": 2,
    }


def _times(a: int | None, b: int | None) -> int | None:
    return a * b if a and b else None


def _misshapen(drafter: DrafterView, expected: Mapping[str, str]) -> Iterator[str]:
    sizes = _dimensions(drafter)
    for name, shape in drafter.tensors.items():
        symbols = expected.get(name, "").lstrip("?").split()
        if symbols and not _fits(shape, [sizes[symbol] for symbol in symbols]):
            wanted = [sizes[symbol] or "any" for symbol in symbols]
            yield f"{name} {list(shape)}, expected {wanted}"


def _fits(shape: Shape, wanted: list[int | None]) -> bool:
    return len(shape) == len(wanted) and all(w is None or w == n for n, w in zip(shape, wanted, strict=True))


def _values(drafter: DrafterView) -> Iterator[Finding]:
    """Absent v projections load silently as V = K, which is right only where the model was trained so."""
    have = [name for name in drafter.tensors if re.fullmatch(r"blk\.\d+\.attn_v\.weight", name)]
    blocks = drafter.keys.integer(drafter.own("block_count")) or 0
    if 0 < len(have) < blocks:
        yield error("value-projections", len(have), f"{blocks} layers", INCOMPLETE)
    elif blocks and not have and "post_ffw_norm.weight" not in " ".join(drafter.tensors):
        yield warning("value-projections", 0, f"{blocks} layers", "llama.cpp takes V = K: right for Gemma 4 only")


def _selector(drafter: DrafterView) -> Iterator[Finding]:
    """The keys and limits that a DFlash2 file must meet or llama.cpp throws."""
    if "selector_hidden.weight" not in drafter.tensors:
        return
    names = ("selector_rank", "selector_top_k", "conv_kernel_size", "conv_group_size", "block_size")
    values = {name: drafter.keys.first(drafter.own(name)) or 0 for name in names}
    absent = [drafter.own(name) for name, value in values.items() if value <= 0]
    if absent:
        yield error("selector-keys", f"without {', '.join(absent)}", None, INCOMPLETE)
        return
    hidden, top = drafter.keys.first(drafter.own("embedding_length")) or 0, values["selector_top_k"]
    if hidden % values["conv_group_size"]:
        text = f"{hidden} / {values['conv_group_size']}"
        yield error("selector-keys", text, None, "the hidden size must be a multiple of conv_group_size")
    if hidden < top * (top + 1):
        yield error("selector-keys", f"top-k {top} at hidden {hidden}", None, "the selector lattice does not fit")


def listed(names: list[str], limit: int = 6) -> list[str]:
    """The first names and how many follow."""
    return names if len(names) <= limit else [*names[:limit], f"and {len(names) - limit} more"]


def _cure(names: list[str]) -> str:
    for part, cure in HOSTS.items():
        if any(part in name for name in names):
            return cure
    return (
        f"llama.cpp {llama.BUILD} would refuse the file: it needs another engine, or these tensors do not belong in it"
    )
