"""What the header says of the file itself: keys that speak of tensors, and tensors in types nobody writes."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_convert import llama
from dflash_convert.container.keys import Keys
from dflash_convert.container.types import TensorType
from dflash_convert.drafter import TensorPlan
from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.tensors import listed
from dflash_convert.pairing.view import DrafterView
from dflash_convert.plan import base_type

AGAIN = "convert the drafter again"


def check_promises(drafter: DrafterView) -> Iterator[Finding]:
    """Keys against tensors: a confidence head, the number of tokens, of prediction layers."""
    head = drafter.keys.boolean(drafter.own("has_confidence_head"))
    there = "conf_proj.weight" in drafter.tensors
    if head is not None and drafter.tensors and head is not there:
        has = "conf_proj.weight is there" if there else "no conf_proj.weight"
        cure = f"llama.cpp's --spec-draft-p-min rests on this key: {AGAIN}"
        found = warning if there else error
        yield found("confidence-head", f"says {str(head).lower()}, {has}", None, cure)
    stated, tokens = drafter.keys.integer(drafter.own("vocab_size")), drafter.vocab.size if drafter.is_gguf else None
    if stated is not None and tokens is not None and stated != tokens:
        cure = f"llama.cpp sizes the tables by the key: {AGAIN}"
        yield error("vocabulary-key", f"{drafter.own('vocab_size')} {stated}, {tokens} tokens", None, cure)
    if drafter.row is llama.GEMMA4_ASSISTANT and drafter.problem is None:
        yield from _assistant(drafter)


def _assistant(drafter: DrafterView) -> Iterator[Finding]:
    """What the assistant's loader throws at, and the shapes that differ between its two kinds of layers."""
    keys = drafter.keys.under(drafter.architecture)
    predicted, layers = keys.integer("nextn_predict_layers"), keys.integer("block_count") or 0
    if predicted != layers:
        cure = f"all layers of an assistant are prediction layers: {AGAIN}"
        yield error("prediction-layers", predicted, f"{layers} layers", cure)
    for kind in ("", "_swa"):
        key, value = keys.integer(f"attention.key_length{kind}"), keys.integer(f"attention.value_length{kind}")
        if key != value:
            yield error("head-sizes", f"keys {key}, values {value}", None, f"llama.cpp wants them equal: {AGAIN}")
    wrong = [each for layer in range(min(layers, llama.MAX_LAYERS)) for each in _misshapen(drafter, keys, layer)]
    if wrong:
        yield error("tensor-shapes", listed(wrong), None, f"keys and tensors are not of the same drafter: {AGAIN}")


def _misshapen(drafter: DrafterView, keys: Keys, layer: int) -> Iterator[str]:
    """Tensors whose rows or columns are not the layer's own number of heads or feed-forward width."""
    sliding, wide = keys.items("attention.sliding_window_pattern") or [], keys.value("feed_forward_length")
    kind = "_swa" if layer < len(sliding) and sliding[layer] else ""
    rows = (keys.first("attention.head_count") or 0) * (keys.integer(f"attention.key_length{kind}") or 0)
    ffn = (keys.per_layer("feed_forward_length", layer + 1) or [0])[layer] if wide is not None else 0
    sizes = {"attn_q": (0, rows), "attn_output": (-1, rows)}
    sizes |= {"ffn_gate": (0, ffn), "ffn_up": (0, ffn), "ffn_down": (-1, ffn)}
    for part, (axis, size) in sizes.items():
        shape = drafter.tensors.get(f"blk.{layer}.{part}.weight")
        if shape is not None and size and shape[axis] != size:
            yield f"blk.{layer}.{part}.weight {list(shape)}, expected {size} {'rows' if axis == 0 else 'columns'}"


def check_types(drafter: DrafterView) -> Iterator[Finding]:
    """Norms, vectors and what is no weight stay F32 in every file that llama.cpp's tools write."""
    wrong = [
        f"{name} {kind.name}"
        for name, kind in drafter.types.items()
        if name != "d2t" and base_type(TensorPlan(name, drafter.tensors.get(name, ()))) not in (None, kind)
    ]
    if wrong and drafter.own("expert_count") not in drafter.keys:
        yield warning("tensor-types", listed(wrong), TensorType.F32.name, f"some backends abort on these: {AGAIN}")
