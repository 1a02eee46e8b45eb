"""Does llama.cpp claim every tensor of the file, and find every one it needs, in the shape it expects?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dflash_convert import llama
from dflash_convert.container.keys import Keys
from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.view import DrafterView, Shape
from dflash_convert.tensors import created, optional, symbols

HOSTS = {
    "bias": "llama.cpp claims no bias of a DFlash layer: the drafter needs another engine",
    "attn_gate": "a Laguna drafter: it needs a build with gated attention",
    "aux_norm": "a Laguna drafter: it needs a build with gated attention",
}
# the loader's get_key; those with a symbol only where a tensor has that size
NEEDED = {
    "context_length": None,
    "embedding_length": None,
    "attention.layer_norm_rms_epsilon": None,
    "feed_forward_length": "F",
    "attention.head_count": "Q",
}
INCOMPLETE = "the file is incomplete or of another family: convert the checkpoint again"


def check_tensors(drafter: DrafterView) -> Iterator[Finding]:
    """Unclaimed, missing and misshapen tensors, at most one finding each."""
    row = drafter.row
    if not drafter.tensors or row is None or not row.parts:
        return
    keys = drafter.keys.under(row.name)
    layers = min(keys.integer("block_count", low=0) or 0, llama.MAX_LAYERS)
    expected = created(row.parts, drafter.tensors, keys, layers)
    absent = [drafter.own(key) for key in _needed(expected) if key not in keys]
    if absent:
        yield error("missing-keys", listed(absent), None, INCOMPLETE)
    unclaimed = [name for name in drafter.tensors if name not in expected]
    missing = [name for name, shape in expected.items() if not optional(shape) and name not in drafter.tensors]
    if unclaimed:
        yield error("unclaimed-tensors", listed(unclaimed), "refused as a whole", _cure(unclaimed))
    if missing:
        yield error("missing-tensors", listed(missing), None, INCOMPLETE)
    wrong = list(_misshapen(drafter, expected))
    if wrong:
        yield error("tensor-shapes", listed(wrong), None, "keys and tensors are not of the same drafter")
    if row is llama.DFLASH:
        if "blk.0.attn_v.weight" in expected:
            yield from _values(drafter)
        yield from _selector(drafter)


def _needed(expected: Mapping[str, str]) -> list[str]:
    """Keys without which llama.cpp does not load the file, or creates other shapes than its tensors have."""
    used = {symbol for shape in expected.values() for symbol in symbols(shape)}
    return [key for key, symbol in NEEDED.items() if symbol is None or symbol in used]


def sizes(keys: Keys, tensors: Mapping[str, Shape], vocab: int | None) -> dict[str, int]:
    """The symbols of :mod:`dflash_convert.tensors` from an architecture's keys; an unknown one is left out."""
    first = keys.first
    hidden, heads = first("embedding_length"), first("attention.head_count")
    kv = first("attention.head_count_kv") or heads
    default = hidden // heads if hidden and heads else None
    head, value = first("attention.key_length") or default, first("attention.value_length") or default
    taps, kernel, group = len(keys.integers("target_layers") or ()), first("conv_kernel_size"), first("conv_group_size")
    reduced, rank = tensors.get("d2t", (vocab,))[0], tensors.get(llama.MARKOV_W1, (None,))[-1]
    groups, streams, wide = first("attention.output_group_count"), first(llama.HYPER), first("embedding_length_out")
    found = {
        **{"H": hidden, "F": first("feed_forward_length"), "N": heads, "D": head, "O": head // 2 if head else None},
        **{"Q": _times(heads, head), "K": _times(kv, head), "U": _times(kv, value), "V": vocab, "W": reduced},
        **{"T": _times(hidden, taps), "Z": _times(first("target_hidden_size"), taps), "E": _times(2, hidden)},
        **{"R": rank, "M": hidden + rank if hidden and rank else None, "S": first("selector_rank"), "C": kernel},
        "P": 2 * kernel * (hidden // group) if hidden and kernel and group else None,
        **{"B": wide, "A": _times(2, wide), "Lq": first("attention.q_lora_rank"), "X": first("expert_count")},
        "Lo": _times(groups, first("attention.output_lora_rank")),
        "G": (_times(heads, head) or 0) // groups if groups else None,
        "I": first("expert_feed_forward_length"),
        "J": _times(first("expert_shared_count"), first("expert_feed_forward_length")),
        **{"Y": streams, "YH": _times(streams, hidden), "YY": (2 + streams) * streams if streams else None},
    }
    return {symbol: size for symbol, size in found.items() if size}


def _times(a: int | None, b: int | None) -> int | None:
    return a * b if a and b else None


def _misshapen(drafter: DrafterView, expected: Mapping[str, str]) -> Iterator[str]:
    known = sizes(drafter.keys.under(drafter.architecture), drafter.tensors, drafter.rows)
    for name, shape in drafter.tensors.items():
        if symbols(expected.get(name, "*")) == ["*"]:
            continue
        wanted = [int(s) if s.isdigit() else known.get(s) for s in symbols(expected[name])]
        if not _fits(shape, wanted):
            yield f"{name} {list(shape)}, expected {[n or 'any' for n in wanted]}"


def _fits(shape: Shape, wanted: list[int | None]) -> bool:
    """ggml does not count outer dimensions of 1, and llama-quantize drops them."""
    rows = [1] * (len(wanted) - len(shape)) + list(shape)
    return len(rows) == len(wanted) and all(w is None or w == n for n, w in zip(rows, wanted, strict=True))


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
    if llama.SELECTOR not in drafter.tensors:
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
